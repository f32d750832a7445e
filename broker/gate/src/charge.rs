// SPDX-License-Identifier: MIT OR Apache-2.0
//! The charge for work, and whether credit covers it.

use weft_protocol::Ns;
use weft_protocol::credit::epochs_hold;

/// Bytes below which a transfer passes the gate uncharged. At 20 GB/s such a transfer takes 3 us,
/// less than a wait.
pub const SMALL_TRANSFER_BYTES: u64 = 64 * 1024;

/// Ratio that bounds the launch queue: it holds at most `longest wait / QUEUED_WORK_RATIO` of
/// predicted work. The queue may delay a foreground job once per longest wait, so by at most 0.8 %
/// of its time. On a real device that is 8 ms, more than a background job fits into most gaps.
pub const QUEUED_WORK_RATIO: Ns = 128;

/// Predicted time, ns, of a copy or a fill at `mb_per_s`
/// ([`DeviceSpeed`](weft_protocol::lane::DeviceSpeed)).
#[inline]
pub fn copy_time(bytes: u64, mb_per_s: u32) -> Ns {
    bytes.saturating_mul(1_000) / u64::from(mb_per_s.max(1))
}

/// Whether a background job's transfer goes through the gate.
#[inline]
pub fn is_gated(bytes: u64) -> bool {
    bytes >= SMALL_TRANSFER_BYTES
}

/// A cost, ns, as the credit word counts it.
#[inline]
pub fn in_credit(cost: Ns) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

/// Whether `credit` covers a launch. `bound_to`: the sum of launch epochs that the credit is bound
/// to, if any; `sum_above`: that sum now.
///
/// `Orders::take` applies this rule to the shared words, and takes the credit in the same step.
pub fn covers(credit: i64, cost: Ns, bound_to: Option<u64>, sum_above: u64) -> bool {
    credit >= in_credit(cost) && is_valid(bound_to, sum_above)
}

/// Whether the credit holds: unbound, or the launch epochs above have not passed its bound.
pub fn is_valid(bound_to: Option<u64>, sum_above: u64) -> bool {
    bound_to.is_none_or(|epochs| epochs_hold(epochs, sum_above))
}

/// Time, ns, to check against a run-ahead window for a kernel charged `cost` ns. `long`: its likely
/// time, if that is much more.
#[inline]
pub fn long_time(cost: Ns, long: Option<Ns>) -> Ns {
    match long {
        Some(long) => long.max(cost),
        None => cost,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;
    use weft_protocol::epoch_page::EpochPage;
    use weft_protocol::lane::{DeviceSpeed, Lane};

    use super::*;

    #[test]
    fn charges_follow_the_bytes() {
        let speed = DeviceSpeed::default();
        assert_eq!(copy_time(2_000, speed.host_copy_mb_per_s), 100);
        assert_eq!(copy_time(7_000, speed.device_copy_mb_per_s), 10);
        assert_eq!(copy_time(7, 0), 7_000, "a lane without a speed");
        assert!(!is_gated(SMALL_TRANSFER_BYTES - 1) && is_gated(SMALL_TRANSFER_BYTES));
        assert_eq!(in_credit(Ns::MAX), i64::MAX);
        assert_eq!(long_time(10, None), 10);
        assert_eq!(long_time(10, Some(70)), 70);
        assert_eq!(long_time(90, Some(70)), 90);
    }

    proptest! {
        /// The rule on values agrees with the rule on the shared words.
        #[test]
        fn covers_says_what_take_does(
            given in 1..1_000i64, cost in 0..1_200u64, bound: bool, bumps in 0..3u64, priority in 0..10usize,
        ) {
            let (lane, epoch_page) = (Box::<Lane>::default(), Box::<EpochPage>::default());
            lane.orders.epoch.store(5, Ordering::Relaxed);
            let bound_to = bound.then(|| epoch_page.sum_above(5));
            lane.orders.grant(given, bound_to);
            for _ in 0..bumps {
                epoch_page.bump(priority);
            }
            let expected = covers(given, cost, bound_to, epoch_page.sum_above(5));
            prop_assert_eq!(lane.orders.take(&epoch_page, in_credit(cost)), expected);
        }
    }
}
