// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft doctor`: the machine's state row by row, with advice.
//!
//! Without a command to try, it changes nothing. It always ends, and exits with 0 if and only if no
//! row failed.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use weft_api::paths::Places;

use crate::probe_child::PROBE_TIMEOUT;
use crate::text;

pub mod check;
mod device;
mod interception;
mod job;
mod machine;
mod row;

use self::row::{ReportRow, RowVerdict, render};

/// Check this machine, and whether weft intercepts CUDA calls on it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Check whether this process is under weft, and if not, why
    #[arg(long, value_name = "PID", value_parser = text::whole::<u32>, conflicts_with = "command")]
    pid: Option<u32>,
    /// Check whether weft catches this command: it runs until it has launched something, for at
    /// most two minutes, and is then ended
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  weft doctor                               this machine
  weft doctor -- python serve.py            whether weft catches this job
  weft doctor --pid 4711                    whether a process is under weft";

#[derive(Debug, Serialize)]
struct DoctorReport {
    healthy: bool,
    rows: Vec<ReportRow>,
}

/// Runs the checks and prints the report.
pub fn main(args: DoctorArgs) -> Result<ExitCode> {
    let places = Places::of_environment();
    let mut rows = Vec::new();
    match args.pid {
        Some(pid) => job::process(&places, pid, &mut rows),
        None => {
            let driver = device::rows(&mut rows);
            interception::rows(&places, driver.as_ref(), true, PROBE_TIMEOUT, &mut rows);
            machine::rows(&places, &mut rows);
            job::command(&places, &args.command, &mut rows);
        }
    }
    let healthy = rows.iter().all(|row| row.verdict != RowVerdict::Fail);
    text::show(&DoctorReport { healthy, rows }, args.json, |report| {
        render(&report.rows)
    })?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
