//! What is left behind, whatever it is.
#![forbid(unsafe_code)]

use weft_protocol::Ns;

use super::deferred_launch::{self, Held};
use super::fifo::To;
use super::fill::Ready;
use super::validated;
use crate::driver::abi::{CuContext, CuResult, CuStream};
use crate::throttle;

/// A call that waits in the queue.
#[derive(Debug)]
pub enum Left {
    /// A launch.
    Launch(Held),
    /// A fill, or a copy on the device.
    Fill(Ready),
}

impl Left {
    /// Where it goes.
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

    /// Memory that it takes here.
    pub fn bytes(&self) -> usize {
        match self {
            Left::Launch(held) => held.bytes(),
            Left::Fill(_) => size_of::<Ready>(),
        }
    }

    /// Predicted time on the device.
    pub fn work(&self) -> Ns {
        match self {
            Left::Launch(held) => throttle::cost_of(&held.info),
            Left::Fill(fill) => throttle::cost_of_bytes(fill.moved()),
        }
    }

    /// The context that was current.
    pub fn context(&self) -> CuContext {
        match self {
            Left::Launch(held) => held.context,
            Left::Fill(fill) => fill.context(),
        }
    }

    /// Takes it through the gate, to the driver, and tells the session. Its context is current.
    pub fn go(&self) -> CuResult {
        match self {
            Left::Launch(held) => deferred_launch::go(held),
            Left::Fill(fill) => fill.go(),
        }
    }
}
