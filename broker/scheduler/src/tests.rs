// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core as a whole, by its events and decisions.

use std::sync::Arc;

use weft_profiles::{Aggregator, Profile};

use super::{
    config::{MS, US},
    *,
};
use weft_protocol::lane::HOST_COPY;

const SERVICE: Client = Client(1);
const TRAINING: Client = Client(2);
const OTHER: Client = Client(3);

/// A kernel that is followed by the next one.
const STEP: u64 = 11;
/// The kernel before a gap of 10 ms.
const LAST: u64 = 12;

fn profile() -> Option<Arc<Profile>> {
    let mut run = Aggregator::new();
    run.sampled(STEP, 100 * US, Some(5 * US));
    run.sampled(LAST, 100 * US, Some(10 * MS));
    Some(Arc::new(run.finish("service", 0)))
}

struct Bench {
    core: Core,
    now: Ns,
}

impl Bench {
    fn new(policy: PolicyName) -> Bench {
        let config = Config {
            policy,
            ..Config::default()
        };
        Bench {
            core: Core::new(config),
            now: 1_000 * MS,
        }
    }

    /// Service (priority 0) and training (priority 5).
    fn pair(policy: PolicyName) -> Bench {
        let mut bench = Bench::new(policy);
        bench.attach(SERVICE, 0);
        bench.attach(TRAINING, 5);
        bench.now += 100 * MS;
        bench
    }

    fn tell(&mut self, event: Event) -> Vec<Decision> {
        let mut out = Vec::new();
        self.core.handle(self.now, event, &mut out);
        out
    }

    /// [`Bench::tell`], but each revocation is answered from the books.
    fn play(&mut self, event: Event) -> Vec<Decision> {
        let mut all = self.tell(event);
        let mut at = 0;
        while at < all.len() {
            if let Decision::Revoke(client) = all[at] {
                let left = self.view(client).left;
                all.extend(self.tell(Event::Revoked { client, left }));
            }
            at += 1;
        }
        all
    }

    /// Ends all of a client's work. The client waits with the next kernel.
    fn goes_on(&mut self, client: Client, issued: Ns, cost: Ns) {
        self.play(Event::Progress {
            client,
            issued,
            settled: issued,
        });
        self.play(Event::Waits {
            client,
            kernel: 99,
            cost,
            since: self.now,
        });
    }

    fn at(&mut self, now: Ns, event: Event) -> Vec<Decision> {
        self.now = now;
        self.tell(event)
    }

    fn attach(&mut self, client: Client, priority: u8) -> Vec<Decision> {
        self.tell(Event::Attached {
            client,
            priority,
            profile: profile(),
        })
    }

    fn launch(&mut self, client: Client, kernel: u64) -> Vec<Decision> {
        self.tell(Event::Launched {
            client,
            kernel,
            cost: 100 * US,
            at: self.now,
        })
    }

    fn waits(&mut self, client: Client, cost: Ns) -> Vec<Decision> {
        self.tell(Event::Waits {
            client,
            kernel: 99,
            cost,
            since: self.now,
        })
    }

    fn progress(&mut self, client: Client, issued: Ns, settled: Ns) -> Vec<Decision> {
        let mut out = self.tell(Event::Progress {
            client,
            issued,
            settled,
        });
        if self.core.next_wake(self.now) == Some(self.now) {
            out.extend(self.tell(Event::Tick));
        }
        out
    }

    fn view(&self, client: Client) -> ClientView {
        self.core.snapshot().client(client).unwrap().clone()
    }
}

fn grant(client: Client, credit: Ns, bound: bool) -> Decision {
    Decision::Grant {
        client,
        credit,
        bound,
        outlives: 0,
    }
}

#[test]
fn a_client_by_itself_is_alone_and_two_are_foreground_job_and_background_job() {
    let mut bench = Bench::new(PolicyName::Fikit);
    assert_eq!(bench.attach(TRAINING, 5), [Decision::Mode(TRAINING, Mode::Alone)]);
    assert_eq!(
        bench.attach(SERVICE, 0),
        [
            Decision::Mode(TRAINING, Mode::Background),
            Decision::Mode(SERVICE, Mode::Foreground)
        ]
    );
    assert_eq!(bench.attach(OTHER, 0), [Decision::Mode(OTHER, Mode::Foreground)]);
    assert_eq!(
        bench.tell(Event::Priority(OTHER, 7)),
        [Decision::Mode(OTHER, Mode::Background)]
    );
    assert_eq!(bench.tell(Event::Gone(OTHER)), []);
    assert_eq!(
        bench.tell(Event::Gone(SERVICE)),
        [Decision::Mode(TRAINING, Mode::Alone)]
    );
}

/// Launches of [`OTHER`] in two seconds, while an equal waits at the gate. `stopped`: the equal
/// takes no credit.
fn launches_beside_an_equal(policy: PolicyName, stopped: bool) -> u64 {
    const COST_NS: Ns = 100 * US;
    let mut bench = Bench::new(policy);
    bench.attach(SERVICE, 0);
    let jobs = [TRAINING, OTHER];
    let mut issued = [0, 0];
    for client in jobs {
        bench.attach(client, 5);
    }
    bench.now += 100 * MS;
    let begun = bench.now;
    for client in jobs {
        let since = bench.now;
        bench.play(Event::Waits {
            client,
            kernel: 99,
            cost: COST_NS,
            since,
        });
    }
    // Longer than the bound on the begin of a wait.
    let end = bench.now + 2 * Config::default().longest_cost;
    while bench.now < end {
        let able = jobs.iter().enumerate().skip(usize::from(stopped));
        let goes = able
            .map(|(at, client)| (at, *client))
            .find(|(_, client)| bench.view(*client).left >= COST_NS as i64);
        match goes {
            Some((at, client)) => {
                bench.now += COST_NS;
                issued[at] += COST_NS;
                bench.goes_on(client, issued[at], COST_NS);
            }
            None => {
                let wake = bench.core.next_wake(bench.now).unwrap_or(end);
                bench.now = wake.clamp(bench.now + US, end);
                bench.play(Event::Tick);
            }
        }
        // The stopped job's wait is reported again.
        if stopped {
            let (client, kernel) = (TRAINING, 99);
            bench.play(Event::Waits {
                client,
                kernel,
                cost: COST_NS,
                since: begun,
            });
        }
    }
    issued[1] / COST_NS
}

#[test]
fn a_stopped_job_at_the_gate_costs_its_equals_little() {
    for policy in [PolicyName::Weft, PolicyName::Fikit] {
        let beside = launches_beside_an_equal(policy, false);
        let stopped = launches_beside_an_equal(policy, true);
        assert!(
            stopped > beside * 3 / 2,
            "{policy}: {stopped}, and {beside} beside one that runs"
        );
    }
}

#[test]
fn a_background_job_beside_an_idle_foreground_job_gets_the_delay_bound() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    assert_eq!(bench.waits(TRAINING, 50 * US), [grant(TRAINING, 500 * US, true)]);
    assert_eq!(bench.view(TRAINING).left, 500_000);
}

#[test]
fn a_background_job_waits_while_the_foreground_job_works_and_fills_the_gap_after_it() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    let start = bench.now;
    bench.launch(SERVICE, STEP);
    bench.launch(SERVICE, LAST);
    assert_eq!(bench.waits(TRAINING, 50 * US), []);
    assert_eq!(bench.core.next_wake(bench.now), Some(start + 200 * US));
    assert_eq!(bench.at(start + 199 * US, Event::Tick), []);
    assert_eq!(
        bench.at(start + 200 * US, Event::Tick),
        [grant(TRAINING, 500 * US, true)]
    );
    assert_eq!(
        bench.core.snapshot().gap,
        Some(GapView {
            since: start + 200 * US,
            until: Some(start + 200 * US + 10 * MS)
        })
    );
    assert_eq!(bench.core.snapshot().counters.gaps, 1);
}

#[test]
fn a_copy_of_a_background_job_goes_beside_the_kernels_of_the_foreground_job() {
    let copy = |bench: &mut Bench, cost| {
        let since = bench.now;
        bench.tell(Event::Waits {
            client: TRAINING,
            kernel: HOST_COPY,
            cost,
            since,
        })
    };
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.launch(SERVICE, STEP);
    bench.launch(SERVICE, STEP);
    // The copy might delay the foreground job's next one.
    assert_eq!(copy(&mut bench, 201 * US), []);
    bench.launch(SERVICE, STEP);
    assert_eq!(bench.tell(Event::Tick), [grant(TRAINING, 201 * US, false)]);
    // The work behind the copy waits for the gap.
    bench.progress(TRAINING, 201 * US, 0);
    assert_eq!(bench.waits(TRAINING, 10 * US), []);
    assert_eq!(bench.view(TRAINING).left, 0);
}

#[test]
fn a_small_gap_is_not_filled() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    let start = bench.now;
    bench.launch(SERVICE, STEP);
    bench.waits(TRAINING, 50 * US);
    bench.at(start + 105 * US, Event::Idle(SERVICE, start + 105 * US));
    assert_eq!(bench.at(start + 200 * US, Event::Tick), []);
    // Longer than the small gap.
    assert_eq!(bench.core.next_wake(bench.now), Some(start + 305 * US));
    assert_eq!(
        bench.at(start + 305 * US, Event::Tick),
        [grant(TRAINING, 500 * US, true)]
    );
}

#[test]
fn the_way_to_a_background_job_is_part_of_the_gap_once() {
    let late = |bench: &Bench| bench.now + 100 * US + 10 * MS - 150 * US;
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.launch(SERVICE, LAST);
    bench.now = late(&bench);
    assert_eq!(
        bench.waits(TRAINING, 100 * US),
        [],
        "150 us are left, of which the switch takes 100"
    );

    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.launch(SERVICE, LAST);
    let at = late(&bench);
    bench.now += 100 * US;
    assert_eq!(bench.waits(TRAINING, 50 * US), [grant(TRAINING, 500 * US, true)]);
    bench.progress(TRAINING, 500 * US, 500 * US);
    bench.now = at;
    assert_eq!(bench.waits(TRAINING, 100 * US), [grant(TRAINING, 150 * US, true)]);
}

#[test]
fn what_does_not_fit_into_the_gap_waits_for_its_end() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    let start = bench.now;
    bench.launch(SERVICE, LAST);
    bench.now = start + 100 * US;
    assert_eq!(bench.waits(TRAINING, 12 * MS), [], "12 ms do not fit into 10");
    let over = start + 100 * US + 10 * MS + 200 * US;
    assert_eq!(bench.core.next_wake(bench.now), Some(over));
    assert_eq!(bench.at(over, Event::Tick), [grant(TRAINING, 12 * MS, true)]);
}

#[test]
fn a_kernel_longer_than_the_bound_goes_alone_where_it_fits() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    let start = bench.now;
    bench.launch(SERVICE, LAST);
    bench.now = start + 100 * US;
    assert_eq!(bench.waits(TRAINING, 3 * MS), [grant(TRAINING, 3 * MS, true)]);
}

#[test]
fn behind_a_long_kernel_goes_what_half_the_bound_holds() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.waits(TRAINING, 900 * US);
    assert_eq!(bench.view(TRAINING).left, 900_000);
    bench.progress(TRAINING, 900 * US, 0);
    assert_eq!(bench.waits(TRAINING, 251 * US), []);
    assert_eq!(bench.waits(TRAINING, 100 * US), [grant(TRAINING, 250 * US, true)]);
    bench.progress(TRAINING, 1_150 * US, 0);
    assert_eq!(bench.waits(TRAINING, 10 * US), [], "half the bound is full");
    // The long kernel has ended.
    assert_eq!(
        bench.progress(TRAINING, 1_150 * US, 900 * US),
        [grant(TRAINING, 250 * US, true)]
    );
}

#[test]
fn the_longest_that_fits_of_the_most_important_goes_first() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.attach(OTHER, 5);
    bench.attach(Client(4), 7);
    let start = bench.now;
    bench.launch(SERVICE, LAST);
    bench.waits(Client(4), 450 * US);
    bench.waits(TRAINING, 100 * US);
    bench.waits(OTHER, 300 * US);
    assert_eq!(
        bench.at(start + 100 * US, Event::Tick),
        [grant(OTHER, 300 * US, true), grant(TRAINING, 200 * US, true)],
        "class 5 before class 7, its longer kernel first, the last one with the rest of the bound"
    );
}

#[test]
fn a_less_important_background_job_does_not_slip_in_before_a_long_kernel() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.attach(OTHER, 7);
    let start = bench.now;
    bench.launch(SERVICE, LAST);
    bench.waits(OTHER, 50 * US);
    bench.waits(TRAINING, 600 * US);
    assert_eq!(
        bench.at(start + 100 * US, Event::Tick),
        [grant(TRAINING, 600 * US, true)],
        "longer than the bound, so alone"
    );
}

#[test]
fn a_foreground_job_that_comes_back_ends_the_filling() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    let start = bench.now;
    bench.launch(SERVICE, LAST);
    bench.now = start + 100 * US;
    bench.waits(TRAINING, 50 * US);
    bench.now = start + 2 * MS;
    bench.progress(TRAINING, 200 * US, 50 * US);
    assert_eq!(bench.launch(SERVICE, STEP), [Decision::Revoke(TRAINING)]);
    assert_eq!(
        bench.tell(Event::Revoked {
            client: TRAINING,
            left: 300_000
        }),
        []
    );
    let view = bench.view(TRAINING);
    assert_eq!((view.left, view.outstanding, view.revoked), (0, 150 * US, 300_000));
    assert_eq!(bench.core.snapshot().counters.early_returns, 1);
    // Behind 500 us of exposure.
    assert_eq!(
        bench.view(SERVICE).busy_until,
        start + 2 * MS + 500 * US - 50 * US + 100 * US
    );
    assert_eq!(bench.waits(TRAINING, 50 * US), []);
}

#[test]
fn a_wake_up_hint_of_the_foreground_job_stops_filling_before_its_launch() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.waits(TRAINING, 50 * US);
    let at = bench.now;
    assert_eq!(bench.tell(Event::WakeUpHint(SERVICE, at)), [Decision::Revoke(TRAINING)]);
    bench.tell(Event::Revoked {
        client: TRAINING,
        left: 500_000,
    });
    assert_eq!(
        bench.core.next_wake(at),
        Some(at + 200 * US),
        "the wait is back in the queue"
    );
    assert_eq!(bench.at(at + 200 * US, Event::Tick), [grant(TRAINING, 500 * US, true)]);
}

#[test]
fn credit_follows_the_work_that_ends() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.waits(TRAINING, 100 * US);
    bench.progress(TRAINING, 500 * US, 0);
    assert_eq!(bench.waits(TRAINING, 300 * US), [], "the bound is out");
    assert_eq!(
        bench.progress(TRAINING, 500 * US, 200 * US),
        [],
        "300 of 500 us are out"
    );
    assert_eq!(
        bench.progress(TRAINING, 500 * US, 250 * US),
        [grant(TRAINING, 300 * US, true)],
        "half of the bound is out: one more is queued behind it"
    );
}

#[test]
fn a_background_job_that_runs_is_topped_up_before_it_stops() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.waits(TRAINING, 100 * US);
    assert_eq!(
        bench.progress(TRAINING, 300 * US, 200 * US),
        [],
        "200 of 500 us are left"
    );
    assert_eq!(
        bench.progress(TRAINING, 400 * US, 300 * US),
        [grant(TRAINING, 300 * US, true)]
    );
    assert_eq!(bench.view(TRAINING).left, 400_000);
    assert_eq!(bench.core.snapshot().exposure, 500 * US);
}

#[test]
fn told_again_a_wait_is_granted_once() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    assert_eq!(bench.waits(TRAINING, 100 * US).len(), 1);
    assert_eq!(bench.waits(TRAINING, 100 * US), []);
    // An unreported launch epoch must have voided the credit.
    assert_eq!(bench.core.next_wake(bench.now), Some(bench.now + 5 * MS));
    bench.now += 5 * MS;
    assert_eq!(bench.tell(Event::Tick), [Decision::Revoke(TRAINING)]);
    assert_eq!(
        bench.tell(Event::Revoked {
            client: TRAINING,
            left: 500_000
        }),
        [grant(TRAINING, 500 * US, true)]
    );
}

#[test]
fn nobody_starves_beside_a_foreground_job_that_never_pauses() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    let start = bench.now;
    bench.launch(SERVICE, STEP);
    bench.waits(TRAINING, MS);
    let mut granted = Vec::new();
    for step in 1..4_000u64 {
        bench.now = start + step * 50 * US;
        bench.launch(SERVICE, STEP);
        let out = bench.tell(Event::Tick);
        if out.is_empty() {
            continue;
        }
        assert_eq!(
            out,
            [grant(TRAINING, MS, false)],
            "not bound: the foreground job's next launch would void it"
        );
        granted.push(bench.now - start);
        let total = granted.len() as u64 * MS;
        bench.progress(TRAINING, total, total);
        bench.waits(TRAINING, MS);
    }
    // The minimum share of 2 %: 1 ms and 0.2 ms of switching each 60 ms.
    assert_eq!(granted, [60 * MS, 120 * MS, 180 * MS]);
}

#[test]
fn a_kernel_that_spins_for_a_later_one_is_let_through() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.waits(TRAINING, 500 * US);
    bench.progress(TRAINING, 500 * US, 0);
    let since = bench.now;
    assert_eq!(bench.waits(TRAINING, 300 * US), []);
    let due = since + 5 * MS + 2 * 500 * US;
    assert_eq!(bench.at(due - 1, Event::Tick), []);
    assert_eq!(bench.at(due, Event::Tick), [grant(TRAINING, 300 * US, false)]);
    assert_eq!(bench.core.snapshot().counters.stuck_grants, 1);
}

#[test]
fn work_that_never_ends_is_written_off() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.attach(OTHER, 5);
    bench.waits(TRAINING, 500 * US);
    bench.progress(TRAINING, 500 * US, 0);
    let since = bench.now;
    assert_eq!(bench.waits(OTHER, 300 * US), []);
    let due = since + 50 * MS + 10 * 500 * US;
    let mut granted = None;
    while let Some(wake) = bench.core.next_wake(bench.now).filter(|wake| *wake <= due) {
        let out = bench.at(wake.max(bench.now + 1), Event::Tick);
        if !out.is_empty() {
            granted = Some((bench.now, out));
            break;
        }
    }
    // The share of 300 us is due after 15 ms, but the device is full.
    assert_eq!(granted, Some((due, vec![grant(OTHER, 300 * US, false)])));
    assert_eq!(bench.core.snapshot().counters.write_offs, 1);
    assert_eq!(bench.view(TRAINING).written_off, 500 * US);
}

#[test]
fn who_launches_on_behind_work_that_never_ends_keeps_the_others_waiting_no_longer() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.attach(OTHER, 5);
    bench.waits(TRAINING, 500 * US);
    bench.progress(TRAINING, 500 * US, 0);
    bench.waits(OTHER, 300 * US);
    let begun = bench.now;
    // One launch without credit each millisecond.
    for launch in 1..=200 {
        bench.now = begun + launch * MS;
        let mut decisions = bench.progress(TRAINING, 500 * US + launch * 400 * US, 0);
        decisions.extend(bench.tell(Event::Tick));
        if decisions.contains(&grant(OTHER, 300 * US, false)) {
            return;
        }
    }
    panic!("{:?}", bench.core.snapshot());
}

/// Whether the training job gets credit within `most` ns while no other event comes.
fn is_granted_within(bench: &mut Bench, most: Ns) -> bool {
    let end = bench.now + most;
    while let Some(at) = bench.core.next_wake(bench.now).filter(|at| *at <= end) {
        bench.now = at.max(bench.now + 1);
        let decisions = bench.play(Event::Tick);
        if decisions
            .iter()
            .any(|decision| matches!(decision, Decision::Grant { .. }))
        {
            return true;
        }
    }
    false
}

#[test]
fn credit_that_a_thread_took_and_never_reported_opens_no_gate() {
    for policy in [PolicyName::Fikit, PolicyName::Weft] {
        let mut bench = Bench::pair(policy);
        assert!(!bench.waits(TRAINING, 100 * US).is_empty() || is_granted_within(&mut bench, 100 * MS));
        bench.progress(TRAINING, 100 * US, 100 * US);
        // A thread takes all but 50 us and never reports it. The foreground job comes back, and the
        // rest is revoked.
        let left = bench.view(TRAINING).left;
        assert!(left > 60_000, "{left}");
        let decisions = bench.launch(SERVICE, LAST);
        assert!(
            decisions.contains(&Decision::Revoke(TRAINING)),
            "{policy:?} {decisions:?}"
        );
        bench.tell(Event::Revoked {
            client: TRAINING,
            left: 50_000,
        });
        // The books have more left than the next kernel takes, but the word is empty.
        bench.now += US;
        bench.waits(TRAINING, 20 * US);
        bench.now += 200 * US;
        let mut decisions = bench.play(Event::Idle(SERVICE, bench.now));
        decisions.retain(|decision| matches!(decision, Decision::Grant { .. }));
        assert!(
            !decisions.is_empty() || is_granted_within(&mut bench, 2_000 * MS),
            "{policy:?}: it waits for ever"
        );
    }
}

#[test]
fn a_wait_taken_for_over_by_another_threads_launch_comes_back_when_it_is_told_again() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.launch(SERVICE, LAST);
    let wait = Event::Waits {
        client: TRAINING,
        kernel: 99,
        cost: 20 * US,
        since: bench.now,
    };
    bench.tell(wait.clone());
    // The late record of another thread's launch, which had received its credit before.
    bench.now += 10 * US;
    bench.launch(TRAINING, 99);
    bench.now += 200 * US;
    let decisions = bench.play(Event::Idle(SERVICE, bench.now));
    assert_eq!(decisions, [], "nobody waits, as far as is known");
    let decisions = bench.tell(wait);
    assert!(
        matches!(decisions[..], [Decision::Grant { client: TRAINING, .. }]),
        "{decisions:?}"
    );
}

#[test]
fn equals_take_turns() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.attach(OTHER, 5);
    bench.now += 100 * MS;
    bench.waits(TRAINING, 100 * US);
    bench.waits(OTHER, 100 * US);
    let mut served = [0u64; 2];
    for _ in 0..4_000 {
        bench.now += 100 * US;
        for (at, client) in [TRAINING, OTHER].into_iter().enumerate() {
            let view = bench.view(client);
            if view.left >= 100_000 {
                served[at] += 100 * US;
                bench.goes_on(client, served[at], 100 * US);
            }
        }
        bench.play(Event::Tick);
    }
    let (a, b) = (served[0] as f64, served[1] as f64);
    assert!((0.9..1.1).contains(&(a / b)), "{a} and {b}");
    assert!(a + b > 300e6, "the device was busy: {} ms of 400", (a + b) / 1e6);
}

#[test]
fn a_more_important_background_job_takes_the_credit_of_the_others() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    bench.attach(OTHER, 3);
    bench.now += 100 * MS;
    assert_eq!(bench.waits(TRAINING, 400 * US), [grant(TRAINING, 500 * US, true)]);
    assert_eq!(bench.waits(OTHER, 300 * US), [Decision::Revoke(TRAINING)]);
    bench.progress(TRAINING, 100 * US, 0);
    assert_eq!(
        bench.tell(Event::Revoked {
            client: TRAINING,
            left: 400_000
        }),
        [grant(OTHER, 400 * US, true)]
    );
    // No less important client comes in between.
    assert_eq!(bench.waits(TRAINING, 50 * US), []);
    assert_eq!(bench.progress(OTHER, 300 * US, 300 * US), []);
    bench.now += 201 * US;
    assert_eq!(
        bench.play(Event::Tick),
        [grant(TRAINING, 300 * US, true)],
        "it has gone silent with 100 us left"
    );
}

#[test]
fn strangers_and_nonsense_are_counted_and_do_no_harm() {
    let mut bench = Bench::pair(PolicyName::Fikit);
    assert_eq!(bench.tell(Event::Gone(Client(77))), []);
    assert_eq!(bench.waits(Client(77), 5), []);
    assert_eq!(bench.attach(SERVICE, 3), []);
    assert_eq!(bench.core.snapshot().counters.strangers, 3);

    bench.tell(Event::Launched {
        client: SERVICE,
        kernel: 0,
        cost: u64::MAX,
        at: u64::MAX,
    });
    assert_eq!(
        bench.view(SERVICE).busy_until,
        bench.now + 10_000 * MS,
        "the longest cost"
    );
    bench.progress(TRAINING, u64::MAX, u64::MAX);
    bench.tell(Event::Revoked {
        client: TRAINING,
        left: i64::MIN,
    });
    assert_eq!(bench.core.snapshot().counters.corrected, 4);
    // An idle report ends its launch-ahead.
    bench.waits(TRAINING, 50 * US);
    bench.now += MS;
    let at = bench.now;
    assert_eq!(bench.tell(Event::Idle(SERVICE, at)), []);
    bench.now += 200 * US;
    assert_eq!(
        bench.tell(Event::Tick),
        [],
        "it seems to have 10 s of credit that it does not use"
    );
    bench.now += 50 * MS;
    bench.play(Event::Tick);
    assert_eq!(
        bench.core.snapshot().exposure,
        50 * US,
        "credit that cannot be is forgotten"
    );
}

#[test]
fn the_snapshot_goes_out_as_json() {
    let bench = Bench::pair(PolicyName::Fikit);
    let snapshot = bench.core.snapshot();
    assert_eq!(snapshot.policy, "fikit");
    assert_eq!(
        snapshot
            .clients
            .iter()
            .map(|view| (view.client, view.mode))
            .collect::<Vec<_>>(),
        [(1, "foreground"), (2, "background")]
    );
}

#[test]
fn what_a_client_may_lose_is_told_or_as_configured() {
    let mut bench = Bench::new(PolicyName::Weft);
    bench.attach(SERVICE, 0);
    let mut told = |slowdown, slo| {
        let client = SERVICE;
        bench.tell(Event::Budget {
            client,
            slowdown,
            slo,
            at_least: None,
        });
        let view = bench.view(SERVICE);
        (view.slowdown_allowed, view.slo)
    };
    let usual = Config::default().slowdown;
    assert_eq!(told(None, None), (usual, None));
    assert_eq!(told(Some(0.0), Some(MS)), (0.0, Some(MS)));
    assert_eq!(told(Some(-3.0), None), (0.0, None), "no less than nothing");
    assert_eq!(told(Some(f64::INFINITY), None), (1.0, None));
    assert_eq!(told(Some(f64::NAN), None), (usual, None));
}
