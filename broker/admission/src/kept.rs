//! The state in a form that can be stored, so that a new broker goes on after one was killed.
//!
//! Times are those of the driving clock, so the state is valid only within the same boot of the
//! machine. The configuration is not part of it.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::config::Config;
use super::model::{Running, Waiter};
use super::need::{Device, Job};
use super::people::People;
use super::plain::Plain;
use super::state::Admission;
use weft_protocol::Ns;

/// Waiters and running jobs with all that the rules read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kept {
    devices: Vec<Device>,
    waiting: Vec<Waiter>,
    running: Vec<Running>,
    people: People,
    plain: Plain,
    now: Ns,
    numbers: u64,
}

impl Admission {
    /// The state to be stored.
    pub fn keep(&self) -> Kept {
        Kept {
            devices: self.devices.values().copied().collect(),
            waiting: self.waiting.clone(),
            running: self.running.values().cloned().collect(),
            people: self.people.clone(),
            plain: self.plain.clone(),
            now: self.now,
            numbers: self.numbers,
        }
    }

    /// Restores a stored state, perhaps under another configuration. No job is admitted before the
    /// next event.
    pub fn go_on(config: Config, kept: Kept) -> Admission {
        let mut machine = Admission::new(config);
        machine.devices = kept.devices.into_iter().map(|device| (device.id, device)).collect();
        machine.running = kept.running.into_iter().map(|it| (it.ask.job, it)).collect();
        // A job is in one place only, whatever the file says.
        let mut known: BTreeSet<Job> = machine.running.keys().copied().collect();
        machine.waiting = kept.waiting;
        for waiter in &mut machine.waiting {
            // Suspension is looked at anew.
            waiter.away = false;
        }
        machine.waiting.sort_by_key(|waiter| waiter.number);
        machine.waiting.retain(|waiter| known.insert(waiter.ask.job));
        machine.people = kept.people;
        machine.plain = kept.plain;
        machine.now = kept.now;
        machine.numbers = kept.numbers;
        machine
    }
}
