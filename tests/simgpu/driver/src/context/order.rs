// SPDX-License-Identifier: MIT OR Apache-2.0
//! The legacy default stream's order, made of waits.
//!
//! An operation on the legacy stream begins after all operations that the blocking streams of its
//! context had when it was submitted. Their later operations begin after it. Both are an
//! `Op::WaitFor` in front. A wait for work that has ended, or that was already waited for, is left
//! out: a program with one stream has none.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use simgpu_device::Seq;
use simgpu_device::lock::lock;

use crate::state::Driver;

/// A context's record of its blocking streams.
#[derive(Default)]
pub(crate) struct Order {
    /// The legacy stream's last operation.
    legacy: u64,
    blocking: Vec<Member>,
}

/// The last operations of streams that are gone with work outstanding. The context still waits for
/// them, and so does the legacy stream if they were blocking.
#[derive(Default)]
pub(crate) struct Orphans(Mutex<Vec<Orphan>>);

struct Orphan {
    seq: Seq,
    /// The legacy stream has yet to wait for it.
    ahead_of_legacy: bool,
}

impl Orphans {
    /// A stream ends whose last operation is this.
    pub(crate) fn add(&self, driver: &Driver, seq: Seq, blocking: bool) {
        let ahead_of_legacy = blocking;
        let mut orphans = lock(&self.0);
        orphans.retain(|orphan| !driver.timeline.is_known_done(orphan.seq));
        orphans.push(Orphan { seq, ahead_of_legacy });
    }

    /// All that is not known to have ended.
    pub(crate) fn all(&self, driver: &Driver) -> Vec<Seq> {
        let mut orphans = lock(&self.0);
        orphans.retain(|orphan| !driver.timeline.is_known_done(orphan.seq));
        orphans.iter().map(|orphan| orphan.seq).collect()
    }

    /// The operations that the legacy stream has to wait for; it is asked once.
    fn for_legacy(&self) -> Vec<Seq> {
        let mut orphans = lock(&self.0);
        let ahead = orphans
            .iter_mut()
            .filter_map(|orphan| std::mem::take(&mut orphan.ahead_of_legacy).then_some(orphan.seq));
        ahead.collect()
    }
}

/// A stream's last operation, which the stream owns; `Seq::NONE` before the first.
#[derive(Debug, Default)]
pub(crate) struct Tail(AtomicU64);

impl Tail {
    pub(crate) fn get(&self) -> Seq {
        Seq(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, seq: Seq) {
        self.0.store(seq.0, Ordering::Release);
    }
}

struct Member {
    tail: Weak<Tail>,
    /// The stream's last operation when the legacy stream last waited for it.
    waited: u64,
    /// The legacy stream's last operation when this stream last waited for it.
    behind: u64,
}

impl Order {
    /// Takes a blocking stream in.
    pub(crate) fn join(&mut self, tail: &Arc<Tail>) {
        self.blocking.retain(|member| member.tail.strong_count() > 0);
        self.blocking.push(Member {
            tail: Arc::downgrade(tail),
            waited: 0,
            behind: 0,
        });
    }

    /// The operations that the next one on the legacy stream has to wait for.
    pub(crate) fn waits_of_legacy(&mut self, orphans: &Orphans) -> Vec<Seq> {
        let mut waits = orphans.for_legacy();
        for member in &mut self.blocking {
            let Some(tail) = member.tail.upgrade() else { continue };
            let last = tail.get().0;
            if last > member.waited {
                member.waited = last;
                waits.push(Seq(last));
            }
        }
        waits
    }

    /// The operation that the next one of a blocking stream has to wait for.
    pub(crate) fn waits_of(&mut self, tail: &Arc<Tail>) -> Option<Seq> {
        let legacy = self.legacy;
        let member = self
            .blocking
            .iter_mut()
            .find(|member| std::ptr::eq(member.tail.as_ptr(), Arc::as_ptr(tail)))?;
        if legacy <= member.behind {
            return None;
        }
        member.behind = legacy;
        Some(Seq(legacy))
    }

    /// The legacy stream has got an operation.
    pub(crate) fn passed(&mut self, legacy: Seq) {
        self.legacy = legacy.0;
    }
}
