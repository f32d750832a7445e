// SPDX-License-Identifier: MIT OR Apache-2.0
//! InSS: a service's GPU, its share of the GPU's SMs, and the size of its batches, so that its
//! objective (SLO) holds next to others. A plan, not an order in time.
//!
//! | paper | here |
//! |---|---|
//! | placement, SM share, batch size | [`ServicePlace`] |
//! | arrival rate, SLO | `rate_milli`, `slo_us` |
//! | latency alone by batch and share | `(fixed + each x batch) / min(1, share / saturation)` |
//! | interference of co-located services | a factor, linear in what the others press |
//! | two-stage learner over mixed actions | [`inss_network`](super::inss_network) |
//! | objective: throughput under SLOs | the lab counts it |
//!
//! ```text
//! latency = (fixed + each b) / min(1, share / saturation) (1 + sum(pressure x share))
//! (b - 1) / rate + latency <= SLO      b / latency >= rate
//! ```
//!
//! This is the greedy stand-in that the survey allows. It takes services by the share that they
//! need without others, the largest first. Each goes on the first GPU that lets it and all services
//! there keep their SLO, with shares raised for interference. The paper's latency model was not
//! available; the formula is the simplest that has its terms. In it the resulting shares on a GPU
//! are the least that these services can have there: a share is raised only if a smaller one breaks
//! an objective.

use std::cmp::Reverse;

/// A whole GPU's SMs, thousandths.
pub(super) const WHOLE_MILLI: u32 = 1_000;
/// Batch sizes that are tried.
pub(super) const BATCHES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Shares come in steps of MPS's percentage, thousandths.
pub(super) const STEP_MILLI: u32 = 50;

/// Service, and the behaviour of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceAsk {
    /// Requests in a thousand seconds.
    pub rate_milli: u64,
    /// Latency objective from arrival to answer, us.
    pub slo_us: u64,
    /// Fixed time of a batch, us.
    pub fixed_us: u64,
    /// Additional time for each request of a batch, us.
    pub each_us: u64,
    /// Share beyond which more SMs do not help, thousandths.
    pub saturation_milli: u32,
    /// Slowdown of others by this service with a whole GPU's share, thousandths.
    pub pressure_milli: u32,
}

/// Place of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServicePlace {
    /// The GPU, by index.
    pub gpu: usize,
    /// Share of the GPU's SMs, thousandths.
    pub share_milli: u32,
    /// Requests that are answered together.
    pub batch: u32,
}

/// Pressure of a service on others: its pressure times its share, thousandths.
pub(super) fn beside(ask: &ServiceAsk, share_milli: u32) -> u64 {
    u64::from(ask.pressure_milli) * u64::from(share_milli) / u64::from(WHOLE_MILLI)
}

/// Latency of a batch, us.
pub fn latency_us(ask: &ServiceAsk, share_milli: u32, batch: u32, pressed_milli: u64) -> u64 {
    let alone = ask.fixed_us + ask.each_us * u64::from(batch);
    let useful = share_milli.min(ask.saturation_milli).max(1);
    alone * u64::from(ask.saturation_milli) / u64::from(useful) * (1_000 + pressed_milli) / 1_000
}

/// Whether a service keeps up with its rate and keeps its SLO.
pub fn keeps_slo(ask: &ServiceAsk, share_milli: u32, batch: u32, pressed_milli: u64) -> bool {
    let latency = latency_us(ask, share_milli, batch, pressed_milli);
    let each_us = 1_000_000_000 / ask.rate_milli.max(1);
    // While a batch is answered the next one gathers. Its first request waits for its last.
    let keeps_up = each_us * u64::from(batch) >= latency;
    keeps_up && each_us * u64::from(batch.max(1) - 1) + latency <= ask.slo_us
}

/// Least share, with its batch, for which a service keeps its SLO.
pub fn least_share(ask: &ServiceAsk, pressed_milli: u64) -> Option<(u32, u32)> {
    let shares = (1..=WHOLE_MILLI / STEP_MILLI).map(|step| step * STEP_MILLI);
    let fits = |share: u32| {
        let kept = |batch: &&u32| keeps_slo(ask, share, **batch, pressed_milli);
        BATCHES.iter().find(kept).map(|batch| (share, *batch))
    };
    shares.filter_map(fits).next()
}

/// Places of services together on one GPU, if all keep their SLO there.
fn together(gpu: usize, services: &[ServiceAsk]) -> Option<Vec<ServicePlace>> {
    let mut places: Vec<ServicePlace> = Vec::new();
    for ask in services {
        let (share_milli, batch) = least_share(ask, 0)?;
        places.push(ServicePlace {
            gpu,
            share_milli,
            batch,
        });
    }
    // Shares only rise, so this ends: each pass raises one or is the last.
    loop {
        let total: u32 = places.iter().map(|place| place.share_milli).sum();
        if total > WHOLE_MILLI {
            return None;
        }
        let press: Vec<u64> = services
            .iter()
            .zip(&places)
            .map(|(ask, place)| beside(ask, place.share_milli))
            .collect();
        let all: u64 = press.iter().sum();
        let mut raised = false;
        for (at, ask) in services.iter().enumerate() {
            let (share_milli, batch) = least_share(ask, all - press[at])?;
            let share_milli = share_milli.max(places[at].share_milli);
            raised |= share_milli > places[at].share_milli;
            places[at] = ServicePlace {
                gpu,
                share_milli,
                batch,
            };
        }
        if !raised {
            return Some(places);
        }
    }
}

/// Share that each service needs without others, thousandths, with its index. Services for which no
/// GPU is fast enough are left out.
fn needs(services: &[ServiceAsk]) -> Vec<(u32, usize)> {
    let need = |(at, ask)| least_share(ask, 0).map(|(share, _)| (share, at));
    services.iter().enumerate().filter_map(need).collect()
}

/// Services by their requests per share that they need without others, the most first.
pub fn densest_first(services: &[ServiceAsk]) -> Vec<usize> {
    let mut order = needs(services);
    order.sort_by_key(|(share, at)| (Reverse(services[*at].rate_milli / u64::from(*share)), *at));
    order.into_iter().map(|(_, at)| at).collect()
}

/// Places services on a number of GPUs. None for a service that keeps its SLO nowhere.
pub fn plan_services(services: &[ServiceAsk], gpus: usize) -> Vec<Option<ServicePlace>> {
    let mut order = needs(services);
    order.sort_by_key(|(share, at)| (Reverse(*share), *at));
    let order: Vec<usize> = order.into_iter().map(|(_, at)| at).collect();
    plan_in_order(services, gpus, &order)
}

/// [`plan_services`] in another order, which names services by index.
pub fn plan_in_order(services: &[ServiceAsk], gpus: usize, order: &[usize]) -> Vec<Option<ServicePlace>> {
    let mut on: Vec<Vec<usize>> = vec![Vec::new(); gpus];
    let mut places: Vec<Option<ServicePlace>> = vec![None; services.len()];
    for at in order.iter().copied() {
        for (gpu, there) in on.iter_mut().enumerate() {
            there.push(at);
            let asks: Vec<ServiceAsk> = there.iter().map(|at| services[*at]).collect();
            if let Some(found) = together(gpu, &asks) {
                for (at, place) in there.iter().zip(found) {
                    places[*at] = Some(place);
                }
                break;
            }
            there.pop();
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(rate: u64, slo_ms: u64) -> ServiceAsk {
        ServiceAsk {
            rate_milli: rate * 1_000,
            slo_us: slo_ms * 1_000,
            fixed_us: 2_000,
            each_us: 1_000,
            saturation_milli: 500,
            pressure_milli: 400,
        }
    }

    #[test]
    fn every_placed_service_keeps_its_slo_beside_those_that_are_there() {
        let services: Vec<ServiceAsk> = (0..40).map(|at| service(50 + at * 10, 40 + at % 5 * 20)).collect();
        let places = plan_services(&services, 8);
        assert!(places.iter().flatten().count() > 16, "{places:?}");
        for (at, place) in places.iter().enumerate() {
            let Some(place) = place else { continue };
            let others = places.iter().enumerate().filter_map(|(other, of)| {
                let of = of.filter(|of| of.gpu == place.gpu && other != at)?;
                Some((beside(&services[other], of.share_milli), of.share_milli))
            });
            let (pressed, shares): (u64, u32) = others.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            assert!(shares + place.share_milli <= 1_000);
            assert!(keeps_slo(&services[at], place.share_milli, place.batch, pressed));
        }
    }

    #[test]
    fn a_service_that_no_gpu_is_fast_enough_for_is_nowhere() {
        // A request takes 3 ms at best.
        assert_eq!(plan_services(&[service(10, 2)], 4), [None]);
        // Larger batches if the rate requires them: 800 a second take 8 in 10 ms.
        let (_, batch) = least_share(&service(800, 60), 0).unwrap();
        assert!(batch >= 8, "{batch}");
    }
}
