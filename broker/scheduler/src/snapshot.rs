//! The core's state as people may see it: `weft status` and `weft top` print it, tests assert on
//! it.

use serde::Serialize;
use weft_profiles::predictor::Quality;

use super::{Client, PolicyName};
use weft_protocol::{Ns, lane::Mode};

/// The whole state at one time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// Name of the policy.
    pub policy: &'static str,
    /// What the device is taken to need to go from one process to another, ns. 0: it does not
    /// switch, as under MPS.
    pub switch_cost: Ns,
    /// In the order they attached.
    pub clients: Vec<ClientView>,
    /// The gap that is open now, if one is.
    pub gap: Option<GapView>,
    /// Background job work granted or on the device whose end was not seen, all clients together,
    /// ns.
    pub exposure: Ns,
    /// Counters since the broker started.
    pub counters: Counters,
}

impl Snapshot {
    /// One client's part.
    pub fn client(&self, client: Client) -> Option<&ClientView> {
        self.clients.iter().find(|view| view.client == client.0)
    }
}

/// One client.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientView {
    /// Its number.
    pub client: u64,
    /// 0 (most important) to 9.
    pub priority: u8,
    /// "alone", "foreground job" or "background job".
    pub mode: &'static str,
    /// Whether it launched or waited lately.
    pub active: bool,
    /// Whether it takes long turns with its equals, because their memory does not fit the device
    /// together.
    pub turns: bool,
    /// The kernel it waits with at the gate.
    pub waiting: Option<WaitView>,
    /// Launches the core was told of. A client that is alone tells none.
    pub launches: u64,
    /// Their predicted time, ns.
    pub work: Ns,
    /// When its submitted work is predicted to end.
    pub busy_until: Ns,
    /// Credit given in all, ns.
    pub granted: Ns,
    /// Of that, what came back under a run-ahead window as its work was seen to end, ns.
    pub renewed: Ns,
    /// Credit used in all, as the client says, ns.
    pub issued: Ns,
    /// Credit taken back in all, ns. Below zero where overdrawn credit was forgiven.
    pub revoked: i64,
    /// Credit not used yet, ns. Below zero where overdrawn.
    pub left: i64,
    /// Used credit whose work was not seen to end, ns.
    pub outstanding: Ns,
    /// Work that was never seen to end and is no longer waited for, ns.
    pub written_off: Ns,
    /// How often it was let through although it fitted nowhere, so that it does not starve.
    pub starved: u64,
    /// How well its gaps were foreseen while it was a foreground job, under `weft`.
    pub gaps: ForecastView,
    /// How well its kernels' times were foreseen while it was a background job, under `weft`.
    pub times: ForecastView,
}

/// How good forecasts were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ForecastView {
    /// Values that were forecast, those too short to matter left out.
    pub forecasts: u64,
    /// The part of them that kept the promise: gaps no shorter than the forecast's low value, times
    /// no longer than its high one. 0.9 is right.
    pub kept: Option<f64>,
    /// The mean distance between forecast and value, as a part of the mean value.
    pub error: Option<f64>,
    /// Contexts that are known.
    pub contexts: usize,
}

impl ForecastView {
    /// Of gaps.
    pub(super) fn of_gaps((quality, contexts): (Quality, usize)) -> ForecastView {
        ForecastView {
            forecasts: quality.forecasts,
            kept: quality.coverage(),
            error: quality.relative_error(),
            contexts,
        }
    }

    /// Of kernel times.
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
    /// Hash.
    pub kernel: u64,
    /// Predicted time, ns.
    pub cost: Ns,
    /// Since when.
    pub since: Ns,
}

/// A gap of the foreground jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GapView {
    /// When the last foreground job's work ended, as predicted or seen.
    pub since: Ns,
    /// When the foreground job is predicted to be back. `None`: open-ended.
    pub until: Option<Ns>,
}

/// What happened so often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Events taken in.
    pub events: u64,
    /// Grants given.
    pub grants: u64,
    /// Credit taken back because a foreground job came back, or for somebody more important.
    pub revocations: u64,
    /// Gaps of known length that were opened for background jobs.
    pub gaps: u64,
    /// Gaps that became open-ended.
    pub open_gaps: u64,
    /// Gaps that ended before their predicted end.
    pub early_returns: u64,
    /// Grants given so that nobody starves.
    pub starvation_grants: u64,
    /// Grants given because the client's own earlier work did not end.
    pub stuck_grants: u64,
    /// Long turns that began, of those whose memory does not fit the device together.
    pub long_turns: u64,
    /// Times that outstanding work was written off.
    pub write_offs: u64,
    /// Events with figures that cannot be (a time far off, a count that went backwards), corrected.
    pub corrected: u64,
    /// Events of clients that are not attached (or attached already), ignored.
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
