// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a broker.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_admission::UserCap;
use weft_api::metrics_address::MetricsAddress;
use weft_api::mps::MpsMode;
use weft_protocol::Ns;
use weft_protocol::lane::DeviceSpeed;
use weft_scheduler::Config;

/// The users a broker serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Door {
    /// The user who runs it.
    #[default]
    Private,
    /// All users, or those of a group.
    Shared {
        /// If set, only this group.
        group: Option<u32>,
    },
}

impl Door {
    /// Whether other users than the broker's own are served.
    pub fn is_shared(self) -> bool {
        self != Door::Private
    }
}

/// The times and rates that a broker has without options, and before it measures any. A simulated
/// device that is slower than real time needs others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Constants {
    /// Settings of the core.
    pub core: Config,
    /// Bound on a wait at the gate, ns.
    ///
    /// A last resort: the core prevents starvation, and clients of a dead broker free themselves.
    /// Even if both fail, one launch per second passes.
    pub longest_wait: Ns,
    /// [`Options::speed`].
    pub speed: DeviceSpeed,
    /// [`Options::link_mb_per_s`]: PCIe 4 x16. MSched measured 22.2 GB/s for a serial swap.
    pub link_mb_per_s: u32,
}

impl Default for Constants {
    fn default() -> Constants {
        Constants {
            core: Config::default(),
            longest_wait: 1_000_000_000,
            speed: DeviceSpeed::default(),
            link_mb_per_s: 22_200,
        }
    }
}

/// Default limit on users' priorities: the priority of a job that asks for none.
pub const USUAL_PRIORITY: u8 = 5;

/// A figure per user, with a default for the other users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserFigures<T> {
    /// By uid.
    pub users: BTreeMap<u32, T>,
    /// The figure of all other users except root and the broker's own.
    pub others: Option<T>,
}

impl<T> Default for UserFigures<T> {
    fn default() -> UserFigures<T> {
        UserFigures {
            users: BTreeMap::new(),
            others: None,
        }
    }
}

impl<T: Copy> UserFigures<T> {
    /// The figure of a user; `None`: there is none.
    pub(crate) fn of(&self, uid: u32) -> Option<T> {
        let guest = uid != 0 && uid != rustix::process::geteuid().as_raw();
        self.users.get(&uid).copied().or(self.others.filter(|_| guest))
    }
}

/// The last of several figures for a user counts. `None`: all others.
impl<T> FromIterator<(Option<u32>, T)> for UserFigures<T> {
    fn from_iter<I: IntoIterator<Item = (Option<u32>, T)>>(figures: I) -> UserFigures<T> {
        let mut all = UserFigures::default();
        for (who, figure) in figures {
            match who {
                Some(uid) => drop(all.users.insert(uid, figure)),
                None => all.others = Some(figure),
            }
        }
        all
    }
}

/// Rights of a shared broker's users, by uid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// Weights of users; default 1.
    pub weights: BTreeMap<u32, u32>,
    /// Most important priority of users' jobs; default [`USUAL_PRIORITY`].
    pub priorities: BTreeMap<u32, u8>,
    /// Most jobs of a user at once.
    pub jobs: UserFigures<u32>,
    /// Most device memory of a user's jobs at once, bytes.
    pub memory: UserFigures<u64>,
}

impl Rights {
    /// Limits on what a user's jobs may have at once.
    pub(crate) fn cap(&self, uid: u32) -> UserCap {
        UserCap {
            jobs: self.jobs.of(uid),
            memory: self.memory.of(uid),
        }
    }

    /// The priority that a user's job gets.
    pub(crate) fn allows(&self, uid: u32, asked: u8) -> u8 {
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
    /// Settings of the core. Unless the owner sets it, the switch cost is 0 under MPS.
    pub core: Config,
    /// Whether the owner set the switch cost; if so, clients' reports of MPS do not change it.
    pub switch_cost_said: bool,
    /// Time without a client after which the broker ends.
    pub idle_exit: Option<Duration>,
    /// Bound on a launch's wait at the gate. Unless the owner set it, it is longer for jobs that
    /// are swapped out for longer.
    pub longest_wait: Duration,
    /// Whether the owner set `longest_wait`.
    pub longest_wait_said: bool,
    /// The device's speed as jobs assume it.
    pub speed: DeviceSpeed,
    /// The link's rate until it is measured, one direction at a time, MB a second.
    pub link_mb_per_s: u32,
    /// File for decisions and records.
    pub trace: Option<PathBuf>,
    /// Further addresses for metrics, besides the default socket.
    pub metrics: Vec<MetricsAddress>,
    /// Level of the log, unless `WEFT_LOG` sets it.
    pub log: Option<String>,
    /// Source of the options; read again on SIGHUP.
    pub source: Option<OptionsSource>,
    /// Whether the driver's checkpoint may move jobs on plain memory.
    pub checkpoint: bool,
    /// Whether the broker starts an MPS daemon.
    pub mps: MpsMode,
    /// Finds the devices of that daemon, or the reason why they cannot have one.
    pub mps_devices: Option<fn() -> Result<MpsDevices, String>>,
}

/// The devices of an MPS daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MpsDevices {
    /// The broker's `CUDA_VISIBLE_DEVICES`; `None`: all devices.
    pub visible: Option<String>,
    /// The same devices by UUID.
    pub uuids: Option<String>,
}

/// Source of a broker's options.
#[derive(Clone)]
pub struct OptionsSource(Arc<dyn Fn() -> Result<Options, String> + Send + Sync>);

impl OptionsSource {
    /// A source that calls `read`; an error is one line.
    pub fn new(read: impl Fn() -> Result<Options, String> + Send + Sync + 'static) -> OptionsSource {
        OptionsSource(Arc::new(read))
    }

    /// The options as the source has them now.
    pub(crate) fn read(&self) -> Result<Options, String> {
        (self.0)()
    }
}

impl fmt::Debug for OptionsSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("OptionsSource")
    }
}

impl Default for Options {
    fn default() -> Options {
        let constants = Constants::default();
        Options {
            door: Door::default(),
            rights: Rights::default(),
            core: constants.core,
            switch_cost_said: false,
            idle_exit: None,
            longest_wait: Duration::from_nanos(constants.longest_wait),
            longest_wait_said: false,
            speed: constants.speed,
            link_mb_per_s: constants.link_mb_per_s,
            trace: None,
            metrics: Vec::new(),
            log: None,
            source: None,
            checkpoint: false,
            mps: MpsMode::default(),
            mps_devices: None,
        }
    }
}
