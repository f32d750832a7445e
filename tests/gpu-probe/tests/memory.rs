// SPDX-License-Identifier: MIT OR Apache-2.0
//! The probes of managed memory on a simulated GPU, which has no page ledger but tracks the place
//! to which prefetches put memory.
#![allow(missing_docs, reason = "the tests' names say it")]

mod simulated;

use simulated::Device;

#[test]
fn two_jobs_on_managed_memory() {
    let run = Device::new("").probe(&["memory", "--budget", "200"]);
    run.is_good();
    // A driver of CUDA 13 has both forms of a prefetch, batches and discards.
    for name in [
        "cuMemPrefetchAsync",
        "cuMemPrefetchAsync_v2",
        "cuMemPrefetchBatchAsync",
        "cuMemDiscardBatchAsync",
        "cuMemDiscardAndPrefetchBatchAsync",
        "to_device_by_number",
        "to_device_by_place",
        "to_host_by_number",
        "to_host_by_place",
    ] {
        let line = run
            .line("signatures", name)
            .unwrap_or_else(|| panic!("nothing about {name}"));
        assert_eq!(line["fact"], true, "{line}");
    }
    // 128 MiB over a link of 22,200 bytes a microsecond take 6 ms.
    let copied = run.value("discard", "out_copied");
    assert!(copied > 6.0e6, "{copied}");
    assert!(run.value("discard", "out_discarded") < copied / 10.0);
    assert!(run.value("discard", "out_discard_and_prefetch") < copied / 10.0);
    assert!(run.value("read-mostly", "read_mostly_leaving") < run.value("read-mostly", "plain_leaving") / 10.0);

    // Only a collapse to the host frees the device's copy, and it copies only pages that the host
    // does not have.
    let freed = |way: &str| run.value("read-mostly", &format!("{way}_freed"));
    assert_eq!(
        [
            "stay",
            "prefetch_to_host",
            "collapse_to_device",
            "collapse_to_host",
            "collapse_to_host_written"
        ]
        .map(freed),
        [0.0, 0.0, 0.0, 1.0, 1.0]
    );
    assert!(run.value("read-mostly", "collapse_to_host_leaving") < copied / 10.0);
    assert!(run.value("read-mostly", "collapse_to_host_written_leaving") > copied / 2.0);
    assert!(run.value("read-mostly", "collapse_to_host_again") > copied / 2.0);
    assert!(run.value("read-mostly", "prefetch_to_host_again") < copied / 10.0);

    // The limits of the simulator are reported: kernels fault nothing, so the host's page table
    // shows nothing.
    assert_eq!(run.value("page-table", "present_never_touched"), 0.0);
    assert_eq!(run.value("page-table", "present_populated"), 1.0);
    let shows = run.line("page-table", "shows_what_kernels_pulled").expect("a verdict");
    assert_eq!(shows["fact"], false);
    assert!(
        shows["note"]
            .as_str()
            .is_some_and(|note| note.contains("no page ledger"))
    );

    // A prefetched switch takes the link's time and the kernel's.
    let bytes = run
        .line("swap", "prefetch_and_run")
        .and_then(|line| line["bytes"].as_f64())
        .expect("bytes");
    let link = bytes * 1000.0 / 22_200.0;
    let (prefetched, resident) = (run.value("swap", "prefetch_and_run"), run.value("swap", "run_resident"));
    assert!(
        prefetched > link && prefetched > resident,
        "{prefetched} {link} {resident}"
    );
}

/// If requested, the simulated driver takes pages out of the process's page table as they move to
/// the device.
#[test]
fn pages_on_the_device_are_not_in_the_page_table() {
    let device = Device::new("").with("SIMGPU_PAGE_TABLE", "on");
    let run = device.probe(&["memory", "--only", "page-table", "--budget", "60"]);
    run.is_good();
    assert_eq!(run.value("page-table", "present_populated"), 1.0);
    assert_eq!(run.value("page-table", "present_on_device"), 0.0);
    assert_eq!(
        run.value("page-table", "present_evicted"),
        0.0,
        "no prefetch to the host maps pages there"
    );
    assert_eq!(run.value("page-table", "present_evicted_and_touched"), 1.0);
    for after in ["after_host", "after_eviction_and_touch"] {
        assert!(
            run.value("page-table", &format!("{after}_touched_gone")) > 0.0,
            "{after}"
        );
        assert_eq!(run.value("page-table", &format!("{after}_others_gone")), 0.0, "{after}");
    }
}
