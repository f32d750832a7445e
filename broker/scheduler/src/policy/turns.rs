//! Turns among equals: one keeps the device for a while, then the one with the fewest turns has it.
//!
//! Equals are not interleaved kernel by kernel: a time-sliced device needs about 100 us to go from
//! one process to another. A turn ends early when its client is silent. In long turns, whose jobs'
//! memory is moved, the host's pauses count as present ([`PRESENT`]). Else two jobs that pause
//! would share a turn and take the memory from each other.

use super::{
    super::{client::ClientState, queue::Slot, state::State},
    Verdict,
};
use weft_protocol::{Ns, PRIORITIES};

/// Factor of `open_after` from which a turn is long (50 ms at 200 us): memory may move for it, and
/// 1 GB takes some 50 ms.
const LONG: Ns = 250;

/// In a long turn the client is present for 1/8 of the turn after its last sign of work. A Python
/// host pauses for milliseconds between two steps; a job that has ended wastes no more.
const PRESENT: Ns = 8;

/// The turn of each class.
#[derive(Debug, Default)]
pub(super) struct Turns([Option<Turn>; PRIORITIES]);

#[derive(Debug, Clone, Copy)]
struct Turn {
    slot: Slot,
    until: Ns,
}

impl Turns {
    /// Verdict for a class, where background jobs run freely within the delay bound.
    pub(super) fn next(&mut self, class: usize, state: &State, now: Ns, bound: bool) -> Verdict {
        match self.whose(class, state, now) {
            Ok(slot) => grant_freely(state, slot, now, bound),
            Err(verdict) => verdict,
        }
    }

    /// The client whose turn it is in a class, or the verdict until that is clear.
    pub(super) fn whose(&mut self, class: usize, state: &State, now: Ns) -> Result<Slot, Verdict> {
        let Some(first) = state.queue.first_in_turn(class) else {
            return Err(Verdict::Nothing(None));
        };
        if let Some(silent) = more_important_runs(class, state, now) {
            return Err(Verdict::Nothing(Some(silent)));
        }
        let slot = match self.0[class] {
            Some(turn) if now < turn.until && turn.slot != first => {
                match state.get(turn.slot) {
                    Some(client) if client.queued.is_some_and(|entry| entry.class == class) => turn.slot,
                    // It runs on its credit; others wait for the end of its turn or its work.
                    Some(client) if now < absent_at(state, client) => {
                        let absent = absent_at(state, client);
                        return Err(Verdict::Nothing(Some(turn.until.min(absent).max(now + 1))));
                    }
                    _ => self.begin(class, first, state, now),
                }
            }
            Some(turn) if now < turn.until => turn.slot,
            Some(turn) => {
                self.begin(class, first, state, now);
                // Its turn is over: what it has not used is for the next one.
                if turn.slot != first && revocable(state, turn.slot) {
                    return Err(Verdict::Revoke(turn.slot));
                }
                first
            }
            None => self.begin(class, first, state, now),
        };
        Ok(slot)
    }

    fn begin(&mut self, class: usize, slot: Slot, state: &State, now: Ns) -> Slot {
        self.0[class] = Some(Turn {
            slot,
            until: now.saturating_add(state.config.turn),
        });
        slot
    }

    pub(super) fn forget(&mut self, slot: Slot) {
        for turn in &mut self.0 {
            if turn.is_some_and(|turn| turn.slot == slot) {
                *turn = None;
            }
        }
    }
}

/// Until when a more important client that does not wait works on its credit.
pub(super) fn more_important_runs(class: usize, state: &State, now: Ns) -> Option<Ns> {
    state
        .exposed
        .iter()
        .filter_map(|slot| state.get(*slot))
        .filter(|client| client.class < class && client.queued.is_none() && runs(state, client, now))
        .map(|client| silent_at(state, client))
        .max()
}

/// Whether a client's credit is in others' way and revocable.
fn revocable(state: &State, slot: Slot) -> bool {
    state
        .get(slot)
        .is_some_and(|client| client.queued.is_none() && client.revocable())
}

/// The other client whose credit lies unused the longest, and since when.
pub(super) fn unused(state: &State, slot: Slot) -> Option<(Slot, Ns)> {
    let others = state
        .exposed
        .iter()
        .copied()
        .filter(|other| *other != slot && revocable(state, *other));
    let silent = others.filter_map(|other| Some((other, silent_at(state, state.get(other)?))));
    silent.min_by_key(|(_, at)| *at)
}

/// Until when a client counts as working on its credit: last grant or use, plus its outstanding
/// work, plus `open_after`.
fn silent_at(state: &State, client: &ClientState) -> Ns {
    let used = client.progress_at.max(client.granted_at);
    used.saturating_add(client.ledger.outstanding())
        .saturating_add(state.config.open_after)
}

/// Until when the client of a turn counts as present without waiting for credit.
fn absent_at(state: &State, client: &ClientState) -> Ns {
    let (turn, silent) = (state.config.turn, silent_at(state, client));
    match turn >= state.config.open_after.saturating_mul(LONG) {
        true => silent.max(client.progress_at.max(client.granted_at).saturating_add(turn / PRESENT)),
        false => silent,
    }
}

/// Whether a client that does not wait works on its credit.
fn runs(state: &State, client: &ClientState, now: Ns) -> bool {
    now < silent_at(state, client)
}

/// Grants a waiting client what the delay bound has room for, or makes room.
pub(crate) fn grant_freely(state: &State, slot: Slot, now: Ns, bound: bool) -> Verdict {
    let Some(entry) = state.get(slot).and_then(|client| client.queued) else {
        return Verdict::Nothing(None);
    };
    if !state.admits(slot, entry.cost) {
        return make_room(state, slot, entry.cost, now);
    }
    let room = state.most_out().saturating_sub(state.exposure_before(slot));
    Verdict::Grant {
        slot,
        total: entry.cost.max(room),
        bound,
    }
}

/// Makes room by revoking unused credit: at once from less important clients, else after a while.
pub(crate) fn make_room(state: &State, slot: Slot, cost: Ns, now: Ns) -> Verdict {
    let class_of = |slot: Slot| state.get(slot).map_or(PRIORITIES, |client| client.class);
    let class = class_of(slot);
    let mut again = state.drained(slot, cost, now);
    for other in state.exposed.iter().copied().filter(|other| *other != slot) {
        let Some(client) = state.get(other).filter(|_| revocable(state, other)) else {
            continue;
        };
        let stale = silent_at(state, client);
        // Credit that is not bound was given against starvation.
        let yields = class_of(other) > class && client.bound && !state.is_hungry(other, now);
        if yields || now >= stale {
            return Verdict::Revoke(other);
        }
        again = again.min(stale);
    }
    Verdict::Nothing(Some(again))
}

#[cfg(test)]
mod tests {
    use super::super::super::{
        Client, Config, Core, Decision, Event, PolicyName,
        config::{MS, US},
    };
    use weft_protocol::Ns;

    const ONE: Client = Client(1);
    const TWO: Client = Client(2);

    /// Two clients in turns; both wait, the first has the device.
    struct Pair {
        core: Core,
        now: Ns,
        begun: Ns,
    }

    impl Pair {
        fn new(turn: Ns) -> Pair {
            let core = Core::new(Config {
                policy: PolicyName::Timeslice,
                turn,
                ..Config::default()
            });
            let mut pair = Pair {
                core,
                now: 1_000 * MS,
                begun: 0,
            };
            for client in [ONE, TWO] {
                pair.tell(Event::Attached {
                    client,
                    priority: 5,
                    profile: None,
                });
            }
            pair.now += 100 * MS;
            pair.begun = pair.now;
            assert_eq!(pair.waits(ONE), [ONE]);
            assert_eq!(pair.waits(TWO), []);
            pair
        }

        /// Clients that are granted credit. Revocations are answered from the books.
        fn tell(&mut self, event: Event) -> Vec<Client> {
            let (mut granted, mut events) = (Vec::new(), vec![event]);
            while let Some(event) = events.pop() {
                let mut out = Vec::new();
                self.core.handle(self.now, event, &mut out);
                for decision in out {
                    match decision {
                        Decision::Grant { client, .. } => granted.push(client),
                        Decision::Revoke(client) => {
                            let clients = self.core.snapshot().clients;
                            let left = clients
                                .iter()
                                .find(|view| view.client == client.0)
                                .map_or(0, |view| view.left);
                            events.push(Event::Revoked { client, left });
                        }
                        _ => {}
                    }
                }
            }
            granted
        }

        fn waits(&mut self, client: Client) -> Vec<Client> {
            let since = self.now;
            self.tell(Event::Waits {
                client,
                kernel: 9,
                cost: 100 * US,
                since,
            })
        }

        /// The first client has used and ended so much in all, and does not wait: its host is at
        /// something else.
        fn pauses(&mut self, used: Ns) {
            self.tell(Event::Passed(ONE));
            self.tell(Event::Progress {
                client: ONE,
                issued: used,
                settled: used,
            });
        }

        /// When the second client gets the device, by the wakes that the core asks for, and how
        /// many those are.
        fn handed_over(&mut self) -> (Ns, usize) {
            for wakes in 1..100 {
                self.now = self.core.next_wake(self.now).expect("somebody waits");
                if self.tell(Event::Tick).contains(&TWO) {
                    return (self.now - self.begun, wakes);
                }
            }
            panic!("it never gets the device");
        }
    }

    #[test]
    fn a_short_turn_is_given_away_at_once_and_a_long_one_outlasts_a_pause() {
        for (turn, silence) in [(10 * MS, 200 * US), (100 * MS, 100 * MS / 8)] {
            let mut pair = Pair::new(turn);
            pair.now += 2 * MS;
            pair.pauses(100 * US);
            let (at, wakes) = pair.handed_over();
            assert_eq!(at, 2 * MS + silence, "turns of {} ms", turn / MS);
            assert!(wakes < 5, "{wakes} wakes");
        }
    }

    #[test]
    fn a_long_turn_ends_all_the_same() {
        let mut pair = Pair::new(100 * MS);
        // It works, with pauses of 10 ms, until its turn is over.
        for n in 1..20 {
            pair.now += 10 * MS;
            pair.pauses(n * 100 * US);
            if pair.now >= pair.begun + 100 * MS {
                break;
            }
            assert_eq!(pair.tell(Event::Tick), [], "{} ms", (pair.now - pair.begun) / MS);
        }
        assert_eq!(pair.now, pair.begun + 100 * MS);
        assert_eq!(pair.tell(Event::Tick), [TWO]);
    }
}
