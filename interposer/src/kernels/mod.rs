// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels: the kernel behind a handle, and its parameters.
//!
//! Names are learnt when handles are made: code is loaded, kernels are looked up. Handles are
//! functions of modules, and library kernels, which the CUDA runtime passes as functions.
//!
//! | file | contains |
//! | --- | --- |
//! | `launch` | a launch, in the form that the hooks pass on |
//! | `identity` | the identity of a launch |
//! | `registry` | names and layouts by handle, and loaded code |
//! | `index` | the concurrent table of both |
//! | `ask` | the driver's answers for handles from calls that weft did not see |
//! | `image` | the hash of a module's image |
//! | `layouts` | offsets and sizes of kernel parameters |
//! | `images` | parameters from images, if the driver does not report them |
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod ask;
mod identity;
#[allow(unsafe_code)]
pub mod image;
#[allow(unsafe_code)]
pub mod images;
pub mod index;
pub mod launch;
#[allow(unsafe_code)]
pub mod layouts;
mod registry;

// For `index`, which `tests/memory-model` compiles with other atomics.
use std::sync::atomic;

pub use ask::text;
pub use identity::{identify, identify_shape, listen, newly_seen, symbol};
pub use registry::{HandleKind, code_kept, code_loaded, code_of, code_unloaded, function_named, named, same_function};
