// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the session with a broker and a driver that the test plays.

mod admission_slot;
mod attach;
mod autostart;
mod fake;
mod gate;
mod modes;
mod requests;
mod samples;
mod trace;

use std::sync::atomic::Ordering;

use weft_protocol::Ns;
use weft_protocol::lane::{DeviceSpeed, Kind, LaneRecord, Mode, Reader};
use weft_protocol::transport::map::{SharedEpochPage, SharedLane};

use super::session::Session;
use crate::client::settings::Settings;
use crate::driver::stream::Stream;
use crate::kernels::launch::Launch;

/// Far longer than any step takes, ns; a test that reaches it has failed.
const LONG: Ns = 60_000_000_000;

/// The broker's side of a session.
struct Broker {
    lane: SharedLane,
    epoch_page: SharedEpochPage,
    reader: Reader,
}

impl Broker {
    fn records(&mut self) -> Vec<LaneRecord> {
        std::iter::from_fn(|| self.reader.next(&self.lane)).collect()
    }

    /// Streams of the launches since the last call, in order.
    fn launches(&mut self) -> Vec<u64> {
        let records = self.records().into_iter();
        records
            .filter(|record| record.kind == Kind::Launch)
            .map(|record| record.b)
            .collect()
    }

    fn order(&self, mode: Mode) {
        self.lane.orders.mode.store(mode as u32, Ordering::Release);
        self.ring();
    }

    fn grant(&self, credit: i64) {
        self.lane.orders.credit.fetch_add(credit, Ordering::AcqRel);
        self.ring();
    }

    fn ring(&self) {
        self.lane.orders.bell.fetch_add(1, Ordering::AcqRel);
        rustix::thread::futex::wake(
            &self.lane.orders.bell,
            rustix::thread::futex::Flags::empty(),
            u32::MAX >> 1,
        )
        .expect("a wake-up");
    }

    fn settled(&self) -> Ns {
        self.lane.reports.completed.load(Ordering::Acquire)
    }

    fn issued(&self) -> Ns {
        self.lane.reports.issued.load(Ordering::Acquire)
    }

    fn credit(&self) -> i64 {
        self.lane.orders.credit.load(Ordering::Acquire)
    }
}

/// A session attached to a broker that the test plays. Its gates do not spin.
fn attached(mode: Mode) -> (&'static Session, Broker) {
    attached_on(mode, 2)
}

/// As [`attached`], on a machine with `cores` cores.
fn attached_on(mode: Mode, cores: usize) -> (&'static Session, Broker) {
    let (settings, _) = Settings::read(|_| None, cores);
    let session: &'static Session = Box::leak(Box::new(Session::make(fake::driver(), settings).expect("a session")));
    let broker = Broker {
        lane: SharedLane::lane().expect("a lane"),
        epoch_page: SharedEpochPage::epoch_page().expect("an epoch page"),
        reader: Reader::default(),
    };
    let copy = |memory: std::os::fd::BorrowedFd<'_>| memory.try_clone_to_owned().expect("dup");
    session
        .link
        .epoch_page_place
        .put(&copy(broker.epoch_page.memory()))
        .expect("mapped");
    session
        .link
        .lane_place
        .put(&copy(broker.lane.memory()))
        .expect("mapped");
    let orders = &broker.lane.orders;
    orders.epoch.store(5, Ordering::Relaxed);
    orders.longest_wait.store(LONG / 2, Ordering::Relaxed);
    orders.unknown_cost.store(20_000, Ordering::Relaxed);
    orders.set_speed(DeviceSpeed::default());
    orders.mode.store(mode as u32, Ordering::Release);
    (session, broker)
}

fn kernel(hash: u64, stream: Stream) -> Launch {
    Launch::kernel(hash, stream, false)
}

/// A launch from beginning to end.
fn launch(session: &Session, launch: Launch) {
    let mut ticket = session.before_launch(launch);
    if ticket.waits() {
        ticket = session.deferred(launch);
    }
    session.after_launch(ticket, launch.stream(), 0);
}

/// Waits until `so` is true.
fn until(what: &str, so: impl Fn() -> bool) {
    let deadline = super::clock::now() + LONG;
    while !so() {
        assert!(super::clock::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}
