//! Newcomers who ask while nobody knows what is free of their device: NVML did not answer at once, somebody has just left whose memory may be there or not, or somebody takes memory at this moment.
//!
//! Let in on what was seen some time ago, they may find a stranger's memory where theirs should be. So they stay at the door until somebody has seen the device, for [`HOLDS`] at most: that is less
//! than a client waits for its answer. Then they are let in, or queue, on the best guess, in which whoever left still holds what he has not shown to have given back; those who queue are told better by
//! the next look. Who runs already is held up by nothing.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::book::Book;
use super::watch::Reading;
use crate::clock;
use crate::registry::Entry;
use crate::server::ToTheClient;
use weft_protocol::Ns;
use weft_protocol::control::Wants;

/// How long somebody stays at the door. A client goes on by itself where no beat of its seat comes for 2.5 s (`ANSWER` in `interposer/src/session/seat.rs`).
pub const HOLDS: Ns = 700_000_000;

/// Somebody at the door.
#[derive(Debug)]
pub struct Newcomer {
    entry: Arc<Entry>,
    sender: ToTheClient,
    wants: Wants,
    since: Ns,
}

impl Book {
    /// Somebody comes. `told`: NVML tells of devices; `reading`: what it told just now.
    pub fn comes(&mut self, newcomer: (&Arc<Entry>, &ToTheClient, Wants), told: bool, reading: Option<&Reading>) {
        let (entry, sender, wants) = newcomer;
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
        let seen_since = |since: Ns| device.and_then(|it| self.seen.get(&it)).is_some_and(|at| *at >= since);
        let seen = reading.is_some_and(|it| seen_since(it.at));
        // Who came before goes first.
        let first = !self.door.iter().any(|other| other.wants.uuid == wants.uuid);
        if wants.runs.is_some() || !told || (seen && first) {
            self.wants(entry, sender, wants);
        } else if !self.door.iter().any(|other| other.entry.client == entry.client) {
            self.door.push(Newcomer {
                entry: Arc::clone(entry),
                sender: sender.clone(),
                wants,
                since: now,
            });
        }
    }

    /// Whoever has been at the door for long enough, or whose device somebody has seen, goes on, in the order they came.
    pub fn open_the_door(&mut self, told: bool) {
        self.open_the_door_at(clock::now(), told);
    }

    /// The same at this time.
    pub fn open_the_door_at(&mut self, now: Ns, told: bool) {
        let mut kept = Vec::new();
        for newcomer in std::mem::take(&mut self.door) {
            let device = self.known_device(&newcomer.wants.uuid);
            let seen = device
                .and_then(|it| self.seen.get(&it))
                .is_some_and(|at| *at >= newcomer.since);
            let late = now.saturating_sub(newcomer.since) >= HOLDS;
            if told && !seen && !late {
                kept.push(newcomer);
                continue;
            }
            if let Some(device) = device.filter(|_| !seen) {
                self.guess(device);
            }
            self.wants(&newcomer.entry, &newcomer.sender, newcomer.wants);
        }
        self.door = kept;
    }

    /// A client at the door is gone. False if it was not there.
    pub fn turns_round(&mut self, client: u64) -> bool {
        let before = self.door.len();
        self.door.retain(|newcomer| newcomer.entry.client != client);
        self.door.len() < before
    }
}

impl Newcomer {
    /// Who it is, and since when it stands there.
    pub fn waits(&self) -> (u64, Ns) {
        (self.entry.client, self.since)
    }
}

/// A client at the door has device memory, though it left that open.
pub fn is_on_device(door: &mut [Newcomer], client: u64) {
    if let Some(newcomer) = door.iter_mut().find(|newcomer| newcomer.entry.client == client) {
        newcomer.wants.either = false;
    }
}
