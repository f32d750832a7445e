// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lambda of `elementwise_kernel`, and how it walks strided tensors.
//!
//! For `n` tensors the lambda holds, each at its alignment: the offset calculator `{int dims; {u32
//! divisor, m1, shift}[25]; u32 strides[25][n]}`, the `n` pointers, the functor, the `n` element
//! types if types change, and the pointer to the host's half that the compiler adds to a lambda for
//! host and device. Strides are in bytes.
#![forbid(unsafe_code)]

use super::super::call::unsigned;

/// `OffsetCalculator::MAX_DIMS`.
const DIMENSIONS: usize = 25;
/// Bytes of an `IntDivider<unsigned>`.
const DIVIDER: usize = 12;

/// The pieces of one lambda.
pub(super) struct Lambda<'a> {
    pub(super) offsets: &'a [u8],
    pub(super) pointers: &'a [u8],
    pub(super) functor: &'a [u8],
    /// `c10::ScalarType` of each tensor, if types change.
    pub(super) types: &'a [u8],
}

impl<'a> Lambda<'a> {
    /// Takes a lambda apart; `None` if its size is not the sum of these pieces.
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

    /// How many elements it walks.
    pub(super) fn elements(&self) -> u64 {
        self.dimensions.iter().map(|(size, _)| *size).product()
    }

    /// The bytes that it walks of one tensor, with elements of this size: offset and size of each
    /// run, by offset. If there would be more than `most` runs, or if strides go back: false, and
    /// one run from the first to the last byte.
    pub(super) fn runs(&self, tensor: usize, element: u64, most: usize) -> (Vec<(u64, u64)>, bool) {
        let mut dimensions: Vec<(u64, u64)> = self
            .dimensions
            .iter()
            .map(|(size, strides)| (*size, strides[tensor]))
            .filter(|(size, stride)| *size > 1 && *stride > 0)
            .collect();
        dimensions.sort_unstable_by_key(|(_, stride)| *stride);
        let last: u64 = dimensions
            .iter()
            .map(|(size, stride)| (size - 1).saturating_mul(*stride))
            .sum();
        // From the innermost dimension out, while each dimension begins at or before the end of the
        // one before.
        let mut run = element;
        let mut outer = Vec::new();
        let mut count = 1u64;
        for (size, stride) in dimensions {
            if outer.is_empty() && stride <= run {
                run += (size - 1) * stride;
            } else {
                count = count.saturating_mul(size);
                outer.push((size, stride));
            }
        }
        if count > most as u64 || last >= 1 << 40 {
            return (vec![(0, last.saturating_add(element))], false);
        }
        let mut starts = vec![0u64];
        for (size, stride) in outer {
            starts = (0..size)
                .flat_map(|n| starts.iter().map(move |start| start + n * stride))
                .collect();
        }
        starts.sort_unstable();
        (starts.into_iter().map(|start| (start, run)).collect(), true)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(dimensions: &[(u64, u64)], element: u64, most: usize) -> (Vec<(u64, u64)>, bool) {
        let dimensions = dimensions
            .iter()
            .map(|(size, stride)| (*size, [*stride, 0, 0, 0]))
            .collect();
        Walk { dimensions }.runs(0, element, most)
    }

    #[test]
    fn strides_are_runs_of_bytes() {
        assert_eq!(runs(&[(10, 4), (3, 40)], 4, 9), (vec![(0, 120)], true), "contiguous");
        assert_eq!(runs(&[(3, 40), (10, 4)], 4, 9), (vec![(0, 120)], true), "transposed");
        assert_eq!(
            runs(&[(10, 4), (3, 100)], 4, 9),
            (vec![(0, 40), (100, 40), (200, 40)], true),
            "rows"
        );
        assert_eq!(
            runs(&[(10, 0), (1, 7)], 4, 9),
            (vec![(0, 4)], true),
            "one element for all"
        );
        assert_eq!(runs(&[(10, 8)], 4, 9), (vec![(0, 76)], false), "more than are wanted");
    }
}
