// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and fills: one description for all shapes, how each goes to the device, and how the bytes
//! move when it is done.
//!
//! | file | what |
//! |---|---|
//! | `shaped.rs` | 2D and 3D copies as clients describe them |
//! | `fill.rs` | memsets |
#![forbid(unsafe_code)]

mod fill;
mod shaped;

use simgpu_device::{Direction, Op, Seq, TouchedAddresses};

use crate::abi::{Error, R};
use crate::effect::Effect;
use crate::memory::paging;
use crate::space::raw;
use crate::space::table::{Side, is_reachable, side};
use crate::state::Driver;
use crate::stream::Stream;

pub(crate) use fill::Set;
pub(crate) use shaped::{Copy2D, Copy3D};

/// One end of a copy: address of the first byte, bytes from row to row, rows from layer to layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) height: u64,
}

impl Place {
    pub(crate) fn linear(address: u64) -> Place {
        Place {
            address,
            pitch: 0,
            height: 0,
        }
    }

    fn row(&self, row: u64, layer: u64) -> u64 {
        self.address + self.pitch * (row + layer * self.height)
    }
}

/// A copy of a box of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) to: Place,
    pub(crate) from: Place,
    /// Bytes of a row.
    pub(crate) width: u64,
    /// Rows of a layer.
    pub(crate) rows: u64,
    /// Layers.
    pub(crate) layers: u64,
}

/// A copy on its way.
struct CopyJob {
    copy: Copy,
    /// The rows, one after another, if the client may change its buffer before the copy runs.
    staged: Option<Vec<u8>>,
}

impl Copy {
    pub(crate) fn linear(to: u64, from: u64, bytes: u64) -> Copy {
        Copy {
            to: Place::linear(to),
            from: Place::linear(from),
            width: bytes,
            rows: 1,
            layers: 1,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.rows).saturating_mul(self.layers)
    }

    /// Every row's target and source.
    fn each_row(&self, mut each: impl FnMut(u64, u64)) {
        for layer in 0..self.layers {
            for row in 0..self.rows {
                each(self.to.row(row, layer), self.from.row(row, layer));
            }
        }
    }

    /// Refuses a copy of which the device cannot reach both ends.
    pub(crate) fn check(&self) -> R {
        if self.bytes() == 0 {
            return Ok(());
        }
        for place in [&self.to, &self.from] {
            let last = place.row(self.rows - 1, self.layers - 1);
            if place.address == 0 || !is_reachable(place.address, self.width) || !is_reachable(last, self.width) {
                return Err(Error::INVALID_VALUE);
            }
        }
        Ok(())
    }

    /// Which engine takes how long for it. Host to host counts as a marker: no engine of the device
    /// moves the bytes.
    fn op(&self) -> Op {
        let bytes = self.bytes();
        match (side(self.from.address), side(self.to.address)) {
            (Side::Device, Side::Device) => Op::Copy {
                direction: Direction::DeviceToDevice,
                bytes,
            },
            (Side::Device, _) => Op::Copy {
                direction: Direction::DeviceToHost,
                bytes,
            },
            (_, Side::Device) => Op::Copy {
                direction: Direction::HostToDevice,
                bytes,
            },
            _ => Op::Marker,
        }
    }

    /// The managed memory at its ends, including the gaps between rows.
    fn touches(&self) -> Vec<TouchedAddresses> {
        let span = |place: &Place, write| {
            let end = place.row(self.rows.max(1) - 1, self.layers.max(1) - 1) + self.width;
            paging::touch(place.address, end.saturating_sub(place.address), write)
        };
        [span(&self.from, false), span(&self.to, true)]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Puts the copy on the device; the bytes move when it is done.
    pub(crate) fn submit(&self, driver: &Driver, stream: &Stream, graph: u64) -> R<Seq> {
        self.submit_with(driver, stream, graph, None)
    }

    /// As `submit`, with the rows if the client may change its buffer before the copy runs.
    pub(crate) fn submit_with(&self, driver: &Driver, stream: &Stream, graph: u64, staged: Option<Vec<u8>>) -> R<Seq> {
        self.check()?;
        if self.bytes() == 0 {
            return Ok(stream.last());
        }
        let host_may_look = side(self.to.address) == Side::Pinned;
        let job = CopyJob { copy: *self, staged };
        let touches = self.touches();
        let effect = Effect::of_bytes(self.bytes(), host_may_look, move || job.perform());
        stream.submit_touching(driver, self.op(), Some(effect), graph, &touches)
    }

    /// Takes the rows out of the client's buffer.
    pub(crate) fn stage(&self) -> Vec<u8> {
        let mut staged = vec![0; self.bytes() as usize];
        let mut rows = staged.chunks_exact_mut(self.width.max(1) as usize);
        self.each_row(|_, from| {
            if let Some(row) = rows.next() {
                raw::read(from, row);
            }
        });
        staged
    }
}

impl CopyJob {
    fn perform(self) {
        match self.staged {
            None => self.copy.each_row(|to, from| raw::copy(to, from, self.copy.width)),
            Some(staged) => {
                let mut rows = staged.chunks_exact(self.copy.width.max(1) as usize);
                self.copy.each_row(|to, _| {
                    if let Some(row) = rows.next() {
                        raw::write(to, row);
                    }
                });
            }
        }
    }
}
