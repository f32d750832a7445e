// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that ask while their device's free memory is not known.
//!
//! NVML did not answer at once, a process has just ended, or one is taking memory. If a client were
//! admitted on an old sample, other programs might use the memory by now.
//!
//! So a client waits here for a sample, at most [`LONGEST_HOLD_NS`]; its own timeout is longer.
//! Then it is admitted or queued on an estimate in which exited clients still hold their memory.
//! The next sample corrects the estimate for queued clients. Clients that run already never wait
//! here.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::clients::registry::Entry;
use crate::server::ToTheClient;
use weft_protocol::Ns;
use weft_protocol::control::Wants;

/// Longest wait here.
///
/// A client begins without an answer after 2.5 s without a beat of its admission slot (`ANSWER` in
/// `interposer/src/admission/mod.rs`).
pub const LONGEST_HOLD_NS: Ns = 700_000_000;

/// A client that asks for admission.
#[derive(Debug)]
pub struct EarlyArrival {
    pub entry: Arc<Entry>,
    pub sender: ToTheClient,
    pub wants: Wants,
    pub since: Ns,
}

impl EarlyArrival {
    /// Whether it has waited here long enough.
    pub fn is_late(&self, now: Ns) -> bool {
        now.saturating_sub(self.since) >= LONGEST_HOLD_NS
    }
}

/// Clients that are not in the job table yet, in order of arrival.
#[derive(Debug, Default)]
pub struct Arrivals(Vec<EarlyArrival>);

impl Arrivals {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Clients, and the begin of each one's wait.
    pub fn waits(&self) -> impl Iterator<Item = (u64, Ns)> {
        self.0.iter().map(|arrival| (arrival.entry.client, arrival.since))
    }

    /// Whether a client waits for this device.
    pub fn any_for(&self, uuid: &str) -> bool {
        self.0.iter().any(|arrival| arrival.wants.uuid == uuid)
    }

    /// Adds a client, unless it is here.
    pub fn push(&mut self, arrival: EarlyArrival) {
        if self.waits().all(|(client, _)| client != arrival.entry.client) {
            self.0.push(arrival);
        }
    }

    /// Removes a client. False if it was not here.
    pub fn remove(&mut self, client: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|arrival| arrival.entry.client != client);
        self.0.len() < before
    }

    /// Removes all clients.
    pub fn take(&mut self) -> Vec<EarlyArrival> {
        std::mem::take(&mut self.0)
    }

    /// Puts clients back, in order.
    pub fn put_back(&mut self, arrivals: Vec<EarlyArrival>) {
        self.0 = arrivals;
    }

    /// Records that a client with auto backing began on device memory.
    pub fn set_on_device(&mut self, client: u64) {
        if let Some(arrival) = self.0.iter_mut().find(|arrival| arrival.entry.client == client) {
            arrival.wants.either = false;
        }
    }
}
