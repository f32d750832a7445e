// SPDX-License-Identifier: MIT OR Apache-2.0
//! Means over the cases of one device, kind, host and rule.
#![forbid(unsafe_code)]

use serde::Serialize;

use crate::calibrated::LabSetting;
use crate::pairs::CaseRow;
use crate::seeds::OverSeeds;
use crate::seeds::geometric;

/// Kinds of cases that tables begin with.
const FIRST_KINDS: [&str; 3] = ["poisson", "bursts", "pair"];

/// Means over the cases of one device, kind, host and rule.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The device's calibration, and the launch queue.
    #[serde(flatten)]
    pub setting: LabSetting,
    /// A name of [`crate::pairs::DEVICES`].
    pub device: &'static str,
    /// Which kind of case.
    pub kind: &'static str,
    /// The part of the recorded host time that hosts take.
    pub host_time: f64,
    /// The rule.
    pub rule: String,
    /// Cases.
    pub cases: usize,
    /// Geometric mean of the service's mean latency over alone.
    pub slowdown: f64,
    /// The worst.
    pub worst: f64,
    /// Geometric mean of its p99 over alone.
    pub p99: f64,
    /// The same of its p99.9.
    pub p999: f64,
    /// What a request gained, mean, us.
    pub added_us: f64,
    /// Direct delay per filled gap, mean, us.
    pub direct_us: f64,
    /// Geometric mean of the batch jobs' throughput over alone.
    pub batch: f64,
    /// Geometric mean of its bound, where all cases have one.
    pub bound: Option<f64>,
    /// The same of its share of the bound.
    pub share: Option<f64>,
    /// Filled over gap time.
    pub filled: f64,
    /// Filled over the packer's.
    pub efficiency: f64,
    /// What hosts that wait at a gate leave of the packer's.
    pub gated: f64,
    /// What it gets of its own where nothing is done for it.
    pub own: f64,
    /// Where every case was run with several seeds.
    pub seeds: Option<SeedFigures>,
}

/// Figures over several seeds.
#[derive(Debug, Clone, Serialize)]
pub struct SeedFigures {
    /// The service's mean latency over alone.
    pub slowdown: OverSeeds,
    /// Its p99 over alone.
    pub p99: OverSeeds,
    /// The batch jobs' throughput over alone.
    pub batch: OverSeeds,
}

/// What rows are put together by; bits of the host's time, so that it can be compared.
type Key<'a> = (&'static str, &'static str, u64, &'a str);

fn key(row: &CaseRow) -> Key<'_> {
    (row.device, row.kind, row.host_time.to_bits(), row.figures.rule.as_str())
}

impl Summary {
    /// Of all rows, which are of one setting, in the order of tables.
    pub fn of(rows: &[CaseRow]) -> Vec<Summary> {
        let mut keys: Vec<Key<'_>> = Vec::new();
        for row in rows {
            if !keys.contains(&key(row)) {
                keys.push(key(row));
            }
        }
        // Random arrivals first: so services are used. Slow hosts first: they were recorded.
        let place = |kind: &str| {
            FIRST_KINDS
                .iter()
                .position(|first| *first == kind)
                .unwrap_or(FIRST_KINDS.len())
        };
        keys.sort_by_key(|(device, kind, host, _)| (*device, place(kind), *kind, u64::MAX - host));
        keys.into_iter()
            .map(|wanted| Summary::over(&rows.iter().filter(|row| key(row) == wanted).collect::<Vec<_>>()))
            .collect()
    }

    /// Of rows of one group; there is one at least.
    fn over(rows: &[&CaseRow]) -> Summary {
        let mean = |value: fn(&CaseRow) -> f64| rows.iter().map(|row| value(row)).sum::<f64>() / rows.len() as f64;
        let geo = |value: fn(&CaseRow) -> f64| geometric(rows.iter().map(|row| value(row)));
        let geo_of_all = |value: fn(&CaseRow) -> Option<f64>| {
            let values: Option<Vec<f64>> = rows.iter().map(|row| value(row)).collect();
            values.map(geometric)
        };
        let slowdown = |row: &CaseRow| row.figures.slowdown();
        let p99 = |row: &CaseRow| row.figures.slowdown_p99();
        let batch = |row: &CaseRow| row.figures.batch_sum;
        let seeds = || {
            Some(SeedFigures {
                slowdown: OverSeeds::of(rows, slowdown)?,
                p99: OverSeeds::of(rows, p99)?,
                batch: OverSeeds::of(rows, batch)?,
            })
        };
        let first = rows[0];
        Summary {
            setting: first.setting.clone(),
            device: first.device,
            kind: first.kind,
            host_time: first.host_time,
            rule: first.figures.rule.clone(),
            cases: rows.len(),
            slowdown: geo(slowdown),
            worst: rows.iter().map(|row| slowdown(row)).fold(0.0, f64::max),
            p99: geo(p99),
            p999: geo(|row| row.figures.latency.p999 / row.figures.alone.p999.max(1.0)),
            added_us: mean(|row| row.figures.added_mean_us),
            direct_us: mean(|row| row.figures.direct_per_gap_us),
            batch: geo(batch),
            bound: geo_of_all(|row| row.figures.bound),
            share: geo_of_all(|row| row.figures.share_of_bound()),
            filled: mean(|row| row.figures.filled_share()),
            efficiency: mean(|row| row.figures.efficiency),
            gated: mean(|row| row.figures.gated_share()),
            own: mean(|row| row.figures.own_share()),
            seeds: seeds(),
        }
    }

    /// Its kind, and its hosts where they are not as recorded.
    pub fn name(&self) -> String {
        match self.host_time == 1.0 {
            true => self.kind.to_string(),
            false => format!("{} x{}", self.kind, self.host_time),
        }
    }
}
