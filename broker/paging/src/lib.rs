// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory planner, a pure state machine: turns and working sets go in, orders that move memory
//! ahead of need come out.
//!
//! Memory is counted in granules of [`GRANULE`] bytes; a granule's number is `address / GRANULE`.
//! MSched (arXiv 2512.24637) calls [`ResidencySlot`]s "timeline entries" and clients "tasks". Its
//! eviction list is sorted by entry. Here each granule's next use is computed, so the order is
//! exact inside a turn ([`use_order`]).
//!
//! # How to drive it
//!
//! 1. [`Planner::join`] each client. Report the places of its memory ([`Planner::placed`],
//!    [`Planner::freed`]) and its uses ([`Planner::set_working_set`]).
//! 2. [`Planner::switch`] at each switch and each change of the timeline. Element 0 runs now, for
//!    the rest of its turn.
//! 3. [`Planner::orders`] after every switch, [`Planner::done`] and [`Planner::ran`]: the orders
//!    that may begin now.
//! 4. [`Planner::done`] for each order that ended or was refused.
//! 5. [`Planner::ran`] as the running client spends its own time, and before a switch. Granules
//!    past their last use in the turn may then go. In turns by the clock also [`Planner::ends_in`].
//! 6. [`Planner::faulted`] for granules that came by a fault, [`Planner::placed`] for those that
//!    the driver moved.
//!
//! A launch waits, bounded by the caller, for missing granules that are [`Planner::promised`].
//! Others come by demand paging. [`Planner::may_start`] is true at once with pipelining, otherwise
//! once the whole set is in.
//!
//! # Invariants
//!
//! * `on device + on their way in <= PagingConfig::capacity` by the planner's own orders. A granule
//!   on its way out counts until it is out.
//! * Orders out in each direction (on a one-way link: in both) are at most
//!   [`PagingConfig::in_flight`] granules.
//! * A granule goes out only for one that is needed earlier.
//! * Granules that a pinned client is known to use are never evicted.
//! * Host memory is never promised beyond [`PagingConfig::host_limit`].
//! * Every granule is on the device, on the host, or on its way, whatever callers report.
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

pub use config::{Link, Overlap, PagingConfig, PlanOptions, RESERVE_PART, Victims};
pub use model::{
    Access, GranulePlace, GranuleRange, OrderId, OrderKind, OrderStatus, PagingOrder, PagingStats, ResidencySlot, Use,
    WorkingSet,
};
pub use planner::Planner;
pub use turn_length::{Migration, NEAREST_END_NS, Round, TurnLateness, TurnPlan, TurnRule, turns};

/// Bytes of a granule: the largest block that the driver moves as one.
pub const GRANULE: u64 = 2 << 20;
