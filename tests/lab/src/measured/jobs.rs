// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measured traces and weft's recordings, as jobs.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use weft_kernel_id::is_collective;
use weft_player::{PlayedJob, Program};
use weft_trace_format::{AwaitedWork, Call, Trace};

use super::MeasuredOptions;
use crate::pairs::{self, Model};

/// GPUs whose kernel times may stand side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Generation {
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

/// The part of the device time of a trace in kernels that wait for peers.
pub(super) fn peers_share(trace: &Trace) -> f64 {
    let (mut peers, mut all) = (0, 0);
    for operation in trace.steps.iter().flat_map(|step| &step.operations) {
        if let Call::Launch { kernel, duration, .. } = operation.call {
            all += duration;
            if is_collective(&trace.kernels[kernel as usize].id.symbol) {
                peers += duration;
            }
        }
    }
    peers as f64 / all.max(1) as f64
}

/// Whether each request of the trace ends with a wait for its last work.
pub(super) fn awaits_its_end(trace: &Trace) -> bool {
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
pub(super) struct MeasuredJob {
    pub name: String,
    pub generation: Generation,
    pub distributed: bool,
    pub own_pace: bool,
    pub program: Arc<Program>,
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

/// The folder of measured traces: as given, else the usual one.
pub(super) fn folder(given: Option<&Path>) -> Result<PathBuf> {
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
pub(super) const SOURCES: &str = "AMD-AGI/TraceLens (171dd74721ca), facebookresearch/HolisticTraceAnalysis (f4d0062c382f), \
                       facebookresearch/param (1e115ffc62c6), ovg-project/kvcached (4a8176e)";

pub(super) fn has_traces(folder: &Path) -> bool {
    let is_trace = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension().is_some_and(|ext| ext == "trace"))
    };
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.any(is_trace))
}

/// The jobs that cases are made of.
pub(super) struct LabJobs {
    pub services: Vec<MeasuredJob>,
    pub trainings: Vec<MeasuredJob>,
    pub recorded_services: Vec<(String, Arc<Program>)>,
    pub recorded_trainings: Vec<(String, Arc<Program>)>,
    /// Recorded services whose requests have many sizes.
    pub varied: Vec<(String, Arc<Program>)>,
}

impl LabJobs {
    pub fn load(options: &MeasuredOptions) -> Result<LabJobs> {
        let measured = pairs::models(&folder(options.traces.as_deref())?)?;
        let recorded = pairs::models(&options.recorded)?;
        let varied = pairs::models(&options.varied)?;
        type Pick = fn(&Model) -> Option<&Trace>;
        let wanted = |name: &str| options.job.is_empty() || options.job.iter().any(|job| job == name);
        let measured_of = |pick: Pick| -> Result<Vec<MeasuredJob>> {
            let traces = measured.iter().filter(|model| wanted(&model.name));
            traces
                .filter_map(|model| Some(MeasuredJob::of(&model.name, pick(model)?)))
                .collect()
        };
        let recorded_of = |models: &[Model], pick: Pick| -> Result<Vec<(String, Arc<Program>)>> {
            let traces = models.iter().filter(|model| wanted(&model.name));
            traces
                .filter_map(|model| {
                    let program = Program::of(pick(model)?).with_context(|| model.name.clone());
                    Some(program.map(|program| (model.name.clone(), Arc::new(program))))
                })
                .collect()
        };
        Ok(LabJobs {
            services: measured_of(|model| model.infer.as_ref())?,
            trainings: measured_of(|model| model.train.as_ref())?,
            recorded_services: recorded_of(&recorded, |model| model.infer.as_ref())?,
            recorded_trainings: recorded_of(&recorded, |model| model.train.as_ref())?,
            varied: recorded_of(&varied, |model| model.infer.as_ref())?,
        })
    }
}

/// A measured service's job on hosts that take this part of the time in its file.
pub(super) fn service(job: &MeasuredJob, host_time: f64) -> PlayedJob {
    let program = Arc::new((*job.program).clone().with_host_time(host_time));
    let think = (!job.own_pace).then_some(pairs::THINK_NS);
    pairs::job(&job.name, 0, &program, think)
}

/// A training on hosts that take this part of the time in its file.
pub(super) fn training(name: &str, program: &Program, host_time: f64) -> PlayedJob {
    let program = Arc::new(program.clone().with_host_time(host_time));
    pairs::job(&format!("{name} training"), 5, &program, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::US;
    use crate::generate::Builder;

    fn request(waits: bool) -> Trace {
        let mut builder = Builder::new("service");
        builder.step(0);
        builder.launch(0, 0, 10 * US);
        if waits {
            builder.sync();
        }
        builder.done()
    }

    #[test]
    fn a_service_keeps_its_pace_if_its_requests_end_without_a_wait() {
        assert!(!MeasuredJob::of("a", &request(true)).expect("sound").own_pace);
        assert!(MeasuredJob::of("a", &request(false)).expect("sound").own_pace);
    }

    #[test]
    fn generations_go_by_the_names_of_gpus() {
        for (gpu, generation) in [
            ("NVIDIA H100 80GB HBM3", Generation::Hopper),
            ("NVIDIA A100-SXM4-40GB", Generation::Ampere),
            ("Tesla V100-SXM2-32GB", Generation::Older),
        ] {
            let mut trace = request(true);
            trace.gpu.name = gpu.into();
            assert_eq!(Generation::of(&trace), generation, "{gpu}");
        }
    }

    #[test]
    fn a_folder_without_traces_is_named_with_the_remedy() {
        let error = folder(Some(Path::new("/nonexistent")))
            .expect_err("no folder")
            .to_string();
        assert!(error.starts_with("/nonexistent: no measured traces"), "{error}");
        assert!(error.contains("weft trace import"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}
