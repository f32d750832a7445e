// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hash of a module's image, which separates kernels of one name.
//!
//! A client hands the driver a bare pointer. The image states its length: fat binaries in a header,
//! ELF files (cubins) by their parts, PTX by a final zero. Only those bytes are read, after the
//! driver accepted the image. Anything else hashes to 0, "unknown".

use weft_kernel_id::image_hash;

/// Magic numbers: a fat binary's wrapper, a fat binary, an ELF file.
const WRAPPER: u32 = 0x4662_43b1;
const FATBIN: u32 = 0xba55_ed50;
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");

/// Largest image that is hashed whole (about 0.1 ms). Larger images are hashed by a sample.
const WHOLE_BYTES: usize = 1 << 20;
/// The sample: the beginning, and pieces spread evenly over the rest.
const BEGINNING_BYTES: usize = 256 << 10;
const PIECES: usize = 64;
const PIECE_BYTES: usize = 4 << 10;

const LARGEST_BYTES: u64 = 4 << 30;
const LONGEST_TEXT_BYTES: usize = 64 << 20;

/// Hash of the image behind a pointer.
///
/// # Safety
/// The driver accepted `image`.
pub unsafe fn hash(image: *const u8) -> u64 {
    if image.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    let Some((start, length)) = (unsafe { extent(image, true) }) else {
        return 0;
    };
    // SAFETY: the image states this length, and the driver accepted it.
    hash_bytes(unsafe { std::slice::from_raw_parts(start, length) })
}

/// Address and length of an image; true if it is part of a program and stays in memory.
///
/// # Safety
/// As [`hash`].
pub unsafe fn span(image: *const u8) -> Option<(*const u8, usize, bool)> {
    // SAFETY: the caller's promise.
    let (start, length) = unsafe { extent(image, true) }?;
    Some((start, length, start != image))
}

pub fn hash_bytes(image: &[u8]) -> u64 {
    if image.len() <= WHOLE_BYTES {
        return image_hash(image);
    }
    let mut parts = vec![
        image.len() as u64,
        image_hash(image.get(..BEGINNING_BYTES).unwrap_or_default()),
    ];
    let rest = image.len() - BEGINNING_BYTES - PIECE_BYTES;
    for piece in 0..PIECES {
        // The last piece ends at the image's end.
        let at = BEGINNING_BYTES + rest / (PIECES - 1) * piece + rest % (PIECES - 1) * (piece / (PIECES - 1));
        parts.push(image_hash(image.get(at..at + PIECE_BYTES).unwrap_or_default()));
    }
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
    image_hash(&bytes)
}

/// # Safety
/// As [`hash`].
unsafe fn extent(image: *const u8, wrapped: bool) -> Option<(*const u8, usize)> {
    // SAFETY: any accepted image has over four bytes.
    let magic = unsafe { read::<u32>(image, 0) };
    let length = match magic {
        WRAPPER if wrapped => {
            // SAFETY: a wrapper has 24 bytes, with the pointer at 8.
            let inner = unsafe { read::<*const u8>(image, 8) };
            if inner.is_null() {
                return None;
            }
            // SAFETY: the driver followed this pointer too.
            return unsafe { extent(inner, false) };
        }
        FATBIN => {
            // SAFETY: a fat binary starts with magic, version, header length, length of the rest:
            // 16 bytes.
            let header = unsafe { read::<u16>(image, 6) };
            // SAFETY: as above.
            let rest = unsafe { read::<u64>(image, 8) };
            u64::from(header).checked_add(rest)?
        }
        // SAFETY: the magic of an ELF file.
        ELF => unsafe { elf_length(image) }?,
        _ => {
            let first = magic.to_le_bytes();
            let printable = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
            if !first.iter().all(printable) {
                return None;
            }
            // SAFETY: PTX ends with a zero.
            (unsafe { libc::strnlen(image.cast(), LONGEST_TEXT_BYTES) }) as u64
        }
    };
    (length > 0 && length <= LARGEST_BYTES).then_some((image, length as usize))
}

/// End of the last part of a 64-bit ELF file.
///
/// # Safety
/// The driver accepted `image`.
unsafe fn elf_length(image: *const u8) -> Option<u64> {
    const HEADER: u64 = 64;
    /// SHT_NOBITS: a section without bytes in the file.
    const NO_BITS: u32 = 8;
    // SAFETY: an ELF header has 64 bytes; class 2 means 64 bits.
    if unsafe { read::<u8>(image, 4) } != 2 {
        return None;
    }
    // SAFETY: as above.
    let segments_at = unsafe { read::<u64>(image, 32) };
    // SAFETY: as above.
    let sections_at = unsafe { read::<u64>(image, 40) };
    // SAFETY: as above.
    let [segment_size, segment_count] = unsafe { read::<[u16; 2]>(image, 54) };
    // SAFETY: as above.
    let [section_size, section_count] = unsafe { read::<[u16; 2]>(image, 58) };
    let segments = u64::from(segment_size) * u64::from(segment_count);
    let sections = u64::from(section_size) * u64::from(section_count);
    let mut end = HEADER
        .max(segments_at.checked_add(segments)?)
        .max(sections_at.checked_add(sections)?);
    if end > LARGEST_BYTES || section_size < 64 {
        return (end <= LARGEST_BYTES).then_some(end);
    }
    for section in 0..u64::from(section_count) {
        let at = usize::try_from(sections_at + section * u64::from(section_size)).ok()?;
        // SAFETY: the section table is part of the file.
        let kind = unsafe { read::<u32>(image, at + 4) };
        // SAFETY: as above.
        let [offset, size] = unsafe { read::<[u64; 2]>(image, at + 24) };
        if kind != NO_BITS {
            end = end.max(offset.checked_add(size)?);
        }
    }
    Some(end)
}

/// # Safety
/// `image + at` is readable for a `T`, which may hold any bytes.
unsafe fn read<T: Copy>(image: *const u8, at: usize) -> T {
    // SAFETY: the caller's promise.
    let place = unsafe { image.add(at) };
    // SAFETY: as above.
    unsafe { place.cast::<T>().read_unaligned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(image: &[u8]) -> u64 {
        // SAFETY: the tests' images are whole.
        unsafe { hash(image.as_ptr()) }
    }

    fn fatbin(body: &[u8]) -> Vec<u8> {
        let mut image = FATBIN.to_le_bytes().to_vec();
        image.extend([1, 0, 16, 0]);
        image.extend((body.len() as u64).to_le_bytes());
        image.extend(body);
        image
    }

    fn elf(body: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 64];
        image[..5].copy_from_slice(b"\x7fELF\x02");
        image[40..48].copy_from_slice(&((64 + body.len()) as u64).to_le_bytes());
        image[58..60].copy_from_slice(&64u16.to_le_bytes());
        image[60..62].copy_from_slice(&1u16.to_le_bytes());
        image.extend(body);
        let mut section = vec![0; 64];
        section[4] = 1;
        section[24..32].copy_from_slice(&64u64.to_le_bytes());
        section[32..40].copy_from_slice(&(body.len() as u64).to_le_bytes());
        image.extend(section);
        image
    }

    #[test]
    fn text_ends_at_its_zero() {
        assert_eq!(of(b".version 8.0\0junk"), of(b".version 8.0\0more junk"));
        assert_eq!(of(b".version 8.0\0"), hash_bytes(b".version 8.0"));
        assert_ne!(of(b".version 8.0\0"), of(b".version 8.1\0"));
    }

    #[test]
    fn a_wrapper_is_the_fat_binary_inside() {
        let inner = fatbin(b"some code");
        let mut wrapper = WRAPPER.to_le_bytes().to_vec();
        wrapper.extend(1u32.to_le_bytes());
        wrapper.extend((inner.as_ptr() as u64).to_le_bytes());
        wrapper.extend(0u64.to_le_bytes());
        assert_eq!(of(&wrapper), of(&inner));
        assert_eq!(of(&inner), hash_bytes(&inner));
        let mut longer = inner.clone();
        longer.extend(b"what lies behind");
        assert_eq!(of(&longer), of(&inner));
        assert_ne!(of(&fatbin(b"other code")), of(&inner));
        wrapper[8..16].fill(0);
        assert_eq!(of(&wrapper), 0);
    }

    #[test]
    fn an_elf_file_ends_with_its_last_part() {
        let image = elf(b"instructions");
        let mut longer = image.clone();
        longer.extend(b"what lies behind");
        assert_eq!(of(&image), hash_bytes(&image));
        assert_eq!(of(&longer), of(&image));
        assert_ne!(of(&elf(b"instructionz")), of(&image));
    }

    #[test]
    fn what_is_no_image_is_unknown() {
        assert_eq!(of(&[0; 64]), 0);
        assert_eq!(of(&[0xff; 64]), 0);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { hash(std::ptr::null()) }, 0);
    }

    #[test]
    fn a_large_image_is_sampled_from_end_to_end() {
        let mut image = vec![7u8; 3 << 20];
        let whole = hash_bytes(&image);
        for at in [0, BEGINNING_BYTES - 1, BEGINNING_BYTES + 5, (3 << 20) - 1] {
            image[at] ^= 1;
            assert_ne!(hash_bytes(&image), whole, "a change at {at}");
            image[at] ^= 1;
        }
        image.push(7);
        assert_ne!(hash_bytes(&image), whole);
    }
}
