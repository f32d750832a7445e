// SPDX-License-Identifier: MIT OR Apache-2.0
//! Capturing streams: recorded calls, replayed graphs, forbidden calls.

use std::sync::Mutex;

use crate::cuda::*;

#[test]
fn a_captured_stream_replays_with_its_data() {
    let c = cuda();
    let (a, b, s) = (c.words(8), c.words(8), c.stream());
    c.begin(s, GLOBAL);
    assert_eq!(c.fill(a, 1, 8, s), SUCCESS);
    assert_eq!(c.cuMemcpyDtoDAsync_v2(b, a, 16, s), SUCCESS);
    assert_eq!(c.cuMemsetD32Async(a, 7, 4, s), SUCCESS);
    let graph = c.end(s);
    assert_eq!(c.read(a, 8), [0; 8], "nothing runs while it is captured");
    assert_eq!(c.kinds(graph), [0, 1, 2]);
    let nodes = c.nodes(graph);
    assert_eq!(c.after(nodes[0]), []);
    assert_eq!(c.after(nodes[1]), [nodes[0]]);
    assert_eq!(c.after(nodes[2]), [nodes[1]]);
    let exec = c.instantiate(graph);
    assert_eq!(c.read(a, 8), [0; 8], "nor when it is instantiated");
    c.run(exec, s);
    assert_eq!(c.read(a, 8), [7, 7, 7, 7, 1, 1, 1, 1]);
    assert_eq!(c.read(b, 8), [1, 1, 1, 1, 0, 0, 0, 0]);
    // Again, after the graph itself has gone and the data has changed.
    assert_eq!(c.cuGraphDestroy(graph), SUCCESS);
    assert_eq!(c.fill(b, 9, 8, s), SUCCESS);
    c.run(exec, s);
    assert_eq!(c.read(b, 8), [1, 1, 1, 1, 9, 9, 9, 9]);
    assert_eq!(c.cuGraphExecDestroy(exec), SUCCESS);
}

#[test]
fn a_launch_is_one_unit_in_its_streams_order() {
    let c = cuda();
    let (a, s) = (c.words(64), c.stream());
    let graph = c.graph();
    // Two branches that are slower than the next operation on the stream.
    for branch in 0..2 {
        let mut last = c.add_fill(graph, &[], a + 128 * branch, 1, 32);
        for step in 2..20 {
            last = c.add_fill(graph, &[last], a + 128 * branch, step, 32);
        }
    }
    let exec = c.instantiate(graph);
    assert_eq!(c.fill(a, 100, 64, s), SUCCESS);
    assert_eq!(c.cuGraphLaunch(exec, s), SUCCESS);
    let b = c.words(64);
    assert_eq!(c.cuMemcpyDtoDAsync_v2(b, a, 256, s), SUCCESS);
    assert_eq!(c.fill(a, 5, 64, s), SUCCESS);
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    assert_eq!(c.read(b, 64), [19; 64], "the copy sees both branches' ends");
    assert_eq!(c.read(a, 64), [5; 64]);
}

#[test]
fn streams_fork_and_join_by_events() {
    let c = cuda();
    let (a, s, t) = (c.words(8), c.stream(), c.stream());
    let (fork, join) = (c.event(), c.event());
    c.begin(s, GLOBAL);
    assert_eq!(c.fill(a, 1, 8, s), SUCCESS);
    assert_eq!(c.cuEventRecord(fork, s), SUCCESS);
    assert_eq!(c.cuStreamWaitEvent(t, fork, 0), SUCCESS);
    let mut status = 0;
    assert_eq!(c.cuStreamIsCapturing(t, &mut status), SUCCESS);
    assert_eq!(status, 1, "the other stream has joined");
    assert_eq!(c.fill(a, 2, 4, t), SUCCESS);
    assert_eq!(c.fill(a + 16, 3, 4, s), SUCCESS);
    assert_eq!(c.cuEventRecord(join, t), SUCCESS);
    assert_eq!(c.cuStreamWaitEvent(s, join, 0), SUCCESS);
    assert_eq!(c.launch(c.copy, &[a + 12, a + 16, 4], s), SUCCESS);
    let graph = c.end(s);
    assert_eq!(c.cuStreamIsCapturing(t, &mut status), SUCCESS);
    assert_eq!(status, 0);
    let nodes = c.nodes(graph);
    assert_eq!(nodes.len(), 4);
    assert_eq!(c.after(nodes[1]), [nodes[0]]);
    assert_eq!(c.after(nodes[2]), [nodes[0]]);
    // Nodes are named by their address, which does not depend on the order in which they were made.
    let (mut joined, mut branches) = (c.after(nodes[3]), vec![nodes[1], nodes[2]]);
    joined.sort_unstable();
    branches.sort_unstable();
    assert_eq!(joined, branches);
    let exec = c.instantiate(graph);
    c.run(exec, t);
    assert_eq!(c.read(a, 8), [2, 2, 2, 3, 3, 3, 3, 3]);
    // The event stood for a point in the capture only.
    assert_eq!(c.cuEventQuery(join), CAPTURED_EVENT);
    assert_eq!(c.cuEventRecord(join, s), SUCCESS);
    assert_eq!(c.cuEventSynchronize(join), SUCCESS);
}

#[test]
fn a_branch_that_is_not_joined_is_an_error() {
    let c = cuda();
    let (a, s, t, fork) = (c.words(8), c.stream(), c.stream(), c.event());
    c.begin(s, GLOBAL);
    assert_eq!(c.cuEventRecord(fork, s), SUCCESS);
    assert_eq!(c.cuStreamWaitEvent(t, fork, 0), SUCCESS);
    assert_eq!(c.fill(a, 1, 8, t), SUCCESS);
    let mut graph = 1;
    assert_eq!(c.cuStreamEndCapture(t, &mut graph), CAPTURE_UNMATCHED, "not the origin");
    assert_eq!(c.cuStreamEndCapture(s, &mut graph), CAPTURE_UNJOINED);
    assert_eq!(graph, 0);
    assert_eq!(c.fill(a, 2, 8, t), SUCCESS, "both streams are ordinary again");
    assert_eq!(c.cuStreamSynchronize(t), SUCCESS);
    assert_eq!(c.read(a, 8), [2; 8]);
}

#[test]
fn a_forbidden_call_spoils_the_capture() {
    let c = cuda();
    let (a, s, other) = (c.words(8), c.stream(), c.stream());
    let (mut at, mut unused) = (0, c.event());
    type Forbidden<'a> = Box<dyn FnMut(&Cuda) -> u32 + 'a>;
    let calls: Vec<(&str, u32, Forbidden<'_>)> = vec![
        (
            "synchronise",
            CAPTURE_UNSUPPORTED,
            Box::new(|c| c.cuStreamSynchronize(s)),
        ),
        ("query", CAPTURE_UNSUPPORTED, Box::new(|c| c.cuStreamQuery(s))),
        ("context", CAPTURE_UNSUPPORTED, Box::new(|c| c.cuCtxSynchronize())),
        (
            "allocate",
            CAPTURE_UNSUPPORTED,
            Box::new(|c| c.cuMemAlloc_v2(&mut at, 64)),
        ),
        (
            "another stream",
            CAPTURE_UNSUPPORTED,
            Box::new(|c| c.cuStreamSynchronize(other)),
        ),
        (
            "an event outside",
            CAPTURE_UNSUPPORTED,
            Box::new(|c| c.cuEventQuery(unused)),
        ),
        (
            "wait for what is outside",
            CAPTURE_ISOLATION,
            Box::new(|c| c.cuStreamWaitEvent(s, unused, 0)),
        ),
    ];
    for (what, code, mut call) in calls {
        c.begin(s, GLOBAL);
        assert_eq!(c.fill(a, 1, 8, s), SUCCESS);
        assert_eq!(call(&c), code, "{what}");
        assert_eq!(c.fill(a, 1, 8, s), CAPTURE_INVALIDATED, "{what}");
        let mut status = 0;
        assert_eq!(c.cuStreamIsCapturing(s, &mut status), SUCCESS);
        assert_eq!(status, 2, "{what}");
        c.end_invalid(s);
    }
    assert_eq!(c.read(a, 8), [0; 8]);
    assert_eq!(c.cuEventDestroy_v2(unused), SUCCESS);
    unused = 0;
    assert_eq!(c.cuEventQuery(unused), INVALID_HANDLE);
}

#[test]
fn modes_decide_who_may_make_unsafe_calls() {
    let c = cuda();
    let s = c.stream();
    let api = c.api;
    let context = c.context;
    let elsewhere = || {
        let call = move || {
            assert_eq!(api.cuCtxSetCurrent(context), SUCCESS);
            let mut at = 0;
            let code = api.cuMemAlloc_v2(&mut at, 64);
            if code == SUCCESS {
                assert_eq!(api.cuMemFree_v2(at), SUCCESS);
            }
            code
        };
        std::thread::spawn(call).join().unwrap()
    };
    let here = || {
        let mut at = 0;
        c.cuMemAlloc_v2(&mut at, 64)
    };
    c.begin(s, GLOBAL);
    assert_eq!(elsewhere(), CAPTURE_UNSUPPORTED, "global forbids it everywhere");
    c.end_invalid(s);

    c.begin(s, THREAD_LOCAL);
    assert_eq!(elsewhere(), SUCCESS);
    assert_eq!(here(), CAPTURE_UNSUPPORTED);
    c.end_invalid(s);

    c.begin(s, RELAXED);
    assert_eq!(elsewhere(), SUCCESS);
    assert_eq!(here(), SUCCESS);
    assert_eq!(c.cuGraphDestroy(c.end(s)), SUCCESS);

    // A thread may exempt itself.
    c.begin(s, GLOBAL);
    let mut mode = RELAXED;
    assert_eq!(c.cuThreadExchangeStreamCaptureMode(&mut mode), SUCCESS);
    assert_eq!(mode, GLOBAL);
    assert_eq!(here(), SUCCESS);
    assert_eq!(c.cuThreadExchangeStreamCaptureMode(&mut mode), SUCCESS);
    assert_eq!(mode, RELAXED);
    assert_eq!(here(), CAPTURE_UNSUPPORTED);
    c.end_invalid(s);
}

#[test]
fn a_capture_ends_on_the_thread_that_began_it() {
    let c = cuda();
    let (s, api) = (c.stream(), c.api);
    let elsewhere = move || {
        let mut graph = 0;
        api.cuStreamEndCapture(s, &mut graph)
    };
    c.begin(s, THREAD_LOCAL);
    assert_eq!(std::thread::spawn(elsewhere).join().unwrap(), CAPTURE_WRONG_THREAD);
    c.end_invalid(s);
    c.begin(s, RELAXED);
    assert_eq!(std::thread::spawn(elsewhere).join().unwrap(), SUCCESS);
}

#[test]
fn the_legacy_stream_cannot_be_used_beside_a_blocking_origin() {
    let c = cuda();
    let a = c.words(8);
    assert_eq!(c.cuStreamBeginCapture_v2(0, GLOBAL), CAPTURE_UNSUPPORTED);
    let (mut blocking, mut status) = (0, 0);
    assert_eq!(c.cuStreamCreate(&mut blocking, 0), SUCCESS);
    c.begin(blocking, RELAXED);
    assert_eq!(c.cuStreamIsCapturing(0, &mut status), CAPTURE_IMPLICIT);
    assert_eq!(c.fill(a, 1, 8, 0), CAPTURE_IMPLICIT);
    c.end_invalid(blocking);
    let free = c.stream();
    c.begin(free, RELAXED);
    assert_eq!(c.cuStreamIsCapturing(0, &mut status), SUCCESS);
    assert_eq!(
        c.fill(a, 1, 8, 0),
        SUCCESS,
        "a stream that does not order itself with it"
    );
    assert_eq!(c.cuGraphDestroy(c.end(free)), SUCCESS);
    assert_eq!(c.read(a, 8), [1; 8]);
}

#[test]
fn two_captures_cannot_merge() {
    let c = cuda();
    let (s, t, e) = (c.stream(), c.stream(), c.event());
    c.begin(s, RELAXED);
    c.begin(t, RELAXED);
    assert_eq!(c.cuEventRecord(e, s), SUCCESS);
    assert_eq!(c.cuStreamWaitEvent(t, e, 0), CAPTURE_MERGE);
    c.end_invalid(s);
    c.end_invalid(t);
}

#[test]
fn capture_tells_its_graph_and_takes_other_dependencies() {
    let c = cuda();
    let (a, s) = (c.words(8), c.stream());
    c.begin(s, GLOBAL);
    assert_eq!(c.cuStreamBeginCapture_v2(s, GLOBAL), ILLEGAL_STATE);
    assert_eq!(c.fill(a, 1, 8, s), SUCCESS);
    let (mut status, mut id, mut graph, mut nodes, mut count) = (0, 0, 0, std::ptr::null(), 0);
    let info = c.cuStreamGetCaptureInfo_v2(s, &mut status, &mut id, &mut graph, &mut nodes, &mut count);
    assert_eq!((info, status, count), (SUCCESS, 1, 1));
    assert!(id > 0);
    assert!(!nodes.is_null());
    // A node of our own goes in, and the capture continues behind it.
    let own = c.add_fill(graph, &c.nodes(graph), a, 2, 4);
    const SET: u32 = 1;
    assert_eq!(c.cuStreamUpdateCaptureDependencies(s, &own, 1, SET), SUCCESS);
    assert_eq!(c.fill(a, 3, 2, s), SUCCESS);
    assert_eq!(c.end(s), graph, "the graph that was told");
    let nodes = c.nodes(graph);
    assert_eq!(c.after(nodes[2]), [own]);
    let exec = c.instantiate(graph);
    c.run(exec, s);
    assert_eq!(c.read(a, 8), [3, 3, 2, 2, 1, 1, 1, 1]);
}

#[test]
fn a_capture_can_go_on_in_a_graph_there_is() {
    let c = cuda();
    let (a, s, graph) = (c.words(4), c.stream(), c.graph());
    let first = c.add_fill(graph, &[], a, 1, 4);
    assert_eq!(
        c.cuStreamBeginCaptureToGraph(s, graph, &first, std::ptr::null(), 1, GLOBAL),
        SUCCESS
    );
    assert_eq!(c.fill(a, 2, 2, s), SUCCESS);
    assert_eq!(c.end(s), graph);
    assert_eq!(c.after(c.nodes(graph)[1]), [first]);
    let exec = c.instantiate(graph);
    c.run(exec, s);
    assert_eq!(c.read(a, 4), [2, 2, 1, 1]);
}

extern "C" fn push(list: *mut Mutex<Vec<u32>>) {
    // SAFETY: the test keeps the list until it has synchronised.
    let list = unsafe { &*list };
    let mut list = list.lock().unwrap();
    let next = list.len() as u32;
    list.push(next);
}

#[test]
fn host_functions_and_outside_events_replay() {
    let c = cuda();
    let (a, s, outside) = (c.words(4), c.stream(), c.event());
    let list = Box::into_raw(Box::new(Mutex::new(Vec::new())));
    const EXTERNAL: u32 = 1;
    c.begin(s, GLOBAL);
    assert_eq!(c.fill(a, 1, 4, s), SUCCESS);
    assert_eq!(c.cuLaunchHostFunc(s, push, list), SUCCESS);
    assert_eq!(c.cuEventRecordWithFlags(outside, s, EXTERNAL), SUCCESS);
    assert_eq!(c.cuLaunchHostFunc(s, push, list), SUCCESS);
    let graph = c.end(s);
    assert_eq!(c.kinds(graph), [0, 3, 7, 3]);
    let exec = c.instantiate(graph);
    // SAFETY: made above, freed below; only locked in between.
    let seen = || unsafe { &*list }.lock().unwrap().clone();
    assert_eq!(seen(), []);
    assert_eq!(c.cuGraphLaunch(exec, s), SUCCESS);
    assert_eq!(c.cuEventSynchronize(outside), SUCCESS);
    assert!(!seen().is_empty(), "the first function ran before the event");
    assert_eq!(c.cuStreamSynchronize(s), SUCCESS);
    c.run(exec, s);
    assert_eq!(seen(), [0, 1, 2, 3]);
    // SAFETY: from `into_raw`, and nothing is outstanding.
    drop(unsafe { Box::from_raw(list) });
}

#[test]
fn destroying_the_origin_ends_its_capture() {
    let c = cuda();
    let (a, s, t, fork) = (c.words(8), c.stream(), c.stream(), c.event());
    c.begin(s, GLOBAL);
    assert_eq!(c.cuEventRecord(fork, s), SUCCESS);
    assert_eq!(c.cuStreamWaitEvent(t, fork, 0), SUCCESS);
    assert_eq!(c.cuStreamDestroy_v2(s), SUCCESS);
    assert_eq!(c.fill(a, 1, 8, t), SUCCESS, "not in a capture any more");
    assert_eq!(c.cuStreamSynchronize(t), SUCCESS);
    assert_eq!(c.read(a, 8), [1; 8]);
}
