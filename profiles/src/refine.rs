// SPDX-License-Identifier: MIT OR Apache-2.0
//! Refinement: a profile learns from the times measured while its job was served.
//!
//! The co-runners decide how far such a time is valid. A sole foreground job's time
//! ([`OtherJobs::BackgroundJobs`]) is its own, except for background work left at the start of a
//! burst. A sole background job's time ([`OtherJobs::ForegroundJobs`]) is its own until the
//! foreground job returns. Other times may be too long, never too short.
//!
//! | what was timed | what becomes of it |
//! |---|---|
//! | a kernel that the profile does not time, often enough | added |
//! | about the profile's time | a sole foreground job's times are added, up to a fifth of the whole |
//! | clearly less | replaces the profile's: no co-runner shortens a kernel |
//! | clearly more, by a sole foreground job's median, or a sole background job's shortest tenth | replaces the profile's |
//! | clearly more, beside other co-runners | ignored |
//! | gaps of a sole foreground job | added, up to a fifth of the whole |
//! | mostly kernels that the profile does not know | all ignored: another job of the same name, or changed code |
//!
//! Kernels are bounded by [`MAX_KERNELS`], a distribution by [`MOST`] values. Memory, working sets
//! and launches from stage 1 stay.

use std::collections::HashMap;

use weft_kernel_id::{KernelId, Names};

use crate::aggregate::unnamed;
use crate::{Error, Gpu, KernelProfile, MAX_KERNELS, Ns, Profile, Sketch};

/// Longest plausible kernel time or gap: an hour.
const MAX_SAMPLE_NS: Ns = 3_600_000_000_000;

/// Fewest times that add a kernel which the profile does not time.
const ENOUGH: u64 = 4;

/// Fewest times that replace those of the profile.
const SURE: u64 = 12;

/// Fewest samples for any change of the profile.
const FEW: u64 = 16;

/// Relative difference that still confirms the profile.
const NEAR: f64 = 0.1;

/// Longest credible kernel time, in medians. In a longer time another job's turn interrupted the
/// kernel.
const CREDIBLE_RATIO: Ns = 2;

/// Most values that a refined distribution counts for, so that new values still change it.
pub const MOST: u64 = 4096;

/// Co-runners of a job when a launch was timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherJobs {
    /// The job was the only foreground job: background jobs ran while it did nothing.
    BackgroundJobs,
    /// The job was the only background job: foreground jobs ran as they returned.
    ForegroundJobs,
    /// Jobs of equal rank, or unknown.
    Others,
}

/// A launch that was timed while its job was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// Hash of the kernel.
    pub kernel: u64,
    /// Kernel time, ns.
    pub time: Ns,
    /// Gap after the kernel, ns, if known.
    pub gap: Option<Ns>,
    /// Co-runners.
    pub beside: OtherJobs,
}

/// Result of a refinement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refined {
    /// Kernels added.
    pub added: usize,
    /// Kernels whose times were replaced.
    pub replaced: usize,
    /// Kernels whose times were confirmed.
    pub confirmed: usize,
}

/// Reason for which a profile stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum Unrefined {
    /// Too few samples.
    #[error("{0} timed launches are too few")]
    Few(u64),
    /// The samples are of another job.
    #[error(
        "profile {name:?} was not changed: it knows the kernels of only {known} of {samples} timed launches, so it is of another job or other code; take it again"
    )]
    AnotherJob {
        /// Name of the profile.
        name: String,
        /// Samples of kernels that the profile times.
        known: u64,
        /// All samples.
        samples: u64,
    },
    /// The samples are of another GPU.
    #[error(transparent)]
    OtherGpu(#[from] Error),
}

/// Samples of all processes of a served job.
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
    /// Sets a kernel's identity.
    pub fn named(&mut self, hash: u64, id: KernelId) {
        self.names.insert(hash, id);
    }

    /// Sets the job's GPU.
    pub fn device(&mut self, gpu: Gpu) {
        self.gpu = Some(gpu);
    }

    /// Adds a timed launch.
    pub fn timed(&mut self, timed: &Timed) {
        if self.kernels.len() >= MAX_KERNELS && !self.kernels.contains_key(&timed.kernel) {
            return;
        }
        self.samples += 1;
        let seen = self.kernels.entry(timed.kernel).or_default();
        let time = timed.time.min(MAX_SAMPLE_NS);
        seen.all.add(time);
        match timed.beside {
            OtherJobs::BackgroundJobs => {
                seen.foreground.add(time);
                if let Some(gap) = timed.gap {
                    seen.gap.add(gap.min(MAX_SAMPLE_NS));
                }
            }
            // A background job waits at the gate between its launches. That wait is no gap of its
            // own.
            OtherJobs::ForegroundJobs => seen.background.add(time),
            OtherJobs::Others => {}
        }
    }

    /// Number of timed launches.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// GPU of the job, if known.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }
}

impl Profile {
    /// Adds a served run. `launches` counts all its launches, `served` those timed. After an error
    /// the profile is unchanged.
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
        // In a fixed order: equal samples give an equal profile even if there is no room for all.
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
                            // One in `launches / samples` launches was timed. The ratio is equal
                            // for all kernels.
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

/// Credible times of a kernel, if at least `enough` were seen.
fn believed(seen: &RefinedKernel, enough: u64) -> Option<Sketch> {
    [&seen.foreground, &seen.background, &seen.all]
        .into_iter()
        .find(|times| times.count() >= enough)
        .map(own_part)
}

/// Drops times that another job's turn lengthened.
fn own_part(times: &Sketch) -> Sketch {
    let median = times.quantile(0.5).unwrap_or(Ns::MAX);
    times.up_to(median.saturating_mul(CREDIBLE_RATIO))
}

/// Follows the samples of a kernel that the profile lists.
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

/// Adds new values, up to a fifth of the whole.
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
