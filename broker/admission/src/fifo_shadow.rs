// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fifo shadow: the jobs in the order of their turns without passing, simulated in parallel to
//! the real order.
//!
//! Policy `weft` lets other jobs pass a job until the shadow began it ([`FifoShadow::started_at`]):
//! the bound is relative to `fifo`. A job's run here is its real run once known, until then
//! `max(expected, run so far)`.
//!
//! The shadow restarts when no job really waits: a queue that falls ever further behind measures
//! nothing.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::config::AdmissionConfig;
use super::event::Ask;
use super::load::Load;
use super::model::RunningJob;
use super::need::{Device, DeviceId, Need};
use weft_protocol::Ns;

/// Most jobs here; a longer queue restarts.
const MAX_JOBS: usize = 4_096;

/// The shadow's jobs, by the numbers of the state machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct FifoShadow {
    jobs: BTreeMap<u64, Shadow>,
    /// Jobs that have not begun in the shadow: (priority, turn, number).
    queue: BTreeSet<(u8, Ns, u64)>,
    /// Time of the last change here, ns.
    clock: Ns,
}

/// A job's state here and its real one.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Shadow {
    need: Need,
    devices: Vec<DeviceId>,
    priority: u8,
    turn: Ns,
    #[serde(rename = "here")]
    shadow: ShadowState,
    #[serde(rename = "truth")]
    real: RealState,
}

/// State in the shadow.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum ShadowState {
    Waits,
    Runs(DeviceId, Ns),
    /// Ended; holds the time it began.
    Over(Ns),
}

/// Real state.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum RealState {
    Waits,
    RunsSince(Ns),
    RanFor(Ns),
}

impl Shadow {
    /// Known or expected end in the shadow. `None`: it really overruns, and ends here when it
    /// really ends.
    fn end_time(&self, now: Ns) -> Option<Ns> {
        let ShadowState::Runs(_, since) = self.shadow else {
            return None;
        };
        let run = match self.real {
            RealState::RanFor(run) => run,
            RealState::RunsSince(then) if now.saturating_sub(then) >= self.need.expected => return None,
            RealState::RunsSince(_) | RealState::Waits => self.need.expected,
        };
        Some(since.saturating_add(run))
    }
}

impl FifoShadow {
    /// When the shadow began a job; `None`: not yet.
    pub fn started_at(&self, number: u64) -> Option<Ns> {
        match self.jobs.get(&number)?.shadow {
            ShadowState::Waits => None,
            ShadowState::Runs(_, since) | ShadowState::Over(since) => Some(since),
        }
    }

    /// Time of the next change here.
    pub fn next_change(&self, now: Ns) -> Option<Ns> {
        let ends = self.jobs.values().filter_map(|job| job.end_time(now));
        (!self.queue.is_empty()).then(|| ends.min()).flatten()
    }

    /// Adds a job with its turn ([`AdmissionConfig::handicap`]).
    pub fn push(&mut self, number: u64, ask: &Ask, turn: Ns) {
        let shadow = Shadow {
            need: ask.need,
            devices: ask.devices.clone(),
            priority: ask.priority,
            turn,
            shadow: ShadowState::Waits,
            real: RealState::Waits,
        };
        self.queue.insert((ask.priority, turn, number));
        self.jobs.insert(number, shadow);
    }

    /// Notes that a job really began.
    pub fn start(&mut self, number: u64, now: Ns) {
        if let Some(job) = self.jobs.get_mut(&number) {
            job.real = RealState::RunsSince(now);
        }
    }

    /// Notes that a job that had really begun took nothing and waits again.
    pub fn restart_wait(&mut self, number: u64) {
        if let Some(job) = self.jobs.get_mut(&number) {
            job.real = RealState::Waits;
        }
    }

    /// Notes that a job really ended or, before it began, withdrew.
    pub fn end(&mut self, number: u64, now: Ns) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        match (job.real, job.shadow) {
            (RealState::RunsSince(then), ShadowState::Waits | ShadowState::Runs(..)) => {
                job.real = RealState::RanFor(now.saturating_sub(then));
            }
            _ => {
                self.queue.remove(&(job.priority, job.turn, number));
                self.jobs.remove(&number);
            }
        }
    }

    /// Changes a job's priority.
    pub fn set_priority(&mut self, number: u64, priority: u8) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        if self.queue.remove(&(job.priority, job.turn, number)) {
            self.queue.insert((priority, job.turn, number));
        }
        job.priority = priority;
    }

    /// Restarts with the running jobs.
    pub fn reset<'a>(&mut self, running: impl Iterator<Item = &'a RunningJob>) {
        self.queue.clear();
        self.jobs = running
            .map(|running| {
                let shadow = Shadow {
                    need: running.ask.need,
                    devices: Vec::new(),
                    priority: running.ask.priority,
                    turn: running.since,
                    shadow: ShadowState::Runs(running.device, running.since),
                    real: RealState::RunsSince(running.since),
                };
                (running.number, shadow)
            })
            .collect();
    }

    /// Whether there are more jobs than a comparison is worth.
    pub fn is_too_long(&self) -> bool {
        self.jobs.len() > MAX_JOBS
    }

    /// Advances to `now`: ends jobs, and begins those that then fit.
    pub fn advance(&mut self, now: Ns, devices: &BTreeMap<DeviceId, Device>, config: &AdmissionConfig) {
        self.start_heads(now, devices, config);
        loop {
            let ended = self
                .jobs
                .iter()
                .filter_map(|(number, job)| Some((job.end_time(now)?, *number)))
                .min();
            let Some((at, number)) = ended.filter(|(at, _)| *at <= now) else {
                return;
            };
            // Later news cannot change the past of the shadow.
            let at = at.max(self.clock);
            self.clock = at;
            if let Some(job) = self.jobs.get_mut(&number) {
                match (job.real, job.shadow) {
                    (RealState::RanFor(_), _) => {
                        self.jobs.remove(&number);
                    }
                    (_, ShadowState::Runs(_, since)) => job.shadow = ShadowState::Over(since),
                    _ => {}
                }
            }
            self.start_heads(at, devices, config);
        }
    }

    fn start_heads(&mut self, at: Ns, devices: &BTreeMap<DeviceId, Device>, config: &AdmissionConfig) {
        while let Some((_, _, number)) = self.queue.first().copied() {
            let Some(device) = self.place(number, devices, config) else {
                return;
            };
            self.queue.pop_first();
            self.clock = self.clock.max(at);
            if let Some(job) = self.jobs.get_mut(&number) {
                job.shadow = ShadowState::Runs(device, at);
            }
        }
    }

    /// The device with least memory left, of those on which the job fits.
    fn place(&self, number: u64, devices: &BTreeMap<DeviceId, Device>, config: &AdmissionConfig) -> Option<DeviceId> {
        let job = self.jobs.get(&number)?;
        let fits = |device: &Device| {
            let (mut load, mut elsewhere) = (Load::default(), 0u64);
            for other in self.jobs.values() {
                match (other.shadow, other.need.backing) {
                    (ShadowState::Runs(at, _), _) if at == device.id => {
                        load = load.with(&other.need, other.need.fixed(device))
                    }
                    (ShadowState::Runs(..), backing) if backing.is_managed() => {
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
