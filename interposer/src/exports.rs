// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exported entry points and their slots.
//!
//! An export is only a jump through the symbol's slot. A slot points to one of five
//! places:
//! 1. Until the symbol's first call, its stub: the binder then opens the driver and looks the
//!    symbol up.
//! 2. Weft's hook, if there is one and the driver has the symbol.
//! 3. Otherwise the driver's function: a pass-through costs one jump. A stream-ordered call goes to
//!    a stub that informs the session. A call that must not overtake launches goes to a stub that
//!    checks the [queue](deferred).
//! 4. Weft's own answer, if the symbol or the driver is missing.
//! 5. In a job with movable memory, a stub that counts the call, and then 2, 3 or 4
//!    ([`crate::movable::gate`]).
//!
//! A slot leaves 1 once, and returns once if its hook depends on a later decision
//! ([`choose_anew`]). Stack arguments stay untouched, so any signature passes. No function here may
//! panic; nothing runs before the first call of an entry point.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use weft_symbols::Class;

use crate::client::{backing_mode, deferral};
use crate::driver::abi::CuResult;
use crate::driver::loader::{self, Driver};
use crate::driver::symbols::{self, COUNT, ENTRIES, Exported, REAL, absent, look_up};
use crate::movable::{self, gate};
use crate::{deferred, hooks, internal_error, thread, throttle};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

static BOUND: AtomicU64 = AtomicU64::new(0);

/// Address of the stub of symbol `at`: 16 bytes each.
const fn stub(run: unsafe extern "C" fn(), at: usize) -> AtomicPtr<()> {
    AtomicPtr::new((run as *const u8).wrapping_add(16 * at).cast::<()>().cast_mut())
}

/// Answers for every symbol without a driver.
extern "C" fn no_driver() -> CuResult {
    CuResult::NO_DEVICE
}

/// Answers for a symbol that the driver calls while it is being opened, because its own references
/// bind to weft.
extern "C" fn not_yet() -> CuResult {
    CuResult::NOT_INITIALIZED
}

/// Symbols bound so far. `weft doctor` and the tests see from it that calls come through weft.
pub fn bound() -> u64 {
    BOUND.load(Ordering::Relaxed)
}

/// Whether the symbol's entry point was ever called.
pub fn is_bound(at: usize) -> bool {
    let stub = bind_stubs::run as *const u8;
    let slot = SLOTS
        .get(at)
        .map(|slot| slot.load(Ordering::Relaxed).cast_const().cast::<u8>());
    slot.is_some_and(|slot| slot != stub.wrapping_add(16 * at))
}

/// Passes this module's addresses and callbacks to lower modules. Cheap after the first time.
pub fn announce() {
    symbols::set_exported(Exported {
        entry_points: &EXPORTS,
        slots: &SLOTS,
    });
    backing_mode::when_device_memory(choose_managed_anew);
    throttle::listen();
}

/// Rebinds the hooks for managed jobs: the job's memory is device memory.
fn choose_managed_anew() {
    for at in (0..COUNT).filter(|at| hooks::is_for_managed(*at)) {
        choose_anew(at);
    }
}

/// Rebinds a symbol at its next call, because the decision behind its hook has changed.
fn choose_anew(at: usize) {
    if let Some(slot) = SLOTS.get(at) {
        slot.store(stub(bind_stubs::run, at).into_inner(), Ordering::Release);
    }
}

/// Binds a symbol at its first call; returns the address at which the call continues. [`binder`]
/// has saved the caller's arguments.
extern "C" fn bind(at: u32) -> *const () {
    // Opening the driver reads files.
    let _whole = thread::uncancelled();
    announce();
    let at = at as usize;
    let (Some(slot), Some(entry)) = (SLOTS.get(at), ENTRIES.get(at)) else {
        internal_error::count();
        return absent as *const ();
    };
    let target = match loader::driver() {
        // Not kept: a later call must reach the driver.
        Driver::Opening => return not_yet as *const (),
        Driver::Missing => hooks::without_driver(at).unwrap_or(no_driver as *const ()),
        Driver::Open(library) => match look_up(at, library) {
            None => absent as *const (),
            Some(real) if hooks::off() && entry.class != Class::Lookup => real.cast_const(),
            Some(real) => match hooks::hook(at) {
                Some(hook) => hook,
                None if entry.class.is_ordered() => stub(ordered_stubs::run, at).into_inner().cast_const(),
                None if deferral::on() && entry.queue.waits() => stub(queue_stubs::run, at).into_inner().cast_const(),
                None => real.cast_const(),
            },
        },
    };
    let target = match hooks::off() {
        false if gate::counts(entry) => {
            gate::set_target(at, target);
            stub(counted_stubs::run, at).into_inner().cast_const()
        }
        _ => target,
    };
    movable::bound(entry.base);
    slot.store(target.cast_mut(), Ordering::Release);
    BOUND.fetch_add(1, Ordering::Relaxed);
    target
}

/// Common end of all stubs: saves every register that can carry an argument, binds, restores,
/// continues.
#[unsafe(naked)]
unsafe extern "C" fn binder() {
    crate::processor::binder!(bind)
}

/// Common code of stream-ordered symbols without a hook. It informs the session, then continues to
/// the driver with the caller's arguments and return address. No such function takes floating-point
/// arguments.
#[unsafe(naked)]
unsafe extern "C" fn ordered_gate() {
    crate::processor::ordered_gate!(crate::hooks::stream_ordered::before)
}

/// Common code of symbols without a hook that must not overtake the launch queue: two instructions
/// more than a jump while the queue is empty. Otherwise the call continues at the address that
/// [`deferred::gate`] returns. The driver's function was looked up before a slot led here.
#[unsafe(naked)]
unsafe extern "C" fn queue_gate() {
    crate::processor::queue_gate!(deferred::STATE, REAL, deferred::gate)
}

/// Common code of counted symbols, in jobs with movable memory. It counts the thread in, calls the
/// hook or the driver with the caller's arguments, and counts the thread out. A function has at
/// most two floating-point arguments, and [`gate::STACK_WORDS`] words on the stack.
#[unsafe(naked)]
unsafe extern "C" fn counted_gate() {
    crate::processor::counted_gate!(gate::enter, gate::leave)
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
            counted_stubs::run as *const u8,
        ] {
            for at in 0..COUNT {
                let code = run.wrapping_add(16 * at);
                // SAFETY: the run of stubs is COUNT times 16 bytes of readable code.
                let code = unsafe { std::slice::from_raw_parts(code, 16) };
                if cfg!(target_arch = "aarch64") {
                    // mov w17, #at
                    assert_eq!(code[..4], (0x5280_0011 | (at as u32) << 5).to_le_bytes());
                    // b
                    assert_eq!(code[7] >> 2, 0b000101);
                } else {
                    assert_eq!(code[..2], [0x41, 0xbb]);
                    assert_eq!(code[2..6], (at as u32).to_le_bytes());
                    assert_eq!(code[6], 0xe9);
                }
            }
        }
    }

    #[test]
    fn every_slot_starts_at_its_stub() {
        // A symbol that no test calls.
        let at = symbols::index::cuEGLStreamProducerDisconnect;
        assert!(!is_bound(at));
        let expected = stub(bind_stubs::run, at).into_inner();
        assert_eq!(SLOTS[at].load(Ordering::Relaxed), expected);
    }
}
