// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stretches of a sampled job: the launches from one synchronising call to the next. Counts those
//! whose kernels were launched in the same order before.
//!
//! Launches of several threads mix in any order, so stretches of such a job seldom repeat.
#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of stretches that are kept by name, 32 KiB. A new one takes the place of another.
const STRETCHES: usize = 4_096;

/// The multiplier of a good 64-bit generator: odd, without pattern.
const MIX: u64 = 0xd134_2543_de82_ef95;

#[derive(Debug, Default)]
pub struct Stretches {
    /// Name of the launches so far; 0: none.
    now: AtomicU64,
    /// Empty until the first stretch ends.
    seen: Mutex<Vec<u64>>,
}

impl Stretches {
    /// Adds a launch. Inexact if threads launch at the same time.
    #[inline]
    pub fn launched(&self, kernel: u64) {
        let name = (self.now.load(Ordering::Relaxed) ^ kernel).wrapping_mul(MIX);
        self.now.store(name.rotate_left(29) | 1, Ordering::Relaxed);
    }

    /// Ends a stretch. Returns whether its kernels came in this order before; `None`: no launch.
    pub fn ended(&self) -> Option<bool> {
        let name = self.now.swap(0, Ordering::Relaxed);
        let mut seen = (name != 0).then(|| self.seen.try_lock().ok())??;
        seen.resize(STRETCHES, 0);
        // The last bit is always set.
        let place = seen.get_mut((name >> 1) as usize % STRETCHES)?;
        Some(std::mem::replace(place, name) == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(stretches: &Stretches, kernels: &[u64]) -> Option<bool> {
        kernels.iter().for_each(|kernel| stretches.launched(*kernel));
        stretches.ended()
    }

    #[test]
    fn a_stretch_repeats_if_its_kernels_came_in_this_order() {
        let stretches = Stretches::default();
        assert_eq!(ended(&stretches, &[]), None);
        assert_eq!(ended(&stretches, &[1, 2, 3]), Some(false));
        assert_eq!(ended(&stretches, &[1, 3, 2]), Some(false));
        assert_eq!(ended(&stretches, &[1, 2]), Some(false));
        assert_eq!(ended(&stretches, &[3]), Some(false));
        assert_eq!(ended(&stretches, &[1, 2, 3]), Some(true));
        assert_eq!(ended(&stretches, &[1, 2]), Some(true));
        assert_eq!(ended(&stretches, &[]), None);
    }

    #[test]
    fn hundreds_of_different_stretches_have_names_of_their_own() {
        let stretches = Stretches::default();
        let each = || (0..200).map(|request: u64| [7, 7, request, 7]);
        let again = |kernels: [u64; 4]| ended(&stretches, &kernels) == Some(true);
        assert_eq!(each().filter(|kernels| again(*kernels)).count(), 0);
        // A few have taken each other's places.
        assert!(each().filter(|kernels| again(*kernels)).count() > 180);
    }
}
