// SPDX-License-Identifier: MIT OR Apache-2.0
//! A launch: the inputs that decide which memory it touches.
#![forbid(unsafe_code)]

use super::Allocations;

/// Most bytes of parameters that are read: CUDA's limit since 12.1. PyTorch's lists of tensors use
/// all of it, with pointers throughout the first third.
pub const MAX_PARAMETER_BYTES: usize = 32_764;

/// A launch. Its kernel is named by [`weft_kernel_id::SymbolKey::to_word`], as the shape is an
/// argument here.
#[derive(Debug, Clone, Copy)]
pub struct LaunchArguments<'a> {
    /// Module and symbol.
    pub kernel: u64,
    /// Parameter buffer as the kernel sees it: each parameter at its offset, structs by value in
    /// place.
    pub parameters: &'a [u8],
    /// Grid, in blocks.
    pub grid: [u32; 3],
    /// Block, in threads.
    pub block: [u32; 3],
}

impl LaunchArguments<'_> {
    /// 64-bit word at this offset, if the buffer holds it.
    pub fn word64(&self, offset: u16) -> Option<u64> {
        let bytes = self.parameters.get(usize::from(offset)..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    }

    /// 32-bit word at this offset, if the buffer holds it.
    pub fn word32(&self, offset: u16) -> Option<u32> {
        let bytes = self.parameters.get(usize::from(offset)..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// Possible offsets of a pointer, which is aligned even in a struct.
    pub fn pointer_offsets(&self) -> impl Iterator<Item = u16> + use<> {
        let bytes = self.parameters.len().min(MAX_PARAMETER_BYTES);
        (0..bytes / 8).map(|word| (word * 8) as u16)
    }

    /// Hash of the arguments without pointers: equal for launches that differ only in addresses.
    /// `scratch` is overwritten.
    pub fn shape(&self, live: &Allocations, scratch: &mut Vec<u8>) -> u64 {
        self.signature(scratch, |_, word| live.find(word).is_some())
    }

    /// Hash of the arguments without the 64-bit words for which `is_pointer(offset, value)` holds.
    /// `scratch` is overwritten; passing it saves an allocation.
    pub(super) fn signature(&self, scratch: &mut Vec<u8>, mut is_pointer: impl FnMut(u16, u64) -> bool) -> u64 {
        scratch.clear();
        scratch.extend_from_slice(self.parameters);
        for offset in self.pointer_offsets() {
            if self.word64(offset).is_some_and(|word| is_pointer(offset, word))
                && let Some(word) = scratch.get_mut(usize::from(offset)..usize::from(offset) + 8)
            {
                word.fill(0);
            }
        }
        for number in self.grid.iter().chain(&self.block) {
            scratch.extend_from_slice(&number.to_le_bytes());
        }
        weft_kernel_id::image_hash(scratch)
    }

    /// Possible offsets of a 32-bit word.
    pub fn word_offsets(&self) -> impl Iterator<Item = u16> + use<> {
        let bytes = self.parameters.len().min(MAX_PARAMETER_BYTES);
        (0..bytes / 4).map(|word| (word * 4) as u16)
    }
}
