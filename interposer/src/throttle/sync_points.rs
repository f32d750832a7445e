//! Sync points: synchronising calls, and ending streams and contexts, which show that work has
//! ended.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use weft_gate::active_streams::{EndedStreams, RemainingWork};
use weft_protocol::Ns;
use weft_protocol::lane::Mode;

use super::state::Session;
use crate::client::clock;
use crate::driver::stream::own_stream;
use crate::driver::stream::{Event, Stream};
use crate::internal_error::{caught, failpoint, fails_at};

/// Work that a synchronising call waited for before it returned without error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synced {
    /// All work of the context.
    Context,
    /// All work of a stream. A blocking copy counts as this for its stream.
    Stream(Stream),
    /// Work up to an event.
    Event(Event),
}

impl Synced {
    #[inline(always)]
    pub(super) fn stream(self) -> Option<Stream> {
        match self {
            Synced::Stream(stream) => Some(stream),
            Synced::Context | Synced::Event(_) => None,
        }
    }
}

/// Whether the process has just become idle, and whether that is certain.
#[inline(always)]
fn left(left: RemainingWork) -> (bool, bool) {
    match left {
        RemainingWork::AsBefore => (false, false),
        RemainingWork::NothingProbably => (true, false),
        RemainingWork::Nothing => (true, true),
    }
}

impl Session {
    /// Implements [`super::synced`].
    #[inline(always)]
    pub fn synced(&self, what: Synced) {
        // Raw words, and at most three compared: for four the compiler makes a jump table, slower
        // than a foreground job's whole path.
        let mode = self.link.lane.orders.mode.load(Ordering::Relaxed);
        match what {
            Synced::Stream(stream) if mode == Mode::Foreground as u32 => self.foreground_synced(stream),
            Synced::Stream(stream) if mode == Mode::Background as u32 => self.background_synced(stream),
            _ if mode == Mode::Alone as u32 && !self.link.sampling() => {}
            _ if mode.wrapping_sub(1) < 3 => self.synced_in_company(what),
            _ => {}
        }
    }

    /// Fast path without a search, like `Session::foreground`.
    #[inline(never)]
    fn foreground_synced(&self, stream: Stream) {
        let own = own_stream(stream);
        if self.link.sampling() || fails_at("sync") || !self.active_streams.is_all(own) {
            return self.synced_in_company(Synced::Stream(stream));
        }
        self.active_streams.end_all();
        match clock::at_once() {
            Some(now) => self.foreground_idle(now),
            None => self.foreground_idle_by_system(),
        }
    }

    #[cold]
    #[inline(never)]
    fn foreground_idle_by_system(&self) {
        self.foreground_idle(clock::system());
    }

    /// Background path, in code of its own.
    #[inline(never)]
    fn background_synced(&self, stream: Stream) {
        caught(|| self.synced_now(Mode::Background, Synced::Stream(stream)));
    }

    #[inline(never)]
    fn synced_in_company(&self, what: Synced) {
        caught(|| self.synced_now(self.mode(), what));
    }

    /// Handles the end of a busy time. A foreground job pays one locked instruction (its time) and
    /// one clock read; a background job pays two locked instructions for completed work.
    #[inline(always)]
    fn synced_now(&self, mode: Mode, what: Synced) {
        failpoint("sync");
        if self.link.sampling() {
            self.sampler_synced();
        }
        if matches!(mode, Mode::Free | Mode::Alone) {
            return;
        }
        // The streams whose work has ended, if known.
        let ended = match what {
            Synced::Event(event) => Some(self.active_streams.reached(event)),
            Synced::Stream(stream) => Some(self.active_streams.synced(own_stream(stream))),
            Synced::Context => None,
        };
        // Whether the process has just become idle, and whether that is certain.
        let (idle, certain) = match ended {
            None => (self.active_streams.all_synced(), true),
            Some(ended) => left(ended.left),
        };
        if mode == Mode::Foreground && !idle {
            return;
        }
        let now = clock::now();
        if mode == Mode::Background {
            self.settle_after(ended, certain, now);
            if idle {
                self.rested.store(true, Ordering::Relaxed);
                // No ring: a broker naps while any launch waits, and only such a launch needs this
                // time.
                self.link.lane.become_idle(now);
            }
        } else if idle {
            self.foreground_idle(now);
        }
    }

    /// Notes that a foreground job has become idle. The time is written first; then come a full
    /// barrier and the read of whether the broker sleeps, as in `Session::foreground`.
    #[inline(always)]
    fn foreground_idle(&self, now: Ns) {
        self.rested.store(true, Ordering::Relaxed);
        self.link.lane.become_idle_fenced(now);
        self.link.ring_idle();
    }

    #[inline(always)]
    fn settle_after(&self, ended: Option<EndedStreams>, idle: bool, now: Ns) {
        let settle = |stream: usize| {
            let place = self.accounts.place(stream);
            match self.accounts.account(place.at) {
                Some(account) if place.own => account.complete(Ns::MAX),
                _ => 0,
            }
        };
        let gained = match ended {
            _ if idle => self.accounts.complete_all(),
            Some(ended) if ended.streams().next().is_some() => ended.streams().map(settle).sum(),
            // An event after which no work is known.
            _ => {
                self.ask_device(now);
                return;
            }
        };
        if gained > 0 {
            self.completion.ended(now);
            self.report_settled(gained, now);
        }
    }

    /// Handles a stream that is destroyed.
    pub fn stream_ending(&self, stream: Stream) {
        let gained = self.accounts.forget(own_stream(stream));
        self.report_settled(gained, clock::now());
    }

    /// Handles a destroyed context with its events and streams; 0: an unknown context.
    pub fn context_ended(&self, context: usize) {
        self.sampler.forget(context);
        // Its work without a fence counts as ended after a time.
        let gained = self.completion.forget(&self.accounts, context);
        self.report_settled(gained, clock::now());
    }
}
