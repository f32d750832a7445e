// SPDX-License-Identifier: MIT OR Apache-2.0
//! The node with the most free GPUs, as in the Tiresias of Pollux's simulator: a gang is then on
//! few nodes, and small jobs spread.

use crate::job::WorkerAsk;
use crate::node::ClusterNode;

/// Free thousandths of GPUs.
pub(super) fn score(node: &ClusterNode, _ask: &WorkerAsk) -> i64 {
    node.free_milli() as i64
}
