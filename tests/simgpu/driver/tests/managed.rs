//! Managed memory: prefetches take time only for what lies elsewhere.
#![allow(missing_docs, reason = "the tests' names say it")]

mod client;

use client::{Cuda, Handle, INVALID_VALUE, isolated};

const MIB: usize = 1 << 20;
/// Bytes a microsecond each way of the standard calibration, and what a copy costs beside.
const RATE: f64 = 22_200.0;
const LATENCY_US: f64 = 4.0;
/// `CUmemLocation` in one word: kind, number.
const DEVICE: u64 = 1;
const HOST: u64 = 2;

/// Device time of what `body` puts on the stream, as the MiB it moved at the link's rate, less the latencies of so many copies. The stream stands still until all
/// of it is queued, so that the host's pace does not count.
fn moved(cu: &Cuda, stream: Handle, copies: usize, body: impl FnOnce()) -> f64 {
    let (from, to) = (cu.event(), cu.event());
    let gate = cu.gate(stream);
    ok!(cu.cuEventRecord(from, stream));
    body();
    ok!(cu.cuEventRecord(to, stream));
    gate.open();
    ok!(cu.cuEventSynchronize(to));
    let mut milliseconds = 0.0;
    ok!(cu.cuEventElapsedTime_v2(&mut milliseconds, from, to));
    (f64::from(milliseconds) * 1000.0 - copies as f64 * LATENCY_US) * RATE / MIB as f64
}

fn about(seen: f64, mib: f64) {
    assert!((seen - mib).abs() < mib * 0.01 + 0.1, "{seen} MiB moved, not {mib}");
}

#[test]
fn only_what_lies_elsewhere_moves() {
    isolated("only_what_lies_elsewhere_moves", &[], |cu, _| {
        cu.start();
        let (mut at, s) = (0, cu.stream(1));
        ok!(cu.cuMemAllocManaged(&mut at, 64 * MIB, 1));
        let device = |from: usize, bytes: usize| {
            ok!(cu.cuMemPrefetchAsync(at + (from * MIB) as u64, bytes * MIB, 0, s));
        };
        about(moved(cu, s, 1, || device(0, 32)), 32.0);
        about(moved(cu, s, 0, || device(0, 32)), 0.0);
        about(moved(cu, s, 1, || device(16, 48)), 32.0);
        let host = || ok!(cu.cuMemPrefetchAsync_v2(at, 64 * MIB, HOST, 0, s));
        about(moved(cu, s, 1, host), 64.0);
        let mut last = 0;
        ok!(cu.cuMemRangeGetAttribute(&mut last, 4, 4, at, 64 * MIB));
        assert_eq!(last, -1, "CU_DEVICE_CPU");
        assert_eq!(cu.cuMemPrefetchAsync(at, 65 * MIB, 0, s), INVALID_VALUE);
        let plain = cu.alloc(MIB);
        assert_eq!(cu.cuMemPrefetchAsync(plain, MIB, 0, s), INVALID_VALUE);
    });
}

#[test]
fn what_is_discarded_or_mostly_read_leaves_for_nothing() {
    let test = "what_is_discarded_or_mostly_read_leaves_for_nothing";
    isolated(test, &[], |cu, _| {
        cu.start();
        let (mut at, s) = (0, cu.stream(1));
        ok!(cu.cuMemAllocManaged(&mut at, 64 * MIB, 1));
        let parts: Vec<u64> = (0..4).map(|part| at + (part * 16 * MIB) as u64).collect();
        let sizes = [16 * MIB; 4];
        let batch = |place: u64| {
            ok!(cu.cuMemPrefetchBatchAsync(parts.as_ptr(), sizes.as_ptr(), 4, &place, &0, 1, 0, s));
        };
        about(moved(cu, s, 4, || batch(DEVICE)), 64.0);
        about(moved(cu, s, 4, || batch(HOST)), 64.0);
        batch(DEVICE);
        let discarded = moved(cu, s, 0, || {
            ok!(cu.cuMemDiscardBatchAsync(parts.as_ptr(), sizes.as_ptr(), 4, 0, s));
            batch(HOST);
        });
        about(discarded, 0.0);
        batch(DEVICE);
        let in_one_call = moved(cu, s, 0, || {
            ok!(cu.cuMemDiscardAndPrefetchBatchAsync(parts.as_ptr(), sizes.as_ptr(), 4, &HOST, &0, 1, 0, s));
        });
        about(in_one_call, 0.0);
        ok!(cu.cuMemAdvise(at, 64 * MIB, 1, 0));
        about(moved(cu, s, 4, || batch(DEVICE)), 64.0);
        about(moved(cu, s, 0, || batch(HOST)), 0.0);
        about(moved(cu, s, 4, || batch(DEVICE)), 64.0);
        assert_eq!(cu.cuMemDiscardBatchAsync(&cu.alloc(MIB), &MIB, 1, 0, s), INVALID_VALUE);
    });
}
