// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes samples from the times of a window, a run of launches between events. Pure.
//!
//! * An event takes time on the device (`tick`), so a kernel seems longer by one tick.
//! * On an idle device the event before a launch is reached at once, and the launch follows when
//!   the host has made it. That time belongs to the gap, not to the kernel.
//! * A kernel that ended before the host recorded the event after it took at most the time between
//!   the events. The middle counts.
//! * A device that waits for the host also waits for the sampler. The sampler's time is subtracted
//!   from the gap.
#![forbid(unsafe_code)]

use weft_protocol::Ns;
use weft_protocol::lane::NO_GAP;

/// A launch of a window. `start`, `end`: device ns since the window's first event; others: wall ns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    pub kernel: u64,
    pub sequence: u64,
    /// Time of the event before the launch.
    pub start: f64,
    /// Time of the event after it. Infinite for the launch after the window, which ends the last
    /// gap.
    pub end: f64,
    /// When the sampler began.
    pub entered: Ns,
    /// When the launch went to the driver.
    pub launched: Ns,
    /// When the launch returned.
    pub returned: Ns,
    /// When the sampler had finished.
    pub left: Ns,
    /// Whether its stream was idle. Checked only for a window's first launch.
    pub onto_idle: bool,
    /// Part of the time from `start` to `end` in which the device may have waited for the host, ns.
    /// It is more than the usual time of such a launch.
    pub unsure: Ns,
}

impl Point {
    /// Whether its kernel ended after `at`, wall ns.
    ///
    /// Two events that the host has recorded by then are one event's cost apart. On an idle device
    /// they are as far apart as the host's records.
    pub fn ended_after(&self, at: Ns) -> bool {
        self.end - self.start >= at.saturating_sub(self.entered) as f64
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    pub kernel: u64,
    /// When its launch went to the driver, wall ns.
    pub at: Ns,
    /// Kernel time, wall ns.
    pub time: Ns,
    /// The least and the most that it is, if much of the time between the events may be the host's.
    pub bounds: Option<(Ns, Ns)>,
    /// Idle time after it, wall ns, or [`NO_GAP`].
    pub gap: Ns,
}

/// Inverse of the part of a time from which on the launch's host time makes it uncertain.
const HOST_DIVISOR: f64 = 8.0;

const SHORTEST_NS: f64 = 100.0;

/// Inverse of the part of a time that may be unsure: GPU time is right within a tenth.
const UNSURE_DIVISOR: f64 = 16.0;

fn whole(ns: f64) -> Ns {
    // Saturates.
    ns.round() as Ns
}

/// Samples of a window, in launch order. `tick`: cost of an event, ns.
pub fn samples(points: &[Point], tick: f64) -> impl Iterator<Item = Sample> {
    let mut last_end = f64::NEG_INFINITY;
    // Each kernel's start, the end of all work before it, and the kernel's least time if the host
    // makes it uncertain.
    let real: Vec<(f64, f64, Option<f64>)> = points
        .iter()
        .map(|point| {
            let idle_before = match last_end == f64::NEG_INFINITY {
                true => point.onto_idle,
                false => point.start > last_end + 2.0 * tick,
            };
            let late = if idle_before {
                point.returned.saturating_sub(point.launched) as f64
            } else {
                0.0
            };
            let span = point.end - point.start - tick;
            let ended_early = idle_before && !point.ended_after(point.left);
            let least = if ended_early { 0.0 } else { (span - late).max(0.0) };
            let uncertain = (ended_early || late * HOST_DIVISOR > span).then_some(least);
            let late = if ended_early { span / 2.0 } else { late };
            let begin = (point.start + late).min(point.end - tick).max(point.start);
            let before = last_end;
            last_end = last_end.max(point.end);
            (begin, before, uncertain)
        })
        .collect();
    (0..points.len()).filter_map(move |at| {
        let (point, &(begin, _, uncertain)) = (points.get(at)?, real.get(at)?);
        if point.end == f64::INFINITY {
            return None;
        }
        let time = (point.end - begin - tick).max(SHORTEST_NS.min((point.end - point.start).max(1.0)));
        if point.unsure as f64 * UNSURE_DIVISOR > time {
            return None;
        }
        let follower = points.get(at + 1).zip(real.get(at + 1));
        let gap = match follower {
            Some((next, &(next_begin, ended, _))) if next.sequence == point.sequence + 1 && next.unsure == 0 => {
                let seen = next_begin - ended;
                let ours = point.left.saturating_sub(point.returned) + next.launched.saturating_sub(next.entered);
                let gap = (seen - tick).max(0.0);
                whole((gap - ours as f64).max(0.0))
            }
            _ => NO_GAP,
        };
        Some(Sample {
            kernel: point.kernel,
            at: point.launched,
            time: whole(time).max(1),
            bounds: uncertain.map(|least| (whole(least), whole(point.end - point.start - tick).max(1))),
            gap,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cost of an event, ns.
    const TICK_NS: f64 = 500.0;

    /// The launch takes the host 2 us; the sampler takes 1 us before and 1 us after.
    fn point(sequence: u64, entered: Ns, start: f64, end: f64) -> Point {
        Point {
            kernel: sequence * 10,
            sequence,
            start,
            end,
            entered,
            launched: entered + 1000,
            returned: entered + 3000,
            left: entered + 4000,
            onto_idle: true,
            unsure: 0,
        }
    }

    #[test]
    fn the_first_launch_behind_other_work_has_its_whole_time() {
        let first = Point {
            onto_idle: false,
            ..point(1, 0, 0.0, 4_500.0)
        };
        let after = point(2, 5_000, 9_000.0, f64::INFINITY);
        let time = |points: &[Point]| samples(points, TICK_NS).next().map(|sample| sample.time);
        assert_eq!(time(&[first, after]), Some(4_000));
        assert_eq!(time(&[point(1, 0, 0.0, 4_500.0), after]), Some(2_000));
    }

    #[test]
    fn an_events_cost_is_measured_behind_work_alone() {
        // Recorded 5 us after the sampler began, and reached before that or later.
        let (early, late) = (point(1, 1_000, 0.0, 4_000.0), point(1, 1_000, 0.0, 50_000.0));
        assert!(!early.ended_after(6_000) && late.ended_after(6_000));
    }

    #[test]
    fn a_kernels_time_has_bounds_if_much_of_it_may_be_the_hosts() {
        // The host records the second event 4 us after the first.
        let of = |ns: f64| {
            let points = [point(1, 0, 0.0, ns), point(2, 9_000, 9e9, f64::INFINITY)];
            samples(&points, TICK_NS)
                .next()
                .map(|sample| (sample.time, sample.bounds))
        };
        assert_eq!(of(3_900.0), Some((1_700, Some((0, 3_400)))));
        assert_eq!(of(4_100.0), Some((1_600, Some((1_600, 3_600)))));
        assert_eq!(of(0.0), Some((1, Some((0, 1)))));
        // The launch took 2 us.
        assert_eq!(of(16_600.0), Some((14_100, None)));
        assert_eq!(of(16_400.0), Some((13_900, Some((13_900, 15_900)))));
    }

    #[test]
    fn a_full_queue_has_no_gaps_and_exact_times() {
        let points = [
            point(1, 0, 0.0, 50_500.0),
            point(2, 5_000, 51_000.0, 151_500.0),
            point(3, 10_000, 152_000.0, 172_500.0),
        ];
        let got: Vec<Sample> = samples(&points, TICK_NS).collect();
        assert_eq!(
            got[1],
            Sample {
                kernel: 20,
                at: 6_000,
                time: 100_000,
                bounds: None,
                gap: 0
            }
        );
        assert_eq!(
            got[2],
            Sample {
                kernel: 30,
                at: 11_000,
                time: 20_000,
                bounds: None,
                gap: NO_GAP
            }
        );
        // An idle device: 2 us of launching are not the kernel's.
        assert_eq!(
            got[0],
            Sample {
                kernel: 10,
                at: 1_000,
                time: 48_000,
                bounds: None,
                gap: 0
            }
        );
    }

    #[test]
    fn a_time_counts_if_the_host_can_have_added_little_of_it() {
        // The launching thread had no core for 200 us.
        let times = |ns: f64| {
            let late = Point {
                unsure: 200_000,
                ..point(2, 5_000, 1_000.0, 1_000.0 + ns)
            };
            let points = [point(1, 0, 0.0, 900.0), late, point(3, 9_000, 1e9, f64::INFINITY)];
            samples(&points, TICK_NS)
                .map(|sample| (sample.kernel, sample.at, sample.gap))
                .collect::<Vec<_>>()
        };
        assert_eq!(times(3_000_000.0), [(10, 1_000, NO_GAP)], "nor does the gap before it");
        assert_eq!(times(4_000_000.0)[1].0, 20);
    }

    #[test]
    fn a_starved_device_idles_for_the_host_and_not_for_us() {
        // The launch comes 40 us after the kernel's end; 2 us are the sampler's, 2 us its own.
        let points = [point(1, 0, 0.0, 10_500.0), point(2, 52_000, 50_500.0, 63_000.0)];
        let got: Vec<Sample> = samples(&points, TICK_NS).collect();
        assert_eq!(got[0].gap, 40_000 + 2_000 - 500 - 2_000);
        assert_eq!(got[1].time, 12_500 - 2_000 - 500);
    }

    #[test]
    fn a_launch_in_between_that_was_not_seen_leaves_the_gap_open() {
        let points = [point(1, 0, 0.0, 10_000.0), point(3, 50_000, 60_000.0, 70_000.0)];
        let got: Vec<Sample> = samples(&points, TICK_NS).collect();
        assert_eq!(got[0].gap, NO_GAP);
    }

    #[test]
    fn another_stream_that_still_runs_leaves_no_gap() {
        let points = [
            point(1, 0, 0.0, 500_000.0),
            point(2, 5_000, 6_000.0, 20_000.0),
            point(3, 90_000, 91_000.0, 99_000.0),
        ];
        let got: Vec<Sample> = samples(&points, TICK_NS).collect();
        assert_eq!((got[0].gap, got[1].gap), (0, 0));
    }

    #[test]
    fn the_launch_after_a_window_ends_its_last_gap_and_is_no_sample() {
        let points = [point(1, 0, 0.0, 10_500.0), point(2, 600_000, 610_000.0, f64::INFINITY)];
        let got: Vec<Sample> = samples(&points, TICK_NS).collect();
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].gap, 610_000 + 2_000 - 10_500 - 500 - 2_000);
    }

    #[test]
    fn nonsense_from_the_device_stays_harmless() {
        let points = [point(1, 0, f64::NAN, -5.0), point(2, 5_000, -3.0, f64::NAN)];
        for sample in samples(&points, f64::NAN) {
            assert!(sample.time >= 1);
        }
    }
}
