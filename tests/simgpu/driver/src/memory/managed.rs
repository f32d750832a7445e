//! Managed memory's advice, prefetches and range attributes.
//!
//! The device has no page ledger: prefetching takes a copy's time on its engine, advice is kept and answered.
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Mutex;

use simgpu_device::{Direction, Op};

use crate::abi::{DevicePtr, Error, Handle, In, Location, Out, R};
use crate::export::export;
use crate::memory::{Kind, find};
use crate::state::{self, lock};
use crate::{device, graph, stream};

/// What was advised about an allocation, and where it was prefetched to last.
#[derive(Debug, Clone, Copy)]
struct Advice {
    read_mostly: bool,
    preferred: i32,
    accessed_by: i32,
    last_prefetch: i32,
}

/// Device numbers that mean the host and nowhere (`CU_DEVICE_CPU`, `CU_DEVICE_INVALID`).
const HOST: i32 = -1;
const NOWHERE: i32 = -2;

impl Default for Advice {
    fn default() -> Self {
        Advice {
            read_mostly: false,
            preferred: NOWHERE,
            accessed_by: NOWHERE,
            last_prefetch: NOWHERE,
        }
    }
}

/// By allocation, so that a new allocation at an old address starts afresh.
static ADVICE: Mutex<BTreeMap<u64, Advice>> = Mutex::new(BTreeMap::new());

fn managed(pointer: DevicePtr, size: usize) -> R<u64> {
    let found = find(pointer)
        .filter(|found| found.kind == Kind::Managed)
        .ok_or(Error::INVALID_VALUE)?;
    if size == 0 || pointer + size as u64 > found.start + found.room {
        return Err(Error::INVALID_VALUE);
    }
    Ok(found.id)
}

fn place(location: Location) -> R<i32> {
    match location.kind {
        Location::DEVICE => device::check(location.id).map(|()| location.id),
        2..=4 => Ok(HOST),
        _ => Err(Error::INVALID_VALUE),
    }
}

fn old_place(device: i32) -> R<i32> {
    if device == HOST {
        Ok(HOST)
    } else {
        device::check(device).map(|()| device)
    }
}

fn advise(pointer: DevicePtr, size: usize, advice: u32, place: i32) -> R {
    let id = managed(pointer, size)?;
    let mut all = lock(&ADVICE);
    let kept = all.entry(id).or_default();
    match advice {
        1 => kept.read_mostly = true,
        2 => kept.read_mostly = false,
        3 => kept.preferred = place,
        4 => kept.preferred = NOWHERE,
        5 => kept.accessed_by = place,
        6 => kept.accessed_by = NOWHERE,
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

fn prefetch(pointer: DevicePtr, size: usize, place: i32, stream: Handle) -> R {
    let driver = state::driver()?;
    let id = managed(pointer, size)?;
    let stream = stream::resolve(driver, stream)?;
    if stream.is_capturing() {
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    let direction = if place == HOST {
        Direction::DeviceToHost
    } else {
        Direction::HostToDevice
    };
    let moved = {
        let mut all = lock(&ADVICE);
        let kept = all.entry(id).or_default();
        // Pages that are there already do not move; the whole allocation stands for its pages.
        let was = if kept.last_prefetch == NOWHERE {
            HOST
        } else {
            kept.last_prefetch
        };
        kept.last_prefetch = place;
        was != place
    };
    let op = if moved {
        Op::Copy {
            direction,
            bytes: size as u64,
        }
    } else {
        Op::Marker
    };
    stream.submit(driver, op, None, 0).map(drop)
}

fn range_attribute(data: Out<i32>, size: usize, attribute: u32, pointer: DevicePtr, count: usize) -> R {
    let id = managed(pointer, count)?;
    let kept = lock(&ADVICE).get(&id).copied().unwrap_or_default();
    match attribute {
        1 if size == 4 => data.set(i32::from(kept.read_mostly)),
        2 if size == 4 => data.set(kept.preferred),
        3 if size.is_multiple_of(4) && size > 0 => {
            for at in 0..size / 4 {
                data.set_at(at, if at == 0 { kept.accessed_by } else { NOWHERE })?;
            }
            Ok(())
        }
        4 if size == 4 => data.set(kept.last_prefetch),
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
        graph::may_query()?;
        let starts = starts.list(location_count)?;
        for at in 0..count {
            let which = starts.iter().rposition(|start| *start <= at).ok_or(Error::INVALID_VALUE)?;
            prefetch(pointers.at(at).get()?, sizes.at(at).get()?, place(locations.at(which).get()?)?, stream)?;
        }
        Ok(())
    }

    fn cuMemDiscardBatchAsync(pointers: In<DevicePtr>, sizes: In<usize>, count: usize, flags: u64, stream: Handle) {
        let _ = flags;
        let driver = state::driver()?;
        let stream = stream::resolve(driver, stream)?;
        for at in 0..count {
            managed(pointers.at(at).get()?, sizes.at(at).get()?)?;
        }
        // What was there may be lost; it stays.
        stream.submit(driver, Op::Marker, None, 0).map(drop)
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
