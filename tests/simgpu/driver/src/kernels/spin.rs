// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that spin on a word of the host: our own, and the kernel with which XLA's auto-tuner
//! holds the device back.
//!
//! They run on the device as *held* kernels: the driver watches the word and notifies the device
//! when it changes. The simulated device runs one kernel at a time, so kernels of other streams
//! also wait behind a spinning one. A program whose word is set by another of its own kernels waits
//! for the limit.
#![forbid(unsafe_code)]

use super::call::{Call, KernelEffect, KernelFault, Spin, Until};

/// `simgpu_spin(word, limit)`.
pub(super) fn ours(call: &Call<'_>) -> Result<Spin, KernelFault> {
    Ok(Spin {
        word: call.unsigned(0)?,
        until: Until::NotZero,
        limit: call.unsigned(1)?,
        given_up: None,
    })
}

/// XLA's `DelayKernel(volatile GpuSemaphoreState *semaphore, GpuSemaphoreState target)`: gives up
/// after 2e8 cycles and then sets the state "timed out", 2.
fn delay(call: &Call<'_>) -> Result<Spin, KernelFault> {
    /// 2e8 cycles at the boost clock of the simulated device, 1.41 GHz, rounded to the client's
    /// expectation: about 100 ms.
    const LIMIT_NS: u64 = 141_800_000;
    let target = u32::try_from(call.unsigned(1)?).map_err(|_| KernelFault::Parameters)?;
    Ok(Spin {
        word: call.unsigned(0)?,
        until: Until::Equals(target),
        limit: LIMIT_NS,
        given_up: Some(2),
    })
}

pub(super) fn find(name: &str) -> Option<KernelEffect> {
    (name.contains("stream_executor") && name.contains("11DelayKernel")).then_some(KernelEffect::Spin(delay))
}
