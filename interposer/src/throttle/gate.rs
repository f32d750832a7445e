//! The gate: where a background job's launches take their credit, and wait for it.
//!
//! * Launches of all threads and streams of the process leave in the order they arrived
//!   ([`Turn`](super::ticket_lock::Turn)).
//! * A launch goes when the credit covers it. Credit that is bound to the epoch page's launch
//!   epochs is void once a more important foreground job has launched since.
//! * Under a run-ahead window a launch that has credit waits only for the device: until little
//!   enough of the job's own work is left there, by the clock, or until the end of earlier work is
//!   seen and gives credit back. That takes no trip to the broker and is not told to it, unless it
//!   takes long.
//! * Every wait ends, whatever happens: at the broker's `longest_wait`; when the mode changes; when
//!   the broker's heartbeat stands still; when work of this process that is on the device makes no
//!   progress (a program may queue a kernel that spins until a later launch of its own is queued:
//!   XLA's tuner does, and would wait for ever).
//! * A collective, for which kernels on other devices wait, does not wait here ([`peers`]).
//! * A burst of launches by which the job times kernels (auto-tuning) is not split: a wait in its
//!   middle would be taken for the kernel's time.
//! * What goes through without credit is taken from the credit word all the same: the word is given
//!   = taken + revoked + left at any time.
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

/// A broker whose turns stand still for so long is stopped or gone. It counts a turn at least every
/// 100 ms while anybody waits.
const STANDSTILL: Ns = 300_000_000;

/// The longest nap at the gate: the marks on the device are asked so often at least. Waking costs
/// some 10 us, so 1 % of a core.
const LONGEST_NAP: Ns = 1_000_000;

/// The shortest: below that a nap takes as long as going to sleep and waking up.
const SHORTEST_NAP: Ns = 50_000;

/// A mark that is late is asked about after this part of its lateness.
const LATENESS: Ns = 4;

/// A thread's timers may fire so much late, unless told otherwise 50 us: as long as the naps here.
const TIMER_SLACK: u64 = 1_000;

/// Without an order of the broker's a wait ends here.
const DEFAULT_LONGEST_WAIT: Ns = 1_000_000_000;

/// No order makes a launch wait longer than this.
const UTMOST_WAIT: Ns = 30_000_000_000;

/// Without progress of its own work on the device for this part of the longest wait, and for this
/// time at least, a launch goes through. The broker's own rule for this is quicker and knows the
/// device; this one stands behind it.
const STUCK_PART: Ns = 8;
const STUCK_LEAST: Ns = 5_000_000;

/// How long a launch waits for the device under a run-ahead window before it tells the broker that
/// it waits: more than most kernels take.
const PACE: Ns = 500_000;

/// So often the device is asked meanwhile whether earlier work has ended: asking costs about 1 us.
const ASK: Ns = 2_000;

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// The credit covers it.
    Credit,
    /// No background job any more.
    Mode,
    /// The longest wait is over.
    Expired,
    /// Work on the device makes no progress.
    Stuck,
    /// It belongs to a burst that the job times.
    Unsplit,
    /// The broker stands still.
    Standstill,
}

impl Session {
    /// Takes a background job's launch through the gate if there is credit and nobody is before it.
    /// That costs one locked instruction, the one that takes the credit. A launch that finds the
    /// queue empty needs no place in it: what came before it (and returned before it began) has
    /// left the queue, and what comes at the same moment has no order to it.
    #[inline(always)]
    pub fn pass_at_once(&self, kernel: u64, cost: Ns, now: Ns) -> bool {
        self.turn.is_empty() && self.goes_on(kernel, cost, now) == MayLaunch::Now && self.take_credit(cost)
    }

    /// Lets a launch through that finds no credit, if kernels on other devices wait for it
    /// ([`peers`]). It goes past those who wait at the gate: they are other threads', to which it
    /// has no order.
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

    /// Whether the run-ahead window, if there is one, lets a launch go that takes so long, by the
    /// clock alone.
    #[inline]
    fn leaves(&self, takes: Ns, now: Ns) -> MayLaunch {
        match self.link.lane.orders.window() {
            None => MayLaunch::Now,
            Some(window) => window.may_launch(now, self.backlog(now), takes),
        }
    }

    /// The same by what the device has told as well, and by what the kernel may well take
    /// ([`Session::long`]). Kernels that take longer than they are charged would else pile up there
    /// while the clock says that they have ended: what lies behind a mark that is not reached has
    /// not begun. Nobody waits on this for long: whoever tells the broker that he waits goes by the
    /// clock.
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

    /// How long the device is at work on what this process has launched as a background job, as
    /// predicted.
    fn backlog(&self, now: Ns) -> Ns {
        self.free_at.load(Ordering::Relaxed).saturating_sub(now)
    }

    /// By what time a launch that waits for the broker goes. `came_under`: until when the run-ahead
    /// window was that it came under. By that one it would have to end whatever it may take; a word
    /// that was told since knows of it.
    pub(super) fn waits_by(&self, want: &Want, came_under: Option<Ns>) -> Ns {
        let until = self.link.lane.orders.window().map(|window| window.deadline);
        match until == came_under {
            true => self.long(want.kernel, want.cost),
            false => want.cost,
        }
    }

    /// Takes a background job's launch through the gate in its turn. Returns when it may go, and
    /// why.
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

    /// Takes credit if there is enough and it holds.
    #[inline]
    fn take_credit(&self, cost: Ns) -> bool {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        self.link.lane.orders.take(self.link.epoch_page, cost)
    }

    /// Takes credit that is not there.
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
            // It is reported as issued, so it is taken from the word like all else that is.
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
        // A broker that stood still once is not waited for again until it moves.
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
        // From here on the end of what is on the device matters: mark it.
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

    /// Waits for the device alone, as long as a run-ahead window holds and not for long. True with
    /// the credit taken.
    fn paced(&self, want: &Want, arrived: Ns) -> bool {
        let orders = &self.link.lane.orders;
        let cost = i64::try_from(want.cost).unwrap_or(i64::MAX);
        let mut marked = false;
        let mut asked: Ns = 0;
        loop {
            let now = clock::now();
            let mut leave = self.goes_on(want.kernel, want.cost, now);
            let clock = self.leaves(self.long(want.kernel, want.cost), now);
            // The clock would let it go, and the device was not asked lately.
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
            // A launch epoch that has moved ends the run-ahead window, as does the broker.
            let holds = orders.window().is_some() && orders.holds(self.link.epoch_page);
            if !holds || now.saturating_sub(arrived) >= PACE || self.in_a_hurry(now) {
                return false;
            }
            let wait = match leave {
                MayLaunch::Never => return false,
                MayLaunch::At(_) if late => ASK,
                MayLaunch::At(at) => at.saturating_sub(now),
                MayLaunch::Now => {
                    // The credit comes back with the end of what is out.
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

    /// A short pause: spun where there are cores for it.
    fn rest(&self, wait: Ns) {
        let spin = self.link.settings.spin;
        if wait <= spin.max(ASK) && spin > 0 {
            std::hint::spin_loop();
        } else {
            // Nobody wakes this sleep; the last of it is spun.
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
            // The bell first: a grant after this look changes it, and the nap does not begin.
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
                    // The broker waits for this very news.
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

    /// Until the next mark should be reached; a mark that is late is asked about ever more rarely.
    fn nap_length(&self, now: Ns) -> Ns {
        let length = match self.settle.expects(&self.streams) {
            Some(end) if end > now => end - now,
            Some(end) => (now - end) / LATENESS,
            None if self.streams.outstanding() > 0 => LONGEST_NAP / 2,
            None => LONGEST_NAP,
        };
        length.clamp(SHORTEST_NAP, LONGEST_NAP)
    }

    /// Sees what has ended on the device, and reports it. True if anything has.
    pub fn ask_device(&self, now: Ns) -> bool {
        let captures = self.captures.load(Ordering::Acquire) != 0;
        let gained = self.settle.poll(&self.driver, &self.streams, now, captures);
        self.report_settled(gained, now);
        gained > 0
    }

    /// Adds to what the broker knows to have ended.
    #[inline(always)]
    pub fn report_settled(&self, gained: Ns, now: Ns) {
        if gained > 0 {
            let lane = self.link.lane;
            lane.reports.settled.fetch_add(gained, Ordering::AcqRel);
            lane.orders.renew(&lane.reports, self.link.epoch_page);
            // No more is left there than was not seen to end.
            let left = now.saturating_add(self.streams.outstanding());
            if self.free_at.load(Ordering::Relaxed) > left {
                self.free_at.fetch_min(left, Ordering::Relaxed);
            }
        }
    }
}
