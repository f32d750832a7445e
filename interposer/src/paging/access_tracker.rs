// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracks which managed memory a job's launches, copies and fills use, and in which order.
//!
//! * The profile's templates predict a launch's use from its parameters. A kernel without a
//!   template counts as using the memory behind each pointer, up to [`UNKNOWN_USE_BYTES`] and the
//!   range's end.
//! * A [`PeriodDetector`] finds the period; the migration thread reports it ([`news`]). A launch
//!   writes its position to the lane after it has gone: while it waits, its memory must not count
//!   as used.
//! * Each range holds the last round that named it. Without a period the broker uses this round.
//! * A launch whose memory was evicted waits for it behind the gate ([`super::evicted`]).
//!
//! Cost: some hundred ns per launch, under a lock. Only jobs with managed memory pay.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_profiles::working_set::{
    Access, Allocations, KernelWorkingSet, LaunchArguments, Region, Touched, WorkingSetPredictor, WorkingSets,
};
use weft_protocol::Ns;
use weft_protocol::control::{GRANULE, GranuleUse};

use super::period_detector::{PeriodDetector, PeriodForecast};
use super::residency_probe::{self, Windows};
use super::{evicted, ranges, template_learner};
use crate::client::{clock, link};
use crate::driver::abi::{CuFunction, CuResult, CuStream};
use crate::driver::capture;
use crate::internal_error::guarded;
use crate::kernels::{self, layouts};

/// Bytes counted as used behind an unknown kernel's pointer; most tensors are smaller.
const UNKNOWN_USE_BYTES: u64 = 64 << 20;

const MOST_POINTERS: usize = 256;

/// Smallest region that separates parts of the period; smaller temporaries wander.
const LARGE_BYTES: u64 = 1 << 20;

/// Largest allocation that shows nothing: a caching allocator's block, in which a scalar moves.
const SMALL_BYTES: u64 = 2 << 20;

/// Parameter bytes from which an unknown kernel counts as passing a table. PyTorch's optimizers
/// pass lists of tensors, 3 KB and more. Leftovers in a table look like pointers to most of the
/// memory.
const TABLE_BYTES: usize = 2560;

static ROUND: AtomicU32 = AtomicU32::new(1);

/// The last round with a launch of unseen arguments.
static UNSEEN: AtomicU32 = AtomicU32::new(0);

/// Whether the job launches graphs, or unknown kernels with a table. Then there is no forecast,
/// which is better than a guess.
static BLIND: AtomicBool = AtomicBool::new(false);

static TRACKER: Mutex<Option<Box<Tracker>>> = Mutex::new(None);

#[derive(Debug, Default)]
struct Tracker {
    predictor: WorkingSetPredictor,
    period: PeriodDetector,
    live: Allocations,
    version: u64,
    block: Vec<u8>,
    regions: Vec<Region>,
    number: u32,
    told: Option<PeriodForecast>,
    shapes: template_learner::Shapes,
}

fn tracker() -> MutexGuard<'static, Option<Box<Tracker>>> {
    // A panic under the lock loses at most a step.
    TRACKER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel launch: shape in blocks and threads, dynamic shared memory in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    pub function: CuFunction,
    pub grid: (u32, u32, u32),
    pub block: (u32, u32, u32),
    pub shared: u32,
    pub stream: CuStream,
}

/// Predicted time of a kernel or graph, ns, or the charge for unknown ones.
fn cost(hash: u64) -> Ns {
    link::only().map_or(0, |link| {
        let unknown = || link.lane.orders.unknown_cost.load(Ordering::Relaxed);
        link.costs.get(hash).unwrap_or_else(unknown)
    })
}

/// Clock time minus the waits for credit and for memory, ns.
fn own_time() -> Ns {
    let waited = link::only().map_or(0, |link| {
        let counters = &link.lane.counters;
        let gate = counters.waited.load(Ordering::Relaxed);
        gate.saturating_add(counters.memory_waited.load(Ordering::Relaxed))
    });
    clock::now().saturating_sub(waited)
}

fn tell_position(forecast: u32, at: Option<Ns>) {
    if let Some(link) = link::only() {
        let page_ops = &link.lane.page_ops;
        page_ops.forecast.store(forecast, Ordering::Relaxed);
        page_ops
            .position
            .store(at.map_or(0, |at| at.saturating_add(1)), Ordering::Release);
    }
}

/// Knowledge about a launch, kept from before the launch until after it.
#[derive(Debug, Default)]
pub struct Noted {
    /// Memory needed: (address, bytes).
    wanted: Vec<(u64, u64)>,
    /// Position after the launch: forecast number, ns into the period.
    behind: Option<(u32, Option<Ns>)>,
    /// In stage 1: the launch and its parameters.
    learns: Option<(Kernel, u64, Vec<u8>)>,
    windows: Option<Windows>,
}

impl Noted {
    /// Waits for the memory, then launches.
    #[inline]
    pub fn around(self, real: impl FnOnce() -> CuResult) -> CuResult {
        if !self.wanted.is_empty() {
            guarded(|| evicted::await_memory(&self.wanted));
        }
        let behind = self.behind;
        let result = self.learning(real);
        if let Some((number, position)) = behind {
            guarded(|| tell_position(number, position));
        }
        result
    }

    /// Waits for the memory of a copy or fill.
    #[inline]
    pub fn goes(self) {
        if !self.wanted.is_empty() {
            guarded(|| evicted::await_memory(&self.wanted));
        }
        if let Some((number, position)) = self.behind {
            guarded(|| tell_position(number, position));
        }
    }

    #[inline]
    fn learning(self, real: impl FnOnce() -> CuResult) -> CuResult {
        let Some((kernel, word, parameters)) = self.learns else {
            return real();
        };
        let observed = self
            .windows
            .and_then(|windows| guarded(|| residency_probe::prepare(kernel.stream, &windows)).flatten());
        let beside = (observed.is_none() && residency_probe::is_on()).then(residency_probe::lock_beside);
        let result = real();
        drop(beside);
        if result.ok() {
            guarded(|| {
                let touched = observed.and_then(residency_probe::Observation::touched);
                let tracker = tracker();
                let Some(tracker) = tracker.as_ref() else { return };
                let launch = launch_of(&kernel, word, &parameters);
                if let Some(touched) = touched {
                    template_learner::note_observed(&launch, kernel.function, &tracker.live, tracker.version, &touched);
                } else {
                    template_learner::note_launch(&launch, kernel.function, &tracker.live, tracker.version);
                }
            });
        }
        result
    }

    /// Whether the launch will be observed: its duration then is of no use.
    pub fn is_observed(&self) -> bool {
        self.windows.is_some()
    }
}

fn launch_of<'a>(kernel: &Kernel, word: u64, parameters: &'a [u8]) -> LaunchArguments<'a> {
    LaunchArguments {
        kernel: word,
        parameters,
        grid: kernel.grid.into(),
        block: kernel.block.into(),
    }
}

/// Tracks a kernel before its launch.
///
/// # Safety
/// `arguments` and `extra` are those of the launch call.
#[inline]
pub unsafe fn launch(kernel: Kernel, arguments: *const c_void, extra: *const c_void) -> Noted {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { note(kernel, arguments, extra) }).unwrap_or_default()
}

/// # Safety
/// As [`launch`].
unsafe fn note(kernel: Kernel, arguments: *const c_void, extra: *const c_void) -> Noted {
    if capture::on(kernel.stream) {
        // It runs with its graph, which counts as touching all memory.
        return Noted::default();
    }
    let Some(layout) = layouts::of(kernel.function) else {
        mark_unseen();
        return Noted::default();
    };
    let (gx, gy, gz) = kernel.grid;
    let (bx, by, bz) = kernel.block;
    let hash = kernels::identify(kernel.function, gx, gy, gz, bx, by, bz, kernel.shared);
    let word = kernels::symbol(kernel.function);
    let mut guard = tracker();
    let tracker = guard.get_or_insert_default();
    // SAFETY: the caller's promise.
    unsafe { layouts::pack(layout, arguments, extra, &mut tracker.block) };
    tracker.refresh();
    if !tracker.predict(&kernel, word) && !BLIND.swap(true, Ordering::Relaxed) {
        tracker.period.forget();
    }
    let mut noted = Noted {
        behind: tracker.step(hash, cost(hash), touching),
        ..Noted::default()
    };
    noted.wanted = tracker.wanted();
    if template_learner::is_on() {
        noted.learns = Some((kernel, word, tracker.block.clone()));
        if residency_probe::is_on() {
            residency_probe::note_stream(kernel.stream);
            noted.windows = tracker.observes(&kernel, word);
        }
    }
    noted
}

/// Tracks a copy or fill of `bytes` before the gate, by (address, access).
pub fn moved(places: [(u64, Access); 2], bytes: u64) -> Noted {
    residency_probe::note_other_work();
    let noted = guarded(|| {
        let mut guard = tracker();
        let tracker = guard.get_or_insert_default();
        tracker.refresh();
        tracker.regions.clear();
        for (address, access) in places {
            if let Some((_, end)) = tracker.live.find(address) {
                let bytes = bytes.max(1).min(end - address);
                tracker.regions.push(Region::contiguous(address, bytes, access));
            }
        }
        if tracker.regions.is_empty() {
            return Noted::default();
        }
        Noted {
            behind: tracker.step(bytes, 0, overwriting),
            wanted: tracker.wanted(),
            ..Noted::default()
        }
    });
    noted.unwrap_or_default()
}

fn granules(first: u64, end: u64, access: Access) -> Option<GranuleUse> {
    let count = end.checked_sub(first).filter(|count| *count > 0)?;
    Some(GranuleUse {
        at: 0,
        first,
        count: u32::try_from(count).unwrap_or(u32::MAX),
        access,
    })
}

fn touching(part: Touched) -> [Option<GranuleUse>; 3] {
    let access = match part.access {
        Access::Read => Access::Read,
        // A partly overwritten granule keeps the rest of its content.
        _ => Access::ReadWrite,
    };
    let (first, end) = (part.address / GRANULE, part.end().div_ceil(GRANULE));
    [granules(first, end, access), None, None]
}

fn overwriting(part: Touched) -> [Option<GranuleUse>; 3] {
    let (first, end) = (part.address / GRANULE, part.end().div_ceil(GRANULE));
    let (from, to) = (part.address.div_ceil(GRANULE), part.end() / GRANULE);
    if part.access != Access::Write || from >= to {
        return touching(part);
    }
    [
        granules(first, from, Access::ReadWrite),
        granules(from, to, Access::Write),
        granules(to, end, Access::ReadWrite),
    ]
}

/// Notes a launch of unseen arguments: it may touch all memory.
pub fn unseen() {
    residency_probe::note_other_work();
    mark_unseen();
    if !BLIND.swap(true, Ordering::Relaxed)
        && let Some(tracker) = tracker().as_mut()
    {
        tracker.period.forget();
    }
}

fn mark_unseen() {
    let round = ROUND.load(Ordering::Relaxed);
    if UNSEEN.load(Ordering::Relaxed) != round {
        UNSEEN.store(round, Ordering::Relaxed);
    }
}

/// Ends a round. Returns the ranges named in it; `None`: perhaps all.
pub fn end_round() -> Option<Vec<u64>> {
    let round = ROUND.fetch_add(1, Ordering::AcqRel);
    (UNSEEN.load(Ordering::Relaxed) != round).then(|| ranges::named_in(round))
}

/// News about the period, with the forecast's number. `again`: also if it was reported before.
pub fn news(again: bool) -> Option<(u32, PeriodForecast)> {
    let mut guard = tracker();
    let tracker = guard.as_mut()?;
    if let Some(news) = tracker.period.news() {
        tracker.number = tracker.number.wrapping_add(1);
        tracker.told = Some(news);
    } else if !again {
        return None;
    }
    Some((tracker.number, tracker.told.clone()?))
}

pub fn know(sets: Vec<KernelWorkingSet>) {
    let mut guard = tracker();
    let tracker = guard.get_or_insert_default();
    let mut all = tracker.predictor.sets().clone();
    let mut kernels = sets;
    kernels.sort_unstable_by_key(|kernel| kernel.kernel);
    all.merge(&WorkingSets { kernels });
    tracker.predictor = WorkingSetPredictor::new(all);
}

impl Tracker {
    fn refresh(&mut self) {
        let version = ranges::version();
        if version == self.version {
            return;
        }
        self.version = version;
        self.live = Allocations::new();
        for (start, range) in ranges::all() {
            self.live.add(start, range.room);
        }
    }

    fn observes(&mut self, kernel: &Kernel, word: u64) -> Option<Windows> {
        let launch = launch_of(kernel, word, &self.block);
        if !residency_probe::has_time() || !self.shapes.wants(&launch, &self.live) {
            return None;
        }
        Windows::of(&launch, &self.live)
    }

    /// Predicts the use of the launch in `block` into `regions`. False: unknown, with a table.
    fn predict(&mut self, kernel: &Kernel, word: u64) -> bool {
        self.regions.clear();
        let launch = launch_of(kernel, word, &self.block);
        let predicted = self.predictor.predict(&launch, &self.live);
        if predicted.known {
            self.regions.extend_from_slice(predicted.regions);
            true
        } else {
            let all = self.live.all();
            let (Some((lowest, _)), Some((_, highest))) = (all.first(), all.last()) else {
                return true;
            };
            let words = launch.pointer_offsets().filter_map(|offset| launch.word64(offset));
            for pointer in words.filter(|word| (*lowest..*highest).contains(word)) {
                let Some((_, end)) = self.live.find(pointer) else {
                    continue;
                };
                if self.regions.iter().any(|region| region.address == pointer) {
                    continue;
                }
                let bytes = UNKNOWN_USE_BYTES.min(end - pointer);
                self.regions.push(Region::contiguous(pointer, bytes, Access::ReadWrite));
                if self.regions.len() >= MOST_POINTERS {
                    break;
                }
            }
            self.block.len() < TABLE_BYTES
        }
    }

    /// Memory of `regions` that must be resident. Empty if no granule can be evicted.
    fn wanted(&self) -> Vec<(u64, u64)> {
        if !evicted::may_be() {
            return Vec::new();
        }
        let parts = self.regions.iter().flat_map(|region| region.parts());
        parts.map(|part| (part.address, part.bytes)).collect()
    }

    /// Adds a step that uses `regions`; `uses` turns a part into granules. Returns the forecast's
    /// number and the position after the step, ns.
    fn step(
        &mut self,
        what: u64,
        cost: u64,
        uses: fn(Touched) -> [Option<GranuleUse>; 3],
    ) -> Option<(u32, Option<Ns>)> {
        let round = ROUND.load(Ordering::Relaxed);
        for region in &self.regions {
            ranges::name(region.address, round);
        }
        let live = &self.live;
        let large = |region: &&Region| {
            let lies_in = || {
                live.find(region.address)
                    .is_some_and(|(start, end)| end - start > SMALL_BYTES)
            };
            region.touched() >= LARGE_BYTES && lies_in()
        };
        let sign = self
            .regions
            .iter()
            .filter(large)
            .fold(what, |sign, region| sign.rotate_left(5) ^ (region.address / GRANULE));
        if BLIND.load(Ordering::Relaxed) {
            return None;
        }
        let parts = self.regions.iter().flat_map(|region| region.parts());
        let uses = parts.flat_map(|part| uses(part).into_iter().flatten());
        self.period.step(sign, cost, own_time(), uses);
        Some((self.number, self.period.position()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(
        uses: fn(Touched) -> [Option<GranuleUse>; 3],
        address: u64,
        bytes: u64,
        access: Access,
    ) -> Vec<(u64, u32, Access)> {
        let part = Touched { address, bytes, access };
        let uses = uses(part).into_iter().flatten();
        uses.map(|one| (one.first, one.count, one.access)).collect()
    }

    #[test]
    fn a_small_thing_that_wanders_hides_no_period() {
        let mut tracker = Tracker::default();
        let (large, small) = (1 << 40, 2 << 40);
        tracker.live.add(large, 64 * LARGE_BYTES);
        tracker.live.add(small, SMALL_BYTES);
        // The scalar's place, in changing order.
        for place in [0, 3, 1, 2, 5, 4] {
            for kernel in 0..30 {
                let first = Region::contiguous(large + kernel * GRANULE, GRANULE, Access::Read);
                tracker.regions.clear();
                tracker.regions.push(first);
                if kernel == 7 {
                    // A kernel without template.
                    let at = place * (LARGE_BYTES / 3);
                    let guess = Region::contiguous(small + at, SMALL_BYTES - at, Access::ReadWrite);
                    tracker.regions.push(guess);
                }
                tracker.step(kernel, 1000, touching);
            }
        }
        assert!(tracker.period.news().is_some());
    }

    #[test]
    fn only_whole_granules_are_overwritten_and_only_where_that_is_certain() {
        let base = 4 * GRANULE;
        let whole = used(overwriting, base, 3 * GRANULE, Access::Write);
        assert_eq!(whole, [(4, 3, Access::Write)]);
        let edges = used(overwriting, base + 1, 3 * GRANULE, Access::Write);
        let rest = Access::ReadWrite;
        assert_eq!(edges, [(4, 1, rest), (5, 2, Access::Write), (7, 1, rest)]);
        // Within one granule, and over the edge of two.
        assert_eq!(used(overwriting, base + 1, 8, Access::Write), [(4, 1, rest)]);
        assert_eq!(used(overwriting, base - 8, 16, Access::Write), [(3, 2, rest)]);
        let kernel = used(touching, base, 3 * GRANULE, Access::Write);
        assert_eq!(kernel, [(4, 3, rest)]);
        for uses in [overwriting, touching] {
            assert_eq!(used(uses, base, GRANULE, Access::Read), [(4, 1, Access::Read)]);
            assert_eq!(used(uses, base, GRANULE, rest), [(4, 1, rest)]);
        }
    }
}
