// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contenders that weft does not offer: InSS, E-LAS, Gandiva, SCHED2, its networks and those of
//! Meta-RL, and whole GPUs. They are here for comparison. Each file opens with the paper's symbols
//! and with the questions that the paper leaves open. [`learnt`] reads the networks of the folder
//! `networks`.
//!
//! [`NAMES`] and [`named`] have the contenders' orders together with the core's policies.

mod elas;
mod exclusive;
mod gandiva;
pub mod inss;
pub mod inss_network;
pub mod learnt;
pub mod meta_rl;
pub mod sched2;
pub mod sched2_network;
#[cfg(test)]
mod tests;

use weft_cluster::policies::{self, ClusterPolicy};

use sched2::Sched2Order;
use sched2_network::Sched2Network;

/// Names of the orders of networks.
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
    Some(match name {
        "elas" => Box::new(elas::ElasOrder),
        "exclusive" => Box::new(exclusive::ExclusiveOrder),
        "gandiva" => Box::new(gandiva::GandivaOrder::default()),
        "sched2" => Box::new(Sched2Order::default()),
        "sched2-net" | "sched2-net-told" => Box::new(Sched2Network::shipped(name == NETWORKS[1]).ok()?),
        _ => return policies::named(name),
    })
}
