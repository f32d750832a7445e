// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures as streams and events know them: whether one is in progress, and the edges for its next
//! operation.
//!
//! `graph/capture` keeps the recorded graph. `rules.rs` lists the calls that are forbidden
//! meanwhile.
#![forbid(unsafe_code)]

pub(crate) mod edge;
pub(crate) mod rules;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use crate::abi::{Error, Handle, R};
use edge::{Edge, EdgeData};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// `CUstreamCaptureMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaptureMode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl CaptureMode {
    pub(crate) fn new(mode: u32) -> R<CaptureMode> {
        match mode {
            0 => Ok(CaptureMode::Global),
            1 => Ok(CaptureMode::ThreadLocal),
            2 => Ok(CaptureMode::Relaxed),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

/// One capture, from its beginning to its end.
pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) mode: CaptureMode,
    /// The thread that began it.
    pub(crate) thread: ThreadId,
    pub(crate) context: u64,
    /// Its origin orders itself with the legacy default stream, which is then not usable meanwhile.
    pub(crate) blocking: bool,
    invalid: AtomicBool,
    ended: AtomicBool,
}

impl Capture {
    /// Begins a capture by the calling thread, in the context of this number.
    pub(crate) fn begin(mode: CaptureMode, context: u64, blocking: bool) -> Arc<Capture> {
        let capture = Arc::new(Capture {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            mode,
            thread: thread::current().id(),
            context,
            blocking,
            invalid: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        rules::began(&capture);
        capture
    }

    pub(crate) fn is_invalid(&self) -> bool {
        self.invalid.load(Ordering::Acquire)
    }

    /// Spoils the capture: a forbidden call was made.
    pub(crate) fn invalidate(&self) {
        self.invalid.store(true, Ordering::Release);
    }

    /// Fails once the capture is spoiled.
    pub(crate) fn check(&self) -> R {
        if self.is_invalid() {
            Err(Error::STREAM_CAPTURE_INVALIDATED)
        } else {
            Ok(())
        }
    }

    /// Marks the capture as over.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        rules::ended(self);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// A capturing stream's part in its capture.
pub(crate) struct CaptureSlot {
    pub(crate) capture: Arc<Capture>,
    /// The edges that the stream's next operation comes after.
    pub(crate) after: Vec<Edge>,
    /// The last answer of `cuStreamGetCaptureInfo`: the client may read it until its next call on
    /// the stream.
    pub(crate) shown: (Vec<Handle>, Vec<EdgeData>),
}

impl CaptureSlot {
    pub(crate) fn new(capture: Arc<Capture>, after: Vec<Edge>) -> CaptureSlot {
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
    pub(crate) capture: Arc<Capture>,
    pub(crate) after: Vec<Edge>,
}

impl CapturedEvent {
    /// The event was used as if it stood for a moment on the device.
    pub(crate) fn misused(&self) -> Error {
        self.capture.invalidate();
        Error::CAPTURED_EVENT
    }
}
