// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dot product of Tetris (SIGCOMM 2014), as FGD's authors measured it: here the smaller product
//! of free and requested resources wins.
//!
//! | published | here |
//! |---|---|
//! | the node's vector | `cpu_milli` and [`ClusterNode::free_milli`], of 128 CPUs and 8 GPUs |
//! | the pod's vector | the worker's, in the same units |
//! | dimensions merged | all GPUs of a node are one number |
//!
//! Tetris itself takes the larger product. The published comparison took the smaller one, and so
//! does this rule. The GPU of a node is the one with the least left on which the worker fits.

use super::{SCALE_CPU_MILLI, SCALE_GPU_MILLI};
use crate::job::WorkerAsk;
use crate::node::ClusterNode;

/// Score of a node; 100 if no requested resource is free.
pub(super) fn score(node: &ClusterNode, ask: &WorkerAsk) -> i64 {
    let cpu = f64::from(node.cpu_milli) / SCALE_CPU_MILLI * (f64::from(ask.cpu_milli) / SCALE_CPU_MILLI);
    let gpu = node.free_milli() as f64 / SCALE_GPU_MILLI * (ask.total_milli() as f64 / SCALE_GPU_MILLI);
    (100.0 * (1.0 - (cpu + gpu) / 2.0)) as i64
}
