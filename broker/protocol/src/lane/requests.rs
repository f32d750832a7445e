//! How long the requests took that a client marks: counted in buckets, alone and beside others.
//!
//! The client adds and the broker reads. A bucket is 1/32 of an octave, so a quantile is exact to
//! 2 %; the mean is exact.
#![forbid(unsafe_code)]

use crate::Ns;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Buckets of an octave, as a power of two.
const STEPS_LOG2: u32 = 5;

/// Shorter requests count as so long: 2^10 ns.
const SHORTEST_LOG2_NS: u32 = 10;

/// Longer ones count as so long: 2^37 ns, two minutes.
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
    /// How many.
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
        // Never 0: a sum of 0 says that there are none.
        self.total_ns.fetch_add(ns.max(1), Ordering::Relaxed);
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The figures now; `None` without a request. A client can write anything, so any value may
    /// come, and none is trusted.
    pub fn figures(&self) -> Option<DurationFigures> {
        // Most jobs mark none: then no bucket is looked at.
        let total = self.total_ns.load(Ordering::Relaxed);
        if total == 0 {
            return None;
        }
        let counts: Vec<u64> = self
            .buckets
            .iter()
            .map(|bucket| u64::from(bucket.load(Ordering::Relaxed)))
            .collect();
        let count: u64 = counts.iter().sum();
        (count > 0).then(|| DurationFigures {
            count,
            mean: total / count,
            p50: quantile(&counts, count, 50),
            p99: quantile(&counts, count, 99),
        })
    }
}

/// The middle of the bucket in which the request of this rank is.
fn quantile(counts: &[u64], count: u64, percent: u64) -> Ns {
    let rank = count.saturating_mul(percent).div_ceil(100).max(1);
    let mut below = 0;
    for (at, number) in counts.iter().enumerate() {
        below += number;
        if below >= rank {
            return (begin_of(at) + begin_of(at + 1)) / 2;
        }
    }
    begin_of(counts.len())
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
    let octave = SHORTEST_LOG2_NS + (at >> STEPS_LOG2) as u32;
    let step = (at & ((1 << STEPS_LOG2) - 1)) as u64;
    (1 << octave) + (step << (octave - STEPS_LOG2))
}

/// Durations of all requests that a client marked.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct MarkedRequests {
    /// No other job was attached, from begin to end.
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
