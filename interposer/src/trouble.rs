//! What is done about internal trouble: it is counted, said once, and the job's call goes on to the driver.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::session;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Whether a panic was said.
static SAID: AtomicBool = AtomicBool::new(false);

/// Counts an internal trouble.
pub fn count() {
    COUNT.fetch_add(1, Ordering::Relaxed);
    session::trouble();
}

/// Troubles so far.
pub fn counted() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Runs bookkeeping that the job's call does not depend on. A panic in it ends here: counted, said once, no more. Nor is the job's thread cancelled in it ([`session::uncancelled`]).
#[inline(always)]
pub fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _whole = session::uncancelled();
    caught(work)
}

/// The same for the few places that count nanoseconds: nothing in them is a cancellation point, or it sees to that itself. Where nothing panics
/// this costs nothing but that the work's result goes through memory.
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

/// From now on a panic of ours is said in one line, once, with its place, and no more as the standard library does, each time anew. A guest that
/// is itself written in Rust has a standard library of its own, and this does not touch it.
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

/// Panics where a test asks for it (`WEFT_TEST_PANIC` names the place): what comes of a panic is tested from outside, with a real driver call
/// behind it. Release builds have nothing of it.
#[cfg(debug_assertions)]
#[allow(clippy::panic)]
pub fn trip(place: &str) {
    if trips(place) {
        panic!("on purpose, in {place}");
    }
}

/// Whether [`trip`] panics there: for code that nothing guards, because it cannot panic, and that leaves the place to code that is guarded.
#[cfg(debug_assertions)]
pub fn trips(place: &str) -> bool {
    static ASKED: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("WEFT_TEST_PANIC").ok());
    ASKED.as_deref() == Some(place)
}

/// As above: nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn trip(_place: &str) {}

/// As above: never.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn trips(_place: &str) -> bool {
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
