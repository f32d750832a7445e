// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prediction of the memory that a launch will touch.
#![forbid(unsafe_code)]

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::{
    Access, Allocations, Formula, LaunchArguments, Region, Template, WorkingSets,
    table::{self, TableKey},
    template::Pieces,
};

/// Bytes guessed behind a pointer of an unobserved kernel: the driver's largest granule, cut at the
/// allocation's end. A whole allocation would be 5 to 15 times too much on average (MSched's
/// ablation). No guess at all would cost a fault at every launch.
pub const GUESSED_BYTES: u64 = 2 << 20;

/// Most pointers of an unobserved launch that get a guess.
const MAX_GUESSES: usize = 64;

/// Most chunks of a region; more count as one contiguous region.
const MAX_CHUNKS: i64 = 65_536;

/// Prediction for one launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predicted<'a> {
    /// In no order; regions may overlap.
    pub regions: &'a [Region],
    /// Whether the kernel was observed; otherwise the regions are a guess.
    pub known: bool,
}

/// Predictor of touched memory. It reuses its buffers, and allocates nothing after the largest
/// launch.
#[derive(Debug, Default)]
pub struct WorkingSetPredictor {
    sets: WorkingSets,
    /// Kernel to index in `ready`.
    places: HashMap<u64, usize, BuildHasherDefault<AsItIs>>,
    ready: Vec<ReadyKernel>,
    regions: Vec<Region>,
    /// Entry of the current launch in each key of its kernel, if it was looked up.
    entries: Vec<Option<Option<usize>>>,
    /// Indices of recently found allocations, by some address bits: a search costs 30 ns, a look in
    /// here 3 ns.
    near: Vec<u32>,
}

/// Places in `near`: a few times the allocations of a busy job.
const NEAR: usize = 1024;

/// Working set of a kernel for look-ups. Tables with equal keys need one look-up per launch.
#[derive(Debug, Default)]
struct ReadyKernel {
    words: Vec<ReadyWord>,
    keys: Vec<TableKey>,
}

#[derive(Debug)]
struct ReadyWord {
    offset: u16,
    access: Access,
    rule: ReadyRule,
}

#[derive(Debug)]
enum ReadyRule {
    Fixed(i64, u64),
    Linear(Box<[Formula; 2]>),
    Strided(Box<[Formula; 4]>),
    /// Index of the key, pieces of each of its entries, pieces common to all.
    Table(usize, Vec<Option<Pieces>>, Pieces),
}

impl ReadyKernel {
    fn new(words: &[super::WordTemplate]) -> ReadyKernel {
        let mut ready = ReadyKernel::default();
        let tables = || {
            words.iter().filter_map(|word| match &word.template {
                Template::Table { key, seen, .. } => Some((key, seen)),
                _ => None,
            })
        };
        for (key, _) in tables() {
            if !ready.keys.iter().any(|known| known.is(key)) {
                let alike = tables().filter(|(other, _)| *other == key);
                ready.keys.push(TableKey::new(
                    key,
                    alike.flat_map(|(_, seen)| seen.iter().map(|(hash, _)| *hash)),
                ));
            }
        }
        for word in words {
            let rule = match &word.template {
                Template::Fixed { offset, bytes } => ReadyRule::Fixed(*offset, *bytes),
                Template::Linear { offset, bytes } => ReadyRule::Linear(Box::new([offset.clone(), bytes.clone()])),
                Template::Strided {
                    offset,
                    bytes,
                    stride,
                    chunks,
                } => ReadyRule::Strided(Box::new([offset, bytes, stride, chunks].map(Formula::clone))),
                Template::Recalled { common, .. } => ReadyRule::Table(usize::MAX, Vec::new(), common.clone()),
                Template::Table { key, seen, common } => {
                    let number = ready.keys.iter().position(|known| known.is(key)).unwrap_or(usize::MAX);
                    let entries = ready.keys.get(number).map_or(0, TableKey::entries);
                    let mut pieces = vec![None; entries];
                    for (hash, some) in seen {
                        let at = ready.keys.get(number).and_then(|key| key.entry(*hash));
                        if let Some(place) = at.and_then(|at| pieces.get_mut(at)) {
                            *place = Some(some.clone());
                        }
                    }
                    ReadyRule::Table(number, pieces, common.clone())
                }
            };
            ready.words.push(ReadyWord {
                offset: word.offset,
                access: word.access,
                rule,
            });
        }
        ready
    }
}

/// Hasher for kernel numbers, which are hashes already.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

impl WorkingSetPredictor {
    /// Makes a predictor of these working sets.
    pub fn new(sets: WorkingSets) -> WorkingSetPredictor {
        let places = sets
            .kernels
            .iter()
            .enumerate()
            .map(|(at, kernel)| (kernel.kernel, at))
            .collect();
        WorkingSetPredictor {
            ready: sets
                .kernels
                .iter()
                .map(|kernel| ReadyKernel::new(&kernel.words))
                .collect(),
            sets,
            places,
            regions: Vec::new(),
            entries: Vec::new(),
            near: vec![0; NEAR],
        }
    }

    /// Working sets of the predictor.
    pub fn sets(&self) -> &WorkingSets {
        &self.sets
    }

    /// Predicts the memory that a launch will touch. Copies and memsets need no prediction: use
    /// [`Region::contiguous`] of their arguments.
    pub fn predict(&mut self, launch: &LaunchArguments, live: &Allocations) -> Predicted<'_> {
        self.regions.clear();
        let Some(kernel) = self.places.get(&launch.kernel).and_then(|at| self.ready.get(*at)) else {
            self.guess(launch, live);
            return Predicted {
                regions: &self.regions,
                known: false,
            };
        };
        self.entries.clear();
        self.entries.resize(kernel.keys.len(), None);
        for word in &kernel.words {
            let Some(pointer) = launch.word64(word.offset) else {
                continue;
            };
            // Null pointers and other processes' memory have no bounds. Blocks are 2 MiB or more;
            // the higher bits separate distant ones.
            let place = (pointer >> 21 ^ pointer >> 31) as usize % NEAR;
            let bounds = match self.near.get_mut(place) {
                Some(near) => live.find_near(pointer, near),
                None => live.find(pointer),
            };
            let Some(bounds) = bounds else { continue };
            let put = Put {
                pointer,
                bounds,
                access: word.access,
            };
            match &word.rule {
                ReadyRule::Fixed(offset, bytes) => put.piece(&mut self.regions, *offset, *bytes),
                ReadyRule::Linear(formulas) => {
                    if let [Some(offset), Some(bytes)] = formulas.each_ref().map(|formula| formula.value(launch)) {
                        put.piece(&mut self.regions, offset, u64::try_from(bytes).unwrap_or(0));
                    }
                }
                ReadyRule::Strided(formulas) => {
                    let values = formulas.each_ref().map(|formula| formula.value(launch));
                    if let [Some(offset), Some(bytes), Some(stride), Some(chunks)] = values {
                        put.chunks(&mut self.regions, offset, bytes, stride, chunks);
                    }
                }
                ReadyRule::Table(number, entries, common) => {
                    let entry = match (self.entries.get_mut(*number), kernel.keys.get(*number)) {
                        (Some(known), Some(key)) => {
                            *known.get_or_insert_with(|| key.entry(table::hash(launch, key.terms())))
                        }
                        _ => None,
                    };
                    let pieces = entry.and_then(|entry| entries.get(entry)?.as_ref()).unwrap_or(common);
                    for (offset, bytes) in pieces {
                        put.piece(&mut self.regions, *offset, *bytes);
                    }
                }
            }
        }
        Predicted {
            regions: &self.regions,
            known: true,
        }
    }

    fn guess(&mut self, launch: &LaunchArguments, live: &Allocations) {
        for offset in launch.pointer_offsets() {
            let Some(pointer) = launch.word64(offset) else { break };
            if let Some((_, end)) = live.find(pointer) {
                let bytes = GUESSED_BYTES.min(end - pointer);
                self.regions.push(Region::contiguous(pointer, bytes, Access::ReadWrite));
                if self.regions.len() >= MAX_GUESSES {
                    break;
                }
            }
        }
    }
}

/// Destination of regions behind one pointer.
struct Put {
    pointer: u64,
    bounds: (u64, u64),
    access: Access,
}

impl Put {
    /// Adds a piece, cut at the allocation's bounds, which no access exceeds.
    fn piece(&self, regions: &mut Vec<Region>, offset: i64, bytes: u64) {
        let begin = self.pointer.saturating_add_signed(offset);
        let end = begin.saturating_add(bytes).min(self.bounds.1);
        let begin = begin.max(self.bounds.0);
        if begin < end {
            regions.push(Region::contiguous(begin, end - begin, self.access));
        }
    }

    fn chunks(&self, regions: &mut Vec<Region>, offset: i64, bytes: i64, stride: i64, chunks: i64) {
        if bytes <= 0 || chunks <= 0 {
            return;
        }
        let begin = self.pointer.saturating_add_signed(offset);
        let room = self.bounds.1.saturating_sub(begin);
        let last = (chunks - 1)
            .checked_mul(stride)
            .and_then(|last| last.checked_add(bytes));
        let inside = begin >= self.bounds.0 && last.is_some_and(|last| last >= 0 && last as u64 <= room);
        if !inside || stride <= bytes || chunks > MAX_CHUNKS {
            // Chunks that touch or overlap, or more chunks than can be moved one by one.
            let all = last.filter(|last| *last > 0).map_or(0, |last| last as u64);
            self.piece(regions, offset, all.max(bytes as u64));
            return;
        }
        regions.push(Region {
            address: begin,
            bytes: bytes as u64,
            stride: stride as u64,
            chunks: chunks as u32,
            access: self.access,
        });
    }
}
