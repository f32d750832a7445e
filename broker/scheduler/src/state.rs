// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core's state: clients, waits, and the background work that is out.
//!
//! Policies read the state and change nothing. All ledger changes go through
//! [`SchedulerState::account`], so that sums agree with the ledgers.

use std::{collections::HashMap, hash::BuildHasherDefault};

use weft_protocol::{Client, Ns, credit::RunAheadWindow, lane::Mode};

use crate::{
    Config, Counters, Decision,
    action::CreditGrant,
    busy_model::Phase,
    client::{ClientState, KernelAtGate, LongKernel},
    ledger::CreditLedger,
    mean_times::Hashed,
    queue::{ClientSlot, GateQueue, QueueEntry},
};

#[derive(Debug)]
pub(super) struct SchedulerState {
    pub config: Config,
    pub counters: Counters,
    pub queue: GateQueue,
    /// Exposure of all clients, ns: background work that is on the device or may come there without
    /// another grant. Credit of a client that waits for more is excluded: its gate keeps order.
    pub exposure: Ns,
    /// Clients with unused credit, credit that may come back, or work on the device.
    pub exposed: Vec<ClientSlot>,
    pub foreground_jobs: Vec<ClientSlot>,
    /// Background jobs that take no credit: idle, or at their gates as stopped processes.
    pub away: Vec<ClientSlot>,
    /// When jobs are next checked for being idle.
    idle_check: Ns,
    /// Number of clients with a guaranteed part.
    guarantees: usize,
    /// All clients, as they attached.
    pub order: Vec<ClientSlot>,
    /// Number of clients at their gates, with or without a grant on its way.
    pub waiting: usize,
    /// Whether background jobs now run next to the foreground jobs without restriction.
    pub open: bool,
    /// Start of the gap that was counted last, and whether its length was known.
    pub counted_gap: Option<(Ns, bool)>,
    /// Whether an earlier long kernel counts until it is seen to end.
    keeps_long: bool,
    windows_out: bool,
    slots: Vec<Option<ClientState>>,
    free: Vec<ClientSlot>,
    index: HashMap<Client, ClientSlot, BuildHasherDefault<Hashed>>,
}

impl SchedulerState {
    pub(super) fn new(config: Config, keeps_long: bool) -> SchedulerState {
        SchedulerState {
            config,
            counters: Counters::default(),
            queue: GateQueue::default(),
            exposure: 0,
            exposed: Vec::new(),
            foreground_jobs: Vec::new(),
            away: Vec::new(),
            idle_check: 0,
            guarantees: 0,
            order: Vec::new(),
            waiting: 0,
            open: false,
            counted_gap: None,
            keeps_long,
            windows_out: false,
            slots: Vec::new(),
            free: Vec::new(),
            index: HashMap::default(),
        }
    }

    pub(super) fn slot(&self, client: Client) -> Option<ClientSlot> {
        self.index.get(&client).copied()
    }

    pub(super) fn get(&self, slot: ClientSlot) -> Option<&ClientState> {
        self.slots.get(slot)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: ClientSlot) -> Option<&mut ClientState> {
        self.slots.get_mut(slot)?.as_mut()
    }

    pub(super) fn clients(&self) -> impl Iterator<Item = &ClientState> {
        self.order.iter().filter_map(|slot| self.get(*slot))
    }

    pub(super) fn foreground(&self) -> impl Iterator<Item = (ClientSlot, &ClientState)> {
        let slots = self.foreground_jobs.iter();
        slots.filter_map(|slot| Some((*slot, self.get(*slot)?)))
    }

    pub(super) fn add(&mut self, client: ClientState) -> ClientSlot {
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

    pub(super) fn remove(&mut self, slot: ClientSlot) {
        self.pass(slot);
        self.lives(slot);
        if let Some(client) = self.get_mut(slot) {
            client.regrows = false;
        }
        self.account(slot, |ledger| *ledger = CreditLedger::default());
        if let Some(client) = self.slots.get_mut(slot).and_then(Option::take) {
            self.index.remove(&client.id);
            self.free.push(slot);
        }
        self.order.retain(|other| *other != slot);
        self.foreground_jobs.retain(|other| *other != slot);
        self.count_guarantees();
    }

    /// Counts the clients with a guaranteed part.
    pub(super) fn count_guarantees(&mut self) {
        let guaranteed = |client: &&ClientState| client.guarantee.part().is_some();
        self.guarantees = self.clients().filter(guaranteed).count();
    }

    /// The waiting client whose guaranteed part is due first, and when. Among equals the one whose
    /// last grant is oldest comes first.
    pub(super) fn first_guaranteed(&self, now: Ns) -> Option<(Ns, ClientSlot)> {
        if self.guarantees == 0 {
            return None;
        }
        let entries = self.clients().filter_map(|client| Some((client, client.queued?)));
        let due = entries.filter_map(|(client, entry)| {
            let due = client.guarantee.due(entry.cost, now)?;
            Some((due, client.granted_at, entry.slot))
        });
        due.min().map(|(due, _, slot)| (due, slot))
    }

    /// Changes a ledger and keeps the sums right.
    pub(super) fn account<T>(&mut self, slot: ClientSlot, change: impl FnOnce(&mut CreditLedger) -> T) -> Option<T> {
        let client = self.slots.get_mut(slot)?.as_mut()?;
        let result = change(&mut client.ledger);
        let exposed = client.ledger.exposure() > 0 || client.regrows;
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
    fn recount(&mut self, slot: ClientSlot) {
        let Some(client) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        // A client that waits again without a report has used its last grant. So that work is on
        // its way, and so is the credit that the books show beyond the word.
        let waits = |client: &ClientState| client.wait.is_some_and(|wait| !SchedulerState::covered(client, &wait));
        let in_order = client.queued.is_some() || client.not_its_turn && waits(client);
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

    /// Takes in the credit word of a waiting client. The client can write it, so it counts only up
    /// to the credit left in the books.
    pub(super) fn holds(&mut self, slot: ClientSlot, left: i64) {
        let Some(client) = self.get_mut(slot) else { return };
        // The grant may not have reached the word yet.
        client.untold = match client.unreported {
            true => 0,
            false => client.ledger.untold(left),
        };
        self.recount(slot);
    }

    /// Stops waiting for a report of credit that the client took.
    pub(super) fn give_up_untold(&mut self, slot: ClientSlot) {
        let Some(client) = self.get_mut(slot) else { return };
        let untold = if client.unreported { Ns::MAX } else { client.untold };
        (client.untold, client.unreported) = (0, false);
        self.account(slot, |ledger| ledger.give_up(untold));
    }

    /// Queues a client's wait. `long`: its long estimate, ns. `due`: when the minimum share lets it
    /// through.
    pub(super) fn enqueue(&mut self, slot: ClientSlot, long: Ns, due: Ns) {
        self.unqueue(slot);
        let turn = self.config.turn.max(1);
        let Some(client) = self.get_mut(slot) else { return };
        let Some(wait) = client.wait else { return };
        let entry = QueueEntry {
            slot,
            class: client.class,
            cost: wait.cost,
            long,
            since: wait.since,
            round: client.served / turn,
            due,
        };
        client.queued = Some(entry);
        self.queue.insert(&entry);
        self.recount(slot);
    }

    /// Time after which the minimum share covers a kernel, ns:
    /// `(cost + 2 * switch_cost) / minimum_share`.
    pub(super) fn share_interval(&self, cost: Ns) -> Ns {
        let share = self.config.minimum_share;
        if share <= 0.0 {
            return Ns::MAX;
        }
        let price = cost.saturating_add(self.config.switch_cost.saturating_mul(2));
        (price as f64 / share) as Ns
    }

    /// Takes a client's wait out of the queue; the wait itself stays.
    pub(super) fn unqueue(&mut self, slot: ClientSlot) {
        if let Some(entry) = self.get_mut(slot).and_then(|client| client.queued.take()) {
            self.queue.remove(&entry);
            self.recount(slot);
        }
    }

    pub(super) fn pass(&mut self, slot: ClientSlot) {
        self.unqueue(slot);
        if let Some(client) = self.get_mut(slot)
            && client.wait.take().is_some()
        {
            self.waiting -= 1;
        }
    }

    /// Begins a wait, or replaces it.
    pub(super) fn wait(&mut self, slot: ClientSlot, wait: KernelAtGate) {
        self.pass(slot);
        if let Some(client) = self.get_mut(slot) {
            client.wait = Some(wait);
            self.waiting += 1;
        }
    }

    /// Exposure without this client's own unused credit, ns, with credit that may return to others.
    pub(super) fn exposure_before(&self, slot: ClientSlot) -> Ns {
        let own = self.get(slot).map_or(0, |client| match client.queued {
            Some(_) => 0,
            None => client.ledger.usable(),
        });
        self.exposure
            .saturating_sub(own)
            .saturating_add(self.others_regrowth(slot))
    }

    /// Credit that may come back to other clients under their windows, ns.
    fn others_regrowth(&self, slot: ClientSlot) -> Ns {
        let others = self.exposed.iter().filter(|other| **other != slot);
        let others = others.filter_map(|other| self.get(*other));
        others.fold(0, |sum, client| sum.saturating_add(client.regrowth()))
    }

    /// Present delay bound, ns: as configured, or more while background jobs run next to the
    /// foreground jobs without restriction. A kernel of more than half of it is granted with no
    /// other work out, and the device runs dry behind it.
    pub(super) fn delay_bound(&self) -> Ns {
        /// Multiple of the delay bound in an open period: 2 ms at 500 us. An LSTM's training has
        /// graphs of 0.7 ms.
        const OPEN_RATIO: u64 = 4;
        match self.open {
            true => self.config.delay_bound.saturating_mul(OPEN_RATIO),
            false => self.config.delay_bound,
        }
    }

    /// Whether a kernel may be granted: `exposure_before <= most_before`.
    pub(super) fn admits(&self, slot: ClientSlot, cost: Ns) -> bool {
        self.exposure_before(slot) <= self.most_before(cost)
    }

    /// Most work that may be out before a kernel of this cost, ns; the largest of:
    ///
    /// * `bound - cost`: the kernel fits into the delay bound;
    /// * `bound / 2`: with less the device runs dry while the next grant is on its way;
    /// * `long + bound / 2 - cost`: half a bound together with one long kernel.
    ///
    /// `cost` counts as `bound / 8` at least: two wakes cost as much as dozens of small kernels.
    fn most_before(&self, cost: Ns) -> Ns {
        let bound = self.delay_bound();
        let cost = cost.max(bound / 8);
        let behind_long = match (self.long_out(), (bound / 2).checked_sub(cost)) {
            (0, _) | (_, None) => 0,
            (long, Some(beside)) => long.saturating_add(beside),
        };
        bound.saturating_sub(cost).max(bound / 2).max(behind_long)
    }

    /// Most work that may be out in total, ns.
    pub(super) fn most_out(&self) -> Ns {
        let bound = self.delay_bound();
        match self.long_out() {
            0 => bound,
            long => bound.max(long.saturating_add(bound / 2)),
        }
    }

    /// Cost of the longest kernel out that was granted as a long one, or 0.
    fn long_out(&self) -> Ns {
        let exposed = self.exposed.iter().filter_map(|slot| self.get(*slot));
        exposed.map(ClientState::long_out).max().unwrap_or(0)
    }

    /// When enough work is predicted to have ended for a kernel to be admitted.
    pub(super) fn drained(&self, slot: ClientSlot, cost: Ns, now: Ns) -> Ns {
        let bound = self.delay_bound();
        let excess = self.exposure_before(slot).saturating_sub(self.most_before(cost));
        now.saturating_add(excess.clamp(bound / 16, bound).max(1))
    }

    /// The phase of all foreground jobs together.
    pub(super) fn phase(&self, now: Ns) -> Phase {
        let mut all = Phase::Open { since: 0 };
        for (_, client) in self.foreground() {
            all = match (all, client.busy.phase(now, &client.times, &self.config)) {
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

    /// Counts the gap in which credit is granted now.
    pub(super) fn count_gap(&mut self, now: Ns) {
        if self.foreground_jobs.is_empty() {
            return;
        }
        let gap = match self.phase(now) {
            Phase::Gap { since, .. } => (since, true),
            Phase::Open { since } => (since, false),
            Phase::Busy { .. } => return,
        };
        if self.counted_gap != Some(gap) {
            self.counted_gap = Some(gap);
            match gap.1 {
                true => self.counters.gaps += 1,
                false => self.counters.open_gaps += 1,
            }
        }
    }

    /// Whether a background job may have more before it asks: it has credit that a foreground job's
    /// launch voids, and no other client wants any.
    pub(super) fn may_top_up(&self, slot: ClientSlot) -> bool {
        self.queue.is_empty()
            && self.get(slot).is_some_and(|client| {
                client.mode == Mode::Background
                    && client.wait.is_none()
                    && client.revoking.is_none()
                    && client.window.is_none()
                    && client.bound
            })
    }

    /// Whether a background job will soon starve without a gap, and so keeps its credit.
    pub(super) fn is_starving(&self, slot: ClientSlot, now: Ns) -> bool {
        let soon = now.saturating_add(self.config.starving_after / 2);
        self.get(slot).is_some_and(|client| soon >= client.starves_at)
    }

    /// Background work launched and not seen to end, ns.
    pub(super) fn outstanding(&self) -> Ns {
        let exposed = self.exposed.iter().filter_map(|slot| self.get(*slot));
        exposed.fold(0, |sum, client| sum.saturating_add(client.ledger.outstanding()))
    }

    /// Whether one background job takes credit. One that takes none must not keep another from
    /// running ahead.
    pub(super) fn has_one_background(&self) -> bool {
        let all = self.order.len() - self.foreground_jobs.len();
        all - self.away.len().min(all.saturating_sub(1)) == 1
    }

    /// Counts a client as away until it takes credit or comes to the gate anew.
    fn set_away(&mut self, slot: ClientSlot) {
        let Some(client) = self.get_mut(slot) else { return };
        if !std::mem::replace(&mut client.away, true) {
            self.away.push(slot);
        }
    }

    /// Keeps a client that takes no credit out of the queue until then.
    pub(super) fn rest(&mut self, slot: ClientSlot, until: Ns) {
        if let Some(client) = self.get_mut(slot) {
            client.rests_until = until;
        }
        self.set_away(slot);
    }

    /// Counts background jobs as away that have been idle for `idle_grace`, and ends their windows.
    pub(super) fn look_after_idle(&mut self, now: Ns, out: &mut Vec<Decision>) {
        if now < self.idle_check || self.has_one_background() {
            return;
        }
        let grace = self.config.idle_grace;
        self.idle_check = now.saturating_add(grace);
        let is_idle = |client: &ClientState| {
            let since = client.active_at.max(client.progress_at);
            let idle = client.wait.is_none() && client.ledger.outstanding() == 0;
            idle && client.mode == Mode::Background && !client.away && now > since.saturating_add(grace)
        };
        for at in 0..self.order.len() {
            let slot = self.order[at];
            if self.get(slot).is_some_and(is_idle) {
                self.order_revocation(slot, now, out);
                self.set_away(slot);
            }
        }
    }

    /// Notes that a client's process runs: it came to the gate or took credit.
    pub(super) fn lives(&mut self, slot: ClientSlot) {
        let Some(client) = self.get_mut(slot) else { return };
        if client.lives() {
            self.away.retain(|other| *other != slot);
        }
    }

    /// Number of other background jobs with work or a wait; at least 1.
    fn rivals(&self) -> Ns {
        let background = self.clients().filter(|client| client.mode == Mode::Background);
        let active = background.filter(|client| !client.away && (client.wait.is_some() || client.exposed_at.is_some()));
        (active.count() as Ns).saturating_sub(1).max(1)
    }

    /// Part of the delay bound for a run-ahead window, ns. All others together have half of it at
    /// most, so any kernel is still admitted.
    pub(super) fn window_part(&self) -> Ns {
        match self.has_one_background() {
            true => self.delay_bound(),
            false => self.delay_bound() / (2 * self.rivals()),
        }
    }

    /// Whether background jobs may have run-ahead windows. A device that switches between processes
    /// serves several of them in turns.
    pub(super) fn may_run_ahead(&self) -> bool {
        self.has_one_background() || self.config.switch_cost == 0
    }

    /// Whether a window may come with a kernel of this cost. A longer one leaves no room for those
    /// of other jobs, so its credit must not come back by itself.
    pub(super) fn may_have_window(&self, slot: ClientSlot, cost: Ns, now: Ns) -> bool {
        if self.get(slot).is_some_and(|client| client.away) {
            return false;
        }
        self.has_one_background() || self.may_run_ahead() && cost <= self.window_part() && !self.is_ahead(slot, now)
    }

    /// Whether it used more credit than an active equal, by more than a turn. Then it has only the
    /// time in which the device runs dry.
    pub(super) fn is_ahead(&self, slot: ClientSlot, now: Ns) -> bool {
        let served = self.get(slot).map_or(0, |client| client.served);
        let least = self.least_served(slot, |client| self.works(client, now));
        self.config.switch_cost == 0 && least.is_some_and(|least| served > least.saturating_add(self.config.turn))
    }

    /// Least credit that an equal of this client used, ns, of those that count.
    fn least_served(&self, slot: ClientSlot, counts: impl Fn(&ClientState) -> bool) -> Option<Ns> {
        let own = self.get(slot)?;
        let equal = |client: &&ClientState| {
            client.id != own.id
                && client.class == own.class
                && client.mode == Mode::Background
                && !client.away
                && counts(client)
        };
        self.clients().filter(equal).map(|client| client.served).min()
    }

    /// Least credit that an equal used that works or worked a moment ago, ns.
    fn least_served_lately(&self, slot: ClientSlot, now: Ns) -> Option<Ns> {
        let since = now.saturating_sub(self.config.idle_grace);
        self.least_served(slot, |client| self.works(client, now) || client.active_at >= since)
    }

    /// End of the time for which a client counts as working on its credit: last grant or use, plus
    /// outstanding work, plus `open_after`.
    pub(super) fn silent_at(&self, client: &ClientState) -> Ns {
        let used = client.progress_at.max(client.granted_at);
        used.saturating_add(client.ledger.outstanding())
            .saturating_add(self.config.open_after)
    }

    /// Whether a background job waits, or works on its credit.
    fn works(&self, client: &ClientState, now: Ns) -> bool {
        client.wait.is_some() || client.exposed_at.is_some() && now < self.silent_at(client)
    }

    /// A job that was away, took no credit or is new has no claim to its equals' turns of that
    /// time.
    pub(super) fn forget_absence(&mut self, slot: ClientSlot, now: Ns) {
        let grace = self.config.idle_grace;
        let is_away = |client: &ClientState| {
            let silent = client.wait.is_none() && now > client.active_at.saturating_add(grace);
            silent || client.away || client.ledger.issued() == 0
        };
        if self.get(slot).is_some_and(is_away)
            && let Some(least) = self.least_served_lately(slot, now)
            && let Some(client) = self.get_mut(slot)
        {
            client.served = client.served.max(least);
        }
    }

    /// A job that joins others by its new priority neither catches up with them nor waits for them.
    pub(super) fn join_equals(&mut self, slot: ClientSlot, now: Ns) {
        if let Some(least) = self.least_served_lately(slot, now)
            && let Some(client) = self.get_mut(slot)
        {
            client.served = least;
        }
    }

    /// Whether the credit left covers this wait.
    pub(super) fn covered(client: &ClientState, wait: &KernelAtGate) -> bool {
        client.ledger.left() >= i64::try_from(wait.cost).unwrap_or(i64::MAX)
    }

    pub(super) fn most_important(&self) -> Option<u8> {
        self.clients().map(|client| client.priority).min()
    }

    pub(super) fn mode(&self, slot: ClientSlot) -> Option<Mode> {
        self.get(slot).map(|client| client.mode)
    }
}

/// Credit and windows, with the decisions that inform clients.
impl SchedulerState {
    /// Revokes credit that can still be used.
    pub(super) fn order_revocation(&mut self, slot: ClientSlot, now: Ns, out: &mut Vec<Decision>) {
        // A sole job's empty window is void without an order, and the order's answer takes time.
        let several = !self.away.is_empty() || !self.has_one_background();
        let has_more = |client: &ClientState| client.revocable() || several && client.has_window();
        if self.get(slot).is_some_and(has_more) {
            self.empty(slot, now, out);
        }
    }

    /// Has a client's credit word swapped to zero, whatever its content.
    pub(super) fn empty(&mut self, slot: ClientSlot, now: Ns, out: &mut Vec<Decision>) {
        let Some(client) = self.get_mut(slot) else { return };
        if client.revoking.is_some() || client.ledger.left() == 0 && client.window.is_none() {
            return;
        }
        client.revoking = Some(now);
        client.long = None;
        client.window = None;
        client.granted_since = false;
        out.push(Decision::Revoke(client.id));
        self.account(slot, |_| ());
        self.counters.revocations += 1;
    }

    /// Whether a background job has a run-ahead window.
    pub(super) fn has_windows(&self) -> bool {
        let mut exposed = self.exposed.iter().filter_map(|slot| self.get(*slot));
        exposed.any(|client| client.window.is_some())
    }

    /// Whether a run-ahead window may be out.
    pub(super) fn windows_out(&mut self) -> bool {
        let out = self.windows_out;
        self.windows_out = out && self.may_run_ahead();
        out
    }

    /// Sends a client its run-ahead window, if the window changed.
    pub(super) fn set_window(&mut self, slot: ClientSlot, window: Option<RunAheadWindow>, out: &mut Vec<Decision>) {
        self.windows_out |= window.is_some();
        let Some(client) = self.get_mut(slot).filter(|client| client.window != window) else {
            return;
        };
        client.window = window;
        client.regrows = window.is_some();
        out.push(Decision::RunAheadWindow(client.id, window));
        self.account(slot, |ledger| {
            if let Some(window) = window {
                ledger.let_out(window.non_refundable);
            }
        });
    }

    /// Ends a waiting client's run-ahead window by a revocation. The outstanding work is certain
    /// only once no more credit is replenished. The answer queues the client.
    pub(super) fn end_window(&mut self, slot: ClientSlot, now: Ns, out: &mut Vec<Decision>) {
        self.set_window(slot, None, out);
        let Some(client) = self.get_mut(slot).filter(|client| client.revoking.is_none()) else {
            return;
        };
        (client.revoking, client.regrows) = (Some(now), true);
        client.granted_since = false;
        out.push(Decision::Revoke(client.id));
        self.account(slot, |_| ());
    }

    /// The window with its `non_refundable`, if unused credit is brought up to `total` ns.
    pub(super) fn with_non_refundable(
        &self,
        slot: ClientSlot,
        window: RunAheadWindow,
        total: Ns,
    ) -> Option<RunAheadWindow> {
        let client = self.get(slot)?;
        let half = self.delay_bound() / 2;
        let credit = credit_up_to(client, total);
        // A foreground job may have work out from its time as a background job.
        let others = self.exposure.saturating_sub(client.counted);
        let others = others.saturating_add(self.others_regrowth(slot));
        let rest = (2 * half).saturating_sub(others);
        // Several windows grow back: each one only to its own part.
        let most = match self.has_one_background() {
            true => rest,
            false => rest.min(total),
        };
        let non_refundable = client.ledger.non_refundable(credit, most);
        Some(RunAheadWindow {
            non_refundable,
            ..window
        })
    }

    /// Brings a background job's unused credit up to the grant's total.
    pub(super) fn grant(&mut self, grant: &CreditGrant, now: Ns, out: &mut Vec<Decision>) {
        let CreditGrant {
            slot,
            total,
            bound,
            outlives,
            ..
        } = *grant;
        let keep_long = self.keeps_long;
        let half = self.delay_bound() / 2;
        let Some(client) = self.get_mut(slot) else { return };
        let long = client.queued.map(|entry| entry.cost).filter(|cost| *cost > half);
        let long = long.map(|cost| LongKernel {
            cost,
            total: client.ledger.issued().saturating_add(cost),
        });
        client.long = long.or(client.long.filter(|_| keep_long && client.long_out() > 0));
        let credit = credit_up_to(client, total);
        (client.bound, client.outlives) = (bound, outlives);
        client.granted_at = now;
        client.emptied_at = None;
        client.granted_since = true;
        client.unreported = true;
        out.push(Decision::Grant {
            client: client.id,
            credit,
            bound,
            outlives,
        });
        self.account(slot, |ledger| ledger.grant(credit));
        self.unqueue(slot);
        self.counters.grants += 1;
    }
}

/// Credit to add so that `total` ns are unused.
fn credit_up_to(client: &ClientState, total: Ns) -> Ns {
    let wanted = i64::try_from(total).unwrap_or(i64::MAX);
    wanted.saturating_sub(client.ledger.left()).max(0).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MS, US};

    #[test]
    fn what_the_word_no_longer_holds_is_out_though_nobody_told() {
        let mut state = SchedulerState::new(Config::default(), false);
        let new = ClientState::new(Client(1), 5, crate::mean_times::MeanTimes::default(), 0.0, 0);
        let slot = state.add(new);
        state.account(slot, |ledger| ledger.grant(100 * US));
        assert_eq!(state.exposure, 100 * US);
        let wait = KernelAtGate {
            kernel: 1,
            cost: 200 * US,
            since: 0,
            issued: 0,
        };
        state.wait(slot, wait);
        state.enqueue(slot, 200 * US, 0);
        assert_eq!(state.exposure, 0, "who waits for more can use none of it");
        state.holds(slot, 30 * 1_000);
        assert_eq!(state.exposure, 70 * US, "another of its threads has taken the rest");
        state.holds(slot, i64::MAX);
        assert_eq!(state.exposure, 0);
        // A word that lies counts only up to the credit left in the books.
        state.holds(slot, i64::MIN + 1);
        assert_eq!(state.exposure, 100 * US);
    }

    /// Background jobs of one priority that used this much credit, ns, and waited 1 ms ago.
    fn equals(state: &mut SchedulerState, served: &[Ns]) -> Vec<ClientSlot> {
        let mut slots = Vec::new();
        for (number, served) in served.iter().enumerate() {
            let new = ClientState::new(
                Client(number as u64),
                5,
                crate::mean_times::MeanTimes::default(),
                0.0,
                0,
            );
            let slot = state.add(new);
            if let Some(client) = state.get_mut(slot) {
                (client.mode, client.served, client.active_at) = (Mode::Background, *served, 99 * MS);
            }
            state.account(slot, |ledger| {
                ledger.grant(US);
                ledger.report(US, US, US)
            });
            slots.push(slot);
        }
        slots
    }

    #[test]
    fn who_takes_no_credit_keeps_nobody_from_running_ahead() {
        let config = Config {
            switch_cost: 100 * US,
            ..Config::default()
        };
        let mut state = SchedulerState::new(config, true);
        let slots = equals(&mut state, &[0, 0]);
        let runs_ahead = |state: &SchedulerState| [0, 1].map(|at| state.may_have_window(slots[at], US, 100 * MS));
        assert_eq!(
            runs_ahead(&state),
            [false, false],
            "the device switches between the two"
        );
        state.rest(slots[0], 105 * MS);
        state.rest(slots[0], 115 * MS);
        assert_eq!(runs_ahead(&state), [false, true]);
        // With nobody else, the window of one that rests would be granted for ever.
        state.rest(slots[1], 115 * MS);
        assert_eq!(runs_ahead(&state), [false, false]);
        state.lives(slots[1]);
        state.lives(slots[0]);
        assert_eq!(runs_ahead(&state), [false, false]);
        state.rest(slots[0], 125 * MS);
        state.remove(slots[0]);
        assert!(state.may_have_window(slots[1], US, 100 * MS));
    }

    #[test]
    fn an_idle_job_keeps_nobody_from_running_ahead() {
        let config = Config {
            switch_cost: 100 * US,
            ..Config::default()
        };
        let grace = config.idle_grace;
        let mut state = SchedulerState::new(config, true);
        let slots = equals(&mut state, &[0, 0]);
        let mut out = Vec::new();
        let idle_since = 99 * MS;
        let runs_ahead = |state: &SchedulerState, now| [0, 1].map(|at| state.may_have_window(slots[at], US, now));
        let uses = |state: &mut SchedulerState, at: usize, now| {
            if let Some(client) = state.get_mut(slots[at]) {
                client.active_at = now;
            }
        };
        uses(&mut state, 1, idle_since + grace);
        state.look_after_idle(idle_since + grace, &mut out);
        assert_eq!(
            runs_ahead(&state, idle_since + grace),
            [false, false],
            "it may be back at once"
        );
        let later = idle_since + 2 * grace;
        state.account(slots[0], |ledger| {
            ledger.grant(US);
            ledger.report(2 * US, US, US)
        });
        state.look_after_idle(later, &mut out);
        assert_eq!(runs_ahead(&state, later), [false, false], "its work is on the device");
        state.account(slots[0], |ledger| ledger.report(2 * US, 2 * US, US));
        uses(&mut state, 1, later + grace);
        state.look_after_idle(later + grace, &mut out);
        assert_eq!(runs_ahead(&state, later + grace), [false, true]);
        // It comes to the gate.
        state.lives(slots[0]);
        assert_eq!(runs_ahead(&state, later + grace), [false, false]);
    }

    #[test]
    fn who_joins_equals_has_no_claim_and_no_debt() {
        let mut state = SchedulerState::new(Config::default(), true);
        let slots = equals(&mut state, &[900 * MS, 400 * MS, 300 * MS, 0, 0]);
        let served = |state: &SchedulerState, at: usize| state.get(slots[at]).map(|client| client.served);
        // Another priority: what it used more there is no debt here.
        for slot in [slots[3], slots[4]] {
            state.rest(slot, 100 * MS);
        }
        state.join_equals(slots[0], 100 * MS);
        assert_eq!(served(&state, 0), Some(300 * MS));
        // A stopped job that goes on, and a new one.
        state.forget_absence(slots[3], 100 * MS);
        assert_eq!(served(&state, 3), Some(300 * MS));
        state.account(slots[4], |ledger| *ledger = CreditLedger::default());
        state.lives(slots[4]);
        state.forget_absence(slots[4], 100 * MS);
        assert_eq!(served(&state, 4), Some(300 * MS));
        // Those that ran all the time keep what they used.
        state.forget_absence(slots[1], 100 * MS);
        assert_eq!(served(&state, 1), Some(400 * MS));
    }
}
