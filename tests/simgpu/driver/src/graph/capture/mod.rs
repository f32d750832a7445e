//! Recording streams into a graph.
//!
//! A capture begins on one stream, its origin. Other streams join by waiting for an event that was
//! recorded in it, and are joined back by the origin waiting for an event of theirs. Each stream of
//! the capture keeps the nodes that its next operation will come after. What is not allowed
//! meanwhile stands in `rules.rs`.
//!
//! A capture that met a forbidden call is invalid: every further call on its streams fails, and so
//! does its end, after which the streams are ordinary again.
#![deny(unsafe_code)]

mod api;
pub(crate) mod rules;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, R};
use crate::event::{self, Event};
use crate::graph::body::Body;
use crate::graph::model::{Edge, EdgeData, Graph, NODES, join};
use crate::state::Driver;
use crate::stream::{Kind, Stream};
use crate::work::Work;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// `CUstreamCaptureMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    pub(crate) fn new(mode: u32) -> R<Mode> {
        match mode {
            0 => Ok(Mode::Global),
            1 => Ok(Mode::ThreadLocal),
            2 => Ok(Mode::Relaxed),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

/// One capture, from its beginning to its end.
pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) mode: Mode,
    /// The thread that began it.
    pub(crate) thread: ThreadId,
    pub(crate) graph: Arc<Graph>,
    pub(crate) context: u64,
    /// Its origin orders itself with the legacy default stream, which is then not usable meanwhile.
    blocking: bool,
    invalid: AtomicBool,
    ended: AtomicBool,
    /// Origin first.
    streams: Mutex<Vec<Weak<Stream>>>,
}

impl Capture {
    pub(crate) fn is_invalid(&self) -> bool {
        self.invalid.load(Ordering::Acquire)
    }

    /// Spoils the capture: a forbidden call was made.
    pub(crate) fn invalidate(&self) {
        self.invalid.store(true, Ordering::Release);
    }

    fn check(&self) -> R {
        if self.is_invalid() {
            Err(Error::STREAM_CAPTURE_INVALIDATED)
        } else {
            Ok(())
        }
    }

    fn streams(&self) -> Vec<Arc<Stream>> {
        lock(&self.streams).iter().filter_map(Weak::upgrade).collect()
    }
}

/// What a capturing stream knows.
pub(crate) struct CaptureSlot {
    pub(crate) capture: Arc<Capture>,
    /// What the stream's next operation comes after.
    after: Vec<Edge>,
    /// What `cuStreamGetCaptureInfo` last showed: the client may look at it until its next call on
    /// the stream.
    shown: (Vec<Handle>, Vec<EdgeData>),
}

impl CaptureSlot {
    fn new(capture: Arc<Capture>, after: Vec<Edge>) -> CaptureSlot {
        CaptureSlot {
            capture,
            after,
            shown: Default::default(),
        }
    }
}

/// A point in a capture that an event stands for.
#[derive(Clone)]
pub(crate) struct CapturedEvent {
    capture: Arc<Capture>,
    after: Vec<Edge>,
}

impl CapturedEvent {
    /// The event was used as if it stood for a moment on the device.
    pub(crate) fn misused(&self) -> Error {
        self.capture.invalidate();
        Error::CAPTURED_EVENT
    }
}

/// Runs `with` on the slot of a capturing stream whose capture is still valid.
fn slot<T>(stream: &Stream, with: impl FnOnce(&mut CaptureSlot) -> R<T>) -> R<T> {
    let mut slot = lock(&stream.capture);
    // Empty where another thread ended the capture between the caller's look and now.
    let slot = slot.as_mut().ok_or(Error::STREAM_CAPTURE_INVALIDATED)?;
    slot.capture.check()?;
    with(slot)
}

fn enter(stream: &Arc<Stream>, capture: &Arc<Capture>, after: Vec<Edge>) {
    *lock(&stream.capture) = Some(CaptureSlot::new(capture.clone(), after));
    lock(&capture.streams).push(Arc::downgrade(stream));
    stream.set_capturing(true);
}

/// Begins a capture.
pub(crate) fn begin(stream: &Arc<Stream>, mode: Mode, graph: Arc<Graph>, after: Vec<Edge>) -> R {
    if stream.kind == Kind::Legacy {
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    if stream.is_capturing() {
        return Err(Error::ILLEGAL_STATE);
    }
    let capture = Arc::new(Capture {
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        mode,
        thread: thread::current().id(),
        graph,
        context: stream.context.id,
        blocking: stream.kind == Kind::Blocking,
        invalid: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        streams: Mutex::default(),
    });
    rules::began(&capture);
    enter(stream, &capture, after);
    Ok(())
}

/// Ends the capture whose origin the stream is, and hands out its graph.
pub(crate) fn end(stream: &Arc<Stream>) -> R<Arc<Graph>> {
    let capture = lock(&stream.capture).as_ref().map(|slot| slot.capture.clone());
    let capture = capture.ok_or(Error::ILLEGAL_STATE)?;
    let origin = lock(&capture.streams).first().cloned();
    if !origin.is_some_and(|origin| std::ptr::eq(origin.as_ptr(), Arc::as_ptr(stream))) {
        return Err(Error::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
        capture.invalidate();
        return Err(Error::STREAM_CAPTURE_WRONG_THREAD);
    }
    let joined = capture.check().and_then(|()| all_joined(&capture));
    capture.ended.store(true, Ordering::Release);
    rules::ended(&capture);
    for stream in capture.streams() {
        stream.set_capturing(false);
        *lock(&stream.capture) = None;
    }
    joined?;
    Ok(capture.graph.clone())
}

/// Does the origin come after all that the other streams recorded?
fn all_joined(capture: &Capture) -> R {
    let ends = |stream: &Stream| {
        lock(&stream.capture)
            .as_ref()
            .map(|slot| slot.after.clone())
            .unwrap_or_default()
    };
    let mut streams = capture.streams().into_iter();
    let Some(origin) = streams.next() else { return Ok(()) };
    let mut seen: HashSet<Handle> = HashSet::new();
    let mut open: Vec<Handle> = ends(&origin).iter().map(|edge| edge.from).collect();
    while let Some(node) = open.pop() {
        if seen.insert(node)
            && let Some(node) = NODES.find(node)
        {
            open.extend(node.after().iter().map(|edge| edge.from));
        }
    }
    let loose = streams.any(|stream| ends(&stream).iter().any(|edge| !seen.contains(&edge.from)));
    if loose {
        Err(Error::STREAM_CAPTURE_UNJOINED)
    } else {
        Ok(())
    }
}

/// Records one operation of a capturing stream, and answers the new node's handle.
pub(crate) fn capture_body(stream: &Arc<Stream>, body: Body) -> R<Handle> {
    slot(stream, |slot| {
        let node = slot
            .capture
            .graph
            .add(body, &slot.after)
            .inspect_err(|_| slot.capture.invalidate())?;
        slot.after = vec![Edge::after(node.handle)];
        Ok(node.handle)
    })
}

/// Records what a client put on a capturing stream.
pub(crate) fn capture_work(_driver: &Driver, stream: &Arc<Stream>, work: Work) -> R {
    capture_body(stream, Body::Work(work)).map(drop)
}

/// `cuEventRecord` on a capturing stream: the event stands for this point from now on, or becomes a
/// node if it is external.
pub(crate) fn capture_record(_driver: &Driver, stream: &Arc<Stream>, event: &Arc<Event>, flags: u32) -> R {
    if flags & event::EXTERNAL != 0 {
        return capture_body(stream, Body::Record(event.clone())).map(drop);
    }
    let point = slot(stream, |slot| {
        Ok(CapturedEvent {
            capture: slot.capture.clone(),
            after: slot.after.clone(),
        })
    })?;
    event.set_captured(point);
    Ok(())
}

/// `cuStreamWaitEvent` where the stream, the event or both belong to a capture.
pub(crate) fn capture_wait(
    _driver: &Driver,
    stream: &Arc<Stream>,
    event: &Arc<Event>,
    captured: Option<CapturedEvent>,
    flags: u32,
) -> R {
    if stream.is_capturing() {
        if flags & event::EXTERNAL != 0 {
            return capture_body(stream, Body::Wait(event.clone())).map(drop);
        }
        return slot(stream, |slot| {
            let Some(point) = captured else {
                // What is outside the capture cannot be waited for from inside it.
                slot.capture.invalidate();
                return Err(Error::STREAM_CAPTURE_ISOLATION);
            };
            if !Arc::ptr_eq(&point.capture, &slot.capture) {
                slot.capture.invalidate();
                point.capture.invalidate();
                return Err(Error::STREAM_CAPTURE_MERGE);
            }
            join(&mut slot.after, &point.after);
            Ok(())
        });
    }
    let Some(point) = captured else {
        return Err(Error::STREAM_CAPTURE_INVALIDATED);
    };
    if point.capture.ended.load(Ordering::Acquire) {
        return Err(Error::CAPTURED_EVENT);
    }
    point.capture.check()?;
    if stream.kind == Kind::Legacy {
        point.capture.invalidate();
        return Err(Error::STREAM_CAPTURE_IMPLICIT);
    }
    enter(stream, &point.capture, point.after);
    Ok(())
}

/// The client destroys a stream: a capture that it is in cannot end well any more.
pub(crate) fn stream_destroyed(stream: &Stream) {
    let Some(slot) = lock(&stream.capture).take() else {
        return;
    };
    stream.set_capturing(false);
    let capture = slot.capture;
    capture.invalidate();
    let mut streams = lock(&capture.streams);
    let was_origin = streams
        .first()
        .is_some_and(|origin| std::ptr::eq(origin.as_ptr(), stream));
    streams.retain(|other| !std::ptr::eq(other.as_ptr(), stream));
    let left: Vec<_> = if was_origin {
        std::mem::take(&mut *streams)
    } else {
        Vec::new()
    };
    drop(streams);
    if was_origin {
        // Nobody can end it now.
        capture.ended.store(true, Ordering::Release);
        rules::ended(&capture);
        for stream in left.iter().filter_map(Weak::upgrade) {
            stream.set_capturing(false);
            *lock(&stream.capture) = None;
        }
    }
}
