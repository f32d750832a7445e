// SPDX-License-Identifier: MIT OR Apache-2.0
//! The characteristic behaviour of each policy, in a few events.

use super::*;

#[test]
fn tiresias_demotes_by_service_and_tells_the_node() {
    let limit = 100 * u128::from(S);
    let mut pair = Pair::new(Box::new(TiresiasOrder::new(vec![limit], 0)), PlacementRule::MostFree);
    pair.event(ClusterEvent::NodeUp(ClusterNode::new(NodeId(0), 8_000, 8_192, 2)));
    pair.submit(1, 2, 1_000);
    // Two GPUs: 49 s are 98 GPU-s, 50 s are 100.
    pair.submit(2, 1, 1_000);
    pair.now = 49 * S;
    assert_eq!(pair.event(ClusterEvent::Look), []);
    pair.now = 50 * S;
    let out = pair.event(ClusterEvent::Look);
    assert_eq!(out[0], ClusterDecision::Pause(JobId(1)));
    assert_eq!(started(&out), [2]);
    assert_eq!(out.last(), Some(&ClusterDecision::Priority(JobId(1), 6)));
    // In the second queue it waits for both GPUs, without promotion.
    pair.now = 90 * S;
    assert_eq!(pair.event(ClusterEvent::Look), []);
}

#[test]
fn tiresias_promotes_a_job_that_waited_twice_as_long_as_it_ran() {
    let limit = 100 * u128::from(S);
    let mut pair = Pair::new(Box::new(TiresiasOrder::new(vec![limit], 2)), PlacementRule::MostFree);
    pair.event(ClusterEvent::NodeUp(ClusterNode::new(NodeId(0), 8_000, 8_192, 1)));
    pair.submit(1, 1, 1_000);
    pair.now = 100 * S;
    let out = pair.submit(2, 1, 1_000);
    assert_eq!(started(&out), [2]);
    // 2 is demoted at 200 s and 1 entered the second queue first; 2 entered it at 200 s.
    pair.now = 200 * S;
    let out = pair.event(ClusterEvent::Look);
    assert!(out.contains(&ClusterDecision::Pause(JobId(2))), "{out:?}");
    pair.now = 399 * S;
    assert_eq!(pair.event(ClusterEvent::Look), []);
    pair.now = 400 * S;
    let out = pair.event(ClusterEvent::Look);
    assert_eq!(out[0], ClusterDecision::Pause(JobId(1)));
    assert!(out.contains(&ClusterDecision::Priority(JobId(2), 5)), "{out:?}");
}

#[test]
fn astraea_gives_the_next_lease_to_the_tenant_that_had_less() {
    let mut policy = AstraeaOrder::default();
    policy.lease = 100 * S;
    let mut pair = Pair::new(Box::new(policy), PlacementRule::MostFree);
    pair.event(ClusterEvent::NodeUp(ClusterNode::new(NodeId(0), 8_000, 8_192, 1)));
    // 3 and 6 are of one tenant, 4 of another.
    pair.submit(3, 1, 1_000);
    pair.submit(6, 1, 1_000);
    pair.submit(4, 1, 1_000);
    pair.now = 99 * S;
    assert_eq!(pair.event(ClusterEvent::Look), []);
    pair.now = 100 * S;
    let out = pair.event(ClusterEvent::Look);
    assert_eq!(out[0], ClusterDecision::Pause(JobId(3)));
    assert_eq!(started(&out), [4]);
    // Both had a lease. The job of the first tenant that had none goes next.
    pair.now = 200 * S;
    assert_eq!(started(&pair.event(ClusterEvent::Look)), [6]);
}

#[test]
fn astraea_counts_a_lease_until_it_ends() {
    let mut policy = AstraeaOrder::default();
    policy.lease = 100 * S;
    let mut pair = Pair::new(Box::new(policy), PlacementRule::MostFree);
    pair.event(ClusterEvent::NodeUp(ClusterNode::new(NodeId(0), 8_000, 8_192, 2)));
    // 3 and 6 are of one tenant, 4 and 7 of another.
    for job in [3, 4, 6, 7] {
        pair.submit(job, 1, 1_000);
    }
    // Both had 50 s, and the first continues with its lease.
    pair.now = 50 * S;
    assert_eq!(started(&pair.event(ClusterEvent::Ended(JobId(4)))), [7]);
}

#[test]
fn a_job_that_makes_room_keeps_its_gpus_in_the_second_seat() {
    let mut pair = Pair::new(Box::new(WeftOrder::default()), PlacementRule::MostFree);
    pair.event(ClusterEvent::NodeUp(ClusterNode::new(NodeId(0), 8_000, 8_192, 1)));
    pair.submit(1, 1, 1_000);
    // No measure was reported: no gaps are known, and 2 waits.
    assert_eq!(pair.submit(2, 1, 1_000), []);
    let half = JobMeasure {
        duty_milli: 500,
        ..JobMeasure::default()
    };
    pair.event(ClusterEvent::Measured(JobId(1), half));
    pair.event(ClusterEvent::Measured(JobId(2), half));
    let out = pair.event(ClusterEvent::Look);
    assert_eq!(started(&out), [2]);
    assert_eq!(out.last(), Some(&ClusterDecision::Priority(JobId(2), 9)));
    assert!(pair.core.second_seat(JobId(2)));
    // A service takes the GPU. The first of the two is its guest; the other one's memory moves out.
    let service = JobMeasure { serves: true, ..half };
    pair.submit(3, 1, 1_000);
    pair.event(ClusterEvent::Measured(JobId(3), service));
    let out = pair.event(ClusterEvent::Look);
    assert_eq!(out[0], ClusterDecision::Pause(JobId(2)), "{out:?}");
    assert_eq!(started(&out), [3]);
    assert!(out.contains(&ClusterDecision::Priority(JobId(1), 9)) && pair.core.second_seat(JobId(1)));
    // The service ends: 1 has the GPU again without a pause, and 2 its gaps.
    let out = pair.event(ClusterEvent::Ended(JobId(3)));
    assert!(
        matches!(
            &out[..],
            [
                ClusterDecision::Resume(JobId(2), _),
                ClusterDecision::Priority(JobId(1), 5),
                ..
            ]
        ),
        "{out:?}"
    );
}

#[test]
fn a_service_is_never_paused() {
    let mut pair = Pair::with("weft", &[1]);
    pair.submit(1, 1, 1_000);
    let service = JobMeasure {
        serves: true,
        ..JobMeasure::default()
    };
    pair.event(ClusterEvent::Measured(JobId(1), service));
    pair.submit(2, 1, 1_000);
    for _ in 0..100 {
        pair.now += 600 * S;
        assert_eq!(pair.event(ClusterEvent::Look), []);
    }
}

#[test]
fn a_gang_that_sends_much_waits_for_one_node_and_moves_to_it() {
    let sends = JobMeasure {
        traffic_milli: 1_000,
        ..JobMeasure::default()
    };
    let mut pair = Pair::with("weft", &[2, 2]);
    pair.submit(1, 1, 1_000);
    pair.submit(2, 1, 1_000);
    assert_ne!(pair.core.places(JobId(1))[0].node, pair.core.places(JobId(2))[0].node);
    // It comes with its measure: the same program ran before.
    pair.submit(7, 3, 1_000);
    pair.event(ClusterEvent::Measured(JobId(7), sends));
    pair.submit(4, 2, 1_000);
    let spread = pair.core.places(JobId(4)).len();
    assert_eq!(spread, 2, "nothing is known of its traffic yet");
    pair.event(ClusterEvent::Measured(JobId(4), sends));
    pair.event(ClusterEvent::Ended(JobId(7)));
    let out = pair.event(ClusterEvent::Ended(JobId(1)));
    assert_eq!(out, []);
    let out = pair.event(ClusterEvent::Look);
    assert!(
        matches!(&out[..], [ClusterDecision::Pause(JobId(4)), ClusterDecision::Move(..)]),
        "{out:?}"
    );
    pair.submit(5, 1, 1_000);
}

#[test]
fn weft_puts_first_what_ends_soonest_as_its_progress_tells() {
    let mut pair = Pair::with("weft-exclusive", &[1]);
    pair.submit(1, 1, 1_000);
    pair.now = 100 * S;
    // A tenth in 100 s: 900 s are left, less than the assumed rest of a job without progress
    // reports.
    pair.event(ClusterEvent::Progress(JobId(1), 100_000));
    assert_eq!(pair.submit(2, 1, 1_000), []);
    // Three hundredths more in 1,000 s: 7,000 s and more are left.
    pair.now = 1_100 * S;
    pair.event(ClusterEvent::Progress(JobId(1), 130_000));
    let out = pair.event(ClusterEvent::Look);
    assert_eq!(out[0], ClusterDecision::Pause(JobId(1)));
    assert_eq!(started(&out), [2]);
    // The other job is slower still.
    pair.now = 1_200 * S;
    pair.event(ClusterEvent::Progress(JobId(2), 10_000));
    let out = pair.event(ClusterEvent::Look);
    assert!(
        matches!(
            &out[..],
            [ClusterDecision::Pause(JobId(2)), ClusterDecision::Resume(JobId(1), _)]
        ),
        "{out:?}"
    );
}

#[test]
fn what_is_left_is_reckoned_from_when_progress_was_told() {
    let mut pair = Pair::with("weft-exclusive", &[1]);
    pair.submit(1, 1, 1_000);
    pair.now = 1_000 * S;
    pair.event(ClusterEvent::Progress(JobId(1), 100_000));
    // No progress was reported for a while: of 10,000 s, 1,000 s are left, not nine tenths.
    pair.now = 9_000 * S;
    assert_eq!(pair.submit(2, 1, 1_000), []);
    // 5,000 s after its estimated end the estimate counts for little, and it no longer bars the
    // other job.
    pair.now = 15_000 * S;
    assert_eq!(started(&pair.event(ClusterEvent::Look)), [2]);
}

fn of_duty(duty_milli: u32, serves: bool) -> JobMeasure {
    JobMeasure {
        duty_milli,
        serves,
        ..JobMeasure::default()
    }
}

#[test]
fn a_gang_that_sends_nothing_fills_the_least_busy_gpus() {
    let mut pair = Pair::with("weft", &[2, 2]);
    for (job, duty) in [(1, 100), (2, 100), (3, 700), (4, 700)] {
        pair.submit(job, 1, 1_000);
        pair.event(ClusterEvent::Measured(JobId(job), of_duty(duty, job < 3)));
    }
    pair.submit(5, 2, 1_000);
    assert!(pair.core.second_seat(JobId(5)));
    let mut beside: Vec<WorkerPlace> = pair.core.places(JobId(1)).to_vec();
    beside.extend_from_slice(pair.core.places(JobId(2)));
    assert_eq!(pair.core.places(JobId(5)), beside);
}

#[test]
fn a_guest_moves_to_gpus_that_are_less_busy() {
    let mut pair = Pair::with("weft", &[1, 1]);
    for (job, duty) in [(1, 700), (2, 1_000)] {
        pair.submit(job, 1, 1_000);
        pair.event(ClusterEvent::Measured(JobId(job), of_duty(duty, true)));
    }
    pair.submit(3, 1, 1_000);
    assert_eq!(pair.core.places(JobId(3)), pair.core.places(JobId(1)));
    // It does not move for a small gain.
    pair.event(ClusterEvent::Measured(JobId(2), of_duty(650, true)));
    assert_eq!(pair.event(ClusterEvent::Look), []);
    pair.event(ClusterEvent::Measured(JobId(2), of_duty(200, true)));
    let out = pair.event(ClusterEvent::Look);
    assert!(
        matches!(
            &out[..],
            [ClusterDecision::Pause(JobId(3)), ClusterDecision::Move(JobId(3), _)]
        ),
        "{out:?}"
    );
    assert_eq!(pair.core.places(JobId(3)), pair.core.places(JobId(2)));
    assert!(pair.core.second_seat(JobId(3)));
}
