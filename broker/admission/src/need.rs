// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job's expected need, and a device's resources.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use weft_protocol::Ns;

const SECOND_NS: Ns = 1_000_000_000;

/// A job's number, chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Job(pub u64);

/// A user id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct User(pub u32);

/// A device, or one instance of a partitioned device (MIG).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId(pub u32);

/// A job's expected run time as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DurationClass {
    /// Minutes.
    Short,
    /// Up to about an hour.
    Medium,
    /// Hours, days, or a service that never ends.
    Long,
}

impl DurationClass {
    /// Expected run time of the class, ns: the geometric middle of 1 to 10 minutes, of 10 to 90
    /// minutes, and of longer times.
    pub fn expected(self) -> Ns {
        match self {
            DurationClass::Short => 180 * SECOND_NS,
            DurationClass::Medium => 1_800 * SECOND_NS,
            DurationClass::Long => 4 * 3_600 * SECOND_NS,
        }
    }

    /// The class of an expected run time in ns.
    pub fn from_expected(expected: Ns) -> DurationClass {
        match expected {
            0..600_000_000_000 => DurationClass::Short,
            600_000_000_000..5_400_000_000_000 => DurationClass::Medium,
            _ => DurationClass::Long,
        }
    }

    /// The name as typed.
    pub fn name(self) -> &'static str {
        match self {
            DurationClass::Short => "short",
            DurationClass::Medium => "medium",
            DurationClass::Long => "long",
        }
    }
}

/// How a job's device memory is backed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Device memory, resident all the time.
    Device,
    /// Managed memory: one turn's working set must fit, the rest lies on the host.
    Managed {
        /// Bytes that one turn touches.
        working_set: u64,
    },
    /// Auto backing of a waiter: device memory if that would be admitted now, else managed memory.
    /// Decided at admission, for the whole run.
    #[serde(rename = "Either")]
    Auto {
        /// Bytes that one turn touches.
        working_set: u64,
    },
    /// Managed memory of a job with auto backing, as device memory did not fit.
    #[serde(rename = "Beyond")]
    AutoManaged {
        /// Bytes that one turn touches.
        working_set: u64,
    },
}

impl Backing {
    /// Whether the memory is managed.
    pub fn is_managed(self) -> bool {
        matches!(self, Backing::Managed { .. } | Backing::AutoManaged { .. })
    }
}

/// Expected resources of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// Peak bytes of all its processes, without contexts.
    pub peak: u64,
    /// Number of processes with a context.
    pub processes: u32,
    /// Expected run time, ns.
    pub expected: Ns,
    /// Backing of its memory.
    pub backing: Backing,
    /// Most bytes on device memory, without contexts. The part above `peak` is [lent](super::lent).
    /// `None`: what is granted beyond `peak` is kept.
    #[serde(default)]
    pub limit: Option<u64>,
}

impl Need {
    /// The need of one process on device memory.
    pub fn plain(peak: u64, expected: Ns) -> Need {
        Need {
            peak,
            processes: 1,
            expected,
            backing: Backing::Device,
            limit: None,
        }
    }

    /// With auto backing, the needs on device memory and on managed memory; else the need itself.
    pub(super) fn forms(self) -> (Need, Option<Need>) {
        let Backing::Auto { working_set } = self.backing else {
            return (self, None);
        };
        let with = |backing| Need { backing, ..self };
        (with(Backing::Device), Some(with(Backing::AutoManaged { working_set })))
    }

    /// Bytes of the device that only this job takes: contexts, and memory that is not managed.
    pub fn fixed(&self, device: &Device) -> u64 {
        match self.backing {
            Backing::Device | Backing::Auto { .. } => self.peak.saturating_add(self.contexts(device)),
            Backing::Managed { .. } | Backing::AutoManaged { .. } => self.contexts(device),
        }
    }

    /// Bytes of its contexts.
    pub(super) fn contexts(&self, device: &Device) -> u64 {
        device.context.saturating_mul(u64::from(self.processes))
    }
}

/// A device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Number.
    pub id: DeviceId,
    /// Device memory, bytes.
    pub memory: u64,
    /// Measured size of one process's context, bytes.
    pub context: u64,
    /// Whether `context` was measured. Until then jobs begin one by one.
    #[serde(default)]
    pub measured: bool,
    /// Measured bytes of strangers.
    pub foreign: u64,
    /// Link bandwidth from the host and to the host, bytes per second.
    pub link: [f64; 2],
    /// Whether the link carries only one direction at a time.
    pub one_way: bool,
    /// Length of a round, in which every managed job has one turn, ns.
    pub round: Ns,
}

impl Device {
    /// A device of `memory` bytes with the slowest link such devices have: PCIe 3 with 16 lanes,
    /// one way at a time. A round takes 2 s.
    pub fn new(id: DeviceId, memory: u64) -> Device {
        Device {
            id,
            memory,
            context: 0,
            measured: true,
            foreign: 0,
            link: [12e9, 12e9],
            one_way: true,
            round: 2 * SECOND_NS,
        }
    }
}
