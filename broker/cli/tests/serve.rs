// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft serve`: pages of a real broker and clients that act as the interposer's session.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use common::{Client, Home, PATIENCE, named, text, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use weft_protocol::control::{Hello, ToBroker};

/// The command, and the address that it printed.
struct PageServer {
    child: Child,
    shown: String,
}

impl PageServer {
    fn start(home: &Home, listen: &str) -> PageServer {
        let mut command = home.weft();
        command.args(["serve", "--listen", listen]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("read");
        let shown = line.split(' ').next().unwrap_or_default().to_string();
        PageServer { child, shown }
    }

    fn address(&self) -> SocketAddr {
        let address = self
            .shown
            .strip_prefix("http://")
            .and_then(|rest| rest.strip_suffix('/'));
        address.expect(&self.shown).parse().expect(&self.shown)
    }

    /// The answer to a request for a path under this name of the server.
    fn answer(&self, path: &str, host: &str) -> String {
        let stream = TcpStream::connect(self.address()).expect("connected");
        asked(stream, &format!("GET {path} HTTP/1.1\r\n{host}\r\n"))
    }

    fn page(&self, path: &str) -> String {
        let answer = self.answer(path, "Host: localhost:1\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {answer}");
        for header in [
            "Content-Security-Policy: default-src 'none'; script-src 'self';",
            "no-store",
        ] {
            assert!(head.contains(header), "{path}: {head}");
        }
        body.to_string()
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.page(path)).expect("JSON")
    }

    /// Ends it by a signal. Returns whether it ended well.
    fn ends(mut self, signal: Signal) -> bool {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a pid");
        kill_process(pid, signal).expect("signalled");
        self.child.wait().expect("waited").success()
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn asked(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    answer
}

fn job(priority: u8, name: &str) -> Hello {
    Hello {
        name: Some(name.to_string()),
        ..named(priority, &format!("python {name}.py"))
    }
}

#[test]
fn jobs_come_and_go_on_the_pages_and_their_names_are_text() {
    let home = Home::new();
    let served = PageServer::start(&home, "127.0.0.1:0");
    // Without a broker, and it starts none.
    assert!(
        served.page("/").contains("no broker answers at "),
        "{}",
        served.page("/")
    );
    assert!(served.json("/top.json")["gone"].is_string());
    assert!(served.answer("/report", "Host: [::1]\r\n").starts_with("HTTP/1.1 404 "));
    assert!(!home.socket().exists());

    let mut broker = home.broker(&[]);
    let service = Client::attach(&home.socket(), job(0, "serve"));
    let trap = "<script>alert(1)</script>";
    let training = Client::attach(&home.socket(), job(5, trap));
    until("both are on the page", || {
        let live = served.page("/live");
        live.contains("2 jobs") && live.contains("background") && live.contains(">serve</a>")
    });
    let page = served.page("/");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;</a>"), "{page}");
    assert!(
        !page.contains(trap) && !page.contains("http:") && !page.contains("https:"),
        "{page}"
    );
    assert!(page.contains("src=\"/live.js\"") && served.page("/live.js").contains("fetch(\"/live\""));
    let rows = |json: &Value, list: &str| json[list].as_array().map_or(0, Vec::len);
    assert_eq!(rows(&served.json("/status.json"), "clients"), 2);
    assert_eq!(rows(&served.json("/top.json"), "jobs"), 2);
    assert_eq!(rows(&served.json("/history.json"), "jobs"), 0);
    let report = served.page(&format!("/report/{}", std::process::id()));
    assert!(
        report.contains("<h3>Timeline</h3>") && !report.contains(trap),
        "{report}"
    );

    training.say(ToBroker::Goodbye);
    drop(training);
    until("the one that ended is in the history", || {
        let page = served.page("/history");
        assert!(!page.contains(trap), "{page}");
        page.contains("&lt;script&gt;")
    });
    assert_eq!(served.json("/history.json")["jobs"][0]["name"], trap);
    until("it is below the jobs that run", || {
        let live = served.page("/live");
        live.split_once("<h3>Ended</h3>").is_some_and(|(jobs, ended)| {
            jobs.contains("1 job,") && !jobs.contains("&lt;script&gt;") && ended.contains("&lt;script&gt;")
        })
    });
    // A broker that does not answer: the report of the one that ended is on disk.
    let pid = std::process::id();
    let unknown = |status: &str| {
        let answer = served.answer("/report/1", "Host: localhost\r\n");
        assert!(answer.starts_with(status), "{answer}");
    };
    unknown("HTTP/1.1 404 ");
    broker.signal(Signal::STOP);
    let report = served.page(&format!("/report/{pid}"));
    assert!(
        report.contains("did not answer") && report.contains("1 job"),
        "{report}"
    );
    assert!(report.contains("<a href=\"/\">Now</a>"), "{report}");
    assert!(served.page("/history").contains("&lt;script&gt;"));
    // It may be one that runs.
    unknown("HTTP/1.1 503 ");
    broker.signal(Signal::CONT);
    // The broker ends; the page remains, with the history on disk.
    broker.kill();
    until("the page has the reason", || {
        served.page("/live").contains("trying again")
    });
    assert!(served.page("/report").contains("weft report: 1 job"));
    drop(service);
    assert!(served.ends(Signal::INT));
}

#[test]
fn other_sites_other_users_and_other_methods_are_refused() {
    let home = Home::new();
    let served = PageServer::start(&home, "127.0.0.1:0");
    for ours in ["Host: localhost:9432\r\n", "hOst: 127.0.0.1\r\n", "Host: [::1]:80\r\n"] {
        assert!(served.answer("/", ours).starts_with("HTTP/1.1 200 "), "{ours}");
    }
    for other in [
        "",
        "Host: evil.example\r\n",
        "Host: localhost.evil.example:9432\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
    ] {
        for path in ["/", "/live", "/report", "/status.json", "/nowhere"] {
            let answer = served.answer(path, other);
            assert!(answer.starts_with("HTTP/1.1 421 "), "{other}{path}: {answer}");
        }
    }
    for path in ["/nowhere", "/report/../etc/passwd", "/report/x", "/metrics", "//"] {
        let answer = served.answer(path, "Host: localhost\r\n");
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
    }
    let post = "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let answer = asked(TcpStream::connect(served.address()).expect("connected"), post);
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    // Only root can become another user.
    if rustix::process::geteuid().is_root() {
        let port = served.address().port();
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET / HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n' >&3; cat <&3"
        );
        let other = Command::new("bash").args(["-c", &script]).uid(65_534).output();
        let answer = text(&other.expect("ran").stdout);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
}

#[test]
fn a_unix_socket_is_the_users_own_and_goes_with_the_command() {
    let home = Home::new();
    let path = home.path().join("page.sock");
    let served = PageServer::start(&home, &format!("unix:{}", path.display()));
    let mode = std::fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let stream = UnixStream::connect(&path).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let answer = asked(stream, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(served.ends(Signal::TERM) && !path.exists());
}

#[test]
fn an_address_that_is_wrong_or_taken_is_one_line() {
    let home = Home::new();
    let holder = TcpListener::bind("127.0.0.1:0").expect("bound");
    let taken = holder.local_addr().expect("bound").to_string();
    for (listen, code, part) in [
        ("0.0.0.0:9432", 2, "is not a loopback address"),
        ("localhost", 2, "127.0.0.1:9432, [::1]:9432 or unix:/path"),
        ("off", 2, "127.0.0.1:9432, [::1]:9432 or unix:/path"),
        ("unix:/nowhere/at/all", 1, "unix:/nowhere/at/all"),
        (&taken, 1, "--listen chooses another address"),
        ("unix:page.sock --open", 2, "--open needs a TCP address"),
    ] {
        let words: Vec<&str> = listen.split(' ').collect();
        let done = home.done(&[&["serve", "--listen"], &words[..]].concat());
        let said = text(&done.stderr);
        assert_eq!((done.status.code(), said.lines().count()), (Some(code), 1), "{said}");
        assert!(said.contains(part), "{said}");
    }
}
