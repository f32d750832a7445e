//! The calls that weft looks at. All others go straight to the driver.
//!
//! A hook has the driver function's signature, calls the driver once with the client's arguments,
//! and returns its result. Exceptions: deferred launches, allocations beyond the quota, managed
//! memory. Bookkeeping may fail without effect on the call. Hooks allocate or lock only around
//! calls that load code, build graphs, begin captures or take memory, never at launches.
//!
//! A hook whose call must not overtake deferred launches first empties the launch queue
//! ([`crate::deferred`]). Stream-ordered functions without a hook pass [`stream_ordered`], which
//! tells the session first.

mod allocation;
mod capture;
mod context;
mod declare;
mod deferred_launch;
mod func_attributes;
pub mod graph;
mod init;
mod launch;
mod managed_launch;
mod managed_memory;
mod mem_info;
pub mod module;
pub mod proc_address;
pub mod stream_ordered;
mod sync;

use std::sync::LazyLock;

use crate::paging::may_be_managed;

/// The hook for a symbol.
pub fn hook(at: usize) -> Option<*const ()> {
    let modules = [
        launch::find,
        sync::find,
        allocation::find,
        mem_info::find,
        module::find,
        graph::find,
        capture::find,
        context::find,
        init::find,
    ];
    // A managed job, and a job that may become managed, prefers its own hooks.
    let managed = may_be_managed().then(|| managed_launch::find(at).or_else(|| managed_memory::find(at)));
    let managed = managed.flatten();
    // So does a job whose launches may be deferred at the gate.
    let leaving = || deferred_launch::find(at).or_else(|| func_attributes::find(at));
    let managed = managed.or_else(|| crate::client::deferral::on().then(leaving).flatten());
    managed.or_else(|| modules.into_iter().find_map(|find| find(at)))
}

/// Whether a managed job has its own hook for a symbol.
pub fn is_for_managed(at: usize) -> bool {
    managed_launch::find(at).is_some() || managed_memory::find(at).is_some()
}

/// Whether weft keeps out of this process (`WEFT_MODE=off`). Then only lookups are hooked, and
/// other calls pass through. Asked once per symbol, when it binds.
pub fn off() -> bool {
    static OFF: LazyLock<bool> = LazyLock::new(|| std::env::var_os("WEFT_MODE").is_some_and(|mode| mode == "off"));
    *OFF
}

/// What a symbol does without a driver, if more than to report that.
pub fn without_driver(at: usize) -> Option<*const ()> {
    init::without_driver(at)
}
