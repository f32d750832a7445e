// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums of a client at earlier brokers, which continue when a broker is replaced. Pure.
//!
//! The broker that ends hands them to the history's thread with the client's row. The next broker
//! finds them by the process. Its final row replaces the partial one.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use weft_protocol::Ns;
use weft_protocol::lane::{DurationCounts, MarkedRequests};

use weft_api::outcome::{JobCounters, Requests, Warning};
use weft_api::status::ClientStatus;

/// Durations in the stored form: their sum, ns, and buckets with their numbers.
type KeptDurations = (Ns, Vec<(u16, u32)>);

/// Figures of a client at all brokers before this one. `S`: type of its sums in the book.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CarriedSums<S> {
    /// Its client number at the last of them.
    pub(super) client: u64,
    pub(super) sums: S,
    ran_s: f64,
    launches: u64,
    waited_ns: Ns,
    forced: u64,
    moved: u64,
    alone: KeptDurations,
    beside: KeptDurations,
    pub(super) warnings: Vec<Warning>,
    pub(super) counters: JobCounters,
}

impl<S> CarriedSums<S> {
    /// A client's figures and the `earlier` ones, at the end of this broker. `sums` include the
    /// `earlier` ones.
    pub(super) fn of(
        status: &ClientStatus,
        sums: S,
        requests: &MarkedRequests,
        earlier: Option<&CarriedSums<S>>,
    ) -> CarriedSums<S> {
        let (alone, beside) = requests_with(requests, earlier);
        let whole = earlier.map_or_else(|| status.clone(), |earlier| earlier.with(status));
        CarriedSums {
            client: status.client,
            sums,
            ran_s: whole.attached_s,
            launches: whole.launches + whole.graph_launches,
            waited_ns: whole.waited_ns,
            forced: whole.waits_expired,
            moved: whole.prefetched + whole.evicted + whole.faulted,
            alone: (alone.total, alone.buckets),
            beside: (beside.total, beside.buckets),
            warnings: Vec::new(),
            counters: JobCounters::default(),
        }
    }

    /// A client's figures at this broker plus those at earlier ones.
    pub(super) fn with(&self, status: &ClientStatus) -> ClientStatus {
        ClientStatus {
            attached_s: status.attached_s + self.ran_s,
            launches: status.launches.saturating_add(self.launches),
            waited_ns: status.waited_ns.saturating_add(self.waited_ns),
            waits_expired: status.waits_expired.saturating_add(self.forced),
            prefetched: status.prefetched.saturating_add(self.moved),
            ..status.clone()
        }
    }

    /// Warnings at earlier brokers, with the client's number at this broker.
    pub(super) fn warnings_of(&self, client: u64) -> impl Iterator<Item = Warning> + '_ {
        let (before, now) = (format!("client {}: ", self.client), format!("client {client}: "));
        self.warnings.iter().map(move |warning| {
            let renumbered = warning.text.strip_prefix(&before).map(|rest| format!("{now}{rest}"));
            Warning {
                client: warning.client.map(|_| client),
                text: renumbered.unwrap_or_else(|| warning.text.clone()),
                ..warning.clone()
            }
        })
    }
}

/// Marked requests as the only job and together with others, at this broker and earlier ones.
fn requests_with<S>(now: &MarkedRequests, earlier: Option<&CarriedSums<S>>) -> (DurationCounts, DurationCounts) {
    let counts = |(total, buckets): &KeptDurations| DurationCounts {
        total: *total,
        buckets: buckets.clone(),
    };
    let mut alone = now.alone.counts().unwrap_or_default();
    let mut beside = now.beside.counts().unwrap_or_default();
    if let Some(earlier) = earlier {
        alone.add(&counts(&earlier.alone));
        beside.add(&counts(&earlier.beside));
    }
    (alone, beside)
}

/// Figures of marked requests for people, at this broker and earlier ones.
pub(super) fn requests<S>(now: &MarkedRequests, earlier: &CarriedSums<S>) -> Option<Requests> {
    let (alone, beside) = requests_with(now, Some(earlier));
    Requests::of_counts(&alone, &beside)
}
