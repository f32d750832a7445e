// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outcome thread: takes snapshots of the devices once a second while jobs share one, keeps the
//! book, and answers.
//!
//! It requests snapshots from the scheduler thread, with a bounded wait. They come in order with
//! the scheduler's messages about clients, so a snapshot is added after the clients that it shows
//! have come and before they leave, however late this thread runs on a busy machine.
//!
//! It waits for no client: if a shared broker's client does not read, it misses its lines. Each
//! client gets its lines once.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use weft_protocol::Ns;
use weft_protocol::control::{ATTACHED_AGAIN, ToClient};
use weft_scheduler::{Client, ClientView};

use super::book::{CarriedClient, ClientLook, MarkedLook, OutcomeBook};
use super::carried;
use super::recorder::{IntervalRecorder, Seen};
use super::warning::{self, CalledNames, ClientFacts, Neighbours, WarningBounds, WarningSpan};
use crate::base::thread_priority::ThreadPriority;
use crate::clients::registry::Entry;
use crate::history::{BookChange, EndedJob, HistoryWriter, OpenBook, RowKey};
use crate::scheduler_mailbox::{Notice, SchedulerHandle, View};
use crate::server::ToTheClient;
use crate::server::other_brokers::OtherBrokers;
use weft_api::history::{HistoryRow, RecordedJob};
use weft_api::outcome::{JobCounters, Outcome, Warning, WarningKind};
use weft_api::recording::{JobRecording, MOST_JOBS};
use weft_api::status::{Ending, Exit};

/// Time between two snapshots while jobs share a device.
const PERIOD: Duration = Duration::from_secs(1);

/// Least time between two snapshots for new clients, ns: a thousand that attach at once cause few
/// snapshots.
const APART_NS: Ns = 10_000_000;

/// Time between two checks for warnings about clients, ns.
const WARNINGS_APART_NS: Ns = 10_000_000_000;

/// Longest wait for a snapshot.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// Longest wait for an answer: the thread may take two snapshots before it.
const PATIENCE: Duration = Duration::from_secs(4);

/// Ended clients whose outcomes are kept for `weft status`, twice as many as it shows.
const ENDED: usize = 64;

/// The driver's GPUs, a folder for each.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Most devices whose names are remembered, more than any machine has.
const MOST_CALLED: usize = 256;

/// A message to the outcome thread.
#[derive(Debug)]
pub enum OutcomeMessage {
    /// The handle of the scheduler, and other brokers of its devices.
    Scheduler(SchedulerHandle, OtherBrokers),
    /// A client attached, at this time.
    Joined(Arc<Entry>, Ns),
    /// A client came to another device, or from waiting for memory, at this time.
    Moved(u64, Ns),
    /// A client ended.
    Left {
        /// The client.
        entry: Arc<Entry>,
        /// How it ended.
        ending: Ending,
        /// Whether the job still runs because only the broker ends.
        runs_on: bool,
        /// Last snapshot of its device, with the client still in it.
        view: Option<Box<View>>,
        /// Time of its end.
        now: Ns,
    },
    /// Snapshots of all devices, the first known device first, at this time.
    Views(Vec<View>, Ns),
    /// A client is about to end and requests its lines.
    Wanted(u64, ToTheClient),
    /// Asks for devices, outcomes and warnings.
    Ask(Sender<OutcomeReport>),
    /// Figures were reported to a scraper: the next broker must continue them.
    Keep,
    /// Asks for the recordings of attached clients, of one user or of all.
    Recorded(Option<u32>, Sender<Vec<RecordedJob>>),
    /// The broker ends.
    Stop,
}

/// Devices, outcomes and warnings at one time.
#[derive(Debug, Clone, Default)]
pub struct OutcomeReport {
    /// Each device's state, the first known device first.
    pub views: Vec<View>,
    /// Outcomes of attached clients and of the last ones that ended.
    pub outcomes: HashMap<u64, Outcome>,
    /// Present warnings about devices and attached clients.
    pub warnings: Vec<Warning>,
}

/// Handle on the outcome thread.
#[derive(Debug, Clone)]
pub struct OutcomeHandle {
    tells: Option<Sender<OutcomeMessage>>,
}

impl OutcomeHandle {
    /// A handle without a thread.
    pub fn deaf() -> OutcomeHandle {
        OutcomeHandle { tells: None }
    }

    /// Whether a thread was started for this handle.
    pub fn listens(&self) -> bool {
        self.tells.is_some()
    }

    /// Sends a message. Never waits.
    pub fn tell(&self, message: OutcomeMessage) {
        if let Some(tells) = &self.tells {
            // If the thread has died, only the outcomes are missing.
            let _ = tells.send(message);
        }
    }

    /// Devices, outcomes and warnings as of now; `None`: no answer in time.
    pub fn ask(&self) -> Option<OutcomeReport> {
        let (way, answer) = channel();
        self.tell(OutcomeMessage::Ask(way));
        answer.recv_timeout(PATIENCE).ok()
    }

    /// Recordings of attached clients, [`MOST_JOBS`] at most, of this user or of all; `None`: no
    /// answer in time.
    pub fn recorded(&self, uid: Option<u32>) -> Option<Vec<RecordedJob>> {
        let (way, answer) = channel();
        self.tell(OutcomeMessage::Recorded(uid, way));
        answer.recv_timeout(PATIENCE).ok()
    }
}

/// Settings of the thread.
#[derive(Debug)]
pub struct OutcomeSettings {
    /// Bound on the background work that a foreground job may have to wait for, ns.
    pub delay_bound: Ns,
    /// Longest wait at the gate.
    pub longest_wait: Duration,
    /// Writer of the rows of ended jobs.
    pub history: HistoryWriter,
    /// Whether the broker is shared.
    pub shared: bool,
    /// The clock of all weft processes.
    pub clock: fn() -> Ns,
}

/// Starts the thread.
pub fn start(settings: OutcomeSettings) -> std::io::Result<(OutcomeHandle, JoinHandle<()>)> {
    let (tells, incoming) = channel();
    let thread = std::thread::Builder::new()
        .name("weft-outcomes".into())
        .spawn(move || {
            ThreadPriority::Guests.take();
            OutcomeThread::new(settings, incoming).run();
        })?;
    Ok((OutcomeHandle { tells: Some(tells) }, thread))
}

/// A client and its warnings so far.
#[derive(Debug)]
struct Watched {
    entry: Arc<Entry>,
    /// Time at which it came to its device.
    since: Ns,
    /// Warnings about its device while it was there, and the time for which each was true, ns.
    warned: BTreeMap<WarningKind, (Warning, Ns)>,
    /// Allowed slowdown of the foreground job, a part of its time: of this job or of the one on its
    /// device.
    allowed: f64,
    /// Whether a client of another job was on its device.
    has_company: bool,
    /// Whether its device takes turns between processes.
    switches: bool,
    /// Known reason for which the background jobs of its device delay it.
    neighbours: Neighbours,
    /// The more important background job that has the gaps.
    holder: warning::GapHolder,
    /// Whether its lines were sent.
    told: bool,
    /// Its book as last written, by this broker or the previous one; `None`: there is none, or it
    /// was not searched for.
    book: Option<OpenBook>,
    looked_for_book: bool,
    /// The highest counters so far.
    counters: JobCounters,
}

struct OutcomeThread {
    incoming: Receiver<OutcomeMessage>,
    /// Messages that came while a snapshot was awaited and do not concern it.
    deferred: VecDeque<OutcomeMessage>,
    bounds: WarningBounds,
    history: HistoryWriter,
    clock: fn() -> Ns,
    scheduler: Option<(SchedulerHandle, OtherBrokers)>,
    book: OutcomeBook,
    recorder: IntervalRecorder,
    clients: BTreeMap<u64, Watched>,
    ended: VecDeque<(u64, Outcome)>,
    /// Rows of the books that clients here continued: each belongs to one client.
    taken: HashSet<RowKey>,
    /// Time of the last snapshot of all devices.
    looked_at: Ns,
    /// Whether a snapshot is due because a client attached too soon after the last one.
    owes_look: bool,
    /// Time of the last check for warnings about clients.
    warned_at: Ns,
    /// Name of each device for people, by UUID.
    called: HashMap<String, String>,
}

impl OutcomeThread {
    fn new(settings: OutcomeSettings, incoming: Receiver<OutcomeMessage>) -> OutcomeThread {
        OutcomeThread {
            incoming,
            deferred: VecDeque::new(),
            bounds: WarningBounds {
                shared: settings.shared,
                delay_bound: settings.delay_bound,
                longest_wait: u64::try_from(settings.longest_wait.as_nanos()).unwrap_or(u64::MAX),
            },
            history: settings.history,
            clock: settings.clock,
            scheduler: None,
            book: OutcomeBook::default(),
            recorder: IntervalRecorder::default(),
            clients: BTreeMap::new(),
            ended: VecDeque::new(),
            taken: HashSet::new(),
            looked_at: 0,
            owes_look: false,
            warned_at: 0,
            called: HashMap::new(),
        }
    }

    fn next(&mut self) -> Result<OutcomeMessage, RecvTimeoutError> {
        if let Some(message) = self.deferred.pop_front() {
            return Ok(message);
        }
        // An only client changes nothing but its own counters.
        match self.clients.len() {
            0 | 1 => self.incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
            _ if self.owes_look => self.incoming.recv_timeout(Duration::from_nanos(APART_NS)),
            _ => self.incoming.recv_timeout(PERIOD),
        }
    }

    fn run(mut self) {
        loop {
            match self.next() {
                Ok(OutcomeMessage::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(message) => self.hear(message),
                Err(RecvTimeoutError::Timeout) => {
                    self.look();
                    if self.looked_at.saturating_sub(self.warned_at) >= WARNINGS_APART_NS {
                        self.warned_at = self.looked_at;
                        self.keep();
                    }
                }
            }
        }
    }

    fn hear(&mut self, message: OutcomeMessage) {
        if let Some(message) = self.change(message) {
            self.answer(message);
        } else if self.owes_look && (self.clock)().saturating_sub(self.looked_at) >= APART_NS {
            self.look();
        }
    }

    /// Takes over the scheduler's message about clients; returns any other message.
    fn change(&mut self, message: OutcomeMessage) -> Option<OutcomeMessage> {
        match message {
            OutcomeMessage::Joined(entry, since) => {
                let watched = Watched {
                    entry: Arc::clone(&entry),
                    since,
                    warned: BTreeMap::new(),
                    allowed: 0.0,
                    has_company: false,
                    switches: false,
                    neighbours: Neighbours::Usual,
                    holder: warning::GapHolder::default(),
                    told: false,
                    book: None,
                    looked_for_book: false,
                    counters: JobCounters::default(),
                };
                self.clients.insert(entry.client, watched);
                let ago_ms = (self.clock)().saturating_sub(since) / 1_000_000;
                let since_ms = now_ms().saturating_sub(ago_ms);
                self.recorder.joined(entry.client, entry.pid, since, since_ms);
                // A snapshot ends the interval before the client came.
                self.owes_look = true;
            }
            OutcomeMessage::Moved(client, since) => {
                if let Some(watched) = self.clients.get_mut(&client) {
                    watched.since = since;
                    self.owes_look = true;
                }
            }
            OutcomeMessage::Left {
                entry,
                ending,
                runs_on,
                view,
                now,
            } => self.left(&entry, (ending, runs_on), view.as_deref(), now),
            OutcomeMessage::Views(views, now) => self.take_all(now, &views),
            other => return Some(other),
        }
        None
    }

    fn answer(&mut self, message: OutcomeMessage) {
        match message {
            OutcomeMessage::Scheduler(handle, others) => self.scheduler = Some((handle, others)),
            OutcomeMessage::Wanted(client, sender) => {
                let first = match self.clients.get_mut(&client) {
                    Some(watched) => !std::mem::replace(&mut watched.told, true),
                    None => false,
                };
                if first {
                    self.look();
                    let status = self.clients.get(&client).map(|watched| watched.entry.status());
                    let status = status.unwrap_or_default();
                    let name = warning::called(&status.name, client);
                    let lines = self.outcome(client).map(|outcome| outcome.end_lines(&name));
                    // Fails only for a client that has ended or does not read.
                    let mut lines = lines.unwrap_or_default();
                    let again = status.notes.iter().any(|note| note.starts_with(ATTACHED_AGAIN));
                    if again && self.book.carried(client).is_none() && !lines.is_empty() {
                        lines.push(
                            "warning: its figures begin with this broker: those of the one before are lost".to_string(),
                        );
                    }
                    lines.extend(self.history.trouble().map(|trouble| format!("warning: {trouble}")));
                    let _ = sender.send(ToClient::Outcome(lines));
                }
            }
            OutcomeMessage::Ask(way) => {
                let report = self.report();
                // The receiver may have timed out.
                let _ = way.send(report);
            }
            OutcomeMessage::Keep => self.keep(),
            OutcomeMessage::Recorded(uid, way) => {
                let recorded = self.recorded(uid);
                // The receiver may have timed out.
                let _ = way.send(recorded);
            }
            _ => {}
        }
    }

    /// Takes a snapshot of all devices, after the changes before it. Empty: none came in time.
    fn look(&mut self) -> Vec<View> {
        let asked = self
            .scheduler
            .as_ref()
            .map(|(scheduler, _)| scheduler.tell(Notice::LookInOrder));
        let deadline = Instant::now() + LOOK_PATIENCE;
        while asked == Some(true) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.incoming.recv_timeout(left) {
                Ok(OutcomeMessage::Views(views, now)) => {
                    self.take_all(now, &views);
                    return views;
                }
                Ok(message) => {
                    let ends = matches!(message, OutcomeMessage::Stop);
                    let other = self.change(message);
                    self.deferred.extend(other);
                    if ends {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        (self.looked_at, self.owes_look) = ((self.clock)(), false);
        Vec::new()
    }

    fn take_all(&mut self, now: Ns, views: &[View]) {
        (self.looked_at, self.owes_look) = (now, false);
        for view in views {
            self.take(now, view);
        }
        let views_have = |client: u64| views.iter().any(|view| view.snapshot.client(Client(client)).is_some());
        let apart = self
            .clients
            .values()
            .filter(|watched| !views_have(watched.entry.client));
        let apart: Vec<Arc<Entry>> = apart.map(|watched| Arc::clone(&watched.entry)).collect();
        for entry in apart {
            self.take_apart(now, &entry);
        }
    }

    fn take(&mut self, now: Ns, view: &View) {
        let device = view.uuid.as_deref().unwrap_or_default();
        // The message about a client may come after a snapshot with it: the next one counts.
        let known = view.snapshot.clients.iter().filter_map(|view| {
            let watched = self.clients.get(&view.client)?;
            // If a process uses several devices, it is unknown on which its requests lost time.
            let entry = &watched.entry;
            let own = self.clients.values().filter(|other| other.entry.pid == entry.pid);
            Some(ClientLook {
                view,
                since: watched.since,
                held: watched.entry.tallies().gate_ns,
                marked: MarkedLook::of(&entry.lane.requests).filter(|_| own.count() == 1),
            })
        });
        let clients: Vec<ClientLook<'_>> = known.collect();
        let parts = self.book.look(now, device, &clients);
        for (part, of) in parts.iter().zip(&clients) {
            if let Some(watched) = self.clients.get(&part.client) {
                let seen = Seen {
                    part: Some(part),
                    lane: watched.entry.tallies(),
                    stretches: of.view.stretch_times.as_deref(),
                    slowdown_allowed: Some(of.view.slowdown_allowed),
                };
                self.recorder.take(now, part.client, &seen);
            }
        }
        let of_device = self.warnings_of(view);
        let clients: Vec<&ClientView> = clients.iter().map(|of| of.view).collect();
        let first = clients.iter().find(|client| client.mode == "foreground");
        let allowed_beside = first.map(|client| client.slowdown_allowed);
        let gang = |client: u64| self.clients.get(&client).map_or_else(String::new, |of| of.entry.gang());
        let at_work = clients.iter().zip(&parts);
        let at_work = at_work.filter(|(client, part)| client.mode == "background" && part.active);
        let holder = at_work.min_by_key(|(client, _)| client.priority);
        let holder = holder.map(|(client, _)| (self.job_called(client.client), client.priority));
        let long_beside = clients.iter().any(|client| {
            let watched = self.clients.get(&client.client);
            let has_long = |of: &Watched| warning::has_long(&of.entry.status(), &self.book.long(client.client));
            client.mode == "background" && watched.is_some_and(has_long)
        });
        let background = clients.iter().filter(|client| client.mode == "background");
        let taken: f64 = background.filter_map(|client| client.at_least).sum();
        let neighbours = match (taken > 0.0, long_beside) {
            (true, _) => Neighbours::HavePart(taken),
            (false, true) => Neighbours::HaveLongKernels,
            (false, false) => Neighbours::Usual,
        };
        let gangs: Vec<String> = clients.iter().map(|client| gang(client.client)).collect();
        for ((client, part), own) in clients.iter().zip(&parts).zip(&gangs) {
            if let Some(watched) = self.clients.get_mut(&client.client) {
                watched.allowed = match client.mode {
                    "background" => allowed_beside.unwrap_or(client.slowdown_allowed),
                    _ => client.slowdown_allowed,
                };
                watched.has_company |= match own.is_empty() {
                    true => clients.len() > 1,
                    false => gangs.iter().any(|other| other != own),
                };
                let holder = holder.clone().filter(|(_, priority)| *priority < client.priority);
                watched.holder.take(watched.entry.tallies().forced, holder);
                // The last of several jobs is the only one when it ends; keep the earlier value.
                if clients.len() > 1 {
                    watched.switches = view.snapshot.switch_cost > 0;
                    watched.neighbours = neighbours;
                }
                for warning in &of_device {
                    self.recorder.warned(client.client, now, warning);
                    let held = watched.warned.get(&warning.kind).map_or(0, |(_, held)| *held);
                    let held = held.saturating_add(part.length);
                    watched.warned.insert(warning.kind, (warning.clone(), held));
                }
            }
        }
    }

    /// Warnings about a device.
    fn warnings_of(&mut self, view: &View) -> Vec<Warning> {
        let uuid = view.uuid.as_deref().unwrap_or_default();
        if !self.called.contains_key(uuid) {
            if self.called.len() >= MOST_CALLED {
                self.called.clear();
            }
            self.called
                .insert(uuid.to_string(), device_called(Path::new(GPUS), uuid));
        }
        let device = self.called.get(uuid).map_or("the GPU", String::as_str);
        let gang = |client: u64| {
            let watched = self.clients.get(&client);
            watched.map_or_else(String::new, |watched| watched.entry.gang())
        };
        let job = |client: u64| self.job_called(client);
        warning::of_device(view, gang, &CalledNames { job: &job, device }, self.bounds.shared)
    }

    /// A client's name in a line that users of other jobs read.
    fn job_called(&self, client: u64) -> String {
        let mut users = self.clients.values().map(|watched| watched.entry.uid);
        let first = users.next();
        // No user may read the names of another user's jobs.
        let of_one = users.all(|uid| Some(uid) == first);
        let watched = self.clients.get(&client).filter(|_| of_one);
        warning::called(watched.map_or("", |watched| &watched.entry.name), client)
    }

    /// The present warnings about a client.
    fn warn(&mut self, client: u64) -> Vec<Warning> {
        let now = match (self.clients.get(&client), self.figures(client)) {
            (Some(watched), Some(outcome)) => self.warnings_about(watched, &outcome, WarningSpan::Now),
            _ => return Vec::new(),
        };
        let at = (self.clock)();
        for warning in &now {
            self.recorder.warned(client, at, warning);
        }
        now
    }

    fn warnings_about(&self, watched: &Watched, outcome: &Outcome, span: WarningSpan) -> Vec<Warning> {
        let status = watched.entry.status();
        let long = self.book.long(status.client);
        let facts = ClientFacts {
            status: &status,
            outcome,
            allowed: watched.allowed,
            long: &long,
            kernel: &kernel_name(&watched.entry, long.kernel),
            has_company: watched.has_company,
            switches: watched.switches,
            neighbours: watched.neighbours,
            holder: &watched.holder,
        };
        warning::of_client(&facts, span, &self.bounds)
    }

    /// The warnings that were true for a large enough part of a client's time.
    fn kept_warnings(&self, watched: &Watched, outcome: &Outcome) -> Vec<Warning> {
        let mut all = self.warnings_about(watched, outcome, WarningSpan::WholeJob);
        let shared_ns = (outcome.foreground_s + outcome.background_s) * 1e9;
        let is_over = all.iter().any(|warning| warning.kind == WarningKind::OverSlowdown);
        let known: HashSet<WarningKind> = all.iter().map(|warning| warning.kind).collect();
        let held = watched.warned.values().filter(|(warning, held)| {
            let mattered = warning.kind != WarningKind::NoMps || is_over;
            let long = *held > 0 && *held as f64 >= shared_ns * warning::KEPT_PART;
            long && mattered && !known.contains(&warning.kind)
        });
        all.extend(held.map(|(warning, _)| warning.clone()));
        all.sort_by_key(|warning| warning.kind);
        all
    }

    fn recorded(&mut self, uid: Option<u32>) -> Vec<RecordedJob> {
        self.look();
        let of = |watched: &&Watched| uid.is_none_or(|uid| watched.entry.uid == uid);
        let entries = self.clients.values().rev().filter(of).take(MOST_JOBS as usize);
        let entries: Vec<Arc<Entry>> = entries.map(|watched| Arc::clone(&watched.entry)).collect();
        let jobs = entries.iter().filter_map(|entry| {
            let outcome = self.outcome(entry.client)?;
            Some(RecordedJob {
                job: row(entry, Ending::Goodbye, &outcome),
                running: true,
                recording: self.recording(entry.client, &outcome),
            })
        });
        jobs.collect()
    }

    /// The outcome so far, with the warnings that were true for a large enough part of the job's
    /// time.
    fn outcome(&mut self, client: u64) -> Option<Outcome> {
        self.look_for_book(client);
        self.warn(client);
        let mut outcome = self.figures(client)?;
        let others = self.scheduler.as_ref().map(|(_, others)| others.others());
        let watched = self.clients.get_mut(&client)?;
        watched.counters.raise(&outcome.counters);
        outcome.counters = watched.counters;
        let watched = self.clients.get(&client)?;
        let device = watched.entry.device_uuid();
        let others = others.unwrap_or_default().into_iter();
        let others = others.filter(|other| device.as_deref() == Some(other.device.as_str()));
        outcome.warnings = self.kept_warnings(watched, &outcome);
        outcome.warnings.extend(others.map(|other| warning::of_other(&other)));
        Some(outcome)
    }

    /// The outcome so far, without warnings.
    fn figures(&self, client: u64) -> Option<Outcome> {
        let watched = self.clients.get(&client)?;
        let status = watched.entry.status();
        // A profile of other kernels gives no time of these.
        let fits = watched
            .entry
            .loaded
            .as_ref()
            .filter(|_| watched.entry.misfit(1).is_none());
        let typical = fits.and_then(|profile| profile.typical_launch());
        let mut outcome = self.book.outcome(&status, typical);
        if !watched.entry.stopped_ago().is_zero() {
            // It keeps its role until its process has ended.
            outcome.foreground_s = outcome.foreground_s.min(outcome.ran_s);
            outcome.background_s = outcome.background_s.min(outcome.ran_s - outcome.foreground_s);
        }
        if let Some(earlier) = self.book.carried(client) {
            outcome.requests = carried::requests(&watched.entry.lane.requests, earlier);
        }
        Some(outcome)
    }

    /// A client's recording, with the warnings that the outcome keeps.
    fn recording(&self, client: u64, outcome: &Outcome) -> Option<JobRecording> {
        let mut recording = self.recorder.recording(client)?;
        let kept = |kind: WarningKind| outcome.warnings.iter().any(|warning| warning.kind == kind);
        recording.warned.retain(|warned| kept(warned.warning.kind));
        Some(recording)
    }

    /// Finds a client's sums at the previous broker, once.
    fn look_for_book(&mut self, client: u64) {
        let Some(watched) = self.clients.get(&client).filter(|watched| !watched.looked_for_book) else {
            return;
        };
        let books = self.history.open_books();
        let entry = &watched.entry;
        let (process, device) = (entry.process(), entry.device_uuid());
        let own = |book: &&OpenBook| {
            let taken = self.taken.contains(&book.row);
            book.process == process && process.start.is_some() && book.uid == entry.uid && !taken
        };
        let mut own = books.iter().filter(own);
        // A process on several devices has a book for each.
        let found = match (own.clone().count(), &device) {
            (0 | 1, _) => own.next(),
            (_, Some(device)) => own.find(|book| book.device == *device),
            (_, None) => return,
        };
        let found = found.cloned();
        let Some(watched) = self.clients.get_mut(&client) else {
            return;
        };
        watched.looked_for_book = true;
        let Some(book) = found else { return };
        // The sums are of another build: the row remains unchanged.
        let Ok(earlier) = serde_json::from_str::<CarriedClient>(&book.sums) else {
            return;
        };
        for warning in earlier.warnings_of(client) {
            // The previous broker decided to keep them.
            watched.warned.insert(warning.kind, (warning, Ns::MAX));
        }
        watched.counters = earlier.counters;
        self.taken.insert(book.row);
        watched.book = Some(book);
        self.book.carry(client, earlier);
    }

    fn report(&mut self) -> OutcomeReport {
        let views = self.look();
        let numbers: Vec<u64> = self.clients.keys().copied().collect();
        let mut warnings: Vec<Warning> = Vec::new();
        for view in &views {
            warnings.extend(self.warnings_of(view));
        }
        if let Some((_, others)) = &self.scheduler {
            warnings.extend(others.others().iter().map(warning::of_other));
        }
        let mut outcomes: HashMap<u64, Outcome> = self.ended.iter().cloned().collect();
        for client in numbers {
            warnings.extend(self.warn(client));
            outcomes.extend(self.outcome(client).map(|outcome| (client, outcome)));
        }
        OutcomeReport {
            views,
            outcomes,
            warnings,
        }
    }

    /// Checks all clients for warnings and writes their books, so the next broker continues their
    /// figures even if this one is killed.
    fn keep(&mut self) {
        let numbers: Vec<u64> = self.clients.keys().copied().collect();
        let books = numbers.into_iter().filter_map(|client| {
            let outcome = self.outcome(client)?;
            let watched = self.clients.get(&client).filter(|watched| watched.looked_for_book)?;
            let new = || RowKey::of(&row(&watched.entry, Ending::Detached, &outcome));
            let row = watched.book.as_ref().map_or_else(new, |book| book.row);
            let book = self.open_book(watched, &outcome, row);
            self.clients.get_mut(&client)?.book = Some(book.clone());
            Some(book)
        });
        let books = books.collect();
        self.history.keep(books);
    }

    /// A client's book for the next broker.
    fn open_book(&self, watched: &Watched, outcome: &Outcome, row: RowKey) -> OpenBook {
        let entry = &watched.entry;
        let mut sums = self.book.to_carry(&entry.status(), &entry.lane.requests);
        sums.warnings = self.kept_warnings(watched, outcome);
        sums.counters = outcome.counters;
        OpenBook {
            process: entry.process(),
            uid: entry.uid,
            device: entry.device_uuid().unwrap_or_default(),
            row,
            sums: serde_json::to_string(&sums).unwrap_or_default(),
        }
    }

    /// Adds the last figures of a client that ends at `now`.
    fn end(&mut self, entry: &Entry, view: Option<&View>, now: Ns) {
        match view {
            Some(view) => self.take(now, view),
            None => self.take_apart(now, entry),
        }
    }

    /// Adds the figures of a client that is on no device.
    fn take_apart(&mut self, now: Ns, entry: &Entry) {
        let seen = Seen {
            part: None,
            lane: entry.tallies(),
            stretches: None,
            slowdown_allowed: None,
        };
        self.recorder.take(now, entry.client, &seen);
    }

    fn left(&mut self, entry: &Entry, (ending, runs_on): (Ending, bool), view: Option<&View>, now: Ns) {
        self.end(entry, view, now);
        if let Some(outcome) = self.outcome(entry.client) {
            let recording = self.recording(entry.client, &outcome);
            let row = row(entry, ending, &outcome);
            let runs_on = runs_on && entry.process().runs() == Some(true);
            let watched = self.clients.get(&entry.client).filter(|_| runs_on);
            let opens = watched.map(|watched| self.open_book(watched, &outcome, RowKey::of(&row)));
            let settles = self
                .clients
                .get_mut(&entry.client)
                .and_then(|watched| watched.book.take());
            self.history.put(EndedJob {
                row,
                end: (ending != Ending::Detached).then(|| Arc::clone(&entry.end)),
                recording,
                books: BookChange { settles, opens },
            });
            self.ended.truncate(ENDED - 1);
            self.ended.push_front((entry.client, outcome));
        }
        self.clients.remove(&entry.client);
        self.book.forget(entry.client);
        self.recorder.forget(entry.client);
    }
}

/// Name of a client's kernel, else its hash.
fn kernel_name(entry: &Entry, hash: u64) -> String {
    match hash {
        0 => "a copy".to_string(),
        _ => entry.kernel_name(hash).unwrap_or_else(|| format!("kernel {hash:016x}")),
    }
}

/// Name of a device for people: its number in `nvidia-smi`, which counts by PCI address, else the
/// first digits of its UUID. `gpus`: folder of the driver's GPUs.
fn device_called(gpus: &Path, uuid: &str) -> String {
    let folders = std::fs::read_dir(gpus).into_iter().flatten().flatten();
    let mut folders: Vec<_> = folders.map(|folder| folder.path()).collect();
    folders.sort();
    let own = |path: &PathBuf| {
        let text = std::fs::read_to_string(path.join("information")).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("GPU UUID:"));
        let digits: String = line
            .unwrap_or_default()
            .chars()
            .filter(char::is_ascii_hexdigit)
            .collect();
        !uuid.is_empty() && digits.ends_with(uuid)
    };
    match (folders.iter().position(own), uuid.get(..8)) {
        (Some(number), _) => format!("GPU {number}"),
        (None, Some(begin)) => format!("GPU {begin}"),
        (None, None) => "the GPU".to_string(),
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64)
}

fn row(entry: &Entry, ending: Ending, outcome: &Outcome) -> HistoryRow {
    let ended_ms = now_ms().saturating_sub(entry.stopped_ago().as_millis() as u64);
    let status = entry.status();
    let gang = entry.gang();
    // A shared broker puts the user before it.
    let own = gang.strip_prefix(&format!("{}:", entry.uid)).unwrap_or(&gang);
    HistoryRow {
        ended_ms,
        uid: entry.uid,
        pid: entry.pid,
        client: entry.client,
        name: Some(status.name).filter(|name| !name.is_empty()),
        gang: Some(own.to_string()).filter(|gang| !gang.is_empty()),
        priority: status.priority,
        command: status.command,
        profile: status.profile,
        device: status.device,
        ending,
        exit: Exit::default(),
        outcome: outcome.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;
    use weft_protocol::transport::map::SharedLane;
    use weft_scheduler::{Config, Core, Event, Lateness};

    use super::*;
    use crate::clients::registry::NewEntry;

    const MS: Ns = 1_000_000;

    fn entry(client: u64) -> Arc<Entry> {
        Arc::new(Entry::new(NewEntry {
            client,
            pid: client as u32,
            command: String::new(),
            profile: None,
            loaded: None,
            trouble: None,
            profiling: false,
            priority: 0,
            lane: Arc::new(SharedLane::lane().expect("a lane")),
        }))
    }

    #[test]
    fn a_snapshot_before_the_message_about_its_client_loses_nothing() {
        let settings = OutcomeSettings {
            delay_bound: 500_000,
            longest_wait: Duration::from_secs(2),
            history: HistoryWriter::deaf(None),
            shared: false,
            clock: || 50,
        };
        let mut thread = OutcomeThread::new(settings, channel().1);
        let mut core = Core::new(Config::default());
        for client in [1, 2] {
            let attached = Event::Attached {
                client: Client(client),
                priority: client as u8,
                profile: None,
            };
            core.handle(0, attached, &mut Vec::new());
        }
        let view = |gpu: Ns| {
            let mut snapshot = core.snapshot();
            snapshot.clients[1].background.gpu = gpu;
            View {
                uuid: None,
                snapshot,
                under_mps: 0,
                not_under_mps: 0,
            }
        };
        thread.hear(OutcomeMessage::Joined(entry(1), 10));
        thread.take(100, &view(7));
        thread.hear(OutcomeMessage::Joined(entry(2), 60));
        thread.take(200, &view(9));
        let outcome = thread.figures(2).expect("there");
        let recording = thread.recording(2, &outcome).expect("there");
        assert_eq!((outcome.gpu_shared_ns, recording.sum().gpu_ns), (9, 9));
        assert_eq!((recording.sum().length_ns, recording.sum().background_ns), (140, 100));
        let recording = thread.recording(1, &outcome).expect("there");
        assert_eq!((recording.sum().length_ns, recording.sum().foreground_ns), (190, 190));
    }

    /// Clients of the property, and devices; device 0 has no name at first.
    const PLACES: usize = 5;
    const DEVICES: usize = 3;

    #[derive(Debug, Clone)]
    enum Step {
        Join(usize),
        /// Its device's name becomes known; it begins anew in that device's core.
        Move(usize, usize),
        /// It waits for memory, in no core.
        Aside(usize),
        Work(usize, Work),
        Name,
        Look,
        /// A snapshot from before some other messages.
        LateLook(Ns),
        Leave(usize, bool),
        Pass(Ns),
    }

    #[derive(Debug, Clone, Copy)]
    struct Work {
        gpu: Ns,
        late: i32,
        judged: u32,
        launches: u64,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let work = (0..500 * MS, -1_000_000..1_000_000_i32, 0..2_000_000_u32, 0..50_u64);
        let work = work.prop_map(|(gpu, late, judged, launches)| Work {
            gpu,
            late,
            judged,
            launches,
        });
        let step = prop_oneof![
            2 => (0..PLACES).prop_map(Step::Join),
            1 => (0..PLACES, 1..DEVICES).prop_map(|(place, device)| Step::Move(place, device)),
            1 => (0..PLACES).prop_map(Step::Aside),
            6 => (0..PLACES, work).prop_map(|(place, work)| Step::Work(place, work)),
            1 => Just(Step::Name),
            4 => Just(Step::Look),
            1 => (1..3_000 * MS).prop_map(Step::LateLook),
            2 => (0..PLACES, any::<bool>()).prop_map(|(place, viewed)| Step::Leave(place, viewed)),
            6 => (1..1_500 * MS).prop_map(Step::Pass),
        ];
        proptest::collection::vec(step, 1..80)
    }

    /// A client as the scheduler has it.
    struct Played {
        entry: Arc<Entry>,
        joined: Ns,
        /// `None`: it waits for memory.
        device: Option<usize>,
        view: ClientView,
        /// GPU time of earlier cores, ns.
        before: Ns,
    }

    /// Plays the scheduler's messages, and compares the recordings with the outcomes.
    struct Books {
        thread: OutcomeThread,
        now: Ns,
        numbers: u64,
        named: bool,
        places: [Option<Played>; PLACES],
        late: bool,
        /// Lateness that intervals with background jobs had, and costs of ended jobs, ns.
        lateness: f64,
        costs: f64,
    }

    impl Books {
        fn new() -> Books {
            let settings = OutcomeSettings {
                delay_bound: 500_000,
                longest_wait: Duration::from_secs(2),
                history: HistoryWriter::deaf(None),
                shared: false,
                clock: || 0,
            };
            Books {
                thread: OutcomeThread::new(settings, channel().1),
                now: 1_000 * MS,
                numbers: 0,
                named: false,
                places: Default::default(),
                late: false,
                lateness: 0.0,
                costs: 0.0,
            }
        }

        fn blank(client: u64) -> ClientView {
            let mut core = Core::new(Config::default());
            let attached = Event::Attached {
                client: Client(client),
                priority: 0,
                profile: None,
            };
            core.handle(0, attached, &mut Vec::new());
            core.snapshot().clients.remove(0)
        }

        /// Snapshots of all devices. The first places are the most important.
        fn views(&self) -> Vec<View> {
            let view = |device: usize| {
                let mut snapshot = Core::new(Config::default()).snapshot();
                let members = self.places.iter().flatten();
                let members = members.filter(|played| played.device == Some(device));
                snapshot.clients = members.map(|played| played.view.clone()).collect();
                let alone = snapshot.clients.len() == 1;
                for (at, client) in snapshot.clients.iter_mut().enumerate() {
                    client.mode = match at {
                        _ if alone => "alone",
                        0 | 1 => "foreground",
                        _ => "background",
                    };
                }
                View {
                    uuid: (device > 0 || self.named).then(|| format!("{device:032}")),
                    snapshot,
                    under_mps: 0,
                    not_under_mps: 0,
                }
            };
            (0..DEVICES).map(view).collect()
        }

        /// Adds up the lateness that this snapshot assigns to background jobs.
        fn expect(&mut self, now: Ns, view: &View) {
            let clients = view.snapshot.clients.iter();
            let clients = clients.map(|view| ClientLook {
                view,
                since: self.thread.clients[&view.client].since,
                held: 0,
                marked: None,
            });
            let clients: Vec<ClientLook<'_>> = clients.collect();
            let device = view.uuid.as_deref().unwrap_or_default();
            let parts = self.thread.book.clone().look(now, device, &clients);
            let of = |mode: &'static str| parts.iter().filter(move |part| part.mode == mode);
            if of("background").count() > 0 {
                self.lateness += of("foreground").map(|part| part.late).sum::<f64>();
            }
        }

        fn look(&mut self, now: Ns) {
            let views = self.views();
            for view in &views {
                self.expect(now, view);
            }
            self.thread.hear(OutcomeMessage::Views(views, now));
        }

        fn step(&mut self, step: &Step) {
            match *step {
                Step::Join(place) if self.places[place].is_none() => {
                    self.numbers += 1;
                    let entry = entry(self.numbers);
                    self.thread.hear(OutcomeMessage::Joined(Arc::clone(&entry), self.now));
                    self.places[place] = Some(Played {
                        entry,
                        joined: self.now,
                        device: Some(0),
                        view: Books::blank(self.numbers),
                        before: 0,
                    });
                }
                Step::Move(place, device) => self.moves(place, Some(device)),
                Step::Aside(place) => {
                    let waits = self.places[place]
                        .as_ref()
                        .is_some_and(|played| played.device.is_some());
                    self.moves(place, if waits { None } else { Some(0) });
                }
                Step::Work(place, work) => {
                    let Some(played) = self.places[place].as_mut() else {
                        return;
                    };
                    let counter = &played.entry.lane.counters.launches;
                    counter.fetch_add(work.launches, Ordering::Relaxed);
                    let is_important = place < 2;
                    if played.device.is_none() {
                        return;
                    }
                    let view = &mut played.view;
                    view.known_launches += work.launches;
                    match is_important {
                        true => view.foreground.gpu += work.gpu,
                        false => view.background.gpu += work.gpu,
                    }
                    let lateness = view.lateness.get_or_insert(Lateness::default());
                    lateness.late += f64::from(work.late) / 3.0;
                    lateness.alone += f64::from(work.judged);
                    lateness.waits += 1;
                }
                Step::Name => self.named = true,
                Step::Look => self.look(self.now),
                Step::LateLook(ago) => {
                    self.late = true;
                    self.look(self.now.saturating_sub(ago));
                }
                Step::Leave(place, viewed) => self.leaves(place, viewed),
                Step::Pass(time) => self.now += time,
                Step::Join(_) => {}
            }
        }

        fn moves(&mut self, place: usize, device: Option<usize>) {
            let Some(played) = self.places[place].as_mut() else {
                return;
            };
            if played.device == device {
                return;
            }
            let client = played.entry.client;
            played.device = device;
            played.before += played.view.foreground.gpu + played.view.background.gpu;
            played.view = Books::blank(client);
            if device.is_some() {
                self.thread.hear(OutcomeMessage::Moved(client, self.now));
            }
        }

        fn leaves(&mut self, place: usize, viewed: bool) {
            let Some(device) = self.places[place].as_ref().map(|played| played.device) else {
                return;
            };
            let view = device.filter(|_| viewed).map(|device| self.views().swap_remove(device));
            if let Some(view) = &view {
                self.expect(self.now, view);
            }
            let Some(played) = self.places[place].take() else {
                return;
            };
            let client = played.entry.client;
            // The books as they are put into the history.
            self.thread.end(&played.entry, view.as_ref(), self.now);
            self.check(&played);
            let costs = self.thread.recorder.recording(client).expect("there").costs;
            self.costs += costs.iter().map(|cost| cost.ns as f64).sum::<f64>();
            self.thread.hear(OutcomeMessage::Left {
                entry: played.entry,
                ending: Ending::Goodbye,
                runs_on: false,
                view: None,
                now: self.now,
            });
        }

        /// `played` was in the last snapshot.
        fn check(&self, played: &Played) {
            let client = played.entry.client;
            let outcome = self.thread.figures(client).expect("there");
            let recording = self.thread.recording(client, &outcome).expect("there");
            let sum = recording.sum();
            assert_eq!(sum.gpu_ns as Ns, outcome.gpu_shared_ns);
            assert_eq!(sum.launches as u64, outcome.launches);
            if let Some(lost) = outcome.lost {
                assert_eq!((sum.lost_ns, sum.waits as u64), (lost.ns, lost.waits));
            }
            if let Some(cost) = outcome.cost {
                assert_eq!(sum.cost_ns, cost.ns);
            }
            let seconds = |ns: i64| ns as f64 / 1e9;
            let same = |ns: i64, s: f64| (seconds(ns) - s).abs() < 1e-6;
            assert!(same(sum.foreground_ns, outcome.foreground_s), "{sum:?} {outcome:?}");
            assert!(same(sum.background_ns, outcome.background_s), "{sum:?} {outcome:?}");
            for one in &recording.intervals {
                let roles = one.foreground_ns + one.background_ns + one.memory_wait_ns;
                assert!((0..=one.length_ns).contains(&roles), "{one:?}");
            }
            let attached = self.now - played.joined;
            assert!(sum.length_ns as Ns <= attached, "{sum:?} of {attached}");
            assert!(self.thread.book.roles_ns(client) <= attached);
            if !self.late {
                assert_eq!(sum.length_ns as Ns, attached);
            }
        }

        fn end(mut self) {
            self.look(self.now);
            for played in self.places.iter().flatten() {
                self.check(played);
                let real = played.before + played.view.foreground.gpu + played.view.background.gpu;
                let shared = self.thread.figures(played.entry.client).expect("there").gpu_shared_ns;
                assert!(shared <= real, "{shared} of {real}");
            }
            for place in 0..PLACES {
                self.leaves(place, false);
            }
            assert!(
                (self.costs - self.lateness).abs() <= self.numbers as f64 * self.numbers as f64 + 1e-3,
                "{} of {}",
                self.costs,
                self.lateness
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn books_are_right(steps in steps()) {
            let mut books = Books::new();
            for step in &steps {
                books.step(step);
            }
            books.end();
        }
    }

    #[test]
    fn a_device_is_called_as_nvidia_smi_counts_it() {
        let gpus = tempfile::tempdir().expect("a folder");
        for (address, uuid) in [("0000:41:00.0", "5e1f6d75"), ("0000:07:00.0", "0f74d4e5")] {
            let folder = gpus.path().join(address);
            std::fs::create_dir(&folder).expect("made");
            let text = format!("Model: \t NVIDIA A100\nGPU UUID: \t GPU-{uuid}-9885-4072-8874-736d69670001\n");
            std::fs::write(folder.join("information"), text).expect("written");
        }
        let called = |begin: &str| {
            device_called(
                gpus.path(),
                &format!("{begin}9885407288747 36d69670001").replace(' ', ""),
            )
        };
        assert_eq!(called("0f74d4e5"), "GPU 0");
        assert_eq!(called("5e1f6d75"), "GPU 1");
        assert_eq!(called("12345678"), "GPU 12345678");
        assert_eq!(device_called(Path::new("/nowhere"), ""), "the GPU");
    }
}
