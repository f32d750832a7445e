// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU time that a shared broker spends on each guest.
//!
//! Work for a guest is charged to the guest: [`SHARE`] of a core in the long run, [`AHEAD`] in a
//! burst; further work waits. Hundreds of jobs started together remain below these limits. Accounts
//! are per user, so no other user waits; the owner has no account.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::callers::is_owner;

/// Divisor of a core's time: a guest's part is `1 / SHARE`.
const SHARE: u32 = 20;

/// CPU time that an idle guest may use at once.
const AHEAD: Duration = Duration::from_millis(500);

/// Most CPU time beyond [`AHEAD`]: a wait is at most `DEBT * SHARE` = 2 s. Clients give up on a
/// broker after 5 s.
const DEBT: Duration = Duration::from_millis(100);

/// Number of accounts above which empty ones are removed.
const ACCOUNTS: usize = 256;

/// The accounts of all users.
#[derive(Debug, Clone, Default)]
pub struct Accounts(Arc<Mutex<BTreeMap<u32, Account>>>);

/// A leaky bucket that drains at [`SHARE`]; work for its user waits while it is full.
#[derive(Debug, Clone, Copy)]
struct Account {
    spent: Duration,
    at: Instant,
}

impl Account {
    fn spent(self, now: Instant) -> Duration {
        self.spent
            .saturating_sub(now.saturating_duration_since(self.at) / SHARE)
    }
}

/// CPU time of the calling thread so far.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Accounts {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u32, Account>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges CPU time to a user.
    pub(crate) fn charge(&self, uid: u32, time: Duration) {
        self.charge_at(uid, time, Instant::now());
    }

    fn charge_at(&self, uid: u32, time: Duration, now: Instant) {
        if is_owner(uid) {
            return;
        }
        let mut all = self.all();
        if all.len() > ACCOUNTS && !all.contains_key(&uid) {
            all.retain(|_, account| !account.spent(now).is_zero());
        }
        let account = all.entry(uid).or_insert(Account {
            spent: Duration::ZERO,
            at: now,
        });
        account.spent = (account.spent(now) + time).min(AHEAD + DEBT);
        account.at = now;
    }

    /// Calls `does` and charges its CPU time to the user.
    pub(crate) fn at_cost_of<T>(&self, uid: u32, does: impl FnOnce() -> T) -> T {
        let before = thread_time();
        let done = does();
        self.charge(uid, thread_time().saturating_sub(before));
        done
    }

    /// Time until work for this user may continue; `None`: it may continue now.
    pub(crate) fn waits(&self, uid: u32) -> Option<Duration> {
        self.waits_at(uid, Instant::now())
    }

    /// Whether more than `AHEAD / 4` is used, so that threads for the user get the last priority.
    pub(crate) fn is_high(&self, uid: u32) -> bool {
        let all = self.all();
        all.get(&uid)
            .is_some_and(|account| account.spent(Instant::now()) > AHEAD / 4)
    }

    fn waits_at(&self, uid: u32, now: Instant) -> Option<Duration> {
        let spent = self.all().get(&uid)?.spent(now);
        spent
            .checked_sub(AHEAD)
            .filter(|over| !over.is_zero())
            .map(|over| over * SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: u32 = 4_000_000_001;

    #[test]
    fn who_spends_much_waits_and_others_do_not() {
        let (accounts, begin) = (Accounts::default(), Instant::now());
        accounts.charge_at(GUEST, AHEAD, begin);
        assert_eq!(accounts.waits_at(GUEST, begin), None, "a burst");
        let more = Duration::from_millis(10);
        accounts.charge_at(GUEST, more, begin);
        assert_eq!(accounts.waits_at(GUEST, begin), Some(more * SHARE));
        assert_eq!(accounts.waits_at(GUEST + 1, begin), None);
        assert_eq!(
            accounts.waits_at(GUEST, begin + more * SHARE),
            None,
            "his time has come again"
        );
        // In the long run a guest gets its share: one second of a core per `SHARE` seconds.
        let mut had = Duration::ZERO;
        let piece = Duration::from_millis(1);
        for step in 0..100_000 {
            let now = begin + step * piece;
            if accounts.waits_at(GUEST, now).is_none() {
                accounts.charge_at(GUEST, piece, now);
                had += piece;
            }
        }
        let share = 100_000 * piece / SHARE;
        assert!(had >= share - AHEAD && had <= share + AHEAD, "{had:?} of {share:?}");
    }

    #[test]
    fn the_owner_never_waits_and_who_is_even_is_forgotten() {
        let (accounts, begin) = (Accounts::default(), Instant::now());
        accounts.charge_at(0, AHEAD * 10, begin);
        assert_eq!(accounts.waits_at(0, begin), None);
        for uid in 0..1000 {
            accounts.charge_at(GUEST + uid, Duration::from_millis(1), begin);
        }
        assert_eq!(accounts.all().len(), 1000, "all of them owe something");
        accounts.charge_at(GUEST + 1000, Duration::from_millis(1), begin + AHEAD * SHARE);
        assert_eq!(accounts.all().len(), 1);
    }

    #[test]
    fn work_is_measured() {
        let accounts = Accounts::default();
        let mut spins = 0u64;
        while accounts.waits(GUEST).is_none() {
            accounts.at_cost_of(GUEST, || {
                (0..1_000_000u64).fold(0, |sum, at| sum ^ std::hint::black_box(at))
            });
            spins += 1;
            assert!(spins < 1_000_000, "work costs time");
        }
    }
}
