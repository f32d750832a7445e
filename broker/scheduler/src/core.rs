// SPDX-License-Identifier: MIT OR Apache-2.0
//! State machine of the scheduler: takes in events, and has the policy decide.
//!
//! Reports of clients are checked and bounded, then booked in [`SchedulerState`], then passed to
//! the policy.

use weft_protocol::{
    Client, Ns, PRIORITIES,
    lane::{Mode, is_transfer},
};

use crate::{
    action::CreditGrant,
    busy_model::Phase,
    client::{ClientState, KernelAtGate, SlowdownBudget},
    config::Config,
    delay_bound::top_up,
    dispatcher::Dispatcher,
    event::{Decision, Event},
    guarantee::Guarantee,
    mean_times::MeanTimes,
    policy::{self, Observed, Policy, PolicyTraits},
    queue::ClientSlot,
    snapshot::{self, ClientView, ForecastView, GapView, Snapshot, WaitView},
    state::SchedulerState,
    tally::{Lateness, RoleTally},
    turn_scheduler::{NextTurn, TurnScheduler},
};

/// Longest rest of a client that takes no credit, as a multiple of `stuck_after`. Its wasted grants
/// then take a thirtieth of the time, and a client that takes credit again is soon back.
const REST_FACTOR: u64 = 32;

/// The scheduler.
#[derive(Debug)]
pub struct Core {
    state: SchedulerState,
    policy: Box<dyn Policy>,
    traits: PolicyTraits,
    turns: TurnScheduler,
    now: Ns,
    wake: Option<Ns>,
}

impl Core {
    /// Scheduler without clients.
    pub fn new(config: Config) -> Core {
        let policy = policy::by_name(config.policy);
        Core::under(policy, config)
    }

    pub(crate) fn under(policy: Box<dyn Policy>, config: Config) -> Core {
        Core {
            state: SchedulerState::new(config, policy.traits().grants_by_clock),
            traits: policy.traits(),
            policy,
            turns: TurnScheduler::default(),
            now: 0,
            wake: None,
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.state.config
    }

    /// Takes in an event and appends decisions to `out`. `now` must not go backwards: an earlier
    /// time counts as the last one.
    pub fn handle(&mut self, now: Ns, event: Event, out: &mut Vec<Decision>) {
        self.now = self.now.max(now);
        self.state.counters.events += 1;
        if let Some(due) = self.wake.filter(|due| self.now > *due) {
            self.observe(&Observed::WokenLate(self.now - due), out);
        }
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
                let times = profile.as_deref().map(MeanTimes::of).unwrap_or_default();
                let priority = self.priority(priority);
                let margin = if times.is_empty() {
                    self.state.config.unprofiled_margin
                } else {
                    0.0
                };
                let new = ClientState::new(client, priority, times, margin, self.now);
                let slot = self.state.add(new);
                let profile = profile.as_deref();
                self.observe(&Observed::Attached { slot, profile }, out);
                self.assign_modes(out);
            }
            Event::Gone(client) => {
                let Some(slot) = self.known(client) else { return };
                self.turns.forget(slot);
                self.state.remove(slot);
                self.observe(&Observed::Removed { slot }, out);
                self.assign_modes(out);
            }
            Event::Priority(client, priority) => {
                let Some(slot) = self.known(client) else { return };
                let priority = self.priority(priority);
                self.observe(&Observed::TurnOver { slot }, out);
                self.turns.forget(slot);
                // Other launch epochs apply to another priority.
                if self.state.get(slot).is_some_and(|client| client.bound) {
                    self.state.order_revocation(slot, self.now, out);
                }
                if let Some(client) = self.state.get_mut(slot) {
                    (client.priority, client.class) = (priority, usize::from(priority));
                }
                self.state.join_equals(slot, self.now);
                self.requeue(slot);
                self.assign_modes(out);
            }
            Event::Budget {
                client,
                slowdown,
                slo,
                at_least,
            } => {
                let Some(slot) = self.known(client) else { return };
                let guarantee = Guarantee::new(at_least.unwrap_or(0.0), self.now);
                if let Some(client) = self.state.get_mut(slot) {
                    client.budget = SlowdownBudget::new(slowdown, slo);
                    if client.guarantee.part() != guarantee.part() {
                        client.guarantee = guarantee;
                    }
                }
                self.state.count_guarantees();
            }
            Event::Unprofiled(client) => {
                let Some(slot) = self.known(client) else { return };
                let margin = self.state.config.unprofiled_margin;
                if let Some(client) = self.state.get_mut(slot) {
                    client.times = MeanTimes::default();
                    client.busy.raise_margin(margin);
                }
                self.observe(&Observed::Unprofiled { slot }, out);
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
            Event::Idle(client, at) | Event::FoundIdle(client, at) => {
                let waited = matches!(event, Event::Idle(..));
                let Some(slot) = self.known(client) else { return };
                let at = self.past(at);
                let Some(client) = self.state.get_mut(slot) else { return };
                if client.busy.idle(at, waited) && client.mode == Mode::Foreground {
                    self.observe(&Observed::ForegroundIdle { slot, at }, out);
                    if !self.state.open {
                        self.stretch_is_over(out);
                    }
                }
            }
            Event::PartialWait {
                client,
                covers,
                since,
                at,
            } => {
                let Some(slot) = self.known(client) else { return };
                if self.state.mode(slot) == Some(Mode::Foreground) {
                    let (covers, since, at) = (self.past(covers), self.past(since), self.past(at));
                    let seen = Observed::PartialWait {
                        slot,
                        covers,
                        since,
                        at,
                    };
                    self.observe(&seen, out);
                }
            }
            Event::WakeUpHint(client, at) => {
                let Some(slot) = self.known(client) else { return };
                let at = self.past(at);
                let foreground = self.state.mode(slot) == Some(Mode::Foreground);
                if foreground {
                    self.observe(&Observed::WakeUpHint { slot, at }, out);
                }
                if let Some(client) = self.state.get_mut(slot) {
                    client.busy.wake_up_hint(at);
                    client.active_at = client.active_at.max(at);
                }
                if foreground && !self.state.open {
                    self.foreground_is_back(Return::WakeUpHint, out);
                }
            }
            Event::Waits {
                client,
                kernel,
                cost,
                since,
            } => {
                let Some(slot) = self.known(client) else { return };
                self.waits(slot, kernel, cost, since, out);
            }
            Event::Holds { client, left } => {
                let Some(slot) = self.known(client) else { return };
                self.state.holds(slot, left);
                return self.decide_soon();
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
            Event::Renewed { client, total } => {
                let Some(slot) = self.known(client) else { return };
                if self.state.account(slot, |ledger| ledger.renew(total)) == Some(false) {
                    self.state.counters.corrected += 1;
                }
                return self.decide_soon();
            }
            Event::Oversubscribed { client, turn } => {
                let Some(slot) = self.known(client) else { return };
                self.oversubscribed(slot, turn, out);
            }
            Event::Revoked { client, left } => {
                let Some(slot) = self.known(client) else { return };
                self.revoked(slot, left);
            }
            Event::Sampled {
                client,
                kernel,
                time,
                at,
            } => {
                let Some(slot) = self.known(client) else { return };
                let (time, at) = (time.min(self.state.config.longest_cost), self.past(at));
                self.observe(&Observed::Measured { slot, kernel, time, at }, out);
                return self.decide_soon();
            }
            Event::SampledBetween {
                client,
                kernel,
                least,
                most,
                at,
            } => {
                let Some(slot) = self.known(client) else { return };
                let (most, at) = (most.min(self.state.config.longest_cost), self.past(at));
                let bounds = (least.min(most), most);
                let seen = Observed::Bounded {
                    slot,
                    kernel,
                    bounds,
                    at,
                };
                self.observe(&seen, out);
                return self.decide_soon();
            }
            Event::SwitchCost(cost) => self.state.config.switch_cost = cost,
            Event::Slowdown(part) => self.state.config.slowdown = part.clamp(0.0, 1.0),
            Event::Tick => {}
        }
        self.decide(out);
    }

    /// Decides after the other events of this iteration. A client whose work has ended is about to
    /// report whether it waits.
    fn decide_soon(&mut self) {
        if self.state.waiting > 0 {
            self.wake_at(Some(self.now));
        }
    }

    /// Time at which [`Event::Tick`] is due, if no event comes before; never before `now`.
    pub fn next_wake(&self, now: Ns) -> Option<Ns> {
        self.wake.map(|wake| wake.max(now))
    }

    /// The state for people and tests.
    pub fn snapshot(&self) -> Snapshot {
        let gap = match self.state.foreground_jobs.is_empty() {
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
        let order = self.state.order.iter();
        let clients = order.filter_map(|slot| Some(self.view(*slot, self.state.get(*slot)?)));
        let clients = clients.collect();
        Snapshot {
            policy: self.state.config.policy.as_str(),
            switch_cost: self.state.config.switch_cost,
            clients,
            gap,
            exposure: self.state.exposure,
            counters: self.state.counters,
        }
    }

    fn view(&self, slot: ClientSlot, client: &ClientState) -> ClientView {
        let report = self.policy.report(slot, self.now);
        let lateness = report.lateness;
        let last = client.busy.last_activity().unwrap_or(0).max(client.active_at);
        ClientView {
            client: client.id.0,
            priority: client.priority,
            mode: snapshot::mode_name(client.mode),
            active: client.wait.is_some() || self.now < last.saturating_add(self.state.config.idle_grace),
            turns: self.turns.has(client),
            waiting: client.wait.map(|wait| WaitView {
                kernel: wait.kernel,
                cost: wait.cost,
                since: wait.since,
            }),
            launches: client.launches,
            work: client.work,
            busy_until: client.busy.busy_until(),
            slowdown_allowed: client.budget.slowdown(&self.state.config),
            slowdown_measured: lateness.and_then(|lateness| lateness.part()),
            lateness,
            stretch_times: report.stretch_times,
            slo: client.budget.slo(&self.state.config),
            at_least: client.guarantee.part(),
            granted: client.ledger.granted(),
            renewed: client.ledger.renewed(),
            issued: client.ledger.issued(),
            revoked: client.ledger.revoked(),
            left: client.ledger.left(),
            outstanding: client.ledger.outstanding(),
            occupied: client.occupied,
            written_off: client.ledger.written_off(),
            starved: client.starved,
            stuck: client.stuck,
            known_launches: client.known_launches,
            unknown_launches: client.unknown_launches,
            foreground: foreground_tally(client, lateness),
            background: report.background.unwrap_or(client.background),
            gaps: ForecastView::of_gaps(report.gaps),
            times: ForecastView::of_times(report.times),
        }
    }

    /// The policy, and the dispatcher for its actions.
    fn asked<'a>(&'a mut self, out: &'a mut Vec<Decision>) -> (&'a mut dyn Policy, Dispatcher<'a>) {
        let to = Dispatcher {
            state: &mut self.state,
            turns: &self.turns,
            wake: &mut self.wake,
            out,
            now: self.now,
        };
        (self.policy.as_mut(), to)
    }

    fn observe(&mut self, seen: &Observed<'_>, out: &mut Vec<Decision>) {
        let (policy, mut to) = self.asked(out);
        policy.observe(&mut to, seen);
    }

    // Taking events in.

    fn known(&mut self, client: Client) -> Option<ClientSlot> {
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

    /// Bounds a client's time to the last `longest_cost`.
    fn past(&mut self, at: Ns) -> Ns {
        let earliest = self.now.saturating_sub(self.state.config.longest_cost);
        if at > self.now || at < earliest {
            self.state.counters.corrected += 1;
        }
        at.clamp(earliest, self.now)
    }

    /// Bounds a client's cost to possible values.
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

    /// Gives every client its mode, and informs those whose mode changes.
    fn assign_modes(&mut self, out: &mut Vec<Decision>) {
        let first = self.state.most_important().unwrap_or(0);
        let alone = self.state.order.len() == 1;
        self.turns.count(&self.state);
        self.state.foreground_jobs.clear();
        for at in 0..self.state.order.len() {
            let slot = self.state.order[at];
            let Some(client) = self.state.get(slot) else { continue };
            let (id, old) = (client.id, client.mode);
            let new = match alone {
                true => Mode::Alone,
                false => self.turns.mode(client, first),
            };
            if new == Mode::Foreground {
                self.state.foreground_jobs.push(slot);
            }
            if new == old {
                continue;
            }
            if old == Mode::Background {
                self.state.lives(slot);
                self.state.pass(slot);
                self.state.empty(slot, self.now, out);
            }
            let (now, grace) = (self.now, self.state.config.idle_grace);
            if let Some(client) = self.state.get_mut(slot) {
                client.mode = new;
                // A client that was alone reported none of its work, and a new one has none.
                if new == Mode::Foreground && old != Mode::Free {
                    let busy = if old == Mode::Alone {
                        grace
                    } else {
                        client.ledger.outstanding()
                    };
                    client.busy.assume_busy(now, now.saturating_add(busy));
                }
                client.window = None;
            }
            self.forget_unreported(slot);
            self.observe(&Observed::ModeChanged { slot, before: old }, out);
            out.push(Decision::Mode(id, new));
        }
        self.keep_out(out);
    }

    /// Takes in a launch. Returns whether there may be anything to decide.
    fn launched(&mut self, slot: ClientSlot, kernel: u64, cost: Ns, at: Ns, out: &mut Vec<Decision>) -> bool {
        let (cost, at) = (self.cost(cost), self.past(at));
        let Some(client) = self.state.get_mut(slot) else {
            return false;
        };
        client.launches += 1;
        client.work = client.work.saturating_add(cost);
        client.active_at = client.active_at.max(at);
        match client.mode {
            Mode::Foreground => {
                self.foreground_launched(slot, kernel, cost, at, out);
                self.foreground_is_back(Return::of_launch(kernel), out);
                false
            }
            Mode::Background => self.background_launched(slot, kernel, cost, at, out),
            Mode::Free | Mode::Alone => false,
        }
    }

    fn foreground_launched(&mut self, slot: ClientSlot, kernel: u64, cost: Ns, at: Ns, out: &mut Vec<Decision>) {
        let (longest, bound) = (self.state.config.longest_cost, self.state.config.delay_bound);
        let behind = self.policy.work_ahead(&self.state, at);
        let Some(client) = self.state.get_mut(slot) else { return };
        let (cost, known) = client.times.of_launch(kernel, cost);
        let cost = cost.min(longest);
        client.count_known(kernel, known);
        client.foreground.launched(kernel, cost, bound);
        let earlier_end = client.busy.end_if_launched().unwrap_or(at);
        client.busy.launch(kernel, cost, at, behind, longest);
        let end = client.busy.end_if_launched().unwrap_or(at);
        let seen = Observed::ForegroundLaunched {
            slot,
            kernel,
            cost,
            at,
            earlier_end,
            end,
        };
        self.observe(&seen, out);
    }

    /// Returns whether the launch ends a wait.
    fn background_launched(
        &mut self,
        slot: ClientSlot,
        kernel: u64,
        cost: Ns,
        at: Ns,
        out: &mut Vec<Decision>,
    ) -> bool {
        let (bound, tallied) = (self.state.config.delay_bound, self.traits.tallies_background);
        let Some(client) = self.state.get_mut(slot) else {
            return false;
        };
        client.count_known(kernel, client.times.is_known(kernel));
        if !tallied {
            client.background.launched(kernel, cost, bound);
        }
        let passed = client
            .wait
            .is_some_and(|wait| wait.kernel == kernel && at >= wait.since);
        let seen = Observed::BackgroundLaunched {
            slot,
            kernel,
            cost,
            at,
            passed,
        };
        self.observe(&seen, out);
        if passed {
            self.state.pass(slot);
        }
        passed
    }

    /// Ends filling at the foreground job's first launch or wake-up hint. The launch epoch has
    /// voided the credit already; this brings the books up to date.
    ///
    /// Credit for a stretch of launches outlives the launches that were foreseen.
    fn foreground_is_back(&mut self, by: Return, out: &mut Vec<Decision>) {
        if self.state.exposed.is_empty() {
            return;
        }
        if let Some((_, true)) = self.state.counted_gap.take() {
            self.state.counters.early_returns += 1;
        }
        for at in 0..self.state.exposed.len() {
            let slot = self.state.exposed[at];
            let Some(client) = self.state.get_mut(slot).filter(|client| client.bound) else {
                continue;
            };
            match (by, client.outlives.checked_sub(1)) {
                (Return::Kernel, Some(left)) => client.outlives = left,
                // A copy moves no launch epoch.
                (Return::Copy, Some(_)) => {}
                _ => self.state.order_revocation(slot, self.now, out),
            }
        }
    }

    /// Ends credit that was to outlive launches of a stretch, once the stretch is over.
    fn stretch_is_over(&mut self, out: &mut Vec<Decision>) {
        for at in 0..self.state.exposed.len() {
            let slot = self.state.exposed[at];
            if self
                .state
                .get(slot)
                .is_some_and(|client| client.bound && client.outlives > 0)
            {
                self.state.order_revocation(slot, self.now, out);
            }
        }
    }

    fn revoked(&mut self, slot: ClientSlot, left: i64) {
        self.rest_if_untouched(slot, left);
        let (now, most) = (self.now, self.state.config.longest_cost);
        if let Some(client) = self.state.get_mut(slot) {
            // Credit granted after the order is in the word now.
            let ordered = client.revoked();
            client.emptied_at = ordered.filter(|_| !client.granted_since).map(|_| now);
        }
        let believed = self.state.account(slot, |ledger| ledger.revoke(left, most));
        if believed == Some(false) {
            self.state.counters.corrected += 1;
        }
        self.forget_unreported(slot);
        self.requeue(slot);
    }

    /// Forgets the outstanding work of a client that is no longer a background job: it does not
    /// report the ends. As a foreground job it is taken to be busy for that time.
    fn forget_unreported(&mut self, slot: ClientSlot) {
        let reports = |client: &ClientState| client.mode == Mode::Background || client.revoking.is_some();
        if self.state.get(slot).is_some_and(|client| !reports(client)) {
            self.state.account(slot, |ledger| ledger.write_off());
        }
    }

    /// Keeps a client out of the queue for a while if it waits, has credit and takes none of it, as
    /// a stopped process does. It has the longest wait, so it would get every turn, and others of
    /// its class none.
    fn rest_if_untouched(&mut self, slot: ClientSlot, left: i64) {
        let (now, stuck_after) = (self.now, self.state.config.stuck_after);
        let Some(client) = self.state.get_mut(slot) else { return };
        let untouched = client.unreported && client.wait.is_some() && left >= client.ledger.left();
        if !untouched || client.granted_since {
            return;
        }
        client.untouched = client.untouched.saturating_add(now.saturating_sub(client.granted_at));
        if client.untouched < stuck_after {
            return;
        }
        let rested = client.rest;
        let rest = rested.saturating_mul(2).clamp(stuck_after, stuck_after * REST_FACTOR);
        (client.untouched, client.rest) = (0, rest);
        if rested == 0 {
            // An unreported launch epoch may have voided the credit, which is granted again at
            // once.
            return;
        }
        self.state.rest(slot, now.saturating_add(rest));
        self.state.counters.rests += 1;
    }

    /// Puts clients whose rest is over back into the queue.
    fn look_after_resting(&mut self) {
        for at in 0..self.state.away.len() {
            let slot = self.state.away[at];
            match self.state.get(slot).map_or(0, |client| client.rests_until) {
                0 => {}
                until if self.now < until => self.wake_at(Some(until)),
                _ => {
                    let Some(client) = self.state.get_mut(slot) else {
                        continue;
                    };
                    client.rests_until = 0;
                    // The answer to a revocation puts it back.
                    if client.revoking.is_none() {
                        self.requeue(slot);
                    }
                }
            }
        }
    }

    /// Puts a wait into the queue, unless the client's credit covers it.
    fn requeue(&mut self, slot: ClientSlot) {
        let Some(client) = self.state.get(slot) else { return };
        if self.now < client.rests_until {
            self.state.unqueue(slot);
            return;
        }
        // Threads took the credit that an empty word leaves in the books, and have not reported it
        // yet.
        let empty = client.emptied_at.is_some();
        let covered = client
            .wait
            .is_none_or(|wait| !empty && SchedulerState::covered(client, &wait));
        match client.wait {
            Some(wait) if !covered && !client.not_its_turn && client.mode == Mode::Background => {
                let terms = self.policy.terms(&self.state, slot, &wait);
                self.state.enqueue(slot, terms.long, terms.due);
                if let Some(client) = self.state.get_mut(slot) {
                    client.longest_kernel = terms.longest;
                }
            }
            _ => self.state.unqueue(slot),
        }
    }

    fn waits(&mut self, slot: ClientSlot, kernel: u64, cost: Ns, since: Ns, out: &mut Vec<Decision>) {
        let cost = self.cost(cost);
        let Some(client) = self.state.get(slot).filter(|client| client.mode == Mode::Background) else {
            return;
        };
        // The begin of a long wait is bounded. No later wait begins before it.
        let same = client
            .wait
            .is_some_and(|wait| (wait.kernel, wait.cost) == (kernel, cost) && since <= wait.since);
        if same {
            return;
        }
        let (issued, attached_at) = (client.ledger.issued(), client.attached_at);
        let since = self.past(since).max(attached_at);
        let wait = KernelAtGate {
            kernel,
            cost,
            since,
            issued,
        };
        let leased = self.state.get(slot).is_some_and(|client| client.window.is_some());
        self.state.forget_absence(slot, self.now);
        self.state.lives(slot);
        self.state.wait(slot, wait);
        if leased {
            self.state.end_window(slot, self.now, out);
        } else {
            self.requeue(slot);
        }
    }

    /// Takes in a client's reports. Returns whether there is anything new.
    fn progress(&mut self, slot: ClientSlot, issued: Ns, settled: Ns, out: &mut Vec<Decision>) -> bool {
        let (now, most) = (self.now, self.state.config.longest_cost);
        self.state.forget_absence(slot, now);
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
        self.forget_unreported(slot);
        let Some(client) = self.state.get_mut(slot) else {
            return false;
        };
        client.progress_at = now;
        if had_none || change.settled > 0 {
            let began = if had_none { now } else { client.ended_at };
            client.occupied = client.occupied.saturating_add(now.saturating_sub(began));
            client.ended_at = now;
        }
        if change.settled > 0 {
            let completed = change.settled;
            self.observe(&Observed::Completed { slot, completed, now }, out);
        }
        if self.state.get(slot).is_some_and(|client| client.bound) {
            let issued = change.issued;
            self.observe(&Observed::GapUsed { slot, issued, now }, out);
        }
        if change.issued == 0 {
            return true;
        }
        self.state.lives(slot);
        let Some(client) = self.state.get_mut(slot) else {
            return false;
        };
        client.served = client.served.saturating_add(change.issued);
        client.guarantee.used(change.issued, now);
        client.active_at = now;
        client.unreported = false;
        client.untold = client.untold.saturating_sub(change.issued);
        let passed = client
            .wait
            .is_some_and(|wait| client.ledger.issued() >= wait.issued.saturating_add(wait.cost));
        if passed {
            self.state.pass(slot);
        } else {
            self.state.account(slot, |_| ());
        }
        if self.traits.grants_by_clock {
            // The lane reports replenished credit next.
            self.wake_at(Some(now));
        } else {
            self.top_up(slot, out);
        }
        true
    }

    // Deciding.

    /// Grants more to a background job before it asks, while no other client wants credit.
    fn top_up(&mut self, slot: ClientSlot, out: &mut Vec<Decision>) {
        if !self.state.may_top_up(slot) {
            return;
        }
        if let Some(total) = top_up(&self.state, slot, self.now) {
            self.asked(out).1.grant(&CreditGrant::bound(slot, total));
        }
    }

    /// Looks after the clients that a policy leaves out, and has the policy decide.
    fn decide(&mut self, out: &mut Vec<Decision>) {
        self.wake = None;
        self.state.look_after_idle(self.now, out);
        self.observe(&Observed::Decides, out);
        if self.state.waiting > 0 {
            self.look_after_turns(out);
            self.look_after_resting();
            self.look_after_exposed(out);
        }
        let (policy, mut to) = self.asked(out);
        policy.decide(&mut to);
    }

    fn wake_at(&mut self, at: Option<Ns>) {
        let Some(at) = at else { return };
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Prevents work that never ends from holding up other clients or its own.
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
            // At most twenty times `write_off_after`. Launches without credit count only once. If
            // each counted ten times, one per millisecond behind work that never ends would prolong
            // the wait faster than time passes.
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
                // The answer never came.
                client.revoked();
                let left = client.ledger.left();
                self.state.account(slot, |ledger| ledger.revoke(left, 0));
                self.requeue(slot);
                at = 0;
                continue;
            }
            let idle_credit = !client.not_its_turn || client.revocable();
            if client.wait.is_some() && client.queued.is_none() && client.revoking.is_none() && idle_credit {
                // The client has credit and does not launch: an unseen launch epoch has voided the
                // credit.
                let due = client.granted_at.saturating_add(stuck_after);
                if now < due {
                    self.wake_at(Some(due));
                } else {
                    self.state.order_revocation(slot, self.now, out);
                }
                continue;
            }
            if outstanding == 0 {
                // A thread died or stopped before its report, or the client lies.
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
            // Launches behind work that never ends must not prolong this.
            let lost = client.ended_at.saturating_add(write_off_after).saturating_add(patience);
            if now >= lost {
                self.state.account(slot, |ledger| ledger.write_off());
                self.state.counters.write_offs += 1;
                // The list has changed.
                at = 0;
                continue;
            }
            // Out of turn too: the next launch may end the work.
            let stuck = client.wants().map(|wait| {
                let since = client.progress_at.max(client.granted_at).max(wait.since);
                let out_of_turn = client.oversubscribed.filter(|_| client.not_its_turn).unwrap_or(0) / 4;
                let patience = stuck_after.saturating_add(outstanding.saturating_mul(2).max(client.longest_kernel));
                (since.saturating_add(patience).saturating_add(out_of_turn), wait.cost)
            });
            self.wake_at(Some(lost));
            match stuck {
                Some((due, cost)) if now >= due => {
                    self.state.counters.stuck_grants += 1;
                    if let Some(client) = self.state.get_mut(slot) {
                        client.stuck += 1;
                    }
                    self.asked(out).1.grant(&CreditGrant::kept(slot, cost));
                }
                Some((due, _)) => self.wake_at(Some(due)),
                None => {}
            }
        }
    }

    // Long turns.

    /// Takes in whether a client's memory does not fit together with others', and the length of its
    /// turns.
    fn oversubscribed(&mut self, slot: ClientSlot, turn: Option<Ns>, out: &mut Vec<Decision>) {
        let turn = turn.map(TurnScheduler::length);
        let Some(client) = self.state.get_mut(slot) else { return };
        let before = std::mem::replace(&mut client.oversubscribed, turn);
        if before.is_some() != turn.is_some() {
            self.assign_modes(out);
        }
    }

    /// Takes clients out of turn from the queue and puts all others in.
    fn keep_out(&mut self, out: &mut Vec<Decision>) {
        self.turns.end_stale(&self.state);
        for at in 0..self.state.order.len() {
            let slot = self.state.order[at];
            let Some(client) = self.state.get(slot) else { continue };
            let kept_out = self.turns.keeps_out(client, slot);
            if kept_out != client.not_its_turn {
                self.set_kept_out(slot, kept_out, out);
            }
        }
    }

    fn set_kept_out(&mut self, slot: ClientSlot, kept_out: bool, out: &mut Vec<Decision>) {
        let Some(client) = self.state.get_mut(slot) else { return };
        client.not_its_turn = kept_out;
        if kept_out {
            self.state.unqueue(slot);
            self.state.order_revocation(slot, self.now, out);
        } else if client.revoking.is_none() {
            // The answer to a revocation puts it back.
            self.requeue(slot);
        }
    }

    /// Hands over turns that are due.
    fn look_after_turns(&mut self, out: &mut Vec<Decision>) {
        for class in 0..PRIORITIES {
            match self.turns.next(class, &self.state, self.now) {
                NextTurn::Nothing => {}
                NextTurn::At(again) => self.wake_at(Some(again)),
                NextTurn::Of(slot) => self.hand_over(class, slot, out),
            }
        }
    }

    fn hand_over(&mut self, class: usize, slot: ClientSlot, out: &mut Vec<Decision>) {
        let (before, until) = self.turns.begin(class, slot, &self.state, self.now);
        if let Some(before) = before {
            if let Some(client) = self.state.get_mut(before) {
                client.turned_at = self.now;
            }
            self.observe(&Observed::TurnOver { slot: before }, out);
            self.set_kept_out(before, true, out);
        }
        self.state.counters.long_turns += 1;
        self.set_kept_out(slot, false, out);
        self.wake_at(Some(until));
    }
}

/// Tally of a client as a foreground job. Without a profile its launches have no times. Then the
/// time from first launches to waits counts.
fn foreground_tally(client: &ClientState, lateness: Option<Lateness>) -> RoleTally {
    match lateness {
        Some(lateness) if client.times.is_empty() => RoleTally {
            gpu: lateness.stretches as Ns,
            at_most: lateness.stretches as Ns,
            brief: 0,
            ..client.foreground
        },
        _ => client.foreground,
    }
}

/// Way in which a foreground job comes back.
#[derive(Debug, Clone, Copy)]
enum Return {
    Kernel,
    Copy,
    WakeUpHint,
}

impl Return {
    fn of_launch(kernel: u64) -> Return {
        match is_transfer(kernel) {
            true => Return::Copy,
            false => Return::Kernel,
        }
    }
}
