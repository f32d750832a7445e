// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several foreground jobs of one priority: the one that leaves the least room decides.

use super::*;

const PEER: Client = Client(3);

impl Bench {
    /// Adds a second, unknown service of the same priority.
    fn with_a_peer() -> Bench {
        let mut bench = Bench::new(profile(99, 300 * US));
        bench.tell(Event::Attached {
            client: PEER,
            priority: 0,
            profile: None,
        });
        bench
    }

    /// A client's request: all launches at once.
    fn begins(&mut self, client: Client) {
        for kernel in 3..=LAST {
            let at = self.now;
            self.tell(Event::Launched {
                client,
                kernel: kernel + 100 * client.0,
                cost: 100 * US,
                at,
            });
        }
    }

    fn idle(&mut self, client: Client) -> Vec<Decision> {
        let at = self.now;
        self.tell(Event::Idle(client, at))
    }

    /// 6 ms: the service works for 1 and pauses for 5; its peer works for 1 and pauses for 2,
    /// twice.
    fn round(&mut self) {
        self.begins(SERVICE);
        self.begins(PEER);
        self.now += MS;
        self.idle(SERVICE);
        self.idle(PEER);
        self.now += 2 * MS;
        self.begins(PEER);
        self.now += MS;
        self.idle(PEER);
        self.now += 2 * MS;
    }

    /// Both have just ended: the peer comes back in 2 ms, the service in 5.
    fn both_pause() -> Bench {
        let mut bench = Bench::with_a_peer();
        (0..15).for_each(|_| bench.round());
        bench.begins(SERVICE);
        bench.begins(PEER);
        bench.now += MS;
        bench.idle(SERVICE);
        bench.idle(PEER);
        bench
    }
}

#[test]
fn both_are_foreground_jobs_and_neither_is_told_to_wait() {
    let bench = Bench::both_pause();
    for client in [SERVICE, PEER] {
        let view = bench.core.snapshot().client(client).cloned().expect("attached");
        assert_eq!(view.mode, "foreground", "{view:?}");
    }
}

#[test]
fn nothing_goes_while_one_of_two_foreground_jobs_works() {
    let mut bench = Bench::both_pause();
    bench.now += 2 * MS;
    bench.begins(PEER);
    bench.now += 500 * US;
    assert!(!is_grant(&bench.waits(300 * US)), "the service pauses, its peer works");
    bench.now += 500 * US;
    let out = bench.idle(PEER);
    assert!(
        is_grant(&out) || bench.granted().is_some(),
        "both pause, for 2 ms and more"
    );
}

#[test]
fn a_kernel_has_to_fit_what_the_earlier_of_two_foreground_jobs_leaves() {
    let mut bench = Bench::both_pause();
    let begin = bench.now;
    assert!(is_grant(&bench.waits(300 * US)), "2 ms and 5 ms are left");
    bench.done(300 * US);
    bench.now = begin + 1_850 * US;
    assert!(
        !is_grant(&bench.waits(300 * US)),
        "the peer is due in 150 us, the service in 3 ms"
    );
    let out = bench.tell(Event::Gone(PEER));
    assert!(is_grant(&out) || bench.granted().is_some());
}

#[test]
fn a_background_job_that_becomes_a_foreground_job_leaves_no_work_behind() {
    let mut bench = Bench::new(profile(99, 300 * US));
    bench.requests(20, 5 * MS);
    bench.request();
    assert!(is_grant(&bench.waits(300 * US)));
    let (client, issued) = (TRAINING, 300 * US);
    bench.tell(Event::Progress {
        client,
        issued,
        settled: 0,
    });
    let outstanding = |bench: &Bench| {
        let view = bench.core.snapshot().client(TRAINING).cloned();
        view.expect("attached").outstanding
    };
    assert_eq!(outstanding(&bench), 300 * US);
    let out = bench.tell(Event::Priority(TRAINING, 0));
    assert!(out.contains(&Decision::Mode(TRAINING, Mode::Foreground)), "{out:?}");
    assert_eq!(outstanding(&bench), 0, "a foreground job reports no ends");
    // Its last launch as a background job is reported late.
    bench.tell(Event::Progress {
        client,
        issued: issued + 40 * US,
        settled: 0,
    });
    assert_eq!(outstanding(&bench), 0);
}

#[test]
fn a_foreground_job_made_less_important_no_longer_decides() {
    let mut bench = Bench::both_pause();
    bench.now += 1_850 * US;
    assert!(!is_grant(&bench.waits(300 * US)));
    let out = bench.tell(Event::Priority(PEER, 7));
    assert!(out.contains(&Decision::Mode(PEER, Mode::Background)), "{out:?}");
    assert!(is_grant(&out) || bench.granted().is_some(), "{out:?}");
}
