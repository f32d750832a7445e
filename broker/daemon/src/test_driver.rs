// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon's scheduler without its thread, clock and socket, for tests.
//!
//! Lanes are real shared memory, and the ways to wait are those of the daemon. The caller runs
//! iterations, sets the time, and attaches and ends clients.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use weft_profiles::Profile;

use crate::base::trace::Trace;
use crate::clients::registry::{Entry, NewEntry, Registry};
use crate::memory::MemoryHandle;
use crate::outcomes::OutcomeHandle;
use crate::profiles::writer::ProfileWriter;
use crate::reception::acceptor::first_orders;
use crate::scheduler_mailbox::{Notice, SchedulerHandle, View};
use crate::scheduling::thread::{Scheduler, Setup};
use crate::server::Host;
use weft_protocol::Ns;
use weft_protocol::lane::Mode;
use weft_protocol::transport::TransportError;
use weft_protocol::transport::map::SharedLane;
use weft_scheduler::{Client, Config, Core};

pub use crate::scheduling::thread::{Moment, Watcher};
pub use weft_api::status::Ending;
pub use weft_scheduler::thread_sleep::Wait;

/// A scheduler driven by its caller.
pub struct TestDriver(Scheduler);

/// Handle that attaches, ends and changes clients; the scheduler notices in its next iteration.
#[derive(Clone)]
pub struct FakeClients {
    to_scheduler: SchedulerHandle,
    /// Epoch page and doorbell.
    pub host: Arc<Host>,
    registry: Arc<Registry>,
    unknown_cost: Ns,
}

/// A client to attach.
#[derive(Debug, Default)]
pub struct FakeClient {
    /// 0 to 9.
    pub priority: u8,
    /// The client's profile.
    pub profile: Option<Arc<Profile>>,
    /// Whether it takes stage-1 samples.
    pub profiling: bool,
    /// Longest wait at the gate.
    pub longest_wait: Duration,
}

impl TestDriver {
    /// Starts without clients. `spin` is the daemon's setting; `watcher` gets all events and
    /// decisions.
    pub fn new(
        config: Config,
        spin: bool,
        clock: fn() -> Ns,
        watcher: Watcher,
    ) -> Result<(TestDriver, FakeClients), TransportError> {
        let host = Arc::new(Host::make()?);
        let registry = Arc::new(Registry::default());
        let (notices, incoming) = channel();
        let unknown_cost = config.unknown_cost;
        let to_scheduler = SchedulerHandle::to(notices, Arc::clone(&host));
        let setup = Setup {
            config,
            listens: false,
            spin,
            host: Arc::clone(&host),
            registry: Arc::clone(&registry),
            profile_writer: ProfileWriter::deaf(),
            trace: Trace::none(),
            memory: MemoryHandle::deaf(),
            outcomes: OutcomeHandle::deaf(),
            clock,
        };
        let mut scheduler = Scheduler::new(setup, incoming, Arc::clone(&to_scheduler.gauges));
        scheduler.watch(watcher);
        let visitors = FakeClients {
            to_scheduler,
            host,
            registry,
            unknown_cost,
        };
        Ok((TestDriver(scheduler), visitors))
    }

    /// Runs one iteration; returns the daemon's way to wait after it.
    pub fn turn(&mut self) -> Wait {
        let turn = self.0.turn();
        self.0.choose(turn)
    }

    /// Requests rings before a sleep and runs one more iteration. True: there was news, so no sleep
    /// begins.
    pub fn falls_asleep(&mut self, by_anybody: bool) -> bool {
        self.0.want_bells(by_anybody);
        self.0.turn().news
    }

    /// Ends a sleep.
    pub fn wakes(&mut self) {
        self.0.want_no_bells();
    }

    /// The core.
    pub fn core(&self) -> &Core {
        self.0.core()
    }
}

impl FakeClients {
    /// Attaches a client as the acceptor does.
    pub fn attach(&self, guest: FakeClient) -> Result<(Client, Arc<SharedLane>), TransportError> {
        let lane = Arc::new(SharedLane::lane()?);
        let typical = guest.profile.as_ref().and_then(|profile| profile.typical_cost());
        let unknown_cost = typical.unwrap_or(self.unknown_cost);
        first_orders(&lane, guest.priority, guest.longest_wait, unknown_cost, guest.profiling);
        let client = self.registry.number();
        let entry = Arc::new(Entry::new(NewEntry {
            client,
            pid: 0,
            command: String::new(),
            profile: None,
            loaded: guest.profile,
            trouble: None,
            profiling: guest.profiling,
            priority: guest.priority,
            lane: Arc::clone(&lane),
        }));
        entry
            .figures
            .mode
            .store(Mode::Alone as u64, std::sync::atomic::Ordering::Relaxed);
        self.registry.add(Arc::clone(&entry));
        self.to_scheduler.tell(Notice::Attached(entry));
        Ok((Client(client), lane))
    }

    /// Asks for the devices' state; the scheduler answers in its next iteration.
    pub fn look(&self) -> Receiver<Vec<View>> {
        let (way, answer) = channel();
        self.to_scheduler.tell(Notice::Look(way));
        answer
    }

    /// Ends a client.
    pub fn gone(&self, client: Client, ending: Ending) {
        self.to_scheduler.tell(Notice::Gone(client.0, ending));
    }

    /// Sets a priority, as `weft set` does.
    pub fn set_priority(&self, client: Client, priority: u8) {
        self.to_scheduler.tell(Notice::Priority(client.0, priority));
    }

    /// Reports that a client's memory does not fit together with others, or fits again (`None`).
    pub fn crowded(&self, client: Client, turn: Option<Ns>) {
        self.to_scheduler.tell(Notice::Crowded(client.0, turn));
    }

    /// Reports that a client's profile does not fit its device.
    pub fn unprofile(&self, client: Client) {
        self.to_scheduler.tell(Notice::Unprofiled(client.0));
    }
}
