// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host's side: free memory, pages touched by the host, the process's page table, the parent's
//! death.

use std::io::{Read, Seek, SeekFrom};

use anyhow::{Context, Result, ensure};

/// The host's page.
pub const PAGE: usize = 4096;

/// Bytes that can be used without swapping, by the kernel's estimate.
pub fn available_memory() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let kib: usize = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok())
        .context("/proc/meminfo has no MemAvailable")?;
    Ok(kib << 10)
}

/// Writes one word into every page of an allocation that the host reaches.
pub fn write_pages(address: u64, bytes: usize, value: u8) {
    let start: *mut u64 = std::ptr::with_exposed_provenance_mut(address as usize);
    for at in (0..bytes.saturating_sub(7)).step_by(PAGE) {
        // SAFETY: inside the allocation, which the caller holds.
        let word = unsafe { start.byte_add(at) };
        // SAFETY: as above, and aligned: allocations begin at a word at least.
        unsafe { word.write_volatile(u64::from_ne_bytes([value; 8])) };
    }
}

/// Page table entries of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageTable {
    /// Which pages are present in the host's memory.
    pub present: Vec<bool>,
    /// Whether the kernel gave frame numbers. It hides them from ordinary users, but not the
    /// present bit.
    pub frames: bool,
}

/// Reads `/proc/self/pagemap`.
pub fn page_table(address: u64, bytes: usize) -> Result<PageTable> {
    /// Bits of an entry, from the kernel's documentation of pagemap.
    const PRESENT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    let mut file = std::fs::File::open("/proc/self/pagemap").context("/proc/self/pagemap cannot be opened")?;
    let first = address / PAGE as u64;
    let pages = bytes / PAGE;
    file.seek(SeekFrom::Start(first * 8)).context("/proc/self/pagemap")?;
    let mut text = vec![0u8; pages * 8];
    file.read_exact(&mut text)
        .context("/proc/self/pagemap cannot be read")?;
    let entries = text.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes));
    let mut table = PageTable {
        present: Vec::with_capacity(pages),
        frames: false,
    };
    for entry in entries {
        table.present.push(entry & PRESENT != 0);
        table.frames |= entry & PRESENT != 0 && entry & FRAME != 0;
    }
    Ok(table)
}

/// Makes the kernel end this process when its parent ends, so that a killed probe leaves no
/// process.
pub fn end_with_parent(parent: u32) -> Result<()> {
    let set = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    set.context("the parent's death cannot be watched")?;
    // The parent may have ended before that.
    ensure!(
        rustix::process::getppid().is_some_and(|now| now.as_raw_nonzero().get().cast_unsigned() == parent),
        "the parent ended"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_available() {
        assert!(available_memory().unwrap() > 1 << 20);
    }

    #[test]
    fn touched_pages_are_present_and_untouched_ones_are_not() {
        let bytes = 64 * PAGE;
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE).unwrap();
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        // A large page would be present as a whole.
        // SAFETY: the range was just allocated.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_NOHUGEPAGE) };
        // SAFETY: as above; the old contents (zeros) may go.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) };
        let address = start.expose_provenance() as u64;
        write_pages(address, 8 * PAGE, 1);
        let table = page_table(address, bytes).unwrap();
        // SAFETY: allocated above with this layout.
        unsafe { std::alloc::dealloc(start, layout) };
        assert_eq!(table.present.len(), 64);
        assert!(table.present[..8].iter().all(|present| *present));
        assert!(table.present[8..].iter().all(|present| !present));
    }
}
