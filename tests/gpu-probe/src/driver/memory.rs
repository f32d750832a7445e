// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations of every kind, freed when dropped, bounded by the machine's free memory.
//!
//! The bounds follow the worst reading of the documentation, in which excess managed memory may
//! displace memory of any process. Plain memory is at most a quarter of the free memory. Managed
//! and pinned memory is at most a quarter of the free memory on the device *and* on the host, and
//! 256 MiB. A probe that gets less than it can use gets an error.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::api::CudaError;
use super::gpu::{Gpu, Part};
use crate::host;

/// Most managed or pinned memory of a probe at once.
const MAX_MANAGED_BYTES: usize = 256 << 20;
/// Unit of large allocations: the driver's block of managed memory.
pub const BLOCK_BYTES: usize = 2 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemoryKind {
    Plain,
    Managed,
    Pinned,
    Pageable,
    /// A part of reserved addresses, which own the memory that is mapped there.
    Mapped,
}

/// An allocation.
pub struct Memory<'g> {
    gpu: &'g Gpu,
    address: u64,
    bytes: usize,
    kind: MemoryKind,
    /// The memory behind pageable memory.
    _backing: Option<Box<[u64]>>,
}

/// Bytes of `wanted` that may be allocated if `free` bytes are free.
fn share(wanted: usize, free: usize) -> usize {
    let most = wanted.min(free / 4);
    if most >= BLOCK_BYTES {
        most - most % BLOCK_BYTES
    } else {
        most
    }
}

impl Gpu {
    /// Bytes of `wanted` that may be allocated now: whole blocks, if at least one block.
    pub fn room(&self, wanted: usize, least: usize, managed: bool) -> Result<usize> {
        let free = self.free_memory()?;
        let mut bytes = share(wanted, free);
        if managed {
            bytes = bytes
                .min(MAX_MANAGED_BYTES)
                .min(share(wanted, host::available_memory()?));
        }
        ensure!(
            bytes >= least.min(wanted),
            "only {bytes} bytes may be had of {wanted} ({free} free on the device); at least {least} are needed"
        );
        Ok(bytes)
    }

    /// Device memory: `wanted` bytes, or less down to `least`.
    pub fn plain(&self, wanted: usize, least: usize) -> Result<Memory<'_>> {
        Ok(self.timed_plain(wanted, least)?.0)
    }

    /// [`Gpu::plain`] with the time of only the driver's call.
    pub fn timed_plain(&self, wanted: usize, least: usize) -> Result<(Memory<'_>, Duration)> {
        let bytes = self.room(wanted, least, false)?;
        let mut address = 0;
        let begin = Instant::now();
        // SAFETY: the out pointer is a local.
        unsafe { self.api.cuMemAlloc_v2(&mut address, bytes) }?;
        let taken = begin.elapsed();
        Ok((self.memory(address, bytes, MemoryKind::Plain), taken))
    }

    /// Managed memory: `wanted` bytes, or less down to `least`.
    pub fn managed(&self, wanted: usize, least: usize) -> Result<Memory<'_>> {
        Ok(self.timed_managed(wanted, least)?.0)
    }

    /// [`Gpu::managed`] with the time of only the driver's call.
    pub fn timed_managed(&self, wanted: usize, least: usize) -> Result<(Memory<'_>, Duration)> {
        /// `CU_MEM_ATTACH_GLOBAL`.
        const GLOBAL: u32 = 1;
        let bytes = self.room(wanted, least, true)?;
        let mut address = 0;
        let begin = Instant::now();
        // SAFETY: the out pointer is a local.
        unsafe { self.api.cuMemAllocManaged(&mut address, bytes, GLOBAL) }?;
        let taken = begin.elapsed();
        Ok((self.memory(address, bytes, MemoryKind::Managed), taken))
    }

    /// Pinned host memory, zeroed: `wanted` bytes, or less down to `least`.
    pub fn pinned(&self, wanted: usize, least: usize) -> Result<Memory<'_>> {
        /// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
        const FLAGS: u32 = 1 | 2;
        let bytes = share(wanted, host::available_memory()?).min(MAX_MANAGED_BYTES);
        ensure!(
            bytes >= least.min(wanted),
            "only {bytes} bytes of host memory may be had of {wanted}"
        );
        let mut address = 0;
        // SAFETY: the out pointer is a local.
        unsafe { self.api.cuMemHostAlloc(&mut address, bytes, FLAGS) }?;
        let memory = self.memory(address, bytes, MemoryKind::Pinned);
        host::write_pages(memory.address, bytes, 0);
        Ok(memory)
    }

    /// Ordinary host memory, every page touched.
    pub fn pageable(&self, wanted: usize, least: usize) -> Result<Memory<'_>> {
        let bytes = share(wanted, host::available_memory()?).min(MAX_MANAGED_BYTES);
        ensure!(
            bytes >= least.min(wanted),
            "only {bytes} bytes of host memory may be had of {wanted}"
        );
        let mut backing = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        let mut memory = self.memory(
            backing.as_mut_ptr().expose_provenance() as u64,
            bytes,
            MemoryKind::Pageable,
        );
        memory._backing = Some(backing);
        host::write_pages(memory.address, bytes, 1);
        Ok(memory)
    }

    pub(super) fn mapped(&self, address: u64, bytes: usize) -> Memory<'_> {
        self.memory(address, bytes, MemoryKind::Mapped)
    }

    fn memory(&self, address: u64, bytes: usize, kind: MemoryKind) -> Memory<'_> {
        Memory {
            gpu: self,
            address,
            bytes,
            kind,
            _backing: None,
        }
    }
}

impl Memory<'_> {
    /// Address on the device, and on the host if the host reaches the memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is host memory.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, MemoryKind::Pinned | MemoryKind::Pageable)
    }

    fn is_reached_by_host(&self) -> bool {
        !matches!(self.kind, MemoryKind::Plain | MemoryKind::Mapped)
    }

    /// Bytes `from` to `from + bytes` of managed memory, cut at the end of the allocation.
    pub fn part(&self, from: usize, bytes: usize) -> Part {
        debug_assert_eq!(self.kind, MemoryKind::Managed);
        let from = from.min(self.bytes);
        Part {
            at: self.address + from as u64,
            bytes: bytes.min(self.bytes - from),
        }
    }

    /// The whole of managed memory.
    pub fn whole(&self) -> Part {
        self.part(0, self.bytes)
    }

    /// Writes a word into every page from the host, which brings managed memory there. The device
    /// must not be using it.
    pub fn populate(&self, value: u8) {
        if self.is_reached_by_host() {
            host::write_pages(self.address, self.bytes, value);
        }
    }

    /// The first word of host memory, as the device left it.
    pub fn word(&self) -> u32 {
        if !self.is_reached_by_host() {
            return 0;
        }
        self.first().load(Ordering::Acquire)
    }

    fn first(&self) -> &AtomicU32 {
        let word = std::ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: an aligned word of an allocation that the host reaches and that lives as long as
        // `self`.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// Sets the first words of host memory. The device must not be using it.
    pub fn set_words_64(&self, words: &[u64]) {
        let count = self.words_of_host(words);
        let to: *mut u64 = std::ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: the allocation holds as many aligned words, and no other thread uses it.
        unsafe { words.as_ptr().copy_to(to, count) };
    }

    /// Whether host memory holds these words from its start on. The device must not be using it.
    pub fn holds(&self, words: &[u64]) -> bool {
        let count = self.words_of_host(words);
        let from: *const u64 = std::ptr::with_exposed_provenance(self.address as usize);
        // SAFETY: the allocation holds as many aligned words, and nothing writes them meanwhile.
        count == words.len() && unsafe { std::slice::from_raw_parts(from, count) } == words
    }

    /// Number of these words that fit in the allocation; 0 if the host does not reach it.
    fn words_of_host(&self, words: &[u64]) -> usize {
        if self.is_reached_by_host() {
            words.len().min(self.bytes / 8)
        } else {
            0
        }
    }

    /// A copy of the words of host memory.
    pub fn words_64(&self, count: usize) -> Vec<u64> {
        let count = count.min(self.bytes / 8);
        if !self.is_reached_by_host() {
            return Vec::new();
        }
        let from: *const u64 = std::ptr::with_exposed_provenance(self.address as usize);
        // SAFETY: the allocation holds as many aligned words, and the callers have waited for the
        // work that writes them.
        (0..count)
            .map(|at| {
                // SAFETY: inside the allocation.
                let word = unsafe { from.add(at) };
                // SAFETY: as above.
                unsafe { word.read_volatile() }
            })
            .collect()
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // A probe that fails drops its memory while the device may be at work: freeing waits for
        // it. Errors here follow errors that were reported.
        let _: Result<(), CudaError> = match self.kind {
            // SAFETY: allocated by this driver, freed once.
            MemoryKind::Plain | MemoryKind::Managed => unsafe { self.gpu.api.cuMemFree_v2(self.address) },
            // SAFETY: as above.
            MemoryKind::Pinned => unsafe { self.gpu.api.cuMemFreeHost(self.address) },
            MemoryKind::Pageable | MemoryKind::Mapped => Ok(()),
        };
    }
}
