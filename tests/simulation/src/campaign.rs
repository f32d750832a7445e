// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs seeds for a given time; reduces and reports failing ones.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use weft_scheduler::PolicyName;

use crate::check::Broken;
use crate::scenario::FaultScenario;
use crate::world::{Manner, RunOutcome, run};

/// A seed that failed.
#[derive(Debug)]
pub struct FailedSeed {
    /// The smallest scenario found that fails in the same way.
    pub scenario: FaultScenario,
    /// The violation.
    pub broken: Broken,
    /// Last lines of the log.
    pub log: Vec<String>,
}

/// Sums over many runs.
#[derive(Debug, Default)]
pub struct CampaignSums {
    /// Runs.
    pub scenarios: u64,
    /// Events that cores took in.
    pub events: u64,
    /// Number of occurrences of each kind of event.
    pub counts: BTreeMap<&'static str, u64>,
}

impl CampaignSums {
    /// Adds a run.
    pub fn add(&mut self, outcome: &RunOutcome) {
        self.scenarios += 1;
        self.events += outcome.events;
        for (what, count) in &outcome.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    /// Adds others.
    pub fn merge(&mut self, other: &CampaignSums) {
        self.scenarios += other.scenarios;
        self.events += other.events;
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }
}

/// A run whose panic is a failure like others.
pub fn guarded(scenario: &FaultScenario, manner: Manner) -> RunOutcome {
    catch_unwind(AssertUnwindSafe(|| run(scenario, manner))).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        RunOutcome {
            broken: Some(Broken {
                what: "nothing panics",
                how: said.unwrap_or_default(),
            }),
            ..RunOutcome::default()
        }
    })
}

/// Runs one seed. `Err` if it fails.
pub fn one(seed: u64, policy: Option<PolicyName>, sums: &mut CampaignSums) -> Result<(), Box<FailedSeed>> {
    let scenario = FaultScenario::of(seed, policy);
    let outcome = guarded(&scenario, Manner::default());
    sums.add(&outcome);
    match outcome.broken {
        None => Ok(()),
        Some(broken) => Err(Box::new(smallest(scenario, broken))),
    }
}

/// Limit of runs for the reduction of a scenario.
const TRIES: usize = 300;

fn smallest(mut scenario: FaultScenario, mut broken: Broken) -> FailedSeed {
    let mut tries = 0;
    'smaller: loop {
        for smaller in scenario.smaller() {
            tries += 1;
            if tries > TRIES {
                break 'smaller;
            }
            if let Some(found) = guarded(&smaller, Manner::default()).broken
                && found.what == broken.what
            {
                (scenario, broken) = (smaller, found);
                continue 'smaller;
            }
        }
        break;
    }
    let log = guarded(
        &scenario,
        Manner {
            log: true,
            verbose: false,
        },
    )
    .log;
    FailedSeed {
        scenario,
        broken,
        log: log.into(),
    }
}
