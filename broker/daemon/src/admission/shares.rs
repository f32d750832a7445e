//! The division of a job's share among its processes.
//!
//! A new process gets an equal part. One that needs more gets what its siblings do not hold, then
//! what is free on the device.
//!
//! What holds: `sum(part + context) <= share`. It is exceeded only while a process takes memory as
//! its part is taken back; its next allocation asks for that.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::controller::{Controller, Gang, Member};
use weft_admission::{Admission, Job};

impl Member {
    /// Its quota, bytes without context; 0: not admitted.
    fn part(&self) -> u64 {
        self.entry.lane.admission_slot.quota.load(Ordering::Acquire)
    }

    /// Takes back what it does not hold, `wanted` bytes at most, and leaves `least`. Nothing while
    /// its memory changes: what it holds is not known then.
    fn give_back(&self, least: u64, wanted: u64) -> u64 {
        let lane = &self.entry.lane;
        if lane.moves.still_since(u64::MAX) == Some(false) {
            return 0;
        }
        let keeps = lane.counters.memory.load(Ordering::Acquire).max(least).max(1);
        let given = self.part().saturating_sub(keeps).min(wanted);
        lane.admission_slot.quota.fetch_sub(given, Ordering::AcqRel);
        given
    }
}

impl Gang {
    fn siblings(&self, client: u64) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(move |(other, member)| **other != client && member.part() > 0)
            .map(|(_, member)| member)
    }
}

impl Controller {
    /// An equal part of an admitted job's share, without context.
    pub fn part(&self, job: Job) -> Option<u64> {
        part(&self.machine, &self.gangs, job)
    }

    /// Admits a process of an admitted job, or tells it to wait.
    pub fn admission_slot_or_wait(&self, client: u64, job: Job) {
        match self.part(job) {
            Some(part) => self.admission_slot(client, self.gather(client, job, part, part)),
            None => self.waits(job),
        }
    }

    /// Bytes given to a job's processes, with `context` bytes each.
    pub fn given(&self, job: Job, context: u64) -> u64 {
        let members = self.gangs.get(&job).into_iter().flat_map(|gang| gang.members.values());
        let parts = members.map(Member::part).filter(|part| *part > 0);
        parts
            .map(|part| part.saturating_add(context))
            .fold(0, u64::saturating_add)
    }

    /// Bytes of `wanted` that the job's share can give this process: what is not given, and what
    /// siblings have beyond `least` and do not hold. They are taken from siblings but not given
    /// yet.
    pub fn gather(&self, client: u64, job: Job, wanted: u64, least: u64) -> u64 {
        let Some((gang, (device, share))) = self.gangs.get(&job).zip(self.machine.share(job)) else {
            return 0;
        };
        if gang.managed {
            return 0;
        }
        let context = self.about(device).map_or(0, |it| it.context);
        let own = gang
            .members
            .get(&client)
            .map_or(0, Member::part)
            .saturating_add(context);
        let given = gang
            .siblings(client)
            .map(|member| member.part().saturating_add(context))
            .fold(own, u64::saturating_add);
        // Unreattached processes keep their parts.
        let processes = gang.members.len() + gang.absent.len();
        let absent = share / processes.max(1) as u64 * gang.absent.len() as u64;
        let mut gathered = share.saturating_sub(given).saturating_sub(absent).min(wanted);
        for member in gang.siblings(client) {
            gathered += member.give_back(least, wanted - gathered);
        }
        gathered
    }
}

/// Quota of each process of a running job, without context.
pub fn part(machine: &Admission, gangs: &HashMap<Job, Gang>, job: Job) -> Option<u64> {
    let (device, share) = machine.share(job)?;
    let gang = gangs.get(&job)?;
    let about = machine.devices().find(|about| about.id == device);
    let context = about.map_or(0, |it| it.context);
    let there = gang.members.len() + gang.absent.len();
    let processes = u64::from(gang.processes.max(there as u32)).max(1);
    Some((share / processes).saturating_sub(context))
}
