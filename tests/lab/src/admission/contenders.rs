// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orders of admission that weft's is compared with, and that weft does not ship.
#![forbid(unsafe_code)]

use weft_admission::{AdmissionPolicy, CustomOrder, WaiterFit, Waiters};

/// First come, first served; no job passes another.
pub const FIFO: AdmissionPolicy = AdmissionPolicy::Custom(&CustomOrder {
    name: "fifo",
    next: |waiters: &Waiters<'_>| waiters.fit(waiters.all().next()?.0),
});

/// One job per device, in order of arrival.
pub const EXCLUSIVE: AdmissionPolicy = AdmissionPolicy::Custom(&CustomOrder {
    name: "exclusive",
    next: |waiters: &Waiters<'_>| {
        let (first, _) = waiters.all().next()?;
        waiters.fit_on_empty(first)
    },
});

/// The job that leaves the least memory free, among those that fit. Nothing is reserved.
pub const BEST_FIT: AdmissionPolicy = AdmissionPolicy::Custom(&CustomOrder {
    name: "best-fit",
    next: |waiters: &Waiters<'_>| fits(waiters).min_by_key(|fit| (fit.left, fit.at, fit.device)),
});

/// The job with the shortest expected run, among those that fit. Nothing is reserved.
///
/// It shows the possible wait if large and long jobs had no promise.
pub const SHORTEST: AdmissionPolicy = AdmissionPolicy::Custom(&CustomOrder {
    name: "shortest",
    next: |waiters: &Waiters<'_>| {
        let all = waiters.all();
        let fits = all.filter_map(|(at, ask)| {
            let fit = waiters.fit(at)?;
            Some(((ask.priority, ask.need.expected, at), fit))
        });
        let best = fits.min_by_key(|(order, _)| *order);
        best.map(|(_, fit)| fit)
    },
});

/// All contenders.
pub const ALL: [AdmissionPolicy; 4] = [FIFO, EXCLUSIVE, BEST_FIT, SHORTEST];

fn fits(waiters: &Waiters<'_>) -> impl Iterator<Item = WaiterFit> {
    let all = waiters.all();
    all.filter_map(|(at, _)| waiters.fit(at))
}

#[cfg(test)]
mod tests {
    use weft_admission::{Admission, AdmissionConfig, Ask, Decision, Device, DeviceId, Event, Job, Need, User};

    use super::*;

    const GB: u64 = 1_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    /// The jobs that begin, in their order, when a job that held all of a 16 GB device ends.
    fn begins(policy: AdmissionPolicy) -> Vec<u64> {
        let mut machine = Admission::new(AdmissionConfig {
            policy,
            ..AdmissionConfig::default()
        });
        let mut out = Vec::new();
        machine.handle(0, Event::Device(Device::new(DeviceId(0), 16 * GB)), &mut out);
        for (job, gb, seconds) in [(0, 15, 60), (1, 5, 300), (2, 9, 600), (3, 4, 10)] {
            let ask = Ask {
                job: Job(job),
                user: User(job as u32),
                priority: 5,
                need: Need::plain(gb * GB, seconds * SECOND),
                devices: Vec::new(),
            };
            machine.handle(0, Event::Asks(ask), &mut out);
        }
        out.clear();
        machine.handle(SECOND, Event::Ends(Job(0)), &mut out);
        let begun = out.iter().filter_map(|decision| match decision {
            Decision::Admit { job, .. } => Some(job.0),
            _ => None,
        });
        begun.collect()
    }

    #[test]
    fn each_orders_as_it_says() {
        assert_eq!(begins(FIFO), [1, 2]);
        assert_eq!(begins(EXCLUSIVE), [1]);
        assert_eq!(begins(BEST_FIT), [2, 1]);
        assert_eq!(begins(SHORTEST), [3, 1]);
    }
}
