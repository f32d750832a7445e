// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configuration of the planner.
#![forbid(unsafe_code)]

use super::GRANULE;
use weft_protocol::Ns;

/// Part of each device that stays free of the plan, for demand paging.
pub const RESERVE_PART: u64 = 64;

/// Measured link between host and device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes per second to the device, without traffic to the host.
    pub inward: f64,
    /// Bytes per second to the host, without traffic to the device.
    pub outward: f64,
    /// Bytes per second of both directions at once. Unused unless `duplex`.
    pub both: f64,
    /// Whether both directions go at once.
    pub duplex: bool,
}

impl Link {
    /// Time of granules to the device, without traffic to the host.
    pub fn time_in(&self, granules: u64) -> Ns {
        time(granules, self.inward)
    }

    /// Time of granules to the host, without traffic to the device.
    pub fn time_out(&self, granules: u64) -> Ns {
        time(granules, self.outward)
    }
}

impl Link {
    /// Time of granules in both directions.
    pub fn time(&self, inward: u64, outward: u64) -> Ns {
        let (alone_in, alone_out) = (self.time_in(inward), self.time_out(outward));
        if !self.duplex {
            return alone_in + alone_out;
        }
        // Both share `both` until one is through.
        let slower = ((self.inward + self.outward) / self.both.max(1.0)).max(1.0);
        let together = alone_in.min(alone_out) as f64 * slower;
        alone_in.abs_diff(alone_out) + together as Ns
    }
}

fn time(granules: u64, rate: f64) -> Ns {
    (granules as f64 * GRANULE as f64 * 1e9 / rate.max(1.0)) as Ns
}

/// Rule for the granules that make room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Victims {
    /// Next use furthest in the future (Belady's OPT).
    #[default]
    Opt,
    /// Last use furthest in the past (the stock driver).
    Lru,
}

/// Overlap of moving memory and running kernels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overlap {
    /// None: at a switch victims go out, then the next set comes in, then its client starts.
    Nothing,
    /// At a switch, in both directions; a kernel starts once its own granules are in (as MSched).
    AtSwitch,
    /// As `AtSwitch`; the next clients' sets also come in during earlier turns, into free room.
    #[default]
    Ahead,
}

/// Options of the plan, for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanOptions {
    /// See [`Overlap`].
    pub overlap: Overlap,
    /// See [`Victims`].
    pub victims: Victims,
    /// Drop granules that will be overwritten before they are read.
    pub discard: bool,
    /// Keep the host's copy of unwritten granules: evicting them copies nothing.
    pub read_duplication: bool,
    /// Move whole allocations.
    pub whole_allocations: bool,
}

impl Default for PlanOptions {
    fn default() -> PlanOptions {
        PlanOptions {
            overlap: Overlap::Ahead,
            victims: Victims::Opt,
            discard: true,
            read_duplication: true,
            whole_allocations: false,
        }
    }
}

/// Configuration of the planner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PagingConfig {
    /// Granules of device memory for jobs.
    pub capacity: u64,
    /// Granules of host memory for evicted granules and kept copies.
    pub host_limit: u64,
    /// The link.
    pub link: Link,
    /// Most granules out in each direction (on a one-way link, in both). Enough to keep the link
    /// busy between orders, few enough to change plans: 64 take 2 to 3 ms.
    pub in_flight: u32,
    /// Most granules of one order. 16 take half a millisecond, far more than issuing it.
    pub per_order: u32,
    /// See [`PlanOptions`].
    pub options: PlanOptions,
}

impl PagingConfig {
    /// Defaults for a device and a host of these sizes.
    pub fn new(device_bytes: u64, host_bytes: u64, link: Link) -> PagingConfig {
        PagingConfig {
            capacity: device_bytes / GRANULE,
            host_limit: host_bytes / GRANULE,
            link,
            in_flight: 64,
            per_order: 16,
            options: PlanOptions::default(),
        }
    }
}
