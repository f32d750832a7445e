//! The world of a run: the broker's scheduler taken by the hand, processes, their clocks, and what goes wrong; all in virtual time.
//!
//! Processes go on while the broker is in the middle of a turn: between any two events that the core takes in, and between any two decisions that are carried
//! out, time passes and threads step, and now and then the broker loses its core just there.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_broker::core::{Client, Decision, Event, Mode, Ns};
use weft_broker::daemon::by_hand::{ByHand, Ending, Guest, Moment, Visitors, Wait};
use weft_broker::transport::map::SharedLane;
use weft_broker::transport::server::Host;

use crate::chance::Chance;
use crate::check::{Books, Broken, name};
use crate::clock;
use crate::process::{Life, Process};
use crate::scenario::{CHANCE_OF_BROKER, Job, MS, Scenario, Trouble, US};
use crate::thread::{self, Passed, Stage};

/// What came of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Events that the core took in.
    pub events: u64,
    /// What does not hold, if anything.
    pub broken: Option<Broken>,
    /// The last of what happened, if it was written down.
    pub log: VecDeque<String>,
    /// What the run came by: how often each kind of thing happened.
    pub counts: HashMap<&'static str, u64>,
}

/// Launches that a broker may be late by until records may be lost: a lane holds 4096 of all kinds and all threads.
const LAGS: usize = 600;

/// Lines that are kept.
const LOG: usize = 400;

pub(crate) struct World {
    scenario: Scenario,
    now: Ns,
    broker_offset: i64,
    broker_at: Ns,
    broker_sleeps: bool,
    chance: Chance,
    visitors: Option<Visitors>,
    pub(crate) processes: Vec<Process>,
    arrivals: Vec<Job>,
    troubles: VecDeque<(Ns, Trouble)>,
    /// Deaths that the broker has not heard of, with the time when it does.
    deaths: Vec<(Ns, Client)>,
    /// Clients whose end was told to the broker.
    ended: Vec<Client>,
    /// Launches that the core must be told, in order, for each client and thread.
    pub(crate) told: HashMap<(Client, u64), VecDeque<u64>>,
    /// Clients whose records may have been lost.
    lagged: Vec<Client>,
    pub(crate) books: Books,
    /// Time that a filler may have to wait for reasons beyond the broker.
    excuse: Ns,
    outcome: Outcome,
    keep_log: bool,
    everything: bool,
    #[cfg(test)]
    pub(crate) sabotage: Option<crate::sabotage::Sabotage>,
    #[cfg(test)]
    pub(crate) kept: i64,
}

/// How a run is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// Writes down the last of what happens.
    pub log: bool,
    /// Writes all of it to stderr.
    pub verbose: bool,
}

/// Runs a scenario.
pub fn run(scenario: &Scenario, manner: Manner) -> Outcome {
    start(scenario, manner, |_| {})
}

pub(crate) fn start(scenario: &Scenario, manner: Manner, prepare: impl FnOnce(&mut World)) -> Outcome {
    clock::set_broker(clock::BEGIN);
    let mut world = World::new(scenario.clone(), manner);
    prepare(&mut world);
    let world = Rc::new(RefCell::new(world));
    let watcher = {
        let world = Rc::clone(&world);
        Box::new(move |moment: Moment<'_>| world.borrow_mut().moment(&moment))
    };
    let made = ByHand::new(scenario.config.clone(), scenario.spin, clock::broker, watcher);
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
    fn take_outcome(&self) -> Outcome;
}

impl TakeOutcome for Rc<RefCell<World>> {
    fn take_outcome(&self) -> Outcome {
        std::mem::take(&mut self.borrow_mut().outcome)
    }
}

impl World {
    fn new(scenario: Scenario, manner: Manner) -> World {
        World {
            now: clock::BEGIN,
            broker_offset: 0,
            broker_at: clock::BEGIN,
            broker_sleeps: false,
            chance: Chance::new(scenario.seed, CHANCE_OF_BROKER),
            visitors: None,
            processes: Vec::new(),
            arrivals: scenario.jobs.clone(),
            troubles: scenario.troubles.iter().copied().collect(),
            deaths: Vec::new(),
            ended: Vec::new(),
            told: HashMap::new(),
            lagged: Vec::new(),
            books: Books::default(),
            excuse: 0,
            outcome: Outcome::default(),
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

    fn log(&mut self, line: impl FnOnce(&World) -> String) {
        if !self.keep_log || self.outcome.broken.is_some() {
            return;
        }
        let mut text = String::new();
        let since = (self.now - clock::BEGIN) as f64 / 1e3;
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
        clock::BEGIN + self.scenario.length
    }

    /// Lets everything but the broker go on until the broker's time comes. False when the run is over.
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

    /// The next thing that is due before `upto`. False if there is none.
    fn go_on(&mut self, upto: Ns) -> bool {
        let thread = (0..self.processes.len())
            .filter(|at| self.processes[*at].life == Life::Lives)
            .flat_map(|at| (0..self.processes[at].threads.len()).map(move |thread| (at, thread)))
            .map(|(at, thread)| {
                let process = &self.processes[at];
                (process.threads[thread].next_at.max(process.stalled_until), at, thread)
            })
            .min();
        let trouble = self.troubles.front().map(|(at, _)| at + clock::BEGIN);
        let arrival = self.arrivals.iter().map(|job| job.attach_at + clock::BEGIN).min();
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
                Passed::Credit => "waits that ended with credit",
                Passed::Mode => "waits that ended with the mode",
                Passed::Expired => "waits that expired",
                Passed::Stuck => "waits of stuck work",
                Passed::Standstill => "waits for a broker that stood still",
            });
        }
        if stepped.rings {
            self.rings();
        }
    }

    fn rings(&mut self) {
        if self.broker_sleeps {
            let latency = self.chance.between(2 * US, 60 * US);
            self.broker_at = self.broker_at.min(self.now + latency);
        }
    }

    fn arrive(&mut self, at: Ns) {
        let Some(found) = self.arrivals.iter().position(|job| job.attach_at + clock::BEGIN == at) else {
            return;
        };
        let job = self.arrivals.remove(found);
        let Some(visitors) = &self.visitors else { return };
        let guest = Guest {
            priority: job.priority,
            profile: job.profile.clone(),
            profiling: job.profiling,
            longest_wait: job.longest_wait,
        };
        let host = Arc::clone(&visitors.host);
        match visitors.attach(guest) {
            Ok((client, lane)) => {
                let process = Process::new(&job, self.scenario.seed, self.now, client, lane, host);
                self.processes.push(process);
                self.log(|_| format!("job {} is client {}", job.number, client.0));
                self.rings();
            }
            Err(error) => self.fail("the run", error.to_string()),
        }
    }

    fn hear_of_death(&mut self, at: Ns) {
        let Some(found) = self.deaths.iter().position(|(when, _)| *when == at) else {
            return;
        };
        let (_, client) = self.deaths.remove(found);
        self.gone(client, Ending::Vanished);
    }

    fn gone(&mut self, client: Client, ending: Ending) {
        self.ended.push(client);
        if let Some(visitors) = &self.visitors {
            visitors.gone(client, ending);
        }
        self.rings();
    }

    fn trouble(&mut self, trouble: Trouble) {
        self.log(|_| format!("{trouble:?}"));
        self.count("troubles");
        let at = trouble.job().map(|job| {
            self.processes
                .iter()
                .position(|process| process.number == job && process.life == Life::Lives)
        });
        let at = match at {
            Some(None) => return,
            Some(Some(at)) => at,
            None => usize::MAX,
        };
        let now = self.now;
        // Work that is not reported any more is waited for until it is written off.
        let written_off = 21 * self.scenario.config.write_off_after;
        match trouble {
            Trouble::Dies { heard_after, .. } => {
                let process = &mut self.processes[at];
                process.life = Life::Dead;
                let client = process.client;
                self.excuse += heard_after + written_off;
                self.deaths.extend(client.map(|client| (now + heard_after, client)));
            }
            Trouble::Leaves { .. } => {
                let process = &mut self.processes[at];
                process.life = Life::Dead;
                if let Some(client) = process.client {
                    self.gone(client, Ending::Goodbye);
                }
            }
            Trouble::Stalls { time, .. } => {
                self.processes[at].stalled_until = now + time;
                self.excuse += time + written_off;
            }
            Trouble::ThreadStalls { thread, time, .. } => {
                if let Some(thread) = self.processes[at].threads.get_mut(thread) {
                    thread.next_at = thread.next_at.max(now) + time;
                }
                self.excuse += time + written_off;
            }
            Trouble::BrokerStalls { time } => {
                self.broker_at = self.broker_at.max(now) + time;
                self.excuse += time;
            }
            Trouble::Priority { priority, .. } => {
                if let (Some(visitors), Some(client)) = (&self.visitors, self.processes[at].client) {
                    visitors.set_priority(client, priority);
                }
                self.rings();
            }
            Trouble::Jumps { by, .. } => {
                self.processes[at].clock_offset += by;
                self.excuse += 2 * by.unsigned_abs() + written_off;
            }
            Trouble::BrokerJumps { by } => {
                self.broker_offset += by;
                self.excuse += 2 * by.unsigned_abs();
                self.set_now(now);
            }
            Trouble::Forks { .. } => self.fork(at),
            Trouble::Unprofiled { .. } => {
                if let (Some(visitors), Some(client)) = (&self.visitors, self.processes[at].client) {
                    visitors.unprofile(client);
                }
                self.excuse += written_off;
                self.rings();
            }
            Trouble::Lies { what, .. } => {
                crate::lies::tell(&mut self.processes[at], &mut Chance::new(what, 3));
                self.excuse += 4 * written_off;
                self.rings();
            }
        }
    }

    fn fork(&mut self, at: usize) {
        let (Ok(lane), Ok(host)) = (SharedLane::lane(), Host::make()) else {
            return self.fail("the run", "no memory for a child".to_string());
        };
        let child = self.processes[at].child(1000 + self.processes.len(), Arc::new(lane), Arc::new(host));
        self.processes.push(child);
    }

    /// The broker wakes up. True if it slept, and must take back its wish to be rung.
    fn broker_wakes(&mut self) -> bool {
        std::mem::take(&mut self.broker_sleeps)
    }

    fn broker_rests(&mut self, time: Ns, asleep: bool) {
        self.broker_sleeps = asleep;
        // A turn takes some us itself, a timer some more.
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

    /// In the middle of a turn.
    fn moment(&mut self, moment: &Moment<'_>) {
        match moment {
            Moment::Event {
                event, decisions, core, ..
            } => {
                self.outcome.events += 1;
                self.log(|_| format!("core: {event:?} -> {decisions:?}"));
                self.in_order(event);
                if let Event::Gone(client) = event
                    && !self.ended.contains(client)
                {
                    self.let_go(*client, core.snapshot().counters.strangers);
                }
                #[cfg(test)]
                let decisions = &self.sabotaged_decisions(decisions);
                let honest = |client: Client| {
                    let process = self.processes.iter().find(|process| process.client == Some(client));
                    process.map(|process| !process.lies)
                };
                let checked = self.books.event(event, decisions, core, honest);
                if let Err(broken) = checked {
                    self.fail(broken.what, broken.how);
                }
            }
            Moment::Before(decision) => {
                #[cfg(test)]
                self.before_decision(decision);
                let _ = decision;
                // Anything may happen between two decisions, but the decision itself is one step here.
                self.wake_sleepers();
            }
            Moment::After(decision) => {
                #[cfg(test)]
                self.after_decision(decision);
                self.decided(decision);
                self.wake_sleepers();
                self.let_pass();
            }
        }
        if matches!(moment, Moment::Event { .. }) {
            self.let_pass();
        }
    }

    /// Time passes for everybody else while the broker works.
    fn let_pass(&mut self) {
        if self.outcome.broken.is_some() {
            return;
        }
        let time = match self.chance.between(0, 399) {
            0 => {
                let time = self.chance.length(20 * US, 10 * MS);
                self.excuse += time;
                time
            }
            _ => self.chance.between(50, 600),
        };
        let upto = self.now + time;
        while self.go_on(upto) {}
        self.set_now(upto);
    }

    fn decided(&mut self, decision: &Decision) {
        match decision {
            Decision::Grant { bound: true, .. } => self.count("bound grants"),
            Decision::Grant { .. } => self.count("unbound grants"),
            Decision::Revoke(_) => self.count("revocations"),
            Decision::Mode(..) => self.count("modes"),
        }
    }

    /// Who sleeps on a bell that changed wakes up.
    fn wake_sleepers(&mut self) {
        let now = self.now;
        for process in &mut self.processes {
            let bell = process.lane().orders.bell.load(Ordering::Relaxed);
            for thread in &mut process.threads {
                if let Stage::Asleep(sleep) = &mut thread.stage
                    && sleep.bell != bell
                {
                    sleep.bell = bell;
                    let latency = thread.chance.between(2 * US, 60 * US);
                    thread.next_at = thread.next_at.min(now + latency);
                }
            }
        }
    }

    /// The broker let go of a client whose end nobody told it: its lane lied, or its profile was taken away.
    fn let_go(&mut self, client: Client, _strangers: u64) {
        let Some(process) = self.processes.iter_mut().find(|process| process.client == Some(client)) else {
            return;
        };
        if process.mode() == Mode::Free {
            process.let_go = true;
            if !process.lies {
                self.fail(name::HONEST, format!("client {}", client.0));
            }
        }
    }

    /// The core hears of launches in the order in which each thread made them.
    fn in_order(&mut self, event: &Event) {
        let Event::Launched { client, kernel, .. } = event else {
            return;
        };
        let honest = |process: &Process| {
            process.client == Some(*client) && !process.lies && process.life == Life::Lives && process.clock_offset == 0
        };
        if self.broker_offset != 0
            || *kernel >= 10_000
            || self.lagged.contains(client)
            || !self.processes.iter().any(honest)
        {
            return;
        }
        let thread = (kernel / 10 % 10).saturating_sub(1);
        let expected = self.told.entry((*client, thread)).or_default().pop_front();
        if expected != Some(*kernel) {
            self.fail(
                name::ORDER,
                format!("client {} launched {expected:?}, the core is told {kernel}", client.0),
            );
        }
    }

    /// All decisions of a turn are carried out.
    fn after_turn(&mut self, core: &weft_broker::core::Core) {
        if self.outcome.broken.is_some() {
            return;
        }
        let now = clock::broker();
        let wake = core.next_wake(now);
        #[cfg(test)]
        let wake = self.sabotaged_wake(wake, now);
        let checked = self.books.turn(core, wake, now, &self.processes);
        if let Err(broken) = checked {
            self.fail(broken.what, broken.how);
        }
        self.progress(core);
    }

    /// Nobody waits longer than the minimum share of everybody, and what stood in its way, allow.
    fn progress(&mut self, core: &weft_broker::core::Core) {
        let config = core.config();
        let share = config.minimum_share;
        #[cfg(test)]
        let share = self.stated_share(share);
        let patience = |cost: Ns| ((cost + 2 * config.switch_cost) as f64 / share) as Ns;
        let dearest = |process: &Process| {
            let known = process.costs.values().copied().max().unwrap_or(0);
            known
                .max(process.lane().orders.unknown_cost.load(Ordering::Relaxed))
                .max(400 * US)
        };
        let mut limit: Ns = self.excuse + 20 * MS;
        for process in &self.processes {
            let share = if process.lies { 10 * MS } else { dearest(process) };
            limit = limit.saturating_add(2 * (patience(share) + config.turn + 2 * config.write_off_after));
        }
        let starving = self.processes.iter().find_map(|process| {
            if process.life != Life::Lives || process.lies || process.mode() != Mode::Filler {
                return None;
            }
            process.threads.iter().find_map(|thread| match thread.stage {
                Stage::Asleep(sleep) if self.now.saturating_sub(sleep.since) > limit => Some((process.number, sleep)),
                _ => None,
            })
        });
        if let Some((job, sleep)) = starving {
            let waited = self.now - sleep.since;
            self.fail(
                name::PROGRESS,
                format!(
                    "job {job} waits for {waited} ns, {limit} would do: {sleep:?}; {:?}",
                    core.snapshot()
                ),
            );
        }
    }
}
