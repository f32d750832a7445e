//! Granules of the job's memory that lie on the host because the broker had them moved there, and launches that wait until they are back.
//!
//! A kernel that touches memory which is on its way faults ahead of it, which takes longer than to wait: a fault brings little at a time and the driver's bookkeeping each
//! time. So a launch of which it is known what it touches waits until that is back, as long as something does come.
//!
//! * Only a launch that has passed the gate waits, and only where memory was moved out and is brought back by the same broker. Nothing of the job's own is waited for: a transfer needs
//!   none of its work to end.
//! * It waits [`PATIENCE`] at most after something came last, and [`UTMOST`] in all. Then what it waited for counts as here: it comes by demand.
//! * After [`LENT`] waits in vain none waits before an errand has brought something, which makes good for one of them: memory that is away for good, since whoever is to bring it died, hangs or was given
//!   up, costs a job so many waits of [`PATIENCE`] and not one for each part of it. Not one alone: on a busy machine what lags is worth waiting for, and launches that go by then fault in all that is on its way.
//! * What is known here is what the broker had done. Pages that the driver moved by itself are not seen; they are taken for where they were.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_broker::protocol::Ns;

/// Bytes of a granule: the planner's.
pub const GRANULE: u64 = 2 << 20;

/// An errand of 16 granules takes 1.5 ms, and one that must go out before it as much; their ways to the memory threads and back are some wake-ups on a busy machine.
const PATIENCE: Ns = 50_000_000;

/// 5 GB at the rate of PCIe 4. A launch that needs more at once is better off with faults than with a job that seems to hang.
const UTMOST: Ns = 250_000_000;

/// Waits in vain, less errands that brought something since, from which on launches do not wait: less than half a second of the job's time.
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
/// Errands that brought something.
static BROUGHT: AtomicU64 = AtomicU64::new(0);
/// Waits in vain that no errand has made good for yet.
static VAIN: AtomicU64 = AtomicU64::new(0);
/// Time that launches have waited, launches that gave up, and launches that did not wait because of those.
static WAITED: AtomicU64 = AtomicU64::new(0);
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);
static PASSED: AtomicU64 = AtomicU64::new(0);
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

/// An errand has brought them. Whoever sleeps on [`CAME`] is to be woken.
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

/// Whether any may be away by the time that a launch which comes now has passed the gate: what is there when it comes may leave while it waits there.
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

/// What launches have waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waited {
    /// Nanoseconds, of all launches together.
    pub time: Ns,
    /// Launches that waited in vain.
    pub given_up: u64,
    /// Launches that did not wait because of those.
    pub passed: u64,
}

/// What launches have waited so far.
pub fn waited() -> Waited {
    Waited {
        time: WAITED.load(Ordering::Relaxed),
        given_up: GIVEN_UP.load(Ordering::Relaxed),
        passed: PASSED.load(Ordering::Relaxed),
    }
}

/// Up to when a launch that is counted as issued was kept from the device here: `now` while one is. What ends by the clock has not begun before.
pub fn kept_until(now: Ns) -> Ns {
    match WAITING.load(Ordering::Acquire) {
        0 => OVER.load(Ordering::Acquire),
        _ => now,
    }
}

/// Waits until all of these (address and bytes) are back, within the bounds above. `nap` sleeps until [`CAME`] is not what it was, or so long.
pub fn wait(wanted: &[(u64, u64)], clock: impl Fn() -> Ns, nap: impl Fn(u32, Duration)) {
    if !any() {
        return;
    }
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
        let in_vain = now.saturating_sub(last) > PATIENCE || now.saturating_sub(begun) > UTMOST;
        // Other threads' waits in vain end this one too.
        if in_vain || VAIN.load(Ordering::Acquire) >= LENT {
            let counter = if in_vain { &GIVEN_UP } else { &PASSED };
            counter.fetch_add(1, Ordering::Relaxed);
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
        WAITED.fetch_add(now.saturating_sub(begun), Ordering::Relaxed);
        OVER.fetch_max(now, Ordering::AcqRel);
        WAITING.fetch_sub(1, Ordering::AcqRel);
    }
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
        let never = |_, _| panic!("nothing is away");
        wait(&[(base, 1)], clock, never);
        leaves(base, 3 * GRANULE);
        wait(&[(base + 3 * GRANULE, 100)], clock, never);
        assert!(is_away(&[(base - 1, 2)]) && !is_away(&[(base - 1, 1)]));
        // One granule comes with every nap.
        let naps = Cell::new(0);
        let nap = |_, _| {
            assert_eq!(kept_until(time.get() + 7), time.get() + 7, "a launch stands here");
            time.set(time.get() + PATIENCE - 1);
            brought(base + naps.get() * GRANULE, GRANULE);
            naps.set(naps.get() + 1);
        };
        wait(&[(base, 3 * GRANULE)], clock, nap);
        assert_eq!((naps.get(), any(), waited().given_up), (3, false, 0));
        assert_eq!(kept_until(time.get() + 7), time.get(), "it has gone on");
        assert!(may_be(), "it may leave again before the next launch goes");
        // Nobody brings anything: that costs the first launches a wait and all others nothing, and what they touch counts as here.
        let (begun, before) = (time.get(), waited());
        let count = 1000;
        leaves(base, count * GRANULE);
        let idle = |_, within: Duration| time.set(time.get() + within.as_nanos() as Ns);
        for granule in 0..count {
            wait(&[(base + granule * GRANULE, GRANULE)], clock, idle);
        }
        let most = PATIENCE + 2 * LOOK.as_nanos() as Ns;
        assert!(time.get() - begun <= LENT * most, "{}", time.get() - begun);
        assert!(waited().time - before.time <= LENT * most);
        assert_eq!((waited().given_up, waited().passed, any()), (LENT, count - LENT, false));
        // Errands that bring other things than what is waited for: in vain, too, but for each of those waits some must have come.
        let (begun, others) = (time.get(), base + 2 * count * GRANULE);
        leaves(base, count * GRANULE);
        leaves(others, GRANULE);
        let mut came = 0;
        for granule in 0..count {
            brought(others, 1);
            came += 1;
            wait(&[(base + granule * GRANULE, GRANULE)], clock, idle);
        }
        let in_vain = waited().given_up - LENT;
        assert!(in_vain >= 1 && in_vain <= LENT + came, "{in_vain} of {came}");
        assert!(time.get() - begun <= in_vain * most);
        // Somebody else moves things now.
        forget();
        assert!(!may_be());
        leaves(base, GRANULE);
        let begun = time.get();
        wait(&[(base, 1)], clock, idle);
        assert!(time.get() - begun > PATIENCE);
        leaves(base, GRANULE);
        forget();
        wait(&[(base, 1)], clock, never);
    }
}
