// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory: prefetches take time only for pages that lie elsewhere.

use crate::client::{self, Cuda, Handle, INVALID_VALUE, isolated};

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 801;

const MIB: usize = 1 << 20;
/// Bytes a microsecond each way of the standard calibration, and the additional cost of a copy.
const RATE: f64 = 22_200.0;
const LATENCY_US: f64 = 4.0;
/// `CUmemLocation` in one word: kind, number.
const DEVICE: u64 = 1;
const HOST: u64 = 2;

/// Device time of the work that `body` puts on the stream, as the MiB it moved at the link's rate,
/// less the latencies of `copies` copies. The stream stands still until all of it is queued, so
/// that the host's pace does not count.
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
        // There are copies on both sides now, which such prefetches do not move.
        about(moved(cu, s, 0, || batch(HOST)), 0.0);
        about(moved(cu, s, 0, || batch(DEVICE)), 0.0);
        // At the end of the advice the copies become one, at the preferred place: on the device, or
        // on the host.
        for (place, again) in [(0, 0), (-1, 4)] {
            ok!(cu.cuMemAdvise(at, 64 * MIB, 3, place));
            let moves = moved(cu, s, 0, || ok!(cu.cuMemAdvise(at, 64 * MIB, 2, 0)));
            about(moves, 0.0);
            ok!(cu.cuMemAdvise(at, 64 * MIB, 1, 0));
            about(moved(cu, s, again, || batch(DEVICE)), 16.0 * again as f64);
            // Pages that lie only on the device are copied once.
            let missing = 4 - again;
            about(moved(cu, s, missing, || batch(HOST)), 16.0 * missing as f64);
        }
        assert_eq!(cu.cuMemDiscardBatchAsync(&cu.alloc(MIB), &MIB, 1, 0, s), INVALID_VALUE);
    });
}

/// The device's ledger of this process, by name.
fn counted(what: &str) -> u64 {
    let text = simgpu_device::status(&simgpu_device::default_socket()).unwrap();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut clients = status["clients"].as_array().unwrap().iter();
    let mine = clients
        .find(|client| client["pid"].as_u64() == Some(std::process::id().into()))
        .unwrap();
    mine["managed"][what]
        .as_u64()
        .unwrap_or_else(|| panic!("no {what} in {mine}"))
}

#[test]
fn managed_memory_exceeds_the_device_up_to_the_hosts() {
    let variables = [("SIMGPU_MEMORY", "1073741824"), ("SIMGPU_HOST_MEMORY", "2147483648")];
    isolated(
        "managed_memory_exceeds_the_device_up_to_the_hosts",
        &variables,
        |cu, _| {
            cu.start();
            let (mut all, mut at, s) = (Vec::new(), 0, cu.stream(1));
            let before = cu.free_memory();
            while cu.cuMemAllocManaged(&mut at, 300 * MIB, 1) == client::SUCCESS {
                all.push(at);
            }
            assert_eq!(all.len(), 2048 / 300);
            assert_eq!(cu.free_memory(), before, "what nothing touches is not on the device");
            for at in &all {
                ok!(cu.cuMemPrefetchAsync(*at, 300 * MIB, 0, s));
                ok!(cu.cuStreamSynchronize(s));
                assert!(counted("resident") <= before as u64);
            }
            assert_eq!(counted("prefetched"), (all.len() * 300 * MIB) as u64);
            assert!(counted("evicted") >= (all.len() * 300 * MIB - before) as u64);
            assert!(cu.free_memory() < 300 * MIB);
            // Plain memory has its way: managed memory goes.
            let mut plain = 0;
            ok!(cu.cuMemAlloc_v2(&mut plain, before / 2));
            assert!(cu.free_memory() < before / 2);
            assert!(counted("resident") <= (before - before / 2) as u64);
            all.iter().for_each(|at| ok!(cu.cuMemFree_v2(*at)));
            assert_eq!((counted("allocated"), counted("resident")), (0, 0));
            ok!(cu.cuMemFree_v2(plain));
            assert_eq!(cu.free_memory(), before);
        },
    );
}

#[test]
fn what_an_operation_touches_comes_by_faults() {
    isolated("what_an_operation_touches_comes_by_faults", &[], |cu, _| {
        cu.start();
        let (mut at, s) = (0, cu.stream(1));
        ok!(cu.cuMemAllocManaged(&mut at, 64 * MIB, 1));
        ok!(cu.cuMemsetD32Async(at, 7, 8 * MIB / 4, s));
        ok!(cu.cuStreamSynchronize(s));
        assert_eq!(counted("faulted"), 8 * MIB as u64);
        // Two batches of 256 faults of 4 KiB for each block of 2 MiB.
        assert_eq!(counted("faults"), 8);
        // A kernel that fills: its pointer is in managed memory, and its threads reach 4 MiB at 16
        // bytes each.
        let to = at + (32 * MIB) as u64;
        let fill = cu.function("simgpu_fill\0");
        let (value, count) = (5_u64, 1024_u64);
        let params = [
            (&raw const to).cast(),
            (&raw const value).cast(),
            (&raw const count).cast(),
        ];
        ok!(cu.cuLaunchKernel(fill, 1024, 1, 1, 256, 1, 1, 0, s, params.as_ptr(), std::ptr::null()));
        ok!(cu.cuStreamSynchronize(s));
        assert_eq!(counted("faulted"), 12 * MIB as u64);
        assert_eq!(counted("resident"), 12 * MIB as u64);
    });
}

#[test]
fn a_driver_can_lack_managed_memory() {
    let test = "a_driver_can_lack_managed_memory";
    isolated(test, &[("SIMGPU_MANAGED", "off")], |cu, _| {
        cu.start();
        let (mut at, mut value) = (0, 1);
        assert_eq!(cu.cuMemAllocManaged(&mut at, MIB, 1), NOT_SUPPORTED);
        for attribute in [83, 89] {
            ok!(cu.cuDeviceGetAttribute(&mut value, attribute, 0));
            assert_eq!(value, 0);
        }
    });
}

#[test]
fn a_driver_can_refuse_to_prefetch() {
    isolated(
        "a_driver_can_refuse_to_prefetch",
        &[("SIMGPU_MANAGED", "no-prefetch")],
        |cu, _| {
            cu.start();
            let (mut at, s) = (0, cu.stream(1));
            ok!(cu.cuMemAllocManaged(&mut at, MIB, 1));
            assert_eq!(cu.cuMemPrefetchAsync(at, MIB, 0, s), NOT_SUPPORTED);
            ok!(cu.cuMemsetD32Async(at, 7, MIB / 4, s));
            ok!(cu.cuStreamSynchronize(s));
        },
    );
}
