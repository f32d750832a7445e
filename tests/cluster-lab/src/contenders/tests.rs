// SPDX-License-Identifier: MIT OR Apache-2.0
//! Networks: the shipped ones, broken files, and arbitrary choosers.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use weft_cluster::placement::{PlacementRule, Placer};
use weft_cluster::policies::{self, ClusterPolicy};
use weft_cluster::*;
use weft_random::Random;

use super::inss_network::InssNetwork;
use super::learnt::{ChoiceRows, RowChooser, RowNetwork};
use super::meta_rl::LearntPlacement;
use super::sched2_network::Sched2Network;
use super::{NAMES, NETWORKS, named};

/// The core's own ledger.
#[path = "../../../../broker/cluster/src/tests/ledger.rs"]
mod ledger;

use ledger::{Pair, S, every_job_ends_under, job, play_under, raws};

const SHIPPED: [(&str, &str, &str); 4] = [
    (
        "meta-rl",
        include_str!("../../networks/meta-rl.txt"),
        include_str!("../../networks/meta-rl.vectors.txt"),
    ),
    (
        "sched2",
        include_str!("../../networks/sched2.txt"),
        include_str!("../../networks/sched2.vectors.txt"),
    ),
    (
        "sched2-told",
        include_str!("../../networks/sched2-told.txt"),
        include_str!("../../networks/sched2-told.vectors.txt"),
    ),
    (
        "inss",
        include_str!("../../networks/inss.txt"),
        include_str!("../../networks/inss.vectors.txt"),
    ),
];

/// Orders that only the lab has. `exclusive` is left out: it gives more than was asked.
const ORDERS: [&str; 5] = ["elas", "gandiva", "sched2", NETWORKS[0], NETWORKS[1]];

/// The trainer adds in another order.
const TOLERANCE: f32 = 1e-4;

#[test]
fn what_is_shipped_scores_as_it_did_where_it_was_trained() {
    for (name, text, vectors) in SHIPPED {
        let network: RowNetwork = text.parse().expect(name);
        assert_eq!(network.name(), name);
        let mut scores = Vec::new();
        for line in vectors.lines() {
            let values: Vec<f32> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
            let (score, row) = values.split_last().expect("a row and its score");
            assert_eq!(row.len(), network.width());
            let found = network.score(row);
            assert!(
                (found - score).abs() <= TOLERANCE * score.abs().max(1.0),
                "{name}: {found} {score}"
            );
            scores.push(found);
        }
        assert!(scores.len() >= 8);
        assert!(
            scores.iter().any(|score| *score != scores[0]),
            "{name} tells rows apart"
        );
    }
    assert!(LearntPlacement::shipped().is_ok());
    assert!(InssNetwork::shipped().is_ok());
    assert!(Sched2Network::shipped(false).is_ok() && Sched2Network::shipped(true).is_ok());
}

#[test]
fn a_broken_file_gives_one_line_that_says_where() {
    let whole = SHIPPED[0].1;
    let says = |text: &str| {
        let said = text.parse::<RowNetwork>().expect_err("it is broken").to_string();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    assert_eq!(
        says(""),
        "a network's file is broken in line 1: it does not begin with \"weft-network 1\""
    );
    assert!(says("weft-network 2\n").contains("line 1"));
    assert!(says("weft-network 1").contains("ends too early"));
    let half = &whole[..whole.len() / 2];
    assert!(says(half).contains("no checksum"), "{}", says(half));
    let digit = whole.find("0.").expect("a number") + 2;
    let other = if whole.as_bytes()[digit] == b'7' { "8" } else { "7" };
    let mut changed = whole.to_string();
    changed.replace_range(digit..=digit, other);
    assert!(says(&changed).contains("checksum"), "{}", says(&changed));
    // Another network than the requested one.
    let said = LearntPlacement::from_text(SHIPPED[1].1)
        .expect_err("not of nodes")
        .to_string();
    assert!(said.contains("16 features, and a node has 15"), "{said}");
}

/// Adds a correct checksum, so that only the lines' own errors remain.
fn summed(body: &str) -> String {
    let sum = body.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{body}\nsum {sum:016x}\n")
}

#[test]
fn a_file_of_impossible_layers_is_refused() {
    let network: RowNetwork = summed("weft-network 1\nname n\nlayer 2 1\n1 2 3").parse().unwrap();
    assert_eq!((network.width(), network.score(&[10.0, 100.0])), (2, 321.0));
    let two = summed("weft-network 1\nname n\nlayer 1 2\n0 1\n0 -1\nlayer 2 1\n0 1 2");
    let two: RowNetwork = two.parse().unwrap();
    assert_eq!((two.score(&[3.0]), two.score(&[-3.0])), (3.0, 6.0));
    for (body, why) in [
        ("weft-network 1\nname n", "one score"),
        ("weft-network 1\nname n\nlayer 2 1\n1 2", "line 4: not a bias"),
        ("weft-network 1\nname n\nlayer 2 1\n1 2 nan", "line 4: not a bias"),
        ("weft-network 1\nname n\nlayer 2 1\n1 2 x3", "line 4: not a bias"),
        ("weft-network 1\nname n\nlayer 2 2\n1 2 3", "ends too early"),
        ("weft-network 1\nname n\nlayer 1 2\n1 2\n3 4", "one score"),
        ("weft-network 1\nname n\nlayer 99999999 1\n1", "no layer"),
        (
            "weft-network 1\nname n\nlayer 1 1\n0 1\nlayer 3 1\n0 1 1 1",
            "does not fit",
        ),
        ("weft-network 1\nlayer 1 1\n0 1", "no name"),
    ] {
        let said = summed(body).parse::<RowNetwork>().expect_err(body).to_string();
        assert!(said.contains(why), "{body}: {said}");
    }
}

#[test]
fn of_rows_that_may_be_chosen_the_highest_is_and_the_first_of_equals() {
    let network: RowNetwork = summed("weft-network 1\nname n\nlayer 1 1\n0 1").parse().unwrap();
    let mut rows = ChoiceRows::new(1);
    assert_eq!(network.choose(&rows), None);
    for (value, allowed) in [(1.0, true), (5.0, false), (3.0, true), (3.0, true)] {
        rows.push(&[value], allowed);
    }
    assert_eq!(network.choose(&rows), Some(2));
    rows.allowed.fill(false);
    assert_eq!(network.choose(&rows), None);
}

/// Chooses by a seed, and sometimes no row or a row that does not exist.
#[derive(Debug)]
struct AnyRow(std::sync::Mutex<Random>);

impl RowChooser for AnyRow {
    fn choose(&self, rows: &ChoiceRows) -> Option<usize> {
        let mut draws = self.0.lock().expect("no other thread");
        (draws.index(8) > 0).then(|| draws.index(rows.len() + 1))
    }
}

fn any_row(seed: u64) -> Arc<dyn RowChooser> {
    Arc::new(AnyRow(std::sync::Mutex::new(Random::from_product(seed))))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a network chooses, no GPU is given twice and gangs are whole. The ledger asserts
    /// after each decision.
    #[test]
    fn no_choice_breaks_the_books(raws in raws(), seed in 0u64..1_000) {
        for policy in ["fifo", "tiresias", "gandiva", "weft"] {
            let placement = Arc::new(LearntPlacement::new(any_row(seed)));
            play_under(named(policy).expect("a policy"), PlacementRule::Gang(placement), &raws);
        }
        for told in [false, true] {
            play_under(Box::new(Sched2Network::new(any_row(seed), told)), PlacementRule::Packing, &raws);
        }
    }

    /// As above, by the shipped networks. `exclusive` is left out: it gives more than was asked.
    #[test]
    fn no_shipped_network_breaks_the_books(raws in raws()) {
        for policy in NAMES.into_iter().filter(|name| *name != "exclusive") {
            let placement = Arc::new(LearntPlacement::shipped().expect("what is shipped"));
            play_under(named(policy).expect("a policy"), PlacementRule::Gang(placement), &raws);
        }
        for policy in ORDERS {
            for rule in [PlacementRule::Random(7), PlacementRule::BestFit, PlacementRule::Near] {
                play_under(named(policy).expect("a policy"), rule, &raws);
            }
        }
    }

    #[test]
    fn the_same_events_give_the_same_decisions(raws in raws()) {
        for policy in ORDERS {
            let play = || play_under(named(policy).expect("a policy"), PlacementRule::Random(3), &raws).all;
            prop_assert_eq!(play(), play());
        }
    }

    #[test]
    fn every_job_ends(sizes in prop::collection::vec((1u32..=8, 1u32..=10), 1..25)) {
        for policy in ORDERS {
            every_job_ends_under(named(policy).expect("a policy"), &sizes);
        }
    }
}

#[test]
fn each_name_has_its_policy_and_the_core_has_no_contender() {
    for name in NAMES {
        assert_eq!(named(name).expect(name).name(), name);
        assert_eq!(
            policies::named(name).is_none(),
            name == "exclusive" || ORDERS.contains(&name),
            "{name}"
        );
    }
    assert!(policies::NAMES.iter().all(|name| NAMES.contains(name)));
    assert!(named("nothing").is_none());
}

fn started(out: &[ClusterDecision]) -> Vec<u64> {
    let id = |decision: &ClusterDecision| match decision {
        ClusterDecision::Start(job, _) => Some(job.0),
        _ => None,
    };
    out.iter().filter_map(id).collect()
}

#[test]
fn exclusive_gives_a_whole_gpu_to_a_part_of_one() {
    let mut core = Cluster::new(
        named("exclusive").expect("a policy"),
        Placer::new(PlacementRule::BestFit),
    );
    let mut out = Vec::new();
    core.handle(
        0,
        ClusterEvent::NodeUp(ClusterNode::new(NodeId(0), 8_000, 8_192, 1)),
        &mut out,
    );
    core.handle(0, ClusterEvent::Submitted(job(1, 1, 300)), &mut out);
    core.handle(0, ClusterEvent::Submitted(job(2, 1, 300)), &mut out);
    assert_eq!(started(&out), [1]);
    assert_eq!(core.waiting(), 1);
}

#[test]
fn gandiva_takes_turns_packs_and_unpacks() {
    let mut pair = Pair::on(named("gandiva").expect("a policy"), &[1]);
    pair.submit(1, 1, 1_000);
    pair.submit(2, 1, 1_000);
    pair.now = 59 * S;
    assert_eq!(pair.event(ClusterEvent::Look), []);
    pair.now = 60 * S;
    let out = pair.event(ClusterEvent::Look);
    assert_eq!(out[0], ClusterDecision::Pause(JobId(1)));
    assert_eq!(started(&out), [2]);
    // Busy for less than half of the time each: together.
    let measure = |speed_milli| JobMeasure {
        duty_milli: 400,
        speed_milli,
        ..JobMeasure::default()
    };
    for job in [1, 2] {
        pair.event(ClusterEvent::Measured(JobId(job), measure(1_000)));
    }
    let out = pair.event(ClusterEvent::Look);
    assert!(matches!(&out[..], [ClusterDecision::Resume(JobId(1), _)]), "{out:?}");
    // It was slower than in turns, so it leaves, and is not packed again.
    pair.event(ClusterEvent::Measured(JobId(1), measure(400)));
    assert_eq!(pair.event(ClusterEvent::Look), [ClusterDecision::Pause(JobId(1))]);
    assert_eq!(pair.event(ClusterEvent::Look), []);
}
