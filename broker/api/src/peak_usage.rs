// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observed usage of one job without a declared need; `weft profile keep` makes it a profile.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use weft_profiles::{GpuIdentity, Profile, ProfileError};

use crate::profile_path;
use crate::status::KeptProfile;
use weft_admission::Job;
use weft_protocol::Ns;

/// Observed usage of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeakUsage {
    /// The job over all its devices.
    pub family: Job,
    /// Its first process.
    pub pid: u32,
    /// Name that its user chose; empty: none, or a record of an older broker.
    #[serde(default)]
    pub name: String,
    /// Command line of that process.
    pub command: String,
    /// The user.
    pub user: String,
    /// The user id from the kernel.
    #[serde(default = "owner")]
    pub uid: u32,
    /// The device.
    pub gpu: Option<GpuIdentity>,
    /// Peak bytes of its processes together, without contexts. Simultaneous processes count with
    /// their own peaks, so the figure may be too high.
    pub peak: u64,
    /// Time from its admission to its end, ns.
    pub ran: Ns,
    /// Whether a request for more was denied at least once: its need is larger.
    pub denied: bool,
}

/// The user of records without one: they are from a one-user broker.
fn owner() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl PeakUsage {
    /// Adds the usage to the profile `called`, which is created if missing.
    pub fn keep(&self, called: &str) -> Result<KeptProfile, ProfileError> {
        let (store, name) = profile_path::locate(called)?;
        let mut profile = match store.load(&name) {
            Ok(profile) => profile,
            Err(ProfileError::Missing { .. }) => Profile {
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
