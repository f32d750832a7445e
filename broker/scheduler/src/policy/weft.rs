//! `weft`: gaps are filled by what was seen to follow in the same context, with quantiles in place
//! of means.
//!
//! | question | answer |
//! |---|---|
//! | may this kernel run now? | if the foreground job comes back before it has ended (and before the device is back) with a chance of [`Config::risk`](crate::Config::risk) at most, its time taken as a high quantile |
//! | how long is the gap? | it is not asked: what is asked is the chance that it ends within a kernel's time, given that it has lasted so long. Gaps of known length, arrivals at random and open-ended gaps are one case |
//! | and where the device switches between processes? | the way there is part of the gap; it is gone if the gap leaves background jobs as much time as going there and back costs the device. The way back begins when the foreground job's kernel comes, so none of the gap is kept free for it |
//! | what if it lasts beyond the gap? | between two launches of a foreground job whose host is slower than the device nobody waits for the kernel that is delayed: there it may, by a hundredth or so of the time between two waits of the foreground job ([`Slack`](crate::slack::Slack)) |
//! | who? | the most important class that has a kernel that fits; of that whose turn it is, or else the longest that fits |
//! | how much ahead? | the next kernel is granted when the one on the device is about to end: as long before as an order takes to arrive ([`Device::lead`](crate::device::Device::lead)), also before the foreground job's own work ends. More where the foreground job is hardly to be expected; where it comes at random, no more than it finds of a kernel in progress anyway. A job that launches more slowly than the device works goes on by itself: it never has more than a kernel there |
//! | who launches the next kernel? | a background job that is alone and has a profile goes on by itself under a [`RunAheadWindow`]: the broker says until when the foreground job is not expected, the background job's gate sees to it that what it launches ends by then, one kernel ahead of the device. Its credit comes back as its work ends |
//! | a foreground job that comes back | its launch epoch voids all credit at once; any driver call of it takes credit back before it launches |
//! | grace | where a better moment is near (the time at which a request that waits already would launch is soon over), it is awaited, if that costs less than it saves |
//! | a kernel that fits no gap | (a graph: one piece of work) runs when the foreground job has been silent for so long that nothing says when it will be back, or by its minimum share. It is not cut into its nodes: their order is the graph's, and a launch of each would cost what the graph saves |
//! | a job of which nothing is known | one kernel at a time, as if each took the whole delay bound, until some were seen to end |
//!
//! Tried and not kept: where the device switches between processes, to start the switch back at the
//! foreground job's stir with an empty kernel of its process at every copy of an idle foreground
//! job (in the lab alone, in one crude form). It switched more often and gained nothing; no command
//! repeats it.

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

/// With no more than this chance the foreground job comes back while a full bound of work is out:
/// then background jobs may run ahead of what the way of orders asks for.
const HARDLY: f64 = 0.02;

/// A moment counts as good if the foreground job comes back within the kernel's time with no more
/// than this chance.
const GOOD: f64 = 0.1;

/// Chances between good and the utmost risk that are told apart.
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
        // Who has stopped using what he has needs no more of it.
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
        // Where the foreground job comes at random it always finds what is ahead: no more is added
        // than it finds of a kernel in progress anyway.
        let calm = match state.is_steady() {
            true => calm(state, now),
            false => calm(state, now).min(client.pace.in_progress()),
        };
        // Kernels that take longer than they are charged get so much less of it.
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
        // What is charged for the kernels of a job without a profile says little about the time
        // they take.
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
    /// Whose kernel goes next, of those that fit; or else what to do.
    fn fitting(&mut self, state: &State, room: Ns, remaining: Ns, now: Ns) -> Result<Entry, Verdict> {
        let mut again = later(state, now);
        if let Some(entry) = starving(state, now).filter(|entry| fits(state, entry, room, remaining, now)) {
            return Ok(entry);
        }
        for class in 0..PRIORITIES {
            let Some(first) = state.queue.first_in_turn(class) else {
                continue;
            };
            // Where going from one to another costs the device nothing, nobody keeps it.
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
            // The longest of the others that fits. One that costs little and may well take long
            // hides none that does fit: else a less important one would be granted in its place
            // and, now that less room is left and the first no longer in the way, be taken back for
            // it, again and again.
            if let Some(entry) = longest(state, class, room, remaining, now) {
                return Ok(entry);
            }
            // What is out ends, and so does what the room is too small for because of it.
            if longer && remaining > 0 {
                again = again.min(state.less_remains(remaining, now));
            }
        }
        Err(Verdict::Nothing(Some(again)))
    }
}

/// Who has found no gap for so long that he has the next one before everybody else: in a gap that
/// costs the foreground job nothing, later he would be let through beside it.
fn starving(state: &State, now: Ns) -> Option<Entry> {
    let (_, slot) = state.queue.first_due()?;
    state.get(slot)?.queued.filter(|_| state.is_hungry(slot, now))
}

/// Of a class the kernel that may well take longest of those that fit. One switch more is in the
/// way of everybody but the one whose the device is.
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

/// How long others would be at work if this kernel went: what is out (or the way of the order, if
/// that takes longer), the way there, the kernel.
fn takes(state: &State, entry: &Entry, remaining: Ns) -> Ns {
    remaining
        .max(state.lead())
        .saturating_add(entry.long)
        .saturating_add(way_there(state, entry.slot))
}

/// What takes longer than this is a graph, or as bad as one: it goes by the chance that one as long
/// as this may have of keeping the foreground job waiting, on any device.
fn graph(state: &State) -> Ns {
    4 * state.config.delay_bound
}

/// Whether it ends in time. Where the device switches between processes also by the chance that one
/// as long as this may have of keeping the foreground job waiting. (Under MPS that took 6 % from
/// background jobs and gave the foreground job 0.1 %.)
fn fits(state: &State, entry: &Entry, room: Ns, remaining: Ns, now: Ns) -> bool {
    let takes = takes(state, entry, remaining);
    let short = match state.config.switch_cost {
        0 => graph(state),
        _ => state.config.delay_bound / 2,
    };
    takes <= room && (entry.long <= short || state.opening_for(entry.long, now).is_ok_and(|room| takes <= room))
}

/// What room must be left for going over to a background job, where the device switches between
/// processes.
///
/// Nothing to the one whose it is: the way back begins when the foreground job's kernel comes,
/// however long before that the background jobs were done, so keeping it free wins nothing. From
/// one background job to another the switch. From the foreground job to a background job twice the
/// way there and back: a gap that goes into switching for more than half is not worth what the way
/// back costs the foreground job.
fn way_there(state: &State, slot: Slot) -> Ns {
    let switches = match state.device.owner() {
        Some(owner) if owner == slot => 0,
        Some(_) => 1,
        None => 4,
    };
    switches * state.config.switch_cost
}

/// When to look again whether there is room: the longer nothing has changed, the longer nothing
/// will.
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

/// A better moment for this kernel, if there is one so soon that waiting for it costs less than it
/// saves.
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
    // What it saves is half of the kernel's time in so many cases; the risk says what that is
    // worth.
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

/// How long background jobs may run ahead of what the way of an order asks for: until the
/// foreground job comes back with hardly any chance.
fn calm(state: &State, now: Ns) -> Ns {
    state.room(now, HARDLY).unwrap_or(0)
}

/// What a background job that launches more slowly than the device works may launch on its own: it
/// never has more than a kernel there, and the foreground job's launch epoch ends it. As long as
/// the foreground job is not due.
fn slow(state: &State, client: &ClientState, now: Ns, takes: Ns) -> Ns {
    let due = state.opening(now).unwrap_or(0) < takes;
    // Whether it launches more slowly is told of what is charged: not of one whose kernels take
    // much longer than that.
    let long = !client.pace.is_profiled() && client.pace.slowest() > state.config.delay_bound / 4;
    match client.pace.spread(1) {
        Ns::MAX if !due && !long => Ns::MAX,
        _ => 0,
    }
}

/// The most that may be out of a background job that runs ahead, so that whatever kernel of its
/// usual ones comes next is admitted before the end of these is seen.
fn most_ahead(state: &State, client: &ClientState) -> Ns {
    let bound = state.config.delay_bound;
    match client.long_out() {
        0 => bound.saturating_sub(client.pace.longest()).max(bound / 2),
        long => long.saturating_add(bound / 4),
    }
}

/// Grants a kernel that fits, in time.
fn grant(state: &State, entry: &Entry, room: Ns, remaining: Ns, now: Ns) -> Verdict {
    let Some(client) = state.get(entry.slot) else {
        return Verdict::Nothing(None);
    };
    let known = client.pace.is_known();
    let lead = state.lead();
    let takes = takes(state, entry, remaining);
    let calm = calm(state, now).saturating_sub(takes);
    // In a calm time a thread that is held back only loses time in which it could have prepared its
    // next launch. A job of which nothing is known has nobody's work before its own, and one
    // kernel.
    let ahead_of = if known {
        lead.max(calm.min(state.config.delay_bound / 4))
    } else {
        0
    };
    if remaining > ahead_of {
        let again = state.less_remains(remaining - ahead_of, now);
        // Credit that another one has and does not use ends by nothing but the foreground job's
        // next launch epoch: it is taken back for who waits.
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
        // Kernels that take longer than they are charged get so much less of it.
        let longer = match client.pace.is_profiled() {
            true => 1,
            false => (entry.long / entry.cost.max(1)).max(1),
        };
        match client.pace.is_profiled() && state.has_one_background() {
            // Its run-ahead window says how far ahead it may be: in a calm time by all of the
            // bound, and a long kernel goes when what is before it has ended, without a word from
            // here.
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
