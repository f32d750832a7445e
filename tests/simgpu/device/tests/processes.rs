// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many processes and one device: starting, sharing, dying.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use common::{PATIENCE, Place, alive, device_program, eventually, kernel};
use rustix::process::{Pid, Signal, kill_process};
use simgpu_calibration::Calibration;
use simgpu_device::{Config, Extra, Link, LinkError, NoEffects, Op, Status};
use weft_engine::Settings;

/// A client process; killed when dropped.
struct Client {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Client {
    fn start(place: &Place, arguments: &[&str], environment: &[(&str, &str)]) -> Client {
        let mut command = Command::new(client_program());
        command.args(arguments);
        command
            .env("SIMGPU_SOCKET", place.socket())
            .env("SIMGPU_DEVICE_BIN", device_program());
        for name in [
            "SIMGPU_CONFIG",
            "SIMGPU_LOG",
            "SIMGPU_MODE",
            "SIMGPU_MEMORY",
            "SIMGPU_CALIBRATION",
            "SIMGPU_DILATION",
        ] {
            command.env_remove(name);
        }
        command.envs(environment.iter().copied());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Client { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits until it is attached; the device's pid.
    fn ready(&mut self) -> u32 {
        let line = self.line();
        let pid = line
            .strip_prefix("ready ")
            .unwrap_or_else(|| panic!("{line} {}", self.errors()));
        pid.parse().unwrap()
    }

    fn errors(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets it end by itself; its exit code.
    fn finish(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client_program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_simgpu-client"))
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn three_hundred_processes_started_at_once_get_one_device() {
    let place = Place::new();
    let mut clients: Vec<_> = (0..300).map(|_| Client::start(&place, &["stay"], &[])).collect();
    let pids: Vec<_> = clients.iter_mut().map(Client::ready).collect();
    assert!(pids.iter().all(|pid| *pid == pids[0]), "one device for all");
    let status = place.status_when(|status| status["memory"]["used"] == 300 << 20);
    assert_eq!(status["attached"], 300);
    assert_eq!(status["clients"].as_array().unwrap().len(), 300);
    for client in &mut clients[..150] {
        client.kill();
    }
    place.status_when(|status| status["memory"]["used"] == 150 << 20);
    for client in clients.drain(150..) {
        assert_eq!(client.finish(), Some(0));
    }
    place.wait_until_gone(pids[0]);
}

#[test]
fn three_hundred_links_that_end_at_one_instant_are_all_seen_off() {
    let place = Place::new();
    let keeper = place.open();
    // More than the device sees at a time.
    let links: Vec<_> = (0..300).map(|_| place.open()).collect();
    assert_eq!(place.status()["clients"].as_array().unwrap().len(), 301);
    // The device cannot look while they go.
    let device = Pid::from_raw(keeper.device_pid() as i32).unwrap();
    kill_process(device, Signal::STOP).unwrap();
    drop(links);
    kill_process(device, Signal::CONT).unwrap();
    let status = place.status_when(|status| status["clients"].as_array().unwrap().len() == 1);
    assert_eq!(status["cut"], 0);
}

#[test]
fn the_device_leaves_with_its_last_client_and_comes_back() {
    let place = Place::new();
    let link = place.open();
    let first = link.device_pid();
    let mut client = Client::start(&place, &["hang"], &[]);
    assert_eq!(client.ready(), first);
    drop(link);
    std::thread::sleep(std::time::Duration::from_millis(800));
    assert!(alive(first), "a client is still there");
    client.kill();
    place.wait_until_gone(first);
    let link = place.open();
    assert_ne!(link.device_pid(), first);
}

#[test]
fn a_killed_client_frees_what_it_had() {
    let place = Place::new();
    let link = place.open();
    let free = link.memory().0;
    let mut client = Client::start(&place, &["hang"], &[]);
    client.ready();
    assert_eq!(client.line(), "hangs");
    let status =
        place.status_when(|status| status["clients"].as_array().unwrap().len() == 2 && status["submitted"] == 1);
    assert!(link.memory().0 < free - (1 << 20));
    assert_eq!(status["clients"][1]["contexts"], 1);
    // Its kernel has the device; this one gets its slices.
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    let seq = link.submit(stream, kernel(5_000_000), Extra::default()).unwrap();
    link.wait(seq, Some(PATIENCE)).unwrap();
    client.kill();
    let status = place.status_when(|status| status["clients"].as_array().unwrap().len() == 1);
    assert_eq!(status["aborted"], 1);
    eventually("its memory is free", || link.memory().0 + (400 << 20) == free);
}

#[test]
fn clients_killed_in_the_middle_of_submissions_harm_nobody() {
    let place = Place::new();
    let link = place.open();
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    let mut moment = 0x2545_f491u64;
    for _ in 0..40 {
        let mut client = Client::start(&place, &["flood"], &[]);
        client.ready();
        moment = moment
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(std::time::Duration::from_micros((moment >> 33) % 30_000));
        client.kill();
        let seq = link.submit(stream, kernel(10_000), Extra::default()).unwrap();
        assert!(link.wait(seq, Some(PATIENCE)).unwrap().is_done());
    }
    let status = place.status_when(|status| status["clients"].as_array().unwrap().len() == 1);
    assert_eq!(status["cut"], 0, "a killed client is no liar: {status:#}");
    assert_eq!(status["clients"][0]["ended"], 40);
    assert_eq!(status["memory"]["used"], 400 << 20);
    assert_eq!(
        status["submitted"].as_u64().unwrap(),
        status["ended"].as_u64().unwrap() + status["aborted"].as_u64().unwrap(),
        "no operation is lost"
    );
}

#[test]
fn when_the_device_is_killed_those_who_wait_hear_of_it() {
    let place = Place::new();
    let link = place.open();
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    let endless = link.submit(stream, kernel(u64::MAX / 4), Extra::default()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| link.wait(endless, None));
        let helping = scope.spawn(|| {
            loop {
                if let Err(error) = link.wait_for_news(PATIENCE) {
                    return error;
                }
            }
        });
        let full = scope.spawn(|| {
            loop {
                if let Err(error) = link.submit(stream, Op::Marker, Extra::default()) {
                    return error;
                }
            }
        });
        place.status_when(|status| status["clients"][0]["outstanding"] == 1024);
        kill(link.device_pid());
        let began = Instant::now();
        assert!(matches!(waiting.join().unwrap(), Err(LinkError::Lost)));
        assert!(matches!(helping.join().unwrap(), LinkError::Lost));
        assert!(matches!(full.join().unwrap(), LinkError::Lost));
        assert!(began.elapsed() < PATIENCE / 4, "in bounded time");
    });
    assert_eq!(link.status(endless), Status::Lost);
    assert!(matches!(
        link.submit(stream, Op::Marker, Extra::default()),
        Err(LinkError::Lost)
    ));
    assert!(matches!(link.context(), Err(LinkError::Lost)));
    assert!(place.socket().exists(), "what is left is stale");
    // The stale socket and locks block no new device.
    let again = place.open();
    let stream = again.stream(again.context().unwrap(), 0).unwrap();
    let seq = again.submit(stream, kernel(1_000), Extra::default()).unwrap();
    again.wait(seq, Some(PATIENCE)).unwrap();
}

#[test]
fn a_file_where_the_socket_should_be_is_taken_for_stale() {
    let place = Place::new();
    std::fs::write(place.socket(), "what is this").unwrap();
    place.open();
}

#[test]
fn a_forked_child_is_kept_out_and_keeps_nothing_alive() {
    let place = Place::new();
    let observer = place.open();
    let free = observer.memory().0;
    let mut client = Client::start(&place, &["fork"], &[]);
    client.ready();
    let mut lines = [client.line(), client.line()];
    lines.sort();
    assert_eq!(lines, ["child (false, true, true, true)", "parent goes on"]);
    // The child lives on, with the parent's socket open; only the parent dies.
    let stdin = client.child.stdin.take();
    client.kill();
    place.status_when(|status| status["clients"].as_array().unwrap().len() == 1);
    eventually("its memory is free", || observer.memory().0 == free);
    drop(stdin);
}

#[test]
fn memory_is_one_for_all_processes() {
    let place = Place::new();
    let mut one = Client::start(&place, &["stay"], &[("SIMGPU_MEMORY", "2097152")]);
    let mut two = Client::start(&place, &["stay"], &[("SIMGPU_MEMORY", "2097152")]);
    one.ready();
    two.ready();
    place.status_when(|status| status["memory"]["used"] == 2 << 20);
    let link = place.open();
    assert_eq!(link.memory(), (0, 2 << 20));
    assert!(matches!(link.reserve(1), Err(LinkError::OutOfMemory)));
    assert!(matches!(link.context(), Err(LinkError::OutOfMemory)));
    one.kill();
    eventually("there is room again", || link.reserve(1 << 20).is_ok());
    assert_eq!(link.held(), 1 << 20);
    link.release(1 << 20);
    assert_eq!(link.memory().0, 1 << 20);
}

fn log_lines(path: &std::path::Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn two_processes_take_turns_and_the_log_shows_it() {
    let place = Place::new();
    let log = place.directory.path().join("log.jsonl");
    let config = place.directory.path().join("config.toml");
    std::fs::write(&config, "[device]\nlog_switches = true\nlinger_ms = 100\n").unwrap();
    let environment = [
        ("SIMGPU_LOG", log.to_str().unwrap()),
        ("SIMGPU_CONFIG", config.to_str().unwrap()),
    ];
    // The first keeps the device busy for two seconds, while the second comes.
    let mut first = Client::start(&place, &["run", "400", "5000000"], &environment);
    let device = first.ready();
    let mut second = Client::start(&place, &["run", "20", "5000000"], &environment);
    assert_eq!(second.ready(), device);
    assert!(second.line().starts_with("ran 20 from "));
    assert!(first.line().starts_with("ran 400 from "));
    place.status();
    let lines = log_lines(&log);
    let kernels: Vec<_> = lines.iter().filter(|line| line["op"] == "kernel").collect();
    assert_eq!(kernels.len(), 420);
    assert!(kernels.iter().all(|line| line["name"] == "client_kernel"
        && line["grid"] == serde_json::json!([4, 1, 1])
        && line["block"] == serde_json::json!([256, 1, 1])
        && line["process"] == "simgpu-client"
        && line["bytes"].is_null()));
    let mut pieces = Vec::new();
    for line in &lines {
        let piece = |from: &serde_json::Value, to: &serde_json::Value| (from.as_u64().unwrap(), to.as_u64().unwrap());
        match line["slices"].as_array() {
            Some(slices) => pieces.extend(slices.iter().map(|slice| piece(&slice[0], &slice[1]))),
            None => pieces.push(piece(&line["t"], &line["end"])),
        }
    }
    pieces.sort_unstable();
    assert!(pieces.windows(2).all(|pair| pair[0].1 <= pair[1].0), "one at a time");
    assert!(lines.iter().any(|line| line["op"] == "switch"), "they met");
    for pid in [first.child.id(), second.child.id()] {
        let of_one: Vec<_> = kernels.iter().filter(|line| line["pid"] == pid).collect();
        assert!(
            of_one
                .windows(2)
                .all(|pair| pair[0]["seq"].as_u64() < pair[1]["seq"].as_u64())
        );
        assert!(
            of_one
                .windows(2)
                .all(|pair| pair[0]["end"].as_u64() <= pair[1]["t"].as_u64())
        );
        let time: u64 = of_one
            .iter()
            .map(|line| match line["slices"].as_array() {
                Some(slices) => slices
                    .iter()
                    .map(|slice| slice[1].as_u64().unwrap() - slice[0].as_u64().unwrap())
                    .sum(),
                None => line["end"].as_u64().unwrap() - line["t"].as_u64().unwrap(),
            })
            .sum();
        assert_eq!(time, of_one.len() as u64 * 5_000_000, "every kernel had its time");
    }
    drop((first, second));
    place.wait_until_gone(device);
}

#[test]
fn a_log_that_cannot_be_written_is_told_and_stops_nobody() {
    for (path, seen_at_start) in [("/dev/full", false), ("/no/such/place/log", true)] {
        let place = Place::new();
        let mut client = Client::start(&place, &["stay"], &[("SIMGPU_LOG", path)]);
        client.ready();
        let mut run = Client::start(&place, &["run", "100", "1000"], &[]);
        run.ready();
        assert!(run.line().starts_with("ran 100 "));
        let status = place.status_when(|status| status["log"]["trouble"].is_string());
        assert!(status["log"]["trouble"].as_str().unwrap().contains(path));
        if seen_at_start {
            assert!(client.errors().contains("cannot write /no/such/place/log"));
        }
    }
}

#[test]
fn what_is_wrong_with_the_start_is_said_in_a_line() {
    let place = Place::new();
    let config = place.directory.path().join("config.toml");
    std::fs::write(&config, "[device]\nslize = 1\n").unwrap();
    let config = config.to_str().unwrap();
    let too_long = format!("/tmp/{}", "x".repeat(200));
    for (name, value, expected) in [
        ("SIMGPU_CONFIG", config, "slize"),
        ("SIMGPU_CONFIG", "/no/such/file", "cannot read /no/such/file"),
        ("SIMGPU_MODE", "both", "SIMGPU_MODE=both makes no sense"),
        ("SIMGPU_DEVICE_BIN", "/no/such/program", "cannot start /no/such/program"),
        (
            "SIMGPU_SOCKET",
            "/proc/no/device.sock",
            "cannot lock beside /proc/no/device.sock",
        ),
        ("SIMGPU_SOCKET", &too_long, "no usable socket path"),
    ] {
        let mut client = Client::start(&place, &["stay"], &[(name, value)]);
        assert_eq!(client.child.wait().unwrap().code(), Some(1), "{name}={value}");
        let errors = client.errors();
        assert!(errors.contains(expected), "{name}={value}: {errors}");
    }
}

#[test]
fn a_dilated_device_is_slower_by_the_dilation() {
    let place = Place::new();
    let began = Instant::now();
    let mut client = Client::start(&place, &["run", "10", "1000000"], &[("SIMGPU_DILATION", "20")]);
    client.ready();
    assert!(client.line().starts_with("ran 10 "));
    assert!(began.elapsed().as_millis() >= 200, "10 ms of the device");
    let link = place.open();
    assert_eq!(link.dilation(), 20.0);
}

#[test]
fn clients_of_a_device_that_just_left_start_another() {
    let place = Place::new();
    let config = place.directory.path().join("config.toml");
    // Leaves at once, so that clients meet it on its way out.
    std::fs::write(&config, "[device]\nlinger_ms = 0\n").unwrap();
    let environment = [("SIMGPU_CONFIG", config.to_str().unwrap())];
    for _ in 0..15 {
        let mut clients: Vec<_> = (0..4)
            .map(|_| Client::start(&place, &["run", "5", "1000"], &environment))
            .collect();
        for client in &mut clients {
            client.ready();
            assert!(client.line().starts_with("ran 5 "));
        }
    }
}

#[test]
fn a_link_dropped_while_its_process_lives_frees_all() {
    let place = Place::new();
    let keeper = place.open();
    for _ in 0..20 {
        let link = Link::open(&place.options(), std::sync::Arc::new(NoEffects)).unwrap();
        let stream = link.stream(link.context().unwrap(), 0).unwrap();
        link.reserve(1 << 30).unwrap();
        link.submit(stream, kernel(u64::MAX / 4), Extra::default()).unwrap();
    }
    let status = place.status_when(|status| status["clients"].as_array().unwrap().len() == 1);
    assert_eq!(status["memory"]["used"], 0);
    assert_eq!(status["aborted"], 20);
    assert_eq!(keeper.memory().0, keeper.memory().1);
}

#[test]
fn a_reader_that_has_read_enough_is_no_error() {
    for arguments in [
        &["calibration"][..],
        &["calibration", "a100-like"],
        &["config"],
        &["help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = Command::new(device_program())
            .args(arguments)
            .stdout(writer)
            .output()
            .unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", done.status);
        assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{arguments:?}");
    }
}

#[test]
fn a_model_has_its_calibration_unless_another_is_named() {
    let config = |variables: &[(&str, &str)]| {
        let mut command = Command::new(device_program());
        command
            .arg("config")
            .env_remove("SIMGPU_CONFIG")
            .env_remove("SIMGPU_CALIBRATION")
            .env_remove("SIMGPU_MODEL");
        let done = command.envs(variables.iter().copied()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Config::parse(&String::from_utf8(done.stdout).unwrap(), Path::new("printed")).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "[device]\nslice_ns = 7\n").unwrap();
    let of = |name: &str| Calibration::load(name).unwrap().figures().unwrap().engine;
    assert_eq!(config(&[]).engine(false), of("a100-like"));
    assert_eq!(config(&[("SIMGPU_MODEL", "a100")]).engine(false), of("a100-like"));
    assert_eq!(config(&[("SIMGPU_MODEL", "h100")]).engine(false), of("h100-like"));
    let named = [("SIMGPU_MODEL", "h100"), ("SIMGPU_CALIBRATION", "a100-like")];
    assert_eq!(config(&named).engine(false), of("a100-like"));
    let with_file = [("SIMGPU_MODEL", "h100"), ("SIMGPU_CONFIG", file.to_str().unwrap())];
    let expected = Settings {
        slice: 7,
        ..of("h100-like")
    };
    assert_eq!(config(&with_file).engine(false), expected);
}
