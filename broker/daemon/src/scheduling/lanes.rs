// SPDX-License-Identifier: MIT OR Apache-2.0
//! One client's lane in the scheduler thread: reads reports, writes orders.
//!
//! A lane's content is an allegation. Records are copied, checked and counted; their times are
//! clamped to the last second. A changed header or malformed records detach the lane
//! ([`LaneFault`]).
//! Nothing that a client writes makes this code wait, loop or panic.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::thread::futex;

use super::lane_rotation::WatchSlot;
use crate::base::trace::{Line, Trace};
use crate::clients::registry::Entry;
use crate::profiles::writer::Observation;
use weft_protocol::control::ToClient;
use weft_protocol::credit::RunAheadWindow;
use weft_protocol::epoch_page;
use weft_protocol::lane::{self, Kind, LaneRecord, MAGIC, Mode, NO_GAP, RECORDS, Reader, bells, flags};
use weft_protocol::{Ns, VERSION};
use weft_scheduler::{Client, Event};

/// Least time, ns, between rings that a napping broker requests from a foreground job. A ring costs
/// 2 us, a system call that wakes another core: 0.2 % at most.
const RING_PAUSE_NS: Ns = 1_000_000;

/// Number of newest records read per iteration from a lane that overran its reader.
///
/// Such a lane has lost records in any case. Old records make a busy job look idle, and each read
/// takes a cache line from the launching thread.
const OF_A_FAST_LANE: usize = RECORDS / 16;

/// Interval at which a lasting wait is reported again, ns.
///
/// The core may assume that the wait is over, because of another thread's late record or a mode
/// change and back. The gate would then remain closed for the longest wait. 1000 waiting clients
/// make 50,000 reports/s.
const TOLD_AGAIN_NS: Ns = 20_000_000;

/// Greatest age of a record, ns; a parked broker reads after 0.2 s.
const OLDEST_RECORD_NS: Ns = 1_000_000_000;

/// Reason why a lane was detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LaneFault {
    /// The magic changed.
    #[error("its lane lost the magic number")]
    Magic,
    /// The version changed.
    #[error("its lane changed to version {0}")]
    Version(u32),
    /// Number of malformed records.
    #[error("{0} of its records are malformed")]
    Records(u64),
}

/// Result of one iteration's read of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneRead {
    /// Records read.
    pub records: usize,
    /// Whether one is a launch; if so, a foreground job's launch epoch is bumped.
    pub launches: bool,
    /// Whether anything is new.
    pub news: bool,
    /// Whether a launch waits at the gate.
    pub waits: bool,
}

/// One client's lane.
#[derive(Debug)]
pub struct LaneWatch {
    entry: Arc<Entry>,
    reader: Reader,
    mode: Mode,
    row: usize,
    /// Sums of issued, settled and renewed work, ns.
    progress: (Ns, Ns, Ns),
    /// Kernel, cost and start of the reported wait; a new start is a new wait.
    waiting: Option<(u64, Ns, Ns)>,
    /// Time of the last report of the wait to the core.
    told_at: Ns,
    /// Whether the figures were reported between two reads.
    told_early: bool,
    naps_since: Option<Ns>,
    slot: Option<WatchSlot>,
    /// Charges not sent to the client yet.
    charges: BTreeMap<u64, Ns>,
    /// Number of messages with charges sent to the client.
    charges_sent: u64,
}

/// Most charges in one message.
const CHARGES_AT_ONCE: usize = 512;

impl LaneWatch {
    /// Starts in mode `Alone`.
    pub fn new(entry: Arc<Entry>) -> LaneWatch {
        LaneWatch {
            entry,
            reader: Reader::default(),
            mode: Mode::Alone,
            row: 0,
            progress: (0, 0, 0),
            waiting: None,
            told_at: 0,
            told_early: false,
            naps_since: None,
            slot: None,
            charges: BTreeMap::new(),
            charges_sent: 0,
        }
    }

    /// Puts a guest's lane into the rotation.
    pub fn in_rotation(self, slot: WatchSlot) -> LaneWatch {
        LaneWatch {
            slot: Some(slot),
            ..self
        }
    }

    /// Whether a launch waited at the last read.
    pub fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the lane is read in this iteration.
    pub fn is_due(&self, turn: u64) -> bool {
        self.slot.as_ref().is_none_or(|slot| slot.is_due(turn))
    }

    /// The lane's client.
    pub fn client(&self) -> Client {
        Client(self.entry.client)
    }

    /// The client's registry entry.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The mode last written.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Reads all new records as events with their times.
    pub fn drain(
        &mut self,
        now: Ns,
        events: &mut Vec<(Ns, Event)>,
        seen: &mut Vec<Observation>,
        trace: &mut Trace,
    ) -> Result<LaneRead, LaneFault> {
        let lane = Arc::clone(&self.entry.lane);
        if lane.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(LaneFault::Magic);
        }
        match lane.version.load(Ordering::Relaxed) {
            VERSION => {}
            other => return Err(LaneFault::Version(other)),
        }
        let mut found = LaneRead::default();
        // At most the length of the ring, then other lanes.
        let mut most = RECORDS;
        let lost = self.reader.lost();
        while found.records < most
            && let Some(record) = self.reader.next(&lane)
        {
            found.records += 1;
            found.launches |= matches!(record.kind, Kind::Launch | Kind::Graph);
            self.take(record, now, events, seen, trace);
            if most == RECORDS && self.reader.lost() != lost {
                most = found.records + OF_A_FAST_LANE;
                self.reader.leave_all_but(&lane, OF_A_FAST_LANE);
            }
        }
        if self.reader.malformed() > 0 {
            return Err(LaneFault::Records(self.reader.malformed()));
        }
        let figures = &self.entry.figures;
        if found.records > 0 {
            figures.records.fetch_add(found.records as u64, Ordering::Relaxed);
            figures.lost.store(self.reader.lost(), Ordering::Relaxed);
        }
        self.send_charges();
        let told = self.reports(now, &lane, events);
        found.news = told || found.records > 0;
        found.waits = self.waiting.is_some();
        Ok(found)
    }

    fn take(
        &mut self,
        record: LaneRecord,
        now: Ns,
        events: &mut Vec<(Ns, Event)>,
        seen: &mut Vec<Observation>,
        trace: &mut Trace,
    ) {
        let client = self.client();
        let at = plausible(record.at, now);
        let kernel = record.kernel;
        let (name, event) = match record.kind {
            Kind::Launch | Kind::Graph => {
                // In other modes the client sends `Counted`.
                if self.entry.profiling && self.mode == Mode::Background {
                    seen.push(Observation::Launches(kernel, 1));
                }
                let name = if record.kind == Kind::Launch { "launch" } else { "graph" };
                (name, Some(launched(client, kernel, record.a, at)))
            }
            Kind::Transfer => ("transfer", Some(launched(client, kernel, record.a, at))),
            Kind::Idle if record.a == 0 => ("idle", Some(Event::Idle(client, at))),
            Kind::Idle => ("idle", Some(Event::FoundIdle(client, at))),
            Kind::WakeUpHint => ("hint", Some(Event::WakeUpHint(client, at))),
            Kind::PartialWait => {
                let (covers, since) = (kernel.min(at), at.saturating_sub(record.a));
                let part = Event::PartialWait {
                    client,
                    covers,
                    since,
                    at,
                };
                events.push((at, part));
                return;
            }
            // Also reported outside of the ring, without loss.
            Kind::Wait => ("wait", None),
            Kind::Counted => {
                seen.push(Observation::Launches(kernel, record.a));
                return;
            }
            Kind::SampleError => {
                if self.entry.profiling {
                    seen.push(Observation::SampleError(kernel, record.a, record.b));
                }
                return;
            }
            Kind::Between => {
                self.entry.figures.samples.fetch_add(1, Ordering::Relaxed);
                events.push((
                    at,
                    Event::SampledBetween {
                        client,
                        kernel,
                        least: record.a,
                        most: record.b,
                        at,
                    },
                ));
                return;
            }
            Kind::Sample => {
                self.entry.figures.samples.fetch_add(1, Ordering::Relaxed);
                seen.extend(self.sample(record));
                let time = record.a;
                events.push((
                    at,
                    Event::Sampled {
                        client,
                        kernel,
                        time,
                        at,
                    },
                ));
                return;
            }
        };
        events.extend(event.map(|event| (at, event)));
        trace.line(|| Line {
            t: record.at,
            client: client.0,
            pid: self.entry.pid,
            event: name,
            kernel: Some(format!("{kernel:016x}")),
            ns: i64::try_from(record.a).ok(),
            what: None,
        });
    }

    fn sample(&self, record: LaneRecord) -> Option<Observation> {
        let gap = (record.b != NO_GAP).then_some(record.b);
        let sample = Observation::Sample(record.kernel, record.a, gap);
        self.entry.profiling.then_some(sample)
    }

    /// Reads the reports outside of the ring; makes events from changes.
    fn reports(&mut self, now: Ns, lane: &lane::Lane, events: &mut Vec<(Ns, Event)>) -> bool {
        let client = self.client();
        let reports = &lane.reports;
        let before = events.len();
        // Read before and after the figures. A waiting client has reported its earlier launches. A
        // client that has reported the awaited launch no longer waits.
        let look = || {
            let waits = reports.waiting.load(Ordering::Acquire) == 1;
            waits.then(|| reports.waiting_since.load(Ordering::Relaxed))
        };
        let first = look();
        let issued = reports.issued.load(Ordering::Acquire);
        let settled = reports.completed.load(Ordering::Acquire);
        // Read after issued and settled, so at each moment one of them counts the work.
        let progress = (issued, settled, reports.replenished.load(Ordering::Acquire));
        let waits = first.is_some() && look() == first;
        let progressed = std::mem::take(&mut self.told_early) || progress != self.progress;
        if progressed {
            self.progress = progress;
            let (issued, settled, total) = progress;
            events.push((
                now,
                Event::Progress {
                    client,
                    issued,
                    settled,
                },
            ));
            if total > 0 {
                events.push((now, Event::Renewed { client, total }));
            }
        }
        let waiting = waits.then(|| {
            (
                reports.wanted_kernel.load(Ordering::Relaxed),
                reports.wanted_cost.load(Ordering::Relaxed),
                reports.waiting_since.load(Ordering::Relaxed),
            )
        });
        // Reported again after other news, because the core may take another thread's launch for
        // this wait's end; and periodically.
        let again = progressed || now.saturating_sub(self.told_at) >= TOLD_AGAIN_NS;
        if waiting != self.waiting || (again && waiting.is_some()) {
            self.waiting = waiting;
            self.told_at = now;
            if waiting.is_some() {
                // Read after the reports: credit in neither is on its way.
                let left = lane.orders.credit.load(Ordering::Acquire);
                events.push((now, Event::Holds { client, left }));
            }
            events.push((
                now,
                match waiting {
                    Some((kernel, cost, since)) => Event::Waits {
                        client,
                        kernel,
                        cost,
                        // The core bounds it: a bound that moves would make it another wait.
                        since: since.min(now),
                    },
                    None => Event::Passed(client),
                },
            ));
        }
        events.len() > before
    }

    /// Sets whether the client must ring. Set before the broker sleeps, cleared after.
    pub fn want_bell(&mut self, wanted: bool) {
        self.naps_since = None;
        let wanted = if wanted { bells::ALL } else { bells::NONE };
        self.entry.lane.broker_sleeps.store(wanted, Ordering::SeqCst);
    }

    /// Requests rings before a possible nap: from a background job for any record, from a
    /// foreground job if it becomes idle.
    ///
    /// A foreground job is asked once per [`RING_PAUSE_NS`], because a job that synchronises after
    /// each kernel would ring for each.
    pub fn want_bell_in_nap(&mut self, now: Ns) {
        let wanted = if self.mode == Mode::Background {
            bells::ALL
        } else {
            bells::IDLE
        };
        let word = &self.entry.lane.broker_sleeps;
        if word.load(Ordering::Relaxed) == wanted {
            return;
        }
        if wanted == bells::IDLE {
            if self
                .naps_since
                .is_some_and(|since| now.saturating_sub(since) < RING_PAUSE_NS)
            {
                return;
            }
            self.naps_since = Some(now);
        }
        word.store(wanted, Ordering::SeqCst);
    }

    /// Writes the mode. If it changes to or from background, credit and debt end and are returned.
    pub fn tell_mode(&mut self, mode: Mode) -> Option<i64> {
        let orders = &self.entry.lane.orders;
        let mut left = 0;
        if (mode == Mode::Background) != (self.mode == Mode::Background) {
            orders.set_window(None);
            left = orders.take_back();
            self.entry.figures.revoked.fetch_add(left as u64, Ordering::Relaxed);
        }
        self.mode = mode;
        orders.mode.store(mode as u32, Ordering::Release);
        self.entry.figures.mode.store(mode as u64, Ordering::Relaxed);
        self.ring();
        (left != 0).then_some(left)
    }

    pub fn tell_priority(&self, priority: u8) {
        self.entry.priority.store(priority, Ordering::Relaxed);
        self.tell_epoch();
    }

    /// Writes the device's row on the epoch page.
    pub fn tell_row(&mut self, row: usize) {
        self.row = row;
        self.tell_epoch();
    }

    /// The device's row on the epoch page.
    pub fn row(&self) -> usize {
        self.row
    }

    /// Index of the client's launch epoch on the epoch page.
    pub fn epoch(&self) -> usize {
        epoch_page::epoch(self.row, usize::from(self.entry.priority.load(Ordering::Relaxed)))
    }

    fn tell_epoch(&self) {
        self.entry
            .lane
            .orders
            .epoch
            .store(self.epoch() as u32, Ordering::Release);
        self.ring();
    }

    /// Grants credit, predicted ns. Credit bound to other launch epochs is first taken back and
    /// returned.
    pub fn grant(&self, credit: Ns, bound_to: Option<u64>) -> Option<i64> {
        let figures = &self.entry.figures;
        figures.granted.fetch_add(credit, Ordering::Relaxed);
        let credit = i64::try_from(credit).unwrap_or(i64::MAX);
        let left = self.entry.lane.orders.grant(credit, bound_to);
        figures.revoked.fetch_add(left as u64, Ordering::Relaxed);
        self.ring();
        (left != 0).then_some(left)
    }

    /// Events for progress and returned credit from before the credit word was emptied. The core
    /// gets them before `Revoked`.
    pub fn books(&mut self) -> Vec<Event> {
        let (client, reports) = (self.client(), &self.entry.lane.reports);
        let issued = reports.issued.load(Ordering::Acquire);
        let settled = reports.completed.load(Ordering::Acquire);
        let total = reports.replenished.load(Ordering::Acquire);
        if total == self.progress.2 {
            return Vec::new();
        }
        self.progress = (issued, settled, total);
        self.told_early = true;
        let figures = Event::Progress {
            client,
            issued,
            settled,
        };
        vec![figures, Event::Renewed { client, total }]
    }

    /// Sets the client's run-ahead window.
    pub fn set_window(&self, window: Option<RunAheadWindow>) {
        self.entry.lane.orders.set_window(window);
        self.ring();
    }

    /// Turns timed launches on or off.
    pub fn time_launches(&self, wanted: bool) {
        let flags = &self.entry.lane.orders.flags;
        match wanted {
            true => flags.fetch_or(flags::SAMPLE, Ordering::Release),
            false => flags.fetch_and(!flags::SAMPLE, Ordering::Release),
        };
    }

    /// Sets the client's charge for a kernel; kernel 0: for kernels that its table does not have.
    pub fn charge(&mut self, kernel: u64, charge: Ns) {
        match kernel {
            0 => self.entry.lane.orders.unknown_cost.store(charge, Ordering::Relaxed),
            _ => {
                self.charges.insert(kernel, charge);
                self.send_charges();
            }
        }
    }

    /// Sends charges if the client has read the earlier ones. So at most one message is on its way,
    /// and the scheduler's thread never waits for a client that does not read.
    fn send_charges(&mut self) {
        let heard = self.entry.lane.counters.charges.load(Ordering::Relaxed);
        if self.charges.is_empty() || heard < self.charges_sent {
            return;
        }
        let next = std::iter::from_fn(|| self.charges.pop_first());
        let costs: Vec<(u64, Ns)> = next.take(CHARGES_AT_ONCE).collect();
        match self.entry.say(ToClient::Costs(costs.clone())) {
            true => self.charges_sent += 1,
            false => self.charges.extend(costs),
        }
    }

    /// Takes back the remaining credit and returns it.
    pub fn revoke(&self) -> i64 {
        self.entry.lane.orders.set_window(None);
        let left = self.entry.lane.orders.take_back();
        self.entry.figures.revoked.fetch_add(left as u64, Ordering::Relaxed);
        self.ring();
        left
    }

    /// Counts the change and wakes threads that sleep on it.
    fn ring(&self) {
        let bell = &self.entry.lane.orders.bell;
        bell.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        // A foreground job never sleeps on it, but mode changes are too rare to save the call.
        let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
    }
}

fn launched(client: Client, kernel: u64, cost: Ns, at: Ns) -> Event {
    Event::Launched {
        client,
        kernel,
        cost,
        at,
    }
}

/// Clamps a reported time to `[now - OLDEST_RECORD_NS, now]`.
fn plausible(at: Ns, now: Ns) -> Ns {
    at.clamp(now.saturating_sub(OLDEST_RECORD_NS), now)
}

#[cfg(test)]
mod tests;
