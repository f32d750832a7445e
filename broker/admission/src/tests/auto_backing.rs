// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs with auto backing.

use super::super::*;
use weft_protocol::Ns;

const GB: u64 = 1_000_000_000;
const S: Ns = 1_000_000_000;

fn machine(host_memory: u64) -> Admission {
    let mut machine = Admission::new(AdmissionConfig {
        host_memory,
        ..AdmissionConfig::default()
    });
    let device = Device {
        context: GB / 2,
        ..Device::new(DeviceId(0), 16 * GB)
    };
    machine.handle(0, Event::Device(device), &mut Vec::new());
    machine
}

fn plain(job: u64, peak: u64) -> Ask {
    Ask {
        job: Job(job),
        user: User(job as u32),
        priority: 5,
        need: Need::plain(peak, 600 * S),
        devices: Vec::new(),
    }
}

fn open(job: u64, peak: u64) -> Ask {
    let mut ask = plain(job, peak);
    ask.need.backing = Backing::Auto {
        working_set: peak.min(16 * GB),
    };
    ask
}

fn asks(machine: &mut Admission, ask: Ask) -> Option<Backing> {
    let job = ask.job;
    machine.handle(1, Event::Asks(ask), &mut Vec::new());
    machine.backing(job)
}

#[test]
fn what_fits_is_device_memory_and_what_does_not_begins_at_once_on_managed_memory() {
    let mut machine = machine(u64::MAX);
    assert_eq!(asks(&mut machine, open(1, 10 * GB)), Some(Backing::Device));
    assert_eq!(machine.share(Job(1)), Some((DeviceId(0), 10 * GB + GB / 2)));
    // 5 GB are free, 4.5 next to its context.
    let beyond = |working_set| Some(Backing::AutoManaged { working_set });
    assert_eq!(asks(&mut machine, open(2, 8 * GB)), beyond(8 * GB));
    assert_eq!(machine.share(Job(2)), Some((DeviceId(0), GB / 2)));
    // A job that fits next to it still gets device memory.
    assert_eq!(asks(&mut machine, open(3, GB)), Some(Backing::Device));
    // It stays managed when the others have ended, and later jobs do not move either.
    machine.handle(2, Event::Ends(Job(1)), &mut Vec::new());
    assert_eq!(machine.backing(Job(2)), beyond(8 * GB));
    assert_eq!(asks(&mut machine, open(4, 8 * GB)), Some(Backing::Device));
}

#[test]
fn nobody_has_less_for_it() {
    let mut machine = machine(u64::MAX);
    let mut out = Vec::new();
    assert!(asks(&mut machine, plain(1, 8 * GB)).is_some());
    assert!(asks(&mut machine, open(2, 8 * GB)).is_some_and(Backing::is_managed));
    // The promised bytes are there, and free bytes except the part that must fit: 16 - 8.5 -
    // 0.5 - 2.
    for (more, granted) in [(4 * GB, true), (3 * GB / 2, false)] {
        machine.handle(2, Event::Grows(Job(1), more), &mut out);
        assert_eq!(matches!(out.pop(), Some(Decision::Grant { .. })), granted, "{more}");
    }
}

#[test]
fn it_waits_where_it_could_not_run_either_way() {
    // No room for the part that must fit.
    let mut machine_full = machine(u64::MAX);
    assert!(asks(&mut machine_full, plain(1, 14 * GB)).is_some());
    assert_eq!(asks(&mut machine_full, open(2, 8 * GB)), None);
    assert!(machine_full.waits(Job(2)));
    let mut out = Vec::new();
    machine_full.handle(3, Event::Ends(Job(1)), &mut out);
    assert_eq!(machine_full.backing(Job(2)), Some(Backing::Device), "{out:?}");
    // No room on the host.
    let mut poor = machine(4 * GB);
    assert!(asks(&mut poor, plain(1, 10 * GB)).is_some());
    assert_eq!(asks(&mut poor, open(2, 8 * GB)), None);
    // Too much for the link: 12 GB each way a round.
    let mut busy = machine(u64::MAX);
    assert!(asks(&mut busy, plain(1, 10 * GB)).is_some());
    assert_eq!(asks(&mut busy, open(2, 16 * GB)), None);
}

#[test]
fn what_exceeds_the_device_runs_and_what_the_host_cannot_hold_is_refused() {
    let mut wide = machine(40 * GB);
    assert!(asks(&mut wide, open(1, 20 * GB)).is_some_and(Backing::is_managed));
    let mut out = Vec::new();
    wide.handle(2, Event::Asks(open(2, 41 * GB)), &mut out);
    assert!(
        matches!(
            out.as_slice(),
            [Decision::Refuse {
                why: Never::Host { .. },
                ..
            }]
        ),
        "{out:?}"
    );
}

#[test]
fn a_reservation_is_kept_from_it() {
    let mut machine = machine(u64::MAX);
    assert!(asks(&mut machine, plain(1, 10 * GB)).is_some());
    assert!(asks(&mut machine, plain(2, 15 * GB)).is_none());
    // The large job is due and reserves the device for the first one's end: no job that stays
    // longer begins in the meantime.
    machine.handle(700 * S, Event::Tick, &mut Vec::new());
    let mut long = open(3, 12 * GB);
    long.need.expected = 4 * 3600 * S;
    machine.handle(700 * S, Event::Asks(long), &mut Vec::new());
    assert!(machine.waits(Job(3)));
}

#[test]
fn who_began_without_the_word_is_counted_where_it_is() {
    let mut machine = machine(u64::MAX);
    assert!(asks(&mut machine, plain(1, 10 * GB)).is_some());
    assert!(asks(&mut machine, open(2, 8 * GB)).is_some_and(Backing::is_managed));
    machine.handle(2, Event::OnDevice(Job(2)), &mut Vec::new());
    assert_eq!(machine.backing(Job(2)), Some(Backing::Device));
    assert_eq!(machine.share(Job(2)), Some((DeviceId(0), 8 * GB + GB / 2)));
    assert!(!machine.waits(Job(2)));
}

#[test]
fn of_several_devices_one_with_room_comes_first() {
    let mut machine = machine(u64::MAX);
    let mut out = Vec::new();
    machine.handle(0, Event::Device(Device::new(DeviceId(1), 40 * GB)), &mut out);
    let mut first = plain(1, 12 * GB);
    first.devices = vec![DeviceId(0)];
    assert!(asks(&mut machine, first).is_some());
    let candidate = Candidate {
        ask: open(9, 6 * GB),
        declared: true,
    };
    let placed = machine.best_place(2, &candidate, &[], &[]).expect("a place");
    assert_eq!((placed.device, placed.beyond), (DeviceId(1), false));
}
