// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of samples to a profile.

use std::collections::HashMap;

use weft_kernel_id::{KernelId, Names};

use crate::working_set::{KernelWorkingSet, WorkingSets};
use crate::{GpuIdentity, KernelProfile, MAX_KERNELS, Ns, Profile, Sketch};

/// Longest plausible kernel time: an hour.
const MAX_SAMPLE_NS: Ns = 3_600_000_000_000;

/// Collector of a run's samples. Inputs are bounded: times by an hour, kernels by [`MAX_KERNELS`].
#[derive(Debug, Clone, Default)]
pub struct Aggregator {
    kernels: HashMap<u64, SampledKernel>,
    names: Names,
    gpu: GpuIdentity,
    memory_peak: u64,
    ran: Ns,
    unlisted: u64,
    working_sets: WorkingSets,
}

#[derive(Debug, Clone, Default)]
struct SampledKernel {
    launches: u64,
    time: Sketch,
    gap: Sketch,
    /// Sums over the samples, ns: how much they may exceed the kernel's times and fall short of
    /// them.
    over: Ns,
    short: Ns,
}

impl SampledKernel {
    fn launches(&self) -> u64 {
        // Launch records may be lost; samples are seldom lost.
        self.launches.max(self.time.count())
    }

    /// A sum over the samples as one over all launches, ns.
    fn of_all(&self, of_samples: Ns) -> Ns {
        let all = u128::from(of_samples) * u128::from(self.launches()) / u128::from(self.time.count().max(1));
        Ns::try_from(all).unwrap_or(Ns::MAX)
    }
}

impl Aggregator {
    /// Makes an empty collector.
    pub fn new() -> Aggregator {
        Aggregator::default()
    }

    /// Sets a kernel's identity.
    pub fn named(&mut self, hash: u64, id: KernelId) {
        self.names.insert(hash, id);
    }

    /// Adds launches of a kernel.
    pub fn launched(&mut self, hash: u64, times: u64) {
        let launches = match self.seen(hash) {
            Some(seen) => &mut seen.launches,
            None => &mut self.unlisted,
        };
        *launches = launches.saturating_add(times);
    }

    /// Adds a kernel's time and the gap after it, if known, in ns.
    pub fn sampled(&mut self, hash: u64, time: Ns, gap: Option<Ns>) {
        if let Some(seen) = self.seen(hash) {
            seen.time.add(time.min(MAX_SAMPLE_NS));
            if let Some(gap) = gap {
                seen.gap.add(gap.min(MAX_SAMPLE_NS));
            }
        }
    }

    /// Adds how much a sample of a kernel may exceed the kernel's time and fall short of it, ns.
    pub fn sample_error(&mut self, hash: u64, over: Ns, short: Ns) {
        if let Some(seen) = self.seen(hash) {
            seen.over = seen.over.saturating_add(over.min(MAX_SAMPLE_NS));
            seen.short = seen.short.saturating_add(short.min(MAX_SAMPLE_NS));
        }
    }

    /// Sets the job's GPU.
    pub fn device(&mut self, gpu: GpuIdentity) {
        self.gpu = gpu;
    }

    /// Records that the job holds `bytes` of device memory.
    pub fn memory(&mut self, bytes: u64) {
        self.memory_peak = self.memory_peak.max(bytes);
    }

    /// Records that the job has used the device for `time` ns.
    pub fn ran(&mut self, time: Ns) {
        self.ran = self.ran.max(time);
    }

    /// Adds a kernel's working set; an inconsistent one is left out.
    pub fn working_set(&mut self, set: KernelWorkingSet) {
        let one = WorkingSets { kernels: vec![set] };
        if one.unsound().is_none() {
            self.working_sets.merge(&one);
        }
    }

    /// Number of timed launches.
    pub fn samples(&self) -> u64 {
        self.kernels.values().map(|seen| seen.time.count()).sum()
    }

    /// Makes the run's profile. `taken`: seconds since 1970.
    pub fn finish(self, name: &str, taken: u64) -> Profile {
        let names = self.names;
        let sum = |of: fn(&SampledKernel) -> Ns| {
            let each = self.kernels.values().map(|seen| seen.of_all(of(seen)));
            each.fold(0, Ns::saturating_add)
        };
        let (over, short) = (sum(|seen| seen.over), sum(|seen| seen.short));
        let mut kernels: Vec<KernelProfile> = self
            .kernels
            .into_iter()
            .map(|(hash, seen)| KernelProfile {
                hash,
                id: names.get(hash).cloned().unwrap_or_else(|| unnamed(hash)),
                launches: seen.launches(),
                time: seen.time,
                gap: seen.gap,
            })
            .collect();
        kernels.sort_unstable_by_key(|kernel| kernel.hash);
        Profile {
            name: name.to_owned(),
            taken,
            runs: 1,
            gpu: self.gpu,
            memory_peak: self.memory_peak,
            unlisted: self.unlisted,
            kernels,
            working_sets: self.working_sets,
            ran: self.ran,
            unused: 0,
            over,
            short,
        }
    }

    fn seen(&mut self, hash: u64) -> Option<&mut SampledKernel> {
        if self.kernels.len() >= MAX_KERNELS && !self.kernels.contains_key(&hash) {
            return None;
        }
        Some(self.kernels.entry(hash).or_default())
    }
}

/// Identity of a kernel without a known name.
fn unnamed(hash: u64) -> KernelId {
    KernelId::new(0, &format!("unnamed:{hash:016x}"), [0; 3], [0; 3], 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_become_a_profile() {
        let mut run = Aggregator::new();
        let id = KernelId::new(0, "k", [1; 3], [32, 1, 1], 0);
        run.named(9, id.clone());
        for _ in 0..5 {
            run.launched(9, 1);
        }
        run.sampled(9, 1_000, Some(50));
        run.sampled(9, 3_000, None);
        run.sampled(4, u64::MAX, Some(u64::MAX));
        run.memory(100);
        run.memory(70);
        run.ran(8);
        run.ran(5);
        run.device(GpuIdentity {
            name: "G".to_owned(),
            ..GpuIdentity::default()
        });
        assert_eq!(run.samples(), 3);
        let profile = run.finish("job", 7);
        let kernel = profile.kernel(9).unwrap();
        assert_eq!(
            (kernel.launches, kernel.time.mean(), kernel.gap.count()),
            (5, Some(2_000), 1)
        );
        assert_eq!(kernel.id, id);
        let unnamed = profile.kernel(4).unwrap();
        assert_eq!((unnamed.launches, unnamed.time.mean()), (1, Some(MAX_SAMPLE_NS)));
        assert_eq!(unnamed.id.symbol, "unnamed:0000000000000004");
        assert_eq!(
            (profile.memory_peak, profile.ran, profile.runs, profile.taken),
            (100, 8, 1, 7)
        );
        assert_eq!(profile.unsound(), None);
    }

    #[test]
    fn ceiling_of_kernels_in_a_run() {
        let mut run = Aggregator::new();
        for hash in 0..MAX_KERNELS as u64 + 10 {
            run.launched(hash, 1);
        }
        run.launched(3, 1);
        let profile = run.finish("job", 0);
        assert_eq!(profile.kernels.len(), MAX_KERNELS);
        assert_eq!(profile.unlisted, 10);
        assert_eq!(profile.kernel(3).unwrap().launches, 2);
    }
}
