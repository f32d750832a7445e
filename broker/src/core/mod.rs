//! The scheduler as a pure state machine: events and the time go in, decisions come out. No clock, no thread, no socket.
//!
//! The same core runs in the daemon (real time) and in the lab (virtual time), so a failing schedule is a seed.
//!
//! # How to drive it
//!
//! Tell it what happened with [`Core::handle`], carry out the [`Decision`]s in their order, tell it [`Event::Tick`] at [`Core::next_wake`] at
//! the latest. In each turn: read the board's signs, then the lanes' records (launches, idle), then their reports ([`Event::Progress`],
//! then [`Event::Waits`] for each lane that says it waits, as often as it says so), then act.
//!
//! # What holds
//!
//! * A holder is never told to wait, and a job that is alone is told nothing more.
//! * What fillers have out (credit not used yet and work whose end was not seen) is at most the larger of [`Config::delay_bound`] and half of it plus one
//!   kernel. The one exception: a filler whose own work does not end gets its next launch, one after each [`Config::stuck_after`].
//! * Credit is conserved: granted = issued + revoked + left, for each client, whatever it reports.
//! * A client that is gone holds nothing.
//! * Every filler that waits gets credit in the end: by a gap, by its turn, or by the minimum share.
//!
//! # Where is what
//!
//! `timeline` and `gaps` predict the holder; `ledger` keeps a filler's credit; `queue` finds who fits; `policy` decides; `state` holds all of it; this file
//! takes events in and carries verdicts out.
#![forbid(unsafe_code)]

mod client;
mod config;
mod event;
mod gaps;
mod ledger;
mod policy;
mod queue;
mod snapshot;
mod state;
mod timeline;

pub use config::{Config, PolicyName, UnknownPolicy};
pub use event::{Client, Decision, Event};
pub use snapshot::{ClientView, Counters, GapView, Snapshot, WaitView};

use client::{ClientState, Wait};
use gaps::Gaps;
use policy::{Policy, Verdict};
use queue::Slot;
use state::State;
use timeline::Phase;

use crate::protocol::PRIORITIES;
pub use crate::protocol::{Ns, lane::Mode};

/// The scheduler.
#[derive(Debug)]
pub struct Core {
    state: State,
    policy: Box<dyn Policy>,
    now: Ns,
    wake: Option<Ns>,
    /// Nobody gets a minimum share before this.
    next_share: Ns,
    /// The gap that was counted last, by its begin, and whether it was of known length.
    counted_gap: Option<(Ns, bool)>,
}

impl Core {
    /// With no client.
    pub fn new(config: Config) -> Core {
        Core {
            policy: policy::by_name(config.policy),
            state: State::new(config),
            now: 0,
            wake: None,
            next_share: 0,
            counted_gap: None,
        }
    }

    /// What was chosen.
    pub fn config(&self) -> &Config {
        &self.state.config
    }

    /// Takes in what happened and appends what to do about it to `out`. `now` never goes backwards; if it does it counts as the last one.
    pub fn handle(&mut self, now: Ns, event: Event, out: &mut Vec<Decision>) {
        self.now = self.now.max(now);
        self.state.counters.events += 1;
        match event {
            Event::Attached {
                client,
                priority,
                profile,
            } => {
                if self.state.slot(client).is_some() {
                    self.state.counters.strangers += 1;
                    return;
                }
                let gaps = profile.map(|profile| Gaps::of(&profile)).unwrap_or_default();
                let priority = self.priority(priority);
                let class = self.policy.class(priority);
                let doubt = if gaps.is_empty() { self.state.config.doubt } else { 0.0 };
                self.state
                    .add(ClientState::new(client, priority, class, gaps, doubt, self.now));
                self.assign_modes(out);
            }
            Event::Gone(client) => {
                let Some(slot) = self.known(client) else { return };
                self.policy.forget(slot);
                self.state.remove(slot);
                self.assign_modes(out);
            }
            Event::Priority(client, priority) => {
                let Some(slot) = self.known(client) else { return };
                let priority = self.priority(priority);
                self.policy.forget(slot);
                let class = self.policy.class(priority);
                if let Some(client) = self.state.get_mut(slot) {
                    (client.priority, client.class) = (priority, class);
                }
                self.requeue(slot);
                self.assign_modes(out);
            }
            Event::Launched {
                client,
                kernel,
                cost,
                at,
            } => {
                let Some(slot) = self.known(client) else { return };
                if !self.launched(slot, kernel, cost, at, out) {
                    return;
                }
            }
            Event::Idle(client, at) => {
                let Some(slot) = self.known(client) else { return };
                let at = self.past(at);
                if let Some(client) = self.state.get_mut(slot) {
                    client.timeline.idle(at);
                }
            }
            Event::Stirred(client, at) => {
                let Some(slot) = self.known(client) else { return };
                let at = self.past(at);
                if let Some(client) = self.state.get_mut(slot) {
                    client.timeline.stir(at);
                    client.active_at = client.active_at.max(at);
                }
                if self.state.mode(slot) == Some(Mode::Holder) {
                    self.holder_is_back(out);
                }
            }
            Event::Waits {
                client,
                kernel,
                cost,
                since,
            } => {
                let Some(slot) = self.known(client) else { return };
                self.waits(slot, kernel, cost, since);
            }
            Event::Passed(client) => {
                let Some(slot) = self.known(client) else { return };
                self.state.pass(slot);
                return self.decide_soon();
            }
            Event::Progress {
                client,
                issued,
                settled,
            } => {
                let Some(slot) = self.known(client) else { return };
                if !self.progress(slot, issued, settled, out) {
                    return;
                }
                return self.decide_soon();
            }
            Event::Revoked { client, left } => {
                let Some(slot) = self.known(client) else { return };
                self.revoked(slot, left);
            }
            Event::Tick => {}
        }
        self.decide(out);
    }

    /// Something changed, but more is to come in the same turn: a client whose work has ended is about to say whether it waits for more, and
    /// nobody else should get the device for that moment.
    fn decide_soon(&mut self) {
        if self.state.waiting > 0 {
            self.wake_at(Some(self.now));
        }
    }

    /// When [`Event::Tick`] is due, if nothing happens before. `None`: nothing to wait for. Never before `now`.
    pub fn next_wake(&self, now: Ns) -> Option<Ns> {
        self.wake.map(|wake| wake.max(now))
    }

    /// The state, for people and tests.
    pub fn snapshot(&self) -> Snapshot {
        let gap = match self.state.holders.is_empty() {
            true => None,
            false => match self.state.phase(self.now) {
                Phase::Busy { .. } => None,
                Phase::Gap { since, until, .. } => Some(GapView {
                    since,
                    until: Some(until),
                }),
                Phase::Open { since } => Some(GapView { since, until: None }),
            },
        };
        Snapshot {
            policy: self.state.config.policy.as_str(),
            clients: self.state.clients().map(|client| self.view(client)).collect(),
            gap,
            exposure: self.state.exposure,
            counters: self.state.counters,
        }
    }

    fn view(&self, client: &ClientState) -> ClientView {
        let last = client.timeline.last_active().unwrap_or(0).max(client.active_at);
        ClientView {
            client: client.id.0,
            priority: client.priority,
            mode: snapshot::mode_name(client.mode),
            active: client.wait.is_some() || self.now < last.saturating_add(self.state.config.idle_grace),
            waiting: client.wait.map(|wait| WaitView {
                kernel: wait.kernel,
                cost: wait.cost,
                since: wait.since,
            }),
            launches: client.launches,
            work: client.work,
            busy_until: client.timeline.busy_until(),
            granted: client.ledger.granted(),
            issued: client.ledger.issued(),
            revoked: client.ledger.revoked(),
            left: client.ledger.left(),
            outstanding: client.ledger.outstanding(),
            written_off: client.ledger.written_off(),
            starved: client.starved,
        }
    }

    fn known(&mut self, client: Client) -> Option<Slot> {
        let slot = self.state.slot(client);
        if slot.is_none() {
            self.state.counters.strangers += 1;
        }
        slot
    }

    fn priority(&mut self, priority: u8) -> u8 {
        let most = PRIORITIES as u8 - 1;
        if priority > most {
            self.state.counters.corrected += 1;
        }
        priority.min(most)
    }

    /// A time that a client tells lies in the past, and not so far that it says nothing.
    fn past(&mut self, at: Ns) -> Ns {
        let earliest = self.now.saturating_sub(self.state.config.longest_cost);
        if at > self.now || at < earliest {
            self.state.counters.corrected += 1;
        }
        at.clamp(earliest, self.now)
    }

    /// A cost that a client tells is one that can be.
    fn cost(&mut self, cost: Ns) -> Ns {
        let config = &self.state.config;
        if cost > config.longest_cost {
            self.state.counters.corrected += 1;
        }
        match cost {
            0 => config.unknown_cost.max(1),
            cost => cost.min(config.longest_cost),
        }
    }

    /// Gives every client the mode that its standing demands, and tells those whose mode changes.
    fn assign_modes(&mut self, out: &mut Vec<Decision>) {
        let first = self.state.most_important().unwrap_or(0);
        let alone = self.state.order.len() == 1;
        self.state.holders.clear();
        for at in 0..self.state.order.len() {
            let slot = self.state.order[at];
            let Some(client) = self.state.get(slot) else { continue };
            let (id, old) = (client.id, client.mode);
            let new = match alone {
                true => Mode::Alone,
                false => self.policy.mode(client.priority, first),
            };
            if new == Mode::Holder {
                self.state.holders.push(slot);
            }
            if new == old {
                continue;
            }
            if old == Mode::Filler {
                self.state.pass(slot);
                self.policy.forget(slot);
                self.empty(slot, out);
            }
            let (now, grace) = (self.now, self.state.config.idle_grace);
            if let Some(client) = self.state.get_mut(slot) {
                client.mode = new;
                // A client that was alone told nothing of its work, and one that is new has none.
                if new == Mode::Holder && old != Mode::Free {
                    let busy = if old == Mode::Alone {
                        grace
                    } else {
                        client.ledger.outstanding()
                    };
                    client.timeline.assume_busy(now, now.saturating_add(busy));
                }
            }
            out.push(Decision::Mode(id, new));
        }
    }

    /// Returns whether there may be anything to decide.
    fn launched(&mut self, slot: Slot, kernel: u64, cost: Ns, at: Ns, out: &mut Vec<Decision>) -> bool {
        let (cost, at) = (self.cost(cost), self.past(at));
        let (behind, longest) = (self.state.exposure, self.state.config.longest_cost);
        let Some(client) = self.state.get_mut(slot) else {
            return false;
        };
        client.launches += 1;
        client.work = client.work.saturating_add(cost);
        client.active_at = client.active_at.max(at);
        match client.mode {
            Mode::Holder => {
                client.timeline.launch(kernel, cost, at, behind, longest);
                self.holder_is_back(out);
                false
            }
            Mode::Filler => {
                let passed = client
                    .wait
                    .is_some_and(|wait| wait.kernel == kernel && at >= wait.since);
                let class = client.class;
                self.state.class_active_at[class] = self.state.class_active_at[class].max(at);
                if passed {
                    self.state.pass(slot);
                }
                passed
            }
            Mode::Free | Mode::Alone => false,
        }
    }

    /// Feedback: filling stops at the first sign of the holder. The board has voided the credit already; this makes the books say so.
    fn holder_is_back(&mut self, out: &mut Vec<Decision>) {
        if self.state.exposed.is_empty() {
            return;
        }
        if let Some((_, true)) = self.counted_gap.take() {
            self.state.counters.early_returns += 1;
        }
        for at in 0..self.state.exposed.len() {
            let slot = self.state.exposed[at];
            if self.state.get(slot).is_some_and(|client| client.bound) {
                self.order_revocation(slot, out);
            }
        }
    }

    /// Takes back credit that can still be used.
    fn order_revocation(&mut self, slot: Slot, out: &mut Vec<Decision>) {
        if self.state.get(slot).is_some_and(|client| client.ledger.usable() > 0) {
            self.empty(slot, out);
        }
    }

    /// Has a client's credit word swapped to zero, whatever is in it.
    fn empty(&mut self, slot: Slot, out: &mut Vec<Decision>) {
        let now = self.now;
        let Some(client) = self.state.get_mut(slot) else { return };
        if client.ledger.left() == 0 || client.revoking.is_some() {
            return;
        }
        client.revoking = Some(now);
        out.push(Decision::Revoke(client.id));
        self.state.counters.revocations += 1;
    }

    fn revoked(&mut self, slot: Slot, left: i64) {
        let most = self.state.config.longest_cost;
        let believed = self.state.account(slot, |ledger| ledger.revoke(left, most));
        if believed == Some(false) {
            self.state.counters.corrected += 1;
        }
        let now = self.now;
        if let Some(client) = self.state.get_mut(slot) {
            // Credit that was granted since the order is in the word now.
            let ordered = client.revoking.take();
            client.emptied_at = ordered.filter(|ordered| client.granted_at < *ordered).map(|_| now);
        }
        self.requeue(slot);
    }

    /// Puts a wait (back) into the queue, unless the client's credit covers it.
    fn requeue(&mut self, slot: Slot) {
        let Some(client) = self.state.get(slot) else { return };
        let covered = client.wait.is_none_or(|wait| State::covered(client, &wait));
        if covered || client.mode != Mode::Filler {
            self.state.unqueue(slot);
        } else {
            self.state.enqueue(slot);
        }
    }

    fn waits(&mut self, slot: Slot, kernel: u64, cost: Ns, since: Ns) {
        let (cost, since) = (self.cost(cost), self.past(since));
        let Some(client) = self.state.get(slot).filter(|client| client.mode == Mode::Filler) else {
            return;
        };
        // Nobody waits since before he came.
        let since = since.max(client.attached_at);
        let same = client
            .wait
            .is_some_and(|wait| (wait.kernel, wait.cost, wait.since) == (kernel, cost, since));
        if same {
            return;
        }
        let class = client.class;
        let wait = Wait {
            kernel,
            cost,
            since,
            issued: client.ledger.issued(),
        };
        self.state.class_active_at[class] = self.state.class_active_at[class].max(since);
        self.state.wait(slot, wait);
        self.requeue(slot);
    }

    /// Returns whether there is anything new.
    fn progress(&mut self, slot: Slot, issued: Ns, settled: Ns, out: &mut Vec<Decision>) -> bool {
        let (now, most) = (self.now, self.state.config.longest_cost);
        let Some(change) = self.state.account(slot, |ledger| ledger.report(issued, settled, most)) else {
            return false;
        };
        if change.corrected {
            self.state.counters.corrected += 1;
        }
        if change.issued == 0 && change.settled == 0 {
            return false;
        }
        let Some(client) = self.state.get_mut(slot) else {
            return false;
        };
        client.progress_at = now;
        client.served = client.served.saturating_add(change.issued);
        if change.issued == 0 {
            return true;
        }
        client.active_at = now;
        let class = client.class;
        let passed = client
            .wait
            .is_some_and(|wait| client.ledger.issued() >= wait.issued.saturating_add(wait.cost));
        self.state.class_active_at[class] = now;
        if passed {
            self.state.pass(slot);
        }
        self.top_up(slot, out);
        true
    }

    /// A filler that runs on credit while nobody else wants any gets more before it runs out: one stop at the gate less.
    fn top_up(&mut self, slot: Slot, out: &mut Vec<Decision>) {
        if !self.state.queue.is_empty() {
            return;
        }
        let bound = self.state.config.delay_bound;
        let Some(client) = self.state.get(slot) else { return };
        let wanted = client.mode == Mode::Filler
            && client.wait.is_none()
            && client.revoking.is_none()
            && client.bound
            && client.ledger.usable() < bound / 4;
        if wanted && self.state.exposure <= bound / 2 && matches!(self.state.phase(self.now), Phase::Open { .. }) {
            let total = bound - self.state.exposure_before(slot);
            self.grant(slot, total, true, out);
        }
    }

    /// Brings a filler's unused credit up to `total`.
    fn grant(&mut self, slot: Slot, total: Ns, bound: bool, out: &mut Vec<Decision>) {
        let now = self.now;
        let Some(client) = self.state.get_mut(slot) else { return };
        let wanted = i64::try_from(total).unwrap_or(i64::MAX);
        let credit = wanted.saturating_sub(client.ledger.left()).max(0).unsigned_abs();
        client.bound = bound;
        client.granted_at = now;
        client.emptied_at = None;
        out.push(Decision::Grant {
            client: client.id,
            credit,
            bound,
        });
        self.state.account(slot, |ledger| ledger.grant(credit));
        self.state.unqueue(slot);
        self.state.counters.grants += 1;
    }

    /// Asks the policy until there is nothing to do, and sees to those whom it leaves out.
    fn decide(&mut self, out: &mut Vec<Decision>) {
        self.wake = None;
        if self.state.waiting == 0 {
            return;
        }
        self.look_after_exposed(out);
        while !self.state.queue.is_empty() {
            match self.policy.next(&self.state, self.now) {
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
        if self.policy.shares_minimum() {
            self.share_minimum(out);
        }
    }

    fn wake_at(&mut self, at: Option<Ns>) {
        let Some(at) = at else { return };
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn count_gap(&mut self) {
        if self.state.holders.is_empty() {
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

    /// Work that never ends must not hold up the others for ever, nor its own client.
    fn look_after_exposed(&mut self, out: &mut Vec<Decision>) {
        let now = self.now;
        let (write_off_after, stuck_after) = (self.state.config.write_off_after, self.state.config.stuck_after);
        let mut at = 0;
        while let Some(slot) = self.state.exposed.get(at).copied() {
            at += 1;
            let Some(client) = self.state.get_mut(slot) else {
                continue;
            };
            let outstanding = client.ledger.outstanding();
            // However long it claims to run: twenty times the patience is enough.
            let patience = outstanding.saturating_mul(10).min(write_off_after.saturating_mul(20));
            let lost = client
                .progress_at
                .saturating_add(write_off_after)
                .saturating_add(patience);
            if client
                .revoking
                .is_some_and(|since| now > since.saturating_add(write_off_after))
            {
                // The answer never came: count the credit as taken back.
                client.revoking = None;
                let left = client.ledger.left();
                self.state.account(slot, |ledger| ledger.revoke(left, 0));
                self.requeue(slot);
                at = 0;
                continue;
            }
            if client.wait.is_some() && client.queued.is_none() && client.revoking.is_none() {
                // It has the credit and does not go: a sign that we did not see has voided it. Take it back and begin again.
                let due = client.granted_at.saturating_add(stuck_after);
                if now < due {
                    self.wake_at(Some(due));
                } else {
                    self.order_revocation(slot, out);
                }
                continue;
            }
            if outstanding == 0 {
                continue;
            }
            if now >= lost {
                self.state.account(slot, |ledger| ledger.write_off());
                self.state.counters.write_offs += 1;
                // The list has changed under us; it is short.
                at = 0;
                continue;
            }
            let stuck = client.queued.map(|entry| {
                let since = client.progress_at.max(client.granted_at).max(entry.since);
                let patience = stuck_after.saturating_add(outstanding.saturating_mul(2));
                (since.saturating_add(patience), entry.cost)
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

    /// Lets the one who is due go, one at a time, so that all of them together get no more than the minimum share.
    fn share_minimum(&mut self, out: &mut Vec<Decision>) {
        let share = self.state.config.minimum_share;
        if share <= 0.0 {
            return;
        }
        while let Some((due, slot)) = self.state.queue.first_due() {
            let at = due.max(self.next_share);
            if self.now < at {
                self.wake_at(Some(at));
                return;
            }
            let cost = self
                .state
                .get(slot)
                .and_then(|client| client.queued)
                .map_or(1, |entry| entry.cost);
            if !self.state.admits(slot, cost) {
                let again = match policy::make_room(&self.state, slot, self.now) {
                    Verdict::Revoke(other) => {
                        self.order_revocation(other, out);
                        self.state.drained(slot, self.now)
                    }
                    Verdict::Nothing(Some(again)) => again,
                    _ => self.state.drained(slot, self.now),
                };
                self.wake_at(Some(again));
                return;
            }
            self.next_share = self.now.saturating_add(self.state.patience(cost));
            self.state.counters.starvation_grants += 1;
            if let Some(client) = self.state.get_mut(slot) {
                client.starved += 1;
            }
            self.grant(slot, cost, false, out);
        }
    }
}

#[cfg(test)]
mod tests;
