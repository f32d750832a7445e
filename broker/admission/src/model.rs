//! Data types of the state machine. This module has no rules.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::event::Ask;
use super::load::{Lack, Load};
use super::need::{Backing, Device, DeviceId, Job};
use weft_protocol::Ns;

/// Divisor for an overrunning job: it is expected to run on for a quarter of its run so far.
const OVERTIME: u64 = 4;

/// Divisor for a job that takes managed memory for want of device memory: a quarter of its working
/// set must be free.
///
/// With less, nearly all of its working set would move each turn. The cost on a real device is not
/// measured.
pub(super) const LEAST_RESIDENT: u64 = 4;

/// A job that asked and was not admitted yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Waiter {
    pub ask: Ask,
    pub came: Ns,
    /// Breaks ties between jobs that came at the same time.
    pub number: u64,
    /// Arrival plus `Config::handicap`.
    pub turn: Ns,
    pub present: u32,
    /// Device and time at which it is expected to fit, fixed by its first reservation.
    pub promise: Option<(DeviceId, Ns)>,
    /// Suspended; not admitted meanwhile.
    #[serde(default)]
    pub away: bool,
}

/// An admitted job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Running {
    pub ask: Ask,
    pub device: DeviceId,
    pub share: u64,
    pub since: Ns,
    /// Number it had as a waiter.
    pub number: u64,
    /// Arrival, and below it the turn, as they were while it waited.
    #[serde(default)]
    pub came: Ns,
    #[serde(default)]
    pub turn: Ns,
    pub present: u32,
}

impl Running {
    /// When the job is expected to end; for an overrun, `now + max(run so far / 4, 1 ns)`.
    pub fn end(&self, now: Ns) -> Ns {
        let end = self.since.saturating_add(self.ask.need.expected);
        if end > now {
            return end;
        }
        now + (now.saturating_sub(self.since) / OVERTIME).max(1)
    }
}

/// Device and backing for a waiter. The backing is the requested one, or one of the two open to it.
pub(super) type Spot = (DeviceId, Backing);

/// A running job that waits for more memory.
#[derive(Debug, Clone)]
pub(super) struct Growing {
    /// The job.
    pub job: Job,
    /// Bytes that it lacks.
    pub bytes: u64,
    /// Whether it keeps other jobs out.
    pub guards: bool,
}

/// Sums over all running jobs, valid until one of them changes.
#[derive(Debug, Clone, Default)]
pub(super) struct Reckoned {
    /// Longest expected run of the running jobs, ns.
    pub longest: Option<Ns>,
    pub devices: BTreeMap<DeviceId, Carried>,
}

/// Sums for one device.
#[derive(Debug, Clone, Default)]
pub(super) struct Carried {
    /// Current load.
    pub load: Load,
    /// Host memory of managed jobs on other devices, bytes.
    pub elsewhere: u64,
    /// Expected ends in ascending order without duplicates, each with the load left from then on.
    pub ends: Vec<(Ns, Load)>,
    /// Load with each job that waits for more once served, for each way the memory may become free
    /// ([`super::growing`]).
    pub rooms: Vec<Room>,
}

/// Room kept for a running job that waits for more memory.
#[derive(Debug, Clone)]
pub(super) struct Room {
    /// Its priority.
    pub priority: u8,
    /// Load of the device once it is served.
    pub load: Load,
}

/// A waiter, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct WaiterView {
    /// Its request.
    pub ask: Ask,
    /// Arrival time, ns.
    pub came: Ns,
    /// Position in the order; 1 goes next.
    pub position: usize,
    /// What it lacks on the device where it lacks least. `None`: it would fit and waits for its
    /// turn.
    pub lack: Option<Lack>,
    /// Free bytes on that device.
    pub free: u64,
    /// Bytes that it needs there.
    pub needs: u64,
    /// Whether it is suspended.
    pub away: bool,
    /// Whether it is due: other jobs pass it only as the reservation allows.
    pub due: bool,
    /// Device and time at which it is expected to fit, if it holds a reservation.
    pub promise: Option<(DeviceId, Ns)>,
    /// The job whose reservation it must not delay, if it waits for that alone.
    pub behind: Option<Job>,
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
pub struct View {
    /// Devices with their load and free bytes.
    pub devices: Vec<(Device, Load, u64)>,
    /// Running jobs.
    pub running: Vec<RunningView>,
    /// Waiters, next first.
    pub waiting: Vec<WaiterView>,
}
