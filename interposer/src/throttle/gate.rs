//! The gate: where a background job's launches take credit and wait for it.
//!
//! * Launches of all threads and streams leave in order of arrival
//!   ([`Turn`](super::ticket_lock::Turn)).
//! * A launch goes when credit covers it. Credit bound to launch epochs is void once a more
//!   important foreground job has launched.
//! * Under a run-ahead window a launch with credit waits only until little of the job's work is
//!   left, by the clock or by completions. The broker learns only of long waits.
//! * Every wait ends: at the broker's `longest_wait`, on a change of mode, on a standing heartbeat,
//!   or when the process's work makes no progress. XLA's tuner queues kernels that spin until a
//!   later launch.
//! * A collective does not wait: kernels on other devices wait for it ([`peers`]).
//! * A tuning burst is not split: a wait in its middle would be taken for the kernel's time.
//! * A launch without credit is taken from the credit word too: `given = taken + revoked + left`,
//!   always.
#![forbid(unsafe_code)]

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use rustix::thread::futex::{self, Flags};
use weft_protocol::Ns;
use weft_protocol::credit::MayLaunch;
use weft_protocol::lane::{Kind, Mode};

use super::peers;
use super::post_launch::Want;
use super::state::Session;
use crate::client::clock;
use crate::thread;

/// Heartbeat's age, ns, at which the broker counts as stopped. It beats every 100 ms while a launch
/// waits.
const STANDSTILL: Ns = 300_000_000;

/// Longest nap, ns, and so between polls of the fences. Waking costs some 10 us: 1 % of a core.
const LONGEST_NAP: Ns = 1_000_000;

/// Shortest nap, ns: sleeping and waking take as long.
const SHORTEST_NAP: Ns = 50_000;

/// A late fence is polled again after this part of its lateness.
const LATENESS: Ns = 4;

/// Timer slack for naps, ns. The default of 50 us is as long as the naps.
const TIMER_SLACK: u64 = 1_000;

/// Longest wait, ns, without an order.
const DEFAULT_LONGEST_WAIT: Ns = 1_000_000_000;

/// Upper bound of the ordered longest wait, ns.
const UTMOST_WAIT: Ns = 30_000_000_000;

/// Without progress a launch goes through after `max(longest_wait / STUCK_PART, STUCK_LEAST)` ns.
/// The broker's rule is quicker and knows the device; this is the fallback.
const STUCK_PART: Ns = 8;
const STUCK_LEAST: Ns = 5_000_000;

/// Wait under a run-ahead window, ns, until the broker is told: more than most kernels take.
const PACE: Ns = 500_000;

/// Poll interval meanwhile, ns; a poll costs about 1 us.
const ASK: Ns = 2_000;

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// Credit covers the launch.
    Credit,
    /// The job is not a background job now.
    Mode,
    /// The longest wait is over.
    Expired,
    /// Work on the device makes no progress.
    Stuck,
    /// The launch belongs to a tuning burst.
    Unsplit,
    /// The broker stands still.
    Standstill,
}

impl Session {
    /// Passes a launch if there is credit and the queue is empty, for one locked instruction (the
    /// credit). No ticket is needed: earlier launches have left the queue, and simultaneous ones
    /// have no order.
    #[inline(always)]
    pub fn pass_at_once(&self, kernel: u64, cost: Ns, now: Ns) -> bool {
        self.turn.is_empty() && self.goes_on(kernel, cost, now) == MayLaunch::Now && self.take_credit(cost)
    }

    /// Passes a launch without credit if kernels on other devices wait for it ([`peers`]). It
    /// overtakes other threads' launches, to which it has no order.
    #[cold]
    #[inline(never)]
    pub fn pass_for_peers(&self, want: &Want) -> bool {
        let passes = peers::awaits(want.kernel);
        if passes {
            self.overdraw(want.cost);
            self.link.lane.counters.unsplit.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }

    /// Whether the run-ahead window, if any, lets a launch of `takes` ns go, by the clock alone.
    #[inline]
    fn leaves(&self, takes: Ns, now: Ns) -> MayLaunch {
        match self.link.lane.orders.window() {
            None => MayLaunch::Now,
            Some(window) => window.may_launch(now, self.backlog(now), takes),
        }
    }

    /// As `leaves`, also by fences and the kernel's likely time ([`Session::long`]). Work behind a
    /// pending fence has not begun; else kernels longer than their charge would pile up. The wait
    /// is short: a launch that has told the broker goes by the clock.
    #[inline]
    fn goes_on(&self, kernel: u64, cost: Ns, now: Ns) -> MayLaunch {
        match self.link.lane.orders.window() {
            None => MayLaunch::Now,
            Some(window) => {
                let backlog = self.backlog(now).max(self.streams.behind());
                window.may_launch(now, backlog, self.long(kernel, cost))
            }
        }
    }

    /// Predicted device time left of this process's launches, ns.
    fn backlog(&self, now: Ns) -> Ns {
        self.free_at.load(Ordering::Relaxed).saturating_sub(now)
    }

    /// Duration to check against the window for a launch that waits for the broker, ns.
    /// `came_under`: the window's deadline at arrival, which needs the kernel's long estimate. A
    /// window issued since accounts for that, so the charged cost is enough.
    pub(super) fn waits_by(&self, want: &Want, came_under: Option<Ns>) -> Ns {
        let until = self.link.lane.orders.window().map(|window| window.deadline);
        match until == came_under {
            true => self.long(want.kernel, want.cost),
            false => want.cost,
        }
    }

    /// Passes a launch in its turn. Returns when it may go, with the reason.
    #[inline(never)]
    pub fn pass_in_turn(&self, want: &Want) -> Passed {
        let _whole = thread::uncancelled();
        let ticket = self.turn.take();
        let goes_on = |now| self.goes_on(want.kernel, want.cost, now) == MayLaunch::Now && self.take_credit(want.cost);
        let passed = if self.turn.come(ticket) && goes_on(clock::now()) {
            Passed::Credit
        } else {
            self.pass_waiting(ticket, want)
        };
        self.turn.leave(ticket);
        passed
    }

    /// Takes `cost` ns of credit if it is there and valid.
    #[inline]
    fn take_credit(&self, cost: Ns) -> bool {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        self.link.lane.orders.take(self.link.epoch_page, cost)
    }

    /// Takes `cost` ns from the credit word without cover.
    fn overdraw(&self, cost: Ns) {
        self.link.lane.orders.overdraw(i64::try_from(cost).unwrap_or(i64::MAX));
    }

    pub(super) fn longest_wait(&self) -> Ns {
        match self.link.lane.orders.longest_wait.load(Ordering::Relaxed) {
            0 => DEFAULT_LONGEST_WAIT,
            wait => wait.min(UTMOST_WAIT),
        }
    }

    #[cold]
    fn pass_waiting(&self, ticket: u32, want: &Want) -> Passed {
        let arrived = clock::now();
        let longest = self.longest_wait();
        let deadline = arrived.saturating_add(longest);
        let unsplit = || self.tuning.goes_on(arrived, self.streams.outstanding());
        let passed = if self.turn.come(ticket) && unsplit() {
            Passed::Unsplit
        } else if self.turn.wait(ticket, deadline) {
            self.wait_for_credit(want, arrived, deadline, longest)
        } else {
            Passed::Expired
        };
        let counters = &self.link.lane.counters;
        match passed {
            Passed::Credit => {}
            // Reported as issued, so taken from the word too.
            Passed::Mode => self.overdraw(want.cost),
            Passed::Unsplit => {
                self.overdraw(want.cost);
                counters.unsplit.fetch_add(1, Ordering::Relaxed);
            }
            Passed::Expired | Passed::Stuck | Passed::Standstill => {
                self.overdraw(want.cost);
                counters.waits_expired.fetch_add(1, Ordering::Relaxed);
            }
        }
        passed
    }

    /// Waits at the head of the queue.
    fn wait_for_credit(&self, want: &Want, arrived: Ns, deadline: Ns, longest: Ns) -> Passed {
        if self.paced(want, arrived) {
            return Passed::Credit;
        }
        let heartbeat = self.link.epoch_page.heartbeat.load(Ordering::Relaxed);
        // A broker that stood still is not awaited until it moves.
        if self.standstill.load(Ordering::Relaxed) == u64::from(heartbeat) + 1 {
            return Passed::Standstill;
        }
        let lane = self.link.lane;
        let reports = &lane.reports;
        reports.wanted_kernel.store(want.kernel, Ordering::Relaxed);
        reports.wanted_cost.store(want.cost, Ordering::Relaxed);
        reports.waiting_since.store(arrived, Ordering::Relaxed);
        self.link.write(Kind::Wait, arrived, want.kernel, want.cost, 0);
        reports.waiting.swap(1, Ordering::SeqCst);
        self.link.ring();
        // From here on completions matter.
        if self.captures.load(Ordering::Acquire) == 0 {
            self.settle.mark(&self.driver, &self.streams, want.place, want.stream);
        }
        let slack = rustix::thread::current_timer_slack();
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK));
        let passed = self.sleep_for_credit(want, arrived, deadline, longest, heartbeat);
        if let Ok(slack) = slack {
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(slack));
        }
        reports.waiting.store(0, Ordering::Release);
        let waited = clock::now().saturating_sub(arrived);
        lane.counters.waits.fetch_add(1, Ordering::Relaxed);
        lane.counters.waited.fetch_add(waited, Ordering::Relaxed);
        passed
    }

    /// Waits shortly for the device alone, while a run-ahead window holds. True: credit was taken.
    fn paced(&self, want: &Want, arrived: Ns) -> bool {
        let orders = &self.link.lane.orders;
        let cost = i64::try_from(want.cost).unwrap_or(i64::MAX);
        let mut marked = false;
        let mut asked: Ns = 0;
        loop {
            let now = clock::now();
            let mut leave = self.goes_on(want.kernel, want.cost, now);
            let clock = self.leaves(self.long(want.kernel, want.cost), now);
            // The clock lets it go, and the device was not polled lately.
            let late = leave != clock;
            if late {
                let may_ask = self.captures.load(Ordering::Acquire) == 0 && self.settle.asks(&self.driver);
                if !may_ask {
                    leave = clock;
                } else if now.saturating_sub(asked) >= ASK {
                    asked = now;
                    self.ask_device(now);
                    continue;
                }
            }
            if leave == MayLaunch::Now && self.take_credit(want.cost) {
                return true;
            }
            // A changed launch epoch ends the window, as does the broker.
            let holds = orders.window().is_some() && orders.holds(self.link.epoch_page);
            if !holds || now.saturating_sub(arrived) >= PACE || self.in_a_hurry(now) {
                return false;
            }
            let wait = match leave {
                MayLaunch::Never => return false,
                MayLaunch::At(_) if late => ASK,
                MayLaunch::At(at) => at.saturating_sub(now),
                MayLaunch::Now => {
                    // Completions give the credit back.
                    if orders.credit.load(Ordering::Acquire) >= cost {
                        continue;
                    }
                    if self.streams.outstanding() == 0 || self.captures.load(Ordering::Acquire) != 0 {
                        return false;
                    }
                    if !std::mem::replace(&mut marked, true) {
                        self.settle.mark(&self.driver, &self.streams, want.place, want.stream);
                    }
                    if now.saturating_sub(asked) >= ASK {
                        asked = now;
                        self.ask_device(now);
                    }
                    ASK
                }
            };
            self.rest(wait);
        }
    }

    /// Pauses shortly; spins where the settings allow it.
    fn rest(&self, wait: Ns) {
        let spin = self.link.settings.spin;
        if wait <= spin.max(ASK) && spin > 0 {
            std::hint::spin_loop();
        } else {
            // Nothing wakes this sleep; its end is spun.
            thread::rest(std::time::Duration::from_nanos(
                wait.saturating_sub(spin).clamp(ASK, SHORTEST_NAP),
            ));
        }
    }

    fn sleep_for_credit(&self, want: &Want, arrived: Ns, deadline: Ns, longest: Ns, heartbeat: u32) -> Passed {
        let orders = &self.link.lane.orders;
        let stuck_after = (longest / STUCK_PART).max(STUCK_LEAST);
        let mut asked = arrived;
        let came_under = orders.window().map(|window| window.deadline);
        loop {
            // First: a grant after this look changes the bell, and the nap does not begin.
            let bell = orders.bell.load(Ordering::Acquire);
            let now = clock::now();
            let takes = self.waits_by(want, came_under);
            if self.leaves(takes, now) == MayLaunch::Now && self.take_credit(want.cost) {
                return Passed::Credit;
            }
            if Mode::from_word(orders.mode.load(Ordering::Acquire)) != Some(Mode::Background) {
                return Passed::Mode;
            }
            if now >= deadline || self.in_a_hurry(now) {
                return Passed::Expired;
            }
            if now.saturating_sub(arrived) < self.link.settings.spin {
                std::hint::spin_loop();
                continue;
            }
            if now.saturating_sub(asked) >= SHORTEST_NAP {
                asked = now;
                if self.ask_device(now) {
                    // The broker waits for this report.
                    self.link.ring();
                }
                let progress = self.settle.progress().max(arrived.saturating_sub(stuck_after));
                if now.saturating_sub(progress) > stuck_after && self.settle.awaits() {
                    return Passed::Stuck;
                }
            }
            if now.saturating_sub(arrived) > STANDSTILL
                && self.link.epoch_page.heartbeat.load(Ordering::Relaxed) == heartbeat
            {
                self.standstill.store(u64::from(heartbeat) + 1, Ordering::Relaxed);
                return Passed::Standstill;
            }
            let length = match self.leaves(takes, now) {
                MayLaunch::At(at) => self.nap_length(now).min(at.saturating_sub(now)),
                MayLaunch::Now | MayLaunch::Never => self.nap_length(now),
            };
            let length = length.min(deadline.saturating_sub(now));
            // Woken, interrupted or timed out: look again.
            let _ = futex::wait(&orders.bell, Flags::empty(), bell, Some(&clock::timespec(length)));
        }
    }

    /// Time until the next fence is due, ns; late fences are polled ever more rarely.
    fn nap_length(&self, now: Ns) -> Ns {
        let length = match self.settle.expects(&self.streams) {
            Some(end) if end > now => end - now,
            Some(end) => (now - end) / LATENESS,
            None if self.streams.outstanding() > 0 => LONGEST_NAP / 2,
            None => LONGEST_NAP,
        };
        length.clamp(SHORTEST_NAP, LONGEST_NAP)
    }

    /// Polls completions and reports them. True if there were any.
    pub fn ask_device(&self, now: Ns) -> bool {
        let captures = self.captures.load(Ordering::Acquire) != 0;
        let gained = self.settle.poll(&self.driver, &self.streams, now, captures);
        self.report_settled(gained, now);
        gained > 0
    }

    /// Reports `gained` ns of completed work.
    #[inline(always)]
    pub fn report_settled(&self, gained: Ns, now: Ns) {
        if gained > 0 {
            let lane = self.link.lane;
            lane.reports.completed.fetch_add(gained, Ordering::AcqRel);
            lane.orders.replenish(&lane.reports, self.link.epoch_page);
            // The device has at most the outstanding work.
            let left = now.saturating_add(self.streams.outstanding());
            if self.free_at.load(Ordering::Relaxed) > left {
                self.free_at.fetch_min(left, Ordering::Relaxed);
            }
        }
    }
}
