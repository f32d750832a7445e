//! The memory planner, a pure state machine. Its input is who runs next and what each job touches;
//! its output is orders that move memory ahead of need.
//!
//! # Words
//!
//! Memory is counted in granules of [`GRANULE`] bytes. A granule's number is its address in its
//! client's address space / [`GRANULE`].
//!
//! In MSched (arXiv 2512.24637) our [`Turn`]s are "timeline entries" and our clients "tasks".
//! MSched walks the timeline backwards and moves each entry's pages to the tail of the eviction
//! list. The list is then, from its head, in descending order of next use. Here each granule's next
//! use is computed from the timeline, so the order is exact inside a turn too ([`order`]).
//!
//! # How to drive it
//!
//! 1. [`Planner::join`] each client. Tell where its memory lies ([`Planner::placed`],
//!    [`Planner::freed`]) and what it touches ([`Planner::learn`]).
//! 2. Call [`Planner::switch`] with the timeline at each switch and each change of the timeline.
//!    Element 0 runs now, for the rest of its turn.
//! 3. [`Planner::orders`] yields what may begin now. Call it after every switch, every
//!    [`Planner::done`] and every [`Planner::ran`].
//! 4. Call [`Planner::done`] for each order that ended or was refused.
//! 5. [`Planner::ran`] tells how much of its own time the running client spent, as often as that is
//!    known. What it used for the last time in this turn may then go. It must be told before a
//!    switch, since the client's next turn goes on from there.
//! 6. Tell what happens behind the planner's back: [`Planner::faulted`] (granules came in by a
//!    fault), [`Planner::placed`] (the driver moved them).
//!
//! A launch waits for missing granules that [`Planner::promised`] says are on their way; its caller
//! bounds the wait. Demand paging brings the others. [`Planner::may_start`] is true at once with
//! pipelining, otherwise once the whole set is in.
//!
//! # What holds
//!
//! * Granules on the device and on their way in never exceed [`Config::capacity`] by the planner's
//!   own orders. A granule on its way out counts until it is out.
//! * Orders out in each direction never exceed [`Config::in_flight`] granules; on a one-way link,
//!   both directions together.
//! * A granule goes out only for one that is needed earlier: otherwise the link would work for
//!   nothing.
//! * What a pinned client is known to use is never evicted.
//! * Host memory is never promised beyond [`Config::host_limit`].
//! * Every granule is on the device, on the host, or on its way: none is lost, whatever callers
//!   say.
#![forbid(unsafe_code)]

mod batch;
mod choice;
mod config;
mod held;
mod order;
mod planner;
mod rows;
mod set;
mod slice;
#[cfg(test)]
mod tests;

pub use config::{Config, Link, Options, Overlap, Victims};
pub use planner::Planner;
pub use rows::Row;
pub use set::{Access, Order, OrderId, Outcome, Place, Range, Turn, Use, What, WorkingSet};
pub use slice::{Migration, slice};

/// Bytes of a granule: the largest block that the unified-memory driver moves as one.
pub const GRANULE: u64 = 2 << 20;
