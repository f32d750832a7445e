//! A job at work: where its host threads are, what it has on the device, its lane.

use std::collections::VecDeque;
use std::sync::Arc;

use simgpu_engine::{ContextId, Engine, OpId, StreamId};
use weft_gate::wait::nap_length;
use weft_profiles::Profile;

use super::lane::GateLane;
use super::stand::{Stand, StandChange};
use crate::Ns;
use crate::job::{Play, PlayedJob};

/// What a job got.
#[derive(Debug, Clone)]
pub struct JobRun {
    /// The job.
    pub job: PlayedJob,
    /// Latency of each request from its arrival to its answer.
    pub latencies: Vec<Ns>,
    /// When each request arrived.
    pub arrivals: Vec<Ns>,
    /// Time its kernels ran.
    pub compute: Ns,
    /// When it stood at the gate (weft) or waited for permission: from, to.
    pub waits: Vec<(Ns, Ns)>,
    /// How it stood, as that changed.
    pub stands: Vec<StandChange>,
    /// Operations begun.
    pub ops: u64,
}

/// Work on its way through a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct InFlight {
    /// When it was submitted, and could be seen by the device.
    pub(super) visible: Ns,
    /// The operation, counted from the job's beginning. `u32::MAX` for a wait, which is no work.
    pub(super) op: u32,
    /// What it is called.
    pub(super) kernel: u64,
    /// Runs on the compute engine.
    pub(super) compute: bool,
    /// The last kernel of a launch: with it the launch has ended.
    pub(super) last: bool,
    /// The background job's account of the stream up to here, and whether an event of ours stands
    /// behind it.
    pub(super) upto: Ns,
    pub(super) marked: bool,
}

/// A stream.
#[derive(Debug)]
pub(super) struct ProcessStream {
    pub(super) id: StreamId,
    pub(super) in_flight: VecDeque<InFlight>,
    /// Operations submitted and ended, waits included.
    pub(super) submitted: u64,
    pub(super) done: u64,
    /// When the last of them ended.
    pub(super) last_end: Ns,
    pub(super) last_op: OpId,
    /// The background job's account: predicted work issued, behind a mark, marked and reached by
    /// the device, seen by the client.
    pub(super) issued: Ns,
    pub(super) marked: Ns,
    pub(super) reached: Ns,
    pub(super) settled: Ns,
}

/// What a host thread waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum WaitTarget {
    /// Nothing of the job on the device.
    All,
    /// So many operations of a stream.
    Stream { stream: u16, upto: u64 },
}

/// A host thread that waits for the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostWaiter {
    pub(super) op: u32,
    pub(super) target: WaitTarget,
    pub(super) synced: SyncResult,
}

/// What a call that waited says about the process when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncResult {
    All,
    Stream(u16),
    Event,
}

/// A call that waits for its turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queued {
    pub(super) op: u32,
    /// Its request, and the count of operations before that.
    pub(super) request: u64,
    pub(super) base: u32,
    /// Its host has been told that it is launched, and has gone on.
    pub(super) deferred: bool,
    /// Its host waits until there is room to leave it behind.
    pub(super) room: bool,
    /// Predicted when it came.
    pub(super) cost: Ns,
}

/// A job at work.
#[derive(Debug)]
pub(super) struct JobProcess {
    pub(super) job: PlayedJob,
    /// Its number in all chance.
    pub(super) number: u64,
    pub(super) context: ContextId,
    pub(super) streams: Vec<ProcessStream>,
    /// Where each event was recorded last.
    pub(super) events: Vec<Option<(u16, u64, OpId)>>,
    /// The request at work: its number, when it arrived, operations not returned yet, the count of
    /// operations before it.
    pub(super) request: u64,
    pub(super) arrived: Ns,
    pub(super) remaining: usize,
    pub(super) base: u32,
    /// When the next request arrives, where it does not wait for an answer.
    pub(super) next_arrival: Ns,
    /// Launches on the device.
    pub(super) outstanding: usize,
    /// Operations that wait to be launched, in their order.
    pub(super) queue: VecDeque<Queued>,
    /// How many of them were left behind, and what they are predicted to take.
    pub(super) left: (usize, Ns),
    /// How many wait for room.
    pub(super) roomless: usize,
    /// When the thread that launches what the host has left behind is free again.
    pub(super) issuer_free: Ns,
    /// For when it has been asked to come again.
    pub(super) issuer_asked: Ns,
    pub(super) waiters: Vec<HostWaiter>,
    pub(super) latencies: Vec<Ns>,
    pub(super) arrivals: Vec<Ns>,
    pub(super) lane: GateLane,
    /// Since when the head of the queue waits for permission.
    pub(super) held_since: Option<Ns>,
    pub(super) waits: Vec<(Ns, Ns)>,
    /// How it stands between wanting to launch and launching, and how long the device will take for
    /// what it wants.
    pub(super) stands: Vec<StandChange>,
    pub(super) wanted: Ns,
}

impl JobProcess {
    /// How long its thread at the gate naps before it looks again.
    pub(super) fn nap(&self, now: Ns) -> Ns {
        let marks = self.streams.iter().filter(|stream| stream.marked > stream.settled);
        let expected = marks
            .map(|stream| self.lane.progress + (stream.marked - stream.settled))
            .min();
        nap_length(now, expected, || self.outstanding > 0)
    }

    pub(super) fn new(job: PlayedJob, number: u64, profile: Option<Arc<Profile>>, engine: &mut Engine) -> JobProcess {
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
            queue: VecDeque::new(),
            left: (0, 0),
            roomless: 0,
            issuer_free: 0,
            issuer_asked: 0,
            waiters: Vec::new(),
            latencies: Vec::new(),
            arrivals: Vec::new(),
            lane: GateLane::new(profile, job.program.streams.max(1)),
            held_since: None,
            waits: Vec::new(),
            stands: Vec::new(),
            wanted: 0,
            number,
            job,
        }
    }

    /// From now on it stands so.
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

    /// It wants to launch this: how long that will take of the device.
    pub(super) fn wants(&mut self, seed: u64, call: Queued, play: &Play) {
        if let Play::Compute { duration, .. } | Play::Copy { duration, .. } = *play {
            self.wanted = self.job.device_time(seed, self.number, call.request, call.op, duration);
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
            waits: self.waits,
            stands: self.stands,
            ops: u64::from(self.base),
            job: self.job,
        }
    }
}
