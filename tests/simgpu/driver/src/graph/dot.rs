// SPDX-License-Identifier: MIT OR Apache-2.0
//! A graph as DOT text, for people.
#![forbid(unsafe_code)]

use std::fmt::Write as _;

use crate::graph::model::{Body, Graph, kind};
use crate::graph::query::all_edges;
use crate::work::StreamWork;

/// A node's name in the picture.
fn label(body: &Body) -> String {
    let name = match body.kind() {
        kind::KERNEL => "kernel",
        kind::MEMCPY => "memcpy",
        kind::MEMSET => "memset",
        kind::HOST => "host",
        kind::GRAPH => "graph",
        kind::EMPTY => "empty",
        kind::WAIT_EVENT => "wait event",
        kind::EVENT_RECORD => "record event",
        kind::MEM_ALLOC => "alloc",
        kind::MEM_FREE => "free",
        kind::BATCH_MEM_OP => "stream writes and waits",
        _ => "conditional",
    };
    match body {
        Body::Work(StreamWork::Kernel(launch)) => format!("{name} {}", launch.name()),
        Body::Free(address) => format!("{name} {address:#x}"),
        _ => name.to_string(),
    }
}

/// The whole graph; graphs inside nodes are clusters.
pub(super) fn text(graph: &Graph) -> String {
    let mut text = String::from("digraph cuda {\n");
    put(&mut text, graph, 1);
    text.push_str("}\n");
    text
}

fn put(text: &mut String, graph: &Graph, depth: usize) {
    let indent = "  ".repeat(depth);
    for node in graph.nodes() {
        let body = node.body();
        let label = label(&body).replace(['"', '\\'], "'");
        let _ = writeln!(text, "{indent}n{:x} [label=\"{} {label}\"];", node.handle, node.number);
        for inner in body.graphs() {
            let _ = writeln!(
                text,
                "{indent}subgraph cluster_{:x} {{ label=\"inside {}\";",
                inner.handle, node.number
            );
            put(text, &inner, depth + 1);
            let _ = writeln!(text, "{indent}}}");
        }
    }
    for (from, to, _) in all_edges(graph) {
        let _ = writeln!(text, "{indent}n{from:x} -> n{to:x};");
    }
}
