// SPDX-License-Identifier: MIT OR Apache-2.0
//! Eviction: the order to move a client's memory to the host, and the client's answer.
//!
//! The broker writes the order. The client carries it out by itself, at any speed, and writes the
//! rest. A client with `--evict-idle` also moves its memory by itself while it is idle. All zero:
//! no order, and no memory that can be moved.
#![forbid(unsafe_code)]

use super::Ns;
use super::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Place of a client's movable memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Residence {
    /// The client has no movable memory.
    Fixed = 0,
    /// On the device.
    Device = 1,
    /// On its way to the host: calls wait.
    Leaves = 2,
    /// On the host: calls wait.
    Evicted = 3,
    /// On its way to the device: calls wait.
    Returns = 4,
}

impl Residence {
    /// Reads a word of shared memory; unknown words count as [`Residence::Fixed`].
    pub fn from_word(word: u32) -> Residence {
        match word {
            1 => Residence::Device,
            2 => Residence::Leaves,
            3 => Residence::Evicted,
            4 => Residence::Returns,
            _ => Residence::Fixed,
        }
    }

    /// Its name in `weft status`.
    pub fn name(self) -> &'static str {
        match self {
            Residence::Fixed => "fixed",
            Residence::Device => "device",
            Residence::Leaves => "leaving",
            Residence::Evicted => "evicted",
            Residence::Returns => "returning",
        }
    }
}

/// Why memory left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum EvictionCause {
    /// By a command: it stays until another one.
    Command = 0,
    /// To make room for another job: it returns when there is room.
    Room = 1,
    /// The job was idle: its next call brings it back. Only a client that offers its memory gets
    /// an order with this cause.
    Idle = 2,
    /// Only of an order: by a command, and from then on as [`EvictionCause::Idle`].
    UntilCall = 3,
}

impl EvictionCause {
    /// Its name in `weft status --json`.
    pub fn name(self) -> &'static str {
        match self {
            EvictionCause::Command => "command",
            EvictionCause::Room => "room",
            EvictionCause::Idle | EvictionCause::UntilCall => "idle",
        }
    }

    /// The cause of memory that has left by an order with this one.
    pub fn once_away(self) -> EvictionCause {
        match self {
            EvictionCause::UntilCall => EvictionCause::Idle,
            cause => cause,
        }
    }

    /// The cause of this order.
    pub fn of(order: u32) -> EvictionCause {
        EvictionCause::from_word(order >> 1 & 3)
    }

    fn from_word(word: u32) -> EvictionCause {
        match word {
            0 => EvictionCause::Command,
            1 => EvictionCause::Room,
            3 => EvictionCause::UntilCall,
            _ => EvictionCause::Idle,
        }
    }
}

/// How memory moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MoveBy {
    /// Movable blocks, by weft's own copies.
    Blocks = 0,
    /// All of the process, context included, by the driver's checkpoint.
    Checkpoint = 1,
}

impl MoveBy {
    /// Its name in `weft status --json`.
    pub fn name(self) -> &'static str {
        match self {
            MoveBy::Blocks => "blocks",
            MoveBy::Checkpoint => "checkpoint",
        }
    }
}

/// Why the driver's checkpoint is not used for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum CheckpointBar {
    /// The present broker does not allow it.
    NotAllowed = 1,
    /// The driver has no such calls.
    DriverLacks = 2,
    /// The job has managed memory.
    Managed = 3,
    /// The job made or opened a handle of memory or events that other processes use.
    Shared = 4,
    /// The job uses several devices.
    Devices = 5,
    /// The device is a MIG instance.
    Mig = 6,
    /// The machine's kernel module has hung whole machines after it.
    Module = 7,
    /// The job shares its device under MPS.
    Mps = 8,
    /// An earlier step failed half-way.
    Stuck = 9,
    /// The job launched a collective, and its driver has ended such jobs, or is not known.
    Group = 10,
}

impl CheckpointBar {
    const ALL: [CheckpointBar; 10] = [
        CheckpointBar::NotAllowed,
        CheckpointBar::DriverLacks,
        CheckpointBar::Managed,
        CheckpointBar::Shared,
        CheckpointBar::Devices,
        CheckpointBar::Mig,
        CheckpointBar::Module,
        CheckpointBar::Mps,
        CheckpointBar::Stuck,
        CheckpointBar::Group,
    ];
}

/// Why an order was not carried out, or not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// The job has no movable memory.
    NothingMovable,
    /// A stream is captured.
    Capture,
    /// Calls or device work did not end within this time, s. 0: it was to leave until its next
    /// call, and uses the device.
    Busy(u64),
    /// The host has too little memory for these bytes.
    Host(u64),
    /// The job gave its memory to something that weft does not see.
    Shared,
    /// The driver refused with this error.
    Driver(u64),
    /// These bytes of device memory are not free.
    Device(u64),
    /// An internal error of weft.
    Internal,
    /// The driver's checkpoint is not used for this job.
    Barred(CheckpointBar),
    /// No broker is there to grant device memory for the return.
    NoBroker,
}

impl Obstacle {
    /// Reads the words of shared memory. `None`: no obstacle, or an unknown one.
    pub fn from_words(word: u32, detail: u64) -> Option<Obstacle> {
        Some(match word {
            1 => Obstacle::NothingMovable,
            2 => Obstacle::Capture,
            3 => Obstacle::Busy(detail),
            4 => Obstacle::Host(detail),
            5 => Obstacle::Shared,
            6 => Obstacle::Driver(detail),
            7 => Obstacle::Device(detail),
            8 => Obstacle::Internal,
            9 => Obstacle::Barred(CheckpointBar::ALL.into_iter().find(|bar| *bar as u64 == detail)?),
            10 => Obstacle::NoBroker,
            _ => return None,
        })
    }

    fn words(self) -> (u32, u64) {
        match self {
            Obstacle::NothingMovable => (1, 0),
            Obstacle::Capture => (2, 0),
            Obstacle::Busy(seconds) => (3, seconds),
            Obstacle::Host(bytes) => (4, bytes),
            Obstacle::Shared => (5, 0),
            Obstacle::Driver(error) => (6, error),
            Obstacle::Device(bytes) => (7, bytes),
            Obstacle::Internal => (8, 0),
            Obstacle::Barred(bar) => (9, bar as u64),
            Obstacle::NoBroker => (10, 0),
        }
    }
}

/// Bit of the broker's word: the driver's checkpoint is allowed.
const ALLOWED: u32 = 1;

/// Bit of that word: the driver may bring the client back, by a sample from its latest request.
const PERMITS: u32 = 2;

/// The words of one client's eviction.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct EvictionSlot {
    /// Broker: eight times the number of the latest order, plus 1 for an eviction, plus two times
    /// its [`EvictionCause`]; 0: none. A shared futex for the client's thread.
    pub order: AtomicU32,
    /// Client: the latest order that was carried out or refused.
    pub answered: AtomicU32,
    /// Client: a [`Residence`].
    pub residence: AtomicU32,
    /// Client: an [`Obstacle`]; its figure is in `detail`.
    obstacle: AtomicU32,
    detail: AtomicU64,
    /// Client: bytes of its movable memory, wherever they are.
    pub movable: AtomicU64,
    /// Client: bytes on the host.
    pub evicted: AtomicU64,
    /// Client: when they left, ns of the machine's clock; 0: they did not.
    pub since: AtomicU64,
    /// Client: a [`EvictionCause`].
    cause: AtomicU32,
    /// Client: how often a call brought the memory of an idle job back.
    pub wakes: AtomicU32,
    /// Client: since when its memory is to return without an order, for a call of an idle job or
    /// because it made room for long enough, ns of the machine's clock; 0: it is not.
    wanted: AtomicU64,
    /// Client: how long that call waited the last time, ns.
    pub woke_in: AtomicU64,
    /// Client: bytes of stream-ordered memory, of pools and of graphs, which stay on the device.
    pub ordered: AtomicU64,
    /// Client: bytes that the job mapped itself, which stay on the device.
    pub mapped: AtomicU64,
    /// Client: the time at which the driver's present step has taken too long, ns of the machine's
    /// clock; 0: there is none.
    due: AtomicU64,
    /// Client: a [`MoveBy`].
    by: AtomicU32,
    /// Broker: [`ALLOWED`], [`PERMITS`]. The client takes the latter back before it asks.
    checkpoint: AtomicU32,
    /// Both: bytes by which the client's context exceeded the broker's figure for contexts, plus 1;
    /// 0: not measured. They must be free before the driver brings the client back.
    excess: AtomicU64,
    /// Client: since when its job is idle, so that its memory may leave by an order, ns of the
    /// machine's clock; 0: it may not. The driver's checkpoint needs a sample of the broker before.
    offered: AtomicU64,
    /// Client: bytes that must be free for its return beyond those on the host.
    spare: AtomicU64,
}

/// Whether this order is to evict.
pub fn evicts(order: u32) -> bool {
    order & 1 == 1
}

impl EvictionSlot {
    /// Gives a new order. Returns its word. The caller wakes the client.
    pub fn give_order(&self, evict: bool, cause: EvictionCause) -> u32 {
        let next = |order: u32| {
            let number = (((order >> 3) + 1) & (u32::MAX >> 3)).max(1);
            number << 3 | (cause as u32) << 1 | u32::from(evict)
        };
        let given = self
            .order
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |order| Some(next(order)));
        given.map_or_else(next, next)
    }

    /// Allows the driver's checkpoint.
    pub fn allow_checkpoint(&self, allowed: bool) {
        self.checkpoint
            .store(if allowed { ALLOWED } else { 0 }, Ordering::Release);
    }

    /// Whether the broker allows the driver's checkpoint.
    pub fn allows_checkpoint(&self) -> bool {
        self.checkpoint.load(Ordering::Acquire) & ALLOWED != 0
    }

    /// Permits the client's return by the driver, before the answer to its request for memory; or
    /// takes that back.
    pub fn permit_return(&self, permitted: bool) {
        let change = |word: u32| match permitted {
            true => word | PERMITS,
            false => word & !PERMITS,
        };
        let _ = self
            .checkpoint
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(change(word)));
    }

    /// Whether the broker permits it. The client's quota may be older than its absence.
    pub fn permits_return(&self) -> bool {
        self.checkpoint.load(Ordering::Acquire) & PERMITS != 0
    }

    /// Bytes by which the client's context exceeded the broker's figure, once measured.
    pub fn excess(&self) -> Option<u64> {
        self.excess.load(Ordering::Acquire).checked_sub(1)
    }

    /// Writes that figure; `None`: it is not measured.
    pub fn set_excess(&self, bytes: Option<u64>) {
        self.excess
            .store(bytes.map_or(0, |bytes| bytes.saturating_add(1)), Ordering::Release);
    }

    /// Bytes that must be free for the return of the memory that is on the host.
    pub fn needed_back(&self) -> u64 {
        let spare = self.spare.load(Ordering::Relaxed);
        self.evicted.load(Ordering::Relaxed).saturating_add(spare)
    }

    /// Writes the bytes that must be free beyond those on the host.
    pub fn set_spare(&self, bytes: u64) {
        self.spare.store(bytes, Ordering::Relaxed);
    }

    /// Since when the client offers its memory, because its job is idle.
    pub fn offered(&self) -> Option<Ns> {
        Some(self.offered.load(Ordering::Acquire)).filter(|since| *since > 0)
    }

    /// Writes that time; `None`: it offers none.
    pub fn set_offered(&self, since: Option<Ns>) {
        self.offered.store(since.unwrap_or(0), Ordering::Release);
    }

    /// How the memory moves.
    pub fn by(&self) -> MoveBy {
        match self.by.load(Ordering::Acquire) {
            1 => MoveBy::Checkpoint,
            _ => MoveBy::Blocks,
        }
    }

    /// Writes how the memory moves.
    pub fn set_by(&self, by: MoveBy) {
        self.by.store(by as u32, Ordering::Release);
    }

    /// Writes when the driver's present step has taken too long; 0: there is none.
    pub fn set_due(&self, due: Ns) {
        self.due.store(due, Ordering::Release);
    }

    /// Whether a step of the driver has taken too long at `now`. It cannot be called off.
    pub fn is_stuck(&self, now: Ns) -> bool {
        let due = self.due.load(Ordering::Acquire);
        due != 0 && now >= due
    }

    /// Place of the memory.
    pub fn residence(&self) -> Residence {
        Residence::from_word(self.residence.load(Ordering::Acquire))
    }

    /// Whether no order of this broker is left to be carried out. A client that moved while its
    /// broker changed may have answered the old one's order here.
    pub fn is_answered(&self) -> bool {
        let order = self.order.load(Ordering::Acquire);
        order == 0 || order == self.answered.load(Ordering::Acquire)
    }

    /// Why the memory left. Of use only while it is away.
    pub fn cause(&self) -> EvictionCause {
        EvictionCause::from_word(self.cause.load(Ordering::Relaxed))
    }

    /// Whether the memory made room for other jobs for as long as its job allows.
    pub fn is_overdue(&self) -> bool {
        self.cause() == EvictionCause::Room && self.wanted.load(Ordering::Acquire) != 0
    }

    /// Writes why the memory left.
    pub fn set_cause(&self, cause: EvictionCause) {
        self.cause.store(cause as u32, Ordering::Relaxed);
    }

    /// Writes since when the memory is to return without an order. The client may claim memory
    /// after this: the broker takes none of its quota.
    pub fn set_wanted(&self, since: Ns) {
        self.wanted.store(since, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Whether the client is about to claim memory for its return: by an order, or without one.
    pub fn returns(&self) -> bool {
        let ordered = !evicts(self.order.load(Ordering::Acquire)) && !self.is_answered();
        ordered || self.wanted.load(Ordering::Acquire) != 0
    }

    /// Why the latest order was not carried out, or not yet.
    pub fn obstacle(&self) -> Option<Obstacle> {
        let word = self.obstacle.load(Ordering::Acquire);
        Obstacle::from_words(word, self.detail.load(Ordering::Relaxed))
    }

    /// Writes what is in the way; `None`: nothing.
    pub fn set_obstacle(&self, obstacle: Option<Obstacle>) {
        let (word, detail) = obstacle.map_or((0, 0), Obstacle::words);
        self.detail.store(detail, Ordering::Relaxed);
        self.obstacle.store(word, Ordering::Release);
    }

    /// Writes the place of the memory, the bytes on the host, and the time at which they left.
    pub fn set_residence(&self, residence: Residence, evicted: u64, since: Ns) {
        self.evicted.store(evicted, Ordering::Relaxed);
        self.since.store(since, Ordering::Relaxed);
        self.residence.store(residence as u32, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_order_is_a_new_word_and_none_is_zero() {
        let slot = EvictionSlot::default();
        let give = |evict| slot.give_order(evict, EvictionCause::Command);
        let (evict, resume, again) = (give(true), give(false), give(false));
        assert!(evicts(evict) && !evicts(resume) && resume != again);
        assert_eq!(EvictionCause::of(evict), EvictionCause::Command);
        assert_eq!(slot.order.load(Ordering::Relaxed), again);
        slot.order.store(u32::MAX, Ordering::Relaxed);
        assert!(
            slot.give_order(false, EvictionCause::Command) > 1,
            "numbers begin anew, and 0 is no order"
        );
        let ordered = [EvictionCause::Room, EvictionCause::Idle, EvictionCause::UntilCall];
        for cause in ordered {
            let order = slot.give_order(true, cause);
            assert!(evicts(order) && EvictionCause::of(order) == cause);
        }
        for cause in [EvictionCause::Room, EvictionCause::Idle, EvictionCause::Command] {
            slot.set_cause(cause);
            assert_eq!(slot.cause(), cause);
        }
    }

    #[test]
    fn a_client_returns_by_an_order_or_because_a_call_waits() {
        let slot = EvictionSlot::default();
        slot.answered.store(7, Ordering::Relaxed);
        assert!(!slot.returns() && slot.is_answered(), "an order of the broker before");
        let evict = slot.give_order(true, EvictionCause::Command);
        assert!(!slot.returns());
        slot.answered.store(evict, Ordering::Relaxed);
        slot.set_wanted(7);
        assert!(slot.returns());
        slot.set_wanted(0);
        let resume = slot.give_order(false, EvictionCause::Command);
        assert!(slot.returns());
        slot.answered.store(resume, Ordering::Relaxed);
        assert!(!slot.returns());
    }

    #[test]
    fn a_checkpoint_is_allowed_by_the_broker_and_late_at_its_due_time() {
        let slot = EvictionSlot::default();
        assert!(!slot.allows_checkpoint() && !slot.is_stuck(u64::MAX));
        assert_eq!((slot.by(), slot.excess()), (MoveBy::Blocks, None));
        slot.set_excess(Some(0));
        assert_eq!((slot.excess(), slot.offered()), (Some(0), None));
        slot.set_offered(Some(3));
        slot.evicted.store(5, Ordering::Relaxed);
        slot.set_spare(4);
        assert_eq!((slot.offered(), slot.needed_back()), (Some(3), 9));
        slot.allow_checkpoint(true);
        slot.set_by(MoveBy::Checkpoint);
        slot.set_due(7);
        assert!(slot.allows_checkpoint() && slot.is_stuck(7) && !slot.is_stuck(6));
        assert!(!slot.permits_return());
        slot.permit_return(true);
        assert!(slot.allows_checkpoint() && slot.permits_return());
        slot.permit_return(false);
        assert!(slot.allows_checkpoint() && !slot.permits_return());
        assert_eq!(slot.by(), MoveBy::Checkpoint);
    }

    #[test]
    fn what_the_client_writes_is_read_back_and_nonsense_is_nothing() {
        let slot = EvictionSlot::default();
        assert_eq!((slot.residence(), slot.obstacle()), (Residence::Fixed, None));
        for obstacle in [
            Obstacle::NothingMovable,
            Obstacle::Capture,
            Obstacle::Busy(10),
            Obstacle::Host(7),
            Obstacle::Shared,
            Obstacle::Driver(719),
            Obstacle::Device(9),
            Obstacle::Internal,
            Obstacle::Barred(CheckpointBar::NotAllowed),
            Obstacle::Barred(CheckpointBar::Group),
            Obstacle::NoBroker,
        ] {
            slot.set_obstacle(Some(obstacle));
            assert_eq!(slot.obstacle(), Some(obstacle));
        }
        slot.obstacle.store(99, Ordering::Relaxed);
        assert_eq!(slot.obstacle(), None);
        for residence in [
            Residence::Device,
            Residence::Leaves,
            Residence::Evicted,
            Residence::Returns,
        ] {
            slot.set_residence(residence, 5, 6);
            assert_eq!(slot.residence(), residence);
            assert!(!residence.name().is_empty());
        }
        assert_eq!(Residence::from_word(77), Residence::Fixed);
    }
}
