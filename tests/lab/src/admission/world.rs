// SPDX-License-Identifier: MIT OR Apache-2.0
//! One mix under one rule, in virtual time: the broker's own admission core, and devices whose
//! memory is counted separately.
//!
//! A job begins with [`BEGINS`] of its peak and takes the rest after [`GROWN`] of its run. Jobs
//! share a device's time: together they need the sum of their loads, and if that is above one, each
//! is slowed by that factor. A job that gets no memory dies and comes again; it then knows its peak
//! and requests it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::contenders;
use weft_admission::{
    Admission, AdmissionConfig, AdmissionPolicy, Ask, Backing, Decision, Device, DeviceId, Event, Job as Number, Need,
    User,
};

use super::mix::{CONTEXT_BYTES, JobMix, MixJob, S};
use crate::Ns;

/// The part of its peak that a job takes at its begin: weights and the first batch.
pub(super) const BEGINS: f64 = 0.6;

/// The part of a run after which a job has taken all its memory: the first complete step.
pub(super) const GROWN: f64 = 0.1;

/// Time after which a job that got no memory tries again if there is no admission, as people do.
const RETRY_NS: Ns = 600 * S;

/// The way in which memory is given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionRule {
    /// Every job begins at once: a device without weft.
    Nobody,
    /// A policy of the core. `true`: jobs are held to their share; `false`: they take any memory
    /// they need.
    Admit(AdmissionPolicy, bool),
    /// Shortest first, which promises nothing, among jobs that declare their true run, and (`true`)
    /// their true memory: no scheduler can know that. It shows how much of a wait is due to missing
    /// knowledge.
    Knows(bool),
}

impl AdmissionRule {
    /// All rules that are compared.
    pub fn all() -> Vec<AdmissionRule> {
        let mut all = vec![AdmissionRule::Nobody, AdmissionRule::Admit(AdmissionPolicy::Weft, true)];
        all.extend(contenders::ALL.map(|policy| AdmissionRule::Admit(policy, true)));
        all.push(AdmissionRule::Admit(contenders::BEST_FIT, false));
        all.extend([AdmissionRule::Knows(false), AdmissionRule::Knows(true)]);
        all
    }

    /// The name for people.
    pub fn name(self) -> String {
        match self {
            AdmissionRule::Nobody => "none".to_string(),
            AdmissionRule::Admit(policy, true) => policy.to_string(),
            AdmissionRule::Admit(policy, false) => format!("{policy}, not held"),
            AdmissionRule::Knows(false) => "shortest, true runs".to_string(),
            AdmissionRule::Knows(true) => "shortest, all true".to_string(),
        }
    }
}

/// The outcome for a job.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fate {
    /// Its wait from its first request. The time of that request is the same under every rule.
    pub first_wait: Option<Ns>,
    /// Its expected wait at its first request, if it had to wait.
    pub expected_wait: Option<Ns>,
    /// The begin of the run with which it ended.
    pub began: Ns,
    /// When it ended.
    pub ended: Ns,
    /// Number of times that it got no memory within its request.
    pub by_neighbours: u32,
    /// Number of times that it got no memory beyond its request.
    pub by_itself: u32,
}

/// The outcome of a run.
#[derive(Debug, Clone, Default)]
pub struct AdmissionOutcome {
    /// For each job of the mix.
    pub fates: Vec<Fate>,
    /// The end of the last job.
    pub makespan: Ns,
    /// The mean requested part of the devices' time, at most one each.
    pub busy: f64,
    /// The mean part of the devices' memory that was held.
    pub held: f64,
    /// The longest run of any job.
    pub longest: Ns,
    /// Events of the core.
    pub events: u64,
}

#[derive(Debug)]
struct AdmissionRun {
    device: usize,
    done: f64,
    began: Ns,
    held: u64,
    grown: bool,
}

struct AdmissionWorld<'a> {
    mix: &'a JobMix,
    rule: AdmissionRule,
    core: Admission,
    now: Ns,
    running: BTreeMap<usize, AdmissionRun>,
    /// The memory that each job requests: its peak, once it has died.
    said: Vec<u64>,
    /// The next arrival of each; `Ns::MAX` if it is here.
    comes: Vec<Ns>,
    ends: Vec<usize>,
    outcome: AdmissionOutcome,
}

/// Runs a mix under a rule.
pub fn run(mix: &JobMix, rule: AdmissionRule) -> AdmissionOutcome {
    let policy = match rule {
        AdmissionRule::Admit(policy, _) => policy,
        AdmissionRule::Nobody => contenders::FIFO,
        AdmissionRule::Knows(_) => contenders::SHORTEST,
    };
    let mut world = AdmissionWorld {
        mix,
        rule,
        core: Admission::new(AdmissionConfig {
            policy,
            ..AdmissionConfig::default()
        }),
        now: 0,
        running: BTreeMap::new(),
        said: mix
            .jobs
            .iter()
            .map(|job| match rule {
                AdmissionRule::Knows(true) => job.peak,
                _ => job.said_peak,
            })
            .collect(),
        comes: mix.jobs.iter().map(|job| job.arrives).collect(),
        ends: Vec::new(),
        outcome: AdmissionOutcome {
            fates: vec![Fate::default(); mix.jobs.len()],
            ..AdmissionOutcome::default()
        },
    };
    for (at, memory) in mix.devices.iter().enumerate() {
        world.tell(Event::Device(Device {
            context: CONTEXT_BYTES,
            ..Device::new(DeviceId(at as u32), *memory)
        }));
    }
    for (user, weight) in &mix.weights {
        world.tell(Event::Weight(User(*user), *weight));
    }
    world.play();
    world.outcome
}

impl AdmissionWorld<'_> {
    fn play(&mut self) {
        let mut left = self.mix.jobs.len();
        while left > 0 {
            let next = self.next();
            let Some(next) = next else {
                unreachable!("{left} jobs are left and nothing will happen")
            };
            self.pass(next);
            let due: Vec<usize> = (0..self.comes.len())
                .filter(|at| self.comes.get(*at) == Some(&next))
                .collect();
            for at in due {
                if let Some(comes) = self.comes.get_mut(at) {
                    *comes = Ns::MAX;
                }
                self.come(at);
            }
            self.grow();
            left -= self.end();
            self.tell(Event::Tick);
            self.bury();
        }
        self.outcome.makespan = self.now;
        let time = self.now as f64 * self.mix.devices.len() as f64;
        self.outcome.busy /= time;
        let memory: u64 = self.mix.devices.iter().sum();
        self.outcome.held /= self.now as f64 * memory as f64;
    }

    fn rate(&self, device: usize) -> f64 {
        1.0 / self.asked(device).max(1.0)
    }

    fn asked(&self, device: usize) -> f64 {
        let there = self.running.iter().filter(|(_, run)| run.device == device);
        there
            .filter_map(|(at, _)| self.mix.jobs.get(*at))
            .map(|job| job.load)
            .sum()
    }

    /// The rest of a job's run until it grows or ends.
    fn left(&self, at: usize, run: &AdmissionRun) -> f64 {
        let whole = self.mix.jobs.get(at).map_or(0, |job| job.run) as f64;
        let until = if run.grown { whole } else { whole * GROWN };
        (until - run.done).max(0.0)
    }

    fn next(&self) -> Option<Ns> {
        let comes = self.comes.iter().copied().filter(|at| *at != Ns::MAX).min();
        let step =
            |(at, run): (&usize, &AdmissionRun)| self.now + (self.left(*at, run) / self.rate(run.device)).ceil() as Ns;
        let steps = self.running.iter().map(step).min();
        [comes, steps, self.core.next_wake()].into_iter().flatten().min()
    }

    fn pass(&mut self, to: Ns) {
        let time = (to - self.now) as f64;
        let rates: Vec<f64> = (0..self.mix.devices.len()).map(|device| self.rate(device)).collect();
        for (device, _) in rates.iter().enumerate() {
            self.outcome.busy += self.asked(device).min(1.0) * time;
        }
        for run in self.running.values_mut() {
            run.done += time * rates.get(run.device).copied().unwrap_or(1.0);
            self.outcome.held += run.held as f64 * time;
        }
        self.now = to;
    }

    fn tell(&mut self, event: Event) {
        let mut out = Vec::new();
        self.core.handle(self.now, event, &mut out);
        self.outcome.events += 1;
        for decision in out {
            match decision {
                Decision::Admit { job, device, .. } => self.begin(job.0 as usize, device.0 as usize),
                Decision::Refuse { job, why } => unreachable!("{job:?}: {why}"),
                Decision::Grant { .. } | Decision::Deny { .. } => {}
            }
        }
    }

    fn come(&mut self, at: usize) {
        let Some(job) = self.mix.jobs.get(at) else { return };
        if self.rule == AdmissionRule::Nobody {
            // Every job takes the device with the most free memory at its arrival.
            let free = |device: &usize| self.free(*device);
            if let Some(device) = (0..self.mix.devices.len()).max_by_key(free) {
                self.begin(at, device);
            }
            return;
        }
        let said = self.said.get(at).copied().unwrap_or(job.said_peak);
        let ask = Ask {
            job: Number(at as u64),
            user: User(job.user),
            priority: job.kind.priority,
            need: Need {
                processes: job.kind.processes,
                backing: match job.kind.managed {
                    // A turn touches a third of it: a training step touches one layer's part after
                    // the other.
                    true => Backing::Managed { working_set: said / 3 },
                    false => Backing::Device,
                },
                ..Need::plain(
                    said,
                    match self.rule {
                        AdmissionRule::Knows(_) => job.run,
                        _ => job.said_run,
                    },
                )
            },
            devices: Vec::new(),
        };
        self.tell(Event::Asks(ask));
        self.expect(at, job);
    }

    /// The expected wait that `weft queue` would report for a job that has just asked. Only for the
    /// rule that people see.
    fn expect(&mut self, at: usize, job: &MixJob) {
        let number = Number(at as u64);
        if self.rule != AdmissionRule::Admit(AdmissionPolicy::Weft, true) || !self.core.waits(number) {
            return;
        }
        if let Some(fate) = self.outcome.fates.get_mut(at)
            && fate.first_wait.is_none()
        {
            let expected = self.core.forecast().get(&number).map(|expected| expected.begin);
            fate.expected_wait = expected.map(|begin| begin.saturating_sub(job.arrives));
        }
    }

    fn free(&self, device: usize) -> u64 {
        let held: u64 = self
            .running
            .values()
            .filter(|run| run.device == device)
            .map(|run| run.held)
            .sum();
        self.mix
            .devices
            .get(device)
            .map_or(0, |memory| memory.saturating_sub(held))
    }

    fn begin(&mut self, at: usize, device: usize) {
        let Some(job) = self.mix.jobs.get(at) else { return };
        if let Some(fate) = self.outcome.fates.get_mut(at) {
            fate.first_wait.get_or_insert(self.now - job.arrives);
        }
        let run = AdmissionRun {
            device,
            done: 0.0,
            began: self.now,
            held: 0,
            grown: false,
        };
        self.running.insert(at, run);
        let first = job.on_device((job.peak as f64 * BEGINS) as u64);
        self.take(at, job, first);
    }

    /// Jobs that have reached that point take all the memory they need.
    fn grow(&mut self) {
        let ready = |(at, run): (&usize, &AdmissionRun)| (!run.grown && self.left(*at, run) < 1.0).then_some(*at);
        let ready: Vec<usize> = self.running.iter().filter_map(ready).collect();
        for at in ready {
            let Some(job) = self.mix.jobs.get(at) else { continue };
            if let Some(run) = self.running.get_mut(&at) {
                run.grown = true;
            }
            self.take(at, job, job.on_device(job.peak));
        }
    }

    /// A job holds `bytes` bytes from now on, or dies.
    fn take(&mut self, at: usize, job: &MixJob, bytes: u64) {
        let Some(run) = self.running.get(&at) else { return };
        let (device, held) = (run.device, run.held);
        let number = Number(at as u64);
        let within = match self.rule {
            AdmissionRule::Nobody | AdmissionRule::Admit(_, false) => true,
            AdmissionRule::Admit(_, true) | AdmissionRule::Knows(_) => {
                let share = |core: &Admission| core.share(number).map_or(0, |(_, share)| share);
                let lacks = bytes.saturating_sub(share(&self.core));
                if lacks > 0 {
                    self.tell(Event::Grows(number, lacks));
                }
                bytes <= share(&self.core)
            }
        };
        let there = bytes - held.min(bytes) <= self.free(device);
        if within && there {
            if let Some(run) = self.running.get_mut(&at) {
                run.held = bytes;
            }
            return;
        }
        // Within its request, the neighbours are the cause: with the device to itself it would have
        // got the memory.
        let said = job.on_device(self.said.get(at).copied().unwrap_or(job.said_peak));
        let fate = self.outcome.fates.get_mut(at);
        if let Some(fate) = fate {
            if self.rule == AdmissionRule::Nobody || bytes <= said {
                fate.by_neighbours += 1;
            } else {
                fate.by_itself += 1;
            }
        }
        self.running.remove(&at);
        if let Some(said) = self.said.get_mut(at) {
            *said = (*said).max(job.peak);
        }
        let again = if self.rule == AdmissionRule::Nobody {
            self.now + RETRY_NS
        } else {
            self.now + S
        };
        if let Some(comes) = self.comes.get_mut(at) {
            *comes = again;
        }
        self.ends.push(at);
    }

    /// Ends the jobs that have run to their end, and reports those and the dead ones to the core.
    /// Returns the number of jobs that completed.
    fn end(&mut self) -> usize {
        let ended = |(at, run): (&usize, &AdmissionRun)| (run.grown && self.left(*at, run) < 1.0).then_some(*at);
        let ended: Vec<usize> = self.running.iter().filter_map(ended).collect();
        for at in &ended {
            if let (Some(run), Some(fate)) = (self.running.remove(at), self.outcome.fates.get_mut(*at)) {
                fate.began = run.began;
                fate.ended = self.now;
                self.outcome.longest = self.outcome.longest.max(self.now - run.began);
            }
        }
        self.ends.extend(&ended);
        self.bury();
        ended.len()
    }

    /// Reports all ended and dead jobs to the core. A job that it then admits may die at once, too.
    fn bury(&mut self) {
        while let Some(at) = self.ends.pop() {
            if self.rule != AdmissionRule::Nobody {
                self.tell(Event::Ends(Number(at as u64)));
            }
        }
    }
}
