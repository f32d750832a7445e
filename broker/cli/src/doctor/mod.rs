//! `weft doctor`: the machine's state row by row, with advice.
//!
//! It changes nothing, always ends, and exits with 0 exactly if no row failed.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use weft_daemon::places::Places;

mod device;
mod interception;
mod machine;
mod row;

use self::row::{ReportRow, RowVerdict, render};

/// Say what was found on this machine, and whether interception really happens
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    healthy: bool,
    rows: Vec<ReportRow>,
}

/// Looks and tells.
pub fn main(args: DoctorArgs) -> Result<ExitCode> {
    let places = Places::of_environment();
    let mut rows = Vec::new();
    let driver = device::rows(&mut rows);
    interception::rows(&places, driver.as_ref(), &mut rows);
    machine::rows(&places, &mut rows);
    let healthy = rows.iter().all(|row| row.verdict != RowVerdict::Fail);
    let text = match args.json {
        true => serde_json::to_string_pretty(&DoctorReport { healthy, rows })?,
        false => render(&rows),
    };
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
