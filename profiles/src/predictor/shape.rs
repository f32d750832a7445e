// SPDX-License-Identifier: MIT OR Apache-2.0
//! Distribution of a context's values if a forecast is not enough: requests that come at once or
//! much later, random arrivals.
//!
//! Values are counted in buckets of a quarter of a doubling; old ones fade.

use crate::Ns;

/// Values below 2^9 ns share a bucket.
const FLOOR_LOG2_NS: u32 = 9;
/// Values above 2^35 ns (34 s) share a bucket.
const CEILING_LOG2_NS: u32 = 35;
const PARTS_LOG2: u32 = 2;
const BUCKETS: usize = ((CEILING_LOG2_NS - FLOOR_LOG2_NS) << PARTS_LOG2) as usize + 2;

/// At this count all counts are halved, so the last few hundred values count.
const MOST: u32 = 400;

/// Distribution of one context's values.
#[derive(Debug, Clone)]
pub(super) struct GapShape {
    counts: [u16; BUCKETS],
    total: u32,
}

impl Default for GapShape {
    fn default() -> GapShape {
        GapShape {
            counts: [0; BUCKETS],
            total: 0,
        }
    }
}

impl GapShape {
    pub(super) fn add(&mut self, value: Ns) {
        if self.total >= MOST {
            self.total = 0;
            for count in &mut self.counts {
                *count /= 2;
                self.total += u32::from(*count);
            }
        }
        self.counts[bucket(value)] += 1;
        self.total += 1;
    }

    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// Longest time from now, ns, within which the value is reached with at most this chance, after
    /// `elapsed` ns.
    pub(super) fn room(&self, elapsed: Ns, chance: f64) -> Ns {
        let here = bucket(elapsed);
        let within = part_of(here, elapsed);
        let of_here = f64::from(self.counts[here]) * (1.0 - within);
        let later: u32 = self.counts[here + 1..].iter().map(|count| u32::from(*count)).sum();
        let left = of_here + f64::from(later);
        // Hardly any value lasted this long: a value that has lasted will last.
        if left < 1.0 {
            return super::forecast::lasting(elapsed, chance);
        }
        let mut spare = left * chance;
        let mut from = elapsed;
        for at in here..BUCKETS - 1 {
            let (begin, end) = (edge(at).max(elapsed), edge(at + 1));
            let mass = if at == here {
                of_here
            } else {
                f64::from(self.counts[at])
            };
            if mass > spare {
                let part = spare / mass;
                return begin + ((end - begin) as f64 * part) as Ns - elapsed;
            }
            spare -= mass;
            from = end;
        }
        from - elapsed
    }
}

fn bucket(value: Ns) -> usize {
    if value < 1 << FLOOR_LOG2_NS {
        return 0;
    }
    let doubling = 63 - value.leading_zeros();
    if doubling >= CEILING_LOG2_NS {
        return BUCKETS - 1;
    }
    let part = (value >> (doubling - PARTS_LOG2)) as usize & ((1 << PARTS_LOG2) - 1);
    ((((doubling - FLOOR_LOG2_NS) << PARTS_LOG2) as usize) | part) + 1
}

/// Start of a bucket, ns.
fn edge(bucket: usize) -> Ns {
    let Some(bucket) = bucket.checked_sub(1) else { return 0 };
    let doubling = FLOOR_LOG2_NS + (bucket >> PARTS_LOG2) as u32;
    let part = (bucket & ((1 << PARTS_LOG2) - 1)) as Ns;
    (1 << doubling) + (part << (doubling - PARTS_LOG2))
}

/// Part of a bucket before this value.
fn part_of(bucket: usize, value: Ns) -> f64 {
    if bucket + 1 >= BUCKETS {
        return 0.0;
    }
    let (begin, end) = (edge(bucket), edge(bucket + 1));
    (value - begin) as f64 / (end - begin) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Ns = 1_000;
    const MS: Ns = 1_000_000;

    #[test]
    fn ceiling_of_buckets() {
        for at in 0..BUCKETS {
            assert_eq!(bucket(edge(at)), at, "{at}");
            if at > 0 {
                assert_eq!(bucket(edge(at) - 1), at - 1, "{at}");
            }
        }
        assert_eq!(bucket(Ns::MAX), BUCKETS - 1);
        let mut shape = GapShape::default();
        (0..100_000).for_each(|_| shape.add(Ns::MAX));
        assert!(shape.total() <= MOST);
        assert!(shape.room(0, 0.1) > 1_000 * MS);
    }

    #[test]
    fn two_humps_leave_room_before_and_between_them() {
        let mut shape = GapShape::default();
        for _ in 0..50 {
            shape.add(200 * US);
            shape.add(10 * MS);
        }
        let before = shape.room(0, 0.05);
        assert!((150 * US..=210 * US).contains(&before), "{before}");
        assert!(shape.room(190 * US, 0.1) < 30 * US, "the first hump");
        let between = shape.room(400 * US, 0.1);
        assert!((8 * MS..=10 * MS).contains(&between), "{between}");
    }

    #[test]
    fn without_memory_there_is_always_the_same_room() {
        let mut shape = GapShape::default();
        // Quantiles of an exponential distribution, mean 5 ms.
        for step in 0..390 {
            let part = (f64::from(step) + 0.5) / 390.0;
            shape.add((-5e6 * (1.0 - part).ln()) as Ns);
        }
        for elapsed in [0, MS, 3 * MS, 8 * MS] {
            let room = shape.room(elapsed, 0.2) as f64;
            let exact = -5e6 * 0.8f64.ln();
            assert!((0.75..1.3).contains(&(room / exact)), "{elapsed}: {room} for {exact}");
        }
    }

    #[test]
    fn what_has_lasted_longer_than_ever_will_last() {
        let mut shape = GapShape::default();
        (0..50).for_each(|_| shape.add(MS));
        let room = shape.room(100 * MS, 0.1);
        assert!((5 * MS..20 * MS).contains(&room), "{room}");
    }
}
