// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lateness account: the measured lateness that background work caused at a foreground job's waits,
//! and the lateness that it may still cause.
//!
//! A stretch is the launches between two waits. Its length without background work is replayed from
//! launch times and kernel times ([`ReplayedStretch`]):
//!
//! ```text
//! excess   = when the wait saw the work end - when the replay ends
//! lateness = excess - the excess without background work
//! balance += slowdown * length - lateness        at each wait
//! price    = balance / (slowdown * credit_for)
//! ```
//!
//! * A wait for a part of a stretch, an event of earlier work, is compared with the replay of that
//!   part. Engines that queue the next step before the last one's end wait in this way only.
//! * The excess without background work is learnt from *controls*, stretches with no background
//!   work. So wrong kernel times, slow wake-ups and unseen copies do not count as lateness. The
//!   first stretches are made controls. Later one in [`CONTROL_EVERY`] is, out of step with
//!   requests.
//! * If the device switches between processes, the switch back counts as background work, even
//!   after the last kernel's end. So the gap before a control is then left empty.
//! * A requested slowdown is a promise. In debt, background work has no gaps, and stretches without
//!   background work pay the debt. The default slowdown is an aim. In debt, the price is the
//!   lowest.
//! * The delay bound is promised to every job. Several stretches in a row that exceed it refute the
//!   predictions about the background jobs. These then have no gaps for a while ([`Breaches`]).
//! * The work of the minimum share is measured, but booked to no balance. If gaps paid for it, more
//!   work would be left to the minimum share.
//! * The price is the highest allowed chance that a kernel keeps the foreground job waiting after
//!   its gap. It falls as lateness is measured, and rises while there is none.
//! * Lateness by work launched within stretches also has a balance of its own. If that balance is
//!   in debt, the stretch model is wrong, and background work has only gaps.
//! * The balance that gaps do not use is spent within stretches: they may end that much later.
//! * A requested slowdown is spent on *open* periods. An open period lasts from one wait to the
//!   next, and background work runs in it next to the foreground job without restriction. Cost and
//!   benefit are measured, so no model of interference between kernels is needed. Open periods are
//!   booked only to the balance of all lateness.
//! * Credit and debt are bounded, so an early surplus cannot pay for a slow second an hour later.
#![forbid(unsafe_code)]

use weft_protocol::Ns;

use super::running_mean::{LEAST_GAIN, RobustMean, RunningMean};
use super::stretch_model::ReplayedStretch;
use crate::Config;
use crate::stretch_times::StretchTimes;
use crate::tally::Lateness;

/// Deepest debt, as a multiple of the full credit. One stalled request costs background jobs at
/// most four seconds of the foreground job's time.
const DEEPEST_DEBT_RATIO: f64 = 4.0;

/// Part of the full credit that a job begins with. In a short run of the lab the background job had
/// 0.475 of its own speed without a first credit, and 0.516 with half:
///
/// ```text
/// scripts/lab --kind pair --requests 200 --model vgg19 --model bert_base --device mps \
///     --rule weft --partners 1
/// ```
const FIRST_CREDIT: f64 = 0.5;

/// Part of the full credit that is kept for gaps. Work in a gap costs only the chance of a return.
/// Work beyond the laxity of a stretch costs its full time.
const KEPT_FOR_GAPS: f64 = 0.5;

/// Part of the spare balance that one stretch may lose.
const SPENT_AT_ONCE: f64 = 0.5;

/// Most that one stretch may lose on purpose, as a multiple of its allowance. The tail latency
/// shows such losses.
const MOST_AT_ONCE: f64 = 4.0;

/// Lowest chance of keeping the foreground job waiting. The job hardly ever notices it.
const LEAST_RISK: f64 = 0.02;

/// Highest chance while nothing was measured.
const UNKNOWN_RISK: f64 = 0.5;

/// Classes of stretches by replayed length, each four times as long as the one before.
const CLASSES: usize = 16;

/// Controls before anything is lost on purpose.
const FIRST_CONTROLS: u32 = 8;

/// Stretches among which the first controls are sought. If a foreground job is hardly ever active,
/// the minimum share runs in every gap, and no stretch qualifies.
const FIRST_STRETCHES: u32 = 64;

/// Interval of the first stretches at which the gap before one is left empty, if the device
/// switches between processes.
const SPARED_AT_FIRST: u32 = 4;

/// Controls of a class after which its own mean replaces the mean of all classes.
const ENOUGH: u32 = 2;

/// Stretches per control. Controls cost background jobs under 1 % of their work.
const CONTROL_EVERY: u64 = 128;

/// Least weight of a new stretch in the mean length.
const LENGTH_GAIN: f64 = 1.0 / 16.0;

/// Least weight of a new period in the mean rates.
const RATE_GAIN: f64 = 1.0 / 32.0;

/// Lateness that the first open period is expected to cost, as a part of its length.
const FIRST_OPEN_LATENESS: f64 = 0.5;

/// Open periods before their benefit is judged.
const FIRST_OPEN: u32 = 6;

/// Least background work that an open period has to bring for each ns of lateness, ns. Below one,
/// it would only move work from one job to the other. The benefit is overestimated if requests
/// differ. With a language model that waits for each token, a ratio of one spent 2 % for no
/// benefit. A token then took 1.025 of its time alone; with two it takes 1.016
/// (docs/log/lab-notes.md).
const LEAST_WORTH_RATIO: f64 = 2.0;

/// Stretches after which an open period that brings too little is tried again. If open periods
/// bring enough, two in this number of stretches are shut.
const OPEN_AGAIN_EVERY: u32 = 64;

/// Time that weft adds to a foreground launch, ns. The replay contains it too, so no wait shows it.
/// `scripts/bench launch` measures 51 in a burst and 83 with a synchronisation after each, on a
/// slow and busy machine (docs/benchmarks.md).
const LAUNCH_COST_NS: u64 = 60;

/// Usual lengths after which an unfinished stretch is no longer open.
const LONGEST_OPEN_RATIO: f64 = 4.0;

/// Open periods, in which background work runs next to the foreground job without restriction. Cost
/// and benefit are measured, so no model of interference between kernels is needed.
#[derive(Debug, Clone, Copy, Default)]
struct OpenPeriods {
    /// Whether the period in progress, up to the next wait, is open.
    now: bool,
    /// Whether the period before was open.
    before: bool,
    /// Whether the slowdown is saved for open periods.
    wanted: bool,
    /// Lateness of open periods, and of those behind an open one, as a part of the replayed length.
    late: RunningMean,
    late_behind: RunningMean,
    /// Background work per time in open periods, in those behind an open one, and in others.
    rate: RunningMean,
    rate_behind: RunningMean,
    rate_closed: RunningMean,
    /// Background work since the last wait, ns, and the time of that wait.
    work: Ns,
    begun: Option<Ns>,
    /// Mean time from wait to wait, ns.
    period: f64,
}

impl OpenPeriods {
    /// Takes in the end of a period. `control`: background work was kept out.
    fn waited(&mut self, at: Ns, whole: bool, control: bool) {
        let work = std::mem::take(&mut self.work);
        let Some(begun) = self.begun.replace(at).filter(|_| whole) else {
            return;
        };
        let period = at.saturating_sub(begun).max(1) as f64;
        self.period += (period - self.period) * if self.period == 0.0 { 1.0 } else { RATE_GAIN };
        let rate = work as f64 / period;
        match (self.now, self.before) {
            (true, _) => self.rate.learn(rate, RATE_GAIN),
            (false, true) => self.rate_behind.learn(rate, RATE_GAIN),
            (false, false) if control => {}
            (false, false) => self.rate_closed.learn(rate, RATE_GAIN),
        }
    }

    /// Takes in lateness, as a part of the replayed length. `opened`: the period was open.
    fn judged(&mut self, late: f64, opened: bool) {
        match (opened, self.before) {
            (true, _) => self.late.learn(late, LEAST_GAIN),
            (false, true) => self.late_behind.learn(late, LEAST_GAIN),
            (false, false) => {}
        }
    }

    /// Part of the open periods that a closed one followed. Work that an open period leaves on the
    /// device runs in the closed one, which is then late and launches less.
    fn followed(&self) -> f64 {
        let opened = f64::from(self.rate.seen.max(1));
        (f64::from(self.rate_behind.seen) / opened).min(1.0)
    }

    /// Lateness that another open period of this length is expected to cost, ns.
    fn expected(&self, length: f64) -> f64 {
        let late = match self.late.seen {
            0 => FIRST_OPEN_LATENESS,
            _ => self.late.mean + self.late_behind.mean * self.followed(),
        };
        late.max(0.0) * length
    }

    /// Whether the rate of closed periods is known.
    fn knows_closed(&self) -> bool {
        self.rate_closed.seen >= FIRST_OPEN
    }

    /// Whether open periods bring enough for their cost.
    fn pays(&self, length: f64) -> bool {
        if self.rate.seen < FIRST_OPEN {
            return true;
        }
        let closed = self.rate_closed.mean;
        let more = (self.rate.mean - closed) + (self.rate_behind.mean - closed) * self.followed();
        let brings = more * self.period;
        brings > 0.0 && brings >= LEAST_WORTH_RATIO * self.expected(length)
    }
}

/// Stretches in a row that break the delay bound, before gaps are withheld. One may be a thread
/// that lost its core.
const BREACHES: u32 = 3;

/// Multiple of the allowed slowdown below which lateness is not a breach.
const FAR_RATIO: f64 = 10.0;

/// Stretches for which gaps are then withheld. The number doubles each time, up to the longest. It
/// starts again at the first after [`LONGEST_HELD`] good stretches.
const FIRST_HELD: u32 = 16;
const LONGEST_HELD: u32 = 128;

/// Time without a wait, ns, after which gaps are no longer withheld for breaches or for a control.
/// A foreground job without requests has no stretch that could end it.
const HELD_NS: Ns = 1_000_000_000;

/// Stretches that were later than the delay bound allows.
#[derive(Debug, Clone, Copy, Default)]
struct Breaches {
    in_a_row: u32,
    good: u32,
    /// Stretches for which gaps are still withheld, and the number at the last breach.
    held: u32,
    lasted: u32,
}

impl Breaches {
    /// Takes in a stretch with background work.
    fn judged(&mut self, broken: bool) {
        if !broken {
            self.in_a_row = 0;
            self.good = self.good.saturating_add(1);
            if self.good >= LONGEST_HELD {
                self.lasted = 0;
            }
            return;
        }
        (self.in_a_row, self.good) = (self.in_a_row + 1, 0);
        if self.in_a_row >= BREACHES {
            self.lasted = (self.lasted * 2).clamp(FIRST_HELD, LONGEST_HELD);
            (self.in_a_row, self.held) = (0, self.lasted);
        }
    }
}

/// Lateness that may still be caused, ns. Negative: a debt.
#[derive(Debug, Clone, Copy, Default)]
struct Balance(f64);

impl Balance {
    /// `full`: the most credit, ns.
    fn first(full: f64) -> Balance {
        Balance(full * FIRST_CREDIT)
    }

    /// `full`: as for [`Balance::first`].
    fn book(&mut self, allowed: f64, late: f64, full: f64) {
        self.0 = (self.0 + allowed - late).clamp(-full * DEEPEST_DEBT_RATIO, full);
    }
}

/// Excess of stretches without background work.
#[derive(Debug, Clone, Default)]
struct Controls {
    /// As a part of the replayed length.
    by_class: [RobustMean; CLASSES],
    of_all: RobustMean,
    /// The excess of all, ns.
    of_all_ns: RobustMean,
    /// Excess of waits for a part of a stretch, ns.
    in_part: RobustMean,
}

/// Lateness account of one foreground job.
#[derive(Debug, Clone, Default)]
pub(super) struct LatenessAccount {
    /// First launch of the stretch in progress.
    since: Option<Ns>,
    /// The last wait.
    waited_at: Ns,
    /// Time from that launch until the device is free of background work, ns.
    found: Ns,
    /// Whether background work was launched since.
    joined: bool,
    /// Whether the minimum share launched some, since the last stretch that was judged.
    forced: bool,
    /// Mean length of the last dozens of stretches, ns.
    length: f64,
    stretches: u32,
    /// Balance of all lateness, and of lateness by work launched within stretches. `None`: no
    /// stretch was judged.
    balances: Option<(Balance, Balance)>,
    /// Whether the stretch in progress, or the next one, is a control.
    control: bool,
    /// Whether the gap before the control is to be left empty too.
    spared: bool,
    /// Whether another foreground job had work within the stretch.
    shared: bool,
    /// Controls without and with work of other foreground jobs, which is no background work.
    controls: [Controls; 2],
    /// Measured length of controls as a multiple of the predicted times of their kernels.
    pace: RobustMean,
    /// End of the part of the stretch in progress that was awaited so, and its length, ns.
    part_end: Ns,
    part: f64,
    /// [`Config::credit_for`](crate::Config::credit_for), ns.
    credit_for: Ns,
    open: OpenPeriods,
    breaches: Breaches,
    /// Sums over all stretches so far.
    sums: Lateness,
    /// Lengths of all stretches so far. `None`: there were none.
    times: Option<Box<StretchTimes>>,
}

impl LatenessAccount {
    /// Takes in a launch. `found`: time until the device is free of background work, ns. It is
    /// called only at the first launch of a stretch.
    pub(super) fn launched(&mut self, at: Ns, found: impl FnOnce() -> Ns) {
        if self.since.is_none() {
            (self.since, self.found, self.joined, self.part_end) = (Some(at), found(), false, at);
            self.shared = false;
        }
    }

    /// Whether a stretch is in progress.
    pub(super) fn is_in_stretch(&self) -> bool {
        self.since.is_some()
    }

    /// Takes in that another foreground job has work within the stretch.
    pub(super) fn shares(&mut self) {
        self.shared = true;
    }

    fn controls(&mut self) -> &mut Controls {
        let [without, with] = &mut self.controls;
        if self.shared { with } else { without }
    }

    /// Number of controls.
    fn controls_seen(&self) -> u32 {
        let [without, with] = &self.controls;
        without.of_all.seen().max(with.of_all.seen())
    }

    /// Takes in that background work of `time` ns was launched. `forced`: by the minimum share.
    pub(super) fn joined(&mut self, time: Ns, forced: bool) {
        self.open.work = self.open.work.saturating_add(time);
        self.joined |= self.since.is_some();
        self.forced |= forced;
    }

    /// Takes in a wait that saw all work end. `replay`: `None` if the stretch was not watched from
    /// its beginning. `slowdown`: the allowed part of the job's time.
    pub(super) fn waited(&mut self, at: Ns, replay: Option<ReplayedStretch>, slowdown: f64, config: &Config) {
        self.credit_for = config.credit_for;
        self.breaches.held = self.breaches.held.saturating_sub(1);
        self.waited_at = at;
        let whole = self.since.is_some() && replay.is_some();
        self.open.waited(at, whole, self.control);
        let opened = std::mem::take(&mut self.open.now);
        let part = std::mem::take(&mut self.part);
        let Some(since) = self.since.take() else { return };
        let length = at.saturating_sub(since) as f64;
        self.stretches = self.stretches.saturating_add(1);
        let gain = LENGTH_GAIN.max(1.0 / f64::from(self.stretches));
        self.length += (length - self.length) * gain;
        self.sums.stretches += length;
        let company = self.has_company();
        let times = self.times.get_or_insert_default();
        match company {
            true => times.beside.add(length as Ns),
            false => times.alone.add(length as Ns),
        }
        if let Some(replay) = replay.filter(|replay| !company && !self.shared && replay.work > 0) {
            self.pace.learn(length / replay.work as f64);
        }
        if let Some(replay) = replay {
            let bound = config.delay_bound.saturating_add(2 * config.switch_cost);
            self.judge((at, part), &replay, slowdown, opened, bound);
        }
        self.open.before = opened;
        let first = self.controls_seen() < FIRST_CONTROLS && self.stretches < FIRST_STRETCHES;
        self.control = first || is_control(self.stretches);
        self.spared = self.control && (!first || self.stretches.is_multiple_of(SPARED_AT_FIRST));
    }

    /// Takes in a wait from `since` to `at` for a part of the stretch, whose work would have ended
    /// at `end` without background work. The host comes later by the lateness of this wait, and the
    /// replay of what it launches then does not show it.
    pub(super) fn waited_in_part(&mut self, (since, at): (Ns, Ns), end: Ns, slowdown: f64, config: &Config) {
        if self.since.is_none() {
            return;
        }
        let excess = at.saturating_sub(since.max(end)) as f64;
        let company = self.has_company();
        let usual = &mut self.controls().in_part;
        if !company {
            usual.learn(excess);
        }
        if usual.seen() < ENOUGH {
            return;
        }
        let late = match company {
            true => (excess - usual.mean()).max(0.0),
            false => 0.0,
        };
        let length = end.saturating_sub(self.part_end) as f64;
        self.part_end = self.part_end.max(end);
        self.part += length;
        self.sums.late += late;
        self.sums.alone += length;
        self.sums.waits += 1;
        if !self.forced {
            let by_joined = (late - self.found as f64).max(0.0);
            self.book((late, by_joined), slowdown * length, slowdown, config);
        }
    }

    /// Takes in the end of a stretch that no call awaits. `replay`: as for
    /// [`LatenessAccount::waited`]. If no part of it was awaited either, its lateness is the
    /// background work that it found on the device, less the time for which it leaves the device
    /// idle.
    pub(super) fn unawaited(&mut self, replay: Option<ReplayedStretch>, slowdown: f64, config: &Config) {
        let forced = std::mem::take(&mut self.forced);
        if let (Some(replay), false, true) = (replay, forced, self.since.is_some()) {
            let late = match self.part > 0.0 {
                true => 0.0,
                false => self.found.saturating_sub(replay.idle) as f64,
            };
            let rest = (replay.length() as f64 - self.part).max(0.0);
            self.book((late, 0.0), slowdown * rest, slowdown, config);
        }
        self.interrupted();
        // Controls show the excess of waits for a part. A job without any needs none.
        self.stretches = self.stretches.saturating_add(1);
        let seen = self.controls.iter().map(|of| of.in_part.seen()).max().unwrap_or(0);
        let first = (1..FIRST_CONTROLS).contains(&seen) && self.stretches < FIRST_STRETCHES;
        self.control = seen > 0 && (first || is_control(self.stretches));
    }

    /// The balance of all lateness, that of work launched within stretches, and the most credit of
    /// each, ns.
    fn balances(&mut self, slowdown: f64) -> (&mut Balance, &mut Balance, f64) {
        let full = self.full(slowdown);
        let first = Balance::first(full);
        let (all, within) = self.balances.get_or_insert((first, first));
        (all, within, full)
    }

    /// Books lateness, all and by work launched within the stretch, ns.
    fn book(&mut self, late: (f64, f64), allowed: f64, slowdown: f64, config: &Config) {
        self.credit_for = config.credit_for;
        let (all, within, full) = self.balances(slowdown);
        all.book(allowed, late.0, full);
        within.book(allowed, late.1, full);
    }

    /// `part`: the length, ns, that waits for parts have booked. `bound`: most lateness of any
    /// stretch, ns.
    fn judge(&mut self, (at, part): (Ns, f64), replay: &ReplayedStretch, slowdown: f64, opened: bool, bound: Ns) {
        let length = replay.length().max(1);
        let class = (length.ilog2() as usize / 2).min(CLASSES - 1);
        let alone = length as f64;
        let excess = (at as f64 - replay.end as f64) / alone;
        let company = self.has_company();
        let controls = self.controls();
        if !company && !replay.guessed {
            controls.by_class[class].learn(excess);
            controls.of_all.learn(excess);
            controls.of_all_ns.learn(excess * alone);
        }
        let unknown = controls.by_class[class].seen() < ENOUGH;
        if controls.of_all.seen() == 0 {
            return;
        }
        // The excess of a stretch of 1 us may be 60 times its length, and is little for one of 100
        // ms.
        let known = match unknown {
            true => (controls.of_all.mean() * alone).min(controls.of_all_ns.mean()),
            false => controls.by_class[class].mean() * alone,
        };
        let own = (alone + known).max(1.0);
        let late = match company {
            // Excess of other lengths gives this one no credit: a prefill of 14 ms had 1.5 % from
            // its decoding's excess.
            true if unknown => (excess * alone - known).max(0.0),
            true => excess * alone - known,
            false => 0.0,
        };
        // The stretch waits for the end of the work that it found. Work that joined it causes the
        // rest.
        let by_found = match self.joined {
            true => late.clamp(0.0, self.found as f64),
            false => late,
        };
        self.sums.late += late;
        let rest = (own - part).max(0.0);
        self.sums.alone += rest;
        self.sums.waits += 1;
        if std::mem::take(&mut self.forced) {
            return;
        }
        self.open.judged(late / alone, opened);
        let (all, within, full) = self.balances(slowdown);
        // Time of weft's own calls counts against the promised slowdown.
        let calls = replay.launches.saturating_mul(LAUNCH_COST_NS) as f64;
        all.book(slowdown * rest, late + calls, full);
        if !opened {
            within.book(slowdown * rest, late - by_found, full);
            if company {
                let far = (bound as f64).max(FAR_RATIO * slowdown * own);
                self.breaches.judged(late > far);
            }
        }
    }

    /// Whether the stretch found background work on the device, or some was launched within it.
    /// After an open period it may also have had some, because kernels take longer than predicted
    /// next to others.
    fn has_company(&self) -> bool {
        self.found > 0 || self.joined || self.open.before
    }

    /// Most credit that is kept, ns. A slowdown of 0 leaves a little, because measurements scatter.
    fn full(&self, slowdown: f64) -> f64 {
        /// Below any slowdown that can be measured.
        const LEAST_SLOWDOWN: f64 = 0.000_1;
        slowdown.max(LEAST_SLOWDOWN) * self.credit_for as f64
    }

    /// Forgets the unwatched stretch.
    pub(super) fn interrupted(&mut self) {
        (self.since, self.part) = (None, 0.0);
        (self.open.now, self.open.wanted, self.open.begun) = (false, false, None);
    }

    /// Opens the period up to the next wait, if the slowdown pays for it. `None`: the slowdown is
    /// not spent on open periods. `slo` as for [`LatenessAccount::allows`].
    pub(super) fn open_next(&mut self, slowdown: Option<f64>, slo: Option<Ns>) {
        (self.open.now, self.open.wanted) = (false, false);
        let (Some(slowdown), Some((all, _))) = (slowdown.filter(|part| *part > 0.0), self.balances) else {
            return;
        };
        // Nor before a control, which would find the work that this period leaves on the device.
        let before_control = is_control(self.stretches.saturating_add(1));
        let known = self.controls_seen() >= FIRST_CONTROLS && self.open.knows_closed();
        if self.control || before_control || !known {
            return;
        }
        let expected = self.open.expected(self.length);
        let pays_for = all.0 - expected >= self.full(slowdown) * KEPT_FOR_GAPS;
        let again = self.stretches.is_multiple_of(OPEN_AGAIN_EVERY);
        self.open.wanted = self.open.pays(self.length);
        // The second shut period finds no work that an open one left.
        let shut = self.stretches.wrapping_add(OPEN_AGAIN_EVERY / 2) % OPEN_AGAIN_EVERY < 2;
        self.open.now = pays_for && !shut && expected as Ns <= self.within(slo) && (again || self.open.wanted);
    }

    /// Whether background work may run next to the foreground job at `now`.
    pub(super) fn is_open(&self, now: Ns) -> bool {
        let most = (self.length * LONGEST_OPEN_RATIO) as Ns;
        self.open.now && self.since.is_none_or(|since| now < since.saturating_add(most))
    }

    /// Whether the laxity of a stretch may be used: not in a control, nor if its use is in debt.
    pub(super) fn may_be_lax(&self) -> bool {
        !self.control && self.breaches.held == 0 && self.balances.is_none_or(|(_, within)| within.0 >= 0.0)
    }

    /// Lateness of a stretch, ns, that is far more than this slowdown of its usual length.
    /// `Ns::MAX` while no length is known.
    pub(super) fn far(&self, slowdown: f64) -> Ns {
        match self.stretches {
            0 => Ns::MAX,
            _ => (FAR_RATIO * slowdown * self.length) as Ns,
        }
    }

    /// Time by which the stretch in progress may end late, ns. `slo`: the longest stretch, ns.
    pub(super) fn allows(&self, slowdown: f64, slo: Option<Ns>) -> Ns {
        match (self.since, self.balances) {
            (Some(_), Some((all, _))) if self.controls_seen() >= FIRST_CONTROLS && !self.open.wanted => {
                let most = slowdown * self.length * MOST_AT_ONCE;
                let spare = all.0 - self.full(slowdown) * KEPT_FOR_GAPS;
                let late = (spare * SPENT_AT_ONCE).clamp(0.0, most) as Ns;
                late.min(self.within(slo))
            }
            _ => 0,
        }
    }

    /// Time that the usual stretch leaves below the longest allowed one, ns.
    fn within(&self, slo: Option<Ns>) -> Ns {
        slo.map_or(Ns::MAX, |slo| slo.saturating_sub(self.length as Ns))
    }

    /// Highest allowed chance that a kernel in the gap after a wait keeps the foreground job
    /// waiting, at most `most`. `slo` as for [`LatenessAccount::allows`].
    pub(super) fn risk(&self, most: f64, slowdown: f64, slo: Option<Ns>) -> f64 {
        match self.balances {
            // No stretch was judged; weft may not see this job's waits.
            None => most.min(UNKNOWN_RISK),
            Some(_) if self.control || self.within(slo) == 0 => most.min(LEAST_RISK),
            Some((all, _)) => (all.0 / self.full(slowdown)).max(LEAST_RISK).min(most),
        }
    }

    /// Whether gaps are withheld from background jobs. `promised`: the slowdown was requested.
    /// `switches`: the device must switch back after background work.
    pub(super) fn withholds(&self, promised: bool, switches: bool, now: Ns) -> bool {
        let in_debt = self.balances.is_some_and(|(all, _)| all.0 < 0.0);
        let silent = now >= self.waited_at.saturating_add(HELD_NS);
        let held = self.breaches.held > 0 || (switches && self.spared);
        (promised && in_debt) || (held && !silent)
    }

    /// Time that the device needs for 1 ns of the predicted times of a job without a profile, ns. A
    /// host that is slower than the device makes it too long. `None`: no control was seen.
    pub(super) fn pace(&self) -> Option<f64> {
        (self.pace.seen() > 0).then(|| self.pace.mean())
    }

    /// Sums of all measurements so far.
    pub(super) fn sums(&self) -> Lateness {
        self.sums
    }

    /// Lengths of all stretches so far.
    pub(super) fn stretch_times(&self) -> Option<&StretchTimes> {
        self.times.as_deref()
    }
}

/// Whether the stretch after `stretches` others is a control.
fn is_control(stretches: u32) -> bool {
    // Multiplicative hashing by the golden ratio: the result repeats in no short period.
    let mixed = (u64::from(stretches) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    mixed.is_multiple_of(CONTROL_EVERY)
}

#[cfg(test)]
mod tests {
    use super::super::stretch_model::StretchModel;
    use super::*;
    use crate::config::{MS, US};

    const SLOWDOWN: f64 = 0.01;
    const LENGTH_NS: Ns = 10 * MS;
    /// Excess of the account's waits over the replay without background work.
    const OWN_NS: Ns = 100 * US;

    fn config() -> Config {
        Config::default()
    }

    /// Stretches of [`LENGTH_NS`] that find `found` ns of background work and end `late` ns late.
    fn stretches(account: &mut LatenessAccount, count: u64, found: Ns, joined: bool, late: Ns) {
        for turn in 0..count {
            let begin = turn * 100 * MS;
            account.launched(begin, || found);
            if joined {
                account.joined(0, false);
            }
            let replay = ReplayedStretch {
                launches: 0,
                begin,
                idle: 0,
                end: begin + LENGTH_NS,
                work: LENGTH_NS,
                guessed: false,
            };
            account.waited(begin + LENGTH_NS + OWN_NS + late, Some(replay), SLOWDOWN, &config());
        }
    }

    #[test]
    fn the_work_of_an_equal_foreground_job_is_no_lateness_and_hides_none() {
        let mut account = watched();
        for turn in 0..40 {
            account.launched(turn * 100 * MS, || 0);
            account.shares();
            stretches(&mut account, 1, 0, false, 3 * MS);
        }
        assert_eq!(account.sums().late, 0.0);
        stretches(&mut account, 10, MS, false, MS);
        assert!(
            (account.sums().late - 10.0 * MS as f64).abs() < 1.0,
            "{:?}",
            account.sums()
        );
    }

    fn watched() -> LatenessAccount {
        let mut account = LatenessAccount::default();
        stretches(&mut account, u64::from(FIRST_CONTROLS), 0, false, 0);
        account
    }

    /// Periods of [`LENGTH_NS`] with background work of `work.0` in open ones, else `work.1`, and
    /// `late` in open ones. Returns how many were open.
    fn periods(account: &mut LatenessAccount, count: u64, slowdown: f64, work: (Ns, Ns), late: Ns) -> u64 {
        let mut open = 0;
        for turn in 1..=count {
            let begin = 1_000_000 * MS + turn * 100 * MS;
            let is_open = account.is_open(begin);
            open += u64::from(is_open);
            account.launched(begin, || 0);
            account.joined(if is_open { work.0 } else { work.1 }, false);
            let end = begin + LENGTH_NS;
            let late = if is_open { late } else { 0 };
            let replay = ReplayedStretch {
                begin,
                end,
                idle: 0,
                launches: 0,
                work: LENGTH_NS,
                guessed: false,
            };
            account.waited(end + OWN_NS + late, Some(replay), slowdown, &config());
            account.open_next(Some(slowdown), None);
        }
        open
    }

    #[test]
    fn a_slowdown_is_spent_on_open_periods_and_no_more_than_it() {
        let cases = [(0.1, MS, 800, 1_000), (0.05, 5 * MS, 70, 101), (0.02, 5 * MS, 25, 41)];
        for (slowdown, late, least, most) in cases {
            let mut account = watched();
            let open = periods(&mut account, 1_000, slowdown, (40 * MS, 20 * MS), late);
            assert!((least..=most).contains(&open), "{slowdown}: {open}");
            let part = account.sums().part().expect("judged");
            assert!(part <= slowdown * 1.01, "{slowdown}: {part}");
            assert!(account.may_be_lax(), "what was bought is no fault of the stretch model");
        }
    }

    #[test]
    fn what_brings_nothing_is_hardly_bought() {
        let mut account = watched();
        let open = periods(&mut account, 1_000, 0.1, (20 * MS, 20 * MS), 5 * MS);
        assert!((u64::from(FIRST_OPEN)..40).contains(&open), "{open}");
        account.open_next(Some(0.0), None);
        assert!(!account.is_open(0), "none at all is allowed");
        account.open_next(None, None);
        assert!(!account.is_open(0), "nobody asked for it");
        account.open_next(Some(0.1), Some(LENGTH_NS));
        assert!(!account.is_open(0), "it would exceed the SLO");
    }

    #[test]
    fn a_stretch_that_does_not_end_is_shut() {
        let mut account = watched();
        periods(&mut account, 100, 0.1, (40 * MS, 20 * MS), 0);
        assert!(account.is_open(0));
        account.launched(2_000_000 * MS, || 0);
        assert!(account.is_open(2_000_000 * MS + LENGTH_NS));
        assert!(!account.is_open(2_000_000 * MS + 10 * LENGTH_NS));
    }

    /// Stretches of [`LENGTH_NS`] whose first half one call awaits, `late` ns late, and that end
    /// without a wait.
    fn halves(account: &mut LatenessAccount, count: u64, found: Ns, late: Ns) {
        for turn in 0..count {
            let begin = turn * 100 * MS;
            account.launched(begin, || found);
            let (half, end) = (begin + LENGTH_NS / 2, begin + LENGTH_NS);
            account.waited_in_part((begin, half + OWN_NS + late), half, SLOWDOWN, &config());
            let replay = ReplayedStretch {
                begin,
                end,
                idle: 0,
                launches: 0,
                work: LENGTH_NS,
                guessed: false,
            };
            account.unawaited(Some(replay), SLOWDOWN, &config());
        }
    }

    #[test]
    fn lateness_at_a_wait_for_a_part_counts() {
        let mut account = LatenessAccount::default();
        halves(&mut account, u64::from(FIRST_CONTROLS), 0, 0);
        halves(&mut account, 10, MS, 0);
        let spare = account.risk(0.95, SLOWDOWN, None);
        halves(&mut account, 100, MS, LENGTH_NS / 20);
        assert!(account.sums().late > 99.0 * LENGTH_NS as f64 / 20.0);
        assert!(spare > LEAST_RISK, "{spare}");
        assert_eq!(
            account.risk(0.95, SLOWDOWN, None),
            LEAST_RISK,
            "five times the slowdown"
        );
    }

    #[test]
    fn a_job_that_awaits_nothing_loses_what_its_stretches_find() {
        let risk_of = |found: Ns, idle: Ns| {
            let mut account = LatenessAccount::default();
            for turn in 0..200 {
                let begin = turn * 100 * MS;
                account.launched(begin, || found);
                let replay = ReplayedStretch {
                    begin,
                    end: begin + LENGTH_NS,
                    idle,
                    launches: 0,
                    work: LENGTH_NS,
                    guessed: false,
                };
                account.unawaited(Some(replay), SLOWDOWN, &config());
            }
            assert_eq!(account.sums().late, 0.0, "nothing was measured");
            account.risk(0.95, SLOWDOWN, None)
        };
        assert_eq!(risk_of(LENGTH_NS / 20, 0), LEAST_RISK);
        assert_eq!(risk_of(LENGTH_NS / 20, LENGTH_NS / 20), 0.95, "the device catches up");
        assert_eq!(risk_of(0, 0), 0.95);
    }

    #[test]
    fn a_tiny_stretch_buys_no_lateness_for_long_ones() {
        let mut account = LatenessAccount::default();
        let mut wait = |length: Ns, found: Ns, late: Ns, turn: u64| {
            let begin = turn * 1_000 * MS;
            account.launched(begin, || found);
            let replay = ReplayedStretch {
                begin,
                end: begin + length,
                idle: 0,
                launches: 1,
                work: LENGTH_NS,
                guessed: false,
            };
            account.waited(begin + length + OWN_NS + late, Some(replay), SLOWDOWN, &config());
        };
        // A wait's return takes 100 times as long as the work.
        (0..u64::from(FIRST_CONTROLS)).for_each(|turn| wait(US, 0, 0, turn));
        (8..10).for_each(|turn| wait(LENGTH_NS * 10, MS, 3 * MS, turn));
        let sums = account.sums();
        assert!((sums.late - 6.0 * MS as f64).abs() < 10.0 * US as f64, "{sums:?}");
        assert!(sums.alone < 20.2 * LENGTH_NS as f64, "{sums:?}");
    }

    #[test]
    fn what_a_job_loses_without_company_is_no_lateness() {
        let mut account = watched();
        stretches(&mut account, 100, 50 * US, false, 0);
        let part = account.sums().part().expect("judged");
        assert!(part.abs() < 1e-9, "{part}");
        assert!(
            account.risk(0.95, SLOWDOWN, None) > 0.9,
            "nothing was lost: the price is high"
        );
    }

    #[test]
    fn lengths_are_kept_apart_by_company() {
        let mut account = watched();
        stretches(&mut account, 5, MS, false, MS);
        stretches(&mut account, 2, 0, true, 0);
        let times = account.stretch_times().expect("some");
        let length = LENGTH_NS + OWN_NS;
        assert_eq!(times.alone.count(), u64::from(FIRST_CONTROLS));
        assert_eq!(times.alone.sum(), u64::from(FIRST_CONTROLS) * length);
        assert_eq!(times.beside.count(), 7);
        assert_eq!(times.beside.sum(), 7 * length + 5 * MS);
        assert_eq!(LatenessAccount::default().stretch_times(), None);
    }

    #[test]
    fn lateness_beyond_the_allowance_lowers_the_price_and_none_raises_it() {
        let mut account = watched();
        stretches(&mut account, 20, MS, false, MS);
        assert!((account.sums().part().expect("judged") - 20.0 / 28.0 * 0.099).abs() < 0.01);
        assert_eq!(account.risk(0.95, SLOWDOWN, None), LEAST_RISK);
        assert!(account.may_be_lax(), "gaps were the cause");
        let debt = account.balances.expect("judged").0.0;
        assert!(debt < 0.0);
        // The debt is bounded: this number of stretches without background work pays for any.
        stretches(
            &mut account,
            (1 + DEEPEST_DEBT_RATIO as u64) * config().credit_for / LENGTH_NS,
            0,
            false,
            0,
        );
        assert!(account.risk(0.95, SLOWDOWN, None) > 0.9);
    }

    #[test]
    fn lateness_by_what_joined_a_stretch_ends_the_use_of_laxity() {
        let mut account = watched();
        stretches(&mut account, 20, 0, true, MS);
        assert!(!account.may_be_lax());
        let mut account = watched();
        stretches(&mut account, 20, MS, true, MS);
        assert!(account.may_be_lax(), "the stretches found as much on the device");
    }

    #[test]
    fn a_promise_in_debt_withholds_gaps_and_the_default_does_not() {
        let mut account = watched();
        assert!(!account.withholds(true, false, account.waited_at), "nothing is owed");
        stretches(&mut account, 40, MS, false, 300 * US);
        assert!(account.withholds(true, false, account.waited_at));
        assert!(!account.withholds(false, false, account.waited_at));
    }

    #[test]
    fn stretches_that_break_the_delay_bound_withhold_gaps_whoever_asked_for_nothing() {
        let mut account = watched();
        let late = 2 * MS;
        for again in 0..5 {
            stretches(&mut account, u64::from(BREACHES) - 1, MS, false, late);
            assert!(
                !account.withholds(false, false, account.waited_at),
                "each may be a thread that lost its core"
            );
            stretches(&mut account, 1, 0, false, 0);
            stretches(&mut account, 1, MS, false, late);
            assert!(account.withholds(false, false, account.waited_at));
            assert!(account.withholds(false, true, account.waited_at));
            let silent = account.waited_at + HELD_NS;
            assert!(!account.withholds(false, false, silent), "it has no requests");
            assert!(!account.may_be_lax());
            let held = (FIRST_HELD << again).min(LONGEST_HELD);
            stretches(&mut account, u64::from(held) - 1, 0, false, 0);
            assert!(account.withholds(false, false, account.waited_at), "time {again}");
            stretches(&mut account, 1, 0, false, 0);
            assert!(
                !account.withholds(false, false, account.waited_at),
                "the background jobs have another try"
            );
        }
        // One stretch that is not as late shows that the jobs are known again.
        stretches(&mut account, u64::from(BREACHES) - 1, MS, false, late);
        stretches(&mut account, 1, MS, false, 100 * US);
        stretches(&mut account, u64::from(BREACHES) - 1, MS, false, late);
        assert!(!account.withholds(false, false, account.waited_at));
        stretches(&mut account, u64::from(LONGEST_HELD), MS, false, 0);
        stretches(&mut account, u64::from(BREACHES), MS, false, late);
        stretches(&mut account, u64::from(FIRST_HELD), 0, false, 0);
        assert!(
            !account.withholds(false, false, account.waited_at),
            "long ago counts no more"
        );
    }

    #[test]
    fn what_the_minimum_share_ran_is_measured_and_not_booked() {
        let mut account = watched();
        let before = account.balances.expect("judged").0.0;
        let waits = account.sums().waits;
        account.joined(0, true);
        stretches(&mut account, 1, MS, false, MS);
        assert_eq!(account.balances.expect("judged").0.0, before);
        assert_eq!(account.sums().waits, waits + 1);
        assert!(account.sums().late > 0.9 * MS as f64);
        stretches(&mut account, 1, MS, false, MS);
        assert!(account.balances.expect("judged").0.0 < before, "the next is");
    }

    #[test]
    fn gaps_before_controls_are_spared_where_the_device_switches_and_not_for_ever() {
        let mut account = LatenessAccount::default();
        let mut spared = 0;
        // Each stretch finds the switch back, so there is no control.
        for _ in 0..FIRST_STRETCHES {
            stretches(&mut account, 1, US, false, 0);
            spared += u32::from(account.withholds(false, true, account.waited_at));
            assert!(!account.withholds(false, false, account.waited_at), "nothing to switch");
            let silent = account.waited_at + HELD_NS;
            assert!(!account.withholds(false, true, silent), "it has no requests");
        }
        assert_eq!(account.sums().waits, 0);
        assert!((FIRST_STRETCHES / SPARED_AT_FIRST - 1..=FIRST_STRETCHES / SPARED_AT_FIRST + 1).contains(&spared));
        let later = (0..1_000).filter(|_| {
            stretches(&mut account, 1, US, false, 0);
            account.withholds(false, true, account.waited_at)
        });
        assert!((1..40).contains(&later.count()), "rarely, and never stopped");
    }

    #[test]
    fn a_stretch_may_lose_what_gaps_do_not_use() {
        let mut account = watched();
        account.launched(0, || 0);
        let added = account.allows(SLOWDOWN, None);
        assert!(
            added.abs_diff(404 * US) <= US,
            "half of what eight stretches added: {added}"
        );
        account.since = None;
        stretches(&mut account, 1_000, 0, true, 0);
        account.launched(0, || 0);
        let most = (SLOWDOWN * account.length * MOST_AT_ONCE) as Ns;
        assert_eq!(account.allows(SLOWDOWN, None), most);
        assert_eq!(account.allows(0.0, None), 0);
        let slo = account.length as Ns + 50 * US;
        assert_eq!(account.allows(SLOWDOWN, Some(slo)), 50 * US);
        assert_eq!(account.risk(0.95, SLOWDOWN, Some(LENGTH_NS)), LEAST_RISK);
    }

    #[test]
    fn what_is_not_measured_is_not_spent() {
        let mut account = LatenessAccount::default();
        account.launched(0, || 0);
        assert_eq!(account.allows(SLOWDOWN, None), 0);
        assert_eq!(account.risk(0.95, SLOWDOWN, None), UNKNOWN_RISK);
        account.waited(MS, None, SLOWDOWN, &config());
        assert_eq!(account.sums().part(), None);
        assert!(!account.may_be_lax(), "the first stretches are controls");
    }

    #[test]
    fn controls_are_few_and_never_stop() {
        let count = (0..100_000).filter(|stretch| is_control(*stretch)).count();
        assert!((500..1_200).contains(&count), "{count}");
    }

    /// Lateness of stretches of a job without a profile, as a part of their length. Each launches
    /// 24 kernels that are guessed at 20 us and take 125. The host's part scatters. Those with
    /// background work end `late` ns late.
    fn lost_without_a_profile(late: Ns) -> f64 {
        let (mut account, mut model) = (LatenessAccount::default(), StretchModel::default());
        model.waited();
        for turn in 0..200_u64 {
            let begin = turn * 100 * MS;
            let is_control = turn < 9;
            let every = US * if is_control { 20 + turn % 5 * 2 } else { 19 };
            for step in 0..24 {
                let at = begin + step * every;
                account.launched(at, || if is_control { 0 } else { 100 * US });
                model.launched(step, at, 20 * US, account.pace());
            }
            let end = begin + 24 * 125 * US + if is_control { 0 } else { late };
            account.waited(end, model.waited(), SLOWDOWN, &config());
        }
        let sums = account.sums();
        sums.late / sums.alone
    }

    #[test]
    fn a_host_that_scatters_is_no_lateness_of_a_job_without_a_profile() {
        for late in [0, 30 * US, 300 * US] {
            let real = late as f64 / (24.0 * 125.0 * US as f64);
            let lost = lost_without_a_profile(late);
            assert!((lost - real).abs() < 0.01, "{lost} instead of {real}");
        }
    }

    #[test]
    fn a_control_that_lost_its_core_hides_no_lateness() {
        let mut account = LatenessAccount::default();
        stretches(&mut account, 3, 0, false, 0);
        stretches(&mut account, 1, 0, false, 20 * MS);
        stretches(&mut account, 6, 0, false, 0);
        stretches(&mut account, 100, 100 * US, false, 300 * US);
        let sums = account.sums();
        let lost = sums.late / sums.alone;
        assert!((lost - 0.03).abs() < 0.005, "{lost}");
    }
}
