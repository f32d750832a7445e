// SPDX-License-Identifier: MIT OR Apache-2.0
//! An executed kernel's parameters, the memory that it may reach, and its effect.
#![forbid(unsafe_code)]

use std::sync::Arc;

use weft_image::Param;

/// A kernel reached outside every allocation, or was launched with parameters it does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelFault {
    /// No memory at this address.
    Address(u64),
    /// The launch does not carry the parameters that this kernel takes.
    Parameters,
}

/// The memory that kernels see.
pub(crate) trait Memory {
    /// Copies from memory into `into`.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), KernelFault>;
    /// Copies `from` into memory.
    fn write(&self, at: u64, from: &[u8]) -> Result<(), KernelFault>;
}

/// One launch, as its kernel sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    /// The parameter buffer.
    pub(crate) buffer: &'a [u8],
    /// The place of each parameter in the buffer.
    pub(crate) params: &'a [Param],
}

impl<'a> Call<'a> {
    /// The bytes of parameter `n`.
    pub(crate) fn bytes(&self, n: usize) -> Result<&'a [u8], KernelFault> {
        let param = self.params.get(n).ok_or(KernelFault::Parameters)?;
        let (at, size) = (param.offset as usize, param.size as usize);
        self.buffer.get(at..at + size).ok_or(KernelFault::Parameters)
    }

    /// Parameter `n` as an unsigned number, of any size up to eight bytes.
    pub(crate) fn unsigned(&self, n: usize) -> Result<u64, KernelFault> {
        unsigned(self.bytes(n)?)
    }

    /// Parameter `n` as a signed number, of any size up to eight bytes.
    pub(crate) fn signed(&self, n: usize) -> Result<i64, KernelFault> {
        let bytes = self.bytes(n)?;
        let value = unsigned(bytes)?;
        let bits = 64 - 8 * u32::try_from(bytes.len()).map_err(|_| KernelFault::Parameters)?;
        Ok((value << bits).cast_signed() >> bits)
    }
}

/// A little-endian number of one to eight bytes.
pub(crate) fn unsigned(bytes: &[u8]) -> Result<u64, KernelFault> {
    if bytes.is_empty() || bytes.len() > 8 {
        return Err(KernelFault::Parameters);
    }
    Ok(bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// The change that a kernel makes to memory when it ends.
pub(crate) type Compute = dyn Fn(&Call<'_>, &dyn Memory) -> Result<(), KernelFault> + Send + Sync;

/// A kernel's effect, as far as it is known.
#[derive(Clone)]
pub(crate) enum KernelEffect {
    /// Computes something at its end.
    Compute(Arc<Compute>),
    /// Runs until a word of the host has the expected value.
    Spin(fn(&Call<'_>) -> Result<Spin, KernelFault>),
    /// Reads the device's clock.
    Clocked(fn(&Call<'_>) -> Result<Clocked, KernelFault>),
}

/// The stores of a kernel that ran from one time to another, device nanoseconds.
pub(crate) type Written = dyn FnOnce(&dyn Memory, (u64, u64)) -> Result<(), KernelFault> + Send;

/// One launch of a kernel that reads the device's clock, or whose stores the host waits for.
pub(crate) struct Clocked {
    /// Run time, device nanoseconds; `None`: derived from the launch's shape.
    pub(crate) duration: Option<u64>,
    /// Address that it writes, if it writes. A store into host memory happens at once.
    pub(crate) to: Option<u64>,
    /// The effect at its end.
    pub(crate) end: Box<Written>,
}

/// Walks `count` items in pieces that fit a small buffer: `piece(first item, items)`.
pub(crate) fn pieces(
    count: u64,
    size: usize,
    mut piece: impl FnMut(u64, usize) -> Result<(), KernelFault>,
) -> Result<(), KernelFault> {
    /// Bytes of one piece: it fits the first-level cache together with its result.
    const PIECE_BYTES: usize = 16 << 10;
    let step = (PIECE_BYTES / size.max(1)).max(1);
    let mut first = 0;
    while first < count {
        let items = usize::try_from(count - first).unwrap_or(step).min(step);
        piece(first, items)?;
        first += items as u64;
    }
    Ok(())
}

/// The value that ends the spin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Anything but zero.
    NotZero,
    /// This.
    Equals(u32),
}

/// One spinning launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spin {
    /// Address of the word, in pinned or managed host memory.
    pub(crate) word: u64,
    /// When it ends.
    pub(crate) until: Until,
    /// Device nanoseconds after which it gives up.
    pub(crate) limit: u64,
    /// The value that it writes into the word when it gives up.
    pub(crate) given_up: Option<u32>,
}

impl Spin {
    /// Whether the word has been set by now.
    pub(crate) fn is_over(&self, memory: &dyn Memory) -> Result<bool, KernelFault> {
        let mut word = [0; 4];
        memory.read(self.word, &mut word)?;
        let word = u32::from_le_bytes(word);
        Ok(match self.until {
            Until::NotZero => word != 0,
            Until::Equals(value) => word == value,
        })
    }

    /// The last write when the time is over and the word was not set.
    pub(crate) fn give_up(&self, memory: &dyn Memory) -> Result<(), KernelFault> {
        self.given_up
            .map_or(Ok(()), |word| memory.write(self.word, &word.to_le_bytes()))
    }
}
