// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs on several devices that wait for each other.
//!
//! A job that holds memory on one device and waits on another can wait for a job that does the
//! opposite, for ever. The latest waiter of such jobs gets CUDA's out-of-memory error.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use super::growth::Growth;
use super::job_table::JobTable;
use weft_admission::{Admission, DeviceId, Job};
use weft_protocol::Ns;

/// A wait to be ended so that other jobs can continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeadlockVictim {
    /// A running client that waits for more.
    Client(u64),
    /// A job that waits to begin.
    Job(Job),
}

/// A wait for memory of a device.
#[derive(Debug)]
struct StuckWait {
    group: Job,
    /// Device and bytes; `None`: the device is not known.
    needs: Option<(DeviceId, u64)>,
    since: Ns,
    victim: DeadlockVictim,
}

/// The latest waiter among jobs that wait for each other.
pub fn victim(machine: &Admission, jobs: &JobTable, growth: &Growth) -> Option<DeadlockVictim> {
    if !jobs.has_groups() {
        return None;
    }
    let about = |id: DeviceId| machine.devices().find(|about| about.id == id);
    let view = machine.view();
    let mut held: BTreeMap<Job, Vec<(DeviceId, u64)>> = BTreeMap::new();
    for row in &view.running {
        let share = (row.device, row.share);
        held.entry(jobs.group_of(row.ask.job)).or_default().push(share);
    }
    let mut waits: Vec<StuckWait> = Vec::new();
    for row in &view.waiting {
        let device = row.ask.devices.first().and_then(|device| about(*device));
        waits.push(StuckWait {
            group: jobs.group_of(row.ask.job),
            needs: device.map(|device| (device.id, row.ask.need.fixed(device))),
            since: row.arrived,
            victim: DeadlockVictim::Job(row.ask.job),
        });
    }
    for grower in growth.iter() {
        let share = machine.share(grower.job());
        waits.push(StuckWait {
            group: jobs.group_of(grower.job()),
            needs: share.map(|(device, _)| (device, grower.lacks())),
            since: grower.since(),
            victim: DeadlockVictim::Client(grower.client()),
        });
    }
    let mut stuck: BTreeSet<Job> = waits.iter().map(|wait| wait.group).collect();
    // A job that waits for nothing will end; so will jobs that then have room.
    while let Some(freed) = stuck.iter().copied().find(|job| {
        let mut needs = waits.iter().filter(|wait| wait.group == *job);
        needs.all(|wait| {
            let known = wait.needs.and_then(|(device, bytes)| Some((about(device)?, bytes)));
            known.is_none_or(|(device, bytes)| {
                let shares = stuck.iter().filter_map(|job| held.get(job)).flatten();
                let taken = shares.filter(|(at, _)| *at == device.id).map(|(_, share)| *share);
                let taken = taken.fold(0, u64::saturating_add);
                taken.saturating_add(bytes) <= device.memory
            })
        })
    }) {
        stuck.remove(&freed);
    }
    let tied = waits
        .iter()
        .filter(|wait| stuck.contains(&wait.group) && held.contains_key(&wait.group));
    tied.max_by_key(|wait| (wait.since, wait.victim))
        .map(|wait| wait.victim)
}
