// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line: its output, and the exit status of `--check`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A service of long requests and long pauses with a training job of short kernels, on a device
/// that slices time; `{}`: the policies.
const SCENE: &str = r#"
name = "scene"
policies = [{}]
requests = 40
warmup = 5

[device]
mode = "time-sliced"

[[job]]
name = "service"
priority = 0
generator = { shape = "service", kernels = 200, kernel_us = 80, think_us = 20000 }

[[job]]
name = "training"
priority = 5
generator = { shape = "training", kernels_us = [30, 120, 60], host_us = 2, think_us = 200 }
"#;

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft-lab"))
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .expect("it starts")
}

fn check(folder: &Path, scene: &str, more: &[&str]) -> (Option<i32>, String) {
    let path = folder.join("scene.toml");
    std::fs::write(&path, scene).expect("written");
    let mut arguments = vec!["--check", "--scenario", path.to_str().expect("a name")];
    arguments.extend(more);
    let output = lab(&arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said)
}

#[test]
fn a_check_ends_with_what_it_found() {
    let folder = folder("check");
    let json = folder.join("results.json");
    let json = json.to_str().expect("a name");
    let with = |policies: &str| SCENE.replace("{}", policies);
    // Met: the delays and the speed-up.
    let (code, said) = check(&folder, &with("\"weft\", \"default\""), &["--json", json]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("met    all cases, no condition: latency mean") && said.contains("not judged against fikit"),
        "{said}"
    );
    assert!(
        said.contains("40 requests a figure, where the aims ask for 1000"),
        "{said}"
    );
    let text = std::fs::read_to_string(json).expect("the results");
    let results: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(results["rows"].as_array().map(Vec::len), Some(2));
    assert!(results["aims"].as_array().is_some_and(|aims| aims.len() >= 14));
    // Missed: if a service leaves no gap, no job gets more batch work than the minimum share,
    // whatever the policy.
    let full = with("\"weft\", \"fikit\"")
        .replace("think_us = 20000", "think_us = 0")
        .replace("time-sliced", "mps");
    let (code, said) = check(&folder, &full, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("MISSED against fikit"), "{said}");
    // Nothing judged: no aim covers only the other rules.
    let (code, said) = check(&folder, &with("\"default\""), &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("nothing was judged"), "{said}");
}

/// Figures of JSON rows under a rule, in the order of the rows.
fn of_rows(results: &serde_json::Value, rule: &str, key: &str) -> Vec<serde_json::Value> {
    let rows = results["rows"].as_array().expect("rows");
    let ours = rows.iter().filter(|row| row["rule"] == rule);
    ours.map(|row| row[key].clone()).collect()
}

#[test]
fn figures_rest_on_the_calibration_that_is_named() {
    let folder = folder("calibration");
    let measured = folder.join("measured.toml");
    let text = "gpu = \"a GPU\"\nbase = \"a100-like\"\n[values]\n\
                switch_ns = { value = 400000, source = \"estimate: of this test\" }\n";
    std::fs::write(&measured, text).expect("written");
    let [measured, json] =
        [measured, folder.join("results.json")].map(|path| path.to_str().expect("a name").to_string());
    let (code, said) = check(
        &folder,
        &SCENE.replace("{}", "\"weft\", \"default\""),
        &[
            "--calibration",
            "a100-like",
            &measured,
            "--queue",
            "on,off",
            "--json",
            &json,
        ],
    );
    assert!(code.is_some_and(|code| code < 2), "{said}");
    let text = std::fs::read_to_string(&json).expect("the results");
    let results: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let devices = results["devices"].as_array().expect("devices");
    let told: Vec<_> = devices
        .iter()
        .map(|one| (one["switch_ns"].as_u64(), one["queue"].as_u64()))
        .collect();
    let expected = [(100_000, 1_024), (100_000, 0), (400_000, 1_024), (400_000, 0)];
    assert_eq!(told, expected.map(|(switch, queue)| (Some(switch), Some(queue))));
    assert_eq!(devices[0]["gpu"], "A100-like, 40 GB (published figures)");
    assert_eq!(
        of_rows(&results, "weft", "calibration"),
        ["a100-like", "a100-like", &measured, &measured]
    );
    // Without weft, the batch job gets less if the switches between slices cost more.
    let batch: Vec<f64> = of_rows(&results, "default", "batch")
        .iter()
        .filter_map(|batch| batch[0].as_f64())
        .collect();
    assert!(batch[0] > batch[2], "{batch:?}");
    // Next to each other, with the aims of each.
    assert!(
        said.contains("setting") && said.contains("measured.toml, queue off "),
        "{said}"
    );
    let aims = results["aims"].as_array().expect("aims");
    assert_eq!(
        aims.iter()
            .filter(|aim| aim["calibration"] == measured.as_str())
            .count(),
        aims.len() / 2
    );
}

#[test]
fn a_pair_is_played_on_changed_values() {
    let json = folder("set").join("results.json");
    let json = json.to_str().expect("a name");
    let mut arguments = vec![
        "--kind",
        "pair",
        "--device",
        "time-sliced",
        "--model",
        "lstm",
        "--requests",
        "4",
    ];
    arguments.extend(["--partners", "1", "--rule", "default", "--json", json]);
    arguments.extend(["--set", "switch_ns=50000,400000"]);
    let output = lab(&arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let text = std::fs::read_to_string(json).expect("the results");
    let results: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let switches: Vec<_> = [0, 1].map(|at| results["devices"][at]["switch_ns"].as_u64()).into();
    assert_eq!(switches, [Some(50_000), Some(400_000)]);
    let names = ["a100-like switch_ns=50000", "a100-like switch_ns=400000"];
    assert_eq!(of_rows(&results, "default", "calibration"), names);
    let batch = of_rows(&results, "default", "batch");
    let batch: Vec<f64> = batch.iter().filter_map(|batch| batch[0].as_f64()).collect();
    assert!(batch[0] > batch[1], "{batch:?}");
}

#[test]
fn a_calibration_that_nobody_knows_is_one_line() {
    for arguments in [
        [
            "--scenario",
            "tests/lab/scenarios/llm-decode.toml",
            "--calibration",
            "a-hundred",
        ]
        .as_slice(),
        ["--quick", "--calibration", "a-hundred"].as_slice(),
        ["together", "--calibration", "a-hundred"].as_slice(),
    ] {
        let output = lab(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.contains("no calibration a-hundred: there are a100-like, "),
            "{said}"
        );
    }
    let output = lab(&["--quick", "--set", "memory_bytes=1"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("it reads slice_ns, switch_ns"), "{said}");
}

#[test]
fn a_set_of_which_nothing_was_run_is_no_success() {
    let output = lab(&["--check", "--quick", "--kind", "pair", "--minutes", "0"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("0 of ") && said.contains("nothing was judged"), "{said}");
    // Without --check it is only reported.
    let output = lab(&["--quick", "--kind", "pair", "--minutes", "0"]);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn promises_are_played_with_each_seed_and_told() {
    let folder = folder("promises");
    let json = folder.join("results.json");
    let json = json.to_str().expect("a name");
    let mut arguments = vec![
        "--device",
        "mps",
        "--model",
        "lstm",
        "--requests",
        "4",
        "--partners",
        "1",
    ];
    arguments.extend(["--every-seed", "--seeds", "1,2", "--host-time", "1,0.5"]);
    arguments.extend(["--json", json]);
    for kind in ["poisson", "dial", "slo"] {
        arguments.extend(["--kind", kind]);
    }
    let output = lab(&arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let text = std::fs::read_to_string(json).expect("the results");
    let results: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let list = |name: &str| results[name].as_array().expect("a list").clone();
    let of = |kind: &str, rule: &str| {
        let rows = list("rows");
        let ours = rows.iter().filter(|row| row["kind"] == kind && row["rule"] == rule);
        ours.cloned().collect::<Vec<_>>()
    };
    // Two seeds on each of two hosts; three loads.
    for rule in ["weft", "weft 2%", "weft 5%", "weft 10%"] {
        assert_eq!(of("dial", rule).len(), 4, "{rule}");
    }
    let slos = of("slo", "weft");
    assert_eq!(slos.len(), 12);
    for row in &slos {
        let limit = row["slo"]["limit"].as_f64().expect("a limit");
        let p99 = row["alone"]["p99"].as_f64().expect("a p99");
        assert!((limit / p99 - 1.2).abs() < 1e-3, "{row}");
    }
    assert!(of("dial", "weft").iter().all(|row| row["slo"].is_null()));
    // Each group has its interval; hosts are kept apart.
    let summaries = list("summaries");
    assert!(summaries.iter().all(|one| one["seeds"]["batch"]["half_width"].is_f64()));
    assert!(said.contains("poisson x0.5") && said.contains(" +- "), "{said}");
}
