// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invariants of any submission, checked on random schedules.

#[path = "../../../tests/bounded.rs"]
mod bounded;
mod common;

use std::collections::HashMap;

use bounded::Bounded;
use common::Went;
use proptest::prelude::*;
use weft_engine::{Direction, Engine, Mode, Ns, OpId, Output, Settings, StreamId, Work};

/// One step of a script.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Time since the step before.
    pause: Ns,
    stream: usize,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Kernel(Ns),
    Held {
        longest: Ns,
        released_after: Option<Ns>,
    },
    Copy(u8, u64),
    Memset(u64),
    Marker,
    /// With a time or without.
    Record(bool),
    /// Waits for the operation that is this number of places before this one.
    WaitFor(usize),
    /// Released this long after it was reached.
    Host(Ns),
}

#[derive(Debug, Clone)]
struct Script {
    settings: Settings,
    /// Context and priority of each stream.
    streams: Vec<(usize, i32)>,
    contexts: usize,
    steps: Vec<Step>,
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        6 => (0..2_000u64).prop_map(What::Kernel),
        1 => (0..3_000u64, proptest::option::of(0..1_000u64))
            .prop_map(|(longest, released_after)| What::Held { longest, released_after }),
        2 => (0..3u8, 0..2_000u64).prop_map(|(way, bytes)| What::Copy(way, bytes)),
        1 => (0..2_000u64).prop_map(What::Memset),
        1 => Just(What::Marker),
        1 => any::<bool>().prop_map(What::Record),
        2 => (1..20usize).prop_map(What::WaitFor),
        1 => (0..2_000u64).prop_map(What::Host),
    ]
}

fn script() -> impl Strategy<Value = Script> {
    let pauses = prop_oneof![Just((0, 0, 0)), (0..50u64, 0..100u64, 0..20u64)];
    let settings = (any::<bool>(), 1..1_000u64, 0..200u64, 0..100u64, pauses).prop_map(
        |(mps, slice, switch, launch_latency, (kernel_gap, timed_record, untimed_record))| Settings {
            mode: if mps { Mode::Mps } else { Mode::TimeSlice },
            slice,
            switch,
            launch_latency,
            copy_latency: 7,
            memset_latency: 3,
            kernel_gap,
            timed_record,
            untimed_record,
            ..common::bare()
        },
    );
    let streams = proptest::collection::vec((0..4usize, -2..2i32), 1..8);
    (settings, streams).prop_flat_map(|(settings, streams)| {
        let count = streams.len();
        let step = (0..300u64, 0..count, what()).prop_map(|(pause, stream, what)| Step { pause, stream, what });
        proptest::collection::vec(step, 1..120).prop_map(move |steps| Script {
            settings,
            contexts: 4,
            streams: streams.clone(),
            steps,
        })
    })
}

/// The outcome of a script.
#[derive(Debug, PartialEq)]
struct Record {
    outputs: Vec<Output>,
    went: HashMap<u64, Went>,
    ops: Vec<OpId>,
    submitted: Vec<Ns>,
    /// For some operations, the predicted earliest end.
    foretold: Vec<(u64, Ns)>,
    usage: weft_engine::Usage,
    contexts: Vec<Option<weft_engine::ContextUsage>>,
}

/// Runs a script to the end. `stride`: advance in steps of this size in between, which must change
/// nothing.
fn run(script: &Script, stride: Option<Ns>) -> Record {
    let _bounded = Bounded::new();
    let mut engine = Engine::new(script.settings);
    let contexts: Vec<_> = (0..script.contexts).map(|_| engine.add_context()).collect();
    let streams: Vec<StreamId> = script
        .streams
        .iter()
        .map(|(context, priority)| engine.add_stream(contexts[*context], *priority).unwrap())
        .collect();
    let mut record = Record {
        outputs: Vec::new(),
        went: HashMap::new(),
        ops: Vec::new(),
        submitted: Vec::new(),
        foretold: Vec::new(),
        usage: engine.usage(),
        contexts: Vec::new(),
    };
    // Things to release: time, operation. The script's steps and these are merged in time.
    let mut releases: Vec<(Ns, OpId)> = Vec::new();
    let mut steps = script.steps.iter();
    let mut next_step = steps.next().map(|step| (step.pause, step));
    loop {
        while let Some(output) = engine.next_output() {
            match &output {
                Output::Done {
                    tag,
                    start,
                    end,
                    segments,
                    ..
                } => {
                    let went = Went {
                        start: *start,
                        end: *end,
                        segments: segments.clone(),
                    };
                    assert!(record.went.insert(*tag, went).is_none(), "{tag} ended twice");
                }
                Output::Reached { op, tag, at } => {
                    let after = match script.steps[*tag as usize].what {
                        What::Host(after) => Some(after),
                        What::Held { released_after, .. } => released_after,
                        other => panic!("{other:?} is not reached"),
                    };
                    releases.extend(after.map(|after| (at + after, *op)));
                }
                Output::Switch { .. } => {}
                Output::Aborted { .. } => panic!("nobody died"),
            }
            record.outputs.push(output);
        }
        let release = releases.iter().map(|(at, _)| *at).min();
        let target = match (next_step.map(|(at, _)| at), release) {
            (Some(step), Some(release)) => step.min(release),
            (step, release) => match step.or(release).or(engine.next_event_time()) {
                Some(target) => target,
                None => break,
            },
        };
        // Something may be reached on the way, and be released earlier than anything known.
        let stop = engine.next_event_time().map_or(target, |event| event.min(target));
        let stop = stride.map_or(stop, |stride| stop.min(engine.now() + stride));
        engine.advance_to(stop);
        if stop < target {
            continue;
        }
        let due: Vec<_> = releases.iter().filter(|(at, _)| *at <= target).copied().collect();
        releases.retain(|(at, _)| *at > target);
        for (at, op) in due {
            engine.release(at, op).unwrap();
        }
        while let Some((at, step)) = next_step
            && at <= target
        {
            let tag = record.ops.len() as u64;
            let work = match step.what {
                What::Kernel(duration) => Work::Kernel { duration, held: false },
                What::Held { longest, .. } => Work::Kernel {
                    duration: longest,
                    held: true,
                },
                What::Copy(way, bytes) => Work::Copy {
                    direction: [
                        Direction::HostToDevice,
                        Direction::DeviceToHost,
                        Direction::DeviceToDevice,
                    ][way as usize],
                    bytes,
                },
                What::Memset(bytes) => Work::Memset { bytes },
                What::Marker => Work::Marker,
                What::Record(timed) => Work::Record { timed },
                What::WaitFor(back) => Work::WaitFor(match record.ops.len().checked_sub(back) {
                    Some(index) => record.ops[index],
                    None => OpId::DONE,
                }),
                What::Host(_) => Work::Host,
            };
            record
                .ops
                .push(engine.submit(at, streams[step.stream], work, tag).unwrap());
            record.submitted.push(at);
            let some = record.ops.len() / 2;
            if let Some(bound) = engine.earliest_end(record.ops[some])
                && bound != Ns::MAX
            {
                record.foretold.push((some as u64, bound));
            }
            next_step = steps.next().map(|step| (at + step.pause, step));
        }
    }
    record.usage = engine.usage();
    record.contexts = contexts.iter().map(|context| engine.context_usage(*context)).collect();
    assert_eq!(engine.outstanding(), 0, "nothing is left behind");
    record
}

/// The time that is in both of two sets of pieces.
fn disjoint(pieces: &mut Vec<(Ns, Ns)>) -> bool {
    pieces.retain(|(from, to)| from < to);
    pieces.sort_unstable();
    pieces.windows(2).all(|pair| pair[0].1 <= pair[1].0)
}

fn covered(pieces: &[(Ns, Ns)], from: Ns, to: Ns) -> bool {
    let mut reached = from;
    for &(start, end) in pieces {
        if reached >= to {
            break;
        }
        if start <= reached && end > reached {
            reached = end;
        }
    }
    reached >= to
}

fn check(script: &Script) -> Result<(), TestCaseError> {
    let record = run(script, None);
    let went = |tag: usize| &record.went[&(tag as u64)];
    prop_assert_eq!(record.went.len(), script.steps.len(), "every operation ends");
    prop_assert_eq!(record.usage.submitted, record.usage.ended);

    let mut compute = Vec::new();
    let mut copies = [Vec::new(), Vec::new()];
    let mut busy_by_context = vec![0; script.contexts];
    let mut last_in_stream: HashMap<usize, usize> = HashMap::new();
    let mut ready = Vec::new();
    // By stream: when the gap behind the last kernel is over.
    let mut gap_ends: HashMap<usize, Ns> = HashMap::new();
    for (tag, step) in script.steps.iter().enumerate() {
        let op = went(tag);
        let before = last_in_stream.insert(step.stream, tag).map_or(0, |last| went(last).end);
        prop_assert!(op.start >= before, "{} overtook its stream", tag);
        prop_assert!(op.start >= record.submitted[tag] + script.settings.launch_latency);
        prop_assert!(op.end >= op.start);
        ready.push(before.max(record.submitted[tag] + script.settings.launch_latency));
        let gap_end = gap_ends.entry(step.stream).or_default();
        let length: Ns = op.pieces().iter().map(|(from, to)| to - from).sum();
        let on_compute = match step.what {
            What::Kernel(duration) => {
                prop_assert_eq!(length, duration);
                true
            }
            What::Held {
                longest,
                released_after,
            } => {
                prop_assert!(length <= longest);
                if released_after.is_none() {
                    prop_assert_eq!(length, longest);
                }
                true
            }
            What::Memset(bytes) => {
                prop_assert_eq!(length, bytes + 3);
                true
            }
            What::Copy(way, bytes) => {
                prop_assert_eq!(length, bytes + 7);
                copies[usize::from(way == 1)].push((op.start, op.end));
                false
            }
            What::Marker => {
                prop_assert_eq!(op.start, op.end);
                prop_assert_eq!(op.start, ready[tag]);
                false
            }
            What::Record(timed) => {
                let cost = script.settings.duration(Work::Record { timed });
                prop_assert_eq!(op.start, ready[tag]);
                prop_assert_eq!(op.end, op.start + cost);
                *gap_end += cost;
                false
            }
            What::WaitFor(back) => {
                let other = tag.checked_sub(back).map_or(0, |other| went(other).end);
                prop_assert_eq!(op.end, ready[tag].max(other), "a wait ends exactly when both are true");
                false
            }
            What::Host(after) => {
                prop_assert_eq!(op.start, ready[tag]);
                prop_assert_eq!(op.end, op.start + after);
                false
            }
        };
        if on_compute {
            ready[tag] = ready[tag].max(*gap_end);
            prop_assert!(op.start >= ready[tag], "{} began within a gap", tag);
            *gap_end = op.end + script.settings.kernel_gap;
            compute.extend(op.pieces());
            busy_by_context[script.streams[step.stream].0] += length;
        }
    }
    // One thing at a time on each engine, switches included, and the sums agree.
    prop_assert_eq!(
        record.usage.compute,
        compute.iter().map(|(from, to)| to - from).sum::<Ns>()
    );
    for (context, busy) in record.contexts.iter().zip(&busy_by_context) {
        prop_assert_eq!(context.unwrap().compute, *busy);
        prop_assert_eq!(context.unwrap().outstanding, 0);
    }
    let switches: Vec<_> = record
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Switch { start, end, .. } => Some((*start, *end)),
            _ => None,
        })
        .collect();
    prop_assert_eq!(record.usage.switches as usize, switches.len());
    prop_assert_eq!(record.usage.switching, script.settings.switch * switches.len() as u64);
    if script.settings.mode == Mode::Mps {
        prop_assert!(switches.is_empty());
    }
    compute.extend(switches);
    prop_assert!(disjoint(&mut compute), "two things on the compute engine");
    for (engine, used) in copies.iter_mut().zip(record.usage.copies) {
        prop_assert_eq!(used, engine.iter().map(|(from, to)| to - from).sum::<Ns>());
        prop_assert!(disjoint(engine), "two copies on one engine");
    }
    // Whatever was ready and did not run found its engine taken: no engine idles while there is
    // work for it. But the compute engine waits for a context that pauses within its slice.
    let pauses = script.settings.kernel_gap + script.settings.timed_record + script.settings.untimed_record > 0;
    let waits = pauses && script.settings.mode == Mode::TimeSlice;
    for (tag, step) in script.steps.iter().enumerate() {
        let op = went(tag);
        let engine = match step.what {
            What::Kernel(_) | What::Held { .. } | What::Memset(_) if !waits => &compute,
            What::Copy(way, _) => &copies[usize::from(way == 1)],
            _ => continue,
        };
        prop_assert!(
            covered(engine, ready[tag], op.start),
            "{} waited for an idle engine",
            tag
        );
    }
    for (tag, bound) in &record.foretold {
        prop_assert!(*bound <= record.went[tag].end, "{} ended before its earliest end", tag);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_time_and_work_are_kept(script in script()) {
        check(&script)?;
    }

    #[test]
    fn it_does_not_matter_when_one_looks(script in script(), stride in 1..500u64) {
        let mut whole = run(&script, None);
        let mut pieces = run(&script, Some(stride));
        // A query is no event.
        whole.usage.events = 0;
        pieces.usage.events = 0;
        prop_assert_eq!(whole, pieces);
    }

    #[test]
    fn busy_contexts_get_equal_shares(
        contexts in 2..6usize,
        slice in 100..2_000u64,
        switch in 0..200u64,
        kernel in 1..3_000u64,
    ) {
        let mut engine = Engine::new(Settings { slice, switch, ..common::bare() });
        let contexts: Vec<_> = (0..contexts).map(|_| engine.add_context()).collect();
        for context in &contexts {
            let stream = engine.add_stream(*context, 0).unwrap();
            for _ in 0..400_000 / kernel + 1 {
                engine.submit(0, stream, common::kernel(kernel), 0).unwrap();
            }
        }
        // All of them are busy all the time.
        engine.advance_to(400_000);
        let shares: Vec<_> = contexts
            .iter()
            .map(|context| engine.context_usage(*context).unwrap().compute)
            .collect();
        let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        // A context may be a turn ahead, and running work is not booked yet.
        prop_assert!(most - least <= 2 * (slice + kernel), "{:?}", shares);
    }

    #[test]
    fn a_death_at_any_time_leaves_the_others_whole(script in script(), victim in 0..4usize, at in 0..20_000u64) {
        let mut engine = Engine::new(script.settings);
        let contexts: Vec<_> = (0..script.contexts).map(|_| engine.add_context()).collect();
        let streams: Vec<StreamId> = script
            .streams
            .iter()
            .map(|(context, priority)| engine.add_stream(contexts[*context], *priority).unwrap())
            .collect();
        let mut ops = Vec::new();
        let mut owners = Vec::new();
        for (tag, step) in script.steps.iter().enumerate() {
            let work = match step.what {
                What::Kernel(duration) | What::Held { longest: duration, .. } => common::kernel(duration),
                What::Copy(_, bytes) => Work::Copy { direction: Direction::DeviceToHost, bytes },
                What::WaitFor(back) => Work::WaitFor(tag.checked_sub(back).map_or(OpId::DONE, |index| ops[index])),
                _ => Work::Marker,
            };
            ops.push(engine.submit(0, streams[step.stream], work, tag as u64).unwrap());
            owners.push(script.streams[step.stream].0);
        }
        engine.advance_to(at);
        engine.remove_context(contexts[victim]).unwrap();
        engine.advance_to(Ns::MAX);
        let mut ended = vec![0; ops.len()];
        let mut aborted = vec![0; ops.len()];
        while let Some(output) = engine.next_output() {
            match output {
                Output::Done { tag, .. } => ended[tag as usize] += 1,
                Output::Aborted { tag, .. } => aborted[tag as usize] += 1,
                _ => {}
            }
        }
        for (tag, owner) in owners.iter().enumerate() {
            prop_assert_eq!(ended[tag] + aborted[tag], 1);
            prop_assert!(*owner == victim || aborted[tag] == 0);
        }
        prop_assert_eq!(engine.outstanding(), 0);
    }
}
