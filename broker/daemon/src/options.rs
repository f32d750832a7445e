//! The options of a broker.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::server::Door;
use weft_scheduler::Config;

/// Whether the scheduler thread may spin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Spin {
    /// Where the machine has more than two cores
    #[default]
    Auto,
    /// While a background job waits and a gap is near
    Yes,
    /// Never
    No,
}

impl Spin {
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Spin::Auto => "auto",
            Spin::Yes => "yes",
            Spin::No => "no",
        }
    }

    /// Whether to spin on this machine. On two cores a spinning broker takes the core of a job's
    /// own thread.
    pub fn decided(self) -> bool {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match self {
            Spin::Auto => cores > 2,
            Spin::Yes => true,
            Spin::No => false,
        }
    }
}

/// Default bound on a launch's wait at the gate.
///
/// The core prevents starvation, and a dead broker's clients free themselves. So this is the last
/// resort: one launch per second passes whatever else fails.
pub const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Most important priority of a shared broker's users without a setting; also a job's default
/// priority.
pub const USUAL_PRIORITY: u8 = 5;

/// Rights that the owner of a shared broker gives its users, by uid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// Users that a user counts for when memory is shared; default 1.
    pub weights: BTreeMap<u32, u32>,
    /// Most important priority of a user's jobs; default [`USUAL_PRIORITY`].
    pub priorities: BTreeMap<u32, u8>,
}

impl Rights {
    /// The priority that a job of this user gets for the one it asked for.
    pub fn allows(&self, uid: u32, asked: u8) -> u8 {
        asked.max(self.priorities.get(&uid).copied().unwrap_or(USUAL_PRIORITY))
    }
}

/// The options of a broker.
#[derive(Debug, Clone)]
pub struct Options {
    /// The users it serves.
    pub door: Door,
    /// Rights of a shared broker's users.
    pub rights: Rights,
    /// Settings of the core. Unless the owner set the switch cost, it is 0 where all clients share
    /// the device under MPS.
    pub core: Config,
    /// Whether the owner set the switch cost, so that no client's word changes it.
    pub switch_cost_said: bool,
    /// Ends the broker after so long without a client.
    pub idle_exit: Option<Duration>,
    /// Bound on a launch's wait at the gate.
    pub longest_wait: Duration,
    /// Whether the scheduler thread may spin.
    pub spin: Spin,
    /// Whether clients take samples while they serve, to correct their profiles.
    pub refine: bool,
    /// How many times slower than a real device this one is.
    pub dilation: f64,
    /// The order in which jobs get device memory.
    pub admission: weft_admission::Policy,
    /// File for decisions and records.
    pub trace: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            door: Door::default(),
            rights: Rights::default(),
            core: Config::default(),
            switch_cost_said: false,
            idle_exit: None,
            longest_wait: LONGEST_WAIT,
            spin: Spin::default(),
            refine: false,
            dilation: 1.0,
            admission: weft_admission::Policy::default(),
            trace: None,
        }
    }
}
