// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detects tuning bursts. A job that loads code and times it with events chooses its kernels once,
//! for its whole life.
//!
//! The job would count a wait between two events as the kernel's time. So for a moment after a
//! load, as soon as events are recorded, a burst that began with credit continues without credit.
//! Its outstanding work is bounded. The bound is above the usual delay bound, and applies for some
//! seconds at a background job's start; `unsplit` counts such launches.
//!
//! At any time the launch between two events with times goes together with the first event. The job
//! waits for the launch's credit before it records that event. If the credit becomes void a moment
//! later, the launch still goes: one launch, or several of [`PAIR_NS`] together.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use weft_protocol::Ns;

use crate::driver::stream::{Event, Stream};
use crate::kernels::index::Index;

/// Known events with times. Triton makes 200 per candidate; further events count as plain ones.
const TIMED_EVENTS: usize = 4096;

/// Most predicted work of all launches of a pair, if it has several, ns: the usual delay bound.
const PAIR_NS: Ns = 500_000;

/// Longest time from a pair's first event to its launch, ns. After it the job does something else.
const PAIR_AGE_NS: Ns = 2_000_000;

/// Events made with times.
static TIMED: Index<TIMED_EVENTS> = Index::new();

/// Notes an event that was made with a time.
pub fn timed_event_made(event: Event) {
    TIMED.set(event, 1);
}

/// Forgets a destroyed event.
pub fn event_gone(event: Event) {
    if let Some(slot) = TIMED.find(event) {
        slot.value.store(0, Ordering::Relaxed);
    }
}

/// Whether an event has a time.
pub fn is_timed(event: Event) -> bool {
    TIMED
        .find(event)
        .is_some_and(|slot| slot.value.load(Ordering::Relaxed) != 0)
}

/// Time after a load in which a tuner times code, ns. Triton warms up for 25 ms and times for 100
/// ms; cuBLAS and XLA need less.
const AFTER_LOAD: Ns = 250_000_000;

/// Events of one measurement.
const EVENTS: u32 = 2;

/// Most outstanding predicted work of a burst, ns.
const BURST: Ns = 10_000_000;

/// Tuning state of this process.
#[derive(Debug, Default)]
pub struct Tuning {
    until: AtomicU64,
    events: AtomicU32,
    pair: Pair,
}

/// The pair of events that the job records now, on one stream.
#[derive(Debug, Default)]
struct Pair {
    stream: AtomicUsize,
    /// Launches of the job up to the last event.
    launches: AtomicU64,
    /// Time, ns, until which the launch goes with the first event; 0: no first event was recorded.
    until: AtomicU64,
    /// Predicted work of its launches that went without credit, ns.
    unpaid: AtomicU64,
    /// Kernel and predicted time, ns, of the last such launch.
    kernel: AtomicU64,
    cost: AtomicU64,
}

impl Tuning {
    /// Notes that code was loaded.
    pub fn code_loaded(&self, now: Ns) {
        self.until.store(now.saturating_add(AFTER_LOAD), Ordering::Relaxed);
        self.events.store(0, Ordering::Relaxed);
    }

    /// Notes an event recorded in a stream.
    #[inline]
    pub fn event_recorded(&self) {
        // Most processes load no more code: for them this is one load.
        if self.until.load(Ordering::Relaxed) != 0 {
            self.events.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes an event with a time, before it is recorded, when the job has made `launches`
    /// launches. True if it may begin a pair: nothing was launched since the last event, which
    /// began no pair.
    pub fn begins_pair(&self, stream: Stream, launches: u64) -> bool {
        let pair = &self.pair;
        let same = pair.stream.swap(stream, Ordering::Relaxed) == stream;
        let before = pair.launches.swap(launches, Ordering::Relaxed);
        let open = pair.until.swap(0, Ordering::Relaxed) != 0;
        same && before == launches && !open
    }

    /// Kernel and predicted time, ns, of the launch that the next pair is expected to contain;
    /// `unknown` for the first pair.
    pub fn expected(&self, unknown: Ns) -> (u64, Ns) {
        let cost = self.pair.cost.load(Ordering::Relaxed);
        let kernel = self.pair.kernel.load(Ordering::Relaxed);
        (kernel, if cost == 0 { unknown } else { cost })
    }

    /// Notes that the first event of a pair is recorded now, with credit for its launch.
    pub fn pair_began(&self, now: Ns) {
        self.pair.unpaid.store(0, Ordering::Relaxed);
        self.pair
            .until
            .store(now.saturating_add(PAIR_AGE_NS), Ordering::Relaxed);
    }

    /// Whether a launch without credit goes with its pair's first event.
    pub fn goes_with_pair(&self, stream: Stream, kernel: u64, cost: Ns, now: Ns) -> bool {
        let pair = &self.pair;
        if pair.until.load(Ordering::Relaxed) <= now || pair.stream.load(Ordering::Relaxed) != stream {
            return false;
        }
        pair.kernel.store(kernel, Ordering::Relaxed);
        pair.cost.store(cost, Ordering::Relaxed);
        let unpaid = pair.unpaid.fetch_add(cost.max(1), Ordering::Relaxed);
        unpaid == 0 || unpaid.saturating_add(cost) <= PAIR_NS
    }

    /// Whether the job may be timing kernels now.
    pub fn is_timing(&self, now: Ns) -> bool {
        now < self.until.load(Ordering::Relaxed) && self.events.load(Ordering::Relaxed) > 0
    }

    /// Whether a launch belongs to a burst that must not be split.
    pub fn goes_on(&self, now: Ns, outstanding: Ns) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        if now >= until {
            self.until.store(0, Ordering::Relaxed);
            return false;
        }
        self.events.load(Ordering::Relaxed) >= EVENTS && (1..BURST).contains(&outstanding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_goes_with_the_first_event_of_its_pair() {
        let tuning = Tuning::default();
        let go = |cost, now| tuning.goes_with_pair(7, 9, cost, now);
        assert!(!tuning.begins_pair(7, 3), "the first event that is seen");
        assert!(!go(10, 1), "no pair began");
        assert!(tuning.begins_pair(7, 3), "nothing was launched since");
        assert_eq!(tuning.expected(20_000), (0, 20_000));
        tuning.pair_began(1);
        assert!(!tuning.goes_with_pair(8, 9, 10, 2), "another stream");
        assert!(go(2 * PAIR_NS, 2), "one launch of any length");
        assert!(!go(1, 2));
        assert_eq!(tuning.expected(20_000), (9, 1));
        assert!(!tuning.begins_pair(7, 4), "the second event");
        assert!(!go(10, 3), "the pair is over");
        assert!(tuning.begins_pair(7, 4));
        tuning.pair_began(1_000);
        assert!(go(PAIR_NS / 2, 1_001) && go(PAIR_NS / 2, 1_001) && !go(1, 1_001));
        assert!(!tuning.begins_pair(7, 4), "a copy may lie between");
        assert!(!tuning.begins_pair(6, 6) && tuning.begins_pair(6, 6));
        tuning.pair_began(2_000);
        assert!(!tuning.goes_with_pair(6, 9, 10, 2_000 + PAIR_AGE_NS), "it is old");
    }

    #[test]
    fn events_with_times_are_known_until_they_are_destroyed() {
        let (timed, plain) = (0x7e57_0010, 0x7e57_0020);
        timed_event_made(timed);
        assert!(is_timed(timed) && !is_timed(plain));
        event_gone(timed);
        event_gone(plain);
        assert!(!is_timed(timed));
    }

    #[test]
    fn only_timed_bursts_right_after_a_load_go_on() {
        let tuning = Tuning::default();
        tuning.event_recorded();
        tuning.event_recorded();
        assert!(!tuning.goes_on(1_000, 500), "no code was loaded");
        tuning.code_loaded(1_000);
        assert!(!tuning.goes_on(2_000, 500), "nothing is timed");
        tuning.event_recorded();
        tuning.event_recorded();
        assert!(tuning.goes_on(2_000, 500));
        assert!(!tuning.goes_on(2_000, 0), "a burst begins with credit");
        assert!(!tuning.goes_on(2_000, BURST), "and has a bound");
        assert!(!tuning.goes_on(2_000 + AFTER_LOAD, 500));
        assert!(!tuning.goes_on(2_000, 500), "it is over");
    }
}
