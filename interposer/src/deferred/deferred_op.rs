//! A deferred call of any kind.
#![forbid(unsafe_code)]

use weft_protocol::Ns;

use super::deferred_launch::{self, Held};
use super::fifo::To;
use super::fill::Ready;
use super::validated;
use crate::driver::abi::{CuContext, CuResult, CuStream};
use crate::throttle;

/// A call in the queue.
#[derive(Debug)]
pub enum Left {
    /// A launch.
    Launch(Held),
    /// A fill or a device copy.
    Fill(Ready),
}

impl Left {
    /// Its target.
    pub fn to(&self) -> To {
        let (context, stream) = (self.context(), self.stream());
        let blocking = validated::blocks(stream);
        To {
            context,
            stream,
            blocking,
        }
    }

    fn stream(&self) -> CuStream {
        match self {
            Left::Launch(held) => held.info.stream,
            Left::Fill(fill) => fill.stream(),
        }
    }

    /// Its memory here, bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Left::Launch(held) => held.bytes(),
            Left::Fill(_) => size_of::<Ready>(),
        }
    }

    /// Predicted device time, ns.
    pub fn work(&self) -> Ns {
        match self {
            Left::Launch(held) => throttle::cost_of(&held.info),
            Left::Fill(fill) => throttle::cost_of_bytes(fill.moved()),
        }
    }

    /// The context current at the call.
    pub fn context(&self) -> CuContext {
        match self {
            Left::Launch(held) => held.context,
            Left::Fill(fill) => fill.context(),
        }
    }

    /// Passes the gate, makes the call, and tells the session. Its context is current.
    pub fn go(&self) -> CuResult {
        match self {
            Left::Launch(held) => deferred_launch::go(held),
            Left::Fill(fill) => fill.go(),
        }
    }
}
