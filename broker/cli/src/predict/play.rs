// SPDX-License-Identifier: MIT OR Apache-2.0
//! A service and batch jobs, played under each way to share a GPU, in several settings. Pure but
//! for its threads.
//!
//! Settings differ in values that no file has: the seed, the host's speed, the device's time slice,
//! how much kernels slow each other down side by side, and times of kernels that were not measured
//! on the service's GPU. Each setting also has a solo run of every job, and all figures are
//! relative to it. A figure's point is the mean over the usual
//! settings with several seeds, its interval covers all settings.
//!
//! Each run has the same length in virtual time, and a slow way takes no longer to play.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use weft_engine::{Mode, Settings, SmLimits};
use weft_player::rule::MpsPriority;
use weft_player::{
    ArrivalPattern, Hosts, Jitter, LaunchControl, MachineRun, MachineSetup, Ns, PROFILE_REQUESTS, PlayError, PlayedJob,
    ProfileSource, Program, solo_profile,
};
use weft_scheduler::Config;

/// Number of operations in all runs. `docs/predict.md` has the time that they take.
const MOST_OPERATIONS: f64 = 8e6;

/// Most requests of a run, if none is late: a p99 of more is no better than the settings.
const MOST_REQUESTS: f64 = 1_000.0;

/// Requests of a run, at least, if calls allow it, and the least then.
const FEW_REQUESTS: u64 = 20;
const FEWEST_REQUESTS: u64 = 4;

/// Most operations of the solo run that makes a profile, if they are enough for a few requests.
const PROFILE_OPERATIONS: usize = 100_000;

/// Most operations that the fewest requests may have, in [`MOST_OPERATIONS`].
const MOST_TIMES: f64 = 10.0;

/// One request in this many comes before those that count: queues fill, weft learns.
const WARM_UP: u64 = 4;

/// Longest run, in lengths of the usual one: for the fewest requests of a service that starves.
const LONGEST_RUNS: u64 = 8;

/// A file's steps are played over and over. This variation keeps them from being equal. It is
/// small, because a file with many steps has a variation of its own.
const REPEATED: Jitter = Jitter {
    device: 0.01,
    host: 0.05,
};

/// Seeds of the usual setting.
const SEEDS: [u64; 3] = [1, 2, 3];

/// Host time of the fast host, as a part of the file's: profilers slow a host by 1.3 to 2 times.
const FAST_HOST: f64 = 0.5;

/// Other kernel times of a job that was not measured on the service's GPU, as parts of the file's.
/// Estimates are right within a factor of two or so (`profiles/recorded/README.md`).
const KERNEL_TIMES: [f64; 2] = [0.5, 2.0];

/// Time slices that sources name, ns, around the usual 1.5 ms.
const SLICES_NS: [Ns; 2] = [1_024_000, 2_000_000];

/// The other contention of kernels side by side, in thousandths; the usual one is 300.
const CONTENTION: u32 = 1_500;

/// A way to share a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SharingWay {
    pub name: &'static str,
    pub mps: bool,
    rule: WayRule,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WayRule {
    Plain,
    Priorities,
    /// weft with a profile of the service, and of each batch job or of none.
    Weft {
        batch_profiles: bool,
    },
}

impl SharingWay {
    const fn new(name: &'static str, mps: bool, rule: WayRule) -> SharingWay {
        SharingWay { name, mps, rule }
    }

    fn control(self, device: &Settings) -> LaunchControl {
        match self.rule {
            WayRule::Plain => LaunchControl::Plain,
            WayRule::Priorities => LaunchControl::Own(Box::new(MpsPriority)),
            WayRule::Weft { .. } => LaunchControl::weft(Config::default(), device, 1.0),
        }
    }

    /// Whether weft has a profile of the service, or of each batch job.
    fn has_profile(self, service: bool) -> bool {
        matches!(self.rule, WayRule::Weft { batch_profiles } if service || batch_profiles)
    }
}

/// All ways, in the order of tables.
pub(super) const WAYS: [SharingWay; 7] = [
    SharingWay::new("time slices", false, WayRule::Plain),
    SharingWay::new("weft, batch unprofiled", false, WayRule::Weft { batch_profiles: false }),
    SharingWay::new("weft", false, WayRule::Weft { batch_profiles: true }),
    SharingWay::new("MPS", true, WayRule::Plain),
    SharingWay::new("MPS, priorities", true, WayRule::Priorities),
    SharingWay::new(
        "MPS, weft, batch unprofiled",
        true,
        WayRule::Weft { batch_profiles: false },
    ),
    SharingWay::new("MPS, weft", true, WayRule::Weft { batch_profiles: true }),
];

/// A figure in the usual setting, and its range over all settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct FigureRange {
    pub point: f64,
    pub low: f64,
    pub high: f64,
}

impl FigureRange {
    /// The interval of values, each with whether its setting is the usual one.
    pub(super) fn of(values: impl Iterator<Item = (bool, f64)>) -> Option<FigureRange> {
        let (mut sum, mut count) = (0.0, 0.0);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for (usual, value) in values {
            if usual {
                (sum, count) = (sum + value, count + 1.0);
            }
            (low, high) = (low.min(value), high.max(value));
        }
        (count > 0.0).then(|| FigureRange {
            point: sum / count,
            low,
            high,
        })
    }
}

/// Mean, p50 and p99.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct LatencyFigures<T> {
    pub mean: T,
    pub p50: T,
    pub p99: T,
}

impl LatencyFigures<f64> {
    fn of(latencies: &[Ns]) -> Option<LatencyFigures<f64>> {
        let mut sorted = latencies.to_vec();
        sorted.sort_unstable();
        Some(LatencyFigures {
            mean: sorted.iter().sum::<Ns>() as f64 / sorted.len().max(1) as f64,
            p50: quantile(&sorted, 0.5)? as f64,
            p99: quantile(&sorted, 0.99)? as f64,
        })
    }

    fn over(self, alone: LatencyFigures<f64>) -> LatencyFigures<f64> {
        let times = |with: f64, alone: f64| with / alone.max(1.0);
        LatencyFigures {
            mean: times(self.mean, alone.mean),
            p50: times(self.p50, alone.p50),
            p99: times(self.p99, alone.p99),
        }
    }
}

impl LatencyFigures<FigureRange> {
    fn of_settings(values: &[(bool, LatencyFigures<f64>)]) -> Option<LatencyFigures<FigureRange>> {
        let of = |pick: fn(&LatencyFigures<f64>) -> f64| {
            FigureRange::of(values.iter().map(|(usual, one)| (*usual, pick(one))))
        };
        Some(LatencyFigures {
            mean: of(|one| one.mean)?,
            p50: of(|one| one.p50)?,
            p99: of(|one| one.p99)?,
        })
    }
}

fn quantile(sorted: &[Ns], part: f64) -> Option<Ns> {
    let at = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied()
}

/// The gaps of a service in a solo run: times in which none of its kernels runs. Times in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct ServiceGaps<T> {
    /// Part of the time in which its kernels run.
    pub busy: T,
    /// Gaps of a request.
    pub per_request: T,
    pub median_ns: T,
    /// Nine gaps in ten are shorter.
    pub p90_ns: T,
    pub longest_ns: T,
    /// Parts of the idle time in gaps longer than 0.1, 1 and 10 ms.
    pub beyond_100us: T,
    pub beyond_1ms: T,
    pub beyond_10ms: T,
    /// The longest gap of a request: of the middle one, and in nine of ten requests.
    pub room_ns: T,
    pub room_most_ns: T,
}

impl ServiceGaps<f64> {
    fn of(run: &MachineRun, warm_up: usize) -> Option<ServiceGaps<f64>> {
        let arrivals = run.jobs.first()?.arrivals.get(warm_up..)?;
        let begin = *arrivals.first()?;
        let (mut lengths, mut longest) = (Vec::new(), vec![0; arrivals.len()]);
        let (mut end, mut ran, mut request) = (begin, 0, 0);
        for piece in run.pieces.iter().filter(|piece| piece.end > begin) {
            // A gap belongs to the request before which or in which it begins.
            while arrivals.get(request + 1).is_some_and(|next| *next <= end) {
                request += 1;
            }
            let gap = piece.start.saturating_sub(end);
            if gap > 0 {
                lengths.push(gap);
                longest[request] = gap.max(longest[request]);
            }
            ran += piece.end.saturating_sub(end.max(piece.start));
            end = end.max(piece.end);
        }
        // The last request is cut off.
        longest.pop();
        longest.sort_unstable();
        lengths.sort_unstable();
        let idle = lengths.iter().sum::<Ns>().max(1) as f64;
        let beyond = |edge: Ns| lengths.iter().filter(|gap| **gap > edge).sum::<Ns>() as f64 / idle;
        let of = |part| quantile(&lengths, part).unwrap_or(0) as f64;
        Some(ServiceGaps {
            busy: ran as f64 / end.saturating_sub(begin).max(1) as f64,
            per_request: lengths.len() as f64 / arrivals.len() as f64,
            median_ns: of(0.5),
            p90_ns: of(0.9),
            longest_ns: of(1.0),
            beyond_100us: beyond(100_000),
            beyond_1ms: beyond(1_000_000),
            beyond_10ms: beyond(10_000_000),
            room_ns: quantile(&longest, 0.5)? as f64,
            room_most_ns: quantile(&longest, 0.1)? as f64,
        })
    }
}

impl ServiceGaps<FigureRange> {
    fn of_settings(values: &[(bool, ServiceGaps<f64>)]) -> Option<ServiceGaps<FigureRange>> {
        let of =
            |pick: fn(&ServiceGaps<f64>) -> f64| FigureRange::of(values.iter().map(|(usual, one)| (*usual, pick(one))));
        Some(ServiceGaps {
            busy: of(|one| one.busy)?,
            per_request: of(|one| one.per_request)?,
            median_ns: of(|one| one.median_ns)?,
            p90_ns: of(|one| one.p90_ns)?,
            longest_ns: of(|one| one.longest_ns)?,
            beyond_100us: of(|one| one.beyond_100us)?,
            beyond_1ms: of(|one| one.beyond_1ms)?,
            beyond_10ms: of(|one| one.beyond_10ms)?,
            room_ns: of(|one| one.room_ns)?,
            room_most_ns: of(|one| one.room_most_ns)?,
        })
    }
}

/// A way's figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct WayFigures {
    pub way: &'static str,
    /// Whether the jobs share the device under MPS.
    pub mps: bool,
    /// Latency of the service over that of its solo run; `None` if a setting answered no request.
    pub latency: Option<LatencyFigures<FigureRange>>,
    /// Speed of each batch job, as a part of its solo run's; `None` if it runs no kernels.
    pub batch: Vec<Option<FigureRange>>,
    /// Fewest requests that a setting answered.
    pub requests: usize,
}

/// A prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Prediction {
    /// Latency of the service in a solo run, ns.
    pub solo_ns: LatencyFigures<FigureRange>,
    /// Fewest requests of a solo run that count.
    pub requests: usize,
    /// Length of a run, ns of virtual time, if its requests fit.
    pub run_ns: Ns,
    pub gaps: ServiceGaps<FigureRange>,
    pub ways: Vec<WayFigures>,
}

/// One way in one setting.
#[derive(Debug, Clone, Default)]
struct WayRun {
    latency: Option<LatencyFigures<f64>>,
    batch: Vec<Option<f64>>,
    requests: usize,
}

/// One setting.
#[derive(Debug, Clone)]
struct SettingRun {
    usual: bool,
    mps: bool,
    alone: LatencyFigures<f64>,
    requests: usize,
    gaps: ServiceGaps<f64>,
    ways: Vec<(SharingWay, WayRun)>,
}

#[derive(Debug, Clone, Copy)]
struct PlaySetting {
    device: Settings,
    mps: bool,
    host: f64,
    /// Part of the kernel times of unsure jobs: of the service, and of batch jobs.
    kernels: [f64; 2],
    seed: u64,
    usual: bool,
}

/// Length of a run.
#[derive(Debug, Clone, Copy)]
struct RunLength {
    /// Shortest time, ns.
    ns: Ns,
    /// Longest time, ns.
    longest: Ns,
    /// Fewest requests.
    requests: u64,
}

/// Jobs to predict.
#[derive(Debug, Clone)]
pub(super) struct PlayedSet {
    pub service: Program,
    pub batch: Vec<Program>,
    /// For the service and each batch job: whether its kernel times were not measured on the
    /// service's GPU.
    pub unsure: Vec<bool>,
    pub arrivals: ArrivalPattern,
    /// The device's SMs.
    pub limits: SmLimits,
}

impl PlayedSet {
    /// Plays all settings on this many threads. `watch` is called with the number of settings that
    /// have ended, and that of all.
    pub fn predict(&self, threads: usize, watch: impl Fn(usize, usize) + Sync) -> Result<Prediction, PlayError> {
        let settings = self.settings();
        let length = self
            .length(&settings)
            .ok_or_else(|| PlayError::TooLong(self.service.name.clone()))?;
        let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        watch(0, settings.len());
        let work = || {
            let mut out = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(setting) = settings.get(number) else { break };
                out.push((number, self.play(setting, length)));
                watch(ended.fetch_add(1, Ordering::Relaxed) + 1, settings.len());
            }
            out
        };
        let mut runs = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.min(settings.len())).map(|_| scope.spawn(work)).collect();
            let mut runs = work();
            for other in others {
                runs.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            runs
        });
        // Sums do not depend on which thread was faster.
        runs.sort_by_key(|(number, _)| *number);
        let runs: Result<Vec<SettingRun>, PlayError> = runs.into_iter().map(|(_, run)| run).collect();
        prediction(&runs?, self.batch.len(), length.ns).ok_or_else(|| PlayError::NoWork(self.service.name.clone()))
    }

    fn settings(&self) -> Vec<PlaySetting> {
        let usual = |mps: bool| PlaySetting {
            device: Settings {
                mode: match mps {
                    true => Mode::MpsShared(self.limits),
                    false => Mode::TimeSlice,
                },
                ..Settings::default()
            },
            mps,
            host: 1.0,
            kernels: [1.0; 2],
            seed: SEEDS[0],
            usual: true,
        };
        let mut out = Vec::new();
        for mps in [false, true] {
            out.extend(SEEDS.map(|seed| PlaySetting { seed, ..usual(mps) }));
            let other = PlaySetting {
                usual: false,
                ..usual(mps)
            };
            out.push(PlaySetting {
                host: FAST_HOST,
                ..other
            });
            let (service, batch) = self.unsure.split_at(1);
            for part in KERNEL_TIMES {
                let kernels = [[part, 1.0], [1.0, part]];
                let unsure = [service, batch].map(|jobs| jobs.contains(&true));
                let unsure = kernels.into_iter().zip(unsure).filter(|(_, unsure)| *unsure);
                out.extend(unsure.map(|(kernels, _)| PlaySetting { kernels, ..other }));
            }
            if self.batch.is_empty() {
                // Time slices and MPS differ only if there is another job.
                return out;
            }
            let more: Vec<Settings> = match mps {
                false => SLICES_NS.map(|slice| Settings { slice, ..other.device }).to_vec(),
                true => {
                    let contended = SmLimits {
                        contention: CONTENTION,
                        ..self.limits
                    };
                    [Mode::MpsShared(contended), Mode::Mps]
                        .map(|mode| Settings { mode, ..other.device })
                        .to_vec()
                }
            };
            out.extend(more.into_iter().map(|device| PlaySetting { device, ..other }));
        }
        out
    }

    /// Length of a run, such that all runs together have [`MOST_OPERATIONS`]; `None` if a few
    /// requests have far more.
    fn length(&self, settings: &[PlaySetting]) -> Option<RunLength> {
        let request = match &self.arrivals {
            ArrivalPattern::Poisson { mean } => *mean,
            arrivals => pace(&self.service, arrivals),
        };
        let rate = |program: &Program, time: Ns| {
            program.operations() as f64 / program.steps.len().max(1) as f64 / time.max(1) as f64
        };
        let closed = ArrivalPattern::Closed { think: None };
        let batch = self.batch.iter().map(|program| rate(program, pace(program, &closed)));
        let together = rate(&self.service, request) + batch.sum::<f64>();
        let runs = |setting: &PlaySetting| {
            let ways = WAYS.iter().filter(|way| way.mps == setting.mps);
            1 + usize::from(!self.batch.is_empty()) * ways.count()
        };
        let runs = settings.iter().map(runs).sum::<usize>();
        let affordable = MOST_OPERATIONS / (together * runs as f64);
        let requests = affordable / request.max(1) as f64;
        if requests * MOST_TIMES < FEWEST_REQUESTS as f64 {
            return None;
        }
        let ns = affordable.min(MOST_REQUESTS * request as f64).max(1.0) as Ns;
        let requests = (requests as u64).clamp(FEWEST_REQUESTS, FEW_REQUESTS);
        Some(RunLength {
            ns,
            longest: ns.max(requests * request).saturating_mul(LONGEST_RUNS),
            requests,
        })
    }

    fn play(&self, setting: &PlaySetting, length: RunLength) -> Result<SettingRun, PlayError> {
        let job = |place: usize, program: &Program, arrivals: &ArrivalPattern| {
            let kernels = match self.unsure[place] {
                true => setting.kernels[place.min(1)],
                false => 1.0,
            };
            let program = program.clone().with_host_time(setting.host).with_kernel_time(kernels);
            let priority = if place == 0 { 0 } else { 5 };
            PlayedJob {
                jitter: REPEATED,
                arrivals: arrivals.clone(),
                ..PlayedJob::new(&program.name.clone(), priority, Arc::new(program))
            }
        };
        let closed = ArrivalPattern::Closed { think: None };
        let mut jobs = vec![job(0, &self.service, &self.arrivals)];
        jobs.extend(
            self.batch
                .iter()
                .zip(1..)
                .map(|(program, place)| job(place, program, &closed)),
        );
        let run = |jobs: Vec<PlayedJob>, control, place: usize, requests: u64| {
            MachineSetup {
                requests,
                least: length.ns,
                longest: length.longest,
                first_number: place,
                ..MachineSetup::new(setting.device, control, jobs, setting.seed)
            }
            .play()
        };
        let warm_up = (length.requests / WARM_UP) as usize;
        let service = run(vec![jobs[0].clone()], LaunchControl::Plain, 0, length.requests)?;
        let alone = counted(&service, warm_up);
        let no_work = || PlayError::NoWork(self.service.name.clone());
        let mut speeds = Vec::new();
        for (place, job) in jobs.iter().enumerate().skip(1) {
            speeds.push(speed(&run(vec![job.clone()], LaunchControl::Plain, place, 1)?, 0));
        }
        let mut ways = Vec::new();
        let shares = !self.batch.is_empty();
        // Both ways of weft use them.
        let mut profiles = Vec::new();
        for (place, job) in jobs.iter().enumerate().filter(|_| shares) {
            let requests = PROFILE_OPERATIONS / (job.program.operations() / job.program.steps.len()).max(1);
            let requests = (requests as u64).clamp(FEWEST_REQUESTS, PROFILE_REQUESTS);
            let profile = solo_profile(job, place, setting.device, Hosts::default(), setting.seed, requests)?;
            profiles.push(ProfileSource::Given(Arc::new(profile)));
        }
        for way in WAYS.into_iter().filter(|way| shares && way.mps == setting.mps) {
            for (place, job) in jobs.iter_mut().enumerate() {
                job.profile = match way.has_profile(place == 0) {
                    true => profiles[place].clone(),
                    false => ProfileSource::Absent,
                };
            }
            let shared = run(jobs.clone(), way.control(&setting.device), 0, length.requests)?;
            // The same requests on both sides.
            let with = counted(&shared, warm_up);
            let both = with.len().min(alone.len());
            let latency = LatencyFigures::of(&with[..both]).zip(LatencyFigures::of(&alone[..both]));
            let part = |(at, alone): (usize, &f64)| (*alone > 0.0).then(|| speed(&shared, at + 1) / alone);
            let run = WayRun {
                latency: latency.map(|(with, alone)| with.over(alone)),
                batch: speeds.iter().enumerate().map(part).collect(),
                requests: both,
            };
            ways.push((way, run));
        }
        Ok(SettingRun {
            usual: setting.usual,
            mps: setting.mps,
            alone: LatencyFigures::of(alone).ok_or_else(no_work)?,
            requests: alone.len(),
            gaps: ServiceGaps::of(&service, warm_up).ok_or_else(no_work)?,
            ways,
        })
    }
}

/// Approximate mean time between two requests or iterations of a solo run, ns.
fn pace(program: &Program, arrivals: &ArrivalPattern) -> Ns {
    let own = || program.steps.iter().map(|step| step.think).sum::<Ns>() / program.steps.len().max(1) as Ns;
    let think = match arrivals {
        ArrivalPattern::Closed { think } => think.unwrap_or_else(own),
        _ => 0,
    };
    program.usual_time() + think
}

/// The first job's latencies that count.
fn counted(run: &MachineRun, warm_up: usize) -> &[Ns] {
    run.jobs[0].latencies.get(warm_up..).unwrap_or_default()
}

/// Kernel time of a job, as in a solo run, in each ns of the run.
fn speed(run: &MachineRun, job: usize) -> f64 {
    let pieces = run.pieces.iter().filter(|piece| usize::from(piece.job) == job);
    pieces.map(|piece| piece.alone).sum::<Ns>() as f64 / run.span.max(1) as f64
}

fn prediction(runs: &[SettingRun], batch: usize, length: Ns) -> Option<Prediction> {
    let sliced = || runs.iter().filter(|run| !run.mps);
    let ways = WAYS.into_iter().filter_map(|way| {
        let of: Vec<(bool, &WayRun)> = runs
            .iter()
            .flat_map(|run| run.ways.iter().map(move |(one, figures)| (run.usual, one, figures)))
            .filter_map(|(usual, one, figures)| (*one == way).then_some((usual, figures)))
            .collect();
        let latencies: Option<Vec<_>> = of.iter().map(|(usual, run)| Some((*usual, run.latency?))).collect();
        Some(WayFigures {
            way: way.name,
            mps: way.mps,
            latency: latencies.and_then(|values| LatencyFigures::of_settings(&values)),
            batch: (0..batch)
                .map(|job| {
                    let values: Option<Vec<_>> =
                        of.iter().map(|(usual, run)| Some((*usual, run.batch[job]?))).collect();
                    FigureRange::of(values?.into_iter())
                })
                .collect(),
            requests: of.iter().map(|(_, run)| run.requests).min()?,
        })
    });
    Some(Prediction {
        solo_ns: LatencyFigures::of_settings(&sliced().map(|run| (run.usual, run.alone)).collect::<Vec<_>>())?,
        requests: sliced().map(|run| run.requests).min()?,
        run_ns: length,
        gaps: ServiceGaps::of_settings(&sliced().map(|run| (run.usual, run.gaps)).collect::<Vec<_>>())?,
        ways: ways.collect(),
    })
}
