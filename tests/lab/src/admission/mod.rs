// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission in the lab: which jobs get device memory and when, under the broker's own core,
//! compared with plain orders and with no order at all.
//!
//! * [`mix`]: jobs of several users, generated or from a public trace;
//! * [`world`]: one mix under one rule in virtual time;
//! * [`figures`]: the results; [`contenders`]: orders that weft does not ship; [`least`]: lower
//!   bounds for any order.
//!
//! `scripts/lab admission` runs it. Invariants: a mix, a seed and a rule determine a run. The world
//! counts the devices' memory by itself, so that the core's promises are checked, not trusted.
#![forbid(unsafe_code)]

pub mod contenders;
pub mod figures;
pub mod least;
pub mod mix;
pub mod world;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;

use figures::{AdmissionAim, AdmissionRow};
use world::AdmissionRule;

/// Jobs and the times at which they get device memory: mixes under every policy of admission, in
/// virtual time.
///
///   scripts/lab admission --check --json target/admission.json
///   scripts/lab admission --quick
///   scripts/lab admission --mix bursts --seeds 7
#[derive(Debug, Parser)]
#[command(name = "scripts/lab admission", verbatim_doc_comment)]
struct AdmissionOptions {
    /// Fewer jobs, one seed: shows whether it works
    #[arg(long)]
    quick: bool,
    /// Exit 1 if an aim is missed; the missed aims, with figures, come last
    #[arg(long)]
    check: bool,
    /// All results, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seeds
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5")]
    seeds: Vec<u64>,
    /// Only these mixes
    #[arg(long)]
    mix: Vec<String>,
    /// The public trace's folder. Without this option and without ../shared/data/openb, the trace
    /// is left out
    #[arg(long, value_name = "FOLDER")]
    openb: Option<PathBuf>,
}

/// The public trace's folder if none is given.
const OPENB: &str = "../shared/data/openb";

#[derive(Debug, Serialize)]
struct AdmissionResults {
    command: String,
    seeds: Vec<u64>,
    seconds: f64,
    aims: Vec<AdmissionAim>,
    rows: Vec<AdmissionRow>,
}

/// Runs the subcommand with the words after its name.
pub fn main(words: impl Iterator<Item = String>) -> ExitCode {
    let options = AdmissionOptions::parse_from(std::iter::once("scripts/lab admission".to_string()).chain(words));
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weft-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The public trace's pods. If a folder is given, it must hold the trace.
fn trace(named: Option<&Path>) -> Result<Option<Vec<mix::Pod>>> {
    let path = named.unwrap_or(Path::new(OPENB)).join("openb_pod_list_default.csv");
    if !path.exists() {
        anyhow::ensure!(named.is_none(), "--openb: {} is not there", path.display());
        eprintln!(
            "{} is not there: the public trace is left out (--openb names its folder)",
            path.display()
        );
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
    let pods = mix::pods(&text);
    anyhow::ensure!(
        !pods.is_empty(),
        "{}: holds no pods of one GPU that ran",
        path.display()
    );
    Ok(Some(pods))
}

/// The output file, opened before anything runs: an unwritable path is an error at once, and a file
/// of an earlier run is not mistaken for this one's.
fn output(path: &Path) -> Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
    }
    File::create(path).with_context(|| format!("{}: cannot be written", path.display()))
}

/// The requested mixes of a seed.
fn chosen(options: &AdmissionOptions, pods: Option<&[mix::Pod]>, seed: u64) -> Result<Vec<mix::JobMix>> {
    let mut mixes = mix::made(seed, options.quick);
    let count = if options.quick { 150 } else { 500 };
    mixes.extend(pods.and_then(|pods| mix::openb(pods, seed, count)));
    for name in &options.mix {
        let names = || mixes.iter().map(|mix| mix.name.as_str()).collect::<Vec<_>>().join(", ");
        anyhow::ensure!(
            mixes.iter().any(|mix| mix.name == *name),
            "--mix: no mix is called {name}; there are {}",
            names()
        );
    }
    if !options.mix.is_empty() {
        mixes.retain(|mix| options.mix.contains(&mix.name));
    }
    Ok(mixes)
}

/// The number of aims that were met, then the met ones, and last the missed ones.
fn verdict(aims: &[AdmissionAim]) -> String {
    let met = aims.iter().filter(|aim| aim.met).count();
    let mut lines = vec![format!("{met} of {} aims met\n", aims.len())];
    for met in [true, false] {
        for aim in aims.iter().filter(|aim| aim.met == met) {
            lines.push(format!(
                "{}: {}: {}\n",
                if met { "met" } else { "MISSED" },
                aim.what,
                aim.figures
            ));
        }
    }
    lines.concat()
}

fn run(options: &AdmissionOptions) -> Result<bool> {
    let start = Instant::now();
    let json = options.json.as_deref().map(output).transpose()?;
    let seeds: Vec<u64> = if options.quick {
        options.seeds.iter().take(1).copied().collect()
    } else {
        options.seeds.clone()
    };
    let pods = trace(options.openb.as_deref())?;
    let mut rows = Vec::new();
    let mut abouts = BTreeMap::new();
    for seed in &seeds {
        for mix in &chosen(options, pods.as_deref(), *seed)? {
            eprintln!(
                "seed {seed}, {}: {} jobs, {:.0} s",
                mix.name,
                mix.jobs.len(),
                start.elapsed().as_secs_f64()
            );
            abouts.insert(mix.name.clone(), mix.about);
            for rule in AdmissionRule::all() {
                rows.push(figures::row(mix, *seed, rule, &world::run(mix, rule)));
            }
        }
    }
    let results = AdmissionResults {
        command: std::env::args().collect::<Vec<String>>().join(" "),
        seeds,
        seconds: start.elapsed().as_secs_f64(),
        aims: figures::judge(&rows),
        rows,
    };
    if let Some(mut file) = json {
        file.write_all(serde_json::to_string_pretty(&results)?.as_bytes())
            .context("--json: cannot be written")?;
    }
    print!("{}", figures::text(&results.rows, &abouts));
    if pods.is_none() && (options.mix.is_empty() || options.mix.iter().any(|mix| mix == "openb")) {
        println!("not judged: openb: the public trace is not there (--openb names its folder)");
    }
    print!("{}", verdict(&results.aims));
    Ok(!options.check || results.aims.iter().all(|aim| aim.met))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> AdmissionOptions {
        AdmissionOptions::parse_from(std::iter::once("admission").chain(words.iter().copied()))
    }

    #[test]
    fn what_is_mistyped_is_an_error_before_anything_is_run() {
        let typo = run(&options(&["--mix", "poisson", "--mix", "posson"])).expect_err("no such mix");
        assert!(
            typo.to_string().contains("posson") && typo.to_string().contains("poisson,"),
            "{typo}"
        );
        let folder = run(&options(&["--openb", "/nowhere"])).expect_err("no such trace");
        assert!(folder.to_string().contains("--openb"), "{folder}");
        let file = run(&options(&["--json", "/proc/nowhere/x"])).expect_err("no such place");
        assert!(file.to_string().contains("/proc/nowhere"), "{file}");
    }

    #[test]
    fn what_is_missed_comes_last() {
        let aim = |what: &str, met| AdmissionAim {
            what: what.to_string(),
            figures: String::new(),
            met,
        };
        let text = verdict(&[aim("a", false), aim("b", true)]);
        assert_eq!(text, "1 of 2 aims met\nmet: b: \nMISSED: a: \n");
    }
}
