// SPDX-License-Identifier: MIT OR Apache-2.0
//! Profiler control and logs: accepted, without effect.
#![deny(unsafe_code)]

use crate::abi::{Handle, Out};
use crate::export::export;
use crate::state;

export! {
    fn cuProfilerStart() {
        state::driver().map(drop)
    }

    fn cuProfilerStop() {
        state::driver().map(drop)
    }

    fn cuLogsRegisterCallback(function: usize, data: usize, handle: Out<Handle>) {
        let _ = (function, data);
        // There are no messages, so the function is never called.
        handle.set(1)
    }

    fn cuLogsUnregisterCallback(handle: Handle) {
        let _ = handle;
        Ok(())
    }
}
