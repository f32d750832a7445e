// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft check`: one line and an exit code, for scripts and probes.
//!
//! Every wait is bounded. It runs no work on a GPU and opens none, and it starts no broker.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::outcome::{Warning, WarningKind};
use weft_api::paths::Places;
use weft_api::status::Status;
use weft_protocol::VERSION;
use weft_protocol::duration::parse_some as time;

use super::row::{ReportRow, RowVerdict};
use super::{device, interception, machine};
use crate::{status, text};

/// Exit code if weft works, but a job is not protected.
const TROUBLE: u8 = 3;

const CODES: &str = "\
Exit codes: 0 all is well, 1 weft does not work here, 2 wrong command line, 3 trouble: a job is not
protected, or bypasses weft.

  weft check || weft status                  in a script
  weft check --broker                        as a probe of the broker's service or pod";

/// Print in one line whether weft works here, with an exit code for scripts and probes
#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct CheckArgs {
    /// Check only that the broker answers and has this weft's protocol
    #[arg(long)]
    broker: bool,
    /// Longest wait in all (500ms, 5s)
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "2s")]
    timeout: Duration,
}

/// Checks, and prints the line.
pub fn main(args: &CheckArgs) -> Result<ExitCode> {
    let places = Places::of_environment();
    let (line, code) = match look(&places, args) {
        Err(why) => (format!("failed: {why}"), 1),
        Ok((fine, troubles)) => match troubles.split_first() {
            None => (format!("ok: {fine}"), 0),
            Some((first, [])) => (format!("trouble: {first}"), TROUBLE),
            Some((first, more)) => {
                let more = format!("and {} more, see weft status", more.len());
                (format!("trouble: {first} ({more})"), TROUBLE)
            }
        },
    };
    text::print(&line);
    Ok(ExitCode::from(code))
}

/// A line about the parts that work, and lines about trouble. An error is a line about a part that
/// does not work.
fn look(places: &Places, args: &CheckArgs) -> Result<(String, Vec<String>), String> {
    // The broker and the driver's libraries are the two that may not answer.
    let begin = Instant::now();
    let status = match admin::ask_within(places, &AdminQuestion::Status, args.timeout) {
        Ok(Answer::Status(status)) => status,
        Ok(_) => return Err("the broker's answer does not fit the question: run weft stop".to_string()),
        Err(error) if error.is_nobody() => return Err(format!("{error}; weft run starts one")),
        Err(error) => return Err(error.to_string()),
    };
    let broker = &status.broker;
    if broker.protocol != VERSION {
        let (pid, theirs) = (broker.pid, broker.protocol);
        return Err(format!(
            "broker {pid} uses protocol {theirs}, this weft {VERSION}: run weft broker --replace"
        ));
    }
    let jobs = text::count(status.clients.len() as u64, "job", "jobs");
    let fine = format!("broker {} answers, {jobs}", broker.pid);
    if args.broker {
        return Ok((fine, Vec::new()));
    }
    let mut rows = Vec::new();
    let driver = device::found(&mut rows);
    let left = args.timeout.saturating_sub(begin.elapsed());
    interception::rows(places, driver.as_ref(), false, left, &mut rows);
    match rows.iter().find(|row| row.verdict == RowVerdict::Fail) {
        Some(row) => Err(format!("{}: {}; see weft doctor", row.what, row.found)),
        None => {
            let asked = status.warnings.iter().filter(|warning| is_asked_for(warning));
            let parts = [format!("{fine}, interception works")]
                .into_iter()
                .chain(status::of_jobs(asked));
            Ok((parts.collect::<Vec<_>>().join("; "), troubles(&status)))
        }
    }
}

/// A line for each trouble.
fn troubles(status: &Status) -> Vec<String> {
    let harm = || status.warnings.iter().filter(|warning| is_harm(warning));
    let of_devices = harm().filter(|warning| warning.client.is_none());
    let mut lines: Vec<String> = of_devices.map(|warning| warning.text.clone()).collect();
    lines.extend(status::of_jobs(harm()));
    let mps = machine::own_mps(&status.broker.mps);
    let mps = mps.filter(|row| row.verdict == RowVerdict::Warn);
    lines.extend(mps.map(|row: ReportRow| row.found));
    lines.extend(status::past_weft(status));
    lines
}

/// Whether a job lacks its protection now. The other kinds warn of possible harm, and are normal if
/// jobs have no profile or the GPU takes turns.
fn is_harm(warning: &Warning) -> bool {
    match warning.kind {
        WarningKind::WrongProfile
        | WarningKind::OtherBroker
        | WarningKind::ForcedLaunches
        | WarningKind::OverSlowdown => true,
        WarningKind::LongKernels
        | WarningKind::NoProfile
        | WarningKind::SamePriority
        | WarningKind::BackgroundNoProfile
        | WarningKind::Outranked
        | WarningKind::WantedLoss
        | WarningKind::PartMissed
        | WarningKind::NoMps => false,
    }
}

/// Whether it follows from the priorities or parts that the jobs asked for.
fn is_asked_for(warning: &Warning) -> bool {
    use WarningKind::{Outranked, PartMissed, WantedLoss};
    matches!(warning.kind, Outranked | WantedLoss | PartMissed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::status::BrokerStatus;

    #[test]
    fn launches_that_the_priorities_force_are_no_trouble() {
        let of = |kind| Status {
            schema: 1,
            broker: BrokerStatus::default(),
            clients: Vec::new(),
            ended: Vec::new(),
            warnings: vec![Warning {
                kind,
                client: Some(1),
                device: None,
                text: "train.py: 3 launches".to_string(),
            }],
        };
        for kind in [WarningKind::Outranked, WarningKind::WantedLoss, WarningKind::PartMissed] {
            let status = of(kind);
            assert_eq!(troubles(&status), Vec::<String>::new());
            assert!(is_asked_for(&status.warnings[0]));
        }
        assert_eq!(troubles(&of(WarningKind::ForcedLaunches)), ["train.py: 3 launches"]);
    }
}
