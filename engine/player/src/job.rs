// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job: the work that it launches, in a form that replays fast, and the arrival times of its
//! requests.
//!
//! A [`Program`] is a trace with its order worked out: each operation knows which operations begin
//! when it returns. The host and device times of a request depend only on the seed, the job's
//! number, the request and the operation ([`weft_random::at`]).
//!
//! The resources of a kernel's blocks follow from its identity, which has grid, block and shared
//! memory, and from its registers. A recording of weft has only dynamic shared memory, and no
//! registers: they are as usual ([`weft_engine::SmLimits`]). The grids of a generated trace mean
//! nothing, so its kernels have no shape and fill the device.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use weft_engine::{KernelShape, SmLimits};
use weft_kernel_id::is_collective;
use weft_profiles::Profile;
use weft_protocol::lane::{DEVICE_COPY, HOST_COPY};
use weft_trace_format::{AwaitedWork, Call, Direction, GraphNode, Source, Step, Trace};

use crate::rule::KernelNeeds;
use crate::{Ns, PlayError};

/// The index of no operation.
pub const NONE: u32 = u32::MAX;

/// Threads of a block, assumed for fills and copies on the device.
const FILL_THREADS: u32 = 256;

/// Bytes that such a block moves: each thread moves four times sixteen.
const COPY_BLOCK_BYTES: u64 = FILL_THREADS as u64 * 64;

/// Registers of such a thread, assumed.
const COPY_REGISTERS: u32 = 32;

/// A launched piece of work or a wait, as the world plays it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Play {
    /// Work for the compute engine. `kernel` is the name that the interposer would use.
    Compute {
        /// Its hash, or [`DEVICE_COPY`] for fills and copies on the device.
        kernel: u64,
        /// Its stream.
        stream: u16,
        /// Its time, ns.
        duration: Ns,
        /// Place in [`Program::graphs`] if the device sees several kernels, else [`NONE`].
        graph: u32,
        /// Bytes, of a fill or copy.
        bytes: u64,
    },
    /// Work for a copy engine.
    Copy {
        /// Towards the host.
        to_host: bool,
        /// Its stream.
        stream: u16,
        /// Its time, ns.
        duration: Ns,
        /// Its size.
        bytes: u64,
        /// The call returns when it is done.
        waits: bool,
    },
    /// The host waits.
    Sync(AwaitedWork),
    /// An event is recorded.
    Record {
        /// The event.
        event: u16,
        /// The stream that records it.
        stream: u16,
    },
    /// A stream waits for an event.
    Wait {
        /// The event.
        event: u16,
        /// The stream that waits.
        stream: u16,
    },
}

/// An operation of a step.
#[derive(Debug, Clone, Copy)]
pub struct JobOp {
    /// Host time before the call.
    pub host_before: Ns,
    /// The call.
    pub play: Play,
    /// The next operation of the same host thread, if it follows this one.
    pub next_same: u32,
    /// The operation of another thread that waited for this one.
    pub next_handed: u32,
}

/// A request or an iteration.
#[derive(Debug, Clone, Default)]
pub struct StepProgram {
    /// Host time before it.
    pub think: Ns,
    /// In host order.
    pub ops: Vec<JobOp>,
    /// Operations that begin with the step.
    pub roots: Vec<u32>,
}

/// A kernel of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphKernel {
    /// Its hash.
    pub kernel: u64,
    /// Its part of the graph's time, ns or any other unit.
    pub part: Ns,
}

/// The work of a job.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Host time of a launch call.
    pub launch_cost: Ns,
    /// Steps that run one after another, over and over.
    pub steps: Vec<StepProgram>,
    /// Kernels of graphs.
    pub graphs: Vec<Vec<GraphKernel>>,
    /// Kernels of known shape, by hash.
    pub shapes: HashMap<u64, KernelShape>,
    /// Needs of its kernels on the device, by their hashes.
    pub needs: HashMap<u64, KernelNeeds>,
    /// Hashes of kernels that wait for peers on other devices.
    pub collectives: HashSet<u64>,
    /// Streams that it uses.
    pub streams: usize,
    /// Events that it uses.
    pub events: usize,
}

impl Program {
    /// The program of a trace. It cannot be made of a trace that contradicts itself.
    pub fn of(trace: &Trace) -> Result<Program, PlayError> {
        if let Some(why) = trace.unsound() {
            return Err(PlayError::Unsound(trace.name.clone(), why));
        }
        let mut program = Program {
            name: trace.name.clone(),
            launch_cost: trace.launch_cost,
            shapes: shapes(trace),
            collectives: collectives(trace),
            ..Program::default()
        };
        let mut graphs: HashMap<u32, u32> = HashMap::new();
        for step in &trace.steps {
            let step = program.step(trace, step, &mut graphs);
            program.steps.push(step);
        }
        Ok(program)
    }

    /// Whether a job of this name can run it: it has device work, and its times are those of a
    /// job. Without time its requests would not end, and with too much the clock would.
    pub(crate) fn check(&self, job: &str) -> Result<(), PlayError> {
        /// A year, ns.
        const LONGEST_NS: u128 = 365 * 24 * 3_600 * 1_000_000_000;
        let (mut works, mut time) = (false, 0);
        for op in self.steps.iter().flat_map(|step| &step.ops) {
            time += u128::from(op.host_before);
            if let Play::Compute { duration, .. } | Play::Copy { duration, .. } = op.play {
                works = true;
                time += u128::from(duration) + u128::from(self.launch_cost);
            }
        }
        let think = self.steps.iter().map(|step| u128::from(step.think));
        match time + think.sum::<u128>() {
            _ if !works || time == 0 => Err(PlayError::NoWork(job.to_string())),
            whole if whole > LONGEST_NS => Err(PlayError::TooLong(job.to_string())),
            _ => Ok(()),
        }
    }

    /// The same program on a host that takes this part of the time between calls and in a launch
    /// call.
    pub fn with_host_time(self, part: f64) -> Program {
        self.scaled(part, 1.0, 1.0)
    }

    /// The same program with kernels that run for this part of their time.
    pub fn with_kernel_time(self, part: f64) -> Program {
        self.scaled(1.0, part, 1.0)
    }

    /// The same program with all host and device times multiplied by `factor`.
    pub fn dilated(self, factor: f64) -> Program {
        self.scaled(factor, factor, factor)
    }

    fn scaled(mut self, host: f64, kernels: f64, copies: f64) -> Program {
        let scale = |time: &mut Ns, factor: f64| *time = (*time as f64 * factor).round() as Ns;
        scale(&mut self.launch_cost, host);
        for step in &mut self.steps {
            scale(&mut step.think, host);
            for op in &mut step.ops {
                scale(&mut op.host_before, host);
                match &mut op.play {
                    Play::Compute { duration, .. } => scale(duration, kernels),
                    Play::Copy { duration, .. } => scale(duration, copies),
                    _ => {}
                }
            }
        }
        self
    }

    fn step(&mut self, trace: &Trace, step: &Step, graphs: &mut HashMap<u32, u32>) -> StepProgram {
        let mut out = StepProgram {
            think: step.think,
            ..StepProgram::default()
        };
        let mut last_of_thread: HashMap<u16, usize> = HashMap::new();
        for (at, operation) in step.operations.iter().enumerate() {
            let here = at as u32;
            match (operation.handed_over, last_of_thread.get(&operation.thread)) {
                (true, _) if at > 0 => out.ops[at - 1].next_handed = here,
                (false, Some(before)) => out.ops[*before].next_same = here,
                _ => out.roots.push(here),
            }
            last_of_thread.insert(operation.thread, at);
            let play = self.play(trace, &operation.call, graphs);
            out.ops.push(JobOp {
                host_before: operation.host_before,
                play,
                next_same: NONE,
                next_handed: NONE,
            });
        }
        out
    }

    fn play(&mut self, trace: &Trace, call: &Call, graphs: &mut HashMap<u32, u32>) -> Play {
        let mut uses = |stream: u16| {
            self.streams = self.streams.max(usize::from(stream) + 1);
            stream
        };
        match *call {
            Call::Launch {
                kernel,
                stream,
                duration,
            } => {
                let known = &trace.kernels[kernel as usize];
                self.needs
                    .entry(known.hash)
                    .or_insert_with(|| KernelNeeds::of(&known.id));
                let kernel_of = |node: &GraphNode| trace.kernels[node.kernel as usize].hash;
                let stream = uses(stream);
                let mut graph = NONE;
                if known.nodes.len() > 1 {
                    graph = *graphs.entry(kernel).or_insert_with(|| {
                        // A trace may have no times of the single kernels: then all of them get the
                        // same part.
                        let timed = known.nodes.iter().any(|node| node.duration > 0);
                        let piece = |node: &GraphNode| GraphKernel {
                            kernel: kernel_of(node),
                            part: if timed { node.duration } else { 1 },
                        };
                        self.graphs.push(known.nodes.iter().map(piece).collect());
                        self.graphs.len() as u32 - 1
                    });
                }
                Play::Compute {
                    kernel: known.hash,
                    stream,
                    duration,
                    graph,
                    bytes: 0,
                }
            }
            Call::Copy {
                direction,
                bytes,
                stream,
                waits,
                duration,
            } => match direction {
                Direction::HostToDevice | Direction::DeviceToHost => Play::Copy {
                    to_host: direction == Direction::DeviceToHost,
                    stream: uses(stream),
                    duration,
                    bytes,
                    waits,
                },
                Direction::DeviceToDevice | Direction::Fill => Play::Compute {
                    kernel: DEVICE_COPY,
                    stream: uses(stream),
                    duration,
                    graph: NONE,
                    bytes,
                },
            },
            Call::Sync(until) => {
                if let AwaitedWork::Stream(stream) = until {
                    uses(stream);
                }
                if let AwaitedWork::Event(event) = until {
                    self.events = self.events.max(usize::from(event) + 1);
                }
                Play::Sync(until)
            }
            Call::Record { event, stream } => {
                self.events = self.events.max(usize::from(event) + 1);
                Play::Record {
                    event,
                    stream: uses(stream),
                }
            }
            Call::Wait { event, stream } => {
                self.events = self.events.max(usize::from(event) + 1);
                Play::Wait {
                    event,
                    stream: uses(stream),
                }
            }
        }
    }

    /// The step that serves a request.
    pub fn step_of(&self, request: u64) -> &StepProgram {
        &self.steps[(request % self.steps.len() as u64) as usize]
    }

    /// Number of operations of all steps; each kernel of a graph counts as one.
    pub fn operations(&self) -> usize {
        let count = |op: &JobOp| match op.play {
            Play::Compute { graph, .. } if graph != NONE => self.graphs[graph as usize].len().max(1),
            _ => 1,
        };
        self.steps.iter().flat_map(|step| &step.ops).map(count).sum()
    }

    /// Mean device time of a step, ns, or its host time if that is more: about the time that a
    /// request takes in a solo run.
    pub fn usual_time(&self) -> Ns {
        let steps = self.steps.len().max(1) as u64;
        let time = |step: &StepProgram| {
            let device = step.ops.iter().map(|op| match op.play {
                Play::Compute { duration, .. } | Play::Copy { duration, .. } => duration,
                _ => 0,
            });
            let host = step.ops.iter().map(|op| op.host_before + self.launch_cost);
            device.sum::<Ns>().max(host.sum())
        };
        self.steps.iter().map(time).sum::<Ns>() / steps
    }

    /// Kernel times as the device runs them, one by one.
    pub fn kernel_times(&self) -> Vec<Ns> {
        let mut times = Vec::new();
        for op in self.steps.iter().flat_map(|step| &step.ops) {
            match op.play {
                Play::Compute { duration, graph, .. } if graph != NONE => {
                    times.extend(self.pieces(graph, duration).map(|(_, time)| time));
                }
                Play::Compute { duration, .. } => times.push(duration),
                _ => {}
            }
        }
        times
    }

    /// The kernels of a graph, by hash, scaled so that they take `duration` together.
    pub fn pieces(&self, graph: u32, duration: Ns) -> impl Iterator<Item = (u64, Ns)> + '_ {
        let pieces = &self.graphs[graph as usize];
        let sum: Ns = pieces.iter().map(|piece| piece.part).sum::<Ns>().max(1);
        let mut given = 0;
        let mut so_far = 0;
        pieces.iter().map(move |piece| {
            so_far += piece.part;
            let upto = (u128::from(duration) * u128::from(so_far) / u128::from(sum)) as Ns;
            let part = upto - given;
            given = upto;
            (piece.kernel, part)
        })
    }

    /// The resources of a kernel's blocks. An unknown kernel gets the default, which fills the
    /// device.
    pub fn kernel_shape(&self, kernel: u64) -> KernelShape {
        self.shapes.get(&kernel).copied().unwrap_or_default()
    }

    /// Whether the operation is a kernel that waits for peers.
    pub fn is_collective(&self, play: &Play) -> bool {
        matches!(play, Play::Compute { kernel, graph: NONE, .. } if self.collectives.contains(kernel))
    }

    /// The resources of an operation's blocks; for a graph those of its first kernel.
    pub fn shape_of(&self, play: &Play) -> KernelShape {
        match *play {
            Play::Compute {
                kernel: DEVICE_COPY,
                bytes,
                ..
            } => copy_shape(bytes),
            Play::Compute { graph, .. } if graph != NONE => self.graphs[graph as usize]
                .first()
                .map_or_else(KernelShape::default, |first| self.kernel_shape(first.kernel)),
            Play::Compute { kernel, .. } => self.kernel_shape(kernel),
            _ => KernelShape::default(),
        }
    }

    /// The part of the device that its kernels' blocks take, averaged over the time of all kernels.
    pub fn share(&self, limits: &SmLimits) -> f64 {
        let mut sum = 0;
        let mut taken = 0.0;
        let mut add = |shape: KernelShape, time: Ns| {
            sum += time;
            taken += shape.share(limits) * time as f64;
        };
        for op in self.steps.iter().flat_map(|step| &step.ops) {
            match op.play {
                Play::Compute { duration, graph, .. } if graph != NONE => {
                    for (kernel, time) in self.pieces(graph, duration) {
                        add(self.kernel_shape(kernel), time);
                    }
                }
                Play::Compute { duration, .. } => add(self.shape_of(&op.play), duration),
                _ => {}
            }
        }
        taken / (sum as f64).max(1.0)
    }
}

/// Block resources of a trace's kernels. A block without threads
/// counts as none.
fn shapes(trace: &Trace) -> HashMap<u64, KernelShape> {
    if trace.source == Source::Generated {
        return HashMap::new();
    }
    let known = trace.kernels.iter().filter(|kernel| kernel.nodes.is_empty());
    known
        .map(|kernel| {
            let (id, registers) = (&kernel.id, kernel.registers);
            let shape = KernelShape::of(id.grid, id.block, id.shared);
            (kernel.hash, KernelShape { registers, ..shape })
        })
        .collect()
}

/// Kernels of a trace that wait for peers.
fn collectives(trace: &Trace) -> HashSet<u64> {
    let plain = trace.kernels.iter().filter(|kernel| kernel.nodes.is_empty());
    plain
        .filter(|kernel| is_collective(&kernel.id.symbol))
        .map(|kernel| kernel.hash)
        .collect()
}

/// The shape of a fill or a copy on the device.
fn copy_shape(bytes: u64) -> KernelShape {
    let blocks = bytes.div_ceil(COPY_BLOCK_BYTES).max(1);
    KernelShape {
        blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        threads: FILL_THREADS,
        shared_bytes: 0,
        registers: COPY_REGISTERS,
    }
}

/// When requests arrive.
#[derive(Debug, Clone, PartialEq)]
pub enum ArrivalPattern {
    /// The next request comes this time after the answer to the last one. `None`: the trace's own
    /// think time.
    Closed {
        /// Host time between requests.
        think: Option<Ns>,
    },
    /// Requests come independently of answers, as a Poisson process.
    Poisson {
        /// Mean time between arrivals.
        mean: Ns,
    },
    /// Bursts of `size` requests at once; the bursts are a Poisson process.
    Bursts {
        /// Requests in a burst.
        size: u64,
        /// Mean time between bursts.
        mean: Ns,
    },
    /// Requests come independently of answers, each this time after the one before. The list begins
    /// anew at its end.
    Listed(Arc<[Ns]>),
}

impl ArrivalPattern {
    /// Whether a slow answer delays the next request.
    pub fn is_closed(&self) -> bool {
        matches!(self, ArrivalPattern::Closed { .. })
    }

    /// Time from the previous request's arrival to this one's, if it does not wait for an answer.
    pub fn distance(&self, seed: u64, job: u64, request: u64) -> Ns {
        let word = weft_random::at(seed, [job, request, ARRIVAL]);
        match self {
            ArrivalPattern::Closed { .. } => 0,
            ArrivalPattern::Poisson { mean } => weft_random::exponential(word, *mean as f64) as Ns,
            ArrivalPattern::Bursts { size, mean } if request.is_multiple_of((*size).max(1)) => {
                weft_random::exponential(word, *mean as f64) as Ns
            }
            ArrivalPattern::Bursts { .. } => 0,
            ArrivalPattern::Listed(distances) => {
                let at = request.checked_rem(distances.len() as u64).unwrap_or(0);
                distances.get(at as usize).copied().unwrap_or(0)
            }
        }
    }
}

/// The places of chance ([`weft_random::at`]) that are not a device time: beyond all numbers of
/// operations.
const ARRIVAL: u64 = 0x0100_0000_0000;
const THINK: u64 = ARRIVAL + 1;
const HOST: u64 = 0x0200_0000_0000;

/// How much times vary from request to request, as a part of themselves (one standard deviation).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Jitter {
    /// Kernels.
    pub device: f64,
    /// Host time between calls.
    pub host: f64,
}

impl Default for Jitter {
    /// Kernels of one shape repeat within some percent on a GPU with fixed clocks; host code varies
    /// more. Unverified; a trace of a real GPU brings its own variation and needs zeros here.
    fn default() -> Jitter {
        Jitter {
            device: 0.02,
            host: 0.10,
        }
    }
}

/// weft's knowledge of a job when the job arrives.
#[derive(Debug, Clone, Default)]
pub enum ProfileSource {
    /// The profile of a solo run ([`crate::solo_profile`]).
    #[default]
    Solo,
    /// This profile.
    Given(Arc<Profile>),
    /// None: weft learns while the job runs.
    Absent,
}

impl ProfileSource {
    /// The profile, if it is given.
    pub fn given(&self) -> Option<&Arc<Profile>> {
        match self {
            ProfileSource::Given(profile) => Some(profile),
            ProfileSource::Solo | ProfileSource::Absent => None,
        }
    }
}

/// A job of a run.
#[derive(Debug, Clone)]
pub struct PlayedJob {
    /// Its name.
    pub name: String,
    /// 0 (most important) to 9.
    pub priority: u8,
    /// Its work.
    pub program: Arc<Program>,
    /// When its requests come.
    pub arrivals: ArrivalPattern,
    /// How much its times vary.
    pub jitter: Jitter,
    /// The profile that weft has of it.
    pub profile: ProfileSource,
    /// `weft run --slowdown`, as a part of its time, if it is given.
    pub slowdown: Option<f64>,
    /// `weft run --slo`, ns, if it is given.
    pub slo: Option<Ns>,
    /// `weft run --at-least`, as a part of the device's time, if it is given.
    pub at_least: Option<f64>,
    /// Whether each of its waits returns with a token.
    pub tokens: bool,
}

impl PlayedJob {
    /// A closed loop with the program's own think times.
    pub fn new(name: &str, priority: u8, program: Arc<Program>) -> PlayedJob {
        PlayedJob {
            name: name.to_string(),
            priority,
            program,
            arrivals: ArrivalPattern::Closed { think: None },
            jitter: Jitter::default(),
            profile: ProfileSource::Solo,
            slowdown: None,
            slo: None,
            at_least: None,
            tokens: false,
        }
    }

    /// Host time before a request, if the next one waits for the answer to the last.
    pub fn think(&self, seed: u64, job: u64, request: u64) -> Ns {
        let think = match &self.arrivals {
            ArrivalPattern::Closed { think } => think.unwrap_or_else(|| self.program.step_of(request).think),
            _ => 0,
        };
        scale(think, weft_random::at(seed, [job, request, THINK]), self.jitter.host)
    }

    /// Device time of an operation in a request.
    pub fn device_time(&self, seed: u64, job: u64, request: u64, op: u32, duration: Ns) -> Ns {
        scale(
            duration,
            weft_random::at(seed, [job, request, u64::from(op)]),
            self.jitter.device,
        )
    }

    /// Host time before an operation in a request.
    pub fn host_time(&self, seed: u64, job: u64, request: u64, op: u32, host: Ns) -> Ns {
        scale(
            host,
            weft_random::at(seed, [job, request, HOST | u64::from(op)]),
            self.jitter.host,
        )
    }
}

fn scale(time: Ns, word: u64, deviation: f64) -> Ns {
    if deviation == 0.0 || time == 0 {
        return time;
    }
    (time as f64 * weft_random::factor(word, deviation)) as Ns
}

/// The name of an operation at the gate and in the broker's records. Only work has a name.
pub(crate) fn name_of(play: &Play) -> u64 {
    match play {
        Play::Compute { kernel, .. } => *kernel,
        _ => HOST_COPY,
    }
}

#[cfg(test)]
mod tests {
    use weft_kernel_id::KernelId;
    use weft_trace_format::{Operation, TracedKernel};

    use super::*;
    use crate::US;

    /// A step of the last of three kernels, and of a graph of the other two. The grids are as
    /// given, with blocks of 1,024 threads.
    fn program(source: Source, grids: [u32; 3]) -> Program {
        let kernel = |blocks| TracedKernel {
            registers: 64 + blocks,
            ..TracedKernel::of(KernelId::new(1, "shaped", [blocks, 1, 1], [1_024, 1, 1], 0))
        };
        let node = |kernel, duration| GraphNode { kernel, duration };
        let graph = TracedKernel {
            nodes: vec![node(0, 3 * US), node(1, US)],
            ..TracedKernel::of(KernelId::graph(1, 2))
        };
        let launch = |kernel, duration| Operation {
            thread: 0,
            handed_over: false,
            host_before: 0,
            call: Call::Launch {
                kernel,
                stream: 0,
                duration,
            },
        };
        let trace = Trace {
            source,
            launch_cost: 5 * US,
            kernels: grids.map(kernel).into_iter().chain([graph]).collect(),
            steps: vec![Step {
                think: 0,
                operations: vec![launch(2, 10 * US), launch(3, 4 * US)],
            }],
            ..Trace::default()
        };
        Program::of(&trace).expect("a sound trace")
    }

    #[test]
    fn kernels_of_recordings_have_the_shapes_of_their_grids() {
        let program = program(Source::Estimated, [30, 54, 7]);
        let shapes: Vec<(u32, u32)> = program.steps[0]
            .ops
            .iter()
            .filter(|op| matches!(op.play, Play::Compute { .. }))
            .map(|op| program.shape_of(&op.play))
            .map(|shape| (shape.blocks, shape.registers))
            .collect();
        // A graph has the shape of its first kernel.
        assert_eq!(shapes, [(7, 71), (30, 94)]);
        let pieces: Vec<(u32, Ns)> = program
            .pieces(0, 8 * US)
            .map(|(kernel, time)| (program.kernel_shape(kernel).blocks, time))
            .collect();
        assert_eq!(pieces, [(30, 6 * US), (54, 2 * US)]);
        let limits = SmLimits::A100_LIKE;
        // One block per SM: parts of 108, weighted by 10, 3 and 1 us.
        let share = (7.0 * 10.0 + 30.0 * 3.0 + 54.0) / (14.0 * 108.0);
        assert!((program.share(&limits) - share).abs() < 1e-9);
    }

    #[test]
    fn generated_kernels_fill_the_device() {
        let program = program(Source::Generated, [30, 54, 7]);
        assert!(program.shapes.is_empty());
        assert_eq!(program.kernel_shape(0), KernelShape::default());
        assert!((program.share(&SmLimits::A100_LIKE) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn listed_requests_come_as_listed_and_begin_anew() {
        let arrivals = ArrivalPattern::Listed(Arc::from([3, 5, 8]));
        let distances: Vec<Ns> = (0..5).map(|request| arrivals.distance(1, 0, request)).collect();
        assert_eq!(distances, [3, 5, 8, 3, 5]);
        assert!(!arrivals.is_closed());
        assert_eq!(ArrivalPattern::Listed(Arc::from([])).distance(1, 0, 7), 0);
    }

    #[test]
    fn all_of_a_dilated_job_takes_longer() {
        let plain = program(Source::Estimated, [30, 54, 7]);
        let slow = plain.clone().dilated(20.0);
        assert_eq!(slow.usual_time(), 20 * plain.usual_time());
        assert_eq!(slow.launch_cost, 20 * plain.launch_cost);
        assert_eq!(
            slow.kernel_times(),
            plain.kernel_times().iter().map(|time| 20 * time).collect::<Vec<Ns>>()
        );
    }

    #[test]
    fn copies_have_a_block_for_each_16_kib() {
        assert_eq!([0, 16 << 10, 40 << 10].map(|bytes| copy_shape(bytes).blocks), [1, 1, 3]);
    }
}
