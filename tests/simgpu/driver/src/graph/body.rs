//! What one node does.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::abi::{Error, R};
use crate::event::Event;
use crate::graph::conditional::Conditional;
use crate::graph::memory::Allocation;
use crate::graph::model::Graph;
use crate::stream::memop::MemOp;
use crate::work::Work;

/// What one node does.
#[derive(Clone)]
pub(crate) enum Body {
    /// Anything that a stream can do.
    Work(Work),
    /// Records an event.
    Record(Arc<Event>),
    /// Waits for an event that was recorded outside.
    Wait(Arc<Event>),
    /// A graph inside this one.
    Child(Arc<Graph>),
    /// Makes memory usable.
    Alloc(Arc<Allocation>),
    /// Gives it back.
    Free(u64),
    /// Stream writes and waits, with the parameters they were made from.
    Batch(Arc<[[u64; 6]]>, Arc<[MemOp]>),
    /// Graphs that run or not by a value on the device.
    Conditional(Arc<Conditional>),
}

/// `CUgraphNodeType`.
pub(crate) mod kind {
    pub(crate) const KERNEL: u32 = 0;
    pub(crate) const MEMCPY: u32 = 1;
    pub(crate) const MEMSET: u32 = 2;
    pub(crate) const HOST: u32 = 3;
    pub(crate) const GRAPH: u32 = 4;
    pub(crate) const EMPTY: u32 = 5;
    pub(crate) const WAIT_EVENT: u32 = 6;
    pub(crate) const EVENT_RECORD: u32 = 7;
    pub(crate) const MEM_ALLOC: u32 = 10;
    pub(crate) const MEM_FREE: u32 = 11;
    pub(crate) const BATCH_MEM_OP: u32 = 12;
    pub(crate) const CONDITIONAL: u32 = 13;
}

impl Body {
    /// `CUgraphNodeType`.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Body::Work(Work::Kernel(_)) => kind::KERNEL,
            Body::Work(Work::Copy(_)) => kind::MEMCPY,
            Body::Work(Work::Set(_)) => kind::MEMSET,
            Body::Work(Work::Host(_)) => kind::HOST,
            Body::Work(Work::MemOps(_)) | Body::Batch(..) => kind::BATCH_MEM_OP,
            Body::Work(Work::Empty) => kind::EMPTY,
            Body::Record(_) => kind::EVENT_RECORD,
            Body::Wait(_) => kind::WAIT_EVENT,
            Body::Child(_) => kind::GRAPH,
            Body::Alloc(_) => kind::MEM_ALLOC,
            Body::Free(_) => kind::MEM_FREE,
            Body::Conditional(_) => kind::CONDITIONAL,
        }
    }

    /// The graphs inside.
    pub(crate) fn graphs(&self) -> Vec<Arc<Graph>> {
        match self {
            Body::Child(graph) => vec![graph.clone()],
            Body::Conditional(conditional) => conditional.bodies.clone(),
            _ => Vec::new(),
        }
    }

    /// A copy with copies of the graphs inside.
    pub(crate) fn copied(&self) -> R<Body> {
        Ok(match self {
            Body::Child(graph) => Body::Child(graph.clone_graph()?),
            Body::Conditional(_) => return Err(Error::NOT_SUPPORTED),
            other => other.clone(),
        })
    }
}
