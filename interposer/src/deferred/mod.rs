//! The launch queue: what a background job's host leaves behind at a closed gate, so that it can go
//! on.
//!
//! Without it a background job's thread stands at the gate with one launch, and when a gap opens
//! the kernels come one by one, as fast as the job's own code makes them. With it a plain launch
//! that would have to wait is copied here and the call returns; the kernels then go to the device
//! one behind the other when the gate lets them, by a thread of ours ([`drain`]) or by a thread of
//! the job's that comes by.
//!
//! What holds:
//! * The order of CUDA. While anything is in the queue ([`busy`]), every other call of the process,
//!   whatever it does, first sees it emptied ([`settle`]), except those of a short list that cannot
//!   tell the difference ([`harmless`]), and attributes set again to what they were set to last.
//!   Launches of any thread and stream go in the order in which they were made.
//! * Only what can be expected to succeed is left behind: a kernel that this process has launched
//!   before in this shape, to a stream of its context, with nothing changed since that could make
//!   it fail ([`validated`]), with parameters whose layout the driver told ([`deferred_launch`]),
//!   and behind one a fill or a copy on the device within allocations that there are ([`fill`]); to
//!   a stream that is no thread's own, outside captures. Should it fail all the same, the next call
//!   that waits for the queue returns its error; not one that gives something back.
//! * Nothing is lost. Whoever needs the queue empty waits at the gate as he would have with his own
//!   launch, and no longer; then all of it goes at once. What others put in meanwhile he does not
//!   wait for. A job that ends by itself (`exit`, `_exit`), and one whose broker dies, issues what
//!   is left without waiting. What a signal kills takes it along.
//! * Nothing goes past it unseen. Where the job is given a function of the driver's that weft's
//!   table does not know, nothing is left behind any more; nor, on newer devices, where it is given
//!   one of the driver's private tables of which nobody knows what is in it ([`tables`]).
//! * The queue is bounded, in launches, bytes and predicted work ([`fifo`]). Who finds it full
//!   waits until it is not.
//! * A job that is no background job, or whose gate is open, pays one load a call.
//!
//! `WEFT_QUEUE=off` turns it off, and it is off where memory is managed. Then nothing is ever left
//! behind, and calls without a hook lead straight to the driver.

mod deferred_launch;
mod deferred_op;
mod drain;
mod fifo;
mod fill;
mod sync_free;
pub mod tables;
mod validated;

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use weft_protocol::Ns;

pub use self::deferred_launch::Launch;
pub use self::fill::Fill;
pub use self::sync_free::harmless;
pub use self::validated::Named;
use crate::client::clock;
use crate::client::deferral::on;
use crate::driver::abi::{CuContext, CuFunction, CuResult, CuStream};
use crate::driver::symbols::{ENTRIES, real_bound};
use crate::internal_error::guarded;
use crate::kernels::launch::LaunchInfo;
use crate::throttle;

/// How many launches are in the queue, the one that is just being issued included; and whether one
/// of them has failed. Looked at by every call.
pub static STATE: AtomicU32 = AtomicU32::new(0);

/// Set in [`STATE`] when a launch that was left behind has failed and nobody was told.
const FAILED: u32 = 1 << 31;

/// Whether a call has to look at the queue.
#[inline(always)]
pub fn busy() -> bool {
    STATE.load(Ordering::Acquire) != 0
}

/// Launches in the queue.
fn pending() -> u32 {
    STATE.load(Ordering::Acquire) & !FAILED
}

/// What became of a launch that would have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// It is in the queue: the call returns success.
    Taken,
    /// It has to be made by the job's own thread.
    Declined,
    /// An earlier one has failed: the call returns this.
    Failed(CuResult),
}

/// A launch has to wait at the gate, and nothing is before it.
///
/// # Safety
/// `launch` is what the client gives the driver.
pub unsafe fn offer(info: &LaunchInfo, launch: Option<&Launch>) -> Offered {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { take(info, launch) }).unwrap_or(Offered::Declined)
}

/// A launch comes while others are in the queue: it goes in behind them, or they go first.
///
/// # Safety
/// As [`offer`].
pub unsafe fn behind(info: &LaunchInfo, launch: Option<&Launch>) -> Offered {
    if let Some(error) = drain::failure() {
        return Offered::Failed(error);
    }
    // SAFETY: the caller's promise.
    match guarded(|| unsafe { take(info, launch) }) {
        Some(Offered::Taken) => Offered::Taken,
        _ => settle().map_or(Offered::Declined, Offered::Failed),
    }
}

/// # Safety
/// As [`offer`].
unsafe fn take(info: &LaunchInfo, launch: Option<&Launch>) -> Offered {
    let Some(launch) = launch.filter(|_| on() && throttle::may_leave_behind(info)) else {
        return Offered::Declined;
    };
    // SAFETY: the caller's promise.
    let Some(held) = (unsafe { deferred_launch::copy(info, launch) }) else {
        return Offered::Declined;
    };
    if drain::push(deferred_op::Left::Launch(held)) {
        throttle::left_behind();
        Offered::Taken
    } else {
        say_why_not();
        Offered::Declined
    }
}

/// A fill or a copy on the device comes while launches are in the queue: it goes in behind them, or
/// they go first, as before any other call. What it answers if it is not to be made.
pub fn fill(fill: Option<Fill>) -> Option<CuResult> {
    if let Some(error) = drain::failure() {
        return Some(error);
    }
    let taken = guarded(|| {
        let info = fill.as_ref().map(Fill::info);
        let may = on() && info.is_some_and(|info| throttle::may_leave_behind(&info));
        let fill = fill.filter(|_| may)?.ready()?;
        drain::push(deferred_op::Left::Fill(fill)).then(throttle::left_behind)
    });
    match taken {
        Some(Some(())) => Some(CuResult::SUCCESS),
        _ => settle(),
    }
}

/// A launch that went to the driver directly, and succeeded: the next one like it may be left
/// behind.
pub fn learn(launch: &Launch) {
    if on() {
        // SAFETY: the client gave this to the driver, which took it.
        guarded(|| unsafe { deferred_launch::learn(launch) });
    }
}

/// An attribute is about to be set. What is in the queue goes first, unless the attribute has that
/// value already: many programs set the same one before each launch. What the call answers if it is
/// not to be made.
#[inline]
pub fn before_attribute(named: Named, attribute: u32, value: i32) -> Option<CuResult> {
    if busy() { changes(named, attribute, value) } else { None }
}

#[cold]
fn changes(named: Named, attribute: u32, value: i32) -> Option<CuResult> {
    match guarded(|| validated::is_set(named, attribute, value)) {
        Some(true) => None,
        _ => settle(),
    }
}

/// An attribute has this value now. Of a kernel: the function that it is `here`, in the current
/// context.
pub fn attribute_set(named: Named, attribute: u32, value: i32, here: Option<CuFunction>) {
    if !drain::broken() {
        guarded(|| validated::changed(named, attribute, value, here));
    }
}

/// A stream is about to be destroyed.
pub fn stream_ending(stream: CuStream) {
    if on() && !drain::broken() {
        guarded(|| validated::stream_ending(stream));
    }
}

/// A context has ended, and with it what failed there: who makes a new one is not told of it. 0:
/// some context, nobody knows which.
pub fn context_ended(context: CuContext) {
    if drain::broken() {
        return;
    }
    validated::context_ended(context);
    drain::forgive(context);
}

/// Code is unloaded, or a limit of a context has changed: handles may mean something else from now
/// on, or launches fail that succeeded.
pub fn forget_known() {
    validated::clear();
}

/// Empties the queue. An error is that of a launch that was left behind: the caller returns it in
/// place of making its call.
#[cold]
pub fn settle() -> Option<CuResult> {
    guarded(drain::empty);
    drain::failure()
}

/// Whether a call of this symbol waits for the queue. Launches see to it themselves.
pub fn waits(at: usize) -> bool {
    ENTRIES
        .get(at)
        .is_some_and(|entry| !harmless(entry.base) && !by_itself(entry.base))
}

/// Whether the hook of this function sees to the queue by itself. Const, so that a hook that does
/// has nothing of it.
pub const fn by_itself(name: &str) -> bool {
    const fn starts(name: &[u8], with: &[u8]) -> bool {
        if name.len() < with.len() {
            return false;
        }
        let mut at = 0;
        while at < with.len() {
            let (Some(a), Some(b)) = (name.split_at(at).1.first(), with.split_at(at).1.first()) else {
                return false;
            };
            if *a != *b {
                return false;
            }
            at += 1;
        }
        true
    }
    let name = name.as_bytes();
    // Cooperative ones are never left behind, and of those on several devices weft may not know the
    // first.
    let other = starts(name, b"cuLaunchHostFunc") || starts(name, b"cuLaunchCooperative");
    (starts(name, b"cuLaunch") && !other)
        || starts(name, b"cuGraphLaunch")
        || starts(name, b"cuStreamQuery")
        || starts(name, b"cuFuncSetAttribute")
        || starts(name, b"cuKernelSetAttribute")
}

/// Before a call of symbol `at` that has a hook: an error is to be returned in its place.
#[cold]
#[inline(never)]
pub fn before(at: usize) -> Option<CuResult> {
    let entry = ENTRIES.get(at).filter(|_| waits(at))?;
    if ends_something(entry.base) {
        guarded(drain::empty);
        return None;
    }
    settle()
}

/// Whether a call of this name ends something or gives it back. It is made whatever has failed
/// before: who is refused here would keep for ever what he was about to give back. The error waits
/// for a call that can answer with it.
pub fn ends_something(base: &str) -> bool {
    [
        "Destroy",
        "Detach",
        "Free",
        "Unload",
        "Release",
        "Reset",
        "Unregister",
        "Unmap",
    ]
    .iter()
    .any(|end| base.contains(end))
}

/// What is said to who asks whether a stream's work has ended while some of it is in the queue:
/// "not ready". `None`: there is none of it, and the driver says it. Who asks for as long as others
/// wait ([`throttle::longest_wait`]), again and again, is served as they are: all of it goes, and
/// where that has ended soon he hears so, whatever other threads have put in meanwhile.
#[cold]
pub fn answer_about(stream: CuStream) -> Option<CuResult> {
    guarded(|| {
        let context = deferred_launch::current().unwrap_or(0);
        if !drain::has_work_for(stream, context) {
            return None;
        }
        let (now, longest) = (clock::now(), throttle::longest_wait());
        let asked = ASKED.get();
        let again = asked.stream == stream && now.saturating_sub(asked.last) < longest;
        let first = if again { asked.first } else { now };
        let served = now.saturating_sub(first) >= longest;
        let done = served && drain::is_done(stream, longest);
        let last = clock::now();
        ASKED.set(Asked {
            stream,
            first: if served { last } else { first },
            last,
        });
        Some(if done { CuResult::SUCCESS } else { CuResult::NOT_READY })
    })
    .unwrap_or(Some(CuResult::NOT_READY))
}

/// About which stream a thread has asked last and heard "not ready" from us, when, and when it
/// began to.
#[derive(Debug, Clone, Copy)]
struct Asked {
    stream: CuStream,
    first: Ns,
    last: Ns,
}

thread_local! {
    // No destructor: usable to the thread's very end.
    static ANSWER: Cell<u32> = const { Cell::new(0) };
    static ASKED: Cell<Asked> = const {
        Cell::new(Asked {
            stream: 0,
            first: 0,
            last: 0,
        })
    };
}

/// What a call answers in whose place an error is returned.
extern "C" fn answer() -> u32 {
    ANSWER.get()
}

/// Where a call without a hook goes when the queue may have to be emptied first: to the driver, or
/// to the error of a launch that was left behind. Called by `symbols::queue_gate`.
pub extern "C" fn gate(at: u32) -> *const c_void {
    let at = at as usize;
    match before(at) {
        None => real_bound(at).cast_const().cast(),
        Some(error) => failed(error).cast(),
    }
}

/// A function that answers with this error, called by this thread at once.
pub fn failed(error: CuResult) -> *const () {
    ANSWER.set(error.0);
    answer as *const ()
}

/// The session has begun: what the queue needs is had now. Later a job may have shut itself in, and
/// a thread begun then would be its death.
pub fn start() {
    if on() {
        guarded(drain::start);
    }
}

/// The process ends: what is left goes at once, and what is launched from now on by others' last
/// acts goes without the queue.
pub fn at_exit() {
    drain::stop();
    if busy() {
        guarded(drain::empty_at_once);
    }
}

/// The same where nothing may be locked: in `_exit`, which may be called anywhere.
pub fn at_once() {
    if pending() > 0 {
        drain::leave_at_once();
    }
}

/// The job was given a function of the driver's that weft's table does not know. Calls of it pass
/// weft by, and with it what is in the queue, whatever their place among the launches.
pub fn passed_by(name: &str) {
    if on() && !drain::broken() {
        give_up(Why::Newer(name.to_owned()));
    }
}

/// Why nothing is left behind any more.
#[derive(Debug)]
enum Why {
    /// By this function calls may go that weft does not see.
    Newer(String),
    /// By a private table.
    Table,
}

/// What is in the queue goes, and nothing is left behind any more.
fn give_up(why: Why) {
    drain::stop();
    guarded(|| {
        drain::empty();
        GIVEN_UP.get_or_init(|| why);
    });
}

/// Why the queue was given up.
static GIVEN_UP: OnceLock<Why> = OnceLock::new();

/// A launch is not left behind that would have been: why that is never done in this process is
/// said, once. Of private tables only to who looks: on some devices nearly every job has them.
#[cold]
fn say_why_not() {
    static SAID: Once = Once::new();
    if let Some(why) = GIVEN_UP.get() {
        SAID.call_once(|| match why {
            Why::Newer(name) => log::warn!(
                "launches are not left behind at the gate: {name} is newer than this weft, and calls of it would pass them by"
            ),
            Why::Table => log::info!(
                "launches are not left behind at the gate: this device is newer than those that weft was tried with, and calls by a private table of its driver might pass them by"
            ),
        });
    }
}

/// In a forked child there is no queue.
pub fn forget() {
    STATE.store(0, Ordering::Release);
    drain::forget();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_waits_but_what_is_harmless_and_what_sees_to_it_itself() {
        let waiting = |name: &std::ffi::CStr| waits(crate::driver::symbols::find(name).unwrap());
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
        let at = |name: &std::ffi::CStr| crate::driver::symbols::find(name).unwrap();
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
        let ends = |name: &std::ffi::CStr| ends_something(ENTRIES[crate::driver::symbols::find(name).unwrap()].base);
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

    #[test]
    fn whatever_puts_work_on_the_device_waits() {
        for (at, entry) in ENTRIES.iter().enumerate() {
            if entry.class.is_ordered() && !by_itself(entry.base) {
                assert!(waits(at), "{:?}", entry.symbol);
            }
        }
    }
}
