// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state as stored for the next broker.
//!
//! Times are of the driving clock: valid within one boot of the machine. The configuration is not
//! part of it. Stored names of fields are those of the first version.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::config::AdmissionConfig;
use super::fair_share::FairShare;
use super::fifo_shadow::FifoShadow;
use super::model::{RunningJob, WaitingJob};
use super::need::{Device, Job};
use super::state::Admission;
use weft_protocol::Ns;

/// Devices, waiters and running jobs with all that the rules read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedState {
    devices: Vec<Device>,
    waiting: Vec<WaitingJob>,
    running: Vec<RunningJob>,
    #[serde(rename = "people")]
    fair_share: FairShare,
    #[serde(rename = "plain")]
    fifo_shadow: FifoShadow,
    now: Ns,
    #[serde(rename = "numbers")]
    last_number: u64,
}

impl Admission {
    /// The state to be stored.
    pub fn save(&self) -> SavedState {
        SavedState {
            devices: self.devices.values().copied().collect(),
            waiting: self.waiting.clone(),
            running: self.running.values().cloned().collect(),
            fair_share: self.fair_share.clone(),
            fifo_shadow: self.fifo_shadow.clone(),
            now: self.now,
            last_number: self.last_number,
        }
    }

    /// Restores a stored state, also under another configuration. No job is admitted before the
    /// next event.
    pub fn restore(config: AdmissionConfig, saved: SavedState) -> Admission {
        let mut machine = Admission::new(config);
        machine.devices = saved.devices.into_iter().map(|device| (device.id, device)).collect();
        machine.running = saved.running.into_iter().map(|it| (it.ask.job, it)).collect();
        // A job is in one place only, whatever the file contains.
        let mut known: BTreeSet<Job> = machine.running.keys().copied().collect();
        machine.waiting = saved.waiting;
        for waiter in &mut machine.waiting {
            // The broker checks it again.
            waiter.suspended = false;
        }
        machine.waiting.sort_by_key(|waiter| waiter.number);
        machine.waiting.retain(|waiter| known.insert(waiter.ask.job));
        machine.fair_share = saved.fair_share;
        machine.fifo_shadow = saved.fifo_shadow;
        machine.now = saved.now;
        machine.last_number = saved.last_number;
        machine
    }
}
