// SPDX-License-Identifier: MIT OR Apache-2.0
//! Status of the broker: the source of `weft status`, of its JSON and of the tests.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::outcome::{Outcome, Requests, Warning};
use weft_protocol::Ns;
use weft_protocol::amount::shown;
use weft_protocol::eviction::{CheckpointBar, EvictionCause, EvictionSlot, Obstacle, Residence};

macro_rules! for_moves {
    () => {
        "run it with --backing movable (allocations of 2 MiB and more), or start it under a broker that allows the driver's checkpoint"
    };
}

/// Version of the documented fields of the answer. Their meaning does not change within a version.
pub const SCHEMA: u32 = 1;

/// The answer of `weft status --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`SCHEMA`] of the broker.
    #[serde(default)]
    pub schema: u32,
    /// The broker itself.
    pub broker: BrokerStatus,
    /// Attached clients, most important first.
    pub clients: Vec<ClientStatus>,
    /// The last clients that ended, newest first.
    pub ended: Vec<EndedStatus>,
    /// Reasons why protection does not work now.
    #[serde(default)]
    pub warnings: Vec<Warning>,
}

/// The broker itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BrokerStatus {
    /// Process id.
    pub pid: u32,
    /// Name of its machine, or of its node in Kubernetes.
    #[serde(default)]
    pub node: String,
    /// Whether it looks up the pods of its clients.
    #[serde(default)]
    pub knows_pods: bool,
    /// Package version.
    pub version: String,
    /// Protocol version.
    pub protocol: u32,
    /// The policy in force.
    pub policy: String,
    /// The socket's path.
    pub socket: PathBuf,
    /// Whether the broker serves many users.
    #[serde(default)]
    pub shared: bool,
    /// Whether the driver's checkpoint may move jobs on plain memory.
    #[serde(default)]
    pub checkpoint: bool,
    /// Folder of the profiles; a shared broker keeps none.
    pub profiles: PathBuf,
    /// Seconds since the broker started.
    pub uptime_s: f64,
    /// Bound on outstanding predicted background work, us.
    pub delay_bound_us: u64,
    /// Longest wait of a launch at the gate, ms.
    pub longest_wait_ms: u64,
    /// How the scheduler thread waits now: `parked`, `dozing`, `napping` or `spinning`.
    pub waiting: String,
    /// Clients that ever attached.
    pub attached: u64,
    /// Clients that were refused, for any reason.
    pub refused: u64,
    /// Clients that ended with a goodbye.
    pub goodbyes: u64,
    /// Clients without a goodbye: killed, crashed, without destructors.
    pub vanished: u64,
    /// Clients detached because their lane held impossible values.
    pub detached: u64,
    /// Clients whose processes ended, by how.
    #[serde(default)]
    pub exits: ExitCounts,
    /// Records overwritten before they were read.
    pub records_lost: u64,
    /// Records read.
    pub records: u64,
    /// Decisions carried out.
    pub decisions: u64,
    /// Iterations of the scheduler thread.
    pub turns: u64,
    /// Profiles that could not be written.
    pub profile_failures: u64,
    /// The last trouble worth a person's attention.
    pub last_trouble: Option<String>,
    /// Why jobs that end now are not in the history, with the remedy.
    #[serde(default)]
    pub history_trouble: Option<String>,
    /// Core of the first known device; `None`: no answer from the scheduler thread.
    pub core: Option<serde_json::Value>,
    /// Each device that a job has used.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
    /// Other brokers that have one of these devices.
    #[serde(default)]
    pub others: Vec<OtherBroker>,
    /// Its MPS daemon.
    #[serde(default)]
    pub mps: super::mps::MpsStatus,
}

/// Another broker that manages a device of this one; the two do not coordinate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OtherBroker {
    /// The device's UUID, in hexadecimal.
    pub device: String,
    /// Process id from the kernel; `None`: its pid namespace is not visible here.
    pub pid: Option<u32>,
    /// User id from the kernel.
    pub uid: Option<u32>,
    /// Seconds since this broker found the other.
    pub since_s: f64,
}

impl fmt::Display for OtherBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}: also managed by another broker (", self.device)?;
        match self.pid {
            Some(pid) => write!(f, "process {pid}")?,
            None => f.write_str("in another container")?,
        }
        if let Some(uid) = self.uid {
            write!(f, " of user {uid}")?;
        }
        f.write_str(
            "); the two do not coordinate: run a single weft broker --shared, and bind /run/weft into containers",
        )
    }
}

/// One device and its core.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// UUID from the driver, in hexadecimal; `None`: no job has named its device yet.
    pub uuid: Option<String>,
    /// Name by the driver; `None`: no attached job has named it.
    #[serde(default)]
    pub name: Option<String>,
    /// Memory of the device, bytes; `None`: as for the name.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Clients that report that they share the device under MPS, of one server: the one with most.
    #[serde(default)]
    pub under_mps: usize,
    /// All others; a single such client makes the device count as time-sliced.
    #[serde(default)]
    pub not_under_mps: usize,
    /// The core's own view.
    pub core: serde_json::Value,
}

/// One attached client.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Client number at this broker.
    pub client: u64,
    /// Process id.
    pub pid: u32,
    /// User id from the kernel.
    #[serde(default)]
    pub uid: u32,
    /// Name that the processes of its job share; empty: the client sent none.
    #[serde(default)]
    pub gang: String,
    /// Whether it is in another pid namespace, so its pid may mean another process here.
    #[serde(default)]
    pub elsewhere: bool,
    /// The job's name; see [`ClientStatus::hide`]. Processes of one job share it.
    #[serde(default)]
    pub name: String,
    /// Command line; see [`ClientStatus::hide`].
    pub command: String,
    /// Its container in Kubernetes; `None`: it has none, or the broker does not know it. See
    /// [`ClientStatus::hide`].
    #[serde(default)]
    pub pod: Option<PodContainer>,
    /// 0 (most important) to 9.
    pub priority: u8,
    /// `alone`, `foreground`, `background`, `free`, or `waits for memory` before any role.
    pub mode: String,
    /// Mean slowdown by background jobs that it allows as a foreground job, a part of its time;
    /// `None`: no scheduler has this client now.
    #[serde(default)]
    pub slowdown_allowed: Option<f64>,
    /// Slowdown by background jobs, measured at its waits, a part of its time; `None`: nothing was
    /// judged yet.
    #[serde(default)]
    pub slowdown_measured: Option<f64>,
    /// Longest time from its first launch to its next wait within which the slowdown may be used,
    /// ns; `None`: no limit.
    #[serde(default)]
    pub slo_ns: Option<u64>,
    /// Part of the device's time that it has at least as a background job; `None`: none.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// Seconds for which it has waited for device memory, if it waits now.
    #[serde(default)]
    pub waits_for_memory_s: Option<f64>,
    /// The profile that the client uses or samples into.
    pub profile: Option<String>,
    /// Reason why it has no profile, or a note that the profile is of other code.
    pub profile_trouble: Option<String>,
    /// Named kernels whose times the profile has.
    #[serde(default)]
    pub profile_known: u64,
    /// Whether the client takes stage-1 samples.
    pub profiling: bool,
    /// Seconds since the client attached.
    pub attached_s: f64,
    /// The client's device, once known.
    pub device: Option<String>,
    /// UUID of that device, in hexadecimal.
    #[serde(default)]
    pub device_uuid: Option<String>,
    /// Kernel launches.
    pub launches: u64,
    /// Graph launches.
    pub graph_launches: u64,
    /// Copies and memsets.
    pub transfers: u64,
    /// Launches that waited at the gate.
    pub waits: u64,
    /// Time spent waiting at the gate, ns.
    pub waited_ns: u64,
    /// Waits that ended at their bound: the launch passed.
    pub waits_expired: u64,
    /// Launches passed on purpose: inside tuning bursts, or collectives that other devices wait
    /// for.
    pub unsplit: u64,
    /// Launches deferred at a closed gate (`WEFT_QUEUE`).
    #[serde(default)]
    pub left_behind: u64,
    /// Deferred launches that the driver refused; a later call returned the error to the job.
    #[serde(default)]
    pub left_failed: u64,
    /// Durations of the requests that it marked.
    #[serde(default)]
    pub requests: Option<Requests>,
    /// Whether a launch waits now.
    pub waiting: bool,
    /// Whether the process is stopped (SIGSTOP, Ctrl-Z, a debugger).
    #[serde(default)]
    pub stopped: bool,
    /// Its movable memory, if it has or had some, or was ordered to move it.
    #[serde(default)]
    pub eviction: Option<EvictionStatus>,
    /// Launches of handles without a known name.
    pub unnamed: u64,
    /// Launches into a capturing stream.
    pub captured: u64,
    /// Internal errors; each time the call passed to the driver.
    pub troubles: u64,
    /// Control messages dropped.
    pub dropped_messages: u64,
    /// Device memory held, bytes.
    pub memory: u64,
    /// The most device memory held, bytes.
    pub memory_peak: u64,
    /// With a limit (`--memory REQUEST:LIMIT`), device memory that is kept for its job, bytes.
    #[serde(default)]
    pub memory_request: Option<u64>,
    /// The most device memory that its job gets, bytes.
    #[serde(default)]
    pub memory_limit: Option<u64>,
    /// The managed part of `memory`, bytes.
    pub managed: u64,
    /// Host memory that control groups still allow a managed job, bytes; 0: no limit seen. It
    /// bounds evictions.
    #[serde(default)]
    pub host_left: u64,
    /// Managed memory that the job allocated itself, bytes; not part of `memory`.
    pub managed_own: u64,
    /// Allocations of a managed job that are plain device memory.
    pub unmanaged: u64,
    /// Managed memory on the device, bytes; an estimate like [`ClientStatus::faulted`].
    pub resident: u64,
    /// Managed memory that arrived by page faults, bytes: touched before it was prefetched.
    ///
    /// An estimate in granules of 2 MiB, since no driver reports it: from predicted touches, moves
    /// for the job, and the driver's order of eviction.
    #[serde(default)]
    pub faulted: u64,
    /// Working set: memory that the job is known to touch, bytes.
    pub working_set: u64,
    /// Measured rate of moves to the device, bytes/s; 0: none measured, a rate is assumed.
    #[serde(default)]
    pub to_device_bytes_per_s: u64,
    /// Measured rate of moves to the host, bytes/s; 0: none measured.
    #[serde(default)]
    pub to_host_bytes_per_s: u64,
    /// Length of the client's turns with the device's memory, ns; 0: no turns needed.
    pub turn_ns: u64,
    /// Time that the client is swapped out between two turns, ns; 0: no turns needed.
    #[serde(default)]
    pub swapped_out_ns: u64,
    /// Value that `swapped_out_ns` would need, ns, if turns are too short for the memory that they
    /// move; 0: they are not.
    #[serde(default)]
    pub swapped_out_needed_ns: u64,
    /// Turns so far.
    pub turns: u64,
    /// Whether the client has a turn now.
    pub has_turn: bool,
    /// Bytes moved to the device ahead of use.
    pub prefetched: u64,
    /// Bytes moved to the host to make room.
    pub evicted: u64,
    /// Bytes discarded without a copy.
    pub discarded: u64,
    /// Page operations refused by driver or client; their memory moves on demand.
    pub page_ops_refused: u64,
    /// Page operations that took more than 1 s.
    pub page_ops_late: u64,
    /// Time that launches waited for arriving memory, ns.
    pub memory_waited_ns: u64,
    /// Launches whose memory was late and moved on demand.
    pub memory_waits_expired: u64,
    /// Credit left, predicted ns.
    pub credit_ns: i64,
    /// Background work issued and not seen to have ended, predicted ns.
    pub outstanding_ns: u64,
    /// Credit ever granted, predicted ns.
    pub granted_ns: u64,
    /// Credit ever taken back, predicted ns.
    pub revoked_ns: i64,
    /// Kernels the client named.
    pub kernels: u64,
    /// Stage-1 samples received.
    pub samples: u64,
    /// Records overwritten before they were read.
    pub records_lost: u64,
    /// The client's latest messages for its user.
    pub notes: Vec<String>,
    /// Its outcome so far, or in all; `None`: not known.
    #[serde(default)]
    pub outcome: Option<Outcome>,
}

/// A container of a pod, by the names that Kubernetes gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodContainer {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container within the pod.
    pub container: String,
}

/// Movable memory of a client, and the latest order to move it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvictionStatus {
    /// `device`, `leaving`, `evicted`, `returning`, `stuck` in a step of the driver, or `fixed`:
    /// there is none.
    pub state: String,
    /// How it moves: `blocks`, or `checkpoint` by the driver.
    #[serde(default)]
    pub by: String,
    /// Movable memory, bytes, wherever it is.
    pub movable: u64,
    /// Bytes of it on the host; they are not part of [`ClientStatus::memory`].
    pub bytes: u64,
    /// Seconds since they left the device.
    pub since_s: Option<f64>,
    /// Why they left: `command`, `room` for another job, or `idle`; `None`: they did not.
    #[serde(default)]
    pub cause: Option<String>,
    /// How often a call of the idle job brought them back.
    #[serde(default)]
    pub wakes: u32,
    /// Seconds for which that call waited, the last time.
    #[serde(default)]
    pub woke_in_s: Option<f64>,
    /// Bytes of stream-ordered memory, of pools and of graphs, which stay on the device.
    #[serde(default)]
    pub ordered: u64,
    /// Bytes that the job mapped itself, which stay on the device.
    #[serde(default)]
    pub mapped: u64,
    /// The latest order; 0: none.
    pub order: u32,
    /// The latest order that was carried out or refused.
    pub answered: u32,
    /// Why the latest order was not carried out, or not yet.
    pub obstacle: Option<String>,
}

impl EvictionStatus {
    /// Reads a client's words at time `now`, ns of the machine's clock.
    pub fn of(slot: &EvictionSlot, now: Ns) -> Option<EvictionStatus> {
        let (residence, since) = (slot.residence(), slot.since.load(Ordering::Relaxed));
        let order = slot.order.load(Ordering::Acquire);
        let wakes = slot.wakes.load(Ordering::Relaxed);
        let bytes = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let (ordered, mapped) = (bytes(&slot.ordered), bytes(&slot.mapped));
        if residence == Residence::Fixed && order == 0 && ordered == 0 && mapped == 0 {
            return None;
        }
        Some(EvictionStatus {
            state: match slot.is_stuck(now) {
                true => STUCK.to_string(),
                false => residence.name().to_string(),
            },
            by: slot.by().name().to_string(),
            movable: bytes(&slot.movable),
            bytes: bytes(&slot.evicted),
            since_s: (since > 0).then(|| now.saturating_sub(since) as f64 / 1e9),
            cause: (since > 0).then(|| slot.cause().name().to_string()),
            wakes,
            woke_in_s: (wakes > 0).then(|| slot.woke_in.load(Ordering::Relaxed) as f64 / 1e9),
            ordered,
            mapped,
            order,
            answered: slot.answered.load(Ordering::Acquire),
            obstacle: match slot.is_stuck(now) {
                true => Some("a step of the driver takes too long, and cannot be called off".to_string()),
                false => slot.obstacle().map(obstacle_text),
            },
        })
    }

    /// Whether the memory left because the job was idle: its next call brings it back.
    pub fn is_idle(&self) -> bool {
        self.cause.as_deref() == Some(EvictionCause::Idle.name())
    }

    /// The memory that stays on the device of the `held` bytes there, with its kinds. `None`: there
    /// is none.
    pub fn stays(&self, held: u64) -> Option<String> {
        let known = self.movable.saturating_sub(self.bytes) + self.ordered + self.mapped;
        let kinds = [
            (held.saturating_sub(known), "plain"),
            (self.ordered, "stream-ordered, in pools or in graphs"),
            (self.mapped, "mapped by the job itself"),
        ];
        let there = kinds.iter().filter(|(bytes, _)| *bytes > 0);
        let words: Vec<String> = there.map(|(bytes, kind)| format!("{} {kind}", shown(*bytes))).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// Why nothing of it can move.
    pub fn nothing_movable(&self) -> String {
        self.stays(0).map_or_else(
            || NOTHING_MOVABLE.to_string(),
            |kinds| format!("none of its memory can move: {kinds}"),
        )
    }

    /// Whether the memory left by a command: it stays until another one.
    pub fn is_by_command(&self) -> bool {
        self.cause.as_deref() == Some(EvictionCause::Command.name())
    }

    /// Whether all memory that can move is on the host.
    pub fn is_on_host(&self) -> bool {
        self.state == Residence::Evicted.name()
    }

    /// Whether the memory is not on the device, or not all of it.
    pub fn is_away(&self) -> bool {
        matches!(self.state.as_str(), "leaving" | "evicted" | "returning" | STUCK)
    }
}

/// State of memory that the driver has been moving for too long.
const STUCK: &str = "stuck";

/// Why a job without movable memory is not moved.
pub const NOTHING_MOVABLE: &str = concat!("it has no movable memory: ", for_moves!());

/// The ways to start a job whose memory can move.
pub const FOR_MOVES: &str = for_moves!();

/// Why the driver's checkpoint is not used for a job.
fn bar_text(bar: CheckpointBar) -> &'static str {
    match bar {
        CheckpointBar::NotAllowed => "the broker does not allow it (checkpoint in weft.toml)",
        CheckpointBar::DriverLacks => "this driver has none (it begins with driver 570)",
        CheckpointBar::Managed => "the job has managed memory",
        CheckpointBar::Shared => "the job shares memory or events with other processes",
        CheckpointBar::Devices => "the job uses several devices",
        CheckpointBar::Mig => "the device is a MIG instance",
        CheckpointBar::Module => "the open kernel module of driver 595 hung whole machines after it",
        CheckpointBar::Mps => "the job shares its device under MPS, which is untried",
        CheckpointBar::Stuck => "an earlier step of the driver failed half-way",
        CheckpointBar::Group => "the job has an NCCL group, with which driver 595 ended jobs",
    }
}

/// Why an order was not carried out, in one line.
fn obstacle_text(obstacle: Obstacle) -> String {
    match obstacle {
        Obstacle::NothingMovable => NOTHING_MOVABLE.to_string(),
        Obstacle::Capture => "it captures a graph: try again".to_string(),
        Obstacle::Busy(0) => "it uses the device now: its memory stays".to_string(),
        Obstacle::Busy(seconds) => {
            format!("its calls and its work on the device did not end within {seconds} s: it runs on")
        }
        Obstacle::Host(bytes) => format!(
            "{} of host memory are needed, and the machine or the job's control group has less",
            shown(bytes)
        ),
        Obstacle::Shared => "it handed its memory to something that weft does not see".to_string(),
        Obstacle::Driver(error) => format!("the driver refused (error {error})"),
        Obstacle::Device(bytes) => format!("{} of device memory are not free", shown(bytes)),
        Obstacle::Internal => "a part of weft failed in this job".to_string(),
        Obstacle::Barred(bar) => format!("the driver's checkpoint cannot be used: {}", bar_text(bar)),
        Obstacle::NoBroker => "no broker is there to grant it device memory".to_string(),
    }
}

impl ClientStatus {
    /// Clears the fields that only the client's user and the broker's owner may see.
    pub fn hide(&mut self) {
        self.name.clear();
        self.command.clear();
        self.gang.clear();
        self.notes.clear();
        self.pod = None;
        (self.profile, self.profile_trouble) = (None, None);
        if let Some(outcome) = &mut self.outcome {
            outcome.warnings.clear();
        }
    }
}

/// How a client ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// The client sent a goodbye.
    Goodbye,
    /// The client ended without a goodbye.
    Vanished,
    /// The broker detached the client because its lane held impossible values.
    Detached,
}

/// How a client's process ended. `None`: not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The code that it exited with.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// `weft cancel` asked it to end.
    pub cancelled: bool,
}

impl Exit {
    /// For people: `well`, `failed 3`, `killed 9`, `cancelled`; without an exit status a word for
    /// `ending`.
    pub fn words(&self, ending: Ending) -> String {
        match (self, ending) {
            (Exit { cancelled: true, .. }, _) => "cancelled".to_string(),
            (
                Exit {
                    signal: Some(signal), ..
                },
                _,
            ) => format!("killed {signal}"),
            (Exit { code: Some(0), .. }, _) => "well".to_string(),
            (Exit { code: Some(code), .. }, _) => format!("failed {code}"),
            (_, Ending::Goodbye) => "ended".to_string(),
            (_, Ending::Vanished) => "vanished".to_string(),
            (_, Ending::Detached) => "let go".to_string(),
        }
    }
}

/// Processes that ended, by how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExitCounts {
    /// With code 0.
    pub well: u64,
    /// With another code.
    pub failed: u64,
    /// By a signal.
    pub killed: u64,
    /// After `weft cancel`.
    pub cancelled: u64,
    /// Neither code nor signal is known.
    pub unknown: u64,
}

impl ExitCounts {
    /// Counts one.
    pub fn add(&mut self, exit: Exit) {
        let counter = match exit {
            Exit { cancelled: true, .. } => &mut self.cancelled,
            Exit { signal: Some(_), .. } => &mut self.killed,
            Exit { code: Some(0), .. } => &mut self.well,
            Exit { code: Some(_), .. } => &mut self.failed,
            _ => &mut self.unknown,
        };
        *counter += 1;
    }
}

/// A client that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndedStatus {
    /// Its last known status.
    pub last: ClientStatus,
    /// How it ended.
    pub ending: Ending,
    /// How its process ended.
    #[serde(default)]
    pub exit: Exit,
    /// Seconds since it ended.
    pub ago_s: f64,
}

/// The samples of one profile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// Clients that sample into it now.
    pub active: u64,
    /// Clients that have sampled into it since sampling began.
    pub clients: u64,
    /// Kernel launches of those clients.
    pub launches: u64,
    /// Stretches of launches between two synchronising calls.
    #[serde(default)]
    pub stretches: u64,
    /// Those whose kernels were launched in the same order before.
    #[serde(default)]
    pub repeated: u64,
    /// Samples received.
    pub samples: u64,
    /// Kernels that were named.
    pub kernels: u64,
    /// The profile's file, once written.
    pub file: Option<PathBuf>,
    /// Why the last write failed.
    pub trouble: Option<String>,
    /// New name of the older profile that had this name.
    #[serde(default)]
    pub kept: Option<String>,
}

/// A profile made from a job's observed usage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KeptProfile {
    /// The job's command line.
    pub command: String,
    /// Peak device memory, bytes.
    pub memory_peak: u64,
    /// Run time, seconds.
    pub ran_s: f64,
    /// Whether the job asked for more than was free.
    pub denied: bool,
    /// The profile's file.
    pub file: PathBuf,
}
