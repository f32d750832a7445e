// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks that the job freed in stream order, kept for its next stream-ordered allocations.
//!
//! * The stream of the free can reuse a block at once. Other streams get it when the work before
//!   the free has ended, or wait for that work if there is no other memory.
//! * A block is unmapped only after that work: by the mover, a second after the free, if its pool
//!   keeps more than its release threshold; or at once, if the job needs the room, asks how much
//!   there is, or trims the pool; and before memory leaves the device, because its contents are
//!   no one's.
//! * A block that a stream freed and that belongs to no pool is not reused: memory of `cuMemAlloc`,
//!   and of destroyed pools.
//! * Kept blocks are counted as held by the job, like the memory that the driver's pools keep.

use std::collections::BTreeMap;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use weft_protocol::Ns;

use super::blocks::{self, MovableBlock};
use crate::client::clock;
use crate::driver::abi::{CuContext, CuDevicePtr, CuEvent, CuResult, CuStream};
use crate::driver::queries::{current_context, within};
use crate::driver::stream::PER_THREAD_STREAM;
use crate::driver::stream_order::{self, StreamOrder};
use crate::driver::{calls, capture};
use crate::lock::lock;
use crate::{thread, throttle};

/// The part of a block that a request may waste: an eighth.
const WASTE_PARTS: u64 = 8;

/// Beyond this number the oldest quarter is given back. A search looks at all of them.
const MOST_BLOCKS: usize = 1024;

/// Most blocks of other streams that a search queries.
const MOST_QUERIES: usize = 8;

/// Age after which the mover gives blocks back that exceed the threshold, ns. Jobs mostly allocate
/// again after a synchronisation.
pub const REST_NS: Ns = 1_000_000_000;

/// Longest wait for work before a free, if the job needs the block's memory, ns.
const WAIT_NS: Ns = 10_000_000_000;

/// Interval of looks at that work.
const STEP: Duration = Duration::from_millis(1);

/// Number of a pool of the job. 0: a pool that was destroyed, or none.
pub type PoolKey = u32;

/// No pool that lives.
pub const NO_POOL: PoolKey = 0;

/// A pool's blocks, bytes. The peaks are those of the whole pool, with the driver's part.
#[derive(Debug, Clone, Copy, Default)]
pub struct PoolBlocks {
    /// Blocks that the job has.
    pub used: u64,
    /// Blocks that the job has, and kept ones.
    pub reserved: u64,
    /// Peak of `used`.
    pub used_high: u64,
    /// Peak of `reserved`.
    pub reserved_high: u64,
    /// The pool's release threshold.
    pub threshold: u64,
}

/// The work that may still use a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Users {
    Ended,
    /// Before an event.
    Before(CuEvent),
    /// Without an event: freed during a capture.
    Unmarked,
}

/// A block's free: its stream, and the work before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Freed {
    order: StreamOrder,
    of: CuContext,
    users: Users,
}

impl Freed {
    /// A free by which the job reports that no work uses the block.
    pub(super) const UNUSED: Freed = Freed {
        order: StreamOrder::Gone,
        of: 0,
        users: Users::Ended,
    };

    /// A free on a stream, after the work there so far.
    pub(super) fn on(stream: CuStream) -> Result<Freed, CuResult> {
        if capture::any() {
            let of = current_context();
            return Ok(Freed {
                order: StreamOrder::of(stream, of),
                of,
                users: Users::Unmarked,
            });
        }
        in_context_of(stream, || {
            let (event, of) = stream_order::mark(stream)?;
            Ok(Freed {
                order: StreamOrder::of(stream, of),
                of,
                users: if event == 0 {
                    Users::Unmarked
                } else {
                    Users::Before(event)
                },
            })
        })
    }
}

#[derive(Debug)]
struct FreedBlock {
    start: CuDevicePtr,
    block: MovableBlock,
    freed: Freed,
    since: Ns,
}

impl FreedBlock {
    fn pool(&self) -> PoolKey {
        self.block.pool.unwrap_or(NO_POOL)
    }

    /// Whether no work uses it any more.
    fn is_unused(&self) -> bool {
        match self.freed.users {
            Users::Ended => true,
            Users::Unmarked => false,
            // A thread of weft has no context.
            Users::Before(event) if current_context() == 0 => {
                within(self.freed.of, || Ok(stream_order::reached(event))) == Ok(true)
            }
            Users::Before(event) => stream_order::reached(event),
        }
    }

    /// Marks the work before the free, if its stream is still known.
    fn mark(&mut self) {
        let stream = match self.freed.order {
            StreamOrder::Stream(stream) => stream,
            StreamOrder::Legacy(context) if context == current_context() => 0,
            _ => return,
        };
        if self.freed.users == Users::Unmarked
            && !capture::any()
            && let Ok(freed) = Freed::on(stream)
        {
            self.freed = freed;
        }
    }
}

#[derive(Debug)]
struct KeptBlocks {
    all: Vec<FreedBlock>,
    pools: BTreeMap<PoolKey, PoolBlocks>,
}

static KEPT: Mutex<KeptBlocks> = Mutex::new(KeptBlocks {
    all: Vec::new(),
    pools: BTreeMap::new(),
});

/// Held while old blocks go back: a pool that is trimmed has none of another thread's on their way.
static GIVES: Mutex<()> = Mutex::new(());

impl KeptBlocks {
    fn change(&mut self, pool: PoolKey, change: impl FnOnce(&mut PoolBlocks)) {
        if let Some(pool) = self.pools.get_mut(&pool) {
            change(pool);
        }
    }

    /// The place of a block that this stream may use now. With `waits`, the stream waits for it.
    fn find(&mut self, bytes: u64, pool: PoolKey, stream: CuStream, context: CuContext, waits: bool) -> Option<usize> {
        let order = StreamOrder::of(stream, context);
        let fits = |kept: &FreedBlock| kept.pool() == pool && serves(kept.block.room, bytes);
        let own = |kept: &FreedBlock| fits(kept) && kept.freed.order == order;
        if let Some(at) = self.all.iter().rposition(own) {
            return Some(at);
        }
        if capture::any() {
            return None;
        }
        let others = || self.all.iter().enumerate().filter(|(_, kept)| fits(kept));
        if let Some((at, _)) = others().take(MOST_QUERIES).find(|(_, kept)| kept.is_unused()) {
            return Some(at);
        }
        let mut others = others().filter(|_| waits);
        let waited = others.find(|(_, kept)| match kept.freed.users {
            // SAFETY: an event of our own, the job's stream.
            Users::Before(event) => capture::relaxed(|| unsafe { calls::cuStreamWaitEvent(stream, event, 0) }).ok(),
            _ => false,
        });
        waited.map(|(at, _)| at)
    }

    /// Takes out the unused blocks that `which` names.
    fn unused(&mut self, mut which: impl FnMut(&FreedBlock) -> bool) -> Vec<FreedBlock> {
        self.all
            .extract_if(.., |kept| which(kept) && kept.is_unused())
            .collect()
    }
}

/// Whether a block of `room` bytes serves a request.
pub fn serves(room: u64, bytes: u64) -> bool {
    room >= bytes && room - room / WASTE_PARTS <= bytes
}

/// Runs driver calls in the context of a stream.
pub fn in_context_of<T>(stream: CuStream, work: impl FnOnce() -> Result<T, CuResult>) -> Result<T, CuResult> {
    let (current, mut of) = (current_context(), 0);
    if stream <= PER_THREAD_STREAM {
        return if current == 0 {
            Err(CuResult::INVALID_CONTEXT)
        } else {
            work()
        };
    }
    // SAFETY: valid out-parameter; the client's stream.
    match unsafe { calls::cuStreamGetCtx(stream, &mut of) } {
        CuResult::SUCCESS if of == current => work(),
        CuResult::SUCCESS => within(of, work),
        error => Err(error),
    }
}

/// Takes a movable block for a stream-ordered allocation: a kept one, which may be that only after
/// the stream has waited for others (`waits`). `None`: there is none.
pub fn reuse(bytes: u64, pool: PoolKey, stream: CuStream, waits: bool) -> Option<CuDevicePtr> {
    let find = || {
        let (context, mut kept) = (current_context(), lock(&KEPT));
        let found = kept.find(bytes, pool, stream, context, waits);
        let mut block = found.map(|at| kept.all.swap_remove(at)).ok_or(CuResult::NOT_FOUND)?;
        block.block.bytes = bytes;
        block.block.context = context;
        kept.change(pool, |pool| pool.used = pool.used.saturating_add(bytes));
        Ok(block)
    };
    let found = match capture::any() {
        true => find(),
        false => in_context_of(stream, find),
    };
    let FreedBlock {
        start, block, freed, ..
    } = found.ok()?;
    if let Users::Before(event) = freed.users {
        stream_order::unmark((event, freed.of));
    }
    blocks::insert(start, block);
    Some(start)
}

/// Notes a new block of a pool, whose release threshold `threshold` reads if the pool is new.
pub fn taken(pool: PoolKey, bytes: u64, room: u64, threshold: impl FnOnce() -> u64) {
    let mut kept = lock(&KEPT);
    let figures = kept.pools.entry(pool).or_insert_with(|| PoolBlocks {
        threshold: threshold(),
        ..PoolBlocks::default()
    });
    figures.used = figures.used.saturating_add(bytes);
    figures.reserved = figures.reserved.saturating_add(room);
}

/// Figures of a pool that has, or had, blocks.
pub fn figures(pool: PoolKey) -> Option<PoolBlocks> {
    lock(&KEPT).pools.get(&pool).copied()
}

/// Changes the figures of a pool that has, or had, blocks.
pub fn change(pool: PoolKey, change: impl FnOnce(&mut PoolBlocks)) {
    lock(&KEPT).change(pool, change);
}

/// Bytes of all kept blocks.
pub fn bytes() -> u64 {
    lock(&KEPT).all.iter().map(|kept| kept.block.room).sum()
}

/// Contexts whose work may use kept blocks.
pub(super) fn contexts() -> Vec<CuContext> {
    lock(&KEPT)
        .all
        .iter()
        .map(|kept| kept.freed.of)
        .filter(|of| *of != 0)
        .collect()
}

/// Keeps a freed block.
pub(super) fn keep(start: CuDevicePtr, block: MovableBlock, freed: Freed) {
    let mut kept = lock(&KEPT);
    kept.change(block.pool.unwrap_or(NO_POOL), |pool| {
        pool.used = pool.used.saturating_sub(block.bytes)
    });
    let since = clock::now();
    kept.all.push(FreedBlock {
        start,
        block,
        freed,
        since,
    });
    let mut left = match kept.all.len() > MOST_BLOCKS && !capture::any() {
        true => MOST_BLOCKS / 4,
        false => 0,
    };
    let gone = kept.unused(|_| {
        let is_old = left > 0;
        left = left.saturating_sub(1);
        is_old
    });
    drop(kept);
    give_back(gone);
}

/// Gives blocks back that no work uses.
fn give_back(gone: Vec<FreedBlock>) {
    for kept in gone {
        if let Users::Before(event) = kept.freed.users {
            stream_order::unmark((event, kept.freed.of));
        }
        let (at, room, pool) = (kept.block.at, kept.block.room, kept.pool());
        let change = throttle::changing(at);
        if blocks::release(kept.start, &kept.block).is_ok() {
            lock(&KEPT).change(pool, |pool| pool.reserved = pool.reserved.saturating_sub(room));
            throttle::memory_changed(at, -i64::try_from(room).unwrap_or(i64::MAX), 0);
        }
        // Memory that the driver does not take back stays counted, and is not used again.
        drop(change);
    }
}

/// Gives unused blocks back that were freed `age` ago, as far as their pools keep more than
/// `keep` of their figures.
fn give_back_beyond(age: Ns, keep: impl Fn(PoolKey, &PoolBlocks) -> u64) {
    if capture::any() {
        return;
    }
    let _gives = lock(&GIVES);
    let now = clock::now();
    let mut kept = lock(&KEPT);
    kept.all.iter_mut().for_each(FreedBlock::mark);
    let mut beyond: BTreeMap<PoolKey, u64> = BTreeMap::new();
    for (key, pool) in &kept.pools {
        beyond.insert(*key, pool.reserved.saturating_sub(keep(*key, pool)));
    }
    // Each block asks the driver once.
    let goes = |kept: &mut FreedBlock| match beyond.get_mut(&kept.pool()) {
        None => kept.is_unused(),
        Some(beyond) => {
            *beyond > 0 && now.saturating_sub(kept.since) >= age && kept.is_unused() && {
                *beyond = beyond.saturating_sub(kept.block.room);
                true
            }
        }
    };
    let gone = kept.all.extract_if(.., goes).collect();
    drop(kept);
    give_back(gone);
}

/// Gives unused blocks back that were freed `age` ago and exceed the thresholds of their pools.
pub fn tidy(age: Ns) {
    give_back_beyond(age, |_, pool| pool.threshold);
}

/// Gives unused blocks of a pool back until its blocks have no more than `keep` bytes.
pub fn trim(pool: PoolKey, keep: u64) {
    give_back_beyond(0, |key, figures| if key == pool { keep } else { figures.threshold });
}

/// Gives blocks back until there is `enough` room. With `waits`, waits for work before frees if
/// that is necessary.
pub fn make_room(enough: impl Fn() -> bool, waits: bool) {
    let deadline = clock::now() + WAIT_NS;
    while !enough() && !capture::any() {
        let mut kept = lock(&KEPT);
        kept.all.iter_mut().for_each(FreedBlock::mark);
        let unused = kept.all.iter().position(FreedBlock::is_unused);
        let one = unused.map(|at| kept.all.remove(at));
        let waits = waits && kept.all.iter().any(|kept| matches!(kept.freed.users, Users::Before(_)));
        drop(kept);
        match one {
            Some(one) => give_back(vec![one]),
            None if waits && clock::now() < deadline => thread::rest(STEP),
            None => return,
        }
    }
}

/// Gives all blocks back that it can, because the driver has no memory. Returns whether any went
/// back, by this thread or another one.
pub fn give_way() -> bool {
    if matches!(GIVES.try_lock(), Err(TryLockError::WouldBlock)) {
        drop(lock(&GIVES));
        return true;
    }
    let before = bytes();
    if before > 0 {
        make_room(|| bytes() == 0, true);
    }
    bytes() < before
}

/// Gives all blocks back, when all work of the process has ended.
pub(super) fn give_all_back() {
    let gone = std::mem::take(&mut lock(&KEPT).all);
    give_back(gone);
}

/// Hands none of a pool's kept blocks out again.
pub fn retire(pool: PoolKey) {
    let (mut kept, mut room) = (lock(&KEPT), 0u64);
    for kept in kept.all.iter_mut().filter(|kept| kept.pool() == pool) {
        kept.block.pool = Some(NO_POOL);
        room = room.saturating_add(kept.block.room);
    }
    kept.change(pool, |pool| pool.reserved = pool.reserved.saturating_sub(room));
}

/// Ends a pool. Its blocks are given back as they become unused.
pub fn pool_ended(pool: PoolKey) {
    if lock(&KEPT).pools.remove(&pool).is_some() {
        retire(pool);
        blocks::pool_ended(pool);
    }
}

/// Notes that a stream is about to end.
pub(super) fn stream_ending(stream: CuStream) {
    let mut kept = lock(&KEPT);
    let of_it = |kept: &&mut FreedBlock| kept.freed.order == StreamOrder::Stream(stream);
    for kept in kept.all.iter_mut().filter(of_it) {
        kept.mark();
        kept.freed.order = StreamOrder::Gone;
    }
}

/// Blocks that rest while their context may end: no thread queries its events.
#[derive(Debug, Default)]
pub struct RestingBlocks(Vec<FreedBlock>);

/// Notes that a context may be about to end.
pub(super) fn context_ending(context: CuContext) -> RestingBlocks {
    let of_it = |kept: &mut FreedBlock| kept.freed.of == context;
    RestingBlocks(lock(&KEPT).all.extract_if(.., of_it).collect())
}

/// Notes whether that context has ended, with its streams and its work.
pub(super) fn context_left(context: CuContext, RestingBlocks(mut resting): RestingBlocks, ended: bool) {
    if ended {
        stream_order::context_ended(context);
        resting.iter_mut().for_each(|kept| kept.freed = Freed::UNUSED);
    }
    lock(&KEPT).all.extend(resting);
}

/// Forgets all blocks, in a forked child: they are its parent's.
pub(super) fn forget() {
    // A thread of the parent may hold the lock for ever.
    if let Ok(mut kept) = KEPT.try_lock() {
        std::mem::forget(std::mem::take(&mut kept.all));
        kept.pools.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_block_serves_what_leaves_at_most_an_eighth_of_it() {
        assert!(serves(2 * MIB, 2 * MIB) && !serves(2 * MIB, 2 * MIB + 1));
        assert!(serves(16 * MIB, 14 * MIB) && !serves(16 * MIB, 14 * MIB - 1));
        // From there on, whole pieces waste no more.
        for bytes in (14 * MIB..40 * MIB).step_by(4096) {
            assert!(serves(blocks::room(bytes), bytes), "{bytes}");
        }
        assert!(!serves(blocks::room(2 * MIB + 1), 2 * MIB + 1));
    }
}
