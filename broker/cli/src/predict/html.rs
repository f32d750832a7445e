// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a prediction in HTML, with the words of `show`. Pure.
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::super::report::{AxisScale, document, escape, legend};
use super::super::text;
use super::PredictAnswer;
use super::play::{FigureRange, LatencyFigures};
use super::show;

/// Style of this page, in addition to a report's.
const STYLE: &str = include_str!("style.css");

/// A column of the table: a figure of each way.
struct RangeColumn {
    title: String,
    /// CSS class.
    colour: &'static str,
    cells: Vec<Option<FigureRange>>,
}

/// The place of a figure on a linear scale.
type FigurePlace = fn(f64) -> f64;

/// The page.
pub(super) fn render(answer: &PredictAnswer) -> String {
    let jobs: Vec<&str> = answer.batch.iter().map(|job| job.name.as_str()).collect();
    let title = match jobs.is_empty() {
        true => format!("weft predict: {}", answer.service.name),
        false => format!("weft predict: {} and {}", answer.service.name, jobs.join(", ")),
    };
    let mut page = format!(
        "<body>\n<h1>{}</h1>\n<p class=\"soft\">Played in virtual time by weft {}. Nothing ran on a GPU.</p>\n",
        escape(&title),
        env!("CARGO_PKG_VERSION"),
    );
    facts(&mut page, &show::facts(answer));
    if !jobs.is_empty() {
        page.push_str("<h2>The jobs on one GPU, by way to share it</h2>\n");
        table(&mut page, answer);
        for note in show::notes(answer) {
            let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(&note));
        }
    }
    page.push_str("<h2>The service alone</h2>\n");
    time(&mut page, answer);
    facts(&mut page, &show::gaps(answer));
    page.push_str("<h2>Not known</h2>\n<ul>\n");
    for line in &answer.unknown {
        let _ = writeln!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul>\n</body>\n");
    document(&title, &format!("<style>\n{STYLE}</style>\n"), &page)
}

fn facts(page: &mut String, facts: &[(&str, String)]) {
    page.push_str("<table class=\"facts\">\n");
    for (name, text) in facts {
        let _ = writeln!(page, "<tr><th>{name}</th><td>{}</td></tr>", escape(text));
    }
    page.push_str("</table>\n");
}

/// The table, with each interval as a bar. The bars of one kind share a scale.
fn table(page: &mut String, answer: &PredictAnswer) {
    let ways = &answer.prediction.ways;
    let latency = |title: &str, pick: fn(&LatencyFigures<FigureRange>) -> FigureRange| RangeColumn {
        title: title.to_owned(),
        colour: "c0",
        cells: ways.iter().map(|way| way.latency.as_ref().map(pick)).collect(),
    };
    let latencies = [
        latency("mean", |of| of.mean),
        latency("p50", |of| of.p50),
        latency("p99", |of| of.p99),
    ];
    let batch = |(at, job): (usize, &super::PredictedJob)| RangeColumn {
        title: format!("speed of {}", job.name),
        colour: "c1",
        cells: ways.iter().map(|way| way.batch.get(at).copied().flatten()).collect(),
    };
    let batch: Vec<RangeColumn> = answer.batch.iter().enumerate().map(batch).collect();
    // A latency's place is by its logarithm: one way may be many times slower than the others.
    let kinds: [(&[RangeColumn], f64, FigurePlace); 2] = [(&latencies, 1.0, f64::ln), (&batch, 0.0, |part| part)];
    let scaled = kinds.iter().flat_map(|(columns, from, place)| {
        let all = || columns.iter().flat_map(|column| column.cells.iter().flatten());
        let low = all().map(|of| of.low).fold(*from, f64::min);
        let high = all().map(|of| of.high).fold(1.0, f64::max);
        let scale = AxisScale::new((place(low), place(high)), (0.0, 100.0));
        let at = move |value| scale.at(place(value));
        columns.iter().map(move |column| (column, [low, high], at))
    });
    let columns: Vec<_> = scaled.collect();
    page.push_str("<div class=\"scroll\"><table class=\"ranges\">\n<tr><th>sharing</th>");
    for (column, [low, high], _) in &columns {
        let title = escape(&column.title);
        let _ = write!(
            page,
            "<th>{title}<div class=\"ends\"><span>{low:.2}</span><span>{high:.2}</span></div></th>"
        );
    }
    page.push_str("</tr>\n");
    for (row, way) in ways.iter().enumerate() {
        let _ = write!(page, "<tr><td>{}</td>", escape(way.way));
        for (column, _, at) in &columns {
            let (title, colour) = (escape(&column.title), column.colour);
            let Some(of) = column.cells.get(row).copied().flatten() else {
                let _ = write!(page, "<td data-title=\"{title}\">-</td>");
                continue;
            };
            let (begin, point, end) = (at(of.low), at(of.point), at(of.high));
            let _ = write!(
                page,
                "<td data-title=\"{title}\"><b>{:.2}</b> <i>{:.2} to {:.2}</i><div class=\"track\">\
                 <span class=\"of {colour}\" style=\"left:{begin:.1}%;width:{:.1}%\"></span>\
                 <span class=\"at {colour}\" style=\"left:{point:.1}%\"></span></div></td>",
                of.point,
                of.low,
                of.high,
                end - begin
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}

/// The time of the solo run: kernels, and gaps by length.
fn time(page: &mut String, answer: &PredictAnswer) {
    let gaps = &answer.prediction.gaps;
    let idle = 1.0 - gaps.busy.point;
    let beyond = [
        1.0,
        gaps.beyond_100us.point,
        gaps.beyond_1ms.point,
        gaps.beyond_10ms.point,
        0.0,
    ];
    let mut parts = vec![("c0", "its kernels run".to_owned(), gaps.busy.point)];
    let lengths = [
        ("c5", "gaps up to 0.1 ms"),
        ("c4", "up to 1 ms"),
        ("c2", "up to 10 ms"),
        ("c1", "longer"),
    ];
    for ((colour, name), both) in lengths.into_iter().zip(beyond.windows(2)) {
        parts.push((colour, name.to_owned(), idle * (both[0] - both[1])));
    }
    let keys: Vec<(&str, String)> = parts
        .iter()
        .map(|(colour, name, part)| (*colour, format!("{name}: {}", text::percent(*part))))
        .collect();
    let keys: Vec<(&str, &str)> = keys.iter().map(|(colour, key)| (*colour, key.as_str())).collect();
    legend(page, &keys);
    page.push_str("<div class=\"parts\">");
    for (colour, _, part) in &parts {
        let _ = write!(
            page,
            "<span class=\"{colour}\" style=\"width:{:.2}%\"></span>",
            100.0 * part
        );
    }
    page.push_str("</div>\n");
}
