// SPDX-License-Identifier: MIT OR Apache-2.0
//! Templates, as a profile stores them: rules that derive touched memory from a kernel's arguments.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::{Access, Formula, Term, formula::MAX_TERMS, table::MAX_KEY};
use crate::MAX_KERNELS;

/// Most entries of a [`Template::Table`]: DenseNet's layers have some two hundred sizes.
pub(super) const MAX_RECALLED: usize = 512;

/// Most pieces of one entry.
pub(super) const MAX_PIECES: usize = 64;

/// Most pointer words of a kernel; PyTorch's fused optimisers have some hundreds.
pub(super) const MAX_WORDS: usize = 1024;

/// Distinct offsets of words that were pointers in any launch, ascending, at most `MAX_WORDS`.
pub(super) fn offsets(words: impl Iterator<Item = u16>) -> Vec<u16> {
    let mut offsets: Vec<u16> = words.collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets.truncate(MAX_WORDS);
    offsets
}

/// Pieces behind a pointer: offset from it, and bytes.
pub(super) type Pieces = Vec<(i64, u64)>;

/// Rule for the memory touched behind a pointer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Template {
    /// Always equal (MSched's T1).
    Fixed {
        /// From the pointer to the region's start, bytes.
        offset: i64,
        /// Size, bytes.
        bytes: u64,
    },
    /// Contiguous, with a size that follows from the arguments (T2).
    Linear {
        /// From the pointer to the region's start, bytes.
        offset: Formula,
        /// Size, bytes.
        bytes: Formula,
    },
    /// Chunks at a regular distance (T3).
    Strided {
        /// From the pointer to the first chunk, bytes.
        offset: Formula,
        /// Size of a chunk, bytes.
        bytes: Formula,
        /// Distance between starts of chunks, bytes.
        stride: Formula,
        /// Number of chunks.
        chunks: Formula,
    },
    /// Entries of older versions' profiles, keyed by all parameters. Their common part is still
    /// valid.
    Recalled {
        /// Hash of everything but the pointers, ascending, and pieces: offset and bytes.
        seen: Vec<(u64, Vec<(i64, u64)>)>,
        /// Pieces common to all entries.
        common: Vec<(i64, u64)>,
    },
    /// No rule, but equal arguments touched equal pieces. Unseen arguments get the common part.
    /// (MSched leaves such words to demand paging.)
    Table {
        /// Numbers that separate launches.
        key: Vec<Term>,
        /// Hash of their values, ascending, and pieces: offset and bytes.
        seen: Vec<(u64, Vec<(i64, u64)>)>,
        /// Pieces common to all entries.
        common: Vec<(i64, u64)>,
    },
}

impl Template {
    /// Heap size, bytes.
    fn heap(&self) -> usize {
        let terms = |formula: &Formula| formula.terms.capacity() * size_of::<Term>();
        let pieces = |pieces: &Pieces| pieces.capacity() * size_of::<(i64, u64)>();
        let formulas: usize = self.formulas().map(terms).sum();
        let (key, seen, common) = match self {
            Template::Fixed { .. } | Template::Linear { .. } | Template::Strided { .. } => return formulas,
            Template::Recalled { seen, common } => (0, seen, common),
            Template::Table { key, seen, common } => (key.capacity(), seen, common),
        };
        let entries = seen.capacity() * size_of::<(u64, Pieces)>();
        let all = seen.iter().map(|(_, these)| pieces(these)).sum::<usize>();
        key * size_of::<Term>() + entries + all + pieces(common)
    }

    fn formulas(&self) -> impl Iterator<Item = &Formula> {
        let all = match self {
            Template::Linear { offset, bytes } => [Some(offset), Some(bytes), None, None],
            Template::Strided {
                offset,
                bytes,
                stride,
                chunks,
            } => [Some(offset), Some(bytes), Some(stride), Some(chunks)],
            Template::Fixed { .. } | Template::Recalled { .. } | Template::Table { .. } => [None; 4],
        };
        all.into_iter().flatten()
    }

    /// Name of the kind, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Template::Fixed { .. } => "fixed",
            Template::Linear { .. } => "linear",
            Template::Strided { .. } => "strided",
            Template::Recalled { .. } | Template::Table { .. } => "recalled",
        }
    }
}

/// Memory touched behind the pointer at one offset of the parameter buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordTemplate {
    /// Offset in the parameter buffer, bytes.
    pub offset: u16,
    /// Access.
    pub access: Access,
    /// Rule.
    pub template: Template,
}

/// Working set of one kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelWorkingSet {
    /// Module and symbol: [`weft_kernel_id::SymbolKey::to_word`].
    pub kernel: u64,
    /// Number of launches observed.
    pub observed: u64,
    /// Words by offset; pointers without any touched memory are left out.
    pub words: Vec<WordTemplate>,
}

/// Working sets of a job's kernels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSets {
    /// By kernel.
    pub kernels: Vec<KernelWorkingSet>,
}

impl WorkingSets {
    /// Heap size, bytes.
    pub(crate) fn heap(&self) -> usize {
        let kernels = self.kernels.capacity() * size_of::<KernelWorkingSet>();
        let words = |words: &Vec<WordTemplate>| {
            let behind: usize = words.iter().map(|word| word.template.heap()).sum();
            words.capacity() * size_of::<WordTemplate>() + behind
        };
        kernels + self.kernels.iter().map(|kernel| words(&kernel.words)).sum::<usize>()
    }

    /// Finds a kernel's working set.
    pub fn kernel(&self, kernel: u64) -> Option<&KernelWorkingSet> {
        let at = self.kernels.binary_search_by_key(&kernel, |known| known.kernel).ok()?;
        self.kernels.get(at)
    }

    /// Number of templates by kind: fixed, linear, strided, recalled.
    pub fn counts(&self) -> [usize; 4] {
        let mut counts = [0; 4];
        for word in self.kernels.iter().flat_map(|kernel| &kernel.words) {
            counts[match word.template {
                Template::Fixed { .. } => 0,
                Template::Linear { .. } => 1,
                Template::Strided { .. } => 2,
                Template::Recalled { .. } | Template::Table { .. } => 3,
            }] += 1;
        }
        counts
    }

    /// Merges another run. If a kernel is in both, the one with more launches stays.
    pub fn merge(&mut self, other: &WorkingSets) {
        for kernel in &other.kernels {
            match self.kernels.binary_search_by_key(&kernel.kernel, |known| known.kernel) {
                Ok(at) if self.kernels[at].observed <= kernel.observed => self.kernels[at] = kernel.clone(),
                Ok(_) => {}
                Err(at) if self.kernels.len() < MAX_KERNELS => self.kernels.insert(at, kernel.clone()),
                Err(_) => {}
            }
        }
    }

    /// First inconsistency among the parts, if any.
    pub(crate) fn unsound(&self) -> Option<&'static str> {
        if self.kernels.len() > MAX_KERNELS {
            return Some("more working sets than a profile may have");
        }
        if !self.kernels.windows(2).all(|pair| pair[0].kernel < pair[1].kernel) {
            return Some("working sets out of order");
        }
        for kernel in &self.kernels {
            let words = &kernel.words;
            if words.len() > MAX_WORDS || !words.windows(2).all(|pair| pair[0].offset < pair[1].offset) {
                return Some("the words of a working set");
            }
            for word in words {
                if word.template.formulas().any(|formula| formula.terms.len() > MAX_TERMS) {
                    return Some("a formula of a working set");
                }
                if let Template::Table { key, seen, .. } = &word.template
                    && (key.len() > MAX_KEY || !seen.windows(2).all(|pair| pair[0].0 < pair[1].0))
                {
                    return Some("the key of a recalled working set");
                }
                if let Template::Recalled { seen, common } | Template::Table { seen, common, .. } = &word.template {
                    let long = |pieces: &Vec<_>| pieces.len() > MAX_PIECES;
                    if seen.len() > MAX_RECALLED || long(common) || seen.iter().any(|(_, pieces)| long(pieces)) {
                        return Some("a recalled working set");
                    }
                }
            }
        }
        None
    }
}
