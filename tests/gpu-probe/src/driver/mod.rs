//! The driver as the probes use it: opened by name, no toolkit, every result checked and told with
//! the call's name.
//!
//! `api.rs` binds the C functions (a driver may lack some: that is an error of the call, not of the
//! program), `gpu.rs` gives them types that hold what they allocate, `kernels.ptx` are the probes'
//! kernels. All unsafe code of the probes that has to do with CUDA is here.

mod api;
mod cupti;
mod gpu;
mod memory;

pub use api::{CudaError, Place};
pub use cupti::Cupti;
pub use gpu::{Event, Gpu, Kernel, Part, Stream};
pub use memory::{BLOCK_BYTES, Memory};
