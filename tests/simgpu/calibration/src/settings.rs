// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of the simulated GPU by a calibration.

use weft_engine::memory::{MemorySettings, PAGE_BYTES};
use weft_engine::{Mode, Settings};

use crate::{Calibration, CalibrationError};

/// The figures that the simulated GPU reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Settings of the engine, with time slices, without a trace.
    pub engine: Settings,
    /// Rate of prefetches to the device, bytes a microsecond.
    pub prefetch_to_device: u64,
    /// Rate of prefetches to the host, bytes a microsecond.
    pub prefetch_to_host: u64,
    /// Sum of both rates while prefetches run both ways, bytes a microsecond.
    pub prefetch_both_ways: u64,
    /// Time of a fault of 64 KiB with its data, ns.
    pub fault: u64,
    /// Cost of evicting a block without its data, ns.
    pub evict_block: u64,
    /// Device memory, bytes.
    pub memory: u64,
    /// Device memory of a context itself, bytes.
    pub context_memory: u64,
    /// Time of the smallest kernel, ns.
    pub kernel_base: u64,
    /// Time that each full wave of threads adds, ns.
    pub kernel_wave: u64,
    /// Threads that run at once.
    pub threads_at_once: u64,
    /// Time from the end of a stream's work to the return of a wait for it, ns.
    pub wait_return: u64,
}

impl Figures {
    /// Settings of managed memory with these figures and a stock driver. `host_limit`: the host's
    /// memory for it, bytes.
    pub fn paging(&self, host_limit: u64, duplex: bool) -> MemorySettings {
        let data = PAGE_BYTES * 1_000 / self.prefetch_to_device.max(1);
        MemorySettings {
            capacity: self.memory,
            host_limit,
            to_device: self.prefetch_to_device,
            to_host: self.prefetch_to_host,
            both_ways: self.prefetch_both_ways,
            duplex,
            fault_batch: self.fault.saturating_sub(data),
            evict_block: self.evict_block,
            ..MemorySettings::default()
        }
    }
}

impl Calibration {
    /// The figures that the simulated GPU reads. An error if one is missing here and in the base.
    pub fn figures(&self) -> Result<Figures, CalibrationError> {
        let whole = |key: &str| {
            let value = self.value(key).ok_or_else(|| CalibrationError::Malformed {
                origin: self.gpu.clone(),
                what: format!("no {key}, which the simulated GPU needs: give it, or name a base that has it"),
            })?;
            Ok(value.value as u64)
        };
        Ok(Figures {
            engine: Settings {
                mode: Mode::TimeSlice,
                slice: whole("slice_ns")?,
                switch: whole("switch_ns")?,
                launch_latency: whole("launch_latency_ns")?,
                copy_latency: whole("copy_latency_ns")?,
                to_device: whole("to_device_bytes_per_us")?,
                to_host: whole("to_host_bytes_per_us")?,
                within_device: whole("within_device_bytes_per_us")?,
                memset_latency: whole("memset_latency_ns")?,
                memset: whole("memset_bytes_per_us")?,
                kernel_gap: whole("kernel_gap_ns")?,
                dependent_early: whole("dependent_early_ns")?,
                timed_record: whole("event_record_device_ns")?,
                untimed_record: whole("event_untimed_record_device_ns")?,
                trace: false,
            },
            prefetch_to_device: whole("prefetch_to_device_bytes_per_us")?,
            prefetch_to_host: whole("prefetch_to_host_bytes_per_us")?,
            prefetch_both_ways: whole("prefetch_both_ways_bytes_per_us")?,
            fault: whole("fault_64k_ns")?,
            evict_block: whole("evict_block_ns")?,
            memory: whole("memory_bytes")?,
            context_memory: whole("context_memory_bytes")?,
            kernel_base: whole("kernel_base_ns")?,
            kernel_wave: whole("kernel_wave_ns")?,
            threads_at_once: whole("threads_at_once")?,
            wait_return: whole("wait_return_ns")?,
        })
    }
}
