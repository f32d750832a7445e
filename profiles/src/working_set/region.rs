// SPDX-License-Identifier: MIT OR Apache-2.0
//! A part of memory and its access.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// Kind of access to memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Access {
    /// Read only.
    Read,
    /// Overwritten as a whole, without reading the old content.
    Write,
    /// Read and written, written in part, or unknown: the old content matters, and changes.
    #[default]
    ReadWrite,
}

impl Access {
    /// Union of two accesses.
    pub fn and(self, other: Access) -> Access {
        if self == other { self } else { Access::ReadWrite }
    }

    /// Whether the memory changes.
    pub fn writes(self) -> bool {
        self != Access::Read
    }

    /// Whether the old content matters.
    pub fn reads(self) -> bool {
        self != Access::Write
    }
}

/// Contiguous part of the job's address space that a kernel touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Touched {
    /// Start.
    pub address: u64,
    /// Size, bytes; may be 0.
    pub bytes: u64,
    /// Access.
    pub access: Access,
}

impl Touched {
    /// First address after the part.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

/// Prediction of touched memory: `chunks` parts of `bytes` bytes, at distances of `stride` bytes. A
/// contiguous region is one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// Start of the first chunk, in the job's address space.
    pub address: u64,
    /// Size of a chunk, bytes.
    pub bytes: u64,
    /// Distance between starts of chunks, bytes.
    pub stride: u64,
    /// Number of chunks, at least 1.
    pub chunks: u32,
    /// Access.
    pub access: Access,
}

impl Region {
    /// Region of one chunk.
    pub fn contiguous(address: u64, bytes: u64, access: Access) -> Region {
        Region {
            address,
            bytes,
            stride: bytes,
            chunks: 1,
            access,
        }
    }

    /// Chunks, by address.
    pub fn parts(self) -> impl Iterator<Item = Touched> {
        (0..u64::from(self.chunks)).map(move |chunk| Touched {
            address: self.address.saturating_add(chunk.saturating_mul(self.stride)),
            bytes: self.bytes,
            access: self.access,
        })
    }

    /// First address after the region.
    pub fn end(&self) -> u64 {
        let last = u64::from(self.chunks.saturating_sub(1)).saturating_mul(self.stride);
        self.address.saturating_add(last).saturating_add(self.bytes)
    }

    /// Bytes touched.
    pub fn touched(&self) -> u64 {
        self.bytes.saturating_mul(u64::from(self.chunks))
    }
}
