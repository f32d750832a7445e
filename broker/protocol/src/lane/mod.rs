// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lane: the memory that one client shares with the broker. The broker makes it as a sealed memfd,
//! so neither side can truncate it. It holds
//!
//! * the broker's orders: the [`Mode`], the credit, the bounds of a wait;
//! * the client's reports: the launch that waits, work issued and completed, counters, durations of
//!   its marked requests;
//! * a flight recorder: a ring of [`LaneRecord`]s ([`ring`]).
//!
//! Credit is predicted GPU time, ns. The broker adds to it, the client takes from it, and a
//! revocation swaps it to zero: `given = taken + revoked + left` at every instruction.
//!
//! All fields are atomics, so a reference to a lane is sound whatever the other side does.
#![forbid(unsafe_code)]

#[cfg(not(loom))]
mod requests;
mod ring;

#[cfg(not(loom))]
pub use self::requests::{DurationCounts, DurationFigures, Durations, MarkedRequests};
use self::ring::Ring;
pub use self::ring::{DEVICE_COPY, HOST_COPY, Kind, LaneRecord, NO_GAP, Reader, is_transfer, likely};
use super::Ns;
pub use super::RECORDS;
use super::admission_slot::{AdmissionSlot, ChangeCounts};
use super::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use super::eviction::EvictionSlot;
#[cfg(not(loom))]
use super::latency_budget::LatencyBudget;
use super::page_ops::PageOps;

/// Upper bound of the ordered longest wait at the gate, ns: a job that hangs for longer looks dead.
pub const MAX_LONGEST_WAIT_NS: Ns = 30_000_000_000;

/// Marks a lane, little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"weftLANE");

/// A client's handling of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// No broker: launch, write nothing.
    Free = 0,
    /// No other client is attached: count, launch.
    Alone = 1,
    /// Bump the launch epoch, record, launch. Never wait.
    Foreground = 2,
    /// Launch within the credit, else wait at the gate (bounded).
    Background = 3,
}

impl Mode {
    /// Reads a mode from shared memory. `None`: unknown, to be taken for [`Mode::Free`].
    #[inline]
    pub fn from_word(word: u32) -> Option<Mode> {
        match word {
            0 => Some(Mode::Free),
            1 => Some(Mode::Alone),
            2 => Some(Mode::Foreground),
            3 => Some(Mode::Background),
            _ => None,
        }
    }
}

/// Flags in [`Orders::flags`].
pub mod flags {
    /// Record stage-1 samples.
    pub const PROFILE: u32 = 1;
    /// The credit holds while [`super::Orders::epochs`] is the sum of the launch epochs above the
    /// client's priority.
    pub const CREDIT_BOUND_TO_EPOCHS: u32 = 2;
    /// When other jobs are attached, record a sample now and then, in at most 0.5 % of the time in
    /// which the job launches. This record rings no bell.
    pub const SAMPLE: u32 = 4;
    /// Credit comes back as its work ends ([`super::super::credit::RunAheadWindow`]).
    pub const CREDIT_REPLENISHES: u32 = 8;
}

/// Records that ring the broker's bell: [`Lane::broker_sleeps`].
pub mod bells {
    /// None: the broker is awake or looks soon.
    pub const NONE: u32 = 0;
    /// Each that matters: the broker sleeps.
    pub const ALL: u32 = 1;
    /// Only [`super::Kind::Idle`]: the broker naps, and a background job waits for that gap.
    pub const IDLE: u32 = 2;
}

/// Written by the broker.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Orders {
    /// A [`Mode`].
    pub mode: AtomicU32,
    /// [`flags`].
    pub flags: AtomicU32,
    /// Counts changes of orders; a shared futex for a waiting background job.
    pub bell: AtomicU32,
    /// The client's [`epoch`](super::epoch_page::epoch), for its present priority and device.
    pub epoch: AtomicU32,
    /// Credit, ns; negative after launches without credit.
    pub credit: AtomicI64,
    /// Sum of the launch epochs above the client's own priority up to which the credit holds.
    pub epochs: AtomicU64,
    /// Longest wait at the gate, ns. After it the launch goes, and is counted.
    pub longest_wait: AtomicU64,
    /// Charge for a kernel of unknown time, ns.
    pub unknown_cost: AtomicU64,
    /// [`RunAheadWindow`](super::credit::RunAheadWindow): a kernel that ends earlier goes at once.
    pub safe_until: AtomicU64,
    /// Run-ahead window: a kernel that ends later waits for the broker. 0: no window.
    pub deadline: AtomicU64,
    /// Run-ahead window: the same for kernels of [`Orders::long_from`] and more.
    pub long_deadline: AtomicU64,
    /// Run-ahead window: length from which a kernel must end by [`Orders::long_deadline`], ns.
    pub long_from: AtomicU64,
    /// Run-ahead window: completed work that does not come back, ns.
    pub non_refundable: AtomicU64,
    /// Run-ahead window: most work on the device, ns, at a launch that ends after
    /// [`Orders::safe_until`].
    pub max_backlog: AtomicU64,
    /// [`DeviceSpeed::host_copy_mb_per_s`].
    pub host_copy_mb_per_s: AtomicU32,
    /// [`DeviceSpeed::device_copy_mb_per_s`].
    pub device_copy_mb_per_s: AtomicU32,
    /// [`DeviceSpeed::device_wait`].
    pub device_wait: AtomicU64,
    /// Priority that `weft set` gave the job, plus 1; 0: none. The job names it to its next broker.
    pub set_priority: AtomicU32,
    /// [`LatencyBudget::slowdown`] that it gave, plus 1; 0: none.
    pub set_slowdown: AtomicU32,
    /// [`LatencyBudget::slo`] that it gave; 0: none.
    pub set_slo: AtomicU64,
    /// [`LatencyBudget::at_least`] that it gave, plus 1; 0: none.
    pub set_at_least: AtomicU32,
}

/// The assumed speed of a device, until it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(loom),
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct DeviceSpeed {
    /// Copies between host and device, MB a second: PCIe 4 x16 gives 20 to 25 GB/s.
    pub host_copy_mb_per_s: u32,
    /// Fills and copies on the device, read and written, MB a second: about half of an A100's 1.5
    /// TB/s.
    pub device_copy_mb_per_s: u32,
    /// Longest time, ns, for which a launch waits only for the device, before its wait is reported
    /// to the broker. Most kernels end sooner.
    pub device_wait: Ns,
}

impl Default for DeviceSpeed {
    fn default() -> DeviceSpeed {
        DeviceSpeed {
            host_copy_mb_per_s: 20_000,
            device_copy_mb_per_s: 700_000,
            device_wait: 500_000,
        }
    }
}

impl Orders {
    /// Sets the speed that the client takes for granted.
    pub fn set_speed(&self, speed: DeviceSpeed) {
        self.host_copy_mb_per_s
            .store(speed.host_copy_mb_per_s, Ordering::Relaxed);
        self.device_copy_mb_per_s
            .store(speed.device_copy_mb_per_s, Ordering::Relaxed);
        self.device_wait.store(speed.device_wait, Ordering::Relaxed);
    }

    /// Takes in values that `weft set` gave the job.
    #[cfg(not(loom))]
    pub fn set(&self, priority: Option<u8>, budget: LatencyBudget) {
        if let Some(priority) = priority {
            self.set_priority.store(u32::from(priority) + 1, Ordering::Relaxed);
        }
        if let Some(slowdown) = budget.slowdown {
            self.set_slowdown.store(slowdown.saturating_add(1), Ordering::Relaxed);
        }
        if let Some(slo) = budget.slo {
            self.set_slo.store(slo, Ordering::Relaxed);
        }
        if let Some(at_least) = budget.at_least {
            self.set_at_least.store(at_least.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Priority and budget that `weft set` gave the job so far.
    #[cfg(not(loom))]
    pub fn was_set(&self) -> (Option<u8>, LatencyBudget) {
        let priority = self.set_priority.load(Ordering::Relaxed).checked_sub(1);
        let budget = LatencyBudget {
            slowdown: self.set_slowdown.load(Ordering::Relaxed).checked_sub(1),
            slo: Some(self.set_slo.load(Ordering::Relaxed)).filter(|slo| *slo > 0),
            at_least: self.set_at_least.load(Ordering::Relaxed).checked_sub(1),
        };
        (priority.and_then(|priority| u8::try_from(priority).ok()), budget)
    }
}

/// Written by the client.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Reports {
    /// 1 while a launch waits at the gate.
    pub waiting: AtomicU32,
    /// 1: the client's side is up; 2: after a goodbye.
    pub state: AtomicU32,
    /// Identity (hash) of the waiting kernel.
    pub wanted_kernel: AtomicU64,
    /// Its predicted time, ns.
    pub wanted_cost: AtomicU64,
    /// Start of its wait.
    pub waiting_since: AtomicU64,
    /// Total predicted work issued in the background, ns.
    pub issued: AtomicU64,
    /// Part of `issued` that was seen to end, ns.
    pub completed: AtomicU64,
    /// Part of `completed` that is back in the credit word, ns. Counted before it is back.
    pub replenished: AtomicU64,
    /// Last return of a synchronising call that left no work of the process on the device; 0: none.
    /// [`FOUND_IDLE`] is added if the call did not wait: the work had ended at some time before.
    /// Later records repeat it, which shows its place among them ([`Reader::next`]).
    pub last_idle: AtomicU64,
}

/// Added to [`Reports::last_idle`] if the call found the work done.
pub const FOUND_IDLE: u64 = 1 << 63;

/// Counters for people, in `weft status`.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct LaneCounters {
    /// Kernel launches.
    pub launches: AtomicU64,
    /// Graph launches.
    pub graph_launches: AtomicU64,
    /// Copies and memsets.
    pub transfers: AtomicU64,
    /// Launches that waited at the gate.
    pub waits: AtomicU64,
    /// Time waited at the gate, ns.
    pub waited: AtomicU64,
    /// Waits that ended at their bound.
    pub waits_expired: AtomicU64,
    /// Launches of kernels without a known name. Such nodes of a graph count each time the graph is
    /// read.
    pub unnamed: AtomicU64,
    /// Launches into a capturing stream: not held, not timed.
    pub captured: AtomicU64,
    /// Internal errors. The call still reached the driver.
    pub troubles: AtomicU64,
    /// Control messages dropped because the queue was full.
    pub dropped_messages: AtomicU64,
    /// Device memory held, bytes.
    pub memory: AtomicU64,
    /// Peak of `memory`, bytes.
    pub memory_peak: AtomicU64,
    /// Launches that passed the gate without credit: in a tuning burst, or in a collective that
    /// other devices wait for.
    pub unsplit: AtomicU64,
    /// Managed part of `memory`, bytes.
    pub managed: AtomicU64,
    /// Allocations of a managed job that stayed device memory.
    pub unmanaged: AtomicU64,
    /// Bytes brought to the device by page operations.
    pub prefetched: AtomicU64,
    /// Bytes moved to the host by page operations.
    pub evicted: AtomicU64,
    /// Bytes discarded by page operations.
    pub discarded: AtomicU64,
    /// Page operations that were refused.
    pub refused: AtomicU64,
    /// Page operations beyond the helper's longest wait.
    pub late: AtomicU64,
    /// Launches deferred at a closed gate.
    pub left_behind: AtomicU64,
    /// Deferred launches that the driver refused.
    pub left_failed: AtomicU64,
    /// Time waited for memory that was being moved, ns.
    pub memory_waited: AtomicU64,
    /// Launches whose memory the driver moved on demand instead.
    pub memory_waits_expired: AtomicU64,
    /// Host memory left by a managed job's control groups at its last probe, bytes. 0: no limit, or
    /// no probe yet.
    pub host_left: AtomicU64,
    /// Managed memory that the job allocated itself, bytes. The driver evicts it for others.
    pub managed_own: AtomicU64,
    /// Messages with costs of kernels that the client has applied.
    pub charges: AtomicU64,
    /// Exit code of the process, plus 1. 0: not set.
    pub exit_status: AtomicU32,
    /// Stretches of launches between two synchronising calls, while the job is sampled.
    pub stretches: AtomicU64,
    /// Those whose kernels were launched in the same order before.
    pub repeated: AtomicU64,
}

/// Memory of one client and the broker, about 260 KiB.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Lane {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`super::VERSION`].
    pub version: AtomicU32,
    /// [`bells`]: when to ring the broker's eventfd. The ringing client resets it to
    /// [`bells::NONE`].
    pub broker_sleeps: AtomicU32,
    /// Broker to client.
    pub orders: Orders,
    /// Client to broker.
    pub reports: Reports,
    /// Client to people: counters for `weft status`.
    pub counters: LaneCounters,
    /// Both ways: page operations.
    pub page_ops: PageOps,
    /// Broker to client: admission and quota.
    pub admission_slot: AdmissionSlot,
    /// Client to broker: changes of its memory.
    pub moves: ChangeCounts,
    /// Both ways: eviction of its memory.
    pub eviction: EvictionSlot,
    /// Client to people: durations of its marked requests.
    #[cfg(not(loom))]
    pub requests: MarkedRequests,
    ring: Ring,
}

impl Default for Lane {
    fn default() -> Lane {
        Lane {
            magic: AtomicU64::new(MAGIC),
            version: AtomicU32::new(super::VERSION),
            broker_sleeps: AtomicU32::new(0),
            orders: Orders::default(),
            reports: Reports::default(),
            counters: LaneCounters::default(),
            page_ops: PageOps::default(),
            admission_slot: AdmissionSlot::default(),
            moves: ChangeCounts::default(),
            eviction: EvictionSlot::default(),
            #[cfg(not(loom))]
            requests: MarkedRequests::default(),
            ring: Ring::default(),
        }
    }
}

impl Lane {
    /// Prepares zeroed shared memory. A reader that sees the magic sees the rest.
    pub fn initialise(&self) {
        self.version.store(super::VERSION, Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Writes a record from any thread, without waiting: one locked instruction and a few stores.
    #[inline]
    pub fn record(&self, record: LaneRecord) {
        self.ring.write(record, &self.reports.last_idle);
    }

    /// Marks the client as idle by a store. A caller that may ring makes a full barrier next.
    #[inline]
    pub fn become_idle(&self, at: Ns) {
        self.reports.last_idle.store(at, Ordering::Release);
    }

    /// Marks the client as idle with a full barrier.
    #[inline]
    pub fn become_idle_fenced(&self, at: Ns) {
        self.reports.last_idle.swap(at, Ordering::SeqCst);
    }

    /// Number of records begun.
    pub fn written(&self) -> u64 {
        self.ring.written()
    }
}
