// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission in the daemon: passes clients' requests to the core and writes the core's decisions
//! into admission slots.
//!
//! * [`controller`] composes the parts: events to the core, its decisions to clients;
//! * [`job_table`]: clients, jobs and users; [`member`]: a process and its admission slot;
//!   [`request`]: a client's request in the core's terms;
//! * [`devices`]: devices and their sizes; [`device_observer`]: memory of contexts and of other
//!   programs; [`watch`]: free memory reported by NVML; [`device_facts`]: measurements that outlive
//!   brokers;
//! * [`arrivals`]: clients that wait until their device's free memory is known; [`growth`]: running
//!   clients that wait for more; [`suspended`]: suspended jobs; [`deadlock`]: jobs that wait for
//!   each other;
//! * [`promises`]: devices reserved for jobs that let weft choose;
//! * [`ledger`]: the job table on the disk, for a killed broker's successor;
//! * [`history`], [`observed_usage`], [`report`]: the answer to `weft queue`;
//! * [`notify`], [`auto_backing`]: lines for jobs.
//!
//! Callers: the control thread (each client's arrival, request and end) and threads that answer
//! `weft queue`. They wait only for the ledger, for a bounded time.
//!
//! Invariants: only this module writes admission slots. An ended process holds nothing; a running
//! one keeps its share. A client that never asked is in no table and delays no job.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::clock;
use crate::clients::registry::Entry;
use crate::server::ToTheClient;
use weft_admission::{AdmissionConfig, Never};
use weft_api::peak_usage::PeakUsage;
use weft_api::placement::{JobPlace, Seeker};
use weft_api::queue::Queue;
use weft_protocol::Ns;
use weft_protocol::control::Wants;

mod arrivals;
mod auto_backing;
mod controller;
mod deadlock;
mod device_facts;
mod device_observer;
mod devices;
pub mod fuzzed;
mod growth;
pub mod heartbeat;
mod history;
mod job_table;
mod ledger;
mod making_room;
mod member;
mod notify;
mod observed_usage;
mod promises;
mod report;
mod request;
mod suspended;
#[cfg(test)]
mod tests;
mod watch;

pub use device_facts::FILE as DEVICE_FACTS_FILE;
pub use device_observer::MemoryProbe;

use crate::base::options::Rights;
use controller::Controller;
use device_facts::DeviceFacts;
use ledger::{Ledger, Page};
use watch::{Reading, Watch};

/// Handle on admission, for all threads.
#[derive(Debug, Clone)]
pub struct AdmissionHandle {
    controller: Arc<Mutex<Controller>>,
    watch: Watch,
}

/// Longest wait for NVML of an arrival and all other callers. A running NVML takes less than 1 ms.
/// After this time only the arrival waits ([`arrivals`]).
const NVML_TIMEOUT: Duration = Duration::from_millis(20);

/// Age up to which NVML's answer counts for a running client's request, ns. It bounds the queries
/// that clients can cause.
const RECENT_NS: Ns = 100_000_000;

impl AdmissionHandle {
    /// Admission with the jobs that the last broker left in `file`. Without a file no jobs are kept
    /// for the next broker.
    pub fn new(file: Option<PathBuf>) -> AdmissionHandle {
        let config = AdmissionConfig {
            host_memory: host_memory(),
            ..AdmissionConfig::default()
        };
        let page = file.as_deref().and_then(Page::read);
        let ledger = file.and_then(|file| match Ledger::begin(file) {
            Ok(ledger) => Some(ledger),
            Err(error) => {
                log::warn!("cannot start the thread that writes the job table: {error}");
                None
            }
        });
        AdmissionHandle {
            controller: Arc::new(Mutex::new(Controller::new(config, ledger, page))),
            watch: Watch::none(),
        }
    }

    /// Sets whether users distrust each other. If they do, another user or NVML must confirm a
    /// claim.
    pub fn shared(self, shared: bool) -> AdmissionHandle {
        self.controller().set_shared(shared);
        self
    }

    /// Measures contexts, queries NVML, and stores the results in `file`.
    pub fn measuring(mut self, file: &Path) -> AdmissionHandle {
        self.controller().set_facts(DeviceFacts::begin(file.to_path_buf()));
        self.watch = Watch::begin();
        self
    }

    fn controller(&self) -> MutexGuard<'_, Controller> {
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a client that is about to use a device, or runs already (`wants.runs`). Returns the
    /// CPU time that other threads spent on it.
    pub fn wants(&self, entry: &Arc<Entry>, sender: &ToTheClient, wants: Wants) -> Duration {
        let before = self.watch.spent();
        // Foreign memory may have changed. While other clients arrive, NVML is queried already.
        let asks = wants.runs.is_none() && self.controller().is_new_alone(entry.client);
        let reading = if asks { self.watch.fresh(NVML_TIMEOUT) } else { None };
        let arrival = (entry, sender, wants);
        self.controller().arrive(arrival, self.watch.tells(), reading.as_ref());
        self.watch.spent().saturating_sub(before)
    }

    /// The best device for a job that has not begun, reserved for a while.
    pub fn place(&self, seeker: &Seeker) -> Result<JobPlace, Never> {
        self.controller().place(seeker)
    }

    /// Handles a client that wants `bytes` beyond its quota and waits at most `patience` ns.
    /// Returns the CPU time that other threads spent on it.
    pub fn more(&self, client: u64, bytes: u64, patience: Ns) -> Duration {
        let before = self.watch.spent();
        // Memory of processes outside weft may have become free.
        let asks = self.controller().lacks_foreign(client, bytes);
        let reading = if asks { self.recent_reading() } else { None };
        let mut controller = self.controller();
        if let Some(reading) = &reading {
            controller.read(reading);
        }
        match controller.may_return(client, reading.as_ref()) {
            true => controller.grow(client, bytes, patience),
            false => controller.answer(client),
        }
        self.watch.spent().saturating_sub(before)
    }

    /// Handles a client to which the driver refused memory within its quota, with this number of
    /// bytes free. Returns the CPU time that other threads spent on it.
    pub fn refused(&self, client: u64, free: u64) -> Duration {
        let before = self.watch.spent();
        let reading = self.recent_reading();
        let mut controller = self.controller();
        if let Some(reading) = reading {
            controller.read(&reading);
        }
        controller.refuse_granted(client, free);
        self.watch.spent().saturating_sub(before)
    }

    /// Samples the memory of a client's device by NVML, right before the client leaves it. False:
    /// there is no NVML, or the memory there changes all the time.
    pub fn sample(&self, client: u64) -> bool {
        /// NVML starts within a second if no process keeps the devices awake.
        const START: Duration = Duration::from_secs(2);
        // Half a second: a job that takes memory without a pause is not moved.
        for _ in 0..20 {
            let Some(reading) = self.watch.fresh(START) else {
                return false;
            };
            let mut controller = self.controller();
            controller.read(&reading);
            if controller.has_sample(client, Some(&reading)) {
                return true;
            }
            drop(controller);
            std::thread::sleep(NVML_TIMEOUT);
        }
        false
    }

    /// NVML's last answer if it is recent, else a new one.
    fn recent_reading(&self) -> Option<Reading> {
        let is_recent = |reading: &Reading| clock::now().saturating_sub(reading.at) < RECENT_NS;
        let last = self.watch.last(0).filter(is_recent);
        last.or_else(|| self.watch.fresh(NVML_TIMEOUT))
    }

    /// Ends a client's wait for more memory.
    pub fn no_more(&self, client: u64) {
        self.controller().stop_growing(client);
    }

    /// Records that a client with auto backing has begun on device memory.
    pub fn on_device(&self, client: u64) {
        self.controller().set_on_device(client);
    }

    /// Handles the probe of a client that has made its first context.
    pub fn context(&self, client: u64, probe: MemoryProbe) {
        // A time in the future would never become old.
        let at = probe.at.min(clock::now());
        let told = self.watch.tells();
        self.controller().probe(client, MemoryProbe { at, ..probe }, told);
    }

    /// Handles a client that ended or stops waiting.
    pub fn gone(&self, client: u64) {
        self.controller().end_client(client);
    }

    /// Handles a client that was let go or has hung up; its process may still run.
    pub fn let_go(&self, client: u64, pidfd: Option<Arc<OwnedFd>>) {
        self.controller().let_go(client, pidfd);
    }

    /// Sets a client's priority.
    pub fn priority(&self, client: u64, priority: u8) {
        self.controller().set_priority(client, priority);
    }

    /// Sets the limits on what users of a shared broker may have at once.
    pub fn set_rights(&self, rights: &Rights) {
        self.controller().set_rights(rights);
    }

    /// Sets a user's weight.
    pub fn weigh(&self, user: &str, weight: u32) {
        self.controller().set_weight(user, weight);
    }

    /// Observed usage of the latest ended job; with `pid` and `user`, if given.
    pub fn learnt(&self, pid: Option<u32>, user: Option<&str>) -> Option<PeakUsage> {
        let mut controller = self.controller();
        // Its process may have ended after its client hung up.
        controller.end_unreattached_now();
        controller.observed_usage(pid, user).cloned()
    }

    /// Does the periodic work. Called several times a second.
    pub fn tick(&self) {
        let mut controller = self.controller();
        controller.check_processes(self.watch.tells());
        let waited_for = controller.is_waited_for();
        let asks = waited_for || controller.needs_nvml();
        if asks && let Some(reading) = self.watch.last(controller.last_answer()) {
            controller.read(&reading);
        }
        if !controller.has_no_arrivals() {
            controller.let_on(clock::now(), self.watch.tells());
            if !controller.has_no_arrivals() {
                self.watch.ask();
            }
        }
        let now = clock::now();
        if asks && controller.is_nvml_due(now) {
            self.watch.ask();
            if waited_for {
                controller.check_unobserved(now, self.watch.tells());
                controller.tell_positions(now);
            }
        }
        controller.check_waiters();
    }

    /// Whether the end of an unreattached process would free memory.
    pub fn awaits_ends(&self) -> bool {
        self.controller().awaits_ends()
    }

    /// Seconds that each client has waited for device memory, to begin or for more.
    pub fn waiting(&self) -> HashMap<u64, f64> {
        let now = clock::now();
        let seconds = |since: Ns| now.saturating_sub(since) as f64 / 1e9;
        let waiting = self.controller().waiting();
        waiting
            .into_iter()
            .map(|(client, since)| (client, seconds(since)))
            .collect()
    }

    /// Request and limit of each client whose job has a limit, bytes.
    pub fn limits(&self) -> HashMap<u64, (u64, u64)> {
        self.controller().limits()
    }

    /// The queue, for `weft queue`.
    pub fn queue(&self) -> Queue {
        let controller = self.controller();
        let (mut queue, machine) = (controller.queue(), controller.machine().clone());
        // With hundreds of waiting jobs this takes some tenths of a second, without the lock.
        drop(controller);
        report::foresee(&machine, &mut queue);
        queue
    }

    /// Closes the ledger when the broker ends; running jobs remain in it. No client gets a later
    /// decision.
    pub fn close(&self) {
        self.controller().close();
    }
}

/// Host bytes for all managed jobs together: 9/10 of the available bytes at the start; the rest is
/// left to the machine. Each job also reports its control group's limit.
#[cfg(not(test))]
fn host_memory() -> u64 {
    weft_protocol::host::of_system() / 10 * 9
}

/// Enough for every test, on any machine.
#[cfg(test)]
fn host_memory() -> u64 {
    64 << 30
}
