// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accounts of the streams of a background job, and how much of each one's work has ended.
//!
//! A stream's account counts predicted ns: `issued` grows with every launch, `completed` as work
//! ends; `completed <= issued` always. Lookups take no lock. A reused handle continues its account.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use weft_protocol::Ns;

/// Number of accounts, one bit of a word each. Frameworks use one to some dozen streams (torch's
/// pool has 32 per priority). Further streams take an idle stream's account, or share the last
/// account.
pub const ACCOUNTS: usize = 64;

/// Unfenced work counts as ended after `last launch + DOUBT_RATIO * outstanding + DOUBT_NS`.
const DOUBT_RATIO: Ns = 2;
/// Constant part, ns. A driver's queue delays some us; another process's time slice lasts about 1.5
/// ms.
pub(crate) const DOUBT_NS: Ns = 5_000_000;

/// Whether unfenced work counts as ended by the clock. `last`: time of the last launch, ns.
#[inline]
fn is_overdue(now: Ns, last: Ns, outstanding: Ns) -> bool {
    let latest = last
        .saturating_add(outstanding.saturating_mul(DOUBT_RATIO))
        .saturating_add(DOUBT_NS);
    now > latest
}

/// Keys of no stream: keys are handles plus one, since the default stream is 0.
const EMPTY: usize = 0;
const GONE: usize = usize::MAX;

/// Account of one stream, all in predicted ns.
#[derive(Debug, Default)]
pub struct StreamAccount {
    key: AtomicUsize,
    /// Work launched.
    pub(crate) issued: AtomicU64,
    /// Work up to the last fence.
    pub(crate) fenced: AtomicU64,
    /// Work seen to have ended.
    pub(crate) completed: AtomicU64,
    /// Work up to the first fence pending at the last poll; none if at most `completed`.
    pub(crate) first_fence: AtomicU64,
    /// Time of the last launch, ns.
    last_launch: AtomicU64,
}

impl StreamAccount {
    /// Raises `completed` to `upto`; returns the increase.
    #[inline]
    pub fn complete(&self, upto: Ns) -> Ns {
        let upto = upto.min(self.issued.load(Ordering::SeqCst));
        if self.completed.load(Ordering::Acquire) >= upto {
            return 0;
        }
        let before = self.completed.fetch_max(upto, Ordering::AcqRel);
        upto.saturating_sub(before)
    }

    /// Predicted work without a fence, ns.
    #[inline]
    pub fn unfenced(&self) -> Ns {
        let known = self
            .fenced
            .load(Ordering::Relaxed)
            .max(self.completed.load(Ordering::Relaxed));
        self.issued.load(Ordering::Relaxed).saturating_sub(known)
    }

    /// Predicted work behind a fence pending at the last poll, which has not begun, ns.
    #[inline]
    pub fn behind(&self) -> Ns {
        let first = self.first_fence.load(Ordering::Relaxed);
        match first > self.completed.load(Ordering::Relaxed) {
            true => self.issued.load(Ordering::Relaxed).saturating_sub(first),
            false => 0,
        }
    }

    /// Predicted outstanding work, ns.
    #[inline]
    pub fn outstanding(&self) -> Ns {
        let completed = self.completed.load(Ordering::Acquire);
        self.issued.load(Ordering::Acquire).saturating_sub(completed)
    }

    /// Counts overdue unfenced work as ended; returns it, ns. Until `kept` a launch may have waited
    /// for memory, issued but not on the device.
    fn complete_overdue(&self, now: Ns, kept: Ns) -> Ns {
        let outstanding = self.outstanding();
        if outstanding == 0 {
            return 0;
        }
        let issued = self.issued.load(Ordering::Acquire);
        let completed = self.completed.load(Ordering::Acquire);
        let fenced = self.fenced.load(Ordering::Acquire);
        // A pending fence decides on the work before it, and on the later work.
        if fenced > completed {
            return 0;
        }
        match is_overdue(now, self.last_launch.load(Ordering::Relaxed).max(kept), outstanding) {
            true => self.complete(issued),
            false => 0,
        }
    }
}

/// Accounts of one process.
#[derive(Debug)]
pub struct StreamAccounts {
    accounts: [StreamAccount; ACCOUNTS],
    /// One bit an account, set at least while work is outstanding; see [`StreamAccounts::close`].
    open: AtomicU64,
}

impl Default for StreamAccounts {
    fn default() -> StreamAccounts {
        StreamAccounts {
            accounts: std::array::from_fn(|_| StreamAccount::default()),
            open: AtomicU64::new(0),
        }
    }
}

/// A stream's account, small enough to pass the driver's call in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountIndex {
    /// Index of the account.
    pub at: u16,
    /// Whether only this stream uses the account, so that the end of its events is the end of the
    /// work.
    pub own: bool,
}

impl StreamAccounts {
    /// The account of a stream, newly assigned for a new one.
    #[inline]
    pub fn place(&self, stream: usize) -> AccountIndex {
        let key = stream.wrapping_add(1);
        // Handles are addresses: their low bits are all alike.
        let start = (stream >> 6) ^ (stream >> 12) ^ stream;
        // Most streams are in their first place.
        let at = start % (ACCOUNTS - 1);
        if self
            .accounts
            .get(at)
            .is_some_and(|account| account.key.load(Ordering::Acquire) == key)
        {
            return own(at);
        }
        self.place_further(key, start)
    }

    /// Cold, so that it stays a call; inline, so that the call is direct, in the caller's crate.
    #[cold]
    #[inline]
    fn place_further(&self, key: usize, start: usize) -> AccountIndex {
        let mut free = None;
        for step in 0..ACCOUNTS - 1 {
            let at = start.wrapping_add(step) % (ACCOUNTS - 1);
            let Some(account) = self.accounts.get(at) else { break };
            match account.key.load(Ordering::Acquire) {
                found if found == key => return own(at),
                EMPTY => {
                    return self.claim(free.unwrap_or((at, EMPTY)), key);
                }
                GONE if free.is_none() => free = Some((at, GONE)),
                _ => {}
            }
        }
        match free {
            Some(free) => self.claim(free, key),
            None => self.claim_idle(key, start),
        }
    }

    /// Takes over an idle stream's account. If the idle stream launches at that moment, its work
    /// counts on this account.
    #[cold]
    fn claim_idle(&self, key: usize, start: usize) -> AccountIndex {
        for step in 0..ACCOUNTS - 1 {
            let at = start.wrapping_add(step) % (ACCOUNTS - 1);
            let Some(account) = self.accounts.get(at) else { break };
            let was = account.key.load(Ordering::Acquire);
            if account.outstanding() == 0 {
                return self.claim((at, was), key);
            }
        }
        SHARED
    }

    #[cold]
    fn claim(&self, (at, was): (usize, usize), key: usize) -> AccountIndex {
        let Some(account) = self.accounts.get(at) else {
            return SHARED;
        };
        match account
            .key
            .compare_exchange(was, key, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => own(at),
            Err(other) if other == key => own(at),
            // Another stream was faster: this launch uses the shared account, the next one finds a
            // place.
            Err(_) => SHARED,
        }
    }

    /// The account with this index.
    #[inline]
    pub fn account(&self, at: u16) -> Option<&StreamAccount> {
        self.accounts.get(usize::from(at))
    }

    /// Books work. True if the stream had none outstanding.
    #[inline]
    pub fn issue(&self, place: AccountIndex, cost: Ns, now: Ns) -> bool {
        let Some(account) = self.account(place.at) else {
            return false;
        };
        account.last_launch.store(now, Ordering::Relaxed);
        // Sequentially consistent, as the look at the bit: see `close`. Free on x86.
        let before = account.issued.fetch_add(cost, Ordering::SeqCst);
        let bit = 1u64 << (usize::from(place.at) % ACCOUNTS);
        if self.open.load(Ordering::SeqCst) & bit == 0 {
            self.open.fetch_or(bit, Ordering::SeqCst);
        }
        before <= account.completed.load(Ordering::Relaxed)
    }

    /// Accounts with outstanding work.
    #[inline]
    fn open(&self) -> impl Iterator<Item = &StreamAccount> {
        let mut open = self.open.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let at = open.trailing_zeros() as usize;
            open &= open.wrapping_sub(1);
            self.accounts.get(at)
        })
    }

    /// Counts overdue unfenced work of all streams as ended; returns it, ns. Until `kept` a launch
    /// may have waited for memory, issued but not on the device.
    pub fn complete_overdue(&self, now: Ns, kept: Ns) -> Ns {
        self.open().fold(0, |sum: Ns, account| {
            sum.saturating_add(account.complete_overdue(now, kept))
        })
    }

    /// Counts all work as ended; returns how much, ns.
    #[inline]
    pub fn complete_all(&self) -> Ns {
        let mut open = self.open.load(Ordering::Acquire);
        let mut gained: Ns = 0;
        loop {
            let at = open.trailing_zeros() as usize;
            let Some(account) = self.accounts.get(at) else {
                return gained;
            };
            open &= open.wrapping_sub(1);
            match account.complete(Ns::MAX) {
                // A stream in use keeps its bit: its next launch would set it again.
                0 => self.close(at, account),
                completed => gained = gained.saturating_add(completed),
            }
        }
    }

    /// Clears an idle account's bit, then reads the account again. A launch adds work, then reads
    /// the bit. One of the two sees the other, so the bit stays set while work is outstanding.
    #[cold]
    fn close(&self, at: usize, account: &StreamAccount) {
        let bit = 1u64 << (at % ACCOUNTS);
        self.open.fetch_and(!bit, Ordering::SeqCst);
        if account.issued.load(Ordering::SeqCst) > account.completed.load(Ordering::Acquire) {
            self.open.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Frees a destroyed stream's account; returns the work that therefore counts as ended, ns.
    pub fn forget(&self, stream: usize) -> Ns {
        let key = stream.wrapping_add(1);
        let mut completed = 0;
        for account in &self.accounts {
            if account.key.load(Ordering::Acquire) == key {
                completed += account.complete(Ns::MAX);
                let _ = account
                    .key
                    .compare_exchange(key, GONE, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        completed
    }

    /// Predicted work of all streams that has not begun, as far as known, ns.
    #[inline]
    pub fn behind(&self) -> Ns {
        self.open()
            .fold(0, |sum: Ns, account| sum.saturating_add(account.behind()))
    }

    /// Predicted outstanding work of all streams, ns.
    #[inline]
    pub fn outstanding(&self) -> Ns {
        self.open()
            .fold(0, |sum: Ns, account| sum.saturating_add(account.outstanding()))
    }
}

/// A copy, as in a forked child.
impl Clone for StreamAccounts {
    fn clone(&self) -> StreamAccounts {
        let copy = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::SeqCst));
        let account = |account: &StreamAccount| StreamAccount {
            key: AtomicUsize::new(account.key.load(Ordering::SeqCst)),
            issued: copy(&account.issued),
            fenced: copy(&account.fenced),
            completed: copy(&account.completed),
            first_fence: copy(&account.first_fence),
            last_launch: copy(&account.last_launch),
        };
        StreamAccounts {
            accounts: self.accounts.each_ref().map(account),
            open: copy(&self.open),
        }
    }
}

/// The account shared by streams without their own.
const SHARED: AccountIndex = AccountIndex {
    at: ACCOUNTS as u16 - 1,
    own: false,
};

#[inline]
fn own(at: usize) -> AccountIndex {
    // Below ACCOUNTS, by the callers.
    AccountIndex {
        at: at as u16,
        own: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfenced_work_ends_long_after_its_time() {
        assert!(!is_overdue(100 + 2 * 70 + DOUBT_NS, 100, 70));
        assert!(is_overdue(101 + 2 * 70 + DOUBT_NS, 100, 70));
        assert!(!is_overdue(Ns::MAX, 100, Ns::MAX));
    }

    #[test]
    fn every_stream_has_its_account_and_the_rest_share_one() {
        let streams = StreamAccounts::default();
        let busy = |n: usize| {
            let place = streams.place(0x7f00_0000_0000 + n * 0x40);
            streams.issue(place, 10, 0);
            place
        };
        let places: Vec<AccountIndex> = (0..100).map(busy).collect();
        assert_eq!(places.iter().filter(|place| place.own).count(), ACCOUNTS - 1);
        assert!(places.iter().filter(|place| !place.own).all(|place| *place == SHARED));
        for (n, place) in places.iter().enumerate() {
            assert_eq!(streams.place(0x7f00_0000_0000 + n * 0x40), *place);
        }
        let mut own: Vec<u16> = places.iter().filter(|place| place.own).map(|place| place.at).collect();
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), ACCOUNTS - 1);
        // A destroyed stream makes room.
        streams.forget(0x7f00_0000_0000);
        assert!(streams.place(1).own);
        // An idle stream makes room too, both for other streams and for its own return.
        streams.issue(streams.place(1), 10, 0);
        assert!(!streams.place(3 << 40).own);
        let other = streams.place(0x7f00_0000_0040);
        streams.account(other.at).expect("placed").complete(Ns::MAX);
        assert_eq!(streams.place(3 << 40), other);
        streams.issue(other, 10, 0);
        assert!(!streams.place(0x7f00_0000_0040).own, "all have work on its way");
        streams.account(other.at).expect("placed").complete(Ns::MAX);
        assert_eq!(streams.place(0x7f00_0000_0040), other);
    }

    #[test]
    fn what_lies_behind_a_mark_that_is_not_reached_has_not_begun() {
        let streams = StreamAccounts::default();
        let (one, other) = (streams.place(0), streams.place(1 << 20));
        streams.issue(one, 150, 0);
        streams.issue(other, 40, 0);
        assert_eq!(streams.behind(), 0, "no mark, nothing known");
        let account = streams.account(one.at).expect("placed");
        account.first_fence.store(100, Ordering::Relaxed);
        assert_eq!(streams.behind(), 50);
        streams.issue(one, 25, 0);
        assert_eq!(streams.behind(), 75);
        account.complete(100);
        assert_eq!(streams.behind(), 0, "it is reached");
    }

    #[test]
    fn settled_never_passes_issued_nor_goes_back() {
        let account = StreamAccount::default();
        account.issued.store(100, Ordering::Relaxed);
        assert_eq!(account.complete(40), 40);
        assert_eq!(account.complete(30), 0);
        assert_eq!(account.outstanding(), 60);
        assert_eq!(account.complete(1000), 60);
        assert_eq!(account.outstanding(), 0);
    }
}
