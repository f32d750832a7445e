// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft top`: its screen on a terminal, its plain pages and its JSON; names of jobs.

mod common;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use common::{Client, Home, hello, text, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use weft_protocol::control::{Hello, ToBroker};

/// Left and entered by programs that take the whole screen.
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

fn named(priority: u8, name: Option<&str>, command: &str) -> Hello {
    Hello {
        name: name.map(str::to_string),
        command: command.to_string(),
        ..hello(priority)
    }
}

/// A command on a terminal of its own.
struct OnTerminal {
    child: Child,
    terminal: std::fs::File,
    shown: Arc<Mutex<Vec<u8>>>,
    closed: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl OnTerminal {
    fn start(mut command: Command, columns: u16, rows: u16) -> OnTerminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = openpt(flags).expect("a terminal");
        grantpt(&terminal).expect("granted");
        unlockpt(&terminal).expect("unlocked");
        let name = ptsname(&terminal, Vec::new()).expect("its name");
        let name = name.into_string().expect("text");
        let size = rustix::termios::Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&terminal, size).expect("sized");
        let inner = || {
            let file = std::fs::File::options().read(true).write(true).open(&name);
            Stdio::from(file.expect("opened"))
        };
        // A session of its own: the test's terminal, if any, is not the command's.
        command.stdin(inner()).stdout(inner()).stderr(inner());
        command.env("TERM", "xterm-256color");
        let its = std::fs::File::options().read(true).write(true).open(&name);
        new_session(&mut command, its.expect("opened"));
        let child = command.spawn().expect("started");
        drop(command);
        let terminal = std::fs::File::from(terminal);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, into) = (terminal.try_clone().expect("cloned"), Arc::clone(&shown));
        let closed = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&closed);
        let reads = move || {
            let mut some = [0; 4096];
            while !stop.load(Ordering::Relaxed) {
                let mut looked = [PollFd::new(&reader, PollFlags::IN)];
                let soon = Timespec {
                    tv_sec: 0,
                    tv_nsec: 10_000_000,
                };
                if poll(&mut looked, Some(&soon)) == Ok(0) {
                    continue;
                }
                // Ends with an error once the command has ended.
                let Ok(count @ 1..) = reader.read(&mut some) else {
                    return;
                };
                into.lock().expect("no panic").extend_from_slice(&some[..count]);
            }
        };
        let reader = Some(std::thread::spawn(reads));
        OnTerminal {
            child,
            terminal,
            shown,
            closed,
            reader,
        }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned()
    }

    /// A word: blanks are skipped, not written.
    fn shows(&self, word: &str) {
        until(word, || self.shown().contains(word));
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).expect("typed");
    }

    /// Closes the terminal's other end, as a window that is closed does.
    fn hang_up(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        self.reader.take().expect("one").join().expect("no panic");
        self.terminal = std::fs::File::open("/dev/null").expect("there");
    }

    /// Whether the terminal is as before: it echoes and waits for lines.
    fn is_cooked(&self) -> bool {
        use rustix::termios::LocalModes;
        let modes = rustix::termios::tcgetattr(self.terminal.as_fd()).expect("its modes");
        modes.local_modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    fn end(&mut self) -> Option<i32> {
        let mut status = None;
        until("it ends", || {
            status = self.child.try_wait().expect("asked");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[allow(unsafe_code)]
fn new_session(command: &mut Command, terminal: std::fs::File) {
    use std::os::unix::process::CommandExt;
    let lead = move || {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(&terminal)?;
        Ok(())
    };
    // SAFETY: between fork and exec it makes two system calls and allocates nothing.
    unsafe { command.pre_exec(lead) };
}

#[test]
fn a_screen_of_60_columns_shows_jobs_takes_keys_and_is_left_clean() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let service = Client::attach(
        &home.socket(),
        named(3, Some("nightly"), "python -u /x/train.py --lr 3"),
    );
    service.on_a_device();
    let mut command = home.weft();
    command.args(["top", "--interval", "0.1"]);
    let mut screen = OnTerminal::start(command, 60, 24);
    screen.shows(ENTER);
    screen.shows("nightly");
    screen.shows("(0f0f0f0f)");
    assert!(!screen.is_cooked());
    screen.press("+");
    until("its priority is raised", || home.only_client().priority == 2);
    screen.press("--");
    until("its priority is lowered", || home.only_client().priority == 4);
    screen.press("d");
    screen.shows("/x/train.py");
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
    until("the screen is left", || screen.shown().contains(LEAVE));
    assert!(screen.is_cooked());
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let mut command = home.weft();
    command.arg("top");
    let mut screen = OnTerminal::start(command, 80, 24);
    screen.shows("attached");
    let pid = rustix::process::Pid::from_raw(screen.child.id() as i32).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    assert_eq!(screen.end(), Some(128 + 15));
    until("the screen is left", || screen.shown().contains(LEAVE));
    assert!(screen.is_cooked());
}

#[test]
fn a_terminal_that_is_closed_ends_it() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let mut command = home.weft();
    command.arg("top");
    let mut screen = OnTerminal::start(command, 80, 24);
    screen.shows("attached");
    screen.hang_up();
    assert!(screen.end().is_some());
}

#[test]
fn a_broker_that_goes_is_said_and_another_is_found() {
    let home = Home::new();
    let mut broker = home.broker(&[]);
    let mut command = home.weft();
    command.args(["top", "--interval", "0.1"]).env("NO_COLOR", "1");
    let mut screen = OnTerminal::start(command, 100, 24);
    screen.shows("attached");
    broker.kill();
    screen.shows("again");
    let second = home.broker(&[]);
    // The screen shows only the characters that differ from the first broker's.
    let _client = Client::attach(&home.socket(), named(3, Some("another-broker-s-job"), "x"));
    screen.shows("another-broker-s-job");
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
    for colour in ["\u{1b}[32m", "\u{1b}[38;5;2m", "\u{1b}[33m", "\u{1b}[38;5;3m"] {
        assert!(!screen.shown().contains(colour), "NO_COLOR is set");
    }
    drop(second);
}

#[test]
fn a_plain_page_is_as_wide_as_it_is_told() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let client = Client::attach(&home.socket(), named(3, None, "python -u /x/train.py --lr 3"));
    client.on_a_device();
    home.only_client();
    let widths = |columns: Option<&str>| {
        let mut command = home.weft();
        command.args(["top", "--once", "--interval", "0.1"]);
        if let Some(columns) = columns {
            command.env("COLUMNS", columns);
        }
        let page = text(&command.output().expect("ran").stdout);
        assert!(
            page.contains("policy weft, 1 job,") && page.contains("train.py"),
            "{page}"
        );
        assert!(!page.contains('\u{1b}'), "{page}");
        page.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    };
    assert!(widths(None) <= 80);
    assert!(widths(Some("60")) <= 60);
    assert!((80..=200).contains(&widths(Some("200"))));
    let told = text(&home.done(&["top", "-n", "2", "-i", "0.1"]).stdout);
    assert_eq!(told.matches("policy weft, 1 job,").count(), 2);
    let nobody = Home::new();
    assert_eq!(nobody.done(&["top", "--once"]).status.code(), Some(1));
}

#[test]
fn json_has_a_line_each_look() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let client = Client::attach(&home.socket(), named(3, Some("nightly"), "x"));
    client.on_a_device();
    home.only_client();
    let done = home.done(&["top", "--json", "-n", "2", "-i", "0.1"]);
    let lines: Vec<serde_json::Value> = text(&done.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 2);
    let once = home.done(&["top", "--json", "--once", "-i", "0.1"]);
    assert_eq!(text(&once.stdout).lines().count(), 1);
    for line in &lines {
        for field in documented("## `weft top --json`", "| field of a line |") {
            assert!(line.get(&field).is_some(), "{field} is not in {line}");
        }
        for field in documented("## `weft top --json`", "| field of a line's `devices` |") {
            assert!(line["devices"][0].get(&field).is_some(), "{field} is not in {line}");
        }
        for field in documented("## `weft top --json`", "| field of a line's `jobs` |") {
            assert!(line["jobs"][0].get(&field).is_some(), "{field} is not in {line}");
        }
        assert_eq!(
            (&line["schema"], &line["jobs"][0]["name"]),
            (&1.into(), &"nightly".into())
        );
    }
}

/// The fields of a table of docs/json.md: the words in backticks of its first column.
fn documented(section: &str, table: &str) -> Vec<String> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let page = std::fs::read_to_string(file).expect("the page");
    let (_, rest) = page.split_once(section).expect("the section");
    let (_, rest) = rest.split_once(table).expect("the table");
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    let fields: Vec<String> = rows
        .flat_map(|row| row.split('|').nth(1).expect("a column").split('`').skip(1).step_by(2))
        .map(str::to_string)
        .collect();
    assert!(fields.len() > 2, "{table}: {fields:?}");
    fields
}

#[test]
fn status_has_every_documented_field() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let gone = Client::attach(&home.socket(), hello(4));
    gone.say(ToBroker::Goodbye);
    drop(gone);
    until("it has ended", || home.status().ended.len() == 1);
    let client = Client::attach(&home.socket(), hello(3));
    client.on_a_device();
    until("the device is known", || {
        let devices = home.status().broker.devices;
        devices.iter().any(|device| device.memory == Some(16 << 30))
    });
    until("it has an outcome", || home.only_client().outcome.is_some());
    let status = home.done(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(status["schema"], 1);
    let section = "## `weft status --json`";
    let device = status["broker"]["devices"].as_array().expect("devices").iter();
    let device = device.clone().find(|device| device["memory"].is_u64()).expect("known");
    assert_eq!(
        (&device["name"], &device["uuid"]),
        (&"A GPU".into(), &"0f".repeat(16).into())
    );
    let clients = "| field of `clients` and `last` |";
    for (object, table) in [
        (&status["broker"], "| field of `broker` |"),
        (device, "| field of `devices` |"),
        (&status["clients"][0], clients),
        (&status["ended"][0]["last"], clients),
    ] {
        for field in documented(section, table) {
            assert!(object.get(&field).is_some(), "{field} of {table} is not in {object}");
        }
    }
    for field in ["ending", "ago_s"] {
        assert!(status["ended"][0].get(field).is_some(), "{field}");
    }
    // The outcome's own page.
    let outcomes = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/outcomes.md");
    let outcomes = std::fs::read_to_string(outcomes).expect("the page");
    let (_, fields) = outcomes.split_once("## Fields").expect("the section");
    let fields = fields.lines().filter(|line| line.starts_with("| `"));
    let names: Vec<&str> = fields
        .flat_map(|row| row.split('|').nth(1).expect("a column").split('`').skip(1).step_by(2))
        .collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let outcome = &status["clients"][0]["outcome"];
        // A field of an object that is null cannot be checked.
        let first = name.split('.').next().expect("one");
        assert!(outcome.get(first).is_some(), "{name} is not in {outcome}");
    }
}

#[test]
fn queue_has_every_documented_field_and_names_jobs() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let queue = || {
        let queue = home.done(&["queue", "--json"]);
        serde_json::from_slice::<serde_json::Value>(&queue.stdout).expect("JSON")
    };
    let rows = |kind: &str| queue()[kind].as_array().map_or(0, Vec::len);
    let once = Client::attach(&home.socket(), named(5, None, "python once.py"));
    once.wants(None);
    until("it has memory", || rows("running") == 1);
    once.lane().counters.memory_peak.store(1 << 30, Ordering::Relaxed);
    once.say(ToBroker::Goodbye);
    drop(once);
    until("what it took is known", || rows("learnt") == 1);
    let runs = Client::attach(&home.socket(), named(5, Some("nightly"), "python a.py"));
    runs.wants(Some(12 << 30));
    until("it has memory", || rows("running") == 1);
    let waits = Client::attach(&home.socket(), named(6, None, "python train.py --lr 3"));
    waits.wants(Some(8 << 30));
    until("it waits", || rows("waiting") == 1);
    let queue = queue();
    assert_eq!(queue["schema"], 1);
    let section = "## `weft queue --json`";
    for (object, tables) in [
        (&queue, &["| field of the queue |"][..]),
        (&queue["devices"][0], &["| field of the queue's `devices` |"]),
        (
            &queue["running"][0],
            &["| field of `running` and `waiting` |", "| field of only `running` |"],
        ),
        (
            &queue["waiting"][0],
            &["| field of `running` and `waiting` |", "| field of only `waiting` |"],
        ),
        (&queue["learnt"][0], &["| field of `learnt` |"]),
    ] {
        for field in tables.iter().flat_map(|table| documented(section, table)) {
            assert!(object.get(&field).is_some(), "{field} is not in {object}");
        }
    }
    let name = |kind: &str| queue[kind][0]["name"].clone();
    assert_eq!(
        (name("running"), name("waiting"), name("learnt")),
        ("nightly".into(), "train.py".into(), "once.py".into())
    );
    let page = text(
        &home
            .weft()
            .args(["queue"])
            .env("COLUMNS", "60")
            .output()
            .expect("ran")
            .stdout,
    );
    assert!(
        ["nightly", "train.py", "once.py"]
            .iter()
            .all(|name| page.contains(name)),
        "{page}"
    );
    assert!(page.lines().all(|line| line.chars().count() <= 60), "{page}");
}

#[test]
fn jobs_have_names() {
    let home = Home::new();
    let broker = home.broker(&[]);
    let clients = [
        Client::attach(&home.socket(), named(3, Some("nightly"), "python a.py")),
        Client::attach(&home.socket(), named(4, Some("nightly"), "python b.py")),
        Client::attach(&home.socket(), named(5, None, "/venv/bin/python -u /x/train.py --lr 3")),
        Client::attach(&home.socket(), named(6, Some(&"ugly\u{1b}[2J".repeat(99)), "x")),
    ];
    until("all are listed", || home.status().clients.len() == clients.len());
    let names: Vec<String> = home.status().clients.into_iter().map(|client| client.name).collect();
    assert_eq!(names[..3], ["nightly", "nightly", "train.py"]);
    assert!(names[3].starts_with("ugly [2J") && names[3].len() == 64, "{}", names[3]);
    let page = text(&home.done(&["status"]).stdout);
    assert!(page.contains("nightly") && page.contains("train.py"), "{page}");
    // All processes of the job, and no other.
    assert!(
        home.done(&["set", "--job", "nightly", "--priority", "8"])
            .status
            .success()
    );
    let priorities = || {
        let mut rows: Vec<_> = home
            .status()
            .clients
            .iter()
            .map(|row| (row.client, row.priority))
            .collect();
        rows.sort_unstable();
        rows
    };
    assert_eq!(priorities(), [(1, 8), (2, 8), (3, 5), (4, 6)]);
    let nobody = home.done(&["set", "--job", "daily", "--priority", "8"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).contains("job daily is not attached"), "{nobody:?}");
    drop(clients);
    broker.terminate();
    until("all are kept", || {
        let kept = home.done(&["history", "--json"]);
        let kept: serde_json::Value = serde_json::from_slice(&kept.stdout).expect("JSON");
        let names = kept["jobs"]
            .as_array()
            .map(|jobs| jobs.iter().filter(|job| job["name"] == "nightly").count());
        names == Some(2)
    });
    assert!(text(&home.done(&["history"]).stdout).contains("train.py"));
}

#[test]
fn a_job_is_handed_its_name() {
    let home = Home::new();
    let told = |options: &[&str], variable: Option<&str>| {
        let mut command = home.weft();
        command
            .arg("run")
            .args(options)
            .args(["--", "sh", "-c", "echo \"$WEFT_NAME\""]);
        if let Some(value) = variable {
            command.env("WEFT_NAME", value);
        }
        text(&command.output().expect("ran").stdout)
    };
    assert_eq!(told(&[], None), "\n");
    assert_eq!(told(&["--name", "resnet prod"], Some("other")), "resnet prod\n");
    assert_eq!(told(&[], Some("other")), "other\n");
    for wrong in ["", "a\nb"] {
        let done = home.done(&["run", "--name", wrong, "--", "true"]);
        assert_eq!((done.status.code(), text(&done.stderr).lines().count()), (Some(2), 1));
    }
}
