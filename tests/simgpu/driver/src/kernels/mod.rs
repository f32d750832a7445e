//! Executed kernels: those whose effect on memory is really computed. All others are timed and
//! change nothing.
//!
//! Which ones: our own test kernels (`simgpu.rs`, their PTX in `simgpu.ptx`), those of the probes
//! that read the clock (`probe.rs`), and the handful of PyTorch kernels on whose values programs
//! branch: fills, copies, comparisons, ranges, small arithmetic on them and their reductions
//! (`torch/`). A test can give the effect of a kernel by name (`given.rs`). A kernel is found by
//! its symbol alone, [`find`], once when it is loaded; what it needs besides comes with each
//! launch.
//!
//! What holds: this module computes and never blocks, and reaches memory through [`Memory`] only,
//! so that an address outside every allocation is a [`Fault`] and not a crash. A kernel whose name
//! or parameters are not understood to the last bit is left alone: no effect is better than a wrong
//! one.
#![deny(unsafe_code)]

pub(crate) mod access;
mod given;
mod probe;
mod simgpu;
mod spin;
mod torch;

use std::sync::Arc;

use weft_image::Param;

pub(crate) use spin::Spin;

/// A kernel reached outside every allocation, or was launched with parameters it does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No memory at this address.
    Address(u64),
    /// The launch does not carry the parameters that this kernel takes.
    Parameters,
}

/// The memory that kernels see.
pub(crate) trait Memory {
    /// Copies from memory into `into`.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Fault>;
    /// Copies `from` into memory.
    fn write(&self, at: u64, from: &[u8]) -> Result<(), Fault>;
}

/// One launch, as its kernel sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    /// The parameter buffer.
    pub(crate) buffer: &'a [u8],
    /// Where each parameter lies in it.
    pub(crate) params: &'a [Param],
}

impl<'a> Call<'a> {
    /// The bytes of parameter `n`.
    pub(crate) fn bytes(&self, n: usize) -> Result<&'a [u8], Fault> {
        let param = self.params.get(n).ok_or(Fault::Parameters)?;
        let (at, size) = (param.offset as usize, param.size as usize);
        self.buffer.get(at..at + size).ok_or(Fault::Parameters)
    }

    /// Parameter `n` as an unsigned number, whatever its size up to eight bytes.
    pub(crate) fn unsigned(&self, n: usize) -> Result<u64, Fault> {
        unsigned(self.bytes(n)?)
    }

    /// Parameter `n` as a signed number, whatever its size up to eight bytes.
    pub(crate) fn signed(&self, n: usize) -> Result<i64, Fault> {
        let bytes = self.bytes(n)?;
        let value = unsigned(bytes)?;
        let bits = 64 - 8 * u32::try_from(bytes.len()).map_err(|_| Fault::Parameters)?;
        Ok((value << bits).cast_signed() >> bits)
    }
}

/// A little-endian number of one to eight bytes.
fn unsigned(bytes: &[u8]) -> Result<u64, Fault> {
    if bytes.is_empty() || bytes.len() > 8 {
        return Err(Fault::Parameters);
    }
    Ok(bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// What a kernel does to memory when it ends.
pub(crate) type Compute = dyn Fn(&Call<'_>, &dyn Memory) -> Result<(), Fault> + Send + Sync;

/// What is known about a kernel's effect.
#[derive(Clone)]
pub(crate) enum Effect {
    /// Computes something at its end.
    Compute(Arc<Compute>),
    /// Runs until a word of the host says so.
    Spin(fn(&Call<'_>) -> Result<Spin, Fault>),
    /// Reads the device's clock.
    Clocked(fn(&Call<'_>) -> Result<Clocked, Fault>),
}

/// What a kernel writes that ran from one time to another, device nanoseconds.
pub(crate) type Written = dyn FnOnce(&dyn Memory, (u64, u64)) -> Result<(), Fault> + Send;

/// One launch of a kernel that reads the device's clock, or whose stores the host waits for.
pub(crate) struct Clocked {
    /// How long it runs, device nanoseconds; `None`: as its shape says.
    pub(crate) duration: Option<u64>,
    /// Where it writes, if it does: into host memory it does so at once.
    pub(crate) to: Option<u64>,
    /// What it does when it ends.
    pub(crate) end: Box<Written>,
}

/// The effect of the kernel of this name; `None` for all that are only timed.
pub(crate) fn find(name: &str) -> Option<Effect> {
    given::find(name)
        .or_else(|| simgpu::find(name))
        .or_else(|| spin::find(name))
        .or_else(|| probe::find(name))
        .or_else(|| torch::find(name).map(Effect::Compute))
}

/// Walks `count` items in pieces that fit a small buffer: `piece(first item, items)`.
fn pieces(count: u64, size: usize, mut piece: impl FnMut(u64, usize) -> Result<(), Fault>) -> Result<(), Fault> {
    /// Bytes of one piece: fits the first-level cache beside its result.
    const PIECE: usize = 16 << 10;
    let step = (PIECE / size.max(1)).max(1);
    let mut first = 0;
    while first < count {
        let items = usize::try_from(count - first).unwrap_or(step).min(step);
        piece(first, items)?;
        first += items as u64;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod testing {
    //! A memory of a few bytes, for the tests of the kernels.

    use std::cell::RefCell;

    use super::{Fault, Memory};

    /// The test kernels' PTX, as clients load it.
    pub(crate) const SIMGPU_PTX: &str = include_str!("simgpu.ptx");

    /// Bytes at an address.
    pub(crate) struct Bytes {
        pub(crate) base: u64,
        pub(crate) bytes: RefCell<Vec<u8>>,
    }

    impl Bytes {
        pub(crate) fn new(size: usize) -> Bytes {
            Bytes {
                base: 0x7000_0000,
                bytes: RefCell::new(vec![0xcd; size]),
            }
        }

        fn range(&self, at: u64, size: usize) -> Result<std::ops::Range<usize>, Fault> {
            let start = at
                .checked_sub(self.base)
                .and_then(|n| usize::try_from(n).ok())
                .ok_or(Fault::Address(at))?;
            match start + size <= self.bytes.borrow().len() {
                true => Ok(start..start + size),
                false => Err(Fault::Address(at)),
            }
        }
    }

    impl Memory for Bytes {
        fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Fault> {
            let range = self.range(at, into.len())?;
            into.copy_from_slice(&self.bytes.borrow()[range]);
            Ok(())
        }

        fn write(&self, at: u64, from: &[u8]) -> Result<(), Fault> {
            let range = self.range(at, from.len())?;
            self.bytes.borrow_mut()[range].copy_from_slice(from);
            Ok(())
        }
    }
}
