// SPDX-License-Identifier: MIT OR Apache-2.0
//! The imported trace, played without other jobs, against the file.

use std::ops::Range;

use weft_profiles::Ns;
use weft_trace_format::{
    Call, Direction, Operation, Trace,
    timeline::{self, CallCosts},
};

use crate::{join::Joined, recording::CallClass};

/// Figures of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RunFigures {
    /// From the first step's begin to the end of the last step's calls and work, ns.
    pub wall: Ns,
    /// Part of it in which kernels, copies or fills ran, ns.
    pub busy: Ns,
}

impl RunFigures {
    /// Part of the time in which the device was busy.
    pub fn busy_share(&self) -> f64 {
        self.busy as f64 / self.wall.max(1) as f64
    }

    /// Time in which the device was idle, ns.
    pub fn idle(&self) -> Ns {
        self.wall - self.busy
    }

    fn of(begin: Ns, end: Ns, mut spans: Vec<(Ns, Ns)>) -> RunFigures {
        spans.sort_unstable();
        let (mut busy, mut until) = (0, begin);
        for (start, end) in spans {
            busy += end.saturating_sub(start.max(until));
            until = until.max(end);
        }
        let wall = end.max(until).saturating_sub(begin);
        RunFigures { wall, busy }
    }
}

/// Work that was queued before the first step's calls, and ran after its begin.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueuedBefore {
    /// Pieces of work.
    pub works: u64,
    /// Time of the device for them after the first step's begin, ns.
    pub time: Ns,
}

/// Figures of the file and of the trace.
#[derive(Debug, Clone, Copy, Default)]
pub struct Compared {
    /// The file's.
    pub file: RunFigures,
    /// The trace's, with the work that was queued before.
    pub played: RunFigures,
    /// That work.
    pub queued: QueuedBefore,
    /// Time between kernels of a full stream in the file, with which the trace was played, ns.
    pub between: Ns,
}

/// Compares the trace's steps with the file's calls of them.
pub fn compare(joined: &Joined, ranges: &[Range<usize>], begin: Ns, trace: &Trace) -> Compared {
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
        return Compared::default();
    };
    let in_steps = |call: usize| call >= first.start && call < last.end;
    let mut spans = Vec::new();
    let ended = joined.calls[first.start..last.end]
        .iter()
        .map(|call| call.host.end)
        .max()
        .unwrap_or(begin);
    let mut queued = QueuedBefore::default();
    for joined_work in &joined.works {
        let work = &joined_work.work;
        match joined_work.call {
            Some(call) if in_steps(call) => spans.push((work.start, work.end)),
            Some(call) if call >= last.end => {}
            // Queued before the begin, or its call is lost.
            _ if work.end > begin
                && work.class.on_kernel_engine()
                && is_before_first(joined, first.start, work.start) =>
            {
                queued.works += 1;
                queued.time = queued.time.saturating_add(joined_work.share.min(work.end - begin));
                spans.push((work.start.max(begin), work.end));
            }
            _ => {}
        }
    }
    let file = RunFigures::of(begin, ended, spans);
    let with_queue = (queued.time > 0).then(|| queued_first(trace, queued.time));
    let trace = with_queue.as_ref().unwrap_or(trace);
    let costs = CallCosts {
        between: between(joined),
        ..CallCosts::default()
    };
    let alone = timeline::alone(trace, costs);
    let spans = alone.spans.iter().map(|span| (span.begin, span.end)).collect();
    let start = alone.steps.first().map_or(0, |step| step.begin);
    let end = alone.steps.last().map_or(0, |step| step.end);
    Compared {
        file,
        played: RunFigures::of(start, end, spans),
        queued,
        between: costs.between,
    }
}

/// Longest time between two kernels, the second of which was queued, that is the device's own, ns.
const LONGEST_BETWEEN_NS: Ns = 5_000;

/// Time by which a kernel was launched before its predecessor's end, if it was surely queued, ns.
const SURELY_QUEUED_NS: Ns = 20_000;

/// Median time between a kernel's end and the start of one that was queued behind it, ns.
fn between(joined: &Joined) -> Ns {
    let queued = joined.works.iter().filter_map(|work| {
        let call = &joined.calls[work.call?];
        let queued = call.host.start + SURELY_QUEUED_NS < work.engine_free
            && call.host.class == CallClass::Launch
            && work.work.class.on_kernel_engine();
        let idle = work.work.start.saturating_sub(work.engine_free);
        (queued && idle < LONGEST_BETWEEN_NS).then_some(idle)
    });
    let mut times: Vec<Ns> = queued.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// Whether work began before that of the first step's first call.
fn is_before_first(joined: &Joined, first: usize, start: Ns) -> bool {
    let ours = joined.calls[first..]
        .iter()
        .find_map(|call| joined.works_of(call).first());
    ours.is_some_and(|work| start < joined.works[*work].work.start)
}

/// The trace with that much device time before its first call's work.
fn queued_first(trace: &Trace, time: Ns) -> Trace {
    let mut trace = trace.clone();
    if let Some(step) = trace.steps.first_mut()
        && let Some(first) = step.operations.first().copied()
    {
        let call = Call::Copy {
            direction: Direction::DeviceToDevice,
            bytes: 0,
            stream: 0,
            waits: false,
            duration: time,
        };
        let thread = first.thread;
        let queued = Operation {
            thread,
            handed_over: false,
            host_before: 0,
            call,
        };
        if let Some(first) = step.operations.first_mut() {
            first.host_before = first.host_before.saturating_sub(trace.launch_cost);
        }
        step.operations.insert(0, queued);
    }
    trace
}
