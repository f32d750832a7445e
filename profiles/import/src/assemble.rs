// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joined calls and cuts become a trace.
//!
//! The trace's model of a host ([`weft_trace_format::timeline`]) has one cost for all launch calls,
//! and waits that return at once. A call's time beyond that is host time before the thread's next
//! call. So each thread has a clock: the moment at which the model leaves its last call.
//!
//! A launch call that blocked on a full queue waited for the device; that time is not host time.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use weft_kernel_id::{KernelId, graph_hash};
use weft_profiles::Ns;
use weft_trace_format::{
    AwaitedWork, Call, EventIndex, GraphNode, KernelIndex, Operation, Step, StreamIndex, ThreadIndex, Trace,
    TracedKernel, timeline::CallCosts,
};

use crate::{
    ImportError,
    cut::Cuts,
    join::{Awaited, Joined, JoinedCall},
    recording::{CallClass, WorkClass},
};

/// Launch calls ahead of the device from which a long call was blocked: a queue takes about
/// 1,000.
const FULL_QUEUE: usize = 500;

/// Shortest launch call that counts as blocked, ns.
const BLOCKED_NS: Ns = 50_000;

/// Longest time by which a launch is later, so that its work begins when the file has it, ns. Work
/// that is later waited for something that the trace has not.
const LONGEST_SHIFT_NS: Ns = 20_000;

/// Longest time between two kernels of a graph that is the graph's own, ns.
const NODE_GAP_NS: Ns = 2_000;

/// Host time before a request's first call from which it is time without a request, ns.
const IDLE_NS: Ns = 1_000_000;

/// Time by which a copy may end after its call's return although the call waited, ns: the two
/// clocks of a profiler differ.
const CLOCK_NS: Ns = 500;

/// Bit of event numbers that another step awaits.
const ACROSS: EventIndex = 0x8000;

/// Counts of an import.
#[derive(Debug, Clone, Copy, Default)]
pub struct Assembled {
    /// Launch calls that blocked, and the time that was cut of them.
    pub blocked: u64,
    /// Time that was cut of them, ns.
    pub blocked_ns: Ns,
    /// Graph launches.
    pub graphs: u64,
    /// Graph launches without nodes.
    pub graphs_unknown: u64,
    /// Waits in the trace.
    pub waits: u64,
    /// Waits at the ends of requests that the file does not have.
    pub added_waits: u64,
    /// Calls of the steps, and those before the first or after the last.
    pub calls_outside: u64,
    /// Waits for which the file has no work, now host time.
    pub waits_for_nothing: u64,
}

/// Makes the steps and kernels of a trace. Returns the calls of each step, too.
pub fn assemble(
    joined: &Joined,
    cuts: &Cuts,
    service: bool,
    trace: &mut Trace,
) -> Result<(Assembled, Vec<Range<usize>>), ImportError> {
    trace.launch_cost = launch_cost(joined);
    let ranges = ranges(joined, cuts);
    let mut assembly = StepAssembly::new(joined, trace, &ranges);
    let mut before = None;
    let mut kept = Vec::new();
    for (range, begin) in ranges {
        let begin = cuts.begins.get(begin).copied().unwrap_or(0);
        let busy = range.clone().any(|at| !joined.works_of(&joined.calls[at]).is_empty());
        if !busy {
            continue;
        }
        let (step, end) = assembly.step(range.clone(), begin, before, service && !cuts.by_waits, cuts.by_waits)?;
        before = Some(end);
        if !step.operations.is_empty() {
            assembly.trace.steps.push(step);
            kept.push(range);
        }
    }
    let in_steps: usize = kept.iter().map(Range::len).sum();
    assembly.counts.calls_outside = (joined.calls.len() - in_steps) as u64;
    let counts = assembly.counts;
    // The first think time is not in the file.
    let mut thinks: Vec<Ns> = trace.steps.iter().skip(1).map(|step| step.think).collect();
    thinks.sort_unstable();
    if let Some(first) = trace.steps.first_mut() {
        first.think = thinks.get(thinks.len() / 2).copied().unwrap_or(0);
    }
    Ok((counts, kept))
}

/// Calls of each step, with the step's number.
fn ranges(joined: &Joined, cuts: &Cuts) -> Vec<(Range<usize>, usize)> {
    let at = |time: Ns| joined.calls.partition_point(|call| call.host.start < time);
    let ends = cuts.begins.iter().skip(1).chain([&cuts.end]);
    let ranges = cuts.begins.iter().zip(ends).map(|(begin, end)| at(*begin)..at(*end));
    ranges.enumerate().map(|(number, range)| (range, number)).collect()
}

/// Median time of a launch call, ns.
fn launch_cost(joined: &Joined) -> Ns {
    let launch = |call: &&JoinedCall| call.host.class == CallClass::Launch;
    let mut costs: Vec<Ns> = joined
        .calls
        .iter()
        .filter(launch)
        .map(|call| call.host.end - call.host.start)
        .collect();
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied().unwrap_or(3_000)
}

struct StepAssembly<'a> {
    joined: &'a Joined<'a>,
    trace: &'a mut Trace,
    costs: CallCosts,
    counts: Assembled,
    kernels: HashMap<u32, KernelIndex>,
    graphs: HashMap<u64, KernelIndex>,
    streams: HashMap<u32, StreamIndex>,
    threads: HashMap<u32, ThreadIndex>,
    /// Work that a call awaits: whether another step does.
    awaited: HashMap<usize, bool>,
    /// Its event, once it is recorded.
    events: HashMap<usize, EventIndex>,
    across: EventIndex,
    here: EventIndex,
    last_stream: HashMap<u32, u32>,
    /// Starts of launch calls, and starts of their first work, in order.
    launched: Vec<Ns>,
    begun: Vec<Ns>,
}

/// Clocks of a step's threads: when the model leaves their last call.
#[derive(Default)]
struct Clocks {
    left: HashMap<u32, Ns>,
    begin: Ns,
    /// The previous operation's thread, its return in the file, and in the model.
    before: Option<(u32, Ns, Ns)>,
    end: Ns,
}

impl<'a> StepAssembly<'a> {
    fn new(joined: &'a Joined<'a>, trace: &'a mut Trace, ranges: &[(Range<usize>, usize)]) -> StepAssembly<'a> {
        let step_of = |call: usize| ranges.iter().position(|(range, _)| range.contains(&call));
        // Ranges are in order: a call's step by its place among their ends.
        let ends: Vec<usize> = ranges.iter().map(|(range, _)| range.end).collect();
        let step_of = |call: usize| match ends.len() {
            0..8 => step_of(call),
            _ => {
                let at = ends.partition_point(|end| *end <= call);
                ranges.get(at).filter(|(range, _)| range.contains(&call)).map(|_| at)
            }
        };
        let mut awaited: HashMap<usize, bool> = HashMap::new();
        for (at, call) in joined.calls.iter().enumerate() {
            let event = match call.awaited {
                Awaited::Work(work) => Some(work),
                _ => None,
            };
            for work in event.into_iter().chain(call.after) {
                let recorded = joined.works[work].call.and_then(&step_of);
                if let (Some(recorded), Some(waits)) = (recorded, step_of(at)) {
                    *awaited.entry(work).or_default() |= recorded != waits;
                }
            }
        }
        let work_calls = joined.calls.iter().filter(|call| !joined.works_of(call).is_empty());
        let mut begun: Vec<Ns> = work_calls
            .clone()
            .map(|call| joined.works[joined.works_of(call)[0]].work.start)
            .collect();
        begun.sort_unstable();
        StepAssembly {
            joined,
            costs: CallCosts::default(),
            counts: Assembled::default(),
            kernels: HashMap::new(),
            graphs: HashMap::new(),
            streams: streams(joined),
            threads: HashMap::new(),
            awaited,
            events: HashMap::new(),
            across: 0,
            here: 0,
            last_stream: HashMap::new(),
            launched: work_calls.map(|call| call.host.start).collect(),
            begun,
            trace,
        }
    }

    /// Makes a step; returns it with the moment at which the model's host leaves it.
    fn step(
        &mut self,
        range: Range<usize>,
        mark: Ns,
        before: Option<Ns>,
        waits_at_end: bool,
        idle_first: bool,
    ) -> Result<(Step, Ns), ImportError> {
        let begin = mark.max(before.unwrap_or(mark));
        let mut step = Step {
            think: begin - before.unwrap_or(begin),
            operations: Vec::new(),
        };
        let mut clocks = Clocks {
            begin,
            end: begin,
            ..Clocks::default()
        };
        self.here = 0;
        for at in range {
            self.call(at, &mut step, &mut clocks)?;
        }
        if let (true, Some(last)) = (waits_at_end, step.operations.last())
            && !last.call.waits()
        {
            let thread = last.thread;
            step.operations.push(Operation {
                thread,
                handed_over: false,
                host_before: 0,
                call: Call::Sync(AwaitedWork::All),
            });
            self.counts.added_waits += 1;
        }
        if let Some(first) = step.operations.first_mut()
            && idle_first
            && first.host_before > IDLE_NS
        {
            step.think += std::mem::take(&mut first.host_before);
        }
        Ok((step, clocks.end))
    }

    fn call(&mut self, at: usize, step: &mut Step, clocks: &mut Clocks) -> Result<(), ImportError> {
        let joined = self.joined;
        let call = &joined.calls[at];
        let host = call.host;
        let works = joined.works_of(call);
        let handed = clocks
            .before
            .filter(|(thread, end, _)| *thread != host.thread && *end <= host.start);
        let since = match handed {
            Some((_, _, left)) => left,
            None => clocks.left.get(&host.thread).copied().unwrap_or(clocks.begin),
        };
        let mut called = host.start.max(since);
        let cost = self.trace.launch_cost;
        let (asked, left) = match host.class {
            CallClass::Wait(_) => {
                let Some((until, end)) = self.target(call.awaited) else {
                    self.counts.waits_for_nothing += 1;
                    return Ok(());
                };
                self.counts.waits += 1;
                let left = if end > called { end + self.costs.wake } else { called };
                (Call::Sync(until), left)
            }
            CallClass::Copy { asynchronous } => {
                let Some(first) = works.first() else { return Ok(()) };
                let (asked, end) = self.copy(host.end, asynchronous, works, *first);
                let returned = called + cost;
                let left = match asked.waits() {
                    true => returned.max(end + self.costs.wake),
                    false => self.unblocked(call, called),
                };
                (asked, left)
            }
            _ => {
                let Some(first) = works.first() else { return Ok(()) };
                let asked = self.launch(call, works, *first)?;
                if call.after.is_none() {
                    called += self.shift(call, called, *first);
                }
                (asked, self.unblocked(call, called))
            }
        };
        let mut operation = Operation {
            thread: number(&mut self.threads, host.thread),
            handed_over: handed.is_some(),
            host_before: called - since,
            call: asked,
        };
        if let (Some(event), Some(first)) = (
            call.after.and_then(|work| self.events.get(&work).copied()),
            works.first(),
        ) {
            let stream = self.stream(joined.works[*first].work.stream);
            let call = Call::Wait { event, stream };
            step.operations.push(Operation { call, ..operation });
            operation = Operation {
                handed_over: false,
                host_before: 0,
                ..operation
            };
        }
        step.operations.push(operation);
        for work in works {
            self.record(*work, step, operation.thread);
        }
        clocks.left.insert(host.thread, left);
        clocks.before = Some((host.thread, host.end, left));
        clocks.end = clocks.end.max(left);
        Ok(())
    }

    /// Target of a wait, and the end of that work in the file.
    fn target(&self, awaited: Awaited) -> Option<(AwaitedWork, Ns)> {
        match awaited {
            Awaited::Nothing => None,
            Awaited::All(end) => Some((AwaitedWork::All, end)),
            Awaited::Stream(stream, end) => Some((AwaitedWork::Stream(self.stream(stream)), end)),
            Awaited::Work(work) => {
                let event = self.events.get(&work)?;
                Some((AwaitedWork::Event(*event), self.joined.works[work].work.end))
            }
        }
    }

    fn stream(&self, stream: u32) -> StreamIndex {
        self.streams.get(&stream).copied().unwrap_or(0)
    }

    /// Records the event of a piece of work that some call awaits.
    fn record(&mut self, work: usize, step: &mut Step, thread: ThreadIndex) {
        let Some(across) = self.awaited.get(&work) else { return };
        let event = match across {
            true => {
                self.across = self.across.wrapping_add(1) & !ACROSS;
                ACROSS | self.across
            }
            false => {
                self.here = self.here.wrapping_add(1) & !ACROSS;
                self.here
            }
        };
        self.events.insert(work, event);
        let stream = match step.operations.last().map(|last| last.call) {
            Some(Call::Launch { stream, .. } | Call::Copy { stream, .. } | Call::Record { stream, .. }) => stream,
            _ => self.stream(self.joined.works[work].work.stream),
        };
        step.operations.push(Operation {
            thread,
            handed_over: false,
            host_before: 0,
            call: Call::Record { event, stream },
        });
    }

    /// Moment at which the model leaves a call that does not wait; a blocked call's wait is cut.
    fn unblocked(&mut self, call: &JoinedCall, called: Ns) -> Ns {
        let left = called + self.trace.launch_cost;
        let took = call.host.end - call.host.start;
        let upto = |times: &[Ns]| times.partition_point(|time| *time <= call.host.start);
        if took > BLOCKED_NS && upto(&self.launched).saturating_sub(upto(&self.begun)) > FULL_QUEUE {
            self.counts.blocked += 1;
            let cut = took.saturating_sub(self.trace.launch_cost);
            self.counts.blocked_ns = self.counts.blocked_ns.saturating_add(cut);
            return left.max(call.host.end);
        }
        left
    }

    /// Time by which a launch must be later for its work to begin when the file has it.
    fn shift(&self, call: &JoinedCall, called: Ns, first: usize) -> Ns {
        let joined = &self.joined.works[first];
        let expected = called + self.costs.latency;
        // A long call loads code before it launches.
        let longest = LONGEST_SHIFT_NS + (call.host.end - call.host.start);
        match joined.engine_free <= expected {
            true => joined.work.start.saturating_sub(expected).min(longest),
            false => 0,
        }
    }

    fn copy(&mut self, returned: Ns, asynchronous: bool, works: &[usize], first: usize) -> (Call, Ns) {
        let joined = self.joined;
        let work = joined.works[first].work;
        let end = works
            .iter()
            .map(|at| joined.works[*at].work.end)
            .max()
            .unwrap_or(work.end);
        let shares = works.iter().map(|at| joined.works[*at].share);
        let duration = shares.fold(0, Ns::saturating_add);
        let WorkClass::Copy {
            direction,
            bytes,
            pinned,
        } = work.class
        else {
            // A copy that ran as a kernel.
            let call = Call::Copy {
                direction: weft_trace_format::Direction::DeviceToDevice,
                bytes: 0,
                stream: self.stream(work.stream),
                waits: false,
                duration,
            };
            return (call, end);
        };
        let to_page_locked = asynchronous && pinned == Some(true);
        let returns_early = work.class.on_kernel_engine() || to_page_locked;
        let waits = !returns_early && returned + CLOCK_NS >= end;
        let call = Call::Copy {
            direction,
            bytes,
            stream: self.stream(work.stream),
            waits,
            duration,
        };
        (call, end)
    }

    fn launch(&mut self, call: &JoinedCall, works: &[usize], first: usize) -> Result<Call, ImportError> {
        let joined = self.joined;
        let work = joined.works[first].work;
        let thread = call.host.thread;
        if call.host.class != CallClass::Graph && works.len() == 1 {
            self.last_stream.insert(thread, work.stream);
            return Ok(Call::Launch {
                kernel: self.kernel(first)?,
                stream: self.stream(work.stream),
                duration: joined.works[first].share,
            });
        }
        self.counts.graphs += 1;
        // A graph's nodes may have streams of their own: the launch's is that of the last launch.
        let stream = match work.class {
            WorkClass::Graph(_) => work.stream,
            _ => self.last_stream.get(&thread).copied().unwrap_or(work.stream),
        };
        let mut nodes = Vec::new();
        let (mut duration, mut end) = (0 as Ns, work.start);
        for at in works {
            let piece = &joined.works[*at];
            if matches!(piece.work.class, WorkClass::Kernel(_)) {
                let kernel = self.kernel(*at)?;
                nodes.push(GraphNode {
                    kernel,
                    duration: piece.share,
                });
            }
            let gap = piece.work.start.saturating_sub(end).min(NODE_GAP_NS);
            duration = duration.saturating_add(piece.share + gap);
            end = end.max(piece.work.end);
        }
        Ok(Call::Launch {
            kernel: self.graph(nodes, work.class)?,
            stream: self.stream(stream),
            duration,
        })
    }

    fn push(&mut self, kernel: TracedKernel) -> Result<KernelIndex, ImportError> {
        if self.trace.kernels.len() >= weft_trace_format::MAX_KERNELS {
            return Err(ImportError::TooMuch(
                "the kernels of different shapes that a trace may have",
            ));
        }
        self.trace.kernels.push(kernel);
        Ok(self.trace.kernels.len() as KernelIndex - 1)
    }

    fn kernel(&mut self, work: usize) -> Result<KernelIndex, ImportError> {
        let file = self.joined.file;
        let WorkClass::Kernel(number) = self.joined.works[work].work.class else {
            // A copy that a launch call asked for.
            return self.graph(Vec::new(), WorkClass::Graph(u64::MAX));
        };
        if let Some(known) = self.kernels.get(&number) {
            return Ok(*known);
        }
        let shape = file.shapes[number as usize];
        let id = KernelId::new(0, file.names.name(shape.name), shape.grid, shape.block, shape.shared);
        let index = self.push(TracedKernel {
            registers: file.registers[number as usize],
            ..TracedKernel::of(id)
        })?;
        self.kernels.insert(number, index);
        Ok(index)
    }

    fn graph(&mut self, nodes: Vec<GraphNode>, class: WorkClass) -> Result<KernelIndex, ImportError> {
        let hash = match (nodes.is_empty(), class) {
            (true, WorkClass::Graph(number)) => graph_hash([number]),
            _ => graph_hash(nodes.iter().map(|node| self.trace.kernels[node.kernel as usize].hash)),
        };
        self.counts.graphs_unknown += u64::from(nodes.is_empty());
        if let Some(known) = self.graphs.get(&hash) {
            return Ok(*known);
        }
        let id = KernelId::graph(hash, nodes.len());
        let index = self.push(TracedKernel {
            nodes,
            ..TracedKernel::of(id)
        })?;
        self.graphs.insert(hash, index);
        Ok(index)
    }
}

/// Numbers of the streams, the one with the most work first. Streams inside of graphs have none.
fn streams(joined: &Joined) -> HashMap<u32, StreamIndex> {
    let mut uses: HashMap<u32, usize> = HashMap::new();
    let mut outside: HashSet<u32> = HashSet::new();
    for joined_work in &joined.works {
        let stream = joined_work.work.stream;
        *uses.entry(stream).or_default() += 1;
        let call = joined_work.call.map(|call| joined.calls[call].host.class);
        if call.is_some_and(|class| class != CallClass::Graph) || matches!(joined_work.work.class, WorkClass::Graph(_))
        {
            outside.insert(stream);
        }
    }
    let mut order: Vec<(u32, usize)> = uses
        .into_iter()
        .filter(|(stream, _)| outside.contains(stream))
        .collect();
    order.sort_by_key(|(stream, count)| (std::cmp::Reverse(*count), *stream));
    let mut streams = HashMap::new();
    for (stream, _) in order {
        number(&mut streams, stream);
    }
    streams
}

/// Number of a key, a new one if needed; keys beyond the last number share it.
fn number(known: &mut HashMap<u32, u16>, key: u32) -> u16 {
    let next = u16::try_from(known.len()).unwrap_or(u16::MAX);
    *known.entry(key).or_insert(next)
}
