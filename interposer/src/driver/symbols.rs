//! The symbol table, and the driver's own function for each symbol.
//!
//! The table is generated from `interposer/symbols`. A function is looked up in the driver once,
//! which opens the driver if need be. What calls of ours lead to is here; what calls of the job's
//! lead to is in [`crate::exports`].

use std::ffi::{CStr, CString};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use weft_symbols::Class;

use crate::driver::abi::CuResult;
use crate::driver::loader::{self, Driver, Library};

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// A stream-ordered call that is no launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamOp {
    /// Copy from host to device.
    CopyToDevice,
    /// Copy from device to host.
    CopyToHost,
    /// Copy within or between devices, or of unknown direction.
    CopyOnDevice,
    /// Memset.
    Memset,
    /// Event record: what auto-tuners time kernels with.
    EventRecord,
    /// The stream waits for an event.
    EventWait,
    /// Everything else that has a place in a stream: host function, memory operation, asynchronous
    /// allocation.
    Other,
}

/// One line of the symbol table.
#[derive(Debug)]
pub struct Entry {
    /// Name as the dynamic linker knows it.
    pub symbol: &'static CStr,
    /// Name as `cuGetProcAddress` knows it.
    pub base: &'static str,
    /// CUDA version from which `cuGetProcAddress` hands this symbol out.
    pub since: u32,
    /// For callers with a per-thread default stream?
    pub per_thread: bool,
    /// What it does to the order of work.
    pub class: Class,
    /// Number of arguments.
    pub args: u8,
    /// Position of the stream argument; [`NOWHERE`] if it has none.
    pub stream: u8,
    /// Position of the argument that says how much; [`NOWHERE`] if it has none.
    pub size: u8,
    /// What a stream-ordered call of it is to the session.
    pub op: StreamOp,
    /// Where it stands how much it moves.
    pub moves: Moves,
}

/// Where the amount stands that a copy or fill moves.
#[derive(Debug, Clone, Copy)]
pub enum Moves {
    /// It moves nothing, or does not say it in a way we read.
    Nothing,
    /// An argument, times the bytes an element.
    Bytes(u8, u8),
    /// Two arguments multiplied, times the bytes an element.
    Rows(u8, u8, u8),
    /// A `CUDA_MEMCPY2D` behind the first argument.
    Copy2d,
    /// A `CUDA_MEMCPY3D` or its peer variant behind the first argument.
    Copy3d,
    /// An array of sizes and how many.
    List(u8, u8),
}

/// No such argument.
pub const NOWHERE: u8 = 255;

/// The driver's function for each symbol; null until looked up, [`absent`] where the driver has
/// none.
pub static REAL: [AtomicPtr<()>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

/// What this library exports for the symbols; known once an entry point was called.
static EXPORTED: OnceLock<Exported> = OnceLock::new();

/// The entry points of this library, each in the order of [`ENTRIES`].
#[derive(Debug, Clone, Copy)]
pub struct Exported {
    /// Their addresses.
    pub entry_points: &'static [unsafe extern "C" fn()],
    /// What each jumps to.
    pub slots: &'static [AtomicPtr<()>],
}

/// What a symbol answers that the driver does not have.
pub extern "C" fn absent() -> CuResult {
    CuResult::NOT_FOUND
}

/// The number of a symbol.
pub fn find(symbol: &CStr) -> Option<usize> {
    ENTRIES.binary_search_by(|entry| entry.symbol.cmp(symbol)).ok()
}

/// The numbers of the symbols with that base name, oldest first.
pub fn of_base(base: &str) -> impl Iterator<Item = usize> {
    let named = |at: u16| ENTRIES.get(usize::from(at)).map_or("", |entry| entry.base);
    let first = BY_BASE.partition_point(|at| named(*at) < base);
    let rest = BY_BASE.get(first..).unwrap_or_default();
    rest.iter()
        .copied()
        .take_while(move |at| named(*at) == base)
        .map(usize::from)
}

/// The driver's function for a symbol, looked up if need be. `None` if the driver lacks it or there
/// is no driver.
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

/// The driver's function for a symbol that a hook runs for: it was looked up before the hook could
/// be called.
#[inline]
pub fn real_bound(at: usize) -> *mut () {
    let known = REAL
        .get(at)
        .map_or(std::ptr::null_mut(), |real| real.load(Ordering::Relaxed));
    if known.is_null() { real_late(at) } else { known }
}

/// As above, in code of its own: no hook need carry it.
#[cold]
#[inline(never)]
fn real_late(at: usize) -> *mut () {
    real(at).unwrap_or(absent as *mut ())
}

/// Says where this library's entry points are. Cheap after the first time.
pub fn set_exported(exported: Exported) {
    // All callers mean the same arrays.
    let _ = EXPORTED.set(exported);
}

/// Our entry point for a symbol.
pub fn export(at: usize) -> Option<*mut ()> {
    let entry_points = EXPORTED.get()?.entry_points;
    entry_points.get(at).map(|export| *export as *mut ())
}

/// The symbol whose entry point of ours this is.
pub fn exported_as(address: *mut ()) -> Option<usize> {
    let mut entry_points = EXPORTED.get()?.entry_points.iter();
    entry_points.position(|export| *export as *mut () == address)
}

/// A hook has done what it was for: from now on the symbol leads straight to the driver.
pub fn unhook(at: usize) {
    let slot = EXPORTED.get().and_then(|exported| exported.slots.get(at));
    if let (Some(slot), Some(real)) = (slot, real(at)) {
        slot.store(real, Ordering::Release);
    }
}

/// The driver offers a symbol only through its own `cuGetProcAddress`: remember what it handed out.
pub fn learn(at: usize, function: *mut ()) {
    let Some(real) = REAL.get(at) else { return };
    let nothing = real.load(Ordering::Acquire);
    if nothing.is_null() || nothing.cast_const() == absent as *const () {
        // A slot that answered "absent" stays so for callers that found it by name, as without
        // weft; a slot not yet called binds to this function.
        let _ = real.compare_exchange(nothing, function, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The function that this library exports for a symbol, kept for good.
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

/// Driver functions (`cu...`) that it exports and weft does not know: calls of these pass weft by.
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
