//! The scheduler thread's mailbox: what other threads send it, and what they see of it.
//!
//! It stands apart from the thread, so that the threads that send to it and that the scheduler
//! itself sends to (profile writer, memory) need not know the scheduler.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::cores::View;
use super::registry::Entry;
use super::status::Ending;
use super::waiting::Wait;
use crate::server::Host;
use weft_protocol::Ns;

/// What the other threads tell the scheduler.
#[derive(Debug)]
pub enum Notice {
    /// A client has its lane.
    Attached(Arc<Entry>),
    /// A client ended.
    Gone(u64, Ending),
    /// Another priority.
    Priority(u64, u8),
    /// The device it is about to use, by its UUID.
    Device(u64, String),
    /// Whether it shares that device under MPS.
    Shares(u64, bool),
    /// It waits for device memory, or does not any more.
    Waits(u64, bool),
    /// Its memory finds no room beside that of others, so that it takes turns of this length with
    /// its equals; or it does again.
    Crowded(u64, Option<Ns>),
    /// Its profile does not fit after all.
    Unprofiled(u64),
    /// Somebody wants to see the cores.
    Look(Sender<Vec<View>>),
    /// The broker ends.
    Stop,
}

/// What people see of the thread.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Turns taken.
    pub turns: AtomicU64,
    /// Decisions carried out.
    pub decisions: AtomicU64,
    waiting: AtomicUsize,
    trouble: Mutex<Option<String>>,
}

const WAITS: [&str; 4] = ["spinning", "napping", "dozing", "parked"];

impl Gauges {
    /// How it waits now.
    pub fn waiting(&self) -> &'static str {
        WAITS.get(self.waiting.load(Ordering::Relaxed)).copied().unwrap_or("?")
    }

    /// Notes how it waits from now on.
    pub(super) fn set_waiting(&self, wait: Wait) {
        let at = WAITS.iter().position(|name| *name == wait.name()).unwrap_or(0);
        self.waiting.store(at, Ordering::Relaxed);
    }

    /// Keeps the last trouble for people.
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

/// The way to the scheduler thread.
#[derive(Debug, Clone)]
pub struct SchedulerHandle {
    notices: Sender<Notice>,
    host: Arc<Host>,
    /// What people see of it.
    pub gauges: Arc<Gauges>,
}

impl SchedulerHandle {
    /// The way to a scheduler that reads what is sent there.
    pub(super) fn to(notices: Sender<Notice>, host: Arc<Host>) -> SchedulerHandle {
        SchedulerHandle {
            notices,
            host,
            gauges: Arc::default(),
        }
    }

    /// Tells it something. False if it is no more.
    pub fn tell(&self, notice: Notice) -> bool {
        let told = self.notices.send(notice).is_ok();
        // Full means that it is rung already.
        let _ = rustix::io::write(&self.host.bell, &1u64.to_ne_bytes());
        told
    }

    /// The state of each device; that of the first one heard of comes first. `None` if the thread
    /// does not answer in time.
    pub fn look(&self) -> Option<Vec<View>> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let (way, answer) = channel();
        self.tell(Notice::Look(way));
        answer.recv_timeout(PATIENCE).ok()
    }
}
