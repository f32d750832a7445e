//! How much room there is to plan with: on the device, on the host and on the link between them.
#![forbid(unsafe_code)]

use weft_paging::{Config, GRANULE, Link};

/// Of each device so much stays free of the plan for what demand paging needs to turn round in.
pub(super) const RESERVE: u64 = 64;

/// What a client's context and code take of the device: 0.4 to 0.5 GB where it was measured on
/// large devices; a small device has smaller ones. The plan goes by the middle, which leaves room.
const CONTEXT: u64 = 450 << 20;

/// The least that they take there.
const SMALLEST: u64 = 400 << 20;

/// No context takes more than this part of the device.
const CONTEXT_PART: u64 = 4;

/// The link before anything was measured of it ([`super::carried`]): PCIe 4 x16, one direction at a
/// time (22.2 GB/s is what MSched measured of a serial swap on it).
const LINK: Link = Link {
    inward: 22.2e9,
    outward: 22.2e9,
    both: 22.2e9,
    duplex: false,
};

/// For a device of so many bytes that holds so many contexts and so much memory that is not
/// managed, and is so many times slower than a real one.
pub(super) fn config(bytes: u64, contexts: usize, plain: u64, dilation: f64) -> Config {
    let context = CONTEXT.min(bytes / CONTEXT_PART);
    let beside = context
        .saturating_mul(contexts as u64)
        .saturating_add(plain)
        .saturating_add(bytes / RESERVE);
    Config::new(
        bytes.saturating_sub(beside),
        weft_protocol::host::of_system(),
        link(dilation),
    )
}

/// Granules that such a device has room for beside them, at most. The driver fills it all, and
/// where the books on what lies there had less room, they would take what came first for gone, then
/// what is touched next for the first of all, and so each other granule of a round.
pub(super) fn holds(bytes: u64, contexts: usize, plain: u64) -> u64 {
    let context = SMALLEST.min(bytes / CONTEXT_PART);
    let beside = context.saturating_mul(contexts as u64).saturating_add(plain);
    bytes.saturating_sub(beside) / GRANULE
}

/// The link of a device that is so many times slower than a real one, before anything was measured
/// of it.
pub(super) fn link(dilation: f64) -> Link {
    Link {
        inward: LINK.inward / dilation,
        outward: LINK.outward / dilation,
        both: LINK.both / dilation,
        ..LINK
    }
}
