//! PyTorch's kernels on whose values programs branch.
//!
//! A loop that ends on a flag on the device (text generation's stop test, a sampler's count of
//! tokens) never ends where kernels do nothing. So these are computed: fills, copies with and
//! without a change of type, comparisons, bit and truth operations, small arithmetic, ranges, and
//! reductions of them to one value. Large tensors are left alone but for fills and plain copies:
//! no program branches on them, and the job's own cores would pay (`value::is_too_large`).
//!
//! Symbols and parameter layouts are those of PyTorch 2.15 (CUDA 13.2) and 2.7 (CUDA 12.6), read
//! from their libraries with `weft-image`'s example program. A layout that differs by a byte from
//! what is expected is left alone.
#![forbid(unsafe_code)]

mod arange;
mod elementwise;
mod functor;
mod reduce;
mod strided;
mod symbol;
pub(super) mod touching;
mod value;

use std::sync::Arc;

use super::call::Compute;

/// What the kernel of this symbol computes.
pub(super) fn find(name: &str) -> Option<Arc<Compute>> {
    elementwise::find(name)
        .or_else(|| arange::find(name))
        .or_else(|| reduce::find(name))
}
