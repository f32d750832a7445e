//! MPS with client priorities, and nobody between jobs and device: what NVIDIA offers without any
//! scheduler (`CUDA_MPS_CLIENT_PRIORITY`; stream priorities within one process).
//!
//! What the documentation says: the work of a client of higher priority goes first where both have
//! some. It is silent on what that means within the device. Here, kernel by kernel: of the kernels
//! that are ready the most important job's begins first, and what runs is not stopped. Under time
//! slices it does nothing.
#![forbid(unsafe_code)]

use super::{JobView, LabPolicy};
use crate::Ns;

/// The rule.
#[derive(Debug)]
pub struct MpsPriority;

impl LabPolicy for MpsPriority {
    fn may_launch(&mut self, _now: Ns, _job: usize, _jobs: &[JobView]) -> bool {
        true
    }

    fn device_priorities(&self) -> bool {
        true
    }
}
