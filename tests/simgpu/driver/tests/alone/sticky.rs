// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error that a failed kernel leaves behind: all calls about work in its context answer it from
//! then on.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::client::{self, Cuda, SUCCESS, isolated};

const ILLEGAL_ADDRESS: u32 = 700;
const LAUNCH_FAILED: u32 = 719;

/// The status that callbacks got.
static TOLD: AtomicU32 = AtomicU32::new(u32::MAX);
static CALLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn called(_: usize) {
    CALLED.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn told(_: usize, status: u32, _: usize) {
    TOLD.store(status, Ordering::Relaxed);
}

/// All calls about work answer `error`; other calls work.
fn is_broken(cu: &Cuda, error: u32, (event, stream, at): (usize, usize, u64)) {
    let mut word = [0; 4];
    let mut other = 0;
    let mut memory = 0;
    assert_eq!(cu.cuCtxSynchronize(), error);
    assert_eq!(cu.cuStreamSynchronize(0), error);
    assert_eq!(cu.cuStreamSynchronize(stream), error);
    assert_eq!(cu.cuStreamQuery(stream), error);
    assert_eq!(cu.cuEventRecord(event, stream), error);
    assert_eq!(cu.cuEventQuery(event), error);
    assert_eq!(cu.cuEventSynchronize(event), error);
    assert_eq!(cu.launch(cu.function("simgpu_fill\0"), &[at, 1, 4], stream), error);
    assert_eq!(cu.cuMemcpyDtoH_v2(word.as_mut_ptr(), at, 4), error);
    assert_eq!(cu.cuMemAlloc_v2(&mut memory, 256), error);
    assert_eq!(cu.cuMemFree_v2(at), error);
    assert_eq!(cu.cuStreamCreate(&mut other, 0), error);
    assert_eq!(cu.cuEventCreate(&mut other, 0), error);
    assert_eq!(cu.cuEventDestroy_v2(event), error);
    assert_eq!(cu.cuStreamDestroy_v2(stream), error);
    assert_eq!(cu.cuModuleUnload(cu.module()), error);
    let (mut version, mut context, mut text) = (0, 0, std::ptr::null());
    ok!(cu.cuDriverGetVersion(&mut version));
    ok!(cu.cuCtxGetCurrent(&mut context));
    ok!(cu.cuCtxSetCurrent(context));
    ok!(cu.cuGetErrorName(error, &mut text));
    ok!(cu.cuDeviceGetCount(&mut version));
    ok!(cu.cuDevicePrimaryCtxRelease_v2(0));
}

#[test]
fn an_illegal_address_stays() {
    isolated("an_illegal_address_stays", &[], |cu, _| {
        cu.start();
        let (event, stream, at) = (cu.event(), cu.stream(1), cu.alloc(4096));
        let gate = cu.gate(stream);
        // Memory that was never allocated.
        ok!(cu.launch(cu.function("simgpu_fill\0"), &[0xdead_0000, 1, 4], stream));
        ok!(cu.cuLaunchHostFunc(stream, called, 0));
        ok!(cu.cuStreamAddCallback(stream, told, 0, 0));
        ok!(cu.cuEventRecord(event, stream));
        gate.open_soon();
        assert_eq!(cu.cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
        client::until("the callback is told", || {
            TOLD.load(Ordering::Relaxed) == ILLEGAL_ADDRESS
        });
        assert_eq!(
            CALLED.load(Ordering::Relaxed),
            0,
            "a host function ran behind a failed kernel"
        );
        is_broken(cu, ILLEGAL_ADDRESS, (event, stream, at));
    });
}

#[test]
fn a_launch_fails_that_was_said_to() {
    let said = [("SIMGPU_FAULT", "simgpu_fi:3:719")];
    isolated("a_launch_fails_that_was_said_to", &said, |cu, _| {
        cu.start();
        let (event, stream, at) = (cu.event(), cu.stream(1), cu.alloc(4096));
        for number in 1..=3 {
            // Other kernels do not fail.
            ok!(cu.launch(cu.function("simgpu_copy\0"), &[at, at + 64, 4], stream));
            cu.fill(at, number, 4, stream);
            let expected = if number < 3 { SUCCESS } else { LAUNCH_FAILED };
            assert_eq!(cu.cuCtxSynchronize(), expected, "launch {number}");
        }
        is_broken(cu, LAUNCH_FAILED, (event, stream, at));
    });
}

/// Work of other contexts continues, and so does that of other processes.
#[test]
fn a_failed_kernel_breaks_its_context_alone() {
    isolated("a_failed_kernel_breaks_its_context_alone", &[], |cu, _| {
        let primary = cu.start();
        let at = cu.alloc(4096);
        let (mut context, mut taken) = (0, 0);
        ok!(cu.cuCtxCreate_v2(&mut context, 0, 0));
        ok!(cu.launch(cu.function("simgpu_fill\0"), &[8, 1, 4], 0));
        assert_eq!(cu.cuCtxSynchronize(), ILLEGAL_ADDRESS);
        ok!(cu.cuCtxPopCurrent_v2(&mut taken));
        assert_eq!(taken, context);
        ok!(cu.cuCtxSetCurrent(primary));
        cu.fill(at, 7, 4, 0);
        assert_eq!(cu.words(at, 4), [7; 4]);
        ok!(cu.cuCtxDestroy_v2(context));
    });
}
