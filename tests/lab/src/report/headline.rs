//! Rules side by side over several kinds of cases: requests that come on their own first, closed
//! loops beside them; and on hosts of several speeds.
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::{SeedFigures, Summary, or_none, packers};
use crate::pairs::DEVICES;
use crate::rule::Rule;

/// Kinds beside each other, and what they are called.
const COLUMNS: [(&str, &str); 4] = [
    ("poisson", "requests on their own"),
    ("bursts", "bursts of four"),
    ("pair", "closed loop"),
    ("table", "closed loop, one partner each"),
];

/// Summaries of one column.
struct Column<'a> {
    name: String,
    summaries: Vec<&'a Summary>,
}

/// Rules over kinds of cases.
pub(super) fn section(out: &mut String, summaries: &[Summary]) {
    let host = summaries.iter().find(|summary| summary.kind != "hosts");
    let Some(host) = host.map(|summary| summary.host_time) else {
        return;
    };
    let tables = tables(|device| {
        COLUMNS
            .map(|(kind, name)| Column {
                name: name.to_string(),
                summaries: summaries
                    .iter()
                    .filter(|one| (one.device, one.kind) == (device, kind) && one.host_time == host)
                    .collect(),
            })
            .into()
    });
    if tables.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>Requests on their own, and closed loops</h2><p>Services are used by others, so their requests come at random; that is the first column. In a closed loop the next request comes 4 ms after the last \
         answer. Latencies over alone, <b>batch</b>: the batch jobs' work over alone, <b>of bound</b>: over what the device's time allows at no added latency. The last two lines: that bound itself; and of what a \
         packer fills that knows everything in advance and may never let a kernel outlast a gap, the part that weft fills.</p>{tables}"
    );
}

/// Rules over the speed of hosts.
pub(super) fn hosts(out: &mut String, summaries: &[Summary]) {
    let mut speeds: Vec<f64> = summaries
        .iter()
        .filter(|one| one.kind == "hosts")
        .map(|one| one.host_time)
        .collect();
    speeds.sort_by(|one, other| other.total_cmp(one));
    speeds.dedup();
    let tables = tables(|device| {
        let of = |speed: &f64| Column {
            name: format!("hosts x{speed}"),
            summaries: summaries
                .iter()
                .filter(|one| (one.device, one.kind, one.host_time) == (device, "hosts", *speed))
                .collect(),
        };
        speeds.iter().map(of).collect()
    });
    if !tables.is_empty() {
        let _ = writeln!(
            out,
            "<h2>Faster hosts</h2><p>{}</p>{tables}",
            crate::pairs::describe("hosts")
        );
    }
}

fn tables<'a>(columns: impl Fn(&str) -> Vec<Column<'a>>) -> String {
    let mut out = String::new();
    for device in DEVICES.map(|(device, _)| device) {
        let mut columns = columns(device);
        columns.retain(|column| !column.summaries.is_empty());
        if !columns.is_empty() {
            table(&mut out, device, &columns);
        }
    }
    out
}

fn table(out: &mut String, device: &str, columns: &[Column<'_>]) {
    let mut rules: Vec<&str> = Vec::new();
    for summary in columns.iter().flat_map(|column| &column.summaries) {
        // Those with their parameter swept are the frontier's.
        let is_usual = Rule::ALL.iter().any(|rule| rule.to_string() == summary.rule);
        if is_usual && !rules.contains(&summary.rule.as_str()) {
            rules.push(&summary.rule);
        }
    }
    let _ = write!(out, "<h3>{device}</h3><table><tr><th>policy</th>");
    for column in columns {
        let cases = column.summaries.iter().map(|one| one.cases).max().unwrap_or(0);
        let _ = write!(out, "<th colspan=4>{}, {cases} cases</th>", column.name);
    }
    out.push_str("</tr><tr><th></th>");
    for _ in columns {
        out.push_str("<th>mean</th><th>p99</th><th>batch</th><th>of bound</th>");
    }
    out.push_str("</tr>\n");
    for rule in rules {
        let _ = write!(out, "<tr><td>{rule}</td>");
        for column in columns {
            match column.summaries.iter().find(|one| one.rule == rule) {
                Some(one) => cells(out, one),
                None => out.push_str("<td></td><td></td><td></td><td></td>"),
            }
        }
        out.push_str("</tr>\n");
    }
    let mut last = |name: &str, value: &dyn Fn(&Summary) -> String| {
        let _ = write!(out, "<tr><td>{name}</td>");
        for column in columns {
            let weft = column.summaries.iter().find(|one| one.rule == "weft");
            let said = weft.or(column.summaries.first()).map(|one| value(one));
            let _ = write!(out, "<td></td><td></td><td>{}</td><td></td>", said.unwrap_or_default());
        }
        out.push_str("</tr>\n");
    };
    last("<i>device's time allows</i>", &|one| or_none(one.bound));
    last("<i>packer's work that weft does</i>", &|one| packers(one.efficiency));
    out.push_str("</table>\n");
}

fn cells(out: &mut String, one: &Summary) {
    let SeedFigures { slowdown, p99, batch } = match &one.seeds {
        Some(seeds) => seeds,
        None => {
            let _ = write!(
                out,
                "<td>{:.3}</td><td>{:.3}</td><td>{:.3}</td><td>{}</td>",
                one.slowdown,
                one.p99,
                one.batch,
                or_none(one.share)
            );
            return;
        }
    };
    for over in [slowdown, p99, batch] {
        let _ = write!(
            out,
            "<td class=n title=\"by seed: {}\">{:.3} &plusmn; {:.3}</td>",
            over.each(),
            over.mean,
            over.half_width
        );
    }
    let _ = write!(out, "<td>{}</td>", or_none(one.share));
}
