//! Hooks of trace mode: each wraps what the symbol leads to otherwise, a hook or the driver.
//!
//! The recorder is told before and after; arguments and result pass unchanged. Listed functions
//! take only integers and pointers, so each argument is one word.
#![allow(unsafe_code)]

use std::cell::Cell;

use weft_trace_format::Direction;
use weft_trace_format::raw::What;

use super::processor;
use super::recorder::{Call, Recorder};
use crate::client::clock;
use crate::driver::abi::{CuResult, LaunchConfig};
use crate::driver::capture;
use crate::driver::stream::{PER_THREAD_STREAM, Stream};
use crate::driver::symbols::StreamOp;
use crate::driver::symbols::{self, ENTRIES, Entry, NOWHERE};
use crate::hooks::{self, graph, stream_ordered};
use crate::internal_error::guarded;
use crate::kernels;
use crate::thread;

/// The recording hook for a symbol, in trace mode.
pub fn hook(at: usize) -> Option<*const ()> {
    super::on().then(|| find(at)).flatten()
}

thread_local! {
    /// Whether a recorded call is under way on this thread: a driver's calls to itself are not
    /// counted.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Meaning of a symbol's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Function, grid, block, shared memory, stream.
    Kernel,
    /// Configuration, function.
    KernelEx,
    /// Executable graph, stream.
    Graph,
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
                // SAFETY: the symbol leads to a function of that many words.
                let inner = unsafe { std::mem::transmute::<*const (), Inner>(inner) };
                let words: &[usize] = &[$($argument),*];
                // SAFETY: the client's arguments, unchanged, as promised to the driver.
                told(symbols::index::$name, How::$how, words, || unsafe { inner($($argument),*) })
            }
        )+)+

        /// The hook for a symbol that has one in trace mode.
        fn find(at: usize) -> Option<*const ()> {
            match at {
                $($(symbols::index::$name => Some($name as *const ()),)+)+
                _ => None,
            }
        }

        /// Symbols, their number of words, and their meaning.
        #[cfg(test)]
        const LISTED: &[(usize, usize, How)] = &[
            $($((symbols::index::$name, { const WORDS: &[&str] = &[$(stringify!($argument)),*]; WORDS.len() }, How::$how),)+)+
        ];
    };
    (@word $argument:ident) => { usize };
}

around! {
    Kernel:
        cuLaunchKernel(a, b, c, d, e, f, g, h, i, j, k),
        cuLaunchKernel_ptsz(a, b, c, d, e, f, g, h, i, j, k),
        cuLaunchCooperativeKernel(a, b, c, d, e, f, g, h, i, j),
        cuLaunchCooperativeKernel_ptsz(a, b, c, d, e, f, g, h, i, j);
    KernelEx: cuLaunchKernelEx(a, b, c, d), cuLaunchKernelEx_ptsz(a, b, c, d);
    Graph: cuGraphLaunch(a, b), cuGraphLaunch_ptsz(a, b);
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

/// What the symbol leads to in other modes.
fn inner(at: usize) -> *const () {
    hooks::hook(at).unwrap_or_else(|| symbols::real_bound(at).cast_const())
}

/// Makes the call, and tells the recorder before and after.
fn told(at: usize, how: How, words: &[usize], call: impl FnOnce() -> CuResult) -> CuResult {
    let entered = clock::now();
    let Some(recorder) = super::recorder().filter(|_| !INSIDE.get()) else {
        return call();
    };
    let ticket = guarded(|| {
        let call = described(recorder, at, how, words)?;
        recorder.before(call, entered, processor::preempted(entered))
    });
    INSIDE.set(true);
    let called = clock::now();
    let result = call();
    let returned = clock::now();
    INSIDE.set(false);
    if let Some(Some(ticket)) = ticket {
        guarded(|| recorder.after(ticket, called, returned, result.ok()));
        processor::went_on(clock::now());
    }
    result
}

/// What to record of the call, if anything.
fn described(recorder: &Recorder, at: usize, how: How, words: &[usize]) -> Option<Call> {
    let entry = ENTRIES.get(at)?;
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    let simple = |what| Call::Operation { what, timed: None };
    let call = match how {
        How::Mark => Call::Mark,
        How::Stop => Call::Stop,
        How::Context => simple(What::SyncAll),
        How::Event => simple(What::SyncEvent(word(0) as u64)),
        How::Stream => simple(What::SyncStream(key(stream_of(entry, word(0))))),
        How::Record => simple(What::Record {
            event: word(0) as u64,
            stream: key(stream_of(entry, word(1))),
        }),
        How::Wait => simple(What::Wait {
            event: word(1) as u64,
            stream: key(stream_of(entry, word(0))),
        }),
        // Work is described below, if wanted: it needs more lookups.
        How::Kernel | How::KernelEx | How::Graph | How::Copy => simple(What::SyncAll),
    };
    if !recorder.wants(&call) {
        return None;
    }
    match how {
        How::Kernel => {
            let number = |at: usize| word(at) as u32;
            let hash = kernels::identify(
                word(0),
                number(1),
                number(2),
                number(3),
                number(4),
                number(5),
                number(6),
                number(7),
            );
            launch(hash, stream_of(entry, word(8)))
        }
        How::KernelEx => {
            // SAFETY: the client's promise to the driver: null or a launch configuration.
            let config = unsafe { (word(0) as *const LaunchConfig).as_ref() }?;
            let hash = kernels::identify_shape(word(1), config.grid, config.block, config.shared);
            launch(hash, stream_of(entry, config.stream))
        }
        How::Graph => launch(graph::identity(word(0)), stream_of(entry, word(1))),
        How::Copy => copy(entry, words),
        _ if captured(&call) => None,
        _ => Some(call),
    }
}

/// Whether the call concerns a captured event, which is part of the graph.
fn captured(call: &Call) -> bool {
    let Call::Operation { what, .. } = call else {
        return false;
    };
    match what {
        What::Record { stream, .. } | What::Wait { stream, .. } => usize::try_from(*stream).is_ok_and(capture::on),
        _ => false,
    }
}

fn launch(hash: u64, stream: Stream) -> Option<Call> {
    if capture::on(stream) {
        return None;
    }
    Some(Call::Operation {
        what: What::Launch {
            hash,
            stream: key(stream),
        },
        timed: Some(stream),
    })
}

fn copy(entry: &Entry, words: &[usize]) -> Option<Call> {
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
    // Without a stream a copy from or to the host returns when done; others are only begun.
    let waits = at.is_none() && matches!(direction, Direction::HostToDevice | Direction::DeviceToHost);
    Some(Call::Operation {
        what: What::Copy {
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
                How::Kernel => 8,
                How::Graph | How::Record => 1,
                How::Stream | How::Wait => 0,
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
            let listed = LISTED.iter().any(|(other, _, _)| *other == at);
            let symbol = entry.symbol.to_str().unwrap();
            if wanted.contains(&entry.class) && !left_out.contains(&symbol) {
                assert!(listed, "{symbol}");
            }
        }
    }
}
