// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a call with a handle whose object is gone or never was.
//!
//! A real driver's handles are addresses. It follows most of them without a look, so a destroyed
//! one is a crash, or damage that shows later. Here such a call is refused with
//! `CUDA_ERROR_INVALID_HANDLE`, which is kinder than a real driver. With
//! `SIMGPU_DEAD_HANDLES=abort` it ends the process, with one line that names the call, the handle
//! and its kind. Null is refused by both. So are a kernel's handle in place of a function's, and
//! the reverse.
//!
//! With `SIMGPU_DEAD_HANDLES=reuse` the next object of the kind gets the handle of the last one
//! that was destroyed. A real driver does the same, since both objects get their memory from the
//! same place. Data that was kept under that handle is then about another object.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::OnceLock;

use crate::abi::{Error, Handle};
use crate::registry::{HandleKind, kind_of};

thread_local! {
    /// The entry point that the thread is in; kept only if it may be needed.
    static CALL: Cell<&'static str> = const { Cell::new("a call") };
}

/// The treatment of a dead handle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dead {
    Refused,
    Followed,
    Reused,
}

#[inline]
fn dead() -> Dead {
    static DEAD: OnceLock<Dead> = OnceLock::new();
    let read = || match std::env::var("SIMGPU_DEAD_HANDLES").as_deref() {
        Ok("abort") => Dead::Followed,
        Ok("reuse") => Dead::Reused,
        _ => Dead::Refused,
    };
    *DEAD.get_or_init(read)
}

/// Does a dead handle end the process?
#[inline]
pub(crate) fn is_followed() -> bool {
    dead() == Dead::Followed
}

/// Does the next object of a kind get the handle of the last one that went? Nodes do not: a copy of
/// a graph remembers the nodes that it was made from by their handles.
pub(crate) fn is_reused(kind: HandleKind) -> bool {
    dead() == Dead::Reused
        && !matches!(
            kind,
            HandleKind::Node | HandleKind::UserObject | HandleKind::Conditional
        )
}

/// Told at each entry point.
#[inline]
pub(crate) fn entered(name: &'static str) {
    if is_followed() {
        let _ = CALL.try_with(|call| call.set(name));
    }
}

/// The C type of this kind of object, if its handle is an address on a real driver. The other
/// handles are numbers, which a real driver looks up.
fn followed(kind: HandleKind) -> Option<&'static str> {
    Some(match kind {
        HandleKind::Context => "CUcontext",
        HandleKind::Module => "CUmodule",
        HandleKind::Library => "CUlibrary",
        HandleKind::Function => "CUfunction",
        HandleKind::Kernel => "CUkernel",
        HandleKind::Stream => "CUstream",
        HandleKind::Event => "CUevent",
        HandleKind::Pool => "CUmemoryPool",
        HandleKind::Array => "CUarray",
        HandleKind::Link => "CUlinkState",
        HandleKind::Graph => "CUgraph",
        HandleKind::Node => "CUgraphNode",
        HandleKind::Exec => "CUgraphExec",
        HandleKind::UserObject => "CUuserObject",
        HandleKind::Allocation | HandleKind::Conditional => return None,
    })
}

/// The answer to a call with a handle of no living object.
#[cold]
pub(crate) fn used(kind: HandleKind, handle: Handle) -> Error {
    let other = match kind {
        HandleKind::Function => Some(HandleKind::Kernel),
        HandleKind::Kernel => Some(HandleKind::Function),
        _ => None,
    };
    let is_other = other.is_some_and(|other| kind_of(handle) == other as usize);
    if let Some(name) = followed(kind)
        && is_followed()
        && handle != 0
        && !is_other
    {
        let call = CALL.try_with(Cell::get).unwrap_or("a call");
        let thread = std::thread::current();
        eprintln!(
            "simcuda[{}] dead handle: {call} with {handle:#x}, no living {name} (thread {})",
            std::process::id(),
            name_of_thread().as_deref().or(thread.name()).unwrap_or("?"),
        );
        // SAFETY: ends the process; takes no argument.
        unsafe { libc::abort() };
    }
    Error::INVALID_HANDLE
}

/// The name that the kernel has for the thread: threads of other libraries' runtimes have no other.
fn name_of_thread() -> Option<String> {
    let name = std::fs::read_to_string(format!(
        "/proc/self/task/{}/comm",
        rustix::thread::gettid().as_raw_nonzero()
    ));
    name.ok().map(|name| name.trim_end().to_string())
}
