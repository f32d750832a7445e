//! One client's lane, as the scheduler thread sees it: reads what the client reports, writes what
//! the core decided.
//!
//! A lane is an allegation. Its records are copied and checked before they become events: times lie
//! between the last turn and now, what is no record is counted, and a lane whose header changes or
//! whose records make no sense is let go ([`Lie`]). Nothing a client writes can make this code
//! wait, loop or panic.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::thread::futex;
use weft_profiles::refine::{Beside, Timed};

use super::registry::Entry;
use super::rota::Slot;
use super::trace::{Line, Trace};
use weft_protocol::credit::RunAheadWindow;
use weft_protocol::epoch_page;
use weft_protocol::lane::{self, Kind, MAGIC, Mode, NO_GAP, RECORDS, Reader, Record, bells, flags};
use weft_protocol::{Ns, VERSION};
use weft_scheduler::{Client, Event};

/// A ring costs a foreground job some 2 us (a system call that wakes another core): 0.2 % of its
/// time at most.
const RING_PAUSE: Ns = 1_000_000;

/// Of a lane that was written faster than it was read, so many of the newest records are read in a
/// turn. What it tells has holes then, however much is read. Old records would make a job that
/// launches without a pause look as if it had been idle since, and background jobs would be woken
/// for credit that is void; and each record that is read takes a cache line from the thread that
/// launches, and time from a core that a job could use.
const OF_A_FAST_LANE: usize = RECORDS / 16;

/// A wait that goes on is told again so often. The core may have taken it for over: by a launch of
/// another thread of the client, whose record came late, or by a change of the mode and back that
/// the client slept through. Nothing else would bring it back, and its gate would stay closed for
/// the longest wait. 1000 clients that wait make 50,000 such tellings a second, of which nearly all
/// are found to be known.
const TOLD_AGAIN: Ns = 20_000_000;

/// A record may be told this late at most; older ones count as this old. A parked broker reads
/// after 0.2 s.
const OLDEST: Ns = 1_000_000_000;

/// Guesses kept of a client: more than it keeps back samples for.
const GUESSES: usize = 16_384;

/// Why a lane was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lie {
    /// The magic is gone.
    #[error("its lane is no lane any more")]
    Magic,
    /// The version changed.
    #[error("its lane turned into one of version {0}")]
    Version(u32),
    /// Records that no client writes.
    #[error("{0} of its records make no sense")]
    Records(u64),
}

/// A stage-1 sample or a launch, for the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// A kernel was launched so many times.
    Launches(u64, u64),
    /// Kernel, time, gap.
    Sample(u64, Ns, Option<Ns>),
    /// A launch that was timed while its job was served, and when it was made. The scheduler says
    /// in which company.
    Served(Timed, Ns),
}

/// What a turn found in a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Records read.
    pub records: usize,
    /// A launch among them: what raises a foreground job's launch epoch.
    pub launches: bool,
    /// Anything new at all.
    pub news: bool,
    /// A launch waits at the gate.
    pub waits: bool,
}

/// One client's lane.
#[derive(Debug)]
pub struct LaneWatch {
    entry: Arc<Entry>,
    reader: Reader,
    mode: Mode,
    /// Of its device, on the epoch page.
    row: usize,
    /// Issued, settled, renewed.
    progress: (Ns, Ns, Ns),
    /// Kernel, cost and beginning of the wait that was told last. The beginning too: a background
    /// job that passed and waits again for the same kernel between two looks has begun another
    /// wait.
    waiting: Option<(u64, Ns, Ns)>,
    /// When it was told.
    told_at: Ns,
    /// The figures were told between two looks.
    told_early: bool,
    /// When the client was last asked to ring for its idleness.
    naps_since: Option<Ns>,
    /// What it told at a rate that it did not know yet.
    guessed: Vec<Record>,
    /// Of a guest's: which turns it is looked at in.
    slot: Option<Slot>,
    /// Its launches are timed because the core wants it.
    timed: bool,
}

impl LaneWatch {
    /// Begins to watch.
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
            guessed: Vec::new(),
            slot: None,
            timed: false,
        }
    }

    /// One of a guest's, who may have many.
    pub fn in_rota(self, slot: Slot) -> LaneWatch {
        LaneWatch {
            slot: Some(slot),
            ..self
        }
    }

    /// A launch of its waited at the gate when it was looked at last.
    pub fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether it is looked at in this turn.
    pub fn is_due(&self, turn: u64) -> bool {
        self.slot.as_ref().is_none_or(|slot| slot.is_due(turn))
    }

    /// Whose it is.
    pub fn client(&self) -> Client {
        Client(self.entry.client)
    }

    /// What is known of it.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The mode it was told last.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Reads all that is new, as events with their times.
    pub fn drain(
        &mut self,
        now: Ns,
        events: &mut Vec<(Ns, Event)>,
        seen: &mut Vec<Seen>,
        trace: &mut Trace,
    ) -> Result<Found, Lie> {
        let lane = Arc::clone(&self.entry.lane);
        if lane.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(Lie::Magic);
        }
        match lane.version.load(Ordering::Relaxed) {
            VERSION => {}
            other => return Err(Lie::Version(other)),
        }
        let mut found = Found::default();
        // One turn round its ring at most, then the others have theirs.
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
            return Err(Lie::Records(self.reader.malformed()));
        }
        let figures = &self.entry.figures;
        if found.records > 0 {
            figures.records.fetch_add(found.records as u64, Ordering::Relaxed);
            figures.lost.store(self.reader.lost(), Ordering::Relaxed);
        }
        let told = self.reports(now, &lane, events);
        found.news = told || found.records > 0;
        found.waits = self.waiting.is_some();
        Ok(found)
    }

    fn take(
        &mut self,
        record: Record,
        now: Ns,
        events: &mut Vec<(Ns, Event)>,
        seen: &mut Vec<Seen>,
        trace: &mut Trace,
    ) {
        let client = self.client();
        let at = plausible(record.at, now);
        let kernel = record.kernel;
        let (name, event) = match record.kind {
            Kind::Launch | Kind::Graph => {
                // In any other mode it counts them itself and says so now and then.
                if self.entry.profiling && self.mode == Mode::Background {
                    seen.push(Seen::Launches(kernel, 1));
                }
                let name = if record.kind == Kind::Launch { "launch" } else { "graph" };
                (name, Some(launched(client, kernel, record.a, at)))
            }
            Kind::Transfer => ("transfer", Some(launched(client, kernel, record.a, at))),
            Kind::Idle => ("idle", Some(Event::Idle(client, at))),
            Kind::Stir => ("stir", Some(Event::Stirred(client, at))),
            // The report beside the ring says the same and is never lost.
            Kind::Wait => ("wait", None),
            Kind::Counted => {
                seen.push(Seen::Launches(kernel, record.a));
                return;
            }
            Kind::Sample => {
                // All that was guessed comes again.
                let guesses = std::mem::take(&mut self.guessed).len();
                let samples = &self.entry.figures.samples;
                samples.fetch_sub(guesses as u64, Ordering::Relaxed);
                samples.fetch_add(1, Ordering::Relaxed);
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
            Kind::Guess => {
                if self.guessed.len() < GUESSES {
                    self.guessed.push(record);
                    self.entry.figures.samples.fetch_add(1, Ordering::Relaxed);
                }
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

    fn sample(&self, record: Record) -> Option<Seen> {
        let gap = (record.b != NO_GAP).then_some(record.b);
        let (kernel, time) = (record.kernel, record.a);
        if !self.entry.refines {
            return self.entry.profiling.then_some(Seen::Sample(kernel, time, gap));
        }
        let timed = Timed {
            kernel,
            time,
            gap,
            beside: Beside::Others,
        };
        Some(Seen::Served(timed, record.at))
    }

    /// The client is gone: what it had only guessed will not be known any better.
    pub fn takes_guesses(&mut self, seen: &mut Vec<Seen>) {
        let guessed = std::mem::take(&mut self.guessed);
        seen.extend(guessed.into_iter().filter_map(|record| self.sample(record)));
    }

    /// What stands beside the ring. Told when it changed.
    fn reports(&mut self, now: Ns, lane: &lane::Lane, events: &mut Vec<(Ns, Event)>) -> bool {
        let client = self.client();
        let reports = &lane.reports;
        let before = events.len();
        // The wait before and after the figures: whoever waits has reported what he launched
        // before, and whoever has reported the launch he waited with waits no more.
        let look = || {
            let waits = reports.waiting.load(Ordering::Acquire) == 1;
            waits.then(|| reports.waiting_since.load(Ordering::Relaxed))
        };
        let first = look();
        let issued = reports.issued.load(Ordering::Acquire);
        let settled = reports.settled.load(Ordering::Acquire);
        // After what was issued with it, and after what ended for it: the books then have no moment
        // in which neither counts.
        let progress = (issued, settled, reports.renewed.load(Ordering::Acquire));
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
        // Told again after other news: what another thread of the client launched may have been
        // taken for this wait's end. And now and then without any.
        let again = progressed || now.saturating_sub(self.told_at) >= TOLD_AGAIN;
        if waiting != self.waiting || (again && waiting.is_some()) {
            self.waiting = waiting;
            self.told_at = now;
            if waiting.is_some() {
                // Read after what is reported: what was taken before and is in neither is on its
                // way.
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
                        since: plausible(since, now),
                    },
                    None => Event::Passed(client),
                },
            ));
        }
        events.len() > before
    }

    /// Whether the client is asked to ring. Set before the broker sleeps, taken back after.
    pub fn want_bell(&mut self, wanted: bool) {
        self.naps_since = None;
        let wanted = if wanted { bells::ALL } else { bells::NONE };
        self.entry.lane.broker_sleeps.store(wanted, Ordering::SeqCst);
    }

    /// Before a turn after which the broker may nap: a background job is asked to ring for whatever
    /// it has to say, a foreground job for the moment it becomes idle. That one is asked at most
    /// once in [`RING_PAUSE`]: a job that synchronises after each kernel would ring for each.
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
                .is_some_and(|since| now.saturating_sub(since) < RING_PAUSE)
            {
                return;
            }
            self.naps_since = Some(now);
        }
        word.store(wanted, Ordering::SeqCst);
    }

    /// Tells the mode. Credit never survives a change into background job or out of it, nor does a
    /// debt: what was in the word is returned.
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

    /// Tells the priority.
    pub fn tell_priority(&self, priority: u8) {
        self.entry.priority.store(priority, Ordering::Relaxed);
        self.tell_epoch();
    }

    /// Tells the row of its device on the epoch page.
    pub fn tell_row(&mut self, row: usize) {
        self.row = row;
        self.tell_epoch();
    }

    /// The row of its device on the epoch page.
    pub fn row(&self) -> usize {
        self.row
    }

    /// Its launch epoch on the epoch page.
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

    /// Gives credit. Where it is bound to other launch epochs than the credit that is left, that is
    /// taken back first and returned.
    pub fn grant(&self, credit: Ns, bound_to: Option<u64>) -> Option<i64> {
        let figures = &self.entry.figures;
        figures.granted.fetch_add(credit, Ordering::Relaxed);
        let credit = i64::try_from(credit).unwrap_or(i64::MAX);
        let left = self.entry.lane.orders.grant(credit, bound_to);
        figures.revoked.fetch_add(left as u64, Ordering::Relaxed);
        self.ring();
        (left != 0).then_some(left)
    }

    /// What came back into the word before it was emptied is told before what was in it.
    pub fn books(&mut self) -> Vec<Event> {
        let (client, reports) = (self.client(), &self.entry.lane.reports);
        let issued = reports.issued.load(Ordering::Acquire);
        let settled = reports.settled.load(Ordering::Acquire);
        let total = reports.renewed.load(Ordering::Acquire);
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

    /// Says what the client may do with its credit by itself.
    pub fn set_window(&self, window: Option<RunAheadWindow>) {
        self.entry.lane.orders.set_window(window);
        self.ring();
    }

    /// Has launches timed by the device now and then, or no more. A broker that refines profiles
    /// has all of them timed all the time.
    pub fn time_launches(&mut self, wanted: bool) {
        let flags = &self.entry.lane.orders.flags;
        if wanted {
            self.timed = flags.fetch_or(flags::SAMPLE, Ordering::Release) & flags::SAMPLE == 0;
        } else if std::mem::take(&mut self.timed) {
            flags.fetch_and(!flags::SAMPLE, Ordering::Release);
        }
    }

    /// Takes back what is left.
    pub fn revoke(&self) -> i64 {
        self.entry.lane.orders.set_window(None);
        let left = self.entry.lane.orders.take_back();
        self.entry.figures.revoked.fetch_add(left as u64, Ordering::Relaxed);
        self.ring();
        left
    }

    /// Counts the change and wakes who sleeps on it.
    fn ring(&self) {
        let bell = &self.entry.lane.orders.bell;
        bell.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        // A foreground job never sleeps on its bell; the call costs nothing there worth saving, and
        // modes change seldom.
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

/// A time as it can be: not after now, not long ago.
fn plausible(at: Ns, now: Ns) -> Ns {
    at.clamp(now.saturating_sub(OLDEST), now)
}

#[cfg(test)]
mod tests;
