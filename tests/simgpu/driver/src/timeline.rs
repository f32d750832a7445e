//! The driver's side of the link: operations go out with an effect, the effect is performed when the device says that
//! the operation has ended.
//!
//! Effects run one at a time in the order in which operations ended, on whichever thread polls or waits (or the link's
//! own, for operations that asked to be prompt). An effect may not call into the link; what takes longer than a copy, or
//! runs the client's code, goes to a helper thread (`helper.rs`).
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use simgpu_device::{Effects, Extra, Link, LinkError, NameId, Op, Options, Seq, Stream as LinkStream, Times, Touch};

pub(crate) use simgpu_device::Ctx as LinkContext;

use crate::abi::{Error, R};
use crate::effect::Effect;
use crate::helper;
use crate::state::lock;
use crate::thread;

/// How long the thread that takes prompt news sleeps at most. Any bound would do: news wakes it.
const NEWS_SLICE: Duration = Duration::from_secs(5);
/// Effects are kept in as many maps as there are, so that submitting threads and the one that performs rarely meet.
const SHARDS: usize = 16;

/// Tokens are counted up, so the low bits alone spread them.
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

struct Performer(Arc<Pending>);

impl Effects for Performer {
    fn ended(&self, token: u64, _seq: Seq, times: Times) {
        if let Some(effect) = self.0.take(token) {
            // A panic (an executed kernel's, say) must not end the thread that takes the device's news; it is told on stderr.
            let _ = catch_unwind(AssertUnwindSafe(|| effect.perform(times)));
        }
    }

    fn reached(&self, token: u64, seq: Seq, _at: u64) {
        // Taken out here: what a host operation does happens when the stream gets to it, and its end has no effect.
        if let Some(effect) = self.0.take(token) {
            helper::reached(effect, seq);
        }
    }
}

/// The process's way to the device.
pub(crate) struct Timeline {
    link: Arc<Link>,
    pending: Arc<Pending>,
    /// Takes prompt news; started with the first operation that wants it.
    news: OnceLock<()>,
}

/// What the client is told of the link's errors. A lost device is told on stderr once, however many calls it fails.
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

impl Timeline {
    pub(crate) fn open() -> R<Timeline> {
        let pending = Arc::new(Pending {
            next: AtomicU64::new(1),
            shards: Default::default(),
        });
        let link = Link::open(&Options::default(), Arc::new(Performer(pending.clone()))).map_err(refused("cuInit"))?;
        Ok(Timeline {
            link: Arc::new(link),
            pending,
            news: OnceLock::new(),
        })
    }

    pub(crate) fn context(&self) -> R<LinkContext> {
        self.link.context().map_err(refused("context"))
    }

    /// The primary context's place, without its memory.
    pub(crate) fn empty_context(&self) -> R<LinkContext> {
        self.link.empty_context().map_err(refused("context"))
    }

    /// The primary context's memory.
    pub(crate) fn fill_context(&self) -> R {
        self.link.fill_context().map_err(refused("context"))
    }

    /// Gives it back.
    pub(crate) fn drain_context(&self) {
        self.link.drain_context();
    }

    pub(crate) fn close_context(&self, context: LinkContext) {
        let _ = self.link.close_context(context);
    }

    pub(crate) fn stream(&self, context: LinkContext, priority: i32) -> R<LinkStream> {
        self.link.stream(context, priority).map_err(refused("stream"))
    }

    pub(crate) fn close_stream(&self, stream: LinkStream) {
        let _ = self.link.close_stream(stream);
    }

    pub(crate) fn name(&self, name: &str) -> NameId {
        self.link.name(name)
    }

    /// Puts an operation on a stream. Blocks while the stream has as much outstanding as a channel holds.
    pub(crate) fn submit(
        &self,
        stream: LinkStream,
        op: Op,
        effect: Option<Effect>,
        graph: u64,
        touches: &[Touch],
    ) -> R<Seq> {
        let prompt = effect.as_ref().is_some_and(Effect::is_prompt);
        if prompt {
            self.news.get_or_init(|| take_news(self.link.clone()));
        }
        let token = effect.map_or(0, |effect| self.pending.put(effect));
        let extra = Extra {
            token,
            prompt,
            graph,
            label: NameId::NONE,
        };
        self.link.submit_touching(stream, op, extra, touches).map_err(|error| {
            self.pending.take(token);
            refused("submit")(error)
        })
    }

    /// Performs the effects of what has ended by now.
    pub(crate) fn poll(&self) {
        self.link.poll();
    }

    /// Has the operation ended, and its effect been performed?
    pub(crate) fn is_done(&self, seq: Seq) -> bool {
        seq == Seq::NONE || self.link.status(seq).is_done()
    }

    /// The same as far as is known without asking the device. For what may as well be taken as not done: asking costs a round trip.
    pub(crate) fn is_known_done(&self, seq: Seq) -> bool {
        self.link.known(seq).is_done()
    }

    /// What to say of an operation that is not done: that it never will be, if the device is gone.
    pub(crate) fn not_ready(&self) -> Error {
        if self.link.is_lost() {
            Error::LAUNCH_FAILED
        } else {
            Error::NOT_READY
        }
    }

    /// Waits until the operation has ended and its effect has been performed.
    pub(crate) fn wait(&self, seq: Seq) -> R {
        if seq == Seq::NONE {
            return Ok(());
        }
        self.link.wait(seq, None).map(drop).map_err(refused("wait"))
    }

    /// Lets a stream go on that stopped at a host operation, or ends a held kernel.
    pub(crate) fn host_done(&self, seq: Seq) {
        if let Err(error) = self.link.host_done(seq) {
            let _ = refused("host operation")(error);
        }
    }

    /// Takes device memory, of which all processes have the same.
    pub(crate) fn reserve(&self, bytes: u64) -> R {
        self.link.reserve(bytes).map_err(|_| Error::OUT_OF_MEMORY)
    }

    /// Makes addresses managed memory.
    pub(crate) fn manage(&self, start: u64, bytes: u64) -> R {
        self.link.manage(start, bytes).map_err(|_| Error::OUT_OF_MEMORY)
    }

    pub(crate) fn unmanage(&self, start: u64, bytes: u64) {
        // Of a device that is gone nothing needs to be taken back.
        let _ = self.link.unmanage(start, bytes);
    }

    /// Advises managed memory as mostly read, or not.
    pub(crate) fn read_mostly(&self, start: u64, bytes: u64, on: bool) -> R {
        self.link.read_mostly(start, bytes, on).map_err(refused("advice"))
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.link.release(bytes);
    }

    /// Free and total bytes of the device.
    pub(crate) fn memory(&self) -> (u64, u64) {
        self.link.memory()
    }
}

/// Starts the thread on which prompt effects are performed where no client thread waits.
fn take_news(link: Arc<Link>) {
    let body = move || while link.wait_for_news(NEWS_SLICE).is_ok() {};
    thread::start("simcuda-news", body);
}
