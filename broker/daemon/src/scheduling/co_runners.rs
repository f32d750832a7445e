// SPDX-License-Identifier: MIT OR Apache-2.0
//! Co-runners of a served job's timed launches: they decide on a sample's use for the profile.
#![forbid(unsafe_code)]

use weft_profiles::refine::OtherJobs;

use super::lanes::LaneWatch;
use crate::profiles::writer::Observation;
use weft_protocol::Ns;
use weft_protocol::lane::Mode;

/// Numbers of jobs by role, unchanged `since`.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoRunners {
    since: Ns,
    foreground_jobs: usize,
    background_jobs: usize,
}

impl CoRunners {
    /// Counts these lanes, unchanged `since`.
    pub(super) fn of(lanes: &[LaneWatch], since: Ns) -> CoRunners {
        let count = |mode| lanes.iter().filter(|lane| lane.mode() == mode).count();
        CoRunners {
            since,
            foreground_jobs: count(Mode::Foreground),
            background_jobs: count(Mode::Background),
        }
    }

    /// Labels samples of a client in this mode. Earlier launches than `since` keep their label,
    /// because other jobs may have run then.
    pub(super) fn say(&self, mode: Mode, seen: &mut [Observation]) {
        let beside = match mode {
            Mode::Foreground if self.foreground_jobs == 1 => OtherJobs::BackgroundJobs,
            Mode::Background if self.background_jobs == 1 && self.foreground_jobs > 0 => OtherJobs::ForegroundJobs,
            _ => OtherJobs::Others,
        };
        for one in seen {
            if let Observation::Served(timed, at) = one
                && *at > self.since
            {
                timed.beside = beside;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_profiles::refine::Timed;

    #[test]
    fn a_sample_counts_for_whom_it_met() {
        let company = |foreground_jobs, background_jobs| CoRunners {
            since: 100,
            foreground_jobs,
            background_jobs,
        };
        let said = |company: CoRunners, mode, at| {
            let timed = Timed {
                kernel: 1,
                time: 2,
                gap: None,
                beside: OtherJobs::Others,
            };
            let mut seen = [Observation::Launches(1, 1), Observation::Served(timed, at)];
            company.say(mode, &mut seen);
            match seen[1] {
                Observation::Served(timed, _) => timed.beside,
                _ => unreachable!("it was put there"),
            }
        };
        assert_eq!(said(company(1, 3), Mode::Foreground, 101), OtherJobs::BackgroundJobs);
        assert_eq!(
            said(company(1, 3), Mode::Foreground, 100),
            OtherJobs::Others,
            "somebody came since"
        );
        assert_eq!(
            said(company(2, 1), Mode::Foreground, 101),
            OtherJobs::Others,
            "an equal"
        );
        assert_eq!(said(company(2, 1), Mode::Background, 101), OtherJobs::ForegroundJobs);
        assert_eq!(
            said(company(1, 2), Mode::Background, 101),
            OtherJobs::Others,
            "another background job"
        );
        assert_eq!(
            said(company(0, 1), Mode::Background, 101),
            OtherJobs::Others,
            "turns by time"
        );
    }
}
