// SPDX-License-Identifier: MIT OR Apache-2.0
//! The acceptor, the broker's main thread: lets clients in, answers questions, notices the broker's
//! end.
//!
//! Slow clients delay only threads started for them. Refused clients get the reason.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use log::Level;
use rustix::process::{Resource, getrlimit};
use weft_profiles::Profile;

use super::control::{Arrival, SETS_TOLD};
use crate::base::options::Options;
use crate::base::process::Process;
use crate::base::user_log;
use crate::clients::registry::{EarlierClient, Entry, NewEntry, Registry};
use crate::operation::query::{ONLY_THE_OWNER, QueryHandler};
use crate::operation::reload::Reloader;
use crate::profiles::guest_profiles::GuestProfiles;
use crate::profiles::writer::{ProfileMessage, ProfileWriter};
use crate::scheduler_mailbox::{Notice, SchedulerHandle};
use crate::server::other_brokers::OtherBrokers;
use crate::server::user_threads::{ThreadLimits, UserThreads};
use crate::server::{Asker, Host, Incoming, Listener, PendingClient, Question, ToTheClient};
use weft_api::plain_text::clean;
use weft_api::profile_path;
use weft_api::status::Ending;
use weft_protocol::control::{Hello, Refusal, ToClient};
use weft_protocol::epoch_page;
use weft_protocol::lane::{Lane, Mode, flags};
use weft_protocol::latency_budget;
use weft_protocol::transport::TransportError;
use weft_protocol::{Ns, PRIORITIES};

const PERIOD: Duration = Duration::from_millis(100);

/// Most clients at once, if there are enough descriptors.
const MOST: usize = 4096;

/// Most descriptors of a client: connection, lane, process, both ends of a private channel.
const DESCRIPTORS: u64 = 5;

/// Descriptors for other uses: threads' files, questions, half-open connections.
const OTHERS: u64 = 256;

/// Divisor of [`MOST`]: a guest may have `1 / GUESTS_PART` of a shared broker's clients.
const GUESTS_PART: usize = 4;

/// Most clients of a guest that are let in at once. Unparsed, their profiles take at most 64 MiB;
/// they are parsed one at a time.
const ENTER_AT_ONCE: usize = 16;

/// Most questions of a guest that are answered at once; an answer may be large and slow.
const ANSWERS_AT_ONCE: usize = 4;

/// Most questions of a guest that may wait.
const QUESTIONS: usize = 256;

/// Most tasks at once of a user who is not a guest.
const OWNERS_AT_ONCE: usize = 256;

/// Longest kept name of a guest's profile.
const LONGEST_NAME: usize = 200;

/// Time within which a client must read its kernels' times and working sets.
const READS_WITHIN: Duration = Duration::from_millis(500);

/// Kernel times per message.
const TIMES_TOLD: usize = 256;

/// Longest kept reason for a missing profile.
const LONGEST_TROUBLE: usize = 1024;

/// Longest kept command line.
const LONGEST_COMMAND: usize = 1024;

/// The acceptor's state.
#[derive(Debug, Clone)]
pub struct Acceptor {
    /// Epoch page and doorbell.
    pub host: Arc<Host>,
    /// Attached clients.
    pub registry: Arc<Registry>,
    pub to_scheduler: SchedulerHandle,
    pub profile_writer: ProfileWriter,
    /// The control thread.
    pub control: Sender<Arrival>,
    /// Answers questions.
    pub answers: QueryHandler,
    /// Set to end the broker.
    pub stop: Arc<AtomicBool>,
    /// The broker's options.
    pub options: Arc<Options>,
    /// Clients being let in.
    pub entering: UserThreads<PendingClient>,
    /// Questions being answered.
    pub asking: UserThreads<Question>,
    pub guest_profiles: Arc<GuestProfiles>,
    /// Most clients at once ([`most`]).
    pub most: usize,
    /// Other brokers that manage a device of this one.
    pub other_brokers: OtherBrokers,
    /// Reads the options again on SIGHUP.
    pub reloader: Arc<Reloader>,
}

/// Most clients of this process. A low limit of descriptors lowers it, so that clients cannot use
/// them all.
pub fn most() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = files.saturating_sub(OTHERS) / DESCRIPTORS;
    usize::try_from(most).unwrap_or(MOST).clamp(GUESTS_PART, MOST)
}

impl Acceptor {
    /// Serves until the broker must end. Returns the reason.
    pub fn keep(&self, listener: &mut Listener) -> &'static str {
        let mut alone_since = Instant::now();
        loop {
            if self.stop.load(Ordering::Acquire) {
                return "stop requested";
            }
            self.other_brokers.tend(|| self.registry.devices().into_iter());
            if self.registry.count() > 0 || self.entering.count() > 0 {
                alone_since = Instant::now();
            }
            self.reloader.tend();
            let idle_exit = self.answers.live.idle_exit();
            if idle_exit.is_some_and(|patience| alone_since.elapsed() >= patience) {
                return "no client was attached for the time of --idle-exit";
            }
            match listener.accept(PERIOD) {
                Ok(None) => {
                    if !listener.in_place() {
                        return "its socket was removed";
                    }
                }
                Ok(Some(Incoming::Client(pending))) => {
                    alone_since = Instant::now();
                    self.let_in(pending);
                }
                Ok(Some(Incoming::Question(question))) => {
                    let answers = self.answers.clone();
                    let most = match self.is_guest(question.asker.uid) {
                        true => ThreadLimits {
                            at_once: ANSWERS_AT_ONCE,
                            waiting: QUESTIONS,
                        },
                        false => OWNERS,
                    };
                    let asked = self.asking.take(question.asker.uid, question, most, move |question| {
                        let answer = answers.line(&question.text, question.asker);
                        if let Err(error) = question.answer(&answer) {
                            log::debug!("an answer was not delivered: {error}");
                        }
                    });
                    if asked.is_err() {
                        log::debug!("a question was dropped: its user has {QUESTIONS} waiting");
                    }
                }
                Err(error) => {
                    log::warn!("{error}");
                    std::thread::sleep(PERIOD);
                }
            }
        }
    }

    /// Whether the limits of guests apply: the broker is shared, and the user is neither root nor
    /// its owner.
    fn is_guest(&self, uid: u32) -> bool {
        self.options.door.is_shared() && !Asker { uid, pid: None }.is_owner()
    }

    fn let_in(&self, pending: PendingClient) {
        let uid = pending.uid;
        let (guest, guests) = (self.is_guest(uid), self.most / GUESTS_PART);
        let here = || self.registry.count_of(uid) + self.entering.count_of(uid);
        let refusal = match pending.hello.priority {
            priority if usize::from(priority) >= PRIORITIES => Some(Refusal::Priority(priority)),
            _ if self.registry.count() + self.entering.count() >= self.most => Some(Refusal::Full(self.most)),
            // Leaves room for other users.
            _ if guest && here() >= guests => Some(Refusal::Full(guests)),
            _ => None,
        };
        if let Some(why) = refusal {
            return self.refuse(pending, why);
        }
        let most = match guest {
            true => ThreadLimits {
                at_once: ENTER_AT_ONCE,
                waiting: guests,
            },
            false => OWNERS,
        };
        let door = self.clone();
        let taken = self
            .entering
            .take(uid, pending, most, move |pending| door.welcome(pending));
        if let Err(pending) = taken {
            self.refuse(pending, Refusal::Full(guests));
        }
    }

    fn refuse(&self, pending: PendingClient, why: Refusal) {
        let pid = pending.pid.unwrap_or(pending.hello.pid);
        user_log::line(
            pending.uid,
            Level::Warn,
            format_args!("process {pid} was refused: {why}"),
        );
        self.registry.refused.fetch_add(1, Ordering::Relaxed);
        pending.refuse(why);
    }

    fn welcome(&self, pending: PendingClient) {
        let mut hello = pending.hello.clone();
        let pending_pid = pending.pid;
        let (uid, pid) = (pending.uid, pending_pid.unwrap_or(hello.pid));
        let shared = self.options.door.is_shared();
        let (profile, loaded, trouble) = match shared {
            true => match self.guest_profile(&hello, &pending) {
                Ok(knowledge) => knowledge,
                Err(error) => return self.did_not_come(uid, pid, &error),
            },
            false => knowledge(hello.profile.as_deref(), hello.profiling),
        };
        let (mut lowered, mut part) = (None, None);
        if shared {
            hello.profiling = false;
            let asker = Asker {
                uid: pending.uid,
                pid: pending.pid,
            };
            if !asker.is_owner() {
                let allowed = self.answers.live.allows(pending.uid, hello.priority);
                lowered = (allowed != hello.priority).then_some((hello.priority, allowed));
                hello.priority = allowed;
                part = hello.budget.at_least.take().filter(|part| *part > 0);
            }
        }
        // The text contains names that the client chose.
        let trouble = trouble.map(|trouble| clean(&trouble, LONGEST_TROUBLE));
        if let Some(trouble) = &trouble {
            user_log::line(uid, Level::Warn, format_args!("process {pid}: {trouble}"));
        }
        let costs = loaded.as_ref().map_or_else(Vec::new, |profile| profile.mean_costs());
        let typical = loaded.as_ref().and_then(|profile| profile.typical_cost());
        let process = pending_pid.map_or_else(|| Process::unseen(pid), Process::of);
        let client = self.registry.number_of(process, uid, || self.earlier_clients());
        let options = &self.options;
        let attached = pending.welcome(&self.host, client, costs, |lane| {
            let unknown_cost = typical.unwrap_or(options.core.unknown_cost);
            first_orders(
                lane,
                hello.priority,
                options.longest_wait,
                unknown_cost,
                hello.profiling,
            );
            lane.orders.set_speed(options.speed);
            lane.eviction.allow_checkpoint(options.checkpoint);
        });
        let attached = match attached {
            Ok(attached) => attached,
            Err(error) => return self.did_not_come(uid, pid, &error),
        };
        // A client that does not read these times in time uses the costs that it is charged.
        let end = Instant::now() + READS_WITHIN;
        if let Some(profile) = &loaded {
            for some in options.core.may_take(profile).chunks(TIMES_TOLD) {
                let left = end.saturating_duration_since(Instant::now());
                if let Err(TransportError::Late(..) | TransportError::Gone) =
                    attached.sender.send_within(ToClient::MayTake(some.to_vec()), left)
                {
                    break;
                }
            }
        }
        let new_client = Entry::new(NewEntry {
            client,
            pid,
            command: clean(&hello.command, LONGEST_COMMAND),
            profile,
            loaded,
            trouble,
            profiling: hello.profiling,
            priority: hello.priority,
            lane: Arc::new(attached.lane),
        })
        .budgeted(hello.budget)
        .called(hello.name.as_deref());
        if shared {
            tell_guest(&attached.sender, new_client.loaded.as_deref(), (lowered, part), end);
        }
        let new_client = match pending_pid {
            Some(_) => new_client,
            None => new_client.unseen(),
        };
        let new_client = match shared {
            true => new_client.of(attached.uid, attached.user_page),
            false => new_client,
        };
        let containers = pending_pid.map_or_else(Vec::new, |pid| self.answers.pods.containers_of(pid));
        // If the process has ended, another one may have had its pid.
        let new_client = match attached.life.ended() {
            true => new_client,
            false => new_client.within(containers),
        };
        let entry = Arc::new(new_client.watched(attached.life.pidfd()));
        entry.figures.mode.store(Mode::Alone as u64, Ordering::Relaxed);
        let (priority, command) = (hello.priority, &entry.command);
        user_log::line(
            uid,
            Level::Info,
            format_args!("client {client} is process {pid}, priority {priority}: {command}"),
        );
        entry.speaks_by(attached.sender.clone());
        self.registry.add(Arc::clone(&entry));
        if entry.profiling {
            self.profile_writer.tell(ProfileMessage::Attached(Arc::clone(&entry)));
        }
        self.to_scheduler.tell(Notice::Attached(Arc::clone(&entry)));
        let arrival = Arrival {
            entry,
            receiver: attached.receiver,
            sender: attached.sender,
            life: attached.life,
        };
        if self.control.send(arrival).is_err() {
            self.to_scheduler.tell(Notice::Gone(client, Ending::Vanished));
        }
    }

    /// The profile that a guest sent. A shared broker opens and writes no files for guests.
    fn guest_profile(&self, hello: &Hello, pending: &PendingClient) -> Result<Knowledge, TransportError> {
        let called: Option<String> = hello.profile.as_ref().map(|called| clean(called, LONGEST_NAME));
        if hello.profiling {
            let trouble = "a shared broker takes no samples: weft profile uses your own broker".to_string();
            return Ok((called, None, Some(trouble)));
        }
        let Some(name) = called else {
            return Ok((None, None, None));
        };
        let taken = match pending.profile()? {
            Ok(bytes) => self.guest_profiles.take(pending.uid, &name, &bytes),
            Err(why) => Err(format!("profile {name:?}: {why}")),
        };
        Ok(match taken {
            Ok(profile) => (Some(name), Some(profile), None),
            Err(trouble) => (Some(name), None, Some(trouble)),
        })
    }

    fn earlier_clients(&self) -> Vec<EarlierClient> {
        let books = self.answers.history.open_books().iter();
        books.map(|book| (book.process, book.uid, book.row.client())).collect()
    }

    fn did_not_come(&self, uid: u32, pid: u32, why: &TransportError) {
        user_log::line(uid, Level::Warn, format_args!("process {pid} did not attach: {why}"));
        self.registry.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// Limits for users who are not guests: one thread would be slow, and more would not be faster.
const OWNERS: ThreadLimits = ThreadLimits {
    at_once: OWNERS_AT_ONCE,
    waiting: MOST,
};

/// Writes a lane's first orders.
pub(crate) fn first_orders(lane: &Lane, priority: u8, longest_wait: Duration, unknown_cost: Ns, profiling: bool) {
    let orders = &lane.orders;
    // The first device's row, until the client's device is known.
    let epoch = epoch_page::epoch(0, usize::from(priority));
    orders.epoch.store(epoch as u32, Ordering::Relaxed);
    let longest = u64::try_from(longest_wait.as_nanos()).unwrap_or(u64::MAX);
    orders.longest_wait.store(longest, Ordering::Relaxed);
    orders.unknown_cost.store(unknown_cost, Ordering::Relaxed);
    let profiling = if profiling { flags::PROFILE } else { 0 };
    orders.flags.store(profiling, Ordering::Relaxed);
    orders.mode.store(Mode::Alone as u32, Ordering::Release);
}

type Knowledge = (Option<String>, Option<Arc<weft_profiles::Profile>>, Option<String>);

/// A profile's absolute name, the profile unless the client samples, and any trouble.
fn knowledge(called: Option<&str>, profiling: bool) -> Knowledge {
    let Some(called) = called.filter(|called| !called.is_empty()) else {
        let trouble = profiling.then(|| "WEFT_PROFILE names no profile to save the samples in".to_string());
        return (None, None, trouble);
    };
    let long = match profile_path::absolute(called) {
        Ok(long) => long,
        Err(error) => return (Some(called.chars().take(80).collect()), None, Some(error.to_string())),
    };
    if profiling {
        return (Some(long), None, None);
    }
    match profile_path::load(&long) {
        Ok(profile) => (Some(long), Some(Arc::new(profile)), None),
        Err(error) => (Some(long), None, Some(error.to_string())),
    }
}

/// Sends a guest its priority warning and working sets. Later no thread waits for the guest to
/// read.
fn tell_guest(
    sender: &ToTheClient,
    profile: Option<&Profile>,
    (lowered, part): (Option<(u8, u8)>, Option<u32>),
    end: Instant,
) {
    if let Some((asked, allowed)) = lowered {
        let line =
            format!("priority {asked} is above the limit of the broker's owner for your jobs: this job has {allowed}");
        let _ = sender.send(ToClient::Warning(line));
    }
    if let Some(part) = part {
        let line = format!("at least {}: {ONLY_THE_OWNER}", latency_budget::slowdown_text(part));
        let _ = sender.send(ToClient::Warning(line));
    }
    let sets = profile.map_or(&[][..], |profile| &profile.working_sets.kernels);
    for sets in sets.chunks(SETS_TOLD) {
        let left = || end.saturating_duration_since(Instant::now());
        let sent = sender.send_within(ToClient::WorkingSets(sets.to_vec()), left());
        if let Err(TransportError::Nonsense(_)) = sent {
            // Too much for a packet: send them one by one; one that is too large by itself is
            // dropped.
            for set in sets {
                let _ = sender.send_within(ToClient::WorkingSets(vec![set.clone()]), left());
            }
        }
    }
}
