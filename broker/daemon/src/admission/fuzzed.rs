// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission for `tests/soak/fuzz`, with arbitrary bytes as input: a ledger, a `known.json`,
//! clients' messages. The broker does not use this module.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use super::controller::Controller;
use super::ledger::{KeptJob, Page};
use super::observed_usage::ObservedUsage;
use super::watch::Watch;
use super::{AdmissionHandle, MemoryProbe, device_facts, report};
use crate::base::process::Process;
use crate::clients::registry::{Entry, NewEntry};
use crate::server::ToTheClient;
use weft_admission::{Admission, AdmissionConfig, Ask, Device, DeviceId, Event, Job, Need, User};
use weft_protocol::control::ToBroker;
use weft_protocol::transport::map::SharedLane;

/// Number of clients of a [`Room`].
pub const CLIENTS: u64 = 4;

/// Uses a text as a ledger: reads it, continues from it, shows it, writes it. Returns whether it
/// was a ledger.
pub fn ledger(text: &[u8]) -> bool {
    let Ok(page) = serde_json::from_slice::<Page>(text) else {
        return false;
    };
    let jobs: Vec<Job> = page.jobs.iter().map(|kept| kept.job).take(8).collect();
    let mut controller = Controller::new(AdmissionConfig::default(), None, Some(page));
    look(&controller);
    for job in jobs {
        controller.decide(Event::Ends(job));
    }
    controller.decide(Event::Tick);
    look(&controller);
    true
}

/// Panics unless the queue can be shown and the state can be written and read again.
fn look(controller: &Controller) {
    let mut queue = controller.queue();
    report::foresee(controller.machine(), &mut queue);
    let kept = serde_json::to_vec(&controller.machine().save()).expect("a machine can be written");
    assert!(
        serde_json::from_slice::<weft_admission::SavedState>(&kept).is_ok(),
        "a book is not read again"
    );
}

/// A ledger with a running and a waiting job of this process.
pub fn a_ledger() -> Vec<u8> {
    const GB: u64 = 1 << 30;
    let mut machine = Admission::new(AdmissionConfig::default());
    let mut out = Vec::new();
    machine.handle(1, Event::Device(Device::new(DeviceId(0), 8 * GB)), &mut out);
    for (job, peak) in [(1, 5 * GB), (2, 6 * GB)] {
        let ask = Ask {
            job: Job(job),
            user: User(0),
            priority: 5,
            need: Need::plain(peak, 60_000_000_000),
            devices: vec![DeviceId(0)],
        };
        machine.handle(1 + job, Event::Asks(ask), &mut out);
    }
    let kept = |job: u64| KeptJob {
        job: Job(job),
        name: "g".into(),
        device: DeviceId(0),
        family: Job(job),
        asked: GB,
        user: "u".into(),
        uid: 0,
        stated: true,
        timed: true,
        managed: false,
        processes: 1,
        members: vec![(Process::of(std::process::id()), "a b".into())],
    };
    let page = Page {
        devices: vec!["11".repeat(16)],
        users: vec!["u".into()],
        jobs: vec![kept(1), kept(2)],
        next: 3,
        ..Page::new(machine.save())
    };
    serde_json::to_vec(&page).unwrap_or_default()
}

/// Uses a text as `known.json`. Returns whether it was one.
pub fn known(text: &[u8]) -> bool {
    device_facts::understood(text).is_some_and(|learnt| {
        let learnt = ObservedUsage::go_on(learnt);
        learnt.all().len() < usize::MAX
    })
}

/// Admission with clients that send arbitrary messages.
pub struct Room {
    handle: AdmissionHandle,
    clients: Vec<Arc<Entry>>,
    sender: ToTheClient,
}

impl Room {
    /// Admission without jobs. `None`: there is no shared memory.
    pub fn open() -> Option<Room> {
        // It has no receiver, so all lines are dropped.
        let sender = ToTheClient::nobody();
        let lane = || Some(Arc::new(SharedLane::lane().ok()?));
        let clients: Option<Vec<_>> = (1..=CLIENTS).map(|client| Some(entry(client, lane()?))).collect();
        Some(Room {
            handle: empty(),
            clients: clients?,
            sender,
        })
    }

    /// Handles a client's message.
    pub fn says(&self, client: u64, message: ToBroker) {
        let Some(entry) = self.clients.get((client % CLIENTS) as usize) else {
            return;
        };
        let client = entry.client;
        match message {
            ToBroker::Wants(wants) => {
                self.handle.wants(entry, &self.sender, wants);
            }
            ToBroker::More { bytes, patience } => {
                self.handle.more(client, bytes, patience);
            }
            ToBroker::NoMore => self.handle.no_more(client),
            ToBroker::Refused { free } => {
                self.handle.refused(client, free);
            }
            ToBroker::OnDevice => self.handle.on_device(client),
            ToBroker::WaitsNoMore | ToBroker::Goodbye => self.handle.gone(client),
            ToBroker::Context { free, held, own, at } => {
                self.handle.context(client, MemoryProbe { free, held, own, at })
            }
            ToBroker::Note(line) => entry.note(&line),
            _ => {}
        }
    }

    /// Ticks, and shows the queue.
    pub fn tick(&self) {
        self.handle.tick();
        look(&self.handle.controller());
    }

    /// Ends all clients. Panics if any is left in the job table.
    pub fn close(&mut self) {
        for entry in &self.clients {
            self.handle.gone(entry.client);
        }
        let left = self.handle.controller().clients();
        assert_eq!(left, 0, "clients that are gone are still in the job table");
        self.handle = empty();
    }
}

fn empty() -> AdmissionHandle {
    AdmissionHandle {
        controller: Arc::new(Mutex::new(Controller::new(AdmissionConfig::default(), None, None))),
        watch: Watch::none(),
    }
}

fn entry(client: u64, lane: Arc<SharedLane>) -> Arc<Entry> {
    Arc::new(Entry::new(NewEntry {
        client,
        pid: std::process::id(),
        command: String::new(),
        profile: None,
        loaded: None,
        trouble: None,
        profiling: false,
        priority: 5,
        lane,
    }))
}
