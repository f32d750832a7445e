//! What is done about internal trouble: it is counted, said once, and the job's call goes on to the driver.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::session;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Counts an internal trouble.
pub fn count() {
    COUNT.fetch_add(1, Ordering::Relaxed);
    session::trouble();
}

/// Troubles so far.
pub fn counted() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Runs bookkeeping that the job's call does not depend on. A panic in it ends here: counted, said once, no more. Where nothing panics
/// this costs nothing but that the work's result goes through memory.
#[inline(always)]
pub fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(_) => {
            failed();
            None
        }
    }
}

#[cold]
#[inline(never)]
fn failed() {
    static SAID: AtomicBool = AtomicBool::new(false);
    count();
    if !SAID.swap(true, Ordering::Relaxed) {
        log::error!("a part of weft failed; the job goes on without it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_counted_and_ends_there() {
        let before = counted();
        assert_eq!(guarded(|| 3), Some(3));
        assert_eq!(guarded(|| -> i32 { panic!("on purpose") }), None);
        assert!(counted() > before);
    }
}
