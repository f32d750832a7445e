// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launching: the items become operations on the launching stream and on hidden ones.
//!
//! A chain stays on the launching stream. Work parallel to it goes to hidden streams, which begin
//! with a wait for the point at which the graph began. An edge between two streams is a wait. At
//! the end the launching stream waits for all that is still open. So the graph is one unit in its
//! stream's order, and its kernels overlap as their edges allow.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use simgpu_device::lock::lock;
use simgpu_device::{Op, Seq};

use crate::abi::R;
use crate::graph::capture::capture_body;
use crate::graph::exec::{Exec, Item};
use crate::graph::model::Body;
use crate::memory::owned;
use crate::state::Driver;
use crate::stream::Stream;
use crate::work::StreamWork;

/// Most hidden streams of one instantiated graph: the number of hardware queues of a context. A
/// wider graph shares them.
const BRANCHES: usize = 31;
/// Numbers the launches, for the device's log.
static LAUNCHES: AtomicU64 = AtomicU64::new(1);

/// The branch of each item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// For each item: its branch (0 is the launching stream) and the items it has to wait for.
    places: Vec<(usize, Vec<usize>)>,
    /// Items that the launching stream waits for at the end.
    open: Vec<usize>,
    /// Branches, the launching stream included.
    width: usize,
}

impl Plan {
    pub(crate) fn new(items: &[Item]) -> Plan {
        // The last item of each branch.
        let mut tails: Vec<Option<usize>> = vec![None];
        let mut places: Vec<(usize, Vec<usize>)> = Vec::with_capacity(items.len());
        let mut followed = vec![false; items.len()];
        let mut shared = 0;
        for (at, item) in items.iter().enumerate() {
            let own = tails
                .iter()
                .position(|tail| tail.is_some_and(|tail| item.after.contains(&tail)));
            let branch = own.unwrap_or_else(|| {
                if at == 0 {
                    return 0;
                }
                if tails.len() <= BRANCHES {
                    tails.push(None);
                    return tails.len() - 1;
                }
                shared = shared % BRANCHES + 1;
                shared
            });
            // Earlier work on the same branch has ended anyway.
            let waits: Vec<usize> = item
                .after
                .iter()
                .copied()
                .filter(|before| places[*before].0 != branch)
                .collect();
            for before in &item.after {
                followed[*before] = true;
            }
            if let Some(tail) = tails[branch] {
                followed[tail] = true;
            }
            tails[branch] = Some(at);
            places.push((branch, waits));
        }
        let open = (0..items.len())
            .filter(|at| !followed[*at] && places[*at].0 != 0)
            .collect();
        Plan {
            places,
            open,
            width: tails.len(),
        }
    }
}

impl Exec {
    /// Launches the graph on a stream.
    pub(crate) fn launch(&self, driver: &Driver, stream: &Arc<Stream>) -> R {
        if stream.is_capturing() {
            return capture_body(stream, Body::Child(self.as_graph()?)).map(drop);
        }
        let number = LAUNCHES.fetch_add(1, Ordering::Relaxed);
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        if stream.last() != inner.last {
            stream.wait_for(driver, inner.last)?;
        }
        let hidden = inner.branches.entry(stream.context.id).or_default();
        while hidden.len() + 1 < inner.plan.width {
            hidden.push(Stream::internal(driver, &stream.context, stream.priority())?);
        }
        let begin = match inner.plan.width > 1 || inner.items.is_empty() {
            true => stream.submit(driver, Op::Marker, None, number)?,
            false => Seq::NONE,
        };
        let mut ends: Vec<Seq> = Vec::with_capacity(inner.items.len());
        for (item, (branch, waits)) in inner.items.iter().zip(&inner.plan.places) {
            let on = if *branch == 0 { stream } else { &hidden[branch - 1] };
            if *branch != 0 && item.after.is_empty() {
                on.wait_for(driver, begin)?;
            }
            for before in waits {
                on.wait_for(driver, ends[*before])?;
            }
            perform(driver, on, item, number)?;
            ends.push(on.last());
        }
        for at in &inner.plan.open {
            stream.wait_for(driver, ends[*at])?;
        }
        inner.last = stream.last();
        Ok(())
    }
}

/// Puts one item on a stream.
fn perform(driver: &Driver, stream: &Arc<Stream>, item: &Item, number: u64) -> R {
    if !item.enabled {
        return StreamWork::Empty.submit(driver, stream, number).map(drop);
    }
    match &item.body {
        Body::Work(work) => work.submit(driver, stream, number).map(drop),
        Body::Batch(_, ops) => StreamWork::MemOps(ops.clone()).submit(driver, stream, number).map(drop),
        Body::Record(event) => event.record(driver, stream, number),
        Body::Wait(event) => {
            stream.wait_for(driver, event.seq())?;
            // Followers wait for this item, so it needs an operation of its own.
            StreamWork::Empty.submit(driver, stream, number).map(drop)
        }
        // The memory is there from the node's making on; whose it is changes in the order of the
        // client's calls.
        Body::Alloc(allocation) => {
            owned::begins(allocation.params.address);
            StreamWork::Empty.submit(driver, stream, number).map(drop)
        }
        Body::Free(address) => {
            owned::ends(*address);
            StreamWork::Empty.submit(driver, stream, number).map(drop)
        }
        // Inlined when the graph was instantiated.
        Body::Child(_) | Body::Conditional(_) => StreamWork::Empty.submit(driver, stream, number).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(after: &[&[usize]]) -> Vec<Item> {
        let item = |after: &&[usize]| Item {
            node: 0,
            parents: Vec::new(),
            body: Body::Work(StreamWork::Empty),
            after: after.to_vec(),
            enabled: true,
        };
        after.iter().map(item).collect()
    }

    #[test]
    fn a_chain_stays_on_the_launching_stream() {
        let plan = Plan::new(&items(&[&[], &[0], &[1]]));
        assert_eq!(
            plan,
            Plan {
                places: vec![(0, vec![]), (0, vec![]), (0, vec![])],
                open: vec![],
                width: 1
            }
        );
    }

    #[test]
    fn a_diamond_forks_and_joins() {
        let plan = Plan::new(&items(&[&[], &[0], &[0], &[1, 2]]));
        let places = vec![(0, vec![]), (0, vec![]), (1, vec![0]), (0, vec![2])];
        assert_eq!(
            plan,
            Plan {
                places,
                open: vec![],
                width: 2
            }
        );
    }

    #[test]
    fn loose_ends_are_waited_for() {
        let plan = Plan::new(&items(&[&[], &[], &[1]]));
        assert_eq!(
            plan,
            Plan {
                places: vec![(0, vec![]), (1, vec![]), (1, vec![])],
                open: vec![2],
                width: 2
            }
        );
    }

    #[test]
    fn a_wide_graph_shares_its_branches() {
        let roots = vec![&[][..]; 100];
        let plan = Plan::new(&items(&roots));
        assert_eq!(plan.width, BRANCHES + 1);
        // There is one branch more than hidden streams: the launching one has only the first root.
        assert_eq!(plan.places.iter().filter(|(branch, _)| *branch == 0).count(), 1);
        assert_eq!(plan.open.len(), BRANCHES);
    }

    /// The items that are known to have ended when an item begins. Streams are first in, first out,
    /// and the waits add to that.
    fn known_before(plan: &Plan) -> Vec<Vec<bool>> {
        let mut before: Vec<Vec<bool>> = Vec::new();
        let mut tails: Vec<Option<usize>> = vec![None; plan.width];
        for (at, (branch, waits)) in plan.places.iter().enumerate() {
            let mut known = vec![false; plan.places.len()];
            for earlier in waits.iter().copied().chain(tails[*branch]) {
                assert!(earlier < at);
                known[earlier] = true;
                known
                    .iter_mut()
                    .zip(&before[earlier])
                    .for_each(|(known, too)| *known |= too);
            }
            tails[*branch] = Some(at);
            before.push(known);
        }
        before
    }

    #[test]
    fn every_edge_is_kept_and_everything_is_waited_for() {
        // Any generator of numbers does; this one is short (Knuth's MMIX constants).
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        for round in 0..2000 {
            let count = 1 + random(60);
            let edges: Vec<Vec<usize>> = (0..count)
                .map(|at| {
                    let mut after: Vec<usize> = (0..random(4)).filter(|_| at > 0).map(|_| random(at.max(1))).collect();
                    after.sort_unstable();
                    after.dedup();
                    after
                })
                .collect();
            let items = items(&edges.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let plan = Plan::new(&items);
            assert!(plan.width <= BRANCHES + 1);
            let before = known_before(&plan);
            for (at, after) in edges.iter().enumerate() {
                assert!(
                    after.iter().all(|earlier| before[at][*earlier]),
                    "round {round}: an edge to {at} is lost"
                );
            }
            // The launching stream ends after its own last item and all that it waits for.
            let own = (0..count).rfind(|at| plan.places[*at].0 == 0);
            let ends: Vec<usize> = plan.open.iter().copied().chain(own).collect();
            let left = (0..count).find(|at| !ends.iter().any(|end| end == at || before[*end][*at]));
            assert_eq!(left, None, "round {round}: nobody waits for that item");
        }
    }
}
