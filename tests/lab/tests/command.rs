//! The command as it is typed: what it writes, and what `--check` ends with.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A service of long requests and long pauses beside a training job of short kernels, on a device
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
    let (page, json) = (folder.join("page.html"), folder.join("results.json"));
    let [page, json] = [&page, &json].map(|path| path.to_str().expect("a name"));
    let with = |policies: &str| SCENE.replace("{}", policies);
    // Met: delays and speed-up are.
    let (code, said) = check(
        &folder,
        &with("\"weft\", \"default\""),
        &["--page", page, "--json", json],
    );
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("met    all cases, no condition: latency mean") && said.contains("not judged against fikit"),
        "{said}"
    );
    assert!(
        said.contains("40 requests a figure, where the aims ask for 1000"),
        "{said}"
    );
    let written = std::fs::read_to_string(page).expect("the page");
    assert!(
        written.contains("<svg") && written.contains("service beside training"),
        "{written}"
    );
    let text = std::fs::read_to_string(json).expect("the results");
    let results: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(results["rows"].as_array().map(Vec::len), Some(2));
    assert!(results["aims"].as_array().is_some_and(|aims| aims.len() >= 14));
    // Missed: a service that leaves no gap gives nobody more batch work than the minimum share,
    // whatever the policy.
    let full = with("\"weft\", \"fikit\"")
        .replace("think_us = 20000", "think_us = 0")
        .replace("time-sliced", "mps");
    let (code, said) = check(&folder, &full, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("MISSED against fikit"), "{said}");
    // Nothing judged: no aim speaks of the others alone.
    let (code, said) = check(&folder, &with("\"default\""), &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("nothing was judged"), "{said}");
}

#[test]
fn a_set_of_which_nothing_was_run_is_no_success() {
    let output = lab(&["--check", "--quick", "--kind", "pair", "--minutes", "0"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("0 of ") && said.contains("nothing was judged"), "{said}");
    // Without --check it is only told.
    let output = lab(&["--quick", "--kind", "pair", "--minutes", "0"]);
    assert_eq!(output.status.code(), Some(0));
}
