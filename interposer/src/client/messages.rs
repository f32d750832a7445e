// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages from the job's threads to the broker: a bounded queue that the helper thread empties.
//!
//! A sender never waits: a full queue drops and counts the message.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_protocol::control::ToBroker;

/// Most messages kept: each of a model's kernels is reported once, some thousand at its start.
const MOST_MESSAGES: usize = 4096;

#[derive(Debug, Default)]
pub struct Messages {
    inside: Mutex<QueueState>,
    bell: Condvar,
    heard: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<ToBroker>,
    dropped: u64,
    nudged: bool,
    /// Number of requests to read the broker's messages, and number of served requests.
    wanted: u64,
    heard: u64,
}

impl Messages {
    fn inside(&self) -> MutexGuard<'_, QueueState> {
        // No code under the lock can leave the queue half changed.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message. False if dropped.
    pub fn put(&self, message: ToBroker) -> bool {
        let mut inside = self.inside();
        let room = inside.waiting.len() < MOST_MESSAGES;
        if room {
            inside.waiting.push_back(message);
        } else {
            inside.dropped += 1;
        }
        drop(inside);
        self.bell.notify_one();
        room
    }

    /// Takes all messages, and the number dropped since the last call.
    pub fn take(&self) -> (VecDeque<ToBroker>, u64) {
        let mut inside = self.inside();
        (std::mem::take(&mut inside.waiting), std::mem::take(&mut inside.dropped))
    }

    /// Wakes the helper without a message.
    pub fn nudge(&self) {
        self.inside().nudged = true;
        self.bell.notify_one();
    }

    /// Waits at most `within` until the helper has read the broker's messages so far. False on
    /// timeout.
    pub fn hear(&self, within: Duration) -> bool {
        let mut inside = self.inside();
        inside.wanted += 1;
        inside.nudged = true;
        let this = inside.wanted;
        self.bell.notify_one();
        let waited = self
            .heard
            .wait_timeout_while(inside, within, |inside| inside.heard < this);
        let (inside, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inside.heard >= this
    }

    /// Begins to read the broker's messages. [`Messages::has_heard`] serves requests up to the
    /// returned number.
    pub fn begins_to_hear(&self) -> u64 {
        self.inside().wanted
    }

    /// Serves requests up to `wanted`.
    pub fn has_heard(&self, wanted: u64) {
        let mut inside = self.inside();
        if inside.heard < wanted {
            inside.heard = wanted;
            self.heard.notify_all();
        }
    }

    /// Waits at most `within` for a message or a nudge.
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
        for n in 0..MOST_MESSAGES + 7 {
            assert_eq!(messages.put(ToBroker::Note(n.to_string())), n < MOST_MESSAGES);
        }
        let (taken, dropped) = messages.take();
        assert_eq!((taken.len(), dropped), (MOST_MESSAGES, 7));
        assert_eq!(taken.front(), Some(&ToBroker::Note("0".into())));
        assert_eq!(messages.take().1, 0);
        messages.nudge();
        // Returns at once, or this test takes an hour.
        messages.wait(Duration::from_secs(3600));
    }

    #[test]
    fn who_wants_the_broker_heard_waits_for_a_look_that_begins_later_and_not_for_ever() {
        let messages = Messages::default();
        let early = messages.begins_to_hear();
        std::thread::scope(|scope| {
            let hearing = scope.spawn(|| messages.hear(Duration::from_secs(3600)));
            // It wakes the helper.
            messages.wait(Duration::from_secs(3600));
            // A read that began earlier is not enough.
            messages.has_heard(early);
            assert!(!hearing.is_finished());
            messages.has_heard(messages.begins_to_hear());
            assert!(hearing.join().expect("it returns"));
        });
        assert!(!messages.hear(Duration::from_millis(1)), "nobody looks");
    }
}
