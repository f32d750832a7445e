// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points about instantiated graphs as a whole. Those that change one node stand with
//! that kind of node.
#![deny(unsafe_code)]

use crate::abi::{Error, Handle, Out, R};
use crate::export::export;
use crate::graph::exec::update::Outcome;
use crate::graph::exec::{EXECS, Exec, target};
use crate::graph::model::{GRAPHS, NODES};
use crate::state;
use crate::stream;

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct InstantiateParams {
    flags: u64,
    upload_stream: Handle,
    error_node: Handle,
    result: u32,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct UpdateResult {
    result: u32,
    error_node: Handle,
    error_from_node: Handle,
}

/// All flags that the header knows: auto free, upload, device launch, node priority.
const FLAGS: u64 = 0xf;
/// `CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE`.
const INVALID_STRUCTURE: u32 = 2;

fn instantiate(exec: Out<Handle>, graph: Handle, flags: u64) -> R {
    state::driver()?;
    if flags & !FLAGS != 0 || exec.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    exec.set(Exec::instantiate(&*GRAPHS.get(graph)?, flags)?)
}

fn update(exec: Handle, graph: Handle, answer: impl FnOnce(Outcome, Handle, Handle)) -> R {
    match EXECS.get(exec)?.update(&*GRAPHS.get(graph)?)? {
        Ok(()) => {
            answer(Outcome::Success, 0, 0);
            Ok(())
        }
        Err(difference) => {
            answer(difference.outcome, difference.node, difference.from);
            Err(Error::GRAPH_EXEC_UPDATE_FAILURE)
        }
    }
}

export! {
    fn cuGraphInstantiate(exec: Out<Handle>, graph: Handle, error_node: Out<Handle>, log: Out<u8>, room: usize) {
        let _ = (error_node, log, room);
        instantiate(exec, graph, 0)
    }

    fn cuGraphInstantiate_v2(exec: Out<Handle>, graph: Handle, error_node: Out<Handle>, log: Out<u8>, room: usize) {
        let _ = (error_node, log, room);
        instantiate(exec, graph, 0)
    }

    fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, flags: u64) {
        instantiate(exec, graph, flags)
    }

    fn cuGraphInstantiateWithParams(exec: Out<Handle>, graph: Handle, params: Out<InstantiateParams>) {
        let mut asked = params.get()?;
        let result = instantiate(exec, graph, asked.flags);
        asked.error_node = 0;
        asked.result = if result.is_ok() { 0 } else { INVALID_STRUCTURE };
        params.set(asked)?;
        result
    }

    fn cuGraphLaunch(exec: Handle, stream: Handle) {
        let driver = state::driver()?;
        let exec = EXECS.get(exec)?;
        exec.launch(driver, &stream::resolve(driver, stream)?)
    }

    fn cuGraphUpload(exec: Handle, stream: Handle) {
        // Nothing to bring to the device: its operations go there at each launch.
        EXECS.get(exec)?;
        stream::resolve(state::driver()?, stream).map(drop)
    }

    fn cuGraphExecDestroy(exec: Handle) {
        EXECS.remove(exec).map(drop)
    }

    fn cuGraphExecGetFlags(exec: Handle, flags: Out<u64>) {
        // The flag that counts for one launch only is not reported.
        flags.set(EXECS.get(exec)?.flags & !2)
    }

    fn cuGraphExecGetId(exec: Handle, id: Out<u32>) {
        id.set(u32::try_from(EXECS.get(exec)?.id).unwrap_or(u32::MAX))
    }

    fn cuGraphExecUpdate(exec: Handle, graph: Handle, error_node: Out<Handle>, result: Out<u32>) {
        update(exec, graph, |outcome, node, _| {
            error_node.set_if(node);
            result.set_if(outcome as u32);
        })
    }

    fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, info: Out<UpdateResult>) {
        update(exec, graph, |outcome, error_node, error_from_node| {
            info.set_if(UpdateResult { result: outcome as u32, error_node, error_from_node });
        })
    }

    fn cuGraphExecChildGraphNodeSetParams(exec: Handle, node: Handle, graph: Handle) {
        let (exec, node) = target(exec, node)?;
        exec.update_child(node.handle, &*GRAPHS.get(graph)?)
    }

    fn cuGraphNodeSetEnabled(exec: Handle, node: Handle, enabled: u32) {
        let (exec, node) = target(exec, node)?;
        exec.enabled(node.handle, Some(enabled != 0)).map(drop)
    }

    fn cuGraphNodeGetEnabled(exec: Handle, node: Handle, enabled: Out<u32>) {
        let (exec, node) = target(exec, node)?;
        enabled.set(u32::from(exec.enabled(node.handle, None)?))
    }

    fn cuGraphNodeGetToolsId(node: Handle, id: Out<u64>) {
        // Unique in the process, like the handle.
        id.set(NODES.get(node)?.handle as u64)
    }
}
