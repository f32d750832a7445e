// SPDX-License-Identifier: MIT OR Apache-2.0
//! The credit word between the broker and the threads of a background job.
#![forbid(unsafe_code)]

use loom::sync::Arc;
use loom::thread;

use super::shared;
use weft_protocol::atomic::{AtomicU32, Ordering};
use weft_protocol::credit::RunAheadWindow;
use weft_protocol::epoch_page::EpochPage;
use weft_protocol::lane::Lane;

/// The background job's priority; the foreground job's is above.
const PRIORITY: usize = 1;

fn lane_and_epoch_page() -> (Arc<Lane>, Arc<EpochPage>) {
    let lane = Lane::default();
    lane.orders.epoch.store(PRIORITY as u32, Ordering::Relaxed);
    (shared(lane), shared(EpochPage::default()))
}

/// A client's launch under credit, reduced to its accounts: credit taken, then reported as issued.
fn launch(lane: &Lane, epoch_page: &EpochPage, cost: i64) -> i64 {
    if !lane.orders.take(epoch_page, cost) {
        return 0;
    }
    lane.reports.issued.fetch_add(cost as u64, Ordering::AcqRel);
    cost
}

/// The broker gives, takes back, and gives under other launch epochs. One thread takes credit,
/// another takes credit that does not exist. No credit is lost or made, and all credit reported as
/// issued was taken before.
pub fn conserved() {
    let (lane, epoch_page) = lane_and_epoch_page();
    assert_eq!(lane.orders.grant(3, Some(0)), 0);
    let consumer = {
        let (lane, epoch_page) = (Arc::clone(&lane), Arc::clone(&epoch_page));
        thread::spawn(move || launch(&lane, &epoch_page, 2))
    };
    let overdrawer = {
        let lane = Arc::clone(&lane);
        thread::spawn(move || {
            lane.orders.overdraw(1);
            lane.reports.issued.fetch_add(1, Ordering::AcqRel);
            1
        })
    };
    let told = lane.reports.issued.load(Ordering::Acquire) as i64;
    let mut back = lane.orders.take_back();
    assert!(3 - back >= told, "{told} told, {back} of 3 came back");
    let mut given = 3 + 2;
    back += lane.orders.grant(2, None);
    let told = lane.reports.issued.load(Ordering::Acquire) as i64;
    back += lane.orders.grant(1, Some(0));
    given += 1;
    assert!(given - back >= told, "{told} told of {given} given, {back} came back");
    let taken = consumer.join().expect("it ends") + overdrawer.join().expect("it ends");
    let word = lane.orders.take_back();
    assert_eq!(
        given,
        taken + back + word,
        "{taken} taken, {back} back, {word} in the word"
    );
    assert_eq!(lane.reports.issued.load(Ordering::Relaxed) as i64, taken);
}

/// Two threads find the same end of work under a run-ahead window. One of them launches on the
/// credit that came back, and the broker takes back the rest. The credit came back once, and no
/// other credit is lost or made.
pub fn renewed_once() {
    let (lane, epoch_page) = lane_and_epoch_page();
    lane.orders.set_window(Some(RunAheadWindow {
        safe_until: u64::MAX,
        deadline: u64::MAX,
        long_deadline: u64::MAX,
        long_from: u64::MAX,
        max_backlog: 0,
        non_refundable: 1,
    }));
    lane.orders.grant(2, Some(0));
    assert_eq!(launch(&lane, &epoch_page, 2), 2);
    lane.reports.completed.fetch_add(2, Ordering::AcqRel);
    let launcher = {
        let (lane, epoch_page) = (Arc::clone(&lane), Arc::clone(&epoch_page));
        thread::spawn(move || {
            lane.orders.replenish(&lane.reports, &epoch_page);
            launch(&lane, &epoch_page, 1)
        })
    };
    let other = {
        let (lane, epoch_page) = (Arc::clone(&lane), Arc::clone(&epoch_page));
        thread::spawn(move || lane.orders.replenish(&lane.reports, &epoch_page))
    };
    lane.orders.set_window(None);
    let back = lane.orders.take_back();
    let issued = lane.reports.issued.load(Ordering::Acquire) as i64;
    let renewed = lane.reports.replenished.load(Ordering::Acquire) as i64;
    assert!(
        2 + renewed - back >= issued,
        "{issued} told of 2 and {renewed} that came back"
    );
    launcher.join().expect("it ends");
    other.join().expect("it ends");
    let renewed = lane.reports.replenished.load(Ordering::Relaxed) as i64;
    assert!(renewed <= 1, "the rest is surplus");
    let word = lane.orders.take_back();
    let issued = lane.reports.issued.load(Ordering::Relaxed) as i64;
    assert_eq!(2 + renewed, issued + back + word);
}

/// Two threads of a background job with credit for one launch: it is taken once.
pub fn taken_once() {
    let (lane, epoch_page) = lane_and_epoch_page();
    lane.orders.grant(2, Some(0));
    let other = {
        let (lane, epoch_page) = (Arc::clone(&lane), Arc::clone(&epoch_page));
        thread::spawn(move || launch(&lane, &epoch_page, 2))
    };
    let taken = launch(&lane, &epoch_page, 2) + other.join().expect("it ends");
    assert_eq!(taken, 2);
}

/// A foreground job launches, and a message informs the background job (for example a result that
/// it waited for). Credit that was given earlier is void for it. The broker may meanwhile give
/// credit bound to the launch epochs as it read them.
pub fn void_after_the_epoch() {
    let (lane, epoch_page) = lane_and_epoch_page();
    let launched = shared(AtomicU32::new(0));
    lane.orders.grant(1, Some(epoch_page.sum_above(PRIORITY)));
    let foreground = {
        let (epoch_page, launched) = (Arc::clone(&epoch_page), Arc::clone(&launched));
        thread::spawn(move || {
            epoch_page.bump(0);
            launched.store(1, Ordering::Release);
        })
    };
    let background = {
        let (lane, epoch_page, launched) = (Arc::clone(&lane), Arc::clone(&epoch_page), Arc::clone(&launched));
        thread::spawn(move || {
            let knows = launched.load(Ordering::Acquire) == 1;
            (knows, lane.orders.take(&epoch_page, 1))
        })
    };
    let (knows, took) = background.join().expect("it ends");
    assert!(!(knows && took), "credit that is void was taken");
    foreground.join().expect("it ends");
}

/// The broker reads the launch epochs and gives under them the credit that it takes back from older
/// ones. The background job takes credit while the foreground job's launch epoch is up, and knows
/// that it is. The broker that gave this credit had read that launch epoch.
pub fn old_credit_stays_void() {
    let (lane, epoch_page) = lane_and_epoch_page();
    let launched = shared(AtomicU32::new(0));
    lane.orders.grant(1, Some(epoch_page.sum_above(PRIORITY)));
    let foreground = {
        let (epoch_page, launched) = (Arc::clone(&epoch_page), Arc::clone(&launched));
        thread::spawn(move || {
            epoch_page.bump(0);
            launched.store(1, Ordering::Release);
        })
    };
    let background = {
        let (lane, epoch_page, launched) = (Arc::clone(&lane), Arc::clone(&epoch_page), Arc::clone(&launched));
        thread::spawn(move || {
            let knows = launched.load(Ordering::Acquire) == 1;
            (knows, lane.orders.take(&epoch_page, 1))
        })
    };
    let reading = epoch_page.sum_above(PRIORITY);
    lane.orders.grant(1, Some(reading));
    let (knows, took) = background.join().expect("it ends");
    assert!(
        !(knows && took && reading == 0),
        "credit of before the launch epoch was taken after it"
    );
    foreground.join().expect("it ends");
}
