// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate of a job with movable memory: the threads in calls, and the threads that wait while the
//! memory is away.
//!
//! In such a job the slot of each call that uses device memory or waits for work leads to a stub.
//! The stub counts its thread in, makes the call, and counts the thread out. Other jobs have no
//! stub. Calls that the driver or a signal's handler makes inside such a call are part of it.
//!
//! * [`close`]: threads that come wait; those that are inside come out.
//! * [`hold`]: all are out and the memory may leave. Fails if the deadline is over.
//! * [`open`]: all go on.
//!
//! Only the mover closes the gate. Until [`hold`], each waiting thread opens it at the deadline. A
//! thread counts itself in first and reads the state then; the mover writes the state first and
//! reads the counts then. So one of the two sees the other.
//!
//! An idle job's gate is closed with [`close_until_called`]: the first thread that comes before
//! [`hold`] opens it. One that comes later notifies the mover, which brings the memory back. If
//! there is no room for it ([`refuse`]), calls end with CUDA's out-of-memory error.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::thread::futex::{self, Flags};
use weft_protocol::Ns;
use weft_symbols::Class;

use super::checkpoint;
use crate::client::{backing_mode, clock};
use crate::driver::abi::CuResult;
use crate::driver::symbols::{COUNT, Entry, absent};
use crate::processor::ARGUMENT_REGISTERS;
use crate::{process, thread};

/// Threads that have a cell, as a power of two. Further ones share a counter.
const CELLS_LOG2: u32 = 10;
const CELLS: usize = 1 << CELLS_LOG2;

/// Cells that a thread looks at.
const PROBES: usize = 16;

/// Interval of a waiting thread's look at the deadline, ns.
const LOOK_NS: Ns = 100_000_000;

const OPEN: u32 = 0;
const CLOSING: u32 = 1;
const CLOSED: u32 = 2;
/// As closed, but calls end with an error instead of a wait.
const REFUSES: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(OPEN);
static DEADLINE: AtomicU64 = AtomicU64::new(0);

/// Whether the first thread that comes opens a closing gate.
static YIELDS: AtomicBool = AtomicBool::new(false);

/// When a thread first came to the closed gate, ns; 0: none did.
static CALLED: AtomicU64 = AtomicU64::new(0);

/// Low bits of a cell that hold the depth of its thread's calls. The others count its calls.
const DEPTH_BITS: u32 = 12;

/// A call more, which is one level deeper.
const CALL_STEP: u32 = (1 << DEPTH_BITS) + 1;

/// Calls of the thread with this mark.
#[derive(Debug)]
#[repr(align(64))]
struct ThreadCell {
    /// A [`thread::mark`]; 0: free. Never freed: a thread with the same mark takes it over.
    owner: AtomicU32,
    inside: AtomicU32,
}

static THREADS: [ThreadCell; CELLS] = [const {
    ThreadCell {
        owner: AtomicU32::new(0),
        inside: AtomicU32::new(0),
    }
}; CELLS];

/// Calls of threads without a cell, as in a cell.
static OTHERS: AtomicU32 = AtomicU32::new(0);

/// Mark of the mover, which passes the gate.
static MOVER: AtomicU32 = AtomicU32::new(0);

/// Hook or driver function of each counted symbol.
static TARGETS: [AtomicPtr<()>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

/// Calls of waiting threads.
#[derive(Debug)]
pub struct GateBells {
    /// A waiting thread opened the gate, at the deadline or because it comes to an idle job.
    pub late: fn(),
    /// A thread came to the closed gate. Later ones do not call it.
    pub called: fn(),
}

static BELLS: OnceLock<GateBells> = OnceLock::new();

/// Registers the functions that waiting threads call.
pub fn when(bells: GateBells) {
    let _ = BELLS.set(bells);
}

/// Words on the stack that the stub passes on. Only descriptions of tensors have more, and they
/// need no memory.
pub const STACK_WORDS: usize = 6;

/// Calls with a structure by value, which the stub would not pass on. None uses movable memory.
const BY_VALUE: [&str; 2] = ["cuIpcOpenMemHandle", "cuIpcOpenEventHandle"];

/// Not counted if the context stays: a program that reads the free memory now and then is idle.
const READS_FREE: &str = "cuMemGetInfo";

/// Whether calls of this symbol are counted.
pub fn counts(entry: &Entry) -> bool {
    let uses = match entry.class {
        Class::Sync | Class::Memory | Class::Graph | Class::Capture | Class::Texture => true,
        Class::Context => entry.queue.waits(),
        class => class.is_ordered(),
    };
    // Without its context a job can make no code, streams and events either.
    let needs_context = || {
        let makes = matches!(
            entry.class,
            Class::Module | Class::Stream | Class::EventAdmin | Class::Query | Class::InteropAdmin
        );
        (uses || makes) && checkpoint::counts()
    };
    usize::from(entry.args) <= ARGUMENT_REGISTERS + STACK_WORDS
        && !BY_VALUE.contains(&entry.base)
        && match backing_mode::movable() {
            true => uses && entry.base != READS_FREE,
            false => needs_context(),
        }
}

/// Sets the hook or driver function of a counted symbol.
pub fn set_target(at: usize, target: *const ()) {
    if let Some(place) = TARGETS.get(at) {
        place.store(target.cast_mut(), Ordering::Release);
    }
}

fn cell_of(mark: u32) -> Option<&'static ThreadCell> {
    // Control blocks lie at multiples of large powers of two.
    let first = mark.wrapping_mul(0x9e37_79b1) >> (32 - CELLS_LOG2);
    for step in 0..PROBES {
        let cell = THREADS.get((first as usize + step) % CELLS)?;
        let owner = cell.owner.load(Ordering::Relaxed);
        let free = owner == 0;
        let taken = || {
            cell.owner
                .compare_exchange(0, mark, Ordering::AcqRel, Ordering::Relaxed)
        };
        if owner == mark || (free && taken().is_ok()) {
            return Some(cell);
        }
    }
    None
}

fn own_cell() -> Option<&'static ThreadCell> {
    cell_of(thread::mark().max(1))
}

/// Answers for every call while the job's memory cannot return.
extern "C" fn no_memory() -> CuResult {
    CuResult::OUT_OF_MEMORY
}

/// The depth of calls that a cell holds.
fn depth(cell: u32) -> u32 {
    cell & ((1 << DEPTH_BITS) - 1)
}

/// Counts the calling thread in. Returns its depth before.
fn count_in() -> u32 {
    match own_cell() {
        Some(cell) => depth(cell.inside.fetch_add(CALL_STEP, Ordering::SeqCst)),
        None => {
            OTHERS.fetch_add(CALL_STEP, Ordering::SeqCst);
            0
        }
    }
}

/// Counts the calling thread in, once the gate is open. Returns its call's hook or driver function.
pub extern "C" fn enter(at: u32) -> *const () {
    loop {
        if count_in() > 0 || STATE.load(Ordering::SeqCst) == OPEN {
            break;
        }
        leave();
        if !wait() {
            count_in();
            return no_memory as *const ();
        }
    }
    let target = TARGETS.get(at as usize).map(|target| target.load(Ordering::Acquire));
    target.unwrap_or(absent as *mut ()).cast_const()
}

/// Counts the calling thread out.
pub extern "C" fn leave() {
    match own_cell() {
        // Only its own thread changes it, so no locked instruction is needed.
        Some(cell) => {
            let inside = cell.inside.load(Ordering::Relaxed);
            cell.inside.store(inside.wrapping_sub(1), Ordering::Release);
        }
        None => {
            OTHERS.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Waits until the gate is open. False: the call ends with an error.
#[cold]
#[inline(never)]
fn wait() -> bool {
    let _whole = thread::uncancelled();
    loop {
        let state = STATE.load(Ordering::Acquire);
        if state == OPEN || process::is_copy() {
            return true;
        }
        if state == REFUSES {
            return false;
        }
        let yields = YIELDS.load(Ordering::Acquire);
        let late = clock::now() >= DEADLINE.load(Ordering::Acquire);
        if state == CLOSING && (late || yields) && swap(CLOSING, OPEN) {
            if let Some(bells) = BELLS.get() {
                (bells.late)();
            }
            return true;
        }
        if state == CLOSED {
            let first = CALLED.compare_exchange(0, clock::now(), Ordering::AcqRel, Ordering::Relaxed);
            // Once: the mover tries a return that failed again in its own time.
            if let Some(bells) = BELLS.get().filter(|_| first.is_ok()) {
                (bells.called)();
            }
        }
        let _ = futex::wait(&STATE, Flags::PRIVATE, state, Some(&clock::timespec(LOOK_NS)));
    }
}

fn swap(from: u32, to: u32) -> bool {
    let swapped = STATE.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    let _ = futex::wake(&STATE, Flags::PRIVATE, i32::MAX as u32);
    swapped.is_ok()
}

/// Lets the calling thread pass from now on, as if its calls were parts of one call.
pub fn pass() -> bool {
    own_cell().is_some_and(|cell| {
        cell.inside.fetch_add(CALL_STEP, Ordering::SeqCst);
        true
    })
}

/// Lets the calling thread, the mover, pass. False if there is no room for it.
pub fn pass_as_mover() -> bool {
    MOVER.store(thread::mark().max(1), Ordering::SeqCst);
    pass()
}

/// Closes the gate until the deadline.
pub fn close(deadline: Ns) {
    YIELDS.store(false, Ordering::SeqCst);
    DEADLINE.store(deadline, Ordering::SeqCst);
    STATE.store(CLOSING, Ordering::SeqCst);
}

/// Closes the gate until the deadline or the next call.
pub fn close_until_called(deadline: Ns) {
    YIELDS.store(true, Ordering::SeqCst);
    DEADLINE.store(deadline, Ordering::SeqCst);
    STATE.store(CLOSING, Ordering::SeqCst);
}

/// Whether no thread but the mover is in a call.
pub fn is_empty() -> bool {
    let mover = MOVER.load(Ordering::SeqCst);
    let out = |cell: &ThreadCell| {
        depth(cell.inside.load(Ordering::SeqCst)) == 0 || cell.owner.load(Ordering::SeqCst) == mover
    };
    depth(OTHERS.load(Ordering::SeqCst)) == 0 && THREADS.iter().all(out)
}

/// A figure that changes with each call.
pub fn calls() -> u64 {
    let sum: u64 = THREADS
        .iter()
        .map(|cell| u64::from(cell.inside.load(Ordering::Relaxed)))
        .sum();
    sum + u64::from(OTHERS.load(Ordering::Relaxed))
}

/// When a thread first came to the closed gate.
pub fn called() -> Option<Ns> {
    Some(CALLED.load(Ordering::Acquire)).filter(|at| *at > 0)
}

/// Ends all calls at the closed gate, and those that come, with CUDA's out-of-memory error.
pub fn refuse() {
    swap(CLOSED, REFUSES);
}

/// Has calls wait again at a gate that refuses them.
pub fn refuse_no_more() {
    CALLED.store(0, Ordering::SeqCst);
    swap(REFUSES, CLOSED);
}

/// Whether the deadline has opened the gate, or would.
pub fn is_late() -> bool {
    STATE.load(Ordering::SeqCst) == OPEN || clock::now() >= DEADLINE.load(Ordering::SeqCst)
}

/// Keeps the gate closed beyond its deadline. False: the deadline is over, and the gate open.
pub fn hold() -> bool {
    if is_late() {
        open();
        return false;
    }
    CALLED.store(0, Ordering::SeqCst);
    swap(CLOSING, CLOSED)
}

/// Opens the gate.
pub fn open() {
    STATE.store(OPEN, Ordering::SeqCst);
    let _ = futex::wake(&STATE, Flags::PRIVATE, i32::MAX as u32);
}

/// Opens the gate in a forked child, whose only thread is in no call.
pub fn forget() {
    for cell in &THREADS {
        cell.inside.store(0, Ordering::Relaxed);
    }
    OTHERS.store(0, Ordering::Relaxed);
    MOVER.store(0, Ordering::Relaxed);
    STATE.store(OPEN, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use super::*;

    /// One gate for all tests.
    static ONE: Mutex<()> = Mutex::new(());

    const MINUTE: Ns = 60_000_000_000;

    fn in_time(holds: impl Fn() -> bool) -> bool {
        (0..6_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            holds()
        })
    }

    #[test]
    fn who_is_inside_comes_out_and_who_comes_waits() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (inside, leaves, passed) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                enter(0);
                inside.store(true, Ordering::SeqCst);
                assert!(in_time(|| leaves.load(Ordering::SeqCst)));
                // A call inside the call does not wait.
                enter(0);
                leave();
                leave();
            });
            assert!(in_time(|| inside.load(Ordering::SeqCst)));
            close(clock::now() + MINUTE);
            assert!(!is_empty(), "a thread is inside");
            scope.spawn(|| {
                enter(0);
                passed.store(true, Ordering::SeqCst);
                leave();
            });
            leaves.store(true, Ordering::SeqCst);
            assert!(in_time(is_empty) && hold());
            assert!(!passed.load(Ordering::SeqCst), "it waits");
            open();
        });
        assert!(passed.load(Ordering::SeqCst) && is_empty());
    }

    #[test]
    fn a_waiting_thread_opens_the_gate_at_the_deadline_unless_it_is_held() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        close(clock::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                enter(0);
                leave();
            });
        });
        assert!(is_late() && !hold(), "it is too late");
        let passed = AtomicBool::new(false);
        close(clock::now() + MINUTE);
        assert!(hold());
        DEADLINE.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                enter(0);
                passed.store(true, Ordering::SeqCst);
                leave();
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!passed.load(Ordering::SeqCst), "the memory is away");
            open();
        });
    }

    #[test]
    fn a_call_opens_the_closing_gate_of_an_idle_job_and_is_noted_at_the_closed_one() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let comes = || {
            enter(0);
            leave();
        };
        let before = calls();
        close_until_called(clock::now() + MINUTE);
        std::thread::scope(|scope| {
            scope.spawn(comes);
        });
        assert!(is_late() && !hold(), "it is not idle");
        assert_ne!(calls(), before);
        close_until_called(clock::now() + MINUTE);
        assert!(hold() && called().is_none());
        std::thread::scope(|scope| {
            scope.spawn(comes);
            assert!(in_time(|| called().is_some()));
            open();
        });
        assert!(is_empty());
    }

    #[test]
    fn calls_end_with_an_error_while_the_gate_refuses_them() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        close_until_called(clock::now() + MINUTE);
        assert!(hold());
        let answer = || {
            let target = enter(0);
            leave();
            target as usize
        };
        std::thread::scope(|scope| {
            let waits = scope.spawn(answer);
            assert!(in_time(|| called().is_some()));
            refuse();
            assert_eq!(waits.join().expect("no panic"), no_memory as *const () as usize);
            let comes = scope.spawn(answer);
            assert_eq!(comes.join().expect("no panic"), no_memory as *const () as usize);
            refuse_no_more();
            let waits = scope.spawn(answer);
            assert!(in_time(|| called().is_some()));
            open();
            assert_ne!(waits.join().expect("no panic"), no_memory as *const () as usize);
        });
        assert!(is_empty());
    }

    #[test]
    fn each_thread_has_its_own_cell_and_finds_it_again() {
        let marks = (1..600u32).map(|nth| nth << 17);
        let cells: Vec<usize> = marks
            .clone()
            .filter_map(|mark| cell_of(mark).map(|cell| std::ptr::from_ref(cell) as usize))
            .collect();
        let again = marks.filter_map(|mark| cell_of(mark).map(|cell| std::ptr::from_ref(cell) as usize));
        assert!(again.eq(cells.iter().copied()));
        let mut distinct = cells.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), cells.len());
        for cell in &THREADS {
            if cell.owner.load(Ordering::Relaxed) % (1 << 17) == 0 {
                cell.owner.store(0, Ordering::Relaxed);
            }
        }
    }
}
