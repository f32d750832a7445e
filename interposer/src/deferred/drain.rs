// SPDX-License-Identifier: MIT OR Apache-2.0
//! Issues the launches in the queue.
//!
//! The drain thread issues, and sleeps while the queue is empty. A thread of the job that needs the
//! queue empty issues if the drain thread does not. One thread issues at a time ([`ISSUING`]), from
//! the front. A launch counts as queued until the driver has taken it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::Builder;
use std::time::Duration;

use rustix::thread::futex::{self, Flags};
use weft_protocol::Ns;

use super::deferred_op::DeferredOp;
use super::fifo::{BoundedFifo, Weight};
use super::{FAILED, STATE, pending};
use crate::client::clock;
use crate::driver::abi::{CuContext, CuEvent, CuResult, CuStream};
use crate::driver::calls;
use crate::driver::capture;
use crate::internal_error::guarded;
use crate::lock::lock;
use crate::process::{self, LibraryLife};
use crate::{thread, throttle};

/// Stack of the drain thread, bytes: for a launch and the gate.
const STACK_BYTES: usize = 256 << 10;

/// Longest sleep of the drain thread without a wake-up, ns.
const NAP_NS: Ns = 10_000_000_000;

/// Longest wait for the driver as the process ends, ns.
const EXIT_TIMEOUT_NS: Ns = 2_000_000_000;

/// Time between two looks of a waiting thread, ns.
const POLL_NS: Ns = 1_000_000;

/// Part of the longest wait for which a served poll of a stream may wait: 31 ms with a real device.
const SERVED_RATIO: Ns = 32;

/// CU_EVENT_DISABLE_TIMING.
const WITHOUT_TIME: u32 = 2;

const BETWEEN: Duration = Duration::from_micros(50);

static FIFO: Mutex<BoundedFifo<DeferredOp>> = Mutex::new(BoundedFifo::new());

/// Held by the thread that issues.
static ISSUING: Mutex<()> = Mutex::new(());

/// Futex; changes when a launch enters an empty queue.
static CALLED: AtomicU32 = AtomicU32::new(0);

/// Futex; changes when a launch has left the queue and a thread waits.
static DEPARTURES: AtomicU32 = AtomicU32::new(0);

/// Number of launches that ever left the queue.
static GONE: AtomicU64 = AtomicU64::new(0);

static WAITERS: AtomicU32 = AtomicU32::new(0);

/// For each waiting thread the time from which it opens the gate.
static HURRIES: Mutex<Vec<Ns>> = Mutex::new(Vec::new());

/// The issuing thread ([`thread::mark`]); 0: none.
static ISSUER: AtomicU32 = AtomicU32::new(0);

/// Deferral has ended before the process: no thread could be started, or an internal error.
static BROKEN: AtomicBool = AtomicBool::new(false);

fn fifo() -> MutexGuard<'static, BoundedFifo<DeferredOp>> {
    lock(&FIFO)
}

/// Whether calls may be deferred: the drain thread was started, and the process does not end.
fn is_served() -> bool {
    !broken() && process::life() == LibraryLife::Serving
}

/// Appends a call. False if it must be made directly.
pub fn push(op: DeferredOp) -> bool {
    if !is_served() {
        return false;
    }
    let weight = Weight {
        to: op.to(),
        bytes: op.bytes(),
        work: op.work(),
    };
    let longest = throttle::longest_wait();
    let mut inside = fifo();
    if inside.is_full(weight, longest) {
        drop(inside);
        wait(longest, Ns::MAX, || !fifo().is_full(weight, longest));
        inside = fifo();
        // Another thread was quicker.
        if inside.is_full(weight, longest) {
            return false;
        }
    }
    // A thread that stops the queue empties it next, under this lock.
    if !is_served() {
        return false;
    }
    inside.push(weight, op);
    // Under the lock, so that `pop` counts it down only afterwards.
    let before = STATE.fetch_add(1, Ordering::AcqRel) & !FAILED;
    drop(inside);
    if before == 0 {
        CALLED.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&CALLED, Flags::PRIVATE, 1);
    }
    true
}

/// Starts the drain thread together with the session: later a seccomp sandbox may forbid it.
pub fn start() {
    if broken() {
        return;
    }
    let builder = Builder::new().name("weft-queue".into()).stack_size(STACK_BYTES);
    if thread::spawn(builder, work).is_err() {
        stop();
        log::info!("launches are not deferred at the gate: cannot start a thread for them");
    }
}

/// Ends deferral.
pub fn stop() {
    BROKEN.store(true, Ordering::SeqCst);
}

fn work() {
    loop {
        let called = CALLED.load(Ordering::Acquire);
        if pending() > 0 {
            let issuing = lock(&ISSUING);
            guarded(|| issue_until(&issuing, || false));
            continue;
        }
        let _ = futex::wait(&CALLED, Flags::PRIVATE, called, Some(&clock::timespec(NAP_NS)));
    }
}

/// A launch leaving the queue. Dropping it counts it down, however issuing ended.
struct Going(CuContext);

impl Drop for Going {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Prevents a second panic. Whether the launch was made is unknown.
            BROKEN.store(true, Ordering::Relaxed);
            fail(self.0, CuResult::UNKNOWN);
        }
        GONE.fetch_add(1, Ordering::SeqCst);
        STATE.fetch_sub(1, Ordering::AcqRel);
        if WAITERS.load(Ordering::SeqCst) > 0 {
            DEPARTURES.fetch_add(1, Ordering::AcqRel);
            let _ = futex::wake(&DEPARTURES, Flags::PRIVATE, i32::MAX as u32);
        }
    }
}

/// Notes a failed deferred launch: the next call that empties the queue returns the error.
pub(super) fn fail(context: CuContext, error: CuResult) {
    throttle::deferred_failed();
    let mut inside = fifo();
    inside.fail(context, error);
    // Under the lock, as is its removal.
    STATE.fetch_or(FAILED, Ordering::AcqRel);
}

/// Issues until `holds` or the queue is empty. The caller holds [`ISSUING`].
fn issue_until(_issuing: &MutexGuard<'_, ()>, holds: impl Fn() -> bool) {
    let _this = IssuingThread::new();
    let mut own = PushedContext::default();
    while !holds() {
        // The queue is locked only for this line.
        let next = fifo().pop();
        let Some(op) = next else { break };
        let going = Going(op.context());
        own.enter(op.context());
        let result = op.go();
        if !result.ok() {
            fail(op.context(), result);
        }
        drop(going);
    }
}

/// Marks this thread as issuing.
struct IssuingThread;

impl IssuingThread {
    fn new() -> IssuingThread {
        ISSUER.store(thread::mark(), Ordering::Release);
        IssuingThread
    }
}

impl Drop for IssuingThread {
    fn drop(&mut self) {
        ISSUER.store(0, Ordering::Release);
    }
}

/// The context pushed on an issuing thread; popped at the end.
#[derive(Default)]
struct PushedContext {
    pushed: Option<CuContext>,
}

impl PushedContext {
    fn enter(&mut self, context: CuContext) {
        if self.pushed == Some(context) {
            return;
        }
        self.leave();
        // SAFETY: the context lives: any call that ends it waits for the queue.
        if unsafe { calls::cuCtxPushCurrent_v2(context) }.ok() {
            self.pushed = Some(context);
        }
    }

    fn leave(&mut self) {
        if self.pushed.take().is_some() {
            let mut context = 0;
            // SAFETY: the out-parameter is valid; the pushed context is popped once.
            let _ = unsafe { calls::cuCtxPopCurrent_v2(&mut context) };
        }
    }
}

impl Drop for PushedContext {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Empties the queue of its current launches, and issues them if no other thread does. It does not
/// wait for later launches. The wait at the gate is at most a launch's; then all launches are
/// issued at once. The driver's own time is unbounded, as without weft.
pub fn empty() {
    wait(throttle::longest_wait(), Ns::MAX, all_gone());
}

/// Issues all launches at once as the process ends, within [`EXIT_TIMEOUT_NS`].
pub fn empty_at_once() {
    wait(0, EXIT_TIMEOUT_NS, all_gone());
}

/// Requests that all launches be issued at once, for a caller in any state, such as a signal
/// handler: it takes no lock. The drain thread or the current issuer issues. The issuer itself
/// cannot wait here. The process is [`LibraryLife::Leaving`].
pub fn leave_at_once() {
    if ISSUER.load(Ordering::Acquire) == thread::mark() {
        return;
    }
    throttle::hurry_by(0);
    CALLED.fetch_add(1, Ordering::AcqRel);
    let _ = futex::wake(&CALLED, Flags::PRIVATE, 1);
    WAITERS.fetch_add(1, Ordering::SeqCst);
    let begin = clock::now();
    while pending() > 0 && clock::now().saturating_sub(begin) < EXIT_TIMEOUT_NS {
        let seen = DEPARTURES.load(Ordering::SeqCst);
        if pending() > 0 {
            let _ = futex::wait(&DEPARTURES, Flags::PRIVATE, seen, Some(&clock::timespec(POLL_NS)));
        }
    }
}

/// A condition: all launches that are in the queue now have left it.
fn all_gone() -> impl Fn() -> bool {
    let pushed = fifo().pushed();
    move || GONE.load(Ordering::SeqCst) >= pushed
}

/// Issues and waits until `holds`: at the gate for `patience` ns, in total for at most `longest`
/// ns.
fn wait(patience: Ns, longest: Ns, holds: impl Fn() -> bool) {
    if holds() {
        return;
    }
    let begin = clock::now();
    let _waiter = QueueWaiter::new(begin.saturating_add(patience));
    while !holds() {
        let waited = clock::now().saturating_sub(begin);
        if waited >= longest {
            break;
        }
        match ISSUING.try_lock() {
            Ok(issuing) => issue_until(&issuing, &holds),
            Err(TryLockError::Poisoned(issuing)) => issue_until(&issuing.into_inner(), &holds),
            Err(TryLockError::WouldBlock) => {
                let seen = DEPARTURES.load(Ordering::SeqCst);
                if holds() {
                    break;
                }
                let _ = futex::wait(&DEPARTURES, Flags::PRIVATE, seen, Some(&clock::timespec(POLL_NS)));
            }
        }
    }
}

struct QueueWaiter {
    hurry_by: Ns,
}

impl QueueWaiter {
    fn new(hurry_by: Ns) -> QueueWaiter {
        WAITERS.fetch_add(1, Ordering::SeqCst);
        let mut hurries = hurries();
        hurries.push(hurry_by);
        hurry(&hurries);
        QueueWaiter { hurry_by }
    }
}

impl Drop for QueueWaiter {
    fn drop(&mut self) {
        let mut hurries = hurries();
        if let Some(at) = hurries.iter().position(|other| *other == self.hurry_by) {
            hurries.swap_remove(at);
        }
        hurry(&hurries);
        drop(hurries);
        WAITERS.fetch_sub(1, Ordering::SeqCst);
    }
}

fn hurries() -> MutexGuard<'static, Vec<Ns>> {
    lock(&HURRIES)
}

/// Sets the time at which the gate opens: the earliest deadline of the waiting threads. If no
/// thread waits, the gate shuts again.
fn hurry(hurries: &[Ns]) {
    let first = hurries.iter().copied().min().unwrap_or(Ns::MAX);
    let leaves = process::life() == LibraryLife::Leaving;
    throttle::hurry_by(if leaves { 0 } else { first });
}

/// Drops failures of an ended context; 0: of all contexts.
pub fn forgive(context: CuContext) {
    if STATE.load(Ordering::Acquire) & FAILED != 0 {
        let mut inside = fifo();
        if !inside.forgive(context) {
            STATE.fetch_and(!FAILED, Ordering::AcqRel);
        }
    }
}

/// The error of a deferred launch, returned once.
pub fn failure() -> Option<CuResult> {
    if STATE.load(Ordering::Acquire) & FAILED == 0 {
        return None;
    }
    let mut inside = fifo();
    let (error, more) = inside.failure();
    if !more {
        STATE.fetch_and(!FAILED, Ordering::AcqRel);
    }
    error
}

/// Whether the queue holds work for this stream or a stream that it waits for.
pub fn has_work_for(stream: CuStream, context: CuContext) -> bool {
    let inside = fifo();
    pending() > 0 && inside.goes_to(stream, context)
}

/// Issues all launches at once for a thread that polled a stream for the longest wait. Returns
/// whether that work ended within `longest` / [`SERVED_RATIO`].
pub fn is_done(stream: CuStream, longest: Ns) -> bool {
    wait(0, Ns::MAX, all_gone());
    if capture::any() {
        return false;
    }
    let mut event = 0;
    // SAFETY: the out-parameter is valid.
    if !unsafe { calls::cuEventCreate(&mut event, WITHOUT_TIME) }.ok() {
        return false;
    }
    let done = capture::relaxed(|| behind(event, stream, longest / SERVED_RATIO));
    // SAFETY: an event of weft's own, destroyed once.
    let _ = unsafe { calls::cuEventDestroy_v2(event) };
    done
}

/// Whether a stream's current work ends within `within` ns.
fn behind(event: CuEvent, stream: CuStream, within: Ns) -> bool {
    // SAFETY: weft's event; the client is asking about this stream itself.
    if !unsafe { calls::cuEventRecord(event, stream) }.ok() {
        return false;
    }
    let begin = clock::now();
    loop {
        // SAFETY: weft's event.
        if unsafe { calls::cuEventQuery(event) }.ok() {
            return true;
        }
        if clock::now().saturating_sub(begin) >= within {
            return false;
        }
        thread::rest(BETWEEN);
    }
}

/// Whether deferral has ended. Checked before any lock: in a forked child an absent thread may hold
/// it.
pub fn broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

/// Ends deferral in a forked child: the thread is the parent's.
pub fn forget() {
    // Locks may be held by absent threads. A child that initialises CUDA anew does without the
    // queue.
    BROKEN.store(true, Ordering::Relaxed);
}
