// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cuGraphExecUpdate`: an instantiated graph takes over the parameters of another graph of the
//! same shape.
#![forbid(unsafe_code)]

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, R};
use crate::graph::exec::launch::Plan;
use crate::graph::exec::{Exec, Item, flatten};
use crate::graph::model::Graph;

/// `CUgraphExecUpdateResult`, as far as it can happen here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Outcome {
    Success = 0,
    TopologyChanged = 2,
    NodeTypeChanged = 3,
}

/// Why an update failed, and at which node of the new graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) outcome: Outcome,
    pub(super) node: Handle,
    pub(super) from: Handle,
}

/// The first difference in shape.
fn difference(old: &[Item], new: &[Item]) -> Option<Difference> {
    for (old, new) in old.iter().zip(new) {
        if old.body.kind() != new.body.kind() {
            return Some(Difference {
                outcome: Outcome::NodeTypeChanged,
                node: new.node,
                from: 0,
            });
        }
        if old.after != new.after {
            return Some(Difference {
                outcome: Outcome::TopologyChanged,
                node: new.node,
                from: 0,
            });
        }
    }
    let node = new.get(old.len()).map_or(0, |item| item.node);
    (old.len() != new.len()).then_some(Difference {
        outcome: Outcome::TopologyChanged,
        node,
        from: 0,
    })
}

impl Exec {
    /// Takes over another graph's parameters; the outer error is for a graph that could not be
    /// instantiated either.
    pub(super) fn update(&self, graph: &Graph) -> R<Result<(), Difference>> {
        let new = flatten(graph)?;
        let mut inner = lock(&self.inner);
        if let Some(difference) = difference(&inner.items, &new) {
            return Ok(Err(difference));
        }
        // Changes that follow still name the nodes it was instantiated from.
        for (old, new) in inner.items.iter_mut().zip(new) {
            old.body = new.body;
        }
        inner.plan = Plan::new(&inner.items);
        Ok(Ok(()))
    }

    /// `cuGraphExecChildGraphNodeSetParams`: updates one child graph inside.
    pub(super) fn update_child(&self, node: Handle, graph: &Graph) -> R {
        let new = flatten(graph)?;
        let mut inner = lock(&self.inner);
        let inside = |item: &&mut Item| item.parents.contains(&node);
        let old: Vec<&mut Item> = inner.items.iter_mut().filter(inside).collect();
        let same = old.len() == new.len()
            && old
                .iter()
                .zip(&new)
                .all(|(old, new)| old.body.kind() == new.body.kind());
        if !same {
            return Err(Error::INVALID_VALUE);
        }
        for (old, new) in old.into_iter().zip(new) {
            old.body = new.body;
        }
        Ok(())
    }
}
