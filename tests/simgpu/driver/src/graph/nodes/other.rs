// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host, event, child-graph and batch nodes.
#![deny(unsafe_code)]

use crate::abi::{Error, Handle, In, Out, R};
use crate::event::EVENTS;
use crate::export::export;
use crate::graph::add::{added, edges};
use crate::graph::model::{Body, GRAPHS, NODES, kind};
use crate::graph::nodes::{change, change_in};
use crate::stream::memop;
use crate::work::{HostCall, StreamWork};

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct HostParams {
    function: usize,
    data: usize,
}

impl HostParams {
    pub(super) fn body(&self) -> R<Body> {
        Ok(Body::Work(StreamWork::Host(HostCall::function(
            self.function,
            self.data,
        )?)))
    }

    pub(super) fn of(body: &Body) -> R<HostParams> {
        match body {
            Body::Work(StreamWork::Host(HostCall::Function { function, data })) => Ok(HostParams {
                function: *function as usize,
                data: *data,
            }),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchParams {
    context: Handle,
    count: u32,
    list: usize,
    flags: u32,
}

impl BatchParams {
    pub(super) fn body(&self) -> R<Body> {
        let list = In::<[u64; 6]>::from_address(self.list);
        let ops = memop::parse_all(list, self.count as usize)?;
        Ok(Body::Batch(list.list(self.count as usize)?.into(), ops))
    }

    pub(super) fn of(body: &Body) -> R<BatchParams> {
        match body {
            Body::Batch(list, _) => {
                let count = u32::try_from(list.len()).map_err(|_| Error::INVALID_VALUE)?;
                Ok(BatchParams {
                    context: 0,
                    count,
                    list: list.as_ptr().expose_provenance(),
                    flags: 0,
                })
            }
            // Recorded from a stream, which hands over the operations and not the call's arguments.
            Body::Work(StreamWork::MemOps(_)) => Err(Error::NOT_SUPPORTED),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

pub(super) fn record_body(event: Handle) -> R<Body> {
    Ok(Body::Record(EVENTS.get(event)?))
}

pub(super) fn wait_body(event: Handle) -> R<Body> {
    Ok(Body::Wait(EVENTS.get(event)?))
}

/// A node holds a copy of the graph it was made from.
pub(super) fn child_body(graph: Handle) -> R<Body> {
    Ok(Body::Child(GRAPHS.get(graph)?.clone_graph()?))
}

/// The event of an event node.
pub(super) fn event(body: &Body) -> R<Handle> {
    match body {
        Body::Record(event) | Body::Wait(event) => Ok(event.handle),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// The graph of a child node.
pub(super) fn child(body: &Body) -> R<Handle> {
    match body {
        Body::Child(graph) => Ok(graph.handle),
        _ => Err(Error::INVALID_VALUE),
    }
}

fn asked_event(node: Handle, kind: u32) -> R<Handle> {
    let body = NODES.get(node)?.body();
    if body.kind() == kind {
        event(&body)
    } else {
        Err(Error::INVALID_VALUE)
    }
}

export! {
    fn cuGraphAddHostNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<HostParams>) {
        let params = params.get()?;
        added(node, graph, &edges(after, In::null(), count)?, || params.body())
    }

    fn cuGraphHostNodeGetParams(node: Handle, params: Out<HostParams>) {
        params.set(HostParams::of(&NODES.get(node)?.body())?)
    }

    fn cuGraphHostNodeSetParams(node: Handle, params: In<HostParams>) {
        let params = params.get()?;
        change(node, kind::HOST, |_| params.body())
    }

    fn cuGraphExecHostNodeSetParams(exec: Handle, node: Handle, params: In<HostParams>) {
        let params = params.get()?;
        change_in(exec, node, kind::HOST, |_| params.body())
    }

    fn cuGraphAddEventRecordNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle) {
        added(node, graph, &edges(after, In::null(), count)?, || record_body(event))
    }

    fn cuGraphAddEventWaitNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle) {
        added(node, graph, &edges(after, In::null(), count)?, || wait_body(event))
    }

    fn cuGraphEventRecordNodeGetEvent(node: Handle, event: Out<Handle>) {
        event.set(asked_event(node, kind::EVENT_RECORD)?)
    }

    fn cuGraphEventWaitNodeGetEvent(node: Handle, event: Out<Handle>) {
        event.set(asked_event(node, kind::WAIT_EVENT)?)
    }

    fn cuGraphEventRecordNodeSetEvent(node: Handle, event: Handle) {
        change(node, kind::EVENT_RECORD, |_| record_body(event))
    }

    fn cuGraphEventWaitNodeSetEvent(node: Handle, event: Handle) {
        change(node, kind::WAIT_EVENT, |_| wait_body(event))
    }

    fn cuGraphExecEventRecordNodeSetEvent(exec: Handle, node: Handle, event: Handle) {
        change_in(exec, node, kind::EVENT_RECORD, |_| record_body(event))
    }

    fn cuGraphExecEventWaitNodeSetEvent(exec: Handle, node: Handle, event: Handle) {
        change_in(exec, node, kind::WAIT_EVENT, |_| wait_body(event))
    }

    fn cuGraphAddChildGraphNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, child: Handle) {
        added(node, graph, &edges(after, In::null(), count)?, || child_body(child))
    }

    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>) {
        graph.set(child(&NODES.get(node)?.body())?)
    }

    fn cuGraphAddBatchMemOpNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<BatchParams>) {
        let params = params.get()?;
        added(node, graph, &edges(after, In::null(), count)?, || params.body())
    }

    fn cuGraphBatchMemOpNodeGetParams(node: Handle, params: Out<BatchParams>) {
        params.set(BatchParams::of(&NODES.get(node)?.body())?)
    }

    fn cuGraphBatchMemOpNodeSetParams(node: Handle, params: In<BatchParams>) {
        let params = params.get()?;
        change(node, kind::BATCH_MEM_OP, |_| params.body())
    }

    fn cuGraphExecBatchMemOpNodeSetParams(exec: Handle, node: Handle, params: In<BatchParams>) {
        let params = params.get()?;
        change_in(exec, node, kind::BATCH_MEM_OP, |_| params.body())
    }
}
