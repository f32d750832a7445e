// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core's state for people and tests: `weft status` and `weft top` print it.

use serde::Serialize;
use weft_profiles::predictor::Quality;

use super::{Client, PolicyName};
use crate::stretch_times::StretchTimes;
use crate::tally::{Lateness, RoleTally};
use weft_protocol::{Ns, lane::Mode};

/// The core's state at one time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// Name of the policy.
    pub policy: &'static str,
    /// Time to switch from one process to another, ns. 0 under MPS.
    pub switch_cost: Ns,
    /// The clients, as they attached.
    pub clients: Vec<ClientView>,
    /// The gap that is open now.
    pub gap: Option<GapView>,
    /// Background work granted or on the device and not seen to end, ns.
    pub exposure: Ns,
    /// Counters since the broker started.
    pub counters: Counters,
}

impl Snapshot {
    /// The view of one client.
    pub fn client(&self, client: Client) -> Option<&ClientView> {
        self.clients.iter().find(|view| view.client == client.0)
    }
}

/// One client.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientView {
    /// The client's number.
    pub client: u64,
    /// 0 (most important) to 9.
    pub priority: u8,
    /// `free`, `alone`, `foreground` or `background`.
    pub mode: &'static str,
    /// Whether the client launched or waited lately.
    pub active: bool,
    /// Whether the client takes long turns with its equals.
    pub turns: bool,
    /// The kernel at its gate.
    pub waiting: Option<WaitView>,
    /// Launches reported to the core. A client that is alone reports none.
    pub launches: u64,
    /// Their predicted time, ns.
    pub work: Ns,
    /// Predicted end of its submitted work.
    pub busy_until: Ns,
    /// Part of its time by which it may be slowed down on average, as a foreground job.
    pub slowdown_allowed: f64,
    /// Slowdown by background jobs, measured at its waits as a foreground job, as a part of its
    /// time. `None`: no stretch was judged.
    pub slowdown_measured: Option<f64>,
    /// Sums behind it. `None`: the policy measures none.
    pub lateness: Option<Lateness>,
    /// Lengths of its stretches as a foreground job; `None`: none was seen. Not in the JSON.
    #[serde(skip)]
    pub stretch_times: Option<Box<StretchTimes>>,
    /// [`Config::slo`](crate::Config::slo) of this client.
    pub slo: Option<Ns>,
    /// Part of the device's time that it has at least as a background job.
    pub at_least: Option<f64>,
    /// Total credit given, ns.
    pub granted: Ns,
    /// The part of it that was replenished under run-ahead windows, ns.
    pub renewed: Ns,
    /// Total credit used, as reported, ns.
    pub issued: Ns,
    /// Total credit revoked, ns. Below zero if overdraft was forgiven.
    pub revoked: i64,
    /// Unused credit, ns. Below zero if overdrawn.
    pub left: i64,
    /// Used credit whose work was not seen to end, ns.
    pub outstanding: Ns,
    /// Time that such work was there, ns.
    pub occupied: Ns,
    /// Work written off, ns.
    pub written_off: Ns,
    /// Number of grants by the minimum share.
    pub starved: u64,
    /// Number of grants while its own work did not end.
    pub stuck: u64,
    /// Reported launches of kernels for which its profile has a time.
    pub known_launches: u64,
    /// Reported launches of other kernels.
    pub unknown_launches: u64,
    /// Its launches as a foreground job.
    pub foreground: RoleTally,
    /// Its launches as a background job.
    pub background: RoleTally,
    /// Quality of the gap model, under `weft`.
    pub gaps: ForecastView,
    /// Quality of the kernel-time model, under `weft`.
    pub times: ForecastView,
}

/// Quality of forecasts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ForecastView {
    /// Number of forecasts, without values too short to matter.
    pub forecasts: u64,
    /// Part of the gaps that are not below the low value, or of the times that are not above the
    /// high one. Target: 0.9.
    pub kept: Option<f64>,
    /// Mean distance between forecast and value, relative to the mean value.
    pub error: Option<f64>,
    /// Number of known contexts.
    pub contexts: usize,
}

impl ForecastView {
    pub(super) fn of_gaps((quality, contexts): (Quality, usize)) -> ForecastView {
        ForecastView {
            forecasts: quality.forecasts,
            kept: quality.coverage(),
            error: quality.relative_error(),
            contexts,
        }
    }

    pub(super) fn of_times((quality, contexts): (Quality, usize)) -> ForecastView {
        ForecastView {
            kept: quality.coverage_of_high(),
            ..ForecastView::of_gaps((quality, contexts))
        }
    }
}

/// A kernel at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WaitView {
    /// Hash of the kernel.
    pub kernel: u64,
    /// Predicted time, ns.
    pub cost: Ns,
    /// Since when it waits, ns.
    pub since: Ns,
}

/// A gap of the foreground jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GapView {
    /// End of the last foreground job's work, predicted or seen.
    pub since: Ns,
    /// Predicted return of the foreground job. `None`: open-ended.
    pub until: Option<Ns>,
}

/// Counts since the broker started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Events taken in.
    pub events: u64,
    /// Grants given.
    pub grants: u64,
    /// Revocations for a more important client.
    pub revocations: u64,
    /// Gaps of known length opened for background jobs.
    pub gaps: u64,
    /// Gaps that became open-ended.
    pub open_gaps: u64,
    /// Gaps that ended before their predicted end.
    pub early_returns: u64,
    /// Grants by the minimum share.
    pub starvation_grants: u64,
    /// Grants to clients whose own work did not end.
    pub stuck_grants: u64,
    /// Times that a client which took no credit was left out of the queue for a while.
    pub rests: u64,
    /// Long turns that began.
    pub long_turns: u64,
    /// Write-offs of work.
    pub write_offs: u64,
    /// Events with impossible values, corrected.
    pub corrected: u64,
    /// Events of unknown clients, or a second attach; ignored.
    pub strangers: u64,
}

/// A mode's name for people.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Free => "free",
        Mode::Alone => "alone",
        Mode::Foreground => "foreground",
        Mode::Background => "background",
    }
}

impl From<PolicyName> for &'static str {
    fn from(policy: PolicyName) -> &'static str {
        policy.as_str()
    }
}
