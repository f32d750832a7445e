// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page ledger: the place of each page of managed memory, the time that missing pages cost a
//! kernel, and the moves over the link.
//!
//! | file | what |
//! |---|---|
//! | `settings.rs` | capacity, limits, rates and costs |
//! | `range.rs` | addresses cut into blocks and pages |
//! | `block.rs` | 32 pages of 64 KiB as bit masks; the density prefetcher |
//! | `table.rs` | from an address to its block |
//! | `order.rs` | which block leaves first when the device is full |
//! | `ledger.rs` | residency without time, and what each change moves |
//! | `pager.rs` | the ledger in virtual time: the link's queues, faults that stall a kernel |
//! | `usage.rs` | counts of each owner |
//!
//! # The model
//!
//! * A **page** is 64 KiB, the driver's leaf. A **block** is 2 MiB, the unit of eviction and of the
//!   density prefetcher. A page lies on the device, on the host, on both (read-mostly) or nowhere
//!   (never touched, or discarded). The driver has no dirty bit: a page that lies only on the
//!   device is copied when it leaves, a page on both is dropped.
//! * Touching a page that is not on the device is a **fault**. The driver handles
//!   [`MemorySettings::batch_faults`] faults of 4 KiB at once. Each block of a batch costs
//!   [`MemorySettings::fault_batch`], then its evictions, then its data; the kernel stands still
//!   meanwhile. The **density prefetcher** widens a fault to the largest part of the block of which
//!   more than [`MemorySettings::threshold`] per cent is there.
//! * When the device is full, the block with the oldest *arrival* leaves. The driver sees arrivals,
//!   not hits, so this is no LRU of touches.
//! * A **prefetch** moves 2 MiB at a time, in the order of requests. With a duplex link both
//!   directions run at once, otherwise in turns.
//! * Prefetches copy **read-mostly** memory. One towards the host leaves the device's copy and its
//!   room. Ending the advice collapses the copies into the one at the preferred location, else into
//!   the host's. A write leaves only the writer's copy; making room leaves the host's.
//! * Room on the host is taken at allocation: an eviction never finds the host full.
//!
//! Invariants after every call: pages on the device and on their way to or from it fit the
//! capacity, allocated memory fits the host's limit, and each written page lies somewhere.
//!
//! Not modelled: 4 KiB residency, access counters, remote mappings (`accessed by`, or a preferred
//! location on the host), several devices.

mod block;
mod ledger;
mod order;
mod pager;
mod range;
mod settings;
mod table;
mod usage;

pub use ledger::{Fault, Ledger, MemoryError, PagePlace, Peaks};
pub use pager::{Pager, Ticket};
pub use range::{BLOCK_BYTES, PAGE_BYTES, Range};
pub use settings::MemorySettings;
pub use usage::OwnerUsage;

/// Owner of memory: a process, or a job of the lab. Each has its own addresses.
pub type Owner = u32;
