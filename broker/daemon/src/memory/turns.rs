//! Whether jobs find room on the device together, and how long their turns are where they do not.
//!
//! Room is short while what jobs at work are known to use is more than the planner may fill; a job
//! that has been idle for long does not count, nor what nobody touches. Room that has just come is
//! believed after a while ([`EASED`]): a job that frees its temporaries will want them again. Then
//! those of one priority take turns, which the scheduler sees to
//! ([`Event::Crowded`](weft_scheduler::Event::Crowded)).
//!
//! A turn is so long that moving its memory takes the link no more than [`PART`] of it, by what was
//! moved in the last round. It follows at once where that grows, and in steps of an eighth a turn
//! where it shrinks: a turn that ended early moved less. The bound on being away wins.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weft_paging::Planner;
use weft_protocol::Ns;
use weft_scheduler::Client;

/// Of a turn, what the link may be busy with its migration: the rest is for orders that are late,
/// and for faults. Two jobs of 1 GB each on 1.3 GB (`pytest tests/clients -k together`) so have
/// turns of some 120 ms.
const PART: f64 = 0.65;

/// A shorter turn is none that memory could move for: a hundred granules take 10 ms.
const LEAST: Ns = 20_000_000;

/// Room must have been there for so long until equals run side by side again.
const EASED: Duration = Duration::from_secs(1);

/// The scheduler is told of another length when it differs by such a part.
const WORTH: Ns = 16;

#[derive(Debug)]
pub(super) struct Turns {
    away: Ns,
    /// Of turns, as it is now; 0: none was reckoned yet.
    length: Ns,
    short: bool,
    /// Since when there has been room.
    eased: Option<Instant>,
    /// Who takes turns, as the scheduler was told, and how long.
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

    /// Whether jobs at work do not find room together.
    pub(super) fn is_short(&self) -> bool {
        !self.told.is_empty()
    }

    /// How long this client's turns are, if it takes any.
    pub(super) fn of(&self, client: u64) -> Option<Ns> {
        self.told.get(&client).copied()
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, client: u64) {
        self.told.remove(&client);
    }

    /// Reckons the length anew, after a turn.
    pub(super) fn measure(&mut self, planner: &Planner) {
        let wanted = planner.slice(1.0 / PART, LEAST, self.away);
        self.length = wanted.max(self.length - self.length / 8).min(self.away);
    }

    /// Looks whether these clients, which are at work, find room. What is to be told to whom.
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
            if before.abs_diff(self.length) > self.length / WORTH {
                self.told.insert(*client, self.length);
                tell.push((*client, Some(self.length)));
            }
        }
        tell
    }
}
