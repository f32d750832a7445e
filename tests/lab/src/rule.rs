// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules that are compared, by the names that scenarios and tables use.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use weft_engine::{Mode, Settings, SmLimits};
use weft_player::LaunchControl;
use weft_player::rule::MpsPriority;
use weft_scheduler::{Config, PolicyName};

use crate::policy::{Count, ExclusivePriority, Nvshare, Orion, Reef, TallyPriority, Timeslice, Xsched};
use crate::{MS, Ns, US};

/// A rule and its parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// A policy of the broker's core, with this delay bound if it is not the default.
    Core(PolicyName, Option<Ns>),
    /// weft, and the service is run with `--slowdown` of this many per cent.
    Slowdown(u32),
    /// The device without weft: slices, or turns kernel by kernel under MPS.
    Default,
    /// XSched's highest-priority-first with this in-flight window.
    Xsched(usize),
    /// The same, with another core for the service's launches.
    XschedWorker,
    /// nvshare's turns of this many milliseconds.
    Nvshare(u64),
    /// At most this many kernels of other jobs at a time, while the foreground job has none.
    Count(usize),
    /// MPS with client priorities.
    MpsPriority,
    /// One kernel of other jobs while the foreground job has none.
    One,
    /// Orion's rule.
    Orion,
    /// REEF's rule, as far as NVIDIA's devices allow it.
    Reef,
    /// Tally's rule.
    Tally,
    /// One job at a time.
    Exclusive,
    /// Turns of 10 ms among all jobs.
    Timeslice,
}

/// Windows and turns of the projects themselves. The count is four kernels: a background job has
/// one that runs and some on their way.
pub(crate) const XSCHED: usize = 16;
const NVSHARE: u64 = 30_000;
pub(crate) const COUNT: usize = 4;

/// The error for an unknown rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no policy is called {0:?}: choose weft, \"weft 2%\" (with --slowdown), fikit, exclusive, timeslice, default, xsched, xsched-worker, nvshare, count, mps-priority, one, orion, reef or tally"
)]
pub struct Unknown(String);

impl FromStr for Rule {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Rule, Unknown> {
        let slowdown = text.strip_prefix("weft ").and_then(|text| text.strip_suffix('%'));
        if let Some(percent) = slowdown.and_then(|percent| percent.parse().ok()) {
            return Ok(Rule::Slowdown(percent));
        }
        Ok(match text {
            "exclusive" => Rule::Exclusive,
            "timeslice" => Rule::Timeslice,
            "default" => Rule::Default,
            "xsched" => Rule::Xsched(XSCHED),
            "xsched-worker" => Rule::XschedWorker,
            "nvshare" => Rule::Nvshare(NVSHARE),
            "count" => Rule::Count(COUNT),
            "mps-priority" => Rule::MpsPriority,
            "one" => Rule::One,
            "orion" => Rule::Orion,
            "reef" => Rule::Reef,
            "tally" => Rule::Tally,
            other => match other.parse() {
                Ok(policy) => Rule::Core(policy, None),
                Err(_) => return Err(Unknown(other.to_string())),
            },
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Core(named, bound) => {
                f.write_str(named.as_str())?;
                bound.map_or(Ok(()), |bound| write!(f, " {} us", bound / US))
            }
            Rule::Slowdown(percent) => write!(f, "weft {percent}%"),
            Rule::Default => f.write_str("default"),
            Rule::Xsched(XSCHED) => f.write_str("xsched"),
            Rule::Xsched(window) => write!(f, "xsched {window}"),
            Rule::XschedWorker => f.write_str("xsched-worker"),
            Rule::Nvshare(NVSHARE) => f.write_str("nvshare"),
            Rule::Nvshare(ms) => write!(f, "nvshare {ms} ms"),
            Rule::Count(COUNT) => f.write_str("count"),
            Rule::Count(window) => write!(f, "count {window}"),
            Rule::MpsPriority => f.write_str("mps-priority"),
            Rule::One => f.write_str("one"),
            Rule::Orion => f.write_str("orion"),
            Rule::Reef => f.write_str("reef"),
            Rule::Tally => f.write_str("tally"),
            Rule::Exclusive => f.write_str("exclusive"),
            Rule::Timeslice => f.write_str("timeslice"),
        }
    }
}

impl Rule {
    /// All rules with the parameters of their projects.
    pub const ALL: [Rule; 14] = [
        Rule::Core(PolicyName::Weft, None),
        Rule::Core(PolicyName::Fikit, None),
        Rule::Xsched(XSCHED),
        Rule::Count(COUNT),
        Rule::Nvshare(NVSHARE),
        Rule::Default,
        Rule::Timeslice,
        Rule::Exclusive,
        Rule::XschedWorker,
        Rule::MpsPriority,
        Rule::One,
        Rule::Orion,
        Rule::Reef,
        Rule::Tally,
    ];

    /// weft.
    pub const WEFT: Rule = Rule::Core(PolicyName::Weft, None);
    /// The paper's policy.
    pub const FIKIT: Rule = Rule::Core(PolicyName::Fikit, None);

    /// The launch control between jobs and device under this rule. `dilation`: see
    /// [`weft_player::Hosts::dilation`].
    pub fn control(self, device: &Settings, dilation: f64) -> LaunchControl {
        match self {
            // The slowdown is a setting of the job.
            Rule::Slowdown(_) => Rule::WEFT.control(device, dilation),
            Rule::Core(named, bound) => {
                let usual = Config::default();
                let config = Config {
                    policy: named,
                    delay_bound: bound.unwrap_or(usual.delay_bound),
                    ..usual
                };
                LaunchControl::weft(config, device, dilation)
            }
            Rule::Default => LaunchControl::Plain,
            Rule::Xsched(window) => LaunchControl::Own(Box::new(Xsched::new(window))),
            Rule::XschedWorker => LaunchControl::Own(Box::new(Xsched::new(XSCHED).spares_launches())),
            Rule::Nvshare(ms) => LaunchControl::Own(Box::new(Nvshare::new(ms * MS))),
            Rule::Count(window) => LaunchControl::Own(Box::new(Count::new(window))),
            Rule::MpsPriority => LaunchControl::Own(Box::new(MpsPriority)),
            Rule::One => LaunchControl::Own(Box::new(Count::new(1))),
            Rule::Orion => {
                let limits = match device.mode {
                    Mode::MpsShared(limits) => limits,
                    Mode::Mps | Mode::TimeSlice => SmLimits::A100_LIKE,
                };
                LaunchControl::Own(Box::new(Orion::new(limits.sms)))
            }
            Rule::Reef => LaunchControl::Own(Box::new(Reef)),
            Rule::Tally => LaunchControl::Own(Box::new(TallyPriority)),
            Rule::Exclusive => LaunchControl::Own(Box::new(ExclusivePriority::default())),
            Rule::Timeslice => LaunchControl::Own(Box::new(Timeslice::default())),
        }
    }

    /// The most that the service may lose, as a part of its time, if the rule sets it.
    pub fn slowdown(self) -> Option<f64> {
        match self {
            Rule::Slowdown(percent) => Some(f64::from(percent) / 100.0),
            _ => None,
        }
    }

    /// The shortest meaningful run: turns of half a minute need several of them.
    pub fn least(self) -> Ns {
        match self {
            Rule::Nvshare(ms) => 4 * ms * MS,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_called_what_it_says() {
        for rule in Rule::ALL.into_iter().chain([Rule::Slowdown(5)]) {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        assert_eq!(Rule::Slowdown(5).slowdown(), Some(0.05));
        let error = "fair".parse::<Rule>().unwrap_err().to_string();
        assert!(error.starts_with("no policy is called \"fair\""));
    }
}
