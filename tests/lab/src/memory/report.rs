//! The study for people: a table a link, the slice, and a plot.
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::contender::Contender;
use super::study::{Study, StudyRow};
use crate::report::svg::{Plot, Series};

/// The figures as text.
pub fn text(study: &Study) -> String {
    let mut text = String::new();
    if let Some(fit) = &study.fit {
        let _ = writeln!(
            text,
            "The slice: {} ms, where the model of MSched comes nearest to its published shares of what fits:",
            fit.slice_ms
        );
        for (share, published, modelled) in &fit.points {
            let _ = writeln!(
                text,
                "  {share} %: published {:.1} %, modelled {:.1} %",
                published * 100.0,
                modelled * 100.0
            );
        }
    } else {
        let _ = writeln!(text, "The slice: {} ms, as asked for.", study.slice_ms);
    }
    for duplex in [true, false] {
        let link = if duplex {
            "both ways at once"
        } else {
            "one way at a time"
        };
        let _ = writeln!(
            text,
            "\nPer cent of the throughput when all fits; the link carries {link}:"
        );
        table(&mut text, study, duplex);
    }
    adapted(&mut text, study);
    text
}

fn table(text: &mut String, study: &Study, duplex: bool) {
    let mut columns: Vec<(&str, u64)> = study.rows.iter().map(|row| (row.workload, row.share)).collect();
    let order = |name: &str| super::workload::NAMES.iter().position(|other| *other == name);
    columns.sort_by_key(|(name, share)| (order(name), *share));
    columns.dedup();
    let _ = write!(text, "{:<20}", "");
    for (workload, share) in &columns {
        let _ = write!(text, " {:>12}", format!("{workload} {share}"));
    }
    text.push('\n');
    for contender in super::contender::ALL {
        let values: Vec<Option<f64>> = columns
            .iter()
            .map(|(workload, share)| study.mean(&[workload], *share, duplex, contender, |figures| figures.efficiency))
            .collect();
        if values.iter().all(Option::is_none) {
            continue;
        }
        let _ = write!(text, "{:<20}", contender.name());
        for value in values {
            let shown = value.map_or("-".to_owned(), |value| format!("{:.2}", value * 100.0));
            let _ = write!(text, " {shown:>12}");
        }
        text.push('\n');
    }
}

fn adapted(text: &mut String, study: &Study) {
    let mut rows = study.rows.iter().filter(|row| row.adaptive.is_some()).peekable();
    if rows.peek().is_none() {
        return;
    }
    text.push_str("\nweft with slices that adapt, several decoders:\n");
    text.push_str("  share  link     bound on being away   efficiency   longest away   mean turn\n");
    for row in rows {
        let Some((_, away)) = row.adaptive else { continue };
        let _ = writeln!(
            text,
            "  {:>4} %  {:<8} {:>12} ms   {:>9.1} %  {:>9.0} ms  {:>8.0} ms",
            row.share,
            if row.duplex { "duplex" } else { "one way" },
            away,
            row.figures.efficiency * 100.0,
            row.figures.away_ms,
            row.figures.turn_ms
        );
    }
}

/// Efficiency against the slice, as one SVG a share.
pub fn plots(study: &Study) -> Vec<(u64, String)> {
    [150, 200, 300].map(|share| (share, plot(study, share))).to_vec()
}

fn plot(study: &Study, share: u64) -> String {
    let kinds: [(&str, Contender, bool); 4] = [
        ("weft, duplex", Contender::Weft, true),
        ("weft, one way", Contender::Weft, false),
        ("MSched (model)", Contender::Msched, true),
        ("stock, in turns", Contender::StockTurns, true),
    ];
    let mut series: Vec<Series> = kinds
        .map(|(name, contender, duplex)| {
            let of = |row: &&StudyRow| row.share == share && row.contender == contender && row.duplex == duplex;
            let point = |row: &StudyRow| (row.slice_ms, row.figures.efficiency * 100.0);
            Series {
                name: name.to_owned(),
                points: study.curves.iter().filter(of).map(point).collect(),
                line: true,
            }
        })
        .into();
    let published = super::study::PUBLISHED.iter().find(|(of, _)| *of == share);
    series.extend(published.map(|(_, efficiency)| Series {
        name: "MSched, published".to_owned(),
        points: vec![(study.slice_ms, efficiency * 100.0)],
        line: false,
    }));
    Plot {
        title: format!("Several decoders, {share} % of the device"),
        x: "slice, ms".to_owned(),
        y: "% of the throughput when all fits".to_owned(),
        log_x: true,
        series,
    }
    .draw()
}
