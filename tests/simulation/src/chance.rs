// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chance that is the same in every run, with a stream for each purpose. So leaving a
//! part out of a scenario changes no other part's draws.

use weft_random::Random;

/// A stream of numbers.
#[derive(Debug, Clone)]
pub(crate) struct SeededChance(Random);

impl SeededChance {
    /// The stream of a seed and of a place in it.
    pub(crate) fn new(seed: u64, place: u64) -> SeededChance {
        let mut random = Random::from_state(seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.word();
        SeededChance(random)
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.word()
    }

    /// One of `least..=most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.0.below(most.saturating_sub(least).saturating_add(1))
    }

    /// A length, as likely between 1 and 10 of `least` as between 10 and 100 of it, and so on.
    pub(crate) fn length(&mut self, least: u64, most: u64) -> u64 {
        let part = self.next() as f64 / u64::MAX as f64;
        let (low, high) = ((least.max(1) as f64).ln(), (most.max(1) as f64).ln());
        ((low + part * (high - low)).exp() as u64).clamp(least, most)
    }

    /// True in this number of cases out of a thousand.
    pub(crate) fn per_mille(&mut self, part: u64) -> bool {
        self.between(1, 1000) <= part
    }

    /// One of several.
    pub(crate) fn of<T: Copy>(&mut self, choice: &[T]) -> T {
        let at = self.between(0, choice.len() as u64 - 1) as usize;
        choice[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_again_and_within_its_limits() {
        let (mut a, mut b, mut c) = (
            SeededChance::new(7, 1),
            SeededChance::new(7, 1),
            SeededChance::new(7, 2),
        );
        assert_eq!(a.next(), b.next());
        assert_ne!(a.next(), c.next());
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[a.between(0, 4) as usize] += 1;
            assert!((10..=1000).contains(&a.length(10, 1000)));
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
    }
}
