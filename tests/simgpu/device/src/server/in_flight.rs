// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations in the engine, by the tag with which they come out.
#![forbid(unsafe_code)]

use weft_engine::Ns;

use crate::op::{Op, Seq};

/// The device's facts of an operation in the engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    pub(super) client: u32,
    pub(super) seq: Seq,
    pub(super) ctx: u32,
    pub(super) stream: u32,
    /// Priority of the stream.
    pub(super) priority: i32,
    pub(super) submitted: Ns,
    pub(super) op: Op,
    /// The device's id of the name.
    pub(super) name: u32,
    pub(super) graph: u64,
    pub(super) prompt: bool,
}

/// Metas by tag.
#[derive(Debug, Default)]
pub(super) struct Metas {
    all: Vec<Option<Meta>>,
    free: Vec<u32>,
}

impl Metas {
    pub(super) fn put(&mut self, meta: Meta) -> u64 {
        if let Some(free) = self.free.pop() {
            if let Some(place) = self.all.get_mut(free as usize) {
                *place = Some(meta);
            }
            return u64::from(free);
        }
        self.all.push(Some(meta));
        self.all.len() as u64 - 1
    }

    pub(super) fn take(&mut self, tag: u64) -> Option<Meta> {
        let meta = self.all.get_mut(tag as usize)?.take()?;
        self.free.push(tag as u32);
        Some(meta)
    }

    pub(super) fn get(&self, tag: u64) -> Option<Meta> {
        self.all.get(tag as usize).copied().flatten()
    }
}
