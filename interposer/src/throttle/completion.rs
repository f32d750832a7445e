// SPDX-License-Identifier: MIT OR Apache-2.0
//! The background job's issued work and its completion: fences (events) after the work, polled and
//! never waited for.
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

use weft_gate::accounts::{AccountIndex, StreamAccount, StreamAccounts};
use weft_gate::fences::{
    FENCE_PAUSE_NS, FENCE_QUANTUM_NS, FenceDue, FenceState, MAX_FENCES, PLENTY_RATIO, PendingFences, fence_due,
};
use weft_gate::run_ahead;
use weft_protocol::Ns;

use super::post_launch::Want;
use crate::client::clock;
use crate::client::link::BrokerLink;
use crate::driver::events::{Context, Event, EventCalls, Reached};
use crate::driver::stream::Stream;
use crate::internal_error::{caught, failpoint};
use crate::paging::evicted;
use crate::profiler::SamplerContext;
use crate::thread;

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

/// Issued work of one process on a device, and its completion.
#[derive(Debug)]
pub struct Completion {
    driver: EventCalls,
    /// Captures under way in the process.
    captures: AtomicU32,
    /// Work of each stream.
    accounts: StreamAccounts,
    inside: Mutex<FenceEvents>,
    /// Time, ns, when work last ended or outstanding work last began.
    progress: AtomicU64,
    /// Time of the last fence due, ns.
    last: AtomicU64,
    /// Predicted end of the work, ns.
    free_at: AtomicU64,
    /// Account of the stream of the last launch.
    last_place: AtomicU32,
}

/// Calls under way that may end a context.
static ENDINGS: AtomicU32 = AtomicU32::new(0);

/// Guard of a call that may end a context. It lives until the ended objects are forgotten.
/// Meanwhile no thread polls events of a context other than its own.
#[derive(Debug)]
pub struct ContextEnding(());

impl ContextEnding {
    /// Begins; a poll under way ends first.
    pub fn begin<'a>(trackers: impl Iterator<Item = &'a Completion>) -> ContextEnding {
        ENDINGS.fetch_add(1, Ordering::SeqCst);
        let ending = ContextEnding(());
        trackers.for_each(|completion| drop(completion.inside.lock()));
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

impl Completion {
    /// Without work.
    pub fn new(driver: EventCalls) -> Completion {
        Completion {
            driver,
            captures: AtomicU32::new(0),
            accounts: StreamAccounts::default(),
            inside: Mutex::default(),
            progress: AtomicU64::new(0),
            last: AtomicU64::new(0),
            free_at: AtomicU64::new(0),
            last_place: AtomicU32::new(0),
        }
    }

    /// The driver's event functions.
    pub fn driver(&self) -> &EventCalls {
        &self.driver
    }

    /// The parts that the sampler needs.
    pub fn around<'a>(&'a self, link: &'a BrokerLink) -> SamplerContext<'a> {
        SamplerContext {
            link,
            driver: &self.driver,
            captures: &self.captures,
        }
    }

    /// Whether a thread captures: no driver call is made.
    #[inline]
    pub fn is_capturing(&self) -> bool {
        self.captures.load(Ordering::Acquire) != 0
    }

    /// Notes the start of a capture.
    pub fn capture_began(&self) {
        self.captures.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes a capture's end.
    pub fn capture_ended(&self) {
        // Never below zero: the session may have begun during a capture.
        let _ = self
            .captures
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |captures| captures.checked_sub(1));
    }

    /// Notes the captures that another session of the process knows.
    pub fn with_captures_of(self, other: &Completion) -> Completion {
        Completion {
            captures: AtomicU32::new(other.captures.load(Ordering::Acquire)),
            ..self
        }
    }

    /// Account of a stream.
    #[inline]
    pub fn account(&self, own: usize) -> AccountIndex {
        self.accounts.place(own)
    }

    /// Books work that went through the gate.
    #[inline]
    pub fn issue(&self, link: &BrokerLink, want: &Want, now: Ns) {
        if self.accounts.issue(want.place, want.cost, now) {
            self.progress.store(now, Ordering::Relaxed);
        }
        // A race may lose one cost: the device is then polled a little early.
        let free = run_ahead::end_after_launch(self.free_at.load(Ordering::Relaxed), now, want.cost);
        self.free_at.store(free, Ordering::Relaxed);
        link.lane.reports.issued.fetch_add(want.cost, Ordering::AcqRel);
    }

    /// Predicted device time left of the work by the clock, ns.
    #[inline]
    pub fn backlog(&self, now: Ns) -> Ns {
        self.free_at.load(Ordering::Relaxed).saturating_sub(now)
    }

    /// Work behind a pending fence, which has not begun, ns.
    #[inline]
    pub fn behind(&self) -> Ns {
        self.accounts.behind()
    }

    /// Issued work whose end is not known, ns.
    pub fn outstanding(&self) -> Ns {
        self.accounts.outstanding()
    }

    /// Time, ns, when work last ended or outstanding work last began.
    pub fn progress(&self) -> Ns {
        self.progress.load(Ordering::Relaxed)
    }

    /// Records a fence after a launch that returned `result`, if enough work is unfenced.
    #[inline(always)]
    pub fn launched(&self, link: &BrokerLink, stream: Stream, place: AccountIndex, at: Ns, result: u32) {
        // Whether the launch before went to another stream.
        let elsewhere = self.last_place.load(Ordering::Relaxed) != u32::from(place.at);
        if elsewhere {
            self.last_place.store(u32::from(place.at), Ordering::Relaxed);
        }
        if let Some(account) = self.accounts.account(place.at)
            && (elsewhere || account.unfenced() >= FENCE_QUANTUM_NS)
        {
            self.fence_if_due(link, stream, place, at, result, elsewhere);
        }
    }

    #[inline(never)]
    fn fence_if_due(
        &self,
        link: &BrokerLink,
        stream: Stream,
        place: AccountIndex,
        at: Ns,
        result: u32,
        elsewhere: bool,
    ) {
        caught(|| {
            failpoint("mark");
            let unfenced = self.accounts.account(place.at).map_or(0, StreamAccount::unfenced);
            if result != 0 {
                return;
            }
            // With little credit the next launch will wait for these completions; with much credit
            // it will not.
            let credit = link.lane.orders.credit.load(Ordering::Relaxed);
            match fence_due(unfenced, credit) {
                FenceDue::No => {
                    // A waiting launch puts its fence in its own stream. In a job that changes
                    // streams the work is on other streams, without fences, and counts as ended
                    // some ms late.
                    let little = u64::try_from(credit).unwrap_or(0) < FENCE_QUANTUM_NS * PLENTY_RATIO;
                    if elsewhere && little && !self.is_capturing() {
                        let _whole = thread::uncancelled();
                        self.fence(place, stream);
                    }
                    return;
                }
                FenceDue::Rarely if !self.due(at) => return,
                FenceDue::Rarely | FenceDue::Now => {}
            }
            // Not earlier: in a burst most launches return before this point, and the two
            // thread-state changes take 15 ns.
            let _whole = thread::uncancelled();
            self.fence(place, stream);
            self.ask_device(link, at);
        });
    }

    /// Whether a fence is due; if so, restarts the interval.
    #[inline]
    fn due(&self, now: Ns) -> bool {
        if now.saturating_sub(self.last.load(Ordering::Relaxed)) < FENCE_PAUSE_NS {
            return false;
        }
        self.last.store(now, Ordering::Relaxed);
        true
    }

    /// Records a fence after the work launched to `stream`, unless a thread captures.
    pub fn fence(&self, place: AccountIndex, stream: Stream) {
        let driver = &self.driver;
        if self.is_capturing() || !place.own || !driver.has_events() {
            return;
        }
        let Some(account) = self.accounts.account(place.at) else {
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
        inside.pending.add(&self.accounts, place, upto, event);
    }

    /// Polls completions and reports them. True if there were any.
    pub fn ask_device(&self, link: &BrokerLink, now: Ns) -> bool {
        let mut gained: Ns = 0;
        if !self.is_capturing()
            && let Ok(mut inside) = self.inside.try_lock()
        {
            gained = inside.poll(&self.driver, &self.accounts, ENDINGS.load(Ordering::SeqCst) != 0);
        }
        gained = gained.saturating_add(self.overdue(now));
        if gained > 0 {
            self.progress.store(now, Ordering::Relaxed);
        }
        self.report(link, gained, now);
        gained > 0
    }

    /// Counts overdue unfenced work as ended; returns it in ns. No driver call.
    fn overdue(&self, now: Ns) -> Ns {
        self.accounts.complete_overdue(now, evicted::kept_until(now))
    }

    /// Reports overdue work of a job that is busy elsewhere. True if there was any.
    pub fn report_overdue(&self, link: &BrokerLink, now: Ns) -> bool {
        let gained = self.overdue(now);
        self.report(link, gained, now);
        gained > 0
    }

    /// Reports all work: a synchronising call waited for it.
    #[inline(always)]
    pub fn report_all(&self, link: &BrokerLink, now: Ns) {
        self.report_synced(link, self.accounts.complete_all(), now);
    }

    /// Reports the work of these streams: a synchronising call waited for it.
    #[inline(always)]
    pub fn report_streams(&self, link: &BrokerLink, streams: impl Iterator<Item = usize>, now: Ns) {
        let complete = |stream: usize| {
            let place = self.accounts.place(stream);
            match self.accounts.account(place.at) {
                Some(account) if place.own => account.complete(Ns::MAX),
                _ => 0,
            }
        };
        self.report_synced(link, streams.map(complete).sum(), now);
    }

    #[inline(always)]
    fn report_synced(&self, link: &BrokerLink, gained: Ns, now: Ns) {
        if gained > 0 {
            self.progress.store(now, Ordering::Relaxed);
            self.report(link, gained, now);
        }
    }

    /// Reports `gained` ns of completed work.
    #[inline(always)]
    fn report(&self, link: &BrokerLink, gained: Ns, now: Ns) {
        if gained > 0 {
            let lane = link.lane;
            lane.reports.completed.fetch_add(gained, Ordering::AcqRel);
            lane.orders.replenish(&lane.reports, link.epoch_page);
            // The device has at most the outstanding work.
            let left = run_ahead::latest_end(now, self.accounts.outstanding());
            if self.free_at.load(Ordering::Relaxed) > left {
                self.free_at.fetch_min(left, Ordering::Relaxed);
            }
        }
    }

    /// Forgets all work for a new lane, whose accounts begin at zero.
    pub fn forget_work(&self) {
        self.accounts.complete_all();
    }

    /// Reports the work of a stream that is destroyed.
    pub fn forget_stream(&self, link: &BrokerLink, own: usize, now: Ns) {
        self.report(link, self.accounts.forget(own), now);
    }

    /// Predicted time of the next fence, ns; `None` without fences.
    pub fn expects(&self) -> Option<Ns> {
        let inside = self.inside.try_lock().ok()?;
        inside.pending.expected_end(&self.accounts, self.progress())
    }

    /// Whether this thread can poll now: no thread captures, this one has a context, fences have
    /// events, and no other thread polls.
    pub fn asks(&self) -> bool {
        !self.is_capturing()
            && match self.inside.try_lock() {
                Ok(inside) => inside.contexts.iter().any(Option::is_some) && self.driver.current().is_some(),
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

    /// Forgets the events of an ended context (0: an unknown one), which the driver destroyed.
    /// Reports the work that ended with it: all work if no other context has fences. Other work
    /// without a fence counts as ended after a time.
    pub fn forget_context(&self, link: &BrokerLink, context: Context) {
        let gained = match self.inside.lock() {
            Ok(mut inside) => inside.forget(&self.accounts, context),
            Err(_) => self.accounts.complete_all(),
        };
        // Read after the lock: a thread that held it may have reported a later time.
        self.report(link, gained, clock::now());
    }
}

impl FenceEvents {
    fn forget(&mut self, accounts: &StreamAccounts, context: Context) -> Ns {
        for place in &mut self.contexts {
            place.take_if(|events| context == 0 || events.context == context);
        }
        if self.contexts.iter().all(Option::is_none) {
            *self = FenceEvents::default();
            return accounts.complete_all();
        }
        self.pending.end(accounts, |event| event.1 == context)
    }

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
