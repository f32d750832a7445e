//! The legacy default stream's order, made of waits.
//!
//! An operation on the legacy stream begins after everything that blocking streams of its context
//! had when it was submitted, and what they get later begins after it. Both are [`Op::WaitFor`] put
//! in front; a wait for what has ended, or for what was already waited for, is left out, so a
//! program with one stream never sees one.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use simgpu_device::lock::lock;
use simgpu_device::{Op, Seq, Touch};

use crate::abi::R;
use crate::effect::Effect;
use crate::space::table;
use crate::state::Driver;
use crate::stream::{Kind, Stream};

/// What a context knows about its blocking streams.
#[derive(Default)]
pub(crate) struct Order {
    /// The legacy stream's last operation.
    legacy: u64,
    blocking: Vec<Member>,
}

/// The last operations of streams that were destroyed, or whose thread has ended, with work
/// outstanding: the context still waits for them, and so does the legacy stream if they were
/// blocking ones. A lock of its own: a stream may end its life while the order lock is held.
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

    /// What the legacy stream has to wait for; it is asked once.
    fn for_legacy(&self) -> Vec<Seq> {
        let mut orphans = lock(&self.0);
        let ahead = orphans
            .iter_mut()
            .filter_map(|orphan| std::mem::take(&mut orphan.ahead_of_legacy).then_some(orphan.seq));
        ahead.collect()
    }
}

struct Member {
    stream: Weak<Stream>,
    /// The stream's last operation when the legacy stream last waited for it.
    waited: u64,
    /// The legacy stream's last operation when this stream last waited for it.
    behind: u64,
}

impl Order {
    /// Takes a blocking stream in.
    pub(crate) fn join(&mut self, stream: &Arc<Stream>) {
        self.blocking.retain(|member| member.stream.strong_count() > 0);
        self.blocking.push(Member {
            stream: Arc::downgrade(stream),
            waited: 0,
            behind: 0,
        });
    }

    /// The blocking streams alive.
    pub(crate) fn blocking(&self) -> Vec<Arc<Stream>> {
        self.blocking
            .iter()
            .filter_map(|member| member.stream.upgrade())
            .collect()
    }

    /// The operations that the next one on `stream` has to wait for.
    fn waits(&mut self, stream: &Stream) -> Vec<Seq> {
        if stream.kind == Kind::Legacy {
            let mut waits = stream.context.orphans.for_legacy();
            for member in &mut self.blocking {
                let Some(other) = member.stream.upgrade() else { continue };
                let last = other.last().0;
                if last > member.waited {
                    member.waited = last;
                    waits.push(Seq(last));
                }
            }
            return waits;
        }
        let legacy = self.legacy;
        let member = self
            .blocking
            .iter_mut()
            .find(|member| std::ptr::eq(member.stream.as_ptr(), stream));
        match member {
            Some(member) if legacy > member.behind => {
                member.behind = legacy;
                vec![Seq(legacy)]
            }
            _ => Vec::new(),
        }
    }
}

/// How many operations a stream has outstanding, roughly.
///
/// The link waits while a stream is as full as a channel. That wait must not happen under the
/// context's order lock, where it would stop the very thread that can end it (a stream may stand at
/// a word that another stream writes): so a client waits here, a little earlier and without a lock.
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
        // Marks come every so many operations, so only then is there anything to do.
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

    /// The same for an operation that uses managed memory.
    pub(crate) fn submit_touching(
        &self,
        driver: &Driver,
        op: Op,
        effect: Option<Effect>,
        graph: u64,
        touches: &[Touch],
    ) -> R<Seq> {
        self.depth.make_room(driver)?;
        if self.kind == Kind::NonBlocking {
            let _one = lock(&self.submitting);
            return self.put(driver, op, effect, graph, touches);
        }
        let mut order = lock(&self.context.order);
        for seq in order.waits(self) {
            if !driver.timeline.is_known_done(seq) {
                self.put(driver, Op::WaitFor(seq), None, graph, &[])?;
            }
        }
        let seq = self.put(driver, op, effect, graph, touches)?;
        if self.kind == Kind::Legacy {
            order.legacy = seq.0;
        }
        Ok(seq)
    }

    fn put(&self, driver: &Driver, op: Op, effect: Option<Effect>, graph: u64, touches: &[Touch]) -> R<Seq> {
        let own: Vec<Touch>;
        let touches = match touches.is_empty() || driver.devices.len() == 1 {
            true => touches,
            // What is in another device's ledger this one knows nothing of.
            false => {
                let device = self.context.device();
                let here = |touch: &&Touch| table::find(touch.start).is_some_and(|found| found.device == device);
                own = touches.iter().filter(here).copied().collect();
                &own
            }
        };
        let seq = driver.timeline.submit(self.link, op, effect, graph, touches)?;
        self.last.store(seq.0, Ordering::Release);
        self.depth.count(seq);
        Ok(seq)
    }

    /// Has what is submitted next wait for an operation of another stream.
    pub(crate) fn wait_for(&self, driver: &Driver, seq: Seq) -> R {
        if !driver.timeline.is_known_done(seq) {
            self.submit(driver, Op::WaitFor(seq), None, 0)?;
        }
        Ok(())
    }
}
