// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers to questions from the command line.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use super::mps::MpsService;
use super::reload::LiveOptions;
use crate::clients::pods::PodNames;
use crate::clients::registry::{Entry, Registry, identity};
use crate::history::{self, HistoryWriter};
use crate::metrics::{MetricsAudience, MetricsCache, MetricsFormat};
use crate::outcomes::{OutcomeHandle, OutcomeMessage, OutcomeReport};
use crate::profiles::writer::{ProfileMessage, ProfileWriter};
use crate::scheduler_mailbox::{Notice, SchedulerHandle};
use crate::server::Asker;
use crate::server::other_brokers::OtherBrokers;
use weft_api::admin::{AdminQuestion, Answer};
use weft_api::history::HistoryQuery;
use weft_api::mps::Joining;
use weft_api::paths::Places;
use weft_api::placement::Seeker;
use weft_api::plain_text::{LONGEST_LABEL, clean};
use weft_api::profile_path;
use weft_api::recording::MOST_JOBS;
use weft_api::status::{self, BrokerStatus, ClientStatus, DeviceStatus, Status};
use weft_api::users::name_of;
use weft_protocol::VERSION;
use weft_protocol::control::is_uuid;
use weft_protocol::eviction::{EvictionCause, MoveBy, Residence};
use weft_protocol::latency_budget::LatencyBudget;

/// Answer to a guest that asks for a part of the device's time.
pub(crate) const ONLY_THE_OWNER: &str =
    "only the owner of this broker gives jobs a part of the GPU's time (weft set --at-least)";

/// The sources of answers.
#[derive(Debug, Clone)]
pub struct QueryHandler {
    /// The admission thread's state.
    pub admission: crate::admission::AdmissionHandle,
    /// Attached clients.
    pub registry: Arc<Registry>,
    pub to_scheduler: SchedulerHandle,
    pub outcomes: OutcomeHandle,
    pub profile_writer: ProfileWriter,
    /// Set to end the broker.
    pub stop: Arc<AtomicBool>,
    /// Time of the broker's start.
    pub since: Instant,
    pub socket: PathBuf,
    /// The policy in force.
    pub policy: String,
    pub delay_bound: Duration,
    /// Longest wait of a launch at the gate.
    pub longest_wait: Duration,
    /// Whether the driver's checkpoint may move jobs on plain memory.
    pub checkpoint: bool,
    /// Whether the broker is shared: users change only their own jobs.
    pub shared: bool,
    /// Options that may change while it runs: its users' rights.
    pub live: Arc<LiveOptions>,
    /// Other brokers that manage a device of this one.
    pub other_brokers: OtherBrokers,
    /// Names of the containers in Kubernetes that clients run in.
    pub pods: PodNames,
    /// Status last read for metrics.
    pub metrics: MetricsCache,
    /// The broker's MPS daemon.
    pub mps: MpsService,
    /// Writer of the rows of ended jobs.
    pub history: HistoryWriter,
}

impl QueryHandler {
    /// Answers a JSON question in JSON.
    pub fn line(&self, question: &str, asker: Asker) -> String {
        let answer = match serde_json::from_str(question) {
            Ok(question) => self.answer(question, asker),
            Err(error) => Answer::Sorry(format!("cannot parse the question: {error}")),
        };
        serde_json::to_string(&answer).unwrap_or_else(|error| format!("{{\"sorry\":\"{error}\"}}"))
    }

    fn answer(&self, question: AdminQuestion, asker: Asker) -> Answer {
        if let Some(why) = self.forbids(&question, asker) {
            return Answer::Sorry(why);
        }
        match question {
            AdminQuestion::Ping => Answer::Pong {
                pid: std::process::id(),
                protocol: VERSION,
                version: env!("CARGO_PKG_VERSION").to_string(),
            },
            AdminQuestion::Status => {
                self.settle(SETTLE_LIMIT);
                let mut status = self.status();
                if let Some(uid) = self.sees_own_alone(asker) {
                    let ended = status.ended.iter_mut().map(|ended| &mut ended.last);
                    let others = status.clients.iter_mut().chain(ended);
                    others.filter(|client| client.uid != uid).for_each(ClientStatus::hide);
                    let own = |client| self.registry.get(client).is_some_and(|entry| entry.uid == uid);
                    status.warnings.retain(|warning| warning.client.is_none_or(own));
                }
                Answer::Status(Box::new(status))
            }
            AdminQuestion::Queue => {
                self.settle(SETTLE_LIMIT);
                let mut queue = self.admission.queue();
                queue.others = self.other_brokers.others();
                if let Some(uid) = self.sees_own_alone(asker) {
                    queue.hide_all_but(&uid.to_string());
                }
                Answer::Queue(Box::new(queue))
            }
            AdminQuestion::Place(seeker) if !is_sound(&seeker) => {
                Answer::Sorry("the list of devices is invalid".to_string())
            }
            AdminQuestion::Place(seeker) => match self.admission.place(&self.known(*seeker, asker)) {
                Ok(place) => Answer::Placed(place),
                Err(why) => Answer::Sorry(why.to_string()),
            },
            AdminQuestion::Set {
                client,
                pid,
                job,
                priority,
                budget,
            } => {
                // Another user's job may have the same name.
                let named = |entry: &Entry| {
                    let own = self.sees_own_alone(asker).is_none_or(|uid| uid == entry.uid);
                    own && job.as_ref() == Some(&entry.name)
                };
                let who = |entry: &Entry| client == Some(entry.client) || pid == Some(entry.pid) || named(entry);
                // A job is all that one `weft run` started.
                let of = |entry: &Entry| (entry.uid, entry.gang());
                let mut jobs = Vec::new();
                self.registry.each(|entry| {
                    if who(entry) && !entry.gang().is_empty() {
                        jobs.push(of(entry));
                    }
                });
                let same = |entry: &Entry| who(entry) || jobs.contains(&of(entry));
                self.set(same, priority, budget, asker)
            }
            AdminQuestion::Evict {
                clients,
                evict,
                until_call,
            } => {
                let cause = match until_call {
                    true => EvictionCause::UntilCall,
                    false => EvictionCause::Command,
                };
                self.evict(&clients, evict, cause, asker)
            }
            AdminQuestion::Cancelled { clients } => {
                let own = |entry: &Entry| self.sees_own_alone(asker).is_none_or(|uid| uid == entry.uid);
                let named = clients.iter().filter_map(|client| self.registry.get(*client));
                let named: Vec<_> = named.filter(|entry| own(entry)).collect();
                // A process on several devices is a client on each.
                let same = |one: &Entry, other: &Entry| (one.pid, one.uid) == (other.pid, other.uid);
                self.registry.each(|entry| {
                    if named.iter().any(|cancelled| same(cancelled, entry)) {
                        entry.end.cancel();
                    }
                });
                Answer::Done
            }
            AdminQuestion::Weight { user, weight } => {
                let (user, _) = identity(rustix::process::geteuid().as_raw(), false, &user, "");
                self.admission.weigh(&user, weight);
                Answer::Done
            }
            AdminQuestion::ProfileKeep { name, pid } => {
                self.settle(KEEP_LIMIT);
                match self.admission.learnt(pid, self.whose(asker).as_deref()) {
                    // The asking process writes the profile with its own rights.
                    Some(took) if self.shared => Answer::Learnt(took),
                    Some(took) => took
                        .keep(&name)
                        .map_or_else(|error| Answer::Sorry(error.to_string()), Answer::Kept),
                    None => Answer::Sorry(match pid {
                        Some(pid) => format!(
                            "no memory use was recorded for a job of process {pid} (weft queue lists the recorded jobs)"
                        ),
                        None => "no job without --memory or profile has ended here (weft queue)".to_string(),
                    }),
                }
            }
            AdminQuestion::ProfileBegin { name } => match profile_path::absolute(&name) {
                Ok(called) => {
                    self.profile_writer.tell(ProfileMessage::Begin(called));
                    Answer::Done
                }
                Err(error) => Answer::Sorry(error.to_string()),
            },
            AdminQuestion::ProfileFlush { name } => self.sampled(&name, ProfileMessage::Flush),
            AdminQuestion::ProfileEnd { name } => self.sampled(&name, ProfileMessage::End),
            AdminQuestion::History(query) => self.history(query, asker),
            AdminQuestion::Metrics { openmetrics } => {
                let format = match openmetrics {
                    true => MetricsFormat::OpenMetrics,
                    false => MetricsFormat::Prometheus,
                };
                let audience = match self.sees_own_alone(asker) {
                    None => MetricsAudience::Owner,
                    Some(_) => MetricsAudience::Guest,
                };
                Answer::Metrics(self.metrics(format, audience))
            }
            AdminQuestion::Recorded(query) => self.recorded(query, asker),
            AdminQuestion::Joining { mps: joins } => {
                let mps = match joins {
                    true => self.mps.joined(),
                    false => self.mps.status(),
                };
                let priorities = self.registry.all().into_iter().map(|entry| entry.status().priority);
                Answer::Joining(Joining {
                    first: joins && self.mps.warns(),
                    mps,
                    most_important: priorities.min(),
                })
            }
            AdminQuestion::Stop => {
                self.stop.store(true, Ordering::Release);
                Answer::Done
            }
        }
    }

    /// Reason why this user may not ask this; `None`: the user may. A private broker is reachable
    /// only by its own user.
    fn forbids(&self, question: &AdminQuestion, asker: Asker) -> Option<String> {
        if !self.shared {
            return None;
        }
        let own = "a shared broker takes no samples: weft profile uses your own broker";
        match question {
            AdminQuestion::Stop | AdminQuestion::Weight { .. } if !asker.is_owner() => Some(format!(
                "only the owner of this shared broker, or root outside of containers, may do that (you are user {})",
                name_of(asker.uid)
            )),
            AdminQuestion::ProfileBegin { .. }
            | AdminQuestion::ProfileFlush { .. }
            | AdminQuestion::ProfileEnd { .. } => Some(own.to_string()),
            _ => None,
        }
    }

    /// The only user whose jobs the asker may see in detail; `None`: all users. A shared broker
    /// shows only the presence and usage of other users' jobs.
    fn sees_own_alone(&self, asker: Asker) -> Option<u32> {
        (self.shared && !asker.is_owner()).then_some(asker.uid)
    }

    /// Label of the only user whose observed usage the asker may read; `None`: all users.
    fn whose(&self, asker: Asker) -> Option<String> {
        (self.shared && !asker.is_owner()).then(|| asker.uid.to_string())
    }

    /// The seeker with user and process as the kernel reports them.
    fn known(&self, seeker: Seeker, asker: Asker) -> Seeker {
        let label = |said: &str| clean(said, LONGEST_LABEL);
        let (user, gang) = identity(asker.uid, self.shared, &label(&seeker.user), &label(&seeker.gang));
        match self.shared {
            true => Seeker {
                user,
                gang,
                pid: asker.pid.unwrap_or(seeker.pid),
                priority: match asker.is_owner() {
                    true => seeker.priority,
                    false => self.live.allows(asker.uid, seeker.priority),
                },
                unseen: false,
                ..seeker
            },
            // A process id of another pid namespace has no meaning here.
            false => Seeker {
                user,
                unseen: asker.pid != Some(seeker.pid),
                ..seeker
            },
        }
    }

    /// Waits until jobs that have ended by now are shown as ended: a shell asks right after one.
    fn settle(&self, longest: Duration) {
        self.registry.wait_for_deaths(longest);
        // The scheduler removes them in the order of its messages.
        let _ = self.to_scheduler.look();
    }

    /// As [`QueryHandler::settle`], also in the file.
    fn settle_history(&self) {
        self.settle(SETTLE_LIMIT);
        let _ = self.outcomes.ask();
        self.history.flush(SETTLE_LIMIT);
    }

    /// Reads the history on the thread that answers, so no other thread waits for the disk.
    fn history(&self, query: HistoryQuery, asker: Asker) -> Answer {
        self.settle_history();
        let query = HistoryQuery {
            uid: self.sees_own_alone(asker).or(query.uid),
            // The limit lets the asker read the answer in time.
            last: Some(query.last.unwrap_or(MOST_ROWS_ANSWERED).min(MOST_ROWS_ANSWERED)),
            ..query
        };
        let places = Places::at(&self.socket);
        let read = history::file_of(&places, self.shared).and_then(|file| history::read(&file, &query));
        match read {
            Ok((rows, damaged)) => {
                if let Some(damaged) = damaged {
                    log::warn!("{damaged}");
                }
                Answer::History(rows)
            }
            Err(error) => Answer::Sorry(error.to_string()),
        }
    }

    /// Attached jobs, and with a query ended ones as in [`QueryHandler::history`], with recordings.
    fn recorded(&self, query: Option<HistoryQuery>, asker: Asker) -> Answer {
        self.settle_history();
        let mut jobs = self.outcomes.recorded(self.sees_own_alone(asker)).unwrap_or_default();
        if let Some(query) = query {
            let query = HistoryQuery {
                uid: self.sees_own_alone(asker).or(query.uid),
                last: Some(query.last.unwrap_or(MOST_JOBS).min(MOST_JOBS)),
                ..query
            };
            let places = Places::at(&self.socket);
            let read = history::file_of(&places, self.shared).and_then(|file| history::read_recorded(&file, &query));
            match read {
                Ok((ended, damaged)) => {
                    if let Some(damaged) = damaged {
                        log::warn!("{damaged}");
                    }
                    jobs.extend(ended);
                }
                Err(error) => return Answer::Sorry(error.to_string()),
            }
        }
        Answer::Recorded(jobs)
    }

    fn sampled(
        &self,
        name: &str,
        tell: impl FnOnce(String, std::sync::mpsc::Sender<weft_api::status::Sampled>) -> ProfileMessage,
    ) -> Answer {
        let called = match profile_path::absolute(name) {
            Ok(called) => called,
            Err(error) => return Answer::Sorry(error.to_string()),
        };
        match self.profile_writer.ask(|way| tell(called, way)) {
            Some(sampled) => Answer::Sampled(sampled),
            None => Answer::Sorry("the disk did not answer in time".to_string()),
        }
    }

    /// Orders clients to move their memory. Users of a shared broker order only their own.
    fn evict(&self, clients: &[u64], evict: bool, cause: EvictionCause, asker: Asker) -> Answer {
        let own = |entry: &Entry| self.sees_own_alone(asker).is_none_or(|uid| uid == entry.uid);
        let found: Vec<_> = clients.iter().filter_map(|client| self.registry.get(*client)).collect();
        if let Some(other) = found.iter().find(|entry| !own(entry)) {
            return Answer::Sorry(format!(
                "client {} belongs to user {}: only that user and the broker's owner may move it",
                other.client,
                name_of(other.uid)
            ));
        }
        let by_checkpoint = found
            .iter()
            .filter(|entry| evict && entry.lane.eviction.by() == MoveBy::Checkpoint);
        for entry in by_checkpoint.filter(|entry| entry.lane.eviction.residence() == Residence::Device) {
            if !self.admission.sample(entry.client) {
                return Answer::Sorry(
                    "the driver's checkpoint needs NVML on this machine, and a moment in which no memory is taken or freed: without them the room for the return is unknown"
                        .to_string(),
                );
            }
        }
        // A client without movable memory has no thread that would answer.
        let moves = |entry: &&Arc<Entry>| entry.lane.eviction.residence() != Residence::Fixed;
        for entry in found.iter().filter(moves) {
            let slot = &entry.lane.eviction;
            slot.give_order(evict, cause);
            let _ = futex::wake(&slot.order, futex::Flags::empty(), i32::MAX as u32);
        }
        Answer::Set(found.len())
    }

    fn set(&self, who: impl Fn(&Entry) -> bool, priority: Option<u8>, budget: LatencyBudget, asker: Asker) -> Answer {
        if let Some(priority) = priority.filter(|priority| usize::from(*priority) >= weft_protocol::PRIORITIES) {
            return Answer::Sorry(format!("priority {priority} is not between 0 and 9"));
        }
        let found: Vec<_> = self.registry.all().into_iter().filter(|entry| who(entry)).collect();
        if self.shared && !asker.is_owner() {
            if let Some(other) = found.iter().find(|entry| entry.uid != asker.uid) {
                return Answer::Sorry(format!(
                    "client {} belongs to user {}, you are {}",
                    other.client,
                    name_of(other.uid),
                    name_of(asker.uid)
                ));
            }
            if budget.at_least.is_some_and(|part| part > 0) {
                return Answer::Sorry(ONLY_THE_OWNER.to_string());
            }
            if let Some(allowed) = priority.map(|asked| self.live.allows(asker.uid, asked))
                && priority != Some(allowed)
            {
                return Answer::Sorry(format!(
                    "the owner of this broker allows your jobs priority {allowed} at most (9 is the lowest)"
                ));
            }
        }
        for entry in &found {
            entry.lane.orders.set(priority, budget);
            // Visible in the status at once; the scheduler writes it into the lane.
            if let Some(priority) = priority {
                entry.priority.store(priority, Ordering::Relaxed);
                self.to_scheduler.tell(Notice::Priority(entry.client, priority));
                self.admission.priority(entry.client, priority);
            }
            if !budget.is_unsaid() {
                entry.set_budget(budget);
                self.to_scheduler.tell(Notice::Budget(entry.client, entry.budget()));
            }
        }
        Answer::Set(found.len())
    }

    /// The broker's metrics as text, with the names that this audience may read.
    pub fn metrics(&self, format: MetricsFormat, audience: MetricsAudience) -> String {
        self.metrics.text(format, audience, || {
            let status = self.status();
            self.outcomes.tell(OutcomeMessage::Keep);
            status
        })
    }

    /// The broker's whole status.
    pub fn status(&self) -> Status {
        let sums = self.registry.sums();
        let entries = self.registry.all();
        self.pods.name(&entries);
        let mut clients: Vec<_> = entries.iter().map(|entry| entry.status()).collect();
        clients.sort_by_key(|client| (client.priority, client.client));
        let waiting = self.admission.waiting();
        let limits = self.admission.limits();
        for client in &mut clients {
            client.waits_for_memory_s = waiting.get(&client.client).copied();
            (client.memory_request, client.memory_limit) = limits.get(&client.client).copied().unzip();
        }
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let report = self.outcomes.ask().unwrap_or_else(|| OutcomeReport {
            views: self.to_scheduler.look().unwrap_or_default(),
            ..OutcomeReport::default()
        });
        let (views, outcomes) = (report.views, report.outcomes);
        for client in &mut clients {
            client.outcome = outcomes.get(&client.client).cloned();
        }
        let mut ended = self.registry.last_ended();
        // One may have ended meanwhile.
        clients.retain(|client| ended.iter().all(|ended| ended.last.client != client.client));
        for ended in &mut ended {
            ended.last.outcome = outcomes.get(&ended.last.client).cloned();
        }
        for view in views.iter().flat_map(|device| &device.snapshot.clients) {
            if let Some(client) = clients.iter_mut().find(|client| client.client == view.client) {
                client.slowdown_allowed = Some(view.slowdown_allowed);
                client.slowdown_measured = view.slowdown_measured;
                client.slo_ns = view.slo;
                client.at_least = view.at_least;
            }
        }
        let gpus: Vec<_> = self.registry.all().iter().filter_map(|entry| entry.gpu()).collect();
        let cores: Vec<DeviceStatus> = views
            .into_iter()
            .map(|view| {
                let gpu = gpus.iter().find(|gpu| Some(&gpu.uuid) == view.uuid.as_ref());
                (view, gpu)
            })
            .map(|(view, gpu)| DeviceStatus {
                uuid: view.uuid,
                name: gpu.map(|gpu| gpu.name.clone()).filter(|name| !name.is_empty()),
                memory: gpu.map(|gpu| gpu.memory).filter(|memory| *memory > 0),
                under_mps: view.under_mps,
                not_under_mps: view.not_under_mps,
                core: serde_json::to_value(view.snapshot).unwrap_or_default(),
            })
            .collect();
        Status {
            schema: status::SCHEMA,
            broker: BrokerStatus {
                pid: std::process::id(),
                node: node(),
                knows_pods: self.pods.are_known(),
                version: env!("CARGO_PKG_VERSION").to_string(),
                protocol: VERSION,
                policy: self.policy.clone(),
                socket: self.socket.clone(),
                checkpoint: self.checkpoint,
                shared: self.shared,
                profiles: match self.shared {
                    true => PathBuf::new(),
                    false => profile_path::folder(),
                },
                uptime_s: self.since.elapsed().as_secs_f64(),
                delay_bound_us: self.delay_bound.as_micros() as u64,
                longest_wait_ms: self.longest_wait.as_millis() as u64,
                waiting: self.to_scheduler.gauges.waiting().to_string(),
                attached: read(&self.registry.attached),
                refused: read(&self.registry.refused),
                goodbyes: sums.goodbyes,
                vanished: sums.vanished,
                detached: sums.detached,
                exits: sums.exits,
                records_lost: sums.lost,
                records: sums.records,
                decisions: read(&self.to_scheduler.gauges.decisions),
                turns: read(&self.to_scheduler.gauges.turns),
                profile_failures: self.profile_writer.failures(),
                last_trouble: self.to_scheduler.gauges.trouble(),
                history_trouble: self.history.trouble(),
                core: cores.first().map(|core| core.core.clone()),
                devices: cores,
                others: self.other_brokers.others(),
                mps: self.mps.status(),
            },
            clients,
            ended,
            warnings: report.warnings,
        }
    }
}

/// Longest wait of an answer for ends of jobs and for their rows; usually it takes 40 ms.
const SETTLE_LIMIT: Duration = Duration::from_millis(500);

/// Longest such wait of `weft profile keep`, which a shell runs right after the job. A control
/// thread that gets no CPU takes this long; one that does takes 40 ms.
const KEEP_LIMIT: Duration = Duration::from_secs(5);

/// Variable with the machine's name. In a pod, `uname -n` is the pod's name.
const NODE_VARIABLE: &str = "WEFT_NODE";

/// The machine's name: [`NODE_VARIABLE`], else as in `uname -n`.
fn node() -> String {
    let named = std::env::var(NODE_VARIABLE).ok().filter(|name| !name.trim().is_empty());
    let name = named.unwrap_or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default());
    clean(name.trim(), LONGEST_NODE)
}

/// Longest name of a machine, characters: of a node of Kubernetes, longer than Linux' own bound.
const LONGEST_NODE: usize = 253;

/// Rows of the history in one answer, about a megabyte.
const MOST_ROWS_ANSWERED: u64 = 1_000;

/// Most devices to choose from, more than any machine has, MIG instances included.
const MOST_DEVICES: usize = 128;

/// Whether the devices' UUIDs have the driver's format.
fn is_sound(seeker: &Seeker) -> bool {
    seeker.devices.len() <= MOST_DEVICES && seeker.devices.iter().all(|device| is_uuid(&device.uuid))
}
