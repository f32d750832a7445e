// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fills and device copies deferred behind waiting launches: four words each, without host memory.
//!
//! Training jobs zero memory every ten launches or so. If that emptied the queue, it would never
//! hold more than ten.

use weft_symbols::QueueRule;

use super::deferred_launch::current;
use super::validated;
use crate::driver::abi::{CuContext, CuDevicePtr, CuResult, CuStream};
use crate::driver::calls;
use crate::driver::stream::PER_THREAD_STREAM;
use crate::driver::symbols::StreamOp;
use crate::driver::symbols::{self, Moves};
use crate::kernels::launch::Launch;
use crate::throttle;

/// A fill or copy as the client makes it.
#[derive(Debug, Clone, Copy)]
pub struct Fill {
    at: usize,
    words: [usize; 4],
    op: StreamOp,
    /// Bytes, and bytes per element.
    bytes: u64,
    unit: u64,
    stream: CuStream,
    capturing: bool,
}

/// A fill or copy expected to succeed.
#[derive(Debug)]
pub struct Ready {
    fill: Fill,
    context: CuContext,
}

impl Fill {
    /// A call of symbol `at`, if it may be deferred. `stream`: in the form that plain entry points
    /// take.
    pub fn new(at: usize, words: [usize; 4], bytes: u64, stream: CuStream, capturing: bool) -> Option<Fill> {
        let entry = symbols::ENTRIES.get(at)?;
        if entry.queue != QueueRule::Deferrable {
            return None;
        }
        let Moves::Bytes(_, unit) = entry.moves else {
            return None;
        };
        Some(Fill {
            at,
            words,
            op: entry.op,
            bytes,
            unit: u64::from(unit),
            stream,
            capturing,
        })
    }

    /// The launch of an unknown kernel to its target stream: the gate treats it as one.
    pub fn launch(&self) -> Launch {
        Launch::kernel(0, self.stream, self.capturing)
    }

    /// Accepts a non-empty, aligned fill in existing memory, on a stream of this context that is
    /// not a thread's own. (Freeing memory waits for the queue.)
    pub fn ready(self) -> Option<Ready> {
        let [target, source, _, _] = self.words.map(|word| word as u64);
        let aligned = self.unit > 0 && target % self.unit == 0;
        if self.stream == PER_THREAD_STREAM || self.bytes == 0 || !aligned || !there(target, self.bytes) {
            return None;
        }
        if self.op == StreamOp::CopyOnDevice && !there(source, self.bytes) {
            return None;
        }
        let context = current()?;
        validated::leads(self.stream, context).then_some(Ready { context, fill: self })
    }
}

/// Whether a range is in one allocation.
fn there(address: CuDevicePtr, bytes: u64) -> bool {
    let (mut start, mut size) = (0, 0);
    // SAFETY: both out-parameters are valid.
    let found = unsafe { calls::cuMemGetAddressRange_v2(&mut start, &mut size, address) };
    let before = address.checked_sub(start);
    let end = before.and_then(|before| before.checked_add(bytes));
    found.ok() && end.is_some_and(|end| end <= size as u64)
}

impl Ready {
    /// Target stream.
    pub fn stream(&self) -> CuStream {
        self.fill.stream
    }

    /// Bytes on the device.
    pub fn moved(&self) -> u64 {
        self.fill.bytes
    }

    /// The context current at the call.
    pub fn context(&self) -> CuContext {
        self.context
    }

    /// Informs the session as if the call were just made, and makes it.
    pub fn go(&self) -> CuResult {
        type Real = unsafe extern "C" fn(usize, usize, usize, usize) -> CuResult;
        let Fill {
            at,
            words,
            op,
            bytes,
            stream,
            ..
        } = self.fill;
        let Some(found) = symbols::real(at) else {
            return CuResult::NOT_FOUND;
        };
        throttle::before_stream_op(op, bytes, stream);
        // SAFETY: these functions take four words; a fill's narrower value is the low part of its
        // word.
        let real = unsafe { std::mem::transmute::<*mut (), Real>(found) };
        let [target, value, amount, to] = words;
        // SAFETY: what the client gave the driver; stream, context and memory live, because
        // whatever ends one of them waits for the queue.
        unsafe { real(target, value, amount, to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_these_names_with_wide_addresses_are_left_behind() {
        let named = |symbol| Fill::new(symbols::find(symbol).unwrap(), [0x1000, 0, 4, 0], 4, 0, false).is_some();
        for symbol in [
            c"cuMemsetD8Async",
            c"cuMemsetD16Async",
            c"cuMemsetD32Async_ptsz",
            c"cuMemcpyDtoDAsync_v2",
            c"cuMemcpyDtoDAsync_v2_ptsz",
        ] {
            assert!(named(symbol), "{symbol:?}");
        }
        for symbol in [
            c"cuMemsetD8_v2",
            c"cuMemcpyDtoDAsync",
            c"cuMemsetD2D8Async",
            c"cuMemcpyHtoDAsync_v2",
            c"cuMemcpyDtoD_v2",
        ] {
            assert!(!named(symbol), "{symbol:?}");
        }
    }

    #[test]
    fn what_cannot_be_left_behind_goes_the_usual_way() {
        let at = symbols::find(c"cuMemsetD32Async").unwrap();
        let fill = |words, bytes, stream| Fill::new(at, words, bytes, stream, false).unwrap();
        // Not aligned, nothing to do, a thread's own stream.
        assert!(fill([0x1001, 0, 4, 0], 16, 0).ready().is_none());
        assert!(fill([0x1000, 0, 0, 0], 0, 0).ready().is_none());
        assert!(fill([0x1000, 0, 4, 2], 16, PER_THREAD_STREAM).ready().is_none());
        assert!(Fill::new(symbols::find(c"cuMemcpyHtoDAsync_v2").unwrap(), [0; 4], 16, 0, false).is_none());
    }
}
