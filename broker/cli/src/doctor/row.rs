// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of the report.
#![forbid(unsafe_code)]

use serde::Serialize;

/// Verdict of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RowVerdict {
    /// In order.
    Ok,
    /// Works, but needs attention.
    Warn,
    /// weft cannot work.
    Fail,
}

/// One row of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportRow {
    /// Name of the check.
    pub what: String,
    /// Verdict.
    pub verdict: RowVerdict,
    /// Finding.
    pub found: String,
    /// Advice, unless nothing needs to be done.
    pub advice: Option<String>,
}

impl ReportRow {
    /// A row that is in order.
    pub fn ok(what: &str, found: impl Into<String>) -> ReportRow {
        ReportRow {
            what: what.to_string(),
            verdict: RowVerdict::Ok,
            found: found.into(),
            advice: None,
        }
    }

    /// A row that needs attention.
    pub fn warn(what: &str, found: impl Into<String>, advice: impl Into<String>) -> ReportRow {
        ReportRow {
            verdict: RowVerdict::Warn,
            advice: Some(advice.into()),
            ..ReportRow::ok(what, found)
        }
    }

    /// A row for a fault that prevents weft from working.
    pub fn fail(what: &str, found: impl Into<String>, advice: impl Into<String>) -> ReportRow {
        ReportRow {
            verdict: RowVerdict::Fail,
            ..ReportRow::warn(what, found, advice)
        }
    }
}

/// The report for people.
pub fn render(rows: &[ReportRow]) -> String {
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for row in rows {
        let mark = match row.verdict {
            RowVerdict::Ok => "ok  ",
            RowVerdict::Warn => "warn",
            RowVerdict::Fail => "FAIL",
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
        let page = render(&[
            ReportRow::ok("cores", "8"),
            ReportRow::fail("driver", "none", "install it"),
        ]);
        assert_eq!(page, "ok    cores   8\nFAIL  driver  none\n              -> install it");
    }
}
