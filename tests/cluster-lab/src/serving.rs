// SPDX-License-Identifier: MIT OR Apache-2.0
//! Services with objectives on few GPUs, planned by InSS's two-stage learner, by its greedy
//! stand-in and by simpler rules. The measure is the rate that is answered within its SLO, by the
//! latency model of the plan.

use std::sync::Arc;

use anyhow::Result;
use serde::Serialize;

use weft_random::Random;

use crate::contenders::inss::{
    ServiceAsk, ServicePlace, densest_first, keeps_slo, least_share, plan_in_order, plan_services,
};
use crate::contenders::inss_network::InssNetwork;
use crate::contenders::learnt::{ChoiceRows, RowChooser};

/// GPUs; the most on which InSS was tried.
const GPUS: usize = 64;

/// Figures of a rule.
#[derive(Debug, Clone, Serialize)]
pub struct ServingFigure {
    /// The rule.
    pub rule: String,
    /// Services that keep their SLO.
    pub kept: f64,
    /// Services that were placed and do not keep it.
    pub broken: f64,
    /// Requests per second that are answered within their SLO.
    pub rate: f64,
}

/// Services of a seed.
pub fn services(seed: u64, count: usize) -> Vec<ServiceAsk> {
    let mut draws = Random::from_product(seed);
    let mut one = || {
        let each_us = 300 + 100 * draws.below(25);
        let fixed_us = 1_000 + 500 * draws.below(10);
        ServiceAsk {
            rate_milli: 1_000 * (20 + draws.below(200)),
            // Five to fifteen times the time of one request.
            slo_us: (fixed_us + each_us) * (5 + draws.below(11)),
            fixed_us,
            each_us,
            saturation_milli: 200 + 100 * draws.below(7) as u32,
            pressure_milli: 100 * draws.below(8) as u32,
        }
    };
    (0..count).map(|_| one()).collect()
}

/// Plan with one service on each GPU.
fn exclusive(services: &[ServiceAsk]) -> Vec<Option<ServicePlace>> {
    let mut order: Vec<usize> = (0..services.len()).collect();
    // The most requested first: the best for this rule.
    order.sort_by_key(|at| (std::cmp::Reverse(services[*at].rate_milli), *at));
    let mut places = vec![None; services.len()];
    let fits = order
        .into_iter()
        .filter_map(|at| least_share(&services[at], 0).map(|(_, batch)| (at, batch)));
    for (gpu, (at, batch)) in fits.take(GPUS).enumerate() {
        places[at] = Some(ServicePlace {
            gpu,
            share_milli: 1_000,
            batch,
        });
    }
    places
}

/// Plan by shares that are enough without others; `spare` of each GPU stays free for interference.
fn shares_alone(services: &[ServiceAsk], spare: u32) -> Vec<Option<ServicePlace>> {
    let mut free = vec![1_000 - spare; GPUS];
    let place = |ask: &ServiceAsk| {
        let (share_milli, batch) = least_share(ask, 0)?;
        let gpu = free.iter().position(|free| *free >= share_milli)?;
        free[gpu] -= share_milli;
        Some(ServicePlace {
            gpu,
            share_milli,
            batch,
        })
    };
    services.iter().map(place).collect()
}

/// Plain rule for the learner's own choices. It takes the GPU with the least required share, the
/// tightest of these. There it takes one step more than the least, with the batch that tolerates
/// most pressure. The learner was first trained to follow it (`scripts/harness/bench/learning.py`).
#[derive(Debug)]
pub struct OneStepMore;

impl RowChooser for OneStepMore {
    fn choose(&self, rows: &ChoiceRows) -> Option<usize> {
        let value = |at: &usize| {
            let row = rows.row(*at);
            match (row[0] > 0.0, row[1] > 0.0) {
                (true, _) => -10.0 * row[8] - row[9],
                (_, true) => row[14] - 100.0 * (4.0 * row[18] - 1.0).abs(),
                _ => f32::MIN,
            }
        };
        let allowed = (0..rows.len()).filter(|at| rows.allowed[*at]);
        // The first of equal ones.
        allowed.rev().max_by(|a, b| value(a).total_cmp(&value(b)))
    }
}

/// Upper bound of any plan: the requests of the services that need the least share for each, as if
/// they did not press on each other, with a part of the last.
fn at_most(services: &[ServiceAsk]) -> f64 {
    let mut left = (1_000 * GPUS) as f64;
    let mut rate = 0.0;
    for at in densest_first(services) {
        let need = least_share(&services[at], 0).map_or(1_000, |(share, _)| share);
        let part = (left / f64::from(need)).min(1.0);
        rate += part * services[at].rate_milli as f64 / 1e3;
        left -= part * f64::from(need);
    }
    rate
}

/// Requests per second of the services that have a place.
pub fn rate_of(services: &[ServiceAsk], places: &[Option<ServicePlace>]) -> f64 {
    let placed = services.iter().zip(places).filter(|(_, place)| place.is_some());
    placed.map(|(ask, _)| ask.rate_milli as f64 / 1e3).sum()
}

fn judged(rule: &str, services: &[ServiceAsk], places: &[Option<ServicePlace>]) -> ServingFigure {
    let mut pressed = [0u64; GPUS];
    let press =
        |at: usize, place: &ServicePlace| u64::from(services[at].pressure_milli) * u64::from(place.share_milli) / 1_000;
    for (at, place) in places
        .iter()
        .enumerate()
        .filter_map(|(at, place)| Some((at, place.as_ref()?)))
    {
        pressed[place.gpu] += press(at, place);
    }
    let mut figure = ServingFigure {
        rule: rule.to_string(),
        kept: 0.0,
        broken: 0.0,
        rate: 0.0,
    };
    for (at, place) in places
        .iter()
        .enumerate()
        .filter_map(|(at, place)| Some((at, place.as_ref()?)))
    {
        let others = pressed[place.gpu] - press(at, place);
        if keeps_slo(&services[at], place.share_milli, place.batch, others) {
            figure.kept += 1.0;
            figure.rate += services[at].rate_milli as f64 / 1e3;
        } else {
            figure.broken += 1.0;
        }
    }
    figure
}

/// Name of a rule, and its plan.
type ServingRule<'a> = (&'static str, &'a dyn Fn(&[ServiceAsk]) -> Vec<Option<ServicePlace>>);

/// Figures of the rules, each the mean over the seeds.
pub fn run(seeds: std::ops::RangeInclusive<u64>, network: &InssNetwork) -> Vec<ServingFigure> {
    let once = InssNetwork::new(Arc::new(OneStepMore));
    let rules: [ServingRule; 7] = [
        ("exclusive", &exclusive),
        ("shares", &|services| shares_alone(services, 0)),
        ("shares, a third spare", &|services| shares_alone(services, 333)),
        ("inss, greedy", &|services| plan_services(services, GPUS)),
        ("inss, greedy, densest first", &|services| {
            plan_in_order(services, GPUS, &densest_first(services))
        }),
        ("... shares given once", &|services| once.plan(services, GPUS)),
        ("inss, learnt", &|services| network.plan(services, GPUS)),
    ];
    let count = seeds.clone().count() as f64;
    let asked: Vec<Vec<ServiceAsk>> = seeds.map(|seed| services(seed, GPUS * 8)).collect();
    let mean = |(rule, plan): &ServingRule| {
        let mut sum = judged(rule, &[], &[]);
        for services in &asked {
            let one = judged(rule, services, &plan(services));
            sum.kept += one.kept / count;
            sum.broken += one.broken / count;
            sum.rate += one.rate / count;
        }
        sum
    };
    let mut figures: Vec<ServingFigure> = rules.iter().map(mean).collect();
    figures.push(ServingFigure {
        rate: asked.iter().map(|services| at_most(services)).sum::<f64>() / count,
        ..judged("no plan answers more", &[], &[])
    });
    figures
}

/// [`run`] with a network's file.
pub fn run_network(seeds: std::ops::RangeInclusive<u64>, text: &str) -> Result<Vec<ServingFigure>> {
    Ok(run(seeds, &InssNetwork::from_text(text)?))
}

/// Table for people.
pub fn table(figures: &[ServingFigure]) -> String {
    let mut text = String::from("Services on 64 GPUs, mean of the seeds\n");
    text += &format!("{:<30}{:>8}{:>8}{:>12}\n", "rule", "kept", "broken", "requests/s");
    for row in figures {
        text += &format!(
            "{:<30}{:>8.1}{:>8.1}{:>12.0}\n",
            row.rule, row.kept, row.broken, row.rate
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_breaks_no_objective_and_shares_that_ignore_others_do() {
        let figures = run(1..=1, &InssNetwork::shipped().unwrap());
        let of = |rule: &str| figures.iter().find(|figure| figure.rule == rule).unwrap();
        assert_eq!(of("inss, greedy").broken, 0.0);
        assert!(of("shares").broken > 0.0);
        assert!(of("inss, greedy").rate > of("exclusive").rate);
        for rule in ["inss, learnt", "... shares given once"] {
            assert_eq!(of(rule).broken, 0.0);
            assert!(of(rule).rate > of("inss, greedy").rate);
        }
        let most = of("no plan answers more").rate;
        assert!(figures.iter().all(|figure| figure.rate <= most));
    }
}
