//! Whether jobs fit on the device together, and the length of their turns where they do not.
//!
//! Room is short while active jobs use more than the planner's capacity. Idle jobs and unused
//! memory do not count. New room counts after [`EASED`], as a job may want freed temporaries again.
//! While room is short, the scheduler gives jobs of one priority turns
//! ([`Event::Oversubscribed`](weft_scheduler::Event::Oversubscribed)).
//!
//! What holds: `migration <= MIGRATION_RATIO * turn`, by the last round's moves; the bound on being
//! swapped out wins. A turn grows at once and shrinks by an eighth at most, as a turn that ended
//! early moved less.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weft_paging::Planner;
use weft_protocol::Ns;
use weft_scheduler::Client;

/// Part of a turn that migration may keep the link busy. The rest is for late orders and faults.
/// Two jobs of 1 GB each on 1.3 GB (`pytest tests/clients -k together`) get turns of some 120 ms.
const MIGRATION_RATIO: f64 = 0.65;

/// Shortest turn: a hundred granules take 10 ms.
const SHORTEST_TURN_NS: Ns = 20_000_000;

/// How long room must last until jobs run side by side again.
const EASED: Duration = Duration::from_secs(1);

/// The scheduler hears of a new length that differs by more than 1/`NEWS_PART`.
const NEWS_PART: Ns = 16;

#[derive(Debug)]
pub(super) struct Turns {
    away: Ns,
    /// Length of turns now; 0: not computed.
    length: Ns,
    short: bool,
    /// Since when there has been room.
    eased: Option<Instant>,
    /// Clients that take turns and their lengths, as the scheduler knows them.
    told: BTreeMap<u64, Ns>,
}

impl Turns {
    pub(super) fn new(away: Ns) -> Turns {
        Turns {
            away,
            length: 0,
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

    pub(super) fn forget(&mut self, client: u64) {
        self.told.remove(&client);
    }

    /// Computes the length anew, after a turn.
    pub(super) fn measure(&mut self, planner: &Planner) {
        let wanted = planner.turn_length(1.0 / MIGRATION_RATIO, SHORTEST_TURN_NS, self.away);
        self.length = wanted.max(self.length - self.length / 8).min(self.away);
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
        if let Some(planner) = planner.filter(|_| self.length == 0 && !members.is_empty()) {
            self.measure(planner);
        }
        if members.is_empty() {
            self.length = 0;
        }
        let mut tell = Vec::new();
        self.told.retain(|client, _| {
            let stays = members.contains(&Client(*client));
            if !stays {
                tell.push((*client, None));
            }
            stays
        });
        for Client(client) in members {
            let before = self.told.get(client).copied().unwrap_or(0);
            if before.abs_diff(self.length) > self.length / NEWS_PART {
                self.told.insert(*client, self.length);
                tell.push((*client, Some(self.length)));
            }
        }
        tell
    }
}
