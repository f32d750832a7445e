// SPDX-License-Identifier: MIT OR Apache-2.0
//! Input events and decisions of the state machine.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::caps::UserCap;
use super::need::{Device, DeviceId, Job, Need, User};
use weft_protocol::amount::{apart, shown};

/// A job's request for admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The job.
    pub job: Job,
    /// Its user.
    pub user: User,
    /// Priority, 0 (most important) to 9.
    pub priority: u8,
    /// Its expected need.
    pub need: Need,
    /// Devices it may use; empty means any.
    pub devices: Vec<DeviceId>,
}

/// An input of the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A device appeared or was measured again. Shares of its jobs follow the context size.
    Device(Device),
    /// A user's weight, at least 1; the default is 1.
    Weight(User, u32),
    /// Most that a user's jobs may have at once; the default is no cap.
    Cap(User, UserCap),
    /// The job is part of another one, on a further device. Sent before it asks or holds.
    IsPart(Job),
    /// A job asks for admission. A repeated request changes nothing.
    Asks(Ask),
    /// A job runs with this share, bytes with contexts: the broker restarted. A fact.
    Holds(Ask, DeviceId, u64),
    /// A running job has this many bytes beyond its share. A fact.
    Has(Job, u64),
    /// A running job gives back bytes: one of its processes moved to another device.
    Gives(Job, u64),
    /// An undeclared job gives up bytes that it does not hold, for the request or the tick that
    /// follows.
    GivesUp(Job, u64),
    /// Bytes that an undeclared job now holds, with contexts.
    Uses(Job, u64),
    /// A further process of a known job.
    Joins(Job),
    /// A process of a job ended; with the last one the job ends.
    Leaves(Job),
    /// A running job wants more bytes at once, or a denial.
    Grows(Job, u64),
    /// A running job wants more bytes, and waits if the end of a job that does not wait itself may
    /// free them. It goes before waiters.
    GrowsInTime(Job, u64),
    /// A job no longer waits for more bytes.
    GrowsNoMore(Job),
    /// A new priority.
    Priority(Job, u8),
    /// A job is suspended, and is not admitted meanwhile. An admitted one that took nothing waits
    /// again, at its old place.
    Suspends(Job),
    /// A suspended job continues.
    Resumes(Job),
    /// A job with auto backing began on device memory, unaware of the decision. A fact.
    OnDevice(Job),
    /// A job ended, died or withdrew its request.
    Ends(Job),
    /// Only time passed.
    Tick,
}

/// An output of the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// The job may begin.
    Admit {
        /// The job.
        job: Job,
        /// Its device.
        device: DeviceId,
        /// Bytes it may have, with contexts and without managed memory.
        share: u64,
    },
    /// The job can never run here.
    Refuse {
        /// The job.
        job: Job,
        /// The reason, with figures.
        why: Never,
    },
    /// The job may have more.
    Grant {
        /// The job.
        job: Job,
        /// Additional bytes.
        bytes: u64,
    },
    /// The job may not have more.
    Deny {
        /// The job.
        job: Job,
        /// Bytes it asked for.
        bytes: u64,
        /// Free bytes.
        free: u64,
    },
}

/// Resource of which even the best device that a job may use has too little.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Never {
    /// Device memory.
    #[error(
        "it needs {} ({} of that for {}), and the largest device it may use has {}",
        apart([*need, *memory])[0], shown(*contexts), whose(*processes), apart([*need, *memory])[1]
    )]
    Device {
        /// Bytes needed.
        need: u64,
        /// Bytes of that for contexts.
        contexts: u64,
        /// Number of processes with a context.
        processes: u32,
        /// Bytes of the device.
        memory: u64,
    },
    /// Host memory.
    #[error(
        "it needs {} of host memory, and managed jobs may take {}",
        apart([*need, *memory])[0], apart([*need, *memory])[1]
    )]
    Host {
        /// Bytes needed.
        need: u64,
        /// Bytes that managed jobs may take.
        memory: u64,
    },
    /// Link time.
    #[error("moving the memory that it touches in a round would take longer than the allowed link time")]
    Link,
    /// An administrator's cap on its user's memory.
    #[error(
        "it needs {}, and its user may have {} of device memory at once (a cap of this broker)",
        apart([*need, *most])[0], apart([*need, *most])[1]
    )]
    OverCap {
        /// Bytes needed.
        need: u64,
        /// Bytes that its user may have.
        most: u64,
    },
    /// The same, for a part of a job that runs on another device already.
    #[error(
        "it needs {} on a further device, and its user may have {} more, {} at once (a cap of this broker)",
        apart([*need, *left])[0], apart([*need, *left])[1], shown(*most)
    )]
    PartOverCap {
        /// Bytes needed.
        need: u64,
        /// Bytes that its user may still take.
        left: u64,
        /// Bytes that its user may have.
        most: u64,
    },
    /// An administrator's cap on its user's jobs.
    #[error("its user may run no jobs here (a cap of this broker)")]
    NoJobs,
    /// None of the devices it may use is present.
    #[error("this machine has none of the devices that it may use")]
    NoDevice,
}

/// Names the processes of the contexts, if there are several.
fn whose(processes: u32) -> String {
    match processes {
        0 | 1 => "contexts".to_string(),
        many => format!("the contexts of {many} processes, from LOCAL_WORLD_SIZE or the number attached"),
    }
}
