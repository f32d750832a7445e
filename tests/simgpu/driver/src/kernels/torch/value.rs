// SPDX-License-Identifier: MIT OR Apache-2.0
//! Element types and single values of PyTorch tensors, and how values change type.
//!
//! Conversions are those of C++ on the device for values that fit. A conversion that C++ leaves
//! undefined (a float too large for an integer) saturates here.
#![forbid(unsafe_code)]

use super::super::call::{KernelFault, Memory, pieces};

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    U8,
    I8,
    I16,
    I32,
    I64,
    U16,
    U32,
    U64,
    Half,
    BFloat16,
    F32,
    F64,
    Bool,
}

impl Type {
    /// The type that a C++ symbol's builtin type code means.
    pub(super) fn of_code(code: u8) -> Option<Type> {
        Some(match code {
            b'h' => Type::U8,
            b'a' => Type::I8,
            b's' => Type::I16,
            b'i' => Type::I32,
            b'l' => Type::I64,
            b't' => Type::U16,
            b'j' => Type::U32,
            b'm' => Type::U64,
            b'f' => Type::F32,
            b'd' => Type::F64,
            b'b' => Type::Bool,
            _ => return None,
        })
    }

    /// The type that a `c10::ScalarType` means.
    pub(super) fn of_scalar_type(number: u8) -> Option<Type> {
        Some(match number {
            0 => Type::U8,
            1 => Type::I8,
            2 => Type::I16,
            3 => Type::I32,
            4 => Type::I64,
            5 => Type::Half,
            6 => Type::F32,
            7 => Type::F64,
            11 => Type::Bool,
            15 => Type::BFloat16,
            27 => Type::U16,
            28 => Type::U32,
            29 => Type::U64,
            _ => return None,
        })
    }

    /// Bytes of one element.
    pub(super) fn size(self) -> usize {
        match self {
            Type::U8 | Type::I8 | Type::Bool => 1,
            Type::I16 | Type::U16 | Type::Half | Type::BFloat16 => 2,
            Type::I32 | Type::U32 | Type::F32 => 4,
            Type::I64 | Type::U64 | Type::F64 => 8,
        }
    }

    /// The type in which a functor keeps its constants and computes (`at::opmath_type`).
    pub(super) fn opmath(self) -> Type {
        match self {
            Type::Half | Type::BFloat16 => Type::F32,
            other => other,
        }
    }

    /// Does it hold fractions?
    pub(super) fn is_float(self) -> bool {
        matches!(self, Type::Half | Type::BFloat16 | Type::F32 | Type::F64)
    }
}

/// One value, of any type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scalar {
    /// Every integer type and bool: 64-bit unsigned numbers need the room.
    Int(i128),
    /// Every float type.
    Float(f64),
}

impl Scalar {
    /// The value in an element's bytes.
    pub(super) fn read(of: Type, bytes: &[u8]) -> Option<Scalar> {
        let mut raw = [0; 8];
        raw.get_mut(..of.size())?.copy_from_slice(bytes.get(..of.size())?);
        let [a, b, c, d, ..] = raw;
        let word = u32::from_le_bytes([a, b, c, d]);
        let half = u16::from_le_bytes([a, b]);
        Some(match of {
            Type::U8 => Scalar::Int(a.into()),
            Type::I8 => Scalar::Int(a.cast_signed().into()),
            Type::Bool => Scalar::Int((a != 0).into()),
            Type::I16 => Scalar::Int(half.cast_signed().into()),
            Type::U16 => Scalar::Int(half.into()),
            Type::I32 => Scalar::Int(word.cast_signed().into()),
            Type::U32 => Scalar::Int(word.into()),
            Type::I64 => Scalar::Int(i64::from_le_bytes(raw).into()),
            Type::U64 => Scalar::Int(u64::from_le_bytes(raw).into()),
            Type::F32 => Scalar::Float(f32::from_bits(word).into()),
            Type::F64 => Scalar::Float(f64::from_le_bytes(raw)),
            Type::BFloat16 => Scalar::Float(f32::from_bits(u32::from(half) << 16).into()),
            Type::Half => Scalar::Float(half_value(half)),
        })
    }

    /// The bytes of an element of this value; integers that do not fit wrap, as in C++.
    pub(super) fn bytes(self, of: Type) -> [u8; 8] {
        if of == Type::Bool {
            return [u8::from(self.is_true()), 0, 0, 0, 0, 0, 0, 0];
        }
        let bits: u64 = match of {
            Type::F32 => self.float_f32().to_bits().into(),
            Type::F64 => self.float().to_bits(),
            Type::BFloat16 => bfloat16_bits(self.float_f32()).into(),
            Type::Half => half_bits(self.float()).into(),
            _ => match self {
                Scalar::Int(value) => (value & i128::from(u64::MAX)) as u64,
                Scalar::Float(value) if of == Type::U64 => value as u64,
                Scalar::Float(value) => (value as i64).cast_unsigned(),
            },
        };
        let mut bytes = bits.to_le_bytes();
        bytes.iter_mut().skip(of.size()).for_each(|byte| *byte = 0);
        bytes
    }

    /// The value after a store into an element of this type and a load from it.
    pub(super) fn cast(self, to: Type) -> Scalar {
        Scalar::read(to, &self.bytes(to)).unwrap_or(self)
    }

    #[expect(clippy::cast_precision_loss, reason = "what the conversion to a float means")]
    pub(super) fn float(self) -> f64 {
        match self {
            Scalar::Int(value) => value as f64,
            Scalar::Float(value) => value,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "what the conversion to a float means")]
    fn float_f32(self) -> f32 {
        match self {
            Scalar::Int(value) => value as f32,
            Scalar::Float(value) => value as f32,
        }
    }

    pub(super) fn is_true(self) -> bool {
        match self {
            Scalar::Int(value) => value != 0,
            Scalar::Float(value) => value != 0.0,
        }
    }
}

/// IEEE binary16.
fn half_value(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if bits & 1023 == 0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    };
    if sign == 0 { size } else { -size }
}

/// Rounds to nearest, ties to even.
fn half_bits(value: f64) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let size = value.abs();
    if size.is_nan() {
        return sign | 0x7e00;
    }
    // 65520 is half way between the largest finite value and the next step.
    if size >= 65520.0 {
        return sign | 0x7c00;
    }
    // The step between neighbours: 2^-24 among the subnormals, else 2^(exponent - 10).
    let exponent = (((size.to_bits() >> 52) as i32) - 1023).max(-14);
    let steps = (size / 2f64.powi(exponent - 10)).round_ties_even() as u32;
    // Steps of 1024 and more carry the exponent by themselves.
    let base = u32::try_from(exponent + 14).unwrap_or(0) << 10;
    sign | u16::try_from(base + steps).unwrap_or(0x7c00)
}

/// Rounds to nearest, ties to even.
fn bfloat16_bits(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fc0;
    }
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    (rounded >> 16) as u16
}

/// Elements of the largest integer or truth tensor that is computed element by element: a batch of
/// tokens, flags or lengths. An element costs 20 to 60 ns, so this is up to ten times the host's
/// cost of a real launch.
const LARGEST_ELEMENTS: u64 = 1024;
/// Elements of the largest float tensor that is computed: hot loops are full of these, and programs
/// hardly branch on them.
const LARGEST_FLOAT_ELEMENTS: u64 = 256;

/// Is a tensor of these element types too large to compute?
pub(super) fn is_too_large(elements: u64, types: &[Type]) -> bool {
    let floats = types.iter().any(|of| of.is_float());
    elements
        > if floats {
            LARGEST_FLOAT_ELEMENTS
        } else {
            LARGEST_ELEMENTS
        }
}

/// Bytes of the largest result that is cleared: this takes the host as long as a few elements.
const CLEARED_BYTES: u64 = 64 << 10;

/// Sets a contiguous result that is too large to compute to 0, if it has whole numbers: programs
/// take them for sizes, and the memory may have held anything before.
pub(super) fn clear(at: u64, of: Type, elements: u64, memory: &dyn Memory) -> Result<(), KernelFault> {
    let bytes = elements.saturating_mul(of.size() as u64);
    if of.is_float() || bytes > CLEARED_BYTES {
        return Ok(());
    }
    pieces(bytes, 1, |first, bytes| memory.write(at + first, &vec![0; bytes]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_trip() {
        for bits in 0..=u16::MAX {
            let value = half_value(bits);
            if value.is_nan() {
                assert_eq!(half_bits(value) & 0x7c00, 0x7c00);
            } else {
                assert_eq!(half_bits(value), bits, "{value}");
            }
        }
        assert_eq!(half_bits(1.0 + 1.0 / 2048.0), 0x3c00, "ties go to even");
        assert_eq!(half_bits(1.0 + 3.0 / 2048.0), 0x3c02);
        assert_eq!(half_bits(65519.9), 0x7bff);
        assert_eq!(half_bits(65520.0), 0x7c00);
        assert_eq!(half_bits(2f64.powi(-25)), 0, "half a subnormal step");
    }

    #[test]
    fn values_change_type_as_in_c() {
        let cast = |value, to| Scalar::cast(value, to);
        assert_eq!(cast(Scalar::Int(300), Type::U8), Scalar::Int(44));
        assert_eq!(cast(Scalar::Int(-1), Type::U64), Scalar::Int(u64::MAX.into()));
        assert_eq!(cast(Scalar::Float(-2.7), Type::I32), Scalar::Int(-2));
        assert_eq!(cast(Scalar::Float(0.5), Type::Bool), Scalar::Int(1));
        assert_eq!(cast(Scalar::Int(257), Type::BFloat16), Scalar::Float(256.0));
        assert_eq!(cast(Scalar::Float(0.1), Type::F32), Scalar::Float(f64::from(0.1f32)));
    }

    #[test]
    fn whole_numbers_that_are_not_computed_are_0() {
        use super::super::super::testing::Bytes;
        let left = |of: Type, elements: u64| {
            let memory = Bytes::new(2 * CLEARED_BYTES as usize);
            clear(memory.base, of, elements, &memory).unwrap();
            let bytes = memory.bytes.borrow();
            bytes.iter().position(|byte| *byte != 0)
        };
        assert_eq!(left(Type::I64, 5_000), Some(40_000));
        assert_eq!(left(Type::Bool, CLEARED_BYTES), Some(CLEARED_BYTES as usize));
        assert_eq!(left(Type::Bool, CLEARED_BYTES + 1), Some(0));
        assert_eq!(left(Type::F32, 5_000), Some(0));
    }
}
