// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hooks of trace mode. Each makes the call as in other modes, and informs the recorder before and
//! after it.
//!
//! Launches are those of the [list](super::launch). Hooks of other calls wrap the symbol's usual
//! target, a hook or the driver; arguments and result pass unchanged. Their functions take only
//! integers and pointers, so each argument is one word.
#![allow(unsafe_code)]

use std::ffi::c_void;

use weft_trace_format::Direction;
use weft_trace_format::raw::CallKind;

use super::declare::{hooks, per_thread};
use super::launch::{GraphCall, KernelCall, LaunchMode, Straight, as_is, launches};
use super::managed_launch::Managed;
use super::{choice, graph, stream_ordered};
use crate::driver::abi::{CuFunction, CuGraphExec, CuResult, CuStream, LaunchConfig};
use crate::driver::capture;
use crate::driver::stream::{PER_THREAD_STREAM, Stream};
use crate::driver::symbols::{self, ENTRIES, Entry, NOWHERE, StreamOp};
use crate::paging::may_be_managed;
use crate::thread;
use crate::trace::{self, RecordedCall};

/// The recording hook for a symbol.
pub(super) fn hook(at: usize) -> Option<*const ()> {
    find(at).or_else(|| find_other(at))
}

/// Mode that records each launch.
#[derive(Debug)]
struct RecordedLaunches;

impl LaunchMode for RecordedLaunches {
    fn kernel(call: KernelCall, real: impl FnOnce() -> CuResult) -> CuResult {
        trace::around(
            || launch(call.stream, || call.identity()),
            || match may_be_managed() {
                true => Managed::kernel(call, real),
                false => Straight::kernel(call, real),
            },
        )
    }

    fn graph(call: GraphCall, real: impl FnOnce() -> CuResult) -> CuResult {
        trace::around(
            || launch(call.stream, || graph::identity(call.exec)),
            || match may_be_managed() {
                true => Managed::graph(call, real),
                false => Straight::graph(call, real),
            },
        )
    }
}

launches!(RecordedLaunches);

/// Record of a launch; `None` in a capture.
fn launch(stream: Stream, identity: impl FnOnce() -> u64) -> Option<RecordedCall> {
    if !trace::is_marked() {
        return None;
    }
    let hash = identity();
    if capture::on(stream) {
        return None;
    }
    Some(RecordedCall::Operation {
        what: CallKind::Launch {
            hash,
            stream: key(stream),
        },
        timed: Some(stream),
    })
}

/// Meaning of the arguments of a call other than a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// A copy or fill, as in the symbol table.
    Copy,
    /// Waits for all work.
    Context,
    /// Waits for a stream.
    Stream,
    /// Waits for an event.
    Event,
    /// Event, stream.
    Record,
    /// Stream, event.
    Wait,
    /// Begins a step.
    Mark,
    /// Ends a step.
    Stop,
}

macro_rules! around {
    ($($how:ident: $($name:ident($($argument:ident),*)),+;)+) => {
        $($(
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name($($argument: usize),*) -> CuResult {
                type Inner = unsafe extern "C" fn($(around!(@word $argument)),*) -> CuResult;
                let inner = inner(symbols::index::$name);
                // SAFETY: the symbol leads to a function of this number of words.
                let inner = unsafe { std::mem::transmute::<*const (), Inner>(inner) };
                let words: &[usize] = &[$($argument),*];
                trace::around(
                    || described(symbols::index::$name, Meaning::$how, words),
                    // SAFETY: the client's arguments, unchanged, as promised to the driver.
                    || unsafe { inner($($argument),*) },
                )
            }
        )+)+

        /// The hook for a symbol of this list.
        fn find_other(at: usize) -> Option<*const ()> {
            match at {
                $($(symbols::index::$name => Some($name as *const ()),)+)+
                _ => None,
            }
        }

        /// Symbols, their number of words, and their meaning.
        #[cfg(test)]
        const LISTED: &[(usize, usize, Meaning)] = &[
            $($((symbols::index::$name, { const WORDS: &[&str] = &[$(stringify!($argument)),*]; WORDS.len() }, Meaning::$how),)+)+
        ];
    };
    (@word $argument:ident) => { usize };
}

around! {
    Copy:
        cuMemcpy(a, b, c), cuMemcpy_ptds(a, b, c),
        cuMemcpyAsync(a, b, c, d), cuMemcpyAsync_ptsz(a, b, c, d),
        cuMemcpyHtoD_v2(a, b, c), cuMemcpyHtoD_v2_ptds(a, b, c),
        cuMemcpyDtoH_v2(a, b, c), cuMemcpyDtoH_v2_ptds(a, b, c),
        cuMemcpyDtoD_v2(a, b, c), cuMemcpyDtoD_v2_ptds(a, b, c),
        cuMemcpyHtoDAsync_v2(a, b, c, d), cuMemcpyHtoDAsync_v2_ptsz(a, b, c, d),
        cuMemcpyDtoHAsync_v2(a, b, c, d), cuMemcpyDtoHAsync_v2_ptsz(a, b, c, d),
        cuMemcpyDtoDAsync_v2(a, b, c, d), cuMemcpyDtoDAsync_v2_ptsz(a, b, c, d),
        cuMemcpyPeerAsync(a, b, c, d, e, f), cuMemcpyPeerAsync_ptsz(a, b, c, d, e, f),
        cuMemcpyWithAttributesAsync(a, b, c, d, e), cuMemcpyWithAttributesAsync_ptsz(a, b, c, d, e),
        cuMemcpy2D_v2(a), cuMemcpy2D_v2_ptds(a),
        cuMemcpy2DUnaligned_v2(a), cuMemcpy2DUnaligned_v2_ptds(a),
        cuMemcpy2DAsync_v2(a, b), cuMemcpy2DAsync_v2_ptsz(a, b),
        cuMemcpy3D_v2(a), cuMemcpy3D_v2_ptds(a),
        cuMemcpy3DAsync_v2(a, b), cuMemcpy3DAsync_v2_ptsz(a, b),
        cuMemsetD8_v2(a, b, c), cuMemsetD8_v2_ptds(a, b, c),
        cuMemsetD16_v2(a, b, c), cuMemsetD16_v2_ptds(a, b, c),
        cuMemsetD32_v2(a, b, c), cuMemsetD32_v2_ptds(a, b, c),
        cuMemsetD8Async(a, b, c, d), cuMemsetD8Async_ptsz(a, b, c, d),
        cuMemsetD16Async(a, b, c, d), cuMemsetD16Async_ptsz(a, b, c, d),
        cuMemsetD32Async(a, b, c, d), cuMemsetD32Async_ptsz(a, b, c, d),
        cuMemsetD2D8Async(a, b, c, d, e, f), cuMemsetD2D8Async_ptsz(a, b, c, d, e, f),
        cuMemsetD2D16Async(a, b, c, d, e, f), cuMemsetD2D16Async_ptsz(a, b, c, d, e, f),
        cuMemsetD2D32Async(a, b, c, d, e, f), cuMemsetD2D32Async_ptsz(a, b, c, d, e, f);
    Context: cuCtxSynchronize(), cuCtxSynchronize_v2(a);
    Stream: cuStreamSynchronize(a), cuStreamSynchronize_ptsz(a);
    Event: cuEventSynchronize(a);
    Record:
        cuEventRecord(a, b), cuEventRecord_ptsz(a, b),
        cuEventRecordWithFlags(a, b, c), cuEventRecordWithFlags_ptsz(a, b, c);
    Wait: cuStreamWaitEvent(a, b, c), cuStreamWaitEvent_ptsz(a, b, c);
    Mark: cuProfilerStart();
    Stop: cuProfilerStop();
}

/// The symbol's target in other modes.
fn inner(at: usize) -> *const () {
    choice::unrecorded(at).unwrap_or_else(|| symbols::real_bound(at).cast_const())
}

/// Record of the call, if it is recorded.
fn described(at: usize, how: Meaning, words: &[usize]) -> Option<RecordedCall> {
    if !trace::is_marked() && how != Meaning::Mark {
        return None;
    }
    let entry = ENTRIES.get(at)?;
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    let stream = |at: usize| stream_of(entry, word(at));
    let what = match how {
        Meaning::Mark => return Some(RecordedCall::Mark),
        Meaning::Stop => return Some(RecordedCall::Stop),
        Meaning::Copy => return copy(entry, words),
        Meaning::Context => CallKind::SyncAll,
        Meaning::Event => CallKind::SyncEvent(word(0) as u64),
        Meaning::Stream => CallKind::SyncStream(key(stream(0))),
        // A captured event is part of the graph.
        Meaning::Record | Meaning::Wait if capture::on(stream(usize::from(how == Meaning::Record))) => return None,
        Meaning::Record => CallKind::Record {
            event: word(0) as u64,
            stream: key(stream(1)),
        },
        Meaning::Wait => CallKind::Wait {
            event: word(1) as u64,
            stream: key(stream(0)),
        },
    };
    Some(RecordedCall::Operation { what, timed: None })
}

fn copy(entry: &Entry, words: &[usize]) -> Option<RecordedCall> {
    let at = (entry.stream != NOWHERE)
        .then(|| words.get(usize::from(entry.stream)).copied())
        .flatten();
    let stream = stream_of(entry, at.unwrap_or(0));
    if capture::on(stream) {
        return None;
    }
    let (op, bytes) = stream_ordered::described(entry, words);
    let direction = match op {
        StreamOp::CopyToDevice => Direction::HostToDevice,
        StreamOp::CopyToHost => Direction::DeviceToHost,
        StreamOp::Memset => Direction::Fill,
        _ => Direction::DeviceToDevice,
    };
    // Without a stream a copy from or to the host returns when it is done; other copies are only
    // begun.
    let waits = at.is_none() && matches!(direction, Direction::HostToDevice | Direction::DeviceToHost);
    Some(RecordedCall::Operation {
        what: CallKind::Copy {
            direction,
            bytes,
            stream: key(stream),
            waits,
        },
        timed: Some(stream),
    })
}

/// The stream that the caller of this symbol means.
fn stream_of(entry: &Entry, stream: Stream) -> Stream {
    if entry.per_thread && stream == 0 {
        PER_THREAD_STREAM
    } else {
        stream
    }
}

/// Number of a stream in records. The per-thread default stream differs by thread; handles are
/// user-space addresses.
fn key(stream: Stream) -> u64 {
    if stream == PER_THREAD_STREAM {
        u64::MAX - u64::from(thread::id())
    } else {
        stream as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_symbols::Class;

    #[test]
    fn every_hook_takes_as_many_words_as_its_function_has() {
        for &(at, words, how) in LISTED {
            let entry = &ENTRIES[at];
            assert_eq!(usize::from(entry.args), words, "{:?}", entry.symbol);
            // The table also knows the stream's place in the arguments.
            let stream = match how {
                Meaning::Record => 1,
                Meaning::Stream | Meaning::Wait => 0,
                _ => continue,
            };
            assert_eq!(usize::from(entry.stream), stream, "{:?}", entry.symbol);
        }
    }

    #[test]
    fn every_way_to_launch_and_to_wait_is_recorded() {
        // Deprecated launches, one kernel on several devices, and events of green contexts.
        let left_out = [
            "cuLaunch",
            "cuLaunchGrid",
            "cuLaunchGridAsync",
            "cuLaunchCooperativeKernelMultiDevice",
            "cuCtxRecordEvent",
            "cuCtxWaitEvent",
            "cuGreenCtxRecordEvent",
            "cuGreenCtxWaitEvent",
        ];
        for (at, entry) in ENTRIES.iter().enumerate() {
            let wanted = [
                Class::Launch,
                Class::GraphLaunch,
                Class::Sync,
                Class::Event,
                Class::Wait,
            ];
            let symbol = entry.symbol.to_str().unwrap();
            if wanted.contains(&entry.class) && !left_out.contains(&symbol) {
                assert!(hook(at).is_some(), "{symbol}");
            }
        }
    }
}
