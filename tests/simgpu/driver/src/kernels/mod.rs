// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executed kernels: those whose effect on memory is computed. All others are only timed.
//!
//! | file | kernels |
//! |---|---|
//! | `simgpu.rs` | the project's test kernels, whose PTX is `simgpu.ptx` |
//! | `probe.rs` | those of a program that measures GPUs: they read the clock |
//! | `spin.rs` | those that wait for a word of the host |
//! | `torch/` | the PyTorch kernels on whose values programs branch |
//! | `given.rs` | those whose effect a test gives, by name |
//!
//! `call.rs` defines a kernel's parameters and its effect; `touching.rs` derives the bytes that any
//! kernel touches. [`find`] recognizes a kernel by its symbol only, once, when it is loaded.
//!
//! Invariants: this module computes and never blocks. It reaches memory through [`Memory`] only, so
//! an address outside every allocation is a [`KernelFault`] and no crash. A kernel whose name or
//! parameters are not understood to the last bit is not computed: no effect is better than a wrong
//! one.
#![deny(unsafe_code)]

mod call;
mod given;
mod operands;
mod probe;
mod simgpu;
mod spin;
mod torch;
pub(crate) mod touching;

pub(crate) use call::{Call, KernelEffect, KernelFault, Memory};

/// The effect of the kernel of this name; `None` for all that are only timed.
pub(crate) fn find(name: &str) -> Option<KernelEffect> {
    given::find(name)
        .or_else(|| simgpu::find(name))
        .or_else(|| spin::find(name))
        .or_else(|| probe::find(name))
        .or_else(|| torch::find(name).map(KernelEffect::Compute))
}

#[cfg(test)]
pub(crate) mod testing {
    //! A memory of a few bytes, for the tests of the kernels.

    use std::cell::RefCell;

    use super::{KernelFault, Memory};

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

        fn range(&self, at: u64, size: usize) -> Result<std::ops::Range<usize>, KernelFault> {
            let start = at
                .checked_sub(self.base)
                .and_then(|n| usize::try_from(n).ok())
                .ok_or(KernelFault::Address(at))?;
            match start + size <= self.bytes.borrow().len() {
                true => Ok(start..start + size),
                false => Err(KernelFault::Address(at)),
            }
        }
    }

    impl Memory for Bytes {
        fn read(&self, at: u64, into: &mut [u8]) -> Result<(), KernelFault> {
            let range = self.range(at, into.len())?;
            into.copy_from_slice(&self.bytes.borrow()[range]);
            Ok(())
        }

        fn write(&self, at: u64, from: &[u8]) -> Result<(), KernelFault> {
            let range = self.range(at, from.len())?;
            self.bytes.borrow_mut()[range].copy_from_slice(from);
            Ok(())
        }
    }
}
