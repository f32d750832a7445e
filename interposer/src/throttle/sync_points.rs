//! What tells the session that work has ended: synchronising calls, and the ends of streams and
//! contexts.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use weft_protocol::Ns;
use weft_protocol::lane::Mode;

use super::active_streams::{Ended, Left};
use super::state::Session;
use crate::client::clock;
use crate::driver::stream::own_stream;
use crate::driver::stream::{Event, Stream};
use crate::internal_error::{caught, failpoint, fails_at};

/// What a synchronising call that returned without error had waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synced {
    /// All work of the context.
    Context,
    /// All work of one stream. A blocking copy counts as this for its stream.
    Stream(Stream),
    /// This event: work up to it.
    Event(Event),
}

/// Whether the process has just become idle, and whether that is certain.
#[inline(always)]
fn left(left: Left) -> (bool, bool) {
    match left {
        Left::AsBefore => (false, false),
        Left::NothingProbably => (true, false),
        Left::Nothing => (true, true),
    }
}

impl Session {
    /// See [`super::synced`].
    #[inline(always)]
    pub fn synced(&self, what: Synced) {
        // The words themselves, and no more than three: of four the compiler makes a table to jump
        // by, which takes longer than a foreground job's whole way here.
        let mode = self.link.lane.orders.mode.load(Ordering::Relaxed);
        match what {
            Synced::Stream(stream) if mode == Mode::Foreground as u32 => self.foreground_synced(stream),
            Synced::Stream(stream) if mode == Mode::Background as u32 => self.background_synced(stream),
            _ if mode == Mode::Alone as u32 && !self.link.sampling() => {}
            _ if mode.wrapping_sub(1) < 3 => self.synced_in_company(what),
            _ => {}
        }
    }

    /// What is synchronised most, where nothing has to be searched for: as
    /// [`Session::hold_kernel`].
    #[inline(never)]
    fn foreground_synced(&self, stream: Stream) {
        let own = own_stream(stream);
        if self.link.sampling() || fails_at("sync") || !self.busy.is_all(own) {
            return self.synced_in_company(Synced::Stream(stream));
        }
        self.busy.end_all();
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

    /// A background job's, in code of its own.
    #[inline(never)]
    fn background_synced(&self, stream: Stream) {
        caught(|| self.synced_now(Mode::Background, Synced::Stream(stream)));
    }

    #[inline(never)]
    fn synced_in_company(&self, what: Synced) {
        caught(|| self.synced_now(self.mode(), what));
    }

    /// Where a busy time ends: one locked instruction of a foreground job (its time), one look at
    /// the clock; a background job has two for what has ended.
    #[inline(always)]
    fn synced_now(&self, mode: Mode, what: Synced) {
        failpoint("sync");
        if self.link.sampling() {
            self.sampler_synced();
        }
        if matches!(mode, Mode::Free | Mode::Alone) {
            return;
        }
        // What has ended, where that is known.
        let ended = match what {
            Synced::Event(event) => Some(self.busy.reached(event)),
            Synced::Stream(stream) => Some(self.busy.synced(own_stream(stream))),
            Synced::Context => None,
        };
        // Whether the process has just become idle, and whether nothing of it is left for certain.
        let (idle, certain) = match ended {
            None => (self.busy.all_synced(), true),
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
                // Nobody waits for a background job's end who does not look for himself: a broker
                // naps while any launch waits.
                self.link.lane.become_idle(now);
            }
        } else if idle {
            self.foreground_idle(now);
        }
    }

    /// Nothing of a foreground job is left on the device. The time, then a full barrier, then the
    /// look whether the broker sleeps: as in `hold_now`.
    #[inline(always)]
    fn foreground_idle(&self, now: Ns) {
        self.rested.store(true, Ordering::Relaxed);
        self.link.lane.become_idle_fenced(now);
        self.link.ring_idle();
    }

    #[inline(always)]
    fn settle_after(&self, ended: Option<Ended>, idle: bool, now: Ns) {
        let settle = |stream: usize| {
            let place = self.streams.place(stream);
            match self.streams.account(place.at) {
                Some(account) if place.own => account.settle(Ns::MAX),
                _ => 0,
            }
        };
        let gained = match ended {
            _ if idle => self.streams.settle_all(),
            Some(ended) if ended.streams().next().is_some() => ended.streams().map(settle).sum(),
            // An event that stands behind nothing that is known.
            _ => {
                self.ask_device(now);
                return;
            }
        };
        if gained > 0 {
            self.settle.ended(now);
            self.report_settled(gained, now);
        }
    }

    /// A stream is destroyed.
    pub fn stream_ending(&self, stream: Stream) {
        let gained = self.streams.forget(own_stream(stream));
        self.report_settled(gained, clock::now());
    }

    /// A context was destroyed, and with it all its events and streams. 0: some context.
    pub fn context_ended(&self, context: usize) {
        self.sampler.forget(context);
        // Of another context than that of the events nothing is known: its work settles by its
        // time, as ever.
        if self.settle.forget(context) {
            let gained = self.streams.settle_all();
            self.report_settled(gained, clock::now());
        }
    }
}
