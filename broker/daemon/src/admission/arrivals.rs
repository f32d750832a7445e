//! Clients that ask while what is free of their device is not known.
//!
//! NVML did not answer at once, a process has just left whose memory may be there or not, or one
//! takes memory at this moment. Let in on what was seen some time ago, a client may find a
//! stranger's memory where its own should be.
//!
//! So a client waits here until its device was seen, for [`HOLDS`] at most: that is less than a
//! client waits for its answer. Then it is let in, or queues, on the best guess: whatever left
//! still holds what it has not shown to have given back. One that queues is told better by the next
//! look. A client that runs already is held up by nothing.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::book::Book;
use super::watch::Reading;
use crate::clock;
use crate::registry::Entry;
use crate::server::ToTheClient;
use weft_protocol::Ns;
use weft_protocol::control::Wants;

/// How long a client waits here.
///
/// A client goes on by itself where no beat of its admission slot comes for 2.5 s (`ANSWER` in
/// `interposer/src/admission/mod.rs`).
pub const HOLDS: Ns = 700_000_000;

/// A client that has asked and is not in the book yet.
#[derive(Debug)]
struct Arrival {
    entry: Arc<Entry>,
    sender: ToTheClient,
    wants: Wants,
    since: Ns,
}

/// The clients that have asked and are not in the book yet, in the order in which they came.
#[derive(Debug, Default)]
pub struct Arrivals(Vec<Arrival>);

impl Arrivals {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their numbers, and since when each is here.
    pub fn waits(&self) -> impl Iterator<Item = (u64, Ns)> {
        self.0.iter().map(|arrival| (arrival.entry.client, arrival.since))
    }

    /// A client is gone. False if it was not here.
    pub fn remove(&mut self, client: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|arrival| arrival.entry.client != client);
        self.0.len() < before
    }

    /// A client has device memory, though it left that open.
    pub fn is_on_device(&mut self, client: u64) {
        if let Some(arrival) = self.0.iter_mut().find(|arrival| arrival.entry.client == client) {
            arrival.wants.either = false;
        }
    }

    /// Whether any is here for this device.
    fn any_for(&self, uuid: &str) -> bool {
        self.0.iter().any(|arrival| arrival.wants.uuid == uuid)
    }

    /// One more, if it is not here yet.
    fn push(&mut self, arrival: Arrival) {
        if self.waits().all(|(client, _)| client != arrival.entry.client) {
            self.0.push(arrival);
        }
    }
}

impl Book {
    /// A client arrives. `told`: NVML tells of devices; `reading`: what it told just now.
    pub fn arrives(&mut self, arrival: (&Arc<Entry>, &ToTheClient, Wants), told: bool, reading: Option<&Reading>) {
        let (entry, sender, wants) = arrival;
        let now = clock::now();
        // It has asked before.
        if self.clients.contains_key(&entry.client) {
            return;
        }
        // Of some devices it does not tell: it names them otherwise.
        let of_this = |it: &Reading| it.free.iter().any(|(uuid, _)| *uuid == wants.uuid);
        let told = told && reading.is_none_or(of_this);
        // So that what NVML tells of it is entered.
        let device = self.device(&wants.uuid, wants.total, entry.uid);
        if let Some(reading) = reading {
            self.reads(reading);
        }
        let seen = reading.is_some_and(|it| device.is_some_and(|device| self.observer.saw(device, it.at)));
        // Who came before goes first.
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

    /// Lets on, in the order in which they came, those that have been here for long enough and
    /// those whose device was seen since.
    pub fn let_on(&mut self, told: bool) {
        self.let_on_at(clock::now(), told);
    }

    /// [`Book::let_on`] at this time.
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
