// SPDX-License-Identifier: MIT OR Apache-2.0
//! The world of a run in virtual time: the broker's scheduler, driven step by step; processes;
//! their clocks; and the troubles.
//!
//! Processes continue in the middle of a broker's turn. Between any two events, and between any two
//! decisions, time passes and threads step. Sometimes the broker loses its core just there.
#![forbid(unsafe_code)]

mod troubles;
mod turn;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_daemon::server::Host;
use weft_daemon::test_driver::{Ending, FakeClient, FakeClients, Moment, TestDriver, Wait};
use weft_gate::wait::WaitEnd;
use weft_protocol::transport::map::SharedLane;
use weft_scheduler::{Client, Decision, Event, Mode, Ns};

use crate::chance::SeededChance;
use crate::check::{Books, Broken, name};
use crate::clock;
use crate::process::{ProcessLife, SimProcess};
use crate::scenario::{CHANCE_OF_BROKER, FaultScenario, MS, PlannedTrouble, ScenarioJob, US};
use crate::thread::{self, Stage};

/// Result of a run.
#[derive(Debug, Default)]
pub struct RunOutcome {
    /// Events that the core took in.
    pub events: u64,
    /// Violated invariant, if any.
    pub broken: Option<Broken>,
    /// Last lines of the log, if one was kept.
    pub log: VecDeque<String>,
    /// Number of occurrences of each kind of event.
    pub counts: HashMap<&'static str, u64>,
}

/// Launches that the broker may lag behind before records may be lost: a lane holds 4096 records.
const LAGS: usize = 600;

/// Lines kept.
const LOG: usize = 400;

pub(crate) struct FaultWorld {
    scenario: FaultScenario,
    now: Ns,
    broker_offset: i64,
    broker_at: Ns,
    broker_sleeps: bool,
    broker_naps: bool,
    chance: SeededChance,
    visitors: Option<FakeClients>,
    pub(crate) processes: Vec<SimProcess>,
    arrivals: Vec<ScenarioJob>,
    troubles: VecDeque<(Ns, PlannedTrouble)>,
    /// Longest turn, ns, of equals whose memory is oversubscribed.
    longest_turn: Ns,
    /// Such turns begun.
    long_turns: u64,
    /// Deaths that the broker has not learnt of, and when it will, ns.
    deaths: Vec<(Ns, Client)>,
    /// Clients whose end was reported to the broker.
    ended: Vec<Client>,
    /// Launches of each client and thread that must be reported to the core, in order.
    pub(crate) told: HashMap<(Client, u64), VecDeque<u64>>,
    /// Clients whose records may have been lost.
    lagged: Vec<Client>,
    /// Clients with a jumped clock, until all launches before the jump are reported.
    unsure: HashSet<Client>,
    pub(crate) books: Books,
    /// Time, ns, that a background job may have to wait for reasons outside the broker.
    excuse: Ns,
    outcome: RunOutcome,
    keep_log: bool,
    everything: bool,
    #[cfg(test)]
    pub(crate) sabotage: Option<crate::sabotage::Sabotage>,
    #[cfg(test)]
    pub(crate) kept: i64,
}

/// Output of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// Keeps the last lines of the log.
    pub log: bool,
    /// Writes all lines to stderr.
    pub verbose: bool,
}

/// Runs a scenario.
pub fn run(scenario: &FaultScenario, manner: Manner) -> RunOutcome {
    start(scenario, manner, |_| {})
}

pub(crate) fn start(scenario: &FaultScenario, manner: Manner, prepare: impl FnOnce(&mut FaultWorld)) -> RunOutcome {
    clock::set_broker(clock::BEGIN_NS);
    let mut world = FaultWorld::new(scenario.clone(), manner);
    prepare(&mut world);
    let world = Rc::new(RefCell::new(world));
    let watcher = {
        let world = Rc::clone(&world);
        Box::new(move |moment: Moment<'_>| world.borrow_mut().moment(&moment))
    };
    let made = TestDriver::new(scenario.config.clone(), scenario.spin, clock::broker, watcher);
    let (mut broker, visitors) = match made {
        Ok(made) => made,
        Err(error) => {
            world.borrow_mut().fail("the run", error.to_string());
            return world.take_outcome();
        }
    };
    world.borrow_mut().visitors = Some(visitors);
    loop {
        let due = world.borrow_mut().until_broker();
        if !due {
            break;
        }
        let woken = world.borrow_mut().broker_wakes();
        if woken {
            broker.wakes();
        }
        let wait = broker.turn();
        world.borrow_mut().after_turn(broker.core());
        world.borrow_mut().broker_naps = matches!(wait, Wait::Nap(_));
        let (time, by_anybody) = match wait {
            Wait::Spin => (0, None),
            Wait::Nap(time) => (time.as_nanos() as Ns, None),
            Wait::Doze(time) => (time.as_nanos() as Ns, Some(false)),
            Wait::Sleep(time) => (time.as_nanos() as Ns, Some(true)),
        };
        let asleep = by_anybody.is_some_and(|by_anybody| {
            let news = broker.falls_asleep(by_anybody);
            world.borrow_mut().after_turn(broker.core());
            if news {
                broker.wakes();
            }
            !news
        });
        let rests = if by_anybody.is_some() && !asleep { 0 } else { time };
        world.borrow_mut().broker_rests(rests, asleep);
    }
    // The watcher holds the world, the broker the watcher.
    drop(broker);
    world.take_outcome()
}

trait TakeOutcome {
    fn take_outcome(&self) -> RunOutcome;
}

impl TakeOutcome for Rc<RefCell<FaultWorld>> {
    fn take_outcome(&self) -> RunOutcome {
        std::mem::take(&mut self.borrow_mut().outcome)
    }
}

impl FaultWorld {
    fn new(scenario: FaultScenario, manner: Manner) -> FaultWorld {
        FaultWorld {
            now: clock::BEGIN_NS,
            broker_offset: 0,
            broker_at: clock::BEGIN_NS,
            broker_sleeps: false,
            broker_naps: false,
            chance: SeededChance::new(scenario.seed, CHANCE_OF_BROKER),
            visitors: None,
            processes: Vec::new(),
            arrivals: scenario.jobs.clone(),
            troubles: scenario.troubles.iter().copied().collect(),
            longest_turn: 0,
            long_turns: 0,
            deaths: Vec::new(),
            ended: Vec::new(),
            told: HashMap::new(),
            lagged: Vec::new(),
            unsure: HashSet::new(),
            books: Books::default(),
            excuse: 0,
            outcome: RunOutcome::default(),
            keep_log: manner.log || manner.verbose,
            everything: manner.verbose,
            scenario,
            #[cfg(test)]
            sabotage: None,
            #[cfg(test)]
            kept: 0,
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.outcome.counts.entry(what).or_default() += 1;
    }

    fn log(&mut self, line: impl FnOnce(&FaultWorld) -> String) {
        if !self.keep_log || self.outcome.broken.is_some() {
            return;
        }
        let mut text = String::new();
        let since = (self.now - clock::BEGIN_NS) as f64 / 1e3;
        let _ = write!(text, "{since:>12.2} us  {}", line(self));
        if self.everything {
            eprintln!("{text}");
        }
        if self.outcome.log.len() == LOG {
            self.outcome.log.pop_front();
        }
        self.outcome.log.push_back(text);
    }

    pub(crate) fn fail(&mut self, what: &'static str, how: String) {
        if self.outcome.broken.is_none() {
            self.log(|_| format!("BROKEN: {what}: {how}"));
            self.outcome.broken = Some(Broken { what, how });
        }
    }

    fn set_now(&mut self, now: Ns) {
        self.now = self.now.max(now);
        clock::set_broker(self.now.saturating_add_signed(self.broker_offset));
    }

    fn end(&self) -> Ns {
        clock::BEGIN_NS + self.scenario.length
    }

    /// Lets everything but the broker continue until the broker's time comes. False when the run is
    /// over.
    fn until_broker(&mut self) -> bool {
        loop {
            if self.outcome.broken.is_some() || self.now >= self.end() {
                return false;
            }
            let due = self.broker_at;
            if !self.go_on(due) {
                self.set_now(due);
                return self.now < self.end();
            }
        }
    }

    /// Carries out the next step that is due before `upto`. False if there is none.
    fn go_on(&mut self, upto: Ns) -> bool {
        let thread = (0..self.processes.len())
            .filter(|at| self.processes[*at].life == ProcessLife::Lives)
            .flat_map(|at| (0..self.processes[at].threads.len()).map(move |thread| (at, thread)))
            .map(|(at, thread)| {
                let process = &self.processes[at];
                (process.threads[thread].next_at.max(process.stalled_until), at, thread)
            })
            .min();
        let trouble = self.troubles.front().map(|(at, _)| at + clock::BEGIN_NS);
        let arrival = self.arrivals.iter().map(|job| job.attach_at + clock::BEGIN_NS).min();
        let death = self.deaths.iter().map(|(at, _)| *at).min();
        let first = [thread.map(|(at, ..)| at), trouble, arrival, death]
            .into_iter()
            .flatten()
            .min();
        let Some(first) = first.filter(|first| *first < upto.min(self.end())) else {
            return false;
        };
        self.set_now(first);
        if death == Some(first) {
            self.hear_of_death(first);
        } else if arrival == Some(first) {
            self.arrive(first);
        } else if trouble == Some(first) {
            if let Some((_, trouble)) = self.troubles.pop_front() {
                self.trouble(trouble);
            }
        } else if let Some((_, at, thread)) = thread {
            self.step(at, thread);
        }
        true
    }

    fn step(&mut self, at: usize, thread: usize) {
        let now = self.now;
        let before = self.processes[at].threads[thread].stage;
        let stepped = thread::step(&mut self.processes[at], thread, now);
        let process = &self.processes[at];
        let after = process.threads[thread].stage;
        let told = match (before, after) {
            (_, Stage::Told { launch, .. }) => Some(launch),
            (Stage::Booked { launch, .. }, Stage::Queues { .. }) => Some(launch),
            _ => None,
        };
        if let (Some(client), Some(launch)) = (process.client, told)
            && launch.copies.is_none()
        {
            let told = self.told.entry((client, thread as u64)).or_default();
            told.push_back(launch.kernel);
            if told.len() > LAGS {
                self.lagged.push(client);
            }
        }
        if !matches!(before, Stage::Asleep(_)) || !matches!(after, Stage::Asleep(_)) {
            self.log(|world| {
                let process = &world.processes[at];
                let orders = &process.lane().orders;
                format!(
                    "job {}.{thread} {after:?}; credit {}, taken {}",
                    process.number,
                    orders.credit.load(Ordering::Relaxed),
                    process.taken
                )
            });
        }
        if let Some((passed, _)) = stepped.passed {
            self.count(match passed {
                WaitEnd::Credit => "waits that ended with credit",
                WaitEnd::Mode => "waits that ended with the mode",
                WaitEnd::Expired => "waits that expired",
                WaitEnd::Stuck => "waits of stuck work",
                WaitEnd::BrokerStopped => "waits for a broker that stood still",
                WaitEnd::Unsplit => "tuning bursts",
            });
        }
        if stepped.rings {
            self.rings();
        }
    }

    fn rings(&mut self) {
        if self.broker_sleeps || self.broker_naps {
            let latency = self.chance.between(2 * US, 60 * US);
            self.broker_at = self.broker_at.min(self.now + latency);
        }
    }

    /// The broker wakes up. True if it slept, and must withdraw its request to be rung.
    fn broker_wakes(&mut self) -> bool {
        std::mem::take(&mut self.broker_sleeps)
    }

    fn broker_rests(&mut self, time: Ns, asleep: bool) {
        self.broker_sleeps = asleep;
        // A turn itself takes some us, a timer some more.
        let late = if time == 0 {
            self.chance.between(500, 3_000)
        } else {
            self.chance.between(US, 60 * US)
        };
        let rest = time.saturating_add(late);
        self.broker_at = self.broker_at.max(self.now.saturating_add(rest));
        if self.chance.per_mille(2) {
            let lost = self.chance.length(100 * US, 20 * MS);
            self.broker_at += lost;
            self.excuse += lost;
        }
    }
}
