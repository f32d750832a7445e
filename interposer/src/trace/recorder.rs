// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records calls in order, with host and device times.
//!
//! A call is noted before the driver gets it and completed when it returns. Work is between two
//! events. Their times are read, oldest first, after the device has passed them, mostly after a
//! wait of the job's. The lock is held for some event calls. The recorder waits for the device only
//! when [`MOST_PENDING`] calls are unread, within a bound.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_protocol::Ns;
use weft_trace_format::MAX_OPERATIONS;
use weft_trace_format::raw::{CallKind, MarkTime, Record, TimedCall};

use super::writer::Writer;
use crate::client::clock;
use crate::driver::capture;
use crate::driver::events::{Context, Event, EventCalls, Reached};
use crate::driver::stream::Stream;
use crate::thread;

/// Most unread calls: two events each, some hundred bytes per call.
const MOST_PENDING: usize = 16 * 1024;

/// Calls between two searches for readable calls, for jobs that seldom wait.
const LOOK: usize = 512;

/// Pieces of work between two extra events, whose least distance is an event's cost.
const TICK: usize = 61;

/// Longest wait for the device when [`MOST_PENDING`] calls are unread.
const PATIENCE: Duration = Duration::from_secs(5);

/// Interval between two queries during such a wait.
const ASK: Duration = Duration::from_micros(200);

/// A call that is with the driver.
#[derive(Debug, Clone, Copy)]
pub struct RecordTicket(u64);

/// Record of a call.
#[derive(Debug, Clone, Copy)]
pub enum RecordedCall {
    /// Work or a wait.
    Operation {
        /// The operation.
        what: CallKind,
        /// Stream of the events around it; `None` if the call is not work.
        timed: Option<Stream>,
    },
    /// Start of a step.
    Mark,
    /// End of a step.
    Stop,
}

#[derive(Debug)]
enum PendingKind {
    Operation(TimedCall),
    Mark,
    Stop,
}

#[derive(Debug, Clone, Copy)]
struct RecorderEvents {
    context: Context,
    stream: Stream,
    start: Event,
    end: Event,
    extra: Option<Event>,
}

#[derive(Debug)]
struct PendingCall {
    kind: PendingKind,
    moment: MarkTime,
    pair: Option<RecorderEvents>,
    /// Whether the call has returned to the job.
    complete: bool,
    /// Whether the driver refused the call; it is then not recorded.
    refused: bool,
}

#[derive(Debug)]
struct RecorderState {
    writer: Writer,
    spare: HashMap<Context, Vec<Event>>,
    pending: VecDeque<PendingCall>,
    /// Numbers of the first pending call and of the next one.
    first: u64,
    next: u64,
    operations: usize,
    timed: usize,
    /// End event of the last work read, and its place on the device's time axis.
    last: Option<(Context, Event)>,
    axis: f64,
}

/// Recorder of a process.
#[derive(Debug)]
pub struct Recorder {
    driver: EventCalls,
    inside: Mutex<RecorderState>,
    /// Whether a first mark was set: calls from then on are recorded.
    marked: AtomicBool,
}

impl Recorder {
    /// A recorder with this driver and writer.
    pub fn new(driver: EventCalls, writer: Writer) -> Recorder {
        Recorder {
            driver,
            inside: Mutex::new(RecorderState {
                writer,
                spare: HashMap::new(),
                pending: VecDeque::new(),
                first: 0,
                next: 0,
                operations: 0,
                timed: 0,
                last: None,
                axis: 0.0,
            }),
            marked: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RecorderState> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a record that is not a call.
    pub fn write(&self, record: &Record) {
        self.lock().writer.put(record);
    }

    /// Whether a first mark was set.
    pub fn is_marked(&self) -> bool {
        self.marked.load(Ordering::Relaxed)
    }

    /// Whether to record a call.
    pub fn wants(&self, call: &RecordedCall) -> bool {
        matches!(call, RecordedCall::Mark) || self.is_marked()
    }

    /// Notes a call that came in at `entered`. `preempted`: ns without a processor before it.
    pub fn before(&self, call: RecordedCall, entered: Ns, preempted: Ns) -> Option<RecordTicket> {
        let mut inside = self.lock();
        if !inside.writer.is_open() {
            return None;
        }
        let inside = &mut *inside;
        if inside.pending.len() >= MOST_PENDING {
            inside.wait(&self.driver);
        }
        let kind = match call {
            RecordedCall::Mark => {
                self.marked.store(true, Ordering::Relaxed);
                inside.writer.flush();
                PendingKind::Mark
            }
            RecordedCall::Stop => PendingKind::Stop,
            RecordedCall::Operation { what, .. } => {
                inside.operations += 1;
                if inside.operations > MAX_OPERATIONS {
                    inside
                        .writer
                        .end(&format!("more than {MAX_OPERATIONS} operations: mark fewer steps"));
                    return None;
                }
                PendingKind::Operation(TimedCall {
                    thread: 0,
                    sequence: 0,
                    what,
                    entered: 0,
                    preempted: 0,
                    called: 0,
                    returned: 0,
                    left: 0,
                    device: None,
                    tick: None,
                })
            }
        };
        let pair = match call {
            RecordedCall::Operation {
                timed: Some(stream), ..
            } if !capture::any() => inside.pair(&self.driver, stream),
            _ => None,
        };
        let sequence = inside.next;
        inside.next += 1;
        inside.pending.push_back(PendingCall {
            kind,
            moment: MarkTime {
                thread: thread::id(),
                sequence,
                entered,
                left: entered,
                preempted,
            },
            pair,
            complete: false,
            refused: false,
        });
        Some(RecordTicket(sequence))
    }

    /// Completes a call: the driver had it from `called` to `returned`; `ok` if it succeeded.
    pub fn after(&self, ticket: RecordTicket, called: Ns, returned: Ns, ok: bool) {
        let mut inside = self.lock();
        let inside = &mut *inside;
        let Some(at) = ticket
            .0
            .checked_sub(inside.first)
            .and_then(|at| usize::try_from(at).ok())
        else {
            return;
        };
        let pair = inside.pending.get(at).and_then(|pending| pending.pair);
        let ended = pair.and_then(|pair| inside.end(&self.driver, pair, ok));
        let Some(pending) = inside.pending.get_mut(at) else {
            return;
        };
        let waited = match &mut pending.kind {
            PendingKind::Operation(operation) => {
                (operation.called, operation.returned) = (called, returned);
                matches!(
                    operation.what,
                    CallKind::SyncAll | CallKind::SyncStream(_) | CallKind::SyncEvent(_)
                )
            }
            PendingKind::Mark | PendingKind::Stop => true,
        };
        pending.pair = ended;
        pending.refused = !ok;
        if waited || inside.next.is_multiple_of(LOOK as u64) {
            inside.drain(&self.driver);
        }
        // The time of the read above belongs to this call.
        if let Some(pending) = inside.find(ticket) {
            pending.moment.left = clock::now();
            pending.complete = true;
        }
    }

    /// Reads the calls that the device has passed.
    pub fn read_on(&self) {
        self.lock().drain(&self.driver);
    }

    /// Forgets the events of an ended context; 0: an unknown context.
    pub fn forget(&self, context: Context) {
        let its = |of: Context| context == 0 || of == context;
        let mut inside = self.lock();
        inside.spare.retain(|of, _| !its(*of));
        if inside.last.is_some_and(|(of, _)| its(of)) {
            inside.last = None;
        }
        for pending in &mut inside.pending {
            if pending.pair.is_some_and(|pair| its(pair.context)) {
                pending.pair = None;
            }
        }
    }

    /// Writes complete calls as the process ends. Makes no driver call.
    pub fn farewell(&self) {
        // If a thread holds the lock, its calls are not written: the process does not wait for it.
        let Ok(mut inside) = self.inside.try_lock() else { return };
        let inside = &mut *inside;
        while let Some(pending) = inside.pending.pop_front() {
            inside.tell(pending, None);
        }
        inside.writer.finish();
    }
}

impl RecorderState {
    fn find(&mut self, ticket: RecordTicket) -> Option<&mut PendingCall> {
        let at = usize::try_from(ticket.0.checked_sub(self.first)?).ok()?;
        self.pending.get_mut(at)
    }

    fn event(&mut self, driver: &EventCalls, context: Context) -> Option<Event> {
        let spare = self.spare.entry(context).or_default().pop();
        spare.or_else(|| driver.create(true))
    }

    fn give(&mut self, context: Context, event: Event) {
        self.spare.entry(context).or_default().push(event);
    }

    /// Makes two events and records the first one.
    fn pair(&mut self, driver: &EventCalls, stream: Stream) -> Option<RecorderEvents> {
        let context = driver.current()?;
        let start = self.event(driver, context)?;
        let end = self.event(driver, context);
        match end {
            Some(end) if driver.relaxed(|| driver.record(start, stream)) => Some(RecorderEvents {
                context,
                stream,
                start,
                end,
                extra: None,
            }),
            end => {
                self.give(context, start);
                end.into_iter().for_each(|end| self.give(context, end));
                None
            }
        }
    }

    /// Records the second event, sometimes with an extra one. `None` if that was not possible.
    fn end(&mut self, driver: &EventCalls, mut pair: RecorderEvents, ok: bool) -> Option<RecorderEvents> {
        // The call may have changed the context, or a capture may have begun meanwhile.
        let recorded = ok && !capture::any() && driver.relaxed(|| driver.record(pair.end, pair.stream));
        if !recorded {
            self.give(pair.context, pair.start);
            self.give(pair.context, pair.end);
            return None;
        }
        self.timed += 1;
        if self.timed.is_multiple_of(TICK)
            && let Some(extra) = self.event(driver, pair.context)
        {
            match driver.relaxed(|| driver.record(extra, pair.stream)) {
                true => pair.extra = Some(extra),
                false => self.give(pair.context, extra),
            }
        }
        Some(pair)
    }

    /// Reads and writes the calls that the device has passed, oldest first.
    fn drain(&mut self, driver: &EventCalls) {
        if capture::any() {
            return;
        }
        while let Some(pending) = self.pending.front() {
            if !pending.complete {
                return;
            }
            let reached = match pending.pair {
                None => Reached::Yes,
                Some(pair) => driver.relaxed(|| driver.query(pair.extra.unwrap_or(pair.end))),
            };
            if reached == Reached::NotYet {
                return;
            }
            let Some(pending) = self.pending.pop_front() else {
                return;
            };
            self.first += 1;
            let times = pending.pair.and_then(|pair| self.read(driver, pair, reached));
            self.tell(pending, times);
        }
    }

    /// Times of a pair: start, end, and an event's cost.
    fn read(&mut self, driver: &EventCalls, pair: RecorderEvents, reached: Reached) -> Option<(f64, f64, Option<f64>)> {
        let read = (reached == Reached::Yes).then(|| {
            // From the previous work's end: single-precision ms are exact only over short times.
            let since = match self.last {
                Some((context, last)) if context == pair.context => driver.elapsed(last, pair.start),
                _ => None,
            };
            let took = driver.elapsed(pair.start, pair.end)?;
            let tick = pair.extra.and_then(|extra| driver.elapsed(pair.end, extra));
            // After unknown work the device counts as idle for a long time.
            let start = self.axis + since.unwrap_or(LONG_IDLE_NS);
            Some((start, start + took, tick))
        });
        let times = read.flatten();
        let spare = match times {
            Some((_, end, _)) => {
                self.axis = end;
                self.last.replace((pair.context, pair.end))
            }
            None => Some((pair.context, pair.end)),
        };
        self.give(pair.context, pair.start);
        pair.extra.into_iter().for_each(|extra| self.give(pair.context, extra));
        if let Some((context, event)) = spare {
            self.give(context, event);
        }
        times
    }

    fn tell(&mut self, pending: PendingCall, times: Option<(f64, f64, Option<f64>)>) {
        // A call that is still with the driver at the process's end is not written either.
        if pending.refused || !pending.complete {
            return;
        }
        let moment = pending.moment;
        let record = match pending.kind {
            PendingKind::Mark => Record::Mark(moment),
            PendingKind::Stop => Record::Stop(moment),
            PendingKind::Operation(operation) => Record::Operation(TimedCall {
                thread: moment.thread,
                sequence: moment.sequence,
                entered: moment.entered,
                left: moment.left,
                preempted: moment.preempted,
                device: times.map(|(start, end, _)| (start, end)),
                tick: times.and_then(|(_, _, tick)| tick),
                ..operation
            }),
        };
        self.writer.put(&record);
    }

    /// Waits until the oldest unread call can be read.
    fn wait(&mut self, driver: &EventCalls) {
        let begin = clock::now();
        while self.pending.len() >= MOST_PENDING {
            self.drain(driver);
            if self.pending.len() < MOST_PENDING {
                return;
            }
            if clock::now().saturating_sub(begin) > PATIENCE.as_nanos() as Ns {
                self.writer.end("the device did not finish its work in time");
                self.pending.clear();
                self.first = self.next;
                return;
            }
            std::thread::sleep(ASK);
        }
    }
}

/// Stands for an idle time of unknown length, device ns.
const LONG_IDLE_NS: f64 = 1e9;
