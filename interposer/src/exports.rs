//! The exported entry points and their slots.
//!
//! A symbol's export is one instruction: a jump through its slot. A slot points
//! 1. at the symbol's stub until its first call: the binder then opens the driver and looks the
//!    symbol up in it;
//! 2. at our hook for the symbol, if we have one and the driver has the symbol;
//! 3. else at the driver's function itself, so that a pass-through costs that one jump, or, for a
//!    call that must not overtake launches, at a stub that first looks whether any are in the
//!    [queue](deferred);
//! 4. at an answer of our own where the driver lacks the symbol, or where there is no driver.
//!
//! Slots only ever change from 1 to one of the others, and back once where the hook depends on what
//! was not decided yet ([`choose_anew`]). Arguments on the stack are never touched on the way, so a
//! call with any signature passes. No function here may panic, and nothing runs before the first
//! call of an entry point.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use weft_symbols::Class;

use crate::client::{backing_mode, deferral};
use crate::driver::abi::CuResult;
use crate::driver::loader::{self, Driver};
use crate::driver::symbols::{self, COUNT, ENTRIES, Exported, REAL, absent, look_up};
use crate::{deferred, hooks, internal_error, thread, throttle, trace};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// Symbols bound so far: what `weft doctor` and the tests look at to see that a call really came
/// through us.
static BOUND: AtomicU64 = AtomicU64::new(0);

/// Address of the stub of symbol `at`: stubs are 16 bytes each.
const fn stub(run: unsafe extern "C" fn(), at: usize) -> AtomicPtr<()> {
    AtomicPtr::new((run as *const u8).wrapping_add(16 * at).cast::<()>().cast_mut())
}

/// What every symbol answers where no driver was found.
extern "C" fn no_driver() -> CuResult {
    CuResult::NO_DEVICE
}

/// What a symbol answers that the driver calls while it is being opened: only a driver whose
/// references to its own names come out at us does that.
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

/// Tells the rooms below what they need of this one. Cheap after the first time.
pub fn announce() {
    symbols::set_exported(Exported {
        entry_points: &EXPORTS,
        slots: &SLOTS,
    });
    backing_mode::when_device_memory(choose_managed_anew);
    throttle::listen();
}

/// The job's memory is device memory: the symbols that had hooks for managed jobs choose anew.
fn choose_managed_anew() {
    for at in (0..COUNT).filter(|at| hooks::is_for_managed(*at)) {
        choose_anew(at);
    }
}

/// Which hook a symbol has depended on what is decided only now: it is chosen anew at the next
/// call.
fn choose_anew(at: usize) {
    if let Some(slot) = SLOTS.get(at) {
        slot.store(stub(bind_stubs::run, at).into_inner(), Ordering::Release);
    }
}

/// Binds a symbol at its first call and says where to go on. Called by [`binder`] with the caller's
/// arguments saved.
extern "C" fn bind(at: u32) -> *const () {
    // The driver is opened here, and files are read for that.
    let _whole = thread::uncancelled();
    announce();
    let at = at as usize;
    let (Some(slot), Some(entry)) = (SLOTS.get(at), ENTRIES.get(at)) else {
        internal_error::count();
        return absent as *const ();
    };
    let target = match loader::driver() {
        // Not kept: the same call made later must reach the driver.
        Driver::Opening => return not_yet as *const (),
        Driver::Missing => hooks::without_driver(at).unwrap_or(no_driver as *const ()),
        Driver::Open(library) => match look_up(at, library) {
            None => absent as *const (),
            Some(real) if hooks::off() && entry.class != Class::Lookup => real.cast_const(),
            Some(real) => match trace::hooks::hook(at).or_else(|| hooks::hook(at)) {
                Some(hook) => hook,
                None if entry.class.is_ordered() => stub(ordered_stubs::run, at).into_inner().cast_const(),
                None if deferral::on() && deferred::waits(at) => stub(queue_stubs::run, at).into_inner().cast_const(),
                None => real.cast_const(),
            },
        },
    };
    slot.store(target.cast_mut(), Ordering::Release);
    BOUND.fetch_add(1, Ordering::Relaxed);
    target
}

/// The common end of all stubs: saves every register that can carry an argument, binds, restores,
/// goes on. `r11` holds the symbol's number. The stack pointer is 8 off a multiple of 16, as at
/// every function's start.
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

/// The common code of all stream-ordered symbols without a hook of their own: tells what is coming,
/// then goes on to the driver with the caller's arguments and return address. No such function
/// takes floating-point arguments.
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
        ordered = sym crate::hooks::stream_ordered::before,
    )
}

/// The common code of all symbols without a hook that must not overtake what is in the launch
/// queue: two instructions more than a jump while there is nothing in it. Then the call goes on
/// where [`deferred::gate`] says. The driver's function was looked up before a slot could lead
/// here.
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
        state = sym deferred::STATE,
        real = sym REAL,
        gate = sym deferred::gate,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let at = symbols::index::cuEGLStreamProducerDisconnect;
        assert!(!is_bound(at));
        let expected = stub(bind_stubs::run, at).into_inner();
        assert_eq!(SLOTS[at].load(Ordering::Relaxed), expected);
    }
}
