//! Detects tuning bursts: a job that loads code and times it with events chooses kernels for life.
//!
//! A wait between two events would be taken for the kernel's time. So for a moment after a load,
//! once events are recorded, a burst that began with credit goes on without it. Its outstanding
//! work is bounded, above the usual delay bound, for some seconds of a background job's start;
//! `unsplit` counts it.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_protocol::Ns;

/// Time after a load in which a tuner times code, ns. Triton warms up for 25 ms and times for 100
/// ms; cuBLAS and XLA need less.
const AFTER_LOAD: Ns = 250_000_000;

/// Events of one measurement.
const EVENTS: u32 = 2;

/// Outstanding predicted work of a burst at most, ns.
const BURST: Ns = 10_000_000;

/// Tuning state of this process.
#[derive(Debug, Default)]
pub struct Tuning {
    until: AtomicU64,
    events: AtomicU32,
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
        // Most processes load no more code: one load then.
        if self.until.load(Ordering::Relaxed) != 0 {
            self.events.fetch_add(1, Ordering::Relaxed);
        }
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
