// SPDX-License-Identifier: MIT OR Apache-2.0
//! Best fit, as FGD's authors measured it (USENIX ATC 2023): the node that has the least left.
//!
//! | published | here |
//! |---|---|
//! | free_i - request_i, of CPU and GPU | `cpu_milli`, [`ClusterNode::free_milli`] less the worker's |
//! | maxSpec_i | 128 CPUs, 8 GPUs |
//! | weights | a half each |
//!
//! Points are whole numbers up to a hundred, cut off: nodes that differ by less are equal. The GPU
//! of a node is the one with the least left on which the worker fits. The published simulator then
//! scales the nodes' points to 0 to 100, which changes no order.

use super::{SCALE_CPU_MILLI, SCALE_GPU_MILLI};
use crate::job::WorkerAsk;
use crate::node::ClusterNode;

/// Score of a node; 100 if nothing would be left.
pub(super) fn score(node: &ClusterNode, ask: &WorkerAsk) -> i64 {
    let cpu = (f64::from(node.cpu_milli) - f64::from(ask.cpu_milli)) / SCALE_CPU_MILLI;
    let gpu = (node.free_milli() as f64 - ask.total_milli() as f64) / SCALE_GPU_MILLI;
    ((1.0 - (cpu * 0.5 + gpu * 0.5)) * 100.0) as i64
}
