# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cases of admission: jobs that take more than they declared, or declared nothing, and memory that
strangers and managed jobs hold."""

import os
import signal

import pytest
from stage import BOUND, Scene

pytestmark = pytest.mark.scene(make=Scene)


def test_who_outgrows_his_share_gets_what_is_free_and_hurts_nobody(scene):
    grower = scene.job("grower", "2GiB", "1GiB", "3GiB", weft=["--memory", "2GiB"])
    scene.until("it has its memory", lambda: scene.has("grower", "took"))
    free, total = next(line["info"] for line in scene.said("grower") if line["event"] == "begun")
    assert total == 2 << 30 and free <= total, f"it is told of {free} of {total}"
    neighbour = scene.job("neighbour", "1GiB", "2GiB", weft=["--memory", "3GiB"])
    scene.until("the neighbour has its first memory", lambda: scene.has("neighbour", "took"))
    scene.go("grower")
    scene.until("it has grown as far as it can", lambda: scene.has("grower", "none"))
    # 2 of 2 GiB, then 1 that was free; the last 3 are not, though the neighbour has not taken all
    # that is its own.
    assert [line["event"] for line in scene.said("grower") if line["event"] in ("took", "none")] == ["took", "took", "none"]
    scene.go("neighbour")
    scene.until("the neighbour has all of its memory", lambda: scene.has("neighbour", "took", 2))
    for name, job in (("grower", grower), ("neighbour", neighbour)):
        scene.ends(job)
    assert "none" not in scene.events("neighbour")
    assert scene.queue()["denied"] >= 1


def test_jobs_that_say_nothing_begin_at_once_and_share_what_is_there(scene):
    scene.warm()
    running = [scene.job(f"quiet{at}", "1GiB", "500MiB", weft=[]) for at in range(4)]
    for at in range(4):
        scene.go(f"quiet{at}")
        scene.until("it has all of its memory", lambda n=f"quiet{at}": scene.has(n, "took", 2))
        scene.release(f"quiet{at}")
    for job in running:
        scene.finish(job)
        assert "weft:" not in job.stderr(), job.stderr()
    assert scene.queue()["waited"] == 0


def test_two_large_jobs_on_a_cold_broker_do_not_starve_each_other(scene):
    # The device is unknown yet: 4 GiB and 4 GiB fit it, but not their contexts in addition.
    assert scene.device_row() is None
    both = [scene.job(f"large{at}", "4GiB", weft=["--memory", "4GiB"]) for at in range(2)]
    scene.until("one has its memory and one waits", lambda: len(scene.waiting()) == 1 and any(scene.has(f"large{at}", "took") for at in range(2)))
    first = next(at for at in range(2) if scene.has(f"large{at}", "took"))
    scene.until("what a context takes is known", lambda: (scene.device_row() or {"context": 0})["context"] > 0)
    row = scene.device_row()
    assert row["foreign"] == 0, row
    scene.ends(both[first])
    scene.until("the other one has its memory", lambda: scene.has(f"large{1 - first}", "took"))
    scene.ends(both[1 - first])
    assert all("none" not in scene.events(f"large{at}") for at in range(2))
    # The measured size outlives the broker.
    scene.again()
    scene.finish(scene.job("small", "1GiB", weft=["--memory", "1GiB"], stay=False))
    assert scene.device_row()["context"] == row["context"], scene.device_row()


def test_strangers_come_and_go(scene):
    """Jobs without weft: their memory is known when a job is let in, and while one waits."""
    scene.again(nvml=True)
    stranger = scene.job("stranger", "5GiB", bare=True)
    scene.until("the stranger has its memory", lambda: scene.has("stranger", "took"))
    first = scene.job("first", "1GiB", weft=["--memory", "1GiB"])
    # NVML is asked a moment after a client has looked, and a job that has ended by then shows
    # nothing.
    scene.until("what a context takes is known", lambda: (scene.device_row() or {"context": 0})["context"] > 0)
    scene.ends(first)
    waiter = scene.waiter("waiter", "6GiB")
    row = scene.device_row()
    assert row["foreign"] >= 5 << 30 and 0 < row["context"] < 1 << 30, row
    # It leaves. No job under weft runs, and so none can look.
    scene.ends(stranger)
    scene.until("the waiter has its memory", lambda: scene.has("waiter", "took"))
    scene.ends(waiter)
    # One that comes after all have looked is seen before the next one is let in.
    late = scene.job("late", "5GiB", bare=True)
    scene.until("the late one has its memory", lambda: scene.has("late", "took"))
    second = scene.waiter("second", "4GiB", stay=False)
    scene.ends(late)
    scene.finish(second)
    assert "none" not in scene.events("second") + scene.events("waiter")


def test_jobs_that_say_nothing_wait_for_what_others_have(scene):
    """Together they take more than the device has. A job that comes late for its memory waits until
    a neighbour ends, and gets no out of memory."""
    scene.warm()
    torch = scene.options.torch > 0
    names = ["one", "two", "three"]
    # The memory that they wait for comes in time. On a busy machine that takes longer than the
    # default wait of a job that declares nothing (10 s).
    patient = ["--wait", f"{2 * BOUND:.0f}"]
    running = {name: scene.job(name, "1GiB", "3GiB", weft=patient, torch=torch and name != "three") for name in names}
    for name in names:
        scene.until(f"{name} has its first memory", lambda n=name: scene.has(n, "took"))
    scene.go("one")
    scene.until("the first one has all of its memory", lambda: scene.has("one", "took", 2))
    # 4 + 1 + 1 GiB and contexts are taken; each of the others wants 3 more.
    waits = lambda: sorted(row["pid"] for row in scene.queue()["running"] if row["waits_for"])  # noqa: E731
    scene.go("two")
    scene.until("the second one waits", lambda: waits() == [running["two"].pid])
    scene.go("three")
    # The line comes by another way than the answer, and the job may be over before it is there.
    scene.until("the second one says so", lambda: "which other jobs hold" in running["two"].stderr())
    scene.until("both wait", lambda: waits() == sorted(running[name].pid for name in ("two", "three")))
    for name in names:
        scene.until(f"{name} has all of its memory", lambda n=name: scene.has(n, "took", 2))
        scene.ends(running[name])
        assert "none" not in scene.events(name), f"{name}: {scene.events(name)}"
    # The next broker knows the memory that they took.
    scene.again()
    assert sorted(row["pid"] for row in scene.queue()["learnt"]) == sorted(job.pid for job in running.values()), scene.queue()["learnt"]
    scene.weft("profile", "keep", str(running["two"].pid), "--name", "two")


def test_who_waits_for_more_in_vain_gets_cudas_own_answer(scene):
    holder = scene.holder("holder", "5GiB")
    grower = scene.job("grower", "1GiB", "4GiB", weft=["--wait", "2"], stay=False)
    scene.go("grower")
    scene.finish(grower)
    assert scene.events("grower") == ["asks", "begun", "took", "none", "ended"], scene.events("grower")
    # It gets one line of advice for the next time.
    assert grower.stderr().count("weft profile keep") == 1, grower.stderr()
    assert scene.queue()["denied"] >= 1, scene.queue()
    # Alone it learns at once that there is no such device; so does a job that would wait for one
    # that waits for it.
    scene.ends(holder)
    alone = scene.job("alone", "1GiB", "9GiB", weft=[], stay=False)
    scene.go("alone")
    scene.finish(alone)
    assert scene.events("alone") == ["asks", "begun", "took", "none", "ended"], scene.events("alone")
    assert "weft profile keep" not in alone.stderr(), alone.stderr()
    # Ctrl-C ends a wait for more, too.
    holder = scene.holder("again", "5GiB")
    tired = scene.job("tired", "1GiB", "4GiB", weft=["--wait", f"{2 * BOUND:.0f}"])
    scene.go("tired")
    scene.until("it waits for more", lambda: any(row["waits_for"] for row in scene.queue()["running"]))
    os.kill(tired.pid, signal.SIGINT)
    tired.wait(BOUND)
    assert not tired.timed_out and "KeyboardInterrupt" in tired.stderr(), tired.explain()
    scene.ends(holder)


def test_a_managed_job_larger_than_the_device_runs(scene):
    scene.warm()
    for name, says in (("whole", "8GiB"), ("larger", "9GiB")):
        job = scene.job(name, "5GiB", "2GiB", weft=["--backing", "managed", "--memory", says], stay=False)
        scene.go(name)
        scene.finish(job)
        assert scene.events(name) == ["asks", "begun", "took", "took", "ended"], f"{scene.said(name)} {job.explain()}"
