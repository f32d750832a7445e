// SPDX-License-Identifier: MIT OR Apache-2.0
//! A graph of many kernels that is updated from others of the same shape again and again, as
//! llama.cpp does it for each token: only the driver's calls.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

use anyhow::{Result, ensure};

use crate::launcher::Launcher;

type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
type AddKernel = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *const Node) -> c_int;
type Instantiate = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, c_ulonglong) -> c_int;
type Update = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut Info) -> c_int;
type LaunchGraph = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// CUDA_KERNEL_NODE_PARAMS_v2.
#[repr(C)]
struct Node {
    function: *mut c_void,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: *mut c_void,
    context: *mut c_void,
}

/// CUgraphExecUpdateResultInfo.
#[repr(C)]
struct Info {
    result: c_int,
    node: *mut c_void,
    from: *mut c_void,
}

/// An executable graph, and two graphs of the same kernels with different arguments that it is
/// updated from in turn.
#[derive(Debug)]
pub struct Updates<'a> {
    launcher: &'a Launcher,
    exec: *mut c_void,
    sources: [*mut c_void; 2],
    update: Update,
    launch: LaunchGraph,
}

impl Updates<'_> {
    /// Two graphs of `nodes` kernels, one behind the other.
    pub fn make(launcher: &Launcher, nodes: usize) -> Result<Updates<'_>> {
        let create: Create = launcher.symbol("cuGraphCreate")?;
        let add: AddKernel = launcher.symbol("cuGraphAddKernelNode_v2")?;
        let instantiate: Instantiate = launcher.symbol("cuGraphInstantiateWithFlags")?;
        let mut sources = [null_mut(); 2];
        for (value, graph) in sources.iter_mut().enumerate() {
            // SAFETY: the out pointer is a local; there are no flags.
            check("cuGraphCreate", unsafe { create(graph, 0) })?;
            // The number of elements among the kernel's arguments is 0: it touches no memory.
            let mut values = [0u64, value as u64, 0];
            let [a, b, c] = &mut values;
            let mut arguments: [*mut c_void; 3] = [
                std::ptr::from_mut(a).cast(),
                std::ptr::from_mut(b).cast(),
                std::ptr::from_mut(c).cast(),
            ];
            let (mut node, mut before) = (null_mut(), null_mut());
            for number in 0..nodes {
                // Grids of some sizes, so that not all nodes are alike.
                let parameters = Node {
                    function: launcher.kernel(),
                    grid: [1 + (number % 8) as c_uint, 1, 1],
                    block: [32, 1, 1],
                    shared: 0,
                    arguments: arguments.as_mut_ptr(),
                    extra: null_mut(),
                    kernel: null_mut(),
                    context: null_mut(),
                };
                // SAFETY: the graph and the node before are live; the parameters fit the kernel and
                // are copied by the call.
                let added = unsafe { add(&mut node, *graph, &before, usize::from(number > 0), &parameters) };
                check("cuGraphAddKernelNode", added)?;
                before = node;
            }
        }
        let [first, _] = sources;
        let mut exec = null_mut();
        // SAFETY: the graph is live, the out pointer a local.
        check("cuGraphInstantiate", unsafe { instantiate(&mut exec, first, 0) })?;
        Ok(Updates {
            launcher,
            exec,
            sources,
            update: launcher.symbol("cuGraphExecUpdate_v2")?,
            launch: launcher.symbol("cuGraphLaunch")?,
        })
    }

    /// Updates `count` times, and launches nothing.
    pub fn update(&self, count: u32) -> Result<()> {
        self.updates::<false>(count)
    }

    /// Updates `count` times, launches after each and waits for that.
    pub fn update_and_launch(&self, count: u32) -> Result<()> {
        self.updates::<true>(count)
    }

    fn updates<const LAUNCH: bool>(&self, count: u32) -> Result<()> {
        let mut worst = 0;
        let mut info = Info {
            result: 0,
            node: null_mut(),
            from: null_mut(),
        };
        for source in self.sources.iter().cycle().take(count as usize) {
            // SAFETY: both graphs are live and of the same shape; the place for the answer is a
            // local.
            worst |= unsafe { (self.update)(self.exec, *source, &mut info) };
            if LAUNCH {
                // SAFETY: graph and stream are live.
                worst |= unsafe { (self.launch)(self.exec, self.launcher.stream()) };
                self.launcher.wait()?;
            }
        }
        check("an update or a launch", worst)
    }
}

fn check(call: &str, result: c_int) -> Result<()> {
    ensure!(result == 0, "{call} answered {result}");
    Ok(())
}
