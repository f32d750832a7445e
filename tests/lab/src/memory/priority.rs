//! A service beside a batch job that leave each other too little memory: which runs are made, what they are to reach, and how they are told.
#![forbid(unsafe_code)]

use std::fmt::Write;

use serde::Serialize;
use simgpu_engine::memory::MemorySettings;

use super::contender::{SIDES, Side};
use super::machine::Setting;
use super::machine::service::{Served, serve};
use super::study::run_each;
use super::workload;
use crate::Ns;
use crate::aims::Aim;

/// What the service and the batch job have, of sixteen parts of the device: 6 and 12 GB of 16, as MSched compares itself with XSched.
const SHARES: (u64, u64) = (6, 12);

/// A client thinks for so many times as long as a request takes alone: the service asks for 40 % of the device, as in the scheduler's lab.
const THOUGHT: (Ns, Ns) = (3, 2);

/// MSched against XSched with demand paging (arXiv 2512.24637): the service's p99 so many times lower, the batch job's throughput so many times higher.
const P99: f64 = 4.06;
const BATCH: f64 = 2.43;

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The device's memory and link; of the link both kinds are run.
    pub memory: MemorySettings,
    /// The device's own slice.
    pub device_slice: Ns,
    /// Requests that count.
    pub requests: usize,
    /// Which seeds.
    pub seeds: Vec<u64>,
    /// Threads.
    pub threads: usize,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What the batch job does.
    pub workload: &'static str,
    /// The contender.
    pub side: Side,
    /// The link.
    pub duplex: bool,
    /// The seed.
    pub seed: u64,
    /// What came of it.
    #[serde(flatten)]
    pub served: Served,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    training: bool,
    side: Side,
    duplex: bool,
    seed: u64,
}

impl Case {
    fn run(&self, plan: &Plan) -> Row {
        let memory = MemorySettings {
            duplex: self.duplex,
            ..plan.memory
        };
        let (of_service, of_batch) = SHARES;
        let part = memory.capacity / 16;
        let workload = workload::service(part * of_service, part * of_batch, self.training, self.seed);
        let setting = Setting {
            memory,
            slice: 0,
            device_slice: plan.device_slice,
            adaptive: None,
        };
        let thought = workload.jobs[0].period() * THOUGHT.0 / THOUGHT.1;
        Row {
            workload: workload.name,
            side: self.side,
            duplex: self.duplex,
            seed: self.seed,
            served: serve(self.side, &workload, &setting, plan.requests, thought, self.seed),
        }
    }
}

/// Makes all runs.
pub fn make(plan: &Plan, progress: &(dyn Fn(usize, usize) + Sync)) -> Vec<Row> {
    let mut cases = Vec::new();
    for &seed in &plan.seeds {
        for training in [false, true] {
            for side in SIDES {
                let case = |duplex| Case {
                    training,
                    side,
                    duplex,
                    seed,
                };
                // Who has all there has no use for the link.
                let links: &[bool] = if side.fits() { &[true] } else { &[true, false] };
                cases.extend(links.iter().map(|duplex| case(*duplex)));
            }
        }
    }
    run_each(&cases, plan.threads, |case| case.run(plan), progress)
}

fn mean(rows: &[Row], workload: &str, side: Side, duplex: bool, what: impl Fn(&Served) -> f64) -> Option<f64> {
    let of = |row: &&Row| row.workload == workload && row.side == side && (row.duplex == duplex || side.fits());
    let values: Vec<f64> = rows.iter().filter(of).map(|row| what(&row.served)).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn workloads(rows: &[Row]) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = rows.iter().map(|row| row.workload).collect();
    names.dedup();
    names.sort_unstable();
    names.dedup();
    names
}

/// Judges weft against XSched with paging, each batch job for itself and on both links. Beside the p99's ratio stands what it would be if the service had the device for itself: no contender can
/// do better than that.
pub fn judge(rows: &[Row]) -> Vec<Aim> {
    let mut p99 = Vec::new();
    let mut batch = Vec::new();
    for workload in workloads(rows) {
        for duplex in [true, false] {
            let of = |side, what: fn(&Served) -> f64| mean(rows, workload, side, duplex, what);
            let ratio = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
            let xsched = of(Side::Xsched, |served| served.p99_ms);
            let case = format!("{workload}, {}", if duplex { "duplex" } else { "one way" });
            let alone = ratio(xsched, of(Side::Alone, |served| served.p99_ms));
            let bound = alone.map_or_else(String::new, |alone| format!(" (alone {alone:.2})"));
            let weft = of(Side::Weft, |served| served.p99_ms);
            p99.push((format!("{case}{bound}"), ratio(xsched, weft), P99));
            let weft = of(Side::Weft, |served| served.batch);
            batch.push((case, ratio(weft, of(Side::Xsched, |served| served.batch)), BATCH));
        }
    }
    vec![
        super::aims::at_least("beside XSched with paging: the service's p99 so many times lower", p99),
        super::aims::at_least(
            "beside XSched with paging: the batch job's throughput so many times higher",
            batch,
        ),
    ]
}

/// The runs as a table for people.
pub fn text(rows: &[Row]) -> String {
    let mut text = String::new();
    for workload in workloads(rows) {
        let _ = writeln!(
            text,
            "\nA service (6 of 16 parts of the device, 40 % of its time) {workload} (12 of 16 parts):\n{:<24} {:<8} {:>9} {:>9} {:>12} {:>20} {:>20}",
            "", "link", "mean ms", "p99 ms", "batch, of", "service: faulted,", "batch: faulted,"
        );
        let _ = writeln!(
            text,
            "{:<24} {:<8} {:>9} {:>9} {:>12} {:>20} {:>20}",
            "", "", "", "", "the time, %", "ahead, GB", "ahead, GB"
        );
        for side in SIDES {
            for duplex in [true, false] {
                let value = |what: fn(&Served) -> f64| mean(rows, workload, side, duplex, what);
                let (Some(average), false) = (value(|served| served.mean_ms), side.fits() && !duplex) else {
                    continue;
                };
                let pair = |faulted: fn(&Served) -> f64, ahead: fn(&Served) -> f64| {
                    let shown =
                        |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
                    format!("{}, {}", shown(value(faulted)), shown(value(ahead)))
                };
                let _ = writeln!(
                    text,
                    "{:<24} {:<8} {average:>9.1} {:>9.1} {:>12.2} {:>20} {:>20}",
                    side.name(),
                    match (side.fits(), duplex) {
                        (true, _) => "-",
                        (_, true) => "duplex",
                        (_, false) => "one way",
                    },
                    value(|served| served.p99_ms).unwrap_or(0.0),
                    value(|served| served.batch).unwrap_or(0.0) * 100.0,
                    pair(|served| served.service_gb.0, |served| served.service_gb.1),
                    pair(|served| served.batch_gb.0, |served| served.batch_gb.1),
                );
            }
        }
    }
    text
}
