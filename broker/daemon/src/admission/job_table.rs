// SPDX-License-Identifier: MIT OR Apache-2.0
//! The job table: the clients of each job, and each job's request.
//!
//! A job's processes on one device are a [`Gang`], admitted by itself. Gangs of one job on several
//! devices are a *multi-device group*, named after its first gang. A process attaches once per
//! device.
//!
//! A declared need covers all devices together:
//! * The first gang asks for all that its device has room for.
//! * A rank on another device takes an equal part, which the first gang gives up.
//! * A process that also uses another device asks there for the rest, or begins with little.
//!
//! A new process gets an equal part of its job's share. If it needs more, it gets bytes that its
//! siblings do not hold, then free bytes of the device.
//!
//! Invariant: `sum(quota + context) <= share`. Exception: a process may take memory while its quota
//! is taken back; its next allocation asks for that memory.
//!
//! After a broker was killed, its clients look for another once a second. Until they reattach, jobs
//! keep their share or their place in the queue. An ended process is removed. A waiting job is kept
//! for [`REATTACH_NS`]; a running process keeps its share, because it keeps its memory. So does a
//! running process that this broker let go.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::PollFlags;

use super::ledger::{KeptJob, Page};
use super::member::Member;
use super::observed_usage;
use crate::base::clock;
use crate::base::process::Process;
use weft_admission::{Admission, Ask, Backing, DeviceId, Event, Job, User};
use weft_api::peak_usage::PeakUsage;
use weft_api::plain_text::brief;
use weft_protocol::Ns;
use weft_protocol::control::Wants;
use weft_protocol::eviction::{EvictionCause, Residence};
use weft_protocol::transport::fds;

/// Time to reattach. Clients try once a second; a busy machine may delay hundreds of them.
const REATTACH_NS: Ns = 30_000_000_000;

/// Most pidfds of processes that were let go: descriptors are few, and users could take them all.
const KEPT_PIDFDS: usize = 256;

/// Interval of checks of unreattached processes.
const REATTACH_CHECK_NS: Ns = 100_000_000;

/// Longest kept command line: many of them are kept.
const COMMAND_BYTES: usize = 1024;

/// A running process that is not a client now: one of the last broker's, or one that this broker
/// let go. It keeps its memory, and so its share.
#[derive(Debug)]
pub struct Unreattached {
    pub process: Process,
    pub command: String,
    /// Time from which it may be forgotten.
    until: Ns,
    /// Whether this broker let it go.
    let_go: bool,
    /// Shows its end if `/proc` does not.
    pidfd: Option<Arc<OwnedFd>>,
}

impl Unreattached {
    /// Whether it runs; `None`: that cannot be known.
    fn runs(&self) -> Option<bool> {
        runs(&self.process, self.pidfd.as_ref())
    }
}

/// Whether a process runs, by its pidfd if there is one; `None`: that cannot be known.
pub fn runs(process: &Process, pidfd: Option<&Arc<OwnedFd>>) -> Option<bool> {
    pidfd.map_or_else(|| process.runs(), |pidfd| Some(!fds::hung_up(pidfd, PollFlags::IN)))
}

/// A job's processes on one device.
#[derive(Debug)]
pub struct Gang {
    pub name: String,
    pub device: DeviceId,
    /// The first gang of its multi-device group, usually itself.
    pub group: Job,
    /// Bytes asked for, without contexts.
    pub asked: u64,
    pub user: String,
    /// The user id from the kernel.
    pub uid: u32,
    /// Whether its need was declared or is in its profile.
    pub declared: bool,
    /// Whether its run time was declared or is in its profile.
    pub timed: bool,
    /// Whether it waits, or waited and is not counted yet.
    pub waited: bool,
    pub managed: bool,
    /// Announced number of processes.
    pub processes: u32,
    /// Observed usage so far.
    pub usage: Option<PeakUsage>,
    pub members: BTreeMap<u64, Member>,
    pub unreattached: Vec<Unreattached>,
    /// Lines that it got while it waited.
    pub told: u32,
    /// Host bytes left by its control group, if they are too few and auto backing must use device
    /// memory.
    pub cramped: Option<u64>,
}

impl Gang {
    /// Sends all its processes a line.
    pub fn say(&self, line: &str) {
        self.members.values().for_each(|member| member.say(line));
    }

    /// Its job's name, or the number of one of its processes.
    pub fn called(&self) -> String {
        match self.members.values().next().map(Member::entry) {
            Some(entry) if entry.name.is_empty() => format!("process {}", entry.pid),
            Some(entry) => entry.name.clone(),
            None => self.name.clone(),
        }
    }

    /// Whether no process is attached or may reattach.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.unreattached.is_empty()
    }

    /// Whether all its processes are suspended, without memory or context.
    pub fn is_suspended_and_empty(&self) -> bool {
        let suspended = self.members.values().all(Member::is_suspended_and_empty);
        suspended && !self.members.is_empty() && self.unreattached.is_empty() && !self.managed
    }

    /// Bytes that its processes hold, by their own counters.
    pub fn held(&self) -> u64 {
        self.members.values().map(Member::held).sum()
    }

    /// Updates its observed usage from its processes.
    pub fn observe_usage(&mut self) {
        if let Some(usage) = &mut self.usage {
            observed_usage::observe(usage, self.members.values().map(|member| &**member.entry()));
        }
    }

    /// Records a denial: its observed usage is less than its need. A returning job's denial reveals
    /// nothing.
    pub fn note_denial(&mut self) {
        let returns = self.members.values().any(Member::has_evicted);
        if let Some(usage) = self.usage.as_mut().filter(|_| !returns) {
            usage.denied = true;
        }
    }

    /// Quota of each process, bytes: an equal part of `share` without its context.
    fn quota(&self, share: u64, context: u64) -> u64 {
        let processes = u64::from(self.processes.max(self.count() as u32)).max(1);
        (share / processes).saturating_sub(context)
    }

    /// Bytes given to its processes, with `context` bytes each.
    fn given(&self, context: u64) -> u64 {
        let quotas = self.members.values().map(Member::quota).filter(|quota| *quota > 0);
        quotas
            .map(|quota| quota.saturating_add(context))
            .fold(0, u64::saturating_add)
    }

    /// The part of `share` that belongs to its unreattached processes.
    pub fn absent_part(&self, share: u64) -> u64 {
        share / self.count().max(1) as u64 * self.unreattached.len() as u64
    }

    /// Whether this broker let all its processes go and their time to reattach is over.
    pub fn stays_away(&self, now: Ns) -> bool {
        let away = |absent: &Unreattached| absent.let_go && absent.until <= now;
        self.members.is_empty() && self.unreattached.iter().all(away)
    }

    /// See [`JobTable::gather`].
    fn gather(&self, client: u64, (share, context): (u64, u64), wanted: u64, least: u64) -> u64 {
        if self.managed {
            return 0;
        }
        let own = self
            .members
            .get(&client)
            .map_or(0, Member::quota)
            .saturating_add(context);
        let given = self
            .siblings(client)
            .map(|member| member.quota().saturating_add(context))
            .fold(own, u64::saturating_add);
        // Unreattached processes keep their parts.
        let absent = self.absent_part(share);
        let mut gathered = share.saturating_sub(given).saturating_sub(absent).min(wanted);
        for member in self.siblings(client) {
            gathered += member.give_back(least, wanted - gathered);
        }
        gathered
    }

    /// Bytes that its processes hold, with `context` bytes each; `None`: that is not known.
    pub fn uses(&self, context: u64) -> Option<u64> {
        let known = self.unreattached.is_empty() && !self.managed;
        let admitted = self.members.values().filter(|member| member.quota() > 0);
        let held = admitted.map(|member| member.held().saturating_add(context));
        known.then(|| held.fold(0, u64::saturating_add))
    }

    /// Takes at most `wanted` bytes that its processes do not hold. Each process keeps its part of
    /// the bytes that the job asked for.
    pub fn give_up(&self, wanted: u64) -> u64 {
        let least = self.least();
        let admitted = self.members.values().filter(|member| member.quota() > 0);
        admitted.fold(0, |given, member| given + member.give_back(least, wanted - given))
    }

    /// Takes all quota that its processes do not use, of those whose memory is on the host. `lent`:
    /// at most these bytes, if the memory left to make room. Returns the bytes.
    pub fn take_of_evicted(&self, lent: Option<u64>) -> u64 {
        let mut left = lent.unwrap_or(u64::MAX);
        let take = |member: &Member| {
            let given = match member.eviction().cause() {
                EvictionCause::Room => member.take_of_evicted(left),
                _ => member.take_of_evicted(u64::MAX),
            };
            left = left.saturating_sub(given);
            given
        };
        self.members.values().map(take).sum()
    }

    /// Takes the quota beyond its declared need that processes claimed to return by the driver's
    /// checkpoint, and do not use. Returns the bytes.
    pub fn take_of_returned(&self) -> u64 {
        let back = |member: &&Member| member.moves_by_driver() && member.eviction().residence() == Residence::Device;
        let back = self.members.values().filter(back);
        back.map(|member| member.give_back(self.least(), u64::MAX)).sum()
    }

    /// Takes back all quota that one process does not use, as [`Gang::give_up`].
    pub fn give_up_of(&self, client: u64) -> u64 {
        let member = self.members.get(&client);
        member.map_or(0, |member| member.give_back(self.least(), u64::MAX))
    }

    /// Bytes that each process keeps even if it does not use them.
    fn least(&self) -> u64 {
        self.asked / u64::from(self.processes.max(self.count() as u32)).max(1)
    }

    /// The other admitted processes.
    fn siblings(&self, client: u64) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(move |(other, member)| **other != client && member.quota() > 0)
            .map(|(_, member)| member)
    }

    /// Attached and unreattached processes.
    fn count(&self) -> usize {
        self.members.len() + self.unreattached.len()
    }

    fn has(&self, process: &Process) -> bool {
        let attached = self.members.values().any(|member| member.process() == *process);
        attached || self.is_awaited(process)
    }

    /// Whether this process is an unreattached one.
    fn is_awaited(&self, process: &Process) -> bool {
        self.unreattached.iter().any(|absent| absent.process == *process)
    }

    /// Its row for the next broker.
    fn kept(&self, job: Job) -> KeptJob {
        let attached = self.members.values();
        let attached = attached.map(|member| (member.process(), brief(&member.entry().command, COMMAND_BYTES)));
        let absent = self.unreattached.iter();
        let absent = absent.map(|absent| (absent.process, absent.command.clone()));
        KeptJob {
            job,
            name: self.name.clone(),
            device: self.device,
            family: self.group,
            asked: self.asked,
            user: self.user.clone(),
            uid: self.uid,
            stated: self.declared,
            timed: self.timed,
            managed: self.managed,
            processes: self.processes,
            members: attached.chain(absent).collect(),
        }
    }

    /// A gang of the last broker, none of whose processes has reattached.
    fn from_kept(kept: KeptJob, waited: bool, until: Ns) -> Gang {
        let absent = kept.members.into_iter().map(|(process, command)| Unreattached {
            process,
            command,
            until,
            let_go: false,
            pidfd: None,
        });
        Gang {
            name: kept.name,
            device: kept.device,
            group: kept.family,
            asked: kept.asked,
            user: kept.user,
            uid: kept.uid,
            declared: kept.stated,
            timed: kept.timed,
            waited,
            managed: kept.managed,
            processes: kept.processes,
            // Earlier observed usage is lost.
            usage: None,
            members: BTreeMap::new(),
            unreattached: absent.collect(),
            told: 0,
            cramped: None,
        }
    }
}

/// All jobs and their clients and users.
#[derive(Debug, Default)]
pub struct JobTable {
    gangs: HashMap<Job, Gang>,
    clients: HashMap<u64, Job>,
    /// Users by number.
    users: Vec<String>,
    /// Users with a weight above 1.
    weights: BTreeMap<String, u32>,
    /// The last job number given.
    last: u64,
    /// Time of the last check of unreattached processes.
    checked_at: Ns,
}

impl JobTable {
    /// The last broker's table, with the jobs that its core knows. Also returns jobs that cannot
    /// reattach because none of their processes is known.
    pub fn from_page(page: &mut Page, machine: &Admission) -> (JobTable, Vec<Job>) {
        let until = clock::now().saturating_add(REATTACH_NS);
        let mut table = JobTable {
            users: std::mem::take(&mut page.users),
            weights: std::mem::take(&mut page.weights),
            last: page.next,
            ..JobTable::default()
        };
        for kept in page.jobs.drain(..) {
            let job = kept.job;
            table.last = table.last.max(job.0);
            table
                .gangs
                .insert(job, Gang::from_kept(kept, machine.waits(job), until));
        }
        let mut lost: Vec<Job> = machine.jobs().collect();
        lost.retain(|job| table.gangs.get(job).is_none_or(|gang| gang.unreattached.is_empty()));
        table.gangs.retain(|job, _| {
            let known = machine.waits(*job) || machine.share(*job).is_some();
            known && !lost.contains(job)
        });
        (table, lost)
    }

    /// Writes the table into a page for the next broker.
    pub fn keep(&self, page: &mut Page) {
        page.users.clone_from(&self.users);
        page.weights.clone_from(&self.weights);
        page.jobs = self.gangs.iter().map(|(job, gang)| gang.kept(*job)).collect();
        page.next = self.last;
    }

    /// A new job number.
    pub fn next_job(&mut self) -> Job {
        self.last += 1;
        Job(self.last)
    }

    /// The user of this name; a new user is added.
    pub fn user(&mut self, name: &str) -> User {
        let at = self.users.iter().position(|known| known == name).unwrap_or_else(|| {
            self.users.push(name.to_string());
            self.users.len() - 1
        });
        User(at as u32)
    }

    /// All users by label.
    pub fn users(&self) -> Vec<(String, User)> {
        let all = self.users.iter().zip(0..);
        all.map(|(name, number)| (name.clone(), User(number))).collect()
    }

    /// Gangs of jobs on several devices, without the first gang of each.
    pub fn parts(&self) -> Vec<Job> {
        let parts = self.gangs.iter().filter(|(job, gang)| gang.group != **job);
        parts.map(|(job, _)| *job).collect()
    }

    pub fn set_weight(&mut self, name: &str, weight: u32) -> User {
        match weight {
            0 | 1 => self.weights.remove(name),
            _ => self.weights.insert(name.to_string(), weight),
        };
        self.user(name)
    }

    /// Whether any user has a weight above 1.
    pub fn has_weights(&self) -> bool {
        !self.weights.is_empty()
    }

    /// Users with a weight above 1.
    pub fn weights(&self) -> impl Iterator<Item = (&String, &u32)> {
        self.weights.iter()
    }

    pub fn gang(&self, job: Job) -> Option<&Gang> {
        self.gangs.get(&job)
    }

    pub fn gang_mut(&mut self, job: Job) -> Option<&mut Gang> {
        self.gangs.get_mut(&job)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Job, &Gang)> {
        self.gangs.iter().map(|(job, gang)| (*job, gang))
    }

    pub fn on(&self, device: DeviceId) -> impl Iterator<Item = (Job, &Gang)> {
        self.iter().filter(move |(_, gang)| gang.device == device)
    }

    /// The processes of all jobs.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.gangs.values().flat_map(|gang| gang.members.values())
    }

    pub fn clients_of(&self, job: Job) -> Vec<u64> {
        let gang = self.gangs.get(&job);
        gang.map(|gang| gang.members.keys().copied().collect())
            .unwrap_or_default()
    }

    pub fn job_of(&self, client: u64) -> Option<Job> {
        self.clients.get(&client).copied()
    }

    /// Number of clients.
    pub fn count(&self) -> usize {
        self.clients.len()
    }

    pub fn member(&self, client: u64) -> Option<&Member> {
        self.gangs.get(self.clients.get(&client)?)?.members.get(&client)
    }

    /// Whether a gang has this name.
    pub fn is_named(&self, name: &str) -> bool {
        self.gangs.values().any(|gang| gang.name == name)
    }

    /// Adds a gang with its first process.
    pub fn insert(&mut self, job: Job, gang: Gang, member: Member) {
        self.gangs.insert(job, gang);
        self.attach(job, member);
    }

    /// Adds a process to a gang.
    pub fn attach(&mut self, job: Job, member: Member) {
        let client = member.entry().client;
        self.clients.insert(client, job);
        if let Some(gang) = self.gangs.get_mut(&job) {
            gang.members.insert(client, member);
        }
    }

    /// Adds an unreattached process again.
    pub fn reattach(&mut self, job: Job, member: Member) {
        if let Some(gang) = self.gangs.get_mut(&job) {
            gang.unreattached.retain(|absent| absent.process != member.process());
        }
        self.attach(job, member);
    }

    /// Removes a client with its process.
    pub fn detach(&mut self, client: u64) -> Option<Member> {
        let job = self.clients.remove(&client)?;
        self.gangs.get_mut(&job)?.members.remove(&client)
    }

    /// Removes a client whose process still runs. The process keeps its part of the job.
    pub fn let_go(&mut self, client: u64, pidfd: Option<Arc<OwnedFd>>) -> Option<Member> {
        let job = self.job_of(client)?;
        let absent = self.gangs.values().flat_map(|gang| &gang.unreattached);
        let kept = absent.filter(|absent| absent.pidfd.is_some()).count();
        let member = self.detach(client)?;
        let absent = Unreattached {
            process: member.process(),
            command: brief(&member.entry().command, COMMAND_BYTES),
            until: clock::now().saturating_add(REATTACH_NS),
            let_go: true,
            pidfd: pidfd.filter(|_| member.process().start.is_none() && kept < KEPT_PIDFDS),
        };
        self.gangs.get_mut(&job)?.unreattached.push(absent);
        Some(member)
    }

    /// Removes a gang with its clients.
    pub fn remove(&mut self, job: Job) -> Option<Gang> {
        let gang = self.gangs.remove(&job)?;
        for client in gang.members.keys() {
            self.clients.remove(client);
        }
        Some(gang)
    }

    /// Quota of each process of a running job, without context.
    pub fn quota(&self, machine: &Admission, job: Job) -> Option<u64> {
        let (device, share) = machine.share(job)?;
        Some(self.gangs.get(&job)?.quota(share, context_on(machine, device)))
    }

    /// Bytes, up to `wanted`, that the job's share can give this process: bytes not given to any
    /// process, and bytes beyond `least` that siblings do not hold. They are taken from the
    /// siblings but not given yet.
    pub fn gather(&self, machine: &Admission, client: u64, wanted: u64, least: u64) -> u64 {
        let job = self.job_of(client);
        let found = job.and_then(|job| Some((self.gangs.get(&job)?, machine.share(job)?)));
        let Some((gang, (device, share))) = found else { return 0 };
        gang.gather(client, (share, context_on(machine, device)), wanted, least)
    }

    /// The unreattached process's job on this device. Pids that `/proc` hides may be reused, so the
    /// user must match.
    pub fn awaited(&self, process: &Process, user: &str, device: DeviceId) -> Option<Job> {
        let belonged = |gang: &Gang| gang.is_awaited(process) && gang.user == user;
        self.on(device).find(|(_, gang)| belonged(gang)).map(|(job, _)| job)
    }

    /// Forgets a process that this broker let go and that now runs another program (`exec`).
    /// Returns its job on this device.
    pub fn replaced(&mut self, process: &Process, user: &str, device: DeviceId) -> Option<Job> {
        let job = self.awaited(process, user, device)?;
        let absent = &mut self.gangs.get_mut(&job)?.unreattached;
        let at = absent
            .iter()
            .position(|absent| absent.let_go && absent.process == *process)?;
        absent.remove(at);
        Some(job)
    }

    /// If a check is due, forgets unreattached processes that ended or did not return in time.
    /// Returns them with their jobs.
    pub fn forget_unreattached(&mut self, machine: &Admission) -> Vec<(Job, Process)> {
        let now = clock::now();
        let due = now.saturating_sub(self.checked_at) >= REATTACH_CHECK_NS;
        match due && self.has_unreattached() {
            true => self.forget_unreattached_now(machine),
            false => Vec::new(),
        }
    }

    /// Whether any process of a job is unreattached.
    pub fn has_unreattached(&self) -> bool {
        self.gangs.values().any(|gang| !gang.unreattached.is_empty())
    }

    /// [`JobTable::forget_unreattached`] at once.
    pub fn forget_unreattached_now(&mut self, machine: &Admission) -> Vec<(Job, Process)> {
        let now = clock::now();
        self.checked_at = now;
        let mut left = Vec::new();
        for (job, gang) in &mut self.gangs {
            let waits = machine.waits(*job);
            gang.unreattached.retain(|absent| {
                let stays = match absent.runs() {
                    Some(true) => !waits || now < absent.until,
                    Some(false) => false,
                    None => now < absent.until,
                };
                if !stays {
                    log::info!("process {} does not come back: {}", absent.process.pid, absent.command);
                    left.push((*job, absent.process));
                }
                stays
            });
        }
        left
    }

    /// Whether any job is on several devices.
    pub fn has_groups(&self) -> bool {
        self.gangs.iter().any(|(job, gang)| gang.group != *job)
    }

    /// The multi-device group of a gang.
    pub fn group_of(&self, job: Job) -> Job {
        self.gangs.get(&job).map_or(job, |gang| gang.group)
    }

    /// The gangs and devices of a process's job, the first gang first.
    pub fn related(&self, process: &Process, wants: &Wants) -> Vec<(Job, DeviceId)> {
        let related = |gang: &Gang| {
            let named = !wants.gang.is_empty() && gang.name == wants.gang;
            named || (wants.further > 0 && gang.has(process))
        };
        let gangs = self.iter().filter(|(_, gang)| related(gang));
        let mut found: Vec<(Job, DeviceId)> = gangs.map(|(job, gang)| (job, gang.device)).collect();
        found.sort();
        found
    }

    fn group(&self, group: Job) -> impl Iterator<Item = (Job, &Gang)> {
        self.iter().filter(move |(_, gang)| gang.group == group)
    }

    /// Part of the declared need for one more process on a further device. The returned events
    /// lower the first gang's need.
    pub fn part_elsewhere(
        &mut self,
        machine: &Admission,
        group: Job,
        declared: Option<u64>,
        wants: &Wants,
    ) -> (Option<u64>, Vec<Event>) {
        let Some(declared) = declared else {
            return (None, Vec::new());
        };
        if wants.further > 0 {
            // A rank's part is counted on its first device.
            let asked = self.group(group).map(|(_, gang)| gang.asked);
            let left = declared.saturating_sub(asked.fold(0, u64::saturating_add));
            return ((left > 0 && wants.processes <= 1).then_some(left), Vec::new());
        }
        let all: u64 = self.group(group).map(|(_, gang)| gang.count() as u64).sum();
        let first = self.gangs.get(&group).map_or(0, |gang| gang.count() as u64);
        let elsewhere = all - first;
        let part = declared / u64::from(wants.processes).max(all + 1);
        let left = declared.saturating_sub(part.saturating_mul(elsewhere + 1));
        (Some(part), self.ask_less(machine, group, left))
    }

    /// Lowers the first gang's need to `needs` bytes, and its processes by one.
    fn ask_less(&mut self, machine: &Admission, job: Job, needs: u64) -> Vec<Event> {
        let Some(gang) = self.gangs.get_mut(&job) else {
            return Vec::new();
        };
        let less = gang.asked.saturating_sub(needs);
        gang.asked -= less;
        gang.processes = gang.processes.saturating_sub(1).max(1);
        let processes = gang.processes;
        if let Some((_, share)) = machine.share(job) {
            // Processes keep the bytes that they were given.
            let context = context_on(machine, gang.device);
            let spare = share.saturating_sub(gang.given(context));
            return vec![Event::Gives(job, less.saturating_add(context).min(spare))];
        }
        self.ask_anew(machine, job, |ask| {
            ask.need.peak = ask.need.peak.saturating_sub(less);
            ask.need.processes = processes;
        })
    }

    /// The multi-device group that gives a part to one more process of a gang. `None`: the process
    /// needs no part.
    pub fn parting_group(&self, job: Job, wants: &Wants) -> Option<Job> {
        let gang = self.gangs.get(&job)?;
        let parts = gang.group != job && gang.declared && wants.further == 0;
        parts.then_some(gang.group)
    }

    /// Adds the part of one more process to a gang's need.
    pub fn ask_more(&mut self, machine: &Admission, job: Job, part: u64) -> Vec<Event> {
        if let Some(gang) = self.gangs.get_mut(&job) {
            gang.asked = gang.asked.saturating_add(part);
            gang.processes = gang.processes.saturating_add(1);
        }
        if machine.share(job).is_some() {
            // If that is not free, it gets the bytes that its siblings do not hold.
            return vec![Event::Grows(job, part)];
        }
        self.ask_anew(machine, job, |ask| {
            ask.need.peak = ask.need.peak.saturating_add(part);
            ask.need.processes = ask.need.processes.saturating_add(1);
        })
    }

    /// Replaces a waiting gang's request. The gang moves behind recent arrivals, which is harmless
    /// because its processes arrive together.
    fn ask_anew(&self, machine: &Admission, job: Job, change: impl Fn(&mut Ask)) -> Vec<Event> {
        let waiting = machine.view().waiting;
        let Some(mut ask) = waiting.into_iter().map(|row| row.ask).find(|ask| ask.job == job) else {
            return Vec::new();
        };
        change(&mut ask);
        if let Backing::Managed { working_set } | Backing::Auto { working_set } = &mut ask.need.backing {
            *working_set = (*working_set).min(ask.need.peak);
        }
        let present = self.gangs.get(&job).map_or(1, Gang::count);
        let is_part = self.gangs.get(&job).is_some_and(|gang| gang.group != job);
        let mut events = vec![Event::Ends(job)];
        events.extend(is_part.then_some(Event::IsPart(job)));
        events.push(Event::Asks(ask));
        events.extend((1..present).map(|_| Event::Joins(job)));
        events
    }
}

/// Bytes of a context on a device; 0: not known.
pub fn context_on(machine: &Admission, device: DeviceId) -> u64 {
    let about = machine.devices().find(|about| about.id == device);
    about.map_or(0, |about| about.context)
}
