// SPDX-License-Identifier: MIT OR Apache-2.0
//! Epoch page: one page per user, mapped by all clients. It has a row of launch epochs for each
//! device, and one launch epoch in a row for each priority.
//!
//! A launch in [`super::lane::Mode::Foreground`] bumps the launch epoch of its priority on its
//! device. Credit of background jobs may be bound to the launch epochs above their priority. If
//! such an epoch moves, the credit is void at once, without the broker. Waking a sleeping core
//! costs 25-65 us; reading a posted word costs 20-30 ns.
//!
//! The broker writes the place of a launch epoch ([`epoch`]) into the lane. So a launch looks up
//! nothing else.
//!
//! A client that writes nonsense makes background jobs of its user wait (bounded) or launch early.
#![forbid(unsafe_code)]

use super::PRIORITIES;
use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// Rows of launch epochs. More devices (MIG instances count) share rows: background jobs then ask
/// the broker more often.
pub const ROWS: usize = 16;

/// Launch epochs between rows: a power of two, so that one instruction finds the start of a row.
const STRIDE: usize = 16;

const _: () = assert!(STRIDE.is_power_of_two() && PRIORITIES <= STRIDE);

/// Place of a priority's launch epoch in this row.
pub fn epoch(row: usize, priority: usize) -> usize {
    (row % ROWS) * STRIDE + priority.min(PRIORITIES - 1)
}

/// Marks memory as an epoch page, little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"weftBORD");

/// One counter on its own cache line: foreground jobs do not slow each other.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Epoch(AtomicU64);

/// The page. A client writes only its own priority's launch epoch.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct EpochPage {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`super::VERSION`].
    pub version: AtomicU32,
    /// Count of the broker's iterations, which distinguishes a stopped broker from a busy one.
    pub heartbeat: AtomicU32,
    epochs: [Epoch; ROWS * STRIDE],
}

impl Default for EpochPage {
    fn default() -> EpochPage {
        EpochPage {
            magic: AtomicU64::new(MAGIC),
            version: AtomicU32::new(super::VERSION),
            heartbeat: AtomicU32::new(0),
            epochs: std::array::from_fn(|_| Epoch::default()),
        }
    }
}

impl EpochPage {
    /// Bumps a launch epoch at a foreground job's launch. An unknown place changes nothing.
    ///
    /// Release: a reader of the epoch sees all earlier writes, above all the launch's record.
    /// Sequentially consistent: a later read of whether the broker sleeps stays later. On x86 one
    /// instruction does both.
    #[inline]
    pub fn bump(&self, epoch: usize) {
        if let Some(epoch) = self.epochs.get(epoch) {
            epoch.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Sum of the launch epochs above `epoch` on its device. It changes exactly if a more important
    /// foreground job launches there.
    #[inline]
    pub fn sum_above(&self, epoch: usize) -> u64 {
        let row = epoch & !(STRIDE - 1);
        let above = self.epochs.get(row..epoch).unwrap_or_default();
        above
            .iter()
            .fold(0u64, |sum, epoch| sum.wrapping_add(epoch.0.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_epoch_is_seen_below_it_on_its_device_alone() {
        let epoch_page = Box::<EpochPage>::default();
        epoch_page.bump(epoch(3, 2));
        for row in 0..ROWS {
            for priority in 0..PRIORITIES {
                let seen = u64::from(row == 3 && priority > 2);
                assert_eq!(
                    epoch_page.sum_above(epoch(row, priority)),
                    seen,
                    "row {row}, priority {priority}"
                );
            }
        }
        epoch_page.bump(usize::MAX);
        assert_eq!(epoch_page.sum_above(usize::MAX), 0, "a number that is no launch epoch");
        assert_eq!(epoch(ROWS + 3, 99), epoch(3, PRIORITIES - 1));
    }
}
