//! A launch, as far as it says what will be touched.
#![forbid(unsafe_code)]

use super::Allocations;
use super::template::signature;

/// Bytes of parameters that are looked at: CUDA's limit since 12.1, 4 KB before. PyTorch's lists of tensors fill it, with pointers all through its first third.
pub const MAX_PARAMETERS: usize = 32_764;

/// A launch. Its kernel is named by [`weft_kernel_id::SymbolKey::to_word`]: the shape is an argument here, not part of the identity.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Module and symbol.
    pub kernel: u64,
    /// The parameter buffer as the kernel sees it: each parameter at its offset, structs by value in place.
    pub parameters: &'a [u8],
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
}

impl Launch<'_> {
    /// The 64-bit word at this offset, if the buffer reaches so far.
    pub fn word64(&self, offset: u16) -> Option<u64> {
        let bytes = self.parameters.get(usize::from(offset)..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    }

    /// The 32-bit word at this offset, if the buffer reaches so far.
    pub fn word32(&self, offset: u16) -> Option<u32> {
        let bytes = self.parameters.get(usize::from(offset)..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// Offsets at which a pointer can lie: a pointer is aligned, in a struct too.
    pub fn pointer_offsets(&self) -> impl Iterator<Item = u16> + use<> {
        let bytes = self.parameters.len().min(MAX_PARAMETERS);
        (0..bytes / 8).map(|word| (word * 8) as u16)
    }

    /// A number of all that it is given but where its data lies: equal for launches of a kernel that differ in that alone. `scratch` is overwritten.
    pub fn shape(&self, live: &Allocations, scratch: &mut Vec<u8>) -> u64 {
        signature(self, scratch, |_, word| live.find(word).is_some())
    }

    /// Offsets at which a 32-bit word can lie.
    pub fn word_offsets(&self) -> impl Iterator<Item = u16> + use<> {
        let bytes = self.parameters.len().min(MAX_PARAMETERS);
        (0..bytes / 4).map(|word| (word * 4) as u16)
    }
}
