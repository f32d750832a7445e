// SPDX-License-Identifier: MIT OR Apache-2.0
//! Expected start of each waiter: a copy of the state machine, continued as expected.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::event::{Decision, Event};
use super::need::{DeviceId, Job};
use super::state::Admission;
use weft_protocol::Ns;

/// Most steps of the continuation: 200 waiting and some running jobs end once and are due once.
/// Later jobs have no expected start.
const MAX_STEPS: usize = 2_000;

/// Expectation for one waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expectation {
    /// Begin, ns.
    pub begin: Ns,
    /// Device.
    pub device: DeviceId,
}

impl Admission {
    /// Expectation for each waiter if jobs run as expected and none arrives. Slow: for people.
    pub fn forecast(&self) -> BTreeMap<Job, Expectation> {
        let mut play = self.clone();
        // It is unknown when suspended jobs continue.
        play.waiting.retain(|waiter| !waiter.suspended);
        let mut expected = BTreeMap::new();
        let mut decisions = Vec::new();
        for _ in 0..MAX_STEPS {
            if play.waiting.is_empty() {
                break;
            }
            let end = play
                .running
                .iter()
                .map(|(job, running)| (running.end(play.now), *job))
                .min();
            let wake = play.next_wake();
            let (at, event) = match (end, wake) {
                (Some((end, _)), Some(wake)) if wake < end => (wake, Event::Tick),
                (Some((end, job)), _) => (end, Event::Ends(job)),
                (None, Some(wake)) => (wake, Event::Tick),
                (None, None) => break,
            };
            play.handle(at, event, &mut decisions);
            for decision in decisions.drain(..) {
                if let Decision::Admit { job, device, .. } = decision {
                    expected.insert(job, Expectation { begin: at, device });
                }
            }
        }
        expected
    }
}
