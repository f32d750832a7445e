// SPDX-License-Identifier: MIT OR Apache-2.0
//! One client and its device: submissions, news, waiting, effects.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{PATIENCE, Place, kernel};
use simgpu_device::{
    Direction, Effects, Extra, KernelLaunch, Link, LinkError, NoEffects, Op, Options, STREAM_DEPTH, Seq, Status, Times,
};

fn times(status: Status) -> Times {
    match status {
        Status::Done(times) => times,
        other => panic!("no times: {other:?}"),
    }
}

/// Effects that only write down.
#[derive(Default)]
struct Notes {
    ended: Mutex<Vec<(u64, Seq, Times)>>,
    reached: Mutex<Vec<(u64, Seq, u64)>>,
}

impl Effects for Notes {
    fn ended(&self, token: u64, seq: Seq, times: Times) {
        self.ended.lock().unwrap().push((token, seq, times));
    }
    fn reached(&self, token: u64, seq: Seq, at: u64) {
        self.reached.lock().unwrap().push((token, seq, at));
    }
}

fn token(token: u64) -> Extra {
    Extra {
        token,
        ..Extra::default()
    }
}

#[test]
fn kernels_of_a_stream_run_one_after_the_other_for_their_time() {
    let place = Place::new();
    let link = place.open();
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    let seqs: Vec<_> = (1..=20)
        .map(|n| link.submit(stream, kernel(n * 10_000), Extra::default()).unwrap())
        .collect();
    let marker = link.submit(stream, Op::Marker, Extra::default()).unwrap();
    let end = times(link.wait(marker, Some(PATIENCE)).unwrap());
    let mut before = 0;
    for (n, seq) in (1..).zip(&seqs) {
        let times = times(link.status(*seq));
        assert!(times.start >= before);
        assert_eq!(times.end - times.start, n * 10_000);
        before = times.end;
    }
    assert_eq!(end.end, before);
    assert!(link.now() >= end.end, "nothing ends in the future");
}

#[test]
fn effects_come_in_the_order_of_the_device() {
    let place = Place::new();
    let notes = Arc::new(Notes::default());
    let link = place.open_with(notes.clone());
    let ctx = link.context().unwrap();
    let (a, b) = (link.stream(ctx, 0).unwrap(), link.stream(ctx, 0).unwrap());
    let slow = link.submit(a, kernel(2_000_000), token(1)).unwrap();
    link.submit(b, Op::WaitFor(slow), token(2)).unwrap();
    let copy = Op::Copy {
        direction: Direction::HostToDevice,
        bytes: 1 << 20,
    };
    link.submit(b, copy, token(3)).unwrap();
    let after = link.submit(b, Op::Memset { bytes: 100 }, token(4)).unwrap();
    link.submit(a, Op::Marker, Extra::default()).unwrap();
    link.wait(after, Some(PATIENCE)).unwrap();
    let ended = notes.ended.lock().unwrap();
    assert_eq!(ended.iter().map(|(token, ..)| *token).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(
        ended
            .windows(2)
            .all(|pair| pair[0].2.end <= pair[1].2.start.max(pair[0].2.end))
    );
    assert!(
        ended[2].2.start >= ended[0].2.end,
        "the copy waited for the other stream"
    );
}

#[test]
fn a_host_operation_stops_its_stream_until_it_is_done() {
    let place = Place::new();
    let notes = Arc::new(Notes::default());
    let link = Arc::new(place.open_with(notes.clone()));
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    link.submit(stream, kernel(1_000_000), Extra::default()).unwrap();
    let host = link.submit(stream, Op::Host, token(7)).unwrap();
    let after = link.submit(stream, kernel(1_000), Extra::default()).unwrap();
    // A helper thread, as a driver has one. Nobody else polls.
    let stop = Arc::new(AtomicBool::new(false));
    let helper = std::thread::spawn({
        let (link, notes, stop) = (link.clone(), notes.clone(), stop.clone());
        move || {
            let mut done = 0;
            while !stop.load(Ordering::SeqCst) {
                link.wait_for_news(Duration::from_millis(200)).unwrap();
                let reached = std::mem::take(&mut *notes.reached.lock().unwrap());
                for (_, seq, _) in reached {
                    std::thread::sleep(Duration::from_millis(5));
                    link.host_done(seq).unwrap();
                    done += 1;
                }
            }
            done
        }
    });
    let end = times(link.wait(after, Some(PATIENCE)).unwrap());
    let host = times(link.status(host));
    stop.store(true, Ordering::SeqCst);
    assert_eq!(helper.join().unwrap(), 1);
    assert!(host.end - host.start >= 5_000_000, "the host took its time: {host:?}");
    assert!(end.start >= host.end);
}

#[test]
fn a_held_kernel_ends_when_it_is_told_to() {
    let place = Place::new();
    let notes = Arc::new(Notes::default());
    let link = place.open_with(notes.clone());
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    let mut launch = simgpu_device::KernelLaunch {
        held: true,
        duration: Some(60_000_000_000),
        ..Default::default()
    };
    let held = link.submit(stream, Op::Kernel(launch), token(1)).unwrap();
    common::eventually("the kernel begins", || {
        link.wait_for_news(Duration::from_millis(50)).unwrap();
        !notes.reached.lock().unwrap().is_empty()
    });
    assert_eq!(link.status(held), Status::Pending);
    link.host_done(held).unwrap();
    let first = times(link.wait(held, Some(PATIENCE)).unwrap());
    assert!(first.end - first.start < 60_000_000_000);
    launch.duration = Some(3_000_000);
    let held = link.submit(stream, Op::Kernel(launch), token(2)).unwrap();
    let second = times(link.wait(held, Some(PATIENCE)).unwrap());
    assert_eq!(second.end - second.start, 3_000_000, "nobody ended it: it gave up");
}

#[test]
fn a_status_is_never_behind_the_time() {
    let place = Place::new();
    let link = place.open();
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    for _ in 0..50 {
        let seq = link.submit(stream, kernel(1_000), Extra::default()).unwrap();
        let due = link.now() + 200_000;
        while link.now() < due {
            std::hint::spin_loop();
        }
        // No thread waits for it, so the device has slept so far.
        assert!(link.status(seq).is_done());
    }
}

/// Another client keeps the device at work, so most questions come in the middle of its turn.
#[test]
fn a_status_is_never_behind_the_time_on_a_busy_device() {
    const QUESTIONS: usize = 3_000;
    let place = Place::new();
    let (link, other) = (place.open(), place.open());
    let end = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let stream = other.stream(other.context().unwrap(), 0).unwrap();
            while !end.load(Ordering::Relaxed) {
                let mut last = Seq::NONE;
                for _ in 0..200 {
                    last = other.submit(stream, Op::Marker, Extra::default()).unwrap();
                }
                other.wait(last, Some(PATIENCE)).unwrap();
            }
        });
        let stream = link.stream(link.context().unwrap(), 0).unwrap();
        let mut stale = Vec::new();
        for _ in 0..QUESTIONS {
            let seq = link.submit(stream, Op::Marker, Extra::default()).unwrap();
            let mut pending_at = 0;
            let times = loop {
                let asked = link.now();
                match link.status(seq) {
                    Status::Pending => pending_at = asked,
                    status => break times(status),
                }
            };
            if times.end < pending_at {
                stale.push(pending_at - times.end);
            }
        }
        end.store(true, Ordering::Relaxed);
        assert!(stale.is_empty(), "answers too old by, ns: {stale:?}");
    });
}

#[test]
fn under_mps_the_more_important_client_goes_first() {
    let place = Place::new();
    let open = |client_priority, notes: &Arc<Notes>| {
        let options = Options {
            variables: vec![("SIMGPU_MODE", "mps".to_owned())],
            client_priority,
            ..place.options()
        };
        Link::open(&options, notes.clone()).unwrap()
    };
    let notes = Arc::new(Notes::default());
    let (background, foreground) = (open(1, &notes), open(0, &Arc::default()));
    let launch = KernelLaunch {
        held: true,
        duration: Some(60_000_000_000),
        ..KernelLaunch::default()
    };
    let stream = background.stream(background.context().unwrap(), 0).unwrap();
    let first = background.submit(stream, Op::Kernel(launch), token(1)).unwrap();
    let second = background.submit(stream, kernel(1_000), Extra::default()).unwrap();
    common::eventually("the background kernel runs", || {
        background.wait_for_news(Duration::from_millis(50)).unwrap();
        !notes.reached.lock().unwrap().is_empty()
    });
    let stream = foreground.stream(foreground.context().unwrap(), 0).unwrap();
    let kernels = [(); 3].map(|()| foreground.submit(stream, kernel(1_000), Extra::default()).unwrap());
    place.status_when(|status| {
        let clients = status["clients"].as_array().unwrap().iter();
        let outstanding = clients.map(|client| client["outstanding"].as_u64().unwrap());
        outstanding.sum::<u64>() == 5
    });
    background.host_done(first).unwrap();
    let second = times(background.wait(second, Some(PATIENCE)).unwrap());
    let first = times(background.status(first));
    let [begin, _, end] = kernels.map(|seq| times(foreground.wait(seq, Some(PATIENCE)).unwrap()));
    assert!(begin.start >= first.end, "what runs is not stopped");
    assert!(second.start >= end.end, "the background job's next kernel is last");
}

#[test]
fn asking_again_and_again_does_not_wake_the_device_each_time() {
    let place = Place::new();
    let link = place.open();
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    let seq = link.submit(stream, kernel(200_000_000), Extra::default()).unwrap();
    assert_eq!(link.status(seq), Status::Pending);
    let turns = place.status()["turns"].as_u64().unwrap();
    for _ in 0..10_000 {
        if link.status(seq).is_done() {
            break;
        }
    }
    let woken = place.status()["turns"].as_u64().unwrap() - turns;
    assert!(woken < 20, "{woken} turns for 10000 questions");
    link.wait(seq, Some(PATIENCE)).unwrap();
}

#[test]
fn submitting_does_not_wake_the_device() {
    let place = Place::new();
    let link = place.open();
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    let first = link.submit(stream, kernel(1_000), Extra::default()).unwrap();
    link.wait(first, Some(PATIENCE)).unwrap();
    let turns = place.status()["turns"].as_u64().unwrap();
    for _ in 0..1000 {
        link.submit(stream, kernel(1_000), Extra::default()).unwrap();
    }
    let woken = place.status()["turns"].as_u64().unwrap() - turns;
    assert!(woken <= 2, "{woken} turns for 1000 submissions");
}

#[test]
fn a_stream_takes_no_more_than_its_depth() {
    let place = Place::new();
    let link = Arc::new(place.open());
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    let gate = link.submit(stream, Op::Host, token(1)).unwrap();
    let submitted = Arc::new(AtomicU64::new(0));
    let submitter = std::thread::spawn({
        let (link, submitted) = (link.clone(), submitted.clone());
        move || {
            let mut last = gate;
            for _ in 0..5_000 {
                last = link.submit(stream, kernel(100), Extra::default()).unwrap();
                submitted.fetch_add(1, Ordering::SeqCst);
            }
            last
        }
    });
    common::eventually("the stream is full", || {
        submitted.load(Ordering::SeqCst) == STREAM_DEPTH - 1
    });
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(submitted.load(Ordering::SeqCst), STREAM_DEPTH - 1);
    // Another stream is not held up by it.
    let other = link.stream(link.context().unwrap(), 0).unwrap();
    let free = link.submit(other, kernel(100), Extra::default()).unwrap();
    link.wait(free, Some(PATIENCE)).unwrap();
    link.host_done(gate).unwrap();
    let last = submitter.join().unwrap();
    link.wait(last, Some(PATIENCE)).unwrap();
    assert_eq!(place.status()["ended"], 5_002);
}

#[test]
fn a_hundred_thousand_kernels_all_end_in_order() {
    let place = Place::new();
    let notes = Arc::new(Notes::default());
    let link = place.open_with(notes.clone());
    let ctx = link.context().unwrap();
    let streams: Vec<_> = (0..4).map(|_| link.stream(ctx, 0).unwrap()).collect();
    const COUNT: u64 = 100_000;
    let mut last = Vec::new();
    for n in 0..COUNT {
        let stream = streams[n as usize % 4];
        last.push(link.submit(stream, kernel(200), token(n + 1)).unwrap());
        if last.len() > 4 {
            last.remove(0);
        }
    }
    for seq in last {
        link.wait(seq, Some(PATIENCE)).unwrap();
    }
    let ended = notes.ended.lock().unwrap();
    assert_eq!(ended.len() as u64, COUNT);
    for stream in 0..4 {
        let tokens = ended
            .iter()
            .map(|(token, ..)| *token)
            .filter(|token| token % 4 == stream);
        assert!(tokens.is_sorted());
    }
    assert!(ended.iter().map(|(.., times)| times.end).is_sorted());
}

#[test]
fn a_wait_that_lasts_too_long_ends() {
    let place = Place::new();
    let link = place.open();
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    let host = link.submit(stream, Op::Host, Extra::default()).unwrap();
    assert!(matches!(
        link.wait(host, Some(Duration::from_millis(20))),
        Err(LinkError::TimedOut)
    ));
    link.host_done(host).unwrap();
    link.wait(host, Some(PATIENCE)).unwrap();
}

#[test]
fn closing_a_context_ends_its_work_and_gives_its_memory_back() {
    let place = Place::new();
    let notes = Arc::new(Notes::default());
    let link = place.open_with(notes.clone());
    let (keep, drop) = (link.context().unwrap(), link.context().unwrap());
    let free = link.memory().0;
    let (kept, dropped) = (link.stream(keep, 0).unwrap(), link.stream(drop, 0).unwrap());
    let endless = link.submit(dropped, kernel(u64::MAX / 2), token(1)).unwrap();
    let behind = link.submit(dropped, Op::Marker, token(2)).unwrap();
    let waiting = link.submit(kept, Op::WaitFor(behind), token(3)).unwrap();
    link.close_context(drop).unwrap();
    link.wait(waiting, Some(PATIENCE)).unwrap();
    assert!(link.status(endless).is_done());
    assert_eq!(notes.ended.lock().unwrap().len(), 3);
    assert!(link.memory().0 > free);
    assert!(matches!(
        link.submit(dropped, Op::Marker, Extra::default()),
        Err(LinkError::Unknown)
    ));
    assert!(matches!(link.stream(drop, 0), Err(LinkError::Unknown)));
}

#[test]
fn many_threads_share_a_link() {
    let place = Place::new();
    let notes = Arc::new(Notes::default());
    let link = Arc::new(place.open_with(notes.clone()));
    let ctx = link.context().unwrap();
    // More than can announce themselves to the device.
    std::thread::scope(|scope| {
        for thread in 0..100u64 {
            let link = link.clone();
            scope.spawn(move || {
                let stream = link.stream(ctx, 0).unwrap();
                for n in 0..20 {
                    let seq = link.submit(stream, kernel(20_000), token(1 + thread * 20 + n)).unwrap();
                    assert!(link.wait(seq, Some(PATIENCE)).unwrap().is_done());
                }
                link.close_stream(stream).unwrap();
            });
        }
    });
    assert_eq!(notes.ended.lock().unwrap().len(), 2_000);
    place.status_when(|status| status["clients"][0]["streams"] == 0);
}

/// An effect that uses the link it belongs to.
#[derive(Default)]
struct Nosy {
    link: Mutex<Option<Arc<simgpu_device::Link>>>,
    answers: Mutex<Vec<String>>,
}

impl Effects for Nosy {
    fn ended(&self, _: u64, seq: Seq, _: Times) {
        let link = self.link.lock().unwrap();
        let link = link.as_ref().unwrap();
        link.poll();
        let answers = [
            format!("{:?}", link.status(seq)),
            format!("{:?}", link.wait(seq, None)),
            format!("{:?}", link.wait_for_news(Duration::ZERO)),
        ];
        self.answers.lock().unwrap().extend(answers);
    }
    fn reached(&self, _: u64, _: Seq, _: u64) {}
}

#[test]
fn an_effect_that_would_wait_for_itself_is_refused() {
    let place = Place::new();
    let nosy = Arc::new(Nosy::default());
    let link = Arc::new(place.open_with(nosy.clone()));
    *nosy.link.lock().unwrap() = Some(link.clone());
    let stream = link.stream(link.context().unwrap(), 0).unwrap();
    let seq = link.submit(stream, kernel(1), token(1)).unwrap();
    link.wait(seq, Some(PATIENCE)).unwrap();
    let answers = nosy.answers.lock().unwrap().clone();
    assert_eq!(answers, ["Pending", "Err(Reentrant)", "Err(Reentrant)"]);
    *nosy.link.lock().unwrap() = None;
}

#[test]
fn events_gaps_and_waits_take_the_time_that_the_configuration_says() {
    let place = Place::new();
    let file = place.directory.path().join("config.toml");
    let text = "device.launch_latency_ns = 0\ndevice.kernel_gap_ns = 1000000\n\
                device.timed_record_ns = 3000000\ndevice.untimed_record_ns = 500000\n\
                device.wait_return_ns = 20000000\n";
    std::fs::write(&file, text).unwrap();
    let options = Options {
        variables: vec![("SIMGPU_CONFIG", file.to_str().unwrap().to_owned())],
        ..place.options()
    };
    let link = Link::open(&options, Arc::new(NoEffects)).unwrap();
    let context = link.context().unwrap();
    let stream = link.stream(context, 0).unwrap();
    // Behind a host operation: all of it is there when the first begins.
    let gate = link.submit(stream, Op::Host, Extra::default()).unwrap();
    let ops = [
        kernel(100_000),
        kernel(100_000),
        Op::Record { timed: true },
        Op::Record { timed: false },
        Op::Marker,
        kernel(100_000),
    ];
    let ops = ops.map(|op| link.submit(stream, op, Extra::default()).unwrap());
    link.host_done(gate).unwrap();
    let last = times(link.wait(ops[5], Some(PATIENCE)).unwrap());
    let returned = link.now();
    assert!(returned >= last.end + 20_000_000, "{returned}: {last:?}");
    let times = ops.map(|op| times(link.status(op)));
    assert_eq!(times[1].start, times[0].end + 1_000_000);
    assert_eq!((times[2].start, times[2].end), (times[1].end, times[1].end + 3_000_000));
    assert_eq!(times[3].end, times[2].end + 500_000);
    assert_eq!(times[4].start, times[4].end);
    assert_eq!(times[5].start, times[4].end + 1_000_000);
}
