// SPDX-License-Identifier: MIT OR Apache-2.0
//! The session of one process on a device, which all hooks share: the way of each call through the
//! owners of its state.
//!
//! Made at the first successful `cuInit`, or for a further device. Never freed: threads may be
//! inside at exit. All data of a launch is atomic. Without a broker the lane is private memory with
//! mode `Free`.
//!
//! The order of the functions is that of a process: launches, copies and events, synchronising
//! calls, ends of streams and contexts.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use weft_gate::active_streams::{ActiveStreams, EndedStreams, RemainingWork};
use weft_gate::charge;
use weft_gate::event_times::{EventTimes, LEAST_WAIT_NS};
use weft_protocol::Ns;
use weft_protocol::lane::{DEVICE_COPY, FOUND_IDLE, HOST_COPY, Kind, Mode, flags};
use weft_protocol::transport;

use super::autotune;
use super::completion::Completion;
use super::end_lines::EndLines;
use super::gate::LaunchGate;
use super::peers;
use super::post_launch::{AfterLaunch, Ticket, Want};
use super::predictions::Predictions;
use crate::admission::DeviceAdmission;
use crate::client::link::BrokerLink;
use crate::client::settings::Settings;
use crate::client::{clock, deferral};
use crate::driver::events::EventCalls;
use crate::driver::stream::{Event, Stream, own_stream};
use crate::driver::symbols::StreamOp;
use crate::internal_error::{caught, failpoint, fails_at, guarded};
use crate::kernels::launch::{Launch, LaunchKind};
use crate::profiler::{Look, OpenSample, Sampler};
use crate::{process, thread};

/// Work that a synchronising call waited for before it returned without error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synced {
    /// All work of the context.
    Context,
    /// All work of a stream. A blocking copy counts as this for its stream.
    Stream(Stream),
    /// Work up to an event.
    Event(Event),
}

impl Synced {
    #[inline(always)]
    pub(super) fn stream(self) -> Option<Stream> {
        match self {
            Synced::Stream(stream) => Some(stream),
            Synced::Context | Synced::Event(_) => None,
        }
    }
}

/// Whether the process has just become idle, and whether that is certain.
#[inline(always)]
fn left(left: RemainingWork) -> (bool, bool) {
    match left {
        RemainingWork::AsBefore => (false, false),
        RemainingWork::NothingProbably => (true, false),
        RemainingWork::Nothing => (true, true),
    }
}

/// The owners of a session's state.
#[derive(Debug)]
pub struct Session {
    /// Lane, connection and settings.
    pub link: BrokerLink,
    /// Admission to the device, and memory.
    pub admission: DeviceAdmission,
    pub(super) predictions: Predictions,
    pub(super) gate: LaunchGate,
    /// Issued work and its end.
    pub(super) completion: Completion,
    /// Streams with work.
    pub(super) active_streams: ActiveStreams,
    /// Events of a foreground job.
    event_times: EventTimes,
    pub(super) sampler: Sampler,
    /// Lines that are printed at the end.
    pub(super) end_lines: EndLines,
    /// Whether the process is idle and has launched nothing since.
    rested: AtomicBool,
}

impl Session {
    /// A session without a broker.
    pub fn make(driver: EventCalls, settings: Settings) -> Result<Session, transport::TransportError> {
        Ok(Session {
            link: BrokerLink::new(settings)?,
            admission: DeviceAdmission::default(),
            predictions: Predictions::new(),
            gate: LaunchGate::default(),
            completion: Completion::new(driver),
            active_streams: ActiveStreams::default(),
            event_times: EventTimes::default(),
            sampler: Sampler::default(),
            end_lines: EndLines::default(),
            rested: AtomicBool::new(false),
        })
    }

    /// Implements [`super::before_launch`]. Only the part for a job without other jobs is inlined
    /// into the hook; the rest is behind a call that also stops panics.
    #[inline(always)]
    pub fn before_launch(&self, launch: Launch) -> Ticket {
        let mode = self.link.mode();
        if mode == Mode::Free {
            return Ticket::NOTHING;
        }
        let counters = &self.link.lane.counters;
        match launch.kind() {
            LaunchKind::Kernel => counters.launches.fetch_add(1, Ordering::Relaxed),
            LaunchKind::Graph => counters.graph_launches.fetch_add(1, Ordering::Relaxed),
        };
        if launch.is_captured() || launch.identity() == 0 {
            self.count_odd(launch);
            if launch.is_captured() {
                return Ticket::NOTHING;
            }
        }
        let flags = self.link.lane.orders.flags.load(Ordering::Relaxed);
        // One launch of hundreds is sampled while the job serves: see `Sampler::due`.
        let serving = flags & flags::SAMPLE != 0;
        match mode {
            Mode::Free | Mode::Alone => {}
            Mode::Foreground => {
                let onto_idle = self.foreground(launch);
                if serving && self.sampler.due() {
                    return self.watch(launch, Look::Serve { onto_idle });
                }
            }
            Mode::Background => {
                let ticket = self.background::<false>(launch);
                if ticket.waits() {
                    return ticket;
                }
                return self.sampled_or(ticket, launch, serving);
            }
        }
        if flags & flags::PROFILE != 0 {
            return self.watch(launch, Look::Profile);
        }
        Ticket::NOTHING
    }

    /// Passes a launch that is already counted through the gate, when its turn comes.
    pub fn deferred(&self, launch: Launch) -> Ticket {
        let serving = self.link.lane.orders.flags.load(Ordering::Relaxed) & flags::SAMPLE != 0;
        match self.link.mode() {
            Mode::Background => {
                let _whole = thread::uncancelled();
                let ticket = self.background::<true>(launch);
                self.sampled_or(ticket, launch, serving)
            }
            Mode::Foreground => {
                self.foreground(launch);
                Ticket::NOTHING
            }
            Mode::Free | Mode::Alone => Ticket::NOTHING,
        }
    }

    #[cold]
    fn count_odd(&self, launch: Launch) {
        let counters = &self.link.lane.counters;
        if launch.is_captured() {
            counters.captured.fetch_add(1, Ordering::Relaxed);
        }
        if launch.identity() == 0 {
            counters.unnamed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The ticket of a background job's launch, or of its sample. A sampled launch gets no fence;
    /// the next fence covers it.
    #[inline(always)]
    fn sampled_or(&self, ticket: Ticket, launch: Launch, serving: bool) -> Ticket {
        let onto_idle = ticket.is_first();
        if serving && self.sampler.due() {
            let sampled = self.watch(launch, Look::Serve { onto_idle });
            return if sampled.is_nothing() { ticket } else { sampled };
        }
        ticket
    }

    /// Samples a launch.
    #[cold]
    #[inline(never)]
    fn watch(&self, launch: Launch, look: Look) -> Ticket {
        guarded(|| {
            failpoint("sample");
            self.sampler.before(self.completion.around(&self.link), launch, look)
        })
        .flatten()
        .map_or(Ticket::NOTHING, |half| Ticket::sampled(half.place, half.sequence))
    }

    /// Handles a foreground job's launch; true if it is the first since the job was idle. Costs two
    /// locked instructions (record number, launch epoch), a third at the end of a silence, and one
    /// clock read.
    ///
    /// The order makes it sound:
    /// * First the record, then the launch epoch. The broker reads launch epochs, then records,
    ///   then gives credit bound to these epochs. If the broker sees a raised launch epoch, the
    ///   record is visible. Credit given without this launch is bound to a sum that the launch
    ///   changes, so it is void before the driver gets the launch.
    /// * The launch epoch's rise is a sequentially consistent read-modify-write; then comes the
    ///   read of whether the broker sleeps. The broker announces sleep, then reads the records
    ///   again. One of the two sees the other, so no end of a silence is missed.
    ///
    /// This is the fast path, for kernels whose cost needs no search. It calls nothing, so it saves
    /// no registers. It cannot panic, so nothing guards it.
    #[inline(never)]
    fn foreground(&self, launch: Launch) -> bool {
        let orders = &self.link.lane.orders;
        if launch.kind() == LaunchKind::Graph {
            return self.foreground_slowly(launch);
        }
        // The slowest instruction (11 ns) first, so that the rest runs in parallel with it.
        let Some(now) = clock::at_once() else {
            return self.foreground_slowly(launch);
        };
        let epoch = orders.epoch.load(Ordering::Relaxed) as usize;
        let unknown = orders.unknown_cost.load(Ordering::Relaxed);
        let Some(cost) = self.link.costs.at_once(launch.identity(), unknown) else {
            return self.foreground_slowly(launch);
        };
        if fails_at("foreground") {
            return self.foreground_slowly(launch);
        }
        // Last, because it has an effect.
        let Some(ends_silence) = self.active_streams.mark_at_once(launch.own_stream()) else {
            return self.foreground_slowly(launch);
        };
        self.record(launch, now, cost);
        self.link.epoch_page.bump(epoch);
        if ends_silence && self.link.wants_ring() {
            return self.end_silence();
        }
        self.rested()
    }

    /// The steps of [`Session::foreground`] in their order, for any launch.
    #[inline(never)]
    fn foreground_slowly(&self, launch: Launch) -> bool {
        let rested = caught(|| {
            failpoint("foreground");
            let now = clock::now();
            let epoch = self.link.lane.orders.epoch.load(Ordering::Relaxed) as usize;
            // First: another thread's synchronisation before the record must not report an idle
            // process.
            let ends_silence = self.active_streams.mark(launch.own_stream());
            self.record(launch, now, self.predictions.cost(&self.link, launch));
            self.link.epoch_page.bump(epoch);
            if ends_silence {
                self.link.ring();
            }
            self.rested()
        });
        rested.unwrap_or(false)
    }

    #[cold]
    #[inline(never)]
    fn end_silence(&self) -> bool {
        self.link.wake_broker();
        self.rested()
    }

    /// Whether this is the first launch since the process was idle.
    #[inline(always)]
    fn rested(&self) -> bool {
        let rested = self.rested.load(Ordering::Relaxed);
        if rested {
            self.rested.store(false, Ordering::Relaxed);
        }
        rested
    }

    #[inline(always)]
    fn record(&self, launch: Launch, now: Ns, cost: Ns) {
        let kind = match launch.kind() {
            LaunchKind::Kernel => Kind::Launch,
            LaunchKind::Graph => Kind::Graph,
        };
        self.link
            .write(kind, now, launch.identity(), cost, launch.stream() as u64);
    }

    /// Handles a background job's launch. With credit it costs four locked instructions (credit,
    /// account, total issued, record number), a fifth at the end of a silence, and one clock read.
    /// Without credit the launch waits here if `WAITS`, or if it cannot be deferred.
    #[inline(never)]
    fn background<const WAITS: bool>(&self, launch: Launch) -> Ticket {
        let ticket = caught(|| {
            failpoint("background");
            // Early, as in `foreground`; again after a wait.
            let mut now = clock::now();
            let cost = self.predictions.cost(&self.link, launch);
            let own = launch.own_stream();
            let want = Want {
                kernel: launch.identity(),
                cost,
                stream: launch.stream(),
                place: self.completion.account(own),
            };
            if !self.gate.pass_at_once(self, want.kernel, cost, now)
                && !self.gate.pass_with_pair(self, &want, now)
                && !self.gate.pass_for_peers(self, &want)
            {
                if process::is_copy() {
                    return Ticket::NOTHING;
                }
                if !WAITS && deferral::leaves() {
                    return Ticket::WAITS;
                }
                self.gate.pass_in_turn(self, &want);
                now = clock::now();
                // It waited for the charge of an unknown kernel. Once it is timed it waits less.
                if self.link.costs.get(want.kernel).is_none() {
                    self.sampler.soon();
                }
                if self.link.mode() == Mode::Foreground {
                    return self.book_in_foreground(launch, own, &want, now);
                }
            }
            self.book(launch, own, &want, now, false)
        });
        ticket.unwrap_or(Ticket::NOTHING)
    }

    /// Books a launch that went through the gate. `foreground`: the job became the foreground job
    /// during the wait. Record and launch epoch are then written as for its launches, so credit
    /// given for its silence is void before the driver gets this one.
    #[inline(always)]
    fn book(&self, launch: Launch, own: usize, want: &Want, now: Ns, foreground: bool) -> Ticket {
        let ends_silence = self.active_streams.mark(own);
        self.completion.issue(&self.link, want, now);
        self.record(launch, now, want.cost);
        if foreground {
            self.link
                .epoch_page
                .bump(self.link.lane.orders.epoch.load(Ordering::Relaxed) as usize);
            if ends_silence {
                self.link.ring();
            }
        }
        Ticket::background(want.place, now, self.rested())
    }

    #[cold]
    #[inline(never)]
    fn book_in_foreground(&self, launch: Launch, own: usize, want: &Want, now: Ns) -> Ticket {
        self.book(launch, own, want, now, true)
    }

    /// Whether a launch that must wait can be deferred: not if it is captured, sampled or in a
    /// tuning burst.
    pub(super) fn may_defer(&self, launch: Launch) -> bool {
        let orders = &self.link.lane.orders;
        !launch.is_captured()
            && Mode::from_word(orders.mode.load(Ordering::Acquire)) == Some(Mode::Background)
            && orders.flags.load(Ordering::Relaxed) & flags::PROFILE == 0
            && !self.completion.is_capturing()
            && !self.gate.is_timing(clock::now())
            && !peers::awaits(launch.identity())
    }

    /// Implements [`super::after_launch`].
    #[inline(always)]
    pub fn after_launch(&self, ticket: Ticket, stream: Stream, result: u32) {
        match ticket.rest() {
            AfterLaunch::Nothing => {}
            AfterLaunch::Background { place, at } => self.completion.launched(&self.link, stream, place, at, result),
            AfterLaunch::Sampled { place, sequence } => self.sampled(OpenSample { place, sequence }, result),
        }
    }

    #[cold]
    fn sampled(&self, half: OpenSample, result: u32) {
        guarded(|| self.sampler.after(self.completion.around(&self.link), half, result));
    }

    /// Reports launch counts.
    pub fn tell_launches(&self) {
        self.sampler.tell_launches(self.completion.around(&self.link));
    }

    /// Implements [`super::before_stream_op`].
    #[inline]
    pub fn before_stream_op(&self, op: StreamOp, bytes: u64, stream: Stream) {
        let mode = self.link.mode();
        if mode == Mode::Free || matches!(op, StreamOp::Other | StreamOp::EventWait) {
            return;
        }
        if op == StreamOp::EventRecord {
            self.gate.event_recorded();
            return;
        }
        self.link.lane.counters.transfers.fetch_add(1, Ordering::Relaxed);
        if mode == Mode::Alone || self.completion.is_capturing() {
            return;
        }
        guarded(|| self.transfer(mode, op, bytes, stream));
    }

    /// Implements [`super::before_event_op`].
    pub fn before_event_op(&self, op: StreamOp, event: Event, stream: Stream) {
        let mode = self.link.mode();
        if matches!(mode, Mode::Free | Mode::Alone) {
            return;
        }
        match op {
            StreamOp::EventRecord => {
                if mode == Mode::Foreground {
                    self.event_times.recorded(event, clock::now());
                }
                if autotune::is_timed(event) {
                    guarded(|| self.gate.times(self, stream));
                }
                self.active_streams.recorded(event, own_stream(stream));
            }
            StreamOp::EventWait => self.active_streams.awaited(own_stream(stream), event),
            _ => {}
        }
    }

    fn transfer(&self, mode: Mode, op: StreamOp, bytes: u64, stream: Stream) {
        failpoint("transfer");
        let (kernel, cost) = match op {
            StreamOp::CopyToDevice | StreamOp::CopyToHost => (HOST_COPY, self.link.host_copy_time(bytes)),
            StreamOp::CopyOnDevice
            | StreamOp::Memset
            | StreamOp::EventRecord
            | StreamOp::EventWait
            | StreamOp::Other => (DEVICE_COPY, self.link.device_copy_time(bytes)),
        };
        let own = own_stream(stream);
        let hints = self.active_streams.is_idle();
        if mode == Mode::Background && charge::is_gated(bytes) {
            let want = Want {
                kernel,
                cost,
                stream,
                place: self.completion.account(own),
            };
            let now = clock::now();
            if !self.gate.pass_at_once(self, kernel, cost, now) && !self.gate.pass_with_pair(self, &want, now) {
                if process::is_copy() {
                    return;
                }
                self.gate.pass_in_turn(self, &want);
            }
            self.completion.issue(&self.link, &want, clock::now());
        }
        let now = clock::now();
        if hints {
            self.link.write(Kind::WakeUpHint, now, 0, 0, stream as u64);
        }
        self.link.write(Kind::Transfer, now, kernel, cost, bytes);
        if self.active_streams.mark(own) {
            self.link.fence_and_ring();
        }
    }

    /// Implements [`super::before_event_wait`].
    pub fn before_event_wait(&self) -> Option<Ns> {
        (self.link.mode() == Mode::Foreground).then(clock::now)
    }

    /// Implements [`super::event_waited`].
    pub fn event_waited(&self, event: Event, since: Ns) {
        self.synced(Synced::Event(event), since);
        // If the wait saw all work end, the job is idle now.
        if self.link.mode() != Mode::Foreground || self.active_streams.is_idle() {
            return;
        }
        let now = clock::now();
        let waited = now.saturating_sub(since);
        if waited >= LEAST_WAIT_NS
            && let Some(recorded) = self.event_times.of(event)
        {
            guarded(|| self.link.write(Kind::PartialWait, now, recorded, waited, 0));
        }
    }

    /// Implements [`super::wait_begins`].
    #[inline(always)]
    pub fn wait_begins(&self) -> Ns {
        match self.link.lane.orders.mode.load(Ordering::Relaxed) == Mode::Foreground as u32 {
            true => clock::at_once().unwrap_or(0),
            false => 0,
        }
    }

    /// Implements [`super::synced`].
    #[inline(always)]
    pub fn synced(&self, what: Synced, since: Ns) {
        // Raw words, and at most three compared: for four the compiler makes a jump table, slower
        // than a foreground job's whole path.
        let mode = self.link.lane.orders.mode.load(Ordering::Relaxed);
        match what {
            Synced::Stream(stream) if mode == Mode::Foreground as u32 => self.foreground_synced(stream, since),
            Synced::Stream(stream) if mode == Mode::Background as u32 => self.background_synced(stream),
            _ if mode == Mode::Alone as u32 && !self.link.sampling() => {}
            _ if mode.wrapping_sub(1) < 3 => self.synced_in_company(what, since),
            _ => {}
        }
    }

    /// Fast path without a search, like `Session::foreground`.
    #[inline(never)]
    fn foreground_synced(&self, stream: Stream, since: Ns) {
        let own = own_stream(stream);
        if self.link.sampling() || fails_at("sync") || !self.active_streams.is_all(own) {
            return self.synced_in_company(Synced::Stream(stream), since);
        }
        self.active_streams.end_all();
        match clock::at_once() {
            Some(now) => self.foreground_idle(now, since),
            None => self.foreground_idle_by_system(since),
        }
    }

    #[cold]
    #[inline(never)]
    fn foreground_idle_by_system(&self, since: Ns) {
        self.foreground_idle(clock::system(), since);
    }

    /// Background path, in code of its own.
    #[inline(never)]
    fn background_synced(&self, stream: Stream) {
        caught(|| self.synced_now(Mode::Background, Synced::Stream(stream), 0));
    }

    #[inline(never)]
    fn synced_in_company(&self, what: Synced, since: Ns) {
        caught(|| self.synced_now(self.link.mode(), what, since));
    }

    /// Handles the end of a busy time. A foreground job pays one locked instruction (its time) and
    /// one clock read; a background job pays two locked instructions for completed work.
    #[inline(always)]
    fn synced_now(&self, mode: Mode, what: Synced, since: Ns) {
        failpoint("sync");
        if self.link.sampling() {
            self.sampler.synced(self.completion.around(&self.link));
        } else if self.sampler.has_open() {
            self.sampler.ended(self.completion.around(&self.link));
        }
        if matches!(mode, Mode::Free | Mode::Alone) {
            return;
        }
        // The streams whose work has ended, if known.
        let ended = match what {
            Synced::Event(event) => Some(self.active_streams.reached(event)),
            Synced::Stream(stream) => Some(self.active_streams.synced(own_stream(stream))),
            Synced::Context => None,
        };
        // Whether the process has just become idle, and whether that is certain.
        let (idle, certain) = match ended {
            None => (self.active_streams.all_synced(), true),
            Some(ended) => left(ended.left),
        };
        if mode == Mode::Foreground && !idle {
            return;
        }
        let now = clock::now();
        if mode == Mode::Background {
            self.settle_after(ended, certain, now);
            if idle {
                self.rested.store(true, Ordering::Relaxed);
                // No ring: a broker naps while any launch waits, and only such a launch needs this
                // time.
                self.link.lane.become_idle(now);
            }
        } else if idle {
            self.foreground_idle(now, since);
        }
    }

    /// Notes that a foreground job has become idle. The time is written first; then come a full
    /// barrier and the read of whether the broker sleeps, as in `Session::foreground`.
    #[inline(always)]
    fn foreground_idle(&self, now: Ns, since: Ns) {
        self.rested.store(true, Ordering::Relaxed);
        let found = since != 0 && now < since + LEAST_WAIT_NS;
        self.link
            .lane
            .become_idle_fenced(if found { now | FOUND_IDLE } else { now });
        self.link.ring_idle();
    }

    /// `certain`: whether all work has ended.
    #[inline(always)]
    fn settle_after(&self, ended: Option<EndedStreams>, certain: bool, now: Ns) {
        match ended {
            _ if certain => self.completion.report_all(&self.link, now),
            Some(ended) if ended.streams().next().is_some() => {
                self.completion.report_streams(&self.link, ended.streams(), now);
            }
            // An event after which no work is known.
            _ => {
                self.completion.ask_device(&self.link, now);
            }
        }
    }

    /// Handles a stream that is destroyed.
    pub fn stream_ending(&self, stream: Stream) {
        self.completion
            .forget_stream(&self.link, own_stream(stream), clock::now());
    }

    /// Handles a destroyed context with its events and streams; 0: an unknown context.
    pub fn context_ended(&self, context: usize) {
        self.sampler.forget(context);
        self.completion.forget_context(&self.link, context);
    }
}
