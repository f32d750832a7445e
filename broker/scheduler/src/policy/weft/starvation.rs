// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starvation: which background jobs have had too few gaps, and their parts of the minimum share.

use weft_protocol::Ns;

use super::{later, room::PolicyView};
use crate::{
    client::KernelAtGate,
    config::Config,
    dispatcher::Dispatcher,
    policy::minimum_share::Portion,
    queue::{ClientSlot, QueueEntry},
    state::SchedulerState,
};

/// Postpones starvation by `starving_after * min(work, delay_bound) / delay_bound`, ns.
pub(super) fn gap_used(to: &mut Dispatcher<'_>, slot: ClientSlot, work: Ns, now: Ns) {
    let Config {
        delay_bound: enough,
        starving_after: lasts,
        ..
    } = to.state().config;
    let Some(client) = to.state().get(slot) else { return };
    let most = now.saturating_add(lasts);
    let lasts = (lasts as f64 * work.min(enough) as f64 / enough.max(1) as f64) as Ns;
    let starves_at = client.starves_at.max(now).saturating_add(lasts).min(most);
    to.set_starves_at(slot, starves_at);
}

/// When the minimum share lets a waiting kernel through. `price`: the most that it may take, ns.
pub(super) fn due(state: &SchedulerState, slot: ClientSlot, wait: &KernelAtGate, price: Ns) -> Ns {
    let interval = state.share_interval(price).max(state.config.share_every);
    let starves_at = state.get(slot).map_or(0, |client| client.starves_at);
    wait.since.saturating_add(interval).max(starves_at)
}

/// Portion of the minimum share for a due client. Error: when to look again.
///
/// A kernel beyond the delay bound goes at the begin of a gap: it keeps the foreground job waiting
/// for its time less the gap. If no gap begins for `starving_after`, it goes all the same.
pub(super) fn portion(situation: PolicyView<'_>, entry: &QueueEntry) -> Result<Portion, Ns> {
    let (state, now) = (situation.state, situation.now);
    let waits = situation
        .job(entry.slot)
        .and_then(|(client, job)| Some((client.wait?, job)));
    let price = waits.map_or(entry.long, |(wait, job)| job.times.price(wait.kernel, entry.long));
    let patience = entry.due.saturating_add(state.config.starving_after);
    let is_short = price <= state.config.delay_bound;
    match is_short || now >= patience || situation.begins_gap(price) {
        true => Ok(Portion {
            credit: credit(state, entry),
            price,
        }),
        false => Err(later(state, now).min(patience)),
    }
}

/// A portion pays for one switch there and back: the share of `share_every`.
fn credit(state: &SchedulerState, entry: &QueueEntry) -> Ns {
    if entry.long > entry.cost {
        return entry.cost;
    }
    let config = &state.config;
    let due = (config.share_every as f64 * config.minimum_share) as Ns;
    let room = state.delay_bound().saturating_sub(state.exposure_before(entry.slot));
    entry.cost.max(due.saturating_sub(2 * config.switch_cost).min(room))
}
