//! Jobs without a profile whose ends nobody looks for: they launch, their hosts work, and then they synchronise. In virtual time, under `weft` and under `fikit`.
//!
//! The holder works for 1.2 ms and pauses for 1.5. `weft` is to give such jobs about as much as `fikit`, which believes nothing, and never to have one wait for the minimum share. And the
//! holder is not to pay for that: what is long is found to be, though its end is never seen in time either.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::*;

const HOLDER: Client = Client(0);
const BURST: u64 = 8;
const KERNEL: Ns = 150 * US;
const PAUSE: Ns = 1_500 * US;
/// What a kernel of unknown time is charged.
const COST: Ns = 20 * US;
/// The way of an order to a job that waits at the gate, and of its news to the core.
const WAY: Ns = 30 * US;
/// A job that waits looks at the device so often.
const LOOK: Ns = 60 * US;
/// One launch in so many is timed, and told of so much later.
const SAMPLED: u64 = 16;
const TOLD: Ns = 20 * MS;
/// Until when is learnt, and from then on counted.
const LEARNT: Ns = 500 * MS;
const END: Ns = 2_500 * MS;

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    HolderLaunches,
    HolderEnds,
    Tick,
    /// A filler goes on.
    Goes(usize),
    /// A filler that waits looks at the device.
    Looks(usize),
    /// The device told of a launch of a filler: when it was, and how long it took.
    Timed(usize, Ns, Ns),
}

/// A background job.
#[derive(Debug, Default)]
struct Filler {
    /// Kernels launched in this step.
    launched: u64,
    waits_since: Option<Ns>,
    credit: i64,
    bound: bool,
    signs: u64,
    issued: Ns,
    settled: Ns,
    /// When the device has ended each launch that was not seen to end.
    out: Vec<Ns>,
    timed: bool,
    launches: u64,
    since: Ns,
    steps: u64,
    worst: Ns,
}

/// A step of every job.
#[derive(Debug, Clone, Copy)]
struct Shape {
    kernels: u64,
    takes: Ns,
    host: Ns,
    jobs: usize,
}

struct World {
    core: Core,
    shape: Shape,
    now: Ns,
    agenda: BinaryHeap<Reverse<(Ns, What)>>,
    fillers: Vec<Filler>,
    signs: u64,
    /// When the device has ended all that it has.
    free_at: Ns,
    /// When the holder came back last, and the sum of what it found in its way, over so many bursts.
    delays: Ns,
    bursts: u64,
}

/// What came of it.
#[derive(Debug)]
struct Outcome {
    steps: u64,
    worst: Ns,
    /// What the holder found in its way when it came back, on the average.
    delay: Ns,
}

fn play(policy: PolicyName, shape: Shape) -> Outcome {
    let config = Config {
        policy,
        ..Config::default()
    };
    let mut world = World {
        core: Core::new(config),
        shape,
        now: 0,
        agenda: BinaryHeap::new(),
        fillers: (0..shape.jobs).map(|_| Filler::default()).collect(),
        signs: 0,
        free_at: 0,
        delays: 0,
        bursts: 0,
    };
    world.tell(Event::Attached {
        client: HOLDER,
        priority: 0,
        profile: None,
    });
    for at in 0..shape.jobs {
        world.tell(Event::Attached {
            client: Client(1 + at as u64),
            priority: 5,
            profile: None,
        });
        world.plan(50 * MS + at as Ns * 77 * US, What::Goes(at));
    }
    world.plan(0, What::HolderLaunches);
    world.run(LEARNT);
    for filler in &mut world.fillers {
        (filler.steps, filler.worst) = (0, 0);
    }
    (world.delays, world.bursts) = (0, 0);
    world.run(END);
    Outcome {
        steps: world.fillers.iter().map(|filler| filler.steps).sum(),
        worst: world
            .fillers
            .iter()
            .map(|filler| filler.worst.max(END.saturating_sub(filler.since)))
            .max()
            .unwrap_or(0),
        delay: world.delays / world.bursts.max(1),
    }
}

impl World {
    fn plan(&mut self, at: Ns, what: What) {
        self.agenda.push(Reverse((at, what)));
    }

    fn run(&mut self, end: Ns) {
        while let Some(Reverse((at, what))) = self.agenda.pop() {
            if at > end {
                self.plan(at, what);
                return;
            }
            self.now = at;
            match what {
                What::HolderLaunches => self.holder(),
                What::HolderEnds => self.tell(Event::Idle(HOLDER, self.now)),
                What::Tick => {
                    if self.core.next_wake(self.now).is_some_and(|due| due <= self.now) {
                        self.tell(Event::Tick);
                    }
                }
                What::Goes(filler) => self.goes(filler),
                What::Looks(filler) => self.looks(filler),
                What::Timed(filler, at, time) => self.tell(Event::Sampled {
                    client: Client(1 + filler as u64),
                    kernel: 99,
                    time,
                    at,
                }),
            }
        }
    }

    fn tell(&mut self, event: Event) {
        let mut out = Vec::new();
        self.core.handle(self.now, event, &mut out);
        let mut at = 0;
        while let Some(decision) = out.get(at).copied() {
            at += 1;
            match decision {
                Decision::Grant { client, credit, bound } => {
                    let filler = &mut self.fillers[client.0 as usize - 1];
                    let left = if (filler.bound, filler.signs) != (bound, self.signs) {
                        std::mem::take(&mut filler.credit)
                    } else {
                        0
                    };
                    filler.credit += credit as i64;
                    (filler.bound, filler.signs) = (bound, self.signs);
                    if left != 0 {
                        self.core.handle(self.now, Event::Revoked { client, left }, &mut out);
                    }
                    if self.fillers[client.0 as usize - 1].waits_since.is_some() {
                        self.plan(self.now + WAY, What::Looks(client.0 as usize - 1));
                    }
                }
                Decision::Revoke(client) => {
                    let left = std::mem::take(&mut self.fillers[client.0 as usize - 1].credit);
                    self.core.handle(self.now, Event::Revoked { client, left }, &mut out);
                }
                Decision::Times(client, wanted) => self.fillers[client.0 as usize - 1].timed = wanted,
                Decision::Mode(..) | Decision::Lease(..) => {}
            }
        }
        if let Some(due) = self.core.next_wake(self.now) {
            self.plan(due.max(self.now + US), What::Tick);
        }
    }

    fn holder(&mut self) {
        self.delays += self.free_at.saturating_sub(self.now);
        self.bursts += 1;
        self.signs += 1;
        self.free_at = self.free_at.max(self.now) + BURST * KERNEL;
        for kernel in 1..=BURST {
            self.tell(Event::Launched {
                client: HOLDER,
                kernel,
                cost: COST,
                at: self.now,
            });
        }
        self.plan(self.free_at, What::HolderEnds);
        self.plan(self.free_at + PAUSE, What::HolderLaunches);
    }

    /// A filler launches what it has credit for, and waits with the next; or works and synchronises, and so comes to its next step.
    fn goes(&mut self, at: usize) {
        let (now, shape) = (self.now, self.shape);
        let client = Client(1 + at as u64);
        if self.fillers[at].launched == shape.kernels {
            let filler = &mut self.fillers[at];
            // It has worked, and now waits for the device.
            let end = filler.out.iter().copied().max().unwrap_or(0);
            if end > now {
                return self.plan(end, What::Goes(at));
            }
            filler.out.clear();
            filler.settled = filler.issued;
            (filler.launched, filler.steps) = (0, filler.steps + 1);
            filler.worst = filler.worst.max(now - filler.since);
            filler.since = now;
            self.progress(at);
        }
        loop {
            let filler = &mut self.fillers[at];
            if filler.launched == shape.kernels {
                filler.waits_since = None;
                return self.plan(now + shape.host, What::Goes(at));
            }
            let covered = filler.credit >= COST as i64 && (!filler.bound || filler.signs == self.signs);
            if !covered {
                let since = *filler.waits_since.get_or_insert(now);
                self.plan(now + LOOK, What::Looks(at));
                return self.tell(Event::Waits {
                    client,
                    kernel: 99,
                    cost: COST,
                    since,
                });
            }
            filler.credit -= COST as i64;
            filler.issued += COST;
            filler.waits_since = None;
            filler.launched += 1;
            filler.launches += 1;
            let (timed, launches) = (filler.timed, filler.launches);
            let begin = self.free_at.max(now);
            self.free_at = begin + shape.takes;
            let end = self.free_at;
            self.fillers[at].out.push(end);
            if timed && launches % SAMPLED == 0 {
                self.plan(end + TOLD, What::Timed(at, now, end - now));
            }
            self.tell(Event::Launched {
                client,
                kernel: 99,
                cost: COST,
                at: now,
            });
            self.progress(at);
        }
    }

    /// It waits at the gate: it looks what has ended, and whether it may go.
    fn looks(&mut self, at: usize) {
        let now = self.now;
        let filler = &mut self.fillers[at];
        if filler.waits_since.is_none() {
            return;
        }
        let before = filler.out.len();
        filler.out.retain(|end| *end > now);
        let ended = before - filler.out.len();
        filler.settled += ended as Ns * COST;
        if ended > 0 {
            self.progress(at);
        }
        self.goes(at);
    }

    fn progress(&mut self, at: usize) {
        let filler = &self.fillers[at];
        let (client, issued, settled) = (Client(1 + at as u64), filler.issued, filler.settled);
        self.tell(Event::Progress {
            client,
            issued,
            settled,
        });
    }
}

#[test]
fn who_synchronises_after_its_hosts_work_gets_about_what_fikit_gives_it() {
    for jobs in [1, 2, 3] {
        for kernels in [1, 2, 5, 30] {
            for host in [100, 300, 600, 1_000, 1_200, 1_500, 2_000, 5_000] {
                let shape = Shape {
                    kernels,
                    takes: 8 * US,
                    host: host * US,
                    jobs,
                };
                let (weft, fikit) = (play(PolicyName::Weft, shape), play(PolicyName::Fikit, shape));
                // Here every launch has its place in the holder's period: among several jobs a hundredth of it decides who gets a gap.
                let least = if jobs == 1 { 7 } else { 5 };
                assert!(
                    weft.steps * 10 >= fikit.steps * least,
                    "{shape:?}: {weft:?}, fikit {fikit:?}"
                );
                assert!(weft.worst < Config::default().starving_after / 2, "{shape:?}: {weft:?}");
            }
        }
    }
}

#[test]
fn a_long_kernel_whose_end_is_seen_late_is_found_to_be_long() {
    let shape = |takes| Shape {
        kernels: 1,
        takes,
        host: MS,
        jobs: 1,
    };
    let (short, long) = (
        play(PolicyName::Weft, shape(8 * US)),
        play(PolicyName::Weft, shape(900 * US)),
    );
    let fikit = play(PolicyName::Fikit, shape(900 * US));
    assert!(long.delay < 60 * US && short.delay < 10 * US, "{long:?}, {short:?}");
    assert!(
        fikit.delay > 5 * long.delay,
        "which believes nothing: {fikit:?}, {long:?}"
    );
}
