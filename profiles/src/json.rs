// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON of a profile: quantiles instead of buckets, names together with hashes. Field names stay;
//! new fields may be added.

use serde_json::{Value, json};

use crate::{KernelProfile, Profile, Sketch};

/// One JSON object: times in ns, sizes in bytes. Hashes are hexadecimal text, because many readers
/// cut integers at 2^53.
pub fn to_json(profile: &Profile) -> Value {
    let mut kernels: Vec<&KernelProfile> = profile.kernels.iter().collect();
    kernels.sort_by_key(|kernel| std::cmp::Reverse(kernel.total_time()));
    json!({
        "name": profile.name,
        "taken": profile.taken,
        "runs": profile.runs,
        "gpu": {
            "name": profile.gpu.name,
            "uuid": profile.gpu.uuid,
            "memory": profile.gpu.memory,
            "driver": profile.gpu.driver,
        },
        "memory_peak": profile.memory_peak,
        "ran_s": profile.ran as f64 / 1e9,
        "launches": profile.launches(),
        "samples": profile.samples(),
        "time_error": { "over": profile.over, "short": profile.short },
        "unlisted": profile.unlisted,
        "idle_share": profile.idle_share(),
        "working_sets": working_sets(profile),
        "kernels": kernels.into_iter().map(kernel).collect::<Vec<Value>>(),
    })
}

fn working_sets(profile: &Profile) -> Value {
    let [fixed, linear, strided, recalled] = profile.working_sets.counts();
    json!({
        "kernels": profile.working_sets.kernels.len(),
        "fixed": fixed,
        "linear": linear,
        "strided": strided,
        "recalled": recalled,
    })
}

fn kernel(kernel: &KernelProfile) -> Value {
    json!({
        "hash": format!("{:016x}", kernel.hash),
        "symbol": kernel.id.symbol,
        "name": kernel.id.short_name(),
        "module": format!("{:016x}", kernel.id.module),
        "grid": kernel.id.grid,
        "block": kernel.id.block,
        "shared": kernel.id.shared,
        "launches": kernel.launches,
        "time": sketch(&kernel.time),
        "gap": sketch(&kernel.gap),
    })
}

fn sketch(sketch: &Sketch) -> Value {
    json!({
        "count": sketch.count(),
        "mean": sketch.mean(),
        "least": sketch.least(),
        "p10": sketch.quantile(0.10),
        "p50": sketch.quantile(0.50),
        "p90": sketch.quantile(0.90),
        "p99": sketch.quantile(0.99),
        "greatest": sketch.greatest(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::sample;

    #[test]
    fn programs_find_what_they_look_for() {
        let value = to_json(&sample());
        assert_eq!(value["name"], "resnet");
        assert_eq!(value["launches"], 80);
        let first = &value["kernels"][0];
        assert_eq!(first["name"], "gemm", "the kernel with most time comes first");
        assert_eq!(first["time"]["mean"], 100_004);
        assert_eq!(first["time"]["count"], 10);
        assert_eq!(first["hash"].as_str().map(str::len), Some(16));
        assert_eq!(value["working_sets"]["kernels"], 0);
        assert!(to_json(&Profile::default())["idle_share"].is_null());
    }
}
