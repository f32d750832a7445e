// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of the control plane: a few a second. A launch never waits for one.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use weft_kernel_id::KernelId;
pub use weft_profiles::working_set::Access;
use weft_profiles::working_set::KernelWorkingSet;

use super::Ns;
use super::latency_budget::LatencyBudget;

/// Begin of the note of a client that attaches again.
pub const ATTACHED_AGAIN: &str = "attached again after losing its broker";

/// Bytes of a granule: the piece of memory that a unified-memory driver moves at once.
pub const GRANULE: u64 = 2 << 20;

/// Neighbouring granules that a launch uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GranuleUse {
    /// Time since the client's period began.
    pub at: Ns,
    /// Address of the first granule / [`GRANULE`].
    pub first: u64,
    /// Number of granules.
    pub count: u32,
    /// Kind of access.
    pub access: Access,
}

/// Characters of the longest name of a job, which has a column of a terminal.
pub const LONGEST_JOB_NAME: usize = 64;

/// First message of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`super::VERSION`] of the client.
    pub version: u32,
    /// Process id in the client's namespace. The broker believes the socket's credentials.
    pub pid: u32,
    /// 0 (most important) to 9.
    pub priority: u8,
    /// Name of the profile, from `WEFT_PROFILE`.
    pub profile: Option<String>,
    /// Whether stage-1 samples are wanted: `WEFT_MODE=profile`.
    pub profiling: bool,
    /// Command line, for people.
    pub command: String,
    /// Latency that the job may lose as a foreground job.
    pub budget: LatencyBudget,
    /// Name that the user gave the job in `WEFT_NAME`; without it the job is named after its
    /// script.
    pub name: Option<String>,
}

/// A client's messages after [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToBroker {
    /// First launch of a kernel.
    Kernel {
        /// Its hash, as in records.
        hash: u64,
        /// Its identity.
        id: KernelId,
    },
    /// A graph was instantiated or changed.
    Graph {
        /// Its identity, as in records.
        hash: u64,
        /// Hashes of its kernels in launch order.
        kernels: Vec<u64>,
    },
    /// The device of this attachment.
    Device {
        /// The name from `cuDeviceGetName`.
        name: String,
        /// The UUID from `cuDeviceGetUuid`, in hexadecimal.
        uuid: String,
        /// Bytes.
        memory: u64,
        /// The version from `cuDriverGetVersion`.
        driver: u32,
        /// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED`; `None`: the driver does not know it.
        mps: Option<bool>,
    },
    /// A range of the client's memory became managed.
    Backed {
        /// First address.
        start: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A freed managed range is kept for reuse: its content is dead until [`ToBroker::Backed`].
    Resting {
        /// First address.
        start: u64,
    },
    /// Managed ranges that calls named since the last such message.
    Touched {
        /// First addresses. `None`: unknown, so all ranges.
        starts: Option<Vec<u64>>,
    },
    /// Granules that the job touches in each period, in order, in parts of one packet. A forecast
    /// without uses withdraws the forecast before it.
    Forecast {
        /// Number of the forecast, which the lane's page operations repeat.
        number: u32,
        /// Duration of a period.
        period: Ns,
        /// This part's uses.
        uses: Vec<GranuleUse>,
        /// Whether this is the last part.
        ends: bool,
    },
    /// Memory that a kernel touches, in stage 1.
    WorkingSet(KernelWorkingSet),
    /// A managed range is gone.
    Unbacked {
        /// First address.
        start: u64,
    },
    /// The job asks to begin, before it touches the device. Sent to each new broker.
    Wants(Wants),
    /// Asks for bytes beyond the quota. The admission slot has the answer.
    More {
        /// Bytes.
        bytes: u64,
        /// Longest wait for them. 0: none.
        patience: Ns,
    },
    /// The client no longer waits for [`ToBroker::More`].
    NoMore,
    /// A job with auto backing ([`Wants::either`]) began on device memory because no answer came in
    /// time.
    OnDevice,
    /// The client runs without waiting for admission.
    WaitsNoMore,
    /// The first context exists; the client probes the device's free memory.
    Context {
        /// Free bytes.
        free: u64,
        /// Bytes that the process held at that time.
        held: u64,
        /// Bytes of managed memory that the job allocated itself.
        own: u64,
        /// Start of the probe (`CLOCK_MONOTONIC`).
        at: Ns,
    },
    /// A line for people in `weft status`.
    Note(String),
    /// The client is about to end and wants [`ToClient::Outcome`]; answered once.
    Outcome,
    /// Clean end.
    Goodbye,
    /// The driver refused memory within the quota. The broker takes back the part of the quota that
    /// the client does not hold, and answers as for [`ToBroker::More`].
    Refused {
        /// Free bytes, less than the refused ones.
        free: u64,
    },
    /// The MPS server of the process ([`super::device_share::mps_server`]), before
    /// [`ToBroker::Device`].
    MpsServer(u64),
}

/// Bytes of the longest plausible device name.
const LONGEST_NAME: usize = 256;

impl ToBroker {
    /// Whether an honest client can send this. Others are ignored: device names become keys.
    pub fn is_sound(&self) -> bool {
        match self {
            ToBroker::Device { name, uuid, .. } => is_uuid(uuid) && name.len() <= LONGEST_NAME,
            ToBroker::Wants(wants) => is_uuid(&wants.uuid),
            _ => true,
        }
    }
}

/// Whether this is a UUID as of `cuDeviceGetUuid`, in hexadecimal, or empty.
pub fn is_uuid(text: &str) -> bool {
    text.is_empty() || (text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// A job's wishes before it begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wants {
    /// UUID of the device, in hexadecimal.
    pub uuid: String,
    /// Memory of the device, bytes.
    pub total: u64,
    /// 0: the first device of this process; else a further one, attached by itself.
    pub further: u32,
    /// Number of devices that the process sees.
    pub devices: u32,
    /// Declared peak need on all devices, bytes.
    pub memory: Option<u64>,
    /// Declared duration: `short`, `medium` or `long`.
    pub duration: Option<String>,
    /// Gang of the processes of one job; empty: none.
    pub gang: String,
    /// Number of processes that the job will have.
    pub processes: u32,
    /// User for fair sharing; empty: the broker's.
    pub user: String,
    /// Whether its memory is managed.
    pub managed: bool,
    /// Auto backing: the broker chooses on admission
    /// ([`super::admission_slot::AdmissionSlot::backing`]).
    pub either: bool,
    /// Host memory that the job's control groups leave, bytes: they are charged for evicted memory.
    /// `None`: no limit, or the job's memory is never managed.
    pub host: Option<u64>,
    /// Bytes that a running job has or may have, for a new broker. `None`: not running.
    pub runs: Option<u64>,
    /// Most device memory that the job gets, bytes; `None`: no limit.
    pub limit: Option<u64>,
}

/// The broker's messages to a client. Urgent orders are in the lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// Attached, with the lane and the epoch page.
    Welcome {
        /// The client's number at this broker.
        client: u64,
        /// Costs of its profile's kernels: (hash, ns).
        costs: Vec<(u64, Ns)>,
    },
    /// Not attached: the job runs without weft.
    Refused(Refusal),
    /// A line for stderr at any log level, for example why the job waits.
    Said(String),
    /// Memory that kernels touch, from the job's profile.
    WorkingSets(Vec<KernelWorkingSet>),
    /// A warning for stderr, for example about an unusable profile.
    Warning(String),
    /// The profile is of another GPU: forget the costs of [`ToClient::Welcome`].
    ForgetCosts,
    /// Costs of kernels from now on: (hash, ns). The client counts each such message in
    /// [`super::lane::LaneCounters::charges`]; the broker sends the next one after that.
    Costs(Vec<(u64, Ns)>),
    /// Upper times of kernels that may far exceed their cost: (hash, ns). Under a run-ahead window
    /// the upper time must fit.
    MayTake(Vec<(u64, Ns)>),
    /// Lines for stderr: weft's results for the job, and its warnings.
    Outcome(Vec<String>),
}

/// Why a client was not attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Another protocol version.
    #[error("the broker uses protocol {broker}, this job's libweft {client}: use weft and libweft of one build")]
    Version {
        /// The broker's.
        broker: u32,
        /// The client's.
        client: u32,
    },
    /// Another user.
    #[error("the broker belongs to another user")]
    User,
    /// Priority out of range.
    #[error("priority {0} is not between 0 (most important) and 9")]
    Priority(u8),
    /// The profile cannot be used.
    #[error("profile {name}: {why}")]
    Profile {
        /// Its name.
        name: String,
        /// The fault and its remedy.
        why: String,
    },
    /// The broker has its limit of clients.
    #[error("the broker is at its limit of {0} clients")]
    Full(usize),
    /// A shared broker believes only the kernel's process ids.
    #[error("the shared broker cannot see this process (it is in a pid namespace that is not below the broker's)")]
    Unseen,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_called_as_a_driver_calls_it() {
        for good in ["", &"0f".repeat(16), &"AB".repeat(16)] {
            assert!(is_uuid(good), "{good}");
        }
        for bad in [
            "0",
            "GPU-5e1f",
            &"0g".repeat(16),
            &"00".repeat(17),
            "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}",
        ] {
            assert!(!is_uuid(bad), "{bad}");
        }
        let wants = |uuid: &str| {
            ToBroker::Wants(Wants {
                uuid: uuid.into(),
                ..Wants::default()
            })
        };
        assert!(wants("").is_sound() && !wants("0").is_sound());
        assert!(ToBroker::Goodbye.is_sound());
    }
}
