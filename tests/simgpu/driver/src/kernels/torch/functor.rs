// SPDX-License-Identifier: MIT OR Apache-2.0
//! The function that an elementwise kernel applies, read from the kernel's symbol.
//!
//! A functor takes some element types and gives one; its constants (a scalar operand, which
//! comparison it is) come with each launch, in the functor's own bytes.
#![forbid(unsafe_code)]

use super::symbol::Symbol;
use super::value::{Type, Value};

/// The operation that a functor computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
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
pub(crate) enum Operands {
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
    pub(super) op: Op,
    pub(super) operands: Operands,
    /// Type of the operands, except the condition of [`Op::Where`].
    pub(super) of: Type,
    /// Type of the result.
    pub(super) to: Type,
    /// Bytes before the scalar operand: an inner functor's own.
    inner: usize,
}

impl Functor {
    fn new(op: Op, operands: Operands, of: Type, to: Type) -> Functor {
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
            Operands::Constant => 0,
            Operands::One | Operands::ConstantFirst | Operands::ConstantSecond => 1,
            Operands::Two => 2,
            Operands::Three => 3,
        }
    }

    /// Types of the result and of the tensors it reads.
    pub(super) fn types(&self) -> [Type; 4] {
        let first = if self.op == Op::Where { Type::Bool } else { self.of };
        [self.to, first, self.of, self.of]
    }

    /// Bytes that it has, and their alignment.
    pub(super) fn layout(&self) -> (usize, usize) {
        let math = self.of.opmath().size();
        match (self.op, self.operands) {
            (Op::Fill, _) => (self.of.size(), self.of.size()),
            (Op::Add, Operands::Two) => (math, math),
            (Op::Add, _) => (2 * math, math),
            // A lambda `{relation, scalar}` for host and device: the compiler adds a pointer to the
            // host's half.
            (Op::Compare, Operands::ConstantSecond) => {
                let size = self.of.size();
                ((4usize.next_multiple_of(size) + size).next_multiple_of(8) + 8, 8)
            }
            (Op::Compare | Op::CompareEqual, Operands::Two) => (4, 4),
            // Only that pointer.
            (Op::Where, _) => (8, 8),
            (_, Operands::ConstantFirst | Operands::ConstantSecond) => {
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
            return Some(Functor::new(Op::Fill, Operands::Constant, of, of));
        }
        for (text, operands) in [
            ("NS0_15CUDAFunctor_addI", Operands::Two),
            ("NS0_21CUDAFunctorOnSelf_addI", Operands::ConstantSecond),
            ("NS0_22CUDAFunctorOnOther_addI", Operands::ConstantFirst),
        ] {
            if let Some(rest) = symbol.after(text) {
                let (of, _) = rest.element()?;
                return Some(Functor::new(Op::Add, operands, of, of));
            }
        }
        for (text, operands) in [
            ("NS0_13BinaryFunctorI", Operands::Two),
            ("NS0_13AUnaryFunctorI", Operands::ConstantFirst),
            ("NS0_13BUnaryFunctorI", Operands::ConstantSecond),
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
            return Some(Functor::new(Op::Compare, Operands::Two, of, Type::Bool));
        }
        if let Some(rest) = symbol
            .after("ZZZNS0_")
            .and_then(|rest| local_name(rest, "17where_kernel_implE"))
        {
            let (of, rest) = last_lambda(rest)?.after("b")?.element()?;
            let (other, _) = rest.element_or(of)?;
            return (of == other).then_some(Functor::new(Op::Where, Operands::Three, of, of));
        }
        if let Some(rest) = symbol.after("ZNS0_21compare_scalar_kernelI") {
            let (of, _) = rest.element()?;
            return Some(Functor::new(Op::Compare, Operands::ConstantSecond, of, Type::Bool));
        }
        for (text, op) in [
            ("NS0_23direct_copy_kernel_cudaE", Op::Copy),
            ("NS0_23bitwise_not_kernel_cudaE", Op::BitNot),
            ("NS0_23logical_not_kernel_cudaE", Op::Not),
            ("NS0_15neg_kernel_cudaE", Op::Neg),
        ] {
            let start = symbol.0.trim_start_matches('Z');
            if start.len() < symbol.0.len()
                && let Some(rest) = Symbol(start).after(text)
            {
                let (of, rest) = last_lambda(rest)?.element()?;
                rest.after("E")?;
                let to = if op == Op::Not { Type::Bool } else { of };
                return Some(Functor::new(op, Operands::One, of, to));
            }
        }
        None
    }

    /// After `BinaryFunctor<`, `AUnaryFunctor<`, `BUnaryFunctor<`: two operand types, the result's,
    /// the function.
    fn binary(symbol: Symbol<'_>, operands: Operands) -> Option<Functor> {
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
            (Op::CompareEqual, 4)
        } else {
            let known = [
                ("NS0_17BitwiseAndFunctorI", Op::BitAnd),
                ("NS0_16BitwiseOrFunctorI", Op::BitOr),
                ("NS0_17BitwiseXorFunctorI", Op::BitXor),
                ("NS0_15binary_internal10MulFunctorI", Op::Mul),
                ("ZZZNS0_19maximum_kernel_cudaE", Op::Max),
                ("ZZZNS0_19minimum_kernel_cudaE", Op::Min),
                ("ZZZNS0_23logical_and_kernel_cudaE", Op::And),
                ("ZZZNS0_22logical_or_kernel_cudaE", Op::Or),
                ("ZZZNS0_23logical_xor_kernel_cudaE", Op::Xor),
            ];
            (known.into_iter().find(|(text, _)| rest.after(text).is_some())?.1, 1)
        };
        let right = match op {
            Op::CompareEqual | Op::And | Op::Or | Op::Xor => Type::Bool,
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
        let at = |offset: usize, of: Type| Value::read(of, bytes.get(offset..)?);
        let relation = || bytes.first().copied();
        let none = Constants {
            scalar: Value::Int(0),
            alpha: Value::Int(1),
            relation: 0,
        };
        Some(match (self.op, self.operands) {
            (Op::Fill, _) => Constants {
                scalar: at(0, self.of)?,
                ..none
            },
            (Op::Add, Operands::Two) => Constants {
                alpha: at(0, math)?,
                ..none
            },
            (Op::Add, _) => Constants {
                scalar: at(0, math)?,
                alpha: at(math.size(), math)?,
                ..none
            },
            (Op::Compare, Operands::ConstantSecond) => Constants {
                scalar: at(4usize.next_multiple_of(self.of.size()), self.of)?,
                relation: relation()?,
                ..none
            },
            (Op::Compare | Op::CompareEqual, Operands::Two) => Constants {
                relation: relation()?,
                ..none
            },
            (_, Operands::ConstantFirst | Operands::ConstantSecond) => {
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
    pub(super) fn apply(&self, constants: &Constants, operands: [Value; 3]) -> Value {
        let (a, b) = match self.operands {
            Operands::Constant => return constants.scalar,
            Operands::One | Operands::Two | Operands::Three => (operands[0], operands[1]),
            Operands::ConstantFirst => (constants.scalar, operands[0]),
            Operands::ConstantSecond => (operands[0], constants.scalar),
        };
        let truth = |value: bool| Value::Int(value.into());
        match self.op {
            Op::Fill | Op::Copy => a,
            Op::Add => plus(a, times(constants.alpha, b)),
            // bool * bool is a logical and, which is the product as well.
            Op::Mul => times(a, b),
            Op::Max => extreme(a, b, |order| order.is_ge()),
            Op::Min => extreme(a, b, |order| order.is_le()),
            Op::Where => {
                if a.is_true() {
                    b
                } else {
                    operands[2]
                }
            }
            Op::Compare => {
                let order = compare(a, b);
                truth(order.is_some_and(|order| match constants.relation {
                    0 => order.is_ge(),
                    1 => order.is_gt(),
                    2 => order.is_le(),
                    _ => order.is_lt(),
                }))
            }
            Op::CompareEqual => truth(compare(a, b).is_some_and(|order| order.is_eq()) == (constants.relation == 0)),
            Op::BitAnd => bits(a, b, |a, b| a & b),
            Op::BitOr => bits(a, b, |a, b| a | b),
            Op::BitXor => bits(a, b, |a, b| a ^ b),
            Op::BitNot if self.of == Type::Bool => truth(!a.is_true()),
            Op::BitNot => bits(a, Value::Int(-1), |a, b| a ^ b),
            Op::Neg => times(a, Value::Int(-1)),
            Op::And => truth(a.is_true() && b.is_true()),
            Op::Or => truth(a.is_true() || b.is_true()),
            Op::Xor => truth(a.is_true() != b.is_true()),
            Op::Not => truth(!a.is_true()),
        }
    }
}

/// Values that come with each launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Constants {
    scalar: Value,
    alpha: Value,
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

fn plus(a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.wrapping_add(b)),
        (a, b) => Value::Float(a.float() + b.float()),
    }
}

fn times(a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.wrapping_mul(b)),
        (a, b) => Value::Float(a.float() * b.float()),
    }
}

fn bits(a: Value, b: Value, with: impl Fn(i128, i128) -> i128) -> Value {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Value::Int(with(a, b)),
        (other, _) => other,
    }
}

/// `a` if `first` accepts the order of the two, else `b`; a NaN goes before everything.
fn extreme(a: Value, b: Value, first: impl Fn(std::cmp::Ordering) -> bool) -> Value {
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

fn compare(a: Value, b: Value) -> Option<std::cmp::Ordering> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(&b)),
        (a, b) => a.float().partial_cmp(&b.float()),
    }
}
