//! The answer of `weft queue`, as programs and people get it.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::status::OtherBroker;

/// Everything.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// The order in force.
    pub policy: String,
    /// Devices that jobs asked for.
    pub devices: Vec<DeviceRow>,
    /// Who has memory.
    pub running: Vec<RunningRow>,
    /// Who waits, next first.
    pub waiting: Vec<WaitingRow>,
    /// Jobs admitted so far.
    pub admitted: u64,
    /// Of those, how many had to wait, each counted as it was let in.
    pub waited: u64,
    /// Jobs that could never run.
    pub refused: u64,
    /// Times a job wanted more than was free.
    pub denied: u64,
    /// Users who have a weight of their own.
    #[serde(default)]
    pub weights: Vec<WeightRow>,
    /// Jobs that ended of late and had not said what they would take, the latest first.
    #[serde(default)]
    pub learnt: Vec<LearntRow>,
    /// Processes that ended of late and whose part of the memory others can have since, the latest
    /// first.
    #[serde(default)]
    pub freed: Vec<FreedRow>,
    /// Other brokers that have one of the devices.
    #[serde(default)]
    pub others: Vec<OtherBroker>,
}

impl Queue {
    /// The command lines of others are left out, and what their jobs took that have ended.
    pub fn hide_all_but(&mut self, user: &str) {
        let running = self.running.iter_mut().map(|row| (&row.user, &mut row.command));
        let waiting = self.waiting.iter_mut().map(|row| (&row.user, &mut row.command));
        for (_, command) in running.chain(waiting).filter(|(whose, _)| *whose != user) {
            command.clear();
        }
        self.learnt.retain(|row| row.user == user);
    }
}

/// A process that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreedRow {
    /// Its number.
    pub pid: u32,
    /// Bytes that its job had, contexts included, and that others could have from then on; 0: the
    /// job has further processes, or waited.
    pub share: u64,
    /// When that was, by `CLOCK_MONOTONIC`, ns. Whoever was let in on this memory was told before.
    pub at: u64,
}

/// A user who counts for more than one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightRow {
    /// Who.
    pub user: String,
    /// How many others he counts for.
    pub weight: u32,
}

/// What a job took that had said nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LearntRow {
    /// Its first process.
    pub pid: u32,
    /// Who.
    pub user: String,
    /// Whose it is, as the kernel says; 4294967295: that is not known.
    #[serde(default)]
    pub uid: u32,
    /// Bytes at its peak.
    pub peak: u64,
    /// How long it ran, seconds.
    pub ran_s: f64,
    /// What `--duration` would say of that.
    pub duration: String,
    /// It wanted more than was free: it would have taken more.
    pub denied: bool,
    /// The command line.
    pub command: String,
}

/// A device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// As the driver says.
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
    /// Bytes a context takes, as measured; 0: not yet.
    pub context: u64,
    /// Bytes that others than weft's jobs hold, as measured when a job began last.
    pub foreign: u64,
    /// Bytes that are nobody's.
    pub free: u64,
}

/// A job that was admitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunningRow {
    /// Its processes' clients.
    pub clients: Vec<u64>,
    /// Its first process.
    pub pid: u32,
    /// The device, as the driver says.
    #[serde(default)]
    pub device: String,
    /// Who.
    pub user: String,
    /// Whose it is, as the kernel says; 4294967295: that is not known.
    #[serde(default)]
    pub uid: u32,
    /// 0 to 9.
    pub priority: u8,
    /// Bytes it may have, contexts included.
    pub share: u64,
    /// Bytes it holds, contexts left out.
    pub held: u64,
    /// What its memory is: `device`, `managed`, or `managed: did not fit` (it left that open and
    /// would have had to wait).
    #[serde(default)]
    pub memory: String,
    /// Bytes more that it waits for.
    #[serde(default)]
    pub waits_for: u64,
    /// Seconds since it was admitted.
    pub since_s: f64,
    /// The command line.
    pub command: String,
}

/// A job that waits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitingRow {
    /// 1 is next.
    pub position: u64,
    /// Its processes' clients.
    pub clients: Vec<u64>,
    /// Its first process.
    pub pid: u32,
    /// The device, as the driver says.
    #[serde(default)]
    pub device: String,
    /// Who.
    pub user: String,
    /// Whose it is, as the kernel says; 4294967295: that is not known.
    #[serde(default)]
    pub uid: u32,
    /// 0 to 9.
    pub priority: u8,
    /// Bytes it needs, contexts included.
    pub needs: u64,
    /// How long it is expected to run: short, medium or long.
    pub duration: String,
    /// Seconds that it has waited.
    pub waited_s: f64,
    /// Why.
    pub reason: String,
    /// Seconds until it is expected to begin, if anything is expected.
    pub begins_s: Option<f64>,
    /// Of some job on its device nobody has said how long it runs, so that this goes by what is
    /// usual (half an hour).
    #[serde(default)]
    pub guess: bool,
    /// The command line.
    pub command: String,
}
