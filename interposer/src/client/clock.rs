//! The clock of the lane: `CLOCK_MONOTONIC`, the same in every process of a machine.
//!
//! The system's clock is read through the vDSO, which takes 20 to 60 ns (measured; the most in a
//! virtual machine): more than all the rest of a launch. Where the kernel itself keeps time by the
//! processor's counter, so do we (5 to 20 ns): the helper thread compares the two a few times a
//! second and sets the line between them. Until it has, and where the kernel trusts another clock,
//! the system's is read.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::time::{ClockId, Timespec, clock_gettime};
use weft_protocol::Ns;

/// The line is drawn over at least this time: an interruption between two readings (some us) then
/// bends it by less than 1 in 10,000.
const SHORTEST_SPAN: Ns = 20_000_000;

/// A line over a longer time than this is begun anew: the system's clock is steered.
const LONGEST_SPAN: Ns = 60_000_000_000;

/// Two readings that should be at one moment lie at most so far apart, or were interrupted and are
/// made again.
const AT_ONCE: Ns = 1_000;

/// What the kernel calls a counter that it keeps time by.
const TRUSTED: &str = "tsc";

/// Nanoseconds = `ns` + (counter - `count`) * `rate` / 2^64. `version` is odd while the line is not
/// known and while it changes; the helper alone changes it.
struct Line {
    version: AtomicU64,
    count: AtomicU64,
    ns: AtomicU64,
    rate: AtomicU64,
}

static LINE: Line = Line {
    version: AtomicU64::new(1),
    count: AtomicU64::new(0),
    ns: AtomicU64::new(0),
    rate: AtomicU64::new(0),
};

#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The system's clock: for times that are compared with other processes' to the last.
#[inline(never)]
pub fn system() -> Ns {
    #[cfg(test)]
    if let Some(now) = played::look() {
        return now;
    }
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Nanoseconds.
#[inline]
pub fn now() -> Ns {
    at_once().unwrap_or_else(system)
}

/// The same without a call: nothing where the line is not known, or just changes.
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
    // A counter that a core reads a little before the line's point: time stands still for that
    // moment.
    let past = counter().wrapping_sub(count);
    let past = if past as i64 > 0 { past } else { 0 };
    Some(ns.wrapping_add(((u128::from(past) * u128::from(rate)) >> 64) as u64))
}

/// A time as futexes take it.
pub fn timespec(ns: Ns) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

/// Keeps the line between the counter and the system's clock. One in a process: the helper's.
#[derive(Debug)]
pub struct Comparison {
    trusted: bool,
    first: Option<(u64, Ns)>,
}

impl Comparison {
    /// Asks what the kernel keeps time by.
    pub fn begin() -> Comparison {
        let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        Comparison {
            trusted: source.is_ok_and(|source| source.trim() == TRUSTED),
            first: None,
        }
    }

    /// Compares again.
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
        if span < SHORTEST_SPAN || counts == 0 || counts > u64::MAX / 2 {
            return;
        }
        // A counter slower than a gigahertz has no such rate: the system's clock is read.
        let rate = (u128::from(span) << 64) / u128::from(counts);
        let Ok(rate) = u64::try_from(rate) else { return };
        set(count, ns, rate);
        if span > LONGEST_SPAN {
            self.first = Some((count, ns));
        }
    }
}

/// Counter and clock at one moment.
fn both() -> Option<(u64, Ns)> {
    (0..5).find_map(|_| {
        let before = system();
        let count = counter();
        let after = system();
        (after.wrapping_sub(before) < AT_ONCE).then_some((count, before + (after - before) / 2))
    })
}

fn set(count: u64, ns: Ns, rate: u64) {
    // Odd, and it is so already before the first line.
    let version = LINE.version.load(Ordering::Relaxed) | 1;
    LINE.version.store(version, Ordering::Relaxed);
    fence(Ordering::Release);
    LINE.count.store(count, Ordering::Relaxed);
    LINE.ns.store(ns, Ordering::Relaxed);
    LINE.rate.store(rate, Ordering::Relaxed);
    LINE.version.store(version.wrapping_add(1), Ordering::Release);
}

/// In a forked child nobody keeps the line until it has a helper of its own.
pub fn forget() {
    // Also a change that the fork cut in two.
    LINE.version.fetch_or(1, Ordering::AcqRel);
}

/// A time of the calling thread's own, for tests whose figures a busy machine must not change: it
/// passes when the test says so, and a little with each look.
#[cfg(test)]
pub mod played {
    use std::cell::Cell;

    use super::Ns;

    thread_local! {
        static NOW: Cell<Option<Ns>> = const { Cell::new(None) };
    }

    /// Two looks are never at one moment.
    const LOOK: Ns = 25;

    /// As long as this lives.
    #[derive(Debug)]
    pub struct Played(());

    impl Drop for Played {
        fn drop(&mut self) {
            NOW.set(None);
        }
    }

    /// From now on this thread's time is its own.
    pub fn begin() -> Played {
        NOW.set(Some(super::system()));
        Played(())
    }

    /// So much of it passes; nothing where it is the system's.
    pub fn pass(time: Ns) {
        NOW.set(NOW.get().map(|now| now + time));
    }

    pub(super) fn look() -> Option<Ns> {
        pass(LOOK);
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
            // Lines drawn by other tests at the same time are as good as this one.
            assert!(
                between + 100_000 > before && between < after + 100_000,
                "{before} {between} {after}"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}
