//! What the mean wait of a mix is at least, whatever the order, even for one that knows everything beforehand.
//!
//! Each job is given a size, so that the sizes of jobs whose memory fits a device together never exceed one (a dual feasible function of the memory: Lueker 1983; Fekete
//! and Schepers 2001). Its work is its size times its run. All devices together do no more work a second than they are, so no order ends jobs sooner in the mean
//! than serving that work by shortest remaining first, with pauses allowed and all devices on one job (Schrage 1968). What is left when each job's run is taken away is waiting. That
//! company slows jobs is left out, which only lowers the bound: the same begins fit, too, when all run faster.
#![forbid(unsafe_code)]

use super::mix::{CONTEXT, Job, Mix, S};
use super::world::{BEGINS, GROWN};

/// A way to give a part of a device a size.
#[derive(Debug, Clone, Copy)]
enum Size {
    /// As it is, but parts below the first count nothing and those that leave less than it count one: small ones that fit beside are let off.
    Rounded(f64),
    /// Only as many of them as fit are counted: those above a k-th of a device one (k - 1)-th each.
    Count(f64),
}

impl Size {
    fn of(self, part: f64) -> f64 {
        match self {
            Size::Rounded(small) if part > 1.0 - small => 1.0,
            Size::Rounded(small) if part < small => 0.0,
            Size::Rounded(_) => part,
            Size::Count(most) => {
                let times = (most + 1.0) * part;
                if (times - times.round()).abs() < 1e-9 {
                    part
                } else {
                    times.floor() / most
                }
            }
        }
    }

    fn all() -> impl Iterator<Item = Size> {
        let rounded = (0..=10).map(|step| Size::Rounded(f64::from(step) * 0.05));
        rounded.chain((1..=8).map(|most| Size::Count(f64::from(most))))
    }
}

/// Seconds. 0 where the devices are not all alike.
pub fn wait(mix: &Mix) -> f64 {
    let Some(device) = mix.devices.first() else { return 0.0 };
    if mix.devices.iter().any(|other| other != device) {
        return 0.0;
    }
    let run = |job: &Job| job.run as f64 / S as f64;
    let bound = |size: Size| {
        let work = |job: &Job| {
            let part = |of_peak: f64| size.of((job.peak as f64 * of_peak + CONTEXT as f64) / *device as f64);
            run(job) * (GROWN * part(BEGINS) + (1.0 - GROWN) * part(1.0))
        };
        let jobs: Vec<(f64, f64)> = mix
            .jobs
            .iter()
            .map(|job| (job.arrives as f64 / S as f64, work(job)))
            .collect();
        let runs: f64 = mix.jobs.iter().map(run).sum();
        (flow(&jobs, mix.devices.len() as f64) - runs) / jobs.len().max(1) as f64
    };
    Size::all().map(bound).fold(0.0, f64::max)
}

/// The sum of times from coming to end under shortest remaining first. Jobs are (comes, work), by arrival.
fn flow(jobs: &[(f64, f64)], speed: f64) -> f64 {
    let (mut now, mut sum, mut next) = (0.0, 0.0, 0);
    // (comes, left)
    let mut here: Vec<(f64, f64)> = Vec::new();
    while next < jobs.len() || !here.is_empty() {
        let comes = jobs.get(next).map_or(f64::INFINITY, |(comes, _)| *comes);
        let shortest = (0..here.len()).min_by(|a, b| here[*a].1.total_cmp(&here[*b].1));
        match shortest {
            Some(at) if now + here[at].1 / speed <= comes => {
                let (came, left) = here.swap_remove(at);
                now += left / speed;
                sum += now - came;
            }
            _ => {
                if let Some(at) = shortest {
                    here[at].1 -= (comes - now) * speed;
                }
                now = comes;
                here.extend(jobs.get(next));
                next += 1;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_remaining_first_is_reckoned_right() {
        // The second comes when the first has 6 left, takes 2; then the first: ends at 4 + 2 and 12.
        assert_eq!(flow(&[(0.0, 10.0), (4.0, 2.0)], 1.0), 12.0 + 2.0);
        assert_eq!(flow(&[(0.0, 10.0), (20.0, 2.0)], 2.0), 5.0 + 1.0);
    }

    #[test]
    fn what_fits_together_has_no_size_above_one() {
        for size in Size::all() {
            for a in 1..100 {
                for b in 1..=(100 - a) {
                    let c = 100 - a - b;
                    let parts = [a, b, c].map(|part| size.of(f64::from(part) / 100.0));
                    assert!(parts.iter().sum::<f64>() <= 1.0 + 1e-9, "{size:?}: {a}, {b}, {c}");
                }
            }
        }
    }
}
