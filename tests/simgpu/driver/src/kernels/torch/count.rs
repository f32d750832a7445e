// SPDX-License-Identifier: MIT OR Apache-2.0
//! CUB's counts, which a host reads back as sizes: `torch.nonzero`, `masked_select`, `unique`, and
//! with them each `print` of a tensor.
//!
//! | kernel | its parameters | its effect here |
//! |---|---|---|
//! | `DeviceReduceSingleTileKernel` over `NonZeroOp` | items and the operation, result, number of items | the items that are not zero |
//! | `DeviceReduceKernel` over `NonZeroOp` | items and the operation, partial sums, number of items | keeps the number of items that are not zero |
//! | `DeviceReduceSingleTileKernel` over those partial sums | partial sums, result, their number | the kept number |
//! | the same over other items, of whole numbers | the same | 0 |
//! | `DeviceCompactInitKernel` | state, number of tiles, result | 0, as on a GPU |
//! | `DeviceScanKernel` over whole numbers | items, results, state, tile, operation, first value, number of items | sums up to each item; 0 for other operations |
//!
//! The memory of a count may have held anything before. Without these a host takes that for a size.
//! A tensor that is not computed has any content. Its count is still at most its number of items.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use simgpu_device::lock::lock;

use super::super::call::{Call, Compute, KernelFault, Memory, pieces, unsigned};
use super::symbol::Symbol;
use super::value::{Scalar, Type, clear, is_too_large};

/// Items of the largest tensor that is counted: the host looks at each.
const LARGEST_ELEMENTS: u64 = 64 * 1024 * 1024;

/// Counts by the address of their partial sums, from a count's first kernel to its second.
static PARTIAL: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

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
    if let Some(kernel) = symbol.find("16DeviceScanKernelI") {
        return scan(kernel);
    }
    let counted = symbol.find("9NonZeroOpI").and_then(Symbol::element).map(|(of, _)| of);
    if symbol.has("DeviceReduceKernelI") {
        let of = counted?;
        return Some(Arc::new(move |call: &Call<'_>, memory: &dyn Memory| {
            let count = not_zero(of, call, memory)?;
            lock(&PARTIAL).get_or_insert_default().insert(call.unsigned(1)?, count);
            Ok(())
        }));
    }
    let kernel = symbol.find("DeviceReduceSingleTileKernelI")?;
    let (to, _) = kernel.find("policy_hubI")?.element()?;
    (!to.is_float()).then(|| -> Arc<Compute> {
        Arc::new(move |call: &Call<'_>, memory: &dyn Memory| {
            let count = match counted {
                Some(of) => not_zero(of, call, memory)?,
                None => {
                    let items = items(call)?;
                    lock(&PARTIAL)
                        .as_mut()
                        .and_then(|kept| kept.remove(&items))
                        .unwrap_or(0)
                }
            };
            memory.write(call.unsigned(1)?, &count.to_le_bytes()[..to.size()])
        })
    })
}

/// Sums up to each item: the last one is the size of `repeat_interleave`.
fn scan(kernel: Symbol<'_>) -> Option<Arc<Compute>> {
    let (_, types) = kernel.find("10Policy")?.number()?;
    let (of, types) = types.after("EPK")?.element()?;
    let (to, _) = types.after("P")?.element()?;
    let is_sum = kernel.has("4plusI") && kernel.has("8NullType");
    let whole = !of.is_float() && !to.is_float();
    whole.then(|| -> Arc<Compute> {
        Arc::new(move |call: &Call<'_>, memory: &dyn Memory| {
            let (items, results, count) = (call.unsigned(0)?, call.unsigned(1)?, call.unsigned(6)?);
            if !is_sum || is_too_large(count, &[of]) {
                return clear(results, to, count, memory);
            }
            let mut bytes = vec![0; usize::try_from(count).map_err(|_| KernelFault::Parameters)? * of.size()];
            memory.read(items, &mut bytes)?;
            let mut sum = Scalar::Int(0);
            let mut sums = Vec::new();
            for item in bytes.chunks_exact(of.size()) {
                if let (Scalar::Int(so_far), Some(Scalar::Int(item))) = (sum, Scalar::read(of, item)) {
                    sum = Scalar::Int(so_far + item);
                }
                sums.extend(&sum.bytes(to)[..to.size()]);
            }
            memory.write(results, &sums)
        })
    })
}

/// Address of the items.
fn items(call: &Call<'_>) -> Result<u64, KernelFault> {
    unsigned(call.bytes(0)?.get(..8).ok_or(KernelFault::Parameters)?)
}

/// Number of items that are not zero; 0 if there are too many to look at.
fn not_zero(of: Type, call: &Call<'_>, memory: &dyn Memory) -> Result<u64, KernelFault> {
    let (items, count) = (items(call)?, call.unsigned(2)?);
    if count > LARGEST_ELEMENTS {
        return Ok(0);
    }
    let size = of.size();
    // A float of -0 is zero.
    let sign = if of.is_float() { 0x80 } else { 0 };
    let (mut buffer, mut found) = (Vec::new(), 0);
    pieces(count, size, |first, number| {
        buffer.resize(number * size, 0);
        memory.read(items + first * size as u64, &mut buffer)?;
        let is_not_zero = |item: &&[u8]| match item {
            [rest @ .., last] => (last & !sign) != 0 || rest.iter().any(|byte| *byte != 0),
            [] => false,
        };
        found += buffer.chunks_exact(size).filter(is_not_zero).count() as u64;
        Ok(())
    })?;
    Ok(found)
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
        let floats = NOT_ZERO.replace("NonZeroOpIb", "NonZeroOpIf");
        let values: Vec<u8> = [0.0f32, -0.0, 1.0, f32::MIN_POSITIVE]
            .iter()
            .flat_map(|one| one.to_le_bytes())
            .collect();
        assert_eq!(counted(&floats, &values, 4), 2);
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
    fn a_large_count_takes_two_kernels() {
        let memory = Bytes::new(10_100);
        memory.write(memory.base, &[0; 10_100]).unwrap();
        memory.write(memory.base + 1_000, &[1; 7_000]).unwrap();
        let (partial, result) = (
            (memory.base + 10_000).to_le_bytes(),
            (memory.base + 10_064).to_le_bytes(),
        );
        let items = [memory.base.to_le_bytes(), [0; 8]].concat();
        let first = NOT_ZERO.replace("28DeviceReduceSingleTileKernel", "18DeviceReduceKernel");
        let second = NOT_ZERO.replace("NonZeroOp", "AnotherOp");
        let count = |items: &[u8]| {
            run(&second, &[items, &result, &3u64.to_le_bytes()], &memory);
            unsigned(&memory.bytes.borrow()[10_064..10_068]).unwrap()
        };
        run(&first, &[&items, &partial, &10_000u64.to_le_bytes()], &memory);
        assert_eq!(count(&items), 0, "other items");
        assert_eq!(count(&partial), 7_000);
        assert_eq!(count(&partial), 0, "a count is kept for one kernel");
    }

    // Of PyTorch 2.15.
    const SCAN: &str = "_ZN14at_cuda_detail3cub6detail4scan16DeviceScanKernelINS2_10policy_hubIllljN4cuda3std3__44plusIvEEE10Policy1000EPKlPlNS0_13ScanTileStateIlLb1EEES9_NS0_8NullTypeEjlLb0ESH_EEvT0_T1_T2_iT3_T4_T5_";

    #[test]
    fn sums_up_to_each_item_are_computed_or_0() {
        let memory = Bytes::new(40_000);
        let items: Vec<u8> = [3i64, 1, 7].iter().flat_map(|item| item.to_le_bytes()).collect();
        memory.write(memory.base, &items).unwrap();
        let scan = |symbol: &str, count: u64| {
            let (from, to) = (memory.base.to_le_bytes(), (memory.base + 64).to_le_bytes());
            run(
                symbol,
                &[&from, &to, &[0; 8], &[0; 4], &[0], &[0], &count.to_le_bytes()],
                &memory,
            );
            let bytes = memory.bytes.borrow();
            let sums = bytes[64..].as_chunks::<8>().0[..3].iter();
            sums.map(|bytes| i64::from_le_bytes(*bytes)).collect::<Vec<i64>>()
        };
        assert_eq!(scan(SCAN, 3), [3, 4, 11]);
        assert_eq!(scan(SCAN, 4_000), [0; 3], "too many to compute");
        assert_eq!(scan(SCAN, 3), [3, 4, 11]);
        assert_eq!(scan(&SCAN.replace("4plusI", "3maxI"), 3), [0; 3]);
    }

    #[test]
    fn a_selection_begins_with_a_count_of_0() {
        let memory = Bytes::new(16);
        run(INIT, &[&[0; 8], &[1, 0, 0, 0], &memory.base.to_le_bytes()], &memory);
        assert_eq!(&memory.bytes.borrow()[..5], [0, 0, 0, 0, 0xcd]);
    }
}
