//! The engine's parameters. The defaults are the figures of
//! `tests/simgpu/calibration/a100-like.toml`, where each has its source; a test there keeps them
//! the same. Other GPUs' figures come from other files of that folder.

use crate::{Direction, Ns, Work};

/// How contexts share the compute engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Contexts take turns of one slice; changing costs time. What a GPU does without MPS.
    #[default]
    TimeSlice,
    /// Contexts take turns kernel by kernel, changing is free. What a GPU does under MPS with
    /// kernels that fill it.
    Mps,
}

/// What the engine is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How contexts share the compute engine.
    pub mode: Mode,
    /// How long a context keeps the compute engine while another one wants it.
    pub slice: Ns,
    /// From one context's last instruction to the next context's first.
    pub switch: Ns,
    /// From the submission to the earliest start on an idle device.
    pub launch_latency: Ns,
    /// What a copy costs before its first byte.
    pub copy_latency: Ns,
    /// Host to device, bytes a microsecond.
    pub to_device: u64,
    /// Device to host, bytes a microsecond.
    pub to_host: u64,
    /// Within the device, bytes a microsecond.
    pub within_device: u64,
    /// What a memset costs before its first byte.
    pub memset_latency: Ns,
    /// Memset, bytes a microsecond.
    pub memset: u64,
    /// Remember the pieces of preempted kernels for [`crate::Output::Done`] and report switches as
    /// [`crate::Output::Switch`].
    pub trace: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mode: Mode::TimeSlice,
            slice: 1_500_000,
            switch: 100_000,
            launch_latency: 5_000,
            copy_latency: 4_000,
            to_device: 22_200,
            to_host: 22_200,
            within_device: 700_000,
            memset_latency: 2_000,
            memset: 1_300_000,
            trace: false,
        }
    }
}

impl Settings {
    /// How long `work` occupies its engine. Zero for work that occupies none.
    pub fn duration(&self, work: Work) -> Ns {
        match work {
            Work::Kernel { duration, .. } => duration,
            Work::Copy { direction, bytes } => {
                let rate = match direction {
                    Direction::HostToDevice => self.to_device,
                    Direction::DeviceToHost => self.to_host,
                    Direction::DeviceToDevice => self.within_device,
                };
                self.copy_latency.saturating_add(transfer(bytes, rate))
            }
            Work::Memset { bytes } => self.memset_latency.saturating_add(transfer(bytes, self.memset)),
            Work::Marker | Work::WaitFor(_) | Work::Host | Work::Prefetch { .. } | Work::Discard { .. } => 0,
        }
    }
}

/// The time `bytes` take at `rate` bytes a microsecond, rounded up. A rate of zero counts as one.
fn transfer(bytes: u64, rate: u64) -> Ns {
    let ns = (u128::from(bytes) * 1_000).div_ceil(u128::from(rate.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_takes_bytes_over_rate() {
        assert_eq!(transfer(0, 10), 0);
        assert_eq!(transfer(22_200, 22_200), 1_000);
        assert_eq!(transfer(1, 1_000_000), 1);
        assert_eq!(transfer(u64::MAX, 0), u64::MAX);
    }

    #[test]
    fn a_gigabyte_over_pcie_takes_some_fifty_milliseconds() {
        let copy = Work::Copy {
            direction: Direction::HostToDevice,
            bytes: 1 << 30,
        };
        let ns = Settings::default().duration(copy);
        assert!((48_000_000..50_000_000).contains(&ns), "{ns}");
    }
}
