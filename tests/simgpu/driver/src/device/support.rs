// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device's support of managed memory.
//!
//! `SIMGPU_MANAGED=off` makes a device without managed memory, `SIMGPU_MANAGED=no-prefetch` one
//! whose driver refuses prefetches.
#![forbid(unsafe_code)]

use std::sync::OnceLock;

/// The device's support of managed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    /// All.
    Full,
    /// All but prefetches, which are refused.
    NoPrefetch,
    /// Nothing.
    None,
}

/// The device's support of managed memory, by `SIMGPU_MANAGED`.
pub(crate) fn support() -> Support {
    static SUPPORT: OnceLock<Support> = OnceLock::new();
    *SUPPORT.get_or_init(|| match std::env::var("SIMGPU_MANAGED").as_deref() {
        Ok("off") => Support::None,
        Ok("no-prefetch") => Support::NoPrefetch,
        _ => Support::Full,
    })
}
