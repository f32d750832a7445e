// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine in virtual time: a GPU (the engine of the simulated one), jobs that launch from host
//! threads, and the launch control between them.
//!
//! Events are exact: there is no grid of time. At one instant the device comes first, then the
//! host, in the order in which events were set.
//!
//! * `play` moves the jobs: threads, waits, how far a host may be ahead of the device.
//! * `gate` is the interposer's half of weft: modes, credit, marks, records. `broker` and `turn`
//!   are the daemon's: the times of its looks, its reports to the core, the arrival of its orders.
//!   They follow `interposer/src/throttle` and `broker/daemon/src` step by step. The core is the
//!   real one, and so are the gate's rules (`weft_gate`).
//! * `cost` is the time that the rule adds to a call.
//! * `queue` holds calls that their hosts left behind: weft's launch queue, or another rule's.
//! * `process` and `lane` hold the data of the other modules.
//!
//! Kernels share the device only under [`weft_engine::Mode::MpsShared`]. Each takes the resources
//! of its blocks' shape ([`crate::job::Program::shapes`]).
//!
//! Kernels that wait for peers pass weft's gate, as in the interposer. Under
//! [`weft_engine::Mode::Mps`] they leave the compute engine to others: they have a few blocks.
//! They are no [`KernelPiece`], and their time is not in [`JobRun::compute`].
//!
//! Not modelled: memory, hosts that run out of cores.
#![forbid(unsafe_code)]

mod broker;
mod cost;
mod gate;
mod lane;
mod play;
mod process;
mod queue;
mod rules;
mod stand;
mod timing;
mod turn;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weft_engine::{Engine, Mode, Output, Settings};
use weft_random::Random;
use weft_scheduler::{Config, Snapshot};

use crate::job::PlayedJob;
use crate::rule::{JobView, PlayedRule};
use crate::{MS, Ns, US};

pub use process::{JobRun, TokenTime};
pub use queue::DEFER_NS;
pub use stand::{HeldReason, Stand, StandChange};

use broker::Broker;
use process::JobProcess;

/// Number of priorities of jobs: 0 to 9.
pub(crate) const PRIORITIES: usize = 10;

/// The most launches of a job that the driver takes ahead of the device: channels hold about a
/// thousand.
const AHEAD: usize = 1_000;

/// Shortest time, ns, from the end of work to the return of a host thread that spins for it, CUDA's
/// default: the time of the host itself. A calibration's `wait_return_ns` may be longer.
pub const SYNC_RETURN_NS: Ns = 2 * US;

/// The speed of the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hosts {
    /// Wake-up of a sleeping thread, ns: measured 25 to 65 us for a sleeping core.
    pub wake: (Ns, Ns),
    /// Lateness of a nap's end, ns. A core that sleeps for 50 us sleeps lightly; unverified.
    pub oversleep: (Ns, Ns),
    /// Whether the broker has a core to spin on.
    pub spin: bool,
    /// Time, ns, that a background job spins at the gate before it sleeps.
    pub gate_spin: Ns,
    /// Launches that a background job may defer at a closed gate (`interposer/src/deferred` holds
    /// 1,024). 0, as with `WEFT_QUEUE=off`: it waits with the first.
    pub queue: usize,
    /// Whether wake-up hints are sent: the first copy of an idle job.
    pub hints: bool,
    /// Whether calls take the time that the rule adds to them (`cost`).
    pub launch_costs: bool,
    /// Time, ns, from the end of work to the return of a host thread that spins for it.
    pub sync_return: Ns,
    /// The factor by which the device is slower than a real one. weft's settings include it.
    /// Times of this machine are wall times then; the jobs' and the device's times already include
    /// the factor.
    pub dilation: f64,
}

impl Hosts {
    /// A real device's time, ns, on this one.
    pub fn slowed(&self, real: Ns) -> Ns {
        (real as f64 * self.dilation) as Ns
    }
}

impl Default for Hosts {
    /// A server with cores to spare.
    fn default() -> Hosts {
        Hosts {
            wake: (25 * US, 65 * US),
            oversleep: (3 * US, 15 * US),
            spin: true,
            gate_spin: 20 * US,
            queue: 1_024,
            hints: true,
            launch_costs: true,
            sync_return: SYNC_RETURN_NS,
            dilation: 1.0,
        }
    }
}

/// The launch control between the jobs and the device.
#[derive(Debug)]
pub enum LaunchControl {
    /// Nothing: the device's own sharing. [`crate::rule::MpsPriority`] is the other one that needs
    /// no weft.
    Plain,
    /// weft: the broker's core with these settings. [`LaunchControl::weft`] fits them to a device.
    Weft(Box<Config>),
    /// A rule of the caller's own.
    Own(Box<dyn PlayedRule>),
}

impl LaunchControl {
    /// weft with settings for a real device, on this one that is `dilation` times slower
    /// ([`Hosts::dilation`]). weft's only other knowledge of the device (`weft doctor` measures it)
    /// is the cost of a switch between jobs.
    pub fn weft(config: Config, device: &Settings, dilation: f64) -> LaunchControl {
        let mut config = slower(config, dilation);
        config.switch_cost = match device.mode {
            Mode::TimeSlice => device.switch,
            Mode::Mps | Mode::MpsShared(_) => 0,
        };
        LaunchControl::Weft(Box::new(config))
    }
}

/// Settings for a device that is `factor` times slower: its times are multiplied.
fn slower(mut config: Config, factor: f64) -> Config {
    let scale = |ns: &mut Ns| *ns = (*ns as f64 * factor) as Ns;
    scale(&mut config.delay_bound);
    scale(&mut config.small_gap);
    scale(&mut config.switch_cost);
    scale(&mut config.depth);
    config.slo.as_mut().map(scale);
    scale(&mut config.credit_for);
    scale(&mut config.open_after);
    scale(&mut config.open_unseen);
    scale(&mut config.starving_after);
    scale(&mut config.share_every);
    scale(&mut config.stuck_after);
    scale(&mut config.write_off_after);
    scale(&mut config.idle_grace);
    scale(&mut config.turn);
    scale(&mut config.max_swapped_out);
    scale(&mut config.swapped_out_limit);
    scale(&mut config.unknown_cost);
    config
}

/// A run, before it begins.
#[derive(Debug)]
pub struct MachineSetup {
    /// The device: how it shares its time, and its own times. The times of copies are those of the
    /// traces.
    pub device: Settings,
    /// The host.
    pub hosts: Hosts,
    /// The launch control.
    pub control: LaunchControl,
    /// The jobs. The first one decides when the run ends.
    pub jobs: Vec<PlayedJob>,
    /// The seed of all chance.
    pub seed: u64,
    /// The least number of requests that the first job answers before the run ends.
    pub requests: u64,
    /// Shortest run, ns of virtual time.
    pub least: Ns,
    /// Longest run, ns of virtual time, whatever the number of answers.
    pub longest: Ns,
    /// The first job's number for all chance; the others follow. A job in a solo run with the
    /// number that it has in a set has the same times in both.
    pub first_number: usize,
}

impl MachineSetup {
    /// A run of a thousand requests on a server with cores to spare.
    pub fn new(device: Settings, control: LaunchControl, jobs: Vec<PlayedJob>, seed: u64) -> MachineSetup {
        MachineSetup {
            device,
            hosts: Hosts::default(),
            control,
            jobs,
            seed,
            requests: 1_000,
            least: 0,
            longest: MAX_RUN_NS,
            first_number: 0,
        }
    }
}

/// A piece of a kernel's run on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelPiece {
    /// Start, ns.
    pub start: Ns,
    /// End, ns.
    pub end: Ns,
    /// Time, ns, from which it could run: its stream was that far, or the piece before it was
    /// stopped.
    pub ready: Ns,
    /// Time, ns, at which its launch had reached the device.
    pub visible: Ns,
    /// Index of the job.
    pub job: u16,
    /// Operation, counted from the job's beginning.
    pub op: u32,
    /// Hash of the kernel.
    pub kernel: u64,
    /// Time, ns, that it takes with the device to itself. That is less than from start to end if it
    /// shared SMs.
    pub alone: Ns,
}

/// The outcome of a run.
#[derive(Debug, Clone)]
pub struct MachineRun {
    /// By job.
    pub jobs: Vec<JobRun>,
    /// All pieces that the compute engine ran, in order of start.
    pub pieces: Vec<KernelPiece>,
    /// Length of the run, ns.
    pub span: Ns,
    /// The device.
    pub device: Settings,
    /// See [`Hosts::sync_return`].
    pub sync_return: Ns,
    /// The seed of all chance.
    pub seed: u64,
    /// Switches between contexts.
    pub switches: u64,
    /// Events of the engine, the host and the broker.
    pub events: u64,
    /// The core's state at the end.
    pub snapshot: Option<Snapshot>,
    /// Each job's credit word at the end.
    pub credit: Vec<i64>,
    /// Whether the first job answered all its requests in time.
    pub finished: bool,
}

/// An event of the host. Small, since there are millions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MachineEvent {
    /// A host thread reaches an operation.
    Call { job: u16, op: u32 },
    /// A request begins.
    Begin { job: u16 },
    /// A request is answered.
    Answer { job: u16 },
    /// A background job at the gate looks, or wakes.
    Gate { job: u16, token: u32 },
    /// A turn of the broker.
    Turn { token: u32 },
    /// The drain thread reaches the next deferred launch.
    Issue { job: u16 },
    /// A rewritten kernel that was stopped continues.
    GoOn { job: u16 },
    /// The time that a rule of the caller's own requested.
    Ask,
}

/// The machine.
pub(crate) struct PlayedMachine {
    engine: Engine,
    own: Option<Box<dyn PlayedRule>>,
    broker: Option<Broker>,
    processes: Vec<JobProcess>,
    views: Vec<JobView>,
    epochs: [u64; PRIORITIES],
    heap: BinaryHeap<Reverse<(Ns, u64, MachineEvent)>>,
    order: u64,
    now: Ns,
    hosts: Hosts,
    random: Random,
    seed: u64,
    requests: u64,
    least: Ns,
    longest: Ns,
    pieces: Vec<KernelPiece>,
    events: u64,
    asked: Option<Ns>,
    launch_latency: Ns,
    mode: Mode,
}

impl PlayedMachine {
    /// A machine with all jobs attached, before the first event.
    pub(crate) fn new(setup: MachineSetup) -> PlayedMachine {
        let device = Settings {
            // The duration of a copy is given in bytes: a byte takes a nanosecond.
            copy_latency: 0,
            to_device: 1_000,
            to_host: 1_000,
            trace: true,
            ..setup.device
        };
        let (broker, own) = match setup.control {
            LaunchControl::Plain => (None, None),
            LaunchControl::Weft(config) => (Some(Broker::new(*config, setup.hosts.spin)), None),
            LaunchControl::Own(policy) => (None, Some(policy)),
        };
        let mut world = PlayedMachine {
            engine: Engine::new(device),
            own,
            broker,
            processes: Vec::new(),
            views: Vec::new(),
            epochs: [0; PRIORITIES],
            heap: BinaryHeap::new(),
            order: 0,
            now: 0,
            hosts: setup.hosts,
            random: Random::new(setup.seed),
            seed: setup.seed,
            requests: setup.requests,
            least: setup.least,
            longest: setup.longest,
            pieces: Vec::new(),
            events: 0,
            asked: None,
            launch_latency: device.launch_latency,
            mode: device.mode,
        };
        for job in setup.jobs {
            world.views.push(JobView {
                priority: job.priority,
                ..JobView::default()
            });
            let number = (setup.first_number + world.processes.len()) as u64;
            let mut process = JobProcess::new(job, number, &mut world.engine);
            process.lane.dilation = setup.hosts.dilation;
            world.processes.push(process);
        }
        world.attach_all();
        world.begin_own();
        for job in 0..world.processes.len() {
            world.first_request(job);
        }
        world
    }

    fn at(&mut self, time: Ns, what: MachineEvent) {
        self.order += 1;
        self.heap.push(Reverse((time.max(self.now), self.order, what)));
    }

    fn wake_up(&mut self) -> Ns {
        let hop = self.random.between(self.hosts.wake);
        self.now + hop
    }

    /// Runs the machine to its end.
    pub(crate) fn run(mut self) -> MachineRun {
        let finished = loop {
            let host = self.heap.peek().map(|Reverse((at, _, _))| *at);
            let device = self.engine.next_event_time();
            let next = match (host, device) {
                (Some(host), Some(device)) => host.min(device),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => break false,
            };
            if next > self.longest {
                break false;
            }
            self.now = next;
            if device == Some(next) {
                self.engine.advance_to(next);
                self.take_outputs();
            }
            while let Some(Reverse((at, _, _))) = self.heap.peek()
                && *at <= next
            {
                let Some(Reverse((_, _, what))) = self.heap.pop() else {
                    break;
                };
                self.events += 1;
                self.happen(what);
            }
            self.take_outputs();
            if self.processes[0].latencies.len() as u64 >= self.requests && self.now >= self.least {
                break true;
            }
        };
        self.finish(finished)
    }

    fn happen(&mut self, what: MachineEvent) {
        match what {
            MachineEvent::Call { job, op } => self.call(usize::from(job), op),
            MachineEvent::Begin { job } => self.begin(usize::from(job)),
            MachineEvent::Answer { job } => self.answer(usize::from(job)),
            MachineEvent::Gate { job, token } => self.gate_look(usize::from(job), token),
            MachineEvent::Turn { token } => self.broker_turn(token),
            MachineEvent::Issue { job } => self.launch_queued(usize::from(job)),
            MachineEvent::GoOn { job } => self.go_on_with_kernel(usize::from(job)),
            MachineEvent::Ask => {
                self.asked = None;
                if let Some(own) = &mut self.own {
                    own.wake(self.now);
                }
                self.ask_own(None);
            }
        }
    }

    fn take_outputs(&mut self) {
        while let Some(output) = self.engine.next_output() {
            match output {
                Output::Done {
                    tag,
                    start,
                    end,
                    segments,
                    ..
                } => self.done((tag >> 16) as usize, (tag & 0xffff) as usize, start, end, &segments),
                Output::Reached { op, tag, .. } => self.piece_ended((tag >> 16) as usize, op),
                _ => {}
            }
        }
    }

    fn finish(mut self, finished: bool) -> MachineRun {
        self.settle_accounts();
        let usage = self.engine.usage();
        let events = self.events + usage.events + self.broker.as_ref().map_or(0, Broker::events);
        self.pieces.sort_by_key(|piece| piece.start);
        let now = self.now;
        MachineRun {
            snapshot: self.broker.as_ref().map(Broker::snapshot),
            credit: self.processes.iter().map(|process| process.lane.credit).collect(),
            jobs: self
                .processes
                .into_iter()
                .map(|process| process.into_run(&self.engine, now))
                .collect(),
            pieces: self.pieces,
            span: now,
            device: *self.engine.settings(),
            sync_return: self.hosts.sync_return,
            seed: self.seed,
            switches: usage.switches,
            events,
            finished,
        }
    }
}

/// Longest run by default, ns of virtual time.
pub const MAX_RUN_NS: Ns = 3_600_000 * MS;
