// SPDX-License-Identifier: MIT OR Apache-2.0
//! The function that an elementwise kernel applies, read from the kernel's symbol.
//!
//! A functor takes some element types and gives one; its constants (a scalar operand, which
//! comparison it is) come with each launch, in the functor's own bytes.
#![forbid(unsafe_code)]

use super::symbol::Symbol;
use super::value::{Scalar, Type};

/// The operation that a functor computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FunctorOp {
    /// The constant.
    Fill,
    /// The operand, in the result's type.
    Copy,
    /// `a + alpha * b`.
    Add,
    /// `a * b`.
    Mul,
    /// The larger, or a NaN.
    Max,
    /// The smaller, or a NaN.
    Min,
    /// The second operand if the first is true, else the third.
    Where,
    /// `GE`, `GT`, `LE`, `LT` by the constant's number.
    Compare,
    /// `EQ`, `NE` by the constant's number.
    CompareEqual,
    BitAnd,
    BitOr,
    BitXor,
    BitNot,
    Neg,
    And,
    Or,
    Xor,
    Not,
}

/// The sources of the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperandSources {
    /// None, but the constant.
    Constant,
    /// One tensor.
    One,
    /// Two tensors.
    Two,
    /// Three tensors.
    Three,
    /// The constant, then a tensor.
    ConstantFirst,
    /// A tensor, then the constant.
    ConstantSecond,
}

/// A functor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Functor {
    pub(super) op: FunctorOp,
    pub(super) operands: OperandSources,
    /// Type of the operands, except the condition of [`FunctorOp::Where`].
    pub(super) of: Type,
    /// Type of the result.
    pub(super) to: Type,
    /// Bytes before the scalar operand: an inner functor's own.
    inner: usize,
}

impl Functor {
    fn new(op: FunctorOp, operands: OperandSources, of: Type, to: Type) -> Functor {
        Functor {
            op,
            operands,
            of,
            to,
            inner: 0,
        }
    }

    /// Tensors it reads.
    pub(super) fn inputs(&self) -> usize {
        match self.operands {
            OperandSources::Constant => 0,
            OperandSources::One | OperandSources::ConstantFirst | OperandSources::ConstantSecond => 1,
            OperandSources::Two => 2,
            OperandSources::Three => 3,
        }
    }

    /// Types of the result and of the tensors it reads.
    pub(super) fn types(&self) -> [Type; 4] {
        let first = if self.op == FunctorOp::Where {
            Type::Bool
        } else {
            self.of
        };
        [self.to, first, self.of, self.of]
    }

    /// Bytes that it has, and their alignment.
    pub(super) fn layout(&self) -> (usize, usize) {
        let math = self.of.opmath().size();
        match (self.op, self.operands) {
            (FunctorOp::Fill, _) => (self.of.size(), self.of.size()),
            (FunctorOp::Add, OperandSources::Two) => (math, math),
            (FunctorOp::Add, _) => (2 * math, math),
            // A lambda `{relation, scalar}` for host and device: the compiler adds a pointer to the
            // host's half.
            (FunctorOp::Compare, OperandSources::ConstantSecond) => {
                let size = self.of.size();
                ((4usize.next_multiple_of(size) + size).next_multiple_of(8) + 8, 8)
            }
            (FunctorOp::Compare | FunctorOp::CompareEqual, OperandSources::Two) => (4, 4),
            // Only that pointer.
            (FunctorOp::Where, _) => (8, 8),
            (_, OperandSources::ConstantFirst | OperandSources::ConstantSecond) => {
                let align = math.max(if self.inner == 4 { 4 } else { 1 });
                (
                    (self.inner.next_multiple_of(math) + math).next_multiple_of(align),
                    align,
                )
            }
            _ => (1, 1),
        }
    }

    /// The functor at this place of a symbol, and the rest of the symbol.
    pub(super) fn parse(symbol: Symbol<'_>) -> Option<Functor> {
        if let Some(rest) = symbol.after("NS0_11FillFunctorI") {
            let (of, _) = rest.element()?;
            return Some(Functor::new(FunctorOp::Fill, OperandSources::Constant, of, of));
        }
        for (text, operands) in [
            ("NS0_15CUDAFunctor_addI", OperandSources::Two),
            ("NS0_21CUDAFunctorOnSelf_addI", OperandSources::ConstantSecond),
            ("NS0_22CUDAFunctorOnOther_addI", OperandSources::ConstantFirst),
        ] {
            if let Some(rest) = symbol.after(text) {
                let (of, _) = rest.element()?;
                return Some(Functor::new(FunctorOp::Add, operands, of, of));
            }
        }
        for (text, operands) in [
            ("NS0_13BinaryFunctorI", OperandSources::Two),
            ("NS0_13AUnaryFunctorI", OperandSources::ConstantFirst),
            ("NS0_13BUnaryFunctorI", OperandSources::ConstantSecond),
        ] {
            if let Some(rest) = symbol.after(text) {
                return Functor::binary(rest, operands);
            }
        }
        if let Some(rest) = symbol
            .after("NS0_")
            .and_then(|rest| local_name(rest, "14CompareFunctorI"))
        {
            let (of, _) = rest.element()?;
            return Some(Functor::new(FunctorOp::Compare, OperandSources::Two, of, Type::Bool));
        }
        if let Some(rest) = symbol
            .after("ZZZNS0_")
            .and_then(|rest| local_name(rest, "17where_kernel_implE"))
        {
            let (of, rest) = last_lambda(rest)?.after("b")?.element()?;
            let (other, _) = rest.element_or(of)?;
            return (of == other).then_some(Functor::new(FunctorOp::Where, OperandSources::Three, of, of));
        }
        if let Some(rest) = symbol.after("ZNS0_21compare_scalar_kernelI") {
            let (of, _) = rest.element()?;
            return Some(Functor::new(
                FunctorOp::Compare,
                OperandSources::ConstantSecond,
                of,
                Type::Bool,
            ));
        }
        for (text, op) in [
            ("NS0_23direct_copy_kernel_cudaE", FunctorOp::Copy),
            ("NS0_23bitwise_not_kernel_cudaE", FunctorOp::BitNot),
            ("NS0_23logical_not_kernel_cudaE", FunctorOp::Not),
            ("NS0_15neg_kernel_cudaE", FunctorOp::Neg),
        ] {
            let start = symbol.0.trim_start_matches('Z');
            if start.len() < symbol.0.len()
                && let Some(rest) = Symbol(start).after(text)
            {
                let (of, rest) = last_lambda(rest)?.element()?;
                rest.after("E")?;
                let to = if op == FunctorOp::Not { Type::Bool } else { of };
                return Some(Functor::new(op, OperandSources::One, of, to));
            }
        }
        None
    }

    /// After `BinaryFunctor<`, `AUnaryFunctor<`, `BUnaryFunctor<`: two operand types, the result's,
    /// the function.
    fn binary(symbol: Symbol<'_>, operands: OperandSources) -> Option<Functor> {
        let (of, rest) = symbol.element()?;
        let (second, rest) = rest.element_or(of)?;
        let (to, rest) = rest.element_or(of)?;
        if second != of {
            return None;
        }
        let (op, inner) = if rest
            .after("NS0_")
            .and_then(|rest| local_name(rest, "16CompareEqFunctorI"))
            .is_some()
        {
            (FunctorOp::CompareEqual, 4)
        } else {
            let known = [
                ("NS0_17BitwiseAndFunctorI", FunctorOp::BitAnd),
                ("NS0_16BitwiseOrFunctorI", FunctorOp::BitOr),
                ("NS0_17BitwiseXorFunctorI", FunctorOp::BitXor),
                ("NS0_15binary_internal10MulFunctorI", FunctorOp::Mul),
                ("ZZZNS0_19maximum_kernel_cudaE", FunctorOp::Max),
                ("ZZZNS0_19minimum_kernel_cudaE", FunctorOp::Min),
                ("ZZZNS0_23logical_and_kernel_cudaE", FunctorOp::And),
                ("ZZZNS0_22logical_or_kernel_cudaE", FunctorOp::Or),
                ("ZZZNS0_23logical_xor_kernel_cudaE", FunctorOp::Xor),
            ];
            (known.into_iter().find(|(text, _)| rest.after(text).is_some())?.1, 1)
        };
        let right = match op {
            FunctorOp::CompareEqual | FunctorOp::And | FunctorOp::Or | FunctorOp::Xor => Type::Bool,
            _ => of,
        };
        (to == right).then_some(Functor {
            inner,
            ..Functor::new(op, operands, of, to)
        })
    }

    /// The constants of one launch.
    pub(super) fn constants(&self, bytes: &[u8]) -> Option<Constants> {
        let math = self.of.opmath();
        let at = |offset: usize, of: Type| Scalar::read(of, bytes.get(offset..)?);
        let relation = || bytes.first().copied();
        let none = Constants {
            scalar: Scalar::Int(0),
            alpha: Scalar::Int(1),
            relation: 0,
        };
        Some(match (self.op, self.operands) {
            (FunctorOp::Fill, _) => Constants {
                scalar: at(0, self.of)?,
                ..none
            },
            (FunctorOp::Add, OperandSources::Two) => Constants {
                alpha: at(0, math)?,
                ..none
            },
            (FunctorOp::Add, _) => Constants {
                scalar: at(0, math)?,
                alpha: at(math.size(), math)?,
                ..none
            },
            (FunctorOp::Compare, OperandSources::ConstantSecond) => Constants {
                scalar: at(4usize.next_multiple_of(self.of.size()), self.of)?,
                relation: relation()?,
                ..none
            },
            (FunctorOp::Compare | FunctorOp::CompareEqual, OperandSources::Two) => Constants {
                relation: relation()?,
                ..none
            },
            (_, OperandSources::ConstantFirst | OperandSources::ConstantSecond) => {
                let scalar = at(self.inner.next_multiple_of(math.size()), math)?;
                Constants {
                    scalar,
                    relation: relation()?,
                    ..none
                }
            }
            _ => none,
        })
    }

    /// The result for one set of operands, in the result's type.
    pub(super) fn apply(&self, constants: &Constants, operands: [Scalar; 3]) -> Scalar {
        let (a, b) = match self.operands {
            OperandSources::Constant => return constants.scalar,
            OperandSources::One | OperandSources::Two | OperandSources::Three => (operands[0], operands[1]),
            OperandSources::ConstantFirst => (constants.scalar, operands[0]),
            OperandSources::ConstantSecond => (operands[0], constants.scalar),
        };
        let truth = |value: bool| Scalar::Int(value.into());
        match self.op {
            FunctorOp::Fill | FunctorOp::Copy => a,
            FunctorOp::Add => plus(a, times(constants.alpha, b)),
            // bool * bool is a logical and, which is the product as well.
            FunctorOp::Mul => times(a, b),
            FunctorOp::Max => extreme(a, b, |order| order.is_ge()),
            FunctorOp::Min => extreme(a, b, |order| order.is_le()),
            FunctorOp::Where => {
                if a.is_true() {
                    b
                } else {
                    operands[2]
                }
            }
            FunctorOp::Compare => {
                let order = compare(a, b);
                truth(order.is_some_and(|order| match constants.relation {
                    0 => order.is_ge(),
                    1 => order.is_gt(),
                    2 => order.is_le(),
                    _ => order.is_lt(),
                }))
            }
            FunctorOp::CompareEqual => {
                truth(compare(a, b).is_some_and(|order| order.is_eq()) == (constants.relation == 0))
            }
            FunctorOp::BitAnd => bits(a, b, |a, b| a & b),
            FunctorOp::BitOr => bits(a, b, |a, b| a | b),
            FunctorOp::BitXor => bits(a, b, |a, b| a ^ b),
            FunctorOp::BitNot if self.of == Type::Bool => truth(!a.is_true()),
            FunctorOp::BitNot => bits(a, Scalar::Int(-1), |a, b| a ^ b),
            FunctorOp::Neg => times(a, Scalar::Int(-1)),
            FunctorOp::And => truth(a.is_true() && b.is_true()),
            FunctorOp::Or => truth(a.is_true() || b.is_true()),
            FunctorOp::Xor => truth(a.is_true() != b.is_true()),
            FunctorOp::Not => truth(!a.is_true()),
        }
    }
}

/// Values that come with each launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Constants {
    scalar: Scalar,
    alpha: Scalar,
    relation: u8,
}

/// The rest after `name`, which stands in an unnamed namespace of some file.
fn local_name<'a>(symbol: Symbol<'a>, name: &str) -> Option<Symbol<'a>> {
    let (length, rest) = symbol.number()?;
    let namespace = rest.0.get(..length)?;
    namespace
        .starts_with("_GLOBAL__N__")
        .then(|| Symbol(rest.0.get(length..)?).after(name))
        .flatten()
}

/// The rest after the last `Ul` (the arguments of the innermost lambda) before the kernel's own
/// arguments.
fn last_lambda(symbol: Symbol<'_>) -> Option<Symbol<'_>> {
    // Lambdas without arguments are those around it: `UlvE_`, numbered from the second on.
    let mut rest = symbol;
    loop {
        rest = rest.find("EUl")?;
        if rest.after("v").is_none() {
            return Some(rest);
        }
    }
}

fn plus(a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => Scalar::Int(a.wrapping_add(b)),
        (a, b) => Scalar::Float(a.float() + b.float()),
    }
}

fn times(a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => Scalar::Int(a.wrapping_mul(b)),
        (a, b) => Scalar::Float(a.float() * b.float()),
    }
}

fn bits(a: Scalar, b: Scalar, with: impl Fn(i128, i128) -> i128) -> Scalar {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => Scalar::Int(with(a, b)),
        (other, _) => other,
    }
}

/// `a` if `first` accepts the order of the two, else `b`; a NaN goes before everything.
fn extreme(a: Scalar, b: Scalar, first: impl Fn(std::cmp::Ordering) -> bool) -> Scalar {
    match compare(a, b) {
        Some(order) => {
            if first(order) {
                a
            } else {
                b
            }
        }
        None => {
            if a.float().is_nan() {
                a
            } else {
                b
            }
        }
    }
}

fn compare(a: Scalar, b: Scalar) -> Option<std::cmp::Ordering> {
    match (a, b) {
        (Scalar::Int(a), Scalar::Int(b)) => Some(a.cmp(&b)),
        (a, b) => a.float().partial_cmp(&b.float()),
    }
}
