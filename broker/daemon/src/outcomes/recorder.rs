// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interval recorder: the time of each attached job, in a bounded number of intervals. Pure: its
//! inputs are figures of snapshots and the time.
//!
//! A job has intervals of a second. If there are too many, every two neighbours are merged, and new
//! ones are twice as long. So the intervals cover the whole time of a job, and their number is
//! between half the bound and the bound. All jobs together have little more than [`MOST_IN_ALL`].
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

use weft_protocol::Ns;
use weft_scheduler::StretchTimes;

use super::book::IntervalPart;
use crate::clients::registry::LaneTallies;
use weft_api::outcome::{Warning, WarningKind};
use weft_api::recording::{
    CostShare, JobInterval, JobRecording, MOST_INTERVALS, StretchLatency, WarningTime, merge_pairs,
};

/// Length of an interval at first, ns: the time between two snapshots.
const FIRST_LENGTH_NS: i64 = 1_000_000_000;

/// Most intervals of a job, four times those that are stored.
const MOST_OF_A_JOB: usize = 1_024;

/// Least value of the bound on a job's intervals, however many jobs there are.
const LEAST_OF_A_JOB: usize = 64;

/// Intervals of all jobs: up to 64 jobs may each have the most that a job may have.
const MOST_IN_ALL: usize = 65_536;

/// Foreground jobs for which a job's cost is recorded separately; that to further ones is one sum.
const MOST_COSTS: usize = 32;

/// The time of one job.
#[derive(Debug, Default)]
struct JobSeries {
    pid: u32,
    begin_ms: u64,
    begin: Ns,
    end: Ns,
    /// Length of an interval now, ns.
    length: i64,
    intervals: Vec<JobInterval>,
    seen: LaneTallies,
    /// Sums so far, ns: the whole numbers in the intervals add up to their whole parts.
    late: f64,
    judged: f64,
    cost: f64,
    cost_of: f64,
    costs: BTreeMap<u64, (u32, f64)>,
    /// Lengths of stretches before the core's account restarted, and those of the present account.
    stretches_before: StretchLatency,
    stretches: Option<Box<StretchTimes>>,
    slowdown_allowed: Option<f64>,
    warned: BTreeMap<WarningKind, WarningTime>,
}

impl JobSeries {
    fn push(&mut self, new: JobInterval, most: usize) {
        match self.intervals.last_mut() {
            Some(last) if new.length_ns == 0 || last.length_ns + new.length_ns / 2 < self.length => last.add(&new),
            _ => self.intervals.push(new),
        }
        while self.intervals.len() > most {
            merge_pairs(&mut self.intervals);
            self.length = self.length.saturating_mul(2);
        }
    }

    /// Takes over the account's lengths of stretches.
    fn take_stretches(&mut self, now: Option<&StretchTimes>) {
        let count = |times: &StretchTimes| times.alone.count() + times.beside.count();
        let mut before = self.stretches.as_deref().map_or(0, count);
        if now.map_or(0, count) < before
            && let Some(ended) = self.stretches.take()
        {
            self.stretches_before.add(&StretchLatency::from(&*ended));
            before = 0;
        }
        if let Some(now) = now.filter(|now| count(now) > before) {
            self.stretches = Some(Box::new(now.clone()));
        }
    }

    fn latency(&self) -> Option<StretchLatency> {
        let mut latency = self.stretches_before.clone();
        if let Some(now) = &self.stretches {
            latency.add(&StretchLatency::from(&**now));
        }
        (latency.alone.count + latency.beside.count > 0).then_some(latency)
    }
}

/// Figures of one job in a snapshot.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    /// Its part of the interval; `None`: it is on no device, because it waits for memory or has
    /// launched nothing.
    pub(super) part: Option<&'a IntervalPart>,
    /// Counters of its lane.
    pub(super) lane: LaneTallies,
    /// Lengths of its stretches, if its device's policy measures them.
    pub(super) stretches: Option<&'a StretchTimes>,
    /// Its allowed slowdown, a part of its time.
    pub(super) slowdown_allowed: Option<f64>,
}

/// The time of all attached jobs.
#[derive(Debug, Default)]
pub(super) struct IntervalRecorder {
    jobs: HashMap<u64, JobSeries>,
}

impl IntervalRecorder {
    /// Begins the recording of a new job. `now_ms`: milliseconds since 1970.
    pub(super) fn joined(&mut self, client: u64, pid: u32, now: Ns, now_ms: u64) {
        let series = JobSeries {
            pid,
            begin_ms: now_ms,
            begin: now,
            end: now,
            length: FIRST_LENGTH_NS,
            ..JobSeries::default()
        };
        self.jobs.insert(client, series);
    }

    /// Adds a job's figures in a snapshot.
    pub(super) fn take(&mut self, now: Ns, client: u64, seen: &Seen<'_>) {
        let most = (MOST_IN_ALL / self.jobs.len().max(1)).clamp(LEAST_OF_A_JOB, MOST_OF_A_JOB);
        let costs: Vec<(u64, u32, f64)> = seen.part.map_or(Vec::new(), |part| {
            let pid = |of| self.jobs.get(of).map_or(0, |job| job.pid);
            let costs = part.costs.iter();
            costs.map(|(of, cost)| (*of, pid(of), *cost)).collect()
        });
        let Some(job) = self.jobs.get_mut(&client) else {
            return;
        };
        let length = now.saturating_sub(job.end) as i64;
        job.end = job.end.max(now);
        let moved = |now: u64, before: u64| now.wrapping_sub(before) as i64;
        let (lane, before) = (seen.lane, job.seen);
        let mut new = JobInterval {
            length_ns: length,
            launches: moved(lane.launches, before.launches),
            gate_ns: moved(lane.gate_ns, before.gate_ns),
            paging_ns: moved(lane.paging_ns, before.paging_ns),
            moved_bytes: moved(lane.moved_bytes, before.moved_bytes),
            forced: moved(lane.forced, before.forced),
            ..JobInterval::default()
        };
        job.seen = lane;
        match seen.part {
            Some(part) => {
                let of_it = (part.length as i64).min(length);
                match part.mode {
                    "foreground" => new.foreground_ns = of_it,
                    "background" => new.background_ns = of_it,
                    _ => {}
                }
                new.gpu_ns = part.gpu_in_all as i64;
                new.waits = part.waits as i64;
                new.lost_ns = whole_step(&mut job.late, part.late);
                new.judged_ns = whole_step(&mut job.judged, part.judged);
                new.cost_ns = whole_step(&mut job.cost, part.cost);
                new.cost_of_ns = whole_step(&mut job.cost_of, part.cost_of);
                job.take_stretches(seen.stretches);
            }
            None if lane.waits_for_memory => new.memory_wait_ns = length,
            None => {}
        }
        job.slowdown_allowed = seen.slowdown_allowed.or(job.slowdown_allowed);
        for (of, pid, cost) in costs {
            let known = job.costs.contains_key(&of) || job.costs.len() < MOST_COSTS;
            let (of, pid) = if known { (of, pid) } else { (0, 0) };
            job.costs.entry(of).or_insert((pid, 0.0)).1 += cost;
        }
        job.push(new, most);
    }

    /// Records that a warning about a job is true now.
    pub(super) fn warned(&mut self, client: u64, now: Ns, warning: &Warning) {
        let Some(job) = self.jobs.get_mut(&client) else {
            return;
        };
        let at = now.saturating_sub(job.begin);
        let seen = job.warned.entry(warning.kind).or_insert_with(|| WarningTime {
            warning: warning.clone(),
            first_ns: at,
            last_ns: at,
        });
        seen.last_ns = at;
        if seen.warning != *warning {
            seen.warning = warning.clone();
        }
    }

    /// A job's recording so far, in [`MOST_INTERVALS`] intervals at most.
    pub(super) fn recording(&self, client: u64) -> Option<JobRecording> {
        let job = self.jobs.get(&client)?;
        let mut intervals = job.intervals.clone();
        while intervals.len() > MOST_INTERVALS {
            merge_pairs(&mut intervals);
        }
        let costs = job.costs.iter().map(|(client, (pid, cost))| CostShare {
            client: *client,
            pid: *pid,
            ns: *cost as i64,
        });
        let mut warned: Vec<WarningTime> = job.warned.values().cloned().collect();
        warned.sort_by_key(|one| one.first_ns);
        Some(JobRecording {
            begin_ms: job.begin_ms,
            begin_ns: job.begin,
            intervals,
            costs: costs.collect(),
            latency: job.latency(),
            slowdown_allowed: job.slowdown_allowed,
            warned,
        })
    }

    /// Forgets a job.
    pub(super) fn forget(&mut self, client: u64) {
        self.jobs.remove(&client);
    }
}

/// Adds `new` to a sum and returns the increase of its whole part.
fn whole_step(sum: &mut f64, new: f64) -> i64 {
    let before = *sum as i64;
    *sum += new;
    (*sum as i64).saturating_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Ns = 1_000_000_000;

    fn part(mode: &'static str, length: Ns, gpu: Ns) -> IntervalPart {
        let mut part = IntervalPart::of(1, mode, length);
        part.gpu_in_all = gpu;
        (part.late, part.judged, part.waits) = (0.5, 10.0, 1);
        part
    }

    fn seen<'a>(part: Option<&'a IntervalPart>, launches: u64) -> Seen<'a> {
        Seen {
            part,
            lane: LaneTallies {
                launches,
                ..LaneTallies::default()
            },
            stretches: None,
            slowdown_allowed: None,
        }
    }

    #[test]
    fn any_length_of_time_fits_and_nothing_is_lost() {
        let mut recorder = IntervalRecorder::default();
        recorder.joined(1, 7, 5 * S, 42);
        let looks = 10_000;
        for look in 1..=looks {
            let part = part("foreground", S, 3);
            recorder.take((5 + look) * S, 1, &seen(Some(&part), 2 * look));
            let kept = recorder.jobs[&1].intervals.len();
            assert!(kept <= MOST_OF_A_JOB, "{kept}");
            assert!(kept >= (look as usize).min(MOST_OF_A_JOB / 2), "{kept} of {look}");
        }
        let recording = recorder.recording(1).expect("there");
        assert!((MOST_INTERVALS / 2..=MOST_INTERVALS).contains(&recording.intervals.len()));
        assert_eq!((recording.begin_ms, recording.begin_ns), (42, 5 * S));
        let sum = recording.sum();
        assert_eq!(sum.length_ns as Ns, looks * S);
        assert_eq!((sum.foreground_ns, sum.background_ns), (sum.length_ns, 0));
        assert_eq!((sum.gpu_ns, sum.launches), (30_000, 20_000));
        assert_eq!((sum.lost_ns, sum.judged_ns, sum.waits), (5_000, 100_000, 10_000));
        let lengths: Vec<i64> = recording.intervals.iter().map(|one| one.length_ns).collect();
        let (last, others) = lengths.split_last().expect("some");
        assert!(others.windows(2).all(|pair| pair[0] == pair[1]), "{lengths:?}");
        assert!(*last <= others[0]);
    }

    #[test]
    fn many_jobs_share_the_bound() {
        let mut recorder = IntervalRecorder::default();
        for client in 0..1_000 {
            recorder.joined(client, 1, 0, 0);
        }
        for look in 1..=300 {
            for client in 0..1_000 {
                recorder.take(look * S, client, &seen(None, 0));
            }
        }
        let all: usize = recorder.jobs.values().map(|job| job.intervals.len()).sum();
        assert!(all <= MOST_IN_ALL, "{all}");
        assert!(recorder.jobs.values().all(|job| job.length == 8 * FIRST_LENGTH_NS));
    }

    #[test]
    fn looks_in_between_make_no_intervals() {
        let mut recorder = IntervalRecorder::default();
        recorder.joined(1, 7, 0, 0);
        for look in 1..=100 {
            let part = part("background", S / 10, 1);
            recorder.take(look * S / 10, 1, &seen(Some(&part), 0));
        }
        // Figures that arrive after the end are added to the last interval.
        let late = part("background", 0, 5);
        recorder.take(0, 1, &seen(Some(&late), 9));
        let recording = recorder.recording(1).expect("there");
        assert_eq!(recording.intervals.len(), 10);
        let last = recording.intervals[9];
        assert_eq!((last.length_ns, last.gpu_ns, last.launches), (1_000_000_000, 15, 9));
    }

    #[test]
    fn waiting_for_memory_is_a_time_of_its_own() {
        let mut recorder = IntervalRecorder::default();
        recorder.joined(1, 7, 0, 0);
        let waits = Seen {
            lane: LaneTallies {
                waits_for_memory: true,
                ..LaneTallies::default()
            },
            ..seen(None, 0)
        };
        recorder.take(3 * S, 1, &waits);
        recorder.take(5 * S, 1, &seen(None, 0));
        let sum = recorder.recording(1).expect("there").sum();
        assert_eq!((sum.memory_wait_ns, sum.length_ns), (3_000_000_000, 5_000_000_000));
        recorder.forget(1);
        assert_eq!(recorder.recording(1), None);
        recorder.take(6 * S, 1, &waits);
    }

    #[test]
    fn costs_are_kept_by_job_and_bounded() {
        let mut recorder = IntervalRecorder::default();
        recorder.joined(1, 7, 0, 0);
        recorder.joined(2, 8, 0, 0);
        for of in 2..100 {
            let mut part = part("background", 0, 1);
            (part.cost, part.costs) = (11.5, vec![(of, 10.5), (2, 1.0)]);
            recorder.take(of * S, 1, &seen(Some(&part), 0));
        }
        let recording = recorder.recording(1).expect("there");
        assert_eq!(recording.costs.len(), MOST_COSTS + 1);
        let of_two = recording.costs.iter().find(|cost| cost.client == 2).expect("there");
        assert_eq!((of_two.pid, of_two.ns), (8, 108));
        let all: i64 = recording.costs.iter().map(|cost| cost.ns).sum();
        assert!((recording.sum().cost_ns - all).abs() <= recording.costs.len() as i64);
        assert_eq!(recording.sum().cost_ns, 98 * 11 + 49);
    }

    #[test]
    fn stretches_of_an_account_that_began_anew_are_added() {
        let mut recorder = IntervalRecorder::default();
        recorder.joined(1, 7, 0, 0);
        let times = |count: u64| {
            let mut times = StretchTimes::default();
            (0..count).for_each(|_| times.beside.add(2_000_000));
            times
        };
        for (at, count) in [(1, 5), (2, 8), (3, 8), (4, 2), (5, 0), (6, 1)] {
            let part = part("foreground", S, 1);
            let times = times(count);
            let seen = Seen {
                stretches: (count > 0).then_some(&times),
                slowdown_allowed: Some(0.01),
                ..seen(Some(&part), 0)
            };
            recorder.take(at * S, 1, &seen);
        }
        let recording = recorder.recording(1).expect("there");
        let latency = recording.latency.expect("some");
        assert_eq!((latency.alone.count, latency.beside.count), (0, 8 + 2 + 1));
        assert_eq!(recording.slowdown_allowed, Some(0.01));
    }

    #[test]
    fn a_warning_has_its_times_and_its_last_words() {
        let mut recorder = IntervalRecorder::default();
        recorder.joined(1, 7, S, 0);
        for (at, text) in [(3, "one launch"), (9, "two launches")] {
            let warning = Warning {
                kind: WarningKind::ForcedLaunches,
                client: Some(1),
                device: None,
                text: text.to_string(),
            };
            recorder.warned(1, at * S, &warning);
        }
        let warned = recorder.recording(1).expect("there").warned;
        assert_eq!(warned.len(), 1);
        assert_eq!((warned[0].first_ns, warned[0].last_ns), (2 * S, 8 * S));
        assert_eq!(warned[0].warning.text, "two launches");
    }
}
