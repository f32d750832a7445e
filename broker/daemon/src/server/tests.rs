// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both halves over a socket in a temporary folder.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::{Attached, Host, Inbox, Incoming, Listener, News};
use weft_protocol::VERSION;
use weft_protocol::control::{Hello, Refusal, ToBroker};
use weft_protocol::lane::{Lane, Mode};
use weft_protocol::latency_budget::LatencyBudget;
use weft_protocol::transport::map::Mapping;
use weft_protocol::transport::wire::Packet;
use weft_protocol::transport::{HANDSHAKE, TimeLimit, TransportError, client, fds};

/// Far more than any step takes; reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

fn hello(priority: u8) -> Hello {
    Hello {
        version: VERSION,
        pid: std::process::id(),
        priority,
        profile: None,
        profiling: false,
        command: "a test".into(),
        budget: LatencyBudget::default(),
        name: None,
    }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("broker.sock");
    (folder, path)
}

/// Lets clients in until there are `count`. On a busy machine a handshake may take too long; its
/// client tries again.
fn let_in(listener: &mut Listener, host: &Arc<Host>, count: usize) -> Vec<Attached> {
    let begin = Instant::now();
    let (welcomed, arrivals) = mpsc::channel();
    let (mut all, mut number) = (Vec::new(), 0);
    while all.len() < count && begin.elapsed() < PATIENCE {
        match listener.accept(Duration::from_millis(50)).expect("accepting goes on") {
            Some(Incoming::Client(pending)) => {
                let (host, welcomed, id) = (host.clone(), welcomed.clone(), number);
                number += 1;
                thread::spawn(move || {
                    let attached = pending.welcome(&host, id, vec![(7, 700)], |lane| {
                        lane.orders.mode.store(Mode::Foreground as u32, Ordering::Release);
                    });
                    // Nobody receives only if the test failed.
                    let _ = welcomed.send(attached);
                });
            }
            Some(Incoming::Question(question)) => question.answer("?").expect("answered"),
            None => {}
        }
        all.extend(arrivals.try_iter().flatten());
    }
    all
}

/// Attaches, again if the broker did not finish the handshake in time.
fn attach(path: &Path) -> client::Attachment {
    let begin = Instant::now();
    loop {
        match client::attach(path, hello(5), PATIENCE) {
            Ok(attached) => return attached,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_attaches_shares_a_lane_talks_and_is_missed() {
    let (_folder, path) = folder();
    let host = Arc::new(Host::make().expect("a host"));
    let mut listener = Listener::bind(&path).expect("bound");
    let mode = std::fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let job = {
        let path = path.clone();
        thread::spawn(move || client::attach(&path, hello(3), PATIENCE).expect("attached"))
    };
    let broker = let_in(&mut listener, &host, 1).pop().expect("one");
    let job = job.join().expect("no panic");
    assert_eq!(broker.hello.priority, 3);
    assert_eq!(broker.pid, Some(std::process::id()));
    assert_eq!(job.costs, [(7, 700)]);

    let lane = Mapping::<Lane>::reserve().expect("a place");
    lane.put(&job.lane).expect("mapped");
    assert_eq!(lane.get().orders.mode.load(Ordering::Acquire), Mode::Foreground as u32);
    lane.get().counters.launches.fetch_add(5, Ordering::Relaxed);
    assert_eq!(broker.lane.counters.launches.load(Ordering::Relaxed), 5);

    rustix::io::write(&job.bell, &1u64.to_ne_bytes()).expect("rung");
    assert!(host.wait(PATIENCE).expect("waited"));
    assert!(!host.wait(Duration::ZERO).expect("waited"));

    job.channel.send(ToBroker::Note("here".into())).expect("sent");
    let note = broker.receiver.next(PATIENCE).expect("received");
    assert_eq!(note, Some(ToBroker::Note("here".into())));
    assert!(!broker.life.left());
    assert!(!job.channel.lost());
    drop(job);
    assert!(broker.life.left());
    assert!(!broker.life.ended(), "the process lives on");
    assert!(matches!(broker.receiver.next(PATIENCE), Err(TransportError::Gone)));
    broker.lane.orders.mode.store(0, Ordering::Relaxed);
}

#[test]
fn a_client_sees_the_broker_go() {
    let (_folder, path) = folder();
    let host = Arc::new(Host::make().expect("a host"));
    let mut listener = Listener::bind(&path).expect("bound");
    let job = {
        let path = path.clone();
        thread::spawn(move || client::attach(&path, hello(3), PATIENCE).expect("attached"))
    };
    let broker = let_in(&mut listener, &host, 1);
    let job = job.join().expect("no panic");
    drop(broker);
    drop(listener);
    assert!(job.channel.lost());
    assert!(matches!(job.channel.receive(), Err(TransportError::Gone)));
    assert!(matches!(
        client::attach(&path, hello(3), PATIENCE),
        Err(TransportError::NoBroker(_))
    ));
}

#[test]
fn three_hundred_clients_at_once_and_a_silent_one() {
    const CLIENTS: usize = 300;
    let (_folder, path) = folder();
    let host = Arc::new(Host::make().expect("a host"));
    let mut listener = Listener::bind(&path).expect("bound");
    // This client connects, remains silent, and must delay no other client.
    let quiet = connect(&path);
    let jobs: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let path = path.clone();
            thread::spawn(move || attach(&path))
        })
        .collect();
    let brokers = let_in(&mut listener, &host, CLIENTS);
    assert_eq!(brokers.len(), CLIENTS);
    let mut inbox = Inbox::make().expect("an inbox");
    let mut lives = Vec::new();
    for broker in brokers {
        inbox.add(broker.client, broker.receiver).expect("added");
        lives.push((broker.life, broker.lane));
    }
    let jobs: Vec<_> = jobs.into_iter().map(|job| job.join().expect("no panic")).collect();
    for job in &jobs {
        job.channel.send(ToBroker::Goodbye).expect("sent");
    }
    drop(jobs);
    let (mut said, mut gone) = (0, 0);
    let begin = Instant::now();
    while gone < CLIENTS && begin.elapsed() < PATIENCE {
        for (_, news) in inbox.wait(Duration::from_millis(50)).expect("waited") {
            match news {
                News::Said(ToBroker::Goodbye) => said += 1,
                News::Gone => gone += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((said, gone), (CLIENTS, CLIENTS));
    assert!(lives.iter().all(|(life, _)| life.left()));
    drop(quiet);
}

#[test]
fn a_live_broker_is_not_replaced_and_a_stale_socket_is() {
    let (_folder, path) = folder();
    let first = Listener::bind(&path).expect("bound");
    assert!(matches!(Listener::bind(&path), Err(TransportError::Taken(_))));
    drop(first);
    assert!(!path.exists(), "a broker that ends takes its socket along");
    // A killed broker leaves a socket at which no process listens.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a stale socket"));
    assert!(path.exists());
    assert!(client::attach(&path, hello(1), PATIENCE).is_err());
    let again = Listener::bind(&path).expect("a stale socket is taken over");
    assert!(again.in_place());
    std::fs::remove_file(&path).expect("removed");
    assert!(!again.in_place());
    drop(again);
    std::fs::write(&path, b"a file").expect("written");
    assert!(matches!(Listener::bind(&path), Err(TransportError::Folder { .. })));
}

#[test]
fn refusals_and_other_versions_are_told_to_the_client() {
    let (_folder, path) = folder();
    let mut listener = Listener::bind(&path).expect("bound");
    let done = Arc::new(AtomicBool::new(false));
    let server = {
        let done = done.clone();
        thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                match listener.accept(Duration::from_millis(20)).expect("accepting goes on") {
                    Some(Incoming::Client(pending)) => {
                        let priority = pending.hello.priority;
                        pending.refuse(Refusal::Priority(priority));
                    }
                    Some(Incoming::Question(question)) => {
                        let long = "weft ".repeat(40_000);
                        assert_eq!(question.text, "status");
                        question.answer(&long).expect("answered");
                    }
                    None => {}
                }
            }
        })
    };
    let refused = client::attach(&path, hello(12), PATIENCE);
    assert!(
        matches!(refused, Err(TransportError::Refused(Refusal::Priority(12)))),
        "{refused:?}"
    );
    let other = hello_of_version(&path, 99);
    assert!(
        matches!(
            other,
            Err(TransportError::Refused(Refusal::Version {
                broker: VERSION,
                client: 99
            }))
        ),
        "{other:?}"
    );
    assert_eq!(
        client::ask(&path, "status", PATIENCE).expect("an answer").len(),
        200_000
    );
    done.store(true, Ordering::Relaxed);
    server.join().expect("no panic");
}

#[test]
fn a_lying_client_blocks_nothing() {
    let (_folder, path) = folder();
    let host = Arc::new(Host::make().expect("a host"));
    let mut listener = Listener::bind(&path).expect("bound");
    // Claims falsely to have connected its channel.
    let liar = lie(&path, hello(4));
    let begin = Instant::now();
    let pending = loop {
        match listener.accept(Duration::from_millis(50)).expect("accepting goes on") {
            Some(Incoming::Client(pending)) => break pending,
            _ => assert!(begin.elapsed() < PATIENCE),
        }
    };
    assert!(matches!(
        pending.welcome(&host, 1, Vec::new(), |_| {}),
        Err(TransportError::Gone)
    ));
    drop(liar);
}

/// A silent connection.
pub(super) fn connect(path: &Path) -> OwnedFd {
    client::reach(path, TimeLimit::new(HANDSHAKE)).expect("connected")
}

/// A hello of another build.
fn hello_of_version(path: &Path, version: u32) -> Result<(), TransportError> {
    use weft_protocol::transport::wire::pack;
    let socket = connect(path);
    let mut bytes = pack(&Packet::Question("of another time".into()))?;
    bytes
        .get_mut(8..12)
        .expect("a header")
        .copy_from_slice(&version.to_le_bytes());
    rustix::net::send(&socket, &bytes, rustix::net::SendFlags::NOSIGNAL).expect("sent");
    let within = Duration::from_secs(30);
    match fds::receive(&socket, "the broker", TimeLimit::new(within))? {
        (Packet::Refused(why), _) => Err(TransportError::Refused(why)),
        other => panic!("{other:?}"),
    }
}

/// A client that claims falsely to have connected its channel.
fn lie(path: &Path, hello: Hello) -> OwnedFd {
    let socket = connect(path);
    let limit = TimeLimit::new(HANDSHAKE);
    fds::send(&socket, &Packet::Hello(hello), &[], limit).expect("sent");
    fds::send(&socket, &Packet::Connected, &[], limit).expect("sent");
    socket
}
