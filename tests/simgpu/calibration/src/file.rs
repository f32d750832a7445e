// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes the files.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use crate::keys::{self, Key, keys};
use crate::{Calibration, CalibrationError, Value};

/// Begins of a source: the kinds of knowledge.
const KINDS: [&str; 5] = ["measured: ", "paper: ", "datasheet: ", "trace: ", "estimate: "];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    gpu: String,
    base: Option<String>,
    values: BTreeMap<String, ValueText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ValueText {
    value: Option<f64>,
    source: Option<String>,
    n: Option<u64>,
    p10: Option<f64>,
    p90: Option<f64>,
}

/// Reads and checks a file, all but its base.
pub(crate) fn read(text: &str, origin: &str) -> Result<Calibration, CalibrationError> {
    let malformed = |what: String| CalibrationError::Malformed {
        origin: origin.to_owned(),
        what,
    };
    let text: Text = toml::from_str(text).map_err(|error| malformed(one_line(&error)))?;
    let mut values = BTreeMap::new();
    for (name, text) in text.values {
        let key = keys::find(&name).map_err(malformed)?;
        let source = text
            .source
            .ok_or_else(|| malformed(format!("{name} has no source: say where it comes from (README.md)")))?;
        let value = text.value.ok_or_else(|| malformed(format!("{name} has no value")))?;
        let value = Value {
            value,
            source,
            n: text.n,
            p10: text.p10,
            p90: text.p90,
        };
        check(key, &value).map_err(malformed)?;
        values.insert(key.name.as_str(), value);
    }
    Ok(Calibration {
        gpu: text.gpu,
        base: text.base,
        values,
    })
}

/// TOML's errors draw a picture of the place; one line is enough.
fn one_line(error: &toml::de::Error) -> String {
    let mut text = error.message().replace('\n', " ");
    if let Some(span) = error.span() {
        let _ = write!(text, " (at byte {})", span.start);
    }
    text
}

/// Refuses a value that no file may hold.
pub(crate) fn check(key: &Key, value: &Value) -> Result<(), String> {
    let name = &key.name;
    let said = KINDS.iter().find_map(|kind| value.source.strip_prefix(kind));
    if said.is_none_or(|said| said.trim().is_empty()) {
        return Err(format!(
            "{name}: the source {:?} says nothing: it begins with one of {}, and goes on",
            value.source,
            KINDS.map(str::trim).join(" ")
        ));
    }
    let number = value.value;
    // From 2^53 on a float does not distinguish neighbouring whole numbers.
    if !number.is_finite() || !(0.0..=9_007_199_254_740_992.0).contains(&number) {
        return Err(format!("{name} = {number}: not a number from 0 up"));
    }
    if key.unit != "ratio" && number.fract() != 0.0 {
        return Err(format!("{name} = {number}: not a whole number of {}", key.unit));
    }
    if key.positive && number == 0.0 {
        return Err(format!("{name} = 0 makes no sense: leave it out where it is not known"));
    }
    Ok(())
}

/// A file's text.
pub(crate) fn write(calibration: &Calibration) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut text = format!("gpu = {}\n", quoted(&calibration.gpu));
    if let Some(base) = &calibration.base {
        let _ = writeln!(text, "base = {}", quoted(base));
    }
    text.push_str("\n[values]\n");
    for key in keys() {
        let Some(value) = calibration.own(&key.name) else {
            continue;
        };
        let _ = write!(
            text,
            "{} = {{ value = {}, source = {}",
            key.name,
            number(value.value),
            quoted(&value.source)
        );
        if let Some(n) = value.n {
            let _ = write!(text, ", n = {n}");
        }
        for (name, part) in [("p10", value.p10), ("p90", value.p90)] {
            if let Some(part) = part {
                let _ = write!(text, ", {name} = {}", number(part));
            }
        }
        text.push_str(" }\n");
    }
    text
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    }
}
