// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fragmentation gradient descent (USENIX ATC 2023): the node and its GPU on which the expected
//! fragments grow least.
//!
//! | paper | here |
//! |---|---|
//! | M, the target workload: tasks m with popularity p_m | [`TypicalAsk`], from [`typical_asks`] |
//! | F_n(m), the fragment of node n for task m | [`fragment`] |
//! | F_n = sum of p_m F_n(m) | [`expected_fragment`] |
//! | F_n before less F_n after | through a sigmoid into 0 to 100, cut off |
//!
//! If task m does not fit on node n, all of the node's idle GPUs are a fragment for m. If it fits,
//! the GPUs that have too little left for m are. For a task without GPUs all idle GPUs are.
//!
//! Details that the paper omits are taken from its simulator. The target workload is the most
//! popular requests that make up 95 % of all. Points are whole ones, so that nodes are often equal.
//! An exclusive worker takes a node's idle GPUs in their order.

use std::collections::BTreeMap;

use crate::job::WorkerAsk;
use crate::node::ClusterNode;

/// Typical request, with its frequency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TypicalAsk {
    /// Resources of each worker. Host memory is ignored.
    pub ask: WorkerAsk,
    /// Part of all typical requests, 0 to 1.
    pub part: f64,
}

/// Target workload: the most popular requests that make up 95 % of all.
pub fn typical_asks(asks: impl Iterator<Item = WorkerAsk>) -> Vec<TypicalAsk> {
    let mut counts: BTreeMap<WorkerAsk, usize> = BTreeMap::new();
    for ask in asks {
        *counts.entry(WorkerAsk { memory_mib: 0, ..ask }).or_default() += 1;
    }
    let total: usize = counts.values().sum();
    let mut counts: Vec<(WorkerAsk, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(ask, count)| std::cmp::Reverse((*count, ask.cpu_milli, ask.gpu_milli, ask.gpus)));
    let mut kept = 0;
    let kept_before = |(_, count): &(WorkerAsk, usize)| {
        let wanted = kept * 100 < total * 95;
        kept += count;
        wanted
    };
    let typical: Vec<(WorkerAsk, usize)> = counts.into_iter().take_while(kept_before).collect();
    let kept: usize = typical.iter().map(|(_, count)| count).sum();
    let part = |count: usize| count as f64 / kept.max(1) as f64;
    typical
        .into_iter()
        .map(|(ask, count)| TypicalAsk { ask, part: part(count) })
        .collect()
}

/// Thousandths of the idle GPUs that are a fragment for this task.
fn fragment(cpu_milli: u32, gpus: &[u32], task: &WorkerAsk) -> u32 {
    let fitting = gpus.iter().filter(|free| **free >= task.gpu_milli).count();
    let fits = task.gpus > 0 && cpu_milli >= task.cpu_milli && fitting >= task.gpus as usize;
    gpus.iter().filter(|free| !fits || **free < task.gpu_milli).sum()
}

fn expected_fragment(cpu_milli: u32, gpus: &[u32], typical: &[TypicalAsk]) -> f64 {
    let each = |typical: &TypicalAsk| typical.part * f64::from(fragment(cpu_milli, gpus, &typical.ask));
    typical.iter().map(each).sum()
}

/// Score of a node, and the GPU for a part. 50 if fragments stay as they are, more if they shrink.
pub(super) fn score(node: &ClusterNode, ask: &WorkerAsk, typical: &[TypicalAsk]) -> (i64, Option<usize>) {
    let before = expected_fragment(node.cpu_milli, &node.gpus, typical);
    let points = |gpus: &[u32]| {
        let after = expected_fragment(node.cpu_milli - ask.cpu_milli, gpus, typical);
        (100.0 / (1.0 + ((after - before) / 1_000.0).exp())) as i64
    };
    let mut gpus = node.gpus.clone();
    if !ask.shares() {
        let mut left = ask.gpus;
        // Each requested GPU is wholly idle, and the worker takes all of it.
        for free in gpus.iter_mut().filter(|free| ask.gpus > 0 && **free >= ask.gpu_milli) {
            if left > 0 {
                *free -= ask.gpu_milli;
                left -= 1;
            }
        }
        return (points(&gpus), None);
    }
    let mut best: Option<(i64, usize)> = None;
    for at in 0..gpus.len() {
        if gpus[at] >= ask.gpu_milli {
            gpus[at] -= ask.gpu_milli;
            let score = points(&gpus);
            gpus[at] += ask.gpu_milli;
            if best.is_none_or(|(best, _)| score > best) {
                best = Some((score, at));
            }
        }
    }
    best.map_or((0, None), |(score, at)| (score, Some(at)))
}
