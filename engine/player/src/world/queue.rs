// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launch queues: calls whose hosts continued before they were made. One thread of the job makes
//! them later, in their order.
#![forbid(unsafe_code)]

use super::process::Queued;
use super::{MachineEvent, PlayedMachine};
use crate::job::{NONE, Play};
use crate::rule::HostQueue;
use crate::{Ns, US};

/// Time, ns, to leave a launch behind in weft's queue: its parameters are copied.
pub const DEFER_NS: Ns = US / 2;

/// Host time, ns, of a call if every call goes into a queue: XSched's return in 800 to 1,500 ns on
/// the simulated driver.
const QUEUED_CALL_NS: Ns = US;

/// The capacity of a job's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueueRoom {
    /// Number of calls.
    calls: usize,
    /// Predicted device time of them, ns.
    work: Ns,
}

impl PlayedMachine {
    /// Wakes the thread that makes the calls of an idle queue, if all calls go through queues: it
    /// sleeps then.
    fn wake_issuer(&mut self, job: usize) {
        if self.queues_all() && self.processes[job].outstanding == 0 {
            let awake = self.wake_up();
            let process = &mut self.processes[job];
            process.issuer_free = process.issuer_free.max(awake);
        }
    }

    /// The time at which a host thread continues whose wait is over now. It spins for the device,
    /// or sleeps until the thread that makes its calls has seen the end. A blocking copy does not
    /// go through the queue.
    pub(super) fn wait_returns(&mut self, job: usize, op: u32) -> Ns {
        let process = &self.processes[job];
        let what = process.job.program.step_of(process.request).ops[op as usize].play;
        let back = match self.queues_all() && matches!(what, Play::Sync(_)) {
            true => self.wake_up(),
            false => self.now + self.hosts.sync_return,
        };
        back + self.added(job).wait
    }

    fn queue_kind(&self) -> Option<HostQueue> {
        self.own.as_ref().map(|own| own.host_queue())
    }

    /// Host time, ns, of a call that is left behind.
    fn time_to_leave(&self, job: usize) -> Ns {
        match self.queue_kind() {
            Some(HostQueue::All { spares_launches }) => {
                let launch = self.processes[job].job.program.launch_cost;
                match spares_launches || !self.views[job].is_foreground(&self.views) {
                    true => QUEUED_CALL_NS,
                    false => launch.max(QUEUED_CALL_NS),
                }
            }
            _ => DEFER_NS,
        }
    }

    /// Whether all calls of this machine's jobs go through queues.
    fn queues_all(&self) -> bool {
        matches!(self.queue_kind(), Some(HostQueue::All { .. }))
    }

    fn room(&self, job: usize) -> QueueRoom {
        let Some(own) = &self.own else {
            return QueueRoom {
                calls: self.hosts.queue,
                work: self.queued_work(),
            };
        };
        let calls = match own.host_queue() {
            HostQueue::None => 0,
            HostQueue::Background if self.views[job].is_foreground(&self.views) => 0,
            HostQueue::Background => self.hosts.queue,
            HostQueue::All { .. } => usize::MAX,
        };
        QueueRoom { calls, work: Ns::MAX }
    }

    /// Whether the host may continue before this call is made. In weft's queue these are plain
    /// kernels that the gate does not let go at once, and fills and copies on the device behind
    /// them.
    pub(super) fn defers(&mut self, job: usize, play: &Play) -> bool {
        if self.queues_all() {
            return !matches!(play, Play::Sync(_) | Play::Copy { waits: true, .. });
        }
        let Play::Compute { graph: NONE, bytes, .. } = *play else {
            return false;
        };
        if self.room(job).calls == 0 {
            return false;
        }
        match self.processes[job].queue.back() {
            // Behind a call that blocks its thread: another thread's launch, which waits as it
            // would at the gate.
            Some(before) => before.deferred || before.room,
            None => bytes == 0 && !self.passes_at_once(job, play),
        }
    }

    /// Whether this call takes its place behind others, or becomes the first of a queue.
    pub(super) fn goes_in_order(&self, job: usize, play: &Play) -> bool {
        let works = matches!(play, Play::Compute { .. } | Play::Copy { .. });
        // Every call behind a launch that was left behind waits with it, or is left behind too.
        works || self.processes[job].left.0 > 0
    }

    /// Hosts that wait for room in the launch queue continue as far as there is room: in launches,
    /// and in predicted work. A single launch always has room.
    pub(super) fn leave_behind(&mut self, job: usize) {
        let took = self.time_to_leave(job);
        while self.processes[job].roomless > 0 {
            let room = self.room(job);
            let process = &mut self.processes[job];
            let (count, work) = process.left;
            let Some(call) = process.queue.iter_mut().find(|call| call.room) else {
                return;
            };
            if count > 0 && (count >= room.calls || work + call.cost > room.work) {
                return;
            }
            (call.deferred, call.room) = (true, false);
            process.left = (count + 1, work + call.cost);
            process.roomless -= 1;
            let op = call.op;
            self.views[job].queued = count + 1;
            if count == 0 {
                self.view_changed(job);
                self.wake_issuer(job);
            }
            self.returned(job, op, self.now + took);
        }
    }

    /// Removes the head from the queue.
    pub(super) fn leaves_queue(&mut self, job: usize) {
        let process = &mut self.processes[job];
        if let Some(call) = process.queue.pop_front().filter(|call| call.deferred) {
            let (count, work) = process.left;
            process.left = (count - 1, work - call.cost);
            self.views[job].queued = count - 1;
        }
    }

    /// Whether the thread that makes this call is still in the driver with the one before. If so,
    /// it comes again.
    pub(super) fn issuer_works(&mut self, job: usize, call: Queued) -> bool {
        let now = self.now;
        let process = &mut self.processes[job];
        let free = process.issuer_free;
        let works = call.deferred && free > now;
        if works && process.issuer_asked != free {
            process.issuer_asked = free;
            self.at(free, MachineEvent::Issue { job: job as u16 });
        }
        works
    }
}
