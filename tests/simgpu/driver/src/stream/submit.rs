// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts operations on streams, in the order that the default stream's rules demand.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use simgpu_device::lock::lock;
use simgpu_device::{Direction, Op, Seq, TouchedAddresses};

use crate::abi::R;
use crate::effect::Effect;
use crate::space::{moved, table};
use crate::state::Driver;
use crate::stream::{Stream, StreamKind};

/// How many operations a stream has outstanding, roughly.
///
/// The link waits while a stream is as full as a channel. Under the context's order lock that wait
/// would stop the thread that can end it: a stream may stand at a word that another stream writes.
/// So a client waits here, a little earlier and without a lock.
#[derive(Default)]
pub(crate) struct Depth {
    submitted: AtomicU64,
    /// Every [`MARK_EVERY`]th operation, oldest first.
    marks: Mutex<VecDeque<Seq>>,
}

const MARK_EVERY: u64 = 64;
/// So many marks may be outstanding: 768 of the link's 1024 operations; the rest is for waits put
/// in front.
const MARKS: usize = 12;

impl Depth {
    fn count(&self, seq: Seq) {
        if (self.submitted.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(MARK_EVERY) {
            lock(&self.marks).push_back(seq);
        }
    }

    fn make_room(&self, driver: &Driver) -> R {
        // Marks come every `MARK_EVERY` operations, so only then is there anything to do.
        if !self.submitted.load(Ordering::Relaxed).is_multiple_of(MARK_EVERY) {
            return Ok(());
        }
        loop {
            let oldest = {
                let mut marks = lock(&self.marks);
                if marks.len() < MARKS {
                    return Ok(());
                }
                marks.pop_front()
            };
            if let Some(oldest) = oldest {
                driver.timeline.wait(oldest)?;
            }
        }
    }
}

impl Stream {
    /// Puts an operation on the stream, in the order that the default stream's rules demand.
    pub(crate) fn submit(&self, driver: &Driver, op: Op, effect: Option<Effect>, graph: u64) -> R<Seq> {
        self.submit_touching(driver, op, effect, graph, &[])
    }

    /// Puts an operation on the stream that uses managed memory.
    pub(crate) fn submit_touching(
        &self,
        driver: &Driver,
        op: Op,
        effect: Option<Effect>,
        graph: u64,
        touches: &[TouchedAddresses],
    ) -> R<Seq> {
        match op {
            Op::Copy { direction, .. } => moved::used(direction != Direction::DeviceToDevice),
            Op::Kernel(_) | Op::Memset { .. } => moved::used(false),
            _ => {}
        }
        self.depth.make_room(driver)?;
        if self.kind == StreamKind::NonBlocking {
            let _one = lock(&self.submitting);
            return self.put(driver, op, effect, graph, touches);
        }
        let mut order = lock(&self.context.order);
        let waits = match self.kind {
            StreamKind::Legacy => order.waits_of_legacy(&self.context.orphans),
            _ => order.waits_of(&self.tail).into_iter().collect(),
        };
        for seq in waits {
            if !driver.timeline.is_known_done(seq) {
                self.put(driver, Op::WaitFor(seq), None, graph, &[])?;
            }
        }
        let seq = self.put(driver, op, effect, graph, touches)?;
        if self.kind == StreamKind::Legacy {
            order.passed(seq);
        }
        Ok(seq)
    }

    fn put(&self, driver: &Driver, op: Op, effect: Option<Effect>, graph: u64, touches: &[TouchedAddresses]) -> R<Seq> {
        let own: Vec<TouchedAddresses>;
        let touches = match touches.is_empty() || driver.devices.len() == 1 {
            true => touches,
            // This ledger does not know memory that is in another device's ledger.
            false => {
                let device = self.context.device();
                let here =
                    |touch: &&TouchedAddresses| table::find(touch.start).is_some_and(|found| found.device == device);
                own = touches.iter().filter(here).copied().collect();
                &own
            }
        };
        let seq = driver.timeline.submit(self.link, op, effect, graph, touches)?;
        self.tail.set(seq);
        self.depth.count(seq);
        Ok(seq)
    }

    /// Makes the next operation wait for an operation of another stream.
    pub(crate) fn wait_for(&self, driver: &Driver, seq: Seq) -> R {
        if !driver.timeline.is_known_done(seq) {
            self.submit(driver, Op::WaitFor(seq), None, 0)?;
        }
        Ok(())
    }
}
