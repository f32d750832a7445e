//! What jobs took that had not said what they would: learnt from their run, and offered as a
//! profile.
//!
//! A job of which nothing is known is let in with little and grows as memory is free, so it may
//! meet its end half-way. What it took in the end is remembered here when it has ended, shown by
//! `weft queue`, and made a profile by `weft profile keep`: from then on `weft run --profile NAME`
//! has it begin when all of that is free. It is never used unasked: the same command line may do
//! something else the next time, and some jobs take whatever there is.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use weft_profiles::Gpu;

use super::book::brief;
use super::rows::LearntRow;
use crate::registry::Entry;
use weft_admission::{Class, Job};
use weft_protocol::Ns;

/// Jobs that are remembered.
const MOST: usize = 32;

/// What a job took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Took {
    /// The job, over all its devices.
    pub family: Job,
    /// Its first process.
    pub pid: u32,
    /// The command line of that.
    pub command: String,
    /// Whose.
    pub user: String,
    /// Whose, as the kernel says.
    #[serde(default = "owner")]
    pub uid: u32,
    /// The device.
    pub gpu: Option<Gpu>,
    /// Bytes that its processes took together at most, contexts left out. Of those that were there
    /// at the same time each at its own peak, so rather too much than too little.
    pub peak: u64,
    /// From its admission to its end.
    pub ran: Ns,
    /// It wanted more than was free at least once: it would have taken more.
    pub denied: bool,
}

/// What was kept without a user was kept by a broker of one user.
fn owner() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Of a command line and of a device's name so much is kept, bytes.
const COMMAND: usize = 4096;
const NAME: usize = 128;

impl Took {
    /// Of a job whose first process this is.
    pub fn begin(entry: &Arc<Entry>, user: &str, family: Job) -> Took {
        Took {
            family,
            pid: entry.pid,
            command: entry.command.clone(),
            user: user.to_string(),
            uid: entry.uid,
            gpu: None,
            peak: 0,
            ran: 0,
            denied: false,
        }
    }

    /// These are its processes now, one of which has just gone.
    pub fn together<'a>(&mut self, entries: impl Iterator<Item = &'a Entry>) {
        let mut sum = 0u64;
        for entry in entries {
            sum = sum.saturating_add(entry.lane.counters.memory_peak.load(Ordering::Relaxed));
            self.gpu = self.gpu.take().or_else(|| entry.gpu());
        }
        self.peak = self.peak.max(sum);
    }
}

/// What was learnt of late.
#[derive(Debug, Default)]
pub struct Learnt(VecDeque<Took>);

impl Learnt {
    /// With what brokers before this one learnt. Their jobs are none of this one's.
    pub fn go_on(known: Vec<Took>) -> Learnt {
        let mut all = VecDeque::from(known);
        all.truncate(MOST);
        for took in &mut all {
            took.family = Job(0);
        }
        Learnt(all)
    }

    /// All, the latest last.
    pub fn all(&self) -> Vec<Took> {
        self.0.iter().cloned().collect()
    }

    /// A job has ended.
    pub fn add(&mut self, mut took: Took) {
        if took.peak == 0 {
            return;
        }
        took.command = brief(&took.command, COMMAND);
        if let Some(gpu) = &mut took.gpu {
            (gpu.name, gpu.uuid) = (brief(&gpu.name, NAME), brief(&gpu.uuid, NAME));
        }
        // What it took on several devices is one job's; the processes of its first device came
        // first.
        if let Some(known) = self.0.iter_mut().find(|known| known.family == took.family) {
            known.peak = known.peak.saturating_add(took.peak);
            known.ran = known.ran.max(took.ran);
            known.denied |= took.denied;
            return;
        }
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(took);
    }

    /// What the last job of this process took; of no process: the last job. Of this user's jobs, if
    /// one is named.
    pub fn of(&self, pid: Option<u32>, user: Option<&str>) -> Option<&Took> {
        let mut latest = self.0.iter().rev();
        let his = |took: &Took| user.is_none_or(|user| user == took.user);
        latest.find(|took| his(took) && pid.is_none_or(|pid| pid == took.pid))
    }

    /// For people, the latest first.
    pub fn rows(&self) -> Vec<LearntRow> {
        let row = |took: &Took| LearntRow {
            pid: took.pid,
            user: took.user.clone(),
            uid: took.uid,
            peak: took.peak,
            ran_s: took.ran as f64 / 1e9,
            duration: Class::of(took.ran).name().to_string(),
            denied: took.denied,
            command: took.command.clone(),
        };
        self.0.iter().rev().map(row).collect()
    }
}
