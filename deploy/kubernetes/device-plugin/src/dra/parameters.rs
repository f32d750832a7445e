// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parameters of a claim: the settings of the jobs in its containers. Pure.
//!
//! They are opaque to Kubernetes, so each has the type and version that this module reads. A class
//! may have some too; those of the claim count before them, field by field.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The version of the parameters.
pub const API_VERSION: &str = "weft.dev/v1alpha1";

/// The type of the parameters.
pub const KIND: &str = "JobParameters";

/// A field: the variable of the job that it sets, and its valid values.
struct JobField {
    name: &'static str,
    variable: &'static str,
    valid: fn(&str) -> bool,
    values: &'static str,
}

const FIELDS: [JobField; 6] = [
    JobField {
        name: "priority",
        variable: "WEFT_PRIORITY",
        valid: |text| matches!(text.as_bytes(), [b'0'..=b'9']) || ["high", "normal", "low", "idle"].contains(&text),
        values: "0 (most important) to 9, or high, normal, low, idle",
    },
    JobField {
        name: "slowdown",
        variable: "WEFT_SLOWDOWN",
        valid: |text| match text.strip_suffix('%') {
            Some(percent) => within(percent.trim_end(), 0.0, 100.0),
            None => within(text, 0.0, 1.0),
        },
        values: "a part of the job's time, 0 to 100%, such as 2% or 0.02",
    },
    JobField {
        name: "slo",
        variable: "WEFT_SLO",
        valid: |text| {
            let time = |unit: &str, seconds: f64| Some((text.strip_suffix(unit)?, seconds));
            let found = time("us", 1e-6).or_else(|| time("ms", 1e-3)).or_else(|| time("s", 1.0));
            found.is_some_and(|(number, unit)| within(number, 1e-6 / unit, 3600.0 / unit))
        },
        values: "a time from 1us to 3600s, such as 50ms",
    },
    JobField {
        name: "profile",
        variable: "WEFT_PROFILE",
        valid: |text| !text.is_empty() && !text.contains(char::is_control),
        values: "the profile's name, or its file in the container",
    },
    JobField {
        name: "backing",
        variable: "WEFT_BACKING",
        valid: |text| ["device", "managed", "auto", "movable"].contains(&text),
        values: "device, managed, auto or movable",
    },
    JobField {
        name: "outcome",
        variable: "WEFT_OUTCOME",
        valid: |text| ["on", "off"].contains(&text),
        values: "on or off",
    },
];

/// Whether the text is a plain number from `least` to `most`.
fn within(text: &str, least: f64, most: f64) -> bool {
    let plain = text.chars().all(|one| one.is_ascii_digit() || one == '.');
    plain && text.parse().is_ok_and(|number: f64| (least..=most).contains(&number))
}

/// Variables of a job's container, from one object of parameters.
pub fn variables(parameters: &Value) -> Result<BTreeMap<String, String>> {
    let fields = parameters.as_object().context("parameters are not an object")?;
    for (name, known) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = fields.get(name).and_then(Value::as_str).unwrap_or_default();
        ensure!(found == known, "{name} is {found:?}: write {known}");
    }
    let mut variables = BTreeMap::new();
    for (name, value) in fields
        .iter()
        .filter(|(name, _)| !["apiVersion", "kind"].contains(&name.as_str()))
    {
        let Some(field) = FIELDS.iter().find(|field| field.name == name) else {
            let known = FIELDS.map(|field| field.name).join(", ");
            bail!("{name:?} is not a parameter: there are {known}");
        };
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            // YAML reads on and off as booleans.
            Value::Bool(true) => "on".to_string(),
            Value::Bool(false) => "off".to_string(),
            _ => String::new(),
        };
        ensure!((field.valid)(&text), "{name} is {value}: write {}", field.values);
        variables.insert(field.variable.to_string(), text);
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(name: &str, value: Value) -> Result<BTreeMap<String, String>> {
        let mut parameters = json!({"apiVersion": API_VERSION, "kind": KIND});
        parameters[name] = value;
        variables(&parameters)
    }

    #[test]
    fn fields_become_variables_of_the_job() {
        let given = json!({
            "apiVersion": "weft.dev/v1alpha1", "kind": "JobParameters", "priority": 0, "slowdown": "2.5%",
            "slo": "1.5s", "profile": "/profiles/resnet", "backing": "movable", "outcome": false,
        });
        let found = variables(&given).unwrap();
        let expected = [
            ("WEFT_BACKING", "movable"),
            ("WEFT_OUTCOME", "off"),
            ("WEFT_PRIORITY", "0"),
            ("WEFT_PROFILE", "/profiles/resnet"),
            ("WEFT_SLO", "1.5s"),
            ("WEFT_SLOWDOWN", "2.5%"),
        ];
        let expected = expected.map(|(name, value)| (name.to_string(), value.to_string()));
        assert_eq!(found, BTreeMap::from(expected));
        for (name, value) in [
            ("priority", json!("high")),
            ("slowdown", json!(0.02)),
            ("slo", json!("1us")),
        ] {
            with(name, value).unwrap();
        }
    }

    #[test]
    fn a_wrong_field_is_one_line_that_names_it() {
        let wrong = [
            ("priority", json!(10), "to 9"),
            ("priority", json!("urgent"), "high, normal"),
            ("priority", json!(-1), "to 9"),
            ("slowdown", json!("101%"), "2%"),
            ("slowdown", json!(1.5), "2%"),
            ("slowdown", json!("inf"), "2%"),
            ("slo", json!("50"), "50ms"),
            ("slo", json!("3601s"), "50ms"),
            ("profile", json!("a\nb"), "profile"),
            ("profile", json!(["a"]), "profile"),
            ("outcome", json!("maybe"), "on or off"),
            ("prioritty", json!(1), "there are priority, slowdown"),
            ("apiVersion", json!("weft.dev/v2"), "weft.dev/v1alpha1"),
            ("kind", json!("GpuConfig"), "JobParameters"),
        ];
        for (name, value, hint) in wrong {
            let said = with(name, value.clone()).unwrap_err().to_string();
            assert!(
                said.contains(name) && said.contains(hint) && !said.contains('\n'),
                "{value}: {said}"
            );
        }
        assert!(variables(&json!("priority: 0")).is_err());
    }
}
