// SPDX-License-Identifier: MIT OR Apache-2.0
//! A service and a batch job that leave each other too little memory: the runs, their aims, and
//! their tables.
//!
//! MSched reports a p99 4.06 times lower and 2.43 times the batch work of XSched with demand
//! paging. Each is the mean over a batch job that does inference and one that trains. It reports
//! neither the rate of requests nor their arrival times. Both matter. Below a certain load even a
//! service with the device to itself is hardly faster than under XSched. Above a certain load its
//! queue under XSched grows without end, and a longer run gives any ratio. So the runs cover the
//! loads and the kinds of arrival in [`SWEEP`], and every figure is printed. The ceiling is the
//! service's figure with the device to itself. One scene is judged, by a rule that was set before
//! any of its runs:
//!
//! * Requests come at random by the clock (Poisson). The clients of a latency-critical service are
//!   many people who do not know each other, and a slow answer keeps no other client from sending.
//!   In a closed loop the slow contender simply gets fewer requests.
//! * The load is the highest of the sweep at which every contender, with either batch job, is busy
//!   for at most [`STABLE`] of the time. No operator runs such a service nearer to its limit, and
//!   no contender is judged by a growing queue.
//! * The aims are on the mean over the two batch jobs, as MSched's are, on each kind of link.
#![forbid(unsafe_code)]

use std::fmt::Write;

use serde::Serialize;
use weft_engine::memory::MemorySettings;

use super::contender::{SIDES, Side};
use super::machine::service::{RequestArrivals, ServedRequests, serve};
use super::machine::{Setting, TurnSource};
use super::study::run_each;
use super::workload;
use crate::Ns;
use crate::aims::Aim;

/// Memory of the service and the batch job, in sixteenths of the device: 6 and 12 GB of 16, as in
/// MSched's comparison with XSched.
const SHARES: (u64, u64) = (6, 12);

/// Loads, per cent of the device: the time of its requests in a solo run, as a part of all time.
const LOADS: [u64; 4] = [10, 20, 30, 40];

/// Kinds of arrival, and the loads of each: the judged kind at all of them, the others at two for
/// comparison.
const SWEEP: [(RequestKind, &[u64]); 3] = [
    (RequestKind::Poisson, &LOADS),
    (RequestKind::Fixed, &[20, 40]),
    (RequestKind::Closed, &[20, CLOSED]),
];

/// The most that a contender may be busy in the judged scene, as a part of the time. See the
/// module.
const STABLE: f64 = 0.7;

/// The load of the closed loop whose table is printed in full: that of the scheduler's lab.
const CLOSED: u64 = 40;

/// MSched against XSched with demand paging (arXiv 2512.24637): the factor by which the service's
/// p99 is lower, and the factor by which the batch job's throughput is higher.
const P99: f64 = 4.06;
const BATCH: f64 = 2.43;

/// The kind of [`RequestArrivals`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestKind {
    /// At random by the clock.
    Poisson,
    /// By the clock.
    Fixed,
    /// A closed loop.
    Closed,
}

impl RequestKind {
    fn name(self) -> &'static str {
        match self {
            RequestKind::Poisson => "at random",
            RequestKind::Fixed => "by the clock",
            RequestKind::Closed => "closed loop",
        }
    }

    /// Arrivals of requests that take `request` in a solo run, at `load` per cent of the device.
    fn arrivals(self, request: Ns, load: u64) -> RequestArrivals {
        let apart = request * 100 / load;
        match self {
            RequestKind::Poisson => RequestArrivals::Poisson(apart),
            RequestKind::Fixed => RequestArrivals::Fixed(apart),
            RequestKind::Closed => RequestArrivals::Closed(apart - request),
        }
    }
}

/// The runs to make, and their settings.
#[derive(Debug, Clone)]
pub struct ServicePlan {
    /// The device's memory and link; both kinds of link are run.
    pub memory: MemorySettings,
    /// The device's own slice.
    pub device_slice: Ns,
    /// Requests that count.
    pub requests: usize,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Threads.
    pub threads: usize,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceRow {
    /// The batch job's work.
    pub workload: &'static str,
    /// How requests come.
    pub kind: RequestKind,
    /// Load of the requests, per cent of the device.
    pub load: u64,
    /// The contender.
    pub side: Side,
    /// The link.
    pub duplex: bool,
    /// The seed.
    pub seed: u64,
    /// The figures.
    #[serde(flatten)]
    pub served: ServedRequests,
}

#[derive(Debug, Clone, Copy)]
struct ServiceCase {
    training: bool,
    kind: RequestKind,
    load: u64,
    side: Side,
    duplex: bool,
    seed: u64,
}

impl ServiceCase {
    fn run(&self, plan: &ServicePlan) -> ServiceRow {
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
            turns: TurnSource::Common,
        };
        let arrivals = self.kind.arrivals(workload.jobs[0].period(), self.load);
        ServiceRow {
            workload: workload.name,
            kind: self.kind,
            load: self.load,
            side: self.side,
            duplex: self.duplex,
            seed: self.seed,
            served: serve(self.side, &workload, &setting, plan.requests, arrivals, self.seed),
        }
    }
}

/// Makes all runs.
pub fn make(plan: &ServicePlan, progress: &(dyn Fn(usize, usize) + Sync)) -> Vec<ServiceRow> {
    let mut cases = Vec::new();
    for &seed in &plan.seeds {
        for training in [false, true] {
            for (kind, load) in scenes() {
                for side in SIDES {
                    let case = |duplex| ServiceCase {
                        training,
                        kind,
                        load,
                        side,
                        duplex,
                        seed,
                    };
                    // A contender that moves nothing ahead cannot use the link's other direction.
                    let links: &[bool] = if side.planned() { &[true, false] } else { &[true] };
                    cases.extend(links.iter().map(|duplex| case(*duplex)));
                }
            }
        }
    }
    run_each(&cases, plan.threads, |case| case.run(plan), progress)
}

fn scenes() -> impl Iterator<Item = (RequestKind, u64)> {
    SWEEP
        .into_iter()
        .flat_map(|(kind, loads)| loads.iter().map(move |load| (kind, *load)))
}

/// The rows of one scene with one batch job, or with both.
#[derive(Clone, Copy)]
struct SceneRows<'a> {
    rows: &'a [ServiceRow],
    kind: RequestKind,
    load: u64,
}

impl SceneRows<'_> {
    /// The mean over seeds of a contender's figure with one batch job.
    fn of(&self, workload: &str, side: Side, duplex: bool, what: fn(&ServedRequests) -> f64) -> Option<f64> {
        let of = |row: &&ServiceRow| {
            (row.kind, row.load) == (self.kind, self.load)
                && row.workload == workload
                && row.side == side
                && (row.duplex == duplex || !side.planned())
        };
        mean(self.rows.iter().filter(of).map(|row| what(&row.served)))
    }

    /// The factor by which a contender's p99 is lower than XSched's with paging.
    fn p99(&self, workload: &str, side: Side, duplex: bool) -> Option<f64> {
        let p99 = |side| self.of(workload, side, duplex, |served| served.p99_ms);
        Some(p99(Side::Xsched)? / p99(side)?)
    }

    /// The batch job's work over that under XSched with paging.
    fn batch(&self, workload: &str, side: Side, duplex: bool) -> Option<f64> {
        let batch = |side| self.of(workload, side, duplex, |served| served.batch);
        Some(batch(side)? / batch(Side::Xsched)?)
    }

    /// The busiest contender's part of the time.
    fn busiest(&self) -> Option<f64> {
        let of = |row: &&ServiceRow| (row.kind, row.load) == (self.kind, self.load);
        self.rows
            .iter()
            .filter(of)
            .map(|row| row.served.busy)
            .max_by(f64::total_cmp)
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

fn workloads(rows: &[ServiceRow]) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = rows.iter().map(|row| row.workload).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The judged scene: see the module. `None` if no load of the sweep is stable.
fn judged(rows: &[ServiceRow]) -> Option<SceneRows<'_>> {
    let scene = |load| SceneRows {
        rows,
        kind: RequestKind::Poisson,
        load,
    };
    let stable = |scene: &SceneRows| scene.busiest().is_some_and(|busy| busy <= STABLE);
    LOADS.into_iter().rev().map(scene).find(stable)
}

/// Judges weft against XSched with paging, on both links. Next to the p99's ratio stands the ratio
/// for a service with the device to itself: no contender can do better than that.
pub fn judge(rows: &[ServiceRow]) -> Vec<Aim> {
    let scene = judged(rows);
    let each = |what: &dyn Fn(SceneRows, &str) -> Option<f64>| {
        mean(
            workloads(rows)
                .into_iter()
                .filter_map(|workload| what(scene?, workload)),
        )
    };
    let (mut p99, mut batch) = (Vec::new(), Vec::new());
    for duplex in [true, false] {
        let load = scene.map_or_else(
            || "no stable load".to_owned(),
            |scene| format!("at random, {} %", scene.load),
        );
        let case = format!("{load}, {}", if duplex { "duplex" } else { "one way" });
        let ceiling = each(&|scene, workload| scene.p99(workload, Side::Alone, duplex));
        let bound = ceiling.map_or_else(String::new, |alone| format!(" (alone {alone:.2})"));
        p99.push((
            format!("{case}{bound}"),
            each(&|scene, workload| scene.p99(workload, Side::Weft, duplex)),
            P99,
        ));
        batch.push((
            case,
            each(&|scene, workload| scene.batch(workload, Side::Weft, duplex)),
            BATCH,
        ));
    }
    vec![
        super::aims::at_least("beside XSched with paging: the service's p99 so many times lower", p99),
        super::aims::at_least(
            "beside XSched with paging: the batch job's throughput so many times higher",
            batch,
        ),
    ]
}

/// The runs as tables for people: every scene in a line. Then the judged scene and the scheduler's
/// lab's scene with all contenders.
pub fn text(rows: &[ServiceRow]) -> String {
    let mut text = String::new();
    if rows.is_empty() {
        return text;
    }
    sweep(&mut text, rows);
    let closed = SceneRows {
        rows,
        kind: RequestKind::Closed,
        load: CLOSED,
    };
    let judged = judged(rows);
    match judged {
        Some(scene) => {
            let _ = writeln!(
                text,
                "\nJudged: requests at random, {} % of the device: the highest load at which every contender is busy for at most {STABLE} of the time.",
                scene.load
            );
        }
        None => text.push_str("\nJudged: nothing; at no load of the sweep every contender is stable.\n"),
    }
    for scene in judged.into_iter().chain([closed]) {
        for workload in workloads(rows) {
            whole(&mut text, scene, workload);
        }
    }
    text
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// The result of weft and the ceiling, scene by scene.
fn sweep(text: &mut String, rows: &[ServiceRow]) {
    let _ = writeln!(
        text,
        "\nA service (6 of 16 parts of the device) beside a batch job (12 of 16), against XSched's rule with demand paging; `busy`: of the time, what XSched's service has a request to answer;\n\
         `alone`: the service alone, which nothing can beat; duplex and one way: weft. MSched's own figures, means of both: p99 {P99}x lower, batch {BATCH}x."
    );
    let _ = writeln!(
        text,
        "{:<13} {:>5} {:<17} {:>6} {:>10} {:>8} {:>8} {:>8} {:>9} {:>8}",
        "requests", "load", "", "busy", "p99, ms", "alone", "duplex", "one way", "batch: d.", "one way"
    );
    for (kind, load) in scenes() {
        let scene = SceneRows { rows, kind, load };
        let names = workloads(rows);
        let each = |what: &dyn Fn(&str) -> Option<f64>| mean(names.iter().filter_map(|workload| what(workload)));
        let mut line = |workload: &str, busy, p99, values: [Option<f64>; 5]| {
            let _ = writeln!(
                text,
                "{:<13} {:>3} % {workload:<17} {:>6} {:>10} {:>8} {:>8} {:>8} {:>9} {:>8}",
                kind.name(),
                load,
                shown(busy, 2),
                shown(p99, 0),
                shown(values[0], 2),
                shown(values[1], 2),
                shown(values[2], 2),
                shown(values[3], 2),
                shown(values[4], 2)
            );
        };
        let ratios = |workload: &str| {
            [
                scene.p99(workload, Side::Alone, true),
                scene.p99(workload, Side::Weft, true),
                scene.p99(workload, Side::Weft, false),
                scene.batch(workload, Side::Weft, true),
                scene.batch(workload, Side::Weft, false),
            ]
        };
        for workload in &names {
            let of = |what: fn(&ServedRequests) -> f64| scene.of(workload, Side::Xsched, true, what);
            line(
                workload,
                of(|served| served.busy),
                of(|served| served.p99_ms),
                ratios(workload),
            );
        }
        let means = [0, 1, 2, 3, 4].map(|at| each(&|workload| ratios(workload)[at]));
        line("mean of both", None, None, means);
    }
}

/// All contenders of one scene with one batch job.
fn whole(text: &mut String, scene: SceneRows, workload: &str) {
    let _ = writeln!(
        text,
        "\nA service (6 of 16 parts of the device, {} % of its time, {}) {workload} (12 of 16 parts):\n{:<24} {:<8} {:>6} {:>9} {:>9} {:>12} {:>20} {:>20}",
        scene.load,
        scene.kind.name(),
        "",
        "link",
        "busy",
        "mean ms",
        "p99 ms",
        "batch, of",
        "service: faulted,",
        "batch: faulted,"
    );
    let _ = writeln!(
        text,
        "{:<24} {:<8} {:>6} {:>9} {:>9} {:>12} {:>20} {:>20}",
        "", "", "", "", "", "the time, %", "ahead, GB", "ahead, GB"
    );
    for side in SIDES {
        for duplex in [true, false] {
            let value = |what: fn(&ServedRequests) -> f64| scene.of(workload, side, duplex, what);
            if !duplex && !side.planned() {
                continue;
            }
            let pair = |faulted: fn(&ServedRequests) -> f64, ahead: fn(&ServedRequests) -> f64| {
                format!("{}, {}", shown(value(faulted), 1), shown(value(ahead), 1))
            };
            let _ = writeln!(
                text,
                "{:<24} {:<8} {:>6} {:>9} {:>9} {:>12} {:>20} {:>20}",
                side.name(),
                match (side.planned(), duplex) {
                    (false, _) => "-",
                    (_, true) => "duplex",
                    (_, false) => "one way",
                },
                shown(value(|served| served.busy), 2),
                shown(value(|served| served.mean_ms), 1),
                shown(value(|served| served.p99_ms), 1),
                shown(value(|served| served.batch * 100.0), 2),
                pair(|served| served.service_gb.0, |served| served.service_gb.1),
                pair(|served| served.batch_gb.0, |served| served.batch_gb.1),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_load_that_everybody_bears_is_judged() {
        let row = |side, kind, load, busy| ServiceRow {
            workload: "beside training",
            kind,
            load,
            side,
            duplex: true,
            seed: 1,
            served: ServedRequests {
                mean_ms: 1.0,
                p99_ms: 1.0,
                busy,
                batch: 0.5,
                service_gb: (0.0, 0.0),
                batch_gb: (0.0, 0.0),
                fullest: 1.0,
            },
        };
        let mut rows = vec![
            row(Side::Xsched, RequestKind::Poisson, 10, 0.3),
            row(Side::Weft, RequestKind::Poisson, 20, 0.2),
            row(Side::Xsched, RequestKind::Poisson, 20, STABLE),
            row(Side::Weft, RequestKind::Poisson, 30, 0.3),
            row(Side::XschedTuned, RequestKind::Poisson, 30, STABLE + 0.01),
            row(Side::Xsched, RequestKind::Closed, 40, 0.5),
        ];
        assert_eq!(judged(&rows).map(|scene| scene.load), Some(20));
        rows.retain(|row| row.load > 20);
        assert!(judged(&rows).is_none());
    }
}
