// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::Aggregator;

const US: Ns = 1_000;
const A: u64 = 1;
const B: u64 = 2;

/// Two kernels of 100 and 20 us, each timed a hundred times, within 1 %; a gap of 1 ms after the
/// first.
fn good() -> Profile {
    let mut run = Aggregator::new();
    for step in 0..100 {
        run.sampled(A, 100 * US + step * 10, Some(1_000 * US));
        run.sampled(B, 20 * US + step, None);
    }
    run.memory(1 << 30);
    run.finish("job", 7)
}

fn served(samples: impl IntoIterator<Item = (u64, Ns, OtherJobs)>) -> Served {
    let mut served = Served::default();
    for (kernel, time, beside) in samples {
        served.timed(&Timed {
            kernel,
            time,
            gap: (kernel == A).then_some(1_000 * US),
            beside,
        });
    }
    served
}

fn times(kernel: u64, time: Ns, count: usize, beside: OtherJobs) -> impl Iterator<Item = (u64, Ns, OtherJobs)> {
    (0..count).map(move |step| (kernel, time + step as Ns, beside))
}

fn middle(profile: &Profile, kernel: u64) -> Ns {
    let known = profile.kernel(kernel).expect("listed");
    known.time.quantile(0.5).expect("timed")
}

#[test]
fn wrong_times_become_right_in_one_served_run() {
    for beside in [OtherJobs::BackgroundJobs, OtherJobs::ForegroundJobs] {
        for wrong in [30 * US, 300 * US] {
            let mut profile = good();
            let seen = served(times(A, wrong, 40, beside).chain(times(B, 20 * US, 40, beside)));
            let refined = profile.refine(&seen, 4_000).expect("it is the job");
            assert_eq!(refined.replaced, 1, "{beside:?}: {refined:?}");
            assert!(middle(&profile, A).abs_diff(wrong) < wrong / 20, "{beside:?}");
            assert!(middle(&profile, B).abs_diff(20 * US) < US);
            assert_eq!((profile.refined, profile.memory_peak, profile.taken), (1, 1 << 30, 7));
            assert_eq!(profile.unsound(), None);
        }
    }
}

#[test]
fn what_others_made_longer_spoils_nothing() {
    // Another job's turn interrupts two in three of a background job's kernels. When jobs of equal
    // rank run, all kernels take three times as long.
    let cut = (0..60).map(|step| {
        (
            A,
            if step % 3 == 0 { 100 * US } else { 1_600 * US },
            OtherJobs::ForegroundJobs,
        )
    });
    let beside = times(A, 300 * US, 60, OtherJobs::Others);
    // One in five kernels of a foreground job is a burst's first, which waits for background work.
    let first = (0..60).map(|step| {
        (
            A,
            if step % 5 == 0 { 500 * US } else { 100 * US + step },
            OtherJobs::BackgroundJobs,
        )
    });
    for seen in [served(cut), served(beside), served(first)] {
        let mut profile = good();
        for _ in 0..20 {
            profile.refine(&seen, 1_000).expect("it is the job");
        }
        let kernel = profile.kernel(A).expect("listed");
        for part in [0.1, 0.5, 0.9, 1.0] {
            let says = kernel.time.quantile(part).expect("timed");
            assert!(says.abs_diff(100 * US) < 5 * US, "{part}: {says}");
        }
        assert_eq!(profile.unsound(), None);
    }
}

#[test]
fn a_few_odd_times_change_nothing() {
    let mut profile = good();
    let few = SURE as usize - 1;
    let seen = served(times(A, 900 * US, few, OtherJobs::BackgroundJobs).chain(times(
        B,
        20 * US,
        20,
        OtherJobs::BackgroundJobs,
    )));
    let refined = profile.refine(&seen, 1_000).expect("it is the job");
    assert_eq!((refined.replaced, refined.confirmed), (0, 1));
    assert_eq!(middle(&profile, A), middle(&good(), A));
    let before = profile.clone();
    let little = served(times(A, 100 * US, FEW as usize - 1, OtherJobs::BackgroundJobs));
    assert!(matches!(profile.refine(&little, 100), Err(Unrefined::Few(_))));
    assert_eq!(profile, before);
}

#[test]
fn another_job_of_the_same_name_changes_nothing() {
    let mut profile = good();
    let seen = served(times(A, 900 * US, 40, OtherJobs::BackgroundJobs).chain(times(
        99,
        5 * US,
        41,
        OtherJobs::BackgroundJobs,
    )));
    let error = profile.refine(&seen, 1_000).expect_err("most of it is unknown");
    assert!(
        matches!(
            error,
            Unrefined::AnotherJob {
                known: 40,
                samples: 81,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("\"job\"") && !error.to_string().contains('\n'));
    assert_eq!(profile, good());
    // Another device's times do not count.
    profile.gpu = crate::profile::tests::gpu("NVIDIA A100");
    let before = profile.clone();
    let mut elsewhere = served(times(A, 900 * US, 40, OtherJobs::BackgroundJobs));
    elsewhere.device(crate::profile::tests::gpu("NVIDIA H100"));
    assert!(matches!(profile.refine(&elsewhere, 1_000), Err(Unrefined::OtherGpu(_))));
    assert_eq!(profile, before);
}

#[test]
fn what_was_not_known_is_added_with_its_part_of_the_launches() {
    let mut profile = good();
    let seen = served(times(A, 100 * US, 60, OtherJobs::BackgroundJobs).chain(times(
        3,
        50 * US,
        20,
        OtherJobs::ForegroundJobs,
    )));
    let refined = profile.refine(&seen, 8_000).expect("it is the job");
    assert_eq!((refined.added, refined.confirmed), (1, 1));
    let new = profile.kernel(3).expect("added");
    assert_eq!((new.launches, new.gap.count()), (2_000, 0));
    assert_eq!(new.id.symbol, "unnamed:0000000000000003");
    // A profile that has only a memory peak accepts all samples.
    let mut empty = Profile::default();
    let mut seen = served(times(A, 100 * US, 60, OtherJobs::Others));
    let id = KernelId::new(0, "k", [1; 3], [32, 1, 1], 0);
    seen.named(A, id.clone());
    seen.device(crate::profile::tests::gpu("NVIDIA A100"));
    assert_eq!(empty.refine(&seen, 60).expect("all of it").added, 1);
    assert_eq!(empty.kernel(A).expect("added").id, id);
    assert_eq!(empty.gpu.name, "NVIDIA A100");
    assert_eq!(empty.unsound(), None);
}

#[test]
fn ceiling_of_what_is_kept() {
    let mut profile = good();
    for round in 0..400 {
        let seen = served(times(A, 100 * US + round % 7, 200, OtherJobs::BackgroundJobs));
        profile.refine(&seen, 1_000).expect("it is the job");
    }
    let kernel = profile.kernel(A).expect("listed");
    assert!(kernel.time.count() <= MOST && kernel.gap.count() <= MOST, "{kernel:?}");
    assert!(middle(&profile, A).abs_diff(100 * US) < 3 * US);
    let mut many = Served::default();
    for kernel in 0..2 * MAX_KERNELS as u64 {
        many.timed(&Timed {
            kernel,
            time: u64::MAX,
            gap: Some(u64::MAX),
            beside: OtherJobs::BackgroundJobs,
        });
    }
    assert_eq!(many.samples(), MAX_KERNELS as u64);
    assert_eq!(
        profile
            .refine(&many, 1)
            .map(|_| ())
            .map_err(|error| matches!(error, Unrefined::AnotherJob { .. })),
        Err(true)
    );
}
