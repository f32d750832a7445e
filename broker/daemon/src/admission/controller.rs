// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission controller: turns clients' requests into events of the core, and carries the core's
//! decisions out to the clients.
//!
//! Each part owns its state and returns values or events, which the controller passes on.
//!
//! Invariants: after each public call the core's decisions are carried out. They are in the journal
//! before a client can act on them.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use log::Level;

use super::arrivals::{Arrivals, EarlyArrival};
use super::auto_backing::{self, cramped};
use super::deadlock::{self, DeadlockVictim};
use super::device_facts::DeviceFacts;
use super::device_observer::{ClientProbe, DeviceObserver, Jobs, MemoryProbe};
use super::devices::Devices;
use super::growth::{Grower, Growth};
use super::history::AdmissionHistory;
use super::job_table::{self, Gang, JobTable, context_on};
use super::ledger::{Journal, Ledger, Page};
use super::making_room::{LONGEST_MOVE_NS, REATTACH_NS, RoomMaking};
use super::member::{Member, Terms};
use super::notify::{self, PositionLines};
use super::observed_usage::{self, ObservedUsage};
use super::promises::{Promises, Situation};
use super::report::QueueReport;
use super::request::{self, declared};
use super::suspended::SuspendedJobs;
use super::watch::Reading;
use crate::base::clock;
use crate::base::options::Rights;
use crate::base::process::Process;
use crate::base::user_log;
use crate::clients::registry::Entry;
use crate::server::ToTheClient;
use weft_admission::{
    Admission, AdmissionConfig, Ask, Backing, CapLack, Decision, Device, DeviceId, Event, Job, Never, User, UserCap,
};
use weft_api::peak_usage::PeakUsage;
use weft_api::placement::{JobPlace, Seeker};
use weft_api::queue::Queue;
use weft_protocol::Ns;
use weft_protocol::admission_slot::DEFAULT_PATIENCE_NS;
use weft_protocol::amount::{apart, shown};
use weft_protocol::control::Wants;
use weft_protocol::eviction::EvictionCause;

/// Most lines that a job gets about waits for more memory: it may wait again and again.
const GROWTH_LINES: u32 = 5;

/// Interval between two checks of the memory that undeclared jobs hold. A job that lacks memory
/// causes a check of its own.
const USAGE_PERIOD_NS: Ns = 100_000_000;

/// The state of admission.
#[derive(Debug)]
pub struct Controller {
    machine: Admission,
    jobs: JobTable,
    devices: Devices,
    facts: DeviceFacts,
    usage: ObservedUsage,
    observer: DeviceObserver,
    arrivals: Arrivals,
    growth: Growth,
    promises: Promises,
    suspended: SuspendedJobs,
    room: RoomMaking,
    position_lines: PositionLines,
    history: AdmissionHistory,
    /// Limits on what users may have at once.
    rights: Rights,
    /// The limits that the core knows.
    caps: BTreeMap<User, UserCap>,
    /// Time of the last check of the memory that undeclared jobs hold.
    usage_noted: Ns,
    /// Bytes that undeclared jobs kept from less important ones at the last check.
    kept: u64,
    /// When all clients of an earlier broker have attached again, ns of the clock; 0: there was
    /// none.
    complete_at: Ns,
    /// Whether the broker ends: no client gets a decision any more.
    closed: bool,
    /// Decisions that are not carried out yet.
    decisions: Vec<Decision>,
    journal: Journal,
}

impl Controller {
    /// Continues from the last broker's page, if there is one.
    pub fn new(config: AdmissionConfig, ledger: Option<Ledger>, page: Option<Page>) -> Controller {
        let goes_on = page.is_some();
        let machine = match &page {
            Some(page) => Admission::restore(config, page.machine.clone()),
            None => Admission::new(config),
        };
        let mut page = page.unwrap_or_else(|| Page::new(machine.save()));
        let (jobs, lost) = JobTable::from_page(&mut page, &machine);
        let mut new = Controller {
            machine,
            jobs,
            devices: Devices::new(page.devices),
            facts: DeviceFacts::default(),
            usage: ObservedUsage::default(),
            observer: DeviceObserver::default(),
            arrivals: Arrivals::default(),
            growth: Growth::default(),
            promises: Promises::default(),
            suspended: SuspendedJobs::default(),
            room: RoomMaking::default(),
            position_lines: PositionLines::default(),
            history: AdmissionHistory::from_counts(page.sums),
            rights: Rights::default(),
            caps: BTreeMap::new(),
            usage_noted: 0,
            kept: 0,
            complete_at: match goes_on {
                true => clock::now().saturating_add(REATTACH_NS),
                false => 0,
            },
            closed: false,
            decisions: Vec::new(),
            journal: Journal::new(ledger),
        };
        for job in new.jobs.parts() {
            new.apply(Event::IsPart(job));
        }
        for job in lost {
            new.apply(Event::Ends(job));
        }
        if goes_on {
            new.end_unreattached_now();
            let (waiting, running) = new.machine.count();
            log::info!("goes on where a broker was before: {running} jobs run, {waiting} wait for memory");
        }
        new
    }

    /// Sets whether users distrust each other.
    pub fn set_shared(&mut self, shared: bool) {
        self.devices.set_shared(shared);
    }

    /// Takes over the measurements of earlier brokers. From now on contexts are measured.
    pub fn set_facts(&mut self, facts: DeviceFacts) {
        self.usage = ObservedUsage::go_on(facts.learnt());
        self.facts = facts;
    }

    #[cfg(test)]
    pub fn parts(&mut self) -> (&mut Devices, &mut DeviceFacts, &mut DeviceObserver) {
        (&mut self.devices, &mut self.facts, &mut self.observer)
    }

    #[cfg(test)]
    pub fn room_orders(&mut self, now: Ns) -> super::making_room::RoomOrders {
        self.room
            .check(now, &self.machine, &self.jobs, &self.growth, &|_, _| true)
    }

    #[cfg(test)]
    pub fn room(&mut self) -> &mut RoomMaking {
        &mut self.room
    }

    /// The core.
    pub fn machine(&self) -> &Admission {
        &self.machine
    }

    /// Number of clients.
    pub fn clients(&self) -> usize {
        self.jobs.count()
    }

    // Events and decisions.

    /// Passes an event to the core.
    pub fn apply(&mut self, event: Event) {
        // The next broker does not need the bytes that jobs hold right now.
        self.journal.mark(!matches!(event, Event::Tick | Event::Uses(..)));
        if let Event::Ends(job) = event {
            self.growth.forget(job);
        }
        self.machine.handle(clock::now(), event, &mut self.decisions);
        self.journal.mark(!self.decisions.is_empty());
    }

    fn apply_all(&mut self, events: Vec<Event>) {
        for event in events {
            self.apply(event);
        }
    }

    /// Passes an event to the core and carries out its decisions.
    pub fn decide(&mut self, event: Event) {
        self.apply(event);
        self.carry_out();
    }

    /// Carries out the core's decisions.
    fn carry_out(&mut self) {
        let decisions = std::mem::take(&mut self.decisions);
        if self.closed {
            return;
        }
        for decision in &decisions {
            match decision {
                Decision::Admit { job, .. } => {
                    if let Some(gang) = self.jobs.gang_mut(*job) {
                        gang.managed = self.machine.is_managed(*job);
                        // A job that waited counts only once it begins.
                        self.history.waited += u64::from(std::mem::take(&mut gang.waited));
                    }
                    self.history.admitted += 1;
                }
                Decision::Refuse { .. } => self.history.refused += 1,
                Decision::Deny { .. } => self.history.denied += 1,
                Decision::Grant { .. } => {}
            }
        }
        self.keep();
        // A client reads its limit as soon as it gets its answer, so limits are written first.
        let mut answered = Vec::new();
        for decision in decisions {
            match decision {
                Decision::Admit { job, .. } => {
                    let Some(quota) = self.jobs.quota(&self.machine, job) else {
                        continue;
                    };
                    self.tell_backing(job);
                    self.admit_all(job, quota);
                }
                Decision::Refuse { job, why } => {
                    let cramped = self.jobs.gang(job).and_then(|gang| gang.cramped);
                    let cramped = cramped.map_or(String::new(), auto_backing::reason);
                    self.refuse(job, &format!("this job can never run here: {why}{cramped}"));
                }
                Decision::Grant { job, .. } => answered.extend(self.end_wait(job, true)),
                Decision::Deny { job, bytes, free } => {
                    answered.extend(self.end_wait(job, false));
                    self.note_denial(job);
                    self.tell_cap(job, bytes);
                    // A job whose memory returns asks many times a second.
                    let returns = |gang: &Gang| gang.members.values().any(Member::has_evicted);
                    if !self.jobs.gang(job).is_some_and(returns) {
                        let [wanted, free] = apart([bytes, free]);
                        self.log(job, format_args!("wanted {wanted} more, {free} are free"));
                    }
                }
            }
        }
        self.show_limits();
        for client in answered {
            self.answer(client);
        }
    }

    /// Logs a line on a job.
    fn log(&self, job: Job, line: fmt::Arguments<'_>) {
        let uid = self.jobs.gang(job).map_or(0, |gang| gang.uid);
        user_log::line(uid, Level::Info, format_args!("{job:?} {line}"));
    }

    /// Admits a job's processes with this quota each.
    fn admit_all(&self, job: Job, quota: u64) {
        for client in self.jobs.clients_of(job) {
            self.admit(client, quota);
        }
    }

    /// Writes a client's admission: quota, limit, backing, state.
    fn admit(&self, client: u64, quota: u64) {
        let job = self.jobs.job_of(client);
        let Some((job, gang)) = job.and_then(|job| Some((job, self.jobs.gang(job)?))) else {
            return;
        };
        let Some(member) = gang.members.get(&client) else {
            return;
        };
        let is_fixed = self.is_fixed(job, gang);
        let limit = match is_fixed {
            true => quota,
            false => quota.saturating_add(self.obtainable(job)),
        };
        // Managed memory does not count as device memory.
        let (quota, limit) = match gang.managed {
            true => (0, 0),
            false => (quota.max(1), limit.max(1)),
        };
        member.admit(Terms {
            quota,
            limit,
            declared: is_fixed,
            managed: gang.managed,
        });
    }

    /// Admits a process of an admitted job, or sends it a line that it waits.
    fn admit_or_wait(&self, client: u64, job: Job) {
        match self.jobs.quota(&self.machine, job) {
            Some(quota) => {
                self.admit(client, self.jobs.gather(&self.machine, client, quota, quota));
                // A sibling may have given up a part of its quota.
                self.show_limits();
            }
            None => self.tell_wait(job),
        }
    }

    /// Sends a job's processes a line with their place in the queue and the reason for the wait.
    fn tell_wait(&self, job: Job) {
        if let Some(gang) = self.jobs.gang(job) {
            notify::tell_wait(gang, &self.queue());
        }
    }

    /// Sends a job with auto backing a line that its memory did not fit and is managed.
    fn tell_backing(&self, job: Job) {
        if matches!(self.machine.backing(job), Some(Backing::AutoManaged { .. }))
            && let Some(gang) = self.jobs.gang(job)
        {
            gang.say(&auto_backing::did_not_fit(gang.asked));
        }
    }

    /// Whether a job's need was declared without a limit: it does not grow as memory is free.
    fn is_fixed(&self, job: Job, gang: &Gang) -> bool {
        gang.declared && self.machine.limit(job).is_none()
    }

    /// Jobs on device memory that grow as it is free.
    fn growing_jobs(&self) -> impl Iterator<Item = (Job, &Gang)> {
        let unmanaged = self.jobs.iter().filter(|(_, gang)| !gang.managed);
        unmanaged.filter(|(job, gang)| !self.is_fixed(*job, gang))
    }

    /// Writes the limit of jobs that grow: their quota plus the bytes that they could get.
    fn show_limits(&self) {
        let growing = self.growing_jobs();
        for (job, gang) in growing.filter(|(job, _)| self.machine.share(*job).is_some()) {
            let more = self.obtainable(job);
            gang.members.values().for_each(|member| member.show_limit(more));
        }
    }

    /// Bytes that a job would get beyond its share, within its user's cap.
    fn obtainable(&self, job: Job) -> u64 {
        let bytes = self.machine.obtainable(job);
        self.machine.cap_left(job).map_or(bytes, |left| left.min(bytes))
    }

    // Memory that undeclared jobs do not hold.

    /// Passes the memory that growing jobs hold to the core. Returns whether any amount changed.
    fn note_usage(&mut self) -> bool {
        let told = self.growing_jobs().filter_map(|(job, gang)| {
            let (device, share) = self.machine.share(job)?;
            let bytes = gang.uses(context_on(&self.machine, device)).unwrap_or(share);
            (self.machine.usage(job) != Some(bytes)).then_some(Event::Uses(job, bytes))
        });
        let told: Vec<Event> = told.collect();
        let changed = !told.is_empty();
        self.apply_all(told);
        changed
    }

    /// Takes bytes from the shares of undeclared jobs that do not hold them. Returns whether it got
    /// any.
    fn take_back(&mut self, given_up: impl IntoIterator<Item = (Job, u64)>) -> bool {
        let mut got = false;
        for (job, bytes) in given_up {
            let given = self.jobs.gang(job).map_or(0, |gang| gang.give_up(bytes));
            if given > 0 {
                got = true;
                self.apply(Event::GivesUp(job, given));
            }
        }
        got
    }

    /// Takes back bytes that let waiting jobs continue.
    fn take_back_for_waiters(&mut self) {
        if self.is_waited_for() {
            self.note_usage();
            if self.take_back(self.machine.gives_up_for_waiters()) {
                self.apply(Event::Tick);
            }
        }
    }

    /// If a check is due: takes back bytes that jobs wait for, and writes the other jobs' limits.
    fn check_usage(&mut self, now: Ns) {
        if now.saturating_sub(self.usage_noted) < USAGE_PERIOD_NS {
            return;
        }
        self.usage_noted = now;
        let mut changed = self.note_usage();
        // Less important jobs may have memory that a job has not held for a while. No event reports
        // it.
        let kept = self.machine.kept(now);
        if mem::replace(&mut self.kept, kept) != kept {
            self.apply(Event::Tick);
            changed = true;
        }
        self.take_back_for_waiters();
        if changed || !self.decisions.is_empty() {
            self.carry_out();
        }
    }

    /// Sends a job that was denied more memory a line if its user is at a cap.
    fn tell_cap(&mut self, job: Job, bytes: u64) {
        let Some(CapLack::Memory { has, most }) = self.machine.growth_capped(job, bytes) else {
            return;
        };
        let Some(gang) = self.jobs.gang_mut(job).filter(|gang| gang.told < GROWTH_LINES) else {
            return;
        };
        gang.told += 1;
        let [bytes, has, most] = apart([bytes, has, most]);
        gang.say(&format!(
            "cannot get {bytes} more: its user's jobs have {has} of device memory and may have {most} at once (a cap of this broker)"
        ));
    }

    /// Refuses a job and sends its processes the reason.
    fn refuse(&mut self, job: Job, why: &str) {
        let Some(gang) = self.jobs.remove(job) else { return };
        for (client, member) in gang.members {
            user_log::line(gang.uid, Level::Warn, format_args!("client {client} is refused: {why}"));
            member.refuse(why);
        }
    }

    /// Writes the journal if it is out of date.
    fn keep(&mut self) {
        if !self.journal.take_stale() {
            return;
        }
        let (waiting, running) = self.machine.count();
        let page = (waiting + running > 0 || self.jobs.has_weights()).then(|| {
            let mut page = Page::new(self.machine.save());
            page.devices = self.devices.uuids().to_vec();
            page.sums = self.history.counts();
            self.jobs.keep(&mut page);
            page
        });
        self.journal.write(page.as_ref());
    }

    /// Closes the journal when the broker ends. The last page remains on the disk with the running
    /// jobs: from now on the end of a client frees no memory.
    pub fn close(&mut self) {
        self.keep();
        self.closed = true;
        self.journal.close();
        self.facts.close();
    }

    // Clients attach and end.

    /// Handles a client that arrives. With `told`, NVML reports devices; `reading`: its new answer.
    pub fn arrive(&mut self, arrival: (&Arc<Entry>, &ToTheClient, Wants), told: bool, reading: Option<&Reading>) {
        let (entry, sender, wants) = arrival;
        let now = clock::now();
        // It has asked before.
        if self.jobs.job_of(entry.client).is_some() {
            return;
        }
        // NVML may use other UUIDs for some devices.
        let of_this = |it: &Reading| it.free.iter().any(|(uuid, _)| *uuid == wants.uuid);
        let told = told && reading.is_none_or(of_this);
        // The device must be known before the reading is used.
        let device = self.device(&wants.uuid, wants.total, entry.uid);
        if let Some(reading) = reading {
            self.read(reading);
        }
        let seen = reading.is_some_and(|it| device.is_some_and(|device| self.observer.saw(device, it.at)));
        // Earlier arrivals go first.
        let first = !self.arrivals.any_for(&wants.uuid);
        if wants.runs.is_some() || !told || (first && (seen || self.fits_beside_exited(entry, &wants, reading))) {
            self.request(entry, sender, wants);
        } else {
            self.arrivals.push(EarlyArrival {
                entry: Arc::clone(entry),
                sender: sender.clone(),
                wants,
                since: now,
            });
        }
    }

    /// Whether this client has no job yet and no client waits for its device to be observed.
    pub fn is_new_alone(&self, client: u64) -> bool {
        self.has_no_arrivals() && self.jobs.job_of(client).is_none()
    }

    /// Whether a new job fits even if the memory of exited clients counts as taken. If it fits,
    /// that memory counts as foreign until a sample can be made.
    fn fits_beside_exited(&mut self, entry: &Entry, wants: &Wants, reading: Option<&Reading>) -> bool {
        let mut devices = reading.into_iter().flat_map(|it| it.free.iter().map(|of| (of, it.at)));
        let found = devices.find(|((uuid, _), _)| *uuid == wants.uuid);
        let Some((device, ((_, free), at))) = self.devices.id(&wants.uuid).zip(found) else {
            return false;
        };
        let new = self.jobs.related(&entry.process(), wants).is_empty();
        let Some(change) = self
            .observer
            .with_exited(&self.observed_jobs(), device, *free, at)
            .filter(|_| new)
        else {
            return false;
        };
        let ask = self.ask(Job(u64::MAX), entry, wants, device, declared(entry, wants));
        let mut play = self.machine.clone();
        let now = clock::now();
        play.handle(now, Event::Device(change.1), &mut Vec::new());
        play.handle(now, Event::Asks(ask), &mut Vec::new());
        let fits = play.share(Job(u64::MAX)).is_some();
        if fits {
            self.set_device(Some(change));
            self.observer.ask(device);
        }
        fits
    }

    /// Whether no client waits for its device to be observed.
    pub fn has_no_arrivals(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Continues the requests, in order, of clients whose device was observed since they arrived,
    /// or that have waited long enough.
    pub fn let_on(&mut self, now: Ns, told: bool) {
        let mut kept = Vec::new();
        for arrival in self.arrivals.take() {
            let device = self.devices.id(&arrival.wants.uuid);
            let seen = device.is_some_and(|device| self.observer.saw(device, arrival.since));
            if told && !seen && !arrival.is_late(now) {
                kept.push(arrival);
                continue;
            }
            if let Some(device) = device.filter(|_| !seen) {
                let about = self.observer.guess(&self.observed_jobs(), device);
                self.set_device(about);
            }
            self.request(&arrival.entry, &arrival.sender, arrival.wants);
        }
        self.arrivals.put_back(kept);
    }

    /// Handles the request of a client that is about to use a device, or runs already.
    pub fn request(&mut self, entry: &Arc<Entry>, sender: &ToTheClient, wants: Wants) {
        let client = entry.client;
        if self.jobs.job_of(client).is_some() {
            return;
        }
        let member = Member::new(entry, sender);
        let Some(device) = self.device(&wants.uuid, wants.total, entry.uid) else {
            let line = "its device is not counted (there are too many that no other user reports): this job's memory is in no account";
            user_log::line(entry.uid, Level::Info, format_args!("client {client}: {line}"));
            member.say(line);
            return member.admit_uncounted();
        };
        let process = member.process();
        // The process that this broker let go runs another program now, so its memory is free. In a
        // shared broker that is not assumed: a hostile process may still hold its memory.
        if wants.runs.is_none()
            && !self.devices.is_shared()
            && let Some(job) = self.jobs.replaced(&process, &wants.user, device)
        {
            self.end_process(job, process);
        }
        let related = self.jobs.related(&process, &wants);
        let known = related.iter().find(|(_, on)| *on == device).map(|(job, _)| *job);
        if let Some(job) = self.jobs.awaited(&process, &wants.user, device) {
            self.reattach(job, member, &wants, device);
        } else if let Some(job) = known {
            if wants.runs.is_none() {
                self.add_part(job, declared(entry, &wants), &wants);
            }
            self.jobs.attach(job, member);
            match wants.runs {
                Some(quota) => self.hold(job, entry, &wants, device, quota),
                None => {
                    self.decide(Event::Joins(job));
                    self.admit_or_wait(client, job);
                }
            }
        } else {
            self.add_job(member, &wants, device, related.first().map(|(job, _)| *job));
        }
    }

    /// Adds a job's first process on a device. `related`: its gang on another device.
    fn add_job(&mut self, member: Member, wants: &Wants, device: DeviceId, related: Option<Job>) {
        let job = self.jobs.next_job();
        let entry = Arc::clone(member.entry());
        let client = entry.client;
        let mut declared = declared(&entry, wants);
        let group = related.and_then(|job| self.jobs.gang(job)).map(|gang| gang.group);
        if let Some(group) = group.filter(|_| wants.runs.is_none()) {
            declared = self.part_elsewhere(group, declared, wants);
        }
        let mut ask = self.ask(job, &entry, wants, device, declared);
        if group.is_some() {
            // Further processes on this device are not known before they arrive.
            ask.need.processes = 1;
        }
        let group = group.unwrap_or(job);
        if group != job {
            self.apply(Event::IsPart(job));
        }
        let gang = Gang {
            name: wants.gang.clone(),
            device,
            group,
            asked: ask.need.peak,
            user: wants.user.clone(),
            uid: entry.uid,
            declared: declared.is_some(),
            timed: request::expected_ns(&entry, wants).is_some(),
            waited: false,
            managed: wants.managed,
            processes: ask.need.processes,
            usage: Some(observed_usage::begin(&entry, &wants.user, group)),
            members: BTreeMap::new(),
            unreattached: Vec::new(),
            told: 0,
            cramped: cramped(wants, ask.need.peak).filter(|_| wants.either),
        };
        if let Some(left) = cramped(wants, gang.asked).filter(|_| wants.managed) {
            member.say(&auto_backing::warning(left, gang.asked));
        }
        self.jobs.insert(job, gang, member);
        match wants.runs {
            Some(quota) => {
                let fixed = request::fixed(wants, context_on(&self.machine, device), quota);
                self.decide(Event::Holds(ask, device, fixed));
                self.admit(client, quota);
            }
            None => {
                self.apply(Event::Asks(ask));
                self.take_back_for_waiters();
                let waits = self.machine.waits(job);
                if let Some(gang) = self.jobs.gang_mut(job) {
                    gang.waited = waits;
                }
                self.carry_out();
                if waits {
                    self.tell_wait(job);
                }
            }
        }
    }

    /// Reattaches a process to its job.
    fn reattach(&mut self, job: Job, member: Member, wants: &Wants, device: DeviceId) {
        let entry = Arc::clone(member.entry());
        // Its part by the table, before the share is divided again.
        let quota = self.jobs.quota(&self.machine, job);
        self.jobs.reattach(job, member);
        self.journal.mark(true);
        match (wants.runs, quota) {
            (Some(has), Some(quota)) => {
                // It was admitted just before the broker was killed, and began without knowing its
                // backing.
                if !wants.managed && self.machine.is_managed(job) {
                    self.set_job_on_device(job);
                }
                // It got more just before the broker was killed.
                if !wants.managed {
                    self.apply(Event::Has(job, has.saturating_sub(quota)));
                }
                self.carry_out();
                self.admit(entry.client, has.max(quota));
            }
            // It waited, and began while no broker ran.
            (Some(has), None) => self.hold(job, &entry, wants, device, has),
            (None, _) => {
                self.carry_out();
                self.admit_or_wait(entry.client, job);
            }
        }
    }

    /// Records that a process of a known job runs with this quota.
    fn hold(&mut self, job: Job, entry: &Entry, wants: &Wants, device: DeviceId, quota: u64) {
        let ask = self.ask(job, entry, wants, device, declared(entry, wants));
        let fixed = request::fixed(wants, context_on(&self.machine, device), quota);
        self.decide(Event::Holds(ask, device, fixed));
        self.admit(entry.client, quota);
    }

    fn ask(&mut self, job: Job, entry: &Entry, wants: &Wants, device: DeviceId, declared: Option<u64>) -> Ask {
        let user = self.user(&wants.user);
        let context = context_on(&self.machine, device);
        request::ask((job, user), entry, wants, (device, context), declared)
    }

    /// Part of the declared need for one more process on a further device. The first gang's need
    /// shrinks by it.
    fn part_elsewhere(&mut self, group: Job, declared: Option<u64>, wants: &Wants) -> Option<u64> {
        let (part, events) = self.jobs.part_elsewhere(&self.machine, group, declared, wants);
        self.apply_all(events);
        part
    }

    /// Adds the part of one more process on a further device, if its job already has some there.
    fn add_part(&mut self, job: Job, declared: Option<u64>, wants: &Wants) {
        let group = self.jobs.parting_group(job, wants);
        if let Some(part) = group.and_then(|group| self.part_elsewhere(group, declared, wants)) {
            let events = self.jobs.ask_more(&self.machine, job, part);
            self.apply_all(events);
        }
    }

    /// Handles a client that ended or stops waiting.
    pub fn end_client(&mut self, client: u64) {
        let Some(job) = self.stop_client(client) else { return };
        match self.jobs.detach(client) {
            Some(member) => {
                member.forget();
                self.end_process(job, member.process());
            }
            None => self.leave(job),
        }
    }

    /// Handles the end of one process of a job.
    fn end_process(&mut self, job: Job, process: Process) {
        let (device, share) = self.machine.share(job).unzip();
        if let Some(device) = device {
            self.observer.exits(device, process);
        }
        self.leave(job);
        let ended = self.machine.share(job).is_none();
        let freed = share.filter(|_| ended).unwrap_or(0);
        self.history.note_freed(process.pid, freed);
    }

    /// Handles a client that was let go or has hung up. If its process still runs, that keeps its
    /// memory. A client's goodbye counts as its end only if the broker is not shared.
    pub fn let_go(&mut self, client: u64, pidfd: Option<Arc<OwnedFd>>) {
        let admitted = self.jobs.member(client).filter(|member| {
            let ended = member.entry().goodbye.load(Ordering::Relaxed) && !self.devices.is_shared();
            member.admitted_at().is_some() && !ended
        });
        if admitted.is_none_or(|member| job_table::runs(&member.process(), pidfd.as_ref()) != Some(true)) {
            return self.end_client(client);
        }
        if self.stop_client(client).is_some()
            && let Some(member) = self.jobs.let_go(client, pidfd)
        {
            member.forget();
            self.journal.mark(true);
            self.carry_out();
        }
    }

    /// Ends a client's waits. Returns its job.
    fn stop_client(&mut self, client: u64) -> Option<Job> {
        if self.arrivals.remove(client) {
            return None;
        }
        self.stop_growing(client);
        let job = self.jobs.job_of(client)?;
        self.jobs.gang_mut(job)?.observe_usage();
        Some(job)
    }

    /// Removes those of all unreattached processes, also if no check is due.
    pub fn end_unreattached_now(&mut self) {
        let left = self.jobs.forget_unreattached_now(&self.machine);
        self.end_unreattached(left);
    }

    /// Removes unreattached processes that ended or did not return in time.
    fn end_unreattached(&mut self, left: Vec<(Job, Process)>) {
        for (job, process) in left {
            self.end_process(job, process);
        }
    }

    /// Removes one process from a job's count; a job without processes ends.
    fn leave(&mut self, job: Job) {
        if self.jobs.gang(job).is_some_and(|gang| !gang.is_empty()) {
            self.apply(Event::Leaves(job));
            return self.carry_out();
        }
        let since = self.machine.since(job);
        let gang = self.jobs.remove(job);
        self.apply(Event::Ends(job));
        if let Some((gang, since)) = gang.zip(since)
            && let Some(mut usage) = gang.usage.filter(|_| !gang.declared)
        {
            usage.ran = clock::now().saturating_sub(since);
            self.usage.add(usage);
            self.facts.took(self.usage.all());
        }
        self.carry_out();
    }

    /// Sets a client's priority.
    pub fn set_priority(&mut self, client: u64, priority: u8) {
        if let Some(job) = self.jobs.job_of(client) {
            self.decide(Event::Priority(job, priority));
        }
    }

    /// Sets the limits on what users may have at once.
    pub fn set_rights(&mut self, rights: &Rights) {
        self.rights.clone_from(rights);
        for (name, user) in self.jobs.users() {
            self.set_cap(&name, user);
        }
        self.carry_out();
    }

    /// The user of this label. The core gets the user's cap.
    fn user(&mut self, name: &str) -> User {
        let user = self.jobs.user(name);
        self.set_cap(name, user);
        user
    }

    /// Passes a user's cap to the core, if it changed. In a shared broker a label is a uid.
    fn set_cap(&mut self, name: &str, user: User) {
        let cap = name
            .parse()
            .map_or_else(|_| UserCap::default(), |uid| self.rights.cap(uid));
        if self.caps.insert(user, cap).unwrap_or_default() != cap {
            self.apply(Event::Cap(user, cap));
        }
    }

    /// Sets a user's weight.
    pub fn set_weight(&mut self, name: &str, weight: u32) {
        let user = self.jobs.set_weight(name, weight);
        self.decide(Event::Weight(user, weight));
    }

    /// Records that a client with auto backing has begun on device memory.
    pub fn set_on_device(&mut self, client: u64) {
        self.arrivals.set_on_device(client);
        if let Some(job) = self.jobs.job_of(client) {
            self.set_job_on_device(job);
        }
    }

    fn set_job_on_device(&mut self, job: Job) {
        let Some(gang) = self.jobs.gang_mut(job) else { return };
        gang.managed = false;
        self.decide(Event::OnDevice(job));
        if let Some(quota) = self.jobs.quota(&self.machine, job) {
            self.admit_all(job, quota);
        }
    }

    // Devices.

    /// Number of the device with this UUID, which has `total` bytes by this user's report. An
    /// unknown device is added. `None`: there are too many.
    fn device(&mut self, uuid: &str, total: u64, uid: u32) -> Option<DeviceId> {
        let id = match self.devices.id(uuid) {
            Some(id) => id,
            None => {
                let (machine, jobs) = (&self.machine, &self.jobs);
                let idle = |id: DeviceId| jobs.on(id).next().is_none() && machine.jobs_on(id) == 0;
                let (id, bytes) = self.devices.add(uuid, total, uid, idle)?;
                self.observer.forget(id);
                self.apply(Event::Device(self.facts.device(id, uuid, bytes)));
                id
            }
        };
        self.devices.report(id, total, uid);
        self.resize(id);
        Some(id)
    }

    /// Passes a device's size to the core, if it changed.
    fn resize(&mut self, id: DeviceId) {
        let Some(about) = self.about(id).copied() else { return };
        let memory = self.devices.bytes(id).unwrap_or(about.memory);
        if memory != about.memory {
            let [has, thought] = apart([memory, about.memory]);
            log::info!("device {} has {has}, not {thought}", id.0);
            self.decide(Event::Device(Device { memory, ..about }));
        }
    }

    fn about(&self, id: DeviceId) -> Option<&Device> {
        self.machine.devices().find(|about| about.id == id)
    }

    fn observed_jobs(&self) -> Jobs<'_> {
        Jobs {
            machine: &self.machine,
            table: &self.jobs,
        }
    }

    /// Number of NVML's last answer read.
    pub fn last_answer(&self) -> u64 {
        self.observer.last_answer()
    }

    /// Uses NVML's answer.
    pub fn read(&mut self, reading: &Reading) {
        if !self.observer.is_new(reading.number) {
            return;
        }
        if self.devices.set_listed(&reading.memory) {
            self.devices.ids().for_each(|id| self.resize(id));
        }
        for (uuid, free) in &reading.free {
            self.observe_free(uuid, *free, reading.at);
        }
    }

    /// Uses NVML's figure of a device's free bytes at time `at`.
    pub fn observe_free(&mut self, uuid: &str, free: u64, at: Ns) {
        if let Some(device) = self.devices.id(uuid) {
            self.observer.note_free(device, free);
            self.observe(device, free, at, None);
        }
    }

    /// Uses a client's probe of its device. With `told`, NVML reports devices.
    pub fn probe(&mut self, client: u64, probe: MemoryProbe, told: bool) {
        let job = self.jobs.job_of(client);
        let found = job.and_then(|job| Some((self.jobs.gang(job)?, self.machine.share(job)?)));
        let Some((gang, (device, _))) = found else { return };
        if told && self.devices.is_shared_and_listed(device) {
            return self.observer.ask(device);
        }
        let uid = Some(gang.uid).filter(|uid| !self.devices.is_owner(*uid));
        let own = ClientProbe { client, probe, uid };
        if !self.observe(device, probe.free, probe.at, Some(&own))
            && let Some(member) = self.jobs.member(client)
        {
            member.ask_to_probe();
        }
    }

    /// Makes a sample of free bytes. False if no sample can be made.
    fn observe(&mut self, device: DeviceId, free: u64, at: Ns, own: Option<&ClientProbe>) -> bool {
        let jobs = Jobs {
            machine: &self.machine,
            table: &self.jobs,
        };
        let about = self.observer.observe(&jobs, device, free, at, own);
        self.set_device(about);
        if own.is_none() && about.is_some() {
            self.free_absent(device);
        }
        about.is_some()
    }

    /// Frees the bytes that processes that were let go and did not return do not hold, by NVML's
    /// figures. Does nothing while other processes may reattach: the figures cover all of them
    /// together.
    fn free_absent(&mut self, device: DeviceId) {
        let now = clock::now();
        let may_return = |gang: &Gang| !gang.unreattached.is_empty() && !gang.stays_away(now);
        if self.jobs.on(device).any(|(_, gang)| may_return(gang)) {
            return;
        }
        let away = self.jobs.on(device).filter(|(_, gang)| gang.stays_away(now));
        for job in away.map(|(job, _)| job).collect::<Vec<_>>() {
            let share = self.machine.share(job).map_or(0, |(_, share)| share);
            let unheld = self.observer.take_unheld(device, share);
            if unheld > 0 {
                self.decide(Event::Gives(job, unheld));
            }
        }
    }

    /// Applies assumptions to devices without recent samples.
    pub fn check_unobserved(&mut self, now: Ns, told: bool) {
        let devices: Vec<Device> = self.machine.devices().copied().collect();
        self.jobs.members().for_each(|member| member.watch_changes(now));
        for before in devices {
            let jobs = Jobs {
                machine: &self.machine,
                table: &self.jobs,
            };
            let about = self.observer.without_samples(&jobs, before, now, told);
            self.set_device(Some((before, about)));
        }
    }

    /// Passes a device's facts, given before and after, to the core if they changed.
    fn set_device(&mut self, change: Option<(Device, Device)>) {
        let Some((before, about)) = change.filter(|(before, about)| before != about) else {
            return;
        };
        if (before.context, before.measured) != (about.context, about.measured)
            && let Some(uuid) = self.devices.uuid(about.id)
        {
            log::info!("a context on {uuid} takes {}", shown(about.context));
            self.facts.context(uuid, about.context, self.devices.uuids());
        }
        self.decide(Event::Device(about));
    }

    /// The best device for a job that has not begun, reserved for a while.
    pub fn place(&mut self, seeker: &Seeker) -> Result<JobPlace, Never> {
        let user = self.user(&seeker.user);
        self.carry_out();
        let situation = Situation {
            machine: &self.machine,
            jobs: &self.jobs,
            devices: &self.devices,
            facts: &self.facts,
        };
        self.promises.place(seeker, user, &situation)
    }

    // Running clients that want more.

    /// Whether what processes outside weft hold decides whether a client gets `bytes` beyond its
    /// quota.
    pub fn lacks_foreign(&self, client: u64, bytes: u64) -> bool {
        let job = self.jobs.job_of(client);
        let Some((job, (device, _))) = job.and_then(|job| Some((job, self.machine.share(job)?))) else {
            return false;
        };
        // Without enough room the driver loses a job that it restores.
        if self.jobs.member(client).is_some_and(Member::is_checkpointed) {
            return true;
        }
        let is_there = self.about(device).is_some_and(|about| about.foreign > 0);
        is_there && self.machine.obtainable(job) < bytes
    }

    /// Whether a client may have memory now. One that the driver's checkpoint took off its device
    /// may have it only by a sample of all memory there, as NVML reports it: without enough room
    /// the driver loses the job. None returns while clients of an earlier broker may hold memory
    /// that this one does not know yet. A quota from before it left may suffice and not be free.
    /// So the client learns that it may return.
    pub fn may_return(&mut self, client: u64, reading: Option<&Reading>) -> bool {
        let member = self.jobs.member(client).filter(|member| member.is_checkpointed());
        let Some((member, job)) = member.zip(self.jobs.job_of(client)) else {
            return true;
        };
        let is_ready = member.eviction().excess().is_some() && clock::now() >= self.complete_at;
        let mut may = is_ready && self.has_sample(client, reading);
        if may && self.machine.is_overfull(job) {
            self.note_usage();
            self.take_back(self.machine.gives_up_for(job, 0));
            may = !self.machine.is_overfull(job);
        }
        if let Some(member) = self.jobs.member(client) {
            member.eviction().permit_return(may);
        }
        may
    }

    /// Whether this answer of NVML made a sample of a client's device.
    pub fn has_sample(&self, client: u64, reading: Option<&Reading>) -> bool {
        let job = self.jobs.job_of(client);
        let device = job.and_then(|job| self.machine.share(job)).map(|(device, _)| device);
        let seen = |it: &Reading| device.is_some_and(|device| self.observer.saw(device, it.at));
        reading.is_some_and(seen)
    }

    /// Handles a client's request for `bytes` beyond its quota. It may wait up to `patience` ns, if
    /// they can become free.
    pub fn grow(&mut self, client: u64, bytes: u64, patience: Ns) {
        let Some(job) = self.jobs.job_of(client) else { return };
        let lacks = bytes - self.jobs.gather(&self.machine, client, bytes, 0);
        if lacks == 0 {
            self.grant(client, bytes);
            self.show_limits();
            return self.answer(client);
        }
        self.note_usage();
        self.take_back(self.machine.gives_up_for(job, lacks));
        // The most important job does not wait inside an allocation for memory that may never
        // become free.
        let mut patience = patience;
        let mut waits = patience > 0 && !self.growth.has(job);
        if waits && patience == DEFAULT_PATIENCE_NS {
            match self
                .room
                .can_grow(clock::now(), &self.machine, &self.jobs, &self.growth, (job, lacks))
            {
                true => patience = LONGEST_MOVE_NS,
                // A process that has not reattached yet may have movable memory.
                false => waits = !self.machine.is_foreground(job) || self.jobs.has_unreattached(),
            }
        }
        self.apply(match waits {
            true => Event::GrowsInTime(job, lacks),
            false => Event::Grows(job, lacks),
        });
        let decided = self.decisions.iter().any(|decision| {
            matches!(decision, Decision::Grant { job: of, .. } | Decision::Deny { job: of, .. } if *of == job)
        });
        // First in line, because the decision is for this request; a sibling may wait already.
        let grower = Grower::new(client, job, (bytes, lacks), clock::now(), patience);
        // A job whose memory returns prints its own lines.
        let returns = self.jobs.member(client).is_some_and(Member::has_evicted);
        self.growth.push_first(grower.quiet(returns));
        if let Some(member) = self.jobs.member(client).filter(|_| !decided) {
            member.show_growing();
        }
        self.carry_out();
    }

    /// Handles a client to which the driver refused memory within its quota: the core counts the
    /// memory that is really taken, and the client gives back what it does not hold. With users
    /// that distrust each other only NVML reports free bytes.
    pub fn refuse_granted(&mut self, client: u64, free: u64) {
        let Some(job) = self.jobs.job_of(client) else { return };
        if let Some((device, _)) = self.machine.share(job) {
            if !self.devices.is_shared() {
                self.observer.note_free(device, free);
            }
            // Memory that changes meanwhile makes no sample.
            let about = self.observer.guess(&self.observed_jobs(), device);
            self.set_device(about);
            self.observer.ask(device);
            if let Some(member) = self.jobs.member(client) {
                member.ask_to_probe();
            }
            let given = self.jobs.gang(job).map_or(0, |gang| gang.give_up_of(client));
            if given > 0 {
                self.decide(Event::GivesUp(job, given));
            }
            self.note_usage();
            self.show_limits();
        }
        self.answer(client);
    }

    /// Ends a client's wait for more.
    pub fn stop_growing(&mut self, client: u64) {
        if let Some(grower) = self.growth.remove_client(client) {
            self.end_growth(&grower);
        }
    }

    /// Ends a client's wait for more without success.
    fn deny(&mut self, client: u64) {
        if let Some(grower) = self.growth.remove_client(client) {
            self.history.denied += 1;
            self.note_denial(grower.job());
            self.end_growth(&grower);
        }
    }

    fn end_growth(&mut self, grower: &Grower) {
        self.apply(Event::GrowsNoMore(grower.job()));
        self.answer(grower.client());
        self.carry_out();
    }

    /// Ends the wait of a job's first waiting client, which gets its bytes if they are granted.
    fn end_wait(&mut self, job: Job, granted: bool) -> Option<u64> {
        let grower = self.growth.remove_job(job)?;
        if granted {
            // The core granted only the missing bytes. A sibling may have taken the others by now.
            let bytes = self.jobs.gather(&self.machine, grower.client(), grower.bytes(), 0);
            self.grant(grower.client(), bytes);
        }
        Some(grower.client())
    }

    fn grant(&self, client: u64, bytes: u64) {
        if let Some(member) = self.jobs.member(client) {
            member.grant(bytes);
        }
    }

    /// Answers a client that wants more. The client reads its quota in its slot.
    pub fn answer(&self, client: u64) {
        // Clients that wait ask the next broker.
        if let Some(member) = self.jobs.member(client).filter(|_| !self.closed) {
            member.answer();
        }
    }

    fn note_denial(&mut self, job: Job) {
        if let Some(gang) = self.jobs.gang_mut(job) {
            gang.note_denial();
        }
    }

    /// Whether the end of an unreattached process would free memory.
    pub fn awaits_ends(&self) -> bool {
        self.jobs.has_unreattached()
    }

    // Periodic work.

    /// Does the periodic work that does not wait for NVML. `told`: NVML reports devices.
    pub fn check_processes(&mut self, told: bool) {
        self.room.has_nvml = told;
        let left = self.jobs.forget_unreattached(&self.machine);
        self.end_unreattached(left);
        self.observer.check_exited();
        self.check_suspended();
        self.check_evicted();
        if told {
            self.check_idle();
        }
        self.make_room();
        self.check_growth();
        self.check_usage(clock::now());
    }

    /// Puts suspended jobs back into the queue, and lets resumed ones continue.
    fn check_suspended(&mut self) {
        let found = self.suspended.check(clock::now(), &self.machine, &self.jobs);
        for job in found.suspended {
            self.log(job, format_args!("was admitted but is suspended: it waits again"));
            if let Some(gang) = self.jobs.gang(job) {
                gang.members.values().for_each(Member::take_quota);
            }
            self.apply(Event::Suspends(job));
            self.tell_wait(job);
            self.carry_out();
        }
        for job in found.resumed {
            self.decide(Event::Resumes(job));
        }
    }

    /// Gives others the bytes of jobs whose memory is on the host. They claim them before they
    /// return. A job with a limit keeps its request, unless a more important one waits. A job that
    /// is back keeps its declared need, or more if it uses that.
    fn check_evicted(&mut self) {
        let is_new = |member: &Member| member.is_checkpointed() && member.eviction().excess().is_none();
        let gangs = self.jobs.iter().filter(|(_, gang)| gang.members.values().any(is_new));
        let devices = gangs.filter_map(|(job, _)| self.machine.share(job));
        for (device, _) in devices.collect::<Vec<_>>() {
            self.observer.ask(device);
        }
        let given: Vec<(Job, u64)> = self
            .jobs
            .iter()
            .map(|(job, gang)| (job, gang.take_of_evicted(self.lends_only(job, gang))))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        for (job, bytes) in given {
            self.log(job, format_args!("is on the host: {} are free", shown(bytes)));
            self.decide(Event::Gives(job, bytes));
        }
        let fixed = self.jobs.iter().filter(|(job, gang)| self.is_fixed(*job, gang));
        let unused: Vec<(Job, u64)> = fixed.map(|(job, gang)| (job, gang.take_of_returned())).collect();
        for (job, bytes) in unused.into_iter().filter(|(_, bytes)| *bytes > 0) {
            self.decide(Event::Gives(job, bytes));
        }
    }

    /// Orders idle jobs to leave that the driver's checkpoint moves, once there is a sample from
    /// after their offer: without one the room for their return would be unknown.
    fn check_idle(&mut self) {
        for (job, gang) in self.jobs.iter() {
            let offers = gang
                .members
                .values()
                .filter_map(|member| Some((member, member.offered()?)));
            for (member, since) in offers {
                let Some((device, _)) = self.machine.share(job) else {
                    continue;
                };
                match self.observer.saw(device, since) {
                    true => member.order_move(true, EvictionCause::Idle),
                    false => self.observer.ask(device),
                }
            }
        }
    }

    /// The bytes that a job gives others if its memory left to make room; `None`: all.
    fn lends_only(&self, job: Job, gang: &Gang) -> Option<u64> {
        let away = gang.members.values().any(Member::has_evicted);
        let lends = away && self.machine.limit(job).is_some();
        (lends && !self.room.is_outranked(job, &self.machine.view(), &self.jobs)).then(|| self.machine.lent(job))
    }

    /// Moves memory of less important jobs to the host for jobs that wait, and back.
    fn make_room(&mut self) {
        let now = clock::now();
        for job in self.room.ordered() {
            let refuses = |member: &Member| member.refuses_to_leave();
            if self
                .jobs
                .gang(job)
                .is_some_and(|gang| gang.members.values().any(refuses))
            {
                self.room.refused(job, now);
            }
        }
        let is_sampled = |device, since| self.observer.saw(device, since);
        let orders = self
            .room
            .check(now, &self.machine, &self.jobs, &self.growth, &is_sampled);
        if let Some(device) = orders.sample {
            self.observer.ask(device);
        }
        if let Some((waiting, leave)) = orders.leave {
            let of = |job: Job| self.jobs.gang(job).map_or_else(String::new, Gang::called);
            for (job, bytes, why) in &leave {
                self.log(*job, format_args!("leaves {} to {waiting:?}", shown(*bytes)));
                if let Some(gang) = self.jobs.gang(*job) {
                    gang.say(&format!(
                        "its memory moves to the host, because {} {why}; it comes back by itself",
                        of(waiting)
                    ));
                    gang.members
                        .values()
                        .for_each(|member| member.order_move(true, EvictionCause::Room));
                }
            }
            if let Some(gang) = self.jobs.gang(waiting) {
                let names: Vec<String> = leave.iter().map(|(job, ..)| of(*job)).collect();
                gang.say(&format!(
                    "memory of {} moves to the host to make room",
                    names.join(", ")
                ));
            }
        }
        for job in orders.back {
            self.log(job, format_args!("returns to the device"));
            if let Some(gang) = self.jobs.gang(job) {
                gang.members
                    .values()
                    .for_each(|member| member.order_move(false, EvictionCause::Room));
            }
        }
    }

    /// Sends clients lines about their wait for more, and ends waits that took too long.
    fn check_growth(&mut self) {
        let now = clock::now();
        for (job, client, line) in self.growth.take_lines(now) {
            let Some(gang) = self.jobs.gang_mut(job) else { continue };
            gang.told += 1;
            if gang.told <= GROWTH_LINES
                && let Some(member) = gang.members.get(&client)
            {
                member.say(&line);
            }
        }
        for client in self.growth.late(now) {
            self.deny(client);
        }
    }

    /// Whether any job waits, to begin or for more.
    pub fn is_waited_for(&self) -> bool {
        self.machine.count().0 > 0 || !self.growth.is_empty()
    }

    /// Whether NVML's answers are needed even if no job waits.
    pub fn needs_nvml(&self) -> bool {
        !self.arrivals.is_empty() || self.observer.asks()
    }

    /// Whether it is time to query NVML; if so, a query is counted.
    pub fn is_nvml_due(&mut self, now: Ns) -> bool {
        self.observer.is_due(now)
    }

    /// Sends waiting jobs their new places in the queue, if it is time.
    pub fn tell_positions(&mut self, now: Ns) {
        if self.position_lines.are_due(now) {
            let queue = self.queue();
            self.position_lines.send(&queue, &mut self.jobs);
        }
    }

    /// Ends deadlocks, and passes the core a tick if it is due.
    pub fn check_waiters(&mut self) {
        if !self.is_waited_for() {
            return;
        }
        while let Some(victim) = deadlock::victim(&self.machine, &self.jobs, &self.growth) {
            match victim {
                DeadlockVictim::Client(client) => {
                    log::info!("client {client}: deadlock across two devices with jobs that wait for its memory");
                    self.deny(client);
                }
                DeadlockVictim::Job(job) => {
                    self.refuse(job, "deadlock: it holds memory on one device and waits for memory on another, held by jobs that wait for this one");
                    self.decide(Event::Ends(job));
                }
            }
        }
        if self.machine.next_wake().is_some_and(|at| at <= clock::now()) {
            self.decide(Event::Tick);
        }
    }

    // Reports.

    /// Observed usage of the latest ended job without a declared need; with `pid` and `user`, if
    /// given.
    pub fn observed_usage(&self, pid: Option<u32>, user: Option<&str>) -> Option<&PeakUsage> {
        self.usage.of(pid, user)
    }

    /// Begin of each client's wait, to begin or for more.
    pub fn waiting(&self) -> HashMap<u64, Ns> {
        let growers = self.growth.iter().map(|grower| (grower.client(), grower.since()));
        let view = self.machine.view();
        let queued = view.waiting.iter().flat_map(|row| {
            let clients = self.jobs.clients_of(row.ask.job);
            clients.into_iter().map(|client| (client, row.arrived))
        });
        self.arrivals.waits().chain(growers).chain(queued).collect()
    }

    /// Request and limit of each client whose job has a limit, bytes.
    pub fn limits(&self) -> HashMap<u64, (u64, u64)> {
        let of = |(job, gang): (Job, &Gang)| Some((job, (gang.asked, self.machine.limit(job)?)));
        let limited = self.jobs.iter().filter_map(of);
        let each = limited.flat_map(|(job, need)| self.jobs.clients_of(job).into_iter().map(move |it| (it, need)));
        each.collect()
    }

    /// The queue, without expected begins.
    pub fn queue(&self) -> Queue {
        let report = QueueReport {
            machine: &self.machine,
            jobs: &self.jobs,
            devices: &self.devices,
            growth: &self.growth,
            history: &self.history,
            usage: &self.usage,
            rights: &self.rights,
        };
        report.queue()
    }
}
