// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stretch model: when a foreground job's stretch would end without background work.
//!
//! A stretch is the launches between two waits. A job whose host is slower than the device notices
//! a delay only at its next wait: until then the device catches up. With
//!
//! ```text
//! E = when the stretch would end alone
//! R = the job's device work until then, queued and to come
//! laxity = E - now - R
//! ```
//!
//! a background kernel of length `c` may go if `c <= laxity`.
//!
//! * The model needs no stretches without background work. Hosts launch without waiting, so
//!   background work does not move launches. Only the device is replayed, from launch times and
//!   kernel times: `front = max(front, launch) + time`.
//! * At each launch the model has seen all kernels since the wait. For this context it knows the
//!   idle time and the number of launches still to come: low estimates of both.
//! * A context that was not seen before has the estimates of its place: the number of launches
//!   since the wait. Requests that differ in a kernel mostly have the same number of launches.
//! * A job that awaits none of its work has stretches too. There, a stretch ends when the device
//!   has had none of the job's work for a while. No lateness is measured at such an end.
//!
//! A stretch with more work than any that was seen to end is *new*. If the job has no profile, its
//! end is unknown.
#![forbid(unsafe_code)]

use std::{collections::HashMap, hash::BuildHasherDefault};

use weft_protocol::Ns;

use crate::mean_times::Hashed;

/// Limit of kept contexts. Beyond it new ones are not learnt.
const MAX_CONTEXTS: usize = 65_536;

/// Longest stretch that is learnt, launches.
const MAX_LAUNCHES: usize = 32_768;

/// Times that a context must have been seen.
const ENOUGH: u32 = 2;

/// Inverse part of the difference by which a higher value raises a low estimate. A lower value
/// replaces the estimate at once.
const RISE: u64 = 16;

/// Stretches after which the place in a stretch stands for a context that was not seen.
const ENOUGH_AT_PLACE: u32 = 8;

/// Places that are learnt. Later ones have the laxity of their context only.
const MAX_PLACES: usize = 4_096;

/// Quiet times without a wait, beyond the most that a wait ended, after which a quiet time ends a
/// stretch: the job awaits none of its work.
const QUIET_WITHOUT_WAIT: u32 = 4;

/// Idle time and launches still to come in a context.
#[derive(Debug, Clone, Copy)]
struct StillToCome {
    /// Time in which the device would have no work of the job, ns.
    idle: Ns,
    launches: u64,
    seen: u32,
}

impl StillToCome {
    fn learn(&mut self, idle: Ns, launches: u64) {
        self.idle = low(self.idle, idle);
        self.launches = self.launches.min(launches);
        self.seen = self.seen.saturating_add(1);
    }
}

fn low(known: Ns, new: Ns) -> Ns {
    match new < known {
        true => new,
        false => known + (new - known) / RISE,
    }
}

/// One launch of the stretch in progress.
#[derive(Debug, Clone, Copy)]
struct StretchLaunch {
    context: u64,
    /// Idle time of the device before it, since the stretch began, without background work, ns.
    idle_before: Ns,
    at: Ns,
    /// End of the work up to it, without background work, ns.
    end: Ns,
}

/// Stretch as it would have been without background work, by launch times and kernel times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplayedStretch {
    /// First launch, ns.
    pub begin: Ns,
    /// End of the work, ns.
    pub end: Ns,
    /// Time in which the device had no work of the job, ns.
    pub idle: Ns,
    pub launches: u64,
    /// Sum of the predicted times, ns.
    pub work: Ns,
    /// Whether the pace was not known.
    pub guessed: bool,
}

impl ReplayedStretch {
    pub(super) fn length(&self) -> Ns {
        self.end.saturating_sub(self.begin)
    }
}

/// Stretch model of one foreground job.
#[derive(Debug, Clone, Default)]
pub(super) struct StretchModel {
    contexts: HashMap<u64, StillToCome, BuildHasherDefault<Hashed>>,
    /// The same by the number of launches since the wait, for requests that differ.
    places: Vec<StillToCome>,
    /// Quiet times since the last wait, and the most that a wait ended.
    quiet: u32,
    most_quiet: u32,
    launches: Vec<StretchLaunch>,
    /// End of the submitted work, if the device had no other work, ns.
    front: Ns,
    /// The same at the measured pace, ns. Laxity does not follow the pace, which a slow host makes
    /// too long. With it, gpt2 without a profile left .278 of .746 of the batch work
    /// (docs/log/lab-notes.md).
    paced_front: Ns,
    idle: Ns,
    begin: Ns,
    /// Predicted work of the stretch so far, and of the largest stretch that was seen to end, ns.
    work: Ns,
    most_work: Ns,
    /// Whether a time of the stretch is a guess.
    guessed: bool,
    /// Whether the stretch was watched from its beginning.
    whole: bool,
}

impl StretchModel {
    /// Takes in a launch of predicted `time`, ns. `pace`: time that the device needs for 1 ns of
    /// predicted time, ns; 1 for a job with a profile. `None`: not known yet.
    pub(super) fn launched(&mut self, kernel: u64, at: Ns, time: Ns, pace: Option<f64>) {
        let context = match self.launches.last() {
            None => {
                (self.front, self.paced_front) = (at, at);
                self.begin = at;
                self.idle = 0;
                mix(0, kernel)
            }
            Some(last) => mix(last.context, kernel),
        };
        self.work = self.work.saturating_add(time);
        self.guessed |= pace.is_none();
        self.idle += at.saturating_sub(self.front);
        self.front = self.front.max(at).saturating_add(time);
        let paced = (time as f64 * pace.unwrap_or(1.0)) as Ns;
        self.paced_front = self.paced_front.max(at).saturating_add(paced);
        match self.launches.len() < MAX_LAUNCHES {
            true => self.launches.push(StretchLaunch {
                context,
                idle_before: self.idle,
                at,
                end: self.front,
            }),
            false => self.whole = false,
        }
    }

    /// Takes in the quiet time before a launch at `at`: the device had none of the job's work for
    /// `enough` ns at least. True if the job awaits none of its work, and so a stretch has ended.
    pub(super) fn quiet(&mut self, at: Ns, enough: Ns) -> bool {
        if self.launches.is_empty() || at < self.front.saturating_add(enough) {
            return false;
        }
        self.quiet = self.quiet.saturating_add(1);
        self.quiet > self.most_quiet.saturating_add(QUIET_WITHOUT_WAIT)
    }

    /// Low estimate of the idle time in the next stretch, ns. 0 within a stretch.
    pub(super) fn idle_to_come(&self) -> Ns {
        let first = self.places.first().filter(|first| first.seen >= ENOUGH_AT_PLACE);
        match first.filter(|_| self.launches.is_empty()) {
            Some(first) => first.idle,
            None => 0,
        }
    }

    /// Takes in a wait that saw all work ended, and learns from the stretch.
    pub(super) fn waited(&mut self) -> Option<ReplayedStretch> {
        self.most_quiet = self.most_quiet.max(std::mem::take(&mut self.quiet));
        self.end_stretch()
    }

    /// Ends the stretch and learns from it. `None`: it was not watched as a whole.
    pub(super) fn end_stretch(&mut self) -> Option<ReplayedStretch> {
        let replayed = ReplayedStretch {
            begin: self.begin,
            end: self.paced_front,
            idle: self.idle,
            launches: self.launches.len() as u64,
            work: self.work,
            guessed: std::mem::take(&mut self.guessed),
        };
        let replayed = Some(replayed).filter(|_| self.whole && !self.launches.is_empty());
        if self.whole {
            let count = self.launches.len() as u64;
            for (at, launch) in self.launches.iter().enumerate() {
                let (idle, launches) = (self.idle - launch.idle_before, count - 1 - at as u64);
                if let Some(known) = self.contexts.get_mut(&launch.context) {
                    known.learn(idle, launches);
                } else if self.contexts.len() < MAX_CONTEXTS {
                    let new = StillToCome {
                        idle,
                        launches,
                        seen: 1,
                    };
                    self.contexts.insert(launch.context, new);
                }
                match self.places.get_mut(at) {
                    Some(known) => known.learn(idle, launches),
                    None if at < MAX_PLACES => self.places.push(StillToCome {
                        idle,
                        launches,
                        seen: 1,
                    }),
                    None => {}
                }
            }
        }
        self.most_work = self.most_work.max(self.work);
        self.launches.clear();
        self.work = 0;
        self.whole = true;
        replayed
    }

    /// Forgets the stretch, which was not watched as a whole.
    pub(super) fn interrupted(&mut self) {
        self.launches.clear();
        self.work = 0;
        (self.whole, self.guessed) = (false, false);
    }

    /// Start of the stretch in progress, ns, if no stretch with that much work was seen to end.
    pub(super) fn new_since(&self) -> Option<Ns> {
        (!self.launches.is_empty() && self.work > self.most_work).then_some(self.begin)
    }

    /// When the work launched up to this time would have ended without background work, ns.
    pub(super) fn alone_end(&self, launched: Ns) -> Option<Ns> {
        let covered = self.launches.partition_point(|launch| launch.at <= launched);
        Some(self.launches.get(covered.checked_sub(1)?)?.end)
    }

    fn to_come(&self) -> Option<&StillToCome> {
        let known = self.contexts.get(&self.launches.last()?.context);
        let at_place = self.places.get(self.launches.len() - 1);
        known
            .filter(|known| known.seen >= ENOUGH)
            .or(at_place.filter(|known| known.seen >= ENOUGH_AT_PLACE))
    }

    /// `E - R` if the work launched so far were done: until when the device may be without this
    /// job's next kernel.
    pub(super) fn deadline(&self) -> Option<Ns> {
        Some(self.front.saturating_add(self.to_come()?.idle))
    }

    /// Launches to come before the next wait.
    pub(super) fn launches_to_come(&self) -> u64 {
        self.to_come().map_or(0, |known| known.launches)
    }
}

/// Context after one more kernel.
fn mix(context: u64, kernel: u64) -> u64 {
    (context.rotate_left(5) ^ kernel).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::US;

    /// Kernels of 10 us, launched every `every` ns; returns when the last one was launched.
    fn stretch(model: &mut StretchModel, start: Ns, every: Ns, count: u64) -> Ns {
        (0..count).for_each(|step| model.launched(step, start + step * every, 10 * US, Some(1.0)));
        start + (count - 1) * every
    }

    #[test]
    fn a_slow_host_leaves_laxity_until_its_next_wait() {
        let mut model = StretchModel::default();
        model.waited();
        for turn in 0..3 {
            stretch(&mut model, turn * 10_000 * US, 30 * US, 100);
            model.waited();
        }
        model.launched(0, 50_000 * US, 10 * US, Some(1.0));
        let idle = 99 * 20 * US;
        assert_eq!(model.deadline(), Some(50_010 * US + idle));
        assert_eq!(model.launches_to_come(), 99);
        model.launched(1, 50_030 * US, 10 * US, Some(1.0));
        assert_eq!(model.deadline(), Some(50_040 * US + idle - 20 * US));
        model.launched(77, 50_060 * US, 10 * US, Some(1.0));
        assert_eq!(model.deadline(), None, "another context");
        assert_eq!(model.launches_to_come(), 0);
    }

    #[test]
    fn requests_that_begin_otherwise_have_the_laxity_of_their_place() {
        let mut model = StretchModel::default();
        model.waited();
        let request = |model: &mut StretchModel, turn: u64| {
            let start = turn * 10_000 * US;
            model.launched(1_000 + turn, start, 10 * US, Some(1.0));
            (1..100).for_each(|step| model.launched(step, start + step * 30 * US, 10 * US, Some(1.0)));
        };
        for turn in 0..u64::from(ENOUGH_AT_PLACE) {
            model.launched(1_000 + turn, turn * 10_000 * US, 10 * US, Some(1.0));
            assert_eq!(model.deadline(), None, "seen {turn} times");
            model.launches.clear();
            request(&mut model, turn);
            model.waited();
        }
        model.launched(2_000, 900_000 * US, 10 * US, Some(1.0));
        assert_eq!(model.deadline(), Some(900_010 * US + 99 * 20 * US));
        assert_eq!(model.launches_to_come(), 99);
    }

    /// Requests 10 ms apart that no call awaits. Returns how many ended by a quiet time.
    fn unawaited(model: &mut StretchModel, first: u64, count: u64) -> usize {
        let request = |turn: u64| {
            let start = turn * 10_000 * US;
            let ended = model.quiet(start, 1_000 * US);
            if ended {
                model.end_stretch();
            }
            stretch(model, start, 30 * US, 100);
            ended
        };
        (first..first + count).map(request).filter(|ended| *ended).count()
    }

    #[test]
    fn a_job_that_awaits_nothing_has_laxity_until_its_quiet_times() {
        let mut model = StretchModel::default();
        model.waited();
        let first = u64::from(QUIET_WITHOUT_WAIT) + 1;
        assert_eq!(unawaited(&mut model, 0, first), 0);
        assert_eq!(unawaited(&mut model, first, 4), 4);
        assert!(model.quiet(500_000 * US, 1_000 * US));
        model.end_stretch();
        model.launched(0, 500_000 * US, 10 * US, Some(1.0));
        assert_eq!(model.deadline(), Some(500_010 * US + 99 * 20 * US));
    }

    #[test]
    fn quiet_times_before_a_wait_end_no_stretch() {
        let mut model = StretchModel::default();
        model.waited();
        // The first request is taken for unawaited ones, later ones are not.
        assert!(unawaited(&mut model, 0, 10) > 0);
        model.waited();
        assert_eq!(unawaited(&mut model, 20, 12), 0);
        model.waited();
        assert_eq!(unawaited(&mut model, 40, 14), 0);
    }

    #[test]
    fn a_part_of_a_stretch_ends_with_its_last_launch() {
        let mut model = StretchModel::default();
        assert_eq!(model.alone_end(900 * US), None);
        stretch(&mut model, 1_000 * US, 30 * US, 10);
        assert_eq!(model.alone_end(999 * US), None);
        assert_eq!(model.alone_end(1_000 * US), Some(1_010 * US));
        assert_eq!(model.alone_end(1_089 * US), Some(1_070 * US));
        assert_eq!(model.alone_end(9_000 * US), Some(1_280 * US));
    }

    #[test]
    fn a_full_device_leaves_none() {
        let mut model = StretchModel::default();
        model.waited();
        for turn in 0..3 {
            stretch(&mut model, turn * 10_000 * US, 5 * US, 100);
            model.waited();
        }
        stretch(&mut model, 90_000 * US, 5 * US, 50);
        assert_eq!(model.deadline(), Some(90_000 * US + 500 * US));
    }

    #[test]
    fn a_stretch_is_new_until_one_with_as_much_work_was_seen_to_end() {
        let mut model = StretchModel::default();
        assert_eq!(model.new_since(), None, "none is in progress");
        stretch(&mut model, 7 * US, 5 * US, 10);
        assert_eq!(model.new_since(), Some(7 * US));
        model.waited();
        assert_eq!(model.new_since(), None);
        stretch(&mut model, 1_000 * US, 5 * US, 10);
        assert_eq!(model.new_since(), None);
        model.launched(10, 1_050 * US, 10 * US, Some(1.0));
        assert_eq!(model.new_since(), Some(1_000 * US), "longer than any");
        model.interrupted();
        assert_eq!(model.new_since(), None);
    }

    #[test]
    fn the_least_is_believed_and_what_was_not_watched_is_not_learnt() {
        let mut model = StretchModel::default();
        stretch(&mut model, 0, 30 * US, 10);
        model.waited();
        assert_eq!(model.contexts.len(), 0, "its beginning was not seen");
        for (turn, every) in [30, 20, 30].into_iter().enumerate() {
            stretch(&mut model, (turn as Ns + 1) * 10_000 * US, every * US, 10);
            model.waited();
        }
        model.launched(0, 90_000 * US, 10 * US, Some(1.0));
        let known = model.deadline().expect("seen") - 90_010 * US;
        assert!((90 * US..120 * US).contains(&known), "{known}");
        model.interrupted();
        assert_eq!(model.deadline(), None);
    }
}
