//! How long a client leaves the device idle after each of its kernels, from its profile.
//!
//! `fikit` follows the paper: the mean gap after a kernel of this identity, whatever came before it.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use weft_profiles::Profile;

use crate::protocol::Ns;

/// Mean gaps by the kernel before them.
#[derive(Debug, Clone, Default)]
pub(super) struct Gaps(HashMap<u64, Ns, BuildHasherDefault<Hashed>>);

impl Gaps {
    pub(super) fn of(profile: &Profile) -> Gaps {
        Gaps::from_pairs(
            profile
                .kernels
                .iter()
                .filter_map(|kernel| Some((kernel.hash, kernel.gap.mean()?))),
        )
    }

    pub(super) fn from_pairs(pairs: impl IntoIterator<Item = (u64, Ns)>) -> Gaps {
        Gaps(pairs.into_iter().collect())
    }

    /// Whether nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The mean gap after a kernel, if it was ever seen.
    pub(super) fn after(&self, kernel: u64) -> Option<Ns> {
        self.0.get(&kernel).copied()
    }
}

/// The keys are hashes already.
#[derive(Debug, Clone, Default)]
pub(super) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

#[cfg(test)]
mod tests {
    use weft_profiles::Aggregator;

    use super::*;

    #[test]
    fn gaps_are_means_by_kernel() {
        let mut run = Aggregator::new();
        run.sampled(1, 10, Some(100));
        run.sampled(1, 10, Some(300));
        run.sampled(2, 10, None);
        let gaps = Gaps::of(&run.finish("p", 0));
        assert_eq!(gaps.after(1), Some(200));
        assert_eq!(gaps.after(2), None);
        assert_eq!(gaps.after(3), None);
    }
}
