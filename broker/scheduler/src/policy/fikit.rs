//! `fikit`: the gaps of the more important job are filled with kernels of the others.
//!
//! The rule of "FIKIT: Priority-Based Real-time GPU Multi-tasking Scheduling with Kernel
//! Identification" (arXiv 2311.10359), as far as it is known to us (`facts/papers.md` 1.2 calls it
//! a working specification). Its names and ours:
//!
//! | paper | here |
//! |---|---|
//! | SK[id], mean time of a kernel | the cost a client is told for the kernel ([`PolicyName::costs`](crate::PolicyName::costs)) |
//! | SG[id], mean gap after a kernel | `Times::gap_after` |
//! | EPS, gaps not worth filling | [`Config::small_gap`](crate::Config::small_gap) |
//! | the queues 0..9 | `Queue`, a class a priority |
//! | BestPrioFit | `Queue::best_prio_fit` |
//! | feedback, early stop | credit is bound to the foreground job's launch epoch and revoked at its launch |
//!
//! Where it differs: the paper releases one kernel at a time from a process that launches and
//! waits. Here a job launches ahead, so a gap begins when the foreground job's last launch is
//! predicted to *end*, and permission is credit. Background job work that is out never exceeds the
//! delay bound, however long the predicted gap, because the prediction may be wrong (a kernel
//! longer than the bound goes alone, where the gap has room for it). Where the device switches
//! between processes, the way to the first background job of a gap is part of the gap, and so is
//! that to another one. The way back is not: it begins when the foreground job's next kernel is
//! there, however long before that the background jobs were done. Copies between host and device
//! are held back as well, but not while the foreground job runs kernels. Between requests, when no
//! gap is predicted or the predicted one is over, background jobs go in turns within that bound.

use super::{
    super::{queue::Slot, state::State, timeline::Phase},
    Policy, Verdict, copies, foreground_and_background,
    turns::{Turns, make_room, more_important_runs},
};
use weft_protocol::{Ns, lane::Mode};

#[derive(Debug, Default)]
pub(super) struct Fikit {
    turns: Turns,
    /// Whose kernels the device got last, and in which gap (by its beginning).
    there: Option<(Slot, Ns)>,
}

impl Policy for Fikit {
    fn mode(&self, priority: u8, first: u8) -> Mode {
        foreground_and_background(priority, first)
    }

    fn next(&mut self, state: &State, now: Ns) -> Verdict {
        match state.phase(now) {
            Phase::Busy { until } => copies::beside_foreground(state, until, now),
            Phase::Gap { since, until, over } => {
                let there = self.there.filter(|(_, gap)| *gap == since).map(|(slot, _)| slot);
                let verdict = fill(state, there, until, over, now);
                if let Verdict::Grant { slot, .. } = verdict
                    && !copies::waits_with_one(state, slot)
                {
                    self.there = Some((slot, since));
                }
                verdict
            }
            Phase::Open { .. } => match state.queue.first_class() {
                Some(class) => self.turns.next(class, state, now, true),
                None => Verdict::Nothing(None),
            },
        }
    }

    fn forget(&mut self, slot: Slot) {
        self.turns.forget(slot);
        self.there = self.there.filter(|(there, _)| *there != slot);
    }
}

/// Fills a gap that lasts until `until`. If the foreground job has not come back at `over`, it
/// counts as open-ended. `there`: whose kernels the device has got in this gap.
fn fill(state: &State, there: Option<Slot>, until: Ns, over: Ns, now: Ns) -> Verdict {
    let gap = until.saturating_sub(now).saturating_sub(state.exposure);
    let room = state.config.delay_bound.saturating_sub(state.exposure);
    let no_later_than = |at: Option<Ns>| Verdict::Nothing(at.map(|at| at.min(over)));
    // BestPrioFit takes what is shorter than the gap. Of its class rather one that is within the
    // bound (which may be met exactly); a longer one goes alone. Never a less important one
    // instead: it would only be in the way.
    let best_fit = |gap: Ns| {
        state.queue.best_prio_fit(gap).and_then(|slot| {
            let class = state.get(slot)?.class;
            let within = gap.min(room.saturating_add(1));
            state.queue.best_fit(class, within).or(Some(slot))
        })
    };
    // What is left of the gap when the device has gone over to a background job.
    let left = |slot: Slot| match there == Some(slot) || copies::waits_with_one(state, slot) {
        true => gap,
        false => gap.saturating_sub(state.config.switch_cost),
    };
    let fits = |slot: &Slot| {
        let entry = state.get(*slot).and_then(|client| client.queued);
        entry.is_some_and(|entry| entry.cost < left(*slot))
    };
    let best = best_fit(gap)
        .filter(fits)
        .or_else(|| best_fit(gap.saturating_sub(state.config.switch_cost)));
    let Some(entry) = best.and_then(|slot| state.get(slot)?.queued) else {
        // Nothing new fits into a gap that only becomes shorter, but what is out may end earlier
        // than predicted.
        let drained = (state.exposure > 0).then(|| now.saturating_add(state.exposure));
        return no_later_than(Some(drained.unwrap_or(over)));
    };
    if !state.admits(entry.slot, entry.cost) {
        return match make_room(state, entry.slot, entry.cost, now) {
            Verdict::Nothing(again) => no_later_than(again),
            other => other,
        };
    }
    // A more important background job that works on its credit keeps the device; switching to this
    // one and back would cost both.
    if let Some(silent) = more_important_runs(entry.class, state, now) {
        return no_later_than(Some(silent));
    }
    // Ahead of its next kernels, unknown yet, only where no equal could use the rest of the gap.
    let ahead = if state.queue.len_of(entry.class) == 1 {
        left(entry.slot).min(room)
    } else {
        0
    };
    Verdict::Grant {
        slot: entry.slot,
        total: entry.cost.max(ahead),
        bound: true,
    }
}
