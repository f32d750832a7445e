// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of attaching to a real listener, over a socket in a temporary folder.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_daemon::server::{Attached, Host, Incoming, Listener};
use weft_kernel_id::KernelId;
use weft_protocol::control::{Refusal, ToBroker, ToClient};
use weft_protocol::epoch_page::EpochPage;
use weft_protocol::lane::{Mode, Reader};

use super::super::helper;
use super::super::session::Session;
use super::{LONG, attached as played, fake, kernel, launch, until};
use crate::client::clock;
use crate::client::settings::Settings;

const PATIENCE: Duration = Duration::from_nanos(LONG);

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("broker.sock");
    (folder, path)
}

fn session() -> &'static Session {
    let variable = |name: &str| match name {
        "WEFT_PRIORITY" => Some("3".to_string()),
        "WEFT_PROFILE" => Some("resnet".to_string()),
        "WEFT_AUTOSTART" => Some("0".to_string()),
        _ => None,
    };
    let (settings, complaints) = Settings::read(variable, 2);
    assert_eq!(complaints, [""; 0]);
    Box::leak(Box::new(Session::make(fake::driver(), settings).expect("a session")))
}

/// Lets one client in.
fn let_in(listener: &mut Listener, host: &Host) -> Attached {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "nobody came");
        if let Some(Incoming::Client(pending)) = listener.accept(Duration::from_millis(20)).expect("accepting goes on")
        {
            let welcome = pending.welcome(host, 1, vec![(7, 700), (8, 800)], |lane| {
                lane.orders.unknown_cost.store(20_000, Ordering::Relaxed);
                lane.orders.longest_wait.store(LONG, Ordering::Relaxed);
                lane.orders.mode.store(Mode::Background as u32, Ordering::Release);
            });
            return welcome.expect("attached");
        }
    }
}

fn start(session: &'static Session, path: &Path) -> std::thread::JoinHandle<()> {
    let path = path.to_path_buf();
    std::thread::spawn(move || helper::start(session, path))
}

fn next(broker: &Attached) -> ToBroker {
    broker.receiver.next(PATIENCE).expect("received").expect("in time")
}

fn some_kernel(symbol: &str) -> KernelId {
    KernelId {
        module: 1,
        symbol: symbol.into(),
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared: 0,
    }
}

#[test]
fn it_attaches_works_loses_its_broker_goes_on_and_attaches_again() {
    let (_folder, path) = folder();
    let host = Host::make().expect("a host");
    let mut listener = Listener::bind(&path).expect("bound");
    let session = session();
    let starter = start(session, &path);
    let broker = let_in(&mut listener, &host);
    starter.join().expect("no panic");
    assert_eq!(broker.hello.priority, 3);
    assert_eq!(broker.hello.profile.as_deref(), Some("resnet"));
    until("it attaches", || broker.lane.reports.state.load(Ordering::Acquire) == 1);

    // Names went up, costs came down, credit counts.
    let id = some_kernel("axpy");
    session.link.messages.put(ToBroker::Kernel {
        hash: 7,
        id: id.clone(),
    });
    assert_eq!(
        next(&broker),
        ToBroker::Kernel {
            hash: 7,
            id: id.clone()
        }
    );
    assert_eq!(session.link.costs.get(8), Some(800));

    // The device has measured one kernel. The client charges that time, and the broker sees that
    // the client read it.
    let charges = &broker.lane.counters.charges;
    assert_eq!(charges.load(Ordering::Acquire), 0);
    broker.sender.send(ToClient::Costs(vec![(9, 90)])).expect("sent");
    until("it takes the charge in", || charges.load(Ordering::Acquire) == 1);
    assert_eq!(session.link.costs.get(9), Some(90));

    // The costs are another GPU's: none is used any more, nor in sums of graphs.
    let graph = ToBroker::Graph {
        hash: 71,
        kernels: vec![7, 8],
    };
    session.predictions.learn_graph(&session.link, 71, &[7, 8]);
    session.link.messages.put(graph.clone());
    assert_eq!(next(&broker), graph);
    assert_eq!(session.predictions.graph(71), Some(1_500));
    assert_eq!(session.predictions.long(8, 800), 800);
    broker.sender.send(ToClient::MayTake(vec![(8, 90_000)])).expect("sent");
    until("it is told what one may take", || {
        session.predictions.long(8, 800) == 90_000
    });
    assert_eq!(session.predictions.long(7, 700), 700);
    // Under MPS likely times do not apply, whichever message comes first.
    session.predictions.never_switches();
    assert_eq!(session.predictions.long(8, 800), 800);
    session.predictions.know_long(&[(8, 70_000)]);
    assert_eq!(session.predictions.long(8, 800), 800);
    broker.sender.send(ToClient::ForgetCosts).expect("sent");
    until("it forgets", || session.predictions.graph(71) == Some(40_000));
    assert_eq!(session.predictions.long(8, 20_000), 20_000);
    assert_eq!((session.link.costs.get(7), session.link.costs.get(8)), (None, None));
    session.link.costs.set(7, 700);
    broker.lane.orders.credit.fetch_add(1_000, Ordering::AcqRel);
    launch(session, kernel(7, 0xe000));
    assert_eq!(broker.lane.reports.issued.load(Ordering::Acquire), 700);
    assert_eq!(broker.lane.orders.credit.load(Ordering::Acquire), 300);
    let mut reader = Reader::default();
    assert!(reader.next(&broker.lane).is_some());

    // A launch waits without credit when the broker dies. It goes long before its own bound.
    let before = clock::now();
    std::thread::scope(|scope| {
        scope.spawn(|| launch(session, kernel(7, 0xe000)));
        until("it waits", || broker.lane.reports.waiting.load(Ordering::Acquire) == 1);
        drop(broker);
        drop(listener);
    });
    assert!(clock::now() - before < LONG / 2);
    until("it is let go", || {
        session.link.lane.orders.mode.load(Ordering::Acquire) == Mode::Free as u32
    });
    launch(session, kernel(7, 0xe000));

    // A new broker learns all that the old one knew, and the accounts begin at zero.
    session.link.messages.put(ToBroker::Graph {
        hash: 70,
        kernels: vec![7, 8],
    });
    let host = Host::make().expect("a host");
    let mut listener = Listener::bind(&path).expect("bound again");
    let broker = let_in(&mut listener, &host);
    let told = [next(&broker), next(&broker), next(&broker)];
    let second = ToBroker::Graph {
        hash: 70,
        kernels: vec![7, 8],
    };
    for known in [ToBroker::Kernel { hash: 7, id }, graph, second] {
        assert!(told.contains(&known), "{known:?} is not in {told:?}");
    }
    assert!(matches!(next(&broker), ToBroker::Note(_)));
    until("it attaches", || broker.lane.reports.state.load(Ordering::Acquire) == 1);
    assert_eq!(
        session.predictions.graph(70),
        Some(1_500),
        "a graph costs what its kernels do"
    );
    assert_eq!(broker.lane.reports.issued.load(Ordering::Acquire), 0);
    broker.lane.orders.credit.fetch_add(700, Ordering::AcqRel);
    launch(session, kernel(7, 0xe000));
    assert_eq!(broker.lane.reports.issued.load(Ordering::Acquire), 700);
    let epochs: &EpochPage = &host.epoch_page;
    assert_eq!(epochs.sum_above(9), 0);
}

#[test]
fn without_a_broker_the_job_does_not_wait_and_finds_one_later() {
    let (_folder, path) = folder();
    let session = session();
    let before = clock::now();
    helper::start(session, path.clone());
    // No broker, and none to be started: the client knows at once, not after the whole time limit.
    assert!(clock::now() - before < LONG / 2);
    launch(session, kernel(7, 0xe100));
    session.admission.memory_changed(&session.link, 4096, 0);
    let host = Host::make().expect("a host");
    let mut listener = Listener::bind(&path).expect("bound");
    let broker = let_in(&mut listener, &host);
    until("it attaches", || broker.lane.reports.state.load(Ordering::Acquire) == 1);
    assert_eq!(broker.lane.counters.memory.load(Ordering::Relaxed), 4096);
}

#[test]
fn a_refusal_for_good_is_not_asked_about_again() {
    let (_folder, path) = folder();
    let mut listener = Listener::bind(&path).expect("bound");
    let session = session();
    let starter = start(session, &path);
    let mut asked = 0;
    let (mut begin, mut first) = (Instant::now(), true);
    // It looks for a broker at most once a second, counted from the first refusal, however late.
    while begin.elapsed() < if first { PATIENCE } else { Duration::from_millis(2_500) } {
        if let Some(Incoming::Client(pending)) = listener.accept(Duration::from_millis(20)).expect("accepting goes on")
        {
            asked += 1;
            pending.refuse(Refusal::Priority(3));
            if std::mem::take(&mut first) {
                begin = Instant::now();
            }
        }
    }
    starter.join().expect("no panic");
    assert_eq!(asked, 1);
    assert_eq!(session.link.lane.orders.mode.load(Ordering::Relaxed), Mode::Free as u32);
}

#[test]
fn a_played_broker_and_a_real_one_hand_out_the_same_memory() {
    // The other tests play the broker by hand; this test checks their assumptions.
    let (session, broker) = played(Mode::Alone);
    launch(session, kernel(7, 0));
    assert_eq!(broker.lane.counters.launches.load(Ordering::Relaxed), 1);
    assert_eq!(broker.epoch_page.sum_above(9), 0);
}
