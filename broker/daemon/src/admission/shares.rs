//! How a job's share is divided among its processes.
//!
//! A process that comes gets an equal part, one that needs more gets what its siblings do not hold,
//! and only then what is free on the device. What holds: the parts of the processes and their
//! contexts are together no more than the job's share, but for what a process is just about to take
//! when a part of its own is taken back; it asks for that at its next allocation.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::book::{Book, Gang, Member};
use weft_admission::{Admission, Job};

impl Member {
    /// What it may have, without its context. 0: it was not let in.
    fn part(&self) -> u64 {
        self.entry.lane.admission_slot.quota.load(Ordering::Acquire)
    }

    /// Takes back what it may have and does not hold, down to `least`, and `wanted` at most.
    /// Nothing while its memory changes: what it holds is not known then.
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

impl Book {
    /// An equal part of an admitted job's share, contexts left out.
    pub fn part(&self, job: Job) -> Option<u64> {
        part(&self.machine, &self.gangs, job)
    }

    /// Puts a process of a known job where the job is.
    pub fn admission_slot_or_wait(&self, client: u64, job: Job) {
        match self.part(job) {
            Some(part) => self.admission_slot(client, self.gather(client, job, part, part)),
            None => self.waits(job),
        }
    }

    /// What a job's processes were given, their contexts with it.
    pub fn given(&self, job: Job, context: u64) -> u64 {
        let members = self.gangs.get(&job).into_iter().flat_map(|gang| gang.members.values());
        let parts = members.map(Member::part).filter(|part| *part > 0);
        parts
            .map(|part| part.saturating_add(context))
            .fold(0, u64::saturating_add)
    }

    /// So much of what is wanted can this process have out of its job's share: what nobody was
    /// given, and what its siblings were given beyond `least` and do not hold. It is not given yet.
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
        // Who has not come back from the broker before has its part.
        let processes = gang.members.len() + gang.absent.len();
        let absent = share / processes.max(1) as u64 * gang.absent.len() as u64;
        let mut gathered = share.saturating_sub(given).saturating_sub(absent).min(wanted);
        for member in gang.siblings(client) {
            gathered += member.give_back(least, wanted - gathered);
        }
        gathered
    }
}

/// What each process of a running job may have, its context left out.
pub fn part(machine: &Admission, gangs: &HashMap<Job, Gang>, job: Job) -> Option<u64> {
    let (device, share) = machine.share(job)?;
    let gang = gangs.get(&job)?;
    let about = machine.devices().find(|about| about.id == device);
    let context = about.map_or(0, |it| it.context);
    let there = gang.members.len() + gang.absent.len();
    let processes = u64::from(gang.processes.max(there as u32)).max(1);
    Some((share / processes).saturating_sub(context))
}
