// SPDX-License-Identifier: MIT OR Apache-2.0
//! `torch.arange`: `elementwise_kernel_with_index(n, lambda {start, step}, out)`.
//!
//! The lambdas for the types are distinguished by their number in the symbol: the place of the type
//! in the source's dispatch. The sizes of start and step (`at::acc_type`) are checked against it.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::super::call::{Call, Compute, KernelFault, Memory, pieces};
use super::symbol::Symbol;
use super::value::{Scalar, Type, clear, is_too_large};

/// The types in the order of the dispatch: lambda `UlvE_`, `UlvE0_`, `UlvE1_` and so on.
const TYPES: [Type; 9] = [
    Type::U8,
    Type::I8,
    Type::I32,
    Type::I64,
    Type::I16,
    Type::F64,
    Type::F32,
    Type::Half,
    Type::BFloat16,
];

pub(super) fn find(name: &str) -> Option<Arc<Compute>> {
    let symbol = Symbol(name);
    let rest = symbol.after("_ZN")?.find("elementwise_kernel_with_indexI")?;
    // The index type.
    let rest = rest.after("i").or_else(|| rest.after("l"))?;
    let rest = rest
        .after("ZZZN2at6native15arange_cuda_outE")?
        .find("EENKUlvE_clEvENKUlvE")?;
    let (number, rest) = match rest.number() {
        Some((number, rest)) => (number + 1, rest),
        None => (0, rest),
    };
    rest.after("_clEvEUllE_")?;
    let of = *TYPES.get(number)?;
    Some(Arc::new(move |call: &Call<'_>, memory: &dyn Memory| {
        run(of, call, memory)
    }))
}

/// In which type start, step and the sum are.
fn accumulated(of: Type) -> Type {
    match of {
        Type::F64 => Type::F64,
        of if of.is_float() => Type::F32,
        _ => Type::I64,
    }
}

fn run(of: Type, call: &Call<'_>, memory: &dyn Memory) -> Result<(), KernelFault> {
    let count = u64::try_from(call.signed(0)?).map_err(|_| KernelFault::Parameters)?;
    let (lambda, out, sum) = (call.bytes(1)?, call.unsigned(2)?, accumulated(of));
    // Start, step, and the pointer to the host's half of the lambda.
    if lambda.len() != 2 * sum.size() + 8 {
        return Err(KernelFault::Parameters);
    }
    if is_too_large(count, &[of]) {
        return clear(out, of, count, memory);
    }
    let read = |at: usize| {
        lambda
            .get(at..)
            .and_then(|bytes| Scalar::read(sum, bytes))
            .ok_or(KernelFault::Parameters)
    };
    let (start, step) = (read(0)?, read(sum.size())?);
    pieces(count, of.size(), |first, items| {
        let element = |n: u64| match (start, step) {
            (Scalar::Int(start), Scalar::Int(step)) => Scalar::Int(start + step * i128::from(n)),
            #[expect(clippy::cast_precision_loss, reason = "the kernel computes in floats")]
            (start, step) => {
                let inc = Scalar::Float(step.float() * n as f64).cast(sum);
                Scalar::Float(start.float() + inc.float()).cast(sum)
            }
        };
        let bytes: Vec<u8> = (first..first + items as u64)
            .flat_map(|n| element(n).bytes(of).into_iter().take(of.size()))
            .collect();
        memory.write(out + first * of.size() as u64, &bytes)
    })
}
