// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated `libnvidia-ml.so.1`: NVML of the simulated device.
//!
//! JAX and vLLM look for devices here before they touch CUDA, NCCL asks about links, PyTorch's
//! expandable segments about processes. Facts about the device are constants, equal to the
//! simulated driver's. The running device is asked for memory, use and processes each time; without
//! one, all memory is free.
//!
//! | file | what |
//! |---|---|
//! | `abi.rs` | the C boundary: results, pointers, how an entry point is defined |
//! | `facts.rs` | the device's constants |
//! | `live.rs` | the device's state |
//! | `system.rs`, `device.rs`, `usage.rs` | the entry points |
//!
//! Every other name of the public header (`names.txt`) answers "not supported", as a real board
//! does for features that it lacks.

mod abi;
mod device;
mod facts;
mod live;
mod system;
mod usage;

/// The names that are answered "not supported".
mod absent {
    include!(concat!(env!("OUT_DIR"), "/absent.rs"));
}
