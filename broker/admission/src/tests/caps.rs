// SPDX-License-Identifier: MIT OR Apache-2.0
//! Caps on one user's jobs and memory.

use super::*;

fn cap(user: u32, jobs: Option<u32>, memory: Option<u64>) -> Event {
    Event::Cap(User(user), UserCap { jobs, memory })
}

fn refusals(decisions: &[Decision]) -> Vec<(u64, String)> {
    let refused = |decision: &Decision| match decision {
        Decision::Refuse { job, why } => Some((job.0, why.to_string())),
        _ => None,
    };
    decisions.iter().filter_map(refused).collect()
}

#[test]
fn a_user_at_the_cap_waits_for_an_own_job_and_nobody_waits_for_that_user() {
    for policy in EVERY {
        let mut bench = Bench::new(policy);
        bench.tell(cap(1, Some(2), None));
        assert_eq!(bench.asks(ask(1, 1, GB, 60)), [1]);
        assert_eq!(bench.asks(ask(2, 1, GB, 60)), [2]);
        assert_eq!(bench.asks(ask(3, 1, GB, 60)), [0; 0], "{policy}");
        let view = bench.machine.view();
        let waiter = &view.waiting[0];
        assert_eq!((waiter.capped, waiter.lack), (Some(CapLack::Jobs(2)), None));
        // Long after its turn came it keeps no job out, neither other jobs nor their reservations.
        bench.now = 90_000 * S;
        assert!(!bench.machine.view().waiting[0].due);
        assert_eq!(bench.asks(ask(4, 2, 13 * GB / 2, 60)), [4], "{policy}");
        assert_eq!(bench.asks(ask(5, 3, GB, 60)), [5], "{policy}");
        assert_eq!(bench.admits(Event::Ends(Job(4))), [0; 0], "{policy}");
        assert_eq!(bench.admits(Event::Ends(Job(1))), [3], "{policy}");
    }
}

#[test]
fn memory_counts_on_all_devices_with_contexts() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    bench.tell(device(1, 16 * GB));
    bench.tell(cap(1, None, Some(8 * GB)));
    let on = |job, peak, device| Ask {
        devices: vec![DeviceId(device)],
        ..ask(job, 1, peak, 60)
    };
    assert_eq!(bench.asks(on(1, 4 * GB, 0)), [1]);
    // 4.5 and 3.5 GB with its context.
    assert_eq!(bench.asks(on(2, 3 * GB, 1)), [2]);
    assert_eq!(bench.asks(on(3, GB, 1)), [0; 0]);
    let capped = bench.machine.view().waiting[0].capped;
    let (has, most) = (8 * GB, 8 * GB);
    assert_eq!(capped, Some(CapLack::Memory { has, most }));
    let refused = refusals(&bench.tell(Event::Asks(on(4, 8 * GB, 1))));
    assert_eq!(
        refused,
        [(
            4,
            "it needs 7.92 GiB, and its user may have 7.45 GiB of device memory at once (a cap of this broker)"
                .to_string()
        )]
    );
    assert_eq!(bench.admits(Event::Ends(Job(2))), [3]);
    // Running jobs' memory is never taken back, and they grow no more.
    bench.tell(cap(1, None, Some(GB)));
    assert!(bench.machine.share(Job(1)).is_some());
    let out = bench.tell(Event::GrowsInTime(Job(1), GB));
    assert!(matches!(out[..], [Decision::Deny { job: Job(1), .. }]), "{out:?}");
    assert_eq!(bench.machine.cap_left(Job(1)), Some(0));
    bench.tell(cap(1, None, None));
    let out = bench.tell(Event::Grows(Job(1), GB));
    assert!(matches!(out[..], [Decision::Grant { .. }]), "{out:?}");
}

#[test]
fn a_lower_cap_refuses_waiters_that_it_leaves_no_room_for() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    assert_eq!(bench.asks(ask(1, 2, 15 * GB, 60)), [1]);
    for (job, peak) in [(2, 4 * GB), (3, GB)] {
        assert_eq!(bench.asks(ask(job, 1, peak, 60)), [0; 0]);
    }
    let refused = refusals(&bench.tell(cap(1, None, Some(2 * GB))));
    assert_eq!(refused.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [2]);
    assert!(bench.machine.waits(Job(3)) && !bench.machine.waits(Job(2)));
    let refused = refusals(&bench.tell(cap(1, Some(0), None)));
    assert_eq!(
        refused,
        [(3, "its user may run no jobs here (a cap of this broker)".to_string())]
    );
}

#[test]
fn a_part_on_a_further_device_is_no_job_and_waits_for_no_cap() {
    let mut bench = Bench::new(AdmissionPolicy::Weft);
    bench.tell(device(1, 16 * GB));
    bench.tell(cap(1, Some(1), Some(10 * GB)));
    let on = |job, peak, device| Ask {
        devices: vec![DeviceId(device)],
        ..ask(job, 1, peak, 60)
    };
    assert_eq!(bench.asks(on(1, 4 * GB, 0)), [1]);
    bench.tell(Event::IsPart(Job(2)));
    assert_eq!(bench.asks(on(2, 4 * GB, 1)), [2], "it is of a job that runs");
    bench.tell(Event::IsPart(Job(3)));
    let refused = refusals(&bench.tell(Event::Asks(on(3, 4 * GB, 1))));
    assert_eq!(refused.len(), 1, "it would wait for its own job");
    assert!(
        refused[0].1.starts_with("it needs 4.19 GiB on a further device"),
        "{refused:?}"
    );
}
