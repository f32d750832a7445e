// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resources to plan with: memory on the device and the host, and the link's rates.
#![forbid(unsafe_code)]

use weft_paging::{GRANULE, Link, PagingConfig, RESERVE_PART};

/// Assumed context and code of a client, bytes: the middle of 0.4 to 0.5 GB, measured on large
/// devices. Small devices have smaller contexts.
const CONTEXT_BYTES: u64 = 450 << 20;

const SMALLEST_CONTEXT_BYTES: u64 = 400 << 20;

/// Largest context, as a part of the device: 1 / `CONTEXT_PART`.
const CONTEXT_PART: u64 = 4;

/// Planner settings for a device of `bytes` with `contexts` contexts and `plain` bytes of unmanaged
/// memory, and a link of this rate.
pub(super) fn config(bytes: u64, contexts: usize, plain: u64, link_mb_per_s: u32) -> PagingConfig {
    let context = CONTEXT_BYTES.min(bytes / CONTEXT_PART);
    let beside = context
        .saturating_mul(contexts as u64)
        .saturating_add(plain)
        .saturating_add(bytes / RESERVE_PART);
    PagingConfig::new(
        bytes.saturating_sub(beside),
        weft_protocol::host::of_system(),
        link(link_mb_per_s),
    )
}

/// Most granules that fit on the device with contexts and unmanaged memory. The driver fills all of
/// the device. With a lower figure the estimate would wrongly count every other granule of a round
/// as evicted.
pub(super) fn holds(bytes: u64, contexts: usize, plain: u64) -> u64 {
    let context = SMALLEST_CONTEXT_BYTES.min(bytes / CONTEXT_PART);
    let beside = context.saturating_mul(contexts as u64).saturating_add(plain);
    bytes.saturating_sub(beside) / GRANULE
}

/// The link before measurements ([`super::link_rates`]): one direction at a time.
pub(super) fn link(mb_per_s: u32) -> Link {
    let rate = f64::from(mb_per_s) * 1e6;
    Link {
        inward: rate,
        outward: rate,
        both: rate,
        duplex: false,
    }
}
