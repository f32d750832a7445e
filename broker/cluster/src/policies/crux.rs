// SPDX-License-Identifier: MIT OR Apache-2.0
//! Crux (SIGCOMM 2024): paths and priorities for the traffic of gangs, by the GPU work that waits
//! for it. It does not decide which job gets GPUs: jobs come in the order of their arrival, and a
//! job passes those that do not fit.
//!
//! | paper | here |
//! |---|---|
//! | W_j, compute of an iteration | `duty_milli` times the gang's GPUs |
//! | t_j, the longest that its traffic takes on a link | `traffic_milli`, of the same iteration |
//! | I_j = W_j / t_j, GPU intensity | [`intensity`]; the iteration's length falls out |
//! | path selection | jobs in descending I_j, each takes the spine where the links are least loaded |
//! | P_j = k_j I_j, priority | [`priority`] |
//! | k_j, corrects for overlap and the iteration's shape | the part of the time in which it sends |
//! | compression to the hardware's levels | equal groups of the jobs in descending P_j |
//!
//! The paper was not available in full, and two points are not known here. One is the measure of
//! k_j. A job that sends for little of its time is delayed by little, so here k_j is
//! `1 / (1 + traffic)`. The other is the cuts between levels. The paper searches for the fewest
//! inversions between jobs that share a link; here groups are equal. The congestion of a path is
//! the sum of its flows' loads on idle links.

use std::collections::BTreeMap;

use super::ClusterPolicy;
use crate::job::JobId;
use crate::links::{ClusterLinks, Flow, FlowRoute};

/// Order by arrival, with paths and priorities by GPU intensity.
#[derive(Debug, Clone)]
pub struct CruxOrder;

/// GPU time that a unit of link time serves, thousandths.
fn intensity(flow: &Flow) -> u64 {
    let work = flow.gpu_milli * u64::from(flow.measure.duty_milli);
    work / u64::from(flow.measure.traffic_milli.max(1))
}

fn priority(flow: &Flow) -> u64 {
    let sends = 1_000 + u64::from(flow.measure.traffic_milli);
    intensity(flow).saturating_mul(1_000_000) / sends
}

/// Routes as a switch chooses them: a path by the flow's hash, one priority.
pub(super) fn by_hash(flows: &[Flow], links: &ClusterLinks) -> Vec<(JobId, FlowRoute)> {
    let path = |job: JobId| (job.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32 % links.paths.max(1);
    let route = |flow: &Flow| FlowRoute {
        path: path(flow.job),
        level: 0,
    };
    flows.iter().map(|flow| (flow.job, route(flow))).collect()
}

/// Paths in descending intensity, levels in descending priority.
pub(super) fn by_intensity(flows: &[Flow], links: &ClusterLinks) -> Vec<(JobId, FlowRoute)> {
    let mut by_intensity: Vec<&Flow> = flows.iter().collect();
    by_intensity.sort_by_key(|flow| (std::cmp::Reverse(intensity(flow)), flow.job));
    // Per leaf and path: the load of its flows on an idle link, millionths of the time.
    let mut loads: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let mut paths: BTreeMap<JobId, u32> = BTreeMap::new();
    for flow in &by_intensity {
        let worst = |path: u32| {
            let loads = flow
                .leaves
                .iter()
                .map(|leaf| loads.get(&(*leaf, path)).copied().unwrap_or(0));
            (loads.max().unwrap_or(0), path)
        };
        let path = (0..links.paths.max(1)).map(worst).min().map_or(0, |(_, path)| path);
        if flow.leaves.len() > 1 {
            for leaf in &flow.leaves {
                *loads.entry((*leaf, path)).or_insert(0) += flow.load_ppm();
            }
        }
        paths.insert(flow.job, path);
    }
    let mut by_priority = by_intensity;
    by_priority.sort_by_key(|flow| (std::cmp::Reverse(priority(flow)), flow.job));
    let count = by_priority.len().max(1);
    let route = |(at, flow): (usize, &&Flow)| {
        let level = at * usize::from(links.levels.max(1)) / count;
        let path = paths.get(&flow.job).copied().unwrap_or(0);
        (
            flow.job,
            FlowRoute {
                path,
                level: level as u8,
            },
        )
    };
    by_priority.iter().enumerate().map(route).collect()
}

impl ClusterPolicy for CruxOrder {
    fn name(&self) -> &'static str {
        "crux"
    }

    fn keyed(&self) -> bool {
        true
    }

    fn routes(&mut self, flows: &[Flow], links: &ClusterLinks) -> Vec<(JobId, FlowRoute)> {
        by_intensity(flows, links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobMeasure;
    use crate::node::NodeId;

    fn flow(job: u64, gpus: u64, traffic_milli: u32) -> Flow {
        let measure = JobMeasure {
            traffic_milli,
            ..JobMeasure::default()
        };
        Flow {
            job: JobId(job),
            gpu_milli: gpus * 1_000,
            measure,
            nodes: vec![NodeId(0), NodeId(4)],
            leaves: vec![0, 1],
        }
    }

    const LINKS: ClusterLinks = ClusterLinks {
        nodes_of_leaf: 4,
        paths: 2,
        levels: 2,
    };

    #[test]
    fn the_intense_choose_first_and_the_least_intense_share_a_path() {
        // Much work for little traffic; two with little work for much.
        let flows = [flow(1, 2, 800), flow(2, 2, 700), flow(3, 16, 200)];
        let routes: BTreeMap<JobId, FlowRoute> = by_intensity(&flows, &LINKS).into_iter().collect();
        // 3 takes the first path, 2 the other, and 1 the less loaded path, which is that of 3.
        assert_eq!(routes[&JobId(3)], FlowRoute { path: 0, level: 0 });
        assert_eq!((routes[&JobId(2)].path, routes[&JobId(1)].path), (1, 0));
        assert_eq!(routes[&JobId(1)].level, 1);
    }

    #[test]
    fn a_hash_knows_no_load_and_no_level() {
        let flows: Vec<Flow> = (0..64).map(|job| flow(job, 2, 500)).collect();
        let routes = by_hash(&flows, &LINKS);
        assert!(routes.iter().all(|(_, route)| route.level == 0));
        let first = routes.iter().filter(|(_, route)| route.path == 0).count();
        assert!((16..=48).contains(&first), "{first}");
    }
}
