// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader of the dynamic linker's cache, which finds the driver in the same place as the linker.
//!
//! `/etc/ld.so.cache` in glibc's format ("glibc-ld.so.cache1.1"): a header of 48 bytes, entries of
//! 24 bytes (flags, name offset, path offset, version, hardware), then strings. Offsets count from
//! the header; an older cache may precede it. A file of another form yields nothing.
#![forbid(unsafe_code)]

use std::path::PathBuf;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
/// Flags of an entry: low byte 3 is "an ELF library for libc6", bits 8 to 15 the machine.
const ENTRY_FLAGS: u32 = if cfg!(target_arch = "aarch64") { 0x0a03 } else { 0x0303 };

/// All cached paths of a soname.
pub fn paths(soname: &str) -> Vec<PathBuf> {
    std::fs::read("/etc/ld.so.cache").map_or_else(|_| Vec::new(), |bytes| paths_in(&bytes, soname))
}

fn paths_in(bytes: &[u8], soname: &str) -> Vec<PathBuf> {
    let Some(start) = bytes.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let cache = &bytes[start..];
    let number = |at: usize| -> Option<u32> {
        let word: [u8; 4] = cache.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(u32::from_le_bytes(word))
    };
    let string = |at: u32| -> Option<&str> {
        let tail = cache.get(at as usize..)?;
        let end = tail.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&tail[..end]).ok()
    };
    let count = number(MAGIC.len()).unwrap_or(0) as usize;
    // The file's end bounds a wrong count.
    (0..count.min(cache.len() / ENTRY_BYTES))
        .filter_map(|index| {
            let entry = HEADER_BYTES + index * ENTRY_BYTES;
            let fits = number(entry)? == ENTRY_FLAGS && string(number(entry + 4)?)? == soname;
            fits.then(|| string(number(entry + 8)?).map(PathBuf::from)).flatten()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let strings_at = HEADER_BYTES + ENTRY_BYTES * entries.len();
        let mut head = MAGIC.to_vec();
        head.extend((entries.len() as u32).to_le_bytes());
        head.resize(HEADER_BYTES, 0);
        let mut strings: Vec<u8> = Vec::new();
        for (flags, name, path) in entries {
            let mut entry = flags.to_le_bytes().to_vec();
            for text in [name, path] {
                entry.extend(((strings_at + strings.len()) as u32).to_le_bytes());
                strings.extend(text.as_bytes());
                strings.push(0);
            }
            entry.resize(ENTRY_BYTES, 0);
            head.extend(entry);
        }
        head.extend(strings);
        head
    }

    #[test]
    fn finds_what_fits_this_machine() {
        let bytes = cache(&[
            (ENTRY_FLAGS, "libm.so.6", "/lib/libm.so.6"),
            (0x0003, "libcuda.so.1", "/lib32/libcuda.so.1"),
            (ENTRY_FLAGS, "libcuda.so.1", "/lib/libcuda.so.1"),
        ]);
        assert_eq!(paths_in(&bytes, "libcuda.so.1"), [PathBuf::from("/lib/libcuda.so.1")]);
        let mut shifted = b"ld.so-1.7.0\0".to_vec();
        shifted.extend(&bytes);
        assert_eq!(paths_in(&shifted, "libcuda.so.1").len(), 1);
    }

    #[test]
    fn a_cut_cache_is_survived() {
        let bytes = cache(&[(ENTRY_FLAGS, "libcuda.so.1", "/lib/libcuda.so.1")]);
        for length in 0..bytes.len() {
            assert!(paths_in(&bytes[..length], "libcuda.so.1").is_empty());
        }
    }

    #[test]
    fn the_system_has_a_c_library() {
        // An existing cache contains libc.
        if std::path::Path::new("/etc/ld.so.cache").exists() {
            assert!(paths("libc.so.6").iter().any(|path| path.exists()));
        }
    }
}
