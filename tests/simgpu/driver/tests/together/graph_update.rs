// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instantiated graphs that change: parameters of one node, a whole new graph, nodes switched off,
//! launches in many places.

use std::ptr::null;

use crate::cuda::*;

#[test]
fn parameters_change_before_each_replay() {
    // As XLA: every kernel node's parameters are rewritten before each launch.
    let c = cuda();
    let (a, s, graph) = (c.words(64), c.stream(), c.graph());
    let mut nodes = Vec::new();
    let mut last = Vec::new();
    for word in 0..8u64 {
        let node = c.add_fill(graph, &last, a + 4 * word, 0, 1);
        nodes.push(node);
        last = vec![node];
    }
    let exec = c.instantiate(graph);
    for round in 1..4u32 {
        for (word, node) in (0u64..).zip(&nodes) {
            let given = Given::new(&[a + 4 * word, (100 * round + word as u32).into(), 1]);
            let params = c.node(c.fill, &given);
            assert_eq!(c.cuGraphExecKernelNodeSetParams_v2(exec, *node, &params), SUCCESS);
        }
        c.run(exec, s);
        let expected: Vec<u32> = (0..8).map(|word| 100 * round + word).collect();
        assert_eq!(c.read(a, 8), expected);
    }
    // The graph it came from is as it was.
    let again = c.instantiate(graph);
    c.run(again, s);
    assert_eq!(c.read(a, 8), [0; 8]);
    // A launch in flight keeps the parameters it was launched with.
    let set = |value: u64| {
        let given = Given::new(&[a, value, 1]);
        assert_eq!(
            c.cuGraphExecKernelNodeSetParams_v2(exec, nodes[0], &c.node(c.fill, &given)),
            SUCCESS
        );
    };
    let b = c.words(4);
    for value in 1..4u64 {
        set(value);
        assert_eq!(c.cuGraphLaunch(exec, s), SUCCESS);
        assert_eq!(c.cuMemcpyDtoDAsync_v2(b + 4 * (value - 1), a, 4, s), SUCCESS);
    }
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    assert_eq!(c.read(b, 3), [1, 2, 3]);
}

#[test]
fn copies_and_fills_change() {
    let c = cuda();
    let (a, b, s, graph) = (c.words(4), c.words(4), c.stream(), c.graph());
    let set = SetParams {
        address: a,
        pitch: 0,
        value: 1,
        element: 4,
        width: 4,
        height: 1,
    };
    let words = |to: u64, from: u64| {
        let mut words = [0u64; 25];
        (words[4], words[6], words[15], words[17]) = (2, from, 2, to);
        (words[22], words[23], words[24]) = (16, 1, 1);
        words
    };
    let (mut fill, mut copy) = (0, 0);
    assert_eq!(c.cuGraphAddMemsetNode(&mut fill, graph, null(), 0, &set, 0), SUCCESS);
    assert_eq!(
        c.cuGraphAddMemcpyNode(&mut copy, graph, &fill, 1, &words(b, a), 0),
        SUCCESS
    );
    let exec = c.instantiate(graph);
    let other = SetParams { value: 2, ..set };
    assert_eq!(c.cuGraphExecMemsetNodeSetParams(exec, fill, &other, 0), SUCCESS);
    let d = c.words(4);
    assert_eq!(c.cuGraphExecMemcpyNodeSetParams(exec, copy, &words(d, a), 0), SUCCESS);
    assert_eq!(
        c.cuGraphExecMemcpyNodeSetParams(exec, fill, &words(d, a), 0),
        INVALID_VALUE,
        "not a copy"
    );
    c.run(exec, s);
    assert_eq!(
        (c.read(a, 4), c.read(b, 4), c.read(d, 4)),
        (vec![2; 4], vec![0; 4], vec![2; 4])
    );
}

/// Captures a chain of fills.
fn captured(c: &Cuda, s: Handle, at: u64, values: &[u32]) -> Handle {
    c.begin(s, THREAD_LOCAL);
    for (word, value) in (0u64..).zip(values) {
        assert_eq!(c.fill(at + 4 * word, *value, 1, s), SUCCESS);
    }
    c.end(s)
}

#[test]
fn a_graph_of_the_same_shape_updates_it() {
    // As llama.cpp: captures anew and updates the instantiated graph.
    let c = cuda();
    let (a, s) = (c.words(8), c.stream());
    let graph = captured(&c, s, a, &[1, 2, 3]);
    let exec = c.instantiate(graph);
    let other = captured(&c, s, a + 4, &[7, 8, 9]);
    let mut info = [99u64; 3];
    assert_eq!(c.cuGraphExecUpdate_v2(exec, other, &mut info), SUCCESS);
    assert_eq!(info[0] as u32, 0);
    c.run(exec, s);
    assert_eq!(c.read(a, 5), [0, 7, 8, 9, 0]);
    // Nodes of the first graph still name the items.
    let first = c.nodes(graph)[0];
    let given = Given::new(&[a, 5, 1]);
    assert_eq!(
        c.cuGraphExecKernelNodeSetParams_v2(exec, first, &c.node(c.fill, &given)),
        SUCCESS
    );
    c.run(exec, s);
    assert_eq!(c.read(a, 5), [5, 7, 8, 9, 0]);

    // More nodes, other kinds, other edges: refused, and the exec stays as it was.
    const TOPOLOGY_CHANGED: u32 = 2;
    const NODE_TYPE_CHANGED: u32 = 3;
    let longer = captured(&c, s, a, &[1, 2, 3, 4]);
    assert_eq!(c.cuGraphExecUpdate_v2(exec, longer, &mut info), UPDATE_FAILURE);
    assert_eq!(
        (info[0] as u32, info[1] as Handle),
        (TOPOLOGY_CHANGED, c.nodes(longer)[3])
    );
    c.begin(s, GLOBAL);
    assert_eq!(c.fill(a, 1, 1, s), SUCCESS);
    assert_eq!(c.cuMemsetD32Async(a, 1, 1, s), SUCCESS);
    assert_eq!(c.fill(a, 1, 1, s), SUCCESS);
    let mixed = c.end(s);
    assert_eq!(c.cuGraphExecUpdate_v2(exec, mixed, &mut info), UPDATE_FAILURE);
    assert_eq!(
        (info[0] as u32, info[1] as Handle),
        (NODE_TYPE_CHANGED, c.nodes(mixed)[1])
    );
    let wide = c.graph();
    for word in 0..3 {
        c.add_fill(wide, &[], a + 4 * word, 1, 1);
    }
    assert_eq!(c.cuGraphExecUpdate_v2(exec, wide, &mut info), UPDATE_FAILURE);
    assert_eq!(info[0] as u32, TOPOLOGY_CHANGED);
    c.run(exec, s);
    assert_eq!(c.read(a, 5), [5, 7, 8, 9, 0]);
}

#[test]
fn nodes_switch_off_and_on() {
    let c = cuda();
    let (a, s, graph) = (c.words(3), c.stream(), c.graph());
    let first = c.add_fill(graph, &[], a, 1, 1);
    let second = c.add_fill(graph, &[first], a + 4, 1, 1);
    let mut empty = 0;
    assert_eq!(c.cuGraphAddEmptyNode(&mut empty, graph, &second, 1), SUCCESS);
    c.add_fill(graph, &[empty], a + 8, 1, 1);
    let exec = c.instantiate(graph);
    let mut enabled = 9;
    assert_eq!(c.cuGraphNodeSetEnabled(exec, second, 0), SUCCESS);
    assert_eq!(c.cuGraphNodeGetEnabled(exec, second, &mut enabled), SUCCESS);
    assert_eq!(enabled, 0);
    assert_eq!(
        c.cuGraphNodeSetEnabled(exec, empty, 0),
        INVALID_VALUE,
        "only kernels, copies and fills"
    );
    c.run(exec, s);
    assert_eq!(c.read(a, 3), [1, 0, 1]);
    assert_eq!(c.cuGraphNodeSetEnabled(exec, second, 1), SUCCESS);
    c.run(exec, s);
    assert_eq!(c.read(a, 3), [1, 1, 1]);
}

#[test]
fn launches_of_one_exec_do_not_overlap() {
    let c = cuda();
    let (counter, one, s, t) = (c.words(1), c.words(1), c.stream(), c.stream());
    assert_eq!(c.fill(one, 1f32.to_bits(), 1, s), SUCCESS);
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    // counter += 1, three times a launch; two streams launch it in turn.
    let graph = c.graph();
    let mut last = Vec::new();
    for _ in 0..3 {
        let given = Given::new(&[counter, one, 1f32.to_bits().into(), 1]);
        let mut node = 0;
        let params = c.node(c.axpy, &given);
        assert_eq!(
            c.cuGraphAddKernelNode_v2(&mut node, graph, last.as_ptr(), last.len(), &params),
            SUCCESS
        );
        last = vec![node];
    }
    let exec = c.instantiate(graph);
    for _ in 0..10 {
        assert_eq!(c.cuGraphLaunch(exec, s), SUCCESS);
        assert_eq!(c.cuGraphLaunch(exec, t), SUCCESS);
    }
    assert_eq!(c.cuGraphUpload(exec, s), SUCCESS);
    assert_eq!(c.cuStreamSynchronize(t), SUCCESS);
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    assert_eq!(f32::from_bits(c.read(counter, 1)[0]), 60.0);
}

#[test]
fn a_launch_into_a_capture_becomes_a_child() {
    let c = cuda();
    let (a, s, graph) = (c.words(2), c.stream(), c.graph());
    let first = c.add_fill(graph, &[], a, 4, 1);
    c.add_copy(graph, &[first], a + 4, a, 4);
    let exec = c.instantiate(graph);
    c.begin(s, GLOBAL);
    assert_eq!(c.cuGraphLaunch(exec, s), SUCCESS);
    assert_eq!(c.fill(a, 1, 1, s), SUCCESS);
    let outer = c.end(s);
    assert_eq!(c.kinds(outer), [4, 0]);
    assert_eq!(c.read(a, 2), [0, 0]);
    let both = c.instantiate(outer);
    assert_eq!(c.cuGraphExecDestroy(exec), SUCCESS);
    c.run(both, s);
    assert_eq!(c.read(a, 2), [1, 4]);
}

#[test]
fn event_times_around_a_launch_span_its_kernels() {
    let c = cuda();
    let (a, s, graph) = (c.words(1), c.stream(), c.graph());
    let (from, to) = (c.event(), c.event());
    let mut flag: *mut u32 = std::ptr::null_mut();
    assert_eq!(c.cuMemHostAlloc(&mut flag, 4, 0), SUCCESS);
    // SAFETY: four bytes of pinned memory.
    unsafe { flag.write_volatile(0) };
    // A kernel that gives up after 3 ms of the device's time, since the word is never set; then one
    // more.
    let given = Given::new(&[flag.addr() as u64, 3_000_000]);
    let mut spin = 0;
    assert_eq!(
        c.cuGraphAddKernelNode_v2(&mut spin, graph, null(), 0, &c.node(c.spin, &given)),
        SUCCESS
    );
    c.add_fill(graph, &[spin], a, 1, 1);
    let exec = c.instantiate(graph);
    assert_eq!(c.cuEventRecord(from, s), SUCCESS);
    assert_eq!(c.cuGraphLaunch(exec, s), SUCCESS);
    assert_eq!(c.cuEventRecord(to, s), SUCCESS);
    assert_eq!(c.cuEventSynchronize(to), SUCCESS);
    let mut milliseconds = 0.0;
    assert_eq!(c.cuEventElapsedTime_v2(&mut milliseconds, from, to), SUCCESS);
    assert!(milliseconds >= 3.0, "{milliseconds}");
    assert_eq!(c.read(a, 1), [1]);
    assert_eq!(c.cuMemFreeHost(flag), SUCCESS);
}
