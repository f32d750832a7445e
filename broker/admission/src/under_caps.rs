// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which jobs may begin and grow under the caps of their users.
#![forbid(unsafe_code)]

use super::caps::{CapLack, UserCap};
use super::event::{Ask, Decision, Never};
use super::model::WaitingJob;
use super::need::{Job, Need, User};
use super::state::Admission;

impl Admission {
    /// Sets a user's cap. Waiters for which it leaves no room are refused.
    pub(super) fn set_cap(&mut self, user: User, cap: UserCap, out: &mut Vec<Decision>) {
        self.caps.set(user, cap);
        self.refuse_beyond_caps(out);
    }

    /// Refuses waiters that can never run under their users' caps.
    pub(super) fn refuse_beyond_caps(&mut self, out: &mut Vec<Decision>) {
        if self.caps.is_empty() {
            return;
        }
        let beyond = self.waiting.iter().filter_map(|waiter| {
            let why = self.beyond_cap(&waiter.ask)?;
            Some((waiter.ask.job, why))
        });
        for (job, why) in beyond.collect::<Vec<_>>() {
            self.remove(job);
            out.push(Decision::Refuse { job, why });
        }
    }

    /// Why the job can never run under its user's cap.
    pub(super) fn beyond_cap(&self, ask: &Ask) -> Option<Never> {
        let cap = self.caps.of(ask.user)?;
        let part = self.caps.is_part(ask.job);
        if cap.jobs == Some(0) && !part {
            return Some(Never::NoJobs);
        }
        let most = cap.memory?;
        // For a part, its own job's memory counts too, because that job does not end before it.
        let left = match part {
            true => most.saturating_sub(self.held_by(ask.user).1),
            false => most,
        };
        let need = self.least_need(ask)?;
        (need > left).then_some(match part {
            true => Never::PartOverCap { need, left, most },
            false => Never::OverCap { need, most },
        })
    }

    /// Least bytes of the job on any device, in the form that takes least.
    fn least_need(&self, ask: &Ask) -> Option<u64> {
        let (first, second) = ask.need.forms();
        let least = |need: Need| self.allowed(ask).map(|device| need.fixed(device)).min();
        [Some(first), second].into_iter().flatten().filter_map(least).min()
    }

    /// Jobs and bytes of a user's running jobs.
    fn held_by(&self, user: User) -> (u32, u64) {
        let own = self.running.values().filter(|running| running.ask.user == user);
        own.fold((0, 0), |(jobs, bytes), running| {
            let one = u32::from(!self.caps.is_part(running.ask.job));
            (jobs + one, bytes.saturating_add(running.share))
        })
    }

    /// The cap under which `bytes` more of a new job lack room.
    fn lacks_under_cap(&self, waiter: &WaitingJob, bytes: u64) -> Option<CapLack> {
        let user = waiter.ask.user;
        let cap = self.caps.of(user)?;
        if self.caps.is_part(waiter.ask.job) {
            return None;
        }
        let (jobs, has) = self.held_by(user);
        if cap.jobs.is_some_and(|most| jobs >= most) {
            return Some(CapLack::Jobs(jobs));
        }
        let most = cap.memory.filter(|most| has.saturating_add(bytes) > *most)?;
        Some(CapLack::Memory { has, most })
    }

    /// The cap that keeps a waiter from beginning anywhere, in any form.
    pub(super) fn capped(&self, waiter: &WaitingJob) -> Option<CapLack> {
        // Without caps no other state is looked at.
        self.caps.of(waiter.ask.user)?;
        self.lacks_under_cap(waiter, self.least_need(&waiter.ask)?)
    }

    /// Whether a waiter's cap has room for this many bytes.
    pub(super) fn cap_has_room(&self, waiter: &WaitingJob, bytes: u64) -> bool {
        self.lacks_under_cap(waiter, bytes).is_none()
    }

    /// Bytes that a running job may still take under its limit and its user's cap; `None`: it has
    /// neither.
    pub fn cap_left(&self, job: Job) -> Option<u64> {
        let (own, all) = (self.limit_left(job), self.user_left(job));
        own.zip(all).map(|(own, all)| own.min(all)).or(own).or(all)
    }

    fn user_left(&self, job: Job) -> Option<u64> {
        let user = self.running.get(&job)?.ask.user;
        let most = self.caps.of(user)?.memory?;
        Some(most.saturating_sub(self.held_by(user).1))
    }

    /// The cap that keeps a running job from this many bytes more.
    pub fn growth_capped(&self, job: Job, bytes: u64) -> Option<CapLack> {
        if self.limit_left(job).is_some_and(|left| bytes > left) {
            return self.limit(job).map(CapLack::Limit);
        }
        let left = self.user_left(job)?;
        let user = self.running.get(&job)?.ask.user;
        let most = self.caps.of(user)?.memory?;
        let has = self.held_by(user).1;
        (bytes > left).then_some(CapLack::Memory { has, most })
    }
}
