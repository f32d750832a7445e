// SPDX-License-Identifier: MIT OR Apache-2.0
//! Run-ahead windows of background jobs: given with a grant, moved as time passes.

use weft_protocol::{Ns, credit::RunAheadWindow};

use super::room::PolicyView;
use crate::{action::CreditGrant, config::Config, dispatcher::Dispatcher, queue::ClientSlot};

use super::{calm, models::Models};

/// Grant that a more important launch voids, with its window.
pub(super) fn grant(situation: PolicyView<'_>, slot: ClientSlot, total: Ns) -> CreditGrant {
    let (state, now) = (situation.state, situation.now);
    let client = state.get(slot);
    let cost = client.and_then(|client| client.queued).map_or(0, |entry| entry.cost);
    // Until the answer to a revocation, credit of the last window may still come back.
    let empty = client.is_some_and(|client| client.revoking.is_none());
    let window = match empty && state.may_have_window(slot, cost, now) {
        true => window(situation, slot),
        false => None,
    };
    CreditGrant {
        outlives: situation.launches_to_come(),
        window,
        ..CreditGrant::bound(slot, total)
    }
}

/// Moves run-ahead windows. The longer the foreground job is away, the later its return is
/// expected.
pub(super) fn move_all(models: &Models, to: &mut Dispatcher<'_>) {
    if !to.windows_out() {
        return;
    }
    let now = to.now;
    for at in 0..to.state().exposed.len() {
        let state = to.state();
        let Some(slot) = state.exposed.get(at).copied() else {
            return;
        };
        let Some(client) = state.get(slot) else { continue };
        let (Some(old), None) = (client.window.filter(|_| client.bound), client.revoking) else {
            continue;
        };
        // A device that switches between processes serves several background jobs in turns.
        if !state.may_run_ahead() {
            to.set_window(slot, None);
            continue;
        }
        if state.is_ahead(slot, now) {
            to.revoke(slot);
            continue;
        }
        // No window: the foreground job works, and its launch epoch has ended the window.
        let Some((new, again)) = window(PolicyView { state, models, now }, slot) else {
            continue;
        };
        if differs(&old, &new, now) {
            to.set_window(slot, Some(new));
        }
        to.wake_at(again);
    }
}

/// Run-ahead window of a client, and when to look at it again.
fn window(situation: PolicyView<'_>, slot: ClientSlot) -> Option<(RunAheadWindow, Ns)> {
    // Until kernel times are known, the charges are not kernel times.
    let (client, _) = situation.job(slot).filter(|(_, job)| job.times.is_known())?;
    let (config, now) = (&situation.state.config, situation.now);
    let others = situation.others(slot);
    let room = situation.opening().ok()?;
    let until = |room: Ns| now.saturating_add(room.saturating_sub(others)).max(1);
    let window = RunAheadWindow {
        safe_until: now.saturating_add(calm(situation).saturating_sub(others)),
        deadline: until(room.usual),
        long_deadline: until(room.long),
        long_from: room.long_from,
        max_backlog: backlog(config, || situation.laxity()),
        non_refundable: client.window.map_or(0, |window| window.non_refundable),
    };
    let again = (room.usual.saturating_sub(others) / 2)
        .clamp(config.open_after / 8, config.open_after * 4)
        .max(1);
    Some((window, now.saturating_add(again)))
}

/// Whether two windows differ in backlog, or by more than an eighth in a time.
fn differs(old: &RunAheadWindow, new: &RunAheadWindow, now: Ns) -> bool {
    let moved = |old: Ns, new: Ns| old.abs_diff(new) > new.saturating_sub(now) / 8;
    moved(old.deadline, new.deadline)
        || moved(old.long_deadline, new.long_deadline)
        || old.long_from.abs_diff(new.long_from) > new.long_from / 8
        || moved(old.safe_until.max(now), new.safe_until.max(now))
        || old.max_backlog != new.max_backlog
}

/// Background work that may be on the device when the next kernel is launched, ns.
///
/// One kernel ahead, and more if the foreground job does not notice it. Otherwise a job with short
/// kernels cannot keep the device busy. Under MPS the limit is a sixteenth of the laxity. (An
/// LSTM's training with llama had 0.726 of its own speed without it, and 0.753 with it. A quarter
/// and an eighth cost others more.)
///
/// If the device switches between processes, a context that runs dry gives the device back. Each
/// way there and back then costs two switches. So there a background job launches further ahead, up
/// to a quarter of the laxity. (Half of it and all of it gave no more in the lab.)
pub(super) fn backlog(config: &Config, laxity: impl FnOnce() -> Ns) -> Ns {
    let ahead = match config.switch_cost {
        0 => (laxity() / 16).min(config.delay_bound / 2),
        _ => (laxity() / 4).min(config.delay_bound),
    };
    config.depth.max(ahead)
}
