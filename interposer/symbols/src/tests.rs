// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeSet;

use super::{Class, Entry, Flavour, QueueRule, TABLE, header_version, parse, resolve, table};

fn checked_in() -> Vec<Entry<'static>> {
    table().expect("the checked-in table parses")
}

#[test]
fn the_table_is_whole_and_sorted() {
    let entries = checked_in();
    // The public header of CUDA 13.5 with the interop headers; fewer means a lost line.
    assert!(entries.len() >= 723, "{}", entries.len());
    assert!(entries.is_sorted_by_key(|entry| entry.symbol));
    assert!(header_version() >= 13050);
}

#[test]
fn every_per_thread_entry_has_a_plain_twin() {
    let entries = checked_in();
    let symbols: BTreeSet<&str> = entries.iter().map(|entry| entry.symbol).collect();
    let twins = entries.iter().filter(|entry| entry.flavour.per_thread());
    let mut count = 0;
    for entry in twins {
        count += 1;
        let plain = entry.symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        assert!(symbols.contains(plain), "{} has no twin {plain}", entry.symbol);
    }
    assert!(count >= 99, "{count}");
}

#[test]
fn whatever_takes_a_stream_or_looks_like_work_is_classified() {
    // Classes that take a stream and put nothing on it.
    let harmless = [Class::Sync, Class::Query, Class::Capture, Class::Stream, Class::Graph];
    for entry in checked_in() {
        let work = ["cuMemcpy", "cuMemset", "cuLaunch"]
            .iter()
            .any(|prefix| entry.base.starts_with(prefix));
        let streams = entry.stream.is_some() || entry.flavour.per_thread();
        if work {
            assert!(entry.class.is_ordered(), "{} is {}", entry.symbol, entry.class.name());
        } else if streams {
            assert!(
                entry.class.is_ordered() || harmless.contains(&entry.class),
                "{}",
                entry.symbol
            );
        }
    }
}

#[test]
fn a_version_and_a_flavour_choose_the_symbol() {
    let entries = checked_in();
    let symbol = |base, version, per_thread| resolve(&entries, base, version, per_thread).map(|entry| entry.symbol);
    assert_eq!(symbol("cuMemAlloc", 2000, false), Some("cuMemAlloc"));
    assert_eq!(symbol("cuMemAlloc", 12000, false), Some("cuMemAlloc_v2"));
    assert_eq!(symbol("cuMemcpyHtoD", 12000, true), Some("cuMemcpyHtoD_v2_ptds"));
    assert_eq!(symbol("cuMemcpyHtoD", 6000, true), Some("cuMemcpyHtoD_v2"));
    assert_eq!(symbol("cuLaunchKernel", 13000, true), Some("cuLaunchKernel_ptsz"));
    assert_eq!(symbol("cuMemAlloc", 12000, true), Some("cuMemAlloc_v2"));
    assert_eq!(symbol("cuGetProcAddress", 11030, false), Some("cuGetProcAddress"));
    assert_eq!(symbol("cuGetProcAddress", 12000, false), Some("cuGetProcAddress_v2"));
    assert_eq!(symbol("cuLaunchKernel", 3020, false), None);
    assert_eq!(symbol("", 0, false), None);
}

#[test]
fn no_two_symbols_answer_the_same_question() {
    let mut seen = BTreeSet::new();
    for entry in checked_in() {
        let question = (entry.base, entry.since, entry.flavour.per_thread());
        assert!(
            seen.insert(question),
            "{} is asked for like another symbol",
            entry.symbol
        );
    }
}

#[test]
fn positions_of_arguments_are_right_where_we_know_them() {
    let entries = checked_in();
    let of = |symbol: &str| *entries.iter().find(|entry| entry.symbol == symbol).expect(symbol);
    assert_eq!((of("cuLaunchKernel").args, of("cuLaunchKernel").stream), (11, Some(8)));
    assert_eq!(
        (of("cuMemcpyDtoHAsync_v2").stream, of("cuMemcpyDtoHAsync_v2").size),
        (Some(3), Some(2))
    );
    assert_eq!(
        (of("cuMemsetD32_v2").stream, of("cuMemsetD32_v2").size),
        (None, Some(2))
    );
    assert_eq!(of("cuMemAlloc_v2").size, Some(1));
    assert_eq!(of("cuStreamSynchronize").stream, Some(0));
}

#[test]
fn a_bad_line_is_refused_with_its_number() {
    let good = "cuInit\tcuInit\t2000\tplain\tinit\t1\t-\t-\tsync-free";
    assert_eq!(parse(good).map(|entries| entries.len()), Ok(1));
    let refused = |line: &str| {
        let error = parse(&format!("# a remark\n{good}\n{line}\n")).expect_err(line);
        assert_eq!(error.line, 3, "{error}");
        error.to_string()
    };
    assert!(refused("cuFoo\tcuFoo\t2000\tplain\tnonsense\t1\t-\t-\tempties").contains("unknown class 'nonsense'"));
    assert!(refused("cuFoo\tcuFoo\t2000\todd\tinit\t1\t-\t-\tempties").contains("unknown flavour 'odd'"));
    assert!(refused("cuFoo\tcuFoo\tnew\tplain\tinit\t1\t-\t-\tempties").contains("not a CUDA version"));
    assert!(refused("cuFoo\tcuFoo\t2000\tplain\tinit\t1\t1\t-\tempties").contains("past its last one"));
    assert!(refused("cuFoo\tcuFoo\t2000\tplain\tinit\t1\t-\t-").contains("8 fields"));
    assert!(refused("cuFoo\tcuFoo\t2000\tplain\tinit\t1\t-\t-\tlater").contains("unknown queue rule 'later'"));
    assert!(refused("cuFoo_ptsz\tcuFoo\t2000\tplain\tinit\t1\t-\t-\tempties").contains("flavour"));
    assert!(refused("fooBar\tfooBar\t2000\tplain\tinit\t1\t-\t-\tempties").contains("not a name"));
    assert!(refused(good).contains("already on line 2"));
}

#[test]
fn class_names_go_there_and_back() {
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split('\t').nth(4).expect("a class");
        assert_eq!(Class::parse(name).map(Class::name), Some(name));
    }
    assert_eq!(Class::parse("other"), None);
    assert_eq!(Flavour::parse(""), None);
}

#[test]
fn all_versions_and_flavours_of_a_name_have_one_rule_for_the_queue() {
    // 32-bit addresses are not deferred.
    let narrow = ["cuMemcpyDtoDAsync"];
    let entries = checked_in();
    for entry in entries.iter().filter(|entry| !narrow.contains(&entry.symbol)) {
        let twin = entries.iter().rfind(|other| other.base == entry.base).expect("itself");
        assert_eq!(entry.queue, twin.queue, "{}", entry.symbol);
    }
}

#[test]
fn no_call_with_a_place_on_a_stream_is_sync_free() {
    for entry in checked_in() {
        let free = entry.queue == QueueRule::SyncFree;
        assert!(!(free && entry.class.is_ordered()), "{}", entry.symbol);
    }
}

#[test]
fn all_work_but_plain_launches_waits_for_the_queue() {
    for entry in checked_in().iter().filter(|entry| entry.class.is_ordered()) {
        let launches = matches!(entry.class, Class::Launch | Class::GraphLaunch);
        let own = launches && !entry.base.starts_with("cuLaunchCooperative");
        assert_eq!(entry.queue.waits(), !own, "{}", entry.symbol);
    }
}

#[test]
fn what_is_deferrable_takes_four_words_and_a_stream() {
    let entries = checked_in();
    let deferrable = entries.iter().filter(|entry| entry.queue == QueueRule::Deferrable);
    let mut count = 0;
    for entry in deferrable {
        count += 1;
        assert_eq!(
            (entry.args, entry.stream, entry.size),
            (4, Some(3), Some(2)),
            "{}",
            entry.symbol
        );
        assert!(entry.since >= 3020, "{} has 32-bit addresses", entry.symbol);
    }
    assert_eq!(count, 8);
}
