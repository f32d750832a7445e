// SPDX-License-Identifier: MIT OR Apache-2.0
//! The migration thread: carries out the broker's page operations on streams of its own.
//!
//! * One per process, started at its first managed memory; signals blocked, never joined.
//! * It cannot change the job's results. It moves and advises only memory that the job holds now,
//!   and discards only freed blocks that no allocation can get meanwhile.
//! * The job waits for it, within a bound, when a context ends: for one driver call; and when a
//!   profiled process ends: for its last report.
//! * It makes no driver call during a capture. Its capture mode is relaxed, so that a call that is
//!   under way does not spoil a capture that begins.
//! * It sees completion by events; no driver call waits. The events of consecutive page operations
//!   on a stream give the later operation's time ([`timed`]).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::Builder;
use std::time::Duration;

use rustix::thread::futex;
use weft_protocol::Ns;
use weft_protocol::control::ToBroker;
use weft_protocol::host;
use weft_protocol::page_ops::{PageOp, PageOpConsumer, PageOpKind, PageOpStatus, PageOps};

use super::mem_advise::{self, RepeatedAdvice};
use super::period_detector::PeriodForecast;
use super::pool::KeptBlock;
use super::template_learner::Learner;
use super::{access_tracker, evicted, pool, ranges, residency_probe};
use crate::client::clock;
use crate::client::link::BrokerLink;
use crate::client::settings::Purpose;
use crate::driver::abi::{CuContext, CuEvent, CuResult, CuStream};
use crate::driver::calls;
use crate::driver::capture;
use crate::{internal_error, thread};

const MOST_OPS: usize = 64;

/// Poll interval: 16 granules take half a millisecond.
const POLL: Duration = Duration::from_micros(150);

/// Longest sleep, because a new broker may have come.
const IDLE_NAP: Duration = Duration::from_millis(200);

const CAPTURE_NAP: Duration = Duration::from_millis(1);

/// Age at which a page operation counts as late; a whole ring takes 20 ms.
const LATE_NS: Ns = 1_000_000_000;

/// Age at which a page operation is given up as refused.
const GIVE_UP_NS: Ns = 30_000_000_000;

/// Longest wait of a context's end for this thread's driver call.
const ENDING_TIMEOUT: Duration = Duration::from_millis(200);

/// CU_STREAM_NON_BLOCKING.
const NON_BLOCKING: u32 = 1;
/// CU_EVENT_DEFAULT: the event has a time.
const WITH_TIME: u32 = 0;
/// CU_STREAM_CAPTURE_MODE_RELAXED.
const RELAXED: u32 = 2;

/// Interval between reports of touched ranges. A training step takes 0.1 to some seconds, and a
/// report counts for some rounds.
const ROUND_NS: Ns = 500_000_000;

const STACK: usize = 256 * 1024;

/// Interval between reads of the host memory that is left; each reads small files.
const HOST_POLL_NS: Ns = 1_000_000_000;

static STARTED: AtomicBool = AtomicBool::new(false);

/// Whether the thread is in a driver call, or about to be.
static INSIDE: AtomicBool = AtomicBool::new(false);
static ENDING: AtomicU32 = AtomicU32::new(0);
/// Whether the process is about to end and awaits the thread's last report.
static LAST_REPORT: AtomicBool = AtomicBool::new(false);
/// Contexts that ended; older streams may be gone.
static ENDED: AtomicU32 = AtomicU32::new(0);

/// Most ranges of a message, which must fit one packet.
const RANGES_PER_MESSAGE: usize = 4096;

/// Most uses of a message, at most 20 B each.
const USES_PER_MESSAGE: usize = 2048;

/// Sleeps until `word` is no longer `was` and a wake-up comes, or for `within`.
fn sleep_until(word: &AtomicU32, was: u32, within: Duration) {
    let nap = clock::timespec(within.as_nanos() as Ns);
    let _ = futex::wait(word, futex::Flags::empty(), was, Some(&nap));
}

fn report_touched(link: &BrokerLink, starts: Option<Vec<u64>>) {
    let starts = starts.map(|mut starts| {
        starts.truncate(RANGES_PER_MESSAGE);
        starts
    });
    link.tell(ToBroker::Touched { starts });
}

fn send_forecast(link: &BrokerLink, number: u32, forecast: &PeriodForecast) {
    let mut parts = forecast.uses.chunks(USES_PER_MESSAGE).peekable();
    let mut part = parts.next().unwrap_or_default();
    loop {
        let next = parts.next();
        link.tell(ToBroker::Forecast {
            number,
            period: forecast.period,
            uses: part.to_vec(),
            ends: next.is_none(),
        });
        match next {
            Some(next) => part = next,
            None => return,
        }
    }
}

pub fn start(link: &'static BrokerLink) {
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    let builder = Builder::new().name("weft-memory".into()).stack_size(STACK);
    let spawned = thread::spawn(builder, move || {
        let page_ops = &link.lane.page_ops;
        let worked = internal_error::guarded(|| MigrationThread::new(link).run());
        // Without the thread memory moves on demand.
        page_ops.served.store(0, Ordering::Release);
        // No thread will bring evicted memory back.
        evicted::forget();
        evicted::wake();
        if worked.is_none() {
            log::warn!("weft's memory thread failed: the job's memory moves on demand");
        }
    });
    if let Err(why) = spawned {
        log::warn!("cannot start a thread for the job's memory, which moves on demand: {why}");
    }
}

pub fn forget() {
    STARTED.store(false, Ordering::Release);
    LAST_REPORT.store(false, Ordering::Release);
}

/// Keeps the thread from driver calls while a context may end. Waits, bounded, for a call under
/// way.
pub fn context_ending() {
    ENDING.fetch_add(1, Ordering::SeqCst);
    let step = Duration::from_micros(50);
    let mut waited = Duration::ZERO;
    while INSIDE.load(Ordering::SeqCst) && waited < ENDING_TIMEOUT {
        std::thread::sleep(step);
        waited += step;
    }
}

/// Ends the state that [`context_ending`] began. `ended`: whether the context has ended.
pub fn context_ended(ended: bool) {
    if ended {
        ENDED.fetch_add(1, Ordering::AcqRel);
    }
    ENDING.fetch_sub(1, Ordering::SeqCst);
}

/// Has a profiled job's last working sets reported: a short job may end before the first round.
/// Waits, bounded. No driver call.
pub fn report_last(link: &BrokerLink) {
    if !STARTED.load(Ordering::Acquire) || link.settings.purpose != Purpose::Profile || !link.is_attached() {
        return;
    }
    LAST_REPORT.store(true, Ordering::Release);
    let step = Duration::from_micros(50);
    let mut waited = Duration::ZERO;
    while LAST_REPORT.load(Ordering::Acquire) && waited < ENDING_TIMEOUT {
        // Each time, because the thread may be about to sleep.
        let _ = futex::wake(&link.lane.page_ops.bell, futex::Flags::empty(), 1);
        std::thread::sleep(step);
        waited += step;
    }
}

struct DriverPermit;

impl DriverPermit {
    fn take() -> Option<DriverPermit> {
        INSIDE.store(true, Ordering::SeqCst);
        let leave = DriverPermit;
        (ENDING.load(Ordering::SeqCst) == 0 && !capture::any()).then_some(leave)
    }
}

impl Drop for DriverPermit {
    fn drop(&mut self) {
        INSIDE.store(false, Ordering::SeqCst);
    }
}

#[derive(Debug, Clone, Copy)]
struct ContextStreams {
    context: CuContext,
    inward: CuStream,
    outward: CuStream,
}

#[derive(Debug)]
struct ActiveOp {
    number: u64,
    kind: PageOpKind,
    /// Ordered range: address and bytes.
    range: (u64, u64),
    bytes: u64,
    /// Event behind the last part, and its context.
    event: CuEvent,
    context: CuContext,
    stream: CuStream,
    /// Event of the stream's previous page operation, if it was pending when this operation was
    /// queued. The time between the two events is this operation's.
    follows: Option<CuEvent>,
    /// Another page operation needs this event.
    followed: bool,
    since: Ns,
    late: bool,
    discarded: Vec<KeptBlock>,
    advice: Vec<RepeatedAdvice>,
}

struct MigrationThread {
    link: &'static BrokerLink,
    consumer: PageOpConsumer,
    attachment: u64,
    ended: u32,
    streams: Vec<ContextStreams>,
    events: Vec<(CuContext, CuEvent)>,
    active: Vec<ActiveOp>,
    current: CuContext,
    /// End of the last round, ns, and the ranges named in it.
    last_report: Ns,
    touched: Option<Vec<u64>>,
    report_again: bool,
    /// Time of the last read of the host's memory, ns; 0: none.
    host_polled: Ns,
    /// Whether the process had a system call filter at the start, as in a container.
    filtered: bool,
    learner: Option<Learner>,
}

/// Whether the process has a system call filter; true if that cannot be read.
fn is_filtered() -> bool {
    use rustix::thread::{SecureComputingMode, secure_computing_mode};
    secure_computing_mode() != Ok(SecureComputingMode::Disabled)
}

impl MigrationThread {
    fn new(link: &'static BrokerLink) -> MigrationThread {
        MigrationThread {
            link,
            consumer: PageOpConsumer::default(),
            attachment: 0,
            ended: ENDED.load(Ordering::Acquire),
            streams: Vec::new(),
            events: Vec::new(),
            active: Vec::new(),
            current: 0,
            last_report: 0,
            touched: None,
            report_again: true,
            host_polled: 0,
            filtered: is_filtered(),
            learner: None,
        }
    }

    fn run(&mut self) {
        let mut mode = RELAXED;
        // SAFETY: the mode is an int that the call exchanges.
        let _ = unsafe { calls::cuThreadExchangeStreamCaptureMode(&mut mode) };
        if self.link.settings.purpose == Purpose::Profile {
            self.learner = Some(Learner::begin());
        }
        loop {
            let page_ops = &self.link.lane.page_ops;
            // First of all: an order after this load changes the bell, so the nap does not begin.
            let bell = page_ops.bell.load(Ordering::Acquire);
            self.check_broker(page_ops);
            self.report_touched();
            self.report_host();
            let nap = match DriverPermit::take() {
                None => CAPTURE_NAP,
                Some(_leave) => {
                    self.start_pending(page_ops);
                    self.poll(page_ops);
                    if self.active.is_empty() { IDLE_NAP } else { POLL }
                }
            };
            sleep_until(&page_ops.bell, bell, nap);
        }
    }

    /// Reports to the broker how much host memory the control groups leave: the broker evicts no
    /// more.
    fn report_host(&mut self) {
        let now = clock::now();
        if self.host_polled != 0 && now.saturating_sub(self.host_polled) < HOST_POLL_NS {
            return;
        }
        self.host_polled = now;
        // A filter that was installed since then may forbid opening files.
        if is_filtered() && !self.filtered {
            return;
        }
        // 0 is no limit.
        let left = host::left_of_groups().map_or(0, |left| left.max(1));
        self.link.lane.counters.host_left.store(left, Ordering::Relaxed);
    }

    /// Handles a new or lost broker, and ended contexts.
    fn check_broker(&mut self, page_ops: &PageOps) {
        let attachment = self.link.attachment();
        if attachment != self.attachment {
            self.attachment = attachment;
            self.consumer.begin_anew();
            self.touched = None;
            self.report_again = true;
            evicted::forget();
            evicted::wake();
            // These are the former broker's.
            for out in std::mem::take(&mut self.active) {
                pool::put_back(out.discarded);
            }
        }
        let attached = self.link.is_attached();
        if !attached && evicted::any() {
            // No broker will bring evicted memory back.
            evicted::forget();
            evicted::wake();
        }
        page_ops.served.store(u32::from(attached), Ordering::Release);
        let ended = ENDED.load(Ordering::Acquire);
        if ended != self.ended {
            self.ended = ended;
            self.current = 0;
            self.streams.clear();
            self.events.clear();
            for out in std::mem::take(&mut self.active) {
                page_ops.end(out.number, PageOpStatus::Gone);
            }
        }
    }

    /// Reports the job's period, and once per round the touched ranges.
    fn report_touched(&mut self) {
        let now = clock::now();
        if self.link.is_attached()
            && let Some((number, forecast)) = access_tracker::news(std::mem::take(&mut self.report_again))
        {
            send_forecast(self.link, number, &forecast);
        }
        let last = LAST_REPORT.load(Ordering::Acquire);
        if (now.saturating_sub(self.last_report) < ROUND_NS && !last) || !self.link.is_attached() {
            return;
        }
        self.last_report = now;
        let touched = access_tracker::end_round();
        if touched != self.touched {
            report_touched(self.link, touched.clone());
            self.touched = touched;
        }
        if let Some(learner) = self.learner.as_mut() {
            for set in learner.news() {
                self.link.tell(ToBroker::WorkingSet(set));
            }
        }
        if last {
            LAST_REPORT.store(false, Ordering::Release);
        }
    }

    fn start_pending(&mut self, page_ops: &PageOps) {
        while self.active.len() < MOST_OPS
            && let Some((number, page_op)) = self.consumer.next(page_ops)
        {
            match self.start_op(number, &page_op) {
                Ok(Some(out)) => self.active.push(out),
                Ok(None) => self.finish(page_ops, number, PageOpStatus::Done, 0),
                Err(outcome) => {
                    if page_op.kind.is_inward() {
                        evicted::arrived(page_op.start, page_op.bytes);
                        evicted::wake();
                    }
                    self.finish(page_ops, number, outcome, 0);
                }
            }
        }
    }

    fn finish(&self, page_ops: &PageOps, number: u64, outcome: PageOpStatus, took: Ns) {
        if outcome == PageOpStatus::Refused {
            self.link.lane.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
        page_ops.end_timed(number, outcome, took);
        self.link.fence_and_ring();
    }

    /// Begins a page operation. `None`: it was advice, and is already done.
    fn start_op(&mut self, number: u64, page_op: &PageOp) -> Result<Option<ActiveOp>, PageOpStatus> {
        let end = page_op.start.saturating_add(page_op.bytes);
        if page_op.kind == PageOpKind::MostlyRead {
            residency_probe::turn_off();
        }
        if page_op.kind == PageOpKind::Discard {
            let discarded = pool::borrow(page_op.start, end);
            if let Some(first) = discarded.first() {
                let context = first.range.context;
                return self.discard(number, context, discarded).map(Some);
            }
        }
        let mut parts = ranges::within(page_op.start, end);
        // Freed blocks leave too, but never return.
        if !page_op.kind.is_inward() {
            parts.extend(pool::within(page_op.start, end));
        }
        let Some((_, first)) = parts.first() else {
            return Err(PageOpStatus::Gone);
        };
        let context = first.context;
        let streams = self.enter(context)?;
        let stream = if page_op.kind.is_inward() {
            streams.inward
        } else {
            streams.outward
        };
        let (mut bytes, mut advice) = (0, Vec::new());
        for (part, range) in &parts {
            let length = part.end - part.start;
            let result = match page_op.kind {
                PageOpKind::Prefetch | PageOpKind::Populate | PageOpKind::Confirm => {
                    mem_advise::prefetch(part.start, length, Some(range.device), stream)
                }
                // The content may still be needed.
                PageOpKind::Evict | PageOpKind::Release | PageOpKind::Discard => {
                    advice.extend(mem_advise::end_before_leaving(part.start, length, range.device));
                    mem_advise::prefetch(part.start, length, None, stream)
                }
                PageOpKind::MostlyRead => mem_advise::mostly_read(part.start, length, range.device),
                PageOpKind::Written => {
                    for out in &mut self.active {
                        mem_advise::exclude(&mut out.advice, part.start, length);
                    }
                    mem_advise::end_mostly_read(part.start, length, range.device)
                }
            };
            match result {
                CuResult::SUCCESS => bytes += length,
                // Freed meanwhile.
                _ if ranges::of(part.start).is_none() => {}
                _ => {
                    mem_advise::advise_again(advice);
                    return Err(PageOpStatus::Refused);
                }
            }
        }
        if matches!(page_op.kind, PageOpKind::MostlyRead | PageOpKind::Written) {
            return Ok(None);
        }
        let Some(event) = self.mark(context, stream) else {
            mem_advise::advise_again(advice);
            return Err(PageOpStatus::Refused);
        };
        if !page_op.kind.is_inward() || page_op.kind == PageOpKind::Confirm {
            evicted::mark_evicted(page_op.start, page_op.bytes);
        }
        let follows = self.follows(stream);
        Ok(Some(ActiveOp {
            number,
            kind: page_op.kind,
            range: (page_op.start, page_op.bytes),
            bytes,
            event,
            context,
            stream,
            follows,
            followed: false,
            since: clock::now(),
            late: false,
            discarded: Vec::new(),
            advice,
        }))
    }

    fn discard(
        &mut self,
        number: u64,
        context: CuContext,
        discarded: Vec<KeptBlock>,
    ) -> Result<ActiveOp, PageOpStatus> {
        let begun = self.enter(context).and_then(|streams| {
            let starts: Vec<u64> = discarded.iter().map(|spare| spare.at).collect();
            let sizes: Vec<usize> = discarded.iter().map(|spare| spare.range.room as usize).collect();
            // SAFETY: both lists have `starts.len()` entries, and are read before the return.
            let result = unsafe {
                calls::cuMemDiscardBatchAsync(starts.as_ptr(), sizes.as_ptr(), starts.len(), 0, streams.outward)
            };
            let event = result.ok().then(|| self.mark(context, streams.outward)).flatten();
            event.map(|event| (event, streams.outward)).ok_or(PageOpStatus::Refused)
        });
        match begun {
            Ok((event, stream)) => Ok(ActiveOp {
                number,
                kind: PageOpKind::Discard,
                range: (0, 0),
                bytes: discarded.iter().map(|spare| spare.range.room).sum(),
                event,
                context,
                stream,
                follows: None,
                followed: false,
                since: clock::now(),
                late: false,
                discarded,
                advice: Vec::new(),
            }),
            Err(outcome) => {
                pool::put_back(discarded);
                Err(outcome)
            }
        }
    }

    /// Makes a context current, with this thread's streams in it.
    fn enter(&mut self, context: CuContext) -> Result<ContextStreams, PageOpStatus> {
        if self.current != context {
            // SAFETY: the job's context; if it is gone, the driver returns an error.
            if !unsafe { calls::cuCtxSetCurrent(context) }.ok() {
                return Err(PageOpStatus::Gone);
            }
            self.current = context;
        }
        if let Some(known) = self.streams.iter().find(|streams| streams.context == context) {
            return Ok(*known);
        }
        let mut made = [0; 2];
        for stream in &mut made {
            // SAFETY: valid out-parameter.
            if !unsafe { calls::cuStreamCreate(stream, NON_BLOCKING) }.ok() {
                return Err(PageOpStatus::Refused);
            }
        }
        let [inward, outward] = made;
        let streams = ContextStreams {
            context,
            inward,
            outward,
        };
        self.streams.push(streams);
        Ok(streams)
    }

    /// Records an event after the work on a stream.
    fn mark(&mut self, context: CuContext, stream: CuStream) -> Option<CuEvent> {
        let kept = self.events.iter().position(|(of, _)| *of == context);
        let mut event = kept.map_or(0, |at| self.events.swap_remove(at).1);
        if event == 0 {
            // SAFETY: valid out-parameter.
            if !unsafe { calls::cuEventCreate(&mut event, WITH_TIME) }.ok() {
                return None;
            }
        }
        // SAFETY: our event, our stream.
        if unsafe { calls::cuEventRecord(event, stream) }.ok() {
            return Some(event);
        }
        self.events.push((context, event));
        None
    }

    /// The last page operation's event on a stream, if pending after the next one was queued.
    fn follows(&mut self, stream: CuStream) -> Option<CuEvent> {
        let last = self.active.iter_mut().rev().find(|out| out.stream == stream)?;
        // SAFETY: our event.
        if unsafe { calls::cuEventQuery(last.event) } != CuResult::NOT_READY {
            return None;
        }
        last.followed = true;
        Some(last.event)
    }

    /// Ends the page operations whose events were reached.
    fn poll(&mut self, page_ops: &PageOps) {
        let now = clock::now();
        let mut going = Vec::new();
        for mut out in std::mem::take(&mut self.active) {
            // SAFETY: our event.
            let outcome = match unsafe { calls::cuEventQuery(out.event) } {
                CuResult::SUCCESS => Some(PageOpStatus::Done),
                CuResult::NOT_READY if now.saturating_sub(out.since) < GIVE_UP_NS => None,
                _ => Some(PageOpStatus::Refused),
            };
            let Some(outcome) = outcome else {
                if !out.late && now.saturating_sub(out.since) > LATE_NS {
                    out.late = true;
                    self.link.lane.counters.late.fetch_add(1, Ordering::Relaxed);
                }
                going.push(out);
                continue;
            };
            if out.kind.is_inward() {
                match outcome {
                    PageOpStatus::Done => evicted::page_op_arrived(out.range.0, out.range.1),
                    // The memory will not arrive.
                    _ => evicted::arrived(out.range.0, out.range.1),
                }
                evicted::wake();
            }
            let mut took = 0;
            if outcome == PageOpStatus::Done {
                took = timed(&out);
                if out.kind == PageOpKind::Prefetch && took > 0 {
                    evicted::update_rate(out.bytes, took);
                }
                if !out.followed {
                    self.events.push((out.context, out.event));
                }
                self.count(&out);
            }
            self.events.extend(out.follows.map(|event| (out.context, event)));
            pool::put_back(std::mem::take(&mut out.discarded));
            mem_advise::advise_again(std::mem::take(&mut out.advice));
            self.finish(page_ops, out.number, outcome, took);
        }
        self.active = going;
    }

    fn count(&self, out: &ActiveOp) {
        let counters = &self.link.lane.counters;
        let counter = match out.kind {
            PageOpKind::Prefetch | PageOpKind::Populate => &counters.prefetched,
            PageOpKind::Discard if !out.discarded.is_empty() => &counters.discarded,
            PageOpKind::Evict | PageOpKind::Release | PageOpKind::Discard => &counters.evicted,
            PageOpKind::MostlyRead | PageOpKind::Written | PageOpKind::Confirm => return,
        };
        counter.fetch_add(out.bytes, Ordering::Relaxed);
    }
}

/// Device time of an ended page operation, ns. 0: unknown, or not wholly moved.
fn timed(out: &ActiveOp) -> Ns {
    let Some(before) = out.follows.filter(|_| out.bytes == out.range.1) else {
        return 0;
    };
    let mut milliseconds: f32 = 0.0;
    // SAFETY: our events, both reached; the out-parameter is valid.
    if !unsafe { calls::cuEventElapsedTime(&mut milliseconds, before, out.event) }.ok() {
        return 0;
    }
    (f64::from(milliseconds.max(0.0)) * 1e6) as Ns
}
