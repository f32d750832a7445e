// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places for jobs that have not started: `weft run --gpu any` asks for one before it becomes the
//! job.
//!
//! A place is promised until the job arrives, its process ends, or [`PROMISE_NS`] is over. So two
//! simultaneous queries do not count on the same free memory. A promise binds only other queries.
#![forbid(unsafe_code)]

use super::device_facts::DeviceFacts;
use super::devices::Devices;
use super::job_table::JobTable;
use super::request::{MOST_PROCESSES, UNKNOWN_PART};
use crate::base::clock;
use crate::base::process::Process;
use weft_admission::{Admission, Ask, Backing, Candidate, DeviceId, DurationClass, Event, Job, Need, Never, User};
use weft_api::placement::{JobPlace, Seeker};
use weft_protocol::Ns;

/// Time to load a framework and a model before the first context. A later job loses its claim.
const PROMISE_NS: Ns = 120_000_000_000;

/// Most devices of one query.
const OFFERED_DEVICES: usize = 128;

/// Most promises.
const PROMISES: usize = 1024;
/// Most promises for one user.
const PROMISES_OF_A_USER: usize = 128;

/// A promised place.
#[derive(Debug)]
struct Promise {
    gang: String,
    process: Process,
    until: Ns,
    ask: Ask,
    /// UUID, because a query does not give an unknown device a number.
    device: String,
}

/// Promised places, the oldest first.
#[derive(Debug, Default)]
pub struct Promises(Vec<Promise>);

/// State on which a promise depends.
#[derive(Debug)]
pub struct Situation<'a> {
    pub machine: &'a Admission,
    pub jobs: &'a JobTable,
    pub devices: &'a Devices,
    pub facts: &'a DeviceFacts,
}

impl Promises {
    /// Drops ended promises and this seeker's earlier ones. `came` is true if a job of this name
    /// has arrived.
    fn prune(&mut self, now: Ns, seeker: &Seeker, came: impl Fn(&str) -> bool) {
        self.0.retain(|promise| {
            let same = promise.gang == seeker.gang || promise.process.pid == seeker.pid;
            !came(&promise.gang) && now < promise.until && promise.process.runs() != Some(false) && !same
        });
    }

    /// The promised requests with their devices' numbers.
    fn asks(&self, number: impl Fn(&str) -> Option<DeviceId>) -> Vec<(Ask, DeviceId)> {
        let known = |promise: &Promise| Some((promise.ask.clone(), number(&promise.device)?));
        self.0.iter().filter_map(known).collect()
    }

    /// Adds a promise. Beyond a bound, the user's oldest promise is dropped, or else this one.
    fn push(&mut self, promise: Promise) {
        let user = promise.ask.user;
        let own = self.0.iter().filter(|it| it.ask.user == user).count();
        if own >= PROMISES_OF_A_USER || self.0.len() >= PROMISES {
            let oldest = self.0.iter().position(|it| it.ask.user == user);
            oldest.map(|at| self.0.remove(at));
        }
        self.0.push(promise);
        self.0.truncate(PROMISES);
    }

    /// Promises a job the best device.
    pub fn place(&mut self, seeker: &Seeker, user: User, situation: &Situation<'_>) -> Result<JobPlace, Never> {
        let now = clock::now();
        self.prune(now, seeker, |name| situation.jobs.is_named(name));
        // Only for this answer, unknown devices are as large as reported.
        let mut machine = situation.machine.clone();
        let devices = situation.devices;
        let mut numbers: Vec<(String, DeviceId)> = devices.uuids().iter().cloned().zip(devices.ids()).collect();
        let offers = seeker.devices.get(..OFFERED_DEVICES).unwrap_or(&seeker.devices);
        for offer in offers {
            if numbers.iter().all(|(uuid, _)| *uuid != offer.uuid) {
                let id = DeviceId(numbers.len() as u32);
                let size = devices.listed_bytes(&offer.uuid).unwrap_or(offer.memory);
                let device = situation.facts.device(id, &offer.uuid, size);
                machine.handle(now, Event::Device(device), &mut Vec::new());
                numbers.push((offer.uuid.clone(), id));
            }
        }
        let number = |uuid: &str| numbers.iter().find(|(known, _)| known == uuid).map(|(_, id)| *id);
        let devices: Vec<DeviceId> = offers.iter().filter_map(|it| number(&it.uuid)).collect();
        let least = seeker.devices.iter().map(|it| it.memory).min().unwrap_or(0);
        let most = seeker.devices.iter().map(|it| it.memory).max().unwrap_or(0);
        let peak = seeker.memory.unwrap_or(least / UNKNOWN_PART);
        let expected = match seeker.duration.as_deref() {
            Some("short") => DurationClass::Short,
            Some("long") => DurationClass::Long,
            _ => DurationClass::Medium,
        };
        let ask = Ask {
            job: Job(u64::MAX),
            user,
            priority: seeker.priority,
            need: Need {
                peak,
                processes: seeker.processes.clamp(1, MOST_PROCESSES),
                expected: expected.expected(),
                backing: match seeker.managed {
                    true => Backing::Managed {
                        working_set: peak.min(most),
                    },
                    false if seeker.either => Backing::Auto {
                        working_set: peak.min(most),
                    },
                    false => Backing::Device,
                },
                limit: None,
            },
            devices: devices.clone(),
        };
        // On a device without weft's jobs, all memory in use is foreign. For other devices the core
        // has a better figure.
        let strangers = devices.iter().zip(offers).filter_map(|(device, offer)| {
            let idle = machine.load(*device).fixed == 0;
            Some((*device, offer.memory.saturating_sub(offer.free?))).filter(|_| idle)
        });
        let strangers: Vec<(DeviceId, u64)> = strangers.collect();
        let promises = self.asks(number);
        let candidate = Candidate {
            ask,
            declared: seeker.memory.is_some(),
        };
        let placed = machine.best_place(now, &candidate, &promises, &strangers)?;
        let uuid = numbers
            .into_iter()
            .find(|(_, id)| *id == placed.device)
            .map(|(uuid, _)| uuid);
        let uuid = uuid.unwrap_or_default();
        self.push(Promise {
            gang: seeker.gang.clone(),
            process: match seeker.unseen {
                true => Process::unseen(seeker.pid),
                false => Process::of(seeker.pid),
            },
            until: now.saturating_add(PROMISE_NS),
            ask: candidate.ask,
            device: uuid.clone(),
        });
        let wait = placed.begin.map(|begin| begin.saturating_sub(now) as f64 / 1e9);
        Ok(JobPlace {
            uuid,
            left: placed.left,
            begins_s: wait.filter(|_| placed.left.is_none()),
        })
    }
}
