//! The exported entry points, their slots, and what the real driver has for each.
//!
//! A symbol's export is one instruction: a jump through its slot. A slot points
//! 1. at the symbol's stub until its first call: the binder then opens the driver and looks the symbol up in it;
//! 2. at our hook for the symbol, if we have one and the driver has the symbol;
//! 3. else at the driver's function itself, so that a pass-through costs that one jump, or, for a call that must not overtake launches, at a stub that first looks
//!    whether any are in the [`queue`];
//! 4. at an answer of our own where the driver lacks the symbol, or where there is no driver.
//!
//! Slots only ever change from 1 to one of the others, and back once where the hook depends on what was not decided yet ([`choose_anew`]). Arguments on the stack are never touched on the way, so a call with any
//! signature passes. No function here may panic, and nothing runs before the first call of an entry point.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use weft_symbols::Class;

use crate::abi::CuResult;
use crate::loader::{self, Driver};
use crate::session::{self, StreamOp};
use crate::{hooks, queue, trouble};

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

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

/// The driver's function for each symbol; null until looked up, [`absent`] where the driver has none.
static REAL: [AtomicPtr<()>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

/// Symbols bound so far: what `weft doctor` and the tests look at to see that a call really came through us.
static BOUND: AtomicU64 = AtomicU64::new(0);

/// Address of the stub of symbol `at`: stubs are 16 bytes each.
const fn stub(run: unsafe extern "C" fn(), at: usize) -> AtomicPtr<()> {
    AtomicPtr::new((run as *const u8).wrapping_add(16 * at).cast::<()>().cast_mut())
}

/// What a symbol answers that the driver does not have.
extern "C" fn absent() -> CuResult {
    CuResult::NOT_FOUND
}

/// What every symbol answers where no driver was found.
extern "C" fn no_driver() -> CuResult {
    CuResult::NO_DEVICE
}

/// What a symbol answers that the driver calls while it is being opened: only a driver whose references to its own names
/// come out at us does that.
extern "C" fn not_yet() -> CuResult {
    CuResult::NOT_INITIALIZED
}

/// Symbols bound so far.
pub fn bound() -> u64 {
    BOUND.load(Ordering::Relaxed)
}

/// Was the symbol's entry point of ours ever called?
pub fn is_bound(at: usize) -> bool {
    let stub = bind_stubs::run as *const u8;
    let slot = SLOTS
        .get(at)
        .map(|slot| slot.load(Ordering::Relaxed).cast_const().cast::<u8>());
    slot.is_some_and(|slot| slot != stub.wrapping_add(16 * at))
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

/// Our entry point for a symbol.
pub fn export(at: usize) -> Option<*mut ()> {
    EXPORTS.get(at).map(|export| *export as *mut ())
}

/// The symbol whose entry point of ours this is.
pub fn exported_as(address: *mut ()) -> Option<usize> {
    EXPORTS.iter().position(|export| *export as *mut () == address)
}

/// The driver's function for a symbol, looked up if need be. `None` if the driver lacks it or there is no driver.
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

/// The driver's function for a symbol that a hook runs for: it was looked up before the hook could be called.
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

/// A hook has done what it was for: from now on the symbol leads straight to the driver.
pub fn unhook(at: usize) {
    if let (Some(slot), Some(real)) = (SLOTS.get(at), real(at)) {
        slot.store(real, Ordering::Release);
    }
}

/// Which hook a symbol has depended on what is decided only now: it is chosen anew at the next call.
pub fn choose_anew(at: usize) {
    if let Some(slot) = SLOTS.get(at) {
        slot.store(stub(bind_stubs::run, at).into_inner(), Ordering::Release);
    }
}

/// The driver offers a symbol only through its own `cuGetProcAddress`: remember what it handed out.
pub fn learn(at: usize, function: *mut ()) {
    let Some(real) = REAL.get(at) else { return };
    let nothing = real.load(Ordering::Acquire);
    if nothing.is_null() || nothing.cast_const() == absent as *const () {
        // A slot that answered "absent" stays so for callers that found it by name, as without weft; a slot not yet
        // called binds to this function.
        let _ = real.compare_exchange(nothing, function, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn look_up(at: usize, library: &loader::Library) -> Option<*mut ()> {
    let entry = ENTRIES.get(at)?;
    let found = library.symbol(entry.symbol);
    let kept = REAL.get(at)?;
    let value = found.unwrap_or(absent as *mut ());
    match kept.compare_exchange(std::ptr::null_mut(), value, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => found,
        Err(other) => (other.cast_const() != absent as *const ()).then_some(other),
    }
}

/// Binds a symbol at its first call and says where to go on. Called by [`binder`] with the caller's arguments saved.
extern "C" fn bind(at: u32) -> *const () {
    // The driver is opened here, and files are read for that.
    let _whole = session::uncancelled();
    let at = at as usize;
    let (Some(slot), Some(entry)) = (SLOTS.get(at), ENTRIES.get(at)) else {
        trouble::count();
        return absent as *const ();
    };
    let target = match loader::driver() {
        // Not kept: the same call made later must reach the driver.
        Driver::Opening => return not_yet as *const (),
        Driver::Missing => hooks::without_driver(at).unwrap_or(no_driver as *const ()),
        Driver::Open(library) => match look_up(at, library) {
            None => absent as *const (),
            Some(real) if hooks::off() && entry.class != Class::Lookup => real.cast_const(),
            Some(real) => match hooks::hook(at) {
                Some(hook) => hook,
                None if entry.class.is_ordered() => stub(ordered_stubs::run, at).into_inner().cast_const(),
                None if queue::on() && queue::waits(at) => stub(queue_stubs::run, at).into_inner().cast_const(),
                None => real.cast_const(),
            },
        },
    };
    slot.store(target.cast_mut(), Ordering::Release);
    BOUND.fetch_add(1, Ordering::Relaxed);
    target
}

/// The common end of all stubs: saves every register that can carry an argument, binds, restores, goes on. `r11` holds the
/// symbol's number. The stack pointer is 8 off a multiple of 16, as at every function's start.
#[unsafe(naked)]
unsafe extern "C" fn binder() {
    std::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 192",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "mov [rsp + 48], rax",
        "mov [rsp + 56], r10",
        "movaps [rsp + 64], xmm0",
        "movaps [rsp + 80], xmm1",
        "movaps [rsp + 96], xmm2",
        "movaps [rsp + 112], xmm3",
        "movaps [rsp + 128], xmm4",
        "movaps [rsp + 144], xmm5",
        "movaps [rsp + 160], xmm6",
        "movaps [rsp + 176], xmm7",
        "mov edi, r11d",
        "call {bind}",
        "mov r11, rax",
        "mov rdi, [rsp]",
        "mov rsi, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rcx, [rsp + 24]",
        "mov r8, [rsp + 32]",
        "mov r9, [rsp + 40]",
        "mov rax, [rsp + 48]",
        "mov r10, [rsp + 56]",
        "movaps xmm0, [rsp + 64]",
        "movaps xmm1, [rsp + 80]",
        "movaps xmm2, [rsp + 96]",
        "movaps xmm3, [rsp + 112]",
        "movaps xmm4, [rsp + 128]",
        "movaps xmm5, [rsp + 144]",
        "movaps xmm6, [rsp + 160]",
        "movaps xmm7, [rsp + 176]",
        "leave",
        "jmp r11",
        bind = sym bind,
    )
}

/// The common code of all stream-ordered symbols without a hook of their own: tells what is coming, then goes on to the
/// driver with the caller's arguments and return address. No such function takes floating-point arguments.
#[unsafe(naked)]
unsafe extern "C" fn ordered_gate() {
    std::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 48",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "mov edi, r11d",
        "mov rsi, rsp",
        "lea rdx, [rbp + 16]",
        "call {ordered}",
        "mov rdi, [rsp]",
        "mov rsi, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rcx, [rsp + 24]",
        "mov r8, [rsp + 32]",
        "mov r9, [rsp + 40]",
        "leave",
        "jmp rax",
        ordered = sym crate::hooks::ordered::before,
    )
}

/// The common code of all symbols without a hook that must not overtake what is in the launch queue: two instructions more than a jump while there is nothing
/// in it. Then the call goes on where [`queue::gate`] says. The driver's function was looked up before a slot could lead here.
#[unsafe(naked)]
unsafe extern "C" fn queue_gate() {
    std::arch::naked_asm!(
        "cmp dword ptr [rip + {state}], 0",
        "jne 2f",
        "lea rax, [rip + {real}]",
        "jmp qword ptr [rax + 8 * r11]",
        "2:",
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 176",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "movaps [rsp + 48], xmm0",
        "movaps [rsp + 64], xmm1",
        "movaps [rsp + 80], xmm2",
        "movaps [rsp + 96], xmm3",
        "movaps [rsp + 112], xmm4",
        "movaps [rsp + 128], xmm5",
        "movaps [rsp + 144], xmm6",
        "movaps [rsp + 160], xmm7",
        "mov edi, r11d",
        "call {gate}",
        "mov rdi, [rsp]",
        "mov rsi, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rcx, [rsp + 24]",
        "mov r8, [rsp + 32]",
        "mov r9, [rsp + 40]",
        "movaps xmm0, [rsp + 48]",
        "movaps xmm1, [rsp + 64]",
        "movaps xmm2, [rsp + 80]",
        "movaps xmm3, [rsp + 96]",
        "movaps xmm4, [rsp + 112]",
        "movaps xmm5, [rsp + 128]",
        "movaps xmm6, [rsp + 144]",
        "movaps xmm7, [rsp + 160]",
        "leave",
        "jmp rax",
        state = sym queue::STATE,
        real = sym REAL,
        gate = sym queue::gate,
    )
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

    #[test]
    fn the_stubs_are_16_bytes_apart_and_carry_their_number() {
        for run in [
            bind_stubs::run as *const u8,
            ordered_stubs::run as *const u8,
            queue_stubs::run as *const u8,
        ] {
            for at in 0..COUNT {
                let code = run.wrapping_add(16 * at);
                // SAFETY: the run of stubs is COUNT times 16 bytes of readable code.
                let code = unsafe { std::slice::from_raw_parts(code, 16) };
                assert_eq!(code[..2], [0x41, 0xbb]);
                assert_eq!(code[2..6], (at as u32).to_le_bytes());
                assert_eq!(code[6], 0xe9);
            }
        }
    }

    #[test]
    fn every_slot_starts_at_its_stub() {
        // The slot of a symbol that no test calls.
        let at = index::cuEGLStreamProducerDisconnect;
        assert!(!is_bound(at));
        let expected = stub(bind_stubs::run, at).into_inner();
        assert_eq!(SLOTS[at].load(Ordering::Relaxed), expected);
    }
}
