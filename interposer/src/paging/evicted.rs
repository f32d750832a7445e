//! Granules that the broker evicted, and launches that wait until these are back.
//!
//! Faults take longer than a wait: each brings little, with the driver's bookkeeping. So a launch
//! whose use is known waits while page operations arrive.
//!
//! * A launch waits only behind the gate, for memory that the attached broker evicted. A transfer
//!   needs none of the job's own work.
//! * A wait ends [`PATIENCE`] plus 4 page operations' time after the last arrival. In all it takes
//!   at most `min(SLACK + WAYS * bytes / rate, UTMOST)`. The rest then counts as resident and
//!   faults in.
//! * `rate` is that of the last page operations ([`carried`]), at first the planner's assumption.
//! * A launch waits only while `timeouts - arrivals < LENT` ([`LENT`]): memory that never comes
//!   back costs that many timeouts in all, not one a region. One would be too few. On a busy
//!   machine late memory is worth a wait; launches that go by fault it in.
//! * Pages that the driver moved by itself are unknown here.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::futex;
use weft_protocol::Ns;

use crate::client::{clock, link};

/// Bytes of a granule, as in the planner.
pub const GRANULE: u64 = 2 << 20;

/// Wait after the last arrival, ns. A page operation of 16 granules takes 1.5 ms, one that makes
/// room as much, and each needs some wake-ups on a busy machine.
const PATIENCE: Ns = 50_000_000;

/// Page operations whose time is added to [`PATIENCE`], for slow (simulated) links.
const PAGE_OPS: f64 = 4.0;

/// Bytes of one page operation: the planner's 16 granules.
const PAGE_OP: f64 = 16.0 * GRANULE as f64;

/// Time of a wait beside the transfers', ns: moves under way and late orders.
const SLACK: Ns = 250_000_000;

/// Transfers for each awaited granule: one more may have to go out first.
const WAYS: f64 = 2.0;

/// Longest wait, ns: 220 GB over PCIe 4. Beyond that faults are better than a job that seems to
/// hang.
const UTMOST: Ns = 10_000_000_000;

/// Rate, bytes a second, before any is measured: the planner's, PCIe 4 x16.
const GRANTED: f64 = 22.2e9;

/// Largest factor between the measured and the assumed rate.
const FAR: f64 = 1024.0;

/// Weight of a new rate in the average.
const FOLLOWS: f64 = 0.125;

/// Timeouts less arrivals at which launches no longer wait: under half a second of the job's time.
const LENT: u64 = 8;

/// Poll interval without a wake-up.
const LOOK: Duration = Duration::from_millis(2);

/// Granules known at most: 2 TB. Further ones count as resident.
const MOST: usize = 1 << 20;

static AWAY: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
/// Size of the set; launches look here first.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whether anything was evicted since [`forget`].
static EVER: AtomicBool = AtomicBool::new(false);
/// Counts arrivals; a futex on which launches sleep.
pub static CAME: AtomicU32 = AtomicU32::new(0);
/// Page operations that brought memory back.
static BROUGHT: AtomicU64 = AtomicU64::new(0);
/// Timeouts less later arrivals.
static VAIN: AtomicU64 = AtomicU64::new(0);
/// Rate of the last page operations, bytes a second; 0: none.
static CARRIED: AtomicU64 = AtomicU64::new(0);
/// Launches that wait now, and when the last wait ended, ns.
static WAITING: AtomicU32 = AtomicU32::new(0);
static OVER: AtomicU64 = AtomicU64::new(0);

fn set() -> MutexGuard<'static, Option<HashSet<u64>>> {
    // No code under the lock can leave the set half changed.
    AWAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Granules that a range overlaps.
fn granules(start: u64, bytes: u64) -> Range<u64> {
    start / GRANULE..start.saturating_add(bytes).div_ceil(GRANULE)
}

/// Marks the granules of a range as evicted.
pub fn leaves(start: u64, bytes: u64) {
    let mut set = set();
    let away = set.get_or_insert_default();
    let room = MOST.saturating_sub(away.len());
    away.extend(granules(start, bytes).take(room));
    COUNT.store(away.len(), Ordering::Release);
    EVER.store(true, Ordering::Release);
}

/// Marks granules as brought by a page operation. The caller wakes sleepers on [`CAME`].
pub fn brought(start: u64, bytes: u64) {
    BROUGHT.fetch_add(1, Ordering::AcqRel);
    let _ = VAIN.fetch_update(Ordering::AcqRel, Ordering::Acquire, |vain| vain.checked_sub(1));
    came(start, bytes);
}

/// Marks granules as resident or given up. The caller wakes sleepers on [`CAME`].
pub fn came(start: u64, bytes: u64) {
    let mut set = set();
    if let Some(away) = set.as_mut() {
        for granule in granules(start, bytes) {
            away.remove(&granule);
        }
        COUNT.store(away.len(), Ordering::Release);
    }
    drop(set);
    CAME.fetch_add(1, Ordering::AcqRel);
}

/// Forgets all granules: no broker, or another one, moves them.
pub fn forget() {
    *set() = None;
    COUNT.store(0, Ordering::Release);
    EVER.store(false, Ordering::Release);
    VAIN.store(0, Ordering::Release);
    CAME.fetch_add(1, Ordering::AcqRel);
}

/// Whether any granule may be evicted once a launch has passed the gate; residents may leave
/// meanwhile.
#[inline]
pub fn may_be() -> bool {
    EVER.load(Ordering::Relaxed)
}

/// Whether any granule is evicted.
#[inline]
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Whether any of these (address, bytes) ranges has an evicted granule.
pub fn is_away(wanted: &[(u64, u64)]) -> bool {
    let set = set();
    let Some(away) = set.as_ref() else { return false };
    wanted
        .iter()
        .any(|(start, bytes)| granules(*start, *bytes).any(|granule| away.contains(&granule)))
}

/// Evicted bytes of these ranges, in whole granules.
fn bytes_away(wanted: &[(u64, u64)]) -> u64 {
    let set = set();
    let Some(away) = set.as_ref() else { return 0 };
    let all = wanted.iter().flat_map(|(start, bytes)| granules(*start, *bytes));
    // A granule that two ranges share counts twice.
    GRANULE * all.filter(|granule| away.contains(granule)).count() as u64
}

/// Notes a page operation's bytes and link time, ns.
pub fn carried(bytes: u64, took: Ns) {
    // Only the migration thread writes.
    CARRIED.store(
        followed(CARRIED.load(Ordering::Relaxed), bytes, took),
        Ordering::Relaxed,
    );
}

/// The rate after such a page operation, bytes a second; 0: none.
fn followed(before: u64, bytes: u64, took: Ns) -> u64 {
    if took == 0 || bytes == 0 {
        return before;
    }
    let rate = bytes as f64 * 1e9 / took as f64;
    let rate = match before {
        0 => rate,
        before => before as f64 + (rate - before as f64) * FOLLOWS,
    };
    rate.clamp(GRANTED / FAR, GRANTED * FAR) as u64
}

/// Bounds of a launch's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    /// Wait after the last arrival, ns.
    patience: Ns,
    /// Whole wait, ns.
    utmost: Ns,
}

impl Bounds {
    /// Bounds for `bytes` on a link of `rate` bytes a second.
    fn of(bytes: u64, rate: f64) -> Bounds {
        let takes = |bytes: f64| (bytes * 1e9 / rate.max(GRANTED / FAR)) as Ns;
        Bounds {
            patience: PATIENCE.saturating_add(takes(PAGE_OPS * PAGE_OP)),
            utmost: SLACK.saturating_add(takes(WAYS * bytes as f64)).min(UTMOST),
        }
    }
}

/// Until when an issued launch was kept from the device here, ns; `now` while one waits. Work that
/// ends by the clock did not begin before.
pub fn kept_until(now: Ns) -> Ns {
    match WAITING.load(Ordering::Acquire) {
        0 => OVER.load(Ordering::Acquire),
        _ => now,
    }
}

/// Outcome of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum How {
    /// All memory is resident.
    #[default]
    Here,
    /// Timed out; what has not arrived faults in.
    GaveUp,
    /// Not waited, because of earlier timeouts.
    Passed,
}

/// A launch's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waited {
    /// Duration, ns.
    pub time: Ns,
    /// Outcome.
    pub how: How,
}

/// Waits, within the bounds, until evicted memory is back, and counts the wait.
pub fn await_memory(wanted: &[(u64, u64)]) {
    let Some(link) = link::only() else { return };
    let slowness = link.stated_slowness().unwrap_or(1.0);
    let waited = wait(wanted, slowness, clock::now, |came, within| {
        let nap = clock::timespec(within.as_nanos() as Ns);
        let _ = futex::wait(&CAME, futex::Flags::PRIVATE, came, Some(&nap));
    });
    let counters = &link.lane.counters;
    if waited.time > 0 {
        counters.memory_waited.fetch_add(waited.time, Ordering::Relaxed);
    }
    if waited.how != How::Here {
        counters.memory_waits_expired.fetch_add(1, Ordering::Relaxed);
    }
}

/// Wakes the launches that wait for memory.
pub fn wake() {
    let _ = futex::wake(&CAME, futex::Flags::PRIVATE, u32::MAX);
}

/// Waits until these (address, bytes) ranges are back, within the bounds above. `slowness`: the
/// device link's factor to a real one. `nap` sleeps until [`CAME`] changes, or so long.
pub fn wait(wanted: &[(u64, u64)], slowness: f64, clock: impl Fn() -> Ns, nap: impl Fn(u32, Duration)) -> Waited {
    let mut waited = Waited::default();
    if !any() {
        return waited;
    }
    let rate = match CARRIED.load(Ordering::Relaxed) {
        0 => GRANTED / slowness.max(1.0),
        rate => rate as f64,
    };
    let bounds = Bounds::of(bytes_away(wanted), rate);
    let begun = clock();
    let (mut last, mut seen) = (begun, BROUGHT.load(Ordering::Acquire));
    let mut waits = false;
    loop {
        // Before the look: an arrival after it ends the nap.
        let came = CAME.load(Ordering::Acquire);
        if !is_away(wanted) {
            break;
        }
        let (now, brought) = (clock(), BROUGHT.load(Ordering::Acquire));
        if brought != seen {
            (seen, last) = (brought, now);
        }
        let in_vain = now.saturating_sub(last) > bounds.patience || now.saturating_sub(begun) > bounds.utmost;
        // Timeouts of other threads end this wait too.
        if in_vain || VAIN.load(Ordering::Acquire) >= LENT {
            waited.how = if in_vain { How::GaveUp } else { How::Passed };
            if in_vain {
                VAIN.fetch_add(1, Ordering::AcqRel);
            }
            // The rest faults in.
            for (start, bytes) in wanted {
                self::came(*start, *bytes);
            }
            break;
        }
        if !std::mem::replace(&mut waits, true) {
            WAITING.fetch_add(1, Ordering::AcqRel);
        }
        nap(came, LOOK);
    }
    if waits {
        let now = clock();
        waited.time = now.saturating_sub(begun);
        OVER.fetch_max(now, Ordering::AcqRel);
        WAITING.fetch_sub(1, Ordering::AcqRel);
    }
    waited
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::Cell;

    /// One test, since the set belongs to the process.
    #[test]
    fn a_launch_waits_for_what_is_away_as_long_as_something_comes() {
        let base = 0x7000_0000_0000;
        let time = Cell::new(0);
        let clock = || time.get();
        let idle = |_, within: Duration| time.set(time.get() + within.as_nanos() as Ns);
        let wait = |wanted: &[(u64, u64)], nap: &dyn Fn(u32, Duration)| super::wait(wanted, 1.0, clock, nap);
        let never = |_, _| panic!("nothing is away");
        wait(&[(base, 1)], &never);
        leaves(base, 3 * GRANULE);
        wait(&[(base + 3 * GRANULE, 100)], &never);
        assert!(is_away(&[(base - 1, 2)]) && !is_away(&[(base - 1, 1)]));
        // One granule arrives with every nap.
        let naps = Cell::new(0);
        let nap = |_, _| {
            assert_eq!(kept_until(time.get() + 7), time.get() + 7, "a launch stands here");
            time.set(time.get() + PATIENCE - 1);
            brought(base + naps.get() * GRANULE, GRANULE);
            naps.set(naps.get() + 1);
        };
        let waited = wait(&[(base, 3 * GRANULE)], &nap);
        assert_eq!((naps.get(), any(), waited.how), (3, false, How::Here));
        assert_eq!(kept_until(time.get() + 7), time.get(), "it has gone on");
        assert!(may_be(), "it may leave again before the next launch goes");
        // Without arrivals the first launches wait, the others do not, and their memory counts as
        // resident.
        let begun = time.get();
        let count = 1000;
        leaves(base, count * GRANULE);
        let ways: Vec<Waited> = (0..count)
            .map(|granule| wait(&[(base + granule * GRANULE, GRANULE)], &idle))
            .collect();
        let gave_up = |ways: &[Waited]| ways.iter().filter(|one| one.how == How::GaveUp).count() as u64;
        let most = Bounds::of(GRANULE, GRANTED).patience + 2 * LOOK.as_nanos() as Ns;
        assert!(time.get() - begun <= LENT * most, "{}", time.get() - begun);
        assert_eq!(ways.iter().map(|one| one.time).sum::<Ns>(), time.get() - begun);
        assert!(ways.iter().all(|one| one.how != How::Here));
        assert_eq!((gave_up(&ways), any()), (LENT, false));
        // Other memory arrives: waits time out, but each further one needs an arrival before.
        let (begun, others) = (time.get(), base + 2 * count * GRANULE);
        leaves(base, count * GRANULE);
        leaves(others, GRANULE);
        let ways: Vec<Waited> = (0..count)
            .map(|granule| {
                brought(others, 1);
                wait(&[(base + granule * GRANULE, GRANULE)], &idle)
            })
            .collect();
        let in_vain = gave_up(&ways);
        assert!(in_vain >= 1 && in_vain <= LENT + count, "{in_vain} of {count}");
        assert!(time.get() - begun <= in_vain * most);
        // Another broker moves memory now.
        forget();
        assert!(!may_be());
        leaves(base, GRANULE);
        let begun = time.get();
        assert_eq!(wait(&[(base, 1)], &idle).how, How::GaveUp);
        assert!(time.get() - begun > PATIENCE);
        leaves(base, GRANULE);
        forget();
        wait(&[(base, 1)], &never);
        // All of a large device is awaited, and as much evicted between: 40 GB over 22.2 GB/s.
        let all = 20_000 * GRANULE;
        leaves(base, all);
        let (begun, came) = (time.get(), Cell::new(0));
        let page_op = |_, _| {
            time.set(time.get() + (2.0 * PAGE_OP * 1e9 / GRANTED) as Ns);
            brought(base + came.get(), PAGE_OP as u64);
            came.set(came.get() + PAGE_OP as u64);
        };
        let waited = wait(&[(base, all)], &page_op);
        assert_eq!((waited.how, came.get(), any()), (How::Here, all, false));
        assert!(waited.time == time.get() - begun && waited.time > 3_000_000_000);
        // Only other memory arrives: the bound is the awaited bytes' time.
        let elsewhere = |_, within: Duration| {
            time.set(time.get() + within.as_nanos() as Ns);
            brought(others, 1);
        };
        for (bytes, utmost) in [(GRANULE, SLACK + 200_000), (all, 4_100_000_000), (1000 * all, UTMOST)] {
            forget();
            leaves(base, bytes);
            let waited = wait(&[(base, bytes)], &elsewhere);
            assert_eq!(waited.how, How::GaveUp);
            assert!(
                waited.time > utmost * 9 / 10 && waited.time <= utmost + 2 * LOOK.as_nanos() as Ns,
                "{bytes}: {waited:?}"
            );
        }
        forget();
    }

    #[test]
    fn the_bounds_follow_what_the_link_carries() {
        let (fast, slow) = (Bounds::of(5 << 30, GRANTED), Bounds::of(5 << 30, GRANTED / 20.0));
        assert!(fast.utmost < 1_000_000_000 && fast.patience < 2 * PATIENCE, "{fast:?}");
        assert!(slow.utmost > 9_000_000_000 && slow.utmost <= UTMOST, "{slow:?}");
        // Two page operations on such a link, one out and one in.
        assert!(slow.patience as f64 > PATIENCE as f64 + 2.0 * PAGE_OP * 1e9 / (GRANTED / 20.0));
        assert_eq!(Bounds::of(u64::MAX, 0.0).utmost, UTMOST);
        // The rate follows what page operations took.
        assert_eq!(followed(0, 32 << 20, 0), 0);
        let once = followed(0, 32 << 20, 1_500_000);
        let rate = (0..100).fold(once, |rate, _| followed(rate, 32 << 20, 32_000_000)) as f64;
        let wanted = f64::from(32 << 20) / 0.032;
        assert!(
            once > 22_000_000_000 && (rate / wanted - 1.0).abs() < 0.01,
            "{once} {rate}"
        );
    }
}
