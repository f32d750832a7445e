// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of this folder, refused files, and the way there and back.
#![allow(missing_docs, reason = "the tests' names say it")]

use simgpu_calibration::{Calibration, STANDARD, Value, keys, names};
use weft_engine::Settings;

fn parse(values: &str) -> Result<Calibration, String> {
    let text = format!("gpu = 'test'\nbase = 'a100-like'\n[values]\n{values}\n");
    Calibration::parse(&text, "test.toml").map_err(|error| error.to_string())
}

#[test]
fn every_file_of_the_folder_is_read_and_has_all_figures() {
    assert!(names().contains(&STANDARD), "{:?}", names());
    for name in names() {
        let calibration = Calibration::load(name).unwrap_or_else(|error| panic!("{error}"));
        calibration.figures().unwrap_or_else(|error| panic!("{error}"));
        assert!(!calibration.gpu.is_empty(), "{name}");
    }
}

#[test]
fn the_engines_defaults_are_the_standard_files() {
    let figures = Calibration::load(STANDARD).unwrap().figures().unwrap();
    assert_eq!(figures.engine, Settings::default());
}

#[test]
fn what_the_simulated_gpu_reads_is_what_the_keys_say() {
    // Each key that is read changes the figures when it changes, each other one does not.
    let standard = Calibration::load(STANDARD).unwrap().figures().unwrap();
    for key in keys() {
        let mut changed = Calibration::new("changed", Some(STANDARD));
        let value = Value {
            value: 123_457.0,
            source: "estimate: a test".to_owned(),
            n: None,
            p10: None,
            p90: None,
        };
        changed.set(&key.name, value).unwrap();
        assert_eq!(
            changed.figures().unwrap() != standard,
            !key.read_by.is_empty(),
            "{}",
            key.name
        );
    }
}

#[test]
fn what_is_wrong_is_refused_in_one_line_that_says_which() {
    for (values, said) in [
        ("switch_ns = { value = 5 }", "switch_ns has no source"),
        ("switch_ns = { source = 'paper: x' }", "switch_ns has no value"),
        ("switch_ns = { value = 5, source = '' }", "switch_ns: the source"),
        ("switch_ns = { value = 5, source = 'paper: ' }", "switch_ns: the source"),
        (
            "switch_ns = { value = 5, source = 'somebody said so' }",
            "switch_ns: the source",
        ),
        (
            "switch_us = { value = 5, source = 'paper: x' }",
            "no key switch_us (did you mean switch_ns?)",
        ),
        ("switch_ns = { value = -5, source = 'paper: x' }", "switch_ns = -5"),
        ("switch_ns = { value = 5.5, source = 'paper: x' }", "switch_ns = 5.5"),
        ("switch_ns = { value = nan, source = 'paper: x' }", "switch_ns = NaN"),
        ("slice_ns = { value = 0, source = 'paper: x' }", "slice_ns = 0"),
        (
            "switch_ns = { value = 5, source = 'paper: x', unit = 'us' }",
            "unknown field",
        ),
        ("switch_ns = 5", "invalid type"),
        ("switch_ns = {", "test.toml"),
    ] {
        let error = parse(values).expect_err(values);
        assert!(error.contains(said), "{values}: {error}");
        assert!(error.contains("test.toml"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let error = Calibration::load("no-such-gpu").unwrap_err().to_string();
    assert!(
        error.contains("no calibration no-such-gpu") && error.contains(STANDARD),
        "{error}"
    );
    let error = Calibration::load("/nonexistent/x.toml").unwrap_err().to_string();
    assert!(error.contains("/nonexistent/x.toml"), "{error}");
    let error = Calibration::parse("gpu = 'x'\nbase = 'y'\n[values]\n", "x.toml")
        .unwrap_err()
        .to_string();
    assert!(error.contains("no calibration y"), "{error}");
    let lacking = Calibration::parse("gpu = 'x'\n[values]\n", "x.toml").unwrap();
    assert!(lacking.figures().unwrap_err().to_string().contains("no slice_ns"));
}

#[test]
fn a_value_of_its_own_goes_over_the_bases() {
    let calibration = parse("switch_ns = { value = 7, source = 'paper: x' }").unwrap();
    let figures = calibration.figures().unwrap();
    assert_eq!(
        (figures.engine.switch, figures.engine.slice),
        (7, Settings::default().slice)
    );
    assert_eq!(calibration.own("slice_ns"), None);
    assert_eq!(
        calibration.value("slice_ns").map(|value| value.value),
        Some(1_500_000.0)
    );
}

#[test]
fn what_was_written_reads_the_same() {
    let mut calibration = Calibration::new("A \"quoted\" GPU", Some(STANDARD));
    for (at, key) in keys().iter().enumerate() {
        let value = Value {
            value: if key.unit == "ratio" {
                1.125
            } else {
                1_000.0 + at as f64
            },
            source: format!("measured: weft-gpu-probe \\ '{}'; run 1", key.name),
            n: Some(at as u64),
            p10: Some(1.5),
            p90: None,
        };
        calibration.set(&key.name, value).unwrap();
    }
    let text = calibration.text();
    assert_eq!(Calibration::parse(&text, "written").unwrap(), calibration);
    assert_eq!(text.lines().count(), 4 + keys().len(), "one value a line");
    let refused = calibration.set("nothing", calibration.own("slice_ns").unwrap().clone());
    assert!(refused.is_err());
}
