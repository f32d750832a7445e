//! The gate: a background job's launches take credit here and wait for it.
//!
//! * Launches of all threads and streams leave in order of arrival
//!   ([`TicketLock`](super::ticket_lock::TicketLock)).
//! * A launch goes when credit covers it. Credit bound to launch epochs is void after a more
//!   important foreground job has launched.
//! * Under a run-ahead window a launch with credit waits only until little of the job's work is
//!   left, by the clock or by completions. The client reports only long waits to the broker.
//! * Every wait ends: at the broker's `longest_wait`, on a change of mode, if the heartbeat stops,
//!   or if the process's work makes no progress. XLA's tuner queues kernels that spin until a later
//!   launch.
//! * A collective does not wait: kernels on other devices wait for it ([`peers`]).
//! * A tuning burst is not split: the job would count a wait in its middle as the kernel's time. A
//!   launch between two events with times goes with the first event.
//! * A launch without credit is also taken from the credit word: `given = taken + revoked + left`,
//!   always.
#![forbid(unsafe_code)]

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use rustix::thread::futex::{self, Flags};
use weft_gate::charge;
use weft_gate::run_ahead::{self, DEVICE_WAIT_NS, POLL_INTERVAL_NS};
use weft_gate::wait::{GateLook, GateWait, MIN_NAP_NS, WaitEnd, WaitingClient, longest_wait, nap_length};
use weft_protocol::Ns;
use weft_protocol::credit::MayLaunch;
use weft_protocol::lane::{Kind, Mode};

use super::peers;
use super::post_launch::Want;
use super::state::Session;
use crate::client::clock;
use crate::driver::stream::{Stream, own_stream};
use crate::{process, thread};

/// Timer slack for naps, ns. The default of 50 us is as long as the naps.
const TIMER_SLACK_NS: u64 = 1_000;

impl Session {
    /// Passes a launch if there is credit and the queue is empty, for one locked instruction (the
    /// credit). No ticket is needed: earlier launches have left the queue, and simultaneous ones
    /// have no order.
    #[inline(always)]
    pub fn pass_at_once(&self, kernel: u64, cost: Ns, now: Ns) -> bool {
        self.tickets.is_empty() && self.goes_on(kernel, cost, now) == MayLaunch::Now && self.take_credit(cost)
    }

    /// Passes a launch without credit if kernels on other devices wait for it ([`peers`]). It
    /// overtakes other threads' launches, which are unordered with respect to it.
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

    /// Passes a launch without credit between two events with times. The job had its credit when it
    /// recorded the first event. The launch overtakes others as in [`Session::pass_for_peers`].
    #[cold]
    #[inline(never)]
    pub fn pass_with_pair(&self, want: &Want, now: Ns) -> bool {
        let passes = self
            .tuning
            .goes_with_pair(own_stream(want.stream), want.kernel, want.cost, now);
        if passes {
            self.overdraw(want.cost);
            self.link.lane.counters.unsplit.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }

    /// Handles an event with a time before it is recorded. If it begins a pair, a background job
    /// waits here for the credit of the launch between the events, and leaves the credit in the
    /// word.
    pub(super) fn times(&self, stream: Stream) {
        let counters = &self.link.lane.counters;
        let launches = counters.launches.load(Ordering::Relaxed) + counters.graph_launches.load(Ordering::Relaxed);
        let own = own_stream(stream);
        if !self.tuning.begins_pair(own, launches)
            || self.mode() != Mode::Background
            || self.captures.load(Ordering::Acquire) != 0
            || process::is_copy()
        {
            return;
        }
        let unknown = self.link.lane.orders.unknown_cost.load(Ordering::Relaxed);
        let (kernel, cost) = self.tuning.expected(unknown);
        if peers::awaits(kernel) {
            return;
        }
        let want = Want {
            kernel,
            cost,
            stream,
            place: self.accounts.place(own),
        };
        if !self.pass_at_once(kernel, cost, clock::now()) {
            self.pass_in_turn(&want);
        }
        // Returns the credit: the launch takes it.
        self.link.lane.orders.overdraw(-charge::in_credit(cost));
        self.tuning.pair_began(clock::now());
    }

    /// Whether the run-ahead window, if any, admits a launch of `takes` ns, judged only by the
    /// clock.
    #[inline]
    fn leaves(&self, takes: Ns, now: Ns) -> MayLaunch {
        match self.link.lane.orders.window() {
            None => MayLaunch::Now,
            Some(window) => window.may_launch(now, self.backlog(now), takes),
        }
    }

    /// As `leaves`, but also judged by fences and the kernel's likely time ([`Session::long`]).
    /// Work behind a pending fence has not begun; otherwise kernels longer than their charge would
    /// pile up. The wait is short: a launch whose wait was reported to the broker is judged by the
    /// clock.
    #[inline]
    fn goes_on(&self, kernel: u64, cost: Ns, now: Ns) -> MayLaunch {
        match self.link.lane.orders.window() {
            None => MayLaunch::Now,
            Some(window) => {
                let backlog = self.backlog(now).max(self.accounts.behind());
                window.may_launch(now, backlog, self.long(kernel, cost))
            }
        }
    }

    /// Predicted device time left of this process's launches, ns.
    fn backlog(&self, now: Ns) -> Ns {
        self.free_at.load(Ordering::Relaxed).saturating_sub(now)
    }

    /// Duration to check against the window for a launch that waits for the broker, ns
    /// ([`run_ahead::takes_while_waiting`]). `came_under`: the window's deadline at arrival.
    pub(super) fn waits_by(&self, want: &Want, came_under: Option<Ns>) -> Ns {
        let window = self.link.lane.orders.window();
        run_ahead::takes_while_waiting(window, came_under, want.cost, || self.long(want.kernel, want.cost))
    }

    /// Passes a launch in its turn. Returns when it may go, with the reason.
    #[inline(never)]
    pub fn pass_in_turn(&self, want: &Want) -> WaitEnd {
        let _whole = thread::uncancelled();
        let ticket = self.tickets.take();
        let goes_on = |now| self.goes_on(want.kernel, want.cost, now) == MayLaunch::Now && self.take_credit(want.cost);
        let passed = if self.tickets.has_come(ticket) && goes_on(clock::now()) {
            WaitEnd::Credit
        } else {
            self.pass_waiting(ticket, want)
        };
        self.tickets.leave(ticket);
        passed
    }

    /// Takes `cost` ns of credit if it is there and valid.
    #[inline]
    fn take_credit(&self, cost: Ns) -> bool {
        self.link
            .lane
            .orders
            .take(self.link.epoch_page, charge::in_credit(cost))
    }

    /// Takes `cost` ns from the credit word without cover.
    fn overdraw(&self, cost: Ns) {
        self.link.lane.orders.overdraw(charge::in_credit(cost));
    }

    pub(super) fn longest_wait(&self) -> Ns {
        longest_wait(self.link.lane.orders.longest_wait.load(Ordering::Relaxed))
    }

    #[cold]
    fn pass_waiting(&self, ticket: u32, want: &Want) -> WaitEnd {
        let arrived = clock::now();
        let longest = self.longest_wait();
        let deadline = arrived.saturating_add(longest);
        let unsplit = || self.tuning.goes_on(arrived, self.accounts.outstanding());
        let passed = if self.tickets.has_come(ticket) && unsplit() {
            WaitEnd::Unsplit
        } else if self.tickets.wait(ticket, deadline) {
            self.wait_for_credit(want, arrived, longest)
        } else {
            WaitEnd::Expired
        };
        let counters = &self.link.lane.counters;
        if passed.is_overdraft() {
            self.overdraw(want.cost);
        }
        if passed == WaitEnd::Unsplit {
            counters.unsplit.fetch_add(1, Ordering::Relaxed);
        } else if passed.is_timeout() {
            counters.waits_expired.fetch_add(1, Ordering::Relaxed);
        }
        passed
    }

    /// Waits at the head of the queue.
    fn wait_for_credit(&self, want: &Want, arrived: Ns, longest: Ns) -> WaitEnd {
        if self.paced(want, arrived) {
            return WaitEnd::Credit;
        }
        let heartbeat = self.link.epoch_page.heartbeat.load(Ordering::Relaxed);
        // The launch does not wait for a broker that has stopped, until the heartbeat moves.
        if self.standstill.load(Ordering::Relaxed) == u64::from(heartbeat) + 1 {
            return WaitEnd::BrokerStopped;
        }
        let lane = self.link.lane;
        let reports = &lane.reports;
        reports.wanted_kernel.store(want.kernel, Ordering::Relaxed);
        reports.wanted_cost.store(want.cost, Ordering::Relaxed);
        reports.waiting_since.store(arrived, Ordering::Relaxed);
        self.link.write(Kind::Wait, arrived, want.kernel, want.cost, 0);
        reports.waiting.swap(1, Ordering::SeqCst);
        self.link.ring();
        // From here on completions matter to this launch.
        if self.captures.load(Ordering::Acquire) == 0 {
            self.completion
                .fence(&self.driver, &self.accounts, want.place, want.stream);
        }
        let slack = rustix::thread::current_timer_slack();
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
        let passed = self.sleep_for_credit(want, GateWait::new(arrived, longest, heartbeat));
        if let Ok(slack) = slack {
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(slack));
        }
        reports.waiting.store(0, Ordering::Release);
        let waited = clock::now().saturating_sub(arrived);
        lane.counters.waits.fetch_add(1, Ordering::Relaxed);
        lane.counters.waited.fetch_add(waited, Ordering::Relaxed);
        passed
    }

    /// Waits briefly, only for the device, while a run-ahead window holds. True: credit was taken.
    pub(super) fn paced(&self, want: &Want, arrived: Ns) -> bool {
        let orders = &self.link.lane.orders;
        let cost = charge::in_credit(want.cost);
        // These are times of the device: on a slower device kernels run longer by the same factor.
        let (longest, poll) = (self.link.slowed(DEVICE_WAIT_NS), self.poll_interval());
        let mut fenced = false;
        let mut asked: Ns = 0;
        loop {
            let now = clock::now();
            let mut leave = self.goes_on(want.kernel, want.cost, now);
            let clock = self.leaves(self.long(want.kernel, want.cost), now);
            // The clock admits the launch, and the device was not polled lately.
            let late = leave != clock;
            if late {
                let may_ask = self.captures.load(Ordering::Acquire) == 0 && self.completion.asks(&self.driver);
                if !may_ask {
                    leave = clock;
                } else if now.saturating_sub(asked) >= poll {
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
            if !holds || now.saturating_sub(arrived) >= longest || self.in_a_hurry(now) {
                return false;
            }
            if leave == MayLaunch::Now && orders.credit.load(Ordering::Acquire) >= cost {
                continue;
            }
            // Completions return credit, and end work that still runs according to the clock.
            let awaits_end = (leave == MayLaunch::Now || !late)
                && self.accounts.outstanding() != 0
                && self.captures.load(Ordering::Acquire) == 0;
            let Some(at) = run_ahead::next_look(now, leave, late, awaits_end) else {
                return false;
            };
            if awaits_end {
                if !std::mem::replace(&mut fenced, true) {
                    self.completion
                        .fence(&self.driver, &self.accounts, want.place, want.stream);
                }
                if now.saturating_sub(asked) >= poll {
                    asked = now;
                    if self.ask_device(now) {
                        continue;
                    }
                }
            }
            self.rest(at.saturating_sub(now));
        }
    }

    /// Time, ns, between two polls while a launch waits only for the device.
    fn poll_interval(&self) -> Ns {
        self.link.slowed(POLL_INTERVAL_NS).min(MIN_NAP_NS)
    }

    /// Pauses briefly; spins if the settings allow it.
    fn rest(&self, wait: Ns) {
        let spin = self.link.settings.spin;
        if wait <= spin.max(POLL_INTERVAL_NS) && spin > 0 {
            std::hint::spin_loop();
        } else {
            // No wake-up ends this sleep; its end is spun.
            thread::rest(std::time::Duration::from_nanos(
                wait.saturating_sub(spin).clamp(self.poll_interval(), MIN_NAP_NS),
            ));
        }
    }

    fn sleep_for_credit(&self, want: &Want, mut wait: GateWait) -> WaitEnd {
        let orders = &self.link.lane.orders;
        let mut waiter = GateWaiter {
            session: self,
            want,
            came_under: orders.window().map(|window| window.deadline),
            takes: want.cost,
        };
        loop {
            // First of all: a grant after this load changes the bell, and the nap does not begin.
            let bell = orders.bell.load(Ordering::Acquire);
            match wait.look(clock::now(), &mut waiter) {
                GateLook::Ends(passed) => {
                    if passed == WaitEnd::BrokerStopped {
                        self.standstill
                            .store(u64::from(wait.heartbeat()) + 1, Ordering::Relaxed);
                    }
                    return passed;
                }
                GateLook::Spin => std::hint::spin_loop(),
                GateLook::Nap(length) => {
                    // Woken, interrupted or timed out: look again.
                    let _ = futex::wait(&orders.bell, Flags::empty(), bell, Some(&clock::timespec(length)));
                }
            }
        }
    }

    /// Polls completions and reports them. True if there were any.
    pub fn ask_device(&self, now: Ns) -> bool {
        let captures = self.captures.load(Ordering::Acquire) != 0;
        let gained = self.completion.poll(&self.driver, &self.accounts, now, captures);
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
            let left = run_ahead::latest_end(now, self.accounts.outstanding());
            if self.free_at.load(Ordering::Relaxed) > left {
                self.free_at.fetch_min(left, Ordering::Relaxed);
            }
        }
    }
}

/// A thread with its launch at the head of the queue.
struct GateWaiter<'a> {
    session: &'a Session,
    want: &'a Want,
    /// Deadline of the run-ahead window at arrival, if there was one.
    came_under: Option<Ns>,
    /// Duration to check against the window, ns, of this look.
    takes: Ns,
}

impl WaitingClient for GateWaiter<'_> {
    fn take_credit(&mut self, now: Ns) -> bool {
        self.takes = self.session.waits_by(self.want, self.came_under);
        self.session.leaves(self.takes, now) == MayLaunch::Now && self.session.take_credit(self.want.cost)
    }

    fn is_background(&self) -> bool {
        Mode::from_word(self.session.link.lane.orders.mode.load(Ordering::Acquire)) == Some(Mode::Background)
    }

    fn is_hurried(&self, now: Ns) -> bool {
        self.session.in_a_hurry(now)
    }

    fn spin(&self) -> Ns {
        self.session.link.settings.spin
    }

    fn poll(&mut self, now: Ns) {
        if self.session.ask_device(now) {
            // The broker waits for this report.
            self.session.link.ring();
        }
    }

    fn progress(&self) -> Ns {
        self.session.completion.progress()
    }

    fn has_fences(&self) -> bool {
        self.session.completion.awaits()
    }

    fn heartbeat(&self) -> u32 {
        self.session.link.epoch_page.heartbeat.load(Ordering::Relaxed)
    }

    fn nap(&self, now: Ns) -> Ns {
        let Session {
            completion, accounts, ..
        } = self.session;
        let nap = nap_length(now, completion.expects(accounts), || accounts.outstanding() > 0);
        match self.session.leaves(self.takes, now) {
            MayLaunch::At(at) => nap.min(at.saturating_sub(now)),
            MayLaunch::Now | MayLaunch::Never => nap,
        }
    }
}
