// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launches that a run-ahead window admits, and the next look of a launch that it holds back.
//!
//! Such a launch first waits only for the device
//! ([`DeviceSpeed::device_wait`](weft_protocol::lane::DeviceSpeed)): most kernels end sooner. Only
//! then does the client report the wait to the broker.

use weft_protocol::Ns;
use weft_protocol::credit::{MayLaunch, RunAheadWindow};

/// Shortest poll interval during this wait, ns; a poll costs about 1 us.
pub const POLL_INTERVAL_NS: Ns = 2_000;

/// Most polls during this wait: one every [`POLL_INTERVAL_NS`] on a device of the usual speed.
pub const POLLS: u64 = 250;

/// Divisor of the remaining time: a launch that the clock holds back looks again after this part of
/// it. So there are few looks, and the next look sees an early end.
const EARLY_LOOK_DIVISOR: u64 = 4;

/// Whether the window, if any, admits a launch of `takes` ns after `backlog` ns of work.
#[inline]
pub fn may_launch(window: Option<RunAheadWindow>, now: Ns, backlog: Ns, takes: Ns) -> MayLaunch {
    match window {
        None => MayLaunch::Now,
        Some(window) => window.may_launch(now, backlog, takes),
    }
}

/// Duration, ns, to check against the window for a launch that waits for the broker.
///
/// Under the window of its arrival a launch needs its `long` estimate. A window issued later
/// accounts for that time, so the charged `cost` is enough.
pub fn takes_while_waiting(
    window: Option<RunAheadWindow>,
    deadline_at_arrival: Option<Ns>,
    cost: Ns,
    long: impl FnOnce() -> Ns,
) -> Ns {
    match window.map(|window| window.deadline) == deadline_at_arrival {
        true => long(),
        false => cost,
    }
}

/// Time of the next look of a launch that waits only for the device; `None`: the client must report
/// the wait to the broker.
///
/// `by_fences`: fences hold the launch back, not the clock. `awaits_end`: outstanding work has a
/// fence, whose end returns credit. That end may come before the clock's time. So a launch that the
/// clock holds back also looks before its time is over.
pub fn next_look(now: Ns, may: MayLaunch, by_fences: bool, awaits_end: bool) -> Option<Ns> {
    let poll = now.saturating_add(POLL_INTERVAL_NS);
    match may {
        MayLaunch::Never => None,
        MayLaunch::At(at) if !by_fences && !awaits_end => Some(at),
        MayLaunch::At(at) if !by_fences => Some((now + at.saturating_sub(now) / EARLY_LOOK_DIVISOR).max(poll).min(at)),
        MayLaunch::Now if !awaits_end => None,
        MayLaunch::At(_) | MayLaunch::Now => Some(poll),
    }
}

/// Predicted end of a client's work after a launch of `cost` ns.
#[inline]
pub fn end_after_launch(predicted_end: Ns, now: Ns, cost: Ns) -> Ns {
    predicted_end.max(now).saturating_add(cost)
}

/// Upper bound of that end: the device has at most the outstanding work.
#[inline]
pub fn latest_end(now: Ns, outstanding: Ns) -> Ns {
    now.saturating_add(outstanding)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: RunAheadWindow = RunAheadWindow {
        safe_until: 100_000,
        deadline: 1_000_000,
        long_deadline: 1_000_000,
        long_from: Ns::MAX,
        max_backlog: 10_000,
        non_refundable: 0,
    };

    #[test]
    fn without_a_window_only_credit_counts() {
        assert_eq!(may_launch(None, 5, Ns::MAX, Ns::MAX), MayLaunch::Now);
        assert_eq!(may_launch(Some(WINDOW), 0, 60_000, 40_001), MayLaunch::At(50_000));
    }

    #[test]
    fn a_window_issued_during_the_wait_needs_the_charged_cost_only() {
        let takes = |window, at_arrival| takes_while_waiting(window, at_arrival, 10, || 70);
        assert_eq!(takes(Some(WINDOW), Some(WINDOW.deadline)), 70);
        assert_eq!(takes(Some(WINDOW), Some(999)), 10);
        assert_eq!(takes(Some(WINDOW), None), 10);
        assert_eq!(takes(None, None), 70);
    }

    #[test]
    fn a_launch_held_back_looks_again_or_tells_the_broker() {
        let poll = Some(7 + POLL_INTERVAL_NS);
        assert_eq!(next_look(7, MayLaunch::Never, true, true), None);
        assert_eq!(next_look(7, MayLaunch::At(90), false, false), Some(90));
        assert_eq!(next_look(7, MayLaunch::At(90), true, false), poll);
        // An end may come before the clock's time.
        assert_eq!(next_look(7, MayLaunch::At(90), false, true), Some(90));
        assert_eq!(next_look(7, MayLaunch::At(80_007), false, true), Some(20_007));
        assert_eq!(next_look(7, MayLaunch::At(4_007), false, true), poll);
        assert_eq!(next_look(7, MayLaunch::Now, false, true), poll);
        assert_eq!(next_look(7, MayLaunch::Now, true, false), None);
    }

    proptest! {
        /// A launch that looks at the returned time may go then, or never, if only the clock
        /// decides.
        #[test]
        fn the_clock_opens_the_window(
            now in 0..2_000_000u64, backlog in 0..2_000_000u64, takes in 0..1_000_000u64,
        ) {
            if let MayLaunch::At(at) = may_launch(Some(WINDOW), now, backlog, takes) {
                prop_assert!(at > now);
                let end = end_after_launch(0, now, backlog);
                let then = may_launch(Some(WINDOW), at, end.saturating_sub(at), takes);
                prop_assert_eq!(then, MayLaunch::Now);
            }
        }

        #[test]
        fn the_predicted_end_counts_each_launch_once(
            now in 0..u64::MAX / 4, costs in prop::collection::vec(0..1_000_000u64, 0..20),
        ) {
            let end = costs.iter().fold(0, |end, cost| end_after_launch(end, now, *cost));
            let sum: Ns = costs.iter().sum();
            if !costs.is_empty() {
                prop_assert_eq!(end, latest_end(now, sum));
            }
        }
    }
}
