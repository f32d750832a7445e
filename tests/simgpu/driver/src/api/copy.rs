// SPDX-License-Identifier: MIT OR Apache-2.0
//! The common parts of clients' copies: into a capture, from staged memory, with or without a wait.
#![forbid(unsafe_code)]

use crate::abi::{Handle, R};
use crate::capture::rules;
use crate::copy::Copy;
use crate::graph::capture::capture_work;
use crate::space::table::{Side, side};
use crate::work::StreamWork;
use crate::{state, stream};

/// Up to this size a copy from pageable memory is taken out of the client's buffer at once, as the
/// driver's staging does; a longer one is waited for.
const STAGED_BYTES: u64 = 64 << 10;

impl Copy {
    /// An asynchronous copy for the client: returns when the client may use its buffers as the API
    /// promises.
    pub(crate) fn enqueue(self, stream: Handle) -> R {
        let driver = state::driver()?;
        let stream = stream::resolve(driver, stream)?;
        if stream.is_capturing() {
            // Addresses are looked at when the graph runs: cuDNN captures with ones that it
            // replaces before.
            return capture_work(&stream, StreamWork::Copy(self));
        }
        if self.bytes() == 0 {
            return Ok(());
        }
        let (from, to) = (side(self.from.address), side(self.to.address));
        if from == Side::Pageable && to != Side::Pageable && self.bytes() <= STAGED_BYTES {
            self.check()?;
            return self.submit_with(driver, &stream, 0, Some(self.stage())).map(drop);
        }
        let seq = self.submit(driver, &stream, 0)?;
        if from == Side::Pageable || to == Side::Pageable {
            stream.wait(driver, seq)
        } else {
            Ok(())
        }
    }

    /// A synchronous copy for the client, on the caller's default stream. Within the device it does
    /// not wait, as the real driver does not.
    pub(crate) fn run(self, default: Handle) -> R {
        let driver = state::driver()?;
        let stream = stream::resolve(driver, default)?;
        stream.may_synchronize()?;
        rules::may_query()?;
        if self.bytes() == 0 {
            return Ok(());
        }
        let seq = self.submit(driver, &stream, 0)?;
        if side(self.from.address) == Side::Device && side(self.to.address) == Side::Device {
            return Ok(());
        }
        stream.wait(driver, seq)
    }
}
