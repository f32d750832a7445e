// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chance that depends only on a seed.

/// A stream of numbers (SplitMix64: one word of state, passes the usual tests).
#[derive(Debug, Clone)]
pub struct Draws(u64);

impl Draws {
    /// A stream of its own for each seed.
    pub fn new(seed: u64) -> Draws {
        Draws(seed.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Uniform number from 0 to below `count`, 0 if `count` is 0.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.word()) * count as u128) >> 64) as usize
    }

    /// Puts a list into a random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}
