// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a running job: its host threads, its work on the device, its lane.

use std::collections::VecDeque;

use weft_engine::{ContextId, Engine, KernelShape, OpId, StreamId};
use weft_gate::wait::nap_length;

use super::lane::GateLane;
use super::stand::{Stand, StandChange};
use crate::Ns;
use crate::job::{Play, PlayedJob};

/// The outcome of a run for one job.
#[derive(Debug, Clone)]
pub struct JobRun {
    /// The job.
    pub job: PlayedJob,
    /// Latency of each request from its arrival to its answer.
    pub latencies: Vec<Ns>,
    /// Arrival time of each request.
    pub arrivals: Vec<Ns>,
    /// Time for which its kernels ran.
    pub compute: Ns,
    /// The part of it that rewritten kernels took beyond their own time.
    pub rewritten: Ns,
    /// Waits at the gate (weft) or for permission: from, to.
    pub waits: Vec<(Ns, Ns)>,
    /// The states of its next launch, from the time of each change on.
    pub stands: Vec<StandChange>,
    /// Operations begun.
    pub ops: u64,
    /// Tokens of its requests, if its waits return with tokens.
    pub tokens: Vec<TokenTime>,
}

/// The time between a token and the one before it in the same request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenTime {
    /// The request, from 0.
    pub request: u64,
    /// Time from the return of the previous token's wait to that of this one's, ns.
    pub time: Ns,
}

/// Work in flight in a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct InFlight {
    /// Time, ns, at which the device could see it.
    pub(super) visible: Ns,
    /// Operation, counted from the job's beginning; `u32::MAX`: a wait, which is no work.
    pub(super) op: u32,
    /// Hash of the kernel.
    pub(super) kernel: u64,
    /// Its blocks' resources.
    pub(super) shape: KernelShape,
    /// Time, ns, that it takes with the device to itself; `None`: the time that it runs.
    pub(super) alone: Option<Ns>,
    /// Whether it runs on the compute engine.
    pub(super) compute: bool,
    /// Whether it is the last kernel of its launch.
    pub(super) last: bool,
    /// The stream's account up to here, ns, and whether a fence is behind it.
    pub(super) upto: Ns,
    pub(super) marked: bool,
    /// Time of its launch, ns, if the device times it.
    pub(super) timed_at: Option<Ns>,
}

/// A stream.
#[derive(Debug)]
pub(super) struct ProcessStream {
    pub(super) id: StreamId,
    pub(super) in_flight: VecDeque<InFlight>,
    /// Operations submitted and ended, waits included.
    pub(super) submitted: u64,
    pub(super) done: u64,
    /// Time of the last end, ns.
    pub(super) last_end: Ns,
    pub(super) last_op: OpId,
    /// Time, ns, of the first event of a timed launch that has begun to end.
    pub(super) timed_since: Option<Ns>,
    /// Account of a background job, predicted ns: issued, fenced, reached by the device, seen by
    /// the client to have ended.
    pub(super) issued: Ns,
    pub(super) marked: Ns,
    pub(super) reached: Ns,
    pub(super) settled: Ns,
}

/// The condition that a host thread waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum WaitTarget {
    /// None of the job's work is on the device.
    All,
    /// This many operations of a stream have ended.
    Stream { stream: u16, upto: u64 },
}

/// A host thread that waits for the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostWaiter {
    pub(super) op: u32,
    /// When the call was made, ns.
    pub(super) since: Ns,
    pub(super) target: WaitTarget,
    pub(super) synced: SyncResult,
}

/// The work that has ended when a waiting call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncResult {
    All,
    Stream(u16),
    Event(u16),
}

/// A call that waits for its turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queued {
    pub(super) op: u32,
    /// Its request, and the operations before that.
    pub(super) request: u64,
    pub(super) base: u32,
    /// Whether its host got the return of the launch, and continued.
    pub(super) deferred: bool,
    /// Whether its host waits for room to defer it.
    pub(super) room: bool,
    /// Predicted time, ns, at its arrival.
    pub(super) cost: Ns,
}

/// A rewritten kernel that is stopped between two of its pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoppedKernel {
    /// The operation that its stream waits for.
    pub(super) gate: OpId,
    /// Whether the permission to continue is on its way.
    pub(super) goes_on: bool,
}

/// The state of a running job.
#[derive(Debug)]
pub(super) struct JobProcess {
    pub(super) job: PlayedJob,
    /// Its number for all chance.
    pub(super) number: u64,
    pub(super) context: ContextId,
    pub(super) streams: Vec<ProcessStream>,
    /// Last record of each event: stream, operations before it, the operation.
    pub(super) events: Vec<Option<(u16, u64, OpId)>>,
    /// The current request: number, arrival, operations not returned yet, operations before it.
    pub(super) request: u64,
    pub(super) arrived: Ns,
    pub(super) remaining: usize,
    pub(super) base: u32,
    /// Arrival of the next request, ns, if that does not wait for an answer.
    pub(super) next_arrival: Ns,
    /// Launches on the device.
    pub(super) outstanding: usize,
    /// The number of those that are no copies.
    pub(super) kernels: usize,
    /// Operations that wait to be launched, in order.
    pub(super) queue: VecDeque<Queued>,
    /// Number of them that are deferred, and their predicted time, ns.
    pub(super) left: (usize, Ns),
    /// Number of them that wait for room.
    pub(super) roomless: usize,
    /// Time, ns, at which the drain thread is free again.
    pub(super) issuer_free: Ns,
    /// Time, ns, at which it was scheduled to come again.
    pub(super) issuer_asked: Ns,
    pub(super) waiters: Vec<HostWaiter>,
    /// Rewritten kernels that are stopped between two of their pieces.
    pub(super) stopped: Vec<StoppedKernel>,
    /// Time, ns, that rewritten kernels took beyond their own.
    pub(super) rewritten: Ns,
    pub(super) latencies: Vec<Ns>,
    pub(super) arrivals: Vec<Ns>,
    pub(super) tokens: Vec<TokenTime>,
    /// Time, ns, at which the last wait of the current request returned.
    pub(super) token_at: Option<Ns>,
    pub(super) lane: GateLane,
    /// Time, ns, since which the head of the queue waits for permission.
    pub(super) held_since: Option<Ns>,
    pub(super) waits: Vec<(Ns, Ns)>,
    /// The states of its next launch, from the time of each change on; and the device time of that
    /// launch, ns.
    pub(super) stands: Vec<StandChange>,
    pub(super) wanted: Ns,
}

impl JobProcess {
    /// Nap, ns, of its thread at the gate.
    pub(super) fn nap(&self, now: Ns) -> Ns {
        let marks = self.streams.iter().filter(|stream| stream.marked > stream.settled);
        let expected = marks
            .map(|stream| self.lane.progress + (stream.marked - stream.settled))
            .min();
        nap_length(now, expected, || self.outstanding > 0)
    }

    pub(super) fn new(job: PlayedJob, number: u64, engine: &mut Engine) -> JobProcess {
        let context = engine.add_context();
        let streams = (0..job.program.streams.max(1))
            .filter_map(|_| engine.add_stream(context, 0).ok())
            .map(|id| ProcessStream {
                id,
                in_flight: VecDeque::new(),
                submitted: 0,
                done: 0,
                last_end: 0,
                last_op: OpId::DONE,
                timed_since: None,
                issued: 0,
                marked: 0,
                reached: 0,
                settled: 0,
            })
            .collect();
        JobProcess {
            context,
            streams,
            events: vec![None; job.program.events],
            request: 0,
            arrived: 0,
            remaining: 0,
            base: 0,
            next_arrival: 0,
            outstanding: 0,
            kernels: 0,
            queue: VecDeque::new(),
            left: (0, 0),
            roomless: 0,
            issuer_free: 0,
            issuer_asked: 0,
            waiters: Vec::new(),
            stopped: Vec::new(),
            rewritten: 0,
            latencies: Vec::new(),
            arrivals: Vec::new(),
            tokens: Vec::new(),
            token_at: None,
            lane: GateLane::new(job.profile.given().cloned()),
            held_since: None,
            waits: Vec::new(),
            stands: Vec::new(),
            wanted: 0,
            number,
            job,
        }
    }

    /// Records the state of its next launch.
    pub(super) fn stands(&mut self, now: Ns, stand: Stand) {
        if self.stands.last().is_some_and(|last| last.stand == stand) {
            return;
        }
        let time = match stand {
            Stand::Away => 0,
            _ => self.wanted,
        };
        self.stands.push(StandChange { at: now, stand, time });
    }

    /// Records the launch that it wants to make.
    pub(super) fn wants(&mut self, seed: u64, call: Queued, play: &Play) {
        if let Play::Compute { duration, .. } | Play::Copy { duration, .. } = *play {
            self.wanted = self.job.device_time(seed, self.number, call.request, call.op, duration);
        }
    }

    /// Records the return of a wait of the current request.
    pub(super) fn token(&mut self, at: Ns) {
        if let Some(before) = self.token_at.replace(at) {
            self.tokens.push(TokenTime {
                request: self.request,
                time: at.saturating_sub(before),
            });
        }
    }

    pub(super) fn reached(&self, target: WaitTarget) -> bool {
        match target {
            WaitTarget::All => self.streams.iter().all(|stream| stream.in_flight.is_empty()),
            WaitTarget::Stream { stream, upto } => self.streams[usize::from(stream)].done >= upto,
        }
    }

    pub(super) fn into_run(mut self, engine: &Engine, now: Ns) -> JobRun {
        if let Some(since) = self.held_since {
            self.waits.push((since, now));
        }
        let compute = engine.context_usage(self.context).map_or(0, |usage| usage.compute);
        JobRun {
            latencies: self.latencies,
            arrivals: self.arrivals,
            compute,
            rewritten: self.rewritten.min(compute),
            waits: self.waits,
            stands: self.stands,
            ops: u64::from(self.base),
            tokens: self.tokens,
            job: self.job,
        }
    }
}
