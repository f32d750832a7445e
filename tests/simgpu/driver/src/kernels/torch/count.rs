// SPDX-License-Identifier: MIT OR Apache-2.0
//! CUB's counts, which a host reads back as sizes: `torch.nonzero`, `masked_select`, `unique`, and
//! with them each `print` of a tensor.
//!
//! | kernel | its parameters | its effect here |
//! |---|---|---|
//! | `DeviceReduceSingleTileKernel` over `NonZeroOp` | items and the operation, result, number of items | the items that are not zero |
//! | the same over other items, of whole numbers | the same | 0 |
//! | `DeviceCompactInitKernel` | state, number of tiles, result | 0, as on a GPU |
//!
//! The memory of a count may have held anything before. Without these a host takes that for a size.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::super::call::{Call, Compute, KernelFault, Memory, unsigned};
use super::symbol::Symbol;
use super::value::{Scalar, Type, is_too_large};

pub(super) fn find(name: &str) -> Option<Arc<Compute>> {
    let symbol = Symbol(name);
    if let Some(kernel) = symbol.find("DeviceCompactInitKernelI") {
        // The last of its types is that of the result, a pointer.
        let (_, result) = kernel.0.strip_suffix("EEvT_iT0_")?.rsplit_once('P')?;
        let (to, _) = Symbol(result).element()?;
        return Some(Arc::new(move |call: &Call<'_>, memory: &dyn Memory| {
            memory.write(call.unsigned(2)?, &[0; 8][..to.size()])
        }));
    }
    let kernel = symbol.find("DeviceReduceSingleTileKernelI")?;
    let (to, _) = kernel.find("policy_hubI")?.element()?;
    let counted = kernel.find("9NonZeroOpI").and_then(Symbol::element).map(|(of, _)| of);
    (!to.is_float()).then(|| -> Arc<Compute> {
        Arc::new(move |call: &Call<'_>, memory: &dyn Memory| {
            let count = match counted {
                Some(of) => not_zero(of, call, memory)?,
                None => 0,
            };
            memory.write(call.unsigned(1)?, &count.to_le_bytes()[..to.size()])
        })
    })
}

/// Number of items that are not zero; 0 if there are too many to look at.
fn not_zero(of: Type, call: &Call<'_>, memory: &dyn Memory) -> Result<u64, KernelFault> {
    let items = unsigned(call.bytes(0)?.get(..8).ok_or(KernelFault::Parameters)?)?;
    let count = call.unsigned(2)?;
    if is_too_large(count, &[of]) {
        return Ok(0);
    }
    let mut bytes = vec![0; usize::try_from(count).map_err(|_| KernelFault::Parameters)? * of.size()];
    memory.read(items, &mut bytes)?;
    let values = bytes.chunks(of.size()).filter_map(|item| Scalar::read(of, item));
    Ok(values.filter(|value| value.is_true()).count() as u64)
}

#[cfg(test)]
mod tests {
    use weft_image::Param;

    use super::super::super::testing::Bytes;
    use super::*;

    // Of PyTorch 2.15.
    const NOT_ZERO: &str = "_ZN14at_cuda_detail3cub6detail6reduce28DeviceReduceSingleTileKernelINS2_10policy_hubIiyN4cuda3std3__44plusIvEEE10Policy1000EN6thrust38_V_300200_SM_750_800_860_900_1000_120018transform_iteratorIN2at6native43_GLOBAL__N__a7e516da_10_Nonzero_cu_cba1aaa09NonZeroOpIbEEPKbNSD_11use_defaultESM_EEPiyS9_iiNS7_8identityEEEvT0_T1_T2_T3_T4_T6_";
    const INIT: &str =
        "_ZN14at_cuda_detail3cub6detail4scan23DeviceCompactInitKernelINS0_13ScanTileStateIiLb1EEEPiEEvT_iT0_";

    /// Calls the kernel with parameters of these bytes each.
    fn run(symbol: &str, parameters: &[&[u8]], memory: &Bytes) {
        let (mut buffer, mut params) = (Vec::new(), Vec::new());
        for bytes in parameters {
            buffer.resize(buffer.len().next_multiple_of(8), 0);
            params.push(Param {
                offset: buffer.len() as u32,
                size: bytes.len() as u32,
            });
            buffer.extend(*bytes);
        }
        let call = Call {
            buffer: &buffer,
            params: &params,
        };
        find(symbol).unwrap()(&call, memory).unwrap();
    }

    fn counted(symbol: &str, flags: &[u8], count: u64) -> u64 {
        let memory = Bytes::new(64);
        memory.write(memory.base, flags).unwrap();
        let items = [memory.base.to_le_bytes(), [0; 8]].concat();
        let result = (memory.base + 32).to_le_bytes();
        run(symbol, &[&items, &result, &count.to_le_bytes()], &memory);
        let bytes = memory.bytes.borrow();
        assert_eq!(bytes[36], 0xcd, "a count of four bytes");
        unsigned(&bytes[32..36]).unwrap()
    }

    #[test]
    fn a_count_is_that_of_the_items_or_0() {
        assert_eq!(counted(NOT_ZERO, &[1, 0, 1, 1], 4), 3);
        assert_eq!(counted(NOT_ZERO, &[1, 0, 1, 1], 2), 1);
        assert_eq!(counted(NOT_ZERO, &[1], 1 << 40), 0, "too many to look at");
        // Partial sums of another kernel, and items of a type that nothing here reads.
        assert_eq!(counted(&NOT_ZERO.replace("NonZeroOpIbE", "AnotherOpIbE"), &[1], 1), 0);
        assert_eq!(
            counted(
                &NOT_ZERO.replace("NonZeroOpIbE", "NonZeroOpIN3c107complexIfEEE"),
                &[1],
                1
            ),
            0
        );
        assert!(find(&NOT_ZERO.replace("policy_hubIi", "policy_hubIf")).is_none());
    }

    #[test]
    fn a_selection_begins_with_a_count_of_0() {
        let memory = Bytes::new(16);
        run(INIT, &[&[0; 8], &[1, 0, 0, 0], &memory.base.to_le_bytes()], &memory);
        assert_eq!(&memory.bytes.borrow()[..5], [0, 0, 0, 0, 0xcd]);
    }
}
