// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cuGraphAddNode` and its siblings: every kind of node by one struct.
//!
//! `CUgraphNodeParams` is a kind, three reserved words and a union of the kinds' own structs, 256
//! bytes in all. Each kind's struct is read or written in its place; the rest stays as it is.
#![deny(unsafe_code)]

use std::sync::Arc;

use crate::abi::{Error, Handle, In, Out, R};
use crate::capture::edge::EdgeData;
use crate::copy::Copy3D;
use crate::export::export;
use crate::graph::add::{added, edges};
use crate::graph::allocation::AllocParams;
use crate::graph::memory;
use crate::graph::model::{Body, Conditional, NODES, Node, kind};
use crate::graph::nodes::kernel::{self, Params2};
use crate::graph::nodes::other::{self, BatchParams, HostParams};
use crate::graph::nodes::transfer::{CopyWords, SetParams, copy_body, words};
use crate::graph::nodes::{change, change_in};
use crate::work::StreamWork;

/// Bytes before the union.
const UNION: usize = 16;

/// The client's `CUgraphNodeParams`.
#[derive(Debug, Clone, Copy)]
struct NodeParams(Out<u32>);

/// `CUDA_MEMCPY_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct CopyParams<T> {
    flags: i32,
    reserved: i32,
    context: Handle,
    copy: T,
}

/// `CUDA_CONDITIONAL_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ConditionalParams {
    value: u64,
    choice: u32,
    size: u32,
    bodies: usize,
    context: Handle,
}

impl NodeParams {
    fn kind(self) -> R<u32> {
        self.0.get()
    }

    /// The union as one of its members.
    fn member<T>(self) -> Out<T> {
        self.0.offset_bytes(UNION)
    }

    /// The node that they describe. Fills in the driver's answers (an address, the bodies).
    fn make(self) -> R<Body> {
        Ok(match self.kind()? {
            kind::KERNEL => self.member::<Params2>().get()?.body(Vec::new())?,
            kind::MEMCPY => copy_body(&self.member::<CopyParams<Copy3D>>().get()?.copy)?,
            kind::MEMSET => self.member::<SetParams>().get()?.body()?,
            kind::HOST => self.member::<HostParams>().get()?.body()?,
            kind::GRAPH => other::child_body(self.member::<Handle>().get()?)?,
            kind::EMPTY => Body::Work(StreamWork::Empty),
            kind::WAIT_EVENT => other::wait_body(self.member::<Handle>().get()?)?,
            kind::EVENT_RECORD => other::record_body(self.member::<Handle>().get()?)?,
            kind::MEM_ALLOC => memory::alloc_body(self.member::<AllocParams>())?,
            kind::MEM_FREE => memory::free_body(self.member::<u64>().get()?)?,
            kind::BATCH_MEM_OP => self.member::<BatchParams>().get()?.body()?,
            kind::CONDITIONAL => {
                let place = self.member::<ConditionalParams>();
                let mut params = place.get()?;
                let conditional = Conditional::new(params.value as Handle, params.choice, params.size)?;
                params.bodies = conditional.handles.as_ptr().expose_provenance();
                place.set(params)?;
                Body::Conditional(Arc::new(conditional))
            }
            _ => return Err(Error::NOT_SUPPORTED),
        })
    }

    /// New parameters for a node there is: a kernel keeps its attributes, and memory and bodies
    /// cannot change.
    fn renew(self, old: &Body) -> R<Body> {
        match self.kind()? {
            kind::KERNEL => kernel::renewed(self.member::<Params2>().get()?)(old),
            kind::MEM_ALLOC | kind::MEM_FREE | kind::CONDITIONAL => Err(Error::NOT_SUPPORTED),
            _ => self.make(),
        }
    }

    /// Writes a node's parameters.
    fn show(self, node: &Node) -> R {
        let body = node.body();
        self.0.set(body.kind())?;
        match &body {
            Body::Work(StreamWork::Kernel(_)) => self.member().set(kernel::params2(node)?),
            Body::Work(StreamWork::Copy(_)) => {
                let copy: CopyWords = words(&body)?;
                self.member().set(CopyParams {
                    flags: 0,
                    reserved: 0,
                    context: 0,
                    copy,
                })
            }
            Body::Work(StreamWork::Set(_)) => self.member().set(SetParams::of(&body)?),
            Body::Work(StreamWork::Host(_)) => self.member().set(HostParams::of(&body)?),
            Body::Work(StreamWork::MemOps(_)) | Body::Batch(..) => self.member().set(BatchParams::of(&body)?),
            Body::Work(StreamWork::Empty) => Ok(()),
            Body::Record(_) | Body::Wait(_) => self.member().set(other::event(&body)?),
            Body::Child(_) => self.member().set(other::child(&body)?),
            Body::Alloc(allocation) => self.member().set(allocation.params),
            Body::Free(address) => self.member().set(*address),
            Body::Conditional(conditional) => self.member().set(ConditionalParams {
                value: conditional.value as u64,
                choice: conditional.choice as u32,
                size: u32::try_from(conditional.bodies.len()).map_err(|_| Error::INVALID_VALUE)?,
                bodies: conditional.handles.as_ptr().expose_provenance(),
                context: 0,
            }),
        }
    }
}

export! {
    fn cuGraphAddNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: Out<u32>) {
        added(node, graph, &edges(after, In::null(), count)?, || NodeParams(params).make())
    }

    fn cuGraphAddNode_v2(
        node: Out<Handle>,
        graph: Handle,
        after: In<Handle>,
        data: In<EdgeData>,
        count: usize,
        params: Out<u32>,
    ) {
        added(node, graph, &edges(after, data, count)?, || NodeParams(params).make())
    }

    fn cuGraphNodeSetParams(node: Handle, params: Out<u32>) {
        change(node, NodeParams(params).kind()?, |old| NodeParams(params).renew(old))
    }

    fn cuGraphExecNodeSetParams(exec: Handle, node: Handle, params: Out<u32>) {
        change_in(exec, node, NodeParams(params).kind()?, |old| NodeParams(params).renew(old))
    }

    fn cuGraphNodeGetParams(node: Handle, params: Out<u32>) {
        NodeParams(params).show(&*NODES.get(node)?)
    }
}
