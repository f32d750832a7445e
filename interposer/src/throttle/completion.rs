//! When work has ended: events of ours behind the work of a background job, asked now and then,
//! never waited for.
//!
//! * An event is recorded only by a thread that has just launched to the same stream, so stream and
//!   context are known to live.
//! * No driver call at all while anything captures, nor on a capturing stream.
//! * All under a lock that is only ever tried: a thread that finds it taken goes on without.
//! * Where no event can tell, work counts as ended when its predicted time is long over, or when a
//!   synchronising call says so.
#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_protocol::Ns;

use super::streams::{Place, Streams};
use crate::driver::events::{Context, Event, EventCalls, Reached};
use crate::paging::evicted;

/// So much predicted work goes on a stream between two events. An event costs about 1 us, so 1 % at
/// most; the broker's view of what is outstanding is no coarser than a fifth of the usual delay
/// bound (500 us).
pub const QUANTUM: Ns = 100_000;

/// And no two within this time while there is plenty of credit: nobody waits for them then.
const PAUSE: Ns = 50_000;

/// Marks under way. When all are in use the next quanta go unmarked until one is reached.
const MARKS: usize = 32;

/// Work without a mark counts as ended after so many times its predicted time...
const DOUBT: Ns = 2;
/// ...and so much more. A driver's queue delays a launch by some us; a time slice of another
/// process lasts 1.5 ms or so.
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

/// The settling of one process.
#[derive(Debug, Default)]
pub struct Settle {
    inside: Mutex<Inside>,
    /// When work was last seen to end, or outstanding work last began.
    progress: AtomicU64,
    /// When it was last time for a mark.
    last: AtomicU64,
}

impl Settle {
    /// When work was last seen to end, or outstanding work last began.
    pub fn progress(&self) -> Ns {
        self.progress.load(Ordering::Relaxed)
    }

    /// Whether it is time for a mark again; if so, the next one's time begins.
    #[inline]
    pub fn due(&self, now: Ns) -> bool {
        if now.saturating_sub(self.last.load(Ordering::Relaxed)) < PAUSE {
            return false;
        }
        self.last.store(now, Ordering::Relaxed);
        true
    }

    /// Work goes to an empty device: from now on its end is awaited.
    pub fn begins(&self, now: Ns) {
        self.progress.store(now, Ordering::Relaxed);
    }

    /// Puts a mark behind what was launched to `stream` so far. The caller has made sure that
    /// nothing captures.
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

    /// Asks which marks were reached. Returns predicted work newly seen to have ended.
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

    /// Work that no mark covers and whose time is long over. Makes no driver call.
    pub fn by_clock(&self, streams: &Streams, now: Ns) -> Ns {
        let kept = evicted::kept_until(now);
        streams
            .open()
            .fold(0, |sum: Ns, account| sum.saturating_add(by_time(account, now, kept)))
    }

    /// Predicted work of the process has ended without an event: a synchronising call says so.
    pub fn ended(&self, now: Ns) {
        self.progress.store(now, Ordering::Relaxed);
    }

    /// When the next mark should be reached, by its predicted work; `None` if there is no mark.
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

    /// Whether this thread can ask the device now: the marks are of its context, and nobody else is
    /// asking.
    pub fn asks(&self, driver: &EventCalls) -> bool {
        match self.inside.try_lock() {
            Ok(inside) => inside.context.is_some() && driver.current() == inside.context,
            Err(_) => false,
        }
    }

    /// Whether a mark of ours waits to be reached: the device itself says that something is
    /// outstanding.
    pub fn awaits(&self) -> bool {
        match self.inside.try_lock() {
            Ok(inside) => inside.marks.iter().any(Option::is_some),
            Err(_) => false,
        }
    }

    /// A context has ended (0: some context). If it is that of the events, or may be, they are
    /// forgotten, not destroyed: the driver did that.
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

/// Work that no mark covers ends by the clock. `kept`: a launch may have waited for its memory
/// until then, which is not on the device yet though it counts as issued.
fn by_time(account: &super::streams::Account, now: Ns, kept: Ns) -> Ns {
    let outstanding = account.outstanding();
    if outstanding == 0 {
        return 0;
    }
    let issued = account.issued.load(Ordering::Acquire);
    let settled = account.settled.load(Ordering::Acquire);
    let marked = account.marked.load(Ordering::Acquire);
    // A mark that is still to be reached decides about all before it, and about what is behind it
    // too: that runs later.
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
        // Events belong to the first context that used the gate. A process with several is rare;
        // the others settle by time.
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
        // Other contexts' events can not be asked safely from here.
        if self.marks.iter().all(Option::is_none) || driver.current() != self.context {
            return 0;
        }
        let mut gained: Ns = 0;
        driver.relaxed(|| self.ask(driver, streams, &mut gained));
        gained
    }

    fn ask(&mut self, driver: &EventCalls, streams: &Streams, gained: &mut Ns) {
        // A stream's marks are reached in order: after one that is not, the later ones need no
        // question.
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
                    // Whatever is wrong with it, nothing is learnt from it; its work settles by
                    // time.
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
