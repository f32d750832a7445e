// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parameters of a claim: the settings of the jobs in its containers. Pure.
//!
//! They are opaque to Kubernetes, so each has the type and version that this module reads. A class
//! may have some too; those of the claim count before them, field by field.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::weft;

/// The version of the parameters.
pub const API_VERSION: &str = "weft.dev/v1alpha1";

/// The type of the parameters.
pub const KIND: &str = "JobParameters";

/// The parameters, each with the variable of the job that it sets.
const FIELDS: [(&str, &str); 6] = [
    ("priority", "WEFT_PRIORITY"),
    ("slowdown", "WEFT_SLOWDOWN"),
    ("slo", "WEFT_SLO"),
    ("profile", "WEFT_PROFILE"),
    ("backing", "WEFT_BACKING"),
    ("outcome", "WEFT_OUTCOME"),
];

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
        let Some((_, variable)) = FIELDS.iter().find(|(field, _)| field == name) else {
            let known = FIELDS.map(|(field, _)| field).join(", ");
            bail!("{name:?} is not a parameter: there are {known}");
        };
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            // YAML reads on and off as booleans.
            Value::Bool(true) => "on".to_string(),
            Value::Bool(false) => "off".to_string(),
            _ => bail!("{name} is {value}: write one value"),
        };
        weft::check(variable, &text).map_err(|why| anyhow!("{name}: {why}"))?;
        variables.insert(variable.to_string(), text);
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
            ("priority", json!("urgent"), "high (0)"),
            ("priority", json!(-1), "to 9"),
            ("slowdown", json!("101%"), "2%"),
            ("slowdown", json!(1.5), "1.5%"),
            ("slowdown", json!(1), "1% or 100%"),
            ("slowdown", json!("inf"), "2%"),
            ("slo", json!("50"), "50ms"),
            ("slo", json!("3601s"), "50ms"),
            ("slo", json!("0ms"), "50ms"),
            ("profile", json!("a\nb"), "profile"),
            ("profile", json!(["a"]), "profile"),
            ("outcome", json!("maybe"), "on, off"),
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
