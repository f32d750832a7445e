//! `weft doctor`: the machine's state row by row, with advice where something is missing.
//!
//! It changes nothing (starts no broker, makes no folder), always ends, and exits with 0 exactly if
//! no row failed.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use weft_daemon::places::Places;

pub(super) mod device;
mod interception;
mod machine;

/// Say what was found on this machine, and whether interception really happens
#[derive(Debug, clap::Args)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Verdict of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but deserves a look.
    Warn,
    /// weft cannot work.
    Fail,
}

/// One row of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What was checked.
    pub what: String,
    /// Verdict.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// Advice, if there is something to do.
    pub advice: Option<String>,
}

impl Row {
    fn ok(what: &str, found: impl Into<String>) -> Row {
        Row {
            what: what.to_string(),
            verdict: Verdict::Ok,
            found: found.into(),
            advice: None,
        }
    }

    fn warn(what: &str, found: impl Into<String>, advice: impl Into<String>) -> Row {
        Row {
            verdict: Verdict::Warn,
            advice: Some(advice.into()),
            ..Row::ok(what, found)
        }
    }

    fn fail(what: &str, found: impl Into<String>, advice: impl Into<String>) -> Row {
        Row {
            verdict: Verdict::Fail,
            ..Row::warn(what, found, advice)
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    healthy: bool,
    rows: Vec<Row>,
}

/// Looks and tells.
pub fn main(args: Args) -> Result<ExitCode> {
    let places = Places::of_environment();
    let mut rows = Vec::new();
    let driver = device::rows(&mut rows);
    interception::rows(&places, driver.as_ref(), &mut rows);
    machine::rows(&places, &mut rows);
    let healthy = rows.iter().all(|row| row.verdict != Verdict::Fail);
    let text = match args.json {
        true => serde_json::to_string_pretty(&Report { healthy, rows })?,
        false => render(&rows),
    };
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn render(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for row in rows {
        let mark = match row.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        lines.push(format!("{mark}  {:<width$}  {}", row.what, row.found));
        if let Some(advice) = &row.advice {
            lines.push(format!("{:width$}        -> {advice}", ""));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_to_do() {
        let page = render(&[Row::ok("cores", "8"), Row::fail("driver", "none", "install it")]);
        assert_eq!(page, "ok    cores   8\nFAIL  driver  none\n              -> install it");
    }
}
