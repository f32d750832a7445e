// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures of a run, their aims, and tables for people.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::contenders;
use serde::Serialize;
use weft_admission::{AdmissionConfig, AdmissionPolicy};

use super::least;
use super::mix::{JobMix, ODD, S};
use super::world::{AdmissionOutcome, AdmissionRule};

/// The factor by which the mean wait under `weft` must be below that under `exclusive`.
const BELOW_EXCLUSIVE: f64 = 3.0;

/// The figures of one mix under one rule with one seed.
#[derive(Debug, Clone, Serialize)]
pub struct AdmissionRow {
    /// The mix.
    pub mix: String,
    /// The seed.
    pub seed: u64,
    /// The rule.
    pub rule: String,
    /// Number of jobs.
    pub jobs: usize,
    /// Number of times that a job got no memory within its request.
    pub oom_by_neighbours: u32,
    /// Number of times that a job got no memory beyond its request.
    pub oom_by_itself: u32,
    /// Mean time from a job's arrival to the begin of the run with which it ended, s.
    pub wait_mean_s: f64,
    /// The least mean wait under any order (see `least`), s.
    pub wait_least_s: f64,
    /// The same for orders that keep for each job its requested memory, s.
    pub wait_least_kept_s: f64,
    /// The wait that 95 of 100 jobs did not exceed, s.
    pub wait_p95_s: f64,
    /// The wait of the job with the largest peak, seconds.
    pub wait_largest_s: f64,
    /// The part of that wait from its first request on, s. A job that takes more than its request
    /// may die and come again at the end of the queue. That depends on the memory that happens to
    /// be free at that moment under a rule. The time of its first request is the same under all
    /// rules, so this is the figure to compare.
    pub wait_largest_first_s: f64,
    /// Its patience plus the longest run of any job, s: its wait may exceed that under `fifo` by
    /// this.
    pub bound_s: f64,
    /// The part of the devices' time that jobs requested.
    pub busy: f64,
    /// The part of the devices' memory that jobs held.
    pub memory: f64,
    /// Time until the last job ended, s.
    pub makespan_s: f64,
    /// Jain's index over the users' mean slowdowns (time from arrival to end over the time of a
    /// solo run): 1 means equal.
    pub jain: f64,
    /// The variance of the users' mean slowdowns.
    pub variance: f64,
    /// For each job that had to wait: the predicted wait at its first request, and the wait, s.
    /// Empty if the rule predicts nothing.
    pub foretold: Vec<(f64, f64)>,
}

/// The figures of a run.
pub fn row(mix: &JobMix, seed: u64, rule: AdmissionRule, outcome: &AdmissionOutcome) -> AdmissionRow {
    let jobs = || mix.jobs.iter().zip(&outcome.fates);
    let mut waits: Vec<f64> = jobs()
        .map(|(job, fate)| (fate.began - job.arrives) as f64 / S as f64)
        .collect();
    let mean = mean(&waits);
    waits.sort_by(f64::total_cmp);
    let p95 = waits
        .get((waits.len().saturating_sub(1)) * 95 / 100)
        .copied()
        .unwrap_or(0.0);
    let mut users: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (job, fate) in jobs() {
        let slowdown = (fate.ended - job.arrives) as f64 / job.run.max(1) as f64;
        users.entry(job.user).or_default().push(slowdown);
    }
    let users: Vec<f64> = users.values().map(|slowdowns| self::mean(slowdowns)).collect();
    let squares: f64 = users.iter().map(|user| user * user).sum();
    let sum: f64 = users.iter().sum();
    let middle = self::mean(&users);
    let largest = jobs().max_by_key(|(job, _)| job.peak);
    let (wait_largest, first, patience) = largest.map_or((0, 0, 0), |(job, fate)| {
        let patience = AdmissionConfig::default().patience(job.said_run);
        (fate.began - job.arrives, fate.first_wait.unwrap_or(0), patience)
    });
    AdmissionRow {
        mix: mix.name.clone(),
        seed,
        rule: rule.name(),
        jobs: mix.jobs.len(),
        oom_by_neighbours: outcome.fates.iter().map(|fate| fate.by_neighbours).sum(),
        oom_by_itself: outcome.fates.iter().map(|fate| fate.by_itself).sum(),
        wait_mean_s: mean,
        wait_least_s: least::wait(mix, least::KeptMemory::Taken),
        wait_least_kept_s: least::wait(mix, least::KeptMemory::Said),
        wait_p95_s: p95,
        wait_largest_s: wait_largest as f64 / S as f64,
        wait_largest_first_s: first as f64 / S as f64,
        bound_s: (patience + outcome.longest) as f64 / S as f64,
        busy: outcome.busy,
        memory: outcome.held,
        makespan_s: outcome.makespan as f64 / S as f64,
        jain: sum * sum / (users.len() as f64 * squares).max(f64::MIN_POSITIVE),
        foretold: outcome
            .fates
            .iter()
            .filter_map(|fate| Some((seconds(fate.expected_wait?), seconds(fate.first_wait?))))
            .collect(),
        variance: users.iter().map(|user| (user - middle) * (user - middle)).sum::<f64>() / users.len().max(1) as f64,
    }
}

fn seconds(ns: crate::Ns) -> f64 {
    ns as f64 / S as f64
}

/// The quality of predicted begins, in a line. First, how much later than predicted jobs began
/// (negative: sooner). Then, of the jobs with a predicted wait of a minute or more, the part whose
/// wait was between half and twice the prediction. A prediction does not cover later arrivals that
/// may go first (a user who had less, a shorter job), nor wrong estimates.
fn foretold(rows: &[AdmissionRow], mix: &str) -> Option<String> {
    let weft = AdmissionPolicy::Weft.name();
    let all: Vec<(f64, f64)> = of(rows, mix, weft)
        .flat_map(|row| row.foretold.iter().copied())
        .collect();
    let mut late: Vec<f64> = all.iter().map(|(expected, was)| was - expected).collect();
    late.sort_by(f64::total_cmp);
    let quantile = |part: usize| late.get((late.len().checked_sub(1)?) * part / 100).copied();
    let long = || all.iter().filter(|(expected, _)| *expected >= 60.0);
    let near = long()
        .filter(|(expected, was)| (0.5..=2.0).contains(&(was / expected)))
        .count();
    Some(format!(
        "  begins foretold by weft queue to {} that had to wait: later than foretold by {:+.0} / {:+.0} / {:+.0} / {:+.0} / {:+.0} s (5, 25, 50, 75, 95 in 100); {:.0} in 100 waited between half and twice as long",
        late.len(),
        quantile(5)?,
        quantile(25)?,
        quantile(50)?,
        quantile(75)?,
        quantile(95)?,
        100.0 * near as f64 / long().count().max(1) as f64
    ))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// An aim, and whether it was met.
#[derive(Debug, Clone, Serialize)]
pub struct AdmissionAim {
    /// The aim in words.
    pub what: String,
    /// The figures.
    pub figures: String,
    /// Whether it was met.
    pub met: bool,
}

fn names(rows: &[AdmissionRow]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.mix.as_str()) {
            names.push(&row.mix);
        }
    }
    names
}

/// The rows of a mix under a rule, one for each seed.
fn of<'a>(rows: &'a [AdmissionRow], mix: &'a str, rule: &'a str) -> impl Iterator<Item = &'a AdmissionRow> {
    rows.iter().filter(move |row| row.mix == mix && row.rule == rule)
}

fn average(rows: &[AdmissionRow], mix: &str, rule: &str, figure: impl Fn(&AdmissionRow) -> f64) -> f64 {
    let figures: Vec<f64> = of(rows, mix, rule).map(figure).collect();
    mean(&figures)
}

/// The excess of the largest job's wait over that under `fifo` plus its bound, for the seed with
/// the largest excess, and the figures.
fn worst(rows: &[AdmissionRow], mix: &str, wait: fn(&AdmissionRow) -> f64) -> (f64, String) {
    let [weft, fifo] = [AdmissionPolicy::Weft, contenders::FIFO].map(AdmissionPolicy::name);
    let mut worst: Option<(f64, String)> = None;
    let mut missed = Vec::new();
    for row in of(rows, mix, weft) {
        let fifo = of(rows, mix, fifo).find(|other| other.seed == row.seed);
        let Some(fifo) = fifo else { continue };
        let over = wait(row) - wait(fifo) - row.bound_s;
        if over > 0.0 {
            missed.push(format!("{} by {over:.0} s", row.seed));
        }
        let text = format!(
            "at worst {:.0} s, fifo {:.0} s, bound {:.0} s (seed {}",
            wait(row),
            wait(fifo),
            row.bound_s,
            row.seed
        );
        if worst.as_ref().is_none_or(|(most, _)| over > *most) {
            worst = Some((over, text));
        }
    }
    let (over, text) = worst.unwrap_or_default();
    let missed = match missed.is_empty() {
        true => "none".to_string(),
        false => missed.join(", "),
    };
    (over, format!("{text}); seeds that miss it: {missed}"))
}

/// Lower bounds on a mix's mean wait, to print with an aim. They do not change whether the aim is
/// met.
fn possible(rows: &[AdmissionRow], mix: &str, met: bool, aim: f64) -> String {
    let [weft, shortest] = [AdmissionPolicy::Weft, contenders::SHORTEST].map(AdmissionPolicy::name);
    let least = average(rows, mix, weft, |row| row.wait_least_s);
    let kept = average(rows, mix, weft, |row| row.wait_least_kept_s);
    let bounds = format!("no order waits less than {least:.0} s, none that keeps what jobs say less than {kept:.0} s");
    let free = average(rows, mix, shortest, |row| row.wait_mean_s);
    match met {
        true => bounds,
        false if least > aim => format!("impossible: {bounds}"),
        false if kept > aim => format!("impossible for who keeps what jobs say: {bounds}"),
        false => {
            let [runs, all] = [false, true]
                .map(|memory| average(rows, mix, &AdmissionRule::Knows(memory).name(), |row| row.wait_mean_s));
            format!(
                "the aim is {aim:.0} s, not shown to be impossible: {bounds}; shortest first, which promises nothing, waits {free:.0} s, {runs:.0} s if it knew how long jobs run, {all:.0} s if it knew what they take, too"
            )
        }
    }
}

/// Judges the aims: waits in the mean over the seeds, the rest for each seed.
pub fn judge(rows: &[AdmissionRow]) -> Vec<AdmissionAim> {
    let [weft, fifo, exclusive] =
        [AdmissionPolicy::Weft, contenders::FIFO, contenders::EXCLUSIVE].map(AdmissionPolicy::name);
    let mut aims = Vec::new();
    for mix in names(rows) {
        let ooms: u32 = of(rows, mix, weft).map(|row| row.oom_by_neighbours).sum();
        aims.push(AdmissionAim {
            what: format!("{mix}: no job gets no memory because of a neighbour"),
            figures: format!("{ooms} times"),
            met: ooms == 0,
        });
        if mix == ODD {
            continue;
        }
        let wait = |rule: &str| average(rows, mix, rule, |row| row.wait_mean_s);
        let (ours, alone, first) = (wait(weft), wait(exclusive), wait(fifo));
        let met = ours * BELOW_EXCLUSIVE <= alone;
        aims.push(AdmissionAim {
            what: format!("{mix}: mean wait at least {BELOW_EXCLUSIVE} times below exclusive"),
            figures: format!(
                "{ours:.0} s, exclusive {alone:.0} s ({:.1} times); {}",
                alone / ours.max(0.001),
                possible(rows, mix, met, alone / BELOW_EXCLUSIVE)
            ),
            met,
        });
        aims.push(AdmissionAim {
            what: format!("{mix}: mean wait below fifo"),
            figures: format!("{ours:.0} s, fifo {first:.0} s ({:.1} times)", first / ours.max(0.001)),
            met: ours < first,
        });
        for (tries, wait) in [
            (
                "by its first try",
                (|row| row.wait_largest_first_s) as fn(&AdmissionRow) -> f64,
            ),
            ("with tries after it outgrew its own estimate", |row| row.wait_largest_s),
        ] {
            let (over, figures) = worst(rows, mix, wait);
            aims.push(AdmissionAim {
                what: format!("{mix}: the largest job waits no longer than under fifo and its bound, {tries}"),
                figures,
                met: over <= 0.0,
            });
        }
    }
    aims
}

/// Tables for people: one for each mix, in the mean over the seeds.
pub fn text(rows: &[AdmissionRow], abouts: &BTreeMap<String, &'static str>) -> String {
    let mut lines = Vec::new();
    for mix in names(rows) {
        lines.push(format!("{mix}: {}", abouts.get(mix).unwrap_or(&"")));
        lines.push(format!(
            "  {:<20} {:>9} {:>6} {:>9} {:>9} {:>10} {:>6} {:>7} {:>10} {:>6} {:>9}",
            "", "OOM neigh", "OOM own", "wait", "p95", "largest", "busy", "memory", "makespan", "Jain", "variance"
        ));
        let mut rules: Vec<&str> = Vec::new();
        for row in rows.iter().filter(|row| row.mix == mix) {
            if !rules.contains(&row.rule.as_str()) {
                rules.push(&row.rule);
            }
        }
        for rule in rules {
            let figure = |figure: fn(&AdmissionRow) -> f64| average(rows, mix, rule, figure);
            lines.push(format!(
                "  {:<20} {:>9.1} {:>7.1} {:>7.0} s {:>7.0} s {:>8.0} s {:>6.2} {:>7.2} {:>8.0} s {:>6.2} {:>9.1}",
                rule,
                figure(|row| f64::from(row.oom_by_neighbours)),
                figure(|row| f64::from(row.oom_by_itself)),
                figure(|row| row.wait_mean_s),
                figure(|row| row.wait_p95_s),
                figure(|row| row.wait_largest_s),
                figure(|row| row.busy),
                figure(|row| row.memory),
                figure(|row| row.makespan_s),
                figure(|row| row.jain),
                figure(|row| row.variance),
            ));
        }
        lines.extend(foretold(rows, mix));
    }
    let knowing = [false, true].map(|memory| AdmissionRule::Knows(memory).name());
    if rows.iter().any(|row| knowing.contains(&row.rule)) {
        let [runs, all] = knowing;
        lines.push(format!(
            "not judged, as they know what nobody can and promise nothing: {runs} (how long each job runs), {all} (what it takes, too)"
        ));
    }
    lines.join("\n") + "\n"
}
