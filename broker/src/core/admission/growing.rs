//! Jobs that run and want more than their share, and what a measured device means for those who run there.
//!
//! Who asks for more than is free may wait for it ([`super::Event::GrowsInTime`]): a neighbour may end. It does not wait for what cannot come: what exceeds the device beside its own share, and what
//! only jobs hold that wait themselves, for they may wait for this one.
#![forbid(unsafe_code)]

use super::event::Decision;
use super::load::Load;
use super::need::{Device, Job};
use super::state::Admission;

impl Admission {
    /// A device is there, or is known better.
    pub(super) fn measured(&mut self, device: Device) {
        let before = self.devices.insert(device.id, device);
        let was = before.map_or(device.context, |before| before.context);
        for running in self.running.values_mut().filter(|running| running.device == device.id) {
            let contexts = |each: u64| each.saturating_mul(u64::from(running.ask.need.processes));
            let share = running.share.saturating_add(contexts(device.context));
            running.share = share.saturating_sub(contexts(was));
        }
    }

    /// Whether anybody may begin there: nobody is about to show what a context takes, and nobody who runs there waits for more.
    pub(super) fn open_to_newcomers(&self, device: &Device) -> bool {
        let waits = |(job, _): &(Job, u64)| self.running.get(job).is_some_and(|it| it.device == device.id);
        (device.measured || self.load(device.id) == Load::default()) && !self.growing.iter().any(waits)
    }

    /// Gives it more, or lets it wait (`None`) if that can come.
    pub(super) fn grows_in_time(&mut self, job: Job, bytes: u64) -> Option<Decision> {
        self.growing.retain(|(growing, _)| *growing != job);
        let device = self.running.get(&job).map(|running| running.device);
        let there = |(other, _): &(Job, u64)| self.running.get(other).map(|running| running.device) == device;
        // Who asked before has what is free first.
        let first = !self.growing.iter().any(there);
        if !self.may_come(job, bytes) {
            return Some(self.grows(job, bytes));
        }
        if first {
            let decision = self.grows(job, bytes);
            if matches!(decision, Decision::Grant { .. }) {
                return Some(decision);
            }
        }
        self.growing.push((job, bytes));
        // Nor does it wait where somebody who waits already would then wait for ever.
        if self.growing.iter().all(|(job, bytes)| self.may_come(*job, *bytes)) {
            return None;
        }
        self.growing.pop();
        Some(self.grows(job, bytes))
    }

    /// Whether so much may come to be free for it.
    fn may_come(&self, job: Job, bytes: u64) -> bool {
        let Some(own) = self.running.get(&job) else {
            return false;
        };
        let Some(device) = self.devices.get(&own.device) else {
            return false;
        };
        let waits = |other: &Job| self.growing.iter().any(|(growing, _)| growing == other);
        // What is left if all who may end do.
        let left = self.load_of(own.device, |running| running.ask.job == job || waits(&running.ask.job));
        let beside = self.running.values().filter(|running| running.device == own.device);
        let ends = beside.filter(|running| running.ask.job != job && !waits(&running.ask.job));
        let load = Load {
            fixed: left.fixed.saturating_add(bytes),
            ..left
        };
        ends.count() > 0 && load.fits(device, self.host_elsewhere(device.id), &self.config).is_ok()
    }

    /// Gives those who wait for more what is free now, who asked first first, and says no to those for whom nothing can come any more.
    pub(super) fn serve_growing(&mut self, out: &mut Vec<Decision>) {
        let mut blocked = Vec::new();
        for (job, bytes) in self.growing.clone() {
            let device = self.running.get(&job).map(|running| running.device);
            if blocked.contains(&device) {
                continue;
            }
            match self.grows(job, bytes) {
                granted @ Decision::Grant { .. } => {
                    self.growing.retain(|(growing, _)| *growing != job);
                    out.push(granted);
                }
                _ => blocked.push(device),
            }
        }
        // Nobody is left beside them who may end: the one that asked last hears so, and may end or give something back.
        while let Some(at) = self
            .growing
            .iter()
            .rposition(|(job, bytes)| !self.may_come(*job, *bytes))
        {
            let (job, bytes) = self.growing.remove(at);
            let decision = self.grows(job, bytes);
            self.answers(decision, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::super::event::{Ask, Event};
    use super::super::need::{DeviceId, Need, User};
    use super::*;

    const GB: u64 = 1 << 30;

    fn machine(device: Device) -> Admission {
        let mut machine = Admission::new(Config::default());
        machine.handle(0, Event::Device(device), &mut Vec::new());
        machine
    }

    fn tell(machine: &mut Admission, event: Event) -> Vec<Decision> {
        let mut out = Vec::new();
        machine.handle(1, event, &mut out);
        out
    }

    fn asks(machine: &mut Admission, job: u64, peak: u64) -> bool {
        let ask = Ask {
            job: Job(job),
            user: User(0),
            priority: 5,
            need: Need::plain(peak, 60_000_000_000),
            devices: vec![DeviceId(0)],
        };
        tell(machine, Event::Asks(ask));
        machine.share(Job(job)).is_some()
    }

    fn granted(out: &[Decision]) -> Vec<u64> {
        let grant = |decision: &Decision| match decision {
            Decision::Grant { job, .. } => Some(job.0),
            _ => None,
        };
        out.iter().filter_map(grant).collect()
    }

    fn denied(out: &[Decision]) -> Vec<u64> {
        let deny = |decision: &Decision| match decision {
            Decision::Deny { job, .. } => Some(job.0),
            _ => None,
        };
        out.iter().filter_map(deny).collect()
    }

    #[test]
    fn who_wants_more_has_it_when_a_neighbour_ends_and_before_who_has_not_begun() {
        let mut machine = machine(Device::new(DeviceId(0), 8 * GB));
        assert!(asks(&mut machine, 1, 3 * GB) && asks(&mut machine, 2, 3 * GB));
        assert_eq!(tell(&mut machine, Event::GrowsInTime(Job(1), 4 * GB)), []);
        assert!(
            !asks(&mut machine, 3, GB),
            "two are free, and somebody who runs waits for them"
        );
        // It runs and waits for nobody, so what is free it has; what is not, not: both would wait for each other.
        assert_eq!(granted(&tell(&mut machine, Event::Grows(Job(2), GB))), [2]);
        assert_eq!(denied(&tell(&mut machine, Event::GrowsInTime(Job(2), 2 * GB))), [2]);
        let out = tell(&mut machine, Event::Ends(Job(2)));
        assert_eq!(granted(&out), [1]);
        assert!(machine.share(Job(3)).is_some(), "{out:?}");
        assert_eq!(machine.share(Job(1)), Some((DeviceId(0), 7 * GB)));
    }

    #[test]
    fn what_cannot_come_is_not_waited_for() {
        let mut machine = machine(Device::new(DeviceId(0), 8 * GB));
        assert!(asks(&mut machine, 1, 3 * GB));
        assert_eq!(denied(&tell(&mut machine, Event::GrowsInTime(Job(1), 6 * GB))), [1]);
        assert!(asks(&mut machine, 2, 3 * GB));
        assert_eq!(denied(&tell(&mut machine, Event::GrowsInTime(Job(1), 6 * GB))), [1]);
        // Three of whom two wait, as long as the third one's end suffices for either.
        assert!(asks(&mut machine, 3, GB));
        assert_eq!(tell(&mut machine, Event::GrowsInTime(Job(1), 3 * GB)), []);
        assert_eq!(
            denied(&tell(&mut machine, Event::GrowsInTime(Job(2), 2 * GB))),
            [2],
            "the first one would wait for it"
        );
        assert_eq!(tell(&mut machine, Event::GrowsInTime(Job(1), 3 * GB / 2)), []);
        assert_eq!(tell(&mut machine, Event::GrowsInTime(Job(2), 3 * GB / 2)), []);
        assert_eq!(granted(&tell(&mut machine, Event::Ends(Job(3)))), [1]);
        assert_eq!(granted(&tell(&mut machine, Event::Ends(Job(1)))), [2]);
        assert_eq!(tell(&mut machine, Event::Ends(Job(2))), []);
        // Who gives up keeps nobody out.
        assert!(asks(&mut machine, 4, 4 * GB) && asks(&mut machine, 5, 3 * GB));
        assert_eq!(tell(&mut machine, Event::GrowsInTime(Job(4), 2 * GB)), []);
        assert!(!asks(&mut machine, 6, GB / 2));
        tell(&mut machine, Event::GrowsNoMore(Job(4)));
        assert!(machine.share(Job(6)).is_some());
    }

    #[test]
    fn contexts_that_were_never_measured_are_tried_one_by_one() {
        let cold = Device {
            measured: false,
            ..Device::new(DeviceId(0), 8 * GB)
        };
        let mut machine = machine(cold);
        assert!(asks(&mut machine, 1, 4 * GB));
        assert!(!asks(&mut machine, 2, 4 * GB) && !asks(&mut machine, 3, 3 * GB));
        let warm = Device {
            context: GB / 4,
            measured: true,
            ..cold
        };
        tell(&mut machine, Event::Device(warm));
        assert_eq!(machine.share(Job(1)), Some((DeviceId(0), 4 * GB + GB / 4)));
        assert!(machine.share(Job(2)).is_none() && machine.share(Job(3)).is_some());
        // Known better, by less this time.
        tell(&mut machine, Event::Device(Device { context: 0, ..warm }));
        assert_eq!(machine.share(Job(1)), Some((DeviceId(0), 4 * GB)));
    }
}
