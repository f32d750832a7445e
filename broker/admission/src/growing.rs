// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running jobs that want more memory.
//!
//! A job may wait for memory that is not free ([`super::Event::GrowsInTime`]), since a neighbour
//! may end. It does not wait for bytes beyond the device, nor for those of jobs that wait
//! themselves.
//!
//! Meanwhile new jobs of no higher priority stay out if they would lengthen its wait. Its memory
//! may become free in two ways: one neighbour ends whose end suffices, or the neighbours expected
//! first have ended. A new job begins if it leaves room in each case.
//!
//! A user's jobs keep others out for at most [`super::AdmissionConfig::guard`] an hour, counted
//! while jobs wait for admission. Without guard time left a request still has free memory first.
#![forbid(unsafe_code)]

use super::event::Decision;
use super::load::Load;
use super::model::{GrowthRequest, RunningJob, WaitingJob};
use super::need::{Device, DeviceId, Job, Need, User};
use super::state::Admission;
use super::sums::GuardedLoad;
use weft_protocol::Ns;

/// Time in which a fully used guard is forgotten, ns.
const GUARD_PERIOD_NS: Ns = 3_600_000_000_000;

/// Divisor of the guard: a job begins to keep others out only if more than
/// `guard / MIN_GUARD_DIVISOR` is left. So no job keeps others out only for a moment.
const MIN_GUARD_DIVISOR: Ns = 10;

impl Admission {
    /// Adds a device or its new measurement, and corrects its jobs' shares for the contexts.
    pub(super) fn update_device(&mut self, device: Device) {
        let before = self.devices.insert(device.id, device);
        let was = before.map_or(device.context, |before| before.context);
        for running in self.running.values_mut().filter(|running| running.device == device.id) {
            let contexts = |each: u64| each.saturating_mul(u64::from(running.ask.need.processes));
            let share = running.share.saturating_add(contexts(device.context));
            running.share = share.saturating_sub(contexts(was));
        }
    }

    /// Whether this waiter may begin there: an unmeasured device takes one job at a time, and
    /// guarding jobs must not wait longer.
    pub(super) fn may_begin_on(&self, waiter: &WaitingJob, device: &Device, need: &Need) -> bool {
        let Some(sums) = self.device_sums(device.id) else {
            return false;
        };
        if !device.measured && sums.load != Load::default() {
            return false;
        }
        let fixed = need.fixed(device);
        sums.guarded.iter().all(|guarded| {
            let both = guarded.load.with(need, fixed);
            waiter.ask.priority < guarded.priority || both.fits(device, sums.elsewhere, &self.config).is_ok()
        })
    }

    /// Loads once a guarding job is served, for each way its memory may become free.
    pub(super) fn guarded_loads(&self, device: DeviceId, elsewhere: u64) -> Vec<GuardedLoad> {
        let (mut guarded_loads, waits) = (Vec::new(), |job: &Job| self.growing.iter().any(|it| it.job == *job));
        let Some(about) = self.devices.get(&device) else {
            return guarded_loads;
        };
        for growing in self.growing.iter().filter(|growing| growing.guards) {
            let Some(own) = self.running.get(&growing.job).filter(|own| own.device == device) else {
                continue;
            };
            let has = |load: Load| Load {
                fixed: load.fixed.saturating_add(growing.bytes),
                ..load
            };
            let mut enough = |load: Load| {
                let load = has(load);
                let fits = load.fits(about, elsewhere, &self.config).is_ok();
                if fits {
                    let priority = own.ask.priority;
                    guarded_loads.push(GuardedLoad { priority, load });
                }
                fits
            };
            let here = self.running.iter().filter(|(_, running)| running.device == device);
            let (stay, mut leave): (Vec<_>, Vec<_>) =
                here.map(|(job, it)| (waits(job), it)).partition(|(waits, _)| *waits);
            leave.sort_unstable_by_key(|(_, running)| (running.end(self.now), running.number));
            let with = |load: Load, running: &RunningJob| load.with(&running.ask.need, running.share);
            let stay = stay.iter().fold(Load::default(), |load, (_, it)| with(load, it));
            // Loads left after the first 0, 1, 2, ... have ended.
            let mut after = vec![stay];
            for (_, running) in leave.iter().rev() {
                after.extend(after.last().map(|load| with(*load, running)));
            }
            after.reverse();
            if let Some(at) = after
                .iter()
                .skip(1)
                .position(|load| has(*load).fits(about, elsewhere, &self.config).is_ok())
            {
                enough(after.get(at + 1).copied().unwrap_or(stay));
            }
            // Each job that may end before all others.
            let mut before = Load::default();
            for ((_, running), rest) in leave.iter().zip(after.iter().skip(1)) {
                enough(before.and(rest));
                before = with(before, running);
            }
        }
        guarded_loads
    }

    /// Charges `time` ns to the users whose jobs kept others out.
    pub(super) fn charge_guards(&mut self, time: Ns) {
        if time == 0 {
            return;
        }
        let guard = self.config.guard;
        let waited_for = self.waiting.iter().any(|waiter| self.is_active(waiter));
        let mut users: Vec<User> = match waited_for {
            true => self.guards().map(|(_, user)| user).collect(),
            false => Vec::new(),
        };
        users.sort_unstable();
        users.dedup();
        self.fair_share.charge_guard(time, (guard, GUARD_PERIOD_NS), &users);
        let over: Vec<Job> = self
            .guards()
            .filter(|(_, user)| self.fair_share.guard_left(*user, guard) == 0)
            .map(|(job, _)| job)
            .collect();
        for growing in self.growing.iter_mut().filter(|growing| over.contains(&growing.job)) {
            growing.guards = false;
        }
    }

    /// When the first user has no guard time left.
    pub(super) fn guards_end(&self) -> Option<Ns> {
        let left = self
            .guards()
            .map(|(_, user)| self.fair_share.guard_left(user, self.config.guard));
        left.min().map(|left| self.now.saturating_add(left.max(1)))
    }

    /// Jobs that keep others out, and their users.
    fn guards(&self) -> impl Iterator<Item = (Job, User)> {
        let guards = self.growing.iter().filter(|growing| growing.guards);
        guards.filter_map(|growing| Some((growing.job, self.running.get(&growing.job)?.ask.user)))
    }

    /// Grants or denies more bytes; `None`: the job waits, as they may become free.
    pub(super) fn grow_or_wait(&mut self, job: Job, bytes: u64) -> Option<Decision> {
        // A repeated request keeps its guard.
        let guarded = self.growing.iter().any(|growing| growing.job == job && growing.guards);
        self.growing.retain(|growing| growing.job != job);
        let device = self.running.get(&job).map(|running| running.device);
        let there = |other: &GrowthRequest| self.running.get(&other.job).map(|running| running.device) == device;
        // An earlier request gets free memory first.
        let first = !self.growing.iter().any(there);
        if !self.may_become_free(job, bytes) {
            return Some(self.grow_now(job, bytes));
        }
        if first {
            let decision = self.grow_now(job, bytes);
            if matches!(decision, Decision::Grant { .. }) {
                return Some(decision);
            }
        }
        let guard = self.config.guard;
        let left = self
            .running
            .get(&job)
            .map(|it| self.fair_share.guard_left(it.ask.user, guard));
        let guards = left.is_some_and(|left| left > guard / MIN_GUARD_DIVISOR || guarded && left > 0);
        self.growing.push(GrowthRequest { job, bytes, guards });
        // Nor may an earlier request then wait for ever.
        if self.growing.iter().all(|it| self.may_become_free(it.job, it.bytes)) {
            return None;
        }
        self.growing.pop();
        Some(self.grow_now(job, bytes))
    }

    /// Whether this many bytes may become free for the job.
    fn may_become_free(&self, job: Job, bytes: u64) -> bool {
        let Some(own) = self.running.get(&job) else {
            return false;
        };
        let Some(device) = self.devices.get(&own.device) else {
            return false;
        };
        if self.growth_capped(job, bytes).is_some() {
            return false;
        }
        let waits = |other: &Job| self.growing.iter().any(|growing| growing.job == *other);
        // Load once all jobs that may end have ended.
        let left = self.load_of(own.device, |running| running.ask.job == job || waits(&running.ask.job));
        let beside = self.running.values().filter(|running| running.device == own.device);
        let ends = beside.filter(|running| running.ask.job != job && !waits(&running.ask.job));
        let load = Load {
            fixed: left.fixed.saturating_add(bytes),
            ..left
        };
        ends.count() > 0 && load.fits(device, self.host_elsewhere(device.id), &self.config).is_ok()
    }

    /// Grants requests from free memory, oldest first; denies those that can no longer be met.
    pub(super) fn serve_requests(&mut self, out: &mut Vec<Decision>) {
        let mut blocked = Vec::new();
        for GrowthRequest { job, bytes, .. } in self.growing.clone() {
            let device = self.running.get(&job).map(|running| running.device);
            if blocked.contains(&device) {
                continue;
            }
            match self.grow_now(job, bytes) {
                granted @ Decision::Grant { .. } => {
                    self.growing.retain(|growing| growing.job != job);
                    out.push(granted);
                }
                _ => blocked.push(device),
            }
        }
        // All would wait for one another: the last to ask is denied, and may end or give back.
        while let Some(at) = self
            .growing
            .iter()
            .rposition(|growing| !self.may_become_free(growing.job, growing.bytes))
        {
            let GrowthRequest { job, bytes, .. } = self.growing.remove(at);
            let decision = self.grow_now(job, bytes);
            out.push(decision);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::AdmissionConfig;
    use super::super::event::{Ask, Event};
    use super::super::need::{DeviceId, Need, User};
    use super::*;

    const GB: u64 = 1 << 30;

    fn machine(device: Device) -> Admission {
        let mut machine = Admission::new(AdmissionConfig::default());
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
        assert_eq!(tell(&mut machine, Event::GrowsInTime(Job(1), 5 * GB)), []);
        assert!(
            !asks(&mut machine, 3, GB),
            "two are free, and somebody who runs needs them and what the other one has"
        );
        // It may not wait for more: both would wait for each other.
        assert_eq!(granted(&tell(&mut machine, Event::Grows(Job(2), GB))), [2]);
        assert_eq!(denied(&tell(&mut machine, Event::GrowsInTime(Job(2), 2 * GB))), [2]);
        let out = tell(&mut machine, Event::Ends(Job(2)));
        assert_eq!(granted(&out), [1]);
        assert!(machine.waits(Job(3)), "{out:?}");
        assert_eq!(machine.share(Job(1)), Some((DeviceId(0), 8 * GB)));
        tell(&mut machine, Event::Ends(Job(1)));
        assert!(machine.share(Job(3)).is_some());
    }

    #[test]
    fn who_leaves_him_who_grows_what_he_waits_for_begins() {
        let mut machine = machine(Device::new(DeviceId(0), 16 * GB));
        assert!(asks(&mut machine, 1, 2 * GB) && asks(&mut machine, 2, 3 * GB) && asks(&mut machine, 3, 6 * GB));
        // Either end suffices. With that of 2 there are 8, one more than job 1 wants; with that of
        // 3 there are four more.
        assert_eq!(tell(&mut machine, Event::GrowsInTime(Job(1), 7 * GB)), []);
        assert!(
            !asks(&mut machine, 4, 2 * GB),
            "2 may end first, and then it would be too little"
        );
        tell(&mut machine, Event::Ends(Job(4)));
        assert!(asks(&mut machine, 4, GB));
        assert!(!asks(&mut machine, 5, GB));
        assert_eq!(granted(&tell(&mut machine, Event::Ends(Job(2)))), [1]);
        // A more important job goes first.
        tell(&mut machine, Event::Ends(Job(5)));
        tell(&mut machine, Event::Ends(Job(4)));
        assert_eq!(tell(&mut machine, Event::GrowsInTime(Job(1), 7 * GB)), []);
        assert!(!asks(&mut machine, 6, GB));
        tell(&mut machine, Event::Priority(Job(6), 4));
        assert!(machine.share(Job(6)).is_some());
    }

    #[test]
    fn who_waits_for_more_keeps_others_out_for_a_minute_in_an_hour_and_no_longer() {
        const S: Ns = 1_000_000_000;
        let mut machine = machine(Device::new(DeviceId(0), 80 * GB));
        let asks = |machine: &mut Admission, now: Ns, job: u64, user: u32, peak: u64| {
            let ask = Ask {
                job: Job(job),
                user: User(user),
                priority: 5,
                need: Need::plain(peak, 60 * S),
                devices: vec![DeviceId(0)],
            };
            machine.handle(now, Event::Asks(ask), &mut Vec::new());
            machine.share(Job(job)).is_some()
        };
        assert!(asks(&mut machine, 0, 1, 1, GB) && asks(&mut machine, 0, 2, 1, GB));
        let grows = |machine: &mut Admission, now: Ns| {
            let mut out = Vec::new();
            machine.handle(now, Event::GrowsInTime(Job(2), 79 * GB), &mut out);
            assert_eq!(out, []);
        };
        grows(&mut machine, S);
        // Time without waiting jobs does not count.
        assert!(!asks(&mut machine, 1_000 * S, 3, 2, GB));
        // A repeated request does not restart the minute.
        for now in 1_001..1_059 {
            grows(&mut machine, now * S);
            assert!(machine.waits(Job(3)), "after {now} s");
        }
        assert_eq!(machine.next_wake(), Some(1_060 * S));
        machine.handle(1_060 * S, Event::Tick, &mut Vec::new());
        assert!(machine.share(Job(3)).is_some(), "77 GiB are free");
        // Another job of the user, just short of an hour later: it waits, and keeps no job out.
        grows(&mut machine, 1_061 * S);
        assert!(asks(&mut machine, 1_062 * S, 4, 2, GB));
        // The used time is forgotten.
        grows(&mut machine, 4_800 * S);
        assert!(!asks(&mut machine, 4_801 * S, 5, 2, GB));
    }

    #[test]
    fn what_cannot_come_is_not_waited_for() {
        let mut machine = machine(Device::new(DeviceId(0), 8 * GB));
        assert!(asks(&mut machine, 1, 3 * GB));
        assert_eq!(denied(&tell(&mut machine, Event::GrowsInTime(Job(1), 6 * GB))), [1]);
        assert!(asks(&mut machine, 2, 3 * GB));
        assert_eq!(denied(&tell(&mut machine, Event::GrowsInTime(Job(1), 6 * GB))), [1]);
        // Two of three wait, as long as the third one's end suffices for either.
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
        // A withdrawn request keeps no job out.
        assert!(asks(&mut machine, 4, 4 * GB) && asks(&mut machine, 5, 3 * GB));
        assert_eq!(tell(&mut machine, Event::GrowsInTime(Job(4), 4 * GB)), []);
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
        // A better measurement, smaller this time.
        tell(&mut machine, Event::Device(Device { context: 0, ..warm }));
        assert_eq!(machine.share(Job(1)), Some((DeviceId(0), 4 * GB)));
    }
}
