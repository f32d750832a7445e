// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns among equals: one keeps the device for a while, then the one with the fewest turns gets
//! it.
//!
//! A time-sliced device needs about 100 us to switch from one process to another, so equals are not
//! interleaved kernel by kernel. A turn ends early when its client is silent.

use weft_protocol::{Ns, PRIORITIES};

use super::interface::Observed;
use crate::{
    action::Action,
    delay_bound::{grant_freely, more_important_runs, revocable},
    queue::ClientSlot,
    state::SchedulerState,
};

/// The turn of each class.
#[derive(Debug, Default)]
pub(super) struct RoundRobin([Option<CurrentTurn>; PRIORITIES]);

#[derive(Debug, Clone, Copy)]
struct CurrentTurn {
    slot: ClientSlot,
    until: Ns,
}

impl RoundRobin {
    /// Action for a class whose background jobs run freely within the delay bound.
    pub(super) fn next(&mut self, class: usize, state: &SchedulerState, now: Ns) -> Action {
        match self.whose(class, state, now) {
            Ok(slot) => grant_freely(state, slot, now, true),
            Err(action) => action,
        }
    }

    /// The client whose turn it is, or the action until that is decided.
    pub(super) fn whose(&mut self, class: usize, state: &SchedulerState, now: Ns) -> Result<ClientSlot, Action> {
        let Some(first) = state.queue.first_in_turn(class) else {
            return Err(Action::Nothing(None));
        };
        if let Some(silent) = more_important_runs(class, state, now) {
            return Err(Action::Nothing(Some(silent)));
        }
        let slot = match self.0[class] {
            Some(turn) if now < turn.until && turn.slot != first => {
                match state.get(turn.slot) {
                    Some(client) if client.queued.is_some_and(|entry| entry.class == class) => turn.slot,
                    // It runs on its credit.
                    Some(client) if now < state.silent_at(client) => {
                        let silent = state.silent_at(client);
                        return Err(Action::Nothing(Some(turn.until.min(silent).max(now + 1))));
                    }
                    _ => self.begin(class, first, state, now),
                }
            }
            Some(turn) if now < turn.until => turn.slot,
            Some(turn) => {
                self.begin(class, first, state, now);
                // Its unused credit is for the next one.
                if turn.slot != first && revocable(state, turn.slot) {
                    return Err(Action::Revoke(turn.slot));
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

    /// Forgets the turns of clients that may not continue them.
    pub(super) fn observe(&mut self, seen: &Observed<'_>) {
        let Some(slot) = seen.ends_turn() else { return };
        for turn in &mut self.0 {
            if turn.is_some_and(|turn| turn.slot == slot) {
                *turn = None;
            }
        }
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

    const IDLE: Client = Client(3);

    /// Two clients in turns below an idle foreground job. Both wait, and the first has the device.
    struct Pair {
        core: Core,
        now: Ns,
        begun: Ns,
    }

    impl Pair {
        fn new() -> Pair {
            let core = Core::new(Config {
                policy: PolicyName::Fikit,
                ..Config::default()
            });
            let mut pair = Pair {
                core,
                now: 1_000 * MS,
                begun: 0,
            };
            for (client, priority) in [(IDLE, 0), (ONE, 5), (TWO, 5)] {
                pair.tell(Event::Attached {
                    client,
                    priority,
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
    fn a_turn_is_given_away_when_its_client_is_silent() {
        let mut pair = Pair::new();
        pair.now += 2 * MS;
        pair.pauses(100 * US);
        let (at, wakes) = pair.handed_over();
        assert_eq!(at, 2 * MS + 200 * US);
        assert!(wakes < 5, "{wakes} wakes");
    }

    #[test]
    fn a_turn_ends_all_the_same() {
        let mut pair = Pair::new();
        // The first client works with pauses that are too short to end its turn.
        for n in 1..200 {
            pair.now += 100 * US;
            pair.pauses(n * 50 * US);
            if pair.now >= pair.begun + 10 * MS {
                break;
            }
            assert_eq!(pair.tell(Event::Tick), [], "{} us", (pair.now - pair.begun) / US);
        }
        assert_eq!(pair.now, pair.begun + 10 * MS);
        assert_eq!(pair.tell(Event::Tick), [TWO]);
    }
}
