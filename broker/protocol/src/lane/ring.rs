// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flight recorder of a lane: a ring of records, written without waiting. A broker that lags loses
//! the oldest records and knows how many it lost.
#![forbid(unsafe_code)]

use super::super::Ns;
use super::super::RECORDS;
use super::super::atomic::{AtomicU64, Ordering, fence};
use super::{FOUND_IDLE, Lane};

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A kernel launch. `a` = predicted ns, `b` = stream handle.
    Launch = 1,
    /// A graph launch. `kernel` = graph identity, `a` = predicted ns, `b` = stream handle.
    Graph = 2,
    /// A copy or memset. `a` = predicted ns, `b` = bytes.
    Transfer = 3,
    /// A synchronising call left no work of the process on the device. `a` = 1 if the call found it
    /// so, 0 if it waited. Takes no slot ([`Reports::last_idle`](super::Reports::last_idle)).
    Idle = 4,
    /// A stage-1 sample of `kernel`: `a` = its ns, `b` = the device's idle ns after it, or
    /// [`NO_GAP`].
    Sample = 5,
    /// A launch began to wait at the gate. `a` = predicted ns.
    Wait = 6,
    /// First driver call of an idle client that is not a launch, for example an input copy.
    WakeUpHint = 7,
    /// A client in stage 1 launched `kernel` `a` times since its last such record.
    Counted = 8,
    /// A foreground job's call waited for an event, and other work of the job is left. `kernel` =
    /// when the event was recorded, `a` = ns that the call waited.
    PartialWait = 9,
    /// A serving job's sample of `kernel` of which a large part may be the host's time: `a` = the
    /// least, `b` = the most that the kernel took, ns.
    Between = 10,
    /// Error of the last stage-1 sample of `kernel` if much of it may be the host's time. `a` = ns
    /// by which it may exceed the kernel's time, `b` = ns by which it may fall short.
    SampleError = 11,
}

/// Stands for a kernel: a memset, or a copy within the device.
pub const DEVICE_COPY: u64 = 0;

/// Stands for a kernel: a copy between host and device, which has its own engine. A hash equals it
/// with a probability of 2^-64.
pub const HOST_COPY: u64 = u64::MAX;

/// Whether `kernel` stands for a copy or memset.
pub fn is_transfer(kernel: u64) -> bool {
    kernel == DEVICE_COPY || kernel == HOST_COPY
}

/// The likely time of a kernel between these bounds ([`Kind::Between`]), ns: the least, because a
/// driver starts a kernel at the end of its launch. If that is 0, the middle.
pub fn likely(least: Ns, most: Ns) -> Ns {
    if least > 0 { least } else { (most / 2).max(1) }
}

/// Gap of a kernel after which no other work was seen.
pub const NO_GAP: u64 = u64::MAX;

impl Kind {
    /// Reads a kind from shared memory.
    pub fn from_word(word: u32) -> Option<Kind> {
        match word {
            1 => Some(Kind::Launch),
            2 => Some(Kind::Graph),
            3 => Some(Kind::Transfer),
            5 => Some(Kind::Sample),
            6 => Some(Kind::Wait),
            7 => Some(Kind::WakeUpHint),
            8 => Some(Kind::Counted),
            9 => Some(Kind::PartialWait),
            10 => Some(Kind::Between),
            11 => Some(Kind::SampleError),
            _ => None,
        }
    }
}

/// One record by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneRecord {
    /// Kind.
    pub kind: Kind,
    /// Low half of the writing thread's id.
    pub thread: u32,
    /// Time of the event.
    pub at: Ns,
    /// Identity (hash) of the kernel; 0: none.
    pub kernel: u64,
    /// See [`Kind`].
    pub a: u64,
    /// See [`Kind`].
    pub b: u64,
}

/// Slot of one record. `stamp` is `2n+1` while record `n` is being written, `2n+2` when it is
/// whole.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct RingSlot {
    stamp: AtomicU64,
    kind_thread: AtomicU64,
    at: AtomicU64,
    kernel: AtomicU64,
    a: AtomicU64,
    b: AtomicU64,
    /// When the client last became idle.
    idle: AtomicU64,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct Ring {
    head: Head,
    slots: [RingSlot; RECORDS],
}

/// Next record's number, on its own cache line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Head(AtomicU64);

impl Default for Ring {
    fn default() -> Ring {
        Ring {
            head: Head::default(),
            slots: std::array::from_fn(|_| RingSlot::default()),
        }
    }
}

impl Ring {
    /// Writes a record. Reads `last_idle` after the record has its number.
    #[inline]
    pub(super) fn write(&self, record: LaneRecord, last_idle: &AtomicU64) {
        let number = self.head.0.fetch_add(1, Ordering::Relaxed);
        let Some(slot) = self.slots.get(number as usize % RECORDS) else {
            return;
        };
        slot.stamp
            .store(number.wrapping_mul(2).wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        slot.kind_thread
            .store(record.kind as u64 | (u64::from(record.thread) << 32), Ordering::Relaxed);
        slot.at.store(record.at, Ordering::Relaxed);
        slot.kernel.store(record.kernel, Ordering::Relaxed);
        slot.a.store(record.a, Ordering::Relaxed);
        slot.b.store(record.b, Ordering::Relaxed);
        slot.idle.store(last_idle.load(Ordering::Relaxed), Ordering::Relaxed);
        slot.stamp
            .store(number.wrapping_mul(2).wrapping_add(2), Ordering::Release);
    }

    pub(super) fn written(&self) -> u64 {
        self.head.0.load(Ordering::Acquire)
    }
}

/// The broker's position in a lane's ring.
#[derive(Debug, Default)]
pub struct Reader {
    next: u64,
    /// The head at its last reading.
    written: u64,
    /// The last idle time, read before the head.
    idle: Ns,
    /// The last idle time returned.
    idle_told: Ns,
    /// A record after the idle time that was just returned.
    held: Option<LaneRecord>,
    lost: u64,
    malformed: u64,
}

impl Reader {
    /// Returns the next whole record; counts and skips overwritten and malformed ones. A false head
    /// costs at most one lap.
    ///
    /// A new idle time is returned once, as [`Kind::Idle`]: before the first record that follows
    /// it, or last.
    pub fn next(&mut self, lane: &Lane) -> Option<LaneRecord> {
        if let Some(record) = self.held.take() {
            return Some(record);
        }
        let mut fell_back = false;
        loop {
            // Not earlier: each read takes the head's cache line from the launching thread.
            if self.next >= self.written && !self.look(lane) {
                // All earlier records are read.
                return self.newly_idle(self.idle);
            }
            let slot = lane.ring.slots.get(self.next as usize % RECORDS)?;
            let whole = self.next.wrapping_mul(2).wrapping_add(2);
            let before = slot.stamp.load(Ordering::Acquire);
            if before < whole {
                // A thread is writing this record, or died while writing: the next lap passes it.
                return None;
            }
            let kind_thread = slot.kind_thread.load(Ordering::Relaxed);
            let at = slot.at.load(Ordering::Relaxed);
            let kernel = slot.kernel.load(Ordering::Relaxed);
            let a = slot.a.load(Ordering::Relaxed);
            let b = slot.b.load(Ordering::Relaxed);
            let idle = slot.idle.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            let after = slot.stamp.load(Ordering::Relaxed);
            if before != whole || after != whole {
                self.fall_back(lane);
                if std::mem::replace(&mut fell_back, true) {
                    // The writer is too fast, or its head is false: other lanes go first.
                    return None;
                }
                continue;
            }
            self.next += 1;
            match Kind::from_word(kind_thread as u32) {
                Some(kind) => {
                    let record = LaneRecord {
                        kind,
                        thread: (kind_thread >> 32) as u32,
                        at,
                        kernel,
                        a,
                        b,
                    };
                    let Some(idle) = self.newly_idle(idle) else {
                        return Some(record);
                    };
                    self.held = Some(record);
                    return Some(idle);
                }
                None => self.malformed += 1,
            }
        }
    }

    /// A new idle time as a record. If two come in the wrong order, the later one counts.
    fn newly_idle(&mut self, word: u64) -> Option<LaneRecord> {
        let at = word & !FOUND_IDLE;
        if at <= self.idle_told {
            return None;
        }
        self.idle_told = at;
        Some(LaneRecord {
            kind: Kind::Idle,
            thread: 0,
            at,
            kernel: 0,
            a: u64::from(word != at),
            b: 0,
        })
    }

    /// Reads the head, and skips overwritten records. False: there is nothing to read.
    fn look(&mut self, lane: &Lane) -> bool {
        // Before the head: this covers all records from before the idle time.
        self.idle = lane.reports.last_idle.load(Ordering::Acquire);
        self.written = lane.written();
        if self.next > self.written {
            // Only a misbehaving client's head goes backwards.
            self.malformed += 1;
            self.next = self.written;
        }
        let oldest = self.written.saturating_sub(RECORDS as u64);
        if self.next < oldest {
            self.lost = self.lost.saturating_add(oldest - self.next);
            self.next = oldest;
        }
        self.next < self.written
    }

    /// Gives up half a ring after an overwritten record. A reader just ahead of faster writers
    /// finds most records overwritten, and takes the cache line that they write next.
    fn fall_back(&mut self, lane: &Lane) {
        self.written = lane.written();
        let next = self.written.saturating_sub(RECORDS as u64 / 2).max(self.next + 1);
        self.lost = self.lost.saturating_add(next - self.next);
        self.next = next;
    }

    /// Skips all but the newest `keep` records as lost.
    pub fn leave_all_but(&mut self, lane: &Lane, keep: usize) {
        self.written = lane.written();
        let next = self.written.saturating_sub(keep as u64).max(self.next);
        self.lost = self.lost.saturating_add(next - self.next);
        self.next = next;
    }

    /// Records overwritten or skipped unread.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Malformed records. An honest client writes none.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(at: Ns) -> LaneRecord {
        LaneRecord {
            kind: Kind::Launch,
            thread: 7,
            at,
            kernel: 42,
            a: 100,
            b: 3,
        }
    }

    #[test]
    fn records_come_out_in_order() {
        let lane = Box::<Lane>::default();
        let mut reader = Reader::default();
        for at in 0..10 {
            lane.record(launch(at));
        }
        for at in 0..10 {
            assert_eq!(reader.next(&lane), Some(launch(at)));
        }
        assert_eq!(reader.next(&lane), None);
        assert_eq!(reader.lost(), 0);
    }

    #[test]
    fn an_idleness_is_told_once_in_its_place() {
        let lane = Box::<Lane>::default();
        let mut reader = Reader::default();
        let mut next = || reader.next(&lane).map(|record| (record.kind, record.at));
        lane.record(launch(1));
        lane.become_idle(2);
        assert_eq!(next(), Some((Kind::Launch, 1)));
        // No record follows it yet.
        assert_eq!(next(), Some((Kind::Idle, 2)));
        assert_eq!(next(), None);
        lane.record(launch(3));
        assert_eq!(next(), Some((Kind::Launch, 3)));
        assert_eq!(next(), None);
        // Several between two readings.
        for at in [4, 6, 8] {
            lane.become_idle(at);
            lane.record(launch(at + 1));
        }
        lane.become_idle_fenced(10);
        for at in [4, 6, 8] {
            assert_eq!(next(), Some((Kind::Idle, at)));
            assert_eq!(next(), Some((Kind::Launch, at + 1)));
        }
        assert_eq!(next(), Some((Kind::Idle, 10)));
        // A thread reports an earlier idle time late.
        lane.become_idle(7);
        lane.become_idle(8 | FOUND_IDLE);
        assert_eq!(next(), None);
        lane.become_idle(12 | FOUND_IDLE);
        let found = reader.next(&lane).expect("a new idle time");
        assert_eq!((found.kind, found.at, found.a), (Kind::Idle, 12, 1));
    }

    #[test]
    fn an_idleness_is_not_told_before_what_came_before_it() {
        let lane = Box::<Lane>::default();
        let mut reader = Reader::default();
        lane.record(launch(1));
        assert!(reader.next(&lane).is_some());
        // One thread is inside its record; another finds the process idle.
        let number = lane.ring.head.0.fetch_add(1, Ordering::Relaxed);
        lane.become_idle(5);
        assert_eq!(reader.next(&lane), None);
        let slot = &lane.ring.slots[number as usize];
        slot.kind_thread.store(Kind::Launch as u64, Ordering::Relaxed);
        slot.at.store(3, Ordering::Relaxed);
        slot.stamp.store(2 * number + 2, Ordering::Release);
        let rest: Vec<Ns> = std::iter::from_fn(|| reader.next(&lane))
            .map(|record| record.at)
            .collect();
        assert_eq!(rest, [3, 5]);
    }

    #[test]
    fn a_reader_that_lags_loses_the_oldest_and_counts_them() {
        let lane = Box::<Lane>::default();
        let mut reader = Reader::default();
        for at in 0..(RECORDS as u64 + 5) {
            lane.record(launch(at));
        }
        assert_eq!(reader.next(&lane), Some(launch(5)));
        assert_eq!(reader.lost(), 5);
    }

    #[test]
    fn a_reader_that_is_overtaken_while_it_reads_gives_up_half_a_ring() {
        let lane = Box::<Lane>::default();
        let mut reader = Reader::default();
        let ring = RECORDS as u64;
        for at in 0..ring {
            lane.record(launch(at));
        }
        assert_eq!(reader.next(&lane), Some(launch(0)));
        // The writers lap the reader.
        for at in ring..ring + 10 {
            lane.record(launch(at));
        }
        let next = ring + 10 - ring / 2;
        assert_eq!(reader.next(&lane), Some(launch(next)));
        assert_eq!(reader.lost(), next - 1);
        let rest = std::iter::from_fn(|| reader.next(&lane)).count() as u64;
        assert_eq!(rest + next + 1, ring + 10);
    }

    #[test]
    fn what_is_passed_over_counts_as_lost() {
        let lane = Box::<Lane>::default();
        let mut reader = Reader::default();
        for at in 0..100 {
            lane.record(launch(at));
        }
        reader.leave_all_but(&lane, 200);
        assert_eq!(reader.lost(), 0);
        reader.leave_all_but(&lane, 10);
        assert_eq!(reader.next(&lane), Some(launch(90)));
        assert_eq!(reader.lost(), 90);
    }

    #[test]
    fn a_head_that_leaps_to_and_fro_is_survived() {
        let lane = Box::<Lane>::default();
        let mut reader = Reader::default();
        for head in [u64::MAX, 1, u64::MAX] {
            lane.ring.head.0.store(head, Ordering::Relaxed);
            assert_eq!(reader.next(&lane), None);
            reader.leave_all_but(&lane, 0);
        }
        assert_eq!(reader.lost(), u64::MAX);
        assert_eq!(reader.malformed(), 1);
    }

    #[test]
    fn a_head_that_goes_backwards_is_counted_and_survived() {
        let lane = Box::<Lane>::default();
        let mut reader = Reader::default();
        lane.record(launch(1));
        assert!(reader.next(&lane).is_some());
        lane.ring.head.0.store(0, Ordering::Relaxed);
        assert_eq!(reader.next(&lane), None);
        assert_eq!(reader.malformed(), 1);
    }
}
