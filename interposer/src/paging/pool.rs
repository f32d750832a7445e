// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory that was freed in stream order and is kept for reuse; and usage of pools.
//!
//! * The stream of the free can reuse a block at once: stream order makes that right. Other streams
//!   get the block when an event after the free was reached.
//! * Kept blocks are not the job's: its `cuMemGetInfo` omits them. They are freed when the job asks
//!   for more than there is, trims a pool, or frees more than [`MOST_BLOCKS`].
//! * The driver's free waits for a block's users, so a block without an event is safe too.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_protocol::control::ToBroker;

use super::capacity;
use super::ranges::{ManagedRange, Origin};
use crate::driver::abi::{CuContext, CuDevicePtr, CuEvent, CuStream};
use crate::driver::stream_order::{self, Mark, StreamOrder};
use crate::driver::{calls, capture, queries};

/// CTranslate2 uses some thirty at a time.
const MOST_BLOCKS: usize = 1024;

/// A block serves a request of `bytes` if `bytes <= room` and
/// `room - room / WASTE_DIVISOR <= max(bytes, SMALL_BYTES)`.
const WASTE_DIVISOR: u64 = 4;
const SMALL_BYTES: u64 = 512;

#[derive(Debug, Clone, Copy)]
pub struct KeptBlock {
    pub at: CuDevicePtr,
    pub range: ManagedRange,
    order: StreamOrder,
    /// Event after the free; 0 = none.
    event: CuEvent,
    of: CuContext,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes now.
    pub now: u64,
    /// Peak, bytes.
    pub high: u64,
}

#[derive(Default)]
struct PoolState {
    spare: Vec<KeptBlock>,
    used: HashMap<usize, PoolUsage>,
    /// Pools for sharing or host memory, left to the driver.
    foreign: Vec<usize>,
}

static INSIDE: Mutex<Option<PoolState>> = Mutex::new(None);

fn locked() -> MutexGuard<'static, Option<PoolState>> {
    INSIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn inside<T>(body: impl FnOnce(&mut PoolState) -> T) -> T {
    body(locked().get_or_insert_default())
}

/// Takes out a fitting block that this stream may use now.
pub fn reuse(bytes: u64, stream: CuStream) -> Option<(CuDevicePtr, ManagedRange)> {
    let block = find(bytes, stream)?;
    stream_order::unmark((block.event, block.of));
    Some((block.at, block.range))
}

fn find(bytes: u64, stream: CuStream) -> Option<KeptBlock> {
    let (device, context) = queries::here()?;
    let order = StreamOrder::of(stream, context);
    let fits = |spare: &KeptBlock| {
        let room = spare.range.room;
        spare.range.device == device
            && spare.range.context == context
            && room >= bytes
            && room - room / WASTE_DIVISOR <= bytes.max(SMALL_BYTES)
    };
    let own = |inside: &mut PoolState| {
        let at = inside
            .spare
            .iter()
            .rposition(|spare| spare.order == order && fits(spare))?;
        Some(inside.spare.swap_remove(at))
    };
    if let Some(spare) = inside(own) {
        return Some(spare);
    }
    if capture::any() {
        return None;
    }
    // The block leaves the list first: no lock is held during a driver call.
    let other = |inside: &mut PoolState| {
        let at = inside.spare.iter().position(|spare| spare.event != 0 && fits(spare))?;
        Some(inside.spare.remove(at))
    };
    let spare = inside(other)?;
    if stream_order::reached(spare.event) {
        return Some(spare);
    }
    inside(|inside| inside.spare.push(spare));
    None
}

/// Keeps a block that was freed on this stream.
pub fn keep(at: CuDevicePtr, range: ManagedRange, stream: CuStream, (event, of): Mark) {
    let block = KeptBlock {
        at,
        range,
        order: StreamOrder::of(stream, of),
        event,
        of,
    };
    let full = inside(|inside| {
        inside.spare.push(block);
        inside.spare.len() > MOST_BLOCKS
    });
    if full && !capture::any() {
        drop_blocks(|inside| inside.spare.drain(..MOST_BLOCKS / 4).collect());
    }
}

/// Gives a device's kept blocks back. False if none, or during a capture.
pub fn trim(device: i32) -> bool {
    if capture::any() {
        return false;
    }
    drop_blocks(|inside| {
        let (of_it, others) = std::mem::take(&mut inside.spare)
            .into_iter()
            .partition(|spare| spare.range.device == device);
        inside.spare = others;
        of_it
    })
}

fn drop_blocks(which: impl FnOnce(&mut PoolState) -> Vec<KeptBlock>) -> bool {
    let blocks = inside(which);
    for block in &blocks {
        stream_order::unmark((block.event, block.of));
        // The driver waits for the block's users.
        // SAFETY: no other code holds the block.
        let _ = capture::relaxed(|| unsafe { calls::cuMemFree_v2(block.at) });
        capacity::send(ToBroker::Unbacked { start: block.at });
    }
    !blocks.is_empty()
}

/// Takes out kept blocks within a range: no allocation gets them meanwhile.
pub fn borrow(start: u64, end: u64) -> Vec<KeptBlock> {
    inside(|inside| {
        let within = |spare: &KeptBlock| start <= spare.at && spare.at.saturating_add(spare.range.room) <= end;
        let (out, rest) = std::mem::take(&mut inside.spare).into_iter().partition(within);
        inside.spare = rest;
        out
    })
}

pub fn within(start: u64, end: u64) -> Vec<(std::ops::Range<u64>, ManagedRange)> {
    let part = |spare: &KeptBlock| {
        let part = start.max(spare.at)..end.min(spare.at.saturating_add(spare.range.room));
        (!part.is_empty()).then_some((part, spare.range))
    };
    inside(|inside| inside.spare.iter().filter_map(part).collect())
}

pub fn put_back(blocks: Vec<KeptBlock>) {
    inside(|inside| inside.spare.extend(blocks));
}

pub fn kept(device: i32) -> u64 {
    inside(|inside| {
        let of_it = inside.spare.iter().filter(|spare| spare.range.device == device);
        of_it.fold(0, |sum: u64, spare| sum.saturating_add(spare.range.room))
    })
}

pub fn stream_ending(stream: CuStream) {
    inside(|inside| {
        for spare in &mut inside.spare {
            if spare.order == StreamOrder::Stream(stream) {
                spare.order = StreamOrder::Gone;
            }
        }
    });
}

/// Handles an ended context; 0 = an unknown one.
pub fn context_ended(context: CuContext) {
    let its = |of: CuContext| context == 0 || of == context;
    stream_order::context_ended(context);
    inside(|inside| {
        for spare in &mut inside.spare {
            // Without an event a block may belong to any context.
            if its(spare.of) || spare.event == 0 {
                spare.order = StreamOrder::Gone;
            }
            if its(spare.of) {
                spare.event = 0;
            }
        }
    });
}

/// Forgets the blocks that ended together with a context.
pub fn forget_gone() {
    let blocks = inside(|inside| std::mem::take(&mut inside.spare));
    let living: Vec<KeptBlock> = blocks
        .into_iter()
        .filter(|spare| queries::is_managed(spare.at))
        .collect();
    inside(|inside| inside.spare.extend(living));
}

/// Leaves a pool for sharing or host memory to the driver.
pub fn foreign(pool: usize) {
    inside(|inside| inside.foreign.push(pool));
}

pub fn is_foreign(pool: usize) -> bool {
    inside(|inside| inside.foreign.contains(&pool))
}

/// 0, the default pool; `None` if the default is foreign.
pub fn default_of_here() -> Option<usize> {
    if inside(|inside| inside.foreign.is_empty()) {
        return Some(0);
    }
    let (device, _) = queries::here()?;
    let mut pool = 0;
    // SAFETY: valid out-parameter.
    let asked = unsafe { calls::cuDeviceGetMemPool(&mut pool, device) };
    (!asked.ok() || !is_foreign(pool)).then_some(0)
}

pub fn ended(pool: usize) {
    inside(|inside| {
        inside.foreign.retain(|other| *other != pool);
        inside.used.remove(&pool);
    });
}

pub fn count_taken(range: &ManagedRange) {
    if let Origin::Pool(pool) = range.origin {
        inside(|inside| {
            let used = inside.used.entry(pool).or_default();
            used.now = used.now.saturating_add(range.bytes);
            used.high = used.high.max(used.now);
        });
    }
}

pub fn count_freed(range: &ManagedRange) {
    if let Origin::Pool(pool) = range.origin {
        inside(|inside| {
            let used = inside.used.entry(pool).or_default();
            used.now = used.now.saturating_sub(range.bytes);
        });
    }
}

pub fn used(pool: usize) -> PoolUsage {
    inside(|inside| inside.used.get(&pool).copied().unwrap_or_default())
}

pub fn reset_high(pool: usize) {
    inside(|inside| {
        let used = inside.used.entry(pool).or_default();
        used.high = used.now;
    });
}
