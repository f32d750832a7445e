// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wait at the gate: the reasons that end it, and the nap between two looks.
//!
//! Every wait ends. [`GateWait::look`] returns `Expired` at the deadline at the latest, whatever
//! the client answers.

use weft_protocol::Ns;
use weft_protocol::lane::MAX_LONGEST_WAIT_NS;

/// Longest wait, ns, if the broker orders none.
pub const DEFAULT_LONGEST_WAIT_NS: Ns = 1_000_000_000;

/// Age of the heartbeat, ns, at which the broker counts as stopped. The heartbeat moves every
/// 100 ms while a launch waits.
pub const HEARTBEAT_TIMEOUT_NS: Ns = 300_000_000;

/// Longest nap, ns, and so between polls of the fences. Waking costs some 10 us: 1 % of a core.
pub const MAX_NAP_NS: Ns = 1_000_000;

/// Shortest nap, ns: sleeping and waking take as long.
pub const MIN_NAP_NS: Ns = 50_000;

/// A late fence is polled again after `lateness / LATENESS_RATIO`.
const LATENESS_RATIO: Ns = 4;

/// A launch counts as stuck after `max(longest wait / STUCK_RATIO, MIN_STUCK_NS)` ns without
/// progress. The broker's rule is quicker and knows the device; this is the fallback.
const STUCK_RATIO: Ns = 8;
const MIN_STUCK_NS: Ns = 5_000_000;

/// Longest wait, ns, of a launch under this order of the broker (0: no order).
#[inline]
pub fn longest_wait(ordered: Ns) -> Ns {
    match ordered {
        0 => DEFAULT_LONGEST_WAIT_NS,
        wait => wait.min(MAX_LONGEST_WAIT_NS),
    }
}

/// Nap, ns, until the next fence is expected to be reached (`expected`: a time). A late fence is
/// polled less and less often. `has_work`: the device has work of this client.
pub fn nap_length(now: Ns, expected: Option<Ns>, has_work: impl FnOnce() -> bool) -> Ns {
    let length = match expected {
        Some(end) if end > now => end - now,
        Some(end) => (now - end) / LATENESS_RATIO,
        None if has_work() => MAX_NAP_NS / 2,
        None => MAX_NAP_NS,
    };
    length.clamp(MIN_NAP_NS, MAX_NAP_NS)
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
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
    /// The broker has stopped.
    BrokerStopped,
}

impl WaitEnd {
    /// Whether the launch goes without credit. Its cost is still taken from the word, because the
    /// launch is reported as issued.
    pub fn is_overdraft(self) -> bool {
        self != WaitEnd::Credit
    }

    /// Whether a bound ended the wait.
    pub fn is_timeout(self) -> bool {
        matches!(self, WaitEnd::Expired | WaitEnd::Stuck | WaitEnd::BrokerStopped)
    }
}

/// State and actions of a client whose launch is at the head of the queue.
pub trait WaitingClient {
    /// Takes the launch's credit, if the credit covers it and the run-ahead window admits it.
    fn take_credit(&mut self, now: Ns) -> bool;
    /// Whether the job is a background job.
    fn is_background(&self) -> bool;
    /// Whether the gate is open because a thread waits for deferred launches.
    fn is_hurried(&self, now: Ns) -> bool;
    /// How long, ns, a wait spins before its first nap.
    fn spin(&self) -> Ns;
    /// Polls the fences and reports the work that has ended.
    fn poll(&mut self, now: Ns);
    /// Time, ns, when work was last seen to end, or began on an empty device.
    fn progress(&self) -> Ns;
    /// Whether a fence is pending.
    fn has_fences(&self) -> bool;
    /// The broker's heartbeat.
    fn heartbeat(&self) -> u32;
    /// Nap, ns, until a look may find something new: [`nap_length`], or less.
    fn nap(&self, now: Ns) -> Ns;
}

/// Result of a look at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateLook {
    /// The wait is over.
    Ends(WaitEnd),
    /// Look again at once.
    Spin,
    /// Look again after this many ns, or when the bell rings.
    Nap(Ns),
}

/// A wait for the broker, at the head of the queue.
#[derive(Debug, Clone, Copy)]
pub struct GateWait {
    arrived: Ns,
    longest: Ns,
    heartbeat: u32,
    polled: Ns,
}

impl GateWait {
    /// A wait since `arrived`, of at most `longest` ns. `heartbeat`: the broker's at the client's
    /// report.
    pub fn new(arrived: Ns, longest: Ns, heartbeat: u32) -> GateWait {
        GateWait {
            arrived,
            longest,
            heartbeat,
            polled: arrived,
        }
    }

    /// When the launch arrived.
    pub fn arrived(&self) -> Ns {
        self.arrived
    }

    /// The broker's heartbeat when the client reported the wait.
    pub fn heartbeat(&self) -> u32 {
        self.heartbeat
    }

    /// When the launch goes without credit.
    pub fn deadline(&self) -> Ns {
        self.arrived.saturating_add(self.longest)
    }

    /// One look. The order is part of the rule:
    ///
    /// 1. Credit first: a launch that credit covers never counts as anything else.
    /// 2. Another mode, the deadline and a hurry need no news of the device.
    /// 3. The device is polled at most once per shortest nap.
    /// 4. No progress counts only after a poll, and only while a fence is pending.
    pub fn look(&mut self, now: Ns, client: &mut impl WaitingClient) -> GateLook {
        if client.take_credit(now) {
            return GateLook::Ends(WaitEnd::Credit);
        }
        if !client.is_background() {
            return GateLook::Ends(WaitEnd::Mode);
        }
        if now >= self.deadline() || client.is_hurried(now) {
            return GateLook::Ends(WaitEnd::Expired);
        }
        if now.saturating_sub(self.arrived) < client.spin() {
            return GateLook::Spin;
        }
        if now.saturating_sub(self.polled) >= MIN_NAP_NS {
            self.polled = now;
            client.poll(now);
            if self.is_stuck(now, client) {
                return GateLook::Ends(WaitEnd::Stuck);
            }
        }
        if now.saturating_sub(self.arrived) > HEARTBEAT_TIMEOUT_NS && client.heartbeat() == self.heartbeat {
            return GateLook::Ends(WaitEnd::BrokerStopped);
        }
        GateLook::Nap(client.nap(now).min(self.deadline().saturating_sub(now)))
    }

    fn is_stuck(&self, now: Ns, client: &impl WaitingClient) -> bool {
        let after = (self.longest / STUCK_RATIO).max(MIN_STUCK_NS);
        let progress = client.progress().max(self.arrived.saturating_sub(after));
        now.saturating_sub(progress) > after && client.has_fences()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST_NS: Ns = 80_000_000;

    /// A client with the answers of a test.
    #[derive(Debug, Clone, Copy)]
    struct ScriptedClient {
        covered: bool,
        background: bool,
        hurried: bool,
        spin: Ns,
        progress: Ns,
        fences: bool,
        heartbeat: u32,
        nap: Ns,
        polls: u32,
    }

    const WAITS: ScriptedClient = ScriptedClient {
        covered: false,
        background: true,
        hurried: false,
        spin: 0,
        progress: 0,
        fences: false,
        heartbeat: 7,
        nap: MIN_NAP_NS,
        polls: 0,
    };

    impl WaitingClient for ScriptedClient {
        fn take_credit(&mut self, _: Ns) -> bool {
            self.covered
        }
        fn is_background(&self) -> bool {
            self.background
        }
        fn is_hurried(&self, _: Ns) -> bool {
            self.hurried
        }
        fn spin(&self) -> Ns {
            self.spin
        }
        fn poll(&mut self, _: Ns) {
            self.polls += 1;
        }
        fn progress(&self) -> Ns {
            self.progress
        }
        fn has_fences(&self) -> bool {
            self.fences
        }
        fn heartbeat(&self) -> u32 {
            self.heartbeat
        }
        fn nap(&self, _: Ns) -> Ns {
            self.nap
        }
    }

    fn look(after: Ns, mut client: ScriptedClient) -> GateLook {
        let arrived = 1_000_000_000;
        GateWait::new(arrived, LONGEST_NS, 7).look(arrived + after, &mut client)
    }

    #[test]
    fn a_covered_launch_goes_whatever_else_is_true() {
        let client = ScriptedClient {
            covered: true,
            background: false,
            hurried: true,
            fences: true,
            ..WAITS
        };
        assert_eq!(look(2 * LONGEST_NS, client), GateLook::Ends(WaitEnd::Credit));
        assert!(!WaitEnd::Credit.is_overdraft());
    }

    #[test]
    fn another_mode_the_deadline_and_a_hurry_end_a_wait() {
        let other = ScriptedClient {
            background: false,
            ..WAITS
        };
        assert_eq!(look(0, other), GateLook::Ends(WaitEnd::Mode));
        assert!(WaitEnd::Mode.is_overdraft() && !WaitEnd::Mode.is_timeout());
        let hurried = ScriptedClient { hurried: true, ..WAITS };
        assert_eq!(look(0, hurried), GateLook::Ends(WaitEnd::Expired));
        assert_eq!(look(LONGEST_NS, WAITS), GateLook::Ends(WaitEnd::Expired));
        assert_eq!(
            look(LONGEST_NS - 1, WAITS),
            GateLook::Nap(1),
            "the nap ends with the wait"
        );
    }

    #[test]
    fn a_wait_spins_before_it_polls() {
        let arrived = 1_000;
        let mut wait = GateWait::new(arrived, LONGEST_NS, 7);
        let mut client = ScriptedClient { spin: 20_000, ..WAITS };
        assert_eq!(wait.look(arrived + 19_999, &mut client), GateLook::Spin);
        assert_eq!(wait.look(arrived + 20_000, &mut client), GateLook::Nap(MIN_NAP_NS));
        assert_eq!(client.polls, 0);
        wait.look(arrived + MIN_NAP_NS, &mut client);
        wait.look(arrived + MIN_NAP_NS + 1, &mut client);
        assert_eq!(client.polls, 1, "not more often than the shortest nap");
    }

    #[test]
    fn work_without_progress_is_stuck_only_while_a_fence_is_pending() {
        let after = LONGEST_NS / STUCK_RATIO;
        let stuck = ScriptedClient { fences: true, ..WAITS };
        assert!(
            matches!(look(0, stuck), GateLook::Nap(_)),
            "it may have been stuck before"
        );
        assert_eq!(look(MIN_NAP_NS, stuck), GateLook::Ends(WaitEnd::Stuck));
        let lately = ScriptedClient {
            progress: 1_000_000_000,
            ..stuck
        };
        assert!(matches!(look(after, lately), GateLook::Nap(_)));
        assert_eq!(look(after + 1, lately), GateLook::Ends(WaitEnd::Stuck));
        assert!(matches!(look(after + 1, WAITS), GateLook::Nap(_)));
    }

    #[test]
    fn a_broker_whose_heart_stands_still_is_not_awaited() {
        let look = |after, heartbeat| {
            let mut client = ScriptedClient { heartbeat, ..WAITS };
            GateWait::new(0, 10 * HEARTBEAT_TIMEOUT_NS, 7).look(after, &mut client)
        };
        assert!(matches!(look(HEARTBEAT_TIMEOUT_NS, 7), GateLook::Nap(_)));
        assert_eq!(
            look(HEARTBEAT_TIMEOUT_NS + 1, 7),
            GateLook::Ends(WaitEnd::BrokerStopped)
        );
        assert!(matches!(look(HEARTBEAT_TIMEOUT_NS + 1, 8), GateLook::Nap(_)));
    }

    #[test]
    fn orders_of_the_longest_wait_are_bounded() {
        assert_eq!(longest_wait(0), DEFAULT_LONGEST_WAIT_NS);
        assert_eq!(longest_wait(5), 5);
        assert_eq!(longest_wait(Ns::MAX), MAX_LONGEST_WAIT_NS);
    }

    proptest! {
        /// A loop of looks ends by the deadline, with no nap of 0 before it.
        #[test]
        fn every_wait_ends(
            arrived in 0..u64::MAX / 2, longest in 1..40_000_000_000u64, spin in 0..50_000u64,
            progress: u64, fences: bool, nap in MIN_NAP_NS..=MAX_NAP_NS,
        ) {
            let longest = longest_wait(longest);
            let mut client = ScriptedClient { spin, progress, fences, nap, ..WAITS };
            let mut wait = GateWait::new(arrived, longest, 7);
            let mut now = arrived;
            let ends = loop {
                match wait.look(now, &mut client) {
                    GateLook::Ends(ends) => break ends,
                    GateLook::Spin => now += 100,
                    GateLook::Nap(length) => {
                        prop_assert!(length > 0);
                        now += length;
                    }
                }
                prop_assert!(now <= wait.deadline().max(arrived + spin + 100));
            };
            prop_assert!(ends.is_timeout());
        }

        #[test]
        fn naps_are_bounded(now: u64, expected: Option<u64>, has_work: bool) {
            let nap = nap_length(now, expected, || has_work);
            prop_assert!((MIN_NAP_NS..=MAX_NAP_NS).contains(&nap));
            if let Some(end) = expected.filter(|end| *end > now && (MIN_NAP_NS..=MAX_NAP_NS).contains(&(end - now))) {
                prop_assert_eq!(nap, end - now);
            }
        }
    }
}
