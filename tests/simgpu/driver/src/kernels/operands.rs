// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of memory and how they are used; the operands that a process's operations have shown.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// How memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// Overwritten as a whole.
    Write,
    /// Read and written, or it is not known.
    ReadWrite,
}

/// A part of memory that a launch uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) access: Access,
}

/// Sizes of the operands by first address: the tensors of a process, as far as its operations show
/// them.
#[derive(Debug, Default)]
pub(crate) struct Operands {
    pub(super) sizes: BTreeMap<u64, u64>,
}

impl Operands {
    /// None yet.
    pub(crate) const fn new() -> Operands {
        Operands { sizes: BTreeMap::new() }
    }

    /// An operation used these bytes.
    pub(crate) fn used(&mut self, start: u64, bytes: u64) {
        if bytes > 0 {
            self.sizes.insert(start, bytes);
        }
    }

    /// Memory was given back.
    pub(crate) fn forget(&mut self, start: u64, bytes: u64) {
        let mut later = self.sizes.split_off(&start);
        self.sizes.append(&mut later.split_off(&start.saturating_add(bytes)));
    }
}
