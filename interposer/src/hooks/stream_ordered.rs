// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stream-ordered calls other than launches: copies, fills, events, waits, host functions, memory
//! operations.
//!
//! They wait whenever launches wait, in order. The hook informs the session, then jumps to the
//! driver with untouched arguments. The size of a copy or fill is in the argument that the symbol
//! table names, or in the structure that is passed.

use weft_profiles::working_set::Access;
use weft_symbols::QueueRule;

use super::declare::per_thread;
use crate::deferred::{self, Fill};
use crate::driver::abi::{Copy2d, Copy3d, CuResult, MEMORY_HOST};
use crate::driver::capture;
use crate::driver::symbols::StreamOp;
use crate::driver::symbols::{ENTRIES, Entry, Moves, NOWHERE, real_bound};
use crate::paging::{self, access_tracker};
use crate::processor::ARGUMENT_REGISTERS;
use crate::throttle;

/// A call's arguments, unchanged.
#[derive(Clone, Copy)]
pub struct Arguments {
    registers: *const usize,
    stack: *const usize,
}

impl Arguments {
    /// Argument `at`, or 0 if the function has fewer.
    fn get(self, entry: &Entry, at: u8) -> usize {
        if at >= entry.args {
            return 0;
        }
        let at = usize::from(at);
        let place = if at < ARGUMENT_REGISTERS {
            self.registers.wrapping_add(at)
        } else {
            self.stack.wrapping_add(at - ARGUMENT_REGISTERS)
        };
        // SAFETY: the gate saved the registers; further arguments are on the caller's stack,
        // one word each.
        unsafe { place.read() }
    }
}

/// Called by `exports::ordered_gate`. Returns the address at which the call continues.
///
/// # Safety
/// `registers` are the saved argument registers of a call of symbol `at`, `stack` its arguments
/// on the stack.
pub unsafe extern "C" fn before(at: u32, registers: *const usize, stack: *const usize) -> *mut () {
    let at = at as usize;
    let arguments = Arguments { registers, stack };
    if deferred::busy()
        && let Some(answer) = left_behind(at, arguments)
    {
        return deferred::failed(answer).cast_mut();
    }
    if let Some(entry) = ENTRIES.get(at) {
        tell(entry, arguments);
    }
    real_bound(at)
}

/// Handles a call while the launch queue holds work: queues it, or empties the queue. Returns the
/// answer if the call must not be made.
#[cold]
#[inline(never)]
fn left_behind(at: usize, arguments: Arguments) -> Option<CuResult> {
    let entry = ENTRIES.get(at)?;
    if entry.queue == QueueRule::GivesBack {
        return deferred::before(at);
    }
    let stream = stream_of(entry, arguments);
    let words = [0, 1, 2, 3].map(|at| arguments.get(entry, at));
    let (_, bytes) = what(entry, arguments);
    deferred::fill(Fill::new(at, words, bytes, stream, capture::on(stream)))
}

/// The call's stream, in the form that plain entry points take; 0 if the call names none.
fn stream_of(entry: &Entry, arguments: Arguments) -> usize {
    let stream = if entry.stream == NOWHERE {
        0
    } else {
        arguments.get(entry, entry.stream)
    };
    if entry.per_thread { per_thread(stream) } else { stream }
}

/// The event that a call records or waits for in one stream. `None` for calls on a whole context.
fn event_of(entry: &Entry, arguments: Arguments) -> Option<usize> {
    match (entry.op, entry.stream) {
        (StreamOp::EventRecord, 1) => Some(arguments.get(entry, 0)),
        (StreamOp::EventWait, 0) => Some(arguments.get(entry, 1)),
        _ => None,
    }
}

/// Informs the session about a call.
pub fn tell(entry: &Entry, arguments: Arguments) {
    let stream = stream_of(entry, arguments);
    let event = event_of(entry, arguments);
    // A captured call has no place among the launches now.
    if capture::on(stream) {
        if let Some(event) = event {
            throttle::event_gone(event);
        }
    } else {
        let (op, bytes) = what(entry, arguments);
        if let Some(event) = event {
            throttle::before_event_op(op, event, stream);
        }
        let noted = (paging::managed() && bytes > 0).then(|| access_tracker::moved(used(entry, op, arguments), bytes));
        throttle::before_stream_op(op, bytes, stream);
        if let Some(noted) = noted {
            noted.goes();
        }
    }
}

/// Addresses that a copy or fill uses, and how: target and source, or the filled range. They are
/// among the first two arguments.
fn used(entry: &Entry, op: StreamOp, arguments: Arguments) -> [(u64, Access); 2] {
    let at = |at| arguments.get(entry, at) as u64;
    // Gaps between rows keep their contents.
    let all = matches!(entry.moves, Moves::Bytes(..));
    let target = if all { Access::Write } else { Access::ReadWrite };
    match op {
        StreamOp::CopyToDevice | StreamOp::CopyToHost | StreamOp::CopyOnDevice => {
            [(at(0), target), (at(1), Access::Read)]
        }
        // The other argument is the fill value, not an address.
        StreamOp::Memset => [(at(0), target), (0, Access::Read)],
        StreamOp::EventRecord | StreamOp::EventWait | StreamOp::Other => {
            [(at(0), Access::ReadWrite), (at(1), Access::ReadWrite)]
        }
    }
}

/// Operation and bytes of a call, from all its arguments.
pub fn described(entry: &Entry, words: &[usize]) -> (StreamOp, u64) {
    let mut registers = [0usize; ARGUMENT_REGISTERS];
    for (register, word) in registers.iter_mut().zip(words) {
        *register = *word;
    }
    let on_stack = words.get(registers.len()..).unwrap_or_default();
    if words.len() < usize::from(entry.args) {
        return (entry.op, 0);
    }
    let arguments = Arguments {
        registers: registers.as_ptr(),
        stack: on_stack.as_ptr(),
    };
    what(entry, arguments)
}

/// Operation of a call and bytes that it moves.
fn what(entry: &Entry, arguments: Arguments) -> (StreamOp, u64) {
    // Up to CUDA 3.1 sizes had 32 bits; the word's other half is undefined.
    let mask = if entry.since < 3020 {
        u64::from(u32::MAX)
    } else {
        u64::MAX
    };
    let argument = |at: u8| arguments.get(entry, at) as u64 & mask;
    let bytes = match entry.moves {
        Moves::Nothing => 0,
        Moves::Bytes(at, unit) => argument(at).saturating_mul(u64::from(unit)),
        Moves::Rows(width, height, unit) => argument(width)
            .saturating_mul(argument(height))
            .saturating_mul(u64::from(unit)),
        Moves::Copy2d => {
            // SAFETY: the function takes this structure, by pointer, as its first argument.
            return unsafe { copy_2d(argument(0) as *const Copy2d) };
        }
        Moves::Copy3d => {
            // SAFETY: as above.
            return unsafe { copy_3d(argument(0) as *const Copy3d) };
        }
        Moves::List(sizes, count) => {
            // SAFETY: the function takes an array of this number of sizes.
            unsafe { sum(argument(sizes) as *const usize, argument(count)) }
        }
    };
    (entry.op, bytes)
}

fn direction(source: u32, target: u32) -> StreamOp {
    match (source == MEMORY_HOST, target == MEMORY_HOST) {
        (true, false) => StreamOp::CopyToDevice,
        (false, true) => StreamOp::CopyToHost,
        _ => StreamOp::CopyOnDevice,
    }
}

/// # Safety
/// `copy` is null or the pointer that the client gives the driver.
unsafe fn copy_2d(copy: *const Copy2d) -> (StreamOp, u64) {
    if copy.is_null() {
        return (StreamOp::CopyOnDevice, 0);
    }
    // SAFETY: the caller's promise.
    let copy = unsafe { &*copy };
    let bytes = (copy.width as u64).saturating_mul(copy.height as u64);
    (direction(copy.source_kind, copy.target_kind), bytes)
}

/// # Safety
/// `copy` is null or the pointer that the client gives the driver.
unsafe fn copy_3d(copy: *const Copy3d) -> (StreamOp, u64) {
    if copy.is_null() {
        return (StreamOp::CopyOnDevice, 0);
    }
    // SAFETY: the caller's promise.
    let copy = unsafe { &*copy };
    let rows = (copy.height as u64).saturating_mul(copy.depth as u64);
    (
        direction(copy.source_kind, copy.target_kind),
        (copy.width as u64).saturating_mul(rows),
    )
}

/// # Safety
/// `sizes` is null or an array of `count` sizes.
unsafe fn sum(sizes: *const usize, count: u64) -> u64 {
    if sizes.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    let sizes = unsafe { std::slice::from_raw_parts(sizes, count as usize) };
    sizes.iter().fold(0u64, |sum, size| sum.saturating_add(*size as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::symbols::find;

    fn told(symbol: &std::ffi::CStr, arguments: &[usize]) -> (StreamOp, u64) {
        let mut registers = [0usize; ARGUMENT_REGISTERS];
        let split = arguments.len().min(ARGUMENT_REGISTERS);
        registers[..split].copy_from_slice(&arguments[..split]);
        let stack: Vec<usize> = arguments[split..].to_vec();
        let entry = &ENTRIES[find(symbol).unwrap()];
        assert_eq!(usize::from(entry.args), arguments.len(), "{symbol:?}");
        what(
            entry,
            Arguments {
                registers: registers.as_ptr(),
                stack: stack.as_ptr(),
            },
        )
    }

    #[test]
    fn copies_and_fills_say_how_much() {
        assert_eq!(
            told(c"cuMemcpyHtoDAsync_v2", &[1, 2, 4096, 7]),
            (StreamOp::CopyToDevice, 4096)
        );
        assert_eq!(told(c"cuMemcpyDtoH_v2_ptds", &[1, 2, 5]), (StreamOp::CopyToHost, 5));
        assert_eq!(
            told(c"cuMemcpyDtoDAsync_v2_ptsz", &[1, 2, 6, 0]),
            (StreamOp::CopyOnDevice, 6)
        );
        assert_eq!(told(c"cuMemcpyAtoA_v2", &[1, 2, 3, 4, 9]), (StreamOp::CopyOnDevice, 9));
        assert_eq!(told(c"cuMemsetD8Async", &[1, 2, 10, 0]), (StreamOp::Memset, 10));
        assert_eq!(told(c"cuMemsetD16_v2", &[1, 2, 10]), (StreamOp::Memset, 20));
        assert_eq!(
            told(c"cuMemsetD2D32Async", &[1, 2, 3, 5, 7, 0]),
            (StreamOp::Memset, 140)
        );
        assert_eq!(told(c"cuStreamWaitEvent", &[1, 2, 0]), (StreamOp::EventWait, 0));
        assert_eq!(told(c"cuLaunchHostFunc", &[1, 2, 0]), (StreamOp::Other, 0));
        assert_eq!(
            told(c"cuMemcpyPeerAsync", &[1, 2, 3, 4, 11, 0]),
            (StreamOp::CopyOnDevice, 11)
        );
    }

    #[test]
    fn copies_and_fills_say_what_they_read_and_what_they_overwrite() {
        let told = |symbol: &std::ffi::CStr| {
            let registers = [10usize, 20, 30, 40, 50, 60];
            let entry = &ENTRIES[find(symbol).unwrap()];
            let arguments = Arguments {
                registers: registers.as_ptr(),
                stack: std::ptr::null(),
            };
            used(entry, entry.op, arguments)
        };
        let copy = [(10, Access::Write), (20, Access::Read)];
        for symbol in [
            c"cuMemcpyDtoDAsync_v2",
            c"cuMemcpyHtoD_v2",
            c"cuMemcpyDtoHAsync_v2",
            c"cuMemcpy",
        ] {
            assert_eq!(told(symbol), copy, "{symbol:?}");
        }
        // The fill value is not an address.
        assert_eq!(told(c"cuMemsetD32Async"), [(10, Access::Write), (0, Access::Read)]);
        // Rows with gaps between them.
        assert_eq!(told(c"cuMemsetD2D8_v2"), [(10, Access::ReadWrite), (0, Access::Read)]);
    }

    #[test]
    fn structures_are_read() {
        let copy = Copy2d {
            source_offset: [0; 2],
            source_kind: MEMORY_HOST,
            source: [0; 4],
            target_offset: [0; 2],
            target_kind: crate::driver::abi::MEMORY_DEVICE,
            target: [0; 4],
            width: 100,
            height: 3,
        };
        let at = (&raw const copy) as usize;
        assert_eq!(told(c"cuMemcpy2DAsync_v2", &[at, 0]), (StreamOp::CopyToDevice, 300));
        assert_eq!(told(c"cuMemcpy2D_v2", &[0]), (StreamOp::CopyOnDevice, 0));
        let copy = Copy3d {
            source_offset: [0; 4],
            // CU_MEMORYTYPE_ARRAY.
            source_kind: 3,
            source: [0; 6],
            target_offset: [0; 4],
            target_kind: MEMORY_HOST,
            target: [0; 6],
            width: 10,
            height: 4,
            depth: 2,
        };
        let at = (&raw const copy) as usize;
        assert_eq!(told(c"cuMemcpy3DAsync_v2", &[at, 0]), (StreamOp::CopyToHost, 80));
        let sizes = [4usize, 5, 6];
        let list = sizes.as_ptr() as usize;
        assert_eq!(
            told(c"cuMemcpyBatchAsync_v2", &[0, 0, list, 3, 0, 0, 0, 0]),
            (StreamOp::CopyOnDevice, 15)
        );
    }

    #[test]
    fn every_copy_and_fill_that_has_a_size_tells_it() {
        // Copies whose size is in nested structures or in the array's own shape.
        let silent = [
            "cuMemcpy3DBatchAsync",
            "cuMemcpy3DWithAttributesAsync",
            "cuFabricCpyBatchAsync",
        ];
        let silent_too = ["cuMemBatchDecompressAsync"];
        let old = [
            "cuMemcpy2D",
            "cuMemcpy2DUnaligned",
            "cuMemcpy3D",
            "cuMemcpy2DAsync",
            "cuMemcpy3DAsync",
        ];
        for entry in &ENTRIES {
            let copies = matches!(entry.class, weft_symbols::Class::Copy | weft_symbols::Class::Memset);
            let exempt = silent.contains(&entry.base)
                || silent_too.contains(&entry.base)
                || old.contains(&entry.symbol.to_str().unwrap());
            if copies && !exempt {
                assert!(!matches!(entry.moves, Moves::Nothing), "{:?}", entry.symbol);
            }
        }
    }
}
