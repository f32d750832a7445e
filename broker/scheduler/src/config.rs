// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's settings, with the reason for each default.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use weft_profiles::Profile;

use weft_protocol::Ns;

/// A microsecond.
pub(crate) const US: Ns = 1_000;
/// A millisecond.
pub(crate) const MS: Ns = 1_000_000;

/// Which policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub enum PolicyName {
    /// Gaps are filled by quantiles of kernel times and gaps, conditioned on what ran before.
    #[default]
    Weft,
    /// Gaps of the more important job are filled with kernels of the others (the paper's
    /// BestPrioFit).
    Fikit,
}

impl PolicyName {
    /// All policies.
    pub const ALL: [PolicyName; 2] = [PolicyName::Fikit, PolicyName::Weft];

    /// The name as a person types it.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::Fikit => "fikit",
            PolicyName::Weft => "weft",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Error: no policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {0:?}: choose {names}", names = PolicyName::ALL.map(PolicyName::as_str).join(" or "))]
pub struct UnknownPolicy(String);

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<PolicyName, UnknownPolicy> {
        PolicyName::ALL
            .into_iter()
            .find(|policy| policy.as_str().eq_ignore_ascii_case(text.trim()))
            .ok_or_else(|| UnknownPolicy(text.trim().chars().take(40).collect()))
    }
}

/// Settings of the scheduler. Times are ns of the clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The policy that decides. It has an option of its own.
    #[serde(skip)]
    pub policy: PolicyName,
    /// Most background work, in predicted ns, that may be out when a foreground job comes back. A
    /// longer kernel is granted with no other work out.
    ///
    /// 500 us: a request on a time-sliced device waits this long at most (10 % of 5 ms). The bound
    /// must cover the latency of a grant, or the device runs dry. Broker and job are both woken,
    /// 25-65 us for each sleeping core.
    pub delay_bound: Ns,
    /// Predicted gaps up to this length are not filled (the paper's EPS, believed to be 0.1 ms).
    pub small_gap: Ns,
    /// Time to switch from one process to another: about 100 us on a time-sliced A100, 0 under MPS.
    /// The switch back takes no time of a gap, because it begins with the foreground job's kernel.
    pub switch_cost: Ns,
    /// `weft`: a kernel goes into a gap if `P(foreground job back before its end) <= risk`. This is
    /// the highest risk. The foreground job's lateness account sets the one in force.
    ///
    /// 0.95: a returning foreground job waits for half of one kernel on average. In the lab (26
    /// pairs under MPS) 0.5 gave 0.84 of `fikit`'s batch work and 0.95 gave 0.96; mean latency went
    /// from 1.0024 to 1.0034 of that without other jobs. At most 0.5 if the device switches.
    pub risk: f64,
    /// `weft`: most work, in ns, on the device before a background job's next launch.
    ///
    /// 5 us: a launch takes 4 to 6 us to arrive. With more, a second kernel queues behind the one
    /// in progress. With a launch queue p99 (1: without other jobs) was 1.016 with 10 us and 1.010
    /// with 5; no other figure changed:
    ///
    /// ```text
    /// scripts/lab --kind table --requests 250 --partners 1 --device mps --rule weft --queue 1024
    /// ```
    pub depth: Ns,
    /// Part of its time by which a foreground job may be slowed down on average, unless
    /// [`Event::Budget`](crate::Event::Budget) overrides it. 0.01: less than its host's jitter.
    pub slowdown: f64,
    /// The longest time from a foreground job's first launch to its next wait, ns, within which
    /// that slowdown may be used. `None`: no limit.
    pub slo: Option<Ns>,
    /// Foreground time, ns, for which an unspent slowdown is kept. With less left, the price of
    /// gaps falls. So lateness beyond the slowdown ends within about a second.
    pub credit_for: Ns,
    /// `weft`: whether kernels are deferred if a better moment is near
    /// (`scripts/lab --without grace`).
    pub deferral: bool,
    /// Silence of a foreground job, in ns, after which its gap is open-ended and is filled only
    /// within the delay bound. Counts from the gap's predicted end, else from the seen end of work.
    ///
    /// 200 us: a program that synchronises after each kernel launches the next within 20 us, a
    /// Python framework within 100 us.
    pub open_after: Ns,
    /// `open_after` if the end of the work was not seen. 1 ms: a job that launches ahead may lose
    /// its core for a moment.
    pub open_unseen: Ns,
    /// Part by which a foreground job's work may take longer than predicted without a profile,
    /// until the seen ends of its work give a better value.
    pub unprofiled_margin: f64,
    /// Part of the device's time for background jobs that find no gap, all together.
    ///
    /// 0.02: such a job with 1 ms kernels launches one every 60 ms, with switching there and back
    /// charged to it.
    pub minimum_share: f64,
    /// `weft`: time in ns without starvation after a gap that gave a job a delay bound of work.
    /// Less work gives proportionally less time.
    ///
    /// 500 ms: the minimum share takes the device from a foreground job that has work, at two
    /// switches each. A language model's request takes a quarter of a second. 500 ms is half of the
    /// longest wait at the gate (1 s), after which a launch proceeds regardless.
    pub starving_after: Ns,
    /// `weft`: the minimum share comes in portions for this time, ns: many short kernels pay for
    /// one switch there and back.
    pub share_every: Ns,
    /// Time without progress, in ns, plus twice the work outstanding or the longest measured
    /// kernel, after which a waiting background job is let through. Some programs queue a kernel
    /// that spins until a later launch is queued.
    pub stuck_after: Ns,
    /// Silence, in ns, beyond ten times the predicted time, after which outstanding work is written
    /// off.
    pub write_off_after: Ns,
    /// Silence, in ns, after which a job counts as inactive, and time for which work of a job that
    /// had the device without others is taken to last. Jobs pause for some ms between steps.
    pub idle_grace: Ns,
    /// Length of a turn, in ns, of background jobs of one priority. 10 ms against 0.2 ms for
    /// switching there and back is 2 %.
    pub turn: Ns,
    /// Longest time that a job is swapped out, in ns, while others have long turns. Turns are 1 ms
    /// at least, so a great number of jobs may exceed it.
    ///
    /// 500 ms: two jobs that move 2 GB each in a turn need some 300 ms each; each of five jobs gets
    /// 125 at most. 500 ms is half of the longest wait at the gate.
    pub max_swapped_out: Ns,
    /// Longest time that a job is swapped out, in ns, if turns within `max_swapped_out` are too
    /// short for the memory that they move. 0: such turns stay too short, since `max_swapped_out`
    /// is a promise.
    ///
    /// All jobs' memory beyond the device's has to come in during that time: 20 GB a second over
    /// PCIe 4, 40 over PCIe 5.
    pub swapped_out_limit: Ns,
    /// Upper limit of a predicted time, ns: no awaited kernel runs longer than 10 s.
    pub longest_cost: Ns,
    /// The charge of a kernel without a known time, ns.
    pub unknown_cost: Ns,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            policy: PolicyName::default(),
            delay_bound: 500 * US,
            small_gap: 100 * US,
            switch_cost: 100 * US,
            risk: 0.95,
            depth: 5 * US,
            slowdown: 0.01,
            slo: None,
            credit_for: 1_000 * MS,
            deferral: true,
            open_after: 200 * US,
            open_unseen: MS,
            unprofiled_margin: 0.25,
            minimum_share: 0.02,
            starving_after: 500 * MS,
            share_every: 25 * MS,
            stuck_after: 5 * MS,
            write_off_after: 50 * MS,
            idle_grace: 10 * MS,
            turn: 10 * MS,
            max_swapped_out: 500 * MS,
            swapped_out_limit: 0,
            longest_cost: 10_000 * MS,
            unknown_cost: 20 * US,
        }
    }
}

impl Config {
    /// High quantiles of kernel times, as (hash, ns), for kernels that may take far longer than
    /// their charge. Gates fit these kernels into gaps by them. Empty if that does not pay. The
    /// core fits by them on any device. Under MPS, vgg19 with bert_base had a p99 of 1.28 without
    /// them and 1.05 with them, with 1 for vgg19 without other jobs (the command below,
    /// `--kind pair --requests 200 --device mps`).
    ///
    /// On a switching device a kernel that outlasts the gap costs a foreground job whole slices.
    /// The p99 of vgg19 with bert_base was 1.74 by the mean, 1.00 by these quantiles. (One kernel
    /// takes 45 us in twelve of thirteen launches and 1.9 ms in the other.)
    ///
    /// ```text
    /// scripts/lab --kind table --requests 1000 --model vgg19 --model bert_base \
    ///     --device time-sliced --rule weft --partners 1
    /// ```
    ///
    /// Under MPS the quantiles took 2 % of the work from background jobs and gave the foreground
    /// job nothing.
    pub fn may_take(&self, profile: &Profile) -> Vec<(u64, Ns)> {
        match self.switch_cost {
            0 => Vec::new(),
            _ => self.spread(profile),
        }
    }

    /// High quantiles as for [`Config::may_take`], on any device.
    pub(super) fn spread(&self, profile: &Profile) -> Vec<(u64, Ns)> {
        /// One launch in fifty takes longer. Such a kernel is long at one of a dozen places in a
        /// step.
        const QUANTILE: f64 = 0.98;
        match self.policy {
            PolicyName::Weft => profile.spread(QUANTILE, self.delay_bound / 4),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_people_write_them() {
        for policy in PolicyName::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(" FIKIT\n".parse(), Ok(PolicyName::Fikit));
    }

    #[test]
    fn whoever_chooses_none_has_our_own() {
        assert_eq!(Config::default().policy, PolicyName::Weft);
    }

    #[test]
    fn an_unknown_policy_is_told_with_the_choice() {
        let error = "fair".parse::<PolicyName>().unwrap_err().to_string();
        assert_eq!(error, "unknown policy \"fair\": choose fikit or weft");
    }

    #[test]
    fn what_kernels_may_take_matters_where_weft_fills_and_the_device_switches() {
        let mut run = weft_profiles::Aggregator::new();
        (0..100).for_each(|turn| run.sampled(1, if turn % 20 == 0 { MS } else { 100 * US }, None));
        let profile = run.finish("p", 0);
        let config = Config::default();
        assert_eq!(config.may_take(&profile).len(), 1);
        let mps = Config {
            switch_cost: 0,
            ..config.clone()
        };
        let fikit = Config {
            policy: PolicyName::Fikit,
            ..config
        };
        assert!(mps.may_take(&profile).is_empty() && fikit.may_take(&profile).is_empty());
    }
}
