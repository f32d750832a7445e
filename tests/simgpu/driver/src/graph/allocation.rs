// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of one allocation node and its clones.
//!
//! The address is fixed when the node is made, so that later nodes can name it. The memory is also
//! taken then, once. While a graph holds the node, a free outside (`cuMemFree`, `cuMemFreeAsync`)
//! ends only the client's use of it. When the last graph that holds it is gone, the memory is given
//! back. If a launch has left it in the client's hands, it stays, and is an ordinary allocation
//! from then on.
//!
//! So a graph's memory shows as used from its making to its end. CUDA shows it from its first
//! launch.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::abi::{Error, R};
use crate::context::Context;
use crate::memory::{self, owned};
use crate::space::table::AllocationKind;
use crate::state;

/// Bytes of `CUDA_MEM_ALLOC_NODE_PARAMS` before its own fields: `CUmemPoolProps`, kept as it came.
pub(crate) const POOL_PROPERTIES: usize = 88;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocParams {
    pub(crate) pool: [u8; POOL_PROPERTIES],
    pub(crate) access: usize,
    pub(crate) access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) address: u64,
}

/// The memory of one allocation node and its clones.
pub(crate) struct NodeMemory {
    pub(crate) params: AllocParams,
}

impl NodeMemory {
    /// Takes the memory.
    pub(crate) fn new(context: &Context, mut params: AllocParams) -> R<Arc<NodeMemory>> {
        if params.bytes == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let bytes = params.bytes as u64;
        params.address = memory::take(state::driver()?, context, bytes, AllocationKind::Device)?;
        owned::add(context.device(), params.address, bytes);
        Ok(Arc::new(NodeMemory { params }))
    }
}

impl Drop for NodeMemory {
    fn drop(&mut self) {
        if !owned::remove(self.params.address)
            && let Ok(driver) = state::driver()
        {
            // Refused only if the context that it was taken in has gone, and the memory with it.
            let _ = memory::free(driver, self.params.address);
        }
    }
}
