// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples taken while a job is served correct a wrong profile.

use super::*;

/// True time of the background job's kernel.
const TRUE_NS: Ns = 900 * US;

/// A background job after this many true samples. Its profile gives a third of the true time.
fn sampled(samples: usize) -> Bench {
    let mut bench = Bench::new(profile(99, TRUE_NS / 3));
    bench.requests(40, 5 * MS);
    for _ in 0..samples {
        bench.tell(Event::Sampled {
            client: TRAINING,
            kernel: 99,
            time: TRUE_NS,
            at: bench.now,
        });
    }
    bench
}

/// Whether the kernel goes with 500 us left of a gap of 5 ms.
fn goes_late(mut bench: Bench) -> bool {
    bench.request();
    bench.now += 5 * MS - 500 * US;
    is_grant(&bench.waits(TRUE_NS / 3))
}

#[test]
fn a_kernel_that_takes_longer_than_its_profile_says_no_longer_goes_where_it_does_not_fit() {
    assert!(goes_late(sampled(0)), "300 us would fit");
    assert!(!goes_late(sampled(60)), "900 us do not");
}
