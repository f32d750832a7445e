// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graph identities: each executable graph's kernels, read at instantiation and kept current.
//!
//! An identity hashes the kernels in node order, so two captures of one model step have one
//! identity. It belongs to the executable graph, whose nodes clients rewrite before each launch or
//! update from a new capture. Child graphs count with their kernels. Bodies of conditional nodes
//! count once, because the device decides how often they run. An unreadable graph (capture active,
//! old driver) has no identity; its launches count as unnamed. A kernel without a name is counted
//! and hashed as 0.
//!
//! **Updates.** llama.cpp updates a graph for each token; reading thousands of nodes would cost
//! more than the update. The driver accepts only the same nodes in the same order; parameters,
//! grids and functions may differ. An identity stands for the graph's duration, which parameters do
//! not change. So each update checks some nodes, and [`ROUND`] updates check all ([`UpdateWatch`]).
//! A different kernel or number of nodes causes a full read. A graph that always differs is read
//! once in [`ROUND`] updates and keeps its identity meanwhile. While identities are learnt (stage
//! 1, traces), every update reads all nodes.
//!
//! A single changed node needs no read of the others: the next launch computes the identity.

use std::ffi::c_void;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use dashmap::DashMap;
use weft_kernel_id::{KernelId, graph_hash};

use super::declare::{hooks, written};
use super::pools;
use crate::driver::abi::{
    ConditionalParams, CuDevicePtr, CuFunction, CuGraph, CuGraphExec, CuGraphNode, CuResult, KernelNode,
    NODE_ALLOCATION, NODE_CHILD_GRAPH, NODE_CONDITIONAL, NODE_FREE, NODE_KERNEL, NodeParams,
};
use crate::driver::calls;
use crate::driver::capture;
use crate::internal_error::guarded;
use crate::kernels::index::Index;
use crate::{kernels, throttle};

/// Slots for live executable graphs; three quarters are usable. A serving engine keeps hundreds; a
/// program that never destroys graphs keeps thousands. Unused slots cost only address space.
const GRAPHS: usize = 65_536;

/// Depth to which nested child graphs are followed.
const DEEPEST: usize = 8;

const MOST_NODES: usize = 1_048_576;

/// Updates within which all nodes are checked; updates per full read of a graph that always
/// differs.
const ROUND: u32 = 64;

/// Least number of kernels checked after an update: some microseconds of driver calls.
const LEAST: usize = 16;

/// Identities by executable graph, for the launch path.
static IDENTITIES: Index<GRAPHS> = Index::new();

/// Marks an identity to be computed anew.
const CHANGED: u64 = 1;

/// Body graphs of each conditional node, which the driver reports only when the node is made. A
/// reused handle is recognised by its node type.
static BODIES: LazyLock<DashMap<CuGraphNode, Vec<CuGraph>>> = LazyLock::new(DashMap::new);

/// Most conditional nodes remembered, and most bodies of one.
const MOST_CONDITIONALS: usize = 16_384;
const MOST_BODIES: u32 = 1_024;

/// Nodes of each executable graph.
static GRAPHS_MADE: LazyLock<DashMap<CuGraphExec, Made>> = LazyLock::new(DashMap::new);

#[derive(Debug, Default)]
struct Made {
    nodes: Vec<LaunchNode>,
    /// Number of nodes, including those that launch nothing.
    count: usize,
    /// Index of the last changed node: clients change all nodes in order at each step.
    last: usize,
    watch: UpdateWatch,
}

impl Made {
    fn of((nodes, count): (Vec<LaunchNode>, usize)) -> Made {
        Made {
            nodes,
            count,
            ..Made::default()
        }
    }

    /// Index of a node, searched from the one after the last.
    fn find(&mut self, handle: CuGraphNode) -> Option<usize> {
        let here = |node: &LaunchNode| node.handle == handle;
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
struct LaunchNode {
    /// Handle in the graph that was instantiated; later changes name it.
    handle: CuGraphNode,
    /// Index among all nodes of that graph.
    at: usize,
    /// `NODE_KERNEL`, `NODE_CHILD_GRAPH` or `NODE_CONDITIONAL`.
    kind: u32,
    /// Identities of its kernels: one, or those of its child graph or bodies.
    kernels: Vec<u64>,
    enabled: bool,
}

/// Chooses the nodes to check after updates.
#[derive(Debug, Default)]
struct UpdateWatch {
    next: usize,
    /// Kernels that may be checked. Unused credit is saved for a node of many kernels.
    credit: usize,
    /// Updates since the last full read, and updates before the next one.
    since: u32,
    pause: u32,
    /// An update could not be followed: the next one reads all nodes.
    due: bool,
}

impl UpdateWatch {
    /// Counts an update. Returns whether a difference may cause a full read.
    fn may_read(&mut self) -> bool {
        self.since = self.since.saturating_add(1);
        self.since >= self.pause
    }

    /// Counts a full read. `pause` doubles up to `ROUND` while the graph keeps differing.
    fn has_read(&mut self) {
        self.pause = match self.since > 2 * self.pause {
            true => 1,
            false => (2 * self.pause).clamp(1, ROUND),
        };
        self.since = 0;
    }

    /// Nodes to check now; `weights` is each node's number of kernels.
    fn choose(&mut self, weights: &[usize]) -> Vec<usize> {
        let all: usize = weights.iter().sum();
        let each = LEAST.max(all.div_ceil(ROUND as usize));
        self.credit = (self.credit + each).min(all.max(each));
        let mut chosen = Vec::new();
        while chosen.len() < weights.len() {
            let at = self.next % weights.len();
            let Some(weight) = weights.get(at).filter(|weight| **weight <= self.credit) else {
                break;
            };
            self.credit -= weight;
            self.next = at + 1;
            chosen.push(at);
        }
        chosen
    }
}

/// Identity of an executable graph; 0 if unknown.
#[inline]
pub fn identity(exec: CuGraphExec) -> u64 {
    let known = IDENTITIES
        .find(exec)
        .map_or(0, |slot| slot.value.load(Ordering::Relaxed));
    if known == CHANGED { identity_anew(exec) } else { known }
}

/// Identity after changes of nodes since the last launch.
#[cold]
#[inline(never)]
fn identity_anew(exec: CuGraphExec) -> u64 {
    let anew = || GRAPHS_MADE.get(&exec).map(|made| identify(exec, &made.nodes));
    guarded(anew).flatten().unwrap_or(0)
}

/// Identity of a kernel node, reported when new.
fn kernel(node: &KernelNode) -> u64 {
    let handle: CuFunction = if node.function != 0 { node.function } else { node.kernel };
    kernels::identify_shape(handle, node.grid, node.block, node.shared)
}

/// Nodes of a graph. `about`: the previous number of nodes, which saves a call.
fn nodes_of(graph: CuGraph, about: usize) -> Option<Vec<CuGraphNode>> {
    // Room for one more node shows whether there are more.
    let room = about + 1;
    if about > 0 && about < MOST_NODES {
        let (mut nodes, mut count) = (vec![0; room], room);
        // SAFETY: the array has room for `count` nodes.
        if unsafe { calls::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) }.ok() && count < room {
            nodes.truncate(count);
            return Some(nodes);
        }
    }
    let mut count = 0usize;
    // SAFETY: with a null array the driver returns only the count.
    if !unsafe { calls::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count) }.ok() || count > MOST_NODES {
        return None;
    }
    let mut nodes = vec![0; count];
    if count > 0 {
        // SAFETY: the array has room for `count` nodes.
        if !unsafe { calls::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) }.ok() {
            return None;
        }
        nodes.truncate(count);
    }
    Some(nodes)
}

fn kernel_of(node: CuGraphNode) -> Option<u64> {
    let mut launch = KernelNode::EMPTY;
    // SAFETY: the out-parameter has the layout of the second version, the larger one.
    let result = unsafe { calls::cuGraphKernelNodeGetParams_v2(node, &mut launch) };
    if !result.ok() {
        // SAFETY: the first version writes a prefix of it.
        let result = unsafe { calls::cuGraphKernelNodeGetParams(node, &mut launch) };
        if !result.ok() {
            return None;
        }
    }
    Some(kernel(&launch))
}

/// Kernels of a node: none if it launches nothing, `None` if they are unknown. Calls the driver:
/// never during a capture.
fn kernels_of(handle: CuGraphNode, kind: u32, depth: usize) -> Option<Vec<u64>> {
    match kind {
        NODE_KERNEL => {
            let kernel = kernel_of(handle).unwrap_or(0);
            if kernel == 0 {
                throttle::unnamed_node();
            }
            Some(vec![kernel])
        }
        NODE_CHILD_GRAPH if depth < DEEPEST => {
            let mut child = 0;
            // SAFETY: the out-parameter is valid, the node is a child graph.
            if !unsafe { calls::cuGraphChildGraphNodeGetGraph(handle, &mut child) }.ok() {
                return None;
            }
            Some(all_kernels(&read(child, depth + 1)?.0))
        }
        NODE_CONDITIONAL if depth < DEEPEST => {
            // Without its bodies a graph would look like a shorter one.
            let bodies = BODIES.get(&handle).map(|bodies| bodies.clone())?;
            let mut kernels = Vec::new();
            for body in bodies {
                kernels.extend(all_kernels(&read(body, depth + 1)?.0));
            }
            Some(kernels)
        }
        NODE_CHILD_GRAPH | NODE_CONDITIONAL => None,
        _ => Some(Vec::new()),
    }
}

/// Nodes of a graph that launch something, and the number of all. Calls the driver: never during a
/// capture.
fn read(graph: CuGraph, depth: usize) -> Option<(Vec<LaunchNode>, usize)> {
    let handles = nodes_of(graph, 0)?;
    let mut found = Vec::new();
    for (at, handle) in handles.iter().copied().enumerate() {
        let mut kind = u32::MAX;
        // SAFETY: the out-parameter is valid, the node fresh from the driver.
        if !unsafe { calls::cuGraphNodeGetType(handle, &mut kind) }.ok() {
            return None;
        }
        if matches!(kind, NODE_KERNEL | NODE_CHILD_GRAPH | NODE_CONDITIONAL) {
            found.push(LaunchNode {
                handle,
                at,
                kind,
                kernels: kernels_of(handle, kind, depth)?,
                enabled: true,
            });
        }
    }
    Some((found, handles.len()))
}

fn all_kernels(nodes: &[LaunchNode]) -> Vec<u64> {
    nodes
        .iter()
        .filter(|node| node.enabled)
        .flat_map(|node| node.kernels.iter().copied())
        .collect()
}

fn identify(exec: CuGraphExec, nodes: &[LaunchNode]) -> u64 {
    let kernels = all_kernels(nodes);
    let hash = graph_hash(kernels.iter().copied());
    IDENTITIES.set(exec, hash);
    if kernels::newly_seen(hash) {
        log::debug!("graph {hash:016x} has {} kernels", kernels.len());
        throttle::graph_seen(hash, &kernels);
        throttle::kernel_seen(hash, &KernelId::graph(hash, kernels.len()));
    }
    hash
}

fn learn(exec: CuGraphExec, graph: CuGraph) {
    guarded(|| {
        let nodes = if capture::any() { None } else { read(graph, 0) };
        match nodes {
            Some(found) => {
                identify(exec, &found.0);
                GRAPHS_MADE.insert(exec, Made::of(found));
            }
            None => forget(exec),
        }
    });
}

fn forget(exec: CuGraphExec) {
    IDENTITIES.forget(exec);
    GRAPHS_MADE.remove(&exec);
}

/// Follows an update from a graph of equal shape. Later changes still name the first graph's nodes.
fn update(exec: CuGraphExec, graph: CuGraph) {
    guarded(|| {
        // Removed from the map, so that no lock is held during a driver call.
        let before = GRAPHS_MADE.remove(&exec).map(|(_, made)| made);
        let Some(mut made) = before else {
            return learn(exec, graph);
        };
        if capture::any() {
            made.watch.due = true;
        } else if differs(&mut made, graph) {
            let Some((mut nodes, count)) = read(graph, 0) else {
                return forget(exec);
            };
            if made.nodes.len() == nodes.len() {
                for (node, before) in nodes.iter_mut().zip(made.nodes.iter()) {
                    node.handle = before.handle;
                    node.enabled = before.enabled;
                }
            }
            made.watch.due = false;
            if nodes != made.nodes {
                identify(exec, &nodes);
                made.watch.has_read();
            }
            (made.nodes, made.count) = (nodes, count);
        }
        GRAPHS_MADE.insert(exec, made);
    });
}

/// Whether an update from `graph` requires a full read.
fn differs(made: &mut Made, graph: CuGraph) -> bool {
    let may_read = made.watch.may_read();
    if made.watch.due || throttle::is_studied() {
        return true;
    }
    if !may_read {
        return false;
    }
    let Some(handles) = nodes_of(graph, made.count).filter(|handles| handles.len() == made.count) else {
        return true;
    };
    let weights: Vec<usize> = made.nodes.iter().map(|node| node.kernels.len().max(1)).collect();
    made.watch.choose(&weights).into_iter().any(|at| {
        let node = made.nodes.get(at);
        let now = node.and_then(|node| kernels_of(*handles.get(node.at)?, node.kind, 0));
        now.as_deref() != node.map(|node| node.kernels.as_slice())
    })
}

/// Handles a changed node. `change` returns whether its kernels or its state differ.
fn change(exec: CuGraphExec, node: CuGraphNode, change: impl FnOnce(&mut LaunchNode) -> bool) {
    guarded(|| {
        let Some(mut made) = GRAPHS_MADE.get_mut(&exec) else {
            return;
        };
        let at = made.find(node);
        let Some(found) = at.and_then(|at| made.nodes.get_mut(at)) else {
            return;
        };
        // Clients rewrite all arguments before each launch; kernels rarely change, but then many at
        // once. So the next launch computes the identity.
        if change(found) {
            IDENTITIES.set(exec, CHANGED);
        }
    });
}

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

/// Handles an added node.
///
/// # Safety
/// `node` is the out-parameter of `real` and `parameters` are the parameters that it reads.
unsafe fn add(node: *const CuGraphNode, parameters: *const NodeParams, real: impl Fn() -> CuResult) -> CuResult {
    let own = parameters
        .cast::<u8>()
        .wrapping_add(std::mem::offset_of!(NodeParams, kernel));
    // SAFETY: the caller's promise.
    let result = match unsafe { written(parameters.cast::<u32>()) } {
        // SAFETY: parameters of this type have this layout.
        Some(NODE_ALLOCATION) => unsafe { pools::allocation_node(own.cast(), real) },
        // SAFETY: as above.
        Some(NODE_FREE) => pools::free_node(unsafe { own.cast::<CuDevicePtr>().read() }, real),
        _ => real(),
    };
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
/// `launch` is null or the pointer that the client gives the driver; its first version is shorter.
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
        // SAFETY: the driver read that many bytes there; the copy is at least as large and holds
        // plain words.
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
        // SAFETY: the client's promise.
        unsafe { set_kernel(exec, node, launch, true, real) }
    }
    fn cuGraphExecKernelNodeSetParams_v2(exec: CuGraphExec, node: CuGraphNode, launch: *const KernelNode) |real| {
        // SAFETY: the client's promise.
        unsafe { set_kernel(exec, node, launch, false, real) }
    }
    fn cuGraphExecNodeSetParams(exec: CuGraphExec, node: CuGraphNode, parameters: *const NodeParams) |real| {
        let result = real();
        if result.ok() {
            // SAFETY: the driver read the parameters, which are longer than the part read here.
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
                Some((nodes, _)) => change(exec, node, |node| {
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
        pools::after(real)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tens_of_thousands_of_graphs_that_live_at_once_are_told_apart() {
        // Handles are addresses of small objects.
        let exec = |number: usize| 0x7700_0000_0000 + 0x140 * number;
        for number in 2..40_000 {
            IDENTITIES.set(exec(number), number as u64);
        }
        for number in 2..40_000 {
            assert_eq!(identity(exec(number)), number as u64);
        }
        for number in 2..40_000 {
            forget(exec(number));
        }
        assert_eq!(identity(exec(2)), 0);
    }

    #[test]
    fn within_a_round_of_updates_every_node_is_looked_at_and_few_after_each() {
        for weights in [
            vec![1; 1500],
            vec![1; 3],
            vec![1500],
            [vec![1; 700], vec![900], vec![1]].concat(),
        ] {
            let (mut watch, mut seen) = (UpdateWatch::default(), vec![false; weights.len()]);
            let all: usize = weights.iter().sum();
            let mut looked = 0;
            for _ in 0..ROUND {
                let chosen = watch.choose(&weights);
                looked += chosen.iter().map(|at| weights[*at]).sum::<usize>();
                assert!(
                    chosen.len() <= weights.len().min(LEAST.max(all.div_ceil(64))),
                    "{chosen:?}"
                );
                for at in chosen {
                    seen[at] = true;
                }
            }
            assert!(seen.iter().all(|seen| *seen), "{} nodes", weights.len());
            assert!(looked <= 2 * all.max(LEAST * ROUND as usize), "{looked} of {all}");
        }
        assert!(UpdateWatch::default().choose(&[]).is_empty());
    }

    #[test]
    fn a_graph_that_differs_each_time_is_read_ever_more_rarely() {
        let mut watch = UpdateWatch::default();
        let mut reads = 0;
        for _ in 0..10 * ROUND {
            if watch.may_read() {
                watch.has_read();
                reads += 1;
            }
        }
        assert!((10..=17).contains(&reads), "{reads}");
        // A graph that was unchanged for long is read at once.
        for _ in 0..3 * ROUND {
            watch.may_read();
        }
        watch.has_read();
        assert!(watch.may_read());
    }
}
