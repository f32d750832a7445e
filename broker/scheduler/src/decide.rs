//! Deciding: makes decisions of the policy's verdicts, and looks after the clients that it leaves
//! out.

use super::{
    Core, Decision, Ns,
    client::{ClientState, Long},
    policy::{self, TopUp, Verdict},
    queue::Slot,
    timeline::Phase,
};
use weft_protocol::{credit::RunAheadWindow, lane::Mode};

impl Core {
    /// Revokes credit that can still be used.
    pub(super) fn order_revocation(&mut self, slot: Slot, out: &mut Vec<Decision>) {
        if self.state.get(slot).is_some_and(ClientState::revocable) {
            self.empty(slot, out);
        }
    }

    /// Has a client's credit word swapped to zero, whatever is in it.
    pub(super) fn empty(&mut self, slot: Slot, out: &mut Vec<Decision>) {
        let now = self.now;
        let Some(client) = self.state.get_mut(slot) else { return };
        if client.ledger.left() == 0 || client.revoking.is_some() {
            return;
        }
        client.revoking = Some(now);
        client.long = None;
        client.window = None;
        client.granted_since = false;
        out.push(Decision::Revoke(client.id));
        self.state.account(slot, |_| ());
        self.state.counters.revocations += 1;
    }

    /// Tells a client its run-ahead window, if it changed.
    fn set_window(&mut self, slot: Slot, window: Option<RunAheadWindow>, out: &mut Vec<Decision>) {
        self.leased |= window.is_some();
        let Some(client) = self.state.get_mut(slot).filter(|client| client.window != window) else {
            return;
        };
        client.window = window;
        out.push(Decision::RunAheadWindow(client.id, window));
        self.state.account(slot, |ledger| {
            if let Some(window) = window {
                ledger.let_out(window.non_refundable);
            }
        });
    }

    /// Ends a waiting client's run-ahead window. What is out is certain only once no credit comes
    /// back. The answer puts the client into the queue.
    pub(super) fn end_window(&mut self, slot: Slot, out: &mut Vec<Decision>) {
        self.set_window(slot, None, out);
        let now = self.now;
        let Some(client) = self.state.get_mut(slot).filter(|client| client.revoking.is_none()) else {
            return;
        };
        client.revoking = Some(now);
        client.granted_since = false;
        out.push(Decision::Revoke(client.id));
    }

    /// Moves run-ahead windows: without the foreground job, its return is expected later and later.
    fn look_after_windows(&mut self, out: &mut Vec<Decision>) {
        // With several background jobs there is no window, once the last one has ended.
        let alone = self.state.has_one_background();
        if !self.leased {
            return;
        }
        self.leased = alone;
        for at in 0..self.state.exposed.len() {
            let slot = self.state.exposed[at];
            let Some(client) = self.state.get(slot) else { continue };
            let (Some(old), None) = (client.window.filter(|_| client.bound), client.revoking) else {
                continue;
            };
            // Credit that comes back to one job is not there for another: among several, the broker
            // shares it out.
            if !alone {
                self.set_window(slot, None, out);
                continue;
            }
            // A foreground job that works has ended the window by its launch epoch.
            let Some((new, again)) = self.policy.window(&self.state, slot, self.now) else {
                continue;
            };
            if differs(&old, &new, self.now) {
                self.set_window(slot, Some(new), out);
            }
            self.wake_at(Some(again));
        }
    }

    /// Grants more to a background job before it asks, while no other wants credit: one stop at the
    /// gate less.
    pub(super) fn top_up(&mut self, slot: Slot, out: &mut Vec<Decision>) {
        if !self.state.queue.is_empty() {
            return;
        }
        let Some(client) = self.state.get(slot) else { return };
        let wanted = client.mode == Mode::Background
            && client.wait.is_none()
            && client.revoking.is_none()
            && client.window.is_none()
            && client.bound;
        if !wanted {
            return;
        }
        match self.policy.top_up(&self.state, slot, self.now) {
            TopUp::To(total) => self.grant(slot, total, true, out),
            TopUp::At(at) => self.wake_at(Some(at)),
            TopUp::No => {}
        }
    }

    /// Brings a background job's unused credit up to `total` ns.
    pub(super) fn grant(&mut self, slot: Slot, total: Ns, bound: bool, out: &mut Vec<Decision>) {
        let (now, half) = (self.now, self.state.config.delay_bound / 2);
        let foresees = self.state.foresees();
        let wanted = i64::try_from(total).unwrap_or(i64::MAX);
        if foresees {
            let window = if bound && self.state.has_one_background() {
                self.policy.window(&self.state, slot, now)
            } else {
                None
            };
            self.wake_at(window.map(|(_, again)| again));
            let window = window.zip(self.state.get(slot)).map(|((window, _), client)| {
                let credit = wanted.saturating_sub(client.ledger.left()).max(0).unsigned_abs();
                // A foreground job may have work out from its time as a background job.
                let others = self.state.exposure.saturating_sub(client.counted);
                let non_refundable = client.ledger.non_refundable(credit, (2 * half).saturating_sub(others));
                RunAheadWindow {
                    non_refundable,
                    ..window
                }
            });
            self.set_window(slot, window, out);
        }
        let Some(client) = self.state.get_mut(slot) else { return };
        let long = client.queued.map(|entry| entry.cost).filter(|cost| *cost > half);
        let long = long.map(|cost| Long {
            cost,
            total: client.ledger.issued().saturating_add(cost),
        });
        // `weft` goes by the clock, so a long kernel counts until it is seen to end.
        client.long = long.or(client.long.filter(|_| foresees && client.long_out() > 0));
        let credit = wanted.saturating_sub(client.ledger.left()).max(0).unsigned_abs();
        client.bound = bound;
        client.granted_at = now;
        client.emptied_at = None;
        client.granted_since = true;
        client.unreported = true;
        out.push(Decision::Grant {
            client: client.id,
            credit,
            bound,
        });
        self.state.account(slot, |ledger| ledger.grant(credit));
        self.state.unqueue(slot);
        self.state.counters.grants += 1;
        // A client that does not go, because an untold launch epoch voided the credit, is looked
        // after then.
        if self.state.get(slot).is_some_and(|client| client.wait.is_some()) {
            self.wake_at(Some(now.saturating_add(self.state.config.stuck_after)));
        }
    }

    /// Asks the policy until it has no verdict left, and looks after the clients that it leaves
    /// out.
    pub(super) fn decide(&mut self, out: &mut Vec<Decision>) {
        self.wake = None;
        if self.state.foresees() {
            self.look_after_windows(out);
        }
        if self.state.waiting == 0 {
            if let [slot] = self.state.exposed[..]
                && self.state.foresees()
            {
                self.top_up(slot, out);
            }
            return;
        }
        self.look_after_turns(out);
        self.look_after_exposed(out);
        // Due clients come first, else the policy would grant again and again what was revoked for
        // them.
        if self.policy.shares_minimum() && !self.share_minimum(out) {
            return;
        }
        while !self.state.queue.is_empty() {
            let verdict = match self.serve_turn() {
                Some(verdict) => verdict,
                None => self.policy.next(&self.state, self.now),
            };
            match verdict {
                Verdict::Grant { slot, total, bound } => {
                    self.count_gap();
                    self.grant(slot, total, bound, out);
                }
                Verdict::Revoke(slot) => self.order_revocation(slot, out),
                Verdict::Nothing(again) => {
                    self.wake_at(again);
                    break;
                }
            }
        }
    }

    pub(super) fn wake_at(&mut self, at: Option<Ns>) {
        let Some(at) = at else { return };
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    pub(super) fn count_gap(&mut self) {
        if self.state.foreground_jobs.is_empty() {
            return;
        }
        let gap = match self.state.phase(self.now) {
            Phase::Gap { since, .. } => (since, true),
            Phase::Open { since } => (since, false),
            Phase::Busy { .. } => return,
        };
        if self.counted_gap != Some(gap) {
            self.counted_gap = Some(gap);
            match gap.1 {
                true => self.state.counters.gaps += 1,
                false => self.state.counters.open_gaps += 1,
            }
        }
    }

    /// Keeps work that never ends from holding up other clients or its own.
    pub(super) fn look_after_exposed(&mut self, out: &mut Vec<Decision>) {
        let now = self.now;
        let (write_off_after, stuck_after) = (self.state.config.write_off_after, self.state.config.stuck_after);
        let mut at = 0;
        while let Some(slot) = self.state.exposed.get(at).copied() {
            at += 1;
            let Some(client) = self.state.get_mut(slot) else {
                continue;
            };
            let outstanding = client.ledger.outstanding();
            // At most twenty times `write_off_after`. Launches without credit count once, not ten
            // times: one each millisecond behind work that never ends would prolong the wait faster
            // than time passes.
            let over = outstanding.min(client.ledger.overdrawn());
            let patience = (outstanding - over)
                .saturating_mul(10)
                .saturating_add(over)
                .min(write_off_after.saturating_mul(20));
            let lost = client
                .progress_at
                .saturating_add(write_off_after)
                .saturating_add(patience);
            if client
                .revoking
                .is_some_and(|since| now > since.saturating_add(write_off_after))
            {
                // The answer never came: count the credit as revoked.
                client.revoking = None;
                let left = client.ledger.left();
                self.state.account(slot, |ledger| ledger.revoke(left, 0));
                self.requeue(slot);
                at = 0;
                continue;
            }
            let idle_credit = !client.barred || client.revocable();
            if client.wait.is_some() && client.queued.is_none() && client.revoking.is_none() && idle_credit {
                // The client has credit and does not go: an unseen launch epoch has voided it.
                // Begin again.
                let due = client.granted_at.saturating_add(stuck_after);
                if now < due {
                    self.wake_at(Some(due));
                } else {
                    self.order_revocation(slot, out);
                }
                continue;
            }
            if outstanding == 0 {
                // A thread died or stands still before its report, or the client lies.
                if client.wants().is_some() && (client.untold > 0 || client.unreported) {
                    let due = lost.max(client.granted_at.saturating_add(write_off_after));
                    match now < due {
                        true => self.wake_at(Some(due)),
                        false => {
                            self.state.give_up_untold(slot);
                            self.state.counters.write_offs += 1;
                        }
                    }
                }
                continue;
            }
            // A client that launches on behind work that never ends must not keep others waiting.
            let lost = client.ended_at.saturating_add(write_off_after).saturating_add(patience);
            if now >= lost {
                self.state.account(slot, |ledger| ledger.write_off());
                self.state.counters.write_offs += 1;
                // The list has changed; it is short.
                at = 0;
                continue;
            }
            // Also for a client out of turn: its next launch may be what ends its work.
            let stuck = client.wants().map(|wait| {
                let since = client.progress_at.max(client.granted_at).max(wait.since);
                let out_of_turn = client.crowded.filter(|_| client.barred).unwrap_or(0) / 4;
                let patience = stuck_after.saturating_add(outstanding.saturating_mul(2));
                (since.saturating_add(patience).saturating_add(out_of_turn), wait.cost)
            });
            self.wake_at(Some(lost));
            match stuck {
                Some((due, cost)) if now >= due => {
                    self.state.counters.stuck_grants += 1;
                    self.grant(slot, cost, false, out);
                }
                Some((due, _)) => self.wake_at(Some(due)),
                None => {}
            }
        }
    }

    /// Grants to due clients one at a time, at most the minimum share together. False: the due
    /// client waits for work to end, and comes before any other grant.
    pub(super) fn share_minimum(&mut self, out: &mut Vec<Decision>) -> bool {
        let share = self.state.config.minimum_share;
        if share <= 0.0 {
            return true;
        }
        while let Some((due, slot)) = self.state.queue.first_due() {
            let at = due.max(self.next_share);
            if self.now < at {
                self.wake_at(Some(at));
                return true;
            }
            let entry = self.state.get(slot).and_then(|client| client.queued);
            let (cost, long) = entry.map_or((1, 1), |entry| (entry.cost, entry.long));
            if !self.state.admits(slot, cost) {
                let again = match policy::make_room(&self.state, slot, cost, self.now) {
                    Verdict::Revoke(other) => {
                        self.order_revocation(other, out);
                        self.state.drained(slot, cost, self.now)
                    }
                    Verdict::Nothing(Some(again)) => again,
                    _ => self.state.drained(slot, cost, self.now),
                };
                self.wake_at(Some(again));
                return false;
            }
            let portion = self.portion(slot, cost, long);
            self.next_share = self.now.saturating_add(self.state.patience(long.max(portion)));
            self.state.counters.starvation_grants += 1;
            if let Some(client) = self.state.get_mut(slot) {
                client.starved += 1;
            }
            self.grant(slot, portion, false, out);
        }
        true
    }

    /// Credit of a due client, in ns: its kernel; under `weft` what is due for `share_every`.
    fn portion(&self, slot: Slot, cost: Ns, long: Ns) -> Ns {
        if !self.state.foresees() || long > cost {
            return cost;
        }
        let config = &self.state.config;
        let due = (config.share_every as f64 * config.minimum_share) as Ns;
        let room = config.delay_bound.saturating_sub(self.state.exposure_before(slot));
        cost.max(due.saturating_sub(2 * config.switch_cost).min(room))
    }
}

/// Whether two run-ahead windows differ by more than an eighth of the time they have left, or in
/// backlog.
fn differs(old: &RunAheadWindow, new: &RunAheadWindow, now: Ns) -> bool {
    let moved = |old: Ns, new: Ns| old.abs_diff(new) > new.saturating_sub(now) / 8;
    moved(old.deadline, new.deadline)
        || moved(old.safe_until.max(now), new.safe_until.max(now))
        || old.max_backlog != new.max_backlog
}
