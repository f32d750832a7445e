// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an owner's address to its block: a directory of chunks of 512 blocks (1 GiB), since
//! addresses are sparse and ranges span neighbouring blocks.

use std::collections::BTreeMap;

use super::block::NONE;

const CHUNK: u64 = 512;

/// One owner's blocks by number.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    chunks: BTreeMap<u64, Box<[u32]>>,
}

/// The chunk of the last look-up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor<'a> {
    chunk: Option<(u64, &'a [u32])>,
}

impl Table {
    pub(super) fn get(&self, number: u64) -> Option<u32> {
        self.get_near(number, &mut Cursor::default())
    }

    /// The block of a number; quick near the last look-up.
    pub(super) fn get_near<'a>(&'a self, number: u64, cursor: &mut Cursor<'a>) -> Option<u32> {
        let which = number / CHUNK;
        let chunk = match cursor.chunk {
            Some((at, chunk)) if at == which => chunk,
            _ => {
                let chunk = self.chunks.get(&which)?;
                cursor.chunk = Some((which, chunk));
                chunk
            }
        };
        chunk.get((number % CHUNK) as usize).copied().filter(|at| *at != NONE)
    }

    pub(super) fn set(&mut self, number: u64, at: u32) {
        let chunk = self
            .chunks
            .entry(number / CHUNK)
            .or_insert_with(|| vec![NONE; CHUNK as usize].into_boxed_slice());
        chunk[(number % CHUNK) as usize] = at;
    }

    pub(super) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        let blocks = self.chunks.values().flat_map(|chunk| chunk.iter().copied());
        blocks.filter(|at| *at != NONE)
    }
}
