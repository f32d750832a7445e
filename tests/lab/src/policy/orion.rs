// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orion's rule (EuroSys'24; source 0b898e6, `busy_wait_profile` of
//! `src/scheduler/scheduler_eval.cpp`). The paper's full text was not at hand.
//!
//! From the source: clients' calls go into queues without a bound, which one thread polls. The
//! high-priority client's next operation goes at once. In each poll, one operation of each
//! best-effort client may go:
//!
//! * a copy, a fill, an allocation: at once;
//! * a kernel, while the high-priority client has launched nothing of a request: at once;
//! * otherwise a kernel that takes at most `sm_threshold` SMs (all of the device's, if the
//!   high-priority client is a service) and whose class is not that of the high-priority client's
//!   last kernel. Compute and memory are classes; a kernel of no class differs from every other.
//!
//! If the best-effort kernels that went since all had ended exceed `depth` in sum, all must end
//! before the next. The high-priority client's stream has the highest priority. `depth` is set by
//! hand in the source's experiments: 160 us with ResNet50, 100 us with MobileNetV2. According to
//! others the paper names 2.5 % of a request, which fits both; that is used here.
//!
//! Not in the source: graphs. Here one counts as a kernel of all SMs.
//!
//! Names: the high-priority client is the most important job (or jobs); the best-effort clients are
//! the others. Its profile by Nsight Compute is [`weft_player::rule::LaunchView`]. Recordings have
//! no counters, so the class follows from the kernel's name. The first ten iterations of a
//! best-effort client, which go unconditionally in the source, are left out. The SMs of kernels of
//! one poll are not added up. If kernels take turns on the device, no kernel gains by running
//! together with another: that half of Orion is not judged.
#![forbid(unsafe_code)]

use weft_player::rule::{JobView, KernelClass, KernelNeeds, PlayedRule};

use crate::Ns;

/// Best-effort work in flight, in thousandths of a request of the high-priority client.
const DEPTH_PERMILLE: u64 = 25;

/// The rule.
#[derive(Debug)]
pub struct Orion {
    /// SMs that a best-effort kernel may take while the high-priority client's kernel runs.
    sm_threshold: u32,
    /// Sum of the best-effort work that went since all had ended, ns.
    sum: Ns,
    /// Whether the sum exceeded the depth: then all must end.
    large_found: bool,
}

impl Orion {
    /// The rule for a device of this many SMs.
    pub fn new(sms: u32) -> Orion {
        Orion {
            sm_threshold: sms,
            sum: 0,
            large_found: false,
        }
    }

    /// Whether a kernel may go next to the high-priority client's last one.
    fn fits_beside(&self, kernel: KernelNeeds, beside: KernelNeeds) -> bool {
        let unlike = kernel.class == KernelClass::Neither
            || beside.class == KernelClass::Neither
            || kernel.class != beside.class;
        kernel.sms <= self.sm_threshold && unlike
    }
}

impl PlayedRule for Orion {
    fn may_launch(&mut self, _now: Ns, job: usize, jobs: &[JobView]) -> bool {
        let (own, next) = (jobs[job], jobs[job].next);
        let high = || jobs.iter().filter(|view| view.is_foreground(jobs));
        if own.is_foreground(jobs) || next.transfer {
            return true;
        }
        let mut active = high().filter(|view| view.in_request);
        if !active.all(|view| self.fits_beside(next.needs, view.last.needs)) {
            return false;
        }
        if self.large_found {
            let out = jobs.iter().filter(|view| !view.is_foreground(jobs));
            if out.map(|view| view.outstanding).sum::<usize>() > 0 {
                return false;
            }
            (self.large_found, self.sum) = (false, 0);
        }
        true
    }

    fn launched(&mut self, _now: Ns, job: usize, jobs: &[JobView]) {
        let (own, last) = (jobs[job], jobs[job].last);
        if own.is_foreground(jobs) || last.transfer {
            return;
        }
        let high = jobs.iter().filter(|view| view.is_foreground(jobs));
        let request = high.map(|view| view.request_time).min().unwrap_or(0);
        self.sum += last.time;
        self.large_found |= self.sum > request * DEPTH_PERMILLE / 1_000;
    }

    fn device_priorities(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {

    use weft_player::rule::LaunchView;

    use super::*;
    use crate::{MS, US};

    fn kernel(sms: u32, class: KernelClass, time: Ns) -> LaunchView {
        LaunchView {
            time,
            needs: KernelNeeds {
                sms,
                blocks: sms,
                class,
            },
            transfer: false,
        }
    }

    /// A service of 10 ms whose last kernel was a matrix product, in a request or not, and a batch
    /// job that wants to launch this kernel.
    fn jobs(in_request: bool, next: LaunchView) -> [JobView; 2] {
        let service = JobView {
            in_request,
            request_time: 10 * MS,
            last: kernel(50, KernelClass::Compute, 20 * US),
            ..JobView::default()
        };
        let batch = JobView {
            priority: 5,
            next,
            ..JobView::default()
        };
        [service, batch]
    }

    #[test]
    fn between_requests_everything_goes() {
        let mut rule = Orion::new(108);
        let next = kernel(400, KernelClass::Compute, 100 * US);
        assert!(rule.may_launch(0, 1, &jobs(false, next)));
        assert!(!rule.may_launch(0, 1, &jobs(true, next)));
        assert!(rule.may_launch(0, 0, &jobs(true, next)));
    }

    #[test]
    fn in_a_request_a_small_kernel_of_another_class_goes() {
        let mut rule = Orion::new(108);
        let goes = |rule: &mut Orion, next| rule.may_launch(0, 1, &jobs(true, next));
        assert!(goes(&mut rule, kernel(108, KernelClass::Memory, 100 * US)));
        assert!(!goes(&mut rule, kernel(109, KernelClass::Memory, 100 * US)));
        assert!(!goes(&mut rule, kernel(1, KernelClass::Compute, 100 * US)));
        assert!(goes(&mut rule, kernel(1, KernelClass::Neither, 100 * US)));
        let copy = LaunchView {
            transfer: true,
            ..LaunchView::default()
        };
        assert!(goes(&mut rule, copy));
    }

    #[test]
    fn beyond_the_depth_all_must_end() {
        let mut rule = Orion::new(108);
        let mut jobs = jobs(false, kernel(10, KernelClass::Memory, 100 * US));
        // 2.5 % of 10 ms: the third kernel exceeds it.
        for out in 1..=3 {
            assert!(rule.may_launch(0, 1, &jobs), "{out}");
            (jobs[1].outstanding, jobs[1].last) = (out, jobs[1].next);
            rule.launched(0, 1, &jobs);
        }
        assert!(!rule.may_launch(0, 1, &jobs));
        jobs[1].outstanding = 1;
        assert!(!rule.may_launch(0, 1, &jobs));
        jobs[1].outstanding = 0;
        assert!(rule.may_launch(0, 1, &jobs));
        // The sum begins anew.
        jobs[1].outstanding = 1;
        rule.launched(0, 1, &jobs);
        assert!(rule.may_launch(0, 1, &jobs));
    }
}
