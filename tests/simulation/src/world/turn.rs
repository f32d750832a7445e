// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker's turn as the world sees it. Each event and each decision is checked, and time passes
//! for all processes in between.
#![forbid(unsafe_code)]

use super::*;

impl FaultWorld {
    /// In the middle of a turn.
    pub(super) fn moment(&mut self, moment: &Moment<'_>) {
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
                // Anything may happen between two decisions, but the decision itself is one step
                // here.
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

    /// Lets time pass for all processes while the broker works.
    pub(super) fn let_pass(&mut self) {
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

    pub(super) fn decided(&mut self, decision: &Decision) {
        match decision {
            Decision::Grant { bound: true, .. } => self.count("bound grants"),
            Decision::Grant { .. } => self.count("unbound grants"),
            Decision::Revoke(_) => self.count("revocations"),
            Decision::Mode(..) => self.count("modes"),
            Decision::RunAheadWindow(..) => self.count("windows"),
            Decision::Times(..) => self.count("timings"),
            Decision::Charge(..) => self.count("charges"),
        }
    }

    /// Wakes threads that sleep on a changed bell.
    pub(super) fn wake_sleepers(&mut self) {
        let now = self.now;
        for process in &mut self.processes {
            let holds = process.mode() == Mode::Foreground;
            process.foreground_since = holds.then(|| process.foreground_since.unwrap_or(now));
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

    /// The broker let go of a client whose end was not reported to it: its lane lied, or its
    /// profile was taken away.
    pub(super) fn let_go(&mut self, client: Client, _strangers: u64) {
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

    /// Checks that the core takes in launches in the order in which each thread made them.
    pub(super) fn in_order(&mut self, event: &Event) {
        let Event::Launched { client, kernel, .. } = event else {
            return;
        };
        let honest = |process: &SimProcess| {
            process.client == Some(*client) && !process.lies && process.life == ProcessLife::Lives
        };
        if *kernel >= 10_000 || self.lagged.contains(client) || !self.processes.iter().any(honest) {
            return;
        }
        let thread = (kernel / 10 % 10).saturating_sub(1);
        let expected = self.told.entry((*client, thread)).or_default().pop_front();
        // After a clock's jump, launches reported by then and launches made since may have swapped
        // places, one for one. Once all of them are reported the order must be right again.
        if self.unsure.contains(client) {
            if self.told.iter().all(|((of, _), told)| of != client || told.is_empty()) {
                self.unsure.remove(client);
            }
            return;
        }
        if expected != Some(*kernel) {
            self.fail(
                name::ORDER,
                format!("client {} launched {expected:?}, the core is told {kernel}", client.0),
            );
        }
    }

    /// Checks after all decisions of a turn are carried out.
    pub(super) fn after_turn(&mut self, core: &weft_scheduler::Core) {
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
        let turns = core.snapshot().counters.long_turns;
        for _ in self.long_turns..turns {
            self.count("long turns");
        }
        self.long_turns = turns;
        self.foreground_jobs_go();
        self.progress(core);
    }

    /// Checks that no thread of a foreground job stands at the gate, except those that stood there
    /// when it became one and are on their way out.
    fn foreground_jobs_go(&mut self) {
        /// Time to leave the gate: four steps, at each of which the thread may lose its core for 5
        /// ms; one thread after another.
        const OUT_NS: Ns = 25 * MS;
        let late = self.processes.iter().find_map(|process| {
            let (thread, time) = process.holds_up_a_foreground(self.now)?;
            let most = OUT_NS * process.threads.len() as Ns;
            (time > most).then(|| {
                format!(
                    "job {}.{thread} stands at the gate {time} ns after its process was told that it is a foreground job: {:?}",
                    process.number, process.threads[thread].stage
                )
            })
        });
        if let Some(how) = late {
            self.fail(name::FOREGROUND, how);
        }
    }

    /// Checks that no job waits longer than all jobs' minimum shares and the obstacles allow.
    pub(super) fn progress(&mut self, core: &weft_scheduler::Core) {
        let config = core.config();
        let share = config.minimum_share;
        #[cfg(test)]
        let share = self.stated_share(share);
        let patience = |cost: Ns| ((cost + 2 * config.switch_cost) as f64 / share) as Ns;
        let dearest = |process: &SimProcess| {
            let known = process.costs.values().copied().max().unwrap_or(0);
            known
                .max(process.lane().orders.unknown_cost.load(Ordering::Relaxed))
                .max(400 * US)
        };
        // A job that found a gap does not starve for a while.
        let fed = match config.policy {
            weft_scheduler::PolicyName::Weft => config.starving_after,
            _ => 0,
        };
        let mut limit: Ns = self.excuse + 20 * MS + fed;
        for process in &self.processes {
            let share = if process.lies { 10 * MS } else { dearest(process) };
            limit = limit.saturating_add(
                2 * (patience(share) + config.turn.max(self.longest_turn) + 2 * config.write_off_after),
            );
        }
        let starving = self.processes.iter().find_map(|process| {
            if process.life != ProcessLife::Lives || process.lies || process.mode() != Mode::Background {
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
