//! Granules of the job's memory that lie on the host because the broker had them moved there, and
//! launches that wait until they are back.
//!
//! A kernel that touches memory which is on its way faults ahead of it, which takes longer than to
//! wait: a fault brings little at a time and the driver's bookkeeping each time. So a launch of
//! which it is known what it touches waits until that is back, as long as something does come.
//!
//! * Only a launch that has passed the gate waits, and only where memory was moved out and is
//!   brought back by the same broker. Nothing of the job's own is waited for: a transfer needs none
//!   of its work to end.
//! * It waits [`PATIENCE`] and the time of some page operations at most after something came last,
//!   and in all as long as it takes to move what it waits for and as much out of its way, and
//!   [`SLACK`]; never longer than [`UTMOST`]. Then what it waited for counts as here: it comes by
//!   demand. What the link carries is what the driver's events said of the last page operations
//!   ([`carried`]), and before that what the planner takes for granted.
//! * After [`LENT`] waits in vain none waits before a page operation has brought something, which
//!   makes good for one of them: memory that is away for good, since whoever is to bring it died,
//!   hangs or was given up, costs a job so many waits of [`PATIENCE`] and not one for each part of
//!   it. Not one alone: on a busy machine what lags is worth waiting for, and launches that go by
//!   then fault in all that is on its way.
//! * What is known here is what the broker had done. Pages that the driver moved by itself are not
//!   seen; they are taken for where they were.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::futex;
use weft_protocol::Ns;

use crate::client::{clock, link};

/// Bytes of a granule: the planner's.
pub const GRANULE: u64 = 2 << 20;

/// A page operation of 16 granules takes 1.5 ms, and one that must go out before it as much; their
/// ways to the memory threads and back are some wake-ups on a busy machine.
const PATIENCE: Ns = 50_000_000;

/// Page operations that a launch also waits for after something came last: on a slow link (a
/// simulated one, slowed down) each takes longer than is spared for it above.
const PAGE_OPS: f64 = 4.0;

/// Of one: the planner's 16 granules.
const PAGE_OP: f64 = 16.0 * GRANULE as f64;

/// What a wait may take beside the time of what it waits for: moves that were under way, and orders
/// that are late.
const SLACK: Ns = 250_000_000;

/// So often does what is awaited go over the link: as much may have to go out first.
const WAYS: f64 = 2.0;

/// No wait is longer, whatever comes: 220 GB at the rate of PCIe 4. A launch that needs more is
/// better off with faults than with a job that seems to hang.
const UTMOST: Ns = 10_000_000_000;

/// Bytes a second, before a page operation was timed: the planner's, PCIe 4 x16.
const GRANTED: f64 = 22.2e9;

/// No link is so many times slower than that.
const FAR: f64 = 1024.0;

/// The rate follows a page operation's by so much.
const FOLLOWS: f64 = 0.125;

/// Waits in vain, less page operations that brought something since, from which on launches do not
/// wait: less than half a second of the job's time.
const LENT: u64 = 8;

/// Between two looks, if nobody says that something came.
const LOOK: Duration = Duration::from_millis(2);

/// Granules that are kept: 2 TB. Beyond that they count as here.
const MOST: usize = 1 << 20;

static AWAY: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
/// How many there are: launches look here first.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Something was moved away since [`forget`].
static EVER: AtomicBool = AtomicBool::new(false);
/// Counts what came; launches sleep on it.
pub static CAME: AtomicU32 = AtomicU32::new(0);
/// Page operations that brought something.
static BROUGHT: AtomicU64 = AtomicU64::new(0);
/// Waits in vain that no page operation has made good for yet.
static VAIN: AtomicU64 = AtomicU64::new(0);
/// Bytes a second that the last page operations were moved with; 0: none was timed.
static CARRIED: AtomicU64 = AtomicU64::new(0);
/// Launches that wait now, and when the last one's wait was over.
static WAITING: AtomicU32 = AtomicU32::new(0);
static OVER: AtomicU64 = AtomicU64::new(0);

fn set() -> MutexGuard<'static, Option<HashSet<u64>>> {
    // Nothing that runs under the lock can leave the set half changed.
    AWAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The granules that lie in a range of addresses as a whole or in part.
fn granules(start: u64, bytes: u64) -> Range<u64> {
    start / GRANULE..start.saturating_add(bytes).div_ceil(GRANULE)
}

/// They leave.
pub fn leaves(start: u64, bytes: u64) {
    let mut set = set();
    let away = set.get_or_insert_default();
    let room = MOST.saturating_sub(away.len());
    away.extend(granules(start, bytes).take(room));
    COUNT.store(away.len(), Ordering::Release);
    EVER.store(true, Ordering::Release);
}

/// A page operation has brought them. Whoever sleeps on [`CAME`] is to be woken.
pub fn brought(start: u64, bytes: u64) {
    BROUGHT.fetch_add(1, Ordering::AcqRel);
    let _ = VAIN.fetch_update(Ordering::AcqRel, Ordering::Acquire, |vain| vain.checked_sub(1));
    came(start, bytes);
}

/// They are back, or nobody moves them any more. Whoever sleeps on [`CAME`] is to be woken.
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

/// Nobody moves anything any more, or somebody else does.
pub fn forget() {
    *set() = None;
    COUNT.store(0, Ordering::Release);
    EVER.store(false, Ordering::Release);
    VAIN.store(0, Ordering::Release);
    CAME.fetch_add(1, Ordering::AcqRel);
}

/// Whether any may be away by the time that a launch which comes now has passed the gate: what is
/// there when it comes may leave while it waits there.
#[inline]
pub fn may_be() -> bool {
    EVER.load(Ordering::Relaxed)
}

/// Whether any are away.
#[inline]
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Whether one of these is.
pub fn is_away(wanted: &[(u64, u64)]) -> bool {
    let set = set();
    let Some(away) = set.as_ref() else { return false };
    wanted
        .iter()
        .any(|(start, bytes)| granules(*start, *bytes).any(|granule| away.contains(&granule)))
}

/// Bytes of these that are, in whole granules.
fn bytes_away(wanted: &[(u64, u64)]) -> u64 {
    let set = set();
    let Some(away) = set.as_ref() else { return 0 };
    let all = wanted.iter().flat_map(|(start, bytes)| granules(*start, *bytes));
    // A granule that two of them share counts twice.
    GRANULE * all.filter(|granule| away.contains(granule)).count() as u64
}

/// A page operation of so many bytes took the link so long, as the clock of the machine goes.
pub fn carried(bytes: u64, took: Ns) {
    // One thread says so.
    CARRIED.store(
        followed(CARRIED.load(Ordering::Relaxed), bytes, took),
        Ordering::Relaxed,
    );
}

/// The rate (0: none yet) after such a page operation.
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

/// How long a launch waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    /// After something came last.
    patience: Ns,
    /// In all.
    utmost: Ns,
}

impl Bounds {
    /// For so many bytes, on a link that carries so much a second.
    fn of(bytes: u64, rate: f64) -> Bounds {
        let takes = |bytes: f64| (bytes * 1e9 / rate.max(GRANTED / FAR)) as Ns;
        Bounds {
            patience: PATIENCE.saturating_add(takes(PAGE_OPS * PAGE_OP)),
            utmost: SLACK.saturating_add(takes(WAYS * bytes as f64)).min(UTMOST),
        }
    }
}

/// Up to when a launch that is counted as issued was kept from the device here: `now` while one is.
/// What ends by the clock has not begun before.
pub fn kept_until(now: Ns) -> Ns {
    match WAITING.load(Ordering::Acquire) {
        0 => OVER.load(Ordering::Acquire),
        _ => now,
    }
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum How {
    /// All is there, or was.
    #[default]
    Here,
    /// It waited in vain: what has not come comes by demand.
    GaveUp,
    /// It did not wait, because of those that did in vain.
    Passed,
}

/// A launch's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waited {
    /// How long, ns.
    pub time: Ns,
    /// How it ended.
    pub how: How,
}

/// Waits, within a bound, until memory that the broker had moved away is back.
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

/// Wakes launches that wait for memory.
pub fn wake() {
    let _ = futex::wake(&CAME, futex::Flags::PRIVATE, u32::MAX);
}

/// Waits until all of these (address and bytes) are back, within the bounds above. `slowness`: how
/// many times slower than a real one's the device's link is. `nap` sleeps until [`CAME`] is not
/// what it was, or so long.
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
        // Before the look: what comes after it ends the nap.
        let came = CAME.load(Ordering::Acquire);
        if !is_away(wanted) {
            break;
        }
        let (now, brought) = (clock(), BROUGHT.load(Ordering::Acquire));
        if brought != seen {
            (seen, last) = (brought, now);
        }
        let in_vain = now.saturating_sub(last) > bounds.patience || now.saturating_sub(begun) > bounds.utmost;
        // Other threads' waits in vain end this one too.
        if in_vain || VAIN.load(Ordering::Acquire) >= LENT {
            waited.how = if in_vain { How::GaveUp } else { How::Passed };
            if in_vain {
                VAIN.fetch_add(1, Ordering::AcqRel);
            }
            // It comes by demand.
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

    /// One test, since the set is the process's.
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
        // One granule comes with every nap.
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
        // Nobody brings anything: that costs the first launches a wait and all others nothing, and
        // what they touch counts as here.
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
        // Page operations that bring other things than what is waited for: in vain, too, but for
        // each of those waits some must have come.
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
        // Somebody else moves things now.
        forget();
        assert!(!may_be());
        leaves(base, GRANULE);
        let begun = time.get();
        assert_eq!(wait(&[(base, 1)], &idle).how, How::GaveUp);
        assert!(time.get() - begun > PATIENCE);
        leaves(base, GRANULE);
        forget();
        wait(&[(base, 1)], &never);
        // All of a large device is awaited, a page operation at a time, and as much leaves between:
        // 40 GB over 22.2 GB/s.
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
        // What is awaited never comes, but others' does for ever: longer than its own way takes
        // nobody waits.
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
        // Two page operations of such a link, one out and one in.
        assert!(slow.patience as f64 > PATIENCE as f64 + 2.0 * PAGE_OP * 1e9 / (GRANTED / 20.0));
        assert_eq!(Bounds::of(u64::MAX, 0.0).utmost, UTMOST);
        // What page operations took says it.
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
