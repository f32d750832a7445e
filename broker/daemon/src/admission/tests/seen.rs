//! What is free of a device: contexts, strangers, and newcomers whose device nobody can see.

use super::*;

#[test]
fn memory_on_its_way_to_somebody_is_no_context() {
    const CONTEXT: u64 = 400 << 20;
    let now = || Look {
        at: clock::now(),
        ..look(8 * GB - 2 * (CONTEXT + GB), GB)
    };
    let mut broker = Broker::begin(None);
    let (first, second) = (broker.comes(1, "a", GB, None), broker.comes(2, "b", GB, None));
    let about = |broker: &Broker| {
        let devices = broker.handle.queue().devices;
        (devices[0].context, devices[0].foreign)
    };
    let asked_again = || first.lane.admission_slot.probe_requests.load(Ordering::Relaxed);
    // The second is just making its context.
    second.lane.moves.begun(1);
    broker.sees(first.client, now());
    assert_eq!((about(&broker), asked_again()), ((0, 0), 1));
    second.lane.moves.done(1, clock::now());
    std::thread::sleep(std::time::Duration::from_millis(1));
    // The driver gave it its memory, and it has not been counted.
    second.lane.moves.begun(2);
    broker.sees(first.client, now());
    assert_eq!((about(&broker), asked_again()), ((0, 0), 2));
    // It was counted, but only after the look.
    let early = now();
    second.lane.counters.memory.store(GB, Ordering::Relaxed);
    second.lane.moves.done(2, clock::now() + 1);
    broker.sees(first.client, early);
    assert_eq!((about(&broker), asked_again()), ((0, 0), 3));
    std::thread::sleep(std::time::Duration::from_millis(1));
    broker.sees(first.client, now());
    assert_eq!((about(&broker), asked_again()), ((CONTEXT, 0), 3));
    // It left, and its memory may not be the driver's yet: no stranger's.
    broker.handle.gone(second.client);
    broker.sees(first.client, now());
    assert_eq!((about(&broker), asked_again()), ((CONTEXT, 0), 4));
    broker.sees(first.client, look(8 * GB - CONTEXT - GB - 7, GB));
    assert_eq!((about(&broker), asked_again()), ((CONTEXT, 7), 4));
}

#[test]
fn a_context_is_what_nobody_is_known_to_hold() {
    const CONTEXT: u64 = 300 << 20;
    let mut broker = Broker::begin(None);
    let first = broker.comes(1, "a", 2 * GB, None);
    // It looked when it held 1 GiB, and has taken another before anybody heard of that.
    first.lane.counters.memory.store(2 * GB, Ordering::Relaxed);
    broker.sees(1, look(7 * GB - CONTEXT, GB));
    let seen = broker.handle.queue();
    assert_eq!(
        (seen.devices[0].context, seen.devices[0].foreign, seen.running[0].share),
        (CONTEXT, 0, 2 * GB + CONTEXT)
    );
    // Its share without its context is what it asked for, and a job that wants what is left must
    // leave room for its own.
    let large = broker.comes(2, "b", 6 * GB - 2 * CONTEXT + 1, None);
    assert_eq!(standing(&large), AdmissionState::Waits);
    broker.handle.gone(2);
    assert_eq!(
        standing(&broker.comes(3, "c", 6 * GB - 2 * CONTEXT, None)),
        AdmissionState::Admitted
    );
    // Others than weft's jobs hold the rest.
    broker.handle.gone(3);
    let late = broker.comes(4, "d", GB, None);
    assert_eq!(standing(&late), AdmissionState::Admitted);
    broker.sees(4, look(8 * GB - 2 * GB - 2 * CONTEXT - GB, 0));
    assert_eq!(broker.handle.queue().devices[0].foreign, GB);
}

#[test]
fn two_jobs_on_a_cold_broker_are_let_in_one_by_one() {
    const CONTEXT: u64 = 400 << 20;
    let mut broker = Broker::cold();
    let (first, second) = (broker.comes(1, "a", 4 * GB, None), broker.comes(2, "b", 4 * GB, None));
    assert_eq!(
        (standing(&first), standing(&second)),
        (AdmissionState::Admitted, AdmissionState::Waits)
    );
    // The first one's context is there, and beside two of them there is no room for both.
    broker.sees(first.client, look(8 * GB - CONTEXT, 0));
    assert_eq!(standing(&second), AdmissionState::Waits);
    let small = broker.comes(3, "c", 3 * GB, None);
    assert_eq!(standing(&small), AdmissionState::Admitted);
    broker.handle.gone(first.client);
    broker.handle.gone(small.client);
    assert_eq!(standing(&second), AdmissionState::Admitted);
}

#[test]
fn strangers_are_what_they_are_now() {
    let mut broker = Broker::begin(None);
    let seen = |broker: &Broker, free| broker.handle.book().sees("gpu", free, clock::now() + 3_000_000_000);
    let first = broker.comes(1, "a", GB, None);
    seen(&broker, 4 * GB);
    broker.handle.gone(first.client);
    let waiter = broker.comes(2, "b", 6 * GB, None);
    assert_eq!(standing(&waiter), AdmissionState::Waits);
    // One of them left while nobody of ours ran, and nobody could look.
    seen(&broker, 7 * GB);
    assert_eq!(standing(&waiter), AdmissionState::Admitted);
    // Another one comes before the next of ours does.
    seen(&broker, 2 * GB);
    assert_eq!(standing(&broker.comes(3, "c", GB, None)), AdmissionState::Waits);
}

#[test]
fn who_comes_while_nobody_sees_the_device_stays_at_the_door() {
    let mut broker = Broker::begin(None);
    let reading = |number, uuid: &str, free, at| watch::Reading {
        number,
        at,
        free: vec![(uuid.into(), free)],
        memory: vec![(uuid.into(), 8 * GB)],
    };
    let comes = |broker: &mut Broker, reading: Option<&watch::Reading>| {
        let entry = broker.newcomer(1, "late".into());
        let wants = Wants {
            uuid: "gpu".into(),
            total: 8 * GB,
            memory: Some(4 * GB),
            processes: 1,
            ..Wants::default()
        };
        let newcomer = (&entry, &ToTheClient::nobody(), wants);
        broker.handle.book().arrives(newcomer, true, reading);
        entry
    };
    // No time goes by, or as much as somebody stays there.
    let open_at = |broker: &Broker, now| broker.handle.book().let_on_at(now, true);
    let open = |broker: &Broker| open_at(broker, 0);
    // One has left, and nobody knows whether the driver has its memory again; a stranger came
    // meanwhile.
    let left = broker.comes(1, "a", 4 * GB, None);
    broker.handle.gone(left.client);
    let blurred = reading(1, "gpu", 3 * GB, clock::now());
    let (first, second) = (comes(&mut broker, Some(&blurred)), comes(&mut broker, None));
    open(&broker);
    assert_eq!(
        (standing(&first), standing(&second)),
        (AdmissionState::Unknown, AdmissionState::Unknown)
    );
    broker.handle.gone(second.client);
    broker
        .handle
        .book()
        .reads(&reading(2, "gpu", 3 * GB, clock::now() + 3_000_000_000));
    open(&broker);
    assert_eq!(
        (standing(&first), standing(&second)),
        (AdmissionState::Waits, AdmissionState::Unknown)
    );
    assert_eq!(broker.handle.queue().waiting.len(), 1, "who turned round is nowhere");
    broker
        .handle
        .book()
        .reads(&reading(3, "gpu", 8 * GB, clock::now() + 3_000_000_000));
    assert_eq!(standing(&first), AdmissionState::Admitted);
    // Nobody sees it for long: then the last look counts, and a better one later.
    broker.handle.gone(first.client);
    // The looks above were taken some seconds from now.
    broker.handle.book().observer.forget_when();
    let late = comes(&mut broker, Some(&reading(4, "gpu", 3 * GB, clock::now())));
    assert_eq!(standing(&late), AdmissionState::Unknown);
    open_at(&broker, clock::now() + arrivals::HOLDS);
    assert_eq!(standing(&late), AdmissionState::Waits);
    broker
        .handle
        .book()
        .reads(&reading(5, "gpu", 8 * GB, clock::now() + 3_000_000_000));
    assert_eq!(standing(&late), AdmissionState::Admitted);
    broker.handle.book().observer.forget_when();
    // Of a device that NVML names otherwise it tells nothing, and where it tells nothing nobody
    // stays.
    broker.handle.gone(late.client);
    let other = reading(6, "MIG", 0, clock::now());
    assert_eq!(standing(&comes(&mut broker, Some(&other))), AdmissionState::Admitted);
    broker.handle.book().reads(&reading(7, "gpu", 0, clock::now()));
    let last = comes(&mut broker, None);
    assert_eq!(standing(&last), AdmissionState::Unknown);
    broker.handle.book().let_on(false);
    assert_ne!(standing(&last), AdmissionState::Unknown);
}
