// SPDX-License-Identifier: MIT OR Apache-2.0
//! A gang on few leaves and few nodes: the plain rule. It also keeps gangs within a policy's
//! [bound of nodes](crate::policies::ClusterPolicy::spread).
//!
//! First comes a leaf that the gang is already on, then the fullest leaf that takes the whole rest
//! of the gang, then the emptiest. On a leaf, the fullest node that takes the whole rest comes
//! first, then the emptiest. If links are not known all nodes are on one leaf.

use std::collections::BTreeMap;

use crate::job::WorkerAsk;
use crate::links::ClusterLinks;
use crate::node::ClusterNode;

/// Rank by room: first those that take the whole rest, the fullest first; then the emptiest.
fn rank(room: u64, left: u64) -> (bool, u64) {
    if room >= left {
        (false, room)
    } else {
        (true, u64::MAX - room)
    }
}

/// The node of the next workers of a gang, of which `left` have none yet.
pub(super) fn node(
    nodes: &[ClusterNode],
    links: Option<ClusterLinks>,
    ask: &WorkerAsk,
    left: u32,
    taken: &[usize],
) -> Option<usize> {
    let leaf = |node: &ClusterNode| links.map_or(0, |links| links.leaf(node.id));
    let room = |node: &ClusterNode| {
        if node.fits(ask) {
            u64::from(node.room(ask).max(1))
        } else {
            0
        }
    };
    let mut leaves: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        let leaf = leaves.entry(leaf(node)).or_default();
        leaf.0 += room(node);
        leaf.1 |= taken.contains(&at);
    }
    let left = u64::from(left);
    let ranked = nodes.iter().enumerate().filter_map(|(at, node)| {
        let (whole, holds) = leaves.get(&leaf(node)).copied().unwrap_or_default();
        let room = room(node);
        (room > 0).then(|| (!holds, rank(whole, left), rank(room, left), at))
    });
    ranked.min().map(|(.., at)| at)
}
