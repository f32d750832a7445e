// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts on the compute engine (time slices, switches, MPS), and the copy engines in parallel
//! with it.

mod common;

use common::{Went, bare, drain, kernel, kernels};
use weft_engine::{Direction, Engine, Mode, Output, Settings, Work};

const SLICE: u64 = 1_500_000;
const SWITCH: u64 = 100_000;

fn sliced() -> Settings {
    Settings {
        slice: SLICE,
        switch: SWITCH,
        ..bare()
    }
}

#[test]
fn two_busy_contexts_alternate_slice_by_slice() {
    let mut engine = Engine::new(sliced());
    for tag in 0..2 {
        let context = engine.add_context();
        let stream = engine.add_stream(context, 0).unwrap();
        engine.submit(0, stream, kernel(4_000_000), tag).unwrap();
    }
    engine.advance_to(100_000_000);
    let went = drain(&mut engine);
    let lengths = |went: &Went| went.pieces().iter().map(|(from, to)| to - from).collect::<Vec<_>>();
    assert_eq!(lengths(&went[&0]), [SLICE, SLICE, 1_000_000]);
    assert_eq!(lengths(&went[&1]), [SLICE, SLICE, 1_000_000]);
    let mut pieces: Vec<_> = went[&0].pieces().into_iter().chain(went[&1].pieces()).collect();
    pieces.sort_unstable();
    for pair in pieces.windows(2) {
        assert_eq!(pair[1].0 - pair[0].1, SWITCH, "a switch between any two pieces");
    }
    let usage = engine.usage();
    assert_eq!((usage.switches, usage.switching, usage.preemptions), (5, 5 * SWITCH, 4));
    assert_eq!(usage.compute, 8_000_000);
}

#[test]
fn three_contexts_take_turns_in_a_circle() {
    let mut engine = Engine::new(sliced());
    for tag in 0..3 {
        let context = engine.add_context();
        let stream = engine.add_stream(context, 0).unwrap();
        engine.submit(0, stream, kernel(3 * SLICE), tag).unwrap();
    }
    engine.advance_to(100_000_000);
    let went = drain(&mut engine);
    let mut pieces: Vec<_> = (0..3)
        .flat_map(|tag| went[&tag].pieces().into_iter().map(move |piece| (piece, tag)))
        .collect();
    pieces.sort_unstable();
    let order: Vec<_> = pieces.iter().map(|(_, tag)| *tag).collect();
    assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_context_that_is_alone_is_not_stopped_and_pays_nothing() {
    let mut engine = Engine::new(sliced());
    let context = engine.add_context();
    engine.add_context();
    let stream = engine.add_stream(context, 0).unwrap();
    kernels(&mut engine, 0, stream, 0, &[10 * SLICE, 10 * SLICE]);
    engine.advance_to(100 * SLICE);
    let went = drain(&mut engine);
    assert_eq!((went[&0].end, went[&1].end), (10 * SLICE, 20 * SLICE));
    assert!(went[&0].segments.is_empty());
    assert_eq!(engine.usage().switches, 0);
}

#[test]
fn a_newcomer_waits_for_the_end_of_the_running_slice() {
    let mut engine = Engine::new(sliced());
    let (old, new) = (engine.add_context(), engine.add_context());
    let a = engine.add_stream(old, 0).unwrap();
    let b = engine.add_stream(new, 0).unwrap();
    engine.submit(1_000, a, kernel(100 * SLICE), 0).unwrap();
    // In the middle of the fourth slice.
    engine
        .submit(1_000 + 3 * SLICE + 700_000, b, kernel(50_000), 1)
        .unwrap();
    engine.advance_to(200 * SLICE);
    let went = drain(&mut engine);
    assert_eq!(went[&1].start, 1_000 + 4 * SLICE + SWITCH);
    assert_eq!(went[&0].pieces().len(), 2);
    assert_eq!(
        went[&0].pieces()[1].0,
        went[&1].end + SWITCH,
        "the idle context yields at once, its slice is not waited for"
    );
}

#[test]
fn a_context_with_nothing_ready_yields_at_once_and_begins_a_new_slice_later() {
    let mut engine = Engine::new(sliced());
    let (one, other) = (engine.add_context(), engine.add_context());
    let a = engine.add_stream(one, 0).unwrap();
    let b = engine.add_stream(other, 0).unwrap();
    engine.submit(0, a, kernel(10_000), 0).unwrap();
    engine.submit(5_000, b, kernel(10_000), 1).unwrap();
    // The engine is idle here, `b`'s context had it last: `b` starts at once, and a whole slice is
    // ahead of it.
    engine.submit(10_000_000, b, kernel(2 * SLICE), 2).unwrap();
    engine.submit(10_000_001, a, kernel(10), 3).unwrap();
    engine.advance_to(100 * SLICE);
    let went = drain(&mut engine);
    assert_eq!(went[&1].start, 10_000 + SWITCH);
    assert_eq!(went[&2].start, 10_000_000);
    assert_eq!(went[&3].start, 10_000_000 + SLICE + SWITCH);
}

#[test]
fn a_service_that_synchronises_waits_a_slice_for_each_kernel() {
    // The setting of the project's demo: why plain sharing hurts.
    let mut engine = Engine::new(sliced());
    let (service, batch) = (engine.add_context(), engine.add_context());
    let a = engine.add_stream(service, 0).unwrap();
    let b = engine.add_stream(batch, 0).unwrap();
    kernels(&mut engine, 0, b, 1_000, &[200_000; 1_000]);
    let mut time = 0;
    let mut waited = 0;
    for tag in 0..20 {
        time += 50_000;
        engine.submit(time, a, kernel(100_000), tag).unwrap();
        let submitted = time;
        time = loop {
            let next = engine.next_event_time().unwrap();
            engine.advance_to(next);
            if let Some(went) = drain(&mut engine).get(&tag) {
                break went.end;
            }
        };
        waited += time - submitted;
    }
    let slowdown = waited / 20 / 100_000;
    assert!((12..=18).contains(&slowdown), "{slowdown} times as long as alone");
}

#[test]
fn the_dead_pay_for_no_switch_and_a_switch_to_them_ends() {
    let mut engine = Engine::new(sliced());
    let (dying, living) = (engine.add_context(), engine.add_context());
    let a = engine.add_stream(dying, 0).unwrap();
    let b = engine.add_stream(living, 0).unwrap();
    engine.submit(0, b, kernel(10 * SLICE), 0).unwrap();
    engine.submit(0, a, kernel(10 * SLICE), 1).unwrap();
    engine.advance_to(SLICE + SWITCH / 2);
    engine.remove_context(dying).unwrap();
    engine.advance_to(100 * SLICE);
    let went = drain(&mut engine);
    assert_eq!(went[&0].pieces()[1].0, SLICE + SWITCH / 2);
    assert_eq!(engine.usage().switching, SWITCH / 2);
}

#[test]
fn under_mps_contexts_take_turns_kernel_by_kernel_without_cost() {
    let mut engine = Engine::new(Settings {
        mode: Mode::Mps,
        ..sliced()
    });
    for context_number in 0..3u64 {
        let context = engine.add_context();
        let stream = engine.add_stream(context, 0).unwrap();
        kernels(&mut engine, 0, stream, context_number * 10, &[10 * SLICE; 3]);
    }
    engine.advance_to(1_000 * SLICE);
    let went = drain(&mut engine);
    for (turn, tag) in [0, 10, 20, 1, 11, 21, 2, 12, 22].into_iter().enumerate() {
        assert_eq!(went[&tag].start, turn as u64 * 10 * SLICE, "{tag}");
        assert!(went[&tag].segments.is_empty(), "no kernel is stopped");
    }
    assert_eq!(engine.usage().switches, 0);
}

#[test]
fn two_copy_engines_run_beside_each_other_and_beside_kernels() {
    let mut engine = Engine::new(bare());
    let (one, other) = (engine.add_context(), engine.add_context());
    let bytes = 1_000_000;
    let copy = |direction| Work::Copy { direction, bytes };
    let mut stream = |context| engine.add_stream(context, 0).unwrap();
    let [a, b, c, d] = [stream(one), stream(one), stream(other), stream(other)];
    engine.submit(0, a, kernel(2_000_000), 0).unwrap();
    engine.submit(0, b, copy(Direction::HostToDevice), 1).unwrap();
    engine.submit(0, c, copy(Direction::DeviceToHost), 2).unwrap();
    engine.submit(0, d, copy(Direction::DeviceToDevice), 3).unwrap();
    engine.advance_to(100_000_000);
    let went = drain(&mut engine);
    assert_eq!((went[&0].start, went[&0].end), (0, 2_000_000));
    assert_eq!((went[&1].start, went[&1].end), (0, 1_000_000));
    assert_eq!(
        (went[&2].start, went[&2].end),
        (0, 1_000_000),
        "the other engine, another context"
    );
    assert_eq!(
        (went[&3].start, went[&3].end),
        (1_000_000, 2_000_000),
        "shares the first engine"
    );
    assert_eq!(engine.usage().copies, [2_000_000, 1_000_000]);
    assert_eq!(engine.context_usage(one).unwrap().copies, [1_000_000, 0]);
}

#[test]
fn contexts_take_turns_on_a_copy_engine() {
    let mut engine = Engine::new(bare());
    let copy = Work::Copy {
        direction: Direction::HostToDevice,
        bytes: 1_000,
    };
    for context_number in 0..2u64 {
        let context = engine.add_context();
        let stream = engine.add_stream(context, 0).unwrap();
        for copy_number in 0..3 {
            engine
                .submit(0, stream, copy, context_number * 10 + copy_number)
                .unwrap();
        }
    }
    engine.advance_to(1_000_000);
    let went = drain(&mut engine);
    let starts = [0, 10, 1, 11, 2, 12].map(|tag| went[&tag].start);
    assert_eq!(starts, [0, 1_000, 2_000, 3_000, 4_000, 5_000]);
}

#[test]
fn switches_are_reported_with_their_times() {
    let mut engine = Engine::new(sliced());
    let contexts = [engine.add_context(), engine.add_context()];
    for (tag, context) in (0..).zip(contexts) {
        let stream = engine.add_stream(context, 0).unwrap();
        engine.submit(0, stream, kernel(1_000_000), tag).unwrap();
    }
    engine.advance_to(10_000_000);
    let switches: Vec<_> = std::iter::from_fn(|| engine.next_output())
        .filter_map(|output| match output {
            Output::Switch { to, start, end } => Some((to, start, end)),
            _ => None,
        })
        .collect();
    assert_eq!(switches, [(contexts[1], 1_000_000, 1_000_000 + SWITCH)]);
}

#[test]
fn one_that_dies_in_line_is_passed_over_at_no_cost() {
    let mut engine = Engine::new(sliced());
    let contexts = [engine.add_context(), engine.add_context(), engine.add_context()];
    for (tag, context) in (0..).zip(contexts) {
        let stream = engine.add_stream(context, 0).unwrap();
        engine.submit(0, stream, kernel(SLICE / 2), tag).unwrap();
    }
    engine.advance_to(1_000);
    engine.remove_context(contexts[1]).unwrap();
    engine.advance_to(100 * SLICE);
    assert_eq!(drain(&mut engine)[&2].start, SLICE / 2 + SWITCH);
    assert_eq!(engine.usage().switches, 1);
}

#[test]
fn the_copies_of_the_dead_free_their_engine() {
    let mut engine = Engine::new(bare());
    let (dying, living) = (engine.add_context(), engine.add_context());
    let copy = |bytes| Work::Copy {
        direction: Direction::DeviceToHost,
        bytes,
    };
    let a = engine.add_stream(dying, 0).unwrap();
    let b = engine.add_stream(living, 0).unwrap();
    engine.submit(0, a, copy(u64::MAX), 0).unwrap();
    engine.submit(0, a, copy(1_000), 1).unwrap();
    engine.submit(0, b, copy(1_000), 2).unwrap();
    engine.advance_to(5_000);
    engine.remove_context(dying).unwrap();
    engine.advance_to(100_000);
    assert_eq!((drain(&mut engine)[&2].start, engine.usage().copies[1]), (5_000, 6_000));
}

#[test]
fn under_mps_the_more_important_context_goes_first() {
    let mut engine = Engine::new(Settings {
        mode: Mode::Mps,
        ..bare()
    });
    let (background, foreground) = (engine.add_context(), engine.add_context());
    engine.set_context_priority(background, 1).unwrap();
    let stream = engine.add_stream(background, 0).unwrap();
    kernels(&mut engine, 0, stream, 0, &[100; 3]);
    let stream = engine.add_stream(foreground, 0).unwrap();
    kernels(&mut engine, 50, stream, 10, &[10; 3]);
    engine.advance_to(1_000);
    let went = drain(&mut engine);
    let times = |tag| (went[&tag].start, went[&tag].end);
    assert_eq!(times(0), (0, 100), "what runs is not stopped");
    assert_eq!([10, 11, 12].map(times), [(100, 110), (110, 120), (120, 130)]);
    assert_eq!([1, 2].map(times), [(130, 230), (230, 330)]);
    engine.remove_context(background).unwrap();
    assert!(engine.set_context_priority(background, 0).is_err());
}

/// The example of NVIDIA's guide to MPS: "Client Priority Level Control".
#[test]
fn under_mps_stream_priorities_count_across_equal_contexts() {
    let order = |others: i32, stream_of_others: i32| {
        let mut engine = Engine::new(Settings {
            mode: Mode::Mps,
            ..bare()
        });
        let (first, other) = (engine.add_context(), engine.add_context());
        engine.set_context_priority(other, others).unwrap();
        let stream = engine.add_stream(first, 0).unwrap();
        kernels(&mut engine, 0, stream, 0, &[10; 3]);
        let stream = engine.add_stream(other, stream_of_others).unwrap();
        kernels(&mut engine, 0, stream, 10, &[10; 3]);
        engine.advance_to(1_000);
        let went = drain(&mut engine);
        let mut tags = [0, 1, 2, 10, 11, 12];
        tags.sort_by_key(|tag| went[tag].start);
        tags
    };
    // The first begins before there is another.
    assert_eq!(order(0, -3), [0, 10, 11, 12, 1, 2]);
    assert_eq!(order(1, -3), [0, 1, 2, 10, 11, 12], "below normal");
    assert_eq!(order(0, 0), [0, 10, 1, 11, 2, 12], "in turns");
}
