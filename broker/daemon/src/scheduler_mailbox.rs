//! The scheduler thread's mailbox.
//!
//! A module of its own, so that threads which the scheduler tells need not depend on it.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::clients::registry::Entry;
use crate::server::Host;
use weft_api::status::Ending;
use weft_protocol::Ns;
use weft_protocol::latency_budget::LatencyBudget;
use weft_scheduler::Snapshot;

/// One device, for people.
#[derive(Debug, Clone)]
pub struct View {
    /// The device's UUID; `None`: not named yet.
    pub uuid: Option<String>,
    /// The core's state.
    pub snapshot: Snapshot,
    /// Clients that share it under MPS.
    pub under_mps: usize,
    /// Clients that do not share it under MPS.
    pub not_under_mps: usize,
}

/// A message to the scheduler.
#[derive(Debug)]
pub enum Notice {
    /// A client has its lane.
    Attached(Arc<Entry>),
    /// A client ended.
    Gone(u64, Ending),
    /// A client has a new priority.
    Priority(u64, u8),
    /// A client may lose this as a foreground job.
    Budget(u64, LatencyBudget),
    /// A client is about to use this device (UUID).
    Device(u64, String),
    /// Whether a client shares its device under MPS.
    Shares(u64, bool),
    /// Whether a client waits for device memory.
    Waits(u64, bool),
    /// A client's memory does not fit beside others': it takes turns of this length, ns. `None`: it
    /// fits again.
    Crowded(u64, Option<Ns>),
    /// A client's profile does not fit its device.
    Unprofiled(u64),
    /// A foreground job that says nothing itself may be slowed down by this part of its time.
    Slowdown(f64),
    /// Asks for a view of the cores.
    Look(Sender<Vec<View>>),
    /// The broker ends.
    Stop,
}

/// Figures of the scheduler thread, for people.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Iterations so far.
    pub turns: AtomicU64,
    /// Decisions carried out.
    pub decisions: AtomicU64,
    waiting: AtomicUsize,
    trouble: Mutex<Option<String>>,
}

const WAITS: [&str; 4] = ["spinning", "napping", "dozing", "parked"];

impl Gauges {
    /// How the thread waits now.
    pub fn waiting(&self) -> &'static str {
        WAITS.get(self.waiting.load(Ordering::Relaxed)).copied().unwrap_or("?")
    }

    /// Notes how the thread waits.
    pub(super) fn set_waiting(&self, wait: &str) {
        let at = WAITS.iter().position(|name| *name == wait).unwrap_or(0);
        self.waiting.store(at, Ordering::Relaxed);
    }

    /// Keeps the last trouble.
    pub fn set_trouble(&self, trouble: String) {
        *self.trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(trouble);
    }

    /// The last trouble.
    pub fn trouble(&self) -> Option<String> {
        self.trouble
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }
}

/// Reports trouble to the scheduler's gauges.
pub fn complaints(gauges: Arc<OnceLock<Arc<Gauges>>>) -> impl Fn(String) + Send + 'static {
    move |said| {
        if let Some(gauges) = gauges.get() {
            gauges.set_trouble(said);
        }
    }
}

/// A handle to the scheduler thread.
#[derive(Debug, Clone)]
pub struct SchedulerHandle {
    notices: Sender<Notice>,
    host: Arc<Host>,
    /// Figures of the thread.
    pub gauges: Arc<Gauges>,
}

impl SchedulerHandle {
    /// A handle that sends to `notices` and rings the host's bell.
    pub(super) fn to(notices: Sender<Notice>, host: Arc<Host>) -> SchedulerHandle {
        SchedulerHandle {
            notices,
            host,
            gauges: Arc::default(),
        }
    }

    /// Sends a message and rings. Returns false if the thread has ended.
    pub fn tell(&self, notice: Notice) -> bool {
        let told = self.notices.send(notice).is_ok();
        // A full eventfd is rung already.
        let _ = rustix::io::write(&self.host.bell, &1u64.to_ne_bytes());
        told
    }

    /// Each device's state, the first one heard of first; `None`: no answer in time.
    pub fn look(&self) -> Option<Vec<View>> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let (way, answer) = channel();
        self.tell(Notice::Look(way));
        answer.recv_timeout(PATIENCE).ok()
    }
}
