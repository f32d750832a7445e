//! Ticket lock of the gate: launches leave in order of arrival, over all streams of the process.
//!
//! Holding one stream while another runs would deadlock programs whose streams wait on each other.
//! Waits are bounded: after its deadline a thread goes and moves the turn on, past lost threads
//! too.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags};
use weft_protocol::Ns;

use crate::client::clock;

/// Ticket lock of one process.
#[derive(Debug, Default)]
pub struct Turn {
    next: AtomicU32,
    serving: AtomicU32,
}

impl Turn {
    /// Whether the queue is empty. A launch that sees this may go without a ticket: it precedes all
    /// later arrivals.
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
    pub fn come(&self, ticket: u32) -> bool {
        // Wrapping: the difference of two tickets in use is far below 2^31.
        self.serving.load(Ordering::SeqCst).wrapping_sub(ticket) as i32 >= 0
    }

    /// Waits for the turn. False if `deadline` passed before.
    #[cold]
    pub fn wait(&self, ticket: u32, deadline: Ns) -> bool {
        loop {
            let serving = self.serving.load(Ordering::SeqCst);
            if serving.wrapping_sub(ticket) as i32 >= 0 {
                return true;
            }
            let now = clock::now();
            if now >= deadline {
                return false;
            }
            // Woken, interrupted or timed out: look again.
            let _ = futex::wait(
                &self.serving,
                Flags::PRIVATE,
                serving,
                Some(&clock::timespec(deadline - now)),
            );
        }
    }

    /// Leaves and lets the next ticket go.
    #[inline]
    pub fn leave(&self, ticket: u32) {
        let after = ticket.wrapping_add(1);
        // Fails if a thread without patience has moved the turn further already.
        let moved = self
            .serving
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |serving| {
                (after.wrapping_sub(serving) as i32 > 0).then_some(after)
            });
        if moved.is_ok() && self.next.load(Ordering::SeqCst) != after {
            self.wake();
        }
    }

    /// Tickets taken so far.
    #[cfg(test)]
    pub fn arrived(&self) -> u32 {
        self.next.load(Ordering::SeqCst)
    }

    /// Tickets left so far.
    #[cfg(test)]
    pub fn left(&self) -> u32 {
        self.serving.load(Ordering::SeqCst)
    }

    #[cold]
    fn wake(&self) {
        // All of them: only the next one knows that it is meant. A handful of threads at most.
        let _ = futex::wake(&self.serving, Flags::PRIVATE, i32::MAX as u32);
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
        let turn = Turn::default();
        // Near the end of the numbers, so that they wrap within the test.
        turn.next.store(u32::MAX - 20, Ordering::SeqCst);
        turn.serving.store(u32::MAX - 20, Ordering::SeqCst);
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
            assert!(turn.come(first));
            turn.leave(first);
        });
        let left = left.into_inner().expect("no panic");
        assert_eq!(left.len(), 80);
        assert!(left.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)));
    }

    #[test]
    fn nobody_stays_behind_one_that_never_comes_back() {
        let turn = Turn::default();
        let lost = turn.take();
        let second = turn.take();
        let third = turn.take();
        assert!(!turn.wait(second, clock::now() + 1_000_000));
        turn.leave(second);
        assert!(turn.wait(third, clock::now() + LONG));
        turn.leave(third);
        // If the lost thread comes back, it goes at once and moves nothing back.
        assert!(turn.come(lost));
        turn.leave(lost);
        let fourth = turn.take();
        assert!(turn.come(fourth));
    }
}
