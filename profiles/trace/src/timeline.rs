// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace without other jobs on an ideal device: the time at which its work runs, and the idle
//! time after it.
//!
//! The device runs one piece at a time, as pieces become ready. Streams are in order; a
//! [`Call::Wait`] holds its stream; copies have one engine per direction. A call begins
//! `host_before` after its predecessor and takes [`Trace::launch_cost`]; a waiting call ends with
//! its work. So gaps depend only on the trace. This is no scheduler: a replayer on a shared
//! device has its own engine.

use std::collections::HashMap;

use super::{AwaitedWork, Call, Direction, Operation, Trace};
use weft_profiles::Ns;

/// Costs of a call that the trace does not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallCosts {
    /// From a launch call's start to the kernel's start on an idle device, ns.
    pub latency: Ns,
    /// From the end of work to the return of the host's wait, ns.
    pub wake: Ns,
    /// From the end of a stream's work to the start of a kernel that is queued behind it, ns.
    pub between: Ns,
}

impl Default for CallCosts {
    /// From literature, for an A100 with a current driver: about 4 us until the device sees a
    /// launch, about 2 us until a spinning host continues. `weft-gpu-probe calibration` measures
    /// both. A recording of weft has the time between kernels in their durations.
    fn default() -> CallCosts {
        CallCosts {
            latency: 4_000,
            wake: 2_000,
            between: 0,
        }
    }
}

/// A piece of work on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index of the step.
    pub step: usize,
    /// Index of the operation in the step.
    pub operation: usize,
    /// Start, ns since the trace's start.
    pub begin: Ns,
    /// End, ns since the trace's start.
    pub end: Ns,
    /// Time until the next kernel begins, ns. `None` after the last kernel, and for copies, which
    /// run while kernels run.
    pub gap: Option<Ns>,
}

/// Host times of a step, ns since the trace's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSpan {
    /// Time of the mark.
    pub begin: Ns,
    /// Return of the last call.
    pub end: Ns,
}

/// A trace played without other jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Work in the order of its calls.
    pub spans: Vec<Span>,
    /// Host times of the steps.
    pub steps: Vec<StepSpan>,
}

/// Engines of the device: kernels (and copies within the device), copies in, copies out.
#[derive(Debug, Default)]
struct IdealDevice {
    engines: [Ns; 3],
    streams: HashMap<u16, Ns>,
    events: HashMap<u16, Ns>,
    last: Ns,
}

impl IdealDevice {
    fn run(&mut self, engine: usize, stream: u16, ready: Ns, duration: Ns, between: Ns) -> (Ns, Ns) {
        let in_stream = match self.streams.get(&stream).copied().unwrap_or(0) {
            0 => 0,
            ended if engine == 0 => ended.saturating_add(between),
            ended => ended,
        };
        let free = self.engines.get(engine).copied().unwrap_or(0);
        let begin = ready.max(in_stream).max(free);
        let end = begin.saturating_add(duration);
        if let Some(engine) = self.engines.get_mut(engine) {
            *engine = end;
        }
        self.streams.insert(stream, end);
        self.last = self.last.max(end);
        (begin, end)
    }

    fn reached(&self, until: AwaitedWork) -> Ns {
        match until {
            AwaitedWork::All => self.last,
            AwaitedWork::Stream(stream) => self.streams.get(&stream).copied().unwrap_or(0),
            AwaitedWork::Event(event) => self.events.get(&event).copied().unwrap_or(0),
        }
    }
}

/// Plays the trace.
pub fn alone(trace: &Trace, costs: CallCosts) -> Timeline {
    let mut timeline = Timeline::default();
    let mut device = IdealDevice::default();
    // Per host thread its current time; `before` is the end of the previous operation.
    let mut mark: Ns = 0;
    for (number, step) in trace.steps.iter().enumerate() {
        let mut threads: HashMap<u16, Ns> = HashMap::new();
        let mut before = mark;
        mark = mark.saturating_add(step.think);
        let begin = mark;
        let mut end = mark;
        for (at, operation) in step.operations.iter().enumerate() {
            let from = match operation.handed_over {
                true => before.max(begin),
                false => threads.get(&operation.thread).copied().unwrap_or(begin),
            };
            let called = from.saturating_add(operation.host_before);
            before = call(
                trace,
                &mut device,
                &mut timeline,
                (number, at),
                operation,
                called,
                costs,
            );
            threads.insert(operation.thread, before);
            end = end.max(before);
        }
        timeline.steps.push(StepSpan { begin, end });
        mark = end;
    }
    fill_gaps(trace, &mut timeline);
    timeline
}

/// Plays one call that begins at `called`; returns the time of its return.
fn call(
    trace: &Trace,
    device: &mut IdealDevice,
    timeline: &mut Timeline,
    (step, at): (usize, usize),
    operation: &Operation,
    called: Ns,
    costs: CallCosts,
) -> Ns {
    let mut work = |device: &mut IdealDevice, engine, stream, duration| {
        let (begin, end) = device.run(
            engine,
            stream,
            called.saturating_add(costs.latency),
            duration,
            costs.between,
        );
        timeline.spans.push(Span {
            step,
            operation: at,
            begin,
            end,
            gap: None,
        });
        end
    };
    let returned = called.saturating_add(trace.launch_cost);
    match operation.call {
        Call::Launch { stream, duration, .. } => {
            work(device, 0, stream, duration);
            returned
        }
        Call::Copy {
            direction,
            stream,
            waits,
            duration,
            ..
        } => {
            let engine = match direction {
                Direction::HostToDevice => 1,
                Direction::DeviceToHost => 2,
                Direction::DeviceToDevice | Direction::Fill => 0,
            };
            let end = work(device, engine, stream, duration);
            if waits {
                returned.max(end.saturating_add(costs.wake))
            } else {
                returned
            }
        }
        Call::Sync(until) => {
            let reached = device.reached(until);
            // A wait for ended work costs nothing.
            if reached > called {
                reached.saturating_add(costs.wake)
            } else {
                called
            }
        }
        Call::Record { event, stream } => {
            let reached = device.reached(AwaitedWork::Stream(stream));
            device.events.insert(event, reached);
            called
        }
        Call::Wait { event, stream } => {
            let reached = device
                .reached(AwaitedWork::Event(event))
                .max(device.reached(AwaitedWork::Stream(stream)));
            device.streams.insert(stream, reached);
            called
        }
    }
}

/// Sets the gap from each kernel's end to the next one's start.
fn fill_gaps(trace: &Trace, timeline: &mut Timeline) {
    let is_kernel = |span: &Span| {
        let operation = trace
            .steps
            .get(span.step)
            .and_then(|step| step.operations.get(span.operation));
        operation.is_some_and(|operation| matches!(operation.call, Call::Launch { .. }))
    };
    let kernels: Vec<usize> = (0..timeline.spans.len())
        .filter(|at| is_kernel(&timeline.spans[*at]))
        .collect();
    for pair in kernels.windows(2) {
        // One engine runs them in this order.
        let next = timeline.spans[pair[1]].begin;
        let span = &mut timeline.spans[pair[0]];
        span.gap = Some(next.saturating_sub(span.end));
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Step, tests::sample},
        *,
    };

    const COSTS: CallCosts = CallCosts {
        latency: 10,
        wake: 5,
        between: 0,
    };

    fn launch(host_before: Ns, stream: u16, duration: Ns) -> Operation {
        Operation {
            thread: 0,
            handed_over: false,
            host_before,
            call: Call::Launch {
                kernel: 0,
                stream,
                duration,
            },
        }
    }

    fn then(host_before: Ns, call: Call) -> Operation {
        Operation {
            thread: 0,
            handed_over: false,
            host_before,
            call,
        }
    }

    fn play(operations: Vec<Operation>) -> Timeline {
        let mut trace = sample();
        trace.launch_cost = 2;
        trace.steps = vec![Step { think: 100, operations }];
        alone(&trace, COSTS)
    }

    #[test]
    fn a_slow_host_leaves_gaps_and_a_fast_one_none() {
        let timeline = play(vec![
            launch(0, 0, 50),
            launch(8, 0, 50),
            launch(500, 0, 50),
            then(0, Call::Sync(AwaitedWork::All)),
        ]);
        let spans: Vec<(Ns, Ns)> = timeline.spans.iter().map(|span| (span.begin, span.end)).collect();
        // The mark is at 100. Calls begin at 100, 110 and 612.
        assert_eq!(spans, [(110, 160), (160, 210), (622, 672)]);
        assert_eq!(
            timeline.spans.iter().map(|span| span.gap).collect::<Vec<_>>(),
            [Some(0), Some(412), None]
        );
        assert_eq!(timeline.steps, [StepSpan { begin: 100, end: 677 }]);
    }

    #[test]
    fn a_wait_holds_its_stream_and_an_event_tells_the_host() {
        let timeline = play(vec![
            launch(0, 1, 100),
            then(0, Call::Record { event: 3, stream: 1 }),
            launch(0, 1, 1_000),
            then(0, Call::Sync(AwaitedWork::Event(3))),
            then(0, Call::Wait { event: 9, stream: 2 }),
            then(0, Call::Sync(AwaitedWork::Stream(1))),
        ]);
        // The event happens at 210, the stream ends at 1210; event 9 has no recording.
        assert_eq!(timeline.steps, [StepSpan { begin: 100, end: 1215 }]);
    }

    #[test]
    fn copies_run_beside_kernels() {
        let copy = |waits| {
            then(
                0,
                Call::Copy {
                    direction: Direction::HostToDevice,
                    bytes: 1,
                    stream: 1,
                    waits,
                    duration: 400,
                },
            )
        };
        let timeline = play(vec![
            copy(false),
            launch(0, 0, 50),
            then(0, Call::Sync(AwaitedWork::Stream(0))),
        ]);
        assert_eq!(timeline.spans[1].begin, 112);
        assert_eq!(timeline.steps[0].end, 167);
        assert_eq!(play(vec![copy(true)]).steps[0].end, 515);
    }

    #[test]
    fn a_trace_from_a_file_plays_to_its_end() {
        let trace = sample();
        let timeline = alone(&trace, CallCosts::default());
        assert_eq!(timeline.spans.len(), trace.launches() + trace.steps.len());
        assert!(timeline.steps.windows(2).all(|pair| pair[0].end < pair[1].begin));
    }
}
