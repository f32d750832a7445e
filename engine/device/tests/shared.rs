// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that share SMs: residency, waves, priorities at block boundaries, contention.

mod common;

use common::{Went, bare, drain, kernel};
use proptest::prelude::*;
use weft_engine::{ContextId, Direction, Engine, KernelShape, Mode, Ns, Settings, SmLimits, StreamId, Work};

/// SMs that hold one block of [`blocks`] each.
const SMS: u32 = 108;

fn limits(contention: u32) -> SmLimits {
    SmLimits {
        contention,
        ..SmLimits::A100_LIKE
    }
}

/// Blocks that have an SM each.
fn blocks(count: u32) -> KernelShape {
    KernelShape {
        blocks: count,
        threads: 1_024,
        ..KernelShape::default()
    }
}

/// An engine with one stream in each of `contexts` contexts.
fn engine(contention: u32, contexts: usize) -> (Engine, Vec<ContextId>, Vec<StreamId>) {
    let mut engine = Engine::new(Settings {
        mode: Mode::MpsShared(limits(contention)),
        ..bare()
    });
    let contexts: Vec<ContextId> = (0..contexts).map(|_| engine.add_context()).collect();
    let streams = contexts
        .iter()
        .map(|context| engine.add_stream(*context, 0).unwrap())
        .collect();
    (engine, contexts, streams)
}

fn times(went: &Went) -> (Ns, Ns) {
    (went.start, went.end)
}

#[test]
fn a_kernel_alone_takes_its_duration_whatever_its_waves() {
    let (mut engine, contexts, streams) = engine(300, 1);
    let shapes = [
        blocks(1),
        blocks(SMS),
        blocks(SMS + 1),
        blocks(1_000_003),
        KernelShape::default(),
    ];
    for (tag, shape) in (0..).zip(shapes) {
        engine.submit_shaped(0, streams[0], kernel(1_001), shape, tag).unwrap();
    }
    engine.advance_to(1_000_000);
    let went = drain(&mut engine);
    for tag in 0..5 {
        assert_eq!(times(&went[&tag]), (tag * 1_001, (tag + 1) * 1_001), "{tag}");
    }
    assert_eq!(engine.usage().compute, 5_005);
    assert_eq!(engine.context_usage(contexts[0]).unwrap().compute, 5_005);
    assert!(engine.usage().events <= 6, "waves of a kernel alone are no events");
}

#[test]
fn halves_of_the_device_run_side_by_side() {
    let (mut engine, _, streams) = engine(0, 3);
    for (tag, stream) in (0..).zip(&streams) {
        engine
            .submit_shaped(0, *stream, kernel(1_000), blocks(SMS / 2), tag)
            .unwrap();
    }
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!(times(&went[&0]), (0, 1_000));
    assert_eq!(times(&went[&1]), (0, 1_000));
    assert_eq!(times(&went[&2]), (1_000, 2_000), "there is no third half");
}

#[test]
fn a_kernel_behind_one_that_fills_the_device_waits() {
    for first in [KernelShape::default(), blocks(SMS), blocks(10 * SMS)] {
        let (mut engine, _, streams) = engine(300, 2);
        engine.submit_shaped(0, streams[0], kernel(1_000), first, 0).unwrap();
        engine
            .submit_shaped(1, streams[1], kernel(1_000), blocks(1), 1)
            .unwrap();
        engine.advance_to(10_000);
        let went = drain(&mut engine);
        assert_eq!(times(&went[&0]), (0, 1_000));
        assert_eq!(times(&went[&1]), (1_000, 2_000));
    }
}

#[test]
fn a_last_wave_leaves_room() {
    let (mut engine, _, streams) = engine(0, 2);
    // Ten whole waves of 100 ns and one of eight blocks.
    engine
        .submit_shaped(0, streams[0], kernel(1_100), blocks(10 * SMS + 8), 0)
        .unwrap();
    engine
        .submit_shaped(5, streams[1], kernel(300), blocks(SMS), 1)
        .unwrap();
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!(times(&went[&0]), (0, 1_100));
    // A hundred blocks begin next to the last eight of the other, eight after them.
    assert_eq!(times(&went[&1]), (1_000, 1_400));
}

#[test]
fn the_more_important_context_goes_first_at_block_boundaries() {
    let (mut engine, contexts, streams) = engine(0, 2);
    engine.set_context_priority(contexts[1], -1).unwrap();
    engine
        .submit_shaped(0, streams[0], kernel(1_000), blocks(10 * SMS), 0)
        .unwrap();
    engine
        .submit_shaped(250, streams[1], kernel(500), blocks(SMS / 2), 1)
        .unwrap();
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!(times(&went[&1]), (300, 800), "blocks are not stopped");
    // 54 SMs for 500 ns are two and a half waves, of which the last is not whole.
    assert_eq!(times(&went[&0]), (0, 1_300));
}

#[test]
fn the_more_important_stream_goes_first_at_block_boundaries() {
    let (mut engine, contexts, streams) = engine(0, 1);
    let high = engine.add_stream(contexts[0], -5).unwrap();
    engine
        .submit_shaped(0, streams[0], kernel(1_000), blocks(10 * SMS), 0)
        .unwrap();
    engine.submit_shaped(250, high, kernel(100), blocks(SMS), 1).unwrap();
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!(times(&went[&1]), (300, 400));
    assert_eq!(times(&went[&0]), (0, 1_100));
}

#[test]
fn blocks_beside_others_take_longer_by_the_others_part() {
    let (mut engine, _, streams) = engine(300, 2);
    for (tag, stream) in (0..).zip(&streams) {
        engine
            .submit_shaped(0, *stream, kernel(1_000), blocks(SMS / 2), tag)
            .unwrap();
    }
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    // Half of the device is another's: half of 30 %. Speeds are rounded down by a millionth.
    for tag in 0..2 {
        assert!((1_150..=1_151).contains(&went[&tag].end), "{:?}", went[&tag]);
    }
}

#[test]
fn copies_run_beside_kernels_untouched() {
    let (mut engine, _, streams) = engine(300, 3);
    engine.submit(0, streams[0], kernel(1_000), 0).unwrap();
    engine
        .submit_shaped(0, streams[1], kernel(1_000), blocks(9), 1)
        .unwrap();
    for (tag, direction) in [(2, Direction::HostToDevice), (3, Direction::DeviceToHost)] {
        let context = engine.add_context();
        let stream = engine.add_stream(context, 0).unwrap();
        let copy = Work::Copy { direction, bytes: 700 };
        engine.submit(0, stream, copy, tag).unwrap();
    }
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!(times(&went[&2]), (0, 700));
    assert_eq!(times(&went[&3]), (0, 700));
}

#[test]
fn a_context_that_dies_leaves_its_sms() {
    let (mut engine, contexts, streams) = engine(300, 2);
    engine
        .submit_shaped(0, streams[0], kernel(1_000), blocks(5 * SMS), 0)
        .unwrap();
    engine
        .submit_shaped(0, streams[1], kernel(1_000), blocks(SMS), 1)
        .unwrap();
    engine.advance_to(450);
    engine.remove_context(contexts[0]).unwrap();
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!(times(&went[&1]), (450, 1_450));
}

#[test]
fn a_held_kernel_leaves_its_sms_when_it_is_released() {
    let (mut engine, _, streams) = engine(0, 2);
    let held = Work::Kernel {
        duration: 100_000,
        held: true,
    };
    let op = engine.submit_shaped(0, streams[0], held, blocks(SMS), 0).unwrap();
    engine
        .submit_shaped(0, streams[1], kernel(1_000), blocks(SMS), 1)
        .unwrap();
    engine.release(300, op).unwrap();
    engine.advance_to(10_000);
    let went = drain(&mut engine);
    assert_eq!(times(&went[&0]), (0, 300));
    assert_eq!(times(&went[&1]), (300, 1_300));
}

/// A kernel of a random schedule.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    pause: Ns,
    stream: usize,
    duration: Ns,
    shape: KernelShape,
}

fn drawn(streams: usize) -> impl Strategy<Value = Vec<Drawn>> {
    let shape =
        (0..2_000u32, 1..1_024u32, 0..80_000u32, 0..128u32).prop_map(|(blocks, threads, shared_bytes, registers)| {
            KernelShape {
                blocks,
                threads,
                shared_bytes,
                registers,
            }
        });
    let one = (0..600u64, 0..streams, 0..2_000u64, shape).prop_map(|(pause, stream, duration, shape)| Drawn {
        pause,
        stream,
        duration,
        shape,
    });
    proptest::collection::vec(one, 1..60)
}

/// Runs a schedule on contexts of priority 0, 0 and 1 with two streams each. Answers how the
/// kernels went, and the sum of the contexts' work.
fn play(kernels: &[Drawn], contention: u32, stride: Option<Ns>) -> (Vec<Went>, Ns, weft_engine::Usage) {
    let (mut engine, contexts, mut streams) = engine(contention, 3);
    engine.set_context_priority(contexts[2], 1).unwrap();
    for context in &contexts {
        streams.push(engine.add_stream(*context, -1).unwrap());
    }
    let mut now = 0;
    for (tag, kernel) in (0..).zip(kernels) {
        let until = now + kernel.pause;
        while let Some(stride) = stride
            && now + stride < until
        {
            now += stride;
            engine.advance_to(now);
        }
        now = until;
        let work = common::kernel(kernel.duration);
        engine
            .submit_shaped(now, streams[kernel.stream], work, kernel.shape, tag)
            .unwrap();
    }
    engine.advance_to(Ns::MAX);
    let mut went = drain(&mut engine);
    let work = contexts
        .iter()
        .map(|context| engine.context_usage(*context).unwrap().compute)
        .sum();
    let usage = engine.usage();
    let went = (0..kernels.len()).map(|tag| went.remove(&(tag as u64)).unwrap());
    (went.collect(), work, usage)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn work_is_kept_and_order_in_streams(kernels in drawn(6), contention in 0..600u32) {
        let (went, work, usage) = play(&kernels, contention, None);
        prop_assert_eq!(work, kernels.iter().map(|kernel| kernel.duration).sum::<Ns>());
        let mut last = [0; 6];
        let mut submitted = 0;
        for (kernel, went) in kernels.iter().zip(&went) {
            submitted += kernel.pause;
            prop_assert!(went.start >= submitted.max(last[kernel.stream]));
            prop_assert!(went.end - went.start >= kernel.duration, "nothing is faster than alone");
            last[kernel.stream] = went.end;
        }
        // Block time of the device: no more is done in a time than all SMs can do.
        let limits = limits(contention);
        let area: f64 = kernels
            .iter()
            .map(|kernel| kernel.shape.share(&limits) * kernel.duration as f64)
            .sum();
        prop_assert!(area <= usage.compute as f64 + 1.0, "{} of {}", area, usage.compute);
    }

    #[test]
    fn one_stream_is_the_engine_that_runs_one_kernel_at_a_time(kernels in drawn(1)) {
        let (shared, _, _) = play(&kernels, 300, None);
        let mut serial = Engine::new(Settings { mode: Mode::Mps, ..bare() });
        let context = serial.add_context();
        let stream = serial.add_stream(context, 0).unwrap();
        let mut at = 0;
        for (tag, kernel) in (0..).zip(&kernels) {
            at += kernel.pause;
            serial.submit(at, stream, common::kernel(kernel.duration), tag).unwrap();
        }
        serial.advance_to(Ns::MAX);
        let serial = drain(&mut serial);
        for (tag, shared) in (0..).zip(&shared) {
            prop_assert_eq!(times(&serial[&tag]), times(shared));
        }
    }

    #[test]
    fn it_does_not_matter_when_one_looks(kernels in drawn(6), stride in 1..300u64) {
        prop_assert_eq!(play(&kernels, 300, None), play(&kernels, 300, Some(stride)));
    }
}
