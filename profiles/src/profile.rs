// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything known about a job, as a value.

use serde::{Deserialize, Serialize};
use weft_kernel_id::KernelId;

use crate::{MAX_KERNELS, Ns, ProfileError, Sketch, working_set::WorkingSets};

/// GPU of a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuIdentity {
    /// Name by the driver; empty if unknown.
    pub name: String,
    /// UUID in hexadecimal.
    pub uuid: String,
    /// Memory, bytes.
    pub memory: u64,
    /// Driver version, as of `cuDriverGetVersion`.
    pub driver: u32,
}

impl GpuIdentity {
    /// Whether times of one GPU are valid on the other, which has equal model and memory.
    pub fn same_model(&self, other: &GpuIdentity) -> bool {
        // Drivers reserve a varying part; the next size is at least 25 % away.
        let apart = self.memory.abs_diff(other.memory);
        self.name == other.name && apart <= self.memory.max(other.memory) / 20
    }
}

impl std::fmt::Display for GpuIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.name.is_empty() {
            return f.write_str("an unknown GPU");
        }
        write!(f, "{} ({} MiB)", self.name, self.memory >> 20)
    }
}

/// Knowledge of a kernel, graph or transfer of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelProfile {
    /// Hash in the records.
    pub hash: u64,
    /// Identity.
    pub id: KernelId,
    /// Number of launches.
    pub launches: u64,
    /// Kernel times, ns.
    pub time: Sketch,
    /// Gaps until the job's next kernel, ns.
    pub gap: Sketch,
}

impl KernelProfile {
    /// Estimated device time of all launches, ns: launches times mean time.
    pub fn total_time(&self) -> u128 {
        u128::from(self.launches.max(self.time.count())) * u128::from(self.time.mean().unwrap_or(0))
    }
}

/// A job's profile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Name of the profile.
    pub name: String,
    /// Time of the last recording, seconds since 1970.
    pub taken: u64,
    /// Number of runs.
    pub runs: u32,
    /// GPU of the recording.
    pub gpu: GpuIdentity,
    /// Most device memory that the job held, bytes.
    pub memory_peak: u64,
    /// Launches of kernels beyond [`MAX_KERNELS`], which are not listed.
    pub unlisted: u64,
    /// Kernels, by hash.
    pub kernels: Vec<KernelProfile>,
    /// Working sets of the kernels; empty without evidence.
    pub working_sets: WorkingSets,
    /// Longest run's wall-clock time on the device, ns; 0 if unknown.
    pub ran: Ns,
    /// Always 0: it keeps the place of a former field in the file.
    pub unused: u32,
    /// The most that the estimated device time of all launches exceeds the real one, ns. If the
    /// host launches slowly, part of a measured time may be the host's.
    pub over: Ns,
    /// The most that it falls short of the real one, ns.
    pub short: Ns,
}

/// Time of a job's launch, from its profile.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TypicalLaunch {
    /// Mean time of the timed kernels' launches, ns.
    pub time: Ns,
    /// The most that the profile's times exceed the real ones, as a part of them.
    pub over: f64,
    /// The most that they fall short of the real ones, as a part of them.
    pub short: f64,
}

impl Profile {
    /// Size in memory, bytes: a short file may contain a large profile.
    pub fn footprint(&self) -> usize {
        let strings = self.name.capacity() + self.gpu.name.capacity() + self.gpu.uuid.capacity();
        let kernel = |kernel: &KernelProfile| kernel.id.symbol.capacity() + kernel.time.heap() + kernel.gap.heap();
        let kernels = self.kernels.capacity() * size_of::<KernelProfile>();
        let behind: usize = self.kernels.iter().map(kernel).sum();
        size_of::<Profile>() + strings + kernels + behind + self.working_sets.heap()
    }

    /// Finds a kernel.
    pub fn kernel(&self, hash: u64) -> Option<&KernelProfile> {
        let at = self.kernels.binary_search_by_key(&hash, |kernel| kernel.hash).ok()?;
        self.kernels.get(at)
    }

    /// Records memory peak (bytes) and duration (ns) of an otherwise unknown run.
    pub fn took(&mut self, memory_peak: u64, ran: Ns) {
        self.memory_peak = self.memory_peak.max(memory_peak);
        self.ran = self.ran.max(ran);
    }

    /// Number of launches.
    pub fn launches(&self) -> u64 {
        self.unlisted + self.kernels.iter().map(|kernel| kernel.launches).sum::<u64>()
    }

    /// Number of timed launches.
    pub fn samples(&self) -> u64 {
        self.kernels.iter().map(|kernel| kernel.time.count()).sum()
    }

    /// Kernel times, ns, at this quantile: `costs(0.5)` are medians. Untimed kernels are left out.
    pub fn costs(&self, quantile: f64) -> Vec<(u64, Ns)> {
        self.kernels
            .iter()
            .filter_map(|kernel| Some((kernel.hash, kernel.time.quantile(quantile)?)))
            .collect()
    }

    /// Mean cost of each kernel's launch, ns (FIKIT's SK).
    pub fn mean_costs(&self) -> Vec<(u64, Ns)> {
        self.kernels
            .iter()
            .filter_map(|kernel| Some((kernel.hash, kernel.time.mean()?)))
            .collect()
    }

    /// Kernels with widely spread times: (hash, time at `quantile` in ns), for which
    /// `time >= max(2 * mean, mean + least)`.
    pub fn spread(&self, quantile: f64, least: Ns) -> Vec<(u64, Ns)> {
        self.kernels
            .iter()
            .filter_map(|kernel| {
                let (mean, long) = (kernel.time.mean()?, kernel.time.quantile(quantile)?);
                (long >= mean.saturating_mul(2).max(mean.saturating_add(least))).then_some((kernel.hash, long))
            })
            .collect()
    }

    /// Expected time of an untimed kernel, ns: the mean launch of timed ones, if any.
    pub fn typical_cost(&self) -> Option<Ns> {
        Some(self.typical_launch()?.time)
    }

    /// The same with its errors.
    pub fn typical_launch(&self) -> Option<TypicalLaunch> {
        let (time, launches) = self.kernels.iter().filter(|kernel| kernel.time.count() > 0).fold(
            (0u128, 0u128),
            |(time, launches), kernel| {
                (
                    time + kernel.total_time(),
                    launches + u128::from(kernel.launches.max(kernel.time.count())),
                )
            },
        );
        let part = |error: Ns| error as f64 / time.max(1) as f64;
        (launches > 0).then(|| TypicalLaunch {
            time: (time / launches) as Ns,
            over: part(self.over).min(1.0),
            short: part(self.short),
        })
    }

    /// Part of the sampled time in which the device had none of the job's work, if gaps are known.
    pub fn idle_share(&self) -> Option<f64> {
        // Only samples with a known gap show the ratio.
        let (busy, idle) = self.kernels.iter().fold((0.0, 0.0), |(busy, idle), kernel| {
            let with_gap = kernel.gap.count() as f64;
            let time = kernel.time.mean().unwrap_or(0) as f64;
            (busy + with_gap * time, idle + kernel.gap.sum() as f64)
        });
        (busy + idle > 0.0).then(|| idle / (busy + idle))
    }

    /// All gaps of the job.
    pub fn gaps(&self) -> Sketch {
        self.kernels.iter().fold(Sketch::default(), |mut all, kernel| {
            all.merge(&kernel.gap);
            all
        })
    }

    /// Adds another run of the job; an error if it is of another GPU.
    pub fn merge(&mut self, other: &Profile) -> Result<(), ProfileError> {
        if !self.gpu.name.is_empty() && !other.gpu.name.is_empty() && !self.gpu.same_model(&other.gpu) {
            return Err(ProfileError::OtherGpu {
                name: self.name.clone(),
                taken: self.gpu.to_string(),
                here: other.gpu.to_string(),
            });
        }
        if !other.gpu.name.is_empty() {
            self.gpu = other.gpu.clone();
        }
        self.taken = self.taken.max(other.taken);
        self.runs = self.runs.saturating_add(other.runs);
        self.memory_peak = self.memory_peak.max(other.memory_peak);
        self.ran = self.ran.max(other.ran);
        self.over = self.over.saturating_add(other.over);
        self.short = self.short.saturating_add(other.short);
        self.unlisted += other.unlisted;
        for kernel in &other.kernels {
            match self.kernels.binary_search_by_key(&kernel.hash, |known| known.hash) {
                Ok(at) => {
                    let known = &mut self.kernels[at];
                    known.launches += kernel.launches;
                    known.time.merge(&kernel.time);
                    known.gap.merge(&kernel.gap);
                }
                Err(_) if self.kernels.len() >= MAX_KERNELS => self.unlisted += kernel.launches,
                Err(at) => self.kernels.insert(at, kernel.clone()),
            }
        }
        self.working_sets.merge(&other.working_sets);
        Ok(())
    }

    /// Whether the profile may be used on this GPU. A profile without a GPU always may.
    pub fn check_gpu(&self, here: &GpuIdentity) -> Result<(), ProfileError> {
        if self.gpu.name.is_empty() || self.gpu.same_model(here) {
            return Ok(());
        }
        Err(ProfileError::OtherGpu {
            name: self.name.clone(),
            taken: self.gpu.to_string(),
            here: here.to_string(),
        })
    }

    /// First inconsistency, if any; a file may hold anything.
    pub(crate) fn unsound(&self) -> Option<&'static str> {
        if self.kernels.len() > MAX_KERNELS {
            return Some("more kernels than a profile may have");
        }
        if !self.kernels.windows(2).all(|pair| pair[0].hash < pair[1].hash) {
            return Some("kernels out of order");
        }
        if !self
            .kernels
            .iter()
            .all(|kernel| kernel.time.is_sound() && kernel.gap.is_sound())
        {
            return Some("an impossible distribution");
        }
        let launches = self
            .kernels
            .iter()
            .try_fold(self.unlisted, |sum, kernel| sum.checked_add(kernel.launches));
        if launches.is_none() {
            return Some("an impossible number of launches");
        }
        self.working_sets.unsound()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn gpu(name: &str) -> GpuIdentity {
        GpuIdentity {
            name: name.to_owned(),
            uuid: "00".repeat(16),
            memory: 80 << 30,
            driver: 13020,
        }
    }

    /// A profile with two kernels: 10 us with 1 us gaps, 100 us with 2 ms gaps.
    pub(crate) fn sample() -> Profile {
        let kernel = |symbol: &str, time: Ns, gap: Ns| {
            let id = KernelId::new(0, symbol, [8, 1, 1], [128, 1, 1], 0);
            let mut kernel = KernelProfile {
                hash: id.hash64(),
                id,
                launches: 40,
                time: Sketch::default(),
                gap: Sketch::default(),
            };
            for step in 0..10 {
                kernel.time.add(time + step);
                kernel.gap.add(gap + step);
            }
            kernel
        };
        let mut kernels = vec![
            kernel("_Z4axpyfPfS_", 10_000, 1_000),
            kernel("gemm", 100_000, 2_000_000),
        ];
        kernels.sort_by_key(|kernel| kernel.hash);
        Profile {
            name: "resnet".to_owned(),
            taken: 1_795_000_000,
            runs: 1,
            gpu: gpu("NVIDIA A100-SXM4-80GB"),
            memory_peak: 3 << 30,
            unlisted: 0,
            kernels,
            working_sets: Default::default(),
            ran: 90_000_000_000,
            unused: 0,
            over: 500_000,
            short: 40_000,
        }
    }

    #[test]
    fn totals_come_from_the_kernels() {
        let profile = sample();
        assert_eq!(profile.launches(), 80);
        assert_eq!(profile.samples(), 20);
        let idle = profile.idle_share().unwrap();
        assert!((idle - 2_001.0 / 2_111.0).abs() < 0.001, "{idle}");
        assert_eq!(profile.gaps().count(), 20);
        assert_eq!(Profile::default().idle_share(), None);
    }

    #[test]
    fn costs_are_quantiles_or_means() {
        let profile = sample();
        let median: Vec<Ns> = profile.costs(0.5).iter().map(|(_, cost)| *cost).collect();
        assert!(median.iter().any(|cost| cost.abs_diff(10_004) < 300));
        assert!(median.iter().any(|cost| cost.abs_diff(100_004) < 3_000));
        let mut means: Vec<Ns> = profile.mean_costs().iter().map(|(_, cost)| *cost).collect();
        means.sort_unstable();
        assert_eq!(means, [10_004, 100_004]);
        assert_eq!(profile.typical_cost(), Some(55_004));
        assert_eq!(Profile::default().typical_cost(), None);
    }

    #[test]
    fn kernels_whose_times_lie_far_apart_are_told_with_what_they_may_take() {
        let mut run = crate::Aggregator::new();
        for turn in 0..100 {
            // Factor 10 in one of ten runs; in one of a hundred; a little spread; factor 3, but
            // short.
            run.sampled(1, if turn % 10 == 0 { 1_000_000 } else { 100_000 }, None);
            run.sampled(2, if turn == 0 { 1_000_000 } else { 100_000 }, None);
            run.sampled(3, 100_000 + turn, None);
            run.sampled(4, if turn % 10 == 0 { 30_000 } else { 10_000 }, None);
        }
        let profile = run.finish("p", 0);
        let spread = profile.spread(0.98, 100_000);
        assert_eq!(spread.len(), 1, "{spread:?}");
        let (hash, long) = spread[0];
        assert_eq!(hash, 1);
        assert!(long.abs_diff(1_000_000) < 30_000, "{long}");
    }

    #[test]
    fn merging_adds_runs_and_refuses_another_gpu() {
        let mut profile = sample();
        let mut second = sample();
        second.memory_peak = 4 << 30;
        profile.merge(&second).unwrap();
        assert_eq!((profile.runs, profile.launches(), profile.samples()), (2, 160, 40));
        assert_eq!(profile.memory_peak, 4 << 30);
        assert_eq!(profile.unsound(), None);

        second.gpu = gpu("NVIDIA H100");
        let error = profile.merge(&second).unwrap_err().to_string();
        assert_eq!(
            error,
            "profile \"resnet\" was taken on NVIDIA A100-SXM4-80GB (81920 MiB), this job runs on NVIDIA H100 (81920 MiB): take it again on this GPU"
        );
        assert_eq!(profile.launches(), 160);
    }

    #[test]
    fn another_card_of_the_model_will_do_and_another_model_not() {
        let profile = sample();
        let mut here = gpu("NVIDIA A100-SXM4-80GB");
        here.uuid = "ff".repeat(16);
        here.memory -= 1 << 30;
        here.driver = 12040;
        assert!(profile.check_gpu(&here).is_ok());
        here.memory = 40 << 30;
        assert!(profile.check_gpu(&here).is_err());
        assert!(Profile::default().check_gpu(&here).is_ok());
    }

    #[test]
    fn ceiling_of_kernels() {
        let mut profile = Profile::default();
        let mut other = Profile::default();
        let one = sample().kernels.remove(0);
        for hash in 0..MAX_KERNELS as u64 {
            profile.kernels.push(KernelProfile { hash, ..one.clone() });
        }
        other.kernels.push(KernelProfile {
            hash: u64::MAX,
            ..one.clone()
        });
        profile.merge(&other).unwrap();
        assert_eq!(profile.kernels.len(), MAX_KERNELS);
        assert_eq!(profile.unlisted, one.launches);
    }
}
