// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes, and their free resources.

use crate::job::{WHOLE_GPU_MILLI, WorkerAsk};

/// A node's number, given by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Place of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPlace {
    /// The node.
    pub node: NodeId,
    /// Indexes of its GPUs.
    pub gpus: Vec<u16>,
}

/// Node. As an event it gives all resources, inside the core the free ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNode {
    /// Its number.
    pub id: NodeId,
    /// Thousandths of CPUs.
    pub cpu_milli: u32,
    /// MiB of host memory.
    pub memory_mib: u32,
    /// Thousandths of each GPU.
    pub gpus: Vec<u32>,
    /// Per GPU: the part of the time in which the jobs that hold it keep it busy, thousandths.
    busy: Vec<u32>,
    /// Per GPU: the same for the worker in its second seat, if there is one.
    second: Vec<Option<u32>>,
    /// Kinds of workers with their numbers: 0 for a part of a GPU, else the number of whole ones.
    kinds: Vec<(u32, u32)>,
    /// Moves with each change.
    version: u64,
}

/// Kind of a worker in [`ClusterNode::has_kind`]; none for a worker without a GPU.
fn kind(ask: &WorkerAsk) -> Option<u32> {
    (ask.gpus > 0).then_some(if ask.shares() { 0 } else { ask.gpus })
}

impl ClusterNode {
    /// Creates an empty node with this number of GPUs.
    pub fn new(id: NodeId, cpu_milli: u32, memory_mib: u32, gpus: usize) -> ClusterNode {
        ClusterNode {
            id,
            cpu_milli,
            memory_mib,
            gpus: vec![WHOLE_GPU_MILLI; gpus],
            busy: vec![0; gpus],
            second: vec![None; gpus],
            kinds: Vec::new(),
            version: 0,
        }
    }

    /// Free thousandths of GPUs.
    pub fn free_milli(&self) -> u64 {
        self.gpus.iter().map(|free| u64::from(*free)).sum()
    }

    /// Number of wholly free GPUs.
    pub fn whole(&self) -> usize {
        self.gpus.iter().filter(|free| **free == WHOLE_GPU_MILLI).count()
    }

    /// Whether a worker of this one's kind is here (a part of a GPU, one GPU, two, ...), and
    /// whether there is one of any other kind.
    pub fn has_kind(&self, ask: &WorkerAsk) -> (bool, bool) {
        let of = |same: bool| move |(found, _): &(u32, u32)| (Some(*found) == kind(ask)) == same;
        (self.kinds.iter().any(of(true)), self.kinds.iter().any(of(false)))
    }

    /// Whether a worker fits on the free resources.
    pub fn fits(&self, ask: &WorkerAsk) -> bool {
        let enough = self.gpus.iter().filter(|free| **free >= ask.gpu_milli).count();
        self.cpu_milli >= ask.cpu_milli && self.memory_mib >= ask.memory_mib && enough >= ask.gpus as usize
    }

    /// Number of workers with this request that fit on the free resources.
    pub fn room(&self, ask: &WorkerAsk) -> u32 {
        let by = |have: u32, each: u32| have.checked_div(each).unwrap_or(u32::MAX);
        let gpus = match ask.gpus {
            0 => u32::MAX,
            1 => self.gpus.iter().map(|free| free / ask.gpu_milli).sum(),
            many => self.whole() as u32 / many,
        };
        by(self.cpu_milli, ask.cpu_milli)
            .min(by(self.memory_mib, ask.memory_mib))
            .min(gpus)
    }

    /// How busy the jobs that hold a GPU keep it, thousandths.
    pub fn busy_milli(&self, gpu: usize) -> u32 {
        self.busy.get(gpu).copied().unwrap_or(0)
    }

    /// Changes the load of the workers that hold these GPUs.
    pub(crate) fn add_busy(&mut self, place: &WorkerPlace, milli: i64) {
        for at in &place.gpus {
            if let Some(busy) = self.busy.get_mut(usize::from(*at)) {
                *busy = (i64::from(*busy) + milli).max(0) as u32;
            }
        }
    }

    /// Held GPUs whose second seat is free. They are at most as busy as `most_host`, and at most
    /// `most_load` with a guest of this `load`.
    pub(crate) fn seats(&self, most_host: u32, most_load: u32, load: u32) -> impl Iterator<Item = u16> {
        let open = move |at: &u16| {
            let at = usize::from(*at);
            let busy = self.busy[at];
            self.gpus[at] < WHOLE_GPU_MILLI
                && self.second[at].is_none()
                && busy <= most_host
                && busy + load <= most_load
        };
        (0..self.gpus.len() as u16).filter(open)
    }

    /// Takes the second seat of exactly these GPUs, with CPU and memory, if all are free.
    pub(crate) fn take_second(&mut self, ask: &WorkerAsk, place: &WorkerPlace, load: u32) -> bool {
        let room = self.cpu_milli >= ask.cpu_milli && self.memory_mib >= ask.memory_mib;
        let open = |at: &u16| self.second.get(usize::from(*at)).is_some_and(Option::is_none);
        if !room || !place.gpus.iter().all(open) {
            return false;
        }
        self.cpu_milli -= ask.cpu_milli;
        self.memory_mib -= ask.memory_mib;
        for at in &place.gpus {
            self.second[usize::from(*at)] = Some(load);
        }
        self.version += 1;
        true
    }

    /// Gives back the resources taken by [`ClusterNode::take_second`].
    pub(crate) fn give_back_second(&mut self, ask: &WorkerAsk, place: &WorkerPlace) {
        self.cpu_milli += ask.cpu_milli;
        self.memory_mib += ask.memory_mib;
        for at in &place.gpus {
            self.second[usize::from(*at)] = None;
        }
        self.version += 1;
    }

    /// Changes with each change of the free resources.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The GPU with the least left of those on which a part fits.
    pub(crate) fn tightest(&self, ask: &WorkerAsk) -> Option<usize> {
        let fitting = self.gpus.iter().enumerate().filter(|(_, free)| **free >= ask.gpu_milli);
        fitting.min_by_key(|(at, free)| (**free, *at)).map(|(at, _)| at)
    }

    /// Takes a worker's resources, and its part of a GPU on `shared`. Returns none and takes
    /// nothing if it does not fit.
    pub(crate) fn take(&mut self, ask: &WorkerAsk, shared: Option<usize>) -> Option<WorkerPlace> {
        let gpus: Vec<u16> = if ask.shares() {
            let at = shared.or_else(|| self.tightest(ask))?;
            vec![at as u16]
        } else {
            let whole = self
                .gpus
                .iter()
                .enumerate()
                .filter(|(_, free)| **free == WHOLE_GPU_MILLI);
            whole.take(ask.gpus as usize).map(|(at, _)| at as u16).collect()
        };
        let place = WorkerPlace { node: self.id, gpus };
        self.retake(ask, &place).then_some(place)
    }

    /// Takes exactly this place again, if it is free.
    pub(crate) fn retake(&mut self, ask: &WorkerAsk, place: &WorkerPlace) -> bool {
        let free = |at: &u16| {
            self.gpus
                .get(usize::from(*at))
                .is_some_and(|free| *free >= ask.gpu_milli)
        };
        let room = self.cpu_milli >= ask.cpu_milli && self.memory_mib >= ask.memory_mib;
        if !room || place.gpus.len() != ask.gpus as usize || !place.gpus.iter().all(free) {
            return false;
        }
        self.cpu_milli -= ask.cpu_milli;
        self.memory_mib -= ask.memory_mib;
        for at in &place.gpus {
            self.gpus[usize::from(*at)] -= ask.gpu_milli;
        }
        if let Some(kind) = kind(ask) {
            match self.kinds.iter_mut().find(|(found, _)| *found == kind) {
                Some((_, count)) => *count += 1,
                None => self.kinds.push((kind, 1)),
            }
        }
        self.version += 1;
        true
    }

    /// Gives back the resources taken by [`ClusterNode::take`].
    pub(crate) fn give_back(&mut self, ask: &WorkerAsk, place: &WorkerPlace) {
        self.cpu_milli += ask.cpu_milli;
        self.memory_mib += ask.memory_mib;
        for at in &place.gpus {
            self.gpus[usize::from(*at)] += ask.gpu_milli;
        }
        if let Some(kind) = kind(ask) {
            for (found, count) in &mut self.kinds {
                *count -= u32::from(*found == kind);
            }
            self.kinds.retain(|(_, count)| *count > 0);
        }
        self.version += 1;
    }
}
