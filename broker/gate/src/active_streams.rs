// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of the process that have work, and the moment when the last work has ended.
//!
//! * A launch to the stream of the previous launch costs two loads.
//! * A stream's synchronisation ends its work, and the work of streams that it waited for by
//!   events. cuDNN's recurrent networks and TensorRT fork and join in this way.
//! * An event's end ends the work before it. vLLM and TensorRT end a request in this way: a copy
//!   stream waits for an event after the launches, and the host waits for an event after the copy.
//! * A stream that is silent during several synchronisations of other streams is assumed to have
//!   ended, and is reported as a guess. Libraries send one memset to a stream of their own at start
//!   and never use it again.
//! * A stream needs no place if another stream with work waits for it: it ends with that one. If
//!   streams still do not fit, only the context's synchronisation is an end.
//!
//! Invariant: an event stands for a stream's work only until the stream gets more work or another
//! wait. Forgetting an event causes only a delay: the stream stays busy until it is synchronised.
//! If two threads use a stream while an event is recorded, one end may be believed too early, once.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Number of distinct streams in the table. Training with overlapping copies has three or four,
/// cuDNN's LSTM seven.
const STREAMS: usize = 8;

/// No stream; no handle has this value.
const NONE: usize = usize::MAX;

/// Synchronisations of other streams after which a silent one counts as ended.
pub const SILENT_SYNCS: u32 = 4;

/// Flag in the silence count: events follow all work. The next launch must clear it.
const RECORDED: u32 = 1 << 31;

/// Events after one stream's work. PyTorch's allocators add their own.
const EVENTS: usize = 4;

/// Streams that wait for one stream's work: one that works together with it, and one that all
/// streams join.
const WAITERS: usize = 2;

/// Handles of streams, on one cache line, because a synchronisation looks at all.
#[derive(Debug)]
#[repr(align(64))]
struct StreamHandles([AtomicUsize; STREAMS]);

/// Events after all work of a stream, and their waiters. Valid while [`RECORDED`] is set.
#[derive(Debug)]
struct RecordedBehind {
    events: [AtomicUsize; EVENTS],
    /// Streams that wait for one of the events.
    waiters: [AtomicUsize; WAITERS],
}

/// Streams that have work.
#[derive(Debug)]
pub struct ActiveStreams {
    streams: StreamHandles,
    /// Synchronisations of others since each stream's last work, and [`RECORDED`].
    silence: [AtomicU32; STREAMS],
    behind: [RecordedBehind; STREAMS],
    /// Places ever used: one in most jobs, so that a synchronisation need not look at the others.
    used: AtomicUsize,
    more: AtomicBool,
}

/// Work that remains after a synchronising call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemainingWork {
    /// Work on other streams, or no work before.
    AsBefore,
    /// Nothing, by a guess about silent streams.
    NothingProbably,
    /// Nothing.
    Nothing,
}

/// Streams whose work has certainly ended, and the remaining work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedStreams {
    /// The remaining work.
    pub left: RemainingWork,
    streams: [usize; STREAMS + 1],
    count: usize,
}

impl EndedStreams {
    fn nothing() -> EndedStreams {
        EndedStreams {
            left: RemainingWork::AsBefore,
            streams: [NONE; STREAMS + 1],
            count: 0,
        }
    }

    fn add(&mut self, stream: usize) {
        if !self.has(stream)
            && let Some(place) = self.streams.get_mut(self.count)
        {
            *place = stream;
            self.count += 1;
        }
    }

    fn has(&self, stream: usize) -> bool {
        self.streams().any(|ended| ended == stream)
    }

    /// Each stream once.
    pub fn streams(&self) -> impl Iterator<Item = usize> {
        self.streams.iter().copied().take(self.count)
    }
}

fn no_handles<const N: usize>() -> [AtomicUsize; N] {
    std::array::from_fn(|_| AtomicUsize::new(NONE))
}

/// Whether one word is `handle`.
fn one_is(all: &[AtomicUsize], handle: usize) -> bool {
    all.iter().any(|one| one.load(Ordering::Relaxed) == handle)
}

/// Adds a handle, in place of the oldest if all places are taken.
fn put(all: &[AtomicUsize], handle: usize) {
    if one_is(all, handle) {
        return;
    }
    let free = all.iter().find(|one| one.load(Ordering::Relaxed) == NONE);
    if let Some(free) = free {
        free.store(handle, Ordering::Relaxed);
        return;
    }
    let mut last = None;
    for one in all {
        if let Some(last) = last.replace(one) {
            last.store(one.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    if let Some(last) = last {
        last.store(handle, Ordering::Relaxed);
    }
}

impl RecordedBehind {
    fn clear(&self) {
        for place in self.events.iter().chain(&self.waiters) {
            place.store(NONE, Ordering::Relaxed);
        }
    }
}

/// One stream's words.
#[derive(Debug, Clone, Copy)]
struct ActiveStream<'a> {
    stream: &'a AtomicUsize,
    silence: &'a AtomicU32,
    behind: &'a RecordedBehind,
}

impl ActiveStream<'_> {
    fn has(&self, stream: usize) -> bool {
        self.stream.load(Ordering::Relaxed) == stream
    }

    /// Whether events follow all of its work.
    fn is_recorded(&self) -> bool {
        self.silence.load(Ordering::Acquire) & RECORDED != 0
    }

    /// Whether one of these streams waits for all of its work.
    fn is_awaited_by(&self, ended: &EndedStreams) -> bool {
        self.is_recorded() && ended.streams().any(|stream| one_is(&self.behind.waiters, stream))
    }
}

impl Default for ActiveStreams {
    fn default() -> ActiveStreams {
        ActiveStreams {
            streams: StreamHandles(std::array::from_fn(|_| AtomicUsize::new(NONE))),
            silence: std::array::from_fn(|_| AtomicU32::new(0)),
            behind: std::array::from_fn(|_| RecordedBehind {
                events: no_handles(),
                waiters: no_handles(),
            }),
            used: AtomicUsize::new(0),
            more: AtomicBool::new(false),
        }
    }
}

impl ActiveStreams {
    fn slots(&self) -> impl Iterator<Item = (&AtomicUsize, &AtomicU32)> {
        self.streams
            .0
            .iter()
            .zip(&self.silence)
            .take(self.used.load(Ordering::Acquire))
    }

    /// Places of streams that have work.
    fn places(&self) -> impl Iterator<Item = ActiveStream<'_>> {
        let places = self.slots().zip(&self.behind);
        places
            .map(|((stream, silence), behind)| ActiveStream {
                stream,
                silence,
                behind,
            })
            .filter(|place| !place.has(NONE))
    }

    /// Records that an event follows all work of a stream.
    pub fn recorded(&self, event: usize, stream: usize) {
        // The event leaves its former place.
        self.forget(event);
        if let Some(place) = self.places().find(|place| place.has(stream)) {
            if !place.is_recorded() {
                place.behind.clear();
            }
            put(&place.behind.events, event);
            place.silence.fetch_or(RECORDED, Ordering::Release);
            return;
        }
        // A stream without work: the event follows the work that this stream waits for.
        for place in self.places() {
            if place.is_recorded() && one_is(&place.behind.waiters, stream) {
                put(&place.behind.events, event);
            }
        }
    }

    /// Records that a stream waits for an event.
    pub fn awaited(&self, stream: usize, event: usize) {
        for place in self.places() {
            if place.has(stream) {
                // The existing events do not follow the work that the stream now waits for.
                place.silence.fetch_and(!RECORDED, Ordering::Relaxed);
            } else if place.is_recorded() && one_is(&place.behind.events, event) {
                put(&place.behind.waiters, stream);
            }
        }
    }

    /// Forgets an event that is destroyed or recorded elsewhere. Its waiters still wait for the
    /// work before it.
    pub fn forget(&self, event: usize) {
        for place in self.places() {
            for one in &place.behind.events {
                let _ = one.compare_exchange(event, NONE, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Ends the work before an event that was reached.
    #[inline(never)]
    pub fn reached(&self, event: usize) -> EndedStreams {
        let mut ended = EndedStreams::nothing();
        for place in self.places() {
            if place.is_recorded() && one_is(&place.behind.events, event) {
                ended.add(place.stream.load(Ordering::Relaxed));
            }
        }
        match ended.count {
            0 => ended,
            _ => self.end(ended),
        }
    }

    /// Ends the work of these streams and of those that they waited for.
    fn end(&self, mut ended: EndedStreams) -> EndedStreams {
        // An ended stream may have waited for another: as many steps as places at most.
        for _ in 0..STREAMS {
            let before = ended.count;
            for place in self.places() {
                if place.is_awaited_by(&ended) {
                    ended.add(place.stream.load(Ordering::Relaxed));
                }
            }
            if ended.count == before {
                break;
            }
        }
        let mut left = RemainingWork::Nothing;
        let mut had_work = false;
        for place in self.places() {
            had_work = true;
            if ended.has(place.stream.load(Ordering::Relaxed)) {
                place.stream.store(NONE, Ordering::Relaxed);
            } else {
                left = left.and(silent((place.stream, place.silence)));
            }
        }
        ended.left = match had_work && !self.more.load(Ordering::Relaxed) {
            true => left,
            false => RemainingWork::AsBefore,
        };
        ended
    }

    /// Records work on a stream. True if no stream had any.
    #[inline]
    pub fn mark(&self, stream: usize) -> bool {
        self.mark_at_once(stream).unwrap_or_else(|| self.mark_slowly(stream))
    }

    /// [`ActiveStreams::mark`] without a search; `None`: not possible, nothing changed.
    #[inline(always)]
    pub fn mark_at_once(&self, stream: usize) -> Option<bool> {
        let [first, ..] = &self.streams.0;
        let [silence, ..] = &self.silence;
        let other = first.load(Ordering::Relaxed);
        if other == stream && silence.load(Ordering::Relaxed) == 0 {
            return Some(false);
        }
        // The only stream of a job that waits after each launch.
        if other == NONE
            && self.is_simple()
            && first
                .compare_exchange(NONE, stream, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            silence.store(0, Ordering::Relaxed);
            return Some(true);
        }
        None
    }

    /// Whether only this stream has work, and two streams never had work at once.
    #[inline(always)]
    pub fn is_all(&self, stream: usize) -> bool {
        let [first, ..] = &self.streams.0;
        first.load(Ordering::Relaxed) == stream && self.is_simple()
    }

    /// Ends the work of the stream for which [`ActiveStreams::is_all`] holds.
    #[inline(always)]
    pub fn end_all(&self) {
        let [first, ..] = &self.streams.0;
        first.store(NONE, Ordering::Relaxed);
    }

    /// Whether two streams never had work at once.
    #[inline(always)]
    fn is_simple(&self) -> bool {
        self.used.load(Ordering::Acquire) == 1 && !self.more.load(Ordering::Relaxed)
    }

    /// Cold, so that it stays a call; inline, so that the call is direct, in the caller's crate.
    #[cold]
    #[inline]
    fn mark_slowly(&self, stream: usize) -> bool {
        let mut was_idle = !self.more.load(Ordering::Relaxed);
        let mut free = None;
        for slot in self.slots() {
            match slot.0.load(Ordering::Relaxed) {
                NONE => free = free.or(Some(slot)),
                other => {
                    was_idle = false;
                    if other == stream {
                        slot.1.store(0, Ordering::Relaxed);
                        return false;
                    }
                }
            }
        }
        match free {
            Some(slot) if claimed(slot, stream) => was_idle,
            _ => self.mark_first(stream, was_idle),
        }
    }

    /// More streams at once than ever before, or another thread took the place first.
    #[cold]
    fn mark_first(&self, stream: usize, was_idle: bool) -> bool {
        let all = self.streams.0.iter().zip(&self.silence).enumerate();
        for (at, slot) in all {
            // Before the claim, so that every search covers it.
            self.used.fetch_max(at + 1, Ordering::AcqRel);
            if claimed(slot, stream) {
                return was_idle;
            }
        }
        if !self.replace_awaited(stream) {
            self.more.store(true, Ordering::Relaxed);
        }
        was_idle
    }

    /// Gives a stream the place of a stream that ends together with another. False if there is
    /// none.
    #[cold]
    fn replace_awaited(&self, stream: usize) -> bool {
        let ends_with_another = |place: &ActiveStream<'_>| {
            place.is_recorded()
                && self
                    .places()
                    .any(|other| one_is(&place.behind.waiters, other.stream.load(Ordering::Relaxed)))
        };
        let Some(place) = self.places().find(ends_with_another) else {
            return false;
        };
        let before = place.stream.load(Ordering::Relaxed);
        // No events follow the new stream's work.
        place.silence.store(0, Ordering::Relaxed);
        place
            .stream
            .compare_exchange(before, stream, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether no stream has work.
    pub fn is_idle(&self) -> bool {
        !self.more.load(Ordering::Relaxed) && self.slots().all(|(stream, _)| stream.load(Ordering::Relaxed) == NONE)
    }

    /// Ends the work of a synchronised stream.
    #[inline(never)]
    pub fn synced(&self, stream: usize) -> EndedStreams {
        let mut ended = EndedStreams::nothing();
        ended.add(stream);
        if self.is_all(stream) {
            self.end_all();
            ended.left = RemainingWork::Nothing;
            return ended;
        }
        self.end(ended)
    }

    /// Ends all work of the process. True if there was any.
    pub fn all_synced(&self) -> bool {
        let had_work = !self.is_idle();
        for (stream, _) in self.slots() {
            stream.store(NONE, Ordering::Relaxed);
        }
        self.more.store(false, Ordering::Relaxed);
        had_work
    }
}

#[inline]
fn claimed((place, silence): (&AtomicUsize, &AtomicU32), stream: usize) -> bool {
    let free = place.compare_exchange(NONE, stream, Ordering::Relaxed, Ordering::Relaxed);
    let claimed = free.is_ok() || free == Err(stream);
    if claimed {
        silence.store(0, Ordering::Relaxed);
    }
    claimed
}

/// Counts a synchronisation of another stream against this one.
#[cold]
fn silent((stream, silence): (&AtomicUsize, &AtomicU32)) -> RemainingWork {
    if (silence.fetch_add(1, Ordering::Relaxed) & !RECORDED) + 1 < SILENT_SYNCS {
        return RemainingWork::AsBefore;
    }
    stream.store(NONE, Ordering::Relaxed);
    RemainingWork::NothingProbably
}

impl RemainingWork {
    /// Combines two parts of the work.
    fn and(self, other: RemainingWork) -> RemainingWork {
        match (self, other) {
            (RemainingWork::AsBefore, _) | (_, RemainingWork::AsBefore) => RemainingWork::AsBefore,
            (RemainingWork::NothingProbably, _) | (_, RemainingWork::NothingProbably) => RemainingWork::NothingProbably,
            (RemainingWork::Nothing, RemainingWork::Nothing) => RemainingWork::Nothing,
        }
    }
}

/// A copy, as in a forked child.
impl Clone for ActiveStreams {
    fn clone(&self) -> ActiveStreams {
        let copy = |word: &AtomicUsize| AtomicUsize::new(word.load(Ordering::SeqCst));
        ActiveStreams {
            streams: StreamHandles(self.streams.0.each_ref().map(copy)),
            silence: self
                .silence
                .each_ref()
                .map(|word| AtomicU32::new(word.load(Ordering::SeqCst))),
            behind: self.behind.each_ref().map(|behind| RecordedBehind {
                events: behind.events.each_ref().map(copy),
                waiters: behind.waiters.each_ref().map(copy),
            }),
            used: copy(&self.used),
            more: AtomicBool::new(self.more.load(Ordering::SeqCst)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_stream_is_busy_from_its_work_to_its_synchronisation() {
        let busy = ActiveStreams::default();
        assert!(busy.is_idle());
        assert!(busy.mark(0));
        assert!(!busy.mark(0));
        assert_eq!(busy.synced(0).left, RemainingWork::Nothing);
        assert!(busy.is_idle());
        assert_eq!(busy.synced(0).left, RemainingWork::AsBefore, "there was nothing");
    }

    #[test]
    fn the_last_stream_makes_idle() {
        let busy = ActiveStreams::default();
        assert!(busy.mark(7));
        assert!(!busy.mark(8));
        assert_eq!(busy.synced(7).left, RemainingWork::AsBefore);
        assert!(!busy.is_idle());
        assert_eq!(busy.synced(8).left, RemainingWork::Nothing);
    }

    #[test]
    fn a_stream_that_is_never_looked_at_again_does_not_count_for_ever() {
        let busy = ActiveStreams::default();
        busy.mark(99);
        for _ in 1..SILENT_SYNCS {
            busy.mark(0);
            assert_eq!(busy.synced(0).left, RemainingWork::AsBefore);
        }
        busy.mark(0);
        assert_eq!(busy.synced(0).left, RemainingWork::NothingProbably);
        busy.mark(0);
        assert_eq!(busy.synced(0).left, RemainingWork::Nothing);
        // A stream that keeps working counts.
        busy.mark(99);
        for _ in 0..3 * SILENT_SYNCS {
            busy.mark(0);
            busy.mark(99);
            assert_eq!(busy.synced(0).left, RemainingWork::AsBefore);
        }
    }

    const COMPUTE: usize = 0x5000;
    const SIDE: usize = 0x6000;
    const COPIES: usize = 0x7000;

    #[test]
    fn an_event_ends_its_stream_until_that_has_more_to_do() {
        let busy = ActiveStreams::default();
        assert_eq!(
            busy.reached(0x10).left,
            RemainingWork::AsBefore,
            "it was never recorded"
        );
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        // An allocator's event.
        busy.recorded(0x11, COMPUTE);
        assert_eq!(busy.reached(0x10).left, RemainingWork::Nothing);
        assert_eq!(
            busy.reached(0x10).left,
            RemainingWork::AsBefore,
            "nothing was left before"
        );
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        busy.mark(COMPUTE);
        assert_eq!(busy.reached(0x10).left, RemainingWork::AsBefore, "a launch since");
        busy.recorded(0x10, COMPUTE);
        busy.forget(0x10);
        assert_eq!(
            busy.reached(0x10).left,
            RemainingWork::AsBefore,
            "another event has its handle"
        );
        assert!(!busy.is_idle());
    }

    #[test]
    fn a_copy_that_waited_for_the_launches_ends_these_too() {
        let busy = ActiveStreams::default();
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        busy.awaited(COPIES, 0x10);
        busy.mark(COPIES);
        busy.recorded(0x20, COPIES);
        let ended = busy.reached(0x20);
        assert_eq!(ended.left, RemainingWork::Nothing);
        assert_eq!(ended.streams().collect::<Vec<_>>(), [COPIES, COMPUTE]);
        // The next step's launches are queued already.
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        busy.awaited(COPIES, 0x10);
        busy.mark(COPIES);
        busy.recorded(0x20, COPIES);
        busy.mark(COMPUTE);
        let ended = busy.reached(0x20);
        assert_eq!(ended.left, RemainingWork::AsBefore);
        assert_eq!(ended.streams().collect::<Vec<_>>(), [COPIES]);
    }

    #[test]
    fn streams_that_meet_in_one_end_with_it() {
        let busy = ActiveStreams::default();
        for _ in 0..3 {
            busy.mark(COMPUTE);
            busy.recorded(0x10, COMPUTE);
            busy.awaited(SIDE, 0x10);
            busy.mark(SIDE);
            // The event is destroyed at once, as in PyTorch's `wait_stream`.
            busy.recorded(0x20, SIDE);
            busy.awaited(COMPUTE, 0x20);
            busy.forget(0x20);
            busy.mark(COMPUTE);
            assert_eq!(busy.synced(COMPUTE).left, RemainingWork::Nothing);
            assert!(busy.is_idle());
        }
        // Later work on the other stream is not awaited.
        busy.mark(SIDE);
        busy.recorded(0x20, SIDE);
        busy.awaited(COMPUTE, 0x20);
        busy.mark(SIDE);
        busy.mark(COMPUTE);
        assert_eq!(busy.synced(COMPUTE).left, RemainingWork::AsBefore);
        assert!(!busy.is_idle());
    }

    #[test]
    fn what_a_stream_waits_for_later_does_not_end_with_its_earlier_event() {
        let busy = ActiveStreams::default();
        busy.mark(COMPUTE);
        busy.mark(SIDE);
        busy.recorded(0x10, COMPUTE);
        busy.recorded(0x20, SIDE);
        busy.awaited(COMPUTE, 0x20);
        assert_eq!(busy.reached(0x10).left, RemainingWork::AsBefore);
        busy.recorded(0x10, COMPUTE);
        let ended = busy.reached(0x10);
        assert_eq!(ended.left, RemainingWork::Nothing, "{ended:?}");
    }

    #[test]
    fn a_stream_without_work_hands_on_what_it_waits_for() {
        let busy = ActiveStreams::default();
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        busy.awaited(SIDE, 0x10);
        busy.recorded(0x20, SIDE);
        busy.awaited(COPIES, 0x20);
        assert_eq!(busy.synced(COPIES).left, RemainingWork::Nothing);
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        busy.awaited(SIDE, 0x10);
        busy.recorded(0x20, SIDE);
        assert_eq!(busy.reached(0x20).left, RemainingWork::Nothing);
    }

    #[test]
    fn more_events_and_waiters_than_fit_forget_the_oldest() {
        let busy = ActiveStreams::default();
        busy.mark(COMPUTE);
        (0..=EVENTS).for_each(|event| busy.recorded(0x10 + event, COMPUTE));
        assert_eq!(busy.reached(0x10).left, RemainingWork::AsBefore);
        (1..=WAITERS + 1).for_each(|waiter| busy.awaited(0x100 * waiter, 0x11));
        busy.mark(0x100);
        busy.mark(0x200);
        assert_eq!(busy.synced(0x100).left, RemainingWork::AsBefore);
        assert_eq!(busy.synced(0x200).left, RemainingWork::Nothing);
    }

    #[test]
    fn streams_that_met_make_room_for_others() {
        let busy = ActiveStreams::default();
        busy.mark(COMPUTE);
        for stream in 0..10 * STREAMS {
            busy.mark(stream);
            busy.recorded(0x10, stream);
            busy.awaited(COMPUTE, 0x10);
        }
        assert_eq!(busy.synced(COMPUTE).left, RemainingWork::Nothing);
        assert!(busy.is_idle());
        // Without a place for the joining stream the table would lose the other streams.
        for stream in 0..=STREAMS {
            busy.mark(stream);
            busy.recorded(0x10, stream);
            busy.awaited(COMPUTE, 0x10);
        }
        assert_eq!(busy.synced(COMPUTE).left, RemainingWork::AsBefore);
        assert!(!busy.is_idle());
    }

    #[test]
    fn ceiling_of_streams() {
        let busy = ActiveStreams::default();
        for stream in 0..=STREAMS {
            busy.mark(stream);
        }
        for stream in 0..=STREAMS {
            assert_eq!(
                busy.synced(stream).left,
                RemainingWork::AsBefore,
                "the one that did not fit may be at work"
            );
        }
        assert!(!busy.is_idle());
        assert!(busy.all_synced());
        assert!(busy.is_idle());
        assert!(!busy.all_synced());
    }

    /// The lab's state instead: the silence of each stream with work, without events.
    #[derive(Default)]
    struct SilentStreams([Option<u32>; STREAMS]);

    impl SilentStreams {
        fn synced(&mut self, stream: usize) -> RemainingWork {
            if self.0.iter().all(Option::is_none) {
                return RemainingWork::AsBefore;
            }
            let mut guessed = false;
            self.0[stream] = None;
            for silence in &mut self.0 {
                *silence = silence.map(|silence| silence + 1);
                guessed |= silence.take_if(|silence| *silence >= SILENT_SYNCS).is_some();
            }
            match (self.0.iter().all(Option::is_none), guessed) {
                (false, _) => RemainingWork::AsBefore,
                (true, true) => RemainingWork::NothingProbably,
                (true, false) => RemainingWork::Nothing,
            }
        }
    }

    proptest! {
        /// Without events, and with no more streams than fit, the lab's short rule equals this one.
        #[test]
        fn the_rule_without_events(steps in prop::collection::vec((0..5u8, 0..STREAMS), 0..200)) {
            let (active, mut silent) = (ActiveStreams::default(), SilentStreams::default());
            for (what, stream) in steps {
                let idle = silent.0.iter().all(Option::is_none);
                match what {
                    0..=1 => {
                        prop_assert_eq!(active.mark(0x1000 + stream), idle);
                        silent.0[stream] = Some(0);
                    }
                    2..=3 => prop_assert_eq!(active.synced(0x1000 + stream).left, silent.synced(stream)),
                    _ => {
                        prop_assert_eq!(active.all_synced(), !idle);
                        silent = SilentStreams::default();
                    }
                }
            }
            prop_assert_eq!(active.is_idle(), silent.0.iter().all(Option::is_none));
        }
    }
}
