# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cases of admission: jobs that wait for memory, and jobs and brokers that are killed, stopped or
stuck meanwhile."""

import os
import re
import signal
import threading
import time

import pytest
from stage import BOUND, Scene

pytestmark = pytest.mark.scene(make=Scene)


def test_who_will_not_wait_does_not(scene):
    holder = scene.holder("holder", "6GiB")
    # The content of its buffers is not lost: it ends by itself.
    hasty = scene.job("hasty", "3GiB", weft=["--memory", "3GiB", "--no-wait"], more=["--print", "of before"], without=("PYTHONUNBUFFERED",))
    scene.finish(hasty, 75)
    assert hasty.stdout() == b"of before", hasty.explain()
    assert scene.events("hasty") == ["asks", "none"] and "--no-wait" in hasty.stderr(), hasty.explain()
    # A job that would continue without a device is ended; the content of the C library's buffers
    # is written.
    stubborn = scene.job("stubborn", "3GiB", weft=["--memory", "3GiB", "--no-wait"], more=["--print", "of before", "--stubborn"], without=("PYTHONUNBUFFERED",))
    scene.until("the stubborn one was told that there is none", lambda: scene.has("stubborn", "none"))
    scene.until("nobody waits", lambda: scene.waiting() == [])
    scene.finish(stubborn, 75)
    assert stubborn.stdout() == b"of before", stubborn.explain()
    for wrong in (["--wait", "-3"], ["--wait=1.5"], ["--wait", "soon"]):
        told = scene.weft("run", *wrong, "--", "/bin/true", code=2).stderr.splitlines()
        assert "--wait" in told[0] and "a whole number of seconds" in told[0], told
    patient = scene.job("patient", "3GiB", weft=["--memory", "3GiB", "--wait", "1"])
    scene.finish(patient, 3)
    # The seconds that the machine took until the job noticed.
    assert re.search(r"no device memory within \d+ s", patient.stderr()), patient.stderr()
    tired = scene.waiter("tired", "3GiB")
    os.kill(tired.pid, signal.SIGINT)
    # A script that has no context yet ends as by the signal's own action.
    scene.finish(tired, -signal.SIGINT)
    scene.until("nobody waits", lambda: scene.waiting() == [])
    small = scene.job("small", "500MiB", weft=["--memory", "600MiB"], stay=False)
    scene.finish(small)
    scene.ends(holder)


def test_odd_surroundings_change_nothing(scene):
    holder = scene.holder("holder", "6GiB")
    # As from a cron job or a script in the background: Ctrl-C is ignored from before, nothing to
    # read from, no home.
    shell = ["/bin/sh", "-c", "trap '' INT; exec \"$@\" <&-", "sh"]
    odd = scene.job("odd", "3GiB", weft=["--memory", "3GiB"], through=shell, without=("HOME", "XDG_RUNTIME_DIR", "TERM"), stay=False)
    scene.waits(odd)
    os.kill(odd.pid, signal.SIGINT)
    asked = scene.job("asked", "3GiB", weft=["--memory", "3GiB"], through=shell, without=("HOME", "XDG_RUNTIME_DIR", "TERM"), stay=False)
    scene.waits(asked)
    # A job that is asked to end ends, as it would without weft.
    os.kill(asked.pid, signal.SIGTERM)
    scene.finish(asked, -signal.SIGTERM)
    scene.until("one waits", lambda: scene.waiting() == [odd.pid])
    scene.ends(holder)
    scene.finish(odd)


def test_a_broker_that_is_stuck_keeps_nobody_waiting(scene):
    holder = scene.holder("holder", "6GiB")
    waiter = scene.job("waiter", "1GiB", weft=["--memory", "3GiB"], stay=False)
    scene.waits(waiter)
    os.kill(scene.broker.job.pid, signal.SIGSTOP)
    try:
        # It continues as without weft, since 1 of 2 GiB is free.
        scene.finish(waiter)
        assert "no longer keeps a queue" in waiter.stderr(), waiter.stderr()
    finally:
        os.kill(scene.broker.job.pid, signal.SIGCONT)
    scene.ends(holder)


def test_a_job_killed_while_it_waits_is_forgotten(scene):
    holder = scene.holder("holder", "6GiB")
    waiter = scene.waiter("waiter", "5GiB")
    other = scene.waiter("other", "5GiB", stay=False)
    waiter.kill()
    scene.until("one waits", lambda: scene.waiting() == [other.pid])
    scene.ends(holder)
    scene.finish(other)


class Standstill:
    """The longest time that this machine held up a thread which only sleeps: anything that weft
    does may be late by that time."""

    def __enter__(self):
        self.longest = 0.0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        before = time.monotonic()
        while not self.over.wait(0.01):
            now = time.monotonic()
            self.longest = max(self.longest, now - before - 0.01)
            before = now

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(10)


# A waiting client takes a broker for dead after this time without a sign (DEAD_BEAT in
# interposer/src/admission/mod.rs).
GIVES_UP = 10.0


def test_memory_of_a_killed_job_goes_to_the_next(scene, record_property):
    """From the kill to the moment at which the broker, by its own clock, gave the memory to others,
    less the time that the machine itself held up. The median of five must be less than the time
    after which a waiting client takes the broker for dead. The figure itself is reported."""
    late = []
    for round_ in range(5):
        holder = scene.holder(f"holder{round_}", "6GiB")
        waiter = scene.waiter(f"waiter{round_}", "5GiB", stay=False)
        with Standstill() as standstill:
            killed = time.monotonic_ns()
            os.kill(holder.pid, signal.SIGKILL)
            scene.until("the holder's memory is others'", lambda pid=holder.pid: any(row["pid"] == pid for row in scene.queue()["freed"]))
        row = next(row for row in scene.queue()["freed"] if row["pid"] == holder.pid)
        assert row["share"] >= 6 << 30, row
        seconds = (row["at"] - killed) / 1e9
        assert seconds > 0, f"freed {seconds} s after the kill"
        # The driver has it again as well: the waiter takes it.
        scene.finish(waiter)
        assert scene.events(f"waiter{round_}") == ["asks", "begun", "took", "ended"], scene.events(f"waiter{round_}")
        taken = (scene.at(f"waiter{round_}", "took") - killed) / 1e9
        figure = f"after the kill: {seconds:.3f} s until the memory is others', {taken:.3f} s until the waiter has it (the machine held up a thread for {standstill.longest:.3f} s)"
        record_property("told", figure)
        late.append(seconds - standstill.longest)
        holder.wait(BOUND)
    assert sorted(late)[2] < GIVES_UP, f"the middle of {late}"


def test_a_suspended_waiter_holds_up_nobody(scene):
    holder = scene.holder("holder", "6GiB")
    stopped = scene.waiter("stopped", "5GiB", stay=False)
    other = scene.waiter("other", "5GiB", stay=False)
    os.killpg(stopped.pid, signal.SIGSTOP)
    scene.ends(holder)
    # It is first, is let in and does nothing: the other one has its turn.
    scene.finish(other)
    assert not scene.has("stopped", "begun")
    row = next(row for row in scene.queue()["waiting"] if row["pid"] == stopped.pid)
    assert "suspended" in row["reason"] and row["begins_s"] is None, row
    # It continues, before later jobs.
    again = scene.holder("again", "6GiB")
    last = scene.waiter("last", "5GiB", stay=False)
    os.killpg(stopped.pid, signal.SIGCONT)
    scene.until("it is there again", lambda: "suspended" not in next(row for row in scene.queue()["waiting"] if row["pid"] == stopped.pid)["reason"])
    assert scene.waiting() == [stopped.pid, last.pid], scene.queue()
    scene.release("again")
    for job in (again, stopped, last):
        scene.finish(job)
    assert scene.at("stopped", "begun") < scene.at("last", "begun")
    assert scene.queue()["denied"] == 0, scene.queue()


def test_a_second_broker_says_that_there_is_one(scene):
    holder = scene.holder("holder", "6GiB")
    seen = scene.queue()["running"]
    assert [row["pid"] for row in seen] == [holder.pid] and seen[0]["device"] == scene.queue()["devices"][0]["uuid"] != "", seen
    for _ in range(2):
        told = scene.weft("broker", code=1)
        assert str(scene.broker.socket) in told.stderr and len(told.stderr.splitlines()) == 1, told
    # The first one never noticed.
    assert scene.broker.job.running() and [row["pid"] for row in scene.queue()["running"]] == [holder.pid]
    scene.ends(holder)


def test_killed_while_it_is_admitted_and_while_it_grows(scene):
    for round_ in range(4):
        holder = scene.holder(f"holder{round_}", "6GiB")
        waiter = scene.waiter(f"waiter{round_}", "5GiB")
        scene.release(f"holder{round_}")
        # Somewhere between the holder's end and the waiter's first memory.
        time.sleep(0.01 * round_)
        waiter.kill()
        scene.finish(holder)
    grower = scene.job("grower", "1GiB", *["64MiB"] * 60, weft=["--memory", "1GiB"])
    scene.go("grower")
    scene.until("it grows", lambda: scene.has("grower", "took", 3))
    grower.kill()
    last = scene.job("last", "7GiB", weft=["--memory", "7GiB"], stay=False)
    scene.finish(last)


def test_a_new_broker_knows_who_holds_what(scene):
    holder = scene.holder("holder", "5GiB")
    waiter = scene.waiter("waiter", "4GiB", stay=False)
    # Stopped, so that neither can come back to the new broker before the new job asks.
    for job in (holder, waiter):
        os.killpg(job.pid, signal.SIGSTOP)
    scene.broker.kill()
    scene.broker.start()
    late = scene.waiter("late", "4GiB", stay=False)
    seen = scene.queue()
    assert [row["pid"] for row in seen["running"]] == [holder.pid] and seen["running"][0]["share"] >= 5 << 30, seen
    assert scene.waiting() == [waiter.pid, late.pid], seen
    for job in (holder, waiter):
        os.killpg(job.pid, signal.SIGCONT)
    scene.until("the holder is back", lambda: scene.queue()["running"][0]["clients"])
    assert not scene.has("late", "begun")
    scene.release("holder")
    for job in (holder, waiter, late):
        scene.finish(job)
    # By the wait and not by the restart: the waiter's memory was free before the new job's.
    assert scene.queue()["admitted"] == 3, scene.queue()


def test_many_wait_over_a_restart_and_all_run_once(scene):
    count = scene.options.queued
    holder = scene.holder("holder", "6GiB")
    names = [f"many{at}" for at in range(count)]
    running = [scene.job(name, "2GiB", weft=["--memory", "2GiB", "--duration", "short"], user=f"user{at % 5}", stay=False) for at, name in enumerate(names)]
    scene.until("all wait", lambda: len(scene.waiting()) == count)
    order = scene.waiting()
    assert len(set(order)) == count
    # The broker is killed and another one comes. No job is forgotten or let in for that, and each
    # keeps its place.
    scene.broker.kill()
    scene.broker.start()
    assert scene.waiting() == order, f"{order} waited, after the restart {scene.waiting()}"
    back = lambda: all(row["clients"] for row in [*scene.queue()["waiting"], *scene.queue()["running"]])  # noqa: E731
    scene.until("all are back", back)
    assert scene.waiting() == order and not any(scene.has(name, "begun") for name in names), scene.queue()
    scene.ends(holder)
    for job in running:
        scene.finish(job)
    assert all(scene.events(name) == ["asks", "begun", "took", "ended"] for name in names)
    seen = scene.queue()
    assert (seen["admitted"], seen["waited"], seen["waiting"]) == (count + 1, count, []), seen


def test_what_is_said_wrongly_is_told_before_the_job_begins(scene):
    environment = scene.broker.environment
    for name, wrong in (("WEFT_MEMORY", "12GIG"), ("WEFT_DURATION", "eternal"), ("WEFT_WAIT", "soon")):
        scene.broker.environment = lambda name=name, wrong=wrong: {**environment(), name: wrong}
        told = scene.weft("run", "--", "/bin/touch", str(scene.folder / "began"), code=2).stderr.splitlines()
        assert len(told) == 1 and name in told[0], told
    scene.broker.environment = environment
    assert not (scene.folder / "began").exists()
