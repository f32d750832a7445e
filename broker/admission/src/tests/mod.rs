// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules one by one, and the invariants under any input.

mod auto_backing;
mod caps;
mod lent;
mod undeclared;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use weft_protocol::Ns;

const GB: u64 = 1_000_000_000;
const S: Ns = 1_000_000_000;

/// An order from outside: any job that fits, the latest first.
static ANY: CustomOrder = CustomOrder {
    name: "any",
    next: |waiters: &Waiters<'_>| waiters.all().filter_map(|(at, _)| waiters.fit(at)).last(),
};

/// First come, first served; no job passes another.
static FIFO: CustomOrder = CustomOrder {
    name: "fifo",
    next: |waiters: &Waiters<'_>| waiters.fit(waiters.all().next()?.0),
};

const EVERY: [AdmissionPolicy; 3] = [
    AdmissionPolicy::Weft,
    AdmissionPolicy::Custom(&FIFO),
    AdmissionPolicy::Custom(&ANY),
];

fn device(id: u32, memory: u64) -> Event {
    Event::Device(Device {
        context: GB / 2,
        ..Device::new(DeviceId(id), memory)
    })
}

/// A machine with one device of 16 GB, and its jobs by a test's own books.
struct Device16<J> {
    machine: Admission,
    now: Ns,
    jobs: BTreeMap<u64, J>,
}

impl<J> Device16<J> {
    fn new() -> Device16<J> {
        let mut new = Device16 {
            machine: Admission::new(AdmissionConfig::default()),
            now: 0,
            jobs: BTreeMap::new(),
        };
        new.tell(device(0, 16 * GB));
        new
    }

    fn tell(&mut self, event: Event) -> Vec<Decision> {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        out
    }

    fn share(&self, job: u64) -> Option<u64> {
        self.machine.share(Job(job)).map(|(_, share)| share)
    }
}

fn ask(job: u64, user: u32, peak: u64, seconds: u64) -> Ask {
    Ask {
        job: Job(job),
        user: User(user),
        priority: 5,
        need: Need::plain(peak, seconds * S),
        devices: Vec::new(),
    }
}

/// A machine with one device of 16 GB.
struct Bench {
    machine: Admission,
    now: Ns,
}

impl Bench {
    fn new(policy: AdmissionPolicy) -> Bench {
        let mut bench = Bench {
            machine: Admission::new(AdmissionConfig {
                policy,
                ..AdmissionConfig::default()
            }),
            now: 0,
        };
        bench.tell(device(0, 16 * GB));
        bench
    }

    fn tell(&mut self, event: Event) -> Vec<Decision> {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        out
    }

    /// Jobs that this event admits.
    fn admits(&mut self, event: Event) -> Vec<u64> {
        admitted(&self.tell(event))
    }

    fn asks(&mut self, ask: Ask) -> Vec<u64> {
        self.admits(Event::Asks(ask))
    }
}

fn admitted(decisions: &[Decision]) -> Vec<u64> {
    let admitted = |decision: &Decision| match decision {
        Decision::Admit { job, .. } => Some(job.0),
        _ => None,
    };
    decisions.iter().filter_map(admitted).collect()
}

#[test]
fn what_fits_begins_at_once_and_what_never_fits_is_refused_with_the_figures() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(1, 1, 7 * GB, 60)), [1]);
    assert_eq!(bench.asks(ask(2, 2, 8 * GB, 60)), [2]);
    assert_eq!(bench.asks(ask(3, 3, GB, 60)), [0; 0]);
    let refused = bench.tell(Event::Asks(ask(4, 3, 16 * GB, 60)));
    let [Decision::Refuse { job: Job(4), why }] = refused.as_slice() else {
        panic!("{refused:?}")
    };
    assert_eq!(
        why.to_string(),
        "it needs 15.4 GiB (477 MiB of that for contexts), and the largest device it may use has 14.9 GiB"
    );
    // Asked twice, admitted once.
    assert_eq!(bench.asks(ask(3, 3, GB, 60)), [0; 0]);
    assert_eq!(bench.admits(Event::Ends(Job(1))), [3]);
    assert_eq!(bench.asks(ask(3, 3, GB, 60)), [0; 0]);
}

#[test]
fn short_jobs_pass_a_large_one_until_its_turn_has_come_and_its_reservation_holds() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(1, 1, 8 * GB, 1000)), [1]);
    // Needs the whole device. May be passed for its own 300 s, and until the first has ended.
    assert_eq!(bench.asks(ask(2, 2, 15 * GB, 300)), [0; 0]);
    bench.now = 490 * S;
    assert_eq!(bench.asks(ask(3, 1, 6 * GB, 60)), [3]);
    assert!(!bench.machine.view().waiting[0].due);
    assert_eq!(bench.machine.next_wake(), Some(1000 * S));
    bench.now = 500 * S;
    assert_eq!(bench.admits(Event::Ends(Job(1))), [0; 0]);
    let view = bench.machine.view();
    assert!(view.waiting[0].due);
    assert_eq!(view.waiting[0].promise, Some((DeviceId(0), 550 * S)));
    assert_eq!(view.waiting[0].lack, Some(Lack::Device));
    // It ends before the promise even at twice its expected run. The next might not, and waits.
    assert_eq!(bench.asks(ask(4, 3, GB, 25)), [4]);
    assert_eq!(bench.asks(ask(5, 3, GB, 26)), [0; 0]);
    let waiting = bench.machine.view().waiting;
    assert_eq!((waiting[1].lack, waiting[1].blocked_by), (None, Some(Job(2))));
    bench.now = 540 * S;
    assert_eq!(bench.admits(Event::Ends(Job(4))), [0; 0]);
    assert_eq!(bench.admits(Event::Ends(Job(3))), [2]);
    assert_eq!(bench.admits(Event::Ends(Job(2))), [5]);
}

#[test]
fn what_fits_beside_the_reservation_goes_however_long_it_runs() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(1, 1, 8 * GB, 1000)), [1]);
    assert_eq!(bench.asks(ask(2, 2, 10 * GB, 60)), [0; 0]);
    bench.now = 20 * S;
    assert_eq!(bench.asks(ask(9, 3, 6 * GB, 50)), [9]);
    bench.now = 67 * S;
    assert_eq!(bench.admits(Event::Ends(Job(1))), [0; 0]);
    // The fifo shadow begins it now. Its leeway is half of the longest run, 25 s, less 1.5 times
    // the 3 s that it is to wait: others pass for 20.5 s more.
    assert!(!bench.machine.view().waiting[0].due);
    assert_eq!(bench.machine.next_wake(), Some(87_500_000_000));
    // A job that runs no longer than the running ones passes; a longer one passes only if it fits
    // next to the waiter. The waiter needs 10.5 of 16 GB: 5.5 are left.
    assert_eq!(bench.asks(ask(3, 3, 4 * GB, 100_000)), [3]);
    assert_eq!(bench.asks(ask(4, 3, GB, 200_000)), [0; 0]);
    assert_eq!(
        bench.machine.view().waiting.last().and_then(|last| last.blocked_by),
        Some(Job(2))
    );
}

#[test]
fn who_must_wait_longer_than_its_bound_leaves_is_due_at_once() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(1, 1, 8 * GB, 600)), [1]);
    assert_eq!(bench.asks(ask(2, 2, 15 * GB, 200)), [0; 0]);
    bench.now = 500 * S;
    assert_eq!(bench.asks(ask(3, 3, GB, 600)), [3]);
    assert_eq!(bench.admits(Event::Ends(Job(1))), [0; 0]);
    // The device is free only when the third job has ended, in 600 s. No leeway is left.
    assert!(bench.machine.view().waiting[0].due);
    assert_eq!(bench.asks(ask(4, 3, GB, 301)), [0; 0]);
    assert_eq!(bench.asks(ask(5, 3, GB, 299)), [5]);
}

#[test]
fn under_a_long_queue_short_jobs_go_first_and_a_large_one_no_later_than_in_plain_order() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    let order = |bench: &mut Bench, runs: &dyn Fn(u64) -> Ns| {
        let (mut order, mut running) = (Vec::new(), vec![0]);
        while let Some(job) = running.pop() {
            bench.now += runs(job);
            running = bench.admits(Event::Ends(Job(job)));
            order.extend(running.iter().map(|job| (*job, bench.now / S)));
        }
        order
    };
    let runs = |job: u64| match job {
        0 => 100 * S,
        2 => 400 * S,
        _ => 20 * S,
    };
    assert_eq!(bench.asks(ask(0, 9, 15 * GB, 100)), [0]);
    // One at a time, each of another user: three short ones, a long one behind the first, ten short
    // ones.
    for job in 1..=14 {
        assert_eq!(bench.asks(ask(job, job as u32, 15 * GB, runs(job) / S)), [0; 0]);
    }
    let begun = order(&mut bench, &runs);
    assert_eq!(begun.len(), 14);
    let at = |job: u64| begun.iter().find(|(it, _)| *it == job).map(|(_, at)| *at);
    // Under fifo the long one begins at 120 s. It may be passed for its own 400 s, so all short
    // ones go first and end at 360.
    assert_eq!(at(2), Some(360));
    assert_eq!(begun.last(), Some(&(2, 360)));
}

#[test]
fn a_day_is_the_longest_that_plain_order_excuses() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(0, 9, 8 * GB, 100)), [0]);
    // Under fifo it would wait for the first, which never ends.
    assert_eq!(bench.asks(ask(1, 1, 15 * GB, 100)), [0; 0]);
    bench.now = 24 * 3600 * S - 1;
    bench.admits(Event::Tick);
    assert!(!bench.machine.view().waiting[0].due);
    assert_eq!(bench.machine.next_wake(), Some(24 * 3600 * S));
    bench.now += 1;
    bench.admits(Event::Tick);
    assert!(bench.machine.view().waiting[0].due);
}

#[test]
fn users_take_turns_and_a_heavier_one_has_more_of_them() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    bench.tell(Event::Weight(User(2), 2));
    assert_eq!(bench.asks(ask(0, 9, 15 * GB, 100)), [0]);
    // All alike, and due when the first may go. The first user came first with all of his jobs.
    for job in 1..=4 {
        assert_eq!(bench.asks(ask(job, 1, 15 * GB, 100)), [0; 0]);
    }
    bench.now = S;
    for job in 11..=14 {
        assert_eq!(bench.asks(ask(job, 2, 15 * GB, 100)), [0; 0]);
    }
    bench.now = 1000 * S;
    let mut order = Vec::new();
    let mut next = bench.admits(Event::Ends(Job(0)));
    while let [job] = next.as_slice() {
        order.push(*job);
        next = bench.admits(Event::Ends(Job(*job)));
    }
    assert_eq!(order, [1, 11, 12, 2, 13, 14, 3, 4]);
}

#[test]
fn who_had_least_goes_first_while_nobody_is_due() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(0, 1, 15 * GB, 1000)), [0]);
    bench.now = 10 * S;
    assert_eq!(bench.asks(ask(1, 1, 15 * GB, 1000)), [0; 0]);
    assert_eq!(bench.asks(ask(2, 2, 15 * GB, 1000)), [0; 0]);
    // A much shorter job goes before both, a more important one before all.
    assert_eq!(bench.asks(ask(3, 1, 15 * GB, 100)), [0; 0]);
    let important = Ask {
        priority: 0,
        ..ask(4, 1, 15 * GB, 10_000)
    };
    assert_eq!(bench.asks(important), [0; 0]);
    assert_eq!(bench.admits(Event::Ends(Job(0))), [4]);
    assert_eq!(bench.admits(Event::Ends(Job(4))), [3]);
    assert_eq!(bench.admits(Event::Ends(Job(3))), [2]);
    assert_eq!(bench.admits(Event::Ends(Job(2))), [1]);
}

#[test]
fn growth_comes_from_what_is_free_and_from_nobody() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(1, 1, 5 * GB, 60)), [1]);
    assert_eq!(bench.asks(ask(2, 2, 5 * GB, 60)), [2]);
    let granted = bench.tell(Event::Grows(Job(1), 4 * GB));
    assert_eq!(
        granted,
        [Decision::Grant {
            job: Job(1),
            bytes: 4 * GB
        }]
    );
    let denied = bench.tell(Event::Grows(Job(1), 2 * GB));
    assert_eq!(
        denied,
        [Decision::Deny {
            job: Job(1),
            bytes: 2 * GB,
            free: GB
        }]
    );
    assert_eq!(bench.machine.share(Job(2)), Some((DeviceId(0), 5 * GB + GB / 2)));
    // A job that does not run has nothing to grow.
    assert!(matches!(
        bench.tell(Event::Grows(Job(7), 1)).as_slice(),
        [Decision::Deny { free: 0, .. }]
    ));
}

#[test]
fn a_gang_is_one_job() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    let gang = Ask {
        need: Need {
            processes: 2,
            ..Need::plain(8 * GB, 60 * S)
        },
        ..ask(1, 1, 0, 0)
    };
    assert_eq!(bench.asks(gang), [1]);
    assert_eq!(bench.machine.share(Job(1)), Some((DeviceId(0), 9 * GB)));
    bench.tell(Event::Joins(Job(1)));
    assert_eq!(bench.machine.share(Job(1)), Some((DeviceId(0), 9 * GB)));
    bench.tell(Event::Joins(Job(1)));
    assert_eq!(bench.machine.share(Job(1)), Some((DeviceId(0), 9 * GB + GB / 2)));
    assert_eq!(bench.asks(ask(2, 1, 9 * GB, 60)), [0; 0]);
    for _ in 0..2 {
        assert_eq!(bench.admits(Event::Leaves(Job(1))), [0; 0]);
    }
    assert_eq!(bench.admits(Event::Leaves(Job(1))), [2]);
}

#[test]
fn after_a_restart_those_who_run_are_a_fact() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(9, 1, 10 * GB, 60)), [9]);
    assert_eq!(
        bench.admits(Event::Holds(ask(1, 1, 9 * GB, 60), DeviceId(0), 10 * GB)),
        [0; 0]
    );
    assert_eq!(bench.asks(ask(2, 1, GB, 60)), [0; 0]);
    assert_eq!(bench.admits(Event::Ends(Job(1))), [2]);
}

#[test]
fn jobs_go_where_they_fit_best_and_only_where_they_may() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    bench.tell(device(1, 40 * GB));
    let place = |decisions: Vec<Decision>| match decisions.as_slice() {
        [Decision::Admit { device, .. }] => Some(device.0),
        _ => None,
    };
    assert_eq!(place(bench.tell(Event::Asks(ask(1, 1, 10 * GB, 60)))), Some(0));
    assert_eq!(place(bench.tell(Event::Asks(ask(2, 1, 10 * GB, 60)))), Some(1));
    let only = Ask {
        devices: vec![DeviceId(0)],
        ..ask(3, 1, 10 * GB, 60)
    };
    assert_eq!(place(bench.tell(Event::Asks(only))), None);
    let nowhere = Ask {
        devices: vec![DeviceId(7)],
        ..ask(4, 1, GB, 60)
    };
    assert!(matches!(
        bench.tell(Event::Asks(nowhere)).as_slice(),
        [Decision::Refuse {
            why: Never::NoDevice,
            ..
        }]
    ));
}

#[test]
fn the_forecast_says_when() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(1, 1, 15 * GB, 100)), [1]);
    assert_eq!(bench.asks(ask(2, 2, 15 * GB, 1000)), [0; 0]);
    assert_eq!(bench.asks(ask(3, 3, 15 * GB, 10)), [0; 0]);
    let forecast = bench.machine.forecast();
    assert_eq!(forecast[&Job(3)].begin, 100 * S);
    assert_eq!(forecast[&Job(2)].begin, 110 * S);
    // A forecast changes nothing.
    assert_eq!(bench.machine.count(), (2, 1));
}

#[test]
fn two_hundred_wait_and_all_run_once() {
    for policy in EVERY {
        let mut bench = Bench::new(policy);
        let mut seen = BTreeSet::new();
        for job in 0..200 {
            let peak = 1 + (job * 7919) % 15;
            for admitted in bench.asks(ask(job, (job % 5) as u32, peak * GB, 10 + job % 50)) {
                assert!(seen.insert(admitted));
            }
        }
        assert_eq!(bench.machine.forecast().len(), bench.machine.count().0, "{policy}");
        while let Some(job) = bench.machine.view().running.first().map(|running| running.ask.job) {
            bench.now += S;
            for admitted in bench.admits(Event::Ends(job)) {
                assert!(seen.insert(admitted), "{policy}: twice");
            }
        }
        assert_eq!((seen.len(), bench.machine.count()), (200, (0, 0)), "{policy}");
    }
}

#[test]
fn a_suspended_job_holds_up_nobody_and_keeps_its_place() {
    for policy in [AdmissionPolicy::Weft, AdmissionPolicy::Custom(&FIFO)] {
        let mut bench = Bench::new(policy);
        assert_eq!(bench.asks(ask(1, 1, 15 * GB, 600)), [1]);
        for job in 2..5 {
            assert_eq!(bench.asks(ask(job, 2, 15 * GB, 600)), [0u64; 0]);
        }
        assert_eq!(bench.admits(Event::Ends(Job(1))), [2]);
        // It was admitted and does nothing.
        assert_eq!(bench.admits(Event::Suspends(Job(2))), [3], "{policy}");
        let waiting = bench.machine.view().waiting;
        assert_eq!(waiting.iter().map(|row| row.ask.job.0).collect::<Vec<_>>(), [2, 4]);
        assert!(waiting[0].suspended && bench.machine.forecast().keys().all(|job| job.0 == 4));
        // While it is suspended those behind it go.
        assert_eq!(bench.admits(Event::Ends(Job(3))), [4]);
        assert_eq!(bench.asks(ask(5, 1, 15 * GB, 600)), [0u64; 0]);
        // It continues, before those that came after it.
        assert_eq!(bench.admits(Event::Resumes(Job(2))), [0u64; 0]);
        assert_eq!(bench.admits(Event::Ends(Job(4))), [2]);
        assert_eq!(bench.admits(Event::Ends(Job(2))), [5]);
    }
}

/// A step of a random run.
#[derive(Debug, Clone)]
enum Step {
    Ask {
        user: u32,
        peak: u64,
        seconds: u64,
        priority: u8,
        processes: u32,
        backing: usize,
        only: Option<u32>,
    },
    End(usize),
    Withdraw(usize),
    Grow(usize, u64),
    Join(usize),
    Away(usize),
    Back(usize),
    Pass(u64),
    /// The clock jumps, seconds.
    Jump(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let asks = (
        0..4u32,
        0..20u64,
        1..4000u64,
        4..7u8,
        1..3u32,
        0..3usize,
        proptest::option::of(0..2u32),
    );
    prop_oneof![
        4 => asks.prop_map(|(user, peak, seconds, priority, processes, backing, only)| Step::Ask {
            user, peak: peak * GB / 2, seconds, priority, processes, backing, only
        }),
        3 => any::<usize>().prop_map(Step::End),
        1 => any::<usize>().prop_map(Step::Withdraw),
        1 => (any::<usize>(), 0..8u64).prop_map(|(at, gb)| Step::Grow(at, gb * GB / 4)),
        1 => any::<usize>().prop_map(Step::Join),
        1 => any::<usize>().prop_map(Step::Away),
        2 => any::<usize>().prop_map(Step::Back),
        2 => (0..2000u64).prop_map(Step::Pass),
        1 => (-100_000..100_000i64).prop_map(Step::Jump),
    ]
}

fn a_policy() -> impl Strategy<Value = AdmissionPolicy> {
    (0..EVERY.len()).prop_map(|at| EVERY[at])
}

fn check_fits(machine: &Admission, config: &AdmissionConfig) -> Result<(), TestCaseError> {
    let view = machine.view();
    for (about, load, _) in &view.devices {
        let host = view
            .devices
            .iter()
            .filter(|(other, _, _)| other.id != about.id)
            .map(|(_, load, _)| load.host)
            .sum();
        prop_assert_eq!(load.fits(about, host, config), Ok(()));
    }
    Ok(())
}

proptest! {
    // A case is a whole history.
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Under any order of events and any clock: never over capacity, no job lost or admitted twice,
    /// no share made smaller.
    #[test]
    fn books_are_right(policy in a_policy(), steps in proptest::collection::vec(step(), 1..200)) {
        let config = AdmissionConfig { policy, host_memory: 40 * GB, ..AdmissionConfig::default() };
        let mut machine = Admission::new(config.clone());
        let mut out = Vec::new();
        machine.handle(0, device(0, 16 * GB), &mut out);
        machine.handle(0, device(1, 8 * GB), &mut out);
        let mut now = 0;
        // Expected state: the waiters, and the running jobs with their shares.
        let (mut waits, mut runs, mut ever) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        let mut away = BTreeSet::new();
        for (number, step) in steps.into_iter().enumerate() {
            let pick = |from: Vec<u64>, at: usize| (!from.is_empty()).then(|| from[at % from.len()]);
            let running = || runs.keys().copied().collect::<Vec<u64>>();
            let event = match step {
                Step::Ask { user, peak, seconds, priority, processes, backing, only } => {
                    let job = number as u64;
                    let backing = [Backing::Device, Backing::Managed { working_set: peak / 2 }, Backing::Auto { working_set: peak }][backing];
                    waits.insert(job);
                    Event::Asks(Ask {
                        priority,
                        need: Need { processes, backing, ..Need::plain(peak, seconds * S) },
                        devices: only.into_iter().map(DeviceId).collect(),
                        ..ask(job, user, 0, 0)
                    })
                }
                Step::End(at) => match pick(running(), at) {
                    Some(job) => { runs.remove(&job); Event::Ends(Job(job)) }
                    None => Event::Tick,
                },
                Step::Withdraw(at) => match pick(waits.iter().copied().collect(), at) {
                    Some(job) => { waits.remove(&job); away.remove(&job); Event::Ends(Job(job)) }
                    None => Event::Tick,
                },
                Step::Grow(at, bytes) => pick(running(), at).map_or(Event::Tick, |job| Event::Grows(Job(job), bytes)),
                Step::Join(at) => pick(running(), at).map_or(Event::Tick, |job| Event::Joins(Job(job))),
                Step::Away(at) => match pick(runs.keys().chain(&waits).copied().collect(), at) {
                    Some(job) => {
                        if runs.remove(&job).is_some() { ever.remove(&job); }
                        waits.insert(job);
                        away.insert(job);
                        Event::Suspends(Job(job))
                    }
                    None => Event::Tick,
                },
                Step::Back(at) => match pick(away.iter().copied().collect(), at) {
                    Some(job) => { away.remove(&job); Event::Resumes(Job(job)) }
                    None => Event::Tick,
                },
                Step::Pass(seconds) => { now += seconds * S; Event::Tick }
                Step::Jump(seconds) => { now = now.saturating_add_signed(seconds * S as i64); Event::Tick }
            };
            out.clear();
            machine.handle(now, event, &mut out);
            for decision in &out {
                match decision {
                    Decision::Admit { job, share, .. } => {
                        prop_assert!(waits.remove(&job.0), "{job:?} did not wait");
                        prop_assert!(ever.insert(job.0), "{job:?} was admitted before");
                        prop_assert!(!away.contains(&job.0), "{job:?} is suspended");
                        runs.insert(job.0, *share);
                    }
                    Decision::Refuse { job, .. } => { prop_assert!(waits.remove(&job.0)); away.remove(&job.0); }
                    Decision::Grant { job, bytes } => { *runs.get_mut(&job.0).unwrap() += bytes; }
                    Decision::Deny { .. } => {}
                }
            }
            check_fits(&machine, &config)?;
            prop_assert_eq!(machine.count(), (waits.len(), runs.len()));
            for job in &waits { prop_assert!(machine.waits(Job(*job))); }
            for (job, share) in &mut runs {
                let (_, has) = machine.share(Job(*job)).unwrap();
                prop_assert!(has >= *share, "a share became smaller");
                *share = has;
            }
            // The next waiter, if it fits an empty machine, never waits while no job runs.
            prop_assert!(!runs.is_empty() || waits.len() == away.len(), "{} wait for nobody", waits.len());
        }
    }

    /// The bound of the largest job. Jobs of other users arrive continually and run up to twice as
    /// long as expected. It begins at the latest after its patience and the longest of those runs.
    #[test]
    fn the_largest_job_begins_within_its_bound(
        large in 30..2000u64,
        others in proptest::collection::vec((1..15u64, 5..600u64, 50..200u64, 10..90u64), 20..100),
    ) {
        let mut machine = Admission::new(AdmissionConfig::default());
        let mut out = Vec::new();
        machine.handle(0, device(0, 16 * GB), &mut out);
        let mut ends: BTreeSet<(Ns, u64)> = BTreeSet::new();
        let mut lasts: BTreeMap<u64, Ns> = BTreeMap::new();
        let mut now = 0;
        let mut begun = None;
        let mut longest = 0;
        let largest = 1_000_000;
        machine.handle(0, Event::Asks(ask(1, 1, 15 * GB, 50)), &mut out);
        lasts.insert(1, 50 * S);
        machine.handle(0, Event::Asks(ask(largest, 2, 15 * GB, large)), &mut out);
        let mut others = others.into_iter().cycle().enumerate();
        let mut next_ask = 0;
        for _ in 0..600 {
            for decision in out.drain(..) {
                if let Decision::Admit { job, .. } = decision {
                    if job.0 == largest { begun = Some(now); break; }
                    ends.insert((now + lasts[&job.0], job.0));
                    longest = longest.max(lasts[&job.0]);
                }
            }
            if begun.is_some() { break; }
            let end = ends.first().copied();
            let wake = machine.next_wake().unwrap_or(Ns::MAX);
            let at = end.map_or(Ns::MAX, |(at, _)| at).min(wake).min(next_ask);
            now = at;
            if end.is_some_and(|(when, _)| when == at) {
                let (_, job) = end.unwrap();
                ends.pop_first();
                machine.handle(now, Event::Ends(Job(job)), &mut out);
            } else if next_ask == at {
                let (number, (peak, seconds, percent, pause)) = others.next().unwrap();
                next_ask += pause * S;
                let job = 10 + number as u64;
                lasts.insert(job, seconds * percent * S / 100);
                // Earlier users delay only their own jobs.
                machine.handle(now, Event::Asks(ask(job, 3 + number as u32 % 3, peak * GB, seconds)), &mut out);
            } else {
                machine.handle(now, Event::Tick, &mut out);
            }
        }
        // Jobs that were due before it begin first: each of at most three users has one ahead, of
        // shorter patience.
        let bound = AdmissionConfig::default().patience(large * S) + longest;
        let begun = begun.expect("it begins");
        prop_assert!(begun <= bound + 3 * longest, "{} s, bound {} s", begun / S, bound / S);
    }
}
