//! Orders of waiting: ready operations of a context, contexts in line for an engine.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::slab::Key;

/// The operations of one context that are ready for one engine, by priority number, then by time of
/// becoming ready.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadyOps {
    heap: BinaryHeap<Reverse<(i32, u64, Key)>>,
}

impl ReadyOps {
    pub(crate) fn push(&mut self, priority: i32, order: u64, op: Key) {
        self.heap.push(Reverse((priority, order, op)));
    }

    pub(crate) fn pop(&mut self) -> Option<Key> {
        self.heap.pop().map(|Reverse((_, _, op))| op)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

/// Contexts that wait for an engine, each at most once, in order of arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    contexts: VecDeque<Key>,
}

impl Line {
    pub(crate) fn join(&mut self, context: Key) {
        // The line is as long as there are busy contexts: a handful.
        if !self.contexts.contains(&context) {
            self.contexts.push_back(context);
        }
    }

    pub(crate) fn next(&mut self) -> Option<Key> {
        self.contexts.pop_front()
    }

    pub(crate) fn leave(&mut self, context: Key) {
        self.contexts.retain(|&other| other != context);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.contexts.is_empty()
    }
}
