// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver as the probes use it: opened by name, without a toolkit, every result checked. An
//! error names the call.
//!
//! `api.rs` binds the C functions (a missing one is an error of its call), `gpu.rs` gives them
//! types that own their allocations, `kernels.ptx` are the probes' kernels. All unsafe code about
//! CUDA is here.

mod api;
mod cupti;
mod gpu;
mod memory;
mod vmm;

pub use api::{CudaError, MemoryLocation};
pub use cupti::Cupti;
pub use gpu::{Event, Gpu, Kernel, Part, Stream};
pub use memory::{BLOCK_BYTES, Memory};
pub use vmm::Reserved;
