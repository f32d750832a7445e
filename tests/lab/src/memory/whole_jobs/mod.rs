// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole jobs in turns of seconds, on memory that leaves for the host and comes back as a whole
//! (movable memory), next to ways to move pages: the runs, their aim, and their tables.
//!
//! | file | what |
//! |---|---|
//! | `machine.rs` | which job leaves, which one comes, how long a turn is |
//! | `bound.rs` | the most that an order of whole jobs can have |
//!
//! A job that is on the host keeps its context on the device, so all contexts are taken off the
//! device's memory here. Pages are moved by contenders of the other tables, which do not count
//! contexts.
#![forbid(unsafe_code)]

mod bound;
mod machine;

use std::fmt::Write;

use serde::Serialize;
use weft_engine::memory::MemorySettings;
use weft_paging::Link;

use super::aims::{at_least, link as link_name};
use super::contender::Contender;
use super::machine::{MachineFigures, link_of};
use super::study::{self, StudyPlan, StudyRow, mean, run_each};
use super::workload::{self, PagedJob, Workload, generate};
use crate::aims::Aim;
use crate::{MS, Ns};
use machine::{EvictionFigures, EvictionSetting, MovedUnit};

/// The longest turn of a job, ns.
pub const LONGEST_TURN_NS: Ns = 5_000 * MS;

/// Per cent of the device, and the part of the throughput when all fits that each mix is to keep.
const AIMS: [(u64, f64); 2] = [(200, 0.9), (300, 0.8)];

/// Part of the link's rate that weft's own copies reach at least (`scripts/bench evict --check`).
const COPIES_REACH: f64 = 0.8;

/// Rates of a link that carries one way at a time, bytes/s: the driver's checkpoint with driver 580
/// and 595, copies over PCIe 4.0 and 5.0.
const RATES: [(&str, f64); 4] = [
    ("1.1 GB/s", 1.1e9),
    ("4 GB/s", 4e9),
    ("20 GB/s", 20e9),
    ("50 GB/s", 50e9),
];

/// Units of moves, with their names and the reached part of the link's rate.
const UNITS: [(&str, MovedUnit, f64); 4] = [
    ("whole jobs", MovedUnit::Job, 1.0),
    ("... 0.8 of the link", MovedUnit::Job, COPIES_REACH),
    ("... by allocations", MovedUnit::Buffer, 1.0),
    ("... by 256 MiB", MovedUnit::Piece(256 << 20), 1.0),
];

/// Ways to move pages. The first two have turns of the device's own.
const ALTERNATIVES: [Contender; 6] = [
    Contender::Stock,
    Contender::StockTuned,
    Contender::StockTurns,
    Contender::Nvshare,
    Contender::Msched,
    Contender::Weft,
];

/// Ways to move pages in turns of 5 s, with their names.
const IN_LONG_TURNS: [(Contender, &str); 3] = [
    (Contender::StockTurns, "stock, 5 s turns"),
    (Contender::Msched, "MSched, 5 s turns"),
    (Contender::Weft, "weft, 5 s turns"),
];

/// A link, by its name in tables.
#[derive(Debug, Clone, Copy)]
struct NamedLink {
    name: &'static str,
    link: Link,
    /// Whether the aim is judged on it.
    judged: bool,
}

/// A run of whole jobs.
#[derive(Debug, Clone, Serialize)]
pub struct WholeJobsRow {
    /// The workload.
    pub workload: &'static str,
    /// Per cent of the device.
    pub share: u64,
    /// The link.
    pub link: &'static str,
    /// Whether the aim is judged on this link.
    pub judged: bool,
    /// The part of the link's rate that copies have.
    pub reach: f64,
    /// The unit of moves.
    pub unit: MovedUnit,
    /// The seed.
    pub seed: u64,
    /// The most that an order of whole jobs can have, with turns of 5 s and a kernel.
    pub bound: f64,
    /// The figures; `None` if a job does not fit.
    #[serde(flatten)]
    pub figures: Option<EvictionFigures>,
}

/// All results.
#[derive(Debug, Clone, Serialize)]
pub struct WholeJobs {
    /// The runs.
    pub rows: Vec<WholeJobsRow>,
    /// Ways to move pages.
    pub pages: Vec<StudyRow>,
    /// The same in turns of 5 s.
    pub long: Vec<StudyRow>,
    /// The slice of the others' turns, ms.
    pub slice_ms: f64,
    /// Device memory of each job's context, bytes.
    pub context: u64,
}

struct WholeJobsCase {
    workload: Workload,
    link: NamedLink,
    unit: MovedUnit,
    reach: f64,
    seed: u64,
}

impl WholeJobsCase {
    fn run(&self, capacity: u64, context: u64) -> WholeJobsRow {
        let jobs = &self.workload.jobs;
        let room = capacity.saturating_sub(context * jobs.len() as u64);
        let reaching = |rate: f64| rate * self.reach;
        let full = self.link.link;
        let setting = EvictionSetting {
            room,
            link: Link {
                inward: reaching(full.inward),
                outward: reaching(full.outward),
                both: reaching(full.both),
                ..full
            },
            unit: self.unit,
            longest: LONGEST_TURN_NS,
        };
        let longest = |job: &PagedJob| {
            let kernel = job.kernels.iter().map(|kernel| kernel.time).max().unwrap_or(0);
            (job.bytes(), LONGEST_TURN_NS + kernel)
        };
        let turns: Vec<(u64, Ns)> = jobs.iter().map(longest).collect();
        WholeJobsRow {
            workload: self.workload.name,
            share: self.workload.share,
            link: self.link.name,
            judged: self.link.judged,
            reach: self.reach,
            unit: self.unit,
            seed: self.seed,
            bound: bound::efficiency(&turns, room, &full),
            figures: machine::run(jobs, setting),
        }
    }
}

fn links(memory: &MemorySettings) -> Vec<NamedLink> {
    let of = |duplex| NamedLink {
        name: link_name(duplex),
        link: link_of(&MemorySettings { duplex, ..*memory }),
        judged: true,
    };
    let slower = RATES.map(|(name, rate)| NamedLink {
        name,
        link: Link {
            inward: rate,
            outward: rate,
            both: rate,
            duplex: false,
        },
        judged: false,
    });
    [of(true), of(false)].into_iter().chain(slower).collect()
}

/// Makes all runs. `pages`: rows of a study that has them already.
pub fn make(
    plan: &StudyPlan,
    context: u64,
    pages: Option<(f64, &[StudyRow])>,
    progress: &(dyn Fn(&str, usize, usize) + Sync),
) -> WholeJobs {
    let beyond = study::beyond(plan, ALTERNATIVES.into_iter());
    let (slice_ms, pages) = match pages {
        Some((slice_ms, rows)) => {
            let wanted = |row: &&StudyRow| row.share > 100 && ALTERNATIVES.contains(&row.contender);
            (slice_ms, rows.iter().filter(wanted).cloned().collect())
        }
        None => study::at_the_slice(&beyond, progress),
    };
    let in_turns = StudyPlan {
        slice: Some(LONGEST_TURN_NS),
        ..study::beyond(plan, IN_LONG_TURNS.into_iter().map(|(contender, _)| contender))
    };
    let (_, long) = study::at_the_slice(&in_turns, progress);
    let mut cases = Vec::new();
    for &seed in &plan.seeds {
        let mut workloads: Vec<Workload> = Vec::new();
        for &name in &beyond.workloads {
            let at = |share: &u64| generate(name, plan.memory.capacity, *share, seed);
            workloads.extend(beyond.shares.iter().map(at));
        }
        workloads.push(workload::filling(
            plan.memory.capacity.saturating_sub(2 * context),
            seed,
        ));
        for workload in workloads {
            for link in links(&plan.memory) {
                for (_, unit, reach) in UNITS {
                    cases.push(WholeJobsCase {
                        workload: workload.clone(),
                        link,
                        unit,
                        reach,
                        seed,
                    });
                }
            }
        }
    }
    let rows = run_each(
        &cases,
        plan.threads,
        |case| case.run(plan.memory.capacity, context),
        &|done, of| progress("whole jobs", done, of),
    );
    WholeJobs {
        rows,
        pages,
        long,
        slice_ms,
        context,
    }
}

/// Judges the runs at the device's own links.
pub fn judge(found: &WholeJobs) -> Vec<Aim> {
    let is_judged = |row: &&WholeJobsRow| row.judged && row.unit == MovedUnit::Job && row.reach == 1.0;
    let aim = |row: &WholeJobsRow| {
        let (_, limit) = AIMS.into_iter().find(|(share, _)| *share == row.share)?;
        let named = row.workload != workload::FILLING;
        named.then(|| {
            let what = format!(
                "{} {} %, {} (no order of whole jobs has more than {:.3})",
                row.workload, row.share, row.link, row.bound
            );
            (what, row.figures.map(|figures| figures.efficiency), limit)
        })
    };
    vec![at_least(
        "whole jobs in turns of at most 5 s: share of the throughput when all fits",
        found.rows.iter().filter(is_judged).filter_map(aim).collect(),
    )]
}

/// The tables.
pub fn text(found: &WholeJobs) -> String {
    let mut text = String::new();
    let mib = found.context >> 20;
    for name in [true, false].map(link_name) {
        let _ = writeln!(
            text,
            "\nPer cent of the throughput when all fits: whole jobs in turns of at most 5 s, next to what moves pages; {name}:"
        );
        let columns = columns(found, name);
        let head = columns.iter().map(|(workload, share)| format!("{workload} {share}"));
        line(&mut text, "", head);
        let duplex = name == link_name(true);
        let mut pages = |name: &str, rows: &[StudyRow], contender| {
            let cells = columns.iter().map(|(workload, share)| {
                let of = |figures: &MachineFigures| figures.efficiency * 100.0;
                let value = mean(rows, &[workload], *share, duplex, contender, of);
                value.map_or("-".to_owned(), |value| format!("{value:.2}"))
            });
            line(&mut text, name, cells);
        };
        for contender in ALTERNATIVES {
            pages(contender.name(), &found.pages, contender);
        }
        for (contender, name) in IN_LONG_TURNS {
            pages(name, &found.long, contender);
        }
        for (what, unit, reach) in UNITS {
            let of = |row: &WholeJobsRow| shown(row, |figures| figures.efficiency * 100.0, 2);
            line(&mut text, what, cells(found, &columns, name, (unit, reach), &of));
        }
        let whole = (MovedUnit::Job, 1.0);
        let of = |row: &WholeJobsRow| format!("{:.2}", row.bound * 100.0);
        line(&mut text, "no more", cells(found, &columns, name, whole, &of));
        let of = |row: &WholeJobsRow| shown(row, |figures| figures.turn_ms, 0);
        line(
            &mut text,
            "whole jobs: turn, ms",
            cells(found, &columns, name, whole, &of),
        );
        let of = |row: &WholeJobsRow| shown(row, |figures| figures.away_ms, 0);
        line(&mut text, "... out, ms", cells(found, &columns, name, whole, &of));
    }
    let _ = writeln!(
        text,
        "Other turns are {} ms, nvshare's 30 s; `weft` is managed memory. Whole jobs leave {mib} MiB of context each on the device. `{}`: two jobs that each fill the device.",
        found.slice_ms,
        workload::FILLING
    );
    let _ = writeln!(
        text,
        "\nWhole jobs by the rate of a link that carries one way at a time, and `no more`:"
    );
    let mut heads = None;
    for (name, _) in RATES {
        let columns = columns(found, name);
        let head = columns.iter().map(|(workload, share)| format!("{workload} {share}"));
        heads.get_or_insert_with(|| line(&mut text, "", head));
        let whole = (MovedUnit::Job, 1.0);
        let of = |row: &WholeJobsRow| shown(row, |figures| figures.efficiency * 100.0, 1);
        line(&mut text, name, cells(found, &columns, name, whole, &of));
        let of = |row: &WholeJobsRow| format!("{:.1}", row.bound * 100.0);
        line(&mut text, "  no more", cells(found, &columns, name, whole, &of));
    }
    text
}

fn shown(row: &WholeJobsRow, what: impl Fn(&EvictionFigures) -> f64, digits: usize) -> String {
    let value = row.figures.as_ref().map(what);
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

/// Workloads and shares of the runs on a link, in their order.
fn columns(found: &WholeJobs, link: &str) -> Vec<(&'static str, u64)> {
    let mut columns = Vec::new();
    for row in found.rows.iter().filter(|row| row.link == link) {
        if !columns.contains(&(row.workload, row.share)) {
            columns.push((row.workload, row.share));
        }
    }
    columns
}

/// A figure of the first seed for each column.
fn cells<'a>(
    found: &'a WholeJobs,
    columns: &'a [(&'static str, u64)],
    link: &'a str,
    (unit, reach): (MovedUnit, f64),
    what: &'a dyn Fn(&WholeJobsRow) -> String,
) -> impl Iterator<Item = String> + 'a {
    columns.iter().map(move |column| {
        let of = |row: &&WholeJobsRow| {
            (row.workload, row.share) == *column && row.link == link && row.unit == unit && row.reach == reach
        };
        found.rows.iter().find(of).map_or("-".to_owned(), what)
    })
}

fn line(text: &mut String, name: &str, cells: impl Iterator<Item = String>) {
    let _ = write!(text, "{name:<20}");
    for cell in cells {
        let _ = write!(text, " {cell:>12}");
    }
    text.push('\n');
}
