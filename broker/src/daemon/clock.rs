//! The clock of all weft's processes.
#![forbid(unsafe_code)]

use rustix::time::{ClockId, clock_gettime};

use crate::protocol::Ns;

/// `CLOCK_MONOTONIC` now. The same in every process of the machine.
pub fn now() -> Ns {
    let time = clock_gettime(ClockId::Monotonic);
    // Never negative by its definition.
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}
