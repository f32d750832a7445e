//! The core's state: clients, waits, and the background work that is out.
//!
//! All ledger changes go through [`State::account`], so the sum and the list of exposures agree
//! with the ledgers. Policies read the state and change nothing.

use std::{collections::HashMap, hash::BuildHasherDefault};

use super::{
    Client, Config, Counters, PolicyName,
    client::{ClientState, Wait},
    device::{Device, Worked},
    ledger::Ledger,
    queue::{Entry, Queue, Slot},
    timeline::Phase,
    times::Hashed,
};
use weft_protocol::{
    Ns, PRIORITIES,
    lane::{Mode, is_transfer},
};

#[derive(Debug)]
pub(super) struct State {
    pub config: Config,
    pub counters: Counters,
    pub queue: Queue,
    /// Exposure of all clients, in ns: background work that is on the device or may come there
    /// without another grant. Credit of a client that waits for more is not in it: its gate keeps
    /// order, so that credit is not usable before the next grant.
    pub exposure: Ns,
    /// Clients that have unused credit or work on the device.
    pub exposed: Vec<Slot>,
    /// Clients in [`Mode::Foreground`].
    pub foreground_jobs: Vec<Slot>,
    /// All clients, in the order in which they attached.
    pub order: Vec<Slot>,
    /// Number of clients that wait at their gates, with or without a grant on its way.
    pub waiting: usize,
    /// Background work on the device by the clock, under `weft`.
    pub device: Device,
    /// When foreground jobs lately had work on the device, under `weft`.
    pub worked: Worked,
    /// Last sign of work of any background job, by class.
    pub class_active_at: [Ns; PRIORITIES],
    slots: Vec<Option<ClientState>>,
    free: Vec<Slot>,
    index: HashMap<Client, Slot, BuildHasherDefault<Hashed>>,
}

impl State {
    pub(super) fn new(config: Config) -> State {
        State {
            config,
            counters: Counters::default(),
            queue: Queue::default(),
            exposure: 0,
            exposed: Vec::new(),
            foreground_jobs: Vec::new(),
            order: Vec::new(),
            waiting: 0,
            device: Device::default(),
            worked: Worked::default(),
            class_active_at: [0; PRIORITIES],
            slots: Vec::new(),
            free: Vec::new(),
            index: HashMap::default(),
        }
    }

    pub(super) fn slot(&self, client: Client) -> Option<Slot> {
        self.index.get(&client).copied()
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&ClientState> {
        self.slots.get(slot)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut ClientState> {
        self.slots.get_mut(slot)?.as_mut()
    }

    pub(super) fn clients(&self) -> impl Iterator<Item = &ClientState> {
        self.order.iter().filter_map(|slot| self.get(*slot))
    }

    pub(super) fn add(&mut self, client: ClientState) -> Slot {
        let id = client.id;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(client);
                slot
            }
            None => {
                self.slots.push(Some(client));
                self.slots.len() - 1
            }
        };
        self.index.insert(id, slot);
        self.order.push(slot);
        slot
    }

    /// Removes a client, with all it held.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.pass(slot);
        self.account(slot, |ledger| *ledger = Ledger::default());
        if let Some(client) = self.slots.get_mut(slot).and_then(Option::take) {
            self.index.remove(&client.id);
            self.free.push(slot);
        }
        self.device.forget(slot);
        self.order.retain(|other| *other != slot);
        self.foreground_jobs.retain(|other| *other != slot);
    }

    /// Changes a ledger and keeps the sums right.
    pub(super) fn account<T>(&mut self, slot: Slot, change: impl FnOnce(&mut Ledger) -> T) -> Option<T> {
        let client = self.slots.get_mut(slot)?.as_mut()?;
        let result = change(&mut client.ledger);
        let exposed = client.ledger.exposure() > 0;
        match (client.exposed_at, exposed) {
            (None, true) => {
                client.exposed_at = Some(self.exposed.len());
                self.exposed.push(slot);
            }
            (Some(at), false) => {
                client.exposed_at = None;
                self.exposed.swap_remove(at);
                if let Some(moved) = self.exposed.get(at).copied()
                    && let Some(moved) = self.get_mut(moved)
                {
                    moved.exposed_at = Some(at);
                }
            }
            _ => {}
        }
        self.recount(slot);
        Some(result)
    }

    /// Updates the sum of exposures after a change to one client.
    fn recount(&mut self, slot: Slot) {
        let Some(client) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        // A client that waits again without a report has used its last grant. That work is on its
        // way, and so is what the books have beyond the word.
        let waits = |client: &ClientState| client.wait.is_some_and(|wait| !State::covered(client, &wait));
        let in_order = client.queued.is_some() || client.barred && waits(client);
        let now = match in_order {
            true if !client.unreported && client.emptied_at.is_none() => {
                let untold = client.untold.min(client.ledger.usable());
                client.ledger.outstanding().saturating_add(untold)
            }
            _ => client.ledger.exposure(),
        };
        // Each part is at most the longest cost: no overflow.
        self.exposure = self.exposure.saturating_sub(client.counted).saturating_add(now);
        client.counted = now;
    }

    /// Takes in the credit word of a waiting client. The client can write it, so it counts for no
    /// more than the books have left.
    pub(super) fn holds(&mut self, slot: Slot, left: i64) {
        let Some(client) = self.get_mut(slot) else { return };
        // With an unused grant all that is left counts: the grant may not have reached the word.
        client.untold = match client.unreported {
            true => 0,
            false => client.ledger.untold(left),
        };
        self.recount(slot);
    }

    /// Stops waiting for a report of credit that the client took.
    pub(super) fn give_up_untold(&mut self, slot: Slot) {
        let Some(client) = self.get_mut(slot) else { return };
        let untold = if client.unreported { Ns::MAX } else { client.untold };
        (client.untold, client.unreported) = (0, false);
        self.account(slot, |ledger| ledger.give_up(untold));
    }

    /// Puts a client's wait into the queue, unless the client is barred.
    pub(super) fn enqueue(&mut self, slot: Slot) {
        self.unqueue(slot);
        let turn = self.config.turn.max(1);
        let Some(wait) = self
            .get(slot)
            .filter(|client| !client.barred)
            .and_then(|client| client.wait)
        else {
            return;
        };
        let long = self.long(slot, &wait);
        let mut patience = self.patience(long);
        let (mut fed_until, foresees) = (0, self.foresees());
        if foresees {
            patience = patience.max(self.config.share_every);
        }
        let Some(client) = self.get_mut(slot) else { return };
        if foresees {
            fed_until = client.fed_until;
        }
        let entry = Entry {
            slot,
            class: client.class,
            cost: wait.cost,
            long,
            since: wait.since,
            round: client.served / turn,
            due: wait.since.saturating_add(patience).max(fed_until),
        };
        client.queued = Some(entry);
        self.queue.insert(&entry);
        self.recount(slot);
    }

    /// Whether a background job will soon starve without a gap. It then goes first and keeps its
    /// credit.
    pub(super) fn is_hungry(&self, slot: Slot, now: Ns) -> bool {
        let soon = now.saturating_add(self.config.starving_after / 2);
        self.foresees() && self.get(slot).is_some_and(|client| soon >= client.fed_until)
    }

    /// Time in ns after which the minimum share covers a kernel that fits nowhere, with the switch
    /// there and back: `(cost + 2 * switch_cost) / minimum_share`.
    pub(super) fn patience(&self, cost: Ns) -> Ns {
        let share = self.config.minimum_share;
        if share <= 0.0 {
            return Ns::MAX;
        }
        let price = cost.saturating_add(self.config.switch_cost.saturating_mul(2));
        (price as f64 / share) as Ns
    }

    /// Long estimate of a waiting kernel, ns. Of an unknown job
    /// `max(cost, min(delay_bound, bound))`.
    fn long(&self, slot: Slot, wait: &Wait) -> Ns {
        if !self.foresees() {
            return wait.cost;
        }
        let Some(client) = self.get(slot) else { return wait.cost };
        match client.pace.of_next(wait.kernel) {
            Some(forecast) if client.pace.is_profiled() && self.config.switch_cost == 0 => forecast.high,
            Some(forecast) if client.pace.is_profiled() => forecast.high.max(client.pace.may_take(wait.kernel)),
            // Ends are seen a little late, so the learnt time is rather too long.
            Some(forecast) => forecast.middle,
            None if is_transfer(wait.kernel) || client.pace.is_known() => wait.cost,
            None => wait
                .cost
                .max(self.config.delay_bound.min(client.pace.bound(wait.kernel))),
        }
    }

    /// Whether the policy learns from the jobs that it serves.
    pub(super) fn foresees(&self) -> bool {
        self.config.policy == PolicyName::Weft
    }

    /// Takes a client's wait out of the queue; the wait itself stays.
    pub(super) fn unqueue(&mut self, slot: Slot) {
        if let Some(entry) = self.get_mut(slot).and_then(|client| client.queued.take()) {
            self.queue.remove(&entry);
            self.recount(slot);
        }
    }

    /// Ends a wait.
    pub(super) fn pass(&mut self, slot: Slot) {
        self.unqueue(slot);
        if let Some(client) = self.get_mut(slot)
            && client.wait.take().is_some()
        {
            self.waiting -= 1;
        }
    }

    /// Begins a wait, or replaces it.
    pub(super) fn wait(&mut self, slot: Slot, wait: Wait) {
        self.pass(slot);
        if let Some(client) = self.get_mut(slot) {
            client.wait = Some(wait);
            self.waiting += 1;
        }
    }

    /// Exposure without this client's own unused credit, which does not keep the client from more.
    pub(super) fn exposure_before(&self, slot: Slot) -> Ns {
        let own = self.get(slot).map_or(0, |client| match client.queued {
            Some(_) => 0,
            None => client.ledger.usable(),
        });
        self.exposure.saturating_sub(own)
    }

    /// Whether a kernel may be granted now: `exposure_before <= most_before`. So at most
    /// `max(bound, bound / 2 + one kernel)` is out.
    pub(super) fn admits(&self, slot: Slot, cost: Ns) -> bool {
        self.exposure_before(slot) <= self.most_before(cost)
    }

    /// The most that may be out before a kernel of this cost, in ns; the largest of:
    ///
    /// * `bound - cost`: the kernel fits into the delay bound;
    /// * `bound / 2`: with less the device runs dry while the next grant is on its way;
    /// * `long + bound / 2 - cost`: half a bound beside one long kernel.
    ///
    /// `cost` counts as `bound / 8` at least: two wakes cost as much as launching dozens of small
    /// kernels.
    fn most_before(&self, cost: Ns) -> Ns {
        let bound = self.config.delay_bound;
        let cost = cost.max(bound / 8);
        let behind_long = match (self.long_out(), (bound / 2).checked_sub(cost)) {
            (0, _) | (_, None) => 0,
            (long, Some(beside)) => long.saturating_add(beside),
        };
        bound.saturating_sub(cost).max(bound / 2).max(behind_long)
    }

    /// The most that may be out in all, in ns.
    pub(super) fn most_out(&self) -> Ns {
        let bound = self.config.delay_bound;
        match self.long_out() {
            0 => bound,
            long => bound.max(long.saturating_add(bound / 2)),
        }
    }

    /// Cost of the longest kernel on the device that was granted as a long one, or 0.
    fn long_out(&self) -> Ns {
        let exposed = self.exposed.iter().filter_map(|slot| self.get(*slot));
        exposed.map(ClientState::long_out).max().unwrap_or(0)
    }

    /// When to look again at a kernel that is not admitted: enough work is predicted to have ended.
    pub(super) fn drained(&self, slot: Slot, cost: Ns, now: Ns) -> Ns {
        let bound = self.config.delay_bound;
        let excess = self.exposure_before(slot).saturating_sub(self.most_before(cost));
        now.saturating_add(excess.clamp(bound / 16, bound).max(1))
    }

    /// The phase of all foreground jobs together.
    pub(super) fn phase(&self, now: Ns) -> Phase {
        let mut all = Phase::Open { since: 0 };
        for client in self.foreground_jobs.iter().filter_map(|slot| self.get(*slot)) {
            all = match (all, client.timeline.phase(now, &client.times, &self.config)) {
                (_, busy @ Phase::Busy { .. }) => return busy,
                (Phase::Busy { until }, _) => return Phase::Busy { until },
                (Phase::Open { since: a }, Phase::Open { since: b }) => Phase::Open { since: a.max(b) },
                (Phase::Open { since: a }, Phase::Gap { since: b, until, over })
                | (Phase::Gap { since: b, until, over }, Phase::Open { since: a }) => Phase::Gap {
                    since: a.max(b),
                    until,
                    over,
                },
                (
                    Phase::Gap {
                        since: a,
                        until: until_a,
                        over: over_a,
                    },
                    Phase::Gap { since: b, until, over },
                ) => Phase::Gap {
                    since: a.max(b),
                    until: until.min(until_a),
                    over: over.min(over_a),
                },
            };
        }
        all
    }

    /// Room of background jobs from now on, in ns, at this chance of keeping a foreground job
    /// waiting; the least of all foreground jobs. Error: until when a foreground job is busy at
    /// least.
    pub(super) fn room(&self, now: Ns, chance: f64) -> Result<Ns, Ns> {
        let mut room = Ns::MAX;
        let lead = self.lead();
        for client in self.foreground_jobs.iter().filter_map(|slot| self.get(*slot)) {
            room = room.min(client.room(now, chance, lead, &self.config)?);
        }
        Ok(room)
    }

    /// `State::room` at the highest risk, plus the delay budget within a stretch of launches
    /// ([`Slack`](super::slack::Slack)).
    pub(super) fn opening(&self, now: Ns) -> Result<Ns, Ns> {
        self.opening_for(0, now)
    }

    /// `State::opening` for a kernel of this length: the longer the kernel, the smaller the risk.
    pub(super) fn opening_for(&self, long: Ns, now: Ns) -> Result<Ns, Ns> {
        let mut room = Ns::MAX;
        let (lead, risk) = (self.lead(), self.risk());
        for client in self.foreground_jobs.iter().filter_map(|slot| self.get(*slot)) {
            room = room.min(client.opening(now, risk, long, lead, &self.config)?);
        }
        Ok(room)
    }

    /// Work of background jobs that was launched and not seen to end, in ns.
    pub(super) fn outstanding(&self) -> Ns {
        let exposed = self.exposed.iter().filter_map(|slot| self.get(*slot));
        exposed.fold(0, |sum, client| sum.saturating_add(client.ledger.outstanding()))
    }

    /// Whether the length of the foreground jobs' gap is known, not only a distribution.
    pub(super) fn is_steady(&self) -> bool {
        let mut foreground_jobs = self.foreground_jobs.iter().filter_map(|slot| self.get(*slot));
        foreground_jobs.all(|client| client.foresight.is_steady())
    }

    /// How long before the device runs dry, or a foreground job's work ends, the next kernel is
    /// granted.
    pub(super) fn lead(&self) -> Ns {
        self.device.lead(self.config.delay_bound / 4)
    }

    /// When to look again whether `less` of the background work has ended. Unused credit and work
    /// that a foreground job has stopped do not end with time: a report of them brings the look,
    /// and the clock must not spin until then.
    pub(super) fn less_remains(&self, less: Ns, now: Ns) -> Ns {
        let bound = self.config.delay_bound;
        let running = self.device.running(now);
        // A kernel that takes longer than its charge keeps the charge until the clock is down to
        // it.
        let charged = running.min(self.exposure.saturating_sub(self.credit_abroad()));
        let wait = match less <= charged {
            true => less.saturating_add(running - charged),
            false => less.max(bound / 16),
        };
        now.saturating_add(wait.max(1))
    }

    /// Credit that will be used without another grant, in ns.
    fn credit_abroad(&self) -> Ns {
        self.exposed
            .iter()
            .filter_map(|slot| self.get(*slot))
            .filter(|client| client.queued.is_none())
            .fold(0, |credit: Ns, client| credit.saturating_add(client.ledger.usable()))
    }

    /// Background work still to run by the clock, plus credit usable without another grant, in ns.
    pub(super) fn remaining(&self, now: Ns) -> Ns {
        let credit = self.credit_abroad();
        let outstanding = self.exposure.saturating_sub(credit);
        self.device.remaining(outstanding, now).saturating_add(credit)
    }

    /// Highest chance at which a kernel may keep a foreground job waiting. A wrong guess costs more
    /// where the device must switch back.
    pub(super) fn risk(&self) -> f64 {
        /// Best in the lab on a time-sliced device.
        const SWITCHED: f64 = 0.5;
        match self.config.switch_cost {
            0 => self.config.risk,
            _ => self.config.risk.min(SWITCHED),
        }
    }

    /// Whether exactly one client is not a foreground job.
    pub(super) fn has_one_background(&self) -> bool {
        self.order.len() == self.foreground_jobs.len() + 1
    }

    /// Whether this wait would pass with the credit that is left.
    pub(super) fn covered(client: &ClientState, wait: &Wait) -> bool {
        client.ledger.left() >= i64::try_from(wait.cost).unwrap_or(i64::MAX)
    }

    /// The most important priority attached.
    pub(super) fn most_important(&self) -> Option<u8> {
        self.clients().map(|client| client.priority).min()
    }

    pub(super) fn mode(&self, slot: Slot) -> Option<Mode> {
        self.get(slot).map(|client| client.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::config::US, *};

    #[test]
    fn only_what_runs_by_the_clock_is_waited_for_by_the_clock() {
        let config = Config::default();
        let coarse = config.delay_bound / 16;
        let mut state = State::new(config);
        assert_eq!(
            state.less_remains(US, 0),
            coarse,
            "nothing runs: it is credit that lies unused"
        );
        let new = ClientState::new(Client(1), 5, 5, super::super::times::Times::default(), 0.0, 0);
        let slot = state.add(new);
        state.account(slot, |ledger| {
            ledger.grant(100 * US);
            ledger.report(100 * US, 0, 0)
        });
        state.device.launched(slot, 100 * US, 0, 0);
        assert_eq!(state.less_remains(30 * US, 10 * US), 40 * US);
        assert_eq!(state.less_remains(0, 10 * US), 10 * US + 1, "never at once");
        // More than runs: the rest is credit.
        assert_eq!(state.less_remains(91 * US, 10 * US), 10 * US + 91 * US);
        // The kernel takes longer than its charge: nothing ends until only the charge is left.
        state.device.launched(slot, 500 * US, 0, 0);
        assert_eq!(state.less_remains(30 * US, 10 * US), (600 - 100 + 30) * US);
        state.device.foreground_launched();
        assert_eq!(
            state.less_remains(30 * US, 10 * US),
            10 * US + coarse,
            "it may stand still"
        );
    }

    #[test]
    fn what_the_word_no_longer_holds_is_out_though_nobody_told() {
        let mut state = State::new(Config::default());
        let new = ClientState::new(Client(1), 5, 5, super::super::times::Times::default(), 0.0, 0);
        let slot = state.add(new);
        state.account(slot, |ledger| ledger.grant(100 * US));
        assert_eq!(state.exposure, 100 * US);
        let wait = Wait {
            kernel: 1,
            cost: 200 * US,
            since: 0,
            issued: 0,
        };
        state.wait(slot, wait);
        state.enqueue(slot);
        assert_eq!(state.exposure, 0, "who waits for more can use none of it");
        state.holds(slot, 30 * 1_000);
        assert_eq!(state.exposure, 70 * US, "another of its threads has taken the rest");
        state.holds(slot, i64::MAX);
        assert_eq!(state.exposure, 0);
        // A word that lies counts for no more than the books have left.
        state.holds(slot, i64::MIN + 1);
        assert_eq!(state.exposure, 100 * US);
    }
}
