// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiresias with the Gittins index (NSDI 2019), if the service of past jobs is known: the job that
//! is likeliest to end for the service it will take goes first.
//!
//! | paper | here |
//! |---|---|
//! | S, a job's service in all | `history`: that of jobs that ended, GPU-ns |
//! | a, attained service | [`RankedJob::service`], cut off to whole quanta |
//! | Delta, the service quantum | `quantum`, GPU-ns |
//! | P(S - a <= Delta \| S > a) | past jobs that ended within the quantum, of those beyond a |
//! | E[min(S - a, Delta) \| S > a] | average service that those took of the quantum |
//!
//! ```text
//! index(a) = P(S - a <= Delta | S > a) / E[min(S - a, Delta) | S > a]
//! ```
//!
//! The paper takes the largest over all Delta. Its simulator takes one Delta, 3,250 GPU-s, and so
//! does this policy. The paper does not state how the history grows. Here each job that ends is
//! added, and a withdrawn one too if it ran. They are added once they are a twentieth of the known
//! ones, and each time all waiting jobs change their positions. While there is no history, jobs go
//! by arrival. A job beyond all of history goes last. Counts and sums are whole numbers, so that
//! the order is the same everywhere.

use super::{ClusterPolicy, OrderKey, RankedJob, SECOND_NS};
use crate::Ns;

/// Factor of an index. GPU-ns are large: 10^24 leaves digits to distinguish two.
const SCALE: u128 = 10u128.pow(24);

/// Order by the Gittins index of attained service.
#[derive(Debug, Clone)]
pub struct GittinsOrder {
    quantum: u128,
    /// Service of jobs that ended, GPU-ns, ascending.
    history: Vec<u128>,
    /// Service of jobs that ended since the last addition to the history.
    ended: Vec<u128>,
    /// Prefix sums of the history: of the first `n` at `n`.
    sums: Vec<u128>,
}

impl GittinsOrder {
    /// Creates an order with this quantum, GPU-ns, and the service of jobs that are known to have
    /// ended.
    pub fn new(quantum: u128, mut history: Vec<u128>) -> GittinsOrder {
        history.sort_unstable();
        let mut order = GittinsOrder {
            quantum: quantum.max(1),
            history,
            ended: Vec::new(),
            sums: Vec::new(),
        };
        order.sum();
        order
    }

    fn sum(&mut self) {
        let mut sum = 0;
        self.sums = std::iter::once(0)
            .chain(self.history.iter().map(|service| {
                sum += service;
                sum
            }))
            .collect();
    }

    /// Adds jobs that ended, once they are a twentieth of the known ones. Returns whether it did.
    fn learn(&mut self) -> bool {
        if self.ended.is_empty() || self.ended.len() * 20 < self.history.len() {
            return false;
        }
        self.history.append(&mut self.ended);
        self.history.sort_unstable();
        self.sum();
        true
    }

    /// Index of a job with this known rest, in the unit of [`index`](GittinsOrder::index): it
    /// surely ends for that service.
    pub(super) fn index_of_rest(rest: u128) -> u128 {
        SCALE / rest.max(1)
    }

    /// [`index`](GittinsOrder::index); without history it is as if each job took a quantum.
    pub(super) fn index_or_quantum(&self, service: u128) -> u128 {
        if self.history.is_empty() {
            GittinsOrder::index_of_rest(self.quantum)
        } else {
            self.index(service)
        }
    }

    /// Index at this service, times a number that is the same for all.
    fn index(&self, service: u128) -> u128 {
        let attained = service / self.quantum * self.quantum;
        let past = |limit: u128| self.history.partition_point(|known| *known <= limit);
        let (begin, end) = (past(attained), past(attained + self.quantum));
        let ended = (end - begin) as u128;
        let beyond = (self.history.len() - end) as u128;
        let taken = self.sums[end] - self.sums[begin] - ended * attained + beyond * self.quantum;
        (ended * SCALE).checked_div(taken).unwrap_or(0)
    }
}

impl Default for GittinsOrder {
    /// With the quantum of the paper's simulator, and no history yet.
    fn default() -> GittinsOrder {
        GittinsOrder::new(3_250 * u128::from(SECOND_NS), Vec::new())
    }
}

impl ClusterPolicy for GittinsOrder {
    fn name(&self) -> &'static str {
        "gittins"
    }

    fn keyed(&self) -> bool {
        true
    }

    fn key(&mut self, _now: Ns, job: &RankedJob) -> OrderKey {
        OrderKey(u128::MAX - self.index(job.service()), 0)
    }

    fn shifted(&mut self) -> bool {
        self.learn()
    }

    fn preempts(&self) -> bool {
        true
    }

    fn look_every(&self) -> Option<Ns> {
        Some(60 * SECOND_NS)
    }

    fn ended(&mut self, job: &RankedJob) {
        self.ended.extend(Some(job.service()).filter(|service| *service > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_the_chance_to_end_over_what_it_takes() {
        // Quantum 10. Two end in the first, at 4 and 6; one in the third, at 24.
        let order = GittinsOrder::new(10, vec![24, 4, 6]);
        let scaled = |ended: u128, taken: u128| ended * 10u128.pow(24) / taken;
        assert_eq!(order.index(0), scaled(2, 4 + 6 + 10));
        assert_eq!(order.index(9), order.index(0));
        assert_eq!(order.index(10), 0);
        assert_eq!(order.index(20), scaled(1, 4));
        assert_eq!(order.index(30), 0);
    }
}
