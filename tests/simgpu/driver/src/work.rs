//! What can be put on a stream, as a value: the same whether it runs now or is kept in a graph and
//! runs many times.
//!
//! `op::enqueue` takes it for a client's call (a capturing stream passes it on to `graph`),
//! `op::submit` puts it on the device (a graph replays its nodes with it).

use std::sync::Arc;

use crate::abi::{Error, Handle, R};
use crate::copy::{Copy, Set};
use crate::launch::Launch;
use crate::stream::memop::MemOp;

/// One operation.
#[derive(Clone)]
pub(crate) enum Work {
    /// A kernel, with its own copy of its parameters where anything reads them.
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

    /// Calls it.
    pub(crate) fn run(self) {
        self.run_in(Ok(()));
    }

    /// Calls it where work before it may have failed: a callback is told how, a function is not
    /// called then.
    pub(crate) fn run_in(self, state: R) {
        match (self, state) {
            (HostCall::Function { function, data }, Ok(())) => function(data),
            (HostCall::Function { .. }, Err(_)) => {}
            (HostCall::Callback { callback, stream, data }, state) => {
                callback(stream, state.err().map_or(0, |error| error.0), data);
            }
        }
    }
}
