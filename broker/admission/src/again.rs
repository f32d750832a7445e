//! Jobs that outgrew what they had said, got no memory for it, ended, and ask again for more: what they waited the first time counts.
//!
//! Who needs nearly a whole device ([`WHOLE`]) waits until nearly all who run there have ended. If he said too little and dies of it he has waited for nothing, and would wait for as long again. So when
//! he asks again he has waited for as long as he had then, and is due as soon after that as he would have been the first time. He goes before those who came after him; who holds a promise keeps it
//! and goes first. The time in which he ran is nobody's wait and does not count. Plain order ([`super::plain`]) has him at its end, as `fifo` would: what others are bound to is not moved by him.
//!
//! Smaller ones ask again as anybody does: they begin beside others before long, and where they keep their age, too, the largest jobs wait beyond their bound (tried in the lab's mixes).
//!
//! Nobody gains by that over having said at first what it takes. So that it stays so, a job keeps its age once, and only if it was told that there is no more memory within [`LAST`] of its end, is the same
//! user's, asks for more than it did, and asks within [`WITHIN`]. Whether two jobs are the same work is known to whoever drives the machine ([`super::Event::AsksAgain`]). No more than [`MOST`] are
//! remembered, and [`EACH`] of a user: who fills his own keeps out nobody else's.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::event::Ask;
use super::need::{Job, User};
use super::state::{Admission, Running};
use weft_protocol::Ns;

const SECOND: Ns = 1_000_000_000;

/// A person reads what happened, says another figure and starts it again: ten minutes.
const WITHIN: Ns = 600 * SECOND;

/// Who dies of having got no memory does so within a minute: a traceback, checkpoints that are being written, ranks that wait for one another.
const LAST: Ns = 60 * SECOND;

/// Jobs that are remembered, and of them those of one user.
const MOST: usize = 64;
const EACH: usize = 8;

/// Who needs no less than this part of the largest device that it may use keeps its age.
const WHOLE: (u64, u64) = (5, 6);

/// A job that ended so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Try {
    job: Job,
    user: User,
    /// Bytes that it had said, contexts left out.
    peak: u64,
    ended: Ns,
    /// From when it asked to when it was let in.
    waited: Ns,
    /// How much later its turn was than its coming ([`super::Config::handicap`]).
    behind: Ns,
    /// What was left until it was due as it was let in; `None`: that was not known.
    left: Option<Ns>,
}

/// What a job has of its first try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Before {
    /// How long it waited then.
    pub waited: Ns,
    /// When it is due at the latest, if that was known.
    pub due: Option<Ns>,
}

/// Those that are remembered, the latest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tries(VecDeque<Try>);

impl Tries {
    fn forget(&mut self, now: Ns) {
        self.0.retain(|it| now.saturating_sub(it.ended) <= WITHIN);
    }

    fn add(&mut self, new: Try) {
        self.forget(new.ended);
        let user = new.user;
        if self.0.iter().filter(|it| it.user == user).count() >= EACH
            && let Some(oldest) = self.0.iter().position(|it| it.user == user)
        {
            self.0.remove(oldest);
        }
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back(new);
    }
}

impl Admission {
    /// A job that ran was told that there is no more memory for it.
    pub(super) fn denied(&mut self, job: Job) {
        if let Some(running) = self.running.get_mut(&job) {
            running.denied = Some(self.now);
        }
    }

    /// A job that ran has ended: if that was for want of memory, it is remembered.
    pub(super) fn remembers(&mut self, running: &Running) {
        let died = running.denied.is_some_and(|at| self.now.saturating_sub(at) <= LAST);
        if !died || running.before.is_some() {
            return;
        }
        let patience = self.config.patience(running.ask.need.expected);
        let due = |began: Ns| running.came.saturating_add(patience).max(began);
        self.tries.add(Try {
            job: running.ask.job,
            user: running.ask.user,
            peak: running.ask.need.peak,
            ended: self.now,
            waited: running.since.saturating_sub(running.came),
            behind: running.turn.saturating_sub(running.came),
            left: self
                .plain
                .began(running.number)
                .map(|began| due(began).saturating_sub(running.since)),
        });
    }

    /// Whether this job, which has ended, is remembered: one that asks again in its place keeps its age.
    pub fn keeps_age(&self, job: Job) -> bool {
        let there = |it: &Try| it.job == job && self.now.saturating_sub(it.ended) <= WITHIN;
        self.tries.0.iter().any(there)
    }

    /// What a job that asks in the place of `first` has of it, and its turn. Nobody has it a second time.
    pub(super) fn takes_age(&mut self, ask: &Ask, first: Job) -> Option<(Before, Ns)> {
        self.tries.forget(self.now);
        let room = self.allowed(ask).map(|device| device.memory).max()?;
        if u128::from(ask.need.peak) * u128::from(WHOLE.1) < u128::from(room) * u128::from(WHOLE.0) {
            return None;
        }
        let same = |it: &Try| it.job == first && it.user == ask.user && it.peak < ask.need.peak;
        let at = self.tries.0.iter().position(same)?;
        let it = self.tries.0.remove(at)?;
        let before = Before {
            waited: it.waited,
            due: it.left.map(|left| self.now.saturating_add(left)),
        };
        let own = self.now.saturating_sub(it.waited).saturating_add(it.behind);
        let promised = self.waiting.iter().filter(|waiter| waiter.promise.is_some());
        let behind = promised.map(|waiter| waiter.turn).max();
        Some((before, own.max(behind.unwrap_or(0))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::super::event::{Decision, Event};
    use super::super::need::{Device, DeviceId, Need};
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn ask(job: u64, user: u32, peak: u64, seconds: u64) -> Ask {
        Ask {
            job: Job(job),
            user: User(user),
            priority: 5,
            need: Need::plain(peak * GB, seconds * SECOND),
            devices: Vec::new(),
        }
    }

    struct Bench {
        machine: Admission,
        now: Ns,
    }

    impl Bench {
        /// A device of 16 GB, and a large job (1, of user 7, said 10 GB for 300 s) that waited 1,000 s for its turn and runs. Another large one waits since 950 s.
        fn new() -> Bench {
            let mut bench = Bench {
                machine: Admission::new(Config {
                    longest_wait: 800 * SECOND,
                    ..Config::default()
                }),
                now: 0,
            };
            bench.tell(Event::Device(Device::new(DeviceId(0), 16 * GB)));
            assert_eq!(bench.tell(Event::Asks(ask(100, 1, 12, 1_000))), [100]);
            assert_eq!(bench.tell(Event::Asks(ask(1, 7, 10, 300))), [0; 0]);
            bench.now = 950 * SECOND;
            assert_eq!(bench.tell(Event::Asks(ask(2, 2, 12, 300))), [0; 0]);
            bench.now = 1_000 * SECOND;
            assert_eq!(bench.tell(Event::Ends(Job(100))), [1]);
            bench
        }

        /// Who is admitted by this.
        fn tell(&mut self, event: Event) -> Vec<u64> {
            let mut out = Vec::new();
            self.machine.handle(self.now, event, &mut out);
            let admitted = |decision: &Decision| match decision {
                Decision::Admit { job, .. } => Some(job.0),
                _ => None,
            };
            out.iter().filter_map(admitted).collect()
        }

        /// Job 1 wants more than there is and dies of it a moment later; who was let in then is over at once. Somebody small holds the device meanwhile, so that nobody large begins.
        fn dies(&mut self) {
            assert_eq!(self.tell(Event::Asks(ask(50, 3, 5, 100))), [50]);
            self.tell(Event::Grows(Job(1), 5 * GB));
            self.now += SECOND;
            assert_eq!(self.tell(Event::Ends(Job(1))), [0; 0]);
        }

        fn order(&self) -> Vec<u64> {
            self.machine.view().waiting.iter().map(|row| row.ask.job.0).collect()
        }
    }

    #[test]
    fn who_outgrew_itself_keeps_what_it_waited_once() {
        let mut bench = Bench::new();
        bench.dies();
        assert!(bench.machine.keeps_age(Job(1)));
        bench.tell(Event::AsksAgain(ask(3, 7, 15, 300), Job(1)));
        assert!(!bench.machine.keeps_age(Job(1)));
        let row = bench
            .machine
            .view()
            .waiting
            .into_iter()
            .find(|row| row.ask.job == Job(3));
        let row = row.expect("it waits");
        // It had waited for 1,000 s and was due: it is again.
        assert_eq!((row.came, row.before, row.due), (SECOND, 1_000 * SECOND, true));
        assert_eq!(bench.order(), [3, 2]);
        // A second time it is a newcomer.
        assert_eq!(bench.tell(Event::Ends(Job(50))), [3]);
        bench.tell(Event::Grows(Job(3), 5 * GB));
        bench.now += SECOND;
        assert_eq!(bench.tell(Event::Ends(Job(3))), [2]);
        assert!(!bench.machine.keeps_age(Job(3)));
    }

    #[test]
    fn who_holds_a_promise_goes_first() {
        let mut bench = Bench::new();
        bench.tell(Event::Asks(ask(50, 3, 5, 100)));
        // The other large one is due by now and is first.
        bench.now = 1_800 * SECOND;
        bench.tell(Event::Tick);
        let promised = |bench: &Bench| bench.machine.view().waiting[0].promise.is_some();
        assert_eq!((bench.order(), promised(&bench)), (vec![2], true));
        bench.tell(Event::Grows(Job(1), 5 * GB));
        bench.tell(Event::Ends(Job(1)));
        bench.tell(Event::AsksAgain(ask(3, 7, 15, 300), Job(1)));
        assert_eq!(bench.order(), [2, 3]);
    }

    #[test]
    fn nobody_else_has_it() {
        let after = |change: &dyn Fn(&mut Bench), again: Ask| {
            let mut bench = Bench::new();
            bench.dies();
            change(&mut bench);
            let job = again.job;
            bench.tell(Event::AsksAgain(again, Job(1)));
            let waiting = bench.machine.view().waiting;
            waiting.into_iter().find(|row| row.ask.job == job).map(|row| row.before)
        };
        let nothing: &dyn Fn(&mut Bench) = &|_| {};
        assert_eq!(after(nothing, ask(3, 7, 15, 300)), Some(1_000 * SECOND));
        // Another user; what needs no whole device; what was not let in before; one that comes late.
        assert_eq!(after(nothing, ask(3, 2, 15, 300)), Some(0));
        assert_eq!(after(nothing, ask(3, 7, 12, 300)), Some(0));
        let late: &dyn Fn(&mut Bench) = &|bench| bench.now += WITHIN + SECOND;
        assert_eq!(after(late, ask(3, 7, 15, 300)), Some(0));
        // Who was told long before its end that there is no more, or never, did not die of it.
        for told in [false, true] {
            let mut bench = Bench::new();
            if told {
                bench.tell(Event::Grows(Job(1), 7 * GB));
            }
            bench.now += LAST + SECOND;
            bench.tell(Event::Ends(Job(1)));
            assert!(!bench.machine.keeps_age(Job(1)), "told: {told}");
        }
        // Who waited for more and got none was told so; who gave up was not.
        for (event, kept) in [(Event::GrowsNoMore(Job(1)), false), (Event::GrowsInVain(Job(1)), true)] {
            let mut bench = Bench::new();
            bench.tell(Event::Asks(ask(50, 3, 5, 100)));
            bench.tell(Event::GrowsInTime(Job(1), 5 * GB));
            bench.tell(event);
            bench.tell(Event::Ends(Job(1)));
            assert_eq!(bench.machine.keeps_age(Job(1)), kept);
        }
    }

    #[test]
    fn memory_of_them_is_bounded_and_a_users_own() {
        let mut tries = Tries::default();
        let a_try = |job: u64, user: u32| Try {
            job: Job(job),
            user: User(user),
            peak: GB,
            ended: job,
            waited: 0,
            behind: 0,
            left: None,
        };
        tries.add(a_try(0, 1));
        for job in 1..1_000 {
            tries.add(a_try(job, 2));
        }
        assert_eq!(tries.0.len(), 1 + EACH);
        assert_eq!(tries.0.front().map(|it| it.user), Some(User(1)));
        for job in 1_000..2_000 {
            tries.add(a_try(job, job as u32));
        }
        assert_eq!(tries.0.len(), MOST);
        tries.forget(2_000 + WITHIN);
        assert_eq!(tries.0.len(), 0);
    }
}
