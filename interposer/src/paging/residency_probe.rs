// SPDX-License-Identifier: MIT OR Apache-2.0
//! Residency probe: reads the memory that a launch touched from the host's page table. For stage 1
//! on real drivers, with `weft profile --evidence residency`.
//!
//! A launch is observed without other launches, on empty streams. Memory behind its pointers moves
//! to the host and is read there once, so that the page table has its pages. If pages have left
//! `/proc/self/pagemap` after the launch, the launch touched them or the driver brought them along.
//! Reads and writes look the same.
//!
//! * Besides the job's operations the device gets only moves of managed memory, and one fill of
//!   weft's own memory. That fill tests whether driver and device show touches at all.
//! * Each shape of a kernel is observed [`TIMES_PER_SHAPE`] times, for at most
//!   [`SHAPES_PER_KERNEL`] shapes per kernel. All observations take at most [`MOST_TIME`], during
//!   which the job waits.
//! * Every wait has a bound: if streams do not become empty, the launch is not observed.
//! * There is no observation during a capture or while another launch is under way. If a copy,
//!   fill, graph or change of the job's memory occurs meanwhile, the observation is void.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use weft_profiles::working_set::{Allocations, Evidence, HostResidency, LaunchArguments, Touched};

use super::{evicted, mem_advise, ranges};
use crate::driver::abi::{CuResult, CuStream};
use crate::driver::calls;
use crate::driver::capture;

/// Observations of a shape: the driver brings along other memory each time.
pub const TIMES_PER_SHAPE: u8 = 2;

pub const SHAPES_PER_KERNEL: u32 = 128;

/// Longest time for all observations of a process.
pub const MOST_TIME: Duration = Duration::from_secs(120);

/// Most bytes moved for one launch: an optimiser's lists have all weights four times.
const MOST_BYTES: u64 = 8 << 30;

/// Free host memory needed for each moved byte.
const SPARE_FACTOR: u64 = 2;

/// Bytes observed behind a pointer in a larger allocation. A touch of the last granule voids the
/// observation, because there may be more touches.
const WINDOW_BYTES: u64 = 2 << 30;

/// Free memory that any host has.
const ROOMY_BYTES: u64 = 256 << 20;

/// Longest waits for empty streams, and for the launch's end.
const QUIET_TIMEOUT: Duration = Duration::from_secs(2);
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(10);

const POLL: Duration = Duration::from_micros(20);

const MOST_STREAMS: usize = 256;

/// Handles up to here are default streams.
const DEFAULT: CuStream = 2;

/// CU_MEM_ATTACH_GLOBAL.
const ATTACH_GLOBAL: u32 = 1;

/// Lock that launches share and that an observed launch holds exclusively.
static ALONE: RwLock<()> = RwLock::new(());

static OTHERS: AtomicU64 = AtomicU64::new(0);

static STREAMS: Mutex<Vec<CuStream>> = Mutex::new(Vec::new());

static USABLE: AtomicU8 = AtomicU8::new(UNTRIED);
const UNTRIED: u8 = 0;
const SHOWS: u8 = 1;
const HIDES: u8 = 2;

static ON: AtomicBool = AtomicBool::new(false);

/// Launches observed, skipped because of other work, and observed without a result.
static OBSERVED: AtomicU64 = AtomicU64::new(0);
static PASSED: AtomicU64 = AtomicU64::new(0);
static VAIN: AtomicU64 = AtomicU64::new(0);

/// Time spent on observations, ns.
static SPENT: AtomicU64 = AtomicU64::new(0);

pub fn turn_on() {
    ON.store(true, Ordering::Relaxed);
}

#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed) && USABLE.load(Ordering::Relaxed) != HIDES
}

/// Turns observation off: read-mostly memory keeps its host copy.
pub fn turn_off() {
    if ON.swap(false, Ordering::Relaxed) {
        log::info!("read-mostly memory is both on host and device: launches are no longer observed");
    }
}

#[inline]
pub fn note_other_work() {
    OTHERS.fetch_add(1, Ordering::Relaxed);
}

/// Launches observed, skipped, and observed without a result; time spent.
pub fn statistics() -> (u64, u64, u64, Duration) {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let spent = Duration::from_nanos(count(&SPENT));
    (count(&OBSERVED), count(&PASSED), count(&VAIN), spent)
}

/// Whether time for observations is left.
pub fn has_time() -> bool {
    u128::from(SPENT.load(Ordering::Relaxed)) < MOST_TIME.as_nanos()
}

fn known() -> MutexGuard<'static, Vec<CuStream>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn note_stream(stream: CuStream) {
    if stream <= DEFAULT {
        return;
    }
    let mut known = known();
    if !known.contains(&stream) && known.len() <= MOST_STREAMS {
        known.push(stream);
    }
}

pub fn stream_ending(stream: CuStream) {
    if is_on() {
        known().retain(|other| *other != stream);
    }
}

pub fn context_ended() {
    if is_on() {
        known().clear();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MemoryWindow {
    begin: u64,
    end: u64,
    cut: bool,
}

/// Memory in which a launch's touches are looked for.
#[derive(Debug)]
pub struct Windows(Vec<MemoryWindow>);

impl Windows {
    /// The allocations behind a launch's pointers; `None` if none, or too large.
    pub fn of(launch: &LaunchArguments, live: &Allocations) -> Option<Windows> {
        let pointers = launch.pointer_offsets().filter_map(|offset| launch.word64(offset));
        let mut all: Vec<MemoryWindow> = pointers
            .filter_map(|pointer| {
                let (begin, end) = live.find(pointer)?;
                let whole = end - begin <= WINDOW_BYTES;
                let from = if whole {
                    begin
                } else {
                    begin.max(pointer / HostResidency::BLOCK * HostResidency::BLOCK)
                };
                let upto = if whole {
                    end
                } else {
                    end.min(from.saturating_add(WINDOW_BYTES))
                };
                Some(MemoryWindow {
                    begin: from,
                    end: upto,
                    cut: upto < end,
                })
            })
            .collect();
        all.sort_unstable_by_key(|window| (window.begin, window.end));
        let mut windows: Vec<MemoryWindow> = Vec::new();
        for window in all {
            match windows.last_mut() {
                // Allocations never overlap.
                Some(last) if window.begin < last.end => {
                    if window.end > last.end {
                        (last.end, last.cut) = (window.end, window.cut);
                    }
                }
                _ => windows.push(window),
            }
        }
        let bytes: u64 = windows.iter().map(|window| window.end - window.begin).sum();
        (bytes > 0 && bytes <= MOST_BYTES).then_some(Windows(windows))
    }
}

/// Lock for another launch, until the driver has it. Waits, bounded, for an observed one.
pub fn lock_beside() -> RwLockReadGuard<'static, ()> {
    ALONE.read().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub struct Observation {
    windows: Vec<(MemoryWindow, Vec<u8>)>,
    table: File,
    stream: CuStream,
    others: u64,
    version: u64,
    since: Instant,
    _alone: RwLockWriteGuard<'static, ()>,
}

/// Prepares an observation. `None`: not observed; moved memory comes back by itself.
pub fn prepare(stream: CuStream, windows: &Windows) -> Option<Observation> {
    let since = Instant::now();
    let observation = try_prepare(stream, windows, since);
    if observation.is_none() {
        PASSED.fetch_add(1, Ordering::Relaxed);
        spend(since);
    }
    observation
}

fn spend(since: Instant) {
    let took = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    SPENT.fetch_add(took, Ordering::Relaxed);
}

fn try_prepare(stream: CuStream, windows: &Windows, since: Instant) -> Option<Observation> {
    // A poisoned lock guards nothing.
    let alone = match ALONE.try_write() {
        Ok(alone) => alone,
        Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(std::sync::TryLockError::WouldBlock) => return None,
    };
    if capture::any() || evicted::any() {
        return None;
    }
    let (others, version) = (OTHERS.load(Ordering::Relaxed), ranges::version());
    let table = File::open("/proc/self/pagemap").ok()?;
    let streams = known().clone();
    if streams.len() > MOST_STREAMS
        || !streams
            .into_iter()
            .chain([stream])
            .all(|stream| ended(stream, QUIET_TIMEOUT))
    {
        return None;
    }
    if !usable(&table, stream) {
        return None;
    }
    let bytes: u64 = windows.0.iter().map(|window| window.end - window.begin).sum();
    if bytes > ROOMY_BYTES && available().is_none_or(|available| available / SPARE_FACTOR < bytes) {
        return None;
    }
    for window in &windows.0 {
        if !mem_advise::prefetch(window.begin, window.end - window.begin, None, stream).ok() {
            return None;
        }
    }
    if !ended(stream, QUIET_TIMEOUT) {
        return None;
    }
    let mut looked = Vec::with_capacity(windows.0.len());
    for window in &windows.0 {
        map(window.begin, window.end);
        let entries = entries(&table, window.begin, window.end)?;
        // A missing page would count as untouched.
        if present(&entries) < 1.0 {
            return None;
        }
        looked.push((*window, entries));
    }
    (others == OTHERS.load(Ordering::Relaxed) && version == ranges::version()).then_some(Observation {
        windows: looked,
        table,
        stream,
        others,
        version,
        since,
        _alone: alone,
    })
}

impl Observation {
    /// Memory that the launch touched, if the page table shows it.
    pub fn touched(self) -> Option<Vec<Touched>> {
        let found = self.look();
        let counter = if found.is_some() { &OBSERVED } else { &VAIN };
        counter.fetch_add(1, Ordering::Relaxed);
        spend(self.since);
        found
    }

    fn look(&self) -> Option<Vec<Touched>> {
        let undisturbed = || self.others == OTHERS.load(Ordering::Relaxed) && self.version == ranges::version();
        if !undisturbed() || !ended(self.stream, LAUNCH_TIMEOUT) {
            return None;
        }
        let mut residency = HostResidency::new(page());
        for (window, before) in &self.windows {
            let after = entries(&self.table, window.begin, window.end)?;
            residency.compare(0, window.begin / page() * page(), before, &after);
        }
        let mut touched = Vec::new();
        residency.touched(0, &mut touched)?;
        let whole = |window: &MemoryWindow| {
            let last = window.end.saturating_sub(HostResidency::GRANULE);
            !window.cut || touched.iter().all(|one| one.end() <= last || one.address >= window.end)
        };
        if !undisturbed() || !self.windows.iter().all(|(window, _)| whole(window)) {
            return None;
        }
        Some(touched)
    }
}

/// Waits until a stream is empty; false after `within`.
fn ended(stream: CuStream, within: Duration) -> bool {
    let since = Instant::now();
    loop {
        if capture::any() {
            return false;
        }
        // SAFETY: the job launches to this stream, which lives.
        match unsafe { calls::cuStreamQuery(stream) } {
            CuResult::SUCCESS => return true,
            CuResult::NOT_READY if since.elapsed() < within => std::thread::sleep(POLL),
            _ => return false,
        }
    }
}

fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}

/// Makes the host read each page of a range. May fail; the caller checks.
fn map(begin: u64, end: u64) {
    /// Linux's MADV_POPULATE_READ, since 5.14.
    const POPULATE_READ: i32 = 22;
    let begin = begin / page() * page();
    // SAFETY: only reads; unmapped addresses are an error, no fault.
    let _ = unsafe { libc::madvise(begin as *mut libc::c_void, (end - begin) as usize, POPULATE_READ) };
}

fn entries(table: &File, begin: u64, end: u64) -> Option<Vec<u8>> {
    let first = begin / page();
    let mut entries = vec![0; usize::try_from((end.div_ceil(page()) - first) * 8).ok()?];
    table.read_exact_at(&mut entries, first * 8).ok()?;
    Some(entries)
}

/// Part of the pages that is in the table.
fn present(entries: &[u8]) -> f64 {
    let all = entries.as_chunks::<8>().0;
    let present = all
        .iter()
        .filter(|entry| u64::from_le_bytes(**entry) >> 62 != 0)
        .count();
    present as f64 / all.len().max(1) as f64
}

/// Whether the page table shows touches; tried once.
fn usable(table: &File, stream: CuStream) -> bool {
    match USABLE.load(Ordering::Relaxed) {
        SHOWS => return true,
        HIDES => return false,
        _ => {}
    }
    let shows = try_out(table, stream);
    USABLE.store(if shows.is_ok() { SHOWS } else { HIDES }, Ordering::Relaxed);
    match shows {
        Ok(()) => log::info!(
            "the host's page table shows the memory that the device touches: working sets are learnt from it"
        ),
        Err(why) => log::warn!("working sets cannot be learnt from the host's page table here: {why}"),
    }
    shows.is_ok()
}

fn try_out(table: &File, stream: CuStream) -> Result<(), &'static str> {
    const BLOCKS: u64 = 4;
    let bytes = BLOCKS * HostResidency::BLOCK;
    let mut at = 0;
    // SAFETY: valid out-parameter.
    if !unsafe { calls::cuMemAllocManaged(&mut at, bytes as usize, ATTACH_GLOBAL) }.ok() {
        return Err("the driver does not provide managed memory");
    }
    let tried = try_on(table, stream, at, bytes);
    // SAFETY: taken above, known to no other code.
    let _ = unsafe { calls::cuMemFree_v2(at) };
    tried
}

fn try_on(table: &File, stream: CuStream, at: u64, bytes: u64) -> Result<(), &'static str> {
    let block = HostResidency::BLOCK;
    let whole = mem_advise::prefetch(at, bytes, None, stream).ok() && ended(stream, QUIET_TIMEOUT);
    if !whole {
        return Err("the driver refuses to move managed memory to the host");
    }
    map(at, at + bytes);
    let look = |from: u64, upto: u64| entries(table, at + from, at + upto).map(|entries| present(&entries));
    let before = look(0, bytes).ok_or("/proc/self/pagemap cannot be read")?;
    if before < 1.0 {
        return Err("pages that the host has read are not in its page table");
    }
    // SAFETY: our own memory.
    let filled = unsafe { calls::cuMemsetD8Async(at, 0, block as usize, stream) }.ok() && ended(stream, QUIET_TIMEOUT);
    match (filled, look(0, block), look(2 * block, bytes)) {
        (false, ..) => Err("the driver refuses to fill managed memory"),
        (_, Some(touched), Some(others)) if touched == 0.0 && others == 1.0 => Ok(()),
        (_, Some(touched), _) if touched > 0.0 => {
            Err("pages that the device has touched stay in the host's page table")
        }
        _ => Err("pages that the device has not touched leave the host's page table"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(parameters: &[u8]) -> LaunchArguments<'_> {
        LaunchArguments {
            kernel: 1,
            parameters,
            grid: [1; 3],
            block: [1; 3],
        }
    }

    #[test]
    fn windows_are_the_allocations_behind_the_pointers() {
        let mut live = Allocations::new();
        live.add(0x10_0000, 0x1000);
        live.add(0x4000_0000, 4 << 30);
        let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        let found = |pointers: &[u64]| Windows::of(&launch(&words(pointers)), &live).map(|windows| windows.0);
        let small = MemoryWindow {
            begin: 0x10_0000,
            end: 0x10_1000,
            cut: false,
        };
        assert_eq!(found(&[7, 0x10_0010, 0x10_0020]), Some(vec![small]));
        assert_eq!(found(&[7, 0x10_1000]), None, "behind its end");
        let large = 0x4000_0000 + (3 << 20);
        let window = MemoryWindow {
            begin: 0x4000_0000 + (2 << 20),
            end: 0x4000_0000 + (2 << 20) + WINDOW_BYTES,
            cut: true,
        };
        assert_eq!(found(&[large]), Some(vec![window]));
        let last = 0x1_4000_0000 - 5;
        let end = found(&[last]).unwrap()[0];
        assert_eq!((end.end, end.cut), (0x1_4000_0000, false));
    }

    #[test]
    fn the_host_says_what_it_has_to_spare() {
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn the_page_table_tells_what_is_there() {
        let table = File::open("/proc/self/pagemap").unwrap();
        let bytes = 16 * page() as usize;
        // SAFETY: a fresh mapping of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        } as u64;
        let look = || present(&entries(&table, at, at + bytes as u64).unwrap());
        assert_eq!(look(), 0.0);
        map(at + page() + 1, at + 5 * page());
        assert_eq!(look(), 4.0 / 16.0);
        map(1 << 46, (1 << 46) + page());
    }
}
