//! The lambda of `elementwise_kernel`, and how it walks strided tensors.
//!
//! For `n` tensors the lambda holds, each at its alignment: the offset calculator `{int dims; {u32 divisor, m1, shift}[25]; u32
//! strides[25][n]}`, the `n` pointers, the functor, the `n` element types where types change, and the pointer to the host's half
//! that the compiler adds to a lambda for host and device. Strides are in bytes.
#![forbid(unsafe_code)]

use super::super::unsigned;

/// `OffsetCalculator::MAX_DIMS`.
const DIMENSIONS: usize = 25;
/// Bytes of an `IntDivider<unsigned>`.
const DIVIDER: usize = 12;

/// The pieces of one lambda.
pub(super) struct Lambda<'a> {
    pub(super) offsets: &'a [u8],
    pub(super) pointers: &'a [u8],
    pub(super) functor: &'a [u8],
    /// `c10::ScalarType` of each tensor, where types change.
    pub(super) types: &'a [u8],
}

impl<'a> Lambda<'a> {
    /// Takes a lambda apart; `None` where its size is not what these pieces make.
    pub(super) fn read(bytes: &'a [u8], tensors: usize, functor: (usize, usize), cast: bool) -> Option<Lambda<'a>> {
        let offsets_end = 4 + DIMENSIONS * (DIVIDER + 4 * tensors);
        let pointers_at = offsets_end.next_multiple_of(8);
        let functor_at = (pointers_at + 8 * tensors).next_multiple_of(functor.1);
        let types_at = functor_at + functor.0;
        let types_end = types_at + if cast { tensors } else { 0 };
        if bytes.len() != types_end.next_multiple_of(8) + 8 {
            return None;
        }
        Some(Lambda {
            offsets: bytes.get(..offsets_end)?,
            pointers: bytes.get(pointers_at..pointers_at + 8 * tensors)?,
            functor: bytes.get(functor_at..types_at)?,
            types: bytes.get(types_at..types_end)?,
        })
    }
}

/// Sizes and strides, innermost dimension first.
pub(super) struct Walk {
    dimensions: Vec<(u64, [u64; 4])>,
}

impl Walk {
    /// Reads an offset calculator for up to four tensors.
    pub(super) fn read(bytes: &[u8], tensors: usize) -> Option<Walk> {
        let word = |at: usize| unsigned(bytes.get(at..at + 4)?).ok();
        let count = usize::try_from(word(0)?).ok().filter(|count| *count <= DIMENSIONS)?;
        let mut dimensions = Vec::with_capacity(count);
        for n in 0..count {
            let size = word(4 + DIVIDER * n).filter(|size| *size > 0)?;
            let mut strides = [0; 4];
            for (tensor, stride) in strides.iter_mut().enumerate().take(tensors) {
                *stride = word(4 + DIVIDER * DIMENSIONS + 4 * (tensors * n + tensor))?;
            }
            dimensions.push((size, strides));
        }
        Some(Walk { dimensions })
    }

    /// The byte offset of element `n` in each tensor.
    pub(super) fn offsets(&self, mut n: u64) -> [u64; 4] {
        let mut offsets = [0u64; 4];
        for (size, strides) in &self.dimensions {
            for (offset, stride) in offsets.iter_mut().zip(strides) {
                *offset = offset.wrapping_add(n % size * stride);
            }
            n /= size;
        }
        offsets
    }
}
