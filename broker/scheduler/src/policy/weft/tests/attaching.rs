// SPDX-License-Identifier: MIT OR Apache-2.0
//! A foreground job without a profile attaches while a background job runs: the delays of its first
//! request. Its kernels are reported as 20 us each, and take ten times as long.

use super::*;

const KERNELS: u64 = 40;
const TOLD_NS: Ns = 20 * US;
const TAKES_NS: Ns = 200 * US;
const STEP_NS: Ns = 100 * US;

/// A background job with a profile, which waits at the gate, and then a service.
fn attached() -> Core {
    let mut core = Core::new(Config::default());
    let training = profile(99, 150 * US);
    tell(&mut core, 0, attaches(TRAINING, 5, training));
    tell(&mut core, MS, attaches(SERVICE, 0, None));
    core
}

fn attaches(client: Client, priority: u8, profile: Option<Arc<Profile>>) -> Event {
    Event::Attached {
        client,
        priority,
        profile,
    }
}

/// Takes in the event, and answers revocations. Counts its grants for gaps: the minimum share's
/// are not bound.
fn tell(core: &mut Core, now: Ns, event: Event) -> usize {
    let mut out = Vec::new();
    core.handle(now, event, &mut out);
    let revoked = |one: &Decision| matches!(one, Decision::Revoke(_));
    if out.iter().any(revoked) {
        let left = core.snapshot().client(TRAINING).map_or(0, |view| view.left);
        let answer = Event::Revoked { client: TRAINING, left };
        core.handle(now, answer, &mut out);
    }
    let for_gaps = |one: &&Decision| matches!(one, Decision::Grant { bound: true, .. });
    out.iter().filter(for_gaps).count()
}

fn waits(core: &mut Core, now: Ns) -> usize {
    let wait = Event::Waits {
        client: TRAINING,
        kernel: 99,
        cost: 150 * US,
        since: now,
    };
    tell(core, now, wait)
}

/// A request's launches, all at `now`.
fn launches(core: &mut Core, now: Ns) {
    for _ in 0..KERNELS {
        let launch = Event::Launched {
            client: SERVICE,
            kernel: LAST,
            cost: TOLD_NS,
            at: now,
        };
        tell(core, now, launch);
    }
}

/// When the first grant is given to a background job that waits from `now` on.
fn granted_at(core: &mut Core, now: Ns, until: Ns) -> Option<Ns> {
    let mut grants = waits(core, now);
    (now..until).step_by(STEP_NS as usize).find(|now| {
        grants += tell(core, *now, Event::Tick);
        grants > 0
    })
}

#[test]
fn nothing_goes_into_a_first_request_before_its_end_is_seen() {
    let mut core = attached();
    launches(&mut core, 10 * MS);
    let end = 10 * MS + KERNELS * TAKES_NS;
    assert_eq!(granted_at(&mut core, 10 * MS, end), None);
    tell(&mut core, end, Event::Idle(SERVICE, end));
    let after = granted_at(&mut core, end + US, end + 5 * MS);
    assert!(after.is_some(), "what was seen to end leaves the device");
    // The next request is alike, and the model learnt from the first one's end.
    launches(&mut core, 30 * MS);
    assert_eq!(granted_at(&mut core, 30 * MS, 30 * MS + 6 * MS), None);
}

#[test]
fn a_job_that_never_waits_keeps_others_out_for_a_bounded_time() {
    let mut core = attached();
    launches(&mut core, 10 * MS);
    let bound = 10 * MS + Config::default().starving_after / 2;
    // Late enough that the minimum share is not due yet.
    let first = granted_at(&mut core, bound - 5 * MS, bound + 10 * MS);
    assert!(first.is_some_and(|at| at >= bound), "{first:?}");
}
