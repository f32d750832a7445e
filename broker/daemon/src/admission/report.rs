//! The book as `weft queue` shows it.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use super::auto_backing;
use super::controller::{ADMITTED, Controller, DENIED, REFUSED, WAITED};
use super::rows::{DeviceRow, Queue, RunningRow, WaitingRow, WeightRow};
use crate::clock;
use weft_admission::{Admission, Class, DeviceId, Job, Lack};
use weft_protocol::Ns;

impl Controller {
    /// All but the expected begins: these take longer than the book may be locked.
    pub fn queue(&self) -> Queue {
        let now = clock::now();
        let seconds = |ns: Ns| ns as f64 / 1e9;
        let view = self.machine.view();
        let about = |job: Job| {
            let gang = self.gangs.get(&job);
            let here = gang.and_then(|gang| gang.members.values().next());
            let absent = gang.and_then(|gang| gang.absent.first());
            let (pid, command) = match (here, absent) {
                (Some(member), _) => (member.entry.pid, member.entry.command.clone()),
                (None, Some(absent)) => (absent.process.pid, absent.command.clone()),
                (None, None) => (0, String::new()),
            };
            (
                gang.map(|gang| gang.members.keys().copied().collect())
                    .unwrap_or_default(),
                pid,
                gang.map(|gang| (gang.user.clone(), gang.uid)).unwrap_or_default(),
                command,
            )
        };
        // A job without a declared run time is expected to take the usual time.
        let guesses = |device: DeviceId| {
            let mut there = self.gangs.values().filter(|gang| gang.device == device);
            there.any(|gang| !gang.timed)
        };
        let devices = view.devices.iter().map(|(device, _, free)| DeviceRow {
            uuid: self.devices.get(device.id.0 as usize).cloned().unwrap_or_default(),
            memory: device.memory,
            context: device.context,
            foreign: device.foreign,
            free: *free,
        });
        let running = view.running.iter().map(|row| {
            let (clients, pid, (user, uid), command) = about(row.ask.job);
            let held = self.gangs.get(&row.ask.job).map_or(0, |gang| {
                gang.members
                    .values()
                    .map(|member| member.entry.lane.counters.memory.load(Ordering::Relaxed))
                    .sum()
            });
            RunningRow {
                clients,
                pid,
                device: self.devices.get(row.device.0 as usize).cloned().unwrap_or_default(),
                user,
                uid,
                command,
                priority: row.ask.priority,
                share: row.share,
                memory: Controller::memory_of(row.ask.need.backing).to_string(),
                held,
                waits_for: self.growth.lacks(row.ask.job),
                since_s: seconds(now.saturating_sub(row.since)),
            }
        });
        let waiting = view.waiting.iter().map(|row| {
            let (clients, pid, (user, uid), command) = about(row.ask.job);
            let reason = match (row.lack, row.behind) {
                _ if row.away => "is suspended: others go first until it goes on".to_string(),
                (Some(Lack::Device), _) => format!(
                    "needs {} of device memory, {} are free",
                    size(row.needs),
                    size(row.free)
                ),
                (Some(Lack::Host), _) => "there is too little host memory for another managed job".to_string(),
                (Some(Lack::Link), _) => "moving one more managed job between turns would take too long".to_string(),
                (None, Some(job)) => {
                    let (_, pid, ..) = about(job);
                    format!(
                        "needs {}; {} are free and kept for process {pid}, whose turn it is",
                        size(row.needs),
                        size(row.free)
                    )
                }
                (None, None) => "its turn has not come".to_string(),
            };
            let cramped = self.gangs.get(&row.ask.job).and_then(|gang| gang.cramped);
            let reason = reason + &cramped.map_or(String::new(), auto_backing::reason);
            let device = row.ask.devices.first().and_then(|id| self.devices.get(id.0 as usize));
            WaitingRow {
                position: row.position as u64,
                clients,
                pid,
                device: device.cloned().unwrap_or_default(),
                user,
                uid,
                command,
                priority: row.ask.priority,
                needs: row.needs,
                duration: Class::of(row.ask.need.expected).name().to_string(),
                waited_s: seconds(now.saturating_sub(row.came)),
                reason,
                begins_s: None,
                guess: row.ask.devices.iter().copied().any(guesses),
            }
        });
        Queue {
            others: Vec::new(),
            policy: self.config.policy.to_string(),
            devices: devices.collect(),
            running: running.collect(),
            waiting: waiting.collect(),
            admitted: self.sums[ADMITTED],
            waited: self.sums[WAITED],
            refused: self.sums[REFUSED],
            denied: self.sums[DENIED],
            weights: self
                .weights
                .iter()
                .map(|(user, weight)| WeightRow {
                    user: user.clone(),
                    weight: *weight,
                })
                .collect(),
            learnt: self.learnt.rows(),
            freed: self.freed.iter().rev().cloned().collect(),
        }
    }
}

/// Fills in expected begins. The rows are of this core, in its order.
pub fn foresee(machine: &Admission, queue: &mut Queue) {
    let now = clock::now();
    let forecast = machine.forecast();
    let waiting = machine.view().waiting;
    for (row, view) in queue.waiting.iter_mut().zip(waiting) {
        let expected = forecast.get(&view.ask.job);
        row.begins_s = expected.map(|expected| expected.begin.saturating_sub(now) as f64 / 1e9);
    }
}

/// Bytes for people, in GiB.
pub fn size(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1u32 << 30))
}
