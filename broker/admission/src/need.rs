//! What a job is expected to take, and what a device has.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use weft_protocol::Ns;

const SECOND: Ns = 1_000_000_000;

/// A job's number, chosen by the caller of the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Job(pub u64);

/// A user's uid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct User(pub u32);

/// A device, or one instance of a partitioned device (MIG).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId(pub u32);

/// A job's expected run time in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Minutes.
    Short,
    /// Up to about an hour.
    Medium,
    /// Hours, days, or a service that never ends.
    Long,
}

impl Class {
    /// Expected run time of the class, ns: the geometric middle of what people mean by the word.
    /// The ranges are 1 to 10 minutes, 10 to 90 minutes, and beyond.
    pub fn expected(self) -> Ns {
        match self {
            Class::Short => 180 * SECOND,
            Class::Medium => 1_800 * SECOND,
            Class::Long => 4 * 3_600 * SECOND,
        }
    }

    /// The class of an expected run time in ns.
    pub fn of(expected: Ns) -> Class {
        match expected {
            0..600_000_000_000 => Class::Short,
            600_000_000_000..5_400_000_000_000 => Class::Medium,
            _ => Class::Long,
        }
    }

    /// The name as typed.
    pub fn name(self) -> &'static str {
        match self {
            Class::Short => "short",
            Class::Medium => "medium",
            Class::Long => "long",
        }
    }
}

/// How a job's device memory is backed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Device memory, resident all the time.
    Device,
    /// Managed memory: the working set of one turn must fit, the rest lies on the host.
    Managed {
        /// Bytes that one turn touches.
        working_set: u64,
    },
    /// Open, while the job waits: device memory where that is free, else managed
    /// ([`super::either`]).
    Either {
        /// Bytes that one turn touches.
        working_set: u64,
    },
    /// Managed memory chosen because device memory did not fit beside other jobs. The job begins
    /// where a quarter of its working set fits, and moves the rest within its turn.
    Beyond {
        /// Bytes that one turn touches.
        working_set: u64,
    },
}

impl Backing {
    /// Whether the memory is managed.
    pub fn is_managed(self) -> bool {
        matches!(self, Backing::Managed { .. } | Backing::Beyond { .. })
    }
}

/// What a job is expected to take.
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
}

impl Need {
    /// A job of one process on device memory.
    pub fn plain(peak: u64, expected: Ns) -> Need {
        Need {
            peak,
            processes: 1,
            expected,
            backing: Backing::Device,
        }
    }

    /// Bytes of the device that this job alone occupies: contexts and memory that is not managed.
    pub fn fixed(&self, device: &Device) -> u64 {
        let contexts = device.context.saturating_mul(u64::from(self.processes));
        match self.backing {
            Backing::Device | Backing::Either { .. } => self.peak.saturating_add(contexts),
            Backing::Managed { .. } | Backing::Beyond { .. } => contexts,
        }
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
    /// Whether `context` was measured. Until then jobs begin one by one, each after the one before
    /// has shown its context's size.
    #[serde(default)]
    pub measured: bool,
    /// Measured bytes held outside weft's jobs.
    pub foreign: u64,
    /// Link bandwidth from the host and to the host, bytes per second.
    pub link: [f64; 2],
    /// Whether the link carries only one direction at a time.
    pub one_way: bool,
    /// Length of a round in which every managed job has one turn, ns.
    pub round: Ns,
}

impl Device {
    /// A device with `memory` bytes. The link is the slowest such devices have (PCIe 3 with 16
    /// lanes, one way at a time). A round takes two seconds.
    pub fn new(id: DeviceId, memory: u64) -> Device {
        Device {
            id,
            memory,
            context: 0,
            measured: true,
            foreign: 0,
            link: [12e9, 12e9],
            one_way: true,
            round: 2 * SECOND,
        }
    }
}
