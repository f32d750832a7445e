// SPDX-License-Identifier: MIT OR Apache-2.0
//! A node's ResourceSlice (`resource.k8s.io/v1`): a device for each GPU, with capacity to
//! consume.
//! Pure.
#![forbid(unsafe_code)]

use serde_json::{Value, json};

use super::node::{DRIVER, DraNode, OfferedGpu, device_name};

/// The longest text of an attribute, characters.
const LONGEST_TEXT: usize = 64;

/// The device of a GPU that `shares` claims may use.
pub fn device(offered: &OfferedGpu, shares: u32) -> Value {
    let OfferedGpu { gpu, traits } = offered;
    let model: String = traits.model.chars().take(LONGEST_TEXT).collect();
    let mut attributes = json!({
        "uuid": {"string": gpu.uuid},
        "model": {"string": model},
        "weftVersion": {"version": env!("CARGO_PKG_VERSION")},
    });
    if let Some(numa) = gpu.numa {
        attributes["numaNode"] = json!({"int": numa});
    }
    let mut places = json!({"min": "1", "max": shares.to_string()});
    if shares > 1 {
        // A step may not exceed the capacity, and with one share there is no other amount.
        places["step"] = "1".into();
    }
    json!({
        "name": device_name(gpu),
        "attributes": attributes,
        // Kubernetes before 1.36 drops this field and the policies, unless its feature gate
        // DRAConsumableCapacity is on.
        "allowMultipleAllocations": true,
        "capacity": {
            "shares": {
                "value": shares.to_string(),
                "requestPolicy": {"default": "1", "validRange": places},
            },
            // A claim that declares no memory consumes none, as a job that declares none.
            "memory": {
                "value": format!("{}Mi", traits.memory_mib),
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1Mi"}},
            },
        },
    })
}

/// The slice of a node. `owner`: the uid of its Node object, with which the slice goes.
pub fn slice(node: &DraNode, devices: &[Value], generation: i64, owner: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": name(node),
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": owner, "controller": true},
            ],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        },
    })
}

/// The name of a node's slice.
pub fn name(node: &DraNode) -> String {
    format!("{}-{DRIVER}", node.name)
}
