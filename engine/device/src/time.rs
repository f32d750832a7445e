// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine's time.

/// A time or a duration in nanoseconds of the device.
pub type Ns = u64;

/// The earlier of two times, either of which may be none.
pub(crate) fn earlier(a: Option<Ns>, b: Option<Ns>) -> Option<Ns> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
