// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run: its check, the profiles that weft has before it, and its play.
#![forbid(unsafe_code)]

use std::sync::Arc;

use weft_engine::Settings;
use weft_profiles::{Aggregator, Profile};
use weft_protocol::lane::is_transfer;

use crate::error::MAX_JOBS;
use crate::job::{PlayedJob, ProfileSource};
use crate::world::{Hosts, KernelPiece, LaunchControl, MachineRun, MachineSetup, PRIORITIES, PlayedMachine};
use crate::{Ns, PlayError};

/// Requests of the run that makes a profile, if the caller names no other number.
pub const PROFILE_REQUESTS: u64 = 40;

/// Added to the seed of that run, so that the profile is from another day.
const OTHER_SEED: u64 = 0x0001_0000;

impl MachineSetup {
    /// Plays the run to its end. Equal setups give equal results, to the nanosecond. An error means
    /// that nothing was played.
    pub fn play(mut self) -> Result<MachineRun, PlayError> {
        self.check()?;
        if !matches!(self.control, LaunchControl::Plain) {
            resolve(&mut self)?;
        }
        Ok(PlayedMachine::new(self).run())
    }

    fn check(&self) -> Result<(), PlayError> {
        match self.jobs.len() {
            0 => return Err(PlayError::NoJobs),
            count if count > MAX_JOBS => return Err(PlayError::TooManyJobs(count)),
            _ => {}
        }
        if self.requests == 0 && self.least == 0 {
            return Err(PlayError::NoEnd);
        }
        for job in &self.jobs {
            if usize::from(job.priority) >= PRIORITIES {
                return Err(PlayError::Priority(job.name.clone(), job.priority));
            }
            job.program.check(&job.name)?;
        }
        Ok(())
    }
}

/// weft's profile of a job, as `weft profile` makes it: the time of each kernel and the gap
/// after it, in a run of `requests` without other jobs. `number` and `seed` are those of the run
/// that needs the profile ([`MachineSetup`]); the profile's run has another seed.
///
/// The error is that of [`MachineSetup::play`].
pub fn solo_profile(
    job: &PlayedJob,
    number: usize,
    device: Settings,
    hosts: Hosts,
    seed: u64,
    requests: u64,
) -> Result<Profile, PlayError> {
    let run = MachineSetup {
        hosts,
        requests,
        first_number: number,
        ..MachineSetup::new(
            device,
            LaunchControl::Plain,
            vec![job.clone()],
            seed.wrapping_add(OTHER_SEED),
        )
    }
    .play()?;
    Ok(profile_of(&run))
}

/// Replaces [`ProfileSource::Solo`] by the profile of such a run.
fn resolve(setup: &mut MachineSetup) -> Result<(), PlayError> {
    for at in 0..setup.jobs.len() {
        if let ProfileSource::Solo = setup.jobs[at].profile {
            let number = setup.first_number + at;
            let profile = solo_profile(
                &setup.jobs[at],
                number,
                setup.device,
                setup.hosts,
                setup.seed,
                PROFILE_REQUESTS,
            )?;
            setup.jobs[at].profile = ProfileSource::Given(Arc::new(profile));
        }
    }
    Ok(())
}

fn profile_of(run: &MachineRun) -> Profile {
    let mut aggregator = Aggregator::new();
    // The kernels of a graph are one launch and are timed as one, as in the interposer.
    for launch in launches(&run.pieces).collect::<Vec<_>>().windows(2) {
        let ((this, end), (next, _)) = (launch[0], launch[1]);
        aggregator.launched(this.kernel, 1);
        if !is_transfer(this.kernel) {
            aggregator.sampled(this.kernel, end - this.start, Some(next.start.saturating_sub(end)));
        }
    }
    aggregator.finish(&run.jobs[0].job.name, 0)
}

/// The first piece of each launch and the end of its last one.
fn launches(pieces: &[KernelPiece]) -> impl Iterator<Item = (&KernelPiece, Ns)> {
    let same = |one: &KernelPiece, other: &KernelPiece| one.job == other.job && one.op == other.op;
    pieces
        .chunk_by(same)
        .filter_map(|launch| Some((launch.first()?, launch.last()?.end)))
}
