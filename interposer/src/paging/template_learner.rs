// SPDX-License-Identifier: MIT OR Apache-2.0
//! Template learner: derives templates from evidence of touched memory, in stage 1.
//!
//! [`EVIDENCE_FROM`] selects the source of [`Evidence`]. The simulated GPU reports it after each
//! launch (`simgpuTouches`). On a real GPU the host's page table shows it
//! ([`super::residency_probe`]). This is slow, so it happens only on request.
//!
//! A launch's thread only adds a record of [`recording`], under a lock. The migration thread fits
//! templates now and then, which may take a second. It also writes the records to the file in
//! [`EVIDENCE`], if any, with which `tests/clients/test_prediction.py` judges templates.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use weft_profiles::working_set::recording::{self, Recording};
use weft_profiles::working_set::{
    Access, Allocations, Certainty, Evidence, Fitter, HostResidency, KernelWorkingSet, LaunchArguments,
    SimulatedLedger, Touched,
};

use super::residency_probe;
use crate::client::settings::{EVIDENCE_FROM, EvidenceSource};

use crate::driver::abi::{CuFunction, CuResult};
use crate::driver::loader;
use crate::kernels;

/// Most pieces of a launch; a launch with more is no evidence. A list of tensors has some hundreds.
const MOST_PIECES: usize = 4096;

/// Variable with the file for the records. The first process that makes the file owns it.
const EVIDENCE: &str = "WEFT_EVIDENCE";

/// Records waiting for the migration thread; further launches are not noted.
const NOTES_BYTES: usize = 64 << 20;

type TouchesFn = unsafe extern "C" fn(*mut u64, usize, *mut u64) -> CuResult;

static TOUCHES: LazyLock<Option<TouchesFn>> = LazyLock::new(|| {
    let found = loader::opened()?.symbol(c"simgpuTouches")?;
    // SAFETY: the simulated driver's symbol has this type; no other driver has it.
    Some(unsafe { std::mem::transmute::<*mut (), TouchesFn>(found) })
});

#[derive(Debug, Default)]
struct Notes {
    /// Without a recording's header.
    records: Vec<u8>,
    /// Version of the ranges at the last allocation record.
    version: Option<u64>,
    named: HashSet<u64>,
    number: u64,
    words: Vec<u64>,
    touched: Vec<Touched>,
}

static NOTES: Mutex<Option<Notes>> = Mutex::new(None);

#[derive(Debug, Default)]
pub struct Learner {
    residency: Option<Fitter>,
    fitter: Fitter,
    ledger: SimulatedLedger,
    touched: Vec<Touched>,
    told: Vec<KernelWorkingSet>,
    evidence: Option<File>,
    /// Observations at the last log line.
    said: u64,
}

static ON: AtomicBool = AtomicBool::new(false);

#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed) && (residency_probe::is_on() || TOUCHES.is_some())
}

fn notes() -> MutexGuard<'static, Option<Notes>> {
    // A panic leaves at most half a record, which is not a recording.
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a launch just made. `version` is that of `live`.
pub fn note_launch(launch: &LaunchArguments, function: CuFunction, live: &Allocations, version: u64) {
    if residency_probe::is_on() {
        // The launch is observed by the probe, or not at all.
        return;
    }
    let Some(tells) = *TOUCHES else { return };
    let mut notes = notes();
    let notes = notes.get_or_insert_default();
    if notes.records.len() > NOTES_BYTES {
        return;
    }
    notes.words.resize(3 * MOST_PIECES, 0);
    // Pieces, whether they are exact, the launch's number.
    let mut what = [0u64; 3];
    // SAFETY: the list has room for `MOST_PIECES` pieces; the other has three words.
    let told = unsafe { tells(notes.words.as_mut_ptr(), MOST_PIECES, what.as_mut_ptr()) };
    let [count, exact, number] = what;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if !told.ok() || count > MOST_PIECES {
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
    let touched = std::mem::take(&mut notes.touched);
    notes.note(number, certainty, launch, function, (live, version), &touched);
    notes.touched = touched;
}

pub fn note_observed(
    launch: &LaunchArguments,
    function: CuFunction,
    live: &Allocations,
    version: u64,
    touched: &[Touched],
) {
    let mut notes = notes();
    let notes = notes.get_or_insert_default();
    if notes.records.len() > NOTES_BYTES {
        return;
    }
    notes.number += 1;
    let number = notes.number;
    notes.note(number, Certainty::Exact, launch, function, (live, version), touched);
}

impl Notes {
    fn note(
        &mut self,
        number: u64,
        certainty: Certainty,
        launch: &LaunchArguments,
        function: CuFunction,
        (live, version): (&Allocations, u64),
        touched: &[Touched],
    ) {
        if self.version != Some(version) {
            recording::write_allocations(&mut self.records, live);
            self.version = Some(version);
        }
        if self.named.insert(launch.kernel)
            && let Some(named) = kernels::named(function)
        {
            recording::write_name(&mut self.records, launch.kernel, &named.symbol);
        }
        recording::write_launch(&mut self.records, number, launch, certainty, touched);
    }
}

#[derive(Debug, Default)]
pub struct Shapes {
    /// By kernel and arguments, without the addresses of data.
    seen: HashMap<u64, u8>,
    kernels: HashMap<u64, u32>,
    scratch: Vec<u8>,
}

impl Shapes {
    /// Counts a launch. True if it must be observed.
    pub fn wants(&mut self, launch: &LaunchArguments, live: &Allocations) -> bool {
        let shape = launch.shape(live, &mut self.scratch);
        let seen = self.seen.entry(shape ^ launch.kernel).or_default();
        if *seen == 0 {
            let shapes = self.kernels.entry(launch.kernel).or_default();
            if *shapes >= residency_probe::SHAPES_PER_KERNEL {
                self.seen.remove(&(shape ^ launch.kernel));
                return false;
            }
            *shapes += 1;
        }
        let wanted = *seen < residency_probe::TIMES_PER_SHAPE;
        *seen = seen.saturating_add(u8::from(wanted));
        wanted
    }
}

impl Learner {
    pub fn begin() -> Learner {
        let mut learner = Learner::default();
        // An invalid value was reported at the start.
        let source =
            EvidenceSource::parse(std::env::var(EVIDENCE_FROM).ok().as_deref()).unwrap_or(EvidenceSource::Ledger);
        if source == EvidenceSource::Residency {
            learner.residency = Some(Fitter::of_residency());
            residency_probe::turn_on();
        }
        if (source == EvidenceSource::Residency || TOUCHES.is_some())
            && let Some(path) = std::env::var_os(EVIDENCE)
        {
            let mut beginning = recording::MAGIC.to_vec();
            if source == EvidenceSource::Residency {
                recording::write_granule(&mut beginning, HostResidency::GRANULE);
            }
            match File::create_new(&path).and_then(|mut file| file.write_all(&beginning).map(|()| file)) {
                Ok(file) => learner.evidence = Some(file),
                Err(why) => log::warn!("{EVIDENCE}={}: {why}; the file is not written", path.display()),
            }
        }
        ON.store(true, Ordering::Release);
        learner
    }

    /// Takes the notes; returns templates that changed since the last call.
    pub fn news(&mut self) -> Vec<KernelWorkingSet> {
        // Taken, not copied, because launches wait for the lock.
        let taken = notes().as_mut().map(|notes| {
            // So that the next records begin with the job's ranges.
            notes.version = None;
            std::mem::take(&mut notes.records)
        });
        let Some(records) = taken.filter(|records| !records.is_empty()) else {
            return Vec::new();
        };
        if let Some(Err(why)) = self.evidence.as_mut().map(|file| file.write_all(&records)) {
            log::warn!("{EVIDENCE}: {why}; writing stops");
            self.evidence = None;
        }
        match Recording::read(&[recording::MAGIC.as_slice(), &records].concat()) {
            Ok(recording) => self.observe(recording),
            Err(why) => log::warn!("the notes on memory touched by launches are invalid and not learnt from: {why}"),
        }
        let (observed, passed, vain, took) = residency_probe::statistics();
        if observed >= 2 * self.said.max(1) {
            self.said = observed;
            log::info!("{observed} launches were observed in {took:.1?}, {passed} not, {vain} in vain");
        }
        let sets = self.residency.as_mut().unwrap_or(&mut self.fitter).fit().kernels;
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
            if let Some(fitter) = self.residency.as_mut() {
                fitter.observe_as(launch.certainty, &view, live, &launch.touched);
                continue;
            }
            self.ledger
                .record(launch.number, launch.certainty, launch.touched.clone());
            self.touched.clear();
            if let Some(certainty) = self.ledger.touched(launch.number, &mut self.touched) {
                self.fitter.observe_as(certainty, &view, live, &self.touched);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_has_three_values() {
        for text in [None, Some(""), Some("auto"), Some("ledger")] {
            assert_eq!(EvidenceSource::parse(text), Ok(EvidenceSource::Ledger));
        }
        assert_eq!(
            EvidenceSource::parse(Some(" residency ")),
            Ok(EvidenceSource::Residency)
        );
        let said = EvidenceSource::parse(Some("cupti")).unwrap_err();
        assert!(said.contains("WEFT_EVIDENCE_FROM=cupti"), "{said}");
    }

    #[test]
    fn each_shape_is_wanted_some_times_wherever_its_data_lies() {
        let mut live = Allocations::new();
        live.add(0x7000_0000, 1 << 20);
        let mut shapes = Shapes::default();
        let mut wants = |pointer: u64, size: u64| {
            let parameters = [pointer.to_le_bytes(), size.to_le_bytes()].concat();
            let launch = LaunchArguments {
                kernel: 9,
                parameters: &parameters,
                grid: [1; 3],
                block: [1; 3],
            };
            shapes.wants(&launch, &live)
        };
        let wanted = (0..10).filter(|at| wants(0x7000_0000 + at * 64, 5)).count();
        assert_eq!(wanted, usize::from(residency_probe::TIMES_PER_SHAPE));
        assert!(wants(0x7000_0000, 6), "another size");
        let wanted = (0..10_000).filter(|size| wants(0x7000_0000, 10 + size)).count();
        assert_eq!(wanted, residency_probe::SHAPES_PER_KERNEL as usize - 2);
    }
}
