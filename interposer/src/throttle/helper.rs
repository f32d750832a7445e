// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helper thread: attaches to the broker, carries messages, notices a lost broker, and tries again.
//!
//! * One per session, with all signals blocked: neither the job's handlers nor a broken channel's
//!   SIGPIPE run here. Never joined; the process may end at any time.
//! * It makes no driver call.
//! * Only this thread uses the control channel, whose sends may block while a broker is stopped.
//!   The queue before it is bounded.
//! * It keeps the messages that a new broker needs again: kernels, graphs, the device.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::ErrorKind;
use std::mem;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::thread::futex::{self, Flags};
use weft_protocol::VERSION;
use weft_protocol::command_line;
use weft_protocol::control::{ATTACHED_AGAIN, Hello, Refusal, ToBroker, ToClient};
use weft_protocol::fit;
use weft_protocol::lane::Mode;
use weft_protocol::latency_budget::LatencyBudget;
use weft_protocol::transport::TransportError;
use weft_protocol::transport::client::{self, Attachment, Channel};
use weft_protocol::transport::path;

use super::session::Session;
use crate::client::backing_mode;
use crate::client::settings::Purpose;
use crate::client::{autostart, clock};
use crate::thread;

/// Longest wait of `cuInit` for an existing broker. The broker answers in a millisecond or two. If
/// 200 jobs start at once on two starved cores, it answers in seconds. A job that gave up would be
/// unseen.
const FIRST_ATTEMPT: Duration = Duration::from_secs(5);

/// Longest wait of `cuInit` for a broker that is being started, which mostly takes 100 ms.
const STARTING: Duration = Duration::from_secs(2);

/// Interval between attempts to find a broker that is being started.
const SOON: Duration = Duration::from_millis(5);

/// Longest interval between attempts with a broker that did not finish: from `SOON`, doubled each
/// time.
const LATE: Duration = Duration::from_millis(160);

/// Interval between attempts to find an absent broker.
const LATER: Duration = Duration::from_secs(1);

/// Interval between polls for an answer that keeps the process from ending.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Times to notice a broker's death, while the job needs the broker and while it does not.
const WATCH: Duration = Duration::from_millis(50);
const GLANCE: Duration = Duration::from_millis(250);

/// Messages kept for a new broker.
const KNOWN: usize = 50_000;

/// Stack size; serialisation for the channel needs the most.
const STACK: usize = 512 * 1024;

/// 1 after the first attempt, whatever its outcome.
static TRIED: AtomicU32 = AtomicU32::new(0);

/// Starts the helper and waits, bounded, for the first attempt to attach.
pub fn start(session: &'static Session, path: PathBuf) {
    TRIED.store(0, Ordering::Relaxed);
    let thread = Builder::new().name("weft".into()).stack_size(STACK);
    let spawned = thread::spawn(thread, move || {
        if crate::internal_error::guarded(|| Helper::new(session, path).run()).is_none() {
            // Without this the broker's death would go unnoticed.
            let_go(session);
        }
        done();
    });
    if let Err(why) = spawned {
        log::warn!("this job runs without weft: cannot start a thread: {why}");
        return;
    }
    let deadline = clock::now() + FIRST_ATTEMPT.as_nanos() as u64;
    while TRIED.load(Ordering::Acquire) == 0 {
        let now = clock::now();
        if now >= deadline {
            return;
        }
        let _ = futex::wait(&TRIED, Flags::PRIVATE, 0, Some(&clock::timespec(deadline - now)));
    }
}

fn done() {
    TRIED.store(1, Ordering::Release);
    let _ = futex::wake(&TRIED, Flags::PRIVATE, i32::MAX as u32);
}

/// Leaves the broker: launches pass through, and waiting launches too. Only the helper calls it.
fn let_go(session: &Session) {
    let orders = &session.link.lane.orders;
    orders.mode.store(Mode::Free as u32, Ordering::Release);
    orders.bell.fetch_add(1, Ordering::AcqRel);
    // Before the old memory is unmapped, because a shared futex is identified by its memory.
    let _ = futex::wake(&orders.bell, Flags::empty(), i32::MAX as u32);
    session.link.lane_place.clear();
    session.link.epoch_page_place.clear();
    session.gate.broker_lost();
}

/// Key of a message that a new broker needs again.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Kernel(u64),
    Graph(u64),
    Memory(u64),
    Device,
    Wants,
    Context,
}

/// Whether the broker may have given this client up. The broker's time limit is shorter, and on
/// starved cores every process is slow. The channel that it offered is then gone.
fn gave_up(why: &TransportError) -> bool {
    match why {
        TransportError::Late(..) | TransportError::Gone => true,
        TransportError::System { source, .. } => {
            matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
        }
        _ => false,
    }
}

struct Helper {
    session: &'static Session,
    path: PathBuf,
    channel: Option<Channel>,
    comparison: clock::Comparison,
    known: HashMap<Key, ToBroker>,
    /// Whether an answer is expected soon.
    asked: bool,
    lost: u64,
    warned: bool,
    hopeless: bool,
    /// Whether the broker knows kernels of the job's profile.
    profiled: bool,
    /// Whether the profile's coverage was reported.
    judged: bool,
    /// Values that `weft set` gave the job under earlier brokers.
    set_priority: Option<u8>,
    set_budget: LatencyBudget,
}

impl Helper {
    fn new(session: &'static Session, path: PathBuf) -> Helper {
        Helper {
            session,
            path,
            channel: None,
            comparison: clock::Comparison::begin(),
            known: HashMap::new(),
            asked: false,
            lost: 0,
            warned: false,
            hopeless: false,
            profiled: false,
            judged: false,
            set_priority: None,
            set_budget: LatencyBudget::default(),
        }
    }

    fn run(&mut self) {
        self.first_attempt();
        done();
        let mut next = Instant::now() + LATER;
        loop {
            if self.session.admission.further == 0 {
                // One comparison line per process.
                self.comparison.go_on();
            }
            self.carry();
            if self.channel.is_some() {
                self.watch();
                continue;
            }
            // Messages may come often; attempts must not.
            let now = Instant::now();
            if now < next || self.hopeless {
                let pause = next.saturating_duration_since(now);
                self.session
                    .link
                    .messages
                    .wait(if self.hopeless { LATER } else { pause });
                continue;
            }
            next = now + LATER;
            self.try_once();
        }
    }

    fn hello(&self) -> Hello {
        let settings = &self.session.link.settings;
        let command = command_line::join(std::env::args_os().map(|word| word.to_string_lossy().into_owned()));
        Hello {
            version: VERSION,
            pid: std::process::id(),
            priority: self.set_priority.unwrap_or(settings.priority),
            profile: settings.profile.clone(),
            profiling: settings.purpose == Purpose::Profile,
            command,
            budget: self.set_budget.or(settings.budget),
            name: settings.name.clone(),
        }
    }

    fn first_attempt(&mut self) {
        let begin = Instant::now();
        let mut starter = None;
        let mut pause = SOON;
        loop {
            let left = FIRST_ATTEMPT.saturating_sub(begin.elapsed());
            match self.attach(left) {
                Ok(()) => return,
                Err(why) if gave_up(&why) && begin.elapsed() + pause < FIRST_ATTEMPT => {
                    std::thread::sleep(pause);
                    pause = (2 * pause).min(LATE);
                }
                // An administrator starts a shared broker.
                Err(TransportError::NoBroker(path))
                    if self.session.link.settings.autostart
                        && begin.elapsed() < STARTING
                        && !path::is_shared(&path) =>
                {
                    if starter.is_none() {
                        let started = autostart::start(&self.path);
                        if let Err(why) = &started {
                            log::info!("no broker was started: {why}");
                            self.complain(&TransportError::NoBroker(self.path.clone()));
                            return;
                        }
                        starter = started.ok();
                    }
                    std::thread::sleep(SOON);
                }
                // The message names the whole limit, not the part left for the last attempt.
                Err(TransportError::Late(who, _)) => {
                    self.complain(&TransportError::Late(who, FIRST_ATTEMPT));
                    return;
                }
                Err(why) => {
                    self.complain(&why);
                    return;
                }
            }
        }
    }

    fn try_once(&mut self) {
        match self.attach(FIRST_ATTEMPT) {
            Ok(()) | Err(TransportError::NoBroker(_)) => {}
            Err(why) => self.complain(&why),
        }
    }

    fn complain(&mut self, why: &TransportError) {
        let certain = matches!(
            why,
            TransportError::Refused(_) | TransportError::OtherUser { .. } | TransportError::Folder { .. }
        );
        // Version and priority do not change while this process lives.
        self.hopeless = matches!(
            why,
            TransportError::Refused(Refusal::Version { .. } | Refusal::Priority(_) | Refusal::User | Refusal::Unseen)
        );
        let loud = (self.session.link.settings.explicit || certain) && !self.warned;
        if loud {
            self.warned = true;
            log::warn!("this job runs without weft: {why}");
        } else {
            log::info!("this job runs without weft: {why}");
        }
    }

    fn attach(&mut self, within: Duration) -> Result<(), TransportError> {
        let Attachment {
            client,
            lane,
            epoch_page,
            bell,
            costs,
            channel,
        } = client::attach(&self.path, self.hello(), within)?;
        let session = self.session;
        if self.lost > 0 && clock::find_namespace_again() {
            self.comparison = clock::Comparison::begin();
        }
        self.profiled = !costs.is_empty();
        for (hash, cost) in costs {
            session.link.costs.set(hash, cost);
        }
        self.learn_graphs();
        // The new lane's accounts begin at zero: earlier work is not in them.
        session.completion.forget_work();
        session.link.epoch_page_place.put(&epoch_page)?;
        session.link.bell.hang(bell);
        let broker = channel.broker().unwrap_or(0);
        session.link.broker.store(broker, Ordering::Relaxed);
        // The job keeps the former broker's quota.
        let share = session.admission.last_quota();
        // The lane last: it brings the mode.
        session.link.lane_place.put(&lane)?;
        session.link.attachments.fetch_add(1, Ordering::AcqRel);
        session.admission.report_memory(&session.link);
        session.admission.changes.report(&session.link);
        session.link.report_moving();
        session.link.lane.reports.state.store(1, Ordering::Release);
        session.link.messages.nudge();
        let again = self.lost > 0;
        log::info!("attached to the broker at {} as client {client}", self.path.display());
        for (key, message) in &self.known {
            let mut message = message.clone();
            match (key, &mut message) {
                // Free memory has changed since.
                (Key::Context, _) => continue,
                (Key::Wants, ToBroker::Wants(wants)) => {
                    wants.runs = session.admission.reattach_bytes(share);
                    // An open backing mode may have been decided meanwhile.
                    wants.managed = backing_mode::managed();
                    wants.either &= backing_mode::is_open();
                }
                _ => {}
            }
            // Notes are not kept: this one is derived from the message.
            let device_share = session.link.settings.device_share;
            let note = match &message {
                ToBroker::Device { mps, .. } => {
                    if let Some(server) = device_share.mps_server {
                        let _ = channel.send(ToBroker::MpsServer(server));
                    }
                    device_share.note(*mps)
                }
                _ => None,
            };
            if channel.send(message).is_err() {
                break;
            }
            if let Some(note) = note {
                let _ = channel.send(ToBroker::Note(note));
            }
        }
        if again {
            let note = format!("{ATTACHED_AGAIN} ({} times so far)", self.lost);
            let _ = channel.send(ToBroker::Note(note));
        }
        self.channel = Some(channel);
        Ok(())
    }

    /// Takes the threads' messages; sends them if there is a broker.
    fn carry(&mut self) {
        let (waiting, dropped) = self.session.link.messages.take();
        if dropped > 0 {
            let counter = &self.session.link.lane.counters.dropped_messages;
            counter.fetch_add(dropped, Ordering::Relaxed);
        }
        for message in waiting {
            if let Some(channel) = &self.channel {
                if !channel.intact() {
                    self.detach("its descriptors were closed by the job");
                } else if channel.send(message.clone()).is_err() {
                    self.detach("it is gone");
                }
            }
            // The broker may answer this message, and the first launches are near.
            self.asked |= matches!(message, ToBroker::Device { .. } | ToBroker::Wants(_));
            let key = match &message {
                ToBroker::Kernel { hash, .. } => Key::Kernel(*hash),
                ToBroker::Graph { hash, .. } => Key::Graph(*hash),
                ToBroker::Device { .. } => Key::Device,
                ToBroker::Wants(_) => Key::Wants,
                ToBroker::Context { .. } => Key::Context,
                ToBroker::WaitsNoMore => {
                    self.known.remove(&Key::Wants);
                    continue;
                }
                ToBroker::Backed { start, .. } => Key::Memory(*start),
                // Resting memory needs no repetition: its next use is reported.
                ToBroker::Resting { start } | ToBroker::Unbacked { start } => {
                    self.known.remove(&Key::Memory(*start));
                    continue;
                }
                ToBroker::Note(_)
                | ToBroker::MpsServer(_)
                | ToBroker::More { .. }
                | ToBroker::NoMore
                | ToBroker::Refused { .. }
                | ToBroker::OnDevice
                | ToBroker::Outcome
                | ToBroker::Goodbye
                | ToBroker::Touched { .. }
                | ToBroker::Forecast { .. }
                | ToBroker::WorkingSet(_) => continue,
            };
            if self.known.len() < KNOWN {
                self.known.insert(key, message);
            }
        }
    }

    /// Looks at an attached broker once, then naps.
    fn watch(&mut self) {
        let Some(channel) = &self.channel else { return };
        if !channel.intact() {
            self.detach("its descriptors were closed by the job");
            return;
        }
        if channel.lost() {
            self.detach("it is gone");
            return;
        }
        let wanted = self.session.link.messages.begins_to_hear();
        while let Ok(Some(message)) = channel.receive() {
            match message {
                ToClient::Warning(line) => log::warn!("{line}"),
                ToClient::Said(line) => crate::report::always(&line),
                ToClient::Outcome(lines) => self.session.end_lines.heard(&lines),
                ToClient::ForgetCosts => {
                    self.profiled = false;
                    self.forget_costs();
                }
                ToClient::Costs(costs) => {
                    for (kernel, cost) in costs {
                        self.session.link.costs.set(kernel, cost);
                    }
                    self.learn_graphs();
                    self.session.link.lane.counters.charges.fetch_add(1, Ordering::Relaxed);
                }
                ToClient::MayTake(times) => self.session.predictions.know_long(&times),
                ToClient::WorkingSets(sets) => crate::paging::access_tracker::know(sets),
                // Both belong to the attach, which is over.
                ToClient::Welcome { .. } | ToClient::Refused(_) => {}
            }
        }
        self.judge();
        let session = self.session;
        session.link.messages.has_heard(wanted);
        let background = session.link.lane.orders.mode.load(Ordering::Relaxed) == Mode::Background as u32;
        if background {
            // Work of a job that is busy elsewhere also counts as ended after a time.
            let now = clock::now();
            if session.completion.report_overdue(&session.link, now) {
                session.link.ring();
            }
        }
        if session.link.sampling() {
            session.tell_launches();
        }
        let nap = match background {
            // The process ends as soon as it has the answer.
            _ if session.end_lines.awaited() => AT_ONCE,
            true => WATCH,
            false => GLANCE,
        };
        session
            .link
            .messages
            .wait(if mem::take(&mut self.asked) { SOON } else { nap });
    }

    /// Reports once how much of the job its profile covers. The profile may be another job's.
    fn judge(&mut self) {
        let (session, counters) = (self.session, &self.session.link.lane.counters);
        let launches = counters.launches.load(Ordering::Relaxed) + counters.graph_launches.load(Ordering::Relaxed);
        let Some(called) = session.link.settings.profile.as_deref() else {
            return;
        };
        if self.judged || !self.profiled || launches < fit::MIN_LAUNCHES {
            return;
        }
        self.judged = true;
        let knows = |hash: &u64| session.link.costs.get(*hash).is_some();
        let mut fit = fit::ProfileFit::default();
        for message in self.known.values() {
            let known = match message {
                ToBroker::Kernel { hash, .. } => knows(hash),
                ToBroker::Graph { hash, kernels } => knows(hash) || !kernels.is_empty() && kernels.iter().all(knows),
                _ => continue,
            };
            fit.seen += 1;
            fit.known += u64::from(known);
        }
        let line = fit.line(called.rsplit('/').next().unwrap_or(called));
        match fit.is_poor() {
            true => log::warn!("{line}"),
            false => log::info!("{line}"),
        }
    }

    /// Drops all costs, also those of graphs: the profile is of another GPU.
    fn forget_costs(&self) {
        self.session.link.costs.forget();
        self.session.predictions.forget();
        self.learn_graphs();
    }

    /// Recomputes the known graphs' costs.
    fn learn_graphs(&self) {
        for message in self.known.values() {
            if let ToBroker::Graph { hash, kernels } = message {
                self.session.predictions.learn_graph(&self.session.link, *hash, kernels);
            }
        }
    }

    fn detach(&mut self, why: &str) {
        let Some(channel) = self.channel.take() else { return };
        let (priority, budget) = self.session.link.lane.orders.was_set();
        (self.set_priority, self.set_budget) = (priority.or(self.set_priority), budget.or(self.set_budget));
        let_go(self.session);
        self.lost += 1;
        if channel.intact() {
            drop(channel);
        } else {
            // The descriptors may now belong to the program: leaking them is better than closing
            // them.
            mem::forget(channel);
        }
        let text =
            format!("the broker is lost ({why}); this job continues without weft and looks for a broker once a second");
        if self.session.link.settings.explicit && self.lost == 1 {
            log::warn!("{text}");
        } else {
            log::info!("{text}");
        }
    }
}
