// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory above a job's request is lent, up to its limit.

use super::*;

/// A context, bytes.
const CONTEXT_BYTES: u64 = GB / 2;
/// Memory of the device, bytes.
const DEVICE_BYTES: u64 = 16 * GB;

/// A job with a limit, by the test's own books.
#[derive(Debug, Clone, Copy)]
struct Bounded {
    request: u64,
    limit: u64,
    held: u64,
    movable: bool,
}

/// With a daemon that moves memory at once.
impl Device16<Bounded> {
    fn asks(&mut self, job: u64, request: u64, limit: u64, movable: bool) {
        let mut ask = ask(job, 1, request, 600);
        ask.need.limit = Some(limit);
        let held = 0;
        self.jobs.insert(
            job,
            Bounded {
                request,
                limit,
                held,
                movable,
            },
        );
        self.tell(Event::Asks(ask));
        self.serve();
    }

    fn takes(&mut self, job: u64, bytes: u64) -> bool {
        let Some(share) = self.share(job) else { return false };
        let lacks = (self.jobs[&job].held + CONTEXT_BYTES + bytes).saturating_sub(share);
        if lacks > 0 {
            self.note();
            self.give(self.machine.gives_up_for(Job(job), lacks));
            let out = self.tell(Event::Grows(Job(job), lacks));
            if !matches!(out.as_slice(), [Decision::Grant { .. }]) {
                return false;
            }
        }
        self.jobs.get_mut(&job).unwrap().held += bytes;
        true
    }

    fn note(&mut self) {
        for (job, of) in self.jobs.clone() {
            if self.share(job).is_some() {
                self.tell(Event::Uses(Job(job), of.held + CONTEXT_BYTES));
            }
        }
    }

    fn give(&mut self, given: impl IntoIterator<Item = (Job, u64)>) {
        for (job, bytes) in given {
            self.tell(Event::GivesUp(job, bytes));
        }
    }

    /// Does once the work of the daemon: it takes what is not held, and moves what is lent if a
    /// waiter can begin with both.
    fn serve(&mut self) {
        self.note();
        self.give(self.machine.gives_up_for_waiters());
        self.tell(Event::Tick);
        let view = self.machine.view();
        let Some(waiter) = view.waiting.first() else { return };
        let (need, on) = ((waiter.ask.priority, RoomNeed::Request, self.now), DeviceId(0));
        let unheld = self.machine.all_unheld(on, waiter.ask.job, waiter.ask.priority);
        let unheld: BTreeMap<Job, u64> = unheld.collect();
        let lent = |job: Job| {
            let kept = unheld.get(&job).copied().unwrap_or(0);
            self.machine.yields(job, need).saturating_sub(kept)
        };
        let movable = self.jobs.iter().filter(|(_, of)| of.movable).map(|(job, _)| *job);
        let lenders: Vec<(u64, u64)> = movable
            .map(|job| (job, lent(Job(job))))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        let lacks = waiter.needs.saturating_sub(waiter.free + unheld.values().sum::<u64>());
        if lacks > 0 && lenders.iter().map(|(_, bytes)| bytes).sum::<u64>() >= lacks {
            for (job, bytes) in lenders {
                // All of it is on the host.
                self.jobs.get_mut(&job).unwrap().held = 0;
                self.tell(Event::Gives(Job(job), bytes));
            }
        }
    }
}

#[test]
fn a_request_begins_next_to_requests_and_a_limit_holds() {
    let mut of = Device16::new();
    of.asks(1, 4 * GB, 12 * GB, true);
    assert!(of.takes(1, 11 * GB));
    assert!(!of.takes(1, 2 * GB), "12 GB are the limit, though 4 are free");
    assert!(of.takes(1, GB));
    assert_eq!(of.machine.growth_capped(Job(1), 1), Some(CapLack::Limit(12 * GB)));
    // It is of the same priority.
    of.asks(2, 8 * GB, 8 * GB, true);
    assert_eq!(of.share(2), Some(8 * GB + CONTEXT_BYTES));
    assert_eq!(of.share(1), Some(4 * GB + CONTEXT_BYTES), "its request is kept");
    // Both requests and a third one exceed the device.
    of.asks(3, 3 * GB, 8 * GB, true);
    assert!(of.machine.waits(Job(3)) && of.machine.lent(Job(1)) == 0);
}

#[test]
fn memory_that_does_not_move_is_kept_while_it_is_held() {
    let mut of = Device16::new();
    of.asks(1, 4 * GB, 12 * GB, false);
    assert!(of.takes(1, 12 * GB));
    of.asks(2, 8 * GB, 8 * GB, true);
    assert!(of.machine.waits(Job(2)));
    of.jobs.get_mut(&1).unwrap().held = 5 * GB;
    of.serve();
    assert!(of.share(2).is_some());
    assert_eq!(
        of.machine.yields(Job(1), (4, RoomNeed::Growth, of.now)),
        of.share(1).unwrap(),
        "all is a more important job's"
    );
    assert_eq!(
        of.machine.yields(Job(1), (5, RoomNeed::Growth, of.now)),
        0,
        "growth does not move others"
    );
}

#[test]
fn an_overdue_job_moves_an_equal_that_began_ten_minutes_ago() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(1, 1, 8 * GB, 600)), [1]);
    let overdue = |bench: &Bench, priority| bench.machine.yields(Job(1), (priority, RoomNeed::Overdue, bench.now));
    assert_eq!(overdue(&bench, 5), 0);
    bench.now += 600 * S;
    assert_eq!(overdue(&bench, 5), 8 * GB + CONTEXT_BYTES);
    assert_eq!(overdue(&bench, 6), 0, "it is more important");
}

#[derive(Debug, Clone)]
enum Act {
    Ask { request: u64, more: u64, movable: bool },
    Take(usize, u64),
    Free(usize),
    End(usize),
}

fn step() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (1..24u64, 0..16u64, any::<bool>()).prop_map(|(request, more, movable)| Act::Ask {
            request: request * GB / 2,
            more: more * GB / 2,
            movable,
        }),
        4 => (any::<usize>(), 1..24u64).prop_map(|(at, halves)| Act::Take(at, halves * GB / 2)),
        1 => any::<usize>().prop_map(Act::Free),
        1 => any::<usize>().prop_map(Act::End),
    ]
}

proptest! {
    // A case is a whole history.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Under any order of events the requests of admitted jobs fit the device, each job has at
    /// least its request and at most its limit, and a request begins within a second if it fits
    /// next to the other requests and the memory that does not move.
    #[test]
    fn requests_are_kept_and_what_is_above_is_lent(steps in proptest::collection::vec(step(), 1..120)) {
        let mut of = Device16::new();
        for (number, step) in steps.into_iter().enumerate() {
            let pick = |at: usize| {
                let all: Vec<u64> = of.jobs.keys().copied().collect();
                (!all.is_empty()).then(|| all[at % all.len()])
            };
            match step {
                Act::Ask { request, more, movable } => of.asks(number as u64, request, request + more, movable),
                Act::Take(at, bytes) => if let Some(job) = pick(at) { of.takes(job, bytes); },
                Act::Free(at) => if let Some(job) = pick(at) { of.jobs.get_mut(&job).unwrap().held = 0 },
                Act::End(at) => if let Some(job) = pick(at) {
                    of.jobs.remove(&job);
                    of.tell(Event::Ends(Job(job)));
                },
            }
            // A second, in which the daemon looks four times.
            for _ in 0..4 {
                of.now += S / 4;
                of.serve();
            }
            check_fits(&of.machine, &AdmissionConfig::default())?;
            let (mut requests, mut fixed) = (0, 0);
            for (job, it) in &of.jobs {
                let Some(share) = of.share(*job) else { continue };
                prop_assert!(share >= it.request.max(it.held) + CONTEXT_BYTES, "{job} lost of its request");
                prop_assert!(share <= it.limit + CONTEXT_BYTES, "{job} exceeds its limit");
                requests += it.request + CONTEXT_BYTES;
                fixed += CONTEXT_BYTES + if it.movable { it.request } else { it.request.max(it.held) };
            }
            prop_assert!(requests <= DEVICE_BYTES, "requests of {requests} were admitted");
            let waiting: Vec<u64> = of.jobs.keys().copied().filter(|job| of.machine.waits(Job(*job))).collect();
            if let [only] = waiting[..] {
                prop_assert!(fixed + of.jobs[&only].request + CONTEXT_BYTES > DEVICE_BYTES, "{only} waits next to {fixed}");
            }
        }
    }
}
