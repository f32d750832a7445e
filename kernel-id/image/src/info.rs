// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attribute records of the `.nv.info` and `.nv.info.<kernel>` sections.
//!
//! A record is a format byte, an attribute byte and a 16-bit field. In formats 1 to 3 the field
//! holds the value (none, a byte, a half); in format 4 it holds the size of the data after it.
//! Attribute numbers are those of public disassemblers.
#![forbid(unsafe_code)]

use crate::bytes::{slice, u16_at, u32_at};
use crate::module::{EntryFunction, Param};

/// Largest block (three words).
const MAX_THREADS: u8 = 0x05;
/// Bank and extent of the parameters: symbol u32, offset u16, size u16.
const PARAM_CBANK: u8 = 0x0a;
/// Stack of a function: symbol u32, bytes u32. In the module-wide section.
const FRAME_SIZE: u8 = 0x11;
/// One parameter: index u32, ordinal u16, offset u16, then alignment, space, bank and 14 bits of
/// size.
const KPARAM_INFO: u8 = 0x17;
/// Registers of a function: symbol u32, count u32. In the module-wide section.
const REGCOUNT: u8 = 0x2f;
/// One parameter, for kernels with more than 4 KiB of them: index u32, ordinal u16, offset u16,
/// size u16, flags u16.
const KPARAM_INFO_V2: u8 = 0x45;

/// A record: attribute, and the 16-bit field or the data after it.
struct InfoRecord<'a> {
    attribute: u8,
    payload: &'a [u8],
}

fn records(mut bytes: &[u8]) -> impl Iterator<Item = InfoRecord<'_>> {
    std::iter::from_fn(move || {
        let (format, attribute, field) = (*bytes.first()?, *bytes.get(1)?, u16_at(bytes, 2)?);
        let size = if format == 4 { usize::from(field) } else { 0 };
        let payload = slice(bytes, 4, size)?;
        bytes = bytes.get(4 + size..)?;
        Some(InfoRecord { attribute, payload })
    })
}

/// Reads a kernel's own section into `kernel`.
pub(crate) fn kernel(bytes: &[u8], kernel: &mut EntryFunction) {
    let mut params: Vec<(u16, Param)> = Vec::new();
    let mut bank_bytes = 0;
    for record in records(bytes) {
        let p = record.payload;
        match record.attribute {
            KPARAM_INFO | KPARAM_INFO_V2 => {
                let (Some(ordinal), Some(offset), Some(packed)) = (u16_at(p, 4), u16_at(p, 6), u32_at(p, 8)) else {
                    continue;
                };
                let size = if record.attribute == KPARAM_INFO {
                    packed >> 18
                } else {
                    packed & 0xffff
                };
                params.push((
                    ordinal,
                    Param {
                        offset: offset.into(),
                        size,
                    },
                ));
            }
            PARAM_CBANK => bank_bytes = u16_at(p, 6).unwrap_or(0),
            MAX_THREADS => {
                let side = |n: usize| u32_at(p, 4 * n).unwrap_or(1).max(1);
                kernel.max_threads = side(0).saturating_mul(side(1)).saturating_mul(side(2));
            }
            _ => {}
        }
    }
    // Known compilers write the last parameter first, but no rule requires it.
    params.sort_by_key(|(ordinal, _)| *ordinal);
    params.dedup_by_key(|(ordinal, _)| *ordinal);
    // Parameters without descriptions: a stripped image, whose parameters are unknown.
    if !params.is_empty() || bank_bytes == 0 {
        kernel.params = Some(params.into_iter().map(|(_, param)| param).collect());
    }
}

/// A fact of the module-wide section about a function, by symbol index.
pub(crate) enum Fact {
    /// Registers of a thread.
    Registers(u32, u32),
    /// Stack of a thread, bytes.
    Frame(u32, u32),
}

/// The facts of the module-wide section.
pub(crate) fn module(bytes: &[u8]) -> impl Iterator<Item = Fact> {
    records(bytes).filter_map(|record| {
        let (symbol, value) = (u32_at(record.payload, 0)?, u32_at(record.payload, 4)?);
        match record.attribute {
            REGCOUNT => Some(Fact::Registers(symbol, value)),
            FRAME_SIZE => Some(Fact::Frame(symbol, value)),
            _ => None,
        }
    })
}
