// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scenario of a run, drawn from its seed: the clients, their operations, and the troubles.
//!
//! Any part can be left out without changing the rest. So a failing scenario can be reduced.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use weft_profiles::{Aggregator, Profile};
use weft_scheduler::{Config, Ns, PolicyName};

use crate::chance::SeededChance;

pub(crate) const US: Ns = 1_000;
pub(crate) const MS: Ns = 1_000_000;

/// Longest kernel of an honest client, as predicted, ns.
pub(crate) const MAX_KERNEL_NS: Ns = 2 * MS;

/// Kernels of one thread.
const KERNELS: u64 = 6;

/// Next operation of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientOp {
    /// Launches a kernel.
    Launch { kernel: u64, time: Ns },
    /// Launches a kernel that ends only when a later operation is queued, as auto-tuners do.
    Spin { kernel: u64, time: Ns },
    /// Copies.
    Copy { bytes: u64 },
    /// Waits until its stream is empty.
    Sync,
    /// Works on the host.
    Host(Ns),
}

/// A process.
#[derive(Debug, Clone)]
pub(crate) struct ScenarioJob {
    pub number: usize,
    pub priority: u8,
    pub attach_at: Ns,
    pub profile: Option<Arc<Profile>>,
    pub profiling: bool,
    /// Operations of each thread, repeated.
    pub threads: Vec<Vec<ClientOp>>,
    /// Whether it may write arbitrary values into the shared memory.
    pub lies: bool,
    pub longest_wait: Duration,
}

/// Trouble in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlannedTrouble {
    /// A process ends at any instruction; the broker learns of it `heard_after` ns later.
    Dies { job: usize, heard_after: Ns },
    /// A process detaches.
    Leaves { job: usize },
    /// All threads of a process stand still (a stop signal, a swapped-out page).
    Stalls { job: usize, time: Ns },
    /// One thread stands still.
    ThreadStalls { job: usize, thread: usize, time: Ns },
    /// The broker stands still, at any instruction.
    BrokerStalls { time: Ns },
    /// `weft set`.
    Priority { job: usize, priority: u8 },
    /// The clock of a process jumps.
    Jumps { job: usize, by: i64 },
    /// The broker's clock jumps.
    BrokerJumps { by: i64 },
    /// A process forks in the middle of a step of its first thread; the child continues from there.
    Forks { job: usize },
    /// The device turns out not to be the profile's.
    Unprofiled { job: usize },
    /// A job's memory does not fit together with others', so it takes turns of this length, ns,
    /// with its equals; `None`: it fits again.
    Crowded { job: usize, turn: Option<Ns> },
    /// A lying job writes a value that an honest one would not; `what` chooses.
    Lies { job: usize, what: u64 },
}

/// A run.
#[derive(Debug, Clone)]
pub struct FaultScenario {
    /// Seed that determines the whole run.
    pub seed: u64,
    pub(crate) config: Config,
    pub(crate) spin: bool,
    pub(crate) length: Ns,
    pub(crate) jobs: Vec<ScenarioJob>,
    pub(crate) troubles: Vec<(Ns, PlannedTrouble)>,
}

/// Streams of chance of one scenario.
pub(crate) const CHANCE_OF_BROKER: u64 = 2;
pub(crate) const CHANCE_OF_THREADS: u64 = 1000;

/// First seed of the scenarios with oversubscribed memory, in which equals take long turns. Those
/// below keep their scenarios.
pub const SHORT_OF_ROOM: u64 = 40_000_000_000;

impl FaultScenario {
    /// The scenario of a seed, under one policy or under one that the seed chooses.
    pub fn of(seed: u64, policy: Option<PolicyName>) -> FaultScenario {
        let mut chance = SeededChance::new(seed, 1);
        // In this order, so that seeds keep their scenarios.
        let both = [PolicyName::Weft, PolicyName::Fikit];
        let chosen = chance.of(&[both[0], both[1], both[1], both[0]]);
        let policy = policy.unwrap_or(chosen);
        let default = Config::default();
        let config = Config {
            policy,
            delay_bound: chance.of(&[500 * US, 500 * US, 200 * US, 2 * MS]),
            switch_cost: chance.of(&[100 * US, 0]),
            minimum_share: chance.of(&[0.02, 0.02, 0.1]),
            turn: chance.of(&[10 * MS, 2 * MS]),
            ..default
        };
        let length = chance.length(20 * MS, 1500 * MS);
        let spin = chance.per_mille(300);
        let calm = chance.per_mille(150);
        let jobs = (0..chance.between(2, 7) as usize)
            .map(|number| job(number, length, calm, &mut SeededChance::new(seed, 100 + number as u64)))
            .collect::<Vec<_>>();
        let count = if calm { 0 } else { chance.between(0, 12) };
        let mut troubles: Vec<(Ns, PlannedTrouble)> = (0..count)
            .filter_map(|number| trouble(&jobs, length, &mut SeededChance::new(seed, 500 + number)))
            .collect();
        if seed >= SHORT_OF_ROOM {
            troubles.extend(crowds(&jobs, length, &mut SeededChance::new(seed, 900)));
        }
        troubles.sort_by_key(|(at, _)| *at);
        FaultScenario {
            seed,
            config,
            spin,
            length,
            jobs,
            troubles,
        }
    }

    /// Reduced scenarios, the smallest first.
    pub(crate) fn smaller(&self) -> Vec<FaultScenario> {
        let mut all = Vec::new();
        for part in [4, 2] {
            if self.length > MS {
                let mut one = self.clone();
                one.length /= part;
                one.troubles.retain(|(at, _)| *at < one.length);
                all.push(one);
            }
        }
        if self.troubles.len() > 1 {
            let mut one = self.clone();
            one.troubles.clear();
            all.push(one);
        }
        for at in 0..self.jobs.len() {
            let mut one = self.clone();
            let gone = one.jobs.remove(at).number;
            one.troubles.retain(|(_, trouble)| trouble.job() != Some(gone));
            all.push(one);
        }
        for at in 0..self.troubles.len() {
            let mut one = self.clone();
            one.troubles.remove(at);
            all.push(one);
        }
        for (at, job) in self.jobs.iter().enumerate() {
            if job.threads.len() > 1 {
                let mut one = self.clone();
                one.jobs[at].threads.pop();
                all.push(one);
            }
        }
        all
    }
}

impl PlannedTrouble {
    pub(crate) fn job(self) -> Option<usize> {
        match self {
            PlannedTrouble::Dies { job, .. }
            | PlannedTrouble::Leaves { job }
            | PlannedTrouble::Stalls { job, .. }
            | PlannedTrouble::ThreadStalls { job, .. }
            | PlannedTrouble::Priority { job, .. }
            | PlannedTrouble::Jumps { job, .. }
            | PlannedTrouble::Forks { job }
            | PlannedTrouble::Unprofiled { job }
            | PlannedTrouble::Crowded { job, .. }
            | PlannedTrouble::Lies { job, .. } => Some(job),
            PlannedTrouble::BrokerStalls { .. } | PlannedTrouble::BrokerJumps { .. } => None,
        }
    }
}

fn job(number: usize, length: Ns, calm: bool, chance: &mut SeededChance) -> ScenarioJob {
    let attach_at = if chance.per_mille(700) {
        0
    } else {
        chance.between(0, length / 2)
    };
    let grain = chance.of(&[20 * US, 60 * US, 150 * US, 400 * US, 1500 * US]);
    let count = if chance.per_mille(250) { 2 } else { 1 };
    let shape = chance.between(0, 4);
    let threads: Vec<Vec<ClientOp>> = (0..count)
        .map(|thread| program(number as u64 * 100 + thread * 10 + 10, grain, shape, chance))
        .collect();
    let profile = chance.per_mille(600).then(|| Arc::new(profile(&threads, chance)));
    ScenarioJob {
        number,
        priority: chance.of(&[0, 0, 3, 5, 5, 5, 7, 9]),
        attach_at,
        profiling: profile.is_none() && chance.per_mille(50),
        profile,
        threads,
        lies: !calm && chance.per_mille(120),
        longest_wait: Duration::from_millis(chance.of(&[1_000, 1_000, 30_000, 50])),
    }
}

/// Program of a thread: requests, endless training, a synchronisation after every kernel, or a
/// mixture.
fn program(first_kernel: u64, grain: Ns, shape: u64, chance: &mut SeededChance) -> Vec<ClientOp> {
    let mut ops = Vec::new();
    let launch = |chance: &mut SeededChance| {
        let kernel = first_kernel + chance.between(0, KERNELS - 1);
        let time = chance.length(grain / 4 + 1, grain * 4).min(MAX_KERNEL_NS);
        ClientOp::Launch { kernel, time }
    };
    match shape {
        0 | 1 => {
            ops.extend((0..chance.between(1, 40)).map(|_| launch(chance)));
            ops.extend([ClientOp::Sync, ClientOp::Host(chance.length(50 * US, 30 * MS))]);
        }
        2 => {
            ops.extend((0..chance.between(1, 30)).map(|_| launch(chance)));
            if chance.per_mille(500) {
                ops.push(ClientOp::Sync);
            }
        }
        3 => {
            for _ in 0..chance.between(1, 8) {
                ops.extend([
                    launch(chance),
                    ClientOp::Sync,
                    ClientOp::Host(chance.length(2 * US, 300 * US)),
                ]);
            }
        }
        _ => {
            for _ in 0..chance.between(4, 40) {
                let op = match chance.between(0, 9) {
                    0 => ClientOp::Sync,
                    1 => ClientOp::Host(chance.length(US, 20 * MS)),
                    2 => ClientOp::Copy {
                        bytes: chance.length(1 << 10, 8 << 20),
                    },
                    3 => ClientOp::Spin {
                        kernel: first_kernel,
                        time: chance.length(5 * US, 100 * US),
                    },
                    _ => launch(chance),
                };
                ops.push(op);
                if matches!(op, ClientOp::Spin { .. }) {
                    // The operation that it spins for.
                    ops.push(launch(chance));
                }
            }
            ops.push(ClientOp::Sync);
        }
    }
    ops
}

/// Profile of such a job: right for most kernels, wrong or missing for some.
fn profile(threads: &[Vec<ClientOp>], chance: &mut SeededChance) -> Profile {
    let mut run = Aggregator::new();
    for ops in threads {
        for (at, op) in ops.iter().enumerate() {
            let ClientOp::Launch { kernel, time } = *op else {
                continue;
            };
            if chance.per_mille(100) {
                continue;
            }
            let after: Ns = ops[at + 1..]
                .iter()
                .take_while(|op| !matches!(op, ClientOp::Launch { .. }))
                .map(|op| if let ClientOp::Host(time) = op { *time } else { 0 })
                .sum();
            let factor = chance.of(&[100, 100, 100, 50, 200]);
            run.sampled(kernel, time * factor / 100, Some(after));
        }
    }
    run.finish("job", 0)
}

/// Oversubscription of most jobs of a run for a part of it, in turns of similar length.
fn crowds(jobs: &[ScenarioJob], length: Ns, chance: &mut SeededChance) -> Vec<(Ns, PlannedTrouble)> {
    let mut all = Vec::new();
    for _ in 0..chance.between(1, 3) {
        let (begin, turn) = (chance.between(0, length), chance.length(2 * MS, 200 * MS));
        for job in 0..jobs.len() {
            if chance.per_mille(800) {
                all.push((
                    begin + chance.between(0, 2 * MS),
                    PlannedTrouble::Crowded { job, turn: Some(turn) },
                ));
            }
            if chance.per_mille(400) {
                let end = begin + chance.between(0, length);
                all.push((end, PlannedTrouble::Crowded { job, turn: None }));
            }
        }
    }
    all.retain(|(at, _)| *at < length);
    all
}

fn trouble(jobs: &[ScenarioJob], length: Ns, chance: &mut SeededChance) -> Option<(Ns, PlannedTrouble)> {
    let at = chance.between(0, length);
    let job = chance.between(0, jobs.len() as u64 - 1) as usize;
    let signed = |chance: &mut SeededChance| {
        let by = chance.length(US, 2_000 * MS) as i64;
        if chance.per_mille(500) { by } else { -by }
    };
    let trouble = match chance.between(0, 15) {
        0 => PlannedTrouble::Dies {
            job,
            heard_after: chance.length(10 * US, 100 * MS),
        },
        1 => PlannedTrouble::Leaves { job },
        2 | 3 => PlannedTrouble::Stalls {
            job,
            time: chance.length(50 * US, 700 * MS),
        },
        4 => PlannedTrouble::ThreadStalls {
            job,
            thread: chance.between(0, 1) as usize,
            time: chance.length(50 * US, 700 * MS),
        },
        5 => PlannedTrouble::BrokerStalls {
            time: chance.length(50 * US, 700 * MS),
        },
        6..=8 => PlannedTrouble::Priority {
            job,
            priority: chance.between(0, 9) as u8,
        },
        9 => PlannedTrouble::Jumps {
            job,
            by: signed(chance),
        },
        10 => PlannedTrouble::BrokerJumps { by: signed(chance) },
        11 => PlannedTrouble::Forks { job },
        12 => PlannedTrouble::Unprofiled { job },
        _ => {
            let liars: Vec<usize> = jobs.iter().filter(|job| job.lies).map(|job| job.number).collect();
            if liars.is_empty() {
                return None;
            }
            PlannedTrouble::Lies {
                job: chance.of(&liars),
                what: chance.next(),
            }
        }
    };
    Some((at, trouble))
}

impl fmt::Display for FaultScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}, policy {}, {} ms, delay bound {} us, switch {} us, share {}, turn {} ms{}",
            self.seed,
            self.config.policy,
            self.length as f64 / 1e6,
            self.config.delay_bound / US,
            self.config.switch_cost / US,
            self.config.minimum_share,
            self.config.turn / MS,
            if self.spin { ", spinning" } else { "" }
        )?;
        for job in &self.jobs {
            writeln!(
                f,
                "  job {}: priority {}, comes at {} ms, {}{}waits {} ms at most, {} threads of {:?} operations",
                job.number,
                job.priority,
                job.attach_at as f64 / 1e6,
                if job.profile.is_some() { "profile, " } else { "" },
                if job.lies { "lies, " } else { "" },
                job.longest_wait.as_millis(),
                job.threads.len(),
                job.threads.iter().map(Vec::len).collect::<Vec<_>>(),
            )?;
        }
        for (at, trouble) in &self.troubles {
            writeln!(f, "  at {} ms: {trouble:?}", *at as f64 / 1e6)?;
        }
        Ok(())
    }
}
