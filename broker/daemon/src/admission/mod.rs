//! Admission in the daemon: clients' requests go to the core, its decisions to admission slots.
//!
//! * [`controller`]: clients and jobs, events to the core, and its decisions;
//! * [`devices`]: the devices; [`device_observer`]: what contexts and strangers take; [`watch`]:
//!   what is free, by NVML;
//! * [`auto_backing`]; [`deadlock`]: multi-device groups; [`suspended`]: suspended jobs;
//! * [`arrivals`]: clients whose device's free memory is not known; [`growth`]: running clients
//!   that wait for more;
//! * [`device_facts`]: what outlives a broker; [`observed_usage`];
//! * [`ledger`]: the table on the disk, for a killed broker's successor; [`back`]: how clients
//!   reattach;
//! * [`promises`]: devices for jobs that let weft choose;
//! * [`shares`]: each process's part of its job's share;
//! * [`notify`]: lines for waiting jobs;
//! * [`rows`], [`report`]: the answer to `weft queue`.
//!
//! Callers: the control thread (each client's arrival, request and end) and threads that answer
//! `weft queue`. Only the ledger is waited for, bounded.
//!
//! What holds: only this module writes admission slots. A client that is gone holds nothing. A
//! client that never asked is in no book and delays no job.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock;
use super::registry::Entry;
use crate::server::ToTheClient;
use weft_admission::{Config, Event, Never, Policy};
use weft_protocol::Ns;
use weft_protocol::admission_slot::AdmissionState;
use weft_protocol::control::Wants;

mod arrivals;
mod auto_backing;
mod back;
mod controller;
mod deadlock;
mod device_facts;
mod device_observer;
mod devices;
#[doc(hidden)]
pub mod fuzzed;

mod growth;
mod ledger;
mod notify;
mod observed_usage;
mod promises;
mod report;
mod rows;
mod shares;
mod suspended;
#[cfg(test)]
mod tests;
mod watch;

pub use device_facts::FILE as DEVICE_FACTS_FILE;
pub use device_observer::MemoryProbe;
pub use observed_usage::PeakUsage;
pub use promises::{Offer, Place, Seeker};
pub use rows::{DeviceRow, FreedRow, LearntRow, Queue, RunningRow, WaitingRow, WeightRow};

use controller::Controller;
use device_facts::DeviceFacts;
use ledger::{Ledger, Page};
use observed_usage::ObservedUsage;
use watch::Watch;

/// Handle on admission, for all threads.
#[derive(Debug, Clone)]
pub struct AdmissionHandle {
    book: Arc<Mutex<Controller>>,
    watch: Watch,
}

/// How long NVML may take while an arrival, and all callers, wait. A running NVML takes below 1 ms.
/// After it the arrival waits alone ([`arrivals`]).
const ANSWERS: Duration = Duration::from_millis(20);

/// Interval between two questions to NVML while a job waits, ns.
const LOOKS: Ns = 250_000_000;

impl AdmissionHandle {
    /// Admission with the jobs that the last broker left in `file`; without one, nothing is kept.
    pub fn new(policy: Policy, file: Option<PathBuf>) -> AdmissionHandle {
        let config = Config {
            policy,
            host_memory: host_memory(),
            ..Config::default()
        };
        let page = file.as_deref().and_then(Page::read);
        let ledger = file.and_then(|file| match Ledger::begin(file) {
            Ok(ledger) => Some(ledger),
            Err(error) => {
                log::warn!("no thread to keep the book: {error}");
                None
            }
        });
        let book = match page {
            Some(page) => Controller::go_on(config, ledger, page),
            None => Controller::new(config, ledger),
        };
        AdmissionHandle {
            book: Arc::new(Mutex::new(book)),
            watch: Watch::none(),
        }
    }

    /// Sets whether users distrust each other: a user's claim then needs other users' or NVML's
    /// word.
    pub fn shared(self, shared: bool) -> AdmissionHandle {
        self.book().shared = shared;
        self
    }

    /// Measures contexts, asks NVML, and keeps the results in `file`.
    pub fn measuring(mut self, file: &Path) -> AdmissionHandle {
        let mut book = self.book();
        book.measures = true;
        book.known = DeviceFacts::begin(file.to_path_buf());
        book.learnt = ObservedUsage::go_on(book.known.learnt());
        drop(book);
        self.watch = Watch::begin();
        self
    }

    fn book(&self) -> MutexGuard<'_, Controller> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client is about to touch a device, or runs already (`wants.runs`).
    pub fn wants(&self, entry: &Arc<Entry>, sender: &ToTheClient, wants: Wants) {
        // Strangers' memory may have changed. While others arrive, NVML is asked already.
        let asks = wants.runs.is_none() && self.book().arrivals.is_empty();
        let reading = if asks { self.watch.fresh(ANSWERS) } else { None };
        self.book()
            .arrives((entry, sender, wants), self.watch.tells(), reading.as_ref());
    }

    /// The best device for a job that has not begun, reserved for a while.
    pub fn place(&self, seeker: &Seeker) -> Result<Place, Never> {
        self.book().place(seeker)
    }

    /// A client wants `bytes` beyond its quota and waits `patience` ns for them at most.
    pub fn more(&self, client: u64, bytes: u64, patience: Ns) {
        self.book().more(client, bytes, patience);
    }

    /// A client stops waiting for more memory.
    pub fn no_more(&self, client: u64) {
        self.book().grows_no_more(client);
    }

    /// A client has made its first context and probed its device.
    pub fn context(&self, client: u64, look: MemoryProbe) {
        // A time in the future would never be old.
        let at = look.at.min(clock::now());
        let told = self.watch.tells();
        self.book().context(client, MemoryProbe { at, ..look }, told);
    }

    /// A client is gone, or gives up waiting.
    pub fn gone(&self, client: u64) {
        let mut book = self.book();
        if book.arrivals.remove(client) {
            return;
        }
        book.grows_no_more(client);
        let Some(job) = book.clients.remove(&client) else {
            return;
        };
        let (runs_on, share) = book.machine.share(job).unzip();
        let mut left = None;
        let mut pid = None;
        if let Some(gang) = book.gangs.get_mut(&job)
            && let Some(took) = &mut gang.took
        {
            took.together(gang.members.values().map(|member| &*member.entry));
        }
        if let Some(member) = book.gangs.get_mut(&job).and_then(|gang| gang.members.remove(&client)) {
            pid = Some(member.process.pid);
            // For a later request of the same client.
            let admission_slot = &member.entry.lane.admission_slot;
            admission_slot
                .state
                .store(AdmissionState::Unknown as u32, Ordering::Release);
            left = runs_on.map(|device| (device, member.process));
        }
        if let Some((device, process)) = left {
            book.observer.exits(device, process);
        }
        book.leaves(job);
        book.carry_out();
        if let Some(pid) = pid {
            let ended = book.machine.share(job).is_none();
            book.frees(pid, share.filter(|_| ended).unwrap_or(0));
        }
    }

    /// Sets a client's priority.
    pub fn priority(&self, client: u64, priority: u8) {
        let mut book = self.book();
        if let Some(job) = book.clients.get(&client).copied() {
            book.tell(Event::Priority(job, priority));
            book.carry_out();
        }
    }

    /// Sets a user's weight.
    pub fn weigh(&self, user: &str, weight: u32) {
        self.book().weigh(user, weight);
    }

    /// Observed usage of the latest ended job without a declared need: of `pid` and `user` where
    /// given.
    pub fn learnt(&self, pid: Option<u32>, user: Option<&str>) -> Option<PeakUsage> {
        self.book().learnt.of(pid, user).cloned()
    }

    /// Does what is due. Called some times a second.
    pub fn tick(&self) {
        let mut book = self.book();
        book.look_for_the_absent();
        book.observer.look_after_the_exited();
        book.look_for_the_suspended();
        book.look_at_the_growing();
        let waited_for = book.machine.count().0 > 0 || !book.growth.is_empty();
        let looks = waited_for || !book.arrivals.is_empty() || book.observer.asks();
        if looks && let Some(reading) = self.watch.last(book.read) {
            book.reads(&reading);
        }
        if !book.arrivals.is_empty() {
            book.let_on(self.watch.tells());
            if !book.arrivals.is_empty() {
                self.watch.ask();
            }
        }
        let now = clock::now();
        if looks && now.saturating_sub(book.watched) >= LOOKS {
            book.watched = now;
            book.observer.asked();
            self.watch.ask();
            if waited_for {
                book.look_at_the_unseen(self.watch.tells());
                book.tells_positions();
            }
        }
        if book.machine.count().0 == 0 && book.growth.is_empty() {
            return;
        }
        book.untie();
        if book.machine.next_wake().is_some_and(|at| at <= clock::now()) {
            book.tell(Event::Tick);
            book.carry_out();
        }
    }

    /// Seconds that each client has waited for device memory, to begin or for more.
    pub fn waiting(&self) -> HashMap<u64, f64> {
        let book = self.book();
        let now = clock::now();
        let seconds = |since: Ns| now.saturating_sub(since) as f64 / 1e9;
        let arrivals = book.arrivals.waits();
        let growers = book.growth.iter().map(|grower| (grower.client(), grower.since()));
        let queued = book.machine.view().waiting;
        let queued = queued.iter().flat_map(|row| {
            let members = book
                .gangs
                .get(&row.ask.job)
                .into_iter()
                .flat_map(|gang| gang.members.keys());
            members.map(|client| (*client, row.came))
        });
        arrivals
            .chain(growers)
            .chain(queued)
            .map(|(client, since)| (client, seconds(since)))
            .collect()
    }

    /// The queue, for `weft queue`.
    pub fn queue(&self) -> Queue {
        let book = self.book();
        let (mut queue, machine) = (book.queue(), book.machine.clone());
        // With hundreds of waiting jobs this takes some tenths of a second; the lock is free
        // meanwhile.
        drop(book);
        report::foresee(&machine, &mut queue);
        queue
    }

    /// Closes the book as the broker ends; running jobs stay in it.
    pub fn close(&self) {
        self.book().close();
    }
}

/// Host bytes for all managed jobs together: 9/10 of what is available at the start, the rest is
/// the machine's. Each job reports its control group's bound.
fn host_memory() -> u64 {
    weft_protocol::host::of_system() / 10 * 9
}
