// SPDX-License-Identifier: MIT OR Apache-2.0
//! Busy model: when a foreground job's submitted work ends, and which phase follows.
//!
//! Each launch adds its predicted time. At the end of the sum a gap begins. A synchronising call
//! that returns with no work left shows the exact end. The last kernel's profile gives the gap's
//! length, if it has one (the paper's SG).
//!
//! From each seen end the model learns how much longer or shorter than predicted this client's work
//! takes.

use super::{Config, mean_times::MeanTimes};
use weft_protocol::{Ns, lane::is_transfer};

/// Phase of a foreground job, as other jobs may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No room before `until`: the job works or is about to come back.
    Busy { until: Ns },
    /// A gap of known length.
    Gap { since: Ns, until: Ns, over: Ns },
    /// Open-ended gap: the job's return is not predicted.
    Open { since: Ns },
}

/// Limits of the slowdown: 8 and 1/8. A synchronising call that comes late does not mean a slow
/// device.
const UTMOST_SLOWDOWN: f64 = 8.0;

/// Weight of a seen end that lowers the slowdown. A higher value replaces the slowdown at once,
/// because a too early prediction hurts the foreground job.
const SLOWDOWN_DECAY: f64 = 0.1;

/// Shortest predicted burst from which the model learns a slowdown, ns. A copy that is predicted to
/// take 6 ns takes some us, and is no sign of a slow device.
const LEAST_LESSON_NS: Ns = 1_000;

/// Multiple of the learnt work after which the slowdown's excess over 1 halves without new ends.
/// One late end must not keep background jobs away for good.
const LESSONS: u64 = 16;

/// Seen ends until work is believed to end in time: four. A burst without a wait counts as a
/// sixteenth of an end, for jobs that never wait.
const ENOUGH: u8 = 4 * SEEN;
const SEEN: u8 = 16;

/// Classes of bursts by predicted length. The first ends at 64 us. Each further one is four times
/// as long, and the last has no end.
const CLASSES: usize = 10;

#[derive(Debug, Clone)]
pub(super) struct BusyModel {
    /// Factor by which work takes longer than predicted.
    slowdown: f64,
    /// Predicted end without the slowdown.
    busy_until: Ns,
    burst_start: Ns,
    last_kernel: u64,
    last_launch: Ns,
    /// When the device was seen without this client's work after the last launch.
    idle_at: Option<Ns>,
    /// When a wake-up hint came after the last launch.
    hinted_at: Option<Ns>,
    /// Recent lateness of seen ends against the prediction, ns.
    lateness: Ns,
    /// Lateness by class of burst. A language model's prompt takes as long as its input is; the
    /// tokens after it end in time.
    lateness_by_class: [Option<Ns>; CLASSES],
    /// Score of the seen ends, up to [`ENOUGH`].
    known: u8,
    /// Predicted time of the longest recent burst from which the model learnt, ns.
    lesson: Ns,
    /// Predicted time launched since an end was seen or the slowdown halved, ns.
    untaught: Ns,
    launched: bool,
}

impl BusyModel {
    /// Busy model with a slowdown of `1 + margin` until something is learnt.
    pub(super) fn new(margin: f64) -> BusyModel {
        BusyModel {
            slowdown: (1.0 + margin).clamp(1.0, UTMOST_SLOWDOWN),
            busy_until: 0,
            burst_start: 0,
            last_kernel: 0,
            last_launch: 0,
            idle_at: None,
            hinted_at: None,
            lateness: 0,
            lateness_by_class: [None; CLASSES],
            known: 0,
            lesson: 0,
            untaught: 0,
            launched: false,
        }
    }

    /// Raises the slowdown to `1 + margin`, because the predictions had no basis.
    pub(super) fn raise_margin(&mut self, margin: f64) {
        self.slowdown = self.slowdown.max((1.0 + margin).clamp(1.0, UTMOST_SLOWDOWN));
    }

    /// Predicted end of the submitted work, with the slowdown.
    pub(super) fn busy_until(&self) -> Ns {
        let predicted = self.busy_until.saturating_sub(self.burst_start);
        let stretched = (predicted as f64 * self.slowdown) as Ns;
        self.burst_start.saturating_add(stretched)
    }

    /// Expected lateness of an unseen end, ns. After few seen ends, at least the delay bound and
    /// two switches.
    pub(super) fn lateness(&self, config: &Config) -> Ns {
        match self.idle_at {
            Some(_) => 0,
            None if self.known < ENOUGH => self
                .lateness
                .max(config.delay_bound.saturating_add(2 * config.switch_cost)),
            None => self.lateness_by_class[self.class()].unwrap_or(self.lateness),
        }
    }

    fn class(&self) -> usize {
        let predicted = self.busy_until.saturating_sub(self.burst_start);
        ((predicted >> 14).max(1).ilog2() as usize / 2).min(CLASSES - 1)
    }

    pub(super) fn is_seen(&self) -> bool {
        self.idle_at.is_some()
    }

    pub(super) fn hinted_at(&self) -> Option<Ns> {
        self.hinted_at
    }

    /// End of the work, seen or predicted, if the client ever launched.
    pub(super) fn end_if_launched(&self) -> Option<Ns> {
        self.launched.then(|| self.end())
    }

    fn end(&self) -> Ns {
        self.idle_at.unwrap_or_else(|| self.busy_until())
    }

    /// Takes in a launch. `behind`: others' work before it on the device, ns. `longest`: limit of a
    /// prediction, ns.
    pub(super) fn launch(&mut self, kernel: u64, cost: Ns, at: Ns, behind: Ns, longest: Ns) {
        if !self.launched || at >= self.end() {
            self.burst_start = at;
            self.busy_until = at.saturating_add(behind);
            self.known = self.known.saturating_add(1).min(ENOUGH);
        }
        let horizon = at.max(self.last_launch).saturating_add(longest);
        self.busy_until = self.busy_until.saturating_add(cost).min(horizon);
        self.last_launch = self.last_launch.max(at);
        self.unlearn(cost);
        // Behind a kernel a transfer changes nothing about the gap. After an idle time it is the
        // input of the next launch, and ends the gap.
        if !is_transfer(kernel) {
            self.last_kernel = kernel;
            self.hinted_at = None;
        } else if self.idle_at.is_some() || !self.launched {
            self.last_kernel = 0;
            self.hinted_at = Some(at);
        }
        self.launched = true;
        self.idle_at = None;
    }

    /// Assumes that the client has unknown work until `until`.
    pub(super) fn assume_busy(&mut self, now: Ns, until: Ns) {
        self.burst_start = now;
        self.busy_until = self.busy_until.max(until);
        self.last_launch = self.last_launch.max(now);
        self.last_kernel = 0;
        self.launched = true;
        self.idle_at = None;
    }

    /// Takes in that the device has no work left. False: a later launch makes the report obsolete.
    /// `waited`: the work ended just then. If not, the host came late, and the end is not known.
    pub(super) fn idle(&mut self, at: Ns, waited: bool) -> bool {
        if at < self.last_launch {
            return false;
        }
        let late = at.saturating_sub(self.busy_until());
        if !waited && late > 0 {
            self.idle_at = self.idle_at.or(Some(at));
            return true;
        }
        // The first report is nearest to the true end.
        if self.idle_at.is_none() {
            // Growth counts at once, shrinking slowly.
            self.lateness = late.max(self.lateness - self.lateness / 16);
            let lateness = &mut self.lateness_by_class[self.class()];
            *lateness = Some(lateness.map_or(late, |lateness| late.max(lateness - lateness / 16)));
            self.known = self.known.saturating_add(SEEN).min(ENOUGH);
            self.learn(at);
            self.idle_at = Some(at);
        }
        true
    }

    fn learn(&mut self, end: Ns) {
        let predicted = self.busy_until.saturating_sub(self.burst_start);
        if predicted < LEAST_LESSON_NS {
            return;
        }
        let took = end.saturating_sub(self.burst_start) as f64 / predicted as f64;
        let took = took.clamp(1.0 / UTMOST_SLOWDOWN, UTMOST_SLOWDOWN);
        self.lesson = predicted.max(self.lesson - self.lesson / 16);
        self.untaught = 0;
        self.slowdown = if took > self.slowdown {
            took
        } else {
            self.slowdown + (took - self.slowdown) * SLOWDOWN_DECAY
        };
    }

    /// Forgets part of the slowdown learnt from an end, as work is launched without a seen end.
    fn unlearn(&mut self, cost: Ns) {
        self.untaught = self.untaught.saturating_add(cost);
        if self.slowdown > 1.0 && self.lesson > 0 && self.untaught > self.lesson.saturating_mul(LESSONS) {
            self.slowdown = 1.0 + (self.slowdown - 1.0) / 2.0;
            self.untaught = 0;
        }
    }

    pub(super) fn wake_up_hint(&mut self, at: Ns) {
        if at >= self.last_launch {
            self.hinted_at = Some(at);
        }
    }

    /// The last launch, wake-up hint or end of work.
    pub(super) fn last_activity(&self) -> Option<Ns> {
        if !self.launched {
            return self.hinted_at;
        }
        Some(self.end().max(self.last_launch).max(self.hinted_at.unwrap_or(0)))
    }

    pub(super) fn phase(&self, now: Ns, times: &MeanTimes, config: &Config) -> Phase {
        if let Some(hinted) = self.hinted_at {
            let until = hinted.saturating_add(config.open_after);
            if now < until {
                return Phase::Busy { until };
            }
        }
        if !self.launched {
            return Phase::Open { since: 0 };
        }
        let end = self.end();
        if now < end {
            return Phase::Busy { until: end };
        }
        // A filled gap costs two switches: a shorter one is not worth it.
        let worth = config.small_gap.max(config.switch_cost.saturating_mul(2));
        if let Some(gap) = times.gap_after(self.last_kernel).filter(|gap| *gap > worth) {
            let back = end.saturating_add(gap);
            let over = back.saturating_add(config.open_after);
            return match now {
                now if now < back => Phase::Gap {
                    since: end,
                    until: back,
                    over,
                },
                now if now < over => Phase::Busy { until: over },
                _ => Phase::Open { since: over },
            };
        }
        // The launching thread may have lost its core for a moment.
        let patience = if self.idle_at.is_some() {
            config.open_after
        } else {
            config.open_unseen
        };
        let silent = end.saturating_add(patience);
        if now < silent {
            return Phase::Busy { until: silent };
        }
        Phase::Open { since: silent }
    }
}

#[cfg(test)]
mod tests {
    use weft_profiles::Aggregator;

    use super::{
        super::config::{MS, US},
        *,
    };

    const LONGEST_NS: Ns = 10_000 * MS;
    const LONG: u64 = 1;
    const SHORT: u64 = 2;
    const UNKNOWN: u64 = 3;

    fn times() -> MeanTimes {
        let mut run = Aggregator::new();
        run.sampled(LONG, MS, Some(5 * MS));
        run.sampled(SHORT, MS, Some(20 * US));
        MeanTimes::of(&run.finish("p", 0))
    }

    fn config() -> Config {
        Config::default()
    }

    fn phase(model: &BusyModel, now: Ns) -> Phase {
        model.phase(now, &times(), &config())
    }

    #[test]
    fn launches_queue_behind_each_other() {
        let mut model = BusyModel::new(0.0);
        model.launch(SHORT, 100 * US, 0, 0, LONGEST_NS);
        model.launch(SHORT, 100 * US, 10 * US, 0, LONGEST_NS);
        assert_eq!(model.busy_until(), 200 * US);
        assert_eq!(phase(&model, 150 * US), Phase::Busy { until: 200 * US });
        model.launch(SHORT, 50 * US, MS, 300 * US, LONGEST_NS);
        assert_eq!(
            model.busy_until(),
            MS + 350 * US,
            "a new burst starts behind what others have there"
        );
    }

    #[test]
    fn a_copy_that_ends_late_makes_no_kernel_longer() {
        let mut model = BusyModel::new(0.0);
        model.launch(LONG, 100 * MS, 0, 0, LONGEST_NS);
        assert!(model.idle(100 * MS, true));
        // A copy, predicted to take next to nothing.
        model.launch(SHORT, 6, 200 * MS, 0, LONGEST_NS);
        assert!(model.idle(200 * MS + 6 * US, true));
        model.launch(LONG, 100 * MS, 300 * MS, 0, LONGEST_NS);
        assert_eq!(model.busy_until(), 400 * MS);
        // A kernel teaches at once.
        assert!(model.idle(500 * MS, true));
        model.launch(LONG, 100 * MS, 600 * MS, 0, LONGEST_NS);
        assert_eq!(model.busy_until(), 800 * MS);
    }

    #[test]
    fn a_known_gap_ends_when_the_foreground_job_is_predicted_back() {
        let mut model = BusyModel::new(0.0);
        model.launch(LONG, MS, 0, 0, LONGEST_NS);
        let (until, over) = (6 * MS, 6 * MS + 200 * US);
        assert_eq!(phase(&model, MS), Phase::Gap { since: MS, until, over });
        assert_eq!(phase(&model, until), Phase::Busy { until: over }, "it is expected back");
        assert_eq!(phase(&model, over), Phase::Open { since: over }, "it did not come back");
    }

    #[test]
    fn seeing_the_end_is_better_than_predicting_it() {
        let mut model = BusyModel::new(0.0);
        model.launch(LONG, MS, 0, 0, LONGEST_NS);
        assert!(model.idle(400 * US, true));
        assert!(model.idle(500 * US, true));
        let since = 400 * US;
        assert!(matches!(phase(&model, 600 * US), Phase::Gap { since: s, .. } if s == since));
        model.launch(LONG, MS, 2 * MS, 0, LONGEST_NS);
        assert!(!model.idle(MS, true), "old news");
        let until = 2 * MS + 940 * US;
        assert_eq!(
            phase(&model, 2 * MS + 1),
            Phase::Busy { until },
            "it took less than predicted once"
        );
    }

    #[test]
    fn a_transfer_does_not_hide_the_kernel_before_it() {
        let mut model = BusyModel::new(0.0);
        model.launch(LONG, MS, 0, 0, LONGEST_NS);
        model.launch(0, 3 * US, 0, 0, LONGEST_NS);
        assert!(model.idle(MS + 5 * US, true));
        assert!(matches!(phase(&model, MS + 5 * US), Phase::Gap { .. }));
    }

    #[test]
    fn an_input_copy_ends_the_gap() {
        let mut model = BusyModel::new(0.0);
        model.launch(LONG, MS, 0, 0, LONGEST_NS);
        model.idle(MS, true);
        assert!(matches!(phase(&model, 2 * MS), Phase::Gap { .. }));
        model.wake_up_hint(3 * MS);
        model.launch(0, 3 * US, 3 * MS, 0, LONGEST_NS);
        assert!(model.idle(3 * MS + 20 * US, true));
        let until = 3 * MS + 200 * US;
        assert_eq!(phase(&model, 3 * MS + 50 * US), Phase::Busy { until });
        let open = 3 * MS + 220 * US;
        assert_eq!(
            phase(&model, until),
            Phase::Busy { until: open },
            "its launches were to come"
        );
        assert_eq!(phase(&model, open), Phase::Open { since: open });
    }

    #[test]
    fn a_small_or_unknown_gap_opens_after_silence() {
        for kernel in [SHORT, UNKNOWN] {
            let mut model = BusyModel::new(0.0);
            model.launch(kernel, MS, 0, 0, LONGEST_NS);
            model.idle(MS, true);
            assert_eq!(phase(&model, MS), Phase::Busy { until: MS + 200 * US });
            assert_eq!(phase(&model, MS + 200 * US), Phase::Open { since: MS + 200 * US });
        }
    }

    #[test]
    fn an_end_that_nobody_saw_is_doubted() {
        let mut model = BusyModel::new(0.25);
        model.launch(UNKNOWN, 8 * MS, 0, 0, LONGEST_NS);
        assert_eq!(model.busy_until(), 10 * MS);
        let silent = 10 * MS + 1_000 * US;
        assert_eq!(phase(&model, 10 * MS), Phase::Busy { until: silent });
        assert_eq!(phase(&model, silent), Phase::Open { since: silent });
    }

    #[test]
    fn each_end_that_is_seen_teaches_how_far_predictions_fall_short() {
        let mut model = BusyModel::new(0.0);
        let mut burst = |start: Ns, took: Ns| {
            model.launch(UNKNOWN, MS, start, 0, LONGEST_NS);
            let predicted = model.busy_until() - start;
            model.idle(start + took, true);
            predicted
        };
        assert_eq!(burst(0, 4 * MS), MS);
        assert_eq!(burst(100 * MS, 4 * MS), 4 * MS, "longer is believed at once");
        assert_eq!(burst(200 * MS, MS), 4 * MS);
        assert_eq!(burst(300 * MS, MS), 3_700 * US, "shorter by and by");
        burst(400 * MS, 90 * MS);
        assert_eq!(burst(500 * MS, MS), 8 * MS, "to a point");
        for step in 6..106 {
            burst(step * 100 * MS, MS / 2);
        }
        assert_eq!(burst(20_000 * MS, MS / 2) / US, 500, "shorter than predicted too");
    }

    #[test]
    fn until_some_ends_were_seen_work_may_end_later_by_all_that_background_jobs_may_have_out() {
        let config = config();
        let most = config.delay_bound + 2 * config.switch_cost;
        let mut model = BusyModel::new(0.0);
        for turn in 0..4 {
            model.launch(UNKNOWN, MS, turn * 100 * MS, 0, LONGEST_NS);
            assert_eq!(model.lateness(&config), most, "{turn} ends were seen");
            model.idle(turn * 100 * MS + MS, true);
            assert_eq!(model.lateness(&config), 0, "it was seen");
        }
        model.launch(UNKNOWN, MS, 400 * MS, 0, LONGEST_NS);
        assert_eq!(model.lateness(&config), 0, "four of them came in time");
        let mut never_waits = BusyModel::new(0.0);
        for turn in 0..u64::from(ENOUGH) {
            assert_eq!(never_waits.lateness(&config), most);
            never_waits.launch(UNKNOWN, MS, turn * 100 * MS, 0, LONGEST_NS);
        }
        assert_eq!(never_waits.lateness(&config), 0, "nobody will ever tell");
    }

    #[test]
    fn a_host_that_comes_late_teaches_nothing() {
        let config = config();
        let mut model = BusyModel::new(0.0);
        for turn in 0..8 {
            model.launch(UNKNOWN, MS, turn * 100 * MS, 0, LONGEST_NS);
            assert!(model.idle(turn * 100 * MS + MS, true));
        }
        for turn in 8..16 {
            model.launch(UNKNOWN, MS, turn * 100 * MS, 0, LONGEST_NS);
            assert!(model.idle(turn * 100 * MS + 50 * MS, false));
            assert!(model.is_seen());
        }
        model.launch(UNKNOWN, MS, 1_600 * MS, 0, LONGEST_NS);
        assert_eq!(model.lateness(&config), 0);
        assert_eq!(model.busy_until(), 1_601 * MS);
        // A wait for late work does.
        assert!(model.idle(1_604 * MS, true));
        model.launch(UNKNOWN, MS, 1_700 * MS, 0, LONGEST_NS);
        assert_eq!(model.lateness(&config), 3 * MS);
        assert_eq!(model.busy_until(), 1_704 * MS);
    }

    #[test]
    fn ends_of_short_work_say_nothing_about_long_work() {
        let config = config();
        let mut model = BusyModel::new(0.0);
        let mut now = 0;
        // Predicted time, and time taken.
        let mut burst = |predicted: Ns, takes: Ns| {
            now += 100 * MS;
            model.launch(UNKNOWN, predicted, now, 0, LONGEST_NS);
            let lateness = model.lateness(&config);
            model.idle(now + takes, true);
            lateness
        };
        let (prompt, token) = (16 * MS, 2 * MS);
        for _ in 0..4 {
            burst(prompt, 24 * MS);
            burst(prompt, 12 * MS);
        }
        let long = burst(prompt, 24 * MS);
        assert!(long >= 4 * MS, "{long}");
        for _ in 0..200 {
            burst(token, token);
        }
        let after = burst(prompt, 12 * MS);
        assert!(
            after >= 4 * MS,
            "{after} after tokens that ended when they should, {long} before"
        );
        assert!(burst(token, token) < 100 * US);
        assert!(
            burst(400 * MS, 400 * MS) < MS,
            "of a length never seen: as all of them together"
        );
    }

    #[test]
    fn one_late_end_is_not_believed_for_ever() {
        let mut model = BusyModel::new(0.0);
        model.launch(UNKNOWN, MS, 0, 0, LONGEST_NS);
        model.idle(8 * MS, true);
        // From here no wait follows. 10 ms of work every 20 ms, late for a while and then no more.
        let mut start = 100 * MS;
        let predicted = |model: &mut BusyModel, start: Ns| {
            model.launch(UNKNOWN, 10 * MS, start, 0, LONGEST_NS);
            model.busy_until() - start
        };
        assert_eq!(predicted(&mut model, start), 80 * MS);
        for _ in 0..40 {
            start += 20 * MS;
            predicted(&mut model, start);
        }
        start += 20 * MS;
        let after = predicted(&mut model, start);
        assert!(after < 15 * MS, "{after}");
    }

    #[test]
    fn ends_that_come_again_and_again_as_late_are_believed() {
        let mut model = BusyModel::new(0.0);
        for turn in 0..100 {
            let start = turn * 100 * MS;
            for _ in 0..10 {
                model.launch(UNKNOWN, MS, start, 0, LONGEST_NS);
            }
            if turn > 0 {
                assert_eq!(model.busy_until() - start, 30 * MS);
            }
            model.idle(start + 30 * MS, true);
        }
    }

    #[test]
    fn a_wake_up_hint_closes_the_gap_for_a_while() {
        let mut model = BusyModel::new(0.0);
        assert_eq!(phase(&model, 5), Phase::Open { since: 0 });
        model.launch(LONG, MS, 0, 0, LONGEST_NS);
        model.wake_up_hint(2 * MS);
        assert_eq!(
            phase(&model, 2 * MS),
            Phase::Busy {
                until: 2 * MS + 200 * US
            }
        );
        assert!(matches!(phase(&model, 3 * MS), Phase::Gap { .. }));
    }

    #[test]
    fn ceiling_of_a_prediction() {
        let mut model = BusyModel::new(0.0);
        for _ in 0..100 {
            model.launch(UNKNOWN, u64::MAX / 2, 7, u64::MAX, LONGEST_NS);
        }
        assert_eq!(model.busy_until(), 7 + LONGEST_NS);
    }
}
