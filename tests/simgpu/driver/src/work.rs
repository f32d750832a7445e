// SPDX-License-Identifier: MIT OR Apache-2.0
//! An operation for a stream, as a value: it runs now, or is kept in a graph and runs many times.
//!
//! `api/enqueue.rs` makes it from a client's call (a capturing stream passes it on to `graph`).
//! [`StreamWork::submit`] puts it on the device (a graph replays its nodes with it).

use std::sync::Arc;

use simgpu_device::{Op, Seq};

use crate::abi::{Error, Handle, R};
use crate::context::Context;
use crate::copy::{Copy, Set};
use crate::effect::Effect;
use crate::launch::Launch;
use crate::state::Driver;
use crate::stream::Stream;
use crate::stream::memop::MemOp;

/// One operation.
#[derive(Clone)]
pub(crate) enum StreamWork {
    /// A kernel, with its own copy of its parameters if anything reads them.
    Kernel(Arc<Launch>),
    /// A copy of any shape.
    Copy(Copy),
    /// A fill of any shape.
    Set(Set),
    /// The client's function.
    Host(HostCall),
    /// Writes of and waits for single words.
    MemOps(Arc<[MemOp]>),
    /// Nothing, in its place.
    Empty,
}

impl StreamWork {
    /// Puts the work on the device, and answers the last operation that it became. `graph`: the
    /// number of its graph launch; 0 for none.
    pub(crate) fn submit(&self, driver: &Driver, stream: &Stream, graph: u64) -> R<Seq> {
        match self {
            StreamWork::Kernel(launch) => launch.submit(driver, stream, graph),
            StreamWork::Copy(copy) => copy.submit(driver, stream, graph),
            StreamWork::Set(set) => set.submit(driver, stream, graph),
            StreamWork::Host(call) => {
                let effect = call.effect(stream.context.clone());
                stream.submit(driver, Op::Host, Some(effect), graph)
            }
            StreamWork::MemOps(ops) => {
                let mut last = Seq::NONE;
                for op in ops.iter() {
                    last = op.submit(driver, stream, graph)?;
                }
                Ok(last)
            }
            StreamWork::Empty => stream.submit(driver, Op::Marker, None, graph),
        }
    }
}

/// A function of the client's that a driver thread calls.
#[derive(Debug, Clone, std::marker::Copy)]
pub(crate) enum HostCall {
    /// `CUhostFn`.
    Function {
        /// The client's function.
        function: extern "C" fn(usize),
        /// Its argument.
        data: usize,
    },
    /// `CUstreamCallback`.
    Callback {
        /// The client's function.
        callback: extern "C" fn(usize, u32, usize),
        /// Its first argument.
        stream: Handle,
        /// Its last.
        data: usize,
    },
}

impl HostCall {
    /// `CUhostFn` at an address.
    pub(crate) fn function(address: usize, data: usize) -> R<HostCall> {
        if address == 0 {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and by the API's contract the address of a function of this type.
        let function = unsafe { std::mem::transmute::<usize, extern "C" fn(usize)>(address) };
        Ok(HostCall::Function { function, data })
    }

    /// `CUstreamCallback` at an address.
    pub(crate) fn callback(address: usize, stream: Handle, data: usize) -> R<HostCall> {
        if address == 0 {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: not null, and by the API's contract the address of a function of this type.
        let callback = unsafe { std::mem::transmute::<usize, extern "C" fn(usize, u32, usize)>(address) };
        Ok(HostCall::Callback { callback, stream, data })
    }

    /// The effect that calls it. If a kernel has failed, a function is not called, and a callback
    /// gets the error.
    fn effect(self, context: Arc<Context>) -> Effect {
        Effect::Call(Box::new(move || self.run_in(context.check())))
    }

    /// Calls it.
    pub(crate) fn run(self) {
        self.run_in(Ok(()));
    }

    /// Calls it after work that may have failed: a callback gets the error, a function is not
    /// called then.
    fn run_in(self, state: R) {
        match (self, state) {
            (HostCall::Function { function, data }, Ok(())) => function(data),
            (HostCall::Function { .. }, Err(_)) => {}
            (HostCall::Callback { callback, stream, data }, state) => {
                callback(stream, state.err().map_or(0, |error| error.0), data);
            }
        }
    }
}
