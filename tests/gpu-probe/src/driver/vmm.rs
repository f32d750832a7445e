// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses and physical memory managed separately: the memory at an address may leave and be
//! replaced.
//!
//! Memory is mapped in pieces of one size, the first at the first address. A drop unmaps, releases
//! and frees all of it.

use super::api::{AccessDesc, AllocationProp, CudaError};
use super::gpu::Gpu;
use super::memory::Memory;

/// Addresses of the first device, and the pieces of physical memory for them.
pub struct Reserved<'g> {
    gpu: &'g Gpu,
    address: u64,
    bytes: usize,
    piece_bytes: usize,
    /// Handles, in the order of their addresses.
    pieces: Vec<u64>,
    /// Number of mapped pieces.
    mapped: usize,
}

impl Gpu {
    /// The unit of physical memory, bytes (`CU_MEM_ALLOC_GRANULARITY_MINIMUM`).
    pub fn granularity(&self) -> Result<usize, CudaError> {
        let mut bytes = 0;
        // SAFETY: the out pointer is a local, the wish a constant.
        unsafe {
            self.api
                .cuMemGetAllocationGranularity(&mut bytes, &AllocationProp::PLAIN, 0)
        }?;
        Ok(bytes)
    }

    /// Room for pieces of `piece_bytes`; no address is reserved yet.
    pub fn reserved(&self, bytes: usize, piece_bytes: usize) -> Reserved<'_> {
        Reserved {
            gpu: self,
            address: 0,
            bytes,
            piece_bytes,
            pieces: Vec::new(),
            mapped: 0,
        }
    }
}

impl Reserved<'_> {
    /// Reserves the addresses. No memory is mapped there yet.
    pub fn reserve(&mut self) -> Result<(), CudaError> {
        // SAFETY: the out pointer lives across the call.
        unsafe { self.gpu.api.cuMemAddressReserve(&mut self.address, self.bytes, 0, 0, 0) }
    }

    /// Number of pieces that fit.
    pub fn room(&self) -> usize {
        self.bytes / self.piece_bytes
    }

    /// Takes physical memory for the next piece.
    pub fn create(&mut self) -> Result<(), CudaError> {
        let mut handle = 0;
        // SAFETY: the out pointer is a local, the wish a constant.
        unsafe {
            self.gpu
                .api
                .cuMemCreate(&mut handle, self.piece_bytes, &AllocationProp::PLAIN, 0)
        }?;
        self.pieces.push(handle);
        Ok(())
    }

    fn place(&self, piece: usize) -> u64 {
        self.address + (piece * self.piece_bytes) as u64
    }

    /// Maps the first piece that is not mapped.
    pub fn map(&mut self) -> Result<(), CudaError> {
        if let Some(handle) = self.pieces.get(self.mapped) {
            let at = self.place(self.mapped);
            // SAFETY: reserved addresses with nothing there, a handle of that size.
            unsafe { self.gpu.api.cuMemMap(at, self.piece_bytes, 0, *handle, 0) }?;
            self.mapped += 1;
        }
        Ok(())
    }

    /// Lets the device read and write the piece that was mapped last.
    pub fn set_access(&self) -> Result<(), CudaError> {
        let at = self.place(self.mapped.saturating_sub(1));
        // SAFETY: reserved addresses, one constant description.
        unsafe { self.gpu.api.cuMemSetAccess(at, self.piece_bytes, &AccessDesc::BOTH, 1) }
    }

    /// Unmaps the last piece and gives its memory back. The device must not be using it.
    pub fn unmap_release(&mut self) -> Result<(), CudaError> {
        if self.mapped == self.pieces.len() && self.mapped > 0 {
            self.mapped -= 1;
            // SAFETY: mapped there; the caller has waited for the work on it.
            unsafe { self.gpu.api.cuMemUnmap(self.place(self.mapped), self.piece_bytes) }?;
        }
        match self.pieces.pop() {
            // SAFETY: made by `create`, released once.
            Some(handle) => unsafe { self.gpu.api.cuMemRelease(handle) },
            None => Ok(()),
        }
    }

    /// Mapped bytes from `from` on, for copies.
    pub fn part(&self, from: usize, bytes: usize) -> Memory<'_> {
        let from = from.min(self.bytes);
        self.gpu
            .mapped(self.address + from as u64, bytes.min(self.bytes - from))
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        // An error here follows one that was reported; the process ends soon.
        while !self.pieces.is_empty() {
            let _ = self.unmap_release();
        }
        // SAFETY: reserved by this driver, freed once; an address of 0 is an error of the driver.
        let _ = unsafe { self.gpu.api.cuMemAddressFree(self.address, self.bytes) };
    }
}
