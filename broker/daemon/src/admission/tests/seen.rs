// SPDX-License-Identifier: MIT OR Apache-2.0
//! Free memory of a device: contexts, foreign memory, and arrivals at devices without a sample.

use super::*;
use weft_protocol::eviction::{MoveBy, Residence};

#[test]
fn memory_on_its_way_to_somebody_is_no_context() {
    const CONTEXT: u64 = 400 << 20;
    let now = || MemoryProbe {
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
    // The second client is making its context.
    second.lane.moves.begun(1);
    broker.sees(first.client, now());
    assert_eq!((about(&broker), asked_again()), ((0, 0), 1));
    second.lane.moves.done(1, clock::now());
    std::thread::sleep(std::time::Duration::from_millis(1));
    // The driver gave it memory that is not counted yet.
    second.lane.moves.begun(2);
    broker.sees(first.client, now());
    assert_eq!((about(&broker), asked_again()), ((0, 0), 2));
    // It was counted after the probe.
    let early = now();
    second.lane.counters.memory.store(GB, Ordering::Relaxed);
    second.lane.moves.done(2, clock::now() + 1);
    broker.sees(first.client, early);
    assert_eq!((about(&broker), asked_again()), ((0, 0), 3));
    std::thread::sleep(std::time::Duration::from_millis(1));
    broker.sees(first.client, now());
    assert_eq!((about(&broker), asked_again()), ((CONTEXT, 0), 3));
    // The driver may not have its memory again yet, but the memory is not foreign.
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
    // It probed with 1 GiB and has taken another 1 GiB since.
    first.lane.counters.memory.store(2 * GB, Ordering::Relaxed);
    broker.sees(1, look(7 * GB - CONTEXT, GB));
    let seen = broker.handle.queue();
    assert_eq!(
        (seen.devices[0].context, seen.devices[0].foreign, seen.running[0].share),
        (CONTEXT, 0, 2 * GB + CONTEXT)
    );
    // The declared need excludes the context; the next job must leave room for its own.
    let large = broker.comes(2, "b", 6 * GB - 2 * CONTEXT + 1, None);
    assert_eq!(standing(&large), AdmissionState::Waits);
    broker.handle.gone(2);
    assert_eq!(
        standing(&broker.comes(3, "c", 6 * GB - 2 * CONTEXT, None)),
        AdmissionState::Admitted
    );
    // Foreign memory is the rest.
    broker.handle.gone(3);
    let late = broker.comes(4, "d", GB, None);
    assert_eq!(standing(&late), AdmissionState::Admitted);
    broker.sees(4, look(8 * GB - 2 * GB - 2 * CONTEXT - GB, 0));
    assert_eq!(broker.handle.queue().devices[0].foreign, GB);
}

#[test]
fn a_context_that_the_driver_took_off_hides_no_strangers() {
    const CONTEXT_BYTES: u64 = 400 << 20;
    let mut broker = Broker::begin(None);
    let moved = broker.comes(1, "a", 2 * GB, None);
    let about = |broker: &Broker| {
        let devices = broker.handle.queue().devices;
        (devices[0].context, devices[0].foreign)
    };
    moved.lane.moves.begun(1);
    moved.lane.counters.memory.store(2 * GB, Ordering::Relaxed);
    moved.lane.moves.done(1, clock::now());
    std::thread::sleep(std::time::Duration::from_millis(1));
    let seen = |broker: &Broker, free| {
        let at = clock::now();
        broker.handle.controller().observe_free("gpu", free, at);
    };
    seen(&broker, 6 * GB - CONTEXT_BYTES);
    assert_eq!(about(&broker), (CONTEXT_BYTES, 0));
    moved.lane.counters.memory.store(0, Ordering::Relaxed);
    moved.lane.eviction.set_by(MoveBy::Checkpoint);
    moved.lane.eviction.set_residence(Residence::Evicted, 2 * GB, 1);
    seen(&broker, 8 * GB);
    assert_eq!(moved.lane.eviction.excess(), Some(0));
    seen(&broker, 5 * GB);
    assert_eq!(
        about(&broker),
        (CONTEXT_BYTES, 3 * GB),
        "its share keeps room for its context"
    );
}

/// Two jobs with contexts of 400 and 1200 MiB, and memory of 2 GiB each; and a sample of the bytes
/// that are free.
fn with_unequal_contexts() -> (Broker, [Arc<Entry>; 2], impl Fn(&Broker, u64)) {
    let mut broker = Broker::begin(None);
    let jobs = [1, 2].map(|number| broker.comes(number, &format!("job {number}"), 2 * GB, None));
    for job in &jobs {
        job.lane.moves.begun(1);
        job.lane.counters.memory.store(2 * GB, Ordering::Relaxed);
        job.lane.moves.done(1, clock::now());
    }
    std::thread::sleep(std::time::Duration::from_millis(1));
    let seen = |broker: &Broker, free| {
        let at = clock::now();
        broker.handle.controller().observe_free("gpu", free, at);
    };
    seen(&broker, 4 * GB - (1600 << 20));
    (broker, jobs, seen)
}

#[test]
fn a_context_that_is_away_keeps_its_room() {
    let (broker, [small, large], seen) = with_unequal_contexts();
    let context = |broker: &Broker| broker.handle.queue().devices[0].context;
    assert_eq!(context(&broker), 800 << 20);
    large.lane.counters.memory.store(0, Ordering::Relaxed);
    large.lane.eviction.set_by(MoveBy::Checkpoint);
    large.lane.eviction.set_residence(Residence::Evicted, 2 * GB, 1);
    seen(&broker, 6 * GB - (400 << 20));
    assert_eq!(large.lane.eviction.excess(), Some(400 << 20));
    assert_eq!(context(&broker), 800 << 20, "that of the one that is there is smaller");
    small.lane.moves.begun(2);
    small.lane.moves.done(2, clock::now());
    std::thread::sleep(std::time::Duration::from_millis(1));
    seen(&broker, 6 * GB - (400 << 20));
    assert_eq!(context(&broker), 800 << 20);
}

#[test]
fn a_context_of_which_the_samples_show_too_little_is_taken_for_the_largest() {
    let (mut broker, [_, large], seen) = with_unequal_contexts();
    large.lane.counters.memory.store(0, Ordering::Relaxed);
    large.lane.eviction.set_by(MoveBy::Checkpoint);
    large.lane.eviction.set_residence(Residence::Evicted, 2 * GB, 1);
    // Another job's context comes as it leaves.
    let other = broker.comes(3, "other", 1 << 20, None);
    other.lane.moves.begun(1);
    other.lane.moves.done(1, clock::now());
    std::thread::sleep(std::time::Duration::from_millis(1));
    seen(&broker, 6 * GB - (1200 << 20));
    assert_eq!(large.lane.eviction.excess(), Some(GB - (800 << 20)));
}

#[test]
fn memory_that_the_driver_is_bringing_back_hides_no_strangers() {
    let (broker, [_, large], seen) = with_unequal_contexts();
    let foreign = |broker: &Broker| broker.handle.queue().devices[0].foreign;
    large.lane.eviction.set_by(MoveBy::Checkpoint);
    large.lane.eviction.set_residence(Residence::Returns, 2 * GB, 1);
    // Nothing of it is there yet, and a stranger has taken 1 GiB.
    large.lane.moves.begun(2);
    seen(&broker, 5 * GB - (800 << 20));
    assert_eq!(foreign(&broker), GB);
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
    // With the first context measured, there is no room for both jobs.
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
    let seen = |broker: &Broker, free| {
        broker
            .handle
            .controller()
            .observe_free("gpu", free, clock::now() + 3_000_000_000)
    };
    let first = broker.comes(1, "a", GB, None);
    seen(&broker, 4 * GB);
    broker.handle.gone(first.client);
    let waiter = broker.comes(2, "b", 6 * GB, None);
    assert_eq!(standing(&waiter), AdmissionState::Waits);
    // Foreign memory became free while no client could probe.
    seen(&broker, 7 * GB);
    assert_eq!(standing(&waiter), AdmissionState::Admitted);
    // Another program takes memory before the next client arrives.
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
        let entry = broker.new_job(1, "late".into());
        let wants = Wants {
            uuid: "gpu".into(),
            total: 8 * GB,
            memory: Some(4 * GB),
            processes: 1,
            ..Wants::default()
        };
        let new_job = (&entry, &ToTheClient::nobody(), wants);
        broker.handle.controller().arrive(new_job, true, reading);
        entry
    };
    // Continues arrivals as of this time; at 0 no wait of an arrival is over.
    let open_at = |broker: &Broker, now| broker.handle.controller().let_on(now, true);
    let open = |broker: &Broker| open_at(broker, 0);
    // It is unknown whether its memory is free again; another program took memory meanwhile.
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
        .controller()
        .read(&reading(2, "gpu", 3 * GB, clock::now() + 3_000_000_000));
    open(&broker);
    assert_eq!(
        (standing(&first), standing(&second)),
        (AdmissionState::Waits, AdmissionState::Unknown)
    );
    assert_eq!(broker.handle.queue().waiting.len(), 1, "who turned round is nowhere");
    broker
        .handle
        .controller()
        .read(&reading(3, "gpu", 8 * GB, clock::now() + 3_000_000_000));
    assert_eq!(standing(&first), AdmissionState::Admitted);
    // Without a sample the last probe counts, and later a better one.
    broker.handle.gone(first.client);
    // The samples above have times some seconds ahead.
    broker.handle.controller().parts().2.forget_when();
    let late = comes(&mut broker, Some(&reading(4, "gpu", 3 * GB, clock::now())));
    assert_eq!(standing(&late), AdmissionState::Unknown);
    open_at(&broker, clock::now() + arrivals::LONGEST_HOLD_NS);
    assert_eq!(standing(&late), AdmissionState::Waits);
    broker
        .handle
        .controller()
        .read(&reading(5, "gpu", 8 * GB, clock::now() + 3_000_000_000));
    assert_eq!(standing(&late), AdmissionState::Admitted);
    broker.handle.controller().parts().2.forget_when();
    // NVML does not report a device that it knows by another name, and no client waits for it.
    broker.handle.gone(late.client);
    let other = reading(6, "MIG", 0, clock::now());
    assert_eq!(standing(&comes(&mut broker, Some(&other))), AdmissionState::Admitted);
    broker.handle.controller().read(&reading(7, "gpu", 0, clock::now()));
    let last = comes(&mut broker, None);
    assert_eq!(standing(&last), AdmissionState::Unknown);
    broker.handle.controller().let_on(clock::now(), false);
    assert_ne!(standing(&last), AdmissionState::Unknown);
}
