// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invariants of the machine, on a device small enough for short runs.

use weft_engine::memory::MemorySettings;
use weft_profiles::working_set::Access;

use super::contender::{ALL, Contender};
use super::machine::{Setting, TurnSource, default_rule, run, working_set};
use super::workload::{PagedJob, generate};
use crate::{MS, US};

/// A device of an eighth of a gigabyte, so that runs are short.
fn setting(duplex: bool) -> Setting {
    Setting {
        memory: MemorySettings {
            capacity: 128 << 20,
            duplex,
            ..MemorySettings::default()
        },
        slice: 2 * MS,
        device_slice: 100 * US,
        turns: TurnSource::Common,
    }
}

#[test]
fn what_fits_runs_as_if_alone() {
    for name in ["decoders", "rodinia"] {
        let mut setting = setting(true);
        let workload = generate(name, setting.memory.capacity, 100, 1);
        // Sizes are rounded up to blocks, which on this small device gives more than the requested
        // share.
        setting.memory.capacity = workload.jobs.iter().map(PagedJob::bytes).sum();
        for contender in [Contender::Ideal, Contender::Stock, Contender::Weft] {
            let figures = run(contender, &workload, &setting);
            assert!(figures.efficiency > 0.99, "{name}, {contender:?}: {figures:?}");
        }
    }
}

#[test]
fn figures_come_again_and_stay_within_what_there_is() {
    for duplex in [true, false] {
        let setting = setting(duplex);
        let workload = generate("cnns", setting.memory.capacity, 200, 1);
        for contender in ALL {
            let figures = run(contender, &workload, &setting);
            assert_eq!(figures, run(contender, &workload, &setting), "{contender:?}");
            assert!(
                figures.efficiency > 0.0 && figures.efficiency <= 1.0,
                "{contender:?}: {figures:?}"
            );
            assert!(figures.fullest <= 1.0, "{contender:?}: {figures:?}");
            let moved = figures.prefetched_gb + figures.faulted_gb;
            assert_eq!(moved > 0.0, contender != Contender::Ideal, "{contender:?}: {figures:?}");
        }
    }
}

#[test]
fn a_copy_that_nobody_writes_leaves_for_nothing() {
    let setting = setting(false);
    let workload = generate("decoders", setting.memory.capacity, 200, 1);
    let weft = run(Contender::Weft, &workload, &setting);
    let copies = run(Contender::NoDuplication, &workload, &setting);
    assert!(weft.dropped_gb > 0.0 && copies.dropped_gb == 0.0, "{weft:?} {copies:?}");
    assert!(weft.out_gb < copies.out_gb, "{weft:?} {copies:?}");
}

#[test]
fn what_is_written_whole_is_predicted_to_be_dead_before() {
    let workload = generate("cnns", 16 << 30, 200, 1);
    let set = working_set(&workload.jobs[0]);
    let (mut whole, mut all) = (0, 0);
    for one in &set.uses {
        whole += if one.access == Access::Write {
            u64::from(one.range.count)
        } else {
            0
        };
        all += u64::from(one.range.count);
    }
    assert!(whole * 4 > all, "{whole} of {all}");
    assert!(set.uses.iter().all(|one| one.at < set.period));
}

#[test]
fn turns_keep_the_bound_and_are_lengthened_only_where_they_may_be_and_must() {
    // The link and the kernels are those of a device 8 times as large, so bounds shrink with it. On
    // a much smaller one the granules in flight take as long as a turn.
    let at = |share, bounds: [u64; 2]| {
        let mut setting = setting(true);
        setting.memory.capacity = 2 << 30;
        let rule = default_rule();
        setting.turns = TurnSource::Rule(weft_paging::TurnRule {
            least: rule.least / 8,
            max_swapped_out: bounds[0] * MS / 8,
            swapped_out_limit: bounds[1] * MS / 8,
            late: rule.late / 8,
            ..rule
        });
        let workload = generate("decoders", setting.memory.capacity, share, 1);
        run(Contender::Weft, &workload, &setting)
    };
    let bound = 500.0 / 8.0;
    let (kept, longer) = (at(300, [500, 0]), at(300, [500, 2_000]));
    assert!(kept.away_ms <= 1.1 * bound && kept.said_ms <= bound, "{kept:?}");
    assert!(kept.efficiency < 0.2, "{kept:?}");
    assert!(longer.efficiency > 0.8, "{longer:?}");
    assert!(longer.said_ms > bound && longer.said_ms <= 4.0 * bound, "{longer:?}");
    // No token comes sooner in turns that are too short for it.
    assert!(kept.gap_ms > 0.8 * longer.gap_ms, "{kept:?} {longer:?}");
    let two = at(200, [500, 0]);
    assert!(two.efficiency > 0.5 && two.away_ms <= bound, "{two:?}");
}
