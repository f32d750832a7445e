//! Policy `weft`: fills gaps by quantiles of what followed in the same context before.
//!
//! # Steps
//!
//! All times are in ns.
//!
//! 1. **Room.** `state.opening` says for how long background jobs may use the device:
//!
//!    ```text
//!    P(foreground job back before now + room | the gap has lasted so long) <= risk
//!    risk = Config::risk; at most 0.5 where the device switches between processes
//!    ```
//!
//!    Known gaps, random arrivals and open-ended gaps are one case. Where the foreground job's host
//!    is slower than the device, `room` grows by the delay budget ([`Slack`](crate::slack::Slack)):
//!    between two launches no wait follows the delayed kernel. Beside a busy foreground job only
//!    copies go.
//! 2. **Fit.** A kernel fits if `takes <= room`:
//!
//!    ```text
//!    takes     = max(remaining, lead) + long + way_there
//!    remaining = background work that is still to run
//!    lead      = how long an order takes to arrive
//!    long      = a high quantile of the kernel's time, in its context
//!    way_there = Config::switch_cost * (0 owner | 1 other background job | 4 foreground job)
//!    ```
//!
//!    A long kernel must also fit at the smaller risk of its length (`state.opening_for`).
//! 3. **Choice.** First a job that is about to starve. Else the most important class with a kernel
//!    that fits; of it the job whose turn it is, or else the longest kernel that fits.
//! 4. **Deferral.** A kernel waits for a better moment that is near, if that costs less than it
//!    saves.
//! 5. **Grant.** The grant leaves `lead` before the device runs dry
//!    ([`Device::lead`](crate::device::Device::lead)), also before the foreground job's own work
//!    ends. More is granted where a return is hardly expected. At random arrivals no more is
//!    granted than the foreground job finds of a kernel in progress anyway. A job that launches
//!    more slowly than the device works goes on by itself.
//! 6. **Run-ahead window.** A lone background job with a profile needs few grants: the broker
//!    writes until when no return is expected ([`RunAheadWindow`]). The job's gate launches what
//!    ends by then, one kernel ahead of the device. Credit comes back as work ends.
//! 7. **Return.** The foreground job's launch epoch voids all credit. Any driver call of an idle
//!    foreground job takes credit back before its launch.
//!
//! ```text
//! foreground  |##launches##|                               |####
//! device      |#######work#######|####k1####|     idle     |####
//!                           |lead|
//!                           |<--- takes --->|
//!                           |<- room: P(back) <= risk ->|
//!                           ^ grant of k1                  ^ epoch moves: credit void
//! ```
//!
//! # Special cases
//!
//! * A kernel that fits no gap runs when nothing says that a long silent foreground job comes back,
//!   or by the minimum share. A graph is not cut into nodes: their order is the graph's, and a
//!   launch for each costs what the graph saves.
//! * A job of which nothing is known has one kernel at a time, counted as the whole delay bound,
//!   until some were seen to end.
//!
//! Tried and not kept: an empty kernel of the foreground job's process at each copy while idle, to
//! start the switch back early. In the lab (one crude form) the device switched more often and
//! gained nothing. No command repeats it.

use super::{
    super::{
        client::ClientState,
        queue::{Entry, Slot},
        state::State,
    },
    Policy, TopUp, Verdict, copies, foreground_and_background,
    turns::{Turns, make_room, more_important_runs, unused},
};
use weft_protocol::{Ns, PRIORITIES, credit::RunAheadWindow, lane::Mode};

/// Chance of a return during a full delay bound of work, up to which more than `lead` is granted.
const HARDLY: f64 = 0.02;

/// Chance of a return within a kernel's time, up to which a moment is good.
const GOOD: f64 = 0.1;

/// Chances between `GOOD` and the highest risk that deferral tells apart.
const SHADES: [f64; 4] = [0.1, 0.15, 0.2, 0.25];

#[derive(Debug, Default)]
pub(super) struct Weft {
    turns: Turns,
}

impl Policy for Weft {
    fn mode(&self, priority: u8, first: u8) -> Mode {
        foreground_and_background(priority, first)
    }

    fn next(&mut self, state: &State, now: Ns) -> Verdict {
        let room = match state.opening(now) {
            Ok(room) => room,
            Err(until) => return copies::beside_foreground(state, until, now),
        };
        let remaining = state.remaining(now);
        match self.fitting(state, room, remaining, now) {
            Ok(entry) => grant(state, &entry, room, remaining, now),
            Err(verdict) => verdict,
        }
    }

    fn top_up(&self, state: &State, slot: Slot, now: Ns) -> TopUp {
        let Some(client) = state.get(slot).filter(|client| client.pace.is_known()) else {
            return TopUp::No;
        };
        // Unused credit is not topped up.
        if now
            > client
                .progress_at
                .max(client.granted_at)
                .saturating_add(state.config.delay_bound)
        {
            return TopUp::No;
        }
        let (remaining, lead) = (state.remaining(now), state.lead());
        let due = remaining.saturating_sub(2 * lead);
        // At random arrivals: no more than the foreground job finds of a kernel in progress anyway.
        let calm = match state.is_steady() {
            true => calm(state, now),
            false => calm(state, now).min(client.pace.in_progress()),
        };
        // Kernels that take n times their charge get 1/n.
        let longer = match client.pace.is_profiled() {
            true => 1,
            false => (client.pace.slowest() / client.pace.longest().max(1)).max(1),
        };
        let calm = calm / longer;
        let slow = slow(state, client, now, 2 * lead);
        let most = most_ahead(state, client).min(calm.max(slow));
        if due > 0 && most > remaining {
            return TopUp::At(state.less_remains(due, now));
        }
        // No trip for less than the trip takes.
        match most.checked_sub(state.exposure) {
            Some(more) if more > lead => TopUp::To(client.ledger.usable().saturating_add(more)),
            _ => TopUp::No,
        }
    }

    fn window(&self, state: &State, slot: Slot, now: Ns) -> Option<(RunAheadWindow, Ns)> {
        // Without a profile the charges say little about kernel times.
        let client = state.get(slot).filter(|client| client.pace.is_profiled())?;
        let config = &state.config;
        let longest = Some(client.pace.longest()).filter(|longest| *longest > graph(state));
        let room = state.opening_for(longest.unwrap_or(0), now).ok()?;
        let calm = calm(state, now);
        let window = RunAheadWindow {
            safe_until: now.saturating_add(calm),
            deadline: now.saturating_add(room).max(1),
            max_backlog: config.depth,
            non_refundable: client.window.map_or(0, |window| window.non_refundable),
        };
        let again = (room / 2).clamp(config.open_after / 8, config.open_after * 4).max(1);
        Some((window, now.saturating_add(again)))
    }

    fn forget(&mut self, slot: Slot) {
        self.turns.forget(slot);
    }
}

impl Weft {
    /// The entry that goes next, or the verdict.
    fn fitting(&mut self, state: &State, room: Ns, remaining: Ns, now: Ns) -> Result<Entry, Verdict> {
        let mut again = later(state, now);
        if let Some(entry) = starving(state, now).filter(|entry| fits(state, entry, room, remaining, now)) {
            return Ok(entry);
        }
        for class in 0..PRIORITIES {
            let Some(first) = state.queue.first_in_turn(class) else {
                continue;
            };
            // Without switching costs no turns are kept.
            let slot = match state.config.switch_cost {
                0 => first,
                _ => self.turns.whose(class, state, now)?,
            };
            let entry = state.get(slot).and_then(|client| client.queued);
            let mut longer = false;
            if let Some(entry) = entry {
                if fits(state, &entry, room, remaining, now) {
                    return match grace(state, &entry, remaining, now) {
                        Some(at) => Err(Verdict::Nothing(Some(at))),
                        None => Ok(entry),
                    };
                }
                longer = true;
            }
            // The longest of the others that fit. A kernel with a low charge and a long quantile
            // must hide none that fits. Else a less important one is granted and revoked for it
            // again and again.
            if let Some(entry) = longest(state, class, room, remaining, now) {
                return Ok(entry);
            }
            // What is out leaves too little room: look again when it has ended.
            if longer && remaining > 0 {
                again = again.min(state.less_remains(remaining, now));
            }
        }
        Err(Verdict::Nothing(Some(again)))
    }
}

/// The waiting entry of a job that is about to starve. It has the next gap first, which costs the
/// foreground job nothing; later it would go beside the foreground job.
fn starving(state: &State, now: Ns) -> Option<Entry> {
    let (_, slot) = state.queue.first_due()?;
    state.get(slot)?.queued.filter(|_| state.is_hungry(slot, now))
}

/// The entry of `class` with the longest `long` that fits. Only the device's owner needs no switch.
fn longest(state: &State, class: usize, room: Ns, remaining: Ns, now: Ns) -> Option<Entry> {
    let fitting = |slot: Slot| {
        let entry = state.get(slot)?.queued.filter(|entry| entry.class == class)?;
        fits(state, &entry, room, remaining, now).then_some(entry)
    };
    let others = remaining.max(state.lead()).saturating_add(match state.device.owner() {
        Some(_) => state.config.switch_cost,
        None => 4 * state.config.switch_cost,
    });
    let best = match room.checked_sub(others) {
        Some(most) => state.queue.best_fit(class, most.saturating_add(1)).and_then(fitting),
        None => None,
    };
    let there = state.device.owner().and_then(fitting);
    match (best, there) {
        (Some(best), Some(there)) if there.long > best.long => Some(there),
        (None, there) => there,
        (best, _) => best,
    }
}

/// Time from now to this kernel's end: `max(remaining, lead) + long + way_there`.
fn takes(state: &State, entry: &Entry, remaining: Ns) -> Ns {
    remaining
        .max(state.lead())
        .saturating_add(entry.long)
        .saturating_add(way_there(state, entry.slot))
}

/// Length above which a kernel (a graph, say) must also fit at the risk of its length, on any
/// device.
fn graph(state: &State) -> Ns {
    4 * state.config.delay_bound
}

/// Whether `takes <= room`; for `long` above `short` also at the risk of its length. `short` is
/// half a delay bound where the device switches. (Under MPS that took 6 % from background jobs and
/// gave the foreground job 0.1 %.)
fn fits(state: &State, entry: &Entry, room: Ns, remaining: Ns, now: Ns) -> bool {
    let takes = takes(state, entry, remaining);
    let short = match state.config.switch_cost {
        0 => graph(state),
        _ => state.config.delay_bound / 2,
    };
    takes <= room && (entry.long <= short || state.opening_for(entry.long, now).is_ok_and(|room| takes <= room))
}

/// Room for switching to the job in `slot`, where the device switches between processes.
///
/// The owner needs none: the way back begins with the foreground job's kernel, however early
/// background work is done. Another background job needs one switch. From the foreground job it is
/// twice there and back: a gap that is mostly switching is not worth what the way back costs.
fn way_there(state: &State, slot: Slot) -> Ns {
    let switches = match state.device.owner() {
        Some(owner) if owner == slot => 0,
        Some(_) => 1,
        None => 4,
    };
    switches * state.config.switch_cost
}

/// When to look for room again: the longer nothing has changed, the later.
fn later(state: &State, now: Ns) -> Ns {
    let since = state
        .foreground_jobs
        .iter()
        .filter_map(|slot| state.get(*slot)?.timeline.last_active())
        .max()
        .unwrap_or(0);
    let elapsed = now.saturating_sub(since);
    let (least, most) = (state.config.open_after / 8, state.config.open_after * 4);
    now.saturating_add((elapsed / 8).clamp(least.max(1), most.max(1)))
}

/// A better moment for this kernel, if waiting for it costs less than it saves.
fn grace(state: &State, entry: &Entry, remaining: Ns, now: Ns) -> Option<Ns> {
    let time = takes(state, entry, remaining);
    let fits = |at: Ns, chance: f64| state.room(at, chance).is_ok_and(|room| time <= room);
    let risk = state.risk();
    if !state.config.grace || risk <= GOOD || fits(now, GOOD) || !state.room(now, risk).is_ok_and(|room| time <= room) {
        return None;
    }
    let chance = SHADES
        .into_iter()
        .find(|chance| *chance < risk && fits(now, *chance))
        .unwrap_or(risk);
    // A return delays by half of the kernel's time; `risk` says what that is worth.
    let saves = (chance - GOOD) / risk * time as f64;
    let mut ahead = (saves as Ns) / 8;
    while ahead > 0 && ahead <= saves as Ns {
        let at = now.saturating_add(ahead);
        if fits(at, GOOD) {
            return Some(at);
        }
        ahead = ahead.saturating_mul(2);
    }
    None
}

/// How long background jobs may go beyond `lead`: until a return has the chance `HARDLY`.
fn calm(state: &State, now: Ns) -> Ns {
    state.room(now, HARDLY).unwrap_or(0)
}

/// Unlimited credit for a job that launches more slowly than the device works, until the foreground
/// job is due. At most one of its kernels is on the device; the launch epoch ends its credit.
fn slow(state: &State, client: &ClientState, now: Ns, takes: Ns) -> Ns {
    let due = state.opening(now).unwrap_or(0) < takes;
    // The charges tell nothing where kernels take much longer.
    let long = !client.pace.is_profiled() && client.pace.slowest() > state.config.delay_bound / 4;
    match client.pace.spread(1) {
        Ns::MAX if !due && !long => Ns::MAX,
        _ => 0,
    }
}

/// The most that a job may have out: any usual kernel of it is admitted before these are seen to
/// end.
fn most_ahead(state: &State, client: &ClientState) -> Ns {
    let bound = state.config.delay_bound;
    match client.long_out() {
        0 => bound.saturating_sub(client.pace.longest()).max(bound / 2),
        long => long.saturating_add(bound / 4),
    }
}

/// Grants a kernel that fits, `lead` before the device runs dry.
fn grant(state: &State, entry: &Entry, room: Ns, remaining: Ns, now: Ns) -> Verdict {
    let Some(client) = state.get(entry.slot) else {
        return Verdict::Nothing(None);
    };
    let known = client.pace.is_known();
    let lead = state.lead();
    let takes = takes(state, entry, remaining);
    let calm = calm(state, now).saturating_sub(takes);
    // In a calm time a thread that is held back only loses time to prepare its next launch. An
    // unknown job has one kernel, with no work before it.
    let ahead_of = if known {
        lead.max(calm.min(state.config.delay_bound / 4))
    } else {
        0
    };
    if remaining > ahead_of {
        let again = state.less_remains(remaining - ahead_of, now);
        // Only the next launch epoch ends unused credit: revoke it for the job that waits.
        return match unused(state, entry.slot) {
            Some((slot, at)) if now >= at => Verdict::Revoke(slot),
            Some((_, at)) => Verdict::Nothing(Some(again.min(at))),
            None => Verdict::Nothing(Some(again)),
        };
    }
    if !state.admits(entry.slot, entry.cost) {
        return make_room(state, entry.slot, entry.cost, now);
    }
    if state.config.switch_cost > 0
        && let Some(silent) = more_important_runs(entry.class, state, now)
    {
        return Verdict::Nothing(Some(silent));
    }
    let total = if known {
        let slow = slow(state, client, now, takes);
        let lead = lead.min(room.saturating_sub(takes));
        let most = most_ahead(state, client).saturating_sub(state.exposure_before(entry.slot));
        // Kernels that take n times their charge get 1/n.
        let longer = match client.pace.is_profiled() {
            true => 1,
            false => (entry.long / entry.cost.max(1)).max(1),
        };
        match client.pace.is_profiled() && state.has_one_background() {
            // The run-ahead window bounds what goes ahead. A long kernel goes by itself when what
            // is before it has ended.
            true => state
                .config
                .delay_bound
                .saturating_sub(state.exposure_before(entry.slot)),
            false => (lead.max(calm).max(slow) / longer).min(most),
        }
    } else {
        0
    };
    Verdict::Grant {
        slot: entry.slot,
        total: entry.cost.max(total),
        bound: true,
    }
}
