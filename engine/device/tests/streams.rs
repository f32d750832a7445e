// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of one context: order, priorities, dependencies, host operations, held kernels, closing.

mod common;

use common::{bare, drain, kernel, kernels};
use weft_engine::{Engine, EngineError, Mode, OpId, Output, Settings, Work};

#[test]
fn launch_latency_counts_once_in_a_busy_stream() {
    let mut engine = Engine::new(Settings {
        launch_latency: 5_000,
        ..bare()
    });
    let context = engine.add_context();
    let stream = engine.add_stream(context, 0).unwrap();
    kernels(&mut engine, 0, stream, 0, &[10_000, 10_000]);
    engine.submit(100_000, stream, kernel(10_000), 2).unwrap();
    engine.advance_to(1_000_000);
    let went = drain(&mut engine);
    assert_eq!((went[&0].start, went[&0].end), (5_000, 15_000));
    assert_eq!((went[&1].start, went[&1].end), (15_000, 25_000));
    assert_eq!(went[&2].start, 105_000);
}

#[test]
fn the_stream_of_higher_priority_goes_first_but_stops_nobody() {
    let mut engine = Engine::new(bare());
    let context = engine.add_context();
    let low = engine.add_stream(context, 0).unwrap();
    let high = engine.add_stream(context, -5).unwrap();
    kernels(&mut engine, 0, low, 0, &[100, 100, 100]);
    kernels(&mut engine, 50, high, 10, &[100, 100]);
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!(went[&0].end, 100, "a running kernel is not stopped");
    assert_eq!((went[&10].start, went[&11].start), (100, 200));
    assert_eq!((went[&1].start, went[&2].start), (300, 400));
}

#[test]
fn streams_of_one_priority_take_turns_by_readiness() {
    let mut engine = Engine::new(bare());
    let context = engine.add_context();
    let a = engine.add_stream(context, 0).unwrap();
    let b = engine.add_stream(context, 0).unwrap();
    kernels(&mut engine, 0, a, 0, &[10, 10, 10]);
    kernels(&mut engine, 0, b, 10, &[10, 10, 10]);
    engine.advance_to(1_000);
    let went = drain(&mut engine);
    let starts = [0, 10, 1, 11, 2, 12].map(|tag| went[&tag].start);
    assert_eq!(starts, [0, 10, 20, 30, 40, 50]);
}

#[test]
fn a_wait_holds_its_stream_until_the_other_operation_ends() {
    let mut engine = Engine::new(bare());
    let context = engine.add_context();
    let a = engine.add_stream(context, 0).unwrap();
    let b = engine.add_stream(context, 0).unwrap();
    let first = engine.submit(0, a, kernel(1_000), 0).unwrap();
    engine.submit(0, b, Work::WaitFor(first), 1).unwrap();
    engine.submit(0, b, Work::Marker, 2).unwrap();
    engine.submit(0, b, kernel(10), 3).unwrap();
    engine.advance_to(999);
    assert!(!engine.is_done(first));
    assert!(drain(&mut engine).is_empty());
    engine.advance_to(5_000);
    assert!(engine.is_done(first));
    // An id of an ended operation is as good as none.
    engine.submit(6_000, b, Work::WaitFor(first), 4).unwrap();
    engine.submit(6_000, b, Work::WaitFor(OpId::DONE), 5).unwrap();
    engine.advance_to(6_000);
    let went = drain(&mut engine);
    assert_eq!(went[&2].end, 1_000);
    assert_eq!((went[&3].start, went[&3].end), (1_000, 1_010));
    assert_eq!((went[&4].end, went[&5].end), (6_000, 6_000));
}

#[test]
fn waits_across_contexts_work_too() {
    let mut engine = Engine::new(bare());
    let (one, other) = (engine.add_context(), engine.add_context());
    let a = engine.add_stream(one, 0).unwrap();
    let b = engine.add_stream(other, 0).unwrap();
    let first = engine.submit(0, a, kernel(500), 0).unwrap();
    engine.submit(0, b, Work::WaitFor(first), 1).unwrap();
    engine.submit(0, b, kernel(10), 2).unwrap();
    engine.advance_to(10_000);
    assert_eq!(drain(&mut engine)[&2].start, 500);
}

#[test]
fn a_host_operation_stops_its_stream_until_it_is_released() {
    let mut engine = Engine::new(bare());
    let context = engine.add_context();
    let stream = engine.add_stream(context, 0).unwrap();
    engine.submit(0, stream, kernel(100), 0).unwrap();
    let host = engine.submit(0, stream, Work::Host, 1).unwrap();
    engine.submit(0, stream, kernel(10), 2).unwrap();
    engine.advance_to(1_000);
    let outputs: Vec<_> = std::iter::from_fn(|| engine.next_output()).collect();
    assert!(matches!(
        outputs[..],
        [Output::Done { tag: 0, .. }, Output::Reached { tag: 1, at: 100, .. }]
    ));
    assert_eq!(engine.next_event_time(), None, "only the caller can go on");
    engine.release(3_000, host).unwrap();
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!((went[&1].start, went[&1].end), (100, 3_000));
    assert_eq!(went[&2].start, 3_000);
    assert_eq!(engine.release(10_000, host), Ok(()), "released twice: nothing happens");
}

#[test]
fn a_host_operation_that_is_not_reached_yet_is_looked_at_when_it_is() {
    let mut engine = Engine::new(Settings {
        launch_latency: 5_000,
        ..bare()
    });
    let context = engine.add_context();
    let stream = engine.add_stream(context, 0).unwrap();
    let host = engine.submit(0, stream, Work::Host, 1).unwrap();
    let behind = engine.submit(0, stream, kernel(10), 2).unwrap();
    engine.advance_to(1_000);
    assert_eq!(engine.earliest_end(host), Some(5_000), "the clock moves it on");
    assert_ne!(engine.earliest_end(behind), Some(u64::MAX));
    engine.advance_to(5_000);
    assert!(matches!(
        engine.next_output(),
        Some(Output::Reached { tag: 1, at: 5_000, .. })
    ));
    assert_eq!(engine.earliest_end(host), Some(u64::MAX), "only the caller can go on");
    assert_eq!(engine.earliest_end(behind), Some(u64::MAX));
}

#[test]
fn a_host_operation_released_early_does_not_stop_its_stream() {
    let mut engine = Engine::new(bare());
    let context = engine.add_context();
    let stream = engine.add_stream(context, 0).unwrap();
    engine.submit(0, stream, kernel(100), 0).unwrap();
    let host = engine.submit(0, stream, Work::Host, 1).unwrap();
    engine.release(50, host).unwrap();
    engine.advance_to(1_000);
    assert_eq!(drain(&mut engine)[&1].end, 100);
}

#[test]
fn a_held_kernel_has_the_engine_until_it_is_released_or_gives_up() {
    let mut engine = Engine::new(bare());
    let context = engine.add_context();
    let a = engine.add_stream(context, 0).unwrap();
    let b = engine.add_stream(context, 0).unwrap();
    let held = Work::Kernel {
        duration: 1_000_000,
        held: true,
    };
    let first = engine.submit(0, a, held, 0).unwrap();
    engine.submit(0, b, kernel(10), 1).unwrap();
    engine.submit(0, a, held, 2).unwrap();
    let never = engine.submit(0, a, held, 3).unwrap();
    engine.release(700, first).unwrap();
    engine.release(800, never).unwrap();
    engine.advance_to(10_000_000);
    let went = drain(&mut engine);
    assert_eq!((went[&0].start, went[&0].end), (0, 700));
    assert_eq!(went[&1].start, 700);
    assert_eq!(went[&2].end - went[&2].start, 1_000_000, "nobody released it");
    assert_eq!(went[&3].end, went[&3].start, "released before it began");
    assert_eq!(engine.release(0, OpId::DONE), Ok(()));
    let marker = engine.submit(10_000_000, a, Work::Host, 4).unwrap();
    engine.release(10_000_000, marker).unwrap();
    let plain = engine.submit(10_000_000, a, kernel(100), 5).unwrap();
    assert_eq!(engine.release(10_000_000, plain), Err(EngineError::NotReleasable));
}

#[test]
fn a_closed_stream_finishes_its_work_and_takes_no_more() {
    let mut engine = Engine::new(bare());
    let context = engine.add_context();
    let stream = engine.add_stream(context, 0).unwrap();
    kernels(&mut engine, 0, stream, 0, &[100, 100]);
    engine.close_stream(stream).unwrap();
    assert_eq!(engine.submit(10, stream, Work::Marker, 2), Err(EngineError::NoStream));
    engine.advance_to(1_000);
    assert_eq!(drain(&mut engine).len(), 2);
    assert_eq!(engine.close_stream(stream), Err(EngineError::NoStream), "it is gone");
    assert_eq!(engine.outstanding(), 0);
}

#[test]
fn a_context_that_goes_takes_its_work_with_it_and_frees_who_waited() {
    let mut engine = Engine::new(bare());
    let (dying, living) = (engine.add_context(), engine.add_context());
    let a = engine.add_stream(dying, 0).unwrap();
    let b = engine.add_stream(living, 0).unwrap();
    let endless = engine.submit(0, a, kernel(u64::MAX), 0).unwrap();
    engine.submit(0, a, kernel(10), 1).unwrap();
    engine.submit(0, b, Work::WaitFor(endless), 2).unwrap();
    engine.submit(0, b, kernel(10), 3).unwrap();
    engine.advance_to(5_000);
    engine.remove_context(dying).unwrap();
    engine.advance_to(10_000);
    let outputs: Vec<_> = std::iter::from_fn(|| engine.next_output()).collect();
    let aborted: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Aborted { tag, start, at, .. } => Some((*tag, *start, *at)),
            _ => None,
        })
        .collect();
    assert_eq!(aborted, [(0, Some(0), 5_000), (1, None, 5_000)]);
    let end = outputs.iter().find_map(|output| match output {
        Output::Done { tag: 3, end, .. } => Some(*end),
        _ => None,
    });
    assert_eq!(end, Some(5_010));
    assert_eq!(engine.usage().aborted, 2);
    assert_eq!(engine.usage().compute, 5_010, "what the dead ran counts");
    assert_eq!(engine.remove_context(dying), Err(EngineError::NoContext));
    assert_eq!(engine.submit(0, a, Work::Marker, 9), Err(EngineError::NoStream));
    assert_eq!(engine.add_stream(dying, 0), Err(EngineError::NoContext));
}

#[test]
fn a_late_submission_counts_as_now() {
    let mut engine = Engine::new(bare());
    let context = engine.add_context();
    let stream = engine.add_stream(context, 0).unwrap();
    engine.advance_to(1_000);
    engine.submit(10, stream, kernel(5), 0).unwrap();
    engine.advance_to(2_000);
    assert_eq!(drain(&mut engine)[&0].start, 1_000);
    assert_eq!(engine.usage().late, 1);
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let mut engine = Engine::new(Settings::default());
    let context = engine.add_context();
    let other = engine.add_context();
    let stream = engine.add_stream(context, i32::MIN).unwrap();
    let neighbour = engine.add_stream(other, i32::MAX).unwrap();
    for direction in [
        weft_engine::Direction::HostToDevice,
        weft_engine::Direction::DeviceToHost,
        weft_engine::Direction::DeviceToDevice,
    ] {
        let stream = engine.add_stream(context, 0).unwrap();
        engine
            .submit(
                0,
                stream,
                Work::Copy {
                    direction,
                    bytes: u64::MAX,
                },
                0,
            )
            .unwrap();
    }
    engine.submit(0, stream, Work::Memset { bytes: u64::MAX }, 0).unwrap();
    engine.submit(0, stream, kernel(u64::MAX), 1).unwrap();
    let behind = engine.submit(0, stream, kernel(u64::MAX), 2).unwrap();
    assert_eq!(engine.earliest_end(behind), Some(u64::MAX));
    engine.submit(0, neighbour, kernel(1_000), 3).unwrap();
    engine.advance_to(10_000_000);
    assert_eq!(drain(&mut engine).len(), 1, "the neighbour had its slice");
}

#[test]
fn a_kernel_beside_others_takes_its_time_and_only_its_stream_waits() {
    let mut engine = Engine::new(Settings {
        mode: Mode::Mps,
        ..bare()
    });
    let context = engine.add_context();
    let (one, other) = (
        engine.add_stream(context, 0).unwrap(),
        engine.add_stream(context, 0).unwrap(),
    );
    engine.submit(0, one, Work::Beside { duration: 100 }, 1).unwrap();
    engine.submit(0, one, kernel(10), 2).unwrap();
    engine.submit(0, other, kernel(30), 3).unwrap();
    engine.advance_to(1_000);
    let went = drain(&mut engine);
    assert_eq!((went[&1].start, went[&1].end), (0, 100));
    assert_eq!((went[&2].start, went[&2].end), (100, 110));
    assert_eq!((went[&3].start, went[&3].end), (0, 30));
}
