//! What a client's profile says of its kernels: how long each runs, and how long it leaves the
//! device idle after it.
//!
//! `fikit` follows the paper: the mean gap after a kernel of this identity, whatever came before
//! it.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use weft_profiles::Profile;

use weft_protocol::{Ns, lane::is_transfer};

/// Means by kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    known: HashMap<u64, Mean, BuildHasherDefault<Hashed>>,
    /// What a kernel that was never timed may take.
    typical: Option<Ns>,
}

#[derive(Debug, Clone, Copy)]
struct Mean {
    time: Ns,
    gap: Option<Ns>,
}

impl Times {
    pub(super) fn of(profile: &Profile) -> Times {
        let known = profile.kernels.iter().filter_map(|kernel| {
            let time = kernel.time.mean()?;
            let gap = kernel.gap.mean();
            Some((kernel.hash, Mean { time, gap }))
        });
        Times {
            known: known.collect(),
            typical: profile.typical_cost(),
        }
    }

    /// Whether nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The mean gap after a kernel, if one was ever seen.
    pub(super) fn gap_after(&self, kernel: u64) -> Option<Ns> {
        self.known.get(&kernel)?.gap
    }

    /// How long a launch takes: as the profile says, or as is typical of the job, or else as the
    /// client says, as for transfers.
    pub(super) fn of_launch(&self, kernel: u64, told: Ns) -> Ns {
        match self.known.get(&kernel) {
            Some(mean) => mean.time,
            None if !is_transfer(kernel) => self.typical.unwrap_or(told),
            None => told,
        }
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
    fn times_are_means_by_kernel() {
        let mut run = Aggregator::new();
        run.sampled(1, 10, Some(100));
        run.sampled(1, 30, Some(300));
        run.sampled(2, 200, None);
        let times = Times::of(&run.finish("p", 0));
        assert_eq!(times.gap_after(1), Some(200));
        assert_eq!(times.gap_after(2), None);
        assert_eq!(times.gap_after(3), None);
        assert_eq!(times.of_launch(1, 5), 20);
        assert_eq!(times.of_launch(3, 5), 80, "the mean of all launches");
        assert_eq!(times.of_launch(0, 5), 5, "a transfer");
        assert_eq!(Times::default().of_launch(1, 5), 5);
    }
}
