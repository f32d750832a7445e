// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that PyTorch's kernels touch, if their parameters are understood: see
//! [`crate::kernels::touching`].
#![forbid(unsafe_code)]

use super::super::call::{Call, unsigned};
use super::super::operands::{Access, Used};
use super::elementwise::{self, Family};
use super::functor::Functor;
use super::strided::{Lambda, Walk};
use super::symbol::Symbol;
use super::value::Type;

/// Elements of a chunk of a list of tensors (`kChunkSize` of MultiTensorApply.cuh).
const CHUNK: u64 = 65536;

/// Most tensors of a launch, by the depth of the list: with 4 KB of parameters, with 32 KB (CUDA
/// 13), and both again for a list with scalars.
const TENSORS: [[u64; 5]; 4] = [
    [110, 64, 48, 36, 30],
    [770, 448, 336, 252, 210],
    [96, 64, 48, 36, 30],
    [672, 448, 336, 252, 210],
];

/// Most blocks of a launch, and bytes of a tensor's number, with 4 KB and with 32 KB of parameters.
const BLOCKS: [(u64, u64); 2] = [(320, 1), (2240, 2)];

/// Most runs of bytes that describe one tensor. A tensor with more counts as one run: a guess.
const MOST_RUNS: usize = 1024;

/// How a kernel uses memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TorchPattern {
    /// `(n, functor, pointers, …)`: contiguous elements, of this size if the functor does not name
    /// it. True: the loader and the storer name the types.
    Contiguous(Option<Functor>, bool, u64),
    /// `(n, lambda)`: by strides. True: the lambda names the types.
    Strided(Option<Functor>, bool, u64),
    /// `(lists of tensors, …)`.
    Lists(Lists),
    /// `(n, …)` with one pointer in a lambda: a fill with random numbers.
    Random(u64),
}

/// A kernel over lists of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lists {
    depth: u64,
    element: u64,
    /// Bytes of a scalar that comes with each tensor.
    scalar: u64,
    /// How many of the lists are read, and which one is written; `None`: all both ways.
    result: Option<(u64, u64)>,
}

/// The pattern of the kernel of this symbol.
pub(crate) fn pattern(symbol: &str) -> Option<TorchPattern> {
    let place = Symbol(symbol);
    if symbol.starts_with("_ZN2at6native29vectorized_elementwise_kernel")
        || symbol.starts_with("_ZN2at6native27unrolled_elementwise_kernel")
    {
        let (cast, functor) = match elementwise::parse(place) {
            Some((family, functor)) => (family == Family::Cast, Some(functor)),
            None => (place.has("12LoadWithCast"), None),
        };
        return Some(TorchPattern::Contiguous(functor, cast, element(place)));
    }
    if symbol.starts_with("_ZN2at6native18elementwise_kernel") {
        let (cast, functor) = match elementwise::parse(place) {
            Some((family, functor)) => (family == Family::Strided { cast: true }, Some(functor)),
            None => (false, None),
        };
        return Some(TorchPattern::Strided(functor, cast, element(place)));
    }
    if place.has("multi_tensor_apply_kernel") {
        return lists(place).map(TorchPattern::Lists);
    }
    if place.has("distribution_elementwise_grid_stride_kernel") {
        let (of, _) = place.find("distribution_elementwise_grid_stride_kernelI")?.element()?;
        return Some(TorchPattern::Random(of.size() as u64));
    }
    None
}

/// The element size that a symbol names first, in a functor's types or in a lambda's parameters; 4
/// if it names none.
fn element(symbol: Symbol<'_>) -> u64 {
    for (text, bytes) in [
        ("N3c104HalfE", 2),
        ("N3c108BFloat16E", 2),
        ("EUld", 8),
        ("EUll", 8),
        ("EUlb", 1),
        ("EUlh", 1),
    ] {
        if symbol.has(text) {
            return bytes;
        }
    }
    let of = symbol.find("FunctorI").and_then(Symbol::element);
    of.map_or(4, |(of, _)| of.size() as u64)
}

fn lists(symbol: Symbol<'_>) -> Option<Lists> {
    let scalars = symbol.find("TensorListScalarListMetadataI").and_then(Symbol::element);
    let rest = match &scalars {
        Some((_, rest)) => *rest,
        None => symbol.find("TensorListMetadataI")?,
    };
    // The fused optimizers' list also holds other values.
    if symbol.has("FusedOptimizer") {
        return None;
    }
    let (depth, rest) = rest.after("Li")?.number()?;
    let (of, rest) = rest.find("FunctorI")?.element()?;
    let result = (|| {
        let (_, rest) = rest.after("Li")?.number()?;
        let (read, rest) = rest.after("ELi")?.number()?;
        let (result, _) = rest.after("ELi")?.number()?;
        Some((read as u64, result as u64))
    })();
    (1..=5).contains(&depth).then_some(Lists {
        depth: depth as u64,
        element: of.size() as u64,
        scalar: scalars.map_or(0, |(of, _)| of.size() as u64),
        result,
    })
}

/// The parts that a launch uses, and whether they are exact; `None` if its parameters are not as
/// expected.
pub(crate) fn used(pattern: &TorchPattern, call: &Call<'_>, blocks: u64) -> Option<(Vec<Used>, bool)> {
    match pattern {
        TorchPattern::Contiguous(functor, cast, element) => contiguous(call, *functor, *cast, *element),
        TorchPattern::Strided(functor, cast, element) => strided(call, *functor, *cast, *element),
        // If no list is known to be the result, any list may be written.
        TorchPattern::Lists(lists) => Some((lists.used(call.bytes(0).ok()?, blocks)?, lists.result.is_some())),
        TorchPattern::Random(element) => {
            let count = u64::try_from(call.signed(0).ok()?).ok()?;
            let words = (2..call.params.len()).filter_map(|at| call.bytes(at).ok());
            let pointers = words.flat_map(|bytes| bytes.chunks_exact(8));
            // The caller knows the allocations and drops values that do not point to managed
            // memory.
            let used = |pointer: &[u8]| {
                Some(Used {
                    start: unsigned(pointer).ok()?,
                    bytes: count * element,
                    access: Access::Write,
                })
            };
            Some((pointers.map(used).collect::<Option<_>>()?, true))
        }
    }
}

/// PyTorch gives the result first.
fn first_is_written(at: usize) -> Access {
    if at == 0 { Access::Write } else { Access::Read }
}

/// Contiguous elements. Exact if the functor's types are known.
fn contiguous(call: &Call<'_>, functor: Option<Functor>, cast: bool, element: u64) -> Option<(Vec<Used>, bool)> {
    let count = u64::try_from(call.signed(0).ok()?).ok()?;
    let pointers = call.bytes(2).ok()?.as_chunks::<8>().0;
    let types: Option<Vec<Type>> = if cast {
        // They follow the two offset calculators, which are empty.
        let operands = pointers.len().checked_sub(1)?;
        let result = elementwise::dynamic(call.bytes(6).ok()?, 1).ok();
        let operands = match operands {
            0 => Some(Vec::new()),
            few @ 1..=3 => elementwise::dynamic(call.bytes(5).ok()?, few)
                .ok()
                .map(|types| types[..few].to_vec()),
            _ => None,
        };
        result
            .zip(operands)
            .map(|(result, operands)| [vec![result[0]], operands].concat())
    } else {
        let whole = functor.filter(|functor| functor.inputs() + 1 == pointers.len());
        whole.map(|functor| functor.types().to_vec())
    };
    let tensor = |(at, pointer): (usize, &[u8; 8])| Used {
        start: u64::from_le_bytes(*pointer),
        bytes: count
            * types
                .as_ref()
                .and_then(|types| types.get(at))
                .map_or(element, |of| of.size() as u64),
        access: first_is_written(at),
    };
    Some((pointers.iter().enumerate().map(tensor).collect(), types.is_some()))
}

/// The lambda of `elementwise_kernel`: an offset calculator for `n` tensors, then `n` pointers.
/// Exact if the functor's types are known.
fn strided(call: &Call<'_>, functor: Option<Functor>, cast: bool, element: u64) -> Option<(Vec<Used>, bool)> {
    let bytes = call.bytes(1).ok()?;
    let count = u64::try_from(call.signed(0).ok()?).ok()?;
    if let Some(functor) = functor
        && let Some(lambda) = Lambda::read(bytes, functor.inputs() + 1, functor.layout(), cast)
        && let Some(walk) = Walk::read(lambda.offsets, functor.inputs() + 1)
    {
        let mut types = functor.types();
        if cast {
            for (of, number) in types.iter_mut().zip(lambda.types) {
                *of = Type::of_scalar_type(*number)?;
            }
        }
        let mut used = Vec::new();
        let mut exact = true;
        for (at, (pointer, of)) in lambda.pointers.as_chunks::<8>().0.iter().zip(types).enumerate() {
            let (runs, whole) = walk.runs(at, of.size() as u64, MOST_RUNS);
            exact &= whole;
            used.extend(runs.iter().map(|(from, bytes)| Used {
                start: u64::from_le_bytes(*pointer) + from,
                bytes: *bytes,
                access: first_is_written(at),
            }));
        }
        return Some((used, exact && walk.elements() == count));
    }
    let walked = |tensors: usize| {
        let walk = Walk::read(bytes, tensors)?;
        let at = (4 + 25 * (12 + 4 * tensors)).next_multiple_of(8);
        let pointers = bytes.get(at..at + 8 * tensors)?.chunks_exact(8);
        let last = walk.offsets(count.checked_sub(1)?);
        let pointers: Option<Vec<u64>> = pointers.map(|pointer| unsigned(pointer).ok()).collect();
        // Each pointer stands among addresses, not among strides or small numbers.
        let pointers = pointers.filter(|all| all.iter().all(|pointer| *pointer > 1 << 32 && *pointer < 1 << 48))?;
        let tensor = |(at, start): (usize, u64)| Used {
            start,
            bytes: last[at] + element,
            access: first_is_written(at),
        };
        Some(pointers.into_iter().enumerate().map(tensor).collect())
    };
    (1..=4).rev().find_map(walked).map(|used| (used, false))
}

impl Lists {
    fn used(&self, bytes: &[u8], blocks: u64) -> Option<Vec<Used>> {
        let word = |at: u64, size: u64| unsigned(bytes.get(at as usize..(at + size) as usize)?).ok();
        let depth = self.depth;
        // The size of the parameter identifies the layout.
        let (tensors, (most, number)) = (0..2).find_map(|large| {
            let kind = if self.scalar > 0 { 2 } else { 0 } + large;
            let (tensors, (most, number)) = (TENSORS[kind][depth as usize - 1], BLOCKS[large]);
            let size = (8 * depth + 8 + self.scalar) * tensors + (number + 4) * most;
            (bytes.len() as u64).checked_sub(size).filter(|rest| *rest <= 8)?;
            Some((tensors, (most, number)))
        })?;
        let numels = 8 * depth * tensors;
        let of_block = numels + (8 + self.scalar) * tensors;
        let chunks = (of_block + number * most).next_multiple_of(4);
        let mut parts: Vec<(u64, u64, u64)> = Vec::new();
        for block in 0..blocks.min(most) {
            let tensor = word(of_block + number * block, number)?;
            let chunk = word(chunks + 4 * block, 4)?;
            if tensor >= tensors {
                return None;
            }
            let from = chunk * CHUNK;
            let to = word(numels + 8 * tensor, 8)?.min(from + CHUNK);
            match parts.last_mut() {
                Some((last, _, end)) if *last == tensor && *end == from => *end = to,
                _ => parts.push((tensor, from, to)),
            }
        }
        let mut used = Vec::new();
        for list in 0..depth {
            let access = match self.result {
                Some((_, result)) if result != list => Access::Read,
                Some((read, result)) if result >= read => Access::Write,
                _ => Access::ReadWrite,
            };
            for (tensor, from, to) in parts.iter().filter(|(_, from, to)| from < to) {
                let start = word(8 * (list * tensors + tensor), 8)?;
                used.push(Used {
                    start: start + from * self.element,
                    bytes: (to - from) * self.element,
                    access,
                });
            }
        }
        Some(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD: &str =
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EELb0EEEviT0_T1_";
    const MULTIPLY: &str = "_ZN2at6native57_GLOBAL__N__7e105b8f_24_ForeachBinaryOpScalar_cu_86b9896c25multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_21BinaryOpScalarFunctorIfLi1ELi1ELi0EEEJSt10multipliesIfEfEEEvT_T0_DpT1_";
    const SQRT: &str = "_ZN2at6native50_GLOBAL__N__637ba612_17_ForeachUnaryOp_cu_77fe623d25multi_tensor_apply_kernelINS1_18TensorListMetadataILi2EEENS1_14UnaryOpFunctorIfLi2ELi1ELi1EEEJNS0_4SqrtIfEEEEEvT_T0_DpT1_";

    #[test]
    fn elementwise_kernels_walk_their_elements() {
        let mut buffer = vec![0u8; 40];
        buffer[..4].copy_from_slice(&1000u32.to_le_bytes());
        for (at, pointer) in [0x7000_0000_0000u64, 0x7000_0010_0000, 0x7000_0000_0000]
            .iter()
            .enumerate()
        {
            buffer[16 + 8 * at..24 + 8 * at].copy_from_slice(&pointer.to_le_bytes());
        }
        let param = |offset, size| weft_image::Param { offset, size };
        let params = [param(0, 4), param(4, 8), param(16, 24)];
        let call = Call {
            buffer: &buffer,
            params: &params,
        };
        let (found, exact) = used(&pattern(ADD).unwrap(), &call, 2).unwrap();
        assert!(exact);
        let access: Vec<_> = found.iter().map(|one| (one.start, one.bytes, one.access)).collect();
        assert_eq!(
            access,
            [
                (0x7000_0000_0000, 4000, Access::Write),
                (0x7000_0010_0000, 4000, Access::Read),
                (0x7000_0000_0000, 4000, Access::Read)
            ]
        );
    }

    /// Two tensors of 100,000 and 10 elements, in three blocks; the last block is another launch's.
    fn list(depth: u64, large: usize) -> Vec<u8> {
        let (tensors, (most, number)) = (TENSORS[large][depth as usize - 1], BLOCKS[large]);
        let of_block = 8 * (depth + 1) * tensors;
        let chunks = of_block + number * most;
        let mut bytes = vec![0u8; (chunks + 4 * most + 4).next_multiple_of(8) as usize];
        let mut put = |at: u64, value: u64, size: usize| {
            bytes[at as usize..at as usize + size].copy_from_slice(&value.to_le_bytes()[..size]);
        };
        for list in 0..depth {
            put(8 * list * tensors, 0x1_0000_0000 + list * 0x1000_0000, 8);
            put(8 * (list * tensors + 1), 0x2_0000_0000 + list * 0x1000_0000, 8);
        }
        put(8 * depth * tensors, 100_000, 8);
        put(8 * (depth * tensors + 1), 10, 8);
        put(of_block + 2 * number, 1, number as usize);
        put(chunks + 4, 1, 4);
        bytes
    }

    #[test]
    fn lists_of_tensors_are_walked_block_by_block() {
        for large in [0, 1] {
            let Some(TorchPattern::Lists(lists)) = pattern(MULTIPLY) else {
                panic!("no list")
            };
            let one = |start, bytes, access| Used { start, bytes, access };
            assert_eq!(
                lists.used(&list(1, large), 3).unwrap(),
                [
                    one(0x1_0000_0000, 400_000, Access::ReadWrite),
                    one(0x2_0000_0000, 40, Access::ReadWrite)
                ]
            );
            assert_eq!(
                lists.used(&list(1, large), 1).unwrap(),
                [one(0x1_0000_0000, 4 * CHUNK, Access::ReadWrite)]
            );
            let Some(TorchPattern::Lists(lists)) = pattern(SQRT) else {
                panic!("no list")
            };
            let found = lists.used(&list(2, large), 2).unwrap();
            assert_eq!(
                found,
                [
                    one(0x1_0000_0000, 400_000, Access::Read),
                    one(0x1_1000_0000, 400_000, Access::Write)
                ]
            );
            assert_eq!(lists.used(&list(1, large), 2), None, "another depth");
        }
    }
}
