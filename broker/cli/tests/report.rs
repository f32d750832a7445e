// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft report`: a page and a trace of two jobs, by a real broker and clients that act as the
//! interposer's session.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;
use std::time::Duration;

use common::{Client, Home, named, text, until};
use serde_json::Value;
use weft_protocol::control::{Hello, ToBroker};
use weft_protocol::lane::Mode;

/// Requests of the foreground job: enough controls, and as many that are judged.
const REQUESTS: u64 = 40;

/// The first of them, which are the controls.
const ALONE: u64 = 10;

/// A foreground and a background job that shared the device. The name of one is a trap for pages.
fn share(home: &Home) -> (Client, Client) {
    let service = Client::attach(&home.socket(), named(0, "python serve.py"));
    let training = Hello {
        name: Some("<b>train</b>".to_string()),
        ..named(5, "python <b>train</b>.py --x=\"1\"")
    };
    let training = Client::attach(&home.socket(), training);
    until("they have their roles", || {
        (service.mode(), training.mode()) == (Some(Mode::Foreground), Some(Mode::Background))
    });
    for number in 0..REQUESTS {
        for kernel in 1..=4 {
            service.launch(kernel, 100_000);
        }
        std::thread::sleep(Duration::from_millis(1));
        service.become_idle();
        std::thread::sleep(Duration::from_millis(1));
        if number >= ALONE {
            training.launch(9, 700_000);
        }
    }
    let lost = || {
        let status = home.status().clients.into_iter().find(|client| client.priority == 0);
        status
            .and_then(|client| client.outcome)
            .and_then(|outcome| outcome.lost)
    };
    until("the service's waits are judged", || lost().is_some());
    (service, training)
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stderr)
}

/// An attribute of a job's row.
fn attribute(page: &str, pid_and_client: &str, name: &str) -> Option<i64> {
    let row = page.split("<tr ").find(|row| row.starts_with(pid_and_client))?;
    let value = row.split_once(&format!("data-{name}=\""))?.1;
    value.split_once('"')?.0.parse().ok()
}

#[test]
fn a_page_and_a_trace_of_two_jobs_agree_with_the_history() {
    let home = Home::new();
    let trace = home.path().join("broker.trace");
    let mut broker = home.broker(&["--trace", &trace.display().to_string()]);
    let (service, training) = share(&home);
    let file = |name: &str| home.path().join(name).display().to_string();
    // While they run.
    let said = ok(&home.done(&["report", "-o", &file("running.html")]));
    assert!(said.contains("2 jobs in ") && said.lines().count() == 1, "{said}");
    let running = fs::read_to_string(file("running.html")).expect("written");
    assert!(running.contains("<td>runs</td>"), "{running}");
    // By its number, or by a name that looks like one.
    let numbered = home
        .status()
        .clients
        .iter()
        .find(|client| client.priority == 5)
        .map(|client| client.client);
    let numbered = format!("client:{}", numbered.expect("there"));
    let found = |word: &str| ok(&home.done(&["report", word, "-o", &file("found.html")]));
    assert!(found(&numbered).contains("2 jobs in "));
    // When they have ended, and the broker too.
    for job in [service, training] {
        job.say(ToBroker::Goodbye);
    }
    until("they are gone", || home.status().clients.is_empty());
    let rows = |words: &[&str]| -> Vec<Value> {
        let done = home.done(&[&["history", "--json"], words].concat());
        let shown: Value = serde_json::from_slice(&done.stdout).expect("JSON");
        shown["jobs"].as_array().cloned().unwrap_or_default()
    };
    let history = || rows(&[]);
    until("both are in the history", || history().len() == 2);
    assert_eq!(rows(&[&numbered])[0]["name"], "<b>train</b>");
    assert_eq!((rows(&["serve.py"]).len(), rows(&["nobody.py"]).len()), (1, 0));
    broker.terminate();
    // It writes what it recorded after the history.
    until("the broker has ended", || !broker.alive());
    let (page, perfetto) = (file("page.html"), file("perfetto.json"));
    let said = ok(&home.done(&[
        "report",
        "serve.py",
        "-o",
        &page,
        "--perfetto",
        &perfetto,
        "--trace",
        &file("broker.trace"),
    ]));
    assert_eq!(said.lines().count(), 2, "{said}");
    let page = fs::read_to_string(page).expect("written");
    let events: Value = serde_json::from_slice(&fs::read(perfetto).expect("written")).expect("JSON");
    let events = events["traceEvents"].as_array().expect("a list");

    for job in history() {
        let row = format!("data-pid=\"{}\" data-client=\"{}\"", job["pid"], job["client"]);
        let figure = |name| attribute(&page, &row, name);
        let outcome = &job["outcome"];
        for (name, value) in [
            ("gpu-ns", &outcome["gpu_ns"]),
            ("gpu-shared-ns", &outcome["gpu_shared_ns"]),
            ("launches", &outcome["launches"]),
            ("lost-ns", &outcome["lost"]["ns"]),
            ("cost-ns", &outcome["cost"]["ns"]),
            ("won-ns", &outcome["won"]["over_exclusive_ns"]),
        ] {
            assert_eq!(figure(name), value.as_i64(), "{name} of {row}");
        }
        // The intervals add up to the same.
        let thread = events.iter().find(|event| {
            let name = event["args"]["name"].as_str().unwrap_or_default();
            event["name"] == "thread_name" && event["pid"] == 1 && name.contains(script(&job))
        });
        let thread = &thread.expect("a row")["tid"];
        let slices: Vec<&Value> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["pid"] == 1 && event["tid"] == *thread)
            .collect();
        let sum = |name: &str| -> i64 { slices.iter().filter_map(|slice| slice["args"][name].as_i64()).sum() };
        assert_eq!(Some(sum("gpu_ns")), outcome["gpu_shared_ns"].as_i64());
        assert_eq!(Some(sum("launches")), outcome["launches"].as_i64());
        match outcome["lost"]["ns"].as_i64() {
            Some(lost) => assert_eq!(
                (sum("lost_ns"), sum("waits")),
                (lost, outcome["lost"]["waits"].as_i64().unwrap_or(0))
            ),
            None => assert_eq!(Some(sum("cost_ns")), outcome["cost"]["ns"].as_i64()),
        }
        let role = if outcome["lost"].is_null() {
            "background"
        } else {
            "foreground"
        };
        let in_role: f64 = slices
            .iter()
            .filter(|slice| slice["name"] == role)
            .filter_map(|slice| slice["dur"].as_f64())
            .sum();
        assert!(in_role > 0.0, "{slices:?}");
    }
    // Text is text.
    assert!(
        page.contains("&lt;b&gt;train&lt;/b&gt;") && !page.contains("<b>train"),
        "{page}"
    );
    assert!(
        page.contains("<h3>Which job cost which</h3>") && page.contains("of serve.py"),
        "{page}"
    );
    assert!(
        page.contains("<h3>Latency of serve.py, without and with background work</h3>"),
        "{page}"
    );
    assert!(page.contains("the foreground job has no profile"), "{page}");
    assert!(page.contains("Jobs in the gaps"), "{page}");
    let launches = events
        .iter()
        .filter(|event| event["ph"] == "X" && event["args"]["event"] == "launch");
    assert_eq!(launches.count() as u64, 4 * REQUESTS + REQUESTS - ALONE);
}

fn script(job: &Value) -> &'static str {
    match job["priority"].as_i64() {
        Some(0) => "serve.py",
        _ => "train",
    }
}

#[test]
fn what_cannot_be_reported_is_one_line() {
    let home = Home::new();
    let broken = home.path().join("broken.trace");
    fs::write(&broken, "{\"t\": 1}\nnot JSON\n").expect("written");
    let page = home.path().join("page.html").display().to_string();
    let fails = |arguments: &[&str], code: i32, part: &str| {
        let mut all = vec!["report"];
        all.extend(arguments);
        all.extend(["-o", &page]);
        let done = home.done(&all);
        let said = text(&done.stderr);
        assert_eq!(
            (done.status.code(), said.lines().count()),
            (Some(code), 1),
            "{arguments:?}: {said}"
        );
        assert!(said.contains(part), "{said}");
        assert!(!home.path().join("page.html").exists());
    };
    fails(&[], 1, "no job runs here or has ended here");
    fails(&["nobody.py"], 1, "no job 'nobody.py'");
    fails(&["--since", "1h"], 1, "in that time");
    fails(&["--trace", &broken.display().to_string()], 1, "not a broker's trace");
    fails(&["--trace", "/nowhere/at/all"], 1, "cannot read /nowhere/at/all");
    fails(&["--last", "soon"], 2, "a number of jobs");
    fails(&["--last", "0"], 2, "a number of jobs");
    fails(&["serve.py", "--last", "2"], 2, "cannot be used with");
    fails(&["--last", "2", "--since", "1h"], 2, "cannot be used with");
    let _broker = home.broker(&[]);
    let service = Client::attach(&home.socket(), named(0, "python serve.py"));
    until("it is listed", || home.status().clients.len() == 1);
    let done = home.done(&["report", "-o", "/nowhere/page.html"]);
    assert_eq!((done.status.code(), text(&done.stderr).lines().count()), (Some(1), 1));
    let done = home.done(&["report", "-o", "-"]);
    assert!(text(&done.stdout).starts_with("<!DOCTYPE html>") && done.stderr.is_empty());
    let script = home.path().join("serve.py");
    std::fs::write(&script, "import torch").expect("written");
    let output = script.to_str().expect("text");
    let done = home.done(&["report", "-o", output]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("is no page for a browser"));
    assert_eq!(std::fs::read(&script).expect("still there"), b"import torch");
    drop(service);
}

#[test]
fn a_page_is_opened_or_the_reason_is_told() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let _service = Client::attach(&home.socket(), named(0, "python serve.py"));
    until("it is listed", || home.status().clients.len() == 1);
    let seen = home.path().join("seen");
    let browser = home.path().join("browser");
    let script = format!(
        "#!/bin/sh\necho \"$*\" > {0}.new; mv {0}.new {0}; exit $CODE\n",
        seen.display()
    );
    fs::write(&browser, script).expect("written");
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).expect("set");
    let page = home.path().join("page.html");
    let open = |variables: &[(&str, &str)], code: i32| {
        let mut command = home.weft();
        for name in ["BROWSER", "DISPLAY", "WAYLAND_DISPLAY"] {
            command.env_remove(name);
        }
        command.args(["report", "--open", "-o"]).arg(&page);
        let done = command.envs(variables.iter().copied()).output().expect("ran");
        let said = text(&done.stderr);
        assert_eq!((done.status.code(), said.lines().count()), (Some(code), 1), "{said}");
        assert!(said.contains(&page.display().to_string()) && page.exists(), "{said}");
        said
    };
    let browser = browser.display().to_string();
    let said = open(&[("BROWSER", &format!("{browser} --new %s:other")), ("CODE", "0")], 0);
    assert!(!said.contains("not opened"), "{said}");
    until("the browser has the page", || seen.exists());
    assert_eq!(
        fs::read_to_string(&seen).expect("read"),
        format!("--new {}\n", page.display())
    );
    // As over ssh.
    assert!(open(&[], 0).contains("(not opened: no browser: neither BROWSER nor DISPLAY is set)"));
    assert!(open(&[("BROWSER", "/nowhere/browser")], 0).contains("(not opened: /nowhere/browser: No such file"));
    let said = open(&[("BROWSER", &browser), ("CODE", "3")], 0);
    assert!(said.contains("ended with exit status: 3)"), "{said}");
    let done = home.done(&["report", "--open", "-o", "-"]);
    assert_eq!((done.status.code(), text(&done.stderr).lines().count()), (Some(2), 1));
}
