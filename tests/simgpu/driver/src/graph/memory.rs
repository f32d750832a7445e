//! Memory that belongs to graphs: allocation and free nodes, made by hand or by capturing
//! stream-ordered allocation.
//!
//! The address is fixed when the node is made, so that later nodes can name it; here the memory is
//! taken then too, once. While a graph holds the node, freeing the address outside (`cuMemFree`,
//! `cuMemFreeAsync`) ends the client's use of it and no more. When the last graph that holds it is
//! gone the memory is given back, unless a launch has left it in the client's hands: then it is an
//! ordinary allocation from then on. So a graph's memory shows as used from its making to its end,
//! where CUDA shows it from its first launch.
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, In, Out, R};
use crate::context::{Context, current};
use crate::export::export;
use crate::graph::body::Body;
use crate::graph::capture::capture_body;
use crate::graph::model::NODES;
use crate::graph::{added, edges};
use crate::memory;
use crate::space::table::Kind;
use crate::state::{self, Driver};
use crate::stream::Stream;

/// Bytes of `CUDA_MEM_ALLOC_NODE_PARAMS` before its own fields: `CUmemPoolProps`, kept as it came.
const POOL_PROPERTIES: usize = 88;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocParams {
    pool: [u8; POOL_PROPERTIES],
    access: usize,
    access_count: usize,
    bytes: usize,
    pub(crate) address: u64,
}

/// The memory of one allocation node and its clones.
pub(crate) struct Allocation {
    pub(crate) params: AllocParams,
}

/// One of the graphs' allocations.
struct Owned {
    bytes: u64,
    /// A launch has made it the client's, and nobody has freed it since.
    in_use: bool,
}

/// Graphs' memory by address.
static OWNED: Mutex<BTreeMap<u64, Owned>> = Mutex::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// `CU_GRAPH_MEM_ATTR_USED_MEM_HIGH` and `CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH`.
static HIGH: AtomicU64 = AtomicU64::new(0);

fn total(owned: &BTreeMap<u64, Owned>) -> u64 {
    owned.values().map(|owned| owned.bytes).sum()
}

impl Allocation {
    /// Takes the memory.
    fn new(context: &Context, mut params: AllocParams) -> R<Arc<Allocation>> {
        if params.bytes == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let bytes = params.bytes as u64;
        params.address = memory::take(state::driver()?, context, bytes, Kind::Device)?;
        let mut owned = lock(&OWNED);
        owned.insert(params.address, Owned { bytes, in_use: false });
        COUNT.store(owned.len(), Ordering::Release);
        HIGH.fetch_max(total(&owned), Ordering::Relaxed);
        Ok(Arc::new(Allocation { params }))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut owned = lock(&OWNED);
        let left = owned.remove(&self.params.address);
        COUNT.store(owned.len(), Ordering::Release);
        drop(owned);
        if !left.is_some_and(|left| left.in_use)
            && let Ok(driver) = state::driver()
        {
            // Refused only where the context that it was taken in has gone, and the memory with it.
            let _ = memory::free(driver, self.params.address);
        }
    }
}

/// A launch came to an allocation node (`in_use`) or to a free node, or the client frees the
/// address. Says whether the address is a graph's: freeing it is over with that.
fn mark(address: u64, in_use: bool) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 {
        return false;
    }
    let mut owned = lock(&OWNED);
    let found = owned.get_mut(&address);
    if let Some(owned) = found {
        owned.in_use = in_use;
        return true;
    }
    false
}

/// A launch makes a graph's memory the client's.
pub(crate) fn begins(allocation: &Allocation) {
    mark(allocation.params.address, true);
}

/// A client's free, or a free node: ends the use of a graph's memory, and says whether it was
/// one's.
#[inline]
pub(crate) fn ends(address: u64) -> bool {
    mark(address, false)
}

fn owns(address: u64) -> bool {
    COUNT.load(Ordering::Acquire) != 0 && lock(&OWNED).contains_key(&address)
}

/// `cuMemAllocAsync` on a capturing stream.
pub(crate) fn capture_alloc(_driver: &Driver, stream: &Arc<Stream>, bytes: u64) -> R<u64> {
    let bytes = usize::try_from(bytes).map_err(|_| Error::OUT_OF_MEMORY)?;
    let params = AllocParams {
        pool: [0; POOL_PROPERTIES],
        access: 0,
        access_count: 0,
        bytes,
        address: 0,
    };
    let allocation = Allocation::new(&stream.context, params)?;
    let address = allocation.params.address;
    capture_body(stream, Body::Alloc(allocation))?;
    Ok(address)
}

/// `cuMemFreeAsync` on a capturing stream: only what a graph allocated can be freed in a graph.
pub(crate) fn capture_free(_driver: &Driver, stream: &Arc<Stream>, address: u64) -> R {
    if !owns(address) {
        return Err(Error::INVALID_VALUE);
    }
    capture_body(stream, Body::Free(address)).map(drop)
}

/// A node for `CUDA_MEM_ALLOC_NODE_PARAMS`; fills in the address.
pub(crate) fn alloc_body(params: Out<AllocParams>) -> R<Body> {
    let context = current::get()?;
    let allocation = Allocation::new(&context, params.get()?)?;
    params.set(allocation.params)?;
    Ok(Body::Alloc(allocation))
}

/// A node that frees an address of a graph's.
pub(crate) fn free_body(address: u64) -> R<Body> {
    if owns(address) {
        Ok(Body::Free(address))
    } else {
        Err(Error::INVALID_VALUE)
    }
}

/// `CUgraphMem_attribute`: used, used at most, reserved, reserved at most.
fn attribute(attribute: u32) -> R<u64> {
    match attribute {
        0 | 2 => Ok(total(&lock(&OWNED))),
        1 | 3 => Ok(HIGH.load(Ordering::Relaxed)),
        _ => Err(Error::INVALID_VALUE),
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
        crate::device::check(device)?;
        value.set(attribute(which)?)
    }

    fn cuDeviceSetGraphMemAttribute(device: i32, which: u32, value: In<u64>) {
        crate::device::check(device)?;
        // Only the high-water marks can be set, and only to zero: they start again from what there
        // is.
        if !matches!(which, 1 | 3) || value.get()? != 0 {
            return Err(Error::INVALID_VALUE);
        }
        HIGH.store(total(&lock(&OWNED)), Ordering::Relaxed);
        Ok(())
    }

    fn cuDeviceGraphMemTrim(device: i32) {
        crate::device::check(device).map(drop)
    }
}
