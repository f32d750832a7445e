//! Managed memory's part in the device's page ledger: what is allocated, and what operations touch.
//!
//! Managed allocations have addresses of their own at multiples of 2 MiB and count in whole pages of 64 KiB. They take room on the host when they are allocated, and on the device only
//! page by page, so they may exceed it. What the host's own code touches is not seen: memory counts as filled by the host when it is allocated, and what lies on
//! the device stays there though the host reads it.
//!
//! What a kernel touches is estimated where nothing better is known: from each parameter word that points into managed memory on, 16 bytes for each thread of the launch, to the
//! allocation's end at most. Kernels do not end what is advised as mostly read; memsets and copies into it do.
//!
//! `SIMGPU_MANAGED=off` makes a device without managed memory, `SIMGPU_MANAGED=no-prefetch` one whose driver refuses prefetches.
#![deny(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use simgpu_device::Touch;

use crate::abi::{Error, R};
use crate::context::Context;
use crate::launch::Shape;
use crate::memory::space::{GRANULE, Zone, space, zone};
use crate::memory::{Allocation, Kind, find, insert, managed};
use crate::state::Driver;

/// The ledger's page.
pub(super) const PAGE: u64 = 64 << 10;

/// What a thread of a kernel is taken to touch from each of its pointers on: as much as default kernel times assume that it reads and writes.
const BYTES_A_THREAD: u64 = 16;

/// Managed allocations of the process: launches look for pointers only while there are any.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// What the device does of managed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    /// All.
    Full,
    /// All but prefetches, which are refused.
    NoPrefetch,
    /// Nothing.
    None,
}

/// What the device does of managed memory, by `SIMGPU_MANAGED`.
pub(crate) fn support() -> Support {
    static SUPPORT: OnceLock<Support> = OnceLock::new();
    *SUPPORT.get_or_init(|| match std::env::var("SIMGPU_MANAGED").as_deref() {
        Ok("off") => Support::None,
        Ok("no-prefetch") => Support::NoPrefetch,
        _ => Support::Full,
    })
}

/// Managed memory for a context.
pub(super) fn take(driver: &Driver, context: &Context, size: u64) -> R<u64> {
    if support() == Support::None {
        return Err(Error::NOT_SUPPORTED);
    }
    let whole = |size: u64, unit: u64| size.checked_next_multiple_of(unit).ok_or(Error::OUT_OF_MEMORY);
    let (room, addresses) = (whole(size, PAGE)?, whole(size, GRANULE)?);
    let at = space()?.take_device(addresses)?;
    if let Err(error) = driver.timeline.manage(at, room) {
        space()?.give_device(at, addresses);
        return Err(error);
    }
    insert(context, at, size, room, Kind::Managed);
    COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(at)
}

/// Gives it back.
pub(super) fn give(driver: &Driver, allocation: &Allocation) -> R {
    COUNT.fetch_sub(1, Ordering::Relaxed);
    managed::forget(allocation.id);
    driver.timeline.unmanage(allocation.start, allocation.room);
    space()?.give_device(allocation.start, allocation.room.next_multiple_of(GRANULE));
    Ok(())
}

/// Whether the process has managed memory.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// What of some bytes is managed memory that an operation uses.
pub(crate) fn touch(start: u64, bytes: u64, write: bool) -> Option<Touch> {
    if bytes == 0 || !any() || zone(start) != Zone::Device {
        return None;
    }
    let found = find(start).filter(|found| found.kind == Kind::Managed)?;
    let end = start.saturating_add(bytes).min(found.start + found.room);
    Some(Touch {
        start,
        bytes: end - start,
        write,
    })
}

/// What a launch with these parameters touches.
pub(crate) fn touches(params: &[u8], shape: Shape) -> Vec<Touch> {
    if !any() {
        return Vec::new();
    }
    let threads: u64 = shape
        .grid
        .iter()
        .chain(&shape.block)
        .map(|side| u64::from(*side))
        .product();
    let reach = threads.saturating_mul(BYTES_A_THREAD);
    // Pointers, also inside structs that are passed by value, are aligned.
    let words = params
        .chunks_exact(8)
        .filter_map(|word| word.try_into().ok())
        .map(u64::from_ne_bytes);
    words.filter_map(|word| touch(word, reach, false)).collect()
}
