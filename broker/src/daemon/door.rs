//! The door: lets clients in, answers questions, notices when it is time to end. The broker's main thread.
//!
//! Whoever is slow holds up only the thread made for him. Whoever may not come in is told why.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::answers::Answers;
use super::control::{Arrival, SETS_TOLD};
use super::keeper::{Keeper, Tell};
use super::options::Options;
use super::registry::{Entry, Newcomer, Registry};
use super::scheduler::{Desk, Notice};
use super::status::Ending;
use super::store;
use crate::protocol::board;
use crate::protocol::control::{Hello, Refusal, ToClient};
use crate::protocol::lane::{DILATION_ONE, Lane, Mode, flags};
use crate::protocol::{Ns, PRIORITIES};
use crate::transport;
use crate::transport::server::{Asker, Host, Incoming, Listener, Pending, ToTheClient};
use weft_profiles::Profile;

/// How often the signs of the end are looked at.
const PERIOD: Duration = Duration::from_millis(100);

/// Clients at once. Each takes about five descriptors, of which a process has a million at most and often far less.
const MOST: usize = 4096;

/// Of one user's, in a shared broker.
const MOST_OF_A_USER: usize = MOST / 4;

/// The longest name of a guest's profile that is kept.
const LONGEST_NAME: usize = 200;

/// How long the thread that lets a guest in waits for it to read what is known of its kernels.
const READS_WITHIN: Duration = Duration::from_millis(500);

/// What so many kernels may take goes in one message.
const TIMES_TOLD: usize = 256;

/// The longest command line that is kept.
const LONGEST_COMMAND: usize = 1024;

/// What the door needs.
#[derive(Debug, Clone)]
pub struct Door {
    /// Board and doorbell.
    pub host: Arc<Host>,
    /// Who is attached.
    pub registry: Arc<Registry>,
    /// The scheduler.
    pub desk: Desk,
    /// The keeper.
    pub keeper: Keeper,
    /// The control thread.
    pub control: Sender<Arrival>,
    /// Who answers.
    pub answers: Answers,
    /// Set when the broker is to end.
    pub stop: Arc<AtomicBool>,
    /// What the broker was told at its start.
    pub options: Arc<Options>,
    /// Clients on their way in.
    pub entering: Arc<AtomicUsize>,
}

impl Door {
    /// Stands at the door until it is time to end. Says why it was.
    pub fn keep(&self, listener: &mut Listener) -> &'static str {
        let mut alone_since = Instant::now();
        loop {
            if self.stop.load(Ordering::Acquire) {
                return "asked to";
            }
            if self.registry.count() > 0 || self.entering.load(Ordering::Acquire) > 0 {
                alone_since = Instant::now();
            }
            if self
                .options
                .idle_exit
                .is_some_and(|patience| alone_since.elapsed() >= patience)
            {
                return "nobody was attached for the time of --idle-exit";
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
                    aside("weft-answer", move || {
                        let answer = answers.line(&question.text, question.asker);
                        if let Err(error) = question.answer(&answer) {
                            log::debug!("an answer was not taken: {error}");
                        }
                    });
                }
                Err(error) => {
                    log::warn!("{error}");
                    std::thread::sleep(PERIOD);
                }
            }
        }
    }

    fn let_in(&self, pending: Pending) {
        let refusal = match pending.hello.priority {
            priority if usize::from(priority) >= PRIORITIES => Some(Refusal::Priority(priority)),
            _ if self.registry.count() + self.entering.load(Ordering::Acquire) >= MOST => Some(Refusal::Full(MOST)),
            // One user leaves room for others.
            _ if self.options.door.is_shared() && self.registry.count_of(pending.uid) >= MOST_OF_A_USER => {
                Some(Refusal::Full(MOST_OF_A_USER))
            }
            _ => None,
        };
        if let Some(why) = refusal {
            log::warn!(
                "process {} was not let in: {why}",
                pending.pid.unwrap_or(pending.hello.pid)
            );
            self.registry.refused.fetch_add(1, Ordering::Relaxed);
            pending.refuse(why);
            return;
        }
        self.entering.fetch_add(1, Ordering::AcqRel);
        let door = self.clone();
        let entering = Arc::clone(&self.entering);
        let started = aside("weft-welcome", move || {
            door.welcome(pending);
            door.entering.fetch_sub(1, Ordering::AcqRel);
        });
        if !started {
            entering.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn welcome(&self, pending: Pending) {
        let mut hello = pending.hello.clone();
        let pid = pending.pid.unwrap_or(hello.pid);
        let shared = self.options.door.is_shared();
        let (profile, loaded, trouble) = match shared {
            true => brought(&hello, &pending),
            false => knowledge(hello.profile.as_deref(), hello.profiling),
        };
        let mut lowered = None;
        if shared {
            hello.profiling = false;
            let asker = Asker {
                uid: pending.uid,
                pid: pending.pid,
            };
            if !asker.is_owner() {
                let allowed = self.options.rights.allows(pending.uid, hello.priority);
                lowered = (allowed != hello.priority).then_some((hello.priority, allowed));
                hello.priority = allowed;
            }
        }
        if let Some(trouble) = &trouble {
            log::warn!("process {pid}: {trouble}");
        }
        let costs = loaded.as_ref().map_or_else(Vec::new, |profile| profile.mean_costs());
        let typical = loaded.as_ref().and_then(|profile| profile.typical_cost());
        let client = self.registry.number();
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
            let dilation = (options.dilation * f64::from(DILATION_ONE)) as u32;
            lane.orders.dilation.store(dilation, Ordering::Relaxed);
            if options.refine && !hello.profiling {
                lane.orders.flags.fetch_or(flags::SAMPLE, Ordering::Release);
            }
        });
        let attached = match attached {
            Ok(attached) => attached,
            Err(error) => {
                log::warn!("process {pid} did not come in: {error}");
                self.registry.refused.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        if let Some(profile) = &loaded {
            // A client that does not read goes by what is charged.
            for some in options.core.may_take(profile).chunks(TIMES_TOLD) {
                let _ = attached
                    .sender
                    .send_within(ToClient::MayTake(some.to_vec()), READS_WITHIN);
            }
        }
        let newcomer = Entry::new(Newcomer {
            client,
            pid,
            command: hello.command.chars().take(LONGEST_COMMAND).collect(),
            profile,
            loaded,
            trouble,
            profiling: hello.profiling,
            priority: hello.priority,
            lane: Arc::new(attached.lane),
        });
        if shared {
            tell_guest(&attached.sender, newcomer.loaded.as_deref(), lowered);
        }
        // A shared broker writes no user's files.
        let refines = options.refine && !hello.profiling && newcomer.profile.is_some();
        let entry = Arc::new(match shared {
            true => newcomer.of(attached.uid, attached.house),
            false if refines => newcomer.refining(),
            false => newcomer,
        });
        entry.figures.mode.store(Mode::Alone as u64, Ordering::Relaxed);
        log::info!(
            "client {client} is process {pid}, priority {}: {}",
            hello.priority,
            entry.command
        );
        self.registry.add(Arc::clone(&entry));
        if entry.is_kept() {
            self.keeper.tell(Tell::Attached(Arc::clone(&entry)));
        }
        self.desk.tell(Notice::Attached(Arc::clone(&entry)));
        let arrival = Arrival {
            entry,
            receiver: attached.receiver,
            sender: attached.sender,
            life: attached.life,
        };
        if self.control.send(arrival).is_err() {
            self.desk.tell(Notice::Gone(client, Ending::Vanished));
        }
    }
}

/// What a lane says before the scheduler knows of it.
pub(super) fn first_orders(lane: &Lane, priority: u8, longest_wait: Duration, unknown_cost: Ns, profiling: bool) {
    let orders = &lane.orders;
    // The row of the device that was heard of first, until it says its own.
    let sign = board::sign(0, usize::from(priority));
    orders.sign.store(sign as u32, Ordering::Relaxed);
    let longest = u64::try_from(longest_wait.as_nanos()).unwrap_or(u64::MAX);
    orders.longest_wait.store(longest, Ordering::Relaxed);
    orders.unknown_cost.store(unknown_cost, Ordering::Relaxed);
    let profiling = if profiling { flags::PROFILE } else { 0 };
    orders.flags.store(profiling, Ordering::Relaxed);
    orders.mode.store(Mode::Alone as u32, Ordering::Release);
}

type Knowledge = (Option<String>, Option<Arc<weft_profiles::Profile>>, Option<String>);

/// What is known under a name: its long form, the profile, and what is wrong with it. A client that samples needs none.
fn knowledge(called: Option<&str>, profiling: bool) -> Knowledge {
    let Some(called) = called.filter(|called| !called.is_empty()) else {
        let trouble =
            profiling.then(|| "samples are taken, but WEFT_PROFILE names no profile to keep them in".to_string());
        return (None, None, trouble);
    };
    let long = match store::absolute(called) {
        Ok(long) => long,
        Err(error) => return (Some(called.chars().take(80).collect()), None, Some(error.to_string())),
    };
    if profiling {
        return (Some(long), None, None);
    }
    match store::load(&long) {
        Ok(profile) => (Some(long), Some(Arc::new(profile)), None),
        Err(error) => (Some(long), None, Some(error.to_string())),
    }
}

/// What a guest is told before it is one of many: later nobody waits for it to read.
fn tell_guest(sender: &ToTheClient, profile: Option<&Profile>, lowered: Option<(u8, u8)>) {
    if let Some((asked, allowed)) = lowered {
        let line = format!(
            "priority {asked} is more than the owner of this broker lets your jobs have: this one has {allowed}"
        );
        let _ = sender.send(ToClient::Warning(line));
    }
    let end = Instant::now() + READS_WITHIN;
    let sets = profile.map_or(&[][..], |profile| &profile.working_sets.kernels);
    for sets in sets.chunks(SETS_TOLD) {
        let left = || end.saturating_duration_since(Instant::now());
        let sent = sender.send_within(ToClient::WorkingSets(sets.to_vec()), left());
        if let Err(transport::Error::Nonsense(_)) = sent {
            // Too much for a packet: one by one, without those that are so by themselves.
            for set in sets {
                let _ = sender.send_within(ToClient::WorkingSets(vec![set.clone()]), left());
            }
        }
    }
}

/// The same of a guest of a shared broker, which opens no file for anybody and writes none.
fn brought(hello: &Hello, pending: &Pending) -> Knowledge {
    let called: Option<String> = hello
        .profile
        .as_ref()
        .map(|called| called.chars().take(LONGEST_NAME).collect());
    if hello.profiling {
        let trouble = "a shared broker takes no samples: weft profile uses a broker of your own".to_string();
        return (called, None, Some(trouble));
    }
    let Some(name) = called else { return (None, None, None) };
    let bytes = match pending.profile() {
        Some(Ok(bytes)) => bytes,
        Some(Err(error)) => return (Some(name), None, Some(error.to_string())),
        None => return (Some(name), None, Some("it cannot be read".to_string())),
    };
    match weft_profiles::codec::decode(&bytes, Path::new(&name)) {
        Ok(profile) => (Some(name), Some(Arc::new(profile)), None),
        Err(error) => (Some(name), None, Some(error.to_string())),
    }
}

/// Does something on a thread of its own. False if there can be no more threads now.
fn aside(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    match std::thread::Builder::new().name(name.to_string()).spawn(work) {
        Ok(_) => true,
        Err(error) => {
            log::warn!("no thread for {name}: {error}");
            false
        }
    }
}
