//! A part of memory and how it is used.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// How memory is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Access {
    /// Read only.
    Read,
    /// Overwritten as a whole; nothing that was there before is read.
    Write,
    /// Read and written, or written in part, or nobody knows: what was there before matters, and it
    /// changes.
    #[default]
    ReadWrite,
}

impl Access {
    /// Both.
    pub fn and(self, other: Access) -> Access {
        if self == other { self } else { Access::ReadWrite }
    }

    /// Whether it changes the memory.
    pub fn writes(self) -> bool {
        self != Access::Read
    }

    /// Whether what was there before matters.
    pub fn reads(self) -> bool {
        self != Access::Write
    }
}

/// What a kernel touched: a contiguous part of the job's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Touched {
    /// Where it begins.
    pub address: u64,
    /// Its size. 0 is nothing.
    pub bytes: u64,
    /// How it was used.
    pub access: Access,
}

impl Touched {
    /// The first address behind it.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

/// What a kernel is predicted to touch: `chunks` parts of `bytes` bytes, each `stride` bytes behind
/// the one before. A contiguous region is one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// Where the first chunk begins, in the job's address space.
    pub address: u64,
    /// Size of a chunk.
    pub bytes: u64,
    /// From the begin of a chunk to the begin of the next.
    pub stride: u64,
    /// How many. At least 1.
    pub chunks: u32,
    /// How it is used.
    pub access: Access,
}

impl Region {
    /// One chunk.
    pub fn contiguous(address: u64, bytes: u64, access: Access) -> Region {
        Region {
            address,
            bytes,
            stride: bytes,
            chunks: 1,
            access,
        }
    }

    /// Its chunks, by address.
    pub fn parts(self) -> impl Iterator<Item = Touched> {
        (0..u64::from(self.chunks)).map(move |chunk| Touched {
            address: self.address.saturating_add(chunk.saturating_mul(self.stride)),
            bytes: self.bytes,
            access: self.access,
        })
    }

    /// The first address behind it.
    pub fn end(&self) -> u64 {
        let last = u64::from(self.chunks.saturating_sub(1)).saturating_mul(self.stride);
        self.address.saturating_add(last).saturating_add(self.bytes)
    }

    /// Bytes that it touches.
    pub fn touched(&self) -> u64 {
        self.bytes.saturating_mul(u64::from(self.chunks))
    }
}
