// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random events under every policy and placement, checked against a ledger that only reads the
//! decisions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use weft_random::Random;

use crate::placement::{GangPlacement, GangSurroundings, PlacementRule, Placer, typical_asks};
use crate::policies::{self, AstraeaOrder, ClusterPolicy, TiresiasOrder, WeftOrder};
use crate::*;

mod ledger;
mod of_policies;

use ledger::*;

impl Pair {
    fn with(policy: &str, gpus: &[usize]) -> Pair {
        Pair::on(policies::named(policy).expect("a policy"), gpus)
    }
}

fn started(out: &[ClusterDecision]) -> Vec<u64> {
    let id = |decision: &ClusterDecision| match decision {
        ClusterDecision::Start(job, _) => Some(job.0),
        _ => None,
    };
    out.iter().filter_map(id).collect()
}

/// A placement of another crate that draws a node, and sometimes none or one that does not exist.
#[derive(Debug)]
struct AnyNode(Mutex<Random>);

impl GangPlacement for AnyNode {
    fn name(&self) -> &'static str {
        "any"
    }

    fn node(
        &self,
        nodes: &[ClusterNode],
        _: &GangSurroundings,
        _: &WorkerAsk,
        _: u32,
        _: u32,
        _: &[usize],
    ) -> Option<usize> {
        let mut draws = self.0.lock().expect("no other thread");
        (draws.index(8) > 0).then(|| draws.index(nodes.len() + 1))
    }
}

fn rules() -> Vec<PlacementRule> {
    let typical = typical_asks([ask(1, 500), ask(1, 500), ask(1, 1_000), ask(2, 1_000)].into_iter());
    vec![
        PlacementRule::Random(7),
        PlacementRule::DotProduct,
        PlacementRule::Clustering,
        PlacementRule::Packing,
        PlacementRule::BestFit,
        PlacementRule::Fgd(typical),
        PlacementRule::MostFree,
        PlacementRule::Near,
        PlacementRule::Gang(Arc::new(AnyNode(Mutex::new(Random::from_product(7))))),
    ]
}

fn play(policy: &str, rule: PlacementRule, raws: &[Raw]) -> Pair {
    play_under(policies::named(policy).expect("a policy"), rule, raws)
}

/// A policy that is asked for the whole order in each round.
#[derive(Debug)]
struct WholeOrder(Box<dyn ClusterPolicy>);

impl ClusterPolicy for WholeOrder {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn key(&mut self, now: Ns, job: &policies::RankedJob) -> policies::OrderKey {
        self.0.key(now, job)
    }

    fn preempts(&self) -> bool {
        self.0.preempts()
    }

    fn strict(&self) -> bool {
        self.0.strict()
    }
}

/// Counts the questions for a job's key and for its level.
#[derive(Debug)]
struct Counting(Box<dyn ClusterPolicy>, Arc<AtomicUsize>);

impl Counting {
    fn count(&self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

impl ClusterPolicy for Counting {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn keyed(&self) -> bool {
        self.0.keyed()
    }

    fn key(&mut self, now: Ns, job: &policies::RankedJob) -> policies::OrderKey {
        self.count();
        self.0.key(now, job)
    }

    fn level(&self, job: JobId) -> u8 {
        self.count();
        self.0.level(job)
    }

    fn strict(&self) -> bool {
        self.0.strict()
    }
}

/// If no job makes room for another, an arrival asks nothing about running jobs.
#[test]
fn an_arrival_costs_nothing_for_what_runs() {
    for policy in ["fifo", "fifo-backfill", "crux"] {
        let asked = Arc::new(AtomicUsize::new(0));
        let counting = Counting(policies::named(policy).expect("a policy"), Arc::clone(&asked));
        let mut pair = Pair::new(Box::new(counting), PlacementRule::BestFit);
        for node in 0..8 {
            pair.event(ClusterEvent::NodeUp(ClusterNode::new(NodeId(node), 64_000, 65_536, 8)));
        }
        let mut each = Vec::new();
        for id in 0..60 {
            let before = asked.load(Ordering::Relaxed);
            pair.submit(id, 1, 1_000);
            each.push(asked.load(Ordering::Relaxed) - before);
        }
        assert_eq!(pair.ledger.running.len(), 60, "{policy}");
        assert!(
            each[0] > 0 && each.iter().all(|asked| *asked == each[0]),
            "{policy}: {each:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// The ledger asserts after each decision.
    #[test]
    fn no_gpu_is_given_twice_and_gangs_are_whole(raws in raws()) {
        for policy in policies::NAMES {
            for rule in rules() {
                play(policy, rule, &raws);
            }
        }
    }

    #[test]
    fn the_same_events_give_the_same_decisions(raws in raws()) {
        for policy in policies::NAMES {
            let rule = PlacementRule::Random(3);
            prop_assert_eq!(play(policy, rule.clone(), &raws).all, play(policy, rule, &raws).all);
        }
    }

    /// A kept order of waiting jobs gives the same decisions as ordering all of them anew.
    #[test]
    fn kept_orders_decide_as_whole_ones(raws in raws()) {
        for policy in ["fifo", "fifo-backfill", "shortest-remaining"] {
            let whole = Box::new(WholeOrder(policies::named(policy).expect("a policy")));
            let whole = play_under(whole, PlacementRule::BestFit, &raws);
            prop_assert_eq!(play(policy, PlacementRule::BestFit, &raws).all, whole.all, "{}", policy);
        }
    }

    /// Under strict fifo jobs start in the order of arrival. Each starts in the end, however large,
    /// while jobs before it end.
    #[test]
    fn under_fifo_each_job_starts_in_its_turn(sizes in prop::collection::vec((1u32..=8, 1u32..=10), 1..40), ends in prop::collection::vec(any::<prop::sample::Index>(), 400)) {
        let mut pair = Pair::with("fifo", &[4, 4]);
        for (id, (workers, tenths)) in sizes.iter().enumerate() {
            pair.submit(id as u64, *workers, tenths * 100);
        }
        for end in ends {
            let running: Vec<JobId> = pair.ledger.running.keys().copied().collect();
            if running.is_empty() {
                break;
            }
            pair.now += S;
            pair.event(ClusterEvent::Ended(*end.get(&running)));
        }
        let expected: Vec<u64> = (0..sizes.len() as u64).collect();
        prop_assert_eq!(started(&pair.all), expected);
    }

    /// Under a policy that lets jobs pass, no job waits that fits on free resources.
    #[test]
    fn nothing_waits_that_fits(raws in raws()) {
        for policy in ["fifo-backfill", "shortest-remaining", "tiresias", "gittins", "astraea", "crux", "weft"] {
            let pair = play(policy, PlacementRule::BestFit, &raws);
            let waits = |job: &&ClusterJob| !pair.ledger.running.contains_key(&job.id) && job.each.valid() && job.workers == 1;
            for job in pair.ledger.jobs.values().filter(waits) {
                let fits = pair.core.nodes().iter().any(|node| node.fits(&job.each));
                prop_assert!(!fits, "{policy}: {job:?} waits");
            }
        }
    }

    /// Jobs run for as long as expected, under every policy: all of them end, and no sooner than
    /// their GPUs allow.
    #[test]
    fn every_job_ends(sizes in prop::collection::vec((1u32..=8, 1u32..=10), 1..25)) {
        for policy in policies::NAMES {
            every_job_ends_under(policies::named(policy).expect("a policy"), &sizes);
        }
    }
}

#[test]
fn a_gang_that_does_not_fit_bars_later_jobs_under_fifo_and_is_passed_under_backfill() {
    for (policy, passed) in [("fifo", vec![]), ("fifo-backfill", vec![3])] {
        let mut pair = Pair::with(policy, &[2, 2]);
        assert_eq!(started(&pair.submit(1, 3, 1_000)), [1]);
        assert_eq!(started(&pair.submit(2, 2, 1_000)), [0u64; 0]);
        assert_eq!(started(&pair.submit(3, 1, 1_000)), passed, "{policy}");
        assert_eq!(started(&pair.event(ClusterEvent::Ended(JobId(1))))[0], 2);
    }
}

#[test]
fn a_job_that_no_cluster_could_run_bars_nobody_and_one_that_cannot_be_is_refused() {
    let mut pair = Pair::with("fifo", &[2]);
    assert_eq!(pair.submit(1, 3, 1_000), []);
    assert_eq!(started(&pair.submit(2, 1, 1_000)), [2]);
    let wrong = ClusterJob {
        each: ask(2, 500),
        ..job(3, 1, 0)
    };
    assert_eq!(
        pair.event(ClusterEvent::Submitted(wrong)),
        [ClusterDecision::Refuse(JobId(3))]
    );
    // The missing node comes; job 2 still has a GPU of the first.
    let more = pair.event(ClusterEvent::NodeUp(ClusterNode::new(NodeId(9), 8_000, 8_192, 2)));
    assert_eq!(started(&more), [1]);
}

#[test]
fn the_shorter_job_pauses_the_longer_which_goes_on_where_it_was() {
    let mut pair = Pair::with("shortest-remaining", &[1, 1]);
    // Expected: 700 s, 200 s, 100 s.
    pair.submit(6, 1, 1_000);
    pair.submit(1, 1, 1_000);
    let out = pair.submit(7, 1, 1_000);
    assert_eq!(out[0], ClusterDecision::Pause(JobId(6)));
    assert_eq!(started(&out), [7]);
    pair.now = 50 * S;
    let out = pair.event(ClusterEvent::Ended(JobId(7)));
    assert!(matches!(&out[..], [ClusterDecision::Resume(JobId(6), _)]), "{out:?}");
    // Job 7 pauses it again, and it is resumed when the other node is free, so it moves.
    pair.submit(14, 1, 1_000);
    let out = pair.event(ClusterEvent::Ended(JobId(1)));
    assert!(matches!(&out[..], [ClusterDecision::Move(JobId(6), _)]), "{out:?}");
}

#[test]
fn what_a_lost_node_ran_is_started_anew() {
    let mut pair = Pair::with("fifo", &[2, 2]);
    pair.submit(1, 4, 1_000);
    assert_eq!(
        pair.event(ClusterEvent::NodeDown(NodeId(0))),
        [ClusterDecision::Requeue(JobId(1))]
    );
    let up = ClusterEvent::NodeUp(ClusterNode::new(NodeId(5), 8_000, 8_192, 2));
    assert_eq!(started(&pair.event(up)), [1]);
}

#[test]
fn a_gang_takes_the_leaf_with_the_least_room_for_it() {
    let links = ClusterLinks {
        nodes_of_leaf: 2,
        paths: 1,
        levels: 1,
    };
    // Two leaves of two nodes of two; one GPU of the second leaf is taken.
    let mut pair = Pair::new(policies::named("fifo-backfill").expect("a policy"), PlacementRule::Near);
    for node in 0..4 {
        pair.event(ClusterEvent::NodeUp(ClusterNode::new(NodeId(node), 8_000, 8_192, 2)));
    }
    pair.event(ClusterEvent::Links(links));
    pair.submit(1, 3, 1_000);
    let nodes =
        |pair: &Pair, job: u64| -> Vec<u32> { pair.core.places(JobId(job)).iter().map(|place| place.node.0).collect() };
    assert_eq!(nodes(&pair, 1), [0, 0, 1]);
    // One fits on the free part of the first leaf; two fit only on the second.
    pair.submit(2, 2, 1_000);
    assert_eq!(nodes(&pair, 2), [2, 2]);
    pair.submit(3, 1, 1_000);
    assert_eq!(nodes(&pair, 3), [1]);
}

mod scores {
    use super::*;

    fn node(gpus: &[u32]) -> ClusterNode {
        let mut node = ClusterNode::new(NodeId(0), 96_000, 393_216, gpus.len());
        node.gpus = gpus.to_vec();
        node
    }

    fn chosen(rule: PlacementRule, nodes: &[&[u32]], asked: WorkerAsk) -> (u32, Vec<u16>) {
        let mut nodes: Vec<ClusterNode> = nodes.iter().map(|gpus| node(gpus)).collect();
        for (at, node) in nodes.iter_mut().enumerate() {
            node.id = NodeId(at as u32);
        }
        let index = nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
        let places = Placer::new(rule)
            .gang(&mut nodes, &index, &asked, 1, &[])
            .expect("it fits");
        (places[0].node.0, places[0].gpus.clone())
    }

    #[test]
    fn each_rule_takes_the_node_that_it_is_named_for() {
        let empty: &[u32] = &[1_000, 1_000];
        let used: &[u32] = &[1_000, 400];
        let one = ask(1, 400);
        assert_eq!(chosen(PlacementRule::BestFit, &[empty, used], one), (1, vec![1]));
        assert_eq!(chosen(PlacementRule::Packing, &[empty, used], one), (1, vec![1]));
        assert_eq!(chosen(PlacementRule::MostFree, &[used, empty], one), (1, vec![0]));
        // The whole GPU of the used node before one of the empty node.
        assert_eq!(
            chosen(PlacementRule::Packing, &[empty, used], ask(1, 1_000)),
            (1, vec![0])
        );
        // The first of equal nodes.
        assert_eq!(chosen(PlacementRule::BestFit, &[empty, empty], one), (0, vec![0]));
        // A product as small as can be: the node with less free.
        assert_eq!(
            chosen(PlacementRule::DotProduct, &[&[1_000; 8], used], ask(1, 400)),
            (1, vec![1])
        );
    }

    #[test]
    fn fgd_leaves_no_remainder_that_nobody_asks_for() {
        let half = PlacementRule::Fgd(typical_asks([ask(1, 500), ask(1, 1_000)].into_iter()));
        // 500 from the open half, not from a whole GPU, whatever the order.
        assert_eq!(chosen(half.clone(), &[&[1_000, 500]], ask(1, 500)), (0, vec![1]));
        // 300 from the GPU on which no typical request fits any more, not from the tighter half.
        assert_eq!(chosen(half.clone(), &[&[500, 450]], ask(1, 300)), (0, vec![1]));
        assert_eq!(
            chosen(PlacementRule::BestFit, &[&[350, 340]], ask(1, 300)),
            (0, vec![1])
        );
    }

    #[test]
    fn clustering_prefers_its_own_kind() {
        let mut nodes = vec![node(&[1_000, 1_000]), node(&[1_000, 1_000])];
        nodes[1].id = NodeId(1);
        nodes[0].take(&ask(1, 1_000), None).unwrap();
        nodes[1].take(&ask(1, 500), None).unwrap();
        let index = [(NodeId(0), 0), (NodeId(1), 1)].into();
        let mut placer = Placer::new(PlacementRule::Clustering);
        let mut place = |asked| placer.gang(&mut nodes, &index, &asked, 1, &[]).unwrap()[0].node;
        assert_eq!(place(ask(1, 200)), NodeId(1));
        assert_eq!(place(ask(1, 1_000)), NodeId(0));
    }

    #[test]
    fn the_typical_are_the_most_popular_that_make_up_most() {
        let asked = (0..99).map(|at| if at < 90 { ask(1, 500) } else { ask(1, 100 + at) });
        let typical = typical_asks(asked);
        // 90 of 99, then one each until 95 % (94.05) are passed.
        assert_eq!(typical.len(), 6);
        assert_eq!(typical[0].ask.gpu_milli, 500);
        assert!((typical.iter().map(|typical| typical.part).sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
