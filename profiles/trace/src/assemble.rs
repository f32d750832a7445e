// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of a recording to a trace, as a pure function.
//!
//! * **Host gaps** run from the job's continuation after one call to the entry of the next. They
//!   exclude the recorder's time, and time in which the ready thread had no processor.
//! * **Device times**: an event takes device time itself (`tick`), so measured work is one tick too
//!   long. On an idle device the launch latency after the first event is not work.
//! * **Threads**: if a thread was silent during another thread's call, its next operation follows
//!   that call ([`super::Operation::handed_over`]). Independent threads look the same if their
//!   calls do not overlap; a replay keeps their order.
//! * **Events** without a wait are left out, as are waits for events from before the first mark.
//!   The others are numbered per step and recording. Handles come from pools, so with handles steps
//!   would never repeat.

use std::collections::HashMap;

use weft_kernel_id::KernelId;

use super::{
    AwaitedWork, Call, EventIndex, GraphNode, KernelIndex, Operation, Source, Step, StreamIndex, ThreadIndex, Trace,
    TracedKernel,
    raw::{self, CallKind, MarkTime, Record, RecorderFile},
    waits::Waits,
};
use weft_profiles::Ns;

/// Least device time of work, ns: the rest of an event pair's distance comes from the measurement.
const MIN_WORK_NS: f64 = 100.0;

/// Facts about a recording that its file does not contain.
#[derive(Debug, Clone)]
pub struct RecordingFacts {
    /// Name of the trace.
    pub name: String,
    /// How the trace was made, one line.
    pub note: String,
    /// Origin of the times.
    pub source: Source,
    /// Time of recording, seconds since 1970.
    pub taken: u64,
}

/// Makes a trace of a recording. Without a mark it has no steps.
pub fn trace(recording: &RecorderFile, options: &RecordingFacts) -> Trace {
    let mut assembly = Assembly::new(recording);
    let tick = least_tick(recording);
    for record in &recording.events {
        match record {
            Record::Mark(moment) => assembly.mark(moment),
            Record::Stop(moment) => assembly.stop(moment),
            Record::Operation(operation) => assembly.operation(operation, tick),
            _ => {}
        }
    }
    assembly.close();
    let launch_cost = assembly.launch_cost();
    let mut trace = Trace {
        name: options.name.clone(),
        taken: options.taken,
        gpu: recording.gpu.clone(),
        source: options.source,
        note: options.note.clone(),
        launch_cost,
        kernels: assembly.kernels,
        steps: assembly.steps,
    };
    fill_nodes(&mut trace);
    trace
}

/// Device time of an event: the least distance of two events, as on a busy device.
fn least_tick(recording: &RecorderFile) -> f64 {
    let ticks = recording.events.iter().filter_map(|record| match record {
        Record::Operation(operation) => operation.tick.filter(|tick| *tick >= 0.0),
        _ => None,
    });
    let least = ticks.fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}

/// Bit of recordings that another step awaits. Such numbers are not reused soon.
const ACROSS: EventIndex = 0x8000;

#[derive(Debug)]
struct Assembly<'a> {
    recording: &'a RecorderFile,
    kernels: Vec<TracedKernel>,
    by_hash: HashMap<u64, KernelIndex>,
    streams: HashMap<u64, StreamIndex>,
    threads: HashMap<u32, ThreadIndex>,
    /// Event handle to the number of its last recording.
    events: HashMap<u64, EventIndex>,
    waits: Waits,
    /// Number of recordings so far that this step awaits, and that another step awaits.
    here: EventIndex,
    across: EventIndex,
    steps: Vec<Step>,
    /// The open step, and the time at which the job continued after its mark.
    open: Option<(Step, Ns)>,
    /// Thread to the time at which the job continued after its last call.
    left: HashMap<u32, Ns>,
    /// Thread to later time that does not belong to the job, from calls that are left out.
    aside: HashMap<u32, Ns>,
    /// The previous operation's thread, and the time at which the job continued after it.
    before: Option<(u32, Ns)>,
    /// End of all device work so far, device ns.
    ended: f64,
    launch_costs: Vec<Ns>,
}

impl<'a> Assembly<'a> {
    fn new(recording: &'a RecorderFile) -> Assembly<'a> {
        Assembly {
            recording,
            kernels: Vec::new(),
            by_hash: HashMap::new(),
            // Both handles of the default stream.
            streams: HashMap::from([(0, 0), (1, 0)]),
            threads: HashMap::new(),
            events: HashMap::new(),
            waits: Waits::of(recording),
            here: 0,
            across: 0,
            steps: Vec::new(),
            open: None,
            left: HashMap::new(),
            aside: HashMap::new(),
            before: None,
            ended: f64::NEG_INFINITY,
            launch_costs: Vec::new(),
        }
    }

    fn close(&mut self) {
        if let Some((step, _)) = self.open.take() {
            self.steps.push(step);
        }
    }

    fn mark(&mut self, moment: &MarkTime) {
        self.close();
        self.here = 0;
        number(&mut self.threads, moment.thread);
        let since = self.left.get(&moment.thread).copied().unwrap_or(moment.entered);
        let think = moment.entered.saturating_sub(since).saturating_sub(moment.preempted);
        self.open = Some((
            Step {
                think,
                operations: Vec::new(),
            },
            moment.left,
        ));
        self.before = None;
        self.aside.clear();
        self.left.insert(moment.thread, moment.left);
    }

    fn stop(&mut self, moment: &MarkTime) {
        self.close();
        self.left.insert(moment.thread, moment.left);
    }

    fn operation(&mut self, operation: &raw::TimedCall, tick: f64) {
        let duration = self.duration(operation, tick);
        let Some((_, marked)) = self.open else {
            self.left.insert(operation.thread, operation.left);
            return;
        };
        let Some(call) = self.call(operation, duration) else {
            // A call that is left out adds its own time to the next gap, but not the recorder's
            // time.
            let ours = operation.left.saturating_sub(operation.entered);
            let its = operation.returned.saturating_sub(operation.called);
            *self.aside.entry(operation.thread).or_default() += ours.saturating_sub(its) + operation.preempted;
            return;
        };
        let handed_over = self
            .before
            .is_some_and(|(thread, left)| thread != operation.thread && left <= operation.entered);
        let since = match (handed_over, self.before) {
            (true, Some((_, left))) => left,
            _ => self.left.get(&operation.thread).copied().unwrap_or(0).max(marked) + operation.preempted,
        };
        let since = since + self.aside.remove(&operation.thread).unwrap_or(0);
        if matches!(operation.what, CallKind::Launch { .. }) {
            self.launch_costs
                .push(operation.returned.saturating_sub(operation.called));
        }
        let placed = Operation {
            thread: number(&mut self.threads, operation.thread),
            handed_over,
            host_before: operation.entered.saturating_sub(since),
            call,
        };
        if let Some((step, _)) = &mut self.open {
            step.operations.push(placed);
        }
        self.left.insert(operation.thread, operation.left);
        self.before = Some((operation.thread, operation.left));
    }

    /// Device time of the work without the measurement's own time, ns.
    fn duration(&mut self, operation: &raw::TimedCall, tick: f64) -> Ns {
        let Some((start, end)) = operation.device else { return 0 };
        let idle_before = start > self.ended + 2.0 * tick;
        let launching = operation.returned.saturating_sub(operation.called) as f64;
        // A call that waits lasts as long as its work: no part of it is launch latency.
        let late = if idle_before && !matches!(operation.what, CallKind::Copy { waits: true, .. }) {
            launching
        } else {
            0.0
        };
        self.ended = self.ended.max(end);
        let begin = (start + late).min(end - tick).max(start);
        let time = (end - begin - tick).max(MIN_WORK_NS.min((end - start).max(1.0)));
        time.round() as Ns
    }

    fn call(&mut self, operation: &raw::TimedCall, duration: Ns) -> Option<Call> {
        Some(match operation.what {
            CallKind::Launch { hash, stream } => Call::Launch {
                kernel: self.kernel(hash),
                stream: number(&mut self.streams, stream),
                duration,
            },
            CallKind::Copy {
                direction,
                bytes,
                stream,
                waits,
            } => Call::Copy {
                direction,
                bytes,
                stream: number(&mut self.streams, stream),
                waits,
                duration,
            },
            CallKind::SyncAll => Call::Sync(AwaitedWork::All),
            CallKind::SyncStream(stream) => Call::Sync(AwaitedWork::Stream(number(&mut self.streams, stream))),
            CallKind::SyncEvent(event) => Call::Sync(AwaitedWork::Event(*self.events.get(&event)?)),
            CallKind::Record { event, stream } => Call::Record {
                event: self.recorded(event, operation.sequence)?,
                stream: number(&mut self.streams, stream),
            },
            CallKind::Wait { event, stream } => Call::Wait {
                event: *self.events.get(&event)?,
                stream: number(&mut self.streams, stream),
            },
        })
    }

    /// Number of a recording, if any call waits for it.
    fn recorded(&mut self, event: u64, sequence: u64) -> Option<EventIndex> {
        let waits = &self.waits;
        let number = if waits.elsewhere.contains(&sequence) {
            self.across = self.across.wrapping_add(1);
            ACROSS | self.across
        } else if waits.here.contains(&sequence) {
            self.here = self.here.wrapping_add(1);
            (self.here - 1) & !ACROSS
        } else {
            self.events.remove(&event);
            return None;
        };
        self.events.insert(event, number);
        Some(number)
    }

    fn kernel(&mut self, hash: u64) -> KernelIndex {
        if let Some(known) = self.by_hash.get(&hash) {
            return *known;
        }
        let id = match (self.recording.graphs.get(&hash), self.recording.kernels.get(&hash)) {
            (Some(kernels), _) => KernelId::graph(hash, kernels.len()),
            (None, Some(id)) => id.clone(),
            (None, None) => KernelId::new(0, "?", [0; 3], [0; 3], 0),
        };
        let index = self.kernels.len() as KernelIndex;
        self.by_hash.insert(hash, index);
        self.kernels.push(TracedKernel {
            hash,
            id,
            registers: 0,
            nodes: Vec::new(),
        });
        for node in self.recording.graphs.get(&hash).into_iter().flatten() {
            // A nested graph was already recorded with its kernels.
            let kernel = self.kernel(*node);
            if let Some(graph) = self.kernels.get_mut(index as usize) {
                graph.nodes.push(GraphNode { kernel, duration: 0 });
            }
        }
        index
    }

    fn launch_cost(&mut self) -> Ns {
        self.launch_costs.sort_unstable();
        self.launch_costs.get(self.launch_costs.len() / 2).copied().unwrap_or(0)
    }
}

/// Number of a handle, a new one if needed. Handles beyond the last number all share it.
fn number<K: std::hash::Hash + Eq>(known: &mut HashMap<K, u16>, handle: K) -> u16 {
    if let Some(number) = known.get(&handle) {
        return *number;
    }
    // The default stream has two handles and one number.
    let next = known.values().max().map_or(0, |last| last.saturating_add(1));
    known.insert(handle, next);
    next
}

/// Sets a node's time to the mean of the kernel's separate launches, if any.
fn fill_nodes(trace: &mut Trace) {
    let mut times: HashMap<KernelIndex, (u128, u128)> = HashMap::new();
    for operation in trace.steps.iter().flat_map(|step| &step.operations) {
        if let Call::Launch { kernel, duration, .. } = operation.call {
            let (sum, count) = times.entry(kernel).or_default();
            *sum += u128::from(duration);
            *count += 1;
        }
    }
    for node in trace.kernels.iter_mut().flat_map(|kernel| &mut kernel.nodes) {
        if let Some((sum, count)) = times.get(&node.kernel) {
            node.duration = (sum / count.max(&1)) as Ns;
        }
    }
}

#[cfg(test)]
mod tests;
