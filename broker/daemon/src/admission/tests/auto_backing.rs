// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs with auto backing.

use super::*;

fn open(broker: &mut Broker, pid: u32, gang: &str, memory: u64) -> Arc<Entry> {
    let entry = broker.new_job(pid, format!("job {gang}"));
    broker.handle.wants(&entry, &ToTheClient::nobody(), wants(gang, memory));
    entry
}

fn wants(gang: &str, memory: u64) -> Wants {
    Wants {
        uuid: "gpu".into(),
        total: 8 * GB,
        memory: Some(memory),
        gang: gang.into(),
        processes: 1,
        either: true,
        ..Wants::default()
    }
}

/// An admission slot's state, whether its memory is managed, and its quota.
fn admission_slot(entry: &Entry) -> (AdmissionState, bool, u64) {
    let admission_slot = &entry.lane.admission_slot;
    (
        admission_slot.state(),
        admission_slot.is_managed(),
        admission_slot.quota.load(Ordering::Acquire),
    )
}

fn memory_of(broker: &Broker, pid: u32) -> String {
    let running = broker.handle.queue().running;
    let row = running.iter().find(|row| row.pid == pid);
    row.map(|row| row.memory.clone()).unwrap_or_default()
}

#[test]
fn the_admission_slot_says_what_was_decided_and_weft_queue_why() {
    let mut broker = Broker::begin(None);
    let first = open(&mut broker, 1, "a", 6 * GB);
    let second = open(&mut broker, 2, "b", 6 * GB);
    let plain = broker.comes(3, "c", 6 * GB, None);
    assert_eq!(admission_slot(&first), (AdmissionState::Admitted, false, 6 * GB));
    // A managed job has no quota.
    assert_eq!(admission_slot(&second), (AdmissionState::Admitted, true, 0));
    assert_eq!(standing(&plain), AdmissionState::Waits, "it did not leave it open");
    assert_eq!(memory_of(&broker, 1), "device");
    assert_eq!(memory_of(&broker, 2), "managed: did not fit");
    // A further process has its job's backing.
    assert!(admission_slot(&open(&mut broker, 4, "b", 6 * GB)).1);
    assert!(!admission_slot(&open(&mut broker, 5, "a", 6 * GB)).1);
    // A job keeps its backing when memory becomes free.
    broker.handle.gone(first.client);
    assert!(admission_slot(&second).1);
}

#[test]
fn after_a_restart_each_is_what_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let (one, two) = (Somebody::new(), Somebody::new());
    let mut first = Broker::begin(Some(&file));
    assert!(!admission_slot(&open(&mut first, one.pid(), "a", 6 * GB)).1);
    assert!(admission_slot(&open(&mut first, two.pid(), "b", 6 * GB)).1);
    let mut second = Broker::begin(Some(&file));
    let back = second.new_job(two.pid(), "job b".into());
    let runs = Wants {
        managed: true,
        either: false,
        runs: Some(0),
        ..wants("b", 6 * GB)
    };
    second.handle.wants(&back, &ToTheClient::nobody(), runs);
    assert_eq!(admission_slot(&back), (AdmissionState::Admitted, true, 0));
    assert_eq!(memory_of(&second, two.pid()), "managed: did not fit");
    // The first broker had admitted it on managed memory, but the job did not get the message.
    let mut third = Broker::begin(Some(&file));
    let deaf = third.new_job(two.pid(), "job b".into());
    let runs = Wants {
        either: false,
        runs: Some(GB),
        ..wants("b", 6 * GB)
    };
    third.handle.wants(&deaf, &ToTheClient::nobody(), runs);
    assert!(!admission_slot(&deaf).1);
    assert_eq!(memory_of(&third, two.pid()), "device");
}

#[test]
fn who_began_before_it_heard_has_device_memory() {
    let mut broker = Broker::begin(None);
    open(&mut broker, 1, "a", 6 * GB);
    let second = open(&mut broker, 2, "b", 6 * GB);
    broker.handle.on_device(second.client);
    assert_eq!(admission_slot(&second), (AdmissionState::Admitted, false, 6 * GB));
    assert_eq!(memory_of(&broker, 2), "device");
    // There is no sample of its device yet: no reading, although NVML reports devices.
    let late = broker.new_job(3, "late".into());
    let new_job = (&late, &ToTheClient::nobody(), wants("c", 6 * GB));
    broker.handle.controller().arrive(new_job, true, None);
    broker.handle.on_device(late.client);
    broker.handle.controller().let_on(clock::now(), false);
    assert_eq!(
        (standing(&late), late.lane.admission_slot.is_managed()),
        (AdmissionState::Waits, false)
    );
}

#[test]
fn who_waits_is_told_with_its_admission() {
    let mut broker = Broker::begin(None);
    let full = broker.comes(1, "a", 8 * GB, None);
    let open = open(&mut broker, 2, "b", 6 * GB);
    assert_eq!(
        (standing(&open), open.lane.admission_slot.is_managed()),
        (AdmissionState::Waits, false)
    );
    broker.handle.gone(full.client);
    assert_eq!(admission_slot(&open), (AdmissionState::Admitted, false, 6 * GB));
}

#[test]
fn a_job_whose_control_group_could_not_hold_it_has_device_memory_and_weft_queue_says_why() {
    let mut broker = Broker::begin(None);
    let first = open(&mut broker, 1, "a", 6 * GB);
    let grouped = |broker: &mut Broker, pid: u32, gang: &str, memory: u64, host: u64| {
        let entry = broker.new_job(pid, format!("job {gang}"));
        let said = Wants {
            host: Some(host),
            ..wants(gang, memory)
        };
        broker.handle.wants(&entry, &ToTheClient::nobody(), said);
        entry
    };
    let roomy = grouped(&mut broker, 2, "b", 4 * GB, 4 * GB);
    assert_eq!(
        admission_slot(&roomy),
        (AdmissionState::Admitted, true, 0),
        "all of it may lie on the host"
    );
    let cramped = grouped(&mut broker, 3, "c", 4 * GB, 4 * GB - 1);
    assert_eq!(standing(&cramped), AdmissionState::Waits);
    let [row] = &broker.handle.queue().waiting[..] else {
        panic!("one waits")
    };
    assert!(
        row.reason.contains("device memory") && row.reason.contains("its control group, which leaves"),
        "{}",
        row.reason
    );
    // With device memory it begins when there is room.
    broker.handle.gone(first.client);
    assert_eq!(admission_slot(&cramped), (AdmissionState::Admitted, false, 4 * GB));
    // A job that asks for managed memory gets it, with a warning.
    let entry = broker.new_job(4, "job d".into());
    let asked = Wants {
        host: Some(GB),
        managed: true,
        either: false,
        ..wants("d", 4 * GB)
    };
    broker.handle.wants(&entry, &ToTheClient::nobody(), asked);
    assert!(admission_slot(&entry).1);
}
