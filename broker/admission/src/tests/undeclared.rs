// SPDX-License-Identifier: MIT OR Apache-2.0
//! Others may take the memory that undeclared jobs do not hold.

use super::*;

/// A job's settings and the bytes that it holds, by the test's own books.
#[derive(Debug, Clone, Copy)]
struct Held {
    bytes: u64,
    declared: bool,
    priority: u8,
    /// Its share at its beginning.
    began: u64,
}

/// With the memory that its jobs hold.
impl Device16<Held> {
    fn asks(&mut self, job: u64, peak: u64, priority: u8, declared: bool) {
        let ask = Ask {
            priority,
            ..ask(job, 1, peak, 600)
        };
        let held = Held {
            bytes: 0,
            declared,
            priority,
            began: peak + GB / 2,
        };
        self.jobs.insert(job, held);
        self.tell(Event::Asks(ask));
        self.serve();
    }

    /// Reports the memory that undeclared jobs hold, as the daemon does before it takes back.
    fn note(&mut self) {
        for (job, held) in self.jobs.clone() {
            if !held.declared && self.share(job).is_some() {
                self.tell(Event::Uses(Job(job), held.bytes + GB / 2));
            }
        }
    }

    fn give(&mut self, given: impl IntoIterator<Item = (Job, u64)>) {
        for (job, bytes) in given {
            self.tell(Event::GivesUp(job, bytes));
        }
    }

    /// Does once the work that the daemon does some times a second.
    fn serve(&mut self) {
        self.note();
        let given = self.machine.gives_up_for_waiters();
        self.give(given);
        self.tell(Event::Tick);
    }

    /// A job takes memory. Returns whether it got the memory.
    fn takes(&mut self, job: u64, bytes: u64) -> bool {
        let Some((share, held)) = self.share(job).zip(self.jobs.get(&job).copied()) else {
            return false;
        };
        let wanted = held.bytes + GB / 2 + bytes;
        if wanted > share {
            self.note();
            let given = self.machine.gives_up_for(Job(job), wanted - share);
            self.give(given);
            let out = self.tell(Event::Grows(Job(job), wanted - share));
            if !matches!(out.as_slice(), [Decision::Grant { .. }]) {
                return false;
            }
        }
        self.jobs.get_mut(&job).unwrap().bytes += bytes;
        true
    }

    fn frees(&mut self, job: u64) {
        self.jobs.get_mut(&job).unwrap().bytes = 0;
    }

    /// Bytes that no request of this priority can have: the promises to declared jobs, the bytes
    /// that undeclared ones hold or began with, and all grants to more important ones.
    fn claimed(&self, priority: u8, but: u64) -> u64 {
        let claims = self.jobs.iter().filter_map(|(job, held)| {
            let share = self.share(*job).filter(|_| *job != but)?;
            let gives = !held.declared && priority <= held.priority;
            Some(if gives {
                (held.bytes + GB / 2).max(held.began)
            } else {
                share
            })
        });
        claims.sum()
    }
}

#[test]
fn what_an_undeclared_job_gave_back_is_had_by_the_next_request() {
    let mut of = Device16::new();
    of.asks(1, GB / 4, 5, false);
    assert!(of.takes(1, 14 * GB));
    of.asks(2, GB / 4, 5, false);
    assert!(!of.takes(2, 4 * GB), "the first one holds it");
    of.frees(1);
    // All but the memory with which the first one began.
    of.note();
    assert_eq!(of.machine.obtainable(Job(2)), 16 * GB - 2 * (GB / 2 + GB / 4));
    assert!(of.takes(2, 14 * GB));
    assert!(!of.takes(1, 4 * GB), "it is the second one's now");
    of.frees(2);
    // One that declares its need begins next to both.
    of.asks(3, 13 * GB, 5, true);
    assert_eq!(of.share(3), Some(13 * GB + GB / 2));
}

#[test]
fn a_less_important_job_gets_what_was_not_held_for_five_seconds() {
    let mut of = Device16::new();
    of.asks(1, GB / 4, 0, false);
    of.asks(2, GB / 4, 5, false);
    assert!(of.takes(1, 12 * GB));
    of.serve();
    of.frees(1);
    of.serve();
    of.now += 5 * S - 1;
    assert!(!of.takes(2, 8 * GB), "the important job may want it again");
    // It does, for a moment.
    assert!(of.takes(1, 12 * GB));
    of.serve();
    of.frees(1);
    of.serve();
    of.now += 5 * S - 1;
    assert!(!of.takes(2, 8 * GB));
    let kept = of.machine.kept(of.now);
    of.now += 1;
    assert_eq!(kept - of.machine.kept(of.now), 12 * GB, "no event tells this");
    assert!(of.takes(2, 8 * GB));
    // The important one gets it back at once when the other one no longer holds it.
    of.frees(2);
    assert!(of.takes(1, 12 * GB));
}

#[test]
fn memory_that_was_freed_in_steps_is_had_without_a_further_report() {
    let mut of = Device16::new();
    of.asks(1, GB / 4, 0, false);
    assert!(of.takes(1, 12 * GB));
    of.serve();
    // An engine that falls asleep: most of its memory goes after the first step.
    for left in [11 * GB, 0] {
        of.jobs.get_mut(&1).unwrap().bytes = left;
        of.serve();
    }
    let before = of.machine.kept(of.now);
    for _ in 0..2 {
        of.now += 5 * S;
        of.tell(Event::Tick);
    }
    assert_eq!(before - of.machine.kept(of.now), 12 * GB);
}

#[test]
fn a_declared_job_keeps_what_it_does_not_hold() {
    let mut of = Device16::new();
    of.asks(1, 12 * GB, 9, true);
    of.now += 60 * S;
    of.asks(2, GB, 0, false);
    assert!(!of.takes(2, 4 * GB));
    assert_eq!(of.share(1), Some(12 * GB + GB / 2));
}

#[derive(Debug, Clone)]
enum Act {
    Ask {
        peak: u64,
        priority: u8,
        declared: bool,
    },
    Take(usize, u64),
    Free(usize),
    End(usize),
    /// Milliseconds.
    Pass(u64),
}

fn step() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (1..28u64, 4..7u8, any::<bool>()).prop_map(|(peak, priority, declared)| Act::Ask {
            peak: if declared { peak * GB / 2 } else { GB / 4 },
            priority,
            declared,
        }),
        4 => (any::<usize>(), 1..24u64).prop_map(|(at, halves)| Act::Take(at, halves * GB / 2)),
        2 => any::<usize>().prop_map(Act::Free),
        1 => any::<usize>().prop_map(Act::End),
        2 => (0..6000u64).prop_map(Act::Pass),
    ]
}

proptest! {
    // A case is a whole history.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Under any order of events the sum of claims never exceeds the device. No job loses memory
    /// that it holds, began with or declared. A denied job could not have had the memory. A new job
    /// that fits next to the held memory begins within a second.
    #[test]
    fn memory_that_is_free_is_had(steps in proptest::collection::vec(step(), 1..120)) {
        let mut of = Device16::new();
        let mut declared = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            let pick = |at: usize| {
                let all: Vec<u64> = of.jobs.keys().copied().collect();
                (!all.is_empty()).then(|| all[at % all.len()])
            };
            match step {
                Act::Ask { peak, priority, declared } => of.asks(number as u64, peak, priority, declared),
                Act::Take(at, bytes) => if let Some(job) = pick(at).filter(|job| of.share(*job).is_some()) {
                    let held = of.jobs[&job];
                    let bytes = match held.declared {
                        true => bytes.min(of.share(job).unwrap() - held.bytes - GB / 2),
                        false => bytes,
                    };
                    let claimed = of.claimed(held.priority, job);
                    let had = of.takes(job, bytes);
                    let wanted = held.bytes + GB / 2 + bytes;
                    prop_assert!(had || claimed + wanted > 16 * GB, "{wanted} were not had beside {claimed}");
                },
                Act::Free(at) => if let Some(job) = pick(at) { of.frees(job) },
                Act::End(at) => if let Some(job) = pick(at) {
                    of.jobs.remove(&job);
                    of.tell(Event::Ends(Job(job)));
                },
                Act::Pass(ms) => of.now += ms * S / 1000,
            }
            // A second, in which the daemon looks ten times.
            for _ in 0..10 {
                of.now += S / 10;
                of.serve();
            }
            check_fits(&of.machine, &AdmissionConfig::default())?;
            let shares: u64 = of.jobs.keys().filter_map(|job| of.share(*job)).sum();
            prop_assert!(shares <= 16 * GB, "{shares} are claimed");
            for (job, held) in &of.jobs {
                let Some(share) = of.share(*job) else { continue };
                prop_assert!(share >= (held.bytes + GB / 2).max(held.began), "{job} lost of what it holds");
                if held.declared {
                    prop_assert!(share >= declared.insert(*job, share).unwrap_or(0), "{job} lost what it declared");
                }
            }
            let waiting: Vec<u64> = of.jobs.keys().copied().filter(|job| of.machine.waits(Job(*job))).collect();
            if let [only] = waiting[..] {
                let held = of.jobs[&only];
                let claimed = of.claimed(held.priority, only);
                prop_assert!(claimed + held.began > 16 * GB, "{only} waits beside {claimed}");
            }
        }
    }
}
