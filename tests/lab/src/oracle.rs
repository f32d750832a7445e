// SPDX-License-Identifier: MIT OR Apache-2.0
//! The most work that a clairvoyant packer could have put into the foreground job's gaps, with the
//! same kernels in the same order.
//!
//! It gets the gaps of a run and its background jobs, and knows all of them in advance. Its rules:
//!
//! * A kernel runs inside a gap from its begin to its end, so the foreground job is never delayed.
//!   A service whose host is behind the device needs less: it catches up before it waits. So this
//!   is no bound on batch work; [`crate::bound`] is. On a time-sliced device a kernel may be
//!   stopped and continue in the next gap, and each gap loses one switch.
//! * A background job's launches keep their order (in each stream, and behind events). Each call is
//!   made when its host gets there: host time between calls passes, and a host that waits for the
//!   device waits here too. A call that puts work on the device returns after [`DEFER_NS`], or
//!   after the cost of a launch if that is less. Under no rule can a launch call return sooner. No
//!   host waits at a gate, and no host is ever more than just in time.
//! * The work that the run did *outside* of gaps is done and costs the packer nothing. If a kernel
//!   ran on over the end of a gap, the packer owes only the part inside.
//!
//! By the last rule the run's own schedule is one that the packer may choose, so its result is at
//! least the run's. ([`most`] is an upper bound on the gap time that any policy fills in its own
//! run. The tests compare it with every policy, with and without a launch queue, and with brute
//! force.) Proof, for one background job with one stream: let any schedule under these rules and
//! the packer's be given. By induction over the calls, the packer makes none later, and none of its
//! kernels ends later. A call comes when the one before it has returned and its host time is over.
//! A return follows from the call, or from ends of kernels, by a sum or a maximum. (A
//! synchronisation returns at their maximum: a host that a policy holds up arrives when the work is
//! done, and need not be woken.) A kernel may start when it is launched and the one before it has
//! ended. The packer takes the first place from then on into which it fits. All of these are
//! monotone, and no schedule may leave a kernel out. So the packer has completed by the last gap
//! all kernels that any schedule has: it is also exact. Several background jobs, and several
//! streams of one, each get all gaps for themselves; together they get no more than the gaps'
//! length.
//!
//! How loose it is when it is not exact: the work that the run did outside of gaps (a kernel that
//! continued over a gap's end, the minimum share) is free. So a policy that does more work there
//! has a higher bound, never a lower one. [`own`] is the result of a packer that must do all of
//! that work itself. It is no bound for a policy that delays the foreground job, and exact for one
//! that never does.
#![forbid(unsafe_code)]

use weft_engine::Mode;
use weft_player::job::{JobOp, NONE, Play};
use weft_player::{DEFER_NS, MachineRun, PlayedJob};
use weft_trace_format::AwaitedWork;

use crate::Ns;
use crate::measure::{Analysis, NOT_RUN, bucket};

/// A time that never comes.
const NEVER_NS: Ns = Ns::MAX / 4;

/// The gaps, and whether kernels may be stopped in them.
#[derive(Debug, Clone)]
pub struct ForegroundGaps {
    /// Begin and end of each gap; in order.
    pub windows: Vec<(Ns, Ns)>,
    /// Kernels may be stopped.
    pub preemptive: bool,
}

impl ForegroundGaps {
    /// The gaps of a run. On a time-sliced device each gap loses the switch to the background job.
    /// If kernels were rewritten so that they can be stopped, the packer may stop its own.
    pub fn of(run: &MachineRun, analysis: &Analysis) -> ForegroundGaps {
        let sliced = run.device.mode == Mode::TimeSlice;
        let lost = if sliced { run.device.switch } else { 0 };
        let windows = analysis.windows.iter().map(|(from, to)| (from + lost, *to));
        ForegroundGaps {
            windows: windows.filter(|(from, to)| from < to).collect(),
            preemptive: sliced || run.jobs.iter().any(|job| job.rewritten > 0),
        }
    }

    fn length(&self) -> Ns {
        self.windows.iter().map(|(from, to)| to - from).sum()
    }

    fn horizon(&self) -> Ns {
        self.windows.last().map_or(0, |(_, to)| *to)
    }

    /// The first moment from `time` on that is in a gap.
    fn first_within(&self, at: &mut usize, time: Ns) -> Ns {
        while let Some((from, to)) = self.windows.get(*at) {
            if time < *to {
                return time.max(*from);
            }
            *at += 1;
        }
        NEVER_NS
    }

    /// Runs `time` from `ready` on, as early as possible. Returns the end and the part that found
    /// room. `at` is the first gap to try.
    fn place(&self, at: &mut usize, ready: Ns, time: Ns, preemptive: bool, used: &mut GapUse) -> (Ns, Ns) {
        if time == 0 || ready >= NEVER_NS {
            return (ready, 0);
        }
        let mut left = time;
        while let Some((from, to)) = self.windows.get(*at) {
            let start = ready.max(*from);
            let room = to.saturating_sub(start);
            if room >= left {
                used.0[*at] += left;
                return (start + left, time);
            }
            if preemptive {
                left -= room;
                used.0[*at] += room;
            }
            *at += 1;
        }
        (NEVER_NS, time - left)
    }
}

/// The used time of each gap, ns.
#[derive(Debug, Default)]
pub struct GapUse(pub Vec<Ns>);

/// The same packer with background jobs that cannot launch outside of gaps: their hosts then wait
/// at a gate, as under weft. It bounds no policy. The difference between the two is the gain of
/// hosts that run ahead while the foreground job works.
pub fn gated(run: &MachineRun, analysis: &Analysis) -> Ns {
    together(run, analysis, |background| background.gated = true)
}

/// The same packer without free work: every kernel runs within gaps from its begin to its end. It
/// is the maximum for any policy that never delays the foreground job. A policy that does delay it
/// may get more.
pub fn own(run: &MachineRun, analysis: &Analysis) -> Ns {
    together(run, analysis, |background| background.inside = &[])
}

fn together(run: &MachineRun, analysis: &Analysis, change: impl Fn(&mut OracleBackground<'_>)) -> Ns {
    let gaps = ForegroundGaps::of(run, analysis);
    let mut used = GapUse(vec![0; gaps.windows.len()]);
    let mut sum = 0;
    for mut background in background_jobs(run, analysis) {
        change(&mut background);
        sum += background.most(&gaps, &mut used);
    }
    sum.min(gaps.length())
}

fn background_jobs<'a>(run: &'a MachineRun, analysis: &'a Analysis) -> impl Iterator<Item = OracleBackground<'a>> {
    let first = run.jobs.iter().map(|job| job.job.priority).min().unwrap_or(0);
    let jobs = run.jobs.iter().enumerate();
    jobs.filter(move |(_, job)| job.job.priority != first)
        .map(move |(number, job)| OracleBackground {
            job: &job.job,
            number: number as u64,
            seed: run.seed,
            inside: &analysis.inside[number],
            launch_latency: run.device.launch_latency,
            sync_return: run.sync_return,
            gated: false,
        })
}

/// The most background work that could have been in the gaps of a run. Enters its distribution by
/// length of gap in `analysis`.
pub fn most(run: &MachineRun, analysis: &mut Analysis) -> Ns {
    let gaps = ForegroundGaps::of(run, analysis);
    let mut used = GapUse(vec![0; gaps.windows.len()]);
    let sum: Ns = background_jobs(run, analysis)
        .map(|background| background.most(&gaps, &mut used))
        .sum();
    let lost = if gaps.preemptive { run.device.switch } else { 0 };
    for ((from, to), used) in gaps.windows.iter().zip(&used.0) {
        analysis.spent[bucket(to - from + lost)].packer += (*used).min(to - from);
    }
    sum.min(gaps.length())
}

/// The packer's view of a background job.
#[derive(Debug)]
pub struct OracleBackground<'a> {
    /// The job.
    pub job: &'a PlayedJob,
    /// Its number in the run.
    pub number: u64,
    /// The run's seed.
    pub seed: u64,
    /// The time that each of its operations owes ([`Analysis::inside`]). Operations beyond the
    /// list, and those that did not run, owe all of their time.
    pub inside: &'a [u32],
    /// The device's launch latency.
    pub launch_latency: Ns,
    /// The hosts' return time from a synchronisation.
    pub sync_return: Ns,
    /// It launches in gaps only.
    pub gated: bool,
}

/// A stream of the packer's.
#[derive(Debug, Clone, Copy, Default)]
struct OracleStream {
    end: Ns,
    at: usize,
}

impl OracleBackground<'_> {
    /// The most of its work that fits.
    pub fn most(&self, gaps: &ForegroundGaps, used: &mut GapUse) -> Ns {
        let program = &self.job.program;
        let mut streams = vec![OracleStream::default(); program.streams.max(1)];
        let mut events: Vec<Ns> = vec![0; program.events];
        let mut done = 0;
        // Launches in gaps only: the first gap to try for the next launch.
        let mut gate = 0;
        let mut base = 0usize;
        let mut next_begin = if self.job.arrivals.is_closed() {
            self.job.think(self.seed, self.number, 0)
        } else {
            self.job.arrivals.distance(self.seed, self.number, 0)
        };
        let mut request = 0;
        let mut busy_until = 0;
        while next_begin.max(busy_until) <= gaps.horizon() {
            let begin = next_begin.max(busy_until);
            let step = program.step_of(request);
            let mut starts: Vec<Ns> = vec![NEVER_NS; step.ops.len()];
            for root in &step.roots {
                starts[*root as usize] = begin;
            }
            let mut end = begin;
            for (at, op) in step.ops.iter().enumerate() {
                let host = self
                    .job
                    .host_time(self.seed, self.number, request, at as u32, op.host_before);
                let mut called = starts[at] + host;
                let owes = self.inside.get(base + at).is_none_or(|inside| *inside != 0);
                if self.gated && owes && matches!(op.play, Play::Compute { .. }) {
                    called = gaps.first_within(&mut gate, called);
                }
                let place = (request, at as u32, base + at);
                let back = self
                    .call(gaps, &mut streams, &mut events, place, op, called, used, &mut done)
                    .min(NEVER_NS);
                for next in [op.next_same, op.next_handed] {
                    if next != NONE {
                        starts[next as usize] = back;
                    }
                }
                end = end.max(back);
            }
            base += step.ops.len();
            request += 1;
            busy_until = end;
            next_begin = if self.job.arrivals.is_closed() {
                end + self.job.think(self.seed, self.number, request)
            } else {
                next_begin + self.job.arrivals.distance(self.seed, self.number, request)
            };
            if step.ops.is_empty() {
                next_begin = next_begin.max(begin + 1);
            }
        }
        done
    }

    /// Makes one call at `called`; returns when it returns.
    #[allow(clippy::too_many_arguments)]
    fn call(
        &self,
        gaps: &ForegroundGaps,
        streams: &mut [OracleStream],
        events: &mut [Ns],
        (request, at, number): (u64, u32, usize),
        op: &JobOp,
        called: Ns,
        used: &mut GapUse,
        done: &mut Ns,
    ) -> Ns {
        let visible = called + self.launch_latency;
        match op.play {
            Play::Compute {
                stream,
                duration,
                graph,
                ..
            } => {
                let owed = match self.inside.get(number) {
                    Some(inside) if *inside != NOT_RUN => Ns::from(*inside),
                    _ => self.job.device_time(self.seed, self.number, request, at, duration),
                };
                let stream = &mut streams[usize::from(stream)];
                let ready = visible.max(stream.end);
                // A graph is several kernels: they may lie in several gaps.
                let preemptive = gaps.preemptive || graph != NONE;
                let (end, placed) = gaps.place(&mut stream.at, ready, owed, preemptive, used);
                stream.end = end;
                *done += placed;
                called + self.job.program.launch_cost.min(DEFER_NS)
            }
            Play::Copy {
                stream,
                duration,
                waits,
                ..
            } => {
                let stream = &mut streams[usize::from(stream)];
                let time = self.job.device_time(self.seed, self.number, request, at, duration);
                stream.end = visible.max(stream.end) + time;
                if waits {
                    stream.end + self.sync_return
                } else {
                    called + self.job.program.launch_cost.min(DEFER_NS)
                }
            }
            Play::Sync(until) => {
                let end = match until {
                    AwaitedWork::All => streams.iter().map(|stream| stream.end).max().unwrap_or(0),
                    AwaitedWork::Stream(stream) => streams[usize::from(stream)].end,
                    AwaitedWork::Event(event) => events[usize::from(event)],
                };
                // A host that arrives after the end returns at once. A host that is held up on the
                // way may arrive just at the end. So there is no time to be woken.
                end.max(called)
            }
            Play::Record { event, stream } => {
                events[usize::from(event)] = streams[usize::from(stream)].end;
                called
            }
            Play::Wait { event, stream } => {
                let stream = &mut streams[usize::from(stream)];
                stream.end = stream.end.max(events[usize::from(event)]);
                called
            }
        }
    }
}
