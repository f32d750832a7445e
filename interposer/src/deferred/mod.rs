// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launch queue: launches of a background job that are deferred at a closed gate, so that its
//! host continues.
//!
//! Without the queue the job's thread waits at the gate with one launch, and a gap gets kernels
//! only as fast as the job makes them. With the queue a launch that would wait is copied and its
//! call returns. At an open gate the kernels are issued back to back, by the drain thread
//! ([`drain`]) or a thread of the job.
//!
//! Invariants:
//! * CUDA's order. While the queue is [`busy`], every other call first empties it ([`settle`]).
//!   Exceptions by the symbol table's [`QueueRule`]: sync-free calls, which cannot see the
//!   difference, and attributes set again to their last value. Private driver tables
//!   (`cuGetExportTable`) are handed out unchanged: [`tables`]. Launches of all threads and streams
//!   keep their order.
//! * Only calls expected to succeed are deferred. These are kernels launched before in this shape
//!   and context ([`validated`]) with known parameter layout ([`deferred_launch`]), and, behind
//!   them, fills and device copies within allocations ([`mod@fill`]). The stream is neither
//!   captured nor a thread's own. The error of a failed launch replaces the next call that waits
//!   for the queue, unless that call gives something back.
//! * Nothing is lost. A call that needs the queue empty waits at the gate at most as long as a
//!   launch would; then all launches are issued at once. It does not wait for later launches of
//!   other threads. `exit`, `_exit` and a lost broker issue the rest without waiting; a fatal
//!   signal drops it.
//! * Nothing overtakes the queue unseen. Deferral ends when the job gets a driver function outside
//!   weft's table, or, on newer devices, an unknown private table ([`tables`]).
//! * The queue is bounded in launches, bytes and predicted work ([`fifo`]). A push to a full queue
//!   waits.
//! * A job that is not in the background, or whose gate is open, pays one load per call.
//!
//! The queue is off with `WEFT_QUEUE=off` and with managed memory. Then calls without a hook lead
//! straight to the driver.

mod deferred_launch;
mod deferred_op;
mod drain;
mod fifo;
mod fill;
pub mod tables;
mod validated;

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use weft_protocol::Ns;
use weft_symbols::QueueRule;

pub use self::deferred_launch::ClientLaunch;
pub use self::fill::Fill;
pub use self::validated::AttributeOwner;
use crate::client::clock;
use crate::client::deferral::on;
use crate::driver::abi::{CuContext, CuFunction, CuResult, CuStream};
use crate::driver::symbols::{ENTRIES, real_bound};
use crate::internal_error::guarded;
use crate::kernels::launch::Launch;
use crate::{process, throttle};

/// Number of launches in the queue, including the one that is being issued, and the flag `FAILED`.
/// Every call reads it.
pub static STATE: AtomicU32 = AtomicU32::new(0);

/// Flag in [`STATE`]: a deferred launch failed and the error was not yet returned.
const FAILED: u32 = 1 << 31;

/// Whether a call must check the queue.
#[inline(always)]
pub fn busy() -> bool {
    STATE.load(Ordering::Acquire) != 0
}

fn pending() -> u32 {
    STATE.load(Ordering::Acquire) & !FAILED
}

/// Outcome of a launch that would wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// In the queue: the call returns success.
    Taken,
    /// The job's own thread must make the launch.
    Declined,
    /// An earlier launch failed: the call returns this.
    Failed(CuResult),
}

/// Offers a launch that must wait at the gate, with an empty queue.
///
/// # Safety
/// `call` has the arguments that the client gives the driver.
pub unsafe fn offer(launch: Launch, call: Option<&ClientLaunch>) -> Offered {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { take(launch, call) }).unwrap_or(Offered::Declined)
}

/// Offers a launch while the queue holds other launches: queues it, or empties the queue.
///
/// # Safety
/// As [`offer`].
pub unsafe fn behind(launch: Launch, call: Option<&ClientLaunch>) -> Offered {
    if let Some(error) = drain::failure() {
        return Offered::Failed(error);
    }
    // SAFETY: the caller's promise.
    match guarded(|| unsafe { take(launch, call) }) {
        Some(Offered::Taken) => Offered::Taken,
        _ => settle().map_or(Offered::Declined, Offered::Failed),
    }
}

/// # Safety
/// As [`offer`].
unsafe fn take(launch: Launch, call: Option<&ClientLaunch>) -> Offered {
    let Some(call) = call.filter(|_| on() && !process::is_copy() && throttle::may_defer(launch)) else {
        return Offered::Declined;
    };
    // SAFETY: the caller's promise.
    let Some(copy) = (unsafe { deferred_launch::copy(launch, call) }) else {
        return Offered::Declined;
    };
    if drain::push(deferred_op::DeferredOp::Launch(copy)) {
        throttle::launch_deferred();
        Offered::Taken
    } else {
        say_why_not();
        Offered::Declined
    }
}

/// Offers a fill or device copy while the queue holds launches: queues it, or empties the queue.
/// Returns the answer if the call must not be made.
pub fn fill(fill: Option<Fill>) -> Option<CuResult> {
    if let Some(error) = drain::failure() {
        return Some(error);
    }
    let taken = guarded(|| {
        let launch = fill.as_ref().map(Fill::launch);
        let may = on() && !process::is_copy() && launch.is_some_and(throttle::may_defer);
        let fill = fill.filter(|_| may)?.ready()?;
        drain::push(deferred_op::DeferredOp::Fill(fill)).then(throttle::launch_deferred)
    });
    match taken {
        Some(Some(())) => Some(CuResult::SUCCESS),
        _ => settle(),
    }
}

/// Learns a direct launch that succeeded: the next launch like it may be deferred.
pub fn learn(launch: &ClientLaunch) {
    if on() {
        // SAFETY: the client gave this to the driver, which took it.
        guarded(|| unsafe { deferred_launch::learn(launch) });
    }
}

/// Empties the queue before an attribute changes. Many programs set its current value again before
/// each launch; that does not empty the queue. Returns the answer if the call must not be made.
#[inline]
pub fn before_attribute(named: AttributeOwner, attribute: u32, value: i32) -> Option<CuResult> {
    if busy() { changes(named, attribute, value) } else { None }
}

#[cold]
fn changes(named: AttributeOwner, attribute: u32, value: i32) -> Option<CuResult> {
    match guarded(|| validated::is_set(named, attribute, value)) {
        Some(true) => None,
        _ => settle(),
    }
}

/// Notes an attribute's new value. `here`: a kernel's function in the current context.
pub fn attribute_set(named: AttributeOwner, attribute: u32, value: i32, here: Option<CuFunction>) {
    if !drain::broken() {
        guarded(|| validated::changed(named, attribute, value, here));
    }
}

/// Forgets a stream that is about to be destroyed.
pub fn stream_ending(stream: CuStream) {
    if on() && !drain::broken() {
        guarded(|| validated::stream_ending(stream));
    }
}

/// Forgets an ended context and its failures. 0: an unknown context.
pub fn context_ended(context: CuContext) {
    if drain::broken() {
        return;
    }
    validated::context_ended(context);
    drain::forgive(context);
}

/// Forgets all validated launches, after code was unloaded or a limit changed.
pub fn forget_known() {
    validated::clear();
}

/// Empties the queue. A returned error of a deferred launch replaces the caller's call.
#[cold]
pub fn settle() -> Option<CuResult> {
    empty();
    drain::failure()
}

/// Empties the queue. A copied process has its parent's queue, which it does not empty.
fn empty() {
    match process::is_copy() {
        true => forget(),
        false => drop(guarded(drain::empty)),
    }
}

/// Empties the queue before a hooked call of symbol `at`. An error replaces the call.
#[cold]
#[inline(never)]
pub fn before(at: usize) -> Option<CuResult> {
    match ENTRIES.get(at)?.queue {
        QueueRule::Empties | QueueRule::Deferrable => settle(),
        QueueRule::GivesBack => {
            empty();
            None
        }
        QueueRule::Itself | QueueRule::SyncFree => None,
    }
}

/// Answers whether a stream's work has ended: "not ready" while the queue holds some of it, `None`
/// if the queue holds none. After [`throttle::longest_wait`] of polling all launches are issued, as
/// for a waiting call. The answer is success if that work ends soon, despite later launches of
/// other threads.
#[cold]
pub fn answer_about(stream: CuStream) -> Option<CuResult> {
    guarded(|| {
        let context = deferred_launch::current().unwrap_or(0);
        if process::is_copy() || !drain::has_work_for(stream, context) {
            return None;
        }
        let (now, longest) = (clock::now(), throttle::longest_wait());
        let asked = ASKED.get();
        let again = asked.stream == stream && now.saturating_sub(asked.last) < longest;
        let first = if again { asked.first } else { now };
        let served = now.saturating_sub(first) >= longest;
        let done = served && drain::is_done(stream, longest);
        let last = clock::now();
        ASKED.set(NotReadyAnswer {
            stream,
            first: if served { last } else { first },
            last,
        });
        Some(if done { CuResult::SUCCESS } else { CuResult::NOT_READY })
    })
    .unwrap_or(Some(CuResult::NOT_READY))
}

/// The stream of a thread's last "not ready" answer; times of the first and last such query.
#[derive(Debug, Clone, Copy)]
struct NotReadyAnswer {
    stream: CuStream,
    first: Ns,
    last: Ns,
}

thread_local! {
    // No destructor: usable until the thread ends.
    static ANSWER: Cell<u32> = const { Cell::new(0) };
    static ASKED: Cell<NotReadyAnswer> = const {
        Cell::new(NotReadyAnswer {
            stream: 0,
            first: 0,
            last: 0,
        })
    };
}

/// Answers a call that is replaced by an error.
extern "C" fn answer() -> u32 {
    ANSWER.get()
}

/// Target of a call without a hook: the driver, or the error of a deferred launch. Called by
/// `symbols::queue_gate`.
pub extern "C" fn gate(at: u32) -> *const c_void {
    let at = at as usize;
    match before(at) {
        None => real_bound(at).cast_const().cast(),
        Some(error) => failed(error).cast(),
    }
}

/// Target of a call without a hook: the driver, or the error of a deferred launch. Called by
/// `exports::queue_gate`.
pub fn failed(error: CuResult) -> *const () {
    ANSWER.set(error.0);
    answer as *const ()
}

/// Starts the queue together with the session. Later a sandbox may kill the job for a new thread.
pub fn start() {
    if on() {
        guarded(drain::start);
    }
}

/// Issues the rest as the process ends. Later launches of exit handlers bypass the queue.
pub fn at_exit() {
    if busy() {
        guarded(drain::empty_at_once);
    }
}

/// Issues the rest without a lock, because `_exit` may be called anywhere.
pub fn at_once() {
    if pending() > 0 {
        drain::leave_at_once();
    }
}

/// Ends deferral: calls of this driver function outside weft's table could overtake the queue.
pub fn passed_by(name: &str) {
    if on() && !drain::broken() {
        give_up(GiveUpReason::Newer(name.to_owned()));
    }
}

#[derive(Debug)]
enum GiveUpReason {
    /// Calls of this function bypass weft.
    Newer(String),
    /// Calls through a private table may bypass weft.
    Table,
}

/// Empties the queue and ends deferral.
fn give_up(why: GiveUpReason) {
    drain::stop();
    guarded(|| {
        drain::empty();
        GIVEN_UP.get_or_init(|| why);
    });
}

static GIVEN_UP: OnceLock<GiveUpReason> = OnceLock::new();

/// Logs once why a launch is not deferred. Private tables are logged only at info: on some devices
/// nearly every job has them.
#[cold]
fn say_why_not() {
    static SAID: Once = Once::new();
    if let Some(why) = GIVEN_UP.get() {
        SAID.call_once(|| match why {
            GiveUpReason::Newer(name) => log::warn!(
                "launches are not deferred at the gate: {name} is newer than this weft, and its calls would overtake them"
            ),
            GiveUpReason::Table => log::info!(
                "launches are not deferred at the gate: this device is newer than those that weft was tried with, and calls through a private table of its driver might overtake them"
            ),
        });
    }
}

/// Forgets the queue in a forked child.
pub fn forget() {
    STATE.store(0, Ordering::Release);
    drain::forget();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::symbols;

    #[test]
    fn everything_waits_but_what_is_harmless_and_what_sees_to_it_itself() {
        let waiting = |name: &std::ffi::CStr| ENTRIES[symbols::find(name).unwrap()].queue.waits();
        for name in [
            c"cuMemFree_v2",
            c"cuMemcpyHtoDAsync_v2",
            c"cuLaunchHostFunc",
            c"cuLaunchCooperativeKernel",
            c"cuLaunchCooperativeKernelMultiDevice",
            c"cuStreamSynchronize",
            c"cuCtxSynchronize",
            c"cuEventRecord",
            c"cuStreamWaitEvent_ptsz",
            c"cuStreamBeginCapture_v2",
            c"cuModuleUnload",
            c"cuStreamDestroy_v2",
            c"cuCtxDestroy_v2",
            c"cuDevicePrimaryCtxReset_v2",
            c"cuFuncSetCacheConfig",
            c"cuMemFreeAsync",
        ] {
            assert!(waiting(name), "{name:?}");
        }
        for name in [
            c"cuLaunchKernel",
            c"cuGraphLaunch_ptsz",
            c"cuFuncSetAttribute",
            c"cuCtxGetCurrent",
            c"cuEventQuery",
        ] {
            assert!(!waiting(name), "{name:?}");
        }
    }

    #[test]
    fn a_failure_is_told_by_a_call_that_can_be_refused_and_ends_with_its_context() {
        let at = |name: &std::ffi::CStr| symbols::find(name).unwrap();
        let (gives_back, may_fail, harmless) =
            (at(c"cuMemFree_v2"), at(c"cuMemcpyHtoDAsync_v2"), at(c"cuCtxGetCurrent"));
        let (here, elsewhere) = (0x1000, 0x2000);
        drain::fail(here, CuResult(719));
        assert!(busy());
        assert_eq!(before(gives_back), None, "what is given back is given back");
        assert_eq!(before(harmless), None);
        assert_eq!(before(may_fail), Some(CuResult(719)));
        assert_eq!(before(may_fail), None, "it is told once");
        assert!(!busy());
        drain::fail(here, CuResult(719));
        context_ended(here);
        assert_eq!(before(may_fail), None, "a new context knows nothing of it");
        assert!(!busy());
        drain::fail(here, CuResult(719));
        drain::fail(here, CuResult(700));
        drain::fail(elsewhere, CuResult(701));
        context_ended(here);
        assert!(busy(), "the other context lives");
        assert_eq!(before(may_fail), Some(CuResult(701)));
        assert!(!busy());
        drain::fail(here, CuResult(719));
        drain::fail(elsewhere, CuResult(701));
        assert_eq!(before(may_fail), Some(CuResult(719)), "the first one first");
        assert_eq!(before(may_fail), Some(CuResult(701)));
        drain::fail(elsewhere, CuResult(701));
        context_ended(0);
        assert!(!busy(), "nobody knows which one ended");
    }

    #[test]
    fn what_ends_something_is_told_from_what_does_not() {
        let ends = |name: &std::ffi::CStr| ENTRIES[symbols::find(name).unwrap()].queue == QueueRule::GivesBack;
        for name in [
            c"cuMemFree_v2",
            c"cuMemFreeAsync_ptsz",
            c"cuMemFreeHost",
            c"cuMemHostUnregister",
            c"cuEventDestroy_v2",
            c"cuStreamDestroy_v2",
            c"cuModuleUnload",
            c"cuLibraryUnload",
            c"cuCtxDestroy_v2",
            c"cuCtxDetach",
            c"cuDevicePrimaryCtxRelease_v2",
            c"cuDevicePrimaryCtxReset_v2",
        ] {
            assert!(ends(name), "{name:?}");
        }
        for name in [
            c"cuStreamSynchronize",
            c"cuMemcpyDtoH_v2",
            c"cuMemAlloc_v2",
            c"cuEventRecord",
        ] {
            assert!(!ends(name), "{name:?}");
        }
    }
}
