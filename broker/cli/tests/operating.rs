// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of a broker's operation: its settings file, SIGHUP, signals to jobs, its log.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Client, Home, PATIENCE, hello, until};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use weft_api::admin;
use weft_protocol::admission_slot::AdmissionState;
use weft_protocol::control::ToBroker;
use weft_protocol::lane::Mode;

/// The command with this file of settings.
fn by(home: &Home, file: &Path, arguments: &[&str]) -> Output {
    let mut command = home.weft();
    command.env("WEFT_CONFIG", file).args(arguments);
    command.output().expect("ran")
}

fn stderr(output: &Output) -> String {
    common::text(&output.stderr)
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a pid");
    kill_process(pid, signal).expect("signalled");
}

/// A file of settings in a home.
fn settings(home: &Home, text: &str) -> std::path::PathBuf {
    let path = home.path().join("weft.toml");
    fs::write(&path, text).expect("written");
    path
}

#[test]
fn a_broker_goes_by_its_file_and_an_option_goes_before_it() {
    let home = Home::new();
    let file = settings(
        &home,
        "[broker]\npolicy = 'fikit'\ndelay-bound = 700\nidle-exit = 900\n",
    );
    for (options, policy) in [(&[][..], "fikit"), (&["--policy", "weft"][..], "weft")] {
        let started = by(&home, &file, &[&["broker", "--background"], options].concat());
        assert!(started.status.success(), "{}", stderr(&started));
        let broker = home.status().broker;
        assert_eq!((broker.policy.as_str(), broker.delay_bound_us), (policy, 700));
        assert!(home.done(&["stop"]).status.success());
    }
}

#[test]
fn a_check_judges_variables_as_a_job_does() {
    let home = Home::new();
    let mut check = home.weft();
    check
        .args(["run", "--check", "--", "true"])
        .env("WEFT_SLOWDOWN", "lots");
    let done = check.output().expect("ran");
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(stderr(&done).starts_with("weft: WEFT_SLOWDOWN: "), "{done:?}");
}

#[test]
fn a_metrics_address_that_is_taken_is_told_and_ends_no_broker() {
    let home = Home::new();
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = other.local_addr().expect("bound");
    let file = settings(&home, &format!("[broker]\nmetrics = '{address}'\n"));
    let started = by(&home, &file, &["broker", "--background"]);
    assert!(started.status.success(), "{}", stderr(&started));
    let told = format!("no metrics at {address}: cannot listen: ");
    until("its log has the line", || {
        fs::read_to_string(home.places().log()).expect("a log").contains(&told)
    });
    assert!(
        home.done(&["metrics"]).status.success(),
        "the broker's own socket answers"
    );
}

#[test]
fn a_wrong_file_refuses_what_a_person_types_and_fails_no_job() {
    let home = Home::new();
    let file = settings(&home, "[broker]\npolcy = 'fikit'\nlongest-wait = 2000\n");
    let place = format!(
        "weft: {}:2: broker.polcy: no such key; did you mean policy?\n",
        file.display()
    );
    for line in [&["broker"][..], &["broker", "--background"], &["run", "--", "true"]] {
        let done = by(&home, &file, line);
        assert_eq!(done.status.code(), Some(2), "{line:?}");
        assert_eq!(stderr(&done), place, "{line:?}");
        assert!(!admin::pings(&home.places()), "{line:?}");
    }
    // As a job starts one that was only preloaded.
    let started = by(
        &home,
        &file,
        &["broker", "--background", "--quiet", "--idle-exit", "30"],
    );
    assert!(started.status.success(), "{}", stderr(&started));
    assert_eq!(home.status().broker.policy, "weft", "what is wrong counts as not said");
    let log = || fs::read_to_string(home.places().log()).expect("a log");
    until("its log has the line", || {
        log().contains("weft.toml:2: broker.polcy: no such key; did you mean policy?; ignored")
    });
}

#[test]
fn a_job_gets_what_the_file_says_of_runs_unless_more_was_said() {
    let home = Home::new();
    let file = settings(
        &home,
        "[run]\npriority = 'low'\nslowdown = '3%'\nqueue = 'off'\nquiet = true\n",
    );
    let run = |more: &[&str], set: Option<(&str, &str)>| {
        let mut command = home.weft();
        command
            .env("WEFT_CONFIG", &file)
            .args(["run"])
            .args(more)
            .args(["--", "env"]);
        command.envs(set);
        let done = command.output().expect("ran");
        assert!(done.status.success(), "{}", stderr(&done));
        common::text(&done.stdout)
    };
    let has = |page: &str, line: &str| page.lines().any(|found| found == line);
    let plain = run(&[], None);
    for line in [
        "WEFT_PRIORITY=low",
        "WEFT_SLOWDOWN=3%",
        "WEFT_QUEUE=off",
        "WEFT_OUTCOME=off",
        "CUDA_MPS_CLIENT_PRIORITY=1",
    ] {
        assert!(has(&plain, line), "{line} is not in\n{plain}");
    }
    assert!(has(&run(&[], Some(("WEFT_PRIORITY", "3"))), "WEFT_PRIORITY=3"));
    let said = run(&["-p", "high"], Some(("WEFT_PRIORITY", "3")));
    assert!(has(&said, "WEFT_PRIORITY=0"), "{said}");
}

#[test]
fn config_shows_each_setting_with_its_origin() {
    let home = Home::new();
    let file = settings(&home, "[broker]\npolicy = 'fikit'\n\n[broker.weights]\nroot = 3\n");
    let page = by(&home, &file, &["config", "show"]);
    assert!(page.status.success());
    let page = common::text(&page.stdout);
    let row = |key: &str| {
        page.lines()
            .find(|line| line.starts_with(key))
            .expect("a row")
            .to_string()
    };
    assert!(
        row("broker.policy").ends_with(&format!("{}:2", file.display())),
        "{page}"
    );
    assert!(row("broker.weights.root").ends_with("weft.toml:5"), "{page}");
    assert!(row("run.priority").ends_with("built in"), "{page}");
    let json = by(&home, &file, &["config", "show", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["schema"], 1);
    let rows = json["settings"].as_array().expect("rows");
    let policy = rows.iter().find(|row| row["key"] == "broker.policy").expect("a row");
    assert_eq!(policy["value"], "fikit");
    let path = by(&home, &file, &["config", "path"]);
    assert_eq!(common::text(&path.stdout), format!("{}\n", file.display()));
    settings(&home, "[broker]\ndelay-bound = 'long'\n");
    let wrong = by(&home, &file, &["config", "show"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr(&wrong).contains(":2: broker.delay-bound: expected a whole number"),
        "{}",
        stderr(&wrong)
    );
}

#[test]
fn sighup_has_the_broker_read_its_file_again_and_ends_none() {
    let home = Home::new();
    let file = settings(&home, "[broker]\nslowdown = '1%'\n");
    let mut command = home.weft();
    let log = fs::File::create(home.broker_log()).expect("a log");
    command.env("WEFT_CONFIG", &file).arg("broker").stderr(log);
    let mut broker = Killed(command.spawn().expect("started"));
    until("the broker answers", || admin::pings(&home.places()));
    let client = Client::attach(&home.socket(), hello(0));
    until("it is told its mode", || client.mode() == Some(Mode::Alone));
    let allowed = || home.only_client().slowdown_allowed;
    until("it may lose what the file says", || allowed() == Some(0.01));
    let log = || fs::read_to_string(home.broker_log()).expect("a log");
    let hang_up = |text: &str, line: &str| {
        settings(&home, text);
        signal(broker.0.id(), Signal::HUP);
        until(line, || log().contains(line));
    };
    hang_up(
        "[broker]\nslowdown = '5%'\npolicy = 'fikit'\n",
        "reloaded: slowdown is 5 % (was 1 %)",
    );
    until("a job that runs may lose that", || allowed() == Some(0.05));
    until("what needs a restart is told", || {
        log().contains("reloaded: policy change only when the broker is restarted")
    });
    assert_eq!(home.status().broker.policy, "weft");
    hang_up("[broker]\nslowdown = '7\n", "not reloaded: ");
    assert_eq!(allowed(), Some(0.05), "a wrong file changes nothing");
    hang_up("[broker]\nslowdown = '5%'\n", "reloaded: nothing changed");
    hang_up("[broker]\nslowdown = '5%'\nlog = 'debug'\n", "reloaded: log is debug");
    assert!(broker.0.try_wait().expect("asked").is_none(), "SIGHUP ends no broker");
    for line in log().lines() {
        let (time, rest) = line.split_once(' ').expect("a time");
        assert!(time.len() == 20 && time.ends_with('Z'), "{line}");
        assert!(rest.starts_with("weft broker: "), "{line}");
    }
}

#[test]
fn a_user_has_no_more_at_once_than_the_administrator_says() {
    let home = Home::new();
    let uid = rustix::process::geteuid().as_raw();
    let text = |jobs: u32| format!("[broker.jobs]\n{uid} = {jobs}\n'*' = 9\n[broker.memory]\n{uid} = '12GiB'\n");
    let file = settings(&home, &text(1));
    let page = by(&home, &file, &["config", "show", "--shared"]);
    let page = common::text(&page.stdout);
    let row = |key: &str| page.lines().any(|line| line.starts_with(key));
    assert!(row("broker.jobs.*"), "{page}");
    assert_eq!(
        page.lines().filter(|line| line.starts_with("broker.memory.")).count(),
        1,
        "{page}"
    );
    let mut command = home.weft();
    let log = fs::File::create(home.broker_log()).expect("a log");
    command
        .env("WEFT_CONFIG", &file)
        .args(["broker", "--shared", "--socket"]);
    let broker = Killed(command.arg(home.socket()).stderr(log).spawn().expect("started"));
    until("the broker answers", || admin::pings(&home.places()));

    let clients: Vec<Client> = (0..3).map(|_| Client::attach(&home.socket(), hello(5))).collect();
    let state = |client: &Client| client.lane().admission_slot.state();
    let [runs, waits, large] = &clients[..] else {
        panic!("three")
    };
    runs.wants(Some(4 << 30));
    until("the first job begins", || state(runs) == AdmissionState::Admitted);
    waits.wants(Some(4 << 30));
    until("the second one waits", || state(waits) == AdmissionState::Waits);
    large.wants(Some(13 << 30));
    until("what can never begin is refused", || {
        state(large) == AdmissionState::Refused
    });
    let queue = || common::text(&home.done(&["queue"]).stdout);
    let page = queue();
    assert!(
        page.contains("its user runs 1 job and may run no more at once"),
        "{page}"
    );
    assert!(page.contains("1 job and 12.0 GiB, all others 9 jobs"), "{page}");
    let log = || fs::read_to_string(home.broker_log()).expect("a log");
    // The line is written by another thread than the one that refused.
    until("the log has the cap", || {
        log().contains("and its user may have 12.0 GiB of device memory at once")
    });
    settings(&home, &text(2));
    signal(broker.0.id(), Signal::HUP);
    until("a higher cap lets it begin", || {
        state(waits) == AdmissionState::Admitted
    });
    until("it is told", || log().contains("reloaded: cap on jobs of "));
    // 8 GiB and contexts of 12 are taken.
    waits.say(ToBroker::More {
        bytes: 5 << 30,
        patience: 0,
    });
    until("more than the cap is denied", || {
        waits
            .lane()
            .admission_slot
            .answers
            .load(std::sync::atomic::Ordering::Acquire)
            > 0
    });
    until("the job is told why", || log().contains("wanted 5.00 GiB more"));
}

/// A process that the test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: a process that is a client of this priority until it is ended.
#[test]
#[ignore = "a helper process of other tests"]
fn helper_job() {
    let Ok(socket) = std::env::var("WEFT_TEST_SOCKET") else {
        return;
    };
    let client = Client::attach(Path::new(&socket), hello(0));
    println!("attached");
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        client.launch(1, 200_000);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn job(home: &Home) -> Killed {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "helper_job", "--ignored", "--nocapture"])
        .env("WEFT_TEST_SOCKET", home.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let said = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    let attached = said.map_while(Result::ok).any(|line| line.contains("attached"));
    assert!(attached, "the job ended by itself");
    Killed(child)
}

#[test]
fn a_paused_foreground_job_keeps_no_background_job_waiting() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let main = job(&home);
    let pid = main.0.id().to_string();
    until("it is listed", || home.status().clients.len() == 1);
    let paused = home.done(&["pause", &pid]);
    assert!(paused.status.success(), "{}", stderr(&paused));
    let batch = Client::attach(&home.socket(), hello(5));
    let find = |pid: u32| home.status().clients.into_iter().find(|client| client.pid == pid);
    // A stop takes effect as the kernel gets to each of its threads.
    until("it stands", || find(main.0.id()).is_some_and(|client| client.stopped));
    until("it is in the background", || batch.mode() == Some(Mode::Background));
    // Each launch goes into an open gap: none needs the minimum share of a job that starves.
    let starved = || {
        let core = home.status().broker.core.expect("a core");
        let clients = core["clients"].as_array().expect("clients").clone();
        let mut starved = clients.iter().filter(|client| client["priority"] == 5);
        starved
            .next()
            .and_then(|client| client["starved"].as_u64())
            .expect("a count")
    };
    let before = starved();
    for _ in 0..LAUNCHES {
        batch.come_to_gate(7, COST_NS);
        until("the gate opens", || batch.may_go());
        pass(&batch);
    }
    assert!(starved() <= before + 1, "{} of {LAUNCHES} starved", starved() - before);
    let resumed = home.done(&["resume", &pid]);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    until("it goes on", || find(main.0.id()).is_some_and(|client| !client.stopped));
}

const LAUNCHES: usize = 50;
const COST_NS: u64 = 100_000;

/// A background job's launch, whose work ends at once.
fn pass(client: &Client) {
    use std::sync::atomic::Ordering;
    let lane = client.lane();
    lane.reports.waiting.store(0, Ordering::Release);
    lane.orders.credit.fetch_sub(COST_NS.cast_signed(), Ordering::AcqRel);
    lane.reports.issued.fetch_add(COST_NS, Ordering::AcqRel);
    lane.reports.completed.fetch_add(COST_NS, Ordering::AcqRel);
    lane.counters.launches.fetch_add(1, Ordering::Relaxed);
    client.ring();
}

#[test]
fn jobs_are_cancelled_and_waited_for() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let (one, mut other) = (job(&home), job(&home));
    let numbers = [one.0.id().to_string(), other.0.id().to_string()];
    until("both are listed", || home.status().clients.len() == 2);
    let waits = home.done(&["wait", &numbers[0], "--timeout", "10ms"]);
    assert_eq!(waits.status.code(), Some(124), "{}", stderr(&waits));
    let paused = home.done(&["pause", &numbers[1]]);
    assert!(paused.status.success(), "{}", stderr(&paused));
    let unknown = home.done(&["cancel", "client:999"]);
    assert_eq!(unknown.status.code(), Some(1));
    let said = stderr(&unknown);
    assert!(
        said.starts_with("weft: no job client:999 is attached; attached are: client "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    // A paused job is cancelled too.
    let cancelled = home.done(&["cancel", "--kill-after", "60s", &numbers[1]]);
    assert!(cancelled.status.success(), "{}", stderr(&cancelled));
    let ended = other.0.wait().expect("waited");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(15));
    until("the broker knows", || home.status().clients.len() == 1);
    let killed = std::thread::spawn({
        let pid = one.0.id();
        move || {
            std::thread::sleep(Duration::from_millis(50));
            signal(pid, Signal::KILL);
        }
    });
    let both = home.done(&["wait", &numbers[0], &numbers[1]]);
    assert!(both.status.success(), "one ends, one has ended: {}", stderr(&both));
    killed.join().expect("no panic");
}

#[test]
fn the_service_manager_is_told_that_a_broker_serves_reads_and_ends() {
    let home = Home::new();
    let file = settings(&home, "");
    let address = home.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&address).expect("bound");
    socket.set_read_timeout(Some(PATIENCE)).expect("bounded");
    let next = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).expect("it is told");
        common::text(&bytes[..length])
    };
    let mut command = home.weft();
    command.env("WEFT_CONFIG", &file).env("NOTIFY_SOCKET", &address);
    let mut broker = Killed(command.arg("broker").stderr(Stdio::null()).spawn().expect("started"));
    assert_eq!(next(), "READY=1");
    assert!(admin::pings(&home.places()), "clients are let in from then on");
    signal(broker.0.id(), Signal::HUP);
    let reloading = next();
    let at = reloading
        .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
        .expect("as systemd wants it");
    assert!(at.parse::<u64>().is_ok(), "{reloading}");
    assert_eq!(next(), "READY=1");
    signal(broker.0.id(), Signal::TERM);
    assert_eq!(next(), "STOPPING=1");
    assert!(broker.0.wait().expect("waited").success());
    // A broker started by a service's job must not notify for that service.
    let mut command = home.weft();
    command.env("NOTIFY_SOCKET", &address).args(["broker", "--background"]);
    assert!(command.output().expect("ran").status.success());
    assert!(home.done(&["stop"]).status.success());
    socket.set_nonblocking(true).expect("set");
    assert!(
        socket.recv(&mut [0; 256]).is_err(),
        "a broker in the background tells nobody"
    );
}

/// A socket at this path, as a service manager makes it.
fn bound(path: &Path, kind: SocketType, mode: u32) -> OwnedFd {
    let _ = fs::remove_file(path);
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&socket, &SocketAddrUnix::new(path).expect("short")).expect("bound");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    listen(&socket, 16).expect("listens");
    socket
}

/// A broker that is started for a socket, as a service manager does it. `variables`: shell.
fn started_for(home: &Home, socket: &OwnedFd, variables: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{variables} exec \"$0\" broker 3<&0 0</dev/null");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_weft")]);
    // The environment of a test's broker, and nothing of this machine.
    for (name, value) in home.weft().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::from(socket.try_clone().expect("cloned")));
    command
}

const FOR_IT: &str = "LISTEN_PID=$$ LISTEN_FDS=1";

#[test]
fn a_broker_takes_the_socket_that_a_service_manager_holds() {
    let home = Home::new();
    let folder = home.places().directory();
    fs::create_dir(&folder).expect("made");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("set");
    let socket = bound(&home.socket(), SocketType::SEQPACKET, 0o600);
    // A job comes before any broker does, and waits at the socket.
    let path = home.socket();
    let early = std::thread::spawn(move || Client::attach(&path, hello(5)));
    for _ in 0..2 {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(home.broker_log())
            .expect("a log");
        let mut broker = Killed(
            started_for(&home, &socket, FOR_IT)
                .stderr(log)
                .spawn()
                .expect("started"),
        );
        until("the broker answers", || admin::pings(&home.places()));
        assert_eq!(home.status().broker.pid, broker.0.id(), "it is this one");
        let late = Client::attach(&home.socket(), hello(5));
        until("the late one is listed", || !home.status().clients.is_empty());
        // A second broker does not replace it.
        let second = started_for(&home, &socket, FOR_IT).output().expect("ran");
        assert!(
            !second.status.success() && stderr(&second).lines().count() == 1,
            "{second:?}"
        );
        drop(late);
        signal(broker.0.id(), Signal::TERM);
        assert!(broker.0.wait().expect("waited").success());
        assert!(
            fs::symlink_metadata(home.socket()).is_ok(),
            "the service manager goes on listening"
        );
    }
    drop(early.join().expect("it attached"));
}

#[test]
fn a_socket_that_is_not_as_the_broker_would_make_it_is_refused_in_one_line() {
    let home = Home::new();
    let folder = home.places().directory();
    fs::create_dir(&folder).expect("made");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("set");
    let elsewhere = folder.join("other.sock");
    let refused = |socket: &OwnedFd, variables: &str, why: &str| {
        let done = started_for(&home, socket, variables).output().expect("ran");
        let said = stderr(&done);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1 && said.contains(why), "{why}: {said}");
    };
    let socket = bound(&home.socket(), SocketType::STREAM, 0o600);
    refused(&socket, FOR_IT, "ListenSequentialPacket=");
    let socket = bound(&elsewhere, SocketType::SEQPACKET, 0o600);
    refused(&socket, FOR_IT, "other.sock, where clients do not look");
    let socket = bound(&home.socket(), SocketType::SEQPACKET, 0o666);
    refused(&socket, FOR_IT, "SocketMode=0600");
    let socket = bound(&home.socket(), SocketType::SEQPACKET, 0o600);
    refused(&socket, "LISTEN_PID=$$ LISTEN_FDS=2", "passed 2 sockets");
    let file = OwnedFd::from(fs::File::open(folder.join("broker.sock.lock")).expect("a file"));
    refused(&file, FOR_IT, "is not a unix socket");
    // The folder is checked before the socket.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("set");
    refused(&socket, FOR_IT, "other users can write to the folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("set");
    // Variables for another process are ignored.
    let mut broker = started_for(&home, &file, "LISTEN_PID=1 LISTEN_FDS=1");
    drop(socket);
    let broker = Killed(broker.stderr(Stdio::null()).spawn().expect("started"));
    until("the broker answers", || admin::pings(&home.places()));
    assert_eq!(home.status().broker.pid, broker.0.id());
}

/// A broker takes the constants that `weft config constants` prints, and those of a partial file.
#[test]
fn a_broker_takes_a_file_of_constants_and_refuses_a_wrong_one() {
    let home = Home::new();
    let file = home.path().join("constants.json");
    let start = |text: &[u8]| {
        fs::write(&file, text).expect("a file");
        let name = file.to_str().expect("a path");
        home.done(&["broker", "--background", "--constants", name])
    };
    for (text, error) in [
        (r#"{"core": {"open_aftr": 1}}"#, "unknown field `open_aftr`"),
        (r#"{"link_mb_per_s": -1}"#, "invalid value"),
    ] {
        let refused = start(text.as_bytes());
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(error), "{}", stderr(&refused));
    }
    let usual = home.done(&["config", "constants"]).stdout;
    let partial = br#"{"core": {"delay_bound": 7000000}, "longest_wait": 3000000000}"#.to_vec();
    for (text, delay_bound_us, longest_wait_ms) in [(usual, 500, 1_000), (partial, 7_000, 3_000)] {
        let started = start(&text);
        assert!(started.status.success(), "{}", stderr(&started));
        let status = home.done(&["status", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).expect("JSON");
        assert_eq!(status["broker"]["delay_bound_us"], delay_bound_us);
        assert_eq!(status["broker"]["longest_wait_ms"], longest_wait_ms);
        assert!(home.done(&["stop"]).status.success());
    }
}

/// The units of the repository, each with whether it is a user's.
const UNITS: [(&str, bool); 2] = [("weft-broker.service", false), ("user/weft-broker.service", true)];

#[test]
fn the_units_of_systemd_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd");
    for (name, of_user) in UNITS {
        let text = fs::read_to_string(folder.join(name)).expect("a unit");
        let mut sections = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                Some(section) => sections.push(section),
                None => assert!(
                    line.split_once('=')
                        .is_some_and(|(key, _)| key.chars().all(char::is_alphanumeric)),
                    "{line}"
                ),
            }
        }
        assert_eq!(sections, ["Unit", "Service", "Install"], "{name}");
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        assert_eq!(value("Type"), Some("notify"), "{name}");
        assert_eq!(value("ExecReload"), Some("/bin/kill -HUP $MAINPID"), "{name}");
        let started = value("ExecStart").and_then(|line| line.strip_prefix("/usr/bin/weft "));
        let words: Vec<&str> = started.expect("weft").split(' ').collect();
        let help = Home::new().done(&[&words[..], &["--help"]].concat());
        assert!(help.status.success(), "{words:?}: {}", stderr(&help));

        let socket = fs::read_to_string(folder.join(name).with_extension("socket")).expect("a unit");
        let of_socket = |key: &str| {
            socket
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        };
        let place = of_socket("ListenSequentialPacket").expect("a socket");
        match of_user {
            true => assert!(words.contains(&place), "{name}: {words:?}"),
            false => assert_eq!(Path::new(place), weft_api::paths::Places::shared().socket()),
        }
        let mode = if of_user { "0600" } else { "0666" };
        assert_eq!(of_socket("SocketMode"), Some(mode), "{name}");

        // The machine's own checker, if installed.
        let home = Home::new();
        let unit = home.path().join("weft-broker.service");
        fs::write(unit.with_extension("socket"), &socket).expect("written");
        fs::write(&unit, text.replace("/usr/bin/weft", env!("CARGO_BIN_EXE_weft"))).expect("written");
        let mut judge = Command::new("systemd-analyze");
        judge.args(["verify", "--man=no"]).env("XDG_RUNTIME_DIR", home.path());
        judge.args(of_user.then_some("--user")).arg(&unit);
        judge.arg(unit.with_extension("socket"));
        match judge.output() {
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
            Ok(judged) => assert!(judged.status.success(), "{name}: {}", stderr(&judged)),
        }
    }
}

#[test]
fn exit_codes_are_those_of_the_table() {
    let page = include_str!("../../../docs/configuration.md");
    let table = page.split("\n## Exit codes\n").nth(1).expect("a section");
    let table = table.split("\n## ").next().unwrap_or_default();
    let codes: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(codes, ["0", "1", "2", "3", "73", "75", "124", "126", "127", "128+N"]);
    let home = Home::new();
    let ends = |line: &[&str], code: i32| {
        let done = home.done(line);
        assert_eq!(done.status.code(), Some(code), "{line:?}: {}", stderr(&done));
        assert!(codes.contains(&code.to_string().as_str()), "{code} is in the table");
    };
    ends(&["run", "--", "true"], 0);
    ends(&["run", "--", "sh", "-c", "exit 1"], 1);
    ends(&["set", "--client", "77", "--priority", "idle"], 1);
    ends(&["pause", "77"], 1);
    ends(&["run", "--prioriy", "0", "--", "true"], 2);
    ends(&["set", "--client", "77", "--priority", "hgih"], 2);
    ends(&["wait", "--timeout", "soon", "1"], 2);
    ends(&["run", "--", "/no/such/program"], 127);
    ends(&["run", "--", "/etc/passwd"], 126);
}
