// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which bytes a kernel touches, from its symbol, parameters and shape.
//!
//! Kernels are timed, not run, so the bytes that one would touch on hardware are derived. Sources,
//! best first:
//!
//! * PyTorch's elementwise kernels carry the number of elements and the strides. The symbol names
//!   the type. Results are written, operands read.
//! * PyTorch's lists of tensors (`multi_tensor_apply_kernel`, which optimizers run) carry, for each
//!   block, the chunk and the tensors that it works on.
//! * PyTorch's random fills carry the number of elements.
//! * The parameters of matrix products, convolutions, reductions and all others are not documented.
//!   These kernels are assumed to use whole **operands**: an operand is as large as earlier
//!   operations used it from its address on ([`Operands`]). An operand that was not used before is
//!   assumed to be the result. Its size is that of all tiles if the symbol names the tile
//!   (`sgemm_128x64`), else 16 bytes a thread.
//!
//! [`Touching::exact`] means that the parameters name these bytes and that all of them were
//! understood. The last kind is never exact. A kernel of the other kinds is not exact if it names
//! no types, or if it has more runs of bytes than are reported. Evidence made from a guess carries
//! the same mark.
#![forbid(unsafe_code)]

use super::call::{Call, unsigned};
use super::torch::touching as torch;

pub(crate) use super::operands::{Access, Operands, Used};

/// Bytes that a thread of a kernel is assumed to touch behind each of its pointers if nothing
/// better is known: as many as default kernel times assume that it reads and writes.
const BYTES_A_THREAD: u64 = 16;

/// How one kernel's launches use memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// One of PyTorch's whose parameters are understood.
    Torch(torch::TorchPattern),
    /// Whole operands; the bytes of the result that each block makes.
    Tiles(u64),
    /// Whole operands.
    Operands,
}

/// The pattern of the kernel of this symbol.
pub(crate) fn pattern(symbol: &str) -> Pattern {
    if let Some(pattern) = torch::pattern(symbol) {
        return Pattern::Torch(pattern);
    }
    tile(symbol).map_or(Pattern::Operands, Pattern::Tiles)
}

/// Bytes of the tile that each block of a matrix product makes.
fn tile(symbol: &str) -> Option<u64> {
    let products = ["gemm", "Gemm", "xmma", "cutlass"];
    if !products.iter().any(|name| symbol.contains(name)) {
        return None;
    }
    let element = match ["s1688", "s16816", "h16816", "hgemm", "hmma", "bf16", "f16", "half"] {
        halves if halves.iter().any(|name| symbol.contains(name)) => 2,
        _ if symbol.contains("dgemm") => 8,
        _ => 4,
    };
    // The first `<rows>x<columns>`.
    let mut words = symbol.split('_').filter_map(|word| {
        let (rows, rest) = word.split_once('x')?;
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        Some(rows.parse::<u64>().ok()? * rest.get(..end)?.parse::<u64>().ok()?)
    });
    words
        .next()
        .filter(|tile| (1..1 << 20).contains(tile))
        .map(|tile| tile * element)
}

/// The bytes that one launch uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Touching {
    /// In no order; they may overlap.
    pub(crate) parts: Vec<Used>,
    /// These bytes and no others, by the kernel's parameters; else a guess.
    pub(crate) exact: bool,
}

/// The bytes that a launch uses. `within` returns the bytes that are left of the allocation behind
/// an address; it covers only the memory of interest.
pub(crate) fn used(
    pattern: &Pattern,
    call: &Call<'_>,
    (blocks, threads): (u64, u64),
    operands: &mut Operands,
    within: impl Fn(u64) -> Option<u64>,
) -> Touching {
    let cut = |mut one: Used| {
        one.bytes = one.bytes.min(within(one.start)?);
        (one.bytes > 0).then_some(one)
    };
    if let Pattern::Torch(pattern) = pattern
        && let Some((found, exact)) = torch::used(pattern, call, blocks)
    {
        let parts: Vec<Used> = found.into_iter().filter_map(cut).collect();
        for one in &parts {
            operands.used(one.start, one.bytes);
        }
        return Touching { parts, exact };
    }
    let tiles = match pattern {
        Pattern::Tiles(tile) => blocks.saturating_mul(*tile),
        _ => blocks.saturating_mul(threads).saturating_mul(BYTES_A_THREAD),
    };
    // Pointers, also inside structures that are passed by value, are aligned.
    let words = call.buffer.chunks_exact(8).filter_map(|word| unsigned(word).ok());
    let mut found: Vec<Used> = Vec::new();
    for word in words {
        let Some(left) = within(word) else { continue };
        if found.iter().any(|one| one.start == word) {
            continue;
        }
        let known = operands.sizes.get(&word).copied();
        let bytes = known.unwrap_or(tiles).min(left);
        if known.is_none() && matches!(pattern, Pattern::Tiles(_)) {
            operands.used(word, bytes);
        }
        found.push(Used {
            start: word,
            bytes,
            access: Access::ReadWrite,
        });
    }
    Touching {
        parts: found,
        exact: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn within(address: u64) -> Option<u64> {
        (0x10000..0x90000).contains(&address).then(|| 0x90000 - address)
    }

    #[test]
    fn tiles_are_read_off_symbols() {
        assert_eq!(tile("ampere_sgemm_128x64_tn"), Some(128 * 64 * 4));
        assert_eq!(
            tile("_ZN7cutlass7Kernel2I42cutlass_80_simt_sgemm_128x64_8x5_nn_align1EEvNT_6ParamsE"),
            Some(128 * 64 * 4)
        );
        assert_eq!(
            tile("ampere_fp16_s16816gemm_fp16_256x128_ldg8_f2f_stages_32x3_tn"),
            Some(256 * 128 * 2)
        );
        assert_eq!(tile("ampere_sgemm"), None);
        assert_eq!(tile("vector_128x64"), None);
    }

    #[test]
    fn an_operand_is_as_large_as_it_was_used_before() {
        let mut operands = Operands::new();
        operands.used(0x10000, 5000);
        let words = buffer(&[0x10000, 7, 0x20000, 0x10000, 0x8fff0]);
        let call = Call {
            buffer: &words,
            params: &[],
        };
        let one = |start, bytes| Used {
            start,
            bytes,
            access: Access::ReadWrite,
        };
        let found = used(&Pattern::Tiles(100), &call, (3, 32), &mut operands, within);
        assert!(!found.exact);
        assert_eq!(found.parts, [one(0x10000, 5000), one(0x20000, 300), one(0x8fff0, 16)]);
        // The result is an operand from then on.
        let found = used(&Pattern::Operands, &call, (100, 32), &mut operands, within);
        assert_eq!(found.parts[1], one(0x20000, 300));
        operands.forget(0x20000, 0x1000);
        let found = used(&Pattern::Operands, &call, (1, 2), &mut operands, within);
        assert_eq!(found.parts, [one(0x10000, 5000), one(0x20000, 32), one(0x8fff0, 16)]);
    }
}
