//! The scheduler as a pure state machine: events and the time go in, decisions come out. No clock,
//! no thread, no socket.
//!
//! The core runs in the daemon (real time) and in the lab (virtual time), so a failing schedule is
//! a seed.
//!
//! # How to drive it
//!
//! 1. Read the epoch page's launch epochs, then the lanes' records (launches, idle).
//! 2. Read the lanes' reports: [`Event::Progress`], then [`Event::Holds`] and [`Event::Waits`] for
//!    each lane that says it waits, as often as it says so.
//! 3. Tell each to [`Core::handle`] and carry out the [`Decision`]s in their order.
//! 4. Tell [`Event::Tick`] at [`Core::next_wake`] at the latest.
//!
//! # What holds
//!
//! * A foreground job is never told to wait; a job that is alone is told nothing more.
//! * Background work out (unused credit, and work not seen to end) is at most
//!   `max(delay_bound, delay_bound / 2 + one kernel)`, by [`Config::delay_bound`]. Exception: a job
//!   whose own work does not end gets one more launch after each [`Config::stuck_after`].
//! * Credit is conserved: granted = issued + revoked + left, whatever a client reports.
//! * A client that is gone holds nothing.
//! * Every waiting background job gets credit in the end: by a gap, its turn, or the minimum share.
//! * Clients of the most important priority are foreground jobs. Exception: equals whose memory
//!   does not fit the device together take turns.
//!
//! # Modules
//!
//! | module | what it does |
//! |---|---|
//! | `timeline`, `times` | predict the foreground job |
//! | `ledger` | keeps a background job's credit |
//! | `queue` | finds the kernel that fits |
//! | `state` | holds all of it |
//! | `intake` | books what clients say |
//! | `policy`, `decide` | give verdicts, and make decisions of them |
//! | `rota` | long turns of equals |
//! | `foresight` | learns what follows a foreground job's kernels |
//! | `slack` | learns how late a foreground job's kernel may be |
//! | `pace` | learns how long background kernels take |
//! | `device` | background work on the device, by the clock |
//!
//! The last four are for policy `weft` and blank under the others.
#![forbid(unsafe_code)]

mod client;
mod config;
mod decide;
mod device;
mod event;
mod foresight;
mod intake;
mod ledger;
mod pace;
mod policy;
mod queue;
mod rota;
mod slack;
mod snapshot;
mod state;
mod timeline;
mod times;

pub use config::{Config, PolicyName, UnknownPolicy};
pub use event::{Decision, Event};
pub use snapshot::{ClientView, Counters, ForecastView, GapView, Snapshot, WaitView};

use client::ClientState;
use foresight::Foresight;
use pace::Pace;
use policy::Policy;
use rota::Rota;
use state::State;
use timeline::Phase;
use times::Times;

pub use weft_protocol::{Client, Ns, credit::RunAheadWindow, lane::Mode};

/// The scheduler.
#[derive(Debug)]
pub struct Core {
    state: State,
    policy: Box<dyn Policy>,
    rota: Rota,
    now: Ns,
    wake: Option<Ns>,
    /// No minimum share is granted before this.
    next_share: Ns,
    /// The gap that was counted last: its begin, and whether its length was known.
    counted_gap: Option<(Ns, bool)>,
    /// Whether a run-ahead window may be out.
    leased: bool,
}

impl Core {
    /// Scheduler without clients.
    pub fn new(config: Config) -> Core {
        Core {
            policy: policy::by_name(config.policy),
            state: State::new(config),
            rota: Rota::default(),
            now: 0,
            wake: None,
            next_share: 0,
            counted_gap: None,
            leased: false,
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.state.config
    }

    /// Takes in an event and appends decisions to `out`. `now` must not go backwards; an earlier
    /// time counts as the last one.
    pub fn handle(&mut self, now: Ns, event: Event, out: &mut Vec<Decision>) {
        self.now = self.now.max(now);
        self.state.counters.events += 1;
        if let Some(due) = self.wake.filter(|due| self.now > *due) {
            self.state.device.wake_took(self.now - due);
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
                let times = profile.as_deref().map(Times::of).unwrap_or_default();
                let priority = self.priority(priority);
                let class = self.policy.class(priority);
                let doubt = if times.is_empty() { self.state.config.doubt } else { 0.0 };
                let mut new = ClientState::new(client, priority, class, times, doubt, self.now);
                if let Some(profile) = profile.filter(|_| self.state.foresees()) {
                    // Also where the device does not switch now: that may change.
                    let may_take = self.state.config.spread(&profile);
                    (new.foresight, new.pace) = (Foresight::of(&profile), Pace::of(&profile, may_take));
                }
                self.state.add(new);
                self.assign_modes(out);
            }
            Event::Gone(client) => {
                let Some(slot) = self.known(client) else { return };
                self.policy.forget(slot);
                self.rota.forget(slot);
                self.state.remove(slot);
                self.assign_modes(out);
            }
            Event::Priority(client, priority) => {
                let Some(slot) = self.known(client) else { return };
                let priority = self.priority(priority);
                self.policy.forget(slot);
                self.rota.forget(slot);
                let class = self.policy.class(priority);
                if let Some(client) = self.state.get_mut(slot) {
                    (client.priority, client.class) = (priority, class);
                }
                self.requeue(slot);
                self.assign_modes(out);
            }
            Event::Unprofiled(client) => {
                let Some(slot) = self.known(client) else { return };
                let doubt = self.state.config.doubt;
                if let Some(client) = self.state.get_mut(slot) {
                    client.times = Times::default();
                    client.timeline.doubt(doubt);
                    (client.foresight, client.pace) = Default::default();
                }
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
                let foresees = self.state.foresees();
                if let Some(client) = self.state.get_mut(slot)
                    && client.timeline.idle(at)
                    && foresees
                    && client.mode == Mode::Foreground
                {
                    client.foresight.ended(at);
                    client.slack.waited(at);
                    // With several, the others may have work there.
                    if let [_] = self.state.foreground_jobs[..] {
                        self.state.worked.ended(at);
                    }
                }
            }
            Event::Stirred(client, at) => {
                let Some(slot) = self.known(client) else { return };
                let at = self.past(at);
                let foresees = self.state.foresees();
                if let Some(client) = self.state.get_mut(slot) {
                    if foresees && client.mode == Mode::Foreground {
                        let end = client.timeline.end_if_launched().unwrap_or(at);
                        client.foresight.stirs(at, end);
                    }
                    client.timeline.stir(at);
                    client.active_at = client.active_at.max(at);
                }
                if self.state.mode(slot) == Some(Mode::Foreground) {
                    self.foreground_is_back(out);
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
            Event::Crowded { client, turn } => {
                let Some(slot) = self.known(client) else { return };
                self.crowded(slot, turn, out);
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
                if self.state.foresees() {
                    self.sampled(slot, kernel, time, at);
                }
                return self.decide_soon();
            }
            Event::SwitchCost(cost) => self.state.config.switch_cost = cost,
            Event::Tick => {}
        }
        self.decide(out);
    }

    /// Decides a moment later, since more events of this iteration follow: a client whose work has
    /// ended is about to say whether it waits, and keeps the device for that moment.
    fn decide_soon(&mut self) {
        if self.state.waiting > 0 {
            self.wake_at(Some(self.now));
        }
    }

    /// When [`Event::Tick`] is due, if nothing happens before; never before `now`. `None`: never.
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
        Snapshot {
            policy: self.state.config.policy.as_str(),
            switch_cost: self.state.config.switch_cost,
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
            turns: self.rota.has(client),
            waiting: client.wait.map(|wait| WaitView {
                kernel: wait.kernel,
                cost: wait.cost,
                since: wait.since,
            }),
            launches: client.launches,
            work: client.work,
            busy_until: client.timeline.busy_until(),
            granted: client.ledger.granted(),
            renewed: client.ledger.renewed(),
            issued: client.ledger.issued(),
            revoked: client.ledger.revoked(),
            left: client.ledger.left(),
            outstanding: client.ledger.outstanding(),
            written_off: client.ledger.written_off(),
            starved: client.starved,
            gaps: ForecastView::of_gaps(client.foresight.quality()),
            times: ForecastView::of_times(client.pace.quality()),
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod weft_tests;
