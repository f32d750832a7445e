// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine: jobs take turns on a device whose memory they exceed.
//!
//! One job runs at a time. A kernel uses its regions block by block, its time spread over them by
//! size. At a missing block it faults. If the planner has promised the block, the kernel waits for
//! it instead, like a launch behind its prefetch's event. Every transfer goes through the simulated
//! GPU's page ledger. The broker's own planner ([`weft_paging`]) decides the transfers and their
//! times, and gets the reports that the daemon would send it. An order takes effect
//! [`ORDER_LATENCY_NS`] after it was given.
//!
//! Invariant: the same workload, contender and setting give the same figures to the last digit. Not
//! modelled: the host's side of launches, switches of context (the same for all), kernels of two
//! jobs that run at one time.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};

use serde::Serialize;
use weft_engine::memory::{BLOCK_BYTES, MemorySettings, Pager, Range, Ticket};
use weft_paging::{
    self as plan, GranulePlace, Link, OrderId, OrderKind, OrderStatus, PagingConfig, PagingOrder, Planner,
    RESERVE_PART, ResidencySlot, TurnLateness, TurnPlan, TurnRule, Use, WorkingSet,
};
use weft_profiles::working_set::Access;
use weft_scheduler::{Client, Config};

use super::contender::{Contender, Length};
use super::workload::{PagedJob, Workload};
use crate::{MS, Ns, US};

pub mod service;

/// Time from the planner's order to the driver's call: the client's helper is woken (25 to 65 us on
/// a core that sleeps).
const ORDER_LATENCY_NS: Ns = 50 * US;

/// Own time of a running job after which its progress is reported to the planner.
const PROGRESS_NS: Ns = 100 * US;

/// The settings of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// The device's memory and link.
    pub memory: MemorySettings,
    /// The common slice.
    pub slice: Ns,
    /// The device's own slice.
    pub device_slice: Ns,
    /// The source of turn lengths.
    pub turns: TurnSource,
}

/// The source of turn lengths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TurnSource {
    /// The common slice, whatever moves.
    Common,
    /// The planner by this rule, as in the daemon: turns by the clock, measured again after each,
    /// and a part of the device is kept free.
    Rule(TurnRule),
}

/// The rule of a broker without options.
pub fn default_rule() -> TurnRule {
    let core = Config::default();
    TurnRule::new(core.max_swapped_out, core.swapped_out_limit)
}

/// The figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MachineFigures {
    /// Own time of all jobs as a part of the elapsed time: throughput as a share of that when
    /// everything fits.
    pub efficiency: f64,
    /// Elapsed time, s.
    pub seconds: f64,
    /// The mean length of a turn on the clock, ms.
    pub turn_ms: f64,
    /// The longest time that a job was swapped out: from its turn's end to its next first step, ms.
    pub away_ms: f64,
    /// The longest time swapped out that the planner's turns implied, ms; 0 if the planner does not
    /// set turns.
    pub said_ms: f64,
    /// The longest time between two ends of a job's period (a decoder's tokens), ms.
    pub gap_ms: f64,
    /// Prefetched to the device, GB.
    pub prefetched_gb: f64,
    /// Faulted to the device, GB.
    pub faulted_gb: f64,
    /// Copied to the host, GB.
    pub out_gb: f64,
    /// Dropped without a copy, because the host had it, GB.
    pub dropped_gb: f64,
    /// Discarded, GB.
    pub discarded_gb: f64,
    /// Batches of faults.
    pub faults: u64,
    /// The largest part of the device's memory that was in use.
    pub fullest: f64,
}

struct Task {
    job: PagedJob,
    /// Its position: kernel, touch, bytes of the touch.
    at: (usize, usize, u64),
    own: Ns,
    /// Fraction of a nanosecond of own time.
    rest: f64,
    /// The end of its last turn.
    left: Option<Ns>,
    /// The end of its last period.
    ended: Option<Ns>,
    /// Bytes of each kernel.
    sizes: Vec<u64>,
    /// Number of faults at the beginning of its present period, if that was in the present turn.
    begun: Option<u64>,
}

/// Sums of transfers and faults at a moment.
#[derive(Debug, Clone, Copy, Default)]
struct PagingSums {
    prefetched: u64,
    faulted: u64,
    out: u64,
    dropped: u64,
    discarded: u64,
    faults: u64,
}

/// The planner and its orders in flight.
struct PlannerState {
    planner: Planner,
    given: Vec<PagingOrder>,
    pending: VecDeque<(Ns, PagingOrder)>,
    tickets: HashMap<Ticket, OrderId>,
    /// Own time of the running job that is not yet reported to the planner.
    untold: Ns,
}

struct PagingMachine {
    pager: Pager,
    now: Ns,
    tasks: Vec<Task>,
    weft: Option<PlannerState>,
    fullest: u64,
    away: Ns,
    gap: Ns,
    /// The present turns, if the planner sets their length.
    turns: TurnPlan,
    lateness: TurnLateness,
    /// The time of the present turn's first step.
    got_on: Ns,
    said: Ns,
}

/// The planner's client for a task.
fn client(task: usize) -> Client {
    Client(task as u64)
}

fn granules(range: Range) -> plan::GranuleRange {
    let first = range.start / BLOCK_BYTES;
    plan::GranuleRange {
        first,
        count: (range.end().div_ceil(BLOCK_BYTES) - first) as u32,
    }
}

fn bytes(range: plan::GranuleRange) -> Range {
    Range::new(range.first * BLOCK_BYTES, u64::from(range.count) * BLOCK_BYTES)
}

/// The link in the planner's form.
pub fn link_of(memory: &MemorySettings) -> Link {
    Link {
        inward: memory.to_device as f64 * 1e6,
        outward: memory.to_host as f64 * 1e6,
        both: memory.both_ways as f64 * 1e6,
        duplex: memory.duplex,
    }
}

/// The predicted working set of a job's kernels.
pub fn working_set(job: &PagedJob) -> WorkingSet {
    let (mut at, mut uses) = (0, Vec::new());
    for kernel in &job.kernels {
        for touch in kernel.touches.iter().filter(|touch| !touch.hidden) {
            let all = granules(touch.range);
            let mut add = |first: u64, end: u64, access| {
                if first < end {
                    let count = (end - first) as u32;
                    uses.push(Use {
                        at,
                        range: plan::GranuleRange { first, count },
                        access,
                    });
                }
            };
            if touch.access != Access::Write {
                add(all.first, all.end(), touch.access);
                continue;
            }
            // Granules at the ends that are written in part keep the rest of their content.
            let whole = (touch.range.start.div_ceil(BLOCK_BYTES), touch.range.end() / BLOCK_BYTES);
            let whole = if whole.0 < whole.1 {
                whole
            } else {
                (all.end(), all.end())
            };
            add(all.first, whole.0, Access::ReadWrite);
            add(whole.0, whole.1, Access::Write);
            add(whole.1, all.end(), Access::ReadWrite);
        }
        at += kernel.time;
    }
    WorkingSet { period: at, uses }
}

impl PlannerState {
    fn new(contender: Contender, setting: &Setting, jobs: &[PagedJob]) -> Option<PlannerState> {
        let options = contender.options()?;
        let memory = setting.memory;
        let config = PagingConfig {
            options,
            ..PagingConfig::new(memory.capacity, memory.host_limit, link_of(&memory))
        };
        let mut planner = Planner::new(config);
        for (number, job) in jobs.iter().enumerate() {
            planner.join(client(number));
            for range in &job.allocations {
                planner.placed(client(number), granules(*range), GranulePlace::Host);
            }
            planner.set_working_set(client(number), working_set(job), 0);
        }
        Some(PlannerState {
            planner,
            given: Vec::new(),
            pending: VecDeque::new(),
            tickets: HashMap::new(),
            untold: 0,
        })
    }

    /// Keeps free the same part of the device as the daemon does.
    fn keep_reserve(&mut self, capacity: u64) {
        self.planner.lower_capacity(capacity / RESERVE_PART / BLOCK_BYTES);
    }

    /// Takes the planner's present orders.
    fn take_orders(&mut self, now: Ns) {
        self.planner.orders(&mut self.given);
        self.pending
            .extend(self.given.drain(..).map(|order| (now + ORDER_LATENCY_NS, order)));
    }
}

impl PagingMachine {
    fn new(contender: Contender, workload: &Workload, setting: &Setting) -> PagingMachine {
        let mut memory = setting.memory;
        match contender {
            Contender::StockTuned => memory.threshold = 1,
            Contender::Ideal => memory.capacity = 1 << 50,
            _ => {}
        }
        if contender == Contender::Msched {
            memory.duplex = true;
        }
        let setting = Setting { memory, ..*setting };
        // The planner manages waits here: a block that it does not promise is faulted in.
        let mut pager = Pager::new(memory, false);
        pager.keep_evictions();
        for (owner, job) in (0..).zip(&workload.jobs) {
            for range in &job.allocations {
                // The caller has checked that the host has room.
                let _ = pager.allocate(owner, *range);
                // As weft takes memory: of copies that collapse, the device's copy stays.
                pager.prefer_device(0, owner, *range, true);
                pager.fill_from_host(owner, *range);
            }
        }
        let task = |job: &PagedJob| Task {
            sizes: job
                .kernels
                .iter()
                .map(|kernel| kernel.touches.iter().map(|touch| touch.range.len).sum())
                .collect(),
            job: job.clone(),
            at: (0, 0, 0),
            own: 0,
            rest: 0.0,
            left: None,
            ended: None,
            begun: None,
        };
        let mut weft = PlannerState::new(contender, &setting, &workload.jobs);
        if let (Some(weft), TurnSource::Rule(_)) = (&mut weft, setting.turns) {
            weft.keep_reserve(setting.memory.capacity);
        }
        PagingMachine {
            pager,
            now: 0,
            tasks: workload.jobs.iter().map(task).collect(),
            weft,
            fullest: 0,
            away: 0,
            gap: 0,
            turns: TurnPlan::default(),
            lateness: TurnLateness::default(),
            got_on: 0,
            said: 0,
        }
    }

    fn next_event(&self) -> Option<Ns> {
        let pending = self
            .weft
            .as_ref()
            .and_then(|weft| weft.pending.front())
            .map(|(at, _)| *at);
        match (self.pager.next_event(), pending) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Advances the link and the planner to a time.
    fn pump(&mut self, to: Ns) {
        while let Some(next) = self.next_event() {
            if next > to {
                break;
            }
            self.pager.advance_to(next);
            self.carry_out(next);
            self.hear(next);
        }
        self.pager.advance_to(to);
        self.now = self.now.max(to);
    }

    /// Carries out the orders that are due.
    fn carry_out(&mut self, now: Ns) {
        let Some(weft) = &mut self.weft else { return };
        let mut ended = false;
        while let Some(&(at, order)) = weft.pending.front() {
            if at > now {
                break;
            }
            weft.pending.pop_front();
            let (owner, range) = (order.client.0 as u32, bytes(order.range));
            let pager = &mut self.pager;
            let ticket = match order.kind {
                OrderKind::Prefetch => pager.prefetch(now, owner, range, false),
                OrderKind::Populate => {
                    pager.discard(now, owner, range);
                    pager.prefetch(now, owner, range, false)
                }
                OrderKind::Evict | OrderKind::Release => pager.leave(now, owner, range),
                OrderKind::Discard => {
                    pager.discard(now, owner, range);
                    weft.planner.done(order.id, OrderStatus::Done);
                    ended = true;
                    continue;
                }
                OrderKind::Advise(on) => {
                    pager.advise_read_mostly(now, owner, range, on);
                    continue;
                }
            };
            weft.tickets.insert(ticket, order.id);
        }
        if ended {
            weft.take_orders(now);
        }
    }

    /// Reports to the planner the orders that have ended, and the blocks that the driver evicted by
    /// itself.
    fn hear(&mut self, now: Ns) {
        self.fullest = self.fullest.max(self.pager.ledger().used());
        let evicted = self.pager.take_evictions();
        let Some(weft) = &mut self.weft else {
            while self.pager.next_ended().is_some() {}
            return;
        };
        let mut news = !evicted.is_empty();
        for (owner, number) in evicted {
            let range = plan::GranuleRange {
                first: number,
                count: 1,
            };
            weft.planner.placed(Client(owner.into()), range, GranulePlace::Host);
        }
        while let Some((ticket, _)) = self.pager.next_ended() {
            if let Some(id) = weft.tickets.remove(&ticket) {
                weft.planner.done(id, OrderStatus::Done);
                news = true;
            }
        }
        if news {
            weft.take_orders(now);
        }
    }

    /// Brings a part of a task's memory to the device, and waits for it.
    fn get(&mut self, task: usize, range: Range, write: bool) {
        let owner = task as u32;
        if self.weft.is_none() {
            self.now = self.pager.touch(self.now, owner, range, write);
            self.fullest = self.fullest.max(self.pager.ledger().used());
            self.pager.take_evictions();
            return;
        }
        while let Some(number) = self.pager.ledger().first_unready(owner, range, write) {
            // A launch reports the job's progress.
            if let Some(weft) = self.weft.as_mut().filter(|weft| weft.untold > 0) {
                weft.planner.ran(client(task), std::mem::take(&mut weft.untold));
                weft.take_orders(self.now);
            }
            let promised = self
                .weft
                .as_ref()
                .is_some_and(|weft| weft.planner.promised(client(task), number));
            if promised && let Some(next) = self.next_event() {
                self.pump(next);
                continue;
            }
            let base = number * BLOCK_BYTES;
            let (start, end) = (range.start.max(base), range.end().min(base + BLOCK_BYTES));
            let end = self.pager.touch(self.now, owner, Range::new(start, end - start), write);
            self.now = end;
            if let Some(weft) = &mut self.weft {
                weft.planner.faulted(
                    client(task),
                    plan::GranuleRange {
                        first: number,
                        count: 1,
                    },
                );
            }
            self.carry_out(end);
            self.hear(end);
            if self.pager.ledger().room() < 2 * BLOCK_BYTES {
                return;
            }
        }
    }

    /// Runs one block of a task's work.
    fn step(&mut self, task: usize) {
        let state = &self.tasks[task];
        let (number, which, done) = state.at;
        let kernel = &state.job.kernels[number];
        let touch = kernel.touches[which];
        let from = touch.range.start + done;
        let to = (from / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES).min(touch.range.end());
        let share = kernel.time as f64 * (to - from) as f64 / state.sizes[number].max(1) as f64;
        let (touches, kernels) = (kernel.touches.len(), state.job.kernels.len());
        let begins = state.at == (0, 0, 0);
        if begins {
            self.tasks[task].begun = Some(self.pager.usage(task as u32).faults);
        }
        self.get(task, Range::new(from, to - from), touch.access.writes());
        let state = &mut self.tasks[task];
        if let Some(left) = state.left.take() {
            self.away = self.away.max(self.now.saturating_sub(left));
            self.got_on = self.now;
        }
        let time = share + state.rest;
        state.rest = time.fract();
        let time = time as Ns;
        state.own += time;
        state.at.2 += to - from;
        let touched = to == touch.range.end();
        let to = self.now + time;
        if touched {
            state.at = if which + 1 < touches {
                (number, which + 1, 0)
            } else {
                ((number + 1) % kernels, 0, 0)
            };
            if state.at == (0, 0, 0) {
                let before = state.ended.replace(to);
                self.gap = self.gap.max(before.map_or(0, |before| to.saturating_sub(before)));
            }
        }
        if let Some(weft) = &mut self.weft {
            weft.untold += time;
            if weft.untold >= PROGRESS_NS {
                weft.planner.ran(client(task), std::mem::take(&mut weft.untold));
                weft.take_orders(self.now);
            }
            self.pump(to);
        } else {
            self.now = to;
        }
    }
}

impl PagingMachine {
    /// Gives the planner the order of turns, beginning with a task's, all of this length.
    fn plan_turn(&mut self, task: usize, length: Ns) {
        let count = self.tasks.len();
        let Some(weft) = &mut self.weft else { return };
        let order = (0..count).map(|n| ResidencySlot {
            client: client((task + n) % count),
            length,
        });
        weft.planner.switch(&order.collect::<Vec<_>>());
        weft.take_orders(self.now);
    }

    /// As in the daemon: a task's turn has the length that was measured up to the last one; then it
    /// is measured again.
    fn plan_measured_turn(&mut self, task: usize, rule: &TurnRule) -> Ns {
        if self.turns.length == 0 {
            self.plan_turn(task, rule.least);
            self.measure(rule);
        }
        let now = self.turns.length;
        self.said = self.said.max(now * (self.tasks.len() as u64 - 1));
        self.plan_turn(task, now);
        self.measure(rule);
        now
    }

    fn measure(&mut self, rule: &TurnRule) {
        if let Some(weft) = &self.weft {
            let rule = TurnRule {
                late: self.lateness.of_a_round(),
                ..*rule
            };
            self.turns = weft.planner.turns(&rule).after(self.turns.length);
        }
    }

    /// Reports to the planner when the turn of a task ends, as the daemon does.
    fn announce_end(&mut self, task: usize, left: Ns) {
        if let Some(weft) = self.weft.as_mut().filter(|_| left >= plan::NEAREST_END_NS) {
            weft.planner.ran(client(task), std::mem::take(&mut weft.untold));
            weft.planner.ends_in(client(task), left);
            weft.take_orders(self.now);
        }
    }

    /// Runs one turn of a task.
    fn turn(&mut self, task: usize, length: Length, setting: &Setting) {
        let mut start = self.now;
        let length = match (setting.turns, length) {
            _ if self.weft.is_none() => length,
            (TurnSource::Rule(rule), _) => Length::Wall(self.plan_measured_turn(task, &rule)),
            (TurnSource::Common, Length::Wall(planned) | Length::Own(planned)) => {
                self.plan_turn(task, planned);
                length
            }
        };
        if self.weft.is_some() {
            while !self
                .weft
                .as_mut()
                .is_some_and(|weft| weft.planner.may_start(client(task)))
            {
                let Some(next) = self.next_event() else { break };
                self.pump(next);
            }
        }
        if setting.turns == TurnSource::Common {
            // The slice counts from its first kernel.
            start = self.now;
        }
        let before = self.tasks[task].own;
        self.tasks[task].begun = None;
        let mut announced = match length {
            Length::Wall(length) | Length::Own(length) => length,
        };
        loop {
            let left = match length {
                Length::Wall(length) => (start + length).saturating_sub(self.now),
                Length::Own(length) => (before + length).saturating_sub(self.tasks[task].own),
            };
            // A running kernel is not taken off the device: a turn by the rule ends with a kernel.
            let (_, touch, bytes) = self.tasks[task].at;
            if left == 0 && (setting.turns == TurnSource::Common || (touch, bytes) == (0, 0)) {
                break;
            }
            if matches!(setting.turns, TurnSource::Rule(_)) && left <= announced / 2 {
                announced = left;
                self.announce_end(task, left);
            }
            if self.weft.is_none() && self.tasks[task].at == (0, 0, 0) {
                // After a period without faults the next periods have none either: only faults move
                // memory here.
                let period = self.tasks[task].job.period();
                let faults = self.pager.usage(task as u32).faults;
                if self.tasks[task].begun == Some(faults) && left > period {
                    let skipped = left / period * period;
                    self.now += skipped;
                    self.tasks[task].own += skipped;
                    self.tasks[task].ended = Some(self.now);
                    continue;
                }
            }
            self.step(task);
        }
        if let Some(weft) = &mut self.weft {
            weft.planner.ran(client(task), std::mem::take(&mut weft.untold));
        }
        if let (TurnSource::Rule(_), Length::Wall(planned)) = (setting.turns, length) {
            let first = self.got_on.saturating_sub(start);
            self.lateness.note(client(task), planned, self.now - start, first);
        }
        self.tasks[task].left = Some(self.now);
    }

    fn sums(&self) -> PagingSums {
        let mut sums = PagingSums::default();
        for owner in 0..self.tasks.len() as u32 {
            let usage = self.pager.usage(owner);
            sums.prefetched += usage.prefetched;
            sums.faulted += usage.faulted;
            sums.out += usage.returned + usage.evicted;
            sums.dropped += usage.dropped;
            sums.discarded += usage.discarded;
            sums.faults += usage.faults;
        }
        sums
    }
}

/// Turns of each job before the figures count, and the least number that count. The first pair is
/// for a common slice, the second for a measured length, which takes some turns to become stable.
const TURNS: (u32, u32) = (2, 3);
const MEASURED_TURNS: (u32, u32) = (8, 6);

/// Number of measured turns of each job after which it counts even if its period is not complete.
/// In turns that are too short for their transfers, a period may take an hour.
const MOST_MEASURED_TURNS: u32 = 100;

/// Runs a workload under a contender: first until each job has completed a period (and some turns),
/// then over at least another one.
pub fn run(contender: Contender, workload: &Workload, setting: &Setting) -> MachineFigures {
    let mut machine = PagingMachine::new(contender, workload, setting);
    let length = contender.turn(setting.slice, setting.device_slice);
    let count = machine.tasks.len();
    let most = match setting.turns {
        TurnSource::Common => usize::MAX,
        TurnSource::Rule(_) => MOST_MEASURED_TURNS as usize * count,
    };
    let rounds = |machine: &mut PagingMachine, least: u32, periods: f64| {
        let begun: Vec<Ns> = machine.tasks.iter().map(|task| task.own).collect();
        let mut turns = 0;
        loop {
            for task in 0..count {
                machine.turn(task, length, setting);
                turns += 1;
            }
            let through = |(task, begun): (&Task, &Ns)| (task.own - begun) as f64 >= periods * task.job.period() as f64;
            let all = machine.tasks.iter().zip(&begun).all(through);
            if turns >= least as usize * count && (all || turns >= most) {
                return turns;
            }
        }
    };
    let (unseen, seen) = match setting.turns {
        TurnSource::Common => TURNS,
        TurnSource::Rule(_) => MEASURED_TURNS,
    };
    rounds(&mut machine, unseen, 1.0);
    let (start, before) = (machine.now, machine.sums());
    let own = |machine: &PagingMachine| machine.tasks.iter().map(|task| task.own).sum::<Ns>();
    let own_before = own(&machine);
    (machine.away, machine.fullest, machine.gap, machine.said) = (0, 0, 0, 0);
    let turns = rounds(&mut machine, seen, 1.0);
    let (after, passed) = (machine.sums(), machine.now - start);
    let gb = |after: u64, before: u64| (after - before) as f64 / 1e9;
    MachineFigures {
        efficiency: (own(&machine) - own_before) as f64 / passed.max(1) as f64,
        seconds: passed as f64 / 1e9,
        turn_ms: passed as f64 / turns as f64 / MS as f64,
        away_ms: machine.away as f64 / MS as f64,
        said_ms: machine.said as f64 / MS as f64,
        gap_ms: machine.gap as f64 / MS as f64,
        prefetched_gb: gb(after.prefetched, before.prefetched),
        faulted_gb: gb(after.faulted, before.faulted),
        out_gb: gb(after.out, before.out),
        dropped_gb: gb(after.dropped, before.dropped),
        discarded_gb: gb(after.discarded, before.discarded),
        faults: after.faults - before.faults,
        fullest: machine.fullest as f64 / machine.pager.ledger().room().max(1) as f64,
    }
}
