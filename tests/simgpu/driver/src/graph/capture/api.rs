// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points about capturing.
#![deny(unsafe_code)]

use std::sync::Arc;

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, In, Out, R};
use crate::capture::edge::{EdgeData, join};
use crate::capture::{CaptureMode, rules};
use crate::export::export;
use crate::graph::add::edges;
use crate::graph::capture::{begin, end, recording, slot};
use crate::graph::model::{GRAPHS, Graph, NODES};
use crate::state;
use crate::stream::{self, Stream, StreamKind};

/// `CUstreamCaptureStatus`.
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

fn resolve(handle: Handle) -> R<Arc<Stream>> {
    stream::resolve(state::driver()?, handle)
}

/// The stream, for a question about its capture: the legacy stream has none, and may not be asked
/// while it is not usable.
fn asked(handle: Handle) -> R<Arc<Stream>> {
    let stream = resolve(handle)?;
    if stream.kind == StreamKind::Legacy {
        rules::may_use_legacy_quietly(stream.context.id)?;
    }
    Ok(stream)
}

fn begin_new(stream: Handle, mode: u32) -> R {
    let (stream, mode) = (resolve(stream)?, CaptureMode::new(mode)?);
    let graph = Graph::create();
    let begun = begin(&stream, mode, graph.clone(), Vec::new());
    if begun.is_err() {
        graph.destroy()?;
    }
    begun
}

/// Places for the answers of `cuStreamGetCaptureInfo`; those not asked for are null.
struct Answers {
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<Handle>,
    nodes: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
}

impl Answers {
    fn none() -> Answers {
        Answers {
            status: Out::null(),
            id: Out::null(),
            graph: Out::null(),
            nodes: Out::null(),
            edges: Out::null(),
            count: Out::null(),
        }
    }
}

fn info(stream: Handle, answers: Answers) -> R {
    let stream = asked(stream)?;
    let mut slot = lock(&stream.capture);
    let Some(slot) = slot.as_mut() else {
        return answers.status.set(NONE);
    };
    if slot.capture.is_invalid() {
        return answers.status.set(INVALIDATED);
    }
    answers.status.set(ACTIVE)?;
    answers.id.set_if(slot.capture.id);
    answers.graph.set_if(recording(&slot.capture)?.graph.handle);
    slot.shown = slot.after.iter().map(|edge| (edge.from, edge.data)).unzip();
    answers.nodes.set_if(slot.shown.0.as_ptr().expose_provenance());
    answers.edges.set_if(slot.shown.1.as_ptr().expose_provenance());
    answers.count.set_if(slot.shown.0.len());
    Ok(())
}

/// `CU_STREAM_ADD_CAPTURE_DEPENDENCIES`.
const ADD: u32 = 0;
/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
const SET: u32 = 1;

fn update(stream: Handle, nodes: In<Handle>, data: In<EdgeData>, count: usize, flags: u32) -> R {
    let stream = resolve(stream)?;
    if !stream.is_capturing() {
        return Err(Error::ILLEGAL_STATE);
    }
    let more = edges(nodes, data, count)?;
    slot(&stream, |slot| {
        let graph = recording(&slot.capture)?.graph.handle;
        for edge in &more {
            if NODES.get(edge.from)?.graph != graph {
                return Err(Error::INVALID_VALUE);
            }
        }
        match flags {
            ADD => join(&mut slot.after, &more),
            SET => slot.after = more,
            _ => return Err(Error::INVALID_VALUE),
        }
        Ok(())
    })
}

export! {
    fn cuStreamBeginCapture(stream: Handle) {
        begin_new(stream, 0)
    }

    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) {
        begin_new(stream, mode)
    }

    fn cuStreamBeginCaptureToGraph(stream: Handle, graph: Handle, nodes: In<Handle>, data: In<EdgeData>, count: usize, mode: u32) {
        let (stream, mode) = (resolve(stream)?, CaptureMode::new(mode)?);
        begin(&stream, mode, GRAPHS.get(graph)?, edges(nodes, data, count)?)
    }

    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        let stream = resolve(stream)?;
        graph.set(0)?;
        graph.set(end(&stream)?.handle)
    }

    fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) {
        info(stream, Answers { status, ..Answers::none() })
    }

    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<u32>, id: Out<u64>) {
        info(stream, Answers { status, id, ..Answers::none() })
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<Handle>,
        nodes: Out<usize>,
        count: Out<usize>,
    ) {
        info(stream, Answers { status, id, graph, nodes, count, ..Answers::none() })
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: Handle,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<Handle>,
        nodes: Out<usize>,
        edges: Out<usize>,
        count: Out<usize>,
    ) {
        info(stream, Answers { status, id, graph, nodes, edges, count })
    }

    fn cuStreamUpdateCaptureDependencies(stream: Handle, nodes: In<Handle>, count: usize, flags: u32) {
        update(stream, nodes, In::null(), count, flags)
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        stream: Handle,
        nodes: In<Handle>,
        data: In<EdgeData>,
        count: usize,
        flags: u32,
    ) {
        update(stream, nodes, data, count, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        let own = CaptureMode::new(mode.get()?)?;
        mode.set(rules::exchange(own) as u32)
    }
}
