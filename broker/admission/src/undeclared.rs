// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other jobs may take the part of its share that an undeclared job does not hold.
//!
//! A job that declared no need was promised no memory. A request that lacks memory gets the unheld
//! part of such jobs' shares:
//! * at once, if it is at least as important as they are;
//! * else the part that they have not held for [`UNHELD_NS`](super::held_bytes::UNHELD_NS).
//!
//! They keep the memory with which they were admitted. A job may be taking memory at that moment.
//! So the caller takes the bytes from the job's processes, and reports the result
//! ([`super::Event::Gives`]).
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::held_bytes::HeldBytes;
use super::load::Load;
use super::model::RunningJob;
use super::need::{Device, DeviceId, Job};
use super::state::Admission;
use weft_protocol::Ns;

impl Admission {
    /// Notes the bytes that an undeclared job now holds, with contexts.
    pub(super) fn note_usage(&mut self, job: Job, bytes: u64) {
        let now = self.now;
        if let Some(running) = self.running.get_mut(&job) {
            match &mut running.usage {
                Some(usage) => usage.update(bytes, now),
                None => running.usage = Some(HeldBytes::new(bytes, now)),
            }
        }
    }

    /// Repeats each job's last report at this time. A job that frees its memory in steps and then
    /// stays as it is would otherwise keep what it held after the first step.
    pub(super) fn refresh_usages(&mut self) {
        let now = self.now;
        let usages = self.running.values_mut().filter_map(|running| running.usage.as_mut());
        usages.for_each(|usage| usage.update(usage.current(), now));
    }

    /// Bytes that an undeclared job holds, by its last report.
    pub fn usage(&self, job: Job) -> Option<u64> {
        self.running.get(&job)?.usage.map(|usage| usage.current())
    }

    /// Bytes that undeclared jobs keep from less important ones at this time: the sum for all.
    pub fn kept(&self, now: Ns) -> u64 {
        let usages = self.running.values().filter_map(|running| running.usage);
        usages
            .map(|usage| usage.lately(now).max(usage.current()))
            .fold(0, u64::saturating_add)
    }

    /// Bytes of a job's share that a request of this priority may have.
    fn unheld(&self, running: &RunningJob, priority: u8) -> u64 {
        let about = self.devices.get(&running.device);
        let Some((usage, about)) = running.usage.zip(about) else {
            return 0;
        };
        // It waits for more, so it will take its whole share.
        if self.growing.iter().any(|growing| growing.job == running.ask.job) {
            return 0;
        }
        let keeps = match priority <= running.ask.priority {
            true => usage.current(),
            false => usage.lately(self.now).max(usage.current()),
        };
        running.share.saturating_sub(keeps.max(running.ask.need.fixed(about)))
    }

    /// Undeclared jobs of a device except `job`, with the bytes that a request of this priority may
    /// have.
    pub fn all_unheld(&self, device: DeviceId, job: Job, priority: u8) -> impl Iterator<Item = (Job, u64)> {
        let others = self.running.values();
        let others = others.filter(move |it| it.device == device && it.ask.job != job);
        others
            .map(move |it| (it.ask.job, self.unheld(it, priority)))
            .filter(|(_, bytes)| *bytes > 0)
    }

    /// Bytes that a running job would get beyond its share.
    pub fn obtainable(&self, job: Job) -> u64 {
        let own = self.running.get(&job);
        let Some((own, about)) = own.and_then(|own| Some((own, self.devices.get(&own.device)?))) else {
            return 0;
        };
        let unheld = self.all_unheld(about.id, job, own.ask.priority).map(|(_, bytes)| bytes);
        unheld.fold(self.load(about.id).free(about), u64::saturating_add)
    }

    /// Whether the shares on a running job's device exceed the memory that strangers left there.
    pub fn is_overfull(&self, job: Job) -> bool {
        let about = self.running.get(&job).and_then(|own| self.devices.get(&own.device));
        about.is_some_and(|about| self.load(about.id).lacks(about) > 0)
    }

    /// Bytes that each undeclared job is to give up so that the device can carry `load`. Empty if
    /// all their bytes would not suffice.
    fn gives_up(&self, about: &Device, load: &Load, job: Job, priority: u8) -> Vec<(Job, u64)> {
        let mut lacks = load.lacks(about);
        let mut unheld: Vec<(Job, u64)> = match lacks {
            0 => Vec::new(),
            _ => self.all_unheld(about.id, job, priority).collect(),
        };
        if unheld.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add) < lacks {
            return Vec::new();
        }
        // Few jobs should have to ask again.
        unheld.sort_unstable_by_key(|(job, bytes)| (Reverse(*bytes), *job));
        for (_, bytes) in &mut unheld {
            *bytes = lacks.min(*bytes);
            lacks -= *bytes;
        }
        unheld.retain(|(_, bytes)| *bytes > 0);
        unheld
    }

    /// Bytes that each undeclared job is to give up so that a running job has `bytes` more.
    pub fn gives_up_for(&self, job: Job, bytes: u64) -> Vec<(Job, u64)> {
        let own = self.running.get(&job);
        let Some((own, about)) = own.and_then(|own| Some((own, self.devices.get(&own.device)?))) else {
            return Vec::new();
        };
        if self.growth_capped(job, bytes).is_some() {
            return Vec::new();
        }
        let mut load = self.load(about.id);
        load.fixed = load.fixed.saturating_add(bytes);
        self.gives_up(about, &load, job, own.ask.priority)
    }

    /// Bytes that each undeclared job is to give up so that waiting jobs continue: those that wait
    /// to begin, and those that wait for more.
    pub fn gives_up_for_waiters(&self) -> BTreeMap<Job, u64> {
        let mut most = BTreeMap::new();
        let mut note = |given: Vec<(Job, u64)>| {
            for (job, bytes) in given {
                let entry = most.entry(job).or_insert(0);
                *entry = bytes.max(*entry);
            }
        };
        if self.running.values().all(|running| running.usage.is_none()) {
            return most;
        }
        for growing in &self.growing {
            note(self.gives_up_for(growing.job, growing.bytes));
        }
        for waiter in self.waiting.iter().filter(|waiter| self.is_active(waiter)) {
            let (need, _) = waiter.ask.need.forms();
            for about in self.allowed(&waiter.ask) {
                let load = self.device_sums(about.id).map_or_else(Load::default, |sums| sums.load);
                let load = load.with(&need, need.fixed(about));
                note(self.gives_up(about, &load, waiter.ask.job, waiter.ask.priority));
            }
        }
        most
    }
}
