// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel identities: from the handle that a client launches to the kernel's identity.
//!
//! A launch costs one look-up in a table ([`super::index`]) and two multiplications. The
//! [`registry`] of names is read at an identity's first launch. The driver is queried at the first
//! launch of a handle that the client got without a call that weft saw.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use weft_kernel_id::{KernelId, SymbolKey, launch_hash};

use super::ask;
use super::index::Index;
use super::registry::{self, HandleKind, UNNAMED, code_of, function_named, same_function};
use crate::driver::capture;
use crate::internal_error::guarded;

/// Slots for seen identities; three quarters are usable.
const IDENTITY_SLOTS: usize = 131_072;

static SEEN: Index<IDENTITY_SLOTS> = Index::new();

static LISTENER: OnceLock<fn(u64, &KernelId)> = OnceLock::new();

/// Registers a function that gets each identity at its first launch. The first caller's counts.
pub fn listen(listener: fn(u64, &KernelId)) {
    let _ = LISTENER.set(listener);
}

/// Identity of a launch; 0 if the kernel's name is unknown.
///
/// The shape is passed as single numbers. Arrays would be stored in halves and loaded whole, which
/// stalls every launch by some 4 ns.
#[inline(always)]
pub fn identify(handle: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32) -> u64 {
    let Some(slot) = registry::named_slot(handle) else {
        return unknown(handle, gx, gy, gz, bx, by, bz, shared);
    };
    let key = slot.value.load(Ordering::Relaxed);
    if key <= UNNAMED {
        return if key == UNNAMED {
            0
        } else {
            unknown(handle, gx, gy, gz, bx, by, bz, shared)
        };
    }
    let hash = launch_hash(SymbolKey::from_word(key), [gx, gy, gz], [bx, by, bz], shared);
    // The note is the last launch's hash: most kernels repeat one shape.
    if slot.note.load(Ordering::Relaxed) != hash {
        slot.note.store(hash, Ordering::Relaxed);
        first_of(handle, hash, gx, gy, gz, bx, by, bz, shared);
    }
    hash
}

/// Module and symbol of a kernel ([`SymbolKey::to_word`]); 0 if it has no name.
pub fn symbol(handle: usize) -> u64 {
    let known = registry::named_slot(handle).map(|slot| slot.value.load(Ordering::Relaxed));
    known.filter(|key| *key > UNNAMED).unwrap_or(0)
}

pub fn identify_shape(handle: usize, grid: [u32; 3], block: [u32; 3], shared: u32) -> u64 {
    let [[gx, gy, gz], [bx, by, bz]] = [grid, block];
    identify(handle, gx, gy, gz, bx, by, bz, shared)
}

#[cold]
fn first_of(handle: usize, hash: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32) {
    if !newly_seen(hash) {
        return;
    }
    guarded(|| {
        if let Some(named) = registry::named(handle) {
            log::debug!("kernel {hash:016x} is {} of module {:016x}", named.symbol, named.module);
            if let Some(listener) = LISTENER.get() {
                listener(
                    hash,
                    &KernelId::new(named.module, &named.symbol, [gx, gy, gz], [bx, by, bz], shared),
                );
            }
        }
    });
}

/// Whether the identity of a kernel or graph is new. False if the table is full.
pub fn newly_seen(hash: u64) -> bool {
    // The table spreads keys by their upper bits; an identity is spread already.
    let key = hash as usize;
    SEEN.place(key)
        .is_some_and(|slot| slot.value.swap(1, Ordering::Relaxed) == 0)
}

/// Identifies a handle that the fast table lacks.
#[cold]
fn unknown(handle: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32) -> u64 {
    let known = guarded(|| {
        if let Some(named) = registry::named(handle) {
            // The fast table is full.
            return Some(named.key);
        }
        // The query calls the driver: not during a capture.
        if handle == 0 || capture::any() {
            return None;
        }
        let Some((module, symbol)) = ask::function_name(handle) else {
            if let Some((library, symbol)) = ask::kernel_name(handle) {
                let module = code_of(library);
                return Some(function_named(handle, HandleKind::Kernel, library, module, &symbol));
            }
            registry::set_unnamed(handle);
            return None;
        };
        let module = code_of(module);
        // The driver's function for a library kernel; graphs return this function.
        if module == 0
            && let Some(kernel) = registry::kernels_named(&symbol)
                .into_iter()
                .find(|kernel| ask::function_of(*kernel) == Some(handle))
        {
            same_function(handle, kernel);
            return registry::named(handle).map(|named| named.key);
        }
        Some(function_named(handle, HandleKind::Function, 0, module, &symbol))
    });
    let Some(key) = known.flatten() else { return 0 };
    let hash = launch_hash(key, [gx, gy, gz], [bx, by, bz], shared);
    first_of(handle, hash, gx, gy, gz, bx, by, bz, shared);
    hash
}

#[cfg(test)]
mod tests {
    use super::super::{code_loaded, code_unloaded};
    use super::*;

    #[test]
    fn a_handle_is_its_kernel_until_its_code_is_unloaded() {
        let (library, kernel) = (0x1_0000, 0x1_0100);
        code_loaded(library, 0, 77);
        function_named(kernel, HandleKind::Kernel, library, 77, "axpy");
        let id = KernelId::new(77, "axpy", [4, 1, 1], [32, 1, 1], 0);
        assert_eq!(identify_shape(kernel, [4, 1, 1], [32, 1, 1], 0), id.hash64());
        assert_ne!(identify_shape(kernel, [5, 1, 1], [32, 1, 1], 0), id.hash64());
        // The driver's function for the kernel, and the library's module view.
        same_function(0x1_0200, kernel);
        assert_eq!(identify_shape(0x1_0200, [4, 1, 1], [32, 1, 1], 0), id.hash64());
        code_loaded(0x1_0300, library, 77);
        assert_eq!(code_of(0x1_0300), 77);
        function_named(0x1_0400, HandleKind::Function, 0x1_0300, 77, "axpy");
        assert_eq!(identify_shape(0x1_0400, [4, 1, 1], [32, 1, 1], 0), id.hash64());

        code_unloaded(library);
        for handle in [kernel, 0x1_0200, 0x1_0400] {
            assert_eq!(
                registry::named_slot(handle).map(|slot| slot.value.load(Ordering::Relaxed)),
                Some(0),
                "{handle:x}"
            );
            assert!(registry::named(handle).is_none(), "{handle:x}");
        }
        assert_eq!(code_of(library), 0);
        // The driver reuses the address for another kernel.
        code_loaded(library, 0, 78);
        function_named(kernel, HandleKind::Kernel, library, 78, "gemm");
        let id = KernelId::new(78, "gemm", [4, 1, 1], [32, 1, 1], 0);
        assert_eq!(identify_shape(kernel, [4, 1, 1], [32, 1, 1], 0), id.hash64());
    }

    #[test]
    fn an_identity_is_new_once() {
        assert!(newly_seen(0x1234_5678_9abc_def0));
        assert!(!newly_seen(0x1234_5678_9abc_def0));
        assert!(newly_seen(0x1234_5678_9abc_def1));
    }
}
