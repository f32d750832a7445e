// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contenders that weft does not offer: InSS, the networks of SCHED2 and of Meta-RL. They are here
//! for comparison only. Each file opens with the paper's symbols and with the questions that the
//! paper leaves open. [`learnt`] reads the networks of the folder `networks`.
//!
//! [`NAMES`] and [`named`] have SCHED2's networks together with the core's policies.

pub mod inss;
pub mod inss_network;
pub mod learnt;
pub mod meta_rl;
pub mod sched2_network;
#[cfg(test)]
mod tests;

use weft_cluster::policies::{self, ClusterPolicy};

use sched2_network::Sched2Network;

/// Names of the orders that only the lab has.
pub const NETWORKS: [&str; 2] = ["sched2-net", "sched2-net-told"];

/// Names that [`named`] knows, in the order of tables.
pub const NAMES: [&str; 15] = [
    "fifo",
    "fifo-backfill",
    "shortest-remaining",
    "exclusive",
    "tiresias",
    "gittins",
    "elas",
    "astraea",
    "gandiva",
    "crux",
    "sched2",
    NETWORKS[0],
    NETWORKS[1],
    "weft",
    "weft-exclusive",
];

/// Policy of a name: of the core, or of the lab.
pub fn named(name: &str) -> Option<Box<dyn ClusterPolicy>> {
    let told = NETWORKS.iter().position(|network| *network == name);
    match told {
        Some(told) => Some(Box::new(Sched2Network::shipped(told == 1).ok()?)),
        None => policies::named(name),
    }
}
