//! Graphs: which kernels an executable graph launches, learnt when it is made and kept right as it changes.
//!
//! A graph's identity is that of its kernels in the order of its nodes, so two captures of one model step are one kind of work. It
//! belongs to the executable graph and follows it: clients rewrite every kernel node before each launch, or update the whole
//! from a new capture. Child graphs count with their kernels. So do the bodies of a conditional node,
//! once each: how often they run is decided on the device. A graph that could not be read (a capture was on, an old driver) has no identity; its launches are
//! counted as unnamed.

use std::ffi::c_void;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use dashmap::DashMap;
use weft_kernel_id::{KernelId, graph_hash};

use super::{capture, hooks, written};
use crate::abi::{
    ConditionalParams, CuFunction, CuGraph, CuGraphExec, CuGraphNode, CuResult, KernelNode, NODE_CHILD_GRAPH,
    NODE_CONDITIONAL, NODE_KERNEL, NodeParams,
};
use crate::names::index::Index;
use crate::trouble::guarded;
use crate::{names, real, session};

/// Places for executable graphs that are alive at once; three quarters of them can be taken. A serving engine keeps some hundreds, a program that never destroys one makes thousands. A place that
/// nobody takes costs address space alone.
const GRAPHS: usize = 1 << 16;

/// Child graphs inside child graphs are followed this far.
const DEEPEST: usize = 8;

/// Nodes of one graph that are looked at.
const MOST_NODES: usize = 1 << 20;

/// Identities by executable graph, for the launch path.
static IDENTITIES: Index<GRAPHS> = Index::new();

/// The graphs inside each conditional node: the driver tells them when the node is made and not again. A node's handle may live
/// again as another node; then its type says so.
static BODIES: LazyLock<DashMap<CuGraphNode, Vec<CuGraph>>> = LazyLock::new(DashMap::new);

/// Conditional nodes remembered, and bodies of one.
const MOST_CONDITIONALS: usize = 1 << 14;
const MOST_BODIES: u32 = 1 << 10;

/// What each executable graph is made of.
static GRAPHS_MADE: LazyLock<DashMap<CuGraphExec, Made>> = LazyLock::new(DashMap::new);

/// An executable graph.
#[derive(Debug, Default)]
struct Made {
    nodes: Vec<Node>,
    /// Where the last changed node stands: clients change nodes in their order, each step all of them.
    last: usize,
}

impl Made {
    fn of(nodes: Vec<Node>) -> Made {
        Made { nodes, last: 0 }
    }

    /// The place of a node, looked for from the one after the last.
    fn find(&mut self, handle: CuGraphNode) -> Option<usize> {
        let here = |node: &Node| node.handle == handle;
        let next = self.last + 1;
        let after = self
            .nodes
            .get(next..)
            .and_then(|rest| rest.iter().position(here))
            .map(|at| at + next);
        self.last = after.or_else(|| self.nodes.iter().position(here))?;
        Some(self.last)
    }
}

/// A node that launches something.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    /// Its handle in the graph that the executable graph was made of: what later changes name.
    handle: CuGraphNode,
    /// Identities of its kernels: one, or those of a child graph.
    kernels: Vec<u64>,
    enabled: bool,
}

/// The identity of an executable graph; 0 where unknown.
#[inline]
pub fn identity(exec: CuGraphExec) -> u64 {
    IDENTITIES
        .find(exec)
        .map_or(0, |slot| slot.value.load(Ordering::Relaxed))
}

/// The identity of a kernel node. The first of an identity is told to the session, as that of a launch is.
fn kernel(node: &KernelNode) -> u64 {
    let handle: CuFunction = if node.function != 0 { node.function } else { node.kernel };
    names::identify_shape(handle, node.grid, node.block, node.shared)
}

fn nodes_of(graph: CuGraph) -> Option<Vec<CuGraphNode>> {
    let mut count = 0usize;
    // SAFETY: a null array asks for the count alone.
    if !unsafe { real::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count) }.ok() || count > MOST_NODES {
        return None;
    }
    let mut nodes = vec![0; count];
    if count > 0 {
        // SAFETY: the array has room for `count` nodes.
        if !unsafe { real::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) }.ok() {
            return None;
        }
        nodes.truncate(count);
    }
    Some(nodes)
}

fn kernel_of(node: CuGraphNode) -> Option<u64> {
    let mut launch = KernelNode::EMPTY;
    // SAFETY: the out-parameter has the layout of the second version, the larger one.
    let result = unsafe { real::cuGraphKernelNodeGetParams_v2(node, &mut launch) };
    if !result.ok() {
        // SAFETY: the first version writes a prefix of it.
        let result = unsafe { real::cuGraphKernelNodeGetParams(node, &mut launch) };
        if !result.ok() {
            return None;
        }
    }
    Some(kernel(&launch))
}

/// What a graph is made of. Driver calls of ours: never while a capture is on.
fn read(graph: CuGraph, depth: usize) -> Option<Vec<Node>> {
    let mut found = Vec::new();
    for handle in nodes_of(graph)? {
        let mut kind = u32::MAX;
        // SAFETY: the out-parameter is valid, the node fresh from the driver.
        if !unsafe { real::cuGraphNodeGetType(handle, &mut kind) }.ok() {
            return None;
        }
        let kernels = match kind {
            NODE_KERNEL => vec![kernel_of(handle)?],
            NODE_CHILD_GRAPH if depth < DEEPEST => {
                let mut child = 0;
                // SAFETY: the out-parameter is valid, the node is a child graph.
                if !unsafe { real::cuGraphChildGraphNodeGetGraph(handle, &mut child) }.ok() {
                    return None;
                }
                all_kernels(&read(child, depth + 1)?)
            }
            NODE_CONDITIONAL if depth < DEEPEST => {
                // Without its bodies a graph would pass for a shorter one than it is.
                let bodies = BODIES.get(&handle).map(|bodies| bodies.clone())?;
                let mut kernels = Vec::new();
                for body in bodies {
                    kernels.extend(all_kernels(&read(body, depth + 1)?));
                }
                kernels
            }
            NODE_CHILD_GRAPH | NODE_CONDITIONAL => return None,
            _ => continue,
        };
        found.push(Node {
            handle,
            kernels,
            enabled: true,
        });
    }
    Some(found)
}

fn all_kernels(nodes: &[Node]) -> Vec<u64> {
    nodes
        .iter()
        .filter(|node| node.enabled)
        .flat_map(|node| node.kernels.iter().copied())
        .collect()
}

/// Sets an executable graph's identity from its nodes.
fn identify(exec: CuGraphExec, nodes: &[Node]) {
    let kernels = all_kernels(nodes);
    let hash = graph_hash(kernels.iter().copied());
    IDENTITIES.set(exec, hash);
    if names::newly_seen(hash) {
        log::debug!("graph {hash:016x} has {} kernels", kernels.len());
        session::graph_seen(hash, &kernels);
        session::kernel_seen(hash, &KernelId::graph(hash, kernels.len()));
    }
}

fn learn(exec: CuGraphExec, graph: CuGraph) {
    guarded(|| {
        let nodes = if capture::any() { None } else { read(graph, 0) };
        match nodes {
            Some(nodes) => {
                identify(exec, &nodes);
                GRAPHS_MADE.insert(exec, Made::of(nodes));
            }
            None => forget(exec),
        }
    });
}

fn forget(exec: CuGraphExec) {
    IDENTITIES.forget(exec);
    GRAPHS_MADE.remove(&exec);
}

/// An executable graph was updated from another graph of the same shape. Later changes go on naming the first graph's nodes.
fn update(exec: CuGraphExec, graph: CuGraph) {
    guarded(|| {
        let nodes = if capture::any() { None } else { read(graph, 0) };
        let Some(mut nodes) = nodes else { return forget(exec) };
        if let Some(before) = GRAPHS_MADE.get(&exec)
            && before.nodes.len() == nodes.len()
        {
            for (node, before) in nodes.iter_mut().zip(before.nodes.iter()) {
                node.handle = before.handle;
                node.enabled = before.enabled;
            }
        }
        identify(exec, &nodes);
        GRAPHS_MADE.insert(exec, Made::of(nodes));
    });
}

/// A node of an executable graph was changed: `change` says whether its kernels or its state did.
fn change(exec: CuGraphExec, node: CuGraphNode, change: impl FnOnce(&mut Node) -> bool) {
    guarded(|| {
        let Some(mut made) = GRAPHS_MADE.get_mut(&exec) else {
            return;
        };
        let at = made.find(node);
        let Some(found) = at.and_then(|at| made.nodes.get_mut(at)) else {
            return;
        };
        // Clients rewrite the arguments of every kernel before each launch; the kernels stay the same.
        if change(found) {
            identify(exec, &made.nodes);
        }
    });
}

/// A kernel node launches this one from now on.
fn change_kernel(exec: CuGraphExec, node: CuGraphNode, launch: &KernelNode) {
    let hash = kernel(launch);
    change(exec, node, |node| {
        let other = node.kernels != [hash];
        if other {
            node.kernels = vec![hash];
        }
        other
    });
}

/// # Safety
/// `exec` is the out-parameter of `real`.
unsafe fn instantiate(exec: *const CuGraphExec, graph: CuGraph, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() {
        // SAFETY: the driver wrote the handle.
        if let Some(exec) = unsafe { written(exec) } {
            learn(exec, graph);
        }
    }
    result
}

/// A node was added.
///
/// # Safety
/// `node` is the out-parameter of `real` and `parameters` what it reads.
unsafe fn add(node: *const CuGraphNode, parameters: *const NodeParams, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if !result.ok() {
        return result;
    }
    // SAFETY: the driver wrote the one and read the other.
    let (node, kind) = (unsafe { written(node) }, unsafe { written(parameters.cast::<u32>()) });
    if let (Some(node), Some(NODE_CONDITIONAL)) = (node, kind) {
        // SAFETY: parameters of this type have this layout.
        let conditional = unsafe { written(parameters.cast::<ConditionalParams>()) };
        guarded(|| {
            let Some(conditional) = conditional.filter(|it| !it.bodies.is_null() && it.size <= MOST_BODIES) else {
                return;
            };
            // SAFETY: the driver wrote that many handles there.
            let bodies = unsafe { std::slice::from_raw_parts(conditional.bodies, conditional.size as usize) };
            if BODIES.len() < MOST_CONDITIONALS {
                BODIES.insert(node, bodies.to_vec());
            }
        });
    }
    result
}

/// # Safety
/// `launch` is null or what the client gives the driver; its first version is shorter.
unsafe fn set_kernel(
    exec: CuGraphExec,
    node: CuGraphNode,
    launch: *const KernelNode,
    first_version: bool,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    let result = real();
    if result.ok() && !launch.is_null() {
        let mut copy = KernelNode::EMPTY;
        let size = if first_version {
            std::mem::offset_of!(KernelNode, kernel)
        } else {
            size_of::<KernelNode>()
        };
        // SAFETY: the driver read that many bytes there; the copy is at least as large and holds plain words.
        unsafe { std::ptr::copy_nonoverlapping(launch.cast::<u8>(), (&raw mut copy).cast::<u8>(), size) };
        change_kernel(exec, node, &copy);
    }
    result
}

hooks! {
    fn cuGraphAddNode(
        node: *mut CuGraphNode, graph: CuGraph, dependencies: usize, count: usize, parameters: *const NodeParams,
    ) |real| {
        // SAFETY: the call's own parameters.
        unsafe { add(node, parameters, real) }
    }
    fn cuGraphAddNode_v2(
        node: *mut CuGraphNode, graph: CuGraph, dependencies: usize, edges: usize, count: usize,
        parameters: *const NodeParams,
    ) |real| {
        // SAFETY: the call's own parameters.
        unsafe { add(node, parameters, real) }
    }
    fn cuGraphAddNode_v3(
        node: *mut CuGraphNode, graph: CuGraph, dependencies: usize, edges: usize, count: usize,
        parameters: *const NodeParams,
    ) |real| {
        // SAFETY: the call's own parameters.
        unsafe { add(node, parameters, real) }
    }
    fn cuGraphInstantiate(
        exec: *mut CuGraphExec, graph: CuGraph, node: *mut CuGraphNode, log: *mut c_void, size: usize,
    ) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { instantiate(exec, graph, real) }
    }
    fn cuGraphInstantiate_v2(
        exec: *mut CuGraphExec, graph: CuGraph, node: *mut CuGraphNode, log: *mut c_void, size: usize,
    ) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { instantiate(exec, graph, real) }
    }
    fn cuGraphInstantiateWithFlags(exec: *mut CuGraphExec, graph: CuGraph, flags: u64) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { instantiate(exec, graph, real) }
    }
    fn cuGraphInstantiateWithParams(exec: *mut CuGraphExec, graph: CuGraph, parameters: *mut c_void) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { instantiate(exec, graph, real) }
    }
    fn cuGraphInstantiateWithParams_ptsz(exec: *mut CuGraphExec, graph: CuGraph, parameters: *mut c_void) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { instantiate(exec, graph, real) }
    }
    fn cuGraphExecUpdate(exec: CuGraphExec, graph: CuGraph, node: *mut CuGraphNode, what: *mut u32) |real| {
        let result = real();
        if result.ok() {
            update(exec, graph);
        }
        result
    }
    fn cuGraphExecUpdate_v2(exec: CuGraphExec, graph: CuGraph, info: *mut c_void) |real| {
        let result = real();
        if result.ok() {
            update(exec, graph);
        }
        result
    }
    fn cuGraphExecKernelNodeSetParams(exec: CuGraphExec, node: CuGraphNode, launch: *const KernelNode) |real| {
        // SAFETY: the client's promise to the driver.
        unsafe { set_kernel(exec, node, launch, true, real) }
    }
    fn cuGraphExecKernelNodeSetParams_v2(exec: CuGraphExec, node: CuGraphNode, launch: *const KernelNode) |real| {
        // SAFETY: the client's promise to the driver.
        unsafe { set_kernel(exec, node, launch, false, real) }
    }
    fn cuGraphExecNodeSetParams(exec: CuGraphExec, node: CuGraphNode, parameters: *const NodeParams) |real| {
        let result = real();
        if result.ok() {
            // SAFETY: the driver read the parameters, which are longer than the part that we look at.
            if let Some(parameters) = unsafe { written(parameters) } && parameters.kind == NODE_KERNEL {
                change_kernel(exec, node, &parameters.kernel);
            }
        }
        result
    }
    fn cuGraphExecChildGraphNodeSetParams(exec: CuGraphExec, node: CuGraphNode, child: CuGraph) |real| {
        let result = real();
        if result.ok() {
            let kernels = if capture::any() { None } else { guarded(|| read(child, 1)).flatten() };
            match kernels {
                Some(nodes) => change(exec, node, |node| {
                    node.kernels = all_kernels(&nodes);
                    true
                }),
                None => { guarded(|| forget(exec)); }
            }
        }
        result
    }
    fn cuGraphNodeSetEnabled(exec: CuGraphExec, node: CuGraphNode, enabled: u32) |real| {
        let result = real();
        if result.ok() {
            change(exec, node, |node| {
                node.enabled = enabled != 0;
                true
            });
        }
        result
    }
    fn cuGraphExecDestroy(exec: CuGraphExec) |real| {
        // Before the call: after it, another thread may get this address anew.
        guarded(|| forget(exec));
        real()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tens_of_thousands_of_graphs_that_live_at_once_are_told_apart() {
        // Handles are addresses of small objects.
        let exec = |number: usize| 0x7700_0000_0000 + 0x140 * number;
        for number in 1..40_000 {
            IDENTITIES.set(exec(number), number as u64);
        }
        for number in 1..40_000 {
            assert_eq!(identity(exec(number)), number as u64);
        }
        for number in 1..40_000 {
            forget(exec(number));
        }
        assert_eq!(identity(exec(1)), 0);
    }
}
