// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole GPUs only: a job that asks for a part of a GPU gets the whole of it. First in, first out,
//! and a job passes those that do not fit. This is the baseline for sharing.

use weft_cluster::policies::ClusterPolicy;
use weft_cluster::{WHOLE_GPU_MILLI, WorkerAsk};

/// Order by arrival, on whole GPUs.
#[derive(Debug, Clone)]
pub struct ExclusiveOrder;

impl ClusterPolicy for ExclusiveOrder {
    fn name(&self) -> &'static str {
        "exclusive"
    }

    fn keyed(&self) -> bool {
        true
    }

    fn grant(&self, ask: WorkerAsk) -> WorkerAsk {
        let gpu_milli = if ask.gpus > 0 { WHOLE_GPU_MILLI } else { 0 };
        WorkerAsk { gpu_milli, ..ask }
    }
}
