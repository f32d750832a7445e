// SPDX-License-Identifier: MIT OR Apache-2.0
//! Families of metrics: names, units and meanings.
//!
//! A job's series have labels that do not change while it runs: `node`, `client`, `name`,
//! `cluster_job`, `pid`, `user` and `gpu`; in Kubernetes also `namespace`, `pod` and `container`.
//! Its role and priority, which may change, are in `weft_job_info`. If a counter's labels changed,
//! it would restart in every query. The next broker continues both.
#![forbid(unsafe_code)]

use MetricKind::{Counter, Gauge, Info};

/// Kind of a family's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A sum that never falls while its job or broker runs.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Only labels; the value is 1.
    Info,
}

/// A family of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricFamily {
    /// Its name in OpenMetrics: without `_total` and `_info`.
    pub name: &'static str,
    /// Kind of its values.
    pub kind: MetricKind,
    /// Unit, which ends the name; empty: a count.
    pub unit: &'static str,
    /// Its meaning, in one line.
    pub help: &'static str,
}

impl MetricFamily {
    /// The name of its samples, which queries use.
    pub fn sample(&self) -> String {
        match self.kind {
            Counter => format!("{}_total", self.name),
            Gauge => self.name.to_string(),
            Info => format!("{}_info", self.name),
        }
    }
}

const fn family(name: &'static str, kind: MetricKind, unit: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily { name, kind, unit, help }
}

pub(super) const BROKER: MetricFamily = family("weft_broker", Info, "", "The broker: its version and policy.");
pub(super) const UPTIME: MetricFamily = family(
    "weft_broker_uptime_seconds",
    Gauge,
    "seconds",
    "Time since the broker started.",
);
pub(super) const RECORDS: MetricFamily = family(
    "weft_broker_records",
    Counter,
    "",
    "Records of launches and waits that jobs wrote and the scheduler read.",
);
pub(super) const RECORDS_LOST: MetricFamily = family(
    "weft_broker_records_lost",
    Counter,
    "",
    "Records that came too fast and were overwritten before they were read.",
);
pub(super) const DECISIONS: MetricFamily = family(
    "weft_broker_decisions",
    Counter,
    "",
    "Decisions of the scheduler that were carried out.",
);
pub(super) const JOBS: MetricFamily = family("weft_jobs", Gauge, "", "Attached jobs by role.");
pub(super) const JOBS_WAITING: MetricFamily = family(
    "weft_jobs_waiting_for_memory",
    Gauge,
    "",
    "Attached jobs that wait for device memory.",
);
pub(super) const JOBS_LEFT_OUT: MetricFamily = family(
    "weft_jobs_left_out",
    Gauge,
    "",
    "Attached jobs without series of their own: beyond the 200 most important ones.",
);
pub(super) const JOBS_ENDED: MetricFamily = family(
    "weft_jobs_ended",
    Counter,
    "",
    "Jobs that ended: with a goodbye, vanished without one, or detached by the broker.",
);
pub(super) const JOBS_EXITED: MetricFamily = family(
    "weft_jobs_exited",
    Counter,
    "",
    "Jobs whose processes ended: well (code 0), failed, killed by a signal, cancelled by weft cancel, or unknown.",
);
pub(super) const JOBS_REFUSED: MetricFamily = family("weft_jobs_refused", Counter, "", "Jobs that were refused.");
pub(super) const WARNINGS: MetricFamily = family(
    "weft_warnings",
    Gauge,
    "",
    "Current warnings about the protection of jobs and devices, by kind.",
);
pub(super) const GPU_JOBS: MetricFamily = family("weft_gpu_jobs", Gauge, "", "Attached jobs that use the GPU.");
pub(super) const GPU_UNDER_MPS: MetricFamily = family(
    "weft_gpu_under_mps",
    Gauge,
    "",
    "1: the jobs of the GPU share it under MPS. 0: a job does not, so the GPU takes turns between processes.",
);
pub(super) const GPU_BACKGROUND: MetricFamily = family(
    "weft_gpu_background_ratio",
    Gauge,
    "ratio",
    "Background part of the GPU time that attached jobs had so far while other jobs ran; estimated.",
);
pub(super) const JOB: MetricFamily = family("weft_job", Info, "", "An attached job: its priority and role now.");
pub(super) const JOB_RUN: MetricFamily = family(
    "weft_job_run_seconds",
    Counter,
    "seconds",
    "Time for which the job was attached.",
);
pub(super) const JOB_GPU: MetricFamily = family(
    "weft_job_gpu_seconds",
    Counter,
    "seconds",
    "GPU time that the job had, estimated from predicted kernel times; absent without predictions.",
);
pub(super) const JOB_WON: MetricFamily = family(
    "weft_job_won_gpu_seconds",
    Counter,
    "seconds",
    "GPU time that the job had as a background job, which exclusive use would not have given it; estimated.",
);
pub(super) const JOB_LATENESS: MetricFamily = family(
    "weft_job_lateness_seconds",
    Counter,
    "seconds",
    "Lateness at the job's waits because of background jobs, measured while it was a foreground job.",
);
pub(super) const JOB_LATENESS_CAUSED: MetricFamily = family(
    "weft_job_lateness_caused_seconds",
    Counter,
    "seconds",
    "Lateness of foreground jobs that the job caused as a background job, attributed by GPU time.",
);
pub(super) const JOB_SLOWDOWN: MetricFamily = family(
    "weft_job_slowdown_ratio",
    Gauge,
    "ratio",
    "Mean slowdown of the foreground job by background jobs, as a part of its time, measured; may be below 0.",
);
pub(super) const JOB_SLOWDOWN_ALLOWED: MetricFamily = family(
    "weft_job_slowdown_allowed_ratio",
    Gauge,
    "ratio",
    "Allowed mean slowdown of the job by background jobs, as a part of its time as a foreground job.",
);
pub(super) const JOB_LAUNCHES: MetricFamily = family(
    "weft_job_launches",
    Counter,
    "",
    "Kernel and graph launches of the job.",
);
pub(super) const JOB_LAUNCHES_KNOWN: MetricFamily = family(
    "weft_job_launches_known_ratio",
    Gauge,
    "ratio",
    "Part of the job's launches while other jobs ran that have times in its profile.",
);
pub(super) const JOB_FORCED: MetricFamily = family(
    "weft_job_forced_launches",
    Counter,
    "",
    "Launches that passed the gate without credit, after the longest wait.",
);
pub(super) const JOB_GATE_WAIT: MetricFamily = family(
    "weft_job_gate_wait_seconds",
    Counter,
    "seconds",
    "Time that launches of the job waited at the gate.",
);
pub(super) const JOB_MEMORY: MetricFamily = family(
    "weft_job_memory_bytes",
    Gauge,
    "bytes",
    "Device memory that the job holds, managed memory included.",
);
pub(super) const JOB_MEMORY_MOVED: MetricFamily = family(
    "weft_job_memory_moved_bytes",
    Counter,
    "bytes",
    "Managed memory moved for the job, to the device or to the host.",
);
pub(super) const JOB_WARNINGS: MetricFamily = family(
    "weft_job_warnings",
    Gauge,
    "",
    "Current warnings about the protection of the job, or of other jobs from it, by kind.",
);

/// All families, in the order of the text.
pub const FAMILIES: [&MetricFamily; 30] = [
    &BROKER,
    &UPTIME,
    &RECORDS,
    &RECORDS_LOST,
    &DECISIONS,
    &JOBS,
    &JOBS_WAITING,
    &JOBS_LEFT_OUT,
    &JOBS_ENDED,
    &JOBS_EXITED,
    &JOBS_REFUSED,
    &WARNINGS,
    &GPU_JOBS,
    &GPU_UNDER_MPS,
    &GPU_BACKGROUND,
    &JOB,
    &JOB_RUN,
    &JOB_GPU,
    &JOB_WON,
    &JOB_LATENESS,
    &JOB_LATENESS_CAUSED,
    &JOB_SLOWDOWN,
    &JOB_SLOWDOWN_ALLOWED,
    &JOB_LAUNCHES,
    &JOB_LAUNCHES_KNOWN,
    &JOB_FORCED,
    &JOB_GATE_WAIT,
    &JOB_MEMORY,
    &JOB_MEMORY_MOVED,
    &JOB_WARNINGS,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each family's row in the document: name of the samples, kind and unit.
    fn rows(document: &str) -> BTreeSet<[String; 3]> {
        let rows = document.lines().filter(|line| line.starts_with("| `weft_"));
        rows.map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            [1, 2, 3].map(|at| cells.get(at).unwrap_or(&"").trim_matches('`').to_string())
        })
        .collect()
    }

    #[test]
    fn the_document_names_the_families_of_the_code() {
        let kind = |kind| match kind {
            Counter => "counter",
            Gauge => "gauge",
            Info => "info",
        };
        let documented = rows(include_str!("../../../../docs/metrics.md"));
        let of_code = FAMILIES.map(|family| [family.sample(), kind(family.kind).into(), family.unit.into()]);
        assert_eq!(documented, of_code.into_iter().collect());
    }

    #[test]
    fn names_follow_the_conventions() {
        let mut names = BTreeSet::new();
        for family in FAMILIES {
            let (name, unit) = (family.name, family.unit);
            assert!(names.insert(name), "{name} twice");
            assert!(name.starts_with("weft_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
            assert!(unit.is_empty() || name.ends_with(&format!("_{unit}")), "{name}");
            assert!(["", "seconds", "bytes", "ratio"].contains(&unit), "{name}: a base unit");
            assert!(!name.ends_with("_total") && !name.ends_with("_info"), "{name}");
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{name}");
        }
    }
}
