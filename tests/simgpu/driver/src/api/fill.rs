// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points of memsets.
#![deny(unsafe_code)]

use crate::abi::{DevicePtr, Handle, R};
use crate::api::enqueue::enqueue;
use crate::copy::Set;
use crate::export::export;
use crate::space::table::{Side, side};
use crate::work::StreamWork;
use crate::{state, stream};

impl Set {
    fn enqueue(self, stream: Handle) -> R {
        let driver = state::driver()?;
        let stream = stream::resolve(driver, stream)?;
        if stream.is_capturing() {
            // Addresses are looked at when the graph runs: cuDNN captures with ones that it
            // replaces before.
            self.check_shape()?;
        }
        enqueue(driver, &stream, StreamWork::Set(self))
    }

    /// `cuMemset*` without `Async`: on the device's memory it does not wait, as the real driver
    /// does not.
    fn run(self, default: Handle) -> R {
        let driver = state::driver()?;
        let stream = stream::resolve(driver, default)?;
        stream.may_synchronize()?;
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
