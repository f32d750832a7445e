// SPDX-License-Identifier: MIT OR Apache-2.0
//! The large set behind `scripts/lab`: every model as a service with every model as a batch job,
//! and the cases beyond pairs.
//!
//! | kind | the service | beside it | rules |
//! |---|---|---|---|
//! | `pair` | each model's inference, the next request after the last answer | each model's training | [`PAIR_RULES`] |
//! | `table` | each model | one model's training, another for each | all, nvshare too |
//! | `several` | each model | three trainings, two of equal priority | weft, fikit, default |
//! | `equals` | every other model, and another model of the same priority | one training | weft, fikit, default |
//! | `unprofiled` | each model; it, the training or both come without a profile, in turn | one training | weft, fikit, default |
//! | `chatty` | each model, waiting after every kernel | one training | weft, fikit, default |
//! | `poisson`, `bursts` | each model, requests on their own at 40 % of what it can bear | one training | weft, fikit, xsched, default; all with `--all-rules` |
//! | `shape` | generated ([`generate::shapes`]): prompts and decoding by graphs, bursts, a wait after every kernel | generated: data that comes late, long kernels, graphs | weft, fikit, default |
//! | `dial` | each model's inference, `--slowdown` 2, 5 and 10 % and none, on `mps-shared` | each model's training | weft |
//! | `slo` | each model, at random at 40, 55 and 70 % of the rate at which it answers alone, `--slo` 1.2 times its p99 alone, on `mps` and `mps-shared` | one training | weft, default |
//! | `llm` | a language model that decodes by graphs, drawn and recorded | finetuning of gpt2, llama and bert_base | weft, default |
//! | `hosts` | each model, at random at 40 % load, on hosts x1, x0.5 and x0.25 | one training | [`HOST_RULES`] |
//! | `frontier` | one model, closed and at random; three generated services | one training; generated | rules with their one parameter swept |
#![forbid(unsafe_code)]

mod promises;

pub(crate) use promises::{LOADS, SLOWDOWNS};

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::Serialize;
use weft_engine::{Mode, SmLimits};
use weft_player::job::Play;
use weft_player::{ArrivalPattern, Jitter, PlayedJob, ProfileSource, Program};
use weft_scheduler::PolicyName;
use weft_trace_format::Trace;

use crate::calibrated::{CalibratedDevice, LabSetting};
use crate::compare::{CaseFigures, Fixture, KnownJob, Tuning};
use crate::measure::Latency;
use crate::rule::{COUNT, Rule, XSCHED};
use crate::{MS, Ns, US, generate};

/// Rules that every pair runs under.
pub const PAIR_RULES: [Rule; 3] = [Rule::WEFT, Rule::FIKIT, Rule::Default];

/// The times of a trace vary from step to step by themselves. This jitter adds a little more, so
/// that a repeated step is not the same to the nanosecond.
const REPEATED: Jitter = Jitter {
    device: 0.01,
    host: 0.05,
};

/// Host time between two requests of a service: it reads, decodes and answers. A trace's own time
/// is that of a loop that does nothing else, and a service without gaps has none to fill.
pub const THINK_NS: Ns = 4 * MS;

/// Models held back: no constant is tuned on a case in which one of them is a service or a batch
/// job. Their figures show how the constants do on other models.
pub const HELD_BACK: [&str; 4] = ["resnet152", "gpt2", "vit_b_16", "detection"];

/// The cases to run, by whether a model of [`HELD_BACK`] is in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HeldBackCases {
    /// Cases with one of them.
    Only,
    /// Cases without them: a constant may be tuned on these.
    Without,
    /// All cases.
    #[default]
    All,
}

impl HeldBackCases {
    /// Whether to run a case of these jobs.
    fn holds(self, jobs: &[PlayedJob]) -> bool {
        let held_back = jobs.iter().any(|job| is_held_back(&job.name));
        match self {
            HeldBackCases::Only => held_back,
            HeldBackCases::Without => !held_back,
            HeldBackCases::All => true,
        }
    }
}

/// Whether the job of this name is of a model that is held back.
fn is_held_back(job: &str) -> bool {
    // A job's name begins with its model; the rest is its work.
    let model = job.split(' ').next().unwrap_or_default();
    HELD_BACK.contains(&model)
}

/// The load of services whose requests come independently of answers.
const LOAD: f64 = 0.4;

/// A case: jobs, a device, a seed, rules.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its kind.
    pub kind: &'static str,
    /// The device's mode.
    pub mode: Mode,
    /// The seed of all chance.
    pub seed: u64,
    /// The part of the recorded host time that hosts take.
    pub host_time: f64,
    /// The jobs, the service first.
    pub jobs: Vec<PlayedJob>,
    /// The rules to compare.
    pub rules: Vec<Rule>,
    /// `--slo` of the service, as a multiple of the p99 of its solo run.
    pub slo: Option<f64>,
    /// Load of the service. Its requests come independently of answers, at this part of the rate at
    /// which it answers in a solo run, one after the other.
    pub load: Option<f64>,
    /// The most requests for a figure, for cases that have many figures.
    pub most_requests: Option<u64>,
}

/// The figures of one rule in one case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseRow {
    /// The device's calibration, and the launch queue.
    #[serde(flatten)]
    pub setting: LabSetting,
    /// The kind of case.
    pub kind: &'static str,
    /// A name of [`DEVICES`].
    pub device: &'static str,
    /// The service.
    pub service: String,
    /// The other jobs. JSON names them `beside`, because `batch` there is their throughput.
    #[serde(rename = "beside")]
    pub batch: Vec<String>,
    /// Whether the next request waits for the answer to the last.
    pub closed: bool,
    /// The part of the recorded host time that hosts take.
    pub host_time: f64,
    /// The figures.
    #[serde(flatten)]
    pub figures: CaseFigures,
}

impl CaseRow {
    /// The jobs of the case, and the factor of host time if it is not 1.
    pub fn jobs(&self) -> String {
        let hosts = match self.host_time == 1.0 {
            true => String::new(),
            false => format!(", hosts x{}", self.host_time),
        };
        format!("{} beside {}{hosts}", self.service, self.batch.join(" + "))
    }

    /// Whether its kind stands apart from the others: with settings, devices or questions of its
    /// own. Aims over all cases do not count it.
    pub fn is_apart(&self) -> bool {
        self.kind == "frontier" || self.kind == "hosts" || promises::KINDS.contains(&self.kind)
    }

    /// Whether a model that is held back from tuning is in it.
    pub fn is_held_back(&self) -> bool {
        is_held_back(&self.service) || self.batch.iter().any(|job| is_held_back(job))
    }
}

/// A sentence that describes a kind of case.
pub fn describe(kind: &str) -> &'static str {
    match kind {
        "pair" => {
            "Each model's inference beside other models' training, one batch job each; the next request comes 4 ms after the last answer."
        }
        "table" => {
            "Every policy on the same cases: each model's inference beside one other model's training. <b>default</b> is the device without weft: MPS, or time slicing."
        }
        "several" => "Each model's inference beside three trainings, two of them of equal priority.",
        "equals" => {
            "Two models of one priority as services beside one training. <i>Alone</i> is here what the first has beside the second, without the training."
        }
        "unprofiled" => {
            "Jobs that weft has no profile of when they come: the service, the training or both. What it knows of them it learns while it serves."
        }
        "chatty" => "Each model's inference, waiting for the device after every kernel, beside one training.",
        "poisson" => "Requests come on their own, at 40 % of what the service can bear.",
        "bursts" => "Requests come four at a time, at 40 % of what the service can bear.",
        "shape" => {
            "Generated jobs: a language model (prompts, then tokens by graphs), bursts of requests and a wait after every kernel, beside long kernels, training whose data comes late, and graphs."
        }
        "hosts" => {
            "Requests come on their own, at 40 % of what the service can bear, on hosts that take all, half and a quarter of the recorded time."
        }
        other => promises::describe(other),
    }
}

/// The devices, by the names that options, scenarios and tables use. Most kinds run on the first
/// and the last if no device is requested.
pub const DEVICES: [(&str, Mode); 4] = [
    ("mps", Mode::Mps),
    ("mps-shared", Mode::MpsShared(SmLimits::A100_LIKE)),
    ("mps-shared-h100", Mode::MpsShared(SmLimits::H100_LIKE)),
    ("time-sliced", Mode::TimeSlice),
];

/// A mode's name. Modes in which kernels share SMs are known by their number of SMs.
pub fn mode_name(mode: Mode) -> &'static str {
    let same = |other: Mode| match (mode, other) {
        (Mode::MpsShared(one), Mode::MpsShared(other)) => one.sms == other.sms,
        _ => mode == other,
    };
    let found = DEVICES.iter().find(|(_, device)| same(*device));
    found.map_or("mps-shared", |(name, _)| name)
}

/// The device of a name. `contention`, in per cent, replaces [`SmLimits::contention`].
pub fn mode_named(name: &str, contention: Option<u32>) -> anyhow::Result<Mode> {
    let Some((_, mode)) = DEVICES.iter().find(|(device, _)| *device == name) else {
        let names = DEVICES.map(|(name, _)| name).join(", ");
        anyhow::bail!("--device {name}: choose one of {names}");
    };
    match (*mode, contention) {
        (Mode::MpsShared(limits), Some(percent)) => Ok(Mode::MpsShared(SmLimits {
            contention: percent.saturating_mul(10),
            ..limits
        })),
        (_, Some(_)) => anyhow::bail!("--contention: kernels do not share SMs on device {name}"),
        (mode, None) => Ok(mode),
    }
}

/// The cases to run, and the settings for them.
#[derive(Debug, Clone)]
pub struct CasePlan {
    /// The device's times.
    pub calibrated: CalibratedDevice,
    /// How jobs share the device; `None` means each kind's own.
    pub device: Option<Mode>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// Whether every case runs with every seed, or each with one of them in turn.
    pub every_seed: bool,
    /// Requests for a figure.
    pub requests: u64,
    /// Threads to run on.
    pub threads: usize,
    /// Kinds of cases; empty means all.
    pub kinds: Vec<String>,
    /// Models; empty means all.
    pub models: Vec<String>,
    /// Whether kinds that take long are shortened or left out, unless they were requested by name.
    pub short: bool,
    /// Cases to run, by the models held back.
    pub held_back: HeldBackCases,
    /// The most batch jobs that each service shares with, one at a time.
    pub partners: usize,
    /// Whether to run every rule on every pair.
    pub all_rules: bool,
    /// Whether to run every rule on every pair, with its one parameter swept.
    pub frontier: bool,
    /// Parts of the recorded host time: all cases run for each. Kind `hosts` has its own.
    pub host_times: Vec<f64>,
    /// Only these rules; empty means all of a case.
    pub rules: Vec<Rule>,
    /// Settings of the core to try.
    pub tuning: Tuning,
    /// The time after which no case is begun.
    pub until: Option<std::time::Instant>,
}

impl CasePlan {
    /// Whether to run cases of this kind.
    pub fn wants(&self, kind: &str) -> bool {
        self.kinds.is_empty() || self.kinds.iter().any(|wanted| wanted == kind)
    }

    /// Whether to shorten this kind.
    fn is_short(&self, kind: &str) -> bool {
        self.short && !self.kinds.iter().any(|wanted| wanted == kind)
    }

    /// The devices of a kind whose own devices are `own`.
    fn modes(&self, own: &[Mode]) -> Vec<Mode> {
        self.device.map_or_else(|| own.to_vec(), |device| vec![device])
    }
}

/// The devices if none is requested.
const USUAL_MODES: [Mode; 2] = [Mode::Mps, Mode::TimeSlice];

/// A recorded model: name, inference, training.
#[derive(Debug, Clone)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// As a service.
    pub infer: Option<Trace>,
    /// As a batch job.
    pub train: Option<Trace>,
}

/// Reads a folder of recordings. A file that cannot be read is an error: a set with holes would
/// look like a whole one.
pub fn models(folder: &Path) -> anyhow::Result<Vec<Model>> {
    use anyhow::Context;
    let mut models: HashMap<String, Model> = HashMap::new();
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("{}: no recordings; scripts/traces makes them", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let Some(stem) = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".trace").map(str::to_string))
        else {
            continue;
        };
        let Some((name, mode)) = stem.rsplit_once('-') else {
            continue;
        };
        let trace = Trace::load(&path)?;
        let model = models.entry(name.to_string()).or_insert_with(|| Model {
            name: name.to_string(),
            infer: None,
            train: None,
        });
        match mode {
            "train" => model.train = Some(trace),
            _ => model.infer = Some(trace),
        }
    }
    let mut models: Vec<Model> = models.into_values().collect();
    models.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(models)
}

/// A job of a recording: closed loop, with times that differ a little from step to step.
pub(crate) fn job(name: &str, priority: u8, program: &Arc<Program>, think: Option<Ns>) -> PlayedJob {
    PlayedJob {
        jitter: REPEATED,
        arrivals: ArrivalPattern::Closed { think },
        ..PlayedJob::new(name, priority, Arc::clone(program))
    }
}

/// The same program with a synchronisation after every kernel.
fn chatty(program: &Program) -> Program {
    let mut program = program.clone();
    for step in &mut program.steps {
        let mut ops = Vec::new();
        let mut place = Vec::new();
        for op in &step.ops {
            place.push(ops.len() as u32);
            ops.push(*op);
            if let Play::Compute { stream, .. } = op.play {
                ops.push(weft_player::job::JobOp {
                    host_before: 0,
                    play: Play::Sync(weft_trace_format::AwaitedWork::Stream(stream)),
                    next_same: weft_player::job::NONE,
                    next_handed: weft_player::job::NONE,
                });
            }
        }
        let new = |old: u32| match place.get(old as usize) {
            Some(at) => *at,
            None => weft_player::job::NONE,
        };
        for (old, op) in step.ops.iter().enumerate() {
            let at = place[old] as usize;
            let (same, handed) = (new(op.next_same), new(op.next_handed));
            if matches!(op.play, Play::Compute { .. }) {
                // The operations that followed the launch follow its synchronisation.
                ops[at].next_same = at as u32 + 1;
                ops[at].next_handed = weft_player::job::NONE;
                (ops[at + 1].next_same, ops[at + 1].next_handed) = (same, handed);
            } else {
                (ops[at].next_same, ops[at].next_handed) = (same, handed);
            }
        }
        step.roots = step.roots.iter().map(|root| new(*root)).collect();
        step.ops = ops;
    }
    program
}

/// A generated job. Its requests differ by themselves; after the last one they begin anew.
fn generated(name: &str, priority: u8, shape: generate::shapes::Shape, seed: u64) -> PlayedJob {
    /// Requests or iterations that are drawn.
    const DRAWN: usize = 60;
    PlayedJob {
        jitter: REPEATED,
        ..PlayedJob::new(
            name,
            priority,
            Arc::new(Program::of(&shape(seed, DRAWN)).expect("a generated trace is sound")),
        )
    }
}

/// Generated services with generated batch jobs, drawn from a seed.
fn shapes(seed: u64) -> Vec<(PlayedJob, PlayedJob)> {
    use generate::shapes::{bursty, decode_with_graphs, loader_stalls, long_kernels, syncs_after_every_kernel};
    let decode = generated("decode with graphs", 0, decode_with_graphs, seed);
    let bursts = generated("bursty", 0, bursty, seed);
    let steps = generated("syncs after every kernel", 0, syncs_after_every_kernel, seed);
    let long = generated("long kernels", 5, long_kernels, seed);
    let stalling = generated("loader stalls", 5, loader_stalls, seed);
    let graphs = generated("decode with graphs, batch", 5, decode_with_graphs, seed + 1);
    vec![
        (decode.clone(), stalling.clone()),
        (decode.clone(), long.clone()),
        (decode, graphs.clone()),
        (bursts.clone(), stalling.clone()),
        (bursts.clone(), long.clone()),
        (bursts, graphs),
        (steps.clone(), stalling),
        (steps, long),
    ]
}

/// Programs of the wanted models, on hosts that take this part of the recorded time.
fn programs(
    models: &[Model],
    plan: &CasePlan,
    host_time: f64,
    pick: fn(&Model) -> Option<&Trace>,
    suffix: &str,
) -> Vec<NamedProgram> {
    let wanted = |name: &str| plan.models.is_empty() || plan.models.iter().any(|model| model == name);
    models
        .iter()
        .filter(|model| wanted(&model.name))
        .filter_map(|model| {
            let program = Program::of(pick(model)?)
                .expect("a recording that was read is sound")
                .with_host_time(host_time);
            Some((format!("{}{suffix}", model.name), Arc::new(program)))
        })
        .collect()
}

/// Programs on hosts that take this part of the recorded time.
struct HostPrograms {
    host_time: f64,
    services: Vec<NamedProgram>,
    batches: Vec<NamedProgram>,
}

impl HostPrograms {
    fn parts<'a>(&'a self, plan: &'a CasePlan, seed: u64) -> CaseParts<'a> {
        CaseParts {
            services: &self.services,
            batches: &self.batches,
            plan,
            host_time: self.host_time,
            seed,
        }
    }
}

/// The parts of cases, for one seed and one kind of hosts.
struct CaseParts<'a> {
    services: &'a [NamedProgram],
    batches: &'a [NamedProgram],
    plan: &'a CasePlan,
    host_time: f64,
    seed: u64,
}

impl CaseParts<'_> {
    /// A case of these jobs, the service first, without SLO or load.
    fn case(&self, kind: &'static str, mode: Mode, jobs: Vec<PlayedJob>, rules: &[Rule]) -> Case {
        Case {
            kind,
            mode,
            seed: self.seed,
            host_time: self.host_time,
            jobs,
            rules: rules.to_vec(),
            slo: None,
            load: None,
            most_requests: None,
        }
    }

    /// The batch job at a place, counted over and over. There must be at least one.
    fn batch(&self, at: usize, priority: u8) -> PlayedJob {
        let (name, program) = &self.batches[at % self.batches.len()];
        job(name, priority, program, None)
    }
}

/// The cases of a plan.
pub fn cases(models: &[Model], plan: &CasePlan) -> Vec<Case> {
    let programs = |host_time| HostPrograms {
        host_time,
        services: programs(models, plan, host_time, |model| model.infer.as_ref(), ""),
        batches: programs(models, plan, host_time, |model| model.train.as_ref(), " training"),
    };
    let mut out = Vec::new();
    let seeds = if plan.every_seed {
        &plan.seeds[..]
    } else {
        &plan.seeds[..1.min(plan.seeds.len())]
    };
    for host_time in &plan.host_times {
        let programs = programs(*host_time);
        for mode in plan.modes(&USUAL_MODES) {
            for seed in seeds {
                cases_of(&programs.parts(plan, *seed), mode, &mut out);
            }
        }
        for seed in seeds {
            promises::cases_of(&programs.parts(plan, *seed), &mut out);
        }
    }
    for host_time in HOST_TIMES
        .into_iter()
        .filter(|_| plan.wants("hosts") && !plan.is_short("hosts"))
    {
        let programs = programs(host_time);
        for seed in seeds {
            hosts_cases(&programs.parts(plan, *seed), &mut out);
        }
    }
    out.retain(|case: &Case| plan.wants(case.kind));
    if !plan.every_seed {
        take_turns(&mut out, &plan.seeds);
    }
    // After the seeds: a case keeps its seed, whichever other cases run.
    out.retain(|case: &Case| plan.held_back.holds(&case.jobs));
    if !plan.rules.is_empty() {
        let is_new = |rule: &&Rule| matches!(rule, Rule::Core(_, None)) && !Rule::ALL.contains(rule);
        for case in &mut out {
            // A new policy is in no case's list. It is compared with weft.
            if case.rules.contains(&Rule::WEFT) {
                case.rules.extend(plan.rules.iter().filter(is_new));
            }
            case.rules.retain(|rule| plan.rules.contains(rule));
        }
    }
    out
}

/// Hosts of kind `hosts`: as recorded, and two and four times as fast.
const HOST_TIMES: [f64; 3] = [1.0, 0.5, 0.25];

/// Rules that are shown on faster hosts: weft, the paper's, those under which no service loses
/// much, and the device's own.
const HOST_RULES: [Rule; 7] = [
    Rule::WEFT,
    Rule::FIKIT,
    Rule::Xsched(XSCHED),
    Rule::XschedWorker,
    Rule::Count(COUNT),
    Rule::MpsPriority,
    Rule::Default,
];

/// Cases with requests that come independently of answers, on hosts of several speeds.
fn hosts_cases(parts: &CaseParts<'_>, out: &mut Vec<Case>) {
    if parts.batches.is_empty() {
        return;
    }
    for mode in parts.plan.modes(&USUAL_MODES) {
        for (at, (service, played)) in parts.services.iter().enumerate() {
            let (name, program) = &parts.batches[(at + 1) % parts.batches.len()];
            let jobs = vec![job(service, 0, played, None), job(name, 5, program, None)];
            out.push(Case {
                kind: "hosts",
                mode,
                seed: parts.seed,
                host_time: parts.host_time,
                jobs,
                rules: HOST_RULES.to_vec(),
                slo: None,
                load: Some(LOAD),
                most_requests: None,
            });
        }
    }
}

/// Each case of a kind gets the next seed.
fn take_turns(cases: &mut [Case], seeds: &[u64]) {
    let mut turns: HashMap<(&str, &str, u64), usize> = HashMap::new();
    for case in cases {
        let of = (case.kind, mode_name(case.mode), case.host_time.to_bits());
        let turn = turns.entry(of).or_default();
        case.seed = seeds[*turn % seeds.len()];
        *turn += 1;
    }
}

/// Rules with their one parameter swept.
fn swept() -> Vec<Rule> {
    let mut rules = vec![Rule::Default, Rule::Exclusive];
    for bound in [50, 100, 200, 500, 1_000, 2_000, 4_000] {
        rules.push(Rule::Core(PolicyName::Weft, Some(bound * US)));
        rules.push(Rule::Core(PolicyName::Fikit, Some(bound * US)));
    }
    rules.extend([0, 2, 5, 10, 20].map(Rule::Slowdown));
    for window in [1, 2, 4, 8, 16, 32] {
        rules.push(Rule::Xsched(window));
        rules.push(Rule::Count(window));
    }
    rules.push(Rule::Timeslice);
    rules.extend([100, 1_000, 5_000].map(Rule::Nvshare));
    rules
}

type NamedProgram = (String, Arc<Program>);

fn cases_of(parts: &CaseParts<'_>, mode: Mode, out: &mut Vec<Case>) {
    let CaseParts {
        services,
        batches,
        plan,
        seed,
        ..
    } = *parts;
    let mut case = |kind, jobs, rules: &[Rule]| out.push(parts.case(kind, mode, jobs, rules));
    let service = |(name, program): &NamedProgram| job(name, 0, program, Some(THINK_NS));
    let batch = |at: usize, priority| parts.batch(at, priority);
    let three = [Rule::WEFT, Rule::FIKIT, Rule::Default];
    let all: Vec<Rule> = Rule::ALL.into_iter().filter(|rule| rule.least() == 0).collect();
    let mut frontier = all.clone();
    frontier.extend(swept().into_iter().filter(|rule| !all.contains(rule)));
    if !batches.is_empty() {
        for (at, named) in services.iter().enumerate() {
            let first = service(named);
            // Each service has another partner.
            let partner = at + 1;
            for other in (0..batches.len().min(plan.partners)).map(|step| partner + step) {
                let rules: &[Rule] = match (plan.frontier, plan.all_rules) {
                    (true, _) => &frontier,
                    (false, true) => &all,
                    (false, false) => &PAIR_RULES,
                };
                case("pair", vec![first.clone(), batch(other, 5)], rules);
            }
            case("table", vec![first.clone(), batch(partner, 5)], &Rule::ALL);
            let several = vec![first.clone(), batch(at, 3), batch(at + 1, 5), batch(at + 2, 5)];
            let rules: &[Rule] = if plan.all_rules { &all } else { &three };
            case("several", several, rules);
            if at % 2 == 0 && services.len() > 1 {
                let peer = service(&services[(at + 1) % services.len()]);
                case("equals", vec![first.clone(), peer, batch(at + 2, 5)], &three);
            }
            let (mut new, mut stranger) = (first.clone(), batch(partner, 5));
            for (job, profiled) in [(&mut new, at % 3 == 1), (&mut stranger, at % 3 == 0)] {
                if !profiled {
                    job.profile = ProfileSource::Absent;
                }
            }
            case("unprofiled", vec![new, stranger], &three);
            let mut slow = service(named);
            slow.name = format!("{} chatty", slow.name);
            slow.program = Arc::new(chatty(&named.1));
            case("chatty", vec![slow, batch(partner, 5)], &three);
            let busy = named.1.usual_time();
            let mean = (busy as f64 / LOAD) as Ns;
            let four = [Rule::WEFT, Rule::FIKIT, Rule::Xsched(XSCHED), Rule::Default];
            let rules: &[Rule] = if plan.all_rules { &all } else { &four };
            for (kind, arrivals) in [
                ("poisson", ArrivalPattern::Poisson { mean }),
                (
                    "bursts",
                    ArrivalPattern::Bursts {
                        size: 4,
                        mean: 4 * mean,
                    },
                ),
            ] {
                let first = PlayedJob {
                    arrivals,
                    ..first.clone()
                };
                case(kind, vec![first, batch(partner, 5)], rules);
            }
        }
        if let Some(named) = services.first() {
            let rules = swept();
            case("frontier", vec![service(named), batch(services.len() - 1, 5)], &rules);
            let first = PlayedJob {
                arrivals: ArrivalPattern::Poisson {
                    mean: (named.1.usual_time() as f64 / LOAD) as Ns,
                },
                ..service(named)
            };
            case("frontier", vec![first, batch(services.len() - 1, 5)], &rules);
        }
    }
    for (service, batch) in shapes(seed) {
        // Three of them have a frontier: graphs, bursts and a wait after every kernel, with
        // training whose data comes late.
        if batch.name == "loader stalls" {
            case("frontier", vec![service.clone(), batch.clone()], &swept());
        }
        case("shape", vec![service, batch], &three);
    }
}

/// Runs all cases; rows come in the order of the cases. `progress` gets the number of finished
/// cases and of all cases.
pub fn run(cases: &[Case], plan: &CasePlan, progress: &(dyn Fn(usize, usize) + Sync)) -> Vec<CaseRow> {
    let next = AtomicUsize::new(0);
    let stride = stride(cases.len());
    let done = AtomicUsize::new(0);
    let rows: Mutex<Vec<(usize, Vec<CaseRow>)>> = Mutex::new(Vec::new());
    let known: Mutex<HashMap<String, Arc<KnownJob>>> = Mutex::new(HashMap::new());
    std::thread::scope(|scope| {
        for _ in 0..plan.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let late = plan.until.is_some_and(|until| std::time::Instant::now() >= until);
                    if late || at >= cases.len() {
                        break;
                    }
                    // Not in order: if time runs out, the finished cases are a little of each kind.
                    let at = at * stride % cases.len();
                    let case = &cases[at];
                    let made = run_case(case, plan, &known);
                    lock(&rows).push((at, made));
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, cases.len());
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    rows.sort_by_key(|(at, _)| *at);
    rows.into_iter().flat_map(|(_, rows)| rows).collect()
}

/// Runs all cases as [`run`] does, and prints how many are done on stderr. `start`: the time that
/// counts as the beginning.
pub fn run_with_progress(cases: &[Case], plan: &CasePlan, start: Instant) -> Vec<CaseRow> {
    let told = Mutex::new(start);
    run(cases, plan, &|done: usize, of: usize| {
        let mut told = lock(&told);
        if told.elapsed().as_secs() >= 10 || done == of {
            *told = Instant::now();
            eprintln!("{done} of {of} cases after {:.0} s", start.elapsed().as_secs_f64());
        }
    })
}

/// A step that visits each of `count` places once.
fn stride(count: usize) -> usize {
    // Primes; at least one of them does not divide the count.
    [7, 11, 13, 17, 19, 23]
        .into_iter()
        .find(|step| !count.is_multiple_of(*step))
        .unwrap_or(1)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The names of a set of jobs: those of the service's priority in one name, and each of the others.
/// The name of a job without a profile ends with a note.
pub fn names(jobs: &[PlayedJob]) -> (String, Vec<String>) {
    let called = |job: &PlayedJob| match job.profile {
        ProfileSource::Absent => format!("{} (no profile)", job.name),
        ProfileSource::Solo | ProfileSource::Given(_) => job.name.clone(),
    };
    let first = jobs.first().map_or(0, |job| job.priority);
    let (foreground_jobs, others): (Vec<&PlayedJob>, Vec<&PlayedJob>) =
        jobs.iter().partition(|job| job.priority == first);
    let service: Vec<String> = foreground_jobs.into_iter().map(called).collect();
    (service.join(" & "), others.into_iter().map(called).collect())
}

fn run_case(case: &Case, plan: &CasePlan, cache: &Mutex<HashMap<String, Arc<KnownJob>>>) -> Vec<CaseRow> {
    let bench = Fixture {
        device: plan.calibrated.settings(case.mode),
        hosts: plan.calibrated.hosts(1.0),
        seed: case.seed,
        requests: plan.requests.min(case.most_requests.unwrap_or(u64::MAX)),
        warmup: 20,
        tuning: plan.tuning,
    };
    let mut jobs = case.jobs.clone();
    if let Some(load) = case.load {
        let mean = (bench.usual_latency(&jobs[0]) / load) as Ns;
        jobs[0].arrivals = ArrivalPattern::Poisson { mean };
    }
    let mut known: Vec<KnownJob> = jobs
        .iter()
        .enumerate()
        .map(|(place, job)| {
            let key = format!(
                "{} {:?} {} {place} {:?} {} {} {} {} {}",
                job.name,
                case.mode,
                case.seed,
                job.arrivals,
                job.priority,
                matches!(job.profile, ProfileSource::Absent),
                case.host_time,
                bench.requests,
                job.tokens
            );
            if let Some(known) = lock(cache).get(&key) {
                return (**known).clone();
            }
            let known = bench.know(job, place, place == 0);
            lock(cache).insert(key, Arc::new(known.clone()));
            known
        })
        .collect();
    bench.among_equals(&mut known);
    if let Some(times) = case.slo {
        let alone = known[0].latencies.get(bench.warmup as usize..).unwrap_or_default();
        known[0].job.slo = Some((times * Latency::of(alone).p99) as Ns);
    }
    let (service, batch) = names(&jobs);
    case.rules
        .iter()
        .map(|rule| CaseRow {
            setting: LabSetting {
                calibration: plan.calibrated.name.clone(),
                queue: plan.tuning.queue,
            },
            kind: case.kind,
            device: mode_name(case.mode),
            service: service.clone(),
            batch: batch.clone(),
            closed: jobs[0].arrivals.is_closed(),
            host_time: case.host_time,
            figures: bench.compare(&known, *rule),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_with_one_model_held_back_is_held_back() {
        let job = |name: &str| PlayedJob::new(name, 0, Arc::new(Program::default()));
        for (names, held_back) in [
            (["resnet50", "lstm training"], false),
            (["gpt2 chatty", "lstm training"], true),
            (["resnet50", "detection training"], true),
        ] {
            let jobs = names.map(job);
            assert_eq!(HeldBackCases::Only.holds(&jobs), held_back, "{names:?}");
            assert_eq!(HeldBackCases::Without.holds(&jobs), !held_back, "{names:?}");
            assert!(HeldBackCases::All.holds(&jobs));
        }
    }

    #[test]
    fn devices_go_by_their_names() {
        for (name, mode) in DEVICES {
            assert_eq!(mode_named(name, None).expect("a device"), mode);
            assert_eq!(mode_name(mode), name);
        }
        let mode = mode_named("mps-shared-h100", Some(45)).expect("a device");
        let Mode::MpsShared(limits) = mode else {
            panic!("{mode:?}")
        };
        assert_eq!((limits.contention, limits.sms), (450, SmLimits::H100_LIKE.sms));
        assert_eq!(mode_name(mode), "mps-shared-h100");
        for (name, contention) in [("mips", None), ("mps", Some(30)), ("time-sliced", Some(0))] {
            assert!(mode_named(name, contention).is_err(), "{name}");
        }
    }
}
