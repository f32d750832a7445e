//! What the job's threads want told to the broker: a bounded queue that the helper thread empties.
//!
//! A thread that puts something in never waits for the broker; where the queue is full the message is dropped and counted.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_broker::protocol::control::ToBroker;

/// Messages kept. A model's kernels are told once each, some thousand in its first second.
const LONGEST: usize = 4096;

/// The queue.
#[derive(Debug, Default)]
pub struct Messages {
    inside: Mutex<Inside>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Inside {
    waiting: VecDeque<ToBroker>,
    dropped: u64,
    nudged: bool,
}

impl Messages {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        // Nothing that runs under the lock can leave the queue half changed.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message in. False if it had to be dropped.
    pub fn put(&self, message: ToBroker) -> bool {
        let mut inside = self.inside();
        let room = inside.waiting.len() < LONGEST;
        if room {
            inside.waiting.push_back(message);
        } else {
            inside.dropped += 1;
        }
        drop(inside);
        self.bell.notify_one();
        room
    }

    /// Takes all messages, and how many were dropped since the last time.
    pub fn take(&self) -> (VecDeque<ToBroker>, u64) {
        let mut inside = self.inside();
        (std::mem::take(&mut inside.waiting), std::mem::take(&mut inside.dropped))
    }

    /// Wakes the helper though there is no message.
    pub fn nudge(&self) {
        self.inside().nudged = true;
        self.bell.notify_one();
    }

    /// Waits for a message or a nudge, at most so long.
    pub fn wait(&self, within: Duration) {
        let inside = self.inside();
        let waited = self
            .bell
            .wait_timeout_while(inside, within, |inside| inside.waiting.is_empty() && !inside.nudged);
        let (mut inside, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inside.nudged = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_counts() {
        let messages = Messages::default();
        for n in 0..LONGEST + 7 {
            assert_eq!(messages.put(ToBroker::Note(n.to_string())), n < LONGEST);
        }
        let (taken, dropped) = messages.take();
        assert_eq!((taken.len(), dropped), (LONGEST, 7));
        assert_eq!(taken.front(), Some(&ToBroker::Note("0".into())));
        assert_eq!(messages.take().1, 0);
        messages.nudge();
        // Returns at once, or this test takes an hour.
        messages.wait(Duration::from_secs(3600));
    }
}
