// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a foreground job recorded its events: a wait for an event is a wait for the work that was
//! launched before.
//!
//! Engines that queue the next step before the last one's end wait in this way (vLLM), and no wait
//! sees all of their work ended.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use weft_protocol::Ns;

/// Events whose times are kept. vLLM has four in use.
const EVENTS: usize = 8;

/// No event; no handle has this value.
const NONE: usize = usize::MAX;

/// Shortest wait, ns, that is one. A shorter wait for a part of the work is not reported, and a
/// shorter wait for all of it found the work done. A call that finds its work ended
/// returns in 1 to 2 us.
pub const LEAST_WAIT_NS: Ns = 5_000;

/// Times at which the last events were recorded.
#[derive(Debug)]
pub struct EventTimes {
    events: [AtomicUsize; EVENTS],
    times: [AtomicU64; EVENTS],
    /// Place of the next new event.
    next: AtomicUsize,
}

impl Default for EventTimes {
    fn default() -> EventTimes {
        EventTimes {
            events: std::array::from_fn(|_| AtomicUsize::new(NONE)),
            times: std::array::from_fn(|_| AtomicU64::new(0)),
            next: AtomicUsize::new(0),
        }
    }
}

impl EventTimes {
    fn places(&self) -> impl Iterator<Item = (&AtomicUsize, &AtomicU64)> {
        self.events.iter().zip(&self.times)
    }

    /// Takes in that an event was recorded at `at`.
    pub fn recorded(&self, event: usize, at: Ns) {
        let known = self.places().find(|(place, _)| place.load(Ordering::Relaxed) == event);
        if let Some((_, time)) = known {
            return time.store(at, Ordering::Release);
        }
        let next = self.next.fetch_add(1, Ordering::Relaxed) % EVENTS;
        if let Some((place, time)) = self.places().nth(next) {
            // A reader sees either event with its own time, or none.
            place.store(NONE, Ordering::Release);
            time.store(at, Ordering::Release);
            place.store(event, Ordering::Release);
        }
    }

    /// When an event was last recorded; `None`: it is not among the last ones.
    pub fn of(&self, event: usize) -> Option<Ns> {
        let (place, time) = self
            .places()
            .find(|(place, _)| place.load(Ordering::Acquire) == event)?;
        let at = time.load(Ordering::Acquire);
        (place.load(Ordering::Acquire) == event).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_have_their_last_times() {
        let times = EventTimes::default();
        assert_eq!(times.of(7), None);
        times.recorded(7, 10);
        times.recorded(7, 20);
        assert_eq!(times.of(7), Some(20));
        (100..100 + EVENTS).for_each(|event| times.recorded(event, event as Ns));
        assert_eq!(times.of(7), None, "others took its place");
        (100..100 + EVENTS).for_each(|event| assert_eq!(times.of(event), Some(event as Ns)));
    }
}
