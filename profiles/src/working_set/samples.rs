// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples of a kernel: distinct launches in bounded memory, from which templates are fitted.
//!
//! The kind of evidence decides which data of a launch is kept ([`super::fit`], [`super::coarse`]).
//! This module decides how many launches are kept, and fits a kernel again only after new evidence.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::{
    Access, Allocations, KernelWorkingSet, LaunchArguments, WordTemplate,
    ranges::Span,
    template::{MAX_WORDS, offsets},
};

/// Most launches kept of a kernel: over twice the distinct ones of a model's layers.
const MAX_SAMPLES: usize = 1024;

/// Most bytes kept of a kernel's launches: lists of tensors have 32 KB of parameters each.
const MAX_SAMPLE_BYTES: usize = 8 << 20;

/// Samples of one kernel: launches with a `W` per pointer word, and an `E` per launch.
#[derive(Debug)]
pub(super) struct LaunchSamples<W, E = ()> {
    /// Observed launches, kept or not.
    pub(super) observed: u64,
    pub(super) kept: Vec<LaunchSample<W, E>>,
    bytes: usize,
    /// Number of kept launches by signature.
    alike: HashMap<u64, usize>,
    /// Templates of the kept launches; `None` after new evidence.
    fitted: Option<Vec<WordTemplate>>,
}

/// One kept launch.
#[derive(Debug)]
pub(super) struct LaunchSample<W, E = ()> {
    parameters: Vec<u8>,
    grid: [u32; 3],
    block: [u32; 3],
    /// Words that were pointers, by offset.
    pub(super) words: Vec<(u16, W)>,
    /// Evidence of the whole launch.
    pub(super) whole: E,
}

/// Exact evidence of one kernel: per launch, the pieces touched behind each pointer word.
pub(super) type ExactSamples = LaunchSamples<PointerUse>;

/// A launch of exact evidence.
pub(super) type ExactSample = LaunchSample<PointerUse>;

/// Pieces touched behind one pointer.
#[derive(Debug, Clone, Default)]
pub(super) struct PointerUse {
    /// Start and end, relative to the pointer.
    pub(super) pieces: Vec<(i64, i64)>,
    pub(super) access: Option<Access>,
    /// Whether another word had an equal value: the pieces may be the other's.
    pub(super) shared: bool,
}

impl<W, E> Default for LaunchSamples<W, E> {
    fn default() -> Self {
        LaunchSamples {
            observed: 0,
            kept: Vec::new(),
            bytes: 0,
            alike: HashMap::new(),
            fitted: None,
        }
    }
}

impl<W, E> LaunchSamples<W, E> {
    /// Whether this launch may be kept: fewer than `most` of its signature are.
    pub(super) fn has_room(&self, launch: &LaunchArguments, signature: u64, most: usize) -> bool {
        let alike = self.alike.get(&signature).copied().unwrap_or(0);
        alike < most && self.kept.len() < MAX_SAMPLES && self.bytes + launch.parameters.len() <= MAX_SAMPLE_BYTES
    }

    /// Keeps a launch. `bytes`: its size in addition to the parameters, if it counts.
    pub(super) fn keep(
        &mut self,
        launch: &LaunchArguments,
        signature: u64,
        words: Vec<(u16, W)>,
        whole: E,
        bytes: usize,
    ) {
        *self.alike.entry(signature).or_default() += 1;
        self.bytes += launch.parameters.len() + bytes;
        self.fitted = None;
        self.kept.push(LaunchSample {
            parameters: launch.parameters.to_vec(),
            grid: launch.grid,
            block: launch.block,
            words,
            whole,
        });
    }

    /// Forgets the launches, but not their count.
    pub(super) fn forget(&mut self) {
        *self = LaunchSamples {
            observed: self.observed,
            ..LaunchSamples::default()
        };
    }

    /// Working set of the kernel; calls `fit` only after new evidence.
    pub(super) fn learnt(&mut self, kernel: u64, fit: impl FnOnce(&Self) -> Vec<WordTemplate>) -> KernelWorkingSet {
        let words = match self.fitted.take() {
            Some(words) => words,
            None => fit(self),
        };
        self.fitted = Some(words.clone());
        KernelWorkingSet {
            kernel,
            observed: self.observed,
            words,
        }
    }

    /// Offsets of words that were pointers in some launch.
    pub(super) fn offsets(&self) -> Vec<u16> {
        offsets(self.kept.iter().flat_map(|kept| kept.words.iter().map(|(at, _)| *at)))
    }
}

impl<W, E> LaunchSample<W, E> {
    pub(super) fn launch(&self, kernel: u64) -> LaunchArguments<'_> {
        LaunchArguments {
            kernel,
            parameters: &self.parameters,
            grid: self.grid,
            block: self.block,
        }
    }

    /// The 64-bit word at `offset`.
    pub(super) fn value(&self, offset: u16) -> Option<u64> {
        self.launch(0).word64(offset)
    }

    /// Evidence of the word at `offset`; `None` if it was no pointer.
    pub(super) fn word(&self, offset: u16) -> Option<&W> {
        let at = self.words.binary_search_by_key(&offset, |(known, _)| *known).ok()?;
        Some(&self.words[at].1)
    }
}

/// The launch's pointers into live memory, sorted: value, offset of the word, allocation.
pub(super) fn pointers(launch: &LaunchArguments, live: &Allocations) -> Vec<(u64, u16, Span)> {
    let mut pointers: Vec<(u64, u16, Span)> = launch
        .pointer_offsets()
        .filter_map(|offset| Some((launch.word64(offset)?, offset)))
        .filter_map(|(value, offset)| Some((value, offset, live.find(value)?)))
        .take(MAX_WORDS)
        .collect();
    pointers.sort_unstable();
    pointers
}
