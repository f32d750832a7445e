//! Admission in the lab: who gets device memory when, under the broker's own core, against plain orders and against no order at all.
//!
//! * [`mix`]: jobs of several users, made or from a public trace; * [`world`]: one mix under one rule in virtual time; * [`figures`]: what came of it;
//!   [`least`]: what no order could do better than.
//!
//! `scripts/lab admission` runs it. What holds: a run is its mix, its seed and its rule; the world counts the devices' memory by itself, so that what the core promises is
//! checked and not believed.
#![forbid(unsafe_code)]

pub mod figures;
pub mod least;
pub mod mix;
pub mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;

use figures::{Aim, Row};
use world::Rule;

/// Who gets device memory when: mixes of jobs under every policy of admission, in virtual time.
///
///   scripts/lab admission --check --json target/admission.json
///   scripts/lab admission --quick
///   scripts/lab admission --mix bursts --seeds 7
#[derive(Debug, Parser)]
#[command(name = "scripts/lab admission", verbatim_doc_comment)]
struct Options {
    /// Fewer jobs, one seed: says whether it works
    #[arg(long)]
    quick: bool,
    /// Exit 1 where an aim is missed; which, with figures, comes last
    #[arg(long)]
    check: bool,
    /// Everything, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seeds
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5")]
    seeds: Vec<u64>,
    /// Only these mixes
    #[arg(long)]
    mix: Vec<String>,
    /// The public trace's folder; left out where it is not there
    #[arg(long, value_name = "FOLDER", default_value = "../shared/data/openb")]
    openb: PathBuf,
}

#[derive(Debug, Serialize)]
struct Results {
    command: String,
    seeds: Vec<u64>,
    seconds: f64,
    aims: Vec<Aim>,
    rows: Vec<Row>,
}

/// The subcommand, with the words after its name.
pub fn main(words: impl Iterator<Item = String>) -> ExitCode {
    let options = Options::parse_from(std::iter::once("scripts/lab admission".to_string()).chain(words));
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weft-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn trace(folder: &Path) -> Result<Option<Vec<mix::Pod>>> {
    let path = folder.join("openb_pod_list_default.csv");
    if !path.exists() {
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

fn run(options: &Options) -> Result<bool> {
    let start = Instant::now();
    let seeds: Vec<u64> = if options.quick {
        options.seeds.iter().take(1).copied().collect()
    } else {
        options.seeds.clone()
    };
    let pods = trace(&options.openb)?;
    let mut rows = Vec::new();
    let mut abouts = BTreeMap::new();
    for seed in &seeds {
        let mut mixes = mix::made(*seed, options.quick);
        let count = if options.quick { 150 } else { 500 };
        mixes.extend(pods.as_ref().and_then(|pods| mix::openb(pods, *seed, count)));
        if !options.mix.is_empty() {
            mixes.retain(|mix| options.mix.contains(&mix.name));
        }
        anyhow::ensure!(
            !mixes.is_empty(),
            "--mix: no mix is called {}",
            options.mix.join(" or ")
        );
        for mix in &mixes {
            eprintln!(
                "seed {seed}, {}: {} jobs, {:.0} s",
                mix.name,
                mix.jobs.len(),
                start.elapsed().as_secs_f64()
            );
            abouts.insert(mix.name.clone(), mix.about);
            for rule in Rule::all() {
                rows.push(figures::row(mix, *seed, rule, &world::run(mix, rule)));
            }
        }
    }
    let results = Results {
        command: std::env::args().collect::<Vec<String>>().join(" "),
        seeds,
        seconds: start.elapsed().as_secs_f64(),
        aims: figures::judge(&rows),
        rows,
    };
    if let Some(path) = &options.json {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&results)?)
            .with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    print!("{}", figures::text(&results.rows, &abouts));
    for aim in &results.aims {
        println!(
            "{}: {}: {}",
            if aim.met { "met" } else { "MISSED" },
            aim.what,
            aim.figures
        );
    }
    Ok(!options.check || results.aims.iter().all(|aim| aim.met))
}
