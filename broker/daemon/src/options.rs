//! What a broker is told at its start.
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
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            Spin::Auto => "auto",
            Spin::Yes => "yes",
            Spin::No => "no",
        }
    }

    /// The decision on this machine. On two cores a spinning broker takes the core that a job's own
    /// thread needs.
    pub fn decided(self) -> bool {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match self {
            Spin::Auto => cores > 2,
            Spin::Yes => true,
            Spin::No => false,
        }
    }
}

/// The longest a launch may wait at the gate. The core sees to it that nobody starves and a dead
/// broker frees its clients by itself, so this is the last resort: a launch a second goes through
/// whatever else fails.
pub const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The most important priority of users of a shared broker of whom its owner said nothing: the one
/// that a job has which asks for none.
pub const USUAL_PRIORITY: u8 = 5;

/// What the owner of a shared broker lets its users do, by uid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// How many others a user counts for; of whom nothing is said for one.
    pub weights: BTreeMap<u32, u32>,
    /// The most important priority that a user's jobs may have; of whom nothing is said
    /// [`USUAL_PRIORITY`].
    pub priorities: BTreeMap<u32, u8>,
}

impl Rights {
    /// The priority that a user's job has who asks for this one.
    pub fn allows(&self, uid: u32, asked: u8) -> u8 {
        asked.max(self.priorities.get(&uid).copied().unwrap_or(USUAL_PRIORITY))
    }
}

/// What a broker is told at its start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whom it serves.
    pub door: Door,
    /// What they may do, if it is shared.
    pub rights: Rights,
    /// How the core decides. What it costs a device to switch is 0 where its clients share it under
    /// MPS, unless the owner said it.
    pub core: Config,
    /// The owner said what it costs to switch: no client's word changes it.
    pub switch_cost_said: bool,
    /// End when nobody was attached for so long.
    pub idle_exit: Option<Duration>,
    /// The longest a launch may wait at the gate.
    pub longest_wait: Duration,
    /// Whether the scheduler thread may spin.
    pub spin: Spin,
    /// Whether clients take samples while they serve, and their profiles follow.
    pub refine: bool,
    /// How many times slower than a real one the device is.
    pub dilation: f64,
    /// In which order jobs get device memory.
    pub admission: weft_admission::Policy,
    /// Where decisions and records are written.
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
