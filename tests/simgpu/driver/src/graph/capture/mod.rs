// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recording streams into a graph.
//!
//! A capture begins on one stream, its origin. Other streams join by waiting for an event that was
//! recorded in it. They are joined back when the origin waits for an event of theirs. Each stream
//! of the capture keeps the nodes that its next operation will come after. `capture/rules.rs` lists
//! the calls that are forbidden meanwhile.
//!
//! A capture that met a forbidden call is invalid: every further call on its streams fails, and so
//! does its end, after which the streams are ordinary again.
#![deny(unsafe_code)]

mod api;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, R};
use crate::capture::edge::{Edge, join};
use crate::capture::{Capture, CaptureMode, CaptureSlot, CapturedEvent};
use crate::event::{self, Event};
use crate::graph::model::{Body, Graph, NODES};
use crate::stream::{Stream, StreamKind};
use crate::work::StreamWork;

/// The recordings of the captures in progress, by capture number.
static RECORDINGS: Mutex<BTreeMap<u64, Arc<Recording>>> = Mutex::new(BTreeMap::new());

/// The graph and the streams of one capture.
struct Recording {
    graph: Arc<Graph>,
    /// Origin first.
    streams: Mutex<Vec<Weak<Stream>>>,
}

impl Recording {
    fn streams(&self) -> Vec<Arc<Stream>> {
        lock(&self.streams).iter().filter_map(Weak::upgrade).collect()
    }
}

/// The recording of a capture that is in progress.
fn recording(capture: &Capture) -> R<Arc<Recording>> {
    let found = lock(&RECORDINGS).get(&capture.id).cloned();
    found.ok_or(Error::STREAM_CAPTURE_INVALIDATED)
}

/// The capture is over: its recording is handed out.
fn stop(capture: &Capture) -> R<Arc<Recording>> {
    let found = lock(&RECORDINGS).remove(&capture.id);
    capture.end();
    found.ok_or(Error::STREAM_CAPTURE_INVALIDATED)
}

/// Runs `with` on the slot of a capturing stream whose capture is still valid.
fn slot<T>(stream: &Stream, with: impl FnOnce(&mut CaptureSlot) -> R<T>) -> R<T> {
    let mut slot = lock(&stream.capture);
    // Empty if another thread ended the capture between the caller's look and now.
    let slot = slot.as_mut().ok_or(Error::STREAM_CAPTURE_INVALIDATED)?;
    slot.capture.check()?;
    with(slot)
}

fn enter(stream: &Arc<Stream>, capture: &Arc<Capture>, after: Vec<Edge>) -> R {
    let recording = recording(capture)?;
    *lock(&stream.capture) = Some(CaptureSlot::new(capture.clone(), after));
    lock(&recording.streams).push(Arc::downgrade(stream));
    stream.set_capturing(true);
    Ok(())
}

/// Begins a capture.
pub(crate) fn begin(stream: &Arc<Stream>, mode: CaptureMode, graph: Arc<Graph>, after: Vec<Edge>) -> R {
    if stream.kind == StreamKind::Legacy {
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    if stream.is_capturing() {
        return Err(Error::ILLEGAL_STATE);
    }
    let capture = Capture::begin(mode, stream.context.id, stream.kind == StreamKind::Blocking);
    let recording = Recording {
        graph,
        streams: Mutex::default(),
    };
    lock(&RECORDINGS).insert(capture.id, Arc::new(recording));
    enter(stream, &capture, after)
}

/// Ends the capture whose origin the stream is, and hands out its graph.
pub(crate) fn end(stream: &Arc<Stream>) -> R<Arc<Graph>> {
    let capture = lock(&stream.capture).as_ref().map(|slot| slot.capture.clone());
    let capture = capture.ok_or(Error::ILLEGAL_STATE)?;
    let recording = recording(&capture).map_err(|_| Error::ILLEGAL_STATE)?;
    let origin = lock(&recording.streams).first().cloned();
    if !origin.is_some_and(|origin| std::ptr::eq(origin.as_ptr(), Arc::as_ptr(stream))) {
        return Err(Error::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != CaptureMode::Relaxed && capture.thread != thread::current().id() {
        capture.invalidate();
        return Err(Error::STREAM_CAPTURE_WRONG_THREAD);
    }
    let joined = capture.check().and_then(|()| all_joined(&recording));
    stop(&capture)?;
    for stream in recording.streams() {
        stream.set_capturing(false);
        *lock(&stream.capture) = None;
    }
    joined?;
    Ok(recording.graph.clone())
}

/// Does the origin come after all that the other streams recorded?
fn all_joined(recording: &Recording) -> R {
    let ends = |stream: &Stream| {
        lock(&stream.capture)
            .as_ref()
            .map(|slot| slot.after.clone())
            .unwrap_or_default()
    };
    let mut streams = recording.streams().into_iter();
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
        let node = recording(&slot.capture)?
            .graph
            .add(body, &slot.after)
            .inspect_err(|_| slot.capture.invalidate())?;
        slot.after = vec![Edge::after(node.handle)];
        Ok(node.handle)
    })
}

/// Records a client's work on a capturing stream.
pub(crate) fn capture_work(stream: &Arc<Stream>, work: StreamWork) -> R {
    capture_body(stream, Body::Work(work)).map(drop)
}

/// `cuEventRecord` on a capturing stream: the event stands for this point from now on, or becomes a
/// node if it is external.
pub(crate) fn capture_record(stream: &Arc<Stream>, event: &Arc<Event>, flags: u32) -> R {
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

/// `cuStreamWaitEvent` if the stream, the event or both belong to a capture.
pub(crate) fn capture_wait(stream: &Arc<Stream>, event: &Arc<Event>, captured: Option<CapturedEvent>, flags: u32) -> R {
    if stream.is_capturing() {
        if flags & event::EXTERNAL != 0 {
            return capture_body(stream, Body::Wait(event.clone())).map(drop);
        }
        return slot(stream, |slot| {
            let Some(point) = captured else {
                // Work outside the capture cannot be waited for from inside it.
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
    if point.capture.has_ended() {
        return Err(Error::CAPTURED_EVENT);
    }
    point.capture.check()?;
    if stream.kind == StreamKind::Legacy {
        point.capture.invalidate();
        return Err(Error::STREAM_CAPTURE_IMPLICIT);
    }
    enter(stream, &point.capture, point.after)
}

/// The client destroys a stream: a capture that it is in cannot end well any more.
pub(crate) fn stream_destroyed(stream: &Stream) {
    let Some(slot) = lock(&stream.capture).take() else {
        return;
    };
    stream.set_capturing(false);
    let capture = slot.capture;
    capture.invalidate();
    let Ok(recording) = recording(&capture) else { return };
    let mut streams = lock(&recording.streams);
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
        // No call can end it now.
        let _ = stop(&capture);
        for stream in left.iter().filter_map(Weak::upgrade) {
            stream.set_capturing(false);
            *lock(&stream.capture) = None;
        }
    }
}
