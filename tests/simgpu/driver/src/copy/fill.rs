// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fills.
#![forbid(unsafe_code)]

use simgpu_device::{Op, Seq};

use crate::abi::{Error, R};
use crate::effect::Effect;
use crate::memory::paging;
use crate::space::raw;
use crate::space::table::{is_mapped, is_reachable};
use crate::state::Driver;
use crate::stream::Stream;

/// A fill of rows with one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) address: u64,
    /// Bytes from row to row.
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub(crate) element: u32,
    /// Elements of a row.
    pub(crate) width: u64,
    /// Rows.
    pub(crate) rows: u64,
}

impl Set {
    /// Checks the API's demands on it; of the address only the alignment.
    pub(crate) fn check_shape(&self) -> R {
        let row = self
            .width
            .checked_mul(self.element.into())
            .ok_or(Error::INVALID_VALUE)?;
        if ![1, 2, 4].contains(&self.element) || !self.address.is_multiple_of(self.element.into()) {
            return Err(Error::INVALID_VALUE);
        }
        if row == 0 || self.rows == 0 {
            return Ok(());
        }
        if self.rows > 1 && (self.pitch < row || !self.pitch.is_multiple_of(self.element.into())) {
            return Err(Error::INVALID_VALUE);
        }
        Ok(())
    }

    /// Checks that all of it is memory that the device can reach.
    pub(crate) fn check(&self) -> R {
        self.check_shape()?;
        if self.bytes() == 0 {
            return Ok(());
        }
        let row = self.width * u64::from(self.element);
        let last = self.address + self.pitch * (self.rows - 1);
        let reachable = |at| is_mapped(at) && is_reachable(at, row);
        if reachable(self.address) && reachable(last) {
            Ok(())
        } else {
            Err(Error::INVALID_VALUE)
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.width * u64::from(self.element) * self.rows
    }

    /// Puts it on the device.
    pub(crate) fn submit(&self, driver: &Driver, stream: &Stream, graph: u64) -> R<Seq> {
        self.check()?;
        if self.bytes() == 0 {
            return Ok(stream.last());
        }
        let span = self.pitch * (self.rows - 1) + self.width * u64::from(self.element);
        let touches: Vec<_> = paging::touch(self.address, span, true).into_iter().collect();
        let set = *self;
        let effect = Effect::of_bytes(set.bytes(), false, move || set.perform());
        stream.submit_touching(
            driver,
            Op::Memset { bytes: self.bytes() },
            Some(effect),
            graph,
            &touches,
        )
    }

    /// Fills the bytes.
    fn perform(self) {
        let Set {
            address,
            pitch,
            value,
            element,
            width,
            rows,
        } = self;
        let value = value.to_ne_bytes();
        for row in 0..rows {
            let at = address + pitch * row;
            match element {
                1 => raw::fill(at, width, value[0]),
                2 => raw::fill_words(at, &value[..2], width),
                _ => raw::fill_words(at, &value, width),
            }
        }
    }
}
