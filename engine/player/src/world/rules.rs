// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of the caller's own ([`crate::rule`]) in the place of weft's gate: the times at which each
//! job asks, and asks again.
#![forbid(unsafe_code)]

use weft_engine::{KernelShape, OpId, Work};
use weft_protocol::device_share::FIRST_BELOW_NORMAL;

use super::process::{InFlight, StoppedKernel};
use super::{MachineEvent, PlayedMachine};
use crate::Ns;
use crate::job::{NONE, Play, name_of};
use crate::rule::{KernelPieces, LaunchView};

impl PlayedMachine {
    /// Gives a rule of the caller's own the profiles, and the device its priorities; before
    /// anything runs.
    pub(super) fn begin_own(&mut self) {
        if self.broker.is_some() {
            // As `weft run` sets it for MPS (`broker/cli/src/device_share.rs`).
            for (process, view) in self.processes.iter().zip(&self.views) {
                let has_part = process.job.at_least.is_some_and(|part| part > 0.0);
                let below_normal = i32::from(view.priority >= FIRST_BELOW_NORMAL && !has_part);
                self.engine.set_context_priority(process.context, below_normal).ok();
            }
        }
        let Some(own) = &self.own else { return };
        for (process, view) in self.processes.iter_mut().zip(&mut self.views) {
            view.request_time = process.job.program.usual_time();
            if let Some(profile) = &process.lane.profile {
                process.lane.costs = profile.mean_costs().into_iter().collect();
            }
            if own.device_priorities() {
                let priority = i32::from(view.priority);
                self.engine.set_context_priority(process.context, priority).ok();
            }
        }
    }

    /// The rule's view of a launch.
    fn launch_view(&self, job: usize, play: &Play) -> LaunchView {
        let process = &self.processes[job];
        let name = name_of(play);
        let kernel = match play {
            Play::Compute { bytes: 0, .. } => process.job.program.needs.get(&name),
            _ => None,
        };
        LaunchView {
            time: process.lane.costs.get(&name).copied().unwrap_or(0),
            needs: kernel.copied().unwrap_or_default(),
            transfer: kernel.is_none(),
        }
    }

    pub(super) fn own_permits(&mut self, job: usize, play: &Play) -> bool {
        let now = self.now;
        self.views[job].next = self.launch_view(job, play);
        let Some(own) = &mut self.own else { return true };
        let allowed = own.may_launch(now, job, &self.views);
        if self.views[job].waits == allowed {
            self.views[job].waits = !allowed;
            own.changed(now, job, &self.views);
        }
        self.ask_later();
        allowed
    }

    /// Reports a launch to a rule of the caller's own.
    pub(super) fn own_launched(&mut self, job: usize) {
        let now = self.now;
        if let Some(own) = &mut self.own {
            self.views[job].last = self.views[job].next;
            own.launched(now, job, &self.views);
            self.ask_later();
        }
    }

    /// Reports to a rule of the caller's own that a job's queue is in use, or empty, or that a
    /// request of it came, or was answered.
    pub(super) fn view_changed(&mut self, job: usize) {
        let now = self.now;
        if let Some(own) = &mut self.own {
            own.changed(now, job, &self.views);
            self.ask_later();
        }
    }

    /// The pieces of the kernel that is launched now, if it was rewritten.
    pub(super) fn pieces_of(&self, job: usize, play: &Play) -> Option<KernelPieces> {
        match play {
            Play::Compute { graph: NONE, .. } => self.own.as_ref()?.pieces(job, &self.views),
            _ => None,
        }
    }

    /// Puts a rewritten kernel on the device. Its stream stops before each piece but the first.
    pub(super) fn submit_pieces(&mut self, job: usize, stream: u16, time: Ns, pieces: KernelPieces, flight: InFlight) {
        let whole = time * pieces.permille / 1_000;
        self.processes[job].rewritten += whole.saturating_sub(time);
        let count = Ns::from(pieces.count.max(1));
        for piece in 0..count {
            if piece > 0 {
                let gate = InFlight {
                    timed_at: None,
                    op: NONE,
                    compute: false,
                    last: false,
                    ..flight
                };
                self.submit(job, stream, Work::Host, gate);
            }
            let duration = whole * (piece + 1) / count - whole * piece / count;
            let last = piece + 1 == count;
            let shape = part_of_grid(flight.shape, piece, count);
            let work = Work::Kernel { duration, held: false };
            self.submit(job, stream, work, InFlight { last, shape, ..flight });
        }
    }

    /// Handles the end of a rewritten kernel's piece that is not the last.
    pub(super) fn piece_ended(&mut self, job: usize, gate: OpId) {
        let goes_on = self.own.as_ref().is_none_or(|own| own.may_go_on(job, &self.views));
        if goes_on {
            self.engine.release(self.now, gate).ok();
        } else {
            let stopped = StoppedKernel { gate, goes_on };
            self.processes[job].stopped.push(stopped);
        }
    }

    /// Launches a stopped kernel again.
    pub(super) fn go_on_with_kernel(&mut self, job: usize) {
        let stopped = &mut self.processes[job].stopped;
        if let Some(at) = stopped.iter().position(|kernel| kernel.goes_on) {
            let kernel = stopped.remove(at);
            self.engine.release(self.now, kernel.gate).ok();
        }
    }

    /// Launches stopped kernels again, if they may continue.
    fn ask_for_stopped(&mut self, job: usize) {
        let Some(own) = &self.own else { return };
        if !own.may_go_on(job, &self.views) {
            return;
        }
        let mut count = 0;
        for kernel in &mut self.processes[job].stopped {
            count += usize::from(!kernel.goes_on);
            kernel.goes_on = true;
        }
        for _ in 0..count {
            let at = self.now + self.launch_latency;
            self.at(at, MachineEvent::GoOn { job: job as u16 });
        }
    }

    /// Updates the view of a job's work on the device.
    pub(super) fn count_on_device(&mut self, job: usize) {
        let (process, view) = (&self.processes[job], &mut self.views[job]);
        (view.outstanding, view.kernels) = (process.outstanding, process.kernels);
        view.active_at = self.now;
    }

    /// After a change, waiting jobs ask a rule of the caller's own again.
    pub(super) fn ask_own(&mut self, ended: Option<usize>) {
        if self.own.is_none() {
            return;
        }
        if let Some(job) = ended {
            self.count_on_device(job);
            self.view_changed(job);
        }
        for job in 0..self.processes.len() {
            if self.processes[job].held_since.is_some() {
                self.launch_queued(job);
            }
            if !self.processes[job].stopped.is_empty() {
                self.ask_for_stopped(job);
            }
        }
        self.ask_later();
    }

    pub(super) fn ask_later(&mut self) {
        let Some(at) = self.own.as_ref().and_then(|own| own.next_wake(self.now)) else {
            return;
        };
        if self.asked.is_none_or(|asked| at < asked) {
            self.asked = Some(at);
            self.at(at, MachineEvent::Ask);
        }
    }
}

/// The blocks of one of `count` pieces of a grid: together they are the grid.
fn part_of_grid(shape: KernelShape, piece: Ns, count: Ns) -> KernelShape {
    let blocks = u64::from(shape.blocks);
    let part = blocks * (piece + 1) / count - blocks * piece / count;
    KernelShape {
        // An unknown grid stays unknown; that of a kernel has at least one block.
        blocks: shape.blocks.min(part.max(1) as u32),
        ..shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_grid_are_the_grid() {
        let shape = |blocks| KernelShape {
            blocks,
            threads: 256,
            ..KernelShape::default()
        };
        let parts = |blocks, count| -> Vec<u32> {
            (0..count)
                .map(|piece| part_of_grid(shape(blocks), piece, count).blocks)
                .collect()
        };
        assert_eq!(parts(100, 3), [33, 33, 34]);
        assert_eq!(parts(2, 4), [1, 1, 1, 1], "none is empty");
        assert_eq!(parts(0, 2), [0, 0], "unknown");
        assert_eq!(part_of_grid(shape(100), 0, 3).threads, 256);
    }
}
