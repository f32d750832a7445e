// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kind and length of an image.
//!
//! `cuModuleLoadData` gets a pointer without a length, so the length has to be read from the image.
//! Call [`extent`] with the first [`PREFIX`] bytes, then [`cubin_extent`] for an ELF file with the
//! bytes that [`extent`] names.
#![forbid(unsafe_code)]

use crate::ImageError;
use crate::bytes::{u16_at, u32_at, u64_at};

/// Bytes of an image that [`kind`] and [`extent`] read: an ELF64 file header, the longest of the
/// four.
pub const PREFIX: usize = 64;

/// First word of `__fatBinC_Wrapper_t`, as `nvcc` emits it (public header `fatbinary_section.h`).
pub const WRAPPER_MAGIC: u32 = 0x4662_43b1;
/// First word of a fatbin container.
pub const FATBIN_MAGIC: u32 = 0xba55_ed50;
const ELF_MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");

/// Kinds of image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageKind {
    /// A small struct that points to a fatbin.
    Wrapper,
    /// A container of cubins and PTX.
    Fatbin,
    /// An ELF file with machine code.
    Cubin,
    /// PTX source text.
    Ptx,
    /// None of these.
    Unknown,
}

/// Kind of the image that begins with these bytes; a handful suffices.
pub fn kind(prefix: &[u8]) -> ImageKind {
    match u32_at(prefix, 0) {
        Some(WRAPPER_MAGIC) => ImageKind::Wrapper,
        Some(FATBIN_MAGIC) => ImageKind::Fatbin,
        Some(ELF_MAGIC) => ImageKind::Cubin,
        _ if starts_text(prefix) => ImageKind::Ptx,
        _ => ImageKind::Unknown,
    }
}

/// Whether the text begins with a directive or comment, perhaps after white space.
fn starts_text(prefix: &[u8]) -> bool {
    let rest = prefix.trim_ascii_start();
    matches!(rest, [b'.', b'a'..=b'z', ..] | [b'/', b'/' | b'*', ..])
}

/// Length of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Exact number of bytes.
    Bytes(u64),
    /// Least number of bytes; [`cubin_extent`] reads the rest from them.
    Tables(u64),
    /// Up to the first zero byte.
    Text,
}

/// Length of the image that begins with these bytes ([`PREFIX`] of them, or all).
pub fn extent(prefix: &[u8]) -> Result<Extent, ImageError> {
    match kind(prefix) {
        ImageKind::Wrapper => Ok(Extent::Bytes(24)),
        ImageKind::Fatbin => {
            let header = u16_at(prefix, 6).ok_or(ImageError::Short("fatbin header"))?;
            let files = u64_at(prefix, 8).ok_or(ImageError::Short("fatbin header"))?;
            Ok(Extent::Bytes(
                files
                    .checked_add(header.into())
                    .ok_or(ImageError::Malformed("fatbin size"))?,
            ))
        }
        ImageKind::Cubin => tables(prefix).map(|(end, ..)| Extent::Tables(end)),
        ImageKind::Ptx => Ok(Extent::Text),
        ImageKind::Unknown => Err(ImageError::Unknown),
    }
}

/// End of header and section table of an ELF64 file; then the table's offset, entry size and count.
fn tables(prefix: &[u8]) -> Result<(u64, u64, u64, u64), ImageError> {
    let short = ImageError::Short("ELF header");
    let (Some(phoff), Some(shoff), Some(phsize), Some(phnum), Some(shsize), Some(shnum)) = (
        u64_at(prefix, 32),
        u64_at(prefix, 40),
        u16_at(prefix, 54),
        u16_at(prefix, 56),
        u16_at(prefix, 58),
        u16_at(prefix, 60),
    ) else {
        return Err(short);
    };
    let end = |at: u64, size: u16, count: u16| at.checked_add(u64::from(size) * u64::from(count));
    let (Some(programs), Some(sections)) = (end(phoff, phsize, phnum), end(shoff, shsize, shnum)) else {
        return Err(ImageError::Malformed("ELF table offsets"));
    };
    Ok((
        programs.max(sections).max(PREFIX as u64),
        shoff,
        shsize.into(),
        shnum.into(),
    ))
}

/// Length of an ELF image, bytes, from at least the bytes that [`Extent::Tables`] named.
pub fn cubin_extent(image: &[u8]) -> Result<u64, ImageError> {
    let (mut end, shoff, shsize, shnum) = tables(image)?;
    for n in 0..shnum {
        // Elf64_Shdr: sh_type at 4, sh_offset at 24, sh_size at 32.
        let at = usize::try_from(shoff + n * shsize).map_err(|_| ImageError::Malformed("ELF section table"))?;
        let field = |offset: usize| at.checked_add(offset).and_then(|p| u64_at(image, p));
        let kind = at.checked_add(4).and_then(|p| u32_at(image, p));
        let (Some(kind), Some(offset), Some(size)) = (kind, field(24), field(32)) else {
            return Err(ImageError::Short("ELF section table"));
        };
        /// `SHT_NOBITS`: the file holds no data of the section.
        const NOBITS: u32 = 8;
        if kind != NOBITS {
            end = end.max(
                offset
                    .checked_add(size)
                    .ok_or(ImageError::Malformed("ELF section size"))?,
            );
        }
    }
    Ok(end)
}
