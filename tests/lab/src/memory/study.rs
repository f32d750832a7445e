//! Which runs are made, and the slice at which they are.
//!
//! Long slices hide any migration, and MSched does not say which slice its figures are from. So the
//! slice is the one at which a model of MSched (this laboratory's machine with the planner set to
//! do what MSched does, on the duplex link that it measured) comes nearest to its published shares
//! of what fits: [`PUBLISHED`]. All contenders that take turns have this slice.
#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use simgpu_engine::memory::MemorySettings;

use super::contender::{ALL, Contender};
use super::machine::{MachineFigures, Setting, run};
use super::workload::{NAMES, generate};
use crate::{MS, Ns};

/// Per cent of the device, and what MSched keeps of the throughput when all fits, several decoders
/// (arXiv 2512.24637, MultiLLM).
pub const PUBLISHED: [(u64, f64); 3] = [(150, 0.7409), (200, 0.5823), (300, 0.4301)];

/// Slices that are looked at, ms.
const SLICES: [u64; 12] = [10, 20, 35, 50, 75, 100, 130, 170, 220, 300, 400, 600];

/// What the slice may be chosen between when it adapts: the efficiency asked for, and how long
/// nobody may be away, ms.
pub const ADAPTIVE: [(f64, u64); 3] = [(0.95, 500), (0.95, 1_000), (0.95, 3_000)];

/// What is to be run.
#[derive(Debug, Clone)]
pub struct StudyPlan {
    /// The device's memory and link; of the link both kinds are run.
    pub memory: MemorySettings,
    /// The device's own slice.
    pub device_slice: Ns,
    /// The common slice; found where it is not given.
    pub slice: Option<Ns>,
    /// Which workloads.
    pub workloads: Vec<&'static str>,
    /// Per cent of the device.
    pub shares: Vec<u64>,
    /// Which contenders.
    pub contenders: Vec<Contender>,
    /// Which seeds.
    pub seeds: Vec<u64>,
    /// Whether efficiency is run against the slice.
    pub curves: bool,
    /// Threads.
    pub threads: usize,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct StudyRow {
    /// The workload.
    pub workload: &'static str,
    /// Per cent of the device.
    pub share: u64,
    /// The link.
    pub duplex: bool,
    /// The contender.
    pub contender: Contender,
    /// The seed.
    pub seed: u64,
    /// The common slice, ms.
    pub slice_ms: f64,
    /// What the slice adapts to, where it does: efficiency asked for, bound on being away in ms.
    pub adaptive: Option<(f64, u64)>,
    /// What came of it.
    #[serde(flatten)]
    pub figures: MachineFigures,
}

/// How the slice was found.
#[derive(Debug, Clone, Serialize)]
pub struct SliceFit {
    /// The slice, ms.
    pub slice_ms: f64,
    /// Per cent of the device, MSched's published share, the model's at this slice.
    pub points: Vec<(u64, f64, f64)>,
}

/// Everything.
#[derive(Debug, Clone, Serialize)]
pub struct Study {
    /// How the slice was found; none where it was given.
    pub fit: Option<SliceFit>,
    /// The common slice, ms.
    pub slice_ms: f64,
    /// The runs at the common slice, then those whose slice adapts.
    pub rows: Vec<StudyRow>,
    /// Several decoders at other slices.
    pub curves: Vec<StudyRow>,
}

/// A run that is to be made.
#[derive(Debug, Clone, Copy)]
struct StudyCase {
    workload: &'static str,
    share: u64,
    duplex: bool,
    contender: Contender,
    seed: u64,
    slice: Ns,
    adaptive: Option<(f64, u64)>,
}

impl StudyCase {
    fn run(&self, plan: &StudyPlan) -> StudyRow {
        let memory = MemorySettings {
            duplex: self.duplex,
            ..plan.memory
        };
        let workload = generate(self.workload, memory.capacity, self.share, self.seed);
        let setting = Setting {
            memory,
            slice: self.slice,
            device_slice: plan.device_slice,
            adaptive: self.adaptive.map(|(efficiency, away)| (efficiency, away * MS)),
        };
        StudyRow {
            workload: self.workload,
            share: self.share,
            duplex: self.duplex,
            contender: self.contender,
            seed: self.seed,
            slice_ms: self.slice as f64 / MS as f64,
            adaptive: self.adaptive,
            figures: run(self.contender, &workload, &setting),
        }
    }
}

/// Runs cases on so many threads; rows come in the cases' order.
pub(super) fn run_each<C: Sync, R: Send>(
    cases: &[C],
    threads: usize,
    run: impl Fn(&C) -> R + Sync,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let rows: Mutex<Vec<(usize, R)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(at) else { return };
                    let row = run(case);
                    if let Ok(mut rows) = rows.lock() {
                        rows.push((at, row));
                    }
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, cases.len());
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_default();
    rows.sort_by_key(|(at, _)| *at);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn run_all(cases: &[StudyCase], plan: &StudyPlan, progress: &(dyn Fn(usize, usize) + Sync)) -> Vec<StudyRow> {
    run_each(cases, plan.threads, |case| case.run(plan), progress)
}

fn of_decoders(contender: Contender, share: u64, duplex: bool, slice: Ns) -> StudyCase {
    StudyCase {
        workload: "decoders",
        share,
        duplex,
        contender,
        seed: 1,
        slice,
        adaptive: None,
    }
}

/// Between two looked-at slices efficiency is taken to be straight over the slice.
fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let at = points
        .partition_point(|(slice, _)| *slice < x)
        .clamp(1, points.len() - 1);
    let ((x0, y0), (x1, y1)) = (points[at - 1], points[at]);
    y0 + (y1 - y0) * (x - x0) / (x1 - x0)
}

/// Finds the slice, and says how near the model comes.
fn fit(plan: &StudyPlan, progress: &(dyn Fn(usize, usize) + Sync)) -> (SliceFit, Vec<StudyRow>) {
    let cases: Vec<StudyCase> = PUBLISHED
        .iter()
        .flat_map(|(share, _)| SLICES.map(|slice| of_decoders(Contender::Msched, *share, true, slice * MS)))
        .collect();
    let rows = run_all(&cases, plan, progress);
    let curves: Vec<Vec<(f64, f64)>> = rows
        .chunks(SLICES.len())
        .map(|rows| rows.iter().map(|row| (row.slice_ms, row.figures.efficiency)).collect())
        .collect();
    let error = |slice: u64| -> f64 {
        let each = curves.iter().zip(PUBLISHED);
        each.map(|(curve, (_, published))| (between(curve, slice as f64) - published).powi(2))
            .sum()
    };
    let slice = (SLICES[0]..=SLICES[SLICES.len() - 1])
        .min_by(|one, other| error(*one).total_cmp(&error(*other)))
        .unwrap_or(100);
    let cases: Vec<StudyCase> = PUBLISHED
        .iter()
        .map(|(share, _)| of_decoders(Contender::Msched, *share, true, slice * MS))
        .collect();
    let points = run_all(&cases, plan, progress)
        .iter()
        .zip(PUBLISHED)
        .map(|(row, (share, published))| (share, published, row.figures.efficiency))
        .collect();
    let fit = SliceFit {
        slice_ms: slice as f64,
        points,
    };
    (fit, rows)
}

/// Makes all runs.
pub fn make(plan: &StudyPlan, progress: &(dyn Fn(&str, usize, usize) + Sync)) -> Study {
    let (fit, mut curves) = match plan.slice {
        Some(_) => (None, Vec::new()),
        None => {
            let (fit, rows) = fit(plan, &|done, of| progress("the slice", done, of));
            (Some(fit), rows)
        }
    };
    let slice = match (&fit, plan.slice) {
        (Some(fit), _) => (fit.slice_ms * MS as f64) as Ns,
        (None, Some(slice)) => slice,
        (None, None) => 100 * MS,
    };
    let mut cases = Vec::new();
    for &seed in &plan.seeds {
        for &workload in &plan.workloads {
            for &share in &plan.shares {
                for &contender in &plan.contenders {
                    for duplex in [true, false] {
                        let case = StudyCase {
                            workload,
                            share,
                            duplex,
                            contender,
                            seed,
                            slice,
                            adaptive: None,
                        };
                        // Who moves nothing ahead has the same figures on either link, but for
                        // stock's evictions, which wait for nothing.
                        if duplex || contender.moves_ahead() {
                            cases.push(case);
                        }
                        if contender == Contender::Weft && workload == "decoders" && share > 100 {
                            let adapted = |adaptive| StudyCase {
                                adaptive: Some(adaptive),
                                ..case
                            };
                            cases.extend(ADAPTIVE.map(adapted));
                        }
                    }
                }
            }
        }
    }
    let rows = run_all(&cases, plan, &|done, of| progress("runs", done, of));
    if plan.curves {
        let mut cases = Vec::new();
        for share in [150, 200, 300] {
            for slice in SLICES {
                cases.extend([true, false].map(|duplex| of_decoders(Contender::Weft, share, duplex, slice * MS)));
                cases.push(of_decoders(Contender::StockTurns, share, true, slice * MS));
            }
        }
        curves.extend(run_all(&cases, plan, &|done, of| progress("slices", done, of)));
    }
    Study {
        fit,
        slice_ms: slice as f64 / MS as f64,
        rows,
        curves,
    }
}

impl StudyPlan {
    /// Everything, or a tenth of it.
    pub fn new(memory: MemorySettings, device_slice: Ns, quick: bool) -> StudyPlan {
        StudyPlan {
            memory,
            device_slice,
            slice: None,
            workloads: if quick {
                vec!["decoders", "cnns"]
            } else {
                NAMES.to_vec()
            },
            shares: if quick {
                vec![100, 200]
            } else {
                vec![100, 150, 200, 300]
            },
            contenders: ALL.to_vec(),
            seeds: vec![1],
            curves: !quick,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl Study {
    /// The mean over seeds and these workloads of some figure at the common slice; none where
    /// nothing was run.
    pub fn mean(
        &self,
        workloads: &[&str],
        share: u64,
        duplex: bool,
        contender: Contender,
        what: impl Fn(&MachineFigures) -> f64,
    ) -> Option<f64> {
        let duplex = duplex || !contender.moves_ahead();
        let of = |row: &&StudyRow| {
            row.adaptive.is_none()
                && row.share == share
                && row.duplex == duplex
                && row.contender == contender
                && workloads.contains(&row.workload)
        };
        let values: Vec<f64> = self.rows.iter().filter(of).map(|row| what(&row.figures)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }
}
