//! Observed usage of jobs without a declared need, offered as profiles.
//!
//! Such a job begins with little, grows, and may fail half-way. Its usage is kept when it ends,
//! `weft queue` shows it, and `weft profile keep` makes it a profile. With
//! `weft run --profile NAME` the job begins when all of that is free. It is never used unasked: the
//! next run may differ, and some jobs take all there is.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use weft_profiles::{Error, Gpu, Profile};

use super::rows::LearntRow;
use crate::job_name;
use crate::registry::Entry;
use crate::status::KeptProfile;
use crate::store;
use crate::text::brief;
use weft_admission::{DurationClass, Job};
use weft_protocol::Ns;

/// Jobs that are kept.
const KEPT_JOBS: usize = 32;

/// Observed usage of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeakUsage {
    /// The job over all its devices.
    pub family: Job,
    /// Its first process.
    pub pid: u32,
    /// What its user called the job; empty: nothing, or a record of an older broker.
    #[serde(default)]
    pub name: String,
    /// Command line of that process.
    pub command: String,
    /// The user.
    pub user: String,
    /// The user id, by the kernel.
    #[serde(default = "owner")]
    pub uid: u32,
    /// The device.
    pub gpu: Option<Gpu>,
    /// Peak bytes of its processes together, without contexts. Simultaneous processes count with
    /// their own peaks: rather too much.
    pub peak: u64,
    /// Time from its admission to its end, ns.
    pub ran: Ns,
    /// It was denied more at least once: its need is larger.
    pub denied: bool,
}

/// Records without a user are of a one-user broker.
fn owner() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Longest kept command line and device name, bytes.
const COMMAND_BYTES: usize = 4096;
const NAME_BYTES: usize = 128;

impl PeakUsage {
    /// An empty record of the job with this first process.
    pub fn begin(entry: &Arc<Entry>, user: &str, family: Job) -> PeakUsage {
        PeakUsage {
            family,
            pid: entry.pid,
            name: entry.name.clone(),
            command: entry.command.clone(),
            user: user.to_string(),
            uid: entry.uid,
            gpu: None,
            peak: 0,
            ran: 0,
            denied: false,
        }
    }

    /// Takes in its processes as one of them ends.
    pub fn observe<'a>(&mut self, entries: impl Iterator<Item = &'a Entry>) {
        let mut sum = 0u64;
        for entry in entries {
            sum = sum.saturating_add(entry.lane.counters.memory_peak.load(Ordering::Relaxed));
            self.gpu = self.gpu.take().or_else(|| entry.gpu());
        }
        self.peak = self.peak.max(sum);
    }

    /// Adds the usage to the profile `called` so, which is made if missing.
    pub fn keep(&self, called: &str) -> Result<KeptProfile, Error> {
        let (store, name) = store::locate(called)?;
        let mut profile = match store.load(&name) {
            Ok(profile) => profile,
            Err(Error::Missing { .. }) => Profile {
                name,
                runs: 1,
                taken: std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
                gpu: self.gpu.clone().unwrap_or_default(),
                ..Profile::default()
            },
            Err(error) => return Err(error),
        };
        profile.took(self.peak, self.ran);
        Ok(KeptProfile {
            command: self.command.clone(),
            memory_peak: profile.memory_peak,
            ran_s: profile.ran as f64 / 1e9,
            denied: self.denied,
            file: store.save(&profile)?,
        })
    }
}

/// Observed usage of jobs that ended lately.
#[derive(Debug, Default)]
pub struct ObservedUsage(VecDeque<PeakUsage>);

impl ObservedUsage {
    /// The records of earlier brokers, whose job numbers mean nothing here.
    pub fn go_on(known: Vec<PeakUsage>) -> ObservedUsage {
        let mut all = VecDeque::from(known);
        all.truncate(KEPT_JOBS);
        for took in &mut all {
            took.family = Job(0);
        }
        ObservedUsage(all)
    }

    /// All records, the latest last.
    pub fn all(&self) -> Vec<PeakUsage> {
        self.0.iter().cloned().collect()
    }

    /// Adds an ended job.
    pub fn add(&mut self, mut took: PeakUsage) {
        if took.peak == 0 {
            return;
        }
        took.command = brief(&took.command, COMMAND_BYTES);
        if let Some(gpu) = &mut took.gpu {
            (gpu.name, gpu.uuid) = (brief(&gpu.name, NAME_BYTES), brief(&gpu.uuid, NAME_BYTES));
        }
        // Parts on several devices are one job's; the first device's processes came first.
        if let Some(known) = self.0.iter_mut().find(|known| known.family == took.family) {
            known.peak = known.peak.saturating_add(took.peak);
            known.ran = known.ran.max(took.ran);
            known.denied |= took.denied;
            return;
        }
        if self.0.len() == KEPT_JOBS {
            self.0.pop_front();
        }
        self.0.push_back(took);
    }

    /// The latest record, of this process and user where given.
    pub fn of(&self, pid: Option<u32>, user: Option<&str>) -> Option<&PeakUsage> {
        let mut latest = self.0.iter().rev();
        let his = |took: &PeakUsage| user.is_none_or(|user| user == took.user);
        latest.find(|took| his(took) && pid.is_none_or(|pid| pid == took.pid))
    }

    /// Rows for people, the latest first.
    pub fn rows(&self) -> Vec<LearntRow> {
        let row = |took: &PeakUsage| LearntRow {
            pid: took.pid,
            name: job_name::of(Some(&took.name), &took.command),
            user: took.user.clone(),
            uid: took.uid,
            peak: took.peak,
            ran_s: took.ran as f64 / 1e9,
            duration: DurationClass::from_expected(took.ran).name().to_string(),
            denied: took.denied,
            command: took.command.clone(),
        };
        self.0.iter().rev().map(row).collect()
    }
}
