// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policy `weft` in the core, by its events and decisions: learning, and the decisions that follow.

mod attaching;
mod equals;
mod refined;
mod starving;

use std::sync::Arc;

use weft_profiles::{Aggregator, Profile};

use weft_protocol::{
    Ns,
    lane::{DEVICE_COPY, HOST_COPY},
};

use crate::{
    config::{MS, US},
    *,
};

const SERVICE: Client = Client(1);
const TRAINING: Client = Client(2);

/// The last kernel of a request.
const LAST: u64 = 12;

fn profile(kernel: u64, time: Ns) -> Option<Arc<Profile>> {
    let mut run = Aggregator::new();
    (0..10).for_each(|_| run.sampled(kernel, time, None));
    Some(Arc::new(run.finish("job", 0)))
}

/// A service (no gaps in its profile) and a training job, under MPS.
struct Bench {
    core: Core,
    now: Ns,
    issued: Ns,
}

impl Bench {
    fn new(training: Option<Arc<Profile>>) -> Bench {
        Bench::on(training, 0)
    }

    /// `switch_cost`: the device's.
    fn on(training: Option<Arc<Profile>>, switch_cost: Ns) -> Bench {
        Bench::with(
            training,
            Config {
                policy: PolicyName::Weft,
                switch_cost,
                ..Config::default()
            },
        )
    }

    fn with(training: Option<Arc<Profile>>, config: Config) -> Bench {
        let mut bench = Bench {
            core: Core::new(config),
            now: 1_000 * MS,
            issued: 0,
        };
        for (client, priority, profile) in [(SERVICE, 0, profile(LAST, 100 * US)), (TRAINING, 5, training)] {
            bench.tell(Event::Attached {
                client,
                priority,
                profile,
            });
        }
        bench
    }

    fn tell(&mut self, event: Event) -> Vec<Decision> {
        let mut out = Vec::new();
        self.core.handle(self.now, event, &mut out);
        let mut at = 0;
        while let Some(decision) = out.get(at).copied() {
            if let Decision::Revoke(client) = decision {
                let left = self.core.snapshot().client(client).map_or(0, |view| view.left);
                self.core.handle(self.now, Event::Revoked { client, left }, &mut out);
            }
            at += 1;
        }
        out
    }

    /// Ten kernels of 100 us of the service, each `every` ns after the one before.
    fn launches(&mut self, every: Ns) {
        for kernel in 3..=LAST {
            let at = self.now;
            self.tell(Event::Launched {
                client: SERVICE,
                kernel,
                cost: 100 * US,
                at,
            });
            self.now += every;
        }
    }

    /// A request, 1 ms after the last one began: ten kernels and a synchronisation.
    fn request(&mut self) {
        self.launches(0);
        self.now += MS;
        self.tell(Event::Idle(SERVICE, self.now));
    }

    /// `count` requests, `gap` apart.
    fn requests(&mut self, count: usize, gap: Ns) {
        for _ in 0..count {
            self.request();
            self.now += gap;
        }
    }

    fn waits(&mut self, cost: Ns) -> Vec<Decision> {
        let since = self.now;
        self.tell(Event::Waits {
            client: TRAINING,
            kernel: 99,
            cost,
            since,
        })
    }

    /// Issues and ends the granted work.
    fn done(&mut self, time: Ns) {
        self.done_while(time, false);
    }

    /// [`Bench::done`]; if `waits`, the host is at the gate and so watches the end.
    fn done_while(&mut self, time: Ns, waits: bool) {
        let at = self.now;
        let cost = self
            .core
            .snapshot()
            .client(TRAINING)
            .map_or(0, |view| view.left.max(0) as Ns);
        self.tell(Event::Launched {
            client: TRAINING,
            kernel: 99,
            cost,
            at,
        });
        self.issued += cost;
        if waits {
            self.tell(Event::Progress {
                client: TRAINING,
                issued: self.issued,
                settled: self.issued - cost,
            });
            self.waits(20 * US);
        }
        self.now += time;
        self.tell(Event::Progress {
            client: TRAINING,
            issued: self.issued,
            settled: self.issued,
        });
    }

    fn granted(&mut self) -> Option<Ns> {
        let out = self.tell(Event::Tick);
        out.iter().find_map(|decision| match decision {
            Decision::Grant { credit, .. } => Some(*credit),
            _ => None,
        })
    }
}

fn is_grant(out: &[Decision]) -> bool {
    out.iter().any(|decision| matches!(decision, Decision::Grant { .. }))
}

#[test]
fn a_gap_is_filled_to_its_end_and_not_beyond_once_it_is_known() {
    let mut bench = Bench::new(profile(99, 300 * US));
    bench.requests(40, 5 * MS);
    bench.request();
    let begin = bench.now;
    assert!(
        is_grant(&bench.waits(300 * US)),
        "at once: the foreground job is seen to have ended"
    );
    bench.done(300 * US);
    bench.now = begin + 4_500 * US;
    assert!(is_grant(&bench.waits(300 * US)));
    bench.done(300 * US);
    assert!(!is_grant(&bench.waits(300 * US)), "200 us are left");
    bench.now = begin + 5 * MS - 20 * US;
    assert_eq!(bench.granted(), None);
    let quality = bench.core.snapshot().client(SERVICE).expect("attached").gaps;
    assert!(
        quality.forecasts >= 10 && quality.error.is_some_and(|error| error < 0.05),
        "{quality:?}"
    );
}

#[test]
fn what_may_take_long_goes_by_that_on_any_device() {
    // 0.4 ms on average, ten times as long once in twenty.
    let mut run = Aggregator::new();
    (0..100).for_each(|turn| run.sampled(99, if turn % 20 == 0 { 3 * MS } else { 300 * US }, None));
    let training = Some(Arc::new(run.finish("job", 0)));
    // Also if this became known after the clients attached.
    for (switch_cost, at_first) in [(0, 0), (100 * US, 100 * US), (0, 100 * US), (100 * US, 0)] {
        let mut bench = Bench::on(training.clone(), at_first);
        bench.tell(Event::SwitchCost(switch_cost));
        assert_eq!(bench.core.snapshot().switch_cost, switch_cost);
        bench.requests(12, 10 * MS);
        bench.request();
        let begin = bench.now;
        assert!(is_grant(&bench.waits(435 * US)), "the gap is long enough for either");
        bench.done(435 * US);
        bench.now = begin + 8 * MS;
        assert!(
            !is_grant(&bench.waits(435 * US)),
            "2 ms are left, a switch takes {switch_cost} ns"
        );
    }
    // A kernel that is never longer may go there.
    let mut bench = Bench::on(profile(99, 435 * US), 0);
    bench.requests(12, 10 * MS);
    bench.request();
    bench.now += 8 * MS;
    assert!(is_grant(&bench.waits(435 * US)));
}

#[test]
fn a_foreground_job_that_does_not_come_when_it_is_due_is_waited_for_no_longer_than_it_was_away() {
    let mut bench = Bench::new(profile(99, 300 * US));
    bench.requests(12, 5 * MS);
    bench.request();
    bench.now += 5 * MS;
    assert!(!is_grant(&bench.waits(300 * US)), "it is due");
    bench.now += 10 * MS;
    assert!(bench.granted().is_some());
}

#[test]
fn of_a_foreground_job_that_nothing_is_known_of_what_has_lasted_will_last() {
    let mut bench = Bench::new(profile(99, 300 * US));
    bench.request();
    assert!(!is_grant(&bench.waits(300 * US)));
    bench.now += 200 * US;
    assert_eq!(bench.granted(), None, "200 us of silence promise no 300");
    bench.now += 400 * US;
    assert!(bench.granted().is_some());
}

#[test]
fn of_a_background_job_that_nothing_is_known_of_one_kernel_goes_at_a_time() {
    let mut bench = Bench::new(None);
    let bound = bench.core.config().delay_bound;
    bench.requests(12, 20 * MS);
    let granted = |out: &[Decision]| {
        out.iter().find_map(|decision| match decision {
            Decision::Grant { credit, .. } => Some(*credit),
            _ => None,
        })
    };
    for kernel in 0..6 {
        bench.request();
        let out = bench.waits(bound);
        assert_eq!(
            granted(&out),
            Some(bound),
            "kernel {kernel}: the whole bound, and no more"
        );
        bench.done_while(700 * US, true);
        bench.tell(Event::Passed(TRAINING));
        bench.now += 19 * MS;
    }
    // Seen ends make no kernel known; the device's measurements do.
    let mut told = Vec::new();
    for _ in 0..20 {
        let at = bench.now;
        told.extend(bench.tell(Event::Sampled {
            client: TRAINING,
            kernel: 99,
            time: 120 * US,
            at,
        }));
    }
    assert!(told.contains(&Decision::Charge(TRAINING, 99, 120 * US)), "{told:?}");
    assert!(told.contains(&Decision::Charge(TRAINING, 0, 120 * US)), "{told:?}");
    bench.request();
    let out = bench.waits(120 * US);
    assert!(
        granted(&out).is_some_and(|credit| credit > 120 * US),
        "it runs ahead: {out:?}"
    );
    assert!(
        out.iter()
            .any(|decision| matches!(decision, Decision::RunAheadWindow(_, Some(_)))),
        "{out:?}"
    );
    bench.done(120 * US);
    bench.now += 19_780 * US;
    assert!(!is_grant(&bench.waits(120 * US)));
}

/// A service and a training without profiles, and the decisions as they attach.
fn without_profiles(policy: PolicyName) -> (Core, Vec<Decision>) {
    let config = Config {
        policy,
        ..Config::default()
    };
    let mut core = Core::new(config);
    let mut out = Vec::new();
    for (client, priority) in [(SERVICE, 0), (TRAINING, 5)] {
        let attached = Event::Attached {
            client,
            priority,
            profile: None,
        };
        core.handle(MS, attached, &mut out);
    }
    (core, out)
}

#[test]
fn a_background_job_without_a_profile_is_timed_and_charged_the_bound_from_its_first_launch() {
    let (mut core, out) = without_profiles(PolicyName::Weft);
    let bound = core.config().delay_bound;
    let at = |wanted: Decision| out.iter().position(|decision| *decision == wanted);
    let (timed, charged) = (Decision::Times(TRAINING, true), Decision::Charge(TRAINING, 0, bound));
    let mode = at(Decision::Mode(TRAINING, Mode::Background));
    assert!(mode.is_some() && at(timed) < mode && at(charged) < mode, "{out:?}");
    assert!(at(timed).is_some() && at(charged).is_some(), "{out:?}");
    // As the foreground job it is charged as before.
    let mut out = Vec::new();
    core.handle(2 * MS, Event::Gone(SERVICE), &mut out);
    let unknown = core.config().unknown_cost;
    assert!(out.contains(&Decision::Charge(TRAINING, 0, unknown)), "{out:?}");
    assert!(out.contains(&Decision::Times(TRAINING, false)), "{out:?}");
    let (_, out) = without_profiles(PolicyName::Fikit);
    let charges = out.iter().any(|decision| matches!(decision, Decision::Charge(..)));
    assert!(!charges, "other policies count as they did: {out:?}");
}

#[test]
fn a_charge_that_holds_work_of_a_foreground_job_falls_to_the_kernels_own_time() {
    let (mut core, mut out) = without_profiles(PolicyName::Weft);
    let launched = |client, kernel, cost, at| Event::Launched {
        client,
        kernel,
        cost,
        at,
    };
    for turn in 1..=100 {
        // A burst takes a hundred times its charge: more than a slowdown may be.
        let at = turn * 4 * MS;
        core.handle(at, launched(SERVICE, LAST, 20 * US, at), &mut out);
        core.handle(at, launched(TRAINING, 7, 500 * US, at), &mut out);
        // Some of the kernel's times hold a slice of the foreground job.
        let time = if turn % 4 == 1 { 1_600 * US } else { 400 * US };
        let sampled = Event::Sampled {
            client: TRAINING,
            kernel: 7,
            time,
            at,
        };
        core.handle(at + time, sampled, &mut out);
        core.handle(at + 2 * MS, Event::Idle(SERVICE, at + 2 * MS), &mut out);
    }
    let charge = out.iter().rev().find_map(|decision| match decision {
        Decision::Charge(TRAINING, 7, charge) => Some(*charge),
        _ => None,
    });
    assert!(charge.is_some_and(|charge| charge <= 500 * US), "{out:?}");
}

#[test]
fn nothing_goes_between_a_wake_up_hint_and_the_launch_that_follows_it() {
    let mut bench = Bench::new(profile(99, 100 * US));
    for _ in 0..12 {
        bench.request();
        bench.now += 5 * MS;
        let at = bench.now;
        bench.tell(Event::WakeUpHint(SERVICE, at));
        bench.now += 80 * US;
    }
    bench.request();
    bench.now += 2 * MS;
    assert!(is_grant(&bench.waits(100 * US)));
    bench.done(100 * US);
    let at = bench.now;
    bench.tell(Event::WakeUpHint(SERVICE, at));
    assert!(
        !is_grant(&bench.waits(100 * US)),
        "it stirs 3 ms early, and launches 80 us after it stirs"
    );
}

#[test]
fn a_background_job_that_finds_no_gap_gets_its_share_in_portions() {
    let mut bench = Bench::new(profile(99, 50 * US));
    bench.waits(50 * US);
    let begin = bench.now;
    let mut granted = Vec::new();
    while bench.now < begin + 200 * MS {
        bench.now += 50 * US;
        let at = bench.now;
        let launched = Event::Launched {
            client: SERVICE,
            kernel: LAST,
            cost: 100 * US,
            at,
        };
        bench.tell(launched);
        if let Some(credit) = bench.granted() {
            granted.push((bench.now - begin, credit));
            bench.done(0);
            bench.waits(50 * US);
        }
    }
    let sum: Ns = granted.iter().map(|(_, credit)| credit).sum();
    assert!(granted.len() <= 9, "in portions: {granted:?}");
    let share = sum as f64 / 200e6;
    assert!((0.015..=0.025).contains(&share), "{share}: {granted:?}");
}

#[test]
fn a_priority_that_changes_makes_a_background_job_of_the_foreground_job_and_back() {
    let mut bench = Bench::new(profile(99, 100 * US));
    bench.requests(12, 5 * MS);
    bench.request();
    assert!(is_grant(&bench.waits(100 * US)));
    let out = bench.tell(Event::Priority(SERVICE, 9));
    assert!(out.contains(&Decision::Mode(SERVICE, Mode::Background)), "{out:?}");
    assert!(out.contains(&Decision::Mode(TRAINING, Mode::Foreground)), "{out:?}");
    let out = bench.tell(Event::Priority(SERVICE, 0));
    assert!(out.contains(&Decision::Mode(SERVICE, Mode::Foreground)), "{out:?}");
    // An unwatched time teaches no gap of a second.
    bench.now += 1_000 * MS;
    bench.requests(3, 5 * MS);
    let quality = bench.core.snapshot().client(SERVICE).expect("attached").gaps;
    assert!(quality.error.is_none_or(|error| error < 0.2), "{quality:?}");
}

#[test]
fn who_found_a_gap_is_not_let_through_beside_the_foreground_job_for_a_while() {
    let mut bench = Bench::new(profile(99, 500 * US));
    bench.requests(12, 5 * MS);
    bench.request();
    assert!(is_grant(&bench.waits(500 * US)), "a gap");
    bench.done(500 * US);
    // From here the foreground job never pauses.
    let (begin, since) = (bench.now, bench.now);
    let mut let_through = None;
    while let_through.is_none() && bench.now < begin + 2_000 * MS {
        let at = bench.now;
        bench.tell(Event::Launched {
            client: SERVICE,
            kernel: 3,
            cost: 200 * US,
            at,
        });
        let out = bench.tell(Event::Waits {
            client: TRAINING,
            kernel: 99,
            cost: 500 * US,
            since,
        });
        let_through = (is_grant(&out) || bench.granted().is_some()).then_some(bench.now);
        bench.now += 100 * US;
    }
    let waited = let_through.expect("nobody starves") - begin;
    let whole = bench.core.config().starving_after;
    assert!(waited.abs_diff(whole) <= whole / 50, "{waited}");
    assert_eq!(bench.core.snapshot().counters.starvation_grants, 1);
}

#[test]
fn the_minimum_share_gives_a_kernel_longer_than_each_gap_the_begin_of_one() {
    const LONG_NS: Ns = 8 * MS;
    const GAP_NS: Ns = 4 * MS;
    let mut bench = Bench::new(profile(99, LONG_NS));
    bench.requests(40, GAP_NS);
    let (since, mut granted) = (bench.now, Vec::new());
    let mut look = |bench: &mut Bench, into_gap: Option<Ns>, event: Event| {
        let out = bench.tell(event);
        if is_grant(&out) || bench.granted().is_some() {
            granted.push((bench.now - since, into_gap));
        }
    };
    let wants = Event::Waits {
        client: TRAINING,
        kernel: 99,
        cost: LONG_NS,
        since,
    };
    look(&mut bench, None, wants);
    // Looks every 100 us, while the service works for 1 ms and pauses for 4.
    for _ in 0..300 {
        for kernel in 3..=LAST {
            let at = bench.now;
            let event = Event::Launched {
                client: SERVICE,
                kernel,
                cost: 100 * US,
                at,
            };
            // An order given with the last kernel arrives as the gap begins.
            look(&mut bench, (kernel == LAST).then_some(0), event);
            bench.now += 100 * US;
        }
        let idle = Event::Idle(SERVICE, bench.now);
        look(&mut bench, Some(0), idle);
        for step in 1..=40 {
            bench.now += GAP_NS / 40;
            look(&mut bench, Some(step * GAP_NS / 40), Event::Tick);
        }
    }
    let (after, into_gap) = granted.first().copied().expect("let through");
    let due = (LONG_NS as f64 / bench.core.config().minimum_share) as Ns;
    assert!(
        (due..due + 6 * MS).contains(&after),
        "after {after} ns, due after {due}"
    );
    assert!(into_gap.is_some_and(|into| into <= GAP_NS / 4), "{into_gap:?}");
    assert!(bench.core.snapshot().counters.starvation_grants > 0);
}

#[test]
fn credit_that_a_silent_background_job_has_left_keeps_no_other_waiting() {
    const OTHER: Client = Client(3);
    let mut bench = Bench::new(profile(99, 20 * US));
    let beside = Event::Attached {
        client: OTHER,
        priority: 5,
        profile: profile(99, 20 * US),
    };
    bench.tell(beside);
    bench.requests(30, 4 * MS);
    // The service stays away. One background job is granted more than it uses and falls silent.
    bench.now += 50 * MS;
    let out = bench.waits(20 * US);
    assert!(is_grant(&out), "{out:?}");
    let left = |bench: &Bench, client: Client| bench.core.snapshot().client(client).map_or(0, |view| view.left);
    let (at, used) = (bench.now, 20 * US);
    bench.tell(Event::Launched {
        client: TRAINING,
        kernel: 99,
        cost: used,
        at,
    });
    bench.now += used;
    bench.tell(Event::Progress {
        client: TRAINING,
        issued: used,
        settled: used,
    });
    assert!(left(&bench, TRAINING) > 100_000, "{}", left(&bench, TRAINING));
    // The other job waits until that silence is noticed.
    let since = bench.now;
    let mut out = bench.tell(Event::Waits {
        client: OTHER,
        kernel: 99,
        cost: 20 * US,
        since,
    });
    while !is_grant(&out) {
        bench.now = bench.core.next_wake(bench.now).expect("somebody waits");
        assert!(bench.now < since + MS, "it is left to wait");
        out = bench.tell(Event::Tick);
    }
    assert_eq!(bench.core.snapshot().counters.starvation_grants, 0);
}

/// A second background job, whose kernel 98 takes 20 us.
const PEER: Client = Client(4);

/// A service that is away after 30 requests, and two background jobs that never count as idle.
fn two_background_jobs(switch_cost: Ns) -> Bench {
    let config = Config {
        policy: PolicyName::Weft,
        switch_cost,
        idle_grace: 10_000 * MS,
        ..Config::default()
    };
    let mut bench = Bench::with(profile(99, 20 * US), config);
    bench.tell(Event::Attached {
        client: PEER,
        priority: 5,
        profile: profile(98, 20 * US),
    });
    bench.requests(30, 4 * MS);
    bench.request();
    bench
}

fn peer_waits(bench: &mut Bench) -> Vec<Decision> {
    let since = bench.now;
    bench.tell(Event::Waits {
        client: PEER,
        kernel: 98,
        cost: 20 * US,
        since,
    })
}

/// The second job's window, if the first one has launched `out` ns, a multiple of 20 us.
fn second_window(switch_cost: Ns, out: Ns) -> Option<RunAheadWindow> {
    let mut bench = two_background_jobs(switch_cost);
    let mut decisions = bench.waits(20 * US);
    let at = bench.now;
    for _ in 0..out / (20 * US) {
        bench.tell(Event::Launched {
            client: TRAINING,
            kernel: 99,
            cost: 20 * US,
            at,
        });
    }
    bench.tell(Event::Progress {
        client: TRAINING,
        issued: out,
        settled: 0,
    });
    decisions.extend(peer_waits(&mut bench));
    decisions.iter().find_map(|decision| match decision {
        Decision::RunAheadWindow(PEER, window) => *window,
        _ => None,
    })
}

#[test]
fn background_jobs_run_ahead_side_by_side_and_each_leaves_time_for_the_other() {
    let deadline = |out| second_window(0, out).expect("a window").deadline;
    assert_eq!(deadline(20 * US) - deadline(120 * US), 100 * US);
    // Where the device switches between processes, they take turns.
    assert_eq!(second_window(100 * US, 20 * US), None);
}

#[test]
fn windows_of_several_background_jobs_do_not_grow_beyond_the_delay_bound_together() {
    let mut bench = two_background_jobs(0);
    let progress = |settled| Event::Progress {
        client: TRAINING,
        issued: 240 * US,
        settled,
    };
    bench.waits(20 * US);
    bench.tell(progress(0));
    // Too little is left: a new grant, with the work still out.
    bench.now += 1;
    bench.waits(20 * US);
    bench.tell(progress(240 * US));
    peer_waits(&mut bench);
    bench.tell(Event::Renewed {
        client: TRAINING,
        total: 10 * MS,
    });
    let exposure = bench.core.snapshot().exposure;
    assert!((300 * US..=500 * US).contains(&exposure), "{exposure}");
}

#[test]
fn the_window_of_the_only_background_job_ends_before_a_second_one_has_credit() {
    let mut bench = Bench::new(profile(99, 20 * US));
    bench.requests(30, 4 * MS);
    bench.request();
    bench.waits(20 * US);
    // Its credit is gone, and may all come back.
    bench.tell(Event::Progress {
        client: TRAINING,
        issued: 500 * US,
        settled: 480 * US,
    });
    bench.tell(Event::Attached {
        client: PEER,
        priority: 5,
        profile: profile(98, 20 * US),
    });
    let out = peer_waits(&mut bench);
    let at = |wanted: &dyn Fn(&Decision) -> bool| out.iter().position(wanted);
    let revoked = at(&|decision| *decision == Decision::Revoke(TRAINING));
    let granted = at(&|decision| matches!(decision, Decision::Grant { client: PEER, .. }));
    assert!(revoked.is_some() && revoked < granted, "{out:?}");
}

#[test]
fn a_kernel_longer_than_each_gap_goes_where_no_wait_feels_it_and_its_credit_outlives_launches() {
    let mut bench = Bench::new(profile(99, 250 * US));
    let launch = |bench: &mut Bench, kernel| {
        let at = bench.now;
        bench.tell(Event::Launched {
            client: SERVICE,
            kernel,
            cost: 100 * US,
            at,
        })
    };
    let revoked = |out: &[Decision]| out.contains(&Decision::Revoke(TRAINING));
    // A slow host: each kernel of 100 us leaves a gap of 200 us.
    for _ in 0..12 {
        for kernel in 3..=LAST {
            launch(&mut bench, kernel);
            bench.now += 300 * US;
        }
        bench.tell(Event::Idle(SERVICE, bench.now));
        bench.now += 5 * MS;
    }
    launch(&mut bench, 3);
    bench.now += 50 * US;
    let granted = bench.waits(250 * US).into_iter().find_map(|decision| match decision {
        Decision::Grant { bound, outlives, .. } => Some((bound, outlives)),
        _ => None,
    });
    assert_eq!(granted, Some((true, 9)), "nine launches are to come before the wait");
    for kernel in 4..=6 {
        bench.now += 300 * US;
        assert!(!revoked(&launch(&mut bench, kernel)), "kernel {kernel}");
    }
    bench.now += 300 * US;
    assert!(
        revoked(&bench.tell(Event::Idle(SERVICE, bench.now))),
        "the service has waited: what comes next is felt"
    );
    bench.now += 5 * MS;
    launch(&mut bench, 777);
    bench.now += 50 * US;
    let granted = bench.waits(250 * US).into_iter().find_map(|decision| match decision {
        Decision::Grant { outlives, .. } => Some(outlives),
        _ => None,
    });
    assert_eq!(granted, Some(3), "the shortest request had three more launches");
}

/// Requests of ten kernels of 100 us, one each `every` ns, with these gaps between them in turn.
fn paced_requests(bench: &mut Bench, every: Ns, gaps: &[Ns], count: usize) {
    for gap in gaps.iter().cycle().take(count) {
        bench.now += gap;
        bench.launches(every);
        bench.tell(Event::Idle(SERVICE, bench.now));
    }
}

#[test]
fn a_kernel_may_outlast_a_gap_by_the_idle_time_of_the_stretch_behind_it() {
    for (time, goes) in [(6 * MS, true), (8 * MS, false)] {
        let mut bench = Bench::new(profile(99, time));
        // A slow host: each request leaves the device idle for 2 ms.
        paced_requests(&mut bench, 300 * US, &[5 * MS], 13);
        assert_eq!(is_grant(&bench.waits(time)), goes, "{time} ns");
    }
}

#[test]
fn a_long_kernel_goes_in_a_known_gap_only_if_it_ends_long_before_the_return() {
    for (time, goes) in [(3 * MS, true), (5 * MS, false)] {
        let mut bench = Bench::new(profile(99, time));
        paced_requests(&mut bench, 100 * US, &[4 * MS, 5 * MS, 6 * MS, 5 * MS], 60);
        assert_eq!(is_grant(&bench.waits(time)), goes, "{time} ns");
    }
    // A short one may meet the return as often as the account allows.
    let mut bench = Bench::new(profile(99, 50 * US));
    paced_requests(&mut bench, 100 * US, &[4 * MS, 5 * MS, 6 * MS, 5 * MS], 60);
    bench.now += 4_900 * US;
    let decisions = bench.waits(50 * US);
    let window = decisions.iter().find_map(|decision| match decision {
        Decision::RunAheadWindow(TRAINING, window) => *window,
        _ => None,
    });
    let window = window.expect("its times are known");
    assert!(window.long_deadline < window.deadline, "{window:?}");
    assert!(
        (10 * US..MS).contains(&window.long_from),
        "a tenth of a request: {window:?}"
    );
}

#[test]
fn a_promised_slowdown_lets_work_go_beside_a_busy_foreground_job_and_its_credit_outlives_the_wait() {
    /// Whether a kernel of 250 us goes while a service is busy, and whether its credit outlives the
    /// wait. It depends on the slowdown that the service requests, and on the device's switch cost.
    fn beside(slowdown: Option<f64>, switch_cost: Ns) -> (bool, bool) {
        let mut bench = Bench::on(profile(99, 250 * US), switch_cost);
        bench.tell(Event::Budget {
            client: SERVICE,
            slowdown,
            slo: None,
            at_least: None,
        });
        // Ten kernels of 100 us at once: no gap and no laxity within a request.
        bench.requests(80, 0);
        bench.launches(0);
        bench.now += 100 * US;
        let granted = is_grant(&bench.waits(250 * US));
        bench.now += 900 * US;
        let ended = bench.tell(Event::Idle(SERVICE, bench.now));
        (granted, granted && !ended.contains(&Decision::Revoke(TRAINING)))
    }
    assert_eq!(beside(Some(0.1), 0), (true, true));
    assert_eq!(beside(None, 0), (false, false), "the default is not spent so");
    assert_eq!(beside(Some(0.0), 0), (false, false), "nothing may be lost");
    assert_eq!(
        beside(Some(0.1), 100 * US),
        (false, false),
        "there nothing runs beside it"
    );
}

#[test]
fn background_jobs_launch_further_ahead_by_the_laxity_and_most_where_a_dry_context_costs_switches() {
    let mps = Config {
        switch_cost: 0,
        ..Config::default()
    };
    let sliced = Config {
        switch_cost: 100 * US,
        ..Config::default()
    };
    let (depth, bound) = (mps.depth, mps.delay_bound);
    assert_eq!(super::windows::backlog(&mps, || 0), depth, "one kernel ahead, no more");
    assert_eq!(super::windows::backlog(&mps, || 16 * depth), depth);
    assert_eq!(super::windows::backlog(&mps, || 32 * depth), 2 * depth);
    assert_eq!(super::windows::backlog(&mps, || 100 * bound), bound / 2);
    assert_eq!(
        super::windows::backlog(&sliced, || 0),
        depth,
        "in a gap the next kernel may not wait"
    );
    assert_eq!(super::windows::backlog(&sliced, || 40 * depth), 10 * depth);
    assert_eq!(super::windows::backlog(&sliced, || 100 * bound), bound);
}

#[test]
fn a_copy_of_the_foreground_job_leaves_the_compute_engine_to_who_has_it() {
    // A kernel fits behind the service's input copy if the training needs no switch.
    let goes = |copy: u64| {
        let mut bench = Bench::on(profile(99, 100 * US), 100 * US);
        let input = |bench: &mut Bench| {
            let at = bench.now;
            bench.tell(Event::Launched {
                client: SERVICE,
                kernel: copy,
                cost: 10 * US,
                at,
            });
        };
        // The copy comes 5 ms after a request, and the next request's first kernel 0.4 ms later.
        for _ in 0..20 {
            bench.requests(1, 5 * MS);
            input(&mut bench);
            bench.now += 400 * US;
        }
        bench.request();
        assert!(is_grant(&bench.waits(100 * US)), "the gap is long enough");
        bench.done(200 * US);
        bench.now += 5 * MS - 200 * US;
        input(&mut bench);
        bench.now += 20 * US;
        is_grant(&bench.waits(100 * US)) || bench.granted().is_some()
    };
    assert!(goes(HOST_COPY), "the training still has the engine");
    assert!(!goes(DEVICE_COPY), "a fill or a copy on the device takes it");
}
