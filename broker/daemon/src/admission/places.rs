//! Places for jobs that have not come yet: `weft run --gpu any` asks where, before it becomes the
//! job.
//!
//! A place is promised until the job comes, its process ends, or [`PATIENCE`] is over: two jobs
//! that ask at the same moment are not both counted on the same room. A promise keeps nobody from
//! that room who does not ask for a place.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::book::{Book, MOST_PROCESSES, UNKNOWN};
use super::process::Process;
use crate::clock;
use weft_admission::{Ask, Backing, Candidate, Class, DeviceId, Event, Job, Need, Never};
use weft_protocol::Ns;

/// From its start to its first context a job may load a framework and a model; who takes longer has
/// lost its claim, not its place.
const PATIENCE: Ns = 120_000_000_000;

/// Devices of one question: more than a machine has.
const OFFERS: usize = 128;

/// Promises that stand, and of these those to one user's jobs.
const MOST: usize = 1024;
const EACH: usize = 128;

/// What a job says that asks for a place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Seeker {
    /// Its process, which the job will be.
    pub pid: u32,
    /// That number is not the one that the process has here: nothing is to be learnt by it. Said by
    /// the broker alone.
    #[serde(skip)]
    pub unseen: bool,
    /// What its processes will have in common.
    pub gang: String,
    /// Who shares fairly with whom.
    pub user: String,
    /// 0 to 9.
    pub priority: u8,
    /// Bytes at its peak, if anybody said.
    pub memory: Option<u64>,
    /// short, medium or long, if anybody said.
    pub duration: Option<String>,
    /// Processes that will come.
    #[serde(default)]
    pub processes: u32,
    /// Its memory is managed.
    pub managed: bool,
    /// Its memory is the device's where that is free, else managed.
    #[serde(default)]
    pub either: bool,
    /// Where it may run.
    pub devices: Vec<Offer>,
}

/// A device that a job may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// As `cuDeviceGetUuid` says, in hexadecimal.
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
    /// Bytes that are free now, if that is known.
    pub free: Option<u64>,
}

/// Where a job goes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The device.
    pub uuid: String,
    /// Bytes left beside it; `None`: it will wait.
    pub left: Option<u64>,
    /// Seconds until it is expected to begin, if it waits and anything is expected.
    pub begins_s: Option<f64>,
}

/// A place that was promised.
#[derive(Debug)]
struct Promise {
    gang: String,
    process: Process,
    until: Ns,
    ask: Ask,
    /// The device's UUID: a question alone makes no device known.
    device: String,
}

/// The places that are promised, the oldest first.
#[derive(Debug, Default)]
pub struct Promises(Vec<Promise>);

impl Promises {
    /// Forgets those that are over, and what this seeker was promised before. `came`: whether a job
    /// of this name is here.
    fn prune(&mut self, now: Ns, seeker: &Seeker, came: impl Fn(&str) -> bool) {
        self.0.retain(|promise| {
            let same = promise.gang == seeker.gang || promise.process.pid == seeker.pid;
            !came(&promise.gang) && now < promise.until && promise.process.runs() != Some(false) && !same
        });
    }

    /// What was promised where, by the devices' numbers.
    fn asks(&self, number: impl Fn(&str) -> Option<DeviceId>) -> Vec<(Ask, DeviceId)> {
        let known = |promise: &Promise| Some((promise.ask.clone(), number(&promise.device)?));
        self.0.iter().filter_map(known).collect()
    }

    /// One more. Where there are too many, the same user's oldest goes; where he has none, this
    /// one.
    fn push(&mut self, promise: Promise) {
        let user = promise.ask.user;
        let own = self.0.iter().filter(|it| it.ask.user == user).count();
        if own >= EACH || self.0.len() >= MOST {
            let oldest = self.0.iter().position(|it| it.ask.user == user);
            oldest.map(|at| self.0.remove(at));
        }
        self.0.push(promise);
        self.0.truncate(MOST);
    }
}

impl Book {
    /// Where a job fits best.
    pub fn place(&mut self, seeker: &Seeker) -> Result<Place, Never> {
        let now = clock::now();
        let gangs = &self.gangs;
        let came = |name: &str| gangs.values().any(|gang| gang.name == name);
        self.promises.prune(now, seeker, came);
        // What is not known is as large as is said, for this answer alone.
        let mut machine = self.machine.clone();
        let mut numbers: Vec<(String, DeviceId)> = self.devices.iter().cloned().zip((0..).map(DeviceId)).collect();
        let offers = seeker.devices.get(..OFFERS).unwrap_or(&seeker.devices);
        for offer in offers {
            if numbers.iter().all(|(uuid, _)| *uuid != offer.uuid) {
                let id = DeviceId(numbers.len() as u32);
                let size = self.listed.get(&offer.uuid).copied().unwrap_or(offer.memory);
                machine.handle(now, Event::Device(self.blank(id, &offer.uuid, size)), &mut Vec::new());
                numbers.push((offer.uuid.clone(), id));
            }
        }
        let number = |uuid: &str| numbers.iter().find(|(known, _)| known == uuid).map(|(_, id)| *id);
        let devices: Vec<DeviceId> = offers.iter().filter_map(|it| number(&it.uuid)).collect();
        let least = seeker.devices.iter().map(|it| it.memory).min().unwrap_or(0);
        let most = seeker.devices.iter().map(|it| it.memory).max().unwrap_or(0);
        let peak = seeker.memory.unwrap_or(least / UNKNOWN);
        let expected = match seeker.duration.as_deref() {
            Some("short") => Class::Short,
            Some("long") => Class::Long,
            _ => Class::Medium,
        };
        let ask = Ask {
            job: Job(u64::MAX),
            user: self.user(&seeker.user),
            priority: seeker.priority,
            need: Need {
                peak,
                processes: seeker.processes.clamp(1, MOST_PROCESSES),
                expected: expected.expected(),
                backing: match seeker.managed {
                    true => Backing::Managed {
                        working_set: peak.min(most),
                    },
                    false if seeker.either => Backing::Either {
                        working_set: peak.min(most),
                    },
                    false => Backing::Device,
                },
            },
            devices: devices.clone(),
        };
        // What is taken of a device where nobody of ours is, is others'. Where somebody is, the
        // machine knows better.
        let strangers = devices.iter().zip(offers).filter_map(|(device, offer)| {
            let idle = machine.load(*device).fixed == 0;
            Some((*device, offer.memory.saturating_sub(offer.free?))).filter(|_| idle)
        });
        let strangers: Vec<(DeviceId, u64)> = strangers.collect();
        let promises = self.promises.asks(number);
        let candidate = Candidate {
            ask,
            stated: seeker.memory.is_some(),
        };
        let placed = machine.best_place(now, &candidate, &promises, &strangers)?;
        let uuid = numbers
            .into_iter()
            .find(|(_, id)| *id == placed.device)
            .map(|(uuid, _)| uuid);
        let uuid = uuid.unwrap_or_default();
        self.promises.push(Promise {
            gang: seeker.gang.clone(),
            process: match seeker.unseen {
                true => Process::unseen(seeker.pid),
                false => Process::of(seeker.pid),
            },
            until: now.saturating_add(PATIENCE),
            ask: candidate.ask,
            device: uuid.clone(),
        });
        let wait = placed.begin.map(|begin| begin.saturating_sub(now) as f64 / 1e9);
        Ok(Place {
            uuid,
            left: placed.left,
            begins_s: wait.filter(|_| placed.left.is_none()),
        })
    }
}
