//! What is done about an internal error: it is counted, said once, and the job's call goes on to
//! the driver.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::thread;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Hears of each internal error.
static LISTENER: OnceLock<fn()> = OnceLock::new();

/// Has `listener` hear of each internal error from now on. The first caller's counts.
pub fn listen(listener: fn()) {
    let _ = LISTENER.set(listener);
}

/// Whether a panic was said.
static SAID: AtomicBool = AtomicBool::new(false);

/// Counts an internal error.
pub fn count() {
    COUNT.fetch_add(1, Ordering::Relaxed);
    if let Some(listener) = LISTENER.get() {
        listener();
    }
}

/// Internal errors so far.
pub fn counted() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Runs bookkeeping that the job's call does not depend on. A panic in it ends here: counted, said
/// once, no more. Nor is the job's thread cancelled in it ([`thread::uncancelled`]).
#[inline(always)]
pub fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _whole = thread::uncancelled();
    caught(work)
}

/// The same for the few places that count nanoseconds: nothing in them is a cancellation point, or
/// it sees to that itself. Where nothing panics this costs nothing but that the work's result goes
/// through memory.
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
        log::error!("a part of weft failed{place}{what}; the job goes on without it");
    }
}

/// From now on a panic of ours is said in one line, once, with its place, and no more as the
/// standard library does, each time anew. A guest that is itself written in Rust has a standard
/// library of its own, and this does not touch it.
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

/// Panics where a test asks for it (`WEFT_TEST_PANIC` names the place): what comes of a panic is
/// tested from outside, with a real driver call behind it. Release builds have nothing of it.
#[cfg(debug_assertions)]
#[allow(clippy::panic)]
pub fn failpoint(place: &str) {
    if fails_at(place) {
        panic!("on purpose, in {place}");
    }
}

/// Whether [`failpoint`] panics there: for code that nothing guards, because it cannot panic, and
/// that leaves the place to code that is guarded.
#[cfg(debug_assertions)]
pub fn fails_at(place: &str) -> bool {
    static ASKED: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("WEFT_TEST_PANIC").ok());
    ASKED.as_deref() == Some(place)
}

/// As above: nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn failpoint(_place: &str) {}

/// As above: never.
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
