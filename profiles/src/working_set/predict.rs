//! From a launch to what it will touch.
#![forbid(unsafe_code)]

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::{Access, Allocations, Launch, Region, Template, WorkingSets, template::signature};

/// What is guessed behind a pointer of a kernel that was never observed: one granule of the driver's largest, cut at the allocation's end. A whole allocation would
/// be 5 to 15 times too much on the average (MSched's ablation); nothing would cost a fault at every launch.
pub const GUESS: u64 = 2 << 20;

/// Pointers of one unobserved launch that are guessed behind at most.
const MAX_GUESSES: usize = 64;

/// Chunks of a region at most: more are one contiguous region to whoever moves memory.
const MAX_CHUNKS: i64 = 1 << 16;

/// What is predicted of one launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predicted<'a> {
    /// In no order; they may overlap.
    pub regions: &'a [Region],
    /// False if the kernel was never observed, so that this is a guess.
    pub known: bool,
}

/// Predicts what launches touch. It keeps its memory from one launch to the next and allocates nothing once it has seen the largest.
#[derive(Debug, Default)]
pub struct Predictor {
    sets: WorkingSets,
    places: HashMap<u64, usize, BuildHasherDefault<AsItIs>>,
    regions: Vec<Region>,
    scratch: Vec<u8>,
    /// Where in the list of allocations addresses were found last, by some of their bits: a search costs 30 ns, a look 3.
    near: Vec<u32>,
}

/// Places in `near`: allocations of a busy job, a few times over.
const NEAR: usize = 1024;

/// Kernel numbers are hashes already.
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

impl Predictor {
    /// From what was learnt.
    pub fn new(sets: WorkingSets) -> Predictor {
        let places = sets
            .kernels
            .iter()
            .enumerate()
            .map(|(at, kernel)| (kernel.kernel, at))
            .collect();
        Predictor {
            sets,
            places,
            regions: Vec::new(),
            scratch: Vec::new(),
            near: vec![0; NEAR],
        }
    }

    /// What it rests on.
    pub fn sets(&self) -> &WorkingSets {
        &self.sets
    }

    /// What this launch will touch. Copies and memsets need no prediction: [`Region::contiguous`] of their own arguments.
    pub fn predict(&mut self, launch: &Launch, live: &Allocations) -> Predicted<'_> {
        self.regions.clear();
        let Some(kernel) = self
            .places
            .get(&launch.kernel)
            .and_then(|at| self.sets.kernels.get(*at))
        else {
            self.guess(launch, live);
            return Predicted {
                regions: &self.regions,
                known: false,
            };
        };
        let mut hash = None;
        for word in &kernel.words {
            let Some(pointer) = launch.word64(word.offset) else {
                continue;
            };
            // A null pointer, or one into memory that is not this job's.
            // Large blocks are two megabytes and more; the higher bits keep neighbours in a big address space apart.
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
            match &word.template {
                Template::Fixed { offset, bytes } => put.piece(&mut self.regions, *offset, *bytes),
                Template::Linear { offset, bytes } => {
                    if let (Some(offset), Some(bytes)) = (offset.value(launch), bytes.value(launch)) {
                        put.piece(&mut self.regions, offset, u64::try_from(bytes).unwrap_or(0));
                    }
                }
                Template::Strided {
                    offset,
                    bytes,
                    stride,
                    chunks,
                } => {
                    let values = [offset, bytes, stride, chunks].map(|formula| formula.value(launch));
                    if let [Some(offset), Some(bytes), Some(stride), Some(chunks)] = values {
                        put.chunks(&mut self.regions, offset, bytes, stride, chunks);
                    }
                }
                Template::Recalled { seen, common } => {
                    let hash = *hash.get_or_insert_with(|| {
                        signature(launch, &mut self.scratch, |_, word| live.find(word).is_some())
                    });
                    let pieces = seen
                        .iter()
                        .find(|(known, _)| *known == hash)
                        .map_or(common, |(_, pieces)| pieces);
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

    fn guess(&mut self, launch: &Launch, live: &Allocations) {
        for offset in launch.pointer_offsets() {
            let Some(pointer) = launch.word64(offset) else { break };
            if let Some((_, end)) = live.find(pointer) {
                let bytes = GUESS.min(end - pointer);
                self.regions.push(Region::contiguous(pointer, bytes, Access::ReadWrite));
                if self.regions.len() >= MAX_GUESSES {
                    break;
                }
            }
        }
    }
}

/// Where regions behind one pointer go.
struct Put {
    pointer: u64,
    bounds: (u64, u64),
    access: Access,
}

impl Put {
    /// One piece, cut at the bounds of the allocation: no access goes beyond them.
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
            // Touching or overlapping chunks, or so many that nobody would move them one by one.
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
