// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls with a destroyed handle: refused by default, the end of the process if that is asked for.

use std::os::unix::process::ExitStatusExt;

use crate::client::{Cuda, Handle, INVALID_HANDLE, SUCCESS, ends, isolated};

/// Each way to use a handle that is gone, with the call and the kind that the line has to name.
type Misuse = (&'static str, &'static str, fn(&Cuda) -> u32);

const MISUSES: &[Misuse] = &[
    ("cuStreamSynchronize", "CUstream", |cu| {
        let stream = cu.stream(1);
        assert_eq!(cu.cuStreamDestroy_v2(stream), SUCCESS);
        cu.cuStreamSynchronize(stream)
    }),
    ("cuEventRecord", "CUevent", |cu| {
        let event = cu.event();
        assert_eq!(cu.cuEventDestroy_v2(event), SUCCESS);
        cu.cuEventRecord(event, 0)
    }),
    ("cuEventDestroy_v2", "CUevent", |cu| {
        let event = cu.event();
        assert_eq!(cu.cuEventDestroy_v2(event), SUCCESS);
        cu.cuEventDestroy_v2(event)
    }),
    // Objects that a context takes along.
    ("cuEventQuery", "CUevent", |cu| {
        let mut context: Handle = 0;
        assert_eq!(cu.cuCtxCreate_v2(&mut context, 0, 0), SUCCESS);
        let event = cu.event();
        assert_eq!(cu.cuCtxDestroy_v2(context), SUCCESS);
        cu.cuEventQuery(event)
    }),
    ("cuLaunchKernel", "CUfunction", |cu| {
        let function = cu.function("simgpu_copy\0");
        assert_eq!(cu.cuModuleUnload(cu.module()), SUCCESS);
        cu.launch(function, &[], 0)
    }),
    ("cuModuleGetFunction", "CUmodule", |cu| {
        let mut function = 0;
        cu.cuModuleGetFunction(&mut function, 0x0123_4560, c"simgpu_copy".as_ptr().cast())
    }),
];

#[test]
fn a_dead_handle_is_refused() {
    isolated("a_dead_handle_is_refused", &[], |cu, _| {
        cu.start();
        for (call, _, misuse) in MISUSES {
            assert_eq!(misuse(cu), INVALID_HANDLE, "{call}");
        }
    });
}

#[test]
fn a_dead_handle_ends_the_process_where_that_is_asked_for() {
    let strict = [("SIMGPU_DEAD_HANDLES", "abort")];
    isolated(
        "a_dead_handle_ends_the_process_where_that_is_asked_for",
        &strict,
        |cu, role| {
            if !role.is_empty() {
                cu.start();
                let (_, _, misuse) = MISUSES[role.parse::<usize>().unwrap()];
                misuse(cu);
                return;
            }
            cu.start();
            for (at, (call, kind, _)) in MISUSES.iter().enumerate() {
                let (status, said) = ends(&at.to_string());
                assert_eq!(status.signal(), Some(libc::SIGABRT), "{call}: {status}\n{said}");
                let line = said.lines().find(|line| line.contains("dead handle")).unwrap_or("");
                assert!(
                    line.contains(&format!("{call} with 0x")) && line.contains(&format!("no living {kind} ")),
                    "{said}"
                );
            }
        },
    );
}

/// A real driver also checks for null, and for a kernel's handle in place of a function's.
#[test]
fn what_a_driver_looks_at_is_refused_all_the_same() {
    let strict = [("SIMGPU_DEAD_HANDLES", "abort")];
    isolated("what_a_driver_looks_at_is_refused_all_the_same", &strict, |cu, _| {
        cu.start();
        assert_eq!(cu.cuEventRecord(0, 0), INVALID_HANDLE);
        let (mut library, mut kernel) = (0, 0);
        let ptx = concat!(include_str!("../../src/kernels/simgpu.ptx"), "\0");
        let none = std::ptr::null();
        ok!(cu.cuLibraryLoadData(&mut library, ptx.as_ptr(), none, none.cast(), 0, none, none.cast(), 0));
        ok!(cu.cuLibraryGetKernel(&mut kernel, library, c"simgpu_copy".as_ptr().cast()));
        let mut name = std::ptr::null();
        assert_eq!(cu.cuFuncGetName(&mut name, kernel), INVALID_HANDLE);
    });
}

#[test]
fn a_handle_is_given_out_again_where_that_is_asked_for() {
    let reuse = [("SIMGPU_DEAD_HANDLES", "reuse")];
    isolated(
        "a_handle_is_given_out_again_where_that_is_asked_for",
        &reuse,
        |cu, _| {
            cu.start();
            let (first, stream) = (cu.event(), cu.stream(1));
            ok!(cu.cuEventDestroy_v2(first));
            assert_eq!(cu.cuEventRecord(first, stream), INVALID_HANDLE, "nobody's yet");
            assert_eq!(cu.event(), first);
            ok!(cu.cuEventRecord(first, stream));
            ok!(cu.cuStreamDestroy_v2(stream));
            assert_eq!(cu.stream(0), stream);
        },
    );
}
