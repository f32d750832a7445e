//! The book: which clients are which job, what the machine is told of them, and what its decisions
//! mean for their admission slots.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use super::arrivals::Arrivals;
use super::back::Absent;
use super::device_observer::{AdmittedAt, Blur, DeviceObserver};
use super::devices::Said;
use super::either::{self, cramped};
use super::growing::Growth;
use super::known::Known;
use super::learnt::{Learnt, Took};
use super::ledger::{KeptJob, Ledger, LedgerState, Page};
use super::places::Promises;
use super::process::Process;
use super::rows::FreedRow;
use super::still::Still;
use super::watch::Reading;
use crate::clock;
use crate::registry::Entry;
use crate::server::ToTheClient;
use weft_admission::{Admission, Ask, Backing, Class, Config, Decision, Device, DeviceId, Event, Job, Need, User};
use weft_protocol::Ns;
use weft_protocol::admission_slot::{AdmissionState, Memory};
use weft_protocol::control::{ToClient, Wants};

/// A job of which nothing is known is let in with its total divided by this, and gets more as it
/// asks for more: 1.25 GB of 80. What it takes in the end is known only from a run, and guarding a
/// large guess would keep others out for nothing.
pub const UNKNOWN: u64 = 64;

/// No job has more processes on a device.
pub const MOST_PROCESSES: u32 = 1024;

/// Ended processes that are remembered.
const FREED: usize = 64;

/// A process of a job.
#[derive(Debug)]
pub struct Member {
    /// What is known of it.
    pub entry: Arc<Entry>,
    pub sender: ToTheClient,
    pub process: Process,
    pub admitted_at: AdmittedAt,
    pub blur: Blur,
}

/// The processes of a job on one device. What a job has on several devices is admitted for each by
/// itself: see [`super::kin`].
#[derive(Debug)]
pub struct Gang {
    pub name: String,
    pub device: DeviceId,
    /// Its job's first gang, whose number it goes by over all devices: itself, as a rule.
    pub family: Job,
    /// Bytes that were asked for, contexts left out.
    pub asked: u64,
    pub user: String,
    /// Whose it is, as the kernel says.
    pub uid: u32,
    pub stated: bool,
    /// How long it runs was said, by a person or a profile.
    pub timed: bool,
    /// It waits, or waited until it was let in and was not counted yet.
    pub waited: bool,
    pub managed: bool,
    pub processes: u32,
    /// What it took so far, counted as its processes go.
    pub took: Option<Took>,
    /// Those that are attached.
    pub members: BTreeMap<u64, Member>,
    /// Those that the broker before this one knew and that have not come back yet.
    pub absent: Vec<Absent>,
    /// Since when it is seen suspended with nothing taken.
    pub still: Still,
    /// Lines that it was told while it waited.
    pub told: u32,
    /// It left open what its memory is, and has device memory since its control group leaves it so
    /// many bytes of the host alone.
    pub cramped: Option<u64>,
}

impl Gang {
    /// Says a line to its processes.
    fn says(&self, line: &str) {
        for member in self.members.values() {
            let _ = member.sender.send(ToClient::Said(line.to_string()));
        }
    }

    /// Whether none of its processes is there or may come back.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.absent.is_empty()
    }
}

#[derive(Debug)]
pub struct Book {
    pub config: Config,
    pub machine: Admission,
    pub gangs: HashMap<Job, Gang>,
    pub clients: HashMap<u64, Job>,
    /// UUIDs of the devices, by their numbers.
    pub devices: Vec<String>,
    /// Who says how large they are, and what NVML says.
    pub said: HashMap<DeviceId, Said>,
    pub listed: BTreeMap<String, u64>,
    /// Many users' jobs come here, and whose broker it is.
    pub shared: bool,
    pub owner: u32,
    pub users: Vec<String>,
    /// Users with a weight of their own.
    pub weights: BTreeMap<String, u32>,
    pub learnt: Learnt,
    /// What is known beyond this broker's end.
    pub known: Known,
    /// What a context takes is measured on devices of which that is not known.
    pub measures: bool,
    /// What is known of the devices' memory.
    pub observer: DeviceObserver,
    /// The clients that have asked and are not in yet.
    pub arrivals: Arrivals,
    /// The clients that run and wait for more.
    pub growth: Growth,
    /// Who ended of late, the latest last.
    pub freed: VecDeque<FreedRow>,
    /// Places of jobs that have not come yet.
    pub promises: Promises,
    pub next: u64,
    pub sums: [u64; 4],
    pub out: Vec<Decision>,
    /// When the absent were looked for last.
    pub looked: u64,
    /// When the suspended were.
    pub looked_for_suspended: u64,
    /// When those who wait heard of their places.
    pub positions: Ns,
    /// When NVML was asked last because somebody waits, and the number of the answer that was read
    /// last.
    pub watched: Ns,
    pub read: u64,
    /// What is kept for the next broker.
    pub ledger: LedgerState,
}

pub const ADMITTED: usize = 0;
pub const WAITED: usize = 1;
pub const REFUSED: usize = 2;
pub const DENIED: usize = 3;

impl Book {
    /// With nobody in it.
    pub fn new(config: Config, ledger: Option<Ledger>) -> Book {
        Book {
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
            learnt: Learnt::default(),
            known: Known::default(),
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

    /// The first process of a job on a device. `kin`: a gang of it on another one.
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
            // Who else comes here is not known before it has come.
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
            took: Some(Took::begin(&entry, &wants.user, family.unwrap_or(job))),
            members: BTreeMap::from([(entry.client, member)]),
            absent: Vec::new(),
            still: Still::default(),
            told: 0,
            cramped: cramped(wants, ask.need.peak).filter(|_| wants.either),
        };
        if let Some(left) = cramped(wants, gang.asked).filter(|_| wants.managed) {
            gang.says(&either::warning(left, gang.asked));
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

    /// What a job asks for, of whose memory so much was said.
    pub fn ask(&mut self, job: Job, entry: &Entry, wants: &Wants, device: DeviceId, stated: Option<u64>) -> Ask {
        let mut peak = stated.unwrap_or(wants.total / UNKNOWN);
        let processes = wants.processes.clamp(1, MOST_PROCESSES);
        if wants.devices > 1 {
            // What does not fit here goes to its other devices.
            let context = self.about(device).map_or(0, |it| it.context);
            peak = peak.min(wants.total.saturating_sub(context.saturating_mul(u64::from(processes))));
        }
        let said = timed(entry, wants);
        let backing = match wants.managed {
            true => Backing::Managed {
                // Where nothing is known of what a turn touches: all of it.
                working_set: peak.min(wants.total),
            },
            // What is pushed off the device is charged to the job's control group, all of it at
            // worst.
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

    /// What of the device is taken by a process that runs already and may have `share`.
    pub fn fixed(&self, wants: &Wants, device: DeviceId, share: u64) -> u64 {
        let context = self.about(device).map_or(0, |it| it.context);
        // What a managed job takes is not the device's.
        if wants.managed {
            context
        } else {
            share.saturating_add(context)
        }
    }

    /// A client begins on a device that is in no book, and is in none either: nothing is said of
    /// its memory, and nothing forbidden.
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

    /// A client may begin.
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
        // What a managed job takes is not the device's.
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

    /// NVML has told what is free.
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

    /// One process less of a job.
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

    /// A user counts for so many from now on.
    pub fn weigh(&mut self, name: &str, weight: u32) {
        let user = self.user(name);
        match weight {
            0 | 1 => self.weights.remove(name),
            _ => self.weights.insert(name.to_string(), weight),
        };
        self.tell(Event::Weight(user, weight));
        self.carry_out();
    }

    /// A process ended, and its job with it, if that is the last one: others can have its memory
    /// from now on.
    pub fn frees(&mut self, pid: u32, share: u64) {
        if self.freed.len() == FREED {
            self.freed.pop_front();
        }
        let at = clock::now();
        self.freed.push_back(FreedRow { pid, share, at });
    }

    /// Carries out what the machine decided. It is in the ledger before anybody acts on it.
    pub fn carry_out(&mut self) {
        let out = std::mem::take(&mut self.out);
        self.chooses(&out);
        for decision in &out {
            let counted = match decision {
                Decision::Admit { job, .. } => {
                    // Counted as it begins: until then nobody knows whether it does.
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
                    let cramped = cramped.map_or(String::new(), either::reason);
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

    /// What jobs may count on that said nothing: what they have and what is free now.
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

    /// A job gets no memory, and its processes hear why.
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

    /// Writes down what is so, if it is not.
    fn keep(&mut self) {
        if self.ledger.take_stale() {
            self.ledger.write(self.page().as_ref());
        }
    }

    /// What the next broker is to know; `None`: nothing.
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

    /// The last page stays: those who run on are in it.
    pub fn close(&mut self) {
        self.keep();
        self.ledger.close();
        self.known.close();
    }
}

/// How long a job was said to run, by a person or by its profile, ns.
fn timed(entry: &Entry, wants: &Wants) -> Option<Ns> {
    match wants.duration.as_deref() {
        Some("short") => Some(Class::Short.expected()),
        Some("long") => Some(Class::Long.expected()),
        Some(_) => Some(Class::Medium.expected()),
        None => entry.loaded.as_ref().map(|profile| profile.ran).filter(|ran| *ran > 0),
    }
}

/// Of a command line so much is written down where many may stand, bytes.
const COMMAND: usize = 1024;

/// At most so many bytes of a text, without line breaks and the like: what is written down is
/// bounded.
pub fn brief(text: &str, bytes: usize) -> String {
    let mut cut = bytes.min(text.len());
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text[..cut].chars().map(plain).collect()
}

/// What a job was said to take, by a person or by its profile.
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
