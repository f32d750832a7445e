// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples as text: OpenMetrics 1.0.0, and Prometheus' text format 0.0.4.
//!
//! This is weft's own code: the official library `prometheus-client` writes only the first format.
//! Differences of the formats:
//!
//! | | OpenMetrics | 0.0.4 |
//! |---|---|---|
//! | family of a counter | without `_total` | with `_total` |
//! | family of an info | without `_info` | with `_info`, a gauge |
//! | unit, end of the text | `# UNIT`, `# EOF` | neither |
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::family::{FAMILIES, MetricKind};
use super::page::MetricsPage;

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
}

impl MetricsFormat {
    /// The format's media type.
    pub fn media_type(self) -> &'static str {
        match self {
            MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            MetricsFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The format that an `Accept` header prefers: OpenMetrics only if the header names it.
pub(super) fn format(accept: &str) -> MetricsFormat {
    let (mut open, mut plain) = (0.0, 0.0);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut quality, mut known) = (1.0, true);
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key.trim() {
                "q" => quality = value.trim().parse().unwrap_or(0.0),
                "version" => known = matches!(value.trim(), "1.0.0" | "0.0.1" | "0.0.4"),
                _ => {}
            }
        }
        let best: &mut f64 = match media.as_str() {
            "application/openmetrics-text" => &mut open,
            "text/plain" | "text/*" | "*/*" => &mut plain,
            _ => continue,
        };
        if known {
            *best = best.max(quality);
        }
    }
    match open > 0.0 && open >= plain {
        true => MetricsFormat::OpenMetrics,
        false => MetricsFormat::Prometheus,
    }
}

/// The page as text. Families without samples have their metadata too.
pub(super) fn text(page: &MetricsPage, format: MetricsFormat) -> String {
    let open = format == MetricsFormat::OpenMetrics;
    let mut text = String::new();
    for family in FAMILIES {
        let sample_name = family.sample();
        let name = if open { family.name } else { sample_name.as_str() };
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::Info if open => "info",
            MetricKind::Gauge | MetricKind::Info => "gauge",
        };
        // A write to a string does not fail.
        let _ = writeln!(text, "# TYPE {name} {kind}");
        if open && !family.unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {}", family.unit);
        }
        let _ = writeln!(text, "# HELP {name} {}", family.help);
        for sample in page.samples(family) {
            let _ = match sample.labels.is_empty() {
                true => writeln!(text, "{sample_name} {}", sample.value),
                false => writeln!(text, "{sample_name}{{{}}} {}", sample.labels, sample.value),
            };
        }
    }
    if open {
        text.push_str("# EOF\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::page::{MetricsAudience, PageMaker};
    use super::*;
    use weft_api::status::{BrokerStatus, Status};

    fn written(format: MetricsFormat) -> String {
        let status = Status {
            schema: weft_api::status::SCHEMA,
            broker: BrokerStatus {
                version: "1".to_string(),
                policy: "weft".to_string(),
                goodbyes: 3,
                uptime_s: 0.5,
                ..BrokerStatus::default()
            },
            clients: Vec::new(),
            ended: Vec::new(),
            warnings: Vec::new(),
        };
        text(&PageMaker::default().page(&status, MetricsAudience::Owner), format)
    }

    #[test]
    fn the_formats_differ_where_they_must() {
        let (open, plain) = (written(MetricsFormat::OpenMetrics), written(MetricsFormat::Prometheus));
        for line in [
            "# TYPE weft_broker info",
            "# TYPE weft_jobs_ended counter",
            "# UNIT weft_broker_uptime_seconds seconds",
        ] {
            assert!(open.lines().any(|one| one == line), "{line}\n{open}");
            assert!(!plain.lines().any(|one| one == line), "{line}\n{plain}");
        }
        for line in ["# TYPE weft_broker_info gauge", "# TYPE weft_jobs_ended_total counter"] {
            assert!(plain.lines().any(|one| one == line), "{line}\n{plain}");
        }
        for line in [
            "weft_broker_info{version=\"1\",policy=\"weft\",shared=\"false\",node=\"\"} 1",
            "weft_jobs_ended_total{ending=\"goodbye\"} 3",
            "weft_broker_uptime_seconds 0.5",
        ] {
            for text in [&open, &plain] {
                assert!(text.lines().any(|one| one == line), "{line}\n{text}");
            }
        }
        assert!(open.ends_with("# EOF\n") && !plain.contains("EOF"));
        // Each family has its metadata once.
        assert_eq!(open.matches("# TYPE ").count(), FAMILIES.len());
    }

    #[test]
    fn openmetrics_goes_to_those_who_ask_for_it() {
        use MetricsFormat::{OpenMetrics, Prometheus};
        let scraper = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                       text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, wanted) in [
            (scraper, OpenMetrics),
            ("application/openmetrics-text", OpenMetrics),
            (
                "Application/OpenMetrics-Text; version=1.0.0; q=0.5, text/plain; q=0.4",
                OpenMetrics,
            ),
            ("", Prometheus),
            ("*/*", Prometheus),
            ("text/html", Prometheus),
            ("text/plain, application/openmetrics-text;q=0.5", Prometheus),
            ("application/openmetrics-text;q=0", Prometheus),
            ("application/openmetrics-text;version=9.0.0", Prometheus),
            ("application/openmetrics-text;q=much", Prometheus),
        ] {
            assert_eq!(format(accept), wanted, "{accept}");
        }
    }
}
