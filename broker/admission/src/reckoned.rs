//! Sums over the running jobs, computed once for all waiters: each device's load, and what is left
//! as jobs end.
//!
//! An event needs them several times per waiter. A scan of all running jobs each time made an event
//! among a thousand jobs cost 20 ms.
//!
//! Invariant: the sums are dropped whenever an input changes ([`Admission::handle`],
//! [`Admission::admit`]).
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::model::{Carried, Reckoned};
use super::need::DeviceId;
use super::state::Admission;

impl Admission {
    /// The sums, computed on first use.
    pub(super) fn reckoned(&self) -> &Reckoned {
        self.reckoned.get_or_init(|| self.reckon())
    }

    /// The sums of one device.
    pub(super) fn carried(&self, device: DeviceId) -> Option<&Carried> {
        self.reckoned().devices.get(&device)
    }

    fn reckon(&self) -> Reckoned {
        #[cfg(test)]
        tests::RECKONED.with(|count| count.set(count.get() + 1));
        let mut all = Reckoned {
            longest: self.running.values().map(|running| running.ask.need.expected).max(),
            devices: self.devices.keys().map(|id| (*id, Carried::default())).collect(),
        };
        let mut leaving: Vec<_> = self.running.values().map(|it| (it.end(self.now), it)).collect();
        // Latest end first: what is left after an end is what ends later.
        leaving.sort_unstable_by_key(|(end, running)| (std::cmp::Reverse(*end), running.number));
        let (mut host, mut own) = (0u128, BTreeMap::<DeviceId, u128>::new());
        for (end, running) in leaving {
            if running.ask.need.backing.is_managed() {
                let peak = u128::from(running.ask.need.peak);
                host += peak;
                *own.entry(running.device).or_default() += peak;
            }
            let Some(carried) = all.devices.get_mut(&running.device) else {
                continue;
            };
            if carried.ends.last().is_none_or(|(last, _)| *last != end) {
                carried.ends.push((end, carried.load));
            }
            carried.load = carried.load.with(&running.ask.need, running.share);
        }
        for (id, carried) in &mut all.devices {
            carried.ends.reverse();
            let others = host - own.get(id).copied().unwrap_or(0);
            carried.elsewhere = u64::try_from(others).unwrap_or(u64::MAX);
            carried.rooms = self.rooms(*id, carried.elsewhere);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::config::Config;
    use super::super::event::{Ask, Event};
    use super::super::model::Waiter;
    use super::super::need::{Backing, Device, Job, Need, User};
    use super::*;
    use weft_protocol::Ns;

    const GB: u64 = 1_000_000_000;

    thread_local! {
        /// Number of scans over the running jobs in this thread.
        pub(super) static RECKONED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn an_event_reckons_a_few_times_however_many_wait() {
        let mut machine = Admission::new(Config::default());
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
            RECKONED.set(0);
            machine.handle(now * 1_000_000_000, Event::Tick, &mut out);
            machine.next_wake();
            machine.view();
            // One for the event, and one for what people and the clock ask between events.
            assert!(RECKONED.get() <= 2, "{} times after {now} s", RECKONED.get());
        }
    }

    /// Scans the running jobs for each end.
    fn foreseen_plainly(machine: &Admission, waiter: &Waiter) -> Option<(DeviceId, Ns)> {
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
        fn what_is_reckoned_once_is_what_each_look_would_see(
            jobs in prop::collection::vec((1u64..14, 1u64..9, 0u32..3, 0u32..4, 0u64..6), 1..40)
        ) {
            let mut machine = Admission::new(Config { host_memory: 60 * GB, ..Config::default() });
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
                    let carried = machine.carried(*device).cloned().unwrap_or_default();
                    prop_assert_eq!(carried.load, machine.load(*device));
                    prop_assert_eq!(carried.elsewhere, machine.host_elsewhere(*device));
                }
                for waiter in &machine.waiting {
                    prop_assert_eq!(machine.foresee(waiter), foreseen_plainly(&machine, waiter));
                }
            }
        }
    }
}
