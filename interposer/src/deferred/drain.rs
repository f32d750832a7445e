//! Who takes launches out of the queue, and when.
//!
//! One thread of ours does, which sleeps while there is nothing to do; a thread of the job's that
//! needs the queue empty does it if ours is not at work. One at a time ([`ISSUING`]), from the
//! front. A launch counts as in the queue until the driver has taken it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::Builder;
use std::time::Duration;

use rustix::thread::futex::{self, Flags};
use weft_protocol::Ns;

use super::deferred_op::Left;
use super::fifo::{Line, Weight};
use super::{FAILED, STATE, pending};
use crate::client::clock;
use crate::driver::abi::{CuContext, CuEvent, CuResult, CuStream};
use crate::driver::calls;
use crate::driver::capture;
use crate::internal_error::guarded;
use crate::lock::lock;
use crate::{thread, throttle};

/// The issuing thread's stack: a launch and the gate, no more.
const STACK: usize = 256 << 10;

/// Without a word from anybody it looks again after this long, ns.
const NAP: Ns = 10_000_000_000;

/// The process ends: for who does not get it out of the driver's hands within this nobody waits.
const AT_EXIT: Ns = 2_000_000_000;

/// Who waits for the queue looks again after this long.
const LOOK: Ns = 1_000_000;

/// Who has asked about a stream for as long as others wait is held up for this part of that time at
/// most: 31 ms beside a real device.
const SERVED: Ns = 32;

/// CU_EVENT_DISABLE_TIMING.
const WITHOUT_TIME: u32 = 2;

/// Between two looks at whether what was on a stream has ended.
const BETWEEN: Duration = Duration::from_micros(50);

static LINE: Mutex<Line<Left>> = Mutex::new(Line::new());

/// Held by whoever issues.
static ISSUING: Mutex<()> = Mutex::new(());

/// Changes when a launch is put into an empty queue.
static CALLED: AtomicU32 = AtomicU32::new(0);

/// Changes when one has left the queue and somebody waits for that.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// How many have left the queue, ever.
static GONE: AtomicU64 = AtomicU64::new(0);

/// Threads that wait.
static WAITERS: AtomicU32 = AtomicU32::new(0);

/// From when on each of them is in a hurry.
static HURRIES: Mutex<Vec<Ns>> = Mutex::new(Vec::new());

/// The process that has the thread; 0: none.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// The thread that issues ([`thread::mark`]); 0: none.
static ISSUER: AtomicU32 = AtomicU32::new(0);

/// The process ends: the gate is open.
static LEAVING: AtomicBool = AtomicBool::new(false);

/// Nothing is left behind any more: the thread could not be had, or something of ours has failed.
static BROKEN: AtomicBool = AtomicBool::new(false);

fn line() -> MutexGuard<'static, Line<Left>> {
    lock(&LINE)
}

/// Puts a call at the end. False if it has to be made directly.
pub fn push(left: Left) -> bool {
    if BROKEN.load(Ordering::Relaxed) || STARTED.load(Ordering::Acquire) == 0 {
        return false;
    }
    let weight = Weight {
        to: left.to(),
        bytes: left.bytes(),
        work: left.work(),
    };
    let longest = throttle::longest_wait();
    let mut inside = line();
    if inside.is_full(weight, longest) {
        drop(inside);
        wait(longest, Ns::MAX, || !line().is_full(weight, longest));
        inside = line();
        // Another thread was quicker.
        if inside.is_full(weight, longest) {
            return false;
        }
    }
    // Whoever stops the queue empties it next, under this lock.
    if BROKEN.load(Ordering::Relaxed) {
        return false;
    }
    inside.push(weight, left);
    // Under the lock, so that whoever takes it out counts it down after this.
    let before = STATE.fetch_add(1, Ordering::AcqRel) & !FAILED;
    drop(inside);
    if before == 0 {
        CALLED.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&CALLED, Flags::PRIVATE, 1);
    }
    true
}

/// Starts the thread, with the session and not with the first launch that is left behind: by then
/// the job may have shut itself in (seccomp), on just the thread that launches.
pub fn start() {
    if broken() || STARTED.swap(std::process::id(), Ordering::AcqRel) != 0 {
        return;
    }
    let builder = Builder::new().name("weft-queue".into()).stack_size(STACK);
    if thread::spawn(builder, work).is_err() {
        stop();
        log::info!("launches are not left behind at the gate: no thread could be had for them");
    }
}

/// From now on nothing is left behind.
pub fn stop() {
    BROKEN.store(true, Ordering::SeqCst);
}

/// The thread.
fn work() {
    loop {
        let called = CALLED.load(Ordering::Acquire);
        if pending() > 0 {
            let issuing = lock(&ISSUING);
            guarded(|| issue_until(&issuing, || false));
            continue;
        }
        let _ = futex::wait(&CALLED, Flags::PRIVATE, called, Some(&clock::timespec(NAP)));
    }
}

/// A launch on its way out of the queue. However that ends, it counts as in the queue no more.
struct Going(CuContext);

impl Drop for Going {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Whatever it was, it shall not come again. The launch itself is not known to have been
            // made.
            BROKEN.store(true, Ordering::Relaxed);
            fail(self.0, CuResult::UNKNOWN);
        }
        GONE.fetch_add(1, Ordering::SeqCst);
        STATE.fetch_sub(1, Ordering::AcqRel);
        if WAITERS.load(Ordering::SeqCst) > 0 {
            LEFT.fetch_add(1, Ordering::AcqRel);
            let _ = futex::wake(&LEFT, Flags::PRIVATE, i32::MAX as u32);
        }
    }
}

/// A launch that was left behind in a context has failed: the next call that empties the queue says
/// so.
pub(super) fn fail(context: CuContext, error: CuResult) {
    throttle::held_failed();
    let mut inside = line();
    inside.fail(context, error);
    // Under the lock, as it is taken back.
    STATE.fetch_or(FAILED, Ordering::AcqRel);
}

/// Issues until something holds or the queue is empty. Only whoever holds [`ISSUING`].
fn issue_until(_issuing: &MutexGuard<'_, ()>, holds: impl Fn() -> bool) {
    let _this = This::new();
    let mut own = Own::default();
    while !holds() {
        // No longer than this is the line locked.
        let next = line().pop();
        let Some(left) = next else { break };
        let going = Going(left.context());
        own.enter(left.context());
        let result = left.go();
        if !result.ok() {
            fail(left.context(), result);
        }
        drop(going);
    }
}

/// This thread issues.
struct This;

impl This {
    fn new() -> This {
        ISSUER.store(thread::mark(), Ordering::Release);
        This
    }
}

impl Drop for This {
    fn drop(&mut self) {
        ISSUER.store(0, Ordering::Release);
    }
}

/// The context that is current in a thread that issues: at the end it is again what it was.
#[derive(Default)]
struct Own {
    pushed: Option<CuContext>,
}

impl Own {
    fn enter(&mut self, context: CuContext) {
        if self.pushed == Some(context) {
            return;
        }
        self.leave();
        // SAFETY: the context lives: whatever ends it waits for the queue.
        if unsafe { calls::cuCtxPushCurrent_v2(context) }.ok() {
            self.pushed = Some(context);
        }
    }

    fn leave(&mut self) {
        if self.pushed.take().is_some() {
            let mut context = 0;
            // SAFETY: the out-parameter is valid; what was pushed is popped once.
            let _ = unsafe { calls::cuCtxPopCurrent_v2(&mut context) };
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Sees what is in the queue now gone: by this thread if nobody is at it. What other threads put in
/// meanwhile is not waited for: it came at the same moment as the call that waits, or after it.
/// Waits at the gate no longer than a launch of this thread's would; then all of it goes at once.
/// What the driver itself does with a launch has no bound of ours: without weft the job would wait
/// there.
pub fn empty() {
    wait(throttle::longest_wait(), Ns::MAX, all_gone());
}

/// The process ends: all of it goes at once, or what of it the driver takes within [`AT_EXIT`].
pub fn empty_at_once() {
    wait(0, AT_EXIT, all_gone());
}

/// The same for who may hold any lock of the process, and may be within any call: in a signal's
/// handler, say. Our thread does it, or whoever is at it; should that be the very thread that calls
/// this, nobody can, and nothing waits. Nor does a child that shares the parent's memory: the
/// launches are the parent's.
pub fn leave_at_once() {
    let own = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    if STARTED.load(Ordering::Acquire) != own || ISSUER.load(Ordering::Acquire) == thread::mark() {
        return;
    }
    stop();
    LEAVING.store(true, Ordering::SeqCst);
    throttle::hurry_by(0);
    CALLED.fetch_add(1, Ordering::AcqRel);
    let _ = futex::wake(&CALLED, Flags::PRIVATE, 1);
    WAITERS.fetch_add(1, Ordering::SeqCst);
    let begin = clock::now();
    while pending() > 0 && clock::now().saturating_sub(begin) < AT_EXIT {
        let seen = LEFT.load(Ordering::SeqCst);
        if pending() > 0 {
            let _ = futex::wait(&LEFT, Flags::PRIVATE, seen, Some(&clock::timespec(LOOK)));
        }
    }
}

/// Whether all that is in the queue at this moment has left it.
fn all_gone() -> impl Fn() -> bool {
    let pushed = line().pushed();
    move || GONE.load(Ordering::SeqCst) >= pushed
}

/// Helps, and waits until something holds: at the gate for `patience`, and in all no longer than
/// `longest`.
fn wait(patience: Ns, longest: Ns, holds: impl Fn() -> bool) {
    if holds() {
        return;
    }
    let begin = clock::now();
    let _waiter = Waiter::new(begin.saturating_add(patience));
    while !holds() {
        let waited = clock::now().saturating_sub(begin);
        if waited >= longest {
            break;
        }
        match ISSUING.try_lock() {
            Ok(issuing) => issue_until(&issuing, &holds),
            Err(TryLockError::Poisoned(issuing)) => issue_until(&issuing.into_inner(), &holds),
            Err(TryLockError::WouldBlock) => {
                let seen = LEFT.load(Ordering::SeqCst);
                if holds() {
                    break;
                }
                let _ = futex::wait(&LEFT, Flags::PRIVATE, seen, Some(&clock::timespec(LOOK)));
            }
        }
    }
}

/// Somebody waits.
struct Waiter {
    hurry_by: Ns,
}

impl Waiter {
    fn new(hurry_by: Ns) -> Waiter {
        WAITERS.fetch_add(1, Ordering::SeqCst);
        let mut hurries = hurries();
        hurries.push(hurry_by);
        hurry(&hurries);
        Waiter { hurry_by }
    }
}

impl Drop for Waiter {
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

/// The gate opens when the first of those who wait has waited long enough, and shuts again when he
/// has what he waited for.
fn hurry(hurries: &[Ns]) {
    let first = hurries.iter().copied().min().unwrap_or(Ns::MAX);
    throttle::hurry_by(if LEAVING.load(Ordering::SeqCst) { 0 } else { first });
}

/// Nobody is to be told of what failed in a context: it has ended. 0: in any.
pub fn forgive(context: CuContext) {
    if STATE.load(Ordering::Acquire) & FAILED != 0 {
        let mut inside = line();
        if !inside.forgive(context) {
            STATE.fetch_and(!FAILED, Ordering::AcqRel);
        }
    }
}

/// The error of a launch that was left behind, told once.
pub fn failure() -> Option<CuResult> {
    if STATE.load(Ordering::Acquire) & FAILED == 0 {
        return None;
    }
    let mut inside = line();
    let (error, more) = inside.failure();
    if !more {
        STATE.fetch_and(!FAILED, Ordering::AcqRel);
    }
    error
}

/// Whether anything in the queue goes to this stream, or is waited for by it.
pub fn has_work_for(stream: CuStream, context: CuContext) -> bool {
    let inside = line();
    pending() > 0 && inside.goes_to(stream, context)
}

/// Somebody has asked about this stream again and again, for as long as who waits for the queue
/// waits, while others went on putting work in. As for him, all of it goes at once. Then he is told
/// whether that has ended within [`SERVED`] of that time: it is what there was when he asked.
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
    let done = capture::relaxed(|| behind(event, stream, longest / SERVED));
    // SAFETY: an event of our own, given back once.
    let _ = unsafe { calls::cuEventDestroy_v2(event) };
    done
}

/// Whether what is on a stream by now has ended after so long.
fn behind(event: CuEvent, stream: CuStream, within: Ns) -> bool {
    // SAFETY: our event; the client is just asking about this stream itself.
    if !unsafe { calls::cuEventRecord(event, stream) }.ok() {
        return false;
    }
    let begin = clock::now();
    loop {
        // SAFETY: our event.
        if unsafe { calls::cuEventQuery(event) }.ok() {
            return true;
        }
        if clock::now().saturating_sub(begin) >= within {
            return false;
        }
        thread::rest(BETWEEN);
    }
}

/// Whether nothing is left behind any more. A forked child's locks may be held by threads that are
/// not there: it takes none.
pub fn broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

/// In a forked child: the thread is the parent's.
pub fn forget() {
    // Locks may be held by threads that are not here. A child that initialises CUDA anew goes
    // without the queue.
    BROKEN.store(true, Ordering::Relaxed);
}
