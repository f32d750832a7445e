// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program on a small trace of the public one's form.

use std::path::Path;
use std::process::{Command, Output};

fn lab(words: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_weft-cluster-lab"));
    program.args(words).output().expect("the program starts")
}

/// Twenty nodes of two GPUs; pods that ask for 0.6 of one GPU, so that each GPU holds one.
fn small_trace(folder: &Path) {
    let mut nodes = String::from("sn,cpu_milli,memory_mib,gpu,model\n");
    for node in 0..20 {
        nodes += &format!("node-{node},96000,393216,2,G2\n");
    }
    std::fs::write(folder.join("openb_node_list_gpu_node.csv"), nodes).unwrap();
    let mut pods = String::from(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n",
    );
    for pod in 0..40 {
        let came = pod * 100;
        pods += &format!("pod-{pod},1000,1024,1,600,,LS,Running,{came},{},{came}\n", came + 500);
    }
    std::fs::write(folder.join("openb_pod_list_default.csv"), pods).unwrap();
}

#[test]
fn without_the_trace_nothing_is_judged() {
    let done = lab(&["--quick", "--openb", "/nowhere", "--check"]);
    assert_eq!(done.status.code(), Some(2));
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        said.contains("not judged") && said.contains("gangs    tiresias"),
        "{said}"
    );
    assert_eq!(
        lab(&["--quick", "--openb", "/nowhere", "--only", "placements"])
            .status
            .code(),
        Some(0)
    );
    assert_eq!(lab(&["--only", "nothing"]).status.code(), Some(2));
}

#[test]
fn another_trace_misses_the_published_figures_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    small_trace(folder.path());
    let json = folder.path().join("out/cluster.json");
    let words = [
        "--quick",
        "--check",
        "--openb",
        folder.path().to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ];
    let done = lab(&words);
    assert_eq!(done.status.code(), Some(1), "{}", String::from_utf8_lossy(&done.stderr));
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    // 0.6 of each GPU, whatever the placement.
    for figure in results["placements"].as_array().unwrap() {
        assert!((figure["allocated"].as_f64().unwrap() - 60.0).abs() < 1e-6, "{figure}");
        assert_eq!(figure["met"], false);
    }
    let policies = results["policies"].as_array().unwrap();
    // Fifteen on each of three trials, twelve on each of three other loads, six on links and at
    // each of four rates, eleven on gangs that are spread, and seven placements on each of four
    // trials.
    assert_eq!(policies.len(), 15 * 3 + 12 * 3 + 6 * 5 + 11 + 7 * 4);
    // For every claim and comparison some result exists.
    let claims = results["claims"].as_array().unwrap();
    assert_eq!(claims.iter().filter(|claim| claim["verdict"] == "not tried").count(), 0);
    // 40 pods of 500 s and 30 s to begin, one after the other at 0.9 of the cluster.
    for figure in policies.iter().filter(|figure| figure["trial"] == "openb") {
        assert!(figure["mean_s"].as_f64().unwrap() >= 530.0, "{figure}");
    }
    // Two runs are identical.
    let again = folder.path().join("again.json");
    let words = [
        "--quick",
        "--openb",
        folder.path().to_str().unwrap(),
        "--json",
        again.to_str().unwrap(),
    ];
    assert_eq!(lab(&words).status.code(), Some(0));
    let mut again: serde_json::Value = serde_json::from_slice(&std::fs::read(&again).unwrap()).unwrap();
    assert_eq!(again["placements"], results["placements"]);
    for (figure, before) in again["policies"].as_array_mut().unwrap().iter_mut().zip(policies) {
        figure["decision_p99_us"] = before["decision_p99_us"].clone();
        assert_eq!(figure, before);
    }
}
