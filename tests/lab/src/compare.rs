// SPDX-License-Identifier: MIT OR Apache-2.0
//! One set of jobs under several rules on the same seed, and the figures.
//!
//! Each job first has a solo run, in which it has the device to itself. Its latency and its
//! throughput are measured against this run. A second solo run, with another seed, makes weft's
//! profile of the job. So weft knows nothing about a job that a stage-1 run could not have
//! recorded.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use weft_engine::{Mode, Settings};
use weft_player::{
    ArrivalPattern, Hosts, JobRun, LaunchControl, MachineRun, MachineSetup, PlayedJob, ProfileSource, TokenTime,
};
use weft_profiles::Profile;

use crate::bound::{self, BatchDemand};
use crate::measure::{Analysis, Floor, Latency, Spent};
use crate::oracle;
use crate::promise::{SloFigures, TokenFigures};
use crate::rule::Rule;
use crate::why::{UnfilledCauses, why};
use crate::{MS, Ns};

/// Requests of the solo run that gives a service's usual latency.
const USUAL: u64 = 40;

/// Added to the seed of that run, so that it is from another day.
const OTHER_SEED: u64 = 0x0001_0000;

/// Shortest virtual time of a batch job's solo run.
const MIN_ALONE_NS: Ns = 1_000 * MS;

/// Virtual time for which jobs run together when each job's throughput is measured.
const MIN_TOGETHER_NS: Ns = 4_000 * MS;

/// The machine and the length of a run.
#[derive(Debug, Clone, Copy)]
pub struct Fixture {
    /// The device.
    pub device: Settings,
    /// The host.
    pub hosts: Hosts,
    /// The seed of all chance.
    pub seed: u64,
    /// Requests that count in the figures.
    pub requests: u64,
    /// Requests before them that do not count: queues fill, predictors learn.
    pub warmup: u64,
    /// Settings of the core that replace the default, for trials.
    pub tuning: Tuning,
}

/// Settings of the core to try.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tuning {
    /// [`weft_scheduler::Config::risk`].
    pub risk: Option<f64>,
    /// [`weft_scheduler::Config::minimum_share`].
    pub minimum_share: Option<f64>,
    /// [`PlayedJob::at_least`] of all batch jobs together.
    pub at_least: Option<f64>,
    /// [`Hosts::queue`].
    pub queue: Option<usize>,
    /// [`Hosts::gate_spin`].
    pub gate_spin: Option<Ns>,
    /// Without [`weft_scheduler::Config::deferral`].
    pub no_grace: bool,
    /// Without [`Hosts::hints`].
    pub no_hints: bool,
    /// Without [`Hosts::launch_costs`].
    pub no_launch_costs: bool,
}

impl Tuning {
    /// Applies the settings that are given.
    fn apply(self, control: &mut LaunchControl) {
        if let LaunchControl::Weft(config) = control {
            config.deferral &= !self.no_grace;
            config.risk = self.risk.unwrap_or(config.risk);
            config.minimum_share = self.minimum_share.unwrap_or(config.minimum_share);
        }
    }
}

/// A job with the figures and the profile from its solo runs.
#[derive(Debug, Clone)]
pub struct KnownJob {
    /// The job.
    pub job: PlayedJob,
    /// Its stage-1 profile.
    pub profile: Arc<Profile>,
    /// Latency of each request in a solo run (or among its equals, see [`Fixture::know_all`]),
    /// warm-up included.
    pub latencies: Vec<Ns>,
    /// Its tokens in a solo run, if its waits return with tokens.
    pub tokens: Vec<TokenTime>,
    /// The part of a solo run in which the device works for it.
    pub busy: f64,
    /// The same part for the service and its equals together, over the requests that count. Set for
    /// a service only.
    pub foreground_busy: f64,
    /// [`BatchDemand::ahead`], for a batch job.
    pub ahead: f64,
}

impl KnownJob {
    /// The job, with the profile of its solo run if it is to have that one.
    fn with_profile(&self) -> PlayedJob {
        let mut job = self.job.clone();
        if let ProfileSource::Solo = job.profile {
            job.profile = ProfileSource::Given(Arc::clone(&self.profile));
        }
        job
    }
}

/// Why a job of the lab can be played: its readers and generators give it work and a priority.
const PLAYABLE: &str = "the lab makes jobs that can be played";

fn played(setup: MachineSetup) -> MachineRun {
    setup.play().expect(PLAYABLE)
}

impl Fixture {
    fn run(&self, jobs: Vec<PlayedJob>, control: LaunchControl, requests: u64, least: Ns, seed: u64) -> MachineRun {
        let hosts = Hosts {
            queue: self.tuning.queue.unwrap_or(self.hosts.queue),
            gate_spin: self.tuning.gate_spin.unwrap_or(self.hosts.gate_spin),
            hints: self.hosts.hints && !self.tuning.no_hints,
            launch_costs: self.hosts.launch_costs && !self.tuning.no_launch_costs,
            ..self.hosts
        };
        played(MachineSetup {
            hosts,
            requests,
            least,
            ..MachineSetup::new(self.device, control, jobs, seed)
        })
    }

    /// Mean latency, ns, of a service in a solo run. Each request comes after the answer to the
    /// last.
    pub fn usual_latency(&self, job: &PlayedJob) -> f64 {
        let job = PlayedJob {
            arrivals: ArrivalPattern::Closed { think: Some(0) },
            ..job.clone()
        };
        let run = self.run_at(vec![job], 0, USUAL, 0, self.seed + OTHER_SEED);
        Latency::of(&run.jobs[0].latencies).mean
    }

    /// Runs a job by itself in the place that it will have in the set. Its times are then the same
    /// to the nanosecond.
    pub fn know(&self, job: &PlayedJob, place: usize, service: bool) -> KnownJob {
        let profile = weft_player::solo_profile(
            job,
            place,
            self.device,
            self.hosts,
            self.seed,
            weft_player::PROFILE_REQUESTS,
        );
        let (requests, least) = match service {
            true => (self.requests + self.warmup, 0),
            false => (5, self.hosts.slowed(MIN_ALONE_NS)),
        };
        let run = self.run_at(vec![job.clone()], place, requests, least, self.seed);
        let compute = run.jobs[0].compute;
        KnownJob {
            job: job.clone(),
            profile: Arc::new(profile.expect(PLAYABLE)),
            latencies: run.jobs[0].latencies.clone(),
            tokens: run.jobs[0].tokens.clone(),
            busy: compute as f64 / run.span.max(1) as f64,
            foreground_busy: bound::device_share(&run, self.warmup as usize),
            // Peers set the pace of a job with collectives.
            ahead: match service || !job.program.collectives.is_empty() {
                true => 0.0,
                false => bound::ahead(job, place, &run),
            },
        }
    }

    /// The [`KnownJob`]s of a set of jobs, the service first. Jobs of the service's own priority
    /// follow right behind it. The service is then measured against its run among them: weft does
    /// not arbitrate between equals, and must not add anything to that latency.
    pub fn know_all(&self, jobs: &[PlayedJob]) -> Vec<KnownJob> {
        let alone = |(place, job)| self.know(job, place, place == 0);
        let mut known: Vec<KnownJob> = jobs.iter().enumerate().map(alone).collect();
        self.among_equals(&mut known);
        known
    }

    /// See [`Fixture::know_all`].
    pub fn among_equals(&self, known: &mut [KnownJob]) {
        let service = &known[0].job;
        let equals = known.iter().take_while(|one| one.job.priority == service.priority);
        let jobs: Vec<_> = equals.map(|one| one.job.clone()).collect();
        if jobs.len() > 1 {
            let run = self.run_at(jobs, 0, self.requests + self.warmup, 0, self.seed);
            known[0].latencies.clone_from(&run.jobs[0].latencies);
            known[0].foreground_busy = bound::device_share(&run, self.warmup as usize);
        }
    }

    fn run_at(&self, jobs: Vec<PlayedJob>, place: usize, requests: u64, least: Ns, seed: u64) -> MachineRun {
        played(MachineSetup {
            hosts: self.hosts,
            requests,
            least,
            first_number: place,
            ..MachineSetup::new(self.device, LaunchControl::Plain, jobs, seed)
        })
    }

    /// The figures of these jobs under a rule. The first job is the service; the others share the
    /// device with it.
    pub fn compare(&self, jobs: &[KnownJob], rule: Rule) -> CaseFigures {
        let mut setup: Vec<PlayedJob> = jobs.iter().map(KnownJob::with_profile).collect();
        let service = &mut setup[0];
        service.slowdown = rule.slowdown().or(service.slowdown);
        let mut control = rule.control(&self.device, self.hosts.dilation);
        self.tuning.apply(&mut control);
        if let Some(part) = self.tuning.at_least {
            let batch = &mut setup[1..];
            let each = part / batch.len().max(1) as f64;
            batch.iter_mut().for_each(|job| job.at_least = Some(each));
        }
        let total = self.requests + self.warmup;
        let run = self.run(setup, control, total, rule.least(), self.seed);
        self.figures(jobs, rule, &run)
    }

    /// The part of its solo throughput that each of several jobs reaches when no launch control
    /// stands between them and the device.
    pub fn throughputs(&self, jobs: &[KnownJob]) -> Vec<f64> {
        let setup = jobs.iter().map(|known| known.job.clone()).collect();
        let run = self.run(setup, LaunchControl::Plain, 1, MIN_TOGETHER_NS, self.seed);
        let part =
            |(job, known): (&JobRun, &KnownJob)| job.compute as f64 / run.span.max(1) as f64 / known.busy.max(1e-9);
        run.jobs.iter().zip(jobs).map(part).collect()
    }

    fn figures(&self, jobs: &[KnownJob], rule: Rule, run: &MachineRun) -> CaseFigures {
        let warmup = self.warmup as usize;
        let mut analysis = Analysis::of(run, warmup);
        let service = &jobs[0];
        let background_jobs = || jobs.iter().filter(|known| known.job.priority != service.job.priority);
        let latencies = run.jobs[0].latencies.get(warmup..).unwrap_or_default();
        let before = service.latencies.get(warmup..).unwrap_or_default();
        let differences: Vec<f64> = latencies
            .iter()
            .zip(before)
            .map(|(with, alone)| *with as f64 - *alone as f64)
            .collect();
        let switch = match self.device.mode {
            Mode::TimeSlice => self.device.switch,
            Mode::Mps | Mode::MpsShared(_) => 0,
        };
        let packer = PackerFigures::of(run, &mut analysis);
        let why = why(run, &analysis.windows);
        let batch = run
            .jobs
            .iter()
            .zip(jobs)
            .zip(&analysis.compute)
            .filter(|((_, known), _)| known.job.priority != service.job.priority)
            .map(|((job, known), compute)| {
                // The extra time of rewritten kernels is not work.
                let own = 1.0 - job.rewritten as f64 / job.compute.max(1) as f64;
                *compute as f64 * own / analysis.span.max(1) as f64 / known.busy.max(1e-9)
            })
            .collect::<Vec<f64>>();
        let demands: Vec<BatchDemand> = background_jobs()
            .map(|known| BatchDemand {
                alone: known.busy,
                ahead: known.ahead,
            })
            .collect();
        let allowed = |foreground: f64| match self.device.mode {
            Mode::MpsShared(_) => None,
            Mode::Mps | Mode::TimeSlice => Some(bound::most(1.0 - foreground, &demands)),
        };
        let holds = |known: &KnownJob| known.job.priority == service.job.priority;
        let foreground: Ns = jobs
            .iter()
            .zip(&analysis.compute)
            .filter_map(|(known, compute)| holds(known).then_some(*compute))
            .sum();
        let us = |ns: f64| ns / 1e3;
        let per = |sum: Ns, count: u64| if count == 0 { 0.0 } else { sum as f64 / count as f64 };
        let ms = |ns: Ns| ns as f64 / 1e6;
        CaseFigures {
            rule: rule.to_string(),
            seed: run.seed,
            finished: run.finished,
            latency: Latency::of(latencies),
            alone: Latency::of(before),
            slo: service.job.slo.map(|limit| SloFigures::of(limit, latencies, before)),
            tokens: TokenFigures::of(&run.jobs[0].tokens, &service.tokens, self.warmup),
            added_mean_us: us(differences.iter().sum::<f64>() / differences.len().max(1) as f64),
            added_worst_us: us(differences.iter().copied().fold(0.0, f64::max)),
            direct_per_gap_us: us(per(analysis.direct, analysis.filled_gaps)),
            direct_filling_us: us(per(analysis.direct - analysis.forced, analysis.filled_gaps)),
            direct_worst_us: us(analysis.direct_worst as f64),
            direct_ms: ms(analysis.direct),
            forced_ms: ms(analysis.forced),
            floor: Floor::of(background_jobs().map(|known| &*known.job.program), switch),
            batch_sum: batch.iter().sum(),
            batch,
            bound: allowed(service.foreground_busy),
            own_bound: allowed(foreground as f64 / analysis.span.max(1) as f64),
            gaps: analysis.windows.len() as u64,
            filled_gaps: analysis.filled_gaps,
            gap_ms: ms(analysis.idle()),
            filled_ms: ms(analysis.filled),
            oracle_ms: packer.most_ms,
            gated_ms: packer.gated_ms,
            own_ms: packer.own_ms,
            efficiency: packer.efficiency,
            gate_us: us(per(analysis.gate, analysis.background_kernels)),
            gate_own_us: us(per(why.of_the_gate(), analysis.background_kernels)),
            foreseen: Foreseen::of(run),
            let_through: run
                .snapshot
                .as_ref()
                .map_or(0, |snapshot| snapshot.counters.starvation_grants),
            spent: analysis.spent.to_vec(),
            why,
            span_ms: ms(analysis.span),
            switches: run.switches,
            events: run.events,
        }
    }
}

/// The packer's figures. They are NaN if kernels share SMs: the packer runs one kernel at a time,
/// so it bounds nothing there.
struct PackerFigures {
    most_ms: f64,
    gated_ms: f64,
    own_ms: f64,
    efficiency: f64,
}

impl PackerFigures {
    fn of(run: &MachineRun, analysis: &mut Analysis) -> PackerFigures {
        if matches!(run.device.mode, Mode::MpsShared(_)) {
            return PackerFigures {
                most_ms: f64::NAN,
                gated_ms: f64::NAN,
                own_ms: f64::NAN,
                efficiency: f64::NAN,
            };
        }
        let ms = |ns: Ns| ns as f64 / 1e6;
        let most = oracle::most(run, analysis);
        PackerFigures {
            most_ms: ms(most),
            gated_ms: ms(oracle::gated(run, analysis)),
            own_ms: ms(oracle::own(run, analysis)),
            efficiency: match most {
                0 => 1.0,
                _ => analysis.filled as f64 / most as f64,
            },
        }
    }
}

/// The figures of one rule.
#[derive(Debug, Clone, Serialize)]
pub struct CaseFigures {
    /// The rule.
    pub rule: String,
    /// The seed of all chance.
    pub seed: u64,
    /// Whether the service answered all its requests.
    pub finished: bool,
    /// The service's latency, ns.
    pub latency: Latency,
    /// The same in a solo run.
    pub alone: Latency,
    /// Requests with an SLO.
    pub slo: Option<SloFigures>,
    /// Tokens, if its waits return with tokens.
    pub tokens: Option<TokenFigures>,
    /// Added latency of a request from end to end, mean over requests.
    pub added_mean_us: f64,
    /// The largest added latency of a request.
    pub added_worst_us: f64,
    /// Direct delay per filled gap, mean, from all the direct delay of the run.
    pub direct_per_gap_us: f64,
    /// The same without the delay that fills no gap (`forced_ms`).
    pub direct_filling_us: f64,
    /// The largest direct delay of one kernel.
    pub direct_worst_us: f64,
    /// Sum of the direct delay.
    pub direct_ms: f64,
    /// The part of the direct delay that fills no gap: the device was taken from a foreground job
    /// that had work. The minimum share does that (and time slices without weft).
    pub forced_ms: f64,
    /// Delay per filled gap that no filling without preemption can avoid.
    pub floor: Floor,
    /// Throughput of each job of lower priority than the service, as a part of its solo throughput.
    pub batch: Vec<f64>,
    /// The sum of `batch`.
    pub batch_sum: f64,
    /// The most that the device's time allows of `batch_sum` at no added latency
    /// ([`crate::bound`]): the same for all rules. `None` if kernels share the device.
    pub bound: Option<f64>,
    /// The same bound with the requests of this run, which come later if they are delayed.
    pub own_bound: Option<f64>,
    /// Number of gaps.
    pub gaps: u64,
    /// Number of gaps with a background job in them.
    pub filled_gaps: u64,
    /// Sum of gap time.
    pub gap_ms: f64,
    /// The filled part of it.
    pub filled_ms: f64,
    /// The most that the clairvoyant packer could have filled. It may never let a kernel outlast a
    /// gap. This and all other figures of the packer are NaN (`null` in JSON) if kernels share SMs.
    pub oracle_ms: f64,
    /// The most that the packer could have filled if background jobs launched in gaps only.
    pub gated_ms: f64,
    /// The most that the packer could have filled if it also had to do the work that the run did
    /// outside of gaps.
    pub own_ms: f64,
    /// Filled time over the packer's.
    pub efficiency: f64,
    /// Time of gaps in which the device was idle while a background job waited at the gate, per
    /// background kernel in gaps.
    pub gate_us: f64,
    /// The part of `gate_us` that the gate itself costs: the background job may go, and the
    /// permission is not given yet or is on its way. Time held back for the foreground job's sake
    /// is not in it.
    pub gate_own_us: f64,
    /// How well the core predicted the service's gaps in this run.
    pub foreseen: Foreseen,
    /// How often background jobs were let through so that they do not starve.
    pub let_through: u64,
    /// By length of gap (see [`crate::measure::EDGES`]), the use of its time.
    pub spent: Vec<Spent>,
    /// By length of gap and cause (see [`crate::why`]), the time that was not filled.
    pub why: UnfilledCauses,
    /// Length of the measured time.
    pub span_ms: f64,
    /// Changes of context.
    pub switches: u64,
    /// Events of the engine, hosts and broker.
    pub events: u64,
}

/// How well the core predicted the gaps of the service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Foreseen {
    /// Number of forecasts.
    pub forecasts: u64,
    /// The part of the gaps that were no shorter than the forecast's low value.
    pub kept: Option<f64>,
    /// Mean distance between forecast and gap, as a part of the mean gap.
    pub error: Option<f64>,
}

impl fmt::Display for Foreseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kept, self.error) {
            (Some(kept), Some(error)) => write!(f, "{kept:.2}, +- {:.0} %", 100.0 * error),
            _ => f.write_str("-"),
        }
    }
}

impl Foreseen {
    fn of(run: &MachineRun) -> Foreseen {
        let snapshot = run.snapshot.as_ref();
        let service = snapshot.and_then(|snapshot| snapshot.clients.first());
        service.map_or(Foreseen::default(), |client| Foreseen {
            forecasts: client.gaps.forecasts,
            kept: client.gaps.kept,
            error: client.gaps.error,
        })
    }
}

impl CaseFigures {
    /// Filled time over gap time.
    pub fn filled_share(&self) -> f64 {
        if self.gap_ms == 0.0 {
            0.0
        } else {
            self.filled_ms / self.gap_ms
        }
    }

    /// [`own_ms`](CaseFigures::own_ms) over the packer's.
    pub fn own_share(&self) -> f64 {
        if self.oracle_ms == 0.0 {
            1.0
        } else {
            self.own_ms / self.oracle_ms
        }
    }

    /// [`gated_ms`](CaseFigures::gated_ms) over the packer's: there the hosts of background jobs
    /// wait while the foreground job works.
    pub fn gated_share(&self) -> f64 {
        if self.oracle_ms == 0.0 {
            1.0
        } else {
            self.gated_ms / self.oracle_ms
        }
    }

    /// Batch work over its bound at no added latency. A rule that adds latency may exceed 1. If the
    /// bound is zero, the result is 1.
    pub fn share_of_bound(&self) -> Option<f64> {
        self.bound.map(|bound| match bound > 0.0 {
            true => self.batch_sum / bound,
            false => 1.0,
        })
    }

    /// p99 latency over that of the solo run.
    pub fn slowdown_p99(&self) -> f64 {
        self.latency.p99 / self.alone.p99.max(1.0)
    }

    /// Mean latency over that of the solo run.
    pub fn slowdown(&self) -> f64 {
        self.latency.mean / self.alone.mean.max(1.0)
    }
}
