//! The daemon's half: when the broker looks at the lanes, what it tells the core, how it carries
//! out what the core decides. Follows (`scheduler`, `lanes`) step by step; how to wait is decided
//! by the daemon's own `waiting`.

use std::time::Duration;

use weft_daemon::test_driver::{Scene, Wait, Waiting};
use weft_scheduler::{Client, Config, Core, Decision, Event, Mode, Snapshot};

use super::gate::GateBell;
use super::{LabMachine, MachineEvent};
use crate::{Ns, US};

/// The scheduler's.
const ROUNDS: usize = 16;
/// The lanes': a foreground job is asked to ring for its idleness no more often.
const RING_PAUSE_NS: Ns = 1_000 * US;
/// A turn of a spinning broker: lanes are read that often.
const ITERATION_NS: Ns = US;

/// The daemon.
#[derive(Debug)]
pub(super) struct Broker {
    core: Core,
    waiting: Waiting,
    wait: Wait,
    /// It napped last, and will probably do so again.
    naps: bool,
    /// The turn that counts, and when it is.
    token: u32,
    next: Ns,
    last_record: Ns,
    background_waits: bool,
    events: Vec<(Ns, Event)>,
    decisions: Vec<Decision>,
}

impl Broker {
    /// `spin`: whether it has a core to spin on.
    pub(super) fn new(config: Config, spin: bool) -> Broker {
        let reaction = config.open_after;
        Broker {
            core: Core::new(config),
            waiting: Waiting::new(spin, reaction),
            wait: Wait::Sleep(Duration::ZERO),
            naps: false,
            token: 0,
            next: Ns::MAX,
            last_record: 0,
            background_waits: false,
            events: Vec::new(),
            decisions: Vec::new(),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.core.snapshot()
    }

    /// Background job work that the core takes for out, and when it expects the last foreground
    /// job's work to end.
    pub(super) fn believes(&self) -> (Ns, Ns) {
        let snapshot = self.core.snapshot();
        let foreground_jobs = snapshot.clients.iter().filter(|client| client.mode == "foreground");
        (
            snapshot.exposure,
            foreground_jobs.map(|client| client.busy_until).max().unwrap_or(0),
        )
    }

    pub(super) fn delay_bound(&self) -> Ns {
        self.core.config().delay_bound
    }

    pub(super) fn events(&self) -> u64 {
        self.core.snapshot().counters.events
    }

    /// How to wait now, and until when.
    fn choose(&self, now: Ns, alone: bool) -> (Wait, Ns) {
        let next_wake = self.core.next_wake(now);
        let wait = self.waiting.choose(
            now,
            &Scene {
                background_waits: self.background_waits,
                alone,
                last_record: self.last_record,
                next_wake,
            },
        );
        let at = match wait {
            // A spin sees what changes at once; if nothing does, the next turn that counts is the
            // one that is due.
            Wait::Spin => next_wake.unwrap_or(now).max(now + ITERATION_NS),
            Wait::Nap(time) | Wait::Doze(time) | Wait::Sleep(time) => now + time.as_nanos() as Ns,
        };
        (wait, at)
    }
}

impl LabMachine {
    /// Tells the core of everybody, before anything runs.
    pub(super) fn attach_all(&mut self) {
        let Some(mut broker) = self.broker.take() else { return };
        let config = broker.core.config().clone();
        for (job, process) in self.processes.iter_mut().enumerate() {
            let profile = process.lane.profile.clone();
            process.lane.unknown = config.unknown_cost;
            if let Some(profile) = &profile {
                process.lane.costs = profile.mean_costs().into_iter().collect();
                process.lane.longs = config.may_take(profile).into_iter().collect();
                process.lane.unknown = profile.typical_cost().unwrap_or(config.unknown_cost);
            }
            let event = Event::Attached {
                client: Client(job as u64),
                priority: process.job.priority,
                profile,
            };
            broker.core.handle(0, event, &mut broker.decisions);
        }
        self.broker = Some(broker);
        self.carry_out();
        self.plan_turn();
    }

    /// A client has something to say, or has become idle: it rings if it is asked to.
    pub(super) fn ring(&mut self, job: usize, idle: bool) {
        let Some(broker) = &self.broker else { return };
        let wanted = &mut self.processes[job].lane.bell;
        let rings = *wanted == GateBell::All || (idle && *wanted == GateBell::Idle);
        if !rings {
            return;
        }
        *wanted = GateBell::None;
        if broker.wait != Wait::Spin {
            let at = self.wake_up();
            self.turn_at(at);
        }
    }

    /// Before a turn after which the broker may nap.
    fn want_bells_in_nap(&mut self) {
        let now = self.now;
        for process in &mut self.processes {
            let lane = &mut process.lane;
            let wanted = if lane.mode == Mode::Background {
                GateBell::All
            } else {
                GateBell::Idle
            };
            let asked = lane.bell_asked.filter(|_| wanted == GateBell::Idle);
            if lane.bell == wanted || asked.is_some_and(|asked| now - asked < RING_PAUSE_NS) {
                continue;
            }
            if wanted == GateBell::Idle {
                lane.bell_asked = Some(now);
            }
            lane.bell = wanted;
        }
    }

    /// Before a sleep (`Some`: by anybody, or by background jobs alone) and after it.
    fn want_bells(&mut self, by_anybody: Option<bool>) {
        for process in &mut self.processes {
            let lane = &mut process.lane;
            lane.bell_asked = None;
            lane.bell = match by_anybody {
                Some(by_anybody) if by_anybody || lane.mode != Mode::Foreground => GateBell::All,
                _ => GateBell::None,
            };
        }
    }

    /// A lane changed: a broker that spins sees it.
    pub(super) fn news(&mut self) {
        if self.broker.as_ref().is_some_and(|broker| broker.wait == Wait::Spin) {
            self.turn_at(self.now + ITERATION_NS);
        }
    }

    fn turn_at(&mut self, at: Ns) {
        let Some(broker) = &mut self.broker else { return };
        if at >= broker.next {
            return;
        }
        broker.token += 1;
        broker.next = at;
        let token = broker.token;
        self.at(at, MachineEvent::Turn { token });
    }

    fn plan_turn(&mut self) {
        let (now, alone) = (self.now, self.processes.len() == 1);
        let late = self.random.between(self.hosts.oversleep);
        let Some(broker) = &mut self.broker else { return };
        let (wait, at) = broker.choose(now, alone);
        broker.wait = wait;
        broker.naps = matches!(wait, Wait::Nap(_));
        broker.next = Ns::MAX;
        let late = if wait == Wait::Spin { 0 } else { late };
        match wait {
            Wait::Sleep(_) => self.want_bells(Some(true)),
            Wait::Doze(_) => self.want_bells(Some(false)),
            Wait::Spin | Wait::Nap(_) => {}
        }
        self.turn_at(at + late);
    }

    pub(super) fn broker_turn(&mut self, token: u32) {
        let Some(broker) = self.broker.as_ref().filter(|broker| broker.token == token) else {
            return;
        };
        if broker.naps {
            self.want_bells_in_nap();
        } else if broker.wait != Wait::Spin {
            self.want_bells(None);
        }
        self.read_lanes();
        self.carry_out();
        self.note_stands();
        self.plan_turn();
    }

    fn read_lanes(&mut self) {
        let now = self.now;
        let Some(broker) = &mut self.broker else { return };
        broker.background_waits = false;
        for (job, process) in self.processes.iter_mut().enumerate() {
            let client = Client(job as u64);
            let lane = &mut process.lane;
            if let Some((_, last)) = lane.records.last() {
                broker.last_record = now;
                lane.told_idle = matches!(last, Event::Idle(..));
                broker.events.append(&mut lane.records);
            }
            let progressed = (lane.issued, lane.settled, lane.renewed) != lane.told;
            if progressed {
                let renewed = lane.renewed > 0;
                lane.told = (lane.issued, lane.settled, lane.renewed);
                broker.events.push((
                    now,
                    Event::Progress {
                        client,
                        issued: lane.issued,
                        settled: lane.settled,
                    },
                ));
                if renewed {
                    let total = lane.renewed;
                    broker.events.push((now, Event::Renewed { client, total }));
                }
            }
            // Told again after other news, as the daemon does, and what is in the word before it.
            if lane.waiting != lane.told_wait || (progressed && lane.waiting.is_some()) {
                lane.told_wait = lane.waiting;
                if lane.waiting.is_some() {
                    let left = lane.credit;
                    broker.events.push((now, Event::Holds { client, left }));
                }
                let event = match lane.waiting {
                    Some(waiting) => Event::Waits {
                        client,
                        kernel: waiting.kernel,
                        cost: waiting.cost,
                        since: waiting.since,
                    },
                    None => Event::Passed(client),
                };
                broker.events.push((now, event));
            }
            broker.background_waits |= lane.waiting.is_some() && lane.mode == Mode::Background;
        }
        broker.events.sort_by_key(|(at, _)| *at);
        for (_, event) in broker.events.drain(..) {
            broker.core.handle(now, event, &mut broker.decisions);
        }
        if broker.core.next_wake(now).is_some_and(|at| at <= now) {
            broker.core.handle(now, Event::Tick, &mut broker.decisions);
        }
    }

    fn carry_out(&mut self) {
        let now = self.now;
        for _ in 0..ROUNDS {
            let Some(broker) = &mut self.broker else { return };
            let decisions = std::mem::take(&mut broker.decisions);
            if decisions.is_empty() {
                return;
            }
            let answers: Vec<Event> = decisions
                .into_iter()
                .filter_map(|decision| self.obey(decision))
                .collect();
            let Some(broker) = &mut self.broker else { return };
            for event in answers {
                broker.core.handle(now, event, &mut broker.decisions);
            }
        }
    }

    /// Writes an order into a lane.
    fn obey(&mut self, decision: Decision) -> Option<Event> {
        match decision {
            Decision::Mode(client, mode) => {
                let job = client.0 as usize;
                let lane = &mut self.processes[job].lane;
                let mut left = 0;
                if (mode == Mode::Background) != (lane.mode == Mode::Background) {
                    left = std::mem::take(&mut lane.credit);
                    lane.window = None;
                }
                lane.mode = mode;
                self.bell(job);
                (left != 0).then_some(Event::Revoked { client, left })
            }
            Decision::Grant { client, credit, bound } => {
                let job = client.0 as usize;
                let above = self.sum_above(self.processes[job].job.priority);
                let lane = &mut self.processes[job].lane;
                let same = lane.bound == bound && (!bound || lane.epochs == above);
                let mut left = None;
                if !same {
                    left = Some(std::mem::take(&mut lane.credit)).filter(|left| *left != 0);
                    (lane.bound, lane.epochs) = (bound, above);
                }
                lane.credit += credit as i64;
                self.bell(job);
                left.map(|left| Event::Revoked { client, left })
            }
            Decision::RunAheadWindow(client, window) => {
                let job = client.0 as usize;
                self.processes[job].lane.window = window;
                self.bell(job);
                None
            }
            // What a timed launch tells is not modelled: jobs here see their ends at the gate.
            Decision::Times(..) => None,
            Decision::Revoke(client) => {
                let job = client.0 as usize;
                self.processes[job].lane.window = None;
                let left = std::mem::take(&mut self.processes[job].lane.credit);
                self.bell(job);
                Some(Event::Revoked { client, left })
            }
        }
    }

    /// At the end: everything is told, so that the books can be compared with the words.
    pub(super) fn settle_accounts(&mut self) {
        if self.broker.is_some() {
            self.read_lanes();
            self.carry_out();
        }
    }
}
