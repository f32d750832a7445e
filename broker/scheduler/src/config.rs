//! What people may choose, with the reason for each default.

use std::{fmt, str::FromStr};

use weft_profiles::Profile;

use weft_protocol::Ns;

/// A microsecond.
pub(crate) const US: Ns = 1_000;
/// A millisecond.
pub(crate) const MS: Ns = 1_000_000;

/// Which policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicyName {
    /// The most important active job runs alone.
    Exclusive,
    /// Turns of fixed length among all jobs; priorities do not count.
    Timeslice,
    /// Gaps of the more important job are filled with kernels of the others (the paper's
    /// BestPrioFit).
    Fikit,
    /// Gaps are filled by what was seen to follow: quantiles of kernel times and gaps, conditioned
    /// on what ran before.
    #[default]
    Weft,
}

impl PolicyName {
    /// All of them, with what they do in a few words.
    pub const ALL: [(PolicyName, &'static str, &'static str); 4] = [
        (
            PolicyName::Exclusive,
            "exclusive",
            "the most important active job runs alone",
        ),
        (
            PolicyName::Timeslice,
            "timeslice",
            "turns of fixed length, priorities do not count",
        ),
        (
            PolicyName::Fikit,
            "fikit",
            "gaps of the more important job are filled with kernels of the others",
        ),
        (
            PolicyName::Weft,
            "weft",
            "like fikit, with gaps and kernels predicted from what ran before",
        ),
    ];

    /// As a person types it.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::Exclusive => "exclusive",
            PolicyName::Timeslice => "timeslice",
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

/// A policy that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {0:?}: choose weft, fikit, exclusive or timeslice")]
pub struct UnknownPolicy(String);

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<PolicyName, UnknownPolicy> {
        PolicyName::ALL
            .into_iter()
            .find(|(_, name, _)| name.eq_ignore_ascii_case(text.trim()))
            .map(|(policy, _, _)| policy)
            .ok_or_else(|| UnknownPolicy(text.trim().chars().take(40).collect()))
    }
}

/// What people may choose. Times are wall-clock nanoseconds. [`Config::scaled`] fits them to a
/// simulated GPU that runs slower than a real one.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Which policy decides.
    pub policy: PolicyName,
    /// The most background job work that may be on the device or on its way there when a foreground
    /// job comes back (a kernel longer than this goes alone).
    ///
    /// 500 us: on a time-sliced device a foreground job that comes back shares the device with that
    /// work until it is done, so it is what a request pays at most; a request that runs for 5 ms
    /// pays 10 %. It must still cover the way of a grant (end of a kernel seen, broker woken,
    /// background job woken: 25-65 us for each sleeping core), or the device runs dry between two
    /// grants.
    pub delay_bound: Ns,
    /// Predicted gaps no longer than this are not filled (the paper's EPS, believed to be 0.1 ms).
    pub small_gap: Ns,
    /// What it costs the device to go from one process to another. The way to a background job
    /// counts once a gap; the way back begins when the foreground job's kernel comes, so keeping it
    /// free wins nothing. About 100 us on an A100 that slices time, 0 under MPS.
    pub switch_cost: Ns,
    /// `weft`: a kernel goes into a gap if the chance that the foreground job comes back before it
    /// has ended is no more than this.
    ///
    /// 0.95: under a run-ahead window no more than the kernel in progress is ever on the device, so
    /// a foreground job that comes back waits for half of a kernel on the average, once a gap. In
    /// the lab (26 pairs under MPS) 0.5 gave 0.84 of the batch work that `fikit` gives, 0.95 gave
    /// 0.96, and the mean latency went from 1.0024 to 1.0034 of alone. Where the device switches
    /// between processes it is 0.5 at most.
    pub risk: f64,
    /// `weft`: a background job launches its next kernel when no more than this is on the device
    /// before it.
    ///
    /// 5 us: a launch takes 4 to 6 us to the device. What lies there behind the kernel in progress
    /// is a second kernel that a foreground job waits for: with 10 us beside a launch queue
    /// (`scripts/lab --kind table --requests 250 --partners 1 --device mps --rule weft --queue 1024`)
    /// p99 was 1.016 of alone, with 5 it is 1.010, and nothing else changed.
    pub depth: Ns,
    /// `weft`: a better moment that is near is awaited before a kernel goes (the grace after a
    /// request, in which only what ends before a request that waits already could launch goes).
    /// False to see what that is worth (`scripts/lab --without grace`).
    pub grace: bool,
    /// How long a foreground job must be silent, after the end of its gap as predicted, or after
    /// its work is seen to have ended where no gap is known, until the gap counts as open-ended and
    /// is filled within the delay bound alone.
    ///
    /// 200 us: a program that synchronises after every kernel launches the next within some 20 us,
    /// a Python framework within 100 us.
    pub open_after: Ns,
    /// The same where no synchronising call told the end of its work, so that it is only predicted.
    /// 1 ms: a job that launches ahead and loses its core for a moment is no job that waits for a
    /// request.
    pub open_unseen: Ns,
    /// How much longer than predicted the work of a foreground job without a profile may take, as a
    /// part of it, until its own ends have taught better.
    pub doubt: f64,
    /// The part of the device's time that background jobs get who find no gap, all of them
    /// together. Nobody starves.
    ///
    /// 0.02: a background job of 1 ms kernels that finds no gap launches one every 60 ms (switching
    /// there and back is charged to it). That is the price a foreground job pays.
    pub minimum_share: f64,
    /// `weft`: nobody starves who found a gap less than this ago, and had as much of it as the
    /// delay bound; who had less of it starves so much sooner.
    ///
    /// 500 ms: the minimum share takes the device from a foreground job that has work, and where
    /// the device switches between processes that costs it two switches more each time. A
    /// background job that finds its gaps between two requests needs none of it, and a request of a
    /// language model takes a quarter of a second. Half of the longest wait at the gate (a second),
    /// at which a launch goes through whoever has the device.
    pub starving_after: Ns,
    /// `weft`: the minimum share comes in portions of what is due for such a time, so that
    /// switching there and back is paid once for many short kernels.
    pub share_every: Ns,
    /// A background job that waits while its own earlier work does not end for so long is let
    /// through: some programs queue a kernel that spins until a later launch is queued. Measured
    /// from the last launch epoch of progress, on top of twice the work outstanding.
    pub stuck_after: Ns,
    /// Outstanding work that is not reported as ended for so long, on top of ten times its
    /// predicted time, is written off.
    pub write_off_after: Ns,
    /// `exclusive`: how long a job must be silent until the next may run. Between two steps or
    /// requests a job is silent for some ms.
    pub idle_grace: Ns,
    /// `timeslice`: the length of a turn, and how long background jobs of one priority keep the
    /// device before the next of them has it. 10 ms against 0.2 ms for switching there and back is
    /// 2 %.
    pub turn: Ns,
    /// Jobs of one priority whose memory does not fit the device together take turns that are long
    /// enough to move it. Nobody is away for longer than this while the others have theirs, as far
    /// as turns of 20 ms keep to it.
    ///
    /// 500 ms: two jobs that move 2 GB each in a turn need turns of some 300 ms, of five jobs none
    /// has more than 109. Below the longest wait at the gate (a second), at which a launch goes
    /// through whoever's turn it is.
    pub max_swapped_out: Ns,
    /// A predicted time above this is taken for this. No kernel that anybody waits for runs longer
    /// than 10 s.
    pub longest_cost: Ns,
    /// What a kernel without a known time counts for.
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
            grace: true,
            open_after: 200 * US,
            open_unseen: MS,
            doubt: 0.25,
            minimum_share: 0.02,
            starving_after: 500 * MS,
            share_every: 25 * MS,
            stuck_after: 5 * MS,
            write_off_after: 50 * MS,
            idle_grace: 10 * MS,
            turn: 10 * MS,
            max_swapped_out: 500 * MS,
            longest_cost: 10_000 * MS,
            unknown_cost: 20 * US,
        }
    }
}

impl Config {
    /// What kernels of a background job with this profile may well take, (hash, ns), where that is
    /// much more than what they are charged: by this they go into a gap, by the core's word and by
    /// a run-ahead window alike. Only where it pays.
    ///
    /// Under `weft` where the device switches between processes: there a kernel that lasts beyond
    /// the gap costs a foreground job whole slices. (vgg19 beside bert_base's training, one of
    /// whose kernels takes 45 us twelve times of thirteen and 1.9 ms once, launches left behind:
    /// p99 1.74 of alone by the mean, 1.00 by this;
    /// `scripts/lab --kind table --requests 1000 --model vgg19 --model bert_base --device time-sliced --rule weft --partners 1`.)
    /// Under MPS it took 2 % of the work from background jobs and gave the foreground job nothing.
    pub fn may_take(&self, profile: &Profile) -> Vec<(u64, Ns)> {
        match self.switch_cost {
            0 => Vec::new(),
            _ => self.spread(profile),
        }
    }

    /// The same, should the device switch.
    pub(super) fn spread(&self, profile: &Profile) -> Vec<(u64, Ns)> {
        /// One in fifty takes longer. Such a kernel stands at a dozen places in a step, and at one
        /// of them it is long.
        const QUANTILE: f64 = 0.98;
        match self.policy {
            PolicyName::Weft => profile.spread(QUANTILE, self.delay_bound / 4),
            _ => Vec::new(),
        }
    }

    /// The same for a device that runs `factor` times slower: every time that is a property of the
    /// device is multiplied.
    pub fn scaled(mut self, factor: f64) -> Config {
        let scale = |ns: &mut Ns| *ns = (*ns as f64 * factor) as Ns;
        scale(&mut self.delay_bound);
        scale(&mut self.small_gap);
        scale(&mut self.switch_cost);
        scale(&mut self.depth);
        scale(&mut self.open_after);
        scale(&mut self.open_unseen);
        scale(&mut self.starving_after);
        scale(&mut self.share_every);
        scale(&mut self.stuck_after);
        scale(&mut self.write_off_after);
        scale(&mut self.idle_grace);
        scale(&mut self.turn);
        scale(&mut self.max_swapped_out);
        scale(&mut self.unknown_cost);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_people_write_them() {
        for (policy, name, _) in PolicyName::ALL {
            assert_eq!(name.parse(), Ok(policy));
            assert_eq!(policy.to_string(), name);
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
        assert_eq!(
            error,
            "no policy is called \"fair\": choose weft, fikit, exclusive or timeslice"
        );
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

    #[test]
    fn a_slower_device_has_longer_times() {
        let config = Config::default().scaled(10.0);
        assert_eq!(config.delay_bound, 10 * Config::default().delay_bound);
        assert_eq!(config.minimum_share, Config::default().minimum_share);
        assert_eq!(config.longest_cost, Config::default().longest_cost);
    }
}
