//! What the interposer and the broker agree on.
//!
//! * [`lane`]: the shared memory of one client, the hot path. Only atomics; either side may die at
//!   any instruction.
//! * [`credit`]: changes of the lane's credit word.
//! * [`page_ops`]: page operations on the client's memory.
//! * [`admission_slot`]: whether the client may begin, and how much memory it may have.
//! * [`epoch_page`]: launch epochs, by which a background job sees a foreground job's launches.
//! * [`control`]: messages of the control plane.
//! * [`transport`]: the client's half of the way to a broker.
//! * [`latency_budget`]: what a foreground job may lose.
//! * [`machine_clock`]: the clock of times that cross.
//! * [`device_share`]: what a job asks of the device itself.
//! * [`priority`]: priorities as text.
//! * [`amount`], [`fit`], [`host`]: amounts of memory as text, whether a profile fits its job, host
//!   memory to spare.
//!
//! The interposer links no other crate of the broker's.
//!
//! Times are nanoseconds of the [`machine_clock`], sizes bytes. Nothing here waits or allocates on
//! the hot path, or panics. Data of the other side is an allegation: copy, check, then use.
#![deny(unsafe_code)]

pub mod admission_slot;
#[cfg(not(loom))]
pub mod amount;
#[cfg(loom)]
pub mod atomic;
#[cfg(not(loom))]
pub mod control;
pub mod credit;
#[cfg(not(loom))]
pub mod device_share;
pub mod epoch_page;
#[cfg(not(loom))]
pub mod fit;
#[cfg(not(loom))]
pub mod host;
pub mod lane;
#[cfg(not(loom))]
pub mod latency_budget;
#[cfg(not(loom))]
pub mod machine_clock;
pub mod page_ops;
#[cfg(not(loom))]
pub mod priority;
#[cfg(not(loom))]
pub mod slowdown;
#[cfg(not(loom))]
pub mod transport;

// `--cfg loom` swaps in atomics that try every interleaving (`tests/memory-model`).
#[cfg(not(loom))]
use std::sync::atomic;

/// Version of the protocol. A broker refuses others ([`control::Refusal::Version`]); the client
/// then runs as without weft.
pub const VERSION: u32 = 16;

/// Priorities: 0 is the most important, 9 the least (FIKIT's ten queues).
#[cfg(not(loom))]
pub const PRIORITIES: usize = 10;

/// Few enough to try every interleaving.
#[cfg(loom)]
pub const PRIORITIES: usize = 2;

/// Records of a lane. With a launch each 2 us it overflows after 8 ms of the broker's sleep.
#[cfg(not(loom))]
pub const RECORDS: usize = 4096;

/// Two records a lap.
#[cfg(loom)]
pub const RECORDS: usize = 2;

/// Most page operations out: 64 granules in flight each way, one each.
#[cfg(not(loom))]
pub const PAGE_OPS: usize = 128;

/// Few enough to try every interleaving.
#[cfg(loom)]
pub const PAGE_OPS: usize = 2;

/// A time or a duration in nanoseconds.
pub type Ns = u64;

/// Number of a client at this broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client(pub u64);
