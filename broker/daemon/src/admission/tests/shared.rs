// SPDX-License-Identifier: MIT OR Apache-2.0
//! A shared broker: one user's claim about a device counts for others only as far as it is
//! confirmed.

use super::*;
use weft_admission::DeviceId;
use weft_api::placement::Offer;

const ANN: u32 = 61001;
const BEA: u32 = 61002;
const CID: u32 = 61003;

fn shared(file: Option<&Path>) -> Broker {
    let mut broker = Broker::begin(file);
    broker.handle = broker.handle.shared(true);
    broker.handle.controller().parts().0.set_owner(61000);
    broker
}

fn memory(broker: &Broker) -> Vec<(String, u64)> {
    let devices = broker.handle.queue().devices;
    devices.into_iter().map(|row| (row.uuid, row.memory)).collect()
}

fn foreign(broker: &Broker) -> u64 {
    broker.handle.queue().devices[0].foreign
}

fn reading(number: u64, free: u64) -> watch::Reading {
    watch::Reading {
        number,
        at: clock::now(),
        free: vec![("gpu".into(), free)],
        memory: vec![("gpu".into(), 8 * GB)],
    }
}

fn seeker(uid: u32, devices: Vec<Offer>) -> Seeker {
    Seeker {
        pid: std::process::id(),
        user: uid.to_string(),
        priority: 5,
        devices,
        ..Seeker::default()
    }
}

#[test]
fn who_names_a_device_first_does_not_say_for_all_how_large_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let mut broker = shared(Some(&file));
    // A query is not a report.
    let offer = Offer {
        uuid: "gpu".into(),
        memory: 4096,
        free: None,
    };
    broker.handle.place(&seeker(ANN, vec![offer])).expect("a place");
    assert_eq!(memory(&broker), []);
    let liar = broker.of_user(ANN, "gpu", 4096, 1024);
    assert_eq!(memory(&broker), [("gpu".into(), 4096)]);
    // The next report counts, whichever job runs there.
    let bea = broker.of_user(BEA, "gpu", 8 * GB, GB);
    assert_eq!(
        (standing(&liar), standing(&bea)),
        (AdmissionState::Admitted, AdmissionState::Admitted)
    );
    assert_eq!(memory(&broker), [("gpu".into(), 8 * GB)]);
    // Too large a report counts until most users report less.
    let large = broker.of_user(CID, "gpu", 1 << 50, GB);
    assert_eq!(memory(&broker), [("gpu".into(), 1 << 50)]);
    broker.of_user(61004, "gpu", 8 * GB, GB);
    assert_eq!(memory(&broker), [("gpu".into(), 8 * GB)], "two say so");
    // The owner's report has precedence.
    broker.of_user(61000, "gpu", 7 * GB, GB);
    assert_eq!(memory(&broker), [("gpu".into(), 7 * GB)]);
    drop(large);
}

#[test]
fn a_lie_about_a_device_ends_with_its_broker() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let mut broker = shared(Some(&file));
    broker.of_user(ANN, "gpu", 4096, 1024);
    drop(broker);
    let mut next = shared(Some(&file));
    assert_eq!(
        standing(&next.of_user(BEA, "gpu", 8 * GB, 6 * GB)),
        AdmissionState::Admitted
    );
    assert_eq!(memory(&next), [("gpu".into(), 8 * GB)]);
}

#[test]
fn where_nvml_tells_a_job_says_no_more_than_how_much_of_it_cuda_has() {
    let mut broker = shared(None);
    broker.of_user(ANN, "gpu", 4096, 1024);
    broker.handle.controller().read(&reading(1, 8 * GB));
    assert_eq!(memory(&broker), [("gpu".into(), 8 * GB)]);
    broker.of_user(BEA, "gpu", 1 << 50, GB);
    assert_eq!(memory(&broker), [("gpu".into(), 8 * GB)]);
    broker.of_user(CID, "gpu", 8 * GB - (300 << 20), GB);
    assert_eq!(memory(&broker), [("gpu".into(), 8 * GB - (300 << 20))]);
}

#[test]
fn devices_are_bounded_and_those_where_nobody_is_are_forgotten() {
    let mut broker = shared(None);
    let named = |user: u32, number: u32| format!("{user:016x}{number:016x}");
    let bea = broker.of_user(BEA, "gpu", 8 * GB, GB);
    for user in 0..8 {
        for number in 0..40 {
            let entry = broker.of_user(70_000 + user, &named(user, number), 8 * GB, GB);
            // It runs nevertheless, uncounted.
            assert_eq!(standing(&entry), AdmissionState::Admitted);
            let counted = number < 16 && user * 16 + number < 63;
            assert_eq!(share(&entry) > 0, counted, "{user} {number}");
        }
    }
    assert_eq!(memory(&broker).len(), 64);
    assert_eq!(broker.handle.queue().running.len(), 64);
    // A user without a device and without room; a device that becomes unused makes room.
    let entry = broker.of_user(CID, "another", 8 * GB, GB);
    assert_eq!((standing(&entry), share(&entry)), (AdmissionState::Admitted, 0));
    broker.handle.gone(2);
    let entry = broker.of_user(CID, "another", 4 * GB, GB);
    assert_eq!((standing(&entry), share(&entry)), (AdmissionState::Admitted, GB));
    assert!(memory(&broker).contains(&("another".into(), 4 * GB)));
    assert_eq!((standing(&bea), share(&bea)), (AdmissionState::Admitted, GB));
    // A query does not add a device.
    let offers = (0..1_000).map(|number| Offer {
        uuid: named(9, number),
        memory: GB,
        free: None,
    });
    let _ = broker.handle.place(&seeker(ANN, offers.collect()));
    assert_eq!(memory(&broker).len(), 64);
}

#[test]
fn what_one_user_says_of_strangers_keeps_no_other_user_out_for_long() {
    let mut broker = shared(None);
    let liar = broker.of_user(ANN, "gpu", 8 * GB, 1 << 20);
    broker.sees(liar.client, look(0, 0));
    let all = 8 * GB - (1 << 20);
    assert!(foreign(&broker) > all - GB, "nobody else is there to say anything");
    let waiter = broker.of_user(BEA, "gpu", 8 * GB, GB);
    assert_eq!(standing(&waiter), AdmissionState::Waits);
    broker.handle.tick();
    assert_eq!(standing(&waiter), AdmissionState::Waits);
    // The claim is not confirmed while her job waits, so it stops counting.
    let now = clock::now();
    broker.handle.controller().parts().2.forget_question();
    broker.handle.tick();
    broker.handle.controller().check_unobserved(now + 6_000_000_000, false);
    assert_eq!(standing(&waiter), AdmissionState::Admitted);
    // From now on another user's job can probe, and gets a request to do so.
    let asked = waiter.lane.admission_slot.probe_requests.load(Ordering::Relaxed);
    broker.sees(liar.client, look(0, 0));
    assert_eq!(foreign(&broker), 0);
    assert_eq!(
        waiter.lane.admission_slot.probe_requests.load(Ordering::Relaxed),
        asked + 1
    );
    // A claim of two users is confirmed; one user is enough for a lower claim.
    broker.sees(waiter.client, look(2 * GB, 0));
    assert!(foreign(&broker) > 5 * GB);
    broker.sees(waiter.client, look(8 * GB - (800 << 20), 0));
    assert!(foreign(&broker) < GB, "what contexts take, or less");
}

#[test]
fn where_nvml_tells_a_look_is_only_the_reason_to_ask_it() {
    let mut broker = shared(None);
    broker.handle.controller().read(&reading(1, 8 * GB));
    let liar = broker.of_user(ANN, "gpu", 8 * GB, 1 << 20);
    broker.handle.controller().probe(liar.client, look(0, 0), true);
    assert_eq!(foreign(&broker), 0);
    assert!(broker.handle.controller().parts().2.asks(), "NVML is asked");
    let later = watch::Reading {
        at: clock::now() + 3_000_000_000,
        ..reading(2, 5 * GB)
    };
    broker.handle.controller().read(&later);
    assert_eq!(foreign(&broker), 3 * GB);
    assert!(!broker.handle.controller().parts().2.asks());
}

#[test]
fn a_change_that_does_not_end_keeps_nobody_from_seeing() {
    let mut broker = shared(None);
    let (stopped, honest) = (
        broker.of_user(ANN, "gpu", 8 * GB, 2 * GB),
        broker.of_user(BEA, "gpu", 8 * GB, GB),
    );
    stopped.lane.moves.begun(1);
    // Stopped in the driver, with one of its two GiB.
    stopped.lane.counters.memory.store(GB, Ordering::Relaxed);
    let seen = |broker: &Broker, free| broker.handle.controller().observe_free("gpu", free, clock::now());
    seen(&broker, 2 * GB);
    assert_eq!(foreign(&broker), 0, "a change is under way");
    std::thread::sleep(std::time::Duration::from_millis(1_010));
    seen(&broker, 2 * GB);
    // `8 - 2 free - 2` of the stopped job, whatever it holds, `- 0` of the other job: 4.
    assert_eq!(foreign(&broker), 4 * GB);
    // A job whose memory always changes has the bytes that it reports, at most its share.
    stopped.lane.moves.done(1, u64::MAX);
    stopped.lane.counters.memory.store(7 * GB, Ordering::Relaxed);
    seen(&broker, 2 * GB);
    std::thread::sleep(std::time::Duration::from_millis(1_010));
    seen(&broker, 3 * GB);
    assert_eq!(foreign(&broker), 3 * GB);
    assert_eq!(standing(&honest), AdmissionState::Admitted);
}

#[test]
fn a_look_of_tomorrow_is_one_of_now() {
    let mut broker = Broker::begin(None);
    let first = broker.comes(1, "a", GB, None);
    let at = clock::now() + (1 << 60);
    broker.handle.context(
        first.client,
        MemoryProbe {
            free: 4 * GB,
            held: 0,
            own: 0,
            at,
        },
    );
    let now = clock::now();
    let seen = broker.handle.controller().parts().2.observed_at(DeviceId(0));
    assert!(seen.is_some_and(|seen| seen <= now), "{seen:?}");
    // A sample from a moment later counts.
    broker.handle.controller().observe_free("gpu", 8 * GB, clock::now());
    assert_eq!(foreign(&broker), 0);
}

#[test]
fn rows_say_whose_they_are_and_who_waited_is_counted_when_it_begins() {
    let mut broker = shared(None);
    let first = broker.of_user(ANN, "gpu", 8 * GB, 6 * GB);
    let second = broker.of_user(BEA, "gpu", 8 * GB, 6 * GB);
    let seen = broker.handle.queue();
    assert_eq!((seen.running[0].uid, seen.waiting[0].uid), (ANN, BEA));
    assert!(seen.waiting[0].guess, "nobody said how long the first one runs");
    assert_eq!((seen.admitted, seen.waited), (1, 0));
    let waiting = broker.handle.waiting();
    assert_eq!(waiting.keys().copied().collect::<Vec<u64>>(), [second.client]);
    broker.handle.gone(first.client);
    let seen = broker.handle.queue();
    assert_eq!((seen.admitted, seen.waited), (2, 1));
    assert!(broker.handle.waiting().is_empty());
}

#[test]
fn what_is_written_is_never_more_than_what_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let mut broker = shared(Some(&file));
    for number in 0..200 {
        let entry = broker.new_job(number, "\u{1}".repeat(60_000));
        let wants = Wants {
            uuid: "gpu".into(),
            total: 8 * GB,
            memory: Some(1),
            processes: 1,
            ..Wants::default()
        };
        broker
            .handle
            .controller()
            .request(&entry, &ToTheClient::nobody(), wants);
    }
    broker.handle.close();
    let length = std::fs::metadata(&file).expect("it was written").len();
    assert!(length < 2 << 20, "{length}");
    assert!(ledger::Page::read(&file).is_some());
}
