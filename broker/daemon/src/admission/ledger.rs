// SPDX-License-Identifier: MIT OR Apache-2.0
//! The job table on the disk, for a killed broker's successor: the jobs that hold or await memory.
//!
//! A separate thread replaces one small file in the socket's directory. A change of the table waits
//! for the write, at most [`WRITE_TIMEOUT`]. If the disk hangs, the jobs continue, but the next
//! broker has an old table.
//!
//! Invariants: an unreadable file, or one of another boot or format, counts as empty. A process in
//! it counts only if it runs.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::process::{self, Process};
use weft_admission::{DeviceId, Job, SavedState};
use weft_protocol::amount::shown;

/// Version of the format. Other versions are not read.
const FORMAT: u32 = 2;

/// Longest wait for a write: tens of kilobytes, usually to a memory file system, take well below a
/// millisecond.
#[cfg(not(test))]
const WRITE_TIMEOUT: Duration = Duration::from_millis(20);

/// Tests wait for the write on any machine.
#[cfg(test)]
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest wait for the last write.
#[cfg(not(test))]
const LAST_WRITE_TIMEOUT: Duration = Duration::from_millis(500);
#[cfg(test)]
const LAST_WRITE_TIMEOUT: Duration = WRITE_TIMEOUT;

/// Largest file: 4,096 clients of some kilobytes each.
const LONGEST_BYTES: u64 = 32 << 20;

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Page {
    pub format: u32,
    /// The machine's boot, to which the times belong.
    pub boot: String,
    pub machine: SavedState,
    /// UUIDs by device number.
    pub devices: Vec<String>,
    /// Users by number.
    pub users: Vec<String>,
    /// Users with a weight above 1.
    pub weights: BTreeMap<String, u32>,
    pub jobs: Vec<KeptJob>,
    /// The last job number given.
    pub next: u64,
    /// The counters.
    pub sums: [u64; 4],
}

/// A waiting or running job on one device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeptJob {
    pub job: Job,
    /// Name that its processes share.
    pub name: String,
    pub device: DeviceId,
    /// The first gang of its multi-device group.
    pub family: Job,
    /// Bytes asked for, without contexts.
    pub asked: u64,
    pub user: String,
    /// The user id from the kernel.
    #[serde(default = "nobody")]
    pub uid: u32,
    /// Whether its memory was declared.
    pub stated: bool,
    /// Whether its run time was declared.
    #[serde(default)]
    pub timed: bool,
    pub managed: bool,
    /// Announced number of processes.
    pub processes: u32,
    pub members: Vec<(Process, String)>,
}

/// A user id that no user has.
fn nobody() -> u32 {
    u32::MAX
}

impl Page {
    pub fn new(machine: SavedState) -> Page {
        Page {
            format: FORMAT,
            boot: process::boot(),
            machine,
            devices: Vec::new(),
            users: Vec::new(),
            weights: BTreeMap::new(),
            jobs: Vec::new(),
            next: 0,
            sums: [0; 4],
        }
    }

    /// The last broker's page, if it is usable.
    pub fn read(path: &Path) -> Option<Page> {
        let about = std::fs::metadata(path).ok()?;
        let complain = |why: String| {
            log::warn!(
                "{}: {why}: running jobs are not known until they attach again",
                path.display()
            );
            None
        };
        if about.len() > LONGEST_BYTES {
            return complain(format!("{} bytes are too many", about.len()));
        }
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) => return complain(error.to_string()),
        };
        match serde_json::from_slice::<Page>(&text) {
            Ok(page) if page.format != FORMAT => complain(format!("has format {}, not {FORMAT}", page.format)),
            // No process of an earlier boot still runs.
            Ok(page) => (page.boot == process::boot()).then_some(page),
            Err(error) => complain(error.to_string()),
        }
    }
}

/// Handle on the writing thread.
#[derive(Debug, Clone)]
pub struct Ledger {
    inbox: Arc<(Mutex<PendingPage>, Condvar)>,
}

#[derive(Debug, Default)]
struct PendingPage {
    /// The newest unwritten page. `Some(None)`: the file is to be removed.
    next: Option<Option<Vec<u8>>>,
    asked: u64,
    done: u64,
}

impl Ledger {
    /// Starts to write this file.
    pub fn begin(path: PathBuf) -> std::io::Result<Ledger> {
        let inbox = Arc::new((Mutex::new(PendingPage::default()), Condvar::new()));
        let ours = Arc::clone(&inbox);
        std::thread::Builder::new()
            .name("weft-ledger".into())
            .spawn(move || write_all(&path, &ours))?;
        Ok(Ledger { inbox })
    }

    fn slot(&self) -> MutexGuard<'_, PendingPage> {
        self.inbox.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a page and waits for a bounded time. `None` removes the file.
    pub fn put(&self, page: Option<&Page>) {
        // This does not fail: all map keys are numbers or texts.
        self.write(page.and_then(|page| serde_json::to_vec(page).ok()), LONGEST_BYTES);
    }

    /// Writes bytes and waits for a bounded time. More than `longest` bytes could not be read
    /// again, so the file is removed.
    pub fn write(&self, bytes: Option<Vec<u8>>, longest: u64) {
        let bytes = bytes.filter(|bytes| {
            let fits = bytes.len() as u64 <= longest;
            if !fits {
                log::warn!("{} are too much to be written", shown(bytes.len() as u64));
            }
            fits
        });
        let mut slot = self.slot();
        slot.asked += 1;
        let this = slot.asked;
        slot.next = Some(bytes);
        self.inbox.1.notify_all();
        let waited = self
            .inbox
            .1
            .wait_timeout_while(slot, WRITE_TIMEOUT, |slot| slot.done < this);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for all writes, for a bounded time.
    pub fn finish(&self) {
        let slot = self.slot();
        let waited = self
            .inbox
            .1
            .wait_timeout_while(slot, LAST_WRITE_TIMEOUT, |slot| slot.done < slot.asked);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

fn write_all(path: &Path, inbox: &(Mutex<PendingPage>, Condvar)) {
    let mut complained = false;
    loop {
        let slot = inbox.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread ends with its process; it holds nothing.
        let waiting = inbox.1.wait_while(slot, |slot| slot.next.is_none());
        let mut slot = waiting.unwrap_or_else(PoisonError::into_inner);
        let (Some(page), number) = (slot.next.take(), slot.asked) else {
            continue;
        };
        drop(slot);
        if let Err(error) = replace(path, page.as_deref())
            && !std::mem::replace(&mut complained, true)
        {
            log::warn!(
                "{}: {error}: the next broker will not know running jobs until they attach again",
                path.display()
            );
        }
        let mut slot = inbox.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.done = number;
        inbox.1.notify_all();
    }
}

fn replace(path: &Path, page: Option<&[u8]>) -> std::io::Result<()> {
    let Some(page) = page else {
        return match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    };
    // The same folder, so that the rename is within one file system. Not synced: the file must
    // outlive this process, not a crash of the machine.
    let mut new = path.as_os_str().to_os_string();
    new.push(".new");
    let new = PathBuf::from(new);
    // Jobs' names are private.
    let create = || {
        let _ = std::fs::remove_file(&new);
        std::fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
    };
    let mut file = match create() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            new.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            create()?
        }
        other => other?,
    };
    let written = file.write_all(page);
    drop(file);
    // A full disk leaves no half-written file.
    written.and_then(|()| std::fs::rename(&new, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

/// The ledger, and whether it is out of date.
#[derive(Debug, Default)]
pub struct Journal {
    ledger: Option<Ledger>,
    stale: bool,
}

impl Journal {
    /// A ledger that is up to date; `None`: nothing is written.
    pub fn new(ledger: Option<Ledger>) -> Journal {
        Journal { ledger, stale: false }
    }

    pub fn mark(&mut self, changed: bool) {
        self.stale |= changed;
    }

    /// Whether a page must be written; clears the mark.
    pub fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale) && self.ledger.is_some()
    }

    pub fn write(&self, page: Option<&Page>) {
        if let Some(ledger) = &self.ledger {
            ledger.put(page);
        }
    }

    /// Finishes all writes. The last page remains.
    pub fn close(&mut self) {
        if let Some(ledger) = self.ledger.take() {
            ledger.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_admission::{Admission, AdmissionConfig, Ask, Decision, Device, Event, Need, User};

    const GB: u64 = 1 << 30;

    fn ask(job: u64, peak: u64) -> Event {
        Event::Asks(Ask {
            job: Job(job),
            user: User(job as u32 % 2),
            priority: 5,
            need: Need::plain(peak, 60_000_000_000),
            devices: vec![DeviceId(0)],
        })
    }

    /// A core with one running and two waiting jobs.
    fn machine() -> Admission {
        let mut machine = Admission::new(AdmissionConfig::default());
        let mut out = Vec::new();
        machine.handle(1, Event::Device(Device::new(DeviceId(0), 8 * GB)), &mut out);
        machine.handle(1, Event::Weight(User(1), 3), &mut out);
        for (job, peak) in [(1, 5 * GB), (2, 6 * GB), (3, 4 * GB)] {
            machine.handle(1 + job, ask(job, peak), &mut out);
        }
        assert_eq!(machine.count(), (2, 1));
        machine
    }

    #[test]
    fn a_machine_goes_on_where_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("book");
        let ledger = Ledger::begin(path.clone()).expect("a thread");
        let before = machine();
        let page = Page {
            devices: vec!["a".into()],
            ..Page::new(before.save())
        };
        ledger.put(Some(&page));
        ledger.finish();
        let read = Page::read(&path).expect("it was written");
        assert_eq!(read.devices, page.devices);
        let (mut old, mut new) = (before, Admission::restore(AdmissionConfig::default(), read.machine));
        assert_eq!(new.view(), old.view());
        let ends = |machine: &mut Admission| {
            let mut out = Vec::new();
            machine.handle(1000, Event::Ends(Job(1)), &mut out);
            out
        };
        let (was, is) = (ends(&mut old), ends(&mut new));
        assert_eq!(is, was);
        assert!(matches!(is.as_slice(), [Decision::Admit { .. }]), "{is:?}");
        assert_eq!(new.view(), old.view());
        ledger.put(None);
        ledger.finish();
        assert!(!path.exists());
        assert!(Page::read(&path).is_none());
    }

    #[test]
    fn what_makes_no_sense_counts_as_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("book");
        let good = serde_json::to_string(&Page::new(machine().save())).expect("a page");
        std::fs::write(&path, &good).expect("a file");
        assert!(Page::read(&path).is_some());
        for bad in [
            String::new(),
            good[..good.len() / 2].to_string(),
            good.replace("\"format\":2", "\"format\":1"),
            good.replace(&process::boot(), "another"),
        ] {
            std::fs::write(&path, bad).expect("a file");
            assert!(Page::read(&path).is_none());
        }
    }
}
