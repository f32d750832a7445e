// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policy `weft`: fills gaps by quantiles of earlier gaps and kernel times in the same context, and
//! stretches of launches by the foreground job's laxity.
//!
//! # Steps
//!
//! Times are in ns.
//!
//! 1. **Room**, the time for which background jobs may use the device (`Situation::opening`):
//!
//! ```text
//!    P(foreground job back before now + room | the gap has lasted so long) <= risk
//!    risk <= Config::risk; <= 0.5 where the device switches between processes
//! ```
//!
//! The risk is the price of the foreground job's account ([`lateness_account`]): it falls as
//! lateness is measured at its waits.
//!
//! Within a stretch of launches the laxity is room too ([`stretch_model`]): the foreground job
//! notices only lateness at its next wait. The larger of the two counts, so passing either test is
//! enough. Credit given within a stretch outlives the predicted launches, and ends at the wait.
//!
//! Known gaps, random arrivals and open-ended gaps are one case. A stretch may end late by the time
//! that the account allows. While a foreground job is busy, only copies go, unless the period is
//! open. The slowdown that a job requested is spent on whole periods, from one wait to the next.
//! 2. **Fit.** A kernel fits if `takes <= room`:
//!
//!    ```text
//!    takes     = max(remaining, lead) + long + way_there
//!    remaining = background work that is still to run
//!    lead      = how long an order takes to arrive
//!    long      = a high quantile of the kernel's time, in its context
//!    way_there = Config::switch_cost * (0 owner | 1 other background job | 4 foreground job)
//!    ```
//! 3. **Choice.** A job that is about to starve comes first. Next comes the most important class
//!    with a kernel that fits: the job whose turn it is, else the longest kernel that fits.
//! 4. **Deferral** to a better moment that is near, if that costs less than it saves.
//! 5. **Grant**, `lead` before the device runs dry or the foreground job's work ends. More is
//!    granted if a return is very unlikely. A job that launches more slowly than the device works
//!    has no limit.
//! 6. **Run-ahead window** of a background job whose kernel times are known. Its gate launches
//!    kernels that end before the expected return, one kernel ahead of the device. Credit is
//!    replenished as work ends. Several background jobs have windows only if the device does not
//!    switch between processes: each window ends earlier by the others' work.
//! 7. **Return.** The foreground job's launch epoch voids all credit. So does a wake-up hint,
//!    before the launch.
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
//! * A kernel that fits no gap runs when the foreground job is silent for long, or by the minimum
//!   share, which gives a long kernel the begin of a gap. A graph is not cut: a launch for each
//!   node would cost as much as the graph saves.
//! * A job without known kernel times has one kernel at a time, charged the whole delay bound,
//!   until the device has measured some ([`kernel_time_model`]).
//!
//! Tried and dropped: an empty kernel of the foreground job's process at each copy while idle, to
//! start the switch back early. In the lab the device switched more often and gained nothing.

mod device_clock;
mod gap_model;
mod kernel_time_model;
mod lateness_account;
mod models;
mod room;
mod running_mean;
mod stretch_model;

use weft_profiles::predictor::Quality;
use weft_protocol::{Ns, PRIORITIES, credit::RunAheadWindow, lane::Mode};

use super::{
    copies,
    delay_bound::{make_room, more_important_runs, unused},
    interface::{GrantVerdict, Observed, Policy, TopUp},
    round_robin::RoundRobin,
};
use crate::{
    client::{ClientState, KernelAtGate},
    config::Config,
    queue::{ClientSlot, QueueEntry},
    state::SchedulerState,
    stretch_times::StretchTimes,
    tally::{Lateness, RoleTally},
};
use models::{JobModels, Models};
use room::PolicyView;

/// Chance of a return up to which more than `lead` is granted.
const HARDLY: f64 = 0.02;

/// Chance of a return within a kernel's time up to which a moment is good.
const GOOD: f64 = 0.1;

/// Chances above `GOOD` that deferral distinguishes.
const SHADES: [f64; 4] = [0.1, 0.15, 0.2, 0.25];

#[derive(Debug, Default)]
pub(super) struct Weft {
    turns: RoundRobin,
    models: Models,
}

impl Weft {
    fn situation<'a>(&'a self, state: &'a SchedulerState, now: Ns) -> PolicyView<'a> {
        PolicyView {
            state,
            models: &self.models,
            now,
        }
    }
}

impl Policy for Weft {
    fn next(&mut self, state: &SchedulerState, now: Ns) -> GrantVerdict {
        let situation = PolicyView {
            state,
            models: &self.models,
            now,
        };
        let room = match situation.opening() {
            Ok(room) => room,
            Err(until) => return copies::beside_foreground(state, until, now),
        };
        let fit = GapFit {
            situation,
            room,
            remaining: situation.remaining(),
        };
        match fit.choose(&mut self.turns) {
            Ok(entry) => fit.grant(&entry),
            Err(verdict) => verdict,
        }
    }

    fn forget_turn(&mut self, slot: ClientSlot) {
        self.turns.forget(slot);
    }

    fn observe(&mut self, state: &SchedulerState, seen: &Observed<'_>) {
        self.models.observe(state, seen);
    }

    fn long_estimate(&self, _: &SchedulerState, slot: ClientSlot, wait: &KernelAtGate) -> Ns {
        match self.models.job(slot) {
            Some(job) => room::long_estimate(job, wait),
            None => wait.cost,
        }
    }

    fn due(&self, state: &SchedulerState, slot: ClientSlot, wait: &KernelAtGate, long: Ns) -> Ns {
        let interval = state.share_interval(long).max(state.config.share_every);
        let starves_at = self.models.job(slot).map_or(0, |job| job.starves_at);
        wait.since.saturating_add(interval).max(starves_at)
    }

    /// A portion pays for one switch there and back: the share of `share_every`.
    fn due_portion(&self, state: &SchedulerState, entry: &QueueEntry) -> Ns {
        if entry.long > entry.cost {
            return entry.cost;
        }
        let config = &state.config;
        let due = (config.share_every as f64 * config.minimum_share) as Ns;
        let room = state.delay_bound().saturating_sub(state.exposure_before(entry.slot));
        entry.cost.max(due.saturating_sub(2 * config.switch_cost).min(room))
    }

    /// A kernel beyond the delay bound goes at the begin of a gap: it keeps the foreground job
    /// waiting for its time less the gap. If no gap begins for `starving_after`, it goes all the
    /// same.
    fn share_waits(&self, state: &SchedulerState, entry: &QueueEntry, now: Ns) -> Option<Ns> {
        let patience = entry.due.saturating_add(state.config.starving_after);
        let is_short = entry.long <= state.config.delay_bound;
        if is_short || now >= patience || self.situation(state, now).begins_gap(entry.long) {
            return None;
        }
        Some(later(state, now).min(patience))
    }

    fn is_starving(&self, state: &SchedulerState, slot: ClientSlot, now: Ns) -> bool {
        self.situation(state, now).is_starving(slot)
    }

    /// A foreground launch voids unused credit, so only running work is in the way.
    fn work_ahead(&self, state: &SchedulerState, at: Ns) -> Ns {
        self.models.device.remaining(state.outstanding(), at)
    }

    fn grants_by_clock(&self) -> bool {
        true
    }

    fn top_up(&self, state: &SchedulerState, slot: ClientSlot, now: Ns) -> TopUp {
        let situation = self.situation(state, now);
        let Some((client, job)) = situation.job(slot).filter(|(_, job)| job.times.is_known()) else {
            return TopUp::No;
        };
        let used_at = client.progress_at.max(client.granted_at);
        if now > used_at.saturating_add(state.config.delay_bound) {
            return TopUp::No;
        }
        let (remaining, lead) = (situation.remaining(), situation.lead());
        let due = remaining.saturating_sub(2 * lead);
        // At random arrivals: no more than the remainder of a kernel that the foreground job would
        // find in progress anyway.
        let calm = match situation.is_steady() {
            true => calm(situation),
            false => calm(situation).min(job.times.in_progress()),
        };
        let slow = slow(situation, job, 2 * lead);
        let most = most_ahead(situation, client).min(calm.max(slow));
        if due > 0 && most > remaining {
            return TopUp::At(situation.less_remains(due));
        }
        // The trip must be worth its cost.
        match most.checked_sub(state.exposure) {
            Some(more) if more > lead => TopUp::To(client.ledger.usable().saturating_add(more)),
            _ => TopUp::No,
        }
    }

    fn window(&self, state: &SchedulerState, slot: ClientSlot, now: Ns) -> Option<(RunAheadWindow, Ns)> {
        let situation = self.situation(state, now);
        // Until kernel times are known, the charges are not kernel times.
        let (client, _) = situation.job(slot).filter(|(_, job)| job.times.is_known())?;
        let config = &state.config;
        let others = situation.others(slot);
        let room = situation.opening().ok()?.saturating_sub(others);
        let window = RunAheadWindow {
            safe_until: now.saturating_add(calm(situation).saturating_sub(others)),
            deadline: now.saturating_add(room).max(1),
            max_backlog: backlog(config, || situation.laxity()),
            non_refundable: client.window.map_or(0, |window| window.non_refundable),
        };
        let again = (room / 2).clamp(config.open_after / 8, config.open_after * 4).max(1);
        Some((window, now.saturating_add(again)))
    }

    fn outlives(&self, state: &SchedulerState, now: Ns) -> u64 {
        self.situation(state, now).launches_to_come()
    }

    fn is_open(&self, state: &SchedulerState, now: Ns) -> bool {
        self.situation(state, now).is_open()
    }

    fn timing_change(&mut self, slot: ClientSlot, background: bool) -> Option<bool> {
        let times = &mut self.models.job_mut(slot)?.times;
        match background {
            true => times.begins_to_be_timed().then_some(true),
            false => times.ends_to_be_timed().then_some(false),
        }
    }

    fn next_charge(&mut self, state: &SchedulerState, slot: ClientSlot) -> Option<(u64, Ns)> {
        let unknown = match state.mode(slot)? {
            Mode::Background => state.config.delay_bound,
            _ => state.config.unknown_cost,
        };
        self.models.job_mut(slot)?.times.next_charge(unknown)
    }

    fn lateness(&self, slot: ClientSlot) -> Option<Lateness> {
        Some(self.models.job(slot)?.account.sums())
    }

    fn stretch_times(&self, slot: ClientSlot) -> Option<&StretchTimes> {
        self.models.job(slot)?.account.stretch_times()
    }

    fn tallies_background(&self) -> bool {
        true
    }

    fn background_tally(&self, slot: ClientSlot, now: Ns) -> Option<RoleTally> {
        let job = self.models.job(slot)?;
        Some(RoleTally {
            at_most: job.times.overcounted(),
            uncounted: job.times.uncounted(now),
            ..job.tally
        })
    }

    fn quality(&self, slot: ClientSlot) -> [(Quality, usize); 2] {
        match self.models.job(slot) {
            Some(job) => [job.gaps.quality(), job.times.quality()],
            None => Default::default(),
        }
    }
}

/// Waiting kernels' times to their ends, against the available room.
#[derive(Debug, Clone, Copy)]
struct GapFit<'a> {
    situation: PolicyView<'a>,
    /// Room for background jobs, ns.
    room: Ns,
    /// Background work still to run, ns.
    remaining: Ns,
}

impl GapFit<'_> {
    /// The entry that goes next, or the verdict if none does.
    fn choose(&self, turns: &mut RoundRobin) -> Result<QueueEntry, GrantVerdict> {
        let (state, now) = (self.situation.state, self.situation.now);
        let mut again = later(state, now);
        if let Some(entry) = self.starving().filter(|entry| self.fits(entry)) {
            return Ok(entry);
        }
        for class in 0..PRIORITIES {
            let Some(first) = state.queue.first_in_turn(class) else {
                continue;
            };
            // Without a switching cost no turns are kept.
            let slot = match state.config.switch_cost {
                0 => first,
                _ => turns.whose(class, state, now)?,
            };
            let entry = state.get(slot).and_then(|client| client.queued);
            let mut longer = false;
            if let Some(entry) = entry {
                if self.fits(&entry) {
                    return match self.better_moment(&entry) {
                        Some(at) => Err(GrantVerdict::Nothing(Some(at))),
                        None => Ok(entry),
                    };
                }
                longer = true;
            }
            // Else take the longest that fits. A kernel with a low charge and a long
            // quantile must not hide one that fits. Otherwise a less important kernel would
            // repeatedly be granted, and revoked for it.
            if let Some(entry) = self.longest(class) {
                return Ok(entry);
            }
            // Too much work is out: look again when it has ended.
            if longer && self.remaining > 0 {
                again = again.min(self.situation.less_remains(self.remaining));
            }
        }
        Err(GrantVerdict::Nothing(Some(again)))
    }

    /// The entry of a job that is about to starve. It gets the next gap first. Later it would run
    /// while the foreground job works.
    fn starving(&self) -> Option<QueueEntry> {
        let state = self.situation.state;
        let (_, slot) = state.queue.first_due()?;
        state.get(slot)?.queued.filter(|_| self.situation.is_starving(slot))
    }

    /// The entry of `class` with the longest `long` that fits. The device's owner needs no switch.
    fn longest(&self, class: usize) -> Option<QueueEntry> {
        let (state, owner) = (self.situation.state, self.situation.models.device.owner());
        let fitting = |slot: ClientSlot| {
            let entry = state.get(slot)?.queued.filter(|entry| entry.class == class)?;
            self.fits(&entry).then_some(entry)
        };
        let lead = self.situation.lead();
        let others = self.remaining.max(lead).saturating_add(match owner {
            Some(_) => state.config.switch_cost,
            None => 4 * state.config.switch_cost,
        });
        let best = match self.room.checked_sub(others) {
            Some(most) => state.queue.best_fit(class, most.saturating_add(1)).and_then(fitting),
            None => None,
        };
        let there = owner.and_then(fitting);
        match (best, there) {
            (Some(best), Some(there)) if there.long > best.long => Some(there),
            (None, there) => there,
            (best, _) => best,
        }
    }

    /// `max(remaining, lead) + long + way_there`, from now to the kernel's end.
    fn takes(&self, entry: &QueueEntry) -> Ns {
        self.remaining
            .max(self.situation.lead())
            .saturating_add(entry.long)
            .saturating_add(self.way_there(entry.slot))
    }

    /// Whether `takes <= room`.
    fn fits(&self, entry: &QueueEntry) -> bool {
        self.takes(entry) <= self.room
    }

    /// Room for switching to a job, ns; 0 if the device does not switch between processes.
    ///
    /// The owner needs none, because the switch back begins with the foreground job's kernel. From
    /// another background job it is one switch. From the foreground job it is four, twice there and
    /// back: a gap that is mostly switching is not worth its switch back.
    fn way_there(&self, slot: ClientSlot) -> Ns {
        let switches = match self.situation.models.device.owner() {
            Some(owner) if owner == slot => 0,
            Some(_) => 1,
            None => 4,
        };
        switches * self.situation.state.config.switch_cost
    }

    /// Deferral: a better moment, if waiting for it costs less than it saves.
    fn better_moment(&self, entry: &QueueEntry) -> Option<Ns> {
        let (situation, now) = (self.situation, self.situation.now);
        let time = self.takes(entry);
        let fits = |at: Ns, chance: f64| situation.room(at, chance).is_ok_and(|room| time <= room);
        if situation.laxity() >= time {
            return None;
        }
        let risk = situation.risk();
        if !situation.state.config.deferral || risk <= GOOD || fits(now, GOOD) || !fits(now, risk) {
            return None;
        }
        let chance = SHADES
            .into_iter()
            .find(|chance| *chance < risk && fits(now, *chance))
            .unwrap_or(risk);
        // A return delays by half of the kernel's time, on average.
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

    /// Grants a kernel that fits, `lead` before the device runs dry.
    fn grant(&self, entry: &QueueEntry) -> GrantVerdict {
        let (situation, state, now) = (self.situation, self.situation.state, self.situation.now);
        let Some((client, job)) = situation.job(entry.slot) else {
            return GrantVerdict::Nothing(None);
        };
        let known = job.times.is_known();
        let lead = situation.lead();
        let takes = self.takes(entry);
        let calm = calm(situation).saturating_sub(takes);
        // In a calm time a wait only delays the thread's next launch. A job without known times has
        // no work before its kernel.
        let is_ahead = state.is_ahead(entry.slot, now);
        let ahead_of = if known && !is_ahead {
            lead.max(calm.min(state.delay_bound() / 4))
        } else {
            0
        };
        // The equal's next kernel is on its way.
        let dry_at = situation.models.device.free_at().saturating_add(lead);
        if is_ahead && now < dry_at {
            return GrantVerdict::Nothing(Some(dry_at));
        }
        let runs_ahead = known && state.may_have_window(entry.slot, entry.cost, now);
        // The other jobs' windows do not end when the device runs dry.
        let beside_windows = !state.has_one_background() && (runs_ahead || state.has_windows());
        let side_by_side = known && !is_ahead && beside_windows;
        if self.remaining > ahead_of && !side_by_side {
            let again = situation.less_remains(self.remaining - ahead_of);
            // Only the next launch epoch would end unused credit.
            return match unused(state, entry.slot) {
                Some((slot, at)) if now >= at => GrantVerdict::Revoke(slot),
                Some((_, at)) => GrantVerdict::Nothing(Some(again.min(at))),
                None => GrantVerdict::Nothing(Some(again)),
            };
        }
        if !state.admits(entry.slot, entry.cost) {
            let starving = |slot| situation.is_starving(slot);
            return make_room(state, entry.slot, entry.cost, now, starving);
        }
        if state.config.switch_cost > 0
            && let Some(silent) = more_important_runs(entry.class, state, now)
        {
            return GrantVerdict::Nothing(Some(silent));
        }
        let before = state.exposure_before(entry.slot);
        let total = if !known || is_ahead {
            0
        } else if runs_ahead {
            // The run-ahead window bounds the work that goes ahead.
            state.delay_bound().saturating_sub(before).min(state.window_part())
        } else {
            let slow = slow(situation, job, takes);
            let lead = lead.min(self.room.saturating_sub(takes));
            let most = most_ahead(situation, client).saturating_sub(before);
            lead.max(calm).max(slow).min(most)
        };
        GrantVerdict::Grant {
            slot: entry.slot,
            total: entry.cost.max(total),
            bound: true,
        }
    }
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
fn backlog(config: &Config, laxity: impl FnOnce() -> Ns) -> Ns {
    let ahead = match config.switch_cost {
        0 => (laxity() / 16).min(config.delay_bound / 2),
        _ => (laxity() / 4).min(config.delay_bound),
    };
    config.depth.max(ahead)
}

/// When to look for room again: the longer no event came, the later.
fn later(state: &SchedulerState, now: Ns) -> Ns {
    let active = state.foreground().filter_map(|(_, client)| client.busy.last_activity());
    let elapsed = now.saturating_sub(active.max().unwrap_or(0));
    let (least, most) = (state.config.open_after / 8, state.config.open_after * 4);
    now.saturating_add((elapsed / 8).clamp(least.max(1), most.max(1)))
}

/// Time for which background jobs may go beyond `lead`: until a return has the chance `HARDLY`.
fn calm(situation: PolicyView<'_>) -> Ns {
    situation.room(situation.now, HARDLY).unwrap_or(0)
}

/// No limit, until the foreground job is due, for a job that launches more slowly than the device
/// works: at most one of its kernels is on the device. Else 0.
fn slow(situation: PolicyView<'_>, job: &JobModels, takes: Ns) -> Ns {
    let due = situation.opening().unwrap_or(0) < takes;
    match job.times.spread(1) {
        Ns::MAX if !due => Ns::MAX,
        _ => 0,
    }
}

/// Most work that a job may have out: any usual kernel of any background job is still admitted.
fn most_ahead(situation: PolicyView<'_>, client: &ClientState) -> Ns {
    let bound = situation.state.delay_bound();
    match client.long_out() {
        0 => bound.saturating_sub(situation.models.longest()).max(bound / 2),
        long => long.saturating_add(bound / 4),
    }
}

#[cfg(test)]
mod tests;
