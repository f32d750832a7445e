// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of recordings made by hand.

use super::*;
use crate::Direction;

fn options() -> RecordingFacts {
    RecordingFacts {
        name: "t".into(),
        note: String::new(),
        source: Source::Measured,
        taken: 0,
    }
}

fn recording(events: Vec<Record>) -> RecorderFile {
    RecorderFile {
        events,
        kernels: HashMap::from([(7, KernelId::new(1, "axpy", [2, 1, 1], [32, 1, 1], 0))]),
        ..RecorderFile::default()
    }
}

fn mark(thread: u32, at: Ns) -> Record {
    Record::Mark(MarkTime {
        thread,
        sequence: at,
        entered: at,
        left: at + 10,
        preempted: 0,
    })
}

/// A call of 100 ns, with 50 ns of the recorder before it and 150 ns after.
fn call(thread: u32, at: Ns, what: CallKind, device: Option<(f64, f64)>) -> Record {
    Record::Operation(raw::TimedCall {
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

const LAUNCH: CallKind = CallKind::Launch {
    hash: 7,
    stream: 0xbeef,
};

fn steps(events: Vec<Record>) -> Vec<Step> {
    let trace = trace(&recording(events), &options());
    assert_eq!(trace.unsound(), None);
    trace.steps
}

#[test]
fn a_gap_is_the_jobs_own_and_none_of_ours() {
    let steps = steps(vec![
        call(1, 1_000, LAUNCH, None),
        mark(1, 5_000),
        call(1, 5_110, LAUNCH, Some((0.0, 9_000.0))),
        call(1, 5_910, CallKind::SyncStream(0xbeef), None),
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
    // Idle before the first; the second begins at the first one's end.
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
        // The backward thread begins after the forward thread's launch, and the reverse.
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
    let on = |event, stream| CallKind::Record { event, stream };
    let steps = steps(vec![
        mark(1, 0),
        call(1, 1_000, on(0xa, 0), None),
        call(1, 2_000, on(0xb, 0), None),
        call(
            1,
            3_000,
            CallKind::Wait {
                event: 0xb,
                stream: 0xbeef,
            },
            None,
        ),
        call(1, 4_000, CallKind::SyncEvent(0xc), None),
        call(1, 5_000, CallKind::SyncEvent(0xb), None),
    ]);
    let calls: Vec<Call> = steps[0].operations.iter().map(|op| op.call).collect();
    assert_eq!(
        calls,
        [
            Call::Record { event: 0, stream: 0 },
            Call::Wait { event: 0, stream: 1 },
            Call::Sync(AwaitedWork::Event(0))
        ]
    );
    // Calls that are left out are host time: the gaps before both, and 100 ns in the driver.
    assert_eq!(steps[0].operations[0].host_before, 990 + 100 + 700);
}

#[test]
fn events_from_a_pool_do_not_make_steps_differ() {
    let on = |event| CallKind::Record { event, stream: 0 };
    let wait = |event| CallKind::Wait { event, stream: 0xbeef };
    let mut events = Vec::new();
    for step in 0..3 {
        let at = step * 10_000;
        events.push(mark(1, at));
        // A new handle in each step; the next step waits for 0xf.
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
    // No call waits for the last one.
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
        call(
            1,
            1_000,
            CallKind::Launch { hash: 99, stream: 0 },
            Some((0.0, 50_000.0)),
        ),
        call(1, 2_000, LAUNCH, Some((50_000.0, 54_000.0))),
        call(
            1,
            3_000,
            CallKind::Copy {
                direction: Direction::DeviceToHost,
                bytes: 4,
                stream: 1,
                waits: true,
            },
            None,
        ),
    ]);
    recording.graphs.insert(99, vec![7, 7, 8]);
    let trace = trace(&recording, &options());
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
    assert_eq!(trace.launch_cost, 100);
    assert_eq!(trace.steps[0].operations[0].host_before, 990);
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
    let stop = Record::Stop(MarkTime {
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
