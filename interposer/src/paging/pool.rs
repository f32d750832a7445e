//! Stream-ordered allocation on managed memory.
//!
//! The driver has none before CUDA 13, and freeing managed memory waits for the whole context. So
//! freed blocks are kept: for the same stream at once, whose order makes that right. Other streams
//! get them once an event behind the free was reached. A stream that is gone equals no other: its
//! work may still run when its handle, or its thread's place, is reused. Kept blocks are not the
//! job's (its `cuMemGetInfo` omits them). They go back when the job asks for more than there is,
//! trims a pool, or frees more than `MOST`. The driver's free waits for a block's users, so a block
//! without an event is safe too.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_protocol::control::ToBroker;

use super::backing::{self, Taken};
use super::ranges::{Origin, Range};
use super::{capacity, ranges};
use crate::driver::abi::{CuContext, CuDevicePtr, CuEvent, CuResult, CuStream};
use crate::driver::calls;
use crate::driver::capture;
use crate::driver::stream::PER_THREAD_STREAM;
use crate::thread;

/// Blocks kept. CTranslate2 uses some thirty at a time (28 pairs a token).
const MOST: usize = 1024;

/// A block serves a request of `bytes` if `bytes <= room` and
/// `room - room / WASTE <= max(bytes, SMALL)`.
const WASTE: u64 = 4;
const SMALL: u64 = 512;

/// CU_EVENT_DISABLE_TIMING.
const WITHOUT_TIME: u32 = 2;

/// A block freed in stream order.
#[derive(Debug, Clone, Copy)]
pub struct Spare {
    /// Address.
    pub at: CuDevicePtr,
    /// The range that it was.
    pub range: Range,
    /// Where it was freed.
    line: Line,
    /// Event behind the free; 0 = none.
    event: CuEvent,
    /// Context of the event.
    of: CuContext,
}

/// Device work that runs in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// A stream with a handle of its own.
    Stream(CuStream),
    /// A context's legacy default stream.
    Legacy(CuContext),
    /// A thread's default stream in a context. The number is never reused.
    Thread(u64, CuContext),
    /// A stream that is gone or unknown.
    Gone,
}

impl Line {
    fn of(stream: CuStream, context: CuContext) -> Line {
        match stream {
            0 | LEGACY => Line::Legacy(context),
            PER_THREAD_STREAM => Line::Thread(thread::number(), context),
            stream => Line::Stream(stream),
        }
    }
}

/// CU_STREAM_LEGACY.
const LEGACY: CuStream = 1;

/// Usage of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes now.
    pub now: u64,
    /// Peak, bytes.
    pub high: u64,
}

#[derive(Default)]
struct Inside {
    spare: Vec<Spare>,
    events: Vec<(CuContext, CuEvent)>,
    used: HashMap<usize, Used>,
    /// Pools for sharing or host memory, left to the driver.
    foreign: Vec<usize>,
}

static INSIDE: Mutex<Option<Inside>> = Mutex::new(None);

fn locked() -> MutexGuard<'static, Option<Inside>> {
    INSIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn inside<T>(body: impl FnOnce(&mut Inside) -> T) -> T {
    body(locked().get_or_insert_default())
}

/// Takes memory in stream order. `pool` 0 is the device's own.
pub fn take(bytes: u64, pool: usize, stream: CuStream) -> Taken {
    if bytes == 0 || is_foreign(pool) {
        return Taken::Plain;
    }
    let origin = Origin::Pool(pool);
    if let Some(spare) = reuse(bytes, stream) {
        let range = Range {
            bytes,
            origin,
            ..spare.range
        };
        if spare.event != 0 {
            keep_event(spare.of, spare.event);
        }
        // Taken again after its free; fails only if another thread took the room.
        if capacity::take(range.device, range.room) {
            ranges::add(spare.at, range);
            taken(&range);
            return Taken::At(spare.at);
        }
        // SAFETY: no other code holds the block.
        let _ = unsafe { calls::cuMemFree_v2(spare.at) };
        super::tell(ToBroker::Unbacked { start: spare.at });
        return Taken::Refused(CuResult::OUT_OF_MEMORY);
    }
    let result = backing::take(bytes, origin);
    if let Taken::At(at) = result
        && let Some(range) = ranges::at(at)
    {
        taken(&range);
    }
    result
}

/// A fitting block that this stream may use now.
fn reuse(bytes: u64, stream: CuStream) -> Option<Spare> {
    let (device, context) = backing::here()?;
    let line = Line::of(stream, context);
    let fits = |spare: &Spare| {
        let room = spare.range.room;
        spare.range.device == device
            && spare.range.context == context
            && room >= bytes
            && room - room / WASTE <= bytes.max(SMALL)
    };
    let own = |inside: &mut Inside| {
        let at = inside
            .spare
            .iter()
            .rposition(|spare| spare.line == line && fits(spare))?;
        Some(inside.spare.swap_remove(at))
    };
    if let Some(spare) = inside(own) {
        return Some(spare);
    }
    if capture::any() {
        return None;
    }
    // Another stream's block leaves the list first: no lock is held over a driver call.
    let other = |inside: &mut Inside| {
        let at = inside.spare.iter().position(|spare| spare.event != 0 && fits(spare))?;
        Some(inside.spare.remove(at))
    };
    let spare = inside(other)?;
    // A capture may begin meanwhile.
    // SAFETY: an event of our own.
    if capture::relaxed(|| unsafe { calls::cuEventQuery(spare.event) }).ok() {
        return Some(spare);
    }
    inside(|inside| inside.spare.push(spare));
    None
}

/// Frees memory in stream order. `None` if weft does not hold it.
pub fn give_back(at: CuDevicePtr, stream: CuStream) -> Option<CuResult> {
    ranges::at(at)?;
    let (event, of) = match mark(stream) {
        Ok(marked) => marked,
        // The stream is invalid: the job gets the error and keeps its memory.
        Err(error) => return Some(error),
    };
    // Another thread freed it meanwhile: a double free, answered as the driver does.
    let Some(range) = ranges::remove(at) else {
        return Some(CuResult::INVALID_VALUE);
    };
    freed(&range);
    capacity::given_back(range.device, range.room);
    super::tell(ToBroker::Resting { start: at });
    let spare = Spare {
        at,
        range,
        line: Line::of(stream, of),
        event,
        of,
    };
    let full = inside(|inside| {
        inside.spare.push(spare);
        inside.spare.len() > MOST
    });
    if full && !capture::any() {
        drop_blocks(|inside| inside.spare.drain(..MOST / 4).collect());
    }
    Some(CuResult::SUCCESS)
}

/// An event behind the stream's work (0: none possible), and the thread's context, which owns it.
fn mark(stream: CuStream) -> Result<(CuEvent, CuContext), CuResult> {
    let context = backing::here().map_or(0, |(_, context)| context);
    if capture::any() || context == 0 {
        return Ok((0, context));
    }
    let kept = |inside: &mut Inside| {
        let at = inside.events.iter().position(|(of, _)| *of == context)?;
        Some(inside.events.swap_remove(at).1)
    };
    let mut event = inside(kept).unwrap_or(0);
    if event == 0 {
        // SAFETY: the out-parameter is valid.
        if !unsafe { calls::cuEventCreate(&mut event, WITHOUT_TIME) }.ok() {
            return Ok((0, context));
        }
    }
    // SAFETY: our event, the job's stream.
    let result = capture::relaxed(|| unsafe { calls::cuEventRecord(event, stream) });
    if result.ok() {
        return Ok((event, context));
    }
    keep_event(context, event);
    // A stream of another context is no error of the job's.
    // SAFETY: as above.
    let known = capture::relaxed(|| unsafe { calls::cuStreamQuery(stream) });
    match known {
        CuResult::SUCCESS | CuResult::NOT_READY => Ok((0, context)),
        _ => Err(result),
    }
}

fn keep_event(context: CuContext, event: CuEvent) {
    inside(|inside| inside.events.push((context, event)));
}

/// Gives a device's kept blocks back to the driver. False if none, or during a capture.
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

fn drop_blocks(which: impl FnOnce(&mut Inside) -> Vec<Spare>) -> bool {
    let blocks = inside(which);
    for block in &blocks {
        if block.event != 0 {
            keep_event(block.of, block.event);
        }
        // The driver waits for the block's users.
        // SAFETY: no other code holds the block.
        let _ = capture::relaxed(|| unsafe { calls::cuMemFree_v2(block.at) });
        super::tell(ToBroker::Unbacked { start: block.at });
    }
    !blocks.is_empty()
}

/// Takes out the kept blocks within a range. No allocation gets them until they are put back.
pub fn borrow(start: u64, end: u64) -> Vec<Spare> {
    inside(|inside| {
        let within = |spare: &Spare| start <= spare.at && spare.at.saturating_add(spare.range.room) <= end;
        let (out, rest) = std::mem::take(&mut inside.spare).into_iter().partition(within);
        inside.spare = rest;
        out
    })
}

/// Parts of kept blocks that lie in a range.
pub fn within(start: u64, end: u64) -> Vec<(std::ops::Range<u64>, Range)> {
    let part = |spare: &Spare| {
        let part = start.max(spare.at)..end.min(spare.at.saturating_add(spare.range.room));
        (!part.is_empty()).then_some((part, spare.range))
    };
    inside(|inside| inside.spare.iter().filter_map(part).collect())
}

/// Returns borrowed blocks.
pub fn put_back(blocks: Vec<Spare>) {
    inside(|inside| inside.spare.extend(blocks));
}

/// Bytes kept on a device.
pub fn kept(device: i32) -> u64 {
    inside(|inside| {
        let of_it = inside.spare.iter().filter(|spare| spare.range.device == device);
        of_it.fold(0, |sum: u64, spare| sum.saturating_add(spare.range.room))
    })
}

/// Handles a stream's end: its work may still run when the handle is reused.
pub fn stream_ending(stream: CuStream) {
    inside(|inside| {
        for spare in &mut inside.spare {
            if spare.line == Line::Stream(stream) {
                spare.line = Line::Gone;
            }
        }
    });
}

/// Handles an ended context; 0 = an unknown one.
pub fn context_ended(context: CuContext) {
    let its = |of: CuContext| context == 0 || of == context;
    inside(|inside| {
        inside.events.retain(|(of, _)| !its(*of));
        for spare in &mut inside.spare {
            // Without an event a block may belong to any context.
            if its(spare.of) || spare.event == 0 {
                spare.line = Line::Gone;
            }
            if its(spare.of) {
                spare.event = 0;
            }
        }
    });
}

/// Forgets the blocks that went with an ended context.
pub fn forget_gone() {
    let blocks = inside(|inside| std::mem::take(&mut inside.spare));
    let living: Vec<Spare> = blocks.into_iter().filter(|spare| backing::lives(spare.at)).collect();
    inside(|inside| inside.spare.extend(living));
}

/// Notes a pool for sharing or host memory.
pub fn foreign(pool: usize) {
    inside(|inside| inside.foreign.push(pool));
}

fn is_foreign(pool: usize) -> bool {
    inside(|inside| inside.foreign.contains(&pool))
}

/// Number of the default pool; `None` if a foreign pool is the default.
pub fn default_of_here() -> Option<usize> {
    if inside(|inside| inside.foreign.is_empty()) {
        return Some(0);
    }
    let (device, _) = backing::here()?;
    let mut pool = 0;
    // SAFETY: the out-parameter is valid.
    let asked = unsafe { calls::cuDeviceGetMemPool(&mut pool, device) };
    (!asked.ok() || !is_foreign(pool)).then_some(0)
}

/// Forgets an ended pool.
pub fn ended(pool: usize) {
    inside(|inside| {
        inside.foreign.retain(|other| *other != pool);
        inside.used.remove(&pool);
    });
}

/// Counts a block taken from a pool.
pub fn taken(range: &Range) {
    if let Origin::Pool(pool) = range.origin {
        inside(|inside| {
            let used = inside.used.entry(pool).or_default();
            used.now = used.now.saturating_add(range.bytes);
            used.high = used.high.max(used.now);
        });
    }
}

/// Counts a block freed to a pool.
pub fn freed(range: &Range) {
    if let Origin::Pool(pool) = range.origin {
        inside(|inside| {
            let used = inside.used.entry(pool).or_default();
            used.now = used.now.saturating_sub(range.bytes);
        });
    }
}

/// Usage of a pool.
pub fn used(pool: usize) -> Used {
    inside(|inside| inside.used.get(&pool).copied().unwrap_or_default())
}

/// Restarts a pool's peak from its present usage.
pub fn reset_high(pool: usize) {
    inside(|inside| {
        let used = inside.used.entry(pool).or_default();
        used.high = used.now;
    });
}
