//! The calls that weft looks at. Everything else goes straight to the driver.
//!
//! A hook has the driver function's signature, calls the driver exactly once with the client's own
//! arguments, and returns what the driver returned. What it does besides is bookkeeping: it may
//! fail, and then only the bookkeeping is poorer. Hooks that allocate or lock do so only around
//! calls that load code, build graphs, begin captures or take memory; the launch path does neither.
//!
//! Every hook but those of launches first sees what was left behind at the gate gone
//! ([`crate::deferred`]). Every stream-ordered function without a hook of its own passes
//! [`stream_ordered`], which tells the session before the driver is called.

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

/// Our hook for a symbol.
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
    // Of two hooks for a symbol, a managed job gets its own, and so does one that may come to be
    // managed.
    let managed = may_be_managed().then(|| managed_launch::find(at).or_else(|| managed_memory::find(at)));
    let managed = managed.flatten();
    // So does one whose launches may be left behind at the gate.
    let leaving = || deferred_launch::find(at).or_else(|| func_attributes::find(at));
    let managed = managed.or_else(|| crate::client::deferral::on().then(leaving).flatten());
    managed.or_else(|| modules.into_iter().find_map(|find| find(at)))
}

/// Whether a managed job has a hook of its own for a symbol.
pub fn is_for_managed(at: usize) -> bool {
    managed_launch::find(at).is_some() || managed_memory::find(at).is_some()
}

/// Is weft told to keep out of this process (`WEFT_MODE=off`)? Then only the lookups are ours, and
/// every other call passes straight through. Asked when a symbol is bound, which is once.
pub fn off() -> bool {
    static OFF: LazyLock<bool> = LazyLock::new(|| std::env::var_os("WEFT_MODE").is_some_and(|mode| mode == "off"));
    *OFF
}

/// What a symbol does where there is no driver, if it is more than to say so.
pub fn without_driver(at: usize) -> Option<*const ()> {
    init::without_driver(at)
}
