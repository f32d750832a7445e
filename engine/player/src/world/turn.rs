// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker's turns: their times, and how the broker carries out the core's decisions.
#![forbid(unsafe_code)]

use weft_scheduler::{Decision, Event, Mode};

use super::broker::ITERATION_NS;
use super::lane::{GateBell, WaitingLaunch};
use super::stand::{HeldReason, Stand};
use super::{MachineEvent, PlayedMachine};
use crate::Ns;

/// The most rounds of decisions and their results in one turn, as in the daemon.
const ROUNDS: usize = 16;

impl PlayedMachine {
    /// Attaches all jobs, before anything runs.
    pub(super) fn attach_all(&mut self) {
        let Some(broker) = &mut self.broker else { return };
        broker.attach_all(&mut self.processes);
        self.carry_out();
        self.plan_turn();
    }

    /// A client rings with its news, if that is wanted. `idle`: the news is that it became idle.
    pub(super) fn ring(&mut self, job: usize, idle: bool) {
        let Some(broker) = &self.broker else { return };
        let wanted = &mut self.processes[job].lane.bell;
        let rings = *wanted == GateBell::All || (idle && *wanted == GateBell::Idle);
        if !rings {
            return;
        }
        *wanted = GateBell::None;
        if !broker.spins() {
            let at = self.wake_up();
            self.turn_at(at);
        }
    }

    /// Schedules a turn after a change of a lane, if the broker spins and so sees it.
    pub(super) fn news(&mut self) {
        if self.broker.as_ref().is_some_and(|broker| broker.spins()) {
            self.turn_at(self.now + ITERATION_NS);
        }
    }

    fn turn_at(&mut self, at: Ns) {
        if let Some(token) = self.broker.as_mut().and_then(|broker| broker.bring_forward(at)) {
            self.at(at, MachineEvent::Turn { token });
        }
    }

    fn plan_turn(&mut self) {
        let late = self.random.between(self.hosts.oversleep);
        let Some(broker) = &mut self.broker else { return };
        let at = broker.begin_wait(self.now, late, &mut self.processes);
        self.turn_at(at);
    }

    pub(super) fn broker_turn(&mut self, token: u32) {
        let Some(broker) = &mut self.broker else { return };
        if !broker.begin_turn(token, self.now, &mut self.processes) {
            return;
        }
        self.read_lanes();
        self.carry_out();
        self.note_stands();
        self.plan_turn();
    }

    fn read_lanes(&mut self) {
        if let Some(broker) = &mut self.broker {
            broker.read_lanes(self.now, &mut self.processes);
        }
    }

    fn carry_out(&mut self) {
        for _ in 0..ROUNDS {
            let Some(broker) = &mut self.broker else { return };
            let decisions = broker.take_decisions();
            if decisions.is_empty() {
                return;
            }
            let answers = decisions.into_iter().filter_map(|decision| self.obey(decision));
            let answers: Vec<Event> = answers.collect();
            if let Some(broker) = &mut self.broker {
                broker.tell(self.now, answers);
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
            Decision::Grant {
                client,
                credit,
                bound,
                outlives,
            } => {
                let job = client.0 as usize;
                let above = self.sum_above(self.processes[job].job.priority) + outlives;
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
            Decision::Times(client, wanted) => {
                self.processes[client.0 as usize].lane.timed = wanted;
                None
            }
            Decision::Charge(client, kernel, charge) => {
                let lane = &mut self.processes[client.0 as usize].lane;
                match kernel {
                    0 => lane.unknown = charge,
                    _ => _ = lane.costs.insert(kernel, charge),
                }
                None
            }
            Decision::Revoke(client) => {
                let job = client.0 as usize;
                self.processes[job].lane.window = None;
                let left = std::mem::take(&mut self.processes[job].lane.credit);
                self.bell(job);
                Some(Event::Revoked { client, left })
            }
        }
    }

    /// Records after a turn of the broker why waiting jobs still wait.
    pub(super) fn note_stands(&mut self) {
        let mut seen = None;
        for job in 0..self.processes.len() {
            let lane = &self.processes[job].lane;
            let Some(WaitingLaunch { cost, .. }) = lane.waiting.filter(|_| lane.mode == Mode::Background) else {
                continue;
            };
            let granted = lane.covers(cost, self.sum_above(self.processes[job].job.priority));
            let stand = if granted {
                Stand::Granted
            } else if lane.told_wait != lane.waiting {
                Stand::Asks
            } else {
                let Some(broker) = &self.broker else { return };
                let (exposure, busy_until) = *seen.get_or_insert_with(|| broker.believes());
                Stand::Held(if exposure > 0 && exposure + cost > broker.delay_bound() {
                    HeldReason::Bound
                } else if self.foreground_jobs_seen() {
                    HeldReason::Short
                } else if self.now < busy_until {
                    HeldReason::Busy
                } else {
                    HeldReason::Unseen
                })
            };
            let now = self.now;
            self.processes[job].stands(now, stand);
        }
    }

    /// Whether the end of all foreground jobs' work has been reported to the core.
    fn foreground_jobs_seen(&self) -> bool {
        self.processes
            .iter()
            .filter(|process| process.lane.mode == Mode::Foreground)
            .all(|process| process.lane.told_idle)
    }

    /// Reports the rest to the core at the end: its books are then compared with the words.
    pub(super) fn settle_accounts(&mut self) {
        if self.broker.is_some() {
            self.read_lanes();
            self.carry_out();
        }
    }
}
