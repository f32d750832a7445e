// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs made node by node: structure, data, every kind of node.

use std::ptr::{null, null_mut};
use std::sync::Mutex;

use crate::cuda::*;

#[test]
fn edges_decide_the_order_and_not_the_order_of_making() {
    let c = cuda();
    let (a, s, graph) = (c.words(4), c.stream(), c.graph());
    let last = c.add_fill(graph, &[], a, 3, 4);
    let first = c.add_fill(graph, &[], a, 1, 4);
    let middle = c.add_fill(graph, &[first], a, 2, 2);
    let copy = c.add_copy(graph, &[], a + 8, a, 4);
    let (from, to) = ([middle, copy], [copy, last]);
    assert_eq!(c.cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), 2), SUCCESS);
    let watch = c.words(4);
    let keep = c.add_copy(graph, &[copy], watch, a, 16);
    assert_eq!(c.cuGraphAddDependencies(graph, &keep, &last, 1), SUCCESS);
    let exec = c.instantiate(graph);
    c.run(exec, s);
    assert_eq!(c.read(watch, 4), [2, 2, 2, 1]);
    assert_eq!(c.read(a, 4), [3; 4]);

    let (mut roots, mut edges) = (0, 0);
    assert_eq!(c.cuGraphGetRootNodes(graph, null_mut(), &mut roots), SUCCESS);
    assert_eq!(c.cuGraphGetEdges(graph, null_mut(), null_mut(), &mut edges), SUCCESS);
    assert_eq!((roots, edges), (1, 5));
    let mut after = [0; 4];
    let mut count = 4;
    assert_eq!(
        c.cuGraphNodeGetDependentNodes(copy, after.as_mut_ptr(), &mut count),
        SUCCESS
    );
    assert_eq!((count, after), (2, [last, keep, 0, 0]));
    // A cycle cannot be instantiated; without its edge the graph can.
    assert_eq!(c.cuGraphAddDependencies(graph, &last, &first, 1), SUCCESS);
    let mut none = 0;
    assert_eq!(c.cuGraphInstantiateWithFlags(&mut none, graph, 0), INVALID_VALUE);
    let mut params = [0u64; 4];
    assert_eq!(
        c.cuGraphInstantiateWithParams(&mut none, graph, &mut params),
        INVALID_VALUE
    );
    assert_eq!(params[3], 2, "an invalid structure");
    assert_eq!(c.cuGraphRemoveDependencies(graph, &last, &first, 1), SUCCESS);
    assert_eq!(c.cuGraphRemoveDependencies(graph, &last, &first, 1), INVALID_VALUE);
    assert_eq!(
        c.cuGraphInstantiate_v2(&mut none, graph, null_mut(), null_mut(), 0),
        SUCCESS
    );
}

#[test]
fn mistakes_are_refused() {
    let c = cuda();
    let (a, graph, other) = (c.words(4), c.graph(), c.graph());
    let node = c.add_fill(graph, &[], a, 1, 4);
    let stranger = c.add_fill(other, &[], a, 1, 4);
    let mut made = 0;
    assert_eq!(
        c.cuGraphAddEmptyNode(&mut made, graph, &stranger, 1),
        INVALID_VALUE,
        "of another graph"
    );
    let twice = [node, node];
    assert_eq!(
        c.cuGraphAddEmptyNode(&mut made, graph, twice.as_ptr(), 2),
        INVALID_VALUE
    );
    assert_eq!(c.cuGraphAddDependencies(graph, &node, &node, 1), INVALID_VALUE);
    assert_eq!(c.cuGraphDestroyNode(node), SUCCESS);
    let mut kind = 0;
    assert_eq!(c.cuGraphNodeGetType(node, &mut kind), INVALID_HANDLE);
    assert_eq!(c.cuGraphDestroy(other), SUCCESS);
    assert_eq!(c.cuGraphDestroy(other), INVALID_HANDLE);
    assert_eq!(
        c.cuGraphNodeGetType(stranger, &mut kind),
        INVALID_HANDLE,
        "nodes go with their graph"
    );
    let mut exec = 0;
    assert_eq!(c.cuGraphInstantiateWithFlags(&mut exec, other, 0), INVALID_HANDLE);
    assert_eq!(
        c.cuGraphLaunch(graph, 0),
        INVALID_HANDLE,
        "a graph is not an instantiated one"
    );
}

#[test]
fn a_kernel_node_tells_its_parameters() {
    let c = cuda();
    let (a, graph, s) = (c.words(4), c.graph(), c.stream());
    let node = c.add_fill(graph, &[], a, 41, 4);
    let mut params = c.node(0, &Given::new(&[]));
    assert_eq!(c.cuGraphKernelNodeGetParams_v2(node, &mut params), SUCCESS);
    assert_eq!(
        (params.function, params.grid, params.block),
        (c.fill, [1, 1, 1], [32, 1, 1])
    );
    // As cuDNN: read a node, make another graph from its parameters.
    let copy = c.graph();
    let mut again = 0;
    assert_eq!(c.cuGraphAddKernelNode_v2(&mut again, copy, null(), 0, &params), SUCCESS);
    assert_eq!(c.cuGraphDestroy(graph), SUCCESS);
    let exec = c.instantiate(copy);
    c.run(exec, s);
    assert_eq!(c.read(a, 4), [41; 4]);
    const PRIORITY: u32 = 8;
    let mut value = [9; 8];
    assert_eq!(c.cuGraphKernelNodeGetAttribute(again, PRIORITY, &mut value), SUCCESS);
    assert_eq!(value, [0; 8]);
    assert_eq!(
        c.cuGraphKernelNodeSetAttribute(again, PRIORITY, &[3, 0, 0, 0, 0, 0, 0, 0]),
        SUCCESS
    );
    assert_eq!(c.cuGraphKernelNodeGetAttribute(again, PRIORITY, &mut value), SUCCESS);
    assert_eq!(value[0], 3);
}

/// `CUDA_MEMCPY3D` for linear memory: eleven words for each end, then width, height and depth.
fn copy_words(to: u64, from: u64, bytes: u64) -> [u64; 25] {
    const DEVICE: u64 = 2;
    let mut words = [0; 25];
    (words[4], words[6]) = (DEVICE, from);
    (words[15], words[17]) = (DEVICE, to);
    (words[22], words[23], words[24]) = (bytes, 1, 1);
    words
}

#[test]
fn copies_and_fills() {
    let c = cuda();
    let (a, b, graph, s) = (c.words(16), c.words(16), c.graph(), c.stream());
    let set = SetParams {
        address: a,
        pitch: 16,
        value: 6,
        element: 4,
        width: 2,
        height: 4,
    };
    let (mut fill, mut copy) = (0, 0);
    assert_eq!(
        c.cuGraphAddMemsetNode(&mut fill, graph, null(), 0, &set, c.context),
        SUCCESS
    );
    assert_eq!(
        c.cuGraphAddMemcpyNode(&mut copy, graph, &fill, 1, &copy_words(b, a, 24), c.context),
        SUCCESS
    );
    let exec = c.instantiate(graph);
    c.run(exec, s);
    assert_eq!(c.read(a, 16), [6, 6, 0, 0, 6, 6, 0, 0, 6, 6, 0, 0, 6, 6, 0, 0]);
    assert_eq!(c.read(b, 8), [6, 6, 0, 0, 6, 6, 0, 0]);
    let mut told = SetParams { address: 0, ..set };
    assert_eq!(c.cuGraphMemsetNodeGetParams(fill, &mut told), SUCCESS);
    assert_eq!(told, set);
    let mut words = [0; 25];
    assert_eq!(c.cuGraphMemcpyNodeGetParams(copy, &mut words), SUCCESS);
    assert_eq!((words[4], words[6], words[15], words[17], words[22]), (2, a, 2, b, 24));
    assert_eq!(c.cuGraphMemcpyNodeGetParams(fill, &mut words), INVALID_VALUE);
}

#[test]
fn a_child_graph_stands_in_its_nodes_place() {
    let c = cuda();
    let (a, s) = (c.words(4), c.stream());
    let inner = c.graph();
    let first = c.add_copy(inner, &[], a + 4, a, 4);
    c.add_copy(inner, &[first], a + 8, a + 4, 4);
    let outer = c.graph();
    let before = c.add_fill(outer, &[], a, 5, 1);
    let mut child = 0;
    assert_eq!(
        c.cuGraphAddChildGraphNode(&mut child, outer, &before, 1, inner),
        SUCCESS
    );
    c.add_copy(outer, &[child], a + 12, a + 8, 4);
    // The node has a copy: the original does not matter.
    assert_eq!(c.cuGraphDestroy(inner), SUCCESS);
    let mut held = 0;
    assert_eq!(c.cuGraphChildGraphNodeGetGraph(child, &mut held), SUCCESS);
    assert_eq!(c.kinds(held), [0, 0]);
    let exec = c.instantiate(outer);
    c.run(exec, s);
    assert_eq!(c.read(a, 4), [5, 5, 5, 5]);
}

#[test]
fn a_clone_is_a_graph_of_its_own() {
    let c = cuda();
    let (a, s, graph) = (c.words(4), c.stream(), c.graph());
    let first = c.add_fill(graph, &[], a, 1, 4);
    let second = c.add_fill(graph, &[first], a, 2, 2);
    let (mut clone, mut twin) = (0, 0);
    assert_eq!(c.cuGraphClone(&mut clone, graph), SUCCESS);
    assert_eq!(c.cuGraphNodeFindInClone(&mut twin, second, clone), SUCCESS);
    assert_eq!(twin, c.nodes(clone)[1]);
    assert_eq!(c.after(twin), [c.nodes(clone)[0]]);
    assert_eq!(c.cuGraphDestroyNode(twin), SUCCESS);
    assert_eq!(c.nodes(graph).len(), 2);
    let exec = c.instantiate(clone);
    c.run(exec, s);
    assert_eq!(c.read(a, 4), [1; 4]);
}

extern "C" fn push(list: *mut Mutex<Vec<u32>>) {
    // SAFETY: the test keeps the list until nothing calls this any more.
    unsafe { &*list }.lock().unwrap().push(1);
}

#[test]
fn events_and_host_functions_are_nodes() {
    let c = cuda();
    let (s, graph, record, wait) = (c.stream(), c.graph(), c.event(), c.event());
    let list = Box::into_raw(Box::new(Mutex::new(Vec::new())));
    let host = HostParams {
        function: push,
        data: list,
    };
    let (mut waits, mut calls, mut records) = (0, 0, 0);
    assert_eq!(c.cuGraphAddEventWaitNode(&mut waits, graph, null(), 0, wait), SUCCESS);
    assert_eq!(c.cuGraphAddHostNode(&mut calls, graph, &waits, 1, &host), SUCCESS);
    assert_eq!(
        c.cuGraphAddEventRecordNode(&mut records, graph, &calls, 1, record),
        SUCCESS
    );
    assert_eq!(c.kinds(graph), [6, 3, 7]);
    // The event that it waits for comes after a kernel that spins until the host sets a word.
    let mut flag: *mut u32 = null_mut();
    assert_eq!(c.cuMemHostAlloc(&mut flag, 4, 0), SUCCESS);
    // SAFETY: four bytes of pinned memory.
    unsafe { flag.write_volatile(0) };
    let spinning = c.stream();
    let limit = 20_000_000_000; // the test's end, if the word is never set
    assert_eq!(c.launch(c.spin, &[flag.addr() as u64, limit], spinning), SUCCESS);
    assert_eq!(c.cuEventRecord(wait, spinning), SUCCESS);
    let exec = c.instantiate(graph);
    assert_eq!(c.cuGraphLaunch(exec, s), SUCCESS);
    // SAFETY: made above, freed below; only locked in between.
    let seen = || unsafe { &*list }.lock().unwrap().len();
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(seen(), 0, "the graph waits");
    // SAFETY: as above.
    unsafe { flag.write_volatile(1) };
    assert_eq!(c.cuEventSynchronize(record), SUCCESS);
    assert_eq!(seen(), 1);
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    // SAFETY: from `into_raw`, and nothing is outstanding.
    drop(unsafe { Box::from_raw(list) });
    assert_eq!(c.cuMemFreeHost(flag), SUCCESS);
}

#[test]
fn memory_of_a_graph_lives_with_it() {
    let c = cuda();
    let (out, s, graph) = (c.words(4), c.stream(), c.graph());
    let (mut free, mut total) = (0, 0);
    assert_eq!(c.cuMemGetInfo_v2(&mut free, &mut total), SUCCESS);
    let bytes = 32 << 20;
    let mut params = AllocParams {
        pool: [0; 11],
        access: 0,
        access_count: 0,
        bytes,
        address: 0,
    };
    let mut alloc = 0;
    assert_eq!(
        c.cuGraphAddMemAllocNode(&mut alloc, graph, null(), 0, &mut params),
        SUCCESS
    );
    assert_ne!(params.address, 0);
    let fill = c.add_fill(graph, &[alloc], params.address, 4, 4);
    let copy = c.add_copy(graph, &[fill], out, params.address, 16);
    let mut freed = 0;
    assert_eq!(
        c.cuGraphAddMemFreeNode(&mut freed, graph, &copy, 1, params.address),
        SUCCESS
    );
    assert_eq!(
        c.cuGraphAddMemFreeNode(&mut freed, graph, &copy, 1, out),
        INVALID_VALUE,
        "not a graph's memory"
    );
    let exec = c.instantiate(graph);
    for _ in 0..2 {
        c.run(exec, s);
        assert_eq!(c.read(out, 4), [4; 4]);
    }
    let mut now = 0;
    assert_eq!(c.cuMemGetInfo_v2(&mut now, &mut total), SUCCESS);
    assert_eq!(free - now, bytes);
    assert_eq!(c.cuGraphDestroy(graph), SUCCESS);
    assert_eq!(c.cuMemGetInfo_v2(&mut now, &mut total), SUCCESS);
    assert_eq!(free - now, bytes, "the instantiated graph still has it");
    assert_eq!(c.cuGraphExecDestroy(exec), SUCCESS);
    assert_eq!(c.cuMemGetInfo_v2(&mut now, &mut total), SUCCESS);
    assert_eq!(free, now);
}

#[test]
fn captured_allocation_replays_and_is_freed_outside() {
    let c = cuda();
    let (out, s) = (c.words(4), c.stream());
    let mut at = 0;
    c.begin(s, GLOBAL);
    assert_eq!(c.cuMemAllocAsync(&mut at, 64, s), SUCCESS);
    assert_eq!(c.fill(at, 8, 4, s), SUCCESS);
    assert_eq!(c.cuMemcpyDtoDAsync_v2(out, at, 16, s), SUCCESS);
    let graph = c.end(s);
    assert_eq!(c.kinds(graph), [10, 0, 1]);
    let exec = c.instantiate(graph);
    c.run(exec, s);
    assert_eq!(c.read(out, 4), [8; 4]);
    assert_eq!(c.cuMemFreeAsync(at, s), SUCCESS, "what the graph left allocated");
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    c.run(exec, s);
    assert_eq!(c.cuMemFree_v2(at), SUCCESS);
    // The memory that the last launch leaves allocated outlives the graphs, until the client frees
    // it.
    c.run(exec, s);
    assert_eq!(c.cuGraphExecDestroy(exec), SUCCESS);
    assert_eq!(c.cuGraphDestroy(graph), SUCCESS);
    assert_eq!(c.read(at, 4), [8; 4]);
    assert_eq!(c.cuMemFreeAsync(at, s), SUCCESS);
    assert_eq!(c.cuMemFreeAsync(at, s), INVALID_VALUE);
}

/// `CUgraphNodeParams` of a conditional node.
fn conditional(value: u64, kind: u64, size: u64) -> [u64; 32] {
    const CONDITIONAL: u64 = 13;
    let mut params = [0; 32];
    (params[0], params[2], params[3]) = (CONDITIONAL, value, kind | size << 32);
    params
}

#[test]
fn conditional_nodes_run_what_their_first_value_chooses() {
    let c = cuda();
    let (a, s) = (c.words(8), c.stream());
    const ASSIGN_DEFAULT: u32 = 1;
    for (at, kind, size, default, runs) in [
        (0, 0, 1, 1, vec![0]),
        (1, 0, 2, 0, vec![1]),
        (2, 0, 1, 0, vec![]),
        (3, 1, 1, 1, vec![0]),
        (4, 2, 3, 2, vec![2]),
    ] {
        let graph = c.graph();
        let mut value = 0;
        assert_eq!(
            c.cuGraphConditionalHandleCreate(&mut value, graph, c.context, default, ASSIGN_DEFAULT),
            SUCCESS
        );
        let mut params = conditional(value, kind, size);
        let mut node = 0;
        assert_eq!(
            c.cuGraphAddNode_v2(&mut node, graph, null(), null(), 0, &mut params),
            SUCCESS
        );
        // SAFETY: the driver's array of `size` bodies, which lives as long as the node.
        let bodies = unsafe { std::slice::from_raw_parts(params[4] as *const Handle, size as usize) };
        for (number, body) in bodies.iter().enumerate() {
            c.add_fill(*body, &[], a + 4 * at, 10 + number as u32, 1);
        }
        let exec = c.instantiate(graph);
        c.run(exec, s);
        let ran: Vec<u32> = runs.iter().map(|body| 10 + body).collect();
        let expected = ran.first().copied().unwrap_or(0);
        assert_eq!(
            c.read(a + 4 * at, 1),
            [expected],
            "kind {kind}, size {size}, value {default}"
        );
        // As the real driver: neither a copy nor a child of another graph.
        let (mut clone, mut child) = (0, 0);
        assert_eq!(c.cuGraphClone(&mut clone, graph), NOT_SUPPORTED);
        assert_eq!(
            c.cuGraphAddChildGraphNode(&mut child, c.graph(), null(), 0, graph),
            NOT_SUPPORTED
        );
    }
}

#[test]
fn the_generic_call_makes_every_kind() {
    let c = cuda();
    let (a, graph, s, event) = (c.words(8), c.graph(), c.stream(), c.event());
    let given = Given::new(&[a, 3, 4]);
    let kernel = c.node(c.fill, &given);
    let mut params = [0u64; 32];
    params[2] = kernel.function as u64;
    params[3] = 1 | 1 << 32;
    params[4] = 1 | 32 << 32;
    params[5] = 1 | 1 << 32;
    params[7] = kernel.each.addr() as u64;
    let (mut first, mut second, mut third, mut fourth) = (0, 0, 0, 0);
    assert_eq!(
        c.cuGraphAddNode_v2(&mut first, graph, null(), null(), 0, &mut params),
        SUCCESS
    );
    let mut copy = [0u64; 32];
    copy[0] = 1;
    copy[4..29].copy_from_slice(&copy_words(a + 16, a, 16));
    assert_eq!(c.cuGraphAddNode(&mut second, graph, &first, 1, &mut copy), SUCCESS);
    let mut record = [0u64; 32];
    (record[0], record[2]) = (7, event as u64);
    assert_eq!(c.cuGraphAddNode(&mut third, graph, &second, 1, &mut record), SUCCESS);
    let mut empty = [0u64; 32];
    empty[0] = 5;
    assert_eq!(c.cuGraphAddNode(&mut fourth, graph, &third, 1, &mut empty), SUCCESS);
    let mut unknown = [77u64; 32];
    assert_eq!(
        c.cuGraphAddNode(&mut fourth, graph, null(), 0, &mut unknown),
        NOT_SUPPORTED
    );
    assert_eq!(c.kinds(graph), [0, 1, 7, 5]);
    let exec = c.instantiate(graph);
    c.run(exec, s);
    assert_eq!(c.read(a, 8), [3; 8]);
    assert_eq!(c.cuEventQuery(event), SUCCESS);
    let mut told = [0u64; 32];
    assert_eq!(c.cuGraphNodeGetParams(third, &mut told), SUCCESS);
    assert_eq!((told[0], told[2]), (7, event as u64));
    assert_eq!(c.cuGraphNodeGetParams(first, &mut told), SUCCESS);
    assert_eq!((told[0], told[2], told[4]), (0, c.fill as u64, 1 | 32 << 32));
    // And changes one in the instantiated graph.
    let given = Given::new(&[a, 9, 2]);
    params[7] = given.each().addr() as u64;
    assert_eq!(c.cuGraphExecNodeSetParams(exec, first, &mut params), SUCCESS);
    c.run(exec, s);
    assert_eq!(c.read(a, 8), [9, 9, 3, 3, 9, 9, 3, 3]);
}

#[test]
fn user_objects_end_with_the_last_graph() {
    let c = cuda();
    let graph = c.graph();
    let list = Box::into_raw(Box::new(Mutex::new(Vec::new())));
    // SAFETY: made above, freed below; only locked in between.
    let seen = || unsafe { &*list }.lock().unwrap().len();
    let mut object = 0;
    const MOVE: u32 = 1;
    assert_eq!(c.cuUserObjectCreate(&mut object, list, push, 2, 1), SUCCESS);
    assert_eq!(c.cuGraphRetainUserObject(graph, object, 1, MOVE), SUCCESS);
    assert_eq!(c.cuUserObjectRelease(object, 1), SUCCESS);
    let exec = c.instantiate(graph);
    assert_eq!(c.cuGraphDestroy(graph), SUCCESS);
    assert_eq!(seen(), 0, "the instantiated graph holds it");
    assert_eq!(c.cuGraphExecDestroy(exec), SUCCESS);
    assert_eq!(seen(), 1);
    assert_eq!(c.cuUserObjectRelease(object, 1), INVALID_HANDLE);
    // SAFETY: from `into_raw`, and the object is gone.
    drop(unsafe { Box::from_raw(list) });
}

#[test]
fn a_graph_prints_as_dot() {
    let c = cuda();
    let (a, graph) = (c.words(1), c.graph());
    let first = c.add_fill(graph, &[], a, 1, 1);
    c.add_fill(graph, &[first], a, 1, 1);
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = format!("{}\0", file.path().display());
    assert_eq!(c.cuGraphDebugDotPrint(graph, path.as_ptr(), 0), SUCCESS);
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert!(text.starts_with("digraph") && text.contains("simgpu_fill"), "{text}");
    assert_eq!(text.matches("->").count(), 1);
}
