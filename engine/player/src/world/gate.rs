// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interposer's half: a launch passes by its job's mode and is recorded, and its end is
//! reported. The rules are those of `weft_gate`, whose first module lists the player's differences;
//! the order of steps follows `interposer/src/throttle`.

use weft_gate::active_streams::RemainingWork;
use weft_gate::charge::{self, QUEUED_WORK_RATIO};
use weft_gate::event_times::LEAST_WAIT_NS;
use weft_gate::fences::{FENCE_PAUSE_NS, FenceDue, fence_due};
use weft_gate::run_ahead;
use weft_gate::wait::DEFAULT_LONGEST_WAIT_NS;
use weft_protocol::credit::MayLaunch;
use weft_protocol::lane::{DeviceSpeed, HOST_COPY};
use weft_scheduler::{Client, Event, Mode};

use super::lane::WaitingLaunch;
use super::process::{Queued, SyncResult};
use super::stand::{HeldReason, Stand};
use super::timing::TimedLaunch;
use super::{MachineEvent, PlayedMachine};
use crate::Ns;
use crate::job::{Play, name_of};

/// The gate's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// The launch may go.
    Open,
    /// The device decides: look again at this time.
    Later(Ns),
    /// The broker decides.
    Shut,
}

/// Bytes of a call that the interposer counts as a transfer.
fn transfer_bytes(play: &Play) -> Option<u64> {
    match play {
        Play::Copy { bytes, .. } => Some(*bytes),
        Play::Compute { kernel: 0, bytes, .. } => Some(*bytes),
        _ => None,
    }
}

impl PlayedMachine {
    /// The daemon's longest wait, ns.
    fn longest_wait(&self) -> Ns {
        self.hosts.slowed(DEFAULT_LONGEST_WAIT_NS)
    }

    /// The most predicted work, ns, that the launch queue holds.
    pub(super) fn queued_work(&self) -> Ns {
        self.longest_wait() / QUEUED_WORK_RATIO
    }

    /// Sum of the launch epochs above this priority.
    pub(super) fn sum_above(&self, priority: u8) -> u64 {
        self.epochs.iter().take(usize::from(priority)).sum()
    }

    /// Whether the head of the queue may go now; otherwise it waits.
    pub(super) fn permitted(&mut self, job: usize, call: Queued, play: &Play) -> bool {
        let now = self.now;
        let allowed = if self.own.is_some() {
            self.own_permits(job, play)
        } else if self.broker.is_some() {
            self.gate_permits(job, play)
        } else {
            true
        };
        let process = &mut self.processes[job];
        if allowed {
            if let Some(since) = process.held_since.take() {
                process.waits.push((since, now));
            }
            process.stands(now, Stand::Away);
        } else if process.held_since.is_none() {
            process.held_since = Some(now);
            process.wants(self.seed, call, play);
            let stand = match self.own {
                Some(_) => Stand::Held(HeldReason::Rule),
                None => Stand::Asks,
            };
            process.stands(now, stand);
        }
        allowed
    }

    /// Whether a launch with none before it would pass. Takes no credit.
    pub(super) fn passes_at_once(&mut self, job: usize, play: &Play) -> bool {
        if self.own.is_some() {
            return self.own_permits(job, play);
        }
        let process = &self.processes[job];
        let lane = &process.lane;
        if self.broker.is_none() || lane.mode != Mode::Background || process.job.program.is_collective(play) {
            return true;
        }
        let cost = lane.cost(play);
        let backlog = self.clock_says(job).max(self.behind(job));
        let long = lane.long(name_of(play), cost);
        let may = run_ahead::may_launch(lane.window, self.now, backlog, long);
        lane.covers(cost, self.sum_above(process.job.priority)) && may == MayLaunch::Now
    }

    fn gate_permits(&mut self, job: usize, play: &Play) -> bool {
        let lane = &self.processes[job].lane;
        let small = transfer_bytes(play).is_some_and(|bytes| !charge::is_gated(bytes));
        if lane.mode != Mode::Background || small {
            return true;
        }
        // Peers wait for it. The job's next launches pay.
        if self.processes[job].job.program.is_collective(play) {
            let lane = &mut self.processes[job].lane;
            lane.credit -= charge::in_credit(lane.cost(play));
            return true;
        }
        if lane.waiting.is_some() || lane.paced.is_some() {
            return false;
        }
        let waiting = WaitingLaunch {
            kernel: name_of(play),
            cost: lane.cost(play),
            since: self.now,
        };
        match self.ask_gate(job, &waiting) {
            Gate::Open => return true,
            Gate::Later(at) => {
                self.fence_all(job);
                self.processes[job].lane.paced = Some(waiting);
                self.look_later(job, at);
            }
            Gate::Shut => self.begin_wait(job, waiting),
        }
        false
    }

    /// Begins a wait for the broker.
    fn begin_wait(&mut self, job: usize, waiting: WaitingLaunch) {
        let now = self.now;
        let gate_spin = self.hosts.gate_spin;
        let lane = &mut self.processes[job].lane;
        lane.paced = None;
        lane.came_under = lane.window.map(|window| window.deadline);
        lane.waiting = Some(WaitingLaunch { since: now, ..waiting });
        self.fence_all(job);
        self.ring(job, false);
        self.look_later(job, now + gate_spin);
    }

    /// Predicted work of this job on the device, ns, by the clock.
    fn clock_says(&self, job: usize) -> Ns {
        self.processes[job].lane.free_at.saturating_sub(self.now)
    }

    /// Work, ns, that has not begun: it is behind a fence that is not reached.
    fn behind(&self, job: usize) -> Ns {
        let streams = self.processes[job].streams.iter();
        let first = |stream: &super::process::ProcessStream| {
            let mut flights = stream.in_flight.iter();
            let mark = flights.find(|flight| flight.marked && flight.upto > stream.settled)?;
            Some(stream.issued - mark.upto)
        };
        streams.filter_map(first).sum()
    }

    /// Takes the credit for a launch, or returns when to look again without the broker.
    fn ask_gate(&mut self, job: usize, waiting: &WaitingLaunch) -> Gate {
        let now = self.now;
        let lane = &self.processes[job].lane;
        if lane.window.is_some() && lane.credit < waiting.cost as i64 {
            self.fence_all(job);
            self.poll(job);
        }
        let lane = &self.processes[job].lane;
        if lane.window.is_some() && self.behind(job) > self.clock_says(job) {
            self.poll(job);
        }
        let process = &self.processes[job];
        let lane = &process.lane;
        let Some(window) = lane.window else {
            return match self.take_credit(job, waiting.cost) {
                true => Gate::Open,
                false => Gate::Shut,
            };
        };
        let (clock, behind) = (self.clock_says(job), self.behind(job));
        let holds = charge::is_valid(lane.bound_to(), self.sum_above(process.job.priority));
        if !holds || now > waiting.since + self.hosts.slowed(DeviceSpeed::default().device_wait) {
            return Gate::Shut;
        }
        let awaits = process.outstanding > 0;
        let may = window.may_launch(now, clock.max(behind), lane.long(waiting.kernel, waiting.cost));
        if may == MayLaunch::Now && self.take_credit(job, waiting.cost) {
            return Gate::Open;
        }
        match run_ahead::next_look(now, may, behind > clock, awaits) {
            Some(at) => Gate::Later(at),
            None => Gate::Shut,
        }
    }

    fn look_later(&mut self, job: usize, at: Ns) {
        let lane = &mut self.processes[job].lane;
        lane.token += 1;
        lane.look_at = at;
        let token = lane.token;
        self.at(at, MachineEvent::Gate { job: job as u16, token });
    }

    /// Rings the bell of a lane: a thread that sleeps on it wakes later, one that spins sees it.
    pub(super) fn bell(&mut self, job: usize) {
        let lane = &self.processes[job].lane;
        // A launch that waits only for the device sees its orders all the time.
        if lane.paced.is_some() && self.now < lane.look_at {
            let now = self.now;
            return self.look_later(job, now);
        }
        let Some(waiting) = lane.waiting else { return };
        let spins = self.now < waiting.since + self.hosts.gate_spin;
        let at = if spins { self.now } else { self.wake_up() };
        if at < self.processes[job].lane.look_at {
            self.look_later(job, at);
        }
    }

    /// Takes the credit if the run-ahead window allows it, by the clock
    /// ([`run_ahead::takes_while_waiting`]).
    fn leaves(&mut self, job: usize, waiting: &WaitingLaunch) -> bool {
        let lane = &self.processes[job].lane;
        let backlog = self.clock_says(job);
        let long = || lane.long(waiting.kernel, waiting.cost);
        let takes = run_ahead::takes_while_waiting(lane.window, lane.came_under, waiting.cost, long);
        let may = run_ahead::may_launch(lane.window, self.now, backlog, takes);
        may == MayLaunch::Now && self.take_credit(job, waiting.cost)
    }

    fn take_credit(&mut self, job: usize, cost: Ns) -> bool {
        let process = &self.processes[job];
        let lane = &process.lane;
        if !lane.covers(cost, self.sum_above(process.job.priority)) {
            return false;
        }
        self.processes[job].lane.credit -= charge::in_credit(cost);
        true
    }

    /// A background job at the gate looks again.
    pub(super) fn gate_look(&mut self, job: usize, token: u32) {
        let lane = &self.processes[job].lane;
        if lane.token != token {
            return;
        }
        let now = self.now;
        if let Some(paced) = lane.paced {
            self.poll(job);
            return match self.ask_gate(job, &paced) {
                Gate::Open => self.pass_gate(job),
                Gate::Later(at) => self.look_later(job, at),
                Gate::Shut => self.begin_wait(job, paced),
            };
        }
        let Some(waiting) = lane.waiting else { return };
        if self.poll(job) {
            self.ring(job, false);
        }
        let passes = if self.processes[job].lane.mode != Mode::Background || self.leaves(job, &waiting) {
            true
        } else if now >= waiting.since + self.longest_wait() {
            self.processes[job].lane.credit -= waiting.cost as i64;
            true
        } else {
            false
        };
        if !passes {
            let late = self.random.between(self.hosts.oversleep);
            let nap = self.processes[job].nap(now);
            return self.look_later(job, now + nap + late);
        }
        self.pass_gate(job);
    }

    fn pass_gate(&mut self, job: usize) {
        let now = self.now;
        let process = &mut self.processes[job];
        let lane = &mut process.lane;
        let waited = lane.waiting.take().or(lane.paced.take());
        if let Some(since) = process.held_since.take() {
            process.waits.push((since, now));
        }
        process.stands(now, Stand::Away);
        // The launch that waited goes; those behind it ask by themselves.
        self.launch_head(job, waited.map(|launch| launch.cost));
        self.launch_queued(job);
    }

    /// Puts a fence behind all work of the job.
    fn fence_all(&mut self, job: usize) {
        for stream in &mut self.processes[job].streams {
            if stream.issued <= stream.marked {
                continue;
            }
            stream.marked = stream.issued;
            match stream.in_flight.back_mut() {
                Some(last) => last.marked = true,
                None => stream.reached = stream.issued,
            }
        }
    }

    /// Polls the fences. True if work was seen to end.
    fn poll(&mut self, job: usize) -> bool {
        let now = self.now;
        let process = &mut self.processes[job];
        let mut gained = 0;
        for stream in &mut process.streams {
            gained += stream.reached.saturating_sub(stream.settled);
            stream.settled = stream.settled.max(stream.reached);
        }
        process.lane.settled += gained;
        if gained > 0 {
            process.lane.progress = now;
            self.renew(job);
            self.news();
        }
        gained > 0
    }

    /// Renews the credit as in `Orders::replenish`, and the upper bound of the predicted end.
    fn renew(&mut self, job: usize) {
        let above = self.sum_above(self.processes[job].job.priority);
        let now = self.now;
        let lane = &mut self.processes[job].lane;
        lane.free_at = lane.free_at.min(run_ahead::latest_end(now, lane.issued - lane.settled));
        if let Some(window) = lane.window.filter(|_| lane.bound && lane.epochs >= above) {
            let total = lane.settled.saturating_sub(window.non_refundable);
            lane.credit += total.saturating_sub(lane.renewed) as i64;
            lane.renewed = lane.renewed.max(total);
        }
    }

    /// Books and records work that went to the device. `charge`: see [`PlayedMachine::launch`].
    pub(super) fn launched(&mut self, job: usize, stream: u16, play: &Play, charge: Option<Ns>) {
        let now = self.now;
        self.count_on_device(job);
        self.own_launched(job);
        if self.broker.is_none() {
            return;
        }
        let process = &mut self.processes[job];
        let (mode, priority) = (process.lane.mode, process.job.priority);
        if matches!(mode, Mode::Free | Mode::Alone) {
            return;
        }
        let (client, hints) = (Client(job as u64), self.hosts.hints);
        let kernel = name_of(play);
        let cost = charge.unwrap_or_else(|| process.lane.cost(play));
        let transfer = transfer_bytes(play);
        let was_idle = process.lane.active_streams.is_idle();
        let charged = mode == Mode::Background && transfer.is_none_or(charge::is_gated);
        if transfer.is_some() && was_idle && hints {
            process.lane.records.push((now, Event::WakeUpHint(client, now)));
        }
        process.lane.active_streams.mark(usize::from(stream));
        if charged {
            self.issue(job, stream, cost);
        }
        let process = &mut self.processes[job];
        let at = now;
        let told = Event::Launched {
            client,
            kernel,
            cost,
            at,
        };
        if hints || transfer.is_none() {
            process.lane.records.push((now, told));
        }
        if mode == Mode::Foreground && transfer.is_none() {
            self.epochs[usize::from(priority.min(9))] += 1;
        }
        self.news();
        if was_idle {
            self.ring(job, false);
        }
        if charged && kernel != HOST_COPY {
            self.fence_now(job, stream);
        }
    }

    /// Whether the device times this launch of a background job. Reports the times that are read.
    pub(super) fn times_launch(&mut self, job: usize) -> bool {
        let now = self.now;
        let lane = &mut self.processes[job].lane;
        if !lane.timed || lane.mode != Mode::Background {
            return false;
        }
        let mut read = Vec::new();
        let times = lane.timer.takes(now, &mut read);
        let sampled = read.into_iter().map(|TimedLaunch { kernel, at, time }| {
            let client = Client(job as u64);
            (
                at,
                Event::Sampled {
                    client,
                    kernel,
                    time,
                    at,
                },
            )
        });
        lane.records.extend(sampled);
        times
    }

    /// Books a background job's work that went through the gate.
    fn issue(&mut self, job: usize, stream: u16, cost: Ns) {
        let now = self.now;
        let process = &mut self.processes[job];
        let at = &mut process.streams[usize::from(stream)];
        if at.issued <= at.settled {
            process.lane.progress = now;
        }
        at.issued += cost;
        process.lane.issued += cost;
        process.lane.free_at = run_ahead::end_after_launch(process.lane.free_at, now, cost);
        let issued = at.issued;
        // The stream's in-flight entry was made before this.
        if let Some(last) = at.in_flight.back_mut() {
            last.upto = issued;
        }
    }

    /// After a background job's launch: puts a fence and polls, if a fence is due.
    fn fence_now(&mut self, job: usize, stream: u16) {
        let now = self.now;
        let process = &mut self.processes[job];
        let at = &mut process.streams[usize::from(stream)];
        let unmarked = at.issued - at.marked.max(at.settled).min(at.issued);
        match fence_due(unmarked, process.lane.credit) {
            FenceDue::No => return,
            FenceDue::Rarely if now - process.lane.last_fence < FENCE_PAUSE_NS => return,
            FenceDue::Rarely => process.lane.last_fence = now,
            FenceDue::Now => {}
        }
        at.marked = at.issued;
        if let Some(last) = at.in_flight.back_mut() {
            last.marked = true;
        }
        self.poll(job);
    }

    /// Handles the return of a call that waited.
    pub(super) fn synced(&mut self, job: usize, synced: SyncResult, since: Ns) {
        if self.broker.is_none() {
            return;
        }
        let now = self.now;
        let process = &mut self.processes[job];
        let mode = process.lane.mode;
        if matches!(mode, Mode::Free | Mode::Alone) {
            return;
        }
        // As the interposer does (`interposer/src/throttle/session.rs`).
        let active = &process.lane.active_streams;
        let ended = match synced {
            SyncResult::All => None,
            SyncResult::Stream(stream) => Some(active.synced(usize::from(stream))),
            SyncResult::Event(event) => Some(active.reached(usize::from(event))),
        };
        let idle = match ended {
            None => active.all_synced(),
            Some(ended) => ended.left != RemainingWork::AsBefore,
        };
        if mode == Mode::Background {
            let certain = ended.is_none_or(|ended| ended.left == RemainingWork::Nothing);
            let has_ended =
                |at: usize| certain || ended.is_some_and(|ended| ended.streams().any(|stream| stream == at));
            for (at, stream) in process.streams.iter_mut().enumerate() {
                if has_ended(at) {
                    stream.reached = stream.issued;
                    stream.marked = stream.issued;
                }
            }
            self.poll(job);
        }
        if let SyncResult::Event(event) = synced
            && !idle
            && mode == Mode::Foreground
            && now >= since + LEAST_WAIT_NS
        {
            let lane = &mut self.processes[job].lane;
            if let Some(covers) = lane.event_times.of(usize::from(event)) {
                let part = Event::PartialWait {
                    client: Client(job as u64),
                    covers,
                    since,
                    at: now,
                };
                lane.records.push((now, part));
                self.news();
            }
        }
        if idle {
            let client = Client(job as u64);
            let event = if now < since + LEAST_WAIT_NS {
                Event::FoundIdle(client, now)
            } else {
                Event::Idle(client, now)
            };
            self.processes[job].lane.records.push((now, event));
            self.news();
            if mode != Mode::Background {
                self.ring(job, true);
            }
        }
    }
}
