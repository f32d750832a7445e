// SPDX-License-Identifier: MIT OR Apache-2.0
//! The inputs that each target begins with: sound ones, so that the fuzzer need not find out the
//! format of a file by itself.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_daemon::fuzzed::admission;
use weft_daemon::fuzzed::transport;
use weft_kernel_id::KernelId;
use weft_profiles::{Profile, codec};
use weft_protocol::control::{Access, GranuleUse, ToBroker, Wants};
use weft_protocol::lane::{Kind, Lane, LaneRecord, NO_GAP};
use weft_trace_format as trace;

use crate::targets::Target;

/// The smallest of the recorded traces.
const TRACE: &[u8] = include_bytes!("../../../../profiles/recorded/simulated-A100/lstm-infer.trace");

const GB: u64 = 1 << 30;

/// Writes them.
pub fn write(target: Target, folder: &Path) {
    let seeds = match target {
        Target::Packet => messages().into_iter().map(transport::message).collect(),
        Target::Desk => desk(),
        Target::Lane => vec![lane_writes(6), lane_writes(40)],
        Target::Turn => turns(),
        Target::Profile => profiles(),
        Target::Trace => traces(),
        Target::Ledger => vec![admission::a_ledger()],
        Target::Known => vec![
            br#"{"format":1,"contexts":{"aa":7},"learnt":[{"family":3,"pid":5,"command":"a b","user":"u","gpu":null,"peak":11,"ran":13,"denied":true}]}"#.to_vec(),
        ],
    };
    for (at, seed) in seeds.iter().enumerate() {
        std::fs::write(folder.join(format!("seed{at}")), seed).expect("the folder of the seeds can be written");
    }
}

fn wants() -> Wants {
    Wants {
        uuid: "11".repeat(16),
        total: 8 * GB,
        devices: 1,
        memory: Some(5 * GB),
        duration: Some("short".into()),
        processes: 1,
        ..Wants::default()
    }
}

fn messages() -> Vec<ToBroker> {
    vec![
        ToBroker::Kernel {
            hash: 7,
            id: KernelId::new(7, "axpy", [1; 3], [32, 1, 1], 0),
        },
        ToBroker::Graph {
            hash: 9,
            kernels: vec![7, 8],
        },
        ToBroker::Device {
            name: "A100".into(),
            uuid: "11".repeat(16),
            memory: 8 * GB,
            driver: 13000,
            mps: Some(false),
        },
        ToBroker::Backed {
            start: 1 << 40,
            bytes: 4 << 20,
        },
        ToBroker::Touched {
            starts: Some(vec![1 << 40]),
        },
        ToBroker::Forecast {
            number: 1,
            period: 1000,
            uses: vec![GranuleUse {
                at: 1,
                first: 2,
                count: 3,
                access: Access::Read,
            }],
            ends: true,
        },
        ToBroker::Wants(wants()),
        ToBroker::Wants(Wants {
            memory: None,
            either: true,
            gang: "g".into(),
            runs: Some(GB),
            ..wants()
        }),
        ToBroker::More {
            bytes: GB,
            patience: 1 << 40,
        },
        ToBroker::NoMore,
        ToBroker::Refused { free: 1 << 30 },
        ToBroker::OnDevice,
        ToBroker::WaitsNoMore,
        ToBroker::Context {
            own: 0,
            free: 7 * GB,
            held: GB,
            at: 5,
        },
        ToBroker::Note("a line".into()),
        ToBroker::Goodbye,
    ]
}

fn desk() -> Vec<Vec<u8>> {
    let say = |who: u8, message: ToBroker| -> Vec<u8> {
        let packet = transport::message(message);
        let body = packet.get(17..).unwrap_or_default();
        [&[who, body.len() as u8], body].concat()
    };
    let grows = ToBroker::More {
        bytes: GB,
        patience: 1 << 36,
    };
    let look = ToBroker::Context {
        own: 0,
        free: 2 * GB,
        held: 5 * GB,
        at: 9,
    };
    vec![
        [
            say(0, ToBroker::Wants(wants())),
            say(0x41, ToBroker::Wants(wants())),
            say(0, look),
            say(0x40, ToBroker::Goodbye),
        ]
        .concat(),
        [
            say(
                2,
                ToBroker::Wants(Wants {
                    memory: None,
                    ..wants()
                }),
            ),
            say(0x42, grows.clone()),
            say(
                3,
                ToBroker::Wants(Wants {
                    either: true,
                    gang: "g".into(),
                    processes: 2,
                    ..wants()
                }),
            ),
            say(
                0x40,
                ToBroker::Wants(Wants {
                    further: 1,
                    gang: "g".into(),
                    uuid: "22".repeat(16),
                    ..wants()
                }),
            ),
            say(0x43, grows),
        ]
        .concat(),
    ]
}

/// The records that an honest client writes into a fresh lane, as writes of words.
fn lane_writes(records: u64) -> Vec<u8> {
    let (lane, fresh) = (Box::<Lane>::default(), Box::<Lane>::default());
    for at in 0..records {
        let kinds = [
            Kind::Launch,
            Kind::Sample,
            Kind::Graph,
            Kind::Transfer,
            Kind::WakeUpHint,
            Kind::Counted,
            Kind::PartialWait,
            Kind::Between,
        ];
        lane.record(LaneRecord {
            kind: kinds[at as usize % kinds.len()],
            thread: 1,
            at: 1_000_000_000 + at,
            kernel: 42 + at % 3,
            a: 1000,
            b: NO_GAP,
        });
        lane.become_idle(1_000_000_000 + at);
    }
    lane.reports.issued.store(5000, Ordering::Relaxed);
    lane.reports.completed.store(2000, Ordering::Relaxed);
    lane.reports.wanted_cost.store(300, Ordering::Relaxed);
    lane.reports.waiting.store(1, Ordering::Relaxed);
    let words = |lane: &Lane| -> Vec<u64> {
        let start = std::ptr::from_ref(lane).cast::<AtomicU64>();
        // SAFETY: a lane is made only of atomics, without padding that is ever read, is aligned to
        // more than eight bytes and is that large.
        let words = unsafe { std::slice::from_raw_parts(start, size_of::<Lane>() / 8) };
        words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    };
    let (written, before) = (words(&lane), words(&fresh));
    let mut out = Vec::new();
    for (word, (new, old)) in written.iter().zip(&before).enumerate() {
        if new != old {
            out.extend_from_slice(&(word as u16).to_le_bytes());
            out.extend_from_slice(&new.to_le_bytes());
        }
    }
    out
}

fn turns() -> Vec<Vec<u8>> {
    let writes = lane_writes(3);
    let mut out = vec![0x50];
    for (at, piece) in writes.chunks(250).enumerate() {
        out.extend_from_slice(&[at as u8 & 7 | 2, piece.len() as u8]);
        out.extend_from_slice(piece);
    }
    vec![out]
}

fn with(how: u8, body: &[u8]) -> Vec<u8> {
    [&[how], body].concat()
}

/// The bytes behind a file's header.
fn body(file: &[u8]) -> &[u8] {
    file.get(32..).unwrap_or_default()
}

fn encoded(trace: &trace::Trace) -> Vec<u8> {
    trace::codec::encode(trace, Path::new("/t")).expect("a trace")
}

/// A few steps of a recorded one, and none.
fn traces() -> Vec<Vec<u8>> {
    let mut few = trace::codec::decode(TRACE, Path::new("/t")).expect("the recorded trace");
    few.steps.truncate(3);
    few.steps.iter_mut().for_each(|step| step.operations.truncate(12));
    let used = |kernel: u32| {
        let launches = few.steps.iter().flat_map(|step| &step.operations);
        launches
            .into_iter()
            .any(|it| matches!(it.call, trace::Call::Launch { kernel: launched, .. } if launched == kernel))
    };
    let last = (0..few.kernels.len() as u32)
        .filter(|kernel| used(*kernel))
        .max()
        .unwrap_or(0);
    few.kernels.truncate(last as usize + 1);
    [few, trace::Trace::default()]
        .iter()
        .map(|trace| with(1, body(&encoded(trace))))
        .collect()
}

fn profiles() -> Vec<Vec<u8>> {
    let trace = trace::codec::decode(TRACE, Path::new("/t")).expect("the recorded trace");
    // `how & 7` counted down from the newest version: 5 is the newest itself.
    [trace.profile(), Profile::default()]
        .iter()
        .map(|profile| codec::encode(profile, Path::new("/p")).expect("a profile"))
        .flat_map(|file| [with(0, &file), with(codec::VERSION, body(&file))])
        .collect()
}
