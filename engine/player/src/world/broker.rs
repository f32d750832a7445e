// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon's half: the broker's waits, and its reports to the core on the lanes. It follows
//! `broker/daemon/src/scheduling` step by step; `weft_scheduler::thread_sleep` chooses how to wait,
//! as in the daemon.

use std::time::Duration;

use weft_scheduler::thread_sleep::{Scene, Wait, Waiting};
use weft_scheduler::{Client, Config, Core, Decision, Event, Mode, Snapshot};

use super::lane::GateBell;
use super::process::JobProcess;
use crate::job::PlayedJob;
use crate::{Ns, US};

/// Shortest time between two requests to a foreground job to ring when idle, as in the daemon.
const RING_PAUSE_NS: Ns = 1_000 * US;
/// Time of a turn of a spinning broker.
pub(super) const ITERATION_NS: Ns = US;

/// The daemon.
#[derive(Debug)]
pub(super) struct Broker {
    core: Core,
    waiting: Waiting,
    wait: Wait,
    /// Whether its last wait was a nap.
    naps: bool,
    /// The token of the valid turn, and its time, ns.
    token: u32,
    next: Ns,
    last_record: Ns,
    background_waits: bool,
    events: Vec<(Ns, Event)>,
    decisions: Vec<Decision>,
}

impl Broker {
    /// A broker with these settings. `spin`: it has a core to spin on.
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

    /// The core's beliefs: background work on its way or on the device, ns, and the end of
    /// foreground work.
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

    /// The kind of the next wait, and its end.
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
            // A spinning broker sees changes at once; without any, the turn that is due comes next.
            Wait::Spin => next_wake.unwrap_or(now).max(now + ITERATION_NS),
            Wait::Nap(time) | Wait::Doze(time) | Wait::Sleep(time) => now + time.as_nanos() as Ns,
        };
        (wait, at)
    }

    /// Reports all jobs to the core, before anything runs.
    pub(super) fn attach_all(&mut self, processes: &mut [JobProcess]) {
        for (job, process) in processes.iter_mut().enumerate() {
            let config = self.core.config();
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
            self.core.handle(0, event, &mut self.decisions);
            let PlayedJob {
                slowdown,
                slo,
                at_least,
                ..
            } = process.job;
            if slowdown.is_some() || slo.is_some() || at_least.is_some() {
                let event = Event::Budget {
                    client: Client(job as u64),
                    slowdown,
                    slo,
                    at_least,
                };
                self.core.handle(0, event, &mut self.decisions);
            }
        }
    }

    /// Whether it sees changes at once.
    pub(super) fn spins(&self) -> bool {
        self.wait == Wait::Spin
    }

    /// Brings the next turn forward to `at`. Returns its token, unless a turn comes earlier anyway.
    pub(super) fn bring_forward(&mut self, at: Ns) -> Option<u32> {
        if at >= self.next {
            return None;
        }
        self.token += 1;
        self.next = at;
        Some(self.token)
    }

    /// Begins a wait. Returns its end if nothing happens. `late`: how much later a sleep ends.
    pub(super) fn begin_wait(&mut self, now: Ns, late: Ns, processes: &mut [JobProcess]) -> Ns {
        let (wait, at) = self.choose(now, processes.len() == 1);
        self.wait = wait;
        self.naps = matches!(wait, Wait::Nap(_));
        self.next = Ns::MAX;
        match wait {
            Wait::Sleep(_) => want_bells(processes, Some(true)),
            Wait::Doze(_) => want_bells(processes, Some(false)),
            Wait::Spin | Wait::Nap(_) => {}
        }
        at + if self.spins() { 0 } else { late }
    }

    /// Begins a turn if this token is the valid one. Returns whether it did.
    pub(super) fn begin_turn(&self, token: u32, now: Ns, processes: &mut [JobProcess]) -> bool {
        if self.token != token {
            return false;
        }
        if self.naps {
            want_bells_in_nap(now, processes);
        } else if !self.spins() {
            want_bells(processes, None);
        }
        true
    }

    /// Reads all lanes and reports to the core.
    pub(super) fn read_lanes(&mut self, now: Ns, processes: &mut [JobProcess]) {
        self.background_waits = false;
        for (job, process) in processes.iter_mut().enumerate() {
            let client = Client(job as u64);
            let lane = &mut process.lane;
            if let Some((_, last)) = lane.records.last() {
                self.last_record = now;
                lane.told_idle = matches!(last, Event::Idle(..) | Event::FoundIdle(..));
                self.events.append(&mut lane.records);
            }
            let progressed = (lane.issued, lane.settled, lane.renewed) != lane.told;
            if progressed {
                let renewed = lane.renewed > 0;
                lane.told = (lane.issued, lane.settled, lane.renewed);
                self.events.push((
                    now,
                    Event::Progress {
                        client,
                        issued: lane.issued,
                        settled: lane.settled,
                    },
                ));
                if renewed {
                    let total = lane.renewed;
                    self.events.push((now, Event::Renewed { client, total }));
                }
            }
            // Repeated after other news, as in the daemon; first the content of the credit word.
            if lane.waiting != lane.told_wait || (progressed && lane.waiting.is_some()) {
                lane.told_wait = lane.waiting;
                if lane.waiting.is_some() {
                    let left = lane.credit;
                    self.events.push((now, Event::Holds { client, left }));
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
                self.events.push((now, event));
            }
            self.background_waits |= lane.waiting.is_some() && lane.mode == Mode::Background;
        }
        self.events.sort_by_key(|(at, _)| *at);
        for (_, event) in self.events.drain(..) {
            self.core.handle(now, event, &mut self.decisions);
        }
        if self.core.next_wake(now).is_some_and(|at| at <= now) {
            self.core.handle(now, Event::Tick, &mut self.decisions);
        }
    }

    /// The core's decisions since the last call.
    pub(super) fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }

    /// Reports the results of decisions to the core.
    pub(super) fn tell(&mut self, now: Ns, answers: Vec<Event>) {
        for event in answers {
            self.core.handle(now, event, &mut self.decisions);
        }
    }
}

/// Sets the bells before a turn after which the broker may nap.
fn want_bells_in_nap(now: Ns, processes: &mut [JobProcess]) {
    for process in processes {
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

/// Sets the bells before a sleep (`Some(true)`: for all jobs, `Some(false)`: not for foreground
/// jobs) and after it (`None`).
fn want_bells(processes: &mut [JobProcess], by_anybody: Option<bool>) {
    for process in processes {
        let lane = &mut process.lane;
        lane.bell_asked = None;
        lane.bell = match by_anybody {
            Some(by_anybody) if by_anybody || lane.mode != Mode::Foreground => GateBell::All,
            _ => GateBell::None,
        };
    }
}
