// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine in virtual time: a GPU (the simulated one's engine), jobs that launch on it, and a
//! broker between them. The broker looks at lanes now and then, and its orders arrive a little
//! later. Steps of 5 us; the engine itself is exact.

use std::{collections::VecDeque, fmt};

use weft_engine::{Engine, OpId, Output, Settings, StreamId, Work};
use weft_scheduler::{Client, Config, Core, Decision, Event, Mode, Ns, Snapshot};

use crate::job::{Job, LAUNCH_NS, Step};

/// Step of the jobs and the broker, ns.
const STEP_NS: Ns = 5_000;

/// Interval at which the broker looks at lanes while a job waits, ns: the daemon naps 50 to 500 us
/// on a small machine.
const LOOK_NS: Ns = 100_000;

/// Time to wake a background job by an order, or the broker by a wait, ns: 25-65 us a sleeping
/// core.
const HOP_NS: Ns = 50_000;

/// Launches that the driver takes ahead: channels hold about a thousand.
const AHEAD: usize = 1_000;

/// Charge of an unknown kernel, ns.
const UNKNOWN_NS: Ns = 20_000;

struct Process {
    job: Job,
    stream: StreamId,
    at: usize,
    /// Busy on the host until then.
    busy_until: Ns,
    outstanding: VecDeque<(OpId, Ns)>,
    request_began: Ns,
    latencies: Vec<Ns>,
    context: weft_engine::ContextId,
    /// Its lane.
    mode: Mode,
    credit: i64,
    bound: bool,
    epochs: u64,
    issued: Ns,
    settled: Ns,
    /// Kernel at the gate, its cost, and since when.
    waiting: Option<(u64, Ns, Ns)>,
    woken_at: Ns,
    records: Vec<Event>,
}

pub struct World {
    engine: Engine,
    core: Option<Core>,
    processes: Vec<Process>,
    epochs: [u64; 10],
    now: Ns,
    next_look: Ns,
    /// Orders on their way: arrival time, order, launch epochs above the job.
    orders: VecDeque<(Ns, Decision, u64)>,
}

pub struct Outcome {
    pub snapshot: Option<Snapshot>,
    pub credit_words: Vec<i64>,
    jobs: Vec<(&'static str, f64, Vec<Ns>)>,
}

impl Outcome {
    /// A quantile of a job's latencies, ns.
    pub fn latency(&self, name: &str, part: f64) -> f64 {
        self.latency_behind(name, 0, part)
    }

    /// A quantile of the latencies behind the `first` ones, ns.
    pub fn latency_behind(&self, name: &str, first: usize, part: f64) -> f64 {
        let (_, _, latencies) = self.job(name);
        let mut sorted = latencies.get(first..).unwrap_or_default().to_vec();
        sorted.sort_unstable();
        let at = ((part * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
        sorted[at - 1] as f64
    }

    /// Time for which the GPU ran a job's kernels, ns.
    pub fn gpu(&self, name: &str) -> f64 {
        self.job(name).1
    }

    fn job(&self, name: &str) -> &(&'static str, f64, Vec<Ns>) {
        self.jobs
            .iter()
            .find(|(job, _, _)| *job == name)
            .expect("a job of this name")
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, gpu, latencies) in &self.jobs {
            write!(f, " | {name}: GPU {:.1} ms", gpu / 1e6)?;
            if !latencies.is_empty() {
                write!(
                    f,
                    ", {} requests, p50 {:.2} ms, p99 {:.2} ms",
                    latencies.len(),
                    self.latency(name, 0.5) / 1e6,
                    self.latency(name, 0.99) / 1e6
                )?;
            }
        }
        if let Some(snapshot) = &self.snapshot {
            write!(f, " | {:?}", snapshot.counters)?;
        }
        Ok(())
    }
}

impl World {
    /// Without a configuration the jobs share the GPU without a broker.
    pub fn new(config: Option<Config>) -> World {
        World {
            engine: Engine::new(Settings::default()),
            core: config.map(Core::new),
            processes: Vec::new(),
            epochs: [0; 10],
            now: 0,
            next_look: 0,
            orders: VecDeque::new(),
        }
    }

    pub fn with(mut self, job: Job) -> World {
        let context = self.engine.add_context();
        let stream = self.engine.add_stream(context, 0).expect("a stream");
        let client = Client(self.processes.len() as u64);
        let attached = Event::Attached {
            client,
            priority: job.priority,
            profile: job.profile.clone(),
        };
        self.processes.push(Process {
            job,
            stream,
            at: 0,
            busy_until: 0,
            outstanding: VecDeque::new(),
            request_began: 0,
            latencies: Vec::new(),
            context,
            mode: Mode::Free,
            credit: 0,
            bound: false,
            epochs: 0,
            issued: 0,
            settled: 0,
            waiting: None,
            woken_at: 0,
            records: Vec::new(),
        });
        self.tell(vec![attached]);
        // Modes are set before the job runs.
        self.arrive(Ns::MAX);
        self
    }

    pub fn run(mut self, span: Ns) -> Outcome {
        while self.now < span {
            self.now += STEP_NS;
            self.engine.advance_to(self.now);
            while let Some(output) = self.engine.next_output() {
                let Output::Done { op, tag, .. } = output else { continue };
                self.processes[tag as usize]
                    .outstanding
                    .retain(|(other, _)| *other != op);
            }
            self.arrive(self.now);
            for index in 0..self.processes.len() {
                self.step(index);
            }
            self.broker();
        }
        // At the end all is reported and answered.
        self.arrive(Ns::MAX);
        self.next_look = 0;
        self.broker();
        self.arrive(Ns::MAX);
        Outcome {
            snapshot: self.core.as_ref().map(Core::snapshot),
            credit_words: self.processes.iter().map(|process| process.credit).collect(),
            jobs: self
                .processes
                .into_iter()
                .map(|process| {
                    let usage = self.engine.context_usage(process.context).expect("a context");
                    (process.job.name, usage.compute as f64, process.latencies)
                })
                .collect(),
        }
    }

    /// Runs a job as far as it can at this time.
    fn step(&mut self, index: usize) {
        loop {
            let now = self.now;
            let process = &mut self.processes[index];
            if now < process.busy_until {
                return;
            }
            match process.job.steps[process.at] {
                Step::Launch { kernel, time } => {
                    if process.outstanding.len() >= AHEAD || !self.may_launch(index, kernel, time) {
                        return;
                    }
                    let process = &mut self.processes[index];
                    let work = Work::Kernel {
                        duration: time,
                        held: false,
                    };
                    let op = self
                        .engine
                        .submit(now, process.stream, work, index as u64)
                        .expect("a live stream");
                    process.outstanding.push_back((op, time));
                    process.busy_until = now + LAUNCH_NS;
                }
                Step::Sync => {
                    if !process.outstanding.is_empty() {
                        return;
                    }
                    process.records.push(Event::Idle(Client(index as u64), now));
                }
                Step::Host(time) => process.busy_until = now + time,
                Step::Begin => process.request_began = now,
                Step::Answer => {
                    let latency = now - process.request_began;
                    process.latencies.push(latency);
                }
            }
            let process = &mut self.processes[index];
            process.at = (process.at + 1) % process.job.steps.len();
        }
    }

    /// The interposer's gate.
    fn may_launch(&mut self, index: usize, kernel: u64, time: Ns) -> bool {
        let now = self.now;
        let process = &mut self.processes[index];
        let cost = if process.job.profile.is_some() {
            time
        } else {
            UNKNOWN_NS
        };
        let client = Client(index as u64);
        let launched = Event::Launched {
            client,
            kernel,
            cost,
            at: now,
        };
        match process.mode {
            Mode::Free | Mode::Alone => true,
            Mode::Foreground => {
                self.epochs[usize::from(process.job.priority)] += 1;
                process.records.push(launched);
                true
            }
            Mode::Background => {
                let above: u64 = self.epochs.iter().take(usize::from(process.job.priority)).sum();
                let awake = process.waiting.is_none() || now >= process.woken_at;
                if awake && process.credit >= cost as i64 && (!process.bound || process.epochs == above) {
                    process.credit -= cost as i64;
                    process.issued += cost;
                    process.waiting = None;
                    process.records.push(launched);
                    return true;
                }
                if process.waiting.is_none() {
                    process.waiting = Some((kernel, cost, now));
                    process.woken_at = Ns::MAX;
                    self.next_look = self.next_look.min(now + HOP_NS);
                }
                false
            }
        }
    }

    /// Applies orders that have arrived.
    fn arrive(&mut self, now: Ns) {
        while self.orders.front().is_some_and(|(at, _, _)| *at <= now) {
            let Some((_, order, epochs)) = self.orders.pop_front() else {
                return;
            };
            match order {
                Decision::Mode(client, mode) => self.processes[client.0 as usize].mode = mode,
                Decision::Grant {
                    client, credit, bound, ..
                } => {
                    let process = &mut self.processes[client.0 as usize];
                    let mut left = None;
                    if process.bound != bound || (bound && process.epochs != epochs) {
                        left = (process.credit != 0).then_some(std::mem::take(&mut process.credit));
                    }
                    process.credit += credit as i64;
                    (process.bound, process.epochs) = (bound, epochs);
                    // The doorbell; a sleeping job needs a moment.
                    process.woken_at = self.now + HOP_NS;
                    if let Some(left) = left {
                        self.tell(vec![Event::Revoked { client, left }]);
                    }
                }
                Decision::RunAheadWindow(..) | Decision::Times(..) | Decision::Charge(..) => {}
                Decision::Revoke(client) => {
                    let left = std::mem::take(&mut self.processes[client.0 as usize].credit);
                    self.tell(vec![Event::Revoked { client, left }]);
                }
            }
        }
    }

    /// An iteration of the broker, if due.
    fn broker(&mut self) {
        let Some(core) = &self.core else { return };
        let due = core.next_wake(self.now).is_some_and(|wake| wake <= self.now);
        if !due && self.now < self.next_look {
            return;
        }
        let waiting = self.processes.iter().any(|process| process.waiting.is_some());
        self.next_look = if waiting {
            self.now + LOOK_NS
        } else {
            self.now + 20 * LOOK_NS
        };
        let mut events = Vec::new();
        for (index, process) in self.processes.iter_mut().enumerate() {
            let client = Client(index as u64);
            events.append(&mut process.records);
            let ahead: Ns = process.outstanding.iter().map(|(_, time)| *time).sum();
            let charged = if process.job.profile.is_some() {
                ahead
            } else {
                process.outstanding.len() as Ns * UNKNOWN_NS
            };
            process.settled = process.issued.saturating_sub(charged).max(process.settled);
            events.push(Event::Progress {
                client,
                issued: process.issued,
                settled: process.settled,
            });
            match process.waiting {
                Some((kernel, cost, since)) => events.push(Event::Waits {
                    client,
                    kernel,
                    cost,
                    since,
                }),
                None => events.push(Event::Passed(client)),
            }
        }
        events.push(Event::Tick);
        self.tell(events);
        self.arrive(self.now);
    }

    fn tell(&mut self, events: Vec<Event>) {
        let now = self.now;
        let Some(core) = &mut self.core else { return };
        let mut decisions = Vec::new();
        for event in events {
            core.handle(now, event, &mut decisions);
        }
        for decision in decisions {
            // The lane is written at once; waking the job takes time.
            let epochs = match decision {
                Decision::Grant { client, .. } => {
                    let priority = usize::from(self.processes[client.0 as usize].job.priority);
                    self.epochs.iter().take(priority).sum()
                }
                _ => 0,
            };
            self.orders.push_back((now, decision, epochs));
        }
    }
}
