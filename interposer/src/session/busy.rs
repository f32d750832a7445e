//! Which streams have work, so that the end of the last of it is noticed: nothing of the process is left on the device then.
//!
//! * A launch to the stream that had the last one costs two loads.
//! * A stream's own synchronisation ends its work for certain. A stream that had nothing new while others were synchronised several times is
//!   believed to have ended: libraries send one memset to a stream of their own when they start and never look at it again, and a job
//!   would never be seen idle for it. Such an end is a guess and told as one.
//! * More streams than fit are not told apart: then only the whole context's synchronisation is an end.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Streams with work at a time that are told apart. A training job with overlapping copies has three or four.
const STREAMS: usize = 8;

/// No stream: no handle of the driver's is this.
const NONE: usize = usize::MAX;

/// After so many synchronisations of other streams a silent one counts as ended.
const SILENT: u32 = 4;

/// The handles on one cache line: a synchronisation looks at all of them.
#[derive(Debug)]
#[repr(align(64))]
struct Handles([AtomicUsize; STREAMS]);

/// The streams that have work.
#[derive(Debug)]
pub struct Busy {
    streams: Handles,
    /// Synchronisations of other streams since each last had new work.
    silence: [AtomicU32; STREAMS],
    /// So many places were ever in use: one in most jobs, and no synchronisation need look at the others.
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

impl Default for Busy {
    fn default() -> Busy {
        Busy {
            streams: Handles(std::array::from_fn(|_| AtomicUsize::new(NONE))),
            silence: std::array::from_fn(|_| AtomicU32::new(0)),
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
        self.more.store(true, Ordering::Relaxed);
        was_idle
    }

    /// Whether no stream has work.
    pub fn is_idle(&self) -> bool {
        !self.more.load(Ordering::Relaxed) && self.slots().all(|(stream, _)| stream.load(Ordering::Relaxed) == NONE)
    }

    /// All work of a stream has ended.
    #[inline(always)]
    pub fn synced(&self, stream: usize) -> Left {
        if self.is_all(stream) {
            self.end_all();
            return Left::Nothing;
        }
        self.synced_slowly(stream)
    }

    #[inline(never)]
    fn synced_slowly(&self, stream: usize) -> Left {
        let mut left = Left::Nothing;
        let mut had_work = false;
        for slot in self.slots() {
            let other = slot.0.load(Ordering::Relaxed);
            if other == NONE {
                continue;
            }
            had_work = true;
            if other == stream {
                slot.0.store(NONE, Ordering::Relaxed);
            } else {
                left = left.and(silent(slot));
            }
        }
        if !had_work || self.more.load(Ordering::Relaxed) {
            return Left::AsBefore;
        }
        left
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
    if silence.fetch_add(1, Ordering::Relaxed) + 1 < SILENT {
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
        assert_eq!(busy.synced(0), Left::Nothing);
        assert!(busy.is_idle());
        assert_eq!(busy.synced(0), Left::AsBefore, "there was nothing");
    }

    #[test]
    fn the_last_stream_makes_idle() {
        let busy = Busy::default();
        assert!(busy.mark(7));
        assert!(!busy.mark(8));
        assert_eq!(busy.synced(7), Left::AsBefore);
        assert!(!busy.is_idle());
        assert_eq!(busy.synced(8), Left::Nothing);
    }

    #[test]
    fn a_stream_that_is_never_looked_at_again_does_not_count_for_ever() {
        let busy = Busy::default();
        busy.mark(99);
        for _ in 1..SILENT {
            busy.mark(0);
            assert_eq!(busy.synced(0), Left::AsBefore);
        }
        busy.mark(0);
        assert_eq!(busy.synced(0), Left::NothingProbably);
        busy.mark(0);
        assert_eq!(busy.synced(0), Left::Nothing);
        // One that goes on working counts.
        busy.mark(99);
        for _ in 0..3 * SILENT {
            busy.mark(0);
            busy.mark(99);
            assert_eq!(busy.synced(0), Left::AsBefore);
        }
    }

    #[test]
    fn ceiling_of_streams() {
        let busy = Busy::default();
        for stream in 0..=STREAMS {
            busy.mark(stream);
        }
        for stream in 0..=STREAMS {
            assert_eq!(
                busy.synced(stream),
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
