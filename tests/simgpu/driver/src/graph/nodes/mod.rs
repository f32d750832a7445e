// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points of each kind of node: adding one, asking it, changing it in its graph and in an
//! instantiated one.
#![deny(unsafe_code)]

mod generic;
mod kernel;
mod other;
mod transfer;

use crate::abi::{Error, Handle, R};
use crate::graph::exec::target;
use crate::graph::model::{Body, NODES};

/// Changes a node of a graph; its kind stays.
fn change(node: Handle, kind: u32, new: impl FnOnce(&Body) -> R<Body>) -> R {
    let node = NODES.get(node)?;
    let old = node.body();
    if old.kind() != kind {
        return Err(Error::INVALID_VALUE);
    }
    let new = new(&old)?;
    if new.kind() != kind {
        return Err(Error::INVALID_VALUE);
    }
    node.set_body(new);
    Ok(())
}

/// Changes a node of an instantiated graph; its kind stays.
fn change_in(exec: Handle, node: Handle, kind: u32, new: impl FnOnce(&Body) -> R<Body>) -> R {
    let (exec, node) = target(exec, node)?;
    exec.change(node.handle, kind, new)
}
