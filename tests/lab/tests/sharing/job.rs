// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs of the tests.

use std::sync::Arc;

use weft_profiles::{Aggregator, Profile};
use weft_scheduler::Ns;

/// Time of a launch on the job's thread, ns.
pub const LAUNCH_NS: Ns = 5_000;

/// A step of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Launches a kernel of this identity and length.
    Launch { kernel: u64, time: Ns },
    /// Waits until none of its work is on the device.
    Sync,
    /// Works on the host.
    Host(Ns),
    /// A request begins.
    Begin,
    /// A request is answered.
    Answer,
}

/// A job: steps that repeat.
#[derive(Debug, Clone)]
pub struct Job {
    pub name: &'static str,
    pub priority: u8,
    pub steps: Vec<Step>,
    pub profile: Option<Arc<Profile>>,
}

impl Job {
    pub fn new(name: &'static str, priority: u8) -> Job {
        Job {
            name,
            priority,
            steps: Vec::new(),
            profile: None,
        }
    }

    /// Requests of `kernels` kernels, launched ahead; after each answer `host` ns of host work.
    pub fn requests(mut self, kernels: u64, time: Ns, host: Ns) -> Job {
        self.steps.push(Step::Begin);
        for kernel in 1..=kernels {
            self.steps.push(Step::Launch { kernel, time });
        }
        self.steps.extend([Step::Sync, Step::Answer, Step::Host(host)]);
        let mut run = Aggregator::new();
        for kernel in 1..=kernels {
            let gap = if kernel == kernels { host + LAUNCH_NS } else { 0 };
            run.sampled(kernel, time, Some(gap));
        }
        self.profile = Some(Arc::new(run.finish(self.name, 0)));
        self
    }

    /// Requests that synchronise after every kernel.
    pub fn requests_in_steps(mut self, kernels: u64, time: Ns, host: Ns) -> Job {
        self.steps.push(Step::Begin);
        for kernel in 1..=kernels {
            self.steps
                .extend([Step::Launch { kernel, time }, Step::Sync, Step::Host(20_000)]);
        }
        self.steps.extend([Step::Answer, Step::Host(host)]);
        let mut run = Aggregator::new();
        for kernel in 1..=kernels {
            let gap = if kernel == kernels { host } else { 25_000 };
            run.sampled(kernel, time, Some(gap));
        }
        self.profile = Some(Arc::new(run.finish(self.name, 0)));
        self
    }

    /// Endless kernels, launched as far ahead as the driver allows.
    pub fn training(mut self, times: &[Ns]) -> Job {
        let mut run = Aggregator::new();
        for (kernel, time) in times.iter().enumerate() {
            let kernel = 1_000 + kernel as u64;
            self.steps.push(Step::Launch { kernel, time: *time });
            run.sampled(kernel, *time, Some(0));
        }
        self.profile = Some(Arc::new(run.finish(self.name, 0)));
        self
    }

    pub fn without_profile(mut self) -> Job {
        self.profile = None;
        self
    }
}
