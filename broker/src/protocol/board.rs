//! The board: one page a broker, mapped by all its clients.
//!
//! A sign is a counter a priority. Every launch of a client in [`super::lane::Mode::Holder`] raises the sign of its priority. A filler's credit may be bound
//! to the signs above its own priority as they stood when the credit was given: when any of them moves, the credit is void at once, with
//! no hop through the broker (waking a sleeping core costs 25-65 us, reading a posted word 20-30 ns).
//!
//! A client that writes nonsense here can make fillers wait (each wait has a bound) or launch early; it can hurt only jobs of the same user.
#![forbid(unsafe_code)]

use super::PRIORITIES;
use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// Tells a board from other memory: "weftBORD" as little-endian bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"weftBORD");

/// One counter on a cache line of its own: holders of different priorities do not slow each other.
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
    signs: [Sign; PRIORITIES],
}

impl Default for Board {
    fn default() -> Board {
        Board {
            magic: AtomicU64::new(MAGIC),
            version: AtomicU32::new(super::VERSION),
            heartbeat: AtomicU32::new(0),
            signs: Default::default(),
        }
    }
}

impl Board {
    /// A holder of `priority` launches. Out-of-range priorities raise nothing.
    ///
    /// Release: who sees the sign sees what was written before it, the launch's record above all. Sequentially consistent: a look at whether the broker
    /// sleeps that comes after this is not made before it. On x86 the one instruction is all of that.
    #[inline]
    pub fn raise(&self, priority: usize) {
        if let Some(sign) = self.signs.get(priority) {
            sign.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The sum of all signs above `priority`: it differs from an earlier sum exactly if a more important holder launched in between.
    #[inline]
    pub fn above(&self, priority: usize) -> u64 {
        self.signs
            .iter()
            .take(priority)
            .fold(0u64, |sum, sign| sum.wrapping_add(sign.0.load(Ordering::Acquire)))
    }
}
