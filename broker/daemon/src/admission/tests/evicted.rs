// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs whose memory is on the host: others get it, and they claim it before they return.

use super::*;
use weft_protocol::admission_slot::DEFAULT_PATIENCE_NS;
use weft_protocol::eviction::{EvictionCause, MoveBy, Residence, evicts};

#[test]
fn memory_on_the_host_is_for_others_until_it_is_claimed() {
    let mut broker = Broker::begin(None);
    let (one, two) = (Somebody::new(), Somebody::new());
    let moved = broker.comes(one.pid(), "moved", 5 * GB, None);
    let (slot, counters) = (&moved.lane.eviction, &moved.lane.counters);
    let quota = || moved.lane.admission_slot.quota.load(Ordering::Relaxed);
    let granted = quota();
    assert!(granted >= 5 * GB, "{granted}");
    counters.memory.store(5 * GB, Ordering::Relaxed);
    let other = broker.comes(two.pid(), "other", 5 * GB, None);
    let begins = || other.lane.admission_slot.state() == AdmissionState::Admitted;
    broker.handle.tick();
    assert!(!begins(), "the device is full");
    // It says so, but it still moves, or returns already.
    let order = slot.give_order(true, EvictionCause::Command);
    slot.set_residence(Residence::Evicted, 5 * GB, 1);
    counters.memory.store(GB / 8, Ordering::Relaxed);
    broker.handle.tick();
    assert!(!begins() && quota() == granted, "its order is not carried out");
    slot.answered.store(order, Ordering::Relaxed);
    broker.handle.tick();
    assert!(begins() && quota() == GB / 8, "{}", quota());
    // Its return claims the memory, and is denied while the other one has it.
    slot.give_order(false, EvictionCause::Command);
    let answers = || moved.lane.admission_slot.answers.load(Ordering::Relaxed);
    let before = answers();
    broker.handle.more(moved.client, 5 * GB, 0);
    assert_eq!((answers(), quota()), (before + 1, GB / 8));
    broker.handle.gone(other.client);
    broker.handle.more(moved.client, 5 * GB, 0);
    assert_eq!(quota(), 5 * GB + GB / 8);
    broker.handle.tick();
    assert_eq!(quota(), 5 * GB + GB / 8, "it is about to take them");
}

#[test]
fn a_job_that_the_driver_took_off_returns_only_by_a_sample_of_nvml() {
    let mut broker = Broker::begin(None);
    let one = Somebody::new();
    let moved = broker.comes(one.pid(), "moved", 5 * GB, None);
    let slot = &moved.lane.eviction;
    let quota = || moved.lane.admission_slot.quota.load(Ordering::Relaxed);
    let answers = || moved.lane.admission_slot.answers.load(Ordering::Relaxed);
    slot.set_by(MoveBy::Checkpoint);
    slot.set_excess(Some(0));
    let order = slot.give_order(true, EvictionCause::Command);
    slot.set_residence(Residence::Evicted, 5 * GB, 1);
    slot.answered.store(order, Ordering::Relaxed);
    broker.handle.tick();
    assert_eq!(quota(), 1);
    slot.give_order(false, EvictionCause::Command);
    let before = answers();
    broker.handle.more(moved.client, 5 * GB, 0);
    assert_eq!((answers(), quota()), (before + 1, 1), "there is no NVML here");
    // weft's own copies lose nothing if there is no room.
    slot.set_by(MoveBy::Blocks);
    broker.handle.more(moved.client, 5 * GB, 0);
    assert!(quota() > 5 * GB, "{}", quota());
}

#[test]
fn a_job_that_the_driver_brought_back_keeps_no_more_than_it_declared() {
    let mut broker = Broker::begin(None);
    let (one, two) = (Somebody::new(), Somebody::new());
    let moved = broker.comes(one.pid(), "moved", 4 * GB, None);
    let slot = &moved.lane.eviction;
    let quota = || moved.lane.admission_slot.quota.load(Ordering::Relaxed);
    // It claimed room for its context too.
    broker.handle.more(moved.client, 2 * GB, 0);
    let claimed = quota();
    assert!(claimed >= 6 * GB, "{claimed}");
    let other = broker.comes(two.pid(), "other", 3 * GB, None);
    slot.set_by(MoveBy::Checkpoint);
    slot.set_residence(Residence::Returns, 3 * GB, 1);
    broker.handle.tick();
    assert_eq!(quota(), claimed, "it returns");
    moved.lane.counters.memory.store(3 * GB, Ordering::Relaxed);
    slot.set_residence(Residence::Device, 0, 0);
    broker.handle.tick();
    assert_eq!(quota(), 4 * GB);
    assert_eq!(standing(&other), AdmissionState::Admitted);
}

/// Whether the condition holds within some checks.
fn soon(broker: &Broker, holds: impl Fn() -> bool) -> bool {
    (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        broker.handle.tick();
        holds()
    })
}

/// A job that holds 5 GiB on the device, of which 4 can move.
fn movable(broker: &mut Broker, process: &Somebody) -> Arc<Entry> {
    let name = format!("low {}", process.pid());
    let low = broker.comes(process.pid(), &name, 5 * GB, None);
    let slot = &low.lane.eviction;
    low.lane.counters.memory.store(5 * GB, Ordering::Relaxed);
    slot.movable.store(4 * GB, Ordering::Relaxed);
    slot.set_residence(Residence::Device, 0, 0);
    low
}

#[test]
fn a_less_important_jobs_memory_makes_room_and_returns() {
    let mut broker = Broker::begin(None);
    let (one, two) = (Somebody::new(), Somebody::new());
    let low = movable(&mut broker, &one);
    let slot = &low.lane.eviction;
    let order = || slot.order.load(Ordering::Relaxed);
    let high = broker.comes(two.pid(), "high", 5 * GB, None);
    assert!(!soon(&broker, || order() != 0), "equals leave each other their memory");
    broker.handle.priority(high.client, 2);
    assert!(soon(&broker, || order() != 0));
    let left = order();
    assert!(evicts(left) && EvictionCause::of(left) == EvictionCause::Room);
    // It leaves.
    low.lane.counters.memory.store(GB, Ordering::Relaxed);
    slot.set_cause(EvictionCause::Room);
    slot.set_residence(Residence::Evicted, 4 * GB, 1);
    slot.answered.store(left, Ordering::Relaxed);
    assert!(soon(&broker, || standing(&high) == AdmissionState::Admitted));
    assert!(!soon(&broker, || order() != left), "the other one has the memory");
    broker.handle.gone(high.client);
    assert!(soon(&broker, || order() != left) && !evicts(order()));
}

#[test]
fn a_call_of_an_idle_job_claims_its_memory_and_moves_a_less_important_job() {
    let mut broker = Broker::begin(None);
    let (one, two) = (Somebody::new(), Somebody::new());
    let served = broker.comes(one.pid(), "served", 5 * GB, None);
    let slot = &served.lane.eviction;
    let quota = || served.lane.admission_slot.quota.load(Ordering::Relaxed);
    slot.movable.store(5 * GB, Ordering::Relaxed);
    slot.set_cause(EvictionCause::Idle);
    slot.set_residence(Residence::Evicted, 5 * GB, 1);
    // While a call waits its quota stays.
    slot.set_wanted(1);
    broker.handle.tick();
    assert!(quota() >= 5 * GB);
    slot.set_wanted(0);
    broker.handle.tick();
    assert_eq!(quota(), 1);
    let low = broker.comes(two.pid(), "low", 5 * GB, None);
    assert_eq!(standing(&low), AdmissionState::Admitted);
    low.lane.counters.memory.store(5 * GB, Ordering::Relaxed);
    low.lane.eviction.movable.store(4 * GB, Ordering::Relaxed);
    low.lane.eviction.set_residence(Residence::Device, 0, 0);
    let order = || low.lane.eviction.order.load(Ordering::Relaxed);
    slot.set_wanted(1);
    assert!(!soon(&broker, || order() != 0), "equals leave each other their memory");
    broker.handle.priority(served.client, 2);
    broker.handle.more(served.client, 5 * GB, 60_000_000_000);
    assert!(soon(&broker, || order() != 0));
    let left = order();
    assert!(evicts(left) && EvictionCause::of(left) == EvictionCause::Room);
    low.lane.counters.memory.store(GB, Ordering::Relaxed);
    low.lane.eviction.set_cause(EvictionCause::Room);
    low.lane.eviction.set_residence(Residence::Evicted, 4 * GB, 1);
    low.lane.eviction.answered.store(left, Ordering::Relaxed);
    assert!(soon(&broker, || quota() > 5 * GB), "{}", quota());
    assert!(!soon(&broker, || order() != left), "the other one has the memory");
}

#[test]
fn a_job_returns_to_memory_that_a_sleeping_one_does_not_hold_once_it_may_move_again() {
    let mut broker = Broker::begin(None);
    let (one, two) = (Somebody::new(), Somebody::new());
    let low = movable(&mut broker, &one);
    let slot = &low.lane.eviction;
    let order = || slot.order.load(Ordering::Relaxed);
    // An engine without a declared need wakes.
    let engine = free_memory::undeclared(&mut broker, two.pid(), 2);
    broker.handle.more(engine.client, 5 * GB, DEFAULT_PATIENCE_NS);
    assert!(soon(&broker, || order() != 0));
    let left = order();
    low.lane.counters.memory.store(GB, Ordering::Relaxed);
    slot.set_cause(EvictionCause::Room);
    slot.set_residence(Residence::Evicted, 4 * GB, 1);
    slot.answered.store(left, Ordering::Relaxed);
    let memory = &engine.lane.counters.memory;
    let granted = || engine.lane.admission_slot.quota.load(Ordering::Relaxed) >= 5 * GB;
    assert!(soon(&broker, granted));
    memory.store(5 * GB, Ordering::Relaxed);
    broker.handle.controller().room().age();
    assert!(!soon(&broker, || order() != left), "the engine holds it");
    // It sleeps, and is more important.
    memory.store(0, Ordering::Relaxed);
    free_memory::until(&broker, || order() != left);
    assert!(!evicts(order()));
    // Its return gets the memory.
    let quota = || low.lane.admission_slot.quota.load(Ordering::Relaxed);
    broker.handle.more(low.client, 4 * GB, 0);
    assert!(quota() >= 5 * GB, "{}", quota());
}

#[test]
fn an_equal_gets_what_a_job_has_above_its_request_and_a_more_important_job_all() {
    let mut broker = Broker::begin(None);
    let pids = [Somebody::new(), Somebody::new(), Somebody::new()];
    let lender = broker.new_job(pids[0].pid(), "lender".into());
    let wants = Wants {
        uuid: "gpu".into(),
        total: 8 * GB,
        memory: Some(2 * GB),
        limit: Some(6 * GB),
        gang: "lender".into(),
        processes: 1,
        ..Wants::default()
    };
    broker.handle.wants(&lender, &ToTheClient::nobody(), wants);
    broker.handle.more(lender.client, 3 * GB, 0);
    let quota = || lender.lane.admission_slot.quota.load(Ordering::Relaxed);
    assert_eq!(quota(), 5 * GB);
    broker.handle.more(lender.client, 2 * GB, 0);
    assert_eq!(quota(), 5 * GB, "7 are more than its limit");
    let slot = &lender.lane.eviction;
    let order = || slot.order.load(Ordering::Relaxed);
    lender.lane.counters.memory.store(5 * GB, Ordering::Relaxed);
    slot.movable.store(5 * GB, Ordering::Relaxed);
    slot.set_residence(Residence::Device, 0, 0);
    let equal = broker.comes(pids[1].pid(), "equal", 4 * GB, None);
    assert!(soon(&broker, || evicts(order())));
    let left = order();
    lender.lane.counters.memory.store(0, Ordering::Relaxed);
    slot.set_cause(EvictionCause::Room);
    slot.set_residence(Residence::Evicted, 5 * GB, 1);
    slot.answered.store(left, Ordering::Relaxed);
    assert!(soon(&broker, || standing(&equal) == AdmissionState::Admitted));
    assert_eq!(quota(), 2 * GB, "its request is kept");
    // A more important job needs it.
    let high = broker.comes(pids[2].pid(), "high", 3 * GB, None);
    broker.handle.priority(high.client, 2);
    assert!(soon(&broker, || standing(&high) == AdmissionState::Admitted));
    assert_eq!(quota(), 1);
    for other in [&equal, &high] {
        broker.handle.gone(other.client);
    }
    free_memory::until(&broker, || order() != left);
    assert!(!evicts(order()));
}

#[test]
fn a_job_that_is_overdue_moves_an_equal_after_ten_minutes() {
    let mut broker = Broker::begin(None);
    let (one, two) = (Somebody::new(), Somebody::new());
    let away = movable(&mut broker, &one);
    let slot = &away.lane.eviction;
    let order = slot.give_order(true, EvictionCause::Room);
    away.lane.counters.memory.store(GB, Ordering::Relaxed);
    slot.set_cause(EvictionCause::Room);
    slot.set_residence(Residence::Evicted, 4 * GB, 1);
    slot.answered.store(order, Ordering::Relaxed);
    assert!(soon(&broker, || away.lane.admission_slot.quota.load(Ordering::Relaxed) == GB));
    let equal = movable(&mut broker, &two);
    assert_eq!(standing(&equal), AdmissionState::Admitted);
    let leaves = |minutes: u64| {
        let mut controller = broker.handle.controller();
        let leave = controller.room_orders(clock::now() + minutes * 60_000_000_000).leave;
        leave.map(|(_, leave)| leave.iter().map(|(_, bytes, _)| *bytes).collect::<Vec<_>>())
    };
    // Each look is later than the one before.
    slot.set_wanted(1);
    assert_eq!(leaves(9), None, "the equal job has just begun");
    slot.set_wanted(0);
    assert_eq!(leaves(11), None, "it is not overdue");
    slot.set_wanted(1);
    assert_eq!(leaves(13), Some(vec![4 * GB]));
}
