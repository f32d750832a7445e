// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elementwise kernels: one function, applied to each element.
//!
//! PyTorch has three families of them. `vectorized_elementwise_kernel(n, functor, pointers)` and
//! `unrolled_elementwise_kernel(n, functor, pointers, offsets, offsets, loader, storer)` walk
//! contiguous tensors; the loader and the storer of the second may change types on the way.
//! `elementwise_kernel(n, lambda)` walks strides (`strided.rs`).
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::super::call::{Call, Compute, KernelFault, Memory, pieces, unsigned};
use super::functor::{Functor, FunctorOp};
use super::strided::{Lambda, Walk};
use super::symbol::Symbol;
use super::value::{Scalar, Type, clear, is_too_large};

/// How tensors are walked, and how operands come out of memory and the result goes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Contiguous, in the functor's types.
    Vectorized,
    /// Contiguous, in the types that the loader and the storer name.
    Cast,
    /// By strides; in types that the lambda names, or in the functor's.
    Strided {
        /// Whether the lambda names types.
        cast: bool,
    },
}

/// The family of an elementwise kernel and the functor in its symbol.
pub(super) fn parse(symbol: Symbol<'_>) -> Option<(Family, Functor)> {
    if let Some(rest) = symbol.after("_ZN2at6native29vectorized_elementwise_kernelILi") {
        let (_, rest) = rest.number()?;
        return Some((Family::Vectorized, Functor::parse(rest.after("E")?)?));
    }
    if let Some(rest) = symbol.after("_ZN2at6native27unrolled_elementwise_kernelI") {
        let family = match (rest.has("12LoadWithCast"), rest.has("15LoadWithoutCast")) {
            (true, false) => Family::Cast,
            (false, true) => Family::Vectorized,
            _ => return None,
        };
        return Some((family, Functor::parse(rest)?));
    }
    let rest = symbol.after("_ZN2at6native18elementwise_kernelILi128ELi")?;
    let (_, rest) = rest.number()?;
    let rest = rest.after("EZNS0_")?;
    let (cast, rest) = match rest.after("22gpu_kernel_impl_nocastI") {
        Some(rest) => (false, rest),
        None => (true, rest.after("15gpu_kernel_implI")?),
    };
    Some((Family::Strided { cast }, Functor::parse(rest)?))
}

pub(super) fn find(name: &str) -> Option<Arc<Compute>> {
    let (family, functor) = parse(Symbol(name))?;
    Some(Arc::new(move |call: &Call<'_>, memory: &dyn Memory| match family {
        Family::Strided { cast } => strided(functor, cast, call, memory),
        family => contiguous(functor, family, call, memory),
    }))
}

/// A tensor: its address and the type of its elements.
#[derive(Debug, Clone, Copy)]
struct Tensor {
    at: u64,
    of: Type,
}

fn count(call: &Call<'_>) -> Result<u64, KernelFault> {
    u64::try_from(call.signed(0)?).map_err(|_| KernelFault::Parameters)
}

/// Result and operands, from their addresses and types.
fn tensors(pointers: &[u8], types: [Type; 4], functor: &Functor) -> Result<Vec<Tensor>, KernelFault> {
    let pointers = pointers.as_chunks::<8>().0;
    if pointers.len() != functor.inputs() + 1 {
        return Err(KernelFault::Parameters);
    }
    let tensor = |(at, of): (&[u8; 8], Type)| Tensor {
        at: u64::from_le_bytes(*at),
        of,
    };
    Ok(pointers.iter().zip(types).map(tensor).collect())
}

fn contiguous(functor: Functor, family: Family, call: &Call<'_>, memory: &dyn Memory) -> Result<(), KernelFault> {
    let (count, own) = (count(call)?, call.bytes(1)?);
    if own.len() != functor.layout().0 {
        return Err(KernelFault::Parameters);
    }
    let mut types = functor.types();
    if family == Family::Cast {
        types[0] = dynamic(call.bytes(6)?, 1)?[0];
        if functor.inputs() > 0 {
            types[1..].copy_from_slice(&dynamic(call.bytes(5)?, functor.inputs())?);
        }
    }
    let tensors = tensors(call.bytes(2)?, types, &functor)?;
    let within = functor.types();
    let constants = functor.constants(own).ok_or(KernelFault::Parameters)?;
    let result = tensors[0];
    let size = result.of.size();
    if functor.op == FunctorOp::Fill {
        let value = functor
            .apply(&constants, [Scalar::Int(0); 3])
            .cast(functor.to)
            .bytes(result.of);
        return pieces(count, size, |first, items| {
            memory.write(result.at + first * size as u64, &value[..size].repeat(items))
        });
    }
    if functor.op == FunctorOp::Copy && result.of == tensors[1].of {
        return pieces(count, size, |first, items| {
            let mut bytes = vec![0; size * items];
            memory.read(tensors[1].at + first * size as u64, &mut bytes)?;
            memory.write(result.at + first * size as u64, &bytes)
        });
    }
    if is_too_large(count, &types[..=functor.inputs()]) {
        return clear(result.at, result.of, count, memory);
    }
    pieces(count, 8, |first, items| {
        let mut columns: [Vec<Scalar>; 3] = Default::default();
        for (n, column) in columns.iter_mut().enumerate().take(functor.inputs()) {
            *column = load(tensors[n + 1], within[n + 1], first, items, memory)?;
        }
        let mut out = Vec::with_capacity(size * items);
        for item in 0..items {
            let operand = |n: usize| columns[n].get(item).copied().unwrap_or(Scalar::Int(0));
            let value = functor
                .apply(&constants, [operand(0), operand(1), operand(2)])
                .cast(functor.to);
            out.extend_from_slice(&value.bytes(result.of)[..size]);
        }
        memory.write(result.at + first * size as u64, &out)
    })
}

fn strided(functor: Functor, cast: bool, call: &Call<'_>, memory: &dyn Memory) -> Result<(), KernelFault> {
    let (count, inputs) = (count(call)?, functor.inputs());
    let lambda = Lambda::read(call.bytes(1)?, inputs + 1, functor.layout(), cast).ok_or(KernelFault::Parameters)?;
    let mut types = functor.types();
    if cast {
        for (of, number) in types.iter_mut().zip(lambda.types) {
            *of = Type::of_scalar_type(*number).ok_or(KernelFault::Parameters)?;
        }
    }
    let tensors = tensors(lambda.pointers, types, &functor)?;
    let within = functor.types();
    let constants = functor.constants(lambda.functor).ok_or(KernelFault::Parameters)?;
    if is_too_large(count, &types[..=functor.inputs()]) {
        return Ok(());
    }
    let walk = Walk::read(lambda.offsets, inputs + 1).ok_or(KernelFault::Parameters)?;
    for n in 0..count {
        let offsets = walk.offsets(n);
        let mut operands = [Scalar::Int(0); 3];
        for (at, tensor) in tensors.iter().enumerate().skip(1) {
            let shifted = Tensor {
                at: tensor.at + offsets[at],
                of: tensor.of,
            };
            operands[at - 1] = *load(shifted, within[at], 0, 1, memory)?
                .first()
                .ok_or(KernelFault::Parameters)?;
        }
        let value = functor.apply(&constants, operands).cast(functor.to);
        let result = tensors[0];
        memory.write(result.at + offsets[0], &value.bytes(result.of)[..result.of.size()])?;
    }
    Ok(())
}

/// The element types in a loader or a storer: `{ScalarType types[n]; uint32_t sizes[n]}`.
pub(super) fn dynamic(bytes: &[u8], tensors: usize) -> Result<[Type; 3], KernelFault> {
    let sizes = tensors.next_multiple_of(4);
    if bytes.len() != sizes + 4 * tensors {
        return Err(KernelFault::Parameters);
    }
    let mut types = [Type::U8; 3];
    for (n, of) in types.iter_mut().enumerate().take(tensors) {
        *of = Type::of_scalar_type(bytes[n]).ok_or(KernelFault::Parameters)?;
        if unsigned(&bytes[sizes + 4 * n..][..4])? != of.size() as u64 {
            return Err(KernelFault::Parameters);
        }
    }
    Ok(types)
}

/// Elements `first..first + items` of a tensor, as the functor's type sees them.
fn load(tensor: Tensor, to: Type, first: u64, items: usize, memory: &dyn Memory) -> Result<Vec<Scalar>, KernelFault> {
    let size = tensor.of.size();
    let mut bytes = vec![0; size * items];
    memory.read(tensor.at + first * size as u64, &mut bytes)?;
    let element = |chunk: &[u8]| Scalar::read(tensor.of, chunk).map_or(Scalar::Int(0), |value| value.cast(to));
    Ok(bytes.chunks_exact(size).map(element).collect())
}

#[cfg(test)]
mod tests;
