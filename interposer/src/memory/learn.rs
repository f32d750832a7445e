//! Stage 1: what launches touched, as far as anybody tells, becomes templates.
//!
//! Evidence comes through [`Evidence`]. Here it is the simulated GPU's ledger, which tells after each launch what that launch touches (`simgpuTouches`); a real driver has no such
//! symbol, and there nothing is learnt here: residency read from the host's page table and CUPTI's records need launches one by one.
//!
//! A launch's thread only notes it; where another thread is at it, it does not even do that. Fitting is the memory thread's.
//!
//! With [`EVIDENCE`] what was noted is also written to a file, by the memory thread, so that templates can be judged on launches that they were not learnt from
//! (`tests/clients/prediction.py`).

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError, TryLockError};

use weft_profiles::working_set::recording;
use weft_profiles::working_set::{
    Access, Allocations, Certainty, Evidence, Fitter, KernelWorkingSet, Launch, SimulatedLedger, Touched,
};

use crate::abi::{CuFunction, CuResult};
use crate::{loader, names};

/// Pieces of one launch that are asked for. A list of tensors has some hundreds; what has more is no evidence.
const PIECES: usize = 4096;

/// The file that launches and what they touched are written to, in stage 1. The first process that makes it has it.
const EVIDENCE: &str = "WEFT_EVIDENCE";

/// Bytes that wait for the memory thread to write them at most; launches beyond that are not written.
const UNWRITTEN: usize = 64 << 20;

/// `simgpuTouches`.
type Tells = unsafe extern "C" fn(*mut u64, usize, *mut u64) -> CuResult;

static TELLS: LazyLock<Option<Tells>> = LazyLock::new(|| {
    let found = loader::opened()?.symbol(c"simgpuTouches")?;
    // SAFETY: the simulated driver's symbol is a function of this type, and no other driver has it.
    Some(unsafe { std::mem::transmute::<*mut (), Tells>(found) })
});

#[derive(Debug, Default)]
struct Learnt {
    fitter: Fitter,
    ledger: SimulatedLedger,
    words: Vec<u64>,
    touched: Vec<Touched>,
    /// Something came since it was fitted last.
    news: bool,
    told: Vec<KernelWorkingSet>,
    evidence: Option<EvidenceFile>,
}

/// See [`EVIDENCE`].
#[derive(Debug)]
struct EvidenceFile {
    file: File,
    unwritten: Vec<u8>,
    live: Option<Allocations>,
    /// Kernels whose symbols are written.
    named: HashSet<u64>,
}

impl EvidenceFile {
    fn open() -> Option<EvidenceFile> {
        let path = std::env::var_os(EVIDENCE)?;
        match File::create_new(&path) {
            Ok(file) => Some(EvidenceFile {
                file,
                unwritten: recording::MAGIC.to_vec(),
                live: None,
                named: HashSet::new(),
            }),
            Err(why) => {
                log::warn!("{EVIDENCE}={}: {why}; nothing is written there", path.display());
                None
            }
        }
    }

    fn add(
        &mut self,
        number: u64,
        launch: &Launch,
        function: CuFunction,
        live: &Allocations,
        found: (Certainty, &[Touched]),
    ) {
        if self.unwritten.len() > UNWRITTEN {
            return;
        }
        if self.live.as_ref() != Some(live) {
            recording::write_allocations(&mut self.unwritten, live);
            self.live = Some(live.clone());
        }
        if self.named.insert(launch.kernel)
            && let Some(named) = names::named(function)
        {
            recording::write_name(&mut self.unwritten, launch.kernel, &named.symbol);
        }
        recording::write_launch(&mut self.unwritten, number, launch, found.0, found.1);
    }
}

static LEARNT: Mutex<Option<Learnt>> = Mutex::new(None);

/// This run is stage 1.
static ON: AtomicBool = AtomicBool::new(false);

/// Begins to learn.
pub fn begin() {
    if TELLS.is_some() {
        let mut learnt = LEARNT.lock().unwrap_or_else(PoisonError::into_inner);
        learnt.get_or_insert_default().evidence = EvidenceFile::open();
    }
    ON.store(true, Ordering::Release);
}

/// Whether launches are to be noted.
#[inline]
pub fn on() -> bool {
    ON.load(Ordering::Relaxed) && TELLS.is_some()
}

/// The calling thread has just launched this.
pub fn launched(launch: &Launch, function: CuFunction, live: &Allocations) {
    let Some(tells) = *TELLS else { return };
    let mut learnt = match LEARNT.try_lock() {
        Ok(learnt) => learnt,
        Err(TryLockError::Poisoned(learnt)) => learnt.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    let learnt = learnt.get_or_insert_default();
    learnt.words.resize(3 * PIECES, 0);
    // How many pieces, whether they are exact, and the launch's number.
    let mut what = [0u64; 3];
    // SAFETY: the list has room for as many as said, and the other one for the three words it takes.
    let told = unsafe { tells(learnt.words.as_mut_ptr(), PIECES, what.as_mut_ptr()) };
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
    let pieces = learnt.words.as_chunks::<3>().0.iter().take(count).map(piece).collect();
    learnt.ledger.record(number, certainty, pieces);
    learnt.touched.clear();
    if let Some(certainty) = learnt.ledger.touched(number, &mut learnt.touched) {
        learnt.fitter.observe_as(certainty, launch, live, &learnt.touched);
        learnt.news = true;
        if let Some(evidence) = &mut learnt.evidence {
            evidence.add(number, launch, function, live, (certainty, &learnt.touched));
        }
    }
}

/// Writes what waits to be written. Not under the lock: a launch does not wait for a file.
pub fn write_evidence() {
    let taken = {
        let mut learnt = LEARNT.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(evidence) = learnt.as_mut().and_then(|learnt| learnt.evidence.as_mut()) else {
            return;
        };
        if evidence.unwritten.is_empty() {
            return;
        }
        evidence
            .file
            .try_clone()
            .map(|file| (file, std::mem::take(&mut evidence.unwritten)))
    };
    let written = taken.and_then(|(mut file, bytes)| file.write_all(&bytes));
    if let Err(why) = written {
        log::warn!("{EVIDENCE}: {why}; nothing more is written there");
        let mut learnt = LEARNT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(learnt) = learnt.as_mut() {
            learnt.evidence = None;
        }
    }
}

/// Templates that have changed since this was asked last.
pub fn news() -> Vec<KernelWorkingSet> {
    let mut learnt = LEARNT.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(learnt) = learnt.as_mut().filter(|learnt| learnt.news) else {
        return Vec::new();
    };
    learnt.news = false;
    let sets = learnt.fitter.fit().kernels;
    // Both are sorted by kernel.
    let known = |set: &KernelWorkingSet| {
        let at = learnt.told.binary_search_by_key(&set.kernel, |told| told.kernel).ok()?;
        learnt.told.get(at)
    };
    let changed = sets
        .iter()
        .filter(|set| known(set).is_none_or(|told| told.words != set.words));
    let changed: Vec<KernelWorkingSet> = changed.cloned().collect();
    learnt.told = sets;
    changed
}
