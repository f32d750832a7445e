// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protocol between the interposer and the broker.
//!
//! * [`lane`]: the shared memory of one client, the hot path. Only atomics; either side may die at
//!   any instruction.
//! * [`credit`]: changes of the lane's credit word.
//! * [`page_ops`]: page operations on the client's memory.
//! * [`admission_slot`]: whether the client may begin, and how much memory it may have.
//! * [`eviction`]: orders to move the client's memory to the host and back.
//! * [`epoch_page`]: launch epochs, in which a background job sees a foreground job's launches.
//! * [`control`]: messages of the control plane.
//! * [`transport`]: the client's half of the connection to a broker.
//! * [`latency_budget`]: latency that a foreground job may lose.
//! * [`machine_clock`]: the clock of the times that both sides compare.
//! * [`device_share`]: a job's requests to the device itself.
//! * [`priority`]: priorities as text.
//! * [`amount`], [`duration`], [`command_line`], [`variables`], [`fit`], [`host`]: amounts of
//!   memory, times, command lines and names of variables as text, the fit of a profile to its job,
//!   spare host memory.
//!
//! The interposer links no other crate of the broker.
//!
//! Times are nanoseconds of the [`machine_clock`], sizes are bytes. No code here waits, allocates
//! on the hot path, or panics. Data from the other side is not trusted: copy it, check it, then use
//! it.
#![deny(unsafe_code)]

pub mod admission_slot;
#[cfg(not(loom))]
pub mod amount;
#[cfg(loom)]
pub mod atomic;
#[cfg(not(loom))]
pub mod command_line;
#[cfg(not(loom))]
pub mod control;
pub mod credit;
#[cfg(not(loom))]
pub mod device_share;
#[cfg(not(loom))]
pub mod duration;
pub mod epoch_page;
pub mod eviction;
#[cfg(not(loom))]
pub mod fit;
#[cfg(not(loom))]
pub mod host;
#[cfg(not(loom))]
pub mod kernel_module;
pub mod lane;
#[cfg(not(loom))]
pub mod latency_budget;
#[cfg(not(loom))]
pub mod linker_cache;
#[cfg(not(loom))]
pub mod machine_clock;
pub mod page_ops;
#[cfg(not(loom))]
pub mod priority;
#[cfg(not(loom))]
pub mod slowdown;
#[cfg(not(loom))]
pub mod transport;
#[cfg(not(loom))]
pub mod variables;

// `--cfg loom` swaps in atomics that try every interleaving (`tests/memory-model`).
#[cfg(not(loom))]
use std::sync::atomic;

/// Version of the protocol. A broker refuses other versions ([`control::Refusal::Version`]); the
/// client then runs without weft.
pub const VERSION: u32 = 31;

/// Priorities: 0 is the most important, 9 the least (FIKIT's ten queues).
#[cfg(not(loom))]
pub const PRIORITIES: usize = 10;

/// Few enough to try every interleaving.
#[cfg(loom)]
pub const PRIORITIES: usize = 2;

/// Records of a lane. With a launch every 2 us it overflows if the broker sleeps for 8 ms.
#[cfg(not(loom))]
pub const RECORDS: usize = 4096;

/// Two records per lap.
#[cfg(loom)]
pub const RECORDS: usize = 2;

/// Most page operations in flight: 64 granules each way, one operation each.
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
