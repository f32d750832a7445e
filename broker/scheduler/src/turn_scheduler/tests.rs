// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long turns in virtual time, on a device that runs kernels in order.

use std::collections::VecDeque;

use weft_protocol::{Ns, lane::Mode};

use super::*;
use crate::{
    Client, ClientView, Config, Core, Decision, Event, PolicyName,
    config::{MS, US},
};

const KERNEL_NS: Ns = 50 * US;
const TURN_NS: Ns = 100 * MS;
const POLICIES: [PolicyName; 2] = [PolicyName::Weft, PolicyName::Fikit];

#[derive(Debug)]
struct Job {
    client: Client,
    credit: i64,
    issued: Ns,
    settled: Ns,
    mode: Mode,
    waits: Option<Ns>,
    /// Whether the client has kernels to launch.
    works: bool,
    /// (n, pause): a synchronising call after every n kernels, then this pause.
    pauses: Option<(u64, Ns)>,
    launched: u64,
    resumes: Ns,
    stalled: bool,
}

/// Which client's kernel ran in each step of one kernel's time.
struct World {
    core: Core,
    now: Ns,
    jobs: Vec<Job>,
    device: VecDeque<usize>,
    ran: Vec<(Ns, u64)>,
    revoked: usize,
}

impl World {
    fn new(policy: PolicyName, priorities: &[u8]) -> World {
        let core = Core::new(Config {
            policy,
            ..Config::default()
        });
        let mut world = World {
            core,
            now: 1_000 * MS,
            jobs: Vec::new(),
            device: VecDeque::new(),
            ran: Vec::new(),
            revoked: 0,
        };
        for (at, priority) in priorities.iter().enumerate() {
            let client = Client(at as u64 + 1);
            world.jobs.push(Job {
                client,
                credit: 0,
                issued: 0,
                settled: 0,
                mode: Mode::Free,
                waits: None,
                works: true,
                pauses: None,
                launched: 0,
                resumes: 0,
                stalled: false,
            });
            let priority = *priority;
            world.tell(Event::Attached {
                client,
                priority,
                profile: None,
            });
        }
        world
    }

    fn oversubscribed(&mut self, clients: &[u64], turn: Option<Ns>) {
        for client in clients {
            let client = Client(*client);
            self.tell(Event::Oversubscribed { client, turn });
        }
    }

    fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut out = Vec::new();
            self.core.handle(self.now, event, &mut out);
            for decision in out {
                let of = |jobs: &mut Vec<Job>, client: Client| jobs.iter().position(|job| job.client == client);
                match decision {
                    Decision::Mode(client, mode) => {
                        if let Some(at) = of(&mut self.jobs, client) {
                            self.jobs[at].mode = mode;
                            if mode != Mode::Background {
                                self.jobs[at].waits = None;
                            }
                        }
                    }
                    Decision::Grant { client, credit, .. } => {
                        if let Some(at) = of(&mut self.jobs, client) {
                            self.jobs[at].credit += credit as i64;
                        }
                    }
                    Decision::Revoke(client) => {
                        self.revoked += 1;
                        let at = of(&mut self.jobs, client);
                        let left = at.map_or(0, |at| std::mem::take(&mut self.jobs[at].credit));
                        events.push_back(Event::Revoked { client, left });
                    }
                    Decision::RunAheadWindow(..) | Decision::Times(..) | Decision::Charge(..) => {}
                }
            }
        }
    }

    fn launches(&mut self, at: usize) -> bool {
        let (now, job) = (self.now, &mut self.jobs[at]);
        // A client at the gate is in the middle of a launch.
        if (!job.works && job.waits.is_none()) || job.stalled || now < job.resumes {
            return false;
        }
        let client = job.client;
        if job.mode == Mode::Background {
            if job.credit < KERNEL_NS as i64 {
                if job.waits.is_none() {
                    job.waits = Some(now);
                    self.reports(at);
                    self.tell(Event::Waits {
                        client,
                        kernel: 7,
                        cost: KERNEL_NS,
                        since: now,
                    });
                }
                return false;
            }
            job.credit -= KERNEL_NS as i64;
            job.issued += KERNEL_NS;
            job.waits = None;
        } else if self.device.iter().filter(|other| **other == at).count() > 3 {
            // Here it launches four kernels ahead.
            return false;
        }
        job.launched += 1;
        if let Some((every, pause)) = job.pauses
            && job.launched.is_multiple_of(every)
        {
            job.resumes = now + pause;
        }
        self.device.push_back(at);
        self.tell(Event::Launched {
            client,
            kernel: 7,
            cost: KERNEL_NS,
            at: now,
        });
        true
    }

    fn reports(&mut self, at: usize) {
        let job = &self.jobs[at];
        if job.mode == Mode::Background && !job.stalled {
            let (client, issued, settled) = (job.client, job.issued, job.settled);
            self.tell(Event::Progress {
                client,
                issued,
                settled,
            });
        }
    }

    fn run(&mut self, time: Ns) {
        let end = self.now + time;
        while self.now < end {
            for at in 0..self.jobs.len() {
                while self.launches(at) {}
                self.reports(at);
            }
            while self.core.next_wake(self.now).is_some_and(|wake| wake <= self.now) {
                self.tell(Event::Tick);
                if (0..self.jobs.len()).all(|at| !self.launches(at)) {
                    break;
                }
            }
            self.now += KERNEL_NS;
            if let Some(at) = self.device.pop_front() {
                self.ran.push((self.now, self.jobs[at].client.0));
                let job = &mut self.jobs[at];
                job.settled = (job.settled + KERNEL_NS).min(job.issued);
                let (client, now) = (job.client, self.now);
                let background = job.mode == Mode::Background;
                let ended = !self.device.contains(&at) && job.mode == Mode::Foreground;
                if ended {
                    self.tell(Event::Idle(client, now));
                }
                if background {
                    self.tell(Event::Sampled {
                        client,
                        kernel: 7,
                        time: KERNEL_NS,
                        at: now - KERNEL_NS,
                    });
                }
            }
        }
    }

    fn kernels(&self, client: u64, since: Ns) -> usize {
        let of = |(at, whose): &&(Ns, u64)| *at > since && *whose == client;
        self.ran.iter().filter(of).count()
    }

    /// Number of switches of the device between these clients.
    fn changes(&self, of: &[u64], since: Ns) -> usize {
        let mine: Vec<u64> = self
            .ran
            .iter()
            .filter(|(at, whose)| *at > since && of.contains(whose))
            .map(|(_, whose)| *whose)
            .collect();
        mine.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    /// The longest time in which a client had no kernel running.
    fn away(&self, client: u64, since: Ns) -> Ns {
        let mine = self.ran.iter().filter(|(at, whose)| *at > since && *whose == client);
        let times: Vec<Ns> = std::iter::once(since)
            .chain(mine.map(|(at, _)| *at))
            .chain([self.now])
            .collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }

    fn view(&self, client: u64) -> ClientView {
        self.core.snapshot().client(Client(client)).expect("attached").clone()
    }

    fn modes(&self) -> Vec<Mode> {
        self.jobs.iter().map(|job| job.mode).collect()
    }
}

#[test]
fn equals_without_room_take_long_turns_and_are_equals_again_when_there_is_some() {
    for policy in POLICIES {
        let mut world = World::new(policy, &[5, 5]);
        assert_eq!(world.modes(), [Mode::Foreground; 2]);
        world.oversubscribed(&[1], Some(TURN_NS));
        assert_eq!(
            world.modes(),
            [Mode::Foreground; 2],
            "one alone has nobody to take turns with"
        );
        world.oversubscribed(&[2], Some(TURN_NS));
        assert_eq!(world.modes(), [Mode::Background; 2], "{policy}");
        assert!(world.view(1).turns && world.view(2).turns);
        let begin = world.now;
        world.run(2_000 * MS);
        let changes = world.changes(&[1, 2], begin);
        assert!((18..=20).contains(&changes), "{policy}: {changes}");
        for client in [1, 2] {
            // All but a delay bound of each turn.
            let kernels = world.kernels(client, begin) as Ns * KERNEL_NS;
            assert!(kernels >= 960 * MS, "{policy}: {client} had {} ms", kernels / MS);
            let away = world.away(client, begin);
            assert!(away <= TURN_NS + MS, "{policy}: {client} was away for {} us", away / US);
        }
        world.oversubscribed(&[1], None);
        assert_eq!(world.modes(), [Mode::Foreground; 2], "{policy}");
        let begin = world.now;
        world.run(20 * MS);
        assert!(world.changes(&[1, 2], begin) > 40, "{policy}: side by side");
    }
}

#[test]
fn nobody_is_away_for_longer_than_the_turns_of_the_others() {
    let mut world = World::new(PolicyName::Weft, &[5, 5, 5, 5]);
    world.oversubscribed(&[1, 2, 3, 4], Some(40 * MS));
    let begin = world.now;
    world.run(2_000 * MS);
    for client in 1..=4 {
        let away = world.away(client, begin);
        assert!(
            (119 * MS..123 * MS).contains(&away),
            "{client} was away for {} us",
            away / US
        );
    }
    // From the next turn on.
    world.oversubscribed(&[1, 2, 3, 4], Some(20 * MS));
    world.run(100 * MS);
    let begin = world.now;
    world.run(1_000 * MS);
    assert!(world.away(1, begin) <= 63 * MS);
}

#[test]
fn a_turn_outlasts_a_pause_and_ends_where_its_client_falls_silent() {
    for policy in POLICIES {
        let mut world = World::new(policy, &[5, 5]);
        world.oversubscribed(&[1, 2], Some(TURN_NS));
        // A step of 5 ms, then 5 ms of host work.
        world.jobs[0].pauses = Some((100, 10 * MS));
        let begin = world.now;
        world.run(1_000 * MS);
        assert!(world.changes(&[1, 2], begin) <= 10, "{policy}");
        for _ in 0..10_000 {
            if world.ran.last().map(|(_, client)| *client) == Some(1) {
                break;
            }
            world.run(KERNEL_NS);
        }
        world.jobs[0].works = false;
        let stopped = world.now;
        world.run(60 * MS);
        let silent = world.away(2, stopped);
        assert!(silent <= TURN_NS / PRESENT + 2 * MS, "{policy}: {} us", silent / US);
        let begin = world.now;
        world.run(500 * MS);
        assert!(world.away(2, begin) <= MS, "{policy}: nobody else wants a turn");
        // The other one had more than one turn.
        (world.jobs[0].works, world.jobs[0].pauses) = (true, None);
        let back = world.now;
        world.run(20 * MS);
        assert!(world.kernels(1, back) > 300, "{policy}");
    }
}

#[test]
fn who_stalls_or_dies_in_its_turn_keeps_the_others_for_a_turn_at_most() {
    for policy in POLICIES {
        let mut world = World::new(policy, &[5, 5]);
        world.oversubscribed(&[1, 2], Some(TURN_NS));
        world.run(10 * MS);
        assert_eq!(world.ran.last().map(|(_, client)| *client), Some(1));
        // With credit in its word and unreported work on the device.
        world.jobs[0].stalled = true;
        let begin = world.now;
        world.run(500 * MS);
        let away = world.away(2, begin);
        assert!(away <= TURN_NS + 2 * MS, "{policy}: {} us", away / US);
        // One whole turn for its work that seems to be on the device, then a part of each turn.
        assert!(world.kernels(2, begin) > 6_500, "{policy}: it goes on");
        world.tell(Event::Gone(Client(1)));
        world.jobs.remove(0);
        world.device.clear();
        assert_eq!(world.modes(), [Mode::Alone], "{policy}");
        let mut world = World::new(policy, &[5, 5, 5]);
        world.oversubscribed(&[1, 2, 3], Some(TURN_NS));
        world.run(10 * MS);
        world.tell(Event::Gone(Client(1)));
        world.jobs[0].works = false;
        world.jobs[0].mode = Mode::Free;
        let begin = world.now;
        world.run(5 * MS);
        let ran = world.kernels(2, begin) + world.kernels(3, begin);
        assert!(ran > 70, "{policy}: {ran}");
    }
}

#[test]
fn background_jobs_without_room_take_long_turns_in_the_foreground_jobs_gaps() {
    for policy in [PolicyName::Weft, PolicyName::Fikit] {
        let mut world = World::new(policy, &[0, 5, 5]);
        world.oversubscribed(&[1, 2, 3], Some(TURN_NS));
        assert_eq!(
            world.modes(),
            [Mode::Foreground, Mode::Background, Mode::Background],
            "{policy}"
        );
        assert!(!world.view(1).turns && world.view(2).turns);
        // A request of a millisecond every 20 ms.
        world.jobs[0].pauses = Some((20, 19 * MS));
        let begin = world.now;
        world.run(2_000 * MS);
        let (changes, away) = (world.changes(&[2, 3], begin), world.away(1, begin));
        assert!((10..=21).contains(&changes), "{policy}: {changes}");
        for client in [2, 3] {
            let kernels = world.kernels(client, begin);
            assert!(kernels > 6_000, "{policy}: {client} ran {kernels}");
        }
        // At most the delay bound.
        assert!(away <= 21 * MS, "{policy}: {} us", away / US);
        assert!(world.kernels(1, begin) >= 1_800, "{policy}");
    }
}

#[test]
fn an_equal_that_is_not_named_waits_for_nobodys_turn() {
    for policy in POLICIES {
        let mut world = World::new(policy, &[5, 5, 5]);
        world.oversubscribed(&[1, 2], Some(TURN_NS));
        assert_eq!(
            world.modes(),
            [Mode::Background, Mode::Background, Mode::Foreground],
            "{policy}"
        );
        let begin = world.now;
        world.run(1_000 * MS);
        let changes = world.changes(&[1, 2], begin);
        assert!((8..=10).contains(&changes), "{policy}: {changes}");
        assert!(world.away(3, begin) <= MS, "{policy}");
        let (consumer, third) = (
            world.kernels(1, begin) + world.kernels(2, begin),
            world.kernels(3, begin),
        );
        assert!(consumer > 5_000 && third > 3_000, "{policy}: {consumer} and {third}");
        // A client that takes no turns.
        world.jobs[2].works = false;
        world.run(10 * MS);
        assert!(!world.view(3).turns);
    }
}

#[test]
fn less_important_ones_run_where_those_who_take_turns_leave_the_device() {
    let mut world = World::new(PolicyName::Fikit, &[5, 5, 9]);
    world.oversubscribed(&[1, 2], Some(TURN_NS));
    let begin = world.now;
    world.run(500 * MS);
    let busy = world.kernels(3, begin);
    // No more than the minimum share.
    assert!(busy < 600, "{busy}");
    world.jobs[0].works = false;
    world.jobs[1].works = false;
    let begin = world.now;
    world.run(100 * MS);
    assert!(world.kernels(3, begin) > 1_500);
}

#[test]
fn work_that_does_not_end_is_let_go_on_also_out_of_turn() {
    let mut world = World::new(PolicyName::Weft, &[5, 5]);
    world.oversubscribed(&[1, 2], Some(TURN_NS));
    world.run(90 * MS);
    // Its work on the device spins until it launches more.
    world.device.retain(|at| *at != 0);
    world.run(20 * MS);
    assert_eq!(world.ran.last().map(|(_, client)| *client), Some(2));
    let launched = world.jobs[0].launched;
    world.run(60 * MS);
    assert!(world.jobs[0].launched > launched, "it goes on before its next turn");
}

#[test]
fn turns_are_of_sensible_length_whatever_is_said() {
    let mut world = World::new(PolicyName::Weft, &[5, 5]);
    for turn in [0, 1, Ns::MAX] {
        world.oversubscribed(&[1, 2], Some(turn));
        world.run(50 * MS);
    }
    assert!(world.kernels(1, 0) + world.kernels(2, 0) > 2_500);
    world.oversubscribed(&[9], Some(TURN_NS));
    assert_eq!(world.core.snapshot().counters.strangers, 1);
}
