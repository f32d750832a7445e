// SPDX-License-Identifier: MIT OR Apache-2.0
//! Initialisation and the system's entry points.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::{Destination, NvmlError, R, export};
use crate::device::gpus;
use crate::{facts, live};

/// Initialisations of the client without a shutdown.
static USERS: AtomicU32 = AtomicU32::new(0);

/// Refuses calls before the first initialisation and after the last shutdown.
pub(crate) fn ready() -> R {
    if USERS.load(Ordering::Acquire) == 0 {
        Err(NvmlError::UNINITIALIZED)
    } else {
        Ok(())
    }
}

fn init() -> R {
    USERS.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

export! {
    fn nvmlInit() {
        init()
    }

    fn nvmlInit_v2() {
        init()
    }

    fn nvmlInitWithFlags(flags: u32) {
        let _ = flags;
        init()
    }

    fn nvmlShutdown() {
        let less = |users: u32| users.checked_sub(1);
        USERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).map_err(|_| NvmlError::UNINITIALIZED)?;
        Ok(())
    }

    fn nvmlSystemGetDriverVersion(version: Destination<u8>, room: u32) {
        ready()?;
        version.text(room, facts::DRIVER)
    }

    fn nvmlSystemGetNVMLVersion(version: Destination<u8>, room: u32) {
        ready()?;
        // NVML's is the driver's behind the interface's number.
        version.text(room, &format!("13.{}", facts::DRIVER))
    }

    fn nvmlSystemGetCudaDriverVersion(version: Destination<i32>) {
        version.set(facts::CUDA)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Destination<i32>) {
        version.set(facts::CUDA)
    }

    fn nvmlSystemGetProcessName(pid: u32, name: Destination<u8>, room: u32) {
        ready()?;
        let all = gpus().iter().flat_map(|gpu| std::iter::once(&gpu.whole).chain(&gpu.instances));
        let mut text = all.into_iter().find_map(|device| live::process_name(device, pid)).ok_or(NvmlError::NOT_FOUND)?;
        text.truncate((room as usize).saturating_sub(1));
        name.text(room, &text)
    }

    fn nvmlSystemGetConfComputeState(state: Destination<[u32; 3]>) {
        // Environment, feature, tools: all off.
        ready()?;
        state.set([0; 3])
    }

    fn nvmlUnitGetCount(count: Destination<u32>) {
        ready()?;
        count.set(0)
    }
}

/// The text of a result.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: u32) -> *const c_char {
    let text: &CStr = match result {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        13 => c"Function Not Found",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
