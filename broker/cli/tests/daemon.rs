// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the broker as a process, with clients that attach, leave and lie.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Client, Home, PATIENCE, hello, until};
use rustix::process::Signal;
use weft_api::status::Ending;
use weft_protocol::control::{Hello, Refusal, ToBroker};
use weft_protocol::lane::{Kind, Mode};
use weft_protocol::latency_budget::{LatencyBudget, MOST_SLO_NS};
use weft_protocol::transport::TransportError;
use weft_random::Random;

#[test]
fn three_hundred_clients_at_once_all_come_in_and_leave_nothing() {
    const CLIENTS: usize = 300;
    let home = Home::new();
    let mut broker = home.broker(&[]);
    let before = broker.descriptors();
    let threads: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let socket = home.socket();
            std::thread::spawn(move || {
                // Retries a handshake that a busy machine did not finish in time, as a session
                // does.
                for _ in 0..20 {
                    match Client::try_attach(&socket, hello((number % 10) as u8)) {
                        Ok(client) => return client,
                        Err(TransportError::Refused(why)) => panic!("{why}"),
                        Err(_) => std::thread::sleep(Duration::from_millis(20)),
                    }
                }
                panic!("never attached");
            })
        })
        .collect();
    let clients: Vec<Client> = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .collect();
    until("all are attached", || home.status().clients.len() == CLIENTS);
    for client in &clients {
        client.say(ToBroker::Goodbye);
    }
    drop(clients);
    until("all are gone", || home.status().clients.is_empty());
    let status = home.status();
    assert_eq!(status.broker.goodbyes as usize, CLIENTS);
    until("lanes are reclaimed", || broker.lanes() == 0);
    until("descriptors are reclaimed", || broker.descriptors() <= before + 2);
    assert!(broker.alive());
}

/// Not a test: the process that [`killed_clients_leave_nothing`] kills. Acts as a client until
/// then.
#[test]
#[ignore = "a helper process of another test"]
fn helper_client() {
    let Ok(socket) = std::env::var("WEFT_TEST_SOCKET") else {
        return;
    };
    let seed = std::process::id();
    let mut dice = Random::new(u64::from(seed) * 7919 + 1);
    let client = Client::attach(std::path::Path::new(&socket), hello((seed % 10) as u8));
    println!("attached");
    let begin = Instant::now();
    // Bounded, should the test fail and not kill it.
    while begin.elapsed() < PATIENCE {
        match dice.below(6) {
            0..3 => client.launch(dice.below(50), dice.below(1_000_000)),
            3 => client.become_idle(),
            4 => client.come_to_gate(dice.below(50), dice.below(1_000_000)),
            _ => client.say(ToBroker::Note("still here".to_string())),
        }
        std::thread::sleep(Duration::from_micros(dice.below(200)));
    }
}

#[test]
fn killed_clients_leave_nothing() {
    const KILLS: usize = 240;
    const AT_ONCE: usize = 8;
    let home = Home::new();
    let mut broker = home.broker(&[]);
    let steady = Client::attach(&home.socket(), hello(0));
    let before = broker.descriptors();
    let mut dice = Random::new(42);
    let program = std::env::current_exe().expect("this test");
    for _ in 0..KILLS / AT_ONCE {
        let mut children: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                Command::new(&program)
                    .args(["--exact", "helper_client", "--ignored", "--nocapture"])
                    .env("WEFT_TEST_SOCKET", home.socket())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .spawn()
                    .expect("started")
            })
            .collect();
        for (number, child) in children.iter_mut().enumerate() {
            // Half of them at any moment from before the attach on, the others once attached,
            // however long that takes.
            if number % 2 == 0 {
                let said = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
                let attached = said.map_while(Result::ok).any(|line| line.contains("attached"));
                assert!(attached, "a client ended by itself");
            }
            std::thread::sleep(Duration::from_micros(dice.below(12_000)));
            steady.launch(1, 1000);
            child.kill().expect("killed");
        }
        for mut child in children {
            child.wait().expect("waited");
        }
    }
    until("only the steady one is left", || home.status().clients.len() == 1);
    let status = home.status();
    assert!(broker.alive());
    assert_eq!(
        status.broker.detached, 0,
        "a killed client is no liar: {:?}",
        status.broker.last_trouble
    );
    assert_eq!(status.broker.attached, status.broker.vanished + 1);
    assert!(
        status.broker.vanished as usize >= KILLS / 2,
        "half of them were killed after their attach: {}",
        status.broker.vanished
    );
    until("lanes are reclaimed", || broker.lanes() == 1);
    until("descriptors are reclaimed", || broker.descriptors() <= before + 2);
    assert_eq!(status.clients[0].launches as usize, KILLS);
    drop(steady);
}

#[test]
fn lanes_that_lie_are_let_go_and_the_others_go_on() {
    let home = Home::new();
    let mut broker = home.broker(&[]);
    let honest = Client::attach(&home.socket(), hello(2));
    until("it is told its mode", || honest.mode() == Some(Mode::Alone));
    let mut dice = Random::new(7);
    let mut certain = Vec::new();
    for round in 0..40 {
        let liar = Client::attach(&home.socket(), hello((round % 10) as u8));
        match round % 4 {
            0 => liar.lane().magic.store(dice.below(u64::MAX), Ordering::Relaxed),
            1 => liar.lane().version.store(99, Ordering::Relaxed),
            _ => {
                let memory = common_memory(&liar);
                let length = memory.len() as u64;
                // Noise over parts or all of it; the header stays in half of the rounds.
                let from = if round % 8 < 4 { 4096 } else { 0 };
                for _ in 0..20_000 {
                    let at = from + dice.below(length - from);
                    memory[at as usize].store(dice.below(256) as u8, Ordering::Relaxed);
                }
            }
        }
        liar.ring();
        rustix::io::write(&liar.attached.bell, &1u64.to_ne_bytes()).expect("rung");
        honest.launch(round, 1000);
        // A client that hangs up first may be gone before its lane is read.
        if round % 4 < 2 {
            certain.push(liar);
        }
    }
    until("each false header is seen", || {
        home.status().broker.detached >= certain.len() as u64
    });
    drop(certain);
    until("they are gone", || home.status().clients.len() == 1);
    let status = home.status();
    assert!(broker.alive());
    assert_eq!(status.clients[0].launches, 40);
    let new_client = Client::attach(&home.socket(), hello(1));
    until("a new job is served", || {
        matches!(
            new_client.mode(),
            Some(Mode::Foreground | Mode::Background | Mode::Alone)
        )
    });
}

/// A client's whole lane as bytes.
fn common_memory(client: &Client) -> &'static [std::sync::atomic::AtomicU8] {
    let lane = client.lane();
    let length = size_of_val(lane);
    // SAFETY: the lane is mapped for the life of the process, the length is its size, and atomic
    // bytes may be shared with any process.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(lane).cast(), length) }
}

#[test]
fn a_detached_client_is_free_and_told_of() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let liar = Client::attach(&home.socket(), hello(4));
    liar.lane().version.store(99, Ordering::Relaxed);
    until("it is let go", || home.status().broker.detached == 1);
    assert_eq!(liar.mode(), Some(Mode::Free), "nobody waits for a broker that let go");
    let ended = home.status().ended;
    assert_eq!(ended[0].ending, Ending::Detached);
    drop(liar);
    let page = home.done(&["status"]);
    assert!(common::text(&page.stdout).contains("let go"));
}

#[test]
fn a_stale_socket_is_taken_over_and_a_second_broker_says_one_line() {
    let home = Home::new();
    let mut first = home.broker(&[]);
    let second = home.done(&["broker"]);
    assert_eq!(second.status.code(), Some(1));
    assert_eq!(
        common::text(&second.stderr).lines().count(),
        1,
        "{}",
        common::text(&second.stderr)
    );
    assert!(second.stdout.is_empty());
    first.kill();
    assert!(home.socket().exists(), "a killed broker leaves its socket");
    let mut third = home.broker(&[]);
    assert!(third.alive());
}

#[test]
fn a_broker_that_is_killed_and_started_again_takes_its_clients_back() {
    let home = Home::new();
    let mut broker = home.broker(&[]);
    let client = Client::attach(&home.socket(), hello(3));
    client.launch(1, 10);
    assert!(!client.attached.channel.lost());
    broker.kill();
    until("the client sees it", || client.attached.channel.lost());
    // Its memory stays mapped: a launch writes into it and continues.
    client.launch(2, 10);
    assert!(matches!(
        Client::try_attach(&home.socket(), hello(3)),
        Err(TransportError::NoBroker(_))
    ));
    let _again = home.broker(&[]);
    let client = Client::attach(&home.socket(), hello(3));
    client.launch(3, 10);
    until("it is known again", || {
        home.status().clients.iter().any(|known| known.launches == 1)
    });
}

#[test]
fn a_broker_that_is_told_to_end_lets_its_clients_free_first() {
    for by_signal in [true, false] {
        let home = Home::new();
        let mut broker = home.broker(&[]);
        let main = Client::attach(&home.socket(), hello(0));
        let other = Client::attach(&home.socket(), hello(5));
        main.launch(1, 1000);
        until("they have roles", || {
            matches!(main.mode(), Some(Mode::Foreground)) && matches!(other.mode(), Some(Mode::Background))
        });
        let bell = other.lane().orders.bell.load(Ordering::Acquire);
        match by_signal {
            true => broker.terminate(),
            false => assert!(home.done(&["stop"]).status.success()),
        }
        until("it ended", || !broker.alive());
        assert_eq!(broker.child.wait().expect("waited").code(), Some(0));
        assert_eq!(main.mode(), Some(Mode::Free));
        assert_eq!(other.mode(), Some(Mode::Free));
        assert_ne!(
            other.lane().orders.bell.load(Ordering::Acquire),
            bell,
            "who waits is woken"
        );
        assert!(!home.socket().exists());
    }
}

#[test]
fn jobs_that_end_a_moment_before_their_broker_are_recorded_as_ended() {
    const CLIENTS: usize = 200;
    let home = Home::new();
    let mut broker = home.broker(&[]);
    let clients: Vec<Client> = (0..CLIENTS).map(|_| Client::attach(&home.socket(), hello(5))).collect();
    until("all are attached", || home.status().clients.len() == CLIENTS);
    // The broker learns of all ends, and of its own, at once.
    broker.signal(Signal::STOP);
    for client in &clients {
        client.say(ToBroker::Goodbye);
    }
    drop(clients);
    broker.terminate();
    broker.signal(Signal::CONT);
    until("the broker ends", || !broker.alive());
    let history = home.done(&["history", "--json", "--last", "300"]);
    let history: serde_json::Value = serde_json::from_slice(&history.stdout).expect("JSON");
    let jobs = history["jobs"].as_array().expect("jobs");
    let ended = jobs.iter().filter(|job| job["ending"] == "goodbye").count();
    assert_eq!((ended, jobs.len()), (CLIENTS, CLIENTS));
}

#[test]
fn a_broker_with_nobody_left_ends() {
    let home = Home::new();
    let mut broker = home.broker(&["--idle-exit", "1"]);
    let client = Client::attach(&home.socket(), hello(3));
    // Longer than the bound: an attached client keeps the broker.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(broker.alive());
    drop(client);
    until("it ended by itself", || !broker.alive());
    let said = std::fs::read_to_string(home.broker_log()).expect("a log");
    assert!(said.contains("--idle-exit"), "{said}");
}

#[test]
fn a_background_job_is_given_credit_and_a_foreground_job_takes_it_away() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let main = Client::attach(&home.socket(), hello(0));
    let other = Client::attach(&home.socket(), hello(5));
    main.launch(1, 100_000);
    until("they have roles", || {
        matches!(main.mode(), Some(Mode::Foreground)) && matches!(other.mode(), Some(Mode::Background))
    });
    for round in 0..20 {
        main.become_idle();
        other.come_to_gate(2, 50_000);
        until("the background job may go", || other.may_go());
        other.lane().reports.waiting.store(0, Ordering::Release);
        main.launch(1, 100_000);
        assert!(
            !other.may_go() || home.status().clients.len() == 2,
            "round {round}: bound credit is void the moment the foreground job launches"
        );
    }
    let status = home.status();
    let background = &status.clients[1];
    assert_eq!(background.mode, "background");
    assert!(background.granted_ns > 0);
}

#[test]
fn who_waits_without_any_bell_is_found() {
    // A waiting background job whose doorbell is lost (for example because it was killed) must not
    // wait for ever: the broker polls.
    let home = Home::new();
    let _broker = home.broker(&[]);
    let main = Client::attach(&home.socket(), hello(0));
    let other = Client::attach(&home.socket(), hello(5));
    main.launch(1, 1000);
    until("they have roles", || matches!(other.mode(), Some(Mode::Background)));
    main.become_idle();
    let reports = &other.lane().reports;
    reports.wanted_kernel.store(9, Ordering::Relaxed);
    reports.wanted_cost.store(1000, Ordering::Relaxed);
    reports.waiting_since.store(common::now(), Ordering::Relaxed);
    reports.waiting.store(1, Ordering::Release);
    until("it may go", || other.may_go());
}

#[test]
fn no_wake_up_is_lost() {
    // Each round sleeps and wakes the broker. A lost doorbell costs the broker's longest sleep, 0.2
    // s: 1000 of them outlast the patience.
    const ROUNDS: u64 = 1000;
    const COST: u64 = 50_000;
    let home = Home::new();
    let _broker = home.broker(&[]);
    let main = Client::attach(&home.socket(), hello(0));
    let other = Client::attach(&home.socket(), hello(5));
    main.launch(1, 1000);
    until("they have roles", || matches!(other.mode(), Some(Mode::Background)));
    main.become_idle();
    let mut dice = Random::new(3);
    for _ in 0..ROUNDS {
        other.come_to_gate(2, COST);
        until("the background job may go", || other.may_go());
        let lane = other.lane();
        lane.orders.credit.fetch_sub(COST as i64, Ordering::AcqRel);
        lane.reports.issued.fetch_add(COST, Ordering::AcqRel);
        lane.reports.waiting.store(0, Ordering::Release);
        other.record(Kind::Launch, 2, COST, 0);
        lane.reports.completed.fetch_add(COST, Ordering::AcqRel);
        // Some rounds are long enough for the broker to fall asleep.
        std::thread::sleep(Duration::from_micros(dice.below(3_000)));
    }
    let background = home.status().clients.remove(1);
    assert_eq!(background.outstanding_ns, 0);
    let books = background.granted_ns as i64 - background.revoked_ns - background.credit_ns;
    assert_eq!(
        books,
        (ROUNDS * COST) as i64,
        "credit given = taken + taken back + left: {background:?}"
    );
}

#[test]
fn a_priority_can_be_changed_while_a_job_runs() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let one = Client::attach(&home.socket(), hello(2));
    let other = Client::attach(&home.socket(), hello(7));
    one.launch(1, 1000);
    other.launch(1, 1000);
    until("the first holds", || {
        one.mode() == Some(Mode::Foreground) && other.mode() == Some(Mode::Background)
    });
    let number = other.attached.client.to_string();
    assert!(
        home.done(&["set", "--client", &number, "--priority", "0"])
            .status
            .success()
    );
    until("it is told", || other.lane().orders.epoch.load(Ordering::Acquire) == 0);
    other.launch(1, 1000);
    until("the second holds", || {
        other.mode() == Some(Mode::Foreground) && one.mode() == Some(Mode::Background)
    });
    assert_eq!(
        home.done(&["set", "--client", "999", "--priority", "0"]).status.code(),
        Some(1)
    );
}

#[test]
fn what_a_job_may_lose_is_said_as_it_comes_and_while_it_runs() {
    let home = Home::new();
    let _broker = home.broker(&["--slowdown", "3%"]);
    let silent = Client::attach(&home.socket(), hello(5));
    let wild = Client::attach(
        &home.socket(),
        Hello {
            budget: LatencyBudget {
                slowdown: Some(u32::MAX),
                slo: Some(u64::MAX),
                at_least: Some(u32::MAX),
            },
            ..hello(0)
        },
    );
    let told = |client: &Client| {
        let clients = home.status().clients;
        let found = clients.into_iter().find(|row| row.client == client.attached.client);
        let row = found.expect("listed");
        (row.slowdown_allowed, row.slo_ns)
    };
    until("both are known", || {
        home.status().clients.len() == 2 && told(&silent).0.is_some() && told(&wild).0.is_some()
    });
    assert_eq!(told(&silent), (Some(0.03), None), "as the broker is set");
    assert_eq!(told(&wild), (Some(1.0), Some(MOST_SLO_NS)), "clamped");
    let number = wild.attached.client.to_string();
    let set = |options: &[&str]| {
        let output = home.done(&[&["set", "--client", &number], options].concat());
        assert!(output.status.success(), "{options:?}");
    };
    set(&["--slowdown", "0"]);
    until("it is told", || told(&wild) == (Some(0.0), Some(MOST_SLO_NS)));
    set(&["--slo", "50ms", "--priority", "1"]);
    until("what is not said stays", || {
        told(&wild) == (Some(0.0), Some(50_000_000))
    });
    // The core of another device gets the report as well.
    wild.say(ToBroker::Device {
        name: "A GPU".to_string(),
        uuid: "0f".repeat(16),
        memory: 1 << 30,
        driver: 13_000,
        mps: None,
    });
    silent.say(ToBroker::Device {
        name: "A GPU".to_string(),
        uuid: "ab".repeat(16),
        memory: 1 << 30,
        driver: 13_000,
        mps: None,
    });
    until("two devices are known", || home.status().broker.devices.len() == 2);
    assert_eq!(told(&wild), (Some(0.0), Some(50_000_000)));
    assert_eq!(told(&silent), (Some(0.03), None));
    let mut top = home.weft();
    top.args(["top", "-n", "1", "--interval", "0.1"]).env("COLUMNS", "200");
    let page = common::text(&top.output().expect("ran").stdout);
    assert!(page.contains("may lose") && page.contains(" 3 %"), "{page}");
}

#[test]
fn a_wrong_priority_is_refused() {
    let home = Home::new();
    let _broker = home.broker(&[]);
    let refused = Client::try_attach(&home.socket(), hello(10)).err();
    assert!(
        matches!(refused, Some(TransportError::Refused(Refusal::Priority(10)))),
        "{refused:?}"
    );
    assert_eq!(home.status().broker.refused, 1);
}

#[test]
fn a_trace_tells_what_was_seen_and_decided() {
    let home = Home::new();
    let file = home.path().join("trace.jsonl");
    let mut broker = home.broker(&["--trace", file.to_str().expect("text")]);
    let main = Client::attach(&home.socket(), hello(0));
    let other = Client::attach(&home.socket(), hello(5));
    main.launch(0xabc, 1000);
    until("they have roles", || matches!(other.mode(), Some(Mode::Background)));
    main.become_idle();
    other.come_to_gate(2, 50_000);
    until("the background job may go", || other.may_go());
    broker.terminate();
    until("it ended", || !broker.alive());
    let text = std::fs::read_to_string(&file).expect("written");
    let events: Vec<(String, u64)> = text
        .lines()
        .map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            (
                value["event"].as_str().expect("named").to_string(),
                value["client"].as_u64().expect("whose"),
            )
        })
        .collect();
    for expected in ["attached", "mode", "launch", "idle", "grant", "gone"] {
        assert!(
            events.iter().any(|(event, _)| event == expected),
            "no {expected} in\n{text}"
        );
    }
    assert!(text.contains("0000000000000abc"));
}

#[test]
fn a_log_that_nobody_reads_holds_up_nobody() {
    // The log goes into a pipe that is full after some hundred lines.
    let home = Home::new();
    let mut broker = home
        .weft()
        .args(["broker"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    until("it answers", || weft_api::admin::pings(&home.places()));
    let client = Client::attach(&home.socket(), hello(3));
    for number in 0..4000 {
        client.say(ToBroker::Note(format!("line {number} of many that nobody reads")));
    }
    until("all was heard", || {
        home.only_client()
            .notes
            .last()
            .is_some_and(|note| note.starts_with("line 3999"))
    });
    broker.kill().expect("killed");
    broker.wait().expect("waited");
}
