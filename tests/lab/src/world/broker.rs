//! The daemon's half: when the broker looks at the lanes, what it tells the core, how it carries out what the core decides. Follows
//! `broker/src/daemon` (`scheduler`, `lanes`, `waiting`); constants that stand there are copied here by name.

use weft_broker::core::{Client, Config, Core, Decision, Event, Mode, Snapshot};

use super::{What, World};
use crate::{MS, Ns, US};

/// Waiting's.
const NEAR: Ns = 100 * US;
const SHORTEST_NAP: Ns = 50 * US;
const LONGEST_NAP: Ns = 500 * US;
const DOZE: Ns = 2 * MS;
const SLEEP: Ns = 200 * MS;
const QUIET: Ns = 20 * MS;
/// The scheduler's.
const ROUNDS: usize = 16;
/// A turn of a spinning broker: lanes are read that often.
const TURN: Ns = US;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Spin,
    Nap,
    Doze,
    Sleep,
}

/// The daemon.
#[derive(Debug)]
pub(super) struct Broker {
    core: Core,
    nap: Ns,
    wait: Wait,
    /// The turn that counts, and when it is.
    token: u32,
    next: Ns,
    last_record: Ns,
    filler_waits: bool,
    events: Vec<(Ns, Event)>,
    decisions: Vec<Decision>,
}

impl Broker {
    pub(super) fn new(config: Config) -> Broker {
        let reaction = config.open_after;
        Broker {
            core: Core::new(config),
            nap: reaction,
            wait: Wait::Sleep,
            token: 0,
            next: Ns::MAX,
            last_record: 0,
            filler_waits: false,
            events: Vec::new(),
            decisions: Vec::new(),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.core.snapshot()
    }

    pub(super) fn events(&self) -> u64 {
        self.core.snapshot().counters.events
    }

    /// How to wait now, and until when.
    fn choose(&self, now: Ns, spin: bool) -> (Wait, Ns) {
        let due = self.core.next_wake(now).map(|at| at.saturating_sub(now));
        if due == Some(0) {
            return (Wait::Spin, now + TURN);
        }
        let at_most = |longest: Ns| now + due.map_or(longest, |due| due.min(longest));
        if self.filler_waits {
            return match due {
                Some(due) if spin && due <= NEAR => (Wait::Spin, now + due.max(TURN)),
                _ => (Wait::Nap, at_most(self.nap)),
            };
        }
        if now.saturating_sub(self.last_record) < QUIET {
            return (Wait::Doze, at_most(DOZE));
        }
        (Wait::Sleep, at_most(SLEEP))
    }
}

impl World {
    /// Tells the core of everybody, before anything runs.
    pub(super) fn attach_all(&mut self) {
        let Some(mut broker) = self.broker.take() else { return };
        let reaction = broker.nap;
        let nap = if self.hosts.spin { reaction / 4 } else { reaction / 2 };
        broker.nap = nap.clamp(SHORTEST_NAP, LONGEST_NAP);
        let policy = broker.core.config().policy;
        let unknown = broker.core.config().unknown_cost;
        for (job, process) in self.processes.iter_mut().enumerate() {
            let profile = process.lane.profile.clone();
            process.lane.unknown = unknown;
            if let Some(profile) = &profile {
                process.lane.costs = policy.costs(profile).into_iter().collect();
                process.lane.unknown = profile.typical_cost().unwrap_or(unknown);
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

    /// A client rings: a filler that begins to wait, or anybody after a silence.
    pub(super) fn ring(&mut self, filler: bool) {
        let Some(broker) = &self.broker else { return };
        let heard = match broker.wait {
            Wait::Sleep => true,
            Wait::Doze => filler,
            Wait::Spin | Wait::Nap => false,
        };
        if heard {
            let at = self.wake_up();
            self.turn_at(at);
        }
    }

    /// A lane changed: a broker that spins sees it.
    pub(super) fn news(&mut self) {
        if self.broker.as_ref().is_some_and(|broker| broker.wait == Wait::Spin) {
            self.turn_at(self.now + TURN);
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
        self.at(at, What::Turn { token });
    }

    fn plan_turn(&mut self) {
        let (now, spin) = (self.now, self.hosts.spin);
        let late = self.random.between(self.hosts.oversleep);
        let Some(broker) = &mut self.broker else { return };
        let (wait, at) = broker.choose(now, spin);
        broker.wait = wait;
        broker.next = Ns::MAX;
        let late = if wait == Wait::Spin { 0 } else { late };
        self.turn_at(at + late);
    }

    pub(super) fn broker_turn(&mut self, token: u32) {
        if self.broker.as_ref().is_none_or(|broker| broker.token != token) {
            return;
        }
        self.read_lanes();
        self.carry_out();
        self.plan_turn();
    }

    fn read_lanes(&mut self) {
        let now = self.now;
        let Some(broker) = &mut self.broker else { return };
        broker.filler_waits = false;
        for (job, process) in self.processes.iter_mut().enumerate() {
            let client = Client(job as u64);
            let lane = &mut process.lane;
            if !lane.records.is_empty() {
                broker.last_record = now;
                broker.events.append(&mut lane.records);
            }
            if (lane.issued, lane.settled) != lane.told {
                lane.told = (lane.issued, lane.settled);
                broker.events.push((
                    now,
                    Event::Progress {
                        client,
                        issued: lane.issued,
                        settled: lane.settled,
                    },
                ));
            }
            if lane.waiting != lane.told_wait {
                lane.told_wait = lane.waiting;
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
            broker.filler_waits |= lane.waiting.is_some() && lane.mode == Mode::Filler;
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
                if (mode == Mode::Filler) != (lane.mode == Mode::Filler) {
                    lane.credit = 0;
                }
                lane.mode = mode;
                self.bell(job);
                None
            }
            Decision::Grant { client, credit, bound } => {
                let job = client.0 as usize;
                let above = self.above(self.processes[job].job.priority);
                let lane = &mut self.processes[job].lane;
                let same = lane.bound == bound && (!bound || lane.signs == above);
                let mut left = None;
                if !same {
                    left = Some(std::mem::take(&mut lane.credit)).filter(|left| *left != 0);
                    (lane.bound, lane.signs) = (bound, above);
                }
                lane.credit += credit as i64;
                self.bell(job);
                left.map(|left| Event::Revoked { client, left })
            }
            Decision::Revoke(client) => {
                let job = client.0 as usize;
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
