//! What the interposer and the broker agree on.
//!
//! * [`lane`]: the shared memory of one client. The hot path. Only atomics; either side may die at
//!   any instruction.
//! * [`credit`]: how its credit word is changed.
//! * [`page_ops`]: what its helper is to do with its memory.
//! * [`admission_slot`]: whether it may begin, and how much memory it may have.
//! * [`amount`]: amounts of memory as people write them.
//! * [`fit`]: whether a job's profile is of its code.
//! * [`epoch_page`]: one page a broker, mapped by all its clients: the launch epochs by which a
//!   background job sees the foreground job move without asking the broker.
//! * [`control`]: the messages of the control plane (attach, names, policy, death).
//! * [`transport`]: the client's half of the way to a broker.
//! * [`host`]: how much host memory there is to spare.
//!
//! The interposer links this crate and no other of the broker's.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC`, the same clock in every process of a machine. Sizes
//! are bytes. Nothing here waits, allocates on the hot path or panics: what is read from the other
//! side is an allegation, to be copied, checked and only then used.
#![deny(unsafe_code)]

pub mod admission_slot;
#[cfg(not(loom))]
pub mod amount;
#[cfg(loom)]
pub mod atomic;
#[cfg(not(loom))]
pub mod control;
pub mod credit;
pub mod epoch_page;
#[cfg(not(loom))]
pub mod fit;
#[cfg(not(loom))]
pub mod host;
pub mod lane;
pub mod page_ops;
#[cfg(not(loom))]
pub mod transport;

// The shared words are built on this name: with `--cfg loom` on atomics whose every interleaving is
// tried (`tests/memory-model`).
#[cfg(not(loom))]
use std::sync::atomic;

/// The version of the whole protocol. A broker refuses a client of another version with
/// [`control::Refusal::Version`] and the client then runs as without weft.
pub const VERSION: u32 = 11;

/// How many priorities there are: 0 is the most important, 9 the least (FIKIT's ten queues).
#[cfg(not(loom))]
pub const PRIORITIES: usize = 10;

/// Few enough to try every interleaving.
#[cfg(loom)]
pub const PRIORITIES: usize = 2;

/// Records a lane holds: at one launch each 2 us it takes the broker 8 ms of sleep to lose one.
#[cfg(not(loom))]
pub const RECORDS: usize = 4096;

/// A lap of the ring is two records.
#[cfg(loom)]
pub const RECORDS: usize = 2;

/// Page operations that are out at most: 64 granules each way in flight (what the planner allows),
/// were each a page operation of its own.
#[cfg(not(loom))]
pub const PAGE_OPS: usize = 128;

/// Few enough to try every interleaving.
#[cfg(loom)]
pub const PAGE_OPS: usize = 2;

/// A time or a duration in nanoseconds.
pub type Ns = u64;

/// A client's number at this broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client(pub u64);
