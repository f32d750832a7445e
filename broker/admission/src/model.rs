// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data types of the state machine, without rules.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::caps::CapLack;
use super::event::Ask;
use super::held_bytes::HeldBytes;
use super::load::{Lack, Load};
use super::need::{Backing, Device, DeviceId, Job};
use weft_protocol::Ns;

/// A job that overruns is expected to run on for `run so far / OVERRUN_DIVISOR`.
const OVERRUN_DIVISOR: u64 = 4;

/// A job that asked and is not admitted yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WaitingJob {
    pub ask: Ask,
    #[serde(rename = "came")]
    pub arrived: Ns,
    /// Breaks ties between equal arrival times.
    pub number: u64,
    /// `arrived + AdmissionConfig::handicap`.
    pub turn: Ns,
    /// Processes of the job so far.
    pub present: u32,
    /// Device and time of its first reservation.
    pub promise: Option<(DeviceId, Ns)>,
    /// Suspended: not admitted meanwhile.
    #[serde(default, rename = "away")]
    pub suspended: bool,
}

/// An admitted job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RunningJob {
    pub ask: Ask,
    pub device: DeviceId,
    pub share: u64,
    pub since: Ns,
    /// Its number, arrival and turn as a waiter.
    pub number: u64,
    #[serde(default, rename = "came")]
    pub arrived: Ns,
    #[serde(default)]
    pub turn: Ns,
    /// Processes of the job that have not left.
    pub present: u32,
    /// Bytes that it holds; `None`: it declared its need, or none were reported yet.
    #[serde(skip)]
    pub usage: Option<HeldBytes>,
}

impl RunningJob {
    /// Expected end; for an overrun `now + max(run so far / 4, 1 ns)`.
    pub fn end(&self, now: Ns) -> Ns {
        let end = self.since.saturating_add(self.ask.need.expected);
        if end > now {
            return end;
        }
        now + (now.saturating_sub(self.since) / OVERRUN_DIVISOR).max(1)
    }
}

/// Device and backing for a waiter.
pub(super) type Spot = (DeviceId, Backing);

/// A running job that waits for more memory.
#[derive(Debug, Clone)]
pub(super) struct GrowthRequest {
    pub job: Job,
    /// Bytes that it lacks.
    pub bytes: u64,
    /// Whether it keeps other jobs out.
    pub guards: bool,
}

/// A waiter, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct WaiterView {
    /// Its request.
    pub ask: Ask,
    /// Arrival time, ns.
    pub arrived: Ns,
    /// Position in the order; 1 goes next.
    pub position: usize,
    /// Its lack on the device on which it lacks least. `None`: it fits and waits for its turn.
    pub lack: Option<Lack>,
    /// Free bytes on that device.
    pub free: u64,
    /// Bytes that it needs there.
    pub needs: u64,
    /// Whether it is suspended.
    pub suspended: bool,
    /// The cap of its user that keeps it waiting.
    pub capped: Option<CapLack>,
    /// Whether it is due: other jobs pass it only as the reservation allows.
    pub due: bool,
    /// Device and expected time of its reservation.
    pub promise: Option<(DeviceId, Ns)>,
    /// The job whose reservation is the only reason for its wait.
    pub blocked_by: Option<Job>,
}

/// A running job, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningView {
    /// Its request.
    pub ask: Ask,
    /// Its device.
    pub device: DeviceId,
    /// Bytes it may have.
    pub share: u64,
    /// Start time, ns.
    pub since: Ns,
}

/// The whole state, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionView {
    /// Devices with their load and free bytes.
    pub devices: Vec<(Device, Load, u64)>,
    /// Running jobs.
    pub running: Vec<RunningView>,
    /// Waiters, next first.
    pub waiting: Vec<WaiterView>,
}
