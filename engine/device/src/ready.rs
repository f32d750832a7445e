// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orders of waiting: ready operations of a context, contexts in line for an engine.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::slab::SlabKey;

/// The operations of one context that are ready for one engine, by priority number, then by time of
/// becoming ready.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadyOps {
    heap: BinaryHeap<Reverse<(i32, u64, SlabKey)>>,
}

impl ReadyOps {
    pub(crate) fn push(&mut self, priority: i32, order: u64, op: SlabKey) {
        self.heap.push(Reverse((priority, order, op)));
    }

    pub(crate) fn pop(&mut self) -> Option<SlabKey> {
        self.heap.pop().map(|Reverse((_, _, op))| op)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Priority number of the one that goes next.
    pub(crate) fn priority(&self) -> Option<i32> {
        self.heap.peek().map(|Reverse((priority, _, _))| *priority)
    }
}

/// Contexts that wait for an engine, each at most once, in order of arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    contexts: VecDeque<SlabKey>,
}

impl Line {
    pub(crate) fn join(&mut self, context: SlabKey) {
        // The line is as long as there are busy contexts: a handful.
        if !self.contexts.contains(&context) {
            self.contexts.push_back(context);
        }
    }

    pub(crate) fn next(&mut self) -> Option<SlabKey> {
        self.contexts.pop_front()
    }

    /// The first of those with the lowest rank.
    pub(crate) fn next_by<R: Ord>(&mut self, rank: impl Fn(SlabKey) -> R) -> Option<SlabKey> {
        let first = self
            .contexts
            .iter()
            .enumerate()
            .min_by_key(|(_, context)| rank(**context));
        let at = first.map(|(at, _)| at)?;
        self.contexts.remove(at)
    }

    pub(crate) fn leave(&mut self, context: SlabKey) {
        self.contexts.retain(|&other| other != context);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.contexts.is_empty()
    }
}
