//! From launches and what they touched to templates.
//!
//! Per launch, what was touched is dealt out to the pointers: a piece belongs to the greatest pointer at or before its begin inside the same allocation, and is cut
//! where another pointer begins. Per pointer word, the simplest template is taken that *all* launches agree with: fixed, linear, strided, and if no
//! rule holds, what the same arguments touched before.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::{
    Access, Allocations, Formula, KernelWorkingSet, Launch, Template, Touched, WordTemplate, WorkingSets,
    formula::{self, Sample},
    ranges::{self, Span},
    template::{MAX_PIECES, MAX_RECALLED, MAX_WORDS, signature},
};

/// Launches that are kept of one kernel: enough different ones to tell its rule, and fitting stays a matter of milliseconds.
const KEPT: usize = 48;

/// Of launches with the same arguments, so many are kept: two would do to see that they differ.
const KEPT_ALIKE: usize = 3;

/// Collects launches with what they touched and finds the templates.
#[derive(Debug)]
pub struct Fitter {
    granule: u64,
    kernels: HashMap<u64, Seen>,
    scratch: Vec<u8>,
}

#[derive(Debug, Default)]
struct Seen {
    observed: u64,
    kept: Vec<Kept>,
}

/// One launch.
#[derive(Debug)]
struct Kept {
    parameters: Vec<u8>,
    grid: [u32; 3],
    block: [u32; 3],
    signature: u64,
    /// By offset: what was touched behind each word that was a pointer.
    words: Vec<(u16, Behind)>,
}

/// What was touched behind one pointer.
#[derive(Debug, Clone, Default)]
struct Behind {
    /// Relative to the pointer.
    pieces: Vec<(i64, i64)>,
    access: Option<Access>,
    /// Another word of the launch had the same value: what was touched may be the other's.
    shared: bool,
    /// Bytes by which the last piece may be too long, because evidence comes in granules.
    slack: i64,
}

impl Kept {
    fn launch(&self, kernel: u64) -> Launch<'_> {
        Launch {
            kernel,
            parameters: &self.parameters,
            grid: self.grid,
            block: self.block,
        }
    }

    fn behind(&self, word: u16) -> Option<&Behind> {
        let at = self.words.binary_search_by_key(&word, |(offset, _)| *offset).ok()?;
        Some(&self.words[at].1)
    }
}

impl Default for Fitter {
    fn default() -> Fitter {
        Fitter::new(1)
    }
}

impl Fitter {
    /// For evidence that is rounded outwards to multiples of `granule` bytes (1: exact).
    pub fn new(granule: u64) -> Fitter {
        Fitter {
            granule: granule.max(1),
            kernels: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// A launch, the allocations that were live, and what it touched.
    pub fn observe(&mut self, launch: &Launch, live: &Allocations, touched: &[Touched]) {
        let pointer = |_, word| live.find(word).is_some();
        let signature = signature(launch, &mut self.scratch, pointer);
        let seen = self.kernels.entry(launch.kernel).or_default();
        seen.observed += 1;
        let alike = seen.kept.iter().filter(|kept| kept.signature == signature).count();
        if alike >= KEPT_ALIKE {
            return;
        }
        if seen.kept.len() >= KEPT {
            // Room for arguments that are new, at the cost of one of those that were seen twice.
            let double = (0..seen.kept.len()).rev().find(|at| {
                let kept = &seen.kept;
                kept[..*at].iter().any(|one| one.signature == kept[*at].signature)
            });
            match double {
                Some(double) if alike == 0 => drop(seen.kept.swap_remove(double)),
                _ => return,
            }
        }
        seen.kept.push(Kept {
            parameters: launch.parameters.to_vec(),
            grid: launch.grid,
            block: launch.block,
            signature,
            words: deal(launch, live, touched, self.granule),
        });
    }

    /// Kernels that were observed.
    pub fn kernels(&self) -> usize {
        self.kernels.len()
    }

    /// What was learnt.
    pub fn fit(&self) -> WorkingSets {
        let mut kernels: Vec<KernelWorkingSet> = self
            .kernels
            .iter()
            .map(|(kernel, seen)| KernelWorkingSet {
                kernel: *kernel,
                observed: seen.observed,
                words: words(*kernel, seen),
            })
            .collect();
        kernels.sort_unstable_by_key(|kernel| kernel.kernel);
        WorkingSets { kernels }
    }
}

/// Deals what was touched out to the launch's pointers.
fn deal(launch: &Launch, live: &Allocations, touched: &[Touched], granule: u64) -> Vec<(u16, Behind)> {
    let mut pointers: Vec<(u64, u16)> = launch
        .pointer_offsets()
        .filter_map(|offset| Some((launch.word64(offset)?, offset)))
        .filter(|(word, _)| live.find(*word).is_some())
        .take(MAX_WORDS)
        .collect();
    pointers.sort_unstable();
    let mut values: Vec<u64> = pointers.iter().map(|(value, _)| *value).collect();
    values.dedup();
    let mut behind = vec![(Vec::<Span>::new(), None::<Access>, 0i64); values.len()];
    let united: Vec<Touched>;
    let touched = if granule > 1 {
        // Granules that lie side by side are one range: its begin alone is where something may begin in the middle of a granule.
        let spans = ranges::spans(touched);
        let range = |(begin, end): Span| Touched {
            address: begin,
            bytes: end - begin,
            access: Access::ReadWrite,
        };
        united = spans.into_iter().map(range).collect();
        &united[..]
    } else {
        touched
    };
    for one in touched {
        let Some((begin, end)) = live.find(one.address) else {
            continue;
        };
        // Granules of evidence reach beyond the allocation; an access never does.
        let (mut at, last) = (one.address.max(begin), one.end().min(end));
        if let Some(first) = values.get(values.partition_point(|value| *value < at))
            && *first < last
            && first - at < granule
        {
            // What was touched begins at a pointer in this granule rather than at the granule.
            at = *first;
        }
        while at < last {
            let after = values.partition_point(|value| *value <= at);
            let before = after.checked_sub(1).filter(|owner| values[*owner] >= begin);
            // Before all pointers into this allocation it is a negative offset.
            let owner = before.or_else(|| values.get(after).is_some_and(|value| *value < end).then_some(after));
            let Some(owner) = owner else { break };
            let until = values.get(owner + 1).copied().unwrap_or(u64::MAX);
            let cut = last.min(until);
            let (pieces, access, slack) = &mut behind[owner];
            pieces.push((at, cut));
            *access = Some(access.map_or(one.access, |before| before.and(one.access)));
            // The last granule is touched somewhere: all but one byte of it may be too much.
            *slack = (granule - 1) as i64;
            at = cut;
        }
    }
    let mut words: Vec<(u16, Behind)> = pointers
        .iter()
        .filter_map(|(value, offset)| {
            let owner = values.binary_search(value).ok()?;
            let (mut pieces, access, slack) = behind[owner].clone();
            ranges::unite(&mut pieces);
            let relative = |address: u64| address.wrapping_sub(*value) as i64;
            let behind = Behind {
                pieces: pieces.iter().map(|(a, b)| (relative(*a), relative(*b))).collect(),
                access,
                shared: pointers.iter().filter(|(other, _)| other == value).count() > 1,
                slack,
            };
            Some((*offset, behind))
        })
        .collect();
    words.sort_unstable_by_key(|(offset, _)| *offset);
    words
}

/// The templates of one kernel's words.
fn words(kernel: u64, seen: &Seen) -> Vec<WordTemplate> {
    let mut offsets: Vec<u16> = seen
        .kept
        .iter()
        .flat_map(|kept| kept.words.iter().map(|(offset, _)| *offset))
        .collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets.truncate(MAX_WORDS);
    offsets
        .iter()
        .copied()
        .filter_map(|offset| {
            let all: Vec<(&Kept, &Behind)> = seen
                .kept
                .iter()
                .filter_map(|kept| Some((kept, kept.behind(offset)?)))
                .collect();
            // Where the word had a value of its own, what lies behind it is its own.
            let own: Vec<(&Kept, &Behind)> = all.iter().copied().filter(|(_, behind)| !behind.shared).collect();
            let samples = if own.is_empty() { all } else { own };
            let access = ranges::access_of(samples.iter().filter_map(|(_, behind)| behind.access))?;
            let template = template(kernel, &offsets, &samples)?;
            Some(WordTemplate {
                offset,
                access,
                template,
            })
        })
        .collect()
}

/// The simplest template that agrees with all samples.
fn template(kernel: u64, pointers: &[u16], samples: &[(&Kept, &Behind)]) -> Option<Template> {
    contiguous(kernel, pointers, samples)
        .or_else(|| strided(kernel, pointers, samples))
        .or_else(|| recalled(samples))
}

/// Finds a formula for something that each sample bounds.
fn rule(
    kernel: u64,
    pointers: &[u16],
    samples: &[(&Kept, &Behind)],
    bounds: impl Fn(&Behind) -> Option<(i64, i64)>,
) -> Option<Formula> {
    let samples: Option<Vec<Sample>> = samples
        .iter()
        .map(|(kept, behind)| {
            let (least, most) = bounds(behind)?;
            Some(Sample {
                launch: kept.launch(kernel),
                least,
                most,
            })
        })
        .collect();
    formula::find(&samples?, pointers)
}

fn contiguous(kernel: u64, pointers: &[u16], samples: &[(&Kept, &Behind)]) -> Option<Template> {
    if samples.iter().any(|(_, behind)| behind.pieces.len() > 1) {
        return None;
    }
    // A launch that touched nothing there says that the size is 0 and nothing of where it would be.
    let some: Vec<_> = samples
        .iter()
        .copied()
        .filter(|(_, behind)| !behind.pieces.is_empty())
        .collect();
    let begin = |behind: &Behind| behind.pieces.first().map(|piece| (piece.0, piece.0));
    let size = |behind: &Behind| match behind.pieces.first() {
        Some((begin, end)) => Some(((end - begin - behind.slack).max(1), end - begin)),
        None => Some((0, 0)),
    };
    let offset = rule(kernel, pointers, &some, begin)?;
    let bytes = rule(kernel, pointers, samples, size)?;
    if offset.is_constant() && bytes.is_constant() {
        // Of what pages allow, the whole of it: a fixed region is no larger than the pages that were seen.
        let most = samples
            .iter()
            .filter_map(|(_, behind)| size(behind))
            .map(|(_, most)| most)
            .min()?;
        return Some(Template::Fixed {
            offset: offset.constant,
            bytes: u64::try_from(most).ok()?,
        });
    }
    Some(Template::Linear { offset, bytes })
}

fn strided(kernel: u64, pointers: &[u16], samples: &[(&Kept, &Behind)]) -> Option<Template> {
    // Chunks that touch each other look like one; the rule is found where they do not, and must explain the others too.
    let apart: Vec<_> = samples
        .iter()
        .copied()
        .filter(|(_, behind)| behind.pieces.len() > 1)
        .collect();
    let exact = apart.iter().all(|(_, behind)| behind.slack == 0);
    let regular = apart.iter().all(|(_, behind)| {
        let (first, second) = (behind.pieces[0], behind.pieces[1]);
        let stride = second.0 - first.0;
        let same = |(at, piece): (usize, &(i64, i64))| {
            piece.0 == first.0 + stride * at as i64 && piece.1 - piece.0 == first.1 - first.0
        };
        behind.pieces.iter().enumerate().all(same)
    });
    if !exact || !regular {
        return None;
    }
    let fixed = |value: i64| Some((value, value));
    let offset = rule(kernel, pointers, &apart, |behind| fixed(behind.pieces[0].0))?;
    let bytes = rule(kernel, pointers, &apart, |behind| {
        fixed(behind.pieces[0].1 - behind.pieces[0].0)
    })?;
    let stride = rule(kernel, pointers, &apart, |behind| {
        fixed(behind.pieces[1].0 - behind.pieces[0].0)
    })?;
    let chunks = rule(kernel, pointers, &apart, |behind| fixed(behind.pieces.len() as i64))?;
    let explains = |(kept, behind): &(&Kept, &Behind)| {
        let launch = kept.launch(kernel);
        let values = [&offset, &bytes, &stride, &chunks].map(|formula| formula.value(&launch));
        let [Some(offset), Some(bytes), Some(stride), Some(chunks)] = values else {
            return false;
        };
        let mut pieces: Vec<(i64, i64)> = Vec::new();
        for chunk in 0..chunks.clamp(0, 1 << 20) {
            let begin = offset + chunk * stride;
            match pieces.last_mut() {
                Some(last) if last.1 >= begin => last.1 = last.1.max(begin + bytes),
                _ => pieces.push((begin, begin + bytes)),
            }
        }
        pieces == behind.pieces
    };
    samples.iter().all(explains).then_some(Template::Strided {
        offset,
        bytes,
        stride,
        chunks,
    })
}

fn recalled(samples: &[(&Kept, &Behind)]) -> Option<Template> {
    let mut seen: Vec<(u64, Vec<(i64, u64)>)> = Vec::new();
    let mut common: Option<Vec<(i64, i64)>> = None;
    let (mut agreed, mut differed) = (false, false);
    for (kept, behind) in samples {
        common = Some(match common {
            Some(before) => overlap(&before, &behind.pieces),
            None => behind.pieces.clone(),
        });
        let pieces: Vec<(i64, u64)> = behind.pieces.iter().map(|(a, b)| (*a, b.abs_diff(*a))).collect();
        match seen.iter().find(|(signature, _)| *signature == kept.signature) {
            Some((_, before)) => {
                agreed |= *before == pieces;
                differed |= *before != pieces;
            }
            None if seen.len() < MAX_RECALLED && pieces.len() <= MAX_PIECES => seen.push((kept.signature, pieces)),
            None => {}
        }
    }
    // The same arguments must have come twice before they are believed, and must never have touched something else: then it depends on data.
    if !agreed || differed {
        seen.clear();
    }
    let mut common: Vec<(i64, u64)> = common?.iter().map(|(a, b)| (*a, b.abs_diff(*a))).collect();
    common.truncate(MAX_PIECES);
    (!seen.is_empty() || !common.is_empty()).then_some(Template::Recalled { seen, common })
}

fn overlap(one: &[(i64, i64)], other: &[(i64, i64)]) -> Vec<(i64, i64)> {
    // Moved so that nothing is negative, for the arithmetic on addresses.
    const MIDDLE: u64 = 1 << 63;
    let up = |pieces: &[(i64, i64)]| -> Vec<Span> {
        let up = |at: i64| (at as u64).wrapping_add(MIDDLE);
        pieces.iter().map(|(a, b)| (up(*a), up(*b))).collect()
    };
    let down = |at: u64| at.wrapping_sub(MIDDLE) as i64;
    ranges::common(&up(one), &up(other))
        .iter()
        .map(|(a, b)| (down(*a), down(*b)))
        .collect()
}
