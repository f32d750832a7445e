//! Which events stand behind which work: a job that learns its end by an event is seen idle, as one that synchronises a stream is.
//!
//! vLLM, TensorRT and whoever copies into pinned memory end a request so: the result is copied on a stream of its own, which waits for an event behind the launches, and the host waits for an event
//! behind the copy. So an event is remembered with its stream, with how much the job had launched and copied by then, and with the stream whose event that one waited for last.
//!
//! What holds: an event says something only while nothing was launched since; what was launched later may be anywhere. A place is given to one event at a time, and whoever comes second to a place
//! that is just being written is not remembered. An event that is forgotten, or never was known, says nothing: the job counts as busy until a stream is synchronised. Two threads that record and
//! await one event at the same moment may have an end taken for another's: a gap is then believed too early, once.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Stream;

/// Events that are remembered: PyTorch's allocators keep some hundred.
const EVENTS: usize = 512;

/// Streams that wait for others' events.
const WAITERS: usize = 32;

/// No event or stream has this handle.
const NONE: usize = usize::MAX;

/// So much the job has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Kernels and graphs.
    pub launches: u64,
    /// Copies and fills.
    pub transfers: u64,
}

/// Streams whose work has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// That of the event.
    pub stream: Option<Stream>,
    /// The one whose event it had waited for.
    pub behind: Option<Stream>,
}

/// A stream and a number of launches, under a handle.
#[derive(Debug)]
struct Slot {
    key: AtomicUsize,
    stream: AtomicUsize,
    launches: AtomicU64,
    transfers: AtomicU64,
    behind: AtomicUsize,
    behind_launches: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    stream: Stream,
    work: Work,
    behind: Option<(Stream, u64)>,
}

/// All that are remembered.
#[derive(Debug)]
pub struct Events {
    events: Box<[Slot]>,
    waiters: Box<[Slot]>,
}

impl Default for Events {
    fn default() -> Events {
        let slots = |count| (0..count).map(|_| Slot::default()).collect();
        Events {
            events: slots(EVENTS),
            waiters: slots(WAITERS),
        }
    }
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            key: AtomicUsize::new(NONE),
            stream: AtomicUsize::new(0),
            launches: AtomicU64::new(0),
            transfers: AtomicU64::new(0),
            behind: AtomicUsize::new(NONE),
            behind_launches: AtomicU64::new(0),
        }
    }
}

impl Slot {
    /// Takes the place, whoever had it. Nothing if another thread is just at it: what is there then may be of neither.
    fn put(&self, key: usize, known: Known) {
        /// Being written: no handle is this either.
        const TAKEN: usize = usize::MAX - 1;
        let before = self.key.swap(TAKEN, Ordering::AcqRel);
        if before == TAKEN {
            return;
        }
        let (behind, launches) = known.behind.unwrap_or((NONE, 0));
        self.stream.store(known.stream, Ordering::Relaxed);
        self.launches.store(known.work.launches, Ordering::Relaxed);
        self.transfers.store(known.work.transfers, Ordering::Relaxed);
        self.behind.store(behind, Ordering::Relaxed);
        self.behind_launches.store(launches, Ordering::Relaxed);
        self.key.store(key, Ordering::Release);
    }

    fn get(&self, key: usize) -> Option<Known> {
        if self.key.load(Ordering::Acquire) != key {
            return None;
        }
        let behind = self.behind.load(Ordering::Relaxed);
        let known = Known {
            stream: self.stream.load(Ordering::Relaxed),
            work: Work {
                launches: self.launches.load(Ordering::Relaxed),
                transfers: self.transfers.load(Ordering::Relaxed),
            },
            behind: (behind != NONE).then(|| (behind, self.behind_launches.load(Ordering::Relaxed))),
        };
        // Whoever wrote meanwhile has taken the key away first.
        std::sync::atomic::fence(Ordering::Acquire);
        (self.key.load(Ordering::Relaxed) == key).then_some(known)
    }

    fn forget(&self, key: usize) {
        let _ = self
            .key
            .compare_exchange(key, NONE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn slot(slots: &[Slot], handle: usize) -> Option<&Slot> {
    // Handles are addresses of blocks of 64 bytes and more.
    let mixed = (handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    slots.get(usize::try_from(mixed).unwrap_or(0) % slots.len().max(1))
}

impl Events {
    /// An event goes into a stream, behind all that the job has done so far.
    pub fn recorded(&self, event: usize, stream: Stream, work: Work) {
        let waits = slot(&self.waiters, stream).and_then(|slot| slot.get(stream));
        let behind = waits.map(|known| (known.stream, known.work.launches));
        if let Some(slot) = slot(&self.events, event) {
            slot.put(event, Known { stream, work, behind });
        }
    }

    /// A stream waits for an event, and with it what comes there.
    pub fn awaited(&self, stream: Stream, event: usize) {
        let Some(known) = slot(&self.events, event).and_then(|slot| slot.get(event)) else {
            return;
        };
        if known.stream != stream
            && let Some(slot) = slot(&self.waiters, stream)
        {
            slot.put(stream, known);
        }
    }

    /// It is destroyed, or goes into something else than a stream: whoever has this handle next is another.
    pub fn forget(&self, event: usize) {
        if let Some(slot) = slot(&self.events, event) {
            slot.forget(event);
        }
    }

    /// What has ended with an event, now that the job has done so much.
    pub fn ended(&self, event: usize, work: Work) -> Option<Ended> {
        let known = slot(&self.events, event).and_then(|slot| slot.get(event))?;
        let behind = known.behind.filter(|(_, launches)| *launches == work.launches);
        let ended = Ended {
            stream: (known.work == work).then_some(known.stream),
            behind: behind.map(|(stream, _)| stream),
        };
        (ended.stream.is_some() || ended.behind.is_some()).then_some(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPUTE: Stream = 0x5000;
    const COPIES: Stream = 0x6000;

    fn work(launches: u64, transfers: u64) -> Work {
        Work { launches, transfers }
    }

    #[test]
    fn an_event_ends_its_stream_while_nothing_came_since() {
        let events = Events::default();
        assert_eq!(events.ended(0x10, work(0, 0)), None, "it was never recorded");
        events.recorded(0x10, COMPUTE, work(3, 1));
        let ended = Ended {
            stream: Some(COMPUTE),
            behind: None,
        };
        assert_eq!(events.ended(0x10, work(3, 1)), Some(ended));
        assert_eq!(events.ended(0x10, work(4, 1)), None, "a launch since");
        assert_eq!(events.ended(0x10, work(3, 2)), None, "a copy since");
        events.recorded(0x10, COMPUTE, work(4, 1));
        assert_eq!(events.ended(0x10, work(4, 1)), Some(ended));
        events.forget(0x10);
        assert_eq!(events.ended(0x10, work(4, 1)), None);
    }

    #[test]
    fn a_copy_that_waited_for_the_launches_ends_these_too() {
        let events = Events::default();
        events.recorded(0x10, COMPUTE, work(7, 0));
        events.awaited(COPIES, 0x10);
        events.recorded(0x20, COPIES, work(7, 1));
        let both = Ended {
            stream: Some(COPIES),
            behind: Some(COMPUTE),
        };
        assert_eq!(events.ended(0x20, work(7, 1)), Some(both));
        // The next step's launches are on their way already.
        assert_eq!(events.ended(0x20, work(9, 1)), None);
        // Another copy elsewhere says nothing against the launches.
        let launches = Ended {
            stream: None,
            behind: Some(COMPUTE),
        };
        assert_eq!(events.ended(0x20, work(7, 2)), Some(launches));
        // Launched after what was waited for: not known to have ended.
        events.recorded(0x20, COPIES, work(8, 1));
        let copies = Ended {
            stream: Some(COPIES),
            behind: None,
        };
        assert_eq!(events.ended(0x20, work(8, 1)), Some(copies));
    }

    #[test]
    fn many_events_cost_no_more_than_some_that_are_not_remembered() {
        let events = Events::default();
        let handle = |at: usize| 0x7f00_0000_0000 + at * 0x80;
        for at in 0..10 * EVENTS {
            events.recorded(handle(at), COMPUTE, work(at as u64, 0));
        }
        let known = (0..10 * EVENTS)
            .filter(|at| events.ended(handle(*at), work(*at as u64, 0)).is_some())
            .count();
        assert!(known > EVENTS / 2 && known <= EVENTS, "{known}");
        for at in 0..10 * EVENTS {
            if let Some(ended) = events.ended(handle(at), work(at as u64, 0)) {
                assert_eq!(ended.stream, Some(COMPUTE), "nobody has another's");
            }
        }
    }
}
