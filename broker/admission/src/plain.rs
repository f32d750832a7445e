//! Plain order (the fifo shadow): the jobs in the order of their turns without passing, simulated
//! beside the real order.
//!
//! Policy `weft` lets a job be passed until plain order would have begun it ([`Plain::began`]), so
//! the bound is relative to `fifo`. A job's run here is its real run once known, until then the
//! expected run or the run so far.
//!
//! Nothing is forecast. The shadow restarts when no job really waits: a queue that falls ever
//! further behind measures nothing.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::config::Config;
use super::event::Ask;
use super::load::Load;
use super::model::Running;
use super::need::{Device, DeviceId, Need};
use weft_protocol::Ns;

/// Largest number of jobs here; a longer plain queue restarts.
const MOST: usize = 4_096;

/// The jobs of plain order, by the numbers of the state machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Plain {
    jobs: BTreeMap<u64, Shadow>,
    /// Jobs that have not begun here: (priority, turn, number).
    queue: BTreeSet<(u8, Ns, u64)>,
    /// Time of the last change here, ns.
    clock: Ns,
}

/// A job's state here and in truth.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Shadow {
    need: Need,
    devices: Vec<DeviceId>,
    priority: u8,
    turn: Ns,
    here: Here,
    truth: Truth,
}

/// State in plain order.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Here {
    Waits,
    Runs(DeviceId, Ns),
    /// Ended; holds the time it began.
    Over(Ns),
}

/// Real state.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Truth {
    Waits,
    RunsSince(Ns),
    RanFor(Ns),
}

impl Shadow {
    /// Known or expected end in plain order. A job that overruns in truth ends here when it really
    /// ends.
    fn end(&self, now: Ns) -> Option<Ns> {
        let Here::Runs(_, since) = self.here else { return None };
        let run = match self.truth {
            Truth::RanFor(run) => run,
            Truth::RunsSince(then) if now.saturating_sub(then) >= self.need.expected => return None,
            Truth::RunsSince(_) | Truth::Waits => self.need.expected,
        };
        Some(since.saturating_add(run))
    }
}

impl Plain {
    /// When plain order began a job; `None`: not yet.
    pub fn began(&self, number: u64) -> Option<Ns> {
        match self.jobs.get(&number)?.here {
            Here::Waits => None,
            Here::Runs(_, since) | Here::Over(since) => Some(since),
        }
    }

    /// Time of the next change here.
    pub fn next(&self, now: Ns) -> Option<Ns> {
        let ends = self.jobs.values().filter_map(|job| job.end(now));
        (!self.queue.is_empty()).then(|| ends.min()).flatten()
    }

    /// Adds a job with its turn ([`Config::handicap`]).
    pub fn comes(&mut self, number: u64, ask: &Ask, turn: Ns) {
        let shadow = Shadow {
            need: ask.need,
            devices: ask.devices.clone(),
            priority: ask.priority,
            turn,
            here: Here::Waits,
            truth: Truth::Waits,
        };
        self.queue.insert((ask.priority, turn, number));
        self.jobs.insert(number, shadow);
    }

    /// Notes that a job really began.
    pub fn begins(&mut self, number: u64, now: Ns) {
        if let Some(job) = self.jobs.get_mut(&number) {
            job.truth = Truth::RunsSince(now);
        }
    }

    /// Notes that a job which had really begun took nothing and waits again.
    pub fn waits_again(&mut self, number: u64) {
        if let Some(job) = self.jobs.get_mut(&number) {
            job.truth = Truth::Waits;
        }
    }

    /// Notes that a job really ended or, before it began, withdrew.
    pub fn ends(&mut self, number: u64, now: Ns) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        match (job.truth, job.here) {
            (Truth::RunsSince(then), Here::Waits | Here::Runs(..)) => {
                job.truth = Truth::RanFor(now.saturating_sub(then));
            }
            _ => {
                self.queue.remove(&(job.priority, job.turn, number));
                self.jobs.remove(&number);
            }
        }
    }

    /// Changes a job's priority.
    pub fn priority(&mut self, number: u64, priority: u8) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        if self.queue.remove(&(job.priority, job.turn, number)) {
            self.queue.insert((priority, job.turn, number));
        }
        job.priority = priority;
    }

    /// Restarts with the running jobs.
    pub fn anew<'a>(&mut self, running: impl Iterator<Item = &'a Running>) {
        self.queue.clear();
        self.jobs = running
            .map(|running| {
                let shadow = Shadow {
                    need: running.ask.need,
                    devices: Vec::new(),
                    priority: running.ask.priority,
                    turn: running.since,
                    here: Here::Runs(running.device, running.since),
                    truth: Truth::RunsSince(running.since),
                };
                (running.number, shadow)
            })
            .collect();
    }

    /// Whether there are more jobs than a comparison is worth.
    pub fn too_long(&self) -> bool {
        self.jobs.len() > MOST
    }

    /// Advances to `now`: ends jobs, and begins those that then fit.
    pub fn pass(&mut self, now: Ns, devices: &BTreeMap<DeviceId, Device>, config: &Config) {
        self.begin_heads(now, devices, config);
        loop {
            let ended = self
                .jobs
                .iter()
                .filter_map(|(number, job)| Some((job.end(now)?, *number)))
                .min();
            let Some((at, number)) = ended.filter(|(at, _)| *at <= now) else {
                return;
            };
            // What was not known before cannot change what happened here since.
            let at = at.max(self.clock);
            self.clock = at;
            if let Some(job) = self.jobs.get_mut(&number) {
                match (job.truth, job.here) {
                    (Truth::RanFor(_), _) => {
                        self.jobs.remove(&number);
                    }
                    (_, Here::Runs(_, since)) => job.here = Here::Over(since),
                    _ => {}
                }
            }
            self.begin_heads(at, devices, config);
        }
    }

    fn begin_heads(&mut self, at: Ns, devices: &BTreeMap<DeviceId, Device>, config: &Config) {
        while let Some((_, _, number)) = self.queue.first().copied() {
            let Some(device) = self.place(number, devices, config) else {
                return;
            };
            self.queue.pop_first();
            self.clock = self.clock.max(at);
            if let Some(job) = self.jobs.get_mut(&number) {
                job.here = Here::Runs(device, at);
            }
        }
    }

    /// Of the devices where the job fits, the one with least free memory beside it.
    fn place(&self, number: u64, devices: &BTreeMap<DeviceId, Device>, config: &Config) -> Option<DeviceId> {
        let job = self.jobs.get(&number)?;
        let fits = |device: &Device| {
            let (mut load, mut elsewhere) = (Load::default(), 0u64);
            for other in self.jobs.values() {
                match (other.here, other.need.backing) {
                    (Here::Runs(at, _), _) if at == device.id => {
                        load = load.with(&other.need, other.need.fixed(device))
                    }
                    (Here::Runs(..), backing) if backing.is_managed() => {
                        elsewhere = elsewhere.saturating_add(other.need.peak)
                    }
                    _ => {}
                }
            }
            let load = load.with(&job.need, job.need.fixed(device));
            load.fits(device, elsewhere, config)
                .is_ok()
                .then(|| (load.free(device), device.id))
        };
        let allowed = |device: &&Device| job.devices.is_empty() || job.devices.contains(&device.id);
        devices
            .values()
            .filter(allowed)
            .filter_map(fits)
            .min()
            .map(|(_, device)| device)
    }
}
