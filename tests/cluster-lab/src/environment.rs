// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab as an environment: a trainer of a network plays the same worlds as the figures. One
//! process, lines of JSON over standard input and output; `scripts/learn` starts it.
//!
//! ```text
//! in   {"seed": 1000, "jobs": 100}                                      a world begins
//! out  {"rows": [...], "allowed": [...], "now_s", "jobs_s", "lost_s"}   a choice is to be made
//! in   {"take": 3}                                                      the row that is taken
//! out  {"ended": true, "mean_s": ..., "now_s", "jobs_s", "lost_s"}      the world's last job ended
//! ```
//!
//! The world `inss` has no time: `now_s` is the number of decided services, `jobs_s` the rate of
//! requests turned away, `mean_s` the rate of answered ones, both per second.
//!
//! `rows` are the features of all rows in one list. `jobs_s` is the jobs in the system times their
//! time there so far, which is to be kept small. `lost_s` is GPU time that was held and did no
//! work. At the end of standard input the choice is the first allowed row, so that the process ends
//! when its trainer does.
//!
//! Seeds of figures are 1 to 5. A trainer takes seeds from [`FIRST_SEED`] on.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use weft_cluster::placement::PlacementRule;
use weft_cluster::policies::{ClusterPolicy, FifoOrder};
use weft_random::Random;

use crate::contenders::inss::densest_first;
use crate::contenders::inss_network::ServicePlanning;
use crate::contenders::learnt::{ChoiceRows, RowChooser, RowNetwork};
use crate::contenders::meta_rl::LearntPlacement;
use crate::contenders::sched2_network::Sched2Network;
use crate::serving;
use crate::trial::{self, Trial};
use crate::world::{self, PolicyFigure, WorldTally};

/// First seed for training; figures have lower ones.
pub const FIRST_SEED: u64 = 1_000;

/// Offset of the seed that draws the number of GPUs independently of the services.
const GPUS_OF_SEED: u64 = 1 << 32;

/// Line from the trainer.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TrainerWord {
    seed: Option<u64>,
    jobs: Option<usize>,
    take: Option<usize>,
}

/// Choice that is to be made, or the end.
#[derive(Debug, Default, Serialize)]
struct WorldChoice<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed: Option<&'a [bool]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_s: Option<f64>,
    ended: bool,
    now_s: f64,
    jobs_s: f64,
    lost_s: f64,
}

/// The trainer at the other end.
#[derive(Debug, Default)]
struct Trainer {
    tally: WorldTally,
    gone: AtomicBool,
}

/// The next line; none at the end of standard input, or if it is not valid.
fn said() -> Option<Result<TrainerWord>> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) => None,
        Ok(_) => Some(serde_json::from_str(&line).with_context(|| format!("not understood: {}", line.trim_end()))),
        Err(error) => Some(Err(error.into())),
    }
}

impl Trainer {
    fn tell(&self, asked: WorldChoice) -> Result<()> {
        let seconds = |ms: &AtomicU64| ms.load(Ordering::Relaxed) as f64 / 1e3;
        let asked = WorldChoice {
            now_s: seconds(&self.tally.now_ms),
            jobs_s: seconds(&self.tally.jobs_ms),
            lost_s: seconds(&self.tally.lost_ms),
            ..asked
        };
        told(&asked)
    }
}

fn told(asked: &WorldChoice) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, asked)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

impl RowChooser for Trainer {
    fn choose(&self, rows: &ChoiceRows) -> Option<usize> {
        let first = rows.allowed.iter().position(|allowed| *allowed)?;
        if self.gone.load(Ordering::Relaxed) {
            return Some(first);
        }
        let told = self.tell(WorldChoice {
            rows: Some(&rows.values),
            allowed: Some(&rows.allowed),
            ..WorldChoice::default()
        });
        let take = told.ok().and_then(|()| said()).and_then(Result::ok);
        self.gone.store(take.is_none(), Ordering::Relaxed);
        let take = take.and_then(|said| said.take);
        Some(take.filter(|at| rows.allowed.get(*at) == Some(&true)).unwrap_or(first))
    }
}

/// World of a seed, and its chooser.
fn world_of(
    what: &str,
    seed: u64,
    jobs: usize,
    chooser: Arc<dyn RowChooser>,
) -> Result<(Trial, Box<dyn ClusterPolicy>)> {
    Ok(match what {
        "meta-rl" => {
            let mut trial = trial::links_varied(seed, jobs);
            trial.rules.placement = PlacementRule::Gang(Arc::new(LearntPlacement::new(chooser)));
            (trial, Box::new(FifoOrder::passing()))
        }
        "sched2" | "sched2-told" => {
            let policy = Sched2Network::new(chooser, what == "sched2-told");
            (trial::spread_varied(seed, jobs), Box::new(policy))
        }
        _ => bail!("--environment: meta-rl, sched2, sched2-told or inss, not {what}"),
    })
}

/// The seed of the world that begins.
fn seed_of(said: &TrainerWord) -> Result<u64> {
    let seed = said.seed.context("a word with a seed begins a world")?;
    ensure!(
        seed >= FIRST_SEED,
        "seeds below {FIRST_SEED} are held back from training"
    );
    Ok(seed)
}

/// Services of a seed, four to ten for each GPU.
fn serve_services(seed: u64, count: usize) -> Result<bool> {
    let services = serving::services(seed, count);
    let gpus = count.div_ceil(4 + Random::from_product(seed ^ GPUS_OF_SEED).index(7));
    let mut planning = ServicePlanning::new(&services, gpus.max(1));
    // Services for which no GPU is fast enough are not offered.
    let fits: f64 = densest_first(&services)
        .iter()
        .map(|at| services[*at].rate_milli as f64 / 1e3)
        .sum();
    loop {
        let rate = serving::rate_of(&services, planning.places());
        let passed = planning.decided().iter().filter(|at| planning.places()[**at].is_none());
        let turned_away: f64 = passed.map(|at| services[*at].rate_milli as f64 / 1e3).sum();
        let asked = WorldChoice {
            now_s: planning.decided().len() as f64,
            jobs_s: turned_away,
            ..WorldChoice::default()
        };
        let Some(rows) = planning.rows() else {
            told(&WorldChoice {
                mean_s: Some(rate),
                ended: true,
                jobs_s: fits - rate,
                ..asked
            })?;
            return Ok(true);
        };
        told(&WorldChoice {
            rows: Some(&rows.values),
            allowed: Some(&rows.allowed),
            ..asked
        })?;
        let Some(said) = said() else {
            return Ok(false);
        };
        planning.take(said?.take.unwrap_or(0));
    }
}

/// Plays worlds until standard input ends.
pub fn serve(what: &str) -> Result<()> {
    if what == "inss" {
        while let Some(said) = said() {
            let said = said?;
            let seed = seed_of(&said)?;
            if !serve_services(seed, said.jobs.unwrap_or(64))? {
                break;
            }
        }
        return Ok(());
    }
    world_of(what, FIRST_SEED, 10, Arc::new(Trainer::default()))?;
    while let Some(said) = said() {
        let said = said?;
        let seed = seed_of(&said)?;
        let trainer = Arc::new(Trainer::default());
        let (trial, policy) = world_of(what, seed, said.jobs.unwrap_or(100), trainer.clone())?;
        let figure = world::run_watched(trial.name, &trial.jobs, policy, &trial.rules, Some(&trainer.tally))?;
        if trainer.gone.load(Ordering::Relaxed) {
            break;
        }
        trainer.tell(WorldChoice {
            mean_s: Some(figure.mean_s),
            ended: true,
            ..WorldChoice::default()
        })?;
    }
    Ok(())
}

/// Name of the choice that a network's file was trained for.
pub fn name_of(text: &str) -> Result<String> {
    let network: RowNetwork = text.parse()?;
    Ok(network.name().to_string())
}

/// Figures of a network's file and of the rules with which it is compared, on traces that were held
/// back.
pub fn judge(text: &str, jobs: usize, seeds: std::ops::RangeInclusive<u64>) -> Result<Vec<PolicyFigure>> {
    let network: RowNetwork = text.parse()?;
    if network.name() == "meta-rl" {
        let mut placements = trial::placements();
        placements.push(PlacementRule::Gang(Arc::new(LearntPlacement::from_text(text)?)));
        return trial::place(&trial::placing(jobs, seeds), &placements);
    }
    let told = network.name() == "sched2-told";
    let trials: Vec<Trial> = seeds.map(|seed| trial::spread(seed, jobs)).collect();
    let mut figures = trial::run(
        &trials,
        &["fifo", "fifo-backfill", "shortest-remaining", "sched2", "weft"],
    )?;
    let one = |trial: &Trial| {
        let policy = Box::new(Sched2Network::from_text(text, told)?);
        world::run(trial.name, &trial.jobs, policy, &trial.rules)
    };
    let each = trials.iter().map(one).collect::<Result<Vec<PolicyFigure>>>()?;
    figures.extend(world::mean_figure(&each));
    Ok(figures)
}
