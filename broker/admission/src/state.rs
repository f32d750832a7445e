// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state: waiters, running jobs with their shares, and the effect of each event.
//!
//! Invariant: [`Admission::sums()`] are dropped whenever an input of them changes.
#![forbid(unsafe_code)]

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::caps::Caps;
use super::config::AdmissionConfig;
use super::event::{Ask, Decision, Event, Never};
use super::fair_share::FairShare;
use super::fifo_shadow::FifoShadow;
use super::load::{Lack, Load};
use super::model::{AdmissionView, GrowthRequest, RunningJob, RunningView, Spot, WaitingJob};
use super::need::{Backing, Device, DeviceId, Job, Need};
use super::sums::{DeviceSums, RunningSums};
use weft_protocol::Ns;

/// Factor on the expected time until a job fits, in `Admission::leeway`. Estimates are wrong by up
/// to two, and among several jobs one usually is.
const DRAIN_FACTOR: f64 = 1.5;

/// The state machine.
#[derive(Debug, Clone)]
pub struct Admission {
    pub(super) config: AdmissionConfig,
    pub(super) devices: BTreeMap<DeviceId, Device>,
    pub(super) waiting: Vec<WaitingJob>,
    pub(super) running: BTreeMap<Job, RunningJob>,
    pub(super) fair_share: FairShare,
    pub(super) caps: Caps,
    pub(super) fifo_shadow: FifoShadow,
    /// Running jobs that wait for more memory, oldest request first.
    pub(super) growing: Vec<GrowthRequest>,
    sums: OnceCell<RunningSums>,
    pub(super) now: Ns,
    pub(super) last_number: u64,
}

impl Admission {
    /// A machine without devices and jobs.
    pub fn new(config: AdmissionConfig) -> Admission {
        Admission {
            config,
            devices: BTreeMap::new(),
            waiting: Vec::new(),
            running: BTreeMap::new(),
            fair_share: FairShare::default(),
            caps: Caps::default(),
            fifo_shadow: FifoShadow::default(),
            growing: Vec::new(),
            sums: OnceCell::new(),
            now: 0,
            last_number: 0,
        }
    }

    /// Processes an event at `now`; appends the decisions to `out`.
    pub fn handle(&mut self, now: Ns, event: Event, out: &mut Vec<Decision>) {
        self.sums.take();
        self.apply(now, event, out);
        self.sums.take();
    }

    fn apply(&mut self, now: Ns, event: Event, out: &mut Vec<Decision>) {
        self.advance(now);
        match event {
            Event::Device(device) => {
                self.update_device(device);
                self.refuse_beyond_caps(out);
            }
            Event::Cap(user, cap) => self.set_cap(user, cap, out),
            Event::IsPart(job) => self.caps.set_part(job),
            Event::Weight(user, weight) => self.fair_share.set_weight(user, weight),
            Event::Asks(ask) => self.enqueue(ask, out),
            Event::Holds(ask, device, share) => self.note_running(ask, device, share),
            Event::Has(job, bytes) => {
                if let Some(running) = self.running.get_mut(&job) {
                    running.share = running.share.saturating_add(bytes);
                }
            }
            Event::Gives(job, bytes) => {
                if let Some(running) = self.running.get_mut(&job) {
                    running.share = running.share.saturating_sub(bytes);
                }
            }
            Event::GivesUp(job, bytes) => {
                if let Some(running) = self.running.get_mut(&job) {
                    running.share = running.share.saturating_sub(bytes);
                }
                // The request or the tick that follows takes them. No waiting job gets them now.
                return;
            }
            Event::Uses(job, bytes) => {
                // This frees nothing either: the job may take them.
                self.note_usage(job, bytes);
                return;
            }
            Event::Joins(job) => self.add_process(job, out),
            Event::Leaves(job) => self.remove_process(job),
            Event::Grows(job, bytes) => {
                // This frees nothing, so no other job can gain.
                let decision = self.grow_now(job, bytes);
                out.push(decision);
                return;
            }
            Event::GrowsInTime(job, bytes) => {
                if let Some(decision) = self.grow_or_wait(job, bytes) {
                    out.push(decision);
                    return;
                }
            }
            Event::GrowsNoMore(job) => self.growing.retain(|growing| growing.job != job),
            Event::Priority(job, priority) => {
                if let Some(waiter) = self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
                    waiter.ask.priority = priority;
                    self.fifo_shadow.set_priority(waiter.number, priority);
                }
                if let Some(running) = self.running.get_mut(&job) {
                    running.ask.priority = priority;
                }
            }
            Event::Suspends(job) => self.suspend(job),
            Event::OnDevice(job) => self.on_device(job),
            Event::Resumes(job) => {
                if let Some(waiter) = self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
                    waiter.suspended = false;
                }
            }
            Event::Ends(job) => self.remove(job),
            Event::Tick => self.refresh_usages(),
        }
        self.fifo_shadow.advance(self.now, &self.devices, &self.config);
        self.serve_requests(out);
        self.sums.take();
        self.dispatch(out);
        if self.waiting.is_empty() || self.fifo_shadow.is_too_long() {
            self.fifo_shadow.reset(self.running.values());
        }
    }

    /// When the next [`Event::Tick`] is needed: a waiter becomes due, the fifo shadow changes, or a
    /// guard ends.
    pub fn next_wake(&self) -> Option<Ns> {
        if self.waiting.is_empty() {
            return None;
        }
        let there = self.waiting.iter().filter(|waiter| self.is_active(waiter));
        let dues = there.map(|waiter| self.due(waiter));
        let all = dues
            .chain(self.fifo_shadow.next_change(self.now))
            .chain(self.guards_end());
        all.filter(|at| *at > self.now).min()
    }

    /// Current load of a device.
    pub fn load(&self, device: DeviceId) -> Load {
        self.load_of(device, |_| true)
    }

    /// All devices.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.values()
    }

    /// Device and share (bytes) of a running job.
    pub fn share(&self, job: Job) -> Option<(DeviceId, u64)> {
        self.running.get(&job).map(|running| (running.device, running.share))
    }

    /// Start time of a running job, ns.
    pub fn since(&self, job: Job) -> Option<Ns> {
        self.running.get(&job).map(|running| running.since)
    }

    /// All running and waiting jobs.
    pub fn jobs(&self) -> impl Iterator<Item = Job> {
        let waiting = self.waiting.iter().map(|waiter| waiter.ask.job);
        self.running.keys().copied().chain(waiting)
    }

    /// Whether the job waits.
    pub fn waits(&self, job: Job) -> bool {
        self.waiting.iter().any(|waiter| waiter.ask.job == job)
    }

    /// Whether a running job is the most important one on its device, with less important ones
    /// there.
    pub fn is_foreground(&self, job: Job) -> bool {
        let Some(own) = self.running.get(&job) else {
            return false;
        };
        let here = self.running.values().filter(|other| other.device == own.device);
        let mut others = here.map(|other| other.ask.priority);
        let last = others.clone().max();
        others.all(|priority| own.ask.priority <= priority) && last.is_some_and(|last| own.ask.priority < last)
    }

    /// Number of jobs running on a device.
    pub fn jobs_on(&self, device: DeviceId) -> usize {
        self.running.values().filter(|running| running.device == device).count()
    }

    /// Numbers of waiting and of running jobs.
    pub fn count(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Whether a running job's memory is managed.
    pub fn is_managed(&self, job: Job) -> bool {
        self.backing(job).is_some_and(Backing::is_managed)
    }

    /// Backing of a running job.
    pub fn backing(&self, job: Job) -> Option<Backing> {
        self.running.get(&job).map(|running| running.ask.need.backing)
    }

    /// The whole state, for people.
    pub fn view(&self) -> AdmissionView {
        let devices = self.devices.values().map(|device| {
            let load = self.load(device.id);
            (*device, load, load.free(device))
        });
        let running = self.running.values().map(|running| RunningView {
            ask: running.ask.clone(),
            device: running.device,
            share: running.share,
            since: running.since,
        });
        AdmissionView {
            devices: devices.collect(),
            running: running.collect(),
            waiting: self.waiter_views(),
        }
    }

    fn advance(&mut self, now: Ns) {
        let time = now.saturating_sub(self.now);
        let shares = self.running.values().map(|running| (running.ask.user, running.share));
        self.fair_share.charge(time, self.config.half_life, shares);
        self.charge_guards(time);
        self.now = self.now.max(now);
    }

    fn enqueue(&mut self, ask: Ask, out: &mut Vec<Decision>) {
        if self.running.contains_key(&ask.job) || self.waits(ask.job) {
            return;
        }
        let never = self.can_ever_run(&ask).err().or_else(|| self.beyond_cap(&ask));
        if let Some(why) = never {
            self.caps.forget(ask.job);
            out.push(Decision::Refuse { job: ask.job, why });
            return;
        }
        self.last_number += 1;
        let own = self.waiting.iter().filter(|waiter| waiter.ask.user == ask.user);
        let handicap = self.config.handicap(own.count(), self.fair_share.weight(ask.user));
        let turn = self.now.saturating_add(handicap);
        self.fifo_shadow.push(self.last_number, &ask, turn);
        self.waiting.push(WaitingJob {
            turn,
            ask,
            arrived: self.now,
            number: self.last_number,
            present: 1,
            promise: None,
            suspended: false,
        });
    }

    fn suspend(&mut self, job: Job) {
        if let Some(running) = self.running.remove(&job) {
            self.fifo_shadow.restart_wait(running.number);
            let at = self.waiting.partition_point(|waiter| waiter.number < running.number);
            let waiter = WaitingJob {
                ask: running.ask,
                arrived: running.arrived,
                number: running.number,
                turn: running.turn,
                present: running.present,
                promise: None,
                suspended: true,
            };
            self.waiting.insert(at, waiter);
        } else if let Some(waiter) = self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
            waiter.suspended = true;
        }
    }

    fn note_running(&mut self, ask: Ask, device: DeviceId, share: u64) {
        self.withdraw(ask.job);
        match self.running.get_mut(&ask.job) {
            // Another process of the same job.
            Some(running) => {
                running.share = running.share.saturating_add(share);
                running.present = running.present.saturating_add(1);
            }
            None => {
                self.last_number += 1;
                self.fifo_shadow.push(self.last_number, &ask, self.now);
                self.fifo_shadow.start(self.last_number, self.now);
                let running = RunningJob {
                    device,
                    share,
                    since: self.now,
                    number: self.last_number,
                    arrived: self.now,
                    turn: self.now,
                    present: 1,
                    usage: None,
                    ask: ask.clone(),
                };
                self.running.insert(ask.job, running);
            }
        }
    }

    fn add_process(&mut self, job: Job, out: &mut Vec<Decision>) {
        if let Some(waiter) = self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
            waiter.present += 1;
            waiter.ask.need.processes = waiter.ask.need.processes.max(waiter.present);
            let ask = waiter.ask.clone();
            if let Err(why) = self.can_ever_run(&ask) {
                self.remove(job);
                out.push(Decision::Refuse { job, why });
            }
            return;
        }
        let Some(running) = self.running.get_mut(&job) else {
            return;
        };
        running.present += 1;
        if running.present <= running.ask.need.processes {
            return;
        }
        // Its context comes from free memory, else from the job's own share. Then the need stays,
        // so that the job still fits when it resumes.
        let device = running.device;
        let context = self.devices.get(&device).map_or(0, |device| device.context);
        if self.fits_more(device, context)
            && let Some(running) = self.running.get_mut(&job)
        {
            running.ask.need.processes = running.present;
            running.share += context;
        }
    }

    fn remove_process(&mut self, job: Job) {
        let present = match self.running.get_mut(&job) {
            Some(running) => &mut running.present,
            None => match self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
                Some(waiter) => &mut waiter.present,
                None => return,
            },
        };
        *present = present.saturating_sub(1);
        if *present == 0 {
            self.remove(job);
        }
    }

    pub(super) fn remove(&mut self, job: Job) {
        self.caps.forget(job);
        self.growing.retain(|growing| growing.job != job);
        if let Some(running) = self.running.remove(&job) {
            self.fifo_shadow.end(running.number, self.now);
        }
        self.withdraw(job);
    }

    fn withdraw(&mut self, job: Job) {
        for waiter in self.waiting.extract_if(.., |waiter| waiter.ask.job == job) {
            self.fifo_shadow.end(waiter.number, self.now);
        }
    }

    pub(super) fn grow_now(&mut self, job: Job, bytes: u64) -> Decision {
        let Some(device) = self.running.get(&job).map(|running| running.device) else {
            return Decision::Deny { job, bytes, free: 0 };
        };
        if self.fits_more(device, bytes)
            && self.growth_capped(job, bytes).is_none()
            && let Some(running) = self.running.get_mut(&job)
        {
            running.share = running.share.saturating_add(bytes);
            return Decision::Grant { job, bytes };
        }
        let free = self.devices.get(&device).map_or(0, |it| self.load(device).free(it));
        Decision::Deny { job, bytes, free }
    }

    pub(super) fn fits_more(&self, device: DeviceId, bytes: u64) -> bool {
        let Some(about) = self.devices.get(&device) else {
            return false;
        };
        let mut load = self.load(device);
        load.fixed = load.fixed.saturating_add(bytes);
        load.fits(about, self.host_elsewhere(device), &self.config).is_ok()
    }

    /// Load of a device from the jobs for which `meant` holds.
    pub(super) fn load_of(&self, device: DeviceId, meant: impl Fn(&RunningJob) -> bool) -> Load {
        let there = self.running.values().filter(|running| running.device == device);
        there
            .filter(|running| meant(running))
            .fold(Load::default(), |load, running| {
                load.with(&running.ask.need, running.share)
            })
    }

    /// Host memory of managed jobs on other devices, bytes.
    pub(super) fn host_elsewhere(&self, device: DeviceId) -> u64 {
        let others = self.running.values().filter(|running| running.device != device);
        let needs = others.map(|running| running.ask.need);
        let managed = needs.filter(|need| need.backing.is_managed());
        managed.map(|need| need.peak).fold(0, u64::saturating_add)
    }

    /// Devices that a job may use.
    pub(super) fn allowed<'a>(&'a self, ask: &'a Ask) -> impl Iterator<Item = &'a Device> {
        let devices = self.devices.values();
        devices.filter(|device| ask.devices.is_empty() || ask.devices.contains(&device.id))
    }

    /// Notes device memory of a job whose backing was undecided or managed.
    fn on_device(&mut self, job: Job) {
        if let Some(waiter) = self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
            waiter.ask.need.backing = Backing::Device;
        }
        let Some(running) = self.running.get_mut(&job) else {
            return;
        };
        if running.ask.need.backing != Backing::Device {
            running.ask.need.backing = Backing::Device;
            let device: Option<&Device> = self.devices.get(&running.device);
            running.share = device.map_or(running.share, |device| running.ask.need.fixed(device));
        }
    }

    /// Sums over the running jobs, computed on first use.
    pub(super) fn sums(&self) -> &RunningSums {
        self.sums.get_or_init(|| {
            let mut sums = RunningSums::new(self.now, self.running.values(), self.devices.keys().copied());
            for (id, of_device) in &mut sums.devices {
                of_device.guarded = self.guarded_loads(*id, of_device.elsewhere);
            }
            sums
        })
    }

    /// Sums of one device.
    pub(super) fn device_sums(&self, device: DeviceId) -> Option<&DeviceSums> {
        self.sums().devices.get(&device)
    }

    /// Whether an empty device could run the job with one of its backings.
    fn can_ever_run(&self, ask: &Ask) -> Result<(), Never> {
        let (first, second) = ask.need.forms();
        let could = self.can_ever_run_with(ask, first);
        match second {
            Some(second) if could.is_err() => self.can_ever_run_with(ask, second),
            _ => could,
        }
    }

    /// Whether an empty device could carry this need. Foreign memory counts as free: it may be
    /// given back.
    fn can_ever_run_with(&self, ask: &Ask, need: Need) -> Result<(), Never> {
        let mut largest: Option<(&Device, Lack)> = None;
        for device in self.allowed(ask) {
            let bare = Device { foreign: 0, ..*device };
            let load = Load::default().with(&need, need.fixed(&bare));
            match load.fits(&bare, 0, &self.config) {
                Ok(()) => return Ok(()),
                Err(lack) if largest.is_none_or(|(best, _)| device.memory > best.memory) => {
                    largest = Some((device, lack));
                }
                Err(_) => {}
            }
        }
        let Some((device, lack)) = largest else {
            return Err(Never::NoDevice);
        };
        let contexts = device.context.saturating_mul(u64::from(need.processes));
        Err(match lack {
            Lack::Device => Never::Device {
                need: match need.backing {
                    Backing::Device | Backing::Auto { .. } => need.fixed(device),
                    Backing::Managed { working_set } | Backing::AutoManaged { working_set } => {
                        working_set.saturating_add(contexts)
                    }
                },
                contexts,
                processes: need.processes,
                memory: device.memory,
            },
            Lack::Host => Never::Host {
                need: need.peak,
                memory: self.config.host_memory,
            },
            Lack::Link => Never::Link,
        })
    }

    /// Time from which no job passes this one: rule 1.
    pub(super) fn due(&self, waiter: &WaitingJob) -> Ns {
        let patience = self.config.patience(waiter.ask.need.expected);
        let latest = waiter.arrived.saturating_add(self.config.longest_wait.max(patience));
        let fifo = match self.fifo_shadow.started_at(waiter.number) {
            Some(began) => began.saturating_add(self.leeway(waiter).min(patience)),
            None => Ns::MAX,
        };
        waiter.arrived.saturating_add(patience).max(fifo).min(latest)
    }

    /// `max(arrived + patience, fifo_begin)`.
    pub(super) fn due_without_leeway(&self, waiter: &WaitingJob) -> Ns {
        let patience = self.config.patience(waiter.ask.need.expected);
        let fifo = self.fifo_shadow.started_at(waiter.number).unwrap_or(Ns::MAX);
        waiter.arrived.saturating_add(patience).max(fifo)
    }

    /// How much later than in the fifo shadow a job may begin, ns: rule 1. The bound allows for the
    /// longest run admitted before, which may be shorter than expected. So only a part of it
    /// counts.
    fn leeway(&self, waiter: &WaitingJob) -> Ns {
        let longest = self.sums().longest;
        let free = self.earliest_fit(waiter).map_or(self.now, |(_, at)| at);
        let drain = free.saturating_sub(self.now) as f64 * DRAIN_FACTOR;
        (longest.unwrap_or(0) as f64 / self.config.doubt.max(1.0) - drain).max(0.0) as Ns
    }

    pub(super) fn admit(&mut self, at: usize, (device, backing): Spot, out: &mut Vec<Decision>) {
        self.sums.take();
        let mut waiter = self.waiting.remove(at);
        waiter.ask.need.backing = backing;
        let share = self.devices.get(&device).map_or(0, |it| waiter.ask.need.fixed(it));
        out.push(Decision::Admit {
            job: waiter.ask.job,
            device,
            share,
        });
        let running = RunningJob {
            device,
            share,
            since: self.now,
            number: waiter.number,
            arrived: waiter.arrived,
            turn: waiter.turn,
            present: waiter.present,
            usage: None,
            ask: waiter.ask,
        };
        self.fifo_shadow.start(running.number, self.now);
        self.running.insert(running.ask.job, running);
    }
}
