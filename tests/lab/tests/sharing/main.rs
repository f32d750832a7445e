// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sharing in virtual time: jobs on the simulated GPU's engine, the core between them, and each
//! job's figures.
#![forbid(unsafe_code)]

mod job;
mod world;

use job::Job;
use weft_scheduler::{Config, PolicyName};
use world::{Outcome, World};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Two seconds: some hundred requests, some thousand kernels.
const SPAN_NS: u64 = 2_000 * MS;

/// A vision model answering requests: 60 kernels of 80 us, then 12 ms of host work.
fn service() -> Job {
    Job::new("service", 0).requests(60, 80 * US, 12 * MS)
}

/// A training job that is never done: kernels of 30 to 400 us, launched ahead.
fn training() -> Job {
    Job::new("training", 5).training(&[30 * US, 120 * US, 400 * US, 60 * US])
}

fn alone(job: Job) -> Outcome {
    World::new(None).with(job).run(SPAN_NS)
}

fn plain() -> Outcome {
    World::new(None).with(service()).with(training()).run(SPAN_NS)
}

fn by(policy: PolicyName) -> World {
    let config = Config {
        policy,
        ..Config::default()
    };
    World::new(Some(config))
}

fn under(policy: PolicyName) -> Outcome {
    by(policy).with(service()).with(training()).run(SPAN_NS)
}

/// The policies that fill gaps: the default and the paper's.
const FILLING: [PolicyName; 2] = [PolicyName::Weft, PolicyName::Fikit];

#[test]
fn a_filling_policy_wins_back_what_sharing_costs() {
    let (alone, plain) = (alone(service()), plain());
    for policy in FILLING {
        let weft = under(policy);
        println!("alone {alone}\nplain {plain}\n{policy} {weft}");
        for part in [0.5, 0.99] {
            let lost = plain.latency("service", part) / alone.latency("service", part);
            let won = plain.latency("service", part) / weft.latency("service", part);
            assert!(lost > 1.5, "nothing to win: {lost}");
            assert!(
                won >= 0.8 * lost,
                "{policy}, quantile {part}: won back {won:.2} of {lost:.2}"
            );
        }
        let left = SPAN_NS as f64 - weft.gpu("service");
        let used = weft.gpu("training") / left;
        assert!(
            used >= 0.8,
            "{policy}: training uses {used:.2} of what the service leaves"
        );
    }
}

#[test]
fn no_request_waits_longer_than_the_bound() {
    let alone = alone(service());
    for policy in FILLING {
        let weft = under(policy);
        let longest_kernel = 400.0 * US as f64;
        // The work that was out at the request, a switch in each direction for each slice of it,
        // and the minimum share.
        let bound =
            Config::default().delay_bound as f64 / 2.0 + longest_kernel + 4.0 * 100.0 * US as f64 + longest_kernel;
        // `weft` learns in a few requests how late the service's work ends while others share the
        // device.
        let delay = weft.latency_behind("service", 8, 1.0) - alone.latency("service", 0.5);
        assert!(delay <= bound, "{policy}: {delay} of {bound}");
    }
}

#[test]
fn no_credit_leaks() {
    for policy in PolicyName::ALL {
        let outcome = under(policy);
        let snapshot = outcome.snapshot.as_ref().expect("a core");
        for client in &snapshot.clients {
            let sum = client.issued as i64 + client.revoked + client.left;
            assert_eq!(client.granted as i64, sum, "{policy}: {client:?}");
            assert_eq!(client.written_off, 0, "{policy}");
            let word = outcome.credit_words[client.client as usize];
            assert_eq!(
                client.left, word,
                "{policy}: the books are the word, once all is reported"
            );
        }
        assert_eq!(snapshot.counters.corrected, 0, "{policy}");
        assert_eq!(snapshot.counters.stuck_grants, 0, "{policy}");
    }
}

#[test]
fn a_service_that_synchronises_after_every_kernel_keeps_its_pace() {
    let chatty = || Job::new("service", 0).requests_in_steps(40, 60 * US, 15 * MS);
    let alone = alone(chatty());
    let plain = World::new(None).with(chatty()).with(training()).run(SPAN_NS);
    for policy in FILLING {
        let weft = by(policy).with(chatty()).with(training()).run(SPAN_NS);
        println!("alone {alone}\nplain {plain}\n{policy} {weft}");
        let lost = plain.latency("service", 0.5) / alone.latency("service", 0.5);
        let won = plain.latency("service", 0.5) / weft.latency("service", 0.5);
        assert!(lost > 8.0, "nothing to win: {lost}");
        assert!(won >= 0.8 * lost, "{policy}: won back {won:.2} of {lost:.2}");
        let used = weft.gpu("training") / (SPAN_NS as f64 - weft.gpu("service"));
        assert!(used >= 0.5, "{policy}: training uses {used:.2}");
    }
}

#[test]
fn several_background_jobs_of_different_importance_come_in_order() {
    let background = |name, priority| Job::new(name, priority).training(&[100 * US]);
    for policy in FILLING {
        let outcome = by(policy)
            .with(service())
            .with(background("second", 3))
            .with(background("third", 6))
            .with(background("fourth", 9))
            .run(SPAN_NS);
        println!("{policy} {outcome}");
        let [second, third, fourth] = ["second", "third", "fourth"].map(|name| outcome.gpu(name));
        assert!(second > 5.0 * (third + fourth), "{policy}: {second} {third} {fourth}");
        assert!(
            third > 0.0 && fourth > 0.0,
            "{policy}: nobody starves: {third} {fourth}"
        );
    }
}

#[test]
fn without_a_profile_the_service_is_still_protected() {
    let unknown = || service().without_profile();
    let alone = alone(unknown());
    for policy in FILLING {
        let weft = by(policy).with(unknown()).with(training()).run(SPAN_NS);
        println!("alone {alone}\n{policy} {weft}");
        let kept = alone.latency("service", 0.5) / weft.latency("service", 0.5);
        assert!(kept >= 0.7, "{policy}: {kept:.2}");
        let used = weft.gpu("training") / (SPAN_NS as f64 - weft.gpu("service"));
        assert!(used >= 0.6, "{policy}: training uses {used:.2}");
    }
}
