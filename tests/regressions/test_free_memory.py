# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job can get free memory: the memory that a job reads as free, and the memory that undeclared
jobs do not hold."""

import pytest
from built import compiled
from fixtures.scene import BOUND
from fixtures.told import Told
from harness import jobs, paths

GIB = 1 << 30
MIB = 1 << 20
FREE_MEMORY = "admission::tests::free_memory"


def small(scene, **variables):
    scene.device.settings.update(SIMGPU_MEMORY=str(8 * GIB), **variables)
    scene.broker.start()
    return scene


@pytest.mark.finding("bugs-B1")
def test_a_job_reads_as_free_what_it_can_have_after_each_growth(scene, rust):
    job = Told(small(scene), "grows")
    free = job.begun["free"]
    for size in (GIB, 3 * GIB, 300 * MIB, GIB):
        took = job.take(size)
        assert took["result"] == 0, took
        assert abs(free - size - took["free"]) <= 4 * MIB, f"{free} were free, {size} are taken: {took}"
        free = took["free"]
    # A neighbour comes and goes, and the job takes more: its free memory does not grow.
    neighbour = Told(scene, "neighbour")
    neighbour.tell("end")
    scene.finish(neighbour.job)
    job.reads(free)
    took = job.take(300 * MIB)
    assert took["result"] == 0 and took["free"] < free, took
    tests = [
        "what_a_job_reads_as_free_is_the_same_before_and_after_it_grows",
        "a_grant_is_its_own_requests_though_a_sibling_waits",
        "what_one_process_waits_with_only_one_has_in_the_end",
    ]
    rust("weft-daemon", *(f"{FREE_MEMORY}::{test}" for test in tests))


@pytest.mark.finding("bugs-B3")
@pytest.mark.parametrize("priority", [5, 0])
def test_what_a_job_that_said_nothing_gave_back_is_the_next_ones(scene, rust, priority):
    first = Told(small(scene), "first")
    assert first.take(6 * GIB)["result"] == 0
    first.does("free")
    # It reads the memory as free, and gets it.
    second = Told(scene, "second", WEFT_PRIORITY=priority)
    second.reads(6 * GIB)
    took = second.take(6 * GIB)
    assert took["result"] == 0, f"{took}\n{second.job.explain()}"
    assert "waits inside" not in second.job.stderr(), second.job.explain()
    # The first one has the rest, and more when the second one has ended.
    assert first.take(500 * MIB)["result"] == 0, first.job.explain()
    second.does("free")
    second.tell("end")
    scene.finish(second.job)
    first.reads(4 * GIB)
    assert first.take(4 * GIB)["result"] == 0, first.job.explain()
    # A job that declares its memory begins next to the held memory.
    first.does("free")
    declared = Told(scene, "declared", WEFT_MEMORY="6GiB", WEFT_WAIT=str(int(BOUND)))
    assert declared.take(6 * GIB)["result"] == 0, declared.job.explain()
    tests = [
        "what_an_undeclared_job_gave_back_is_had_by_the_next_request",
        "a_less_important_job_gets_what_was_not_held_for_five_seconds",
        "a_declared_job_keeps_what_it_does_not_hold",
        "memory_that_is_free_is_had",
    ]
    rust("weft-admission", *(f"tests::undeclared::{test}" for test in tests))
    tests = [
        "what_an_undeclared_job_does_not_hold_is_had_before_anybody_waits_or_is_denied",
        "nothing_is_taken_from_a_client_that_takes_memory_right_now",
    ]
    rust("weft-daemon", *(f"{FREE_MEMORY}::{test}" for test in tests))


@pytest.mark.finding("bugs-V1")
def test_two_caches_that_come_and_go_take_turns(scene):
    both = [Told(small(scene), "one"), Told(scene, "two")]
    for turn in range(6):
        cache = both[turn % 2]
        cache.reads(5 * GIB)
        took = cache.take(5 * GIB)
        assert took["result"] == 0, f"turn {turn}: {took}\n{cache.job.explain()}"
        cache.does("free")
    assert all("waits inside" not in cache.job.stderr() for cache in both)


@pytest.mark.finding("bugs-B11")
def test_the_most_important_job_is_not_kept_inside_an_allocation(scene, rust):
    neighbour = Told(small(scene), "neighbour", WEFT_PRIORITY=5)
    assert neighbour.take(4 * GIB)["result"] == 0
    service = Told(scene, "service", WEFT_PRIORITY=0)
    assert service.take(3 * GIB)["result"] == 0
    # Two GiB more are not there: an allocator that keeps blocks gives them back on this error.
    assert service.take(2 * GIB)["result"] == 2
    assert "waits inside" not in service.job.stderr(), service.job.explain()
    assert scene.broker.status() is not None
    test = "the_most_important_job_is_answered_at_once_unless_it_said_that_it_waits"
    rust("weft-daemon", f"{FREE_MEMORY}::{test}")


@pytest.mark.finding("bugs-late_free")
def test_who_fits_beside_memory_on_its_way_back_does_not_wait_for_it(rust):
    test = "who_fits_beside_memory_that_is_on_its_way_back_does_not_wait_for_it"
    rust("weft-daemon", f"{FREE_MEMORY}::{test}")


@pytest.mark.finding("attack-A9")
def test_a_process_of_the_book_is_no_stranger(rust):
    rust("weft-daemon", f"{FREE_MEMORY}::a_process_of_the_book_is_no_stranger")


def test_a_threads_hopeless_request_costs_another_thread_nothing(scene):
    scene.device.settings.update(SIMGPU_MEMORY=str(8 * GIB))
    ready, go = scene.folder / "ready", scene.folder / "go"
    go.touch()
    job = scene.job([compiled(scene, "memory_claims.c"), ready, go])
    assert jobs.wait_until(ready.exists, BOUND), job.explain()
    scene.broker.start()
    scene.attached(job)
    go.unlink()
    assert job.wait(BOUND) == 0, f"{job.stdout()}\n{job.explain()}"
