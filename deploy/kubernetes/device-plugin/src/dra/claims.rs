// SPDX-License-Identifier: MIT OR Apache-2.0
//! A claim's allocation, as the scheduler writes it: GPUs and variables of each request. Pure.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::node::{DRIVER, device_name};
use super::parameters;
use crate::gpus::NodeGpu;

/// A request of a claim, with the GPUs that the scheduler chose.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocatedRequest<'a> {
    /// Its name, without that of an alternative.
    pub name: String,
    /// Its GPUs, each once.
    pub gpus: Vec<&'a NodeGpu>,
    /// Variables of containers that are given it.
    pub variables: BTreeMap<String, String>,
}

/// The requests of a claim that have GPUs of this node, whose pool has this name.
pub fn requests<'a>(claim: &Value, pool: &str, gpus: &'a [NodeGpu]) -> Result<Vec<AllocatedRequest<'a>>> {
    let allocation = &claim["status"]["allocation"]["devices"];
    let results = allocation["results"].as_array().context("it has no allocation")?;
    let mut found: Vec<(AllocatedRequest, f64)> = Vec::new();
    for result in results.iter().filter(|result| result["driver"] == DRIVER) {
        let text = |name: &str| result[name].as_str().unwrap_or_default();
        let device = text("device");
        ensure!(
            text("pool") == pool,
            "{device} is of pool {}, not of {pool}",
            text("pool")
        );
        let gpu = gpus
            .iter()
            .find(|gpu| device_name(gpu) == device)
            .with_context(|| format!("{device} is not a GPU of this node"))?;
        let memory = &result["consumedCapacity"]["memory"];
        let memory = match memory.as_str() {
            Some(text) => bytes(text).with_context(|| format!("{text} is not an amount of memory"))?,
            None => 0.0,
        };
        let name = base(text("request"));
        let index = match found.iter().position(|(request, _)| request.name == name) {
            Some(index) => index,
            None => {
                let variables = variables(&allocation["config"], text("request"))?;
                let request = AllocatedRequest {
                    name: name.to_string(),
                    gpus: Vec::new(),
                    variables,
                };
                found.push((request, 0.0));
                found.len() - 1
            }
        };
        let (request, sum) = &mut found[index];
        *sum += memory;
        if !request.gpus.contains(&gpu) {
            request.gpus.push(gpu);
        }
    }
    ensure!(!found.is_empty(), "it has no device of {DRIVER}");
    let declared = |(mut request, bytes): (AllocatedRequest<'a>, f64)| {
        if bytes > 0.0 {
            let memory = format!("{}MiB", (bytes / f64::from(1 << 20)).ceil());
            request.variables.insert("WEFT_MEMORY".to_string(), memory);
        }
        request
    };
    Ok(found.into_iter().map(declared).collect())
}

/// The request's name without that of an alternative: `gpu` of `gpu/large`.
fn base(request: &str) -> &str {
    request.split('/').next().unwrap_or(request)
}

/// The variables of a request, from all parameters that apply to it. Those of the class come first,
/// so those of the claim count.
fn variables(config: &Value, request: &str) -> Result<BTreeMap<String, String>> {
    let all = config.as_array().map_or(&[][..], Vec::as_slice);
    let mut variables = BTreeMap::new();
    for source in ["FromClass", "FromClaim"] {
        let mine = |one: &&Value| one["source"] == source && one["opaque"]["driver"] == DRIVER;
        for one in all.iter().filter(mine) {
            let applies = match one["requests"].as_array() {
                Some(names) if !names.is_empty() => names.iter().any(|name| name == request || name == base(request)),
                _ => true,
            };
            if applies {
                let of = || format!("parameters of request {request} ({source})");
                variables.extend(parameters::variables(&one["opaque"]["parameters"]).with_context(of)?);
            }
        }
    }
    Ok(variables)
}

/// The number of a Kubernetes quantity, such as `12Gi`, `500M` or `1e9`.
fn bytes(quantity: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1048576.0),
        ("Gi", 1073741824.0),
        ("Ti", 1099511627776.0),
        ("Pi", 1125899906842624.0),
        ("Ei", 1152921504606846976.0),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let unit = |(unit, factor): &(&str, f64)| Some((quantity.strip_suffix(unit)?, *factor));
    let (number, factor) = UNITS.iter().find_map(unit).unwrap_or((quantity, 1.0));
    let plain = number.starts_with(|one: char| one.is_ascii_digit() || one == '.');
    let number: f64 = number.parse().ok().filter(|_| plain)?;
    Some(number * factor)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gpus() -> Vec<NodeGpu> {
        ["GPU-a", "GPU-b"]
            .map(|uuid| NodeGpu {
                uuid: uuid.into(),
                node: None,
                numa: None,
            })
            .into()
    }

    fn claim(results: Value, config: Value) -> Value {
        json!({"status": {"allocation": {"devices": {"results": results, "config": config}}}})
    }

    fn result(request: &str, device: &str, memory: &str) -> Value {
        json!({"request": request, "driver": DRIVER, "pool": "node-1", "device": device,
               "consumedCapacity": {"memory": memory, "shares": "1"}})
    }

    fn config(source: &str, requests: Value, mut fields: Value) -> Value {
        fields["apiVersion"] = parameters::API_VERSION.into();
        fields["kind"] = parameters::KIND.into();
        json!({"source": source, "requests": requests, "opaque": {"driver": DRIVER, "parameters": fields}})
    }

    #[test]
    fn each_request_has_its_gpus_its_memory_and_its_parameters() {
        let gpus = gpus();
        let results = json!([
            result("serve", "gpu-a", "12Gi"),
            result("train/two", "gpu-a", "0"),
            result("train/two", "gpu-b", "0"),
            {"request": "net", "driver": "nic.example", "pool": "x", "device": "y"},
        ]);
        let config = json!([
            config("FromClaim", json!(["serve"]), json!({"priority": "high"})),
            config("FromClaim", json!(["train/two"]), json!({"outcome": "off"})),
            config("FromClass", json!([]), json!({"priority": 7, "slowdown": "1%"})),
            {"source": "FromClaim", "opaque": {"driver": "nic.example", "parameters": {"mtu": 9000}}},
        ]);
        let found = requests(&claim(results, config), "node-1", &gpus).unwrap();
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["serve", "train"]);
        assert_eq!((found[0].gpus.len(), found[1].gpus.len()), (1, 2));
        let of = |one: usize, name: &str| found[one].variables.get(name).map(String::as_str);
        assert_eq!(
            of(0, "WEFT_PRIORITY"),
            Some("high"),
            "the claim's count before the class's"
        );
        assert_eq!(of(0, "WEFT_SLOWDOWN"), Some("1%"));
        assert_eq!(of(0, "WEFT_MEMORY"), Some("12288MiB"));
        assert_eq!(of(0, "WEFT_OUTCOME"), None);
        assert_eq!(of(1, "WEFT_PRIORITY"), Some("7"));
        assert_eq!(of(1, "WEFT_OUTCOME"), Some("off"));
        assert_eq!(of(1, "WEFT_MEMORY"), None, "0 is not declared");
    }

    #[test]
    fn a_claim_that_is_not_for_this_node_is_one_line() {
        let gpus = gpus();
        let other = json!([{"driver": "nic.example"}]);
        let elsewhere = json!([{"driver": DRIVER, "pool": "node-2", "device": "gpu-a", "request": "gpu"}]);
        let wrong = [
            (json!({}), "no allocation"),
            (claim(json!([]), json!([])), "no device of weft.dev"),
            (claim(other, json!([])), "no device of weft.dev"),
            (
                claim(json!([result("gpu", "gpu-c", "0")]), json!([])),
                "gpu-c is not a GPU",
            ),
            (claim(json!([result("gpu", "gpu-a", "much")]), json!([])), "much is not"),
            (claim(elsewhere, json!([])), "of pool node-2"),
        ];
        for (claim, expected) in wrong {
            let said = format!("{:#}", requests(&claim, "node-1", &gpus).unwrap_err());
            assert!(said.contains(expected) && !said.contains('\n'), "{said}");
        }
        let wrong = json!([config("FromClaim", json!(null), json!({"priority": "urgent"}))]);
        let wrong = claim(json!([result("gpu", "gpu-a", "0")]), wrong);
        let said = format!("{:#}", requests(&wrong, "node-1", &gpus).unwrap_err());
        assert!(
            said.starts_with("parameters of request gpu (FromClaim): priority: urgent is no priority"),
            "{said}"
        );
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        let known = [
            ("12Gi", 12.0 * 1073741824.0),
            ("500M", 5e8),
            ("1.5k", 1500.0),
            ("1e9", 1e9),
            ("2500m", 2.5),
        ];
        for (text, number) in known {
            assert_eq!(bytes(text), Some(number), "{text}");
        }
        for wrong in ["", "Gi", "-1", "12GiB", "nan", "inf", "1 Gi"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
