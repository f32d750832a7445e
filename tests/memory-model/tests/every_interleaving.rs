// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every interleaving of the shared words, within the bounds that the crate states.
#![cfg(loom)]
#![forbid(unsafe_code)]

use weft_memory_model::{Machine, check, credit, handles, ring, sleep};

/// On both machines.
fn on_both(switches: usize, model: fn()) {
    for machine in [Machine::C11, Machine::X86] {
        check(machine, switches, model);
    }
}

/// Whether a model fails in some interleaving.
fn fails(machine: Machine, switches: usize, model: fn()) -> bool {
    std::panic::catch_unwind(|| check(machine, switches, model)).is_err()
}

#[test]
fn records_of_two_threads_come_whole_and_all() {
    on_both(2, ring::two_writers);
}

#[test]
fn records_that_were_overwritten_are_counted() {
    on_both(2, ring::a_lap);
}

#[test]
fn a_writer_that_sleeps_through_a_lap_may_tear_a_record() {
    // A limit, and proof that the models can see a torn record: other threads write 4096 records
    // while a thread has lost its core within one. A sum over the record's words would detect it;
    // if this check begins to fail, the limit is gone.
    assert!(fails(Machine::X86, 2, ring::a_lap_over_a_sleeping_writer));
}

#[test]
fn an_idleness_comes_once_between_its_launches() {
    on_both(2, ring::an_idleness_in_its_place);
}

#[test]
fn who_sees_a_epoch_sees_its_record() {
    on_both(2, ring::a_epoch_means_a_record);
}

#[test]
fn who_sees_a_epoch_sees_its_record_unless_another_thread_is_within_one() {
    // A limit: records are read in order, so a record that is not whole yet hides the records after
    // it.
    assert!(fails(Machine::X86, 2, ring::a_epoch_means_a_record_of_two_threads));
}

#[test]
fn credit_is_conserved() {
    on_both(2, credit::conserved);
}

#[test]
fn credit_that_comes_back_comes_once() {
    on_both(2, credit::renewed_once);
}

#[test]
fn credit_for_one_goes_once() {
    on_both(2, credit::taken_once);
}

#[test]
fn credit_is_void_after_the_epoch() {
    on_both(2, credit::void_after_the_epoch);
    on_both(2, credit::old_credit_stays_void);
}

#[test]
fn nobody_waits_for_a_broker_that_sleeps() {
    // Relies on the order of sequentially consistent accesses, which loom treats as weaker. On C11
    // loom raises a false alarm, which proves that the check works.
    for model in [
        sleep::a_background_waits,
        sleep::a_foreground_job_ends_a_silence,
        sleep::a_foreground_becomes_idle,
    ] {
        check(Machine::X86, 2, model);
        assert!(fails(Machine::C11, 2, model));
    }
    on_both(2, sleep::a_launch_ends_no_nap);
}

#[test]
fn a_published_handle_is_found_with_its_meaning() {
    on_both(2, handles::published_is_found);
    on_both(2, handles::one_slot_a_key);
    on_both(2, handles::reused);
}
