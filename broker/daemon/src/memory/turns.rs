//! Whether jobs fit on the device together, and the length of their turns where they do not.
//!
//! Room is short while active jobs use more than the planner's capacity. Idle jobs and unused
//! memory do not count. New room counts after [`EASED`], as a job may want freed temporaries again.
//! While room is short, the scheduler gives jobs of one priority turns
//! ([`Event::Oversubscribed`](weft_scheduler::Event::Oversubscribed)).
//!
//! Their length is the planner's ([`weft_paging::TurnRule`]), measured anew after each turn.
//! Launches may wait longer at the gate than clients are swapped out: one that went regardless
//! would take the memory from the job whose turn it is.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weft_paging::{Planner, TurnLateness, TurnPlan, TurnRule};
use weft_protocol::Ns;
use weft_scheduler::Client;

/// How long room must last until jobs run side by side again.
const EASED: Duration = Duration::from_secs(1);

/// The scheduler hears of a new length that differs by more than 1/`NEWS_PART`.
const NEWS_PART: Ns = 16;

#[derive(Debug)]
pub(super) struct Turns {
    rule: TurnRule,
    lateness: TurnLateness,
    /// Turns now; of length 0: not computed.
    planned: TurnPlan,
    short: bool,
    /// Since when there has been room.
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

    /// How long a client that takes turns is swapped out between two of its own, ns.
    pub(super) fn swapped_out(&self, client: u64) -> Option<Ns> {
        let turn = self.of(client)?;
        Some(self.told.values().sum::<Ns>().saturating_sub(turn))
    }

    /// How long a client would be swapped out in turns long enough for what they move, ns; 0: they
    /// are.
    pub(super) fn needed(&self) -> Ns {
        self.planned.needed
    }

    pub(super) fn forget(&mut self, client: u64) {
        self.told.remove(&client);
        self.lateness.forget(Client(client));
    }

    /// Notes how long a client's turn took, and after how long it got on, ns.
    pub(super) fn took(&mut self, client: u64, took: Ns, first: Ns) {
        if let Some(planned) = self.of(client) {
            self.lateness.note(Client(client), planned, took, first);
        }
    }

    /// Computes the length anew, after a turn.
    pub(super) fn measure(&mut self, planner: &Planner) {
        let rule = TurnRule {
            late: self.lateness.of_a_round(),
            ..self.rule
        };
        self.planned = planner.turns(&rule).after(self.planned.length);
    }

    /// Checks whether active clients fit. Returns what the scheduler is to hear.
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
