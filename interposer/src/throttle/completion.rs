//! Completion tracker: fences (events) behind a background job's work, polled and never waited for.
//!
//! * Only a thread that just launched to a stream records there: stream and context are alive.
//! * No driver call during a capture, nor on a capturing stream.
//! * The lock is only tried: a thread that finds it taken goes on.
//! * Work without an event counts as ended long after its predicted time, or at a synchronising
//!   call.
#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_protocol::Ns;

use super::streams::{Place, Streams};
use crate::driver::events::{Context, Event, EventCalls, Reached};
use crate::paging::evicted;

/// Predicted work between two fences of a stream, ns. A fence costs about 1 us: 1 % at most. It is
/// a fifth of the usual delay bound (500 us), so the broker's view is fine enough.
pub const QUANTUM: Ns = 100_000;

/// Shortest time between two fences while credit is plenty, ns: no launch waits for them then.
const PAUSE: Ns = 50_000;

/// Pending fences. Beyond that work goes without.
const MARKS: usize = 32;

/// Unfenced work counts as ended at `last launch + DOUBT * outstanding + SLACK`.
const DOUBT: Ns = 2;
/// Constant part, ns. A driver's queue delays some us; another process's time slice lasts about 1.5
/// ms.
const SLACK: Ns = 5_000_000;

#[derive(Debug, Clone, Copy)]
struct Mark {
    event: Event,
    at: u16,
    upto: Ns,
}

#[derive(Debug, Default)]
struct Inside {
    context: Option<Context>,
    marks: [Option<Mark>; MARKS],
    spare: [Option<Event>; MARKS],
    made: usize,
}

/// Completion tracker of one process.
#[derive(Debug, Default)]
pub struct Settle {
    inside: Mutex<Inside>,
    /// Time, ns, when work last ended or outstanding work last began.
    progress: AtomicU64,
    /// Time of the last fence due, ns.
    last: AtomicU64,
}

impl Settle {
    /// Time, ns, when work last ended or outstanding work last began.
    pub fn progress(&self) -> Ns {
        self.progress.load(Ordering::Relaxed)
    }

    /// Whether a fence is due; if so, restarts the interval.
    #[inline]
    pub fn due(&self, now: Ns) -> bool {
        if now.saturating_sub(self.last.load(Ordering::Relaxed)) < PAUSE {
            return false;
        }
        self.last.store(now, Ordering::Relaxed);
        true
    }

    /// Notes that work goes to an empty device.
    pub fn begins(&self, now: Ns) {
        self.progress.store(now, Ordering::Relaxed);
    }

    /// Records a fence behind the work launched to `stream`. The caller rules out captures.
    pub fn mark(&self, driver: &EventCalls, streams: &Streams, place: Place, stream: usize) {
        if !place.own || !driver.has_events() {
            return;
        }
        let Some(account) = streams.account(place.at) else {
            return;
        };
        let Ok(mut inside) = self.inside.try_lock() else { return };
        let upto = account.issued.load(Ordering::Acquire);
        if upto <= account.marked.load(Ordering::Acquire) {
            return;
        }
        let Some(free) = inside.marks.iter().position(Option::is_none) else {
            return;
        };
        let Some(event) = inside.event(driver) else { return };
        if !driver.relaxed(|| driver.record(event, stream)) {
            inside.give_back(driver, event);
            return;
        }
        account.marked.fetch_max(upto, Ordering::AcqRel);
        if account.first.load(Ordering::Relaxed) <= account.settled.load(Ordering::Acquire) {
            account.first.store(upto, Ordering::Relaxed);
        }
        if let Some(slot) = inside.marks.get_mut(free) {
            *slot = Some(Mark {
                event,
                at: place.at,
                upto,
            });
        }
    }

    /// Polls the fences. Returns predicted work newly seen to have ended, ns.
    pub fn poll(&self, driver: &EventCalls, streams: &Streams, now: Ns, captures: bool) -> Ns {
        let mut gained: Ns = 0;
        if !captures && let Ok(mut inside) = self.inside.try_lock() {
            gained = inside.poll(driver, streams);
        }
        gained = gained.saturating_add(self.by_clock(streams, now));
        if gained > 0 {
            self.progress.store(now, Ordering::Relaxed);
        }
        gained
    }

    /// Counts overdue unfenced work as ended; returns it in ns. No driver call.
    pub fn by_clock(&self, streams: &Streams, now: Ns) -> Ns {
        let kept = evicted::kept_until(now);
        streams
            .open()
            .fold(0, |sum: Ns, account| sum.saturating_add(by_time(account, now, kept)))
    }

    /// Notes that a synchronising call ended work.
    pub fn ended(&self, now: Ns) {
        self.progress.store(now, Ordering::Relaxed);
    }

    /// Predicted time of the next fence, ns; `None` without fences.
    pub fn expects(&self, streams: &Streams) -> Option<Ns> {
        let inside = self.inside.try_lock().ok()?;
        let begin = self.progress.load(Ordering::Relaxed);
        let marks = inside.marks.iter().flatten();
        let ends = marks.filter_map(|mark| {
            let settled = streams.account(mark.at)?.settled.load(Ordering::Relaxed);
            Some(begin.saturating_add(mark.upto.saturating_sub(settled)))
        });
        ends.min()
    }

    /// Whether this thread can poll now: its context has the fences, and no other thread polls.
    pub fn asks(&self, driver: &EventCalls) -> bool {
        match self.inside.try_lock() {
            Ok(inside) => inside.context.is_some() && driver.current() == inside.context,
            Err(_) => false,
        }
    }

    /// Whether a fence is pending: the device has outstanding work.
    pub fn awaits(&self) -> bool {
        match self.inside.try_lock() {
            Ok(inside) => inside.marks.iter().any(Option::is_some),
            Err(_) => false,
        }
    }

    /// Forgets the events of an ended context (0: an unknown one). The driver destroyed them.
    pub fn forget(&self, context: Context) -> bool {
        let Ok(mut inside) = self.inside.lock() else {
            return true;
        };
        let its = context == 0 || inside.context.is_none_or(|own| own == context);
        if its {
            *inside = Inside::default();
        }
        its
    }
}

/// Counts overdue unfenced work as ended. `kept`: until then a launch may have waited for memory,
/// issued but not on the device.
fn by_time(account: &super::streams::Account, now: Ns, kept: Ns) -> Ns {
    let outstanding = account.outstanding();
    if outstanding == 0 {
        return 0;
    }
    let issued = account.issued.load(Ordering::Acquire);
    let settled = account.settled.load(Ordering::Acquire);
    let marked = account.marked.load(Ordering::Acquire);
    // A pending fence decides on the work before it, and on the later work.
    if marked > settled {
        return 0;
    }
    let late = account
        .last
        .load(Ordering::Relaxed)
        .max(kept)
        .saturating_add(outstanding.saturating_mul(DOUBT))
        .saturating_add(SLACK);
    if now > late { account.settle(issued) } else { 0 }
}

impl Inside {
    /// An event in the current context: a spare one, or a new one.
    fn event(&mut self, driver: &EventCalls) -> Option<Event> {
        let context = driver.current()?;
        // Events belong to the first context at the gate; others, which are rare, go by time.
        if *self.context.get_or_insert(context) != context {
            return None;
        }
        if let Some(event) = self.spare.iter_mut().find_map(Option::take) {
            return Some(event);
        }
        if self.made >= MARKS {
            return None;
        }
        let event = driver.create(false)?;
        self.made += 1;
        Some(event)
    }

    fn give_back(&mut self, driver: &EventCalls, event: Event) {
        match self.spare.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(event),
            None => driver.destroy(event),
        }
    }

    fn poll(&mut self, driver: &EventCalls, streams: &Streams) -> Ns {
        // Other contexts' events cannot be queried safely here.
        if self.marks.iter().all(Option::is_none) || driver.current() != self.context {
            return 0;
        }
        let mut gained: Ns = 0;
        driver.relaxed(|| self.ask(driver, streams, &mut gained));
        gained
    }

    fn ask(&mut self, driver: &EventCalls, streams: &Streams, gained: &mut Ns) {
        // A stream's fences are reached in order: behind a pending one no query is needed.
        let mut waiting: u64 = 0;
        let mut order: [Option<Mark>; MARKS] = self.marks;
        order.sort_unstable_by_key(|mark| mark.map_or(Ns::MAX, |mark| mark.upto));
        for mark in order.into_iter().flatten() {
            let bit = 1u64.checked_shl(u32::from(mark.at)).unwrap_or(0);
            if waiting & bit != 0 {
                continue;
            }
            match driver.query(mark.event) {
                Reached::NotYet => {
                    waiting |= bit;
                    if let Some(account) = streams.account(mark.at) {
                        account.first.store(mark.upto, Ordering::Relaxed);
                    }
                    continue;
                }
                Reached::Yes => {
                    if let Some(account) = streams.account(mark.at) {
                        *gained = gained.saturating_add(account.settle(mark.upto));
                    }
                    self.give_back(driver, mark.event);
                }
                Reached::Never => {
                    // A faulty event tells nothing; its work ends by time.
                    self.made = self.made.saturating_sub(1);
                    if let Some(account) = streams.account(mark.at) {
                        let settled = account.settled.load(Ordering::Acquire);
                        account.marked.store(settled, Ordering::Release);
                        account.first.store(0, Ordering::Relaxed);
                    }
                }
            }
            for slot in &mut self.marks {
                if slot.is_some_and(|other| other.event == mark.event) {
                    *slot = None;
                }
            }
        }
    }
}
