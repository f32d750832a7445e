//! Fences behind a background job's work: when one is due, and what is known without one.

use weft_protocol::Ns;

/// Predicted work between two fences of a stream, ns. A fence costs about 1 us: 1 % at most. It is
/// a fifth of the usual delay bound (500 us), so the broker's view is fine enough.
pub const FENCE_QUANTUM_NS: Ns = 100_000;

/// Shortest time between two fences while credit is plenty, ns: no launch waits for them then.
pub const FENCE_PAUSE_NS: Ns = 50_000;

/// Credit is plenty above this multiple of the unfenced work.
pub const PLENTY_RATIO: Ns = 4;

/// Pending fences of a process. Beyond that work goes without.
pub const MAX_FENCES: usize = 32;

/// Unfenced work counts as ended after `last launch + DOUBT_RATIO * outstanding + DOUBT_NS`.
const DOUBT_RATIO: Ns = 2;
/// Constant part, ns. A driver's queue delays some us; another process's time slice lasts about 1.5
/// ms.
const DOUBT_NS: Ns = 5_000_000;

/// Synchronisations of other streams after which a silent one counts as ended.
pub const SILENT_SYNCS: u32 = 4;

/// Whether a fence is due behind a stream's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceDue {
    /// Too little work is unfenced.
    No,
    /// The next launch will not wait for it: at most one each [`FENCE_PAUSE_NS`].
    Rarely,
    /// The next launch may wait for it.
    Now,
}

/// Whether a fence is due behind `unfenced` ns of work, while the credit word holds `credit`.
///
/// The simulation takes `Rarely` for `No`: its clients put no fences for the broker's sake alone.
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

/// Whether unfenced work counts as ended by the clock. `last`: time of the last launch, ns.
#[inline]
pub fn is_overdue(now: Ns, last: Ns, outstanding: Ns) -> bool {
    let latest = last
        .saturating_add(outstanding.saturating_mul(DOUBT_RATIO))
        .saturating_add(DOUBT_NS);
    now > latest
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn unfenced_work_ends_long_after_its_time() {
        assert!(!is_overdue(100 + 2 * 70 + DOUBT_NS, 100, 70));
        assert!(is_overdue(101 + 2 * 70 + DOUBT_NS, 100, 70));
        assert!(!is_overdue(Ns::MAX, 100, Ns::MAX));
    }
}
