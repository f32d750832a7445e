// SPDX-License-Identifier: MIT OR Apache-2.0
//! Granules that the broker evicted, and launches that wait for them.
//!
//! A fault brings little memory and takes longer than a wait. So a launch whose use is known waits
//! while page operations arrive.
//!
//! * A launch waits only behind the gate, for memory that the attached broker evicted. A transfer
//!   needs none of the job's own work.
//! * A wait ends [`ARRIVAL_TIMEOUT_NS`] plus 4 page operations' time after the last arrival. In
//!   total it lasts at most `min(SLACK_NS + WAYS_PER_GRANULE * bytes / rate, LONGEST_WAIT_NS)`. The
//!   rest counts as resident and faults in.
//! * `rate` is that of the last page operations ([`update_rate`]), at first that of charges
//!   assumption.
//! * A launch waits only while `timeouts - arrivals < WAIT_BUDGET`. Memory that never comes back
//!   costs that many timeouts in total, not one per region. One would be too few: on a busy machine
//!   late memory is worth a wait.
//! * Pages that the driver moved by itself are unknown here.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::futex;
use weft_protocol::Ns;
use weft_protocol::control::GRANULE;

use crate::client::{clock, link};

/// Wait after the last arrival. A page operation takes 1.5 ms, the one that makes room for it takes
/// as long, and each needs some wake-ups on a busy machine.
const ARRIVAL_TIMEOUT_NS: Ns = 50_000_000;

/// Number of page operations whose time is added to it, for slow (simulated) links.
const TIMEOUT_PAGE_OPS: f64 = 4.0;

/// Size of the planner's page operations: 16 granules.
const PAGE_OP_BYTES: f64 = 16.0 * GRANULE as f64;

/// Added to the transfers' time: moves under way and late orders.
const SLACK_NS: Ns = 250_000_000;

/// Transfers for each awaited granule: another granule may have to leave first.
const WAYS_PER_GRANULE: f64 = 2.0;

/// Longest wait: 220 GB over PCIe 4. After it faults are better than a job that seems to hang.
const LONGEST_WAIT_NS: Ns = 10_000_000_000;

/// Middle of the rates that are believed: PCIe 4 x16.
const ASSUMED_BYTES_PER_S: f64 = 22.2e9;

/// Largest factor between the measured rate and the assumed one.
const RATE_FACTOR: f64 = 1024.0;

const RATE_WEIGHT: f64 = 0.125;

/// Timeouts minus arrivals at which launches stop waiting.
const WAIT_BUDGET: u64 = 8;

const POLL: Duration = Duration::from_millis(2);

/// Most known granules: 2 TB. Further granules count as resident.
const MOST_GRANULES: usize = 1 << 20;

static EVICTED: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whether anything was evicted since [`forget`].
static EVER: AtomicBool = AtomicBool::new(false);
/// Counts arrivals; a futex for sleeping launches.
static ARRIVALS: AtomicU32 = AtomicU32::new(0);
static PAGE_OP_ARRIVALS: AtomicU64 = AtomicU64::new(0);
static TIMEOUTS: AtomicU64 = AtomicU64::new(0);
/// Rate of the last page operations; 0: none yet.
static RATE_BYTES_PER_S: AtomicU64 = AtomicU64::new(0);
/// Number of launches that wait now, and time at which the last wait ended, ns.
static WAITING: AtomicU32 = AtomicU32::new(0);
static LAST_WAIT_END: AtomicU64 = AtomicU64::new(0);

fn set() -> MutexGuard<'static, Option<HashSet<u64>>> {
    // No code under the lock can leave the set half changed.
    EVICTED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn granules(start: u64, bytes: u64) -> Range<u64> {
    start / GRANULE..start.saturating_add(bytes).div_ceil(GRANULE)
}

pub fn mark_evicted(start: u64, bytes: u64) {
    let mut set = set();
    let evicted = set.get_or_insert_default();
    let room = MOST_GRANULES.saturating_sub(evicted.len());
    evicted.extend(granules(start, bytes).take(room));
    COUNT.store(evicted.len(), Ordering::Release);
    EVER.store(true, Ordering::Release);
}

/// Marks granules as brought by a page operation. The caller calls [`wake`].
pub fn page_op_arrived(start: u64, bytes: u64) {
    PAGE_OP_ARRIVALS.fetch_add(1, Ordering::AcqRel);
    let _ = TIMEOUTS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |vain| vain.checked_sub(1));
    arrived(start, bytes);
}

/// Marks granules as resident or given up. The caller calls [`wake`].
pub fn arrived(start: u64, bytes: u64) {
    let mut set = set();
    if let Some(evicted) = set.as_mut() {
        for granule in granules(start, bytes) {
            evicted.remove(&granule);
        }
        COUNT.store(evicted.len(), Ordering::Release);
    }
    drop(set);
    ARRIVALS.fetch_add(1, Ordering::AcqRel);
}

/// Forgets all granules: another broker, or none, moves them.
pub fn forget() {
    *set() = None;
    COUNT.store(0, Ordering::Release);
    EVER.store(false, Ordering::Release);
    TIMEOUTS.store(0, Ordering::Release);
    ARRIVALS.fetch_add(1, Ordering::AcqRel);
}

/// Whether a granule may be evicted when a launch has passed the gate.
#[inline]
pub fn may_be() -> bool {
    EVER.load(Ordering::Relaxed)
}

#[inline]
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Whether any of these (address, bytes) ranges has an evicted granule.
pub fn contains_any(wanted: &[(u64, u64)]) -> bool {
    let set = set();
    let Some(evicted) = set.as_ref() else { return false };
    wanted
        .iter()
        .any(|(start, bytes)| granules(*start, *bytes).any(|granule| evicted.contains(&granule)))
}

fn evicted_bytes(wanted: &[(u64, u64)]) -> u64 {
    let set = set();
    let Some(evicted) = set.as_ref() else { return 0 };
    let all = wanted.iter().flat_map(|(start, bytes)| granules(*start, *bytes));
    // A granule that two ranges share counts twice.
    GRANULE * all.filter(|granule| evicted.contains(granule)).count() as u64
}

/// Counts a page operation's bytes and link time, ns.
pub fn update_rate(bytes: u64, took: Ns) {
    // Only the migration thread writes.
    RATE_BYTES_PER_S.store(
        next_rate(RATE_BYTES_PER_S.load(Ordering::Relaxed), bytes, took),
        Ordering::Relaxed,
    );
}

fn next_rate(before: u64, bytes: u64, took: Ns) -> u64 {
    if took == 0 || bytes == 0 {
        return before;
    }
    let rate = bytes as f64 * 1e9 / took as f64;
    let rate = match before {
        0 => rate,
        before => before as f64 + (rate - before as f64) * RATE_WEIGHT,
    };
    rate.clamp(ASSUMED_BYTES_PER_S / RATE_FACTOR, ASSUMED_BYTES_PER_S * RATE_FACTOR) as u64
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WaitBounds {
    after_arrival: Ns,
    in_all: Ns,
}

impl WaitBounds {
    /// `rate`: bytes a second.
    fn of(bytes: u64, rate: f64) -> WaitBounds {
        let takes = |bytes: f64| (bytes * 1e9 / rate.max(ASSUMED_BYTES_PER_S / RATE_FACTOR)) as Ns;
        WaitBounds {
            after_arrival: ARRIVAL_TIMEOUT_NS.saturating_add(takes(TIMEOUT_PAGE_OPS * PAGE_OP_BYTES)),
            in_all: SLACK_NS
                .saturating_add(takes(WAYS_PER_GRANULE * bytes as f64))
                .min(LONGEST_WAIT_NS),
        }
    }
}

/// Time, ns, until which this wait kept an issued launch from the device; `now` while one waits.
/// The launch's work did not begin earlier.
pub fn kept_until(now: Ns) -> Ns {
    match WAITING.load(Ordering::Acquire) {
        0 => LAST_WAIT_END.load(Ordering::Acquire),
        _ => now,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WaitOutcome {
    /// All memory is resident.
    #[default]
    Here,
    /// Timed out; the rest faults in.
    GaveUp,
    /// No wait, after earlier timeouts.
    Passed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryWait {
    pub time: Ns,
    pub outcome: WaitOutcome,
}

/// Waits until evicted memory is back, and counts the wait.
pub fn await_memory(wanted: &[(u64, u64)]) {
    let Some(link) = link::only() else { return };
    let assumed = f64::from(link.host_copy_mb_per_s()) * 1e6;
    let waited = wait(wanted, assumed, clock::now, |came, within| {
        let nap = clock::timespec(within.as_nanos() as Ns);
        let _ = futex::wait(&ARRIVALS, futex::Flags::PRIVATE, came, Some(&nap));
    });
    let counters = &link.lane.counters;
    if waited.time > 0 {
        counters.memory_waited.fetch_add(waited.time, Ordering::Relaxed);
    }
    if waited.outcome != WaitOutcome::Here {
        counters.memory_waits_expired.fetch_add(1, Ordering::Relaxed);
    }
}

pub fn wake() {
    let _ = futex::wake(&ARRIVALS, futex::Flags::PRIVATE, u32::MAX);
}

/// Waits until these (address, bytes) ranges are back. `assumed`: the link's rate before any is
/// measured, bytes a second. `nap` sleeps until an arrival, or for the given time.
pub fn wait(wanted: &[(u64, u64)], assumed: f64, clock: impl Fn() -> Ns, nap: impl Fn(u32, Duration)) -> MemoryWait {
    let mut waited = MemoryWait::default();
    if !any() {
        return waited;
    }
    let rate = match RATE_BYTES_PER_S.load(Ordering::Relaxed) {
        0 => assumed,
        rate => rate as f64,
    };
    let bounds = WaitBounds::of(evicted_bytes(wanted), rate);
    let begun = clock();
    let (mut last, mut seen) = (begun, PAGE_OP_ARRIVALS.load(Ordering::Acquire));
    let mut waits = false;
    loop {
        // First of all: an arrival after this load ends the nap.
        let came = ARRIVALS.load(Ordering::Acquire);
        if !contains_any(wanted) {
            break;
        }
        let (now, brought) = (clock(), PAGE_OP_ARRIVALS.load(Ordering::Acquire));
        if brought != seen {
            (seen, last) = (brought, now);
        }
        let in_vain = now.saturating_sub(last) > bounds.after_arrival || now.saturating_sub(begun) > bounds.in_all;
        // Other threads' timeouts end this wait too.
        if in_vain || TIMEOUTS.load(Ordering::Acquire) >= WAIT_BUDGET {
            waited.outcome = if in_vain {
                WaitOutcome::GaveUp
            } else {
                WaitOutcome::Passed
            };
            if in_vain {
                TIMEOUTS.fetch_add(1, Ordering::AcqRel);
            }
            // The rest faults in.
            for (start, bytes) in wanted {
                arrived(*start, *bytes);
            }
            break;
        }
        if !std::mem::replace(&mut waits, true) {
            WAITING.fetch_add(1, Ordering::AcqRel);
        }
        nap(came, POLL);
    }
    if waits {
        let now = clock();
        waited.time = now.saturating_sub(begun);
        LAST_WAIT_END.fetch_max(now, Ordering::AcqRel);
        WAITING.fetch_sub(1, Ordering::AcqRel);
    }
    waited
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::Cell;

    /// One test: the set belongs to the process.
    #[test]
    fn a_launch_waits_for_what_is_away_as_long_as_something_comes() {
        let base = 0x7000_0000_0000;
        let time = Cell::new(0);
        let clock = || time.get();
        let idle = |_, within: Duration| time.set(time.get() + within.as_nanos() as Ns);
        let wait =
            |wanted: &[(u64, u64)], nap: &dyn Fn(u32, Duration)| super::wait(wanted, ASSUMED_BYTES_PER_S, clock, nap);
        let never = |_, _| panic!("nothing is away");
        wait(&[(base, 1)], &never);
        mark_evicted(base, 3 * GRANULE);
        wait(&[(base + 3 * GRANULE, 100)], &never);
        assert!(contains_any(&[(base - 1, 2)]) && !contains_any(&[(base - 1, 1)]));
        let naps = Cell::new(0);
        let nap = |_, _| {
            assert_eq!(kept_until(time.get() + 7), time.get() + 7, "a launch stands here");
            time.set(time.get() + ARRIVAL_TIMEOUT_NS - 1);
            page_op_arrived(base + naps.get() * GRANULE, GRANULE);
            naps.set(naps.get() + 1);
        };
        let waited = wait(&[(base, 3 * GRANULE)], &nap);
        assert_eq!((naps.get(), any(), waited.outcome), (3, false, WaitOutcome::Here));
        assert_eq!(kept_until(time.get() + 7), time.get(), "it has gone on");
        assert!(may_be(), "it may leave again before the next launch goes");
        // Without arrivals the first launches wait, the others do not.
        let begun = time.get();
        let count = 1000;
        mark_evicted(base, count * GRANULE);
        let ways: Vec<MemoryWait> = (0..count)
            .map(|granule| wait(&[(base + granule * GRANULE, GRANULE)], &idle))
            .collect();
        let gave_up = |ways: &[MemoryWait]| ways.iter().filter(|one| one.outcome == WaitOutcome::GaveUp).count() as u64;
        let most = WaitBounds::of(GRANULE, ASSUMED_BYTES_PER_S).after_arrival + 2 * POLL.as_nanos() as Ns;
        assert!(time.get() - begun <= WAIT_BUDGET * most, "{}", time.get() - begun);
        assert_eq!(ways.iter().map(|one| one.time).sum::<Ns>(), time.get() - begun);
        assert!(ways.iter().all(|one| one.outcome != WaitOutcome::Here));
        assert_eq!((gave_up(&ways), any()), (WAIT_BUDGET, false));
        // Other memory arrives: each further timeout needs an arrival.
        let (begun, others) = (time.get(), base + 2 * count * GRANULE);
        mark_evicted(base, count * GRANULE);
        mark_evicted(others, GRANULE);
        let ways: Vec<MemoryWait> = (0..count)
            .map(|granule| {
                page_op_arrived(others, 1);
                wait(&[(base + granule * GRANULE, GRANULE)], &idle)
            })
            .collect();
        let in_vain = gave_up(&ways);
        assert!(in_vain >= 1 && in_vain <= WAIT_BUDGET + count, "{in_vain} of {count}");
        assert!(time.get() - begun <= in_vain * most);
        forget();
        assert!(!may_be());
        mark_evicted(base, GRANULE);
        let begun = time.get();
        assert_eq!(wait(&[(base, 1)], &idle).outcome, WaitOutcome::GaveUp);
        assert!(time.get() - begun > ARRIVAL_TIMEOUT_NS);
        mark_evicted(base, GRANULE);
        forget();
        wait(&[(base, 1)], &never);
        // A large device: 40 GB return over 22.2 GB/s, and as much is evicted in between.
        let all = 20_000 * GRANULE;
        mark_evicted(base, all);
        let (begun, came) = (time.get(), Cell::new(0));
        let page_op = |_, _| {
            time.set(time.get() + (2.0 * PAGE_OP_BYTES * 1e9 / ASSUMED_BYTES_PER_S) as Ns);
            page_op_arrived(base + came.get(), PAGE_OP_BYTES as u64);
            came.set(came.get() + PAGE_OP_BYTES as u64);
        };
        let waited = wait(&[(base, all)], &page_op);
        assert_eq!((waited.outcome, came.get(), any()), (WaitOutcome::Here, all, false));
        assert!(waited.time == time.get() - begun && waited.time > 3_000_000_000);
        // Other memory arrives: the bound follows from the awaited bytes.
        let elsewhere = |_, within: Duration| {
            time.set(time.get() + within.as_nanos() as Ns);
            page_op_arrived(others, 1);
        };
        for (bytes, in_all) in [
            (GRANULE, SLACK_NS + 200_000),
            (all, 4_100_000_000),
            (1000 * all, LONGEST_WAIT_NS),
        ] {
            forget();
            mark_evicted(base, bytes);
            let waited = wait(&[(base, bytes)], &elsewhere);
            assert_eq!(waited.outcome, WaitOutcome::GaveUp);
            assert!(
                waited.time > in_all * 9 / 10 && waited.time <= in_all + 2 * POLL.as_nanos() as Ns,
                "{bytes}: {waited:?}"
            );
        }
        forget();
    }

    #[test]
    fn the_bounds_follow_what_the_link_carries() {
        let (fast, slow) = (
            WaitBounds::of(5 << 30, ASSUMED_BYTES_PER_S),
            WaitBounds::of(5 << 30, ASSUMED_BYTES_PER_S / 20.0),
        );
        assert!(
            fast.in_all < 1_000_000_000 && fast.after_arrival < 2 * ARRIVAL_TIMEOUT_NS,
            "{fast:?}"
        );
        assert!(
            slow.in_all > 9_000_000_000 && slow.in_all <= LONGEST_WAIT_NS,
            "{slow:?}"
        );
        // One page operation out and one in.
        assert!(
            slow.after_arrival as f64
                > ARRIVAL_TIMEOUT_NS as f64 + 2.0 * PAGE_OP_BYTES * 1e9 / (ASSUMED_BYTES_PER_S / 20.0)
        );
        assert_eq!(WaitBounds::of(u64::MAX, 0.0).in_all, LONGEST_WAIT_NS);
        assert_eq!(next_rate(0, 32 << 20, 0), 0);
        let once = next_rate(0, 32 << 20, 1_500_000);
        let rate = (0..100).fold(once, |rate, _| next_rate(rate, 32 << 20, 32_000_000)) as f64;
        let wanted = f64::from(32 << 20) / 0.032;
        assert!(
            once > 22_000_000_000 && (rate / wanted - 1.0).abs() < 0.01,
            "{once} {rate}"
        );
    }
}
