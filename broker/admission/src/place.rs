// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses the device of a job that may use several, before it begins.
//!
//! 1. A device with immediate admission comes first (on device memory, then on managed memory),
//!    then the earliest expected start ([`Admission::forecast`]).
//! 2. Among immediate ones the device with least memory left comes first, so that large rooms stay
//!    for large jobs. A job of undeclared need may grow, so it goes on the device with most left.
//! 3. Ties go to the first device.
#![forbid(unsafe_code)]

use super::event::{Ask, Decision, Event, Never};
use super::need::{Backing, Device, DeviceId, Job};
use super::state::Admission;
use weft_protocol::Ns;

/// Number of the placed job. Promised jobs count down from it, and no real job has it.
const PLACED_JOB: u64 = u64::MAX;

/// The chosen place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The device.
    pub device: DeviceId,
    /// Expected start, ns; `None`: unknown.
    pub begin: Option<Ns>,
    /// Bytes left next to the job if it begins at once.
    pub left: Option<u64>,
    /// Whether it would begin at once, on managed memory for want of device memory.
    pub beyond: bool,
}

/// A job to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its request; the job number is ignored.
    pub ask: Ask,
    /// Whether its need is declared.
    pub declared: bool,
}

impl Admission {
    /// Best place for a job. `promised`: placed jobs that have not arrived; `foreign`: strangers'
    /// bytes, just measured.
    pub fn best_place(
        &self,
        now: Ns,
        candidate: &Candidate,
        promised: &[(Ask, DeviceId)],
        foreign: &[(DeviceId, u64)],
    ) -> Result<Placement, Never> {
        let mut play = self.clone();
        let mut out = Vec::new();
        for (device, foreign) in foreign {
            let about = play.devices().find(|about| about.id == *device).copied();
            if let Some(about) = about {
                let foreign = *foreign;
                play.handle(now, Event::Device(Device { foreign, ..about }), &mut out);
            }
        }
        for (number, (ask, device)) in (1..).zip(promised) {
            let Some(about) = play.devices().find(|about| about.id == *device).copied() else {
                continue;
            };
            let job = Job(PLACED_JOB - number);
            let share = ask.need.fixed(&about);
            play.handle(now, Event::Holds(Ask { job, ..ask.clone() }, *device, share), &mut out);
        }
        let ask = Ask {
            job: Job(PLACED_JOB),
            ..candidate.ask.clone()
        };
        let mut anywhere = play.clone();
        out.clear();
        anywhere.handle(now, Event::Asks(ask.clone()), &mut out);
        for decision in out.drain(..) {
            if let Decision::Refuse { job, why } = decision
                && job == ask.job
            {
                return Err(why);
            }
        }
        let allowed: Vec<Device> = play.allowed(&ask).copied().collect();
        let found = allowed.iter().filter_map(|device| play.placement_on(now, &ask, device));
        // A job that may grow prefers the most room, one of known need the least.
        let room = |left: u64| if candidate.declared { left } else { u64::MAX - left };
        let rank = |it: &Placement| match it.left {
            Some(left) => (false, Ns::from(it.beyond), room(left), it.device),
            None => (true, it.begin.unwrap_or(Ns::MAX), 0, it.device),
        };
        found.min_by_key(rank).ok_or(Never::NoDevice)
    }

    /// Placement on this device; `None`: the job can never run there.
    fn placement_on(&self, now: Ns, ask: &Ask, device: &Device) -> Option<Placement> {
        let mut play = self.clone();
        let ask = Ask {
            devices: vec![device.id],
            ..ask.clone()
        };
        let (job, device, backing) = (ask.job, device.id, ask.need.backing);
        let mut out = Vec::new();
        play.handle(now, Event::Asks(ask), &mut out);
        for decision in &out {
            match decision {
                Decision::Refuse { job: refused, .. } if *refused == job => return None,
                Decision::Admit { job: admitted, .. } if *admitted == job => {
                    let about = play.devices().find(|about| about.id == device)?;
                    return Some(Placement {
                        device,
                        begin: Some(now),
                        left: Some(play.load(device).free(about)),
                        beyond: play.is_managed(job) && matches!(backing, Backing::Auto { .. }),
                    });
                }
                _ => {}
            }
        }
        Some(Placement {
            device,
            begin: play.forecast().get(&job).map(|expected| expected.begin),
            left: None,
            beyond: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::AdmissionConfig;
    use super::super::need::{Need, User};
    use super::*;
    use proptest::prelude::*;

    const GB: u64 = 1 << 30;
    const MINUTE: Ns = 60_000_000_000;

    fn machine(sizes: &[u64]) -> Admission {
        let mut machine = Admission::new(AdmissionConfig::default());
        for (number, size) in (0..).zip(sizes) {
            machine.handle(0, Event::Device(Device::new(DeviceId(number), *size)), &mut Vec::new());
        }
        machine
    }

    fn ask(job: u64, peak: u64, minutes: u64, devices: &[u32]) -> Ask {
        Ask {
            job: Job(job),
            user: User(0),
            priority: 5,
            need: Need::plain(peak, minutes * MINUTE),
            devices: devices.iter().map(|device| DeviceId(*device)).collect(),
        }
    }

    fn job(peak: u64) -> Candidate {
        Candidate {
            ask: ask(0, peak, 10, &[]),
            declared: true,
        }
    }

    fn runs(machine: &mut Admission, number: u64, peak: u64, minutes: u64, device: u32) {
        let mut out = Vec::new();
        machine.handle(0, Event::Asks(ask(number, peak, minutes, &[device])), &mut out);
        assert!(matches!(out.as_slice(), [Decision::Admit { .. }]), "{out:?}");
    }

    fn at(machine: &Admission, job: &Candidate) -> DeviceId {
        machine.best_place(0, job, &[], &[]).expect("a place").device
    }

    #[test]
    fn the_least_room_that_suffices() {
        let mut machine = machine(&[40 * GB, 16 * GB]);
        assert_eq!(at(&machine, &job(10 * GB)), DeviceId(1));
        assert_eq!(at(&machine, &job(20 * GB)), DeviceId(0));
        runs(&mut machine, 1, 10 * GB, 10, 1);
        assert_eq!(
            at(&machine, &job(10 * GB)),
            DeviceId(0),
            "there is none left on the other"
        );
        assert_eq!(at(&machine, &job(6 * GB)), DeviceId(1));
    }

    #[test]
    fn what_may_grow_goes_where_most_is_left() {
        let mut machine = machine(&[40 * GB, 16 * GB]);
        let unknown = Candidate {
            declared: false,
            ..job(GB)
        };
        assert_eq!(at(&machine, &unknown), DeviceId(0));
        runs(&mut machine, 1, 30 * GB, 10, 0);
        assert_eq!(at(&machine, &unknown), DeviceId(1));
    }

    #[test]
    fn where_it_waits_least() {
        let mut machine = machine(&[40 * GB, 40 * GB]);
        runs(&mut machine, 1, 35 * GB, 60, 0);
        runs(&mut machine, 2, 35 * GB, 20, 1);
        let placed = machine.best_place(0, &job(10 * GB), &[], &[]).expect("a place");
        assert_eq!(
            (placed.device, placed.begin, placed.left),
            (DeviceId(1), Some(20 * MINUTE), None)
        );
    }

    #[test]
    fn a_promise_counts_and_so_do_strangers() {
        let machine = machine(&[16 * GB, 16 * GB]);
        let promised = [(ask(0, 10 * GB, 10, &[]), DeviceId(0))];
        let second = machine.best_place(0, &job(10 * GB), &promised, &[]).expect("a place");
        assert_eq!(second.device, DeviceId(1));
        let foreign = [(DeviceId(1), 12 * GB)];
        assert_eq!(
            machine
                .best_place(0, &job(10 * GB), &[], &foreign)
                .expect("a place")
                .device,
            DeviceId(0)
        );
        assert_eq!(machine.count(), (0, 0), "nothing was changed");
    }

    #[test]
    fn what_fits_nowhere_is_refused_with_the_figures() {
        let machine = machine(&[16 * GB, 8 * GB]);
        let refused = machine.best_place(0, &job(17 * GB), &[], &[]);
        let memory = 16 * GB;
        assert!(
            matches!(refused, Err(Never::Device { memory: most, .. }) if most == memory),
            "{refused:?}"
        );
        let chosen = Candidate {
            ask: ask(0, 12 * GB, 1, &[1]),
            declared: true,
        };
        assert!(
            machine.best_place(0, &chosen, &[], &[]).is_err(),
            "it may not use the larger one"
        );
        assert_eq!(
            super::super::state::Admission::new(AdmissionConfig::default()).best_place(0, &job(GB), &[], &[]),
            Err(Never::NoDevice)
        );
    }

    proptest! {
        /// Jobs are placed one after another, each a promise to the next. A job that is placed to
        /// begin at once fits, and no other device would fit better.
        #[test]
        fn promises_never_exceed_a_device(sizes in prop::collection::vec(1..64u64, 1..5), jobs in prop::collection::vec(1..32u64, 1..12)) {
            let sizes: Vec<u64> = sizes.into_iter().map(|size| size * GB).collect();
            let machine = machine(&sizes);
            let mut promised: Vec<(Ask, DeviceId)> = Vec::new();
            let mut free = sizes.clone();
            for peak in jobs {
                let candidate = job(peak * GB);
                let placed = machine.best_place(0, &candidate, &promised, &[]);
                let best = free.iter().filter_map(|free| free.checked_sub(peak * GB)).min();
                match placed {
                    Err(_) => prop_assert!(sizes.iter().all(|size| *size < peak * GB)),
                    Ok(placed) => {
                        prop_assert_eq!(placed.left, best);
                        let at = placed.device.0 as usize;
                        if let Some(left) = placed.left {
                            prop_assert_eq!(free[at] - peak * GB, left);
                            free[at] = left;
                            promised.push((candidate.ask, placed.device));
                        } else {
                            prop_assert!(sizes[at] >= peak * GB);
                        }
                    }
                }
            }
        }
    }
}
