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

use weft_gate::accounts::{AccountIndex, StreamAccounts};
use weft_gate::fences::{FENCE_PAUSE_NS, FenceState, MAX_FENCES, PendingFences};
use weft_protocol::Ns;

use crate::driver::events::{Context, Event, EventCalls, Reached};
use crate::paging::evicted;

/// The events, and the fences that they stand for.
#[derive(Debug, Default)]
struct FenceEvents {
    context: Option<Context>,
    pending: PendingFences<Event>,
    spare: [Option<Event>; MAX_FENCES],
    made: usize,
}

/// Completion tracker of one process.
#[derive(Debug, Default)]
pub struct CompletionTracker {
    inside: Mutex<FenceEvents>,
    /// Time, ns, when work last ended or outstanding work last began.
    progress: AtomicU64,
    /// Time of the last fence due, ns.
    last: AtomicU64,
}

impl CompletionTracker {
    /// Time, ns, when work last ended or outstanding work last began.
    pub fn progress(&self) -> Ns {
        self.progress.load(Ordering::Relaxed)
    }

    /// Whether a fence is due; if so, restarts the interval.
    #[inline]
    pub fn due(&self, now: Ns) -> bool {
        if now.saturating_sub(self.last.load(Ordering::Relaxed)) < FENCE_PAUSE_NS {
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
    pub fn fence(&self, driver: &EventCalls, accounts: &StreamAccounts, place: AccountIndex, stream: usize) {
        if !place.own || !driver.has_events() {
            return;
        }
        let Some(account) = accounts.account(place.at) else {
            return;
        };
        let Ok(mut inside) = self.inside.try_lock() else { return };
        let Some(upto) = inside.pending.wanted(account) else {
            return;
        };
        let Some(event) = inside.event(driver) else { return };
        if !driver.relaxed(|| driver.record(event, stream)) {
            give_back(&mut inside.spare, driver, event);
            return;
        }
        inside.pending.add(accounts, place, upto, event);
    }

    /// Polls the fences. Returns predicted work newly seen to have ended, ns.
    pub fn poll(&self, driver: &EventCalls, accounts: &StreamAccounts, now: Ns, captures: bool) -> Ns {
        let mut gained: Ns = 0;
        if !captures && let Ok(mut inside) = self.inside.try_lock() {
            gained = inside.poll(driver, accounts);
        }
        gained = gained.saturating_add(self.by_clock(accounts, now));
        if gained > 0 {
            self.progress.store(now, Ordering::Relaxed);
        }
        gained
    }

    /// Counts overdue unfenced work as ended; returns it in ns. No driver call.
    pub fn by_clock(&self, accounts: &StreamAccounts, now: Ns) -> Ns {
        accounts.complete_overdue(now, evicted::kept_until(now))
    }

    /// Notes that a synchronising call ended work.
    pub fn ended(&self, now: Ns) {
        self.progress.store(now, Ordering::Relaxed);
    }

    /// Predicted time of the next fence, ns; `None` without fences.
    pub fn expects(&self, accounts: &StreamAccounts) -> Option<Ns> {
        let inside = self.inside.try_lock().ok()?;
        inside.pending.expected_end(accounts, self.progress())
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
            Ok(inside) => !inside.pending.is_empty(),
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
            *inside = FenceEvents::default();
        }
        its
    }
}

impl FenceEvents {
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
        if self.made >= MAX_FENCES {
            return None;
        }
        let event = driver.create(false)?;
        self.made += 1;
        Some(event)
    }

    fn poll(&mut self, driver: &EventCalls, accounts: &StreamAccounts) -> Ns {
        // Other contexts' events cannot be queried safely here.
        if self.pending.is_empty() || driver.current() != self.context {
            return 0;
        }
        driver.relaxed(|| {
            let FenceEvents {
                pending, spare, made, ..
            } = self;
            let ask = |event| match driver.query(event) {
                Reached::Yes => FenceState::Reached,
                Reached::NotYet => FenceState::Pending,
                Reached::Never => FenceState::Broken,
            };
            pending.poll(accounts, ask, |event, state| match state {
                // A faulty event tells nothing; its work ends by time.
                FenceState::Broken => *made = made.saturating_sub(1),
                FenceState::Reached | FenceState::Pending => give_back(spare, driver, event),
            })
        })
    }
}

fn give_back(spare: &mut [Option<Event>], driver: &EventCalls, event: Event) {
    match spare.iter_mut().find(|place| place.is_none()) {
        Some(place) => *place = Some(event),
        None => driver.destroy(event),
    }
}
