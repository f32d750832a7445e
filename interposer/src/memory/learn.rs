//! Stage 1: what launches touched, as far as anybody tells, becomes templates.
//!
//! Evidence comes through [`Evidence`]. Here it is the simulated GPU's ledger, which tells after each launch what that launch touches (`simgpuTouches`); a real driver has no such
//! symbol, and there nothing is learnt here: residency read from the host's page table and CUPTI's records need launches one by one.
//!
//! A launch's thread only notes it, as a record of [`recording`], under a lock that is held for that alone. The memory thread takes the notes now and then and fits templates, which may take it
//! a second: nobody waits for it meanwhile, and no launch goes unnoted.
//!
//! With [`EVIDENCE`] the notes are also written to a file, by the memory thread, so that templates can be judged on launches that they were not learnt from
//! (`tests/clients/prediction.py`).

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use weft_profiles::working_set::recording::{self, Recording};
use weft_profiles::working_set::{
    Access, Allocations, Certainty, Evidence, Fitter, KernelWorkingSet, Launch, SimulatedLedger, Touched,
};

use crate::abi::{CuFunction, CuResult};
use crate::{loader, names};

/// Pieces of one launch that are asked for. A list of tensors has some hundreds; what has more is no evidence.
const PIECES: usize = 4096;

/// The file that launches and what they touched are written to, in stage 1. The first process that makes it has it.
const EVIDENCE: &str = "WEFT_EVIDENCE";

/// Bytes of notes that wait for the memory thread at most; launches beyond that are not noted.
const WAITING: usize = 64 << 20;

/// `simgpuTouches`.
type Tells = unsafe extern "C" fn(*mut u64, usize, *mut u64) -> CuResult;

static TELLS: LazyLock<Option<Tells>> = LazyLock::new(|| {
    let found = loader::opened()?.symbol(c"simgpuTouches")?;
    // SAFETY: the simulated driver's symbol is a function of this type, and no other driver has it.
    Some(unsafe { std::mem::transmute::<*mut (), Tells>(found) })
});

/// What launches' threads note.
#[derive(Debug, Default)]
struct Notes {
    /// Records, without a recording's beginning.
    records: Vec<u8>,
    /// Of the ranges that the last record of the job's allocations in `records` names.
    version: Option<u64>,
    /// Kernels whose symbols were noted once.
    named: HashSet<u64>,
    words: Vec<u64>,
    touched: Vec<Touched>,
}

static NOTES: Mutex<Option<Notes>> = Mutex::new(None);

/// The memory thread's.
#[derive(Debug, Default)]
pub struct Learner {
    fitter: Fitter,
    ledger: SimulatedLedger,
    touched: Vec<Touched>,
    told: Vec<KernelWorkingSet>,
    evidence: Option<File>,
}

/// This run is stage 1.
static ON: AtomicBool = AtomicBool::new(false);

/// Whether launches are to be noted.
#[inline]
pub fn on() -> bool {
    ON.load(Ordering::Relaxed) && TELLS.is_some()
}

fn notes() -> MutexGuard<'static, Option<Notes>> {
    // A panic under the lock leaves at worst half a record, which is then no recording.
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread has just launched this. `version` is that of `live`.
pub fn launched(launch: &Launch, function: CuFunction, live: &Allocations, version: u64) {
    let Some(tells) = *TELLS else { return };
    let mut notes = notes();
    let notes = notes.get_or_insert_default();
    if notes.records.len() > WAITING {
        return;
    }
    notes.words.resize(3 * PIECES, 0);
    // How many pieces, whether they are exact, and the launch's number.
    let mut what = [0u64; 3];
    // SAFETY: the list has room for as many as said, and the other one for the three words it takes.
    let told = unsafe { tells(notes.words.as_mut_ptr(), PIECES, what.as_mut_ptr()) };
    let [count, exact, number] = what;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if !told.ok() || count > PIECES {
        return;
    }
    let certainty = if exact == 1 {
        Certainty::Exact
    } else {
        Certainty::Guessed
    };
    let piece = |words: &[u64; 3]| Touched {
        address: words[0],
        bytes: words[1],
        access: match words[2] {
            0 => Access::Read,
            1 => Access::Write,
            _ => Access::ReadWrite,
        },
    };
    notes.touched.clear();
    let pieces = notes.words.as_chunks::<3>().0.iter().take(count);
    notes.touched.extend(pieces.map(piece));
    if notes.version != Some(version) {
        recording::write_allocations(&mut notes.records, live);
        notes.version = Some(version);
    }
    if notes.named.insert(launch.kernel)
        && let Some(named) = names::named(function)
    {
        recording::write_name(&mut notes.records, launch.kernel, &named.symbol);
    }
    recording::write_launch(&mut notes.records, number, launch, certainty, &notes.touched);
}

impl Learner {
    /// Begins to learn: launches are noted from here on.
    pub fn begin() -> Learner {
        let mut learner = Learner::default();
        if TELLS.is_some()
            && let Some(path) = std::env::var_os(EVIDENCE)
        {
            match File::create_new(&path).and_then(|mut file| file.write_all(recording::MAGIC).map(|()| file)) {
                Ok(file) => learner.evidence = Some(file),
                Err(why) => log::warn!("{EVIDENCE}={}: {why}; nothing is written there", path.display()),
            }
        }
        ON.store(true, Ordering::Release);
        learner
    }

    /// Takes what was noted, and returns the templates that have changed since this was called last.
    pub fn news(&mut self) -> Vec<KernelWorkingSet> {
        // Taken, not copied: a launch waits for the lock.
        let taken = notes().as_mut().map(|notes| {
            // What comes next is read by itself, and says first what the job has.
            notes.version = None;
            std::mem::take(&mut notes.records)
        });
        let Some(records) = taken.filter(|records| !records.is_empty()) else {
            return Vec::new();
        };
        if let Some(Err(why)) = self.evidence.as_mut().map(|file| file.write_all(&records)) {
            log::warn!("{EVIDENCE}: {why}; nothing more is written there");
            self.evidence = None;
        }
        match Recording::read(&[recording::MAGIC.as_slice(), &records].concat()) {
            Ok(recording) => self.observe(recording),
            Err(why) => log::warn!("what launches touched was noted wrongly, and is not learnt from: {why}"),
        }
        let sets = self.fitter.fit().kernels;
        // Both are sorted by kernel.
        let known = |set: &KernelWorkingSet| {
            let at = self.told.binary_search_by_key(&set.kernel, |told| told.kernel).ok()?;
            self.told.get(at)
        };
        let changed = sets
            .iter()
            .filter(|set| known(set).is_none_or(|told| told.words != set.words));
        let changed: Vec<KernelWorkingSet> = changed.cloned().collect();
        self.told = sets;
        changed
    }

    fn observe(&mut self, recording: Recording) {
        let Recording {
            allocations, launches, ..
        } = recording;
        for launch in launches {
            let Some(live) = allocations.get(launch.allocations) else {
                continue;
            };
            let view = launch.launch();
            self.ledger
                .record(launch.number, launch.certainty, launch.touched.clone());
            self.touched.clear();
            if let Some(certainty) = self.ledger.touched(launch.number, &mut self.touched) {
                self.fitter.observe_as(certainty, &view, live, &self.touched);
            }
        }
    }
}
