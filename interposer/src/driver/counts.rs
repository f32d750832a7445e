//! What lookups yielded: our entry points, or functions that the symbol table does not know.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Names kept. A driver that is years newer than the table adds a few dozen.
const KEPT: usize = 256;

static OURS: AtomicU64 = AtomicU64::new(0);
static UNKNOWN: AtomicU64 = AtomicU64::new(0);
static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A lookup was answered with an entry point of ours.
pub fn answered_with_ours() {
    OURS.fetch_add(1, Ordering::Relaxed);
}

/// A lookup was answered with a driver function that weft does not see being called. The caller
/// tells the launch queue of it.
pub fn answered_with_unknown(name: &str) {
    UNKNOWN.fetch_add(1, Ordering::Relaxed);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if names.len() < KEPT && names.insert(name.to_owned()) {
        log::debug!("{name} is not in weft's symbol table and passes it by");
    }
}

/// How many lookups led to us.
pub fn ours() -> u64 {
    OURS.load(Ordering::Relaxed)
}

/// How many led past us.
pub fn unknown() -> u64 {
    UNKNOWN.load(Ordering::Relaxed)
}

/// The names of the functions that were handed out past us.
pub fn unknown_names() -> Vec<String> {
    NAMES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .cloned()
        .collect()
}
