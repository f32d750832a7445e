// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hands out device memory: small blocks share chunks of one granule, large ones have chunks of
//! their own.
//!
//! The device's memory is taken chunk by chunk, as the real driver does, so the figures of
//! `cuMemGetInfo` move in steps of 2 MiB. All memory that is handed out reads as zero.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Mutex;

use simgpu_device::lock::lock;

use crate::abi::{Error, R};
use crate::space::{GRANULE, raw, space};
use crate::state::Driver;

/// Alignment of every block: the real driver guarantees 256 and gives 512.
const ALIGN: u64 = 512;
/// Blocks from this size on have chunks of their own.
const LARGE: u64 = GRANULE / 2;

struct Chunk {
    size: u64,
    /// Free blocks by address.
    free: BTreeMap<u64, u64>,
    used: u64,
    /// Whether all of it is fresh, so that blocks need no clearing.
    fresh: bool,
}

/// One heap.
#[derive(Default)]
pub(crate) struct Heap {
    /// Device whose memory it hands out.
    pub(crate) device: usize,
    chunks: BTreeMap<u64, Chunk>,
    /// Bytes taken from the device.
    pub(crate) reserved: u64,
    /// Bytes to keep, at least, when blocks come back.
    pub(crate) keep: u64,
    /// Take no more than this from the device; 0: no limit.
    pub(crate) limit: u64,
}

/// The heaps that `cuMemAlloc` takes from, by device.
static HEAPS: Mutex<BTreeMap<usize, Heap>> = Mutex::new(BTreeMap::new());

/// Runs `body` on the heap of a device.
pub(super) fn with_heap<T>(device: usize, body: impl FnOnce(&mut Heap) -> T) -> T {
    body(lock(&HEAPS).entry(device).or_insert_with(|| Heap::of(device)))
}

impl Heap {
    /// A device's.
    pub(crate) fn of(device: usize) -> Heap {
        Heap {
            device,
            ..Heap::default()
        }
    }

    /// A block of at least `size` bytes.
    pub(crate) fn take(&mut self, driver: &Driver, size: u64) -> R<(u64, u64)> {
        let size = size
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .ok_or(Error::OUT_OF_MEMORY)?;
        if size >= LARGE {
            let size = size.checked_next_multiple_of(GRANULE).ok_or(Error::OUT_OF_MEMORY)?;
            // A kept chunk that is empty serves if it is not wasteful.
            let kept = self
                .chunks
                .iter_mut()
                .find(|(_, c)| c.used == 0 && c.size >= size && c.size / 2 <= size);
            if let Some((at, chunk)) = kept {
                chunk.used = chunk.size;
                chunk.free.clear();
                let (at, size, fresh) = (*at, chunk.size, chunk.fresh);
                if !fresh {
                    raw::clear(at, size);
                }
                chunk.fresh = false;
                return Ok((at, size));
            }
            let at = self.grow(driver, size)?;
            if let Some(chunk) = self.chunks.get_mut(&at) {
                chunk.used = size;
                chunk.free.clear();
                chunk.fresh = false;
            }
            return Ok((at, size));
        }
        if let Some(block) = self.take_small(size) {
            return Ok(block);
        }
        self.grow(driver, GRANULE)?;
        self.take_small(size).ok_or(Error::OUT_OF_MEMORY)
    }

    fn take_small(&mut self, size: u64) -> Option<(u64, u64)> {
        for chunk in self.chunks.values_mut().filter(|chunk| chunk.size == GRANULE) {
            let Some((at, length)) = chunk
                .free
                .iter()
                .find(|(_, length)| **length >= size)
                .map(|(a, l)| (*a, *l))
            else {
                continue;
            };
            chunk.free.remove(&at);
            if length > size {
                chunk.free.insert(at + size, length - size);
            }
            chunk.used += size;
            raw::clear(at, size);
            return Some((at, size));
        }
        None
    }

    fn grow(&mut self, driver: &Driver, size: u64) -> R<u64> {
        if self.limit != 0 && self.reserved + size > self.limit {
            return Err(Error::OUT_OF_MEMORY);
        }
        let at = space()?.take_device(size)?;
        if let Err(error) = driver.timeline.reserve(self.device, size) {
            space()?.give_device(at, size);
            return Err(error);
        }
        self.reserved += size;
        self.chunks.insert(
            at,
            Chunk {
                size,
                free: BTreeMap::from([(at, size)]),
                used: 0,
                fresh: true,
            },
        );
        Ok(at)
    }

    /// Takes a block back that `take` handed out with this size.
    pub(crate) fn give(&mut self, driver: &Driver, at: u64, size: u64) {
        let Some((base, chunk)) = self.chunks.range_mut(..=at).next_back() else {
            return;
        };
        let base = *base;
        chunk.used -= size.min(chunk.used);
        let (mut start, mut length) = (at, size);
        if let Some((before, its)) = chunk.free.range(..at).next_back().map(|(a, l)| (*a, *l))
            && before + its == at
        {
            chunk.free.remove(&before);
            (start, length) = (before, its + length);
        }
        if let Some(its) = chunk.free.remove(&(at + size)) {
            length += its;
        }
        chunk.free.insert(start, length);
        if chunk.used == 0 && self.reserved - chunk.size >= self.keep {
            self.drop_chunk(driver, base);
        }
    }

    fn drop_chunk(&mut self, driver: &Driver, base: u64) {
        if let Some(chunk) = self.chunks.remove(&base) {
            self.reserved -= chunk.size;
            if let Ok(space) = space() {
                space.give_device(base, chunk.size);
            }
            driver.timeline.release(self.device, chunk.size);
        }
    }

    /// Gives empty chunks back to the device until no more than `keep` bytes are reserved.
    pub(crate) fn trim(&mut self, driver: &Driver, keep: u64) {
        let empty: Vec<u64> = self
            .chunks
            .iter()
            .filter(|(_, chunk)| chunk.used == 0)
            .map(|(at, _)| *at)
            .collect();
        for at in empty {
            let size = self.chunks.get(&at).map_or(0, |chunk| chunk.size);
            if self.reserved - size >= keep {
                self.drop_chunk(driver, at);
            }
        }
    }
}
