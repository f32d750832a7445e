// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way back from the device: taking news, performing effects, waiting.
//!
//! One thread at a time takes news and performs the effects. A waiting thread names to the device
//! the operation that it waits for, and sleeps on the lane's bell. No sleep exceeds [`SLICE`].
//! After each, the thread checks that the device is alive.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::Link;
use super::error::LinkError;
use crate::lock::lock;
use crate::op::{LinkStream, Seq, Status, Times};
use crate::shared::futex;
use crate::shared::lane::{ANY, News};

/// The longest sleep before the device's life is checked.
const SLICE: Duration = Duration::from_millis(50);

/// Longest sleep of a helper thread, for which no thread waits.
const HELPER_SLICE: Duration = Duration::from_millis(250);

/// Sleep of a thread that the device does not know, because too many wait.
const UNKNOWN_WAITER: Duration = Duration::from_millis(1);

/// Longest wait for the turn to take news.
const TURN_WAIT: Duration = Duration::from_millis(1);

/// Most ended operations booked at once, so a submitter that waits for room does not wait for a
/// long poll.
const HEAP: usize = 256;

/// The client's view of the operation in a slot.
#[derive(Debug, Default)]
pub(super) struct OpSlot {
    seq: AtomicU64,
    token: AtomicU64,
    stream: AtomicU32,
    /// 1 once it has ended and its effect was performed.
    done: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
}

impl OpSlot {
    /// Begins a new operation in the slot. The old one ended long ago.
    pub(super) fn begin(&self, seq: Seq, stream: LinkStream, token: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.token.store(token, Ordering::Relaxed);
        self.stream.store(stream.0, Ordering::Relaxed);
        self.seq.store(seq.0, Ordering::Release);
    }
}

/// The turn to take news.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    turn: Mutex<()>,
    /// The thread that has the turn, 0: none.
    thread: AtomicUsize,
}

impl Hearing {
    /// Whether this thread is performing an effect.
    pub(super) fn is_mine(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == thread()
    }

    /// Takes the turn if it is free.
    fn begin_at_once(&self) -> Option<Turn<'_>> {
        if self.is_mine() {
            return None;
        }
        let lock = match self.turn.try_lock() {
            Ok(lock) => lock,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.thread.store(thread(), Ordering::Relaxed);
        Some(Turn {
            thread: &self.thread,
            _lock: lock,
        })
    }

    /// Waits for the turn. `None`: this thread has it.
    fn begin(&self) -> Option<Turn<'_>> {
        if self.is_mine() {
            return None;
        }
        let lock = lock(&self.turn);
        self.thread.store(thread(), Ordering::Relaxed);
        Some(Turn {
            thread: &self.thread,
            _lock: lock,
        })
    }
}

struct Turn<'a> {
    thread: &'a AtomicUsize,
    _lock: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Before the lock opens: fields are dropped after this.
        self.thread.store(0, Ordering::Relaxed);
    }
}

/// A number unique among living threads: the address of a thread-local.
fn thread() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

impl Link {
    /// Takes the news that the device has reported and performs the effects. Does not wake the
    /// device.
    pub fn poll(&self) {
        if !self.usable() {
            return;
        }
        if let Some(turn) = self.hearing.begin() {
            self.hear(turn);
        }
    }

    /// [`Link::poll`], but waits at most [`TURN_WAIT`] for a thread that has the turn. It may have
    /// lost its core, or perform a large fill; nothing behind the fill has ended before it. Returns
    /// whether all news were taken.
    fn poll_soon(&self) -> bool {
        let mut began = None;
        while self.usable() && !self.hearing.is_mine() {
            if let Some(turn) = self.hearing.begin_at_once() {
                self.hear(turn);
                return true;
            }
            if began.get_or_insert_with(Instant::now).elapsed() > TURN_WAIT {
                return false;
            }
            std::thread::yield_now();
        }
        false
    }

    fn hear(&self, _turn: Turn<'_>) {
        let mut ended = Vec::new();
        while let Some(news) = self.lane.hear() {
            match news {
                News::Ended { seq, start, end } => {
                    let Some(slot) = self.slots.get(seq.slot()) else {
                        continue;
                    };
                    if slot.seq.load(Ordering::Acquire) != seq.0 || slot.done.load(Ordering::Relaxed) != 0 {
                        continue;
                    }
                    let token = slot.token.load(Ordering::Relaxed);
                    if token != 0 {
                        self.effects.ended(token, seq, Times { start, end });
                    }
                    slot.start.store(start, Ordering::Relaxed);
                    slot.end.store(end, Ordering::Relaxed);
                    let stream = slot.stream.load(Ordering::Relaxed);
                    slot.done.store(1, Ordering::Release);
                    ended.push((seq.slot() as u16, stream));
                    if ended.len() >= HEAP {
                        self.outbox().settle(&ended);
                        ended.clear();
                    }
                }
                News::Reached { seq, at } => {
                    let Some(slot) = self.slots.get(seq.slot()) else {
                        continue;
                    };
                    if slot.seq.load(Ordering::Acquire) == seq.0 {
                        self.effects.reached(slot.token.load(Ordering::Relaxed), seq, at);
                    }
                }
            }
        }
        if !ended.is_empty() {
            self.outbox().settle(&ended);
        }
    }

    /// An operation's status without asking the device or taking news: cheap, but `Pending` may be
    /// out of date.
    pub fn known(&self, seq: Seq) -> Status {
        if seq == Seq::NONE {
            return Status::Done(Times::default());
        }
        let Some(slot) = self.slots.get(seq.slot()) else {
            return Status::LongDone;
        };
        if slot.seq.load(Ordering::Acquire) != seq.0 {
            return Status::LongDone;
        }
        if slot.done.load(Ordering::Acquire) == 0 {
            return Status::Pending;
        }
        let times = Times {
            start: slot.start.load(Ordering::Relaxed),
            end: slot.end.load(Ordering::Relaxed),
        };
        if slot.seq.load(Ordering::Acquire) != seq.0 {
            return Status::LongDone;
        }
        Status::Done(times)
    }

    /// State of an operation of this link as of now: one whose time has come is never `Pending`.
    /// Asks the device only if the answer may have changed.
    pub fn status(&self, seq: Seq) -> Status {
        if !self.usable() {
            return Status::Lost;
        }
        // In this order: the news of all that ended before the device's word are there by then.
        let pending = self.surely_pending();
        let heard = self.poll_soon();
        let known = self.known(seq);
        if known.is_done() || self.hearing.is_mine() || (pending && heard) {
            return known;
        }
        let refreshed = self.refresh();
        self.poll_soon();
        match (self.known(seq), refreshed) {
            (Status::Pending, Err(_)) => Status::Lost,
            (known, _) => known,
        }
    }

    /// Whether nothing of this link can have ended since the device's last word.
    fn surely_pending(&self) -> bool {
        // In this order: see the device's `publish_bound`.
        let taken = self.lane.bound_count.load(Ordering::SeqCst);
        let bound = self.lane.bound.load(Ordering::SeqCst);
        taken == self.lane.written() && self.now() < bound
    }

    /// Waits until an operation has ended and its effect has been performed. `None` waits as long
    /// as the device lives. A wait that slept returns
    /// [`crate::config::DeviceConfig::wait_return_ns`] after the end at the earliest.
    pub fn wait(&self, seq: Seq, timeout: Option<Duration>) -> Result<Status, LinkError> {
        if !self.usable() {
            return Err(LinkError::Forked);
        }
        if self.hearing.is_mine() {
            return Err(LinkError::Reentrant);
        }
        self.poll();
        let known = self.known(seq);
        if known.is_done() {
            return Ok(known);
        }
        let found = self.wait_until(seq.0, timeout, || {
            let known = self.known(seq);
            known.is_done().then_some(known)
        })?;
        if let Status::Done(times) = found {
            // A few microseconds, less than a sleep overshoots. A client that is before the end has
            // another clock: it is in a time namespace.
            let returns = times.end.saturating_add(self.welcome.wait_return);
            while (times.end..returns).contains(&self.now()) {
                std::thread::yield_now();
            }
        }
        Ok(found)
    }

    /// Waits until any operation of this link has ended.
    pub(super) fn wait_for_any(&self) -> Result<(), LinkError> {
        let before = self.lane.heard_so_far();
        self.wait_until(ANY, None, || (self.lane.heard_so_far() != before).then_some(()))
    }

    /// Sleeps until `ready`, polling whenever the device rings.
    fn wait_until<T>(
        &self,
        wanted: u64,
        timeout: Option<Duration>,
        ready: impl Fn() -> Option<T>,
    ) -> Result<T, LinkError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let place = self.lane.begin_waiting(wanted);
        let result = self.sleep_until(deadline, place.is_some(), ready);
        if let Some(place) = place {
            self.lane.end_waiting(place);
        }
        result
    }

    fn sleep_until<T>(
        &self,
        deadline: Option<Instant>,
        announced: bool,
        ready: impl Fn() -> Option<T>,
    ) -> Result<T, LinkError> {
        let slice = if announced { SLICE } else { UNKNOWN_WAITER };
        let mut asked = false;
        loop {
            // Read before the device is asked: if it rings in between, the sleep ends at once.
            let bell = self.lane.bell.load(Ordering::SeqCst);
            if !asked {
                self.ask();
                // The device rings for threads that it knows; others ask again.
                asked = announced;
            }
            self.poll();
            if let Some(found) = ready() {
                return Ok(found);
            }
            if self.lost.load(Ordering::Relaxed) {
                return Err(LinkError::Lost);
            }
            let left = deadline.map_or(slice, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(LinkError::TimedOut);
            }
            let before = Instant::now();
            futex::sleep_while(&self.lane.bell, bell, left.min(slice));
            if before.elapsed() >= SLICE {
                self.alive();
                // Needless with a device that works; it mends a lost ring cheaply.
                asked = false;
            }
        }
    }

    /// Has the device report everything up to now.
    pub(super) fn refresh(&self) -> Result<(), LinkError> {
        let request = self.lane.refresh.fetch_add(1, Ordering::SeqCst) + 1;
        loop {
            let bell = self.lane.bell.load(Ordering::SeqCst);
            if self.lane.refreshed.load(Ordering::SeqCst) >= request {
                return Ok(());
            }
            if self.lost.load(Ordering::Relaxed) {
                return Err(LinkError::Lost);
            }
            self.ask();
            let before = Instant::now();
            futex::sleep_while(&self.lane.bell, bell, SLICE);
            if before.elapsed() >= SLICE {
                self.alive();
            }
        }
    }

    /// For a client's helper thread: sleeps until a `prompt` operation has news or `timeout` is
    /// over, then takes the news. News since this thread's last call is never slept through.
    /// [`LinkError::Lost`]: there will be no more.
    pub fn wait_for_news(&self, timeout: Duration) -> Result<(), LinkError> {
        if !self.usable() {
            return Err(LinkError::Forked);
        }
        if self.hearing.is_mine() {
            return Err(LinkError::Reentrant);
        }
        let deadline = Instant::now().checked_add(timeout);
        let bell = self.lane.prompt_bell.load(Ordering::SeqCst);
        let heard = self.lane.heard_so_far();
        self.poll();
        if self.lane.heard_so_far() != heard {
            return Ok(());
        }
        loop {
            self.check()?;
            let left = deadline.map_or(HELPER_SLICE, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Ok(());
            }
            let before = Instant::now();
            futex::sleep_while(&self.lane.prompt_bell, bell, left.min(HELPER_SLICE));
            if self.lane.prompt_bell.load(Ordering::SeqCst) != bell {
                self.poll();
                return Ok(());
            }
            if before.elapsed() >= HELPER_SLICE {
                self.alive();
            }
        }
    }
}
