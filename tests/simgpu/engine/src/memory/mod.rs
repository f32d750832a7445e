//! The page ledger: where each page of managed memory lies, what a kernel pays for pages that are
//! not on the device, and what moves over the link when.
//!
//! | file | what |
//! |---|---|
//! | `settings.rs` | capacity, limits, rates and costs |
//! | `range.rs` | addresses cut into blocks and pages |
//! | `block.rs` | 32 pages of 64 KiB as bit masks; the density prefetcher |
//! | `table.rs` | from an owner's address to its block |
//! | `order.rs` | which block goes first when the device is full |
//! | `ledger.rs` | residency without time: who has what where, and what each change moved |
//! | `pager.rs` | the ledger in virtual time: the link's two queues, faults that stall a kernel |
//! | `usage.rs` | what is counted for each owner |
//!
//! # The model
//!
//! * A **page** is 64 KiB, the driver's leaf; a **block** is 2 MiB, the unit in which the driver
//!   evicts and over which it prefetches. A page lies on the device, on the host, on both
//!   (read-mostly, and brought from the host), or nowhere: never touched, or discarded. The driver
//!   has no dirty bit: what lies on the device alone is copied when it leaves, what lies on both is
//!   dropped.
//! * A kernel's touch of a page that is not on the device is a **fault**. The driver handles faults
//!   in batches of [`MemorySettings::batch_faults`] faults of 4 KiB; each block of a batch costs
//!   [`MemorySettings::fault_batch`], then come its evictions, then its data, one after the other
//!   while the kernel stands still. The **density prefetcher** widens a fault to the largest part
//!   of the block of which more than [`MemorySettings::threshold`] per cent is there.
//! * When the device is full, the block goes whose last *arrival* is longest ago. The driver sees
//!   arrivals, not hits, so that this is no LRU of touches.
//! * A **prefetch** moves 2 MiB at a time in the order asked for. With a duplex link the two
//!   directions run side by side; without, in turns.
//! * What is **mostly read** is copied by prefetches, not moved: a prefetch towards the host leaves
//!   the device's copy, and its room, where they are. Ending the advice collapses the copies into
//!   one, at the preferred location if one of them lies there; else which is left is the driver's
//!   choice, and its own takes the host's. A write leaves the writer's copy alone, and so does
//!   making room the host's.
//! * Room on the host is taken when memory is allocated, all of it: an eviction never finds the
//!   host full.
//!
//! What holds after every call: pages on the device and on their way to or from it are at most the
//! capacity, allocated memory is at most the host's limit, each page that was written lies
//! somewhere. What is not modelled: 4 KiB residency, access counters, remote mappings (`accessed
//! by`, or a preferred location on the host), several devices.

mod block;
mod ledger;
mod order;
mod pager;
mod range;
mod settings;
mod table;
mod usage;

pub use ledger::{Fault, Ledger, MemoryError, Peaks, Place};
pub use pager::{Pager, Ticket};
pub use range::{BLOCK_BYTES, PAGE_BYTES, Range};
pub use settings::MemorySettings;
pub use usage::OwnerUsage;

/// Whose memory: a process, or a job of the lab. Each has its own addresses.
pub type Owner = u32;
