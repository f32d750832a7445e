// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control thread: clients' less urgent messages, and their deaths.
//!
//! A closed channel shows a death within some 100 us. If a forked child holds the channel open, the
//! pidfd shows it; pidfds are checked each [`PERIOD`]. A dead client's messages are read first.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use log::Level;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_profiles::GpuIdentity;

use crate::admission;
use crate::base::user_log;
use crate::clients::registry::{Entry, LONGEST_NOTE, Registry};
use crate::memory::{self, MemoryHandle};
use crate::outcomes::{OutcomeHandle, OutcomeMessage};
use crate::profiles::writer::{ProfileMessage, ProfileWriter};
use crate::scheduler_mailbox::{Notice, SchedulerHandle};
use crate::server::{Accounts, FromClient, Inbox, Life, News, ToTheClient, thread_time};
use weft_api::mps;
use weft_api::plain_text::{LONGEST_LABEL, clean};
use weft_api::status::Ending;
use weft_protocol::Ns;
use weft_protocol::admission_slot::AdmissionState;
use weft_protocol::control::{ToBroker, ToClient, Wants};

/// Interval between checks of arrivals and pidfds.
const PERIOD: Duration = Duration::from_millis(20);

/// Working sets per message; each takes some 100 bytes, with a list of tensors some 1000.
pub(super) const SETS_TOLD: usize = 16;

/// Time to read a dead client's last messages while other clients keep sending.
///
/// Such a client also remains for as many rounds as there were clients when its death was noticed.
/// Each round reads from at least one sending client, in turn, so its messages are read even if the
/// thread is slow.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Ratio of a message's whole cost to its cost on this thread. The rest is the poll that finds the
/// message, and work of threads that it wakes. If floods cost this thread 6 % of a core, the rest
/// costs up to 6 % more.
const COST_IN_ALL: u32 = 2;

/// Sleep without clients, unless one arrives.
const LONELY: Duration = Duration::from_secs(1);

/// A client that has its lane.
#[derive(Debug)]
pub struct Arrival {
    /// The client's registry entry.
    pub entry: Arc<Entry>,
    /// Messages from the client.
    pub receiver: FromClient,
    /// Messages to the client.
    pub sender: ToTheClient,
    /// Death notices of the client.
    pub life: Life,
}

/// Values shared with the thread.
#[derive(Debug, Clone, Default)]
pub struct ControlFlags {
    /// Set to end the thread.
    pub stop: Arc<AtomicBool>,
    /// Rounds of the thread so far.
    pub rounds: Arc<AtomicU64>,
    /// CPU time accounts.
    pub accounts: Accounts,
}

/// Receivers of clients' messages.
#[derive(Debug)]
pub struct ControlHearers {
    /// Gets devices and ends.
    pub to_scheduler: SchedulerHandle,
    /// Gets kernels and devices of jobs that are sampled.
    pub profile_writer: ProfileWriter,
    /// Gets managed memory.
    pub memory: MemoryHandle,
    /// Gets requests for memory.
    pub admission: admission::AdmissionHandle,
    /// Gets clients that are about to end.
    pub outcomes: OutcomeHandle,
}

/// Starts the thread. It ends once the sender is dropped and [`ControlFlags::stop`] is set.
pub fn start(
    registry: Arc<Registry>,
    hearers: ControlHearers,
    unknown_cost: Ns,
    flags: ControlFlags,
) -> Result<(Sender<Arrival>, JoinHandle<()>), weft_protocol::transport::TransportError> {
    let (arrivals, incoming) = channel();
    let inbox = Inbox::make()?;
    let ControlHearers {
        to_scheduler,
        profile_writer,
        memory,
        admission,
        outcomes,
    } = hearers;
    let control = Control {
        inbox,
        peers: HashMap::new(),
        registry,
        to_scheduler,
        profile_writer,
        memory,
        admission,
        outcomes,
        unknown_cost,
        accounts: flags.accounts,
        all_heard: true,
        looks: 0,
        mps: mps::MpsCheck::default(),
        rounds: flags.rounds,
    };
    let thread = std::thread::Builder::new()
        .name("weft-control".into())
        .spawn(move || control.run(&incoming, &flags.stop))
        .map_err(|source| weft_protocol::transport::TransportError::System {
            what: "starting a thread",
            source,
        })?;
    Ok((arrivals, thread))
}

struct ControlledClient {
    entry: Arc<Entry>,
    life: Life,
    sender: ToTheClient,
    /// Whether it was warned that its profile does not fit the GPU. It is warned once: a client
    /// that does not read must not block the thread.
    warned: bool,
    waits: bool,
    /// The device that the scheduler knows; only a change is sent, since a message wakes it.
    device: String,
    /// Its MPS server; 0: unknown.
    mps_server: u64,
    /// Time at which its death was noticed, and the round that reads the last of its messages.
    dying_since: Option<(Instant, u64)>,
}

struct Control {
    inbox: Inbox,
    peers: HashMap<u64, ControlledClient>,
    registry: Arc<Registry>,
    to_scheduler: SchedulerHandle,
    profile_writer: ProfileWriter,
    memory: MemoryHandle,
    admission: admission::AdmissionHandle,
    outcomes: OutcomeHandle,
    /// Cost of a kernel that is not in its job's profile, ns.
    unknown_cost: Ns,
    /// CPU time accounts.
    accounts: Accounts,
    all_heard: bool,
    /// Reads of the inbox so far.
    looks: u64,
    /// Check for clients whose driver does not report MPS.
    mps: mps::MpsCheck,
    /// Rounds so far; the heartbeat watches them.
    rounds: Arc<AtomicU64>,
}

impl Control {
    fn run(mut self, incoming: &Receiver<Arrival>, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            self.rounds.fetch_add(1, Ordering::Relaxed);
            user_log::tend();
            self.registry.settle_ends();
            if self.peers.is_empty() {
                let longest = if self.admission.awaits_ends() { PERIOD } else { LONELY };
                match incoming.recv_timeout(longest) {
                    Ok(arrival) => self.arrive(arrival),
                    Err(RecvTimeoutError::Timeout) => {
                        // Otherwise ended jobs of an earlier broker would never be noticed.
                        self.admission.tick();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            while let Ok(arrival) = incoming.try_recv() {
                self.arrive(arrival);
            }
            let heard = self.inbox.wait(PERIOD);
            let before = thread_time();
            let mut of_users = Vec::new();
            match heard {
                Ok(news) => {
                    self.all_heard = news.is_empty();
                    self.looks += 1;
                    for (client, news) in news {
                        of_users.extend(self.peers.get(&client).map(|peer| peer.entry.uid));
                        self.hear(client, news);
                    }
                }
                Err(error) => {
                    log::warn!("{error}");
                    std::thread::sleep(PERIOD);
                }
            }
            self.look_for_deaths();
            if self.all_heard && self.peers.values().all(|peer| peer.dying_since.is_none()) {
                self.registry.settled.fetch_add(1, Ordering::Relaxed);
            }
            self.admission.tick();
            self.look_who_waits();
            self.charge(&of_users, thread_time().saturating_sub(before));
        }
    }

    /// Charges a round's CPU time to users, in proportion to their messages.
    fn charge(&self, of_users: &[u32], time: Duration) {
        let messages = u32::try_from(of_users.len()).unwrap_or(u32::MAX);
        let Some(part) = time.checked_div(messages) else { return };
        let mut users: Vec<u32> = of_users.to_vec();
        users.sort_unstable();
        for of_one in users.chunk_by(|one, other| one == other) {
            let his = part * u32::try_from(of_one.len()).unwrap_or(u32::MAX) * COST_IN_ALL;
            self.accounts.charge(of_one.first().copied().unwrap_or(0), his);
        }
    }

    /// Reports to the scheduler which clients wait for device memory; they have no role meanwhile.
    fn look_who_waits(&mut self) {
        for (client, peer) in &mut self.peers {
            let waits = peer.entry.lane.admission_slot.state() == AdmissionState::Waits;
            if waits != peer.waits {
                peer.waits = waits;
                self.to_scheduler.tell(Notice::Waits(*client, waits));
            }
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        let client = arrival.entry.client;
        if let Err(error) = self.inbox.add(client, arrival.receiver) {
            user_log::line(arrival.entry.uid, Level::Warn, format_args!("client {client}: {error}"));
            self.to_scheduler.tell(Notice::Gone(client, Ending::Detached));
            return;
        }
        if let Some(trouble) = arrival.entry.profile_trouble() {
            warn(&arrival.sender, &trouble);
        }
        // Guests got their working sets while they were let in, since this thread must not wait for
        // a client that does not read.
        let own = arrival.entry.user_page.is_none();
        if let Some(profile) = arrival.entry.loaded.as_ref().filter(|_| own) {
            // One message each would be thousands; a single one may not fit.
            for sets in profile.working_sets.kernels.chunks(SETS_TOLD) {
                let _ = arrival.sender.send(ToClient::WorkingSets(sets.to_vec()));
            }
        }
        let peer = ControlledClient {
            entry: arrival.entry,
            life: arrival.life,
            sender: arrival.sender,
            warned: false,
            waits: false,
            device: String::new(),
            mps_server: 0,
            dying_since: None,
        };
        self.peers.insert(client, peer);
    }

    fn hear(&mut self, client: u64, news: News) {
        match news {
            News::Said(message) if message.is_sound() => self.said(client, message),
            News::Said(_) | News::Nonsense => {
                if let Some(peer) = self.peers.get(&client) {
                    peer.entry.note("sent an invalid message");
                    self.end(client, Some(Ending::Detached));
                }
            }
            News::Gone => self.end(client, None),
        }
    }

    fn said(&mut self, client: u64, message: ToBroker) {
        let Some(peer) = self.peers.get_mut(&client) else {
            return;
        };
        let entry = &peer.entry;
        match message {
            ToBroker::Kernel { hash, id } => {
                entry.named(hash, &[]);
                entry.call_kernel(hash, &id.short_name());
                if entry.profiling {
                    self.profile_writer.tell(ProfileMessage::Named(client, hash, id));
                }
            }
            ToBroker::Graph { hash, kernels } => {
                entry.named(hash, &kernels);
                if entry.profiling {
                    let id = weft_kernel_id::KernelId::graph(hash, kernels.len());
                    self.profile_writer.tell(ProfileMessage::Named(client, hash, id));
                }
            }
            ToBroker::Device {
                name,
                uuid,
                memory,
                driver,
                mps,
            } => {
                if peer.device != uuid {
                    peer.device.clone_from(&uuid);
                    self.to_scheduler.tell(Notice::Device(client, uuid.clone()));
                }
                let mps = mps.unwrap_or_else(|| self.mps.runs());
                self.to_scheduler
                    .tell(Notice::Shares(client, mps.then_some(peer.mps_server)));
                self.memory
                    .tell(memory::MemoryMessage::Device(client, uuid.clone(), memory));
                let gpu = GpuIdentity {
                    name: clean(&name, LONGEST_LABEL),
                    uuid,
                    memory,
                    driver,
                };
                if let Some(trouble) = entry.device(&gpu) {
                    user_log::line(entry.uid, Level::Warn, format_args!("client {client}: {trouble}"));
                    if !std::mem::replace(&mut peer.warned, true) {
                        // The default cost first: the profile's typical cost must not outlive the
                        // client's table.
                        let unknown = &entry.lane.orders.unknown_cost;
                        unknown.store(self.unknown_cost, Ordering::Relaxed);
                        // Fails only for an ended client.
                        let _ = peer.sender.send(ToClient::ForgetCosts);
                        warn(&peer.sender, &trouble);
                    }
                    self.to_scheduler.tell(Notice::Unprofiled(client));
                }
                if entry.profiling {
                    self.profile_writer.tell(ProfileMessage::Device(client, gpu));
                }
            }
            ToBroker::Backed { start, bytes } => self.memory.tell(memory::MemoryMessage::Backed(client, start, bytes)),
            ToBroker::Unbacked { start } => self.memory.tell(memory::MemoryMessage::Unbacked(client, start)),
            ToBroker::Forecast {
                number,
                period,
                uses,
                ends,
            } => self.memory.tell(memory::MemoryMessage::Forecast {
                client,
                number,
                period,
                uses,
                ends,
            }),
            ToBroker::WorkingSet(set) => {
                if entry.profiling {
                    self.profile_writer.tell(ProfileMessage::WorkingSet(client, set));
                }
            }
            ToBroker::Touched { starts } => self.memory.tell(memory::MemoryMessage::Touched(client, starts)),
            // The memory remains in place; a new owner reports it.
            ToBroker::Resting { .. } => {}
            ToBroker::Wants(wants) => {
                if peer.device != wants.uuid {
                    peer.device.clone_from(&wants.uuid);
                    self.to_scheduler.tell(Notice::Device(client, wants.uuid.clone()));
                }
                let label = |said: &str| clean(said, LONGEST_LABEL);
                let (user, gang) = entry.identity(&label(&wants.user), &label(&wants.gang));
                entry.set_gang(&gang);
                let of_others = self.admission.wants(entry, &peer.sender, Wants { user, gang, ..wants });
                self.accounts.charge(entry.uid, of_others);
            }
            ToBroker::More { bytes, patience } => {
                let of_others = self.admission.more(client, bytes, patience);
                self.accounts.charge(entry.uid, of_others);
            }
            ToBroker::NoMore => self.admission.no_more(client),
            ToBroker::Refused { free } => {
                let of_others = self.admission.refused(client, free);
                self.accounts.charge(entry.uid, of_others);
            }
            ToBroker::OnDevice => self.admission.on_device(client),
            ToBroker::WaitsNoMore => self.admission.gone(client),
            ToBroker::Context { free, held, own, at } => {
                self.admission
                    .context(client, admission::MemoryProbe { free, held, own, at });
            }
            ToBroker::Note(line) => {
                let line = clean(&line, LONGEST_NOTE);
                user_log::line(entry.uid, Level::Info, format_args!("client {client}: {line}"));
                entry.note(&line);
            }
            ToBroker::MpsServer(server) => peer.mps_server = server,
            ToBroker::Outcome => {
                entry.stops();
                self.outcomes.tell(OutcomeMessage::Wanted(client, peer.sender.clone()));
            }
            ToBroker::Goodbye => entry.goodbye.store(true, Ordering::Relaxed),
        }
    }

    /// Ends clients that died or were detached.
    ///
    /// A second round with an empty inbox proves that a dead client's messages were read. While
    /// other clients keep sending, `LAST_WORDS` and the number of rounds bound the wait.
    fn look_for_deaths(&mut self) {
        let over = |peer: &ControlledClient| peer.entry.over.load(Ordering::Acquire);
        let let_go: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, peer)| over(peer))
            .map(|(client, _)| *client)
            .collect();
        for client in let_go {
            self.end(client, Some(Ending::Detached));
        }
        let hung: Vec<u64> = {
            let mut owners = Vec::new();
            let mut set = Vec::new();
            for (client, peer) in &self.peers {
                for descriptor in peer.life.descriptors() {
                    owners.push(*client);
                    set.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN | PollFlags::RDHUP));
                }
            }
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            if !poll(&mut set, Some(&zero)).is_ok_and(|ready| ready > 0) {
                return;
            }
            owners
                .into_iter()
                .zip(&set)
                .filter(|(_, descriptor)| !descriptor.revents().is_empty())
                .map(|(client, _)| client)
                .collect()
        };
        let (looks, clients) = (self.looks, self.peers.len() as u64);
        for client in hung {
            let Some(peer) = self.peers.get_mut(&client) else {
                continue;
            };
            match peer.dying_since {
                None => peer.dying_since = peer.life.left().then(|| (Instant::now(), looks + clients)),
                Some((since, last)) if self.all_heard || since.elapsed() > LAST_WORDS && looks > last => {
                    self.end(client, None);
                }
                Some(_) => {}
            }
        }
    }

    /// Drops a client's connection, lane and descriptors. `ending`: the broker's decision; `None`:
    /// the client's own state decides.
    fn end(&mut self, client: u64, ending: Option<Ending>) {
        let Some(peer) = self.peers.remove(&client) else { return };
        self.inbox.forget(client);
        let told = peer.entry.lane.counters.exit_status.load(Ordering::Acquire);
        peer.entry.end.hear(told);
        self.admission.let_go(client, peer.life.pidfd());
        /// Value of [`weft_protocol::lane::Reports::state`] after a clean end.
        const LEFT: u32 = 2;
        let well =
            peer.entry.goodbye.load(Ordering::Relaxed) || peer.entry.lane.reports.state.load(Ordering::Acquire) == LEFT;
        let ending = ending.unwrap_or(if well { Ending::Goodbye } else { Ending::Vanished });
        let how = match ending {
            Ending::Goodbye => "ended",
            Ending::Vanished => "vanished",
            Ending::Detached => "was let go",
        };
        let (uid, pid) = (peer.entry.uid, peer.entry.pid);
        user_log::line(uid, Level::Info, format_args!("client {client} (process {pid}) {how}"));
        if let Some(trouble) = peer.entry.misfit(1) {
            user_log::line(uid, Level::Warn, format_args!("client {client}: {trouble}"));
        }
        // The scheduler no longer knows a detached client.
        if self.registry.get(client).is_some() {
            self.to_scheduler.tell(Notice::Gone(client, ending));
        }
    }
}

/// Warns the job that its profile cannot be used.
fn warn(sender: &ToTheClient, trouble: &str) {
    // Fails only for an ended client.
    let _ = sender.send(ToClient::Warning(format!("{trouble}; the job runs without it")));
}
