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
//! enough. Credit given within a stretch outlives the predicted launches, and ends at the wait. A
//! known gap is longer by the idle time of the stretch behind it, and a long kernel ends before the
//! return in nine of ten cases ([`room`]).
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
mod starvation;
mod stretch_model;
mod windows;

use weft_protocol::{Ns, PRIORITIES, lane::Mode};

use super::{
    copies,
    interface::{Observed, Policy, PolicyReport, PolicyTraits, WaitTerms},
    minimum_share::MinimumShare,
    round_robin::RoundRobin,
};
use crate::{
    action::Action,
    client::{ClientState, KernelAtGate},
    delay_bound::{make_room, more_important_runs, unused},
    dispatcher::Dispatcher,
    queue::{ClientSlot, QueueEntry},
    state::SchedulerState,
    tally::RoleTally,
};
use models::{JobModels, Models};
use room::{GapRoom, PolicyView};

/// Chance of a return up to which more than `lead` is granted.
const HARDLY: f64 = 0.02;

/// Chance of a return within a kernel's time up to which a moment is good.
const GOOD: f64 = 0.1;

/// Chances above `GOOD` that deferral distinguishes.
const SHADES: [f64; 4] = [0.1, 0.15, 0.2, 0.25];

#[derive(Debug, Default)]
pub(super) struct Weft {
    turns: RoundRobin,
    share: MinimumShare,
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
    fn traits(&self) -> PolicyTraits {
        PolicyTraits {
            grants_by_clock: true,
            tallies_background: true,
        }
    }

    fn observe(&mut self, to: &mut Dispatcher<'_>, seen: &Observed<'_>) {
        self.turns.observe(seen);
        self.models.observe(to.state(), seen);
        match *seen {
            Observed::Attached { slot, .. } => to.set_starves_at(slot, 0),
            Observed::GapUsed { slot, issued, now } => starvation::gap_used(to, slot, issued, now),
            Observed::Unprofiled { slot } => self.look_after_charges(to, slot),
            Observed::ModeChanged { slot, before } if before == Mode::Background || is_background(to.state(), slot) => {
                self.look_after_charges(to, slot);
            }
            Observed::Measured { slot, .. } | Observed::Bounded { slot, .. } if is_background(to.state(), slot) => {
                self.look_after_charges(to, slot);
            }
            Observed::ForegroundIdle { .. } | Observed::WakeUpHint { .. } => self.look_after_open(to),
            Observed::Decides => {
                self.look_after_open(to);
                windows::move_all(&self.models, to);
            }
            _ => {}
        }
    }

    fn decide(&mut self, to: &mut Dispatcher<'_>) {
        if to.state().waiting == 0 {
            if let [slot] = to.state().exposed[..] {
                self.top_up(to, slot);
            }
            return;
        }
        let models = &self.models;
        let served = self.share.serve_by(to, |state, entry, now| {
            starvation::portion(PolicyView { state, models, now }, entry)
        });
        if served {
            to.carry_out(|state, now| self.next(state, now));
        }
    }

    fn terms(&self, state: &SchedulerState, slot: ClientSlot, wait: &KernelAtGate) -> WaitTerms {
        let job = self.models.job(slot);
        let long = job.map_or(wait.cost, |job| room::long_estimate(job, wait));
        let price = job.map_or(long, |job| job.times.price(wait.kernel, long));
        let due = starvation::due(state, slot, wait, price);
        let longest = job.map_or(0, |job| job.times.longest_timed());
        WaitTerms { long, due, longest }
    }

    /// A foreground launch voids unused credit, so only running work is in the way.
    fn work_ahead(&self, state: &SchedulerState, at: Ns) -> Ns {
        self.models.device.remaining(state.outstanding(), at)
    }

    fn report(&self, slot: ClientSlot, now: Ns) -> PolicyReport {
        let Some(job) = self.models.job(slot) else {
            return PolicyReport::default();
        };
        PolicyReport {
            lateness: Some(job.account.sums()),
            stretch_times: job.account.stretch_times().cloned().map(Box::new),
            background: Some(RoleTally {
                at_most: job.times.overcounted(),
                uncounted: job.times.uncounted(now),
                ..job.tally
            }),
            gaps: job.gaps.quality(),
            times: job.times.quality(),
        }
    }
}

impl Weft {
    /// The next action for the clients that wait.
    fn next(&mut self, state: &SchedulerState, now: Ns) -> Action {
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
            Err(action) => action,
        }
    }

    /// Grants more to the only background job before it asks.
    fn top_up(&self, to: &mut Dispatcher<'_>, slot: ClientSlot) {
        let now = to.now;
        let situation = self.situation(to.state(), now);
        let known = situation.job(slot).filter(|(_, job)| job.times.is_known());
        let Some((client, job)) = known.filter(|_| situation.state.may_top_up(slot)) else {
            return;
        };
        let used_at = client.progress_at.max(client.granted_at);
        if now > used_at.saturating_add(situation.state.config.delay_bound) {
            return;
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
            let again = situation.less_remains(due);
            to.wake_at(again);
            return;
        }
        // The trip must be worth its cost.
        if let Some(more) = most.checked_sub(situation.state.exposure)
            && more > lead
        {
            let total = client.ledger.usable().saturating_add(more);
            let grant = windows::grant(situation, slot, total);
            to.grant(&grant);
        }
    }

    fn look_after_open(&self, to: &mut Dispatcher<'_>) {
        let open = self.situation(to.state(), to.now).is_open();
        to.set_open(open);
    }

    /// Has a background job's launches timed if their times have no other source, and sends it the
    /// times to charge for them.
    fn look_after_charges(&mut self, to: &mut Dispatcher<'_>, slot: ClientSlot) {
        let background = is_background(to.state(), slot);
        let unknown = match background {
            true => to.state().config.delay_bound,
            false => to.state().config.unknown_cost,
        };
        let Some(job) = self.models.job_mut(slot) else { return };
        let changes = match background {
            true => job.times.begins_to_be_timed(),
            false => job.times.ends_to_be_timed(),
        };
        if changes {
            to.time_launches(slot, background);
        }
        while let Some((kernel, charge)) = job.times.next_charge(unknown) {
            to.charge(slot, kernel, charge);
        }
    }
}

fn is_background(state: &SchedulerState, slot: ClientSlot) -> bool {
    state.mode(slot) == Some(Mode::Background)
}

/// Waiting kernels' times to their ends, against the available room.
#[derive(Debug, Clone, Copy)]
struct GapFit<'a> {
    situation: PolicyView<'a>,
    room: GapRoom,
    /// Background work still to run, ns.
    remaining: Ns,
}

impl GapFit<'_> {
    /// The entry that goes next, or the action if none does.
    fn choose(&self, turns: &mut RoundRobin) -> Result<QueueEntry, Action> {
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
                        Some(at) => Err(Action::Nothing(Some(at))),
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
        Err(Action::Nothing(Some(again)))
    }

    /// The entry of a job that is about to starve. It gets the next gap first. Later it would run
    /// while the foreground job works.
    fn starving(&self) -> Option<QueueEntry> {
        let state = self.situation.state;
        let (_, slot) = state.queue.first_due()?;
        state
            .get(slot)?
            .queued
            .filter(|_| state.is_starving(slot, self.situation.now))
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
        // The longest of all, of the long ones, and of the others.
        let GapRoom { usual, long, long_from } = self.room;
        let best = [
            usual,
            long,
            usual.min(others.saturating_add(long_from.saturating_sub(1))),
        ]
        .into_iter()
        .filter_map(|room| room.checked_sub(others))
        .find_map(|most| state.queue.best_fit(class, most.saturating_add(1)).and_then(fitting));
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
        self.takes(entry) <= self.room.of(entry.long)
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
    fn grant(&self, entry: &QueueEntry) -> Action {
        let (situation, state, now) = (self.situation, self.situation.state, self.situation.now);
        let Some((client, job)) = situation.job(entry.slot) else {
            return Action::Nothing(None);
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
            return Action::Nothing(Some(dry_at));
        }
        let runs_ahead = known && state.may_have_window(entry.slot, entry.cost, now);
        // The other jobs' windows do not end when the device runs dry.
        let beside_windows = !state.has_one_background() && (runs_ahead || state.has_windows());
        let side_by_side = known && !is_ahead && beside_windows;
        if self.remaining > ahead_of && !side_by_side {
            let again = situation.less_remains(self.remaining - ahead_of);
            // Only the next launch epoch would end unused credit.
            return match unused(state, entry.slot) {
                Some((slot, at)) if now >= at => Action::Revoke(slot),
                Some((_, at)) => Action::Nothing(Some(again.min(at))),
                None => Action::Nothing(Some(again)),
            };
        }
        if !state.admits(entry.slot, entry.cost) {
            return make_room(state, entry.slot, entry.cost, now);
        }
        if state.config.switch_cost > 0
            && let Some(silent) = more_important_runs(entry.class, state, now)
        {
            return Action::Nothing(Some(silent));
        }
        let before = state.exposure_before(entry.slot);
        let total = if !known || is_ahead {
            0
        } else if runs_ahead {
            // The run-ahead window bounds the work that goes ahead.
            state.delay_bound().saturating_sub(before).min(state.window_part())
        } else {
            let slow = slow(situation, job, takes);
            let lead = lead.min(self.room.of(entry.long).saturating_sub(takes));
            let most = most_ahead(situation, client).saturating_sub(before);
            lead.max(calm).max(slow).min(most)
        };
        Action::Grant(windows::grant(situation, entry.slot, entry.cost.max(total)))
    }
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
    let due = situation.opening().map_or(0, |room| room.usual) < takes;
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
