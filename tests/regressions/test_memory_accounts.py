# SPDX-License-Identifier: MIT OR Apache-2.0
"""A job's account of device memory, the memory that a context takes along, and the samples that
outlive a job."""

import json
import os
import signal
import sys

import pytest
from built import compiled
from fixtures.scene import BOUND, weft
from harness import jobs, paths

GIB = 1 << 30
MIB = 1 << 20


def small(scene, gib=8):
    """A scene on a device of `gib` GiB, with its broker."""
    scene.device.settings["SIMGPU_MEMORY"] = str(gib * GIB)
    scene.broker.start()
    return scene


def right(scene, job):
    scene.finish(job)
    assert b"all as it should be" in job.stdout(), f"{job.stdout()!r}\n{job.explain()}"


def stands(scene, job, ready):
    """Waits until it is as far as its program's `stand`."""
    there = jobs.wait_until(lambda: ready.exists() or not job.running(), BOUND)
    assert there and job.running(), f"{job.stdout()!r}\n{job.explain()}"


def foreign(scene):
    """The bytes of the scene's device that weft counts as strangers'."""
    seen = json.loads(weft(scene, "queue", "--json").stdout)
    return seen["devices"][0]["foreign"]


@pytest.mark.finding("correctness-3")
def test_memory_that_a_context_takes_along_is_given_back(scene):
    small(scene)
    program = compiled(scene, "memory_contexts.c")
    # It ends a context twice, to be refused.
    right(scene, scene.job([program], more={"WEFT_MEMORY": "6GiB", "SIMGPU_DEAD_HANDLES": "refuse"}))
    for how in ("created", "reset", "released"):
        ready = scene.folder / f"{how}.ready"
        job = scene.job([program, how, ready, scene.running])
        stands(scene, job, ready)
        row = scene.row(job)
        # weft learns from it the memory that it held at a time.
        assert (row["memory"], row["memory_peak"]) == (0, 5 * GIB), row
        # And no job waits for memory that it does not hold any more: a neighbour has all of the
        # device.
        neighbour = scene.client(more={"WEFT_MEMORY": "7GiB", "WEFT_WAIT": "20"})
        scene.running.unlink()
        scene.finish(job)
        scene.finish(neighbour)
        scene.running.touch()


@pytest.mark.finding("correctness-4")
def test_managed_memory_that_a_job_takes_by_itself_is_no_share_of_its(scene):
    small(scene)
    ready = scene.folder / "ready"
    job = scene.job([compiled(scene, "memory_own.c"), 0, ready, scene.running])
    stands(scene, job, ready)
    row = scene.row(job)
    assert (row["memory"], row["memory_peak"], row["managed_own"]) == (64 * MIB, 64 * MIB, 10 * GIB), row


@pytest.mark.finding("correctness-4")
def test_managed_memory_on_the_device_is_no_strangers(scene):
    small(scene)
    ready = scene.folder / "ready"
    job = scene.job([compiled(scene, "memory_own.c"), 4096, ready, scene.running])
    stands(scene, job, ready)
    assert foreign(scene) == 0, weft(scene, "queue", "--json").stdout
    # A neighbour that fits next to it without those pages begins.
    neighbour = scene.client(more={"WEFT_MEMORY": "5GiB", "WEFT_WAIT": "0"})
    scene.finish(neighbour)
    scene.running.unlink()
    scene.finish(job)


@pytest.mark.finding("correctness-5")
def test_a_block_is_no_other_streams_while_work_with_it_runs(scene):
    small(scene)
    right(scene, scene.job([compiled(scene, "memory_pool.c")], more={"WEFT_BACKING": "managed"}))


@pytest.mark.finding("correctness-21")
def test_physical_memory_lives_as_long_as_it_is_mapped(scene):
    small(scene)
    right(scene, scene.job([compiled(scene, "memory_mapped.c")], more={"WEFT_MEMORY": "4GiB"}))


@pytest.mark.finding("users-B5")
def test_a_job_that_is_killed_keeps_the_samples_that_were_taken_of_it(scene):
    scene.broker.start()
    program = compiled(scene, "memory_rarely.c")
    for name, ends in (("ended", "TERM"), ("killed", "KILL")):
        ready = scene.folder / f"{name}.ready"
        # `weft profile` puts weft under the job itself, and hands on the signals that it gets.
        environment = {**jobs.clean_environment(), **scene.device.environment(), **scene.broker.variables()}
        job = jobs.Job([paths.WEFT, "profile", "--name", name, "--", program, 2000, ready], environment=environment, folder=scene.folder, name=name)
        scene.jobs.append(job)
        stands(scene, job, ready)
        (row,) = scene.status()["clients"]
        os.kill(row["pid"] if ends == "KILL" else job.pid, getattr(signal, f"SIG{ends}"))
        job.wait(BOUND)
        assert not job.timed_out, job.explain()
        profile = json.loads(weft(scene, "profile", "show", name, "--json").stdout or "{}")
        sampled = [kernel for kernel in profile.get("kernels", []) if kernel["time"]["count"] > 0]
        assert row["samples"] > 0 and len(sampled) == 8, f"{row['samples']} samples, {profile}\n{job.explain()}"


@pytest.mark.finding("correctness-18")
def test_no_claim_sees_a_block_twice(scene, rust):
    rust("weft-interposer", "throttle::tests::admission_slot::no_claim_sees_a_block_twice")


@pytest.mark.finding("hardware-F16")
def test_who_waits_inside_an_allocation_says_so_and_for_how_long(scene, rust):
    small(scene)
    holds = paths.ROOT / "tests" / "admission" / "holds.py"

    def job(name, *takes, **more):
        command = [sys.executable, holds, scene.folder / f"{name}.json", "--while", scene.running]
        for take in takes:
            command += ["--take", take]
        return scene.job(command, name, more={name: str(value) for name, value in more.items()})

    def events(name):
        return [line["event"] for line in jobs.lines_of(scene.folder / f"{name}.json")]

    holder = job("holder", "5GiB", WEFT_MEMORY="5GiB")
    assert jobs.wait_until(lambda: "took" in events("holder") or not holder.running(), BOUND) and holder.running(), holder.explain()
    # It declares neither its memory nor how long it waits.
    grower = job("grower", "1GiB", "4GiB")
    assert jobs.wait_until(lambda: "waits inside" in grower.stderr() or not grower.running(), BOUND) and grower.running(), grower.explain()
    assert "for at most 10 s" in grower.stderr(), grower.explain()
    # The wait ends by itself, though its neighbour stays; and it was reported once.
    assert jobs.wait_until(lambda: "none" in events("grower"), BOUND), grower.explain()
    assert holder.running() and grower.stderr().count("waits inside") == 1, grower.explain()
    rust("weft-daemon", "admission::growth::tests::a_wait_that_is_soon_over_is_not_told")


@pytest.mark.finding("bugs-B2")
def test_what_a_pool_keeps_is_counted_once(scene):
    small(scene)
    program = compiled(scene, "memory_kept.c")
    right(scene, scene.job([program, "pools"], more={"WEFT_MEMORY": "7GiB"}))
    ready = scene.folder / "ready"
    job = scene.job([program, "keeps", ready, scene.running])
    stands(scene, job, ready)
    assert (scene.row(job)["memory"], foreign(scene)) == (4 * GIB, 0), weft(scene, "queue", "--json").stdout
    # A neighbour that fits next to it begins.
    scene.finish(scene.client(more={"WEFT_MEMORY": "2GiB", "WEFT_WAIT": "0"}))
    scene.running.unlink()
    right(scene, job)


@pytest.mark.finding("bugs-B8")
@pytest.mark.parametrize("what", ["graphs", "arrays"])
def test_memory_of_graphs_and_arrays_is_counted(scene, what):
    small(scene)
    right(scene, scene.job([compiled(scene, "memory_kept.c"), what], more={"WEFT_MEMORY": "7GiB"}))


@pytest.mark.finding("bugs-B9")
def test_memory_of_another_devices_pool_counts_there(scene):
    scene.device.settings["SIMGPU_DEVICES"] = "8GiB,8GiB"
    scene.broker.start()
    ready = scene.folder / "ready"
    job = scene.job([compiled(scene, "memory_kept.c"), "elsewhere", ready, scene.running])
    stands(scene, job, ready)
    rows = [row for row in scene.status()["clients"] if row["pid"] == job.pid]
    assert sorted(row["memory"] for row in rows) == [0, 2 * GIB], rows
    seen = json.loads(weft(scene, "queue", "--json").stdout)
    assert [device["foreign"] for device in seen["devices"]] == [0, 0], seen
    scene.running.unlink()
    right(scene, job)


@pytest.mark.finding("bugs-B7")
@pytest.mark.parametrize("number", [-1, 77])
def test_a_device_that_there_is_not_leaves_the_account_alone(scene, number):
    small(scene)
    ready = scene.folder / "ready"
    job = scene.job([compiled(scene, "memory_kept.c"), "ordinal", number, ready, scene.running])
    stands(scene, job, ready)
    rows = [row for row in scene.status()["clients"] if row["pid"] == job.pid]
    assert [row["memory"] for row in rows] == [2 * GIB], rows
    assert "not counted" not in job.stderr(), job.explain()
    running = json.loads(weft(scene, "queue", "--json").stdout)["running"]
    assert [row["pid"] for row in running] == [job.pid], running
    scene.running.unlink()
    right(scene, job)


@pytest.mark.finding("bugs-total")
def test_what_a_job_is_told_as_total_does_not_move(scene):
    small(scene)
    right(scene, scene.job([compiled(scene, "memory_kept.c"), "beyond"], more={"WEFT_MEMORY": "2GiB"}))


@pytest.mark.finding("bugs-answer")
def test_a_broker_that_went_refuses_nothing(rust):
    rust("weft-interposer", "throttle::tests::admission_slot::a_broker_that_went_refuses_nothing")
