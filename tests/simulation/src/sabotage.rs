// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shows that the invariants can fail: each kind of sabotage, done between the broker and the
//! memory of its clients, is caught by the one that it breaks.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use weft_scheduler::{Client, Decision, Mode, Ns, PolicyName};

use crate::check::name;
use crate::scenario::{ClientOp, FaultScenario, MS, PlannedTrouble, US};
use crate::world::{FaultWorld, Manner, start};

/// Kind of sabotage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Credit that was taken back stays in the word.
    DropRevoke,
    /// A grant is given twice.
    DoubleGrant,
    /// A foreground job is made to wait.
    ForegroundWaits,
    /// A place in the queue at the gate goes to no thread.
    LosesATurn,
    /// The checker is shown each grant as one to a client that is gone.
    GrantToTheDead,
    /// The checked bound is a tenth of the core's.
    SmallBound,
    /// Launches are expected in another order.
    Reordered,
    /// The core's request for its next turn is lost.
    ForgetsToWake,
    /// The core asks for the next turn at once, for ever.
    AsksAgainAtOnce,
    /// The header of an honest client's lane is overwritten, and its client let go for it.
    SpoilsLanes,
    /// The core's minimum share is much smaller than the stated one.
    NoShare,
}

impl FaultWorld {
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
            (Some(Sabotage::ForegroundWaits), Decision::Mode(client, Mode::Foreground)) => {
                if let Some(process) = self.processes.iter().find(|process| process.client == Some(*client)) {
                    process
                        .lane
                        .orders
                        .mode
                        .store(Mode::Background as u32, Ordering::Relaxed);
                }
            }
            (Some(Sabotage::LosesATurn), Decision::Mode(client, Mode::Background)) => {
                if let Some(process) = self
                    .processes
                    .iter_mut()
                    .find(|process| process.client == Some(*client))
                {
                    process.tickets.take();
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
            (Some(Sabotage::SpoilsLanes), Decision::Mode(client, _)) => {
                if let Some(process) = self.processes.iter().find(|process| process.client == Some(*client)) {
                    process.lane.magic.store(0, Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }

    /// The decisions as the checker sees them.
    pub(crate) fn sabotaged_decisions(&self, decisions: &[Decision]) -> Vec<Decision> {
        let shown = |decision: &Decision| match (self.sabotage, *decision) {
            (Some(Sabotage::GrantToTheDead), Decision::Grant { credit, bound, .. }) => Decision::Grant {
                client: Client(9_999),
                credit,
                bound,
                outlives: 0,
            },
            (_, decision) => decision,
        };
        decisions.iter().map(shown).collect()
    }
}

impl FaultWorld {
    /// The core's next turn as the checker sees it.
    pub(crate) fn sabotaged_wake(&self, wake: Option<Ns>, now: Ns) -> Option<Ns> {
        match self.sabotage {
            Some(Sabotage::ForgetsToWake) => None,
            Some(Sabotage::AsksAgainAtOnce) => Some(now),
            _ => wake,
        }
    }

    /// The share that background jobs are promised.
    pub(crate) fn stated_share(&self, configured: f64) -> f64 {
        match self.sabotage {
            Some(Sabotage::NoShare) => 0.02,
            _ => configured,
        }
    }
}

/// The invariants that catch it, over some seeds.
fn caught(sabotage: Sabotage) -> HashSet<&'static str> {
    let of = |seed| {
        start(&FaultScenario::of(seed, None), Manner::default(), |world| {
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
fn a_foreground_job_that_is_told_to_wait_is_caught() {
    assert!(caught(Sabotage::ForegroundWaits).contains(name::FOREGROUND));
}

#[test]
fn a_foreground_job_whose_launch_stays_at_the_gate_is_caught() {
    // A background job of 30 s of patience that becomes a foreground job while it waits for a turn
    // that never comes.
    let mut scenario = beside_one_that_never_pauses(PolicyName::Weft);
    let becomes = PlannedTrouble::Priority { job: 1, priority: 0 };
    scenario.troubles = vec![(500 * MS, becomes)];
    let whole = start(&scenario, Manner::default(), |_| {});
    assert_eq!(whole.broken, None);
    let lost = start(&scenario, Manner::default(), |world| {
        world.sabotage = Some(Sabotage::LosesATurn)
    });
    assert_eq!(lost.broken.map(|broken| broken.what), Some(name::FOREGROUND));
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

#[test]
fn a_wish_to_be_woken_that_is_lost_is_caught() {
    assert_eq!(caught(Sabotage::ForgetsToWake), HashSet::from([name::WAKE]));
}

#[test]
fn a_core_that_lets_nobody_sleep_is_caught() {
    assert_eq!(caught(Sabotage::AsksAgainAtOnce), HashSet::from([name::WAKE]));
}

#[test]
fn an_honest_client_that_is_let_go_is_caught() {
    assert!(caught(Sabotage::SpoilsLanes).contains(name::HONEST));
}

/// A foreground job that never pauses and a background job, for three seconds without any trouble.
fn beside_one_that_never_pauses(policy: PolicyName) -> FaultScenario {
    let mut scenario = FaultScenario::of(1, Some(policy));
    let mut job = scenario.jobs[0].clone();
    (job.profile, job.profiling, job.attach_at, job.lies) = (None, false, 0, false);
    job.longest_wait = std::time::Duration::from_secs(30);
    let launches = |first: u64| {
        (0..6)
            .map(|kernel| ClientOp::Launch {
                kernel: first + kernel,
                time: 100 * US,
            })
            .collect()
    };
    scenario.jobs = (0..2u64)
        .map(|number| {
            let mut job = job.clone();
            (job.number, job.priority) = (number as usize, 5 * number as u8);
            job.threads = vec![launches(number * 100 + 10)];
            job
        })
        .collect();
    scenario.troubles.clear();
    scenario.length = 3_000 * MS;
    scenario.config.minimum_share = 0.02;
    scenario
}

#[test]
fn a_background_job_that_starves_is_caught() {
    for policy in [PolicyName::Fikit, PolicyName::Weft] {
        let mut scenario = beside_one_that_never_pauses(policy);
        let whole = start(&scenario, Manner::default(), |_| {});
        assert_eq!(whole.broken, None, "{policy}");
        scenario.config.minimum_share = 1e-9;
        let starved = start(&scenario, Manner::default(), |world| {
            world.sabotage = Some(Sabotage::NoShare)
        });
        assert_eq!(
            starved.broken.map(|broken| broken.what),
            Some(name::PROGRESS),
            "{policy}"
        );
    }
}
