//! The book: clients and their jobs, events to the core, and its decisions for admission slots.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use super::arrivals::Arrivals;
use super::auto_backing::{self, cramped};
use super::back::Absent;
use super::device_facts::DeviceFacts;
use super::device_observer::{AdmittedAt, Blur, DeviceObserver};
use super::devices::Said;
use super::growth::Growth;
use super::ledger::{KeptJob, Ledger, LedgerState, Page};
use super::observed_usage::{ObservedUsage, PeakUsage};
use super::promises::Promises;
use super::rows::FreedRow;
use super::suspended::Still;
use super::watch::Reading;
use crate::clock;
use crate::process::Process;
use crate::registry::Entry;
use crate::server::ToTheClient;
use crate::text::brief;
use weft_admission::{Admission, Ask, Backing, Class, Config, Decision, Device, DeviceId, Event, Job, Need, User};
use weft_protocol::Ns;
use weft_protocol::admission_slot::{AdmissionState, Memory};
use weft_protocol::control::{ToClient, Wants};

/// Divisor of the device's total for a job of unknown need (1.25 GB of 80), which then grows. A
/// large guess would keep other jobs out for nothing.
pub const UNKNOWN: u64 = 64;

/// Most processes of a job on a device.
pub const MOST_PROCESSES: u32 = 1024;

/// Ended processes that are kept.
const FREED: usize = 64;

#[derive(Debug)]
pub struct Member {
    pub entry: Arc<Entry>,
    pub sender: ToTheClient,
    pub process: Process,
    pub admitted_at: AdmittedAt,
    pub blur: Blur,
}

/// A job's processes on one device. Each device's part is admitted by itself: see
/// [`super::deadlock`].
#[derive(Debug)]
pub struct Gang {
    pub name: String,
    pub device: DeviceId,
    /// The first gang of its multi-device group: itself, as a rule.
    pub family: Job,
    /// Bytes asked for, without contexts.
    pub asked: u64,
    pub user: String,
    /// The user id, by the kernel.
    pub uid: u32,
    pub stated: bool,
    /// Its run time was declared or is in its profile.
    pub timed: bool,
    /// It waits, or waited and is not counted yet.
    pub waited: bool,
    pub managed: bool,
    pub processes: u32,
    /// Observed usage so far.
    pub took: Option<PeakUsage>,
    pub members: BTreeMap<u64, Member>,
    /// Unreattached processes of the last broker.
    pub absent: Vec<Absent>,
    /// Since when it is suspended with nothing taken.
    pub still: Still,
    /// Lines that it got while it waited.
    pub told: u32,
    /// Host bytes left by its control group, where they forced device memory on auto backing.
    pub cramped: Option<u64>,
}

impl Gang {
    fn says(&self, line: &str) {
        for member in self.members.values() {
            let _ = member.sender.send(ToClient::Said(line.to_string()));
        }
    }

    /// Whether no process is attached or may reattach.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.absent.is_empty()
    }
}

#[derive(Debug)]
pub struct Controller {
    pub config: Config,
    pub machine: Admission,
    pub gangs: HashMap<Job, Gang>,
    pub clients: HashMap<u64, Job>,
    /// UUIDs by device number.
    pub devices: Vec<String>,
    /// Users' reports of device sizes, and NVML's list.
    pub said: HashMap<DeviceId, Said>,
    pub listed: BTreeMap<String, u64>,
    /// Whether the broker is shared, and its owner.
    pub shared: bool,
    pub owner: u32,
    pub users: Vec<String>,
    /// Users with a weight above 1.
    pub weights: BTreeMap<String, u32>,
    pub learnt: ObservedUsage,
    pub known: DeviceFacts,
    /// Whether contexts of unknown size are measured.
    pub measures: bool,
    pub observer: DeviceObserver,
    pub arrivals: Arrivals,
    pub growth: Growth,
    /// Processes that ended lately, the latest last.
    pub freed: VecDeque<FreedRow>,
    pub promises: Promises,
    pub next: u64,
    pub sums: [u64; 4],
    pub out: Vec<Decision>,
    /// Time of the last check of unreattached processes.
    pub looked: u64,
    /// Time of the last check for suspended jobs.
    pub looked_for_suspended: u64,
    /// Time of the last lines on positions.
    pub positions: Ns,
    /// When NVML was last asked for a waiting job, and the number of the last answer read.
    pub watched: Ns,
    pub read: u64,
    pub ledger: LedgerState,
}

pub const ADMITTED: usize = 0;
pub const WAITED: usize = 1;
pub const REFUSED: usize = 2;
pub const DENIED: usize = 3;

impl Controller {
    pub fn new(config: Config, ledger: Option<Ledger>) -> Controller {
        Controller {
            machine: Admission::new(config.clone()),
            config,
            gangs: HashMap::new(),
            clients: HashMap::new(),
            devices: Vec::new(),
            said: HashMap::new(),
            listed: BTreeMap::new(),
            shared: false,
            owner: rustix::process::geteuid().as_raw(),
            users: Vec::new(),
            weights: BTreeMap::new(),
            learnt: ObservedUsage::default(),
            known: DeviceFacts::default(),
            measures: false,
            observer: DeviceObserver::default(),
            arrivals: Arrivals::default(),
            growth: Growth::default(),
            freed: VecDeque::new(),
            promises: Promises::default(),
            next: 0,
            sums: [0; 4],
            out: Vec::new(),
            looked: 0,
            looked_for_suspended: 0,
            positions: 0,
            watched: 0,
            read: 0,
            ledger: LedgerState::new(ledger),
        }
    }

    pub fn tell(&mut self, event: Event) {
        self.ledger.mark(event != Event::Tick);
        if let Event::Ends(job) = event {
            self.growth.forget(job);
        }
        self.machine.handle(clock::now(), event, &mut self.out);
        self.ledger.mark(!self.out.is_empty());
    }

    pub fn user(&mut self, name: &str) -> User {
        let at = self.users.iter().position(|known| known == name).unwrap_or_else(|| {
            self.users.push(name.to_string());
            self.users.len() - 1
        });
        User(at as u32)
    }

    /// A client is about to touch a device, or runs already.
    pub fn wants(&mut self, entry: &Arc<Entry>, sender: &ToTheClient, wants: Wants) {
        if self.clients.contains_key(&entry.client) {
            return;
        }
        let Some(device) = self.device(&wants.uuid, wants.total, entry.uid) else {
            return self.passes_by(entry, sender);
        };
        let member = Member {
            entry: Arc::clone(entry),
            sender: sender.clone(),
            process: entry.process(),
            admitted_at: AdmittedAt::default(),
            blur: Blur::default(),
        };
        let kin = self.kin(&member.process, &wants);
        let known = kin.iter().find(|(_, on)| *on == device).map(|(job, _)| *job);
        if let Some(job) = self.back_from(&member.process, &wants.user, device) {
            self.clients.insert(entry.client, job);
            self.comes_back(job, member, &wants, device);
        } else if let Some(job) = known {
            if wants.runs.is_none() {
                self.brings(job, stated(entry, &wants), &wants);
            }
            self.clients.insert(entry.client, job);
            if let Some(gang) = self.gangs.get_mut(&job) {
                gang.members.insert(entry.client, member);
            }
            match wants.runs {
                Some(share) => {
                    let ask = self.ask(job, entry, &wants, device, stated(entry, &wants));
                    let fixed = self.fixed(&wants, device, share);
                    self.tell(Event::Holds(ask, device, fixed));
                    self.carry_out();
                    self.admission_slot(entry.client, share);
                }
                None => {
                    self.tell(Event::Joins(job));
                    self.carry_out();
                    self.admission_slot_or_wait(entry.client, job);
                }
            }
        } else {
            self.comes_first(member, &wants, device, kin.first().map(|(job, _)| *job));
        }
    }

    /// Adds a job's first process on a device. `kin`: its gang on another one.
    fn comes_first(&mut self, member: Member, wants: &Wants, device: DeviceId, kin: Option<Job>) {
        self.next += 1;
        let job = Job(self.next);
        let entry = Arc::clone(&member.entry);
        let mut said = stated(&entry, wants);
        let family = kin.and_then(|kin| self.gangs.get(&kin)).map(|gang| gang.family);
        if let Some(family) = family.filter(|_| wants.runs.is_none()) {
            said = self.part_elsewhere(family, said, wants);
        }
        let mut ask = self.ask(job, &entry, wants, device, said);
        if family.is_some() {
            // Further processes here are not known before they come.
            ask.need.processes = 1;
        }
        let gang = Gang {
            name: wants.gang.clone(),
            device,
            family: family.unwrap_or(job),
            asked: ask.need.peak,
            user: wants.user.clone(),
            uid: entry.uid,
            stated: said.is_some(),
            timed: timed(&entry, wants).is_some(),
            waited: false,
            managed: wants.managed,
            processes: ask.need.processes,
            took: Some(PeakUsage::begin(&entry, &wants.user, family.unwrap_or(job))),
            members: BTreeMap::from([(entry.client, member)]),
            absent: Vec::new(),
            still: Still::default(),
            told: 0,
            cramped: cramped(wants, ask.need.peak).filter(|_| wants.either),
        };
        if let Some(left) = cramped(wants, gang.asked).filter(|_| wants.managed) {
            gang.says(&auto_backing::warning(left, gang.asked));
        }
        self.gangs.insert(job, gang);
        self.clients.insert(entry.client, job);
        match wants.runs {
            Some(share) => {
                let fixed = self.fixed(wants, device, share);
                self.tell(Event::Holds(ask, device, fixed));
                self.carry_out();
                self.admission_slot(entry.client, share);
            }
            None => {
                self.tell(Event::Asks(ask));
                let waits = self.machine.waits(job);
                if let Some(gang) = self.gangs.get_mut(&job) {
                    gang.waited = waits;
                }
                self.carry_out();
                if waits {
                    self.waits(job);
                }
            }
        }
    }

    /// A job's request; `stated`: its declared need, bytes.
    pub fn ask(&mut self, job: Job, entry: &Entry, wants: &Wants, device: DeviceId, stated: Option<u64>) -> Ask {
        let mut peak = stated.unwrap_or(wants.total / UNKNOWN);
        let processes = wants.processes.clamp(1, MOST_PROCESSES);
        if wants.devices > 1 {
            // What does not fit goes to its other devices.
            let context = self.about(device).map_or(0, |it| it.context);
            peak = peak.min(wants.total.saturating_sub(context.saturating_mul(u64::from(processes))));
        }
        let said = timed(entry, wants);
        let backing = match wants.managed {
            true => Backing::Managed {
                // What a turn touches is not known: all of it.
                working_set: peak.min(wants.total),
            },
            // Evicted memory is charged to the job's control group, all of it at worst.
            false if wants.either && cramped(wants, peak).is_none() => Backing::Either {
                working_set: peak.min(wants.total),
            },
            false => Backing::Device,
        };
        Ask {
            job,
            user: self.user(&wants.user),
            priority: entry.priority.load(Ordering::Relaxed),
            need: Need {
                peak,
                processes,
                expected: said.unwrap_or(Class::Medium.expected()),
                backing,
            },
            devices: vec![device],
        }
    }

    /// Bytes of the device that a running process with this share takes.
    pub fn fixed(&self, wants: &Wants, device: DeviceId, share: u64) -> u64 {
        let context = self.about(device).map_or(0, |it| it.context);
        // Managed memory is not the device's.
        if wants.managed {
            context
        } else {
            share.saturating_add(context)
        }
    }

    /// Admits a client whose device is in no book: no quota, no account.
    fn passes_by(&self, entry: &Entry, sender: &ToTheClient) {
        let line = "its device is not counted here (there are too many that nobody else knows of): this job's memory is in nobody's account";
        log::info!("client {}: {line}", entry.client);
        let _ = sender.send(ToClient::Said(line.to_string()));
        let admission_slot = &entry.lane.admission_slot;
        admission_slot
            .state
            .store(AdmissionState::Admitted as u32, Ordering::Release);
        wake(&admission_slot.state);
    }

    /// Writes a client's admission: quota, limit, backing, state.
    pub fn admission_slot(&self, client: u64, share: u64) {
        let Some(job) = self.clients.get(&client) else { return };
        let Some(gang) = self.gangs.get(job) else { return };
        let Some(member) = gang.members.get(&client) else {
            return;
        };
        member.admitted_at.now();
        let admission_slot = &member.entry.lane.admission_slot;
        let free = self.machine.share(*job).map_or(0, |(device, _)| self.free(device));
        let ceiling = match gang.stated {
            true => share,
            false => share.saturating_add(free),
        };
        // Managed memory is not the device's.
        let (share, ceiling) = if gang.managed {
            (0, 0)
        } else {
            (share.max(1), ceiling.max(1))
        };
        admission_slot.quota.store(share, Ordering::Relaxed);
        admission_slot.limit.store(ceiling, Ordering::Relaxed);
        admission_slot.declared.store(u32::from(gang.stated), Ordering::Relaxed);
        let backing = match gang.managed {
            true => Memory::Managed,
            false => Memory::Device,
        };
        admission_slot.backing.store(backing as u32, Ordering::Relaxed);
        admission_slot
            .state
            .store(AdmissionState::Admitted as u32, Ordering::Release);
        wake(&admission_slot.state);
    }

    pub fn about(&self, device: DeviceId) -> Option<&Device> {
        self.machine.devices().find(|about| about.id == device)
    }

    fn free(&self, device: DeviceId) -> u64 {
        self.about(device)
            .map_or(0, |about| self.machine.load(device).free(about))
    }

    /// Takes in NVML's answer.
    pub fn reads(&mut self, reading: &Reading) {
        if reading.number == self.read {
            return;
        }
        self.read = reading.number;
        self.lists(&reading.memory);
        for (uuid, free) in &reading.free {
            self.sees(uuid, *free, reading.at);
        }
    }

    /// Counts one process of a job less; without any, the job ends.
    pub fn leaves(&mut self, job: Job) {
        if self.gangs.get(&job).is_some_and(|gang| !gang.is_empty()) {
            return self.tell(Event::Leaves(job));
        }
        let since = self.machine.since(job);
        let took = self.gangs.remove(&job).and_then(|gang| Some((gang.took?, gang.stated)));
        self.tell(Event::Ends(job));
        if let (Some((mut took, false)), Some(since)) = (took, since) {
            took.ran = clock::now().saturating_sub(since);
            self.learnt.add(took);
            self.known.took(self.learnt.all());
        }
    }

    pub fn weigh(&mut self, name: &str, weight: u32) {
        let user = self.user(name);
        match weight {
            0 | 1 => self.weights.remove(name),
            _ => self.weights.insert(name.to_string(), weight),
        };
        self.tell(Event::Weight(user, weight));
        self.carry_out();
    }

    /// Notes an ended process. `share`: bytes that became free; 0: its job has other processes.
    pub fn frees(&mut self, pid: u32, share: u64) {
        if self.freed.len() == FREED {
            self.freed.pop_front();
        }
        let at = clock::now();
        self.freed.push_back(FreedRow { pid, share, at });
    }

    /// Carries out the core's decisions. They are in the ledger before a client can act on them.
    pub fn carry_out(&mut self) {
        let out = std::mem::take(&mut self.out);
        self.chooses(&out);
        for decision in &out {
            let counted = match decision {
                Decision::Admit { job, .. } => {
                    // Counted here: whether it begins is not known before.
                    let gang = self.gangs.get_mut(job);
                    let waited = gang.is_some_and(|gang| std::mem::take(&mut gang.waited));
                    self.sums[WAITED] += u64::from(waited);
                    ADMITTED
                }
                Decision::Refuse { .. } => REFUSED,
                Decision::Deny { .. } => DENIED,
                Decision::Grant { .. } => continue,
            };
            self.sums[counted] += 1;
        }
        self.keep();
        for decision in out {
            match decision {
                Decision::Admit { job, .. } => {
                    let Some(part) = self.part(job) else { continue };
                    let clients: Vec<u64> = self
                        .gangs
                        .get(&job)
                        .map(|gang| gang.members.keys().copied().collect())
                        .unwrap_or_default();
                    self.tells_choice(job);
                    for client in clients {
                        self.admission_slot(client, part);
                    }
                }
                Decision::Refuse { job, why } => {
                    let cramped = self.gangs.get(&job).and_then(|gang| gang.cramped);
                    let cramped = cramped.map_or(String::new(), auto_backing::reason);
                    self.turns_away(job, &format!("this job can never run here: {why}{cramped}"));
                }
                Decision::Grant { job, .. } => self.has_grown(job, true),
                Decision::Deny { job, bytes, free } => {
                    self.has_grown(job, false);
                    self.notes_denial(job);
                    log::info!("{job:?} wanted {bytes} bytes more, {free} are free");
                }
            }
        }
        self.show_ceilings();
    }

    /// Writes the limit of jobs without a declared need: quota + free bytes.
    fn show_ceilings(&self) {
        let mut free: BTreeMap<DeviceId, u64> = BTreeMap::new();
        for (job, gang) in self.gangs.iter().filter(|(_, gang)| !gang.stated && !gang.managed) {
            let Some((device, _)) = self.machine.share(*job) else {
                continue;
            };
            let free = *free.entry(device).or_insert_with(|| self.free(device));
            for member in gang.members.values() {
                let admission_slot = &member.entry.lane.admission_slot;
                let share = admission_slot.quota.load(Ordering::Acquire);
                if share > 0 {
                    admission_slot
                        .limit
                        .store(share.saturating_add(free), Ordering::Relaxed);
                }
            }
        }
    }

    /// Refuses a job and tells its processes why.
    pub fn turns_away(&mut self, job: Job, why: &str) {
        let Some(gang) = self.gangs.remove(&job) else { return };
        for (client, member) in gang.members {
            self.clients.remove(&client);
            log::warn!("client {client} is turned away: {why}");
            let _ = member.sender.send(ToClient::Said(why.to_string()));
            let admission_slot = &member.entry.lane.admission_slot;
            admission_slot
                .state
                .store(AdmissionState::Refused as u32, Ordering::Release);
            wake(&admission_slot.state);
        }
    }

    /// Writes the ledger if it is stale.
    fn keep(&mut self) {
        if self.ledger.take_stale() {
            self.ledger.write(self.page().as_ref());
        }
    }

    /// The next broker's page; `None`: nothing to keep.
    fn page(&self) -> Option<Page> {
        let (waiting, running) = self.machine.count();
        if waiting + running == 0 && self.weights.is_empty() {
            return None;
        }
        let kept = |(job, gang): (&Job, &Gang)| KeptJob {
            job: *job,
            name: gang.name.clone(),
            device: gang.device,
            family: gang.family,
            asked: gang.asked,
            user: gang.user.clone(),
            uid: gang.uid,
            stated: gang.stated,
            timed: gang.timed,
            managed: gang.managed,
            processes: gang.processes,
            members: gang
                .members
                .values()
                .map(|member| (member.process, brief(&member.entry.command, COMMAND)))
                .chain(
                    gang.absent
                        .iter()
                        .map(|absent| (absent.process, absent.command.clone())),
                )
                .collect(),
        };
        Some(Page {
            devices: self.devices.clone(),
            users: self.users.clone(),
            weights: self.weights.clone(),
            jobs: self.gangs.iter().map(kept).collect(),
            next: self.next,
            sums: self.sums,
            ..Page::new(self.machine.keep())
        })
    }

    /// Closes the ledger. The last page stays.
    pub fn close(&mut self) {
        self.keep();
        self.ledger.close();
        self.known.close();
    }
}

/// Declared run time, or the profile's, ns.
fn timed(entry: &Entry, wants: &Wants) -> Option<Ns> {
    match wants.duration.as_deref() {
        Some("short") => Some(Class::Short.expected()),
        Some("long") => Some(Class::Long.expected()),
        Some(_) => Some(Class::Medium.expected()),
        None => entry.loaded.as_ref().map(|profile| profile.ran).filter(|ran| *ran > 0),
    }
}

/// Longest kept command line, bytes, where many are kept.
const COMMAND: usize = 1024;

/// Declared need, or the profile's, bytes.
pub fn stated(entry: &Entry, wants: &Wants) -> Option<u64> {
    let learnt = entry
        .loaded
        .as_ref()
        .map(|profile| profile.memory_peak)
        .filter(|peak| *peak > 0);
    wants.memory.or(learnt)
}

pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
