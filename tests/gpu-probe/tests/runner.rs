// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runner of probes: each probe runs by itself, within the budget, with one line for each that
//! did not.
#![allow(missing_docs, reason = "the tests' names say it")]

mod simulated;

use std::time::{Duration, Instant};

use simulated::Device;

#[test]
fn a_probe_that_fails_crashes_or_hangs_stops_no_other_and_leaves_nobody() {
    let run = Device::new("").probe(&["selftest", "--budget", "60"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.lines[0]["probe"], "about");
    assert_eq!(run.lines[0]["simulated"], true);
    assert_eq!(run.value("good", "answer"), 42.0);
    assert_eq!(run.error("fails"), Some("as it should"));
    assert!(run.error("crashes").is_some_and(|error| error.contains("signal")));
    assert!(run.error("hangs").is_some_and(|error| error.contains("did not end")));
    assert_eq!(run.end("failed"), ["fails", "crashes", "hangs"]);
    // The process that the hanging probe had started ends with it.
    if let Some(peer) = run.line("hangs", "peer") {
        let process = format!("/proc/{}/stat", peer["fact"]);
        // A zombie counts as dead: in a container, orphans may never be waited for.
        let lives = || std::fs::read_to_string(&process).is_ok_and(|text| !text.contains(") Z "));
        let begin = Instant::now();
        while lives() {
            assert!(begin.elapsed() < Duration::from_secs(30), "{process}: lives");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn what_does_not_fit_the_budget_is_named() {
    // Less time than any probe is begun with.
    let run = Device::new("").probe(&["calibration", "--budget", "1", "--only", "copy", "--only", "launch"]);
    assert_eq!(run.code, Some(0));
    // In the order in which they are named.
    assert_eq!(run.end("left_out"), ["copy", "launch"]);
    for probe in ["launch", "copy"] {
        let line = run.lines.iter().find(|line| line["probe"] == probe);
        assert!(line.is_some_and(|line| line["skipped"].is_string()), "{probe}");
    }
}

#[test]
fn without_a_driver_it_says_so_and_ends() {
    let run = Device::none().probe(&["calibration"]);
    assert_eq!(run.code, Some(3));
    assert_eq!(run.lines.len(), 1);
    assert!(
        run.error("about").is_some_and(|error| error.contains("libcuda.so.1")),
        "{:?}",
        run.lines
    );
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
}

#[test]
fn a_wrong_command_line_is_refused() {
    let device = Device::none();
    for arguments in [
        vec!["calibration", "--only", "nothing"],
        vec!["calibration", "--budget", "0"],
        vec!["memory", "--budget", "much"],
        vec!["measure"],
    ] {
        let run = device.probe(&arguments);
        assert_eq!(run.code, Some(2), "{arguments:?}");
        assert!(run.lines.is_empty(), "{arguments:?}");
        assert!(!run.stderr.is_empty(), "{arguments:?}");
    }
    let run = device.probe(&["calibration", "--only", "nothing"]);
    assert!(
        run.stderr.contains("no probe nothing") && run.stderr.contains("copy"),
        "{}",
        run.stderr
    );
    assert_eq!(run.stderr.lines().count(), 1);
}

#[test]
fn little_memory_fails_what_needs_more_and_nothing_else() {
    let device = Device::new("[device]\nmemory = 8388608\ncontext_memory = 1048576\n");
    let run = device.probe(&[
        "calibration",
        "--only",
        "spacing",
        "--only",
        "prefetch",
        "--only",
        "alloc",
        "--budget",
        "100",
    ]);
    assert_eq!(run.code, Some(0));
    assert_eq!(run.end("failed"), ["prefetch", "alloc"]);
    for probe in ["prefetch", "alloc"] {
        assert!(
            run.error(probe).is_some_and(|error| error.contains("at least")),
            "{:?}",
            run.error(probe)
        );
    }
    assert!(run.value("spacing", "smallest_kernel") > 0.0);
}
