//! Taking events in: checks, bounds and books what clients say.

use super::{
    Client, Core, Decision, Ns,
    client::{ClientState, Wait},
    pace::Sight,
    queue::Slot,
    state::State,
};
use weft_protocol::{PRIORITIES, lane::Mode};

impl Core {
    pub(super) fn known(&mut self, client: Client) -> Option<Slot> {
        let slot = self.state.slot(client);
        if slot.is_none() {
            self.state.counters.strangers += 1;
        }
        slot
    }

    pub(super) fn priority(&mut self, priority: u8) -> u8 {
        let most = PRIORITIES as u8 - 1;
        if priority > most {
            self.state.counters.corrected += 1;
        }
        priority.min(most)
    }

    /// Bounds a client's time to the past, at most `longest_cost` ago.
    pub(super) fn past(&mut self, at: Ns) -> Ns {
        let earliest = self.now.saturating_sub(self.state.config.longest_cost);
        if at > self.now || at < earliest {
            self.state.counters.corrected += 1;
        }
        at.clamp(earliest, self.now)
    }

    /// Bounds a client's cost to what is possible.
    pub(super) fn cost(&mut self, cost: Ns) -> Ns {
        let config = &self.state.config;
        if cost > config.longest_cost {
            self.state.counters.corrected += 1;
        }
        match cost {
            0 => config.unknown_cost.max(1),
            cost => cost.min(config.longest_cost),
        }
    }

    /// Gives every client its mode, and tells the clients whose mode changes.
    pub(super) fn assign_modes(&mut self, out: &mut Vec<Decision>) {
        let first = self.state.most_important().unwrap_or(0);
        let alone = self.state.order.len() == 1;
        self.rota.count(&self.state);
        self.state.foreground_jobs.clear();
        for at in 0..self.state.order.len() {
            let slot = self.state.order[at];
            let Some(client) = self.state.get(slot) else { continue };
            let (id, old) = (client.id, client.mode);
            let new = match alone {
                true => Mode::Alone,
                false => self.mode_in_turns(client, self.policy.mode(client.priority, first)),
            };
            if new == Mode::Foreground {
                self.state.foreground_jobs.push(slot);
            }
            if new == old {
                continue;
            }
            if old == Mode::Background {
                self.state.pass(slot);
                self.policy.forget(slot);
                self.empty(slot, out);
            }
            let (now, grace) = (self.now, self.state.config.idle_grace);
            if let Some(client) = self.state.get_mut(slot) {
                client.mode = new;
                // A client that was alone told nothing of its work, and a new one has none.
                if new == Mode::Foreground && old != Mode::Free {
                    let busy = if old == Mode::Alone {
                        grace
                    } else {
                        client.ledger.outstanding()
                    };
                    client.timeline.assume_busy(now, now.saturating_add(busy));
                }
                client.foresight.interrupted();
                client.slack.interrupted();
                client.pace.forget();
                client.window = None;
            }
            let timed = |client: &mut ClientState| client.pace.ends_to_be_timed();
            if old == Mode::Background && self.state.get_mut(slot).is_some_and(timed) {
                out.push(Decision::Times(id, false));
            }
            out.push(Decision::Mode(id, new));
        }
        self.bar(out);
    }

    /// Takes in a launch. Returns whether there may be anything to decide.
    pub(super) fn launched(&mut self, slot: Slot, kernel: u64, cost: Ns, at: Ns, out: &mut Vec<Decision>) -> bool {
        let (cost, at) = (self.cost(cost), self.past(at));
        let (mut behind, longest) = (self.state.exposure, self.state.config.longest_cost);
        let foresees = self.state.foresees();
        let outstanding = if foresees { self.state.outstanding() } else { 0 };
        let Some(client) = self.state.get_mut(slot) else {
            return false;
        };
        client.launches += 1;
        client.work = client.work.saturating_add(cost);
        client.active_at = client.active_at.max(at);
        match client.mode {
            Mode::Foreground => {
                let cost = client.times.of_launch(kernel, cost).min(longest);
                if foresees {
                    let end = client.timeline.end_if_launched().unwrap_or(at);
                    client.foresight.launched(kernel, at, end);
                    client.slack.launched(at);
                    // Unused credit is void: only what runs is in the way.
                    behind = self.state.device.remaining(outstanding, at);
                    self.state.device.foreground_launched();
                }
                let Some(client) = self.state.get_mut(slot) else {
                    return false;
                };
                client.timeline.launch(kernel, cost, at, behind, longest);
                if foresees {
                    let end = client.timeline.end_if_launched().unwrap_or(at);
                    self.state.worked.launched(at, end);
                }
                self.foreground_is_back(out);
                false
            }
            Mode::Background => {
                let passed = client
                    .wait
                    .is_some_and(|wait| wait.kernel == kernel && at >= wait.since);
                let class = client.class;
                if foresees {
                    let time = client.pace.of_next(kernel).map_or(cost, |forecast| forecast.middle);
                    client.pace.launched(kernel, cost, at, passed);
                    client.pace.takes(time);
                    let granted_at = client.granted_at;
                    if passed {
                        self.state.device.order_took(at.saturating_sub(granted_at));
                    }
                    self.state.device.launched(slot, time, at, outstanding);
                }
                self.state.class_active_at[class] = self.state.class_active_at[class].max(at);
                if passed {
                    self.state.pass(slot);
                }
                passed
            }
            Mode::Free | Mode::Alone => false,
        }
    }

    /// Feedback: filling stops at the foreground job's first launch or wake-up hint. The epoch page
    /// has voided the credit already; this brings the books up to date.
    pub(super) fn foreground_is_back(&mut self, out: &mut Vec<Decision>) {
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

    pub(super) fn revoked(&mut self, slot: Slot, left: i64) {
        let most = self.state.config.longest_cost;
        let believed = self.state.account(slot, |ledger| ledger.revoke(left, most));
        if believed == Some(false) {
            self.state.counters.corrected += 1;
        }
        let now = self.now;
        if let Some(client) = self.state.get_mut(slot) {
            // Credit granted since the order is in the word now.
            let ordered = client.revoking.take();
            client.emptied_at = ordered.filter(|_| !client.granted_since).map(|_| now);
        }
        self.requeue(slot);
    }

    /// Puts a wait into the queue, unless the client's credit covers it.
    pub(super) fn requeue(&mut self, slot: Slot) {
        let Some(client) = self.state.get(slot) else { return };
        // What an empty word leaves in the books was taken by threads that have not reported it: it
        // lets no other launch through.
        let empty = client.emptied_at.is_some();
        let covered = client.wait.is_none_or(|wait| !empty && State::covered(client, &wait));
        if covered || client.mode != Mode::Background {
            self.state.unqueue(slot);
        } else {
            self.state.enqueue(slot);
        }
    }

    pub(super) fn waits(&mut self, slot: Slot, kernel: u64, cost: Ns, since: Ns, out: &mut Vec<Decision>) {
        let (cost, since) = (self.cost(cost), self.past(since));
        let Some(client) = self.state.get(slot).filter(|client| client.mode == Mode::Background) else {
            return;
        };
        // No wait began before the client attached.
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
        let leased = self.state.get(slot).is_some_and(|client| client.window.is_some());
        self.state.wait(slot, wait);
        if leased {
            self.end_window(slot, out);
        } else {
            self.requeue(slot);
        }
    }

    /// Takes in a client's reports. Returns whether there is anything new.
    pub(super) fn progress(&mut self, slot: Slot, issued: Ns, settled: Ns, out: &mut Vec<Decision>) -> bool {
        let (now, most) = (self.now, self.state.config.longest_cost);
        let patience = self.state.config.write_off_after;
        let Some((had_none, change)) = self.state.account(slot, |ledger| {
            (ledger.outstanding() == 0, ledger.report(issued, settled, most))
        }) else {
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
        // Turns are shared out by time: work that takes longer than predicted counts with the
        // difference. Where gaps are filled, the minimum share looks after the clients that such
        // work keeps waiting.
        if change.settled > 0 && !had_none && !self.policy.shares_minimum() {
            let took = now.saturating_sub(client.ended_at).min(patience);
            client.served = client.served.saturating_add(took.saturating_sub(change.settled));
        }
        client.progress_at = now;
        if had_none || change.settled > 0 {
            client.ended_at = now;
        }
        if change.settled > 0 && self.state.foresees() {
            self.settled(slot, change.settled, out);
        }
        let (bound, whole) = (self.state.config.delay_bound, self.state.config.starving_after);
        let Some(client) = self.state.get_mut(slot) else {
            return false;
        };
        client.served = client.served.saturating_add(change.issued);
        if client.bound {
            client.fed(change.issued, now, bound, whole);
        }
        if change.issued == 0 {
            return true;
        }
        client.active_at = now;
        client.unreported = false;
        client.untold = client.untold.saturating_sub(change.issued);
        let class = client.class;
        let passed = client
            .wait
            .is_some_and(|wait| client.ledger.issued() >= wait.issued.saturating_add(wait.cost));
        self.state.class_active_at[class] = now;
        if passed {
            self.state.pass(slot);
        } else {
            self.state.account(slot, |_| ());
        }
        if self.state.foresees() {
            // What came back is told next.
            self.wake_at(Some(now));
        } else {
            self.top_up(slot, out);
        }
        true
    }

    /// Takes in that a background job's work was seen to end: it teaches kernel times, and how much
    /// is left on the device.
    fn settled(&mut self, slot: Slot, settled: Ns, out: &mut Vec<Decision>) {
        let now = self.now;
        let undisturbed = self.undisturbed_since(slot);
        let outstanding = self.state.outstanding();
        let unknown = self.state.config.delay_bound;
        self.state.device.seen(outstanding, now);
        if let Some(client) = self.state.get_mut(slot) {
            let sight = Sight {
                now,
                undisturbed_since: undisturbed,
                waits_since: client.wait.map(|wait| wait.since),
                unknown,
            };
            client.pace.ended(settled, &sight);
            if client.mode == Mode::Background && client.pace.begins_to_be_timed() {
                out.push(Decision::Times(client.id, true));
            }
        }
    }

    /// Takes in a kernel's time as the device measured it. `at`: of the launch.
    pub(super) fn sampled(&mut self, slot: Slot, kernel: u64, time: Ns, at: Ns) {
        let (time, at) = (time.min(self.state.config.longest_cost), self.past(at));
        let alone = self.state.worked.without(at, time);
        let unknown = self.state.config.delay_bound;
        if let Some(client) = self.state.get_mut(slot) {
            client.pace.measured(kernel, time, at, alone, unknown);
        }
    }

    /// Since when only this background job had the device: since the last foreground job's work, if
    /// no other background job has work out.
    fn undisturbed_since(&self, slot: Slot) -> Ns {
        let others = self.state.exposed.iter().any(|other| {
            *other != slot
                && self
                    .state
                    .get(*other)
                    .is_some_and(|other| other.ledger.outstanding() > 0)
        });
        if others {
            return Ns::MAX;
        }
        let switch = self.state.config.switch_cost;
        let foreground_jobs = self
            .state
            .foreground_jobs
            .iter()
            .filter_map(|slot| self.state.get(*slot));
        let ends = foreground_jobs.filter_map(|foreground| foreground.timeline.end_if_launched());
        ends.max().unwrap_or(0).saturating_add(switch)
    }
}
