//! What a broker tells people about itself: the one source for `weft status`, its JSON and the
//! tests.
//!
//! Every figure is described where it is declared. Times are seconds or nanoseconds as their name
//! says, sizes bytes.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The whole answer of `weft status --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The broker itself.
    pub broker: BrokerStatus,
    /// Who is attached, most important first.
    pub clients: Vec<ClientStatus>,
    /// The last clients that ended, newest first.
    pub ended: Vec<EndedStatus>,
}

/// The broker itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BrokerStatus {
    /// Its process.
    pub pid: u32,
    /// Version of the package.
    pub version: String,
    /// Version of the protocol.
    pub protocol: u32,
    /// The policy in force.
    pub policy: String,
    /// Where clients attach.
    pub socket: PathBuf,
    /// It serves many users.
    #[serde(default)]
    pub shared: bool,
    /// Where profiles are kept; a shared broker keeps none.
    pub profiles: PathBuf,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// The most predicted background job work that may be outstanding, us.
    pub delay_bound_us: u64,
    /// The longest a launch may wait at the gate, ms.
    pub longest_wait_ms: u64,
    /// How many times slower than it pretends it takes the device to be (`--dilation`).
    #[serde(default)]
    pub dilation: f64,
    /// How the scheduler thread waits now: `parked`, `napping` or `spinning`.
    pub waiting: String,
    /// Clients that ever attached.
    pub attached: u64,
    /// Clients that were refused, by any reason.
    pub refused: u64,
    /// Clients that said goodbye.
    pub goodbyes: u64,
    /// Clients that went without a word (killed, crashed, or ended without running destructors).
    pub vanished: u64,
    /// Lanes that lied and were let go.
    pub detached: u64,
    /// Records that were overwritten before they were read.
    pub records_lost: u64,
    /// Records read.
    pub records: u64,
    /// Decisions carried out.
    pub decisions: u64,
    /// Turns of the scheduler thread.
    pub turns: u64,
    /// Profiles that could not be written, with the last reason.
    pub profile_failures: u64,
    /// The last trouble worth a person's attention.
    pub last_trouble: Option<String>,
    /// The own view of the core of the device that was heard of first; `None` if the scheduler
    /// thread did not answer.
    pub core: Option<serde_json::Value>,
    /// The same of each device that a job has used.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
    /// Other brokers that have one of these.
    #[serde(default)]
    pub others: Vec<OtherBroker>,
}

/// Another broker that has a device of ours: its jobs and ours do not meet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OtherBroker {
    /// The device's UUID, in hexadecimal.
    pub device: String,
    /// Its process, as the kernel says; `None`: in a pid namespace that cannot be seen from here.
    pub pid: Option<u32>,
    /// Its user, as the kernel says.
    pub uid: Option<u32>,
    /// Seconds since it was heard of.
    pub since_s: f64,
}

impl fmt::Display for OtherBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}: another broker has it, too (", self.device)?;
        match self.pid {
            Some(pid) => write!(f, "process {pid}")?,
            None => f.write_str("in another container")?,
        }
        if let Some(uid) = self.uid {
            write!(f, " of user {uid}")?;
        }
        f.write_str(
            "): its jobs and these do not meet; run one weft broker --shared, and bind /run/weft into containers",
        )
    }
}

/// A device's core.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// As the driver says, in hexadecimal; `None`: no job has said its device yet.
    pub uuid: Option<String>,
    /// Clients that say that they share it under MPS.
    #[serde(default)]
    pub under_mps: usize,
    /// Clients that say that they do not. One is enough, and the device is taken to switch between
    /// processes.
    #[serde(default)]
    pub not_under_mps: usize,
    /// The core's own view.
    pub core: serde_json::Value,
}

/// One attached client.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its number at this broker.
    pub client: u64,
    /// Its process.
    pub pid: u32,
    /// Its user, as the kernel says.
    #[serde(default)]
    pub uid: u32,
    /// The command line; empty where it is another user's of a shared broker, and so are the
    /// profile and the notes then.
    pub command: String,
    /// 0 (most important) to 9.
    pub priority: u8,
    /// alone, foreground job, background job or free; `waits for memory`: it has not begun, and has
    /// no role before it has.
    pub mode: String,
    /// Seconds that it waits for device memory now, to begin or for more; `None`: it does not.
    #[serde(default)]
    pub waits_for_memory_s: Option<f64>,
    /// The profile it serves with or samples into.
    pub profile: Option<String>,
    /// Why it runs without the profile it named, or that this is of other code.
    pub profile_trouble: Option<String>,
    /// Of the kernels it named, those that its profile has times of.
    #[serde(default)]
    pub profile_known: u64,
    /// Whether it takes stage-1 samples.
    pub profiling: bool,
    /// Seconds since it attached.
    pub attached_s: f64,
    /// The device it uses, once known.
    pub device: Option<String>,
    /// Kernel launches.
    pub launches: u64,
    /// Graph launches.
    pub graph_launches: u64,
    /// Copies and memsets.
    pub transfers: u64,
    /// Times a launch waited at the gate.
    pub waits: u64,
    /// Time spent waiting at the gate, ns.
    pub waited_ns: u64,
    /// Waits that ended at their bound: weft stepped aside.
    pub waits_expired: u64,
    /// Launches in the middle of a burst that the job times (an auto-tuner's), and collectives that
    /// other devices wait for, let past the gate on purpose.
    pub unsplit: u64,
    /// Launches that its host left behind at a closed gate (`WEFT_QUEUE`), to be issued when it
    /// opens.
    #[serde(default)]
    pub left_behind: u64,
    /// Of those, such that the driver refused: the job was told by a later call.
    #[serde(default)]
    pub left_failed: u64,
    /// Whether a launch waits now.
    pub waiting: bool,
    /// Whether the process is stopped (SIGSTOP, the terminal's Ctrl-Z, a debugger).
    #[serde(default)]
    pub stopped: bool,
    /// Launches of handles with no known name.
    pub unnamed: u64,
    /// Launches into a capturing stream.
    pub captured: u64,
    /// Troubles answered by passing the call through.
    pub troubles: u64,
    /// Control messages that were dropped.
    pub dropped_messages: u64,
    /// Device memory held, bytes.
    pub memory: u64,
    /// The most device memory held, bytes.
    pub memory_peak: u64,
    /// Of the memory held, what is managed, bytes.
    pub managed: u64,
    /// Bytes of host memory that its control groups leave it, of a job whose memory is managed; 0:
    /// no limit that it sees. No more of its memory is ordered off the device.
    #[serde(default)]
    pub host_left: u64,
    /// Managed memory that the job took by itself, bytes; none of it is in the memory held.
    pub managed_own: u64,
    /// Allocations that stayed device memory though the job is managed.
    pub unmanaged: u64,
    /// Managed memory on the device, bytes: an estimate, as [`ClientStatus::faulted`].
    pub resident: u64,
    /// Managed memory that came to the device by faults, because a launch touched it before
    /// anything had brought it, bytes. An estimate: no driver tells a process. It is reckoned in
    /// whole granules of 2 MiB from what launches are foretold to touch, what was moved for the
    /// job, and the order in which the driver gives up what it has no room for.
    #[serde(default)]
    pub faulted: u64,
    /// What the job is known to touch of its managed memory, bytes.
    pub working_set: u64,
    /// What the device's link was measured to carry to it, by what moves of managed memory took,
    /// bytes a second; 0: not measured yet, the plan goes by a rate that is taken for granted.
    #[serde(default)]
    pub to_device_bytes_per_s: u64,
    /// The same to the host.
    #[serde(default)]
    pub to_host_bytes_per_s: u64,
    /// How long its turns with the device's memory are, ns; 0 where it finds room beside the others
    /// and takes none.
    pub turn_ns: u64,
    /// Such turns that it had.
    pub turns: u64,
    /// Whether it has one now.
    pub has_turn: bool,
    /// Bytes brought to the device ahead of their use.
    pub prefetched: u64,
    /// Bytes moved to the host to make room.
    pub evicted: u64,
    /// Bytes given up without a copy.
    pub discarded: u64,
    /// Moves that the driver or the job's side refused: memory moved on demand instead.
    pub page_ops_refused: u64,
    /// Moves that took more than a second.
    pub page_ops_late: u64,
    /// Nanoseconds that launches waited for memory that was on its way.
    pub memory_waited_ns: u64,
    /// Launches whose memory did not come in time: it came by demand.
    pub memory_waits_expired: u64,
    /// Credit left, predicted ns.
    pub credit_ns: i64,
    /// Background job work issued and not seen to have ended, predicted ns.
    pub outstanding_ns: u64,
    /// Credit ever given, predicted ns.
    pub granted_ns: u64,
    /// Credit ever taken back, predicted ns.
    pub revoked_ns: i64,
    /// Kernels it named.
    pub kernels: u64,
    /// Stage-1 samples received.
    pub samples: u64,
    /// Records that were overwritten before they were read.
    pub records_lost: u64,
    /// The last lines its side wanted seen.
    pub notes: Vec<String>,
}

impl ClientStatus {
    /// What is nobody's business but its user's and the broker's owner's is left out: what it is
    /// called, what it serves with, what it has to say.
    pub fn hide(&mut self) {
        self.command.clear();
        self.notes.clear();
        (self.profile, self.profile_trouble) = (None, None);
    }
}

/// How a client ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// It said goodbye.
    Goodbye,
    /// It went without a word.
    Vanished,
    /// Its lane lied and the broker let it go.
    Detached,
}

/// A client of the past.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndedStatus {
    /// What was last known of it.
    pub last: ClientStatus,
    /// How it ended.
    pub ending: Ending,
    /// Seconds since it ended.
    pub ago_s: f64,
}

/// What became of the samples of one profile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// Clients that sample into it now.
    pub active: u64,
    /// Clients that ever did since the sampling began.
    pub clients: u64,
    /// Kernel launches of those clients.
    pub launches: u64,
    /// Samples received.
    pub samples: u64,
    /// Kernels that were named.
    pub kernels: u64,
    /// The file, once written.
    pub file: Option<PathBuf>,
    /// Why the last writing failed.
    pub trouble: Option<String>,
    /// What the profile is called now that had the name before.
    #[serde(default)]
    pub kept: Option<String>,
}

/// A profile that was made of what a job took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The job's command line.
    pub command: String,
    /// Bytes at its peak.
    pub memory_peak: u64,
    /// How long it ran, seconds.
    pub ran_s: f64,
    /// It would have taken more than was free.
    pub denied: bool,
    /// Where it lies.
    pub file: PathBuf,
}
