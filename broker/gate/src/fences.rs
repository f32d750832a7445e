// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fences after a background job's work: when a fence is due, which fences are pending, and when
//! work without a fence counts as ended.
//!
//! A fence is an event that weft records after work. weft polls it later and never waits for it.
//! The driver of this code supplies the events and polls them.

use std::sync::atomic::Ordering;

use weft_protocol::Ns;

use crate::accounts::{AccountIndex, StreamAccount, StreamAccounts};

/// Predicted work between two fences of a stream, ns. A fence costs about 1 us: 1 % at most. It is
/// a fifth of the usual delay bound (500 us), so the broker's view is fine enough.
pub const FENCE_QUANTUM_NS: Ns = 100_000;

/// Shortest time between two fences while credit is plenty, ns: no launch waits for a fence then.
pub const FENCE_PAUSE_NS: Ns = 50_000;

/// Credit is plenty above this multiple of the unfenced work.
pub const PLENTY_RATIO: Ns = 4;

/// Most pending fences of a process. Further work gets no fence.
pub const MAX_FENCES: usize = 32;

/// Whether a fence is due behind a stream's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceDue {
    /// Too little work is unfenced.
    No,
    /// The next launch will not wait for it: at most one fence per [`FENCE_PAUSE_NS`].
    Rarely,
    /// The next launch may wait for it.
    Now,
}

/// Whether a fence is due behind `unfenced` ns of work, while the credit word holds `credit`.
///
/// The simulation treats `Rarely` as `No`: its clients record no fences only for the broker.
#[inline]
pub fn fence_due(unfenced: Ns, credit: i64) -> FenceDue {
    if unfenced < FENCE_QUANTUM_NS {
        return FenceDue::No;
    }
    match u64::try_from(credit).unwrap_or(0) > unfenced.saturating_mul(PLENTY_RATIO) {
        true => FenceDue::Rarely,
        false => FenceDue::Now,
    }
}

/// Whether a fence was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceState {
    /// The work before it has ended.
    Reached,
    /// The work before it has not ended.
    Pending,
    /// The event is useless; its work counts as ended after a time.
    Broken,
}

#[derive(Debug, Clone, Copy)]
struct Fence<E> {
    event: E,
    account: u16,
    upto: Ns,
}

/// Pending fences of one process; `E`: an event.
#[derive(Debug, Clone)]
pub struct PendingFences<E> {
    slots: [Option<Fence<E>>; MAX_FENCES],
}

impl<E: Copy> Default for PendingFences<E> {
    fn default() -> PendingFences<E> {
        PendingFences {
            slots: [None; MAX_FENCES],
        }
    }
}

impl<E: Copy> PendingFences<E> {
    /// Whether none is pending. Else the device has outstanding work.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Work, ns, up to which a new fence of this account would reach; `None`: all work is fenced,
    /// or there are too many fences.
    pub fn wanted(&self, account: &StreamAccount) -> Option<Ns> {
        let upto = account.issued.load(Ordering::Acquire);
        let unfenced = upto > account.fenced.load(Ordering::Acquire);
        (unfenced && self.slots.iter().any(Option::is_none)).then_some(upto)
    }

    /// Adds a fence that was recorded after [`PendingFences::wanted`] returned `upto`.
    pub fn add(&mut self, accounts: &StreamAccounts, at: AccountIndex, upto: Ns, event: E) {
        let Some(account) = accounts.account(at.at) else { return };
        account.fenced.fetch_max(upto, Ordering::AcqRel);
        if account.first_fence.load(Ordering::Relaxed) <= account.completed.load(Ordering::Acquire) {
            account.first_fence.store(upto, Ordering::Relaxed);
        }
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(Fence {
                event,
                account: at.at,
                upto,
            });
        }
    }

    /// Predicted time of the next fence, ns; `None` without fences. `progress`: when work was last
    /// seen to end, or began on an empty device.
    pub fn expected_end(&self, accounts: &StreamAccounts, progress: Ns) -> Option<Ns> {
        let ends = self.slots.iter().flatten().filter_map(|fence| {
            let completed = accounts.account(fence.account)?.completed.load(Ordering::Relaxed);
            Some(progress.saturating_add(fence.upto.saturating_sub(completed)))
        });
        ends.min()
    }

    /// Drops the fences whose events `ended` accepts: all work before them has ended. Returns
    /// predicted work newly known to have ended, ns.
    pub fn end(&mut self, accounts: &StreamAccounts, ended: impl Fn(E) -> bool) -> Ns {
        let ends = self
            .slots
            .iter_mut()
            .filter_map(|slot| slot.take_if(|fence| ended(fence.event)));
        ends.filter_map(|fence| Some(accounts.account(fence.account)?.complete(fence.upto)))
            .fold(0, Ns::saturating_add)
    }

    /// Polls the fences and drops those that are not pending. `ask` gets each fence's event; `drop`
    /// gets each dropped fence's event and state. Returns predicted work newly seen to have ended,
    /// ns.
    pub fn poll(
        &mut self,
        accounts: &StreamAccounts,
        mut ask: impl FnMut(E) -> FenceState,
        mut drop: impl FnMut(E, FenceState),
    ) -> Ns {
        let mut gained: Ns = 0;
        // A stream's fences are reached in order: the fences after a pending one need no poll.
        let mut pending: u64 = 0;
        let mut order: [(usize, Option<Fence<E>>); MAX_FENCES] =
            std::array::from_fn(|at| (at, self.slots.get(at).copied().flatten()));
        order.sort_unstable_by_key(|(_, fence)| fence.as_ref().map_or(Ns::MAX, |fence| fence.upto));
        for (at, fence) in order {
            let Some(fence) = fence else { continue };
            let bit = 1u64.checked_shl(u32::from(fence.account)).unwrap_or(0);
            if pending & bit != 0 {
                continue;
            }
            let account = accounts.account(fence.account);
            let state = ask(fence.event);
            match state {
                FenceState::Pending => {
                    pending |= bit;
                    if let Some(account) = account {
                        account.first_fence.store(fence.upto, Ordering::Relaxed);
                    }
                    continue;
                }
                FenceState::Reached => {
                    if let Some(account) = account {
                        gained = gained.saturating_add(account.complete(fence.upto));
                    }
                }
                FenceState::Broken => {
                    if let Some(account) = account {
                        let completed = account.completed.load(Ordering::Acquire);
                        account.fenced.store(completed, Ordering::Release);
                        account.first_fence.store(0, Ordering::Relaxed);
                    }
                }
            }
            drop(fence.event, state);
            if let Some(slot) = self.slots.get_mut(at) {
                *slot = None;
            }
        }
        gained
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::accounts::DOUBT_NS;

    #[test]
    fn a_fence_is_due_once_a_launch_may_wait_for_it() {
        let quantum = FENCE_QUANTUM_NS;
        let plenty = (quantum * PLENTY_RATIO) as i64;
        assert_eq!(fence_due(quantum - 1, 0), FenceDue::No);
        assert_eq!(fence_due(quantum, plenty), FenceDue::Now);
        assert_eq!(fence_due(quantum, plenty + 1), FenceDue::Rarely);
        assert_eq!(fence_due(quantum, -1), FenceDue::Now, "a debt is no credit");
        assert_eq!(fence_due(Ns::MAX, i64::MAX), FenceDue::Now);
    }

    /// Two streams' accounts and their fences. An event is its stream and the amount of work before
    /// it.
    struct FencedStreams {
        accounts: StreamAccounts,
        fences: PendingFences<(usize, Ns)>,
        reached: [Ns; 2],
    }

    impl FencedStreams {
        fn new() -> FencedStreams {
            FencedStreams {
                accounts: StreamAccounts::default(),
                fences: PendingFences::default(),
                reached: [0; 2],
            }
        }

        fn fence(&mut self, stream: usize) {
            let at = self.accounts.place(stream);
            let account = self.accounts.account(at.at).expect("placed");
            if let Some(upto) = self.fences.wanted(account) {
                self.fences.add(&self.accounts, at, upto, (stream, upto));
            }
        }

        fn poll(&mut self) -> Ns {
            let reached = self.reached;
            let ask = |(stream, upto): (usize, Ns)| match reached[stream] >= upto {
                true => FenceState::Reached,
                false => FenceState::Pending,
            };
            self.fences.poll(&self.accounts, ask, |_, _| {})
        }
    }

    #[test]
    fn a_fence_tells_of_the_work_before_it() {
        let mut streams = FencedStreams::new();
        let at = streams.accounts.place(0);
        streams.accounts.issue(at, 150, 0);
        streams.fence(0);
        streams.accounts.issue(at, 40, 0);
        assert_eq!(streams.accounts.behind(), 40, "behind the fence nothing has begun");
        assert_eq!(streams.fences.expected_end(&streams.accounts, 1_000), Some(1_150));
        assert_eq!(streams.poll(), 0);
        streams.reached[0] = 150;
        assert_eq!(streams.poll(), 150);
        assert_eq!(streams.accounts.outstanding(), 40);
        assert!(streams.fences.is_empty());
        assert_eq!(streams.accounts.behind(), 0);
    }

    #[test]
    fn work_behind_a_broken_fence_ends_by_the_clock() {
        let mut streams = FencedStreams::new();
        let at = streams.accounts.place(1);
        streams.accounts.issue(at, 70, 100);
        streams.fence(1);
        let late = 101 + 2 * 70 + DOUBT_NS;
        assert_eq!(streams.accounts.complete_overdue(late, 0), 0, "the fence decides");
        let broken = |_| FenceState::Broken;
        assert_eq!(streams.fences.poll(&streams.accounts, broken, |_, _| {}), 0);
        assert!(streams.fences.is_empty());
        assert_eq!(
            streams.accounts.complete_overdue(late, late),
            0,
            "it may have waited for memory"
        );
        assert_eq!(streams.accounts.complete_overdue(late, 0), 70);
    }

    proptest! {
        /// For every order of launches, fences and progress of the device, work ends once, and only
        /// if its fence was reached. No more fences exist than allowed.
        #[test]
        fn work_ends_once(steps in prop::collection::vec((0..4u8, 0..2usize, 1..100_000u64), 0..200)) {
            let mut streams = FencedStreams::new();
            let (mut issued, mut completed) = ([0; 2], 0);
            for (what, stream, amount) in steps {
                match what {
                    0 => {
                        streams.accounts.issue(streams.accounts.place(stream), amount, 0);
                        issued[stream] += amount;
                    }
                    1 => streams.fence(stream),
                    2 => streams.reached[stream] = (streams.reached[stream] + amount).min(issued[stream]),
                    _ => completed += streams.poll(),
                }
                prop_assert!(completed <= streams.reached.iter().sum::<Ns>());
                prop_assert_eq!(streams.accounts.outstanding(), issued.iter().sum::<Ns>() - completed);
            }
            streams.reached = issued;
            completed += streams.poll();
            // All fenced work has ended, and a fence behind the rest ends that too.
            prop_assert!(streams.fences.is_empty());
            (0..2).for_each(|stream| streams.fence(stream));
            completed += streams.poll();
            prop_assert_eq!(completed, issued.iter().sum::<Ns>());
        }
    }
}
