// SPDX-License-Identifier: MIT OR Apache-2.0
//! Movable memory on a simulated GPU: memory that leaves is free for others, and comes back with
//! its contents.
#![allow(missing_docs, reason = "the tests' names say it")]

mod simulated;

use simulated::Device;

const PIECE_BYTES: f64 = 67_108_864.0;

#[test]
fn memory_that_leaves_is_free_and_comes_back_with_its_contents() {
    // A quarter of the memory that a context leaves: two pieces and some.
    let device = Device::new("[device]\nmemory = 671088640\ncontext_memory = 16777216\n");
    let run = device.probe(&["movable", "--budget", "60"]);
    run.is_good();
    let value = |name: &str| run.value("vmm", name);
    for prefix in ["", "whole_"] {
        let of = |name: &str| value(&format!("{prefix}{name}"));
        let equal = run.line("vmm", &format!("{prefix}contents_equal"));
        assert_eq!(equal.expect("a verdict")["fact"], true);
        assert_eq!(of("free_before") - of("free_mapped"), 2.0 * PIECE_BYTES);
        assert_eq!(of("free_evicted") - of("free_mapped"), 2.0 * PIECE_BYTES);
        assert_eq!(of("free_after"), of("free_before"));
        // By the device's clock and the built-in link; nothing is faster than that.
        for copy in ["copy_out", "copy_in"] {
            assert!(
                of(copy) > 0.0 && of(copy) < 22_200.0 * 1.02,
                "{prefix}{copy}: {}",
                of(copy)
            );
        }
        for step in ["reserve", "create", "map", "set_access", "unmap_release", "map_again"] {
            assert!(of(step) > 0.0 && of(&format!("{step}_gib")) > 0.0, "{prefix}{step}");
        }
    }
    // Rounds of two pieces, and of one.
    let count = |name: &str| run.line("vmm", name).and_then(|line| line["n"].as_u64());
    let rounds = count("create_gib").expect("rounds");
    assert!(rounds >= 1);
    assert_eq!((count("create"), count("reserve")), (Some(2 * rounds), Some(rounds)));
    assert_eq!(count("whole_create"), count("whole_create_gib"));
}

#[test]
fn without_room_for_a_piece_it_fails_and_names_what_it_needs() {
    let device = Device::new("[device]\nmemory = 134217728\ncontext_memory = 1048576\n");
    let run = device.probe(&["movable", "--budget", "60"]);
    assert_eq!(run.end("failed"), ["vmm"]);
    assert!(
        run.error("vmm").is_some_and(|error| error.contains("at least")),
        "{:?}",
        run.error("vmm")
    );
}
