// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler thread: reads all lanes, passes events to the core, carries out its decisions,
//! waits.
//!
//! Only this thread uses the core and writes orders. It reads the launch epochs, then the lanes,
//! then asks the core. Credit is bound to that first reading, so a foreground launch that the core
//! does not know yet voids it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::device_cores::{Cores, NewClient, budget_event};
use super::lane_rotation::WatchRotation;
use super::lanes::{LaneFault, LaneWatch};
use super::user_pages::UserPages;
use crate::base::thread_priority::ThreadPriority;
use crate::base::trace::{Line, Trace};
use crate::base::user_log;
use crate::clients::registry::{Entry, Registry, mode_name};
use crate::memory::{self, MemoryHandle};
use crate::outcomes::{OutcomeHandle, OutcomeMessage};
use crate::profiles::writer::{self, Observation, ProfileWriter};
use crate::scheduler_mailbox::{Gauges, Notice, SchedulerHandle};
use crate::server::Host;
use weft_api::status::Ending;
use weft_protocol::Ns;
use weft_protocol::lane::Mode;
use weft_scheduler::thread_sleep::{Scene, Wait, Waiting};
use weft_scheduler::{Client, Config, Core, Decision, Event};

/// Most rounds of decisions per iteration. Answers cause further decisions, for example when credit
/// taken back is granted to another job. A few rounds suffice. If decisions do not end, the rest is
/// carried out in the next iteration.
const ROUNDS: usize = 16;

/// The parts of a scheduler.
#[derive(Debug)]
pub struct Setup {
    /// The core's settings.
    pub config: Config,
    /// Whether clients' reports set the switch cost ([`Cores`]).
    pub listens: bool,
    /// Whether the thread may spin.
    pub spin: bool,
    /// Epoch page and doorbell.
    pub host: Arc<Host>,
    /// Attached clients.
    pub registry: Arc<Registry>,
    /// Receives samples.
    pub profile_writer: ProfileWriter,
    /// Receives decisions.
    pub trace: Trace,
    /// Plans memory.
    pub memory: MemoryHandle,
    /// Sums up jobs' GPU time, losses and costs.
    pub outcomes: OutcomeHandle,
    /// The clock of all weft processes, or a test's.
    pub clock: fn() -> Ns,
}

/// Starts the thread.
pub fn start(setup: Setup) -> std::io::Result<(SchedulerHandle, JoinHandle<()>)> {
    let (notices, incoming) = channel();
    let to_scheduler = SchedulerHandle::to(notices, Arc::clone(&setup.host));
    let gauges = Arc::clone(&to_scheduler.gauges);
    let thread = std::thread::Builder::new()
        .name("weft-scheduler".into())
        .spawn(move || {
            // The usual slack, 50 us, would double a nap of 50 us.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
            ThreadPriority::First.take();
            Scheduler::new(setup, incoming, gauges).run();
        })?;
    Ok((to_scheduler, thread))
}

/// An observation passed to a [`Watcher`].
#[derive(Debug)]
pub enum Moment<'a> {
    /// The core handled an event.
    Event {
        /// The time.
        now: Ns,
        /// The event.
        event: &'a Event,
        /// The core's decisions on it.
        decisions: &'a [Decision],
        /// The core of the first known device.
        core: &'a Core,
    },
    /// A decision is about to be carried out.
    Before(&'a Decision),
    /// A decision was carried out.
    After(&'a Decision),
}

/// Observer of the scheduler, for tests.
pub type Watcher = Box<dyn FnMut(Moment<'_>)>;

pub(crate) struct Scheduler {
    cores: Cores,
    waiting: Waiting,
    host: Arc<Host>,
    registry: Arc<Registry>,
    profile_writer: ProfileWriter,
    trace: Trace,
    memory: MemoryHandle,
    outcomes: OutcomeHandle,
    incoming: Receiver<Notice>,
    gauges: Arc<Gauges>,
    lanes: Vec<LaneWatch>,
    user_pages: UserPages,
    rotation: WatchRotation,
    turns: u64,
    last_record: Ns,
    stopping: bool,
    /// Whether the last wait was a nap; the next probably is too.
    naps: bool,
    clock: fn() -> Ns,
    watcher: Option<Watcher>,
    // Kept between iterations to reuse their memory.
    events: Vec<(Ns, Event)>,
    decisions: Vec<Decision>,
    seen: Vec<Observation>,
}

/// Result of an iteration.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Iteration {
    pub(crate) news: bool,
    background_waits: bool,
}

impl Scheduler {
    pub(crate) fn new(setup: Setup, incoming: Receiver<Notice>, gauges: Arc<Gauges>) -> Scheduler {
        Scheduler {
            waiting: Waiting::new(setup.spin, setup.config.open_after),
            cores: Cores::new(setup.config, setup.listens),
            user_pages: UserPages::new(Arc::clone(&setup.host)),
            host: setup.host,
            registry: setup.registry,
            profile_writer: setup.profile_writer,
            trace: setup.trace,
            memory: setup.memory,
            outcomes: setup.outcomes,
            incoming,
            gauges,
            lanes: Vec::new(),
            rotation: WatchRotation::default(),
            turns: 0,
            last_record: 0,
            stopping: false,
            naps: false,
            clock: setup.clock,
            watcher: None,
            events: Vec::new(),
            decisions: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn run(mut self) {
        loop {
            let turn = self.turn();
            if self.stopping {
                break;
            }
            match self.choose(turn) {
                Wait::Spin => std::hint::spin_loop(),
                Wait::Nap(time) => self.pause(time),
                Wait::Doze(time) => self.sleep(time, false),
                Wait::Sleep(time) => self.sleep(time, true),
            }
        }
        self.farewell();
    }

    /// Chooses the wait after an iteration.
    pub(crate) fn choose(&mut self, turn: Iteration) -> Wait {
        let now = (self.clock)();
        let scene = Scene {
            background_waits: turn.background_waits,
            alone: self.lanes.len() == 1,
            last_record: self.last_record,
            next_wake: self.cores.next_wake(now),
        };
        let wait = self.waiting.choose(now, &scene);
        self.gauges.set_waiting(wait.name());
        self.naps = matches!(wait, Wait::Nap(_));
        wait
    }

    /// Requests rings from all clients, or from all except foreground jobs.
    pub(crate) fn want_bells(&mut self, by_anybody: bool) {
        self.naps = false;
        for lane in &mut self.lanes {
            // With several pages a foreground job rings for background jobs that do not see its
            // launch epoch.
            lane.want_bell(by_anybody || lane.mode() != Mode::Foreground || self.user_pages.many());
        }
    }

    /// Requests rings, reads all lanes once more, sleeps.
    fn sleep(&mut self, time: Duration, by_anybody: bool) {
        self.want_bells(by_anybody);
        // This read of all lanes finds news from before the rings were requested.
        if !self.look(None).news && !self.stopping {
            self.pause(time);
        }
        self.want_no_bells();
    }

    /// Waits at most `time` for a ring.
    fn pause(&self, time: Duration) {
        if self.host.wait(time).is_err() {
            // A failing doorbell must not cause a busy loop.
            std::thread::sleep(time.min(Duration::from_millis(1)));
        }
    }

    /// Ends the requests for rings.
    pub(crate) fn want_no_bells(&mut self) {
        for lane in &mut self.lanes {
            lane.want_bell(false);
        }
    }

    /// Passes all further events and decisions to `watcher`.
    pub(crate) fn watch(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
    }

    /// The core of the first known device.
    pub(crate) fn core(&self) -> &Core {
        self.cores.first()
    }

    fn tell(&mut self, now: Ns, event: Event) {
        let Some(watcher) = &mut self.watcher else {
            return self.cores.handle(now, event, &mut self.decisions);
        };
        let before = self.decisions.len();
        self.cores.handle(now, event.clone(), &mut self.decisions);
        watcher(Moment::Event {
            now,
            event: &event,
            decisions: self.decisions.get(before..).unwrap_or_default(),
            core: self.cores.first(),
        });
    }

    /// Runs one iteration over all lanes that are due.
    pub(crate) fn turn(&mut self) -> Iteration {
        self.turns += 1;
        self.look(Some(self.turns))
    }

    /// Reads the lanes due in iteration `at`, or all of them.
    fn look(&mut self, at: Option<u64>) -> Iteration {
        self.gauges.turns.fetch_add(1, Ordering::Relaxed);
        if self.naps {
            // Requested before the lanes are read: later news then rings and ends the nap. The
            // first of several naps in a row gets no rings, but it is short.
            let now = (self.clock)();
            for lane in self
                .lanes
                .iter_mut()
                .filter(|lane| at.is_none_or(|turn| lane.is_due(turn)))
            {
                lane.want_bell_in_nap(now);
            }
        }
        self.user_pages.read(self.cores.rows());
        let mut turn = Iteration::default();
        while let Ok(notice) = self.incoming.try_recv() {
            turn.news = true;
            self.notice(notice);
        }
        self.drain(at, &mut turn);
        let now = (self.clock)();
        let mut events = std::mem::take(&mut self.events);
        // Sorted by time over all lanes; the sort is stable, so each lane keeps its order.
        events.sort_by_key(|(at, _)| *at);
        for (_, event) in events.drain(..) {
            self.tell(now, event);
        }
        self.events = events;
        if self.cores.next_wake(now).is_some_and(|at| at <= now) {
            self.tell(now, Event::Tick);
        }
        turn.news |= !self.decisions.is_empty();
        self.carry_out(now);
        turn
    }

    fn drain(&mut self, at: Option<u64>, turn: &mut Iteration) {
        let mut liars: Vec<(u64, u32, LaneFault)> = Vec::new();
        for lane in &mut self.lanes {
            if !at.is_none_or(|turn| lane.is_due(turn)) {
                // Its state as of its last read.
                turn.background_waits |= lane.waits() && lane.mode() == Mode::Background;
                continue;
            }
            let now = (self.clock)();
            match lane.drain(now, &mut self.events, &mut self.seen, &mut self.trace) {
                Ok(found) => {
                    turn.news |= found.news;
                    turn.background_waits |= found.waits && lane.mode() == Mode::Background;
                    if found.records > 0 {
                        self.last_record = now;
                        // Idleness does not bump the epoch: other jobs' credit is granted for
                        // exactly that moment.
                        if found.launches && lane.mode() == Mode::Foreground {
                            self.user_pages.relay(lane.entry().user_page.as_ref(), lane.epoch());
                        }
                    }
                }
                Err(lie) => liars.push((lane.client().0, lane.entry().uid, lie)),
            }
            if !self.seen.is_empty() {
                self.profile_writer
                    .seen(lane.client().0, std::mem::take(&mut self.seen));
            }
        }
        for (client, uid, lie) in liars {
            let said = format!("client {client} was let go: {lie}");
            user_log::line(uid, log::Level::Warn, format_args!("{said}"));
            self.gauges.set_trouble(said);
            self.gone(client, Ending::Detached);
        }
    }

    fn notice(&mut self, notice: Notice) {
        let now = (self.clock)();
        match notice {
            Notice::Attached(entry) => {
                let who = NewClient::of(&entry);
                let client = Client(entry.client);
                self.mark(now, &entry, "attached", None, Some(entry.command.clone()));
                self.memory.tell(memory::MemoryMessage::Joined(Arc::clone(&entry)));
                self.outcomes.tell(OutcomeMessage::Joined(Arc::clone(&entry), now));
                self.user_pages.comes(entry.user_page.as_ref(), self.cores.rows());
                let guest = entry.user_page.is_some().then(|| self.rotation.take(entry.uid));
                let lane = LaneWatch::new(entry);
                self.lanes.push(match guest {
                    Some(slot) => lane.in_rotation(slot),
                    None => lane,
                });
                for event in who.comes(client) {
                    self.tell(now, event);
                }
            }
            Notice::Gone(client, ending) => self.gone(client, ending),
            Notice::Priority(client, priority) => {
                if let Some(lane) = self.lane(Client(client)) {
                    lane.tell_priority(priority);
                    let event = Event::Priority(Client(client), priority);
                    self.tell(now, event);
                }
            }
            Notice::Budget(client, budget) => self.tell(now, budget_event(Client(client), budget)),
            Notice::Device(client, uuid) => {
                if let Some(lane) = self.lane(Client(client)) {
                    let who = NewClient::of(lane.entry());
                    let row = self.cores.says(now, Client(client), &uuid, who, &mut self.decisions);
                    if let (Some(row), Some(lane)) = (row, self.lane(Client(client))) {
                        lane.tell_row(row);
                        self.outcomes.tell(OutcomeMessage::Moved(client, now));
                    }
                }
            }
            Notice::Shares(client, server) => {
                self.cores.shares(now, Client(client), server, &mut self.decisions);
            }
            Notice::Waits(client, waits) => {
                if let Some(lane) = self.lane(Client(client)) {
                    let entry = Arc::clone(lane.entry());
                    let who = NewClient {
                        // A profile of another device cannot be used.
                        profile: entry.loaded.clone().filter(|_| entry.profile_trouble().is_none()),
                        ..NewClient::of(&entry)
                    };
                    self.cores.waits(now, Client(client), waits, who, &mut self.decisions);
                    if !waits {
                        self.outcomes.tell(OutcomeMessage::Moved(client, now));
                    }
                }
            }
            Notice::Crowded(client, turn) => {
                if let Some(lane) = self.lane(Client(client)) {
                    let entry = Arc::clone(lane.entry());
                    let ns = turn.and_then(|turn| i64::try_from(turn).ok());
                    self.mark(now, &entry, "crowded", ns, None);
                    let client = Client(client);
                    self.tell(now, Event::Oversubscribed { client, turn });
                }
            }
            Notice::Unprofiled(client) => self.tell(now, Event::Unprofiled(Client(client))),
            Notice::Slowdown(part) => self.cores.set_slowdown(now, part, &mut self.decisions),
            Notice::Look(answer) => {
                // The receiver may have timed out.
                let _ = answer.send(self.cores.snapshots());
            }
            Notice::LookInOrder => {
                let views = self.cores.snapshots();
                self.outcomes.tell(OutcomeMessage::Views(views, now));
            }
            Notice::Stop => self.stopping = true,
        }
    }

    /// Ends a client: reads its last records, frees its lane, notifies core and profile writer.
    fn gone(&mut self, client: u64, ending: Ending) {
        let Some(at) = self.lanes.iter().position(|lane| lane.client().0 == client) else {
            return;
        };
        let mut lane = self.lanes.swap_remove(at);
        let lanes = &self.lanes;
        self.user_pages.stay(|user_page| {
            let mut others = lanes.iter().filter_map(|lane| lane.entry().user_page.as_ref());
            others.any(|other| Arc::ptr_eq(other, user_page))
        });
        if ending != Ending::Detached {
            let mut seen = Vec::new();
            // Only samples matter now; an invalid lane changes nothing.
            let _ = lane.drain((self.clock)(), &mut Vec::new(), &mut seen, &mut self.trace);
            self.profile_writer.seen(client, seen);
        }
        let now = (self.clock)();
        if self.outcomes.listens() {
            self.outcomes.tell(OutcomeMessage::Left {
                entry: Arc::clone(lane.entry()),
                ending: if self.stopping { Ending::Detached } else { ending },
                runs_on: self.stopping,
                view: self.cores.view_of(Client(client)).map(Box::new),
                now,
            });
        }
        // A detached client still runs and must not wait.
        lane.tell_mode(Mode::Free);
        self.mark_names(now, lane.entry());
        self.mark(
            now,
            lane.entry(),
            "gone",
            None,
            Some(format!("{ending:?}").to_lowercase()),
        );
        self.registry.end(client, ending);
        self.profile_writer
            .tell(writer::ProfileMessage::Gone(Arc::clone(lane.entry())));
        self.memory.tell(memory::MemoryMessage::Left(client));
        self.tell(now, Event::Gone(Client(client)));
    }

    fn carry_out(&mut self, now: Ns) {
        for _ in 0..ROUNDS {
            if self.decisions.is_empty() {
                break;
            }
            let decisions = std::mem::take(&mut self.decisions);
            let mut answers = Vec::new();
            self.gauges
                .decisions
                .fetch_add(decisions.len() as u64, Ordering::Relaxed);
            for decision in decisions {
                if let Some(watcher) = &mut self.watcher {
                    watcher(Moment::Before(&decision));
                }
                if let Some(event) = self.decide(now, decision) {
                    if let Event::Revoked { client, .. } = event
                        && let Some(lane) = self.lane(client)
                    {
                        answers.extend(lane.books());
                    }
                    answers.push(event);
                }
                if let Some(watcher) = &mut self.watcher {
                    watcher(Moment::After(&decision));
                }
            }
            for event in answers {
                self.tell(now, event);
            }
        }
    }

    fn decide(&mut self, now: Ns, decision: Decision) -> Option<Event> {
        match decision {
            Decision::Mode(client, mode) => {
                let lane = self.lane(client)?;
                if lane.mode() == mode && lane.entry().figures.mode.load(Ordering::Relaxed) == mode as u64 {
                    return None;
                }
                let left = lane.tell_mode(mode);
                let entry = Arc::clone(lane.entry());
                self.memory
                    .tell(memory::MemoryMessage::Holds(entry.client, mode == Mode::Foreground));
                self.mark(now, &entry, "mode", None, Some(mode_name(Some(mode)).to_string()));
                left.map(|left| Event::Revoked { client, left })
            }
            Decision::Grant {
                client,
                credit,
                bound,
                outlives,
            } => {
                let at = self.lanes.iter().position(|lane| lane.client() == client)?;
                let lane = self.lanes.get(at)?;
                let priority = usize::from(lane.entry().priority.load(Ordering::Relaxed));
                let reading = self
                    .user_pages
                    .sum_above(lane.entry().user_page.as_ref(), lane.row(), priority);
                let left = lane.grant(credit, bound.then(|| reading.wrapping_add(outlives)));
                let entry = Arc::clone(lane.entry());
                if entry.lane.counters.managed.load(Ordering::Relaxed) > 0 {
                    self.memory.tell(memory::MemoryMessage::Runs(entry.client));
                }
                let what = if bound { "bound" } else { "unbound" };
                self.mark(now, &entry, "grant", i64::try_from(credit).ok(), Some(what.to_string()));
                left.map(|left| Event::Revoked { client, left })
            }
            Decision::RunAheadWindow(client, window) => {
                self.lane(client)?.set_window(window);
                None
            }
            Decision::Times(client, wanted) => {
                self.lane(client)?.time_launches(wanted);
                None
            }
            Decision::Charge(client, kernel, charge) => {
                let lane = self.lane(client)?;
                lane.charge(kernel, charge);
                let entry = Arc::clone(lane.entry());
                self.mark(now, &entry, "charge", i64::try_from(charge).ok(), None);
                None
            }
            Decision::Revoke(client) => {
                let lane = self.lane(client)?;
                let left = lane.revoke();
                let entry = Arc::clone(lane.entry());
                self.mark(now, &entry, "revoke", Some(left), None);
                Some(Event::Revoked { client, left })
            }
        }
    }

    fn lane(&mut self, client: Client) -> Option<&mut LaneWatch> {
        self.lanes.iter_mut().find(|lane| lane.client() == client)
    }

    fn mark(&mut self, now: Ns, entry: &Entry, event: &'static str, ns: Option<i64>, what: Option<String>) {
        if self.trace.wanted() {
            self.trace.line(|| Line {
                t: now,
                client: entry.client,
                pid: entry.pid,
                event,
                kernel: None,
                ns,
                what,
            });
        }
    }

    /// Writes the names of a client's kernels to the trace.
    fn mark_names(&mut self, now: Ns, entry: &Entry) {
        if !self.trace.wanted() {
            return;
        }
        for hash in entry.named_kernels() {
            self.trace.line(|| Line {
                t: now,
                client: entry.client,
                pid: entry.pid,
                event: "name",
                kernel: Some(format!("{hash:016x}")),
                ns: None,
                what: entry.kernel_name(hash),
            });
        }
    }

    /// Ends all clients when the broker ends.
    fn farewell(mut self) {
        for client in self.lanes.iter().map(|lane| lane.client().0).collect::<Vec<_>>() {
            self.gone(client, Ending::Goodbye);
        }
    }
}
