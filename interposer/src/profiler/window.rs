//! From the times of a window to samples. Pure.
//!
//! A window is a run of launches, each with an event before and one behind it. What the events say
//! is not yet the truth:
//!
//! * An event takes time on the device itself (`tick`); a kernel seems longer by one.
//! * Where the device was idle, the event before a launch is reached at once, and the launch
//!   follows when the host has made it. That part of the time belongs to the gap, not to the
//!   kernel.
//! * While the device waits for the host, it also waits for what the sampler does there. That is
//!   not the job's: it is taken off the gap.
#![forbid(unsafe_code)]

use weft_protocol::Ns;
use weft_protocol::lane::NO_GAP;

/// A launch of a window. Device times count from the window's first event, in device nanoseconds;
/// host times are wall nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    /// Hash of the kernel.
    pub kernel: u64,
    /// Number of the launch in the process.
    pub sequence: u64,
    /// Device: the event before the launch was reached.
    pub start: f64,
    /// Device: the event behind it. Infinite for the launch after the window, which only ends the
    /// last gap.
    pub end: f64,
    /// Host: the sampler began its work before the launch.
    pub entered: Ns,
    /// Host: the event before was recorded, the launch went to the driver.
    pub launched: Ns,
    /// Host: the launch came back.
    pub returned: Ns,
    /// Host: the sampler had finished its work after the launch.
    pub left: Ns,
}

/// What is learnt from a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Hash of the kernel.
    pub kernel: u64,
    /// How long it ran, wall nanoseconds.
    pub time: Ns,
    /// How long the device was idle after it, wall nanoseconds, or [`NO_GAP`].
    pub gap: Ns,
}

/// How device and host compare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// What one event takes on the device, device nanoseconds.
    pub tick: f64,
    /// Wall nanoseconds a device nanosecond: 1, but for a simulated device that runs slower.
    pub rate: f64,
}

/// No kernel is shorter.
const SHORTEST: f64 = 100.0;

fn whole(ns: f64) -> Ns {
    // Saturating: negative and absurd numbers become the nearest sensible one.
    ns.round() as Ns
}

/// The samples of a window, in launch order.
pub fn samples(points: &[Point], scale: Scale) -> impl Iterator<Item = Sample> {
    let rate = if scale.rate.is_finite() && scale.rate > 0.0 {
        scale.rate
    } else {
        1.0
    };
    let mut last_end = f64::NEG_INFINITY;
    // When each kernel really began, and when the device had ended all before it.
    let real: Vec<(f64, f64)> = points
        .iter()
        .map(|point| {
            let idle_before = point.start > last_end + 2.0 * scale.tick;
            let late = if idle_before {
                point.returned.saturating_sub(point.launched) as f64 / rate
            } else {
                0.0
            };
            let begin = (point.start + late).min(point.end - scale.tick).max(point.start);
            let before = last_end;
            last_end = last_end.max(point.end);
            (begin, before)
        })
        .collect();
    (0..points.len()).filter_map(move |at| {
        let (point, &(begin, _)) = (points.get(at)?, real.get(at)?);
        if point.end == f64::INFINITY {
            return None;
        }
        let time = (point.end - begin - scale.tick).max(SHORTEST.min((point.end - point.start).max(1.0)));
        let follower = points.get(at + 1).zip(real.get(at + 1));
        let gap = match follower {
            Some((next, &(next_begin, ended))) if next.sequence == point.sequence + 1 => {
                let seen = next_begin - ended;
                let ours = point.left.saturating_sub(point.returned) + next.launched.saturating_sub(next.entered);
                let gap = (seen - scale.tick).max(0.0) * rate;
                whole((gap - ours as f64).max(0.0))
            }
            _ => NO_GAP,
        };
        Some(Sample {
            kernel: point.kernel,
            time: whole(time * rate).max(1),
            gap,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: Scale = Scale { tick: 500.0, rate: 1.0 };

    /// A launch that takes the host 2 us, with 1 us of ours before and after.
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
        }
    }

    #[test]
    fn a_full_queue_has_no_gaps_and_exact_times() {
        // Each start event is reached right behind the end event before it.
        let points = [
            point(1, 0, 0.0, 50_500.0),
            point(2, 5_000, 51_000.0, 151_500.0),
            point(3, 10_000, 152_000.0, 172_500.0),
        ];
        let got: Vec<Sample> = samples(&points, REAL).collect();
        assert_eq!(
            got[1],
            Sample {
                kernel: 20,
                time: 100_000,
                gap: 0
            }
        );
        assert_eq!(
            got[2],
            Sample {
                kernel: 30,
                time: 20_000,
                gap: NO_GAP
            }
        );
        // The first one's start event found an idle device: 2 us of launching are not the kernel's.
        assert_eq!(
            got[0],
            Sample {
                kernel: 10,
                time: 48_000,
                gap: 0
            }
        );
    }

    #[test]
    fn a_starved_device_idles_for_the_host_and_not_for_us() {
        // Alone on the device, the next launch 40 us after the first kernel's end; 2 us of that are
        // the sampler's, 2 us the launch itself.
        let points = [point(1, 0, 0.0, 10_500.0), point(2, 52_000, 50_500.0, 63_000.0)];
        let got: Vec<Sample> = samples(&points, REAL).collect();
        assert_eq!(got[0].gap, 40_000 + 2_000 - 500 - 2_000);
        assert_eq!(got[1].time, 12_500 - 2_000 - 500);
    }

    #[test]
    fn a_launch_in_between_that_was_not_seen_leaves_the_gap_open() {
        let points = [point(1, 0, 0.0, 10_000.0), point(3, 50_000, 60_000.0, 70_000.0)];
        let got: Vec<Sample> = samples(&points, REAL).collect();
        assert_eq!(got[0].gap, NO_GAP);
    }

    #[test]
    fn a_slow_device_is_told_in_wall_time() {
        let slow = Scale { tick: 0.0, rate: 10.0 };
        let points = [
            point(1, 0, 0.0, 10_000.0),
            point(2, 5_000, 10_000.0, 30_000.0),
            point(3, 900_000, 90_000.0, 95_000.0),
        ];
        let got: Vec<Sample> = samples(&points, slow).collect();
        assert_eq!(got[1].time, 200_000);
        assert_eq!(got[1].gap, 600_000 + 2_000 - 2_000);
    }

    #[test]
    fn another_stream_that_still_runs_leaves_no_gap() {
        let points = [
            point(1, 0, 0.0, 500_000.0),
            point(2, 5_000, 6_000.0, 20_000.0),
            point(3, 90_000, 91_000.0, 99_000.0),
        ];
        let got: Vec<Sample> = samples(&points, REAL).collect();
        assert_eq!((got[0].gap, got[1].gap), (0, 0));
    }

    #[test]
    fn the_launch_after_a_window_ends_its_last_gap_and_is_no_sample() {
        let points = [point(1, 0, 0.0, 10_500.0), point(2, 600_000, 610_000.0, f64::INFINITY)];
        let got: Vec<Sample> = samples(&points, REAL).collect();
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].gap, 610_000 + 2_000 - 10_500 - 500 - 2_000);
    }

    #[test]
    fn nonsense_from_the_device_stays_harmless() {
        let points = [point(1, 0, f64::NAN, -5.0), point(2, 5_000, -3.0, f64::NAN)];
        for sample in samples(
            &points,
            Scale {
                tick: f64::NAN,
                rate: 0.0,
            },
        ) {
            assert!(sample.time >= 1);
        }
    }
}
