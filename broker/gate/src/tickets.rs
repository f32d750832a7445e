// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order at the gate: launches leave in order of arrival, over all streams of the process.
//!
//! Holding one stream while another runs would deadlock programs whose streams wait on each other.
//! The driver of this code decides how a thread waits for its turn. A thread that gave up may leave
//! out of turn: the turn then moves past lost threads too, and never back.

use std::sync::atomic::{AtomicU32, Ordering};

/// Tickets of one process.
#[derive(Debug, Default)]
pub struct TicketOrder {
    next: AtomicU32,
    serving: AtomicU32,
}

impl TicketOrder {
    /// An order whose first ticket is `first`.
    pub fn starting_at(first: u32) -> TicketOrder {
        TicketOrder {
            next: AtomicU32::new(first),
            serving: AtomicU32::new(first),
        }
    }

    /// Whether the queue is empty. A launch that finds it empty may go without a ticket: it
    /// precedes all later arrivals.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let serving = self.serving.load(Ordering::SeqCst);
        self.next.load(Ordering::SeqCst) == serving
    }

    /// Takes a ticket.
    #[inline]
    pub fn take(&self) -> u32 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    /// Whether it is this ticket's turn, or past it.
    #[inline]
    pub fn has_come(&self, ticket: u32) -> bool {
        is_served(ticket, self.serving.load(Ordering::SeqCst))
    }

    /// Leaves and lets the next ticket go. True if a thread may wait for that.
    #[inline]
    pub fn leave(&self, ticket: u32) -> bool {
        let after = ticket.wrapping_add(1);
        // Fails if a thread that gave up has moved the turn further already.
        let moved = self
            .serving
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |serving| {
                (after.wrapping_sub(serving) as i32 > 0).then_some(after)
            });
        moved.is_ok() && self.next.load(Ordering::SeqCst) != after
    }

    /// The ticket whose turn it is, as a word to sleep on; see [`is_served`].
    #[inline]
    pub fn serving(&self) -> &AtomicU32 {
        &self.serving
    }

    /// Tickets taken so far, from 0 on, wrapping.
    pub fn arrived(&self) -> u32 {
        self.next.load(Ordering::SeqCst)
    }
}

/// A copy, as in a forked child.
impl Clone for TicketOrder {
    fn clone(&self) -> TicketOrder {
        TicketOrder {
            next: AtomicU32::new(self.next.load(Ordering::SeqCst)),
            serving: AtomicU32::new(self.serving.load(Ordering::SeqCst)),
        }
    }
}

/// Whether a ticket's turn has come while `serving` is served.
#[inline]
pub fn is_served(ticket: u32, serving: u32) -> bool {
    // Wrapping: the difference of two tickets in use is far below 2^31.
    serving.wrapping_sub(ticket) as i32 >= 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_lost_thread_holds_up_nobody_and_moves_nothing_back() {
        let order = TicketOrder::starting_at(u32::MAX);
        let (lost, second, third) = (order.take(), order.take(), order.take());
        assert!(order.has_come(lost) && !order.has_come(second) && !order.is_empty());
        assert!(order.leave(second), "the third may wait");
        assert!(order.has_come(third));
        assert!(!order.leave(lost), "its turn is over");
        assert!(order.has_come(third));
        assert!(!order.leave(third), "no thread is behind it");
        assert!(order.is_empty());
    }

    proptest! {
        /// The turn never moves back, and all threads end at an empty queue, in whatever order
        /// threads leave.
        #[test]
        fn the_turn_only_moves_on(first: u32, leaving in Just((0..12u32).collect::<Vec<_>>()).prop_shuffle()) {
            let order = TicketOrder::starting_at(first);
            let tickets: Vec<u32> = leaving.iter().map(|_| order.take()).collect();
            let mut furthest = 0;
            for at in leaving {
                order.leave(tickets[at as usize]);
                furthest = furthest.max(at + 1);
                prop_assert_eq!(order.serving().load(Ordering::SeqCst), first.wrapping_add(furthest));
            }
            prop_assert!(order.is_empty());
        }
    }
}
