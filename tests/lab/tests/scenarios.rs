// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scenario files: the examples run under every policy, and an error is reported in one line.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;

use weft_lab::calibrated::CalibratedDevice;
use weft_lab::scenario::{Scenario, ScenarioError};

const GOOD: &str = include_str!("../scenarios/service-and-training.toml");

/// The standard calibration with these values in place of its own.
fn device(changed: &[(&str, f64)]) -> CalibratedDevice {
    let changed: BTreeMap<String, f64> = changed
        .iter()
        .map(|(key, value)| ((*key).to_string(), *value))
        .collect();
    CalibratedDevice::load("a100-like", &changed).expect("a device")
}

fn parse(text: &str, changed: &[(&str, f64)]) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, Path::new("a.toml"), &device(changed))
}

fn refused(text: &str) -> String {
    let error = parse(text, &[]).expect_err("it is wrong");
    let said = error.to_string();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn the_examples_run_under_every_policy_they_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut found = 0;
    for entry in std::fs::read_dir(folder).expect("the folder").flatten() {
        let scenario = Scenario::load(&entry.path(), &device(&[])).expect("an example");
        found += 1;
        let bench = weft_lab::compare::Fixture {
            requests: 20,
            warmup: 2,
            ..scenario.benches[0]
        };
        let known = bench.know_all(&scenario.jobs);
        for rule in &scenario.rules {
            let figures = bench.compare(&known, *rule);
            assert!(figures.finished, "{} under {rule}", scenario.name);
            assert_eq!(figures.latency.count, 20, "{} under {rule}", scenario.name);
            assert!(figures.filled_ms <= figures.oracle_ms + 1e-9 && figures.oracle_ms <= figures.gap_ms + 1e-9);
        }
    }
    assert!(found >= 2);
}

#[test]
fn a_key_that_means_nothing_is_refused_where_it_stands() {
    let said = refused(&GOOD.replace("think_us = 12000 }\n# May", "thnik_us = 12000 }\n# May"));
    assert!(said.starts_with("a.toml:25: ") && said.contains("thnik_us"), "{said}");
    let said = refused(&GOOD.replace("requests = 1000", "reqests = 1000"));
    assert!(said.starts_with("a.toml:6: ") && said.contains("reqests"), "{said}");
}

#[test]
fn what_cannot_be_run_is_refused() {
    for (from, to, told) in [
        ("\"xsched\"", "\"fair\"", "no policy is called \"fair\""),
        ("mode = \"mps\"", "mode = \"mig\"", "mig"),
        ("priority = 0", "priority = 10", "0 (most important) to 9"),
        (
            "priority = 0",
            "priority = 7",
            "no other may have a lower priority number",
        ),
        ("priority = 5", "priority = 0", "nobody fills"),
        ("requests = 1000", "requests = 0", "nothing to run"),
        ("shape = \"service\"", "shape = \"sevrice\"", "sevrice"),
        (
            "generator = { shape = \"training\"",
            "trace = \"nothing.trace\" # ",
            "nothing.trace",
        ),
        ("kernels = 60", "kernels = 0", "launches nothing"),
        ("dilation = 1 ", "dilation = 0.5 ", "a factor of 1 to 1000"),
        ("gate_spin_us", "gate_spins_us", "gate_spins_us"),
        ("profiled = true", "profile = \"nothing.profile\"", "nothing"),
        ("\"closed\", think_us = 12000 }\ndevice", "\"listed\" }\ndevice", "us"),
        ("name = \"service and training\"", "name = ", "a.toml:3"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let said = refused(&text);
        assert!(said.contains(told), "{from} -> {to}: {said}");
    }
    let alone = GOOD.split("[[job]]").take(2).collect::<Vec<&str>>().join("[[job]]");
    assert!(refused(&alone).contains("two [[job]] tables"));
}

/// The service's figures under weft and without other jobs, from few requests.
fn figures(text: &str) -> [weft_lab::compare::CaseFigures; 2] {
    let scenario = parse(text, &[]).expect("a scenario");
    let bench = weft_lab::compare::Fixture {
        requests: 30,
        warmup: 5,
        ..scenario.benches[0]
    };
    let known = bench.know_all(&scenario.jobs);
    ["weft", "default"].map(|rule| bench.compare(&known, rule.parse().expect("a rule")))
}

#[test]
fn times_of_the_device_are_the_calibrations_unless_the_scenario_names_them() {
    let changed = [("switch_ns", 50_000.0), ("slice_ns", 1_024_000.0)];
    let played = |text: &str| parse(text, &changed).expect("a scenario").benches[0].device;
    let device = played(GOOD);
    assert_eq!(
        (device.switch, device.slice, device.launch_latency),
        (50_000, 1_024_000, 5_000)
    );
    let own = GOOD.replacen("# launch_latency_us = 5 ", "launch_latency_us = 9 ", 1);
    assert_eq!(played(&own).launch_latency, 9_000);
    // If two values are given for one time, neither is dropped silently.
    let own = GOOD.replacen("# switch_us = 100 ", "switch_us = 70 ", 1);
    assert_eq!(parse(&own, &[]).expect("a scenario").benches[0].device.switch, 70_000);
    let said = parse(&own, &changed).expect_err("two values").to_string();
    assert!(
        said.starts_with("a.toml:12: switch_us wins over --set switch_ns"),
        "{said}"
    );
}

#[test]
fn a_dilated_device_gives_the_same_picture_in_wall_time() {
    let sliced = GOOD.replacen("mode = \"mps\"", "mode = \"time-sliced\"", 1);
    let plain = figures(&sliced);
    let slow = figures(&sliced.replacen("dilation = 1 ", "dilation = 20 ", 1));
    for (plain, slow) in plain.iter().zip(&slow) {
        // Times of the host itself do not grow, so requests that wait for them are quicker.
        let mean = slow.latency.mean / 20.0 / plain.latency.mean;
        assert!((0.9..1.05).contains(&mean), "{}: {mean}", plain.rule);
        let (slow, batch) = (slow.batch_sum, plain.batch_sum);
        assert!(
            (batch - 0.05..batch + 0.2).contains(&slow),
            "{}: {batch}, {slow}",
            plain.rule
        );
    }
}

#[test]
fn listed_requests_come_when_they_are_listed() {
    let closed = "{ process = \"closed\", think_us = 12000 }";
    let listed = |us: &str| GOOD.replacen(closed, &format!("{{ process = \"listed\", us = {us} }}"), 1);
    let [often, _] = figures(&listed("[100.5, 900.0]"));
    let [rarely, _] = figures(&listed("[9000.0, 90000.0]"));
    assert_eq!((often.latency.count, rarely.latency.count), (30, 30));
    // A request takes 5 ms, so requests pile up if two come in a millisecond.
    assert!(often.alone.mean > 5.0 * rarely.alone.mean);
}
