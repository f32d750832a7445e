// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device as one thread's stream sees it: work ends in the order in which it was queued, at any
//! time.
//!
//! Other streams' work is not modelled: the lateness of an end is drawn at random, and that covers
//! the effects of neighbours.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use weft_scheduler::Ns;

#[derive(Debug, Clone, Copy)]
struct QueuedWork {
    number: u64,
    end: Ns,
}

/// One stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceStream {
    work: VecDeque<QueuedWork>,
    next: u64,
    /// The last kernel spins until other work is queued behind it; it then takes this long.
    spins: Option<Ns>,
}

impl DeviceStream {
    /// Queues work. With `spins` it ends only after other work was queued.
    pub(crate) fn queue(&mut self, now: Ns, time: Ns, spins: bool) {
        if let (Some(rest), Some(last)) = (self.spins.take(), self.work.back_mut()) {
            last.end = now.saturating_add(rest);
        }
        let begin = self.work.back().map_or(now, |last| last.end.max(now));
        let end = if spins { Ns::MAX } else { begin.saturating_add(time) };
        self.spins = spins.then_some(time);
        self.work.push_back(QueuedWork { number: self.next, end });
        self.next += 1;
    }

    /// Number of kernels and copies queued so far.
    pub(crate) fn queued(&self) -> u64 {
        self.next
    }

    /// Number of kernels and copies that have ended.
    pub(crate) fn ended(&mut self, now: Ns) -> u64 {
        while self.work.front().is_some_and(|work| work.end <= now) {
            self.work.pop_front();
        }
        self.work.front().map_or(self.next, |work| work.number)
    }

    /// End of all its work; `None` if that is not known yet.
    pub(crate) fn end(&self) -> Option<Ns> {
        match self.work.back() {
            Some(last) if last.end == Ns::MAX => None,
            Some(last) => Some(last.end),
            None => Some(0),
        }
    }
}
