// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memcpy and memset nodes.
#![deny(unsafe_code)]

use crate::abi::{DevicePtr, Error, Handle, In, Out, R};
use crate::copy::{Copy, Copy3D, Place, Set};
use crate::export::export;
use crate::graph::add::{added, edges};
use crate::graph::model::{Body, NODES, kind};
use crate::graph::nodes::{change, change_in};
use crate::space::table::{Side, side};
use crate::work::StreamWork;

/// `CUDA_MEMSET_NODE_PARAMS_v1`; the second version adds a context.
#[repr(C)]
#[derive(Debug, Clone, std::marker::Copy)]
pub(super) struct SetParams {
    address: DevicePtr,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

impl SetParams {
    pub(super) fn body(&self) -> R<Body> {
        let set = Set {
            address: self.address,
            pitch: self.pitch as u64,
            value: self.value,
            element: self.element,
            width: self.width as u64,
            rows: self.height as u64,
        };
        set.check()?;
        Ok(Body::Work(StreamWork::Set(set)))
    }

    pub(super) fn of(body: &Body) -> R<SetParams> {
        let Body::Work(StreamWork::Set(set)) = body else {
            return Err(Error::INVALID_VALUE);
        };
        Ok(SetParams {
            address: set.address,
            pitch: set.pitch as usize,
            value: set.value,
            element: set.element,
            width: set.width as usize,
            height: set.rows as usize,
        })
    }
}

pub(super) fn copy_body(params: &Copy3D) -> R<Body> {
    Ok(Body::Work(StreamWork::Copy(params.copy()?)))
}

/// `CUDA_MEMCPY3D` as words: eleven for each end, then width, height and depth.
pub(super) type CopyWords = [u64; 25];

/// One end: x, y, z, level, kind, host, device, array, reserved, pitch, height.
fn end(place: &Place) -> [u64; 11] {
    let Place { address, pitch, height } = *place;
    let host = side(address) != Side::Device;
    let (kind, host, device) = if host { (1, address, 0) } else { (2, 0, address) };
    [0, 0, 0, 0, kind, host, device, 0, 0, pitch, height]
}

/// A copy as the API describes it. Arrays are shown as the linear memory they are here.
pub(super) fn words(body: &Body) -> R<CopyWords> {
    let Body::Work(StreamWork::Copy(Copy {
        to,
        from,
        width,
        rows,
        layers,
    })) = body
    else {
        return Err(Error::INVALID_VALUE);
    };
    let mut words = [0; 25];
    words[..11].copy_from_slice(&end(from));
    words[11..22].copy_from_slice(&end(to));
    words[22..].copy_from_slice(&[*width, *rows, *layers]);
    Ok(words)
}

export! {
    fn cuGraphAddMemcpyNode(
        node: Out<Handle>,
        graph: Handle,
        after: In<Handle>,
        count: usize,
        params: In<Copy3D>,
        context: Handle,
    ) {
        let _ = context;
        let params = params.get()?;
        added(node, graph, &edges(after, In::null(), count)?, || copy_body(&params))
    }

    fn cuGraphMemcpyNodeGetParams(node: Handle, params: Out<CopyWords>) {
        params.set(words(&NODES.get(node)?.body())?)
    }

    fn cuGraphMemcpyNodeSetParams(node: Handle, params: In<Copy3D>) {
        let params = params.get()?;
        change(node, kind::MEMCPY, |_| copy_body(&params))
    }

    fn cuGraphExecMemcpyNodeSetParams(exec: Handle, node: Handle, params: In<Copy3D>, context: Handle) {
        let _ = context;
        let params = params.get()?;
        change_in(exec, node, kind::MEMCPY, |_| copy_body(&params))
    }

    fn cuGraphAddMemsetNode(
        node: Out<Handle>,
        graph: Handle,
        after: In<Handle>,
        count: usize,
        params: In<SetParams>,
        context: Handle,
    ) {
        let _ = context;
        let params = params.get()?;
        added(node, graph, &edges(after, In::null(), count)?, || params.body())
    }

    fn cuGraphMemsetNodeGetParams(node: Handle, params: Out<SetParams>) {
        params.set(SetParams::of(&NODES.get(node)?.body())?)
    }

    fn cuGraphMemsetNodeSetParams(node: Handle, params: In<SetParams>) {
        let params = params.get()?;
        change(node, kind::MEMSET, |_| params.body())
    }

    fn cuGraphExecMemsetNodeSetParams(exec: Handle, node: Handle, params: In<SetParams>, context: Handle) {
        let _ = context;
        let params = params.get()?;
        change_in(exec, node, kind::MEMSET, |_| params.body())
    }
}
