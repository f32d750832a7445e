// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page operations: orders to a client's memory thread, and how each order ended.
//!
//! They are in a short ring in the lane. The client takes them in order and ends them in any order.
//! The broker reuses a slot after it has read the slot's status, so at most [`PAGE_OPS`] are in
//! flight.
//!
//! Neither side trusts the other: the client touches only memory that it holds, and an unknown
//! status is a refusal.
#![forbid(unsafe_code)]

pub use super::PAGE_OPS;
use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// Kind of a page operation on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PageOpKind {
    /// Move it to the device.
    Prefetch = 1,
    /// Give it room on the device; its content is not needed.
    Populate = 2,
    /// Move it to the host.
    Evict = 3,
    /// As `Evict` without a copy: the host's copy is valid.
    Release = 4,
    /// Take it off the device: its content is not needed.
    Discard = 5,
    /// Mark as mostly read: the host's copy stays good.
    MostlyRead = 6,
    /// Take the mark of `MostlyRead` back.
    Written = 7,
    /// As `Prefetch` for memory that should be there: moves only memory that the driver moved away.
    Confirm = 8,
}

impl PageOpKind {
    fn from_word(word: u32) -> Option<PageOpKind> {
        match word {
            1 => Some(PageOpKind::Prefetch),
            2 => Some(PageOpKind::Populate),
            3 => Some(PageOpKind::Evict),
            4 => Some(PageOpKind::Release),
            5 => Some(PageOpKind::Discard),
            6 => Some(PageOpKind::MostlyRead),
            7 => Some(PageOpKind::Written),
            8 => Some(PageOpKind::Confirm),
            _ => None,
        }
    }

    /// Whether it moves memory to the device.
    pub fn is_inward(self) -> bool {
        matches!(self, PageOpKind::Prefetch | PageOpKind::Populate | PageOpKind::Confirm)
    }
}

/// How a page operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PageOpStatus {
    /// Carried out, to its end on the device.
    Done = 1,
    /// Refused by the driver or the helper.
    Refused = 2,
    /// The memory is no longer the client's.
    Gone = 3,
}

/// One page operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageOp {
    /// Kind.
    pub kind: PageOpKind,
    /// First address, in the client's address space.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
}

#[repr(C, align(32))]
#[derive(Debug, Default)]
struct PageOpSlot {
    kind: AtomicU32,
    /// 0: not ended.
    status: AtomicU32,
    start: AtomicU64,
    bytes: AtomicU64,
    /// Device time of only this operation, ns; 0: unknown.
    took: AtomicU64,
}

/// Ring of page operations.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct PageOps {
    /// Counts batches; a shared futex for the client's memory thread.
    pub bell: AtomicU32,
    /// 1 while the client's memory thread serves.
    pub served: AtomicU32,
    /// Position in the period of `forecast`, ns + 1; 0: unknown.
    pub position: AtomicU64,
    /// Number of the forecast that `position` refers to.
    pub forecast: AtomicU32,
    given: AtomicU64,
    slots: [PageOpSlot; PAGE_OPS],
}

impl Default for PageOps {
    fn default() -> PageOps {
        PageOps {
            bell: AtomicU32::new(0),
            served: AtomicU32::new(0),
            position: AtomicU64::new(0),
            forecast: AtomicU32::new(0),
            given: AtomicU64::new(0),
            slots: std::array::from_fn(|_| PageOpSlot::default()),
        }
    }
}

impl PageOps {
    fn slot(&self, number: u64) -> Option<&PageOpSlot> {
        self.slots.get(number as usize % PAGE_OPS)
    }

    /// Client: ends a page operation.
    pub fn end(&self, number: u64, status: PageOpStatus) {
        self.end_timed(number, status, 0);
    }

    /// Client: ends a page operation. `took`: its device time, ns; 0: unknown.
    pub fn end_timed(&self, number: u64, status: PageOpStatus, took: u64) {
        if let Some(slot) = self.slot(number) {
            slot.took.store(took, Ordering::Relaxed);
            slot.status.store(status as u32, Ordering::Release);
        }
    }
}

/// An ended page operation, as its client reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageOpEnd {
    /// Its number.
    pub number: u64,
    /// How it ended.
    pub status: PageOpStatus,
    /// Device time of only this operation, ns; 0: unknown.
    pub took: u64,
}

/// The broker's position in a ring.
#[derive(Debug, Default)]
pub struct PageOpProducer {
    given: u64,
    /// All outcomes before this one were read.
    read: u64,
    /// Whether each outcome from `read` on was read.
    ended: Vec<bool>,
}

impl PageOpProducer {
    /// Gives a page operation, and returns its number; `None`: no free slot. The caller rings
    /// [`PageOps::bell`] once per batch.
    pub fn give(&mut self, page_ops: &PageOps, page_op: PageOp) -> Option<u64> {
        if self.given - self.read >= PAGE_OPS as u64 {
            return None;
        }
        let number = self.given;
        let slot = page_ops.slot(number)?;
        slot.kind.store(page_op.kind as u32, Ordering::Relaxed);
        slot.status.store(0, Ordering::Relaxed);
        slot.took.store(0, Ordering::Relaxed);
        slot.start.store(page_op.start, Ordering::Relaxed);
        slot.bytes.store(page_op.bytes, Ordering::Relaxed);
        self.given += 1;
        self.ended.push(false);
        page_ops.given.store(self.given, Ordering::Release);
        Some(number)
    }

    /// Whether any page operation is in flight.
    pub fn awaits(&self) -> bool {
        self.read < self.given
    }

    /// Page operations ended since the last call, each once.
    pub fn ended(&mut self, page_ops: &PageOps) -> Vec<PageOpEnd> {
        let mut found = Vec::new();
        for (number, ended) in (self.read..).zip(self.ended.iter_mut()) {
            let Some(slot) = page_ops.slot(number) else { continue };
            let status = slot.status.load(Ordering::Acquire);
            if *ended || status == 0 {
                continue;
            }
            *ended = true;
            found.push(PageOpEnd {
                number,
                status: match status {
                    1 => PageOpStatus::Done,
                    3 => PageOpStatus::Gone,
                    _ => PageOpStatus::Refused,
                },
                took: slot.took.load(Ordering::Relaxed),
            });
        }
        let passed = self.ended.iter().take_while(|ended| **ended).count();
        self.ended.drain(..passed);
        self.read += passed as u64;
        found
    }
}

/// The client's position in a ring.
#[derive(Debug, Default)]
pub struct PageOpConsumer {
    next: u64,
}

impl PageOpConsumer {
    /// Returns the next page operation; refuses unknown kinds. A lying count costs at most one lap.
    pub fn next(&mut self, page_ops: &PageOps) -> Option<(u64, PageOp)> {
        loop {
            let given = page_ops.given.load(Ordering::Acquire);
            if given < self.next || given - self.next > PAGE_OPS as u64 {
                // A new ring, or nonsense.
                self.next = given;
            }
            if self.next == given {
                return None;
            }
            let number = self.next;
            self.next += 1;
            let slot = page_ops.slot(number)?;
            match PageOpKind::from_word(slot.kind.load(Ordering::Relaxed)) {
                Some(kind) => {
                    let page_op = PageOp {
                        kind,
                        start: slot.start.load(Ordering::Relaxed),
                        bytes: slot.bytes.load(Ordering::Relaxed),
                    };
                    return Some((number, page_op));
                }
                None => page_ops.end(number, PageOpStatus::Refused),
            }
        }
    }

    /// Starts over, on a new ring.
    pub fn begin_anew(&mut self) {
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(producer: &mut PageOpProducer, ring: &PageOps) -> Vec<(u64, PageOpStatus)> {
        let all = producer.ended(ring).into_iter();
        all.map(|one| (one.number, one.status)).collect()
    }

    fn page_op(start: u64) -> PageOp {
        PageOp {
            kind: PageOpKind::Evict,
            start,
            bytes: 2 << 20,
        }
    }

    #[test]
    fn page_ops_come_in_order_and_end_in_any() {
        let ring = Box::<PageOps>::default();
        let (mut producer, mut consumer) = (PageOpProducer::default(), PageOpConsumer::default());
        for start in 0..3 {
            assert_eq!(producer.give(&ring, page_op(start)), Some(start));
        }
        let taken: Vec<_> = std::iter::from_fn(|| consumer.next(&ring)).collect();
        assert_eq!(taken, [(0, page_op(0)), (1, page_op(1)), (2, page_op(2))]);
        ring.end(2, PageOpStatus::Done);
        assert_eq!(ended(&mut producer, &ring), [(2, PageOpStatus::Done)]);
        assert_eq!(ended(&mut producer, &ring), []);
        ring.end(0, PageOpStatus::Refused);
        ring.end(1, PageOpStatus::Gone);
        assert_eq!(
            ended(&mut producer, &ring),
            [(0, PageOpStatus::Refused), (1, PageOpStatus::Gone)]
        );
        assert!(!producer.awaits());
    }

    #[test]
    fn how_long_an_page_op_took_is_told_with_its_end() {
        let ring = Box::<PageOps>::default();
        let mut producer = PageOpProducer::default();
        let took = |producer: &mut PageOpProducer| producer.ended(&ring).iter().map(|one| one.took).collect::<Vec<_>>();
        for round in 0..2 * PAGE_OPS as u64 {
            producer.give(&ring, page_op(round)).unwrap();
            if round % 2 == 0 {
                ring.end_timed(round, PageOpStatus::Done, 7 + round);
            } else {
                ring.end(round, PageOpStatus::Done);
            }
            // A reused slot returns no old time.
            assert_eq!(took(&mut producer), [if round % 2 == 0 { 7 + round } else { 0 }]);
        }
    }

    #[test]
    fn no_more_are_out_than_there_is_room() {
        let ring = Box::<PageOps>::default();
        let (mut producer, mut consumer) = (PageOpProducer::default(), PageOpConsumer::default());
        for round in 0..3 * PAGE_OPS as u64 {
            let number = producer.give(&ring, page_op(round)).unwrap();
            if round + 1 < PAGE_OPS as u64 {
                continue;
            }
            assert_eq!(producer.give(&ring, page_op(0)), None);
            let (first, _) = consumer.next(&ring).unwrap();
            assert_eq!(first, number + 1 - PAGE_OPS as u64);
            ring.end(first, PageOpStatus::Done);
            assert_eq!(ended(&mut producer, &ring), [(first, PageOpStatus::Done)]);
        }
    }

    #[test]
    fn nonsense_is_passed_over() {
        let ring = Box::<PageOps>::default();
        let (mut producer, mut consumer) = (PageOpProducer::default(), PageOpConsumer::default());
        producer.give(&ring, page_op(1)).unwrap();
        producer.give(&ring, page_op(2)).unwrap();
        ring.slots[0].kind.store(99, Ordering::Relaxed);
        assert_eq!(consumer.next(&ring), Some((1, page_op(2))));
        assert_eq!(ended(&mut producer, &ring), [(0, PageOpStatus::Refused)]);
        ring.given.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(consumer.next(&ring), None);
        ring.slots[1].status.store(77, Ordering::Relaxed);
        assert_eq!(ended(&mut producer, &ring), [(1, PageOpStatus::Refused)]);
    }
}
