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

/// The link before measurements ([`super::link_rates`]): PCIe 4 x16, one direction at a time.
/// MSched measured 22.2 GB/s for a serial swap.
const LINK: Link = Link {
    inward: 22.2e9,
    outward: 22.2e9,
    both: 22.2e9,
    duplex: false,
};

/// Planner settings for a device of `bytes` that is `dilation` times slower than a real one, with
/// `contexts` contexts and `plain` bytes of unmanaged memory.
pub(super) fn config(bytes: u64, contexts: usize, plain: u64, dilation: f64) -> PagingConfig {
    let context = CONTEXT_BYTES.min(bytes / CONTEXT_PART);
    let beside = context
        .saturating_mul(contexts as u64)
        .saturating_add(plain)
        .saturating_add(bytes / RESERVE_PART);
    PagingConfig::new(
        bytes.saturating_sub(beside),
        weft_protocol::host::of_system(),
        link(dilation),
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

/// The unmeasured link of a device that is `dilation` times slower than a real one.
pub(super) fn link(dilation: f64) -> Link {
    Link {
        inward: LINK.inward / dilation,
        outward: LINK.outward / dilation,
        both: LINK.both / dilation,
        ..LINK
    }
}
