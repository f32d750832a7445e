//! Shows that the invariants can fail: each kind of sabotage, done between the broker and the memory of its clients, is caught by the one that it breaks.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use weft_broker::core::{Client, Decision, Mode};

use crate::check::name;
use crate::scenario::Scenario;
use crate::world::{Manner, World, start};

/// What is done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Credit that was taken back stays in the word.
    DropRevoke,
    /// A grant is given twice.
    DoubleGrant,
    /// A holder is told to wait.
    HolderWaits,
    /// The checker is shown each grant as one to a client that is gone.
    GrantToTheDead,
    /// The bound is taken for a tenth of what the core is told.
    SmallBound,
    /// Launches are expected in another order.
    Reordered,
}

impl World {
    fn word(&mut self, client: Client, change: impl FnOnce(i64) -> i64) {
        if let Some(process) = self.processes.iter().find(|process| process.client == Some(client)) {
            let credit = &process.lane.orders.credit;
            credit.store(change(credit.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    pub(crate) fn before_decision(&mut self, decision: &Decision) {
        if let (Some(Sabotage::DropRevoke), Decision::Revoke(client)) = (self.sabotage, decision) {
            let client = *client;
            let process = self.processes.iter().find(|process| process.client == Some(client));
            self.kept = process.map_or(0, |process| process.lane.orders.credit.load(Ordering::Relaxed));
        }
    }

    pub(crate) fn after_decision(&mut self, decision: &Decision) {
        match (self.sabotage, decision) {
            (Some(Sabotage::DropRevoke), Decision::Revoke(client)) => {
                let kept = self.kept;
                self.word(*client, |_| kept);
            }
            (Some(Sabotage::DoubleGrant), Decision::Grant { client, credit, .. }) => {
                let credit = *credit as i64;
                self.word(*client, |word| word.saturating_add(credit));
            }
            (Some(Sabotage::HolderWaits), Decision::Mode(client, Mode::Holder)) => {
                if let Some(process) = self.processes.iter().find(|process| process.client == Some(*client)) {
                    process.lane.orders.mode.store(Mode::Filler as u32, Ordering::Relaxed);
                }
            }
            (Some(Sabotage::Reordered), _) => {
                for told in self.told.values_mut() {
                    if let Some(other) = (1..told.len()).find(|at| told[*at] != told[0]) {
                        told.swap(0, other);
                    }
                }
            }
            (Some(Sabotage::SmallBound), _) => self.books.strict = 10,
            _ => {}
        }
    }

    /// What the checker is shown.
    pub(crate) fn sabotaged_decisions(&self, decisions: &[Decision]) -> Vec<Decision> {
        let shown = |decision: &Decision| match (self.sabotage, *decision) {
            (Some(Sabotage::GrantToTheDead), Decision::Grant { credit, bound, .. }) => Decision::Grant {
                client: Client(9_999),
                credit,
                bound,
            },
            (_, decision) => decision,
        };
        decisions.iter().map(shown).collect()
    }
}

/// Which invariants catch it, over some seeds.
fn caught(sabotage: Sabotage) -> HashSet<&'static str> {
    let of = |seed| {
        start(&Scenario::of(seed, None), Manner::default(), |world| {
            world.sabotage = Some(sabotage)
        })
    };
    (1..=20)
        .filter_map(|seed| of(seed).broken)
        .map(|broken| broken.what)
        .collect()
}

#[test]
fn a_revoke_that_is_dropped_is_caught() {
    assert!(caught(Sabotage::DropRevoke).contains(name::CREDIT));
}

#[test]
fn a_grant_that_is_doubled_is_caught() {
    let caught = caught(Sabotage::DoubleGrant);
    assert!(
        caught.contains(name::CREDIT) || caught.contains(name::BOUND),
        "{caught:?}"
    );
}

#[test]
fn a_holder_that_is_told_to_wait_is_caught() {
    assert!(caught(Sabotage::HolderWaits).contains(name::HOLDER));
}

#[test]
fn a_grant_to_the_dead_is_caught() {
    assert!(caught(Sabotage::GrantToTheDead).contains(name::DEAD));
}

#[test]
fn work_beyond_the_bound_is_caught() {
    assert!(caught(Sabotage::SmallBound).contains(name::BOUND));
}

#[test]
fn launches_out_of_order_are_caught() {
    assert!(caught(Sabotage::Reordered).contains(name::ORDER));
}
