// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer of `weft queue`, for programs and people.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::status::OtherBroker;

/// The whole answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// The schema of the JSON ([`SCHEMA`](crate::status::SCHEMA)).
    #[serde(default)]
    pub schema: u32,
    /// The policy in force.
    pub policy: String,
    /// Devices that jobs asked for.
    pub devices: Vec<DeviceRow>,
    /// Jobs that have memory.
    pub running: Vec<RunningRow>,
    /// Jobs that wait, next first.
    pub waiting: Vec<WaitingRow>,
    /// Jobs admitted so far.
    pub admitted: u64,
    /// Admitted jobs that had to wait, counted at admission.
    pub waited: u64,
    /// Jobs that could never run.
    pub refused: u64,
    /// Requests for more than was free that were denied.
    pub denied: u64,
    /// Users with a weight above 1.
    #[serde(default)]
    pub weights: Vec<WeightRow>,
    /// Limits on what users may have at once.
    #[serde(default)]
    pub caps: Vec<CapRow>,
    /// Observed usage of jobs that ended recently and had declared no need, the latest first.
    #[serde(default)]
    pub learnt: Vec<LearntRow>,
    /// Processes that ended recently and whose memory has become free, the latest first.
    #[serde(default)]
    pub freed: Vec<FreedRow>,
    /// Other brokers on one of the devices.
    #[serde(default)]
    pub others: Vec<OtherBroker>,
}

impl Queue {
    /// Clears other users' names and command lines and drops their observed usage.
    pub fn hide_all_but(&mut self, user: &str) {
        for row in self.running.iter_mut().filter(|row| row.user != user) {
            (row.name, row.command) = Default::default();
        }
        for row in self.waiting.iter_mut().filter(|row| row.user != user) {
            (row.name, row.command) = Default::default();
        }
        self.learnt.retain(|row| row.user == user);
    }
}

/// A process that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreedRow {
    /// Process id.
    pub pid: u32,
    /// Bytes of its job, contexts included, that became free; 0: the job has other processes, or
    /// waited.
    pub share: u64,
    /// Time of its end, `CLOCK_MONOTONIC`, ns. Jobs admitted into this memory were notified before.
    pub at: u64,
}

/// A user with a weight above 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightRow {
    /// The user.
    pub user: String,
    /// The weight: the user counts as this number of users of weight 1.
    pub weight: u32,
}

/// Limits on what a user's jobs may have at once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CapRow {
    /// The user id; `None`: all users without a row of their own, except root and the broker's
    /// owner.
    pub uid: Option<u32>,
    /// Jobs.
    pub jobs: Option<u32>,
    /// Device memory, bytes.
    pub memory: Option<u64>,
}

/// Observed usage of a job without a declared need.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LearntRow {
    /// Its first process.
    pub pid: u32,
    /// The job's name; empty: another user's job, or not known.
    #[serde(default)]
    pub name: String,
    /// The user.
    pub user: String,
    /// The user id from the kernel; 4294967295: not known.
    #[serde(default)]
    pub uid: u32,
    /// Peak, bytes.
    pub peak: u64,
    /// Run time, seconds.
    pub ran_s: f64,
    /// The run time as a `--duration`.
    pub duration: String,
    /// Whether a request for more was denied, so that its need is larger.
    pub denied: bool,
    /// The command line.
    pub command: String,
}

/// A device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// UUID by the driver.
    pub uuid: String,
    /// Size, bytes.
    pub memory: u64,
    /// Measured bytes of a context; 0: not yet.
    pub context: u64,
    /// Bytes in use outside weft's jobs, as last measured.
    pub foreign: u64,
    /// Free bytes.
    pub free: u64,
}

/// An admitted job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningRow {
    /// Its processes' clients.
    pub clients: Vec<u64>,
    /// Its first process.
    pub pid: u32,
    /// The job's name; empty: another user's job, or not known.
    #[serde(default)]
    pub name: String,
    /// The device's UUID.
    #[serde(default)]
    pub device: String,
    /// The user.
    pub user: String,
    /// The user id from the kernel; 4294967295: not known.
    #[serde(default)]
    pub uid: u32,
    /// 0 to 9.
    pub priority: u8,
    /// Its share, bytes, contexts included.
    pub share: u64,
    /// Bytes it holds, without contexts.
    pub held: u64,
    /// With a limit (`--memory REQUEST:LIMIT`), bytes that are kept for it, without contexts.
    #[serde(default)]
    pub request: Option<u64>,
    /// The most that it gets, bytes without contexts.
    #[serde(default)]
    pub limit: Option<u64>,
    /// `device`, `managed`, or `managed: did not fit` (auto backing, if the job would have had to
    /// wait for device memory).
    #[serde(default)]
    pub memory: String,
    /// Further bytes that it waits for.
    #[serde(default)]
    pub waits_for: u64,
    /// Seconds since its admission.
    pub since_s: f64,
    /// The command line.
    pub command: String,
}

/// A waiting job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitingRow {
    /// Position in the queue, from 1.
    pub position: u64,
    /// Its processes' clients.
    pub clients: Vec<u64>,
    /// Its first process.
    pub pid: u32,
    /// The job's name; empty: another user's job, or not known.
    #[serde(default)]
    pub name: String,
    /// The device's UUID.
    #[serde(default)]
    pub device: String,
    /// The user.
    pub user: String,
    /// The user id from the kernel; 4294967295: not known.
    #[serde(default)]
    pub uid: u32,
    /// 0 to 9.
    pub priority: u8,
    /// Its need, bytes, contexts included.
    pub needs: u64,
    /// Expected run time: short, medium or long.
    pub duration: String,
    /// Seconds waited.
    pub waited_s: f64,
    /// Reason for the wait.
    pub reason: String,
    /// Seconds until its expected begin, if known.
    pub begins_s: Option<f64>,
    /// Whether `begins_s` is a guess: a job on its device declared no run time, and half an hour is
    /// assumed for it.
    #[serde(default)]
    pub guess: bool,
    /// The command line.
    pub command: String,
}
