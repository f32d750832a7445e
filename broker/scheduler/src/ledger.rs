// SPDX-License-Identifier: MIT OR Apache-2.0
//! Account of a background job's credit.
//!
//! * granted = issued + revoked + left, exactly, whatever a client reports.
//! * outstanding = issued - settled >= 0.
//! * `issued` and `settled` are the client's claims: they only grow, and only by possible amounts.

use weft_protocol::Ns;

/// Account of credit, in predicted GPU ns since the client attached.
#[derive(Debug, Clone, Default)]
pub(super) struct CreditLedger {
    granted: Ns,
    issued: Ns,
    settled: Ns,
    /// Below zero if overdrawn credit was forgiven.
    revoked: i64,
    written_off: Ns,
    /// The part of `granted` that was replenished under run-ahead windows.
    renewed: Ns,
    /// Ended work that is not replenished, by the last run-ahead window.
    non_refundable: Option<Ns>,
    /// Most that is believed of `renewed` since the last window ended.
    renewable: Option<Ns>,
    /// The part of `left` that was taken without a report and is no longer awaited.
    given_up: Ns,
}

/// Change by a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub issued: Ns,
    /// Newly seen to end.
    pub settled: Ns,
    /// Whether the report was impossible.
    pub corrected: bool,
}

impl CreditLedger {
    pub(super) fn granted(&self) -> Ns {
        self.granted
    }

    pub(super) fn renewed(&self) -> Ns {
        self.renewed
    }

    pub(super) fn issued(&self) -> Ns {
        self.issued
    }

    pub(super) fn settled(&self) -> Ns {
        self.settled
    }

    pub(super) fn revoked(&self) -> i64 {
        self.revoked
    }

    pub(super) fn written_off(&self) -> Ns {
        self.written_off
    }

    /// Unused credit. Below zero if overdrawn.
    pub(super) fn left(&self) -> i64 {
        signed(self.granted) - signed(self.issued) - self.revoked
    }

    pub(super) fn usable(&self) -> Ns {
        self.left().max(0).unsigned_abs()
    }

    /// Work issued beyond all credit.
    pub(super) fn overdrawn(&self) -> Ns {
        self.left().min(0).unsigned_abs()
    }

    /// Issued work that was not seen to end.
    pub(super) fn outstanding(&self) -> Ns {
        self.issued - self.settled
    }

    /// Work that may be on the device or come there without another grant.
    pub(super) fn exposure(&self) -> Ns {
        self.usable().saturating_add(self.outstanding())
    }

    pub(super) fn grant(&mut self, credit: Ns) {
        self.granted = self.granted.saturating_add(credit);
    }

    /// Takes in a new run-ahead window. The word was emptied before, so all credit replenished
    /// under the last window is reported.
    pub(super) fn let_out(&mut self, non_refundable: Ns) {
        (self.non_refundable, self.renewable) = (Some(non_refundable), None);
    }

    /// Ends the run-ahead window: work that ends from now on is not replenished.
    pub(super) fn close(&mut self) {
        self.renewable = Some(self.most_renewed());
    }

    fn most_renewed(&self) -> Ns {
        let most = self
            .non_refundable
            .map_or(0, |non_refundable| self.settled.saturating_sub(non_refundable));
        self.renewable.map_or(most, |renewable| most.min(renewable))
    }

    /// Most that may be out under the run-ahead window without another grant, ns.
    pub(super) fn regrown(&self) -> Ns {
        let never_back = self.renewed.saturating_add(self.non_refundable.unwrap_or(0));
        let most = signed(self.granted) - signed(never_back) - self.revoked;
        most.max(0).unsigned_abs()
    }

    /// Takes in the total of replenished credit. Returns whether the window allows it.
    pub(super) fn renew(&mut self, total: Ns) -> bool {
        let believed = total.clamp(self.renewed, self.most_renewed().max(self.renewed));
        self.grant(believed - self.renewed);
        self.renewed = believed;
        believed == total
    }

    /// Ended work that must not be replenished, so that at most `most` is out after a grant of
    /// `credit`.
    pub(super) fn non_refundable(&self, credit: Ns, most: Ns) -> Ns {
        let out = self.exposure().saturating_add(credit).min(most);
        let given = signed(self.granted.saturating_add(credit) - self.renewed) - self.revoked - signed(out);
        given.max(0).unsigned_abs()
    }

    /// Takes in reported totals. `most`: work that one launch can issue beyond its credit, ns.
    pub(super) fn report(&mut self, issued: Ns, settled: Ns, most: Ns) -> Change {
        let ceiling = self.issued.saturating_add(self.usable()).saturating_add(most);
        let new_issued = issued.clamp(self.issued, ceiling);
        // Work that was written off may still be reported.
        let new_settled = settled.clamp(self.settled, new_issued.max(self.settled));
        let change = Change {
            issued: new_issued - self.issued,
            settled: new_settled - self.settled,
            corrected: new_issued != issued || settled > new_issued,
        };
        self.issued = new_issued;
        self.settled = new_settled;
        self.given_up = self.given_up.saturating_sub(change.issued).min(self.usable());
        change
    }

    /// Takes in the content of the credit word, which was swapped to zero. `most`: work that one
    /// launch can issue beyond its credit, ns. Returns whether `left` was possible.
    pub(super) fn revoke(&mut self, left: i64, most: Ns) -> bool {
        // The word held at most `left()`, which still includes issued but unreported work.
        let least = self.left().min(0).saturating_sub(signed(most));
        let believed = left.clamp(least, self.left());
        self.revoked = self.revoked.saturating_add(believed);
        self.given_up = self.given_up.min(self.usable());
        believed == left
    }

    /// Stops waiting for `untold` ns taken and never reported. A later report issues them.
    pub(super) fn give_up(&mut self, untold: Ns) {
        let untold = untold.min(self.usable().saturating_sub(self.given_up));
        self.given_up = self.given_up.saturating_add(untold);
        self.written_off = self.written_off.saturating_add(untold);
    }

    /// Credit taken and not reported yet, ns, without the credit given up.
    pub(super) fn untold(&self, word: i64) -> Ns {
        let taken = self.left().saturating_sub(word).max(0).unsigned_abs();
        taken.saturating_sub(self.given_up)
    }

    pub(super) fn write_off(&mut self) {
        self.written_off = self.written_off.saturating_add(self.outstanding());
        self.settled = self.issued;
    }
}

/// Totals stay far below 2^62 ns (146 years): [`CreditLedger::report`] bounds each report.
fn signed(total: Ns) -> i64 {
    i64::try_from(total).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST_NS: Ns = 1_000_000;

    #[test]
    fn credit_goes_from_left_to_outstanding_to_settled() {
        let mut ledger = CreditLedger::default();
        ledger.grant(100);
        assert_eq!((ledger.left(), ledger.outstanding(), ledger.exposure()), (100, 0, 100));
        ledger.report(60, 0, MOST_NS);
        assert_eq!((ledger.left(), ledger.outstanding(), ledger.exposure()), (40, 60, 100));
        ledger.report(60, 60, MOST_NS);
        assert_eq!((ledger.left(), ledger.outstanding(), ledger.exposure()), (40, 0, 40));
        assert!(ledger.revoke(40, MOST_NS));
        assert_eq!((ledger.left(), ledger.exposure()), (0, 0));
    }

    #[test]
    fn a_launch_on_its_way_when_credit_is_taken_back_is_not_lost() {
        let mut ledger = CreditLedger::default();
        ledger.grant(100);
        // The client took 30 without reporting it: 70 were in the word.
        assert!(ledger.revoke(70, MOST_NS));
        assert_eq!((ledger.left(), ledger.exposure()), (30, 30));
        ledger.report(30, 0, MOST_NS);
        assert_eq!((ledger.left(), ledger.outstanding()), (0, 30));
    }

    #[test]
    fn work_that_ends_after_a_window_is_not_replenished() {
        let mut ledger = CreditLedger::default();
        ledger.grant(100);
        ledger.let_out(0);
        ledger.report(80, 60, MOST_NS);
        ledger.close();
        ledger.grant(100);
        ledger.report(180, 180, MOST_NS);
        // A launch that read the window in time, and a claim of all.
        assert!(ledger.renew(60));
        assert!(!ledger.renew(180));
        assert_eq!(ledger.left(), 80);
        ledger.let_out(100);
        assert!(ledger.renew(80));
    }

    #[test]
    fn overdrawn_credit_is_a_debt_until_it_is_forgiven() {
        let mut ledger = CreditLedger::default();
        ledger.grant(10);
        ledger.report(50, 50, MOST_NS);
        assert_eq!((ledger.left(), ledger.usable()), (-40, 0));
        assert!(ledger.revoke(-40, MOST_NS));
        assert_eq!(ledger.left(), 0);
    }

    #[test]
    fn reports_that_cannot_be_are_corrected() {
        let mut ledger = CreditLedger::default();
        ledger.grant(100);
        assert!(ledger.report(u64::MAX, 0, MOST_NS).corrected);
        assert_eq!(ledger.issued(), 100 + MOST_NS);
        assert!(ledger.report(5, 0, MOST_NS).corrected, "backwards");
        assert!(
            ledger.report(100 + MOST_NS, u64::MAX, MOST_NS).corrected,
            "settled more than issued"
        );
        assert_eq!(ledger.outstanding(), 0);
        assert!(!ledger.revoke(i64::MAX, MOST_NS));
    }

    #[test]
    fn what_was_given_up_does_not_come_back_until_more_is_taken() {
        let mut ledger = CreditLedger::default();
        ledger.grant(100);
        assert_eq!(ledger.untold(0), 100);
        ledger.give_up(100);
        assert_eq!((ledger.untold(0), ledger.written_off()), (0, 100));
        ledger.grant(30);
        assert_eq!((ledger.untold(30), ledger.untold(10)), (0, 20));
        ledger.report(100, 0, MOST_NS);
        assert_eq!((ledger.left(), ledger.untold(0)), (30, 30), "reported after all");
    }

    #[test]
    fn written_off_work_is_not_counted_twice() {
        let mut ledger = CreditLedger::default();
        ledger.grant(100);
        ledger.report(100, 20, MOST_NS);
        ledger.write_off();
        assert_eq!((ledger.outstanding(), ledger.written_off()), (0, 80));
        let change = ledger.report(100, 50, MOST_NS);
        assert_eq!((change.settled, change.corrected), (0, false));
        ledger.grant(10);
        ledger.report(110, 100, MOST_NS);
        assert_eq!(ledger.outstanding(), 10);
    }

    proptest! {
        #[test]
        fn credit_is_conserved(steps in prop::collection::vec((0u8..4, any::<u64>(), any::<u64>()), 0..60)) {
            let mut ledger = CreditLedger::default();
            for (what, a, b) in steps {
                match what {
                    0 => ledger.grant(a % 10_000_000),
                    1 => { ledger.report(a, b, MOST_NS); }
                    2 => { ledger.report(a % 100_000_000, b % 100_000_000, MOST_NS); }
                    _ => { ledger.revoke(a as i64, MOST_NS); }
                }
                let sum = i128::from(ledger.issued()) + i128::from(ledger.revoked()) + i128::from(ledger.left());
                prop_assert_eq!(i128::from(ledger.granted()), sum);
                prop_assert!(ledger.exposure() >= ledger.outstanding());
            }
        }
    }
}
