//! The guest's side of weft: what the hooks tell and ask.
//!
//! * The hooks call the functions of this file and nothing else of the session.
//! * None of them fails, panics, prints to stdout or keeps an error of weft's: whatever goes wrong
//!   inside, the job's call goes on to the driver.
//! * Only [`before_held`] and [`before_stream_op`] may wait (the gate), each within a bound; only
//!   for a background job, never for a capturing stream. And [`enter`] waits before the first
//!   context of a job for which there is no memory now.
//! * Nothing happens before [`begin`]: the preload lands in every shell and helper a job starts.
//!
//! | file | holds |
//! | --- | --- |
//! | `devices` | which session a call is for, where a process uses several devices |
//! | `state`, `post_launch` | the session: what each launch does in each mode; what is left to do after it |
//! | `copies` | the same for copies and fills |
//! | `sync_points` | synchronising calls, and streams and contexts that end |
//! | `gate`, `ticket_lock`, `peers` | where background jobs wait, and in which order; who does not |
//! | `deferral` | what the launch queue asks |
//! | `streams`, `completion` | how much work is on its way, and when it has ended |
//! | `autotune` | when kernels are being timed by the job itself |
//! | `helper` | attach, the control channel, a broker's start and death |

mod active_streams;
mod autotune;
mod completion;
mod copies;
mod deferral;
mod devices;
mod gate;
mod helper;
mod peers;
mod post_launch;
mod state;
mod streams;
mod sync_points;
#[cfg(test)]
mod tests;
mod ticket_lock;

use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_kernel_id::KernelId;
use weft_protocol::control::ToBroker;
use weft_protocol::transport;

use self::devices::{SESSION, session};
use self::state::Session;
use crate::admission::{self, interrupt};
use crate::client::settings::Settings;
use crate::client::{clock, link};
use crate::driver::abi::CuResult;
use crate::driver::capture;
use crate::driver::device::Device;
use crate::driver::events::EventCalls;
pub use crate::driver::stream::{Event, PER_THREAD_STREAM, Stream};
use crate::internal_error::{self, guarded};
use crate::kernels::launch::LaunchInfo;
use crate::{kernels, thread, trace};

/// From now on the rooms below tell the session what it has to know. Cheap after the first time.
pub fn listen() {
    internal_error::listen(trouble);
    kernels::listen(kernel_seen);
    capture::listen(|began| if began { capture_began() } else { capture_ended() });
}

/// Makes the session of the process's first device, and looks for a broker: half a second at most.
/// `watch` is called between the two, before anybody can find the session.
pub fn begin(driver: EventCalls, settings: Settings, watch: impl FnOnce()) -> Result<(), transport::Error> {
    let session = Session::make(driver, settings)?;
    watch();
    let session: &'static Session = Box::leak(Box::new(session));
    devices::begin(session);
    SESSION.store(ptr::from_ref(session).cast_mut(), Ordering::Release);
    link::set_only(Some(&session.link));
    helper::start(session, transport::path::socket());
    Ok(())
}

/// Whether the process has one.
pub fn is_there() -> bool {
    devices::first().is_some()
}

/// The process ends: what was sampled is told, and that the end was a clean one.
pub fn farewell() {
    /// What the lane's state says after a clean end.
    const LEFT: u32 = 2;
    for session in devices::all() {
        guarded(|| session.tell_samples());
        session.link.lane.reports.state.store(LEFT, Ordering::Release);
    }
}

/// Ends the process as one that is to be tried again, if it was turned away for want of memory.
pub fn end_if_turned_away() {
    if devices::all().any(|session| session.admission.turned_away()) {
        interrupt::end_with(admission::TRY_AGAIN);
    }
}

/// In a forked child: it has no session.
pub fn forget() {
    link::set_only(None);
    SESSION.store(ptr::null_mut(), Ordering::Release);
    devices::forget();
    forget_thread();
}

/// In a forked child: its only thread has another number, and nobody keeps its clock.
pub fn forget_thread() {
    thread::forget();
    clock::forget();
}

/// A launch is about to go to the driver. If the ticket says that it has to wait, it goes by
/// [`before_held`] or into the queue.
#[inline(always)]
pub fn before_launch(launch: &LaunchInfo) -> Ticket {
    Ticket(match session() {
        Some(session) => session.before_launch(launch),
        // By single words: a launch whose address is taken would lie on the stack of every hook.
        None => devices::before_launch(
            launch.kernel_hash,
            launch.stream,
            launch.kind,
            launch.cost_hint,
            launch.capturing,
        ),
    })
}

/// The launch to `stream` came back from the driver with `result` (0 = success).
#[inline(always)]
pub fn after_launch(ticket: Ticket, stream: Stream, result: u32) {
    if ticket.0.is_nothing() {
        return;
    }
    match session() {
        Some(session) => session.after_launch(ticket.0, stream, result),
        None => devices::after_launch(ticket.0, stream, result),
    }
}

/// A stream-ordered call that is no launch is about to go to the driver. `bytes` is what it moves,
/// 0 where it moves nothing.
#[inline]
pub fn before_stream_op(op: StreamOp, bytes: u64, stream: Stream) {
    match session() {
        Some(session) => session.before_stream_op(op, bytes, stream),
        None => devices::before_stream_op(op, bytes, stream),
    }
}

/// A call about an event and a stream is about to go to the driver.
pub fn before_event_op(op: StreamOp, event: Event, stream: Stream) {
    match session() {
        Some(session) => session.before_event_op(op, event, stream),
        None => devices::before_event_op(op, event, stream),
    }
}

/// An event is destroyed, or recorded where nobody sees when it is reached.
pub fn event_gone(event: Event) {
    for session in devices::all() {
        session.busy.forget(event);
    }
}

/// A synchronising call returned without error.
#[inline(always)]
pub fn synced(what: Synced) {
    match session() {
        Some(session) => session.synced(what),
        None => devices::synced(what),
    }
}

/// The first launch of an identity. Slow path: may allocate, never waits.
pub fn kernel_seen(hash: u64, id: &KernelId) {
    peers::kernel_seen(hash, &id.symbol);
    trace::kernel_seen(hash, id);
    // Names are the job's, whatever device they are launched on.
    if let Some(session) = devices::first() {
        session.link.tell(ToBroker::Kernel { hash, id: id.clone() });
    }
}

/// A graph was instantiated or changed: the hashes of its kernels in launch order. Slow path.
pub fn graph_seen(hash: u64, kernels: &[u64]) {
    trace::graph_seen(hash, kernels);
    for session in devices::all() {
        session.learn_graph(hash, kernels);
    }
    if let Some(session) = devices::first() {
        let kernels = kernels.iter().take(GRAPH_TOLD).copied().collect();
        session.link.tell(ToBroker::Graph { hash, kernels });
    }
}

/// Whether something is learnt of launches by what they are called: in stage 1, and where they are
/// recorded.
pub fn is_studied() -> bool {
    trace::on() || devices::first().is_some_and(|session| session.link.sampling())
}

/// A graph was read, and a kernel of it has no name. Slow path.
pub fn unnamed_node() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.unnamed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Kernels of a graph that the broker is told: a message must fit one packet of the channel.
const GRAPH_TOLD: usize = 8192;

/// A device that the process uses, by its ordinal, became known. Slow path.
pub fn device_seen(ordinal: i32, device: &Device) {
    trace::device_seen(device);
    if let Some(session) = devices::at(devices::of_device(ordinal)) {
        if device.mps == Some(true) {
            session.never_switches();
        }
        session.link.tell(ToBroker::Device {
            name: device.name.clone(),
            uuid: device.uuid.clone(),
            memory: device.memory,
            driver: device.driver,
            mps: device.mps,
        });
    }
}

/// Memory of a device was taken (`delta` > 0) or given back, bytes. `claimed`: so much of what
/// [`claim`] had booked is over with it.
pub fn memory_changed(at: Where, delta: i64, claimed: u64) {
    if let Some(session) = devices::at(at) {
        session.admission.memory_changed(&session.link, delta, claimed);
    }
}

/// Managed memory was taken by the job itself (`delta` > 0) or given back, bytes.
pub fn own_managed_changed(at: Where, delta: i64) {
    if let Some(session) = devices::at(at) {
        session.admission.own_managed_changed(&session.link, delta);
    }
}

pub use crate::admission::probe::{Looking, Moving};
pub use crate::admission::{Entry, Sight};
pub use crate::driver::symbols::StreamOp;
pub use deferral::{
    before_held, cost_of, cost_of_bytes, counted, held_failed, hurry_by, left_behind, longest_wait, may_leave_behind,
};
pub use devices::{Where, forget_contexts, here, of_device, of_stream};
pub use post_launch::Ticket;
pub use sync_points::Synced;

/// A context is about to be made on the device with this ordinal. Waits until there is memory for
/// the job, if it must.
pub fn enter(ordinal: i32, about: impl FnOnce() -> Option<Sight>) -> Entry {
    if devices::first().is_none() || devices::known(ordinal).is_some_and(|session| session.admission.entered()) {
        return Entry::Begin;
    }
    // Nothing is asked, and so nothing said, while somebody captures.
    let Some(about) = about() else {
        return Entry::Begin;
    };
    match devices::of_new(ordinal) {
        Some(session) if !session.admission.entered() => session.admission.enter(&session.link, about),
        _ => Entry::Begin,
    }
}

/// What the process holds there is about to change. What it returns is dropped when the driver has
/// answered and the change is counted.
pub fn moving(at: Where) -> Option<Moving> {
    devices::at(at).map(|session| session.admission.changes.moving(&session.link))
}

/// The same of all its devices.
pub fn moving_anywhere() -> Vec<Moving> {
    devices::all()
        .map(|session| session.admission.changes.moving(&session.link))
        .collect()
}

/// Whether to look at what is free on the device of the current context.
pub fn looks(at: Where) -> Option<Looking> {
    devices::at(at).and_then(|session| session.admission.changes.looks(&session.link))
}

/// Whether to look at what is free beside a context that was made just now.
pub fn looks_at_context(at: Where) -> Option<Looking> {
    devices::at(at).and_then(|session| session.admission.changes.looks_at_context())
}

/// So much was free beside it.
pub fn looked_at_context(at: Where, look: Looking, free: u64) {
    if let Some(session) = devices::at(at) {
        let held = (session.admission.held(), session.admission.own_managed());
        session
            .admission
            .changes
            .looked_at_context(&session.link, look, free, held);
    }
}

/// So much was free.
pub fn looked(at: Where, look: Looking, free: u64) {
    if let Some(session) = devices::at(at) {
        let held = (session.admission.held(), session.admission.own_managed());
        session.admission.changes.looked(&session.link, look, free, held);
    }
}

/// May the job take so much memory there? Every yes is followed by one [`memory_changed`] that says
/// `claimed`, or by [`unclaim`], when the driver has answered.
pub fn claim(at: Where, bytes: u64) -> bool {
    devices::at(at).is_none_or(|session| session.admission.claim(&session.link, bytes))
}

/// Makes a call that takes memory there. Right after a job was let in that had to wait, the memory
/// of the one that ended may not be the driver's yet: an "out of memory" then is asked about again,
/// for two seconds at most.
pub fn patiently(at: Where, take: impl Fn() -> CuResult) -> CuResult {
    let mut result = take();
    let fresh = || devices::at(at).is_some_and(|session| session.admission.fresh(clock::now()));
    while result == CuResult::OUT_OF_MEMORY && fresh() {
        thread::rest(Duration::from_millis(5));
        result = take();
    }
    result
}

/// The driver has refused.
pub fn unclaim(at: Where, bytes: u64) {
    if let Some(session) = devices::at(at) {
        session.admission.unclaim(bytes);
    }
}

/// (free, total) of the current context's device as the job is to see it, if it is not what the
/// driver says.
pub fn memory_view(free: u64, total: u64) -> Option<(u64, u64)> {
    let session = devices::at(here())?;
    session.admission.view(&session.link, free, total)
}

/// Something of weft's own comes between the launches before it and those after it: no sample is to
/// span it.
pub fn interrupt_samples(stream: Stream) {
    if let Some(session) = devices::at(of_stream(stream)) {
        session.sampler.interrupt();
    }
}

/// A module or library was loaded: auto-tuners time kernels right after it.
pub fn module_loaded() {
    for session in devices::all() {
        session.tuning.code_loaded(clock::now());
    }
}

/// A capture began. While any capture is on, the session makes no driver call of its own.
fn capture_began() {
    for session in devices::all() {
        session.captures.fetch_add(1, Ordering::AcqRel);
    }
}

/// A capture ended or was invalidated.
fn capture_ended() {
    for session in devices::all() {
        // Never below zero: the session may have begun in the middle of a capture.
        let _ = session
            .captures
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |captures| captures.checked_sub(1));
    }
}

/// It has ended: the session forgets what it made there. 0: some context, nobody knows which.
pub fn context_ended(context: usize) {
    for session in devices::all() {
        session.context_ended(context);
    }
}

/// A stream is about to be destroyed (`cuStreamDestroy` in all versions).
pub fn stream_ending(stream: Stream) {
    for session in devices::all() {
        session.stream_ending(stream);
    }
}

/// Counts an internal trouble that a hook answered by passing the call through.
fn trouble() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.troubles.fetch_add(1, Ordering::Relaxed);
    }
}
