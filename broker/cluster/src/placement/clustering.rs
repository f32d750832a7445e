// SPDX-License-Identifier: MIT OR Apache-2.0
//! GPU clustering (Gandiva's placement, as FGD's authors measured it): workers of a kind together.
//!
//! | published | here |
//! |---|---|
//! | affinity tag: share, 1-gpu, 2-gpu, ... | [`ClusterNode::has_kind`] |
//! | used part of 8 GPUs | 8,000 less [`ClusterNode::free_milli`] |
//!
//! In quarters of a hundred points: a node with only this kind, one with this kind and others, an
//! empty one, one with only others. Inside a quarter the fuller node wins. A node with fewer than
//! eight GPUs counts as fuller by the missing ones, as published. A worker without a GPU takes the
//! first node.

use crate::job::WorkerAsk;
use crate::node::ClusterNode;

/// A quarter of the points.
const QUARTER: i64 = 25;
/// GPUs of the largest node, thousandths.
const LARGEST_MILLI: i64 = 8_000;

/// Score of a node, 0 to 100.
pub(super) fn score(node: &ClusterNode, ask: &WorkerAsk) -> i64 {
    if ask.gpus == 0 {
        return 0;
    }
    let quarter = match node.has_kind(ask) {
        (true, false) => 3,
        (true, true) => 2,
        (false, false) => 1,
        (false, true) => 0,
    };
    QUARTER * (LARGEST_MILLI - node.free_milli() as i64) / LARGEST_MILLI + QUARTER * quarter
}
