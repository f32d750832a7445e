// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's side of the links to the devices.
//!
//! An operation goes out with an effect. The driver performs the effect when the device reports
//! that the operation has ended. Effects run one at a time, in the order in which operations ended,
//! on the thread that polls or waits; prompt ones may run on the link's own. An effect may not call
//! into the link. An effect that takes longer than a copy, or that runs the client's code, goes to
//! `helper.rs`.
//!
//! There is one link a device. Numbers of contexts, streams and operations carry their device in
//! the top four bits (0 for the first). Only this file puts the bits there and takes them away.
//! Numbers of one device keep their order.
#![deny(unsafe_code)]

mod page_table;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use simgpu_device::lock::lock;
use simgpu_device::machine::Device;
use simgpu_device::{
    Advice, Effects, Extra, Link, LinkError, LinkStream, NameId, Op, Options, Seq, Times, TouchedAddresses,
};

pub(crate) use simgpu_device::Ctx as LinkContext;

use crate::abi::{Error, R};
use crate::effect::Effect;
use crate::thread;

/// Longest sleep of the thread that takes prompt news. Any bound would do: news wakes it.
const NEWS_SLICE: Duration = Duration::from_secs(5);
/// Number of the maps of effects: high enough that threads which submit rarely meet the thread that
/// performs effects.
const SHARDS: usize = 16;

/// A hasher for tokens. Tokens are counted up, so their low bits are enough to spread them.
#[derive(Default)]
pub(crate) struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

type Shard = Mutex<HashMap<u64, Effect, BuildHasherDefault<TokenHasher>>>;

/// Effects of operations that have not ended.
struct Pending {
    next: AtomicU64,
    shards: [Shard; SHARDS],
}

impl Pending {
    fn shard(&self, token: u64) -> &Shard {
        &self.shards[token as usize % SHARDS]
    }

    fn put(&self, effect: Effect) -> u64 {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        lock(self.shard(token)).insert(token, effect);
        token
    }

    fn take(&self, token: u64) -> Option<Effect> {
        lock(self.shard(token)).remove(&token)
    }
}

/// Takes one device's news.
struct Performer {
    pending: Arc<Pending>,
    device: usize,
    reached: Reached,
}

/// Takes over the effect of a host operation that its stream has reached.
pub(crate) type Reached = fn(Effect, Seq);

impl Effects for Performer {
    fn ended(&self, token: u64, _seq: Seq, times: Times) {
        if let Some(effect) = self.pending.take(token) {
            // A panic, for example of an executed kernel, must not end the thread that takes the
            // news. The panic is printed on stderr.
            let _ = catch_unwind(AssertUnwindSafe(|| effect.perform(times)));
        }
    }

    fn reached(&self, token: u64, seq: Seq, _at: u64) {
        // Taken out here: the action of a host operation happens when the stream gets to it, and
        // its end has no effect.
        if let Some(effect) = self.pending.take(token) {
            (self.reached)(effect, here_seq(self.device, seq));
        }
    }
}

const SEQ_SHIFT: u32 = u64::BITS - 4;
const ID_SHIFT: u32 = u32::BITS - 4;

fn here_seq(device: usize, seq: Seq) -> Seq {
    Seq(seq.0 | (device as u64) << SEQ_SHIFT)
}

fn there_seq(seq: Seq) -> (usize, Seq) {
    ((seq.0 >> SEQ_SHIFT) as usize, Seq(seq.0 & ((1 << SEQ_SHIFT) - 1)))
}

fn here_id(device: usize, id: u32) -> u32 {
    id | (device as u32) << ID_SHIFT
}

fn there_id(id: u32) -> (usize, u32) {
    ((id >> ID_SHIFT) as usize, id & ((1 << ID_SHIFT) - 1))
}

/// The device of an operation.
pub(crate) fn device_of(seq: Seq) -> usize {
    there_seq(seq).0
}

/// The device of a context.
pub(crate) fn device_of_context(context: LinkContext) -> usize {
    there_id(context.0).0
}

/// The way to one device.
struct Way {
    link: Arc<Link>,
    /// Takes prompt news; started with the first operation that wants it.
    news: OnceLock<()>,
}

/// The process's ways to its devices.
pub(crate) struct Timeline {
    ways: Vec<Way>,
    pending: Arc<Pending>,
    /// Held while a name goes to all devices in one order, so that it has the same number on each.
    naming: Mutex<()>,
}

/// Turns the link's errors into results, and prints them on stderr. A lost device is printed once.
fn refused(what: &str) -> impl Fn(LinkError) -> Error + '_ {
    move |error| {
        static SAID: AtomicBool = AtomicBool::new(false);
        let lost = matches!(error, LinkError::Lost);
        if !lost || !SAID.swap(true, Ordering::Relaxed) {
            eprintln!("simcuda[{}] {what}: {error}", std::process::id());
        }
        match error {
            LinkError::Lost => Error::LAUNCH_FAILED,
            LinkError::OutOfMemory => Error::OUT_OF_MEMORY,
            LinkError::Forked => Error::NOT_INITIALIZED,
            LinkError::Unreachable(_) => Error::DEVICE_UNAVAILABLE,
            LinkError::Unknown => Error::INVALID_HANDLE,
            _ => Error::UNKNOWN,
        }
    }
}

/// This client's priority under MPS (`CUDA_MPS_CLIENT_PRIORITY`): 0, normal, or 1, below normal.
fn client_priority() -> i32 {
    let said = std::env::var("CUDA_MPS_CLIENT_PRIORITY");
    i32::from(said.is_ok_and(|said| said.trim() == "1"))
}

impl Timeline {
    /// Opens the ways to these devices. `reached` runs on a link's own thread: it may not block.
    pub(crate) fn open(devices: &[Device], reached: Reached) -> R<Timeline> {
        let pending = Arc::new(Pending {
            next: AtomicU64::new(1),
            shards: Default::default(),
        });
        let way = |(device, about): (usize, &Device)| {
            let options = Options {
                socket: Some(about.socket()),
                variables: about.variables(),
                client_priority: client_priority(),
                ..Options::default()
            };
            let performer = Performer {
                pending: pending.clone(),
                device,
                reached,
            };
            let link = Link::open(&options, Arc::new(performer)).map_err(refused("cuInit"))?;
            Ok(Way {
                link: Arc::new(link),
                news: OnceLock::new(),
            })
        };
        Ok(Timeline {
            ways: devices.iter().enumerate().map(way).collect::<R<_>>()?,
            pending,
            naming: Mutex::new(()),
        })
    }

    fn way(&self, device: usize) -> R<&Way> {
        self.ways.get(device).ok_or(Error::INVALID_DEVICE)
    }

    fn link(&self, device: usize) -> R<&Link> {
        self.way(device).map(|way| &*way.link)
    }

    pub(crate) fn context(&self, device: usize) -> R<LinkContext> {
        let context = self.link(device)?.context().map_err(refused("context"))?;
        Ok(simgpu_device::Ctx(here_id(device, context.0)))
    }

    /// The primary context's place, without its memory.
    pub(crate) fn empty_context(&self, device: usize) -> R<LinkContext> {
        let context = self.link(device)?.empty_context().map_err(refused("context"))?;
        Ok(simgpu_device::Ctx(here_id(device, context.0)))
    }

    /// The primary context's memory.
    pub(crate) fn fill_context(&self, device: usize) -> R {
        self.link(device)?.fill_context().map_err(refused("context"))
    }

    /// Gives the primary context's memory back.
    pub(crate) fn drain_context(&self, device: usize) {
        if let Ok(link) = self.link(device) {
            link.drain_context();
        }
    }

    pub(crate) fn close_context(&self, context: LinkContext) {
        let (device, id) = there_id(context.0);
        if let Ok(link) = self.link(device) {
            let _ = link.close_context(simgpu_device::Ctx(id));
        }
    }

    pub(crate) fn stream(&self, context: LinkContext, priority: i32) -> R<LinkStream> {
        let (device, id) = there_id(context.0);
        let stream = self.link(device)?.stream(simgpu_device::Ctx(id), priority);
        Ok(LinkStream(here_id(device, stream.map_err(refused("stream"))?.0)))
    }

    pub(crate) fn close_stream(&self, stream: LinkStream) {
        let (device, id) = there_id(stream.0);
        if let Ok(link) = self.link(device) {
            let _ = link.close_stream(LinkStream(id));
        }
    }

    /// Wall seconds a second of the device.
    pub(crate) fn dilation(&self, device: usize) -> R<f64> {
        Ok(self.link(device)?.dilation())
    }

    pub(crate) fn name(&self, name: &str) -> NameId {
        let _one = lock(&self.naming);
        let mut all = self.ways.iter().map(|way| way.link.name(name));
        let first = all.next().unwrap_or(NameId::NONE);
        // Sent to each device, whatever the answer. If a name's numbers differ, it has none: on one
        // device the number would be another kernel's.
        if all.fold(true, |same, other| same & (other == first)) {
            first
        } else {
            NameId::NONE
        }
    }

    /// Puts an operation on a stream. Blocks while the stream has as much outstanding as a channel
    /// holds.
    pub(crate) fn submit(
        &self,
        stream: LinkStream,
        op: Op,
        effect: Option<Effect>,
        graph: u64,
        touches: &[TouchedAddresses],
    ) -> R<Seq> {
        let (device, id) = there_id(stream.0);
        let (op, effect) = match op {
            Op::WaitFor(seq) => match there_seq(seq) {
                (other, seq) if other == device => (Op::WaitFor(seq), effect),
                // No device knows another's operations: the stream stands until this process sees
                // the end.
                _ => (Op::Host, Some(Effect::Ended(seq))),
            },
            op => (op, effect),
        };
        let way = self.way(device)?;
        let prompt = effect.as_ref().is_some_and(Effect::is_prompt);
        if prompt {
            way.news.get_or_init(|| take_news(way.link.clone()));
        }
        let token = effect.map_or(0, |effect| self.pending.put(effect));
        let extra = Extra {
            token,
            prompt,
            graph,
            label: NameId::NONE,
        };
        let submitted = way.link.submit_touching(LinkStream(id), op, extra, touches);
        let seq = submitted.map_err(|error| {
            self.pending.take(token);
            refused("submit")(error)
        })?;
        let seq = here_seq(device, seq);
        page_table::used(seq, &op, touches);
        Ok(seq)
    }

    /// Performs the effects of the operations that have ended by now.
    pub(crate) fn poll(&self) {
        for way in &self.ways {
            way.link.poll();
        }
    }

    /// Has the operation ended, and its effect been performed?
    pub(crate) fn is_done(&self, seq: Seq) -> bool {
        let (device, seq) = there_seq(seq);
        let done = seq == Seq::NONE || self.link(device).is_ok_and(|link| link.status(seq).is_done());
        if done {
            page_table::follow(self);
        }
        done
    }

    /// Is the operation known to have ended, without a round trip to the device?
    pub(crate) fn is_known_done(&self, seq: Seq) -> bool {
        let (device, seq) = there_seq(seq);
        self.link(device).is_ok_and(|link| link.known(seq).is_done())
    }

    /// Will an operation that is not done never be?
    pub(crate) fn is_lost(&self, seq: Seq) -> bool {
        self.link(device_of(seq)).map_or(true, Link::is_lost)
    }

    /// The answer for an operation that is not done. If the device is gone it never will be.
    pub(crate) fn not_ready(&self, seq: Seq) -> Error {
        if self.is_lost(seq) {
            Error::LAUNCH_FAILED
        } else {
            Error::NOT_READY
        }
    }

    /// Waits until the operation has ended and its effect has been performed.
    pub(crate) fn wait(&self, seq: Seq) -> R {
        let (device, seq) = there_seq(seq);
        if seq == Seq::NONE {
            return Ok(());
        }
        self.link(device)?.wait(seq, None).map_err(refused("wait"))?;
        page_table::follow(self);
        Ok(())
    }

    /// The pages of managed memory that lie only on the device: see [`Link::on_device`].
    pub(crate) fn on_device(&self, device: usize, first: u64, count: usize) -> R<Vec<u32>> {
        self.link(device)?
            .on_device(first, count)
            .map_err(refused("a look at memory"))
    }

    /// Continues a stream that stopped at a host operation, or ends a held kernel.
    pub(crate) fn host_done(&self, seq: Seq) {
        let (device, seq) = there_seq(seq);
        let Ok(link) = self.link(device) else { return };
        if let Err(error) = link.host_done(seq) {
            let _ = refused("host operation")(error);
        }
    }

    /// Takes device memory, of which all processes have the same.
    pub(crate) fn reserve(&self, device: usize, bytes: u64) -> R {
        self.link(device)?.reserve(bytes).map_err(|_| Error::OUT_OF_MEMORY)
    }

    /// Makes addresses managed memory, in a device's ledger.
    pub(crate) fn manage(&self, device: usize, start: u64, bytes: u64) -> R {
        self.link(device)?
            .manage(start, bytes)
            .map_err(|_| Error::OUT_OF_MEMORY)
    }

    pub(crate) fn unmanage(&self, device: usize, start: u64, bytes: u64) {
        // If the device is gone, there is nothing to take back.
        if let Ok(link) = self.link(device) {
            let _ = link.unmanage(start, bytes);
        }
    }

    /// Gives advice about managed memory, or takes it back.
    pub(crate) fn advise(&self, device: usize, start: u64, bytes: u64, advice: Advice, on: bool) -> R {
        self.link(device)?
            .advise(start, bytes, advice, on)
            .map_err(refused("advice"))
    }

    pub(crate) fn release(&self, device: usize, bytes: u64) {
        if let Ok(link) = self.link(device) {
            link.release(bytes);
        }
    }

    /// Bytes of a device that this process holds, its contexts' own included.
    pub(crate) fn held(&self, device: usize) -> u64 {
        self.link(device).map_or(0, Link::held)
    }

    /// Free and total bytes of a device.
    pub(crate) fn memory(&self, device: usize) -> (u64, u64) {
        self.link(device).map_or((0, 0), Link::memory)
    }
}

/// Starts the thread that performs prompt effects while no client thread waits.
fn take_news(link: Arc<Link>) {
    let body = move || while link.wait_for_news(NEWS_SLICE).is_ok() {};
    thread::start("simcuda-news", body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_carry_their_device() {
        let (first, later) = (Seq(1 << 16 | 3), Seq(2 << 16 | 1));
        assert_eq!(here_seq(0, first), first, "of the first device as they are");
        for device in 0..simgpu_device::machine::MOST {
            assert_eq!(there_seq(here_seq(device, first)), (device, first));
            assert!(here_seq(device, first) < here_seq(device, later));
            assert_eq!(there_id(here_id(device, 77)), (device, 77));
        }
    }
}
