// SPDX-License-Identifier: MIT OR Apache-2.0
//! REEF's rule as far as a GPU with a closed driver allows it, REEF-N (OSDI'22; source 1f14e33,
//! `src/reef/server/scheduler.cpp`). The paper's full text was not at hand.
//!
//! From the source: while a real-time task is present, from its arrival to its end, best-effort
//! kernels are not launched, and those on the device are removed. Otherwise each best-effort queue
//! has as many kernels on the device as its device queue holds (`be_stream_device_queue_cap`, 2),
//! and the rest waits in a queue of the host. A real-time task's arrival clears the host queue.
//! Each best-effort kernel of the device queue begins with a look at a flag and ends at once if the
//! flag is set. On AMD's open driver the running kernel is killed; on NVIDIA's the task waits for
//! it.
//!
//! Not in the source, which is for AMD's devices: the number of kernels that REEF-N leaves on the
//! device; the same number is used.
//!
//! Names: a real-time task is a request of the most important job. Best-effort kernels that are on
//! the device but have not begun cannot be taken back here. The device's priorities stand in for
//! that: these kernels run when the request leaves the device idle, at most one per request and
//! job. Dynamic kernel padding (blocks of best-effort kernels in the SMs that a real-time kernel
//! leaves) is left out, because kernels take turns on the device here. Batch work is reported too
//! low by that amount.
#![forbid(unsafe_code)]

use weft_player::rule::{JobView, PlayedRule};

use crate::Ns;

/// Kernels of a best-effort queue on the device.
const DEVICE_QUEUE: usize = 2;

/// The rule.
#[derive(Debug)]
pub struct Reef;

impl PlayedRule for Reef {
    fn may_launch(&mut self, _now: Ns, job: usize, jobs: &[JobView]) -> bool {
        if jobs[job].is_foreground(jobs) {
            return true;
        }
        let real_time = jobs.iter().any(|view| view.is_foreground(jobs) && view.in_request);
        !real_time && jobs[job].outstanding < DEVICE_QUEUE
    }

    fn device_priorities(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_goes_in_a_request_and_two_are_on_the_device_else() {
        let mut rule = Reef;
        let mut jobs = [
            JobView::default(),
            JobView {
                priority: 5,
                ..JobView::default()
            },
        ];
        assert!(rule.may_launch(0, 1, &jobs));
        jobs[1].outstanding = 1;
        assert!(rule.may_launch(0, 1, &jobs));
        jobs[1].outstanding = 2;
        assert!(!rule.may_launch(0, 1, &jobs));
        jobs[1].outstanding = 0;
        jobs[0].in_request = true;
        assert!(!rule.may_launch(0, 1, &jobs));
        assert!(rule.may_launch(0, 0, &jobs));
    }
}
