//! What users are promised: a slowdown, an SLO, the time of a token beside finetuning.
#![forbid(unsafe_code)]

use std::fmt::Write;

use crate::pairs::{CaseRow, LOADS, describe};
use crate::seeds::geometric;

/// The section.
pub(super) fn section(out: &mut String, rows: &[CaseRow]) {
    dial(out, &of(rows, "dial"));
    slo(out, &of(rows, "slo"));
    llm(out, &of(rows, "llm"));
}

fn of<'a>(rows: &'a [CaseRow], kind: &str) -> Vec<&'a CaseRow> {
    rows.iter().filter(|row| row.kind == kind).collect()
}

/// Rows by device and rule, in their order.
fn groups<'a>(rows: &[&'a CaseRow]) -> Vec<(&'static str, &'a str, Vec<&'a CaseRow>)> {
    let mut out: Vec<(&'static str, &str, Vec<&CaseRow>)> = Vec::new();
    for row in rows {
        let rule = row.figures.rule.as_str();
        match out.iter_mut().find(|group| (group.0, group.1) == (row.device, rule)) {
            Some(group) => group.2.push(row),
            None => out.push((row.device, rule, vec![row])),
        }
    }
    out
}

fn over(rows: &[&CaseRow], value: impl Fn(&CaseRow) -> f64) -> f64 {
    geometric(rows.iter().map(|row| value(row)))
}

fn head(out: &mut String, title: &str, kind: &str, columns: &[&str]) {
    let _ = write!(out, "<h2>{title}</h2><p>{}</p><table><tr>", describe(kind));
    for column in columns {
        let _ = write!(out, "<th>{column}</th>");
    }
    out.push_str("</tr>\n");
}

fn line(out: &mut String, cells: &[String]) {
    out.push_str("<tr>");
    for cell in cells {
        let _ = write!(out, "<td>{cell}</td>");
    }
    out.push_str("</tr>\n");
}

fn dial(out: &mut String, rows: &[&CaseRow]) {
    if rows.is_empty() {
        return;
    }
    let columns = [
        "device",
        "--slowdown",
        "cases",
        "mean",
        "worst mean",
        "cases within it",
        "p99",
        "batch",
    ];
    head(out, "A slowdown that is allowed", "dial", &columns);
    for (device, rule, rows) in groups(rows) {
        let percent = rule
            .split(' ')
            .nth(1)
            .and_then(|percent| percent.strip_suffix('%')?.parse().ok());
        let percent: f64 = percent.unwrap_or(1.0);
        let within = rows
            .iter()
            .filter(|row| row.figures.slowdown() <= 1.0 + percent / 100.0);
        let cells = [
            device.to_string(),
            format!("{percent} %{}", if rule == "weft" { ", the default" } else { "" }),
            rows.len().to_string(),
            format!("{:.3}", over(&rows, |row| row.figures.slowdown())),
            format!(
                "{:.3}",
                rows.iter().map(|row| row.figures.slowdown()).fold(0.0, f64::max)
            ),
            within.count().to_string(),
            format!("{:.3}", over(&rows, |row| row.figures.slowdown_p99())),
            format!("{:.3}", over(&rows, |row| row.figures.batch_sum)),
        ];
        line(out, &cells);
    }
    out.push_str("</table>\n");
}

fn slo(out: &mut String, rows: &[&CaseRow]) {
    if rows.is_empty() {
        return;
    }
    let columns = [
        "device",
        "load",
        "policy",
        "cases",
        "attained",
        "alone",
        "kept of those",
        "mean",
        "p99",
        "batch",
    ];
    head(out, "An SLO that is kept", "slo", &columns);
    for load in LOADS {
        let suffix = format!(" at {load} %");
        let rows: Vec<&CaseRow> = rows
            .iter()
            .filter(|row| row.service.ends_with(&suffix))
            .copied()
            .collect();
        for (device, rule, rows) in groups(&rows) {
            let slos = || rows.iter().filter_map(|row| row.figures.slo);
            let mean = |value: fn(&crate::promise::SloFigures) -> f64| {
                slos().map(|slo| value(&slo)).sum::<f64>() / slos().count().max(1) as f64
            };
            let cells = [
                device.to_string(),
                format!("{load} %"),
                rule.to_string(),
                rows.len().to_string(),
                format!("{:.3} %", 100.0 * mean(|slo| slo.attained)),
                format!("{:.3} %", 100.0 * mean(|slo| slo.alone)),
                format!("{:.3} %", 100.0 * mean(|slo| slo.kept)),
                format!("{:.3}", over(&rows, |row| row.figures.slowdown())),
                format!("{:.3}", over(&rows, |row| row.figures.slowdown_p99())),
                format!("{:.3}", over(&rows, |row| row.figures.batch_sum)),
            ];
            line(out, &cells);
        }
    }
    out.push_str("</table>\n");
}

fn llm(out: &mut String, rows: &[&CaseRow]) {
    if rows.is_empty() {
        return;
    }
    let columns = [
        "device",
        "policy",
        "cases",
        "TPOT",
        "its p99",
        "mean of a request",
        "finetuning",
        "of time slicing's",
    ];
    head(out, "A language model beside finetuning", "llm", &columns);
    let groups = groups(rows);
    let sliced = groups
        .iter()
        .find(|group| (group.0, group.1) == ("time-sliced", "default"));
    let sliced = sliced.map_or(f64::NAN, |group| over(&group.2, |row| row.figures.batch_sum));
    for (device, rule, rows) in &groups {
        let tokens = |value: fn(&crate::promise::TokenFigures) -> f64| {
            geometric(
                rows.iter()
                    .filter_map(|row| row.figures.tokens)
                    .map(|tokens| value(&tokens)),
            )
        };
        let batch = over(rows, |row| row.figures.batch_sum);
        let cells = [
            device.to_string(),
            rule.to_string(),
            rows.len().to_string(),
            format!("{:.3}", tokens(|tokens| tokens.slowdown())),
            format!("{:.3}", tokens(|tokens| tokens.with.p99 / tokens.alone.p99.max(1.0))),
            format!("{:.3}", over(rows, |row| row.figures.slowdown())),
            format!("{batch:.3}"),
            format!("{:.2}", batch / sliced),
        ];
        line(out, &cells);
    }
    out.push_str("</table>\n");
}
