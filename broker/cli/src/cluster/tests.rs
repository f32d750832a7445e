// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rounds with a fake Slurm that only answers questions and records commands.

use std::sync::Mutex;

use clap::Parser;

use super::*;

const QUEUE: &str = include_str!("recorded/squeue.json");
const NODES: &str = include_str!("recorded/sinfo.json");
const DOWN: &str = include_str!("recorded/squeue-down.json");

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: ClusterPolicyArgs,
}

fn args(words: &str) -> ClusterPolicyArgs {
    Line::try_parse_from(std::iter::once("x").chain(words.split_whitespace()))
        .expect("parses")
        .args
}

/// A fake that answers questions and records changes.
struct FakeHands {
    queue: String,
    /// Its refusal of the change with this number, and of all later ones.
    refuses: Option<(usize, &'static str)>,
    changes: Mutex<Vec<String>>,
}

fn fake(queue: &str) -> FakeHands {
    FakeHands {
        queue: queue.to_string(),
        refuses: None,
        changes: Mutex::new(Vec::new()),
    }
}

impl FakeHands {
    fn changes(&self) -> Vec<String> {
        self.changes.lock().unwrap().clone()
    }
}

impl Hands for FakeHands {
    fn run(&self, words: &[String]) -> Done {
        let said = |stdout: &str| Done {
            code: Some(0),
            stdout: stdout.to_string(),
            ..Done::default()
        };
        match words[0].as_str() {
            "squeue" => return said(&self.queue),
            "sinfo" => return said(NODES),
            "sh" => return said(r#"{"clients": [{"uid": 61001, "gang": "slurm-6", "outcome": {"gpu_ns": 5}}]}"#),
            _ => {}
        }
        let mut changes = self.changes.lock().unwrap();
        changes.push(words.join(" "));
        match self.refuses {
            Some((from, why)) if changes.len() > from => Done {
                code: Some(1),
                stderr: why.to_string(),
                trouble: Some(CommandTrouble::Failed),
                ..Done::default()
            },
            _ => said(""),
        }
    }
}

fn adaptor<'a>(hands: &'a dyn Hands, args: &'a ClusterPolicyArgs) -> Adaptor<'a> {
    let policy = policies::named(args.policy.as_deref().unwrap()).unwrap();
    Adaptor::new(hands, args, policy)
}

const NOW: u64 = 1_795_689_600;

#[test]
fn fifo_puts_the_recorded_queue_into_its_order() {
    let hands = fake(QUEUE);
    let args = args("--policy fifo");
    let report = adaptor(&hands, &args).round(NOW).unwrap();
    // Jobs 8 and 9 are held or begin later; 10 has no GPU. Users' nice values put 1 behind 4, and 5
    // behind 7.
    assert_eq!((report.waits, report.runs), (6, 2));
    assert_eq!(
        hands.changes(),
        [
            "scontrol update JobId=1 Nice=-998 AdminComment=weft:nice=10",
            "scontrol update JobId=5 Nice=11",
        ]
    );
}

#[test]
fn an_order_that_is_there_is_left_alone_and_a_dry_run_changes_nothing() {
    let hands = fake(&QUEUE.replace("\"nice\": 10", "\"nice\": 10, \"x\": 0"));
    let dry = args("--policy shortest-remaining --dry-run");
    let mut dry = adaptor(&hands, &dry);
    let report = dry.round(NOW).unwrap();
    assert!(!report.commands.is_empty() && hands.changes().is_empty());
    let lines = dry.told(&report);
    assert!(lines[0].contains("not carried out; service by the clock"), "{lines:?}");
    assert!(lines[1].starts_with("  scontrol update JobId=1 Nice="), "{lines:?}");
}

#[test]
fn a_round_has_a_bound_on_commands_and_the_first_jobs_come_first() {
    let hands = fake(QUEUE);
    let args = args("--policy fifo --commands 1");
    let mut adaptor = adaptor(&hands, &args);
    let report = adaptor.round(NOW).unwrap();
    assert_eq!((report.left, hands.changes().len()), (1, 1));
    assert!(hands.changes()[0].contains("JobId=1 "));
    assert!(adaptor.told(&report)[0].contains("1 left for the next round"));
}

#[test]
fn a_command_that_fails_is_counted_and_shown() {
    let mut hands = fake(QUEUE);
    hands.refuses = Some((1, "Invalid job id specified for job 5"));
    let args = args("--policy fifo");
    let mut adaptor = adaptor(&hands, &args);
    let report = adaptor.round(NOW).unwrap();
    let lines = adaptor.told(&report);
    assert!(lines[0].contains("2 commands, 1 failed"), "{lines:?}");
    let failed = "  failed: scontrol update JobId=5 Nice=11: Invalid job id specified for job 5";
    assert_eq!(lines[1], failed);
    // The command is tried again, because the next round reads the actual state.
    assert_eq!(adaptor.round(NOW).unwrap().commands.len(), 2);
}

#[test]
fn a_user_without_rights_is_told_once() {
    for said in ["Access/permission denied for job 1", "Invalid user id for job 1"] {
        let mut hands = fake(QUEUE);
        hands.refuses = Some((0, said));
        let args = args("--policy fifo");
        let Err(NoRound::Never(why)) = adaptor(&hands, &args).round(NOW) else {
            panic!("it went on");
        };
        assert!(
            why.contains(said) && why.contains("operator") && !why.contains('\n'),
            "{why}"
        );
        assert_eq!(hands.changes().len(), 1);
    }
}

#[test]
fn a_job_whose_priority_was_set_by_hand_is_not_asked_for_ever() {
    let hands = fake(QUEUE);
    let args = args("--policy fifo");
    let mut adaptor = adaptor(&hands, &args);
    let counts: Vec<(usize, usize)> = (0..4)
        .map(|_| adaptor.round(NOW).unwrap())
        .map(|report| (report.commands.len(), report.fixed))
        .collect();
    assert_eq!(counts, [(2, 0), (2, 0), (0, 2), (0, 2)]);
}

#[test]
fn only_the_partitions_that_are_named_are_touched() {
    let hands = fake(QUEUE);
    let wrong = args("--policy fifo --partition al,all");
    let Err(NoRound::Wrong(why)) = adaptor(&hands, &wrong).round(NOW) else {
        panic!("it went on");
    };
    assert_eq!(why, "--partition al: Slurm has no such partition; there are all");
    let other = fake(&QUEUE.replace("\"partition\": \"all\"", "\"partition\": \"all,cpu\""));
    let named = args("--policy fifo --partition all");
    let report = adaptor(&other, &named).round(NOW).unwrap();
    assert_eq!((report.waits, report.runs), (0, 0));
}

#[test]
fn measured_service_is_said_to_be() {
    let hands = fake(QUEUE);
    let args = args("--policy tiresias --brokers ask-{node}");
    let mut adaptor = adaptor(&hands, &args);
    let report = adaptor.round(NOW).unwrap();
    let lines = adaptor.told(&report);
    assert!(
        lines[0].ends_with("service measured by 2 of 2 brokers, else by the clock"),
        "{lines:?}"
    );
    assert_eq!(adaptor.service.worked()[&(6, 61_001)], 10);
}

#[test]
fn a_slurmctld_that_does_not_answer_is_asked_again() {
    let hands = fake(DOWN);
    let args = args("--policy fifo");
    let Err(NoRound::Later(why)) = adaptor(&hands, &args).round(NOW) else {
        panic!("it went on");
    };
    assert!(why.starts_with("slurmctld did not answer: squeue --json: "), "{why}");
    assert!(
        undo(&hands, &args)
            .unwrap_err()
            .to_string()
            .contains("weft cluster --undo")
    );
}

#[test]
fn what_was_set_is_taken_back_with_its_mark() {
    let hands = fake(QUEUE);
    undo(&hands, &args("--undo")).unwrap();
    // Job 6 runs: if it is requeued, it has its former nice value.
    assert_eq!(
        hands.changes(),
        [
            "scontrol update JobId=5 Nice=0 AdminComment=",
            "scontrol update JobId=6 Nice=0 AdminComment="
        ]
    );
}

#[test]
fn a_job_that_ends_meanwhile_needs_nothing_taken_back() {
    let mut hands = fake(QUEUE);
    hands.refuses = Some((0, "Job has already finished for job 5"));
    assert!(undo(&hands, &args("--undo")).is_ok());
    hands.refuses = Some((0, "Unexpected message received for job 5"));
    let said = undo(&hands, &args("--undo")).unwrap_err().to_string();
    assert!(
        said.starts_with("0 nice values were taken back, 2 were not: "),
        "{said}"
    );
}

#[test]
fn room_is_made_by_requeue_where_that_is_allowed() {
    // Job 2 may be requeued and has no time limit; job 1 has a limit of five minutes.
    let hands = fake(QUEUE);
    let may = args("--policy shortest-remaining --pause requeue");
    adaptor(&hands, &may).round(NOW).unwrap();
    assert!(
        hands.changes().last().unwrap().starts_with("scontrol requeue "),
        "{:?}",
        hands.changes()
    );
    let may_not = fake(&QUEUE.replace("\"requeue\": true", "\"requeue\": false"));
    adaptor(&may_not, &may).round(NOW).unwrap();
    assert!(
        may_not
            .changes()
            .iter()
            .all(|change| change.starts_with("scontrol update"))
    );
}

#[test]
fn wrong_words_are_refused_with_the_near_one() {
    let said = |words: &str| {
        let words = std::iter::once("x").chain(words.split_whitespace());
        Line::try_parse_from(words).expect_err("wrong").to_string()
    };
    assert!(said("--policy tiresas").contains("'tiresias'"));
    assert!(said("").contains("--policy"));
    assert!(said("--policy fifo --interval soon").contains("soon is not a time"));
    assert!(said("--policy fifo --pause suspend").contains("requeue"));
    assert!(said("--undo --policy fifo").contains("cannot be used with"));
}
