// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns with the device's memory: whether jobs fit together, and the length of their turns if not.
//!
//! Memory is short while active jobs use more than the planner's capacity. Idle jobs and unused
//! memory do not count. Memory that becomes free counts after [`EASED`], because a job may need
//! freed temporaries again. While memory is short, the scheduler gives jobs of one priority turns
//! ([`Event::Oversubscribed`](weft_scheduler::Event::Oversubscribed)).
//!
//! The planner sets their length ([`weft_paging::TurnRule`]), and computes it again after each
//! turn. Launches may wait longer at the gate than their clients are swapped out. Otherwise a
//! launch that passes the gate would take memory from the job that has its turn.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weft_paging::{Planner, TurnLateness, TurnPlan, TurnRule};
use weft_protocol::Ns;
use weft_scheduler::Client;

/// Time for which memory must suffice before jobs run together again.
const EASED: Duration = Duration::from_secs(1);

/// Divisor of a turn's length: only a change by more than 1/`NEWS_PART` is sent to the scheduler.
const NEWS_PART: Ns = 16;

#[derive(Debug)]
pub(super) struct Turns {
    rule: TurnRule,
    lateness: TurnLateness,
    /// Present turns; length 0: not computed.
    planned: TurnPlan,
    short: bool,
    /// Time since which memory has sufficed.
    eased: Option<Instant>,
    /// Clients that take turns and their lengths, as the scheduler knows them.
    told: BTreeMap<u64, Ns>,
}

impl Turns {
    pub(super) fn new(rule: TurnRule) -> Turns {
        Turns {
            rule,
            lateness: TurnLateness::default(),
            planned: TurnPlan::default(),
            short: false,
            eased: None,
            told: BTreeMap::new(),
        }
    }

    /// Whether active jobs do not fit together.
    pub(super) fn is_short(&self) -> bool {
        !self.told.is_empty()
    }

    /// A client's turn, ns, if it takes turns.
    pub(super) fn of(&self, client: u64) -> Option<Ns> {
        self.told.get(&client).copied()
    }

    /// Time for which a client that takes turns is swapped out between two of its own, ns.
    pub(super) fn swapped_out(&self, client: u64) -> Option<Ns> {
        let turn = self.of(client)?;
        Some(self.told.values().sum::<Ns>().saturating_sub(turn))
    }

    /// Time for which a client would be swapped out if turns were long enough for the memory that
    /// they move, ns; 0: they are long enough.
    pub(super) fn needed(&self) -> Ns {
        self.planned.needed
    }

    pub(super) fn forget(&mut self, client: u64) {
        self.told.remove(&client);
        self.lateness.forget(Client(client));
    }

    /// Records a client's turn, ns: its duration, and the time until its first progress.
    pub(super) fn took(&mut self, client: u64, took: Ns, first: Ns) {
        if let Some(planned) = self.of(client) {
            self.lateness.note(Client(client), planned, took, first);
        }
    }

    /// Computes the length again, after a turn.
    pub(super) fn measure(&mut self, planner: &Planner) {
        let rule = TurnRule {
            late: self.lateness.of_a_round(),
            ..self.rule
        };
        self.planned = planner.turns(&rule).after(self.planned.length);
    }

    /// Checks whether active clients fit. Returns the changes to send to the scheduler: clients
    /// with the lengths of their turns, `None` for clients that fit again.
    pub(super) fn look(
        &mut self,
        planner: Option<&Planner>,
        active: &[Client],
        now: Instant,
    ) -> Vec<(u64, Option<Ns>)> {
        let short =
            active.len() > 1 && planner.is_some_and(|planner| planner.needs(active) > planner.config().capacity);
        match (short, self.eased) {
            (true, _) => (self.short, self.eased) = (true, None),
            (false, None) => self.eased = Some(now),
            (false, Some(since)) if now.saturating_duration_since(since) >= EASED => self.short = false,
            (false, Some(_)) => {}
        }
        let members: &[Client] = if self.short && active.len() > 1 { active } else { &[] };
        if let Some(planner) = planner.filter(|_| self.planned.length == 0 && !members.is_empty()) {
            self.measure(planner);
        }
        if members.is_empty() {
            self.planned = TurnPlan::default();
        }
        let mut tell = Vec::new();
        self.told.retain(|client, _| {
            let stays = members.contains(&Client(*client));
            if !stays {
                tell.push((*client, None));
            }
            stays
        });
        let length = self.planned.length;
        for Client(client) in members {
            let before = self.told.get(client).copied().unwrap_or(0);
            if before.abs_diff(length) > length / NEWS_PART {
                self.told.insert(*client, length);
                tell.push((*client, Some(length)));
            }
        }
        tell
    }
}
