// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weft's queries to the driver about the calling thread's context and about addresses.

use crate::driver::abi::{CuContext, CuDevice, CuDevicePtr, CuResult};
use crate::driver::calls;

/// CU_POINTER_ATTRIBUTE_IS_MANAGED.
const IS_MANAGED: u32 = 8;

/// The calling thread's context; 0: none. A thread-local query, allowed at any time.
pub fn current_context() -> CuContext {
    let mut context = 0;
    // SAFETY: valid out-parameter.
    let asked = unsafe { calls::cuCtxGetCurrent(&mut context) };
    if asked.ok() { context } else { 0 }
}

pub fn here() -> Option<(CuDevice, CuContext)> {
    let context = Some(current_context()).filter(|context| *context != 0)?;
    let mut device = 0;
    // SAFETY: valid out-parameter.
    let asked = unsafe { calls::cuCtxGetDevice(&mut device) };
    asked.ok().then_some((device, context))
}

/// Runs driver calls in a context. The error, if it cannot be current.
pub fn within<T>(context: CuContext, work: impl FnOnce() -> Result<T, CuResult>) -> Result<T, CuResult> {
    // SAFETY: the driver has named this context, and no hook has seen its end.
    let pushed = unsafe { calls::cuCtxPushCurrent_v2(context) };
    if !pushed.ok() {
        return Err(pushed);
    }
    let done = work();
    let mut popped = context;
    // SAFETY: the out-parameter is valid; the context was pushed above.
    let _ = unsafe { calls::cuCtxPopCurrent_v2(&mut popped) };
    done
}

/// Free memory of the current context's device, bytes.
pub fn free_memory() -> Option<u64> {
    memory().map(|(free, _)| free)
}

/// Free and total memory of the current context's device, bytes.
pub fn memory() -> Option<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: valid out-parameters.
    let asked = unsafe { calls::cuMemGetInfo_v2(&mut free, &mut total) };
    asked.ok().then_some((free as u64, total as u64))
}

/// Whether the driver knows managed memory at this address.
pub fn is_managed(at: CuDevicePtr) -> bool {
    let mut managed = 0u32;
    // SAFETY: the attribute is an int.
    let asked = unsafe { calls::cuPointerGetAttribute((&raw mut managed).cast(), IS_MANAGED, at) };
    asked.ok() && managed == 1
}
