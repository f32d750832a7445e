// SPDX-License-Identifier: MIT OR Apache-2.0
//! The session's interface to the hooks.
//!
//! * Hooks call only the functions of this file.
//! * No function fails, panics, prints to stdout or leaves an error of weft's. After internal
//!   trouble the job's call still reaches the driver.
//! * Only [`before_deferred`], [`before_stream_op`] and [`before_event_op`] wait at the gate:
//!   bounded, for a background job, never for a capturing stream. [`enter`] waits before the first
//!   context of a job without memory.
//! * Nothing happens before [`begin`]: the preload is in every shell and helper that a job starts.
//!
//! The decisions are in [`weft_gate`]; this folder has the clock, the sleep and the driver for it.
//!
//! Each file owns its state:
//!
//! | file | contains |
//! | --- | --- |
//! | `devices` | the session that a call belongs to, with several devices |
//! | `session` | the way of each call through the owners below |
//! | `gate`, `ticket_lock`, `peers` | the wait of background jobs; its order; launches that do not wait |
//! | `autotune` | detection of a job that times kernels itself |
//! | `completion` | issued work, fences after it, and its end |
//! | `predictions` | predicted times of launches |
//! | `post_launch` | post-launch actions |
//! | `requests` | durations of the requests that the job marks |
//! | `end_lines` | the job's outcome, printed at its end |
//! | `helper` | attach, the control channel, a broker's start and death |

mod autotune;
mod completion;
mod devices;
mod end_lines;
mod gate;
mod helper;
mod peers;
mod post_launch;
mod predictions;
pub mod requests;
mod session;
#[cfg(test)]
mod tests;
mod ticket_lock;

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering;

use weft_kernel_id::KernelId;
use weft_protocol::Ns;
use weft_protocol::control::ToBroker;
use weft_protocol::transport;

use self::devices::{SESSION, session};
use self::session::Session;
use crate::admission::{self, interrupt};
use crate::client::settings::Settings;
use crate::client::{clock, link};
use crate::driver::capture;
use crate::driver::device::Device;
use crate::driver::events::EventCalls;
pub use crate::driver::stream::{Event, PER_THREAD_STREAM, Stream};
use crate::internal_error::{self, guarded};
use crate::kernels::launch::Launch;
use crate::{kernels, thread, trace};

/// Registers the session with the modules below it; cheap after the first call.
pub fn listen() {
    internal_error::listen(trouble);
    kernels::listen(kernel_seen);
    capture::listen(|began| if began { capture_began() } else { capture_ended() });
}

/// Makes the first device's session and looks for a broker, for at most 5 s. `watch` runs before
/// threads can find the session.
pub fn begin(driver: EventCalls, settings: Settings, watch: impl FnOnce()) -> Result<(), transport::TransportError> {
    clock::find_namespace();
    let session = Session::make(driver, settings)?;
    watch();
    let session: &'static Session = Box::leak(Box::new(session));
    devices::begin(session);
    SESSION.store(ptr::from_ref(session).cast_mut(), Ordering::Release);
    link::set_only(Some(&session.link));
    helper::start(session, transport::path::socket());
    Ok(())
}

/// Reports launch counts and a clean end. Waits, bounded, for the lines to be printed.
pub fn farewell() {
    /// The lane's state after a clean end.
    const LEFT: u32 = 2;
    for session in devices::all() {
        guarded(|| session.tell_launches());
    }
    guarded(|| end_lines::print(devices::all().map(|session| (&session.link, &session.end_lines))));
    for session in devices::all() {
        session.link.lane.reports.state.store(LEFT, Ordering::Release);
    }
}

/// Reports the process's exit code to the broker. Takes no lock.
pub fn tell_exit(code: c_int) {
    for session in devices::all() {
        // Cut to eight bits, as wait(2) does.
        let told = 1 + (code as u32 & 0xff);
        session.link.lane.counters.exit_status.store(told, Ordering::Release);
    }
}

/// Ends the process with `TRY_AGAIN` if the broker refused it memory.
pub fn end_if_turned_away() {
    if devices::all().any(|session| session.admission.turned_away()) {
        tell_exit(admission::TRY_AGAIN);
        interrupt::end_with(admission::TRY_AGAIN);
    }
}

/// Drops the sessions, in a forked child.
pub fn forget() {
    link::set_only(None);
    SESSION.store(ptr::null_mut(), Ordering::Release);
    devices::forget();
    // The child has one thread and no clock keeper.
    thread::forget();
    clock::forget();
    completion::forget_endings();
}

/// The session that a call belongs to: the only one; with several, that of the device of its stream
/// or, without a stream, of the current context.
#[inline(always)]
fn session_of(stream: Option<Stream>) -> Option<&'static Session> {
    session().or_else(|| devices::among_several(stream))
}

/// Handles a launch before the driver. If the ticket demands a wait, the launch goes through
/// [`before_deferred`] or the queue.
#[inline(always)]
pub fn before_launch(launch: Launch) -> Ticket {
    // A launch goes to a stream of the current context.
    session_of(None).map_or(Ticket::NOTHING, |session| session.before_launch(launch))
}

/// [`before_launch`] for a deferred or waiting launch. Waits at the gate, within a bound.
pub fn before_deferred(launch: Launch) -> Ticket {
    session_of(None).map_or(Ticket::NOTHING, |session| session.deferred(launch))
}

/// Handles a launch to `stream` that returned `result` (0 = success).
#[inline(always)]
pub fn after_launch(ticket: Ticket, stream: Stream, result: u32) {
    if !ticket.is_nothing()
        && let Some(session) = session_of(None)
    {
        session.after_launch(ticket, stream, result);
    }
}

/// Whether a launch that must wait can be deferred.
pub fn may_defer(launch: Launch) -> bool {
    // Not on several devices. Each gate opens by itself, but deferred launches keep one order over
    // all devices.
    session().is_some_and(|session| session.may_defer(launch))
}

/// Predicted time of a launch, ns.
pub fn cost_of(launch: Launch) -> Ns {
    devices::first().map_or(0, |session| session.predictions.cost(&session.link, launch))
}

/// Predicted time of a fill or copy of `bytes` on the device, ns.
pub fn cost_of_bytes(bytes: u64) -> Ns {
    devices::first().map_or(0, |session| session.link.device_copy_time(bytes))
}

/// Counts a deferred launch.
pub fn launch_deferred() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.left_behind.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a launch that enters the queue without a request to the session.
pub fn counted() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.launches.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a deferred launch that failed.
pub fn deferred_failed() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.left_failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Longest wait of a launch at the gate, ns.
pub fn longest_wait() -> Ns {
    devices::first().map_or(0, |session| session.link.longest_wait())
}

/// Opens the gate at `time`, because a thread waits for the queue; [`Ns::MAX`]: no thread does.
pub fn hurry_by(time: Ns) {
    for session in devices::all() {
        session.gate.hurry_by(time);
    }
}

/// Handles another stream-ordered call before the driver. `bytes`: the size of its copy or
/// fill, or 0.
#[inline]
pub fn before_stream_op(op: StreamOp, bytes: u64, stream: Stream) {
    if let Some(session) = session_of(Some(stream)) {
        session.before_stream_op(op, bytes, stream);
    }
}

/// Handles a call about an event and a stream before the driver.
pub fn before_event_op(op: StreamOp, event: Event, stream: Stream) {
    if let Some(session) = session_of(Some(stream)) {
        session.before_event_op(op, event, stream);
    }
}

/// When a synchronising call begins; 0: that is not measured.
#[inline(always)]
pub fn wait_begins(what: Synced) -> Ns {
    session_of(what.stream()).map_or(0, Session::wait_begins)
}

/// Handles a synchronising call that succeeded, and began at `since` ([`wait_begins`]).
#[inline(always)]
pub fn synced(what: Synced, since: Ns) {
    if let Some(session) = session_of(what.stream()) {
        session.synced(what, since);
    }
}

/// When a wait for an event begins; `None`: it is not measured.
pub fn before_event_wait() -> Option<Ns> {
    session_of(None)?.before_event_wait()
}

/// Handles the successful end of a wait for an event that began at `since`.
pub fn event_waited(event: Event, since: Ns) {
    if let Some(session) = session_of(None) {
        session.event_waited(event, since);
    }
}

/// Forgets an event that is destroyed, or recorded by a call that weft does not see.
pub fn event_gone(event: Event) {
    autotune::event_gone(event);
    for session in devices::all() {
        session.active_streams.forget(event);
    }
}

/// Reports the first launch of an identity. Slow path: may allocate, never waits.
pub fn kernel_seen(hash: u64, id: &KernelId) {
    peers::kernel_seen(hash, &id.symbol);
    trace::kernel_seen(hash, id);
    // Names belong to the job, not to a device.
    if let Some(session) = devices::first() {
        session.link.tell(ToBroker::Kernel { hash, id: id.clone() });
    }
}

/// Reports a new or changed graph, with its kernels' hashes in launch order. Slow path.
pub fn graph_seen(hash: u64, kernels: &[u64]) {
    trace::graph_seen(hash, kernels);
    for session in devices::all() {
        session.predictions.learn_graph(&session.link, hash, kernels);
    }
    if let Some(session) = devices::first() {
        let kernels = kernels.iter().take(GRAPH_TOLD).copied().collect();
        session.link.tell(ToBroker::Graph { hash, kernels });
    }
}

/// Whether launches are learnt by name: in stage 1, and while a trace is recorded.
pub fn is_studied() -> bool {
    trace::on() || devices::first().is_some_and(|session| session.link.sampling())
}

/// Counts a graph kernel without a name. Slow path.
pub fn unnamed_node() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.unnamed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Most kernels of a graph that are reported: a message must fit one packet.
const GRAPH_TOLD: usize = 8192;

/// Reports a device in use. Slow path.
pub fn device_seen(ordinal: i32, device: &Device) {
    trace::device_seen(device);
    if let Some(session) = devices::at(devices::of_device(ordinal)) {
        if device.mps == Some(true) {
            session.predictions.never_switches();
        }
        let share = session.link.settings.device_share;
        if let Some(server) = share.mps_server {
            session.link.tell(ToBroker::MpsServer(server));
        }
        session.link.tell(ToBroker::Device {
            name: device.name.clone(),
            uuid: device.uuid.clone(),
            memory: device.memory,
            driver: device.driver,
            mps: device.mps,
        });
        if let Some(note) = share.note(device.mps) {
            session.link.tell(ToBroker::Note(note));
        }
        if let Some(warning) = share.warning(device.mps) {
            log::warn!("{warning}");
        }
    }
}

/// Notes memory taken (`delta` > 0) or given back, bytes. `claimed`: the claim of a [`Grant`] that
/// ends.
pub fn memory_changed(at: DeviceNumber, delta: i64, claimed: u64) {
    if let Some(session) = devices::at(at) {
        session.admission.memory_changed(&session.link, delta, claimed);
    }
}

/// Bytes that the job holds on a device, without its context.
pub fn held(at: DeviceNumber) -> u64 {
    devices::at(at).map_or(0, |session| session.admission.held())
}

/// Bytes of managed memory that the job took itself.
pub fn own_managed(at: DeviceNumber) -> u64 {
    devices::at(at).map_or(0, |session| session.admission.own_managed())
}

/// Whether the process uses one device.
pub fn is_on_one_device() -> bool {
    devices::all().count() == 1
}

/// Notes own managed memory taken (`delta` > 0) or given back, bytes.
pub fn own_managed_changed(at: DeviceNumber, delta: i64) {
    if let Some(session) = devices::at(at) {
        session.admission.own_managed_changed(&session.link, delta);
    }
}

pub use crate::admission::probe::MemoryChange;
pub use crate::admission::{AdmissionAnswer, DeviceRequest, Grant};
pub use crate::driver::symbols::StreamOp;
pub use autotune::timed_event_made;
pub use completion::ContextEnding;
pub use devices::{DeviceNumber, forget_contexts, here, of_device, of_stream, ordinal};
pub use peers::any as has_collectives;
pub use post_launch::Ticket;
pub use session::Synced;

/// Waits, if necessary, until there is memory for a context on this device.
pub fn enter(ordinal: i32, about: impl FnOnce() -> Option<DeviceRequest>) -> AdmissionAnswer {
    if devices::first().is_none() || devices::known(ordinal).is_some_and(|session| session.admission.entered()) {
        return AdmissionAnswer::Begin;
    }
    // During a capture there is no request to the driver, so no message.
    let Some(about) = about() else {
        return AdmissionAnswer::Begin;
    };
    match devices::of_new(ordinal) {
        Some(session) if !session.admission.entered() => session.admission.enter(&session.link, about),
        _ => AdmissionAnswer::Begin,
    }
}

/// Announces a change of the process's memory. Drop the guard when the change is counted.
pub fn changing(at: DeviceNumber) -> Option<MemoryChange> {
    devices::at(at).map(|session| session.admission.changes.begin(&session.link))
}

/// Announces a change for all devices of the process.
pub fn changing_anywhere() -> Vec<MemoryChange> {
    devices::all()
        .map(|session| session.admission.changes.begin(&session.link))
        .collect()
}

/// Reserves memory for a driver call. `None`: the job may not have it.
pub fn reserve(at: DeviceNumber, bytes: u64) -> Option<Grant> {
    match devices::at(at) {
        Some(session) => session.admission.reserve(&session.link, bytes),
        None => Some(Grant::default()),
    }
}

/// Reports that the driver refused `bytes` that [`reserve`] allowed. `ask` requests the device's
/// free bytes from the driver. Returns whether [`reserve`] may answer better now.
pub fn report_refusal(at: DeviceNumber, bytes: u64, ask: impl FnOnce() -> Option<u64>) -> bool {
    devices::at(at).is_some_and(|session| session.admission.report_refusal(&session.link, bytes, ask))
}

/// As [`reserve`], with a short wait in the broker's queue of jobs that want more memory.
pub fn reserve_in_time(at: DeviceNumber, bytes: u64) -> Option<Grant> {
    match devices::at(at) {
        Some(session) => session.admission.reserve_in_time(&session.link, bytes),
        None => Some(Grant::default()),
    }
}

/// As [`reserve`], but asks the broker even if the quota suffices.
pub fn reserve_anew(at: DeviceNumber, bytes: u64) -> Option<Grant> {
    match devices::at(at) {
        Some(session) => session.admission.reserve_anew(&session.link, bytes),
        None => Some(Grant::default()),
    }
}

/// Bytes that the broker would have to grant for `bytes` more.
pub fn lacks(at: DeviceNumber, bytes: u64) -> u64 {
    devices::at(at).map_or(0, |session| session.admission.lacks(&session.link, bytes))
}

/// Bytes by which `bytes` more would exceed the job's quota.
pub fn beyond(at: DeviceNumber, bytes: u64) -> u64 {
    devices::at(at).map_or(0, |session| session.admission.beyond(&session.link, bytes))
}

/// The grant for a context's own memory, which no quota bounds.
pub fn reserve_context(at: DeviceNumber) -> Grant {
    devices::at(at).map_or_else(Grant::default, |session| {
        session.admission.reserve_context(&session.link)
    })
}

/// Notes that `bytes` moved to the host, which are no longer counted. Returns the bytes to claim
/// before they return.
pub fn leaves_device(at: DeviceNumber, bytes: u64) -> u64 {
    devices::at(at).map_or(bytes, |session| session.admission.leaves_device(&session.link, bytes))
}

/// Notes that all memory is on the device again.
pub fn back_on_device(at: DeviceNumber) {
    if let Some(session) = devices::at(at) {
        session.admission.back_on_device();
    }
}

/// Probes free memory, if a probe is due. `ask` requests that device's free bytes from the driver.
pub fn probe(at: DeviceNumber, ask: impl FnOnce() -> Option<u64>) {
    if let Some(session) = devices::at(at) {
        session.admission.probe(&session.link, ask);
    }
}

/// Probes free memory when the process makes its first context.
pub fn probe_context(at: DeviceNumber, ask: impl FnOnce() -> Option<u64>) {
    if let Some(session) = devices::at(at) {
        session.admission.probe_context(&session.link, ask);
    }
}

/// (free, total) in bytes of the current device as the job sees them, if they differ from the
/// driver's.
pub fn memory_view(free: u64, total: u64) -> Option<(u64, u64)> {
    let session = devices::at(here())?;
    session.admission.view(&session.link, free, total)
}

/// Ends a stream's open sample, because work of weft's own follows.
pub fn interrupt_samples(stream: Stream) {
    if let Some(session) = devices::at(of_stream(stream)) {
        session.sampler.interrupt();
    }
}

/// Notes a loaded module or library: auto-tuners time kernels right after.
pub fn module_loaded() {
    for session in devices::all() {
        session.gate.code_loaded(clock::now());
    }
}

/// Notes the start of a capture. During captures the session makes no driver call of its own.
fn capture_began() {
    for session in devices::all() {
        session.completion.capture_began();
    }
}

/// Notes a capture's end.
fn capture_ended() {
    for session in devices::all() {
        session.completion.capture_ended();
    }
}

/// Announces a call that may end a context. Drop the guard when the ended objects are forgotten.
pub fn context_ending() -> ContextEnding {
    ContextEnding::begin(devices::all().map(|session| &session.completion))
}

/// Forgets all objects made in an ended context; 0: an unknown context.
pub fn context_ended(context: usize) {
    for session in devices::all() {
        session.context_ended(context);
    }
}

/// Handles a stream before its destruction.
pub fn stream_ending(stream: Stream) {
    for session in devices::all() {
        session.stream_ending(stream);
    }
}

/// Counts an internal error after which the call was passed through.
fn trouble() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.troubles.fetch_add(1, Ordering::Relaxed);
    }
}
