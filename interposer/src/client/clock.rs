// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lane's clock: the machine's ([`machine_clock`]), equal in all processes.
//!
//! A vDSO read takes 20 to 60 ns (measured), more than the rest of a launch. The processor's
//! counter takes 5 to 20 ns and is read if the kernel keeps time by it. The helper thread compares
//! both a few times a second and sets the line between them. Without a line the system's clock is
//! read.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::time::Timespec;
use weft_protocol::{Ns, machine_clock};

use crate::processor::{CLOCK_SOURCE, counter};

/// Shortest span of a line: an interruption of some us bends it by less than 1 in 10,000.
const SHORTEST_SPAN_NS: Ns = 20_000_000;

/// Longest span before a new line: the system's clock is steered.
const LONGEST_SPAN_NS: Ns = 60_000_000_000;

/// Largest distance of simultaneous readings; others were interrupted.
const AT_ONCE_NS: Ns = 1_000;

/// `now = ns + (counter - count) * rate / 2^64`. `version` is odd while the line is unknown or
/// changing; only the helper changes it.
struct ClockLine {
    version: AtomicU64,
    count: AtomicU64,
    ns: AtomicU64,
    rate: AtomicU64,
}

static LINE: ClockLine = ClockLine {
    version: AtomicU64::new(1),
    count: AtomicU64::new(0),
    ns: AtomicU64::new(0),
    rate: AtomicU64::new(0),
};

/// Time that this process's own clock is ahead of the machine's, ns, modulo 2^64.
static AHEAD: AtomicU64 = AtomicU64::new(0);

/// Reads the time namespace again, when a new broker is found: CRIU restores a process into a
/// namespace of its own. Not under a seccomp filter, which may forbid opening files. True if the
/// clock changed.
pub fn find_namespace_again() -> bool {
    // SAFETY: takes no pointers.
    let filtered = unsafe { libc::prctl(libc::PR_GET_SECCOMP) };
    filtered == 0 && find_namespace()
}

/// Reads the process's time namespace. True if the clock changed.
pub fn find_namespace() -> bool {
    let ahead = machine_clock::ahead();
    let changed = AHEAD.swap(ahead, Ordering::Relaxed) != ahead;
    if changed {
        forget();
    }
    changed
}

/// The system's clock, ns: comparable with other processes' times.
#[inline(never)]
pub fn system() -> Ns {
    #[cfg(test)]
    if let Some(now) = played::look() {
        return now;
    }
    machine_clock::own().wrapping_sub(AHEAD.load(Ordering::Relaxed))
}

#[inline]
pub fn now() -> Ns {
    at_once().unwrap_or_else(system)
}

/// The time without a call; `None` while the line is unknown or changing.
#[inline(always)]
pub fn at_once() -> Option<Ns> {
    #[cfg(test)]
    if let Some(now) = played::look() {
        return Some(now);
    }
    let version = LINE.version.load(Ordering::Acquire);
    let rate = LINE.rate.load(Ordering::Relaxed);
    let count = LINE.count.load(Ordering::Relaxed);
    let ns = LINE.ns.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    if version & 1 != 0 || LINE.version.load(Ordering::Relaxed) != version {
        return None;
    }
    // The counter may be read just before the line's point; time then stands still.
    let past = counter().wrapping_sub(count);
    let past = if past as i64 > 0 { past } else { 0 };
    Some(ns.wrapping_add(((u128::from(past) * u128::from(rate)) >> 64) as u64))
}

/// Converts ns for futexes.
pub fn timespec(ns: Ns) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

/// Maintains the line. One per process: the helper's.
#[derive(Debug)]
pub struct Comparison {
    trusted: bool,
    first: Option<(u64, Ns)>,
}

impl Comparison {
    /// Reads the kernel's clock source.
    pub fn begin() -> Comparison {
        let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        Comparison {
            trusted: source.is_ok_and(|source| source.trim() == CLOCK_SOURCE),
            first: None,
        }
    }

    pub fn go_on(&mut self) {
        if !self.trusted {
            return;
        }
        let Some((count, ns)) = both() else { return };
        let Some((first_count, first_ns)) = self.first else {
            self.first = Some((count, ns));
            return;
        };
        let (counts, span) = (count.wrapping_sub(first_count), ns.wrapping_sub(first_ns));
        if span < SHORTEST_SPAN_NS || counts == 0 || counts > u64::MAX / 2 {
            return;
        }
        // A counter below 1 GHz has no such rate.
        let rate = (u128::from(span) << 64) / u128::from(counts);
        let Ok(rate) = u64::try_from(rate) else { return };
        set(count, ns, rate);
        if span > LONGEST_SPAN_NS {
            self.first = Some((count, ns));
        }
    }
}

fn both() -> Option<(u64, Ns)> {
    (0..5).find_map(|_| {
        let before = system();
        let count = counter();
        let after = system();
        (after.wrapping_sub(before) < AT_ONCE_NS).then_some((count, before + (after - before) / 2))
    })
}

fn set(count: u64, ns: Ns, rate: u64) {
    // Odd, also before the first line.
    let version = LINE.version.load(Ordering::Relaxed) | 1;
    LINE.version.store(version, Ordering::Relaxed);
    fence(Ordering::Release);
    LINE.count.store(count, Ordering::Relaxed);
    LINE.ns.store(ns, Ordering::Relaxed);
    LINE.rate.store(rate, Ordering::Relaxed);
    LINE.version.store(version.wrapping_add(1), Ordering::Release);
}

/// Drops the line: the clock changed, or a forked child has no helper of its own yet.
pub fn forget() {
    // Also if the fork interrupted a change.
    LINE.version.fetch_or(1, Ordering::AcqRel);
}

/// A virtual time of the calling thread, for tests that a busy machine must not affect.
#[cfg(test)]
pub mod played {
    use std::cell::Cell;

    use super::Ns;

    thread_local! {
        static NOW: Cell<Option<Ns>> = const { Cell::new(None) };
    }

    /// Two looks are never at one moment.
    const LOOK_NS: Ns = 25;

    #[derive(Debug)]
    pub struct Played(());

    impl Drop for Played {
        fn drop(&mut self) {
            NOW.set(None);
        }
    }

    pub fn begin() -> Played {
        NOW.set(Some(super::system()));
        Played(())
    }

    pub fn pass(time: Ns) {
        NOW.set(NOW.get().map(|now| now + time));
    }

    /// Sleeps in played time. False if the thread's time is not played.
    pub fn rest(time: Ns) -> bool {
        pass(time);
        NOW.get().is_some()
    }

    pub(super) fn look() -> Option<Ns> {
        pass(LOOK_NS);
        NOW.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn the_counter_tells_the_systems_time() {
        let mut comparison = Comparison::begin();
        comparison.go_on();
        thread::sleep(Duration::from_millis(50));
        comparison.go_on();
        if !comparison.trusted {
            assert_eq!(LINE.version.load(Ordering::Relaxed) & 1, 1);
            return;
        }
        for _ in 0..100 {
            let (before, between, after) = (system(), now(), system());
            // Lines of concurrent tests are as good as this one.
            assert!(
                between + 100_000 > before && between < after + 100_000,
                "{before} {between} {after}"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}
