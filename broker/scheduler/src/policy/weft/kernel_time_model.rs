// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel-time model: how long a background job's kernels take, learnt while the job is served.
//!
//! Credit is charged from the client's table. Whether a kernel *fits* is decided by a high quantile
//! of its time in its context. The work on the device is estimated by the middle. Both begin with
//! the profile.
//!
//! The device times launches of a job without a profile
//! ([`Decision::Times`](crate::Decision::Times)). Its table follows these times
//! ([`Decision::Charge`](crate::Decision::Charge)), so that the ledger, the delay bound and the
//! device clock count alike:
//!
//! ```text
//! charge of a kernel         = mean of its times, the longest counted as the second longest
//! charge of one without time = delay_bound; once the job is known min(delay_bound, highest charge)
//! ```
//!
//! Until the device has measured a time, the model learns times from watched ends. Later it may
//! not: the gate first looks when the charge is over, so an end would confirm any charge that is
//! too high. A job that waits at the gate watches. Ends that are seen late only give an upper
//! bound.

use std::collections::{HashMap, VecDeque};

use weft_profiles::{
    Profile,
    predictor::{Context, Forecast, History, Predictor, Quality},
};

use weft_protocol::{
    Ns,
    lane::{is_transfer, likely},
};

use super::running_mean::{RobustMean, RunningMean};

/// Limit of awaited launches.
const AWAITED: usize = 256;

/// Measured times after which a job without a profile is known. They include a kernel that is a
/// quarter of its launches at a chance of 0.99.
const KNOWN: u32 = 16;

/// Uncertain times in a row after which one counts that is nearer than the charge of an unknown
/// kernel.
const PATIENT: u32 = 4 * KNOWN;

/// Time in ns after which a client at the gate first asks the device. Later looks see an end at
/// most a quarter late.
const FIRST_LOOK_NS: Ns = 50_000;

/// Limit of launches kept until the device's times arrive, some hundred launches later.
const RECENT: usize = 1_024;

/// A measured time is known if at most `1 / NEAR` of it, or of an unknown kernel's time, is
/// uncertain.
const NEAR: u64 = 8;

/// Inverse tolerance of charges: a client receives a mean that differs by more than `1 / CLOSE`
/// from its charge. GPU time is the sum of charges, so its error is no larger.
const CLOSE: u64 = 16;

/// Limit of kernels with a charge of their own.
const CHARGES: usize = 4_096;

/// Limit of the time between a launch's gate and its timing by the device, ns.
const TIMED_WITHIN_NS: Ns = 10_000_000;

/// Launch whose end was not seen.
#[derive(Debug, Clone, Copy)]
struct AwaitedLaunch {
    kernel: u64,
    context: Context,
    /// Charge, ns.
    cost: Ns,
    at: Ns,
    /// The device's switch to this job before it, ns.
    switch: Ns,
}

/// Measured times of a kernel. One of them may contain work of another process.
#[derive(Debug, Clone, Copy, Default)]
struct Charge {
    times: RobustMean,
    /// Whether each of the times may contain a switch of the device, another job's work, or the
    /// host's.
    rough: bool,
    /// The means of the times' lower and upper bounds, ns.
    least: RunningMean,
    most: RunningMean,
    /// Time that the client charges, ns.
    told: Ns,
}

impl Charge {
    /// Whether to pass over a time that may contain something else than the kernel. The lowest such
    /// times are nearest to its own.
    fn passes_over(&self, time: Ns) -> bool {
        self.is_clean() || (self.rough && (time / 2 > self.mean() || time > self.most()))
    }

    /// Takes in a time, and the least and the most that it may be, ns. `rough`: it may contain
    /// something else than the kernel. Returns whether the client must charge another time.
    fn learn(&mut self, time: Ns, (least, most): Bounds, rough: bool) -> bool {
        // A certain time above the most joins the rough ones: it may contain unreported work.
        let is_certain = !rough && time <= self.most();
        if self.rough && (is_certain || time < self.mean() / 2) {
            (self.times, self.least, self.most) = Default::default();
        }
        self.least.learn(least.min(time) as f64, 0.0);
        self.most.learn(most as f64, 0.0);
        self.rough = rough || (self.rough && !is_certain);
        self.times.learn(time as f64);
        let mean = self.mean();
        let news = mean.abs_diff(self.told) > self.told / CLOSE;
        if news {
            self.told = mean;
        }
        news
    }

    /// The most that a launch takes if the times are rough, ns.
    fn most(&self) -> Ns {
        self.most.mean as Ns
    }

    /// The most that a launch takes less than the mean if the times are rough, ns.
    fn short(&self) -> Ns {
        self.mean().saturating_sub(self.least.mean as Ns)
    }

    /// The mean, at least 1 ns.
    fn mean(&self) -> Ns {
        (self.times.mean() as Ns).max(1)
    }

    /// Whether one of the times is certain to contain nothing but the kernel.
    fn is_clean(&self) -> bool {
        self.times.seen() > 0 && !self.rough
    }
}

/// Launches of one kernel, and the GPU time that they were counted with.
#[derive(Debug, Clone, Copy, Default)]
struct CountedLaunches {
    /// Launches before enough of its times were certain.
    first: u64,
    /// Sum of the later launches' forecasts, ns.
    forecast: Ns,
    /// Launches in no figure but `gpu`.
    new: u64,
    gpu: Ns,
    /// The most that their GPU time exceeds `gpu`, and that it falls short of it, ns.
    more: Ns,
    less: Ns,
}

/// The least and the most that a time may be, ns.
type Bounds = (Ns, Ns);

/// Launches of one kernel to be counted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NewLaunches {
    pub count: u64,
    /// Time of each, ns, less what may be a switch or another job's work in measured times.
    pub time: Ns,
    /// The part of a measured time, ns, that `time` leaves out for that.
    pub short: Ns,
    /// Their GPU time, ns, less what earlier launches were counted with in excess.
    pub gpu: Ns,
}

/// Parts of a measured time without foreground work, and without any other job's work, ns.
type Parts = (Ns, Ns);

/// Circumstances of a seen end.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenEnd {
    pub now: Ns,
    /// Start of the time in which no other job had the device.
    pub undisturbed_since: Ns,
    /// Start of the job's wait at the gate, if it waits.
    pub waits_since: Option<Ns>,
    /// Charge of an unknown kernel, ns.
    pub unknown: Ns,
}

/// Kernel times of one background job.
#[derive(Debug, Clone, Default)]
pub(super) struct KernelTimeModel {
    history: History,
    times: Predictor,
    awaited: VecDeque<AwaitedLaunch>,
    /// Ended credit of the first awaited launch, ns.
    settled_of_first: Ns,
    ended_at: Ns,
    /// The highest charge launched lately, ns.
    longest: Ns,
    /// Decaying sums over launches without a wait: host time between two, and charge of the one
    /// before.
    host: f64,
    work: f64,
    /// Charge and time of the last launch.
    last: Option<(Ns, Ns)>,
    /// Sums of charges and of their squares.
    sum: f64,
    squares: f64,
    /// Times that the device measured.
    measured: u32,
    /// Uncertain ones since the last certain one.
    uncertain: u32,
    profiled: bool,
    /// Charges of a job without a profile: the timed kernels with their charges, the kernels whose
    /// new charge the client has not received, and its charge for other kernels.
    charges: HashMap<u64, Charge>,
    news: Vec<u64>,
    charge_of_unknown: Ns,
    /// The shortest measured times of kernels, ns. Each may contain other jobs' work.
    most: HashMap<u64, Ns>,
    /// The highest of `most`.
    longest_timed: Ns,
    /// The highest of `charges` that the client received, ns.
    highest: Ns,
    /// Launches of a job without a profile, and the sums of their `more` and `less`, ns.
    counted: HashMap<u64, CountedLaunches>,
    more: Ns,
    less: Ns,
    /// Whether launches are timed, and the last launches.
    timed: bool,
    recent: VecDeque<AwaitedLaunch>,
    /// The device's switch to this job before its next launch, ns.
    switch: Ns,
    /// High quantiles of kernels whose times are widely spread.
    may_take: HashMap<u64, Ns>,
}

impl KernelTimeModel {
    pub(super) fn of(profile: &Profile, may_take: Vec<(u64, Ns)>) -> KernelTimeModel {
        let mut model = KernelTimeModel {
            may_take: may_take.into_iter().collect(),
            ..KernelTimeModel::default()
        };
        for kernel in profile.kernels.iter().filter(|kernel| kernel.time.count() > 0) {
            model.times.prime(kernel.hash, &kernel.time);
            model.profiled = true;
        }
        model
    }

    /// Whether the times are known well enough to let the job run ahead.
    pub(super) fn is_known(&self) -> bool {
        self.profiled || self.measured >= KNOWN
    }

    /// Forecast of this kernel, if it is launched next.
    pub(super) fn of_next(&self, kernel: u64) -> Option<Forecast> {
        if is_transfer(kernel) {
            return None;
        }
        let mut history = self.history.clone();
        self.forecast(kernel, &history.push(kernel))
    }

    fn forecast(&self, kernel: u64, context: &Context) -> Option<Forecast> {
        // Without a profile the other kernels give no information about this one.
        let known = self.profiled || self.charges.contains_key(&kernel);
        self.times.forecast(context).filter(|_| known)
    }

    /// Takes in a launch whose GPU time is counted by [`Self::new_launches`]. `time`: its forecast,
    /// ns. False: it is not.
    pub(super) fn counts(&mut self, kernel: u64, time: Option<Ns>) -> bool {
        /// Certain times from which on a forecast counts. The first ones may be too long.
        const FEW: u32 = 3;
        let named = !self.profiled && kernel != 0 && !is_transfer(kernel);
        let counts = named && (self.counted.len() < CHARGES || self.counted.contains_key(&kernel));
        if counts {
            let known = self
                .charges
                .get(&kernel)
                .is_some_and(|it| it.is_clean() && it.times.seen() >= FEW);
            let counted = self.counted.entry(kernel).or_default();
            counted.new += 1;
            match time.filter(|_| known) {
                Some(time) => counted.forecast = counted.forecast.saturating_add(time),
                None => counted.first += 1,
            }
        }
        counts
    }

    /// Launches of this kernel to be counted, once a time of it is known. The first launches count
    /// with the mean of its times; later ones make up for a mean that was too high. With a first
    /// time only the timed launch counts in full, the others up to `bound`, ns, and only as GPU
    /// time. If it may contain more than the kernel, the timed launch counts as the others.
    pub(super) fn new_launches(&mut self, kernel: u64, bound: Ns) -> Option<NewLaunches> {
        /// Launches after which ends give a time: the device cannot time this kernel.
        const UNTIMED: u64 = 16;
        let counted = self.counted.get(&kernel)?;
        let charge = self.charges.get(&kernel).filter(|charge| charge.times.seen() > 0);
        let is_first = charge.is_some_and(|charge| charge.times.seen() == 1);
        let rough = charge.filter(|charge| charge.rough).map(Charge::most);
        let short = rough.map_or(0, |_| charge.map_or(0, Charge::short));
        let time = match charge {
            Some(charge) => charge.mean(),
            None if counted.first < UNTIMED => return None,
            None => self.forecast(kernel, &History::default().push(kernel))?.middle,
        };
        let counted = self.counted.get_mut(&kernel)?;
        // A time below the most that it may be is certain.
        let is_certain = rough.is_none_or(|most| most > time);
        let full = u64::from(is_certain).min(counted.first);
        let all = match is_first {
            true => (time * full).saturating_add(time.min(bound).saturating_mul(counted.first - full)),
            false => time.saturating_mul(counted.first),
        };
        let count = match is_first {
            true if counted.new < counted.first => 0,
            true => full,
            false => counted.new,
        };
        counted.new -= count;
        let gpu = all.saturating_add(counted.forecast).saturating_sub(counted.gpu);
        counted.gpu = counted.gpu.saturating_add(gpu);
        let most = rough.unwrap_or(time).saturating_mul(counted.first);
        let most = most.saturating_add(counted.forecast).saturating_sub(counted.gpu);
        let more = if is_first || rough.is_some() { most } else { 0 };
        self.more = self.more.saturating_sub(counted.more).saturating_add(more);
        counted.more = more;
        let less = short.saturating_mul(counted.first);
        self.less = self.less.saturating_sub(counted.less).saturating_add(less);
        counted.less = less;
        // A kernel counts as long only if it is so without what may be in its times.
        let time = time.saturating_sub(short);
        (count > 0 || gpu > 0).then_some(NewLaunches {
            count,
            time,
            short,
            gpu,
        })
    }

    fn is_timed(&self, kernel: u64) -> bool {
        self.charges.get(&kernel).is_some_and(|charge| charge.times.seen() > 0)
    }

    /// The most that the GPU time of all launches exceeds the counted time, ns: launches of kernels
    /// without a time count with none.
    pub(super) fn uncounted(&self, now: Ns) -> Ns {
        let mut awaited = self.awaited.iter();
        let waited = awaited.find(|launch| self.counted.contains_key(&launch.kernel) && !self.is_timed(launch.kernel));
        let waited = waited.map_or(0, |launch| now.saturating_sub(launch.at.max(self.ended_at)));
        self.more.saturating_add(waited)
    }

    /// The most that the counted GPU time exceeds the real one, ns: switches and other jobs' work
    /// may be in it.
    pub(super) fn overcounted(&self) -> Ns {
        self.less
    }

    /// The most that a launch of this kernel takes, ns: `long`, its long estimate, if one of its
    /// times is certain.
    pub(super) fn price(&self, kernel: u64, long: Ns) -> Ns {
        match self.charges.get(&kernel).is_some_and(Charge::is_clean) {
            true => long,
            false => self.most.get(&kernel).map_or(long, |most| long.max(*most)),
        }
    }

    /// The most that a kernel takes by its times, ns; 0 without any.
    pub(super) fn longest_timed(&self) -> Ns {
        self.longest_timed
    }

    fn takes_at_most(&mut self, kernel: u64, most: Ns) {
        let before = self.most.get(&kernel);
        let has_room = before.is_some() || self.most.len() < CHARGES;
        if has_room && before.is_none_or(|before| most < *before) {
            self.most.insert(kernel, most);
            self.longest_timed = self.most.values().copied().max().unwrap_or(0);
        }
    }

    /// High quantile of a kernel whose times are widely spread, ns, else 0.
    pub(super) fn may_take(&self, kernel: u64) -> Ns {
        self.may_take.get(&kernel).copied().unwrap_or(0)
    }

    /// The longest recent charge, ns.
    pub(super) fn longest(&self) -> Ns {
        self.longest
    }

    /// Work, in ns, that the job may launch with at most `depth` queued on the device. Unlimited if
    /// the job launches more slowly than the device works.
    pub(super) fn spread(&self, depth: Ns) -> Ns {
        if self.work <= self.host {
            return if self.host > 0.0 { Ns::MAX } else { depth };
        }
        (depth as f64 / (1.0 - self.host / self.work)) as Ns
    }

    /// Expected length of a kernel found in progress: `sum(cost^2) / sum(cost)`, ns.
    pub(super) fn in_progress(&self) -> Ns {
        if self.sum > 0.0 {
            (self.squares / self.sum) as Ns
        } else {
            0
        }
    }

    /// Takes in the time of the device's switch to this job before its next launch, ns.
    pub(super) fn follows_switch(&mut self, switch: Ns) {
        self.switch = switch;
    }

    /// Takes in a launch. `waited`: it waited at the gate.
    pub(super) fn launched(&mut self, kernel: u64, cost: Ns, at: Ns, waited: bool) {
        /// Part of the sums that remains at each launch.
        const STAYS: f64 = 1.0 - 1.0 / 64.0;
        /// Pause, in ns, after which the thread did something else.
        const PAUSE_NS: Ns = 2_000_000;
        if let Some((before, when)) = self.last.filter(|(_, when)| !waited && at - when.min(&at) < PAUSE_NS) {
            self.host = self.host * STAYS + at.saturating_sub(when) as f64;
            self.work = self.work * STAYS + before as f64;
        }
        self.last = Some((cost, at));
        let context = if is_transfer(kernel) {
            self.history.context()
        } else {
            self.history.push(kernel)
        };
        /// Part of the sums that remains at each launch.
        const REMAINS: f64 = 1.0 - 1.0 / 512.0;
        self.sum = self.sum * REMAINS + cost as f64;
        self.squares = self.squares * REMAINS + cost as f64 * cost as f64;
        self.longest = cost.max(self.longest - self.longest / 256);
        if self.awaited.len() >= AWAITED {
            self.awaited.pop_front();
            self.settled_of_first = 0;
        }
        let launch = AwaitedLaunch {
            kernel,
            context,
            cost,
            at,
            switch: std::mem::take(&mut self.switch),
        };
        if self.timed {
            if self.recent.len() >= RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(launch);
        }
        self.awaited.push_back(launch);
    }

    /// Takes in ended credit. Returns the kernel whose time it revealed.
    pub(super) fn ended(&mut self, settled: Ns, end: &SeenEnd) -> Option<u64> {
        let now = end.now;
        self.settled_of_first = self.settled_of_first.saturating_add(settled);
        let (mut ended, mut untimed) = (0, None);
        let mut last = None;
        while let Some(first) = self.awaited.front().copied() {
            if self.settled_of_first < first.cost {
                break;
            }
            self.settled_of_first -= first.cost;
            self.awaited.pop_front();
            ended += 1;
            last = Some(first);
            if !self.is_timed(first.kernel) {
                untimed = Some(first.kernel);
            }
        }
        if self.awaited.is_empty() {
            self.settled_of_first = 0;
        }
        let began = last.map_or(now, |launch| launch.at.max(self.ended_at));
        if ended == 0 {
            return None;
        }
        self.ended_at = now;
        if let Some(counted) = untimed.and_then(|kernel| self.counted.get_mut(&kernel)) {
            let most = now.saturating_sub(began);
            counted.more = counted.more.saturating_add(most);
            self.more = self.more.saturating_add(most);
        }
        // Ends are seen a little late at best, so a profile is better.
        let launch = last.filter(|_| !self.profiled && self.measured == 0)?;
        let took = now.saturating_sub(began);
        // Several ends seen together reveal no single time.
        if ended > 1 {
            return None;
        }
        if is_watched(began, now, end.waits_since) && began >= end.undisturbed_since {
            self.times.learn(&launch.context, took);
            if self.charges.len() < CHARGES {
                self.charges.entry(launch.kernel).or_default();
            }
        } else {
            self.bounded(&launch, (0, took), end.unknown);
        }
        Some(launch.kernel)
    }

    /// Whether launches are to be timed from now on. True only once.
    pub(super) fn begins_to_be_timed(&mut self) -> bool {
        let begins = !self.timed && !self.profiled;
        self.timed |= begins;
        begins
    }

    /// Stops the timing of launches. Returns whether they were timed.
    pub(super) fn ends_to_be_timed(&mut self) -> bool {
        self.recent.clear();
        std::mem::take(&mut self.timed)
    }

    /// Takes in a measured time of a kernel launched at `at`.
    pub(super) fn measured(&mut self, kernel: u64, time: Ns, at: Ns, (alone, undisturbed): Parts, unknown: Ns) {
        self.takes_at_most(kernel, time);
        let launch = self.timed_launch(kernel, at);
        let (alone, undisturbed) = (alone.min(time), undisturbed.min(time));
        // The first event may be reached before the switch: a kernel of 2 us then seems to take
        // 102. Such a time counts until there is one without a switch: none would be worse.
        let is_rough = launch.switch.max(time - undisturbed) > time / NEAR;
        let least = undisturbed.saturating_sub(launch.switch);
        let charge = self.charges.get(&kernel);
        let is_passed = charge.is_some_and(|it| it.passes_over(time));
        // No kernel takes longer than its measured time, so a rough charge above it is wrong.
        let lowers = charge.is_some_and(|it| it.rough && time < it.mean());
        let passed_over = is_rough && is_passed;
        let is_certain = time - alone <= unknown.max(time) / NEAR;
        self.uncertain = if is_certain {
            0
        } else {
            self.uncertain.saturating_add(1)
        };
        // Next to a foreground job that is always busy no time is certain. One within the charge
        // of an unknown kernel is at least nearer.
        let is_nearer = self.uncertain > PATIENT && time <= unknown && !is_passed;
        if self.profiled || (is_certain && !passed_over) || is_nearer || lowers {
            self.charged(kernel, time, (least, time), is_rough || !is_certain);
            self.times.learn(&launch.context, time);
        } else {
            self.measured = self.measured.saturating_add(u32::from(passed_over));
            self.bounded(&launch, (least, time), unknown);
        }
    }

    /// Takes in the least and the most that a kernel launched at `at` took. The likely time counts
    /// until there is a certain one.
    pub(super) fn took_between(&mut self, kernel: u64, (least, most): Bounds, at: Ns, unknown: Ns) {
        self.takes_at_most(kernel, most);
        let launch = self.timed_launch(kernel, at);
        let time = likely(least, most);
        if self.profiled || self.charges.get(&kernel).is_some_and(|it| it.passes_over(time)) {
            self.measured = self.measured.saturating_add(1);
            self.bounded(&launch, (least, most), unknown);
        } else {
            self.charged(kernel, time, (least, most), true);
            self.times.learn(&launch.context, time);
        }
    }

    /// The launch that was timed. Only the last launches' contexts are known. Other times count
    /// only for the kernel.
    fn timed_launch(&self, kernel: u64, at: Ns) -> AwaitedLaunch {
        let is_it =
            |launch: &&AwaitedLaunch| launch.kernel == kernel && launch.at <= at && at - launch.at < TIMED_WITHIN_NS;
        let found = self.recent.iter().rev().find(is_it).copied();
        found.unwrap_or_else(|| AwaitedLaunch {
            kernel,
            context: History::default().push(kernel),
            cost: 0,
            at,
            switch: 0,
        })
    }

    fn charged(&mut self, kernel: u64, time: Ns, bounds: Bounds, rough: bool) {
        // A launch without a name gives no information about others without a name.
        if self.profiled || kernel == 0 || is_transfer(kernel) {
            return;
        }
        if self.measured == 0 {
            // These were learnt from seen ends.
            self.times = Predictor::default();
            self.charges.clear();
        }
        self.measured = self.measured.saturating_add(1);
        if self.charges.len() < CHARGES || self.charges.contains_key(&kernel) {
            let news = self.charges.entry(kernel).or_default().learn(time, bounds, rough);
            if news {
                self.highest = self.charges.values().map(|charge| charge.told).max().unwrap_or(0);
                if !self.news.contains(&kernel) {
                    self.news.push(kernel);
                }
            }
        }
    }

    /// A kernel, and the time in ns that the client is to charge for it from now on, if the time is
    /// new. Kernel 0: kernels without a time. `unknown`: the most for these, ns.
    pub(super) fn next_charge(&mut self, unknown: Ns) -> Option<(u64, Ns)> {
        if self.profiled {
            return None;
        }
        let told = |kernel| Some((kernel, self.charges.get(&kernel)?.told));
        if let Some(news) = self.news.pop().and_then(told) {
            return Some(news);
        }
        let charge = match self.is_known() {
            true => self.highest.min(unknown),
            false => unknown,
        };
        (std::mem::replace(&mut self.charge_of_unknown, charge) != charge).then_some((0, charge))
    }

    /// Takes in bounds of a launch's time, which correct a forecast that is outside of them.
    fn bounded(&mut self, launch: &AwaitedLaunch, (least, most): Bounds, unknown: Ns) {
        // Without a time of the device the client charges `unknown` at most, whatever the forecast.
        let is_charged = least <= unknown || self.is_timed(launch.kernel);
        if is_charged && self.forecast(launch.kernel, &launch.context).is_some() {
            self.times.at_least(&launch.context, least);
            self.times.at_most(&launch.context, most);
        } else if least > unknown {
            self.charged(launch.kernel, least, (least, most), true);
            self.times.learn(&launch.context, least);
        }
    }

    /// Forgets the awaited launches, whose ends will not be reported.
    pub(super) fn forget(&mut self) {
        self.last = None;
        self.awaited.clear();
        self.settled_of_first = 0;
    }

    pub(super) fn quality(&self) -> (Quality, usize) {
        (self.times.quality(), self.times.contexts())
    }
}

/// Whether an end of work from `began` to `now` was watched: the job waited at the gate from the
/// beginning, or for long enough that it had asked the device in vain before.
fn is_watched(began: Ns, now: Ns, waits_since: Option<Ns>) -> bool {
    let Some(since) = waits_since else { return false };
    let (unwatched, took) = (since.saturating_sub(began), now.saturating_sub(began));
    let watched = took.saturating_sub(unwatched);
    unwatched <= FIRST_LOOK_NS || (watched >= unwatched && watched >= 2 * FIRST_LOOK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MS, US};

    const UNKNOWN_NS: Ns = 500 * US;

    fn ended(model: &mut KernelTimeModel, settled: Ns, now: Ns, undisturbed_since: Ns, waits_since: Option<Ns>) {
        let end = SeenEnd {
            now,
            undisturbed_since,
            waits_since,
            unknown: UNKNOWN_NS,
        };
        model.ended(settled, &end);
    }

    /// All charges that are new for the client.
    fn news(model: &mut KernelTimeModel) -> Vec<(u64, Ns)> {
        std::iter::from_fn(|| model.next_charge(UNKNOWN_NS)).collect()
    }

    #[test]
    fn launches_count_as_gpu_time_once_their_kernels_time_is_known() {
        let mut model = KernelTimeModel::default();
        model.begins_to_be_timed();
        assert!(!model.counts(0, None), "it has no name, so it is never timed");
        for _ in 0..3 {
            assert!(model.counts(5, None) && model.counts(6, None));
            model.launched(5, UNKNOWN_NS, 0, true);
        }
        assert_eq!(model.new_launches(5, UNKNOWN_NS), None);
        model.measured(5, 40 * US, 0, (40 * US, 40 * US), UNKNOWN_NS);
        let wanted = |count, gpu| NewLaunches {
            count,
            time: 40 * US,
            short: 0,
            gpu,
        };
        assert_eq!(model.new_launches(5, UNKNOWN_NS), Some(wanted(1, 120 * US)));
        assert_eq!(model.new_launches(5, UNKNOWN_NS), None);
        model.measured(5, 40 * US, 0, (40 * US, 40 * US), UNKNOWN_NS);
        assert_eq!(model.new_launches(5, UNKNOWN_NS), Some(wanted(2, 0)));
        assert_eq!(model.new_launches(5, UNKNOWN_NS), None);
        assert_eq!(model.new_launches(6, UNKNOWN_NS), None);
    }

    #[test]
    fn a_time_with_another_processs_work_changes_the_gpu_time_only_until_the_next() {
        const REAL_NS: Ns = 100 * US;
        for (at_first, later) in [(3 * MS, REAL_NS), (REAL_NS, 3 * MS)] {
            let mut model = KernelTimeModel::default();
            model.begins_to_be_timed();
            let (mut gpu, mut over_bound) = (0, 0);
            for turn in 0..400 {
                let time = model.of_next(5).map(|forecast| forecast.middle);
                model.counts(5, time);
                model.launched(5, UNKNOWN_NS, turn * MS, true);
                if turn % 20 == 9 {
                    let time = match turn {
                        9 => at_first,
                        209 => later,
                        _ => REAL_NS,
                    };
                    model.measured(5, time, turn * MS, (time, time), UNKNOWN_NS);
                }
                if let Some(new) = model.new_launches(5, UNKNOWN_NS) {
                    gpu += new.gpu;
                    over_bound += if new.time > UNKNOWN_NS { new.count } else { 0 };
                }
            }
            assert!(gpu.abs_diff(400 * REAL_NS) < 10 * REAL_NS, "{gpu}");
            assert!(over_bound <= 1, "{over_bound}");
        }
    }

    #[test]
    fn of_times_that_may_contain_other_jobs_work_the_lower_ones_count() {
        const REAL_NS: Ns = 400 * US;
        let mut model = KernelTimeModel::default();
        model.begins_to_be_timed();
        let mut gpu = 0;
        for turn in 0..60 {
            model.counts(5, model.of_next(5).map(|forecast| forecast.middle));
            model.launched(5, UNKNOWN_NS, turn * 5 * MS, true);
            // Another background job's kernels are in four of five times.
            let time = if turn % 5 == 3 { REAL_NS + 20 * US } else { 3 * REAL_NS };
            model.measured(5, time, turn * 5 * MS, (time, 20 * US), UNKNOWN_NS);
            let new = model.new_launches(5, UNKNOWN_NS);
            assert!(turn > 0 || new.is_some_and(|new| new.count == 0 && new.gpu == UNKNOWN_NS));
            assert!(turn > 0 || model.uncounted(0) == time - UNKNOWN_NS);
            gpu += new.map_or(0, |new| new.gpu);
        }
        let charge = news(&mut model).into_iter().find(|(kernel, _)| *kernel == 5);
        assert_eq!(charge, Some((5, REAL_NS + 20 * US)));
        assert!(gpu.abs_diff(60 * (REAL_NS + 20 * US)) < 2 * REAL_NS, "{gpu}");
        // If the foreground job ran, too, only bounds of a long kernel are known.
        model.counts(6, None);
        model.measured(6, 9 * MS, 290 * MS, (2 * MS, 2 * MS), UNKNOWN_NS);
        let new = model.new_launches(6, UNKNOWN_NS).expect("it is longer than the bound");
        assert_eq!(
            (new.count, new.time, new.gpu, model.uncounted(0)),
            (1, 2 * MS, 2 * MS, 7 * MS)
        );
        // A time that contains no other work is the kernel's.
        model.measured(5, REAL_NS, 300 * MS, (REAL_NS, REAL_NS), UNKNOWN_NS);
        assert!(model.charges[&5].is_clean() && model.charges[&5].mean() == REAL_NS);
    }

    #[test]
    fn the_gpu_time_of_launches_without_a_time_is_at_most_what_passed_until_their_ends() {
        let mut model = KernelTimeModel::default();
        model.begins_to_be_timed();
        model.counts(5, None);
        model.launched(5, UNKNOWN_NS, 0, true);
        assert_eq!(model.uncounted(4 * MS), 4 * MS);
        ended(&mut model, UNKNOWN_NS, 6 * MS, 0, None);
        assert_eq!(
            (model.new_launches(5, UNKNOWN_NS), model.uncounted(9 * MS)),
            (None, 6 * MS)
        );
        model.measured(5, 5 * MS, 0, (5 * MS, 5 * MS), UNKNOWN_NS);
        let new = model.new_launches(5, UNKNOWN_NS).expect("it has a time");
        assert_eq!((new.count, new.gpu, model.uncounted(9 * MS)), (1, 5 * MS, 0));
    }

    #[test]
    fn a_job_without_a_profile_is_charged_the_bound_and_then_what_the_device_measured() {
        let mut model = KernelTimeModel::default();
        assert!(model.begins_to_be_timed() && !model.begins_to_be_timed());
        assert_eq!(news(&mut model), [(0, UNKNOWN_NS)]);
        let mut told = HashMap::new();
        let mut now = 0;
        for turn in 0..u64::from(KNOWN) {
            assert!(!model.is_known());
            let (kernel, time) = if turn % 4 == 0 { (6, 400 * US) } else { (5, 40 * US) };
            model.launched(kernel, UNKNOWN_NS, now, true);
            model.measured(kernel, time, now, (time, time), UNKNOWN_NS);
            told.extend(news(&mut model));
            now += MS;
        }
        assert!(model.is_known());
        let wanted = [(0, 400 * US), (5, 40 * US), (6, 400 * US)];
        assert_eq!(
            told,
            HashMap::from(wanted),
            "another kernel may take what the longest takes"
        );
        // Small differences are not reported, and a kernel beyond the bound is charged in full.
        model.measured(5, 42 * US, now, (42 * US, 42 * US), UNKNOWN_NS);
        assert_eq!(news(&mut model), []);
        model.measured(7, 4 * MS, now, (4 * MS, 4 * MS), UNKNOWN_NS);
        assert_eq!(news(&mut model), [(7, 4 * MS), (0, UNKNOWN_NS)]);
        assert!(model.of_next(8).is_none(), "others tell nothing of it");
    }

    #[test]
    fn the_devices_switch_to_the_job_is_no_time_of_its_kernel() {
        const SWITCH_NS: Ns = 100 * US;
        let mut model = KernelTimeModel::default();
        model.begins_to_be_timed();
        let mut charge = 0;
        for turn in 0..64 {
            let now = turn * MS;
            let switch = if turn % 2 == 0 { SWITCH_NS } else { 0 };
            model.follows_switch(switch);
            model.launched(5, UNKNOWN_NS, now, true);
            model.measured(5, 2 * US + switch, now, (2 * US + switch, 2 * US + switch), UNKNOWN_NS);
            let told = news(&mut model).into_iter().find(|(kernel, _)| *kernel == 5);
            charge = told.map_or(charge, |(_, ns)| ns);
        }
        assert!(charge < 6 * US && model.is_known(), "{charge}");
        // A kernel that is longer than the switch has no other times, if each gap has one.
        model.follows_switch(SWITCH_NS);
        model.launched(6, UNKNOWN_NS, 70 * MS, true);
        model.measured(6, 500 * US, 70 * MS, (500 * US, 500 * US), UNKNOWN_NS);
        assert!(news(&mut model).contains(&(6, 500 * US)));
        // The switch may be in its time: that is a bound of its GPU time.
        for _ in 0..3 {
            model.counts(6, None);
        }
        model.measured(6, 500 * US, 71 * MS, (500 * US, 500 * US), UNKNOWN_NS);
        assert_eq!(model.overcounted(), 0, "no launch is counted yet");
        let new = model.new_launches(6, UNKNOWN_NS).expect("it has times");
        assert_eq!((new.gpu, model.overcounted()), (1_500 * US, 3 * SWITCH_NS));
    }

    #[test]
    fn of_kernels_shorter_than_the_hosts_records_the_middle_of_the_bounds_counts() {
        let mut model = KernelTimeModel::default();
        model.begins_to_be_timed();
        let charge = |model: &mut KernelTimeModel| news(model).into_iter().find(|it| it.0 == 5).map(|it| it.1);
        for turn in 0..u64::from(KNOWN) {
            model.counts(5, model.of_next(5).map(|forecast| forecast.middle));
            model.launched(5, UNKNOWN_NS, turn * MS, true);
            // Now and then the thread has no core.
            let bounds = if turn % 4 == 0 { (0, 60 * US) } else { (0, 10 * US) };
            model.took_between(5, bounds, turn * MS, UNKNOWN_NS);
            model.new_launches(5, UNKNOWN_NS);
        }
        assert_eq!(charge(&mut model), Some(5 * US));
        assert!(model.is_known());
        // All launches are as uncertain.
        assert_eq!(model.uncounted(0), u64::from(KNOWN) * 5 * US);
        // A certain time above the most is no better than they are.
        model.measured(5, 200 * US, 19 * MS, (200 * US, 200 * US), UNKNOWN_NS);
        assert_eq!(charge(&mut model), None);
        // One below it is better than later bounds.
        model.measured(5, 8 * US, 20 * MS, (8 * US, 8 * US), UNKNOWN_NS);
        assert_eq!(charge(&mut model), Some(8 * US));
        model.took_between(5, (0, 10 * US), 21 * MS, UNKNOWN_NS);
        assert_eq!(charge(&mut model), None);
    }

    #[test]
    fn a_kernel_that_takes_longer_from_now_on_is_charged_so() {
        let mut model = KernelTimeModel::default();
        (0..100).for_each(|_| model.measured(5, 40 * US, 0, (40 * US, 40 * US), UNKNOWN_NS));
        news(&mut model);
        let mut charge = 0;
        for _ in 0..300 {
            model.measured(5, 80 * US, 0, (80 * US, 80 * US), UNKNOWN_NS);
            charge = news(&mut model)
                .into_iter()
                .find(|(kernel, _)| *kernel == 5)
                .map_or(charge, |(_, ns)| ns);
        }
        assert!((70 * US..=80 * US).contains(&charge), "{charge}");
    }

    #[test]
    fn ends_teach_nothing_once_the_device_has_measured() {
        let mut model = KernelTimeModel::default();
        let mut now = 0;
        let mut charge = UNKNOWN_NS;
        // The gate looks when the charge is over, so an end seems to come then.
        for turn in 0..200 {
            model.launched(5, charge, now, true);
            ended(&mut model, charge, now + charge + 10 * US, 0, Some(now));
            if turn >= 20 {
                model.measured(5, 200 * US, now, (200 * US, 200 * US), UNKNOWN_NS);
            }
            charge = news(&mut model)
                .into_iter()
                .find(|(kernel, _)| *kernel == 5)
                .map_or(charge, |(_, ns)| ns);
            now += 2 * MS;
        }
        assert_eq!(charge, 200 * US);
        let forecast = model.of_next(5).expect("measured");
        assert!(
            forecast.middle.abs_diff(200 * US) < 5 * US && forecast.high < 250 * US,
            "{forecast:?}"
        );
    }

    #[test]
    fn of_a_job_whose_launches_cannot_be_timed_a_long_kernel_is_known_by_its_end() {
        let mut model = KernelTimeModel::default();
        let mut now = 0;
        for _ in 0..40 {
            model.launched(5, UNKNOWN_NS, now, true);
            ended(&mut model, UNKNOWN_NS, now + 4 * MS, 0, Some(now));
            now += 5 * MS;
        }
        assert!(!model.is_known() && model.of_next(5).expect("seen").middle > 3 * MS);
        assert_eq!(news(&mut model), [(0, UNKNOWN_NS)], "each kernel is charged the bound");
        // An unwatched end teaches nothing.
        let mut model = KernelTimeModel::default();
        model.launched(5, UNKNOWN_NS, now, true);
        ended(&mut model, UNKNOWN_NS, now + MS, 0, None);
        assert!(model.of_next(5).is_none());
    }

    #[test]
    fn a_long_kernel_that_only_ends_revealed_is_charged_from_its_first_bound_on() {
        let mut model = KernelTimeModel::default();
        model.launched(5, UNKNOWN_NS, 10 * MS, true);
        ended(&mut model, UNKNOWN_NS, 30 * MS, 0, Some(10 * MS));
        assert!(model.of_next(5).is_some());
        news(&mut model);
        // A quarter of its time was the foreground job's, so the time is not certain.
        model.launched(5, UNKNOWN_NS, 40 * MS, true);
        model.measured(5, 20 * MS, 40 * MS, (15 * MS, 15 * MS), UNKNOWN_NS);
        assert_eq!(news(&mut model), [(5, 15 * MS)]);
    }

    #[test]
    fn an_end_that_is_seen_late_corrects_what_is_believed_to_be_longer() {
        let mut model = KernelTimeModel::default();
        let mut now = 0;
        for _ in 0..12 {
            model.launched(5, 20 * US, now, true);
            ended(&mut model, 20 * US, now + 4 * MS, 0, Some(now));
            now += 5 * MS;
        }
        assert!(model.of_next(5).expect("seen").middle > 3 * MS);
        for _ in 0..40 {
            model.launched(5, 20 * US, now, true);
            ended(&mut model, 20 * US, now + 300 * US, 0, None);
            now += MS;
        }
        let middle = model.of_next(5).expect("seen").middle;
        assert!((250 * US..700 * US).contains(&middle), "{middle}");
    }

    #[test]
    fn a_time_that_holds_the_foreground_jobs_work_is_a_bound_and_no_more() {
        let mut model = KernelTimeModel::default();
        let mut now = MS;
        for turn in 0..60 {
            model.launched(5, 20 * US, now, true);
            model.measured(5, 100 * US, now, (100 * US, 100 * US), UNKNOWN_NS);
            model.launched(5, 20 * US, now + MS, true);
            model.measured(
                5,
                2 * MS,
                now + MS,
                if turn < 20 {
                    (3 * US, 3 * US)
                } else {
                    (900 * US, 900 * US)
                },
                UNKNOWN_NS,
            );
            if turn == 19 {
                let middle = model.of_next(5).expect("measured").middle;
                assert!(middle.abs_diff(100 * US) < 10 * US, "{middle}");
            }
            now += 5 * MS;
        }
        let middle = model.of_next(5).expect("measured").middle;
        assert!(
            middle > 150 * US,
            "it was at work for 900 us when the foreground job came: {middle}"
        );
    }

    #[test]
    fn who_waits_while_it_ends_sees_the_end() {
        assert!(!is_watched(0, 1_200 * US, None));
        assert!(is_watched(0, 1_200 * US, Some(10 * US)));
        assert!(is_watched(0, 1_200 * US, Some(400 * US)), "it was asked in vain before");
        assert!(
            !is_watched(0, 1_200 * US, Some(1_130 * US)),
            "it had ended when it was asked first"
        );
        assert!(
            is_watched(MS, MS + 20 * US, Some(MS - 5 * US)),
            "it waited before that began"
        );
    }

    #[test]
    fn what_ended_together_or_beside_others_teaches_nothing() {
        let mut model = KernelTimeModel::default();
        model.launched(1, 20 * US, 0, true);
        model.launched(2, 20 * US, 0, true);
        ended(&mut model, 40 * US, 900 * US, 0, Some(0));
        assert_eq!(model.quality().1, 0);
        model.launched(1, 20 * US, 1_000 * US, true);
        ended(&mut model, 20 * US, 9_000 * US, 2_000 * US, Some(1_000 * US));
        assert_eq!(model.quality().1, 0, "somebody else ran until 2 ms");
        model.launched(1, 20 * US, 9_100 * US, true);
        ended(&mut model, 10 * US, 9_200 * US, 2_000 * US, Some(9_100 * US));
        ended(&mut model, 10 * US, 9_300 * US, 2_000 * US, Some(9_100 * US));
        assert!(model.quality().1 > 0, "in two parts");
    }

    #[test]
    fn a_job_that_launches_slowly_queues_nothing_up() {
        let mut model = KernelTimeModel::default();
        assert_eq!(model.spread(50 * US), 50 * US, "nothing is known");
        for step in 0..100 {
            model.launched(1, 5 * US, step * 40 * US, false);
        }
        assert_eq!(model.spread(50 * US), Ns::MAX);
        // A wait at the gate is not host time.
        for step in 100..400 {
            model.launched(1, 100 * US, step * 150 * US, true);
            model.launched(1, 100 * US, step * 150 * US + 10 * US, false);
        }
        let spread = model.spread(90 * US);
        assert!((95 * US..110 * US).contains(&spread), "{spread}");
    }

    #[test]
    fn ceiling_of_what_is_awaited() {
        let mut model = KernelTimeModel::default();
        for at in 0..10_000 {
            model.launched(at, Ns::MAX / 2, at, true);
        }
        assert!(model.awaited.len() <= AWAITED && model.recent.is_empty());
        model.timed = true;
        (0..10_000).for_each(|at| model.launched(at, 1, at, true));
        assert!(model.recent.len() <= RECENT);
        ended(&mut model, Ns::MAX, 1, 0, None);
        ended(&mut model, Ns::MAX, 1, 0, None);
    }
}
