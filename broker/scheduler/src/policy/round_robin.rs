//! Turns among equals: one keeps the device for a while, then the one with the fewest turns gets
//! it.
//!
//! A time-sliced device needs about 100 us to switch from one process to another, so equals are not
//! interleaved kernel by kernel. A turn ends early when its client is silent. In long turns the
//! host's pauses count as present ([`PRESENT`]). Otherwise two jobs that pause would share a turn
//! and take the memory from each other.

use weft_protocol::{Ns, PRIORITIES};

use super::{
    delay_bound::{grant_freely, more_important_runs, none_starves, revocable, silent_at},
    interface::GrantVerdict,
};
use crate::{client::ClientState, queue::ClientSlot, state::SchedulerState};

/// Multiple of `open_after` from which a turn is long (50 ms at 200 us). Memory may move for such a
/// turn, and 1 GB takes some 50 ms.
const LONG: u64 = 250;

/// Inverse of the part of a long turn for which the client counts as present after its last sign of
/// work. A Python host pauses for milliseconds between two steps.
const PRESENT: u64 = 8;

/// The turn of each class.
#[derive(Debug, Default)]
pub(super) struct RoundRobin([Option<CurrentTurn>; PRIORITIES]);

#[derive(Debug, Clone, Copy)]
struct CurrentTurn {
    slot: ClientSlot,
    until: Ns,
}

impl RoundRobin {
    /// Verdict for a class whose background jobs run freely within the delay bound.
    pub(super) fn next(&mut self, class: usize, state: &SchedulerState, now: Ns, bound: bool) -> GrantVerdict {
        match self.whose(class, state, now) {
            Ok(slot) => grant_freely(state, slot, now, bound, none_starves),
            Err(verdict) => verdict,
        }
    }

    /// The client whose turn it is, or the verdict until that is decided.
    pub(super) fn whose(&mut self, class: usize, state: &SchedulerState, now: Ns) -> Result<ClientSlot, GrantVerdict> {
        let Some(first) = state.queue.first_in_turn(class) else {
            return Err(GrantVerdict::Nothing(None));
        };
        if let Some(silent) = more_important_runs(class, state, now) {
            return Err(GrantVerdict::Nothing(Some(silent)));
        }
        let slot = match self.0[class] {
            Some(turn) if now < turn.until && turn.slot != first => {
                match state.get(turn.slot) {
                    Some(client) if client.queued.is_some_and(|entry| entry.class == class) => turn.slot,
                    // It runs on its credit.
                    Some(client) if now < absent_at(state, client) => {
                        let absent = absent_at(state, client);
                        return Err(GrantVerdict::Nothing(Some(turn.until.min(absent).max(now + 1))));
                    }
                    _ => self.begin(class, first, state, now),
                }
            }
            Some(turn) if now < turn.until => turn.slot,
            Some(turn) => {
                self.begin(class, first, state, now);
                // Its unused credit is for the next one.
                if turn.slot != first && revocable(state, turn.slot) {
                    return Err(GrantVerdict::Revoke(turn.slot));
                }
                first
            }
            None => self.begin(class, first, state, now),
        };
        Ok(slot)
    }

    fn begin(&mut self, class: usize, slot: ClientSlot, state: &SchedulerState, now: Ns) -> ClientSlot {
        self.0[class] = Some(CurrentTurn {
            slot,
            until: now.saturating_add(state.config.turn),
        });
        slot
    }

    pub(super) fn forget(&mut self, slot: ClientSlot) {
        for turn in &mut self.0 {
            if turn.is_some_and(|turn| turn.slot == slot) {
                *turn = None;
            }
        }
    }
}

/// End of the time for which the client of a turn counts as present without waiting for credit.
fn absent_at(state: &SchedulerState, client: &ClientState) -> Ns {
    let (turn, silent) = (state.config.turn, silent_at(state, client));
    match turn >= state.config.open_after.saturating_mul(LONG) {
        true => silent.max(client.progress_at.max(client.granted_at).saturating_add(turn / PRESENT)),
        false => silent,
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Client, Config, Core, Decision, Event, PolicyName,
        config::{MS, US},
    };
    use weft_protocol::Ns;

    const ONE: Client = Client(1);
    const TWO: Client = Client(2);

    /// Two clients in turns. Both wait, and the first has the device.
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

        /// Sends an event. Returns the clients that are granted credit. Revocations are answered
        /// from the books.
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

        /// The first client has used and ended this much in total, and does not wait.
        fn pauses(&mut self, used: Ns) {
            self.tell(Event::Passed(ONE));
            self.tell(Event::Progress {
                client: ONE,
                issued: used,
                settled: used,
            });
        }

        /// When the second client gets the device, and after how many wakes.
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
