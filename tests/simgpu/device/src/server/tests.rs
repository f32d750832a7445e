// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that lie. Each breaks a rule that every honest client keeps, by way of the lane or the
//! socket. It loses its link, and the other clients do not notice.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weft_random::Random;

use super::{DeviceProcess, prepare};
use crate::link::{connect_to, test_access};
use crate::op::{Ctx, Direction, LinkStream};
use crate::shared::lane::{ANY, SUBMISSIONS};
use crate::shared::mapping::Mapping;
use crate::shared::record::{Record, WORDS};
use crate::wire;
use crate::{Config, Extra, KernelLaunch, Link, LinkError, NoEffects, Op, Options, Seq, Status};

const PATIENCE: Duration = Duration::from_secs(60);

/// A device in a thread, so that the tests see inside.
struct Running {
    directory: tempfile::TempDir,
    device: Option<JoinHandle<std::io::Result<()>>>,
}

impl Running {
    fn new() -> Running {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.device.linger_ms = 50;
        let started = prepare(&directory.path().join("device.sock"), false).unwrap().unwrap();
        let device = std::thread::spawn(move || DeviceProcess::new(config, started)?.run());
        Running {
            directory,
            device: Some(device),
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("device.sock")
    }

    fn open(&self) -> Link {
        let options = Options {
            socket: Some(self.socket()),
            program: Some("/nonexistent".into()),
            name: None,
            ..Options::default()
        };
        Link::open(&options, Arc::new(NoEffects)).unwrap()
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&crate::status(&self.socket()).unwrap()).unwrap()
    }

    fn serves(&self, honest: &Link) {
        let stream = honest.stream(honest.context().unwrap(), 0).unwrap();
        let seq = honest.submit(stream, kernel(1_000), Extra::default()).unwrap();
        assert!(honest.wait(seq, Some(PATIENCE)).unwrap().is_done());
    }

    /// The device must still serve the honest, then end without error. Every other link must have
    /// been dropped.
    fn finish(mut self, honest: Link) {
        self.serves(&honest);
        drop(honest);
        let device = self.device.take().unwrap();
        let end = Instant::now() + PATIENCE;
        while !device.is_finished() {
            assert!(Instant::now() < end, "the device does not end: {:#}", self.status());
            std::thread::sleep(Duration::from_millis(2));
        }
        device.join().unwrap().unwrap();
    }
}

fn kernel(ns: u64) -> Op {
    Op::Kernel(KernelLaunch {
        duration: Some(ns),
        ..KernelLaunch::default()
    })
}

/// Runs a lie and waits until the liar has been cut off.
fn cut_off_for(lie: impl FnOnce(&Link, LinkStream), why: &str) {
    let running = Running::new();
    let honest = running.open();
    let liar = running.open();
    let stream = liar.stream(liar.context().unwrap(), 0).unwrap();
    liar.reserve(1 << 20).unwrap();
    lie(&liar, stream);
    test_access::ask(&liar);
    let end = Instant::now() + PATIENCE;
    let status = loop {
        let status = running.status();
        if status["cut"] == 1 {
            break status;
        }
        assert!(Instant::now() < end, "not cut off: {status:#}");
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(status["last_cut"].as_str().unwrap().ends_with(why), "{status:#}");
    assert_eq!(status["clients"].as_array().unwrap().len(), 1);
    assert_eq!(status["memory"]["used"], 0);
    // A wait fails at once or, if it was in time to see nothing, in bounded time.
    let host = liar.submit(stream, Op::Host, Extra::default());
    assert!(matches!(
        host.and_then(|seq| liar.wait(seq, Some(PATIENCE))),
        Err(LinkError::Lost)
    ));
    running.finish(honest);
}

fn tell(link: &Link, record: Record) {
    assert!(test_access::lane(link).submit(&record.words(0)));
}

#[test]
fn a_record_that_is_none() {
    cut_off_for(
        |link, _| assert!(test_access::lane(link).submit(&[u64::MAX; WORDS])),
        "a record that is none",
    );
}

#[test]
fn work_for_a_stream_that_is_not_there() {
    let record = Record::Submit {
        stream: LinkStream(u32::MAX),
        seq: Seq::new(1, 1),
        op: Op::Marker,
        extra: Extra::default(),
    };
    cut_off_for(|link, _| tell(link, record), "work for no stream");
}

#[test]
fn two_operations_of_one_number() {
    cut_off_for(
        |link, stream| {
            for _ in 0..2 {
                let op = Op::Host;
                tell(
                    link,
                    Record::Submit {
                        stream,
                        seq: Seq::new(5, 5),
                        op,
                        extra: Extra::default(),
                    },
                );
            }
        },
        "an operation numbered wrongly",
    );
}

#[test]
fn an_operation_in_a_slot_that_is_taken() {
    cut_off_for(
        |link, stream| {
            for count in 1..3 {
                let op = Op::Host;
                tell(
                    link,
                    Record::Submit {
                        stream,
                        seq: Seq::new(count, 7),
                        op,
                        extra: Extra::default(),
                    },
                );
            }
        },
        "an operation numbered wrongly",
    );
}

#[test]
fn contexts_and_streams_that_cannot_be() {
    let open = Record::OpenStream {
        ctx: Ctx(99),
        stream: LinkStream(7),
        priority: 0,
    };
    cut_off_for(|link, _| tell(link, open), "a stream of no context");
    cut_off_for(
        |link, _| tell(link, Record::CloseContext(Ctx(99))),
        "a context that cannot be closed",
    );
    cut_off_for(
        |link, _| {
            (1..=300)
                .map(Ctx)
                .for_each(|ctx| tell(link, Record::OpenContext { ctx, priority: 0 }))
        },
        "a context that cannot be opened",
    );
}

#[test]
fn an_index_that_runs_away() {
    cut_off_for(
        |link, _| test_access::lane(link).pretend_submitted(u64::MAX / 2),
        "more records than there is room for",
    );
    cut_off_for(
        // One more than fits; and the ring's contents, all zeroes, are no records either.
        |link, _| test_access::lane(link).pretend_submitted(SUBMISSIONS as u64 + 3),
        "more records than there is room for",
    );
}

#[test]
fn news_that_was_heard_before_it_was_told() {
    cut_off_for(
        |link, stream| {
            test_access::lane(link).pretend_heard(u64::MAX / 2);
            tell(
                link,
                Record::Submit {
                    stream,
                    seq: Seq::new(1, 0),
                    op: Op::Marker,
                    extra: Extra::default(),
                },
            );
            // The news comes when the launch latency is over.
            std::thread::sleep(Duration::from_millis(5));
        },
        "news it does not take",
    );
}

#[test]
fn messages_that_make_no_sense() {
    cut_off_for(
        |link, _| wire::send_bytes(test_access::socket(link), b"{]", &[]).unwrap(),
        "key must be a string at line 1 column 2",
    );
    cut_off_for(
        |link, _| wire::send(test_access::socket(link), &wire::Request::Status, &[]).unwrap(),
        "a request out of place",
    );
}

#[test]
fn waits_for_what_never_was_and_bells_rung_for_nothing_cost_only_the_liar() {
    let running = Running::new();
    let honest = running.open();
    let liar = running.open();
    let lane = test_access::lane(&liar);
    for wanted in [1, ANY, u64::MAX - 1, Seq::new(9, 9).0] {
        lane.begin_waiting(wanted).unwrap();
    }
    lane.refresh.store(u64::MAX, Ordering::SeqCst);
    for _ in 0..1000 {
        test_access::ask(&liar);
    }
    let status = running.status();
    assert_eq!(status["cut"], 0);
    // Nobody real waits: the device goes back to sleep.
    let turns = running.status()["turns"].as_u64().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let woken = running.status()["turns"].as_u64().unwrap() - turns;
    assert!(woken <= 3, "{woken} turns with nothing to do");
    drop(liar);
    running.finish(honest);
}

#[test]
fn stamps_from_past_and_future_count_as_now() {
    let running = Running::new();
    let honest = running.open();
    let liar = running.open();
    let stream = liar.stream(liar.context().unwrap(), 0).unwrap();
    for (count, stamp) in [(1, u64::MAX), (2, 0), (3, u64::MAX / 2)] {
        let record = Record::Submit {
            stream,
            seq: Seq::new(count, count as u16),
            op: kernel(1_000),
            extra: Extra::default(),
        };
        assert!(test_access::lane(&liar).submit(&record.words(stamp)));
    }
    test_access::ask(&liar);
    let end = Instant::now() + PATIENCE;
    while running.status()["ended"] != 3 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(liar);
    running.finish(honest);
}

#[test]
fn absurd_sizes_take_the_liar_s_time_alone() {
    let running = Running::new();
    let honest = running.open();
    let liar = running.open();
    let stream = |priority| liar.stream(liar.context().unwrap(), priority).unwrap();
    for (priority, op) in [
        (i32::MIN, kernel(u64::MAX)),
        (i32::MAX, Op::Memset { bytes: u64::MAX }),
        (
            0,
            Op::Copy {
                direction: Direction::DeviceToHost,
                bytes: u64::MAX,
            },
        ),
        (0, Op::WaitFor(Seq(u64::MAX))),
    ] {
        liar.submit(stream(priority), op, Extra::default()).unwrap();
    }
    assert_eq!(liar.status(Seq(u64::MAX)), Status::LongDone);
    running.serves(&honest);
    drop(liar);
    running.finish(honest);
}

/// Numbers without a seed of their own.
fn noise() -> u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(1);
    Random::new(COUNTER.fetch_add(1, Ordering::Relaxed)).word()
}

#[test]
fn noise_all_over_a_lane_is_survived() {
    let running = Running::new();
    let honest = running.open();
    let stream = honest.stream(honest.context().unwrap(), 0).unwrap();
    for round in 0..30 {
        let liar = running.open();
        let _ = liar.context().and_then(|ctx| liar.stream(ctx, 0));
        test_access::lane(&liar).scribble(|| if round % 2 == 0 { noise() } else { noise() % 12 });
        test_access::ask(&liar);
        let seq = honest.submit(stream, kernel(1_000), Extra::default()).unwrap();
        assert!(honest.wait(seq, Some(PATIENCE)).unwrap().is_done());
        // Records that look like records but are noise inside.
        let liar = running.open();
        for _ in 0..200 {
            let mut words = [0u64; WORDS].map(|_| noise() % 4);
            words[0] = (noise() % 12) | (noise() % 3) << 8 | (noise() % 4) << 32;
            words[1] = noise() % (1 << 20);
            test_access::lane(&liar).submit(&words);
        }
        test_access::ask(&liar);
        let seq = honest.submit(stream, kernel(1_000), Extra::default()).unwrap();
        assert!(honest.wait(seq, Some(PATIENCE)).unwrap().is_done());
    }
    running.finish(honest);
}

#[test]
fn strangers_at_the_door_are_shown_out() {
    let running = Running::new();
    let honest = running.open();
    let talk = |text: &[u8]| -> OwnedFd {
        let socket = connect_to(&running.socket()).unwrap();
        wire::send_bytes(&socket, text, &[]).unwrap();
        socket
    };
    for text in [
        &b"GET / HTTP/1.1"[..],
        b"null",
        b"{}",
        br#"{"Name":{"id":1,"name":"x"}}"#,
    ] {
        let socket = talk(text);
        assert!(
            wire::receive_bytes(&socket).is_ok_and(|answer| answer.is_none()),
            "closed, no answer"
        );
    }
    let socket = talk(br#"{"Attach":{"version":77,"name":"old"}}"#);
    let (answer, _) = wire::receive_bytes(&socket).unwrap().unwrap();
    assert!(String::from_utf8(answer).unwrap().contains("client of version 77"));
    // A client that sends nothing at all blocks no other client.
    let _silent = connect_to(&running.socket()).unwrap();
    let another = running.open();
    drop(another);
    drop(_silent);
    running.finish(honest);
}

#[test]
fn a_lane_of_another_size_is_refused() {
    #[repr(C)]
    struct Small([AtomicU64; 512]);
    // SAFETY: atomics.
    unsafe impl crate::shared::mapping::Shared for Small {}
    let (_small, fd) = Mapping::<Small>::create("small").unwrap();
    assert!(Mapping::<crate::shared::lane::Lane>::of(&fd).is_err());
}
