//! What the machine's state is made of. No rule stands here.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::event::Ask;
use super::load::{Lack, Load};
use super::need::{Backing, Device, DeviceId, Job};
use weft_protocol::Ns;

/// A job that has run longer than expected is expected to run on for this part of what it ran so
/// far.
const OVERTIME: u64 = 4;

/// A job that begins on managed memory for want of device memory has room for its working set
/// divided by this at least.
///
/// A quarter: with less nearly all that it touches would move each time. (What that costs on a real
/// device is not measured.)
pub(super) const LEAST_RESIDENT: u64 = 4;

/// A job that asked and was not admitted yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Waiter {
    pub ask: Ask,
    pub came: Ns,
    /// Orders what came at the same time.
    pub number: u64,
    /// When it came, later by [`Config::handicap`] for each job of its user that waited then.
    pub turn: Ns,
    pub present: u32,
    /// Where and when it is expected to fit, from when it held a reservation first.
    pub promise: Option<(DeviceId, Ns)>,
    /// It is suspended and is not let in.
    #[serde(default)]
    pub away: bool,
}

/// A job that was admitted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Running {
    pub ask: Ask,
    pub device: DeviceId,
    pub share: u64,
    pub since: Ns,
    /// As it had it while it waited.
    pub number: u64,
    /// When it asked, and its turn, as it had them while it waited.
    #[serde(default)]
    pub came: Ns,
    #[serde(default)]
    pub turn: Ns,
    pub present: u32,
}

impl Running {
    /// When it is expected to end.
    pub fn end(&self, now: Ns) -> Ns {
        let end = self.since.saturating_add(self.ask.need.expected);
        if end > now {
            return end;
        }
        now + (now.saturating_sub(self.since) / OVERTIME).max(1)
    }
}

/// Where a waiter goes, and as what: the backing is what it asked for, or one of the two that are
/// open to it.
pub(super) type Spot = (DeviceId, Backing);

/// One that waits for more.
#[derive(Debug, Clone)]
pub(super) struct Growing {
    /// Which.
    pub job: Job,
    /// Bytes that it lacks.
    pub bytes: u64,
    /// It keeps out others.
    pub guards: bool,
}

/// What was reckoned of all who run, while nothing of that changes.
#[derive(Debug, Clone, Default)]
pub(super) struct Reckoned {
    /// The longest run that is expected of anybody who runs.
    pub longest: Option<Ns>,
    pub devices: BTreeMap<DeviceId, Carried>,
}

/// What was reckoned of one device.
#[derive(Debug, Clone, Default)]
pub(super) struct Carried {
    /// What it carries.
    pub load: Load,
    /// Host memory of managed jobs on other devices, bytes.
    pub elsewhere: u64,
    /// When those who run there are expected to end, the first first, and what it carries from then
    /// on. Each time stands there once.
    pub ends: Vec<(Ns, Load)>,
    /// What it would carry with a job that waits there for more once that had it, in each of the
    /// ways in which it may come to have it ([`super::growing`]).
    pub rooms: Vec<Room>,
}

/// What is kept for one that waits for more.
#[derive(Debug, Clone)]
pub(super) struct Room {
    /// Its priority.
    pub priority: u8,
    /// What the device carries then.
    pub load: Load,
}

/// A waiter, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct WaiterView {
    /// What it asked.
    pub ask: Ask,
    /// When.
    pub came: Ns,
    /// 1 is who goes next.
    pub position: usize,
    /// What it lacks on the device where it lacks least; `None`: it would fit and waits for its
    /// turn.
    pub lack: Option<Lack>,
    /// Bytes that are free on that device.
    pub free: u64,
    /// Bytes that it needs there.
    pub needs: u64,
    /// It is suspended.
    pub away: bool,
    /// Its turn has come: nobody passes it any more but as the reservation allows.
    pub due: bool,
    /// Where and when it is expected to fit, if it holds a reservation.
    pub promise: Option<(DeviceId, Ns)>,
    /// The job whose reservation it must not delay, if it waits for that alone.
    pub behind: Option<Job>,
}

/// A running job, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningView {
    /// What it asked.
    pub ask: Ask,
    /// Where it runs.
    pub device: DeviceId,
    /// Bytes it may have.
    pub share: u64,
    /// Since when.
    pub since: Ns,
}

/// Everything, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Devices, what they carry, and what is free.
    pub devices: Vec<(Device, Load, u64)>,
    /// Those who run.
    pub running: Vec<RunningView>,
    /// Those who wait, next first.
    pub waiting: Vec<WaiterView>,
}
