// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the broker's reports about each job: outcomes, warnings, end lines, the history.

mod common;

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Client, Home, named, text, until};
use weft_api::outcome::{Outcome, WarningKind};
use weft_protocol::control::{ToBroker, ToClient};
use weft_protocol::lane::{Kind, Mode, NO_GAP};

/// Requests of the foreground job: enough controls, and as many that are judged.
const REQUESTS: u64 = 40;

/// The first of them, which are the controls: after background work the device must switch back.
const ALONE: u64 = 10;

/// A foreground and a background job that know of each other.
fn pair(home: &Home) -> (Client, Client) {
    let service = Client::attach(&home.socket(), named(0, "python serve.py"));
    let training = Client::attach(&home.socket(), named(5, "python train.py"));
    until("they have their roles", || {
        (service.mode(), training.mode()) == (Some(Mode::Foreground), Some(Mode::Background))
    });
    (service, training)
}

fn request(service: &Client) {
    for kernel in 1..=4 {
        service.launch(kernel, 100_000);
    }
    std::thread::sleep(Duration::from_millis(1));
    service.become_idle();
    std::thread::sleep(Duration::from_millis(1));
}

fn outcome(home: &Home, command: &str) -> Outcome {
    let status = home.status();
    let found = status.clients.into_iter().find(|client| client.command == command);
    found.and_then(|client| client.outcome).unwrap_or_default()
}

/// The lines that a client receives at its end.
fn end_lines(client: &Client) -> Vec<String> {
    client.say(ToBroker::Outcome);
    let mut lines = None;
    until("the lines come", || {
        if let Ok(Some(ToClient::Outcome(told))) = client.attached.channel.receive() {
            lines = Some(told);
        }
        lines.is_some()
    });
    lines.unwrap_or_default()
}

#[test]
fn jobs_that_share_are_told_what_they_had_and_where_protection_does_not_work() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let (service, training) = pair(&home);
    for number in 0..REQUESTS {
        request(&service);
        if number >= ALONE {
            // Longer than the delay bound of 500 us.
            training.launch(9, 700_000);
        }
    }
    // Its launches count once their time is known. One time proves no long kernel.
    for _ in 0..2 {
        training.record(Kind::Sample, 9, 700_000, NO_GAP);
    }
    until("the training's work counts", || {
        outcome(&home, "python train.py").gpu_ns == Some(30 * 700_000)
    });
    until("the service's waits are judged", || {
        outcome(&home, "python serve.py").lost.is_some()
    });
    let lost = outcome(&home, "python serve.py");
    assert_eq!(lost.launches, 4 * REQUESTS);
    assert!(
        lost.foreground_s > 0.0 && lost.background_s == 0.0 && lost.won.is_none(),
        "{lost:?}"
    );
    assert!(lost.gpu_ns.is_some_and(|ns| ns > 0), "{lost:?}");
    assert_eq!(lost.launches_known, Some(0.0), "it has no profile");
    let won = outcome(&home, "python train.py");
    assert!(won.background_s > 0.0 && won.lost.is_none(), "{won:?}");
    assert!(
        won.won.is_some_and(|won| won.over_exclusive_ns > 0 && won.plain_ns > 0),
        "{won:?}"
    );
    let kinds = |of: &Outcome| of.warnings.iter().map(|warning| warning.kind).collect::<Vec<_>>();
    assert!(kinds(&lost).contains(&WarningKind::NoProfile), "{lost:?}");
    assert!(kinds(&won).contains(&WarningKind::LongKernels), "{won:?}");
    let page = text(&home.done(&["status"]).stdout);
    assert!(page.contains("! serve.py: the foreground job has no profile"), "{page}");
    // The device's switch may be in the measured time.
    assert!(
        page.contains("of it in the background; had 18.0 ms to 21.0 ms"),
        "{page}"
    );
    let page = text(&home.done(&["top", "-n", "1", "-i", "0.1"]).stdout);
    assert!(page.contains("! serve.py: the foreground job"), "{page}");

    let lines = end_lines(&training);
    assert!(
        lines[0].starts_with("ran ") && lines[0].contains("over exclusive use"),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("warning: 30 launches of it are longer"),
        "{lines:?}"
    );
    // Once: a client cannot keep the thread busy.
    training.say(ToBroker::Outcome);
    let lines = end_lines(&service);
    assert!(lines[0].contains("as the foreground job"), "{lines:?}");
    assert!(matches!(training.attached.channel.receive(), Ok(None)));
}

#[test]
fn who_has_the_gaps_is_named_to_those_that_get_none() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let attach = |priority, command| Client::attach(&home.socket(), named(priority, command));
    let (service, nightly) = (attach(0, "python serve.py"), attach(3, "python nightly.py"));
    let behind = [attach(5, "python train.py"), attach(5, "python tune.py")];
    until("they have their roles", || {
        let background = behind.iter().chain([&nightly]);
        service.mode() == Some(Mode::Foreground)
            && background.into_iter().all(|job| job.mode() == Some(Mode::Background))
    });
    let warned = |kind| {
        home.status()
            .warnings
            .iter()
            .filter(|warning| warning.kind == kind)
            .count()
    };
    until("both are warned", || {
        request(&service);
        nightly.launch(9, 100_000);
        for job in &behind {
            job.launch(8, 100_000);
            job.lane().counters.waits_expired.fetch_add(1, Ordering::Relaxed);
        }
        warned(WarningKind::Outranked) == 2
    });
    assert_eq!(warned(WarningKind::ForcedLaunches), 0);
    let page = text(&home.done(&["status"]).stdout);
    let line = "! train.py, likewise tune.py: nightly.py (priority 3) has the gaps first, and this job (priority 5)";
    assert!(page.contains(line), "{page}");
}

#[test]
fn jobs_of_one_priority_are_warned_of() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let first = Client::attach(&home.socket(), named(3, "one"));
    let second = Client::attach(&home.socket(), named(3, "other"));
    until("both have the device", || {
        [&first, &second].map(Client::mode) == [Some(Mode::Foreground); 2]
    });
    let warned = || {
        let kinds: Vec<_> = home.status().warnings.iter().map(|warning| warning.kind).collect();
        kinds.contains(&WarningKind::SamePriority)
    };
    assert!(!warned(), "none of them has launched");
    for client in [&first, &second] {
        client.launch(1, 100_000);
    }
    until("it is said", warned);
    home.done(&["set", "--client", "2", "--priority", "5"]);
    until("it is over", || !warned());
}

#[test]
fn what_ended_is_in_the_history_when_the_broker_is_gone() {
    let home = Home::new();
    let empty = home.done(&["history"]);
    assert_eq!(text(&empty.stdout), "no job has ended here\n");
    let since = home.done(&["history", "--since", "1h"]);
    assert_eq!(text(&since.stdout), "no job ended here in that time\n");
    let full = fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("a full device");
    let unprinted = home.weft().arg("history").stdout(full).output().expect("ran");
    assert_eq!(unprinted.status.code(), Some(1));
    assert!(text(&unprinted.stderr).contains("cannot print"));
    let broker = home.broker(&[]);
    let (service, training) = pair(&home);
    for _ in 0..REQUESTS {
        request(&service);
    }
    until("the service's waits are judged", || {
        outcome(&home, "python serve.py").lost.is_some()
    });
    service.say(ToBroker::Goodbye);
    drop(service);
    until("it is gone", || home.status().clients.len() == 1);
    let ended = home.status().ended.remove(0).last.outcome.expect("frozen");
    assert!(ended.lost.is_some_and(|lost| lost.waits > 0), "{ended:?}");
    // A broker that ends lets its clients go: they are in the history too.
    broker.terminate();
    until("both are there", || {
        let done = home.done(&["history", "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
        shown["jobs"].as_array().is_some_and(|jobs| jobs.len() == 2)
    });
    let done = home.done(&["history", "--json", "--since", "1h"]);
    let shown: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(shown["schema"], 1);
    let kept = &shown["jobs"][1];
    assert_eq!(
        (&kept["command"], &kept["priority"]),
        (&"python serve.py".into(), &0.into())
    );
    assert_eq!((&kept["ending"], &kept["client"]), (&"goodbye".into(), &1.into()));
    assert!(kept["outcome"]["lost"]["ns"].is_i64(), "{kept}");
    let last = text(&home.done(&["history", "--last", "1"]).stdout);
    assert!(last.contains("train.py") && !last.contains("serve.py"), "{last}");
    for wrong in [["--since", "soon"], ["--last", "-1"]] {
        let done = home.done(&["history", wrong[0], wrong[1]]);
        assert_eq!((done.status.code(), text(&done.stderr).lines().count()), (Some(2), 1));
    }
    drop(training);
}

/// Not a test: a process that is a background job until it is ended.
#[test]
#[ignore = "a helper process of other tests"]
fn helper_training() {
    let Ok(socket) = std::env::var("WEFT_TEST_SOCKET") else {
        return;
    };
    let client = Client::attach(std::path::Path::new(&socket), named(5, "python train.py"));
    println!("attached");
    let begin = std::time::Instant::now();
    while begin.elapsed() < common::PATIENCE {
        // Rarely, so that most of the service's requests run without background work, as controls.
        std::thread::sleep(Duration::from_millis(50));
        client.launch(9, 100_000);
    }
}

/// That process, once it is attached.
fn training_process(home: &Home) -> std::process::Child {
    use std::io::BufRead;
    let mut child = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "helper_training", "--ignored", "--nocapture"])
        .env("WEFT_TEST_SOCKET", home.socket())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("started");
    let said = std::io::BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    let attached = said.map_while(Result::ok).any(|line| line.contains("attached"));
    assert!(attached, "the job ended by itself");
    child
}

/// Name, ending and launches of each job in the history, sorted.
fn kept(home: &Home) -> Vec<(String, String, u64)> {
    let done = home.done(&["history", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
    let jobs = shown["jobs"].as_array().expect("jobs").iter();
    let mut rows: Vec<_> = jobs
        .map(|job| {
            let launches = job["outcome"]["launches"].as_u64().unwrap_or(0);
            (text(&job["command"]), text(&job["ending"]), launches)
        })
        .collect();
    rows.sort();
    rows
}

#[test]
fn a_broker_that_is_replaced_loses_no_books() {
    let home = Home::new();
    let mut broker = home.broker(&[]);
    let service = Client::attach(&home.socket(), named(0, "python serve.py"));
    let mut training = training_process(&home);
    until("it is the foreground job", || service.mode() == Some(Mode::Foreground));
    for _ in 0..REQUESTS {
        request(&service);
    }
    until("the service's waits are judged", || {
        outcome(&home, "python serve.py").lost.is_some()
    });
    let before = outcome(&home, "python serve.py");
    broker.terminate();
    broker.child.wait().expect("waited");
    let rows = kept(&home);
    let endings: Vec<_> = rows.iter().map(|row| (row.0.as_str(), row.1.as_str())).collect();
    assert_eq!(
        endings,
        [("python serve.py", "detached"), ("python train.py", "detached")]
    );
    let lost_job = rows[1].clone();
    // One job dies while there is no broker.
    training.kill().expect("killed");
    training.wait().expect("waited");

    let mut next = home.broker(&[]);
    let again = Client::attach(&home.socket(), named(0, "python serve.py"));
    until("what it had is known", || {
        outcome(&home, "python serve.py").launches == before.launches
    });
    let now = outcome(&home, "python serve.py");
    let waits = |outcome: &Outcome| outcome.lost.map_or(0, |lost| lost.waits);
    assert!(waits(&now) >= waits(&before) && waits(&now) > 0, "{before:?} {now:?}");
    assert!(
        now.ran_s >= before.ran_s && now.foreground_s >= before.foreground_s,
        "{now:?}"
    );
    assert!(
        now.gpu_shared_ns >= before.gpu_shared_ns && now.gpu_shared_ns > 0,
        "{now:?}"
    );
    // And to a third broker.
    again.launch(1, 100_000);
    until("it is counted", || {
        outcome(&home, "python serve.py").launches == before.launches + 1
    });
    next.terminate();
    next.child.wait().expect("waited");
    let serves = |ending: &str, launches: u64| ("python serve.py".to_string(), ending.to_string(), launches);
    assert_eq!(
        kept(&home),
        [serves("detached", before.launches + 1), lost_job.clone()],
        "one row, of the whole"
    );

    let _third = home.broker(&[]);
    let last = Client::attach(&home.socket(), named(0, "python serve.py"));
    last.launch(1, 100_000);
    until("all is counted", || {
        outcome(&home, "python serve.py").launches == before.launches + 2
    });
    last.say(ToBroker::Goodbye);
    drop(last);
    let whole = [serves("goodbye", before.launches + 2), lost_job];
    until("it has ended", || kept(&home) == whole);
    // The outcome is closed: another job of this process starts from zero.
    let _other = Client::attach(&home.socket(), named(0, "python serve.py"));
    until("it is listed", || home.status().clients.len() == 1);
    assert_eq!(outcome(&home, "python serve.py").launches, 0);
    drop((service, again));
}

/// Replaces the running broker by one in the background; returns the command's output.
fn replaced(home: &Home, more: &[&str]) -> String {
    let done = home.done(&[&["broker", "--background", "--replace"], more].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    text(&done.stderr)
}

#[test]
fn one_command_replaces_a_broker_and_its_jobs_go_on() {
    let home = Home::new();
    assert!(!replaced(&home, &[]).contains("which replaces"), "none ran");
    let first = home.status().broker.pid;
    let job = Client::attach(&home.socket(), named(0, "python serve.py"));
    job.launch(1, 100_000);
    until("it is counted", || outcome(&home, "python serve.py").launches == 1);

    // A broker that cannot start does not replace the running one.
    let mut wrong = home.weft();
    std::fs::write(home.path().join("wrong.toml"), "[broker]\npolcy = 'x'\n").expect("written");
    wrong
        .args(["broker", "--background", "--replace"])
        .env("WEFT_CONFIG", home.path().join("wrong.toml"));
    assert_eq!(wrong.output().expect("ran").status.code(), Some(2));
    assert_eq!((home.status().broker.pid, job.attached.channel.lost()), (first, false));
    for files in [
        ["--trace", "/nowhere/trace"],
        ["--metrics", "unix:/nowhere/metrics"],
        ["--metrics", "unix:/etc/passwd"],
    ] {
        for place in [&[][..], &["--background"][..]] {
            let done = home.done(&[&["broker", "--replace"], place, &files].concat());
            assert!(
                text(&done.stderr).contains(files[1].trim_start_matches("unix:")),
                "{done:?}"
            );
            assert_eq!(done.status.code(), Some(1));
            assert_eq!((home.status().broker.pid, job.attached.channel.lost()), (first, false));
        }
    }
    let log = home.places().log();
    let kept = std::fs::read(&log).expect("the log");
    std::fs::remove_file(&log).expect("removed");
    std::fs::create_dir(&log).expect("made");
    assert!(!home.done(&["broker", "--replace", "--background"]).status.success());
    assert_eq!((home.status().broker.pid, job.attached.channel.lost()), (first, false));
    std::fs::remove_dir(&log).expect("removed");
    std::fs::write(&log, kept).expect("written");

    let said = replaced(&home, &["--policy", "fikit"]);
    assert!(said.contains(&format!("which replaces {first}")), "{said}");
    let broker = home.status().broker;
    assert!(broker.pid != first && broker.policy == "fikit", "{broker:?}");
    assert!(job.attached.channel.lost(), "it looks for a broker once a second");
    let again = Client::attach(&home.socket(), named(0, "python serve.py"));
    until("its book goes on", || outcome(&home, "python serve.py").launches == 1);
    again.launch(1, 100_000);
    until("it is counted", || outcome(&home, "python serve.py").launches == 2);

    // In the foreground, too; of several at once one stays.
    let mut last = home.weft();
    let mut last = last.args(["broker", "--replace"]).spawn().expect("started");
    until("it has taken the place", || admin_pid(&home) == Some(last.id()));
    let both: Vec<_> = (0..2)
        .map(|_| {
            let mut command = home.weft();
            command.args(["broker", "--background", "--replace", "--quiet"]);
            command.spawn().expect("started")
        })
        .collect();
    for mut one in both {
        assert!(one.wait().expect("ended").success());
    }
    assert!(last.wait().expect("ended").success());
    let third = Client::attach(&home.socket(), named(0, "python serve.py"));
    until("its book goes on", || outcome(&home, "python serve.py").launches == 2);
    drop((job, again, third));
}

/// The broker's process, if one answers.
fn admin_pid(home: &Home) -> Option<u32> {
    use weft_api::admin::{self, AdminQuestion, Answer};
    match admin::ask(&home.places(), &AdminQuestion::Status) {
        Ok(Answer::Status(status)) => Some(status.broker.pid),
        _ => None,
    }
}

#[test]
fn a_damaged_history_costs_one_line() {
    let home = Home::new();
    std::fs::create_dir(home.path().join("state")).expect("made");
    std::fs::write(home.path().join("state/history.sqlite"), [b'x'; 9_000]).expect("written");
    let done = home.done(&["history"]);
    assert_eq!((done.status.code(), text(&done.stderr).lines().count()), (Some(0), 1));
    assert!(
        text(&done.stderr).contains("history.sqlite.damaged"),
        "{}",
        text(&done.stderr)
    );
    assert_eq!(text(&home.done(&["history"]).stderr), "");
}

#[test]
fn a_job_says_at_its_end_what_weft_did_unless_told_otherwise() {
    let home = Home::new();
    let told = |options: &[&str], variable: Option<&str>| {
        let mut command = home.weft();
        command
            .arg("run")
            .args(options)
            .args(["--", "sh", "-c", "echo $WEFT_OUTCOME"]);
        if let Some(value) = variable {
            command.env("WEFT_OUTCOME", value);
        }
        text(&command.output().expect("ran").stdout)
    };
    assert_eq!(told(&[], None), "on\n");
    assert_eq!(told(&["--quiet"], None), "off\n");
    assert_eq!(told(&["-q"], Some("on")), "off\n");
    assert_eq!(told(&[], Some("off")), "off\n");
    let mut wrong = home.weft();
    let output = wrong.args(["run", "--", "true"]).env("WEFT_OUTCOME", "loud");
    let output = output.output().expect("ran");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "weft: WEFT_OUTCOME=loud is neither on nor off\n");
}
