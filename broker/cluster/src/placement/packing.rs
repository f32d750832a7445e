// SPDX-License-Identifier: MIT OR Apache-2.0
//! GPU packing, as FGD's authors measured it: GPUs in use first, then idle GPUs of nodes in use,
//! empty nodes last.
//!
//! | published | here |
//! |---|---|
//! | fully free GPUs | [`ClusterNode::whole`] |
//! | GPUs to use | those with the least left on which it fits |
//!
//! The points are 100 less a tenth of the free per cent of the GPUs to use, at least 50. They are
//! 50 less one for each idle GPU to use, at least 33; or 33 less one for each GPU of an empty node.
//! A worker without a GPU takes the first node.

use crate::job::{WHOLE_GPU_MILLI, WorkerAsk};
use crate::node::ClusterNode;

/// Score of a node, 0 to 100.
pub(super) fn score(node: &ClusterNode, ask: &WorkerAsk) -> i64 {
    if ask.gpus == 0 {
        return 0;
    }
    let whole = node.whole();
    if whole == node.gpus.len() {
        return (33 - whole as i64).max(whole as i64);
    }
    let mut fitting: Vec<u32> = node
        .gpus
        .iter()
        .copied()
        .filter(|free| *free >= ask.gpu_milli)
        .collect();
    fitting.sort_unstable();
    fitting.truncate(ask.gpus as usize);
    let idle = fitting.iter().filter(|free| **free == WHOLE_GPU_MILLI).count() as i64;
    if idle > 0 {
        return (50 - idle).max(33);
    }
    let free_percent: u32 = fitting.iter().map(|free| free * 100 / WHOLE_GPU_MILLI).sum();
    (100 - i64::from(free_percent / 10)).max(50)
}
