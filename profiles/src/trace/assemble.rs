//! From a recording to a trace. Pure.
//!
//! * **Host gaps** are what lies between a call's coming in and the moment at which the job went on after the call before it: what the recorder
//!   itself took is in neither, nor is time in which the thread was ready to run but other work had its processor.
//! * **Device times**: an event takes time on the device itself (`tick`), so work seems longer by one. Where the device was idle, the event before
//!   the work is reached at once and the work follows when the host has launched it: that part is no work.
//! * **Threads**: an operation whose thread was silent while another thread's call began and ended follows from that call
//!   ([`super::Operation::handed_over`]). Two threads that launch at will look the same where their calls do not overlap; replayed, they keep
//!   the order that was seen.
//! * **Events** that nothing waits for, and waits for events that were recorded before the first mark, are left out. Those that remain are numbered anew in
//!   each step, recording by recording: libraries take their events from pools, and a step would never repeat by their handles.
//! * Times are divided by the dilation of a simulated device.

use std::collections::HashMap;

use weft_kernel_id::KernelId;

use super::{
    Call, EventIndex, Kernel, KernelIndex, Node, Operation, Source, Step, StreamIndex, ThreadIndex, Trace, Until,
    raw::{self, Moment, Record, Recording, What},
    waits::Waits,
};
use crate::Ns;

/// No work is shorter, ns: the rest of an event pair is the instrument.
const SHORTEST: f64 = 100.0;

/// What is known of a recording beside what is in it.
#[derive(Debug, Clone)]
pub struct Options {
    /// The trace's name.
    pub name: String,
    /// One line on how it was made.
    pub note: String,
    /// Where its times come from.
    pub source: Source,
    /// When, seconds since 1970.
    pub taken: u64,
    /// How much slower than it pretends a simulated device runs; 1 for a GPU.
    pub dilation: f64,
}

/// A trace of a recording. Without a mark there is no step in it.
pub fn trace(recording: &Recording, options: &Options) -> Trace {
    let mut assembly = Assembly::new(recording, options.dilation);
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

/// What an event takes on the device: the least that was seen between two in a row, which is what a busy device shows.
fn least_tick(recording: &Recording) -> f64 {
    let ticks = recording.events.iter().filter_map(|record| match record {
        Record::Operation(operation) => operation.tick.filter(|tick| *tick >= 0.0),
        _ => None,
    });
    let least = ticks.fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}

/// Numbers of recordings that another step waits for have this bit: they are not used anew for long.
const ACROSS: EventIndex = 0x8000;

#[derive(Debug)]
struct Assembly<'a> {
    recording: &'a Recording,
    dilation: f64,
    kernels: Vec<Kernel>,
    by_hash: HashMap<u64, KernelIndex>,
    streams: HashMap<u64, StreamIndex>,
    threads: HashMap<u32, ThreadIndex>,
    /// The number of each event's last recording.
    events: HashMap<u64, EventIndex>,
    waits: Waits,
    /// Recordings so far that this step waits for, and that another one does.
    here: EventIndex,
    across: EventIndex,
    steps: Vec<Step>,
    /// The step under way, and when the job went on after its mark.
    open: Option<(Step, Ns)>,
    /// When the job went on after the last call, a thread.
    left: HashMap<u32, Ns>,
    /// Time since then that is not the job's, with calls that are left out.
    aside: HashMap<u32, Ns>,
    /// The operation before: its thread, and when the job went on after it.
    before: Option<(u32, Ns)>,
    /// When the device had ended all work so far, device ns.
    ended: f64,
    launch_costs: Vec<Ns>,
}

impl<'a> Assembly<'a> {
    fn new(recording: &'a Recording, dilation: f64) -> Assembly<'a> {
        Assembly {
            recording,
            dilation: if dilation.is_finite() && dilation > 0.0 {
                dilation
            } else {
                1.0
            },
            kernels: Vec::new(),
            by_hash: HashMap::new(),
            // The default stream by both of its handles.
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

    fn host(&self, ns: Ns) -> Ns {
        (ns as f64 / self.dilation).round() as Ns
    }

    fn close(&mut self) {
        if let Some((step, _)) = self.open.take() {
            self.steps.push(step);
        }
    }

    fn mark(&mut self, moment: &Moment) {
        self.close();
        self.here = 0;
        number(&mut self.threads, moment.thread);
        let since = self.left.get(&moment.thread).copied().unwrap_or(moment.entered);
        let think = self.host(moment.entered.saturating_sub(since).saturating_sub(moment.preempted));
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

    fn stop(&mut self, moment: &Moment) {
        self.close();
        self.left.insert(moment.thread, moment.left);
    }

    fn operation(&mut self, operation: &raw::Operation, tick: f64) {
        let duration = self.duration(operation, tick);
        let Some((_, marked)) = self.open else {
            self.left.insert(operation.thread, operation.left);
            return;
        };
        let Some(call) = self.call(operation, duration) else {
            // Left out: the call's own time counts to the gap before what comes next, the recorder's does not.
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
        if matches!(operation.what, What::Launch { .. }) {
            self.launch_costs
                .push(operation.returned.saturating_sub(operation.called));
        }
        let placed = Operation {
            thread: number(&mut self.threads, operation.thread),
            handed_over,
            host_before: self.host(operation.entered.saturating_sub(since)),
            call,
        };
        if let Some((step, _)) = &mut self.open {
            step.operations.push(placed);
        }
        self.left.insert(operation.thread, operation.left);
        self.before = Some((operation.thread, operation.left));
    }

    /// How long the device worked, without the instrument.
    fn duration(&mut self, operation: &raw::Operation, tick: f64) -> Ns {
        let Some((start, end)) = operation.device else { return 0 };
        let idle_before = start > self.ended + 2.0 * tick;
        let launching = operation.returned.saturating_sub(operation.called) as f64 / self.dilation;
        // A call that waited took as long as the work: nothing of that is launching.
        let late = if idle_before && !matches!(operation.what, What::Copy { waits: true, .. }) {
            launching
        } else {
            0.0
        };
        self.ended = self.ended.max(end);
        let begin = (start + late).min(end - tick).max(start);
        let time = (end - begin - tick).max(SHORTEST.min((end - start).max(1.0)));
        time.round() as Ns
    }

    fn call(&mut self, operation: &raw::Operation, duration: Ns) -> Option<Call> {
        Some(match operation.what {
            What::Launch { hash, stream } => Call::Launch {
                kernel: self.kernel(hash),
                stream: number(&mut self.streams, stream),
                duration,
            },
            What::Copy {
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
            What::SyncAll => Call::Sync(Until::All),
            What::SyncStream(stream) => Call::Sync(Until::Stream(number(&mut self.streams, stream))),
            What::SyncEvent(event) => Call::Sync(Until::Event(*self.events.get(&event)?)),
            What::Record { event, stream } => Call::Record {
                event: self.recorded(event, operation.sequence)?,
                stream: number(&mut self.streams, stream),
            },
            What::Wait { event, stream } => Call::Wait {
                event: *self.events.get(&event)?,
                stream: number(&mut self.streams, stream),
            },
        })
    }

    /// The number of a recording, if anything waits for it.
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
        self.kernels.push(Kernel {
            hash,
            id,
            nodes: Vec::new(),
        });
        for node in self.recording.graphs.get(&hash).into_iter().flatten() {
            // A graph inside a graph was told with its kernels.
            let kernel = self.kernel(*node);
            if let Some(graph) = self.kernels.get_mut(index as usize) {
                graph.nodes.push(Node { kernel, duration: 0 });
            }
        }
        index
    }

    fn launch_cost(&mut self) -> Ns {
        self.launch_costs.sort_unstable();
        let median = self.launch_costs.get(self.launch_costs.len() / 2).copied().unwrap_or(0);
        self.host(median)
    }
}

/// The number of a handle: the next free one for a new one. Past the last number all share it.
fn number<K: std::hash::Hash + Eq>(known: &mut HashMap<K, u16>, handle: K) -> u16 {
    if let Some(number) = known.get(&handle) {
        return *number;
    }
    // The default stream has two handles and one number.
    let next = known.values().max().map_or(0, |last| last.saturating_add(1));
    known.insert(handle, next);
    next
}

/// What a graph's kernels took where the job also launched them by themselves: the mean.
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
mod tests {
    use super::*;
    use crate::trace::Direction;

    fn options(dilation: f64) -> Options {
        Options {
            name: "t".into(),
            note: String::new(),
            source: Source::Measured,
            taken: 0,
            dilation,
        }
    }

    fn recording(events: Vec<Record>) -> Recording {
        Recording {
            events,
            kernels: HashMap::from([(7, KernelId::new(1, "axpy", [2, 1, 1], [32, 1, 1], 0))]),
            ..Recording::default()
        }
    }

    fn mark(thread: u32, at: Ns) -> Record {
        Record::Mark(Moment {
            thread,
            sequence: at,
            entered: at,
            left: at + 10,
            preempted: 0,
        })
    }

    /// A call that takes 100 ns, with 50 ns of the recorder before it and 150 behind.
    fn call(thread: u32, at: Ns, what: What, device: Option<(f64, f64)>) -> Record {
        Record::Operation(raw::Operation {
            thread,
            sequence: at,
            what,
            entered: at,
            preempted: 0,
            called: at + 50,
            returned: at + 150,
            left: at + 300,
            device,
            tick: None,
        })
    }

    const LAUNCH: What = What::Launch {
        hash: 7,
        stream: 0xbeef,
    };

    fn steps(events: Vec<Record>) -> Vec<Step> {
        let trace = trace(&recording(events), &options(1.0));
        assert_eq!(trace.unsound(), None);
        trace.steps
    }

    #[test]
    fn a_gap_is_the_jobs_own_and_none_of_ours() {
        let steps = steps(vec![
            call(1, 1_000, LAUNCH, None),
            mark(1, 5_000),
            call(1, 5_110, LAUNCH, Some((0.0, 9_000.0))),
            call(1, 5_910, What::SyncStream(0xbeef), None),
            mark(1, 8_000),
            call(1, 8_010, LAUNCH, None),
        ]);
        assert_eq!(steps.len(), 2);
        // From the launch's return at 1,300 to the mark at 5,000; from the sync's to the second mark.
        assert_eq!((steps[0].think, steps[1].think), (3_700, 1_790));
        let gaps: Vec<Ns> = steps[0].operations.iter().map(|op| op.host_before).collect();
        assert_eq!(gaps, [100, 500]);
        assert_eq!(steps[1].operations[0].host_before, 0);
    }

    #[test]
    fn a_processor_that_others_had_is_no_gap() {
        let mut events = vec![
            mark(1, 0),
            call(1, 1_000, LAUNCH, None),
            call(1, 90_000, LAUNCH, None),
            mark(1, 200_000),
        ];
        if let Record::Operation(operation) = &mut events[2] {
            operation.preempted = 80_000;
        }
        if let Record::Mark(moment) = &mut events[3] {
            moment.preempted = 100_000;
        }
        let steps = steps(events);
        assert_eq!(steps[0].operations[1].host_before, 88_700 - 80_000);
        assert_eq!(steps[1].think, 109_700 - 100_000);
    }

    #[test]
    fn launching_onto_an_idle_device_is_no_work_and_an_event_is_none() {
        let mut events = vec![mark(1, 0)];
        // Idle before the first; the second begins where the first has ended.
        events.push(call(1, 1_000, LAUNCH, Some((1_000.0, 11_000.0))));
        events.push(call(1, 2_000, LAUNCH, Some((11_020.0, 21_020.0))));
        if let Record::Operation(operation) = &mut events[2] {
            operation.tick = Some(20.0);
        }
        let times: Vec<Ns> = steps(events)[0]
            .operations
            .iter()
            .filter_map(|op| op.call.duration())
            .collect();
        assert_eq!(times, [10_000 - 100 - 20, 10_000 - 20]);
    }

    #[test]
    fn a_thread_that_waited_for_another_follows_it() {
        let steps = steps(vec![
            mark(1, 0),
            call(1, 1_000, LAUNCH, None),
            // The backward thread begins after the forward one's launch, and the other way round.
            call(2, 2_000, LAUNCH, None),
            call(2, 2_500, LAUNCH, None),
            call(1, 9_000, LAUNCH, None),
            // Overlapping calls of two threads do not follow one another.
            call(2, 9_200, LAUNCH, None),
        ]);
        let seen: Vec<(u16, bool, Ns)> = steps[0]
            .operations
            .iter()
            .map(|op| (op.thread, op.handed_over, op.host_before))
            .collect();
        assert_eq!(
            seen,
            [
                (0, false, 990),
                (1, true, 700),
                (1, false, 200),
                (0, true, 6_200),
                (1, false, 6_400)
            ]
        );
    }

    #[test]
    fn only_events_that_matter_are_kept() {
        let on = |event, stream| What::Record { event, stream };
        let steps = steps(vec![
            mark(1, 0),
            call(1, 1_000, on(0xa, 0), None),
            call(1, 2_000, on(0xb, 0), None),
            call(
                1,
                3_000,
                What::Wait {
                    event: 0xb,
                    stream: 0xbeef,
                },
                None,
            ),
            call(1, 4_000, What::SyncEvent(0xc), None),
            call(1, 5_000, What::SyncEvent(0xb), None),
        ]);
        let calls: Vec<Call> = steps[0].operations.iter().map(|op| op.call).collect();
        assert_eq!(
            calls,
            [
                Call::Record { event: 0, stream: 0 },
                Call::Wait { event: 0, stream: 1 },
                Call::Sync(Until::Event(0))
            ]
        );
        // What was left out is host time: the gaps before both calls, and 100 ns in the driver.
        assert_eq!(steps[0].operations[0].host_before, 990 + 100 + 700);
    }

    #[test]
    fn events_from_a_pool_do_not_make_steps_differ() {
        let on = |event| What::Record { event, stream: 0 };
        let wait = |event| What::Wait { event, stream: 0xbeef };
        let mut events = Vec::new();
        for step in 0..3 {
            let at = step * 10_000;
            events.push(mark(1, at));
            // Another handle in each step; 0xf is waited for in the step after.
            events.push(call(1, at + 1_000, on(0xa0 + step), None));
            events.push(call(1, at + 2_000, wait(0xa0 + step), None));
            events.push(call(1, at + 3_000, wait(0xf), None));
            events.push(call(1, at + 4_000, on(0xf), None));
        }
        let steps = steps(events);
        let calls = |step: usize| -> Vec<Call> { steps[step].operations.iter().map(|op| op.call).collect() };
        let across = |number| Call::Record {
            event: ACROSS | number,
            stream: 0,
        };
        let (record, waited) = (Call::Record { event: 0, stream: 0 }, Call::Wait { event: 0, stream: 1 });
        assert_eq!(calls(0), [record, waited, across(1)]);
        let from_before = Call::Wait {
            event: ACROSS | 1,
            stream: 1,
        };
        assert_eq!(calls(1), [record, waited, from_before, across(2)]);
        // Nothing waits for the last one.
        let from_before = Call::Wait {
            event: ACROSS | 2,
            stream: 1,
        };
        assert_eq!(calls(2), [record, waited, from_before]);
    }

    #[test]
    fn a_graph_brings_its_kernels() {
        let mut recording = recording(vec![
            mark(1, 0),
            call(1, 1_000, What::Launch { hash: 99, stream: 0 }, Some((0.0, 50_000.0))),
            call(1, 2_000, LAUNCH, Some((50_000.0, 54_000.0))),
            call(
                1,
                3_000,
                What::Copy {
                    direction: Direction::DeviceToHost,
                    bytes: 4,
                    stream: 1,
                    waits: true,
                },
                None,
            ),
        ]);
        recording.graphs.insert(99, vec![7, 7, 8]);
        let trace = trace(&recording, &options(2.0));
        assert_eq!(trace.unsound(), None);
        assert_eq!(trace.kernels.len(), 3);
        assert_eq!(trace.kernels[0].id.graph_kernels(), Some(3));
        assert_eq!(trace.kernels[0].hash, 99);
        let nodes: Vec<(u32, Ns)> = trace.kernels[0]
            .nodes
            .iter()
            .map(|node| (node.kernel, node.duration))
            .collect();
        assert_eq!(nodes, [(1, 4_000), (1, 4_000), (2, 0)]);
        // Host times are those of a slowed-down device, device times are not.
        assert_eq!(trace.launch_cost, 50);
        assert_eq!(trace.steps[0].operations[0].host_before, 495);
        assert!(matches!(
            trace.steps[0].operations[2].call,
            Call::Copy {
                stream: 0,
                waits: true,
                ..
            }
        ));
    }

    #[test]
    fn without_a_mark_there_is_no_step_and_a_stop_ends_one() {
        assert!(steps(vec![call(1, 1_000, LAUNCH, None)]).is_empty());
        let stop = Record::Stop(Moment {
            thread: 1,
            sequence: 2_000,
            entered: 2_000,
            left: 2_010,
            preempted: 0,
        });
        let steps = steps(vec![
            mark(1, 0),
            call(1, 1_000, LAUNCH, None),
            stop,
            call(1, 3_000, LAUNCH, None),
        ]);
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].operations.len(), 1);
    }
}
