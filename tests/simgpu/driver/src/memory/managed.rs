// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory's advice, prefetches, discards and range attributes.
//!
//! The device's ledger decides where memory lies and which pages move (`paging.rs`). This module
//! keeps only the values that range attributes answer: advice and the last prefetch, page by page.
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Mutex;

use simgpu_device::lock::lock;
use simgpu_device::{Advice as Asked, Op};

use crate::abi::{DevicePtr, Error, Handle, In, Location, Out, R};
use crate::capture::rules;
use crate::device::support::{Support, support};
use crate::export::export;
use crate::space::LEDGER_PAGE_BYTES as PAGE;
use crate::space::table::{AllocationKind, find};
use crate::state;
use crate::{device, stream};

/// Device numbers that mean the host and nowhere (`CU_DEVICE_CPU`, `CU_DEVICE_INVALID`).
const HOST: i32 = -1;
const NOWHERE: i32 = -2;

/// Advice about a page, and the destination of its last prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageAdvice {
    read_mostly: bool,
    preferred: i32,
    accessed_by: i32,
    last_prefetch: i32,
}

impl Default for PageAdvice {
    fn default() -> Self {
        PageAdvice {
            read_mostly: false,
            preferred: NOWHERE,
            accessed_by: NOWHERE,
            last_prefetch: NOWHERE,
        }
    }
}

/// A part of an allocation, as its pages.
struct Part {
    id: u64,
    /// In whose ledger.
    device: usize,
    /// Pages of the whole allocation.
    all: usize,
    pages: std::ops::Range<usize>,
}

/// Advice by allocation, so that a new allocation at an old address starts afresh. An allocation
/// without an entry has no advice.
static ADVICE: Mutex<BTreeMap<u64, Vec<PageAdvice>>> = Mutex::new(BTreeMap::new());

/// An allocation is gone.
pub(super) fn forget(id: u64) {
    lock(&ADVICE).remove(&id);
}

/// Changes the advice that is kept of each page of a part.
fn keep(part: &Part, change: impl Fn(&mut PageAdvice)) {
    let mut all = lock(&ADVICE);
    let pages = all
        .entry(part.id)
        .or_insert_with(|| vec![PageAdvice::default(); part.all]);
    pages
        .get_mut(part.pages.clone())
        .unwrap_or_default()
        .iter_mut()
        .for_each(change);
}

/// The value that all pages of a part have in common; `differ` if they differ.
fn common<T: PartialEq>(part: &Part, of: impl Fn(&PageAdvice) -> T, differ: T) -> T {
    let all = lock(&ADVICE);
    let Some(pages) = all.get(&part.id).and_then(|pages| pages.get(part.pages.clone())) else {
        return of(&PageAdvice::default());
    };
    let mut values = pages.iter().map(of);
    match values.next() {
        Some(first) if values.all(|value| value == first) => first,
        _ => differ,
    }
}

fn managed(pointer: DevicePtr, size: usize) -> R<Part> {
    let found = find(pointer)
        .filter(|found| found.kind == AllocationKind::Managed)
        .ok_or(Error::INVALID_VALUE)?;
    if size == 0 || pointer + size as u64 > found.start + found.room {
        return Err(Error::INVALID_VALUE);
    }
    let from = pointer - found.start;
    Ok(Part {
        id: found.id,
        device: found.device,
        all: found.room.div_ceil(PAGE) as usize,
        pages: (from / PAGE) as usize..(from + size as u64).div_ceil(PAGE) as usize,
    })
}

fn place(location: Location) -> R<i32> {
    match location.kind {
        Location::DEVICE => device::check(location.id).map(|_| location.id),
        2..=4 => Ok(HOST),
        _ => Err(Error::INVALID_VALUE),
    }
}

fn old_place(device: i32) -> R<i32> {
    if device == HOST {
        Ok(HOST)
    } else {
        device::check(device).map(|_| device)
    }
}

fn advise(pointer: DevicePtr, size: usize, advice: u32, place: i32) -> R {
    let part = managed(pointer, size)?;
    let timeline = &state::driver()?.timeline;
    match advice {
        1 | 2 => {
            let on = advice == 1;
            timeline.advise(part.device, pointer, size as u64, Asked::ReadMostly, on)?;
            keep(&part, |kept| kept.read_mostly = on);
        }
        3 | 4 => {
            let preferred = if advice == 3 { place } else { NOWHERE };
            let here = usize::try_from(preferred) == Ok(part.device);
            timeline.advise(part.device, pointer, size as u64, Asked::PreferDevice, here)?;
            keep(&part, |kept| kept.preferred = preferred);
        }
        5 => keep(&part, |kept| kept.accessed_by = place),
        6 => keep(&part, |kept| kept.accessed_by = NOWHERE),
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

fn prefetch(pointer: DevicePtr, size: usize, place: i32, stream: Handle) -> R {
    let driver = state::driver()?;
    let part = managed(pointer, size)?;
    if support() == Support::NoPrefetch {
        return Err(Error::NOT_SUPPORTED);
    }
    let stream = stream::resolve(driver, stream)?;
    if stream.is_capturing() {
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    let op = match part.device == stream.context.device() {
        true => Op::Prefetch {
            to_host: place == HOST,
            start: pointer,
            bytes: size as u64,
        },
        // Memory in another device's ledger stays as it is.
        false => Op::Marker,
    };
    stream.submit(driver, op, None, 0)?;
    keep(&part, |kept| kept.last_prefetch = place);
    Ok(())
}

fn discard(pointer: DevicePtr, size: usize, stream: Handle) -> R {
    let driver = state::driver()?;
    let part = managed(pointer, size)?;
    let stream = stream::resolve(driver, stream)?;
    if stream.is_capturing() {
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    // The content may be lost. It stays, but need not be moved.
    let op = match part.device == stream.context.device() {
        true => Op::Discard {
            start: pointer,
            bytes: size as u64,
        },
        false => Op::Marker,
    };
    stream.submit(driver, op, None, 0).map(drop)
}

/// `count` ranges, each with the place that the lists give it.
struct Batch {
    pointers: In<DevicePtr>,
    sizes: In<usize>,
    count: usize,
    locations: In<Location>,
    starts: In<usize>,
    location_count: usize,
}

impl Batch {
    fn prefetch(&self, discarding: bool, stream: Handle) -> R {
        rules::may_query()?;
        let starts = self.starts.list(self.location_count)?;
        for at in 0..self.count {
            let which = starts
                .iter()
                .rposition(|start| *start <= at)
                .ok_or(Error::INVALID_VALUE)?;
            let (pointer, size) = (self.pointers.at(at).get()?, self.sizes.at(at).get()?);
            let place = place(self.locations.at(which).get()?)?;
            if discarding {
                discard(pointer, size, stream)?;
            }
            prefetch(pointer, size, place, stream)?;
        }
        Ok(())
    }
}

fn range_attribute(data: Out<i32>, size: usize, attribute: u32, pointer: DevicePtr, count: usize) -> R {
    let part = managed(pointer, count)?;
    match attribute {
        1 if size == 4 => data.set(i32::from(common(&part, |kept| kept.read_mostly, false))),
        2 if size == 4 => data.set(common(&part, |kept| kept.preferred, NOWHERE)),
        3 if size.is_multiple_of(4) && size > 0 => {
            let by = common(&part, |kept| kept.accessed_by, NOWHERE);
            for at in 0..size / 4 {
                data.set_at(at, if at == 0 { by } else { NOWHERE })?;
            }
            Ok(())
        }
        4 if size == 4 => data.set(common(&part, |kept| kept.last_prefetch, NOWHERE)),
        _ => Err(Error::INVALID_VALUE),
    }
}

export! {
    fn cuMemAdvise(pointer: DevicePtr, size: usize, advice: u32, device: i32) {
        state::driver()?;
        advise(pointer, size, advice, if advice == 1 || advice == 2 || advice == 4 { HOST } else { old_place(device)? })
    }

    fn cuMemAdvise_v2(pointer: DevicePtr, size: usize, advice: u32, location: Location) {
        state::driver()?;
        advise(pointer, size, advice, if [1, 2, 4].contains(&advice) { HOST } else { place(location)? })
    }

    fn cuMemPrefetchAsync(pointer: DevicePtr, size: usize, device: i32, stream: Handle) {
        prefetch(pointer, size, old_place(device)?, stream)
    }

    fn cuMemPrefetchAsync_v2(pointer: DevicePtr, size: usize, location: Location, flags: u32, stream: Handle) {
        let _ = flags;
        prefetch(pointer, size, place(location)?, stream)
    }

    fn cuMemPrefetchBatchAsync(pointers: In<DevicePtr>, sizes: In<usize>, count: usize, locations: In<Location>,
                               starts: In<usize>, location_count: usize, flags: u64, stream: Handle) {
        let _ = flags;
        Batch { pointers, sizes, count, locations, starts, location_count }.prefetch(false, stream)
    }

    fn cuMemDiscardBatchAsync(pointers: In<DevicePtr>, sizes: In<usize>, count: usize, flags: u64, stream: Handle) {
        let _ = flags;
        rules::may_query()?;
        for at in 0..count {
            discard(pointers.at(at).get()?, sizes.at(at).get()?, stream)?;
        }
        Ok(())
    }

    fn cuMemDiscardAndPrefetchBatchAsync(pointers: In<DevicePtr>, sizes: In<usize>, count: usize, locations: In<Location>,
                                         starts: In<usize>, location_count: usize, flags: u64, stream: Handle) {
        let _ = flags;
        Batch { pointers, sizes, count, locations, starts, location_count }.prefetch(true, stream)
    }

    fn cuMemRangeGetAttribute(data: Out<i32>, size: usize, attribute: u32, pointer: DevicePtr, count: usize) {
        state::driver()?;
        range_attribute(data, size, attribute, pointer, count)
    }

    fn cuMemRangeGetAttributes(data: In<usize>, sizes: In<usize>, attributes: In<u32>, kinds: usize, pointer: DevicePtr,
                               count: usize) {
        state::driver()?;
        for at in 0..kinds {
            let out = Out::from_address(data.at(at).get()?);
            range_attribute(out, sizes.at(at).get()?, attributes.at(at).get()?, pointer, count)?;
        }
        Ok(())
    }
}
