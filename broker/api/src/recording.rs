// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker's recording of one job: its intervals, its cost to each foreground job, lengths of
//! its stretches, its warnings with their times.
//!
//! `weft report` draws it. All figures of an interval are sums, so two neighbours can be merged:
//! a recording of any length fits in any number of intervals.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::outcome::Warning;

/// Most intervals of a recording that is stored or sent: more than a page has pixels for.
pub const MOST_INTERVALS: usize = 256;

/// Most attached jobs of one answer, and most ended jobs: about a megabyte.
pub const MOST_JOBS: u64 = 64;

macro_rules! job_interval {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A job's figures for one interval: its work, its losses, its cost to others.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct JobInterval {
            $($(#[$doc])* pub $name: i64,)*
        }

        impl JobInterval {
            /// Adds the figures of a neighbour.
            pub fn add(&mut self, other: &JobInterval) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }

            /// The figures of all intervals by name, without those that are 0 in all of them.
            fn columns(all: &[JobInterval]) -> BTreeMap<&'static str, Vec<i64>> {
                let mut columns = BTreeMap::new();
                $(
                    let column: Vec<i64> = all.iter().map(|one| one.$name).collect();
                    if column.iter().any(|figure| *figure != 0) {
                        columns.insert(stringify!($name), column);
                    }
                )*
                columns
            }

            /// The inverse of `columns`. Names of another build are left out, missing figures are
            /// 0.
            fn of_columns(mut columns: BTreeMap<String, Vec<i64>>) -> Vec<JobInterval> {
                let count = columns.get("length_ns").map_or(0, Vec::len).min(MOST_INTERVALS);
                let mut all = vec![JobInterval::default(); count];
                $(
                    let column = columns.remove(stringify!($name)).unwrap_or_default();
                    for (one, figure) in all.iter_mut().zip(column) {
                        one.$name = figure;
                    }
                )*
                all
            }
        }
    };
}

job_interval! {
    /// Its length.
    length_ns,
    /// Part of that as a foreground job.
    foreground_ns,
    /// Part of that as a background job.
    background_ns,
    /// Part of that in which it waited for device memory.
    memory_wait_ns,
    /// GPU time while other jobs were attached, estimated.
    gpu_ns,
    /// Kernel and graph launches.
    launches,
    /// Its loss to background jobs, measured.
    lost_ns,
    /// Time that the judged stretches would have taken without background work.
    judged_ns,
    /// Judged waits.
    waits,
    /// Its cost to foreground jobs.
    cost_ns,
    /// Time that the judged stretches of those jobs would have taken without background work.
    cost_of_ns,
    /// Time that launches were held at the gate.
    gate_ns,
    /// Time that launches waited for arriving memory.
    paging_ns,
    /// Managed memory moved for it, bytes.
    moved_bytes,
    /// Launches that passed the gate without credit.
    forced,
}

impl JobInterval {
    /// Its GPU time together with other jobs as a part of the interval, estimated.
    pub fn share(&self) -> f64 {
        match self.length_ns {
            length @ 1.. => self.gpu_ns as f64 / length as f64,
            _ => 0.0,
        }
    }

    /// The role that the job had for most of the interval.
    pub fn role(&self) -> &'static str {
        let alone = self.length_ns - self.foreground_ns - self.background_ns - self.memory_wait_ns;
        let roles = [
            (alone, "alone"),
            (self.memory_wait_ns, "waits for memory"),
            (self.background_ns, "background"),
            (self.foreground_ns, "foreground"),
        ];
        let most = roles.into_iter().max_by_key(|(ns, _)| *ns);
        most.map_or("alone", |(_, role)| role)
    }

    /// Part of its time that it lost as a foreground job; `None`: nothing was judged.
    pub fn lateness(&self) -> Option<f64> {
        (self.judged_ns > 0).then(|| self.lost_ns as f64 / self.judged_ns as f64)
    }
}

/// Merges every two neighbours into one interval.
pub fn merge_pairs(intervals: &mut Vec<JobInterval>) {
    let merged = intervals.chunks(2).map(|pair| {
        let mut sum = JobInterval::default();
        pair.iter().for_each(|one| sum.add(one));
        sum
    });
    *intervals = merged.collect();
}

/// Cost of a background job to one foreground job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostShare {
    /// The foreground job's client; 0: all further foreground jobs together.
    pub client: u64,
    /// Its process.
    pub pid: u32,
    /// Its lateness caused by the background job, ns. Scatter can make it negative.
    pub ns: i64,
}

/// Lengths of stretches, from first launches to waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StretchLengths {
    /// Number of stretches.
    pub count: u64,
    /// Sum of their lengths, ns.
    pub sum_ns: u64,
    /// Their number in each class of
    /// [`StretchHistogram`](weft_scheduler::StretchHistogram), the shortest first.
    pub classes: Vec<(u16, u32)>,
}

impl StretchLengths {
    /// Adds the stretches of another time.
    pub fn add(&mut self, other: &StretchLengths) {
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        let mut all: BTreeMap<u16, u32> = self.classes.iter().copied().collect();
        for (class, count) in &other.classes {
            let seen = all.entry(*class).or_default();
            *seen = seen.saturating_add(*count);
        }
        self.classes = all.into_iter().collect();
    }

    /// Mean length, ns; `None`: there were none.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }

    /// Length that a part of them does not exceed, ns, to 3 % of itself; `None`: there were none.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let all: u64 = self.classes.iter().map(|(_, count)| u64::from(*count)).sum();
        let wanted = part.clamp(0.0, 1.0) * all as f64;
        let mut before = 0.0;
        for (class, count) in &self.classes {
            let count = f64::from(*count);
            if before + count >= wanted && count > 0.0 {
                let (begin, end) = weft_scheduler::StretchHistogram::bounds(usize::from(*class));
                return Some(begin + ((end - begin) as f64 * (wanted - before) / count) as u64);
            }
            before += count;
        }
        None
    }
}

impl From<&weft_scheduler::StretchHistogram> for StretchLengths {
    fn from(seen: &weft_scheduler::StretchHistogram) -> StretchLengths {
        StretchLengths {
            count: seen.count(),
            sum_ns: seen.sum(),
            classes: seen.classes().map(|(class, count)| (class as u16, count)).collect(),
        }
    }
}

/// Lengths of a foreground job's stretches without and with background work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StretchLatency {
    /// Those without background work.
    pub alone: StretchLengths,
    /// Those that found background work on the device, or in which some was launched.
    pub beside: StretchLengths,
}

impl From<&weft_scheduler::StretchTimes> for StretchLatency {
    fn from(times: &weft_scheduler::StretchTimes) -> StretchLatency {
        StretchLatency {
            alone: StretchLengths::from(&times.alone),
            beside: StretchLengths::from(&times.beside),
        }
    }
}

impl StretchLatency {
    /// Adds the stretches of another account.
    pub fn add(&mut self, other: &StretchLatency) {
        self.alone.add(&other.alone);
        self.beside.add(&other.beside);
    }
}

/// A warning and the time span in which it was true.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarningTime {
    /// The warning with its latest text.
    pub warning: Warning,
    /// First seen, ns after the recording's begin; checked at least every 10 s.
    pub first_ns: u64,
    /// Last seen, ns after the recording's begin.
    pub last_ns: u64,
}

/// The recording of one job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRecording {
    /// Its begin, milliseconds since 1970.
    pub begin_ms: u64,
    /// Its begin, ns of `CLOCK_MONOTONIC`, as in the broker's trace.
    pub begin_ns: u64,
    /// Intervals that cover its whole time.
    #[serde(serialize_with = "as_columns", deserialize_with = "from_columns")]
    pub intervals: Vec<JobInterval>,
    /// Its cost to each foreground job.
    pub costs: Vec<CostShare>,
    /// Lengths of its stretches as a foreground job; `None`: none was seen.
    pub latency: Option<StretchLatency>,
    /// Allowed slowdown as a foreground job, a part of its time, as set at the end.
    pub slowdown_allowed: Option<f64>,
    /// Its warnings, the earliest first.
    pub warned: Vec<WarningTime>,
}

impl JobRecording {
    /// Its length, ns.
    pub fn length_ns(&self) -> u64 {
        let length: i64 = self.intervals.iter().map(|one| one.length_ns).sum();
        length.max(0) as u64
    }

    /// The sum of its intervals.
    pub fn sum(&self) -> JobInterval {
        let mut sum = JobInterval::default();
        self.intervals.iter().for_each(|one| sum.add(one));
        sum
    }
}

fn as_columns<S: Serializer>(intervals: &[JobInterval], to: S) -> Result<S::Ok, S::Error> {
    JobInterval::columns(intervals).serialize(to)
}

fn from_columns<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<JobInterval>, D::Error> {
    BTreeMap::deserialize(from).map(JobInterval::of_columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(length_ns: i64, gpu_ns: i64) -> JobInterval {
        JobInterval {
            length_ns,
            gpu_ns,
            lost_ns: -3,
            ..JobInterval::default()
        }
    }

    #[test]
    fn merged_pairs_have_the_same_sum() {
        let mut recording = JobRecording {
            intervals: (1..=5).map(|number| interval(number, 10 * number)).collect(),
            ..JobRecording::default()
        };
        let before = recording.sum();
        merge_pairs(&mut recording.intervals);
        assert_eq!(recording.sum(), before);
        let lengths: Vec<i64> = recording.intervals.iter().map(|one| one.length_ns).collect();
        assert_eq!(lengths, [3, 7, 5]);
        assert_eq!(recording.length_ns(), 15);
    }

    #[test]
    fn figures_are_stored_by_name_and_those_of_another_build_are_left_out() {
        let recording = JobRecording {
            begin_ms: 7,
            intervals: vec![interval(1, 2), interval(3, 4)],
            ..JobRecording::default()
        };
        let text = serde_json::to_string(&recording).expect("JSON");
        assert!(text.contains(r#""intervals":{"gpu_ns":[2,4],"length_ns":[1,3],"lost_ns":[-3,-3]}"#));
        assert_eq!(
            serde_json::from_str::<JobRecording>(&text).expect("the same"),
            recording
        );
        let other = r#"{"intervals": {"length_ns": [5, 6], "gpu_ns": [1], "colour": [3, 3]}, "more": 1}"#;
        let other: JobRecording = serde_json::from_str(other).expect("read");
        assert_eq!((other.length_ns(), other.sum().gpu_ns), (11, 1));
        let long = format!(r#"{{"intervals": {{"length_ns": {:?}}}}}"#, vec![1; 10_000]);
        let long: JobRecording = serde_json::from_str(&long).expect("read");
        assert_eq!(long.intervals.len(), MOST_INTERVALS);
    }

    #[test]
    fn quantiles_lie_in_their_class() {
        let mut seen = weft_scheduler::StretchHistogram::default();
        assert_eq!(StretchLengths::from(&seen).quantile_ns(0.5), None);
        for _ in 0..99 {
            seen.add(2_000_000);
        }
        seen.add(9_000_000);
        let mut lengths = StretchLengths::from(&seen);
        lengths.add(&StretchLengths::from(&seen));
        assert_eq!(lengths.count, 200);
        assert_eq!(lengths.mean_ns(), Some(2_070_000));
        let at = |part| lengths.quantile_ns(part).expect("some") as f64;
        assert!((at(0.5) / 2e6 - 1.0).abs() < 0.04, "{}", at(0.5));
        assert!((at(1.0) / 9e6 - 1.0).abs() < 0.04, "{}", at(1.0));
    }
}
