//! The messages of the control plane.
//!
//! They travel over the transport (see the daemon's and the interposer's transport modules), a few
//! a second. A launch never waits for one.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use weft_kernel_id::KernelId;
pub use weft_profiles::working_set::Access;
use weft_profiles::working_set::KernelWorkingSet;

use super::Ns;

/// Bytes of the granules of [`GranuleUse`]: what a unified-memory driver moves as one.
pub const GRANULE: u64 = 2 << 20;

/// Neighbouring granules of a client's memory that a launch uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GranuleUse {
    /// When, in the client's own time since its period began.
    pub at: Ns,
    /// Number of the first: its address over [`GRANULE`].
    pub first: u64,
    /// How many.
    pub count: u32,
    /// How.
    pub access: Access,
}

/// The first message of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`super::VERSION`] of the client.
    pub version: u32,
    /// Process id as the client sees it. The broker believes the socket's credentials, not this.
    pub pid: u32,
    /// 0 (most important) to 9.
    pub priority: u8,
    /// Name of the profile, from `WEFT_PROFILE`.
    pub profile: Option<String>,
    /// Whether stage-1 samples are wanted (`weft profile`), from `WEFT_MODE=profile`.
    pub profiling: bool,
    /// The command line, for people.
    pub command: String,
}

/// A client's messages after [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToBroker {
    /// A kernel was launched for the first time.
    Kernel {
        /// Its hash, as in records.
        hash: u64,
        /// What it is.
        id: KernelId,
    },
    /// A graph was instantiated or changed: its kernels in launch order.
    Graph {
        /// Its identity, as in records.
        hash: u64,
        /// Hashes of its kernel nodes.
        kernels: Vec<u64>,
    },
    /// The device that the process uses by this attachment.
    Device {
        /// As `cuDeviceGetName` says.
        name: String,
        /// As `cuDeviceGetUuid` says, in hexadecimal.
        uuid: String,
        /// Bytes.
        memory: u64,
        /// As `cuDriverGetVersion` says.
        driver: u32,
        /// Whether the process shares the device under NVIDIA's multi-process service, as
        /// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED` says; `None`: the driver does not know that attribute.
        mps: Option<bool>,
    },
    /// A range of the client's memory came to be managed.
    Backed {
        /// First address.
        start: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A managed range was freed by the job and is kept for reuse: what it holds is dead until it
    /// is [`ToBroker::Backed`] again.
    Resting {
        /// First address.
        start: u64,
    },
    /// The managed ranges that the job's launches, copies and fills have named since the last such
    /// message.
    Touched {
        /// Their first addresses; `None`: what was launched does not say, so all of them.
        starts: Option<Vec<u64>>,
    },
    /// What the job touches in each of its periods, in order, in parts: a message must fit one
    /// packet of the channel. A forecast without uses takes the one before it back.
    Forecast {
        /// Which forecast, as the lane's page operations say it beside the position.
        number: u32,
        /// How long a period takes.
        period: Ns,
        /// A part of it.
        uses: Vec<GranuleUse>,
        /// It is the last part.
        ends: bool,
    },
    /// Stage 1: what a kernel touches.
    WorkingSet(KernelWorkingSet),
    /// A managed range is no more.
    Unbacked {
        /// First address.
        start: u64,
    },
    /// The job is about to touch the device: may it begin? Said anew to each broker.
    Wants(Wants),
    /// So many bytes more than its share. Answered in the admission slot.
    More {
        /// Bytes.
        bytes: u64,
        /// For so long it waits where they are not free but may come to be. 0: not at all.
        patience: Ns,
    },
    /// It waits no longer for what it wanted more.
    NoMore,
    /// It left open what its memory is ([`Wants::either`]) and has begun on device memory without
    /// the broker's word: it heard none in time.
    OnDevice,
    /// It waits no longer and runs without.
    WaitsNoMore,
    /// Its first context is there, and it looked at what is free on the device.
    Context {
        /// Bytes.
        free: u64,
        /// Bytes that the process itself held when it looked.
        held: u64,
        /// Bytes of managed memory that it had taken by itself then.
        own: u64,
        /// When it began to look (`CLOCK_MONOTONIC`).
        at: Ns,
    },
    /// A line that the job's side wants people to see in `weft status`.
    Note(String),
    /// A clean end.
    Goodbye,
}

/// The longest name of a device that makes sense.
const LONGEST_NAME: usize = 256;

impl ToBroker {
    /// Whether it could be said by a client of ours. What is not is taken for no message at all:
    /// names of devices are keys of what is kept.
    pub fn is_sound(&self) -> bool {
        match self {
            ToBroker::Device { name, uuid, .. } => is_uuid(uuid) && name.len() <= LONGEST_NAME,
            ToBroker::Wants(wants) => is_uuid(&wants.uuid),
            _ => true,
        }
    }
}

/// Whether these are the 16 bytes in hexadecimal that `cuDeviceGetUuid` gives of a device or of a
/// MIG instance, or nothing at all.
pub fn is_uuid(text: &str) -> bool {
    text.is_empty() || (text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// What a job says of itself before it begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wants {
    /// The device, as `cuDeviceGetUuid` says, in hexadecimal.
    pub uuid: String,
    /// Its bytes.
    pub total: u64,
    /// 0: the first device of this process; else one that it came to use besides, for which it
    /// attached once more.
    pub further: u32,
    /// How many devices the process sees.
    pub devices: u32,
    /// Bytes that the job takes at its peak on all its devices together, if it was said.
    pub memory: Option<u64>,
    /// How long it runs, if it was said: `short`, `medium` or `long`.
    pub duration: Option<String>,
    /// What processes of one job have in common; empty: it is one by itself.
    pub gang: String,
    /// Processes of the job that will come.
    pub processes: u32,
    /// Who shares fairly with whom; empty: the user of the broker.
    pub user: String,
    /// Its memory is managed.
    pub managed: bool,
    /// It has not begun, and its memory is whatever the broker says beside its admission
    /// ([`super::admission_slot::AdmissionSlot::backing`]): device memory, or managed where it
    /// would wait otherwise.
    pub either: bool,
    /// Bytes of host memory that its control groups leave a job whose memory is or may come to be
    /// managed: what leaves the device is charged there. `None`: no limit, or it does not matter.
    pub host: Option<u64>,
    /// It runs already, and may have (or has) so many bytes: its broker was started anew.
    pub runs: Option<u64>,
}

/// The broker's messages to a client. Orders that matter by the microsecond are in the lane, not
/// here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// Attached. The lane and the epoch page came beside this message.
    Welcome {
        /// The client's number at this broker.
        client: u64,
        /// The kernels of its profile: (hash, cost that a background job is charged, ns).
        costs: Vec<(u64, Ns)>,
    },
    /// Not attached: run as without weft.
    Refused(Refusal),
    /// A line that the job's side says on its stderr whatever the level, and that is no warning:
    /// why it waits, say.
    Said(String),
    /// What some of the job's kernels touch, as its profile says.
    WorkingSets(Vec<KernelWorkingSet>),
    /// A line that the job's side says on its stderr: its profile cannot be used, say.
    Warning(String),
    /// The costs that came with [`ToClient::Welcome`] are not this job's: its profile turned out to
    /// be of another GPU. From now on every kernel is an unknown one.
    ForgetCosts,
    /// What some of its profile's kernels may well take, (hash, ns), where that is much more than
    /// what they cost: under a run-ahead window one of them goes only if all of that would end in
    /// time.
    MayTake(Vec<(u64, Ns)>),
}

/// Why a client was not attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Another protocol version.
    #[error("the broker speaks protocol {broker}, this job's libweft {client}: use the weft and libweft of one build")]
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
    #[error("priority {0} is not in 0 (most important) to 9")]
    Priority(u8),
    /// The profile could not be used; the job may run without one.
    #[error("profile {name}: {why}")]
    Profile {
        /// Its name.
        name: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// No more clients.
    #[error("the broker has its limit of {0} clients")]
    Full(usize),
    /// A shared broker believes no process id but the kernel's.
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
