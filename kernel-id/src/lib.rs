// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel identities.
//!
//! A [`KernelId`] is a launch's module image, symbol, grid, block and dynamic shared memory. The
//! image belongs to it because XLA and Triton reuse one name for different code. The shape belongs
//! to it because run times differ widely by shape.
//!
//! * [`hash`]: 64-bit numbers for identities in rings, lanes and files, equal in every process and
//!   build.
//! * [`names`]: from a number back to a [`KernelId`], bounded.
//! * [`demangle`]: readable names.
//! * [`collective`]: kernels that wait for other devices.
//!
//! Pure: no clock, file or thread. No input causes a panic, because the interposer calls this
//! inside a job.
#![forbid(unsafe_code)]

pub mod collective;
pub mod demangle;
pub mod hash;
mod id;
pub mod names;

pub use collective::is_collective;
pub use hash::{SymbolKey, graph_hash, image_hash, launch_hash};
pub use id::{KernelId, MAX_SYMBOL_BYTES};
pub use names::Names;
