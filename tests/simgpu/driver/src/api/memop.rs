// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points that write single words in stream order, or wait for them.
#![deny(unsafe_code)]

use std::sync::Arc;

use crate::abi::{DevicePtr, Handle, In, R};
use crate::api::enqueue::enqueue;
use crate::export::export;
use crate::state;
use crate::stream::memop::{Compare, MemOp, Params, Word, parse_all};
use crate::stream::resolve;
use crate::work::StreamWork;

fn put(stream: Handle, ops: Arc<[MemOp]>) -> R {
    let driver = state::driver()?;
    let stream = resolve(driver, stream)?;
    enqueue(driver, &stream, StreamWork::MemOps(ops))
}

fn wait(stream: Handle, address: DevicePtr, value: u64, flags: u32, wide: bool) -> R {
    put(
        stream,
        [MemOp::Wait(Word::new(address, value, wide)?, Compare::new(flags)?)].into(),
    )
}

fn write(stream: Handle, address: DevicePtr, value: u64, wide: bool) -> R {
    put(stream, [MemOp::Write(Word::new(address, value, wide)?)].into())
}

export! {
    fn cuStreamWaitValue32(stream: Handle, address: DevicePtr, value: u32, flags: u32) {
        wait(stream, address, value.into(), flags, false)
    }

    fn cuStreamWaitValue32_v2(stream: Handle, address: DevicePtr, value: u32, flags: u32) {
        wait(stream, address, value.into(), flags, false)
    }

    fn cuStreamWaitValue64(stream: Handle, address: DevicePtr, value: u64, flags: u32) {
        wait(stream, address, value, flags, true)
    }

    fn cuStreamWaitValue64_v2(stream: Handle, address: DevicePtr, value: u64, flags: u32) {
        wait(stream, address, value, flags, true)
    }

    fn cuStreamWriteValue32(stream: Handle, address: DevicePtr, value: u32, flags: u32) {
        let _ = flags;
        write(stream, address, value.into(), false)
    }

    fn cuStreamWriteValue32_v2(stream: Handle, address: DevicePtr, value: u32, flags: u32) {
        let _ = flags;
        write(stream, address, value.into(), false)
    }

    fn cuStreamWriteValue64(stream: Handle, address: DevicePtr, value: u64, flags: u32) {
        let _ = flags;
        write(stream, address, value, true)
    }

    fn cuStreamWriteValue64_v2(stream: Handle, address: DevicePtr, value: u64, flags: u32) {
        let _ = flags;
        write(stream, address, value, true)
    }

    fn cuStreamBatchMemOp(stream: Handle, count: u32, params: In<Params>, flags: u32) {
        let _ = flags;
        put(stream, parse_all(params, count as usize)?)
    }

    fn cuStreamBatchMemOp_v2(stream: Handle, count: u32, params: In<Params>, flags: u32) {
        let _ = flags;
        put(stream, parse_all(params, count as usize)?)
    }
}
