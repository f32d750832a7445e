//! Admission as the daemon drives it: clients' wishes go to the core, its decisions go to their seats.
//!
//! Touched by the control thread, which tells of every client's coming, wish and end, and by whoever answers `weft queue`. Nothing here waits. What holds: a
//! client's seat is written only here; a client that is gone holds nothing; a client that never asked is in nobody's way and in no book.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::thread::futex;
use serde::{Deserialize, Serialize};

use super::clock;
use super::registry::Entry;
use crate::core::admission::{
    Admission, Ask, Backing, Class, Config, Decision, Device, DeviceId, Event, Job, Lack, Need, Policy, User,
};
use crate::protocol::Ns;
use crate::protocol::control::{ToClient, Wants};
use crate::protocol::seat::Standing;
use crate::transport::server::ToTheClient;

/// A job of which nothing is known is let in with its total divided by this, and gets more as it asks for more: 1.25 GB of 80. What it takes in the end is known
/// only from a run, and guarding a large guess would keep others out for nothing.
const UNKNOWN: u64 = 64;

/// No context is taken for larger than this part of a device: then others than weft's jobs hold memory.
const LARGEST_CONTEXT: u64 = 8;

/// Admission, for all threads.
#[derive(Debug, Clone)]
pub struct Desk {
    book: Arc<Mutex<Book>>,
}

/// The answer of `weft queue`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// The order in force.
    pub policy: String,
    /// Devices that jobs asked for.
    pub devices: Vec<DeviceRow>,
    /// Who has memory.
    pub running: Vec<RunningRow>,
    /// Who waits, next first.
    pub waiting: Vec<WaitingRow>,
    /// Jobs admitted so far.
    pub admitted: u64,
    /// Of those, how many had to wait.
    pub waited: u64,
    /// Jobs that could never run.
    pub refused: u64,
    /// Times a job wanted more than was free.
    pub denied: u64,
}

/// A device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// As the driver says.
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
    /// Bytes a context takes, as measured; 0: not yet.
    pub context: u64,
    /// Bytes that others than weft's jobs hold, as measured when a job began last.
    pub foreign: u64,
    /// Bytes that are nobody's.
    pub free: u64,
}

/// A job that was admitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningRow {
    /// Its processes' clients.
    pub clients: Vec<u64>,
    /// Its first process.
    pub pid: u32,
    /// Who.
    pub user: String,
    /// 0 to 9.
    pub priority: u8,
    /// Bytes it may have, contexts included.
    pub share: u64,
    /// Bytes it holds, contexts left out.
    pub held: u64,
    /// Seconds since it was admitted.
    pub since_s: f64,
    /// The command line.
    pub command: String,
}

/// A job that waits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitingRow {
    /// 1 is next.
    pub position: u64,
    /// Its processes' clients.
    pub clients: Vec<u64>,
    /// Its first process.
    pub pid: u32,
    /// Who.
    pub user: String,
    /// 0 to 9.
    pub priority: u8,
    /// Bytes it needs, contexts included.
    pub needs: u64,
    /// How long it is expected to run: short, medium or long.
    pub duration: String,
    /// Seconds that it has waited.
    pub waited_s: f64,
    /// Why.
    pub reason: String,
    /// Seconds until it is expected to begin, if anything is expected.
    pub begins_s: Option<f64>,
    /// The command line.
    pub command: String,
}

#[derive(Debug)]
struct Member {
    entry: Arc<Entry>,
    sender: ToTheClient,
}

#[derive(Debug)]
struct Gang {
    name: String,
    user: String,
    stated: bool,
    managed: bool,
    processes: u32,
    members: BTreeMap<u64, Member>,
}

#[derive(Debug)]
struct Book {
    policy: Policy,
    machine: Admission,
    gangs: HashMap<Job, Gang>,
    clients: HashMap<u64, Job>,
    devices: Vec<(String, Device)>,
    users: Vec<String>,
    next: u64,
    beat: u64,
    sums: [u64; 4],
    out: Vec<Decision>,
}

const ADMITTED: usize = 0;
const WAITED: usize = 1;
const REFUSED: usize = 2;
const DENIED: usize = 3;

impl Desk {
    /// With nobody.
    pub fn new(policy: Policy) -> Desk {
        let config = Config {
            policy,
            host_memory: host_memory(),
            ..Config::default()
        };
        Desk {
            book: Arc::new(Mutex::new(Book {
                policy,
                machine: Admission::new(config),
                gangs: HashMap::new(),
                clients: HashMap::new(),
                devices: Vec::new(),
                users: Vec::new(),
                next: 0,
                beat: 0,
                sums: [0; 4],
                out: Vec::new(),
            })),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client is about to touch a device.
    pub fn wants(&self, entry: &Arc<Entry>, sender: &ToTheClient, wants: Wants) {
        self.book().wants(entry, sender, wants);
    }

    /// A client wants more than its share.
    pub fn more(&self, client: u64, bytes: u64) {
        let mut book = self.book();
        let Some(job) = book.clients.get(&client).copied() else {
            return;
        };
        book.tell(Event::Grows(job, bytes));
        let before = book.sums[DENIED];
        book.carry_out();
        let denied = book.sums[DENIED] > before;
        if let Some(member) = book.gangs.get(&job).and_then(|gang| gang.members.get(&client)) {
            let seat = &member.entry.lane.seat;
            if !denied {
                seat.share.fetch_add(bytes, Ordering::AcqRel);
            }
            seat.answers.fetch_add(1, Ordering::AcqRel);
            wake(&seat.answers);
        }
    }

    /// A client's first context is there.
    pub fn context(&self, client: u64, free: u64) {
        self.book().context(client, free);
    }

    /// A client is gone, or waits no more.
    pub fn gone(&self, client: u64) {
        let mut book = self.book();
        let Some(job) = book.clients.remove(&client) else {
            return;
        };
        if let Some(gang) = book.gangs.get_mut(&job) {
            if let Some(member) = gang.members.remove(&client) {
                // Should it ask again, nothing was said yet.
                let seat = &member.entry.lane.seat;
                seat.standing.store(Standing::Unknown as u32, Ordering::Release);
            }
            if gang.members.is_empty() {
                book.gangs.remove(&job);
            }
        }
        match book.gangs.contains_key(&job) {
            true => book.tell(Event::Leaves(job)),
            false => book.tell(Event::Ends(job)),
        }
        book.carry_out();
    }

    /// Another priority.
    pub fn priority(&self, client: u64, priority: u8) {
        let mut book = self.book();
        if let Some(job) = book.clients.get(&client).copied() {
            book.tell(Event::Priority(job, priority));
            book.carry_out();
        }
    }

    /// Time went by. Called some times a second.
    pub fn tick(&self) {
        let mut book = self.book();
        if book.machine.count().0 == 0 {
            return;
        }
        book.beat += 1;
        let beat = book.beat;
        if book.machine.next_wake().is_some_and(|at| at <= clock::now()) {
            book.tell(Event::Tick);
            book.carry_out();
        }
        for gang in book.gangs.values() {
            for member in gang.members.values() {
                member.entry.lane.seat.beat.store(beat, Ordering::Relaxed);
            }
        }
    }

    /// For people.
    pub fn queue(&self) -> Queue {
        self.book().queue()
    }
}

impl Book {
    fn tell(&mut self, event: Event) {
        self.machine.handle(clock::now(), event, &mut self.out);
    }

    fn device(&mut self, wants: &Wants) -> DeviceId {
        if let Some((_, device)) = self.devices.iter().find(|(uuid, _)| *uuid == wants.uuid) {
            return device.id;
        }
        let device = Device::new(DeviceId(self.devices.len() as u32), wants.total);
        self.devices.push((wants.uuid.clone(), device));
        self.tell(Event::Device(device));
        device.id
    }

    fn user(&mut self, name: &str) -> User {
        let at = self.users.iter().position(|known| known == name).unwrap_or_else(|| {
            self.users.push(name.to_string());
            self.users.len() - 1
        });
        User(at as u32)
    }

    fn wants(&mut self, entry: &Arc<Entry>, sender: &ToTheClient, wants: Wants) {
        if self.clients.contains_key(&entry.client) {
            return;
        }
        let device = self.device(&wants);
        let member = Member {
            entry: Arc::clone(entry),
            sender: sender.clone(),
        };
        let known = self
            .gangs
            .iter()
            .find(|(_, gang)| !wants.gang.is_empty() && gang.name == wants.gang)
            .map(|(job, _)| *job);
        if let Some(job) = known {
            self.clients.insert(entry.client, job);
            if let Some(gang) = self.gangs.get_mut(&job) {
                gang.members.insert(entry.client, member);
            }
            match wants.runs {
                Some(share) => {
                    let ask = self.ask(job, entry, &wants, device);
                    self.tell(Event::Holds(ask, device, share));
                    self.seat(entry.client, share);
                }
                None => {
                    self.tell(Event::Joins(job));
                    if let Some(share) = self.part(job) {
                        self.seat(entry.client, share);
                    } else {
                        self.waits(job);
                    }
                }
            }
            self.carry_out();
            return;
        }
        self.next += 1;
        let job = Job(self.next);
        let ask = self.ask(job, entry, &wants, device);
        let gang = Gang {
            name: wants.gang.clone(),
            user: wants.user.clone(),
            stated: stated(entry, &wants).is_some(),
            managed: wants.managed,
            processes: ask.need.processes,
            members: BTreeMap::from([(entry.client, member)]),
        };
        self.gangs.insert(job, gang);
        self.clients.insert(entry.client, job);
        match wants.runs {
            Some(share) => {
                self.tell(Event::Holds(ask, device, share));
                self.seat(entry.client, share);
                self.carry_out();
            }
            None => {
                self.tell(Event::Asks(ask));
                self.carry_out();
                if self.machine.waits(job) {
                    self.sums[WAITED] += 1;
                    self.waits(job);
                }
            }
        }
    }

    fn ask(&mut self, job: Job, entry: &Entry, wants: &Wants, device: DeviceId) -> Ask {
        let peak = stated(entry, wants).unwrap_or(wants.total / UNKNOWN);
        let class = match wants.duration.as_deref() {
            Some("short") => Class::Short,
            Some("long") => Class::Long,
            _ => Class::Medium,
        };
        let backing = match wants.managed {
            true => Backing::Managed {
                // Where nothing is known of what a turn touches: all of it.
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
                processes: wants.processes.clamp(1, 1024),
                expected: class.expected(),
                backing,
            },
            devices: vec![device],
        }
    }

    /// What one process of an admitted job may have, contexts left out.
    fn part(&self, job: Job) -> Option<u64> {
        let (device, share) = self.machine.share(job)?;
        let gang = self.gangs.get(&job)?;
        let context = self.devices.get(device.0 as usize).map_or(0, |(_, it)| it.context);
        let processes = u64::from(gang.processes.max(gang.members.len() as u32)).max(1);
        Some((share / processes).saturating_sub(context))
    }

    /// A client may begin.
    fn seat(&self, client: u64, share: u64) {
        let Some(job) = self.clients.get(&client) else { return };
        let Some(gang) = self.gangs.get(job) else { return };
        let Some(member) = gang.members.get(&client) else {
            return;
        };
        let seat = &member.entry.lane.seat;
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
        seat.share.store(share, Ordering::Relaxed);
        seat.ceiling.store(ceiling, Ordering::Relaxed);
        seat.stated.store(u32::from(gang.stated), Ordering::Relaxed);
        seat.standing.store(Standing::Admitted as u32, Ordering::Release);
        wake(&seat.standing);
    }

    fn free(&self, device: DeviceId) -> u64 {
        let about = self.devices.get(device.0 as usize).map(|(_, device)| device);
        about.map_or(0, |about| self.machine.load(device).free(about))
    }

    /// Says to a job's processes that they wait, where, and why.
    fn waits(&self, job: Job) {
        let queue = self.queue();
        let Some(gang) = self.gangs.get(&job) else { return };
        let row = queue
            .waiting
            .iter()
            .find(|row| row.clients.iter().any(|it| gang.members.contains_key(it)));
        let Some(row) = row else { return };
        for member in gang.members.values() {
            let seat = &member.entry.lane.seat;
            if seat.standing() == Standing::Waits {
                continue;
            }
            let line = format!(
                "waits for device memory, number {} of {} in the queue: {} (weft queue shows it; Ctrl-C ends the job)",
                row.position,
                queue.waiting.len(),
                row.reason
            );
            let _ = member.sender.send(ToClient::Said(line));
            seat.position.store(row.position as u32, Ordering::Relaxed);
            seat.standing.store(Standing::Waits as u32, Ordering::Release);
            wake(&seat.standing);
        }
    }

    /// Carries out what the machine decided.
    fn carry_out(&mut self) {
        for decision in std::mem::take(&mut self.out) {
            match decision {
                Decision::Admit { job, .. } => {
                    self.sums[ADMITTED] += 1;
                    let Some(part) = self.part(job) else { continue };
                    let clients: Vec<u64> = self
                        .gangs
                        .get(&job)
                        .map(|gang| gang.members.keys().copied().collect())
                        .unwrap_or_default();
                    for client in clients {
                        self.seat(client, part);
                    }
                }
                Decision::Refuse { job, why } => {
                    self.sums[REFUSED] += 1;
                    let Some(gang) = self.gangs.remove(&job) else { continue };
                    for (client, member) in gang.members {
                        self.clients.remove(&client);
                        log::warn!("client {client} can never run here: {why}");
                        let _ = member
                            .sender
                            .send(ToClient::Said(format!("this job can never run here: {why}")));
                        let seat = &member.entry.lane.seat;
                        seat.standing.store(Standing::Refused as u32, Ordering::Release);
                        wake(&seat.standing);
                    }
                }
                Decision::Grant { .. } => {}
                Decision::Deny { job, bytes, free } => {
                    self.sums[DENIED] += 1;
                    log::info!("{job:?} wanted {bytes} bytes more, {free} are free");
                }
            }
        }
    }

    /// What a context takes is what nobody is known to hold when one has just been made. The first is measured; what is more than that later is others'.
    fn context(&mut self, client: u64, free: u64) {
        let Some(job) = self.clients.get(&client).copied() else {
            return;
        };
        let Some((device, _)) = self.machine.share(job) else {
            return;
        };
        let mut held = 0u64;
        let mut contexts = 0u64;
        for (other, gang) in &self.gangs {
            if self.machine.share(*other).is_some_and(|(at, _)| at == device) {
                for member in gang.members.values() {
                    held = held.saturating_add(member.entry.lane.counters.memory.load(Ordering::Relaxed));
                    contexts += 1;
                }
            }
        }
        let Some((_, about)) = self.devices.get_mut(device.0 as usize) else {
            return;
        };
        let unknown = about.memory.saturating_sub(free).saturating_sub(held);
        if about.context == 0 && contexts == 1 && unknown <= about.memory / LARGEST_CONTEXT {
            about.context = unknown;
            about.foreign = 0;
        } else {
            about.foreign = unknown.saturating_sub(about.context.saturating_mul(contexts));
        }
        let about = *about;
        let first = contexts == 1;
        self.tell(Event::Device(about));
        if first && about.foreign == 0 {
            // It was let in before a context's size was known.
            self.tell(Event::Grows(job, about.context));
        }
        self.carry_out();
    }

    fn queue(&self) -> Queue {
        let now = clock::now();
        let seconds = |ns: Ns| ns as f64 / 1e9;
        let view = self.machine.view();
        let forecast = self.machine.forecast();
        let about = |job: Job| {
            let gang = self.gangs.get(&job);
            let first = gang.and_then(|gang| gang.members.values().next());
            (
                gang.map(|gang| gang.members.keys().copied().collect())
                    .unwrap_or_default(),
                first.map_or(0, |member| member.entry.pid),
                gang.map(|gang| gang.user.clone()).unwrap_or_default(),
                first.map(|member| member.entry.command.clone()).unwrap_or_default(),
            )
        };
        let devices = view.devices.iter().map(|(device, _, free)| DeviceRow {
            uuid: self
                .devices
                .get(device.id.0 as usize)
                .map(|(uuid, _)| uuid.clone())
                .unwrap_or_default(),
            memory: device.memory,
            context: device.context,
            foreign: device.foreign,
            free: *free,
        });
        let running = view.running.iter().map(|row| {
            let (clients, pid, user, command) = about(row.ask.job);
            let held = self.gangs.get(&row.ask.job).map_or(0, |gang| {
                gang.members
                    .values()
                    .map(|member| member.entry.lane.counters.memory.load(Ordering::Relaxed))
                    .sum()
            });
            RunningRow {
                clients,
                pid,
                user,
                command,
                priority: row.ask.priority,
                share: row.share,
                held,
                since_s: seconds(now.saturating_sub(row.since)),
            }
        });
        let waiting = view.waiting.iter().map(|row| {
            let (clients, pid, user, command) = about(row.ask.job);
            let reason = match (row.lack, row.behind) {
                (Some(Lack::Device), _) => format!(
                    "needs {} of device memory, {} are free",
                    size(row.needs),
                    size(row.free)
                ),
                (Some(Lack::Host), _) => "there is too little host memory for another managed job".to_string(),
                (Some(Lack::Link), _) => "moving one more managed job between turns would take too long".to_string(),
                (None, Some(job)) => {
                    let (_, pid, ..) = about(job);
                    format!(
                        "needs {}; {} are free and kept for process {pid}, whose turn it is",
                        size(row.needs),
                        size(row.free)
                    )
                }
                (None, None) => "its turn has not come".to_string(),
            };
            WaitingRow {
                position: row.position as u64,
                clients,
                pid,
                user,
                command,
                priority: row.ask.priority,
                needs: row.needs,
                duration: Class::of(row.ask.need.expected).name().to_string(),
                waited_s: seconds(now.saturating_sub(row.came)),
                reason,
                begins_s: forecast
                    .get(&row.ask.job)
                    .map(|expected| seconds(expected.begin.saturating_sub(now))),
            }
        });
        Queue {
            policy: self.policy.to_string(),
            devices: devices.collect(),
            running: running.collect(),
            waiting: waiting.collect(),
            admitted: self.sums[ADMITTED],
            waited: self.sums[WAITED],
            refused: self.sums[REFUSED],
            denied: self.sums[DENIED],
        }
    }
}

/// What a job was said to take, by a person or by its profile.
fn stated(entry: &Entry, wants: &Wants) -> Option<u64> {
    let learnt = entry
        .loaded
        .as_ref()
        .map(|profile| profile.memory_peak)
        .filter(|peak| *peak > 0);
    wants.memory.or(learnt)
}

/// What managed jobs may take of the host together: nine tenths of what is available when the broker starts, so that the rest of the machine lives on.
fn host_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024 / 10 * 9)
}

fn size(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1u32 << 30))
}

fn wake(word: &std::sync::atomic::AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
