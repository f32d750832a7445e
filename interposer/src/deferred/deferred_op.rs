// SPDX-License-Identifier: MIT OR Apache-2.0
//! A deferred call of any kind.
#![forbid(unsafe_code)]

use weft_protocol::Ns;

use super::deferred_launch::{self, DeferredLaunch};
use super::fifo::LaunchTarget;
use super::fill::Ready;
use super::validated;
use crate::driver::abi::{CuContext, CuResult, CuStream};
use crate::throttle;

/// A call in the queue.
#[derive(Debug)]
pub enum DeferredOp {
    /// A launch.
    Launch(DeferredLaunch),
    /// A fill or a device copy.
    Fill(Ready),
}

impl DeferredOp {
    /// Its target.
    pub fn to(&self) -> LaunchTarget {
        let (context, stream) = (self.context(), self.stream());
        let blocking = validated::blocks(stream);
        LaunchTarget {
            context,
            stream,
            blocking,
        }
    }

    fn stream(&self) -> CuStream {
        match self {
            DeferredOp::Launch(deferred) => deferred.launch.stream(),
            DeferredOp::Fill(fill) => fill.stream(),
        }
    }

    /// Its memory here, bytes.
    pub fn bytes(&self) -> usize {
        match self {
            DeferredOp::Launch(launch) => launch.bytes(),
            DeferredOp::Fill(_) => size_of::<Ready>(),
        }
    }

    /// Predicted device time, ns.
    pub fn work(&self) -> Ns {
        match self {
            DeferredOp::Launch(deferred) => throttle::cost_of(deferred.launch),
            DeferredOp::Fill(fill) => throttle::cost_of_bytes(fill.moved()),
        }
    }

    /// The context current at the call.
    pub fn context(&self) -> CuContext {
        match self {
            DeferredOp::Launch(launch) => launch.context,
            DeferredOp::Fill(fill) => fill.context(),
        }
    }

    /// Passes the gate, makes the call, and informs the session. Its context is current.
    pub fn go(&self) -> CuResult {
        match self {
            DeferredOp::Launch(launch) => deferred_launch::go(launch),
            DeferredOp::Fill(fill) => fill.go(),
        }
    }
}
