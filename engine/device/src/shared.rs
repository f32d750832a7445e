// SPDX-License-Identifier: MIT OR Apache-2.0
//! The compute engine of [`crate::Mode::MpsShared`]: kernels share SMs block by block.
//!
//! A kernel of `W` waves and duration `D` has blocks of `D / W` each. A block begins as soon as its
//! part of an SM is free, and is not stopped. Kernels are dispatched in one order, by the priority
//! of the context, that of the stream, then by readiness. A kernel begins blocks only after all
//! blocks of those before it have begun. So the room that a last wave leaves is the next kernel's,
//! and a more important kernel takes the room that ending blocks leave.
//!
//! Blocks that begin together are one [`BlockGroup`], whose end is the kernel's progress at that
//! moment. While a kernel is first in the order, its own blocks replace its ending blocks without
//! any outside effect: whole rounds of that are worked out at once. The engine is called only when
//! parts of SMs change hands or a kernel ends.

use std::collections::VecDeque;

use crate::slab::SlabKey;
use crate::sms::{BlockNeed, PROGRESS_PER_NS, SmLimits, block_progress};
use crate::state::EngineState;
use crate::time::{Ns, earlier};

/// Blocks of a kernel that began together.
#[derive(Debug, Clone, Copy)]
struct BlockGroup {
    /// The kernel's progress at their end.
    end: u128,
    count: u64,
}

/// A kernel or memset that is ready or runs.
#[derive(Debug, Clone)]
struct SharedKernel {
    op: SlabKey,
    context: SlabKey,
    /// Priority of the context and of the stream, order of readiness.
    rank: (i32, i32, u64),
    need: BlockNeed,
    /// Blocks that have not begun.
    waiting: u64,
    /// Blocks on the device.
    resident: u64,
    /// In the order of their ends, all within the progress of one block.
    groups: VecDeque<BlockGroup>,
    /// Begin, and the duration that it takes without other kernels.
    begun: Option<(Ns, Ns)>,
    /// Progress of a whole block.
    block: u128,
    progress: u128,
    /// Progress in a nanosecond.
    speed: u128,
}

impl SharedKernel {
    /// Lets its clock run to `elapsed` ns later. While it `renews` its blocks, waiting ones take
    /// the places of those that end. Answers the units that it leaves.
    fn pass(&mut self, elapsed: Ns, renews: bool) -> u64 {
        self.progress += self.speed * u128::from(elapsed);
        let before = self.resident;
        if renews {
            self.skip_rounds();
        }
        while let Some(&group) = self.groups.front()
            && group.end <= self.progress
        {
            self.groups.pop_front();
            let next = if renews { group.count.min(self.waiting) } else { 0 };
            self.resident -= group.count - next;
            self.waiting -= next;
            if next > 0 {
                self.push(group.end + self.block, next);
            }
        }
        (before - self.resident) * self.need.units
    }

    /// Works out at once the rounds that are over and in which every group is renewed.
    fn skip_rounds(&mut self) {
        let Some(last) = self.groups.back() else { return };
        let Some(over) = self.progress.checked_sub(last.end) else {
            return;
        };
        let rounds = u128::from(self.waiting / self.resident).min(over / self.block.max(1));
        for group in &mut self.groups {
            group.end += rounds * self.block;
        }
        self.waiting -= rounds as u64 * self.resident;
    }

    fn push(&mut self, end: u128, count: u64) {
        match self.groups.back_mut() {
            Some(last) if last.end == end => last.count += count,
            _ => self.groups.push_back(BlockGroup { end, count }),
        }
    }

    /// Begins as many blocks as `free` units hold. Answers the units that they take.
    fn begin_blocks(&mut self, free: u64) -> u64 {
        let count = (free / self.need.units).min(self.waiting);
        if count > 0 {
            self.waiting -= count;
            self.resident += count;
            self.push(self.progress + self.block, count);
        }
        count * self.need.units
    }

    fn is_over(&self) -> bool {
        self.begun.is_some() && self.waiting == 0 && self.resident == 0
    }

    /// The time when it next leaves a part of the device, if `renews` is right about whether it
    /// renews its blocks. `None`: never, as things are.
    fn leaves(&self, now: Ns, renews: bool) -> Option<Ns> {
        let first = self.groups.front()?;
        if !renews {
            return Some(self.time_of(now, first.end));
        }
        let rounds = u128::from(self.waiting / self.resident) * self.block;
        let mut rest = self.waiting % self.resident;
        let short = self.groups.iter().find(|group| match rest.checked_sub(group.count) {
            Some(left) => {
                rest = left;
                false
            }
            None => true,
        })?;
        Some(self.time_of(now, short.end + rounds))
    }

    /// When it ends, if it renews its blocks until then.
    fn ends(&self, now: Ns) -> Option<Ns> {
        let last = self.groups.back()?;
        let rounds = u128::from(self.waiting / self.resident) * self.block;
        let rest = self.waiting % self.resident;
        let mut begun = 0;
        let longest = self.groups.iter().find(|group| {
            begun += group.count;
            begun >= rest
        });
        let end = match longest {
            Some(group) if rest > 0 => group.end + self.block,
            _ => last.end,
        };
        Some(self.time_of(now, end + rounds))
    }

    fn time_of(&self, now: Ns, progress: u128) -> Ns {
        let ns = progress.saturating_sub(self.progress).div_ceil(self.speed);
        now.saturating_add(u64::try_from(ns).unwrap_or(Ns::MAX))
    }
}

/// The engine.
#[derive(Debug, Clone)]
pub(crate) struct SharedCompute {
    limits: SmLimits,
    /// In the order of dispatch.
    kernels: Vec<SharedKernel>,
    free: u64,
    /// The time that the kernels' clocks show.
    shown: Ns,
    next: Option<Ns>,
    order: u64,
}

impl SharedCompute {
    pub(crate) fn new(limits: SmLimits) -> SharedCompute {
        SharedCompute {
            limits,
            kernels: Vec::new(),
            free: limits.units(),
            shown: 0,
            next: None,
            order: 0,
        }
    }

    pub(crate) fn next_event(&self) -> Option<Ns> {
        self.next
    }

    pub(crate) fn running_since(&self, key: SlabKey) -> Option<Ns> {
        let kernel = self.kernels.iter().find(|kernel| kernel.op == key)?;
        kernel.begun.map(|(since, _)| since)
    }

    /// A context got a kernel or memset ready.
    pub(crate) fn join(&mut self, context: SlabKey, state: &mut EngineState) {
        let Some(op) = state.pop_compute(context) else { return };
        let (priorities, shape) = state.dispatch_of(op);
        self.order += 1;
        let rank = (priorities.0, priorities.1, self.order);
        let need = self.limits.need(shape);
        let at = self.kernels.partition_point(|kernel| kernel.rank < rank);
        let kernel = SharedKernel {
            op,
            context,
            rank,
            need,
            waiting: need.blocks,
            resident: 0,
            groups: VecDeque::new(),
            begun: None,
            block: 0,
            progress: 0,
            speed: u128::from(PROGRESS_PER_NS) * u128::from(need.waves),
        };
        // Until now the others went on without it.
        self.show(state);
        self.kernels.insert(at, kernel);
    }

    /// The first kernel in order that has blocks to begin: only it begins any.
    fn head(&self) -> Option<usize> {
        self.kernels.iter().position(|kernel| kernel.waiting > 0)
    }

    /// Lets the kernels' clocks show the present.
    fn show(&mut self, state: &mut EngineState) {
        let elapsed = state.now() - self.shown;
        self.shown = state.now();
        if self.kernels.iter().any(|kernel| kernel.resident > 0) {
            state.usage_mut().compute += elapsed;
        }
        let head = self.head();
        for (at, kernel) in self.kernels.iter_mut().enumerate() {
            if kernel.resident > 0 {
                self.free += kernel.pass(elapsed, head == Some(at));
            }
        }
    }

    /// Ends the blocks and kernels that end now.
    pub(crate) fn end_due(&mut self, state: &mut EngineState) {
        if self.next.is_none_or(|next| next > state.now()) {
            return;
        }
        self.show(state);
        self.end_over(state);
    }

    /// Ends the kernels that have no block left.
    fn end_over(&mut self, state: &mut EngineState) {
        while let Some(at) = self.kernels.iter().position(SharedKernel::is_over) {
            let kernel = self.kernels.remove(at);
            let alone = kernel.begun.map_or(0, |(_, alone)| alone);
            state.end_shared(kernel.op, alone);
        }
    }

    /// Begins the blocks that can begin now.
    pub(crate) fn choose(&mut self, state: &mut EngineState) {
        self.show(state);
        for kernel in &mut self.kernels {
            if kernel.waiting == 0 {
                continue;
            }
            if self.free < kernel.need.units {
                break;
            }
            if kernel.begun.is_none() {
                let alone = state.run(kernel.op).map_or(0, |until| until - state.now());
                kernel.begun = Some((state.now(), alone));
                kernel.block = block_progress(alone);
            }
            if kernel.block == 0 {
                // It leaves its part at once.
                kernel.waiting = 1;
            }
            self.free -= kernel.begin_blocks(self.free);
            if kernel.waiting > 0 {
                break;
            }
        }
        self.set_speeds();
        self.set_next(state.now());
    }

    /// Blocks take longer by the part of the device that others' blocks have.
    fn set_speeds(&mut self) {
        let units = u128::from(self.limits.units()) * 1_000;
        let contention = u128::from(self.limits.contention);
        let taken = self.limits.units() - self.free;
        for kernel in &mut self.kernels {
            let others = u128::from(taken - kernel.resident * kernel.need.units);
            let full = u128::from(PROGRESS_PER_NS) * u128::from(kernel.need.waves);
            kernel.speed = full * units / (units + contention * others);
        }
    }

    fn set_next(&mut self, now: Ns) {
        self.next = match self.kernels.as_slice() {
            // No other kernel sees the part that it leaves.
            [alone] => alone.ends(now),
            kernels => {
                let head = self.head();
                let leaves = |(at, kernel): (usize, &SharedKernel)| kernel.leaves(now, head == Some(at));
                kernels.iter().enumerate().map(leaves).fold(None, earlier)
            }
        };
    }

    /// The caller ends a held kernel that runs.
    pub(crate) fn end_running(&mut self, op: SlabKey, state: &mut EngineState) {
        self.show(state);
        if let Some(at) = self.kernels.iter().position(|kernel| kernel.op == op) {
            let kernel = self.take(at);
            let ran = kernel.begun.map_or(0, |(since, _)| state.now() - since);
            state.end_shared(op, ran);
        }
    }

    /// Takes a context that is gone off the engine. Its operations are still known.
    pub(crate) fn leave(&mut self, context: SlabKey, state: &mut EngineState) {
        self.show(state);
        while let Some(at) = self.kernels.iter().position(|kernel| kernel.context == context) {
            self.take(at);
        }
    }

    fn take(&mut self, at: usize) -> SharedKernel {
        let kernel = self.kernels.remove(at);
        self.free += kernel.resident * kernel.need.units;
        kernel
    }
}
