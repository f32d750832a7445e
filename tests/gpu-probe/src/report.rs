// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results: JSON lines on stdout, each flushed, so that an interrupted run leaves what it had.
//!
//! ```text
//! {"probe":"copy","name":"to_device","value":22200.0,"unit":"bytes/us","n":20,"median":22200.0,"p10":22150.0,"p90":22210.0,"max":22211.0,"clock":"device","bytes":67108864}
//! {"probe":"signatures","name":"cuMemDiscardBatchAsync","fact":true}
//! {"probe":"cupti","name":"traced","skipped":"no libcupti.so"}
//! {"probe":"fault","error":"cuMemAllocManaged: CUDA_ERROR_NOT_SUPPORTED (801)"}
//! ```
//!
//! `clock` is the clock of a time: the device's (events, the device's timer) or the host's.
#![forbid(unsafe_code)]

use std::io::Write;

use serde_json::{Value, json};

/// Measurements of one value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Keeps the finite ones.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Samples {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        Samples(values)
    }

    /// Number of measurements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The measured value nearest to a quantile from 0 to 1; 0 without any.
    pub fn quantile(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let at = (share * last as f64).round() as usize;
        self.0.get(at.min(last)).copied().unwrap_or(0.0)
    }

    /// The median.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The samples with `change` applied to each; it may reverse their order.
    pub fn map(&self, change: impl Fn(f64) -> f64) -> Samples {
        Samples::new(self.0.iter().map(|value| change(*value)))
    }
}

/// Clock of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The device's: events or its timer.
    Device,
    /// The host's.
    Host,
    /// None: a count, or a ratio of counts.
    None,
}

/// Writes the lines of one probe.
#[derive(Debug, Clone)]
pub struct Report {
    probe: String,
    simulated: bool,
}

/// A line under construction.
#[must_use = "a line is printed by `print`"]
pub struct ReportLine(Vec<(String, Value)>);

impl ReportLine {
    /// Adds a field.
    pub fn and(mut self, key: &str, value: impl Into<Value>) -> ReportLine {
        self.0.push((key.to_owned(), value.into()));
        self
    }

    /// The fields in the order of their addition: people read the probe's name first.
    fn text(&self) -> String {
        let fields: Vec<String> = self
            .0
            .iter()
            .map(|(key, value)| format!("{}:{value}", json!(key)))
            .collect();
        format!("{{{}}}", fields.join(","))
    }

    /// Prints the line.
    pub fn print(self) {
        let line = format!("{}\n", self.text());
        let mut out = std::io::stdout().lock();
        // The reader is gone: the next line will fail too, and the parent ends the process.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}

impl Report {
    /// A report of a probe.
    pub fn new(probe: &str, simulated: bool) -> Report {
        Report {
            probe: probe.to_owned(),
            simulated,
        }
    }

    fn line(&self) -> ReportLine {
        ReportLine(vec![("probe".to_owned(), json!(self.probe))])
    }

    /// A value measured many times.
    pub fn samples(&self, name: &str, unit: &str, clock: Clock, samples: &Samples) -> ReportLine {
        let rounded = |share: f64| (samples.quantile(share) * 1000.0).round() / 1000.0;
        self.number(name, unit, clock, rounded(0.5))
            .and("n", samples.len())
            .and("median", rounded(0.5))
            .and("p10", rounded(0.1))
            .and("p90", rounded(0.9))
            .and("max", rounded(1.0))
    }

    /// A single value.
    pub fn value(&self, name: &str, unit: &str, clock: Clock, value: impl Into<Value>) -> ReportLine {
        self.number(name, unit, clock, value).and("n", 1)
    }

    fn number(&self, name: &str, unit: &str, clock: Clock, value: impl Into<Value>) -> ReportLine {
        let line = self.line().and("name", name).and("value", value).and("unit", unit);
        let line = match clock {
            Clock::Device => line.and("clock", "device"),
            Clock::Host => line.and("clock", "host"),
            Clock::None => line,
        };
        if self.simulated {
            line.and("simulated", true)
        } else {
            line
        }
    }

    /// A yes, a no, or a text: no figure, so not under `value`.
    pub fn fact(&self, name: &str, fact: impl Into<Value>) -> ReportLine {
        self.line().and("name", name).and("fact", fact)
    }

    /// Facts about the whole run.
    pub fn facts(&self) -> ReportLine {
        self.line()
    }

    /// The probe did not apply.
    pub fn skipped(&self, why: &str) {
        self.line().and("skipped", why).print();
    }

    /// A part of the probe did not apply.
    pub fn skipped_part(&self, name: &str, why: &str) {
        self.line().and("name", name).and("skipped", why).print();
    }

    /// The probe failed.
    pub fn error(&self, what: &str) {
        self.line().and("error", what).print();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_values() {
        let samples = Samples::new([5.0, 1.0, f64::NAN, 3.0]);
        assert_eq!(samples.len(), 3);
        assert_eq!(samples.median(), 3.0);
        assert_eq!(samples.quantile(0.0), 1.0);
        assert_eq!(samples.quantile(1.0), 5.0);
        assert_eq!(Samples::default().median(), 0.0);
        assert_eq!(samples.map(|value| 1.0 / value).quantile(0.0), 0.2);
    }

    #[test]
    fn a_line_has_what_the_fold_needs() {
        let line = Report::new("copy", true).samples("x", "ns", Clock::Device, &Samples::new([1.0, 2.0, 4.0]));
        let line: Value = serde_json::from_str(&line.text()).unwrap();
        assert_eq!(line["value"], 2.0);
        assert_eq!(line["unit"], "ns");
        assert_eq!(line["n"], 3);
        assert_eq!(line["simulated"], true);
        assert_eq!(line["clock"], "device");
    }
}
