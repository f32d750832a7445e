//! The legacy default stream's order, made of waits.
//!
//! An operation on the legacy stream begins after everything that blocking streams of its context had when it was
//! submitted, and what they get later begins after it. Both are [`Op::WaitFor`] put in front; a wait for what has ended,
//! or for what was already waited for, is left out, so a program with one stream never sees one.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use simgpu_device::{Op, Seq};

use crate::abi::R;
use crate::effect::Effect;
use crate::state::{Driver, lock};
use crate::stream::{Kind, Stream};

/// What a context knows about its blocking streams.
#[derive(Default)]
pub(crate) struct Order {
    /// The legacy stream's last operation.
    legacy: u64,
    blocking: Vec<Member>,
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
            let mut waits = Vec::new();
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

impl Stream {
    /// Puts an operation on the stream, in the order that the default stream's rules demand.
    pub(crate) fn submit(&self, driver: &Driver, op: Op, effect: Option<Effect>, graph: u64) -> R<Seq> {
        if self.kind == Kind::NonBlocking {
            let _one = lock(&self.submitting);
            return self.put(driver, op, effect, graph);
        }
        let mut order = lock(&self.context.order);
        for seq in order.waits(self) {
            if !driver.timeline.is_known_done(seq) {
                self.put(driver, Op::WaitFor(seq), None, graph)?;
            }
        }
        let seq = self.put(driver, op, effect, graph)?;
        if self.kind == Kind::Legacy {
            order.legacy = seq.0;
        }
        Ok(seq)
    }

    fn put(&self, driver: &Driver, op: Op, effect: Option<Effect>, graph: u64) -> R<Seq> {
        let seq = driver.timeline.submit(self.link, op, effect, graph)?;
        self.last.store(seq.0, std::sync::atomic::Ordering::Release);
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
