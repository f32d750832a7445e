// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs as TOML files. An unknown key is an error that names its line.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use weft_engine::{Mode, Settings, SmLimits};
use weft_player::{ArrivalPattern, Hosts, Jitter, PlayedJob, ProfileSource, Program};
use weft_profiles::Store;
use weft_trace_format::Trace;

use crate::calibrated::CalibratedDevice;
use crate::compare::Fixture;
use crate::generate::{self, shapes};
use crate::rule::Rule;
use crate::{Ns, US};

/// The error for an unusable scenario. One line: place, problem, remedy.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("{path}: {why}", path = .0.display(), why = .1)]
    Unreadable(PathBuf, std::io::Error),
    /// A value in the file is impossible.
    #[error("{path}:{line}: {what}", path = .0.display(), line = .1, what = .2)]
    Wrong(PathBuf, usize, String),
    /// A trace that it names cannot be used.
    #[error("{path}: {what}", path = .0.display(), what = .1)]
    Trace(PathBuf, String),
    /// A profile that it names cannot be used.
    #[error("{path}: {what}", path = .0.display(), what = .1)]
    Profile(PathBuf, String),
}

/// A scenario.
#[derive(Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The jobs; the first is the service under study.
    pub jobs: Vec<PlayedJob>,
    /// The rules to compare.
    pub rules: Vec<Rule>,
    /// One bench for each seed.
    pub benches: Vec<Fixture>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default = "all_rules")]
    policies: Vec<String>,
    #[serde(default = "one_seed")]
    seeds: Vec<u64>,
    #[serde(default = "thousand")]
    requests: u64,
    #[serde(default = "twenty")]
    warmup: u64,
    device: DeviceTable,
    #[serde(default)]
    host: HostTable,
    #[serde(default)]
    job: Vec<JobFile>,
}

fn all_rules() -> Vec<String> {
    Rule::ALL.iter().map(Rule::to_string).collect()
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

fn thousand() -> u64 {
    1_000
}

fn yes() -> bool {
    true
}

fn twenty() -> u64 {
    20
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceTable {
    mode: ModeName,
    slice_us: Option<u64>,
    switch_us: Option<u64>,
    launch_latency_us: Option<u64>,
    /// The factor by which it is slower than a real one, like the simulated GPU. Figures are wall
    /// time then.
    dilation: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    /// Whether the broker has a core to spin on.
    spin: Option<bool>,
    /// How long background jobs spin at the gate.
    gate_spin_us: Option<u64>,
}

/// The way in which jobs share the device.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ModeName {
    Mps,
    MpsShared,
    MpsSharedH100,
    TimeSliced,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobFile {
    name: String,
    priority: u8,
    trace: Option<PathBuf>,
    generator: Option<Generator>,
    arrivals: Option<ArrivalsFile>,
    device_jitter: Option<f64>,
    host_jitter: Option<f64>,
    #[serde(default = "yes")]
    profiled: bool,
    slowdown: Option<f64>,
    slo_us: Option<u64>,
    at_least: Option<f64>,
    #[serde(default)]
    tokens: bool,
    /// weft's profile of the job, in place of the one from a run in the lab.
    profile: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "shape")]
enum Generator {
    Service {
        kernels: u32,
        kernel_us: u64,
        think_us: u64,
    },
    Chatty {
        kernels: u32,
        kernel_us: u64,
        between_us: u64,
        think_us: u64,
    },
    Training {
        kernels_us: Vec<u64>,
        host_us: u64,
        think_us: u64,
    },
    Decode {
        kernels: usize,
        kernel_us: u64,
        sampling_us: u64,
        tokens: u32,
        think_us: u64,
    },
    Stalling {
        kernels_us: Vec<u64>,
        think_us: u64,
        period: usize,
        stall_us: u64,
    },
    DecodeWithGraphs(Drawn),
    Bursty(Drawn),
    LongKernels(Drawn),
    LoaderStalls(Drawn),
    SyncsAfterEveryKernel(Drawn),
}

/// A shape of [`generate::shapes`]: a model drawn from a seed, and `steps` different requests or
/// iterations of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Drawn {
    seed: u64,
    steps: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "process")]
enum ArrivalsFile {
    Closed { think_us: Option<u64> },
    Poisson { mean_us: u64 },
    Bursts { size: u64, mean_us: u64 },
    Listed { us: Vec<f64> },
}

impl ArrivalsFile {
    /// The arrivals on a device that is `dilation` times slower.
    fn arrivals(&self, dilation: f64) -> ArrivalPattern {
        let time = |us: f64| (us * dilation * US as f64) as Ns;
        match self {
            ArrivalsFile::Closed { think_us } => ArrivalPattern::Closed {
                think: think_us.map(|us| time(us as f64)),
            },
            ArrivalsFile::Poisson { mean_us } => ArrivalPattern::Poisson {
                mean: time(*mean_us as f64),
            },
            ArrivalsFile::Bursts { size, mean_us } => ArrivalPattern::Bursts {
                size: *size,
                mean: time(*mean_us as f64),
            },
            ArrivalsFile::Listed { us } => ArrivalPattern::Listed(us.iter().map(|us| time(*us)).collect()),
        }
    }
}

impl Generator {
    fn trace(&self) -> Trace {
        let all = |times: &[u64]| times.iter().map(|time| time * US).collect::<Vec<Ns>>();
        match self {
            Generator::Service {
                kernels,
                kernel_us,
                think_us,
            } => generate::service(*kernels, kernel_us * US, think_us * US),
            Generator::Chatty {
                kernels,
                kernel_us,
                between_us,
                think_us,
            } => generate::chatty(*kernels, kernel_us * US, between_us * US, think_us * US),
            Generator::Training {
                kernels_us,
                host_us,
                think_us,
            } => generate::training(&all(kernels_us), host_us * US, think_us * US),
            Generator::Decode {
                kernels,
                kernel_us,
                sampling_us,
                tokens,
                think_us,
            } => generate::decode(*kernels, kernel_us * US, sampling_us * US, *tokens, think_us * US),
            Generator::Stalling {
                kernels_us,
                think_us,
                period,
                stall_us,
            } => generate::stalling(&all(kernels_us), think_us * US, *period, stall_us * US),
            Generator::DecodeWithGraphs(of) => shapes::decode_with_graphs(of.seed, of.steps),
            Generator::Bursty(of) => shapes::bursty(of.seed, of.steps),
            Generator::LongKernels(of) => shapes::long_kernels(of.seed, of.steps),
            Generator::LoaderStalls(of) => shapes::loader_stalls(of.seed, of.steps),
            Generator::SyncsAfterEveryKernel(of) => shapes::syncs_after_every_kernel(of.seed, of.steps),
        }
    }
}

impl Scenario {
    /// Reads a file. Traces that it names are relative to its folder, unless their paths are
    /// absolute. Device times that it does not name are those of `device`.
    pub fn load(path: &Path, device: &CalibratedDevice) -> Result<Scenario, ScenarioError> {
        let text = std::fs::read_to_string(path).map_err(|error| ScenarioError::Unreadable(path.to_owned(), error))?;
        Scenario::parse(&text, path, device)
    }

    /// The scenario of a text; `path` is its file.
    pub fn parse(text: &str, path: &Path, device: &CalibratedDevice) -> Result<Scenario, ScenarioError> {
        let wrong = |line: usize, what: String| ScenarioError::Wrong(path.to_owned(), line, what);
        let line_of = |needle: &str| {
            text.lines()
                .position(|line| line.contains(needle))
                .map_or(1, |at| at + 1)
        };
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            wrong(line, error.message().lines().collect::<Vec<&str>>().join(" "))
        })?;
        let rules = file
            .policies
            .iter()
            .map(|name| {
                name.parse::<Rule>()
                    .map_err(|error| wrong(line_of(name), error.to_string()))
            })
            .collect::<Result<Vec<Rule>, ScenarioError>>()?;
        if file.job.len() < 2 {
            return Err(wrong(
                1,
                "two [[job]] tables at least: the service, then who shares with it".into(),
            ));
        }
        if file.requests == 0 || file.seeds.is_empty() {
            return Err(wrong(1, "no requests or no seeds: nothing to run".into()));
        }
        let dilation = file.device.dilation.unwrap_or(1.0);
        if !(1.0..=1000.0).contains(&dilation) {
            return Err(wrong(line_of("dilation"), "a dilation is a factor of 1 to 1000".into()));
        }
        let mut jobs = Vec::new();
        for job in &file.job {
            let line = line_of(&format!("\"{}\"", job.name));
            jobs.push(Scenario::job(job, dilation, path, line)?);
        }
        if jobs.iter().any(|job| job.priority < jobs[0].priority) {
            return Err(wrong(
                1,
                "the first job is the service: no other may have a lower priority number".into(),
            ));
        }
        let first = jobs[0].priority;
        if jobs
            .iter()
            .skip_while(|job| job.priority == first)
            .any(|job| job.priority == first)
        {
            return Err(wrong(
                1,
                "jobs of the service's own priority stand right behind it, before those of others".into(),
            ));
        }
        if jobs.iter().all(|job| job.priority == first) {
            return Err(wrong(
                1,
                "all jobs have one priority: nobody fills anybody's gaps".into(),
            ));
        }
        let own = &file.device;
        for (key, value, changed) in [
            ("slice_us", own.slice_us, "slice_ns"),
            ("switch_us", own.switch_us, "switch_ns"),
            ("launch_latency_us", own.launch_latency_us, "launch_latency_ns"),
        ] {
            if value.is_some() && device.is_changed(changed) {
                let what = format!("{key} wins over --set {changed}: take {key} out of this file, or leave out --set");
                return Err(wrong(line_of(key), what));
            }
        }
        let calibrated = device.settings(match own.mode {
            ModeName::Mps => Mode::Mps,
            ModeName::MpsShared => Mode::MpsShared(SmLimits::A100_LIKE),
            ModeName::MpsSharedH100 => Mode::MpsShared(SmLimits::H100_LIKE),
            ModeName::TimeSliced => Mode::TimeSlice,
        });
        let us = |value: Option<u64>, otherwise: Ns| {
            let time = value.map_or(otherwise, |us| us * US);
            (time as f64 * dilation) as Ns
        };
        let settings = Settings {
            slice: us(own.slice_us, calibrated.slice),
            switch: us(own.switch_us, calibrated.switch),
            launch_latency: us(own.launch_latency_us, calibrated.launch_latency),
            kernel_gap: (calibrated.kernel_gap as f64 * dilation) as Ns,
            ..calibrated
        };
        let usual = device.hosts(dilation);
        let hosts = Hosts {
            spin: file.host.spin.unwrap_or(usual.spin),
            gate_spin: file.host.gate_spin_us.map_or(usual.gate_spin, |us| us * US),
            ..usual
        };
        let bench = |seed: &u64| Fixture {
            device: settings,
            hosts,
            seed: *seed,
            requests: file.requests,
            warmup: file.warmup,
            tuning: Default::default(),
        };
        Ok(Scenario {
            name: file.name,
            jobs,
            rules,
            benches: file.seeds.iter().map(bench).collect(),
        })
    }

    fn job(job: &JobFile, dilation: f64, path: &Path, line: usize) -> Result<PlayedJob, ScenarioError> {
        let wrong = |what: &str| ScenarioError::Wrong(path.to_owned(), line, format!("job {:?}: {what}", job.name));
        let beside = |file: &Path| path.parent().unwrap_or(Path::new(".")).join(file);
        let trace = match (&job.trace, &job.generator) {
            (Some(trace), None) => {
                let at = beside(trace);
                Trace::load(&at).map_err(|error| ScenarioError::Trace(path.to_owned(), error.to_string()))?
            }
            (None, Some(generator)) => generator.trace(),
            _ => return Err(wrong("either `trace` or `generator`, one of them")),
        };
        if job.priority > 9 {
            return Err(wrong("a priority is 0 (most important) to 9"));
        }
        if trace.launches() == 0 {
            return Err(wrong("launches nothing"));
        }
        let default = Jitter::default();
        let program = Program::of(&trace)
            .map_err(|error| wrong(&error.to_string()))?
            .dilated(dilation);
        let mut made = PlayedJob::new(&job.name, job.priority, Arc::new(program));
        made.jitter = Jitter {
            device: job.device_jitter.unwrap_or(default.device),
            host: job.host_jitter.unwrap_or(default.host),
        };
        if job.slowdown.is_some_and(|slowdown| !(0.0..=1.0).contains(&slowdown)) {
            return Err(wrong("a slowdown is a part of its time: 0.02 is 2 %"));
        }
        if job.at_least.is_some_and(|part| !(0.0..=1.0).contains(&part)) {
            return Err(wrong("at_least is a part of the device's time: 0.3 is 30 %"));
        }
        made.slowdown = job.slowdown;
        made.at_least = job.at_least;
        made.slo = job.slo_us.map(|us| (us as f64 * dilation) as Ns * US);
        made.tokens = job.tokens;
        if let Some(file) = &job.profile {
            let file = beside(file);
            let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            let loaded = Store::at(file.parent().unwrap_or(Path::new("."))).load(name);
            let profile = loaded.map_err(|error| ScenarioError::Profile(path.to_owned(), error.to_string()))?;
            made.profile = ProfileSource::Given(Arc::new(profile));
        }
        if !job.profiled {
            made.profile = ProfileSource::Absent;
        }
        if let Some(arrivals) = &job.arrivals {
            made.arrivals = arrivals.arrivals(dilation);
        }
        Ok(made)
    }
}
