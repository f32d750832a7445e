// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel nodes.
#![deny(unsafe_code)]

use std::sync::Arc;

use crate::abi::{Error, Handle, In, Out, R};
use crate::export::export;
use crate::graph::add::{added, edges};
use crate::graph::model::{Body, NODES, Node, kind};
use crate::graph::nodes::{change, change_in};
use crate::launch::{Attribute, GivenParams, Launch, Shape};
use crate::module::function;
use crate::work::StreamWork;

/// `CUDA_KERNEL_NODE_PARAMS_v1`, which is also the beginning of the second version.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelNodeParams {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    each: usize,
    extra: usize,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`, and `_v3`, which differs in the meaning of a null context only.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Params2 {
    first: KernelNodeParams,
    kernel: Handle,
    context: Handle,
}

impl KernelNodeParams {
    /// The launch they describe, with these attributes.
    fn body(&self, function: Handle, attributes: Vec<Attribute>) -> R<Body> {
        let function = function::of_handle(function)?;
        let shape = Shape {
            grid: self.grid,
            block: self.block,
            shared: self.shared,
        };
        let given = GivenParams::new(In::from_address(self.each), In::from_address(self.extra))?;
        Ok(Body::Work(StreamWork::Kernel(Arc::new(Launch::new(
            function, shape, given, attributes,
        )?))))
    }
}

impl Params2 {
    pub(super) fn body(&self, attributes: Vec<Attribute>) -> R<Body> {
        let function = if self.first.function != 0 {
            self.first.function
        } else {
            self.kernel
        };
        self.first.body(function, attributes)
    }
}

/// The launch of a kernel node.
fn launch(body: &Body) -> R<&Arc<Launch>> {
    match body {
        Body::Work(StreamWork::Kernel(launch)) => Ok(launch),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// The parameters that a node was made from, with addresses of the node's own copies.
fn params(node: &Node) -> R<KernelNodeParams> {
    let body = node.body();
    let launch = launch(&body)?;
    let buffer = &launch.params.buffer;
    let start = buffer.as_ptr().expose_provenance();
    let places = launch.function.params();
    let (mut each, mut extra) = (0, 0);
    if !places.is_empty() {
        each = node.show(
            launch,
            places.iter().map(|param| start + param.offset as usize).collect(),
        );
    } else if !buffer.is_empty() {
        // The image does not describe the parameters: the buffer as it was given. The place of its
        // size follows the list.
        let list = vec![1, start, 2, 0, 0, buffer.len()];
        extra = node.show(launch, list);
    }
    let Shape { grid, block, shared } = launch.shape;
    Ok(KernelNodeParams {
        function: launch.function.handle,
        grid,
        block,
        shared,
        each,
        extra,
    })
}

pub(super) fn params2(node: &Node) -> R<Params2> {
    Ok(Params2 {
        first: params(node)?,
        kernel: 0,
        context: 0,
    })
}

/// A copy of a launch with other attributes.
fn with_attributes(launch: &Launch, attributes: Vec<Attribute>) -> Body {
    Body::Work(StreamWork::Kernel(Arc::new(Launch {
        attributes,
        ..launch.clone()
    })))
}

/// New parameters for a node that keeps its attributes.
pub(super) fn renewed(params: Params2) -> impl FnOnce(&Body) -> R<Body> {
    move |old| params.body(launch(old)?.attributes.clone())
}

fn renewed1(params: KernelNodeParams) -> impl FnOnce(&Body) -> R<Body> {
    move |old| params.body(params.function, launch(old)?.attributes.clone())
}

/// Attributes that a kernel node can have are numbered below this.
const ATTRIBUTES: u32 = 64;

export! {
    fn cuGraphAddKernelNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<KernelNodeParams>) {
        let params = params.get()?;
        added(node, graph, &edges(after, In::null(), count)?, || params.body(params.function, Vec::new()))
    }

    fn cuGraphAddKernelNode_v2(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<Params2>) {
        let params = params.get()?;
        added(node, graph, &edges(after, In::null(), count)?, || params.body(Vec::new()))
    }

    fn cuGraphKernelNodeGetParams(node: Handle, out: Out<KernelNodeParams>) {
        out.set(params(&*NODES.get(node)?)?)
    }

    fn cuGraphKernelNodeGetParams_v2(node: Handle, out: Out<Params2>) {
        out.set(params2(&*NODES.get(node)?)?)
    }

    fn cuGraphKernelNodeSetParams(node: Handle, params: In<KernelNodeParams>) {
        change(node, kind::KERNEL, renewed1(params.get()?))
    }

    fn cuGraphKernelNodeSetParams_v2(node: Handle, params: In<Params2>) {
        change(node, kind::KERNEL, renewed(params.get()?))
    }

    fn cuGraphExecKernelNodeSetParams(exec: Handle, node: Handle, params: In<KernelNodeParams>) {
        change_in(exec, node, kind::KERNEL, renewed1(params.get()?))
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, params: In<Params2>) {
        change_in(exec, node, kind::KERNEL, renewed(params.get()?))
    }

    fn cuGraphKernelNodeGetAttribute(node: Handle, attribute: u32, value: Out<[u64; 8]>) {
        let body = NODES.get(node)?.body();
        let known = launch(&body)?.attributes.iter().find(|known| known.id == attribute);
        if attribute == 0 || attribute >= ATTRIBUTES {
            return Err(Error::INVALID_VALUE);
        }
        value.set(known.map_or([0; 8], |known| known.value))
    }

    fn cuGraphKernelNodeSetAttribute(node: Handle, attribute: u32, value: In<[u64; 8]>) {
        if attribute == 0 || attribute >= ATTRIBUTES {
            return Err(Error::INVALID_VALUE);
        }
        let value = value.get()?;
        change(node, kind::KERNEL, |old| {
            let launch = launch(old)?;
            let mut attributes = launch.attributes.clone();
            attributes.retain(|known| known.id != attribute);
            attributes.push(Attribute { id: attribute, value });
            Ok(with_attributes(launch, attributes))
        })
    }

    fn cuGraphKernelNodeCopyAttributes(to: Handle, from: Handle) {
        let from = NODES.get(from)?.body();
        let attributes = launch(&from)?.attributes.clone();
        change(to, kind::KERNEL, |old| Ok(with_attributes(launch(old)?, attributes)))
    }
}
