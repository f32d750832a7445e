// SPDX-License-Identifier: MIT OR Apache-2.0
//! Predicted times of launches: costs of the profile, sums of graphs, and likely times.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use weft_gate::charge;
use weft_protocol::Ns;

use crate::client::costs::Costs;
use crate::client::link::BrokerLink;
use crate::kernels::launch::{Launch, LaunchKind};

/// Predictions beyond the costs of kernels, which the link holds.
#[derive(Debug)]
pub struct Predictions {
    /// Likely times of kernels that are charged much less, and whether any count.
    longs: Costs,
    has_longs: AtomicBool,
    /// Whether the device does not switch processes (MPS); likely times then do not apply.
    never_switches: AtomicBool,
    /// Predicted times of graphs, from their kernels' times.
    graphs: Costs,
}

impl Predictions {
    /// Without any.
    pub fn new() -> Predictions {
        Predictions {
            longs: Costs::few(),
            has_longs: AtomicBool::new(false),
            never_switches: AtomicBool::new(false),
            graphs: Costs::few(),
        }
    }

    /// Predicted time of a launch, ns.
    #[inline]
    pub fn cost(&self, link: &BrokerLink, launch: Launch) -> Ns {
        if let Some(cost) = link.costs.get(launch.identity()) {
            return cost;
        }
        if launch.kind() == LaunchKind::Graph
            && let Some(sum) = self.graphs.get(launch.identity())
        {
            return sum.max(link.unknown_cost());
        }
        link.unknown_cost()
    }

    /// Likely time of a kernel with this cost, ns.
    #[inline]
    pub fn long(&self, kernel: u64, cost: Ns) -> Ns {
        match self.has_longs.load(Ordering::Acquire) {
            true => charge::long_time(cost, self.longs.get(kernel)),
            false => cost,
        }
    }

    /// Notes likely times of kernels that are charged much less.
    pub fn know_long(&self, times: &[(u64, Ns)]) {
        for (kernel, time) in times {
            self.longs.set(*kernel, *time);
        }
        let matters = !self.never_switches.load(Ordering::Acquire);
        self.has_longs.store(matters, Ordering::Release);
    }

    /// Notes that the device runs under MPS, which the broker did not know when it sent likely
    /// times.
    pub fn never_switches(&self) {
        self.never_switches.store(true, Ordering::Release);
        self.has_longs.store(false, Ordering::Release);
    }

    /// Sets the cost of a graph of unknown duration: the sum of its kernels' costs.
    pub fn learn_graph(&self, link: &BrokerLink, hash: u64, kernels: &[u64]) {
        /// Most time that all kernels of unknown duration together count, ns: longer than most
        /// gaps. The device soon measures a graph that is served.
        const UNKNOWN_TOGETHER_NS: Ns = 2_000_000;
        let unknown = link.unknown_cost();
        let (mut known, mut others): (Ns, Ns) = (0, 0);
        for kernel in kernels {
            match link.costs.get(*kernel) {
                Some(cost) => known = known.saturating_add(cost),
                None => others = others.saturating_add(unknown),
            }
        }
        self.graphs
            .set(hash, known.saturating_add(others.min(UNKNOWN_TOGETHER_NS)));
    }

    /// Drops all: the profile is of another GPU.
    pub fn forget(&self) {
        self.longs.forget();
        self.graphs.forget();
    }

    /// Predicted time of a graph, ns.
    #[cfg(test)]
    pub fn graph(&self, hash: u64) -> Option<Ns> {
        self.graphs.get(hash)
    }
}
