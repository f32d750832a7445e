//! What a job asks for.

use crate::Ns;

/// A whole GPU, in thousandths.
pub const WHOLE_GPU_MILLI: u32 = 1_000;

/// A job's number, given by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// Whose job it is: a user, a project, an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// What one worker takes of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerAsk {
    /// Thousandths of a CPU.
    pub cpu_milli: u32,
    /// MiB of host memory.
    pub memory_mib: u32,
    /// GPUs.
    pub gpus: u32,
    /// Of each GPU, thousandths. Below 1,000 only with one GPU.
    pub gpu_milli: u32,
}

impl WorkerAsk {
    /// Thousandths of GPUs in all.
    pub fn total_milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.gpu_milli)
    }

    /// It asks for a part of a GPU.
    pub fn shares(&self) -> bool {
        self.gpus == 1 && self.gpu_milli < WHOLE_GPU_MILLI
    }

    /// It asks for something that there can be.
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
    /// Whose it is.
    pub tenant: TenantId,
    /// The gang: workers that run together or not at all.
    pub workers: u32,
    /// What each of them takes.
    pub each: WorkerAsk,
    /// How long it is expected to run on all its GPUs, ns.
    pub expected: Option<Ns>,
}

/// What the node's broker measured of a job, without the job's help. A job of which nothing was
/// measured is taken to keep its GPUs busy and to send nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobMeasure {
    /// Of its time alone, in which its GPUs are busy, thousandths.
    pub duty_milli: u32,
    /// How fast it goes now, of its speed alone, thousandths.
    pub speed_milli: u32,
    /// What a step's traffic between nodes takes on an idle link, of the step on one node,
    /// thousandths. 0 where it sends nothing.
    pub traffic_milli: u32,
    /// It answers requests: it is not paused, and never beside another as the lesser of two.
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
