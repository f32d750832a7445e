// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attached clients, and the last ones that ended.
//!
//! An entry exists from attach to end. All threads of the broker look clients up here; this module
//! makes no decisions.
#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use weft_profiles::{GpuIdentity, Profile};

use crate::base::clock;
use crate::base::job_end::JobEnd;
use crate::base::process::{self, Process};
use crate::server::{ToTheClient, UserPage};
use weft_api::job_name;
use weft_api::outcome::Requests;
use weft_api::plain_text::clean;
use weft_api::profile_path;
use weft_api::status::{ClientStatus, EndedStatus, Ending, EvictionStatus, Exit, ExitCounts, PodContainer};
use weft_protocol::admission_slot::AdmissionState;
use weft_protocol::control::ToClient;
use weft_protocol::fit::{MIN_LAUNCHES, ProfileFit};
use weft_protocol::lane::Mode;
use weft_protocol::latency_budget::LatencyBudget;
use weft_protocol::transport::map::SharedLane;

/// Most ended clients remembered.
const HISTORY: usize = 32;

/// Most ended clients whose processes' ends are awaited at once: each holds a descriptor.
const MOST_OPEN_ENDS: usize = 256;

/// Longest wait for the end of a process whose client ended.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Interval of checks for handled deaths: a quarter of the control thread's round.
const DEATHS_PERIOD: Duration = Duration::from_millis(5);

/// Most notes kept per client.
const NOTES: usize = 8;

/// Most kernel names kept per client: those of the kernels that it launched first.
const KERNEL_NAMES: usize = 256;

/// Longest kept name of a kernel, characters.
const LONGEST_KERNEL: usize = 60;

/// Longest kept note, characters.
pub const LONGEST_NOTE: usize = 400;

/// One client.
#[derive(Debug)]
pub struct Entry {
    /// Client number.
    pub client: u64,
    /// Process id from the kernel, else as the client reports it: [`Entry::process`].
    pub pid: u32,
    /// Whether `pid` is of another pid namespace and so has no meaning here.
    unseen: bool,
    /// The command line.
    pub command: String,
    /// The job's name; several processes may share it.
    pub name: String,
    /// The profile's name, as sent by the client.
    pub profile: Option<String>,
    pub loaded: Option<Arc<Profile>>,
    /// Whether the client takes stage-1 samples.
    pub profiling: bool,
    /// Time of its attachment.
    since: Instant,
    /// Time of its request for its lines, from its exit handlers: it runs no longer.
    until: OnceLock<Instant>,
    pub lane: Arc<SharedLane>,
    /// Present priority, 0 to 9.
    pub priority: AtomicU8,
    /// Whether the client sent a goodbye.
    pub goodbye: AtomicBool,
    /// Whether the client has ended, so its connection must be dropped.
    pub over: AtomicBool,
    /// The end of its process.
    pub end: Arc<JobEnd>,
    /// Ids of the containers that its process was in when it attached, the outermost first.
    pub containers: Vec<String>,
    /// Its container in Kubernetes, once known.
    pub pod: OnceLock<PodContainer>,
    /// Kernels the client named.
    pub kernels: AtomicU64,
    /// Named kernels whose times the profile has.
    known: AtomicU64,
    /// Written by the scheduler thread.
    pub figures: Figures,
    /// User id from the kernel.
    pub uid: u32,
    /// The per-user page of a shared broker; `None` in a private one.
    pub user_page: Option<Arc<UserPage>>,
    /// Its present slowdown budget as a foreground job.
    budget: Mutex<LatencyBudget>,
    talk: Mutex<Talk>,
    /// Channel for messages to the client, once it is attached.
    voice: Mutex<Option<ToTheClient>>,
}

/// Figures of a client, written by the scheduler thread.
#[derive(Debug, Default)]
pub struct Figures {
    /// A [`Mode`].
    pub mode: AtomicU64,
    /// Credit ever granted, ns.
    pub granted: AtomicU64,
    /// Credit ever taken back, ns, in two's complement.
    pub revoked: AtomicU64,
    /// Samples received.
    pub samples: AtomicU64,
    /// Records received.
    pub records: AtomicU64,
    /// Records lost.
    pub lost: AtomicU64,
    /// Managed memory on the device, bytes; an estimate.
    pub resident: AtomicU64,
    /// Managed memory that moved to the device by page faults so far, bytes; an estimate.
    pub faulted: AtomicU64,
    /// Working set, bytes.
    pub working_set: AtomicU64,
    /// Measured rate of moves to the device, bytes/s; 0: not measured.
    pub to_device: AtomicU64,
    /// Measured rate of moves to the host, bytes/s; 0: not measured.
    pub to_host: AtomicU64,
    /// Length of turns with the device's memory, ns; 0: none.
    pub turn: AtomicU64,
    /// Time between two turns, ns; 0: none.
    pub swapped_out: AtomicU64,
    /// Value that `swapped_out` would need if turns are too short for the memory that they move,
    /// ns; 0: they are not.
    pub swapped_out_needed: AtomicU64,
    pub turns: AtomicU64,
    pub has_turn: AtomicBool,
}

#[derive(Debug, Default)]
struct Talk {
    /// Name that the processes of its job share; empty: the client sent none.
    gang: String,
    device: Option<GpuIdentity>,
    notes: VecDeque<String>,
    /// Names of its kernels, [`KERNEL_NAMES`] at most.
    kernels: HashMap<u64, String>,
    trouble: Option<String>,
}

/// The parts of a new [`Entry`].
#[derive(Debug)]
pub struct NewEntry {
    pub client: u64,
    pub pid: u32,
    pub command: String,
    pub profile: Option<String>,
    pub loaded: Option<Arc<Profile>>,
    /// Reason why there is no profile.
    pub trouble: Option<String>,
    pub profiling: bool,
    pub priority: u8,
    pub lane: Arc<SharedLane>,
}

impl Entry {
    /// Makes an entry of this process's own user.
    pub fn new(new_client: NewEntry) -> Entry {
        Entry {
            client: new_client.client,
            pid: new_client.pid,
            unseen: false,
            name: job_name::of(None, &new_client.command),
            command: new_client.command,
            profile: new_client.profile,
            loaded: new_client.loaded,
            profiling: new_client.profiling,
            since: Instant::now(),
            until: OnceLock::new(),
            lane: new_client.lane,
            priority: AtomicU8::new(new_client.priority),
            goodbye: AtomicBool::new(false),
            over: AtomicBool::new(false),
            end: Arc::new(JobEnd::new(Process::unseen(new_client.pid), 0, None)),
            containers: Vec::new(),
            pod: OnceLock::new(),
            kernels: AtomicU64::new(0),
            known: AtomicU64::new(0),
            figures: Figures::default(),
            uid: rustix::process::geteuid().as_raw(),
            user_page: None,
            budget: Mutex::default(),
            voice: Mutex::default(),
            talk: Mutex::new(Talk {
                trouble: new_client.trouble,
                ..Talk::default()
            }),
        }
    }

    /// Sets the job's name to the one that its user chose, if any.
    pub fn called(self, name: Option<&str>) -> Entry {
        let name = job_name::of(name, &self.command);
        Entry { name, ..self }
    }

    /// Sets the client's slowdown budget as a foreground job.
    pub fn budgeted(self, budget: LatencyBudget) -> Entry {
        Entry {
            budget: Mutex::new(budget.clamped()),
            ..self
        }
    }

    /// The client's slowdown budget as a foreground job, as its user set it.
    pub fn budget(&self) -> LatencyBudget {
        *self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the fields of the budget that `change` sets.
    pub fn set_budget(&self, change: LatencyBudget) {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        *budget = change.clamped().or(*budget);
    }

    /// Marks the process as not visible here.
    pub fn unseen(self) -> Entry {
        Entry { unseen: true, ..self }
    }

    /// Sets the ids of the containers that its process is in.
    pub fn within(self, containers: Vec<String>) -> Entry {
        Entry { containers, ..self }
    }

    /// Watches the process through this pidfd.
    pub fn watched(self, pidfd: Option<Arc<OwnedFd>>) -> Entry {
        let end = JobEnd::new(self.process(), self.uid, pidfd);
        Entry {
            end: Arc::new(end),
            ..self
        }
    }

    /// The process; without a start time if it is not visible here.
    pub fn process(&self) -> Process {
        match self.unseen {
            true => Process::unseen(self.pid),
            false => Process::of(self.pid),
        }
    }

    /// UUID of the client's device, once known.
    pub fn device_uuid(&self) -> Option<String> {
        self.talk().device.as_ref().map(|gpu| gpu.uuid.clone())
    }

    /// Sets the user and the per-user page.
    pub fn of(self, uid: u32, user_page: Option<Arc<UserPage>>) -> Entry {
        Entry { uid, user_page, ..self }
    }

    /// Fair-share label and gang name, which no other user can claim. `user` and `gang` are the
    /// labels that the job sent.
    ///
    /// In a shared broker the label is the user id from the kernel. In a private broker all jobs
    /// are of one user, and the label that they sent divides them.
    pub fn identity(&self, user: &str, gang: &str) -> (String, String) {
        identity(self.uid, self.user_page.is_some(), user, gang)
    }

    /// Stores the name that the processes of its job share.
    pub fn set_gang(&self, gang: &str) {
        self.talk().gang = gang.to_string();
    }

    /// Name that the processes of its job share; empty: the client sent none.
    pub fn gang(&self) -> String {
        self.talk().gang.clone()
    }

    /// Counts a kernel that was just named, or a graph of these kernels.
    pub fn named(&self, hash: u64, kernels: &[u64]) {
        self.kernels.fetch_add(1, Ordering::Relaxed);
        let known = |hash: u64| {
            let profile = self.loaded.as_ref();
            profile.is_some_and(|profile| profile.kernel(hash).is_some_and(|kernel| kernel.time.count() > 0))
        };
        // A graph's time is the sum of its kernels' times.
        if known(hash) || !kernels.is_empty() && kernels.iter().all(|kernel| known(*kernel)) {
            self.known.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Stores the name of a kernel.
    pub fn call_kernel(&self, hash: u64, name: &str) {
        let mut talk = self.talk();
        if talk.kernels.len() < KERNEL_NAMES {
            talk.kernels.insert(hash, clean(name, LONGEST_KERNEL));
        }
    }

    /// Name of a kernel, from its profile, else as the client sent it.
    pub fn kernel_name(&self, hash: u64) -> Option<String> {
        let known = self.loaded.as_ref().and_then(|profile| profile.kernel(hash));
        match known {
            Some(kernel) => Some(clean(&kernel.id.short_name(), LONGEST_KERNEL)),
            None => self.talk().kernels.get(&hash).cloned(),
        }
    }

    /// Hashes of the kernels that have names.
    pub fn named_kernels(&self) -> BTreeSet<u64> {
        let of_profile = self.loaded.iter().flat_map(|profile| &profile.kernels);
        let mut hashes: BTreeSet<u64> = of_profile.map(|kernel| kernel.hash).collect();
        hashes.extend(self.talk().kernels.keys());
        hashes
    }

    /// Line that the profile is of other code, after `least` launches. A profile without kernels
    /// only declares memory and always fits.
    pub fn misfit(&self, least: u64) -> Option<String> {
        let profile = self.loaded.as_ref()?;
        let counters = &self.lane.counters;
        let launches = counters.launches.load(Ordering::Relaxed) + counters.graph_launches.load(Ordering::Relaxed);
        let fit = ProfileFit {
            known: self.known.load(Ordering::Relaxed),
            seen: self.kernels.load(Ordering::Relaxed),
        };
        let judged = launches >= least && fit.is_poor() && profile.kernels.iter().any(|known| known.time.count() > 0);
        let called = profile_path::short(self.profile.as_deref().unwrap_or_default());
        judged.then(|| fit.line(&clean(called, LONGEST_NOTE)))
    }

    /// Stores a line from the client for its user.
    pub fn note(&self, line: &str) {
        let mut talk = self.talk();
        if talk.notes.len() == NOTES {
            talk.notes.pop_front();
        }
        talk.notes.push_back(clean(line, LONGEST_NOTE));
    }

    /// Sets the device. If the profile does not fit it, returns the reason.
    pub fn device(&self, gpu: &GpuIdentity) -> Option<String> {
        let mut talk = self.talk();
        talk.device = Some(gpu.clone());
        let trouble = self.loaded.as_ref()?.check_gpu(gpu).err()?.to_string();
        let trouble = clean(&trouble, LONGEST_NOTE);
        talk.trouble = Some(trouble.clone());
        Some(trouble)
    }

    /// The client's device, if known.
    pub fn gpu(&self) -> Option<GpuIdentity> {
        self.talk().device.clone()
    }

    /// Notes that its process is in its exit handlers, which it may leave many seconds later.
    pub fn stops(&self) {
        let _ = self.until.set(Instant::now());
    }

    /// Time from its attachment to its exit, so far, ns. All pages show this one.
    pub fn ran(&self) -> u64 {
        let until = self.until.get().copied().unwrap_or_else(Instant::now);
        u64::try_from(until.saturating_duration_since(self.since).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Time since its exit handlers; 0: it runs, or ends without them.
    pub fn stopped_ago(&self) -> Duration {
        self.until.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Reason why the client runs without its profile.
    pub fn profile_trouble(&self) -> Option<String> {
        self.talk().trouble.clone()
    }

    /// Sets the channel for messages to the client.
    pub fn speaks_by(&self, sender: ToTheClient) {
        *self.voice.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }

    /// Sends a message. Returns whether it was sent.
    pub fn say(&self, message: ToClient) -> bool {
        let voice = self.voice.lock().unwrap_or_else(PoisonError::into_inner);
        voice.as_ref().is_some_and(|sender| sender.send(message).is_ok())
    }

    fn talk(&self) -> std::sync::MutexGuard<'_, Talk> {
        // A panic elsewhere leaves the values intact.
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane's counters over the time of the job.
    pub fn tallies(&self) -> LaneTallies {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.lane.counters;
        let moved = [&counters.prefetched, &counters.evicted, &self.figures.faulted];
        LaneTallies {
            launches: read(&counters.launches).wrapping_add(read(&counters.graph_launches)),
            gate_ns: read(&counters.waited),
            paging_ns: read(&counters.memory_waited),
            moved_bytes: moved.into_iter().fold(0, |sum, part| sum.wrapping_add(read(part))),
            forced: read(&counters.waits_expired),
            waits_for_memory: self.lane.admission_slot.state() == AdmissionState::Waits,
        }
    }

    /// The client's status, for people.
    pub fn status(&self) -> ClientStatus {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.lane.counters;
        let reports = &self.lane.reports;
        let talk = self.talk();
        let (issued, settled) = (read(&reports.issued), read(&reports.completed));
        ClientStatus {
            client: self.client,
            pid: self.pid,
            uid: self.uid,
            gang: talk.gang.clone(),
            elsewhere: self.unseen,
            name: self.name.clone(),
            command: self.command.clone(),
            pod: self.pod.get().cloned(),
            priority: self.priority.load(Ordering::Relaxed),
            mode: match self.lane.admission_slot.state() {
                AdmissionState::Waits => "waits for memory",
                _ => mode_name(Mode::from_word(read(&self.figures.mode) as u32)),
            }
            .to_string(),
            slowdown_allowed: None,
            slowdown_measured: None,
            slo_ns: None,
            at_least: None,
            waits_for_memory_s: None,
            profile: self
                .profile
                .as_deref()
                .map(|called| clean(profile_path::short(called), LONGEST_NOTE)),
            profile_trouble: talk.trouble.clone().or_else(|| self.misfit(MIN_LAUNCHES)),
            profile_known: read(&self.known),
            profiling: self.profiling,
            attached_s: self.ran() as f64 / 1e9,
            device: talk.device.as_ref().map(ToString::to_string),
            device_uuid: talk.device.as_ref().map(|gpu| gpu.uuid.clone()),
            launches: read(&counters.launches),
            graph_launches: read(&counters.graph_launches),
            transfers: read(&counters.transfers),
            waits: read(&counters.waits),
            waited_ns: read(&counters.waited),
            waits_expired: read(&counters.waits_expired),
            unsplit: read(&counters.unsplit),
            left_behind: read(&counters.left_behind),
            left_failed: read(&counters.left_failed),
            requests: Requests::of(&self.lane.requests),
            waiting: reports.waiting.load(Ordering::Relaxed) == 1,
            stopped: !self.unseen && process::is_stopped(self.pid),
            eviction: EvictionStatus::of(&self.lane.eviction, clock::now()),
            unnamed: read(&counters.unnamed),
            captured: read(&counters.captured),
            troubles: read(&counters.troubles),
            dropped_messages: read(&counters.dropped_messages),
            memory: read(&counters.memory),
            memory_peak: read(&counters.memory_peak),
            memory_request: None,
            memory_limit: None,
            managed: read(&counters.managed),
            managed_own: read(&counters.managed_own),
            host_left: read(&counters.host_left),
            unmanaged: read(&counters.unmanaged),
            resident: read(&self.figures.resident),
            faulted: read(&self.figures.faulted),
            working_set: read(&self.figures.working_set),
            to_device_bytes_per_s: read(&self.figures.to_device),
            to_host_bytes_per_s: read(&self.figures.to_host),
            turn_ns: read(&self.figures.turn),
            swapped_out_ns: read(&self.figures.swapped_out),
            swapped_out_needed_ns: read(&self.figures.swapped_out_needed),
            turns: read(&self.figures.turns),
            has_turn: self.figures.has_turn.load(Ordering::Relaxed),
            prefetched: read(&counters.prefetched),
            evicted: read(&counters.evicted),
            discarded: read(&counters.discarded),
            page_ops_refused: read(&counters.refused),
            page_ops_late: read(&counters.late),
            memory_waited_ns: read(&counters.memory_waited),
            memory_waits_expired: read(&counters.memory_waits_expired),
            credit_ns: self.lane.orders.credit.load(Ordering::Relaxed),
            outstanding_ns: issued.saturating_sub(settled),
            granted_ns: read(&self.figures.granted),
            revoked_ns: read(&self.figures.revoked) as i64,
            kernels: read(&self.kernels),
            samples: read(&self.figures.samples),
            records_lost: read(&self.figures.lost),
            notes: talk.notes.iter().cloned().collect(),
            outcome: None,
        }
    }
}

/// Counters of a lane.
#[derive(Debug, Clone, Copy, Default)]
pub struct LaneTallies {
    /// Kernel and graph launches.
    pub launches: u64,
    /// Time that launches were held at the gate, ns.
    pub gate_ns: u64,
    /// Time that launches waited for arriving memory, ns.
    pub paging_ns: u64,
    /// Managed memory moved for it, bytes.
    pub moved_bytes: u64,
    /// Launches that passed the gate without credit.
    pub forced: u64,
    /// Whether it waits for device memory now.
    pub waits_for_memory: bool,
}

/// See [`Entry::identity`].
pub fn identity(uid: u32, shared: bool, user: &str, gang: &str) -> (String, String) {
    let own = uid.to_string();
    let label = if shared || user.is_empty() {
        own
    } else {
        user.to_string()
    };
    let gang = match shared && !gang.is_empty() {
        true => format!("{uid}:{gang}"),
        false => gang.to_string(),
    };
    (label, gang)
}

/// A mode's name, for people.
pub fn mode_name(mode: Option<Mode>) -> &'static str {
    match mode {
        Some(Mode::Alone) => "alone",
        Some(Mode::Foreground) => "foreground",
        Some(Mode::Background) => "background",
        Some(Mode::Free) | None => "free",
    }
}

/// A client of the last broker that ran on: its process, user and number.
pub type EarlierClient = (Process, u32, u64);

/// All clients.
#[derive(Debug, Default)]
pub struct Registry {
    clients: DashMap<u64, Arc<Entry>>,
    ended: Mutex<EndedClients>,
    next: AtomicU64,
    /// Clients of the last broker that did not attach here yet.
    earlier: OnceLock<Mutex<Vec<EarlierClient>>>,
    /// Clients attached so far.
    pub attached: AtomicU64,
    /// Clients that were refused.
    pub refused: AtomicU64,
    goodbyes: AtomicU64,
    vanished: AtomicU64,
    detached: AtomicU64,
    lost: AtomicU64,
    records: AtomicU64,
    /// Rounds of the control thread in which no message was left to read, and no client was dying.
    pub settled: AtomicU64,
}

/// Clients that ended.
#[derive(Debug, Default)]
struct EndedClients {
    /// The last ended clients, newest first.
    last: VecDeque<(EndedStatus, Arc<JobEnd>, Instant)>,
    /// Ends of processes that are not counted yet, oldest first.
    open: VecDeque<(Arc<JobEnd>, Instant)>,
    exits: ExitCounts,
}

impl EndedClients {
    /// Counts the ends that are known, or will never be known.
    fn settle(&mut self) {
        let many = self.open.len().saturating_sub(MOST_OPEN_ENDS);
        let mut place = 0;
        self.open.retain(|(end, since)| {
            place += 1;
            if place <= many || since.elapsed() > END_PATIENCE {
                end.give_up();
            }
            let settled = end.is_settled();
            if settled {
                self.exits.add(end.exit());
            }
            !settled
        });
    }

    /// Makes room for one more: removes the oldest one of the user with the most ended clients.
    fn make_room(&mut self) {
        while self.last.len() >= HISTORY {
            let count = |uid: u32| self.last.iter().filter(|(ended, ..)| ended.last.uid == uid).count();
            let uids = self.last.iter().map(|(ended, ..)| ended.last.uid);
            let most = uids.max_by_key(|uid| count(*uid));
            let oldest = self.last.iter().rposition(|(ended, ..)| Some(ended.last.uid) == most);
            self.last.remove(oldest.unwrap_or(0));
        }
    }
}

/// Counts of clients' ends, and of their records read and lost. `detached` clients had impossible
/// values in their lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    pub goodbyes: u64,
    pub vanished: u64,
    pub detached: u64,
    /// How their processes ended.
    pub exits: ExitCounts,
    pub records: u64,
    pub lost: u64,
}

impl Registry {
    /// A new client number.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of a client of this process and user: the one that the process had at the last
    /// broker, if it had one there, else a new one. `earlier` is called once, for all clients of
    /// that broker.
    pub fn number_of(&self, process: Process, uid: u32, earlier: impl FnOnce() -> Vec<EarlierClient>) -> u64 {
        let earlier = self.earlier.get_or_init(|| {
            let earlier = earlier();
            let last = earlier.iter().map(|(.., number)| *number).max();
            self.next.fetch_max(last.unwrap_or(0), Ordering::Relaxed);
            Mutex::new(earlier)
        });
        let mut earlier = earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let own = |(other, user, _): &EarlierClient| process.start.is_some() && (*other, *user) == (process, uid);
        // A process on several devices had one for each.
        match (
            earlier.iter().filter(|one| own(one)).count(),
            earlier.iter().position(own),
        ) {
            (1, Some(place)) => earlier.swap_remove(place).2,
            _ => self.number(),
        }
    }

    /// Adds a client.
    pub fn add(&self, entry: Arc<Entry>) {
        self.attached.fetch_add(1, Ordering::Relaxed);
        self.clients.insert(entry.client, entry);
    }

    /// The client of this number.
    pub fn get(&self, client: u64) -> Option<Arc<Entry>> {
        self.clients.get(&client).map(|entry| Arc::clone(&entry))
    }

    /// Number of attached clients.
    pub fn count(&self) -> usize {
        self.clients.len()
    }

    /// Number of a user's attached clients.
    pub fn count_of(&self, uid: u32) -> usize {
        self.clients.iter().filter(|entry| entry.uid == uid).count()
    }

    /// All clients, by number.
    pub fn all(&self) -> Vec<Arc<Entry>> {
        let mut all: Vec<_> = self.clients.iter().map(|entry| Arc::clone(&entry)).collect();
        all.sort_by_key(|entry| entry.client);
        all
    }

    /// Device UUID and user of clients with a device, in no order.
    pub fn devices(&self) -> Vec<(String, u32)> {
        let each = self.clients.iter();
        each.filter_map(|entry| Some((entry.device_uuid()?, entry.uid)))
            .collect()
    }

    /// Calls `shows` for each client, in no order.
    pub fn each(&self, mut shows: impl FnMut(&Entry)) {
        self.clients.iter().for_each(|entry| shows(&entry));
    }

    /// Ends a client. Returns false if it had already ended.
    pub fn end(&self, client: u64, ending: Ending) -> bool {
        let Some((_, entry)) = self.clients.remove(&client) else {
            return false;
        };
        entry.over.store(true, Ordering::Release);
        let counter = match ending {
            Ending::Goodbye => &self.goodbyes,
            Ending::Vanished => &self.vanished,
            Ending::Detached => &self.detached,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.lost
            .fetch_add(entry.figures.lost.load(Ordering::Relaxed), Ordering::Relaxed);
        self.records
            .fetch_add(entry.figures.records.load(Ordering::Relaxed), Ordering::Relaxed);
        let mut last = entry.status();
        last.waiting = false;
        // There are no more launches.
        last.profile_trouble = last.profile_trouble.or_else(|| entry.misfit(1));
        let mut ended = self.ended();
        ended.make_room();
        let status = EndedStatus {
            last,
            ending,
            exit: Exit::default(),
            ago_s: 0.0,
        };
        let end = Arc::clone(&entry.end);
        match ending {
            // Its process still runs.
            Ending::Detached => end.give_up(),
            Ending::Goodbye | Ending::Vanished => ended.open.push_back((Arc::clone(&end), Instant::now())),
        }
        ended.last.push_front((status, end, Instant::now()));
        ended.settle();
        true
    }

    /// The last ended clients, newest first.
    pub fn last_ended(&self) -> Vec<EndedStatus> {
        let ended = self.ended();
        let last = ended.last.iter();
        last.map(|(status, end, since)| EndedStatus {
            exit: end.exit(),
            ago_s: since.elapsed().as_secs_f64(),
            ..status.clone()
        })
        .collect()
    }

    /// Waits until the end of each client whose process has ended by now is handled, at most
    /// `longest`.
    pub fn wait_for_deaths(&self, longest: Duration) {
        let settled = || self.settled.load(Ordering::Relaxed);
        let (begin, first) = (Instant::now(), settled());
        // The round in progress may have missed one.
        while !self.clients.is_empty() && settled() - first < 2 && begin.elapsed() < longest {
            std::thread::sleep(DEATHS_PERIOD);
        }
    }

    /// Checks which processes of ended clients have ended, and gives up on those that take too
    /// long.
    pub fn settle_ends(&self) {
        self.ended().settle();
    }

    fn ended(&self) -> MutexGuard<'_, EndedClients> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts of ends so far, and of records of all clients.
    pub fn sums(&self) -> Sums {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let exits = {
            let mut ended = self.ended();
            ended.settle();
            ended.exits
        };
        let mut sums = Sums {
            exits,
            goodbyes: read(&self.goodbyes),
            vanished: read(&self.vanished),
            detached: read(&self.detached),
            records: read(&self.records),
            lost: read(&self.lost),
        };
        for entry in self.all() {
            sums.records += read(&entry.figures.records);
            sums.lost += read(&entry.figures.lost);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(registry: &Registry) -> Arc<Entry> {
        Arc::new(Entry::new(NewEntry {
            client: registry.number(),
            pid: 7,
            command: "job".to_string(),
            profile: Some("/p/resnet".to_string()),
            loaded: None,
            trouble: None,
            profiling: false,
            priority: 3,
            lane: Arc::new(SharedLane::lane().expect("a lane")),
        }))
    }

    #[test]
    fn an_end_is_counted_once_and_remembered() {
        let registry = Registry::default();
        let first = entry(&registry);
        registry.add(Arc::clone(&first));
        first.lane.counters.launches.store(9, Ordering::Relaxed);
        assert!(registry.end(first.client, Ending::Vanished));
        assert!(!registry.end(first.client, Ending::Goodbye));
        let ended = registry.last_ended();
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0].last.launches, 9);
        assert_eq!(ended[0].last.profile.as_deref(), Some("resnet"));
        assert_eq!(registry.sums().vanished, 1);
        assert_eq!(registry.sums().goodbyes, 0);
    }

    #[test]
    fn the_last_that_ended_are_not_one_users_alone() {
        let registry = Registry::default();
        for uid in [7, 7, 7].into_iter().chain([8; 100]) {
            let one = Arc::new(Arc::into_inner(entry(&registry)).expect("ours").of(uid, None));
            registry.add(Arc::clone(&one));
            registry.end(one.client, Ending::Vanished);
        }
        let ended = registry.last_ended();
        let count = |uid| ended.iter().filter(|ended| ended.last.uid == uid).count();
        assert_eq!((count(7), count(8)), (3, HISTORY - 3));
        assert_eq!(registry.sums().exits.unknown, 103);
    }

    #[test]
    fn a_process_keeps_the_number_that_it_had_at_the_last_broker() {
        let process = |pid| Process { pid, start: Some(7) };
        let earlier = || {
            vec![
                (process(1), 7, 4),
                (process(2), 7, 9),
                (process(3), 7, 2),
                (process(3), 7, 3),
            ]
        };
        let registry = Registry::default();
        let number = |pid, uid| registry.number_of(process(pid), uid, earlier);
        assert_eq!((number(1, 7), number(2, 7)), (4, 9));
        // Once each; not another user's process, nor one that had several.
        assert_eq!([number(1, 7), number(2, 8), number(3, 7)], [10, 11, 12]);
        let unseen = Process { pid: 1, start: None };
        assert_eq!(registry.number_of(unseen, 7, Vec::new), 13);
    }

    #[test]
    fn the_history_has_an_end() {
        let registry = Registry::default();
        for _ in 0..100 {
            let one = entry(&registry);
            registry.add(Arc::clone(&one));
            registry.end(one.client, Ending::Goodbye);
        }
        assert_eq!(registry.last_ended().len(), HISTORY);
        assert_eq!(registry.last_ended()[0].last.client, 100);
        assert_eq!(registry.sums().goodbyes, 100);
    }
}
