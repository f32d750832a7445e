// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a library's paths from the dynamic linker's cache, `/etc/ld.so.cache`.
//!
//! glibc's `cache_file_new`: magic text, counts, entries of 24 bytes (flags, name, path, ...),
//! texts; offsets count from the magic. An older table in front is skipped. Malformed data yields
//! no path.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Flags of this processor's libraries: ELF of libc 6, and the architecture.
const LIBRARY_FLAGS: u32 = if cfg!(target_arch = "aarch64") { 0x0a03 } else { 0x0303 };

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";

const HEADER: usize = 48;
const ENTRY: usize = 24;

/// Paths of the library of that name, in the cache's order.
pub fn paths(cache: &[u8], name: &str) -> Vec<PathBuf> {
    let Some(start) = cache.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let cache = cache.get(start..).unwrap_or_default();
    let count = word(cache, MAGIC.len()).unwrap_or(0) as usize;
    let mut found = Vec::new();
    for at in 0..count.min(cache.len() / ENTRY) {
        let entry = HEADER + at * ENTRY;
        let (Some(flags), Some(key), Some(value)) =
            (word(cache, entry), word(cache, entry + 4), word(cache, entry + 8))
        else {
            break;
        };
        if flags == LIBRARY_FLAGS
            && text(cache, key) == Some(name.as_bytes())
            && let Some(path) = text(cache, value)
            && path.first() == Some(&b'/')
        {
            found.push(PathBuf::from(OsStr::from_bytes(path)));
        }
    }
    found
}

fn word(cache: &[u8], at: usize) -> Option<u32> {
    cache.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn text(cache: &[u8], at: u32) -> Option<&[u8]> {
    let rest = cache.get(at as usize..)?;
    rest.get(..rest.iter().position(|byte| *byte == 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut head = MAGIC.to_vec();
        head.extend((entries.len() as u32).to_le_bytes());
        head.resize(HEADER, 0);
        let mut texts = Vec::new();
        let base = HEADER + entries.len() * ENTRY;
        for (flags, name, path) in entries {
            head.extend(flags.to_le_bytes());
            for text in [name, path] {
                head.extend(((base + texts.len()) as u32).to_le_bytes());
                texts.extend(text.as_bytes());
                texts.push(0);
            }
            head.extend([0; 12]);
        }
        head.extend(texts);
        head
    }

    #[test]
    fn the_path_of_the_right_architecture_is_found() {
        let entries = [
            (LIBRARY_FLAGS, "libc.so.6", "/a"),
            (0x0003, "libcuda.so.1", "/lib32/x"),
            (LIBRARY_FLAGS, "libcuda.so.1", "/lib64/x"),
        ];
        assert_eq!(paths(&cache(&entries), "libcuda.so.1"), [PathBuf::from("/lib64/x")]);
        assert_eq!(paths(&cache(&entries), "libcuda.so"), Vec::<PathBuf>::new());
        let mut old = b"ld.so-1.7.0 and an older table".to_vec();
        old.extend(cache(&entries));
        assert_eq!(paths(&old, "libcuda.so.1").len(), 1);
    }

    #[test]
    fn nonsense_yields_nothing() {
        let good = cache(&[(LIBRARY_FLAGS, "libcuda.so.1", "/lib64/x")]);
        for length in 0..good.len() {
            assert!(paths(&good[..length], "libcuda.so.1").is_empty());
        }
        let mut many = good.clone();
        many[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(paths(&many, "libcuda.so.1").len(), 1);
    }

    #[test]
    fn this_machine_s_cache_has_a_libc() {
        let Ok(cache) = std::fs::read("/etc/ld.so.cache") else {
            return;
        };
        assert!(!paths(&cache, "libc.so.6").is_empty());
    }
}
