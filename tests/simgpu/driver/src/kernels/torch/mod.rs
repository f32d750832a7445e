// SPDX-License-Identifier: MIT OR Apache-2.0
//! PyTorch's kernels on whose values programs branch.
//!
//! A loop that ends on a flag on the device (text generation's stop test, a sampler's count of
//! tokens) never ends if kernels do nothing. So these are computed: fills, copies with and without
//! a change of type, comparisons, bit and truth operations, small arithmetic, ranges, reductions of
//! them to one value, and CUB's counts. Large tensors are skipped, except by fills and plain
//! copies: no program branches on them, and the job's own cores would pay (`value::is_too_large`).
//!
//! Symbols and parameter layouts are those of PyTorch 2.15 (CUDA 13.2) and 2.7 (CUDA 12.6), read
//! from their libraries with `weft-image`'s example program. A kernel whose layout differs by a
//! byte from the expected one is not computed.
#![forbid(unsafe_code)]

mod arange;
mod count;
mod elementwise;
mod functor;
mod reduce;
mod strided;
mod symbol;
pub(super) mod touching;
mod value;

use std::sync::Arc;

use super::call::Compute;

/// The computation of the kernel with this symbol.
pub(super) fn find(name: &str) -> Option<Arc<Compute>> {
    elementwise::find(name)
        .or_else(|| arange::find(name))
        .or_else(|| reduce::find(name))
        .or_else(|| count::find(name))
}
