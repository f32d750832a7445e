//! Services with objectives on few GPUs, planned by InSS's greedy stand-in and by simpler rules.
//! What counts is the rate that is answered within its SLO, by the latency model of the plan.

use serde::Serialize;

use weft_cluster::Draws;
use weft_cluster::policies::inss::{ServiceAsk, ServicePlace, keeps_slo, least_share, plan_services};

/// GPUs, as many as InSS was tried on at most.
const GPUS: usize = 64;

/// What came of a rule.
#[derive(Debug, Clone, Serialize)]
pub struct ServingFigure {
    /// The rule.
    pub rule: String,
    /// Services that keep their SLO.
    pub kept: f64,
    /// Services that were placed and do not.
    pub broken: f64,
    /// Requests a second that are answered within their SLO.
    pub rate: f64,
}

fn services(seed: u64, count: usize) -> Vec<ServiceAsk> {
    let mut draws = Draws::new(seed);
    let mut one = || {
        let each_us = 300 + 100 * draws.below(25) as u64;
        let fixed_us = 1_000 + 500 * draws.below(10) as u64;
        ServiceAsk {
            rate_milli: 1_000 * (20 + draws.below(200) as u64),
            // Five to fifteen times what one request takes.
            slo_us: (fixed_us + each_us) * (5 + draws.below(11) as u64),
            fixed_us,
            each_us,
            saturation_milli: 200 + 100 * draws.below(7) as u32,
            pressure_milli: 100 * draws.below(8) as u32,
        }
    };
    (0..count).map(|_| one()).collect()
}

/// One service a GPU.
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

/// By shares that are enough alone; `spare` of each GPU is left free for what is not known.
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

/// What it is called, and its plan.
type ServingRule = (&'static str, fn(&[ServiceAsk]) -> Vec<Option<ServicePlace>>);

/// The rules, each the mean of the seeds.
pub fn run(seeds: u64) -> Vec<ServingFigure> {
    let rules: [ServingRule; 4] = [
        ("exclusive", exclusive),
        ("shares", |services| shares_alone(services, 0)),
        ("shares, a third spare", |services| shares_alone(services, 333)),
        ("inss, greedy", |services| plan_services(services, GPUS)),
    ];
    let mean = |(rule, plan): &ServingRule| {
        let mut sum = judged(rule, &[], &[]);
        for seed in 1..=seeds {
            let services = services(seed, GPUS * 8);
            let one = judged(rule, &services, &plan(&services));
            sum.kept += one.kept / seeds as f64;
            sum.broken += one.broken / seeds as f64;
            sum.rate += one.rate / seeds as f64;
        }
        sum
    };
    rules.iter().map(mean).collect()
}

/// For people.
pub fn table(figures: &[ServingFigure]) -> String {
    let mut text = String::from("Services on 64 GPUs, mean of the seeds\n");
    text += &format!("{:<24}{:>8}{:>8}{:>12}\n", "rule", "kept", "broken", "requests/s");
    for row in figures {
        text += &format!(
            "{:<24}{:>8.1}{:>8.1}{:>12.0}\n",
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
        let figures = run(1);
        let of = |rule: &str| figures.iter().find(|figure| figure.rule == rule).unwrap();
        assert_eq!(of("inss, greedy").broken, 0.0);
        assert!(of("shares").broken > 0.0);
        assert!(of("inss, greedy").rate > of("exclusive").rate);
    }
}
