// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mean times of a client's kernels, and mean gaps after them, from its profile. They do not depend
//! on earlier kernels.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use weft_profiles::Profile;

use weft_protocol::{Ns, lane::is_transfer};

/// Means by kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct MeanTimes {
    known: HashMap<u64, Mean, BuildHasherDefault<Hashed>>,
    /// Time of a kernel that was never timed, ns.
    typical: Option<Ns>,
}

#[derive(Debug, Clone, Copy)]
struct Mean {
    time: Ns,
    gap: Option<Ns>,
}

impl MeanTimes {
    pub(super) fn of(profile: &Profile) -> MeanTimes {
        let known = profile.kernels.iter().filter_map(|kernel| {
            let time = kernel.time.mean()?;
            let gap = kernel.gap.mean();
            Some((kernel.hash, Mean { time, gap }))
        });
        MeanTimes {
            known: known.collect(),
            typical: profile.typical_cost(),
        }
    }

    /// Whether the profile has no kernel.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Mean gap after a kernel, ns, if one was seen.
    pub(super) fn gap_after(&self, kernel: u64) -> Option<Ns> {
        self.known.get(&kernel)?.gap
    }

    /// Whether the profile has a time of this kernel.
    pub(super) fn is_known(&self, kernel: u64) -> bool {
        !self.known.is_empty() && self.known.contains_key(&kernel)
    }

    /// Time of a launch, ns, and whether it is this kernel's by the profile. Else it is typical of
    /// the job. For transfers, and without a profile, it is `told`, the client's own.
    pub(super) fn of_launch(&self, kernel: u64, told: Ns) -> (Ns, bool) {
        match self.known.get(&kernel) {
            Some(mean) => (mean.time, true),
            None if !is_transfer(kernel) => (self.typical.unwrap_or(told), false),
            None => (told, false),
        }
    }
}

/// Hasher of keys that are hashes already.
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
    fn times_are_means_by_kernel() {
        let mut run = Aggregator::new();
        run.sampled(1, 10, Some(100));
        run.sampled(1, 30, Some(300));
        run.sampled(2, 200, None);
        let times = MeanTimes::of(&run.finish("p", 0));
        assert_eq!(times.gap_after(1), Some(200));
        assert_eq!(times.gap_after(2), None);
        assert_eq!(times.gap_after(3), None);
        assert_eq!(times.of_launch(1, 5), (20, true));
        assert_eq!(times.of_launch(3, 5), (80, false), "the mean of all launches");
        assert_eq!(times.of_launch(0, 5), (5, false), "a transfer");
        assert_eq!(MeanTimes::default().of_launch(1, 5), (5, false));
        assert!(times.is_known(2) && !times.is_known(3) && !MeanTimes::default().is_known(1));
    }
}
