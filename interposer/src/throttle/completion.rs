//! Completion tracker: fences (events) after a background job's work, polled and never waited for.
//!
//! * Only a thread that just launched to a stream records there: stream and context are alive.
//! * Each context has events of its own. Any thread with a context polls all of them, except during
//!   a call that may end a context.
//! * No driver call during a capture, nor on a capturing stream.
//! * The lock is only tried: a thread that finds it taken continues without it.
//! * Work without an event counts as ended long after its predicted time, or at a synchronising
//!   call.
#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_gate::accounts::{AccountIndex, StreamAccounts};
use weft_gate::fences::{FENCE_PAUSE_NS, FenceState, MAX_FENCES, PendingFences};
use weft_protocol::Ns;

use crate::driver::events::{Context, Event, EventCalls, Reached};
use crate::paging::evicted;

/// Contexts with fences. Programs have one, or one more in addition to a framework's (numba, a
/// video decoder). Work in further contexts counts as ended after a time.
const CONTEXTS: usize = 8;

/// An event, and its context.
type FenceEvent = (Event, Context);

/// Events of one context.
#[derive(Debug)]
struct ContextEvents {
    context: Context,
    spare: [Option<Event>; MAX_FENCES],
    made: usize,
}

/// The events, and the fences that they stand for.
#[derive(Debug, Default)]
struct FenceEvents {
    contexts: [Option<ContextEvents>; CONTEXTS],
    pending: PendingFences<FenceEvent>,
    /// Whether the driver answers only to threads of an event's own context.
    own_only: bool,
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

/// Calls under way that may end a context.
static ENDINGS: AtomicU32 = AtomicU32::new(0);

/// Guard of a call that may end a context. It lives until the ended objects are forgotten.
/// Meanwhile no thread polls events of a context other than its own.
#[derive(Debug)]
pub struct ContextEnding(());

impl ContextEnding {
    /// Begins; a poll under way ends first.
    pub fn begin<'a>(trackers: impl Iterator<Item = &'a CompletionTracker>) -> ContextEnding {
        ENDINGS.fetch_add(1, Ordering::SeqCst);
        let ending = ContextEnding(());
        trackers.for_each(|tracker| drop(tracker.inside.lock()));
        ending
    }
}

impl Drop for ContextEnding {
    fn drop(&mut self) {
        ENDINGS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Forgets other threads' endings, in a forked child.
pub fn forget_endings() {
    ENDINGS.store(0, Ordering::SeqCst);
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

    /// Notes that work is launched to an empty device.
    pub fn begins(&self, now: Ns) {
        self.progress.store(now, Ordering::Relaxed);
    }

    /// Records a fence after the work launched to `stream`. The caller rules out captures.
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
        if !driver.relaxed(|| driver.record(event.0, stream)) {
            give_back(&mut inside.contexts, driver, event);
            return;
        }
        inside.pending.add(accounts, place, upto, event);
    }

    /// Polls the fences. Returns predicted work newly seen to have ended, ns.
    pub fn poll(&self, driver: &EventCalls, accounts: &StreamAccounts, now: Ns, captures: bool) -> Ns {
        let mut gained: Ns = 0;
        if !captures && let Ok(mut inside) = self.inside.try_lock() {
            gained = inside.poll(driver, accounts, ENDINGS.load(Ordering::SeqCst) != 0);
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

    /// Whether this thread can poll now: it has a context, fences have events, and no other thread
    /// polls.
    pub fn asks(&self, driver: &EventCalls) -> bool {
        match self.inside.try_lock() {
            Ok(inside) => inside.contexts.iter().any(Option::is_some) && driver.current().is_some(),
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
    /// Returns the work that ended with it, ns: all work if no other context has fences.
    pub fn forget(&self, accounts: &StreamAccounts, context: Context) -> Ns {
        let Ok(mut inside) = self.inside.lock() else {
            return accounts.complete_all();
        };
        let FenceEvents { contexts, pending, .. } = &mut *inside;
        for place in contexts.iter_mut() {
            place.take_if(|events| context == 0 || events.context == context);
        }
        if contexts.iter().all(Option::is_none) {
            *inside = FenceEvents::default();
            return accounts.complete_all();
        }
        pending.end(accounts, |event| event.1 == context)
    }
}

impl FenceEvents {
    /// An event in the current context: a spare one, or a new one.
    fn event(&mut self, driver: &EventCalls) -> Option<FenceEvent> {
        let context = driver.current()?;
        let events = match place(&mut self.contexts, Some(context)) {
            Some(place) => place,
            None => place(&mut self.contexts, None)?,
        };
        let events = events.get_or_insert_with(|| ContextEvents {
            context,
            spare: [None; MAX_FENCES],
            made: 0,
        });
        if let Some(event) = events.spare.iter_mut().find_map(Option::take) {
            return Some((event, context));
        }
        if events.made >= MAX_FENCES {
            return None;
        }
        let event = driver.create(false)?;
        events.made += 1;
        Some((event, context))
    }

    /// `endings`: a context may be ending, so another one's events may be gone at any moment.
    fn poll(&mut self, driver: &EventCalls, accounts: &StreamAccounts, endings: bool) -> Ns {
        if self.pending.is_empty() {
            return 0;
        }
        let Some(current) = driver.current() else { return 0 };
        driver.relaxed(|| {
            let FenceEvents {
                contexts,
                pending,
                own_only,
            } = self;
            let ask = |(event, context)| {
                let own = context == current;
                if !own && (endings || *own_only) {
                    return FenceState::Pending;
                }
                match driver.query(event) {
                    Reached::Yes => FenceState::Reached,
                    Reached::NotYet => FenceState::Pending,
                    Reached::Never if own => FenceState::Broken,
                    Reached::Never => {
                        *own_only = true;
                        FenceState::Pending
                    }
                }
            };
            pending.poll(accounts, ask, |event, state| match state {
                // A faulty event shows nothing; its work counts as ended after a time.
                FenceState::Broken => {
                    if let Some(Some(events)) = place(contexts, Some(event.1)) {
                        events.made = events.made.saturating_sub(1);
                    }
                }
                FenceState::Reached | FenceState::Pending => give_back(contexts, driver, event),
            })
        })
    }
}

/// The place of a context's events; for `None` a free place.
fn place(contexts: &mut [Option<ContextEvents>], of: Option<Context>) -> Option<&mut Option<ContextEvents>> {
    contexts
        .iter_mut()
        .find(|events| events.as_ref().map(|events| events.context) == of)
}

fn give_back(contexts: &mut [Option<ContextEvents>], driver: &EventCalls, (event, context): FenceEvent) {
    let Some(Some(events)) = place(contexts, Some(context)) else {
        return;
    };
    match events.spare.iter_mut().find(|place| place.is_none()) {
        Some(place) => *place = Some(event),
        None => driver.destroy(event),
    }
}
