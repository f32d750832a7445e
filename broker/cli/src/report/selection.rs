// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selection of the jobs of a report, and their grouping into runs. Pure.
#![forbid(unsafe_code)]

use weft_api::history::RecordedJob;
use weft_api::recording::MOST_JOBS;

use super::super::{history, text};
use super::gaps::JobGaps;

/// Largest number of jobs on one page.
const MOST_ON_A_PAGE: usize = MOST_JOBS as usize;

/// The wanted jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selection {
    /// The newest job, and all jobs of its run.
    Newest,
    /// A job by name, process id or a part of the command line, and the jobs that ran with it.
    Job(String),
    /// This many of the newest jobs.
    Last(u64),
    /// Jobs that run or ended since this time, milliseconds since 1970.
    Since(u64),
}

/// Jobs on one device whose times overlap.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Run {
    /// The device; empty if no job reported one.
    pub(super) device: String,
    /// The jobs, most important first.
    pub(super) jobs: Vec<ReportJob>,
    /// Milliseconds since 1970.
    pub(super) begin_ms: u64,
    /// Milliseconds since 1970.
    pub(super) end_ms: u64,
}

/// Contents of a page.
#[derive(Debug)]
pub(super) struct JobReport {
    /// Time of its creation, milliseconds since 1970.
    pub(super) now_ms: u64,
    /// The runs, newest first.
    pub(super) runs: Vec<Run>,
    /// Gaps from a broker's trace.
    pub(super) gaps: Vec<JobGaps>,
}

impl JobReport {
    /// Its subject in a few words.
    pub(super) fn title(&self) -> String {
        let jobs: usize = self.runs.iter().map(|run| run.jobs.len()).sum();
        match jobs {
            0 => "a broker's trace".to_string(),
            jobs => text::count(jobs as u64, "job", "jobs"),
        }
    }
}

/// One job of a report.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReportJob {
    /// Its outcome and recording.
    pub(super) of: RecordedJob,
    /// A short name: its script's, with the process id if two jobs have the same name.
    pub(super) name: String,
    /// Milliseconds since 1970.
    pub(super) begin_ms: u64,
    /// Milliseconds since 1970.
    pub(super) end_ms: u64,
}

impl ReportJob {
    fn new(of: RecordedJob) -> ReportJob {
        let ran_ms = (of.job.outcome.ran_s.max(0.0) * 1e3) as u64;
        let begin_ms = match &of.recording {
            Some(recording) => recording.begin_ms,
            None => of.job.ended_ms.saturating_sub(ran_ms),
        };
        ReportJob {
            name: name(&of),
            begin_ms,
            end_ms: of.job.ended_ms.max(begin_ms),
            of,
        }
    }

    fn device(&self) -> &str {
        self.of.job.device.as_deref().unwrap_or_default()
    }

    fn was_beside(&self, other: &ReportJob) -> bool {
        self.device() == other.device() && self.begin_ms <= other.end_ms && other.begin_ms <= self.end_ms
    }
}

/// Longest short name, characters.
const NAME: usize = 24;

/// Name of a job in a chart.
fn name(of: &RecordedJob) -> String {
    match (of.job.name.as_deref(), of.job.command.as_str()) {
        (Some(name), _) if !name.is_empty() => text::cut(name, NAME),
        // Recorded by a weft version without names.
        (_, "") => format!("process {}", of.job.pid),
        (_, command) => text::command(command, NAME),
    }
}

impl Selection {
    /// Number of history rows that it needs; `None` for all.
    pub(super) fn last(&self) -> Option<u64> {
        match self {
            Selection::Newest => Some(MOST_ON_A_PAGE as u64),
            Selection::Last(jobs) => Some(*jobs),
            Selection::Job(_) | Selection::Since(_) => None,
        }
    }

    /// Earliest end of the jobs that it needs, milliseconds since 1970.
    pub(super) fn since_ms(&self) -> Option<u64> {
        match self {
            Selection::Since(since) => Some(*since),
            _ => None,
        }
    }

    /// The runs of the wanted jobs, newest first. `all`: newest job first, running jobs before
    /// ended ones. An error is one line for people.
    pub(super) fn pick(&self, all: Vec<RecordedJob>) -> Result<Vec<Run>, String> {
        if all.is_empty() {
            return Err(match self {
                Selection::Since(_) => "no job runs here or ended here in that time".to_string(),
                Selection::Job(wanted) => nobody(wanted),
                _ => "no job runs here or has ended here; start one with weft run".to_string(),
            });
        }
        let mut jobs: Vec<ReportJob> = all.into_iter().map(ReportJob::new).collect();
        match self {
            Selection::Since(_) => {}
            Selection::Last(wanted) => jobs.truncate(usize::try_from(*wanted).unwrap_or(usize::MAX)),
            Selection::Newest => {
                let newest = jobs.first().cloned();
                let runs = runs_of(jobs).into_iter();
                let its = runs.filter(|run| newest.as_ref().is_some_and(|newest| run.jobs.contains(newest)));
                jobs = its.flat_map(|run| run.jobs).collect();
            }
            Selection::Job(wanted) => {
                let found = jobs.iter().find(|job| history::is_called(&job.of.job, wanted)).cloned();
                let found = found.ok_or_else(|| nobody(wanted))?;
                jobs.retain(|job| job.was_beside(&found));
                // First, so that it stays if there are more jobs than fit on a page.
                jobs.sort_by_key(|job| *job != found);
            }
        }
        jobs.truncate(MOST_ON_A_PAGE);
        let mut runs = runs_of(jobs);
        for run in &mut runs {
            tell_apart(&mut run.jobs);
        }
        Ok(runs)
    }
}

fn nobody(wanted: &str) -> String {
    format!(
        "no job '{}' runs or is in the history (weft history shows process ids and commands)",
        text::cut(wanted, 60)
    )
}

/// Sorts jobs into runs, the newest run first.
fn runs_of(mut jobs: Vec<ReportJob>) -> Vec<Run> {
    jobs.sort_by(|one, other| (one.device(), one.begin_ms).cmp(&(other.device(), other.begin_ms)));
    let mut runs: Vec<Run> = Vec::new();
    for job in jobs {
        match runs.last_mut() {
            Some(run) if run.device == job.device() && job.begin_ms <= run.end_ms => {
                run.end_ms = run.end_ms.max(job.end_ms);
                run.jobs.push(job);
            }
            _ => runs.push(Run {
                device: job.device().to_string(),
                begin_ms: job.begin_ms,
                end_ms: job.end_ms,
                jobs: vec![job],
            }),
        }
    }
    for run in &mut runs {
        run.jobs
            .sort_by_key(|job| (job.of.job.priority, job.begin_ms, job.of.job.client));
    }
    runs.sort_by_key(|run| std::cmp::Reverse(run.end_ms));
    runs
}

/// Appends the process id if two jobs have the same name.
fn tell_apart(jobs: &mut [ReportJob]) {
    let names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
    for job in jobs {
        if names.iter().filter(|name| **name == job.name).count() > 1 {
            job.name = format!("{} [{}]", job.name, job.of.job.pid);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use weft_api::history::HistoryRow;
    use weft_api::outcome::Outcome;
    use weft_api::status::{Ending, Exit};

    use super::*;

    /// A job of these times, ms.
    pub(in super::super) fn job(pid: u32, command: &str, begin_ms: u64, end_ms: u64) -> RecordedJob {
        RecordedJob {
            job: HistoryRow {
                ended_ms: end_ms,
                uid: 1,
                pid,
                client: u64::from(pid),
                priority: (pid % 10) as u8,
                command: command.to_string(),
                name: None,
                gang: None,
                profile: None,
                device: None,
                ending: Ending::Goodbye,
                exit: Exit::default(),
                outcome: Outcome {
                    ran_s: (end_ms - begin_ms) as f64 / 1e3,
                    ..Outcome::default()
                },
            },
            running: false,
            recording: None,
        }
    }

    fn all() -> Vec<RecordedJob> {
        vec![
            job(15, "python train.py", 8_000, 20_000),
            job(10, "python serve.py", 1_000, 9_000),
            job(25, "python train.py", 500, 2_000),
            job(35, "python old.py", 0, 400),
        ]
    }

    fn pids(selection: &Selection) -> Vec<Vec<u32>> {
        let runs = selection.pick(all()).expect("some");
        let run = |run: &Run| run.jobs.iter().map(|job| job.of.job.pid).collect();
        runs.iter().map(run).collect()
    }

    #[test]
    fn jobs_that_met_are_one_run() {
        assert_eq!(pids(&Selection::Since(0)), [vec![10, 25, 15], vec![35]]);
        assert_eq!(pids(&Selection::Newest), [[10, 25, 15]]);
        assert_eq!(pids(&Selection::Last(1)), [[15]]);
        assert_eq!(pids(&Selection::Last(9)), pids(&Selection::Since(0)));
        let mut elsewhere = all();
        elsewhere[1].job.device = Some("another".to_string());
        let runs = Selection::Since(0).pick(elsewhere).expect("some");
        assert_eq!(runs.len(), 4);
        assert_eq!((runs[0].begin_ms, runs[0].end_ms), (8_000, 20_000));
    }

    #[test]
    fn a_job_brings_those_beside_it() {
        let job = |wanted: &str| Selection::Job(wanted.to_string());
        assert_eq!(pids(&job("train.py")), [[10, 15]], "the newest of two");
        assert_eq!(pids(&job("25")), [[10, 25]]);
        assert_eq!(pids(&job("serve")), [[10, 25, 15]]);
        for nobody in ["99", "", "serve.pyc"] {
            let found = job(nobody).pick(all());
            match nobody {
                "" => assert!(found.is_ok()),
                _ => assert_eq!(found.map_err(|said| said.lines().count()), Err(1)),
            }
        }
        assert!(Selection::Newest.pick(Vec::new()).is_err());
    }

    #[test]
    fn equal_names_are_told_apart() {
        let runs = Selection::Newest.pick(all()).expect("some");
        let names: Vec<&str> = runs[0].jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(
            names,
            ["python serve.py", "python train.py [25]", "python train.py [15]"]
        );
    }

    #[test]
    fn a_page_has_a_bounded_number_of_jobs() {
        let many = (0..200).map(|pid| job(pid, "x", 0, 1_000)).collect();
        let runs = Selection::Job("199".to_string()).pick(many).expect("some");
        assert_eq!(runs[0].jobs.len(), MOST_ON_A_PAGE);
        assert!(runs[0].jobs.iter().any(|job| job.of.job.pid == 199));
    }
}
