//! The memory planner as a pure state machine: who runs next and what each job touches go in;
//! orders to move memory come out, ahead of their need.
//!
//! # Words
//!
//! Memory is counted in granules of [`GRANULE`] bytes (2 MB, what the driver moves at once); a
//! granule's number is its address in its client's address space over [`GRANULE`]. MSched (arXiv
//! 2512.24637) calls our [`Turn`]s "timeline entries" and our clients "tasks"; it walks the
//! timeline backwards and moves each entry's pages to the tail of the eviction list, which leaves
//! the list, from its head, in the order of descending next use. Here the next use of each granule
//! is computed from the same timeline, so that the order is exact inside a turn too ([`order`]).
//!
//! # How to drive it
//!
//! 1. [`Planner::join`] each client, tell what it has and where it lies ([`Planner::placed`],
//!    [`Planner::freed`]) and what it touches ([`Planner::learn`]).
//! 2. At each switch, and whenever the timeline changes, [`Planner::switch`] with the timeline:
//!    element 0 runs now, for so much longer.
//! 3. [`Planner::orders`] yields what may begin now; call it after every switch, every
//!    [`Planner::done`] and every [`Planner::ran`].
//! 4. [`Planner::done`] for each order that has ended or was refused.
//! 5. [`Planner::ran`] tells how much of its own time the running client has spent, as often as it
//!    is known: what it has used for the last time in this turn may go from then on. Before a
//!    switch it must be told, since the client's next turn goes on from there.
//! 6. What happens behind the planner's back is told too: [`Planner::faulted`] (granules came in by
//!    a fault), [`Planner::placed`] (the driver moved them).
//!
//! A launch whose granules are not all there waits for those that [`Planner::promised`] says are on
//! their way (bounded by whoever waits) and leaves the rest to demand paging.
//! [`Planner::may_start`] is true at once with pipelining; without it, when the whole set is in.
//!
//! # What holds
//!
//! * Granules on the device, and those on their way in, are never more than [`Config::capacity`];
//!   what is on its way out counts until it is out.
//! * Orders out in each direction are never more than [`Config::in_flight`] granules, on a one-way
//!   link both directions together.
//! * A granule comes in only for one that is needed later than it: otherwise the link would work
//!   for nothing.
//! * What a pinned client is known to use is never evicted. Host memory is never promised beyond
//!   [`Config::host_limit`].
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
