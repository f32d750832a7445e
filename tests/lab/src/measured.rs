//! The lab on measured traces: `scripts/lab measured`.
//!
//! The recordings of `profiles/recorded` have estimated kernel times, one sequence of kernels each
//! and a wait at the end of each request. Real services and trainings differ in all three. This
//! command plays traces that real GPUs wrote, and changes the recordings where they flatter.
//!
//! | kind | the service | beside it |
//! |---|---|---|
//! | `measured` | each measured service | each measured training of one GPU generation |
//! | `distributed` | the same | trainings whose kernels wait for peers |
//! | `crossed` | each measured service | two trainings of one GPU each, of any generation |
//! | `measured+recorded` | each measured service | a recorded training, two for each |
//! | `recorded+measured` | each recorded service | a measured training, two for each |
//! | `recorded+distributed` | each recorded service | a distributed training, two for each |
//! | `think` | recorded services with [`THINK_MS`] between requests | recorded trainings |
//! | `no-wait` | recorded services whose requests end without a wait | recorded trainings |
//! | `lag` | the same, waiting for the request before | recorded trainings |
//! | `differ` | recorded services whose requests begin with another kernel each | recorded trainings |
//!
//! The first two kinds also run with requests at random and on hosts that are twice as fast.
//!
//! A measured service whose requests end without a wait keeps its own pace. The others get
//! [`pairs::THINK_NS`] between requests.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde::Serialize;
use weft_engine::Mode;
use weft_player::job::{JobOp, NONE, Play};
use weft_player::{PlayedJob, Program};
use weft_trace_format::{AwaitedWork, Call, Trace};

use crate::aims::Aim;
use crate::calibrated::{CalibrationOptions, LabSetting, PlayedDevice};
use crate::compare::Tuning;
use crate::pairs::{self, Case, CasePlan, CaseRow, HeldBackCases, Model};
use crate::report;
use crate::rule::Rule;
use crate::seeds::geometric;
use crate::{MS, Ns};

/// Rules if none is requested: weft, the simple ones and the device's own.
const RULES: [Rule; 5] = [Rule::WEFT, Rule::Tally, Rule::One, Rule::MpsPriority, Rule::Default];

/// Milliseconds between requests, kind `think`. Recorded kernels take 3.2 ms at most, measured ones
/// up to 42.
pub const THINK_MS: [u64; 7] = [1, 2, 4, 8, 12, 20, 50];

/// Longest virtual time of a figure: long requests are fewer.
const LONGEST_NS: Ns = 60_000 * MS;

/// Fewest requests of a figure, however long they are.
const FEWEST: u64 = 24;

/// Load of services whose requests come at random.
const LOAD: f64 = 0.4;

/// Hosts of kind `measured` and `distributed`: as in the file, where a profiler slowed them by 1.3
/// to 2 times, and twice as fast.
const HOST_TIMES: [f64; 2] = [1.0, 0.5];

/// Recorded services and trainings of kinds `think`, `no-wait`, `lag` and `differ`.
const SERVICES: [&str; 6] = ["lstm", "vgg19", "resnet50", "bert_base", "unet", "inception_v3"];
const TRAININGS: [&str; 3] = ["lstm", "resnet50", "densenet201"];

/// Kinds, in the order of tables.
pub const KINDS: [&str; 10] = [
    "measured",
    "distributed",
    "crossed",
    "measured+recorded",
    "recorded+measured",
    "recorded+distributed",
    "think",
    "no-wait",
    "lag",
    "differ",
];

/// Measured traces, and recordings changed where they flatter: services beside trainings in virtual
/// time.
///
///   scripts/lab measured
///   scripts/lab measured --quick --device mps
///   scripts/lab measured --kind measured --rule weft --worst 10 --json target/lab/measured.json
///   scripts/lab measured --check
#[derive(Debug, Parser)]
#[command(name = "scripts/lab measured", verbatim_doc_comment)]
struct MeasuredOptions {
    /// Folder of measured traces (.trace, also in its folder `weft`). Without it: WEFT_TRACES, then
    /// ../shared/data/traces
    #[arg(long, value_name = "FOLDER")]
    traces: Option<PathBuf>,
    /// Folder of weft's recordings
    #[arg(long, value_name = "FOLDER", default_value = "profiles/recorded/simulated-A100")]
    recorded: PathBuf,
    /// Only these kinds of cases
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(KINDS))]
    kind: Vec<String>,
    /// Only mps, mps-shared (an A100's SMs), mps-shared-h100 or time-sliced. Default: mps,
    /// mps-shared and time-sliced
    #[arg(long)]
    device: Option<String>,
    /// With mps-shared: per cent that blocks take longer while others' blocks have the rest of the
    /// device, in place of 30
    #[arg(long, value_name = "PERCENT", requires = "device")]
    contention: Option<u32>,
    /// Only these rules. Default: weft, tally, one, mps-priority and default
    #[arg(long)]
    rule: Vec<Rule>,
    /// Only jobs of these names
    #[arg(long)]
    job: Vec<String>,
    /// Requests for a figure: fewer where 60 s of virtual time end before, but 24 at least
    #[arg(long, default_value_t = 1_000)]
    requests: u64,
    /// 60 requests a figure, the first seed
    #[arg(long)]
    quick: bool,
    /// Seeds: every case runs with each
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    seeds: Vec<u64>,
    /// Threads to run on; 0 means all cores
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print weft's worst cases of each group
    #[arg(long, default_value_t = 3)]
    worst: usize,
    /// Also print why gap time was not filled
    #[arg(long)]
    why: bool,
    /// Try another `risk` of policy weft
    #[arg(long)]
    risk: Option<f64>,
    /// Exit 1 if an aim is missed, 2 if none could be judged
    #[arg(long)]
    check: bool,
    /// All results, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    calibration: CalibrationOptions,
}

/// Runs the command.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = MeasuredOptions::parse_from(std::iter::once("measured".to_string()).chain(arguments));
    match run(&options) {
        Ok(aims) if options.check && aims.iter().any(|aim| aim.is_judged() && !aim.met) => ExitCode::FAILURE,
        Ok(aims) if options.check && !aims.iter().any(Aim::is_judged) => ExitCode::from(2),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft-lab measured: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// GPUs whose kernel times may stand side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Generation {
    /// H100 and later.
    Hopper,
    /// A100.
    Ampere,
    /// All others: V100, T4, consumer cards.
    Older,
}

impl Generation {
    /// The generation of a GPU, by its name or by the trace's name if the GPU is unknown.
    fn of(trace: &Trace) -> Generation {
        let name = format!("{} {}", trace.gpu.name, trace.name).to_uppercase();
        let has = |names: &[&str]| names.iter().any(|part| name.contains(part));
        if has(&["H100", "H200", "H800", "H20", "GH200", "B100", "B200", "B300"]) {
            return Generation::Hopper;
        }
        match has(&["A100", "A800", "A30"]) {
            true => Generation::Ampere,
            false => Generation::Older,
        }
    }
}

/// Parts of the names of kernels that wait for peers on other GPUs.
const PEERS: [&str; 7] = [
    "nccl",
    "deep_ep",
    "::ep::",
    "nvshmem",
    "cross_device_reduce",
    "all_reduce",
    "mscclpp",
];

/// The part of the device time of a trace in kernels that wait for peers.
fn peers_share(trace: &Trace) -> f64 {
    let (mut peers, mut all) = (0, 0);
    for operation in trace.steps.iter().flat_map(|step| &step.operations) {
        if let Call::Launch { kernel, duration, .. } = operation.call {
            let name = trace.kernels[kernel as usize].id.symbol.to_lowercase();
            all += duration;
            if PEERS.iter().any(|part| name.contains(part)) {
                peers += duration;
            }
        }
    }
    peers as f64 / all.max(1) as f64
}

/// Whether each request of the trace ends with a wait for its last work.
fn awaits_its_end(trace: &Trace) -> bool {
    trace.steps.iter().all(|step| {
        let is_work = |call: &Call| matches!(call, Call::Launch { .. } | Call::Copy { .. });
        let last = step.operations.iter().rposition(|operation| is_work(&operation.call));
        let Some(last) = last else { return false };
        let (stream, waits) = match step.operations[last].call {
            Call::Launch { stream, .. } => (stream, false),
            Call::Copy { stream, waits, .. } => (stream, waits),
            _ => return false,
        };
        let behind = &step.operations[last..];
        let recorded = |event| {
            behind
                .iter()
                .any(|operation| operation.call == Call::Record { event, stream })
        };
        waits
            || behind.iter().any(|operation| match operation.call {
                Call::Sync(AwaitedWork::Event(event)) => recorded(event),
                Call::Sync(AwaitedWork::Stream(awaited)) => awaited == stream,
                Call::Sync(_) => true,
                _ => false,
            })
    })
}

/// A measured job.
#[derive(Debug)]
struct MeasuredJob {
    name: String,
    generation: Generation,
    distributed: bool,
    own_pace: bool,
    program: Arc<Program>,
}

impl MeasuredJob {
    fn of(name: &str, trace: &Trace) -> Result<MeasuredJob> {
        /// A training of which less than this part waits for peers counts as one of one GPU.
        const LEAST_PEERS: f64 = 0.01;
        Ok(MeasuredJob {
            name: name.to_string(),
            generation: Generation::of(trace),
            distributed: peers_share(trace) > LEAST_PEERS,
            own_pace: !awaits_its_end(trace),
            program: Arc::new(Program::of(trace).with_context(|| name.to_string())?),
        })
    }
}

/// Where measured traces lie: as given, then [`pairs::models`]'s folder there.
fn folder(given: Option<&Path>) -> Result<PathBuf> {
    let named = given
        .map(Path::to_path_buf)
        .or_else(|| std::env::var_os("WEFT_TRACES").map(PathBuf::from));
    let at = named.clone().unwrap_or_else(|| PathBuf::from("../shared/data/traces"));
    let own = at.join("weft");
    for folder in [own, at.clone()] {
        if has_traces(&folder) {
            return Ok(folder);
        }
    }
    bail!(
        "{}: no measured traces (.trace); set WEFT_TRACES to a folder of them, made with `weft trace import` of \
         profilers' files such as those of {SOURCES}",
        at.display()
    )
}

/// Public repositories that hold such files, with their commits.
const SOURCES: &str = "AMD-AGI/TraceLens (171dd74721ca), facebookresearch/HolisticTraceAnalysis (f4d0062c382f), \
                       facebookresearch/param (1e115ffc62c6), ovg-project/kvcached (4a8176e)";

fn has_traces(folder: &Path) -> bool {
    let is_trace = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension().is_some_and(|ext| ext == "trace"))
    };
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.any(is_trace))
}

/// The jobs that cases are made of.
struct Jobs {
    services: Vec<MeasuredJob>,
    trainings: Vec<MeasuredJob>,
    recorded_services: Vec<(String, Arc<Program>)>,
    recorded_trainings: Vec<(String, Arc<Program>)>,
}

impl Jobs {
    fn load(options: &MeasuredOptions) -> Result<Jobs> {
        let measured = pairs::models(&folder(options.traces.as_deref())?)?;
        let recorded = pairs::models(&options.recorded)?;
        let wanted = |name: &str| options.job.is_empty() || options.job.iter().any(|job| job == name);
        let measured_of = |pick: fn(&Model) -> Option<&Trace>| -> Result<Vec<MeasuredJob>> {
            let traces = measured.iter().filter(|model| wanted(&model.name));
            traces
                .filter_map(|model| Some(MeasuredJob::of(&model.name, pick(model)?)))
                .collect()
        };
        let recorded_of = |pick: fn(&Model) -> Option<&Trace>| -> Result<Vec<(String, Arc<Program>)>> {
            let traces = recorded.iter().filter(|model| wanted(&model.name));
            traces
                .filter_map(|model| {
                    let program = Program::of(pick(model)?).with_context(|| model.name.clone());
                    Some(program.map(|program| (model.name.clone(), Arc::new(program))))
                })
                .collect()
        };
        Ok(Jobs {
            services: measured_of(|model| model.infer.as_ref())?,
            trainings: measured_of(|model| model.train.as_ref())?,
            recorded_services: recorded_of(|model| model.infer.as_ref())?,
            recorded_trainings: recorded_of(|model| model.train.as_ref())?,
        })
    }
}

/// A measured service's job on hosts that take this part of the time in its file.
fn service(job: &MeasuredJob, host_time: f64) -> PlayedJob {
    let program = Arc::new((*job.program).clone().with_host_time(host_time));
    let think = (!job.own_pace).then_some(pairs::THINK_NS);
    pairs::job(&job.name, 0, &program, think)
}

/// A training on hosts that take this part of the time in its file.
fn training(name: &str, program: &Program, host_time: f64) -> PlayedJob {
    let program = Arc::new(program.clone().with_host_time(host_time));
    pairs::job(&format!("{name} training"), 5, &program, None)
}

/// Makes cases for one device and one seed.
struct Cases<'a> {
    jobs: &'a Jobs,
    mode: Mode,
    seed: u64,
    requests: u64,
    rules: &'a [Rule],
    out: Vec<Case>,
}

impl Cases<'_> {
    fn push(&mut self, kind: &'static str, service: PlayedJob, training: PlayedJob, host_time: f64, load: Option<f64>) {
        let request = service.program.usual_time().max(1);
        let most = (LONGEST_NS / request).clamp(FEWEST, self.requests.max(FEWEST));
        self.out.push(Case {
            kind,
            mode: self.mode,
            seed: self.seed,
            host_time,
            jobs: vec![service, training],
            rules: self.rules.to_vec(),
            slo: None,
            load,
            most_requests: Some(most),
        });
    }

    fn measured(&mut self) {
        for one in &self.jobs.services {
            for other in &self.jobs.trainings {
                if one.generation != other.generation {
                    continue;
                }
                let kind = if other.distributed { "distributed" } else { "measured" };
                for host_time in HOST_TIMES {
                    let training = || training(&other.name, &other.program, host_time);
                    self.push(kind, service(one, host_time), training(), host_time, None);
                    if host_time == 1.0 {
                        self.push(kind, service(one, host_time), training(), host_time, Some(LOAD));
                    }
                }
            }
        }
    }

    fn crossed(&mut self) {
        /// Partners of each service.
        const PARTNERS: usize = 2;
        let jobs = self.jobs;
        let of_one_gpu: Vec<&MeasuredJob> = jobs.trainings.iter().filter(|job| !job.distributed).collect();
        for (at, one) in jobs.services.iter().enumerate() {
            for partner in 0..PARTNERS.min(of_one_gpu.len()) {
                let other = of_one_gpu[(PARTNERS * at + partner) % of_one_gpu.len()];
                let training = training(&other.name, &other.program, 1.0);
                self.push("crossed", service(one, 1.0), training, 1.0, None);
            }
        }
        if !jobs.recorded_trainings.is_empty() {
            for (at, one) in jobs.services.iter().enumerate() {
                for partner in 0..PARTNERS.min(jobs.recorded_trainings.len()) {
                    let (name, program) =
                        &jobs.recorded_trainings[(PARTNERS * at + partner) % jobs.recorded_trainings.len()];
                    self.push(
                        "measured+recorded",
                        service(one, 1.0),
                        training(name, program, 1.0),
                        1.0,
                        None,
                    );
                }
            }
        }
        for (kind, distributed) in [("recorded+measured", false), ("recorded+distributed", true)] {
            let partners: Vec<&MeasuredJob> = jobs
                .trainings
                .iter()
                .filter(|job| job.distributed == distributed)
                .collect();
            if partners.is_empty() {
                continue;
            }
            for (at, (name, program)) in jobs.recorded_services.iter().enumerate() {
                for partner in 0..PARTNERS.min(partners.len()) {
                    let other = partners[(PARTNERS * at + partner) % partners.len()];
                    let one = pairs::job(name, 0, program, Some(pairs::THINK_NS));
                    self.push(kind, one, training(&other.name, &other.program, 1.0), 1.0, None);
                }
            }
        }
    }

    /// Recordings, changed where they flatter.
    fn changed(&mut self) {
        let jobs = self.jobs;
        let find = |of: &[(String, Arc<Program>)], name: &str| of.iter().find(|job| job.0 == name).cloned();
        for (at, name) in SERVICES.iter().enumerate() {
            let Some((_, program)) = find(&jobs.recorded_services, name) else {
                continue;
            };
            let partners = (0..TRAININGS.len()).map(|step| TRAININGS[(at + step) % TRAININGS.len()]);
            let Some((partner, batch)) = partners
                .filter(|partner| partner != name)
                .find_map(|partner| find(&jobs.recorded_trainings, partner))
            else {
                continue;
            };
            let batch = training(&partner, &batch, 1.0);
            for think in THINK_MS {
                let name = format!("{name} every {think} ms");
                let one = pairs::job(&name, 0, &program, Some(think * MS));
                self.push("think", one, batch.clone(), 1.0, None);
            }
            for (kind, program) in [
                ("no-wait", without_last_wait(&program)),
                ("lag", awaiting_the_one_before(&program)),
                ("differ", beginning_otherwise(&program)),
            ] {
                let name = format!("{name} {kind}");
                let one = pairs::job(&name, 0, &Arc::new(program), Some(pairs::THINK_NS));
                self.push(kind, one, batch.clone(), 1.0, None);
            }
        }
    }
}

/// Requests in a changed recording: so many differ, or record events of their own.
const VARIED: usize = 8;

/// The step without the waits behind its last work.
fn cut(program: &Program, step: usize) -> Vec<JobOp> {
    let ops = &program.steps[step % program.steps.len()].ops;
    let end = ops
        .iter()
        .rposition(|op| !matches!(op.play, Play::Sync(_)))
        .map_or(0, |at| at + 1);
    let mut ops = ops[..end].to_vec();
    let within = |next: u32| if (next as usize) < end { next } else { NONE };
    for op in &mut ops {
        (op.next_same, op.next_handed) = (within(op.next_same), within(op.next_handed));
    }
    ops
}

/// Appends a call to a step: its host thread makes it when the last call has returned.
fn append(ops: &mut Vec<JobOp>, play: Play) {
    let here = ops.len() as u32;
    if let Some(last) = ops.last_mut() {
        last.next_same = here;
    }
    ops.push(JobOp {
        host_before: 0,
        play,
        next_same: NONE,
        next_handed: NONE,
    });
}

/// The stream of a step's last work.
fn last_stream(ops: &[JobOp]) -> u16 {
    let stream = |op: &JobOp| match op.play {
        Play::Compute { stream, .. } | Play::Copy { stream, .. } => Some(stream),
        _ => None,
    };
    ops.iter().rev().find_map(stream).unwrap_or(0)
}

/// The same program whose requests end without a wait.
fn without_last_wait(program: &Program) -> Program {
    let mut made = program.clone();
    for step in 0..program.steps.len() {
        made.steps[step].ops = cut(program, step);
    }
    made
}

/// The same program whose requests end with a wait for the request before: double buffering.
fn awaiting_the_one_before(program: &Program) -> Program {
    let mut made = program.clone();
    let first = made.events;
    made.steps = (0..VARIED)
        .map(|at| {
            let mut step = program.steps[at % program.steps.len()].clone();
            step.ops = cut(program, at);
            let stream = last_stream(&step.ops);
            let event = |at: usize| (first + at % VARIED) as u16;
            append(
                &mut step.ops,
                Play::Record {
                    event: event(at),
                    stream,
                },
            );
            append(&mut step.ops, Play::Sync(AwaitedWork::Event(event(at + VARIED - 1))));
            step
        })
        .collect();
    made.events += VARIED;
    made
}

/// The same program whose requests begin with a kernel of their own each, as with a grid that
/// follows the input's size. Its time stays.
fn beginning_otherwise(program: &Program) -> Program {
    let mut made = program.clone();
    made.steps = (0..VARIED * VARIED * VARIED)
        .map(|at| {
            let mut step = program.steps[at % program.steps.len()].clone();
            let first = step.ops.iter_mut().find_map(|op| match &mut op.play {
                Play::Compute {
                    kernel, graph: NONE, ..
                } => Some(kernel),
                _ => None,
            });
            if let Some(kernel) = first {
                let shape = program.kernel_shape(*kernel);
                *kernel ^= (at as u64 + 1) << 16;
                made.shapes.insert(*kernel, shape);
            }
            step
        })
        .collect();
    made
}

/// All results, for programs.
#[derive(Debug, Serialize)]
struct MeasuredResults<'a> {
    command: String,
    requests: u64,
    seeds: &'a [u64],
    seconds: f64,
    aims: &'a [Aim],
    rows: &'a [CaseRow],
}

fn run(options: &MeasuredOptions) -> Result<Vec<Aim>> {
    let start = Instant::now();
    let jobs = Jobs::load(options)?;
    let devices = options.calibration.devices()?;
    let rules: Vec<Rule> = match options.rule.as_slice() {
        [] => RULES.to_vec(),
        given => given.to_vec(),
    };
    let modes = match &options.device {
        Some(name) => vec![pairs::mode_named(name, options.contention)?],
        None => ["mps", "mps-shared", "time-sliced"]
            .iter()
            .map(|name| pairs::mode_named(name, None))
            .collect::<Result<Vec<Mode>>>()?,
    };
    let seeds = match options.quick {
        true => &options.seeds[..1],
        false => &options.seeds[..],
    };
    let requests = if options.quick {
        options.requests.min(60)
    } else {
        options.requests
    };
    let mut rows: Vec<CaseRow> = Vec::new();
    for calibrated in &devices {
        let played = PlayedDevice::new(
            calibrated,
            None,
            &calibrated.settings(Mode::TimeSlice),
            &calibrated.hosts(1.0),
        );
        println!("{played}");
        let plan = plan(options, calibrated.clone(), requests);
        let mut cases = Vec::new();
        for mode in &modes {
            for seed in seeds {
                let mut made = Cases {
                    jobs: &jobs,
                    mode: *mode,
                    seed: *seed,
                    requests,
                    rules: &rules,
                    out: Vec::new(),
                };
                made.measured();
                made.crossed();
                made.changed();
                cases.extend(made.out);
            }
        }
        cases.retain(|case| plan.wants(case.kind));
        if cases.is_empty() {
            bail!("no case of these kinds and jobs");
        }
        let told = std::sync::Mutex::new(Instant::now());
        let progress = |done: usize, of: usize| {
            let Ok(mut told) = told.lock() else { return };
            if told.elapsed().as_secs() >= 10 || done == of {
                *told = Instant::now();
                eprintln!("{done} of {of} cases after {:.0} s", start.elapsed().as_secs_f64());
            }
        };
        let played = pairs::run(&cases, &plan, &progress);
        print!("{}", table(&played));
        print!("{}", worst(&played, options.worst));
        if options.why {
            print!("{}", report::causes::text(&played));
        }
        rows.extend(played);
    }
    let aims = judge(&rows);
    print!("{}", report::text_of_aims(&aims));
    if let Some(path) = &options.json {
        let results = MeasuredResults {
            command: std::env::args().collect::<Vec<String>>().join(" "),
            requests,
            seeds,
            seconds: start.elapsed().as_secs_f64(),
            aims: &aims,
            rows: &rows,
        };
        let text = serde_json::to_string(&results)?;
        std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(aims)
}

fn plan(options: &MeasuredOptions, calibrated: crate::calibrated::CalibratedDevice, requests: u64) -> CasePlan {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    CasePlan {
        calibrated,
        device: None,
        seeds: options.seeds.clone(),
        every_seed: true,
        requests,
        threads: if options.threads == 0 { cores } else { options.threads },
        kinds: options.kind.clone(),
        models: Vec::new(),
        short: false,
        held_back: HeldBackCases::All,
        partners: usize::MAX,
        until: None,
        all_rules: false,
        frontier: false,
        host_times: vec![1.0],
        rules: Vec::new(),
        tuning: Tuning {
            risk: options.risk,
            ..Tuning::default()
        },
    }
}

/// Cases that a line of the table stands for.
type Group<'a> = (&'a LabSetting, &'static str, &'static str, bool, u64, &'a str);

fn group(row: &CaseRow) -> Group<'_> {
    let figures = &row.figures;
    (
        &row.setting,
        row.device,
        row.kind,
        row.closed,
        row.host_time.to_bits(),
        &figures.rule,
    )
}

/// The limits within which a case counts as kept: mean and p99 over those of the solo run, and
/// batch work of that alone.
const KEPT: [f64; 3] = [1.01, 1.02, 0.75];

/// A line for each device, kind, arrival process, host and rule.
fn table(rows: &[CaseRow]) -> String {
    use std::fmt::Write;
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in rows {
        if !groups.contains(&group(row)) {
            groups.push(group(row));
        }
    }
    let mut out = format!(
        "{:12} {:22} {:13} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}  kept: mean, p99, batch; all\n",
        "device", "kind", "policy", "cases", "mean", "p99", "p99.9", "worst", "p99", "batch", "of it"
    );
    for wanted in &groups {
        let of: Vec<&CaseRow> = rows.iter().filter(|row| group(row) == *wanted).collect();
        let line = Line::of(&of);
        let (_, device, kind, closed, host, rule) = *wanted;
        let mut kind = kind.to_string();
        if !closed {
            kind += ", random";
        }
        if f64::from_bits(host) != 1.0 {
            let _ = write!(kind, ", hosts x{}", f64::from_bits(host));
        }
        let _ = writeln!(
            out,
            "{device:12} {kind:22} {rule:13} {:>5} {:>6.3} {:>6.3} {:>6.3} {:>6.3} {:>6.2} {:>6.3} {:>6}  {:?}; {}",
            of.len(),
            line.mean,
            line.p99,
            line.p999,
            line.worst_mean,
            line.worst_p99,
            line.batch,
            line.of_bound.map_or("-".into(), |share| format!("{share:.2}")),
            line.kept,
            line.kept_all
        );
    }
    out + "of it: batch work, of what the device's time allows at no added latency. kept: cases within 1.01, 1.02 and \
           .75; within all three\ntally cuts each kernel in pieces, which no kernel that waits for peers allows\n"
}

/// Figures over cases: geometric means, worst values, counts.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    mean: f64,
    p99: f64,
    p999: f64,
    worst_mean: f64,
    worst_p99: f64,
    batch: f64,
    of_bound: Option<f64>,
    kept: [usize; 3],
    kept_all: usize,
}

impl Line {
    fn of(rows: &[&CaseRow]) -> Line {
        let geo = |value: fn(&CaseRow) -> f64| geometric(rows.iter().map(|row| value(row)));
        let worst = |value: fn(&CaseRow) -> f64| rows.iter().map(|row| value(row)).fold(0.0, f64::max);
        let mean = |row: &CaseRow| row.figures.slowdown();
        let p99 = |row: &CaseRow| row.figures.slowdown_p99();
        let kept = |row: &CaseRow| {
            [
                row.figures.slowdown() <= KEPT[0],
                row.figures.slowdown_p99() <= KEPT[1],
                row.figures.batch_sum >= KEPT[2],
            ]
        };
        // Of work that a bound of nothing does not allow there is no share.
        let shares: Option<Vec<f64>> = rows
            .iter()
            .filter(|row| row.figures.bound.is_none_or(|bound| bound > 0.0))
            .map(|row| row.figures.share_of_bound())
            .collect();
        Line {
            mean: geo(mean),
            p99: geo(p99),
            p999: geo(|row| row.figures.latency.p999 / row.figures.alone.p999.max(1.0)),
            worst_mean: worst(mean),
            worst_p99: worst(p99),
            batch: geo(|row| row.figures.batch_sum),
            of_bound: shares.filter(|shares| !shares.is_empty()).map(geometric),
            kept: [0, 1, 2].map(|at| rows.iter().filter(|row| kept(row)[at]).count()),
            kept_all: rows.iter().filter(|row| kept(row) == [true; 3]).count(),
        }
    }
}

/// A row in a line.
fn told(row: &CaseRow) -> String {
    let figures = &row.figures;
    format!(
        "{} {}: {}{}, seed {}: mean {:.3}, p99 {:.3}, batch {:.3} of {}",
        row.device,
        row.kind,
        row.jobs(),
        if row.closed { "" } else { ", at random" },
        figures.seed,
        figures.slowdown(),
        figures.slowdown_p99(),
        figures.batch_sum,
        report::or_none(figures.bound)
    )
}

/// weft's cases with the worst p99, of each device and kind.
fn worst(rows: &[CaseRow], count: usize) -> String {
    let mut out = String::new();
    let weft: Vec<&CaseRow> = rows.iter().filter(|row| row.figures.rule == "weft").collect();
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in &weft {
        if !groups.contains(&group(row)) {
            groups.push(group(row));
        }
    }
    for wanted in groups {
        let mut of: Vec<&&CaseRow> = weft.iter().filter(|row| group(row) == wanted).collect();
        of.sort_by(|one, other| other.figures.slowdown_p99().total_cmp(&one.figures.slowdown_p99()));
        for row in of.into_iter().take(count) {
            out += &format!("  {}\n", told(row));
        }
    }
    out
}

/// A limit for a group of weft's cases.
struct Limit {
    device: &'static str,
    kinds: &'static [&'static str],
    closed: bool,
    mean: f64,
    p99: f64,
    /// Least batch work, of alone or of the bound.
    batch: BatchLimit,
}

/// Least batch work.
#[derive(Debug, Clone, Copy)]
enum BatchLimit {
    OfAlone(f64),
    OfBound(f64),
}

/// One GPU generation in each pair.
const PAIRED: &[&str] = &["measured", "distributed"];

/// The limits that weft must keep.
const LIMITS: [Limit; 5] = [
    Limit {
        device: "mps",
        kinds: PAIRED,
        closed: true,
        mean: 1.01,
        p99: 1.03,
        batch: BatchLimit::OfBound(0.70),
    },
    Limit {
        device: "time-sliced",
        kinds: PAIRED,
        closed: true,
        mean: 1.01,
        p99: 1.03,
        batch: BatchLimit::OfBound(0.50),
    },
    Limit {
        device: "mps-shared",
        kinds: PAIRED,
        closed: true,
        mean: 1.01,
        p99: 1.03,
        batch: BatchLimit::OfAlone(0.50),
    },
    Limit {
        device: "mps",
        kinds: PAIRED,
        closed: false,
        mean: 1.01,
        p99: 1.02,
        batch: BatchLimit::OfAlone(0.55),
    },
    Limit {
        device: "mps",
        kinds: &["crossed"],
        closed: true,
        mean: 1.01,
        p99: 1.02,
        batch: BatchLimit::OfBound(0.82),
    },
];

/// Whether weft's rows keep the limits.
fn judge(rows: &[CaseRow]) -> Vec<Aim> {
    let weft: Vec<&CaseRow> = rows.iter().filter(|row| row.figures.rule == "weft").collect();
    let mut aims: Vec<Aim> = LIMITS.iter().flat_map(|limit| limit.judge(&weft)).collect();
    aims.push(at_most(
        "p99 with 1 to 50 ms between requests, mps",
        1.08,
        &weft,
        |row| (row.kind == "think" && row.device == "mps").then(|| row.figures.slowdown_p99()),
    ));
    for kind in ["no-wait", "lag", "differ"] {
        aims.push(changed(kind, &weft));
    }
    aims.push(dominated(rows));
    aims
}

impl Limit {
    fn judge(&self, weft: &[&CaseRow]) -> [Aim; 3] {
        let of: Vec<&CaseRow> = weft
            .iter()
            .copied()
            .filter(|row| {
                row.device == self.device
                    && self.kinds.contains(&row.kind)
                    && row.closed == self.closed
                    && row.host_time == 1.0
            })
            .collect();
        let line = Line::of(&of);
        let arrivals = if self.closed { "closed" } else { "random" };
        let about = format!("{} {}, {arrivals}", self.device, self.kinds.join(" and "));
        let aim = |what: String, met: bool, value: f64| Aim {
            aim: format!("{about}: {what}"),
            met: !of.is_empty() && met,
            held: (usize::from(met), usize::from(!of.is_empty())),
            said: vec![format!("{value:.3} over {} cases", of.len())],
        };
        let batch = match self.batch {
            BatchLimit::OfAlone(least) => (format!("batch work of alone >= {least}"), line.batch, least),
            BatchLimit::OfBound(least) => (
                format!("batch work of the bound >= {least}"),
                line.of_bound.unwrap_or(f64::NAN),
                least,
            ),
        };
        [
            aim(
                format!("mean latency <= {}", self.mean),
                line.mean <= self.mean,
                line.mean,
            ),
            aim(format!("p99 latency <= {}", self.p99), line.p99 <= self.p99, line.p99),
            aim(batch.0, batch.1 >= batch.2, batch.1),
        ]
    }
}

/// The most cases that a missed aim lists.
const LISTED: usize = 5;

fn at_most(about: &str, limit: f64, rows: &[&CaseRow], value: impl Fn(&CaseRow) -> Option<f64>) -> Aim {
    let mut values: Vec<(f64, &CaseRow)> = rows.iter().filter_map(|row| Some((value(row)?, *row))).collect();
    values.sort_by(|one, other| other.0.total_cmp(&one.0));
    let held = values.iter().filter(|(value, _)| *value <= limit).count();
    Aim {
        aim: format!("{about} <= {limit}"),
        met: !values.is_empty() && held == values.len(),
        held: (held, values.len()),
        said: values
            .iter()
            .take_while(|(value, _)| *value > limit)
            .take(LISTED)
            .map(|(_, row)| told(row))
            .collect(),
    }
}

/// Batch work beside changed recordings, of that beside the recordings as they are.
fn changed(kind: &'static str, weft: &[&CaseRow]) -> Aim {
    /// The least part.
    const LEAST: f64 = 0.9;
    let usual: HashMap<(String, &str, u64), f64> = weft
        .iter()
        .filter(|row| row.kind == "think")
        .filter_map(|row| {
            let name = row
                .service
                .strip_suffix(&format!(" every {} ms", pairs::THINK_NS / MS))?;
            Some(((name.to_string(), row.device, row.figures.seed), row.figures.batch_sum))
        })
        .collect();
    let part = |row: &CaseRow| {
        let name = row.service.strip_suffix(&format!(" {kind}"))?;
        let usual = usual.get(&(name.to_string(), row.device, row.figures.seed))?;
        Some(row.figures.batch_sum / usual.max(1e-9))
    };
    let parts: Vec<(f64, &CaseRow)> = weft
        .iter()
        .filter(|row| row.kind == kind)
        .filter_map(|row| Some((part(row)?, *row)))
        .collect();
    let held = parts.iter().filter(|(part, _)| *part >= LEAST).count();
    Aim {
        aim: format!("batch work of kind {kind}, of that beside the same requests with a wait, >= {LEAST}"),
        met: !parts.is_empty() && held == parts.len(),
        held: (held, parts.len()),
        said: parts
            .iter()
            .filter(|(part, _)| *part < LEAST)
            .take(LISTED)
            .map(|(part, row)| format!("{part:.2}: {}", told(row)))
            .collect(),
    }
}

/// Pairs in which another rule does more batch work at no more latency.
fn dominated(rows: &[CaseRow]) -> Aim {
    /// More batch work by this factor counts.
    const MORE: f64 = 1.02;
    /// Of all pairs, the part in which another rule may be better.
    const MOST: f64 = 0.10;
    let case = |row: &CaseRow| {
        let names = (row.kind, row.device, row.service.clone(), row.batch.clone());
        (names, row.closed, row.host_time.to_bits(), row.figures.seed)
    };
    let mut others: HashMap<_, Vec<&CaseRow>> = HashMap::new();
    for row in rows.iter().filter(|row| !row.figures.rule.starts_with("weft")) {
        others.entry(case(row)).or_default().push(row);
    }
    let (mut held, mut all, mut said) = (0, 0, Vec::new());
    for weft in rows.iter().filter(|row| row.figures.rule == "weft") {
        let Some(others) = others.get(&case(weft)) else {
            continue;
        };
        all += 1;
        let better = others.iter().find(|other| {
            other.figures.batch_sum >= MORE * weft.figures.batch_sum
                && other.figures.slowdown() <= weft.figures.slowdown()
                && other.figures.slowdown_p99() <= weft.figures.slowdown_p99()
        });
        match better {
            None => held += 1,
            Some(other) => said.push((
                other.figures.batch_sum / weft.figures.batch_sum.max(1e-9),
                format!(
                    "{} has {:.3}: {}",
                    other.figures.rule,
                    other.figures.batch_sum,
                    told(weft)
                ),
            )),
        }
    }
    said.sort_by(|one, other| other.0.total_cmp(&one.0));
    Aim {
        aim: format!("in {MOST} of the cases at most another rule does {MORE} times the batch work at no more latency"),
        met: all > 0 && held as f64 >= (1.0 - MOST) * all as f64,
        held: (held, all),
        said: said.into_iter().take(LISTED).map(|(_, said)| said).collect(),
    }
}
