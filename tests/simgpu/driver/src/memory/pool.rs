// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory pools: stream-ordered allocation.
//!
//! A freed block belongs to its stream until the stream has got to the free. Until then only that
//! stream may have it again, since its work is ordered anyway. After that every stream may. Blocks
//! come from the pool's own heap, which keeps as many bytes as the release threshold allows.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use simgpu_device::Seq;
use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, R};
use crate::memory::heap::Heap;
use crate::registry::{HandleKind, Registry};
use crate::space::table::{Allocation, AllocationKind, Owner, insert, remove};
use crate::state::Driver;
use crate::stream::Stream;

/// Every pool of the process.
pub(crate) static POOLS: Registry<Pool> = Registry::new(HandleKind::Pool);
/// Current pools of the devices, if they are not the default ones.
pub(crate) static CURRENT: Mutex<BTreeMap<usize, Handle>> = Mutex::new(BTreeMap::new());

/// Destroyed pools of which the client still has memory.
static LEAVING: Mutex<BTreeMap<Handle, Arc<Pool>>> = Mutex::new(BTreeMap::new());

/// Freed blocks that wait for their streams, in all pools.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// One pool.
pub(crate) struct Pool {
    pub(crate) handle: Handle,
    pub(crate) inner: Mutex<PoolState>,
    pub(crate) handle_types: u32,
}

/// A block that its stream has not given up yet.
struct Waiting {
    stream: u64,
    seq: Seq,
    at: u64,
    room: u64,
}

#[derive(Default)]
pub(crate) struct PoolState {
    pub(crate) heap: Heap,
    waiting: Vec<Waiting>,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved_high: u64,
    /// Attributes 1 to 3, which allow blocks to be used again early; all on, as by default.
    pub(crate) reuse: [i32; 3],
}

/// A new pool of a device's memory; `limit` 0 means none.
pub(crate) fn create(device: usize, limit: u64, handle_types: u32) -> Handle {
    let mut heap = Heap::of(device);
    heap.limit = limit;
    let inner = Mutex::new(PoolState {
        heap,
        reuse: [1; 3],
        ..PoolState::default()
    });
    POOLS
        .add_with(|handle| Pool {
            handle,
            inner,
            handle_types,
        })
        .0
}

static DEFAULT: Mutex<BTreeMap<usize, Handle>> = Mutex::new(BTreeMap::new());

/// A device's default pool.
pub(crate) fn default(device: usize) -> Handle {
    *lock(&DEFAULT).entry(device).or_insert_with(|| create(device, 0, 0))
}

/// Whether it is a device's default pool.
pub(crate) fn is_default(pool: Handle) -> bool {
    lock(&DEFAULT).values().any(|default| *default == pool)
}

/// A device's current pool.
pub(crate) fn current(device: usize) -> Handle {
    let set = lock(&CURRENT).get(&device).copied().unwrap_or(0);
    if POOLS.find(set).is_some() {
        set
    } else {
        default(device)
    }
}

impl PoolState {
    /// Takes in the blocks whose streams have got to the free.
    pub(crate) fn settle(&mut self, driver: &Driver) {
        let mut free = Vec::new();
        self.waiting.retain(|block| {
            let done = driver.timeline.is_done(block.seq);
            if done {
                free.push((block.at, block.room));
            }
            !done
        });
        WAITING.fetch_sub(free.len(), Ordering::Relaxed);
        for (at, room) in free {
            self.heap.give(driver, at, room);
        }
    }

    fn count(&mut self, room: u64) {
        self.used += room;
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.heap.reserved);
    }

    fn reuse(&mut self, stream: u64, size: u64) -> Option<(u64, u64)> {
        let fits = |block: &Waiting| {
            block.stream == stream && block.room >= size && block.room - block.room / 4 <= size.max(512)
        };
        let at = self.waiting.iter().rposition(fits)?;
        let block = self.waiting.swap_remove(at);
        WAITING.fetch_sub(1, Ordering::Relaxed);
        Some((block.at, block.room))
    }

    fn take(&mut self, driver: &Driver, size: u64) -> R<(u64, u64)> {
        // Waiting blocks cost a look at the device each; a few may lie without harm.
        if self.waiting.len() >= 32 {
            self.settle(driver);
        }
        match self.heap.take(driver, size) {
            Err(Error::OUT_OF_MEMORY) if !self.waiting.is_empty() => {
                for block in &self.waiting {
                    driver.timeline.wait(block.seq)?;
                }
                self.settle(driver);
                self.heap.trim(driver, 0);
                self.heap.take(driver, size)
            }
            result => result,
        }
    }
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) fn take(driver: &Driver, pool: Handle, stream: &Arc<Stream>, size: u64) -> R<u64> {
    let pool = POOLS.get(pool)?;
    let mut inner = lock(&pool.inner);
    let (at, room) = match inner.reuse(stream.id, size) {
        Some(block) => block,
        None => inner.take(driver, size)?,
    };
    inner.count(room);
    let device = inner.heap.device;
    drop(inner);
    let owner = Owner {
        device,
        ..stream.context.owner()
    };
    insert(owner, at, size, room, AllocationKind::Pool(pool.handle));
    Ok(at)
}

/// The pool that a block came from.
fn of_block(pool: Handle) -> Option<Arc<Pool>> {
    POOLS.find(pool).or_else(|| lock(&LEAVING).get(&pool).cloned())
}

/// Destroys a pool. Its memory in use stays until it is freed.
pub(crate) fn destroy(driver: &Driver, handle: Handle) -> R {
    drain(driver, &*POOLS.get(handle)?)?;
    let pool = POOLS.remove(handle)?;
    if lock(&pool.inner).used > 0 {
        lock(&LEAVING).insert(handle, pool);
    }
    Ok(())
}

/// Takes a block back. Other streams may have it when operation `seq` of this one has ended.
pub(super) fn free_after(pool: Handle, stream: u64, seq: Seq, block: &Allocation) -> R {
    let at = block.start;
    remove(at).ok_or(Error::INVALID_VALUE)?;
    let pool = of_block(pool).ok_or(Error::INVALID_HANDLE)?;
    let room = block.room;
    let mut inner = lock(&pool.inner);
    inner.used -= room.min(inner.used);
    inner.waiting.push(Waiting { stream, seq, at, room });
    WAITING.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// At a synchronisation: pools give the device all memory beyond their release threshold.
pub(crate) fn synchronized(driver: &Driver) {
    if WAITING.load(Ordering::Relaxed) == 0 {
        return;
    }
    for (_, pool) in POOLS.all() {
        lock(&pool.inner).settle(driver);
    }
    lock(&LEAVING).retain(|_, pool| {
        let mut inner = lock(&pool.inner);
        inner.settle(driver);
        inner.used > 0 || !inner.waiting.is_empty()
    });
}

/// Takes a block back that nothing uses any more: `cuMemFree` of pool memory.
pub(crate) fn give(driver: &Driver, pool: Handle, at: u64, room: u64) {
    if let Some(pool) = of_block(pool) {
        let mut inner = lock(&pool.inner);
        inner.used -= room.min(inner.used);
        inner.heap.give(driver, at, room);
    }
}

/// Gives a destroyed pool's memory back, once its streams are done with it; blocks that are still
/// allocated stay until freed.
fn drain(driver: &Driver, pool: &Pool) -> R {
    let mut inner = lock(&pool.inner);
    for block in &inner.waiting {
        driver.timeline.wait(block.seq)?;
    }
    inner.heap.keep = 0;
    inner.settle(driver);
    inner.heap.trim(driver, 0);
    Ok(())
}
