// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: the legacy default stream, each thread's own default stream, and created ones.
#![deny(unsafe_code)]

pub(crate) mod attributes;
pub(crate) mod memop;
mod submit;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use simgpu_device::lock::lock;
use simgpu_device::{LinkStream, Seq};

use crate::abi::{Error, Handle, R};
use crate::capture::{CaptureSlot, rules};
use crate::context::order::Tail;
use crate::context::{Context, current};
use crate::registry::{HandleKind, Registry};
use crate::state::{self, Driver};

/// Created streams.
pub(crate) static STREAMS: Registry<Stream> = Registry::new(HandleKind::Stream);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Handle of the legacy default stream, whichever way the caller was built.
pub(crate) const LEGACY: Handle = 1;
/// Handle of the calling thread's default stream.
pub(crate) const PER_THREAD: Handle = 2;
/// Least and greatest stream priority, as compute capability 8.0 reports them.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);
/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;

/// A stream's order relative to the legacy default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// It is that stream.
    Legacy,
    /// Orders itself with it: created without `CU_STREAM_NON_BLOCKING`, or a thread's own default
    /// stream.
    Blocking,
    /// Has nothing to do with it.
    NonBlocking,
}

/// One stream.
pub(crate) struct Stream {
    /// 1 for the legacy stream, 2 for a thread's own.
    pub(crate) handle: Handle,
    pub(crate) id: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) kind: StreamKind,
    pub(crate) flags: u32,
    /// As answered. The device acts on the one that the stream was made with.
    priority: AtomicI32,
    pub(crate) link: LinkStream,
    /// The last operation submitted.
    tail: Arc<Tail>,
    /// Keeps `tail` in step with the link if the context's order lock is not taken.
    submitting: Mutex<()>,
    /// How full the stream is.
    depth: submit::Depth,
    /// Set while a capture records the stream: the launch path reads it with one load.
    capturing: AtomicBool,
    /// The stream's part in the capture; belongs to `graph`.
    pub(crate) capture: Mutex<Option<CaptureSlot>>,
    pub(crate) attributes: Mutex<attributes::Attributes>,
}

impl Stream {
    fn make(
        driver: &Driver,
        context: &Arc<Context>,
        kind: StreamKind,
        flags: u32,
        priority: i32,
        handle: Handle,
    ) -> R<Stream> {
        Ok(Stream {
            handle,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            context: context.clone(),
            kind,
            flags,
            priority: AtomicI32::new(priority),
            link: driver.timeline.stream(context.link, priority)?,
            tail: Arc::default(),
            submitting: Mutex::new(()),
            depth: submit::Depth::default(),
            capturing: AtomicBool::new(false),
            capture: Mutex::new(None),
            attributes: Mutex::default(),
        })
    }

    fn legacy(driver: &Driver, context: &Arc<Context>) -> R<Arc<Stream>> {
        Stream::make(driver, context, StreamKind::Legacy, 0, 0, LEGACY).map(Arc::new)
    }

    /// A stream that no client knows and that orders itself with nothing, for example a branch of a
    /// graph.
    pub(crate) fn internal(driver: &Driver, context: &Arc<Context>, priority: i32) -> R<Arc<Stream>> {
        Stream::make(driver, context, StreamKind::NonBlocking, NON_BLOCKING, priority, 0).map(Arc::new)
    }

    pub(crate) fn create(driver: &Driver, context: &Arc<Context>, flags: u32, priority: i32) -> R<Handle> {
        let kind = if flags & NON_BLOCKING != 0 {
            StreamKind::NonBlocking
        } else {
            StreamKind::Blocking
        };
        let mut stream = Stream::make(driver, context, kind, flags, priority, 0)?;
        let (handle, stream) = STREAMS.add_with(|handle| {
            stream.handle = handle;
            stream
        });
        if kind == StreamKind::Blocking {
            lock(&context.order).join(&stream.tail);
        }
        Ok(handle)
    }

    pub(crate) fn priority(&self) -> i32 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Sets the priority, within the bounds.
    pub(crate) fn set_priority(&self, priority: i32) {
        let (least, greatest) = PRIORITIES;
        self.priority.store(priority.clamp(greatest, least), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        self.capturing.load(Ordering::Acquire)
    }

    pub(crate) fn set_capturing(&self, capturing: bool) {
        self.capturing.store(capturing, Ordering::Release);
    }

    /// The last operation submitted.
    pub(crate) fn last(&self) -> Seq {
        self.tail.get()
    }

    /// Waits for everything submitted so far. A blocking stream waits for the legacy stream's work
    /// only if it has work of its own behind it, as on the real driver.
    pub(crate) fn synchronize(&self, driver: &Driver) -> R {
        self.wait(driver, self.last())
    }

    /// Waits for an operation of the stream. The error of a kernel that failed before it is
    /// returned here.
    pub(crate) fn wait(&self, driver: &Driver, seq: Seq) -> R {
        driver.timeline.wait(seq)?;
        self.context.check()
    }

    /// A use of the stream: refused for the legacy default stream while a blocking stream is the
    /// origin of a capture.
    #[inline]
    pub(crate) fn may_use(&self) -> R {
        match self.kind {
            StreamKind::Legacy => rules::may_use_legacy(self.context.id),
            _ => Ok(()),
        }
    }

    /// A wait for the stream, or a query of it.
    #[inline]
    pub(crate) fn may_synchronize(&self) -> R {
        if self.is_capturing() {
            if let Some(slot) = lock(&self.capture).as_ref() {
                slot.capture.invalidate();
            }
            return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
        }
        self.may_use()?;
        rules::may_query()
    }

    pub(crate) fn is_idle(&self, driver: &Driver) -> bool {
        driver.timeline.is_done(self.last())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(driver) = state::driver() {
            if !driver.timeline.is_known_done(self.last()) {
                self.context
                    .orphans
                    .add(driver, self.last(), self.kind == StreamKind::Blocking);
            }
            driver.timeline.close_stream(self.link);
        }
    }
}

/// The legacy default streams, by their contexts' numbers.
static LEGACIES: RwLock<BTreeMap<u64, Arc<Stream>>> = RwLock::new(BTreeMap::new());
/// Every thread's own streams.
static OWNS: Mutex<Vec<Weak<Stream>>> = Mutex::new(Vec::new());

/// The legacy default stream of a context.
pub(crate) fn legacy(driver: &Driver, context: &Arc<Context>) -> R<Arc<Stream>> {
    let known = LEGACIES.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(stream) = known.get(&context.id) {
        return Ok(stream.clone());
    }
    drop(known);
    let made = Stream::legacy(driver, context)?;
    let mut known = LEGACIES.write().unwrap_or_else(PoisonError::into_inner);
    Ok(known.entry(context.id).or_insert(made).clone())
}

thread_local! {
    /// This thread's default stream of each context, by the context's id.
    static OWN: RefCell<HashMap<u64, Arc<Stream>>> = RefCell::new(HashMap::new());
}

fn own(driver: &Driver, context: &Arc<Context>) -> R<Arc<Stream>> {
    let find = |own: &RefCell<HashMap<u64, Arc<Stream>>>| -> R<Arc<Stream>> {
        if let Some(stream) = own.borrow().get(&context.id) {
            return Ok(stream.clone());
        }
        let stream = Arc::new(Stream::make(driver, context, StreamKind::Blocking, 0, 0, PER_THREAD)?);
        lock(&context.order).join(&stream.tail);
        let mut owns = lock(&OWNS);
        owns.retain(|other| other.strong_count() > 0);
        owns.push(Arc::downgrade(&stream));
        drop(owns);
        own.borrow_mut().insert(context.id, stream.clone());
        Ok(stream)
    };
    OWN.try_with(find).map_err(|_| Error::DEINITIALIZED)?
}

/// The stream that a handle means to the calling thread.
#[inline]
pub(crate) fn resolve(driver: &Driver, handle: Handle) -> R<Arc<Stream>> {
    match handle {
        0 | LEGACY => legacy(driver, &current::get()?),
        PER_THREAD => own(driver, &current::get()?),
        _ => {
            let stream = STREAMS.get(handle)?;
            stream.context.check()?;
            Ok(stream)
        }
    }
}

/// Every stream of a context that has been used, each thread's own included.
pub(crate) fn of_context(context: &Arc<Context>) -> Vec<Arc<Stream>> {
    let mut streams: Vec<_> = STREAMS.all().into_iter().map(|(_, stream)| stream).collect();
    streams.extend(lock(&OWNS).iter().filter_map(Weak::upgrade));
    streams.retain(|stream| Arc::ptr_eq(&stream.context, context));
    if let Ok(driver) = state::driver()
        && let Ok(legacy) = legacy(driver, context)
    {
        streams.push(legacy);
    }
    streams
}

/// Waits for everything that was submitted to a context.
pub(crate) fn synchronize_context(driver: &Driver, context: &Arc<Context>) -> R {
    for stream in of_context(context) {
        stream.synchronize(driver)?;
    }
    for seq in context.orphans.all(driver) {
        driver.timeline.wait(seq)?;
    }
    driver.timeline.poll();
    context.check()
}

/// Destroys the streams of a context that ends.
pub(crate) fn forget_context(context: &Arc<Context>) {
    for (handle, stream) in STREAMS.all() {
        if Arc::ptr_eq(&stream.context, context) {
            let _ = STREAMS.take(handle);
        }
    }
    let _ = OWN.try_with(|own| own.borrow_mut().remove(&context.id));
}
