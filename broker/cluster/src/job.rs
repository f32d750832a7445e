// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job's request, and its measure.

use crate::Ns;

/// A whole GPU, in thousandths.
pub const WHOLE_GPU_MILLI: u32 = 1_000;

/// A job's number, given by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// Owner of a job: a user, a project, an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// Resources that one worker takes of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerAsk {
    /// Thousandths of a CPU.
    pub cpu_milli: u32,
    /// MiB of host memory.
    pub memory_mib: u32,
    /// GPUs.
    pub gpus: u32,
    /// Thousandths of each GPU. Below 1,000 only with one GPU.
    pub gpu_milli: u32,
}

impl WorkerAsk {
    /// Total thousandths of GPUs.
    pub fn total_milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.gpu_milli)
    }

    /// Whether it asks for a part of a GPU.
    pub fn shares(&self) -> bool {
        self.gpus == 1 && self.gpu_milli < WHOLE_GPU_MILLI
    }

    /// Whether the request can exist.
    pub fn valid(&self) -> bool {
        match self.gpus {
            0 => self.gpu_milli == 0,
            1 => (1..=WHOLE_GPU_MILLI).contains(&self.gpu_milli),
            _ => self.gpu_milli == WHOLE_GPU_MILLI,
        }
    }
}

/// A job as it is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterJob {
    /// Its number.
    pub id: JobId,
    /// Its owner.
    pub tenant: TenantId,
    /// Workers of the gang, which run together or not at all.
    pub workers: u32,
    /// Resources of each worker.
    pub each: WorkerAsk,
    /// Expected run time on all its GPUs, ns.
    pub expected: Option<Ns>,
}

/// Measures of a job by the node's broker, without the job's help. A job without measures is
/// assumed to keep its GPUs busy and to send nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobMeasure {
    /// Part of its time without other jobs in which its GPUs are busy, thousandths.
    pub duty_milli: u32,
    /// Its present speed, relative to that without other jobs, thousandths.
    pub speed_milli: u32,
    /// Time of a step's traffic between nodes on an idle link, relative to the step on one node,
    /// thousandths. 0 if it sends nothing.
    pub traffic_milli: u32,
    /// Whether it answers requests. If so it is not paused, and never a guest in a second seat.
    pub serves: bool,
}

impl Default for JobMeasure {
    fn default() -> JobMeasure {
        JobMeasure {
            duty_milli: 1_000,
            speed_milli: 1_000,
            traffic_milli: 0,
            serves: false,
        }
    }
}
