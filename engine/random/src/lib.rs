// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chance that depends only on a seed: the one generator of the workspaces.
//!
//! [`Random`] is a stream of numbers, for events that have an order of their own (wake-ups). [`at`]
//! is a number for a place (this job, this request, this operation). It does not depend on earlier
//! events, so every policy of a comparison meets the same job.
#![forbid(unsafe_code)]

/// SplitMix64: passes the usual tests of randomness, one word of state.
#[derive(Debug, Clone)]
pub struct Random(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

impl Random {
    /// A separate stream for each seed.
    pub fn new(seed: u64) -> Random {
        Random(mix(seed ^ STEP))
    }

    /// A separate stream for each seed, by another rule: recorded results of clusters rest on it.
    pub fn from_product(seed: u64) -> Random {
        Random(seed.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// The stream behind this state. States that differ by a multiple of the generator's step are
    /// places of one stream.
    pub fn from_state(state: u64) -> Random {
        Random(state)
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number from 0 to 1, evenly distributed.
    pub fn unit(&mut self) -> f64 {
        unit(self.word())
    }

    /// A number from 0 to below `count`, evenly distributed; 0 if `count` is 0.
    pub fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(count)) >> 64) as u64
    }

    /// An index of a list of this length; 0 if it is empty.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Puts a list into a random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }

    /// A time between two, evenly distributed.
    pub fn between(&mut self, (low, high): (u64, u64)) -> u64 {
        low + (self.unit() * high.saturating_sub(low) as f64) as u64
    }
}

/// The word of a place.
pub fn at(seed: u64, place: [u64; 3]) -> u64 {
    let mut word = mix(seed.wrapping_add(STEP));
    for part in place {
        word = mix(word ^ part.wrapping_add(STEP));
    }
    word
}

/// A factor around 1 for a place: bell-shaped (the sum of four even draws) with this deviation,
/// never below 0.05.
pub fn factor(word: u64, deviation: f64) -> f64 {
    if deviation == 0.0 {
        return 1.0;
    }
    let part = |shift: u32| f64::from((word >> shift) as u16) / 65_535.0;
    let sum = part(0) + part(16) + part(32) + part(48);
    // The sum of four has mean 2 and variance 4/12.
    (1.0 + deviation * (sum - 2.0) * 3f64.sqrt()).max(0.05)
}

/// A waiting time for a place with this mean, as between arrivals of a Poisson process.
pub fn exponential(word: u64, mean: f64) -> f64 {
    -mean * (1.0 - unit(word)).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_results_keep_their_draws() {
        let mut random = Random::from_state(0);
        assert_eq!(random.word(), 0xe220_a839_7b1d_cdaf, "the published SplitMix64");
        assert_eq!((random.index(10), random.index(0)), (4, 0));
        let mut list = [0, 1, 2, 3, 4, 5, 6, 7];
        random.shuffle(&mut list);
        list.sort_unstable();
        assert_eq!(list, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn factors_have_the_mean_and_deviation_asked_for() {
        let factors: Vec<f64> = (0..20_000).map(|n| factor(at(1, [n, 2, 3]), 0.1)).collect();
        let mean = factors.iter().sum::<f64>() / factors.len() as f64;
        let variance = factors.iter().map(|f| (f - mean) * (f - mean)).sum::<f64>() / factors.len() as f64;
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        assert!((variance.sqrt() - 0.1).abs() < 0.005, "{variance}");
    }

    #[test]
    fn arrivals_are_as_far_apart_as_asked_for() {
        let sum: f64 = (0..20_000).map(|n| exponential(at(7, [n, 0, 0]), 5.0)).sum();
        assert!((sum / 20_000.0 - 5.0).abs() < 0.15);
    }
}
