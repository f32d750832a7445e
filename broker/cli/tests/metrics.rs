//! Tests of a real broker's metrics: the output of `weft metrics`, the socket, and refusals.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
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

/// A node that accepts connections and sends nothing.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    (listener, address)
}

#[test]
fn several_nodes_are_one_table_and_a_silent_one_is_told() {
    let (one, other) = (Home::new(), Home::new());
    let _brokers = (one.broker(&["--metrics", "127.0.0.1:0"]), other.broker(&[]));
    let told = || {
        let log = std::fs::read_to_string(one.broker_log()).expect("a log");
        let address = log.split_once("metrics at http://")?.1;
        Some(address.split_once('/')?.0.to_string())
    };
    until("its log has the address", || told().is_some());
    let address = told().expect("an address");
    let service = Client::attach(&one.socket(), named(0, "python serve.py"));
    let training = Client::attach(&one.socket(), named(5, "python train.py"));
    service.on_a_device();
    training.on_a_device();
    until("they have their roles", || {
        (service.mode(), training.mode()) == (Some(Mode::Foreground), Some(Mode::Background))
    });
    let (_silent, silent) = silent();
    let unix = other.places().metrics();
    let good = format!("gpu1={address},gpu2=unix:{}", unix.display());

    until("the devices are told", || {
        let done = one.done(&["status", "--cluster", "--nodes", &good]);
        text(&done.stdout).contains("2 of 2 nodes answer, 1 GPU in use, 2 jobs of 1 user")
    });
    // A silent node costs its time limit, so it is asked once.
    let nodes = format!("{good},gpu3={silent}");
    let done = one.done(&["status", "--cluster", "--nodes", &nodes]);
    let page = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let row = |name: &str| {
        let found = page.lines().find(|line| line.starts_with(name));
        found
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .unwrap_or_default()
    };
    assert_eq!(
        row("gpu1").get(..5),
        Some(&["gpu1", "0f0f0f0f", "2", "1", "1"][..]),
        "{page}"
    );
    assert_eq!(row("gpu2").get(..3), Some(&["gpu2", "no", "job"][..]), "{page}");
    assert_eq!(row("gpu3").get(..3), Some(&["gpu3", "no", "answer"][..]), "{page}");
    let why = format!("! gpu3 ({silent}): no answer within 2s");
    // A sentence is folded at 80 columns.
    assert!(page.replace("\n  ", " ").contains(&why), "{page}");

    // The file's nodes; the work of an interval.
    let config = one.path().join("weft.toml");
    let list = good.split(',').map(|node| format!("\"{node}\"")).collect::<Vec<_>>();
    std::fs::write(&config, format!("[cluster]\nnodes = [{}]\n", list.join(", "))).expect("written");
    let mut command = one.weft();
    command
        .env("WEFT_CONFIG", &config)
        .args(["top", "--cluster", "--json", "--once"]);
    command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("started");
    while child.try_wait().expect("asked").is_none() {
        service.launch(1, 100_000);
        std::thread::sleep(Duration::from_millis(2));
        service.become_idle();
    }
    let done = child.wait_with_output().expect("ended");
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let line: serde_json::Value = serde_json::from_slice(&done.stdout).expect("one line of JSON");
    let nodes = line["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 2, "{line}");
    assert!(nodes[0]["interval_s"].as_f64() > Some(0.0), "{line}");
    assert_eq!(nodes[0]["gpus"][0]["memory_held"], 0, "{line}");
    assert_eq!(nodes[0]["jobs"].as_array().map(Vec::len), Some(2), "{line}");
    assert_eq!(nodes[0]["jobs"][0]["name"], "serve.py", "{line}");
    // None of them answers.
    let gone = other.path().join("no.metrics");
    let done = one.done(&["status", "--cluster", "--nodes", &format!("x=unix:{}", gone.display())]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        text(&done.stdout).contains("0 of 1 node answer"),
        "{}",
        text(&done.stdout)
    );
}

#[test]
fn nodes_are_those_of_slurm_where_none_are_named() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).expect("made");
    let of_path = |path: &std::path::Path| {
        let mut command = home.weft();
        command.env("PATH", path).args(["status", "--cluster"]);
        command.output().expect("ran")
    };
    let done = of_path(&bin);
    let said = text(&done.stderr);
    assert_eq!((done.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("--nodes") && said.contains("weft.toml"), "{said}");
    let scontrol = bin.join("scontrol");
    // A name that no machine has (RFC 2606).
    let script = "#!/bin/sh\necho \"NodeName=n1 Gres=gpu:2 NodeAddr=n1.invalid\"\n";
    std::fs::write(&scontrol, script).expect("written");
    std::fs::set_permissions(&scontrol, std::fs::Permissions::from_mode(0o755)).expect("set");
    let done = of_path(&bin);
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("n1.invalid:9431"), "{}", text(&done.stdout));
    for wrong in ["", "a:b", "x y"] {
        let done = home.done(&["top", "--cluster", "--nodes", wrong]);
        assert_eq!(
            (done.status.code(), text(&done.stderr).lines().count()),
            (Some(2), 1),
            "{wrong}"
        );
    }
}
