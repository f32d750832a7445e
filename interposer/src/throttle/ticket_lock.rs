// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ticket lock of the gate: [`TicketOrder`], and the sleep of a thread whose turn has not come.
//!
//! Waits are bounded: after its deadline a thread leaves and moves the turn on.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use rustix::thread::futex::{self, Flags};
use weft_gate::tickets::{TicketOrder, is_served};
use weft_protocol::Ns;

use crate::client::clock;

/// Ticket lock of one process.
#[derive(Debug, Default)]
pub struct TicketLock(TicketOrder);

impl TicketLock {
    /// Whether the queue is empty: [`TicketOrder::is_empty`].
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a ticket.
    #[inline]
    pub fn take(&self) -> u32 {
        self.0.take()
    }

    /// Whether it is this ticket's turn, or past it.
    #[inline]
    pub fn has_come(&self, ticket: u32) -> bool {
        self.0.has_come(ticket)
    }

    /// Waits for the turn. False if `deadline` passed before.
    #[cold]
    pub fn wait(&self, ticket: u32, deadline: Ns) -> bool {
        let word = self.0.serving();
        loop {
            let serving = word.load(Ordering::SeqCst);
            if is_served(ticket, serving) {
                return true;
            }
            let now = clock::now();
            if now >= deadline {
                return false;
            }
            // Woken, interrupted or timed out: look again.
            let _ = futex::wait(word, Flags::PRIVATE, serving, Some(&clock::timespec(deadline - now)));
        }
    }

    /// Leaves and lets the next ticket go.
    #[inline]
    pub fn leave(&self, ticket: u32) {
        if self.0.leave(ticket) {
            self.wake();
        }
    }

    /// Tickets taken so far.
    #[cfg(test)]
    pub fn arrived(&self) -> u32 {
        self.0.arrived()
    }

    /// Tickets left so far.
    #[cfg(test)]
    pub fn left(&self) -> u32 {
        self.0.serving().load(Ordering::SeqCst)
    }

    #[cold]
    fn wake(&self) {
        // Wakes all of them, a handful of threads at most: only the next thread knows that its turn
        // has come.
        let _ = futex::wake(self.0.serving(), Flags::PRIVATE, i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::thread;

    const LONG: Ns = 60_000_000_000;

    #[test]
    fn they_leave_in_the_order_they_came() {
        // Near the end of the numbers, so that they wrap within the test.
        let turn = TicketLock(TicketOrder::starting_at(u32::MAX - 20));
        let left = Mutex::new(Vec::new());
        let first = turn.take();
        thread::scope(|scope| {
            for _ in 0..8 {
                let ticket = turn.take();
                let (turn, left) = (&turn, &left);
                scope.spawn(move || {
                    for round in 0..10 {
                        let ticket = if round == 0 { ticket } else { turn.take() };
                        assert!(turn.wait(ticket, clock::now() + LONG));
                        left.lock().expect("no panic").push(ticket);
                        turn.leave(ticket);
                    }
                });
            }
            assert!(turn.has_come(first));
            turn.leave(first);
        });
        let left = left.into_inner().expect("no panic");
        assert_eq!(left.len(), 80);
        assert!(left.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)));
    }

    #[test]
    fn nobody_stays_behind_one_that_never_comes_back() {
        let turn = TicketLock::default();
        let lost = turn.take();
        let second = turn.take();
        let third = turn.take();
        assert!(!turn.wait(second, clock::now() + 1_000_000));
        turn.leave(second);
        assert!(turn.wait(third, clock::now() + LONG));
        turn.leave(third);
        // If the lost thread returns, it goes at once and moves nothing back.
        assert!(turn.has_come(lost));
        turn.leave(lost);
        let fourth = turn.take();
        assert!(turn.has_come(fourth));
    }
}
