// SPDX-License-Identifier: MIT OR Apache-2.0
//! Internal errors: counted and logged once; the job's call still reaches the driver.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::thread;

static COUNT: AtomicU64 = AtomicU64::new(0);

static LISTENER: OnceLock<fn()> = OnceLock::new();

/// Registers `listener` for internal errors. The first caller's counts.
pub fn listen(listener: fn()) {
    let _ = LISTENER.set(listener);
}

static SAID: AtomicBool = AtomicBool::new(false);

/// Counts an internal error.
pub fn count() {
    COUNT.fetch_add(1, Ordering::Relaxed);
    if let Some(listener) = LISTENER.get() {
        listener();
    }
}

pub fn counted() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Runs bookkeeping that the job's call does not depend on. A panic ends here, counted and logged
/// once. The thread cannot be cancelled meanwhile.
#[inline(always)]
pub fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _whole = thread::uncancelled();
    caught(work)
}

/// As [`guarded`], for code in which nanoseconds count: `work` has no cancellation point, or
/// handles it.
#[inline(always)]
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
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
    count();
    say("", "");
}

fn say(place: &str, what: &str) {
    if !SAID.swap(true, Ordering::Relaxed) {
        log::error!("a part of weft failed{place}{what}; the job continues without it");
    }
}

/// Installs a panic hook that logs the first panic in one line. A job written in Rust has its own
/// standard library, which this does not affect.
pub fn watch() {
    std::panic::set_hook(Box::new(panicked));
}

fn panicked(info: &PanicHookInfo<'_>) {
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line()));
    let payload = info.payload();
    let what = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let what = what.map(|what| format!(": {what}"));
    say(&place.unwrap_or_default(), &what.unwrap_or_default());
}

/// Panics if `WEFT_TEST_PANIC` names this place. Absent in release builds.
#[cfg(debug_assertions)]
#[allow(clippy::panic)]
pub fn failpoint(place: &str) {
    if fails_at(place) {
        panic!("on purpose, in {place}");
    }
}

/// Whether [`failpoint`] panics there: for unguarded code, which leaves the place to guarded code.
#[cfg(debug_assertions)]
pub fn fails_at(place: &str) -> bool {
    static ASKED: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("WEFT_TEST_PANIC").ok());
    ASKED.as_deref() == Some(place)
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn failpoint(_place: &str) {}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn fails_at(_place: &str) -> bool {
    false
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
