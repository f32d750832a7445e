// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lane's ring of records.
#![forbid(unsafe_code)]

use loom::sync::Arc;
use loom::thread;

use super::shared;
use weft_protocol::RECORDS;
use weft_protocol::epoch_page::EpochPage;
use weft_protocol::lane::{Kind, Lane, LaneRecord, Reader};

/// A record whose words all follow from its number, so that a torn record differs from a whole one.
fn record(thread: u32, number: u64) -> LaneRecord {
    let mark = u64::from(thread) * 100 + number;
    LaneRecord {
        kind: Kind::Launch,
        thread,
        at: mark,
        kernel: mark + 10_000,
        a: mark + 20_000,
        b: mark + 30_000,
    }
}

fn whole(found: LaneRecord) -> (u32, u64) {
    let number = found.at - u64::from(found.thread) * 100;
    assert_eq!(found, record(found.thread, number), "a torn record");
    (found.thread, number)
}

fn lane() -> Arc<Lane> {
    shared(Lane::default())
}

fn drain(reader: &mut Reader, lane: &Lane, seen: &mut Vec<(u32, u64)>) {
    while let Some(found) = reader.next(lane) {
        seen.push(whole(found));
    }
}

/// Two threads write while the broker reads: all records come, whole, each thread's in order.
pub fn two_writers() {
    let lane = lane();
    let writers = [1, 2].map(|writer| {
        let lane = Arc::clone(&lane);
        thread::spawn(move || lane.record(record(writer, 0)))
    });
    let (mut reader, mut seen) = (Reader::default(), Vec::new());
    drain(&mut reader, &lane, &mut seen);
    for writer in writers {
        writer.join().expect("a writer ends");
    }
    drain(&mut reader, &lane, &mut seen);
    seen.sort_unstable();
    assert_eq!(seen, [(1, 0), (2, 0)]);
    assert_eq!((reader.lost(), reader.malformed()), (0, 0));
}

/// A thread writes more than the ring holds while the broker reads. The records that come are whole
/// and in order; the rest is counted.
pub fn a_lap() {
    let most = RECORDS as u64 + 1;
    let lane = lane();
    let writer = {
        let lane = Arc::clone(&lane);
        thread::spawn(move || (0..most).for_each(|number| lane.record(record(1, number))))
    };
    let (mut reader, mut seen) = (Reader::default(), Vec::new());
    drain(&mut reader, &lane, &mut seen);
    writer.join().expect("the writer ends");
    drain(&mut reader, &lane, &mut seen);
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(
        seen.len() as u64 + reader.lost(),
        most,
        "{seen:?}, {} lost",
        reader.lost()
    );
    assert_eq!(reader.malformed(), 0);
}

/// A thread loses its core in the middle of a record, and others write a whole lap meanwhile.
pub fn a_lap_over_a_sleeping_writer() {
    let lane = lane();
    let sleeper = {
        let lane = Arc::clone(&lane);
        thread::spawn(move || lane.record(record(1, 0)))
    };
    let other = {
        let lane = Arc::clone(&lane);
        thread::spawn(move || (0..RECORDS as u64).for_each(|number| lane.record(record(2, number))))
    };
    other.join().expect("a writer ends");
    let (mut reader, mut seen) = (Reader::default(), Vec::new());
    drain(&mut reader, &lane, &mut seen);
    sleeper.join().expect("a writer ends");
}

/// The foreground job writes its record, then bumps its launch epoch: a broker that sees the launch
/// epoch finds the record.
pub fn a_epoch_means_a_record() {
    let (lane, epoch_page) = (lane(), shared(EpochPage::default()));
    let foreground = {
        let (lane, epoch_page) = (Arc::clone(&lane), Arc::clone(&epoch_page));
        thread::spawn(move || {
            lane.record(record(1, 0));
            epoch_page.bump(0);
        })
    };
    let epoch = epoch_page.sum_above(1);
    let found = Reader::default().next(&lane).map(whole);
    assert!(epoch == 0 || found == Some((1, 0)), "a launch epoch and no record");
    foreground.join().expect("the foreground job ends");
}

/// The same while a second thread of the foreground job is in the middle of a record.
pub fn a_epoch_means_a_record_of_two_threads() {
    let (lane, epoch_page) = (lane(), shared(EpochPage::default()));
    let foreground_jobs = [1, 2].map(|number| {
        let (lane, epoch_page) = (Arc::clone(&lane), Arc::clone(&epoch_page));
        thread::spawn(move || {
            lane.record(record(number, 0));
            epoch_page.bump(0);
        })
    });
    let epoch = epoch_page.sum_above(1);
    let (mut reader, mut seen) = (Reader::default(), Vec::new());
    drain(&mut reader, &lane, &mut seen);
    assert!(seen.len() as u64 >= epoch, "{epoch} launch epochs and {seen:?}");
    for foreground in foreground_jobs {
        foreground.join().expect("the foreground job ends");
    }
}

/// A client becomes idle between two launches while the broker reads. The idle time comes out once,
/// after the first launch and before the second.
pub fn an_idleness_in_its_place() {
    let lane = lane();
    let client = {
        let lane = Arc::clone(&lane);
        thread::spawn(move || {
            lane.record(record(1, 0));
            lane.become_idle(1);
            lane.record(record(1, 1));
        })
    };
    let (mut reader, mut seen) = (Reader::default(), Vec::new());
    seen.extend(std::iter::from_fn(|| reader.next(&lane)).map(|record| record.kind));
    client.join().expect("the client ends");
    seen.extend(std::iter::from_fn(|| reader.next(&lane)).map(|record| record.kind));
    assert_eq!(seen, [Kind::Launch, Kind::Idle, Kind::Launch]);
    assert_eq!((reader.lost(), reader.malformed()), (0, 0));
}
