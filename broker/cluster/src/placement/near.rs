//! A gang on few leaves and few nodes: the plain rule beside which a network is measured, and the
//! way to keep to a policy's [bound of nodes](crate::policies::ClusterPolicy::spread).
//!
//! First a leaf that the gang is on already, then the fullest leaf that takes all that is left of
//! it, then the emptiest. Of a leaf it is the fullest node that takes all that is left, then the
//! emptiest. Where links are not known all nodes are on one leaf.

use std::collections::BTreeMap;

use crate::job::WorkerAsk;
use crate::links::ClusterLinks;
use crate::node::ClusterNode;

/// What takes all that is left first, the fullest of them; then the emptiest.
fn rank(room: u64, left: u64) -> (bool, u64) {
    if room >= left {
        (false, room)
    } else {
        (true, u64::MAX - room)
    }
}

/// The node of the next workers of a gang that still has so many without one.
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
