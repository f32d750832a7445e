//! The board: one page a broker, mapped by all its clients.
//!
//! A sign is a counter a priority, in a row of them a device. Every launch of a client in [`super::lane::Mode::Foreground`] raises the sign of its priority on its device. A background job's credit may
//! be bound to the signs above its own priority as they stood when the credit was given: when any of them moves, the credit is void at once, with
//! no hop through the broker (waking a sleeping core costs 25-65 us, reading a posted word 20-30 ns). What is launched on another device moves none of them.
//!
//! A sign goes by one number, its place on the board ([`sign`]), which the broker writes into the lane, so that a launch looks up no more than it did when there was one row.
//!
//! A client that writes nonsense here can make background jobs wait (each wait has a bound) or launch early; it can hurt only jobs of the same user.
#![forbid(unsafe_code)]

use super::PRIORITIES;
use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// Rows of signs. Machines with more devices (MIG instances count as such) are rare; their rows are shared then, and a background job asks once more now and then.
pub const ROWS: usize = 16;

/// Signs from one row to the next. A power of two, so that a row's begin is one instruction away from any of its signs.
const STRIDE: usize = 16;

const _: () = assert!(STRIDE.is_power_of_two() && PRIORITIES <= STRIDE);

/// The sign of a priority on the device of this row.
pub fn sign(row: usize, priority: usize) -> usize {
    (row % ROWS) * STRIDE + priority.min(PRIORITIES - 1)
}

/// Tells a board from other memory: "weftBORD" as little-endian bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"weftBORD");

/// One counter on a cache line of its own: foreground jobs of different priorities do not slow each other.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Sign(AtomicU64);

/// The page that all clients of a broker map. The broker makes it; clients write nothing but their own priority's sign.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Board {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`super::VERSION`].
    pub version: AtomicU32,
    /// The broker counts its turns here, so that a client can tell a stopped broker from a busy one.
    pub heartbeat: AtomicU32,
    signs: [Sign; ROWS * STRIDE],
}

impl Default for Board {
    fn default() -> Board {
        Board {
            magic: AtomicU64::new(MAGIC),
            version: AtomicU32::new(super::VERSION),
            heartbeat: AtomicU32::new(0),
            signs: std::array::from_fn(|_| Sign::default()),
        }
    }
}

impl Board {
    /// A foreground job launches whose [`sign`] this is. A number that is none raises nothing.
    ///
    /// Release: who sees the sign sees what was written before it, the launch's record above all. Sequentially consistent: a look at whether the broker
    /// sleeps that comes after this is not made before it. On x86 the one instruction is all of that.
    #[inline]
    pub fn raise(&self, sign: usize) {
        if let Some(sign) = self.signs.get(sign) {
            sign.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The sum of all signs above `sign` on its device: it differs from an earlier sum exactly if a more important foreground job launched there in between.
    #[inline]
    pub fn above(&self, sign: usize) -> u64 {
        let row = sign & !(STRIDE - 1);
        let above = self.signs.get(row..sign).unwrap_or_default();
        above
            .iter()
            .fold(0u64, |sum, sign| sum.wrapping_add(sign.0.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_is_seen_below_it_on_its_device_alone() {
        let board = Box::<Board>::default();
        board.raise(sign(3, 2));
        for row in 0..ROWS {
            for priority in 0..PRIORITIES {
                let seen = u64::from(row == 3 && priority > 2);
                assert_eq!(board.above(sign(row, priority)), seen, "row {row}, priority {priority}");
            }
        }
        board.raise(usize::MAX);
        assert_eq!(board.above(usize::MAX), 0, "a number that is no sign");
        assert_eq!(sign(ROWS + 3, 99), sign(3, PRIORITIES - 1));
    }
}
