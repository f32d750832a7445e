// SPDX-License-Identifier: MIT OR Apache-2.0
//! InSS (TPDS 2024) with a trained network: it chooses the GPU of the next service, or none, then
//! the service's share of the SMs and its batch there.
//!
//! | paper | here |
//! |---|---|
//! | stage 1: model placement | a row for each GPU that has room by the latency model, and "none" |
//! | stage 2, for each GPU: its share and batch, mixed actions | a row for each share (steps of 5 %) with each batch (powers of two) |
//! | a learner with continuous actions (TD3) in stage 2 | the same [`RowNetwork`] for both stages: masked PPO, `scripts/learn inss` |
//! | interference-aware latency model | [`latency_us`], as for the greedy; it masks choices that would break an objective |
//! | tasks come online | one service after the other; placed services are not moved |
//! | objective: throughput under SLOs | reward: requests of services that are turned away, with the sign turned |
//!
//! Only the abstract was available, and a reader's note that stage 2 is TD3. So the paper's learner
//! of stage 1, states, rewards, action steps and latency model are not known here. Nor is it known
//! whether a share changes later. Here it does not: MPS fixes a client's share when its process
//! starts. So stage 2 must foresee later services on the GPU. The greedy is freer: it raises the
//! shares of placed services.
//!
//! Services come by their requests per share that they need, the most first ([`densest_first`]),
//! since the plan knows them all. The paper's order was not available.

use std::sync::Arc;

use super::inss::{BATCHES, STEP_MILLI, ServiceAsk, ServicePlace, WHOLE_MILLI};
use super::inss::{beside, densest_first, latency_us, least_share};
use super::learnt::{BrokenNetwork, ChoiceRows, RowChooser, RowNetwork, flag, part};

/// Features of a row: of a GPU in stage 1, of a share with a batch in stage 2. The row "none" has
/// only the features of the service and of all GPUs.
pub const FEATURES: [&str; 19] = [
    "it is a GPU, with the least share there",
    "it is a share and a batch",
    "share that the service needs alone",
    "how it presses with a whole GPU's share",
    "its requests for a share, of the mean of all services",
    "part of the services that are yet to come",
    "free part of all GPUs",
    "share that services yet to come need alone, of what is free",
    "its share",
    "part of the GPU that is left with it",
    "share beyond what it needs alone",
    "how those that are there press",
    "how it presses on them",
    "how much more they bear with it",
    "how much more it bears beside them",
    "services that are there",
    "how those that are there press for their share",
    "logarithm of its batch",
    "steps beyond the least share there",
];

/// Steps of 5 % beyond the least share that stage 2 sees.
const MORE_STEPS: u32 = 4;
/// Tolerated pressure that is one to the network, and the most that it sees, thousandths.
const MOST_BORNE_MILLI: u64 = 1_000;

/// The network of this package's folder.
const SHIPPED: &str = include_str!("../../networks/inss.txt");

/// Placed service.
#[derive(Debug, Clone, Copy)]
struct Placed {
    /// Its pressure on others, thousandths.
    presses: u64,
    /// Pressure of others at which its objective still holds, thousandths.
    bears: u64,
}

/// A GPU with the services that were placed on it.
#[derive(Debug, Clone, Default)]
struct GpuServices {
    placed: Vec<Placed>,
    share_milli: u32,
    presses: u64,
}

impl GpuServices {
    /// Additional pressure that all placed services tolerate, thousandths.
    fn bears(&self) -> u64 {
        let more = self.placed.iter().map(|one| one.bears - (self.presses - one.presses));
        more.min().unwrap_or(u64::MAX)
    }

    fn takes(&self, ask: &ServiceAsk, share_milli: u32) -> bool {
        self.share_milli + share_milli <= WHOLE_MILLI && beside(ask, share_milli) <= self.bears()
    }
}

/// Pressure of others at which the objective still holds, thousandths; none if it breaks without
/// any.
fn bears(ask: &ServiceAsk, share_milli: u32, batch: u32) -> Option<u64> {
    let each_us = 1_000_000_000 / ask.rate_milli.max(1);
    let gather_us = each_us * u64::from(batch.max(1) - 1);
    let most_us = (each_us * u64::from(batch)).min(ask.slo_us.checked_sub(gather_us)?);
    let alone_us = latency_us(ask, share_milli, batch, 0).max(1);
    // The latency is cut to whole microseconds.
    (((most_us + 1) * 1_000 - 1) / alone_us).checked_sub(1_000)
}

/// Next choice of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PlanStage {
    /// A GPU for each row, without the last row, "none".
    Gpu(Vec<usize>),
    /// The GPU, and a share and batch for each row.
    Share(usize, Vec<(u32, u32)>),
    /// No choice is left.
    Ended,
}

/// Plan that is made choice by choice.
#[derive(Debug, Clone)]
pub struct ServicePlanning<'a> {
    services: &'a [ServiceAsk],
    order: Vec<usize>,
    /// Position of the next service in the order.
    next: usize,
    /// Share that each service needs without others, thousandths.
    needs: Vec<u32>,
    /// Total share that the services from the next on need without others, thousandths.
    to_come_milli: u64,
    /// Mean requests per share, thousandths per thousand seconds.
    mean_density: u64,
    gpus: Vec<GpuServices>,
    places: Vec<Option<ServicePlace>>,
    stage: PlanStage,
    rows: ChoiceRows,
}

impl<'a> ServicePlanning<'a> {
    /// Creates a plan without placed services.
    pub fn new(services: &'a [ServiceAsk], gpus: usize) -> ServicePlanning<'a> {
        let order = densest_first(services);
        let mut needs = vec![0; services.len()];
        let (mut share, mut rate) = (0, 0);
        for at in order.iter().copied() {
            needs[at] = least_share(&services[at], 0).map_or(WHOLE_MILLI, |(share, _)| share);
            share += u64::from(needs[at]);
            rate += services[at].rate_milli;
        }
        let mut planning = ServicePlanning {
            services,
            order,
            next: 0,
            needs,
            to_come_milli: share,
            mean_density: rate / share.max(1),
            gpus: vec![GpuServices::default(); gpus],
            places: vec![None; services.len()],
            stage: PlanStage::Ended,
            rows: ChoiceRows::new(FEATURES.len()),
        };
        planning.seek();
        planning
    }

    /// Rows to choose from now; none at the end.
    pub fn rows(&self) -> Option<&ChoiceRows> {
        (self.stage != PlanStage::Ended).then_some(&self.rows)
    }

    /// Services that were placed or passed by, by index.
    pub fn decided(&self) -> &[usize] {
        &self.order[..self.next]
    }

    /// Places of services so far.
    pub fn places(&self) -> &[Option<ServicePlace>] {
        &self.places
    }

    /// Takes a row. A number beyond the rows counts as the last one: "none", or the largest share.
    pub fn take(&mut self, row: usize) {
        match std::mem::replace(&mut self.stage, PlanStage::Ended) {
            PlanStage::Gpu(gpus) => match gpus.get(row) {
                Some(gpu) => self.offer_shares(*gpu),
                None => self.pass(),
            },
            PlanStage::Share(gpu, shares) => {
                if let Some((share_milli, batch)) = shares.get(row.min(shares.len() - 1)) {
                    self.place(gpu, *share_milli, *batch);
                }
                self.pass();
            }
            PlanStage::Ended => {}
        }
    }

    fn place(&mut self, gpu: usize, share_milli: u32, batch: u32) {
        let at = self.order[self.next];
        let ask = &self.services[at];
        let presses = beside(ask, share_milli);
        let there = &mut self.gpus[gpu];
        there.placed.push(Placed {
            presses,
            bears: bears(ask, share_milli, batch).unwrap_or(0),
        });
        there.share_milli += share_milli;
        there.presses += presses;
        self.places[at] = Some(ServicePlace {
            gpu,
            share_milli,
            batch,
        });
    }

    /// Counts the service as decided, and goes to the next one.
    fn pass(&mut self) {
        self.to_come_milli -= u64::from(self.needs[self.order[self.next]]);
        self.next += 1;
        self.seek();
    }

    /// Goes to the next service for which some GPU has room.
    fn seek(&mut self) {
        while let Some(at) = self.order.get(self.next).copied() {
            let ask = &self.services[at];
            self.rows = ChoiceRows::new(FEATURES.len());
            let mut gpus = Vec::new();
            let mut empty = false;
            for (gpu, there) in self.gpus.iter().enumerate() {
                // All empty GPUs are one choice.
                if there.placed.is_empty() && std::mem::replace(&mut empty, true) {
                    continue;
                }
                let least = least_share(ask, there.presses).filter(|(share, _)| there.takes(ask, *share));
                if let Some((share_milli, batch)) = least {
                    let features = self.features(at, Some((there, share_milli, batch, None)));
                    self.rows.push(&features, true);
                    gpus.push(gpu);
                }
            }
            if !gpus.is_empty() {
                let none = self.features(at, None);
                self.rows.push(&none, true);
                self.stage = PlanStage::Gpu(gpus);
                return;
            }
            self.to_come_milli -= u64::from(self.needs[at]);
            self.next += 1;
        }
        self.stage = PlanStage::Ended;
    }

    /// Offers shares and batches on a GPU with which the service and those there keep their SLO.
    fn offer_shares(&mut self, gpu: usize) {
        let at = self.order[self.next];
        let (ask, there) = (&self.services[at], &self.gpus[gpu]);
        let Some((least, _)) = least_share(ask, there.presses) else {
            return self.pass();
        };
        let mut rows = ChoiceRows::new(FEATURES.len());
        let mut shares = Vec::new();
        for steps in 0..=MORE_STEPS {
            let share_milli = least + steps * STEP_MILLI;
            // Beyond saturation a larger share only adds pressure.
            let helps = steps == 0 || share_milli < ask.saturation_milli + STEP_MILLI;
            if !helps || !there.takes(ask, share_milli) {
                break;
            }
            for batch in BATCHES {
                if bears(ask, share_milli, batch).is_some_and(|bears| bears >= there.presses) {
                    let features = self.features(at, Some((there, share_milli, batch, Some(steps))));
                    rows.push(&features, true);
                    shares.push((share_milli, batch));
                }
            }
        }
        self.rows = rows;
        self.stage = PlanStage::Share(gpu, shares);
    }

    /// Features of a service, and of a share with a batch on a GPU. The last value of `on` is the
    /// steps beyond the least share in stage 2.
    fn features(&self, at: usize, on: Option<(&GpuServices, u32, u32, Option<u32>)>) -> [f32; FEATURES.len()] {
        let ask = &self.services[at];
        let whole = u64::from(WHOLE_MILLI);
        let milli = |milli: u64| milli.min(4 * whole) as f32 / whole as f32;
        let borne = |milli: u64| milli.min(MOST_BORNE_MILLI) as f32 / MOST_BORNE_MILLI as f32;
        let all = self.gpus.len() as u64 * whole;
        let taken: u64 = self.gpus.iter().map(|there| u64::from(there.share_milli)).sum();
        let need = self.needs[at];
        let density = ask.rate_milli / u64::from(need.max(1));
        let mut features = [0.0; FEATURES.len()];
        features[2] = milli(u64::from(need));
        features[3] = milli(u64::from(ask.pressure_milli));
        features[4] = milli(density * whole / self.mean_density.max(1));
        features[5] = part((self.order.len() - self.next) as u64, self.order.len() as u64);
        features[6] = part(all - taken, all);
        features[7] = milli(self.to_come_milli * whole / (all - taken).max(1));
        let Some((there, share_milli, batch, steps)) = on else {
            return features;
        };
        let presses = beside(ask, share_milli);
        features[0] = flag(steps.is_none());
        features[1] = flag(steps.is_some());
        features[8] = milli(u64::from(share_milli));
        features[9] = milli(u64::from(WHOLE_MILLI - there.share_milli - share_milli));
        features[10] = milli(u64::from(share_milli.saturating_sub(need)));
        features[11] = milli(there.presses);
        features[12] = milli(presses) * flag(!there.placed.is_empty());
        features[13] = borne(there.bears().saturating_sub(presses));
        features[14] = borne(
            bears(ask, share_milli, batch)
                .unwrap_or(0)
                .saturating_sub(there.presses),
        );
        features[15] = there.placed.len() as f32 / 8.0;
        features[16] = milli(there.presses * whole / u64::from(there.share_milli.max(1)));
        features[17] = batch.ilog2() as f32 / 6.0;
        features[18] = steps.unwrap_or(0) as f32 / MORE_STEPS as f32;
        features
    }
}

/// Planner by a network, or by a trainer of one.
#[derive(Debug, Clone)]
pub struct InssNetwork(Arc<dyn RowChooser>);

impl InssNetwork {
    /// The shipped network.
    pub fn shipped() -> Result<InssNetwork, BrokenNetwork> {
        InssNetwork::from_text(SHIPPED)
    }

    /// From a network's file.
    pub fn from_text(text: &str) -> Result<InssNetwork, BrokenNetwork> {
        let network = RowNetwork::for_rows(text, FEATURES.len(), "a row")?;
        Ok(InssNetwork::new(Arc::new(network)))
    }

    /// Creates a planner with this chooser.
    pub fn new(chooser: Arc<dyn RowChooser>) -> InssNetwork {
        InssNetwork(chooser)
    }

    /// Places services on a number of GPUs. None for a service that keeps its SLO nowhere, or was
    /// passed by.
    pub fn plan(&self, services: &[ServiceAsk], gpus: usize) -> Vec<Option<ServicePlace>> {
        let mut planning = ServicePlanning::new(services, gpus);
        while let Some(rows) = planning.rows() {
            // A chooser that names no row passes the service by.
            let row = self.0.choose(rows).unwrap_or(usize::MAX);
            planning.take(row);
        }
        planning.places
    }
}

#[cfg(test)]
mod tests {
    use super::super::inss::keeps_slo;
    use super::*;
    use weft_random::Random;

    fn services(seed: u64, count: usize) -> Vec<ServiceAsk> {
        let mut draws = Random::from_product(seed);
        let mut one = || ServiceAsk {
            rate_milli: 1_000 * (20 + draws.below(200)),
            slo_us: 10_000 + 1_000 * draws.below(60),
            fixed_us: 1_000 + 500 * draws.below(10),
            each_us: 300 + 100 * draws.below(25),
            saturation_milli: 200 + 100 * draws.below(7) as u32,
            pressure_milli: 100 * draws.below(8) as u32,
        };
        (0..count).map(|_| one()).collect()
    }

    /// Chooses any allowed row: plans keep objectives because of the rows, not because of the
    /// chooser.
    #[derive(Debug)]
    struct RandomRow(std::sync::Mutex<Random>);

    impl RowChooser for RandomRow {
        fn choose(&self, rows: &ChoiceRows) -> Option<usize> {
            Some(self.0.lock().unwrap().index(rows.len()))
        }
    }

    #[test]
    fn whatever_is_chosen_no_gpu_is_overfull_and_no_objective_breaks() {
        for seed in 1..=8 {
            let services = services(seed, 80);
            let chooser = RandomRow(std::sync::Mutex::new(Random::from_product(seed)));
            let places = InssNetwork::new(Arc::new(chooser)).plan(&services, 8);
            assert!(places.iter().flatten().count() > 8, "{places:?}");
            let placed = || {
                places
                    .iter()
                    .enumerate()
                    .filter_map(|(at, place)| Some((at, (*place)?)))
            };
            for (at, place) in placed() {
                let there = placed().filter(|(_, of)| of.gpu == place.gpu);
                let (pressed, shares) = there.fold((0, 0), |(pressed, shares), (other, of)| {
                    let presses = beside(&services[other], of.share_milli);
                    (pressed + presses * u64::from(other != at), shares + of.share_milli)
                });
                assert!(shares <= WHOLE_MILLI);
                assert!(keeps_slo(&services[at], place.share_milli, place.batch, pressed));
            }
        }
    }

    #[test]
    fn what_a_service_bears_is_the_most_with_which_it_keeps_its_slo() {
        let mut kept = 0;
        for ask in services(3, 60) {
            for (share, batch) in [(100, 2), (400, 4), (1_000, 8), (1_000, 64)] {
                match bears(&ask, share, batch) {
                    Some(most) => {
                        kept += 1;
                        assert!(keeps_slo(&ask, share, batch, most));
                        assert!(!keeps_slo(&ask, share, batch, most + 1));
                    }
                    None => assert!(!keeps_slo(&ask, share, batch, 0)),
                }
            }
        }
        assert!(kept > 20);
    }

    #[test]
    fn a_choice_has_two_stages_and_none_passes_the_service_by() {
        let services = services(5, 12);
        let mut planning = ServicePlanning::new(&services, 2);
        let rows = planning.rows().unwrap();
        // Both GPUs are empty, so they are one row. Then comes "none".
        assert_eq!((rows.len(), rows.row(0)[0], rows.row(1)[0]), (2, 1.0, 0.0));
        planning.take(1);
        assert_eq!(planning.decided().len(), 1);
        planning.take(0);
        let rows = planning.rows().unwrap();
        assert!((0..rows.len()).all(|at| rows.row(at)[1] == 1.0));
        planning.take(0);
        assert_eq!(planning.places().iter().flatten().count(), 1);
        assert!(ServicePlanning::new(&services, 0).rows().is_none());
        assert!(ServicePlanning::new(&[], 4).rows().is_none());
    }
}
