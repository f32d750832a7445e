//! What a job touches: which of its managed ranges its launches, copies and fills name.
//!
//! A launch names a range if one of its argument words is an address within it ([`layout`]). Each range bears the number of the round in which it was named last; the
//! memory thread ends a round now and then and tells the broker what was named in it. Named is the whole range: how much of it a kernel
//! reads, its templates would say.
//!
//! It costs a launch a look into one table for the kernel's layout and one search for each word, no lock, no write where nothing is new. Only jobs on managed
//! memory have it at all.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{layout, ranges};
use crate::abi::CuFunction;

/// The round that goes on. 0 = never named.
static ROUND: AtomicU32 = AtomicU32::new(1);

/// The last round in which something was launched whose arguments are not seen: a graph.
static UNSEEN: AtomicU32 = AtomicU32::new(0);

/// A kernel is launched.
///
/// # Safety
/// The call's own arguments.
#[inline]
pub unsafe fn launch(function: CuFunction, arguments: *const c_void, extra: *const c_void) {
    let round = ROUND.load(Ordering::Relaxed);
    match layout::of(function) {
        // SAFETY: the caller's promise.
        Some(layout) => unsafe { layout::words(layout, arguments, extra, |word| ranges::name(word, round)) },
        None => unseen(),
    }
}

/// An address that a copy or fill is given.
#[inline]
pub fn address(word: u64) {
    ranges::name(word, ROUND.load(Ordering::Relaxed));
}

/// Something is launched whose arguments are not seen: all that the job has may be touched.
pub fn unseen() {
    let round = ROUND.load(Ordering::Relaxed);
    if UNSEEN.load(Ordering::Relaxed) != round {
        UNSEEN.store(round, Ordering::Relaxed);
    }
}

/// Ends a round: the ranges that were named in it, or `None` if they all may have been.
pub fn end_round() -> Option<Vec<u64>> {
    let round = ROUND.fetch_add(1, Ordering::AcqRel);
    (UNSEEN.load(Ordering::Relaxed) != round).then(|| ranges::named_in(round))
}
