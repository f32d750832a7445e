// SPDX-License-Identifier: MIT OR Apache-2.0
//! The progress of jobs: requests begin, threads make their calls, calls return, the device
//! reports.

use weft_engine::{Direction, KernelShape, Mode, OpId, Segment, Work};
use weft_trace_format::AwaitedWork;

use super::process::{HostWaiter, InFlight, Queued, SyncResult, WaitTarget};
use super::timing::TimedLaunch;
use super::{AHEAD, KernelPiece, MachineEvent, PlayedMachine};
use crate::Ns;
use crate::job::{JobOp, NONE, Play};

impl PlayedMachine {
    /// Schedules a job's first request.
    pub(super) fn first_request(&mut self, job: usize) {
        let process = &mut self.processes[job];
        let wait = if process.job.arrivals.is_closed() {
            process.job.think(self.seed, process.number, 0)
        } else {
            process.job.arrivals.distance(self.seed, process.number, 0)
        };
        process.next_arrival = wait;
        self.at(wait, MachineEvent::Begin { job: job as u16 });
    }

    pub(super) fn begin(&mut self, job: usize) {
        let process = &mut self.processes[job];
        process.arrived = process.next_arrival;
        process.token_at = None;
        let program = std::sync::Arc::clone(&process.job.program);
        let step = program.step_of(process.request);
        process.remaining = step.ops.len();
        if step.ops.is_empty() {
            let now = self.now;
            self.at(now, MachineEvent::Answer { job: job as u16 });
            return;
        }
        let now = self.now;
        self.views[job].in_request = true;
        self.view_changed(job);
        for root in &step.roots {
            self.then(job, *root, &step.ops[*root as usize], now);
        }
    }

    pub(super) fn answer(&mut self, job: usize) {
        let now = self.now;
        let seed = self.seed;
        let process = &mut self.processes[job];
        process.latencies.push(now - process.arrived);
        process.arrivals.push(process.arrived);
        process.base += process.job.program.step_of(process.request).ops.len() as u32;
        process.request += 1;
        let next = if process.job.arrivals.is_closed() {
            now + process.job.think(seed, process.number, process.request)
        } else {
            process.next_arrival + process.job.arrivals.distance(seed, process.number, process.request)
        };
        process.next_arrival = next;
        self.at(next, MachineEvent::Begin { job: job as u16 });
        // A request that has already come waits only for this answer.
        self.views[job].in_request = next <= now;
        self.ask_own(None);
    }

    /// The thread continues to `op` at `from`.
    fn then(&mut self, job: usize, op: u32, what: &JobOp, from: Ns) {
        let process = &self.processes[job];
        let host = process
            .job
            .host_time(self.seed, process.number, process.request, op, what.host_before);
        self.at(from + host, MachineEvent::Call { job: job as u16, op });
    }

    fn op(&self, job: usize, call: Queued) -> JobOp {
        let process = &self.processes[job];
        process.job.program.step_of(call.request).ops[call.op as usize]
    }

    pub(super) fn call(&mut self, job: usize, op: u32) {
        let process = &self.processes[job];
        let mut call = Queued {
            op,
            request: process.request,
            base: process.base,
            deferred: false,
            room: false,
            cost: 0,
        };
        let what = self.op(job, call);
        if self.goes_in_order(job, &what.play) {
            call.room = self.defers(job, &what.play);
            call.cost = self.processes[job].lane.cost(&what.play);
            self.processes[job].roomless += usize::from(call.room);
            self.processes[job].queue.push_back(call);
            self.leave_behind(job);
            if self.processes[job].queue.len() == 1 {
                self.launch_queued(job);
            }
            return;
        }
        self.make(job, call, what.play);
    }

    /// Makes a call that is no work on the device.
    fn make(&mut self, job: usize, call: Queued, play: Play) {
        let now = self.now;
        let Queued { op, deferred, .. } = call;
        match play {
            Play::Compute { .. } | Play::Copy { .. } => {}
            Play::Sync(until) => {
                let process = &mut self.processes[job];
                let (target, synced) = match until {
                    AwaitedWork::All => (WaitTarget::All, SyncResult::All),
                    AwaitedWork::Stream(stream) => {
                        let upto = process.streams[usize::from(stream)].submitted;
                        (WaitTarget::Stream { stream, upto }, SyncResult::Stream(stream))
                    }
                    AwaitedWork::Event(event) => match process.events[usize::from(event)] {
                        Some((stream, upto, _)) => (WaitTarget::Stream { stream, upto }, SyncResult::Event(event)),
                        None => (WaitTarget::Stream { stream: 0, upto: 0 }, SyncResult::Event(event)),
                    },
                };
                if process.reached(target) {
                    self.synced(job, synced, now);
                    let back = now + self.added(job).wait;
                    self.returned(job, op, back);
                } else {
                    process.waiters.push(HostWaiter {
                        op,
                        since: now,
                        target,
                        synced,
                    });
                }
            }
            Play::Record { event, stream } => {
                let process = &mut self.processes[job];
                let at = &process.streams[usize::from(stream)];
                process.events[usize::from(event)] = Some((stream, at.submitted, at.last_op));
                let (event, stream) = (usize::from(event), usize::from(stream));
                if process.lane.mode == weft_scheduler::Mode::Foreground {
                    process.lane.event_times.recorded(event, now);
                }
                process.lane.active_streams.forget(event);
                process.lane.active_streams.recorded(event, stream);
                if !deferred {
                    self.returned(job, op, now);
                }
            }
            Play::Wait { event, stream } => {
                let (waiter, awaited) = (usize::from(stream), usize::from(event));
                self.processes[job].lane.active_streams.awaited(waiter, awaited);
                if let Some((_, _, other)) = self.processes[job].events[usize::from(event)] {
                    let wait = InFlight {
                        visible: now + self.launch_latency,
                        op: NONE,
                        kernel: 0,
                        shape: KernelShape::default(),
                        alone: None,
                        compute: false,
                        last: false,
                        upto: self.processes[job].streams[usize::from(stream)].issued,
                        marked: false,
                        timed_at: None,
                    };
                    self.submit(job, stream, Work::WaitFor(other), wait);
                }
                if !deferred {
                    self.returned(job, op, now);
                }
            }
        }
    }

    /// Makes calls from the head of the queue as far as the driver and the gate allow it.
    pub(super) fn launch_queued(&mut self, job: usize) {
        while let Some(call) = self.processes[job].queue.front().copied() {
            let what = self.op(job, call);
            if !matches!(what.play, Play::Compute { .. } | Play::Copy { .. }) {
                self.leaves_queue(job);
                self.view_changed(job);
                self.make(job, call, what.play);
                continue;
            }
            if self.processes[job].outstanding >= AHEAD || self.issuer_works(job, call) {
                return;
            }
            if !self.permitted(job, call, &what.play) {
                return;
            }
            self.leaves_queue(job);
            self.launch(job, call, &what.play, None);
            self.leave_behind(job);
        }
    }

    /// Launches the head of the queue. `charge`: see [`PlayedMachine::launch`].
    pub(super) fn launch_head(&mut self, job: usize, charge: Option<Ns>) {
        if let Some(call) = self.processes[job].queue.front().copied() {
            let what = self.op(job, call);
            self.leaves_queue(job);
            self.launch(job, call, &what.play, charge);
            self.leave_behind(job);
        }
    }

    /// Puts work on the device. `charge`: the credit in ns that a launch took after a wait at the
    /// gate. Its kernel's charge may have changed since.
    fn launch(&mut self, job: usize, call: Queued, play: &Play, charge: Option<Ns>) {
        let now = self.now;
        let Queued { op, request, base, .. } = call;
        let process = &mut self.processes[job];
        process.outstanding += 1;
        let program = std::sync::Arc::clone(&process.job.program);
        let name = crate::job::name_of(play);
        let (stream, compute, duration) = match *play {
            Play::Compute { stream, duration, .. } => (stream, true, duration),
            Play::Copy { stream, duration, .. } => (stream, false, duration),
            _ => return,
        };
        // A collective has a few blocks, which leave other kernels' blocks room. Only kernels on
        // shared SMs are modelled block by block.
        let beside = self.mode == Mode::Mps && program.is_collective(play);
        let compute = compute && !beside;
        process.kernels += usize::from(compute);
        let time = process
            .job
            .device_time(self.seed, process.number, request, op, duration);
        if charge.is_some() && !process.lane.has_charge(play) {
            process.lane.timer.soon();
        }
        let timed = matches!(play, Play::Compute { kernel, bytes: 0, .. } if *kernel != 0) && self.times_launch(job);
        let process = &self.processes[job];
        let flight = InFlight {
            visible: now + self.launch_latency,
            op: base + op,
            kernel: name,
            shape: program.shape_of(play),
            alone: None,
            compute,
            last: true,
            upto: process.streams[usize::from(stream)].issued,
            marked: false,
            timed_at: timed.then_some(now),
        };
        match *play {
            Play::Compute { graph, .. } if graph != NONE => {
                let mut pieces = program.pieces(graph, time).peekable();
                while let Some((kernel, duration)) = pieces.next() {
                    let last = pieces.peek().is_none();
                    let shape = program.kernel_shape(kernel);
                    let work = Work::Kernel { duration, held: false };
                    self.submit(job, stream, work, InFlight { last, shape, ..flight });
                }
            }
            Play::Copy { to_host, .. } => {
                let direction = if to_host {
                    Direction::DeviceToHost
                } else {
                    Direction::HostToDevice
                };
                self.submit(job, stream, Work::Copy { direction, bytes: time }, flight);
            }
            _ if beside => self.submit(job, stream, Work::Beside { duration: time }, flight),
            _ => match self.pieces_of(job, play) {
                Some(pieces) => self.submit_pieces(job, stream, time, pieces, flight),
                None => {
                    let work = Work::Kernel {
                        duration: time,
                        held: false,
                    };
                    self.submit(job, stream, work, flight);
                }
            },
        }
        // By the mode at the time of the call: the launch may change it.
        let took = program.launch_cost + self.added(job).launch;
        self.launched(job, stream, play, charge);
        if call.deferred {
            self.processes[job].issuer_free = now + took;
        } else if let Play::Copy { waits: true, .. } = play {
            let upto = self.processes[job].streams[usize::from(stream)].submitted;
            self.processes[job].waiters.push(HostWaiter {
                op,
                since: now,
                target: WaitTarget::Stream { stream, upto },
                synced: SyncResult::Stream(stream),
            });
        } else {
            self.returned(job, op, now + took);
        }
    }

    pub(super) fn submit(&mut self, job: usize, stream: u16, work: Work, mut flight: InFlight) {
        if let Work::Kernel { duration, held: false } = work {
            flight.alone = Some(duration);
        }
        let tag = (job as u64) << 16 | u64::from(stream);
        let at = &mut self.processes[job].streams[usize::from(stream)];
        at.submitted += 1;
        at.in_flight.push_back(flight);
        let submitted = self.engine.submit_shaped(self.now, at.id, work, flight.shape, tag);
        at.last_op = submitted.unwrap_or(OpId::DONE);
    }

    /// Handles the return of a call: the operations that follow it begin.
    pub(super) fn returned(&mut self, job: usize, op: u32, at: Ns) {
        let process = &mut self.processes[job];
        process.remaining -= 1;
        let over = process.remaining == 0;
        let program = std::sync::Arc::clone(&process.job.program);
        let ops = &program.step_of(process.request).ops;
        let what = &ops[op as usize];
        if process.job.tokens && matches!(what.play, Play::Sync(_) | Play::Copy { waits: true, .. }) {
            process.token(at);
        }
        for next in [what.next_same, what.next_handed] {
            if next != NONE {
                self.then(job, next, &ops[next as usize], at);
            }
        }
        if over {
            self.at(at, MachineEvent::Answer { job: job as u16 });
        }
    }

    /// Handles the end of a stream's first operation.
    pub(super) fn done(&mut self, job: usize, stream: usize, start: Ns, end: Ns, segments: &[Segment]) {
        let process = &mut self.processes[job];
        let at = &mut process.streams[stream];
        let Some(flight) = at.in_flight.pop_front() else { return };
        at.done += 1;
        let ready = flight.visible.max(at.last_end);
        at.last_end = end;
        if flight.marked {
            at.reached = flight.upto;
        }
        if let Some(launched) = flight.timed_at {
            // Events take no turn on the compute engine. The first one is reached as soon as the
            // stream is that far.
            let since = *at.timed_since.get_or_insert(ready);
            if flight.last {
                at.timed_since = None;
                process.lane.timer.ended(TimedLaunch {
                    kernel: flight.kernel,
                    at: launched,
                    time: end - since,
                });
            }
        }
        if flight.compute {
            let mut piece = KernelPiece {
                start,
                end,
                ready,
                visible: flight.visible,
                job: job as u16,
                op: flight.op,
                kernel: flight.kernel,
                alone: flight.alone.unwrap_or(end - start),
            };
            if segments.is_empty() {
                self.pieces.push(piece);
            }
            for (from, to) in segments {
                (piece.start, piece.end, piece.alone) = (*from, *to, to - from);
                self.pieces.push(piece);
                (piece.ready, piece.visible) = (*to, *to);
            }
        }
        if flight.op != NONE && flight.last {
            process.outstanding -= 1;
            process.kernels -= usize::from(flight.compute);
            if !process.queue.is_empty() && process.held_since.is_none() {
                self.launch_queued(job);
            }
        }
        self.go_on(job);
        self.ask_own(Some(job));
    }

    /// Threads whose wait for the device is over continue.
    fn go_on(&mut self, job: usize) {
        let mut at = 0;
        while at < self.processes[job].waiters.len() {
            let waiter = self.processes[job].waiters[at];
            if self.processes[job].reached(waiter.target) {
                self.processes[job].waiters.swap_remove(at);
                self.synced(job, waiter.synced, waiter.since);
                let back = self.wait_returns(job, waiter.op);
                self.returned(job, waiter.op, back);
            } else {
                at += 1;
            }
        }
    }
}
