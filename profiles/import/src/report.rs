// SPDX-License-Identifier: MIT OR Apache-2.0
//! Report of an import: its input, its steps, its omissions; for people and for programs.

use std::{collections::HashSet, fmt::Write, path::Path};

use serde::Serialize;
use weft_profiles::Ns;
use weft_trace_format::{Call, Trace};

use crate::{
    assemble::Assembled,
    compare::{Compared, RunFigures},
    cut::Cuts,
    join::Joined,
    recording::WorkClass,
};

/// Kind of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramRole {
    /// It answers requests: a step ends when its work has ended.
    Service,
    /// It trains: a step may end before its work.
    Training,
}

/// Difference from which the report has a line about it.
pub const NOTABLE: f64 = 0.05;

/// Begins of words that only trainings have.
const TRAINING: [&str; 8] = [
    "backward",
    "optimizer",
    "zero_grad",
    "bwd",
    "wgrad",
    "multi_tensor_apply",
    "adagrad",
    "adam",
];

/// Whether a name has a word that only trainings have.
fn is_of_training(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    // `fused_adam` and `FusedAdam`, but not `hadamard`.
    let begins_word = |at: usize| {
        let begin = name.as_bytes()[at];
        let before = at.checked_sub(1).map(|before| name.as_bytes()[before]);
        before.is_none_or(|before| {
            !before.is_ascii_alphabetic() || (before.is_ascii_lowercase() && begin.is_ascii_uppercase())
        })
    };
    let has = |word: &str| lower.match_indices(word).any(|(at, _)| begins_word(at));
    TRAINING.iter().any(|word| has(word))
}

/// Kind of the program by the names of its kernels and of its own marks.
pub fn role(joined: &Joined) -> ProgramRole {
    let file = joined.file;
    let marks = joined.notes().filter(|note| note.own).map(|note| note.name);
    let names: HashSet<u32> = file.shapes.iter().map(|shape| shape.name).chain(marks).collect();
    match names.into_iter().any(|name| is_of_training(file.names.name(name))) {
        true => ProgramRole::Training,
        false => ProgramRole::Service,
    }
}

/// Figures of the file and of the trace, which is played without other jobs.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct FileComparison {
    /// Time of the steps in the file, ns.
    pub file_ns: Ns,
    /// Time of the trace, ns.
    pub played_ns: Ns,
    /// Part of `file_ns` in which kernels, copies or fills ran.
    pub file_busy: f64,
    /// Part of `played_ns` in which they ran.
    pub played_busy: f64,
    /// The rest of `file_ns`, ns.
    pub file_gaps_ns: Ns,
    /// The rest of `played_ns`, ns.
    pub played_gaps_ns: Ns,
    /// `played_ns / file_ns`.
    pub step_ratio: f64,
    /// `played_busy - file_busy`.
    pub busy_difference: f64,
    /// `played_gaps_ns / file_gaps_ns`.
    pub gap_ratio: f64,
    #[serde(skip)]
    file: RunFigures,
    #[serde(skip)]
    played: RunFigures,
}

impl FileComparison {
    fn of(file: RunFigures, played: RunFigures) -> FileComparison {
        let ratio = |ours: Ns, theirs: Ns| {
            if ours == theirs {
                1.0
            } else {
                ours as f64 / theirs.max(1) as f64
            }
        };
        FileComparison {
            file_ns: file.wall,
            played_ns: played.wall,
            file_busy: file.busy_share(),
            played_busy: played.busy_share(),
            file_gaps_ns: file.idle(),
            played_gaps_ns: played.idle(),
            step_ratio: ratio(played.wall, file.wall),
            busy_difference: played.busy_share() - file.busy_share(),
            gap_ratio: ratio(played.idle(), file.idle()),
            file,
            played,
        }
    }
}

/// Report of an import.
#[derive(Debug, Clone, Serialize)]
pub struct ImportReport {
    /// Files.
    pub files: Vec<String>,
    /// The GPU's name.
    pub gpu: String,
    /// Number of the device.
    pub device: u32,
    /// Other devices, or processes on this one, whose work is left out.
    pub other_devices: u64,
    /// A service or a training.
    pub role: ProgramRole,
    /// Calls that were read.
    pub calls: u64,
    /// Kernels of the device.
    pub kernels: u64,
    /// Copies and fills of the device.
    pub copies: u64,
    /// Graph launches.
    pub graphs: u64,
    /// Graph launches of whose kernels the file has nothing.
    pub graphs_unknown: u64,
    /// Waits in the trace.
    pub waits: u64,
    /// Waits of the file, also outside of the steps, whose target it has.
    pub waits_exact: u64,
    /// Those whose target is the work that ended last before they returned.
    pub waits_inferred: u64,
    /// Waits for which nothing was under way; they are host time.
    pub waits_for_nothing: u64,
    /// Waits that were added at the ends of requests.
    pub waits_added: u64,
    /// Times when a stream waited for another.
    pub dependencies: u64,
    /// Rule of the cut.
    pub cut: String,
    /// Files whose cut, role or device are not the first file's: those of each.
    pub others: Vec<String>,
    /// Steps.
    pub steps: u64,
    /// Different sequences of calls among them.
    pub sequences: u64,
    /// Part of kernel time in which other kernels ran, too; each has an equal part of that time.
    pub overlap: f64,
    /// Launch calls that blocked on a full queue.
    pub blocked: u64,
    /// Time cut of them, ns.
    pub blocked_ns: Ns,
    /// Pieces of work whose call the file does not have.
    pub work_without_call: u64,
    /// Those that were queued before the first step.
    pub queued_before: u64,
    /// Their time, ns.
    pub queued_before_ns: Ns,
    /// Calls before the first step and after the last.
    pub calls_outside: u64,
    /// Events that are not used, by kind.
    pub unused: std::collections::BTreeMap<String, u64>,
    /// Events without the fields of their kind.
    pub malformed: u64,
    /// Median cost of a launch call, ns.
    pub launch_cost_ns: Ns,
    /// Median time between two kernels of a full queue, ns; the trace is played with it.
    pub between_ns: Ns,
    /// How far the trace is from the file.
    pub comparison: FileComparison,
}

impl ImportReport {
    /// A service or a training.
    fn kind(&self) -> &'static str {
        match self.role {
            ProgramRole::Service => "service",
            ProgramRole::Training => "training",
        }
    }

    /// Report of one file.
    pub(crate) fn of(
        path: &Path,
        joined: &Joined,
        cuts: &Cuts,
        role: ProgramRole,
        counts: &Assembled,
        compared: &Compared,
        trace: &Trace,
    ) -> ImportReport {
        let count =
            |kind: fn(WorkClass) -> bool| joined.works.iter().filter(|work| kind(work.work.class)).count() as u64;
        let engine = joined.works.iter().filter(|work| work.work.class.on_kernel_engine());
        let (own, shared) = engine.fold((0, 0), |(own, shared): (Ns, Ns), work| {
            let length = work.work.end - work.work.start;
            (length.saturating_add(own), work.share.saturating_add(shared))
        });
        ImportReport {
            files: vec![path.display().to_string()],
            gpu: trace.gpu.name.clone(),
            device: joined.device,
            other_devices: joined.busy.len().saturating_sub(1) as u64,
            role,
            calls: joined.calls.len() as u64,
            kernels: count(|class| matches!(class, WorkClass::Kernel(_))),
            copies: count(|class| matches!(class, WorkClass::Copy { .. })),
            graphs: counts.graphs,
            graphs_unknown: counts.graphs_unknown,
            waits: counts.waits,
            waits_exact: joined.exact_waits,
            waits_inferred: joined.inferred_waits,
            waits_for_nothing: counts.waits_for_nothing,
            waits_added: counts.added_waits,
            dependencies: joined.dependencies,
            cut: cuts.how.clone(),
            others: Vec::new(),
            steps: trace.steps.len() as u64,
            sequences: 0,
            overlap: 1.0 - shared as f64 / (own as f64).max(1.0),
            blocked: counts.blocked,
            blocked_ns: counts.blocked_ns,
            work_without_call: joined.works.iter().filter(|work| work.call.is_none()).count() as u64,
            queued_before: compared.queued.works,
            queued_before_ns: compared.queued.time,
            calls_outside: counts.calls_outside,
            unused: joined.file.unused.clone(),
            malformed: joined.file.malformed,
            launch_cost_ns: trace.launch_cost,
            between_ns: compared.between,
            comparison: FileComparison::of(compared.file, compared.played),
        }
    }

    fn gpu_name(&self) -> &str {
        match self.gpu.as_str() {
            "" => "unknown GPU",
            name => name,
        }
    }

    /// Adds the report of another file of the program.
    pub(crate) fn add(&mut self, more: ImportReport) {
        if (&self.cut, self.role, self.device, &self.gpu) != (&more.cut, more.role, more.device, &more.gpu) {
            self.others.push(format!(
                "{}: device {} ({}), a {}, {}",
                more.files.join(" "),
                more.device,
                more.gpu_name(),
                more.kind(),
                more.cut
            ));
        }
        self.files.extend(more.files);
        for (sum, part) in [
            (&mut self.calls, more.calls),
            (&mut self.kernels, more.kernels),
            (&mut self.copies, more.copies),
            (&mut self.graphs, more.graphs),
            (&mut self.graphs_unknown, more.graphs_unknown),
            (&mut self.waits, more.waits),
            (&mut self.waits_exact, more.waits_exact),
            (&mut self.waits_inferred, more.waits_inferred),
            (&mut self.waits_for_nothing, more.waits_for_nothing),
            (&mut self.waits_added, more.waits_added),
            (&mut self.dependencies, more.dependencies),
            (&mut self.blocked, more.blocked),
            (&mut self.blocked_ns, more.blocked_ns),
            (&mut self.work_without_call, more.work_without_call),
            (&mut self.queued_before, more.queued_before),
            (&mut self.queued_before_ns, more.queued_before_ns),
            (&mut self.calls_outside, more.calls_outside),
            (&mut self.malformed, more.malformed),
        ] {
            *sum += part;
        }
        for (kind, count) in more.unused {
            *self.unused.entry(kind).or_default() += count;
        }
        self.overlap = self.overlap.max(more.overlap);
        self.other_devices = self.other_devices.max(more.other_devices);
        let sum = |a: RunFigures, b: RunFigures| RunFigures {
            wall: a.wall + b.wall,
            busy: a.busy + b.busy,
        };
        let (ours, theirs) = (self.comparison, more.comparison);
        self.comparison = FileComparison::of(sum(ours.file, theirs.file), sum(ours.played, theirs.played));
    }

    /// Fills in the figures of the whole trace.
    pub(crate) fn finish(&mut self, trace: &Trace) {
        self.steps = trace.steps.len() as u64;
        let mut sequences: HashSet<Vec<Call>> = HashSet::new();
        for step in &trace.steps {
            let calls = step.operations.iter().map(|operation| operation.call.with_duration(0));
            sequences.insert(calls.collect());
        }
        self.sequences = sequences.len() as u64;
    }

    /// The trace's note: one line.
    pub(crate) fn note(&self) -> String {
        let file = self
            .files
            .first()
            .map_or("", |file| file.rsplit('/').next().unwrap_or(file));
        let more = match self.files.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let blocked = match self.blocked {
            0 => String::new(),
            count => format!(
                "; {:.1} ms of {count} blocked launch calls are cut",
                ms(self.blocked_ns)
            ),
        };
        format!("imported from {file}{more}; {}{blocked}", self.cut)
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let gpu = self.gpu_name();
        let graphs = match (self.graphs, self.graphs_unknown) {
            (0, _) => String::new(),
            (graphs, 0) => format!(", graph launches {graphs}"),
            (graphs, unknown) => format!(", graph launches {graphs} ({unknown} without their kernels)"),
        };
        let _ = writeln!(
            out,
            "read      calls {}, kernels {}, copies {}{graphs} of device {} ({gpu})",
            self.calls, self.kernels, self.copies, self.device
        );
        let kinds = match (self.steps, self.sequences) {
            (1, _) => String::new(),
            (_, 1) => ", all with the same calls".to_owned(),
            (_, kinds) => format!(", with {kinds} different sequences of calls"),
        };
        let role = self.kind();
        let _ = writeln!(out, "steps     {} of a {role}{kinds}: {}", self.steps, self.cut);
        for other in &self.others {
            let _ = writeln!(out, "differs   {other}");
        }
        let _ = writeln!(
            out,
            "waits     {}: target in the file {}, inferred {}, added {}; in the trace {}, between streams {}",
            self.waits_exact + self.waits_inferred + self.waits_added,
            self.waits_exact,
            self.waits_inferred,
            self.waits_added,
            self.waits + self.waits_added,
            self.dependencies
        );
        for line in self.left_out() {
            let _ = writeln!(out, "left out  {line}");
        }
        if self.overlap > 0.01 {
            let _ = writeln!(
                out,
                "note      kernels ran beside others: {:.0} % of their time is counted once, in equal parts",
                self.overlap * 100.0
            );
        }
        let _ = writeln!(
            out,
            "note      a profiler makes a host 1.3 to 2 times slower (launch call: {:.1} us): --host-time scales it",
            self.launch_cost_ns as f64 / 1e3
        );
        let _ = writeln!(
            out,
            "note      between queued kernels: {:.1} us, which the trace does not have; `alone` is played with it",
            self.between_ns as f64 / 1e3
        );
        let c = &self.comparison;
        let _ = writeln!(
            out,
            "alone     {:.3} ms, file {:.3} ms: ratio {:.3}; kernels or copies run {:.3} of it, file {:.3}; idle {:.3} \
             ms, file {:.3} ms: ratio {:.3}",
            ms(c.played_ns),
            ms(c.file_ns),
            c.step_ratio,
            c.played_busy,
            c.file_busy,
            ms(c.played_gaps_ns),
            ms(c.file_gaps_ns),
            c.gap_ratio
        );
        if (c.step_ratio - 1.0).abs() > NOTABLE {
            let _ = writeln!(
                out,
                "warning   played alone it takes {:.0} % {} time than the file: do not rely on its times; try another --cut",
                (c.step_ratio - 1.0).abs() * 100.0,
                if c.step_ratio > 1.0 { "more" } else { "less" }
            );
        }
        out
    }

    fn left_out(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut add = |count: u64, what: &str, more: String| {
            if count > 0 {
                lines.push(format!("{what}: {count}{more}"));
            }
        };
        let none = String::new;
        add(
            self.other_devices,
            "other devices or processes",
            ", --device N takes another".to_owned(),
        );
        let queued = format!(
            ", {} of them queued before the first step ({:.3} ms)",
            self.queued_before,
            ms(self.queued_before_ns)
        );
        add(self.work_without_call, "pieces of work without their call", queued);
        add(
            self.calls_outside,
            "calls before the first step or after the last",
            none(),
        );
        let time = format!(", {:.3} ms", ms(self.blocked_ns));
        add(self.blocked, "waits of launch calls for a full queue", time);
        add(
            self.waits_for_nothing,
            "waits for which nothing was under way, now host time",
            none(),
        );
        add(self.malformed, "events with a wrong or missing value", none());
        if !self.unused.is_empty() {
            let mut kinds: Vec<(&String, &u64)> = self.unused.iter().collect();
            kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let shown: Vec<String> = kinds
                .iter()
                .take(5)
                .map(|(kind, count)| format!("{count} {kind}"))
                .collect();
            lines.push(format!("events of no use: {}", shown.join(", ")));
        }
        lines
    }
}

fn ms(ns: Ns) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_make_a_training() {
        for name in [
            "void multi_tensor_apply_kernel<FusedAdamMathFunctor>",
            "FusedAdagrad",
            "fused_adam",
            "flash_bwd_dot_do_o_kernel",
            "max_pool_backward_nchw",
            "LayerNormBackwardCUDAKernelImpl",
            "Optimizer.step#SGD.step",
        ] {
            assert!(is_of_training(name), "{name}");
        }
        for name in ["fast_hadamard_transform", "subwgradient", "gemm", "", "é"] {
            assert!(!is_of_training(name), "{name}");
        }
    }
}
