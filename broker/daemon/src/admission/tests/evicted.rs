// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs whose memory is on the host: others get it, and they claim it before they return.

use super::*;
use weft_protocol::eviction::Residence;

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
    let order = slot.give_order(true);
    slot.set_residence(Residence::Evicted, 5 * GB, 1);
    counters.memory.store(GB / 8, Ordering::Relaxed);
    broker.handle.tick();
    assert!(!begins() && quota() == granted, "its order is not carried out");
    slot.answered.store(order, Ordering::Relaxed);
    broker.handle.tick();
    assert!(begins() && quota() == GB / 8, "{}", quota());
    // Its return claims the memory, and is denied while the other one has it.
    slot.give_order(false);
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
