//! A lane: the memory that one client process shares with the broker.
//!
//! The broker makes it (a sealed memfd, so that nobody can truncate it under the other's feet), the
//! client maps it. It holds
//!
//! * what the broker orders: the [`Mode`], the credit, the bounds of a wait;
//! * what the client reports: whether it waits and for what, how much work it issued and how much
//!   of it has ended, counters;
//! * a flight recorder: a ring of [`Record`]s ([`ring`]).
//!
//! Credit is work in predicted GPU nanoseconds that a background job may still issue. It is one
//! atomic number: the broker adds, the client takes, a revocation swaps it to zero, so credit given
//! = credit taken + credit revoked + credit left, at every instruction.
//!
//! Everything is an atomic, so a reference to a lane in shared memory is sound whatever the other
//! side does. Neither side trusts the other.
#![forbid(unsafe_code)]

mod ring;

use self::ring::Ring;
pub use self::ring::{DEVICE_COPY, HOST_COPY, Kind, NO_GAP, Reader, Record, is_transfer};
use super::Ns;
pub use super::RECORDS;
use super::admission_slot::{AdmissionSlot, Moves};
use super::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use super::page_ops::PageOps;

/// Tells a lane from other memory: "weftLANE" as little-endian bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"weftLANE");

/// What a client is told to do with a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// No broker, or the broker let go: launch, write nothing.
    Free = 0,
    /// Nobody else is attached: count, launch.
    Alone = 1,
    /// Bump the launch epoch, record, launch. Never wait.
    Foreground = 2,
    /// Launch within the credit, else wait at the gate (bounded).
    Background = 3,
}

impl Mode {
    /// Reads a mode that came from shared memory. `None` for a number that is no mode; the reader
    /// then behaves as [`Mode::Free`].
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

/// Flags beside the mode, in [`Orders::flags`].
pub mod flags {
    /// Take stage-1 samples (kernel times and gaps) and report them as records.
    pub const PROFILE: u32 = 1;
    /// The credit holds only while [`super::Orders::epochs`] equals the epoch page's launch epochs
    /// above the client's priority.
    pub const CREDIT_BOUND_TO_EPOCHS: u32 = 2;
    /// Beside others, take a sample now and then and report it as a record: half a per cent of the
    /// time in which the job launches at most, and no ring for it. What is predicted can so follow
    /// what happens.
    pub const SAMPLE: u32 = 4;
    /// Credit whose work was seen to end comes back: see [`super::super::credit::RunAheadWindow`].
    pub const CREDIT_RENEWS: u32 = 8;
}

/// At which news a client rings the broker's bell, in [`Lane::broker_sleeps`].
pub mod bells {
    /// At none: the broker is awake, or looks again soon enough.
    pub const NONE: u32 = 0;
    /// At the next record that matters: the broker sleeps.
    pub const ALL: u32 = 1;
    /// At the next [`super::Kind::Idle`] alone: the broker naps while a background job waits for
    /// that gap.
    pub const IDLE: u32 = 2;
}

/// What the broker writes and the client reads.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Orders {
    /// A [`Mode`].
    pub mode: AtomicU32,
    /// [`flags`].
    pub flags: AtomicU32,
    /// Counts every change of an order. A waiting background job sleeps on it as a shared futex.
    pub bell: AtomicU32,
    /// The client's [`epoch`](super::epoch_page::epoch): its priority now (`weft set` changes it
    /// while it runs) on its device.
    pub epoch: AtomicU32,
    /// Work the background job may still issue, predicted GPU nanoseconds. May go below zero by the
    /// one kernel it was given for.
    pub credit: AtomicI64,
    /// The epoch page's launch epochs that the credit is bound to.
    pub epochs: AtomicU64,
    /// The longest a launch may wait at the gate; it then goes through and is counted.
    pub longest_wait: AtomicU64,
    /// What a kernel with no known time is charged.
    pub unknown_cost: AtomicU64,
    /// Of the [`RunAheadWindow`](super::credit::RunAheadWindow): a kernel that ends before this
    /// need not wait for those before it.
    pub safe_until: AtomicU64,
    /// Of the run-ahead window: a kernel ends before this, or it waits for the broker's word. 0:
    /// there is no run-ahead window.
    pub deadline: AtomicU64,
    /// Of the run-ahead window: of the work that was seen to end, so much does not come back as
    /// credit.
    pub non_refundable: AtomicU64,
    /// Of the run-ahead window: how much may be on the device when a kernel is launched that does
    /// not end by [`Orders::safe_until`].
    pub max_backlog: AtomicU64,
    /// How many times slower than a real device's this one's copies are, in [`DILATION_ONE`]ths (a
    /// simulated device may be slowed down); 0 counts as once.
    pub dilation: AtomicU32,
}

/// A device that is as fast as a real one, in [`Orders::dilation`].
pub const DILATION_ONE: u32 = 16;

/// What the client writes and the broker reads.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Reports {
    /// 1 while a launch waits at the gate.
    pub waiting: AtomicU32,
    /// 1 once the client's side is up; 2 after a clean goodbye.
    pub state: AtomicU32,
    /// Identity (hash) of the kernel that waits.
    pub wanted_kernel: AtomicU64,
    /// Its predicted time.
    pub wanted_cost: AtomicU64,
    /// Since when it waits.
    pub waiting_since: AtomicU64,
    /// Predicted work issued so far as a background job, in all.
    pub issued: AtomicU64,
    /// Of that, predicted work whose end was seen on the device.
    pub settled: AtomicU64,
    /// Of that, what came back into the credit word. Counted before it comes.
    pub renewed: AtomicU64,
    /// The time a synchronising call last returned with nothing of the process left on the device;
    /// 0: none has. It takes no record of its own: the records after it repeat it, so that it is
    /// read in its place among them ([`Reader::next`]).
    pub last_idle: AtomicU64,
}

/// Counters that people see in `weft status`. Each is described where it is declared.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Counters {
    /// Kernel launches seen.
    pub launches: AtomicU64,
    /// Graph launches seen.
    pub graph_launches: AtomicU64,
    /// Copies and memsets seen.
    pub transfers: AtomicU64,
    /// Times a launch waited at the gate.
    pub waits: AtomicU64,
    /// Nanoseconds spent waiting at the gate.
    pub waited: AtomicU64,
    /// Waits that ended at their bound, not with credit: weft stepped aside.
    pub waits_expired: AtomicU64,
    /// Launches of a handle that no name was known for, and nodes of graphs that are such, each
    /// time they are read.
    pub unnamed: AtomicU64,
    /// Launches into a capturing stream (neither held nor timed).
    pub captured: AtomicU64,
    /// Internal troubles answered by passing the call through.
    pub troubles: AtomicU64,
    /// Control messages dropped because the helper thread's queue was full.
    pub dropped_messages: AtomicU64,
    /// Device memory held now, bytes.
    pub memory: AtomicU64,
    /// The most device memory held so far, bytes.
    pub memory_peak: AtomicU64,
    /// Launches let past the gate without credit on purpose: each in the middle of a burst that the
    /// job times, or a collective that other devices wait for.
    pub unsplit: AtomicU64,
    /// Of the device memory held, what is managed, bytes.
    pub managed: AtomicU64,
    /// Allocations that stayed device memory though the job is managed.
    pub unmanaged: AtomicU64,
    /// Bytes that page operations brought to the device.
    pub prefetched: AtomicU64,
    /// Bytes that page operations moved to the host.
    pub evicted: AtomicU64,
    /// Bytes that page operations gave up.
    pub discarded: AtomicU64,
    /// Page operations that the driver or the helper refused.
    pub refused: AtomicU64,
    /// Page operations that took longer than the helper waits for any.
    pub late: AtomicU64,
    /// Launches that were left behind at a closed gate, to be issued when it opens.
    pub left_behind: AtomicU64,
    /// Of those, such that the driver refused.
    pub left_failed: AtomicU64,
    /// Nanoseconds that launches waited for memory that was on its way.
    pub memory_waited: AtomicU64,
    /// Launches whose memory did not come in time: it came by demand.
    pub memory_waits_expired: AtomicU64,
    /// Bytes of host memory that the control groups of a managed job leave it, as its side looked
    /// last; 0: no limit, or not looked yet.
    pub host_left: AtomicU64,
    /// Managed memory that the job took by itself, bytes. None of it counts as device memory: the
    /// driver moves it away where others want the room.
    pub managed_own: AtomicU64,
}

/// The memory one client shares with the broker. About 260 KiB.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Lane {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`super::VERSION`].
    pub version: AtomicU32,
    /// [`bells`]: at which news the broker wants its bell (an eventfd) rung. Whoever rings takes it
    /// back to [`bells::NONE`].
    pub broker_sleeps: AtomicU32,
    /// Broker to client.
    pub orders: Orders,
    /// Client to broker.
    pub reports: Reports,
    /// Client to people.
    pub counters: Counters,
    /// Broker to client, and back: what is to be done with the client's memory.
    pub page_ops: PageOps,
    /// Broker to client: its place on the device.
    pub admission_slot: AdmissionSlot,
    /// Client to broker: when what it holds changed.
    pub moves: Moves,
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
            counters: Counters::default(),
            page_ops: PageOps::default(),
            admission_slot: AdmissionSlot::default(),
            moves: Moves::default(),
            ring: Ring::default(),
        }
    }
}

impl Lane {
    /// Prepares zeroed shared memory as a lane. Magic goes last: who sees it sees the rest.
    pub fn initialise(&self) {
        self.version.store(super::VERSION, Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Writes a record. Never waits; may be called by several threads at once; costs one locked
    /// instruction and a few stores.
    #[inline]
    pub fn record(&self, record: Record) {
        self.ring.write(record, &self.reports.last_idle);
    }

    /// The client has become idle: a store. Who may have to ring for it makes a full barrier then,
    /// or uses [`Lane::become_idle_fenced`].
    #[inline]
    pub fn become_idle(&self, at: Ns) {
        self.reports.last_idle.store(at, Ordering::Release);
    }

    /// The same and a full barrier, in one instruction.
    #[inline]
    pub fn become_idle_fenced(&self, at: Ns) {
        self.reports.last_idle.swap(at, Ordering::SeqCst);
    }

    /// How many records were begun so far.
    pub fn written(&self) -> u64 {
        self.ring.written()
    }
}
