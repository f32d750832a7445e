//! The scheduler without its thread and its clock: whoever drives it says when it takes a turn and
//! what time it is.
//!
//! It is the very scheduler that the daemon runs, with its lanes in real shared memory and its ways
//! to wait. Only the socket is missing: clients come and go by the functions of this file. For
//! tests; nothing of the daemon uses it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use weft_profiles::Profile;

use super::acceptor::first_orders;
use super::mailbox::{Notice, SchedulerHandle};
use super::memory::Memory;
use super::profile_writer::ProfileWriter;
use super::registry::{Entry, Newcomer, Registry};
use super::scheduler::{Scheduler, Setup};
use super::trace::Trace;
use crate::server::Host;
use weft_protocol::Ns;
use weft_protocol::lane::Mode;
use weft_protocol::transport::Error;
use weft_protocol::transport::map::SharedLane;
use weft_scheduler::{Client, Config, Core};

pub use super::scheduler::{Moment, Watcher};
pub use super::status::Ending;
pub use super::waiting::{Scene, Wait, Waiting};

/// A scheduler in somebody's hands.
pub struct TestDriver(Scheduler);

/// The way in to it. Its clients come, go and are changed here; it hears of them in its next turn.
#[derive(Clone)]
pub struct FakeClients {
    to_scheduler: SchedulerHandle,
    /// The epoch page, and the bell that clients ring.
    pub host: Arc<Host>,
    registry: Arc<Registry>,
    unknown_cost: Ns,
}

/// A client to be let in.
#[derive(Debug, Default)]
pub struct FakeClient {
    /// 0 to 9.
    pub priority: u8,
    /// What is known of it.
    pub profile: Option<Arc<Profile>>,
    /// Whether it takes stage-1 samples.
    pub profiling: bool,
    /// The longest it may wait at the gate.
    pub longest_wait: Duration,
}

impl TestDriver {
    /// With no client. `spin` as the daemon's own setting; `watcher` is shown whatever happens to
    /// the core.
    pub fn new(
        config: Config,
        spin: bool,
        clock: fn() -> Ns,
        watcher: Watcher,
    ) -> Result<(TestDriver, FakeClients), Error> {
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
            memory: Memory::deaf(),
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

    /// One turn, and how the daemon would wait after it.
    pub fn turn(&mut self) -> Wait {
        let turn = self.0.turn();
        self.0.choose(turn)
    }

    /// Before a sleep: asks to be rung and looks once more. True if there was news, so that the
    /// sleep does not begin.
    pub fn falls_asleep(&mut self, by_anybody: bool) -> bool {
        self.0.want_bells(by_anybody);
        self.0.turn().news
    }

    /// After a sleep.
    pub fn wakes(&mut self) {
        self.0.want_no_bells();
    }

    /// The core, to be looked at.
    pub fn core(&self) -> &Core {
        self.0.core()
    }
}

impl FakeClients {
    /// Lets a client in, as the door does. The scheduler hears of it in its next turn.
    pub fn attach(&self, guest: FakeClient) -> Result<(Client, Arc<SharedLane>), Error> {
        let lane = Arc::new(SharedLane::lane()?);
        let typical = guest.profile.as_ref().and_then(|profile| profile.typical_cost());
        let unknown_cost = typical.unwrap_or(self.unknown_cost);
        first_orders(&lane, guest.priority, guest.longest_wait, unknown_cost, guest.profiling);
        let client = self.registry.number();
        let entry = Arc::new(Entry::new(Newcomer {
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

    /// A client ended.
    pub fn gone(&self, client: Client, ending: Ending) {
        self.to_scheduler.tell(Notice::Gone(client.0, ending));
    }

    /// `weft set`.
    pub fn set_priority(&self, client: Client, priority: u8) {
        self.to_scheduler.tell(Notice::Priority(client.0, priority));
    }

    /// The memory of a client finds no room beside that of others, or does again.
    pub fn crowded(&self, client: Client, turn: Option<Ns>) {
        self.to_scheduler.tell(Notice::Crowded(client.0, turn));
    }

    /// A client's profile does not fit its device.
    pub fn unprofile(&self, client: Client) {
        self.to_scheduler.tell(Notice::Unprofiled(client.0));
    }
}
