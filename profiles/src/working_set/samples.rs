//! Launches that are kept of one kernel so that templates can be found in them: different ones, and
//! no more than memory should hold.
//!
//! What is kept of a launch depends on the evidence ([`super::fit`], [`super::coarse`]); how many
//! are kept, and that nothing is fitted anew of which nothing new came, does not.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::{
    Access, Allocations, KernelWorkingSet, Launch, WordTemplate,
    ranges::Span,
    template::{MAX_WORDS, offsets},
};

/// Launches that are kept of one kernel: as many different ones as a model has layers, twice and
/// more.
const MAX_SAMPLES: usize = 1024;

/// Bytes that are kept of one kernel's launches at most: lists of tensors have 32 KB of parameters
/// each.
const MAX_SAMPLE_BYTES: usize = 8 << 20;

/// What was seen of one kernel: launches with a `W` of each word that was a pointer, and an `E` of
/// the whole launch.
#[derive(Debug)]
pub(super) struct LaunchSamples<W, E = ()> {
    /// Launches that came, kept or not.
    pub(super) observed: u64,
    pub(super) kept: Vec<LaunchSample<W, E>>,
    bytes: usize,
    /// How many are kept of each signature.
    alike: HashMap<u64, usize>,
    /// Of what is kept; `None` since something came.
    fitted: Option<Vec<WordTemplate>>,
}

/// One launch.
#[derive(Debug)]
pub(super) struct LaunchSample<W, E = ()> {
    parameters: Vec<u8>,
    grid: [u32; 3],
    block: [u32; 3],
    /// By offset: words that were pointers.
    pub(super) words: Vec<(u16, W)>,
    /// What was seen of the whole launch.
    pub(super) whole: E,
}

/// Exact evidence of one kernel: of each launch what was touched behind each word that was a
/// pointer.
pub(super) type ExactSamples = LaunchSamples<PointerUse>;

/// One launch of exact evidence.
pub(super) type ExactSample = LaunchSample<PointerUse>;

/// What was touched behind one pointer.
#[derive(Debug, Clone, Default)]
pub(super) struct PointerUse {
    /// Relative to the pointer.
    pub(super) pieces: Vec<(i64, i64)>,
    pub(super) access: Option<Access>,
    /// Another word of the launch had an equal value: what was touched may be the other's.
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
    /// Whether this launch may be kept, where of those with its signature `most` are.
    pub(super) fn has_room(&self, launch: &Launch, signature: u64, most: usize) -> bool {
        let alike = self.alike.get(&signature).copied().unwrap_or(0);
        alike < most && self.kept.len() < MAX_SAMPLES && self.bytes + launch.parameters.len() <= MAX_SAMPLE_BYTES
    }

    /// Keeps a launch. `bytes`: what it takes beside its parameters, where that counts.
    pub(super) fn keep(&mut self, launch: &Launch, signature: u64, words: Vec<(u16, W)>, whole: E, bytes: usize) {
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

    /// Forgets the launches, not how many came.
    pub(super) fn forget(&mut self) {
        *self = LaunchSamples {
            observed: self.observed,
            ..LaunchSamples::default()
        };
    }

    /// What was learnt of the kernel; `fit` is asked only where something came since.
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

    /// Offsets of the words that were pointers in some launch.
    pub(super) fn offsets(&self) -> Vec<u16> {
        offsets(self.kept.iter().flat_map(|kept| kept.words.iter().map(|(at, _)| *at)))
    }
}

impl<W, E> LaunchSample<W, E> {
    pub(super) fn launch(&self, kernel: u64) -> Launch<'_> {
        Launch {
            kernel,
            parameters: &self.parameters,
            grid: self.grid,
            block: self.block,
        }
    }

    /// The 64-bit word there.
    pub(super) fn value(&self, offset: u16) -> Option<u64> {
        self.launch(0).word64(offset)
    }

    /// What is known of the word there; `None` where it was no pointer.
    pub(super) fn word(&self, offset: u16) -> Option<&W> {
        let at = self.words.binary_search_by_key(&offset, |(known, _)| *known).ok()?;
        Some(&self.words[at].1)
    }
}

/// The launch's pointers into live memory, sorted: value, offset of the word, and the allocation.
pub(super) fn pointers(launch: &Launch, live: &Allocations) -> Vec<(u64, u16, Span)> {
    let mut pointers: Vec<(u64, u16, Span)> = launch
        .pointer_offsets()
        .filter_map(|offset| Some((launch.word64(offset)?, offset)))
        .filter_map(|(value, offset)| Some((value, offset, live.find(value)?)))
        .take(MAX_WORDS)
        .collect();
    pointers.sort_unstable();
    pointers
}
