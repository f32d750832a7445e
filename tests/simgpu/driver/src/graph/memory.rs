// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation and free nodes, made by hand or by capturing stream-ordered allocation.
//!
//! `allocation.rs` takes the memory and gives it back.
#![deny(unsafe_code)]

use std::sync::Arc;

use crate::abi::{Error, Handle, In, Out, R};
use crate::context::current;
use crate::device;
use crate::export::export;
use crate::graph::add::{added, edges};
use crate::graph::allocation::{AllocParams, NodeMemory, POOL_PROPERTIES};
use crate::graph::capture::capture_body;
use crate::graph::model::{Body, NODES};
use crate::memory::owned;
use crate::stream::Stream;

/// `cuMemAllocAsync` on a capturing stream.
pub(crate) fn capture_alloc(stream: &Arc<Stream>, bytes: u64) -> R<u64> {
    let bytes = usize::try_from(bytes).map_err(|_| Error::OUT_OF_MEMORY)?;
    let params = AllocParams {
        pool: [0; POOL_PROPERTIES],
        access: 0,
        access_count: 0,
        bytes,
        address: 0,
    };
    let allocation = NodeMemory::new(&stream.context, params)?;
    let address = allocation.params.address;
    capture_body(stream, Body::Alloc(allocation))?;
    Ok(address)
}

/// `cuMemFreeAsync` on a capturing stream: only memory that a graph allocated can be freed in a
/// graph.
pub(crate) fn capture_free(stream: &Arc<Stream>, address: u64) -> R {
    if !owned::owns(address) {
        return Err(Error::INVALID_VALUE);
    }
    capture_body(stream, Body::Free(address)).map(drop)
}

/// A node for `CUDA_MEM_ALLOC_NODE_PARAMS`; fills in the address.
pub(crate) fn alloc_body(params: Out<AllocParams>) -> R<Body> {
    let context = current::get()?;
    let allocation = NodeMemory::new(&context, params.get()?)?;
    params.set(allocation.params)?;
    Ok(Body::Alloc(allocation))
}

/// A node that frees an address of a graph's.
pub(crate) fn free_body(address: u64) -> R<Body> {
    if owned::owns(address) {
        Ok(Body::Free(address))
    } else {
        Err(Error::INVALID_VALUE)
    }
}

export! {
    fn cuGraphAddMemAllocNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: Out<AllocParams>) {
        added(node, graph, &edges(after, In::null(), count)?, || alloc_body(params))
    }

    fn cuGraphAddMemFreeNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, address: u64) {
        added(node, graph, &edges(after, In::null(), count)?, || free_body(address))
    }

    fn cuGraphMemAllocNodeGetParams(node: Handle, params: Out<AllocParams>) {
        match NODES.get(node)?.body() {
            Body::Alloc(allocation) => params.set(allocation.params),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    fn cuGraphMemFreeNodeGetParams(node: Handle, address: Out<u64>) {
        match NODES.get(node)?.body() {
            Body::Free(freed) => address.set(freed),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    fn cuDeviceGetGraphMemAttribute(device: i32, which: u32, value: Out<u64>) {
        value.set(owned::attribute(device::check(device)?, which)?)
    }

    fn cuDeviceSetGraphMemAttribute(device: i32, which: u32, value: In<u64>) {
        let device = device::check(device)?;
        // Only the high-water marks can be set, and only to zero: they start again from the present
        // use.
        if !matches!(which, 1 | 3) || value.get()? != 0 {
            return Err(Error::INVALID_VALUE);
        }
        owned::reset_high(device);
        Ok(())
    }

    fn cuDeviceGraphMemTrim(device: i32) {
        device::check(device).map(drop)
    }
}
