// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host memory for the contents of one evicted block: anonymous memory of the job, pinned as far as
//! the driver pins it.

use std::ffi::c_void;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::driver::abi::{CuDevicePtr, CuResult};
use crate::driver::calls;

/// Bytes that are pinned and copied at once.
const PIECE_BYTES: usize = 64 << 20;

/// CU_MEMHOSTREGISTER_PORTABLE: pinned for all contexts.
const PORTABLE: u32 = 1;

/// Contents of a block.
#[derive(Debug)]
pub struct HostCopy {
    at: *mut c_void,
    bytes: usize,
    /// Pinned pieces, from the first on.
    pinned: usize,
}

// SAFETY: only this value uses the memory.
unsafe impl Send for HostCopy {}

impl HostCopy {
    /// Copies `bytes` from the device. The context is current and has no work.
    pub fn of(from: CuDevicePtr, bytes: usize) -> Result<HostCopy, CuResult> {
        let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping of its own.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, private) };
        let at = at.map_err(|_| CuResult::OUT_OF_MEMORY)?;
        let mut copy = HostCopy { at, bytes, pinned: 0 };
        for (nth, (piece, offset, length)) in copy.pieces().enumerate() {
            // Without a pin the copy is slower.
            // SAFETY: the piece is mapped, and unregistered before it is unmapped.
            if copy.pinned == nth && unsafe { calls::cuMemHostRegister_v2(piece, length, PORTABLE) }.ok() {
                copy.pinned = nth + 1;
            }
            // SAFETY: the piece is that long; the caller's promise for the device's side.
            let copied = unsafe { calls::cuMemcpyDtoH_v2(piece, from + offset as u64, length) };
            if !copied.ok() {
                return Err(copied);
            }
        }
        Ok(copy)
    }

    /// Copies the contents back. The context is current.
    pub fn put(&self, to: CuDevicePtr) -> Result<(), CuResult> {
        for (piece, offset, length) in self.pieces() {
            // SAFETY: the piece is mapped and that long; the block is mapped on the device.
            let copied = unsafe { calls::cuMemcpyHtoD_v2(to + offset as u64, piece, length) };
            if !copied.ok() {
                return Err(copied);
            }
        }
        Ok(())
    }

    /// Address, offset and length of each piece.
    fn pieces(&self) -> impl Iterator<Item = (*mut c_void, usize, usize)> + use<> {
        let (at, bytes) = (self.at, self.bytes);
        let offsets = (0..bytes).step_by(PIECE_BYTES);
        offsets.map(move |offset| (at.wrapping_byte_add(offset), offset, PIECE_BYTES.min(bytes - offset)))
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        for (piece, _, _) in self.pieces().take(self.pinned) {
            // SAFETY: registered when the copy was made.
            let _ = unsafe { calls::cuMemHostUnregister(piece) };
        }
        // SAFETY: mapped by this value, which nothing else uses.
        let _ = unsafe { munmap(self.at, self.bytes) };
    }
}
