// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of a real broker's metrics: the output of `weft metrics`, the socket, and refusals.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{Client, Home, hello, text, until};
use weft_protocol::control::{Hello, ToBroker};
use weft_protocol::lane::{Kind, Mode, NO_GAP};

/// Requests of the foreground job: enough controls, and as many that are judged.
const REQUESTS: usize = 40;

/// The first of them, which are the controls.
const ALONE: usize = 10;

fn named(priority: u8, command: &str) -> Hello {
    Hello {
        command: command.to_string(),
        ..hello(priority)
    }
}

/// The value of the first series that begins with `name` and has all of `labels`.
fn value(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let mut lines = page.lines().filter(|line| line.starts_with(name));
    let line = lines.find(|line| labels.iter().all(|label| line.contains(label)))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn scraped(home: &Home) -> String {
    let path = home.places().metrics();
    let mut stream = UnixStream::connect(path).expect("connected");
    let request = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    answer
}

#[test]
fn jobs_are_told_by_command_and_socket_and_counters_stay() {
    let home = Home::new();
    let broker = home.broker(&[]);
    let service = Client::attach(&home.socket(), named(0, "python -u /srv/serve.py --port 1"));
    let training = Client::attach(&home.socket(), named(5, "python train.py"));
    until("they have their roles", || {
        (service.mode(), training.mode()) == (Some(Mode::Foreground), Some(Mode::Background))
    });
    for number in 0..REQUESTS {
        service.launch(1, 100_000);
        std::thread::sleep(Duration::from_millis(1));
        service.become_idle();
        std::thread::sleep(Duration::from_millis(1));
        if number >= ALONE {
            training.launch(9, 700_000);
        }
    }
    // Its launches count once their time is known.
    training.record(Kind::Sample, 9, 700_000, NO_GAP);
    let page = || text(&home.done(&["metrics"]).stdout);
    until("the work is told", || {
        let won = value(&page(), "weft_job_won_gpu_seconds_total", &["name=\"train.py\""]);
        let slowdown = value(&page(), "weft_job_slowdown_ratio", &["name=\"serve.py\""]);
        won.is_some_and(|won| won > 0.0) && slowdown.is_some()
    });
    let shown = page();
    let info = ["name=\"serve.py\"", "priority=\"0\"", "role=\"foreground\""];
    assert_eq!(value(&shown, "weft_job_info", &info), Some(1.0), "{shown}");
    let launches = |page: &str| value(page, "weft_job_launches_total", &["name=\"serve.py\""]);
    assert_eq!(launches(&shown), Some(40.0), "{shown}");
    assert!(
        value(&shown, "weft_job_gpu_seconds_total", &["name=\"serve.py\""]) > Some(0.0),
        "{shown}"
    );
    assert_eq!(value(&shown, "weft_jobs{", &["background"]), Some(1.0), "{shown}");
    assert_eq!(value(&shown, "weft_warnings{", &["no_profile"]), Some(1.0), "{shown}");
    let answer = scraped(&home);
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("# EOF\n"),
        "{answer}"
    );
    assert_eq!(launches(&answer), Some(40.0), "{answer}");
    // A faulty client's counters may fall; the metrics must not, because users sum them.
    service
        .lane()
        .counters
        .launches
        .store(7, std::sync::atomic::Ordering::Relaxed);
    until("the broker saw it", || {
        home.status().clients.iter().any(|client| client.launches == 7)
    });
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(launches(&page()), Some(40.0));
    service.say(ToBroker::Goodbye);
    drop(service);
    until("it is gone, and counted", || {
        let page = page();
        launches(&page).is_none() && value(&page, "weft_jobs_ended_total", &["goodbye"]) == Some(1.0)
    });
    assert!(home.places().metrics().exists());
    broker.terminate();
    until("the socket goes with the broker", || !home.places().metrics().exists());
    drop(training);
}

#[test]
fn the_socket_is_off_where_it_is_told_and_addresses_reach_a_broker_in_the_background() {
    let home = Home::new();
    let other = home.path().join("other.sock");
    let unix = format!("unix:{}", other.display());
    let done = home.done(&["broker", "--background", "--metrics", &unix, "--metrics", "off"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(other.exists() && !home.places().metrics().exists());
    let page = text(&home.done(&["metrics", "--openmetrics"]).stdout);
    assert!(page.ends_with("# EOF\n"), "{page}");
    assert!(home.done(&["stop"]).status.success());
    until("it is gone", || !other.exists());
}

#[test]
fn an_address_that_cannot_be_had_is_one_line() {
    let home = Home::new();
    let done = home.done(&["broker", "--metrics", "localhost"]);
    assert_eq!((done.status.code(), text(&done.stderr).lines().count()), (Some(2), 1));
    let file = home.path().join("mine");
    std::fs::write(&file, "mine").expect("written");
    let address = format!("unix:{}", file.display());
    let done = home.done(&["broker", "--metrics", &address]);
    let said = text(&done.stderr);
    let line = said.lines().last().unwrap_or_default();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(line.starts_with(&format!("weft: metrics at {address}: ")), "{said}");
    let done = home.done(&["metrics"]);
    assert_eq!((done.status.code(), text(&done.stderr).lines().count()), (Some(1), 1));
}
