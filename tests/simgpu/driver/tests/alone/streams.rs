// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order: within a stream, across streams, with the legacy default stream, with the host.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::client::{self, isolated};

#[test]
fn a_stream_is_first_in_first_out() {
    isolated("a_stream_is_first_in_first_out", &[], |cu, _| {
        cu.start();
        let (a, s) = (cu.alloc(1 << 12), cu.stream(1));
        // More than a channel holds, with a gate in front: each copy sees the fill before it and
        // not the one after it.
        for n in 0..1000 {
            ok!(cu.cuMemsetD32Async(a, n + 1, 1, s));
            ok!(cu.cuMemcpyDtoDAsync_v2(a + 4 + 4 * u64::from(n), a, 4, s));
        }
        ok!(cu.cuStreamSynchronize(s));
        assert_eq!(cu.words(a + 4, 1000), (1..=1000).collect::<Vec<_>>());
    });
}

#[test]
fn an_event_orders_two_streams() {
    isolated("an_event_orders_two_streams", &[], |cu, _| {
        cu.start();
        let (a, first, second, event) = (cu.alloc(64), cu.stream(1), cu.stream(1), cu.event());
        let gate = cu.gate(first);
        cu.fill(a, 5, 4, first);
        ok!(cu.cuEventRecord(event, first));
        cu.fill(a, 6, 4, first);
        ok!(cu.cuStreamWaitEvent(second, event, 0));
        ok!(cu.cuMemcpyDtoDAsync_v2(a + 32, a, 16, second));
        assert_eq!(cu.cuEventQuery(event), client::NOT_READY);
        assert_eq!(cu.cuStreamQuery(second), client::NOT_READY);
        gate.open();
        ok!(cu.cuEventSynchronize(event));
        ok!(cu.cuEventQuery(event));
        ok!(cu.cuStreamSynchronize(second));
        ok!(cu.cuStreamSynchronize(first));
        let seen = cu.words(a + 32, 4);
        assert!(seen == [5; 4] || seen == [6; 4], "{seen:?}: not before the event");
        // An event that was never recorded blocks no stream.
        ok!(cu.cuStreamWaitEvent(second, cu.event(), 0));
        ok!(cu.cuStreamSynchronize(second));
    });
}

#[test]
fn streams_without_an_event_do_not_wait() {
    isolated("streams_without_an_event_do_not_wait", &[], |cu, _| {
        cu.start();
        let (a, first, second) = (cu.alloc(64), cu.stream(1), cu.stream(1));
        let gate = cu.gate(first);
        cu.fill(a, 1, 4, first);
        cu.fill(a + 32, 2, 4, second);
        ok!(cu.cuStreamSynchronize(second));
        assert_eq!(cu.cuStreamQuery(first), client::NOT_READY);
        gate.open();
        ok!(cu.cuStreamSynchronize(first));
        assert_eq!(cu.words(a, 1), [1]);
        assert_eq!(cu.words(a + 32, 1), [2]);
    });
}

#[test]
fn the_legacy_stream_stands_behind_and_before_blocking_streams() {
    isolated(
        "the_legacy_stream_stands_behind_and_before_blocking_streams",
        &[],
        |cu, _| {
            cu.start();
            let (a, blocking, free) = (cu.alloc(64), cu.stream(0), cu.stream(1));
            let gate = cu.gate(blocking);
            cu.fill(a, 1, 1, blocking);
            // Legacy after blocking, blocking after legacy; a non-blocking stream independent of
            // both.
            ok!(cu.cuMemcpyDtoDAsync_v2(a + 4, a, 4, 0));
            let other = cu.stream(0);
            ok!(cu.cuMemcpyDtoDAsync_v2(a + 8, a + 4, 4, other));
            cu.fill(a + 12, 3, 1, free);
            ok!(cu.cuStreamSynchronize(free));
            assert_eq!(cu.cuStreamQuery(0), client::NOT_READY);
            assert_eq!(cu.cuStreamQuery(other), client::NOT_READY);
            gate.open();
            ok!(cu.cuStreamSynchronize(other));
            assert_eq!(cu.words(a, 4), [1, 1, 1, 3]);
        },
    );
}

#[test]
fn a_threads_own_default_stream_is_a_blocking_stream() {
    isolated("a_threads_own_default_stream_is_a_blocking_stream", &[], |cu, _| {
        let context = cu.start();
        let a = cu.alloc(64);
        let gate = cu.gate(2);
        // By the handle and by the flavour of the entry point the same stream, which another
        // thread's is not.
        ok!(cu.cuMemsetD32Async_ptsz(a, 7, 1, 0));
        assert_eq!(cu.cuStreamQuery(2), client::NOT_READY);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ok!(cu.cuCtxSetCurrent(context));
                ok!(cu.cuMemsetD32Async_ptsz(a + 4, 8, 1, 0));
                ok!(cu.cuStreamSynchronize(2));
            });
        });
        ok!(cu.cuMemcpyDtoDAsync_v2(a + 8, a, 8, 0));
        assert_eq!(
            cu.cuStreamQuery(0),
            client::NOT_READY,
            "the legacy stream stands behind it"
        );
        gate.open();
        ok!(cu.cuStreamSynchronize(0));
        assert_eq!(cu.words(a, 4), [7, 8, 7, 8]);
    });
}

static CALLS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static LET_GO: AtomicU32 = AtomicU32::new(0);

extern "C" fn note(data: usize) {
    CALLS.lock().unwrap().push(data);
}

extern "C" fn note_callback(_stream: usize, status: u32, data: usize) {
    CALLS.lock().unwrap().push(data + 1000 * status as usize);
}

extern "C" fn stay(_data: usize) {
    while LET_GO.load(Ordering::Acquire) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn host_functions_run_in_their_place() {
    isolated("host_functions_run_in_their_place", &[], |cu, _| {
        cu.start();
        let (a, s, pinned) = (cu.alloc(16), cu.stream(1), cu.pinned(4));
        let gate = cu.gate(s);
        ok!(cu.cuLaunchHostFunc(s, note, 1));
        ok!(cu.cuStreamAddCallback(s, note_callback, 2, 0));
        cu.fill(a, 9, 1, s);
        ok!(cu.cuLaunchHostFunc(s, stay, 0));
        ok!(cu.cuMemcpyDtoHAsync_v2(pinned as *mut u8, a, 4, s));
        ok!(cu.cuLaunchHostFunc(s, note, 3));
        assert!(CALLS.lock().unwrap().is_empty(), "none before the gate opens");
        gate.open();
        // Nobody waits for the device here, and yet the calls come.
        client::until("two calls", || CALLS.lock().unwrap().len() == 2);
        assert_eq!(
            cu.cuStreamQuery(s),
            client::NOT_READY,
            "the stream stands at the function that stays"
        );
        LET_GO.store(1, Ordering::Release);
        ok!(cu.cuStreamSynchronize(s));
        assert_eq!(*CALLS.lock().unwrap(), [1, 2, 3]);
        ok!(cu.cuMemcpyHtoD_v2(a, pinned as *const u8, 4));
        assert_eq!(cu.words(a, 1), [9]);
    });
}

#[test]
fn a_spinning_kernel_ends_with_the_hosts_word() {
    isolated("a_spinning_kernel_ends_with_the_hosts_word", &[], |cu, _| {
        cu.start();
        let (a, s, word) = (cu.alloc(16), cu.stream(1), cu.pinned(4));
        let spin = cu.function("simgpu_spin\0");
        let (from, to) = (cu.event(), cu.event());
        ok!(cu.cuEventRecord(from, s));
        ok!(cu.launch(spin, &[word, 60_000_000_000], s));
        ok!(cu.cuEventRecord(to, s));
        cu.fill(a, 4, 1, s);
        assert_eq!(cu.cuStreamQuery(s), client::NOT_READY);
        // A plain store of the host's, with no call into the driver.
        let side = cu.pinned(4);
        assert_ne!(side, word);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(cu.cuStreamQuery(s), client::NOT_READY);
        client::store(word, 1);
        ok!(cu.cuStreamSynchronize(s));
        assert_eq!(cu.words(a, 1), [4]);
        let mut milliseconds = 0.0;
        ok!(cu.cuEventElapsedTime_v2(&mut milliseconds, from, to));
        assert!((10.0..50_000.0).contains(&milliseconds), "{milliseconds}");
        // Without the word it gives up by itself.
        let word = cu.pinned(4);
        ok!(cu.launch(spin, &[word, 3_000_000], s));
        ok!(cu.cuStreamSynchronize(s));
    });
}

#[test]
fn written_words_are_seen_though_nobody_waits() {
    isolated("written_words_are_seen_though_nobody_waits", &[], |cu, _| {
        cu.start();
        let (s, word) = (cu.stream(1), cu.pinned(8));
        ok!(cu.cuStreamWriteValue32_v2(s, word, 42, 0));
        client::until("the word", || client::load(word) == 42);
        assert_eq!(
            cu.cuStreamWriteValue32_v2(s, word + 2, 1, 0),
            client::INVALID_VALUE,
            "not aligned"
        );
        // A copy into pinned memory too.
        let a = cu.alloc(4);
        ok!(cu.cuMemsetD32Async(a, 43, 1, s));
        ok!(cu.cuMemcpyDtoHAsync_v2(word as *mut u8, a, 4, s));
        client::until("the copied word", || client::load(word) == 43);
    });
}

#[test]
fn event_times_are_the_devices() {
    isolated("event_times_are_the_devices", &[], |cu, _| {
        cu.start();
        let (s, from, to) = (cu.stream(1), cu.event(), cu.event());
        let a = cu.alloc(64 << 20);
        ok!(cu.cuMemcpyDtoDAsync_v2(a, a, 4, s));
        let host = cu.pinned(64 << 20);
        // All of it is there before the first of it runs: this process's delays are no device time.
        let gate = cu.gate(s);
        ok!(cu.cuEventRecord(from, s));
        ok!(cu.cuMemcpyHtoDAsync_v2(a, host as *const u8, 64 << 20, s));
        ok!(cu.cuEventRecord(to, s));
        gate.open();
        let mut milliseconds = -1.0;
        ok!(cu.cuEventSynchronize(to));
        ok!(cu.cuEventElapsedTime_v2(&mut milliseconds, from, to));
        // 64 MiB at 22.2 GB/s are 3.0 ms on the device, however busy this machine is.
        assert!((2.9..3.3).contains(&milliseconds), "{milliseconds}");
        ok!(cu.cuEventElapsedTime_v2(&mut milliseconds, to, from));
        assert!(milliseconds < 0.0);
        assert_eq!(
            cu.cuEventElapsedTime_v2(&mut milliseconds, from, cu.event()),
            client::INVALID_HANDLE
        );
    });
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`, allowed.
const DEPENDENT: [u64; 9] = [6, 1, 0, 0, 0, 0, 0, 0, 0];

/// Device time of eleven fills of one place in one stream, each with these attributes, ns.
fn chain(cu: &client::Cuda, attributes: &[[u64; 9]]) -> f32 {
    let (a, s, from, to) = (cu.alloc(16), cu.stream(1), cu.event(), cu.event());
    let fill = cu.function("simgpu_fill\0");
    let gate = cu.gate(s);
    ok!(cu.cuEventRecord(from, s));
    for value in 1..=11 {
        ok!(cu.launch_with(fill, &[a, value, 1], s, attributes));
    }
    ok!(cu.cuEventRecord(to, s));
    gate.open();
    ok!(cu.cuEventSynchronize(to));
    let mut milliseconds = 0.0;
    ok!(cu.cuEventElapsedTime_v2(&mut milliseconds, from, to));
    assert_eq!(cu.words(a, 1), [11], "the last one wrote last");
    milliseconds * 1e6
}

fn saved_by_dependence(cu: &client::Cuda) -> f32 {
    cu.start();
    let not_allowed = [6, 0, 0, 0, 0, 0, 0, 0, 0];
    let (plain, other) = (chain(cu, &[]), chain(cu, &[not_allowed]));
    assert!((plain - other).abs() < 50.0, "{plain} {other}");
    plain - chain(cu, &[DEPENDENT])
}

#[test]
fn dependent_launches_overlap_on_an_h100() {
    let model = ("SIMGPU_MODEL", "h100");
    isolated("dependent_launches_overlap_on_an_h100", &[model], |cu, _| {
        // Ten gaps of 1.2 us, and ten times the 0.86 us by which a dependent kernel is early.
        let saved = saved_by_dependence(cu);
        assert!((saved - 20_600.0).abs() < 50.0, "{saved}");
    });
}

#[test]
fn dependent_launches_do_not_overlap_on_an_a100() {
    isolated("dependent_launches_do_not_overlap_on_an_a100", &[], |cu, _| {
        let saved = saved_by_dependence(cu);
        assert!(saved.abs() < 50.0, "{saved}");
    });
}

#[test]
fn an_event_of_a_launch_comes_with_its_kernel() {
    isolated("an_event_of_a_launch_comes_with_its_kernel", &[], |cu, _| {
        cu.start();
        // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT.
        for attribute in [7, 12] {
            let (a, first, second, word) = (cu.alloc(16), cu.stream(1), cu.stream(1), cu.pinned(4));
            let spin = cu.function("simgpu_spin\0");
            let recorded_by = |event| [attribute, event as u64, 0, 0, 0, 0, 0, 0, 0];
            let mut event = 0;
            ok!(cu.cuEventCreate(&mut event, 2));
            let with_time = recorded_by(cu.event());
            let params = [word, 60_000_000_000];
            assert_eq!(
                cu.launch_with(spin, &params, first, &[with_time]),
                client::INVALID_VALUE
            );
            assert_eq!(
                cu.launch_with(spin, &params, first, &[recorded_by(1)]),
                client::INVALID_HANDLE
            );
            ok!(cu.launch_with(spin, &params, first, &[recorded_by(event)]));
            ok!(cu.cuStreamWaitEvent(second, event, 0));
            cu.fill(a, attribute as u32, 1, second);
            assert_eq!(cu.cuEventQuery(event), client::NOT_READY);
            assert_eq!(cu.cuStreamQuery(second), client::NOT_READY);
            client::store(word, 1);
            ok!(cu.cuEventSynchronize(event));
            ok!(cu.cuStreamSynchronize(second));
            assert_eq!(cu.words(a, 1), [attribute as u32]);
        }
    });
}

#[test]
fn a_destroyed_stream_ends_its_work() {
    isolated("a_destroyed_stream_ends_its_work", &[], |cu, _| {
        cu.start();
        let (a, s, event) = (cu.alloc(16), cu.stream(1), cu.event());
        let gate = cu.gate(s);
        cu.fill(a, 3, 1, s);
        ok!(cu.cuEventRecord(event, s));
        ok!(cu.cuStreamDestroy_v2(s));
        assert_eq!(cu.cuStreamQuery(s), client::INVALID_HANDLE);
        gate.open();
        ok!(cu.cuEventSynchronize(event));
        assert_eq!(cu.words(a, 1), [3]);
    });
}

#[test]
fn what_streams_leave_behind_keeps_its_place() {
    isolated("what_streams_leave_behind_keeps_its_place", &[], |cu, _| {
        let context = cu.start();
        let a = cu.alloc(64);
        // A destroyed blocking stream's work stays ahead of the legacy stream.
        let s = cu.stream(0);
        let gate = cu.gate(s);
        cu.fill(a, 1, 1, s);
        ok!(cu.cuStreamDestroy_v2(s));
        ok!(cu.cuMemcpyDtoDAsync_v2(a + 4, a, 4, 0));
        assert_eq!(cu.cuStreamQuery(0), client::NOT_READY);
        gate.open();
        ok!(cu.cuStreamSynchronize(0));
        assert_eq!(cu.words(a, 2), [1, 1]);
        // A thread that ends leaves its own default stream's work, which the context waits for.
        let word = cu.pinned(4);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ok!(cu.cuCtxSetCurrent(context));
                ok!(cu.cuStreamWaitValue32_v2(2, word, 1, 1));
                ok!(cu.cuMemsetD32Async(a + 8, 5, 1, 2));
            });
        });
        std::thread::scope(|scope| {
            let all = scope.spawn(|| {
                ok!(cu.cuCtxSetCurrent(context));
                ok!(cu.cuCtxSynchronize());
            });
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(!all.is_finished());
            client::store(word, 1);
        });
        assert_eq!(cu.words(a + 8, 1), [5]);
    });
}

#[test]
fn a_full_stream_stops_nobody_else() {
    isolated("a_full_stream_stops_nobody_else", &[], |cu, _| {
        let context = cu.start();
        let (a, full) = (cu.alloc(64), cu.stream(0));
        let gate = cu.gate(full);
        let done = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ok!(cu.cuCtxSetCurrent(context));
                for n in 1..=3000 {
                    ok!(cu.cuMemsetD32Async(a, n, 1, full));
                }
                done.store(1, Ordering::Release);
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(done.load(Ordering::Acquire), 0, "more than a channel holds");
            // Another blocking stream of the same context continues, and opens the gate.
            let other = cu.stream(0);
            ok!(cu.cuMemsetD32Async(a + 4, 7, 1, other));
            ok!(cu.cuStreamSynchronize(other));
            gate.open();
        });
        ok!(cu.cuStreamSynchronize(full));
        assert_eq!(cu.words(a, 2), [3000, 7]);
    });
}

#[test]
fn threads_do_not_disturb_each_other() {
    isolated("threads_do_not_disturb_each_other", &[], |cu, _| {
        let context = cu.start();
        std::thread::scope(|scope| {
            for thread in 0..6u32 {
                scope.spawn(move || {
                    ok!(cu.cuCtxSetCurrent(context));
                    // Streams of all kinds: blocking, non-blocking, the legacy one, the thread's
                    // own.
                    let streams = [cu.stream(0), cu.stream(1), 0, 2];
                    let (a, b, pinned, event) = (cu.alloc(4096), cu.alloc(4096), cu.pinned(64), cu.event());
                    for round in 0..300u32 {
                        let value = thread << 16 | round;
                        let at = |n: u32| streams[((round + n + thread) % 4) as usize];
                        ok!(cu.cuMemsetD32Async(a, value, 16, at(0)));
                        ok!(cu.cuEventRecord(event, at(0)));
                        ok!(cu.cuStreamWaitEvent(at(1), event, 0));
                        ok!(cu.cuMemcpyDtoDAsync_v2(b, a, 64, at(1)));
                        ok!(cu.cuEventRecord(event, at(1)));
                        ok!(cu.cuStreamWaitEvent(at(2), event, 0));
                        let mut block = 0;
                        ok!(cu.cuMemAllocAsync(&mut block, 64, at(2)));
                        ok!(cu.cuMemcpyDtoDAsync_v2(block, b, 64, at(2)));
                        ok!(cu.cuMemcpyDtoHAsync_v2(pinned as *mut u8, block, 64, at(2)));
                        ok!(cu.cuMemFreeAsync(block, at(2)));
                        if round % 16 == 0 {
                            ok!(cu.cuLaunchHostFunc(at(2), note, value as usize));
                        }
                        ok!(cu.cuStreamSynchronize(at(2)));
                        assert_eq!(client::load(pinned + 60), value, "thread {thread} round {round}");
                    }
                });
            }
        });
        assert_eq!(CALLS.lock().unwrap().len(), 6 * 300usize.div_ceil(16));
    });
}

#[test]
fn a_stream_has_the_priority_that_it_was_given_last() {
    isolated("a_stream_has_the_priority_that_it_was_given_last", &[], |cu, _| {
        const PRIORITY: u32 = 8;
        cu.start();
        let make = |priority| {
            let mut stream = 0;
            ok!(cu.cuStreamCreateWithPriority(&mut stream, 1, priority));
            stream
        };
        let of = |stream| {
            let (mut priority, mut value) = (9, [9; 16]);
            ok!(cu.cuStreamGetPriority(stream, &mut priority));
            ok!(cu.cuStreamGetAttribute(stream, PRIORITY, &mut value));
            assert_eq!(value[0], priority);
            priority
        };
        let streams = [0, -1, -3, -100, 7].map(make);
        assert_eq!(streams.map(of), [0, -1, -3, -5, 0]);
        let mut value = [0; 16];
        value[0] = -2;
        ok!(cu.cuStreamSetAttribute(streams[0], PRIORITY, &value));
        value[0] = -200;
        ok!(cu.cuStreamSetAttribute(streams[1], PRIORITY, &value));
        ok!(cu.cuStreamCopyAttributes(streams[4], streams[2]));
        assert_eq!(streams.map(of), [-2, -5, -3, -5, -3]);
    });
}
