// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations of the requests that a client marks, counted in buckets: without other jobs, and
//! together with them.
//!
//! The client adds and the broker reads. A bucket is 1/32 of an octave, so a quantile is exact to
//! 2 %; the mean is exact.
#![forbid(unsafe_code)]

use crate::Ns;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Buckets per octave, as a power of two.
const STEPS_LOG2: u32 = 5;

/// Shortest counted duration, 2^10 ns. Shorter requests count as this long.
const SHORTEST_LOG2_NS: u32 = 10;

/// Longest counted duration, 2^37 ns, two minutes. Longer requests count as this long.
const LONGEST_LOG2_NS: u32 = 37;

/// Buckets in all.
const BUCKETS: usize = ((LONGEST_LOG2_NS - SHORTEST_LOG2_NS) as usize) << STEPS_LOG2;

/// Durations of requests of one kind.
#[repr(C)]
#[derive(Debug)]
pub struct Durations {
    total_ns: AtomicU64,
    buckets: [AtomicU32; BUCKETS],
}

impl Default for Durations {
    fn default() -> Durations {
        Durations {
            total_ns: AtomicU64::new(0),
            buckets: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

/// Figures of [`Durations`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurationFigures {
    /// Number of requests.
    pub count: u64,
    /// Mean, ns.
    pub mean: Ns,
    /// Median, ns.
    pub p50: Ns,
    /// 99th percentile, ns.
    pub p99: Ns,
}

impl Durations {
    /// Counts a request that took `ns`. From any thread, without waiting.
    pub fn add(&self, ns: Ns) {
        // Never 0: a sum of 0 stands for no requests.
        self.total_ns.fetch_add(ns.max(1), Ordering::Relaxed);
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The figures now; `None` without a request.
    pub fn figures(&self) -> Option<DurationFigures> {
        self.counts()?.figures()
    }

    /// The counts so far; `None` without a request. A client can write anything, so no value is
    /// trusted.
    pub fn counts(&self) -> Option<DurationCounts> {
        // Most jobs mark no requests: then the buckets are not read.
        let total = self.total_ns.load(Ordering::Relaxed);
        if total == 0 {
            return None;
        }
        let counts = (0..).zip(&self.buckets);
        let counts = counts.map(|(at, bucket)| (at, bucket.load(Ordering::Relaxed)));
        let buckets: Vec<(u16, u32)> = counts.filter(|(_, number)| *number > 0).collect();
        (!buckets.is_empty()).then_some(DurationCounts { total, buckets })
    }
}

/// A copy of [`Durations`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DurationCounts {
    /// Sum of all, ns.
    pub total: Ns,
    /// Buckets that have durations, ascending, each with their number.
    pub buckets: Vec<(u16, u32)>,
}

impl DurationCounts {
    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, number)| u64::from(*number)).sum()
    }

    /// Adds counts from elsewhere.
    pub fn add(&mut self, more: &DurationCounts) {
        self.total = self.total.saturating_add(more.total);
        for (at, number) in &more.buckets {
            match self.buckets.binary_search_by_key(at, |(known, _)| *known) {
                Ok(known) => {
                    if let Some((_, sum)) = self.buckets.get_mut(known) {
                        *sum = sum.saturating_add(*number);
                    }
                }
                Err(place) => self.buckets.insert(place, (*at, *number)),
            }
        }
    }

    /// The figures; `None` without a request.
    pub fn figures(&self) -> Option<DurationFigures> {
        let count = self.count();
        (count > 0).then(|| DurationFigures {
            count,
            mean: self.total / count,
            p50: self.quantile(count, 50),
            p99: self.quantile(count, 99),
        })
    }

    /// Standard error of the mean, ns, by the buckets.
    pub fn error(&self) -> f64 {
        let count = self.count().max(1) as f64;
        let middle = |at: u16| (begin_of(at.into()) + begin_of(usize::from(at) + 1)) as f64 / 2.0;
        let sum = |of: &dyn Fn(f64) -> f64| -> f64 {
            let each = self
                .buckets
                .iter()
                .map(|(at, number)| of(middle(*at)) * f64::from(*number));
            each.sum::<f64>() / count
        };
        let mean = sum(&|ns| ns);
        (sum(&|ns| (ns - mean).powi(2)) / count).sqrt()
    }

    /// The middle of the bucket in which the request of this rank is.
    fn quantile(&self, count: u64, percent: u64) -> Ns {
        let rank = count.saturating_mul(percent).div_ceil(100).max(1);
        let mut below = 0;
        for (at, number) in &self.buckets {
            below += u64::from(*number);
            if below >= rank {
                return (begin_of((*at).into()) + begin_of(usize::from(*at) + 1)) / 2;
            }
        }
        begin_of(BUCKETS)
    }
}

fn bucket_of(ns: Ns) -> usize {
    let ns = ns.clamp(1 << SHORTEST_LOG2_NS, (1 << LONGEST_LOG2_NS) - 1);
    let octave = ns.ilog2();
    // The bits behind the first one.
    let step = (ns >> (octave - STEPS_LOG2)) & ((1 << STEPS_LOG2) - 1);
    (((octave - SHORTEST_LOG2_NS) as usize) << STEPS_LOG2) + step as usize
}

/// The least duration of a bucket, ns.
fn begin_of(at: usize) -> Ns {
    let at = at.min(BUCKETS);
    let octave = SHORTEST_LOG2_NS + (at >> STEPS_LOG2) as u32;
    let step = (at & ((1 << STEPS_LOG2) - 1)) as u64;
    (1 << octave) + (step << (octave - STEPS_LOG2))
}

/// Durations of all requests that a client marked.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct MarkedRequests {
    /// Requests during which no other job was attached.
    pub alone: Durations,
    /// The others.
    pub beside: Durations,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_its_bucket() {
        for ns in [1_024, 1_055, 1_056, 1_000_000, 999_999_999, (1 << 37) - 1] {
            let at = bucket_of(ns);
            assert!(begin_of(at) <= ns && ns < begin_of(at + 1), "{ns} in {at}");
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
        for at in 0..BUCKETS {
            let width = begin_of(at + 1) - begin_of(at);
            assert!(width * 32 <= begin_of(at) + 32, "bucket {at} is {width} wide");
        }
    }

    #[test]
    fn copies_add_up_and_know_how_far_their_mean_may_be_off() {
        let (first, second, all) = (Durations::default(), Durations::default(), Durations::default());
        for (number, ns) in [8_000_000, 8_100_000, 9_000_000, 12_000_000].into_iter().enumerate() {
            if number % 2 == 0 { &first } else { &second }.add(ns);
            all.add(ns);
        }
        let mut sum = first.counts().expect("some");
        sum.add(&second.counts().expect("some"));
        assert_eq!(Some(&sum), all.counts().as_ref());
        assert_eq!((sum.count(), sum.figures()), (4, all.figures()));
        // For 8, 8.1, 9 and 12 the deviation is 1.63, and the mean's is half of that.
        assert!((sum.error() - 815_000.0).abs() < 30_000.0, "{}", sum.error());
        assert_eq!(DurationCounts::default().figures(), None);
        let nonsense = DurationCounts {
            total: Ns::MAX,
            buckets: vec![(u16::MAX, u32::MAX)],
        };
        assert!(nonsense.figures().is_some() && nonsense.error() >= 0.0);
    }

    #[test]
    fn quantiles_are_near_and_the_mean_is_exact() {
        let durations = Durations::default();
        assert_eq!(durations.figures(), None);
        for us in 1..=1_000u64 {
            durations.add(us * 10_000);
        }
        let figures = durations.figures().expect("some");
        assert_eq!((figures.count, figures.mean), (1_000, 5_005_000));
        let near = |found: Ns, right: Ns| found.abs_diff(right) * 50 <= right;
        assert!(
            near(figures.p50, 5_000_000) && near(figures.p99, 9_900_000),
            "{figures:?}"
        );
    }
}
