//! What a clairvoyant packer could have put into the foreground job's gaps, with the same kernels
//! in the same order.
//!
//! It is given the gaps of a run and its background jobs, and knows all of them in advance. Its
//! rules:
//!
//! * A kernel runs inside a gap from its begin to its end, so the foreground job is never delayed.
//!   That is more than a service needs whose host is behind the device: it catches up before it
//!   waits. So this is no bound on batch work; [`crate::bound`] is. On a time-sliced device it may
//!   be stopped and go on in the next gap, and each gap loses one switch.
//! * A background job's launches keep their order (in each stream, and behind events), and each
//!   comes when its host has got there: host time between calls passes, who waits for the device
//!   waits here too, and a call that puts work on the device returns after [`DEFER_NS`] or what a
//!   launch takes, if that is less: no sooner can a program be told that it is launched, whoever
//!   launches it. Nobody waits at a gate, and nobody is ever more than just in time.
//! * What the run did *outside* of gaps is done and costs the packer nothing; of a kernel that ran
//!   on over the end of a gap it owes only the part inside.
//!
//! By the last rule the run's own schedule is one that the packer may choose, so its result is at
//! least the run's ([`most`] is an upper bound on what any policy fills of its own run's gaps; the
//! tests compare it with every
//! policy, with and without a launch queue, and with brute force). Proof, for one background job
//! with one stream: let any schedule under these rules and the packer's be given. By induction over
//! the calls none is made later by the packer, and no kernel of it ends later. A call comes when
//! the one before it has returned and its host time is over; a return follows from the call, or
//! from ends of kernels, by a sum or a maximum (of a synchronisation by their maximum: a host that
//! a policy holds up comes when it is done, and is not woken); a kernel may start when it is
//! launched and the one before it has ended, and the packer takes the first place from then on into
//! which it fits. All of these are monotone, and nobody may leave a kernel out. So the kernels that
//! any schedule has completed by the last gap, the packer has too: it is also exact. Several
//! background jobs, and several streams of one, are each given all gaps for themselves; together
//! they get no more than the gaps' length.
//!
//! How loose it is where it is not exact: what the run did outside of gaps (a kernel that went on
//! over a gap's end, the minimum share) is free, so a policy that does more there has a higher
//! bound, never a lower one. [`own`] is what the packer gets that must do all of it itself: no
//! bound for a policy that delays the foreground job, and exact for one that never does.
#![forbid(unsafe_code)]

use weft_trace_format::Until;

use crate::job::{NONE, Play, PlayedJob};
use crate::measure::{Analysis, NOT_RUN, bucket};
use crate::world::{DEFER_NS, MachineRun};
use crate::{Ns, job::JobOp};

use simgpu_engine::Mode;

/// A time that never comes.
const NEVER_NS: Ns = Ns::MAX / 4;

/// The gaps, and what they may be used for.
#[derive(Debug, Clone)]
pub struct ForegroundGaps {
    /// From, to; in order.
    pub windows: Vec<(Ns, Ns)>,
    /// Kernels may be stopped.
    pub preemptive: bool,
}

impl ForegroundGaps {
    /// Of a run: on a time-sliced device each gap loses the switch to the background job. Where
    /// kernels were rewritten so that they can be stopped, the packer may stop its own.
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

    /// The first moment from `time` on that lies in a gap.
    fn first_within(&self, at: &mut usize, time: Ns) -> Ns {
        while let Some((from, to)) = self.windows.get(*at) {
            if time < *to {
                return time.max(*from);
            }
            *at += 1;
        }
        NEVER_NS
    }

    /// Runs `time` from `ready` on, as early as can be. Returns when it ends and how much of it
    /// found room. `at` is where to look from.
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

/// How much of each gap is used.
#[derive(Debug, Default)]
pub struct GapUse(pub Vec<Ns>);

/// The same packer with background jobs that cannot launch outside of gaps: their hosts stand at a
/// gate then, as weft's do. No bound for anybody; what lies between the two is what hosts would
/// gain by running ahead while the foreground job works.
pub fn gated(run: &MachineRun, analysis: &Analysis) -> Ns {
    together(run, analysis, |background| background.gated = true)
}

/// The same packer where nothing is done for it: every kernel runs within gaps from its begin to
/// its end. The most for any policy that never delays the foreground job, and less than one may get
/// that does.
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

/// The most background job work that could have been in the gaps of a run; where it lies by length
/// of gap is entered in `analysis`.
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

/// One background job, as the packer sees it.
#[derive(Debug)]
pub struct OracleBackground<'a> {
    /// The job.
    pub job: &'a PlayedJob,
    /// Its number in the run.
    pub number: u64,
    /// The run's.
    pub seed: u64,
    /// What each of its operations owes ([`Analysis::inside`]); those beyond, and those that did
    /// not run, owe all of their time.
    pub inside: &'a [u32],
    /// The device's.
    pub launch_latency: Ns,
    /// The hosts'.
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
        // Launches in gaps only: where the next one is looked for.
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

    /// One call at `called`; when it returns.
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
                // A graph is several kernels: it may lie in several gaps.
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
                    Until::All => streams.iter().map(|stream| stream.end).max().unwrap_or(0),
                    Until::Stream(stream) => streams[usize::from(stream)].end,
                    Until::Event(event) => events[usize::from(event)],
                };
                // Who comes when it is done already is told at once, and who is held up on the way
                // there may come just then: no time to be woken.
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
