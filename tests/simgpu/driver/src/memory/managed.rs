//! Managed memory's advice, prefetches, discards and range attributes.
//!
//! The device has no page ledger: what kernels and the host touch is not seen, and costs nothing wherever it lies. What is kept, in units of 64 KiB, is where
//! prefetches and discards put memory: only what lies elsewhere takes a copy's time on its engine, what was discarded takes none, and what is advised as mostly
//! read stays on the host when it comes to the device, so that it leaves for nothing. Memory that was never prefetched counts as the host's.
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Mutex;

use simgpu_device::Op;

use crate::abi::{DevicePtr, Error, Handle, In, Location, Out, R};
use crate::export::export;
use crate::memory::{Kind, find};
use crate::state::{self, lock};
use crate::{device, graph, stream};

/// The unit in which it is known where memory lies: the driver's leaf.
const LEAF: u64 = 64 << 10;

/// Where a leaf lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lies {
    Host,
    Device,
    /// The same in both: mostly read.
    Both,
    /// Nowhere: its contents were given up.
    Nowhere,
}

/// What was advised about an allocation, where it was prefetched to last, and where its leaves lie.
#[derive(Debug, Clone)]
struct Advice {
    read_mostly: bool,
    preferred: i32,
    accessed_by: i32,
    last_prefetch: i32,
    /// Empty: all on the host.
    leaves: Vec<Lies>,
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
            leaves: Vec::new(),
        }
    }
}

/// A part of an allocation, as its leaves.
struct Part {
    id: u64,
    /// Leaves of the whole allocation.
    all: usize,
    leaves: std::ops::Range<usize>,
}

impl Advice {
    fn leaves(&mut self, part: &Part) -> &mut [Lies] {
        self.leaves.resize(part.all, Lies::Host);
        self.leaves.get_mut(part.leaves.clone()).unwrap_or_default()
    }

    /// Has a part lie at a place. Answers how many bytes must move for that.
    fn bring(&mut self, part: &Part, place: i32) -> u64 {
        self.last_prefetch = place;
        let there = match (place == HOST, self.read_mostly) {
            (true, _) => Lies::Host,
            (false, false) => Lies::Device,
            (false, true) => Lies::Both,
        };
        let mut moved = 0;
        for leaf in self.leaves(part) {
            moved += u64::from(matches!(
                (*leaf, there),
                (Lies::Host, Lies::Device | Lies::Both) | (Lies::Device, Lies::Host)
            ));
            *leaf = match (*leaf, there) {
                // Only what comes from the host leaves its copy there.
                (Lies::Device | Lies::Nowhere, Lies::Both) => Lies::Device,
                (_, there) => there,
            };
        }
        moved * LEAF
    }
}

/// By allocation, so that a new allocation at an old address starts afresh.
static ADVICE: Mutex<BTreeMap<u64, Advice>> = Mutex::new(BTreeMap::new());

fn managed(pointer: DevicePtr, size: usize) -> R<Part> {
    let found = find(pointer)
        .filter(|found| found.kind == Kind::Managed)
        .ok_or(Error::INVALID_VALUE)?;
    if size == 0 || pointer + size as u64 > found.start + found.room {
        return Err(Error::INVALID_VALUE);
    }
    let from = pointer - found.start;
    Ok(Part {
        id: found.id,
        all: found.room.div_ceil(LEAF) as usize,
        leaves: (from / LEAF) as usize..(from + size as u64).div_ceil(LEAF) as usize,
    })
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
    let part = managed(pointer, size)?;
    let mut all = lock(&ADVICE);
    let kept = all.entry(part.id).or_default();
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
    let part = managed(pointer, size)?;
    let stream = stream::resolve(driver, stream)?;
    if stream.is_capturing() {
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    let moved = lock(&ADVICE).entry(part.id).or_default().bring(&part, place);
    // A part that is not made of whole leaves moves no more than itself.
    let op = match moved.min(size as u64) {
        0 => Op::Marker,
        bytes => Op::Prefetch {
            to_host: place == HOST,
            bytes,
        },
    };
    stream.submit(driver, op, None, 0).map(drop)
}

fn discard(pointer: DevicePtr, size: usize) -> R {
    let part = managed(pointer, size)?;
    // What was there may be lost; it stays, but need not be moved.
    lock(&ADVICE)
        .entry(part.id)
        .or_default()
        .leaves(&part)
        .fill(Lies::Nowhere);
    Ok(())
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
        graph::may_query()?;
        let starts = self.starts.list(self.location_count)?;
        for at in 0..self.count {
            let which = starts
                .iter()
                .rposition(|start| *start <= at)
                .ok_or(Error::INVALID_VALUE)?;
            let (pointer, size) = (self.pointers.at(at).get()?, self.sizes.at(at).get()?);
            let place = place(self.locations.at(which).get()?)?;
            if discarding {
                discard(pointer, size)?;
            }
            prefetch(pointer, size, place, stream)?;
        }
        Ok(())
    }
}

fn range_attribute(data: Out<i32>, size: usize, attribute: u32, pointer: DevicePtr, count: usize) -> R {
    let part = managed(pointer, count)?;
    let kept = lock(&ADVICE).get(&part.id).cloned().unwrap_or_default();
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
        Batch { pointers, sizes, count, locations, starts, location_count }.prefetch(false, stream)
    }

    fn cuMemDiscardBatchAsync(pointers: In<DevicePtr>, sizes: In<usize>, count: usize, flags: u64, stream: Handle) {
        let _ = flags;
        let driver = state::driver()?;
        let stream = stream::resolve(driver, stream)?;
        for at in 0..count {
            discard(pointers.at(at).get()?, sizes.at(at).get()?)?;
        }
        stream.submit(driver, Op::Marker, None, 0).map(drop)
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
