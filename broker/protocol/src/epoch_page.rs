//! The epoch page: one page a broker, mapped by all its clients.
//!
//! A launch epoch is a counter a priority, in a row of them a device. Every launch of a client in
//! [`super::lane::Mode::Foreground`] bumps the launch epoch of its priority on its device. A
//! background job's credit may be bound to the launch epochs above its own priority as they stood
//! when the credit was given: when any of them moves, the credit is void at once, with no hop
//! through the broker (waking a sleeping core costs 25-65 us, reading a posted word 20-30 ns). What
//! is launched on another device moves none of them.
//!
//! A launch epoch goes by one number, its place on the epoch page ([`epoch`]), which the broker
//! writes into the lane, so that a launch looks up no more than it did when there was one row.
//!
//! A client that writes nonsense here can make background jobs wait (each wait has a bound) or
//! launch early; it can hurt only jobs of the same user.
#![forbid(unsafe_code)]

use super::PRIORITIES;
use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// Rows of launch epochs. Machines with more devices (MIG instances count as such) are rare; their
/// rows are shared then, and a background job asks once more now and then.
pub const ROWS: usize = 16;

/// Launch epochs from one row to the next. A power of two, so that a row's begin is one instruction
/// away from any of its launch epochs.
const STRIDE: usize = 16;

const _: () = assert!(STRIDE.is_power_of_two() && PRIORITIES <= STRIDE);

/// The launch epoch of a priority on the device of this row.
pub fn epoch(row: usize, priority: usize) -> usize {
    (row % ROWS) * STRIDE + priority.min(PRIORITIES - 1)
}

/// Tells a epoch page from other memory: "weftBORD" as little-endian bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"weftBORD");

/// One counter on a cache line of its own: foreground jobs of different priorities do not slow each
/// other.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Epoch(AtomicU64);

/// The page that all clients of a broker map. The broker makes it; clients write nothing but their
/// own priority's launch epoch.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct EpochPage {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`super::VERSION`].
    pub version: AtomicU32,
    /// The broker counts its turns here, so that a client can tell a stopped broker from a busy
    /// one.
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
    /// A foreground job launches whose [`epoch`] this is. A number that is none raises nothing.
    ///
    /// Release: who sees the launch epoch sees what was written before it, the launch's record
    /// above all. Sequentially consistent: a look at whether the broker sleeps that comes after
    /// this is not made before it. On x86 the one instruction is all of that.
    #[inline]
    pub fn bump(&self, epoch: usize) {
        if let Some(epoch) = self.epochs.get(epoch) {
            epoch.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The sum of all launch epochs above `epoch` on its device: it differs from an earlier sum
    /// exactly if a more important foreground job launched there in between.
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
