//! The guest's side of weft: what the hooks tell and ask.
//!
//! * The hooks call the functions of this file and nothing else of the session.
//! * None of them fails, panics, prints to stdout or keeps an error of weft's: whatever goes wrong inside, the job's call goes on to the driver.
//! * Only [`before_held`] and [`before_stream_op`] may wait (the gate), each within a bound; only for a filler, never for a capturing stream. And [`enter`]
//!   waits before the first context of a job for which there is no memory now.
//! * Nothing happens before [`initialised`]: the preload lands in every shell and helper a job starts.
//!
//! A stream is the handle that the plain (not per-thread) entry points take: 0 and 1 are the legacy default stream, 2 is the calling
//! thread's default stream. A hook of a `_ptsz` or `_ptds` entry point turns a null stream into [`PER_THREAD_STREAM`] before it tells it here.
//!
//! | file | holds |
//! | --- | --- |
//! | `devices` | which session a call is for, where a process uses several devices |
//! | `state`, `step` | the session: what each launch does in each mode; what is left to do after it |
//! | `copies` | the same for copies and fills |
//! | `ends` | synchronising calls, and streams and contexts that end |
//! | `gate`, `turn`, `peers` | where fillers wait, and in which order; who does not |
//! | `behind` | what the launch queue asks |
//! | `streams`, `settle` | how much work is on its way, and when it has ended |
//! | `costs`, `tuning` | predicted times; when kernels are being timed by the job itself |
//! | `sampler` | stage 1: kernel times and gaps |
//! | `trace` | trace mode, without a session: every call of marked steps |
//! | `helper`, `messages`, `autostart`, `bell` | attach, the control channel, a broker's start and death |
//! | `seat`, `interrupt`, `script` | whether the job may begin, how much memory it may have; Ctrl-C while it waits |
//! | `look` | what is free on the device beside what jobs are known to hold |
//! | `settings` | the environment |
//! | `fork`, `thread`, `clock`, `driver` | the system and the driver |

mod autostart;
mod behind;
mod bell;
mod busy;
mod clock;
mod copies;
mod costs;
mod devices;
mod ends;
mod farewell;
mod fork;
mod gate;
mod helper;
mod interrupt;
mod look;
mod messages;
mod peers;
mod sampler;
mod script;
mod seat;
mod settings;
mod settle;
mod state;
mod step;
mod streams;
#[cfg(test)]
mod tests;
pub mod trace;
mod tuning;
mod turn;

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use weft_broker::protocol::Ns;
use weft_broker::protocol::control::ToBroker;
use weft_broker::protocol::errands::Errands;
use weft_broker::protocol::lane::{self, Counters};
use weft_kernel_id::KernelId;
use weft_profiles::working_set::KernelWorkingSet;

use self::settings::{Purpose, Settings};
use self::state::Session;
use self::step::Step;
use crate::driver::abi::CuResult;
use crate::driver::events::EventCalls;
use crate::driver::{capture, symbols};
use crate::internal_error::{failpoint, guarded};
use crate::memory::away::{self, How};
use crate::memory::sequence::Forecast;
use crate::{internal_error, kernels, thread};

/// An event handle.
pub type Event = usize;

/// A stream handle as the plain entry points take it.
pub type Stream = usize;

/// What a null stream means in a `_ptsz` or `_ptds` entry point (CU_STREAM_PER_THREAD in cuda.h).
pub const PER_THREAD_STREAM: Stream = 2;

/// What is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchKind {
    /// One kernel.
    Kernel,
    /// A graph; its identity stands where a kernel's hash does.
    Graph,
}

/// A launch that is about to go to the driver.
#[derive(Debug, Clone, Copy)]
pub struct LaunchInfo {
    /// Hash of the kernel's identity, or of the graph's. 0 where nothing is known (counted as unnamed).
    pub kernel_hash: u64,
    /// Where to.
    pub stream: Stream,
    /// What.
    pub kind: LaunchKind,
    /// Predicted GPU nanoseconds if the hook knows better than the session's table (a graph: the sum of its kernels); 0 = unknown.
    pub cost_hint: u64,
    /// The stream is being captured: nothing runs now, the launch is neither held nor timed.
    pub capturing: bool,
}

/// Goes from [`before_launch`] to [`after_launch`] of the same launch on the same thread.
#[must_use]
#[derive(Debug, Clone, Copy)]
pub struct Ticket(Step);

impl Ticket {
    /// The launch did not go: it has to wait at the gate, by [`before_held`].
    #[inline(always)]
    pub fn waits(self) -> bool {
        self.0.waits()
    }

    /// Nothing is left to do after the launch.
    #[inline(always)]
    pub fn is_nothing(self) -> bool {
        self.0.is_nothing()
    }
}

/// What a synchronising call that returned without error had waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synced {
    /// All work of the context.
    Context,
    /// All work of one stream. A blocking copy counts as this for its stream.
    Stream(Stream),
    /// This event: work up to it.
    Event(Event),
}

/// The device a process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// As `cuDeviceGetName` says.
    pub name: String,
    /// As `cuDeviceGetUuid` says, in hexadecimal.
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
    /// As `cuDriverGetVersion` says.
    pub driver: u32,
    /// Whether this process shares it under NVIDIA's multi-process service; `None`: the driver does not say.
    pub mps: Option<bool>,
}

/// The session, once there is one. Never freed. Null as well where there are several: see [`devices`].
static SESSION: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());

/// Whether a session was begun: 0 = no, 1 = yes (or weft is off here).
static BEGUN: AtomicU32 = AtomicU32::new(0);

#[inline]
fn session() -> Option<&'static Session> {
    let session = SESSION.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box that `begin` stored and nothing ever frees.
    unsafe { session.as_ref() }
}

/// `cuInit` succeeded in this process (called each time it does; cheap after the first). Waits for a broker half a second at most.
pub fn initialised() {
    if BEGUN.swap(1, Ordering::AcqRel) == 0 {
        guarded(begin);
    }
}

/// Whether [`initialised`] was called.
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Acquire) != 0
}

/// A forked child may begin anew.
fn forget_begun() {
    thread::forget();
    clock::forget();
    BEGUN.store(0, Ordering::Release);
}

/// From now on the rooms below tell the session what it has to know. Cheap after the first time.
pub fn listen() {
    internal_error::listen(trouble);
    kernels::listen(kernel_seen);
    capture::listen(|began| if began { capture_began() } else { capture_ended() });
}

#[cold]
fn begin() {
    failpoint("begin");
    if trace::on() {
        trace::begin(EventCalls::find(|name| symbols::find(name).and_then(symbols::real)));
        return;
    }
    let (settings, complaints) = Settings::of_process();
    if settings.purpose == Purpose::Off {
        return;
    }
    for complaint in complaints {
        log::warn!("{complaint}");
    }
    let driver = EventCalls::find(|name| symbols::find(name).and_then(symbols::real));
    match Session::make(driver, settings) {
        Ok(session) => {
            fork::watch(in_child);
            farewell::watch(at_end);
            let session: &'static Session = Box::leak(Box::new(session));
            devices::begin(session);
            SESSION.store(ptr::from_ref(session).cast_mut(), Ordering::Release);
            helper::start(session, weft_broker::transport::path::socket());
            crate::queue::start();
        }
        Err(why) => log::warn!("this job runs as without weft: {why}"),
    }
}

/// At the process's own end.
extern "C" fn at_end() {
    /// What the lane's state says after a clean end.
    const LEFT: u32 = 2;
    if devices::first().is_some() {
        crate::queue::at_exit();
    }
    for session in devices::all() {
        guarded(|| session.sampler.farewell(session));
        session.lane.reports.state.store(LEFT, Ordering::Release);
    }
    // The driver goes down after this, and must find none of our threads in it.
    crate::memory::context_ending();
    if devices::all().any(|session| session.place.turned_away()) {
        interrupt::end_with(seat::TRY_AGAIN);
    }
}

/// In a forked child: it has no session.
extern "C" fn in_child() {
    crate::memory::forget();
    crate::queue::forget();
    SESSION.store(ptr::null_mut(), Ordering::Release);
    devices::forget();
    forget_begun();
}

/// A launch is about to go to the driver. If the ticket says that it has to wait, it goes by [`before_held`] or into the queue.
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

/// A stream-ordered call that is no launch is about to go to the driver. `bytes` is what it moves, 0 where it moves nothing.
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

/// A synchronising call is about to go to the driver.
#[inline]
pub fn before_sync() {}

/// A synchronising call returned without error.
#[inline(always)]
pub fn synced(what: Synced) {
    match session() {
        Some(session) => session.synced(what),
        None => devices::synced(what),
    }
}

/// A synchronising call returned and nothing of the process is left on the device.
#[inline]
pub fn idle_seen() {
    synced(Synced::Context);
}

fn tell(session: &Session, message: ToBroker) {
    // A full queue is counted where the queue is emptied.
    let _ = session.messages.put(message);
}

/// The first launch of an identity. Slow path: may allocate, never waits.
pub fn kernel_seen(hash: u64, id: &KernelId) {
    peers::kernel_seen(hash, &id.symbol);
    trace::kernel_seen(hash, id);
    // Names are the job's, whatever device they are launched on.
    if let Some(session) = devices::first() {
        tell(session, ToBroker::Kernel { hash, id: id.clone() });
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
        tell(session, ToBroker::Graph { hash, kernels });
    }
}

/// Whether something is learnt of launches by what they are called: in stage 1, and where they are recorded.
pub fn is_studied() -> bool {
    trace::on() || devices::first().is_some_and(Session::sampling)
}

/// A graph was read, and a kernel of it has no name. Slow path.
pub fn unnamed_node() {
    if let Some(session) = devices::first() {
        session.lane.counters.unnamed.fetch_add(1, Ordering::Relaxed);
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
        tell(
            session,
            ToBroker::Device {
                name: device.name.clone(),
                uuid: device.uuid.clone(),
                memory: device.memory,
                driver: device.driver,
                mps: device.mps,
            },
        );
    }
}

/// Memory of a device was taken (`delta` > 0) or given back, bytes. `claimed`: so much of what
/// [`claim`] had booked is over with it.
pub fn memory_changed(at: Where, delta: i64, claimed: u64) {
    if let Some(session) = devices::at(at) {
        session.memory_changed(delta, claimed);
    }
}

/// Managed memory was taken by the job itself (`delta` > 0) or given back, bytes.
pub fn own_managed_changed(at: Where, delta: i64) {
    if let Some(session) = devices::at(at) {
        session.own_managed_changed(delta);
    }
}

pub use crate::driver::symbols::StreamOp;
pub use behind::{
    before_held, cost_of, cost_of_bytes, counted, held_failed, hurry_by, left_behind, longest_wait, may_leave_behind,
    pause, spawn, time,
};
pub use devices::{Where, forget_contexts, here, of_device, of_stream};
pub use look::{Looking, Moving};
pub use seat::{Entry, Sight};

/// A context is about to be made on the device with this ordinal. Waits until there is memory for the job, if it must.
pub fn enter(ordinal: i32, about: impl FnOnce() -> Option<Sight>) -> Entry {
    if devices::first().is_none() || devices::known(ordinal).is_some_and(|session| session.place.entered()) {
        return Entry::Begin;
    }
    // Nothing is asked, and so nothing said, while somebody captures.
    let Some(about) = about() else {
        return Entry::Begin;
    };
    match devices::of_new(ordinal) {
        Some(session) if !session.place.entered() => session.enter(about),
        _ => Entry::Begin,
    }
}

/// What the process holds there is about to change. What it returns is dropped when the driver has answered and the change is counted.
pub fn moving(at: Where) -> Option<Moving> {
    devices::at(at).map(Session::moving)
}

/// The same of all its devices.
pub fn moving_anywhere() -> Vec<Moving> {
    devices::all().map(Session::moving).collect()
}

/// Whether to look at what is free on the device of the current context.
pub fn looks(at: Where) -> Option<Looking> {
    devices::at(at).and_then(Session::looks)
}

/// Whether to look at what is free beside a context that was made just now.
pub fn looks_at_context(at: Where) -> Option<Looking> {
    devices::at(at).and_then(Session::looks_at_context)
}

/// So much was free beside it.
pub fn looked_at_context(at: Where, look: Looking, free: u64) {
    if let Some(session) = devices::at(at) {
        session.looked_at_context(look, free);
    }
}

/// So much was free.
pub fn looked(at: Where, look: Looking, free: u64) {
    if let Some(session) = devices::at(at) {
        session.looked(look, free);
    }
}

/// May the job take so much memory there? Every yes is followed by one [`memory_changed`] that says
/// `claimed`, or by [`unclaim`], when the driver has answered.
pub fn claim(at: Where, bytes: u64) -> bool {
    devices::at(at).is_none_or(|session| session.claim(bytes))
}

/// Makes a call that takes memory there. Right after a job was let in that had to wait, the memory of the one that ended may not be the driver's yet: an "out of
/// memory" then is asked about again, for two seconds at most.
pub fn patiently(at: Where, take: impl Fn() -> CuResult) -> CuResult {
    let mut result = take();
    let fresh = || devices::at(at).is_some_and(|session| session.place.fresh(clock::now()));
    while result == CuResult::OUT_OF_MEMORY && fresh() {
        thread::rest(Duration::from_millis(5));
        result = take();
    }
    result
}

/// The driver has refused.
pub fn unclaim(at: Where, bytes: u64) {
    if let Some(session) = devices::at(at) {
        session.unclaim(bytes);
    }
}

/// (free, total) of the current context's device as the job is to see it, if it is not what the driver says.
pub fn memory_view(free: u64, total: u64) -> Option<(u64, u64)> {
    devices::at(here())?.view(free, total)
}

/// Tells streams apart: threads' default streams share a handle, and the legacy one has two.
pub fn own(stream: Stream) -> usize {
    state::own_stream(stream)
}

/// The calling thread's number, which no other thread of the process ever has.
pub fn thread_number() -> u64 {
    thread::number()
}

/// The job got managed memory in place of device memory. Slow path.
pub fn backed(start: u64, bytes: u64) {
    told_of_memory(ToBroker::Backed { start, bytes });
}

/// Managed memory is given back to the driver. Slow path.
pub fn unbacked(start: u64) {
    told_of_memory(ToBroker::Unbacked { start });
}

/// Managed memory was freed and is kept for reuse: its contents are dead. Slow path.
pub fn resting(start: u64) {
    told_of_memory(ToBroker::Resting { start });
}

fn told_of_memory(message: ToBroker) {
    if let Some(session) = session() {
        tell(session, message);
        session.report_memory();
        crate::memory::mover::start(MemorySession(session));
    }
}

/// The predicted time of a kernel or graph; what an unknown one is charged where nothing is known.
pub fn cost(hash: u64) -> Ns {
    session().map_or(0, |session| {
        let unknown = || session.lane.orders.unknown_cost.load(Ordering::Relaxed);
        session.costs.get(hash).unwrap_or_else(unknown)
    })
}

/// The time, less what the job's launches have waited for their turns and for memory.
pub fn own_time() -> Ns {
    let waited = session().map_or(0, |session| {
        let counters = &session.lane.counters;
        let gate = counters.waited.load(Ordering::Relaxed);
        gate.saturating_add(counters.memory_waited.load(Ordering::Relaxed))
    });
    clock::now().saturating_sub(waited)
}

/// Says how far into its period the job is, by this forecast.
pub fn position(forecast: u32, at: Option<Ns>) {
    if let Some(session) = session() {
        let errands = &session.lane.errands;
        errands.forecast.store(forecast, Ordering::Relaxed);
        errands
            .position
            .store(at.map_or(0, |at| at.saturating_add(1)), Ordering::Release);
    }
}

/// Waits, within a bound, until memory that the broker had moved away is back.
pub fn await_memory(wanted: &[(u64, u64)]) {
    let Some(session) = session() else { return };
    let slowness = session.stated_slowness().unwrap_or(1.0);
    let waited = away::wait(wanted, slowness, clock::now, |came, within| {
        let nap = turn::nap(within.as_nanos() as Ns);
        let _ = futex::wait(&away::CAME, futex::Flags::PRIVATE, came, Some(&nap));
    });
    let counters = &session.lane.counters;
    if waited.time > 0 {
        counters.memory_waited.fetch_add(waited.time, Ordering::Relaxed);
    }
    if waited.how != How::Here {
        counters.memory_waits_expired.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ranges of a round that the broker is told: a message must fit one packet of the channel.
const RANGES_TOLD: usize = 4096;

/// Uses in one part of a forecast, for the same reason: each takes 20 bytes at most.
const USES_TOLD: usize = 2048;

/// What the memory thread needs of the session.
#[derive(Debug, Clone, Copy)]
pub struct MemorySession(&'static Session);

impl MemorySession {
    /// The broker's errands, whatever broker there is.
    pub fn errands(self) -> &'static Errands {
        &self.0.lane.errands
    }

    /// What people see.
    pub fn counters(self) -> &'static Counters {
        &self.0.lane.counters
    }

    /// Which broker it is.
    pub fn attachment(self) -> u64 {
        self.0.attachments.load(Ordering::Acquire)
    }

    /// Whether there is one.
    pub fn is_attached(self) -> bool {
        self.0.lane.magic.load(Ordering::Relaxed) == lane::MAGIC
    }

    /// What so long on a real device takes on this one.
    pub fn slowed(self, real: Ns) -> Ns {
        self.0.slowed(real)
    }

    /// Tells which ranges the job has named of late; `None`: all may have been.
    pub fn touched(self, starts: Option<Vec<u64>>) {
        let starts = starts.map(|mut starts| {
            starts.truncate(RANGES_TOLD);
            starts
        });
        tell(self.0, ToBroker::Touched { starts });
    }

    /// Tells what the job touches in a period.
    pub fn forecast(self, number: u32, forecast: &Forecast) {
        let mut parts = forecast.uses.chunks(USES_TOLD).peekable();
        let mut part = parts.next().unwrap_or_default();
        loop {
            let next = parts.next();
            tell(
                self.0,
                ToBroker::Forecast {
                    number,
                    period: forecast.period,
                    uses: part.to_vec(),
                    ends: next.is_none(),
                },
            );
            match next {
                Some(next) => part = next,
                None => return,
            }
        }
    }

    /// Tells what a kernel was seen to touch.
    pub fn working_set(self, set: KernelWorkingSet) {
        tell(self.0, ToBroker::WorkingSet(set));
    }

    /// Whether this run is stage 1.
    pub fn is_profiling(self) -> bool {
        self.0.settings.purpose == Purpose::Profile
    }

    /// Wakes launches that wait for memory.
    pub fn wake_launches(self) {
        let _ = futex::wake(&away::CAME, futex::Flags::PRIVATE, u32::MAX);
    }

    /// Wakes a broker that sleeps: something has ended.
    pub fn ring(self) {
        self.0.fence_and_ring();
    }

    /// The time.
    pub fn now(self) -> Ns {
        clock::now()
    }

    /// Sleeps until the word is no more what it was and somebody says so, or so long.
    pub fn nap(self, word: &AtomicU32, was: u32, within: Duration) {
        let _ = futex::wait(
            word,
            futex::Flags::empty(),
            was,
            Some(&turn::nap(within.as_nanos() as Ns)),
        );
    }

    /// Starts a thread that no signal of the job reaches.
    pub fn spawn(self, name: &str, stack: usize, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        helper::spawn(std::thread::Builder::new().name(name.into()).stack_size(stack), body)
    }
}

/// Something of weft's own comes between the launches before it and those after it: no sample is to span it.
pub fn interrupt_samples(stream: Stream) {
    if let Some(session) = devices::at(of_stream(stream)) {
        session.sampler.interrupt();
    }
}

/// An allocation stayed device memory though the job is managed.
pub fn left_unmanaged() {
    if let Some(session) = session() {
        session.report_memory();
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

/// A context may end by the call that comes (`cuCtxDestroy`, `cuCtxDetach`, `cuDevicePrimaryCtxReset`, `cuDevicePrimaryCtxRelease`, in all versions).
pub fn context_ending() {
    trace::context_ending();
}

/// It has ended: the session forgets what it made there. 0: some context, nobody knows which.
pub fn context_ended(context: usize) {
    trace::context_ended(context);
    crate::queue::context_ended(context);
    for session in devices::all() {
        session.context_ended(context);
    }
}

/// A stream is about to be destroyed (`cuStreamDestroy` in all versions).
pub fn stream_ending(stream: Stream) {
    crate::queue::stream_ending(stream);
    for session in devices::all() {
        session.stream_ending(stream);
    }
}

/// Counts an internal trouble that a hook answered by passing the call through.
fn trouble() {
    if let Some(session) = devices::first() {
        session.lane.counters.troubles.fetch_add(1, Ordering::Relaxed);
    }
}
