// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arrivals, departures and troubles.
#![forbid(unsafe_code)]

use super::*;

impl FaultWorld {
    pub(super) fn arrive(&mut self, at: Ns) {
        let Some(found) = self
            .arrivals
            .iter()
            .position(|job| job.attach_at + clock::BEGIN_NS == at)
        else {
            return;
        };
        let job = self.arrivals.remove(found);
        let Some(visitors) = &self.visitors else { return };
        let guest = FakeClient {
            priority: job.priority,
            profile: job.profile.clone(),
            profiling: job.profiling,
            longest_wait: job.longest_wait,
        };
        let host = Arc::clone(&visitors.host);
        match visitors.attach(guest) {
            Ok((client, lane)) => {
                let process = SimProcess::new(&job, self.scenario.seed, self.now, client, lane, host);
                self.processes.push(process);
                self.log(|_| format!("job {} is client {}", job.number, client.0));
                self.rings();
            }
            Err(error) => self.fail("the run", error.to_string()),
        }
    }

    pub(super) fn hear_of_death(&mut self, at: Ns) {
        let Some(found) = self.deaths.iter().position(|(when, _)| *when == at) else {
            return;
        };
        let (_, client) = self.deaths.remove(found);
        self.gone(client, Ending::Vanished);
    }

    pub(super) fn gone(&mut self, client: Client, ending: Ending) {
        self.ended.push(client);
        if let Some(visitors) = &self.visitors {
            visitors.gone(client, ending);
        }
        self.rings();
    }

    pub(super) fn trouble(&mut self, trouble: PlannedTrouble) {
        self.log(|_| format!("{trouble:?}"));
        self.count("troubles");
        let at = trouble.job().map(|job| {
            self.processes
                .iter()
                .position(|process| process.number == job && process.life == ProcessLife::Lives)
        });
        let at = match at {
            Some(None) => return,
            Some(Some(at)) => at,
            None => usize::MAX,
        };
        let now = self.now;
        // The broker waits for unreported work until it is written off.
        let written_off = 21 * self.scenario.config.write_off_after;
        match trouble {
            PlannedTrouble::Dies { heard_after, .. } => {
                let process = &mut self.processes[at];
                process.life = ProcessLife::Dead;
                let client = process.client;
                self.excuse += heard_after + written_off;
                self.deaths.extend(client.map(|client| (now + heard_after, client)));
            }
            PlannedTrouble::Leaves { .. } => {
                let process = &mut self.processes[at];
                process.life = ProcessLife::Dead;
                if let Some(client) = process.client {
                    self.gone(client, Ending::Goodbye);
                }
            }
            PlannedTrouble::Stalls { time, .. } => {
                self.processes[at].stalled_until = now + time;
                self.excuse += time + written_off;
            }
            PlannedTrouble::ThreadStalls { thread, time, .. } => {
                if let Some(thread) = self.processes[at].threads.get_mut(thread) {
                    thread.next_at = thread.next_at.max(now) + time;
                    thread.stalled_until = thread.next_at;
                }
                self.excuse += time + written_off;
            }
            PlannedTrouble::BrokerStalls { time } => {
                self.broker_at = self.broker_at.max(now) + time;
                self.excuse += time;
            }
            PlannedTrouble::Priority { priority, .. } => {
                if let (Some(visitors), Some(client)) = (&self.visitors, self.processes[at].client) {
                    visitors.set_priority(client, priority);
                }
                self.rings();
            }
            PlannedTrouble::Jumps { by, .. } => {
                self.processes[at].clock_offset += by;
                self.unsure.extend(self.processes[at].client);
                self.excuse += 2 * by.unsigned_abs() + written_off;
            }
            PlannedTrouble::BrokerJumps { by } => {
                self.broker_offset += by;
                self.unsure
                    .extend(self.processes.iter().filter_map(|process| process.client));
                self.excuse += 2 * by.unsigned_abs();
                self.set_now(now);
            }
            PlannedTrouble::Forks { .. } => self.fork(at),
            PlannedTrouble::Unprofiled { .. } => {
                if let (Some(visitors), Some(client)) = (&self.visitors, self.processes[at].client) {
                    visitors.unprofile(client);
                }
                self.excuse += written_off;
                self.rings();
            }
            PlannedTrouble::Crowded { turn, .. } => {
                if let (Some(visitors), Some(client)) = (&self.visitors, self.processes[at].client) {
                    visitors.crowded(client, turn);
                }
                self.longest_turn = self.longest_turn.max(turn.unwrap_or(0));
                self.rings();
            }
            PlannedTrouble::Lies { what, .. } => {
                crate::lies::tell(&mut self.processes[at], &mut SeededChance::new(what, 3));
                self.excuse += 4 * written_off;
                self.rings();
            }
        }
    }

    pub(super) fn fork(&mut self, at: usize) {
        let (Ok(lane), Ok(host)) = (SharedLane::lane(), Host::make()) else {
            return self.fail("the run", "no memory for a child".to_string());
        };
        let child = self.processes[at].child(1000 + self.processes.len(), Arc::new(lane), Arc::new(host));
        self.processes.push(child);
    }
}
