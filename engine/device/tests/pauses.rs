// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gaps between kernels of one stream, dependent kernels, and the time of events' records.

mod common;

use common::{bare, drain, kernel, kernels};
use weft_engine::{Engine, Mode, Output, Settings, SmLimits, Work};

const GAP: u64 = 10;
const TIMED: u64 = 30;
const UNTIMED: u64 = 3;

fn pausing() -> Settings {
    Settings {
        kernel_gap: GAP,
        timed_record: TIMED,
        untimed_record: UNTIMED,
        ..bare()
    }
}

#[test]
fn kernels_of_a_full_stream_have_a_gap_between_them() {
    let mut engine = Engine::new(pausing());
    let context = engine.add_context();
    let (a, b) = (
        engine.add_stream(context, 0).unwrap(),
        engine.add_stream(context, 0).unwrap(),
    );
    kernels(&mut engine, 0, a, 0, &[100, 100]);
    engine.submit(0, a, Work::Memset { bytes: 100 }, 2).unwrap();
    // Ready after the last one's end, and on another stream: no gap.
    engine.submit(500, a, kernel(100), 3).unwrap();
    engine.submit(500, b, kernel(100), 4).unwrap();
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!([0, 1, 2, 3, 4].map(|tag| went[&tag].start), [0, 110, 220, 500, 600]);
}

#[test]
fn a_record_takes_its_stream_its_time_and_the_event_is_its_end() {
    for (timed, cost) in [(true, TIMED), (false, UNTIMED)] {
        let mut engine = Engine::new(pausing());
        let context = engine.add_context();
        let stream = engine.add_stream(context, 0).unwrap();
        for tag in 0..10 {
            engine.submit(0, stream, kernel(100), 2 * tag).unwrap();
            engine.submit(0, stream, Work::Record { timed }, 2 * tag + 1).unwrap();
        }
        // Each pair of events on an idle stream shows the record's own time plus the kernel's.
        for (tag, work) in [
            (30, Work::Record { timed }),
            (31, kernel(100)),
            (32, Work::Record { timed }),
        ] {
            engine.submit(5_000, stream, work, tag).unwrap();
        }
        engine.advance_to(10_000);
        let went = drain(&mut engine);
        // One cost for each record, in addition to the gaps that are there without records.
        assert_eq!(went[&18].start, 9 * (100 + GAP + cost));
        assert_eq!((went[&1].start, went[&1].end), (100, 100 + cost));
        assert_eq!(went[&32].end - went[&30].end, 100 + cost);
    }
}

#[test]
fn a_pause_does_not_cost_a_context_the_engine_and_no_record_outlasts_a_slice() {
    let mut engine = Engine::new(Settings {
        slice: 1_000,
        switch: 200,
        ..pausing()
    });
    let contexts = [engine.add_context(), engine.add_context()];
    let streams = contexts.map(|context| engine.add_stream(context, 0).unwrap());
    for stream in streams {
        kernels(&mut engine, 0, stream, 0, &[90; 30]);
    }
    engine.advance_to(1_000_000);
    // 30 kernels with their gaps are three slices, of which two contexts have three each.
    assert_eq!(engine.usage().switches, 5, "{:?}", engine.usage());
    drain_all(&mut engine);
    let begin = engine.now();
    for _ in 0..1_000 {
        engine
            .submit(begin, streams[1], Work::Record { timed: true }, 0)
            .unwrap();
    }
    engine.submit(begin, streams[0], kernel(90), 1).unwrap();
    engine.advance_to(begin + 2_000);
    let ended = std::iter::from_fn(|| engine.next_output()).any(|output| matches!(output, Output::Done { tag: 1, .. }));
    assert!(ended, "records keep the engine for a slice at most");
}

fn drain_all(engine: &mut Engine) {
    while engine.next_output().is_some() {}
}

#[test]
fn under_mps_others_kernels_run_in_a_pause() {
    for mode in [Mode::Mps, Mode::MpsShared(SmLimits::A100_LIKE)] {
        let mut engine = Engine::new(Settings { mode, ..pausing() });
        let contexts = [engine.add_context(), engine.add_context()];
        let streams = contexts.map(|context| engine.add_stream(context, 0).unwrap());
        for (tag, stream) in [(0, streams[0]), (1, streams[0]), (2, streams[1])] {
            engine.submit(0, stream, kernel(100), tag).unwrap();
        }
        engine.advance_to(10_000);
        let went = drain(&mut engine);
        assert_eq!((went[&2].start, went[&1].start), (100, 200), "{mode:?}");
    }
}

fn dependent(duration: u64) -> Work {
    Work::Dependent { duration }
}

fn with_dependents(mode: Mode) -> Settings {
    Settings {
        mode,
        dependent_early: 30,
        ..pausing()
    }
}

#[test]
fn a_dependent_kernel_begins_before_the_end_of_the_one_before_and_ends_after_it() {
    for mode in [Mode::TimeSlice, Mode::Mps, Mode::MpsShared(SmLimits::A100_LIKE)] {
        let mut engine = Engine::new(with_dependents(mode));
        let context = engine.add_context();
        let stream = engine.add_stream(context, 0).unwrap();
        let chain = [kernel(100), dependent(100), dependent(20), kernel(100)];
        for (tag, work) in (0..).zip(chain) {
            engine.submit(0, stream, work, tag).unwrap();
        }
        engine.advance_to(10_000);
        let went = drain(&mut engine);
        let times = [0, 1, 2, 3].map(|tag| (went[&tag].start, went[&tag].end));
        assert_eq!(times, [(0, 100), (70, 170), (150, 170), (180, 280)], "{mode:?}");
    }
}

#[test]
fn a_dependent_kernel_is_a_plain_one_behind_other_work_or_late_or_without_such_launches() {
    let ends = |settings: Settings, between: Option<Work>, at: u64| {
        let mut engine = Engine::new(settings);
        let context = engine.add_context();
        let stream = engine.add_stream(context, 0).unwrap();
        engine.submit(0, stream, kernel(100), 0).unwrap();
        if let Some(work) = between {
            engine.submit(0, stream, work, 1).unwrap();
        }
        engine.submit(at, stream, dependent(100), 2).unwrap();
        engine.advance_to(10_000);
        let went = drain(&mut engine);
        (went[&2].start, went[&2].end)
    };
    let settings = with_dependents(Mode::TimeSlice);
    assert_eq!(ends(settings, Some(Work::Marker), 0), (110, 210));
    assert_eq!(ends(settings, Some(Work::Memset { bytes: 10 }), 0), (130, 230));
    assert_eq!(ends(settings, None, 90), (90, 190), "not before its submission");
    assert_eq!(ends(settings, None, 500), (500, 600));
    assert_eq!(ends(pausing(), None, 0), (110, 210), "a device without such launches");
}

#[test]
fn another_contexts_turn_comes_before_a_dependent_kernel() {
    let mut engine = Engine::new(with_dependents(Mode::Mps));
    let contexts = [engine.add_context(), engine.add_context()];
    let streams = contexts.map(|context| engine.add_stream(context, 0).unwrap());
    for (tag, stream, work) in [
        (0, streams[0], kernel(100)),
        (1, streams[1], kernel(100)),
        (2, streams[0], dependent(100)),
    ] {
        engine.submit(0, stream, work, tag).unwrap();
    }
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!((went[&1].start, went[&2].start, went[&2].end), (100, 200, 300));
}

#[test]
fn a_dependent_kernel_behind_a_wait_follows_the_kernel_that_it_waits_for() {
    for (waits_for_record, start) in [(false, 70), (true, 130)] {
        let mut engine = Engine::new(with_dependents(Mode::TimeSlice));
        let context = engine.add_context();
        let streams = [(); 2].map(|()| engine.add_stream(context, 0).unwrap());
        let first = engine.submit(0, streams[0], kernel(100), 0).unwrap();
        let record = engine.submit(0, streams[0], Work::Record { timed: true }, 1).unwrap();
        let awaited = if waits_for_record { record } else { first };
        engine.submit(0, streams[1], Work::WaitFor(awaited), 2).unwrap();
        engine.submit(0, streams[1], dependent(100), 3).unwrap();
        engine.advance_to(10_000);
        assert_eq!(drain(&mut engine)[&3].start, start);
    }
}

#[test]
fn a_dependent_kernels_earliest_end_counts_what_is_over_at_its_turn() {
    let mut engine = Engine::new(with_dependents(Mode::TimeSlice));
    let context = engine.add_context();
    let stream = engine.add_stream(context, 0).unwrap();
    engine.submit(0, stream, kernel(100), 0).unwrap();
    engine.submit(0, stream, dependent(100), 1).unwrap();
    let last = engine.submit(0, stream, dependent(100), 2).unwrap();
    for now in [0, 50, 100, 120, 170, 200] {
        engine.advance_to(now);
        assert_eq!(engine.earliest_end(last), Some(240), "at {now}");
    }
    engine.advance_to(240);
    assert_eq!(engine.earliest_end(last), None);
}

#[test]
fn the_earliest_end_counts_what_is_known_of_pauses() {
    let mut engine = Engine::new(pausing());
    let context = engine.add_context();
    let stream = engine.add_stream(context, 0).unwrap();
    kernels(&mut engine, 0, stream, 0, &[100]);
    engine.submit(0, stream, Work::Record { timed: true }, 1).unwrap();
    let last = engine.submit(0, stream, kernel(100), 2).unwrap();
    for now in [0, 50, 110, 135, 200] {
        engine.advance_to(now);
        let bound = engine.earliest_end(last).unwrap();
        assert!((230..=240).contains(&bound), "at {now}: {bound}");
    }
    assert_eq!(engine.earliest_end(last), Some(240));
}
