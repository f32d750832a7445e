// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of lookups: answered with weft's entry points, or with unknown functions.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most names kept. A driver years newer than the table adds a few dozen.
const KEPT: usize = 256;

static OURS: AtomicU64 = AtomicU64::new(0);
static UNKNOWN: AtomicU64 = AtomicU64::new(0);
static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

pub fn answered_with_ours() {
    OURS.fetch_add(1, Ordering::Relaxed);
}

/// Counts a lookup answered with a driver function whose calls weft does not see.
pub fn answered_with_unknown(name: &str) {
    UNKNOWN.fetch_add(1, Ordering::Relaxed);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if names.len() < KEPT && names.insert(name.to_owned()) {
        log::debug!("{name} is not in weft's symbol table, so weft does not intercept it");
    }
}

pub fn ours() -> u64 {
    OURS.load(Ordering::Relaxed)
}

pub fn unknown() -> u64 {
    UNKNOWN.load(Ordering::Relaxed)
}

/// Names of unknown functions handed out.
pub fn unknown_names() -> Vec<String> {
    NAMES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .cloned()
        .collect()
}
