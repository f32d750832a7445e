// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invariants of the core after every event, in any order. A failure prints its events and seed.
#![forbid(unsafe_code)]

#[path = "../../../tests/bounded.rs"]
mod bounded;

use std::sync::Arc;

use bounded::Bounded;
use proptest::prelude::*;
use weft_profiles::{Aggregator, Profile};
use weft_scheduler::{Client, Config, Core, Decision, Event, Mode, Ns, PolicyName};

const US: Ns = 1_000;
const MS: Ns = 1_000_000;

/// The longest kernel of an honest client.
const LONGEST_NS: Ns = 2 * MS;

const CLIENTS: usize = 6;

/// Number of kernels. The profile knows the gaps of the first few.
const KERNELS: u64 = 9;

fn profile() -> Arc<Profile> {
    let mut run = Aggregator::new();
    for (kernel, gap) in [(1, 0), (2, 90 * US), (3, 700 * US), (4, 3 * MS), (5, 40 * MS)] {
        run.sampled(kernel, 300 * US, Some(gap));
    }
    Arc::new(run.finish("job", 0))
}

#[derive(Debug, Clone)]
enum Step {
    Attach(usize, u8),
    Leave(usize),
    Priority(usize, u8),
    /// Launches a kernel of this many microseconds, or continues to wait for it.
    Launch(usize, u64),
    /// The device ends this part of a client's work, and the client sees it.
    End(usize, u8),
    /// The broker reads the lane.
    Report(usize),
    Idle(usize),
    WakeUpHint(usize),
    /// A wait of this many microseconds for what was launched as many earlier ends.
    PartialWait(usize, u64, u64),
    Pass(u64),
    /// It becomes known whether the device switches between clients.
    Switches(bool),
    /// The client sends an impossible report.
    Lie(usize, u8, u64, u64),
}

fn steps(lies: bool) -> impl Strategy<Value = Vec<Step>> {
    let who = 0..CLIENTS;
    let honest = prop_oneof![
        2 => (who.clone(), 0u8..10).prop_map(|(who, priority)| Step::Attach(who, priority)),
        1 => who.clone().prop_map(Step::Leave),
        1 => (who.clone(), 0u8..10).prop_map(|(who, priority)| Step::Priority(who, priority)),
        12 => (who.clone(), 1u64..2_000).prop_map(|(who, us)| Step::Launch(who, us)),
        6 => (who.clone(), any::<u8>()).prop_map(|(who, part)| Step::End(who, part)),
        6 => who.clone().prop_map(Step::Report),
        2 => who.clone().prop_map(Step::Idle),
        1 => who.clone().prop_map(Step::WakeUpHint),
        2 => (who.clone(), 0u64..5_000, 0u64..5_000).prop_map(|(who, us, ago)| Step::PartialWait(who, us, ago)),
        1 => any::<bool>().prop_map(Step::Switches),
        8 => prop_oneof![1u64..100, 100u64..20_000].prop_map(Step::Pass),
    ];
    let lie = (who, 0u8..7, any::<u64>(), any::<u64>()).prop_map(|(who, what, a, b)| Step::Lie(who, what, a, b));
    let step = if lies {
        prop_oneof![3 => honest, 1 => lie].boxed()
    } else {
        honest.boxed()
    };
    prop::collection::vec(step, 1..120)
}

fn policies() -> impl Strategy<Value = PolicyName> {
    prop::sample::select(PolicyName::ALL.to_vec())
}

/// A client and its lane.
#[derive(Debug, Default)]
struct Lane {
    attached: bool,
    priority: u8,
    mode: Option<Mode>,
    credit: i64,
    bound: bool,
    epochs: u64,
    issued: Ns,
    settled: Ns,
    /// Kernel, cost, since.
    waiting: Option<(u64, Ns, Ns)>,
}

struct World {
    core: Core,
    now: Ns,
    lanes: Vec<Lane>,
    epochs: [u64; 10],
    kernels: u64,
    lied: bool,
    _bounded: Bounded,
}

impl World {
    fn new(policy: PolicyName) -> World {
        let config = Config {
            policy,
            ..Config::default()
        };
        World {
            core: Core::new(config),
            now: MS,
            lanes: (0..CLIENTS).map(|_| Lane::default()).collect(),
            epochs: [0; 10],
            kernels: 0,
            lied: false,
            _bounded: Bounded::new(),
        }
    }

    /// Sends the core an event and carries out its decisions.
    fn tell(&mut self, event: Event) {
        let mut events = vec![event];
        for round in 0.. {
            assert!(round < 100, "the core never comes to rest");
            let mut decisions = Vec::new();
            for event in events.drain(..) {
                self.core.handle(self.now, event, &mut decisions);
            }
            if decisions.is_empty() {
                break;
            }
            for decision in decisions {
                events.extend(self.carry_out(decision));
            }
        }
    }

    fn carry_out(&mut self, decision: Decision) -> Option<Event> {
        match decision {
            Decision::Mode(client, mode) => {
                let lane = &mut self.lanes[client.0 as usize];
                assert!(lane.attached, "{client:?} is not attached");
                assert_ne!(lane.mode, Some(mode), "told twice");
                lane.mode = Some(mode);
                if mode != Mode::Background {
                    lane.waiting = None;
                }
                None
            }
            Decision::Grant {
                client, credit, bound, ..
            } => {
                let above = self.sum_above(client.0 as usize);
                let lane = &mut self.lanes[client.0 as usize];
                assert!(lane.attached);
                assert_eq!(lane.mode, Some(Mode::Background), "only a background job needs credit");
                let stale = lane.bound != bound || (bound && lane.epochs != above);
                let left = (stale && lane.credit != 0).then(|| std::mem::take(&mut lane.credit));
                lane.credit += i64::try_from(credit).expect("credit within reason");
                (lane.bound, lane.epochs) = (bound, above);
                left.map(|left| Event::Revoked { client, left })
            }
            Decision::RunAheadWindow(..) | Decision::Times(..) | Decision::Charge(..) => None,
            Decision::Revoke(client) => {
                let lane = &mut self.lanes[client.0 as usize];
                assert!(lane.attached);
                let left = std::mem::take(&mut lane.credit);
                Some(Event::Revoked { client, left })
            }
        }
    }

    fn sum_above(&self, who: usize) -> u64 {
        self.epochs.iter().take(usize::from(self.lanes[who].priority)).sum()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Attach(who, priority) => {
                if !self.lanes[who].attached {
                    self.lanes[who] = Lane {
                        attached: true,
                        priority,
                        ..Lane::default()
                    };
                    self.tell(Event::Attached {
                        client: Client(who as u64),
                        priority,
                        profile: (who % 2 == 0).then(profile),
                    });
                }
            }
            Step::Leave(who) => {
                self.lanes[who].attached = false;
                self.tell(Event::Gone(Client(who as u64)));
            }
            Step::Priority(who, priority) => {
                if self.lanes[who].attached {
                    self.lanes[who].priority = priority;
                    self.tell(Event::Priority(Client(who as u64), priority));
                }
            }
            Step::Launch(who, us) => self.launch(who, us * US),
            Step::End(who, part) => {
                let lane = &mut self.lanes[who];
                let outstanding = lane.issued - lane.settled;
                lane.settled += outstanding * Ns::from(part) / 255;
                self.report(who);
            }
            Step::Report(who) => self.report(who),
            Step::Idle(who) => {
                if self.lanes[who].attached {
                    self.tell(Event::Idle(Client(who as u64), self.now));
                }
            }
            Step::WakeUpHint(who) => {
                if self.lanes[who].attached {
                    self.tell(Event::WakeUpHint(Client(who as u64), self.now));
                }
            }
            Step::PartialWait(who, us, ago) => {
                if self.lanes[who].attached {
                    let at = self.now;
                    self.tell(Event::PartialWait {
                        client: Client(who as u64),
                        covers: at.saturating_sub(ago * US),
                        since: at.saturating_sub(us * US),
                        at,
                    });
                }
            }
            Step::Pass(us) => self.pass(us * US),
            Step::Switches(switches) => self.tell(Event::SwitchCost(if switches { 100 * US } else { 0 })),
            Step::Lie(who, what, a, b) => self.lie(Client(who as u64), what, a, b),
        }
    }

    fn launch(&mut self, who: usize, cost: Ns) {
        let above = self.sum_above(who);
        let now = self.now;
        let lane = &mut self.lanes[who];
        if !lane.attached {
            return;
        }
        let client = Client(who as u64);
        let (kernel, cost, since) = lane.waiting.unwrap_or_else(|| {
            self.kernels += 1;
            (1 + self.kernels % KERNELS, cost, now)
        });
        let launched = Event::Launched {
            client,
            kernel,
            cost,
            at: now,
        };
        match lane.mode.expect("a mode") {
            Mode::Free | Mode::Alone => {}
            Mode::Foreground => {
                self.epochs[usize::from(lane.priority)] += 1;
                self.tell(launched);
            }
            Mode::Background if lane.credit >= cost as i64 && (!lane.bound || lane.epochs == above) => {
                lane.credit -= cost as i64;
                lane.issued += cost;
                lane.waiting = None;
                self.tell(launched);
            }
            Mode::Background => {
                lane.waiting = Some((kernel, cost, since));
                self.report(who);
            }
        }
    }

    fn report(&mut self, who: usize) {
        let lane = &self.lanes[who];
        if !lane.attached {
            return;
        }
        let client = Client(who as u64);
        let (issued, settled, waiting) = (lane.issued, lane.settled, lane.waiting);
        self.tell(Event::Progress {
            client,
            issued,
            settled,
        });
        match waiting {
            Some((kernel, cost, since)) => self.tell(Event::Waits {
                client,
                kernel,
                cost,
                since,
            }),
            None => self.tell(Event::Passed(client)),
        }
        self.due();
    }

    fn due(&mut self) {
        for round in 0.. {
            if self.core.next_wake(self.now).is_none_or(|wake| wake > self.now) {
                break;
            }
            assert!(round < 50, "due again and again at one time");
            self.tell(Event::Tick);
        }
    }

    /// Lets time pass, with every wake.
    fn pass(&mut self, time: Ns) {
        let until = self.now + time;
        while let Some(wake) = self.core.next_wake(self.now).filter(|wake| *wake <= until) {
            self.now = wake.max(self.now + 1);
            self.tell(Event::Tick);
        }
        self.now = self.now.max(until);
    }

    fn lie(&mut self, client: Client, what: u8, a: u64, b: u64) {
        self.lied = true;
        self.tell(match what {
            0 => Event::Progress {
                client,
                issued: a,
                settled: b,
            },
            1 => Event::Waits {
                client,
                kernel: a,
                cost: b,
                since: a,
            },
            2 => Event::Launched {
                client,
                kernel: a,
                cost: b,
                at: a,
            },
            3 => Event::Idle(client, a),
            4 => Event::Revoked { client, left: a as i64 },
            5 => Event::PartialWait {
                client,
                covers: a,
                since: b,
                at: a,
            },
            _ => Event::WakeUpHint(client, b),
        });
    }

    fn check(&self) {
        let snapshot = self.core.snapshot();
        let config = self.core.config();
        let attached = self.lanes.iter().filter(|lane| lane.attached).count();
        assert_eq!(snapshot.clients.len(), attached, "who is gone holds nothing");
        let first = self
            .lanes
            .iter()
            .filter(|lane| lane.attached)
            .map(|lane| lane.priority)
            .min();
        let mut out: i64 = 0;
        let mut books = 0;
        for view in &snapshot.clients {
            let lane = &self.lanes[view.client as usize];
            assert!(lane.attached);
            let important = Some(lane.priority) == first;
            let expected = match (attached, important) {
                (1, _) => Mode::Alone,
                (_, true) => Mode::Foreground,
                _ => Mode::Background,
            };
            assert_eq!(lane.mode, Some(expected), "a foreground job never waits");
            let sum = i128::from(view.issued) + i128::from(view.revoked) + i128::from(view.left);
            assert_eq!(i128::from(view.granted), sum, "credit is conserved");
            books += view.outstanding + view.left.max(0).unsigned_abs();
            let usable = if lane.waiting.is_some() { 0 } else { lane.credit.max(0) };
            out += usable + (lane.issued - lane.settled) as i64;
            if !self.lied {
                let word = view.granted as i64 - view.revoked - lane.issued as i64;
                assert_eq!(lane.credit, word, "the books are the word");
                assert!(lane.credit >= 0, "nobody overdraws");
            }
        }
        assert!(snapshot.exposure <= books, "nothing of those who are gone");
        if !self.lied {
            let bound = config.delay_bound.max(config.delay_bound / 2 + LONGEST_NS);
            let excused = snapshot.counters.stuck_grants * LONGEST_NS
                + snapshot.clients.iter().map(|view| view.written_off).sum::<Ns>();
            assert!(
                out as u64 <= bound + excused,
                "{out} is out, the bound is {bound} + {excused}"
            );
            assert_eq!(snapshot.counters.corrected, 0, "honest reports are believed");
        }
    }

    /// Every background job launches its granted work, and the work ends. The foreground jobs
    /// launch without a pause.
    fn everybody_gets_through(&mut self) {
        let config = self.core.config().clone();
        let longest = if self.lied { config.longest_cost } else { LONGEST_NS };
        let turn = (longest + 2 * config.switch_cost) as f64 / config.minimum_share;
        let patience = (CLIENTS + 1) as u64 * (turn as u64 + config.turn) + 40 * config.write_off_after;
        let end = self.now + patience;
        let mut next_launch = self.now;
        while self.lanes.iter().any(|lane| lane.waiting.is_some()) {
            assert!(
                self.now < end,
                "somebody starves: {:?}\n{:?}",
                self.lanes,
                self.core.snapshot()
            );
            for who in 0..CLIENTS {
                let lane = &mut self.lanes[who];
                if lane.attached && lane.mode == Some(Mode::Foreground) && self.now >= next_launch {
                    self.launch(who, 100 * US);
                }
            }
            if self.now >= next_launch {
                next_launch = self.now + patience / 5_000;
            }
            for who in 0..CLIENTS {
                let lane = &mut self.lanes[who];
                if !lane.attached {
                    lane.waiting = None;
                }
                lane.settled = lane.issued;
                if lane.waiting.is_some() {
                    self.launch(who, 0);
                }
                self.report(who);
            }
            let wake = self.core.next_wake(self.now).unwrap_or(next_launch).min(next_launch);
            self.now = wake.max(self.now + 10 * US);
            self.tell(Event::Tick);
            self.check();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn honest_clients_find_everything_kept(policy in policies(), steps in steps(false)) {
        let mut world = World::new(policy);
        for step in &steps {
            world.step(step);
            world.check();
        }
    }

    #[test]
    fn liars_break_nothing(policy in policies(), steps in steps(true)) {
        let mut world = World::new(policy);
        for step in &steps {
            world.step(step);
            world.check();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn nobody_waits_for_ever(policy in policies(), steps in steps(false)) {
        let mut world = World::new(policy);
        for step in &steps {
            world.step(step);
        }
        world.everybody_gets_through();
    }
}
