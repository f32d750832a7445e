//! What plain order would have done: the same jobs in the order of their turns, nobody passed by
//! anybody, played along beside what really happens.
//!
//! The rule of policy `weft` lets a job be passed until plain order would have begun it
//! ([`Plain::began`]), so this is what makes the bound one against `fifo`. A job takes here as long
//! as it really took, once that is known; until then as long as is expected, or as it has run.
//!
//! Only time passes here; nothing is foreseen. When nobody waits in truth, this begins anew with
//! those who run: a plain queue that falls behind for ever is nobody's measure.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::config::Config;
use super::event::Ask;
use super::load::Load;
use super::model::Running;
use super::need::{Device, DeviceId, Need};
use weft_protocol::Ns;

/// Jobs that are kept here; a plain queue longer than this begins anew.
const MOST: usize = 4_096;

/// The jobs of plain order. They have the numbers that the machine gave them as they came.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Plain {
    jobs: BTreeMap<u64, Shadow>,
    /// Those that have not begun here: (priority, turn, number).
    queue: BTreeSet<(u8, Ns, u64)>,
    /// When something last happened here.
    clock: Ns,
}

/// A job as it fares here.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Shadow {
    need: Need,
    devices: Vec<DeviceId>,
    priority: u8,
    turn: Ns,
    here: Here,
    truth: Truth,
}

/// How it fares here.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Here {
    Waits,
    Runs(DeviceId, Ns),
    /// Began then, and is over.
    Over(Ns),
}

/// How it fares in truth.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Truth {
    Waits,
    RunsSince(Ns),
    RanFor(Ns),
}

impl Shadow {
    /// When it ends here, if that is known or expected. One that overruns in truth ends here when
    /// it does there.
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
    /// When plain order began a job. `None`: not yet.
    pub fn began(&self, number: u64) -> Option<Ns> {
        match self.jobs.get(&number)?.here {
            Here::Waits => None,
            Here::Runs(_, since) | Here::Over(since) => Some(since),
        }
    }

    /// When something happens here next.
    pub fn next(&self, now: Ns) -> Option<Ns> {
        let ends = self.jobs.values().filter_map(|job| job.end(now));
        (!self.queue.is_empty()).then(|| ends.min()).flatten()
    }

    /// A job came, and has its turn then (see [`Config::handicap`]).
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

    /// A job began in truth.
    pub fn begins(&mut self, number: u64, now: Ns) {
        if let Some(job) = self.jobs.get_mut(&number) {
            job.truth = Truth::RunsSince(now);
        }
    }

    /// A job that had begun in truth took nothing and waits again.
    pub fn waits_again(&mut self, number: u64) {
        if let Some(job) = self.jobs.get_mut(&number) {
            job.truth = Truth::Waits;
        }
    }

    /// A job ended in truth, or (it never began) no longer wants in.
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

    /// Another priority.
    pub fn priority(&mut self, number: u64, priority: u8) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        if self.queue.remove(&(job.priority, job.turn, number)) {
            self.queue.insert((priority, job.turn, number));
        }
        job.priority = priority;
    }

    /// Begins anew with those who run.
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

    /// More than anybody should have to compare with.
    pub fn too_long(&self) -> bool {
        self.jobs.len() > MOST
    }

    /// Time went by: ends whoever ends here, begins whoever fits then.
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

    /// The device where a job fits and leaves least free.
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
