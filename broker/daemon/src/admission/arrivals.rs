//! Clients that ask while their device's free memory is not known.
//!
//! NVML did not answer at once, a process has just left, or one is taking memory. A client admitted
//! on an old sample may find a stranger's memory in its place.
//!
//! So a client waits here for a sample, for [`HOLDS`] at most; its own timeout is longer. Then it
//! is admitted or queued on an estimate, in which exited clients still hold their memory. The next
//! sample corrects it for queued clients. Clients that run already never wait here.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::controller::Controller;
use super::watch::Reading;
use crate::clock;
use crate::registry::Entry;
use crate::server::ToTheClient;
use weft_protocol::Ns;
use weft_protocol::control::Wants;

/// Longest wait here.
///
/// A client begins without an answer after 2.5 s without a beat of its admission slot (`ANSWER` in
/// `interposer/src/admission/mod.rs`).
pub const HOLDS: Ns = 700_000_000;

#[derive(Debug)]
struct Arrival {
    entry: Arc<Entry>,
    sender: ToTheClient,
    wants: Wants,
    since: Ns,
}

/// Clients that are not in the book yet, in order of arrival.
#[derive(Debug, Default)]
pub struct Arrivals(Vec<Arrival>);

impl Arrivals {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Clients, and since when each waits.
    pub fn waits(&self) -> impl Iterator<Item = (u64, Ns)> {
        self.0.iter().map(|arrival| (arrival.entry.client, arrival.since))
    }

    /// Removes a client. False if it was not here.
    pub fn remove(&mut self, client: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|arrival| arrival.entry.client != client);
        self.0.len() < before
    }

    /// A client with auto backing began on device memory.
    pub fn is_on_device(&mut self, client: u64) {
        if let Some(arrival) = self.0.iter_mut().find(|arrival| arrival.entry.client == client) {
            arrival.wants.either = false;
        }
    }

    /// Whether a client waits for this device.
    fn any_for(&self, uuid: &str) -> bool {
        self.0.iter().any(|arrival| arrival.wants.uuid == uuid)
    }

    fn push(&mut self, arrival: Arrival) {
        if self.waits().all(|(client, _)| client != arrival.entry.client) {
            self.0.push(arrival);
        }
    }
}

impl Controller {
    /// A client arrives. `told`: NVML tells of devices; `reading`: its fresh answer.
    pub fn arrives(&mut self, arrival: (&Arc<Entry>, &ToTheClient, Wants), told: bool, reading: Option<&Reading>) {
        let (entry, sender, wants) = arrival;
        let now = clock::now();
        // It asked before.
        if self.clients.contains_key(&entry.client) {
            return;
        }
        // NVML may name some devices otherwise.
        let of_this = |it: &Reading| it.free.iter().any(|(uuid, _)| *uuid == wants.uuid);
        let told = told && reading.is_none_or(of_this);
        // Before the reading, which needs the device.
        let device = self.device(&wants.uuid, wants.total, entry.uid);
        if let Some(reading) = reading {
            self.reads(reading);
        }
        let seen = reading.is_some_and(|it| device.is_some_and(|device| self.observer.saw(device, it.at)));
        // Earlier arrivals go first.
        let first = !self.arrivals.any_for(&wants.uuid);
        if wants.runs.is_some() || !told || (seen && first) {
            self.wants(entry, sender, wants);
        } else {
            self.arrivals.push(Arrival {
                entry: Arc::clone(entry),
                sender: sender.clone(),
                wants,
                since: now,
            });
        }
    }

    /// Lets on, in order, clients whose device was seen since, or that waited long enough.
    pub fn let_on(&mut self, told: bool) {
        self.let_on_at(clock::now(), told);
    }

    /// [`Controller::let_on`] at `now`.
    pub fn let_on_at(&mut self, now: Ns, told: bool) {
        let mut kept = Vec::new();
        for arrival in std::mem::take(&mut self.arrivals.0) {
            let device = self.known_device(&arrival.wants.uuid);
            let seen = device.is_some_and(|device| self.observer.saw(device, arrival.since));
            let late = now.saturating_sub(arrival.since) >= HOLDS;
            if told && !seen && !late {
                kept.push(arrival);
                continue;
            }
            if let Some(device) = device.filter(|_| !seen) {
                self.guess(device);
            }
            self.wants(&arrival.entry, &arrival.sender, arrival.wants);
        }
        self.arrivals.0 = kept;
    }
}
