// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tally of each identity: launches since the last report, samples, and whether it was ever last
//! before a synchronising call.
//!
//! One word per identity, changed by single atomic steps: every launch of a profiled job touches
//! it. Each launch is reported once.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use weft_gate::sampling::RARE;

use crate::client::costs::Costs;

/// Mask of the sample count.
const SAMPLES: u64 = 0x1f;
/// Flag: was last before a synchronising call.
const TAIL: u64 = 0x20;
const LAUNCH: u64 = 0x100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TallyFacts {
    /// Whether it has few samples.
    pub rare: bool,
    /// Whether it was last before a synchronising call.
    pub tail: bool,
}

/// All identities of a process. Made at the first counted launch.
#[derive(Debug, Default)]
pub struct Tally(OnceLock<Costs>);

impl Tally {
    /// Counts a launch. Identities beyond the table's room are not counted.
    #[inline]
    pub fn launched(&self, kernel: u64) -> TallyFacts {
        let Some(word) = self.0.get_or_init(Costs::default).word(kernel) else {
            return TallyFacts::default();
        };
        let before = word.fetch_add(LAUNCH, Ordering::Relaxed);
        TallyFacts {
            rare: before & SAMPLES < RARE,
            tail: before & TAIL != 0,
        }
    }

    pub fn sampled(&self, kernel: u64) {
        if let Some(word) = self.0.get().and_then(|all| all.word(kernel))
            // May exceed the limit by the number of threads; the mask has room.
            && word.load(Ordering::Relaxed) & SAMPLES < RARE
        {
            word.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that the identity was last before a synchronising call.
    pub fn was_last(&self, kernel: u64) {
        if let Some(word) = self.0.get().and_then(|all| all.word(kernel))
            && word.load(Ordering::Relaxed) & TAIL == 0
        {
            word.fetch_or(TAIL, Ordering::Relaxed);
        }
    }

    /// Reports launches since the last report: identity, number.
    pub fn tell(&self, mut tell: impl FnMut(u64, u64)) {
        let Some(all) = self.0.get() else { return };
        for (kernel, word) in all.words() {
            if word.load(Ordering::Relaxed) >= LAUNCH {
                tell(kernel, word.fetch_and(LAUNCH - 1, Ordering::Relaxed) / LAUNCH);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_told_once_and_the_rest_is_kept() {
        let tally = Tally::default();
        let told = || {
            let mut told = Vec::new();
            tally.tell(|kernel, launches| told.push((kernel, launches)));
            told.sort_unstable();
            told
        };
        assert_eq!(told(), []);
        assert_eq!(
            tally.launched(7),
            TallyFacts {
                rare: true,
                tail: false
            }
        );
        (0..3 * RARE).for_each(|_| tally.sampled(7));
        tally.was_last(7);
        tally.launched(9);
        assert_eq!(
            tally.launched(7),
            TallyFacts {
                rare: false,
                tail: true
            }
        );
        assert_eq!(told(), [(7, 2), (9, 1)]);
        assert_eq!(told(), []);
        assert_eq!(
            tally.launched(7),
            TallyFacts {
                rare: false,
                tail: true
            }
        );
        assert_eq!(told(), [(7, 1)]);
        assert_eq!(tally.launched(0), TallyFacts::default(), "no identity");
    }

    #[test]
    fn threads_lose_no_launch() {
        let tally = Tally::default();
        let total = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (tally, total) = (&tally, &total);
                scope.spawn(move || {
                    for turn in 0..10_000u64 {
                        tally.launched(1 + (turn + thread) % 5);
                        if turn % 100 == 0 {
                            tally.tell(|_, launches| {
                                total.fetch_add(launches, Ordering::Relaxed);
                            });
                        }
                    }
                });
            }
        });
        tally.tell(|_, launches| {
            total.fetch_add(launches, Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 40_000);
    }
}
