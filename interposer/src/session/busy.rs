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

#[derive(Debug)]
struct Slot {
    stream: AtomicUsize,
    /// Synchronisations of other streams since it last had new work.
    silence: AtomicU32,
}

/// The streams that have work.
#[derive(Debug)]
pub struct Busy {
    slots: [Slot; STREAMS],
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
            slots: std::array::from_fn(|_| Slot {
                stream: AtomicUsize::new(NONE),
                silence: AtomicU32::new(0),
            }),
            more: AtomicBool::new(false),
        }
    }
}

impl Busy {
    /// Work goes to a stream. True if there was none anywhere.
    #[inline]
    pub fn mark(&self, stream: usize) -> bool {
        let [first, ..] = &self.slots;
        if first.stream.load(Ordering::Relaxed) == stream && first.silence.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.mark_slowly(stream)
    }

    fn mark_slowly(&self, stream: usize) -> bool {
        let was_idle = self.is_idle();
        if let Some(slot) = self.find(stream) {
            slot.silence.store(0, Ordering::Relaxed);
            return false;
        }
        for slot in &self.slots {
            let free = slot
                .stream
                .compare_exchange(NONE, stream, Ordering::Relaxed, Ordering::Relaxed);
            if free.is_ok() {
                slot.silence.store(0, Ordering::Relaxed);
                return was_idle;
            }
        }
        self.more.store(true, Ordering::Relaxed);
        was_idle
    }

    /// Whether no stream has work.
    pub fn is_idle(&self) -> bool {
        !self.more.load(Ordering::Relaxed)
            && self
                .slots
                .iter()
                .all(|slot| slot.stream.load(Ordering::Relaxed) == NONE)
    }

    /// All work of a stream has ended.
    pub fn synced(&self, stream: usize) -> Left {
        let mut left = Left::Nothing;
        let mut had_work = false;
        for slot in &self.slots {
            let other = slot.stream.load(Ordering::Relaxed);
            if other == NONE {
                continue;
            }
            had_work = true;
            if other == stream {
                slot.stream.store(NONE, Ordering::Relaxed);
            } else if slot.silence.fetch_add(1, Ordering::Relaxed) + 1 >= SILENT {
                slot.stream.store(NONE, Ordering::Relaxed);
                if left == Left::Nothing {
                    left = Left::NothingProbably;
                }
            } else {
                left = Left::AsBefore;
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
        for slot in &self.slots {
            slot.stream.store(NONE, Ordering::Relaxed);
        }
        self.more.store(false, Ordering::Relaxed);
        had_work
    }

    fn find(&self, stream: usize) -> Option<&Slot> {
        self.slots
            .iter()
            .find(|slot| slot.stream.load(Ordering::Relaxed) == stream)
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
