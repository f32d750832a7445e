// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of policy `weft`, for each job and for the device.

use weft_protocol::{
    Ns,
    lane::{HOST_COPY, is_transfer},
};

use super::{
    device_clock::{DeviceClock, WorkSpans},
    gap_model::GapModel,
    kernel_time_model::{KernelTimeModel, SeenEnd},
    lateness_account::LatenessAccount,
    stretch_model::StretchModel,
};
use crate::{Config, policy::Observed, queue::ClientSlot, state::SchedulerState, tally::RoleTally};

/// Models of one job.
#[derive(Debug, Clone, Default)]
pub(super) struct JobModels {
    /// Gaps of a foreground job.
    pub gaps: GapModel,
    /// Lateness that background work has caused a foreground job, and may cause it.
    pub account: LatenessAccount,
    /// Laxity of a foreground job's stretches.
    pub stretch: StretchModel,
    /// Kernel times of a background job.
    pub times: KernelTimeModel,
    /// Launches of a background job, by these times.
    pub tally: RoleTally,
    /// Predicted spans of a background job's work on the device.
    work: WorkSpans,
}

impl JobModels {
    /// Counts a kernel's new launches, if its time is known.
    fn count_launches(&mut self, kernel: u64, config: &Config) {
        if let Some(new) = self.times.new_launches(kernel, config.delay_bound) {
            // A switch to the job may be in its measured times, if it was not left out.
            let switch = config.switch_cost.saturating_sub(new.short);
            let bound = config.delay_bound.saturating_add(switch);
            self.tally.launched_often(kernel, (new.time, new.gpu), new.count, bound);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Models {
    /// Models of each job, by slot.
    jobs: Vec<JobModels>,
    pub device: DeviceClock,
    foreground_work: WorkSpans,
    /// Predicted end of all foreground and background work, ns.
    pub all_until: Ns,
    /// Foreground work launched since the last background launch, ns.
    foreground_since: Ns,
}

impl Models {
    pub(super) fn job(&self, slot: ClientSlot) -> Option<&JobModels> {
        self.jobs.get(slot)
    }

    /// Highest charge that background jobs launched lately, ns.
    pub(super) fn longest(&self) -> Ns {
        self.jobs.iter().map(|job| job.times.longest()).max().unwrap_or(0)
    }

    pub(super) fn job_mut(&mut self, slot: ClientSlot) -> Option<&mut JobModels> {
        self.jobs.get_mut(slot)
    }

    /// Whether periods of a foreground job may be open ([`LatenessAccount::open_next`]).
    ///
    /// * Only for a requested slowdown. An open period may end much later, and a job with the
    ///   default did not ask for that.
    /// * Not if the device switches between processes: there no two jobs run at the same time.
    /// * Only with one foreground job and one background job. Each of several would have room that
    ///   is not its own: with a part of each period open three batch jobs had 0.74, else 0.78
    ///   (MPS).
    /// * Not with a background job without known times: its first kernel may take a second.
    fn may_open(&self, state: &SchedulerState, slot: ClientSlot) -> bool {
        let promised = state.get(slot).is_some_and(|client| client.budget.is_promised());
        let mut others = state.order.iter().filter(|other| **other != slot);
        let (Some(other), None) = (others.next(), others.next()) else {
            return false;
        };
        let known = self.job(*other).is_some_and(|job| job.times.is_known());
        promised && known && state.config.switch_cost == 0
    }

    /// Notes that this foreground job's stretch and those of others in progress overlap.
    fn share_stretch(&mut self, state: &SchedulerState, slot: ClientSlot) {
        let mut shared = false;
        for (other, _) in state.foreground().filter(|(other, _)| *other != slot) {
            if let Some(job) = self.jobs.get_mut(other).filter(|job| job.account.is_in_stretch()) {
                job.account.shares();
                shared = true;
            }
        }
        if let Some(job) = self.jobs.get_mut(slot).filter(|_| shared) {
            job.account.shares();
        }
    }

    pub(super) fn observe(&mut self, state: &SchedulerState, seen: &Observed<'_>) {
        match *seen {
            Observed::Attached { slot, profile } => {
                if self.jobs.len() <= slot {
                    self.jobs.resize_with(slot + 1, JobModels::default);
                }
                if let (Some(job), Some(profile)) = (self.jobs.get_mut(slot), profile) {
                    // Also if the device does not switch now: that may change.
                    let may_take = state.config.spread(profile);
                    (job.gaps, job.times) = (GapModel::of(profile), KernelTimeModel::of(profile, may_take));
                }
            }
            Observed::Removed { slot } => {
                self.device.forget(slot);
                if let Some(job) = self.jobs.get_mut(slot) {
                    *job = JobModels::default();
                }
            }
            Observed::Unprofiled { slot } => {
                if let Some(job) = self.jobs.get_mut(slot) {
                    (job.gaps, job.times) = Default::default();
                }
            }
            Observed::ModeChanged { slot, .. } => {
                if let Some(job) = self.jobs.get_mut(slot) {
                    job.gaps.interrupted();
                    job.account.interrupted();
                    job.stretch.interrupted();
                    job.times.forget();
                }
            }
            Observed::ForegroundLaunched {
                slot,
                kernel,
                cost,
                at,
                earlier_end,
                end,
            } => {
                let found = || self.device.taken(state.outstanding(), at, state.config.switch_cost);
                let unprofiled = state.get(slot).is_some_and(|client| client.times.is_empty());
                if let Some(job) = self.jobs.get_mut(slot) {
                    job.gaps.launched(kernel, at, earlier_end);
                    if job.stretch.quiet(at, state.config.open_unseen) {
                        let slowdown = allowed(state, slot).0;
                        let replayed = job.stretch.end_stretch();
                        job.account.unawaited(replayed, slowdown, &state.config);
                    }
                    job.account.launched(at, found);
                    if !is_transfer(kernel) {
                        let pace = match unprofiled {
                            true => job.account.pace(),
                            false => Some(1.0),
                        };
                        job.stretch.launched(kernel, at, cost, pace);
                    }
                }
                if state.foreground_jobs.len() > 1 {
                    self.share_stretch(state, slot);
                }
                self.all_until = self.all_until.max(at).saturating_add(cost);
                self.foreground_since = self.foreground_since.saturating_add(cost);
                self.device.foreground_launched(kernel != HOST_COPY);
                // Until its end is seen, the work may last as long as it was late before.
                let late = state.get(slot).map_or(0, |client| client.busy.lateness(&state.config));
                self.foreground_work.launched(at, end.saturating_add(late));
            }
            Observed::ForegroundIdle { slot, at } => {
                let opens = self.may_open(state, slot);
                if let Some(job) = self.jobs.get_mut(slot) {
                    job.gaps.ended(at);
                    let (slowdown, slo) = allowed(state, slot);
                    let replayed = job.stretch.waited();
                    job.account.waited(at, replayed, slowdown, &state.config);
                    job.account.open_next(opens.then_some(slowdown), slo);
                }
                // With several foreground jobs, the others may have work there.
                if let [_] = state.foreground_jobs[..] {
                    self.foreground_work.ended(at);
                    self.all_until = at.saturating_add(self.device.remaining(state.outstanding(), at));
                }
            }
            Observed::PartialWait {
                slot,
                covers,
                since,
                at,
            } => {
                if let Some(job) = self.jobs.get_mut(slot)
                    && let Some(end) = job.stretch.alone_end(covers)
                {
                    let slowdown = allowed(state, slot).0;
                    job.account.waited_in_part((since, at), end, slowdown, &state.config);
                }
            }
            Observed::WakeUpHint { slot, at } => {
                let end = state.get(slot).and_then(|client| client.busy.end_if_launched());
                if let Some(job) = self.jobs.get_mut(slot) {
                    job.gaps.wake_up_hint(at, end.unwrap_or(at));
                }
            }
            Observed::BackgroundLaunched {
                slot,
                kernel,
                cost,
                at,
                passed,
            } => {
                let (Some(job), Some(client)) = (self.jobs.get_mut(slot), state.get(slot)) else {
                    return;
                };
                let forecast = job.times.of_next(kernel);
                let time = forecast.map_or(cost, |forecast| forecast.middle);
                let computes = kernel != HOST_COPY;
                if computes && self.device.owner() != Some(slot) {
                    job.times.follows_switch(state.config.switch_cost);
                }
                job.times.launched(kernel, cost, at, passed);
                // A charge for an unknown kernel is not GPU time.
                match job.times.counts(kernel, forecast.map(|forecast| forecast.middle)) {
                    true => job.count_launches(kernel, &state.config),
                    false => job.tally.launched(kernel, time, state.config.delay_bound),
                }
                if passed {
                    self.device.order_took(at.saturating_sub(client.granted_at));
                }
                self.all_until = self.all_until.max(at).saturating_add(time);
                self.foreground_since = 0;
                self.device.launched(slot, time, at, state.outstanding(), computes);
                if computes {
                    job.work.launched(at, self.device.free_at());
                }
                // Credit that launches do not end was given against starvation.
                let forced = !client.bound;
                for (slot, _) in state.foreground() {
                    if let Some(job) = self.jobs.get_mut(slot) {
                        job.account.joined(time, forced);
                    }
                }
            }
            Observed::Completed { slot, completed, now } => {
                self.device.seen(state.outstanding(), now);
                // The work took longer than predicted, so work launched behind it is later too.
                self.all_until = self.all_until.max(now.saturating_add(self.foreground_since));
                let (Some(job), Some(client)) = (self.jobs.get_mut(slot), state.get(slot)) else {
                    return;
                };
                let end = SeenEnd {
                    now,
                    undisturbed_since: undisturbed_since(state, slot),
                    waits_since: client.wait.map(|wait| wait.since),
                    unknown: state.config.delay_bound,
                };
                if let Some(kernel) = job.times.ended(completed, &end) {
                    job.count_launches(kernel, &state.config);
                }
            }
            Observed::Measured { slot, kernel, time, at } => {
                let alone = self.foreground_work.without(at, time);
                let others = self.jobs.iter().enumerate().filter(|(other, _)| *other != slot);
                let undisturbed = others
                    .map(|(_, other)| other.work.without(at, time))
                    .fold(alone, Ns::min);
                if let Some(job) = self.jobs.get_mut(slot) {
                    let parts = (alone, undisturbed);
                    job.times.measured(kernel, time, at, parts, state.config.delay_bound);
                    job.count_launches(kernel, &state.config);
                }
            }
            Observed::Bounded {
                slot,
                kernel,
                bounds,
                at,
            } => {
                if let Some(job) = self.jobs.get_mut(slot) {
                    job.times.took_between(kernel, bounds, at, state.config.delay_bound);
                    job.count_launches(kernel, &state.config);
                }
            }
            Observed::WokenLate(late) => self.device.wake_took(late),
            Observed::TurnOver { .. } | Observed::GapUsed { .. } | Observed::Decides => {}
        }
    }
}

/// Slowdown that a foreground job allows, a part of its time, and its longest stretch, ns.
fn allowed(state: &SchedulerState, slot: ClientSlot) -> (f64, Option<Ns>) {
    let budget = state.get(slot).map(|client| client.budget);
    budget.map_or((0.0, None), |budget| budget.allowed(&state.config))
}

/// Start of the time in which only this background job had the device.
fn undisturbed_since(state: &SchedulerState, slot: ClientSlot) -> Ns {
    let out = |other: &ClientSlot| state.get(*other).is_some_and(|other| other.ledger.outstanding() > 0);
    if state.exposed.iter().any(|other| *other != slot && out(other)) {
        return Ns::MAX;
    }
    let ends = state
        .foreground()
        .filter_map(|(_, client)| client.busy.end_if_launched());
    ends.max().unwrap_or(0).saturating_add(state.config.switch_cost)
}
