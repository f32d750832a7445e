// SPDX-License-Identifier: MIT OR Apache-2.0
//! Outcome of one job under weft: its GPU time, its losses, its cost to other jobs, its gain.
//!
//! The daemon's module `outcomes` computes it.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use weft_protocol::lane;

use super::formatting::{count, duration, percent};

/// Error of a GPU time, as a part of it, from which on its bounds are shown.
const CLOSE_RATIO: f64 = 0.1;

/// Outcome of one job under weft. Times from predictions are estimates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Seconds from its attachment to its end.
    pub ran_s: f64,
    /// Part of that as the only job, or waiting for device memory, seconds.
    pub alone_s: f64,
    /// Part of that as a foreground job together with others, seconds.
    pub foreground_s: f64,
    /// Part of that as a background job, seconds.
    pub background_s: f64,
    /// Its whole GPU time, ns, estimated; `None`: nothing to estimate from.
    pub gpu_ns: Option<u64>,
    /// Bounds of it, ns: kernels of a few microseconds cannot be timed exactly, and a foreground
    /// job without a profile counts from its first launches to its waits.
    #[serde(default)]
    pub gpu_least_ns: Option<u64>,
    /// See `gpu_least_ns`.
    #[serde(default)]
    pub gpu_most_ns: Option<u64>,
    /// Part of that while other jobs were attached, ns.
    pub gpu_shared_ns: u64,
    /// Kernel and graph launches.
    pub launches: u64,
    /// Share of its launches whose times the profile has, while other jobs were attached; `None`:
    /// there were no such launches.
    pub launches_known: Option<f64>,
    /// Its loss to background jobs as a foreground job; `None`: nothing was measured.
    pub lost: Option<LatenessSum>,
    /// The same, measured at the requests that it marked: their time together with other jobs minus
    /// their mean time as the only job. `None`: it marked none, or too few to know that mean.
    #[serde(default)]
    pub lost_at_requests: Option<LatenessSum>,
    /// Its cost to foreground jobs as a background job; `None`: nothing was measured.
    pub cost: Option<LatenessSum>,
    /// Requests of foreground jobs at which the cost was measured; 0: measured at their waits.
    #[serde(default)]
    pub cost_requests: u64,
    /// Its gain as a background job; `None`: it was never a background job.
    pub won: Option<Won>,
    /// Its part of the GPU's time as a background job; `None`: it was to have none.
    #[serde(default)]
    pub part: Option<GuaranteedPart>,
    /// Durations of the requests that it marked; `None`: it marked none.
    #[serde(default)]
    pub requests: Option<Requests>,
    /// Launches that passed the gate without credit, after the longest wait.
    pub forced_launches: u64,
    /// Times that it got credit because its own work did not end.
    pub stuck_grants: u64,
    /// Bytes of managed memory moved for it, to the device or to the host.
    pub memory_moved: u64,
    /// Reasons why its protection, or that of others from it, does not work.
    pub warnings: Vec<Warning>,
    /// Its figures for metrics, only within the broker.
    #[serde(skip)]
    pub counters: JobCounters,
}

/// Figures of a job that never fall while it lives, at this broker and the next ones. An estimate
/// may fall; its counter then stays until the estimate is above it again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobCounters {
    /// Seconds since it attached.
    pub run_s: f64,
    /// GPU time, ns; `None`: nothing to estimate from.
    pub gpu_ns: Option<u64>,
    /// GPU time as a background job, ns.
    pub won_ns: u64,
    /// Its lateness as a foreground job, ns.
    pub late_ns: u64,
    /// Lateness that it caused as a background job, ns.
    pub cost_ns: u64,
    /// Kernel and graph launches.
    pub launches: u64,
    /// Launches that passed the gate without credit.
    pub forced_launches: u64,
    /// Time that its launches waited at the gate, ns.
    pub gate_ns: u64,
    /// Managed memory moved for it, bytes.
    pub memory_moved: u64,
}

impl JobCounters {
    /// The figures of an outcome. `gate_ns`: time that its launches waited at the gate.
    pub fn of(outcome: &Outcome, gate_ns: u64) -> JobCounters {
        let late = |sum: Option<LatenessSum>| sum.map_or(0, |sum| sum.ns.max(0) as u64);
        JobCounters {
            run_s: outcome.ran_s.max(0.0),
            gpu_ns: outcome.gpu_ns,
            won_ns: outcome.won.map_or(0, |won| won.over_exclusive_ns),
            late_ns: late(outcome.lost),
            cost_ns: late(outcome.cost),
            launches: outcome.launches,
            forced_launches: outcome.forced_launches,
            gate_ns,
            memory_moved: outcome.memory_moved,
        }
    }

    /// Raises each to its new figure.
    pub fn raise(&mut self, new: &JobCounters) {
        *self = JobCounters {
            run_s: self.run_s.max(new.run_s),
            gpu_ns: self.gpu_ns.max(new.gpu_ns),
            won_ns: self.won_ns.max(new.won_ns),
            late_ns: self.late_ns.max(new.late_ns),
            cost_ns: self.cost_ns.max(new.cost_ns),
            launches: self.launches.max(new.launches),
            forced_launches: self.forced_launches.max(new.forced_launches),
            gate_ns: self.gate_ns.max(new.gate_ns),
            memory_moved: self.memory_moved.max(new.memory_moved),
        };
    }
}

/// Lateness at a foreground job's waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatenessSum {
    /// Its sum, ns. Scatter in the measurements can make it negative.
    pub ns: i64,
    /// Its ratio to the time that the judged stretches would have taken without background work.
    pub part: f64,
    /// Judged waits or requests; 0 for a background job's cost.
    pub waits: u64,
}

impl LatenessSum {
    /// The part for people. A job that works on the device for a moment now and then may lose many
    /// times that moment, of which a figure would say nothing about the job's own time.
    pub fn part_text(&self) -> String {
        match self.part > 1.0 {
            true => "over 100 %".to_string(),
            false => percent(self.part.max(0.0)),
        }
    }
}

/// A background job's part of the GPU's time, while it was to have one and had work, estimated. The
/// rest of that time is shared out by its reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GuaranteedPart {
    /// Length of that time, seconds.
    pub seconds: f64,
    /// The part that it was to have at least.
    pub wanted: f64,
    /// The part that it had.
    pub had: f64,
    /// The part in which its work on the GPU waited behind other jobs'.
    pub behind: f64,
    /// The part in which weft held its launches and it had no work on the GPU.
    pub held: f64,
}

impl GuaranteedPart {
    /// Time that is enough to judge, seconds: the first second gives a job no part.
    const ENOUGH_S: f64 = 10.0;

    /// Ratio to the wanted part below which the part is missed.
    const ENOUGH_RATIO: f64 = 0.85;

    /// The part that it would have had at most if weft had held no launch.
    pub fn could(&self) -> f64 {
        (self.had / (1.0 - self.held).max(self.had)).min(1.0)
    }

    /// The reason why it had less than wanted; `None`: it had about that.
    pub fn missed(&self) -> Option<String> {
        let is_missed = self.had < self.wanted * Self::ENOUGH_RATIO;
        let idle = (1.0 - self.had - self.behind - self.held).max(0.0);
        let reason = match self.could() < self.wanted * Self::ENOUGH_RATIO {
            false => format!(
                "weft held its launches for {} of the time: the parts of all jobs may be too much together",
                percent(self.held)
            ),
            true if self.behind > idle => format!(
                "its work waited on the GPU behind other jobs' for {} of the time, so it could have {} at most; let it launch more between two waits, or use weft run --mps on",
                percent(self.behind),
                percent(self.could()),
            ),
            true => format!(
                "it had no work for the GPU for {} of the time, so it could have {} at most",
                percent(idle),
                percent(self.could()),
            ),
        };
        (is_missed && self.seconds >= Self::ENOUGH_S).then_some(reason)
    }
}

/// Marked requests, each from its begin to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// With no other job attached.
    pub alone: Option<RequestTimes>,
    /// Together with other jobs.
    pub beside: Option<RequestTimes>,
}

/// Durations of requests. Quantiles are exact to 2 %.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestTimes {
    /// How many.
    pub count: u64,
    /// Mean, ns.
    pub mean_ns: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
}

impl Requests {
    /// The requests that a lane reports; `None`: none were marked.
    pub fn of(times: &lane::MarkedRequests) -> Option<Requests> {
        let counts = |durations: &lane::Durations| durations.counts().unwrap_or_default();
        Requests::of_counts(&counts(&times.alone), &counts(&times.beside))
    }

    /// The requests of these counts; `None`: there are none.
    pub fn of_counts(alone: &lane::DurationCounts, beside: &lane::DurationCounts) -> Option<Requests> {
        let of = |counts: &lane::DurationCounts| {
            counts.figures().map(|figures| RequestTimes {
                count: figures.count,
                mean_ns: figures.mean,
                p50_ns: figures.p50,
                p99_ns: figures.p99,
            })
        };
        let requests = Requests {
            alone: of(alone),
            beside: of(beside),
        };
        (requests != Requests::default()).then_some(requests)
    }

    /// For people: `1,200 requests: mean 8.1 ms, p99 9.4 ms with other jobs; 8.0 ms, 9.1 ms alone`.
    fn text(&self) -> String {
        let figures = |times: RequestTimes| format!("{}, p99 {}", duration(times.mean_ns), duration(times.p99_ns));
        let number = |times: Option<RequestTimes>| times.map_or(0, |times| times.count);
        let all = count(number(self.alone) + number(self.beside), "request", "requests");
        let parts = [(self.beside, "with other jobs"), (self.alone, "alone")];
        let parts = parts
            .into_iter()
            .filter_map(|(times, how)| times.map(|times| format!("mean {} {how}", figures(times))));
        format!("{all}: {}", parts.collect::<Vec<_>>().join(", "))
    }
}

/// Gain of a background job, estimated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Won {
    /// GPU time beyond that under exclusive use, ns. Under exclusive use a background job gets none
    /// while a foreground job is attached.
    pub over_exclusive_ns: u64,
    /// The most GPU time that sharing without weft would have given, ns: the time that foreground
    /// jobs left while it had work, in equal parts among background jobs. At most its GPU time plus
    /// the time that its launches were held.
    pub plain_ns: u64,
    /// Its GPU time divided by `plain_ns`, at most 1; `None`: nothing was left.
    pub of_plain: Option<f64>,
}

/// Kind of a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    /// A background job's kernels are longer than the delay bound.
    LongKernels,
    /// A foreground job has no profile, and others share its device.
    NoProfile,
    /// The profile is of other code, of another GPU, or cannot be read.
    WrongProfile,
    /// Two jobs have the same first priority.
    SamePriority,
    /// Another broker has the device.
    OtherBroker,
    /// Launches passed the gate without credit.
    ForcedLaunches,
    /// A background job has no profile, and the foreground job loses by it.
    BackgroundNoProfile,
    /// A foreground job loses more to background jobs than its slowdown allows.
    OverSlowdown,
    /// The device takes turns between processes.
    NoMps,
    /// Launches passed the gate without credit: a more important background job has the gaps.
    Outranked,
    /// A foreground job loses more than its slowdown allows: a background job has a part of the
    /// GPU's time.
    WantedLoss,
    /// A background job has less than its part of the GPU's time.
    PartMissed,
}

/// One reason why protection does not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Its kind.
    pub kind: WarningKind,
    /// The client that it is about; `None`: its device.
    pub client: Option<u64>,
    /// UUID of the device, in hexadecimal, if one is meant and known.
    pub device: Option<String>,
    /// One line with the problem, its place and the remedy.
    pub text: String,
}

impl Outcome {
    /// The bounds of its GPU time of `ns`, ns.
    fn gpu_bounds(&self, ns: u64) -> (u64, u64) {
        (self.gpu_least_ns.unwrap_or(ns), self.gpu_most_ns.unwrap_or(ns))
    }

    /// Whether its GPU time is off by a tenth at most.
    pub fn is_close(&self) -> bool {
        let ns = self.gpu_ns.unwrap_or(0);
        let (least, most) = self.gpu_bounds(ns);
        let error = ns.saturating_sub(least).max(most.saturating_sub(ns));
        error as f64 <= ns as f64 * CLOSE_RATIO
    }

    /// A part of its GPU time as a figure, ns, and whether that is only an upper bound: the whole
    /// may be off by more than a tenth.
    pub fn gpu_figure(&self, ns: u64) -> (u64, bool) {
        let (whole, at_most) = (self.gpu_ns.unwrap_or(0), !self.is_close());
        match (at_most, self.gpu_most_ns) {
            (true, Some(most)) if whole == 0 => (most, true),
            (true, Some(most)) => ((ns as f64 * (most as f64 / whole as f64)) as u64, true),
            _ => (ns, at_most),
        }
    }

    /// A part of its GPU time for people: `about 3 s`, or `at most 3 s`.
    pub fn gpu_part_text(&self, ns: u64) -> String {
        match self.gpu_figure(ns) {
            (ns, false) => format!("about {}", duration(ns)),
            (ns, true) => format!("at most {}", duration(ns)),
        }
    }

    /// Its GPU time for people, with bounds if it may be off by more than a tenth.
    pub fn gpu_text(&self) -> Option<String> {
        let ns = self.gpu_ns?;
        let (least, most) = self.gpu_bounds(ns);
        Some(match least {
            1.. if !self.is_close() => format!("{} to {}", duration(least), duration(most)),
            _ => self.gpu_part_text(ns),
        })
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let ran = |seconds: f64| duration((seconds.max(0.0) * 1e9) as u64);
        let mut parts = Vec::new();
        let shared = self.foreground_s + self.background_s;
        let role = match (self.foreground_s > 0.0, self.background_s > 0.0) {
            (false, false) => "alone on the GPU".to_string(),
            (true, false) => format!("{} of it as the foreground job", ran(self.foreground_s)),
            (false, true) => format!("{} of it in the background", ran(self.background_s)),
            (true, true) => format!(
                "{} of it as the foreground job, {} in the background",
                ran(self.foreground_s),
                ran(self.background_s)
            ),
        };
        parts.push(format!("ran {}, {role}", ran(self.ran_s)));
        parts.push(match self.gpu_text() {
            Some(gpu) => format!("had {gpu} of GPU time"),
            None => count(self.launches, "launch", "launches"),
        });
        if let Some(part) = self.part {
            let (had, wanted) = (percent(part.had), percent(part.wanted));
            parts.push(format!("{had} of the GPU's time, and {wanted} was asked for"));
        }
        // The loss at marked requests is the more complete one, so it has precedence.
        if let Some(lost) = self.lost_at_requests.or(self.lost) {
            let requests = self.lost_at_requests.map_or(0, |lost| lost.waits);
            parts.push(format!(
                "lost {} ({}) to background jobs{}",
                duration(lost.ns.max(0) as u64),
                lost.part_text(),
                at_requests(requests)
            ));
        }
        // Without any time of its work, that it won is not known either.
        if let (Some(won), Some(_)) = (self.won, self.gpu_ns) {
            let of_plain = match won.of_plain {
                Some(part) => format!(", about {} of the maximum under plain sharing", percent(part)),
                None => String::new(),
            };
            parts.push(format!(
                "won {} over exclusive use{of_plain}",
                self.gpu_part_text(won.over_exclusive_ns)
            ));
        }
        if let Some(cost) = self.cost {
            parts.push(format!(
                "cost the foreground job {} ({}){}",
                duration(cost.ns.max(0) as u64),
                cost.part_text(),
                at_requests(self.cost_requests)
            ));
        }
        if let Some(requests) = self.requests {
            parts.push(requests.text());
        }
        if shared > 0.0 && self.launches_known.is_some_and(|known| known > 0.0) {
            let known = self.launches_known.unwrap_or(0.0);
            parts.push(format!("{} of its launches known by profile", percent(known)));
        }
        if self.forced_launches > 0 {
            parts.push(format!("{} forced", count(self.forced_launches, "launch", "launches")));
        }
        if self.memory_moved > 0 {
            parts.push(format!(
                "{} of memory moved",
                weft_protocol::amount::shown(self.memory_moved)
            ));
        }
        parts.join("; ")
    }

    /// Lines printed when the job of this name ends: the outcome and its warnings.
    pub fn end_lines(&self, name: &str) -> Vec<String> {
        let warnings = self.warnings.iter().map(|warning| {
            let own = warning.client.and(warning.text.strip_prefix(name));
            let text = own.and_then(|text| text.strip_prefix(": ")).unwrap_or(&warning.text);
            format!("warning: {text}")
        });
        [self.line()].into_iter().chain(warnings).collect()
    }
}

/// Text `, measured at N requests`; empty if the lateness was measured at waits.
fn at_requests(requests: u64) -> String {
    match requests {
        0 => String::new(),
        _ => format!(", measured at {}", count(requests, "request", "requests")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_requests_are_told_alone_and_beside_others() {
        let times = lane::MarkedRequests::default();
        assert_eq!(Requests::of(&times), None);
        times.beside.add(8_000_000);
        let beside = Requests::of(&times).expect("some");
        // The middle of a bucket, so within 2 %.
        assert_eq!(beside.text(), "1 request: mean 8.00 ms, p99 8.06 ms with other jobs");
        times.alone.add(4_000_000);
        let both = Requests::of(&times).expect("some");
        assert_eq!(
            both.text(),
            "2 requests: mean 8.00 ms, p99 8.06 ms with other jobs, mean 4.00 ms, p99 4.03 ms alone"
        );
        // A row without the field `requests` is still readable.
        let old = serde_json::to_value(Outcome::default()).expect("JSON");
        let mut old = old.as_object().expect("an object").clone();
        old.remove("requests");
        let read: Outcome = serde_json::from_value(old.into()).expect("an outcome");
        assert_eq!(read, Outcome::default());
    }

    #[test]
    fn a_counter_never_falls() {
        let mut counters = JobCounters::default();
        for (gpu_ns, late, expected) in [
            (Some(2), 5, (Some(2), 5)),
            (Some(1), -5, (Some(2), 5)),
            (None, 4, (Some(2), 5)),
            (Some(3), 6, (Some(3), 6)),
        ] {
            let lost = LatenessSum {
                ns: late,
                ..LatenessSum::default()
            };
            let outcome = Outcome {
                gpu_ns,
                lost: Some(lost),
                ..Outcome::default()
            };
            counters.raise(&JobCounters::of(&outcome, 7));
            assert_eq!((counters.gpu_ns, counters.late_ns), expected);
        }
        assert_eq!(counters.gate_ns, 7);
    }

    #[test]
    fn a_line_says_what_was_lost_and_won() {
        let alone = Outcome {
            ran_s: 2.5,
            alone_s: 2.5,
            launches: 12,
            ..Outcome::default()
        };
        assert_eq!(alone.line(), "ran 2.50 s, alone on the GPU; 12 launches");
        let foreground = Outcome {
            ran_s: 60.0,
            foreground_s: 50.0,
            gpu_ns: Some(20_000_000_000),
            launches_known: Some(1.0),
            lost: Some(LatenessSum {
                ns: 35_000_000,
                part: 0.0017,
                waits: 812,
            }),
            ..Outcome::default()
        };
        assert_eq!(
            foreground.line(),
            "ran 60.0 s, 50.0 s of it as the foreground job; had about 20.0 s of GPU time; \
             lost 35.0 ms (0.17 %) to background jobs; 100 % of its launches known by profile"
        );
        let background = Outcome {
            ran_s: 60.0,
            background_s: 50.0,
            gpu_ns: Some(24_000_000_000),
            cost: Some(LatenessSum {
                ns: -5,
                part: -0.1,
                waits: 0,
            }),
            won: Some(Won {
                over_exclusive_ns: 24_000_000_000,
                plain_ns: 30_000_000_000,
                of_plain: Some(0.8),
            }),
            forced_launches: 1,
            memory_moved: 3 << 30,
            warnings: vec![Warning {
                kind: WarningKind::ForcedLaunches,
                client: Some(1),
                device: None,
                text: "train.py: what, where, what to do".to_string(),
            }],
            ..Outcome::default()
        };
        let lines = background.end_lines("train.py");
        assert_eq!(
            lines[0],
            "ran 60.0 s, 50.0 s of it in the background; had about 24.0 s of GPU time; \
             won about 24.0 s over exclusive use, about 80 % of the maximum under plain sharing; \
             cost the foreground job 0 (0 %); 1 launch forced; 3.00 GiB of memory moved"
        );
        assert_eq!(lines[1], "warning: what, where, what to do");
        let bounded = Outcome {
            gpu_least_ns: Some(0),
            gpu_most_ns: Some(36_000_000_000),
            ..background
        };
        let line = bounded.line();
        assert!(
            line.contains("had at most 36.0 s of GPU time; won at most 36.0 s over"),
            "{line}"
        );
        let untimed = Outcome {
            gpu_ns: None,
            ..bounded
        };
        assert!(!untimed.line().contains("won"), "{}", untimed.line());
    }
}
