// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reduce_kernel`: sums, products, extremes, truth over dimensions, and the place of an extreme.
//!
//! The kernel's one parameter is a `ReduceOp`: the operation's own state, the identity, a
//! `ReduceConfig` of sixteen words, an offset calculator for the inputs of one output, one for
//! output and input of each output, then from the end backwards: count of results (4), flags
//! "accumulate" and "final" (1 each, 2 of padding), base index (8), semaphores, two buffers, two
//! results, source (8 each). How the device splits the work among blocks does not matter here: each
//! output is reduced in order.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::super::call::{Call, Compute, KernelFault, Memory, unsigned};
use super::strided::Walk;
use super::symbol::Symbol;
use super::value::{Scalar, Type, is_too_large};

/// The operation over all inputs of one output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReductionOp {
    Sum,
    Product,
    Mean,
    Max,
    Min,
    Any,
    All,
    ArgMax,
    ArgMin,
}

/// One kind of reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reduction {
    op: ReductionOp,
    /// Type of the inputs.
    of: Type,
    /// Type that is reduced in.
    within: Type,
    /// Type of the result.
    to: Type,
}

/// Words of a `ReduceConfig`.
const CONFIG: usize = 64;
/// Bytes of an offset calculator for one tensor, and for two.
const ONE: usize = 4 + 25 * 16;
const TWO: usize = 4 + 25 * 20;
/// Bytes from the source's address to the end.
const TAIL: usize = 64;

pub(super) fn find(name: &str) -> Option<Arc<Compute>> {
    let reduction = parse(Symbol(name))?;
    Some(Arc::new(move |call: &Call<'_>, memory: &dyn Memory| {
        run(reduction, call, memory)
    }))
}

/// `reduce_kernel<512, 1, ReduceOp<input, operation, unsigned, result, 4, n>>`.
fn parse(symbol: Symbol<'_>) -> Option<Reduction> {
    let rest = symbol.after("_ZN2at6native13reduce_kernelILi")?;
    let (_, rest) = rest.number()?;
    let (_, rest) = rest.after("ELi")?.number()?;
    let (of, rest) = rest.after("ENS0_8ReduceOpI")?.element()?;
    let operation = rest;
    // The result's type stands before the last two numbers.
    let rest = Symbol(symbol.0.strip_suffix("EEEEvT1_")?);
    let head = rest.0.rsplit_once("Li4ELi")?.0;
    let (_, to) = head.rsplit_once('j')?;
    let (to, none) = Symbol(to).element_or(of)?;
    if !none.0.is_empty() {
        return None;
    }
    if let Some(rest) = operation.after("NS0_7MeanOpsI") {
        // Input, factor, accumulated, result.
        let (_, rest) = rest.element_or(of)?;
        let (within, _) = rest.element()?;
        return Some(Reduction {
            op: ReductionOp::Mean,
            of,
            within,
            to,
        });
    }
    for (text, op) in [
        ("NS0_9ArgMaxOpsI", ReductionOp::ArgMax),
        ("NS0_9ArgMinOpsI", ReductionOp::ArgMin),
    ] {
        if let Some(rest) = operation.after(text) {
            let (within, _) = rest.element_or(of)?;
            return (to == Type::I64).then_some(Reduction { op, of, within, to });
        }
    }
    let (within, rest) = operation.after("NS0_14func_wrapper_tI")?.element_or(of)?;
    let known = [
        ("ZNS0_11sum_functorI", ReductionOp::Sum),
        ("ZNS0_12prod_functorI", ReductionOp::Product),
        ("NS0_13MaxNanFunctorI", ReductionOp::Max),
        ("NS0_13MinNanFunctorI", ReductionOp::Min),
        ("ZZZNS0_14or_kernel_cudaE", ReductionOp::Any),
        ("ZZZNS0_15and_kernel_cudaE", ReductionOp::All),
    ];
    let op = known.into_iter().find(|(text, _)| rest.after(text).is_some())?.1;
    Some(Reduction { op, of, within, to })
}

impl Reduction {
    /// Bytes before the configuration: the operation's state and the identity.
    fn head(&self) -> usize {
        let size = self.within.size();
        let identity_end = match self.op {
            // Nothing, then a value with its index.
            ReductionOp::ArgMax | ReductionOp::ArgMin => 24,
            // The factor, or nothing, which takes a byte; then a value.
            _ => 2 * size,
        };
        identity_end.next_multiple_of(4)
    }

    /// Bytes of the state carried from input to input: a value, or a value with its index.
    fn carried(&self) -> u64 {
        match self.op {
            ReductionOp::ArgMax | ReductionOp::ArgMin => 16,
            _ => self.within.size() as u64,
        }
    }

    /// Whether `b` takes the place of `a` as the extreme; a NaN does, and stays.
    fn beats(&self, b: Scalar, a: Scalar) -> bool {
        let (nan_a, nan_b) = (a.float().is_nan(), b.float().is_nan());
        match self.op {
            _ if nan_a => false,
            _ if nan_b => true,
            ReductionOp::Max | ReductionOp::ArgMax => greater(b, a),
            _ => greater(a, b),
        }
    }

    /// Reduces the inputs of one output.
    fn reduce(&self, inputs: &[Scalar], factor: Scalar) -> Option<Scalar> {
        let truth = |value: bool| Some(Scalar::Int(value.into()));
        match self.op {
            ReductionOp::Any => truth(inputs.iter().any(|input| input.is_true())),
            ReductionOp::All => truth(inputs.iter().all(|input| input.is_true())),
            ReductionOp::Sum | ReductionOp::Mean => {
                let sum = inputs.iter().fold(Scalar::Int(0).cast(self.within), |sum, input| {
                    add(sum, *input).cast(self.within)
                });
                Some(if self.op == ReductionOp::Mean {
                    Scalar::Float(sum.float() * factor.float())
                } else {
                    sum
                })
            }
            ReductionOp::Product => {
                let one = Scalar::Int(1).cast(self.within);
                Some(
                    inputs
                        .iter()
                        .fold(one, |product, input| multiply(product, *input).cast(self.within)),
                )
            }
            ReductionOp::Max | ReductionOp::Min | ReductionOp::ArgMax | ReductionOp::ArgMin => {
                let mut best = 0;
                for (at, input) in inputs.iter().enumerate() {
                    if self.beats(*input, inputs[best]) {
                        best = at;
                    }
                }
                let value = *inputs.get(best)?;
                let index = matches!(self.op, ReductionOp::ArgMax | ReductionOp::ArgMin);
                Some(if index { Scalar::Int(best as i128) } else { value })
            }
        }
    }
}

fn greater(a: Scalar, b: Scalar) -> bool {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => a > b,
        (a, b) => a.float() > b.float(),
    }
}

fn add(a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => Scalar::Int(a.wrapping_add(b)),
        (a, b) => Scalar::Float(a.float() + b.float()),
    }
}

fn multiply(a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => Scalar::Int(a.wrapping_mul(b)),
        (a, b) => Scalar::Float(a.float() * b.float()),
    }
}

fn run(reduction: Reduction, call: &Call<'_>, memory: &dyn Memory) -> Result<(), KernelFault> {
    let bytes = call.bytes(0)?;
    let head = reduction.head();
    let (inputs_at, outputs_at) = (head + CONFIG, head + CONFIG + ONE);
    let tail_at = (outputs_at + TWO).next_multiple_of(8);
    if bytes.len() != tail_at + TAIL {
        return Err(KernelFault::Parameters);
    }
    let number = |at: usize, size: usize| {
        bytes
            .get(at..at + size)
            .ok_or(KernelFault::Parameters)
            .and_then(unsigned)
    };
    let (element, inputs, outputs) = (number(head, 4)?, number(head + 4, 4)?, number(head + 8, 4)?);
    let (source, result) = (number(tail_at, 8)?, number(tail_at + 8, 8)?);
    let (accumulate, is_final, results) = (
        number(tail_at + 56, 1)?,
        number(tail_at + 57, 1)?,
        number(tail_at + 60, 4)?,
    );
    // A reduction in several launches, or with several results, is not computed.
    if element != reduction.carried() || accumulate != 0 || is_final != 1 || results != 1 {
        return Err(KernelFault::Parameters);
    }
    if is_too_large(inputs.saturating_mul(outputs), &[reduction.of]) {
        return write_zeros(
            reduction,
            &bytes[outputs_at..outputs_at + TWO],
            (outputs, result),
            memory,
        );
    }
    let each_input = Walk::read(&bytes[inputs_at..outputs_at], 1).ok_or(KernelFault::Parameters)?;
    let each_output = Walk::read(&bytes[outputs_at..outputs_at + TWO], 2).ok_or(KernelFault::Parameters)?;
    let factor = match reduction.op {
        ReductionOp::Mean => Scalar::read(reduction.within, bytes).ok_or(KernelFault::Parameters)?,
        _ => Scalar::Int(1),
    };
    let mut raw = [0; 8];
    let raw = &mut raw[..reduction.of.size()];
    for output in 0..outputs {
        let [to, from, ..] = each_output.offsets(output);
        let mut values = Vec::with_capacity(usize::try_from(inputs).unwrap_or(0));
        for input in 0..inputs {
            memory.read(source + from + each_input.offsets(input)[0], raw)?;
            values.push(
                Scalar::read(reduction.of, raw)
                    .ok_or(KernelFault::Parameters)?
                    .cast(reduction.within),
            );
        }
        let value = reduction.reduce(&values, factor).ok_or(KernelFault::Parameters)?;
        memory.write(result + to, &value.bytes(reduction.to)[..reduction.to.size()])?;
    }
    Ok(())
}

/// Sets the results of a reduction that is not computed to 0, if they are whole numbers: programs
/// read them back as counts and indices. That memory may have held anything before.
fn write_zeros(
    reduction: Reduction,
    each_output: &[u8],
    (outputs, result): (u64, u64),
    memory: &dyn Memory,
) -> Result<(), KernelFault> {
    if reduction.to.is_float() || is_too_large(outputs, &[reduction.to]) {
        return Ok(());
    }
    let each_output = Walk::read(each_output, 2).ok_or(KernelFault::Parameters)?;
    for output in 0..outputs {
        let [to, ..] = each_output.offsets(output);
        memory.write(result + to, &[0; 8][..reduction.to.size()])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use weft_image::Param;

    use super::super::super::testing::Bytes;
    use super::*;

    const SUM: &str = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIlNS0_14func_wrapper_tIlZNS0_11sum_functorIlllEclERNS_14TensorIteratorEEUlllE_EEjlLi4ELi4EEEEEvT1_";
    const ALL: &str = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIbNS0_14func_wrapper_tIbZZZNS0_15and_kernel_cudaERNS_14TensorIteratorEENKUlvE_clEvENKUlvE10_clEvEUlbbE_EEjbLi4ELi4EEEEEvT1_";
    const MAX: &str = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_14func_wrapper_tIfNS0_13MaxNanFunctorIfEEEEjfLi4ELi4EEEEEvT1_";
    const ARG_MAX: &str = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_9ArgMaxOpsIfEEjlLi4ELi4EEEEEvT1_";
    const MEAN: &str = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIffffEEjfLi4ELi4EEEEEvT1_";
    const SUM_HALF: &str = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIN3c104HalfENS0_14func_wrapper_tIfZNS0_11sum_functorIS4_ffEclERNS_14TensorIteratorEEUlffE_EEjfLi4ELi8EEEEEvT1_";

    /// One dimension: its size and the strides of each tensor.
    type Dimension<'a> = (u32, &'a [u32]);

    /// The parameter that a kernel of this symbol takes, by the layout of the cubins.
    fn op(head: &[u8], element: u32, inputs: Dimension<'_>, outputs: Dimension<'_>, from: u64, to: u64) -> Vec<u8> {
        let mut bytes = head.to_vec();
        for word in [element, inputs.0, outputs.0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.resize(head.len() + CONFIG, 0x77);
        for ((size, strides), length) in [(inputs, ONE), (outputs, TWO)] {
            let start = bytes.len();
            bytes.extend(1u32.to_le_bytes());
            bytes.extend(size.to_le_bytes());
            bytes.resize(start + 304, 0x77);
            bytes.extend(strides.iter().flat_map(|stride| stride.to_le_bytes()));
            bytes.resize(start + length, 0x77);
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0x77);
        bytes.extend(from.to_le_bytes());
        bytes.extend(to.to_le_bytes());
        bytes.extend([0; 40]);
        bytes.extend([0, 1, 0, 0, 1, 0, 0, 0]);
        bytes
    }

    fn run(symbol: &str, bytes: &[u8], memory: &Bytes) {
        let params = [Param {
            offset: 0,
            size: bytes.len() as u32,
        }];
        find(symbol).unwrap()(
            &Call {
                buffer: bytes,
                params: &params,
            },
            memory,
        )
        .unwrap();
    }

    #[test]
    fn sizes_are_those_of_the_cubins() {
        for (symbol, head, size) in [
            (SUM, 16, 1056),
            (ALL, 4, 1040),
            (MAX, 8, 1048),
            (ARG_MAX, 24, 1064),
            (MEAN, 8, 1048),
            (SUM_HALF, 8, 1048),
        ] {
            assert_eq!(parse(Symbol(symbol)).unwrap().head(), head, "{symbol}");
            assert_eq!(
                op(&vec![0; head], 8, (1, &[8]), (1, &[8, 8]), 0, 0).len(),
                size,
                "{symbol}"
            );
        }
    }

    #[test]
    fn rows_and_columns() {
        let memory = Bytes::new(128);
        let values: Vec<u8> = [3i64, 1, 7, 2, 5, 9]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        memory.write(memory.base, &values).unwrap();
        let sums = |count: usize| -> Vec<i64> {
            let bytes = memory.bytes.borrow();
            bytes[64..].as_chunks::<8>().0[..count]
                .iter()
                .map(|b| i64::from_le_bytes(*b))
                .collect()
        };
        run(
            SUM,
            &op(&[0; 16], 8, (3, &[8]), (2, &[8, 24]), memory.base, memory.base + 64),
            &memory,
        );
        assert_eq!(sums(2), [11, 16]);
        run(
            SUM,
            &op(&[0; 16], 8, (2, &[24]), (3, &[8, 8]), memory.base, memory.base + 64),
            &memory,
        );
        assert_eq!(sums(3), [5, 6, 16]);
    }

    #[test]
    fn extremes_truth_and_means() {
        let memory = Bytes::new(64);
        let values: Vec<u8> = [1f32, 4.0, 4.0, 3.0]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        memory.write(memory.base, &values).unwrap();
        let word = || u32::from_le_bytes(memory.bytes.borrow()[32..36].try_into().unwrap());
        let (from, to) = (memory.base, memory.base + 32);
        run(MAX, &op(&[0; 8], 4, (4, &[4]), (1, &[4, 4]), from, to), &memory);
        assert_eq!(f32::from_bits(word()), 4.0);
        run(ARG_MAX, &op(&[0; 24], 16, (4, &[4]), (1, &[8, 4]), from, to), &memory);
        assert_eq!(word(), 1, "the first of equals");
        run(
            ARG_MAX,
            &op(&[0; 24], 16, (1_000, &[4]), (1, &[8, 4]), from, to),
            &memory,
        );
        assert_eq!(word(), 0, "too large to compute");
        let head = [0.25f32.to_le_bytes(), [0; 4]].concat();
        run(MEAN, &op(&head, 4, (4, &[4]), (1, &[4, 4]), from, to), &memory);
        assert_eq!(f32::from_bits(word()), 3.0);
        memory.write(memory.base, &[1, 1, 0]).unwrap();
        run(ALL, &op(&[0; 4], 1, (2, &[1]), (1, &[1, 1]), from, to), &memory);
        assert_eq!(word() & 0xff, 1);
        run(ALL, &op(&[0; 4], 1, (3, &[1]), (1, &[1, 1]), from, to), &memory);
        assert_eq!(word() & 0xff, 0);
        memory
            .write(memory.base, &[0x00, 0x3c, 0x00, 0x40, 0x00, 0x3c])
            .unwrap(); // 1, 2, 1 in half precision
        run(SUM_HALF, &op(&[0; 8], 4, (3, &[2]), (1, &[4, 2]), from, to), &memory);
        assert_eq!(f32::from_bits(word()), 4.0);
    }
}
