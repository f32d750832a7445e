// SPDX-License-Identifier: MIT OR Apache-2.0
//! The job table as `weft queue` shows it.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use super::auto_backing;
use super::devices::Devices;
use super::growth::Growth;
use super::history::AdmissionHistory;
use super::job_table::{Gang, JobTable};
use super::observed_usage::ObservedUsage;
use crate::base::clock;
use crate::base::options::Rights;
use weft_admission::{Admission, AdmissionPolicy, CapLack, DeviceId, DurationClass, Job, Lack};
use weft_api::job_name;
use weft_api::queue::{CapRow, DeviceRow, Queue, RunningRow, WaitingRow, WeightRow};
use weft_api::status::SCHEMA;
use weft_protocol::Ns;
use weft_protocol::amount::apart;

/// State from which the answer is made.
#[derive(Debug)]
pub struct QueueReport<'a> {
    pub machine: &'a Admission,
    pub jobs: &'a JobTable,
    pub devices: &'a Devices,
    pub growth: &'a Growth,
    pub history: &'a AdmissionHistory,
    pub usage: &'a ObservedUsage,
    pub rights: &'a Rights,
}

impl QueueReport<'_> {
    /// The answer without expected begins: these take longer than the job table may be locked.
    pub fn queue(&self) -> Queue {
        let now = clock::now();
        let seconds = |ns: Ns| ns as f64 / 1e9;
        let view = self.machine.view();
        let about = |job: Job| {
            let gang = self.jobs.gang(job);
            let here = gang.and_then(|gang| gang.members.values().next());
            let absent = gang.and_then(|gang| gang.unreattached.first());
            let (pid, name, command) = match (here, absent) {
                (Some(member), _) => {
                    let entry = member.entry();
                    (entry.pid, entry.name.clone(), entry.command.clone())
                }
                (None, Some(absent)) => (
                    absent.process.pid,
                    job_name::of(None, &absent.command),
                    absent.command.clone(),
                ),
                (None, None) => Default::default(),
            };
            (
                self.jobs.clients_of(job),
                pid,
                gang.map(|gang| (gang.user.clone(), gang.uid)).unwrap_or_default(),
                (name, command),
            )
        };
        // A job without a declared run time is expected to take the usual time.
        let guesses = |device: DeviceId| {
            let mut there = self.jobs.on(device);
            there.any(|(_, gang)| !gang.timed)
        };
        let uuid = |device: DeviceId| self.devices.uuid(device).cloned().unwrap_or_default();
        let devices = view.devices.iter().map(|(device, _, free)| DeviceRow {
            uuid: uuid(device.id),
            memory: device.memory,
            context: device.context,
            foreign: device.foreign,
            free: *free,
        });
        let running = view.running.iter().map(|row| {
            let (clients, pid, (user, uid), (name, command)) = about(row.ask.job);
            let held = self.jobs.gang(row.ask.job).map_or(0, Gang::held);
            RunningRow {
                clients,
                pid,
                name,
                device: uuid(row.device),
                user,
                uid,
                command,
                priority: row.ask.priority,
                share: row.share,
                memory: auto_backing::name_of(row.ask.need.backing).to_string(),
                request: row.ask.need.limit.map(|_| row.ask.need.peak),
                limit: row.ask.need.limit,
                held,
                waits_for: self.growth.lacks(row.ask.job),
                since_s: seconds(now.saturating_sub(row.since)),
            }
        });
        let waiting = view.waiting.iter().map(|row| {
            let (clients, pid, (user, uid), (name, command)) = about(row.ask.job);
            let reason = match (row.lack, row.blocked_by, row.capped) {
                _ if row.suspended => "is suspended: other jobs go first until it continues".to_string(),
                (_, _, Some(capped)) => at_cap(capped, row.needs),
                (Some(Lack::Device), ..) => {
                    let [needs, free] = apart([row.needs, row.free]);
                    format!("needs {needs} of device memory, {free} are free")
                }
                (Some(Lack::Host), ..) => "there is too little host memory for another managed job".to_string(),
                (Some(Lack::Link), ..) => "moving one more managed job between turns would take too long".to_string(),
                (None, Some(job), _) => {
                    let (_, pid, ..) = about(job);
                    let [needs, free] = apart([row.needs, row.free]);
                    format!("needs {needs}; {free} are free but kept for process {pid}, whose turn it is")
                }
                (None, None, _) => "its turn has not come".to_string(),
            };
            let cramped = self.jobs.gang(row.ask.job).and_then(|gang| gang.cramped);
            let reason = reason + &cramped.map_or(String::new(), auto_backing::reason);
            let device = row.ask.devices.first().map(|device| uuid(*device));
            WaitingRow {
                position: row.position as u64,
                clients,
                pid,
                name,
                device: device.unwrap_or_default(),
                user,
                uid,
                command,
                priority: row.ask.priority,
                needs: row.needs,
                duration: DurationClass::from_expected(row.ask.need.expected).name().to_string(),
                waited_s: seconds(now.saturating_sub(row.arrived)),
                reason,
                begins_s: None,
                guess: row.ask.devices.iter().copied().any(guesses),
            }
        });
        Queue {
            schema: SCHEMA,
            others: Vec::new(),
            policy: AdmissionPolicy::default().to_string(),
            devices: devices.collect(),
            running: running.collect(),
            waiting: waiting.collect(),
            admitted: self.history.admitted,
            waited: self.history.waited,
            refused: self.history.refused,
            denied: self.history.denied,
            weights: self
                .jobs
                .weights()
                .map(|(user, weight)| WeightRow {
                    user: user.clone(),
                    weight: *weight,
                })
                .collect(),
            caps: caps(self.rights),
            learnt: self.usage.rows(),
            freed: self.history.freed(),
        }
    }
}

/// Reason for the wait of a job whose user is at a cap.
fn at_cap(cap: CapLack, needs: u64) -> String {
    match cap {
        CapLack::Limit(limit) => {
            let [needs, limit] = apart([needs, limit]);
            format!("needs {needs}, and its limit is {limit}")
        }
        CapLack::Jobs(1) => "its user runs 1 job and may run no more at once (a cap of this broker)".to_string(),
        CapLack::Jobs(jobs) => format!("its user runs {jobs} jobs and may run no more at once (a cap of this broker)"),
        CapLack::Memory { has, most } => {
            let [needs, has, most] = apart([needs, has, most]);
            format!(
                "needs {needs}, and its user's jobs have {has} of the {most} that they may have at once (a cap of this broker)"
            )
        }
    }
}

/// Caps by user; the cap of all other users is last.
fn caps(rights: &Rights) -> Vec<CapRow> {
    let (jobs, memory) = (&rights.jobs, &rights.memory);
    let named: BTreeSet<u32> = jobs.users.keys().chain(memory.users.keys()).copied().collect();
    let row = |uid: Option<u32>| CapRow {
        uid,
        jobs: uid.map_or(jobs.others, |uid| jobs.of(uid)),
        memory: uid.map_or(memory.others, |uid| memory.of(uid)),
    };
    let others = (jobs.others.is_some() || memory.others.is_some()).then_some(None);
    named.into_iter().map(Some).chain(others).map(row).collect()
}

/// Fills in expected begins. The rows must be those of this core, in its order.
pub fn foresee(machine: &Admission, queue: &mut Queue) {
    let now = clock::now();
    let forecast = machine.forecast();
    let waiting = machine.view().waiting;
    for (row, view) in queue.waiting.iter_mut().zip(waiting) {
        let expected = forecast.get(&view.ask.job);
        row.begins_s = expected.map(|expected| expected.begin.saturating_sub(now) as f64 / 1e9);
    }
}
