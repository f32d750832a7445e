// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runs of the study, and the fit of their slice.
//!
//! | runs | turns |
//! |---|---|
//! | [`Study::rows`] | all of one slice, as below |
//! | [`Study::defaults`] | as a broker without options makes them, with the memory that it keeps free |
//! | [`Study::bounds`] | the same by other bounds on being swapped out: decoders |
//! | [`Study::short`] | 20 to 50 ms: what planning is worth where moves do not hide |
//! | [`Study::curves`] | 10 to 600 ms: decoders |
//!
//! Long slices hide any migration, and MSched does not publish the slice of its figures. So the
//! slice is fitted with a model of MSched: this laboratory's machine with the planner set to
//! MSched's behaviour, on the duplex link that it measured. The slice is the one at which the model
//! comes nearest to the published shares of the throughput when all fits: [`PUBLISHED`]. All
//! contenders that take turns have this slice.
#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use weft_engine::memory::MemorySettings;
use weft_paging::TurnRule;

use super::aims;
use super::bound::DecodersBound;
use super::contender::{ALL, Contender};
use super::machine::{MachineFigures, Setting, TurnSource, default_rule, run};
use super::workload::{NAMES, generate};
use crate::{MS, Ns};

/// Per cent of the device, and the part that MSched keeps of the throughput when all fits, several
/// decoders (arXiv 2512.24637, MultiLLM).
pub const PUBLISHED: [(u64, f64); 3] = [(150, 0.7409), (200, 0.5823), (300, 0.4301)];

/// Slices to try in the fit, ms.
const SLICES: [u64; 12] = [10, 20, 35, 50, 75, 100, 130, 170, 220, 300, 400, 600];

/// Bounds on turns of decoders, besides the default.
pub const BOUNDS: [TurnsBy; 3] = [TurnsBy::Lengthened(2_000), TurnsBy::Kept(1_000), TurnsBy::Kept(3_000)];

/// Slices of the short turns, ms, and their workloads: memory that is read, written and both.
const SHORT: [u64; 3] = [20, 35, 50];
const SHORT_WORKLOADS: [&str; 3] = ["decoders", "rodinia", "hybrid"];

/// Contenders that plan turns of their own length.
const PLANNED: [Contender; 6] = [
    Contender::Weft,
    Contender::WholeAllocations,
    Contender::Lru,
    Contender::NoPipelining,
    Contender::NoDiscard,
    Contender::NoDuplication,
];
/// Contenders whose turns are as long as weft's at the default.
const IN_THE_SAME_TURNS: [Contender; 2] = [Contender::StockTurns, Contender::Msched];

/// The source of a run's turn lengths.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TurnsBy {
    /// The slice.
    Slice,
    /// The planner, as in a broker without options.
    Default,
    /// The planner, with no job swapped out for longer than this, ms.
    Kept(u64),
    /// The planner by the default. If turns are too short, they are lengthened up to this (`weft
    /// broker --swapped-out-limit`), ms.
    Lengthened(u64),
}

impl TurnsBy {
    fn source(self) -> TurnSource {
        TurnSource::Rule(match self {
            TurnsBy::Slice => return TurnSource::Common,
            TurnsBy::Default => default_rule(),
            TurnsBy::Kept(bound) => TurnRule::new(bound * MS, 0),
            TurnsBy::Lengthened(limit) => TurnRule::new(default_rule().max_swapped_out, limit * MS),
        })
    }

    /// The longest time that a job may be swapped out, ms.
    pub fn bound_ms(self) -> f64 {
        match self {
            TurnsBy::Slice => f64::INFINITY,
            TurnsBy::Default => default_rule().max_swapped_out as f64 / MS as f64,
            TurnsBy::Kept(bound) | TurnsBy::Lengthened(bound) => bound as f64,
        }
    }
}

/// The runs to make, and their settings.
#[derive(Debug, Clone)]
pub struct StudyPlan {
    /// The device's memory and link; both kinds of link are run.
    pub memory: MemorySettings,
    /// The device's own slice.
    pub device_slice: Ns,
    /// The common slice; `None` means that it is fitted.
    pub slice: Option<Ns>,
    /// The workloads.
    pub workloads: Vec<&'static str>,
    /// Per cent of the device.
    pub shares: Vec<u64>,
    /// The contenders.
    pub contenders: Vec<Contender>,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Whether to run efficiency against the slice, and short turns.
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
    /// The slice, ms.
    pub slice_ms: f64,
    /// The source of turn lengths.
    pub turns: TurnsBy,
    /// The figures.
    #[serde(flatten)]
    pub figures: MachineFigures,
}

/// The fit of the slice.
#[derive(Debug, Clone, Serialize)]
pub struct SliceFit {
    /// The slice, ms.
    pub slice_ms: f64,
    /// Per cent of the device, MSched's published share, the model's share at this slice.
    pub points: Vec<(u64, f64, f64)>,
}

/// Decoders with a bound on the time that a job is swapped out.
#[derive(Debug, Clone, Serialize)]
pub struct BoundRow {
    /// The run.
    #[serde(flatten)]
    pub row: StudyRow,
    /// The efficiency that no planner exceeds at the bound in force ([`DecodersBound`]).
    pub bound: f64,
    /// The shortest bound on being swapped out at which the aim is possible, ms.
    pub needs_ms: f64,
    /// Time on the link of the bytes that exceed the device, ms.
    pub excess_ms: f64,
}

/// All results.
#[derive(Debug, Clone, Serialize)]
pub struct Study {
    /// How the slice was fitted; `None` if it was given.
    pub fit: Option<SliceFit>,
    /// The common slice, ms.
    pub slice_ms: f64,
    /// The runs at the common slice.
    pub rows: Vec<StudyRow>,
    /// The runs of a broker without options.
    pub defaults: Vec<StudyRow>,
    /// Decoders by other bounds on being swapped out.
    pub bounds: Vec<BoundRow>,
    /// The runs in short turns.
    pub short: Vec<StudyRow>,
    /// Several decoders at other slices.
    pub curves: Vec<StudyRow>,
}

/// A run to make.
#[derive(Debug, Clone, Copy)]
struct StudyCase {
    workload: &'static str,
    share: u64,
    duplex: bool,
    contender: Contender,
    seed: u64,
    slice: Ns,
    turns: TurnsBy,
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
            turns: self.turns.source(),
        };
        StudyRow {
            workload: self.workload,
            share: self.share,
            duplex: self.duplex,
            contender: self.contender,
            seed: self.seed,
            slice_ms: self.slice as f64 / MS as f64,
            turns: self.turns,
            figures: run(self.contender, &workload, &setting),
        }
    }
}

/// Runs cases on `threads` threads; rows come in the cases' order.
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

/// Runs the contenders of a plan in turns of its slice, or of the fitted one. Returns that slice,
/// ms, and the runs.
pub(super) fn at_the_slice(plan: &StudyPlan, progress: &(dyn Fn(&str, usize, usize) + Sync)) -> (f64, Vec<StudyRow>) {
    let fitted = || (fit(plan, &|done, of| progress("the slice", done, of)).0.slice_ms * MS as f64) as Ns;
    let slice = plan.slice.unwrap_or_else(fitted);
    let rows = run_all(&cases_of(plan, slice), plan, &|done, of| progress("pages", done, of));
    (slice as f64 / MS as f64, rows)
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
        turns: TurnsBy::Slice,
    }
}

/// Efficiency at slice `x`: linear between two slices of the fit.
fn between(points: &[(f64, f64)], x: f64) -> f64 {
    let at = points
        .partition_point(|(slice, _)| *slice < x)
        .clamp(1, points.len() - 1);
    let ((x0, y0), (x1, y1)) = (points[at - 1], points[at]);
    y0 + (y1 - y0) * (x - x0) / (x1 - x0)
}

/// Fits the slice, and returns how near the model comes.
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

/// Every workload under every contender in turns of one slice.
fn cases_of(plan: &StudyPlan, slice: Ns) -> Vec<StudyCase> {
    let mut cases = Vec::new();
    for &seed in &plan.seeds {
        for &workload in &plan.workloads {
            for &share in &plan.shares {
                for &contender in &plan.contenders {
                    for duplex in [true, false] {
                        // A contender that moves nothing ahead has the same figures on either link,
                        // but for stock's evictions, which wait for nothing.
                        if duplex || contender.moves_ahead() {
                            cases.push(StudyCase {
                                workload,
                                share,
                                duplex,
                                contender,
                                seed,
                                slice,
                                turns: TurnsBy::Slice,
                            });
                        }
                    }
                }
            }
        }
    }
    cases
}

/// The part of a plan in which jobs exceed the device, for the requested ones of these contenders.
pub(super) fn beyond(plan: &StudyPlan, contenders: impl Iterator<Item = Contender>) -> StudyPlan {
    StudyPlan {
        shares: plan.shares.iter().copied().filter(|share| *share > 100).collect(),
        contenders: contenders
            .filter(|contender| plan.contenders.contains(contender))
            .collect(),
        ..plan.clone()
    }
}

/// Runs short turns, on the link that carries both ways.
fn short_turns(plan: &StudyPlan, progress: &(dyn Fn(&str, usize, usize) + Sync)) -> Vec<StudyRow> {
    let mut short = beyond(plan, PLANNED.into_iter().chain(IN_THE_SAME_TURNS));
    short.workloads.retain(|name| SHORT_WORKLOADS.contains(name));
    let cases: Vec<StudyCase> = SHORT
        .into_iter()
        .flat_map(|slice| cases_of(&short, slice * MS))
        .filter(|case| case.duplex)
        .collect();
    run_all(&cases, plan, &|done, of| progress("short turns", done, of))
}

/// Runs a broker without options, and decoders by other bounds.
fn at_the_default(plan: &StudyPlan, progress: &(dyn Fn(&str, usize, usize) + Sync)) -> (Vec<StudyRow>, Vec<BoundRow>) {
    let mut cases = cases_of(&beyond(plan, PLANNED.into_iter()), 0);
    for case in &mut cases {
        case.turns = TurnsBy::Default;
    }
    let mut rows = run_all(&cases, plan, &|done, of| progress("at the default", done, of));
    let of_weft = |case: &&StudyCase| case.contender == Contender::Weft;
    let as_long: Vec<StudyCase> = rows
        .iter()
        .zip(&cases)
        .filter(|(_, case)| of_weft(case) && case.duplex)
        .flat_map(|(row, case)| {
            IN_THE_SAME_TURNS.map(|contender| StudyCase {
                contender,
                slice: (row.figures.turn_ms * MS as f64) as Ns,
                turns: TurnsBy::Slice,
                ..*case
            })
        })
        .filter(|case| plan.contenders.contains(&case.contender))
        .collect();
    rows.extend(run_all(&as_long, plan, &|done, of| {
        progress("in turns as long", done, of);
    }));
    let kept: Vec<StudyCase> = cases
        .iter()
        .filter(of_weft)
        .filter(|case| case.workload == "decoders")
        .flat_map(|case| {
            let by = |turns| StudyCase { turns, ..*case };
            [by(TurnsBy::Default)].into_iter().chain(BOUNDS.map(by))
        })
        .collect();
    let bounds = run_all(&kept, plan, &|done, of| progress("bounds", done, of))
        .into_iter()
        .filter_map(|row| bounded(plan, row))
        .collect();
    (rows, bounds)
}

fn bounded(plan: &StudyPlan, row: StudyRow) -> Option<BoundRow> {
    let memory = MemorySettings {
        duplex: row.duplex,
        ..plan.memory
    };
    let workload = generate(row.workload, memory.capacity, row.share, row.seed);
    let bound = DecodersBound::of(&workload, &memory)?;
    let in_force = match row.turns {
        // The second bound is in force if turns had to be longer.
        TurnsBy::Lengthened(_) => row.figures.said_ms.max(TurnsBy::Default.bound_ms()),
        turns => turns.bound_ms(),
    };
    Some(BoundRow {
        bound: bound.efficiency((in_force * MS as f64) as Ns),
        needs_ms: bound.swapped_out(aims::at_the_default(row.share)) as f64 / MS as f64,
        excess_ms: bound.excess / MS as f64,
        row,
    })
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
    let rows = run_all(&cases_of(plan, slice), plan, &|done, of| progress("runs", done, of));
    let (defaults, bounds) = at_the_default(plan, progress);
    let short = if plan.curves {
        short_turns(plan, progress)
    } else {
        Vec::new()
    };
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
        defaults,
        bounds,
        short,
        curves,
    }
}

impl StudyPlan {
    /// The full plan, or a tenth of it.
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
    /// The mean of a figure at the common slice over seeds and these workloads; `None` if there are
    /// no such runs.
    pub fn mean(
        &self,
        workloads: &[&str],
        share: u64,
        duplex: bool,
        contender: Contender,
        what: impl Fn(&MachineFigures) -> f64,
    ) -> Option<f64> {
        mean(&self.rows, workloads, share, duplex, contender, what)
    }
}

/// Like [`Study::mean`], over these rows.
pub fn mean(
    rows: &[StudyRow],
    workloads: &[&str],
    share: u64,
    duplex: bool,
    contender: Contender,
    what: impl Fn(&MachineFigures) -> f64,
) -> Option<f64> {
    let duplex = duplex || !contender.moves_ahead();
    let of = |row: &&StudyRow| {
        row.share == share && row.duplex == duplex && row.contender == contender && workloads.contains(&row.workload)
    };
    let values: Vec<f64> = rows.iter().filter(of).map(|row| what(&row.figures)).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
