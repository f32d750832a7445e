//! What a job is expected to take, and what a device has.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use weft_protocol::Ns;

const SECOND: Ns = 1_000_000_000;

/// A job, by the number that whoever drives the machine gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Job(pub u64);

/// A user, by uid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct User(pub u32);

/// A device, or an instance of a partitioned one (MIG), which is a device of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId(pub u32);

/// How long a job runs, as people say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Minutes.
    Short,
    /// Up to an hour or so.
    Medium,
    /// Hours, days, or a service that never ends.
    Long,
}

impl Class {
    /// How long such a job is expected to run: the geometric middle of what people mean by the word
    /// (a minute to ten; ten minutes to an hour and a half; beyond).
    pub fn expected(self) -> Ns {
        match self {
            Class::Short => 180 * SECOND,
            Class::Medium => 1_800 * SECOND,
            Class::Long => 4 * 3_600 * SECOND,
        }
    }

    /// What people would call a job that runs so long.
    pub fn of(expected: Ns) -> Class {
        match expected {
            0..600_000_000_000 => Class::Short,
            600_000_000_000..5_400_000_000_000 => Class::Medium,
            _ => Class::Long,
        }
    }

    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Class::Short => "short",
            Class::Medium => "medium",
            Class::Long => "long",
        }
    }
}

/// What a job's device memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Memory of the device, all of it there all the time.
    Device,
    /// Managed memory: what one turn touches must fit, the rest lies on the host.
    Managed {
        /// Bytes that one turn touches.
        working_set: u64,
    },
    /// Not decided: memory of the device where that is free, else managed ([`super::either`]). Of a
    /// job that waits.
    Either {
        /// Bytes that one turn touches.
        working_set: u64,
    },
    /// Managed memory, since the job's did not fit beside the others': it begins where a part of
    /// what it touches fits (a quarter), and moves the rest within its turn.
    Beyond {
        /// Bytes that one turn touches.
        working_set: u64,
    },
}

impl Backing {
    /// Whether it is managed memory.
    pub fn is_managed(self) -> bool {
        matches!(self, Backing::Managed { .. } | Backing::Beyond { .. })
    }
}

/// What a job is expected to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// Bytes that all its processes take at their peak, without contexts.
    pub peak: u64,
    /// Processes that have a context.
    pub processes: u32,
    /// How long it is expected to run.
    pub expected: Ns,
    /// What its memory is.
    pub backing: Backing,
}

impl Need {
    /// A job of one process on plain device memory.
    pub fn plain(peak: u64, expected: Ns) -> Need {
        Need {
            peak,
            processes: 1,
            expected,
            backing: Backing::Device,
        }
    }

    /// Bytes of the device that are there for this job alone: contexts, and what is not managed.
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
    /// Which.
    pub id: DeviceId,
    /// Bytes.
    pub memory: u64,
    /// Bytes that a process' context takes, as measured.
    pub context: u64,
    /// Whether that is known. Until it is, jobs begin there one by one, each when the one before
    /// has shown what its context takes.
    #[serde(default)]
    pub measured: bool,
    /// Bytes that others than weft's jobs hold, as measured.
    pub foreign: u64,
    /// Bytes a second from the host and to the host.
    pub link: [f64; 2],
    /// The link carries one direction at a time.
    pub one_way: bool,
    /// How long a round of turns takes in which every managed job has its turn.
    pub round: Ns,
}

impl Device {
    /// A device of so many bytes. Of the link the least is assumed that such devices have (PCIe 3
    /// with 16 lanes, one way at a time), and rounds of two seconds.
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
