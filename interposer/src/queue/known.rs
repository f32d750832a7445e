//! Which launches are known to succeed: a function, its block and shared memory, its attributes, in a context, once launched directly with success.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, PoisonError};

/// Kinds that are remembered. A job with more (one that changes its launches all the time) begins anew.
const MOST: usize = 1 << 16;

/// The keys are hashes already.
#[derive(Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

static KNOWN: Mutex<Option<HashSet<u64, BuildHasherDefault<AsIs>>>> = Mutex::new(None);

/// From now on this one is known.
pub fn add(key: u64) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if known.len() >= MOST {
        known.clear();
    }
    known.insert(key);
}

/// Whether it is.
pub fn has(key: u64) -> bool {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.as_ref().is_some_and(|known| known.contains(&key))
}

/// None is.
pub fn clear() {
    // A forked child may find the lock taken for ever; it has no session and leaves nothing behind, so it need not forget.
    if let Ok(mut known) = KNOWN.try_lock() {
        *known = None;
    }
}
