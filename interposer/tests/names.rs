// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weft knows every kind of launchable handle by its kernel's name, its module and its shape.

mod support;

use std::collections::BTreeSet;

use support::{run, stage, under_weft};

#[test]
fn handles_of_every_kind_have_names() {
    let said = run(under_weft(&stage().client)
        .arg("launch")
        .arg(&stage().counting)
        .env("WEFT_LOG", "debug"));
    assert!(said.success, "{said:#?}");
    // "... kernel HASH is NAME of module HASH"
    let seen: Vec<(&str, &str, &str)> = said
        .stderr
        .lines()
        .filter_map(|line| line.split_once("kernel ")?.1.split_once(" is "))
        .filter_map(|(hash, rest)| {
            rest.split_once(" of module ")
                .map(|(name, module)| (name, module, hash))
        })
        .collect();
    let named = |wanted: &str| seen.iter().filter(|(name, _, _)| *name == wanted).count();
    // Two shapes from one module, one from the other: one name, two modules, three identities.
    assert_eq!(named("fusion"), 3, "{}", said.stderr);
    let modules: BTreeSet<&str> = seen
        .iter()
        .filter(|(name, _, _)| *name == "fusion")
        .map(|(_, module, _)| *module)
        .collect();
    assert_eq!(modules.len(), 2);
    // A kernel passed as a function, and the function the driver made of it: two shapes of one
    // kernel.
    assert_eq!(named("as_kernel"), 2, "{}", said.stderr);
    // Through the module view of a library; the launch into a capture has an identity too.
    assert_eq!(named("of_view"), 2, "{}", said.stderr);
    let hashes: BTreeSet<&str> = seen.iter().map(|(_, _, hash)| *hash).collect();
    assert_eq!(hashes.len(), seen.len(), "an identity is told once");
    assert_eq!(said.number("arrived"), 10, "every launch reached the driver");
    assert_eq!(said.number("counter_troubles"), 0);
    assert_eq!(said.number("counter_unknown"), 0);
}

#[test]
fn with_weft_off_nothing_is_looked_at() {
    let said = run(under_weft(&stage().client)
        .arg("launch")
        .arg(&stage().counting)
        .env("WEFT_LOG", "debug")
        .env("WEFT_MODE", "off"));
    assert_eq!(said.number("arrived"), 10);
    assert!(!said.stderr.contains(" is fusion "), "{}", said.stderr);
}

#[test]
fn a_graph_is_what_it_is_made_of_now() {
    let said = run(under_weft(&stage().client).arg("graph").env("WEFT_LOG", "debug"));
    assert!(said.success, "{said:#?}");
    let made = said.get("made");
    assert_ne!(made, "0");
    for key in ["same", "unchanged", "changed_back", "updated", "same_still"] {
        assert_eq!(said.get(key), made, "{key}");
    }
    let others = ["other_kernel", "disabled", "other_child", "ended"].map(|key| said.get(key));
    assert_eq!(BTreeSet::from(others).len(), others.len(), "{others:?}");
    assert!(!others.contains(&made));
    assert_eq!(said.get("ended"), "0");
    // Not all nodes are read after each update, and the change is still seen.
    assert_eq!(said.get("unchanged_by_updates"), "1");
    assert_eq!(said.get("followed"), "1");
    // The body of a conditional node counts once. Here it has the same two kernels as the graph
    // with a child.
    assert_ne!(said.get("empty_loop"), said.get("loop"));
    assert_eq!(said.get("loop"), made);
    // The child's kernels count: two kernels in the graph as made.
    assert!(
        said.stderr.contains(&format!("graph {made:0>16} has 2 kernels")),
        "{}",
        said.stderr
    );
}

#[test]
fn threads_launch_while_others_load_and_unload() {
    let said = run(under_weft(&stage().client)
        .arg("threads")
        .arg(&stage().counting)
        .env("WEFT_LOG", "debug"));
    assert!(said.success, "{said:#?}");
    assert_eq!(said.number("arrived"), said.number("expected"));
    assert_eq!(said.number("counter_troubles"), 0);
    let told = |name: &str| {
        said.stderr
            .lines()
            .filter(|line| line.contains(&format!(" is {name} of module")))
            .count()
    };
    // Four kernels in three shapes each, reported once each however many threads launch them.
    for name in ["k0", "k1", "k2", "k3"] {
        assert_eq!(told(name), 3, "{name}");
    }
    // Each of these came from an image of its own.
    assert_eq!(told("passing"), 400);
}
