// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lane: the memory that one client shares with the device.
//!
//! Two rings, submissions towards the device and news back, each with one writer and one reader
//! (the client's threads take a lock). Indices only grow; a place is the index modulo the ring's
//! size. A writer publishes its index last, so a torn record of a killed client is never published.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_engine::Ns;

use super::record::{WORDS, Words};
use crate::op::Seq;

/// Tells a lane of this layout from other memory: "simLANE1", little-endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"simLANE1");

/// Submissions a lane holds.
// At 2 us a launch the device may sleep 8 ms before it is asked to look (at half).
pub(crate) const SUBMISSIONS: usize = 4096;

/// Bits of a [`Seq`] that name the client's slot; the rest counts submissions.
pub(crate) const SLOT_BITS: u32 = 15;

/// Operations a client may have outstanding over all its streams.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;

/// News that a lane holds: an operation has at most two (reached, ended), so an honest client's
/// always fit.
pub(crate) const NEWS: usize = 2 * SLOTS;

/// Threads of a client whose waits the device knows at once. More wait by asking every millisecond.
pub(crate) const WAITERS: usize = 64;

/// Most blocks in one answer about the place of pages.
pub(crate) const BLOCKS: usize = 512;

/// Wanted by a thread that waits for any news.
pub(crate) const ANY: u64 = u64::MAX;

impl Seq {
    pub(crate) fn new(count: u64, slot: u16) -> Seq {
        Seq((count << SLOT_BITS) | u64::from(slot))
    }

    /// The slot; always below [`SLOTS`].
    pub(crate) fn slot(self) -> usize {
        self.0 as usize & (SLOTS - 1)
    }

    /// Number of operations submitted with this one: 1, 2, 3 …
    pub fn count(self) -> u64 {
        self.0 >> SLOT_BITS
    }
}

/// News about an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    Ended { seq: Seq, start: Ns, end: Ns },
    Reached { seq: Seq, at: Ns },
}

/// Bit in the word with the seq: reached, not ended. A seq's count never gets this far.
const REACHED: u64 = 1 << 63;

#[repr(C, align(64))]
#[derive(Debug)]
struct Index(AtomicU64);

#[repr(C)]
#[derive(Debug)]
struct Submission([AtomicU64; WORDS]);

#[repr(C)]
#[derive(Debug)]
struct NewsItem([AtomicU64; 3]);

/// The shared memory, see the module.
#[repr(C, align(4096))]
#[derive(Debug)]
pub(crate) struct Lane {
    magic: AtomicU64,
    /// 1: the device cut the client off.
    cut: AtomicU32,
    /// Rung when something has happened for which a thread waits.
    pub(crate) bell: AtomicU32,
    /// Rung when a prompt operation has news.
    pub(crate) prompt_bell: AtomicU32,
    /// Number of waiting threads.
    pub(crate) waiting: AtomicU32,
    /// The seq that each waits for, or [`ANY`], or 0.
    waiters: [AtomicU64; WAITERS],
    /// Counts the client's requests for up-to-date news.
    pub(crate) refresh: AtomicU64,
    /// The last request that was served.
    pub(crate) refreshed: AtomicU64,
    /// Device time before which nothing submitted up to `bound_count` ends, unless the client
    /// itself releases something.
    pub(crate) bound: AtomicU64,
    pub(crate) bound_count: AtomicU64,
    /// Blocks to report with the next news: number of the first, and count.
    first_block: AtomicU64,
    asked_blocks: AtomicU64,
    /// The device's answer: for each block one bit a page that lies only on the device.
    on_device: [AtomicU32; BLOCKS],
    submitted: Index,
    taken: Index,
    told: Index,
    heard: Index,
    submissions: [Submission; SUBMISSIONS],
    news: [NewsItem; NEWS],
}

impl Lane {
    /// Prepares zeroed memory.
    pub(crate) fn initialise(&self) {
        self.magic.store(MAGIC, Ordering::Release);
    }

    pub(crate) fn is_lane(&self) -> bool {
        self.magic.load(Ordering::Acquire) == MAGIC
    }

    pub(crate) fn cut_off(&self) {
        self.cut.store(1, Ordering::SeqCst);
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut.load(Ordering::SeqCst) != 0
    }

    // The client's side.

    /// Writes a record. False: the ring is full. One thread at a time.
    pub(crate) fn submit(&self, words: &Words) -> bool {
        let index = self.submitted.0.load(Ordering::Relaxed);
        if self.backlog() >= SUBMISSIONS as u64 {
            return false;
        }
        if let Some(place) = self.submissions.get(index as usize % SUBMISSIONS) {
            for (place, word) in place.0.iter().zip(words) {
                place.store(*word, Ordering::Relaxed);
            }
        }
        self.submitted.0.store(index.wrapping_add(1), Ordering::Release);
        true
    }

    /// Records written and not taken yet.
    pub(crate) fn backlog(&self) -> u64 {
        self.submitted
            .0
            .load(Ordering::Relaxed)
            .wrapping_sub(self.taken.0.load(Ordering::Acquire))
    }

    /// Takes the next piece of news. One thread at a time.
    pub(crate) fn hear(&self) -> Option<News> {
        let index = self.heard.0.load(Ordering::Relaxed);
        let unheard = self.told.0.load(Ordering::Acquire).wrapping_sub(index);
        // More than fit: the indices are invalid.
        if unheard == 0 || unheard > NEWS as u64 {
            return None;
        }
        let item = self.news.get(index as usize % NEWS)?;
        let [first, start, end] = item.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        self.heard.0.store(index.wrapping_add(1), Ordering::Release);
        let seq = Seq(first & !REACHED);
        Some(if first & REACHED == 0 {
            News::Ended { seq, start, end }
        } else {
            News::Reached { seq, at: start }
        })
    }

    /// Asks which pages of these blocks lie only on the device, with the next request for news. A
    /// count of 0 asks for none.
    pub(crate) fn ask_blocks(&self, first: u64, count: usize) {
        self.first_block.store(first, Ordering::SeqCst);
        self.asked_blocks.store(count.min(BLOCKS) as u64, Ordering::SeqCst);
    }

    /// The device's answer, in the order of the blocks.
    pub(crate) fn answered_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.on_device.iter().map(|pages| pages.load(Ordering::SeqCst))
    }

    /// Number of news taken so far.
    pub(crate) fn heard_so_far(&self) -> u64 {
        self.heard.0.load(Ordering::Acquire)
    }

    /// Announces to the device the seq that this thread waits for. `None`: too many wait.
    pub(crate) fn begin_waiting(&self, wanted: u64) -> Option<usize> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let free = self.waiters.iter().position(|waiter| {
            waiter
                .compare_exchange(0, wanted, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        });
        if free.is_none() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        free
    }

    pub(crate) fn end_waiting(&self, place: usize) {
        if let Some(waiter) = self.waiters.get(place) {
            waiter.store(0, Ordering::SeqCst);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    // The device's side.

    /// Answers [`Lane::ask_blocks`], by the block's number.
    pub(crate) fn answer_blocks(&self, pages: impl Fn(u64) -> u32) {
        let count = self.asked_blocks.load(Ordering::SeqCst).min(BLOCKS as u64);
        let first = self.first_block.load(Ordering::SeqCst);
        for (at, answer) in (0..count).zip(&self.on_device) {
            answer.store(pages(first.wrapping_add(at)), Ordering::SeqCst);
        }
    }

    /// Number of records that the client claims to have written. More than fit is a lie.
    pub(crate) fn written(&self) -> u64 {
        self.submitted.0.load(Ordering::Acquire)
    }

    /// The record at an index below [`Lane::written`].
    pub(crate) fn peek(&self, index: u64) -> Words {
        let mut words = [0; WORDS];
        if let Some(place) = self.submissions.get(index as usize % SUBMISSIONS) {
            for (word, place) in words.iter_mut().zip(&place.0) {
                *word = place.load(Ordering::Relaxed);
            }
        }
        words
    }

    /// Frees the places below an index.
    pub(crate) fn take_up_to(&self, index: u64) {
        self.taken.0.store(index, Ordering::Release);
    }

    /// Writes news at `index`, the device's own count. False: the client does not listen, or lied
    /// about the number of news that it took.
    pub(crate) fn tell(&self, index: u64, news: News) -> bool {
        let unheard = index.wrapping_sub(self.heard.0.load(Ordering::Acquire));
        if unheard >= NEWS as u64 {
            return false;
        }
        let words = match news {
            News::Ended { seq, start, end } => [seq.0, start, end],
            News::Reached { seq, at } => [seq.0 | REACHED, at, at],
        };
        if let Some(item) = self.news.get(index as usize % NEWS) {
            for (place, word) in item.0.iter().zip(words) {
                place.store(word, Ordering::Relaxed);
            }
        }
        self.told.0.store(index.wrapping_add(1), Ordering::Release);
        true
    }

    /// The seqs that the client's threads wait for.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = u64> {
        let some = self.waiting.load(Ordering::SeqCst) != 0;
        self.waiters
            .iter()
            .take(if some { WAITERS } else { 0 })
            .map(|waiter| waiter.load(Ordering::SeqCst))
            .filter(|&wanted| wanted != 0)
    }
}

/// Lies, for tests.
#[cfg(test)]
impl Lane {
    pub(crate) fn pretend_submitted(&self, index: u64) {
        self.submitted.0.store(index, Ordering::SeqCst);
    }

    pub(crate) fn pretend_heard(&self, index: u64) {
        self.heard.0.store(index, Ordering::SeqCst);
    }

    pub(crate) fn scribble(&self, noise: impl Fn() -> u64) {
        self.waiting.store(noise() as u32, Ordering::SeqCst);
        for word in &self.waiters {
            word.store(noise(), Ordering::SeqCst);
        }
        for index in [&self.submitted, &self.taken, &self.told, &self.heard] {
            index.0.store(noise(), Ordering::SeqCst);
        }
        for word in [&self.refresh, &self.refreshed, &self.bound, &self.bound_count] {
            word.store(noise(), Ordering::SeqCst);
        }
        for submission in &self.submissions {
            for word in &submission.0 {
                word.store(noise(), Ordering::SeqCst);
            }
        }
    }
}
