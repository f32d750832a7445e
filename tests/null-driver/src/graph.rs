// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs: enough for a test to see whether a layer above keeps a graph's kernels right as it
//! changes. Nothing is launched.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use super::code::fresh;
use super::{INVALID_VALUE, SUCCESS, put};

/// CU_GRAPH_NODE_TYPE_KERNEL, _GRAPH, _EMPTY in cuda.h.
const KERNEL: c_int = 0;
const CHILD: c_int = 4;
const EMPTY: c_int = 5;
/// CU_GRAPH_NODE_TYPE_CONDITIONAL.
const CONDITIONAL: c_int = 13;

/// Words of a CUDA_KERNEL_NODE_PARAMS_v2.
type Parameters = [u64; 9];

#[derive(Clone, Copy)]
enum What {
    Kernel(Parameters),
    Child(usize),
    Empty,
    Conditional,
}

/// Nodes by handle, each with its graph, in the order in which they were made.
static NODES: Mutex<BTreeMap<usize, (usize, What)>> = Mutex::new(BTreeMap::new());

fn add(graph: usize, out: *mut usize, what: What) -> i32 {
    let node = fresh();
    let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    nodes.insert(node, (graph, what));
    put(out, node)
}

fn node(node: usize) -> Option<What> {
    let nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    nodes.get(&node).map(|(_, what)| *what)
}

entry_points! {
    fn cuGraphCreate(out: *mut usize, flags: c_uint) { put(out, fresh()) }
    fn cuGraphAddKernelNode_v2(
        out: *mut usize, graph: usize, dependencies: *const usize, count: usize, parameters: *const Parameters,
    ) {
        if parameters.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: the caller of a driver function hands in a structure of this size.
        add(graph, out, What::Kernel(unsafe { parameters.read() }))
    }
    fn cuGraphAddChildGraphNode(
        out: *mut usize, graph: usize, dependencies: *const usize, count: usize, child: usize,
    ) {
        add(graph, out, What::Child(child))
    }
    fn cuGraphAddEmptyNode(out: *mut usize, graph: usize, dependencies: *const usize, count: usize) {
        add(graph, out, What::Empty)
    }
    /// Accepts only conditional nodes, with one body.
    fn cuGraphAddNode_v2(
        out: *mut usize, graph: usize, dependencies: *const usize, edges: *const c_void, count: usize,
        parameters: *mut [usize; 32],
    ) {
        if parameters.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: the caller of a driver function hands in a structure of this size.
        let parameters = unsafe { &mut *parameters };
        if parameters[0] as c_int != CONDITIONAL {
            return INVALID_VALUE;
        }
        // The array of bodies is the driver's own and lives as long as the node, which here is
        // forever.
        parameters[4] = Box::leak(Box::new(fresh())) as *mut usize as usize;
        add(graph, out, What::Conditional)
    }
    fn cuGraphGetNodes(graph: usize, out: *mut usize, count: *mut usize) {
        if count.is_null() {
            return INVALID_VALUE;
        }
        let nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
        let own: Vec<usize> = nodes.iter().filter(|(_, (of, _))| *of == graph).map(|(node, _)| *node).collect();
        if out.is_null() {
            return put(count, own.len());
        }
        // SAFETY: not null, so it holds the capacity of the caller's array.
        let room = unsafe { count.read() };
        for (at, node) in own.iter().take(room).enumerate() {
            put(out.wrapping_add(at), *node);
        }
        put(count, own.len().min(room))
    }
    fn cuGraphNodeGetType(of: usize, out: *mut c_int) {
        match node(of) {
            Some(What::Kernel(_)) => put(out, KERNEL),
            Some(What::Child(_)) => put(out, CHILD),
            Some(What::Empty) => put(out, EMPTY),
            Some(What::Conditional) => put(out, CONDITIONAL),
            None => INVALID_VALUE,
        }
    }
    fn cuGraphKernelNodeGetParams_v2(of: usize, out: *mut Parameters) {
        match node(of) {
            Some(What::Kernel(parameters)) => put(out, parameters),
            _ => INVALID_VALUE,
        }
    }
    fn cuGraphChildGraphNodeGetGraph(of: usize, out: *mut usize) {
        match node(of) {
            Some(What::Child(graph)) => put(out, graph),
            _ => INVALID_VALUE,
        }
    }
    fn cuGraphInstantiateWithFlags(out: *mut usize, graph: usize, flags: u64) { put(out, fresh()) }
    fn cuGraphExecKernelNodeSetParams_v2(exec: usize, of: usize, parameters: *const Parameters) { SUCCESS }
    fn cuGraphExecChildGraphNodeSetParams(exec: usize, of: usize, child: usize) { SUCCESS }
    fn cuGraphExecUpdate_v2(exec: usize, graph: usize, info: *mut c_void) { SUCCESS }
    fn cuGraphNodeSetEnabled(exec: usize, of: usize, enabled: c_uint) { SUCCESS }
    fn cuGraphExecDestroy(exec: usize) { SUCCESS }
}
