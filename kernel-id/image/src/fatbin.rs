// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fatbin wrapper, container and entries.
//!
//! Little-endian layout, as public tools read it. Container: magic u32, version u16, header size
//! u16, size of all entries u64. Entry: kind u16, version u16, header size u32, payload size u64,
//! compressed size u32, options u32, minor u16, major u16, architecture u32, name offset and length
//! u32, flags u64, reserved u64, uncompressed size u64, ..., payload.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::io::Read;

use crate::ImageError;
use crate::bytes::{slice, u16_at, u32_at, u64_at};
use crate::kind::{FATBIN_MAGIC, WRAPPER_MAGIC};
use crate::lz4;

/// The payload is one LZ4 block.
const FLAG_LZ4: u64 = 0x2000;
/// The payload is one zstd frame.
const FLAG_ZSTD: u64 = 0x8000;
/// Largest uncompressed entry accepted, bytes. The biggest seen in a framework is some 100 MB; a
/// corrupt size must not exhaust memory.
const MAX_DECOMPRESSED_BYTES: u64 = 512 << 20;

/// The struct that `nvcc` emits and the CUDA runtime passes to `cuLibraryLoadData`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrapper {
    /// 1: one container; 2: `second` points to prelinked ones.
    pub version: u32,
    /// Address of the container.
    pub data: u64,
    /// File name or container list, by version.
    pub second: u64,
}

impl Wrapper {
    /// Reads the wrapper at the start of `bytes`.
    pub fn new(bytes: &[u8]) -> Result<Wrapper, ImageError> {
        if u32_at(bytes, 0) != Some(WRAPPER_MAGIC) {
            return Err(ImageError::Unknown);
        }
        match (u32_at(bytes, 4), u64_at(bytes, 8), u64_at(bytes, 16)) {
            (Some(version), Some(data), Some(second)) => Ok(Wrapper { version, data, second }),
            _ => Err(ImageError::Short("fatbin wrapper")),
        }
    }
}

/// Content of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// PTX text.
    Ptx,
    /// An ELF file.
    Cubin,
    /// Anything else (an archive, intermediate code).
    Other(u16),
}

/// One entry of a container.
#[derive(Debug, Clone, Copy)]
pub struct FatbinEntry<'a> {
    /// Content.
    pub kind: EntryKind,
    /// Architecture (80 for sm_80).
    pub arch: u32,
    /// Flag bits as found.
    pub flags: u64,
    payload: &'a [u8],
    uncompressed: u64,
}

impl<'a> FatbinEntry<'a> {
    /// The code, decompressed if needed.
    pub fn code(&self) -> Result<Cow<'a, [u8]>, ImageError> {
        if self.flags & (FLAG_LZ4 | FLAG_ZSTD) == 0 {
            return Ok(Cow::Borrowed(self.payload));
        }
        if self.uncompressed > MAX_DECOMPRESSED_BYTES {
            return Err(ImageError::Compression("uncompressed size"));
        }
        let size = usize::try_from(self.uncompressed).map_err(|_| ImageError::Compression("uncompressed size"))?;
        if self.flags & FLAG_ZSTD != 0 {
            return zstd(self.payload, size).map(Cow::Owned);
        }
        lz4::block(self.payload, size).map(Cow::Owned)
    }
}

fn zstd(payload: &[u8], size: usize) -> Result<Vec<u8>, ImageError> {
    let decoder =
        ruzstd::decoding::StreamingDecoder::new(payload).map_err(|_| ImageError::Compression("zstd frame header"))?;
    let mut code = Vec::new();
    let read = decoder.take(size as u64).read_to_end(&mut code);
    match read {
        Ok(n) if n == size => Ok(code),
        Ok(_) => Err(ImageError::Compression("zstd frame shorter than announced")),
        Err(_) => Err(ImageError::Compression("zstd data")),
    }
}

/// A container.
#[derive(Debug, Clone, Copy)]
pub struct Fatbin<'a> {
    entries: &'a [u8],
}

impl<'a> Fatbin<'a> {
    /// Reads the container at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Result<Fatbin<'a>, ImageError> {
        if u32_at(bytes, 0) != Some(FATBIN_MAGIC) {
            return Err(ImageError::Unknown);
        }
        let (Some(header), Some(size)) = (u16_at(bytes, 6), u64_at(bytes, 8)) else {
            return Err(ImageError::Short("fatbin header"));
        };
        let size = usize::try_from(size).map_err(|_| ImageError::Malformed("fatbin size"))?;
        let entries = slice(bytes, header.into(), size).ok_or(ImageError::Short("fatbin entries"))?;
        Ok(Fatbin { entries })
    }

    /// The entries in order. A malformed entry yields an error and ends the walk, because the next
    /// entry's start is unknown.
    pub fn entries(&self) -> Entries<'a> {
        Entries { rest: self.entries }
    }

    /// The entry that a device of architecture `arch` would load.
    pub fn best(&self, arch: u32) -> Result<FatbinEntry<'a>, ImageError> {
        let mut best: Option<(bool, u32, FatbinEntry<'a>)> = None;
        for entry in self.entries() {
            let entry = entry?;
            let runs = match entry.kind {
                EntryKind::Cubin => entry.arch / 10 == arch / 10 && entry.arch <= arch,
                EntryKind::Ptx => entry.arch <= arch,
                EntryKind::Other(_) => false,
            };
            let rank = (entry.kind == EntryKind::Cubin, entry.arch);
            if runs && best.as_ref().is_none_or(|(cubin, arch, _)| rank > (*cubin, *arch)) {
                best = Some((rank.0, rank.1, entry));
            }
        }
        best.map(|(.., entry)| entry).ok_or(ImageError::NoBinary(arch))
    }
}

/// Walks the entries of a container.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<FatbinEntry<'a>, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match entry(self.rest) {
            Ok((entry, rest)) => {
                self.rest = rest;
                Some(Ok(entry))
            }
            Err(error) => {
                self.rest = &[];
                Some(Err(error))
            }
        }
    }
}

/// Reads one entry; returns it and the bytes after it.
fn entry(bytes: &[u8]) -> Result<(FatbinEntry<'_>, &[u8]), ImageError> {
    let (Some(kind), Some(header), Some(size), Some(compressed), Some(arch), Some(flags)) = (
        u16_at(bytes, 0),
        u32_at(bytes, 4),
        u64_at(bytes, 8),
        u32_at(bytes, 16),
        u32_at(bytes, 28),
        u64_at(bytes, 40),
    ) else {
        return Err(ImageError::Short("fatbin entry header"));
    };
    /// Header up to and including the flags; a shorter one would stop or reverse the walk.
    const SHORTEST: u32 = 48;
    if header < SHORTEST {
        return Err(ImageError::Malformed("fatbin entry header size"));
    }
    let size = usize::try_from(size).map_err(|_| ImageError::Malformed("fatbin entry size"))?;
    let header = header as usize;
    let payload = slice(bytes, header, size).ok_or(ImageError::Short("fatbin entry payload"))?;
    let packed = flags & (FLAG_LZ4 | FLAG_ZSTD) != 0;
    // Payloads are padded to eight bytes; a decoder must see only the compressed bytes.
    let exact = match packed && compressed != 0 {
        true => payload
            .get(..compressed as usize)
            .ok_or(ImageError::Malformed("fatbin entry compressed size"))?,
        false => payload,
    };
    let uncompressed = match (packed, header >= 64) {
        (true, true) => u64_at(bytes, 56).unwrap_or(0),
        _ => size as u64,
    };
    let kind = match kind {
        1 => EntryKind::Ptx,
        2 => EntryKind::Cubin,
        other => EntryKind::Other(other),
    };
    let rest = bytes.get(header + size..).unwrap_or(&[]);
    Ok((
        FatbinEntry {
            kind,
            arch,
            flags,
            payload: exact,
            uncompressed,
        },
        rest,
    ))
}
