//! Admission as the daemon drives it: clients' wishes go to the core, its decisions go to their
//! admission slots.
//!
//! * [`book`]: who is who, what the machine is told and what its decisions mean for admission
//!   slots;
//! * [`devices`]: what devices are there; [`device_observer`]: what contexts and strangers take of
//!   them; [`watch`]: what is free, by NVML;
//! * [`either`]: jobs that leave open what their memory is;
//! * [`growing`]: who runs and waits for more;
//! * [`known`]: what outlives a broker;
//! * [`arrivals`]: those who come while what is free of their device is not known;
//! * [`kin`]: jobs on several devices;
//! * [`ledger`], [`process`]: the book on the disk, so that a broker that was killed has a
//!   successor who knows who holds what; [`back`]: how clients find their places in it again;
//! * [`learnt`]: what jobs took that had said nothing;
//! * [`places`]: places for jobs that let weft choose their device;
//! * [`shares`]: what of its job's share each process may take;
//! * [`still`]: jobs that were let in and are suspended;
//! * [`telling`]: what those who wait are told;
//! * [`rows`], [`report`]: what `weft queue` shows.
//!
//! Touched by the control thread, which tells of every client's coming, wish and end, and by
//! whoever answers `weft queue`. Nothing here waits but for the ledger, which is bounded. What
//! holds: a client's admission slot is written only here; a client that is gone holds nothing; a
//! client that never asked is in nobody's way and in no book.
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
mod back;
mod book;
mod device_observer;
mod devices;
mod either;
#[doc(hidden)]
pub mod fuzzed;

mod growing;
mod kin;
mod known;
mod learnt;
mod ledger;
mod places;
mod process;
mod report;
mod rows;
mod shares;
mod still;
mod telling;
#[cfg(test)]
mod tests;
mod watch;

pub use device_observer::Look;
pub use known::FILE as KNOWN;
pub use learnt::Took;
pub use places::{Offer, Place, Seeker};
pub use process::{Process, is_stopped};
pub use rows::{DeviceRow, FreedRow, LearntRow, Queue, RunningRow, WaitingRow, WeightRow};

use book::Book;
use known::Known;
use learnt::Learnt;
use ledger::{Ledger, Page};
use watch::Watch;

/// Admission, for all threads.
#[derive(Debug, Clone)]
pub struct AdmissionHandle {
    book: Arc<Mutex<Book>>,
    watch: Watch,
}

/// What NVML may take to answer while a newcomer, and all others with him, wait: it takes less than
/// a millisecond once it runs. Where it takes longer the newcomer waits by himself ([`arrivals`]).
const ANSWERS: Duration = Duration::from_millis(20);

/// Between two questions while somebody waits.
const LOOKS: Ns = 250_000_000;

impl AdmissionHandle {
    /// With whoever the broker before this one left in `file`; without one with nobody, and nothing
    /// is kept.
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
            Some(page) => Book::go_on(config, ledger, page),
            None => Book::new(config, ledger),
        };
        AdmissionHandle {
            book: Arc::new(Mutex::new(book)),
            watch: Watch::none(),
        }
    }

    /// For many users: what one of them says counts for others only as far as others, or NVML, say
    /// so, too.
    pub fn shared(self, shared: bool) -> AdmissionHandle {
        self.book().shared = shared;
        self
    }

    /// Measures what contexts take, asks NVML what is free, and keeps what is learnt in this file.
    pub fn measuring(mut self, file: &Path) -> AdmissionHandle {
        let mut book = self.book();
        book.measures = true;
        book.known = Known::begin(file.to_path_buf());
        book.learnt = Learnt::go_on(book.known.learnt());
        drop(book);
        self.watch = Watch::begin();
        self
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client is about to touch a device.
    pub fn wants(&self, entry: &Arc<Entry>, sender: &ToTheClient, wants: Wants) {
        // What strangers have now, not what they had when somebody looked last. Where others are at
        // the door it is being asked.
        let asks = wants.runs.is_none() && self.book().arrivals.is_empty();
        let reading = if asks { self.watch.fresh(ANSWERS) } else { None };
        self.book()
            .arrives((entry, sender, wants), self.watch.tells(), reading.as_ref());
    }

    /// Where a job that has not begun fits best. The place is promised to it for a while.
    pub fn place(&self, seeker: &Seeker) -> Result<Place, Never> {
        self.book().place(seeker)
    }

    /// A client wants more than its share.
    /// If that is not free it may wait for so long.
    pub fn more(&self, client: u64, bytes: u64, patience: Ns) {
        self.book().more(client, bytes, patience);
    }

    /// A client waits no longer for what it wanted more.
    pub fn no_more(&self, client: u64) {
        self.book().grows_no_more(client);
    }

    /// A client's first context is there, and it looked at its device.
    pub fn context(&self, client: u64, look: Look) {
        // A look of tomorrow would never be old.
        let at = look.at.min(clock::now());
        let told = self.watch.tells();
        self.book().context(client, Look { at, ..look }, told);
    }

    /// A client is gone, or waits no more.
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
            // Should it ask again, nothing was said yet.
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

    /// Another priority.
    pub fn priority(&self, client: u64, priority: u8) {
        let mut book = self.book();
        if let Some(job) = book.clients.get(&client).copied() {
            book.tell(Event::Priority(job, priority));
            book.carry_out();
        }
    }

    /// A user counts for so many others.
    pub fn weigh(&self, user: &str, weight: u32) {
        self.book().weigh(user, weight);
    }

    /// What a job took that has ended and had not said what it would: the last one of this process,
    /// or the last one; of this user, if one is named.
    pub fn learnt(&self, pid: Option<u32>, user: Option<&str>) -> Option<Took> {
        self.book().learnt.of(pid, user).cloned()
    }

    /// Time went by. Called some times a second.
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

    /// Who waits for device memory, to begin or for more, and for how long, seconds; by client.
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

    /// For people.
    pub fn queue(&self) -> Queue {
        let book = self.book();
        let (mut queue, machine) = (book.queue(), book.machine.clone());
        // With hundreds who wait this takes some tenths of a second, in which the book is others'.
        drop(book);
        report::foresee(&machine, &mut queue);
        queue
    }

    /// The broker ends: the book is closed, with everybody who still runs in it.
    pub fn close(&self) {
        self.book().close();
    }
}

/// What managed jobs may take of the host together: nine tenths of what is available when the
/// broker starts, so that the rest of the machine lives on. What each job's control group leaves it
/// says itself.
fn host_memory() -> u64 {
    weft_protocol::host::of_system() / 10 * 9
}
