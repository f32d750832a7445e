//! What holds of the machine, on a device small enough for short runs.

use simgpu_engine::memory::MemorySettings;
use weft_profiles::working_set::Access;

use super::contender::{ALL, Contender};
use super::machine::{Setting, run, working_set};
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
        adaptive: None,
    }
}

#[test]
fn what_fits_runs_as_if_alone() {
    for name in ["decoders", "rodinia"] {
        let mut setting = setting(true);
        let workload = generate(name, setting.memory.capacity, 100, 1);
        // Sizes are rounded up to blocks, which on so small a device is more than was asked for.
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
