//! A profile that follows its job: what was timed while the job was served becomes part of it.
//!
//! Stage 1 has the device for itself; a served job does not, and what is timed then is believed as
//! far as its company lets it. A kernel's time in a sole foreground job
//! ([`Beside::BackgroundJobs`]) is its own, but for what was left of a background job's work at a
//! burst's begin. A sole background job's ([`Beside::ForegroundJobs`]) is its own until the
//! foreground job comes back in the middle of it. Others' may be anything, but never too short.
//!
//! | what was timed | what becomes of it |
//! |---|---|
//! | a kernel that the profile does not time, often enough | it is added |
//! | about what the profile says | a sole foreground job's times are added, for a fifth of the whole at most |
//! | clearly less | it takes the place of what the profile says: nothing makes a kernel shorter than it is |
//! | clearly more, by a sole foreground job's median, or by the shortest tenth of a sole background job's times | the same |
//! | clearly more, in other company | nothing |
//! | gaps of a sole foreground job | added, for a fifth of the whole at most |
//! | mostly kernels that the profile does not know | nothing at all: it is another job under the same name, or its code has changed |
//!
//! What holds: kernels are bounded by [`MAX_KERNELS`], a distribution by [`MOST`] values; memory,
//! working sets and launches of what stage 1 saw stay as they are.

use std::collections::HashMap;

use weft_kernel_id::{KernelId, Names};

use crate::aggregate::unnamed;
use crate::{Error, Gpu, KernelProfile, MAX_KERNELS, Ns, Profile, Sketch};

/// A time longer than this is no kernel's, and no gap's: an hour.
const MAX_SAMPLE_NS: Ns = 3_600_000_000_000;

/// So many times of a kernel that the profile does not time, and it is added.
const ENOUGH: u64 = 4;

/// So many times that say something else than the profile, and they are believed.
const SURE: u64 = 12;

/// Fewer samples than this in all, and nothing is changed.
const FEW: u64 = 16;

/// What is nearer to the profile than this part of it says the same.
const NEAR: f64 = 0.1;

/// What a kernel of a sole background job takes beyond so many times its median was cut short by
/// somebody else's turn.
const CUT: Ns = 2;

/// The most values that a distribution counts for once it is refined: what is new then still
/// changes it.
pub const MOST: u64 = 4096;

/// Who had the device beside the job when a launch was timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// It was the only foreground job: background jobs' work, while it did nothing.
    BackgroundJobs,
    /// It was the only background job: foreground jobs, as they came back.
    ForegroundJobs,
    /// Equals of it, or nobody knows.
    Others,
}

/// A launch that was timed while its job was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// Hash.
    pub kernel: u64,
    /// How long it ran, ns.
    pub time: Ns,
    /// How long the device had nothing of the job after it, ns, where that is known.
    pub gap: Option<Ns>,
    /// Who else was there.
    pub beside: Beside,
}

/// What a profile was refined by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refined {
    /// Kernels that were not in it.
    pub added: usize,
    /// Kernels whose times said something else.
    pub replaced: usize,
    /// Kernels whose times said the same.
    pub confirmed: usize,
}

/// Why a profile stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum Unrefined {
    /// Too little was seen.
    #[error("{0} timed launches say too little")]
    Few(u64),
    /// It is of another job.
    #[error(
        "profile {name:?} stays as it is: it knows the kernels of {known} of {samples} launches that were timed, so it is of another job or of other code; take it again"
    )]
    AnotherJob {
        /// The profile.
        name: String,
        /// Samples whose kernels it times.
        known: u64,
        /// All.
        samples: u64,
    },
    /// It is of another GPU.
    #[error(transparent)]
    OtherGpu(#[from] Error),
}

/// What a served job's processes showed, together.
#[derive(Debug, Clone, Default)]
pub struct Served {
    kernels: HashMap<u64, RefinedKernel>,
    names: Names,
    gpu: Option<Gpu>,
    samples: u64,
}

#[derive(Debug, Clone, Default)]
struct RefinedKernel {
    foreground: Sketch,
    background: Sketch,
    all: Sketch,
    gap: Sketch,
}

impl Served {
    /// A kernel has a name.
    pub fn named(&mut self, hash: u64, id: KernelId) {
        self.names.insert(hash, id);
    }

    /// The job uses this GPU.
    pub fn device(&mut self, gpu: Gpu) {
        self.gpu = Some(gpu);
    }

    /// A launch was timed.
    pub fn timed(&mut self, timed: &Timed) {
        if self.kernels.len() >= MAX_KERNELS && !self.kernels.contains_key(&timed.kernel) {
            return;
        }
        self.samples += 1;
        let seen = self.kernels.entry(timed.kernel).or_default();
        let time = timed.time.min(MAX_SAMPLE_NS);
        seen.all.add(time);
        match timed.beside {
            Beside::BackgroundJobs => {
                seen.foreground.add(time);
                if let Some(gap) = timed.gap {
                    seen.gap.add(gap.min(MAX_SAMPLE_NS));
                }
            }
            // Who fills gaps waits at the gate between his launches: that is no gap of his own.
            Beside::ForegroundJobs => seen.background.add(time),
            Beside::Others => {}
        }
    }

    /// Launches that were timed.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The device that it ran on, where that was told.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }
}

impl Profile {
    /// Makes what was seen of a served run part of the profile. `launches`: how many that run made,
    /// of which some were timed. What does not fit leaves the profile as it is.
    pub fn refine(&mut self, served: &Served, launches: u64) -> Result<Refined, Unrefined> {
        let samples = served.samples;
        if samples < FEW {
            return Err(Unrefined::Few(samples));
        }
        if let Some(gpu) = &served.gpu {
            self.check_gpu(gpu)?;
        }
        let timed = |hash: u64| self.kernel(hash).is_some_and(|kernel| kernel.time.count() > 0);
        let known = served.kernels.iter().filter(|(hash, _)| timed(**hash));
        let known: u64 = known.map(|(_, seen)| seen.all.count()).sum();
        if self.samples() > 0 && known * 2 < samples {
            return Err(Unrefined::AnotherJob {
                name: self.name.clone(),
                known,
                samples,
            });
        }
        let mut refined = Refined::default();
        // In order, so that the same samples make the same profile where there is no room for all.
        let mut kernels: Vec<_> = served.kernels.iter().collect();
        kernels.sort_unstable_by_key(|(hash, _)| **hash);
        for (hash, seen) in kernels {
            match self.kernels.binary_search_by_key(hash, |kernel| kernel.hash) {
                Ok(at) => {
                    let known = &mut self.kernels[at];
                    follow(known, seen, &mut refined);
                    add(&mut known.gap, &seen.gap);
                }
                Err(at) if self.kernels.len() < MAX_KERNELS => {
                    let Some(time) = believed(seen, ENOUGH) else { continue };
                    let named = served.names.get(*hash).cloned();
                    self.kernels.insert(
                        at,
                        KernelProfile {
                            hash: *hash,
                            id: named.unwrap_or_else(|| unnamed(*hash)),
                            // One launch in so many was timed, whichever kernel it was.
                            launches: seen.all.count() * (launches / samples).max(1),
                            time: time.thinned(MOST),
                            gap: seen.gap.thinned(MOST),
                        },
                    );
                    refined.added += 1;
                }
                Err(_) => {}
            }
        }
        if self.gpu.name.is_empty()
            && let Some(gpu) = &served.gpu
        {
            self.gpu = gpu.clone();
        }
        self.refined = self.refined.saturating_add(1);
        Ok(refined)
    }
}

/// What a kernel may be believed to take, if it was timed so often. `None` if not.
fn believed(seen: &RefinedKernel, enough: u64) -> Option<Sketch> {
    [&seen.foreground, &seen.background, &seen.all]
        .into_iter()
        .find(|times| times.count() >= enough)
        .map(own_part)
}

/// Without what others' turns made longer.
fn own_part(times: &Sketch) -> Sketch {
    let median = times.quantile(0.5).unwrap_or(Ns::MAX);
    times.up_to(median.saturating_mul(CUT))
}

/// What was timed of a kernel that the profile times, or lists.
fn follow(known: &mut KernelProfile, seen: &RefinedKernel, refined: &mut Refined) {
    let says = |times: &Sketch, part: f64| times.quantile(part).unwrap_or(0) as f64;
    let (low, middle, high) = (says(&known.time, 0.1), says(&known.time, 0.5), says(&known.time, 0.9));
    let (shorter, longer) = (low.min(middle * (1.0 - NEAR)), high.max(middle * (1.0 + NEAR)));
    let clearly_longer = |times: &Sketch, part: f64| times.count() >= SURE && says(times, part) > longer;
    let replaced = if known.time.count() == 0 {
        believed(seen, ENOUGH)
    } else if seen.all.count() >= SURE && says(&seen.all, 0.5) < shorter {
        believed(seen, SURE)
    } else if clearly_longer(&seen.foreground, 0.5) {
        Some(own_part(&seen.foreground))
    } else if seen.foreground.count() < SURE && clearly_longer(&seen.background, 0.1) {
        Some(own_part(&seen.background))
    } else {
        None
    };
    match replaced {
        Some(times) => {
            known.time = times.thinned(MOST);
            known.launches = known.launches.max(known.time.count());
            refined.replaced += 1;
        }
        None if says(&seen.foreground, 0.5) >= shorter && says(&seen.foreground, 0.5) <= longer => {
            add(&mut known.time, &own_part(&seen.foreground));
            refined.confirmed += 1;
        }
        None => {}
    }
}

/// Adds what is new, for a fifth of the whole at most.
fn add(known: &mut Sketch, new: &Sketch) {
    if known.count() == 0 {
        *known = new.thinned(MOST);
        return;
    }
    let most = (known.count() / 4).clamp(1, MOST / 5);
    let mut whole = known.thinned(MOST - MOST / 5);
    whole.merge(&new.thinned(most));
    *known = whole;
}

#[cfg(test)]
mod tests;
