// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums over the running jobs, computed once for all waiters of an event.
//!
//! Without them an event among a thousand jobs took 20 ms: each waiter scanned the running jobs.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::load::Load;
use super::model::RunningJob;
use super::need::DeviceId;
use weft_protocol::Ns;

/// Sums over all running jobs, valid until one of them changes.
#[derive(Debug, Clone, Default)]
pub(super) struct RunningSums {
    /// Longest expected run of a running job, ns.
    pub longest: Option<Ns>,
    pub devices: BTreeMap<DeviceId, DeviceSums>,
}

/// Sums for one device.
#[derive(Debug, Clone, Default)]
pub(super) struct DeviceSums {
    /// Current load.
    pub load: Load,
    /// Host memory of managed jobs on other devices, bytes.
    pub elsewhere: u64,
    /// Distinct expected ends, ascending, each with the load left from then on.
    pub ends: Vec<(Ns, Load)>,
    /// Loads that a new job must leave room for.
    pub guarded: Vec<GuardedLoad>,
}

/// Load of a device once a running job that waits for more memory is served.
#[derive(Debug, Clone)]
pub(super) struct GuardedLoad {
    /// Priority of that job.
    pub priority: u8,
    pub load: Load,
}

impl RunningSums {
    /// Sums of these jobs and devices, without guarded loads.
    pub fn new<'a>(
        now: Ns,
        running: impl Iterator<Item = &'a RunningJob> + Clone,
        devices: impl Iterator<Item = DeviceId>,
    ) -> RunningSums {
        #[cfg(test)]
        tests::COMPUTED.with(|count| count.set(count.get() + 1));
        let mut all = RunningSums {
            longest: running.clone().map(|running| running.ask.need.expected).max(),
            devices: devices.map(|id| (id, DeviceSums::default())).collect(),
        };
        let mut leaving: Vec<_> = running.map(|it| (it.end(now), it)).collect();
        // Latest end first: after an end, the jobs that end later are left.
        leaving.sort_unstable_by_key(|(end, running)| (Reverse(*end), running.number));
        let (mut host, mut own) = (0u128, BTreeMap::<DeviceId, u128>::new());
        for (end, running) in leaving {
            if running.ask.need.backing.is_managed() {
                let peak = u128::from(running.ask.need.peak);
                host += peak;
                *own.entry(running.device).or_default() += peak;
            }
            let Some(sums) = all.devices.get_mut(&running.device) else {
                continue;
            };
            if sums.ends.last().is_none_or(|(last, _)| *last != end) {
                sums.ends.push((end, sums.load));
            }
            sums.load = sums.load.with(&running.ask.need, running.share);
        }
        for (id, sums) in &mut all.devices {
            sums.ends.reverse();
            let others = host - own.get(id).copied().unwrap_or(0);
            sums.elsewhere = u64::try_from(others).unwrap_or(u64::MAX);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::config::AdmissionConfig;
    use super::super::event::{Ask, Event};
    use super::super::model::WaitingJob;
    use super::super::need::{Backing, Device, Job, Need, User};
    use super::super::state::Admission;
    use super::*;

    const GB: u64 = 1_000_000_000;

    thread_local! {
        /// Number of scans over the running jobs in this thread.
        pub(super) static COMPUTED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn an_event_sums_up_a_few_times_however_many_wait() {
        let mut machine = Admission::new(AdmissionConfig::default());
        let mut out = Vec::new();
        machine.handle(0, Event::Device(Device::new(DeviceId(0), 80 * GB)), &mut out);
        for number in 0..700 {
            let peak = if number < 500 { GB / 10 } else { 40 * GB };
            let ask = Ask {
                job: Job(number),
                user: User(number as u32 % 20),
                priority: 5,
                need: Need::plain(peak, (3_600 + number % 7) * 1_000_000_000),
                devices: Vec::new(),
            };
            machine.handle(number, Event::Asks(ask), &mut out);
        }
        assert_eq!(machine.count(), (200, 500));
        for now in [1, 3_000, 9_000, 90_000] {
            COMPUTED.set(0);
            machine.handle(now * 1_000_000_000, Event::Tick, &mut out);
            machine.next_wake();
            machine.view();
            // One for the event, and one for queries and the clock between events.
            assert!(COMPUTED.get() <= 2, "{} times after {now} s", COMPUTED.get());
        }
    }

    /// Scans the running jobs for each end.
    fn earliest_fit_by_scan(machine: &Admission, waiter: &WaitingJob) -> Option<(DeviceId, Ns)> {
        let when = |device: &Device| {
            let here = machine.running.values().filter(|it| it.device == device.id);
            let mut ends: Vec<Ns> = here.map(|it| it.end(machine.now)).collect();
            ends.sort_unstable();
            let fits_after = |end: &Ns| {
                let left = machine.load_of(device.id, |running| running.end(machine.now) > *end);
                let load = left.with(&waiter.ask.need, waiter.ask.need.fixed(device));
                load.fits(device, machine.host_elsewhere(device.id), &machine.config)
                    .is_ok()
            };
            ends.into_iter().find(fits_after).map(|end| (end, device.id))
        };
        let soonest = machine.allowed(&waiter.ask).filter_map(when).min();
        soonest.map(|(end, device)| (device, end))
    }

    proptest! {
        #[test]
        fn sums_are_what_each_scan_would_find(
            jobs in prop::collection::vec((1u64..14, 1u64..9, 0u32..3, 0u32..4, 0u64..6), 1..40)
        ) {
            let mut machine = Admission::new(AdmissionConfig { host_memory: 60 * GB, ..AdmissionConfig::default() });
            for (id, memory) in [(0, 16), (1, 24)] {
                let device = Device { context: GB / 4, ..Device::new(DeviceId(id), memory * GB) };
                machine.handle(0, Event::Device(device), &mut Vec::new());
            }
            for (number, (peak, minutes, on, kind, waits)) in (1..).zip(jobs) {
                let mut need = Need::plain(peak * GB, minutes * 60_000_000_000);
                if kind == 0 {
                    need.backing = Backing::Managed { working_set: peak * GB / 2 };
                }
                let ask = Ask {
                    job: Job(number),
                    user: User(kind),
                    priority: 5,
                    need,
                    devices: if on < 2 { vec![DeviceId(on)] } else { Vec::new() },
                };
                machine.handle(machine.now + waits * 30_000_000_000, Event::Asks(ask), &mut Vec::new());
                if number % 5 == 0 {
                    machine.handle(machine.now + 1, Event::Ends(Job(number / 2)), &mut Vec::new());
                }
                for device in machine.devices.keys() {
                    let sums = machine.device_sums(*device).cloned().unwrap_or_default();
                    prop_assert_eq!(sums.load, machine.load(*device));
                    prop_assert_eq!(sums.elsewhere, machine.host_elsewhere(*device));
                }
                for waiter in &machine.waiting {
                    prop_assert_eq!(machine.earliest_fit(waiter), earliest_fit_by_scan(&machine, waiter));
                }
            }
        }
    }
}
