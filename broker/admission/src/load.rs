// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device's load, and whether more fits.
//!
//! ```text
//! memory = device - foreign                fixed = shares + contexts
//! turn   = min(largest working set, memory - contexts)
//! moved  = max(working sets - (memory - fixed), 0)    in and out, once a round
//!
//! fixed + turn <= memory
//! host memory of managed jobs <= host_memory
//! moved / link rate <= link_share * round
//! ```
//!
//! * Managed jobs take turns, so only the largest working set must fit next to the device memory of
//!   other jobs.
//! * A working set larger than the device counts as all that contexts leave. Such a job begins only
//!   if no job has device memory there.
//! * For a job with auto backing, `working set / 4` must fit: it moves the rest within its turn.
#![forbid(unsafe_code)]

use super::config::AdmissionConfig;
use super::need::{Backing, Device, Need};

/// Part of the working set that must be free for a job that takes managed memory for want of device
/// memory: a quarter. With less, nearly all of it would move each turn. Not measured on a real
/// device.
const RESIDENT_DIVISOR: u64 = 4;

/// Sums over the jobs of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Shares and contexts, bytes.
    pub fixed: u64,
    /// Part of `fixed`: contexts of managed jobs, bytes.
    pub contexts: u64,
    /// Largest working set of a managed job (the part that must fit), bytes.
    pub largest: u64,
    /// Sum of the managed jobs' working sets, bytes.
    pub sets: u64,
    /// Host memory of this device's managed jobs, bytes.
    pub host: u64,
}

/// Resource that is too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// Device memory.
    Device,
    /// Host memory.
    Host,
    /// Link time.
    Link,
}

impl Load {
    /// Adds a job whose share is `fixed` bytes.
    pub fn with(mut self, need: &Need, fixed: u64) -> Load {
        self.fixed = self.fixed.saturating_add(fixed);
        let turn = match need.backing {
            Backing::Managed { working_set } => Some((working_set, working_set)),
            Backing::AutoManaged { working_set } => Some((working_set, working_set / RESIDENT_DIVISOR)),
            Backing::Device | Backing::Auto { .. } => None,
        };
        if let Some((working_set, least)) = turn {
            self.contexts = self.contexts.saturating_add(fixed);
            self.largest = self.largest.max(least);
            self.sets = self.sets.saturating_add(working_set);
            self.host = self.host.saturating_add(need.peak);
        }
        self
    }

    /// Adds two loads.
    pub fn and(mut self, other: &Load) -> Load {
        self.fixed = self.fixed.saturating_add(other.fixed);
        self.contexts = self.contexts.saturating_add(other.contexts);
        self.largest = self.largest.max(other.largest);
        self.sets = self.sets.saturating_add(other.sets);
        self.host = self.host.saturating_add(other.host);
        self
    }

    /// Bytes that are neither fixed nor foreign.
    pub fn free(&self, device: &Device) -> u64 {
        device.memory.saturating_sub(device.foreign).saturating_sub(self.fixed)
    }

    /// Device memory that all jobs must have at once, bytes.
    fn needs(&self, memory: u64) -> u64 {
        let turn = self.largest.min(memory.saturating_sub(self.contexts));
        self.fixed.saturating_add(turn)
    }

    /// Bytes by which this load exceeds the device's memory.
    pub fn lacks(&self, device: &Device) -> u64 {
        let memory = device.memory.saturating_sub(device.foreign);
        self.needs(memory).saturating_sub(memory)
    }

    /// Checks that a device can carry this load. `elsewhere`: host memory of other devices' jobs,
    /// bytes.
    pub fn fits(&self, device: &Device, elsewhere: u64, config: &AdmissionConfig) -> Result<(), Lack> {
        let memory = device.memory.saturating_sub(device.foreign);
        if self.needs(memory) > memory {
            return Err(Lack::Device);
        }
        if self.host.saturating_add(elsewhere) > config.host_memory && self.host > 0 {
            return Err(Lack::Host);
        }
        // The best order of eviction moves just the difference, each way.
        let moved = self.sets.saturating_sub(memory - self.fixed) as f64;
        let [in_rate, out_rate] = device.link;
        let (inward, outward) = (moved / in_rate, moved / out_rate);
        let seconds = if device.one_way {
            inward + outward
        } else {
            inward.max(outward)
        };
        if seconds > config.link_share * device.round as f64 / 1e9 {
            return Err(Lack::Link);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::need::DeviceId;
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn managed(peak: u64, working_set: u64) -> Need {
        Need {
            backing: Backing::Managed { working_set },
            ..Need::plain(peak, 1)
        }
    }

    fn load(device: &Device, needs: &[Need]) -> Load {
        needs
            .iter()
            .fold(Load::default(), |load, need| load.with(need, need.fixed(device)))
    }

    #[test]
    fn plain_jobs_and_their_contexts_fit_or_not() {
        let device = Device {
            context: GB / 2,
            foreign: GB,
            ..Device::new(DeviceId(0), 16 * GB)
        };
        let config = AdmissionConfig::default();
        let both = [Need::plain(7 * GB, 1), Need::plain(7 * GB, 1)];
        assert_eq!(load(&device, &both).fits(&device, 0, &config), Ok(()));
        assert_eq!(load(&device, &both).free(&device), 0);
        let more = [Need::plain(7 * GB, 1), Need::plain(7 * GB + 1, 1)];
        assert_eq!(load(&device, &more).fits(&device, 0, &config), Err(Lack::Device));
    }

    #[test]
    fn managed_jobs_exceed_the_device_as_far_as_the_link_and_the_host_carry_it() {
        let device = Device {
            link: [10e9, 10e9],
            ..Device::new(DeviceId(0), 16 * GB)
        };
        let config = AdmissionConfig {
            host_memory: 60 * GB,
            ..AdmissionConfig::default()
        };
        // 20 GB of working sets on 16 GB: 4 GB each way a round is 0.8 s of a one-way link, of
        // which a round of 2 s may take 1.
        let two = [managed(15 * GB, 10 * GB), managed(15 * GB, 10 * GB)];
        assert_eq!(load(&device, &two).fits(&device, 0, &config), Ok(()));
        let more = [managed(15 * GB, 11 * GB), managed(15 * GB, 11 * GB)];
        assert_eq!(load(&device, &more).fits(&device, 0, &config), Err(Lack::Link));
        assert_eq!(load(&device, &two).fits(&device, 31 * GB, &config), Err(Lack::Host));
        let wide = Device {
            one_way: false,
            ..device
        };
        assert_eq!(load(&wide, &more).fits(&wide, 0, &config), Ok(()));
    }

    #[test]
    fn a_managed_job_may_be_larger_than_the_device() {
        let device = Device {
            context: GB / 2,
            foreign: GB,
            ..Device::new(DeviceId(0), 16 * GB)
        };
        let config = AdmissionConfig::default();
        // A set as large as the device exceeds what contexts and foreign memory leave.
        for large in [
            managed(16 * GB, 16 * GB),
            managed(40 * GB, 16 * GB),
            managed(40 * GB, 17 * GB),
        ] {
            assert_eq!(load(&device, &[large]).fits(&device, 0, &config), Ok(()), "{large:?}");
            // Another such job adds a context, which neither job lacks; moving decides.
            let two = [large, managed(GB, GB)];
            assert_eq!(load(&device, &two).fits(&device, 0, &config), Ok(()), "{two:?}");
            assert_eq!(
                load(&device, &[large, large]).fits(&device, 0, &config),
                Err(Lack::Link),
                "{large:?}"
            );
            // A plain job's memory is missing in the managed job's turn.
            let beside = [large, Need::plain(GB, 1)];
            assert_eq!(load(&device, &beside).fits(&device, 0, &config), Err(Lack::Device));
        }
    }
}
