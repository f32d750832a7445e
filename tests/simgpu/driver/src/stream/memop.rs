// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stream memory operations: single words written, or waited for, in stream order.
#![forbid(unsafe_code)]

use std::sync::Arc;

use simgpu_device::{Op, Seq};

use crate::abi::{DevicePtr, Error, In, R};
use crate::effect::Effect;
use crate::space::{raw, table};
use crate::state::Driver;
use crate::stream::Stream;

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MemOp {
    /// Waits for a word.
    Wait(Word, Compare),
    /// Writes a word.
    Write(Word),
    /// Orders memory; the simulated device always does.
    Barrier,
}

/// Address and value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word {
    address: DevicePtr,
    value: u64,
    wide: bool,
}

/// When a wait is over.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Compare {
    /// The word has reached the value, with wrap-around.
    Reached,
    /// They are equal.
    Equal,
    /// They have a bit in common.
    And,
    /// A bit is clear in both.
    Nor,
}

impl Compare {
    pub(crate) fn new(flags: u32) -> R<Compare> {
        // Bit 30 asks for a flush of remote writes, which is moot here.
        Ok(match flags & !(1 << 30) {
            0 => Compare::Reached,
            1 => Compare::Equal,
            2 => Compare::And,
            3 => Compare::Nor,
            _ => return Err(Error::INVALID_VALUE),
        })
    }

    fn holds(self, word: Word, now: u64) -> bool {
        let distance = now.wrapping_sub(word.value);
        match self {
            Compare::Reached if word.wide => distance.cast_signed() >= 0,
            Compare::Reached => (distance as u32).cast_signed() >= 0,
            Compare::Equal => now == word.value,
            Compare::And => now & word.value != 0,
            Compare::Nor if word.wide => !(now | word.value) != 0,
            Compare::Nor => !((now | word.value) as u32) != 0,
        }
    }
}

impl Word {
    pub(crate) fn new(address: DevicePtr, value: u64, wide: bool) -> R<Word> {
        if address == 0 || !address.is_multiple_of(if wide { 8 } else { 4 }) || !table::is_mapped(address) {
            return Err(Error::INVALID_VALUE);
        }
        Ok(Word {
            address,
            value: if wide { value } else { value & u64::from(u32::MAX) },
            wide,
        })
    }

    fn read(self) -> u64 {
        if self.wide {
            raw::load_64(self.address)
        } else {
            raw::load_32(self.address).into()
        }
    }

    fn write(self) {
        if self.wide {
            raw::store_64(self.address, self.value)
        } else {
            raw::store_32(self.address, self.value as u32)
        }
    }
}

impl MemOp {
    pub(crate) fn submit(self, driver: &Driver, stream: &Stream, graph: u64) -> R<Seq> {
        match self {
            MemOp::Wait(word, compare) => {
                let condition = Box::new(move || compare.holds(word, word.read()));
                stream.submit(driver, Op::Host, Some(Effect::Until(condition)), graph)
            }
            MemOp::Write(word) => {
                let write = Box::new(move || word.write());
                stream.submit(driver, Op::Marker, Some(Effect::RunPromptly(write)), graph)
            }
            MemOp::Barrier => stream.submit(driver, Op::Marker, None, graph),
        }
    }
}

/// `CUstreamBatchMemOpParams`: operation, address, value, flags, as 64-bit words.
pub(crate) type Params = [u64; 6];

fn parse(params: Params) -> R<MemOp> {
    let [operation, address, value, flags, ..] = params;
    Ok(match operation as u32 {
        1 => MemOp::Wait(Word::new(address, value, false)?, Compare::new(flags as u32)?),
        2 => MemOp::Write(Word::new(address, value, false)?),
        4 => MemOp::Wait(Word::new(address, value, true)?, Compare::new(flags as u32)?),
        5 => MemOp::Write(Word::new(address, value, true)?),
        3 | 6 => MemOp::Barrier, // flush of remote writes, memory barrier
        _ => return Err(Error::INVALID_VALUE),
    })
}

/// The operations of an array of parameters; graphs' batch nodes hold the same array.
pub(crate) fn parse_all(params: In<Params>, count: usize) -> R<Arc<[MemOp]>> {
    // More than this the real driver refuses too.
    if count > 256 {
        return Err(Error::INVALID_VALUE);
    }
    params.list(count)?.into_iter().map(parse).collect()
}
