// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine's parameters. The defaults are the figures of
//! `tests/simgpu/calibration/a100-like.toml`, which has their sources; a test there compares them.
//! Its folder has other GPUs' figures.

use crate::{Direction, Ns, SmLimits, Work};

/// How contexts share the compute engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Contexts take turns of one slice; changing costs time: a GPU without MPS.
    #[default]
    TimeSlice,
    /// Contexts take turns kernel by kernel; changing is free: a GPU under MPS with kernels that
    /// fill it.
    Mps,
    /// Kernels of all contexts share SMs block by block: a GPU under MPS with kernels of any size.
    /// Priorities decide whose blocks begin next; contexts have them too
    /// ([`crate::Engine::set_context_priority`]).
    MpsShared(SmLimits),
}

/// The engine's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How contexts share the compute engine.
    pub mode: Mode,
    /// Time for which a context keeps the compute engine while another one wants it.
    pub slice: Ns,
    /// Time from one context's last instruction to the next context's first.
    pub switch: Ns,
    /// Time from the submission to the earliest start on an idle device.
    pub launch_latency: Ns,
    /// Time that a copy takes before its first byte.
    pub copy_latency: Ns,
    /// Rate from host to device, bytes a microsecond.
    pub to_device: u64,
    /// Rate from device to host, bytes a microsecond.
    pub to_host: u64,
    /// Rate within the device, bytes a microsecond.
    pub within_device: u64,
    /// Time that a memset takes before its first byte.
    pub memset_latency: Ns,
    /// Rate of memsets, bytes a microsecond.
    pub memset: u64,
    /// Time between two kernels or memsets of one stream, if the second was ready before.
    pub kernel_gap: Ns,
    /// Time by which a dependent kernel ([`Work::Dependent`]) begins before the end of the kernel
    /// before it. Zero: the device has no such launches.
    pub dependent_early: Ns,
    /// Time that an event record with timing takes in its stream.
    pub timed_record: Ns,
    /// Time that an event record without timing takes in its stream.
    pub untimed_record: Ns,
    /// Whether to keep the pieces of preempted kernels ([`crate::Output::Done`]) and report
    /// switches ([`crate::Output::Switch`]).
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
            kernel_gap: 0,
            dependent_early: 0,
            timed_record: 0,
            untimed_record: 0,
            trace: false,
        }
    }
}

impl Settings {
    /// Time for which `work` occupies its engine, or only its stream; zero for work that occupies
    /// neither.
    pub fn duration(&self, work: Work) -> Ns {
        match work {
            Work::Kernel { duration, .. } | Work::Beside { duration } => duration,
            Work::Dependent { duration } => duration,
            Work::Copy { direction, bytes } => {
                let rate = match direction {
                    Direction::HostToDevice => self.to_device,
                    Direction::DeviceToHost => self.to_host,
                    Direction::DeviceToDevice => self.within_device,
                };
                self.copy_latency.saturating_add(transfer(bytes, rate))
            }
            Work::Memset { bytes } => self.memset_latency.saturating_add(transfer(bytes, self.memset)),
            Work::Record { timed: true } => self.timed_record,
            Work::Record { timed: false } => self.untimed_record,
            Work::Marker | Work::WaitFor(_) | Work::Host | Work::Prefetch { .. } | Work::Discard { .. } => 0,
        }
    }

    /// Time that `work` may have run when the work before it ends.
    pub(crate) fn early(&self, work: Work) -> Ns {
        match work {
            Work::Dependent { .. } => self.dependent_early,
            _ => 0,
        }
    }
}

/// Time for `bytes` at `rate` bytes a microsecond, rounded up. A rate of zero counts as one.
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
