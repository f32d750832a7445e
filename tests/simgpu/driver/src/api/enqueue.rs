// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts a client's work on a stream: onto the device, or into the capture that the stream is in.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::abi::R;
use crate::graph::capture::capture_work;
use crate::state::Driver;
use crate::stream::Stream;
use crate::work::StreamWork;

/// Onto the device, or into the capture that the stream is in.
pub(super) fn enqueue(driver: &Driver, stream: &Arc<Stream>, work: StreamWork) -> R {
    if stream.is_capturing() {
        return capture_work(stream, work);
    }
    work.submit(driver, stream, 0).map(drop)
}
