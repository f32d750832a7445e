// SPDX-License-Identifier: MIT OR Apache-2.0
//! The query for the best device of a job that has not started, and the answer.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// A query for a place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Seeker {
    /// The process that becomes the job.
    pub pid: u32,
    /// Whether `pid` is of another pid namespace and has no meaning here. Only the broker sets it.
    #[serde(skip)]
    pub unseen: bool,
    /// Name that the job's processes will share.
    pub gang: String,
    /// The user, for fair shares.
    pub user: String,
    /// Priority, 0 to 9.
    pub priority: u8,
    /// Declared peak, bytes.
    pub memory: Option<u64>,
    /// Declared run time: short, medium or long.
    pub duration: Option<String>,
    /// Number of processes to come.
    #[serde(default)]
    pub processes: u32,
    /// Whether its memory is managed.
    pub managed: bool,
    /// Whether it uses auto backing.
    #[serde(default)]
    pub either: bool,
    /// Devices on which it may run.
    pub devices: Vec<Offer>,
}

/// A device that a job may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// UUID from `cuDeviceGetUuid`, hexadecimal.
    pub uuid: String,
    /// Size, bytes.
    pub memory: u64,
    /// Free bytes, if known.
    pub free: Option<u64>,
}

/// The place that a job gets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JobPlace {
    /// The device's UUID.
    pub uuid: String,
    /// Bytes left once the job has its memory; `None`: it will wait.
    pub left: Option<u64>,
    /// Seconds until its expected begin, if it waits and one is known.
    pub begins_s: Option<f64>,
}
