//! A device's load, and whether more fits.
//!
//! * Plain jobs: the sum of their shares fits the device.
//! * Managed jobs take turns: the largest working set fits beside the plain jobs' shares.
//! * The excess of all working sets moves out and in once a round, within
//!   [`super::Config::link_share`] of the link's time.
//! * All managed memory has a place on the host.
//!
//! A working set may exceed what contexts and foreign memory leave of the device, as it moves
//! within its turn. It then counts as all that they leave, so the job begins only where no plain
//! job runs. A job that prefers managed memory to waiting needs only a part of its working set
//! ([`super::either`]).
#![forbid(unsafe_code)]

use super::config::Config;
use super::model::LEAST_RESIDENT;
use super::need::{Backing, Device, Need};

/// Sums over the jobs of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes that belong to one job each: shares and contexts.
    pub fixed: u64,
    /// Bytes of `fixed` that are contexts of managed jobs.
    pub contexts: u64,
    /// Largest working set of a managed job, or the part of it that must fit, bytes.
    pub largest: u64,
    /// Sum of the managed jobs' working sets, bytes.
    pub sets: u64,
    /// Host memory of this device's managed jobs, bytes.
    pub host: u64,
}

/// What is too small.
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
            Backing::Beyond { working_set } => Some((working_set, working_set / LEAST_RESIDENT)),
            Backing::Device | Backing::Either { .. } => None,
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

    /// Whether a device can carry this load. `elsewhere` is the host memory of other devices' jobs,
    /// bytes.
    pub fn fits(&self, device: &Device, elsewhere: u64, config: &Config) -> Result<(), Lack> {
        let memory = device.memory.saturating_sub(device.foreign);
        // No turn can have more of the device than this.
        let turn = self.largest.min(memory.saturating_sub(self.contexts));
        if self.fixed > memory || turn > memory - self.fixed {
            return Err(Lack::Device);
        }
        if self.host.saturating_add(elsewhere) > config.host_memory && self.host > 0 {
            return Err(Lack::Host);
        }
        // Under the best order of eviction a round moves just the difference, each way.
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
        let config = Config::default();
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
        let config = Config {
            host_memory: 60 * GB,
            ..Config::default()
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
        let config = Config::default();
        // A working set as large as the device exceeds what contexts and foreign memory leave. The
        // others are of a profile that knows what a turn touches.
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
