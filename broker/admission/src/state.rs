//! The state: waiters, running jobs with their shares, and what each event changes.
#![forbid(unsafe_code)]

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::config::Config;
use super::event::{Ask, Decision, Event, Never};
use super::load::{Lack, Load};
use super::model::{Growing, Reckoned, Running, RunningView, Spot, View, Waiter};
use super::need::{Backing, Device, DeviceId, Job, Need};
use super::people::People;
use super::plain::Plain;
use weft_protocol::Ns;

/// Factor on the expected time until a job fits, in `Admission::leeway`. Estimates are wrong by
/// up to two, and of several jobs that run together one usually is.
const DRAIN: f64 = 1.5;

/// The state machine.
#[derive(Debug, Clone)]
pub struct Admission {
    pub(super) config: Config,
    pub(super) devices: BTreeMap<DeviceId, Device>,
    pub(super) waiting: Vec<Waiter>,
    pub(super) running: BTreeMap<Job, Running>,
    pub(super) people: People,
    pub(super) plain: Plain,
    /// Running jobs that wait for more memory, oldest request first.
    pub(super) growing: Vec<Growing>,
    /// Sums over the running jobs; emptied when one of them changes.
    pub(super) reckoned: OnceCell<Reckoned>,
    pub(super) now: Ns,
    pub(super) numbers: u64,
}

impl Admission {
    /// A machine without devices and jobs.
    pub fn new(config: Config) -> Admission {
        Admission {
            config,
            devices: BTreeMap::new(),
            waiting: Vec::new(),
            running: BTreeMap::new(),
            people: People::default(),
            plain: Plain::default(),
            growing: Vec::new(),
            reckoned: OnceCell::new(),
            now: 0,
            numbers: 0,
        }
    }

    /// Processes an event at `now` and appends the decisions to `out`.
    pub fn handle(&mut self, now: Ns, event: Event, out: &mut Vec<Decision>) {
        self.reckoned.take();
        self.take_in(now, event, out);
        self.reckoned.take();
    }

    fn take_in(&mut self, now: Ns, event: Event, out: &mut Vec<Decision>) {
        self.pass(now);
        match event {
            Event::Device(device) => self.measured(device),
            Event::Weight(user, weight) => self.people.weigh(user, weight),
            Event::Asks(ask) => self.asks(ask, out),
            Event::Holds(ask, device, share) => self.holds(ask, device, share),
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
            Event::Joins(job) => self.joins(job, out),
            Event::Leaves(job) => self.leaves(job),
            Event::Grows(job, bytes) => {
                // Served from what is free now. The request frees nothing, so no other job can
                // gain.
                let decision = self.grows(job, bytes);
                out.push(decision);
                return;
            }
            Event::GrowsInTime(job, bytes) => {
                if let Some(decision) = self.grows_in_time(job, bytes) {
                    out.push(decision);
                    return;
                }
            }
            Event::GrowsNoMore(job) => self.growing.retain(|growing| growing.job != job),
            Event::Priority(job, priority) => {
                if let Some(waiter) = self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
                    waiter.ask.priority = priority;
                    self.plain.priority(waiter.number, priority);
                }
                if let Some(running) = self.running.get_mut(&job) {
                    running.ask.priority = priority;
                }
            }
            Event::Away(job) => self.goes_away(job),
            Event::OnDevice(job) => self.on_device(job),
            Event::Back(job) => {
                if let Some(waiter) = self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
                    waiter.away = false;
                }
            }
            Event::Ends(job) => self.ends(job),
            Event::Tick => {}
        }
        self.plain.pass(self.now, &self.devices, &self.config);
        self.serve_growing(out);
        self.reckoned.take();
        self.dispatch(out);
        if self.waiting.is_empty() || self.plain.too_long() {
            self.plain.anew(self.running.values());
        }
    }

    /// When the next [`Event::Tick`] is needed: a waiter becomes due, plain order changes, or a
    /// guard ends.
    pub fn next_wake(&self) -> Option<Ns> {
        if self.waiting.is_empty() {
            return None;
        }
        let there = self.waiting.iter().filter(|waiter| !waiter.away);
        let dues = there.map(|waiter| self.due(waiter));
        let all = dues.chain(self.plain.next(self.now)).chain(self.guards_until());
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

    /// Number of jobs running on a device.
    pub fn jobs_on(&self, device: DeviceId) -> usize {
        self.running.values().filter(|running| running.device == device).count()
    }

    /// Numbers of waiting and of running jobs.
    pub fn count(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// The whole state, for people.
    pub fn view(&self) -> View {
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
        View {
            devices: devices.collect(),
            running: running.collect(),
            waiting: self.view_of_waiters(),
        }
    }

    fn pass(&mut self, now: Ns) {
        let time = now.saturating_sub(self.now);
        let shares = self.running.values().map(|running| (running.ask.user, running.share));
        self.people.pass(time, self.config.half_life, shares);
        self.guards_pass(time);
        self.now = self.now.max(now);
    }

    fn asks(&mut self, ask: Ask, out: &mut Vec<Decision>) {
        if self.running.contains_key(&ask.job) || self.waits(ask.job) {
            return;
        }
        if let Err(why) = self.could_ever(&ask) {
            out.push(Decision::Refuse { job: ask.job, why });
            return;
        }
        self.numbers += 1;
        let own = self.waiting.iter().filter(|waiter| waiter.ask.user == ask.user);
        let handicap = self.config.handicap(own.count(), self.people.weight(ask.user));
        let turn = self.now.saturating_add(handicap);
        self.plain.comes(self.numbers, &ask, turn);
        self.waiting.push(Waiter {
            turn,
            ask,
            came: self.now,
            number: self.numbers,
            present: 1,
            promise: None,
            away: false,
        });
    }

    fn goes_away(&mut self, job: Job) {
        if let Some(running) = self.running.remove(&job) {
            self.plain.waits_again(running.number);
            let at = self.waiting.partition_point(|waiter| waiter.number < running.number);
            let waiter = Waiter {
                ask: running.ask,
                came: running.came,
                number: running.number,
                turn: running.turn,
                present: running.present,
                promise: None,
                away: true,
            };
            self.waiting.insert(at, waiter);
        } else if let Some(waiter) = self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
            waiter.away = true;
        }
    }

    fn holds(&mut self, ask: Ask, device: DeviceId, share: u64) {
        self.withdraw(ask.job);
        match self.running.get_mut(&ask.job) {
            // Another process of the same job.
            Some(running) => {
                running.share = running.share.saturating_add(share);
                running.present = running.present.saturating_add(1);
            }
            None => {
                self.numbers += 1;
                self.plain.comes(self.numbers, &ask, self.now);
                self.plain.begins(self.numbers, self.now);
                let running = Running {
                    device,
                    share,
                    since: self.now,
                    number: self.numbers,
                    came: self.now,
                    turn: self.now,
                    present: 1,
                    ask: ask.clone(),
                };
                self.running.insert(ask.job, running);
            }
        }
    }

    fn joins(&mut self, job: Job, out: &mut Vec<Decision>) {
        if let Some(waiter) = self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
            waiter.present += 1;
            waiter.ask.need.processes = waiter.ask.need.processes.max(waiter.present);
            let ask = waiter.ask.clone();
            if let Err(why) = self.could_ever(&ask) {
                self.ends(job);
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
        running.ask.need.processes = running.present;
        // One process more than declared: its context comes from free memory, else from the job's
        // own share.
        let device = running.device;
        let context = self.devices.get(&device).map_or(0, |device| device.context);
        if self.fits_more(device, context)
            && let Some(running) = self.running.get_mut(&job)
        {
            running.share += context;
        }
    }

    fn leaves(&mut self, job: Job) {
        let present = match self.running.get_mut(&job) {
            Some(running) => &mut running.present,
            None => match self.waiting.iter_mut().find(|waiter| waiter.ask.job == job) {
                Some(waiter) => &mut waiter.present,
                None => return,
            },
        };
        *present = present.saturating_sub(1);
        if *present == 0 {
            self.ends(job);
        }
    }

    fn ends(&mut self, job: Job) {
        self.growing.retain(|growing| growing.job != job);
        if let Some(running) = self.running.remove(&job) {
            self.plain.ends(running.number, self.now);
        }
        self.withdraw(job);
    }

    fn withdraw(&mut self, job: Job) {
        for waiter in self.waiting.extract_if(.., |waiter| waiter.ask.job == job) {
            self.plain.ends(waiter.number, self.now);
        }
    }

    pub(super) fn grows(&mut self, job: Job, bytes: u64) -> Decision {
        let Some(device) = self.running.get(&job).map(|running| running.device) else {
            return Decision::Deny { job, bytes, free: 0 };
        };
        if self.fits_more(device, bytes)
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
    pub(super) fn load_of(&self, device: DeviceId, meant: impl Fn(&Running) -> bool) -> Load {
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

    /// Whether an empty device could carry the job. Foreign memory counts as empty, since it may be
    /// given back.
    pub(super) fn could_ever_as(&self, ask: &Ask, need: Need) -> Result<(), Never> {
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
                    Backing::Device | Backing::Either { .. } => need.fixed(device),
                    Backing::Managed { working_set } | Backing::Beyond { working_set } => {
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

    /// Time from which no job passes this one (rule 1 of the crate's documentation).
    pub(super) fn due(&self, waiter: &Waiter) -> Ns {
        let patience = self.config.patience(waiter.ask.need.expected);
        let latest = waiter.came.saturating_add(self.config.longest_wait.max(patience));
        let plain = match self.plain.began(waiter.number) {
            Some(began) => began.saturating_add(self.leeway(waiter).min(patience)),
            None => Ns::MAX,
        };
        waiter.came.saturating_add(patience).max(plain).min(latest)
    }

    /// `max(came + patience, fifo_begin)`: due but for the leeway.
    pub(super) fn plainly_due(&self, waiter: &Waiter) -> Ns {
        let patience = self.config.patience(waiter.ask.need.expected);
        let plain = self.plain.began(waiter.number).unwrap_or(Ns::MAX);
        waiter.came.saturating_add(patience).max(plain)
    }

    /// How much later than plain order the turn may come within the bound, ns (rule 1). The bound
    /// allows for the longest run admitted before; only a part counts, as that run may be shorter
    /// than expected.
    fn leeway(&self, waiter: &Waiter) -> Ns {
        let longest = self.reckoned().longest;
        let free = self.foresee(waiter).map_or(self.now, |(_, at)| at);
        let drain = free.saturating_sub(self.now) as f64 * DRAIN;
        (longest.unwrap_or(0) as f64 / self.config.doubt.max(1.0) - drain).max(0.0) as Ns
    }

    pub(super) fn admit(&mut self, at: usize, (device, backing): Spot, out: &mut Vec<Decision>) {
        self.reckoned.take();
        let mut waiter = self.waiting.remove(at);
        waiter.ask.need.backing = backing;
        let share = self.devices.get(&device).map_or(0, |it| waiter.ask.need.fixed(it));
        out.push(Decision::Admit {
            job: waiter.ask.job,
            device,
            share,
        });
        let running = Running {
            device,
            share,
            since: self.now,
            number: waiter.number,
            came: waiter.came,
            turn: waiter.turn,
            present: waiter.present,
            ask: waiter.ask,
        };
        self.plain.begins(running.number, self.now);
        self.running.insert(running.ask.job, running);
    }
}
