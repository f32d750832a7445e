//! Memsets.
#![deny(unsafe_code)]

use simgpu_device::{Op, Seq};

use crate::abi::{DevicePtr, Error, Handle, R};
use crate::effect::Effect;
use crate::export::export;
use crate::memory::paging;
use crate::space::raw;
use crate::space::table::{Side, is_mapped, is_reachable, side};
use crate::state::{self, Driver};
use crate::stream::{self, Stream};
use crate::work::Work;
use crate::{graph, op};

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
    /// Checks what the API demands of it, whatever its address means.
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
    fn enqueue(self, stream: Handle) -> R {
        let driver = state::driver()?;
        let stream = stream::resolve(driver, stream)?;
        if stream.is_capturing() {
            // Addresses are looked at when the graph runs: cuDNN captures with ones that it
            // replaces before.
            self.check_shape()?;
        }
        op::enqueue(driver, &stream, Work::Set(self))
    }

    /// `cuMemset*` without `Async`: on the device's memory it does not wait, as the real driver
    /// does not.
    fn run(self, default: Handle) -> R {
        let driver = state::driver()?;
        let stream = stream::resolve(driver, default)?;
        graph::may_synchronize(&stream)?;
        let seq = self.submit(driver, &stream, 0)?;
        if side(self.address) == Side::Device {
            Ok(())
        } else {
            stream.wait(driver, seq)
        }
    }
}

fn flat(address: DevicePtr, value: u32, element: u32, count: usize) -> Set {
    Set {
        address,
        pitch: 0,
        value,
        element,
        width: count as u64,
        rows: 1,
    }
}

fn pitched(address: DevicePtr, pitch: usize, value: u32, element: u32, width: usize, height: usize) -> Set {
    Set {
        address,
        pitch: pitch as u64,
        value,
        element,
        width: width as u64,
        rows: height as u64,
    }
}

export! {
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds [default] (to: DevicePtr, value: u8, count: usize) {
        flat(to, value.into(), 1, count).run(default)
    }

    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds [default] (to: DevicePtr, value: u16, count: usize) {
        flat(to, value.into(), 2, count).run(default)
    }

    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds [default] (to: DevicePtr, value: u32, count: usize) {
        flat(to, value, 4, count).run(default)
    }

    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds [default] (to: DevicePtr, pitch: usize, value: u8, width: usize, height: usize) {
        pitched(to, pitch, value.into(), 1, width, height).run(default)
    }

    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds [default] (to: DevicePtr, pitch: usize, value: u16, width: usize, height: usize) {
        pitched(to, pitch, value.into(), 2, width, height).run(default)
    }

    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds [default] (to: DevicePtr, pitch: usize, value: u32, width: usize, height: usize) {
        pitched(to, pitch, value, 4, width, height).run(default)
    }

    fn cuMemsetD8Async(to: DevicePtr, value: u8, count: usize, stream: Handle) {
        flat(to, value.into(), 1, count).enqueue(stream)
    }

    fn cuMemsetD16Async(to: DevicePtr, value: u16, count: usize, stream: Handle) {
        flat(to, value.into(), 2, count).enqueue(stream)
    }

    fn cuMemsetD32Async(to: DevicePtr, value: u32, count: usize, stream: Handle) {
        flat(to, value, 4, count).enqueue(stream)
    }

    fn cuMemsetD2D8Async(to: DevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) {
        pitched(to, pitch, value.into(), 1, width, height).enqueue(stream)
    }

    fn cuMemsetD2D16Async(to: DevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) {
        pitched(to, pitch, value.into(), 2, width, height).enqueue(stream)
    }

    fn cuMemsetD2D32Async(to: DevicePtr, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) {
        pitched(to, pitch, value, 4, width, height).enqueue(stream)
    }
}
