// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of eviction: a list through the blocks that take room on the device, oldest arrival
//! first.

use super::block::{Block, NONE};

/// The list's ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct EvictionOrder {
    pub(super) first: u32,
    last: u32,
}

impl EvictionOrder {
    pub(super) fn new() -> EvictionOrder {
        EvictionOrder {
            first: NONE,
            last: NONE,
        }
    }

    fn holds(&self, blocks: &[Block], at: u32) -> bool {
        self.first == at || blocks[at as usize].before != NONE
    }

    /// Takes a block out, if it is in.
    pub(super) fn remove(&mut self, blocks: &mut [Block], at: u32) {
        if !self.holds(blocks, at) {
            return;
        }
        let Block { before, behind, .. } = blocks[at as usize];
        match before {
            NONE => self.first = behind,
            before => blocks[before as usize].behind = behind,
        }
        match behind {
            NONE => self.last = before,
            behind => blocks[behind as usize].before = before,
        }
        blocks[at as usize].before = NONE;
        blocks[at as usize].behind = NONE;
    }

    /// Puts a block that has just arrived last.
    pub(super) fn touch(&mut self, blocks: &mut [Block], at: u32) {
        if self.last == at {
            return;
        }
        self.remove(blocks, at);
        match self.last {
            NONE => self.first = at,
            last => blocks[last as usize].behind = at,
        }
        blocks[at as usize].before = self.last;
        self.last = at;
    }

    /// The blocks, the next to leave first.
    pub(super) fn iter<'a>(&self, blocks: &'a [Block]) -> impl Iterator<Item = u32> + 'a {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let this = at;
            let block = blocks.get(this as usize)?;
            at = block.behind;
            Some(this)
        })
    }
}
