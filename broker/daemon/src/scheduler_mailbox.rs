// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler thread's mailbox.
//!
//! A separate module, so that threads to which the scheduler sends messages do not depend on it.
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
    /// A client's new slowdown budget as a foreground job.
    Budget(u64, LatencyBudget),
    /// A client is about to use this device (UUID).
    Device(u64, String),
    /// The MPS server under which a client shares its device; `None`: it takes turns.
    Shares(u64, Option<u64>),
    /// Whether a client waits for device memory.
    Waits(u64, bool),
    /// A client's memory does not fit together with other clients' memory: it takes turns of this
    /// length, ns. `None`: it fits again.
    Crowded(u64, Option<Ns>),
    /// A client's profile does not fit its device.
    Unprofiled(u64),
    /// New default slowdown of foreground jobs that set none, a part of their time.
    Slowdown(f64),
    /// Asks for a view of the cores.
    Look(Sender<Vec<View>>),
    /// Asks for a view of the cores as a message to the outcome thread, in order with the messages
    /// about clients.
    LookInOrder,
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
    /// Name of the thread's present way to wait.
    pub fn waiting(&self) -> &'static str {
        WAITS.get(self.waiting.load(Ordering::Relaxed)).copied().unwrap_or("?")
    }

    /// Sets the thread's present way to wait.
    pub(super) fn set_waiting(&self, wait: &str) {
        let at = WAITS.iter().position(|name| *name == wait).unwrap_or(0);
        self.waiting.store(at, Ordering::Relaxed);
    }

    /// Stores the last trouble.
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
    /// A handle that sends to `notices` and rings the host's doorbell.
    pub(super) fn to(notices: Sender<Notice>, host: Arc<Host>) -> SchedulerHandle {
        SchedulerHandle {
            notices,
            host,
            gauges: Arc::default(),
        }
    }

    /// Sends a message and rings the doorbell. Returns false if the thread has ended.
    pub fn tell(&self, notice: Notice) -> bool {
        let told = self.notices.send(notice).is_ok();
        // If the eventfd is full, the doorbell is rung already.
        let _ = rustix::io::write(&self.host.bell, &1u64.to_ne_bytes());
        told
    }

    /// Each device's state, the first known device first; `None`: no answer in time.
    pub fn look(&self) -> Option<Vec<View>> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let (way, answer) = channel();
        self.tell(Notice::Look(way));
        answer.recv_timeout(PATIENCE).ok()
    }
}
