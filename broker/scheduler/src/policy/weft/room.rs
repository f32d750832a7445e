// SPDX-License-Identifier: MIT OR Apache-2.0
//! Room: the time for which background jobs may use the device, and their work that is still to
//! run.

use weft_protocol::Ns;

use super::models::{JobModels, Models};
use crate::{
    client::{ClientState, KernelAtGate},
    config::Config,
    queue::ClientSlot,
    state::SchedulerState,
};

/// Highest chance of a return, if the gap is unknown or a wake-up hint came shortly before.
const UNKNOWN_RISK: f64 = 0.5;

/// Foreground launches that credit outlives in an open period. Hardly any stretch has more.
const OPEN_LAUNCHES: u64 = 16_384;

/// Room in an open period, as a multiple of the delay bound: 8 ms at 500 us.
const OPEN_ROOM_RATIO: u64 = 16;

/// Highest chance of a return within a long kernel in a gap of known length.
const LONG_RISK: f64 = 0.1;

/// Room for background kernels, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GapRoom {
    /// Room of kernels below `long_from`.
    pub usual: Ns,
    /// Room of the others, at most `usual`.
    pub long: Ns,
    /// Time from which a kernel is long, ns. `Ns::MAX`: none is.
    pub long_from: Ns,
}

impl GapRoom {
    /// Room of a kernel of `time` ns.
    pub(super) fn of(&self, time: Ns) -> Ns {
        match time >= self.long_from {
            true => self.long,
            false => self.usual,
        }
    }
}

/// The state and the models at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct PolicyView<'a> {
    pub state: &'a SchedulerState,
    pub models: &'a Models,
    pub now: Ns,
}

impl<'a> PolicyView<'a> {
    pub(super) fn job(&self, slot: ClientSlot) -> Option<(&'a ClientState, &'a JobModels)> {
        Some((self.state.get(slot)?, self.models.job(slot)?))
    }

    fn foreground(&self) -> impl Iterator<Item = (&'a ClientState, &'a JobModels)> {
        let models = self.models;
        let clients = self.state.foreground();
        clients.filter_map(|(slot, client)| Some((client, models.job(slot)?)))
    }

    /// Room of background jobs from `at` on, ns, at this chance of keeping a foreground job
    /// waiting; the least of all foreground jobs. Error: a foreground job is busy at least until
    /// then.
    pub(super) fn room(&self, at: Ns, chance: f64) -> Result<Ns, Ns> {
        let mut room = Ns::MAX;
        for (client, job) in self.foreground() {
            room = room.min(self.room_of(client, job, at, chance)?);
        }
        Ok(room)
    }

    /// Room of background jobs from now on, ns; the least of all foreground jobs.
    pub(super) fn opening(&self) -> Result<GapRoom, Ns> {
        let mut room = GapRoom {
            usual: Ns::MAX,
            long: Ns::MAX,
            long_from: Ns::MAX,
        };
        for (client, job) in self.foreground() {
            let of = self.opening_of(client, job)?;
            room = GapRoom {
                usual: room.usual.min(of.usual),
                long: room.long.min(of.long),
                long_from: room.long_from.min(of.long_from),
            };
        }
        Ok(room)
    }

    /// Time, ns, from which a kernel that meets a foreground job's return delays its request by far
    /// more than its slowdown. `Ns::MAX`: the length of its gaps is not known.
    fn long_from(&self, client: &ClientState, job: &JobModels) -> Ns {
        match self.state.config.switch_cost == 0 && job.gaps.is_steady() {
            true => job.account.far(client.budget.allowed(&self.state.config).0),
            false => Ns::MAX,
        }
    }

    /// Whether all foreground jobs are in gaps that have just begun, or that end after `long` ns as
    /// likely as not.
    pub(super) fn begins_gap(&self, long: Ns) -> bool {
        /// An even chance.
        const EVEN: f64 = 0.5;
        self.foreground().all(|(client, job)| {
            let Ok(room) = self.left_by(client, job, self.now, EVEN) else {
                return false;
            };
            let whole = job.gaps.expects().map_or(0, |(_, middle)| middle);
            room >= long || (whole > self.state.config.delay_bound && room >= whole - whole / 4)
        })
    }

    /// The larger of two times: the laxity of the stretch up to the next wait, and the room in the
    /// gap. A known gap is longer by the idle time of the stretch behind it: by that time a return
    /// may wait unnoticed, unless the device must switch back.
    fn opening_of(&self, client: &ClientState, job: &JobModels) -> Result<GapRoom, Ns> {
        let laxity = self.laxity_of(client, job);
        let to_come = self.idle_to_come(client, job);
        let room = |most: f64| match self.gap_opening(client, job, most) {
            Ok(0) => Ok(laxity),
            Ok(room) => Ok(room.saturating_add(to_come).max(laxity)),
            Err(_) if laxity > 0 => Ok(laxity),
            busy => busy,
        };
        let usual = room(1.0)?;
        let long_from = self.long_from(client, job);
        let long = match long_from {
            Ns::MAX => usual,
            _ => room(LONG_RISK)?,
        };
        Ok(GapRoom { usual, long, long_from })
    }

    /// Time, ns, by which a return from a known gap may wait unnoticed: the idle time of the
    /// stretch behind it. 0 in gaps within the delay bound: there the account paid for more
    /// lateness than the work was worth. 0 without a profile, whose kernel times the idle time
    /// rests on, and if the device must switch back.
    fn idle_to_come(&self, client: &ClientState, job: &JobModels) -> Ns {
        let Config {
            switch_cost,
            delay_bound,
            ..
        } = self.state.config;
        let long = job.gaps.expects().is_some_and(|(_, middle)| middle > delay_bound);
        let known = !client.times.is_empty() && job.gaps.is_steady();
        match switch_cost == 0 && long && known && job.account.may_be_lax() {
            true => job.stretch.idle_to_come(),
            false => 0,
        }
    }

    /// `E - R - now` of one foreground job, ns ([`StretchModel`](super::stretch_model)), plus the
    /// extension that its account allows.
    fn laxity_of(&self, client: &ClientState, job: &JobModels) -> Ns {
        if job.account.is_open(self.now) {
            return self.open_room();
        }
        let Some(deadline) = job.stretch.deadline() else {
            return 0;
        };
        if !job.account.may_be_lax() {
            return 0;
        }
        let all = self.models.all_until.saturating_sub(self.now);
        // Callers count background work themselves.
        let ours = self.models.device.running(self.now);
        deadline
            .saturating_add(self.extension(client, job))
            .saturating_sub(self.now)
            .saturating_sub(all.saturating_sub(ours))
    }

    /// The least laxity of all foreground jobs, ns.
    pub(super) fn laxity(&self) -> Ns {
        let laxities = self.foreground().map(|(client, job)| self.laxity_of(client, job));
        laxities.min().unwrap_or(0)
    }

    /// Foreground launches that credit outlives: those to come before a wait. 0 without laxity.
    pub(super) fn launches_to_come(&self) -> u64 {
        if self.laxity() == 0 {
            return 0;
        }
        let launches = self.foreground().map(|(_, job)| match job.account.is_open(self.now) {
            true => OPEN_LAUNCHES,
            false => job.stretch.launches_to_come(),
        });
        launches.min().unwrap_or(0)
    }

    /// Whether background jobs now run next to all foreground jobs without restriction.
    pub(super) fn is_open(&self) -> bool {
        let mut foreground = self.foreground().peekable();
        foreground.peek().is_some() && foreground.all(|(_, job)| job.account.is_open(self.now))
    }

    /// Room in an open period, ns: more than the time until the next look at it.
    fn open_room(&self) -> Ns {
        self.state.config.delay_bound.saturating_mul(OPEN_ROOM_RATIO)
    }

    /// Time by which a foreground job's stretch may end late, ns. 0 if the device switches between
    /// processes: there each kernel within a stretch also costs two switches.
    fn extension(&self, client: &ClientState, job: &JobModels) -> Ns {
        let config = &self.state.config;
        match config.switch_cost {
            0 => {
                let (slowdown, slo) = client.budget.allowed(config);
                job.account.allows(slowdown, slo).min(config.delay_bound)
            }
            _ => 0,
        }
    }

    fn gap_opening(&self, client: &ClientState, job: &JobModels, most: f64) -> Result<Ns, Ns> {
        let (slowdown, slo) = client.budget.allowed(&self.state.config);
        let chance = job.account.risk(self.risk(), slowdown, slo).min(most);
        self.room_of(client, job, self.now, chance)
    }

    fn room_of(&self, client: &ClientState, job: &JobModels, at: Ns, chance: f64) -> Result<Ns, Ns> {
        if job.account.is_open(self.now) {
            return Ok(self.open_room());
        }
        if let Some(until) = self.unknown_until(client, job).filter(|until| at < *until) {
            return Err(until);
        }
        let room = self.left_by(client, job, at, chance)?;
        let (promised, switches) = (client.budget.is_promised(), self.state.config.switch_cost > 0);
        match job.account.withholds(promised, switches, self.now) {
            true => Ok(0),
            false => Ok(room),
        }
    }

    /// End of the time in which a foreground job without a profile may run unknown work: a stretch
    /// longer than any that was seen to end. A first request is one.
    ///
    /// The time is half of `starving_after`: long enough for a request, and no background job
    /// starves. A job that never waits keeps others out once.
    fn unknown_until(&self, client: &ClientState, job: &JobModels) -> Option<Ns> {
        let since = job.stretch.new_since().filter(|_| client.times.is_empty())?;
        Some(since.saturating_add(self.state.config.starving_after / 2))
    }

    /// Room in a foreground job's gap, only by its model.
    fn left_by(&self, client: &ClientState, job: &JobModels, at: Ns, chance: f64) -> Result<Ns, Ns> {
        let (config, gaps) = (&self.state.config, &job.gaps);
        let knows = gaps.knows();
        let room = |elapsed: Ns| match knows {
            true => gaps.room(elapsed, chance),
            // The chance is lower while the gap is unknown.
            false => gaps.room_unknown(elapsed, chance.min(UNKNOWN_RISK)),
        };
        if let Some(hinted) = gaps.hinted_at().or(client.busy.hinted_at()) {
            let until = hinted.saturating_add(config.open_after);
            let elapsed = at.saturating_sub(hinted);
            return match knows || at >= until {
                true if knows => Ok(gaps.room(elapsed, chance.min(UNKNOWN_RISK))),
                true => Ok(room(elapsed)),
                false => Err(until),
            };
        }
        let Some(end) = client.busy.end_if_launched() else {
            return Ok(Ns::MAX);
        };
        let end = end.saturating_add(client.busy.lateness(config));
        let followed = knows && gaps.expects().is_some_and(|(low, _)| low > config.small_gap / 4);
        if at < end {
            // An order given now arrives as the work ends. A launch would void it.
            let ready = end.saturating_sub(if followed { self.lead() } else { 0 });
            return match at >= ready {
                true => Ok(room(0).saturating_add(end - at)),
                false => Err(ready),
            };
        }
        // An unseen end may be a launching thread that lost its core for a moment.
        let silent = end.saturating_add(config.open_unseen);
        if at < silent && !followed && !client.busy.is_seen() {
            return Err(silent);
        }
        Ok(room(at - end))
    }

    /// Highest chance at which a kernel may keep a foreground job waiting. A wrong guess costs more
    /// if the device must switch back.
    pub(super) fn risk(&self) -> f64 {
        /// Best in the lab on a time-sliced device.
        const SWITCHED: f64 = 0.5;
        match self.state.config.switch_cost {
            0 => self.state.config.risk,
            _ => self.state.config.risk.min(SWITCHED),
        }
    }

    /// Whether the length of the foreground jobs' gap is known, and not only its distribution.
    pub(super) fn is_steady(&self) -> bool {
        self.foreground().all(|(_, job)| job.gaps.is_steady())
    }

    /// Time before the device runs dry at which the next kernel is granted, ns.
    pub(super) fn lead(&self) -> Ns {
        self.models.device.lead(self.state.config.delay_bound / 4)
    }

    /// When to look again whether `less` of the background work has ended. Unused credit and
    /// stopped work do not end with time. A report of them triggers the look, and the clock must
    /// not spin until then.
    pub(super) fn less_remains(&self, less: Ns) -> Ns {
        let bound = self.state.config.delay_bound;
        let running = self.models.device.running(self.now);
        // A kernel that takes longer than its charge keeps the charge to its end.
        let charged = running.min(self.state.exposure.saturating_sub(self.credit_abroad(true)));
        let wait = match less <= charged {
            true => less.saturating_add(running - charged),
            false => less.max(bound / 16),
        };
        self.now.saturating_add(wait.max(1))
    }

    /// Credit of clients that need no further grant, ns. `windows`: also of those that have a
    /// window, and so use it as the device has room.
    fn credit_abroad(&self, windows: bool) -> Ns {
        let exposed = self.state.exposed.iter().filter_map(|slot| self.state.get(*slot));
        exposed
            .filter(|client| client.queued.is_none() && (windows || client.window.is_none()))
            .fold(0, |credit: Ns, client| credit.saturating_add(client.ledger.usable()))
    }

    /// Background work still to run by the clock, plus credit of clients that need no further
    /// grant, ns. A job with a window uses its credit as the device has room for it.
    pub(super) fn remaining(&self) -> Ns {
        let outstanding = self.state.exposure.saturating_sub(self.credit_abroad(true));
        self.models
            .device
            .remaining(outstanding, self.now)
            .saturating_add(self.credit_abroad(false))
    }

    /// Work of other background jobs that may be on the device as a kernel of this job ends, ns. A
    /// job with a window always has a kernel there.
    pub(super) fn others(&self, slot: ClientSlot) -> Ns {
        let (mut out, mut next): (Ns, Ns) = (0, 0);
        for other in self.state.exposed.iter().filter(|other| **other != slot) {
            let Some((client, job)) = self.job(*other) else {
                continue;
            };
            let outstanding = client.ledger.outstanding();
            out = out.saturating_add(outstanding);
            next = next.saturating_add(match client.window {
                Some(_) => job.times.in_progress().saturating_sub(outstanding),
                None => client.ledger.usable(),
            });
        }
        let all = self.state.outstanding();
        out.min(self.models.device.remaining(all, self.now))
            .saturating_add(next)
    }
}

/// High estimate of a waiting kernel, ns; its charge if no time is known.
pub(super) fn long_estimate(job: &JobModels, wait: &KernelAtGate) -> Ns {
    let times = &job.times;
    match times.of_next(wait.kernel) {
        Some(forecast) if times.is_known() => forecast.high.max(times.may_take(wait.kernel)),
        // Ends are seen a little late, so the learnt time is rather too long.
        Some(forecast) => forecast.middle,
        None => wait.cost,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Client, Config, config::US, mean_times::MeanTimes};

    use super::*;

    #[test]
    fn only_what_runs_by_the_clock_is_waited_for_by_the_clock() {
        let config = Config::default();
        let coarse = config.delay_bound / 16;
        let mut state = SchedulerState::new(config, true);
        let mut models = Models::default();
        let less_remains = |state: &SchedulerState, models: &Models, less: Ns, now: Ns| {
            PolicyView { state, models, now }.less_remains(less)
        };
        assert_eq!(
            less_remains(&state, &models, US, 0),
            coarse,
            "nothing runs: it is credit that lies unused"
        );
        let new = ClientState::new(Client(1), 5, MeanTimes::default(), 0.0, 0);
        let slot = state.add(new);
        state.account(slot, |ledger| {
            ledger.grant(100 * US);
            ledger.report(100 * US, 0, 0)
        });
        models.device.launched(slot, 100 * US, 0, 0, true);
        assert_eq!(less_remains(&state, &models, 30 * US, 10 * US), 40 * US);
        assert_eq!(less_remains(&state, &models, 0, 10 * US), 10 * US + 1, "never at once");
        // More work than runs: the rest is credit.
        assert_eq!(less_remains(&state, &models, 91 * US, 10 * US), 10 * US + 91 * US);
        // No work ends until only the charge is left.
        models.device.launched(slot, 500 * US, 0, 0, true);
        assert_eq!(less_remains(&state, &models, 30 * US, 10 * US), (600 - 100 + 30) * US);
        models.device.foreground_launched(true);
        assert_eq!(
            less_remains(&state, &models, 30 * US, 10 * US),
            10 * US + coarse,
            "it may stand still"
        );
    }
}
