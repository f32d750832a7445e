// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lengths of a foreground job's stretches, from first launches to waits, with and without
//! background work. They are for people and decide nothing.
//!
//! Counted at waits, in 32 classes an octave: a class is 3 % of its length wide. The sums are
//! exact.

use weft_protocol::Ns;

/// Shortest length that has a class of its own, as a power of two.
const FIRST_OCTAVE: u32 = 10;

/// Longest length that has a class of its own, as a power of two.
const LAST_OCTAVE: u32 = 35;

/// Classes in an octave, as a power of two.
const PARTS_LOG2: u32 = 5;

/// Lengths of stretches by class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StretchHistogram {
    count: u64,
    sum: Ns,
    classes: Vec<u32>,
}

impl StretchHistogram {
    /// Maximum number of classes.
    pub const CLASSES: usize = 1 + (((LAST_OCTAVE - FIRST_OCTAVE + 1) as usize) << PARTS_LOG2);

    /// Counts a stretch.
    pub fn add(&mut self, length: Ns) {
        self.count += 1;
        self.sum = self.sum.saturating_add(length);
        let class = StretchHistogram::class(length);
        if self.classes.len() <= class {
            self.classes.resize(class + 1, 0);
        }
        if let Some(seen) = self.classes.get_mut(class) {
            *seen = seen.saturating_add(1);
        }
    }

    /// Number of stretches.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of the stretches' lengths, ns.
    pub fn sum(&self) -> Ns {
        self.sum
    }

    /// Classes that have stretches, each with their number.
    pub fn classes(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let all = self.classes.iter().copied().enumerate();
        all.filter(|(_, seen)| *seen > 0)
    }

    /// Class of a length.
    pub fn class(length: Ns) -> usize {
        let octave = length.max(1).ilog2();
        match octave {
            0..FIRST_OCTAVE => 0,
            LAST_OCTAVE.. if octave > LAST_OCTAVE => StretchHistogram::CLASSES - 1,
            _ => {
                let part = (length >> (octave - PARTS_LOG2)) & ((1 << PARTS_LOG2) - 1);
                1 + (((octave - FIRST_OCTAVE) as usize) << PARTS_LOG2) + part as usize
            }
        }
    }

    /// Shortest length of a class, and of the next one, ns.
    pub fn bounds(class: usize) -> (Ns, Ns) {
        let begin = |class: usize| {
            let Some(class) = class.checked_sub(1) else { return 0 };
            let octave = FIRST_OCTAVE + (class >> PARTS_LOG2) as u32;
            let part = (class & ((1 << PARTS_LOG2) - 1)) as u64;
            ((1 << PARTS_LOG2) + part) << (octave - PARTS_LOG2)
        };
        let class = class.min(StretchHistogram::CLASSES - 1);
        (begin(class), begin(class + 1))
    }
}

/// Lengths of a foreground job's stretches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StretchTimes {
    /// Lengths of stretches without background work.
    pub alone: StretchHistogram,
    /// Lengths of stretches that found background work on the device, or in which some was
    /// launched.
    pub beside: StretchHistogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other_and_are_narrow() {
        assert_eq!(StretchHistogram::bounds(0), (0, 1 << FIRST_OCTAVE));
        for class in 1..StretchHistogram::CLASSES {
            let (begin, end) = StretchHistogram::bounds(class);
            assert_eq!(StretchHistogram::bounds(class - 1).1, begin);
            assert_eq!(StretchHistogram::class(begin), class);
            assert_eq!(StretchHistogram::class(end - 1), class);
            assert!(end - begin <= begin / 32, "{class}: {begin} to {end}");
        }
        let last = StretchHistogram::CLASSES - 1;
        for (length, class) in [(0, 0), (1, 0), (1_023, 0), (Ns::MAX, last)] {
            assert_eq!(StretchHistogram::class(length), class);
        }
        assert_eq!(StretchHistogram::bounds(usize::MAX), StretchHistogram::bounds(last));
    }

    #[test]
    fn sums_are_exact() {
        let mut times = StretchHistogram::default();
        for length in [1_000_000, 1_000_001, 3_000_000] {
            times.add(length);
        }
        assert_eq!((times.count(), times.sum()), (3, 5_000_001));
        let seen: Vec<u32> = times.classes().map(|(_, seen)| seen).collect();
        assert_eq!(seen, [2, 1]);
    }
}
