//! Epoch page: one page a broker, mapped by all its clients. It has a row of launch epochs a
//! device, one a priority.
//!
//! A launch in [`super::lane::Mode::Foreground`] bumps the launch epoch of its priority on its
//! device. A background job's credit may be bound to the launch epochs above its priority. When one
//! moves, the credit is void at once, without the broker: waking a sleeping core costs 25-65 us,
//! reading a posted word 20-30 ns.
//!
//! The broker writes a launch epoch's place on the page ([`epoch`]) into the lane, so a launch
//! looks up nothing else.
//!
//! A client that writes nonsense makes background jobs wait (bounded) or launch early. It can hurt
//! only jobs of the same user.
#![forbid(unsafe_code)]

use super::PRIORITIES;
use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// Rows of launch epochs. With more devices (rare; MIG instances count), devices share rows and
/// background jobs ask the broker more often.
pub const ROWS: usize = 16;

/// Launch epochs between rows. A power of two: one instruction finds a row's begin.
const STRIDE: usize = 16;

const _: () = assert!(STRIDE.is_power_of_two() && PRIORITIES <= STRIDE);

/// Place of a priority's launch epoch in this row.
pub fn epoch(row: usize, priority: usize) -> usize {
    (row % ROWS) * STRIDE + priority.min(PRIORITIES - 1)
}

/// Marks memory as an epoch page: "weftBORD" as little-endian bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"weftBORD");

/// One counter on its own cache line: foreground jobs of different priorities do not slow each
/// other.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Epoch(AtomicU64);

/// The page that all clients map. A client writes only its own priority's launch epoch.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct EpochPage {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`super::VERSION`].
    pub version: AtomicU32,
    /// Counts the broker's iterations: a stopped broker differs from a busy one.
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
    /// Bumps a launch epoch, at a foreground job's launch. An unknown place changes nothing.
    ///
    /// Release: a reader of the launch epoch sees what was written before, above all the launch's
    /// record. Sequentially consistent: a later look at whether the broker sleeps stays later. On
    /// x86 one instruction does both.
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
