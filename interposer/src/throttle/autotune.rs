//! Auto-tuners: a job that loads code and then times it with events chooses its kernels for the
//! rest of its life by what it sees.
//!
//! A wait at the gate between two of its events would be taken for the kernel's time. So for a
//! moment after code was loaded, once events are being recorded, a burst that has begun with credit
//! goes on without, up to a bound of work on its way. That is longer than the usual delay bound:
//! the price is paid for some seconds of a background job's start, and counted (`unsplit`).
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_protocol::Ns;

/// A tuner times new code within this time: Triton warms up for 25 ms and times for 100 ms, cuBLAS
/// and XLA are done sooner.
const AFTER_LOAD: Ns = 250_000_000;

/// A pair of events is what times.
const EVENTS: u32 = 2;

/// So much predicted work of a burst may be on its way.
const BURST: Ns = 10_000_000;

/// What is known about tuning in this process.
#[derive(Debug, Default)]
pub struct Tuning {
    until: AtomicU64,
    events: AtomicU32,
}

impl Tuning {
    /// Code was loaded.
    pub fn code_loaded(&self, now: Ns) {
        self.until.store(now.saturating_add(AFTER_LOAD), Ordering::Relaxed);
        self.events.store(0, Ordering::Relaxed);
    }

    /// An event goes into a stream.
    #[inline]
    pub fn event_recorded(&self) {
        // Most processes load no code any more: one load then.
        if self.until.load(Ordering::Relaxed) != 0 {
            self.events.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the job may be timing its kernels by events just now.
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
