// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mover: a thread of weft in the job that moves the job's movable memory to the host and back,
//! on the broker's order, or because the job is idle (`--evict-idle`).
//!
//! * Started with the first memory that moves or that would be large enough; signals blocked, never
//!   joined.
//! * Out: the gate closes, threads come out of their calls, the launch queue and the contexts
//!   become empty, all blocks are copied, then all physical memory is given back.
//! * In: the broker's book grants the bytes, all blocks get new memory at their addresses, their
//!   contents come back, the gate opens.
//! * A step out that fails or overruns leaves the job as it was. A step in that fails leaves the
//!   memory on the host, and is repeated.
//! * Memory that left to make room comes back without an order after `--longest-evicted`, as soon
//!   as the broker's book grants it.
//! * A job whose broker is gone comes back by itself as soon as the device has room.
//! * The driver's checkpoint of an idle job needs an order: the broker samples the device before.
//! * Memory that left because the job was idle, or by an order until its next call, comes back for
//!   that call. If it has no room in time, calls get CUDA's out-of-memory error until it is back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use rustix::thread::futex;
use weft_protocol::Ns;
use weft_protocol::amount::shown;
use weft_protocol::eviction::{EvictionCause, EvictionSlot, MoveBy, Obstacle, Residence, evicts};
use weft_protocol::host;

use super::gate::GateBells;
use super::{blocks, checkpoint, gate, kept};
use crate::client::clock;
use crate::client::link::{self, BrokerLink, MemoryMove};
use crate::driver::abi::CuResult;
use crate::driver::{calls, capture, queries, symbols};
use crate::throttle::DeviceNumber;
use crate::{deferred, internal_error, process, report, thread, throttle};

/// Longest time for which calls wait while the job becomes still, ns.
const STILL_TIMEOUT_NS: Ns = 10_000_000_000;

const SECOND_NS: Ns = 1_000_000_000;

/// Interval of looks at the threads and the queue.
const STEP: Duration = Duration::from_millis(1);

/// Longest sleep, because a new broker may have come.
const NAP: Duration = Duration::from_millis(200);

/// Interval between attempts to return. Each asks the broker for memory.
const RETRY: Duration = Duration::from_secs(1);

/// Longest wait of a call for the memory of its idle job without `WEFT_WAIT`, ns: ten minutes,
/// after which a less important job may move again, and a minute for that move.
const WAKE_TIMEOUT_NS: Ns = 660_000_000_000;

/// Wait of a call before its user gets a line about it, ns.
const UNTOLD_NS: Ns = 1_000_000_000;

/// Longest wait of the process's end for a move.
const END_TIMEOUT_NS: Ns = 20_000_000_000;

/// Absence of a broker after which an evicted job returns by itself, ns. Clients look for a new one
/// once a second.
const ORPHAN_NS: Ns = 5_000_000_000;

/// The host must have this part of the bytes in addition: a tenth.
const SPARE_PARTS: u64 = 10;

/// Most bytes that a job claims in addition before the driver restores it, and the part of the
/// device that they may be: its context may have grown beyond the broker's figure.
const CONTEXT_BYTES: u64 = 512 << 20;
const CONTEXT_PARTS: u64 = 16;

/// CU_STREAM_CAPTURE_MODE_RELAXED.
const RELAXED: u32 = 2;

const STACK: usize = 512 * 1024;

static STARTED: AtomicBool = AtomicBool::new(false);

/// Whether the job handed out its memory in a way that a move would break.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Marks the job's memory as handed out.
pub fn shared() {
    SHARED.store(true, Ordering::Release);
}

/// Starts the mover.
pub fn start(link: &'static BrokerLink) {
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    gate::when(GateBells { late, called });
    let builder = Builder::new().name("weft-mover".into()).stack_size(STACK);
    let spawned = thread::spawn(builder, move || {
        if internal_error::guarded(|| MemoryMover::new(link).run()).is_none() {
            link.lane.eviction.set_obstacle(Some(Obstacle::Internal));
            let (_, away) = blocks::totals();
            if away == 0 {
                gate::open();
            }
        }
    });
    if let Err(why) = spawned {
        log::warn!("cannot start a thread that moves the job's memory, which stays on the device: {why}");
    }
}

/// Forgets the mover in a forked child.
pub fn forget() {
    STARTED.store(false, Ordering::Release);
    SHARED.store(false, Ordering::Release);
    MOVES.store(false, Ordering::Release);
    gate::forget();
    blocks::forget();
}

/// Answers a command's order, or one to make room, after a waiting thread opened the gate. The
/// mover may still wait for the device.
fn late() {
    let Some(slot) = link::only().map(|link| &link.lane.eviction) else {
        return;
    };
    let order = slot.order.load(Ordering::Acquire);
    let obstacle = match EvictionCause::of(order) {
        EvictionCause::Command | EvictionCause::Room => busy(),
        EvictionCause::UntilCall => in_use(busy()),
        EvictionCause::Idle => return,
    };
    // An idle job leaves without an order.
    if !slot.is_answered() {
        slot.set_obstacle(Some(obstacle));
        slot.set_residence(Residence::Device, 0, 0);
        slot.answered.store(order, Ordering::Release);
    }
}

/// Wakes the mover: a call waits for the memory of an idle job.
fn called() {
    if let Some(link) = link::only() {
        let _ = futex::wake(&link.lane.eviction.order, futex::Flags::empty(), i32::MAX as u32);
    }
}

/// Whether a move is under way.
static MOVES: AtomicBool = AtomicBool::new(false);

/// Whether the driver has taken the process off the device: its calls would wait for ever.
static GONE: AtomicBool = AtomicBool::new(false);

/// A turn of the mover, in which it may call the driver.
struct Moving;

impl Moving {
    fn begin() -> Moving {
        MOVES.store(true, Ordering::SeqCst);
        Moving
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        MOVES.store(false, Ordering::SeqCst);
    }
}

/// Lets the calling thread end the process, even if its memory is away. Waits, bounded, for a move
/// under way: the driver ends after this.
pub fn ending() {
    if !STARTED.load(Ordering::Acquire) {
        return;
    }
    let begun = clock::now();
    while MOVES.load(Ordering::SeqCst) && clock::now().saturating_sub(begun) < END_TIMEOUT_NS {
        thread::rest(STEP);
    }
    match GONE.load(Ordering::SeqCst) {
        // The calls of exit handlers end with an error.
        true => gate::refuse(),
        false => drop(gate::pass()),
    }
}

/// The evicted memory.
#[derive(Debug, Clone, Copy)]
struct Away {
    bytes: u64,
    since: Ns,
    /// Bytes to claim before the return: those, and the rest of a declared need.
    claim: u64,
    /// Bytes that must be free in addition.
    spare: u64,
    /// The same if no broker measured its context; 0: one has.
    unmeasured: u64,
    /// Broker that was there when it left.
    attachment: u64,
    /// When the broker was first missed, ns; 0: it is there.
    missed: Ns,
    /// Whether it returns without an order, because a move out failed.
    returns: bool,
    /// Whether an order to return waits, also if that was an earlier broker's.
    ordered: bool,
    /// Why it left.
    cause: EvictionCause,
    /// Whether the user knows that it is to return.
    told: bool,
    /// Whether calls end with an error.
    refuses: bool,
}

struct MemoryMover {
    link: &'static BrokerLink,
    attachment: u64,
    /// The last order of this broker that was carried out or refused.
    done: u32,
    away: Option<Away>,
    /// The job's calls at the last look ([`gate::calls`]), and when a call was last seen, ns.
    calls: u64,
    active: Ns,
}

impl MemoryMover {
    fn new(link: &'static BrokerLink) -> MemoryMover {
        MemoryMover {
            link,
            attachment: link.attachment(),
            done: 0,
            away: None,
            calls: 0,
            active: clock::now(),
        }
    }

    fn slot(&self) -> &'static EvictionSlot {
        &self.link.lane.eviction
    }

    fn run(&mut self) {
        let mut mode = RELAXED;
        // SAFETY: the mode is an int that the call exchanges.
        let _ = unsafe { calls::cuThreadExchangeStreamCaptureMode(&mut mode) };
        let passes = gate::pass_as_mover();
        loop {
            let attachment = self.link.attachment();
            if attachment != self.attachment {
                (self.attachment, self.done) = (attachment, 0);
            }
            let slot = self.slot();
            let order = slot.order.load(Ordering::Acquire);
            self.keep_measurement();
            self.publish();
            let fresh = order != 0 && order != self.done;
            let ordered = match fresh {
                true => !evicts(order),
                false => self.link.is_attached() && self.away.is_some_and(|away| away.ordered),
            };
            let returns = self.is_orphan() || ordered;
            let wakes = !fresh && self.link.is_attached() && self.wanted().is_some();
            let idle = self.away.is_none() && self.is_idle();
            // The broker samples the device's memory before the driver takes the process off.
            let offers = idle && !fresh && checkpoint::counts();
            let after = self.link.settings.evict_idle.unwrap_or(0);
            slot.set_offered(offers.then(|| self.active.saturating_add(after)));
            let mut nap = NAP;
            let moving = Moving::begin();
            match self.away {
                None if fresh && evicts(order) => {
                    let may = passes && !process::life().is_end();
                    let obstacle = match EvictionCause::of(order) {
                        EvictionCause::Idle if may && idle => self.leave_idle(),
                        // It has made a call meanwhile.
                        EvictionCause::Idle => None,
                        // A call opens the gate at once.
                        EvictionCause::UntilCall if may => self.evict(EvictionCause::Idle).err().map(in_use),
                        cause if may => self.evict(cause).err(),
                        _ => Some(Obstacle::Internal),
                    };
                    self.answer(order, obstacle);
                }
                Some(_) if returns => match self.restore() {
                    Ok(()) => self.answer(order, None),
                    // The driver has lost the job.
                    Err(why @ Obstacle::Barred(_)) => self.answer(order, Some(why)),
                    Err(why) => {
                        slot.set_obstacle(Some(why));
                        self.wakes_late(why);
                        if let Some(away) = &mut self.away {
                            away.ordered |= fresh;
                        }
                        nap = RETRY;
                    }
                },
                // It is so already.
                _ if fresh => {
                    if let Some(away) = &mut self.away {
                        away.cause = EvictionCause::of(order).once_away();
                        (away.ordered, away.refuses) = (false, false);
                    }
                    gate::refuse_no_more();
                    self.answer(order, None);
                }
                Some(away) if wakes => nap = self.wake(away),
                Some(_) if !self.link.is_attached() => self.wakes_late(Obstacle::NoBroker),
                None if idle && !checkpoint::counts() && passes && !process::life().is_end() => {
                    let obstacle = self.leave_idle();
                    slot.set_obstacle(obstacle);
                    self.publish();
                }
                _ => {}
            }
            blocks::free_spent();
            // The driver ends with the process.
            if !process::life().is_end() {
                kept::tidy(kept::REST_NS);
            }
            drop(moving);
            let nap = clock::timespec(nap.as_nanos() as Ns);
            let _ = futex::wait(&slot.order, futex::Flags::empty(), order, Some(&nap));
        }
    }

    /// Bytes that can move, wherever they are, and their device.
    fn movable(&self) -> Option<(u64, DeviceNumber)> {
        let at = DeviceNumber::FIRST;
        match (checkpoint::counts(), self.away) {
            (true, Some(away)) => Some((away.bytes, at)),
            (true, None) => Some((throttle::held(at), at)).filter(|(bytes, _)| *bytes > 0),
            (false, _) => blocks::place().map(|at| (blocks::totals().0, at)),
        }
    }

    fn answer(&mut self, order: u32, obstacle: Option<Obstacle>) {
        self.done = order;
        let slot = self.slot();
        slot.set_obstacle(obstacle);
        self.publish();
        // A new broker gave no such order.
        if self.link.attachment() == self.attachment {
            slot.answered.store(order, Ordering::Release);
        }
    }

    /// Keeps the broker's measurement of the context that left, for the next broker, which cannot
    /// measure it.
    fn keep_measurement(&mut self) {
        let (link, attachment) = (self.link, self.attachment);
        let Some(away) = self.away.as_mut().filter(|_| checkpoint::counts()) else {
            return;
        };
        match link.lane.eviction.excess() {
            Some(excess) => (away.spare, away.unmeasured) = (away.spare.max(excess), 0),
            None if away.attachment != attachment => {
                away.spare = away.spare.max(away.unmeasured);
                link.lane.eviction.set_excess(Some(away.spare));
            }
            None => {}
        }
    }

    /// Writes a step of a move into the lane, and into that of a broker that comes meanwhile.
    fn set_moving(&self, residence: Residence, bytes: u64, since: Ns) {
        self.link.set_moving(Some(MemoryMove {
            by: move_by(),
            residence,
            bytes,
            since,
        }));
    }

    /// Writes the state between moves into the lane, which may be a new broker's.
    fn publish(&self) {
        self.link.set_moving(None);
        let bytes = self.movable().map_or(0, |(bytes, _)| bytes);
        let slot = self.slot();
        slot.set_by(move_by());
        // Kept blocks leave with those that the job uses.
        let kept = if bytes > 0 { kept::bytes() } else { 0 };
        slot.movable.store(bytes + kept, Ordering::Relaxed);
        for (word, bytes) in [(&slot.ordered, &super::ORDERED), (&slot.mapped, &super::MAPPED)] {
            word.store(bytes.load(Ordering::Relaxed).max(0).unsigned_abs(), Ordering::Relaxed);
        }
        slot.set_spare(self.away.map_or(0, |away| away.spare));
        slot.set_wanted(self.wanted().or_else(|| self.ordered_back()).unwrap_or(0));
        match self.away {
            Some(away) => {
                slot.set_cause(away.cause);
                slot.set_residence(Residence::Evicted, away.bytes, away.since);
            }
            None if bytes > 0 => slot.set_residence(Residence::Device, 0, 0),
            None => slot.set_residence(Residence::Fixed, 0, 0),
        }
    }

    /// Whether the broker has been gone for [`ORPHAN_NS`]: no other one will order the return.
    fn is_orphan(&mut self) -> bool {
        let attached = self.link.is_attached();
        let Some(away) = &mut self.away else { return false };
        if checkpoint::counts() {
            // No broker grants it memory, and without room the driver would lose it.
            if !attached && !std::mem::replace(&mut away.told, true) {
                let by = match away.cause {
                    EvictionCause::Command if !away.ordered => " by weft resume",
                    _ => "",
                };
                report::always(&format!(
                    "its memory is on the host, and its broker is gone: it comes back{by} once there is a broker"
                ));
            }
            return false;
        }
        let now = clock::now();
        away.missed = match (attached, away.missed) {
            (true, _) => 0,
            (false, 0) => now,
            (false, since) => since,
        };
        away.returns || away.missed != 0 && now.saturating_sub(away.missed) >= ORPHAN_NS
    }

    /// Whether the job has made no call for the time after which its memory is to leave.
    fn is_idle(&mut self) -> bool {
        let Some(after) = self.link.settings.evict_idle else {
            return false;
        };
        let (now, calls) = (clock::now(), gate::calls());
        if calls != self.calls || !gate::is_empty() {
            (self.calls, self.active) = (calls, now);
        }
        self.movable().is_some() && self.link.is_attached() && now.saturating_sub(self.active) >= after
    }

    /// Moves the memory of an idle job to the host. Returns the obstacle. If the job is not idle
    /// after all, there is none, and it is looked at anew.
    fn leave_idle(&mut self) -> Option<Obstacle> {
        let left = self.evict(EvictionCause::Idle);
        self.active = clock::now();
        let works = |why: &Obstacle| matches!(why, Obstacle::Busy(_) | Obstacle::Capture | Obstacle::NothingMovable);
        left.err().filter(|why| !works(why))
    }

    /// Since when the memory is to return without an order: a call of the idle job waits for it, or
    /// it made room for as long as the job allows.
    fn wanted(&self) -> Option<Ns> {
        let away = self.away?;
        match away.cause {
            EvictionCause::Idle | EvictionCause::UntilCall => gate::called(),
            EvictionCause::Room => {
                let longest = self.link.settings.longest_evicted?;
                Some(away.since.saturating_add(longest)).filter(|due| *due <= clock::now())
            }
            EvictionCause::Command => None,
        }
    }

    /// Since when the memory is to return by an order that an earlier broker gave. The broker
    /// itself brings back memory that left to make room.
    fn ordered_back(&self) -> Option<Ns> {
        let waits = |away: &Away| away.ordered && away.cause != EvictionCause::Room;
        self.away.filter(waits).map(|away| away.since)
    }

    /// Brings the memory back without an order. Returns the time until the next attempt.
    fn wake(&mut self, away: Away) -> Duration {
        let begun = clock::now();
        let since = self.wanted().unwrap_or(begun);
        let slot = self.slot();
        slot.set_wanted(since);
        if let Err(why) = self.restore() {
            slot.set_obstacle(Some(why));
            self.wakes_late(why);
            let waited = Duration::from_nanos(clock::now().saturating_sub(begun));
            return RETRY.saturating_sub(waited);
        }
        let now = clock::now();
        if away.cause == EvictionCause::Room {
            slot.set_obstacle(None);
            self.publish();
            return NAP;
        }
        slot.woke_in.store(now.saturating_sub(since), Ordering::Relaxed);
        slot.wakes.fetch_add(1, Ordering::Relaxed);
        slot.set_obstacle(None);
        self.publish();
        report::always(&format!(
            "its memory ({}) was on the host for {} s, until a call needed it; it came back in {:.2} s",
            shown(away.bytes),
            now.saturating_sub(away.since) / SECOND_NS,
            now.saturating_sub(since) as f64 / SECOND_NS as f64
        ));
        NAP
    }

    /// Prints that the memory is to return. Has calls of an idle job end with an error once the
    /// wait is too long. Does nothing if it returns only by order.
    fn wakes_late(&mut self, why: Obstacle) {
        let overdue = self.wanted().is_some();
        if let Some(away) = self
            .away
            .as_mut()
            .filter(|away| overdue && away.cause == EvictionCause::Room)
        {
            if !std::mem::replace(&mut away.told, true) {
                report::always(&format!(
                    "its memory ({}) made room for other jobs for as long as --longest-evicted allows: it comes back as soon as that much is free",
                    shown(away.bytes)
                ));
            }
            return;
        }
        let idle = |away: &&mut Away| away.cause == EvictionCause::Idle;
        let Some((away, since)) = self.away.as_mut().filter(idle).zip(gate::called()) else {
            return;
        };
        let waited = clock::now().saturating_sub(since);
        let longest = self.link.settings.wait.unwrap_or(WAKE_TIMEOUT_NS);
        let bytes = shown(away.bytes);
        if waited >= longest && !away.refuses {
            away.refuses = true;
            gate::refuse();
            report::always(&format!(
                "its memory ({bytes}) could not come back within {} s: calls get CUDA's out-of-memory error until it is back",
                longest / SECOND_NS
            ));
        } else if waited >= UNTOLD_NS && !away.told {
            away.told = true;
            let obstacle = match why {
                Obstacle::Device(_) => "that much is not free on the device".to_string(),
                Obstacle::Driver(error) => format!("the driver refuses it (error {error})"),
                _ => "it cannot come back now".to_string(),
            };
            report::always(&format!(
                "a call waits for its memory ({bytes}), which is on the host: {obstacle} (for at most {} s, then CUDA reports that it is out of memory; WEFT_WAIT sets the time)",
                longest / SECOND_NS
            ));
        }
    }

    fn evict(&mut self, cause: EvictionCause) -> Result<(), Obstacle> {
        let (bytes, at) = self.movable().ok_or(Obstacle::NothingMovable)?;
        let shared = SHARED.load(Ordering::Acquire);
        match checkpoint::counts() {
            true => {
                if let Some(bar) = checkpoint::bar(self.link, at, shared) {
                    return Err(Obstacle::Barred(bar));
                }
            }
            false if shared => return Err(Obstacle::Shared),
            false => {}
        }
        if capture::any() {
            return Err(Obstacle::Capture);
        }
        let needed = bytes.saturating_add(bytes / SPARE_PARTS);
        if host::available() < needed {
            return Err(Obstacle::Host(needed));
        }
        self.set_moving(Residence::Leaves, bytes, 0);
        self.leave(at, cause)
    }

    /// Has the driver take the process off the device. Returns its bytes, and those to be free
    /// beyond them before it returns: once its context is measured, and if it never is.
    fn take_off(&self, at: DeviceNumber) -> Result<(u64, [u64; 2]), Obstacle> {
        // No call changes them any more.
        let bytes = throttle::held(at);
        let known = super::contexts().first().copied();
        let memory = known.and_then(|context| queries::within(context, || Ok(queries::memory())).ok().flatten());
        let (free, total) = memory.ok_or(Obstacle::Internal)?;
        // A change that the broker watches takes no longer than this call.
        let change = throttle::changing(at);
        checkpoint::leave(self.link, bytes)?;
        GONE.store(true, Ordering::SeqCst);
        throttle::memory_changed(at, -signed(bytes), 0);
        // The broker measures the context that has left.
        self.slot().set_excess(None);
        self.set_moving(Residence::Evicted, bytes, clock::now());
        drop(change);
        // At most half of the bytes that were free next to the job: it must be able to return to
        // the same place.
        let unmeasured = CONTEXT_BYTES.min(total / CONTEXT_PARTS);
        let most = self.link.settings.limit().map(|limit| limit.saturating_sub(bytes));
        Ok((
            bytes,
            [unmeasured.min(free / 2), unmeasured].map(|spare| spare.min(most.unwrap_or(u64::MAX))),
        ))
    }

    /// Moves all movable memory from this device to the host.
    fn leave(&mut self, at: DeviceNumber, cause: EvictionCause) -> Result<(), Obstacle> {
        let (deadline, idle) = (clock::now() + STILL_TIMEOUT_NS, cause == EvictionCause::Idle);
        match idle {
            true => gate::close_until_called(deadline),
            false => gate::close(deadline),
        }
        let moved = self.become_still().and_then(|()| {
            if checkpoint::counts() {
                return self.take_off(at);
            }
            kept::give_all_back();
            // The calls that have just ended freed all of it.
            if blocks::place().is_none() {
                return Err(Obstacle::NothingMovable);
            }
            if !blocks::copy_out(|| !idle || gate::called().is_none()).map_err(refused)? {
                return Err(busy());
            }
            // A change that the broker watches takes no longer than this call.
            let change = throttle::changing(at);
            let unmapped = blocks::unmap_all();
            if let Ok(bytes) = unmapped {
                throttle::memory_changed(at, -signed(bytes), 0);
            }
            drop(change);
            unmapped.map(|bytes| (bytes, [0, 0])).map_err(refused)
        });
        if moved.is_err() && blocks::map_all().and_then(|()| blocks::copy_in()).is_ok() {
            match moved {
                // The driver keeps the process: its calls would wait for ever.
                Err(Obstacle::Barred(_)) => {
                    GONE.store(true, Ordering::SeqCst);
                    gate::refuse();
                }
                _ => gate::open(),
            }
            return moved.map(drop);
        }
        // After an error a part is away and does not come back at once.
        let (bytes, [spare, unmeasured]) = moved.unwrap_or_else(|_| (blocks::totals().1, [0, 0]));
        if moved.is_err() {
            throttle::memory_changed(at, -signed(bytes), 0);
        }
        self.away = Some(Away {
            spare,
            unmeasured,
            attachment: self.attachment,
            bytes,
            since: clock::now(),
            claim: throttle::leaves_device(at, bytes),
            missed: 0,
            returns: moved.is_err(),
            ordered: false,
            cause,
            told: false,
            refuses: false,
        });
        moved.map(drop)
    }

    /// Waits until no thread is in a call and no work is left, and keeps the gate closed.
    fn become_still(&self) -> Result<(), Obstacle> {
        // A call that gives something back empties the queue and leaves its errors to others.
        let empty_queue = || internal_error::guarded(|| deferred::before(symbols::index::cuMemFree_v2));
        while !gate::is_empty() {
            if gate::is_late() {
                return Err(busy());
            }
            if deferred::busy() {
                empty_queue();
            }
            thread::rest(STEP);
        }
        empty_queue();
        if capture::any() {
            return Err(Obstacle::Capture);
        }
        for context in super::contexts() {
            // SAFETY: no pointers.
            let still = queries::within(context, || match unsafe { calls::cuCtxSynchronize() } {
                CuResult::SUCCESS => Ok(()),
                error => Err(error),
            });
            still.map_err(refused)?;
        }
        if gate::hold() { Ok(()) } else { Err(busy()) }
    }

    fn restore(&mut self) -> Result<(), Obstacle> {
        let (Some(away), Some((_, at))) = (self.away, self.movable()) else {
            return Err(Obstacle::Internal);
        };
        if checkpoint::counts() {
            return self.put_back(away, at);
        }
        let no_room = Obstacle::Device(away.bytes);
        // Without room for a declared need its own bytes suffice. It asks for more when it needs
        // more.
        let in_time = away.cause == EvictionCause::Idle || self.wanted().is_some();
        let granted = throttle::reserve(at, away.claim).or_else(|| match in_time {
            true => throttle::reserve_in_time(at, away.bytes),
            false => throttle::reserve(at, away.bytes),
        });
        let mut grant = granted.ok_or(no_room)?;
        match blocks::map_all() {
            Ok(()) => {}
            Err(CuResult::OUT_OF_MEMORY) => return Err(no_room),
            Err(error) => return Err(refused(error)),
        }
        throttle::memory_changed(at, signed(away.bytes), grant.claimed());
        grant.use_up();
        drop(grant);
        self.set_moving(Residence::Returns, away.bytes, away.since);
        if let Err(error) = blocks::copy_in() {
            // The copies are still there.
            let change = throttle::changing(at);
            // Blocks that the driver does not unmap stay counted.
            let _ = blocks::unmap_all();
            let (_, bytes) = blocks::totals();
            throttle::memory_changed(at, -signed(bytes), 0);
            drop(change);
            self.away = Some(Away { bytes, ..away });
            return Err(refused(error));
        }
        self.away = None;
        throttle::back_on_device(at);
        gate::open();
        Ok(())
    }
}

impl MemoryMover {
    /// Has the driver bring the process back, once the broker has granted the bytes. Its context is
    /// in the job's share all the while.
    fn put_back(&mut self, away: Away, at: DeviceNumber) -> Result<(), Obstacle> {
        let (slot, begun) = (self.slot(), clock::now());
        // Before the broker has measured the context, the bytes to claim are unknown.
        let waits = || slot.excess().is_none() && self.link.is_attached();
        while waits() && clock::now().saturating_sub(begun) < SECOND_NS {
            thread::rest(STEP);
        }
        self.keep_measurement();
        let away = self.away.unwrap_or(away);
        let (attachment, least) = (self.link.attachment(), away.bytes.saturating_add(away.spare));
        if slot.excess().is_none() {
            return Err(Obstacle::Device(least));
        }
        slot.permit_return(false);
        let reserve = |bytes| throttle::reserve_anew(at, bytes);
        let granted = reserve(away.claim.max(least)).or_else(|| reserve(least));
        let mut grant = granted.ok_or(Obstacle::Device(least))?;
        let quota = self.link.lane.admission_slot.quota.load(Ordering::Acquire);
        // Without a broker the bytes were not granted.
        if !self.link.is_attached() || self.link.attachment() != attachment || quota == 0 {
            return Err(Obstacle::NoBroker);
        }
        // It still has the quota from before it left, and that is not free now.
        if !slot.permits_return() {
            return Err(Obstacle::Device(least));
        }
        self.set_moving(Residence::Returns, away.bytes, away.since);
        // The next broker is to know of the memory, too.
        throttle::memory_changed(at, signed(away.bytes), grant.claimed());
        grant.use_up();
        let back = checkpoint::come_back(self.link, away.bytes);
        self.away = None;
        throttle::back_on_device(at);
        // Before the broker may count the memory again.
        self.set_moving(Residence::Device, away.bytes, 0);
        drop(grant);
        match back {
            Ok(()) => {
                GONE.store(false, Ordering::SeqCst);
                gate::open();
            }
            // Its calls would wait for ever.
            Err(_) => gate::refuse(),
        }
        back
    }
}

/// How this job's memory moves.
fn move_by() -> MoveBy {
    match checkpoint::counts() {
        true => MoveBy::Checkpoint,
        false => MoveBy::Blocks,
    }
}

/// The obstacle of a job that leaves only while no call comes.
fn in_use(why: Obstacle) -> Obstacle {
    match why {
        Obstacle::Busy(_) => Obstacle::Busy(0),
        why => why,
    }
}

fn busy() -> Obstacle {
    Obstacle::Busy(STILL_TIMEOUT_NS / SECOND_NS)
}

fn refused(error: CuResult) -> Obstacle {
    Obstacle::Driver(u64::from(error.0))
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
