// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decoder for one LZ4 block: the compression of fatbin entries before about CUDA 12.4.
//!
//! The format is a public specification. A sequence is a token (literal count, match length), more
//! length bytes after a nibble of 15, the literals, and a 16-bit distance back. The last sequence
//! ends after its literals.
#![forbid(unsafe_code)]

use crate::ImageError;
use crate::bytes::{slice, u16_at};

/// Shortest match; the token stores the excess.
const SHORTEST_MATCH: usize = 4;

/// Decodes `block` into exactly `size` bytes. Padding after that is ignored, as fatbin entries are
/// padded.
pub fn block(block: &[u8], size: usize) -> Result<Vec<u8>, ImageError> {
    // Not `with_capacity(size)`: the size is untrusted. The format expands at most 255 times.
    let mut out = Vec::with_capacity(size.min(block.len().saturating_mul(255)));
    let mut at = 0;
    while out.len() < size {
        let token = *block.get(at).ok_or(ImageError::Compression("LZ4 token"))?;
        at += 1;
        let literals = length(block, &mut at, token >> 4)?;
        let bytes = slice(block, at, literals).ok_or(ImageError::Compression("LZ4 literals"))?;
        out.extend_from_slice(bytes.get(..literals.min(size - out.len())).unwrap_or(&[]));
        at += literals;
        if out.len() == size {
            break;
        }
        let back = usize::from(u16_at(block, at).ok_or(ImageError::Compression("LZ4 distance"))?);
        at += 2;
        let matched = length(block, &mut at, token & 15)?
            .saturating_add(SHORTEST_MATCH)
            .min(size - out.len());
        if back == 0 || back > out.len() {
            return Err(ImageError::Compression("LZ4 distance"));
        }
        // A match may overlap its output, so byte by byte.
        for _ in 0..matched {
            let byte = out
                .get(out.len() - back)
                .copied()
                .ok_or(ImageError::Compression("LZ4 distance"))?;
            out.push(byte);
        }
    }
    Ok(out)
}

fn length(block: &[u8], at: &mut usize, nibble: u8) -> Result<usize, ImageError> {
    let mut total = usize::from(nibble);
    if nibble == 15 {
        loop {
            let more = *block.get(*at).ok_or(ImageError::Compression("LZ4 length"))?;
            *at += 1;
            total += usize::from(more);
            if more != 255 {
                break;
            }
        }
    }
    Ok(total)
}
