// SPDX-License-Identifier: MIT OR Apache-2.0
//! MPS with client priorities, and no launch control between jobs and device: NVIDIA's own means
//! without a scheduler (`CUDA_MPS_CLIENT_PRIORITY`; stream priorities within one process).
//!
//! From the documentation: if several clients have work, that of the client of higher priority goes
//! first. The meaning within the device is not documented. Here, kernel by kernel: among the ready
//! kernels the most important job's begins first, and running kernels are not stopped. Under time
//! slices it does nothing.
#![forbid(unsafe_code)]

use super::{JobView, PlayedRule};
use crate::Ns;

/// The rule.
#[derive(Debug)]
pub struct MpsPriority;

impl PlayedRule for MpsPriority {
    fn may_launch(&mut self, _now: Ns, _job: usize, _jobs: &[JobView]) -> bool {
        true
    }

    fn device_priorities(&self) -> bool {
        true
    }
}
