// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate: a background job's launches take credit here and wait for it.
//!
//! * Launches of all threads and streams leave in order of arrival
//!   ([`TicketLock`]).
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
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::futex::{self, Flags};
use weft_gate::charge;
use weft_gate::run_ahead::{self, POLL_INTERVAL_NS, POLLS};
use weft_gate::wait::{GateLook, GateWait, MIN_NAP_NS, WaitEnd, WaitingClient, nap_length};
use weft_protocol::Ns;
use weft_protocol::credit::MayLaunch;
use weft_protocol::lane::{Kind, Mode};

use super::autotune::Tuning;
use super::peers;
use super::post_launch::Want;
use super::session::Session;
use super::ticket_lock::TicketLock;
use crate::client::clock;
use crate::driver::stream::{Stream, own_stream};
use crate::{process, thread};

/// Timer slack for naps, ns. The default of 50 us is as long as the naps.
const TIMER_SLACK_NS: u64 = 1_000;

/// The gate of one process on a device.
#[derive(Debug)]
pub struct LaunchGate {
    /// Order of the waiting launches.
    tickets: TicketLock,
    /// Tuning bursts of the job.
    tuning: Tuning,
    /// Heartbeat at which the broker stopped, plus 1; 0: it did not stop.
    standstill: AtomicU64,
    /// Time, ns, from which the gate is open, because a thread waits for deferred launches.
    hurry: AtomicU64,
}

impl Default for LaunchGate {
    fn default() -> LaunchGate {
        LaunchGate {
            tickets: TicketLock::default(),
            tuning: Tuning::default(),
            standstill: AtomicU64::new(0),
            hurry: AtomicU64::new(Ns::MAX),
        }
    }
}

impl LaunchGate {
    /// Passes a launch if there is credit and the queue is empty, for one locked instruction (the
    /// credit). No ticket is needed: earlier launches have left the queue, and simultaneous ones
    /// have no order.
    #[inline(always)]
    pub fn pass_at_once(&self, session: &Session, kernel: u64, cost: Ns, now: Ns) -> bool {
        self.tickets.is_empty()
            && goes_on(session, kernel, cost, now) == MayLaunch::Now
            && session.link.take_credit(cost)
    }

    /// Passes a launch without credit if kernels on other devices wait for it ([`peers`]). It
    /// overtakes other threads' launches, which are unordered with respect to it.
    #[cold]
    #[inline(never)]
    pub fn pass_for_peers(&self, session: &Session, want: &Want) -> bool {
        let passes = peers::awaits(want.kernel);
        if passes {
            session.link.overdraw(want.cost);
            session.link.lane.counters.unsplit.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }

    /// Passes a launch without credit between two events with times. The job had its credit when it
    /// recorded the first event. The launch overtakes others as in [`LaunchGate::pass_for_peers`].
    #[cold]
    #[inline(never)]
    pub fn pass_with_pair(&self, session: &Session, want: &Want, now: Ns) -> bool {
        let passes = self
            .tuning
            .goes_with_pair(own_stream(want.stream), want.kernel, want.cost, now);
        if passes {
            session.link.overdraw(want.cost);
            session.link.lane.counters.unsplit.fetch_add(1, Ordering::Relaxed);
        }
        passes
    }

    /// Handles an event with a time before it is recorded. If it begins a pair, a background job
    /// waits here for the credit of the launch between the events, and leaves the credit in the
    /// word.
    pub(super) fn times(&self, session: &Session, stream: Stream) {
        let counters = &session.link.lane.counters;
        let launches = counters.launches.load(Ordering::Relaxed) + counters.graph_launches.load(Ordering::Relaxed);
        let own = own_stream(stream);
        if !self.tuning.begins_pair(own, launches)
            || session.link.mode() != Mode::Background
            || session.completion.is_capturing()
            || process::is_copy()
        {
            return;
        }
        let unknown = session.link.unknown_cost();
        let (kernel, cost) = self.tuning.expected(unknown);
        if peers::awaits(kernel) {
            return;
        }
        let want = Want {
            kernel,
            cost,
            stream,
            place: session.completion.account(own),
        };
        if !self.pass_at_once(session, kernel, cost, clock::now()) {
            self.pass_in_turn(session, &want);
        }
        // Returns the credit: the launch takes it.
        session.link.lane.orders.overdraw(-charge::in_credit(cost));
        self.tuning.pair_began(clock::now());
    }

    /// Passes a launch in its turn. Returns when it may go, with the reason.
    #[inline(never)]
    pub fn pass_in_turn(&self, session: &Session, want: &Want) -> WaitEnd {
        let _whole = thread::uncancelled();
        let ticket = self.tickets.take();
        let goes = |now| {
            goes_on(session, want.kernel, want.cost, now) == MayLaunch::Now && session.link.take_credit(want.cost)
        };
        let passed = if self.tickets.has_come(ticket) && goes(clock::now()) {
            WaitEnd::Credit
        } else {
            self.pass_waiting(session, ticket, want)
        };
        self.tickets.leave(ticket);
        passed
    }

    #[cold]
    fn pass_waiting(&self, session: &Session, ticket: u32, want: &Want) -> WaitEnd {
        let arrived = clock::now();
        let longest = session.link.longest_wait();
        let deadline = arrived.saturating_add(longest);
        let unsplit = || self.tuning.goes_on(arrived, session.completion.outstanding());
        let passed = if self.tickets.has_come(ticket) && unsplit() {
            WaitEnd::Unsplit
        } else if self.tickets.wait(ticket, deadline) {
            self.wait_for_credit(session, want, arrived, longest)
        } else {
            WaitEnd::Expired
        };
        let counters = &session.link.lane.counters;
        if passed.is_overdraft() {
            session.link.overdraw(want.cost);
        }
        if passed == WaitEnd::Unsplit {
            counters.unsplit.fetch_add(1, Ordering::Relaxed);
        } else if passed.is_timeout() {
            counters.waits_expired.fetch_add(1, Ordering::Relaxed);
        }
        passed
    }

    /// Waits at the head of the queue.
    fn wait_for_credit(&self, session: &Session, want: &Want, arrived: Ns, longest: Ns) -> WaitEnd {
        if self.paced(session, want, arrived) {
            return WaitEnd::Credit;
        }
        let heartbeat = session.link.epoch_page.heartbeat.load(Ordering::Relaxed);
        // The launch does not wait for a broker that has stopped, until the heartbeat moves.
        if self.standstill.load(Ordering::Relaxed) == u64::from(heartbeat) + 1 {
            return WaitEnd::BrokerStopped;
        }
        let lane = session.link.lane;
        let reports = &lane.reports;
        reports.wanted_kernel.store(want.kernel, Ordering::Relaxed);
        reports.wanted_cost.store(want.cost, Ordering::Relaxed);
        reports.waiting_since.store(arrived, Ordering::Relaxed);
        session.link.write(Kind::Wait, arrived, want.kernel, want.cost, 0);
        reports.waiting.swap(1, Ordering::SeqCst);
        session.link.ring();
        // From here on completions matter to this launch.
        session.completion.fence(want.place, want.stream);
        let slack = rustix::thread::current_timer_slack();
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
        let passed = self.sleep_for_credit(session, want, GateWait::new(arrived, longest, heartbeat));
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
    pub(super) fn paced(&self, session: &Session, want: &Want, arrived: Ns) -> bool {
        let orders = &session.link.lane.orders;
        let cost = charge::in_credit(want.cost);
        let (longest, poll) = (session.link.device_wait(), poll_interval(session));
        let mut fenced = false;
        let mut asked: Ns = 0;
        loop {
            let now = clock::now();
            let mut leave = goes_on(session, want.kernel, want.cost, now);
            let clock = leaves(session, session.predictions.long(want.kernel, want.cost), now);
            // The clock admits the launch, and the device was not polled lately.
            let late = leave != clock;
            if late {
                let may_ask = session.completion.asks();
                if !may_ask {
                    leave = clock;
                } else if now.saturating_sub(asked) >= poll {
                    asked = now;
                    session.completion.ask_device(&session.link, now);
                    continue;
                }
            }
            if leave == MayLaunch::Now && session.link.take_credit(want.cost) {
                return true;
            }
            // A changed launch epoch ends the window, as does the broker.
            let holds = orders.window().is_some() && orders.holds(session.link.epoch_page);
            if !holds || now.saturating_sub(arrived) >= longest || self.in_a_hurry(now) {
                return false;
            }
            if leave == MayLaunch::Now && orders.credit.load(Ordering::Acquire) >= cost {
                continue;
            }
            // Completions return credit, and end work that still runs according to the clock.
            let awaits_end = (leave == MayLaunch::Now || !late)
                && session.completion.outstanding() != 0
                && !session.completion.is_capturing();
            let Some(at) = run_ahead::next_look(now, leave, late, awaits_end) else {
                return false;
            };
            if awaits_end {
                if !std::mem::replace(&mut fenced, true) {
                    session.completion.fence(want.place, want.stream);
                }
                if now.saturating_sub(asked) >= poll {
                    asked = now;
                    if session.completion.ask_device(&session.link, now) {
                        continue;
                    }
                }
            }
            rest(session, at.saturating_sub(now));
        }
    }

    fn sleep_for_credit(&self, session: &Session, want: &Want, mut wait: GateWait) -> WaitEnd {
        let orders = &session.link.lane.orders;
        let mut waiter = GateWaiter {
            gate: self,
            session,
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
                    #[cfg(test)]
                    if clock::played::rest(length) {
                        continue;
                    }
                    // Woken, interrupted or timed out: look again.
                    let _ = futex::wait(&orders.bell, Flags::empty(), bell, Some(&clock::timespec(length)));
                }
            }
        }
    }

    /// Handles a load of code: auto-tuners time kernels right after.
    pub fn code_loaded(&self, now: Ns) {
        self.tuning.code_loaded(now);
    }

    /// Handles an event recorded in a stream.
    #[inline]
    pub fn event_recorded(&self) {
        self.tuning.event_recorded();
    }

    /// Whether the job may be timing kernels now.
    pub fn is_timing(&self, now: Ns) -> bool {
        self.tuning.is_timing(now)
    }

    /// Opens the gate at `time`, because a thread waits for the queue; [`Ns::MAX`]: no thread does.
    pub fn hurry_by(&self, time: Ns) {
        self.hurry.store(time, Ordering::Relaxed);
    }

    /// Whether a thread has waited long enough for the queue; the gate is then open.
    #[inline]
    fn in_a_hurry(&self, now: Ns) -> bool {
        now >= self.hurry.load(Ordering::Relaxed)
    }

    /// Forgets that a broker stopped: it is lost.
    pub fn broker_lost(&self) {
        self.standstill.store(0, Ordering::Relaxed);
    }

    /// Launches that came to the gate's queue, and that left it.
    #[cfg(test)]
    pub fn queued(&self) -> (u32, u32) {
        (self.tickets.arrived(), self.tickets.left())
    }
}

/// Whether the run-ahead window, if any, admits a launch of `takes` ns, judged only by the
/// clock.
#[inline]
fn leaves(session: &Session, takes: Ns, now: Ns) -> MayLaunch {
    match session.link.lane.orders.window() {
        None => MayLaunch::Now,
        Some(window) => window.may_launch(now, session.completion.backlog(now), takes),
    }
}

/// As `leaves`, but also judged by fences and the kernel's likely time (`Predictions::long`). Work
/// behind a pending fence has not begun; otherwise kernels longer than their charge would pile up.
/// The wait is short: a launch whose wait was reported to the broker is judged by the clock.
#[inline]
fn goes_on(session: &Session, kernel: u64, cost: Ns, now: Ns) -> MayLaunch {
    match session.link.lane.orders.window() {
        None => MayLaunch::Now,
        Some(window) => {
            let backlog = session.completion.backlog(now).max(session.completion.behind());
            window.may_launch(now, backlog, session.predictions.long(kernel, cost))
        }
    }
}

/// Duration to check against the window for a launch that waits for the broker, ns
/// ([`run_ahead::takes_while_waiting`]). `came_under`: the window's deadline at arrival.
pub(super) fn waits_by(session: &Session, want: &Want, came_under: Option<Ns>) -> Ns {
    let window = session.link.lane.orders.window();
    run_ahead::takes_while_waiting(window, came_under, want.cost, || {
        session.predictions.long(want.kernel, want.cost)
    })
}

/// Time, ns, between two polls while a launch waits only for the device.
fn poll_interval(session: &Session) -> Ns {
    (session.link.device_wait() / POLLS).clamp(POLL_INTERVAL_NS, MIN_NAP_NS)
}

/// Pauses briefly; spins if the settings allow it.
fn rest(session: &Session, wait: Ns) {
    let spin = session.link.settings.spin;
    if wait <= spin.max(POLL_INTERVAL_NS) && spin > 0 {
        std::hint::spin_loop();
    } else {
        // No wake-up ends this sleep; its end is spun.
        thread::rest(std::time::Duration::from_nanos(
            wait.saturating_sub(spin).clamp(poll_interval(session), MIN_NAP_NS),
        ));
    }
}

/// A thread with its launch at the head of the queue.
struct GateWaiter<'a> {
    gate: &'a LaunchGate,
    session: &'a Session,
    want: &'a Want,
    /// Deadline of the run-ahead window at arrival, if there was one.
    came_under: Option<Ns>,
    /// Duration to check against the window, ns, of this look.
    takes: Ns,
}

impl WaitingClient for GateWaiter<'_> {
    fn take_credit(&mut self, now: Ns) -> bool {
        self.takes = waits_by(self.session, self.want, self.came_under);
        leaves(self.session, self.takes, now) == MayLaunch::Now && self.session.link.take_credit(self.want.cost)
    }

    fn is_background(&self) -> bool {
        Mode::from_word(self.session.link.lane.orders.mode.load(Ordering::Acquire)) == Some(Mode::Background)
    }

    fn is_hurried(&self, now: Ns) -> bool {
        self.gate.in_a_hurry(now)
    }

    fn spin(&self) -> Ns {
        self.session.link.settings.spin
    }

    fn poll(&mut self, now: Ns) {
        if self.session.completion.ask_device(&self.session.link, now) {
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
        let completion = &self.session.completion;
        let nap = nap_length(now, completion.expects(), || completion.outstanding() > 0);
        match leaves(self.session, self.takes, now) {
            MayLaunch::At(at) => nap.min(at.saturating_sub(now)),
            MayLaunch::Now | MayLaunch::Never => nap,
        }
    }
}
