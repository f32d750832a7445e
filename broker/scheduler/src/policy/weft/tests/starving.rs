// SPDX-License-Identifier: MIT OR Apache-2.0
//! Background jobs without a profile whose ends are not watched: they launch, work on the host and
//! then synchronise. Virtual time, `weft` against `fikit`.
//!
//! The foreground job works for 1.2 ms and pauses for 1.5 ms. Expectations:
//!
//! * `weft` gives such jobs about as much as `fikit`, which learns nothing.
//! * No job waits for the minimum share.
//! * The foreground job does not pay: long kernels are detected.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::*;

const FOREGROUND: Client = Client(0);
const BURST: u64 = 8;
const KERNEL_NS: Ns = 150 * US;
const PAUSE_NS: Ns = 1_500 * US;
/// Charge of a kernel of unknown time.
const COST_NS: Ns = 20 * US;
/// Time of an order to a waiting job, and of the job's report to the core.
const WAY_NS: Ns = 30 * US;
/// Interval at which a waiting job looks at the device.
const LOOK_NS: Ns = 60 * US;
/// One launch in `SAMPLED` is timed, and its time is reported `TOLD_NS` later.
const SAMPLED: u64 = 16;
const TOLD_NS: Ns = 20 * MS;
/// End of learning and start of counting.
const LEARNT_NS: Ns = 1_000 * MS;
const END_NS: Ns = 3_000 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    ForegroundLaunches,
    ForegroundEnds,
    Tick,
    Goes(usize),
    Looks(usize),
    /// A background launch's time, and its duration.
    Timed(usize, Ns, Ns),
}

#[derive(Debug, Default)]
struct Background {
    /// Kernels launched in this step.
    launched: u64,
    waits_since: Option<Ns>,
    credit: i64,
    bound: bool,
    epochs: u64,
    issued: Ns,
    settled: Ns,
    /// Ends and charges of launches not seen to end.
    out: Vec<(Ns, Ns)>,
    /// Charges for its kernel: without a measured time, and with one.
    charges: (Option<Ns>, Option<Ns>),
    /// Under this window credit is replenished as work ends; `renewed` is the total.
    window: Option<RunAheadWindow>,
    renewed: Ns,
    timed: bool,
    launches: u64,
    since: Ns,
    steps: u64,
    worst: Ns,
}

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
    background_jobs: Vec<Background>,
    epochs: u64,
    free_at: Ns,
    /// Sum of the foreground job's delays at its bursts, and their number.
    delays: Ns,
    bursts: u64,
}

#[derive(Debug)]
struct Outcome {
    steps: u64,
    worst: Ns,
    /// Mean delay of the foreground job at a return.
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
        background_jobs: (0..shape.jobs).map(|_| Background::default()).collect(),
        epochs: 0,
        free_at: 0,
        delays: 0,
        bursts: 0,
    };
    world.tell(Event::Attached {
        client: FOREGROUND,
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
    world.plan(0, What::ForegroundLaunches);
    world.run(LEARNT_NS);
    for background in &mut world.background_jobs {
        (background.steps, background.worst) = (0, 0);
    }
    (world.delays, world.bursts) = (0, 0);
    world.run(END_NS);
    Outcome {
        steps: world.background_jobs.iter().map(|background| background.steps).sum(),
        worst: world
            .background_jobs
            .iter()
            .map(|background| background.worst.max(END_NS.saturating_sub(background.since)))
            .max()
            .unwrap_or(0),
        delay: world.delays / world.bursts.max(1),
    }
}

impl Background {
    fn charge(&self) -> Ns {
        self.charges.1.or(self.charges.0).unwrap_or(COST_NS)
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
                What::ForegroundLaunches => self.foreground(),
                What::ForegroundEnds => self.tell(Event::Idle(FOREGROUND, self.now)),
                What::Tick => {
                    if self.core.next_wake(self.now).is_some_and(|due| due <= self.now) {
                        self.tell(Event::Tick);
                    }
                }
                What::Goes(background) => self.goes(background),
                What::Looks(background) => self.looks(background),
                What::Timed(background, at, time) => self.tell(Event::Sampled {
                    client: Client(1 + background as u64),
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
                Decision::Grant {
                    client, credit, bound, ..
                } => {
                    let background = &mut self.background_jobs[client.0 as usize - 1];
                    let left = if (background.bound, background.epochs) != (bound, self.epochs) {
                        std::mem::take(&mut background.credit)
                    } else {
                        0
                    };
                    background.credit += credit as i64;
                    (background.bound, background.epochs) = (bound, self.epochs);
                    if left != 0 {
                        self.core.handle(self.now, Event::Revoked { client, left }, &mut out);
                    }
                    if self.background_jobs[client.0 as usize - 1].waits_since.is_some() {
                        self.plan(self.now + WAY_NS, What::Looks(client.0 as usize - 1));
                    }
                }
                Decision::Revoke(client) => {
                    let left = std::mem::take(&mut self.background_jobs[client.0 as usize - 1].credit);
                    self.core.handle(self.now, Event::Revoked { client, left }, &mut out);
                }
                Decision::Times(client, wanted) => self.background_jobs[client.0 as usize - 1].timed = wanted,
                Decision::Charge(client, kernel, charge) => {
                    let charges = &mut self.background_jobs[client.0 as usize - 1].charges;
                    match kernel {
                        0 => charges.0 = Some(charge),
                        _ => charges.1 = Some(charge),
                    }
                }
                Decision::RunAheadWindow(client, window) => {
                    self.background_jobs[client.0 as usize - 1].window = window;
                }
                Decision::Mode(..) => {}
            }
        }
        if let Some(due) = self.core.next_wake(self.now) {
            self.plan(due.max(self.now + US), What::Tick);
        }
    }

    fn foreground(&mut self) {
        self.delays += self.free_at.saturating_sub(self.now);
        self.bursts += 1;
        self.epochs += 1;
        self.free_at = self.free_at.max(self.now) + BURST * KERNEL_NS;
        for kernel in 1..=BURST {
            self.tell(Event::Launched {
                client: FOREGROUND,
                kernel,
                cost: COST_NS,
                at: self.now,
            });
        }
        self.plan(self.free_at, What::ForegroundEnds);
        self.plan(self.free_at + PAUSE_NS, What::ForegroundLaunches);
    }

    /// Launches within its credit and waits with the next kernel; or works on the host,
    /// synchronises and comes to the next step.
    fn goes(&mut self, at: usize) {
        let (now, shape) = (self.now, self.shape);
        let client = Client(1 + at as u64);
        if self.background_jobs[at].launched == shape.kernels {
            let background = &mut self.background_jobs[at];
            // Now it waits for the device.
            let end = background.out.iter().map(|(end, _)| *end).max().unwrap_or(0);
            if end > now {
                return self.plan(end, What::Goes(at));
            }
            background.out.clear();
            background.settled = background.issued;
            (background.launched, background.steps) = (0, background.steps + 1);
            background.worst = background.worst.max(now - background.since);
            background.since = now;
            self.progress(at);
        }
        loop {
            let background = &mut self.background_jobs[at];
            if background.launched == shape.kernels {
                background.waits_since = None;
                return self.plan(now + shape.host, What::Goes(at));
            }
            let cost = background.charge();
            let covered = background.credit >= cost as i64 && (!background.bound || background.epochs == self.epochs);
            let out = background.issued - background.settled;
            let fits = background
                .window
                .is_none_or(|window| now + out + cost <= window.deadline);
            if !covered || !fits {
                let since = *background.waits_since.get_or_insert(now);
                self.plan(now + LOOK_NS, What::Looks(at));
                return self.tell(Event::Waits {
                    client,
                    kernel: 99,
                    cost,
                    since,
                });
            }
            background.credit -= cost as i64;
            background.issued += cost;
            background.waits_since = None;
            background.launched += 1;
            background.launches += 1;
            let (timed, launches) = (background.timed, background.launches);
            let begin = self.free_at.max(now);
            self.free_at = begin + shape.takes;
            let end = self.free_at;
            self.background_jobs[at].out.push((end, cost));
            if timed && launches % SAMPLED == 0 {
                self.plan(end + TOLD_NS, What::Timed(at, now, end - now));
            }
            self.tell(Event::Launched {
                client,
                kernel: 99,
                cost,
                at: now,
            });
            self.progress(at);
        }
    }

    /// Looks for ended work, and for credit.
    fn looks(&mut self, at: usize) {
        let now = self.now;
        let background = &mut self.background_jobs[at];
        if background.waits_since.is_none() {
            return;
        }
        let sum = |out: &[(Ns, Ns)]| out.iter().map(|(_, cost)| cost).sum::<Ns>();
        let before = sum(&background.out);
        background.out.retain(|(end, _)| *end > now);
        let ended = before - sum(&background.out);
        background.settled += ended;
        if ended > 0 {
            self.progress(at);
        }
        self.goes(at);
    }

    fn progress(&mut self, at: usize) {
        let background = &mut self.background_jobs[at];
        let (client, issued, settled) = (Client(1 + at as u64), background.issued, background.settled);
        let window = background.window.filter(|_| background.epochs == self.epochs);
        let back = window.map_or(0, |window| settled.saturating_sub(window.non_refundable));
        let back = back.saturating_sub(background.renewed);
        background.renewed += back;
        background.credit += back as i64;
        let total = background.renewed;
        self.tell(Event::Progress {
            client,
            issued,
            settled,
        });
        if back > 0 {
            self.tell(Event::Renewed { client, total });
        }
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
                // Each launch has its place in the foreground job's period. With several jobs a
                // hundredth of the period decides which one gets a gap. The threshold is also lower
                // if the foreground job's delay is larger under `fikit`.
                let least = if jobs == 1 && fikit.delay <= weft.delay { 7 } else { 5 };
                assert!(
                    weft.steps * 10 >= fikit.steps * least,
                    "{shape:?}: {weft:?}, fikit {fikit:?}"
                );
                // A job that others kept out of gaps for this time has the next one.
                let next = Config::default().starving_after / 2 + BURST * KERNEL_NS + PAUSE_NS;
                assert!(weft.worst < next, "{shape:?}: {weft:?}");
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
