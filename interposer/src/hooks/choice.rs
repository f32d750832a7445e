// SPDX-License-Identifier: MIT OR Apache-2.0
//! Choice among several hooks for a symbol, by the job's memory and launch queue.

use super::{
    allocation, arrays, capture, context, deferred_launch, func_attributes, graph, init, launch, managed_launch,
    managed_memory, mem_info, module, movable, pools, stream_priority, sync,
};
use crate::client::{backing_mode, deferral};
use crate::paging::may_be_managed;

/// The hook for a symbol in all modes but trace mode.
pub(super) fn unrecorded(at: usize) -> Option<*const ()> {
    // A managed job, and a job that may become managed, prefers its own hooks.
    let managed = || managed_launch::find(at).or_else(|| managed_memory::find(at));
    // So does a job whose launches may be deferred at the gate.
    let deferring = || {
        let launch = deferred_launch::find(at).or_else(|| deferred_launch::find_old(at));
        launch.or_else(|| func_attributes::find(at))
    };
    let modules = [
        launch::find,
        launch::find_old,
        sync::find,
        allocation::find,
        pools::find,
        arrays::find,
        mem_info::find,
        module::find,
        graph::find,
        capture::find,
        context::find,
        init::find,
    ];
    let own = may_be_managed().then(managed).flatten();
    let own = own.or_else(|| deferral::on().then(deferring).flatten());
    let own = own.or_else(|| backing_mode::movable().then(|| movable::find(at)).flatten());
    let lowered = || stream_priority::wanted().then(|| stream_priority::find(at)).flatten();
    let own = own.or_else(lowered);
    own.or_else(|| modules.into_iter().find_map(|find| find(at)))
}

/// Whether a managed job has its own hook for a symbol.
pub fn is_for_managed(at: usize) -> bool {
    managed_launch::find(at).is_some() || managed_memory::find(at).is_some()
}
