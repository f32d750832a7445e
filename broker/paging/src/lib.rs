//! The memory planner, a pure state machine: turns and working sets go in, orders that move memory
//! ahead of need come out.
//!
//! # Words
//!
//! Memory is counted in granules of [`GRANULE`] bytes; a granule's number is its address /
//! [`GRANULE`].
//!
//! MSched (arXiv 2512.24637) calls our [`ResidencySlot`]s "timeline entries" and our clients
//! "tasks". Its eviction list is sorted by entry. Here each granule's next use is computed, so the
//! order is exact inside a turn too ([`use_order`]).
//!
//! # How to drive it
//!
//! 1. [`Planner::join`] each client. Tell where its memory lies ([`Planner::placed`],
//!    [`Planner::freed`]) and what it touches ([`Planner::learn`]).
//! 2. [`Planner::switch`] at each switch and each change of the timeline. Element 0 runs now, for
//!    the rest of its turn.
//! 3. [`Planner::orders`] after every switch, every [`Planner::done`] and every [`Planner::ran`]:
//!    what may begin now.
//! 4. [`Planner::done`] for each order that ended or was refused.
//! 5. [`Planner::ran`] as the running client spends its own time, and always before a switch: its
//!    next turn goes on from there. Granules past their last use in the turn may then go.
//! 6. [`Planner::faulted`] for granules that came in by a fault, [`Planner::placed`] for those that
//!    the driver moved.
//!
//! A launch waits for missing granules that are [`Planner::promised`], and its caller bounds the
//! wait. Demand paging brings the others. [`Planner::may_start`] is true at once with pipelining,
//! otherwise once the whole set is in.
//!
//! # What holds
//!
//! * Granules on the device and on their way in never exceed [`PagingConfig::capacity`] by the
//!   planner's own orders. A granule on its way out counts until it is out.
//! * Orders out in each direction never exceed [`PagingConfig::in_flight`] granules; on a one-way
//!   link, both together.
//! * A granule goes out only for one that is needed earlier: otherwise the link would work for
//!   nothing.
//! * What a pinned client is known to use is never evicted.
//! * Host memory is never promised beyond [`PagingConfig::host_limit`].
//! * Every granule is on the device, on the host, or on its way, whatever callers say.
#![forbid(unsafe_code)]

mod batch;
mod choice;
mod client_memory;
mod config;
mod model;
mod planner;
#[cfg(test)]
mod tests;
mod turn_length;
mod use_order;

pub use config::{Link, Options, Overlap, PagingConfig, Victims};
pub use model::{
    Access, GranulePlace, GranuleRange, OrderId, OrderKind, OrderStatus, PagingOrder, PagingStats, ResidencySlot, Use,
    WorkingSet,
};
pub use planner::Planner;
pub use turn_length::{Migration, turn_length};

/// Bytes of a granule: the largest block that the unified-memory driver moves as one.
pub const GRANULE: u64 = 2 << 20;
