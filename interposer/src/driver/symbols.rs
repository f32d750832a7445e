// SPDX-License-Identifier: MIT OR Apache-2.0
//! The symbol table, and the driver's own function for each symbol.
//!
//! The table is generated from `interposer/symbols`. This module serves weft's own calls;
//! [`crate::exports`] serves the job's.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use weft_symbols::{Class, QueueRule};

use crate::driver::abi::CuResult;
use crate::driver::loader::{self, Driver, Library};

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// A stream-ordered call other than a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamOp {
    /// From host to device.
    CopyToDevice,
    /// From device to host.
    CopyToHost,
    /// Copy within or between devices, or of unknown direction.
    CopyOnDevice,
    /// Memset.
    Memset,
    /// Event record: auto-tuners time with it.
    EventRecord,
    /// Wait for an event.
    EventWait,
    /// Any other: host function, memory operation, allocation.
    Other,
}

/// A line of the symbol table. Only the generator reads `size`.
#[derive(Debug)]
#[allow(dead_code)]
pub struct Entry {
    /// Name for the dynamic linker.
    pub symbol: &'static CStr,
    /// Name for `cuGetProcAddress`.
    pub base: &'static str,
    /// First CUDA version for which `cuGetProcAddress` returns this symbol.
    pub since: u32,
    /// Whether it is for callers with a per-thread default stream.
    pub per_thread: bool,
    /// Effect on the order of work.
    pub class: Class,
    /// Number of arguments.
    pub args: u8,
    /// Position of the stream argument, or [`NOWHERE`].
    pub stream: u8,
    /// Position of the size argument, or [`NOWHERE`].
    pub size: u8,
    /// Its rule for deferred launches.
    pub queue: QueueRule,
    /// Kind of stream-ordered call.
    pub op: StreamOp,
    /// Place of the number of bytes moved.
    pub moves: Moves,
}

/// Place in a call's arguments of the number of bytes that it moves.
#[derive(Debug, Clone, Copy)]
pub enum Moves {
    /// No bytes moved, or the number is not readable.
    Nothing,
    /// An argument, times bytes per element.
    Bytes(u8, u8),
    /// Two arguments multiplied, times bytes per element.
    Rows(u8, u8, u8),
    /// A `CUDA_MEMCPY2D`, the first argument.
    Copy2d,
    /// A `CUDA_MEMCPY3D` or its peer variant, the first argument.
    Copy3d,
    /// An array of sizes, and its length.
    List(u8, u8),
}

/// No such argument.
pub const NOWHERE: u8 = 255;

/// The driver's functions; null until looked up, [`absent`] if there is none.
pub static REAL: [AtomicPtr<()>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

/// This library's entry points, set when the first one was called.
static EXPORTED: OnceLock<Exported> = OnceLock::new();

/// Entry points of this library, in the order of [`ENTRIES`].
#[derive(Debug, Clone, Copy)]
pub struct Exported {
    pub entry_points: &'static [unsafe extern "C" fn()],
    pub slots: &'static [AtomicPtr<()>],
}

/// Stands for a symbol that the driver lacks.
pub extern "C" fn absent() -> CuResult {
    CuResult::NOT_FOUND
}

/// Number of a symbol.
pub fn find(symbol: &CStr) -> Option<usize> {
    ENTRIES.binary_search_by(|entry| entry.symbol.cmp(symbol)).ok()
}

/// Numbers of the symbols with that base name, oldest first.
pub fn of_base(base: &str) -> impl Iterator<Item = usize> {
    let named = |at: u16| ENTRIES.get(usize::from(at)).map_or("", |entry| entry.base);
    let first = BY_BASE.partition_point(|at| named(*at) < base);
    let rest = BY_BASE.get(first..).unwrap_or_default();
    rest.iter()
        .copied()
        .take_while(move |at| named(*at) == base)
        .map(usize::from)
}

/// The driver's function for a symbol, looked up if necessary.
pub fn real(at: usize) -> Option<*mut ()> {
    let known = REAL.get(at)?.load(Ordering::Acquire);
    if !known.is_null() {
        return (known.cast_const() != absent as *const ()).then_some(known);
    }
    match loader::driver() {
        Driver::Open(library) => look_up(at, library),
        Driver::Missing | Driver::Opening => None,
    }
}

/// The driver's function for a hooked symbol, which is looked up already.
#[inline]
pub fn real_bound(at: usize) -> *mut () {
    let known = REAL
        .get(at)
        .map_or(std::ptr::null_mut(), |real| real.load(Ordering::Relaxed));
    if known.is_null() { real_late(at) } else { known }
}

/// Out of line, so that no hook carries it.
#[cold]
#[inline(never)]
fn real_late(at: usize) -> *mut () {
    real(at).unwrap_or(absent as *mut ())
}

/// Registers this library's entry points.
pub fn set_exported(exported: Exported) {
    // All callers pass the same arrays.
    let _ = EXPORTED.set(exported);
}

/// This library's entry point for a symbol.
pub fn export(at: usize) -> Option<*mut ()> {
    let entry_points = EXPORTED.get()?.entry_points;
    entry_points.get(at).map(|export| *export as *mut ())
}

/// The symbol whose entry point this is.
pub fn exported_as(address: *mut ()) -> Option<usize> {
    let mut entry_points = EXPORTED.get()?.entry_points.iter();
    entry_points.position(|export| *export as *mut () == address)
}

/// Removes a hook: the symbol now leads straight to the driver.
pub fn unhook(at: usize) {
    let slot = EXPORTED.get().and_then(|exported| exported.slots.get(at));
    if let (Some(slot), Some(real)) = (slot, real(at)) {
        slot.store(real, Ordering::Release);
    }
}

/// Keeps a function that the driver offers only through its own `cuGetProcAddress`.
pub fn learn(at: usize, function: *mut ()) {
    let Some(real) = REAL.get(at) else { return };
    let nothing = real.load(Ordering::Acquire);
    if nothing.is_null() || nothing.cast_const() == absent as *const () {
        // A slot that answered "absent" stays so for callers that found it by name, as without
        // weft.
        let _ = real.compare_exchange(nothing, function, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Looks a symbol up in the driver, once.
pub fn look_up(at: usize, library: &Library) -> Option<*mut ()> {
    let entry = ENTRIES.get(at)?;
    let found = library.symbol(entry.symbol);
    let kept = REAL.get(at)?;
    let value = found.unwrap_or(absent as *mut ());
    match kept.compare_exchange(std::ptr::null_mut(), value, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => found,
        Err(other) => (other.cast_const() != absent as *const ()).then_some(other),
    }
}

/// Driver functions (`cu...`) beyond the table, whose calls bypass weft.
pub fn beyond_the_table(driver: &Library) -> Vec<String> {
    let ours = |name: &String| CString::new(name.as_str()).is_ok_and(|name| find(&name).is_some());
    let passed = |name: &String| {
        let known = |(known, all): &(&str, bool)| if *all { name.starts_with(known) } else { name == known };
        PASSED.iter().any(known)
    };
    let driver_s = |name: &String| name.starts_with("cu") && !passed(name);
    let names = driver.functions().into_iter();
    let mut names: Vec<String> = names.filter(|name| driver_s(name) && !ours(name)).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        for (at, entry) in ENTRIES.iter().enumerate() {
            assert_eq!(find(entry.symbol), Some(at));
            assert!(of_base(entry.base).any(|other| other == at), "{:?}", entry.symbol);
        }
        assert_eq!(find(c"cuNoSuchThing"), None);
        assert_eq!(of_base("").count(), 0);
        assert_eq!(of_base("cuMemcpyHtoD").count(), 3);
    }
}
