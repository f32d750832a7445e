//! Which streams have work, so that the end of the last of it is noticed: nothing of the process is
//! left on the device then.
//!
//! * A launch to the stream that had the last one costs two loads.
//! * A stream's own synchronisation ends its work for certain, and that of the streams that it
//!   waited for by events. cuDNN's recurrent networks, TensorRT and whoever else spreads a request
//!   over streams forks and joins so: the host waits for one stream, and never looks at the others.
//! * The end of an event ends the work before it. vLLM, TensorRT and whoever copies into pinned
//!   memory end a request so: the result is copied on a stream of its own, which waits for an event
//!   behind the launches, and the host waits for an event behind the copy.
//! * A stream that had nothing new while others were synchronised several times is believed to have
//!   ended: libraries send one memset to a stream of their own when they start and never look at it
//!   again, and a job would never be seen idle for it. Such an end is a guess and told as one.
//! * A stream that another one with work waits for needs no place of its own: it ends with that
//!   one. More streams than fit all the same are not told apart: then only the whole context's
//!   synchronisation is an end.
//!
//! What holds: an event stands for a stream's work only until the stream has more to do, be it that
//! it waits for another one. What is forgotten, or does not fit, says nothing: the stream counts as
//! busy until it is synchronised. Two threads that use one stream at the moment at which an event
//! goes into it may have an end believed too early, once.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Streams with work at a time that are told apart, as long as they have not met in another one. A
/// training job with overlapping copies has three or four, cuDNN's LSTM seven.
const STREAMS: usize = 8;

/// No stream: no handle of the driver's is this.
const NONE: usize = usize::MAX;

/// After so many synchronisations of other streams a silent one counts as ended.
const SILENT: u32 = 4;

/// Set among the synchronisations that are counted: there are events behind all work of the stream,
/// so its next launch has something to take back.
const RECORDED: u32 = 1 << 31;

/// Events that stand behind the work of one stream. PyTorch's allocators put some of their own
/// there, too.
const EVENTS: usize = 4;

/// Streams that wait for the work of one stream: one that works with it, and the one at which all
/// meet.
const WAITERS: usize = 2;

/// The handles on one cache line: a synchronisation looks at all of them.
#[derive(Debug)]
#[repr(align(64))]
struct Handles([AtomicUsize; STREAMS]);

/// What comes behind all work of a stream. It counts while [`RECORDED`] is set.
#[derive(Debug)]
struct Behind {
    events: [AtomicUsize; EVENTS],
    /// Streams that wait for one of the events, and with them what comes there.
    waiters: [AtomicUsize; WAITERS],
}

/// The streams that have work.
#[derive(Debug)]
pub struct Busy {
    streams: Handles,
    /// Synchronisations of other streams since each last had new work, and [`RECORDED`].
    silence: [AtomicU32; STREAMS],
    behind: [Behind; STREAMS],
    /// So many places were ever in use: one in most jobs, and no synchronisation need look at the
    /// others.
    used: AtomicUsize,
    more: AtomicBool,
}

/// What a synchronising call left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Work on other streams, or there was none before.
    AsBefore,
    /// Nothing, believed because what is left has been silent for long.
    NothingProbably,
    /// Nothing.
    Nothing,
}

/// Streams whose work has ended for certain, and what is left then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// What is left.
    pub left: Left,
    streams: [usize; STREAMS + 1],
    count: usize,
}

impl Ended {
    fn nothing() -> Ended {
        Ended {
            left: Left::AsBefore,
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

    /// Each once.
    pub fn streams(&self) -> impl Iterator<Item = usize> {
        self.streams.iter().copied().take(self.count)
    }
}

fn nobody<const N: usize>() -> [AtomicUsize; N] {
    std::array::from_fn(|_| AtomicUsize::new(NONE))
}

/// Whether one of them is this.
fn one_is(all: &[AtomicUsize], handle: usize) -> bool {
    all.iter().any(|one| one.load(Ordering::Relaxed) == handle)
}

/// Puts it among them, in the place of the one that was put there first where all are taken.
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

impl Behind {
    fn clear(&self) {
        for place in self.events.iter().chain(&self.waiters) {
            place.store(NONE, Ordering::Relaxed);
        }
    }
}

/// A place of a stream.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    stream: &'a AtomicUsize,
    silence: &'a AtomicU32,
    behind: &'a Behind,
}

impl Place<'_> {
    fn has(&self, stream: usize) -> bool {
        self.stream.load(Ordering::Relaxed) == stream
    }

    /// Whether events stand behind all of its work.
    fn is_recorded(&self) -> bool {
        self.silence.load(Ordering::Acquire) & RECORDED != 0
    }

    /// Whether one of these streams waits for all of its work.
    fn is_awaited_by(&self, ended: &Ended) -> bool {
        self.is_recorded() && ended.streams().any(|stream| one_is(&self.behind.waiters, stream))
    }
}

impl Default for Busy {
    fn default() -> Busy {
        Busy {
            streams: Handles(std::array::from_fn(|_| AtomicUsize::new(NONE))),
            silence: std::array::from_fn(|_| AtomicU32::new(0)),
            behind: std::array::from_fn(|_| Behind {
                events: nobody(),
                waiters: nobody(),
            }),
            used: AtomicUsize::new(0),
            more: AtomicBool::new(false),
        }
    }
}

impl Busy {
    fn slots(&self) -> impl Iterator<Item = (&AtomicUsize, &AtomicU32)> {
        self.streams
            .0
            .iter()
            .zip(&self.silence)
            .take(self.used.load(Ordering::Acquire))
    }

    /// Those that have work.
    fn places(&self) -> impl Iterator<Item = Place<'_>> {
        let places = self.slots().zip(&self.behind);
        places
            .map(|((stream, silence), behind)| Place {
                stream,
                silence,
                behind,
            })
            .filter(|place| !place.has(NONE))
    }

    /// An event goes into a stream, behind all of its work.
    pub fn recorded(&self, event: usize, stream: usize) {
        // Whatever it stood behind before.
        self.forget(event);
        if let Some(place) = self.places().find(|place| place.has(stream)) {
            if !place.is_recorded() {
                place.behind.clear();
            }
            put(&place.behind.events, event);
            place.silence.fetch_or(RECORDED, Ordering::Release);
            return;
        }
        // A stream without work of its own: the event stands behind what that stream waits for.
        for place in self.places() {
            if place.is_recorded() && one_is(&place.behind.waiters, stream) {
                put(&place.behind.events, event);
            }
        }
    }

    /// A stream waits for an event, and with it what comes there.
    pub fn awaited(&self, stream: usize, event: usize) {
        for place in self.places() {
            if place.has(stream) {
                // What it waits for does not end with the events that are there already.
                place.silence.fetch_and(!RECORDED, Ordering::Relaxed);
            } else if place.is_recorded() && one_is(&place.behind.events, event) {
                put(&place.behind.waiters, stream);
            }
        }
    }

    /// An event is destroyed, or goes into something else than a stream. Who waits for it goes on
    /// waiting for what it stood behind.
    pub fn forget(&self, event: usize) {
        for place in self.places() {
            for one in &place.behind.events {
                let _ = one.compare_exchange(event, NONE, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// An event was seen to be reached: the work that it stands behind has ended.
    #[inline(never)]
    pub fn reached(&self, event: usize) -> Ended {
        let mut ended = Ended::nothing();
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

    /// All work of these streams has ended, and so has that of those that they waited for.
    fn end(&self, mut ended: Ended) -> Ended {
        // A stream that ends may have waited for another one: at most as often as there are places.
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
        let mut left = Left::Nothing;
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
            false => Left::AsBefore,
        };
        ended
    }

    /// Work goes to a stream. True if there was none anywhere.
    #[inline]
    pub fn mark(&self, stream: usize) -> bool {
        self.mark_at_once(stream).unwrap_or_else(|| self.mark_slowly(stream))
    }

    /// [`Busy::mark`] where that takes no search: else nothing, and nothing is changed.
    #[inline(always)]
    pub fn mark_at_once(&self, stream: usize) -> Option<bool> {
        let [first, ..] = &self.streams.0;
        let [silence, ..] = &self.silence;
        let other = first.load(Ordering::Relaxed);
        if other == stream && silence.load(Ordering::Relaxed) == 0 {
            return Some(false);
        }
        // The one stream of a job that waits after each launch.
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

    /// Whether this stream alone has work, and never was there work on two at a time.
    #[inline(always)]
    pub fn is_all(&self, stream: usize) -> bool {
        let [first, ..] = &self.streams.0;
        first.load(Ordering::Relaxed) == stream && self.is_simple()
    }

    /// All work of the stream that [`Busy::is_all`] has ended.
    #[inline(always)]
    pub fn end_all(&self) {
        let [first, ..] = &self.streams.0;
        first.store(NONE, Ordering::Relaxed);
    }

    /// Whether there never was work on two streams at a time.
    #[inline(always)]
    fn is_simple(&self) -> bool {
        self.used.load(Ordering::Acquire) == 1 && !self.more.load(Ordering::Relaxed)
    }

    #[inline(never)]
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

    /// More streams at a time than ever before, or another thread was faster.
    #[cold]
    fn mark_first(&self, stream: usize, was_idle: bool) -> bool {
        let all = self.streams.0.iter().zip(&self.silence).enumerate();
        for (at, slot) in all {
            // In use before it is claimed: whoever looks at places looks at this one.
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

    /// Gives a stream the place of one that ends with another. False if there is none.
    #[cold]
    fn replace_awaited(&self, stream: usize) -> bool {
        let ends_with_another = |place: &Place<'_>| {
            place.is_recorded()
                && self
                    .places()
                    .any(|other| one_is(&place.behind.waiters, other.stream.load(Ordering::Relaxed)))
        };
        let Some(place) = self.places().find(ends_with_another) else {
            return false;
        };
        let before = place.stream.load(Ordering::Relaxed);
        // The new one has no events behind it.
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

    /// All work of a stream has ended.
    #[inline(never)]
    pub fn synced(&self, stream: usize) -> Ended {
        let mut ended = Ended::nothing();
        ended.add(stream);
        if self.is_all(stream) {
            self.end_all();
            ended.left = Left::Nothing;
            return ended;
        }
        self.end(ended)
    }

    /// All work of the process has ended. True if there was any.
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

/// Another stream was synchronised: what that says of this one.
#[cold]
fn silent((stream, silence): (&AtomicUsize, &AtomicU32)) -> Left {
    if (silence.fetch_add(1, Ordering::Relaxed) & !RECORDED) + 1 < SILENT {
        return Left::AsBefore;
    }
    stream.store(NONE, Ordering::Relaxed);
    Left::NothingProbably
}

impl Left {
    /// Of two parts of the work, together.
    fn and(self, other: Left) -> Left {
        match (self, other) {
            (Left::AsBefore, _) | (_, Left::AsBefore) => Left::AsBefore,
            (Left::NothingProbably, _) | (_, Left::NothingProbably) => Left::NothingProbably,
            (Left::Nothing, Left::Nothing) => Left::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stream_is_busy_from_its_work_to_its_synchronisation() {
        let busy = Busy::default();
        assert!(busy.is_idle());
        assert!(busy.mark(0));
        assert!(!busy.mark(0));
        assert_eq!(busy.synced(0).left, Left::Nothing);
        assert!(busy.is_idle());
        assert_eq!(busy.synced(0).left, Left::AsBefore, "there was nothing");
    }

    #[test]
    fn the_last_stream_makes_idle() {
        let busy = Busy::default();
        assert!(busy.mark(7));
        assert!(!busy.mark(8));
        assert_eq!(busy.synced(7).left, Left::AsBefore);
        assert!(!busy.is_idle());
        assert_eq!(busy.synced(8).left, Left::Nothing);
    }

    #[test]
    fn a_stream_that_is_never_looked_at_again_does_not_count_for_ever() {
        let busy = Busy::default();
        busy.mark(99);
        for _ in 1..SILENT {
            busy.mark(0);
            assert_eq!(busy.synced(0).left, Left::AsBefore);
        }
        busy.mark(0);
        assert_eq!(busy.synced(0).left, Left::NothingProbably);
        busy.mark(0);
        assert_eq!(busy.synced(0).left, Left::Nothing);
        // One that goes on working counts.
        busy.mark(99);
        for _ in 0..3 * SILENT {
            busy.mark(0);
            busy.mark(99);
            assert_eq!(busy.synced(0).left, Left::AsBefore);
        }
    }

    const COMPUTE: usize = 0x5000;
    const SIDE: usize = 0x6000;
    const COPIES: usize = 0x7000;

    #[test]
    fn an_event_ends_its_stream_until_that_has_more_to_do() {
        let busy = Busy::default();
        assert_eq!(busy.reached(0x10).left, Left::AsBefore, "it was never recorded");
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        // An allocator's own.
        busy.recorded(0x11, COMPUTE);
        assert_eq!(busy.reached(0x10).left, Left::Nothing);
        assert_eq!(busy.reached(0x10).left, Left::AsBefore, "nothing was left before");
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        busy.mark(COMPUTE);
        assert_eq!(busy.reached(0x10).left, Left::AsBefore, "a launch since");
        busy.recorded(0x10, COMPUTE);
        busy.forget(0x10);
        assert_eq!(busy.reached(0x10).left, Left::AsBefore, "another event has its handle");
        assert!(!busy.is_idle());
    }

    #[test]
    fn a_copy_that_waited_for_the_launches_ends_these_too() {
        let busy = Busy::default();
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        busy.awaited(COPIES, 0x10);
        busy.mark(COPIES);
        busy.recorded(0x20, COPIES);
        let ended = busy.reached(0x20);
        assert_eq!(ended.left, Left::Nothing);
        assert_eq!(ended.streams().collect::<Vec<_>>(), [COPIES, COMPUTE]);
        // The next step's launches are on their way already.
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        busy.awaited(COPIES, 0x10);
        busy.mark(COPIES);
        busy.recorded(0x20, COPIES);
        busy.mark(COMPUTE);
        let ended = busy.reached(0x20);
        assert_eq!(ended.left, Left::AsBefore);
        assert_eq!(ended.streams().collect::<Vec<_>>(), [COPIES]);
    }

    #[test]
    fn streams_that_meet_in_one_end_with_it() {
        let busy = Busy::default();
        for _ in 0..3 {
            busy.mark(COMPUTE);
            busy.recorded(0x10, COMPUTE);
            busy.awaited(SIDE, 0x10);
            busy.mark(SIDE);
            // The event is gone at once, as PyTorch's wait_stream has it.
            busy.recorded(0x20, SIDE);
            busy.awaited(COMPUTE, 0x20);
            busy.forget(0x20);
            busy.mark(COMPUTE);
            assert_eq!(busy.synced(COMPUTE).left, Left::Nothing);
            assert!(busy.is_idle());
        }
        // What went to the other stream after that is not waited for.
        busy.mark(SIDE);
        busy.recorded(0x20, SIDE);
        busy.awaited(COMPUTE, 0x20);
        busy.mark(SIDE);
        busy.mark(COMPUTE);
        assert_eq!(busy.synced(COMPUTE).left, Left::AsBefore);
        assert!(!busy.is_idle());
    }

    #[test]
    fn what_a_stream_waits_for_later_does_not_end_with_its_earlier_event() {
        let busy = Busy::default();
        busy.mark(COMPUTE);
        busy.mark(SIDE);
        busy.recorded(0x10, COMPUTE);
        busy.recorded(0x20, SIDE);
        busy.awaited(COMPUTE, 0x20);
        assert_eq!(busy.reached(0x10).left, Left::AsBefore);
        busy.recorded(0x10, COMPUTE);
        let ended = busy.reached(0x10);
        assert_eq!(ended.left, Left::Nothing, "{ended:?}");
    }

    #[test]
    fn a_stream_without_work_hands_on_what_it_waits_for() {
        let busy = Busy::default();
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        busy.awaited(SIDE, 0x10);
        busy.recorded(0x20, SIDE);
        busy.awaited(COPIES, 0x20);
        assert_eq!(busy.synced(COPIES).left, Left::Nothing);
        busy.mark(COMPUTE);
        busy.recorded(0x10, COMPUTE);
        busy.awaited(SIDE, 0x10);
        busy.recorded(0x20, SIDE);
        assert_eq!(busy.reached(0x20).left, Left::Nothing);
    }

    #[test]
    fn more_events_and_waiters_than_fit_forget_the_oldest() {
        let busy = Busy::default();
        busy.mark(COMPUTE);
        (0..=EVENTS).for_each(|event| busy.recorded(0x10 + event, COMPUTE));
        assert_eq!(busy.reached(0x10).left, Left::AsBefore);
        (1..=WAITERS + 1).for_each(|waiter| busy.awaited(0x100 * waiter, 0x11));
        busy.mark(0x100);
        busy.mark(0x200);
        assert_eq!(busy.synced(0x100).left, Left::AsBefore);
        assert_eq!(busy.synced(0x200).left, Left::Nothing);
    }

    #[test]
    fn streams_that_met_make_room_for_others() {
        let busy = Busy::default();
        busy.mark(COMPUTE);
        for stream in 0..10 * STREAMS {
            busy.mark(stream);
            busy.recorded(0x10, stream);
            busy.awaited(COMPUTE, 0x10);
        }
        assert_eq!(busy.synced(COMPUTE).left, Left::Nothing);
        assert!(busy.is_idle());
        // Where the one in which they meet has no place, nothing would remember them.
        for stream in 0..=STREAMS {
            busy.mark(stream);
            busy.recorded(0x10, stream);
            busy.awaited(COMPUTE, 0x10);
        }
        assert_eq!(busy.synced(COMPUTE).left, Left::AsBefore);
        assert!(!busy.is_idle());
    }

    #[test]
    fn ceiling_of_streams() {
        let busy = Busy::default();
        for stream in 0..=STREAMS {
            busy.mark(stream);
        }
        for stream in 0..=STREAMS {
            assert_eq!(
                busy.synced(stream).left,
                Left::AsBefore,
                "the one that did not fit may be at work"
            );
        }
        assert!(!busy.is_idle());
        assert!(busy.all_synced());
        assert!(busy.is_idle());
        assert!(!busy.all_synced());
    }
}
